/* network.c: what nodes send to each other in a step, and how long that takes.
 *
 * Each node owns 1/N of every unit. A micro-batch's gradients go to their owners, and an owner's new weights to all
 * others: what does not stay on the node is (N - 1)/N of the gradients of each of its streams, and of all weights it
 * gets the (N - 1)/N that others own. As much leaves a node as comes to it, and both directions carry at once.
 */
#include "plan.h"

/* The part of an array that a node does not own */
static double others(const struct plan_request *req) { return (req->nodes - 1.0) / req->nodes; }

double network_grads(const struct plan_request *req, uint64_t elems)
{
	return others(req) * req->streams * (double)elems * mt_dtype_bytes(req->grad);
}

double network_weights(const struct plan_request *req, uint64_t elems)
{
	return others(req) * (double)elems * mt_dtype_bytes(req->dtype);
}

double network_grads_time(const struct plan_request *req, uint64_t elems)
{
	return req->nodes < 2 ? 0 : network_grads(req, elems) / req->net;
}

double network_weights_time(const struct plan_request *req, uint64_t elems)
{
	return req->nodes < 2 ? 0 : network_weights(req, elems) / req->net;
}

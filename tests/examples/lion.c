/* lion: an optimizer of your own in place of mt-optim, by libmt's driver: Lion (arXiv 2302.06675, algorithm 2).
 *     c = beta1 m + (1 - beta1) g;    w -= lr (sign(c) + decay w);    m = beta2 m + (1 - beta2) g
 * For fp32 runs with gradients. mt-step's --lr, --wd, --beta1, --beta2 and --clip are Lion's (the paper takes --beta2
 * 0.99); --eps changes nothing. It may be killed at any instant but while it applies a step: unlike mt-optim it keeps
 * no journal, so the store is then dirty. usage: lion RUN */
#include <signal.h>

#include "mt.h"

static volatile int stop;
static void on_signal(int sig) { stop = sig; }

static void lion(const struct mt_txn *t, const struct mt_tensor *tensor, float *w, float *m, float *v, const float *g)
{
	double decay = tensor->decay ? t->decay : 0;
	(void)v;
	for (uint64_t i = 0; i < tensor->n; i++) {
		double clipped = t->clip_factor * g[i], c = t->beta1 * m[i] + (1 - t->beta1) * clipped;
		w[i] = (float)(w[i] - t->lr * ((c > 0) - (c < 0) + decay * w[i]));
		m[i] = (float)(t->beta2 * m[i] + (1 - t->beta2) * clipped);
	}
}

int main(int argc, char **argv)
{
	signal(SIGTERM, on_signal);
	int rc = argc == 2 ? mt_optimize(argv[1], lion, &stop) : mt_fail(MT_EX_USAGE, "usage: lion RUN");
	if (rc) fprintf(stderr, "lion: %s\n", mt_errmsg());
	return -rc;
}

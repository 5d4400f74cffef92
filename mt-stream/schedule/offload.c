/* offload.c: activations that wait in host memory from the forward to the backward pass: residuals, and what
 * blocks keep. On the device each kind has two places: one is in use while the other one is copied.
 */
#include "schedule.h"
#include "trace.h"

/* Compute is about to write number i: wait until the previous one in that memory has been copied out */
static void offload_begin(struct stream *s, struct offload *f, uint32_t i)
{
	queue_wait(s, Q_COMPUTE, f->left[i & 1]);
	f->held[i & 1] = i;
}

static void offload_copy(struct stream *s, enum queue q, void *dev, void *host, uint64_t bytes)
{
	bool in = q == Q_WEIGHTS;
	launch(s, q, &(struct op){OP_COPY, .copy = {in ? dev : host, in ? host : dev, bytes}});
}

/* Copy number i between the device and the offload buffer. The buffer has all residuals first, then what blocks
 * keep. */
static void offload_copies(struct stream *s, enum queue q, const struct offload *f, uint32_t i)
{
	const struct micro *m = s->micro;
	bool residual = f == &s->now.residual;
	uint64_t residuals = m->plan.residual_offloaded ? residuals_away(&m->request) * m->residual_bytes : 0;
	char *host = s->memory.offload_buffer;
	uint64_t n = i - m->request.still; /* in the buffer */
	trace_at(s->dev->trace, q, i + !residual, "activations");
	if (residual) offload_copy(s, q, output(s, i, 0), host + n * m->residual_bytes, m->residual_bytes);
	else offload_copy(s, q, m->layout.away_at[i & 1], host + residuals + n * m->away_bytes, m->away_bytes);
}

/* Compute launched so far has written number i: copy it out */
static void offload_out(struct stream *s, struct offload *f, uint32_t i)
{
	queue_wait(s, Q_GRADS, event_record(s, Q_COMPUTE));
	offload_copies(s, Q_GRADS, f, i);
	f->left[i & 1] = event_record(s, Q_GRADS);
}

/* Compute from here on reads number i: copy it in, unless it is still there. No event is needed for one thing: it has
 * been copied out. Compute waited for that before it wrote number i + 2 there, in the forward pass, and `read` is
 * later. */
static void offload_in(struct stream *s, struct offload *f, uint32_t i, struct event read)
{
	if (f->held[i & 1] == i) return;
	queue_wait(s, Q_WEIGHTS, read);
	offload_copies(s, Q_WEIGHTS, f, i);
	f->held[i & 1] = i;
	queue_wait(s, Q_COMPUTE, event_record(s, Q_WEIGHTS));
}

void forward_begins(struct stream *s, uint32_t u)
{
	if (s->micro->plan.residual_offloaded) offload_begin(s, &s->now.residual, u);
	if (u > 0 && is_offloaded(s, u - 1)) offload_begin(s, &s->now.kept, u - 1);
}

void forward_ends(struct stream *s, uint32_t u)
{
	if (s->micro->plan.residual_offloaded && u >= s->micro->request.still && u + 2 < s->units - 1)
		offload_out(s, &s->now.residual, u);
	if (u > 0 && is_offloaded(s, u - 1) && u + 1 < s->geo->layers && is_offloaded(s, u + 1))
		offload_out(s, &s->now.kept, u - 1);
}

void activations_ahead(struct stream *s, uint32_t u, struct event read)
{
	if (s->micro->plan.residual_offloaded) offload_in(s, &s->now.residual, u - 1, read);
	if (is_offloaded(s, u - 1)) offload_in(s, &s->now.kept, u - 1, read);
}

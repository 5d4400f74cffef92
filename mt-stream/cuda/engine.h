/* engine.h: attention by a library (sdpa.h) where it takes the shape, a group of rows a call */
#ifndef MT_STREAM_CUDA_ENGINE_H
#define MT_STREAM_CUDA_ENGINE_H

#include "device.h"
#include "kernels.h"
#include "sdpa.h"

struct engine;

/* Takes sdpa over, also where there is no memory: NULL */
struct engine *engine_open(struct sdpa *sdpa, const struct mt_geometry *);
void engine_close(struct engine *);
const char *engine_name(const struct engine *);

/* Bytes of work memory for rows of seq tokens; rows 0: the library does not take them, forward and backward */
struct attention_need engine_need(struct engine *, int64_t seq, bool packed, bool train);
/* Make every plan that such a call can want: with documents in its rows where the last need was packed */
void engine_rehearse(struct engine *, const struct attention_args *);
/* 0, or -ex. Groups of rows that the library does not take are computed by our own kernels. */
int engine_run(struct engine *, const struct cuda_queue *, const struct attention_args *);

/* Does the library take rows of seq tokens that hold several documents? */
bool engine_packs(struct engine *, int64_t seq);

/* trial.c: does the library compute what our kernels compute, with documents and without, the same bits twice? On
 * short rows; on one row of seq tokens. 0; else mt_errmsg() says what is wrong. The queue is at rest. */
int engine_trial(struct engine *, const struct cuda_queue *, const struct mt_geometry *);
int engine_trial_row(struct engine *, const struct cuda_queue *, const struct mt_geometry *, int64_t seq);

#endif

/* backend.h: the attention backend: a library (sdpa.h) computes attention of the shapes that it takes */
#ifndef MT_STREAM_CUDA_BACKEND_H
#define MT_STREAM_CUDA_BACKEND_H

#include "device/device.h"
#include "kernels.h"
#include "mt/model.h"
#include "sdpa.h"

struct backend;

/* Owns sdpa from now on, and closes it; reads the geometry until it is closed. NULL: no memory, sdpa is closed */
struct backend *backend_open(struct sdpa *sdpa, const struct mt_geometry *);
void backend_close(struct backend *);
const char *backend_name(const struct backend *);

/* Work memory for rows of seq tokens, by kind of layers; there false: the library takes none of them */
struct attention_need backend_need(struct backend *, int64_t seq, bool packed, bool train);
/* Make every plan that backend_run may need for such arguments; with documents if the last backend_need was packed */
void backend_autotune(struct backend *, const struct attention_args *);
/* 0, or -ex. Groups of rows that the library does not take are computed by our own kernels. */
int backend_run(struct backend *, const struct cuda_queue *, const struct attention_args *);

/* backend-check.c: compare the library with our own kernels, with documents and without; its results must also have the
 * same bits twice; each kind of heads that it takes. backend_check: on short rows; backend_check_row: on one row of seq
 * tokens. 0; else mt_errmsg() says what is wrong. The queue must be at rest. */
int backend_check(struct backend *, const struct cuda_queue *, const struct mt_geometry *);
int backend_check_row(struct backend *, const struct cuda_queue *, const struct mt_geometry *, int64_t seq);

#endif

/* counters.h: what each stage counts in its slot (struct mt_slot, `counters`) since it started. A line gives a counter
 * its place and its name in mt-store stat and stat --abi, and for Prometheus: counter wait_ns of mt-stream is
 * mt_stream_wait_seconds_total. Of names with "bytes", and with _ns at the end, people read units.
 *
 * C(stage, counter) */
#ifndef LIBMT_COUNTERS_H
#define LIBMT_COUNTERS_H

/* clang-format off */

/* tokens: targets; processed: of documents; update_wait_ns: in each step, of the mt-stream that waited longest */
#define MT_COUNTERS_STEP(C) C(STEP, steps) C(STEP, tokens) C(STEP, processed) C(STEP, update_wait_ns)
/* snapshot_wait_ns: of wait_ns, for mt-ckpt; early_updates: of units before a commit */
#define MT_COUNTERS_OPTIM(C) \
	C(OPTIM, pieces) C(OPTIM, gradient_bytes) C(OPTIM, updates) C(OPTIM, update_ns) C(OPTIM, wait_ns) \
	C(OPTIM, snapshot_wait_ns) C(OPTIM, early_updates) C(OPTIM, tier_wait_ns)
#define MT_COUNTERS_CKPT(C) C(CKPT, saves) C(CKPT, bytes)
#define MT_COUNTERS_TIER(C) \
	C(TIER, tiles_read) C(TIER, bytes_read) C(TIER, tiles_written) C(TIER, bytes_written) C(TIER, transfer_ns) \
	C(TIER, repeated_transfers) C(TIER, new_files)
/* wait_ns: for a micro-batch; predicted_ns: what plans say of busy_ns; update_wait_ns: of compute, for weights */
#define MT_COUNTERS_STREAM(C) \
	C(STREAM, micros) C(STREAM, tokens) C(STREAM, bytes_in) C(STREAM, bytes_out) C(STREAM, wait_ns) \
	C(STREAM, busy_ns) C(STREAM, predicted_ns) C(STREAM, update_wait_ns)

/* MT_STEP_steps, ...: the index in `counters` */
#define MT_COUNTER_INDEX(stage, counter) MT_##stage##_##counter,
enum { MT_COUNTERS_STEP(MT_COUNTER_INDEX) MT_STEP_saves_reported }; /* not shown: failed saves that were reported */
enum { MT_COUNTERS_OPTIM(MT_COUNTER_INDEX) };
enum { MT_COUNTERS_CKPT(MT_COUNTER_INDEX) };
enum { MT_COUNTERS_TIER(MT_COUNTER_INDEX) };
enum { MT_COUNTERS_STREAM(MT_COUNTER_INDEX) };

/* clang-format on */

#endif

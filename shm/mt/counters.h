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

/* What the GPU of an mt-stream says of itself (struct mt_slot, `gpu`), by NVIDIA's management library, once a second.
 * 0: not known. energy: since the mt-stream started.
 *
 * G(field, scale, key, changes, type, metric, help): times scale, it is `key` in mt-store stat --json, gpuN_key in a
 * line of metrics if it changes while a run trains, and mt_gpu_metric for Prometheus */
#define MT_GPU(G) \
	G(memory_used, 1, "memory_used_bytes", true, "gauge", "memory_used_bytes", \
		"Bytes of the GPU's memory in use, by any process.") \
	G(memory, 1, "memory_bytes", false, "gauge", "memory_bytes", "Bytes of the GPU's memory.") \
	G(power, 1e-3, "power_w", true, "gauge", "power_watts", "Power that the GPU draws.") \
	G(power_limit, 1e-3, "power_limit_w", false, "gauge", "power_limit_watts", "Power that the GPU may draw.") \
	G(clock, 1e6, "clock_hz", true, "gauge", "clock_hertz", "Clock of the GPU's multiprocessors.") \
	G(clock_limit, 1e6, "clock_limit_hz", false, "gauge", "clock_limit_hertz", "Their highest clock.") \
	G(temperature, 1, "temperature_c", true, "gauge", "temperature_celsius", "Temperature of the GPU.") \
	G(energy, 1e-3, "energy_j", true, "counter", "energy_joules_total", "Energy since the mt-stream started.")
/* Why the clock is held down: bits of word `reasons`, without NVML's bit 0: the GPU has nothing to do. R(bit, words) */
#define MT_GPU_REASONS(R) \
	R(1, "clock setting") R(2, "power limit") R(3, "hardware slowdown") R(4, "sync boost") R(5, "temperature") \
	R(6, "overheating") R(7, "power brake") R(8, "display's clock setting")
#define MT_GPU_INDEX(field, ...) MT_GPU_##field,
enum { MT_GPU(MT_GPU_INDEX) MT_GPU_reasons, MT_GPU_WORDS };

/* clang-format on */

#endif

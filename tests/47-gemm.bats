#!/usr/bin/env bats
# The cuda device's GEMM: a run selects the algorithm of each shape once. The emulator's own cuBLASLt
# (tests/gpu/emu/cublaslt.c) draws by FAKE_CUBLASLT_SEED which algorithms its heuristic names and how long each of them
# takes, so two mt-streams with two seeds would select different algorithms.

load helpers
load lib/step

CASE=qwen2

# Start an mt-stream whose cuBLASLt has seed SEED: stream_of SEED [WORD=VALUE...]
stream_of() {
	local seed=$1
	shift
	spawn stream env FAKE_CUBLASLT_SEED="$seed" MT_EMU_SEED="$seed" "$@" "$EMU" "$RUN" --device cuda \
		--chunk-tokens 48 --head-tokens 40 ${STREAM_OPTS:-}
}

# driven OUT: start a step that waits for an mt-stream. served OUT SEED: start the mt-stream that computes it
driven() {
	stream-drive step "$RUN" 5 24 1 1 3 >"$T/$1.out" 2>"$T/$1.err" 3>&- &
	DRIVE=$!
	echo "$DRIVE" >>"$T/pids"
}
served() {
	stream_of "$2"
	wait "$DRIVE"
	kill -9 "$PID"
	wait "$PID" || true
	sort "$T/$1.out" >"$T/$1"
	grep -q loss "$T/$1"
}

# One step's losses and gradients by such an mt-stream, which then ends: step_of OUT SEED [MT-STREAM'S OPTIONS]
step_of() {
	STREAM_OPTS=${*:3} stream_of "$2"
	stream-drive step "$RUN" "${ROWS:-5}" 24 1 1 3 3>&- | sort >"$T/$1"
	[ "${PIPESTATUS[0]}" = 0 ]
	kill -9 "$PID"
	wait "$PID" || true
	grep -q loss "$T/$1"
}

# bats test_tags=slow
@test "mt-streams that choose their own algorithms give other bits" {
	need_emulator
	make_run $CASE
	step_of one 1
	make_run $CASE
	step_of two 2
	! cmp -s "$T/one" "$T/two" || false
}

# bats test_tags=slow
@test "autotune selects the fastest algorithm; with MT_GEMM=first, the one that cuBLASLt names first" {
	need_emulator
	for clock in 1 2; do
		make_run $CASE
		FAKE_CUBLASLT_CLOCK=$clock step_of "timed$clock" 1
		make_run $CASE
		MT_GEMM=first FAKE_CUBLASLT_CLOCK=$clock step_of "first$clock" 1
	done
	! cmp -s "$T/timed1" "$T/timed2" || false
	cmp "$T/first1" "$T/first2"
}

# bats test_tags=slow
@test "the next mt-stream after a kill uses the recorded algorithms, in fp32 and bf16" {
	need_emulator
	for dtype in fp32 bf16; do
		make_run $CASE $dtype fp32
		step_of one 1
		ckpt-dump "$RUN" | grep '^choice' >"$T/choices"
		step_of two 2
		cmp "$T/one" "$T/two"
		# by another plan as well: a GEMM's name does not depend on the addresses of its operands
		step_of three 3 --recompute full
		cmp "$T/one" "$T/three"
		ckpt-dump "$RUN" | grep '^choice' | cmp - "$T/choices"
	done
}

# bats test_tags=slow
@test "an mt-stream killed during autotune leaves choices that every later one uses" {
	need_emulator
	make_run $CASE
	driven one
	for seed in 1 2 3 4 5; do
		stream_of $seed
		sleep "0.0${seed}5"
		kill -9 "$PID"
		wait "$PID" || true
	done
	served one 6
	step_of two 7
	cmp "$T/one" "$T/two"
}

# bats test_tags=slow
@test "two mt-streams at once agree on every algorithm: their bits are those of one alone" {
	need_emulator
	make_run $CASE
	stream_of 1
	local first=$PID
	stream_of 2
	stream-drive step "$RUN" 5 24 4 2 3 3>&- | sort >"$T/two"
	kill -9 "$PID" "$first"
	wait "$PID" "$first" || true
	stream_of 3
	stream-drive step "$RUN" 5 24 4 1 3 3>&- | sort >"$T/one"
	grep -q 'micro 3 loss' "$T/one"
	cmp "$T/one" "$T/two"
}

# bats test_tags=slow
@test "a shape that appears later is autotuned then and recorded like the others" {
	need_emulator
	make_run $CASE
	step_of five 1
	ROWS=3 step_of three 2
	ROWS=3 step_of again 3
	cmp "$T/three" "$T/again"
	step_of later 4
	cmp "$T/five" "$T/later"
}

# bats test_tags=slow
@test "a checkpoint carries the algorithms to the run that loads it" {
	need_emulator
	mt-store create "$RUN" --config "$GOLDEN/$CASE/model" --dtype fp32 2>/dev/null
	mt-ckpt load "$RUN" "$GOLDEN/$CASE/model" 2>/dev/null
	step_of one 1
	mt-ckpt save "$RUN" "$T/ck"
	choices=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["record"]["choices"]))' \
		"$T/ck/run.json")
	[ "$choices" -gt 10 ]
	mt-store rm "$RUN" --force
	mt-store create "$RUN" --config "$T/ck" --dtype fp32 2>/dev/null
	mt-ckpt load "$RUN" "$T/ck"
	step_of two 2
	cmp "$T/one" "$T/two"
}

# The next mt-stream of the run exits 78 with a line that matches PATTERN: refused PATTERN WORD=VALUE...
refused() {
	local pattern=$1 code=0
	shift
	stream_of 1 "$@"
	wait "$PID" || code=$?
	cat "$T/stream.err"
	[ "$code" = 78 ]
	[ "$(messages "$T/stream.err" | wc -l)" = 1 ]
	grep -q "$pattern" "$T/stream.err"
}

# bats test_tags=slow
@test "another cuBLASLt, another GPU or a refused algorithm exits 78 with one line" {
	need_emulator
	make_run $CASE
	step_of one 1
	driven two
	refused "cuBLASLt 130100.*this is 'cuBLASLt 130200" FAKE_CUBLASLT_VERSION=130200
	refused "'emulated, sm_90, 2 SMs', this is 'slower, sm_90, 2 SMs'" MT_EMU_GPU=slower
	refused "'gemm fp32.* refuses" FAKE_CUBLASLT_REFUSE=1
	served two 2
	cmp "$T/one" "$T/two"
}

# bats test_tags=slow
@test "a failure during autotune records nothing" {
	need_emulator
	export MT_GEMM=first    # because two runs are compared
	make_run $CASE
	step_of one 1
	make_run $CASE
	driven two
	local fail code
	for fail in 1 7 40; do
		stream_of 1 FAKE_CUBLASLT_FAIL=$fail
		exits 71 wait "$PID"
		grep -q "^mt-stream: cuda: cublasLtMatmul of 'gemm .*': CUBLAS_STATUS_ALLOC_FAILED" "$T/stream.err"
	done
	served two 1
	cmp "$T/one" "$T/two"
}

# bats test_tags=nightly
@test "20 training steps with autotuned algorithms match PyTorch's" {
	need_emulator
	local case=$GOLDEN/qwen3
	mt-store create "$RUN" --config "$case/model" --dtype fp32 2>/dev/null
	mt-ckpt load "$RUN" "$case/model" 2>/dev/null
	spawn stream env FAKE_CUBLASLT_SEED=5 "$EMU" "$RUN" --device cuda
	spawn optim mt-optim "$RUN" --threads 1
	mt-step "$RUN" $(cat "$case/args") --eval "$case/eval.bin" --eval-every 10 \
		<"$case/data.bin" >"$T/metrics" 2>"$T/step.err"
	mt-ckpt export "$RUN" "$T/final" --dtype fp32
	python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --final "$T/final"
}

# Find NVIDIA's header, or skip
need_cublaslt_h() {
	need_cmd cc
	for CUDA in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda; do
		[ ! -e "$CUDA/include/cublasLt.h" ] || return 0
	done
	skip "no cublasLt.h"
}

@test "every cuBLASLt function and value in use equals NVIDIA's header" {
	need_cublaslt_h
	cc -std=gnu17 -Wall -Wextra -Werror -fsyntax-only -DCUBLASLT_OF_NVIDIA -isystem "$CUDA/include" \
		"$TOP/tests/gpu/emu/cublaslt.c"
}

@test "NVIDIA's cuBLASLt accepts every GEMM description and preference without a GPU" {
	need_emulator
	need_cublaslt_h
	cc -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Werror -I"$TOP/shm" -I"$TOP/mt-stream" -isystem "$CUDA/include" \
		-o "$T/settings" "$TOP/tests/gpu/settings.c" "$BUILD/libcli.a" "$BUILD/libmt.a" \
		-ljansson -lnuma -lxxhash -lpthread -lm -ldl
	code=0
	"$T/settings" >"$T/out" 2>"$T/err" || code=$?
	[ "$code" != 78 ] || skip "no libcublasLt"
	[ "$code" = 0 ] && grep -q '^cuBLASLt [0-9]' "$T/out"
}

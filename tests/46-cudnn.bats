#!/usr/bin/env bats
# cuDNN's attention without a GPU. First the plans that cuDNN makes for described GPUs. Then, on the emulated GPU with a
# backend that has cuDNN's calls and behaviour (tests/gpu/emu/sdpa.cc), what mt-stream does around it: rows in groups,
# documents in calls by length, workspace, the choice in the reproducibility record.
# bats file_tags=slow

load helpers
load lib/step

PLANS=$BUILD/gpu/cudnn-plans
DTYPE=bf16 GRAD=bf16             # of runs with random weights

# Find cuDNN by the loader or beside nvcc; and make a libcuda.so.1 that has no device
need_cudnn() {
	[ -x "$PLANS" ] || skip "built without nvcc or cudnn-frontend's headers"
	local nvcc dirs
	nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
	dirs=$(dirname "$(dirname "$(realpath "$nvcc")")")
	export LD_LIBRARY_PATH="$BUILD/gpu/described:$dirs/lib64:$dirs/lib:${LD_LIBRARY_PATH:-}"
	"$PLANS" 90 none 2>"$T/err" || skip "$(cat "$T/err")"
}

# One step of 3 rows of 64 tokens (or SHAPE) with documents (or PLAIN=plain) on the emulated GPU. BACKEND (MT_EMU_SDPA)
# computes attention and logs its calls to OUT.calls: step_of OUT BACKEND [OPTIONS...]
step_of() {
	local out=$1 backend=$2
	shift 2
	: >"$T/$out.calls"
	spawn stream env MT_EMU_SEED="${SEED:-1}" ${backend:+MT_EMU_SDPA=$backend} MT_EMU_SDPA_LOG="$T/$out.calls" "$EMU" \
		"$RUN" \
		--device cuda --chunk-tokens "${CHUNK:-200}" --head-tokens 40 "$@"
	step_by "$out" "$PID" ${SHAPE:-3 64} 1 1 3 dump="$T/$out.bin" limit=180 $PLAIN
}

# The gradients of two steps differ, by at most BOUND of their norm: differ A B BOUND
differ() {
	no cmp -s "$T/$1.bin" "$T/$2.bin"
	near "$@"
}

# Bytes of workspace: bytes_of SM CASE forward|backward
bytes_of() { awk -v sm="sm_$1" -v name="$2" -v way="$3" '$3 == sm && $4 == name && $5 == way { print $6 }' "$T/plans"; }

# bats test_tags=nightly
@test "cuDNN makes deterministic plans for a described H200, with and without documents and windows" {
	need_cudnn
	"$PLANS" 90 >"$T/plans"
	[ "$(wc -l <"$T/plans")" = 26 ]
	! grep none "$T/plans" || return 1
	# documents by length never need more than twice the memory of the tokens beside whole rows
	[ "$(bytes_of 90 quarters backward)" -lt $((2 * $(bytes_of 90 row backward))) ]
}

@test "cudnn-frontend finds every function of the CUDA runtime that its compiled code may ask for" {
	local object=$BUILD/mt-stream/device/cuda/cudnn.o
	[ -e "$object" ] || skip "built without nvcc or cudnn-frontend's headers"
	need_cmd nm
	need_cmd strings
	# it asks by name; each function in mt-stream's table is an undefined symbol
	nm -u "$object" | sed -n 's/^ *U \(cuda[A-Z]\)/\1/p' | sort -u >"$T/there"
	strings -d "$object" | grep -xE 'cuda[A-Z][A-Za-z0-9_]*' | sort -u >"$T/asked"
	[ "$(wc -l <"$T/asked")" -gt 20 ]
	# not called for attention: what loads kernels of an engine for norms, and what the other CUDA has
	other=cudaStreamGetCaptureInfo
	if grep -qx $other "$T/there"; then other=${other}_v2; fi
	comm -23 "$T/asked" "$T/there" >"$T/missing"
	no grep -vxE "cudaLibrary.*|cudaKernel.*|cudaLaunchKernel|$other" "$T/missing"
}

# bats test_tags=nightly
@test "cuDNN's workspace grows as the planner predicts: with tokens squared, or with tokens" {
	need_cudnn
	"$PLANS" 80 100 row rows long group group-long >"$T/plans"
	# 28 heads of 128: dP in bf16 and at most 12 bytes an element, or only the latter
	local square=$((28 * 4096 * (2 * 4096 + 12 * 128))) linear=$((28 * 4096 * 12 * 128))
	[ "$(bytes_of 80 row backward)" -gt $((square / 5 * 4)) ]
	[ "$(bytes_of 80 row backward)" -le "$square" ]
	[ "$(bytes_of 100 row backward)" -gt $((linear / 5 * 3)) ]
	[ "$(bytes_of 100 row backward)" -le "$linear" ]
	for sm in 80 100; do
		[ "$(bytes_of $sm rows backward)" -le $((8 * $(bytes_of $sm row backward))) ]
	done
	[ "$(bytes_of 80 long backward)" -gt $((900 * $(bytes_of 80 row backward))) ]
	[ "$(bytes_of 100 long backward)" -le $((32 * $(bytes_of 100 row backward))) ]
	# one key-value head of four with its query heads
	for sm in 80 100; do
		[ "$(bytes_of $sm group backward)" -le $(($(bytes_of $sm row backward) / 4 + 4096)) ]
		[ "$(bytes_of $sm group-long backward)" -le $(($(bytes_of $sm long backward) / 4 + 4096)) ]
	done
}

@test "a cuDNN-like backend gives our own kernels' gradients up to rounding, the same ones in any stream order" {
	need_emulator
	latent_heads 40 24
	for model in qwen3 qwen2-window latent-40; do
		[ $model != latent-40 ] || GOLDEN=$T
		make_run $model
		step_of own ""
		for backend in linear square; do
			make_run $model
			SEED=2 step_of $backend $backend ${again:+--recompute full}
			differ own $backend 1e-2
			[ -z "$(messages "$T/stream.err")" ]
			again=yes
		done
		# with one row a call and with three; with every recompute level
		cmp "$T/linear" "$T/square"
	done
}

@test "rows of one document are whole calls to a backend that does not support documents" {
	need_emulator
	make_run qwen3
	PLAIN=plain step_of own ""
	make_run qwen3
	PLAIN=plain step_of whole whole
	differ own whole 1e-2
	make_run qwen3
	PLAIN=plain step_of linear linear
	cmp "$T/whole" "$T/linear"
}

# Calls for rows of SEQ tokens, as "COUNTx SEQUENCES HEADS KV-HEADS": calls_of FILE SEQ forward|backward
calls_of() {
	awk -v seq="$2" -v way="$3" '$1 == way && $3 == seq { print $2, $4, $5 }' "$T/$1.calls" |
		sort | uniq -c | awk '{ $1 = $1 "x"; print }'
}

@test "attention forward is one call a chunk even where backward is one call a row" {
	need_emulator
	make_run qwen3
	PLAIN=plain SHAPE="3 120" CHUNK=360 step_of chunks square --recompute none
	# 2 layers; backward of a row of 120 tokens needs 146 of 150 KiB: one row a call
	calls_of chunks 120 forward | grep -qx "2x 3 3 1"
	[ "$(calls_of chunks 120 backward | grep -vc "x 1 3 1$")" = 0 ]
	# documents: one call for the documents of one length class in all rows
	make_run qwen3
	SHAPE="3 120" CHUNK=360 step_of documents square --recompute none
	[ "$(grep -c forward "$T/documents.calls")" -lt "$(grep -c backward "$T/documents.calls")" ]
	make_run qwen3
	SHAPE="3 120" CHUNK=360 step_of own ""
	differ own documents 1e-2
}

# bats test_tags=nightly
@test "long rows: one call per key-value head gives the bits of one call for all, in 1/kv_heads of the workspace" {
	need_emulator
	for PLAIN in plain ""; do
		make_run qwen2-window
		SHAPE="2 100" CHUNK=200 step_of all linear
		make_run qwen2-window
		# copies to and from a group's heads take longer than own attention of so few tokens
		SHAPE="2 100" CHUNK=200 step_of heads square --profile hbm=99999
		cmp "$T/all" "$T/heads"
		# length classes of documents in rows of 100 tokens; the check of a row has other classes
		[ "$(awk '$3 == 100 || $3 == 50 || $3 == 25 || $3 == 13' "$T/heads.calls" | grep -c '^backward.* 2 1 ')" \
			-ge 12 ]
		[ -z "$PLAIN" ] && continue
		# 3 layers, 2 rows; a row of all 4 heads would need 107200 bytes, so 2 heads a call, of both rows
		calls_of all 100 backward | grep -qx "3x 2 4 2"
		calls_of heads 100 backward | grep -qx "6x 2 2 1"
		grep -q "^backward 2 100 2 1 107200$" "$T/heads.calls"
	done
}

# bats test_tags=nightly
@test "layers with different heads: the backend computes those that it takes, our own kernels the others" {
	need_emulator
	for PLAIN in plain ""; do
		make_run gemma4
		step_of own ""
		for backend in linear small; do
			make_run gemma4
			step_of $backend linear,$backend
			differ own $backend 0.2 # rounding to bf16 alone: 0.15 from fp32, with these weights
			[ -z "$(messages "$T/stream.err")" ]
		done
		# 4 heads with 2 key-value heads of 8, in one layer; with 1 of 16, in two
		calls_of linear 64 backward | grep -q " 4 2$"
		calls_of linear 64 backward | grep -q " 4 1$"
		calls_of small 64 backward | grep -q " 4 2$"
		no grep -q "^[a-z]* [0-9]* [0-9]* 4 1 " "$T/small.calls"
		no cmp -s "$T/linear.bin" "$T/small.bin"
	done
}

@test "a backend with wrong or non-deterministic results is not used, and one line says so" {
	need_emulator
	make_run qwen2-window
	step_of own ""
	for backend in wrong fickle; do
		make_run qwen2-window
		step_of $backend linear,$backend
		cmp "$T/own" "$T/$backend"
		[ "$(messages "$T/stream.err" | wc -l)" = 1 ]
		grep -q 'attention by our own kernels: emulated backend 1: ' "$T/stream.err"
	done
}

# bats test_tags=nightly
@test "a backend that fails only on long rows is not used for them: each row length is tried before its first step" {
	need_emulator
	make_run qwen3
	PLAIN=plain SHAPE="1 100" step_of own ""
	for fault in far-forward far-backward far-refusal; do
		make_run qwen3
		PLAIN=plain SHAPE="1 100" step_of $fault linear,$fault
		cmp "$T/own" "$T/$fault"
		[ "$(messages "$T/stream.err" | wc -l)" = 1 ]
		grep -q 'attention of rows of 100 tokens by our own kernels: emulated backend 1: ' "$T/stream.err"
	done
	grep -q 'emulated backend 1: refused$' "$T/stream.err"
	# the selection stays, and the backend computes shorter rows
	PLAIN=plain SHAPE="1 100" step_of again linear
	cmp "$T/own" "$T/again"
	PLAIN=plain SHAPE="1 64" step_of short linear
	[ "$(calls_of short 64 backward | wc -l)" = 1 ]
	[ -z "$(calls_of again 100 backward)" ]
	# only in the last head
	make_run qwen2-window
	PLAIN=plain SHAPE="1 100" step_of own ""
	make_run qwen2-window
	PLAIN=plain SHAPE="1 100" step_of head square,far-head --profile hbm=99999
	cmp "$T/own" "$T/head"
	grep -q "100 tokens by our own kernels: emulated backend 1: plain: dk differs" "$T/stream.err"
}

@test "a backend that breaks the device or crashes when it is tried is not tried again: our own kernels compute" {
	need_emulator
	for at in "" far-; do
		seq=$([ "$at" ] && echo 100 || echo 64)
		make_run qwen3
		PLAIN=plain SHAPE="1 $seq" step_of own ""
		for fault in ${at}breaks ${at}crashes; do
			make_run qwen3
			spawn faulty env MT_EMU_SEED=1 MT_EMU_SDPA=linear,$fault "$EMU" "$RUN" --device cuda --chunk-tokens 200 \
				--head-tokens 40
			faulty=$PID
			spawn step stream-drive step "$RUN" 1 "$seq" 1 1 3 dump="$T/$fault.bin" limit=180 plain
			step=$PID code=0
			wait "$faulty" || code=$?
			case $fault in *breaks) [ "$code" = 74 ] && tail -1 "$T/faulty.err" | grep -q "broke the device: start" ;;
			*) [ "$code" = 134 ] ;; esac
			spawn next env MT_EMU_SEED=2 MT_EMU_SDPA=linear,$fault "$EMU" "$RUN" --device cuda --chunk-tokens 200 \
				--head-tokens 40
			wait "$step"
			sort "$T/step.out" | cmp - "$T/own"
			cmp "$T/own.bin" "$T/$fault.bin"
			end "$PID"
		done
	done
}

@test "a run keeps its attention backend: another version or none exits 78, one installed later is not used" {
	need_emulator
	make_run qwen3
	step_of first square
	step_of second square
	cmp "$T/first" "$T/second"
	for backend in square,2 ""; do
		exits 78 env ${backend:+MT_EMU_SDPA=$backend} "$EMU" "$RUN" --device cuda 2>"$T/err"
		[ "$(wc -l <"$T/err")" = 1 ]
		grep -q "with attention by 'emulated backend 1'" "$T/err"
	done
	make_run qwen3
	step_of own ""
	step_of later square
	cmp "$T/own" "$T/later"
}

@test "the plan includes the workspace; where it does not fit, our own kernels run without it" {
	need_emulator
	make_run qwen3
	step_of own ""
	own=$(own_of "$T/stream.err")
	make_run qwen3
	step_of little square --device-memory $((own + 800))K
	cmp "$T/own" "$T/little"
	# the run keeps this, even with more memory
	step_of much square
	cmp "$T/own" "$T/much"
}

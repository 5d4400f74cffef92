#!/usr/bin/env bats
# cuDNN's attention without a GPU: the plans that it makes for GPUs that are only described; and, on the emulated GPU with an
# engine that has cuDNN's calls and ways (tests/gpu/emu-sdpa.cc), all that mt-stream does around it: rows in groups, documents
# in calls by length, work memory, the choice in the run record.

load helpers

EMU=$BUILD/emu/mt-stream
PLANS=$BUILD/gpu/cudnn-plans

need_emulator() { [ -x "$EMU" ] || skip "built without a C++ compiler, or with sanitizers"; }

# cuDNN by the loader or beside nvcc; and a libcuda.so.1 that knows no device
need_cudnn() {
	[ -x "$PLANS" ] || skip "built without nvcc or cudnn-frontend's headers"
	local nvcc dirs
	nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
	dirs=$(dirname "$(dirname "$(realpath "$nvcc")")")
	export LD_LIBRARY_PATH="$BUILD/gpu/described:$dirs/lib64:$dirs/lib:${LD_LIBRARY_PATH:-}"
	"$PLANS" 90 none 2>"$T/err" || skip "$(cat "$T/err")"
}

# A bf16 run with random weights, instead of the one before
make_run() {
	mt-store rm "$RUN" 2>/dev/null || true
	stream-drive make "$RUN" "$GOLDEN/$1/model" bf16 bf16 1024 7
}

# One step of rows with documents on the emulated GPU, its attention by MT_EMU_SDPA: step_of OUT ENGINE [OPTIONS...]
step_of() {
	local out=$1 engine=$2
	shift 2
	spawn stream env MT_EMU_SEED="${SEED:-1}" ${engine:+MT_EMU_SDPA=$engine} "$EMU" "$RUN" --device cuda --chunk-tokens 200 \
		--head-tokens 40 "$@"
	stream-drive step "$RUN" 3 64 1 1 3 dump="$T/$out.bin" $PLAIN 3>&- | sort >"$T/$out"
	[ "${PIPESTATUS[0]}" = 0 ]
	kill "$PID"
	wait "$PID"
	grep -q loss "$T/$out"
}

# The gradients of two steps differ, by at most BOUND of their norm: near A B BOUND
near() {
	! cmp -s "$T/$1.bin" "$T/$2.bin" || false
	python3 - "$T/$1.bin" "$T/$2.bin" "$3" <<-'PY'
		import array, math, sys
		a, b = (array.array("f", open(f, "rb").read()) for f in sys.argv[1:3])
		assert len(a) == len(b) and any(a)
		norm = math.sqrt(sum(x * x for x in a))
		error = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
		print(error / norm)
		assert error <= float(sys.argv[3]) * norm, error / norm
	PY
}

# Bytes of work memory: bytes_of SM CASE forward|backward
bytes_of() { awk -v sm="sm_$1" -v name="$2" -v way="$3" '$3 == sm && $4 == name && $5 == way { print $6 }' "$T/plans"; }

@test "cuDNN makes deterministic plans for an H200 that is only described, with and without documents and windows" {
	need_cudnn
	"$PLANS" 90 >"$T/plans"
	[ "$(wc -l <"$T/plans")" = 18 ]
	! grep none "$T/plans" || return 1
	# documents by length never want more than twice the tokens' memory beside whole rows
	[ "$(bytes_of 90 quarters backward)" -lt $((2 * $(bytes_of 90 row backward))) ]
}

@test "its work memory grows as the planner has it: by tokens squared, or by tokens" {
	need_cudnn
	"$PLANS" 80 100 row rows long >"$T/plans"
	# 28 heads of 128: dP in bf16 beside 12 bytes an element at most, or those alone
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
}

@test "an engine's attention gives our own kernels' gradients but for rounding, the same ones in whichever order streams run" {
	need_emulator
	for model in qwen3 qwen2-window; do
		make_run $model
		step_of own ""
		for engine in linear square; do
			make_run $model
			SEED=2 step_of $engine $engine ${again:+--recompute full}
			near own $engine 1e-2
			[ -z "$(said "$T/stream.err")" ]
			again=yes
		done
		# with a row a call and with three; whatever is computed again
		cmp "$T/linear" "$T/square"
	done
}

@test "rows of one document are whole calls to an engine that takes no documents" {
	need_emulator
	make_run qwen3
	PLAIN=plain step_of own ""
	make_run qwen3
	PLAIN=plain step_of whole whole
	near own whole 1e-2
	make_run qwen3
	PLAIN=plain step_of linear linear
	cmp "$T/whole" "$T/linear"
}

@test "an engine that computes something else, or not the same twice, is not used: one line says so" {
	need_emulator
	make_run qwen2-window
	step_of own ""
	for engine in wrong fickle; do
		make_run qwen2-window
		step_of $engine linear,$engine
		cmp "$T/own" "$T/$engine"
		[ "$(said "$T/stream.err" | wc -l)" = 1 ]
		grep -q 'attention by our own kernels: emulated engine 1: ' "$T/stream.err"
	done
}

@test "the engine that a run was begun with stays: another version or none is 78, one that comes later is not taken" {
	need_emulator
	make_run qwen3
	step_of first square
	step_of second square
	cmp "$T/first" "$T/second"
	for engine in square,2 ""; do
		code=0
		env ${engine:+MT_EMU_SDPA=$engine} "$EMU" "$RUN" --device cuda 2>"$T/err" || code=$?
		[ "$code" = 78 ]
		[ "$(wc -l <"$T/err")" = 1 ]
		grep -q "with attention by 'emulated engine 1'" "$T/err"
	done
	make_run qwen3
	step_of own ""
	step_of later square
	cmp "$T/own" "$T/later"
}

@test "work memory is in the plan: where it does not fit, our own kernels do without it" {
	need_emulator
	make_run qwen3
	step_of own ""
	own=$(own_of "$T/stream.err")
	make_run qwen3
	step_of little square --device-memory $((own + 800))K
	cmp "$T/own" "$T/little"
	# and so it stays, however much memory there is
	step_of much square
	cmp "$T/own" "$T/much"
}

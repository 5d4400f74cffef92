#!/usr/bin/env bats
# mt-stream between two neighbours that only record what it sends (stream-drive). The same rows must give the same
# losses and gradients bit for bit, whatever plan, device or number of threads computes them.

load helpers
load lib/step

# One step of a fresh run: step_of OUT "MT-STREAM'S OPTIONS" [STREAMS [ROWS SEQ MICROS WORDS...]]
step_of() {
	[ $# -gt 3 ] || set -- "$1" "$2" "${3:-1}" 5 24 1
	streams_step "$@"
}

@test "full recompute and no recompute give the same bits" {
	make_run qwen3
	step_of none "--recompute none"
	step_of full "--recompute full"
	same none full
	[ "$(grep -c unit "$T/none")" = 5 ]
}

@test "one, two and three threads give the same bits" {
	make_run llama3
	step_of one "--threads 1"
	step_of two "--threads 2"
	step_of three "--threads 3"
	same one two
	same one three
}

@test "one stream and two give the same bits, with tied and untied embeddings" {
	for model in qwen3 llama3; do
		make_run $model
		step_of "$model.1" "" 1 2 24 4
		step_of "$model.2" "" 2 2 24 4
		same "$model.1" "$model.2"
		[ "$(grep -c loss "$T/$model.1")" = 4 ]
		mt-store rm "$RUN"
	done
}

@test "12 streams in a run that may have 12 give the bits of one; a run that may have 8 refuses a ninth" {
	local i
	make_run llama3
	step_of one "" 1 2 24 24
	for i in $(seq 8 15); do spawn "hold$i" store-hold "$RUN" "$i"; done
	for i in $(seq 8 15); do eventually grep -qx held "$T/hold$i.out"; done
	fails_with 75 mt-stream "$RUN"
	grep -q "run '$RUN': all 8 mt-streams are taken; the last: .*mt-stream 7 is at work already" "$T/fails.err"
	mt-store rm "$RUN" --force
	stream-drive make "$RUN" "$GOLDEN/llama3/model" fp32 fp32 1024 7 0 12
	step_of twelve "" 12 2 24 24
	same one twelve
	[ "$(grep -c loss "$T/twelve")" = 24 ]
}

# bats test_tags=slow
@test "every order that events allow gives the same bits" {
	make_run qwen3
	step_of cpu ""
	for seed in 1 2 3 4 5 6 7 8 9 10 11 12; do
		step_of chaos "--device chaos:$seed --recompute $([ $((seed % 2)) = 0 ] && echo full || echo none)"
		same cpu chaos
	done
}

# Losses and figures alone: sums_of OUT
sums_of() { grep -E 'loss|figures' "$T/$1"; }

# bats test_tags=slow
@test "objectives: recompute, threads, orders, two streams, resending and evaluations give the same bits" {
	for loss in dpo simpo orpo pg; do
		make_run qwen3
		step_of "$loss" "" 1 4 24 2 loss=$loss
		[ "$(grep -c figures "$T/$loss")" = 2 ]
		for options in "--recompute full" "--threads 1" "--device chaos:${#loss}"; do
			step_of other "$options" 1 4 24 2 loss=$loss
			same $loss other
		done
		step_of other "" 2 4 24 2 loss=$loss
		same $loss other
		step_of other "" 1 4 24 2 loss=$loss stale
		same $loss other
		step_of other "" 1 4 24 2 loss=$loss eval
		[ "$(sums_of $loss)" = "$(sums_of other)" ]
		no grep unit "$T/other"
		step_of other "" 1 4 24 2
		no cmp -s "$T/$loss" "$T/other"
	done
}

# bats test_tags=slow
@test "objectives: windows of experts, little memory and --grad none change no bit; nor do orders, by passes, too" {
	make_run qwen2-moe
	step_of all "" 1 4 24 1 loss=dpo
	step_of windows "--expert-window 2" 1 4 24 1 loss=dpo
	step_of orders "--expert-window 1 --device chaos:7" 1 4 24 1 loss=dpo
	same all windows
	same all orders
	for loss in orpo pg; do
		make_run llama3
		step_of all "" 1 20 24 1 loss=$loss
		step_of little "--device-memory 1300K" 1 20 24 1 loss=$loss
		same all little
		make_run llama3
		step_of passes "--pass-rows 3" 1 20 24 1 loss=$loss
		step_of orders "--pass-rows 3 --device chaos:5" 1 20 24 1 loss=$loss
		same passes orders
		make_run llama3 fp32 none
		step_of none "" 1 20 24 1 loss=$loss
		[ "$(sums_of all)" = "$(sums_of none)" ]
		make_run llama3 bf16 bf16
		step_of bf16 "--compute fp32" 1 20 24 1 loss=$loss
		step_of orders "--compute fp32 --device chaos:6" 1 20 24 1 loss=$loss
		same bf16 orders
	done
}

@test "NaN weights give a NaN loss of an objective, and no other harm" {
	make_run llama3
	stream-drive poison "$RUN" 1
	for loss in dpo orpo pg; do
		step_of nan "" 1 4 24 1 loss=$loss
		grep -q "loss .*nan over .* nonfinite" "$T/nan"
	done
}

@test "bf16 weights widened in weight slots give the same bits in every order" {
	make_run llama-bias bf16 bf16
	step_of cpu "--compute fp32"
	for seed in 1 2 3 4 5 6; do
		step_of chaos "--compute fp32 --device chaos:$seed"
		same cpu chaos
	done
}

@test "an fp32 run whose weights are copied to slots gives the bits of zero-copy reads" {
	make_run mistral
	step_of view "--device cpu"
	step_of copy "--device chaos:2"
	same view copy
}

@test "a bf16 gradient is the fp32 gradient rounded once" {
	stream-drive make "$RUN" "$GOLDEN/llama3/model" bf16 fp32 1024 7
	step_of fp32 "" 1 5 24 1 dump="$T/fp32.bin"
	mt-store rm "$RUN"
	stream-drive make "$RUN" "$GOLDEN/llama3/model" bf16 bf16 1024 7
	step_of bf16 "" 1 5 24 1 dump="$T/bf16.bin"
	python3 - "$T/fp32.bin" "$T/bf16.bin" <<-'PY'
		import array, sys
		a, b = (array.array("I", open(f, "rb").read()) for f in sys.argv[1:])
		assert len(a) == len(b) and any(a)
		for x, y in zip(a, b):
		    assert (x + 0x7fff + (x >> 16 & 1)) & 0xffff0000 == y, (hex(x), hex(y))
	PY
}

@test "--grad none sends the sum of embed and head gradient of tied embeddings" {
	for model in qwen3 gpt2; do             # gpt2: with learned positions, which the head does not have
		stream-drive make "$RUN" "$GOLDEN/$model/model" fp32 fp32 1024 7
		step_of both "" 1 5 24 1 dump="$T/both.bin"
		mt-store rm "$RUN"
		stream-drive make "$RUN" "$GOLDEN/$model/model" fp32 none 1024 7
		step_of none "" 1 5 24 1 dump="$T/none.bin"
		step_of chaos "--device chaos:3" 1 5 24 1
		same none chaos
		mt-store rm "$RUN"
		[ "$(grep -c 'unit 0' "$T/none")" = 1 ]
		python3 - "$T/both.bin" "$T/none.bin" $model <<-'PY'
			import array, sys
			both, none = (array.array("f", open(f, "rb").read()) for f in sys.argv[1:3])
			n = len(both) - len(none)       # unit 0 was sent once more
			# the embed gradient came last, the head gradient right after the final norm
			norm = {"qwen3": 64, "gpt2": 128}[sys.argv[3]]
			end1, end0 = both[norm:norm + n], both[-n:]
			for x, y, z in zip(end1, end0, none[-n:]):
			    assert abs(x + y - z) <= 1e-6 * (abs(x) + abs(y)) + 1e-12, (x, y, z)
			if sys.argv[3] == "gpt2":
			    table = 101 * 24 + 40, 101 * 24 + 40 + 64 * 24
			    assert not any(end1[slice(*table)]) and any(end0[slice(*table)])
			    assert not any(end0[table[0] + 24 * 24:table[1]])
		PY
	done
}

@test "a step that is aborted and resent under a new attempt gives the same bits" {
	make_run llama3
	step_of plain "" 1 2 24 3
	step_of again "" 1 2 24 3 stale
	same plain again
}

@test "an evaluation gives a training step's losses and no gradients" {
	make_run qwen2
	step_of train "" 1 2 24 2
	step_of eval "" 1 2 24 2 eval
	grep loss "$T/train" >"$T/train.losses"
	same train.losses eval
}

@test "micro-batches of another shape get a new plan" {
	make_run llama3
	spawn stream mt-stream "$RUN" --chunk-tokens 48
	stream-drive step "$RUN" 2 24 1 1 3 >"$T/first"
	stream-drive step "$RUN" 1 200 1 1 3 >"$T/long"
	stream-drive step "$RUN" 3 8 1 1 3 eval >"$T/eval"
	stream-drive step "$RUN" 2 24 1 1 3 >"$T/last"
	same first last
	grep -q loss "$T/long"
}

@test "a step whose stream died is aborted, and the next stream computes it" {
	make_run llama3
	step_of plain "" 1 2 24 1
	spawn victim mt-stream "$RUN" --chunk-tokens 48 --head-tokens 40
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for a batch'"
	kill -9 "$PID"
	wait "$PID" || true                     # until it is dead the next one would become mt-stream 1
	step_of after "" 1 2 24 1
	same plain after
}

# The stream has computed some of the step's micro-batches
in_step() {
	mt-store stat "$RUN" --json | grep -q '"micros":[1-9]'
}

@test "a stream that dies within a step is replaced, with the same bits" {
	make_run llama3
	step_of plain "" 1 4 24 60
	spawn victim mt-stream "$RUN"
	victim=$PID
	spawn drive stream-drive step "$RUN" 4 24 60 1 3
	drive=$PID
	eventually in_step
	kill -9 "$victim"
	wait "$victim" || true
	spawn successor mt-stream "$RUN"
	wait "$drive"
	sort "$T/drive.out" >"$T/after"
	same plain after
}

@test "NaN weights give a NaN loss" {
	make_run llama3
	stream-drive poison "$RUN" 3
	step_of nan "" 1 2 24 1
	grep -q 'loss.*nan.*nonfinite' "$T/nan"
}

# A batch that a peer must not send ends the stream with 69 and one line: bad_batch MESSAGE WORD...
bad_batch() {
	local message=$1
	shift
	make_run "${MODEL:-llama3}"
	spawn stream mt-stream "$RUN"
	batch_ends_stream 69 2 "${SEQ:-24}" 1 1 3 "$@"
	[ "$(wc -l <"$T/stream.err")" = 1 ]
	grep -q "^mt-stream: batch.0: step 1, micro-batch 0: .*$message" "$T/stream.err"
}

@test "a token outside the vocabulary is refused" { bad_batch "token 100000" token=100000; }
@test "a target outside the vocabulary is refused" { bad_batch "target 100000" target=100000; }
@test "rows longer than learned positions are refused" {
	MODEL=gpt2 SEQ=65 bad_batch "rows of 65 tokens: the model has 64 positions"
}
@test "a document start after its token is refused" { bad_batch "starts at 2" start=2; }
@test "more rows than the block holds are refused" { bad_batch "rows of" rows=4000000000; }
@test "a batch of zero rows is refused" { bad_batch "0 rows" rows=0; }

@test "a micro-batch that fits no plan exits 71 with need and have, and sends nothing" {
	make_run llama3
	spawn stream mt-stream "$RUN" --device-memory 64K
	batch_ends_stream 71 2 24 1 1 3
	grep -q "needs .* have " "$T/stream.err"
	[ ! -s "$T/drive.out" ]
}

@test "with too little memory to keep all activations the stream recomputes, with the same bits" {
	make_run llama3
	step_of plenty "--recompute none" 1 20 24 1
	step_of little "--device-memory 1200K" 1 20 24 1
	same plenty little
	spawn stream mt-stream "$RUN" --device-memory 1200K --recompute none
	batch_ends_stream 71 20 24 1 1 3
}

@test "the first stream selects the chunk sizes; later ones use them or refuse" {
	make_run llama3
	step_of first "--threads 1"
	fails_with 78 mt-stream "$RUN" --chunk-tokens 96
	fails_with 78 mt-stream "$RUN" --head-tokens 8
	spawn stream mt-stream "$RUN"
	stream-drive step "$RUN" 5 24 1 1 3 | sort >"$T/second"
	same first second
}

@test "--ring sends gradients into another ring" {
	make_run llama3
	step_of plain ""
	stream-drive ring "$RUN" mine grad.0
	step_of mine "--ring grad.0=mine" 1 5 24 1 grad=mine
	same plain mine
	fails_with 66 mt-stream "$RUN" --ring grad.0=nowhere
	fails_with 65 mt-stream "$RUN" --ring grad.0=batch.7
}

# Make a run whose blocks are sent in 25 pieces: make_pieces DTYPE GRAD
make_pieces() {
	mkdir -p "$T/wide"
	sed 's/"intermediate_size": [0-9]*/"intermediate_size": 1000/' "$GOLDEN/qwen3/model/config.json" \
		>"$T/wide/config.json"
	stream-drive make "$RUN" "$T/wide" "$1" "$2" 1024 7 4096
}

# Make ring NAME like grad.0, with SLOTS blocks: narrow_ring NAME SLOTS
narrow_ring() {
	stream-drive ring "$RUN" "$1" grad.0
	printf "\\00$2\\000\\000\\000" |
		dd of="${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.ring.$1" bs=1 seek=$((256 + 32)) conv=notrunc status=none
}

# bats test_tags=slow
@test "many pieces in flight at once arrive whole and in order, in every order that events allow" {
	for types in "fp32 fp32" "bf16 bf16"; do
		make_pieces $types
		step_of cpu ""
		for seed in 1 2 3 4 5 6; do
			step_of chaos "--device chaos:$seed"
			same cpu chaos
		done
		step_of again "--device chaos:7" 1 5 24 3 stale
		step_of plain "" 1 5 24 3
		same plain again
		mt-store rm "$RUN"
	done
}

@test "a gradient ring of one or two blocks is enough, with the same bits" {
	make_pieces bf16 bf16
	step_of eight "--device chaos:1"
	for slots in 1 2; do
		narrow_ring r$slots $slots
		step_of narrow "--device chaos:2 --ring grad.0=r$slots" 1 5 24 1 grad=r$slots
		same eight narrow
	done
}

# bats test_tags=slow
@test "a stream killed with pieces in flight is replaced, and no piece is lost" {
	make_pieces bf16 bf16
	step_of plain "" 1 5 24 120
	spawn victim mt-stream "$RUN" --chunk-tokens 48 --head-tokens 40
	victim=$PID
	spawn drive stream-drive step "$RUN" 5 24 120 1 3
	drive=$PID
	eventually in_step
	kill -9 "$victim"
	wait "$victim" || true
	spawn successor mt-stream "$RUN" --chunk-tokens 48 --head-tokens 40
	wait "$drive"
	sort "$T/drive.out" >"$T/again"
	same plain again
}

@test "--trace writes a file that is valid after every micro-batch, with its operations and their summary" {
	make_run llama3 bf16 bf16
	step_of plain "--compute fp32" 1 5 24 2
	step_of traced "--compute fp32 --trace $T/trace.json" 1 5 24 2
	same plain traced
	python3 "$TOP/tests/gpu/trace" "$T/trace.json" >"$T/account"
	grep -q '^| backward: attention backward ' "$T/account"
	[ "$(grep -c '^mt-stream: step 1, micro-batch [01]: .* for the host$' "$T/stream1.err")" = 2 ]
	step_of other "--compute fp32 --trace $T/none.json --trace-step 7" 1 5 24 2
	same plain other
	! grep -q '"X"' "$T/none.json" || false
	fails_with 64 mt-stream "$RUN" --trace-step 7
	fails_with 64 mt-stream "$RUN" --trace "$T/trace.json" --device chaos:1
	fails_with 74 mt-stream "$RUN" --trace "$T/none/trace.json"
}

# bats test_tags=slow
@test "MT_WITHOUT: no weights come, or no gradients leave, while a block computes; an unknown word exits 64" {
	mkdir "$T/deep"
	sed 's/\("num_hidden_layers": \)[0-9]*/\14/' "$GOLDEN/llama3/model/config.json" >"$T/deep/config.json"
	stream-drive make "$RUN" "$T/deep" bf16 bf16 1024 7
	step_of plain "--compute fp32"
	for without in slots prefetch grads; do
		MT_WITHOUT=$without step_of $without "--compute fp32 --trace $T/$without.json"
		same plain $without
	done
	python3 - "$T" <<-'PY'
		import json, sys
		def launched(what, *names):             # in the order in which they were: name, unit, begin, end
		    with open(f"{sys.argv[1]}/{what}.json") as f:
		        for e in json.load(f)["traceEvents"]:
		            if e["ph"] == "X" and e["name"] in names:
		                yield e["name"], e["args"]["unit"], e["ts"], e["ts"] + e["dur"]
		for what in "slots", "prefetch":
		    computed, n = 0, 0
		    for name, unit, begin, end in launched(what, "weights in", "GEMM"):
		        if name == "GEMM":
		            computed = max(computed, end)
		        elif 1 < unit < 5:
		            n += 1
		            assert begin >= computed, (what, unit)
		    assert n >= 3, what
		left, n = {}, 0
		for name, unit, begin, end in launched("grads", "gradients out", "GEMM"):
		    if name != "GEMM":
		        left[unit] = end
		    elif 0 < unit < 4 and unit + 1 in left:
		        n += 1
		        assert begin >= left[unit + 1], unit
		assert n, left
	PY
	MT_WITHOUT=slots,all fails_with 64 mt-stream "$RUN"
	grep -q "MT_WITHOUT: 'all': not slots, prefetch, grads, pieces or update" "$T/fails.err"
}

# bats test_tags=slow
@test "a block's weights come for the backward pass while the gradients of the block but one above still leave" {
	mkdir -p "$T/deep"
	sed 's/\("num_hidden_layers": \)[0-9]*/\16/; s/\("intermediate_size": \)[0-9]*/\18000/' \
		"$GOLDEN/llama3/model/config.json" >"$T/deep/config.json"
	stream-drive make "$RUN" "$T/deep" bf16 fp32 1024 7 65536
	narrow_ring r2 2
	step_of plain "--compute fp32" 1 5 24 1
	step_of slow "--compute fp32 --device-memory 20M --recompute full --trace $T/trace.json --ring grad.0=r2" 1 5 24 1 \
		grad=r2 pause=20
	same plain slow
	python3 - "$T/trace.json" <<-'PY'
		import json, sys
		came, left = {}, {}
		for e in json.load(open(sys.argv[1]))["traceEvents"]:
		    if e["name"] == "weights in":
		        came.setdefault(e["args"]["unit"], []).append(e["ts"])
		    if e["name"] == "gradients out":
		        left[e["args"]["unit"]] = e["ts"]
		again = [u for u in came if len(came[u]) > 1]
		assert sorted(again) == [1, 2, 3, 4], came
		for u in again:
		    assert came[u][-1] < left[u + 2], (u, came, left)
	PY
}

@test "unit tables that contradict the geometry are refused" {
	make_run llama3
	stream-drive damage "$RUN"
	fails_with 65 mt-stream "$RUN"
}

@test "a run continued with another instruction set or BLAS exits 78 with one line" {
	native "/proc/cpuinfo"
	grep -q -w avx2 /proc/cpuinfo || skip "this CPU has no other instruction set"
	make_run llama3
	step_of here ""
	MT_ISA=plain fails_with 78 timeout 10 mt-stream "$RUN"
	grep -q "the run was computed on 'avx.*', this is 'plain': other bits" "$T/fails.err"
	export DNNL_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Prescott
	fails_with 78 timeout 10 mt-stream "$RUN"
	grep -q "GEMM by '.*', this is '.*': other bits" "$T/fails.err"
}

@test "invalid options exit 64, and cuda without CUDA exits 78" {
	make_run llama3
	fails_with 64 mt-stream "$RUN" --device tpu
	fails_with 64 mt-stream "$RUN" --device chaos:x
	fails_with 64 mt-stream "$RUN" --recompute some
	fails_with 64 mt-stream "$RUN" --ring nonsense
	fails_with 78 mt-stream "$RUN" --device cuda
}

@test "SIGTERM during a step: the stream finishes the step and exits 0" {
	make_run llama3
	spawn stream mt-stream "$RUN"
	stream=$PID
	spawn drive stream-drive step "$RUN" 32 24 60 1 3
	drive=$PID
	eventually in_step
	kill "$stream"
	wait "$drive"
	wait "$stream"
	[ "$(grep -c loss "$T/drive.out")" = 60 ]
	[ ! -s "$T/stream.err" ]
}

@test "the stream exits 0 on SIGTERM between steps and when its run is removed" {
	make_run llama3
	spawn a mt-stream "$RUN"
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for a batch'"
	end "$PID"
	spawn b mt-stream "$RUN"
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for a batch'"
	mt-store rm "$RUN" --force
	wait "$PID"
	[ ! -s "$T/b.err" ]
}


#!/usr/bin/env bats
# --compute bf16: the device cpu multiplies in bf16, with fp8 what is rounded to e4m3. The goldens (70, 72) compare fp32
# with PyTorch; here bf16 is compared with fp32.

load helpers
load lib/step

DTYPE=bf16                      # of runs with random weights

need_bf16() {
	local known=$BATS_FILE_TMPDIR/known
	[ -e "$known" ] || mt-stream --plan --config "$CONFIGS/demo.json" --seq 8 --micro 1 --profile cpu --compute bf16 \
		>/dev/null 2>"$known" || true
	! grep -q -- --compute "$known" || skip "$(sed 's/^mt-stream: //' "$known")"
}

# Does the CPU multiply bf16 faster than fp32? Intel's AVX512-BF16 does not.
bf16_is_fast() { grep -qw amx_bf16 /proc/cpuinfo || grep -q AuthenticAMD /proc/cpuinfo; }

# As on a CPU that has AVX-512 without AMX and AVX512-BF16
without_bf16() { env DNNL_MAX_CPU_ISA=AVX512_CORE "$@"; }

# One step of a fresh run: step_of OUT "MT-STREAM'S OPTIONS" [WORDS...]
step_of() { streams_step "$1" "$2" "${STREAMS:-1}" 5 24 "${MICROS:-1}" "${@:3}"; }

# The GEMM in the reproducibility record
record_has() { grep -qaE "$1" "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.control"; }

# The gradients and the loss that bf16 gives are those of fp32 up to rounding: rounds MODEL [AMPLIFICATION]
#
# bf16 has 8 bits, so rounding changes a number by at most 2^-9 of it, 2^-9 / sqrt(3) in the root mean square. A GEMM's
# output is a sum of products; where their signs are random, independent relative errors of the factors give the sum
# the same relative error: e = 2^-9 / sqrt(3) for each operand that is rounded. Weights are bf16 already, so this is
# one operand of a GEMM forward and one backward, and both of a weight's gradient. The longest way to a gradient goes
# through 4 GEMMs of each layer and the head, forward and backward: errors add up in squares to
# e sqrt(2 (4 layers + 1) + 2). The rest of a layer (norms, softmax, the MLP's product of two) may amplify relative
# errors: a factor of 2. That is a root mean square over the tensors, and the bound is 3 of it. Softmax turns a score's
# absolute error into a relative one of its probability. gemma4 does not divide scores by sqrt(D), and D is 16 at most:
# another factor of 4.
#
# Where attention rounds its operands too (the record says so), that is 8 more of each layer: both of q k' and p v
# forward, of do v' and of ds k or ds' q backward.
#
# The loss: on the way to logits there are 4 GEMMs of each layer and the head, so logits have a relative error of
# d = 2 e sqrt(4 layers + 1), with attention's forward operands 2 e sqrt(8 layers + 1). The head's input is normed and
# its weights are uniform within 0.1 (stream-drive), so logits are 0.1 / sqrt(3) sqrt(H) in the root mean square. A
# token's loss changes by the sum of (p - onehot) times the logits' errors, and p - onehot is at most sqrt(2) long.
# Signs of many tokens' errors are random: the mean over N of them is smaller by sqrt(N), and the bound is 3 of it.
rounds() {
	make_run "$1"
	step_of fp32 "--compute fp32" dump="$T/fp32.bin"
	make_run "$1"
	step_of bf16 "--compute bf16" dump="$T/bf16.bin"
	local attention=0
	! record_has 'tiled, bf16' || attention=1
	python3 - "$T/fp32.bin" "$T/bf16.bin" "$GOLDEN/$1/model/config.json" "${2:-2}" "$T/fp32" "$T/bf16" \
		$attention <<-'PY'
		import array, json, math, re, sys
		a, b = (array.array("f", open(f, "rb").read()) for f in sys.argv[1:3])
		config = json.load(open(sys.argv[3]))
		def first(*keys):
		    return next(c[k] for c in (config, config.get("text_config")) for k in keys if k in c)
		layers, hidden = first("num_hidden_layers", "n_layer"), first("hidden_size", "n_embd")
		assert len(a) == len(b) and any(a)
		e, attention = 2 ** -9 / math.sqrt(3), int(sys.argv[7])
		bound = 3 * float(sys.argv[4]) * e * math.sqrt(2 * (4 * layers + 1) + 2 + 8 * layers * attention)
		error = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a))
		print(error, "of", bound)
		assert e / 4 < error < bound, (error, bound)
		fp32, bf16 = (re.search("loss (.*) over (.*)", open(f).read()).groups() for f in sys.argv[5:7])
		logits, n = 0.1 / math.sqrt(3) * math.sqrt(hidden), int(fp32[1])
		roundings = 4 * layers + 1 + 4 * layers * attention
		bound = 3 * math.sqrt(2 / n) * logits * float(sys.argv[4]) * e * math.sqrt(roundings)
		error = abs(float.fromhex(bf16[0]) - float.fromhex(fp32[0])) / n
		print("loss", error, "of", bound)
		assert 0 < error < bound, (error, bound)
	PY
}

# bats test_tags=slow
@test "gradients of bf16 GEMMs are those of fp32 up to bf16's rounding, in models of many kinds" {
	need_bf16
	for model in llama3 qwen3 llama-bias neox olmo2 gpt2; do rounds $model; done
}

# bats test_tags=slow
@test "gradients of bf16 GEMMs are those of fp32 up to rounding, with all small weights that there are" {
	need_bf16
	rounds gemma4 8 # a factor of each block
	# caps; slopes; experts with sinks and biases, corrections, a shared expert
	for model in gemma2 apertus gpt-oss glm4-moe qwen2-moe granitemoe; do rounds $model; done
}

@test "bf16 by AMX and by AVX512-BF16 give gradients up to rounding, and a run keeps to what its record has" {
	need_bf16
	make_run qwen3
	step_of here "--compute bf16"
	record_has 'oneDNN [0-9.]*, avx512_amx, bf16' || skip "needs a CPU with AMX"
	DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 fails_with 78 mt-stream "$RUN"
	grep -q "GEMM by 'oneDNN [0-9.]*, avx512_amx, bf16', this is 'oneDNN [0-9.]*, avx512_bf16, bf16'" "$T/fails.err"
	DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 rounds qwen3
	record_has 'oneDNN [0-9.]*, avx512_bf16, bf16'
	fails_with 78 mt-stream "$RUN"
	grep -q "this is 'oneDNN [0-9.]*, avx512_amx, bf16'" "$T/fails.err"
}

# bats test_tags=slow
@test "bf16: threads, streams, recompute and the chaos device's orders give the same bits" {
	need_bf16
	for model in qwen3 llama-bias; do
		make_run $model bf16 bf16
		MICROS=2 step_of one "--compute bf16 --threads 1"
		MICROS=2 step_of three "--threads 3 --recompute full"
		same one three
		MICROS=2 STREAMS=2 step_of streams "--threads 1 --recompute none"
		same one streams
		for seed in 1 2 3 4 5 6; do
			MICROS=2 step_of chaos "--device chaos:$seed"
			same one chaos
		done
	done
}

@test "bf16: windows of experts give the same bits" {
	need_bf16
	for model in gpt-oss qwen2-moe glm4-moe; do
		make_run $model
		step_of all "--compute bf16"
		for window in 1 3; do
			step_of window "--expert-window $window --device chaos:$window"
			same all window
		done
	done
}

# Attention's operands are bf16 where the CPU's instruction for them is fast. A record of an mt whose attention was fp32
# has "tiled, fp32" beside GEMMs of bf16.
@test "attention of bf16: a run whose record has attention of fp32 goes on with it, in other bits" {
	need_bf16
	grep -q AuthenticAMD /proc/cpuinfo || skip "needs an AMD CPU with AVX512-BF16"
	make_run qwen3
	step_of new "--compute bf16"
	record_has 'tiled, bf16'
	python3 - "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.control" <<-'PY'
		import sys
		with open(sys.argv[1], "r+b") as f:
		    at = f.read().index(b"tiled, bf16")
		    f.seek(at)
		    f.write(b"tiled, fp32")
	PY
	step_of older ""
	record_has 'tiled, fp32'
	record_has ', bf16'
	no same new older
	step_of streams "--compute bf16 --threads 3"
	same older streams
	step_of chaos "--device chaos:1"
	same older chaos
	make_run qwen3
	step_of fp32 "--compute fp32"
	record_has 'tiled, fp32'
}

# What a plan of the cpu device copies in, by fixed rates: measured ones may give another plan each time
copied_in() {
	mt-stream --plan --config "$CONFIGS/demo.json" --seq 8 --micro 1 --json "$@" \
		--profile cpu,flops=0.2,h2d=10,d2h=10,hbm=20,ram=20,adam=0.5 | grep -o '"bytes_in": [0-9]*'
}

# bats test_tags=slow
@test "bf16 is the default where the CPU multiplies it faster than fp32; a stream that joins follows the record" {
	need_bf16
	local default=fp32 type
	! bf16_is_fast || default=bf16
	make_run llama3
	step_of default ""
	record_has ", $default"
	for type in bf16 fp32; do
		make_run llama3
		step_of $type "--compute $type"
		record_has ", $type"
		fails_with 78 mt-stream "$RUN" --compute $([ $type = fp32 ] && echo bf16 || echo fp32)
		grep -q "with GEMM by '.*, $type', this is '" "$T/fails.err"
		step_of follows ""
		same $type follows
	done
	same $default default
	no same bf16 fp32
	for type in bf16 fp32; do # what is read in place is not copied in
		copied_in --compute $type >"$T/$type"
	done
	no same bf16 fp32
	copied_in >"$T/default"
	same $default default
}

@test "a CPU without bf16 computes in fp32, and refuses bf16 and runs that were computed in it" {
	need_bf16
	make_run llama3
	fails_with 78 without_bf16 mt-stream "$RUN" --compute bf16
	grep -q "^mt-stream: --compute bf16: this CPU has n" "$T/fails.err"
	step_of bf16 "--compute bf16"
	fails_with 78 without_bf16 mt-stream "$RUN"
	grep -q "this is '.*, fp32'" "$T/fails.err"
	stream-drive forget "$RUN"
	step_of fp32 "--compute fp32"
	stream-drive forget "$RUN"
	DNNL_MAX_CPU_ISA=AVX512_CORE step_of default ""
	same fp32 default
}

# (tests/probes/ops.c compares what is rounded with its definition)
@test "fp8: any threads, streams and orders give the same bits, near bf16's; another type exits 78" {
	need_bf16
	fp8_model
	make_run fp8 bf16 bf16
	MICROS=2 step_of bf16 "--compute bf16" dump="$T/bf16.bin"
	make_run fp8 bf16 bf16
	MICROS=2 step_of one "--compute fp8 --threads 1" dump="$T/one.bin"
	record_has ', fp8'
	near bf16 one 0.15
	no near bf16 one 0.02 # of e4m3: 2^-4 / sqrt(3) of a number
	MICROS=2 step_of three "--threads 3 --recompute full"
	same one three
	MICROS=2 STREAMS=2 step_of streams "--threads 1 --recompute none --compute fp8"
	same one streams
	for seed in 1 2 3; do
		MICROS=2 step_of chaos "--device chaos:$seed"
		same one chaos
	done
	fails_with 78 mt-stream "$RUN" --compute bf16
	grep -q "with GEMM by '.*, fp8', this is '.*, bf16'" "$T/fails.err"
	make_run fp8 fp32 fp32
	fails_with 78 mt-stream "$RUN" --compute fp8
	grep -q "^mt-stream: --compute fp8: device cpu computes in fp32 where weights are fp32$" "$T/fails.err"
	fails_with 78 mt-stream --plan --config "$CONFIGS/demo.json" --seq 8 --micro 1 --profile A100 --compute fp8
	grep -q "^mt-stream: --compute fp8: needs a GPU of compute capability 9.0 or later, this is 8.0$" "$T/fails.err"
}

# bats test_tags=slow
@test "fp8: GEMMs over more than 16384 tokens go in parts, whose gradients are those of smaller chunks up to rounding" {
	need_bf16
	fp8_model
	local tokens
	for tokens in 16000 20000; do
		mt-store rm "$RUN" 2>/dev/null || true
		stream-drive make "$RUN" "$GOLDEN/fp8/model" bf16 bf16 20480 7
		spawn stream mt-stream "$RUN" --compute fp8 --chunk-tokens $tokens
		step_by $tokens "$PID" 250 80 1 1 3 dump="$T/$tokens.bin"
	done
	near 16000 20000 1e-3
}

@test "--compute bf16 with fp32 weights exits 78, another type 64" {
	make_run llama3 fp32
	fails_with 78 mt-stream "$RUN" --compute bf16
	grep -q "^mt-stream: --compute bf16: device cpu computes in fp32 where weights are fp32$" "$T/fails.err"
	fails_with 64 mt-stream "$RUN" --compute int8
	fails_with 64 mt-stream "$RUN" --compute ''
	fails_with 64 mt-run --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --out "$T/out" --steps 1 \
		--batch 1 --seq 8 --compute fp16
	[ ! -e "$T/out" ]
	fails_with 78 mt-stream --plan --config "$CONFIGS/demo.json" --seq 8 --micro 1 --profile cpu --dtype fp32 \
		--compute bf16
	fails_with 78 mt-stream --plan --config "$CONFIGS/demo.json" --seq 8 --micro 1 --profile H100 --compute fp32
}

# Train llama3's golden model: train OUT UNTIL [mt-run's options]
train() {
	local out=$1 until=$2
	shift 2
	mt-run --run "$RUN" --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --epochs 9 --out "$T/$out" \
		--steps 12 --until "$until" --batch 4 --seq 24 --lr 0.003 --threads 1 "$@" >/dev/null 2>"$T/$out.err"
}

# bats test_tags=slow
@test "bf16: a training that is resumed gives the bits of one that is not; fp32 gives others and keeps its record" {
	need_bf16
	train whole 12 --compute bf16
	train cut 5 --compute bf16
	exits 78 train cut 12 --resume --compute fp32
	grep -q "with GEMM by '.*, bf16', this is '.*, fp32'" "$T/cut.err"
	train cut 12 --resume
	cmp "$T/whole/model/model.safetensors" "$T/cut/model/model.safetensors"
	train fp32 5 --compute fp32
	train fp32 12 --resume
	grep -q ', fp32"' "$T/fp32/step-00000012/run.json"
	no cmp "$T/whole/model/model.safetensors" "$T/fp32/model/model.safetensors"
}

# (suite 80 kills streams at any time, in bf16 where it is the default)
@test "bf16: a stream that dies is replaced, with the same bits" {
	need_bf16
	make_run llama3
	MICROS=9 step_of plain "--compute bf16"
	spawn victim mt-stream "$RUN" --compute bf16
	victim=$PID
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for a batch'"
	kill -STOP "$victim"
	spawn drive stream-drive step "$RUN" 5 24 9 1 3
	drive=$PID
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-step'"
	kill -9 "$victim"
	wait "$victim" || true
	spawn successor mt-stream "$RUN"
	wait "$drive"
	sort "$T/drive.out" >"$T/after"
	same plain after
}

#!/usr/bin/env bats
# The cuda device without a GPU: its kernels and its host code run on an emulator (tests/gpu/emu), which draws the order
# of threads and streams from MT_EMU_SEED. tests/48-gpu-scripts.bats tests each kernel alone; tests/gpu/check tests what
# only a GPU can show.

load helpers
load lib/step

# Write one step's losses and gradients of a fresh run to OUT: step_of OUT "MT-STREAM AND OPTIONS" [WORDS...]
step_of() {
	local out=$1 command=$2
	shift 2
	spawn stream env MT_EMU_SEED="${SEED:-1}" $command "$RUN" --chunk-tokens 48 --head-tokens 40
	step_by "$out" "$PID" "${ROWS:-5}" 24 1 1 3 dump="$T/$out.bin" "$@"
}

# Steps of golden models on the cpu device and on the cuda device, whose streams take turns in two orders: gradients are
# near each other by BOUND, and neither the order nor MT_WITHOUT changes a bit; AFTER: a check of the cuda device's
# first step.
# as_on_cpu DTYPE BOUND AFTER MODEL...
as_on_cpu() {
	local dtype=$1 bound=$2 after=$3 model
	shift 3
	need_emulator
	for model; do
		make_run "$model" "$dtype" "$dtype"
		step_of cpu "mt-stream --device cpu --compute fp32"
		make_run "$model" "$dtype" "$dtype"
		SEED=1 step_of one "$EMU --device cuda"
		near cpu one "$bound"
		$after
		SEED=2 MT_WITHOUT=slots,prefetch,grads,pieces,update step_of two "$EMU --device cuda:0 --recompute full"
		cmp "$T/one" "$T/two"
	done
}

# bats test_tags=slow
@test "objectives: the cuda device gives the cpu device's gradients, whichever stream is faster" {
	need_emulator
	for loss in dpo pg; do
		make_run llama3 fp32 fp32
		step_of cpu "mt-stream --device cpu" loss=$loss
		make_run llama3 fp32 fp32
		SEED=1 step_of one "$EMU --device cuda" loss=$loss
		near cpu one 1e-5
		SEED=2 step_of two "$EMU --device cuda --recompute full" loss=$loss
		cmp "$T/one" "$T/two"
	done
}

# (tests/probes/cuda-kernels.c: operands are rounded as the cpu's)
@test "fp8: the cuda device gives the cpu device's gradients up to rounding; where cuBLASLt refuses FP8, bf16's" {
	need_emulator
	fp8_model
	local seed
	make_run fp8 bf16 bf16
	step_of bf16 "$EMU --device cuda"
	make_run fp8 bf16 bf16
	step_of cpu "mt-stream --compute fp8"
	for seed in 1 2; do
		make_run fp8 bf16 bf16
		SEED=$seed step_of $seed "$EMU --device cuda --compute fp8"
		grep -qa 'cuBLASLt .*, sums unsplit, fp8' "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.control"
	done
	same 1 2
	make_run fp8 bf16 bf16
	MT_EMU_CAPABILITY=120 step_of blocks "$EMU --device cuda --compute fp8"
	same 1 blocks
	near cpu 1 0.05 # activations are bf16 here, and fp32 on the cpu
	no near bf16 1 0.05
	make_run fp8 bf16 bf16
	FAKE_CUBLASLT_NO_FP8=1 step_of none "$EMU --device cuda --compute fp8"
	same bf16 none
	grep -q "cuBLASLt does not take .* in FP8: such GEMMs are computed in bf16$" "$T/stream.err"
	make_run fp8 bf16 bf16
	MT_EMU_CAPABILITY=89 fails_with 78 "$EMU" "$RUN" --device cuda --compute fp8
	grep -q "^mt-stream: --compute fp8: needs a GPU of compute capability 9.0 or later, this is 8.9$" "$T/fails.err"
	FAKE_CUBLASLT_VERSION=120800 fails_with 78 "$EMU" "$RUN" --device cuda --compute fp8
	grep -q "^mt-stream: --compute fp8: needs cuBLASLt 120900 or later, this is 120800$" "$T/fails.err"
}

# bats test_tags=slow
@test "fp32: the cuda device gives the cpu device's gradients, whichever stream is faster" {
	as_on_cpu fp32 1e-5 true llama3 qwen2-window qwen3 llama-bias gpt2 opt
}

# bats test_tags=slow
@test "bf16: the cuda device gives the cpu device's gradients up to rounding, whichever stream is faster" {
	as_on_cpu bf16 3e-2 true llama3 qwen3
}

# bats test_tags=slow
@test "fp32: mixtures of experts on the cuda device give the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true mixtral qwen2-moe gpt-oss-aux
}

# bats test_tags=slow
@test "gated DeltaNet on the cuda device gives the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true $(some 2 qwen3-5 qwen3-5-mtp kimi-linear) ${NIGHTLY:+qwen3-5-moe olmo-hybrid}
	as_on_cpu bf16 3e-2 true qwen3-next ${NIGHTLY:+qwen3-5 kimi-linear}
}

# bats test_tags=slow
@test "Mamba 2 on the cuda device gives the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true falcon-h1-norm ${NIGHTLY:+granite-hybrid nemotron-h-moe falcon-h1 mamba2 bamba}
	as_on_cpu bf16 3e-2 true nemotron-h ${NIGHTLY:+falcon-h1}
}

# bats test_tags=slow
@test "Mamba 1 on the cuda device gives the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true falcon-mamba ${NIGHTLY:+mamba jamba}
	as_on_cpu bf16 3e-2 true mamba ${NIGHTLY:+falcon-mamba}
}

# bats test_tags=slow
@test "short convolutions on the cuda device give the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true lfm2 lfm2-bias lfm2-moe
	as_on_cpu bf16 3e-2 true lfm2
}

# bats test_tags=nightly
@test "norms behind experts on the cuda device give the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true afmoe gemma4-moe
	as_on_cpu bf16 3e-2 true afmoe gemma4-moe
}

# bats test_tags=slow
@test "spans, and experts whose weights multiply inputs, on the cuda device give the cpu device's gradients" {
	as_on_cpu fp32 1e-5 true llama4-chunks llama4-plain
	as_on_cpu bf16 3e-2 true llama4-chunks
}

# bats test_tags=slow
@test "blocks' own inputs and shared k and v on the cuda device give the cpu's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true gemma4-e ${NIGHTLY:+gemma3n}
	as_on_cpu bf16 3e-2 true gemma4-e
}

# bats test_tags=slow
@test "a GPU whose memory is the host's reads weights in place and offloads nothing, with the same bits" {
	need_emulator
	for model in qwen3 mixtral; do
		make_run "$model" bf16 bf16
		step_of copied "$EMU --device cuda"
		make_run "$model" bf16 bf16
		SEED=2 step_of placed "env MT_EMU_INTEGRATED=1 MT_EMU_HOST_TABLES=1 $EMU --device cuda"
		grep -q '; 0 weight and' "$T/stream.err"
		no grep -q offloaded "$T/stream.err"
		cmp "$T/copied" "$T/placed"
	done
	# one that does not use the host's page tables copies them
	make_run "$model" bf16 bf16
	step_of apart "env MT_EMU_INTEGRATED=1 $EMU --device cuda"
	no grep -q '; 0 weight and' "$T/stream.err"
	no grep -q offloaded "$T/stream.err"
	cmp "$T/copied" "$T/apart"
}

# (the emulator ends where memory is registered; and no bounce buffer, nor any other host memory, can be pinned)
# bats test_tags=nightly
@test "a GPU that uses the host's page tables copies without registering or bounce buffers, with the same bits" {
	need_emulator
	for model in qwen3 gemma4-e; do
		make_run "$model" bf16 bf16
		ROWS=16 step_of registered "$EMU --device cuda"
		make_run "$model" bf16 bf16
		SEED=2 ROWS=16 step_of direct "env MT_EMU_HOST_TABLES=1 MT_EMU_HOST_MOST=1 $EMU --device cuda"
		no grep -q 'cudaHost\|; 0 weight and\|kernel copies' "$T/stream.err"
		cmp "$T/registered" "$T/direct"
		# where such copies wait for their stream
		make_run "$model" bf16 bf16
		SEED=4 ROWS=16 step_of kernel "env MT_EMU_HOST_TABLES=waits MT_EMU_HOST_MOST=1 $EMU --device cuda"
		grep -q 'wait for their stream: a kernel copies' "$T/stream.err"
		cmp "$T/registered" "$T/kernel"
	done
	own=$(own_of "$T/stream.err")
	make_run qwen3 bf16 bf16
	ROWS=16 step_of registered "$EMU --device cuda"
	make_run qwen3 bf16 bf16
	SEED=3 ROWS=16 step_of direct "env MT_EMU_HOST_TABLES=1 MT_EMU_HOST_MOST=1 $EMU --device cuda --device-memory
		$((own + 700))K"
	grep -q 'residuals offloaded' "$T/stream.err"
	no grep -q 'cudaHost\|bounce' "$T/stream.err"
	cmp "$T/registered" "$T/direct"
}

# Bytes of device memory that the emulated GPU's plan may take: budget_of NAME=VALUE... [-- OPTIONS]
budget_of() {
	local words="$*"
	env ${words%% -- *} "$BUILD/emu/mt-plan" --config "$GOLDEN/qwen3/model" --seq 24 --micro 4 --json \
		$(printf %s "$words" | sed -n 's/.* -- //p') 2>/dev/null | value memory
}

@test "a GPU whose memory is the host's may take seven eighths of what the host can give, whatever the driver reports" {
	need_emulator
	local dir=$T/sys/devices/system/node all="MemTotal: 99999999999 kB"
	mkdir -p "$dir/node0" "$dir/node1"
	echo 0-1 >"$dir/has_memory"
	echo 0 >"$dir/has_cpu"
	# (of what is available, the node without cores has all but a few bytes)
	available=$(mt-store stat --memory --json | value memory_available)
	other=$(($(awk '/^MemAvailable/ { print $2 }' /proc/meminfo) - 3000000))
	for part in MemFree "Active(file)" "Inactive(file)" SReclaimable; do
		echo "Node 1 $part: $([ "$part" = MemFree ] && echo $other || echo 0) kB"
	done >"$dir/node1/meminfo"
	[ "$available" -gt 3200000000 ] || skip "needs 3 GB of free memory"
	few=$(budget_of MT_EMU_INTEGRATED=1 MT_SYSFS_DIR="$T/sys")
	[ "$few" -gt 1800000000 ]
	[ "$few" -lt 2900000000 ]                          # of 3.07 GB, as others take and free memory meanwhile
	# the driver counts pages of files as used: it reports less than there is
	[ "$(budget_of MT_EMU_INTEGRATED=1 MT_EMU_MEMORY=1000000)" -gt $((available / 2)) ]
	[ "$(budget_of MT_EMU_MEMORY=1000000000)" = 1000000000 ]
	# --host-memory is all that a run may have there, its state and the GPU's part, with and without a run
	make_run qwen3 bf16 bf16
	step_of limited "env MT_EMU_INTEGRATED=1 MT_EMU_HOST_TABLES=1 $EMU --device cuda --host-memory 200M"
	grep -q ' of 19[0-9]\.[0-9]* MiB of device memory' "$T/stream.err"
	[ "$(budget_of MT_EMU_INTEGRATED=1 MT_EMU_HOST_TABLES=1 -- --host-memory 200M)" -lt $((200 << 20)) ]
}

# bats test_tags=slow
@test "few rows of a large embedding are read in the registered store, with the bits of a copy of all" {
	need_emulator
	for model in qwen3 llama-bias gpt2 gemma4-e; do
		# a thread registers the store, and on a busy machine the first step may come before it
		for _ in 1 2 3 4 5; do
			make_run "$model" bf16 bf16
			ROWS=1 step_of placed "$EMU --device cuda --trace $T/placed.json"
			grep -q '"weights in".*"unit": 0,' "$T/placed.json" || break
		done
		make_run "$model" bf16 bf16
		ROWS=1 step_of copied "env MT_EMU_NO_PINNING=1 $EMU --device cuda --trace $T/copied.json"
		cmp "$T/placed" "$T/copied"
		grep '"weights in"' "$T/copied.json" | grep -q '"unit": 0,'
		no grep '"weights in".*"unit": 0,' "$T/placed.json"
	done
}

lm_head_is_slow() {
	[ "$(grep -c 'such GEMMs are slow' "$T/stream.err")" = 1 ]
	grep -q 'does not take 40 x 61 x 16 at these strides' "$T/stream.err"
}

# (gpt-oss-aux: a router with a bias, and terms of the loss. qwen2-moe: a gate of one column, which cuBLASLt refuses;
# this is not reported)
# bats test_tags=slow
@test "bf16: mixtures of experts give the cpu device's gradients up to rounding, in any order of streams" {
	as_on_cpu bf16 3e-2 lm_head_is_slow mixtral qwen2-moe gpt-oss-aux
}

# bats test_tags=slow
@test "bf16: wgmma computes the GEMMs of experts if it agrees with other kernels when the run begins" {
	need_emulator
	make_run mixtral bf16 bf16
	step_of with "$EMU --device cuda"
	no grep -q wgmma "$T/stream.err"
	# the choice stands: it is not tried again
	step_of wrong "env MT_EMU_WGMMA=wrong $EMU --device cuda"
	no cmp -s "$T/with" "$T/wrong"
	MT_EMU_WGMMA=none fails_with 78 "$EMU" "$RUN" --device cuda
	grep -q "the run was begun with wgmma, which this GPU or its driver lacks" "$T/fails.err"
	# the emulated GPU's sums have the same order with and without
	for fault in wrong none; do
		make_run mixtral bf16 bf16
		step_of without "env MT_EMU_WGMMA=$fault $EMU --device cuda"
		cmp "$T/with" "$T/without"
		[ $fault = none ] || grep -q "without wgmma: results of form 0 differ by .* from those by mma" "$T/stream.err"
		step_of later "$EMU --device cuda"
		cmp "$T/with" "$T/later"
	done
	make_run mixtral bf16 bf16
	MT_EMU_WGMMA=hangs fails_with 134 "$EMU" "$RUN" --device cuda
	grep -q "GEMMs of experts by wgmma do not end: start mt-stream again" "$T/fails.err"
	step_of after "env MT_EMU_WGMMA=wrong $EMU --device cuda"
	cmp "$T/with" "$T/after"
	no grep -q wgmma "$T/stream.err"
}

# bats test_tags=nightly
@test "bf16: exact routers on the cuda device choose the cpu device's experts, in any order of streams" {
	as_on_cpu bf16 3e-2 true glm4-moe-bias ernie4-5-moe-aux deepseek-v2-groups
}

# bats test_tags=slow
@test "every limit of device memory, and whatever is then offloaded, gives the same bits" {
	need_emulator
	make_run qwen3 bf16 bf16
	ROWS=16 step_of all "$EMU --device cuda"
	own=$(own_of "$T/stream.err")
	for memory in 900 700 600 500; do
		SEED=${memory%00} ROWS=16 step_of less "$EMU --device cuda --device-memory $((own + memory))K --verbose"
		cmp "$T/all" "$T/less"
		cat "$T/stream.err" >>"$T/plans"
	done
	MT_EMU_NO_PINNING=1 ROWS=16 step_of less "$EMU --device cuda --device-memory $((own + 700))K"
	cmp "$T/all" "$T/less"
	grep -q 'residuals offloaded' "$T/plans"
}

# bats test_tags=slow
@test "each of several streams offloads to its part of the host's memory; more if no plan fits without; same bits" {
	need_emulator
	make_run qwen3 bf16 bf16
	ROWS=16 step_of all "$EMU --device cuda"
	own=$(own_of "$T/stream.err")
	run_bytes=$(mt-store stat "$RUN" --json | value bytes)
	# KiB of both memories, number of streams, do residuals leave? They have 24 KiB
	for case in "700 100 1 true" "700 100 9 no" "700 400 9 true" "260 50 9 true"; do
		read -r memory host n leave <<-END
			$case
		END
		ROWS=16 step_of less "$EMU --device cuda --device-memory $((own + memory))K --streams $n \
			--host-memory $((run_bytes + 1024 * host)) --verbose"
		cmp "$T/all" "$T/less"
		[ "$leave" = no ] || leave=
		$leave grep -q 'residuals offloaded' "$T/stream.err"
	done
}

# bats test_tags=slow
@test "gradients converted to bf16 in place are sent in pieces of any size with the same bits" {
	need_emulator
	mkdir -p "$T/wide"
	sed 's/"intermediate_size": [0-9]*/"intermediate_size": 400/' "$GOLDEN/qwen3/model/config.json" \
		>"$T/wide/config.json"
	stream-drive make "$RUN" "$T/wide" bf16 bf16 1024 7
	step_of whole "$EMU --device cuda"
	mt-store rm "$RUN"
	stream-drive make "$RUN" "$T/wide" bf16 bf16 1024 7 4096
	for SEED in 1 2 3 4; do
		step_of pieces "$EMU --device cuda"
		cmp "$T/whole" "$T/pieces"
	done
	MT_EMU_NO_PINNING=1 step_of bounced "$EMU --device cuda"
	cmp "$T/whole" "$T/bounced"
}

# bats test_tags=slow
@test "without pinned memory all copies use bounce buffers, reported once, with the same bits" {
	need_emulator
	make_run llama3 bf16 bf16
	step_of pinned "$EMU --device cuda"
	export MT_EMU_NO_PINNING=1
	step_of bounced "$EMU --device cuda"
	cmp "$T/pinned" "$T/bounced"
	[ "$(grep -c 'cudaHostRegister.*bounce buffers' "$T/stream.err")" = 1 ]
	[ "$(messages "$T/stream.err" | wc -l)" = 1 ]
}

# bats test_tags=slow
@test "activation memory that cannot be pinned is reported once with its cost, and gives the same bits" {
	need_emulator
	make_run qwen3 bf16 bf16
	ROWS=16 step_of pinned "$EMU --device cuda"
	own=$(own_of "$T/stream.err")
	options="--device cuda --device-memory $((own + 700))K --verbose"
	ROWS=16 step_of pinned "$EMU $options"
	grep -q 'residuals offloaded' "$T/stream.err"
	no grep -q cudaHostAlloc "$T/stream.err"
	MT_EMU_HOST_MOST=8000 ROWS=16 step_of unpinned "$EMU $options"
	cmp "$T/pinned" "$T/unpinned"
	costs='cudaHostAlloc of .* MiB .*: cudaError[A-Za-z]*; .* bounce buffers, which costs'
	[ "$(grep -c "$costs" "$T/stream.err")" = 1 ]
	[ "$(grep -c cudaHostAlloc "$T/stream.err")" = 1 ]
}

# bats test_tags=slow
@test "--trace lists every operation on its queue, within its micro-batch, and changes no bit" {
	need_emulator
	make_run qwen3 bf16 bf16
	ROWS=16 step_of plain "$EMU --device cuda"
	own=$(own_of "$T/stream.err")
	ROWS=16 step_of traced "$EMU --device cuda --device-memory $((own + 540))K --trace $T/trace.json"
	cmp "$T/plain" "$T/traced"
	python3 "$TOP/tests/gpu/trace" "$T/trace.json" >"$T/account"
	grep -q '^| recompute: GEMM ' "$T/account"
	grep -q '^| activations: copy, weights in ' "$T/account"
	grep -q '^mt-stream: step 1, micro-batch 0: .* for the host$' "$T/stream.err"
}

# (tests/42-chaos.bats lists what the seed draws. Here it also draws pinned memory or none. Fourteen seeds are a step
# with each of its models in one loop order, and the next fourteen in the other one.)
# bats test_tags=slow
@test "random plans, neighbour timing and stream order in either loop order give the same bits" {
	need_emulator
	local from=$RANDOM count=6 half="[0-6]"
	[ -z "$NIGHTLY" ] || count=280 half=140
	echo "seeds from $from on"
	cuda-chaos seeds "$RUN" "$GOLDEN" "$from" "$count" 2>"$T/chaos.err" | tee "$T/out"
	[ "${PIPESTATUS[0]}" = 0 ]
	grep -q "^$half seeds layer-major, $half pass-major: " "$T/out"
}

# A step of four micro-batches on STREAMS mt-streams: dealt_of OUT STREAMS [OPTION...]
dealt_of() {
	local out=$1 streams=$2 i pids=""
	shift 2
	make_run qwen3 bf16 bf16
	for i in $(seq "$streams"); do
		spawn "stream$i" env MT_EMU_SEED="$i$streams" "$EMU" "$RUN" --device cuda --chunk-tokens 48 --head-tokens 48 \
			"$@"
		pids="$pids $PID"
	done
	step_by "$out" "$pids" 4 24 4 "$streams" 3
	[ "$(grep -c loss "$T/$out")" = 4 ]
}

# bats test_tags=slow
@test "one mt-stream and two, layer-major and pass-major, give the same bits" {
	need_emulator
	dealt_of one 1
	dealt_of two 2
	cmp "$T/one" "$T/two"
	dealt_of passes 1 --pass-rows 2
	cmp "$T/one" "$T/passes"
	dealt_of both 2 --pass-rows 2
	cmp "$T/one" "$T/both"
}

# 20 steps of a golden model: trained MODEL
trained() {
	need_emulator
	local case=$GOLDEN/$1
	shift
	[ ! -e "$case/eval.bin" ] || set -- --eval "$case/eval.bin" --eval-every 10
	mt-store create "$RUN" --config "$case/model" --dtype fp32 2>/dev/null
	mt-ckpt load "$RUN" "$case/model" 2>/dev/null
	spawn stream "$EMU" "$RUN" --device cuda
	spawn optim mt-optim "$RUN" --threads 1
	mt-step "$RUN" $(cat "$case/args") "$@" <"$case/data.bin" >"$T/metrics" 2>"$T/step.err"
	mt-ckpt export "$RUN" "$T/final" --dtype fp32
	python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --final "$T/final"
}

# bats test_tags=slow
@test "20 training steps on the cuda device match PyTorch's" { trained qwen3; }
# bats test_tags=nightly
@test "20 training steps on records with weights on the cuda device match PyTorch's" { trained llama-weights; }

# bats test_tags=nightly
@test "20 training steps of gated DeltaNet on the cuda device match PyTorch's" { trained qwen3-next; }

# bats test_tags=nightly
@test "20 training steps with multi-token prediction on the cuda device match PyTorch's" { trained deepseek-v3-mtp; }

# bats test_tags=nightly
@test "20 training steps of ALiBi on the cuda device match PyTorch's" { trained bloom; }

# bats test_tags=nightly
@test "20 training steps of multi-head latent attention on the cuda device match PyTorch's" { trained moonlight; }

# bats test_tags=nightly
@test "20 training steps of a mixture of experts on the cuda device match PyTorch's" { trained gpt-oss; }

@test "a CUDA error exits 74 and names the call, the error and the unit" {
	need_emulator
	make_run llama3
	spawn stream env MT_EMU_FAIL=50 "$EMU" "$RUN" --device cuda
	stream=$PID
	spawn drive stream-drive step "$RUN" 5 24 1 1 3 # which waits for the rest of the step
	exits 74 wait "$stream"
	[ "$(messages "$T/stream.err" | wc -l)" = 1 ]
	grep -q "^mt-stream: cuda:0: .*: cudaErrorLaunchFailure .*; dmesg .*unit [0-9]" "$T/stream.err"
}

# bats test_tags=slow
@test "the cuda device prints its plan and predicted step time once, with the rates of the GPU found" {
	need_emulator
	make_run llama3 bf16 bf16
	export MT_EMU_GPU="NVIDIA H100 80GB HBM3"
	step_of first "$EMU --device cuda"
	[ "$(grep -c -e ": train: " -e ": predicted by " "$T/stream.err")" = 2 ]
	grep -q "^mt-stream: train: 5 rows of 24 tokens: .*blocks keep: " "$T/stream.err"
	rates="mt-stream: predicted by the rates of NVIDIA H100 80GB HBM3"
	grep -q "^$rates: [0-9.]* of 3[0-9.]* MiB of device memory, .*; a step " "$T/stream.err"
	for device in "" "--device cuda"; do
		"$EMU" --plan --config "$CONFIGS/demo.json" --seq 24 --micro 5 $device --json 2>"$T/plan.err" | value profile |
			grep -qx "NVIDIA H100 80GB HBM3"
		grep -q "^mt-stream: plans for this machine's NVIDIA H100 80GB HBM3; " "$T/plan.err"
	done
	spawn stream "$EMU" "$RUN" --device cuda --profile "rtx4090,adam=9"
	stream-drive step "$RUN" 5 24 1 1 3 >/dev/null 3>&-
	stream-drive step "$RUN" 4 24 1 1 3 >/dev/null 3>&-
	stream-drive step "$RUN" 5 24 1 1 3 >/dev/null 3>&-
	mt-store stat "$RUN" --json >"$T/stat"
	[ "$(grep -c -e ": train: " -e ": predicted by " "$T/stream.err")" = 2 ]
	grep -q "by the rates of RTX4090, changed: " "$T/stream.err"
	python3 - "$T/stat" <<-'PY'
		import json, sys
		c = [s["counters"] for s in json.load(open(sys.argv[1]))["stages"] if s["stage"] == "mt-stream 0"][0]
		assert c["micros"] >= 2 and 0 < c["predicted_ns"] < c["busy_ns"], c
	PY
}

# A step on a GPU with KIB of memory beyond what the device needs for itself: "works", or "needs N" MiB: try_with KIB
try_with() {
	local code=0 stream
	make_run qwen3 bf16 bf16
	spawn stream env MT_EMU_MEMORY=$(((own + $1) * 1024)) "$EMU" "$RUN" --device cuda --chunk-tokens 48 --head-tokens 40
	stream=$PID
	spawn drive stream-drive step "$RUN" 16 24 1 1 3
	while kill -0 "$PID" 2>/dev/null && kill -0 "$stream" 2>/dev/null; do sleep 0.05; done
	kill "$PID" "$stream" 2>/dev/null || true
	wait "$stream" || code=$?
	if [ "$code" = 0 ]; then
		sort "$T/drive.out" >"$T/sorted"
		cmp "$T/all" "$T/sorted" && echo works
		return
	fi
	[ "$code" = 71 ] && [ ! -s "$T/drive.out" ] && [ "$(messages "$T/stream.err" | wc -l)" = 1 ]
	sed -n 's/.*: a micro-batch of .* needs \([0-9]*\) MiB of device memory, have .*/needs \1/p' "$T/stream.err"
}

# bats test_tags=nightly
@test "for any GPU memory size an accepted plan works; else the smallest budget is reported before anything is sent" {
	need_emulator
	make_run qwen3 bf16 bf16
	ROWS=16 step_of all "$EMU --device cuda"
	own=$(own_of "$T/stream.err")
	spare=$((256 * 1024))
	for memory in 3000 900 600 500; do
		[ "$(try_with $((spare + memory)))" = works ]
	done
	for memory in 150 0 -100000; do
		[ "$(try_with $((spare + memory)))" = "needs $((own / 1024 + 1))" ]
	done
	# memory that the GPU reports as free, and that others have taken when the stream allocates it
	export MT_EMU_LIES=$(((spare + 1024) * 1024))
	for memory in 800 500; do
		[ "$(try_with $memory)" = works ]
	done
	[ "$(try_with 200)" = "needs $((own / 1024 + 1))" ]
}

# bats test_tags=nightly
@test "a replaced stream keeps the recorded chunks with less memory, or reports the least that it needs" {
	need_emulator
	make_run qwen3 bf16 bf16
	spawn stream "$EMU" "$RUN" --device cuda
	stream-drive step "$RUN" 16 24 1 1 3 3>&- | sort >"$T/first"
	end "$PID"
	own=$(own_of "$T/stream.err")
	grep -q "chunks of 16;" "$T/stream.err"
	spawn stream "$EMU" "$RUN" --device cuda --device-memory $((own + 2000))K
	stream-drive step "$RUN" 16 24 1 1 3 3>&- | sort >"$T/second"
	cmp "$T/first" "$T/second"
	grep -q "chunks of 16;" "$T/stream.err"
	end "$PID"
	# a fresh run would get smaller chunks
	spawn stream "$EMU" "$RUN" --device cuda --device-memory $((own + 700))K
	stream=$PID
	spawn drive stream-drive step "$RUN" 16 24 1 1 3
	exits 71 wait "$stream"
	grep -q "needs [0-9]* MiB of device memory" "$T/stream.err"
	kill -9 "$PID"
	wait "$PID" || true
	make_run qwen3 bf16 bf16
	spawn stream "$EMU" "$RUN" --device cuda --device-memory $((own + 700))K
	stream-drive step "$RUN" 16 24 1 1 3 >/dev/null 3>&-
	grep -q "chunks of [1-8];" "$T/stream.err"
}

@test "mt-stream links no CUDA library, and --device cuda without a GPU exits 78" {
	if ldd "$MT/mt-stream" | grep -i -E 'libcu(da|blas|dnn)'; then return 1; fi
	need_emulator
	make_run llama3
	fails_with 64 mt-stream "$RUN" --device cuda:x
	[ -e /dev/nvidia0 ] && skip "there is a GPU"
	fails_with 78 mt-stream "$RUN" --device cuda
}

# bats test_tags=nightly
@test "multi-head latent attention on the cuda device gives the cpu device's gradients, in any order of streams" {
	as_on_cpu fp32 1e-5 true deepseek-v3 moonlight mistral4-wrapper
	for dims in "192 128" "256 256"; do latent_heads $dims; done
	GOLDEN=$T
	as_on_cpu fp32 1e-5 true latent-192
	as_on_cpu bf16 3e-2 true latent-192 latent-256
}

# bats test_tags=nightly
@test "the largest heads: the cuda device gives the cpu device's gradients" {
	mkdir -p "$T/large/model"
	sed 's/"head_dim": [0-9]*/"head_dim": 512/' "$GOLDEN/qwen3/model/config.json" >"$T/large/model/config.json"
	GOLDEN=$T
	as_on_cpu bf16 3e-2 true large
	as_on_cpu fp32 1e-5 true large
}

@test "the kernels of the auxiliary loss and the z-loss match their definitions, with the same bits in any order" {
	need_emulator
	cuda-kernels balance >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 15 ]
}

@test "the kernels of latents match their definitions, with the same bits in any order" {
	need_emulator
	cuda-kernels mla >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 32 ]
}

# bats test_tags=slow
@test "GEMMs of experts by wgmma match their definitions, with the same bits in any order" {
	need_emulator
	cuda-kernels wgmma >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 25 ]
}

# bats test_tags=nightly
@test "the kernels of delta rules, Mamba and gates match their definitions, with the same bits in any order" {
	need_emulator
	cuda-kernels delta documents steps channels scan >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 232 ]
}

# bats test_tags=nightly
@test "bank conflicts take at most a twentieth of the cycles of shared memory, in attention and in grouped GEMMs" {
	need_emulator
	cuda-banks >"$T/out" || { cat "$T/out" >&2; return 1; }
	[ "$(grep -c '^ok' "$T/out")" = 32 ]
}

# (nightly: attention's, grouped GEMMs', the vocabulary's and the norms' kernels, too)
# bats test_tags=slow
@test "no two threads of a kernel access the same bytes, one of them storing, without a barrier between" {
	need_emulator
	need_cmd addr2line
	# shellcheck disable=SC2046
	set -- $(some 3 rows rope mla activation route combine balance)
	[ -z "$NIGHTLY" ] || set --
	cuda-races "$@" >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" -gt 30 ]
}

# bats test_tags=nightly
@test "mutate removes barriers of a kernel: each removal is reported as a race, with both places in the source" {
	need_emulator
	[ "$BUILD" = "$TOP/build" ] || skip "needs the probes in build/"
	need_cmd make
	need_cmd addr2line
	"$TOP/tests/gpu/mutate" balance.cu rows.cu >"$T/out" 2>"$T/mutate.err"
	[ ! -s "$T/mutate.err" ]
	missed='missed: FAILED race: [a-z]* after [a-z]*'
	[ "$(grep -c "^balance.cu:[0-9]*: __syncwarp: $missed: balance.cu:[0-9]*, balance.cu:[0-9]* " "$T/out")" = 2 ]
	[ "$(grep -c "^rows.cu:[0-9]*: __syncthreads: $missed: rows.cu:[0-9]*, rows.cu:[0-9]* " "$T/out")" = 1 ]
	[ "$(wc -l <"$T/out")" = 3 ]
}

@test "a GPU for which no kernels were built exits 78, and the line names make cuda-all" {
	need_emulator
	make_run llama2
	MT_EMU_NO_CODE=1 fails_with 78 "$EMU" "$RUN" --device cuda
	grep -q "device cuda:0: mt-stream was built without code for compute capability 9.0 .*make cuda-all" "$T/fails.err"
}

@test "a machine without a driver exits 78, and the line says what is missing" {
	need_emulator
	make_run llama2
	MT_EMU_NO_DRIVER=1 fails_with 78 "$EMU" "$RUN" --device cuda
	grep -q "device cuda: no NVIDIA driver, or one that is too old for CUDA 13 .*--device cpu works without" \
		"$T/fails.err"
}

# Mixtures of experts: 20 steps compared with PyTorch's, and what only routing can get wrong.
# tests/golden/compare.py has the bounds and their reasons.
load helpers
load lib/golden

@test "mixtral in fp32: losses, norms, gradients and weights match PyTorch's" { golden mixtral; }
@test "mixtral in bf16: results differ from PyTorch's only by rounding" { golden mixtral --bf16; }
@test "qwen3-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-moe; }
@test "qwen3-moe in bf16: results differ from PyTorch's only by rounding" { golden qwen3-moe --bf16; }
@test "qwen2-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen2-moe; }
@test "qwen2-moe in bf16: results differ from PyTorch's only by rounding" { golden qwen2-moe --bf16; }
@test "olmoe in fp32: losses, norms, gradients and weights match PyTorch's" { golden olmoe; }
@test "olmoe in bf16: results differ from PyTorch's only by rounding" { golden olmoe --bf16; }
@test "granitemoe in fp32: losses, norms, gradients and weights match PyTorch's" { golden granitemoe; }
@test "granitemoe in bf16: results differ from PyTorch's only by rounding" { golden granitemoe --bf16; }
@test "glm4-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden glm4-moe; }
@test "glm4-moe in bf16: results differ from PyTorch's only by rounding" { golden glm4-moe --bf16; }
@test "glm4-moe-bias in fp32: losses, norms, gradients and weights match PyTorch's" { golden glm4-moe-bias; }
@test "glm4-moe-bias in bf16: corrections of 7 +- 0.06 choose the experts that they choose in fp32" {
	golden glm4-moe-bias --bf16
}

@test "ernie4-5-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden ernie4-5-moe; }
@test "ernie4-5-moe in bf16: results differ from PyTorch's only by rounding" { golden ernie4-5-moe --bf16; }
@test "minimax-m2 in fp32: the auxiliary loss, its gradients and all else match transformers'" { golden minimax-m2; }
@test "minimax-m2 in bf16: corrections of 8 +- 0.06 choose the experts that they choose in fp32" {
	golden minimax-m2 --bf16
}

@test "dots1 in fp32: losses, norms, gradients and weights match PyTorch's" { golden dots1; }
@test "dots1 in bf16: results differ from PyTorch's only by rounding" { golden dots1 --bf16; }
@test "solar-open in fp32: losses, norms, gradients and weights match PyTorch's" { golden solar-open; }
@test "solar-open in bf16: results differ from PyTorch's only by rounding" { golden solar-open --bf16; }
@test "exaone-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden exaone-moe; }
@test "exaone-moe in bf16: results differ from PyTorch's only by rounding" { golden exaone-moe --bf16; }
@test "sarvam-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden sarvam-moe; }
@test "sarvam-moe in bf16: results differ from PyTorch's only by rounding" { golden sarvam-moe --bf16; }
@test "gpt-oss in fp32: losses, norms, gradients and weights match PyTorch's" { golden gpt-oss; }
@test "gpt-oss in bf16: results differ from PyTorch's only by rounding" { golden gpt-oss --bf16; }
@test "mixtral-aux in fp32: the auxiliary loss, its gradients and all else match transformers'" { golden mixtral-aux; }
@test "mixtral-aux in bf16: results differ from PyTorch's only by rounding" { golden mixtral-aux --bf16; }

@test "qwen2-moe-aux in fp32: the auxiliary loss, its gradients and all else match transformers'" {
	golden qwen2-moe-aux
}

@test "ernie4-5-moe-aux in fp32: the auxiliary loss counts the most probable experts, as transformers does" {
	golden ernie4-5-moe-aux
}

@test "gpt-oss-aux in fp32: auxiliary loss and z-loss together match PyTorch's" { golden gpt-oss-aux; }
@test "glm4-moe-z in fp32: the z-loss matches PyTorch's, output_router_logits adds nothing" { golden glm4-moe-z; }

@test "ties, experts without tokens, all tokens to one expert: rows, weights and gradients are as defined" {
	ops experts >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 89 ]
}

# Write one step's losses and gradients of a run with random weights to OUT:
# step_of OUT MODEL "MT-STREAM'S OPTIONS" [DTYPE GRAD]. MODEL: a golden one's name, or the directory of config.json.
# SHAPE: rows and tokens of a row; WORDS: more for stream-drive's step. What mt-store stat then reports: $T/stat
step_of() {
	local model=$2
	[ -d "$model" ] || model=$GOLDEN/$2/model
	stream-drive make "$RUN" "$model" "${4:-fp32}" "${5:-fp32}" 1024 7
	spawn stream mt-stream "$RUN" --chunk-tokens "${CHUNK:-48}" --head-tokens 40 --verbose $3
	local pid=$PID
	stream-drive step "$RUN" ${SHAPE:-5 24} 1 1 3 ${WORDS:-} 3>&- | sort >"$T/$1"
	[ "${PIPESTATUS[0]}" = 0 ]
	mt-store stat "$RUN" --json >"$T/stat"
	end "$pid"
	grep -q loss "$T/$1"
	mt-store rm "$RUN"
}

# bats test_tags=slow
@test "threads, recompute and the order of operations change no bit of a mixture of experts" {
	for model in qwen2-moe glm4-moe gpt-oss gpt-oss-aux; do
		step_of one $model "--threads 1 --recompute none"
		step_of three $model "--threads 3 --recompute full"
		cmp "$T/one" "$T/three"
		for seed in 1 2 3 4; do
			step_of chaos $model "--device chaos:$seed"
			cmp "$T/one" "$T/chaos"
		done
	done
}

# The first step of MODEL in a run of DTYPE: loss and norm in $T/DTYPE.metrics, gradients in $T/DTYPE.grads.
# first_step MODEL DTYPE ARGS [MT-STREAM'S OPTIONS]
first_step() {
	make_run "$1" --dtype "$2"
	start_stages --compute fp32 "${@:4}"
	mt-step "$RUN" $(cat "$3/args") --until 1 <"$3/data.bin" 2>"$T/step.err" | cut -d, -f1-3 >"$T/$2.metrics"
	ckpt-dump "$RUN" grads "$T/$2.grads"
	mt-store rm "$RUN" --force
}

# bats test_tags=slow
@test "routers with corrections are exact in bf16 runs: loss and gradients have the bits of an fp32 run" {
	local c options
	for c in glm4-moe-bias ernie4-5-moe ernie4-5-moe-aux; do
		python3 "$TOP/tests/lib/truncate.py" "$GOLDEN/$c/model" "$T/$c"
		first_step "$T/$c" fp32 "$GOLDEN/$c"
		for DEVICE in cpu chaos:1 chaos:2; do
			options="--recompute none"
			[ $DEVICE = cpu ] || options="--recompute full --expert-window ${DEVICE#*:}"
			first_step "$T/$c" bf16 "$GOLDEN/$c" $options
			cmp "$T/fp32.metrics" "$T/bf16.metrics"
			cmp "$T/fp32.grads" "$T/bf16.grads"
		done
	done
}

# The same bits from a MODEL's experts all at once and by windows. Chunks of two rows, of a row in two pieces
windows_change_no_bit() { # MODEL DTYPE
	for CHUNK in 48 20; do
		step_of whole "$1" "--expert-window 99" "$2" "$2"
		no grep -q "windows of" "$T/stream.err"
		step_of one "$1" "--expert-window 1 --recompute none" "$2" "$2"
		grep -q "windows of 1 expert" "$T/stream.err"
		step_of two "$1" "--expert-window 2 --recompute full --threads 3" "$2" "$2"
		grep -q "windows of 2 experts" "$T/stream.err"
		step_of chaos "$1" "--expert-window 3 --device chaos:$CHUNK" "$2" "$2"
		grep -q "windows of 3 experts" "$T/stream.err"
		cmp "$T/whole" "$T/one"
		cmp "$T/whole" "$T/two"
		cmp "$T/whole" "$T/chaos"
	done
}

# bats test_tags=nightly
@test "windows of experts change no bit: one tensor an expert, and shared experts" {
	for model in mixtral qwen2-moe glm4-moe mixtral-aux; do
		windows_change_no_bit $model fp32
		windows_change_no_bit $model bf16
	done
}

# bats test_tags=slow
@test "windows of experts change no bit: one tensor of all experts, transposed with biases or not" {
	for model in gpt-oss granitemoe; do
		windows_change_no_bit $model fp32
		windows_change_no_bit $model bf16
	done
}

# bats test_tags=slow
@test "windows of experts change no bit where gradients of one window fill several pieces" {
	for model in qwen2-moe gpt-oss; do
		mkdir "$T/$model"
		sed -E 's/("(moe_)?intermediate_size": )[0-9]+/\1300/' "$GOLDEN/$model/model/config.json" \
			>"$T/$model/config.json"
		windows_change_no_bit "$T/$model" bf16
	done
}

# bats test_tags=slow
@test "windows of experts change no bit of an evaluation, nor of passes or --grad none, which have no windows" {
	step_of whole mixtral "--expert-window 4 --pass-rows 2"
	step_of window mixtral "--expert-window 1 --pass-rows 2"
	no grep -q "windows of" "$T/stream.err"
	cmp "$T/whole" "$T/window"
	step_of whole mixtral "--expert-window 4" bf16 none
	step_of window mixtral "--expert-window 1" bf16 none
	no grep -q "windows of" "$T/stream.err"
	cmp "$T/whole" "$T/window"
	WORDS=eval step_of whole qwen2-moe "--expert-window 5"
	WORDS=eval step_of window qwen2-moe "--expert-window 2"
	grep -q "eval: .* windows of 2 experts" "$T/stream.err"
	cmp "$T/whole" "$T/window"
}

# The most that a stage has counted so far, of the step before
counted() { # COUNTER
	python3 -c 'import json, sys
stages = json.load(open(sys.argv[1]))["stages"]
stages = stages.values() if isinstance(stages, dict) else stages
print(max(s["counters"].get(sys.argv[2], 0) for s in stages))' "$T/stat" "$1"
}

# bats test_tags=slow
@test "by windows, experts without tokens are not fetched" {
	# two tokens with three experts each: at least three of nine experts of the one layer have none
	SHAPE="1 2" step_of whole glm4-moe "--expert-window 9" bf16 bf16
	whole=$(counted bytes_in)
	for window in 1 2 4; do
		SHAPE="1 2" step_of window glm4-moe "--expert-window $window" bf16 bf16
		cmp "$T/whole" "$T/window"
		# an expert has slabs of 192 and 128 elements, and would come for each direction
		[ $((whole - $(counted bytes_in))) -ge $((3 * 320 * 2 * 2)) ]
		SHAPE="1 2" step_of chaos glm4-moe "--expert-window $window --device chaos:$window" bf16 bf16
		cmp "$T/whole" "$T/chaos"
	done
}

# bats test_tags=slow
@test "by windows, gradients of experts without tokens are sent as zeros, not as bytes" {
	mkdir "$T/m"
	sed -E 's/("moe_intermediate_size": )[0-9]+/\13000/' "$GOLDEN/glm4-moe/model/config.json" >"$T/m/config.json"
	# as above: at least three of nine experts have no token
	for type in fp32 bf16; do
		SHAPE="1 2" step_of whole "$T/m" "--expert-window 99" $type $type
		whole=$(counted bytes_out)
		for device in cpu chaos:5; do
			SHAPE="1 2" step_of window "$T/m" "--expert-window 2 --device $device" $type $type
			cmp "$T/whole" "$T/window"
			[ "$(counted bytes_out)" -lt $((whole * 3 / 4)) ]
		done
	done
}

@test "with too little device memory for a layer of experts the stream takes windows, with the same bits" {
	mkdir "$T/m"
	sed -E 's/("moe_intermediate_size": )[0-9]+/\13000/' "$GOLDEN/qwen2-moe/model/config.json" >"$T/m/config.json"
	step_of plenty "$T/m" "--device-memory 64M" bf16 bf16
	no grep -q "windows of" "$T/stream.err"
	step_of tight "$T/m" "--device-memory 8M" bf16 bf16
	grep -q "windows of [1-4] experts\?;" "$T/stream.err"
	cmp "$T/plenty" "$T/tight"
}

@test "a model trained by windows of experts has the weights of one trained with whole layers" {
	for window in 9 2; do
		make_run "$GOLDEN/glm4-moe/model" --dtype fp32
		start_stages --expert-window $window
		mt-step "$RUN" $(cat "$GOLDEN/glm4-moe/args") <"$GOLDEN/glm4-moe/data.bin" >/dev/null 2>"$T/step.err"
		mt-ckpt export "$RUN" "$T/after-$window" --dtype fp32
		end "$STREAM" "$OPTIM"
		mt-store rm "$RUN"
	done
	cmp "$T/after-9/model.safetensors" "$T/after-2/model.safetensors"
}

@test "--plan says how many parameters a token uses" {
	mt-stream --plan --config "$GOLDEN/mixtral/model" --profile h200 --micro 2 --seq 24 --json >"$T/plan"
	# two of four experts, three matrices of 12 x 16 each, are idle in each of two layers
	python3 -c 'import json, sys
p = json.load(open(sys.argv[1]))
assert p["params"] - p["active_params"] == 2 * 2 * 3 * 12 * 16, p' "$T/plan"
	mt-stream --plan --config "$GOLDEN/mixtral/model" --profile h200 --micro 2 --seq 24 | grep -q ' G active), 2 blocks'
}

@test "contradictory numbers of experts are refused" {
	cp -r "$GOLDEN/mixtral/model" "$T/m"
	sed 's/"num_local_experts": 4/"num_local_experts": 4, "num_experts": 5/' "$GOLDEN/mixtral/model/config.json" \
		>"$T/m/config.json"
	fails_with 78 mt-store create "$RUN" --config "$T/m"
	grep -q 'disagree' "$T/fails.err"
	sed 's/"num_experts_per_tok": 2/"num_experts_per_tok": 5/' "$GOLDEN/mixtral/model/config.json" >"$T/m/config.json"
	fails_with 78 mt-store create "$RUN" --config "$T/m"
	grep -q 'num_experts_per_tok 5 is more than num_local_experts 4' "$T/fails.err"
}

@test "exported, a mixture of experts loads again with the same bits" {
	for model in mixtral granitemoe gpt-oss; do
		make_run "$GOLDEN/$model/model" --dtype bf16
		mt-ckpt export "$RUN" "$T/$model" --dtype fp32
		python3 - "$GOLDEN/$model/model" "$T/$model" "$GOLDEN" <<-'PYTHON'
			import sys
			sys.path.insert(0, sys.argv.pop())
			from records import read_safetensors
			a, b = (read_safetensors(d + "/model.safetensors") for d in sys.argv[1:])
			assert a == b, set(a) ^ set(b)
		PYTHON
		mt-store rm "$RUN" --force
	done
}

@test "router_jitter_noise is refused unless it is 0" {
	mkdir "$T/m"
	for noise in 0.0 null 0.01; do
		sed "s/\"router_jitter_noise\": 0.0/\"router_jitter_noise\": $noise/" "$GOLDEN/mixtral/model/config.json" \
			>"$T/m/config.json"
		if [ $noise = 0.01 ]; then
			fails_with 78 mt-store create "$RUN" --config "$T/m"
			grep -q 'router_jitter_noise 0.01 is not supported' "$T/fails.err"
		else
			mt-store create "$RUN" --config "$T/m" 2>/dev/null
			mt-store rm "$RUN"
		fi
	done
}

# ---- terms of the loss: the auxiliary loss and the z-loss

@test "router_aux_loss_coef: missing and null are the family's default, and negative ones are refused" {
	local m=$GOLDEN/qwen2-moe-aux/model key='"router_aux_loss_coef": 0.05'
	cp -r "$m" "$T/m"
	for value in "$key" '"router_aux_loss_coef": 0.001' '"router_aux_loss_coef": null' '"unknown": 0'; do
		sed "s/$key/$value/" "$m/config.json" >"$T/m/config.json"
		stream-drive make "$RUN" "$T/m" fp32 fp32 1024 7
		spawn stream mt-stream "$RUN" --threads 1
		stream-drive step "$RUN" 2 24 1 1 3 3>&- | sort >"$T/${value//[^a-z0-9]/}"
		end "$PID"
		mt-store rm "$RUN"
	done
	grep -q 'aux loss 0x1' "$T/unknown0"
	cmp "$T/unknown0" "$T/routerauxlosscoef0001"
	cmp "$T/unknown0" "$T/routerauxlosscoefnull"
	no cmp -s "$T/unknown0" "$T/routerauxlosscoef005"
	for key in router_aux_loss_coef router_z_loss_coef; do
		sed "s/\"router_aux_loss_coef\": 0.05/\"$key\": -1/" "$m/config.json" >"$T/m/config.json"
		fails_with 78 mt-store create "$RUN" --config "$T/m"
		grep -q "$key -1 is out of range" "$T/fails.err"
	done
}

@test "a loss that balances experts allows no passes: none are planned, and requested ones exit 78" {
	local plan="mt-stream --plan --profile h200 --seq 512 --micro"
	$plan 256 --device-memory 180M --config "$GOLDEN/mixtral/model" | grep -q 'order  *pass-major'
	$plan 256 --device-memory 180M --config "$GOLDEN/mixtral-aux/model" | grep -q 'order  *layer-major'
	plan="$plan 8"
	$plan --config "$GOLDEN/glm4-moe-z/model" --pass-rows 4 | grep -q 'order  *pass-major: 4 rows'
	fails_with 78 $plan --config "$GOLDEN/mixtral-aux/model" --pass-rows 4
	grep -q 'passes of 4 rows: .* needs all 8 rows' "$T/fails.err"
	$plan --config "$GOLDEN/mixtral-aux/model" --pass-rows 8 >/dev/null
}

@test "several mt-streams give the same auxiliary loss and z-loss" {
	local case=$GOLDEN/gpt-oss-aux
	for streams in 1 3; do
		make_run "$case/model" --dtype fp32
		spawn optim mt-optim "$RUN"
		for ((i = 0; i < streams; i++)); do spawn "stream$i" mt-stream "$RUN" --threads 1; done
		eventually sh -c "[ \$(mt-store stat $RUN | grep -c '^mt-stream [0-9]') = $streams ]"
		mt-step "$RUN" --steps 4 --batch 3 --micro 1 --seq 20 --lr 1e-3 <"$case/data.bin" |
			timeless >"$T/$streams"
		[ "${PIPESTATUS[0]}" = 0 ]
		mt-store rm "$RUN" --force
	done
	[ "$(grep -c '"skipped": false, "aux_loss": [0-9.]*, "z_loss": [0-9.]*}$' "$T/1")" = 4 ]
	cmp "$T/1" "$T/3"
}

@test "an optimizer that does not write the terms of the loss: they are null, and the run goes on" {
	need_atomic
	make_run "$GOLDEN/mixtral-aux/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn sgd "$TOP/tests/examples/sgd.py" "$RUN"
	mt-step "$RUN" --steps 2 --batch 2 --seq 20 --lr 0.1 <"$GOLDEN/mixtral-aux/data.bin" >"$T/metrics"
	[ "$(grep -c '"loss": [0-9.]*, .*"aux_loss": null}$' "$T/metrics")" = 2 ]
}

@test "the operations of both terms: values as defined, gradients as finite differences, no bit depends on threads" {
	ops balance >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 14 ]
}

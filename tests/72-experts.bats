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

@test "ernie4-5-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden ernie4-5-moe; }
@test "ernie4-5-moe in bf16: results differ from PyTorch's only by rounding" { golden ernie4-5-moe --bf16; }

@test "gpt-oss in fp32: losses, norms, gradients and weights match PyTorch's" { golden gpt-oss; }
@test "gpt-oss in bf16: results differ from PyTorch's only by rounding" { golden gpt-oss --bf16; }

@test "ties, experts without tokens, all tokens to one expert: rows, weights and gradients are as defined" {
	experts >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" = 21 ]
}

# Write one step's losses and gradients of a run with random weights to OUT: step_of OUT MODEL "MT-STREAM'S OPTIONS"
step_of() {
	stream-drive make "$RUN" "$GOLDEN/$2/model" fp32 fp32 1024 7
	# shellcheck disable=SC2086
	spawn stream mt-stream "$RUN" --chunk-tokens 48 --head-tokens 40 $3
	local pid=$PID
	stream-drive step "$RUN" 5 24 1 1 3 3>&- | sort >"$T/$1"
	[ "${PIPESTATUS[0]}" = 0 ]
	kill "$pid"
	wait "$pid"
	grep -q loss "$T/$1"
	mt-store rm "$RUN"
}

@test "threads, recompute and the order of operations change no bit of a mixture of experts" {
	for model in qwen2-moe glm4-moe gpt-oss; do
		step_of one $model "--threads 1 --recompute none"
		step_of three $model "--threads 3 --recompute full"
		cmp "$T/one" "$T/three"
		for seed in 1 2 3 4; do
			step_of chaos $model "--device chaos:$seed"
			cmp "$T/one" "$T/chaos"
		done
	done
}

@test "--plan says how many parameters a token uses" {
	mt-stream --plan --config "$GOLDEN/mixtral/model" --profile h200 --micro 2 --seq 24 --json >"$T/plan"
	# two of four experts, three matrices of 12 x 16 each, are idle in each of two layers
	python3 -c 'import json, sys
p = json.load(open(sys.argv[1]))
assert p["params"] - p["active_params"] == 2 * 2 * 3 * 12 * 16, p' "$T/plan"
	mt-stream --plan --config "$GOLDEN/mixtral/model" --profile h200 --micro 2 --seq 24 | grep -q ' G active), 2 blocks'
}

@test "a balancing term of the loss is refused, and so are contradictory numbers of experts" {
	cp -r "$GOLDEN/mixtral/model" "$T/m"
	sed -i 's/"output_router_logits": false/"output_router_logits": true/' "$T/m/config.json"
	fails_with 78 mt-store create "$RUN" --config "$T/m"
	grep -q output_router_logits "$T/fails.err"
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

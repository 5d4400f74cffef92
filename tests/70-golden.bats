# 20 steps of AdamW compared with PyTorch and transformers, for every family and both dialects of config.json.
# tests/golden/compare.py has the bounds and their reasons.
load helpers

# Step 1 runs alone first, because g then has its gradients; the same command continues to step 20.
golden() { # CASE [--bf16]
	local case=$GOLDEN/$1 dtype=fp32 eval=()
	[ "${2:-}" = --bf16 ] && dtype=bf16
	[ -e "$case/eval.bin" ] && eval=(--eval "$case/eval.bin" --eval-every 10)
	make_run "$case/model" --dtype "$dtype"
	start_stages
	# shellcheck disable=SC2046
	mt-step "$RUN" $(cat "$case/args") --until 1 "${eval[@]}" <"$case/data.bin" >"$T/first" 2>"$T/step.err"
	ckpt-dump "$RUN" grads "$T/grad1.safetensors"
	mt-step "$RUN" $(cat "$case/args") "${eval[@]}" <"$case/data.bin" >"$T/rest" 2>>"$T/step.err"
	mt-ckpt export "$RUN" "$T/final" --dtype fp32
	cat "$T/first" "$T/rest" >"$T/metrics"
	if [ "$dtype" = bf16 ] && [ ! -e "$case/final.bf16.safetensors" ]; then
		python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --bf16
	else
		python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --grad1 "$T/grad1.safetensors" --final "$T/final" \
			${2:-}
	fi
}

@test "llama2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama2; }
# bats test_tags=slow
@test "llama2 in bf16: results differ from PyTorch's only by rounding" { golden llama2 --bf16; }

@test "llama3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama3; }
@test "llama3 in bf16: results differ from PyTorch's only by rounding" { golden llama3 --bf16; }

# bats test_tags=slow
@test "llama3-v4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama3-v4; }
# bats test_tags=slow
@test "llama3-v4 in bf16: results differ from PyTorch's only by rounding" { golden llama3-v4 --bf16; }

@test "llama-bias in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama-bias; }
# bats test_tags=slow
@test "llama-bias in bf16: results differ from PyTorch's only by rounding" { golden llama-bias --bf16; }

# bats test_tags=slow
@test "llama-linear in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama-linear; }
# bats test_tags=slow
@test "llama-linear in bf16: results differ from PyTorch's only by rounding" { golden llama-linear --bf16; }

# bats test_tags=slow
@test "qwen2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen2; }
# bats test_tags=slow
@test "qwen2 in bf16: results differ from PyTorch's only by rounding" { golden qwen2 --bf16; }

@test "qwen2-window in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen2-window; }
# bats test_tags=slow
@test "qwen2-window in bf16: results differ from PyTorch's only by rounding" { golden qwen2-window --bf16; }

@test "qwen3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3; }
# bats test_tags=slow
@test "qwen3 in bf16: results differ from PyTorch's only by rounding" { golden qwen3 --bf16; }

# bats test_tags=slow
@test "qwen3-v4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-v4; }
# bats test_tags=slow
@test "qwen3-v4 in bf16: results differ from PyTorch's only by rounding" { golden qwen3-v4 --bf16; }

@test "mistral in fp32: losses, norms, gradients and weights match PyTorch's" { golden mistral; }
# bats test_tags=slow
@test "mistral in bf16: results differ from PyTorch's only by rounding" { golden mistral --bf16; }

# bats test_tags=slow
@test "mistral-v4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden mistral-v4; }
# bats test_tags=slow
@test "mistral-v4 in bf16: results differ from PyTorch's only by rounding" { golden mistral-v4 --bf16; }

# bats test_tags=slow
@test "transformers computes the loss of mt on an exported model" {
	need_torch
	for c in llama3 qwen3; do
		RUN=$(mt_run_name "$c")
		local case=$GOLDEN/$c
		make_run "$case/model" --dtype fp32
		start_stages
		# shellcheck disable=SC2046
		mt-step "$RUN" $(cat "$case/args") --eval "$case/eval.bin" --eval-every 10 \
			<"$case/data.bin" >"$T/metrics" 2>"$T/step.err"
		mt-ckpt export "$RUN" "$T/$c"
		loss=$(python3 -c 'import json, sys; print([json.loads(l) for l in open(sys.argv[1])][-1]["eval_loss"])' \
			"$T/metrics")
		with_torch "$GOLDEN/logits.py" "$T/$c" "$case/eval.bin" "$loss" \
			--seq "$(awk '{ for (i = 1; i < NF; i++) if ($i == "--seq") print $(i + 1) }' "$case/args")"
		mt-store rm "$RUN" --force
	done
}

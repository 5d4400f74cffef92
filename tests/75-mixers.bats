# Layers that combine tokens otherwise than by softmax attention alone: gated DeltaNet, gates on attention's output,
# short convolutions, Mamba 1, Mamba 2, also beside attention; attention inside spans of a document; and those whose q,
# k and v are made of latents (MLA).
# tests/golden/compare.py has the bounds and their reasons.
load helpers
load lib/golden

MIXERS="qwen3-5 qwen3-5-moe qwen3-next lfm2 lfm2-bias lfm2-moe deepseek-v2 deepseek-v3 moonlight glm4-moe-lite
	granite-hybrid granite-hybrid-moe nemotron-h nemotron-h-moe mamba falcon-mamba jamba falcon-h1 falcon-h1-norm afmoe
	gemma4-moe
	deepseek-v2-groups llama4-chunks llama4-plain gemma4-e kimi-linear"
RARE="olmo-hybrid lara-mini bamba mamba2"

@test "qwen3-5 in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-5; }
@test "qwen3-5 in bf16: results differ from PyTorch's only by rounding" { golden qwen3-5 --bf16; }
@test "qwen3-5-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-5-moe; }
@test "qwen3-5-moe in bf16: results differ from PyTorch's only by rounding" { golden qwen3-5-moe --bf16; }
@test "qwen3-next in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-next; }
@test "qwen3-next in bf16: results differ from PyTorch's only by rounding" { golden qwen3-next --bf16; }
@test "lfm2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden lfm2; }
@test "lfm2 in bf16: results differ from PyTorch's only by rounding" { golden lfm2 --bf16; }
@test "lfm2-bias in fp32: losses, norms, gradients and weights match PyTorch's" { golden lfm2-bias; }
@test "lfm2-bias in bf16: results differ from PyTorch's only by rounding" { golden lfm2-bias --bf16; }
@test "lfm2-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden lfm2-moe; }
@test "lfm2-moe in bf16: results differ from PyTorch's only by rounding" { golden lfm2-moe --bf16; }

@test "deepseek-v3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden deepseek-v3; }
@test "deepseek-v3 in bf16: results differ from PyTorch's only by rounding" { golden deepseek-v3 --bf16; }
@test "kimi-linear in fp32: losses, norms, gradients and weights match PyTorch's" { golden kimi-linear; }
@test "kimi-linear in bf16: results differ from PyTorch's only by rounding" { golden kimi-linear --bf16; }
@test "deepseek-v2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden deepseek-v2; }
@test "deepseek-v2 in bf16: results differ from PyTorch's only by rounding" { golden deepseek-v2 --bf16; }
@test "deepseek-v2-groups in fp32: losses, norms, gradients and weights match PyTorch's" { golden deepseek-v2-groups; }
@test "deepseek-v2-groups in bf16: results differ from PyTorch's only by rounding" { golden deepseek-v2-groups --bf16; }
@test "moonlight in fp32: losses, norms, gradients and weights match PyTorch's" { golden moonlight; }
@test "moonlight in bf16: results differ from PyTorch's only by rounding" { golden moonlight --bf16; }
@test "glm4-moe-lite in fp32: losses, norms, gradients and weights match PyTorch's" { golden glm4-moe-lite; }
@test "glm4-moe-lite in bf16: results differ from PyTorch's only by rounding" { golden glm4-moe-lite --bf16; }

@test "granite-hybrid in fp32: losses, norms, gradients and weights match PyTorch's" { golden granite-hybrid; }
@test "granite-hybrid in bf16: results differ from PyTorch's only by rounding" { golden granite-hybrid --bf16; }
@test "granite-hybrid-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden granite-hybrid-moe; }
@test "granite-hybrid-moe in bf16: results differ from PyTorch's only by rounding" { golden granite-hybrid-moe --bf16; }
@test "nemotron-h in fp32: losses, norms, gradients and weights match PyTorch's" { golden nemotron-h; }
# bats test_tags=slow
@test "nemotron-h in bf16: results differ from PyTorch's only by rounding" { golden nemotron-h --bf16; }
@test "nemotron-h-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden nemotron-h-moe; }
@test "nemotron-h-moe in bf16: results differ from PyTorch's only by rounding" { golden nemotron-h-moe --bf16; }
@test "mamba in fp32: losses, norms, gradients and weights match PyTorch's" { golden mamba; }
@test "mamba in bf16: results differ from PyTorch's only by rounding" { golden mamba --bf16; }
@test "falcon-mamba in fp32: losses, norms, gradients and weights match PyTorch's" { golden falcon-mamba; }
@test "falcon-mamba in bf16: results differ from PyTorch's only by rounding" { golden falcon-mamba --bf16; }
@test "jamba in fp32: losses, norms, gradients and weights match PyTorch's" { golden jamba; }
@test "jamba in bf16: results differ from PyTorch's only by rounding" { golden jamba --bf16; }
@test "falcon-h1 in fp32: losses, norms, gradients and weights match PyTorch's" { golden falcon-h1; }
@test "falcon-h1 in bf16: results differ from PyTorch's only by rounding" { golden falcon-h1 --bf16; }
@test "falcon-h1-norm in fp32: losses, norms, gradients and weights match PyTorch's" { golden falcon-h1-norm; }
@test "falcon-h1-norm in bf16: results differ from PyTorch's only by rounding" { golden falcon-h1-norm --bf16; }
@test "llama4-chunks in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama4-chunks; }
@test "llama4-chunks in bf16: results differ from PyTorch's only by rounding" { golden llama4-chunks --bf16; }
@test "llama4-plain in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama4-plain; }
@test "llama4-plain in bf16: results differ from PyTorch's only by rounding" { golden llama4-plain --bf16; }
@test "afmoe in fp32: losses, norms, gradients and weights match PyTorch's" { golden afmoe; }
@test "afmoe in bf16: results differ from PyTorch's only by rounding" { golden afmoe --bf16; }
@test "gemma4-moe in fp32: losses, norms, gradients and weights match PyTorch's" { golden gemma4-moe; }
@test "gemma4-moe in bf16: results differ from PyTorch's only by rounding" { golden gemma4-moe --bf16; }
@test "gemma4-e in fp32: losses, norms, gradients and weights match PyTorch's" { golden gemma4-e; }
@test "gemma4-e in bf16: results differ from PyTorch's only by rounding" { golden gemma4-e --bf16; }

# bats test_tags=slow
@test "rarer mixers in fp32 and bf16: losses, norms, gradients and weights match PyTorch's" {
	goldens $(some 3 $RARE)
}

# bats test_tags=slow
@test "models with other mixers are exported as they were loaded: names, shapes, values, and the same geometry" {
	same_export $MIXERS $RARE
}

# bats test_tags=slow
@test "transformers computes the loss of mt on exported models with other mixers" {
	need_torch
	for c in $(some 6 $MIXERS $RARE); do
		loss_on "$GOLDEN/$c/data.bin" "$c" --until 2 --eval-every 2
	done
	transformers_agrees
}

# bats test_tags=slow
@test "threads, recompute levels and delays of the chaos device change no bit of other mixers" {
	for c in $(some 3 $MIXERS $RARE); do
		two_steps one $c "--device cpu --threads 1 --recompute none"
		for options in "cpu --recompute full" "cpu --recompute none --threads 3" "chaos:5 --recompute none" \
			"chaos:6 --recompute full" chaos:7 chaos:8 chaos:9; do
			two_steps second $c "--device $options"
			cmp "$T/one" "$T/second"
		done
	done
}

# bats test_tags=slow
@test "windows of experts change no bit of layers with other mixers" {
	for c in qwen3-5-moe qwen3-next lfm2-moe deepseek-v2 glm4-moe-lite granite-hybrid-moe nemotron-h-moe afmoe \
		gemma4-moe llama4-chunks llama4-plain kimi-linear jamba; do
		two_steps whole $c "--expert-window 99 --threads 1"
		two_steps one $c "--expert-window 1 --recompute none"
		cmp "$T/whole" "$T/one"
		two_steps two $c "--expert-window 2 --recompute full --threads 3"
		cmp "$T/whole" "$T/two"
		two_steps chaos $c "--expert-window 3 --device chaos:4"
		cmp "$T/whole" "$T/chaos"
	done
}

# The loss of CASE on RECORDS, and their tokens that are predicted. Weights stay as they are: the learning rate is 0.
loss_alone() {
	step=$((${step:-0} + 1))
	mt-step "$RUN" $(with "$(cat "$GOLDEN/$1/args")" --lr 0 --wd 0 --seq 250 --warmup 0 --steps 11 --batch 1 \
		--micro 1) --until $step --eval "$2" --eval-every $step <"$GOLDEN/$1/data.bin" 2>"$T/step.err" | tail -1 |
		sed 's/.*"eval_loss": \([^,}]*\).*/\1/'
}

# bats test_tags=slow
@test "packed documents do not see each other: their loss is that of each alone, in any order" {
	tokens() { python3 "$TOP/tests/lib/tokens.py" "$@"; }
	for c in $(some 3 qwen3-5 qwen3-next lfm2 moonlight granite-hybrid nemotron-h falcon-mamba falcon-h1 llama4-chunks \
		llama4-plain kimi-linear $RARE); do
		step=0
		make_run "$GOLDEN/$c/model" --dtype fp32
		start_stages
		lengths="2 63 64 65 130 3 200 128"
		true >"$T/alone"
		for n in $lengths; do
			tokens prompts "$T/$n.rec" "$n" 53 "$n"
			loss=$(loss_alone $c "$T/$n.rec")
			step=$((step + 1))
			echo "$loss $((n - 1))" >>"$T/alone"
		done
		for order in "2 63 64 65 130 3 200 128" "200 130 128 65 64 63 3 2" "128 3 65 2 200 64 130 63"; do
			(cd "$T" && cat $(printf '%s.rec ' $order)) >"$T/all.rec"
			loss=$(loss_alone $c "$T/all.rec")
			step=$((step + 1))
			python3 - "$T/alone" "$loss" <<-'END'
				import sys
				each = [tuple(map(float, line.split())) for line in open(sys.argv[1])]
				mean = sum(loss * n for loss, n in each) / sum(n for _, n in each)
				assert abs(mean - float(sys.argv[2])) <= 1e-8 * mean, (mean, sys.argv[2])
			END
		done
		mt-store rm "$RUN" --force
	done
}

# bats test_tags=slow
@test "mt-sample continues a document of other mixers as a pass over all of it does" {
	tokens() { python3 "$TOP/tests/lib/tokens.py" "$@"; }
	for case in $(some 3 qwen3-5 qwen3-next lfm2 lfm2-bias deepseek-v3 moonlight granite-hybrid nemotron-h \
		falcon-mamba jamba falcon-h1 falcon-h1-norm llama4-chunks llama4-plain kimi-linear $RARE); do
		make_run "$GOLDEN/$case/model" --dtype bf16
		tokens prompts "$T/p" 1 53 1 63 64 120 600 1500
		mt-sample "$RUN" --compute fp32 --temperature 0 --max-tokens 70 --stop none --logits "$T/l" <"$T/p" >"$T/o"
		tokens prefixes "$T/prefixes" "$T/p" "$T/o"
		mt-sample "$RUN" --compute fp32 --temperature 0 --max-tokens 1 --logits "$T/l2" <"$T/prefixes" >"$T/o2"
		tokens close "$T/l" "$T/l2" 53
		mt-store rm "$RUN"
	done
}

# bats test_tags=nightly
@test "Qwen3.5 to Falcon-H1 have their sizes, and plans for an H200, also of several nodes" {
	for m in "qwen3.5-9b 8.95" "qwen3.5-27b 26.90" "qwen3.5-35b-a3b 34.66" "qwen3-next-80b 79.67" \
		"glm-4.7-flash 29.94" "granite-4.0-h-small 32.21" "nemotron-3-nano-30b 31.58" "nemotron-nano-9b-v2 8.89" \
		"gemma-4-26b-a4b 25.23" "gemma-4-e2b 4.63" "gemma-4-e4b 7.46" "trinity-mini 26.12" \
		"falcon-h1-7b 7.59" "falcon-h1-34b 33.64" "llama-4-scout 107.77" "falcon-mamba-7b 7.27" "jamba-v0.1 51.57" \
		"mamba-codestral-7b 7.29"; do
		for more in "" "--nodes 2 --net 50" "--device-memory 24G --state int8"; do
			mt-plan --config "$TOP/tests/configs/${m% *}.json" --profile H200 --seq 8192 --batch 8 --grad bf16 \
				--host-memory 4000G $more --json >"$T/plan"
			python3 - "$T/plan" "${m#* }" <<-'END'
				import json, sys
				p = json.load(open(sys.argv[1]))
				assert round(p["params"] / 1e9, 2) == float(sys.argv[2]), p["params"]
				assert p["least_bytes"] <= p["peak_bytes"] <= p["memory"]
			END
		done
	done
}

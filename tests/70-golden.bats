# 20 steps of AdamW compared with PyTorch and transformers, for every family and both dialects of config.json.
# tests/golden/compare.py has the bounds and their reasons.
load helpers
load lib/golden

@test "llama2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama2; }
# bats test_tags=slow
@test "llama2 in bf16: results differ from PyTorch's only by rounding" { golden llama2 --bf16; }
@test "llama3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama3; }
@test "llama3 in bf16: results differ from PyTorch's only by rounding" { golden llama3 --bf16; }

@test "llama3 by Lion in fp32: losses, norms, gradients and weights match the paper's algorithm in PyTorch" {
	golden llama3 --optim lion
}

@test "llama3 by SGD in fp32: losses, norms, gradients and weights match torch.optim.SGD's" {
	golden llama3 --optim sgd
}

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
@test "gemma2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden gemma2; }
@test "gemma2 in bf16: results differ from PyTorch's only by rounding" { golden gemma2 --bf16; }
@test "gemma3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden gemma3; }
@test "gemma3 in bf16: results differ from PyTorch's only by rounding" { golden gemma3 --bf16; }
@test "gemma4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden gemma4; }
@test "gemma4 in bf16: results differ from PyTorch's only by rounding" { golden gemma4 --bf16; }
@test "glm4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden glm4; }
@test "glm4 in bf16: results differ from PyTorch's only by rounding" { golden glm4 --bf16; }
@test "olmo2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden olmo2; }
@test "olmo2 in bf16: results differ from PyTorch's only by rounding" { golden olmo2 --bf16; }
@test "olmo3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden olmo3; }
@test "olmo3 in bf16: results differ from PyTorch's only by rounding" { golden olmo3 --bf16; }
@test "exaone4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden exaone4; }
@test "exaone4 in bf16: results differ from PyTorch's only by rounding" { golden exaone4 --bf16; }
@test "phi3-mini in fp32: losses, norms, gradients and weights match PyTorch's" { golden phi3-mini; }
@test "phi3-mini in bf16: results differ from PyTorch's only by rounding" { golden phi3-mini --bf16; }
@test "phi3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden phi3; }
@test "phi3 in bf16: results differ from PyTorch's only by rounding" { golden phi3 --bf16; }
@test "smollm3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden smollm3; }
@test "smollm3 in bf16: results differ from PyTorch's only by rounding" { golden smollm3 --bf16; }
@test "seed-oss in fp32: losses, norms, gradients and weights match PyTorch's" { golden seed-oss; }
@test "seed-oss in bf16: results differ from PyTorch's only by rounding" { golden seed-oss --bf16; }
@test "ministral3 in fp32: losses, norms, gradients and weights match PyTorch's" { golden ministral3; }
@test "ministral3 in bf16: results differ from PyTorch's only by rounding" { golden ministral3 --bf16; }
@test "llama-yarn in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama-yarn; }
@test "llama-yarn in bf16: results differ from PyTorch's only by rounding" { golden llama-yarn --bf16; }
@test "llama-dynamic in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama-dynamic; }
@test "llama-dynamic in bf16: results differ from PyTorch's only by rounding" { golden llama-dynamic --bf16; }
@test "llama-longrope in fp32: losses, norms, gradients and weights match PyTorch's" { golden llama-longrope; }
@test "llama-longrope in bf16: results differ from PyTorch's only by rounding" { golden llama-longrope --bf16; }

@test "config.json in the form of transformers 4 and in that of 5 give the same geometry" {
	for other in "$GOLDEN"/*/config.other.json; do
		store-layout "${other%/*}/model" >"$T/one"
		store-layout "$other" >"$T/other"
		diff "$T/one" "$T/other" || { echo "$other" >&2; return 1; }
	done
}

# bats test_tags=slow
@test "each family's model is exported as it was loaded: names, shapes, values and geometry" {
	same_export gemma2 gemma3 gemma4 glm4 olmo2 olmo3 exaone4 phi3-mini smollm3 seed-oss ministral3
}

# bats test_tags=slow
@test "transformers computes the loss of mt on an exported model" {
	need_torch
	for c in llama3 qwen3 gemma4 phi3-mini ministral3; do
		loss_on "$GOLDEN/$c/eval.bin" "$c" --eval-every 10
	done
	transformers_agrees
}

# Families whose blocks differ from llama's in norms, MLP, factors or the layout of their tensors

@test "granite in fp32: losses, norms, gradients and weights match PyTorch's" { golden granite; }
@test "hyperclovax in fp32: losses, norms, gradients and weights match PyTorch's" { golden hyperclovax; }
@test "hyperclovax in bf16: results differ from PyTorch's only by rounding" { golden hyperclovax --bf16; }
@test "cohere2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden cohere2; }
@test "cohere2 in bf16: results differ from PyTorch's only by rounding" { golden cohere2 --bf16; }
@test "cohere2-v4 in fp32: losses, norms, gradients and weights match PyTorch's" { golden cohere2-v4; }
@test "cohere in fp32: losses, norms, gradients and weights match PyTorch's" { golden cohere; }
@test "phi in fp32: losses, norms, gradients and weights match PyTorch's" { golden phi; }
@test "phi in bf16: results differ from PyTorch's only by rounding" { golden phi --bf16; }
@test "gemma in fp32: losses, norms, gradients and weights match PyTorch's" { golden gemma; }
@test "glm in fp32: losses, norms, gradients and weights match PyTorch's" { golden glm; }
@test "exaone in fp32: losses, norms, gradients and weights match PyTorch's" { golden exaone; }
@test "starcoder2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden starcoder2; }
@test "stablelm in fp32: losses, norms, gradients and weights match PyTorch's" { golden stablelm; }
@test "stablelm-parallel in fp32: losses, norms, gradients and weights match PyTorch's" { golden stablelm-parallel; }
@test "nemotron in fp32: losses, norms, gradients and weights match PyTorch's" { golden nemotron; }
@test "jais2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden jais2; }
@test "jais2 in bf16: results differ from PyTorch's only by rounding" { golden jais2 --bf16; }
@test "arcee in fp32: losses, norms, gradients and weights match PyTorch's" { golden arcee; }
@test "apertus in fp32: losses, norms, gradients and weights match PyTorch's" { golden apertus; }
@test "apertus in bf16: results differ from PyTorch's only by rounding" { golden apertus --bf16; }
@test "ernie4_5 in fp32: losses, norms, gradients and weights match PyTorch's" { golden ernie4_5; }
@test "helium in fp32: losses, norms, gradients and weights match PyTorch's" { golden helium; }
@test "hunyuan in fp32: losses, norms, gradients and weights match PyTorch's" { golden hunyuan; }
@test "olmo in fp32: losses, norms, gradients and weights match PyTorch's" { golden olmo; }
@test "olmo-tied in fp32: losses, norms, gradients and weights match PyTorch's" { golden olmo-tied; }
@test "olmo-tied in bf16: results differ from PyTorch's only by rounding" { golden olmo-tied --bf16; }
@test "falcon in fp32: losses, norms, gradients and weights match PyTorch's" { golden falcon; }
@test "falcon-40b in fp32: losses, norms, gradients and weights match PyTorch's" { golden falcon-40b; }
@test "falcon-40b in bf16: results differ from PyTorch's only by rounding" { golden falcon-40b --bf16; }
@test "falcon-sequential in fp32: losses, norms, gradients and weights match PyTorch's" { golden falcon-sequential; }
@test "neox in fp32: losses, norms, gradients and weights match PyTorch's" { golden neox; }
@test "neox in bf16: results differ from PyTorch's only by rounding" { golden neox --bf16; }
@test "neox-sequential in fp32: losses, norms, gradients and weights match PyTorch's" { golden neox-sequential; }
@test "gpt2 in fp32: losses, norms, gradients and weights match PyTorch's" { golden gpt2; }
@test "gpt2 in bf16: results differ from PyTorch's only by rounding" { golden gpt2 --bf16; }
@test "gpt-bigcode in fp32: losses, norms, gradients and weights match PyTorch's" { golden gpt-bigcode; }
@test "gpt-bigcode-heads in fp32: losses, norms, gradients and weights match PyTorch's" { golden gpt-bigcode-heads; }
@test "opt in fp32: losses, norms, gradients and weights match PyTorch's" { golden opt; }
@test "opt in bf16: results differ from PyTorch's only by rounding" { golden opt --bf16; }
@test "opt-plain in fp32: losses, norms, gradients and weights match PyTorch's" { golden opt-plain; }

MORE="granite cohere2 cohere2-v4 cohere phi gemma glm starcoder2 stablelm stablelm-parallel nemotron arcee apertus \
	ernie4_5 helium hunyuan olmo olmo-tied falcon falcon-40b falcon-sequential neox neox-sequential exaone minimax-m2 \
	dots1 solar-open exaone-moe sarvam-moe gpt2 gpt-bigcode gpt-bigcode-heads opt opt-plain hyperclovax jais2"
RARE="internlm3 iquestcoder cwm ministral vaultgemma falcon-alibi mpt bloom xglm ctrl openai-gpt neox-japanese \
	gptj codegen gpt-neo biogpt youtu minicpm3 sarvam-mla deepseek-v32 glm-moe-dsa granite-swa granitemoeshared \
	granitemoe-swa flex-olmo mellum hy-v3 hunyuan-moe aria-text flint nanochat bitnet gemma3n"

# bats test_tags=slow
@test "rarer families in fp32 and bf16: losses, norms, gradients and weights match PyTorch's" {
	goldens $(some 3 $RARE)
}

@test "rope_parameters by type of layer are exported as they are, also where all layers are of one type" {
	python3 - "$GOLDEN/gemma4/model/config.json" "$T/config.json" <<-'EOF'
		import json, sys
		config = json.load(open(sys.argv[1]))
		config["layer_types"] = ["full_attention"] * len(config["layer_types"])
		json.dump(config, open(sys.argv[2], "w"))
	EOF
	mt-store create "$RUN" --config "$T/config.json" 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	mt-ckpt export "$RUN" "$T/out" 2>/dev/null
	python3 - "$T/config.json" "$T/out/config.json" <<-'EOF'
		import json, sys
		before, after = (json.load(open(path)) for path in sys.argv[1:])
		for key in ("rope_parameters", "rope_scaling", "rope_theta"):
		    assert before.get(key) == after.get(key), (key, after.get(key))
	EOF
}

# bats test_tags=slow
@test "these families' models are exported as they were loaded: names, shapes, values, and the same geometry" {
	same_export $MORE $RARE
}

@test "falcon-40b: a checkpoint's arrays have the rows of its files, and load to the same state" {
	make_run "$GOLDEN/falcon-40b/model" --dtype bf16
	start_stages
	mt-step "$RUN" $(cat "$GOLDEN/falcon-40b/args") --until 1 <"$GOLDEN/falcon-40b/data.bin" >"$T/step" 2>"$T/step.err"
	ckpt-dump "$RUN" grads "$T/grad1.safetensors"
	mt-ckpt save "$RUN" "$T/saved"
	# Adam's m after one step is the clipped gradient times 1 - beta1
	python3 - "$GOLDEN" "$T" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from records import read_safetensors
		m, g = (read_safetensors(sys.argv[2] + name) for name in ("/saved/optim-m.safetensors", "/grad1.safetensors"))
		assert set(m) == set(g)
		name = "transformer.h.1.self_attention.query_key_value"
		x, y = max(((a, b) for a, b in zip(m[name + ".weight"][2], g[name + ".weight"][2])), key=lambda p: abs(p[1]))
		for n in g:
		    assert all(abs(a - b * x / y) <= 1e-5 * abs(a) + 1e-9 for a, b in zip(m[n][2], g[n][2])), n
	END
	mt-store create "$(mt_run_name b)" --config "$T/saved" --dtype bf16 2>"$T/create.err"
	mt-ckpt load "$(mt_run_name b)" "$T/saved" 2>"$T/load.err"
	arrays "$RUN" >"$T/before"
	arrays "$(mt_run_name b)" | diff "$T/before" -
}

@test "olmo-tied: its last unit has no tensors; with --grad none too, a checkpoint loads to the same state" {
	local grad
	for grad in fp32 bf16 none; do
		RUN=$(mt_run_name "$grad")
		make_run "$GOLDEN/olmo-tied/model" --dtype bf16 --grad $grad
		start_stages
		mt-step "$RUN" $(with "$(cat "$GOLDEN/olmo-tied/args")" --clip 0) --until 3 <"$GOLDEN/olmo-tied/data.bin" \
			>"$T/step" 2>"$T/step.err"
		mt-ckpt save "$RUN" "$T/$grad"
		mt-store create "$(mt_run_name b)" --config "$T/$grad" --dtype bf16 2>"$T/create.err"
		mt-ckpt load "$(mt_run_name b)" "$T/$grad" 2>"$T/load.err"
		arrays "$RUN" >"$T/before"
		grep -q '^unit 3 m ' "$T/before"
		arrays "$(mt_run_name b)" | diff "$T/before" -
		mt-store rm "$(mt_run_name b)"
		mt-store rm "$RUN" --force
	done
}

@test "a file whose xIELU has other constants exits 78 and is named" {
	cp -r "$GOLDEN/apertus/model" "$T/in"
	python3 "$TOP/tests/lib/mksafetensors.py" edit "$T/in/model.safetensors" '
t = h["model.layers.1.mlp.act_fn.beta"]["data_offsets"][0]
d[t:t + 4] = struct.pack("<f", 0.25)'
	mt-store create "$RUN" --config "$T/in" 2>"$T/create.err"
	fails_with 78 mt-ckpt load "$RUN" "$T/in"
	grep -q "tensor 'model.layers.1.mlp.act_fn.beta': 0.25 is not supported, only 0.5" "$T/fails.err"
}

# bats test_tags=slow
@test "recompute, threads and delays of the chaos device do not change the bits of these families' states" {
	for c in granite cohere2 apertus falcon-40b olmo-tied gpt2 opt; do
		two_steps one $c "--device cpu --recompute full"
		for options in "cpu --recompute none --threads 3" "chaos:5 --recompute none" "chaos:6 --recompute full"; do
			two_steps second $c "--device $options"
			cmp "$T/one" "$T/second"
		done
	done
}

# bats test_tags=slow
@test "transformers computes the loss of mt on these families' exported models" {
	need_torch
	for c in $(some 6 $MORE $RARE); do
		loss_on "$GOLDEN/$c/data.bin" "$c" --until 2 --eval-every 2
	done
	transformers_agrees
}

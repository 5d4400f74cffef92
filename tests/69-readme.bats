# The fine-tuning path of the README, word for word, from JSON lines to transformers' generate, with a model made here.
# bats file_tags=slow
load helpers

# Print the Nth indented block of the README's section (default: of fine-tuning), without its indentation
block() { # N [TITLE]
	awk -v want="$1" -v title="## ${2:-Fine-tune a chat model}" '
		/^## / { on = $0 == title }
		!on { next }
		/^    / { if (!in_block) { in_block = 1; n++ } if (n == want) print substr($0, 5); next }
		/^$/ { next }
		{ in_block = 0 }' "$TOP/README.md"
}

# Print the file of options in block 3, and the line that trains with OPTION, or with none: training [OPTION]
training() {
	block 3 | sed -n '/^cat /,/^END$/p'
	block 3 | sed 's/ *#.*//' | grep -x -- "bin/mt-run --args chats.args${1:+ $1}"
}

make_model() { # DIR: a small qwen2 with a tokenizer that speaks ChatML
	with_torch - "$1" <<-'PY'
		import sys, torch
		from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
		from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
		t = Tokenizer(models.BPE())
		t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
		t.decoder = decoders.ByteLevel()
		t.train_from_iterator(["Who are you? I am a small model."], trainers.BpeTrainer(
		    vocab_size=300, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
		    special_tokens=["<|im_start|>", "<|im_end|>"]))
		fast = PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>", pad_token="<|im_end|>")
		fast.chat_template = (
		    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
		    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
		fast.save_pretrained(sys.argv[1])
		torch.manual_seed(1)
		Qwen2ForCausalLM(Qwen2Config(vocab_size=len(fast), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
		    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2048, tie_word_embeddings=True,
		    eos_token_id=fast.eos_token_id, bos_token_id=None)).save_pretrained(sys.argv[1])
	PY
}

steps_of() { sed -n 's/.*"step": \([0-9]*\),.*/\1/p' "$@"; }

# In the home of someone who has cloned mt and downloaded the README's model
new_user() {
	need_torch
	export HOME=$T
	ln -s "$MT" "$T/bin"
	printf '#!/bin/sh\nexec env OMP_NUM_THREADS=1 PYTHONPATH="%s" "%s" "$@"\n' "$VENV/torch" "$PYTHON" >"$T/python3"
	chmod +x "$T/python3"
	make_model "$T/models/Qwen2.5-0.5B-Instruct"
	cd "$T"
}

@test "the README's fine-tuning path works as written, with Ctrl-C, --resume and generate" {
	new_user
	python3 - >chats.jsonl <<-'PY'
		import json
		for i in range(2500):
		    answer = "I am a small model. " * (10 + i % 23)
		    print(json.dumps({"messages": [{"role": "user", "content": "Who are you?"},
		                                   {"role": "assistant", "content": answer}]}))
	PY
	block 2 >records && training --dry-run >dry-run && training >train && training --resume >resume
	block 4 | sed 1d >ask && block 4 | sed 1q >plot
	grep -q '^bin/mt-tokens ' records
	[ "$(block 3 | grep -c "^bin/mt-run ")" = 3 ]

	PATH=$T:$PATH sh -e records
	sh -e dry-run >report
	grep -q '^steps' report || grep -qi 'steps' report
	[ ! -e out ]

	# Ctrl-C reaches all processes of the terminal
	setsid env --default-signal=INT sh -e train >m 2>story 3>&- &
	local pid=$!
	echo "$pid" >>"$T/pids"
	eventually grep -qs '"step": 2,' out/metrics.jsonl
	kill -INT -- -$pid
	wait $pid || true
	grep -q 'continue with the same command and --resume' story
	[ ! -e out/model ]

	sh -e resume >>m 2>>story
	grep -q 'the model is in out/model' story
	local last
	last=$(steps_of out/metrics.jsonl | tail -1)
	[ "$last" -ge 10 ]
	[ "$(steps_of out/metrics.jsonl | sort -n | uniq -d)" = "" ]
	[ "$(steps_of out/metrics.jsonl | sort -n | tail -n +1 | grep -cv '^0$')" = "$last" ]

	if command -v gnuplot >/dev/null; then
		sh -e plot
		grep -q '<svg' out/metrics.svg
	fi
	PATH=$T:$PATH sh -e ask >answer 2>err || { cat err; return 1; }
	[ -s answer ]
}

@test "the README's commands begin with bin/, and have no comments, which zsh takes for words when they are typed" {
	awk '/^    / { print; next } { print "" }' "$TOP/README.md" | sed "/<<'END'$/,/^    END$/d" >"$T/commands"
	grep -c "^    bin/mt-" "$T/commands"
	no grep -E "^    mt-|&& mt-|[[:space:]]#" "$T/commands"
}

@test "the README's three commands of DPO work as written: pairs, reference, training from a loss of ln 2" {
	new_user
	python3 - >pairs.jsonl <<-'PY'
		import json
		for i in range(420):
		    print(json.dumps({"prompt": [{"role": "user", "content": "Who are you?"}],
		        "chosen": [{"role": "assistant", "content": "I am a small model. " * (20 + i % 5)}],
		        "rejected": [{"role": "assistant", "content": "You are a small model. " * (20 + i % 3)}]}))
	PY
	block 1 "Train on preferences" >commands
	grep -q '^bin/mt-run --score --join ref ' commands
	PATH=$T:$PATH sh -e commands >m 2>story || { cat story; return 1; }
	[ -e dpo/model/model.safetensors ]
	python3 - dpo/metrics.jsonl <<-'PY'
		import json, math, sys
		lines = [json.loads(line) for line in open(sys.argv[1])]
		assert len(lines) > 1, lines
		assert abs(lines[0]["loss"] - math.log(2)) < 1e-3 and abs(lines[0]["margin"]) < 1e-2, lines[0]
		assert all(0 <= l["accuracy"] <= 1 and math.isfinite(l["reward_chosen"]) for l in lines), lines
	PY
}

@test "the README's commands of distillation work as written: a teacher's tokens, training on them to a lower loss" {
	new_user
	mkdir models/Qwen2.5-7B-Instruct
	cp models/*0.5B*/* models/Qwen2.5-7B-Instruct
	with_torch - models/Qwen2.5-7B-Instruct <<-'PY'
		import sys, torch
		from transformers import Qwen2Config, Qwen2ForCausalLM
		torch.manual_seed(2)
		config = Qwen2Config.from_pretrained(sys.argv[1], hidden_size=32, initializer_range=0.3)
		Qwen2ForCausalLM(config).save_pretrained(sys.argv[1])
	PY
	python3 - >chats.jsonl <<-'PY'
		import json
		for i in range(300):
		    answer = "I am a small model. " * (10 + i % 23)
		    print(json.dumps({"messages": [{"role": "user", "content": "Who are you?"},
		                                   {"role": "assistant", "content": answer}]}))
	PY
	{ block 2 | tail -n 1; block 3 | sed -n '/^cat /,/^END$/p'; block 5; } >commands
	sed -i 's/--lr 1e-5/--lr 1e-3/' commands
	grep -q '^bin/mt-run --score --top 64 ' commands
	PATH=$T:$PATH sh -e commands >m 2>story || { cat story; return 1; }
	[ -e kd/model/model.safetensors ]
	python3 - kd/metrics.jsonl <<-'PY'
		import json, sys
		loss = [json.loads(line)["loss"] for line in open(sys.argv[1])]
		assert len(loss) > 2 and 0 < loss[-1] < loss[0], loss
	PY
}

@test "mt-tokens(1)'s recipe makes a model of a GGUF file: mt-tokens reads its tokenizer, mt-ckpt loads its weights" {
	need_torch
	has gguf accelerate || skip "needs gguf and accelerate (make venv)"
	mkdir "$T/there"
	with_torch - "$T/there/small.gguf" "$T/embedding.bin" <<-'PY'
		import gguf, numpy, sys
		from tokenizers import Tokenizer, models, pre_tokenizers, trainers
		t = Tokenizer(models.BPE())
		t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
		t.train_from_iterator(["Who are you? I am a small model."] * 9, trainers.BpeTrainer(
		    vocab_size=280, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
		    special_tokens=["<|im_start|>", "<|im_end|>"]))
		import json
		merges = [" ".join(m) if isinstance(m, list) else m for m in json.loads(t.to_str())["model"]["merges"]]
		vocab = [t.id_to_token(i) for i in range(t.get_vocab_size())]
		w = gguf.GGUFWriter(sys.argv[1], "llama")
		w.add_context_length(128)
		w.add_embedding_length(64)
		w.add_block_count(1)
		w.add_feed_forward_length(128)
		w.add_head_count(2)
		w.add_head_count_kv(1)
		w.add_rope_dimension_count(32)
		w.add_layer_norm_rms_eps(1e-5)
		w.add_vocab_size(len(vocab))
		w.add_tokenizer_model("gpt2")
		w.add_token_list(vocab)
		w.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(vocab) - 2))
		w.add_token_merges(merges)
		w.add_bos_token_id(0)
		w.add_eos_token_id(1)
		w.add_chat_template("{% for m in messages %}"
		                    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
		                    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
		rng = numpy.random.default_rng(1)
		def put(name, *shape):
		    x = rng.standard_normal(shape, dtype=numpy.float32)
		    if len(shape) == 1:
		        w.add_tensor(name, x)
		        return
		    packed = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
		    w.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
		    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
		put("token_embd.weight", len(vocab), 64).tofile(sys.argv[2])
		put("output_norm.weight", 64)
		for name, shape in {"attn_norm": [64], "attn_q": [64, 64], "attn_k": [32, 64], "attn_v": [32, 64],
		                    "attn_output": [64, 64], "ffn_norm": [64], "ffn_gate": [128, 64], "ffn_up": [128, 64],
		                    "ffn_down": [64, 128]}.items():
		    put("blk.0.%s.weight" % name, *shape)
		w.write_header_to_file()
		w.write_kv_data_to_file()
		w.write_tensors_to_file()
		w.close()
	PY
	printf '#!/bin/sh\nexec env PYTHONPATH="%s" "%s" "$@"\n' "$VENV/torch${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" \
		>"$T/python3"
	chmod +x "$T/python3"
	grep -qF '**A model in GGUF**' "$TOP/README.md" # where mt's messages point to
	sed -n '/^python3 - .*\.gguf/,/^END$/p' "$TOP/bin/mt-tokens.1" |
		sed "s|python3 - DIRECTORY FILE.gguf OUT|python3 - $T/there small.gguf $T/made|" >"$T/recipe"
	grep -qF 'directory, gguf_file=file, quantization_config=GgufConfig(' "$T/recipe"
	PATH=$T:$PATH sh -e "$T/recipe" >"$T/recipe.out" 2>"$T/recipe.err"

	echo '{"messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am"}]}' \
		>"$T/chat"
	"$PYTHON" "$MT/mt-tokens" --plain "$T/made" "$T/chat" -o "$T/chat.rec" 2>"$T/err"
	[ "$("$PYTHON" "$MT/mt-tokens" --plain --decode "$T/made" "$T/chat.rec")" = \
		"$(printf '<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\nI am<|im_end|>\n\n')" ]
	mt-store create "$RUN" --config "$T/made" --dtype fp32 2>"$T/err"
	mt-ckpt load "$RUN" "$T/made" 2>"$T/err"
	mt-ckpt export "$RUN" "$T/out" 2>"$T/err"
	"$PYTHON" - "$T/out/model.safetensors" "$T/embedding.bin" <<-'PY'
		import numpy, sys
		from safetensors.numpy import load_file
		embedding = load_file(sys.argv[1])["model.embed_tokens.weight"]
		assert (embedding == numpy.fromfile(sys.argv[2], numpy.float32).reshape(embedding.shape)).all()
	PY
}

# The fine-tuning path of the README, word for word, from JSON lines to transformers' generate, with a model made here.
# bats file_tags=slow
load helpers

# Print the Nth indented block of the README's section, without its indentation
block() {
	awk -v want="$1" '
		/^## / { on = /^## Fine-tune a chat model/ }
		!on { next }
		/^    / { if (!in_block) { in_block = 1; n++ } if (n == want) print substr($0, 5); next }
		/^$/ { next }
		{ in_block = 0 }' "$TOP/README.md"
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

@test "the README's fine-tuning path works as written, with Ctrl-C, --resume and generate" {
	need_torch
	export HOME=$T
	ln -s "$MT" "$T/bin"
	printf '#!/bin/sh\nexec env OMP_NUM_THREADS=1 PYTHONPATH="%s" "%s" "$@"\n' "$VENV/torch" "$PYTHON" >"$T/python3"
	chmod +x "$T/python3"
	make_model "$T/models/Qwen2.5-0.5B-Instruct"
	cd "$T"
	python3 - >chats.jsonl <<-'PY'
		import json
		for i in range(2500):
		    answer = "I am a small model. " * (10 + i % 23)
		    print(json.dumps({"messages": [{"role": "user", "content": "Who are you?"},
		                                   {"role": "assistant", "content": answer}]}))
	PY
	block 1 >script1 && block 2 >script2 && block 3 >script3 && block 4 >script4 && block 5 >script5
	block 6 >script6 && block 7 >script7
	grep -q '^bin/mt-tokens ' script2
	grep -q -- '--dry-run' script3
	no grep -q -- '--dry-run\|--resume' script4
	grep -q -- '--resume' script5

	PATH=$T:$PATH sh -e script2
	sh -e script3 >report
	grep -q '^steps' report || grep -qi 'steps' report
	[ ! -e out ]

	# Ctrl-C reaches all processes of the terminal
	setsid env --default-signal=INT sh -e script4 >m 2>story 3>&- &
	local pid=$!
	echo "$pid" >>"$T/pids"
	eventually grep -qs '"step": 2,' out/metrics.jsonl
	kill -INT -- -$pid
	wait $pid || true
	grep -q 'continue with the same command and --resume' story
	[ ! -e out/model ]

	sh -e script5 >>m 2>>story
	grep -q 'the model is in out/model' story
	local last
	last=$(steps_of out/metrics.jsonl | tail -1)
	[ "$last" -ge 10 ]
	[ "$(steps_of out/metrics.jsonl | sort -n | uniq -d)" = "" ]
	[ "$(steps_of out/metrics.jsonl | sort -n | tail -n +1 | grep -cv '^0$')" = "$last" ]

	if command -v gnuplot >/dev/null; then
		sh -e script6
		grep -q '<svg' out/metrics.svg
	fi
	PATH=$T:$PATH sh -e script7 >answer 2>err || { cat err; return 1; }
	[ -s answer ]
}

# mt-tokens: JSON lines of texts and chats -> records.
# bats file_tags=slow
load helpers

setup_file() {
	export MODELS=$BATS_FILE_TMPDIR
	has transformers jinja2 || return 0
	"$PYTHON" - "$MODELS" <<-'PY'
	import sys
	from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
	from transformers import PreTrainedTokenizerFast
	CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
	          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
	MARKED = ("{{ bos_token }}{% for m in messages %}\n    {%- if m['role'] == 'assistant' %}\n"
	          "        {{- '<|im_start|>assistant\n' }}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}\n"
	          "    {%- else %}\n        {{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}\n    {%- endif %}\n{% endfor %}"
	          "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
	LAST = CHATML.replace("m['content'] +", "('<think></think>' if loop.last and m['role'] == 'assistant' else '') + m['content'] +")
	corpus = ["What is the capital of France? The capital of France is Paris.", "Who are you? I am a small model. naïve — 東京"] * 9 + ["\n\n\nI"] * 50
	for name, template in (("chatml", CHATML), ("marked", MARKED), ("last", LAST), ("eos", CHATML)):
	    t = Tokenizer(models.BPE())
	    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
	    t.decoder = decoders.ByteLevel()
	    t.train_from_iterator(corpus, trainers.BpeTrainer(
	        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
	        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"]))
	    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>" if name == "eos" else "<s> $A",
	                                                     special_tokens=[("<s>", 0), ("</s>", 1)])
	    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>")
	    fast.chat_template = template
	    fast.save_pretrained(sys.argv[1] + "/" + name)
	PY
	cat >"$MODELS/chats.jsonl" <<-'EOF'
	{"messages": [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am a naïve model — 東京."}]}
	{"messages": [{"role": "system", "content": "small"}, {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I"}]}
	EOF
	# the text of a record's stretches that loss is computed on (+) and of the others (-): show MODEL <records
	cat >"$MODELS/show.py" <<-'PY'
	import struct, sys
	from itertools import groupby
	from transformers import AutoTokenizer
	t = AutoTokenizer.from_pretrained(sys.argv[1])
	data = sys.stdin.buffer.read()
	words, at = struct.unpack("<%dI" % (len(data) // 4), data), 0
	while at < len(words):
	    ids = words[at + 1:at + 1 + words[at]]
	    at += 1 + words[at]
	    print(" | ".join(("-" if context else "+") + t.decode([i & 0x7fffffff for i in run], clean_up_tokenization_spaces=False)
	                     for context, run in groupby(ids, lambda i: i >> 31)).replace("\n", "\\n"))
	PY
}

tokens() { "$PYTHON" "$MT/mt-tokens" "$@" 2>"$T/tokens.err"; }
show() { TRANSFORMERS_VERBOSITY=error "$PYTHON" "$MODELS/show.py" "$1"; }

same_as_template() { # MODEL: ids, and masks where the template gives them
	"$PYTHON" - "$MODELS/$1" "$MODELS/chats.jsonl" "$2" <<-'PY'
	import json, struct, sys
	from transformers import AutoTokenizer
	t = AutoTokenizer.from_pretrained(sys.argv[1])
	data = open(sys.argv[3], "rb").read()
	words, at = struct.unpack("<%dI" % (len(data) // 4), data), 0
	for line in open(sys.argv[2]):
	    made = t.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask="marked" in sys.argv[1])
	    got = words[at + 1:at + 1 + words[at]]
	    at += 1 + words[at]
	    assert [i & 0x7fffffff for i in got] == list(made["input_ids"]), (got, made)
	    if "assistant_masks" in made:
	        assert any(made["assistant_masks"])
	        assert [1 - (i >> 31) for i in got] == [int(m) for m in made["assistant_masks"]], (got, made)
	assert at == len(words)
	PY
}

@test "ids of messages are those of apply_chat_template" {
	need_transformers
	tokens "$MODELS/chatml" "$MODELS/chats.jsonl" >"$T/rec"
	same_as_template chatml "$T/rec"
}

@test "masks are those of return_assistant_tokens_mask where the template has {% generation %}" {
	need_transformers
	tokens "$MODELS/marked" "$MODELS/chats.jsonl" >"$T/rec"
	same_as_template marked "$T/rec"
}

@test "without {% generation %} loss is computed on each turn of the assistant, not on its header" {
	need_transformers
	tokens "$MODELS/chatml" "$MODELS/chats.jsonl" >"$T/rec"
	run show "$MODELS/chatml" <"$T/rec"
	[ "${lines[1]}" = '-<|im_start|>system\nsmall<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n | +I<|im_end|>\n' ]
	[[ ${lines[0]} == *'assistant\n | +Paris.<|im_end|>\n | -<|im_start|>user'* ]]
}

@test "a template that renders earlier turns in another way leaves them as context, and says so" {
	need_transformers
	tokens "$MODELS/last" "$MODELS/chats.jsonl" >"$T/rec"
	run show "$MODELS/last" <"$T/rec"
	[[ ${lines[0]} != *+Paris* ]]
	[[ ${lines[0]} == *' | +<think></think>I am a naïve model — 東京.<|im_end|>\n' ]]
	[ "$(wc -l <"$T/tokens.err")" = 1 ]
}

@test "loss is computed on all of a text, with the tokenizer's BOS and EOS at the end" {
	need_transformers
	echo '{"text": "I am a small model."}' | tokens "$MODELS/chatml" >"$T/rec"
	run show "$MODELS/chatml" <"$T/rec"
	[ "$output" = "+<s>I am a small model.</s>" ]
}

@test "of prompt and completion, loss is computed on the completion and EOS" {
	need_transformers
	echo '{"prompt": "Who are you?", "completion": " I am Paris"}' | tokens "$MODELS/chatml" >"$T/rec"
	run show "$MODELS/chatml" <"$T/rec"
	[ "$output" = "-<s>Who are you? | + I am Paris</s>" ]
}

@test "prompt and completion may be messages" {
	need_transformers
	echo '{"prompt": [{"role": "user", "content": "Who?"}], "completion": [{"role": "assistant", "content": "I"}]}' |
		tokens "$MODELS/chatml" >"$T/rec"
	run show "$MODELS/chatml" <"$T/rec"
	[ "$output" = '-<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n | +I<|im_end|>\n' ]
}

@test "a token that spans the end of the template and the answer belongs to the answer" {
	need_transformers
	printf '%s\n' '{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "\n\nI"}]}' >"$T/in"
	for how in "" --plain; do
		tokens $how "$MODELS/chatml" "$T/in" >"$T/rec"
		run show "$MODELS/chatml" <"$T/rec"
		[ "$output" = '-<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant | +\n\n\nI<|im_end|>\n' ]
	done
}

@test "a tokenizer that puts EOS behind a text itself gets no second one" {
	need_transformers
	for how in "" --plain; do
		{ echo '{"text": "Who are"}'; echo '{"prompt": "Who", "completion": " are"}'; } | tokens $how "$MODELS/eos" >"$T/rec"
		run show "$MODELS/eos" <"$T/rec"
		[ "${lines[0]}" = '+<s>Who are</s>' ]
		[ "${lines[1]}" = '-<s>Who | + are</s>' ]
	done
}

@test "tokenizers alone hold to tokenizer_config.json: add_prefix_space, and 78 for a token that only transformers would add" {
	need_transformers
	cp -r "$MODELS/chatml" "$T/model"
	"$PYTHON" - "$T/model/tokenizer_config.json" '{"add_prefix_space": true, "tokenizer_class": "GPT2Tokenizer"}' <<-'PY'
		import json, sys
		c = json.load(open(sys.argv[1])) | json.loads(sys.argv[2])
		json.dump(c, open(sys.argv[1], "w"))
	PY
	echo '{"text": "are"}' | tokens --plain "$T/model" >"$T/rec"
	run show "$MODELS/chatml" <"$T/rec"
	[ "$output" = '+<s> are</s>' ]
	sed -i 's/^{/{"additional_special_tokens": ["<new>"], /' "$T/model/tokenizer_config.json"
	fails_with 78 "$PYTHON" "$MT/mt-tokens" --plain "$T/model"
	grep -q "no token '<new>'" "$T/fails.err"
}

@test "tokenizers and jinja2 alone give what transformers gives" {
	need_transformers
	for model in chatml marked last; do
		{ cat "$MODELS/chats.jsonl"; echo '{"text": "Who"}'; echo '{"prompt": "Who", "completion": "I"}'; } >"$T/in"
		tokens "$MODELS/$model" "$T/in" >"$T/one"
		tokens --plain "$MODELS/$model" "$T/in" >"$T/two"
		cmp "$T/one" "$T/two"
	done
}

@test "a bad line is named with its number: 65" {
	need_transformers
	for bad in '{"text": "a' '[1]' '{"texts": "a"}' '{"text": 3}' '{"messages": []}' '{"messages": [{"content": "x"}]}' \
		'{"prompt": "x"}' '{"messages": [{"role": "user"}]}'; do
		printf '%s\n' '{"text": "fine"}' '' "$bad" >"$T/in"
		code=0
		tokens --plain "$MODELS/chatml" "$T/in" >"$T/rec" || code=$?
		[ "$code" = 65 ] && [ "$(wc -l <"$T/tokens.err")" = 1 ] && grep -q "in: line 3: " "$T/tokens.err" || { echo "$bad: $code"; cat "$T/tokens.err"; return 1; }
	done
}

@test "a reader that has closed ends mt-tokens with 0" {
	need_transformers
	for i in $(seq 20000); do echo '{"text": "What is the capital of France? The capital of France is Paris."}'; done >"$T/in"
	tokens --plain "$MODELS/chatml" "$T/in" | head -c 8 >/dev/null
	[ "${PIPESTATUS[0]}" = 0 ]
}

@test "a stdout that cannot be written is 74" {
	need_transformers
	echo '{"text": "a"}' >"$T/in"
	for out in /dev/full '&-'; do
		code=0
		eval '"$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$T/in" 2>"$T/err" >'"$out" || code=$?
		[ "$code" = 74 ]
		[ "$(wc -l <"$T/err")" = 1 ]
	done
}

@test "a missing model or FILE is 66" {
	need_transformers
	fails_with 66 "$PYTHON" "$MT/mt-tokens" "$T/nowhere"
	fails_with 66 "$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$T/nowhere"
}

@test "without transformers, tokenizers or jinja2 it says what to install: 78" {
	python3 -c 'import tokenizers' 2>/dev/null && skip "this Python has tokenizers"
	fails_with 78 "$MT/mt-tokens" "$T"
	grep -q "pip install transformers" "$T/fails.err"
}

@test "code of the model directory is not run, whatever stands on stdin: 78; --trust-remote-code runs it" {
	need_transformers
	cp -r "$MODELS/chatml" "$T/model"
	printf 'open("%s", "w")\nfrom transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast): pass\n' \
		"$T/ran" >"$T/model/own.py"
	"$PYTHON" - "$T/model/tokenizer_config.json" <<-'PY'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(auto_map={"AutoTokenizer": ["own.Own", None]}, tokenizer_class="Own")
		json.dump(c, open(sys.argv[1], "w"))
	PY
	yes | head -n 1000 >"$T/in"
	code=0
	HF_HOME=$T/home tokens "$T/model" <"$T/in" >"$T/rec" || code=$?
	[ "$code" = 78 ]
	[ ! -e "$T/ran" ]
	[ ! -s "$T/rec" ]
	[ "$(wc -l <"$T/tokens.err")" = 1 ]
	grep -q -- "--trust-remote-code" "$T/tokens.err"
	echo '{"text": "Who are you?"}' | HF_HOME=$T/home tokens --trust-remote-code "$T/model" >"$T/rec"
	[ -e "$T/ran" ]
	run show "$MODELS/chatml" <"$T/rec"
	[ "$output" = "+<s>Who are you?</s>" ]
}

@test "conversations without a turn of the assistant are left out and counted; nothing else is 65" {
	need_transformers
	silent='{"messages": [{"role": "user", "content": "Who?"}]}'
	{ echo "$silent"; cat "$MODELS/chats.jsonl"; echo "$silent"; } | tokens --plain "$MODELS/chatml" >"$T/rec"
	tokens --plain "$MODELS/chatml" "$MODELS/chats.jsonl" | cmp - "$T/rec"
	echo "$silent" >"$T/in"
	{ cat "$T/in" "$MODELS/chats.jsonl"; } >"$T/some"
	tokens --plain "$MODELS/chatml" "$T/some" >"$T/rec"
	[ "$(cat "$T/tokens.err")" = "mt-tokens: 1 of 3 lines are left out: they have no tokens to train on (no assistant turn?)" ]
	code=0
	tokens --plain "$MODELS/chatml" "$T/in" >"$T/rec" || code=$?
	[ "$code" = 65 ]
	[ ! -s "$T/rec" ]
}

@test "mt-tokens with closed fds: no word among the records, a closed stdin is 66; control characters stay off the terminal" {
	need_transformers
	{ cat "$MODELS/chats.jsonl"; echo '{"messages": [{"role": "user", "content": "Who?"}]}'; } >"$T/in"
	"$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$T/in" 2>/dev/null >"$T/want"
	"$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$T/in" <&- 2>&- 3>&- >"$T/rec"
	cmp "$T/want" "$T/rec"
	fails_with 66 sh -c 'exec "$@" <&-' sh "$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml"
	grep -q "stdin: is closed" "$T/fails.err"
	fails_with 66 "$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$(printf '%s/a\033[1m\302\2331m\233b' "$T")"
	grep -qF "/a?[1m?1m?b" "$T/fails.err"
}

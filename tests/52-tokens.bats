# mt-tokens turns JSON lines of texts and chats into records.
load helpers

setup_file() {
	export MODELS=$BATS_FILE_TMPDIR
	has transformers jinja2 || return 0
	serve_tokenizers
	# one JSON object a line; a backslash at a line's end continues it
	cat >"$MODELS/chats.jsonl" <<-EOF
	{"messages": [{"role": "user", "content": "What is the capital of France?"}, \
	{"role": "assistant", "content": "Paris."}, {"role": "user", "content": "Who are you?"}, \
	{"role": "assistant", "content": "I am a naïve model — 東京."}]}
	{"messages": [{"role": "system", "content": "small"}, {"role": "user", "content": "Who?"}, \
	{"role": "assistant", "content": "I"}]}
	EOF
	{ cat "$MODELS/chats.jsonl"; echo '{"text": "Who"}'; echo '{"prompt": "Who", "completion": "I"}'; } \
		>"$MODELS/mixed.jsonl"
	cat >"$MODELS/forms.jsonl" <<-'EOF'
	{"text": "I am a small model."}
	{"prompt": "Who are you?", "completion": " I am Paris"}
	{"prompt": [{"role": "user", "content": "Who?"}], "completion": [{"role": "assistant", "content": "I"}]}
	{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "\n\nI"}]}
	{"messages": [{"role": "assistant", "content": "are"}, {"role": "user", "content": "Who"}]}
	EOF
	"$PYTHON" - "$MODELS" <<-'PY'
	import json, sys
	from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
	from transformers import AutoTokenizer, PreTrainedTokenizerFast
	CHATML = ("{% for m in messages %}"
	          "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
	          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
	MARKED = ("{{ bos_token }}{% for m in messages %}\n    {%- if m['role'] == 'assistant' %}\n"
	          "        {{- '<|im_start|>assistant\n' }}{% generation %}{{ m['content'] + '<|im_end|>' }}"
	          "{% endgeneration %}{{ '\n' }}\n"
	          "    {%- else %}\n        {{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}\n"
	          "    {%- endif %}\n{% endfor %}"
	          "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
	LAST = CHATML.replace(
	    "m['content'] +", "('<think></think>' if loop.last and m['role'] == 'assistant' else '') + m['content'] +")
	corpus = ["What is the capital of France? The capital of France is Paris.",
	          "Who are you? I am a small model. naïve — 東京"] * 9 + ["\n\n\nI"] * 50
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
	# what apply_chat_template makes of the conversations
	for name in "chatml", "marked":
	    t = AutoTokenizer.from_pretrained(sys.argv[1] + "/" + name)
	    with open(sys.argv[1] + "/chats.jsonl") as f:
	        chats = [dict(t.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=True,
	                                            return_assistant_tokens_mask=name == "marked")) for line in f]
	    with open(sys.argv[1] + "/" + name + "/template.json", "w") as f:
	        json.dump(chats, f)
	PY
	while read -r name model lines; do
		"$PYTHON" "$MT/mt-tokens" --transformers "$MODELS/$model" "$MODELS/$lines.jsonl" \
			>"$MODELS/$name.rec" 2>"$MODELS/$name.err"
	done <<-'END'
	chatml chatml mixed
	marked marked mixed
	last last mixed
	forms chatml forms
	eos eos forms
	END
	# Print a record's text, parts with loss marked +, context marked -: show MODEL <records
	cat >"$MODELS/show.py" <<-'PY'
	import struct, sys
	from itertools import groupby
	from tokenizers import Tokenizer    # importing transformers takes seconds, and its decode is this one
	t = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
	data = sys.stdin.buffer.read()
	words, at = struct.unpack("<%dI" % (len(data) // 4), data), 0
	while at < len(words):
	    ids = words[at + 1:at + 1 + words[at]]
	    at += 1 + words[at]
	    parts = []
	    for context, run in groupby(ids, lambda i: i >> 31):
	        text = t.decode([i & 0x7fffffff for i in run], skip_special_tokens=False)
	        parts.append(("-" if context else "+") + text)
	    print(" | ".join(parts).replace("\n", "\\n"))
	PY
}

tokens() { "$PYTHON" "$MT/mt-tokens" "$@" 2>"$T/tokens.err"; }
show() { "$PYTHON" "$MODELS/show.py" "$1"; }

# The records in FILE are those of apply_chat_template, and then OTHERS more: same_as_template MODEL OTHERS FILE
same_as_template() {
	python3 - "$MODELS/$1/template.json" "$2" "$3" <<-'PY'
	import json, struct, sys
	data = open(sys.argv[3], "rb").read()
	words, at = struct.unpack("<%dI" % (len(data) // 4), data), 0
	with open(sys.argv[1]) as f:
	    chats = json.load(f)
	assert len(chats) == 2
	for made in chats:
	    got = words[at + 1:at + 1 + words[at]]
	    at += 1 + words[at]
	    assert [i & 0x7fffffff for i in got] == made["input_ids"], (got, made)
	    if "marked" in sys.argv[1]:
	        assert any(made["assistant_masks"])
	        assert [1 - (i >> 31) for i in got] == made["assistant_masks"], (got, made)
	for _ in range(int(sys.argv[2])):
	    at += 1 + words[at]
	assert at == len(words)
	PY
}

@test "token ids of messages equal those of apply_chat_template" {
	need_transformers
	same_as_template chatml 2 "$MODELS/chatml.rec"
}

@test "loss masks equal return_assistant_tokens_mask if the template has {% generation %}" {
	need_transformers
	same_as_template marked 2 "$MODELS/marked.rec"
}

@test "with {% generation %} a turn that begins with a blank is trained on, and so are those behind it" {
	need_transformers
	cp -r "$MODELS/marked" "$T/neox"        # its tokenizer leaves blanks out of the places of tokens
	python3 - "$T/neox/tokenizer.json" <<-'PY'
		import json, sys
		t = json.load(open(sys.argv[1]))
		blanks = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
		t["post_processor"] = {"type": "Sequence", "processors": [blanks, t["post_processor"]]}
		json.dump(t, open(sys.argv[1], "w"))
	PY
	sed 's/"Paris/" Paris/' "$MODELS/chats.jsonl" >"$T/in"
	local how
	for how in --transformers --plain; do
		tokens $how "$T/neox" "$T/in" >"$T/rec"
		show "$T/neox" <"$T/rec" >"$T/shown"
		grep -qF 'assistant\n | + Paris.<|im_end|> | -' "$T/shown"
		grep -qF ' | +I am a naïve model — 東京.<|im_end|> | -' "$T/shown"
	done
}

@test "without {% generation %} loss is computed on each assistant turn, and not on its header" {
	need_transformers
	run show "$MODELS/chatml" <"$MODELS/chatml.rec"
	local turns='<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n | +I<|im_end|>\n'
	[ "${lines[1]}" = '-<|im_start|>system\nsmall<|im_end|>\n'"$turns" ]
	[[ ${lines[0]} == *'assistant\n | +Paris.<|im_end|>\n | -<|im_start|>user'* ]]
}

@test "turns that the template renders differently when they are the last are trained on as they stand in the text" {
	need_transformers
	run show "$MODELS/last" <"$MODELS/last.rec"
	[[ ${lines[0]} == *'assistant\n | +Paris.<|im_end|>\n | -<|im_start|>user'* ]]
	[[ ${lines[0]} == *' | +<think></think>I am a naïve model — 東京.<|im_end|>\n' ]]
	[ "$(grep -c "context only" "$MODELS/last.err")" = 0 ]
}

# Record N of the forms in setup_file, by transformers: form N
form() { show "$MODELS/chatml" <"$MODELS/forms.rec" | sed -n "$1p"; }

@test "a text is trained on as a whole, with the tokenizer's BOS before it and EOS after it" {
	need_transformers
	[ "$(form 1)" = "+<s>I am a small model.</s>" ]
}

@test "of a prompt and completion, loss is computed on the completion and EOS" {
	need_transformers
	[ "$(form 2)" = "-<s>Who are you? | + I am Paris</s>" ]
}

@test "prompt and completion can be messages" {
	need_transformers
	[ "$(form 3)" = '-<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n | +I<|im_end|>\n' ]
}

@test "if an answer's first token includes the template's end, loss is computed on that token too" {
	need_transformers
	want='-<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant | +\n\n\nI<|im_end|>\n'
	[ "$(form 4)" = "$want" ]
	tokens --plain "$MODELS/chatml" "$MODELS/forms.jsonl" | cmp - "$MODELS/forms.rec"
}

@test "an assistant's turn that comes first: loss is computed on its text, not on the template's header" {
	need_transformers
	[ "$(form 5)" = '-<|im_start|>assistant\n | +are<|im_end|>\n | -<|im_start|>user\nWho<|im_end|>\n' ]
}

@test "--plain shows a template what transformers does: no keys that are null, and all names of the reasoning" {
	need_transformers
	cp -r "$MODELS/chatml" "$T/model"
	printf '%s' '{% for m in messages %}{{ m.role }}{% if m.content is defined %} {{ m.content }}{% endif %}' \
		'{% if m.reasoning_content %} are {{ m.thinking }}{% endif %}{% endfor %}' >"$T/model/chat_template.jinja"
	printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": %s}]}\n' Who null \
		Who '"I"' I '"are", "reasoning": "Who", "thinking": null' >"$T/chats"
	for how in --transformers --plain; do
		tokens $how "$T/model" "$T/chats" >"$T/rec$how"
	done
	cmp "$T/rec--transformers" "$T/rec--plain"
	show "$T/model" <"$T/rec--plain" | grep -q "are are Who"
}

@test "a tokenizer that appends EOS itself gets no second one" {
	need_transformers
	run show "$MODELS/eos" <"$MODELS/eos.rec"
	[ "${lines[0]}" = '+<s>I am a small model.</s>' ]
	[ "${lines[1]}" = '-<s>Who are you? | + I am Paris</s>' ]
	tokens --plain "$MODELS/eos" "$MODELS/forms.jsonl" | cmp - "$MODELS/eos.rec"
}

@test "--no-eos adds no EOS to texts, completions and pairs, also where the tokenizer adds it; their own EOS stays" {
	need_transformers
	printf '%s\n' '{"text": "I am"}' '{"text": "I am</s>"}' '{"text": "I</s>am"}' \
		'{"prompt": "Who", "completion": " I"}' '{"prompt": "Who", "chosen": " I", "rejected": " You"}' \
		'{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I"}]}' >"$T/in"
	local model how
	for model in chatml eos; do
		for how in --plain --transformers; do
			tokens $how --no-eos "$MODELS/$model" "$T/in" >"$T/rec"
			"$PYTHON" "$TOP/tests/lib/chats.py" show "$MODELS/$model" <"$T/rec" >"$T/shown"
			diff - "$T/shown" <<-'EOF'
			[[<s>I am]]
			[[<s>I am</s>]]
			[[<s>I</s>am]]
			<s>Who[[ I]]
			chosen: <s>Who[[ I]]
			rejected: <s>Who[[ You]]
			<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n[[I<|im_end|>\n]]
			EOF
		done
		printf 'I</s>am\nI</s>\n' | tokens --plain --prompts "$MODELS/$model" >"$T/rec"
		run show "$MODELS/$model" <"$T/rec"
		[ "${lines[*]}" = '+<s>I</s>am +<s>I</s>' ]
	done
	echo '{"text": "abc"}' >"$T/in"
	fails_with 64 mt-tokens --bytes --no-eos --prompts "$T/in"
	fails_with 64 mt-tokens --bytes --no-eos --decode "$T/in"
}

# bats test_tags=slow
@test "a template that writes the day: a line says so, and --date fixes it" {
	need_transformers
	cp -r "$MODELS/chatml" "$T/model"
	local day=2024-02-29 how bad
	{ printf '{%% if strftime_now is defined %%}{{ strftime_now("%%Y-%%m-%%d %%H") }}{%% endif %%}'
		cat "$MODELS/chatml/chat_template.jinja"; } >"$T/model/chat_template.jinja"
	for how in --plain --transformers; do
		tokens $how --date $day "$T/model" "$MODELS/chats.jsonl" >"$T/rec$how"
		no grep -q -e --date "$T/tokens.err"
	done
	cmp "$T/rec--plain" "$T/rec--transformers"
	run show "$T/model" <"$T/rec--plain"
	[[ ${lines[1]} == "-$day 00<|im_start|>system"* ]]
	for i in $(seq 300); do cat "$MODELS/chats.jsonl"; done >"$T/many"
	for how in --plain --transformers; do
		tokens $how --jobs 2 "$T/model" "$T/many" >"$T/rec"
		[ "$(grep -c "template writes today's date, .*: --date YYYY-MM-DD fixes it" "$T/tokens.err")" = 1 ]
	done
	tokens --plain "$MODELS/chatml" "$MODELS/chats.jsonl" >"$T/rec"
	no grep -q -e --date "$T/tokens.err"
	echo '{"messages": [{"role": "user", "content": "I am"}]}' >"$T/asks"
	tokens --plain --prompts "$T/model" "$T/asks" >"$T/rec"
	grep -q "template writes today's date, .*: --date" "$T/tokens.err"
	tokens --plain --prompts --date $day "$T/model" "$T/asks" >"$T/rec"
	no grep -q -e --date "$T/tokens.err"
	for bad in 2024-02-30 2024-2-3 29.02.2024 20240229 today ''; do
		fails_with 64 "$PYTHON" "$MT/mt-tokens" --date "$bad" "$T/model" "$T/many"
		grep -q "expected a date, YYYY-MM-DD" "$T/fails.err"
	done
	fails_with 64 mt-tokens --bytes --date $day "$T/many"
	fails_with 64 mt-tokens --decode --date $day "$T/model" "$T/many"
}

@test "tokenizers alone follows tokenizer_config.json: add_prefix_space; a token only transformers adds exits 78" {
	need_transformers
	cp -r "$MODELS/chatml" "$T/model"
	"$PYTHON" - "$T/model/tokenizer_config.json" \
		'{"add_prefix_space": true, "tokenizer_class": "GPT2Tokenizer"}' <<-'PY'
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

@test "tokenizers with jinja2 give the output of transformers" {
	need_transformers
	for model in chatml marked last; do
		tokens --plain "$MODELS/$model" "$MODELS/mixed.jsonl" | cmp - "$MODELS/$model.rec"
	done
}

@test "an invalid line exits 65 and is named by its number" {
	need_transformers
	for bad in '{"text": "a' '[1]' '{"texts": "a"}' '{"text": 3}' '{"messages": []}' \
		'{"messages": [{"content": "x"}]}' \
		'{"prompt": "x"}' '{"messages": [{"role": "user"}]}'; do
		printf '%s\n' '{"text": "fine"}' '' "$bad" >"$T/in"
		code=0
		tokens --plain "$MODELS/chatml" "$T/in" >"$T/rec" || code=$?
		[ "$code" = 65 ] && [ "$(wc -l <"$T/tokens.err")" = 1 ] && grep -q "in: line 3: " "$T/tokens.err" ||
			{ echo "$bad: $code"; cat "$T/tokens.err"; return 1; }
	done
}

@test "half of a surrogate pair in JSON exits 65 and is named, whatever the tokenizer says of it" {
	need_transformers
	local how
	for how in "$MODELS/chatml" "--plain $MODELS/chatml" --bytes; do
		printf '%s\n' '{"text": "whole \ud83d\ude00", "note": "\udfff"}' '{"text": "half \ud83d"}' >"$T/in"
		tokens $how "$T/in" >"$T/rec" && return 1
		[ -s "$T/rec" ]
		grep -qx "mt-tokens: $T/in: line 2: has the escape .ud83d: half of a surrogate pair without the other" \
			"$T/tokens.err"
	done
}

@test "mt-tokens exits 0 when its reader has closed" {
	local PYTHON=$REAL_PYTHON
	need_transformers
	yes '{"text": "What is the capital of France? The capital of France is Paris."}' | head -n 20000 >"$T/in"
	tokens --plain "$MODELS/chatml" "$T/in" | head -c 8 >/dev/null
	[ "${PIPESTATUS[0]}" = 0 ]
}

@test "a stdout that cannot be written exits 74" {
	local PYTHON=$REAL_PYTHON
	need_transformers
	echo '{"text": "a"}' >"$T/in"
	for out in /dev/full '&-'; do
		code=0
		eval '"$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$T/in" 2>"$T/err" >'"$out" || code=$?
		[ "$code" = 74 ]
		[ "$(wc -l <"$T/err")" = 1 ]
	done
}

@test "a missing model or FILE exits 66" {
	local PYTHON=$REAL_PYTHON
	need_transformers
	fails_with 66 "$PYTHON" "$MT/mt-tokens" "$T/nowhere"
	fails_with 66 "$PYTHON" "$MT/mt-tokens" --plain "$MODELS/chatml" "$T/nowhere"
}

@test "without transformers, tokenizers or jinja2 mt-tokens says what to install and exits 78" {
	python3 -c 'import tokenizers' 2>/dev/null && skip "this Python has tokenizers"
	fails_with 78 "$MT/mt-tokens" "$T"
	grep -q "pip install transformers" "$T/fails.err"
}

# bats test_tags=slow
@test "code in the model directory is not run, whatever stdin contains: exit 78; --trust-remote-code runs it" {
	local PYTHON=$REAL_PYTHON
	need_transformers
	cp -r "$MODELS/chatml" "$T/model"
	printf 'open("%s", "w")\nfrom transformers import PreTrainedTokenizerFast\n%s\n' \
		"$T/ran" 'class Own(PreTrainedTokenizerFast): pass' >"$T/model/own.py"
	"$PYTHON" - "$T/model/tokenizer_config.json" <<-'PY'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(auto_map={"AutoTokenizer": ["own.Own", None]}, tokenizer_class="Own")
		json.dump(c, open(sys.argv[1], "w"))
	PY
	yes | head -n 1000 >"$T/in"
	HF_HOME=$T/home exits 78 tokens "$T/model" <"$T/in" >"$T/rec"
	[ ! -e "$T/ran" ]
	[ ! -s "$T/rec" ]
	[ "$(wc -l <"$T/tokens.err")" = 1 ]
	grep -q -- "--trust-remote-code" "$T/tokens.err"
	echo '{"text": "Who are you?"}' | HF_HOME=$T/home tokens --trust-remote-code "$T/model" >"$T/rec"
	[ -e "$T/ran" ]
	run show "$MODELS/chatml" <"$T/rec"
	[ "$output" = "+<s>Who are you?</s>" ]
}

@test "conversations without an assistant turn are skipped and counted; if there are no others it exits 65" {
	need_transformers
	silent='{"messages": [{"role": "user", "content": "Who?"}]}'
	{ echo "$silent"; cat "$MODELS/chats.jsonl"; echo "$silent"; } | tokens --plain "$MODELS/chatml" >"$T/rec"
	tokens --plain "$MODELS/chatml" "$MODELS/chats.jsonl" | cmp - "$T/rec"
	echo "$silent" >"$T/in"
	{ cat "$T/in" "$MODELS/chats.jsonl"; } >"$T/some"
	tokens --plain "$MODELS/chatml" "$T/some" >"$T/rec"
	[ "$(head -n 1 "$T/tokens.err")" = "mt-tokens: 1 of 3 lines is left out: it has no tokens to train on (no \
assistant turn?); the first is $T/some: line 1" ]
	tail -n 1 "$T/tokens.err" | grep -q '^mt-tokens: 2 documents, .*; 1 line skipped$'
	tokens --plain --keep-empty "$MODELS/chatml" "$T/some" >"$T/all"
	grep -q "1 of 3 lines is context only: .* the first is $T/some: line 1" "$T/tokens.err"
	run show "$MODELS/chatml" <"$T/all"
	[ "${#lines[@]}" = 3 ]
	[[ ${lines[0]} == '-<|im_start|>user\nWho?'* ]]
	exits 65 tokens --plain "$MODELS/chatml" "$T/in" >"$T/rec"
	[ ! -s "$T/rec" ]
	tokens --plain --keep-empty "$MODELS/chatml" "$T/in" >"$T/rec"
	[ -s "$T/rec" ]
}

@test "mt-tokens with closed fds writes no message into records; control characters do not reach the terminal" {
	local PYTHON=$REAL_PYTHON
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

# ---- other forms of input

@test "conversations of ShareGPT and instructions of Alpaca give the records of the same messages" {
	need_transformers
	printf '%s\n' >"$T/messages" \
		'{"messages": [{"role": "system", "content": "small"}, {"role": "user", "content": "Who?"},
			{"role": "assistant", "content": "I"}]}' \
		'{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I"}]}' \
		'{"messages": [{"role": "user", "content": "Who?\nYou"}, {"role": "assistant", "content": "I"}]}'
	tr -d '\n\t' <"$T/messages" | sed 's/}{"messages"/}\n{"messages"/g' >"$T/lines"
	tokens "$MODELS/chatml" "$T/lines" >"$T/want"
	printf '{"conversations": [{"from": "system", "value": "small"}, {"from": "human", "value": "Who?"}, %s\n' \
		'{"from": "gpt", "value": "I"}], "id": 7}' >"$T/in"
	printf '%s\n' '{"instruction": "Who?", "input": "", "output": "I"}' \
		'{"instruction": "Who?", "input": "You", "output": "I"}' >>"$T/in"
	tokens "$MODELS/chatml" "$T/in" >"$T/got"
	cmp "$T/want" "$T/got"
	sed -e '1s/{"from": "system", "value": "small"}, //; 1s/"id": 7/"system": "small"/' \
		-e '2s/"input": "", //' "$T/in" | tokens --plain "$MODELS/chatml" >"$T/got"
	cmp "$T/want" "$T/got"
	printf '%s\n' '{"conversations": [{"from": "robot", "value": "x"}]}' >"$T/bad"
	exits 65 tokens --plain "$MODELS/chatml" "$T/bad" >"$T/got"
	grep -q "bad: line 1: a turn is from 'robot'" "$T/tokens.err"
}

@test "without a chat template, instructions are put into Alpaca's prompt, and loss is computed on the output" {
	echo '{"instruction": "Sum", "input": "1 2", "output": "3"}' | "$MT/mt-tokens" --bytes >"$T/rec" 2>"$T/err"
	"$MT/mt-tokens" --decode --bytes "$T/rec" >"$T/text"
	printf 'Below is an instruction that describes a task, paired with an input that provides further context. %s' \
		"Write a response that appropriately completes the request." >"$T/want"
	printf '\n\n### Instruction:\nSum\n\n### Input:\n1 2\n\n### Response:\n3\n' >>"$T/want"
	cmp "$T/want" "$T/text"
	grep -q ' 1 of them trained on; ' "$T/err"
	no grep -q EOS "$T/err"                             # there is no tokenizer
}

documents() { seq -f '{"text": "document %.0f, naïve"}' "$1"; }

# bats test_tags=slow
@test "gzip and zstd files and pipes give the records of the plain lines; damaged ones exit 65" {
	local PYTHON=$REAL_PYTHON
	need_cmd zstd
	documents 600 >"$T/in"
	gzip -k "$T/in"
	{ head -n 300 "$T/in" | zstd -q; tail -n 300 "$T/in" | zstd -q; } >"$T/in.zst"
	"$MT/mt-tokens" --bytes "$T/in" >"$T/want" 2>"$T/err"
	# by the program zstd, and by the module where it is
	mkdir "$T/without"
	echo 'raise ImportError' >"$T/without/zstandard.py"
	for path in "$T/without" ""; do
		for file in "$T/in.gz" "$T/in.zst"; do
			PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} "$PYTHON" "$MT/mt-tokens" --bytes "$file" >"$T/got" 2>"$T/err"
			cmp "$T/want" "$T/got"
			head -c 500 "$file" >"$T/cut"
			PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} exits 65 "$PYTHON" "$MT/mt-tokens" --bytes "$T/cut" \
				>"$T/got" 2>"$T/err"
			grep -q "cut: damaged" "$T/err"
		done
	done
	"$MT/mt-tokens" --bytes <"$T/in.gz" 2>"$T/err" | cmp "$T/want" -
}

@test "a parquet file gives the records of the JSON lines with its rows, and a bad row is named" {
	has pyarrow || skip "needs pyarrow (make venv)"
	documents 600 >"$T/in"
	"$PYTHON" - "$T/in" "$T/in.parquet" <<-'PY'
	import json, sys, pyarrow, pyarrow.parquet
	rows = [json.loads(line) for line in open(sys.argv[1])]
	pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[2])
	rows[298]["text"] = None
	pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[2] + ".bad")
	PY
	"$MT/mt-tokens" --bytes "$T/in" >"$T/want" 2>"$T/err"
	tokens --bytes "$T/in.parquet" >"$T/got"
	cmp "$T/want" "$T/got"
	fails_with_output 65 --bytes "$T/in.parquet.bad"
	grep -q "in.parquet.bad: row 299: has neither" "$T/tokens.err"
	head -c 1000 "$T/in.parquet" >"$T/cut"
	fails_with_output 65 --bytes "$T/cut"
	grep -q "cut: damaged parquet file" "$T/tokens.err"
}

fails_with_output() { # CODE ARGS...: what came before the failure may have been written
	local want=$1
	shift
	exits "$want" tokens "$@" >"$T/failed"
}

# ---- several processes, statistics, terminals

# bats test_tags=slow
@test "any number of --jobs gives the same bytes and messages, also before an invalid line" {
	documents 3000 >"$T/in"
	sed '2900s/.*/{"text": 3}/' "$T/in" >"$T/bad"
	for file in in bad; do
		for jobs in 1 2 7; do
			code=0
			"$MT/mt-tokens" --bytes --jobs $jobs "$T/$file" >"$T/$file.$jobs" 2>"$T/$file.$jobs.err" || code=$?
			echo "$code" >>"$T/$file.$jobs.err"
			cmp "$T/$file.1" "$T/$file.$jobs"
			cmp "$T/$file.1.err" "$T/$file.$jobs.err"
		done
	done
	grep -q "bad: line 2900: 'text' is not a string" "$T/bad.7.err"
	[ "$("$MT/mt-tokens" --decode --bytes "$T/bad.7" | wc -l)" = 2899 ]
	grep -q '^mt-tokens: 3000 documents, .* of them trained on; the longest has 21; 0 lines skipped$' "$T/in.1.err"
}

# bats test_tags=slow
@test "with transformers and with tokenizers, 3 jobs give the bytes of one" {
	need_transformers
	{ cat "$MODELS/chats.jsonl"; echo '{"text": "Who are you?"}'; } >"$T/some"
	for i in $(seq 200); do cat "$T/some"; done >"$T/in"
	for how in --transformers --plain; do
		tokens $how --jobs 1 "$MODELS/last" "$T/in" >"$T/one"
		cp "$T/tokens.err" "$T/one.err"
		PYTHON=$REAL_PYTHON tokens $how --jobs 3 "$MODELS/last" "$T/in" >"$T/three"
		cmp "$T/one" "$T/three"
		cmp "$T/one.err" "$T/tokens.err"
	done
}

@test "statistics count documents, tokens, tokens trained on and the longest document" {
	printf '%s\n' '{"text": "abc"}' '{"prompt": "ab", "completion": "cde"}' '{"text": "x"}' >"$T/in"
	"$MT/mt-tokens" --bytes "$T/in" >"$T/rec" 2>"$T/err"
	[ "$(tail -n 1 "$T/err")" = \
		"mt-tokens: 2 documents, 8 tokens, 5 of them trained on; the longest has 5; 1 line skipped" ]
}

@test "records are not written to a terminal: exit 64" {
	need_terminal
	echo '{"text": "abc"}' >"$T/in"
	exits 64 script -qec "'$MT/mt-tokens' --bytes '$T/in'" /dev/null >"$T/shown" </dev/null
	grep -q "records are binary: redirect stdout" "$T/shown"
}

# ---- records to text

@test "--decode writes the text of records, a document a line or ended by --sep" {
	need_transformers
	{ echo '{"text": "Who are you? naïve — 東京"}'; head -n 1 "$MODELS/chats.jsonl"; } >"$T/in"
	tokens "$MODELS/chatml" "$T/in" >"$T/rec"
	for how in --transformers --plain; do
		tokens $how --decode --sep '\0' "$MODELS/chatml" "$T/rec" | tr '\n\0' '_\n' >"$T/text"
		[ "$(head -n 1 "$T/text")" = '<s>Who are you? naïve — 東京</s>' ]
		[[ $(tail -n 1 "$T/text") == '<|im_start|>user_What is the capital of France?<|im_end|>_<|im_start|>'* ]]
	done
}

# bats test_tags=slow
@test "--prompts makes records of plain lines, with BOS and without EOS; --decode --json writes them as JSON lines" {
	printf 'Who "are"\n\nI am naïve' >"$T/lines"
	printf '%s\n' '{"text": "Who \"are\""}' '{"text": "I am naïve"}' >"$T/want"
	mt-tokens --bytes --prompts "$T/lines" | mt-tokens --bytes --decode --json >"$T/json"
	cmp "$T/want" "$T/json"
	printf '\1\0\0\0\377\0\0\0' | mt-tokens --bytes --decode --json | grep -qxF '{"text": "�"}'
	fails_with 65 mt-tokens --bytes --prompts /dev/null
	printf '\377\n' >"$T/latin"
	fails_with 65 mt-tokens --bytes --prompts "$T/latin"
	fails_with 64 mt-tokens --bytes --json "$T/lines"
	need_transformers
	tokens --prompts "$MODELS/eos" "$T/lines" >"$T/rec"
	tokens --plain --prompts "$MODELS/chatml" "$T/lines" >>"$T/rec"
	run show "$MODELS/eos" <"$T/rec"
	[ "${lines[*]}" = '+<s>Who "are" +<s>I am naïve +<s>Who "are" +<s>I am naïve' ]
}

@test "--decode --bytes needs no package, gives back the bytes, and exits 65 at an id above 255" {
	printf 'one\377\0two' >"$T/a"
	printf 'naïve' >"$T/b"
	mt-feed --bytes "$T/a" "$T/b" >"$T/rec"
	printf '\001\0\0\0\141\0\0\200' >>"$T/rec"         # context only
	{ cat "$T/a"; printf '<>'; cat "$T/b"; printf '<>a<>'; } >"$T/want"
	python3 -IS "$MT/mt-tokens" --decode --bytes --sep '<>' "$T/rec" | cmp "$T/want" -
	printf '\002\0\0\0\141\0\0\0\0\001\0\200' >>"$T/rec"
	exits 65 mt-tokens --decode --bytes --sep '<>' "$T/rec" >"$T/text" 2>"$T/err"
	cmp "$T/want" "$T/text"             # the records before it
	[[ $(cat "$T/err") == "mt-tokens: $T/rec: record 4: id 256 is not a byte: "* ]]
	[ "$(wc -l <"$T/err")" = 1 ]
	head -c 10 "$T/rec" >"$T/cut"
	fails_with 65 mt-tokens --decode --bytes "$T/cut"
	grep -q "record 1: the input ends inside it" "$T/fails.err"
	fails_with 64 mt-tokens --bytes --sep x "$T/rec"
	fails_with 64 mt-tokens
	fails_with 64 mt-tokens --bytes --jobs 0 "$T/rec"
}

# ---- tests/lib/python-server.py

@test "a program that served-python starts ends as it does by itself, and is killed with it" {
	need_transformers
	local python
	for python in "$REAL_PYTHON" served-python; do
		for end in 'sys.exit()' 'sys.exit(3)' 'sys.exit("x")' '1 / 0' 'os.kill(os.getpid(), 15)'; do
			code=0
			(cd "$T" && A=1 PYTHONPATH=/p "$python" - 'a b' '' <<-PY) || code=$?
			import os, sys
			print(sys.argv, os.getcwd(), os.environ["A"], "/p" in sys.path, sys.path[0], __name__, sys.stdin.read())
			print(os.environ.get("TRANSFORMERS_VERBOSITY"), file=sys.stderr)
			print(sorted({"0", "1", "2"} & set(os.listdir("/proc/self/fd"))), file=sys.stderr)
			$end
			PY
			echo "$code"
		done >"$T/${python##*/}" 2>"$T/${python##*/}.all"
		grep -v '^ ' "$T/${python##*/}.all" >"$T/${python##*/}.messages"
	done
	cat "$T/served-python"
	[ "$(grep -cE '^(0|3|1|143)$' "$T/served-python")" = 5 ]
	cmp "$T/${REAL_PYTHON##*/}" "$T/served-python"
	cmp "$T/${REAL_PYTHON##*/}.messages" "$T/served-python.messages"
	echo 'import os, time; print(os.getpid(), flush=True); time.sleep(99)' >"$T/sleeps.py"
	spawn sleeps served-python "$T/sleeps.py"
	eventually test -s "$T/sleeps.out"
	kill -9 "$PID"
	eventually no kill -0 "$(cat "$T/sleeps.out")"
}

# What chats in the forms of people's files are trained on. The forms are those of bin/tokens/README.md.
load helpers

setup_file() {
	export MODELS=$BATS_FILE_TMPDIR
	has transformers jinja2 || return 0
	serve_tokenizers
	"$PYTHON" "$TOP/tests/lib/chats.py" make "$MODELS"
}

setup() {
	T=$BATS_TEST_TMPDIR
	: >"$T/pids"
	need_transformers
}

# Records of the lines on stdin: the template MODEL's text, with trained tokens in [[ ]]; stderr in $T/err. A backslash
# at a line's end continues the line.
chats() { # MODEL [OPTIONS]
	local model=$MODELS/$1 code=0
	shift
	sed -z 's/\\\n//g' >"$T/lines"
	"$PYTHON" "$MT/mt-tokens" "$@" "$model" <"$T/lines" >"$T/rec" 2>"$T/err" || code=$?
	[ $# -gt 0 ] || sed "s|^|${model##*/}\t|" "$T/lines" >>"$MODELS/all"
	[ "$code" = 0 ] || { cat "$T/err"; return "$code"; }
	"$PYTHON" "$TOP/tests/lib/chats.py" show "$model" <"$T/rec"
}
# What the lines on stdin must give, without the framing of `chat` and its like: gives MODEL TEXT...
gives() {
	local model=$1
	shift
	chats "$model" | sed 's/<|start|>\([a-z]*\)\\n/{\1}/g; s/<|end|>\\n/;/g' >"$T/shown"
	printf '%s\n' "$@" | diff - "$T/shown"
}
# The line must exit 65 with one line on stderr that has WORDS: refused MODEL WORDS LINE
refused() {
	local code=0
	echo "$3" | "$PYTHON" "$MT/mt-tokens" "$MODELS/$1" >"$T/rec" 2>"$T/err" || code=$?
	if [ "$code" != 65 ] || [ "$(wc -l <"$T/err")" != 1 ] || ! grep -qF "line 1: $2" "$T/err"; then
		echo "$3: exit $code"
		cat "$T/err"
		return 1
	fi
}
hears() { grep -qE -- "$1" "$T/err" || { cat "$T/err"; return 1; }; }
QA='{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}'

# ---- content

@test "content that is a list of text parts is their text, in every form and role" {
	gives trim '{system}sy;{user}hi;{assistant}[[yo;]]' '{user}hi;{assistant}[[yo;]]' '{user}hi;{assistant}[[yo;]]' \
		'{user}hi;{assistant}[[yo;]]' '{user}q;{assistant};{tool}42;{assistant}[[a;]]' <<-'EOF'
	{"system": ["s", "y"], "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, \
	{"role": "assistant", "content": [{"type": "text", "text": "y", "cache_control": null}, {"text": "o"}]}]}
	{"prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], \
	"completion": [{"role": "assistant", "content": [{"type": "text", "text": "yo"}]}]}
	{"conversations": [{"from": "human", "value": [{"type": "text", "text": "hi"}]}, {"from": "gpt", \
	"value": ["yo"]}]}
	{"messages": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, {"role": "assistant", \
	"content": [{"type": "output_text", "text": "yo"}]}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [], \
	"tool_calls": [{"function": {"name": "f"}}]}, {"role": "tool", "content": [{"type": "text", "text": "4"}, \
	{"type": "text", "text": "2"}]}, {"role": "assistant", "content": "a"}]}
	EOF
}

@test "content that is not text exits 65 and is named by the message: parts of other types, objects, numbers" {
	refused trim "messages 2: content is an object" \
		'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": {"answer": 1}}]}'
	refused trim "messages 1: content is a number" '{"messages": [{"role": "user", "content": 3}]}'
	refused trim "messages 1: content is true or false" '{"messages": [{"role": "user", "content": true}]}'
	refused trim "messages 1: content, part 2 is of type 'image_url'" \
		'{"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url"}]}]}'
	refused trim "messages 1: content, part 1 is not text" \
		'{"messages": [{"role": "user", "content": [{"type": "text", "text": null}]}]}'
	refused trim "conversations 1: content is a number" '{"conversations": [{"from": "human", "value": 3}]}'
	refused trim "completion 1: content is an object" \
		'{"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": {}}]}'
	refused trim "'system' is an object" '{"system": {}, "messages": ['"$QA"']}'
	refused trim "conversations 1 has no value" '{"conversations": [{"from": "human"}, {"from": "gpt", "value": "a"}]}'
}

CALL='"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": null}}}]'

@test "null content beside a tool call is an empty string where the template needs one, and arguments are its text" {
	gives strings '{user}q;{assistant}[[<call>f {"a": null}</call>;]]' \
		'{user}q;{assistant}[[<call>f {"a": null}</call>;]]' <<-EOF
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, $CALL}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", $CALL}]}
	EOF
}

@test "turns that say nothing are counted, and the first one's line is named" {
	chats trim <<-EOF >"$T/shown"
	{"messages": [$QA]}
	{"messages": [{"role": "user"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "r"}, \
	{"role": "assistant", "content": null, "reasoning_content": "t"}]}
	EOF
	hears "^mt-tokens: 2 turns say nothing: .*; the first is in stdin: line 2"
}

# ---- tools

WANT='{system}{"type": "function", "function": {"name": "f"}};{user}q;{assistant}[[<call>{"name": "f", '
WANT+='"arguments": {"a": 3}}</call>;]]'

@test "tools, tool_calls and arguments that are JSON strings are what they hold" {
	gives tools "$WANT" "$WANT" "$WANT" "$WANT" <<-'EOF'
	{"tools": [{"type": "function", "function": {"name": "f"}}], "messages": [{"role": "user", "content": "q"}, \
	{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", \
	"arguments": {"a": 3}}}]}]}
	{"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "messages": [{"role": "user", \
	"content": "q"}, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", \
	"arguments": "{\"a\": 3}"}}]}]}
	{"tools": ["{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"], "messages": [{"role": "user", \
	"content": "q"}, {"role": "assistant", "content": "", "tool_calls": "[{\"function\": {\"name\": \"f\", \
	\"arguments\": {\"a\": 3}}}]"}]}
	{"tools": {"type": "function", "function": {"name": "f"}}, "messages": [{"role": "user", "content": "q"}, \
	{"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{\"a\": 3}"}]}]}
	EOF
}

@test "tools, tool calls and arguments that are no objects or lists exit 65 and are named" {
	local before='{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, '
	for arguments in '"3"' '"\"x\""' '3' '"null"'; do
		refused tools "messages 2: tool_calls: arguments are" \
			"$before"'"tool_calls": [{"function": {"name": "f", "arguments": '"$arguments"'}}]}]}'
	done
	for arguments in '"{"' '""'; do
		refused tools "messages 2: tool_calls: arguments is a string that is not JSON" \
			"$before"'"tool_calls": [{"function": {"name": "f", "arguments": '"$arguments"'}}]}]}'
	done
	refused tools "messages 2: tool_calls has no function with a name" "$before"'"tool_calls": [{"function": {}}]}]}'
	refused tools "messages 2: tool_calls is a number" "$before"'"tool_calls": 3}]}'
	refused tools "'tools' is a string that is not JSON" '{"tools": "f", "messages": ['"$QA"']}'
	refused tools "'tools' is not a list of objects" '{"tools": "[3]", "messages": ['"$QA"']}'
	refused tools "'tools' is not a list of objects" '{"tools": 3, "messages": ['"$QA"']}'
}

@test "nulls that Arrow puts into structs are left out at every depth, in parquet and in JSONL; JSONL's own stay" {
	has pyarrow || skip "needs pyarrow (make venv)"
	sed -z 's/\\\n//g' >"$T/in" <<-'EOF'
	{"tools": [{"type": "function", "function": {"name": "f", \
	"parameters": {"properties": {"city": {"type": "string"}}}}}], "messages": [{"role": "user", "content": "q"}, \
	{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", \
	"arguments": {"in": {"x": 1}, "city": "Oslo"}}}]}]}
	{"tools": [{"type": "function", "function": {"name": "g", \
	"parameters": {"properties": {"day": {"type": "string"}}}}}], "messages": [{"role": "user", "content": "q"}, \
	{"role": "assistant", "content": "a", "tool_calls": [{"type": "function", "function": {"name": "g", \
	"arguments": {"in": {"y": 2}, "day": "Monday"}}}]}]}
	EOF
	"$PYTHON" - "$T/in" "$T/in.parquet" <<-'PY'
	import json, sys, pyarrow, pyarrow.parquet
	rows = [json.loads(line) for line in open(sys.argv[1])]
	pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[2])
	def to_json(name, rows):        # as to_json of datasets
	    with open(sys.argv[1] + name, "w") as f:
	        f.writelines(json.dumps(row) + "\n" for row in pyarrow.Table.from_pylist(rows).to_pylist())
	to_json(".jsonl", rows)
	to_json(".prompts", [{"tools": row["tools"], "prompt": row["messages"][:1], "completion": row["messages"][1:]}
	                     for row in rows])
	# a map of names and values
	a = pyarrow
	call = a.struct([("name", a.string()), ("arguments", a.map_(a.string(), a.string()))])
	message = a.struct([("role", a.string()), ("content", a.string()), ("tool_calls", a.list_(call))])
	row = {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": "3"}}]}]}
	table = a.Table.from_pylist([row], a.schema([("messages", a.list_(message))]))
	pyarrow.parquet.write_table(table, sys.argv[2] + ".map")
	PY
	"$PYTHON" "$MT/mt-tokens" "$MODELS/tools" "$T/in.parquet.map" >"$T/rec" 2>"$T/err"
	"$PYTHON" "$TOP/tests/lib/chats.py" show "$MODELS/tools" <"$T/rec" | grep -qF '"arguments": {"a": "3"}}'
	"$PYTHON" "$MT/mt-tokens" "$MODELS/tools" "$T/in" >"$T/want" 2>"$T/err"
	"$PYTHON" "$MT/mt-tokens" "$MODELS/tools" "$T/in.parquet" 2>"$T/err" | cmp "$T/want" -
	"$PYTHON" "$MT/mt-tokens" "$MODELS/tools" "$T/in.jsonl" 2>"$T/err" | cmp "$T/want" -
	"$PYTHON" "$MT/mt-tokens" "$MODELS/tools" "$T/in.prompts" 2>"$T/err" |
		"$PYTHON" "$TOP/tests/lib/chats.py" show "$MODELS/tools" >"$T/shown"
	"$PYTHON" "$TOP/tests/lib/chats.py" show "$MODELS/tools" <"$T/want" | diff - "$T/shown"
	gives tools '{user}q;{assistant}[[<call>{"name": "f", "arguments": {"a": {"b": [null, {"c": null}]}}}</call>;]]' \
		<<-'EOF'
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, \
	"tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": {\"b\": [null, {\"c\": null}]}}"}}]}]}
	EOF
	gives tools '{system}{"name": "f", "parameters": {"properties": {"a": {"enum": null}}}};{user}q;{assistant}[[a;]]' \
		'{user}q;{assistant}[[<call>{"name": "f", "arguments": {"a": null}}</call>;]]' <<-EOF
	{"tools": [{"name": "f", "parameters": {"properties": {"a": {"enum": null}}}}], "messages": [$QA]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, $CALL}]}
	EOF
}

@test "function_call, functions, and ShareGPT's function_call and observation are tool calls and answers" {
	local want=$WANT'{tool}7;{assistant}[[seven;]]'
	gives tools "$want" "$want" "$want" <<-'EOF'
	{"functions": [{"name": "f"}], "messages": [{"role": "user", "content": "q"}, {"role": "assistant", \
	"content": null, "function_call": {"name": "f", "arguments": "{\"a\": 3}"}}, {"role": "function", \
	"name": "f", "content": "7"}, {"role": "assistant", "content": "seven", "function_call": null}]}
	{"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "conversations": [{"from": "human", \
	"value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": 3}}"}, \
	{"from": "observation", "value": "7"}, {"from": "gpt", "value": "seven"}]}
	{"functions": "[{\"name\": \"f\"}]", "messages": [{"role": "user", "content": "q"}, {"role": "tool_call", \
	"content": "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 3}\"}]"}, {"role": "tool_response", \
	"content": "7"}, {"role": "assistant", "content": "seven"}]}
	EOF
	refused tools "conversations 2: what it calls is a string that is not JSON" \
		'{"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f(3)"}]}'
	refused tools "has both tools and functions" '{"tools": [{}], "functions": [{}], "messages": ['"$QA"']}'
	refused tools "messages 1 has both function_call and tool_calls" \
		'{"messages": [{"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [{"name": "f"}]}]}'
}

# bats test_tags=slow
@test "of named templates tool_use is taken where there are tools, as transformers does; without default it exits 78" {
	{ echo '{"tools": [{"name": "f"}], "messages": ['"$QA"']}'; echo '{"messages": ['"$QA"']}'; } >"$T/in"
	gives named '{system}{"name": "f"};{user}q;{assistant}[[a;]]' '{user}q;{assistant}[[a;]]' <"$T/in"
	# from files, as transformers 5 writes them
	cp -r "$MODELS/named" "$T/named"
	"$PYTHON" - "$T/named" <<-'PY'
	import json, os, sys
	os.chdir(sys.argv[1])
	c = json.load(open("tokenizer_config.json"))
	default, tool_use = (t["template"] for t in c.pop("chat_template"))
	json.dump(c, open("tokenizer_config.json", "w"))
	os.mkdir("additional_chat_templates")
	open("chat_template.jinja", "w").write(default)
	open("additional_chat_templates/tool_use.jinja", "w").write(tool_use)
	PY
	for how in --plain --transformers; do
		"$REAL_PYTHON" "$MT/mt-tokens" $how "$T/named" "$T/in" 2>"$T/err" | cmp "$T/rec" -
	done
	rm "$T/named/chat_template.jinja"
	code=0
	echo '{"messages": ['"$QA"']}' | "$PYTHON" "$MT/mt-tokens" --plain "$T/named" >"$T/rec" 2>"$T/err" || code=$?
	[ "$code" = 78 ]
	hears "no chat template named default, only tool_use"
}

# ---- what stands beside messages

@test "a system key is the first message of every form; two that differ exit 65" {
	local m='{system}s;{user}q;{assistant}[[a;]]'
	gives chat "$m" "$m" "$m" "$m" "$m" "$m" <<-EOF
	{"system": "s", "messages": [$QA]}
	{"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
	{"system": "s", "prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", \
	"content": "a"}]}
	{"system": "s", "instruction": "q", "output": "a"}
	{"system": " s", "messages": [{"role": "system", "content": "s"}, $QA]}
	{"system": "s", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], \
	"completion": [{"role": "assistant", "content": "a"}]}
	EOF
	no hears "not used"
	gives chat 's\n\nq[[a<|end|>]]' 's: q[[a<|end|>]]' <<-'EOF'
	{"system": "s", "prompt": "q", "completion": "a"}
	{"system": "s", "prompt": "s: q", "completion": "a", "tools": "[]"}
	EOF
	refused chat "'system' differs from the system message" \
		'{"system": "t", "messages": [{"role": "system", "content": "s"}, '"$QA"']}'
	refused chat "'system' differs from the system message" \
		'{"system": "t", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}]}'
}

@test "history's pairs are turns before the messages, and chat_template_kwargs are variables of the template" {
	gives thinks '{user}h;{assistant}[[i;]]{user}q;{assistant}[[<think>\n\n</think>\n\na;]]' \
		'{system}s;{user}h;{assistant}i;{user}q;{assistant}[[<think>\n\n</think>\n\na;]]' \
		'{user}q;{assistant}<think>\n\n</think>\n\n[[a;]]' '{user}q;{assistant}<think>\n\n</think>\n\n[[a;]]' <<-EOF
	{"history": [["h", "i"]], "instruction": "q", "input": "", "output": "a"}
	{"history": [["h", "i"]], "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], \
	"completion": [{"role": "assistant", "content": "a"}]}
	{"chat_template_kwargs": {"enable_thinking": false}, "messages": [$QA]}
	{"chat_template_kwargs": "{\"enable_thinking\": false}", "messages": [$QA], "history": []}
	EOF
	refused chat "'history' is not a list of pairs" '{"history": ["h"], "messages": ['"$QA"']}'
	refused chat "has 'history', which needs a chat template" \
		'{"history": [["h", "i"]], "prompt": "q", "completion": "a"}'
	refused chat "'chat_template_kwargs' has 'tokenize'" \
		'{"chat_template_kwargs": {"tokenize": true}, "messages": ['"$QA"']}'
	refused chat "'chat_template_kwargs' is a number" '{"chat_template_kwargs": 3, "messages": ['"$QA"']}'
}

@test "keys that are not used are named once with their counts, in every form" {
	chats chat <<-EOF >"$T/shown"
	{"messages": [$QA], "id": 1, "source": null}
	{"messages": [$QA], "id": 2, "source": "x"}
	{"messages": [$QA], "id": 3, "source": null}
	{"text": "t", "meta": 3, "label": 0, "tools": [], "system": "s"}
	{"prompt": "q", "completion": "a", "score": 1, "label": true, "system": "s", "tools": null}
	{"prompt": "q", "chosen": "a", "rejected": "b", "score": 2}
	EOF
	hears "^mt-tokens: keys that are not used: 'id' \(in 3 lines\), 'source' \(in 1 line\), 'meta' \(in 1 line\), \
'label' \(in 1 line\), 'tools' \(in 1 line\), 'system' \(in 1 line\), 'score' \(in 2 lines\)$"
	for i in $(seq 25); do echo "{\"text\": \"t\", \"key$i\": 1}"; done | chats chat >"$T/shown"
	hears "'key20' \(in 1 line\), and 5 more$"
}

# bats test_tags=slow
@test "what says that an answer is bad exits 65 where it would be trained on all the same" {
	local answer key
	for answer in '"prompt": "q", "completion": "a"' '"text": "t"' \
		'"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]'; do
		for key in '"reward": 0.0' '"advantage": -1' '"advantage": [1, 2]' '"logprobs": [-1, -2, -3]'; do
			refused chat "'$(cut -d'"' -f2 <<<"$key")' is not read here: leave it out, or" "{$answer, $key}"
		done
	done
	for key in 0 '"False"' 0.0; do
		refused chat "'label' says that the completion is bad" '{"prompt": "q", "completion": "a", "label": '"$key"'}'
	done
	gives chat 'chosen: q[[a<|end|>]]' '[[t<|end|>]]' <<-'EOF'
	{"prompt": "q", "completion": "a", "label": true, "reward": null}
	{"text": "t", "label": false, "advantage": null, "logprobs": null}
	EOF
}

@test "a completion with the label true or false is an answer of that side, a record of its own" {
	gives chat 'chosen: q[[a<|end|>]]' 'rejected: q[[a<|end|>]]' 'rejected: {user}q;{assistant}[[a;]]' <<-EOF
	{"prompt": "q", "completion": "a", "label": true}
	{"prompt": "q", "completion": "a", "label": false}
	{"label": false, "prompt": [{"role": "user", "content": "q"}], \\
	"completion": [{"role": "assistant", "content": "a"}]}
	EOF
	hears '^mt-tokens: 3 documents, '
	no hears 'not used|with a prompt'      # an answer is in a row as a whole
	refused chat "has a weight, and a label" '{"prompt": "q", "completion": "a", "label": true, "weight": 0.5}'
	# without tokens to train on it is left out, also with --keep-empty
	chats chat --keep-empty <<<'{"prompt": "q", "completion": [], "label": true}' >"$T/shown" || [ ! -s "$T/rec" ]
}

@test "forms of other programs exit 65, and the filter of jq in the message makes lines that are read" {
	need_cmd jq
	# The line exits 65, and what the message's filter makes of it gives the records of WANT: filtered LINE WANT
	filtered() {
		refused chat "has neither text nor messages" "$1"
		echo "$1" | jq -c "$(sed "s/.*jq -c '\(.*\)' FILE.*/\1/" "$T/err")" >"$T/made"
		echo "$2" | "$PYTHON" "$MT/mt-tokens" "$MODELS/chat" >"$T/want" 2>"$T/want.err"
		"$PYTHON" "$MT/mt-tokens" "$MODELS/chat" "$T/made" 2>"$T/err" | cmp "$T/want" -
	}
	filtered '{"input_ids": [65, 66, 67], "labels": [-100, 66, 67], "attention_mask": [1, 1, 1]}' \
		'{"ids": [65, 66, 67], "trained": [false, true, true]}'
	filtered '{"input_ids": [65, 66, 67], "attention_mask": [1, 1, 1]}' '{"ids": [65, 66, 67]}'
	local pair='"preferred_output": [{"role": "assistant", "content": "a"}], '
	pair+='"non_preferred_output": [{"role": "assistant", "content": "b"}]'
	filtered '{"input": {"messages": [{"role": "user", "content": "q"}], "tools": []}, '"$pair}" \
		'{"prompt": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"}'
	filtered '{"id": "x", "conversation": ['"$QA"']}' '{"messages": ['"$QA"']}'
	refused chat "has 'prompt' without 'completion'; its keys: prompt, response" '{"prompt": "q", "response": "a"}'
	refused chat "has 'completion' without 'prompt'; its keys: question, completion" \
		'{"question": "q", "completion": "a"}'
	gives chat '[[t<|end|>]]' '{user}q;{assistant}[[a;]]' <<-EOF
	{"prompt": null, "text": "t"}
	{"messages": [$QA], "text": null, "ids": null, "instruction": null}
	EOF
}

# ---- turns that are not to be trained on

@test "turns that say that they are not to be trained on are context, by any of the keys and in every form" {
	local key want='{user}q;{assistant}BAD;{user}r;{assistant}[[good;]]' n=0
	for key in '"weight": 0' '"weight": 0.0' '"weight": "0"' '"train": false' '"loss": false' '"trainable": false' \
		'"mask": true' '"masked": true' '"loss_mask": 0' '"weight": 1, "train": false'; do
		echo '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "BAD", '"$key"'},
			{"role": "user", "content": "r", "weight": 0}, {"role": "assistant", "content": "good", "weight": 1}]}' |
			tr -d '\n'
		echo
	done >"$T/in"
	echo '{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "BAD", "weight": 0},' \
		'{"from": "human", "value": "r"}, {"from": "gpt", "value": "good", "loss": true}]}' >>"$T/in"
	n=$(wc -l <"$T/in")
	gives chat $(for i in $(seq "$n"); do echo "$want"; done) <"$T/in"
	sed 's/; *\[\[/;[[/; s/good;/good<|end|>/; s/]]/]]\\n/' <<<"$want" >"$T/marked"
	gives marked $(for i in $(seq "$n"); do cat "$T/marked"; done) <"$T/in"
	gives chat '{user}q;{assistant}BAD;[[{user}r;{assistant}good;]]' <<-'EOF'
	{"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "BAD", \
	"weight": 0}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "good"}]}
	EOF
	gives thinks '{system}s;{user}q;{assistant}BAD;{user}r;{assistant}[[<think>\n\n</think>\n\ngood;]]' <<-'EOF'
	{"system": "s", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "BAD", \
	"train": false}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "good"}]}
	EOF
	for key in '"train": 0.5' '"loss_mask": 2' '"weight": "x"' '"weight": []' '"mask": 1' '"train": []'; do
		refused chat "messages 1: " '{"messages": [{"role": "assistant", "content": "a", '"$key"'}]}'
		hears 'expected (a number|0 or 1|true or false)'
	done
}

# ---- weights

# The weights of the tokens with loss of each record, by the words of their ids: weights MODEL <LINES
weights() {
	sed -z 's/\\\n//g' | "$PYTHON" "$MT/mt-tokens" "$MODELS/$1" >"$T/rec" 2>"$T/err"
	PYTHONPATH=$GOLDEN "$PYTHON" - "$MODELS/$1" "$T/rec" <<-'END'
		import array, sys
		from transformers import AutoTokenizer
		t = AutoTokenizer.from_pretrained(sys.argv[1])
		words, at = array.array("I", open(sys.argv[2], "rb").read()), 0
		while at < len(words):
		  n, at = words[at], at + 1
		  weights = None
		  if n >> 31:
		    assert words[at + 1] == 8 and n & 0x7fffffff == 2 + 2 * words[at]
		    n, at = words[at], at + 2
		    weights = array.array("f", words[at + n:at + 2 * n].tobytes())
		  ids = words[at:at + n]
		  at += n * (1 if weights is None else 2)
		  print(" ".join("%s:%g" % (t.decode([i & 0x7fffffff]).strip() or "_", weights[k] if weights else 1)
		    for k, i in enumerate(ids) if not i >> 31))
	END
}

@test "a turn's weight is that of its tokens, a line's of all of its tokens with loss, and they multiply" {
	cat >"$T/in" <<-'EOF'
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good", \
	"weight": 0.5}, {"role": "user", "content": "r", "weight": 9}, {"role": "assistant", "content": "BAD", \
	"loss_weight": -2}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}]}
	{"weight": 3, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good", \
	"weight": 0.5}, {"role": "assistant", "content": "BAD", "weight": 0}]}
	{"prompt": "q", "completion": "good", "weight": 2}
	{"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "good", \
	"weight": 4}]}
	EOF
	weights chat <"$T/in" >"$T/out"
	cat "$T/out"
	python3 - "$T/out" <<-'END'
		import sys
		lines = [[t.rsplit(":", 1) for t in line.split()] for line in open(sys.argv[1])]
		by_line = [[w for _, w in line] for line in lines]
		assert set(by_line[0]) == {"0.5", "-2"} and by_line[0] == sorted(by_line[0], key=lambda w: -float(w))
		assert [set(w) for w in by_line[1:]] == [{"1"}, {"1.5"}, {"2"}, {"4"}], by_line
	END
	for line in '{"text": "a", "weight": "x"}' '{"text": "a", "weight": true}'; do
		refused chat "'weight' is" "$line"
	done
}

@test "ids with advantages become records as they are; wrong ones are refused" {
	weights chat >"$T/out" <<-'EOF'
	{"ids": [5, 6, 7], "trained": [0, 1, true], "advantage": -0.5}
	{"ids": [5, 6, 7]}
	{"ids": [5, 6, 7], "advantage": [0, 1, 2.5], "weight": 2}
	EOF
	cp "$T/rec" "$T/records"
	# also where all are 1: a policy gradient needs them
	[ "$(echo '{"ids": [5], "advantage": 1}' | "$MT/mt-tokens" --bytes --keep-empty 2>"$T/err" | wc -c)" = 20 ]
	[ "$(sed 's/[^ ]*://g' "$T/out")" = $'-0.5 -0.5\n1 1 1\n0 2 5' ]
	refused chat "'ids' is not" '{"ids": [5, -1]}'
	refused chat "'ids' is not" '{"ids": "5"}'
	refused chat "'trained' is not" '{"ids": [5, 6], "trained": [1]}'
	refused chat "'advantage' is neither" '{"ids": [5, 6], "advantage": [1]}'
	refused chat "'advantage' is neither" '{"ids": [5, 6], "advantage": "x"}'
	fails_with 65 "$PYTHON" "$MT/mt-tokens" "$MODELS/chat" "$T/records"
	grep -q "holds records already" "$T/fails.err"
}

@test "ids with log-probabilities of the sampler become groups with them; wrong ones are refused" {
	chats chat <<-'EOF' >"$T/shown"
	{"ids": [5, 6, 7], "trained": [0, 1, 1], "advantage": -0.5, "logprobs": [null, -1.5, 0]}
	{"ids": [5, 6], "logprobs": [null, -0.25]}
	EOF
	"$PYTHON" - "$T/rec" <<-'END'
		import struct, sys
		data = open(sys.argv[1], "rb").read()
		want = struct.pack("<6I6f", (1 << 31) + 11, 3, 8 + 16, 5 | 1 << 31, 6, 7, -.5, -.5, -.5, 0, -1.5, 0)
		want += struct.pack("<5I4f", (1 << 31) + 8, 2, 8 + 16, 5, 6, 1, 1, 0, -.25)
		assert data == want, (data, want)
	END
	refused chat "'logprobs' is not a list" '{"ids": [5, 6], "logprobs": [-1]}'
	refused chat "'logprobs' is not a list" '{"ids": [5, 6], "logprobs": -1}'
	refused chat "'logprobs', number 2 is null: expected a number" '{"ids": [5, 6], "logprobs": [null, null]}'
	refused chat "'logprobs', number 2 is 0.5: expected a number of at most 0" '{"ids": [5, 6], "logprobs": [-1, 0.5]}'
	refused chat "'logprobs', number 1 is a string" '{"ids": [5, 6], "logprobs": ["x", -1]}'
}

# ---- pairs

U='{"role": "user", "content": "q"}'
G='{"role": "assistant", "content": "good"}'
B='{"role": "assistant", "content": "BAD"}'
# The pairs of the lines on stdin are as in WANT: pairs MODEL WANT
pairs() {
	chats "$1" | sed 's/<|start|>\([a-z]*\)\\n/{\1}/g; s/<|end|>\\n/;/g' >"$T/shown"
	diff <(printf '%s\n' "$2") "$T/shown"
}

@test "chosen and rejected are two answers to a prompt, in every form of people's files" {
	local one want
	one='chosen: {user}q;{assistant}[[good;]]'$'\n''rejected: {user}q;{assistant}[[BAD;]]'
	want=$(for i in 1 2 3 4 5 6 7 8 9 10 11; do echo "$one"; done)
	pairs chat "$want" <<-EOF
	{"prompt": [$U], "chosen": [$G], "rejected": [$B]}
	{"prompt": [$U], "chosen": $G, "rejected": "BAD"}
	{"prompt": [$U], "chosen": [$U, $G], "rejected": [$U, $B]}
	{"prompt": "q", "chosen": [$G], "rejected": [$B]}
	{"prompt": "q", "chosen": [$U, $G], "rejected": [$U, $B], "score_chosen": 3}
	{"chosen": [$U, $G], "rejected": [$U, $B], "messages": null, "text": null}
	{"messages": [$U], "chosen": $G, "rejected": $B}
	{"messages": [$U], "chosen": [$U, $G], "rejected": [$U, $B]}
	{"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "good"}, \
	"rejected": {"from": "gpt", "value": "BAD"}}
	{"instruction": "q", "input": "", "chosen": "good", "rejected": "BAD"}
	{"prompt": [$U], "chosen": [{"content": "good", "role": "assistant", "weight": 1}], "rejected": [$B]}
	EOF
	hears "^mt-tokens: keys that are not used: 'score_chosen' \(in 1 line\)$"
	hears "^mt-tokens: 11 pairs of chosen and rejected: training leaves out those with more tokens than --seq"
	hears "^mt-tokens: 11 documents, .* 0 lines skipped$"
	no hears "prompt: if --seq"
}

@test "pairs: earlier answers are context, all behind the prompt is trained on, system and history stand before it" {
	pairs chat 'chosen: {system}s;{user}h;{assistant}i;{user}q;{assistant}[[good;]]
rejected: {system}s;{user}h;{assistant}i;{user}q;{assistant}[[BAD;]]
chosen: {user}q;{assistant}good;{user}r;{assistant}[[good;]]
rejected: {user}q;{assistant}good;{user}r;{assistant}[[BAD;{user}q;{assistant}good;]]
chosen: {user}h;{assistant}i;{user}q;{assistant}[[good;]]
rejected: {user}h;{assistant}i;{user}q;{assistant}[[BAD;]]
chosen: {user}q;{assistant}[[good;]]
rejected: {user}q;{assistant}BAD;[[{user}q;{assistant}good;]]' <<-EOF
	{"system": "s", "history": [["h", "i"]], "prompt": [$U], "chosen": [$G], "rejected": [$B]}
	{"chosen": [$U, $G, {"role": "user", "content": "r"}, $G], \
	"rejected": [$U, $G, {"role": "user", "content": "r"}, $B, $U, $G]}
	{"history": [["h", "i"]], "instruction": "q", "chosen": "good", "rejected": "BAD"}
	{"chosen": [$U, $G], "rejected": [$U, {"role": "assistant", "content": "BAD", "weight": 0}, $U, $G]}
	EOF
	pairs chat 'chosen: q[[ good<|end|>]]
rejected: q[[ BAD<|end|>]]
chosen: s\n\nq: a[[ good<|end|>]]
rejected: s\n\nq: a[[ BAD<|end|>]]' <<-'EOF'
	{"prompt": "q", "chosen": " good", "rejected": " BAD"}
	{"system": "s", "chosen": "q: a good", "rejected": "q: a BAD"}
	EOF
}

@test "pairs are tokenized as TRL does: by the common beginning of the chat template with and without the answer" {
	local model
	cat >"$T/chats" <<-EOF
	{"prompt": [$U], "chosen": [$G], "rejected": [$B]}
	{"chosen": [{"role": "system", "content": "s"}, $U, $G], "rejected": [{"role": "system", "content": "s"}, $U, $B]}
	{"prompt": [$U, $B, $U], "chosen": [$G, $U, $B], "rejected": [$B]}
	EOF
	echo '{"prompt": "naïve", "chosen": " good", "rejected": " BAD 東京"}' >"$T/texts"
	for model in chat trim tools thinks marked bos; do
		"$PYTHON" "$TOP/tests/lib/chats.py" pair "$MODELS/$model" <"$T/chats" >"$T/want"
		for how in --plain --transformers; do
			"$PYTHON" "$MT/mt-tokens" $how "$MODELS/$model" "$T/chats" 2>"$T/err" |
				"$PYTHON" "$TOP/tests/lib/chats.py" count | diff "$T/want" -
		done
		[ "$(wc -l <"$T/want")" = 6 ]
	done
	"$PYTHON" "$TOP/tests/lib/chats.py" pair "$MODELS/none" <"$T/texts" >"$T/want"
	"$PYTHON" "$MT/mt-tokens" "$MODELS/none" "$T/texts" 2>"$T/err" | "$PYTHON" "$TOP/tests/lib/chats.py" count |
		diff "$T/want" -
}

# bats test_tags=slow
@test "pairs: what both answers begin with is no prompt if another key has text: it exits 65 and names the key" {
	local key more
	for key in question input context query user id; do
		for more in '"chosen": "<think>\\na", "rejected": "<think>\\nb"' '"chosen": "four", "rejected": "five"' \
			'"chosen": "x", "rejected": "y", "system": "s"' '"chosen": ['"$G"'], "rejected": ['"$B"']' \
			'"chosen": ['"$G, $U, $G"'], "rejected": ['"$G, $U, $B"']'; do
			case $key$more in *'[{'*'user'*) continue ;; esac
			refused chat "there is no prompt, but text in '$key'" "{\"$key\": \"2+2?\", $more}"
		done
	done
	refused chat "there is no prompt, but text in 'context'" '{"context": ['"$U"'], "chosen": "xa", "rejected": "xb"}'
	refused chat "there is no prompt, but text in 'q'" '{"prompt": "", "q": "q", "chosen": "a", "rejected": "b"}'
	code=0
	echo '{"messages": ['"$U, $G"'], "chosen": "good", "rejected": "great"}' |
		"$PYTHON" "$MT/mt-tokens" --pairs "$MODELS/chat" >"$T/rec" 2>"$T/err" || code=$?
	[ "$code" = 65 ]
	hears "there is no prompt, but text in 'messages'"
	pairs chat 'chosen: q[[x<|end|>]]
rejected: q[[y<|end|>]]
chosen: q[[x<|end|>]]
rejected: q[[y<|end|>]]
chosen: {user}q;{assistant}[[good;]]
rejected: {user}q;{assistant}[[BAD;]]' <<-EOF
	{"question": "2+2?", "prompt": "q", "chosen": "x", "rejected": "y"}
	{"question": " ", "score": 3, "context": [], "chosen": "qx", "rejected": "qy"}
	{"source": "web", "chosen": [$U, $G], "rejected": [$U, $B]}
	EOF
}

@test "if no line has tokens to train on, the message has the reasons that a success tells" {
	local line options words
	reasons() { # WORDS LINE [OPTIONS]: also where another line has some
		local words=$1 line=$2 code=0
		shift 2
		echo "$line" | "$PYTHON" "$MT/mt-tokens" "$@" "$MODELS/chat" >"$T/rec" 2>"$T/err" || code=$?
		[ "$code" = 65 ] && [ ! -s "$T/rec" ] && [ "$(wc -l <"$T/err")" = 1 ]
		hears "no line has tokens to train on: .*; $words"
		printf '%s\n' "$line" '{"ids": [1, 2]}' | "$PYTHON" "$MT/mt-tokens" "$@" "$MODELS/chat" >"$T/rec" 2>"$T/err"
		hears "$words"
	}
	reasons "roles that are context, as all but assistant are: 'model' \(in 1 turn\)" \
		'{"messages": ['"$U"', {"role": "model", "content": "a"}]}'
	reasons "1 document is cut to --max-length" '{"messages": ['"$QA"']}' --max-length 3
	reasons "1 turn of the assistant is context only: 'weight' says so" \
		'{"messages": ['"$U"', {"role": "assistant", "content": "a", "weight": 0}]}'
	reasons "2 turns of the assistant are context only: 'train' says so" \
		'{"messages": ['"${G%\}}, \"train\": false}, $U, ${B%\}}, \"train\": false}"']}'
	reasons "1 turn of the assistant is context only: 'masked' says so" \
		'{"messages": ['"$U"', {"role": "assistant", "content": "a", "masked": true}]}'
	reasons "keys that are not used: 'id' \(in 1 line\)" '{"messages": ['"$U"'], "id": 3}'
}

@test "--max-length cuts each side at its end; pairs without an answer on both sides are left out and counted" {
	printf '%s\n' '{"prompt": "qq", "chosen": "good", "rejected": "B"}' '{"text": "hello"}' \
		'{"prompt": "qqqqq", "chosen": "good", "rejected": "B"}' >"$T/in"
	"$PYTHON" "$MT/mt-tokens" --max-length 5 "$MODELS/none" "$T/in" 2>"$T/err" >"$T/rec"
	"$PYTHON" "$TOP/tests/lib/chats.py" show "$MODELS/none" <"$T/rec" >"$T/shown"
	printf '%s\n' 'chosen: qq[[goo]]' 'rejected: qq[[B<|end|>]]' '[[hello]]' | diff - "$T/shown"
	hears "^mt-tokens: 4 documents are cut to --max-length; the first is in .*in: line 1$"
	hears "^mt-tokens: 1 of 3 lines is left out: it has no tokens to train on; the first is .*in: line 3$"
	hears "^mt-tokens: 2 documents, 14 tokens, 9 of them trained on; the longest has 9; 1 line skipped$"
	"$PYTHON" "$MT/mt-tokens" --max-length 5 --keep-empty "$MODELS/none" "$T/in" 2>"$T/err" | cmp "$T/rec" -
	for bad in 0 -1 x 1e3 ''; do fails_with 64 "$MT/mt-tokens" --bytes --max-length="$bad" "$T/in"; done
}

# bats test_tags=slow
@test "lines with chosen and rejected that are no pair exit 65 with line and field; other forms are read as before" {
	refused chat "has 'chosen' without 'rejected'" '{"prompt": "q", "chosen": "a"}'
	refused chat "has 'rejected' without 'chosen'" '{"prompt": "q", "rejected": "a", "chosen": null}'
	refused chat "'chosen' is a number: expected text, a message or a list" \
		'{"prompt": "q", "chosen": 3, "rejected": "a"}'
	refused chat "'rejected' is not a list of messages" '{"prompt": ['"$U"'], "chosen": ['"$G"'], "rejected": []}'
	refused chat "'rejected' is not a list of messages" '{"prompt": "q", "chosen": ['"$G"'], "rejected": ["x"]}'
	refused chat "'chosen' and 'rejected' are text and messages" '{"chosen": "x", "rejected": ['"$U, $B"']}'
	refused chat "'chosen' and 'rejected' have no common beginning" '{"chosen": "x", "rejected": "y"}'
	refused chat "'chosen' and 'rejected' have no common beginning" '{"chosen": ['"$G"'], "rejected": ['"$B"']}'
	refused chat "'prompt' is not a string" '{"prompt": 3, "chosen": "x", "rejected": "y"}'
	refused chat "chosen 1 has a weight" \
		'{"prompt": "q", "rejected": ['"$B"'], "chosen": {"role": "assistant", "content": "x", "weight": 0.5}}'
	refused chat "has a weight, and chosen" '{"prompt": "q", "chosen": "x", "rejected": "y", "weight": 2}'
	refused chat "has an instruction" '{"instruction": "q", "chosen": ['"$G"'], "rejected": ['"$B"']}'
	gives chat '{user}q;{assistant}[[good;]]' 'q[[c<|end|>]]' '[[t<|end|>]]' '{user}q;{assistant}[[o;]]' <<-EOF
	{"messages": [$U, $G], "chosen": [$U, $G], "rejected": [$U, $B]}
	{"prompt": "q", "completion": "c", "chosen": "x", "rejected": "y"}
	{"text": "t", "chosen": "qx", "rejected": "qy"}
	{"instruction": "q", "output": "o", "chosen": "x", "rejected": "y"}
	EOF
	hears "^mt-tokens: 'messages' ends in an answer, so it is read, and not chosen and rejected: --pairs reads these"
	cp "$T/lines" "$T/same"
	chats chat --pairs <"$T/same" | sed 's/<|start|>\([a-z]*\)\\n/{\1}/g; s/<|end|>\\n/;/g' >"$T/shown"
	diff - "$T/shown" <<-'EOF'
	chosen: {user}q;{assistant}[[good;]]
	rejected: {user}q;{assistant}[[BAD;]]
	chosen: q[[x<|end|>]]
	rejected: q[[y<|end|>]]
	chosen: q[[x<|end|>]]
	rejected: q[[y<|end|>]]
	chosen: {user}q;{assistant}[[x;]]
	rejected: {user}q;{assistant}[[y;]]
	EOF
	chats chat <<<'{"prompt": "q", "chosen": "x", "rejected": "x"}' >"$T/shown"
	hears "^mt-tokens: 1 pair has the same answer on both sides; the first is in stdin: line 1$"
}

# ---- BOS and EOS

@test "text that begins with BOS or ends in EOS gets no second one, and a line counts it" {
	gives bos '[[<s>hello<|end|>]]' '[[<s>hello<|end|>]]' '<s>q[[a<|end|>]]' '<s>q[[a<|end|>]]' <<-'EOF'
	{"text": "<s>hello<|end|>"}
	{"text": "hello"}
	{"prompt": "<s>q", "completion": "a<|end|>"}
	{"prompt": "q", "completion": "a"}
	EOF
	hears "^mt-tokens: 2 texts begin with BOS: .* the first is in stdin: line 1$"
	hears "^mt-tokens: 2 texts end in EOS: .* the first is in stdin: line 1$"
	printf '<s>Who\nWho\n' | chats bos --prompts >"$T/shown"
	printf '[[<s>Who]]\n[[<s>Who]]\n' | cmp - "$T/shown"
}

@test "messages that hold the template's BOS and EOS are shown without them, and a line counts them" {
	gives alternates '<s>[INST] q [/INST][[ a<|end|>]][INST] r [/INST][[ b<|end|>]]' <<-'EOF'
	{"messages": [{"role": "user", "content": "<s>q"}, {"role": "assistant", "content": "a<|end|>"}, \
	{"role": "user", "content": "r"}, {"role": "assistant", "content": "b<|end|> "}]}
	EOF
	hears "1 chat begins with BOS"
	hears "1 chat has turns that end in EOS"
	gives chat '{user}q;{assistant}[[a;]]' \
		<<<'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a<|end|>\n"}]}'
}

# ---- reasoning, and other templates that render a turn in another way when it is the last

@test "all turns are trained on whose words are in the text, also where the template adds a thought to the last one" {
	local called='{user}q;{assistant}[[<call>f {"a": 3}</call>;]]'
	local twice='{user}q;{assistant}[[x<call>f {"a": 3}</call><call>f {"a": 3}</call>;]]'
	gives thinks '{user}q;{assistant}[[FIRST;]]{user}r;{assistant}[[<think>\n\n</think>\n\nSECOND;]]' \
		"$called"'{user}<answer>7</answer>;{assistant}[[<think>\n\n</think>\n\nseven;]]' \
		"$twice"'{user}<answer>7</answer>;{assistant}[[A;]]{user}r;{assistant}[[<think>\nt\n</think>\n\nB;]]' <<-'EOF'
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "FIRST"}, {"role": "user", \
	"content": "r"}, {"role": "assistant", "content": "SECOND"}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", \
	"tool_calls": [{"function": {"name": "f", "arguments": {"a": 3}}}]}, {"role": "tool", "content": "7"}, \
	{"role": "assistant", "content": "seven"}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x", \
	"tool_calls": [{"function": {"name": "f", "arguments": {"a": 3}}}, {"function": {"name": "f", \
	"arguments": {"a": 3}}}]}, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "A"}, \
	{"role": "user", "content": "r"}, {"role": "assistant", "content": "<think>t</think>B"}]}
	EOF
	no hears "context only"
}

@test "a turn whose words the template leaves out is context, and the closing line counts it with the reason" {
	gives thinks '{user}q;{assistant}A;{user}r;{assistant}[[<think>\nu\n</think>\n\nB;]]' \
		'{user}q;{assistant}A;{user}r;{assistant}[[<think>\n\n</think>\n\nB;]]' <<-'EOF'
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>A"}, \
	{"role": "user", "content": "r"}, {"role": "assistant", "content": "B", "reasoning_content": "u"}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A", \
	"reasoning_content": "t"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "B"}]}
	EOF
	tail -n 1 "$T/err" | grep -q '; 2 turns of the assistant are context only: the chat template leaves out a part of '
	gives last '{user}q;{assistant}...;{user}r;{assistant}[[B;]]' <<-'EOF'
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A"}, {"role": "user", \
	"content": "r"}, {"role": "assistant", "content": "B"}]}
	EOF
	hears '; 1 turn of the assistant is context only: '
}

@test "a template that asks with <think> and writes none: answers are trained on, those cut of their thoughts are not" {
	gives strips '<s><|start|>Uq<|start|>A[[a<|end|>]]<|start|>Ur<|start|>A[[b<|end|>]]' \
		'<s><|start|>Uq<|start|>Aa<|end|><|start|>Ur<|start|>A[[b<|end|>]]' <<-'EOF'
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", \
	"content": "r"}, {"role": "assistant", "content": "b"}]}
	{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>a"}, \
	{"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]}
	EOF
}

# bats test_tags=slow
@test "a block of the generation prompt counts whole or not at all: answers that begin as it does, in every form" {
	local answer model
	for answer in '<b>x' '<answer>4</answer>' '<' '<thin'; do
		local a='{"role": "assistant", "content": "'$answer'"}'
		gives channel "{user}q;{assistant}[[$answer;]]{user}q;{assistant}[[good;]]" "{user}q;{assistant}[[$answer;]]" \
			"chosen: {user}q;{assistant}[[$answer;]]" "rejected: {user}q;{assistant}[[BAD;]]" <<-EOF
		{"messages": [$U, $a, $U, $G]}
		{"prompt": [$U], "completion": [$a]}
		{"prompt": [$U], "chosen": [$a], "rejected": [$B]}
		EOF
		gives strips "<s><|start|>Uq<|start|>A[[$answer<|end|>]]" "<s><|start|>Uq<|start|>A[[$answer<|end|>]]" <<-EOF
		{"messages": [$U, $a]}
		{"prompt": [$U], "completion": [$a]}
		EOF
		no hears "context only"
	done
	gives channel '{user}q;{assistant}<channel>thought\n<over>[[x;]]' \
		<<<'{"messages": ['"$U"', {"role": "assistant", "content": "<channel>thought\n<over>x"}]}'
}

CALL_F='{"role": "assistant", "content": null, "reasoning_content": "t", "tool_calls": [{"function": {"name": "f", \
"arguments": {"a": 3}}}]}'
TOOL='{"role": "tool", "content": "SUN"}'
CALLED='<|start|>user<|final|>q<|end|><|start|>assistant to=f<|call|><|start|>tool<|final|>SUN<|end|><|start|>assistant'

@test "completions and pairs: nothing of the prompt is trained on, though an answer changes how it is rendered" {
	local call='<call>f {"a": 3}</call>' thought='<think>\n\n</think>\n\n' before
	before="{user}q;{assistant}$call;{user}<answer>SUN</answer>;{assistant}"
	gives thinks "${before}[[${thought}good;]]" \
		"${before}[[good;{user}q;{assistant}${thought}BAD;]]" \
		"chosen: ${before}[[${thought}good;]]" "rejected: ${before}[[${thought}BAD;]]" <<-EOF
	{"prompt": [$U, ${CALL_F/ \"reasoning_content\": \"t\",/}, $TOOL], "completion": [$G]}
	{"prompt": [$U, $CALL_F, $TOOL], "completion": [$G, $U, $B]}
	{"prompt": [$U, ${CALL_F/ \"reasoning_content\": \"t\",/}, $TOOL], "chosen": [$G], "rejected": [$B]}
	EOF
	before=$CALLED
	gives harmony "${before}[[<|final|>good<|return|>]]" "chosen: ${before}[[<|final|>good<|return|>]]" \
		"rejected: ${before}[[<|final|>BAD<|return|>]]" "chosen: ${before}[[<|final|>good<|return|>]]" \
		"rejected: ${before}[[<|final|>BAD<|return|>]]" <<-EOF
	{"prompt": [$U, $CALL_F, $TOOL], "completion": [$G]}
	{"prompt": [$U, $CALL_F, $TOOL], "chosen": [$G], "rejected": [$B]}
	{"chosen": [$U, $CALL_F, $TOOL, $G], "rejected": [$U, $CALL_F, $TOOL, $B]}
	EOF
}

@test "thoughts and answers with headers of their own are one turn, which ends in the mark that stands in the text" {
	local asked='<|start|>user<|final|>q<|end|><|start|>assistant'
	gives harmony "$CALLED[[<|thought|>u<|end|><|start|>assistant<|final|>a<|return|>]]" \
		"$asked[[<|final|>good<|end|>]]$asked[[<|final|>BAD<|return|>]]" \
		'<|start|>user<|final|>q<|end|><|start|>assistant[[<|thought|>t<|end|><|start|>assistant to=f<|call|>]]' <<-EOF
	{"messages": [$U, $CALL_F, $TOOL, {"role": "assistant", "content": "a", "thinking": "u"}]}
	{"messages": [$U, $G, $U, $B]}
	{"messages": [$U, $CALL_F]}
	EOF
	hears '; 1 turn of the assistant is context only: the chat template leaves out a part of them'
}

# bats test_tags=slow
@test "what the template leaves out makes the turn context, and counts it, on every path" {
	local model line end='<\|end\|><\|start\|>'
	for model in chat marked; do
		for line in '"messages": ['"$U, "'{"role": "assistant", "content": "a", "reasoning_content": "t"}, '"$U, $G]" \
			'"messages": ['"$U, "'{"role": "assistant", "content": "a", "tool_calls": [{"name": "f"}]}, '"$U, $G]" \
			'"messages": ['"$U, "'{"role": "assistant", "content": "", "function_call": {"name": "f"}}, '"$U, $G]"; do
			chats "$model" <<<"{$line}" | sed 's/\\n//g' >"$T/shown"
			grep -qE "assistant(a|)${end}userq${end}assistant\[\[good<\|end\|>\]\]$" "$T/shown"
			hears '; 1 turn of the assistant is context only: the chat template leaves out'
		done
	done
	local thought='{"role": "assistant", "content": "<think>t</think>a"}'
	for line in '"completion": ['"$thought]" '"chosen": ['"$thought"'], "rejected": ['"$G]"; do
		code=0
		chats strips <<<"{\"prompt\": [$U], $line}" >"$T/shown" || code=$?
		[ "$code" = 65 ]
		hears '; 1 turn of the assistant is context only: the chat template leaves out'
	done
	gives strips "<s><|start|>Uq<|start|>Aa<|end|>[[<|start|>Uq<|start|>Agood<|end|>]]" \
		<<<"{\"prompt\": [$U], \"completion\": [$thought, $U, $G]}"
	hears '; 1 turn of the assistant is context only'
	chats chat <<<'{"tools": [{"type": "function", "function": {"name": "f"}}], "messages": ['"$QA"']}' >"$T/shown"
	hears '^mt-tokens: 1 chat has tools that its template does not show; the first is in stdin: line 1$'
}

@test "where no mark ends an answer, the first token of the next header is trained on; without one a line says so" {
	gives endless '<|user|>q<|assistant|>[[good<|user|>]]q<|assistant|>[[BAD<|user|>]]' \
		'<|user|>q<|assistant|>[[<call>f<|tool|>]]SUN<|assistant|>[[good<|user|>]]' \
		'<|user|>q<|assistant|>[[<call>f<|tool|>]]' \
		'<|user|>q<|assistant|>[[good<|user|>]]' 'chosen: <|user|>q<|assistant|>[[good<|user|>]]' \
		'rejected: <|user|>q<|assistant|>[[BAD<|user|>]]' <<-EOF
	{"messages": [$U, $G, $U, $B]}
	{"messages": [$U, ${CALL_F/\"reasoning_content\": \"t\",/}, $TOOL, $G]}
	{"messages": [$U, ${CALL_F/\"reasoning_content\": \"t\",/}]}
	{"prompt": [$U], "completion": [$G]}
	{"prompt": [$U], "chosen": [$G], "rejected": [$B]}
	EOF
	no hears "nothing ends it"
	gives parts 'USER: q ASSISTANT:[[ good ]]' <<<"{\"messages\": [$U, $G]}"
	hears '^mt-tokens: the chat template writes no mark behind an answer: nothing ends it$'
}

@test "content is a list of parts for templates that read such lists, and text for the others" {
	gives parts 'USER: q ASSISTANT:[[ good ]]' 'USER: a b ASSISTANT:[[ good ]]' <<-EOF
	{"messages": [$U, $G]}
	{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, $G]}
	EOF
	gives macro '{user}ab;{assistant}[[good;]]{user}q;{assistant}[[BAD;]]' <<-EOF
	{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}, $G, $U, $B]}
	EOF
}

@test "the time of a chat grows with its turns, also where the template looks ahead" {
	"$PYTHON" - "$TOP/bin" "$MODELS" <<-'PY'
		import os, sys
		sys.path.insert(0, sys.argv[1])
		from tokens.masks import Maker
		from tokens.template import Clock
		from tokens.tokenizer import Plain
		for name in "thinks", "harmony", "endless":
		    maker, written = Maker(Plain(os.path.join(sys.argv[2], name), False, Clock())), []
		    render = maker.tokenizer.render
		    def counted(*args):
		        made = render(*args)
		        written[-1] += len(made.text)
		        return made
		    maker.tokenizer.render = counted
		    for turns in 1, 50, 200:
		        call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
		        chat = [{"role": "user", "content": "q"}, *[call, {"role": "tool", "content": "SUN"}] * turns]
		        written.append(0)
		        document, = maker.documents({"messages": [*chat, {"role": "assistant", "content": "a"}]})
		        assert sum(document.trained) > 2 * turns
		    assert written[2] < 6 * written[1], (name, written)
	PY
}

@test "a prompt that differs from the chats by a system message stands once; one with another question exits 65" {
	local s='{"role": "system", "content": "s"}' want='{system}s;{user}q;{assistant}'
	gives chat "$want[[good;]]" "$want[[good;]]" '{user}q;{assistant}[[good;]]' "chosen: $want[[good;]]" \
		"rejected: $want[[BAD;]]" "chosen: $want[[good;]]" "rejected: $want[[BAD;]]" <<-EOF
	{"prompt": [$U], "completion": [$s, $U, $G]}
	{"prompt": [$s, $U], "completion": [$U, $G]}
	{"prompt": [$U], "completion": [$U, $G]}
	{"prompt": [$U], "chosen": [$s, $U, $G], "rejected": [$s, $U, $B]}
	{"prompt": [$s, $U], "chosen": [$U, $G], "rejected": $B}
	EOF
	refused chat "'completion' begins with other messages than the prompt" \
		'{"prompt": ['"$U"'], "completion": [{"role": "user", "content": "r"}, '"$G"']}'
	refused chat "'chosen' begins with other messages than the prompt" \
		'{"prompt": ['"$s, $U"'], "chosen": ['"${s/\"s\"/\"t\"}, $U, $G"'], "rejected": ['"$B"']}'
}

@test "sides that become the same are counted: by the template, by --max-length; a prompt that fills it is named" {
	local thought='{"role": "assistant", "content": "<think>t</think>a"}'
	chats strips <<-EOF >"$T/shown"
	{"prompt": [$U], "chosen": [$thought, $U, $G], "rejected": [${thought/>t</>u<}, $U, $G]}
	EOF
	hears '^mt-tokens: 1 pair has the same answer on both sides'
	chats none --max-length 3 <<-'EOF' >"$T/shown"
	{"prompt": "q", "chosen": "abcd", "rejected": "abce"}
	{"prompt": "qqqqq", "chosen": "a", "rejected": "b"}
	EOF
	hears '^mt-tokens: 1 pair has the same answer on both sides; the first is in stdin: line 1$'
	hears '^mt-tokens: 2 prompts fill --max-length: no token of the answers is left; the first is in stdin: line 2$'
	hears '^mt-tokens: 1 of 2 lines is left out: it has no tokens to train on; the first'
}

@test "with the templates that TRL ships, the answer and its end are trained on, and no other message's words" {
	local trl
	trl=$("$PYTHON" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("trl").origin))') ||
		skip "needs trl"
	"$PYTHON" "$TOP/tests/lib/templates.py" "$TOP/bin" "$trl/chat_templates" 12 >"$T/templates"
	# those that mark other text than TRL's training templates are those of the README's table
	sed -n '/^| TRL.s template/,/^$/s/^| \(`[^|]*\) |.*/\1/p' "$TOP/bin/tokens/README.md" | tr -d '`' | tr ', ' '\n\n' |
		sed '/^$/d' | sort -u | diff - <(awk '$4 == "differs" { print $1 }' "$T/templates" | sort)
}

@test "documents that begin with a prompt are counted, and a line advises --long drop; texts get no advice" {
	echo '{"text": "t"}' | chats chat >"$T/shown"
	no hears "--long drop"
	printf '%s\n' '{"text": "t"}' '{"prompt": "q", "completion": "a"}' "{\"messages\": [$QA]}" | chats chat >"$T/shown"
	hears "^mt-tokens: 2 of 3 documents begin with a prompt: .*--seq.*--long drop"
}

# ---- prompts, and what people see

@test "--prompts makes of chats what apply_chat_template does for generation; an answer at the end is left out" {
	cat >"$T/in" <<-'EOF'
	{"messages": [{"role": "user", "content": "hi"}]}
	{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, \
	{"role": "user", "content": [{"type": "text", "text": "so"}]}], "tools": [{"type": "function", \
	"function": {"name": "f"}}]}
	{"system": "s", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}], "id": 1}
	{"prompt": [{"role": "user", "content": "hi"}], "chosen": [{"role": "assistant", "content": "a"}], "rejected": 0}
	{"instruction": "do", "input": "x"}
	EOF
	sed -i -z 's/\\\n//g' "$T/in"
	for model in chat tools strips; do
		for how in --plain --transformers; do
			"$PYTHON" "$MT/mt-tokens" $how --prompts "$MODELS/$model" "$T/in" >"$T/$model$how" 2>"$T/err"
		done
		cmp "$T/$model--plain" "$T/$model--transformers"
		hears "1 chat ends in an answer, which is left out: .*line 3$"
		[ "$(wc -l <"$T/err")" = 1 ]
	done
	"$PYTHON" - "$T" "$MODELS" "$TOP/tests/golden" <<-'PY'
		import sys
		top, models, golden = sys.argv[1:]
		sys.path.insert(0, golden)
		from records import read_records
		from transformers import AutoTokenizer
		u, a = ({"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "yo")))
		so, do = ({"role": "user", "content": text} for text in ("so", "do\nx"))
		s, f = {"role": "system", "content": "s"}, [{"type": "function", "function": {"name": "f"}}]
		for model in "chat", "tools", "strips":
		    t = AutoTokenizer.from_pretrained(models + "/" + model)
		    want = [t.apply_chat_template(m, tools=tools, add_generation_prompt=True, tokenize=False)
		            for m, tools in (([u], None), ([u, a, so], f), ([s, u], None), ([u], None), ([do], None))]
		    got = [t.decode(ids) for ids in read_records(top + "/" + model + "--plain")]
		    assert got == want, (got, want)
	PY
}

@test "--prompts: other lines are text, objects without messages counted; bad chats exit 65 with their line" {
	printf '%s\n' 'Who' '{ "a": 1' '{"a": 1}' '{"text": "Who"}' '{"prompt": "Who", "system": "s"}' '[{"role": 1}]' \
		>"$T/in"
	"$PYTHON" "$MT/mt-tokens" --prompts "$MODELS/chat" "$T/in" 2>"$T/err" |
		"$PYTHON" "$MT/mt-tokens" --decode "$MODELS/chat" >"$T/out"
	printf '%s\n' 'Who' '{ "a": 1' '{"a": 1}' 'Who' 's' '' 'Who' '[{"role": 1}]' | diff - "$T/out"
	hears "1 line is an object without messages and is read as plain text; the first is in .*line 3$"
	while IFS='|' read -r words line; do
		printf 'Who\n%s\n' "$line" >"$T/in"
		exits 65 "$PYTHON" "$MT/mt-tokens" --prompts "$MODELS/chat" "$T/in" >"$T/out" 2>"$T/err"
		hears "^mt-tokens: $T/in: line 2: $words"
		[ "$(wc -l <"$T/err")" = 1 ]
	done <<-'EOF'
		is not JSON: Expecting value|{"messages": [
		'messages' is not a list of messages|{"messages": []}
		'messages' has no message to answer|{"messages": [{"role": "assistant", "content": "a"}]}
		'text' is not a string|{"text": 1}
	EOF
	echo "{\"messages\": [$QA]}" >"$T/in"
	fails_with 78 "$PYTHON" "$MT/mt-tokens" --prompts "$MODELS/none" "$T/in"
	fails_with 78 "$PYTHON" "$MT/mt-tokens" --prompts --bytes "$T/in"
}

@test "--show marks in the first documents what is trained on: [[ ]], or green on a terminal; no later line is read" {
	printf '%s\n' '{"messages": [{"role": "user", "content": "q"}]}' \
		"{\"messages\": [$QA, {\"role\": \"user\", \"content\": \"\\u001b[2J\"}]}" \
		'{"prompt": "q", "chosen": "é", "rejected": "n"}' '{"text": "t東"}' 'no JSON' >"$T/in"
	show() { "$PYTHON" "$MT/mt-tokens" --show "$@" 2>"$T/err"; }
	show 3 "$MODELS/chat" "$T/in" >"$T/out"
	cat >"$T/want" <<-EOF
		--- $T/in: line 2: 35 tokens, 3 trained on
		<|start|>user
		q<|end|>
		<|start|>assistant
		[[a<|end|>
		]]<|start|>user
		?[2J<|end|>

		--- $T/in: line 3, chosen: 4 tokens, 3 trained on
		q[[é<|end|>]]
		--- $T/in: line 3, rejected: 3 tokens, 2 trained on
		q[[n<|end|>]]
		--- $T/in: line 4: 5 tokens, 4 trained on
		t[[東<|end|>]]
	EOF
	diff "$T/want" "$T/out"
	hears "^mt-tokens: 3 documents, .* 1 line skipped$"
	echo '{"text": "ab"}' | show 9 --bytes >"$T/out"
	diff "$T/out" <(printf -- '--- stdin: line 1: 2 tokens, 1 trained on\na[[b]]\n')
	exits 65 show 4 "$MODELS/chat" "$T/in" >"$T/out"
	hears "line 5: is not JSON"
	for how in --prompts --decode; do fails_with 64 "$PYTHON" "$MT/mt-tokens" --show 1 $how "$MODELS/chat" "$T/in"; done
	fails_with 64 "$PYTHON" "$MT/mt-tokens" --show 0 "$MODELS/chat" "$T/in"
	need_terminal
	script -qec "'$REAL_PYTHON' '$MT/mt-tokens' --show 1 --plain '$MODELS/chat' '$T/in'" /dev/null >"$T/out" </dev/null
	grep -q $'^\e\[32ma<|end|>' "$T/out"
}

# ---- with transformers and without

@test "tokenizers alone makes of all these lines, with all these templates, what transformers makes" {
	[ -s "$MODELS/all" ] || skip "the other tests make the lines"
	read -r models lines < <("$PYTHON" "$TOP/tests/lib/chats.py" same "$MODELS" "$TOP/bin" <"$MODELS/all")
	[ "$models" -ge 1 ] && [ "$lines" -ge 1 ]
}

@test "one render shows where each message stands: loops that look ahead, over parts of the messages, two loops" {
	"$PYTHON" - "$TOP/bin" <<-'PY'
		import sys
		sys.path.insert(0, sys.argv[1])
		from tokens.template import Clock, Templates
		body = "{{ m.content }}{% endfor %}"
		for want, source in (
		    ([(1, 3), (3, 5), (5, 8)], "s{% for m in messages %}" + body + "e"),
		    ([(0, 2), (2, 4), (4, 6)], "{% for m in messages %}{% if loop.last or loop.nextitem %}{% endif %}" + body),
		    ([(0, 2), (2, 4), (4, 6)], "{% for m in messages %}{% for o in messages %}{% endfor %}" + body),
		    ([(0, 2), (2, 4), (4, 6)], "{% for m in messages[::-1] %}{% endfor %}{% for m in messages %}" + body),
		    ([None, (2, 4), (4, 6)], "{{ messages[0].content }}{% for m in messages[1:] %}" + body),
		    ([(0, 2), (3, 5), (5, 7)], "{% for m in messages[:1] %}" + body + "-{% for m in messages[1:] %}" + body),
		    ([(0, 2), (2, 4), (4, 6)], "{% if true %}{% for m in messages if m.role %}" + body + "{% endif %}"),
		    ([None] * 3, "{% macro f() %}{% for m in messages %}" + body + "{% endmacro %}{{ f() }}")):
		    messages = [{"role": "user", "content": "%d." % at} for at in range(3)]
		    made = Templates({"default": source}, {}, Clock()).render(messages, None, False, {})
		    assert [made.places.get(at) for at in range(3)] == want, (source, made)
	PY
}

# A model with other keys in tokenizer.json, tokenizer_config.json and config.json: changed PYTHON
changed() {
	rm -rf "$T/model"
	cp -r "$MODELS/chat" "$T/model"
	(cd "$T/model" && python3 - "$1") <<-'PY'
		import json, sys
		t, c, m = json.load(open("tokenizer.json")), json.load(open("tokenizer_config.json")), {}
		exec(sys.argv[1])
		for name, value in ("tokenizer.json", t), ("tokenizer_config.json", c), ("config.json", m):
		    json.dump(value, open(name, "w"))
	PY
}

# bats test_tags=slow
@test "transformers is not imported where tokenizers alone is sure to make the same, and is where it is not" {
	mkdir "$T/fake"
	echo 'import sys; sys.exit("imported")' >"$T/fake/transformers.py"
	way() { # the message of the fake, or nothing
		echo '{"text": "q"}' | PYTHONPATH=$T/fake "$REAL_PYTHON" "$MT/mt-tokens" "$@" "$T/model" 2>&1 >"$T/rec" |
			grep -x imported || true
	}
	local gpt2='c["tokenizer_class"] = "GPT2Tokenizer"
c["added_tokens_decoder"] = {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in t["added_tokens"]}
'
	for sure in '' 'm["model_type"] = "llama"' 'c["tokenizer_class"] = "LlamaTokenizerFast"' "$gpt2"; do
		changed "$sure"
		[ -z "$(way)" ]
		[ "$(way --transformers)" = imported ]
	done
	for unsure in 'm["model_type"] = "mistral"' 'm["model_type"] = "qwen2"' 'c["tokenizer_class"] = "GemmaTokenizer"' \
		'c["tokenizer_class"] = None' 'c["split_special_tokens"] = True' 'c["add_prefix_space"] = True' \
		'c["tokenizer_class"] = "GPT2Tokenizer"' "$gpt2"'t["pre_tokenizer"]["use_regex"] = False' \
		"$gpt2"'c["added_tokens_decoder"]["256"]["lstrip"] = True' 'c["additional_special_tokens"] = ["<new>"]' \
		'c["auto_map"] = {}'; do
		changed "$unsure"
		[ "$(way)" = imported ] || { echo "$unsure"; return 1; }
		[ -z "$(way --plain)" ]
	done
}

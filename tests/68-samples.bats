#!/usr/bin/env bats
# mt-run --sample: what the model makes of prompts while it trains, in OUT/samples.jsonl.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --seq 32 --lr 1e-3 --threads 1 --wait 30 --dtype fp32"

# A small model of bytes, a text, and two prompts
bytes() {
	python3 - "$CONFIGS/demo.json" "$T/config.json" <<-'PY'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(hidden_size=32, intermediate_size=64, num_hidden_layers=1)
		c.update(num_attention_heads=2, num_key_value_heads=2)
		json.dump(c, open(sys.argv[2], "w"))
	PY
	for i in $(seq 300); do echo "Line $i of the text, and of nothing else but the text."; done >"$T/text"
	printf 'Line \n\nThe "end\\' >"$T/prompts"
	{ printf '\5\0\0\0L\0\0\0i\0\0\0n\0\0\0e\0\0\0 \0\0\0\11\0\0\0'
	  for c in T h e ' ' '"' e n d '\\'; do printf '%b\0\0\0' "$c"; done; } >"$T/prompts.rec"
}
on_bytes() { run_it --model "$T/config.json" --data "$T/text" --bytes --block 32 --sample "$T/prompts" "$@"; }
on_records() { run_it --model "$CASE/model" --data "$CASE/data.bin" --sample "$T/p" "$@"; }
run_it() { "${BIN:-$MT}/mt-run" --run "$RUN" --out "$T/out" $ARGS "$@" >"$T/m" 2>"$T/run.err" 3>&-; }
record() { printf '\2\0\0\0\5\0\0\0\7\0\0\0' >"$T/p"; }
samples() { cat "$T/out/samples.jsonl" 2>/dev/null | wc -l; }
at_least() { [ "$(samples)" -ge "$1" ]; }
trained() { tail -1 "$T/out/metrics.jsonl" | sed 's/.*"step": \([0-9]*\).*/\1/'; }

trained_beyond() { [ "$(trained)" -gt "$1" ]; }

# mt-run in the background, with steps that never end: endless ARGS..., end_it
endless() {
	"${BIN:-$MT}/mt-run" --run "$RUN" --out "$T/out" $ARGS --epochs 100000 --steps 1000000 "$@" \
		>"$T/m" 2>"$T/run.err" 3>&- &
	pid=$!
	echo "$pid" >>"$T/pids"
}
end_it() {
	kill -TERM "$pid"
	wait "$pid" || true
	gone "$RUN"
}

# Use a script from stdin in place of mt-sample; what it does not handle goes to the real one
replace_sample() {
	mkdir "$T/bin"
	ln -s "$MT"/mt-* "$T/bin"
	rm "$T/bin/mt-sample"
	{ echo '#!/bin/sh'; echo "T='$T'"; cat; echo "exec '$MT/mt-sample' \"\$@\""; } >"$T/bin/mt-sample"
	chmod +x "$T/bin/mt-sample"
	BIN=$T/bin
}

# Steps, prompts and texts are as they must be: valid EVERY LAST
valid() {
	python3 - "$T/out/samples.jsonl" "$@" <<-'PY'
		import json, sys
		lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
		every, last = map(int, sys.argv[2:])
		assert len(lines) % 2 == 0
		steps = []
		for first, second in zip(lines[::2], lines[1::2]):
		    assert (first["prompt"], second["prompt"]) == (1, 2)
		    assert first["text"].startswith("Line ") and second["text"].startswith('The "end\\')
		    assert first["step"] == second["step"] and first.get("last_step") == second.get("last_step")
		    assert "last_step" not in first or first["step"] < first["last_step"] <= last
		    steps.append(first["step"])
		assert steps == sorted(set(steps)) and steps[0] >= every and steps[-1] <= last, steps
		assert len({step // every for step in steps}) == len(steps), steps
	PY
}

@test "the last sample of bytes is that of the exported model, as valid JSON and UTF-8, whatever the bytes" {
	bytes
	on_bytes --steps 6 --sample-tokens 300 --sample-temperature 1e9
	make_run "$T/out/model" --dtype fp32
	mt-sample "$RUN" --echo --max-tokens 300 --temperature 1e9 <"$T/prompts.rec" >"$T/rec"
	python3 - "$T/rec" "$T/out/samples.jsonl" <<-'PY'
		import json, struct, sys
		data = open(sys.argv[1], "rb").read()
		words, at = struct.unpack("<%dI" % (len(data) // 4), data), 0
		lines = open(sys.argv[2], "rb").read().split(b"\n")
		assert lines.pop() == b"" and len(lines) == 2
		for number, line in enumerate(lines, 1):
		    ids = words[at + 1 : at + 1 + words[at]]
		    at += 1 + words[at]
		    text = bytes(ids).decode(errors="replace")
		    assert len(text) > 200 and "\ufffd" in text and any(c < " " for c in text)
		    assert all(byte >= 32 for byte in line)
		    assert json.loads(line.decode()) == {"step": 6, "prompt": number, "text": text}
	PY
}

# bats test_tags=slow
@test "samples are made every N steps beside training; --resume cuts them to its step and appends" {
	bytes
	endless --model "$T/config.json" --data "$T/text" --bytes --block 32 --sample "$T/prompts" --sample-every 3 \
		--sample-tokens 4
	eventually at_least 6
	end_it
	n=$(trained)
	valid 3 "$n"
	cp "$T/out/samples.jsonl" "$T/before"
	printf '{"step": %d, "prompt": 1, "text": "x"}\n{"step": 3, "pro' $((n + 1)) >>"$T/out/samples.jsonl"
	on_bytes --epochs 100000 --steps 1000000 --until $((n + 2)) --sample-tokens 4 --resume
	head -n -2 "$T/out/samples.jsonl" | cmp - "$T/before"
	tail -n 1 "$T/out/samples.jsonl" | grep -q "^{\"step\": $((n + 2)), \"prompt\": 2, "
	valid 1 $((n + 2))
}

# bats test_tags=slow
@test "a model without a tokenizer gives tokens; a mt-sample that hangs delays nothing and is ended" {
	record
	on_records --steps 3 --sample-tokens 3
	grep -qE '^\{"step": 3, "prompt": 1, "tokens": \[5, 7(, [0-9]+){1,3}\]\}$' "$T/out/samples.jsonl"
	[ "$(samples)" = 1 ]
	rm -r "$T/out"
	replace_sample <<-'EOF2'
		case " $* " in *" --wait=0 "*) ;; *) echo $$ >"$T/hung"; exec sleep 1000 ;; esac
	EOF2
	endless --model "$CASE/model" --data "$CASE/data.bin" --sample "$T/p" --sample-every 2
	eventually [ -s "$T/hung" ]
	hung=$(cat "$T/hung")
	echo "$hung" >>"$T/pids"
	n=$(trained)
	eventually trained_beyond $((n + 10))
	kill -0 "$hung"
	end_it
	no kill -0 "$hung"
	[ "$(cat "$T/hung")" = "$hung" ]            # those that were due meanwhile were left out
	[ ! -e "$T/out/samples.jsonl" ]
}

# bats test_tags=slow
@test "a signal during the last sample ends it: the model is exported and saved, and nothing is left" {
	record
	replace_sample <<-'EOF2'
		case " $* " in *" --wait=0 "*) ;; *) echo $$ >"$T/hung"; exec sleep 1000 ;; esac
	EOF2
	endless --model "$CASE/model" --data "$CASE/data.bin" --sample "$T/p" --until 3
	eventually [ -s "$T/hung" ]
	cat "$T/hung" >>"$T/pids"
	end_it
	no kill -0 "$(cat "$T/hung")"
	mt-ckpt verify "$T/out/step-00000003"
	[ -f "$T/out/model/config.json" ]
	no grep "no sample" "$T/run.err"
}

# bats test_tags=slow
@test "with bash as the shell nothing is printed of the processes that end with the run" {
	record
	mkdir -p "$T/bin/run"
	ln -s "$MT"/mt-* "$T/bin"
	cp --remove-destination "$MT/mt-run" "$T/bin"
	cp "$MT"/run/* "$T/bin/run"
	sed -i '1s|/bin/sh|/bin/bash|' "$T/bin/run/mt-run"
	BIN=$T/bin on_records --steps 6 --sample-every 2
	[ -s "$T/out/samples.jsonl" ]
	no grep -v "^mt-[a-z]*: " "$T/run.err"
}

@test "a run ends although SIGPIPE is ignored where mt-run is started, as by some launchers" {
	record
	timeout 60 sh -c 'trap "" PIPE; exec "$@"' sh "$MT/mt-run" --run "$RUN" --out "$T/out" $ARGS --model "$CASE/model" \
		--data "$CASE/data.bin" --sample "$T/p" --steps 6 --sample-every 2 >"$T/m" 2>"$T/run.err" 3>&-
	[ -s "$T/out/samples.jsonl" ]
}

# bats test_tags=slow
@test "a mt-sample that fails is reported once, and training goes on and succeeds" {
	record
	replace_sample <<-'EOF2'
		case " $* " in *" --wait=0 "*) ;; *) echo "mt-sample: no luck" >&2; echo >>"$T/tries"; exit 71 ;; esac
	EOF2
	endless --model "$CASE/model" --data "$CASE/data.bin" --sample "$T/p" --sample-every 2
	thrice() { [ "$(wc -l <"$T/tries")" -ge 3 ]; }
	eventually thrice
	end_it
	[ "$(grep -c "no luck" "$T/run.err")" = 1 ]
	grep -q "^mt-run: step [0-9]*: no sample: no luck" "$T/run.err"
	rm -r "$T/out"
	on_records --steps 3
	grep -q "^mt-run: step 3: no sample: no luck" "$T/run.err"
	[ -f "$T/out/model/config.json" ]
	[ ! -e "$T/out/samples.jsonl" ]
}

# bats test_tags=slow
@test "on a terminal the first line of each sample is shown" {
	need_terminal
	bytes
	printf 'Line \nThe "end\\\n' >"$T/prompts"
	script -qec "'$MT/mt-run' --run $RUN --out '$T/out' $ARGS --model '$T/config.json' --data '$T/text' --bytes \
		--block 32 --steps 3 --sample '$T/prompts' --sample-tokens 4" /dev/null >"$T/screen" 2>&1 </dev/null 3>&-
	grep -aq "mt-run: step 3: Line " "$T/screen"
	grep -aqF 'mt-run: step 3: The "end\' "$T/screen"
}

@test "invalid options and prompts end mt-run before training with one line, and OUT is not made" {
	record
	: >"$T/empty"
	printf '\2\0\0\0\5\0\0\0' >"$T/cut"
	echo 'In the beginning' >"$T/words"
	refuses() {
		fails_with "$1" mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 3 "${@:2}"
	}
	refuses 64 --sample-every 3
	mkfifo "$T/fifo"                                # reading it here would take lines from its reader
	refuses 64 --sample "$T/p" --sample-every 3 --metrics "$T/fifo"
	grep -q "needs --metrics to be a file" "$T/fails.err"
	refuses 64 --sample "$T/p" --sample-every 0
	refuses 64 --sample "$T/p" --sample-tokens 0
	refuses 64 --sample "$T/p" --sample-temperature -1
	refuses 66 --sample "$T/nowhere"
	for file in empty cut words; do refuses 65 --sample "$T/$file"; done
	refuses 65 --sample "$T/cut" --dry-run
	[ ! -e "$T/out" ]
}

# A tokenizer of words for a copy of the model
tokenizer_of_words() {
	cp -r "$CASE/model" "$T/model"
	"$PYTHON" - "$T/model" <<-'PY'
		import json, sys
		from tokenizers import Tokenizer, models, pre_tokenizers
		words = {"w%d" % i: i for i in range(100)} | {"<unk>": 100}
		t = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
		t.pre_tokenizer = pre_tokenizers.Whitespace()
		t.add_special_tokens(["<unk>"])
		t.save(sys.argv[1] + "/tokenizer.json")
		with open(sys.argv[1] + "/tokenizer_config.json", "w") as f:
		    json.dump({"tokenizer_class": "TokenizersBackend", "unk_token": "<unk>"}, f)
	PY
}

@test "the prompts of a tokenizer are converted once, before training" {
	cp -r "$CASE/model" "$T/model"
	echo '{}' >"$T/model/tokenizer.json"
	echo 'two words' >"$T/words"
	replace_sample </dev/null
	rm "$T/bin/mt-tokens"
	cat >"$T/bin/mt-tokens" <<-END
		#!/bin/sh
		echo "\$1" >>'$T/calls'
		[ "\$1" = --prompts ] || exit 78
		printf '\2\0\0\0\5\0\0\0\7\0\0\0'
	END
	chmod +x "$T/bin/mt-tokens"
	mkdir "$T/tmp"
	TMPDIR=$T/tmp run_it --model "$T/model" --data "$CASE/data.bin" --sample "$T/words" --steps 2 --sample-tokens 3
	grep -q '^{"step": 2, "prompt": 1, "tokens": \[5, 7, ' "$T/out/samples.jsonl"
	[ "$(cat "$T/calls")" = $'--prompts\n--decode' ]
	[ -z "$(ls "$T/tmp")" ]
}

# bats test_tags=slow
@test "for a model with a tokenizer, prompts are text or chats and samples have text; without its Python, tokens" {
	need_transformers
	record
	tokenizer_of_words
	printf %s '{% for m in messages %}w1 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w2{% endif %}' \
		>"$T/model/chat_template.jinja"
	echo '{"messages": [{"role": "user", "content": "w5 w7"}, {"role": "assistant", "content": "w9"}]}' >"$T/chats"
	mkdir "$T/python"
	printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$PYTHON")" >"$T/python/python3"
	chmod +x "$T/python/python3"
	echo 'w5 w7' >"$T/words"
	local words='( (w[0-9]+|<unk>)){1,3}'
	for prompts in "$T/words" "$T/p" "$T/chats"; do
		PATH=$T/python:$PATH run_it --model "$T/model" --data "$CASE/data.bin" --steps 2 --sample "$prompts" \
			--sample-tokens 3
		local text='w5 w7'
		[ "$prompts" != "$T/chats" ] || text='w1 w5 w7 w2'
		grep -qE "^\{\"step\": 2, \"prompt\": 1, \"text\": \"$text$words\"\}$" "$T/out/samples.jsonl"
		[ "$(samples)" = 1 ]
		rm -r "$T/out"
	done
	printf '#!/bin/sh\nexec "%s" -IS "$@"\n' "$(command -v python3)" >"$T/python/python3"
	run_it_without() { PATH=$T/python:$PATH run_it --model "$T/model" --data "$CASE/data.bin" --steps 2 "$@"; }
	exits 78 run_it_without --sample "$T/words"
	grep -q "needs transformers.*; or give the prompts as records" "$T/run.err"
	[ "$(wc -l <"$T/run.err")" = 1 ]
	run_it_without --sample "$T/p" --sample-tokens 3
	grep -q '^{"step": 2, "prompt": 1, "tokens": \[5, 7, ' "$T/out/samples.jsonl"
}

# bats test_tags=slow
@test "--resume after the model was deleted: prompts and samples have text by the tokenizer of the checkpoints" {
	need_transformers
	tokenizer_of_words
	mkdir "$T/python"
	printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$PYTHON")" >"$T/python/python3"
	chmod +x "$T/python/python3"
	export PATH=$T/python:$PATH
	echo 'w5 w7' >"$T/words"
	tokens() {
		run_it --model "$T/model" --data "$CASE/data.bin" --sample "$T/words" --sample-tokens 3 --ckpt-every 1 \
			--keep 1 "$@"
	}
	tokens --steps 20 --until 2
	rm -r "$T/model"
	tokens --steps 20 --resume --sample-every 1
	no grep -v '"text": "w5 w7 ' "$T/out/samples.jsonl"
	grep -q '^{"step": 20, ' "$T/out/samples.jsonl"
	[ "$(samples)" -ge 2 ]
	no ls -d "$T"/out/step-*19
	# one that lacks the tokenizer
	cp -r "$CASE/model" "$T/model"
	rm -r "$T/out"
	run_it --model "$T/model" --data "$CASE/data.bin" --steps 20 --until 2
	rm -r "$T/model"
	exits 66 tokens --steps 20 --resume
	grep -q "^mt-run: --sample: $T/model and its tokenizer are gone, and $T/out/step-00000002 has none" "$T/run.err"
}

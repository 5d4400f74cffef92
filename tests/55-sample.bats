# mt-sample: continuations of prompts, from a quiet run and from one that trains.
load helpers

CASE=$GOLDEN/llama3
VOCAB=101
FAMILIES="llama2 llama3 llama3-v4 llama-bias llama-linear qwen2 qwen2-window qwen3 qwen3-v4 mistral mistral-v4"
FAMILIES="$FAMILIES gemma2 gemma4 exaone4 granite cohere2 apertus phi exaone falcon-40b neox olmo-tied"
FAMILIES="$FAMILIES gpt2 gpt-bigcode opt mixtral qwen2-moe granitemoe glm4-moe gpt-oss minimax-m2 exaone-moe sarvam-moe"
FAMILIES="$FAMILIES qwen3-5 qwen3-next lfm2 lfm2-moe deepseek-v3 moonlight kimi-linear granite-hybrid-moe nemotron-h"
FAMILIES="$FAMILIES afmoe gemma4-moe mamba jamba falcon-h1 falcon-h1-norm llama4-chunks llama4-plain gemma4-e"
FAMILIES="$FAMILIES falcon-alibi bloom xglm openai-gpt codegen gpt-neo minicpm3 granite-swa hunyuan-moe nanochat"
FAMILIES="$FAMILIES gemma3n flint"

tokens() { python3 "$TOP/tests/lib/tokens.py" "$@"; }
vocab_of() { sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' "$GOLDEN/$1/model/config.json"; }
# Continuations as text: sampled PROMPTS OPTIONS...
sampled() {
	local from=$1
	shift
	mt-sample "$RUN" "$@" <"$from" >"$T/sampled.rec" 2>"$T/sampled.err"
	tokens show "$T/sampled.rec"
}
record() { python3 -c 'import struct, sys; v = list(map(int, sys.argv[1:])); sys.stdout.buffer.write(
	struct.pack("<%dI" % (len(v) + 1), len(v), *v))' "$@"; }
# The command must fail with CODE and one line, with FILE as stdin: refuses CODE FILE mt-sample ARGS...
refuses() {
	local code=$1 file=$2
	shift 2
	fails_with "$code" sh -c 'f=$1; shift; exec "$@" <"$f"' sh "$file" "$@"
}

size() { stat -c %s "$1" 2>/dev/null || echo 0; }
grown() { [ "$(size "$1")" -ge "$2" ]; }
# The u64 at byte OFF of a region of the run, or set it: region REGION OFF [VALUE]
region() { python3 "$TOP/tests/lib/region.py" "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.$1" "${@:2}"; }
unit_at() { echo $(($(region control 288) + 256 * $1)); }       # struct mt_unit in the control region

# ---- the tokens

# bats test_tags=slow
@test "greedy tokens are the argmax of their logits, and their logits those of each prefix as a prompt" {
	need_cmd python3
	local dtype=fp32
	for case in $(some 3 $FAMILIES); do
		if [ $dtype = fp32 ]; then dtype=bf16; else dtype=fp32; fi
		make_run "$GOLDEN/$case/model" --dtype $dtype
		vocab=$(vocab_of "$case")
		tokens prompts "$T/p" 1 "$vocab" 1 5 20
		mt-sample "$RUN" --temperature 0 --max-tokens 12 --stop none --logits "$T/l" <"$T/p" >"$T/o"
		[ "$(stat -c %s "$T/o")" = $((3 * 13 * 4)) ]
		tokens show "$T/o" | tr ' ' '\n' >"$T/tokens"
		tokens argmax "$T/l" "$vocab" | diff - "$T/tokens"
		tokens prefixes "$T/prefixes" "$T/p" "$T/o"
		mt-sample "$RUN" --temperature 0 --max-tokens 1 --logits "$T/l2" <"$T/prefixes" >"$T/o2"
		tokens show "$T/o2" | diff - "$T/tokens"
		tokens close "$T/l" "$T/l2" "$vocab"
		mt-store rm "$RUN"
	done
}

@test "a bf16 run samples with exact routers: the logits are those of an fp32 run with the same weights" {
	need_cmd python3
	for case in glm4-moe-bias ernie4-5-moe; do
		python3 "$TOP/tests/lib/truncate.py" "$GOLDEN/$case/model" "$T/$case"
		tokens prompts "$T/p" 1 61 1 5 20
		for dtype in fp32 bf16; do
			make_run "$T/$case" --dtype $dtype
			mt-sample "$RUN" --compute fp32 --temperature 0 --max-tokens 12 --stop none --logits "$T/$dtype" \
				<"$T/p" >/dev/null
			mt-store rm "$RUN"
		done
		cmp "$T/fp32" "$T/bf16"
	done
}

@test "prompts longer than a chunk: the logits of each prefix as a prompt" {
	need_cmd python3
	make_run "$GOLDEN/mistral/model" --dtype fp32
	tokens prompts "$T/p" 2 107 505 1030
	mt-sample "$RUN" --temperature 0 --max-tokens 12 --stop none --logits "$T/l" <"$T/p" >"$T/o" 2>"$T/err"
	grep -q "record 1: 505 tokens and --max-tokens 12 are above the model's max_position_embeddings 128" "$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
	tokens prefixes "$T/prefixes" "$T/p" "$T/o"
	mt-sample "$RUN" --temperature 0 --max-tokens 1 --logits "$T/l2" <"$T/prefixes" >"$T/o2" 2>"$T/err"
	tokens close "$T/l" "$T/l2" 107
}

# bats test_tags=slow
@test "greedy continuations and their logits are those of transformers, for all families, in fp32 and bf16" {
	need_torch
	for case in $(some 6 $FAMILIES); do
		for dtype in $(some 2 fp32 bf16); do
			dir=$T/$case-$dtype
			mkdir "$dir"
			make_run "$GOLDEN/$case/model" --dtype $dtype
			tokens prompts "$dir/prompts" 3 "$(vocab_of "$case")" 1 5 20 40
			mt-sample "$RUN" --temperature 0 --max-tokens 20 --logits "$dir/logits" <"$dir/prompts" \
				>"$dir/continuations"
			mt-ckpt export "$RUN" "$dir/model" --dtype $dtype
			mt-store rm "$RUN"
		done
	done
	with_torch "$GOLDEN/generate.py" --max-tokens 20 "$T"/*-fp32 "$T"/*-bf16
}

@test "the same seed gives the same tokens with one, two and three threads; another seed gives others" {
	make_run "$CASE/model" --dtype fp32
	tokens prompts "$T/p" 4 $VOCAB 3 30 100
	sampled "$T/p" --seed 7 --threads 1 --stop none >"$T/1"
	sampled "$T/p" --seed 7 --threads 2 --stop none >"$T/2"
	sampled "$T/p" --seed 7 --threads 3 --stop none >"$T/3"
	sampled "$T/p" --seed 8 --threads 1 --stop none >"$T/other"
	[ "$(wc -w <"$T/1")" = 384 ]
	cmp "$T/1" "$T/2"
	cmp "$T/1" "$T/3"
	no cmp -s "$T/1" "$T/other"
}

# Logits of bf16 are those of fp32 up to rounding, by the way to them that tests/73-compute.bats derives: an error of
# e = 2^-9 / sqrt(3) of each GEMM's input adds up to 2 e sqrt(4 layers + 1) of the logits in the root mean square
# bats test_tags=slow
@test "--compute bf16 gives logits up to bf16's rounding, the same for any number of threads, beside experts, too" {
	make_run "$GOLDEN/qwen3/model" --dtype bf16
	mt-sample "$RUN" --max-tokens 1 --compute bf16 </dev/null 2>"$T/err" || true
	! grep -q -- --compute "$T/err" || skip "$(sed 's/^mt-sample: //' "$T/err")"
	mt-store rm "$RUN"
	for case in qwen3 llama-bias olmo-tied cohere2 mixtral gpt-oss qwen2-moe; do
		make_run "$GOLDEN/$case/model" --dtype bf16
		tokens prompts "$T/p" 5 "$(vocab_of "$case")" 1 5 20 40
		for compute in fp32 bf16; do
			mt-sample "$RUN" --max-tokens 1 --compute $compute --logits "$T/$compute" --threads 1 <"$T/p" >"$T/o"
		done
		mt-sample "$RUN" --max-tokens 1 --compute bf16 --logits "$T/three" --threads 3 <"$T/p" >"$T/o"
		cmp "$T/bf16" "$T/three"
		python3 - "$T/fp32" "$T/bf16" "$GOLDEN/$case/model/config.json" <<-'PY'
			import array, json, math, sys
			a, b = (array.array("f", open(f, "rb").read()) for f in sys.argv[1:3])
			layers = json.load(open(sys.argv[3]))["num_hidden_layers"]
			bound = 3 * 2 * 2 ** -9 / math.sqrt(3) * math.sqrt(4 * layers + 1)
			error = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a))
			print(error, "of", bound)
			assert len(a) == len(b) and 0 < error < bound, (error, bound)
		PY
		mt-sample "$RUN" --temperature 0 --max-tokens 9 --stop none --compute bf16 <"$T/p" >"$T/o"
		[ "$(stat -c %s "$T/o")" = $((4 * 10 * 4)) ]
		mt-store rm "$RUN"
	done
}

@test "--compute bf16 of fp32 weights or without bf16 on the CPU exits 78, another type 64" {
	record 1 2 3 >"$T/p"
	make_run "$CASE/model" --dtype fp32
	refuses 78 "$T/p" mt-sample "$RUN" --compute bf16
	refuses 64 "$T/p" mt-sample "$RUN" --compute int8
	mt-store rm "$RUN"
	make_run "$CASE/model" --dtype bf16
	DNNL_MAX_CPU_ISA=AVX2 refuses 78 "$T/p" mt-sample "$RUN" --compute bf16
	grep -q "^mt-sample: --compute bf16: " "$T/fails.err"
}

@test "equal prompts get different random numbers, and the first record the same whatever follows" {
	make_run "$CASE/model" --dtype fp32
	tokens prompts "$T/one" 4 $VOCAB 10
	cat "$T/one" "$T/one" >"$T/two"
	sampled "$T/one" --stop none >"$T/1"
	sampled "$T/two" --stop none >"$T/2"
	head -1 "$T/2" | cmp - "$T/1"
	no cmp -s "$T/1" <(tail -1 "$T/2")
}

# bats test_tags=slow
@test "--top-k 1, a small --top-p and a temperature near 0 are greedy" {
	make_run "$CASE/model" --dtype fp32
	tokens prompts "$T/p" 5 $VOCAB 3 30
	sampled "$T/p" --temperature 0 --stop none >"$T/greedy"
	[ "$(wc -w <"$T/greedy")" = 256 ]
	for how in "--top-k 1" "--top-p 1e-9" "--temperature 1e-9" "--top-k 5 --top-p 1e-9 --temperature 3"; do
		sampled "$T/p" $how --stop none | cmp - "$T/greedy"
	done
	sampled "$T/p" --stop none >"$T/drawn"
	no cmp -s "$T/drawn" "$T/greedy"
}

@test "--top-k 3 draws only the three likeliest tokens, and not always the first" {
	make_run "$CASE/model" --dtype fp32
	tokens prompts "$T/p" 6 $VOCAB 3 30
	sampled "$T/p" --top-k 3 --stop none --logits "$T/l" >"$T/drawn"
	tokens among "$T/l" $VOCAB 3 "$T/drawn"
}

# bats test_tags=slow
@test "tokens are drawn as often as their probabilities say" {
	make_run "$CASE/model" --dtype fp32
	tokens prompts "$T/one" 7 $VOCAB 2
	for i in $(seq 100); do cat "$T/one"; done >"$T/many"
	for i in $(seq 40); do cat "$T/many"; done >"$T/p"
	sampled "$T/p" --max-tokens 1 --logits "$T/l" >"$T/drawn"
	[ "$(wc -l <"$T/drawn")" = 4000 ]
	tokens shares "$T/l" $VOCAB "$T/drawn"
}

# A tokenizer KIND of 400 tokens, bytes or sentences, in a directory with the case's config.json: tokenizer_of KIND DIR
tokenizer_of() {
	mkdir "$2"
	sed 's/"vocab_size": [0-9]*/"vocab_size": 400/' "$CASE/model/config.json" >"$2/config.json"
	"$PYTHON" - "$@" <<-'PY'
		import sys
		from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
		from transformers import PreTrainedTokenizerFast
		text = ["The naïve question: who? Ünïcödé, 東京 and the rest.", "User: hi\n\nUser: yes\tno\\n"] * 9
		special = ["<|end|>", *("<0x%02X>" % i for i in range(65, 91))]        # whole characters
		if sys.argv[1] == "bytes":
		    t = Tokenizer(models.BPE())
		    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
		    special = special[:1]
		else:
		    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<|end|>"))
		    t.normalizer = normalizers.Replace(" ", "▁")
		    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
		t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=special,
		                                                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
		                                                if sys.argv[1] == "bytes" else []))
		if sys.argv[1] != "bytes":                      # tokens of bytes are not added ones
		    import json
		    made = json.loads(t.to_str())
		    made["added_tokens"] = [a for a in made["added_tokens"] if a["content"] == "<|end|>"]
		    t = Tokenizer.from_str(json.dumps(made))
		PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|end|>").save_pretrained(sys.argv[2])
	PY
}

# bats test_tags=slow
@test "--stop TEXT ends a continuation at the token that completes it; mt-tokens --decode --stop cuts the text there" {
	need_transformers
	for kind in $(some 2 bytes sentences none); do
		if [ $kind = none ]; then make_run "$CASE/model" --dtype fp32
		else
			tokenizer_of $kind "$T/$kind"
			mt-store create "$RUN" --config "$T/$kind" --dtype fp32 2>"$T/err"
			mt-store init "$RUN" --seed 1 2>"$T/err"
			mt-ckpt export "$RUN" "$T/$kind-model" --dtype fp32 2>"$T/err"
			mt-store rm "$RUN"
			cp "$T/$kind"/tokenizer* "$T/$kind-model"
			make_run "$T/$kind-model" --dtype fp32
		fi
		record 5 6 7 >"$T/p"
		for seed in 1 2 3 4 5 6; do record 5 $seed; done >>"$T/p"
		mt-sample "$RUN" --max-tokens 60 --temperature 50 --stop none <"$T/p" >"$T/all"
		"$PYTHON" - "$T" $kind "$RUN" "$MT/mt-tokens" "$GOLDEN" <<-'PY'
			import json, subprocess, sys
			top, kind, run, mt_tokens, golden = sys.argv[1:]
			sys.path.insert(0, golden)
			from records import read_records
			if kind != "none":
			    from tokenizers import Tokenizer
			    t = Tokenizer.from_file(top + "/" + kind + "/tokenizer.json")
			def text(ids):
			    return bytes(ids) if kind == "none" else t.decode(list(ids), skip_special_tokens=False).encode()
			def escaped(stop):
			    return stop.replace(b"\\", rb"\\").replace(b"\n", rb"\n").replace(b"\t", rb"\t")
			every, tried = [list(r) for r in read_records(top + "/all")], set()
			for ids in every:
			    whole = text(ids)
			    for size in 1, 2, 5, 9:
			        stop = whole[len(whole) // 2:][:size]
			        if b"\0" in stop or b"\xef\xbf\xbd" in stop or stop.isdigit():
			            continue
			        try:
			            stop.decode()
			        except UnicodeDecodeError:
			            if kind != "none":
			                continue
			        how = ["--stop", "no such text", b"--stop=" + escaped(stop)]
			        with open(top + "/p", "rb") as prompts, open(top + "/stopped", "wb") as out:
			            subprocess.run(["mt-sample", run, "--max-tokens", "60", "--temperature", "50", "--stop", "none",
			                            *how], stdin=prompts, stdout=out, check=True)
			        got = [list(r) for r in read_records(top + "/stopped")]
			        want = [next((r[:n] for n in range(1, len(r)) if stop in text(r[:n])), r) for r in every]
			        assert got == want, (kind, stop, [len(r) for r in got], [len(r) for r in want])
			        tried.add(any(len(r) < 60 for r in got))
			        model = ["--plain", top + "/" + kind] if kind != "none" else ["--bytes"]
			        lines = subprocess.run([sys.executable, mt_tokens, "--decode", "--json", *how, *model,
			                                top + "/stopped"], check=True, stdout=subprocess.PIPE).stdout.splitlines()
			        for line, ids in zip(map(json.loads, lines), got, strict=True):
			            before, found, _ = text(ids).partition(stop)
			            assert line == {"text": before.decode(errors="replace"),
			                            "stop_reason": stop.decode(errors="replace") if found else None}, (stop, line)
			assert tried >= {True} and len(every) == 7
		PY
		mt-store rm "$RUN"
	done
}

@test "--stop TEXT without the texts of tokens exits 78; with it the model's own tokens still end a continuation" {
	record 1 2 >"$T/p"
	mkdir "$T/model"
	sed 's/"vocab_size": [0-9]*/"vocab_size": 600/' "$CASE/model/config.json" >"$T/model/config.json"
	mt-store create "$RUN" --config "$T/model" 2>"$T/create.err"
	mt-store init "$RUN" --seed 1 2>"$T/init.err"
	refuses 78 "$T/p" mt-sample "$RUN" --stop text
	grep -q -- "--stop TEXT: the run keeps no tokenizer.json" "$T/fails.err"
	mt-store rm "$RUN"
	cp -r "$CASE/model" "$T/words"
	for case in '78|of type WordLevel|{"model": {"type": "WordLevel", "vocab": {"a": 1}}}' '65|not JSON|no JSON'; do
		IFS='|' read -r code words json <<<"$case"
		echo "$json" >"$T/words/tokenizer.json"
		make_run "$T/words" --dtype fp32
		refuses "$code" "$T/p" mt-sample "$RUN" --stop text
		grep -q "$words" "$T/fails.err"
		mt-store rm "$RUN"
	done
	make_run "$CASE/model" --dtype fp32
	for i in 1 2 3 4 5 6 7 8; do record $i; done >"$T/p"
	sampled "$T/p" --temperature 9 --max-tokens 2000 >"$T/own"
	[ "$(sampled "$T/p" --temperature 9 --max-tokens 2000 --stop 'no such text')" = "$(cat "$T/own")" ]
	awk 'NF < 2000' "$T/own" | grep -q .
}

# bats test_tags=slow
@test "--stop ends a continuation after its token, and replaces the model's own" {
	cp -r "$CASE/model" "$T/model"
	make_run "$T/model" --dtype fp32
	tokens prompts "$T/p" 8 $VOCAB 5
	sampled "$T/p" --stop none >"$T/all"
	read -r -a all <"$T/all"
	[ ${#all[@]} = 128 ]
	third=${all[2]}
	until_third=$(for t in "${all[@]}"; do echo "$t"; [ "$t" != "$third" ] || break; done | paste -sd ' ')
	[ "$(sampled "$T/p" --stop "$third")" = "$until_third" ]
	[ "$(sampled "$T/p" --stop 100000 --stop "$third")" = "$until_third" ]
	[ "$(sampled "$T/p" --stop 100000)" = "${all[*]}" ]
	[ "$(cat "$T/sampled.err")" = "mt-sample: warning: --stop 100000 ends nothing: the vocabulary has $VOCAB tokens" ]
	# generation_config.json goes before config.json; both take a number, a list or null
	for eos in "$third" "[100000, $third]"; do
		for file in config generation_config; do
			mt-store rm "$RUN"
			python3 - "$CASE/model" "$T/model" $file "$eos" <<-'PY'
				import json, sys
				for name in "config", "generation_config":
				    path = "/%s.json" % name
				    with open(sys.argv[1] + path) as f:
				        c = json.load(f)
				    c["eos_token_id"] = json.loads(sys.argv[4]) if name == sys.argv[3] else 100000
				    if name == "generation_config" and sys.argv[3] == "config":
				        del c["eos_token_id"]
				    with open(sys.argv[2] + path, "w") as f:
				        json.dump(c, f)
			PY
			make_run "$T/model" --dtype fp32
			[ "$(sampled "$T/p")" = "$until_third" ]
			[ "$(sampled "$T/p" --stop none)" = "${all[*]}" ]
		done
	done
}

@test "--echo writes the prompt first, and the context-only mark of a prompt changes nothing" {
	make_run "$CASE/model" --dtype fp32
	record 5 6 7 >"$T/p"
	record 5 2147483654 7 >"$T/marked"
	new=$(sampled "$T/p" --max-tokens 4 --stop none)
	[ "$(sampled "$T/p" --max-tokens 4 --stop none --echo)" = "5 6 7 $new" ]
	[ "$(sampled "$T/marked" --max-tokens 4 --stop none --echo)" = "5 6 7 $new" ]
}

@test "a prompt is answered before the next one comes" {
	make_run "$CASE/model" --dtype fp32
	mkfifo "$T/in"
	spawn sample sh -c "exec mt-sample $RUN --max-tokens 2 --stop none <$T/in"
	exec 8>"$T/in"
	record 5 6 >&8
	eventually [ -s "$T/sample.out" ]
	[ "$(stat -c %s "$T/sample.out")" = 12 ]
	record 7 >&8
	exec 8>&-
	wait "$PID"
	[ "$(stat -c %s "$T/sample.out")" = 24 ]
}

# ---- a run that trains

TRAIN="--steps 8 --batch 4 --seq 32 --lr 1e-3 --pack none --clip 0"

# $T/reference: the logits that mt-sample gives for the prompt $T/one after each step, while nothing is trained.
# $T/undisturbed: the state of the run in the end. between_steps CREATE'S OPTIONS -- OPTIONS
between_steps() {
	local i create=()
	while [ "$1" != -- ]; do create+=("$1"); shift; done
	shift
	tokens prompts "$T/data" 10 $VOCAB $(yes 32 | head -32)
	make_run "$CASE/model" "${create[@]}"
	start_stages
	for i in $(seq 0 8); do
		[ "$i" = 0 ] || mt-step "$RUN" $TRAIN --until "$i" <"$T/data" >>"$T/m" 2>"$T/step.err"
		mt-sample "$RUN" --logits "$T/quiet" "$@" <"$T/one" >"$T/o" 2>"$T/err"
		cat "$T/quiet" >>"$T/reference"
	done
	state_of "$RUN" >"$T/undisturbed"
}

# The same training in one go, with mt-sample beside it, whose input is $T/prompts: beside CREATE'S OPTIONS -- OPTIONS
beside() {
	local create=()
	while [ "$1" != -- ]; do create+=("$1"); shift; done
	shift
	RUN=$(mt_run_name b)
	make_run "$CASE/model" "${create[@]}"
	start_stages
	mkfifo "$T/rows"
	spawn step sh -c "exec mt-step $RUN $TRAIN <$T/rows"
	STEP=$PID
	exec 8>"$T/rows"
	spawn sample sh -c 'in=$1; shift; exec mt-sample "$@" <"$in"' sh "$T/prompts" "$RUN" --threads 1 "$@"
}
# Its rows of step I: feed I
feed() { dd if="$T/data" bs=$((4 * 33 * 4)) skip=$(($1 - 1)) count=1 status=none >&8; }
committed() { [ "$(wc -l <"$T/step.out")" -ge "$1" ]; }

# Each row of mt-sample's logits must be, bit for bit, one of those that the same training shows between its steps:
# while_training CREATE'S OPTIONS
while_training() {
	local i
	tokens prompts "$T/one" 9 $VOCAB 250
	for i in $(seq 100); do cat "$T/one"; done >"$T/many"
	for i in $(seq 200); do cat "$T/many"; done >"$T/prompts"
	between_steps "$@" -- --max-tokens 1
	beside "$@" -- --max-tokens 1 --logits "$T/l"
	for i in $(seq 8); do
		eventually grown "$T/sample.out" $(($(size "$T/sample.out") + 5 * 8))
		feed "$i"
	done
	exec 8>&-
	wait "$STEP"
	eventually grown "$T/sample.out" $(($(size "$T/sample.out") + 40 * 8)) # more than the buffer of the logits holds
	kill "$PID"
	wait "$PID" || true
	[ ! -s "$T/sample.err" ]
	state_of "$RUN" | cmp - "$T/undisturbed"
	tokens steps "$T/l" "$T/reference" $VOCAB 4
}

# bats test_tags=slow
@test "beside training in fp32, each token is of one committed step, and the run has the bits of an undisturbed one" {
	while_training --dtype fp32
}

# bats test_tags=slow
@test "beside training in bf16, each token is of one committed step, and the run has the bits of an undisturbed one" {
	while_training --dtype bf16
}

# bats test_tags=slow
@test "beside training with --grad none, each token is of one committed step" {
	while_training --dtype bf16 --grad none
}

# A temperature of 1e9 makes all tokens equally likely: the continuation depends on the seed alone, not on the weights.
# Its logits go through a FIFO; while that is full, mt-sample waits between two tokens, and a step is trained.
full() {
	python3 -c 'import fcntl, struct, sys, termios
held = struct.unpack("i", fcntl.ioctl(9, termios.FIONREAD, bytes(4)))[0]
sys.exit(held < fcntl.fcntl(9, 1032))       # F_GETPIPE_SZ'
}
drain() { timeout 60 dd bs=4096 count="$1" iflag=fullblock status=none <&9 >>"$T/l"; }

# bats test_tags=slow
@test "a continuation beside training goes on with each new step's weights, for its whole prefix" {
	tokens prompts "$T/one" 9 $VOCAB 60
	cp "$T/one" "$T/prompts"
	how="--temperature 1e9 --stop none --max-tokens 1000"
	mkfifo "$T/fifo"
	between_steps --dtype fp32 -- $how
	beside --dtype fp32 -- $how --logits "$T/fifo"
	exec 9<>"$T/fifo"
	for i in $(seq 8); do
		eventually full
		feed "$i"
		eventually committed "$i"
		drain 10
	done
	rest=$((1000 * 4 * VOCAB - 80 * 4096))
	drain $((rest / 4096))
	timeout 60 head -c $((rest % 4096)) <&9 >>"$T/l"
	exec 8>&- 9>&-
	wait "$PID"
	cmp "$T/sample.out" "$T/o"
	tokens follow "$T/l" "$T/reference" $VOCAB 8
}

# bats test_tags=slow
@test "beside steps that are shorter than a pass, tokens come all the same, and one line reports it" {
	ready
	tokens prompts "$T/data" 11 $VOCAB $(yes 8 | head -2000)
	mkfifo "$T/rows"
	{ while cat "$T/data"; do :; done >"$T/rows"; } 2>/dev/null 3>&- &
	echo $! >>"$T/pids"
	spawn step sh -c "exec mt-step $RUN --steps 1000000 --batch 1 --seq 8 --lr 1e-6 <$T/rows"
	tokens prompts "$T/one" 12 $VOCAB 6000
	for i in $(seq 100); do cat "$T/one"; done >"$T/prompts"
	spawn sample sh -c "exec mt-sample $RUN --max-tokens 1 --threads 1 <$T/prompts"
	eventually grep -q "steps are shorter than a forward pass" "$T/sample.err"
	eventually grown "$T/sample.out" $(($(size "$T/sample.out") + 16))
	kill "$PID"
	[ "$(grep -c "shorter than a forward pass" "$T/sample.err")" = 1 ]
}

# ---- errors

@test "empty, cut and text input and tokens outside the vocabulary exit 65 and name record and position" {
	make_run "$CASE/model"
	: >"$T/none"
	record >"$T/empty"
	record 1 2 3 | head -c 12 >"$T/cut"
	record 1 2 $VOCAB >"$T/outside"
	printf 'In the beginning' >"$T/text"
	{ record 1; record 2147483748 2147483749; } >"$T/second"
	for f in none empty cut outside text; do refuses 65 "$T/$f" mt-sample "$RUN"; done
	refuses 65 "$T/outside" mt-sample "$RUN"
	grep -q "stdin: record 1: token $VOCAB at position 2 is outside the vocabulary of $VOCAB" "$T/fails.err"
	exits 65 mt-sample "$RUN" --max-tokens 2 --stop none <"$T/second" >"$T/o" 2>"$T/err"
	[ "$(stat -c %s "$T/o")" = 12 ]
	grep -q "record 2: token 101 at position 1" "$T/err"
}

@test "invalid options exit 64 before mt-sample looks for the run" {
	for how in "--temperature -1" "--top-p 0" "--top-p 1.5" "--max-tokens 0" "--stop=" "--stop none --stop 3" \
		"--threads 5000" "--wait -1" "--top-k 1.5"; do
		fails_with 64 mt-sample nowhere $how
	done
	MT_RUN='' fails_with 64 mt-sample
}

@test "a stdout that is a terminal exits 64 with one line" {
	need_terminal
	record 1 >"$T/p"
	python3 - "$T/p" >"$T/tty" <<-'PY'
		import os, pty, subprocess, sys
		master, slave = pty.openpty()
		with open(sys.argv[1]) as prompt:
		    done = subprocess.run(["mt-sample", "nowhere"], stdin=prompt, stdout=slave, stderr=subprocess.PIPE)
		print(done.returncode, done.stderr.decode(), end="")
	PY
	[ "$(wc -l <"$T/tty")" = 1 ]
	grep -q "^64 mt-sample: stdout is a terminal" "$T/tty"
}

@test "no run exits 66, a run without weights 69, a removed run 66" {
	record 1 2 >"$T/p"
	refuses 66 "$T/p" mt-sample "$RUN" --wait 0.1
	mt-store create "$RUN" --config "$CASE/model" 2>"$T/create.err"
	refuses 69 "$T/p" mt-sample "$RUN" --wait 0.1
	mt-ckpt load "$RUN" "$CASE/model" 2>"$T/load.err"
	mkfifo "$T/in"
	spawn sample sh -c "exec mt-sample $RUN --max-tokens 1 <$T/in"
	exec 8>"$T/in"
	cat "$T/p" >&8
	eventually [ -s "$T/sample.out" ]
	mt-store rm "$RUN"
	cat "$T/p" >&8
	exec 8>&-
	exits 66 wait "$PID"
	[ "$(cat "$T/sample.err")" = "mt-sample: run '$RUN' was removed" ]
}

@test "a step that is half applied, without mt-optim, exits 69 after --wait" {
	record 1 2 >"$T/p"
	make_run "$CASE/model" --dtype fp32
	region control $(($(unit_at 1) + 128)) 1        # its version
	refuses 69 "$T/p" mt-sample "$RUN" --wait 0.2
	grep -q "half applied, and mt-optim is gone" "$T/fails.err"
}

@test "weights that are not finite exit 65" {
	record 1 2 >"$T/p"
	make_run "$CASE/model" --dtype fp32
	region store "$(region control $(($(unit_at 3) + 16)))" $((0x7fc000007fc00000))       # the final norm's first two
	refuses 65 "$T/p" mt-sample "$RUN"
	grep -q "record 1: the logit of token 0 is not finite" "$T/fails.err"
}

@test "a reader that closes early ends mt-sample with 0" {
	make_run "$CASE/model" --dtype fp32
	tokens prompts "$T/one" 13 $VOCAB 4
	for i in $(seq 50); do cat "$T/one"; done >"$T/many"
	for i in $(seq 60); do cat "$T/many"; done >"$T/p"
	mkfifo "$T/out"
	sh -c "exec mt-sample $RUN --max-tokens 1 <$T/p >$T/out" 2>"$T/sample.err" 3>&- &
	echo $! >>"$T/pids"
	head -c 80 "$T/out" >"$T/o"
	exits 0 wait $!
	[ ! -s "$T/sample.err" ]
}

@test "a document beyond the learned positions exits 78, one that has all of them does not" {
	record 1 2 >"$T/p"
	make_run "$GOLDEN/gpt2/model"
	refuses 78 "$T/p" mt-sample "$RUN" --max-tokens 63
	grep -q "record 1: 2 tokens and --max-tokens 63 are above 64 tokens: the model has learned no more positions" \
		"$T/fails.err"
	mt-sample "$RUN" --max-tokens 62 --stop none <"$T/p" >"$T/o"
	[ "$(stat -c %s "$T/o")" = 252 ]
}

@test "a dynamic rope beyond max_position_embeddings exits 78" {
	record 1 2 >"$T/p"
	mkdir "$T/model"
	sed 's/"rope_type": "llama3"/"rope_type": "dynamic"/' "$CASE/model/config.json" >"$T/model/config.json"
	mt-store create "$RUN" --config "$T/model" 2>"$T/create.err"
	mt-store init "$RUN" --seed 1 2>"$T/init.err"
	refuses 78 "$T/p" mt-sample "$RUN" --max-tokens 300
	mt-sample "$RUN" --max-tokens 200 --stop none <"$T/p" >"$T/o"
	[ "$(stat -c %s "$T/o")" = 804 ]
}

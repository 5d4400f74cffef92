#!/usr/bin/env bats
# mt-run --dry-run: what a start would need and do.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30"

# IN: in_group, or nothing
dry() {
	${IN:-} mt-run --run "${NAME:-$RUN}" --model "${MODEL:-$CASE/model}" --data "${DATA:-$CASE/data.bin}" \
		--out "${OUT:-$T/out}" $ARGS \
		--dry-run "$@"
}

@test "--dry-run prints data, steps, memory, disk and time, starts nothing and leaves nothing behind" {
	mkdir "$T/tmp"
	TMPDIR=$T/tmp dry --epochs 2 >"$T/report" 2>"$T/err"
	[ ! -s "$T/err" ]
	grep -qx "model     25.8K parameters, bf16, gradients fp32, $CASE/model/config.json" "$T/report"
	grep -q "^data      127 documents, .* tokens, .* targets an epoch; the longest has 64 tokens; 9 % " "$T/report"
	grep -q "^rows      .* of 32 tokens an epoch, [0-9]* % padding" "$T/report"
	n=$(mt-feed --shuffle 1 --epochs 2 "$CASE/data.bin" | mt-step --count --batch 4 --seq 32 |
		sed 's/.*"steps": \([0-9]*\)}/\1/')
	grep -qx "steps     [0-9.]* an epoch, $n in all" "$T/report"
	grep -q "^host      .* GB memory available: fits$" "$T/report"
	grep -q "^disk      .* free: 1 checkpoint of .* and the model: fits$" "$T/report"
	grep -q "^speed     .* tokens/s, $n steps in .* predicted by the rates of cpu, measured$" "$T/report"
	[ ! -e "$T/out" ]
	gone "$RUN"
	[ -z "$(ls "$T/tmp")" ]
}

@test "--dry-run says on a terminal that it counts, and of how many epochs, also where --steps gives none" {
	need_terminal
	local how words
	for how in "--steps 3:1 epoch" "--epochs 2:2 epochs"; do
		words=$(declare -p MT CASE T ARGS RUN; declare -f dry; echo "PATH=$PATH; dry ${how%:*}")
		python3 -c 'import pty, sys; sys.exit(pty.spawn(["bash", "-c", sys.argv[1]]) >> 8)' "$words" >"$T/rows"
		grep -q "mt-run: counts the steps of ${how#*:}.$" "$T/rows" || { cat -v "$T/rows"; return 1; }
		grep -q "^speed" "$T/rows"
	done
}

@test "--dry-run shows backslashes of names as they are, and their control characters as ?" {
	local odd
	odd=$T/$(printf 'a\\n\\033[31m\033[31m')
	cp -r "$CASE/model" "$odd"
	MODEL=$odd dry --steps 3 >"$T/report"
	grep -qF "gradients fp32, $T/a\\n\\033[31m?[31m/config.json" "$T/report"
}

# bats test_tags=slow
@test "--dry-run --json predicts the bytes of a checkpoint with each type of state" {
	local state bytes said model=$CONFIGS/demo.json
	for state in fp32 bf16 int8; do
		MODEL=$model dry --steps 6 --state "$state" --json >"$T/json"
		mt-store create "$RUN" --config "$model" --step-tokens 64 --dtype bf16 --state "$state" 2>"$T/create.err"
		mt-store init "$RUN" --seed 1
		mt-ckpt save "$RUN" "$T/$state"
		mt-store rm "$RUN"
		bytes=$(du -sb --apparent-size "$T/$state" | cut -f 1) said=$(value checkpoint_bytes <"$T/json")
		[ "$bytes" -gt "$said" ]
		[ "$bytes" -lt $((said + said / 100 + 30000)) ]    # beside it, gaps, names and configs
	done
}

# bats test_tags=slow
@test "--dry-run --json predicts the memory and checkpoints that the run then has" {
	dry --steps 6 --json >"$T/json"
	[ "$(value steps <"$T/json")" = 6 ]
	[ "$(value fits <"$T/json")" = True ]
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 --until 4 \
		>"$T/m" 2>"$T/run.err" 3>&-
	bytes=$(du -sb "$T/out/step-00000004" | cut -f 1) said=$(value checkpoint_bytes <"$T/json")
	[ "$bytes" -gt "$said" ]
	[ "$bytes" -lt $((said + 60000)) ]  # beside it, names and configs
	mt-store create "$RUN" --config "$CASE/model" --step-tokens 64 2>"$T/create.err"
	mt-store stat "$RUN" --json >"$T/stat"
	python3 - "$T/json" "$T/stat" <<-'PY'
		import json, sys
		dry, stat = (json.load(open(f)) for f in sys.argv[1:])
		assert abs(dry["shared_bytes"] - stat["bytes"]) < 0.05 * stat["bytes"], (dry, stat["bytes"])
	PY
	# tokens/s are those that the metrics have: of documents, without the padding
	python3 - "$T/json" "$T/m" <<-'PY'
		import json, sys
		dry, lines = json.load(open(sys.argv[1])), [json.loads(line) for line in open(sys.argv[2])]
		a_step = dry["tokens_per_s"] * dry["time_s"] / 6
		assert abs(a_step / (4 * dry["tokens"] / dry["rows"]) - 1) < 1e-3, dry
		assert abs(a_step / (sum(m["processed"] for m in lines) / len(lines)) - 1) < 0.1, (a_step, lines)
	PY
	dry --steps 6 --resume | grep -q "^steps     .*, 4 of them trained"
	dry --steps 6 --resume | grep -q "^speed     .*, 2 steps in"
	fails_with 73 dry --steps 6
}

@test "--dry-run whose report cannot be written exits 74 with one line" {
	out_full() { dry --epochs 2 "$@" >/dev/full; }
	fails_with 74 out_full
	grep -qx "mt-run: stdout: cannot be written" "$T/fails.err"
	fails_with 74 out_full --json
}

@test "--dry-run exits 71 where memory is short" {
	MODEL=$CONFIGS/llama-120b.json
	exits 64 dry --steps 6 --seq 64 >"$T/report" 2>"$T/err"   # twice
	exits 71 dry --steps 6 >"$T/report"
	grep -q "too large for this machine: a smaller model" "$T/report"
	no grep -q "^speed" "$T/report"
	# a state of twice the memory, in small blocks
	have=$(sed -n 's/MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
	python3 - "$CONFIGS/demo.json" "$T/config.json" "$have" <<-'PY'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=16)
		c.pop("head_dim", None)
		c["num_hidden_layers"] = int(int(sys.argv[3]) * 1024 / 8 / (4 * 1024**2 + 3 * 1024 * 4096))
		json.dump(c, open(sys.argv[2], "w"))
	PY
	MODEL=$T/config.json
	exits 71 dry --steps 6 >"$T/report"
	grep -q "^host  .* GB memory available: does not fit; too large for this machine: a smaller model" "$T/report"
}

# As dry, on the emulated GPU
dry_on_gpu() {
	[ -d "$T/emulated" ] || cp -rs "$MT" "$T/emulated"
	ln -sf "$BUILD/emu/mt-stream" "$BUILD/emu/mt-plan" "$T/emulated/"
	env "$@" "$T/emulated/mt-run" --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS \
		--steps 3 --device cuda --dry-run
}

@test "--dry-run adds a GPU's memory to the host's where they are one, and else prints it apart" {
	[ -x "$BUILD/emu/mt-plan" ] || skip "built without a C++ compiler, or with sanitizers"
	dry_on_gpu MT_EMU_MEMORY=4000000000 >"$T/report"
	grep -q "^host      0.00[0-9] GB of .* memory available: fits" "$T/report"
	grep -q "^device    0.1 GB of 4.0 GB device memory: fits" "$T/report"
	dry_on_gpu MT_EMU_INTEGRATED=1 MT_EMU_HOST_TABLES=1 >"$T/report"
	grep -q "^host      0.1 GB of .* memory available: fits" "$T/report"
	no grep -q "^device" "$T/report"
}

# Plans without measured rates have no advice, so this mt-stream adds one
@test "--dry-run names the options that would make a step faster, and by how much" {
	cp -rs "$MT" "$T/advised"
	rm "$T/advised/mt-stream"
	cat >"$T/advised/mt-stream" <<-END
		#!/bin/sh
		"$MT/mt-stream" "\$@" |
			sed 's/^{/&"faster_with": "--state int8 --grad bf16", "faster_times": 1.07, /'
	END
	chmod +x "$T/advised/mt-stream"
	PATH=$T/advised:$PATH dry --epochs 1 >"$T/report"
	grep -qx "          1.07 times as fast with --state int8 --grad bf16" "$T/report"
	grep -q "^speed     .* predicted by the rates of cpu, measured$" "$T/report"
}

@test "--dry-run in a cgroup whose memory is too small exits 71, where the start does" {
	memory_group 1200M
	MODEL=$TOP/bin/run/demo.json
	IN=in_group dry --steps 6 >"$T/report"
	grep -q "^host .* of 1\.[0-3] GB memory available: fits" "$T/report"
	MODEL=$CONFIGS/bench-97m.json
	IN=in_group exits 71 dry --steps 6 >"$T/report"
	grep -q "^host .* of 1\.[0-3] GB memory available: does not fit; --.* ([0-9.]* GB) would fit$" "$T/report"
	exits 71 in_group mt-run --run "$RUN" --model "$MODEL" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 \
		>"$T/m" 2>"$T/run.err" 3>&-
	grep -q "the cgroup has .* left" "$T/run.err"
}

@test "--dry-run exits 74 where the disk is short, and reports data that is read only once" {
	exits 74 dry --steps 16777215 --ckpt-every 1 --keep 999999999 >"$T/report"
	grep -q "^disk .*: does not fit; a smaller --keep, or another --out" "$T/report"
	mt-run --model "$CASE/model" --data - --out "$T/out" $ARGS --steps 6 --dry-run <"$CASE/data.bin" >"$T/report"
	grep -qx "data      is read only once, so it is not counted; 6 steps" "$T/report"
	grep -q "^speed     at most .* tokens/s, 6 steps in" "$T/report"
	fails_with 64 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 --json
	[ ! -e "$T/out" ]
}

# bats test_tags=slow
@test "--dry-run counts the checkpoints that the options will write" {
	counted() {
		dry "$@" >"$T/report"
		sed -n 's/^disk .* free: \([0-9]* checkpoints*\) of .* and the model: fits$/\1/p' "$T/report"
	}
	[ "$(counted --steps 6)" = "1 checkpoint" ]
	[ "$(counted --steps 6 --keep 9)" = "1 checkpoint" ]
	[ "$(counted --steps 6 --ckpt-every 9)" = "1 checkpoint" ]
	[ "$(counted --steps 6 --ckpt-every 4)" = "2 checkpoints" ]
	[ "$(counted --steps 6 --ckpt-every 1)" = "3 checkpoints" ]
	[ "$(counted --steps 6 --ckpt-every 1 --keep 4)" = "5 checkpoints" ]
	[ "$(counted --steps 6 --ckpt-every 1 --keep 9 --until 2)" = "2 checkpoints" ]
	[ "$(counted --steps 6 --ckpt-every 1 --keep-best --eval "$CASE/eval.bin" --eval-every 2)" = "4 checkpoints" ]
	mkdir -p "$T/out"
	cp -r "$CASE/model" "$T/model"
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 4 --until 2 \
		--ckpt-every 1 >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(counted --steps 4 --ckpt-every 1 --resume)" = "1 checkpoint" ]    # two of three are there
}

# What a start would find, DRY-RUN finds: ends with CODE and one line with WORDS; and nothing is left behind
finds() { # CODE WORDS OPTIONS...
	local code=$1 words=$2
	shift 2
	fails_with "$code" dry "$@"
	grep -qF -- "$words" "$T/fails.err" || { cat "$T/fails.err" >&2; return 1; }
	[ ! -e "$T/out" ]
}

@test "--dry-run finds weights that cannot be loaded or read, and kept files that are not there" {
	local pointer='version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n'
	cp -r "$CASE/model" "$T/model"
	MODEL=$T/model
	chmod 000 "$T/model/model.safetensors"
	IN=by_mode finds 77 "model.safetensors: Permission denied" --steps 6
	chmod 644 "$T/model/model.safetensors"
	truncate -s -1 "$T/model/model.safetensors"
	finds 65 "model.safetensors: tensor" --steps 6
	printf "$pointer" >"$T/model/model.safetensors"
	finds 65 "model.safetensors: is a git-lfs pointer" --steps 6
	rm "$T/model/model.safetensors"
	touch "$T/model/pytorch_model.bin"
	finds 66 "mt does not read pytorch_model.bin: in Python" --steps 6
	cp "$CASE/model/model.safetensors" "$T/model"
	printf "$pointer" >"$T/model/tokenizer.json"
	finds 65 "tokenizer.json: is a git-lfs pointer" --steps 6
	rm "$T/model/tokenizer.json"
	dry --steps 6 >"$T/report"
	printf "$pointer" >"$T/model/config.json"
	finds 65 "config.json: is a git-lfs pointer" --steps 6
	mv "$T/model/config.json" "$T/model/adapter_config.json"
	finds 66 "a LoRA adapter, which is no whole model, has adapter_config.json" --steps 6
	printf 'GGUF\3\0\0\0' >"$T/m.gguf"
	MODEL=$T/m.gguf finds 65 "m.gguf: is a GGUF file, which mt does not read" --steps 6
}

@test "--dry-run finds a run's name or memory, or an OUT, that cannot be made" {
	NAME=a/b finds 64 "run name 'a/b': only letters" --steps 6
	mkdir -m 555 "$T/shut"
	IN="by_mode env MT_SHM_DIR=$T/shut" finds 74 "$T/shut: the run's memory cannot be made there" --steps 6
	MT_SHM_DIR=$T/nowhere finds 74 "$T/nowhere: the run's memory cannot be made there" --steps 6
	OUT=$T/shut/out IN=by_mode finds 74 "$T/shut/out: cannot be written" --steps 6
}

@test "--dry-run finds tokens outside the vocabulary wherever they are, and evaluations with nothing to predict" {
	{ cat "$CASE/data.bin"; printf '\002\0\0\0\005\0\0\0\145\0\0\0'; } >"$T/data"
	DATA=$T/data finds 65 "element 1: token 101 is outside the vocabulary of 101" --steps 6 --no-shuffle
	DATA=$T/data finds 65 "element 1: token 101 is outside the vocabulary of 101" --steps 6
	DATA=$T/data finds 65 "element 1: token 101 is outside the vocabulary of 101" --epochs 1 --no-shuffle
	finds 65 "data: record 128, element 1: token 101 is outside" --steps 6 --eval "$T/data" --eval-every 2
	printf '\002\0\0\0\005\0\0\0\006\0\0\200' >"$T/nothing"
	finds 65 "has nothing to predict: with --seq 32 and --long split, every token of its 1 row is context only" \
		--steps 6 --eval "$T/nothing" --eval-every 2
}

@test "--dry-run warns of rows beyond max_position_embeddings, and of dropout" {
	python3 - "$CASE" "$GOLDEN/seed-oss" "$T" <<-'EOF2'
		import json, sys
		c = json.load(open(sys.argv[1] + "/model/config.json"))
		c["max_position_embeddings"] = 31
		json.dump(c, open(sys.argv[3] + "/short.json", "w"))
		c = json.load(open(sys.argv[2] + "/model/config.json"))
		c.update(attention_dropout=0.1, residual_dropout=0.1)
		json.dump(c, open(sys.argv[3] + "/dropout.json", "w"))
	EOF2
	MODEL=$T/short.json dry --steps 2 >"$T/report" 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-step: --seq 32 is above the model's max_position_embeddings 31" ]
	printf '\002\0\0\0\005\0\0\0\006\0\0\0' >"$T/data"
	DATA=$T/data MODEL=$T/dropout.json dry --steps 2 >"$T/report" 2>"$T/err"
	grep -qx "mt-step: warning: config.json asks for dropout, which mt does not do: training is as .*" "$T/err"
}

# bats test_tags=slow
@test "--dry-run exits 65 where most steps would be skipped, and tells how many answers lose their question" {
	python3 - "$T" <<-'EOF2'
		import struct, sys
		X = 1 << 31                     # context only
		def write(name, documents):
		    with open(f"{sys.argv[1]}/{name}", "wb") as f:
		        for d in documents:
		            f.write(struct.pack(f"<{len(d) + 1}I", len(d), *d))
		write("hardly", [[5 | X] * 32] * 240 + [[5] * 32] * 4)
		write("some", [[5 | X] * 32] * 12 + [[5] * 32] * 16)
		write("chats", [[5 | X] * 30 + [6] * 10 + [7 | X] * 10 + [8] * 5] * 6 + [[5 | X] * 8 + [6] * 8] * 4)
	EOF2
	DATA=$T/hardly exits 65 dry --epochs 1 --no-shuffle >"$T/report"
	grep -q "^targets   240 of 244 rows an epoch have none, .*; 60 steps .*, 60 in a row: training would stop" \
		"$T/report"
	DATA=$T/hardly dry --epochs 1 --no-shuffle --max-skipped 0 >"$T/report"
	grep -q "^targets .* 60 in a row$" "$T/report"
	DATA=$T/some dry --epochs 1 --no-shuffle >"$T/report"
	grep -q "^targets .*; 3 steps would be skipped, 3 in a row$" "$T/report"
	DATA=$T/chats dry --epochs 2 >"$T/report"
	grep -q "^answers   6 of 16 lose their question, which --seq 32 cuts off: --long drop leaves out" "$T/report"
	no grep "^targets" "$T/report"
	for how in "--long drop" "--long truncate" "--pack concat"; do
		DATA=$T/chats dry --epochs 2 $how >"$T/report"
		no grep "^answers" "$T/report"
	done
	DATA=$T/chats dry --epochs 2 --json >"$T/json"
	[ "$(value answers <"$T/json") $(value answers_cut <"$T/json")" = "16 6" ]
}

# bats test_tags=slow
@test "--dry-run --tier prints what drives have, what a step moves, and how long it waits at the measured rate" {
	need_tier
	export OUT=$DISK/out MODEL=$CONFIGS/demo.json
	dry --steps 6 --tier --tier-memory 0 >"$T/report"
	grep -Eq "^tier      0.0[45][0-9] GB of lo, m and v in files$" "$T/report"
	grep -Eq "^          0.(09|1)[0-9]* GB a step, and no measured rate, so that the time leaves it out: " "$T/report"
	grep -q "GB in all to the drives$" "$T/report"
	no grep -q "faster" "$T/report"
	[ ! -e "$OUT" ]
	mkdir -p "$OUT/tier"
	echo '{"dir": "tier", "read": 500000, "written": 500000, "sum": 1000000}' >"$OUT/tier/mt-tier-bench.json"
	dry --steps 6 --tier --tier-memory 0 >"$T/report"
	grep -Eq "^          0.(09|1)[0-9]* GB a step, [0-9.]+ s at 0.001 GB/s: a step waits [0-9]+.[0-9] s$" "$T/report"
	sed -n 's/.* GB a step, \([0-9]*\).* waits \([0-9]*\).*/\1 \2/p' "$T/report" |
		awk '{ exit !($2 > 0.9 * $1 && $2 <= $1) }'
	dry --steps 6 --tier-memory 0 --tier --json >"$T/tier"
	dry --steps 6 --json >"$T/memory"
	python3 - "$T/tier" "$T/memory" <<-'PY'
		import json, sys
		tier, memory = (json.load(open(f)) for f in sys.argv[1:])
		assert tier["tier_bytes"] > tier["tier_written"] > 0, tier
		assert abs(tier["tier_s"] - 2 * tier["tier_written"] / 1e6) < 1e-6 * tier["tier_s"], tier
		assert 0 < tier["tier_wait_s"] <= tier["tier_s"] and tier["time_s"] > memory["time_s"], (tier, memory)
		assert tier["disk_bytes"] == memory["disk_bytes"] + tier["tier_bytes"], (tier, memory)
		assert tier["fits"] is True and "tier_s" not in memory, (tier, memory)
	PY
	# of two directories, both are measured, or none counts
	dry --steps 6 --tier-memory 0 --tier "$OUT/tier,$DISK/b" >"$T/report"
	grep -q "no measured rate" "$T/report"
	grep -Eq "^tier .* in files, 0.02[0-9] GB of .* GB free in a directory: fits$" "$T/report"
}

# bats test_tags=slow
@test "a FIFO, device or long line as mt-tier-bench.json is no measured rate, and is not waited for" {
	need_tier
	export OUT=$DISK/out MODEL=$CONFIGS/demo.json
	mkdir -p "$OUT/tier"
	for plant in mkfifo "ln -s /dev/zero" "truncate -s 1T" mkdir; do
		rm -rf "$OUT/tier/mt-tier-bench.json"
		$plant "$OUT/tier/mt-tier-bench.json"
		timeout 60 "$MT/mt-run" --run "$RUN" --model "$MODEL" --data "$CASE/data.bin" --out "$OUT" --batch 4 --seq 32 \
			--lr 1e-3 --dry-run --steps 6 --tier --tier-memory 0 >"$T/report"
		grep -q "no measured rate" "$T/report"
	done
}

@test "--tier on a file system without links to OUT, or without direct I/O, is refused" {
	need_tier
	export OUT=$DISK/out
	fails_with 78 dry --steps 6 --tier "/proc/x"
	grep -q "/proc/x is on another file system than $OUT, and links cannot go there: --copy-tier" "$T/fails.err"
	fails_with 78 dry --steps 6 --tier "/proc/x" --copy-tier
	grep -q "/proc/x: wants ext4, xfs, btrfs or f2fs, has proc" "$T/fails.err"
	fails_with 64 dry --steps 6 --tier-memory 1G
	fails_with 64 dry --steps 6 --copy-tier
	fails_with 64 dry --steps 6 --tier --tier-tile 100
	[ ! -e "$OUT" ]
}

# A chat file of answers that end in <|end|>, token 258: its records in $T/rec; generation_config.json is GENERATION,
# or with none, what config.json says
turns() { # GENERATION
	rm -rf "$T/model/generation_config.json" "$T/out"
	[ -z "$1" ] || echo "$1" >"$T/model/generation_config.json"
	printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "b"}]}\n' a c d e |
		"$PYTHON" "$MT/mt-tokens" "$T/model" >"$T/rec" 2>"$T/tokens.err"
}

# bats test_tags=slow
@test "answers end in a token that generation_config.json lacks: mt-tokens and --dry-run say so, exports have it" {
	has tokenizers jinja2 || skip "needs tokenizers and jinja2 (make venv)"
	local at lacks="answers end in '<|end|>', token 258, which generation_config.json lacks as eos_token_id"
	byte_model "$T/model"
	run_it() {
		mt-run --run "$RUN" --model "$T/model" --data "$T/rec" --out "$T/out" --steps 2 --ckpt-every 1 $ARGS \
			--dtype fp32 "$@" >"$T/m" 2>"$T/err"
	}
	for at in '{"eos_token_id": 256, "top_p": 0.80}' '{"eos_token_id": [256, 257], "top_p": 0.80}' '{"top_p": 0.80}'; do
		turns "$at"
		grep -q "$lacks" "$T/tokens.err"
		run_it --dry-run
		grep -q "$lacks" "$T/err"
		run_it
		grep -q "$lacks" "$T/err"
		jq -c "[.eos_token_id, .top_p]" "$T/out/model/generation_config.json" "$T"/out/step-*/generation_config.json |
			uniq >"$T/now"
		jq -c '[[.eos_token_id // [] | if type == "array" then .[] else . end, 258], 0.8]' <<<"$at" >"$T/want"
		cmp "$T/now" "$T/want"
		# the export is whole: nothing is said of it
		"$PYTHON" "$MT/mt-tokens" "$T/out/model" <<<'{"text": "a"}' 2>"$T/tokens.err" >"$T/r"
		no grep -q "answers end" "$T/tokens.err"
	done
	# without generation_config.json, config.json counts
	jq '.eos_token_id = 256 | .bos_token_id = 255' "$T/model/config.json" >"$T/config.json"
	mv "$T/config.json" "$T/model/config.json"
	turns ''
	grep -q "${lacks/generation_config/config}" "$T/tokens.err"
	run_it
	[ "$(jq -c '[.eos_token_id, .bos_token_id]' "$T/out/model/generation_config.json")" = '[[256,258],255]' ]
	# nothing to say: it is there; the last token is text
	turns '{"eos_token_id": [256, 258]}'
	no grep -q "answers end" "$T/tokens.err"
	run_it
	no grep -q "answers end" "$T/err"
	cmp "$T/model/generation_config.json" "$T/out/model/generation_config.json"
	turns '{"eos_token_id": 256}'
	python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<4I", 3, 5, 6, 7))' >"$T/rec"
	run_it
	no grep -q "answers end" "$T/err"
	cmp "$T/model/generation_config.json" "$T/out/model/generation_config.json"
	fails_with 64 mt-ckpt save "$RUN" "$T/x" --turn-end 3
	fails_with 64 mt-ckpt load "$RUN" "$T/x" --turn-end eos
}

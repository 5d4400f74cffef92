#!/usr/bin/env bats
# mt-run --dry-run: what a start would need and do.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30"

# IN: in_group, or nothing
dry() {
	${IN:-} mt-run --run "$RUN" --model "${MODEL:-$CASE/model}" --data "$CASE/data.bin" --out "$T/out" $ARGS \
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
	grep -q "^disk      .* free: 3 checkpoints of .* and the model: fits$" "$T/report"
	grep -q "^speed     .* tokens/s, $n steps in .* predicted by the rates of cpu, measured$" "$T/report"
	[ ! -e "$T/out" ]
	gone "$RUN"
	[ -z "$(ls "$T/tmp")" ]
}

@test "--dry-run shows backslashes of names as they are, and their control characters as ?" {
	local odd
	odd=$T/$(printf 'a\\n\\033[31m\033[31m')
	cp -r "$CASE/model" "$odd"
	MODEL=$odd dry --steps 3 >"$T/report"
	grep -qF "gradients fp32, $T/a\\n\\033[31m?[31m/config.json" "$T/report"
}

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
	local code=0
	dry --steps 6 --seq 64 >"$T/report" 2>"$T/err" || code=$?
	[ "$code" = 64 ]                    # twice
	code=0
	dry --steps 6 >"$T/report" || code=$?
	[ "$code" = 71 ]
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
	code=0
	dry --steps 6 >"$T/report" || code=$?
	[ "$code" = 71 ]
	grep -q "^host  .* GB memory available: does not fit; too large for this machine: a smaller model" "$T/report"
}

@test "--dry-run in a cgroup whose memory is too small exits 71, where the start does" {
	memory_group 500M
	MODEL=$CONFIGS/demo-small.json
	IN=in_group dry --steps 6 >"$T/report"
	grep -q "^host .* of 0\.[45] GB memory available: fits" "$T/report"
	MODEL=$CONFIGS/bench-97m.json
	local code=0
	IN=in_group dry --steps 6 >"$T/report" || code=$?
	[ "$code" = 71 ]
	grep -q "^host .* of 0\.[45] GB memory available: does not fit" "$T/report"
	code=0
	in_group mt-run --run "$RUN" --model "$MODEL" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 \
		>"$T/m" 2>"$T/run.err" 3>&- || code=$?
	[ "$code" = 71 ]
	grep -q "the cgroup has .* left" "$T/run.err"
}

@test "--dry-run exits 74 where the disk is short, and reports data that is read only once" {
	local code=0
	dry --steps 6 --keep 999999999 >"$T/report" || code=$?
	[ "$code" = 74 ]
	grep -q "^disk .*: does not fit; a smaller --keep, or another --out" "$T/report"
	mt-run --model "$CASE/model" --data - --out "$T/out" $ARGS --steps 6 --dry-run <"$CASE/data.bin" >"$T/report"
	grep -qx "data      is read only once, so it is not counted; 6 steps" "$T/report"
	fails_with 64 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 6 --json
	[ ! -e "$T/out" ]
}

# --state bf16, int8: AdamW's m and v in fewer bytes, rounded stochastically; none: weights alone. tests/30-optim.bats
# has the update itself, tests/33-optim-kills.bats kills of it.
load helpers
load lib/training

STEPS=30 TRAIN="--lr 0.003"

# saves STATE BYTES: --state STATE takes BYTES a parameter less than fp32
saves() {
	local whole less params
	create --dtype bf16 --grad none
	whole=$(stat_value state_bytes) params=$(stat_value params)
	[ "$(stat_value optimizer_state)" = fp32 ]
	mt-store rm "$RUN"
	create --dtype bf16 --grad none --state "$1"
	grep -q "optimizer state $1" "$T/create.err"
	[ "$(stat_value optimizer_state)" = "$1" ]
	mt-store stat "$RUN" | grep -q "optimizer state $1"
	less=$(stat_value state_bytes)
	awk -v saved="$(((whole - less) * 1000 / params))" -v want="$2" \
		'BEGIN { exit !(saved > want * 990 && saved < want * 1010) }'
	for state in fp32 "$1"; do
		mt-stream --plan --json --config "$CONFIGS/qwen2.5-7b.json" --seq 4096 --micro 1 --profile H100 \
			--state "$state" 2>/dev/null >"$T/$state.json"
	done
	python3 - "$T" "$1" "$2" <<-'PY'
	import json, sys
	fp32, less = (json.load(open("%s/%s.json" % (sys.argv[1], s))) for s in ("fp32", sys.argv[2]))
	saved = (fp32["host_bytes"] - less["host_bytes"]) / fp32["params"]
	assert abs(saved - float(sys.argv[3])) < 0.01, saved
	assert less["adam_s"] < fp32["adam_s"]
	PY
}

@test "--state bf16 takes 4 bytes a parameter less; stat and --plan count it" {
	saves bf16 4
}

@test "--state int8 takes 5.875 bytes a parameter less; stat and --plan count it" {
	saves int8 5.875
}

# bats test_tags=slow
@test "97M model, bf16 weights, --grad none: the store takes at most 8.1 bytes a parameter in bf16, 6.2 in int8" {
	takes_at_most 81 --state bf16
	takes_at_most 62 --state int8
}

@test "--state takes fp32, bf16, int8 and none alone, and no other option takes int8" {
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --state fp16
	grep -q "'fp16' is not fp32, bf16, int8 or none" "$T/fails.err"
	fails_with 64 mt-stream --plan --config "$CONFIGS/demo.json" --seq 64 --micro 1 --state none
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --dtype int8
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --grad int8
	fails_with 64 mt-stream --plan --config "$CONFIGS/demo.json" --seq 64 --micro 1 --state fp8
	fails_with 64 mt-stream --plan --config "$CONFIGS/demo.json" --seq 64 --micro 1 --grad int8
}

@test "bf16 state: a training that is stopped, saved, loaded and continued gives the bits of one that is not" {
	continues --state bf16
}

@test "int8 state: a training that is stopped, saved, loaded and continued gives the bits of one that is not" {
	continues --state int8
}

# bats test_tags=slow
@test "int8 state: it also does where a group of 64 elements holds parts of several tensors (q, k and v biases)" {
	model=qwen2 continues --state int8
}

@test "int8 state: it also does where a file has the rows of q, k and v in another order" {
	model=neox continues --state int8
}

# near STATE PERCENT: 30 losses stay within PERCENT of those with fp32 state, and are not the same
near() {
	train fp32 30
	train "$1" 30 --state "$1"
	paste -d ' ' <(losses fp32) <(losses "$1") | awk -v percent="$2" '
		{ d = $1 - $2; if (d < 0) d = -d; if (d > $1 * percent / 100) bad++; if (d > 0) other++ }
		END { exit !(NR == 30 && !bad && other) }'
}

@test "bf16 state: losses stay within 1 % of those with fp32 state, and are not the same" {
	near bf16 1
}

@test "int8 state: losses stay within 2 % of those with fp32 state, and are not the same" {
	near int8 2
}

@test "a checkpoint loads into a run with another type of state, with a warning" {
	train run 10
	train run 20 --state bf16 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in fp32, the run in bf16" "$T/run.err"
	grep -q '"state": "bf16"' "$T/run/step-00000020/run.json"
	train run 30 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in bf16, the run in fp32" "$T/run.err"
	[ "$(losses run | wc -l)" = 30 ]
}

# bats test_tags=slow
@test "int8 state: checkpoints have codes and scales, and load into runs with other types of state, with a warning" {
	train run 5 --state int8
	grep -q '"version": 2' "$T/run/step-00000005/run.json"
	grep -q '"state": "int8"' "$T/run/step-00000005/run.json"
	PYTHONPATH=$TOP/tests/lib python3 - "$T/run/step-00000005/optim-v.safetensors" <<-'PY'
	import sys
	from moments import tensors
	file = tensors(sys.argv[1])
	codes = [name for name in file if not name.endswith(".scale")]
	assert codes and len(file) == 2 * len(codes), file.keys()
	for name in codes:
	    (one, code), (other, scale) = file[name], file[name + ".scale"]
	    assert one == "U8" and other == "F32" and len(scale) == len(code) / 64 * 4, name
	PY
	train run 10 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in int8, the run in fp32: no bit is lost" "$T/run.err"
	train run 15 --state int8 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in fp32, the run in int8: they are rounded" "$T/run.err"
	train run 20 --state bf16 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in int8, the run in bf16: they are rounded" "$T/run.err"
	train run 30 --state int8 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in bf16, the run in int8: they are rounded" "$T/run.err"
	[ "$(losses run | wc -l)" = 30 ]
}

# converts FROM TO...: a checkpoint with m and v of FROM loads into runs of other types: exit 0, one warning on stderr,
# and m and v as they were, or rounded to nearest
converts() {
	local from=$1 dir=$T/run/step-00000003 to
	shift
	train run 3 --state "$from"
	for to; do
		make_run "$dir" --dtype bf16 --state "$to"
		[ "$(wc -l <"$T/load.err")" = 1 ]
		grep -q "^mt-ckpt: warning: the checkpoint has AdamW's m and v in $from, the run in $to: " "$T/load.err"
		mt-ckpt save "$RUN" "$T/$to" 2>/dev/null
		mt-store rm "$RUN"
		store-layout "$dir/config.json" >"$T/layout"
		PYTHONPATH=$TOP/tests/lib python3 - "$to" "$T/layout" "$dir" "$T/$to" <<-'PY'
		import sys
		from moments import number, read
		to, layout, *dirs = sys.argv[1:]
		for which in "mv":
		    old, new = (read(d, which, open(layout)) for d in dirs)
		    assert old.keys() == new.keys() and old
		    pairs = [p for name in old for p in zip(old[name], new[name], strict=True)]
		    if to == "fp32":
		        want = [a for a, b in pairs]
		    elif to == "bf16": # to nearest, ties to even
		        want = [a + 0x7fff + (a >> 16 & 1) & 0xffff0000 for a, b in pairs]
		    else: # three bits of fraction; a halfway case away from 0; what is too small for a group's codes apart
		        assert not any(b & 0xfffff for a, b in pairs)
		        least = max(abs(number(a)) for a, b in pairs) * 1.125 * 2.0 ** (-15 if which == "m" else -31)
		        want = [b if abs(number(a)) <= least >= abs(number(b)) else a + 0x80000 & 0xfff00000 for a, b in pairs]
		        assert sum(abs(number(a)) > least for a, b in pairs) > len(pairs) / 2
		    wrong = [(a, b, w) for (a, b), w in zip(pairs, want) if b != w]
		    assert not wrong, (which, len(wrong), [tuple(map(number, x)) for x in wrong[:3]])
		PY
	done
}

@test "a checkpoint with m and v in fp32 loads into bf16 and int8 runs: one warning, values rounded to nearest" {
	converts fp32 bf16 int8
}

@test "a checkpoint with m and v in bf16 loads into fp32 and int8 runs: one warning, values kept or rounded" {
	converts bf16 fp32 int8
}

@test "a checkpoint with m and v in int8 loads into fp32 and bf16 runs: one warning, the same values" {
	converts int8 fp32 bf16
}

# Fill runs with DIR, a checkpoint, as they come: loaded DIR [mt-store create's options]
loaded() {
	local dir=$1
	shift
	mt-store create "$RUN" --config "$dir" "$@" 2>/dev/null
	mt-ckpt load "$RUN" "$dir" 2>"$T/load.err"
}

@test "int8 state: a checkpoint that is loaded and saved again has the same files; also in shards, also as fp32 run" {
	local dir=$T/run/step-00000003 model
	for model in qwen2 falcon; do
		train run 3 --state int8
		loaded "$dir" --state int8
		mt-ckpt save "$RUN" "$T/again"
		for f in model optim-lo optim-m optim-v; do cmp "$dir/$f.safetensors" "$T/again/$f.safetensors"; done
		state_of "$RUN" >"$T/before"
		mt-ckpt save "$RUN" "$T/shards" --shard 4000
		mt-ckpt verify "$T/shards"
		[ -e "$T/shards/optim-v.safetensors.index.json" ]
		mt-store rm "$RUN"
		loaded "$T/shards" --state int8
		state_of "$RUN" | diff "$T/before" -
		mt-store rm "$RUN"
		loaded "$dir" --state int8 --dtype fp32
		state_of "$RUN" | grep ' [mv] ' | diff <(grep ' [mv] ' "$T/before") -
		mt-store rm "$RUN"
		rm -r "$T/run" "$T/again" "$T/shards"
	done
}

@test "int8 state: a scale that is no power of two, a part that is missing, and another dtype are refused with 65" {
	local dir=$T/run/step-00000003 at edit
	train run 3 --state int8
	cp -r "$dir" "$T/cut"
	for edit in 'h["unit.1[0:1]"] = h.pop(next(n for n in h if n.startswith("unit.1[")))' \
		'n = next(n for n in h if n.endswith(".scale")); h[n]["dtype"] = "I32"' \
		'n = next(n for n in h if n.startswith("unit.0[")); h[n]["dtype"] = "I8"'; do
		cp "$dir"/* "$T/cut/"
		python3 "$TOP/tests/lib/mksafetensors.py" edit "$T/cut/optim-m.safetensors" "$edit"
		ckpt-edit "$T/cut" --files
		fails_with 65 mt-ckpt verify "$T/cut"
		grep -q "optim-m.safetensors: tensor 'unit\." "$T/fails.err"
	done
	cp "$dir"/* "$T/cut/"
	python3 "$TOP/tests/lib/mksafetensors.py" edit "$T/cut/optim-v.safetensors" '
at = h[next(n for n in h if n.endswith(".scale"))]["data_offsets"][0]
d[at + 8:at + 12] = struct.pack("<f", 3.0)'
	ckpt-edit "$T/cut" --files
	for state in int8 fp32; do
		mt-store create "$RUN" --config "$dir" --state "$state" 2>/dev/null
		exits 65 mt-ckpt load "$RUN" "$T/cut" 2>"$T/load.err"
		grep -q "optim-v.safetensors: tensor 'unit.0\[.*\].scale': element 2 is not a scale" "$T/load.err"
		mt-store rm "$RUN"
	done
}

@test "a run.json whose type of state is unknown, or not that of its files, is refused with 65" {
	train run 2 --state bf16
	local dir=$T/run/step-00000002
	mt-store create "$RUN" --config "$dir" --dtype bf16 --state bf16 2>/dev/null
	cp "$dir/run.json" "$T/run.json"
	sed -i 's/"state": "bf16"/"state": "fp16"/' "$dir/run.json"
	fails_with 65 mt-ckpt load "$RUN" "$dir"
	sed 's/"state": "bf16"/"state": "fp32"/' "$T/run.json" >"$dir/run.json"
	fails_with 65 mt-ckpt load "$RUN" "$dir"
	cp "$T/run.json" "$dir/run.json"
	mt-ckpt load "$RUN" "$dir"
}

@test "the tests' dump hashes m and v by the type of the state: of a new run, both are zeros and equal" {
	local state
	for state in fp32 bf16 int8; do
		make_run "$GOLDEN/llama3/model" --grad none --state "$state"
		ckpt-dump "$RUN" >"$T/dump"
		awk '$3 == "m" { m = $4; n++ } $3 == "v" && m != $4 { n = -1; exit } END { exit n < 1 }' "$T/dump"
		mt-store rm "$RUN"
	done
}

# ---- weights alone

# Bytes a parameter, and bytes of lo: alone CONFIG [create's options]
alone() {
	local config=$1
	shift
	mt-store create "$RUN" --config "$config" --state none "$@" 2>"$T/create.err"
	mt-store stat "$RUN" --json >"$T/stat"
	mt-store rm "$RUN"
	grep -q ', gradients none, no optimizer state: ' "$T/create.err"
	python3 - "$T/stat" <<-'PY'
	import json, sys
	s = json.load(open(sys.argv[1]))
	assert (s["grad"], s["optimizer_state"]) == ("none", "none")
	assert not any(s["memory"][a] for a in "mvg")
	print("%.1f %d" % (s["bytes_per_param"], s["memory"]["lo"]))
	PY
}

# bats test_tags=slow
@test "--state none takes 2 bytes a parameter in bf16, 4 in fp32, and lo of exact routers alone" {
	local dtype
	[ "$(alone "$CONFIGS/bench-97m.json" --dtype bf16)" = "2.0 0" ]
	[ "$(alone "$CONFIGS/bench-97m.json" --dtype fp32 --grad none)" = "4.0 0" ]
	[ "$(alone "$CONFIGS/bench-moe.json" | sed 's/ .*//')" = 2.0 ]
	python3 - "$GOLDEN/glm4-moe-bias/model/config.json" "$T/moe.json" <<-'PY'
	import json, sys
	c = json.load(open(sys.argv[1]))
	c.update(hidden_size=256, num_hidden_layers=3, moe_intermediate_size=512, intermediate_size=512, vocab_size=4000,
	    n_routed_experts=16)
	json.dump(c, open(sys.argv[2], "w"))
	PY
	[ "$(alone "$T/moe.json" --dtype fp32)" = "4.0 0" ]
	[ "$(alone "$T/moe.json")" = "2.0 $((2 * (16 * 256 + 16) * 2))" ]       # two layers: router and correction
}

@test "--state none excludes gradients and several nodes, and mt-run refuses it before anything is made" {
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --state none --grad fp32
	grep -q "has no gradients: --grad none, or leave it out" "$T/fails.err"
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --state none --node 0/2
	grep -q "not on several nodes" "$T/fails.err"
	fails_with 66 mt-store stat "$RUN"
	STEPS=3 exits 64 train run 3 --state none
	grep -q "^mt-run: --state none: a run of weights alone cannot be trained" "$T/run.err"
	[ ! -e "$T/run" ]
}

# Replaces the run by one of weights alone, which COMMAND fills: it has the weights of the run before, in all units, and
# its exports have the same files: same_weights COMMAND...
same_weights() {
	ckpt-dump "$RUN" | grep -e '^step' -e ' w ' -e version >"$T/whole"
	mt-ckpt export "$RUN" "$T/export" 2>/dev/null
	mt-store rm "$RUN"
	mt-store create "$RUN" --config "$model" --dtype "$dtype" --state none 2>/dev/null
	"$@" 2>"$T/load.err"
	ckpt-dump "$RUN" >"$T/alone"
	grep -e '^step' -e ' w ' -e version "$T/alone" | diff "$T/whole" -
	no grep -q -e ' m ' -e ' v ' -e ' lo ' "$T/alone"
	mt-ckpt export "$RUN" "$T/again" 2>/dev/null
	diff -r "$T/export" "$T/again"
	mt-store rm "$RUN"
	rm -r "$T/export" "$T/again"
}

# bats test_tags=slow
@test "a run of weights alone is filled by load and init as any other, from models and checkpoints" {
	local dtype model case of
	for dtype in bf16 fp32; do
		for case in llama3 glm4-moe-bias gpt-oss; do
			model=$GOLDEN/$case/model
			make_run "$model" --dtype $dtype
			same_weights mt-ckpt load "$RUN" "$model"
			[ ! -s "$T/load.err" ]
			mt-store create "$RUN" --config "$model" --dtype $dtype 2>/dev/null
			mt-store init "$RUN" --seed 3 2>/dev/null
			same_weights mt-store init "$RUN" --seed 3
		done
		for of in "bf16 int8 adamw" "fp32 fp32 lion"; do
			read -r from state optim <<<"$of"
			model=glm4-moe-bias train run 3 --dtype "$from" --state "$state" --optim "$optim"
			model=$T/run/step-00000003
			make_run "$model" --dtype $dtype --optim "$optim"
			same_weights mt-ckpt load "$RUN" "$model"
			grep -q '^step 3 t 3$' "$T/whole"
			[ ! -s "$T/load.err" ]
			rm -r "$T/run"
		done
	done
}

# bats test_tags=slow
@test "mt-sample writes the same tokens and logits from weights alone as from a run with state" {
	local case dtype how
	for case in llama3 glm4-moe-bias qwen3-5 gemma4-moe; do
		python3 "$TOP/tests/lib/tokens.py" prompts "$T/p" 1 50 1 5 20
		for dtype in bf16 fp32; do
			for how in fp32 none; do
				make_run "$GOLDEN/$case/model" --dtype $dtype --state $how
				mt-sample "$RUN" --compute fp32 --max-tokens 12 --stop none --logits "$T/$how.logits" <"$T/p" >"$T/$how"
				mt-store rm "$RUN"
			done
			cmp "$T/fp32" "$T/none"
			cmp "$T/fp32.logits" "$T/none.logits"
		done
	done
}

@test "mt-stream evaluates and scores weights alone with the same bits; a training step ends it with one line" {
	local how
	for case in llama3 glm4-moe-bias; do
		for how in fp32 none; do
			make_run "$GOLDEN/$case/model" --dtype bf16 --state $how --step-tokens 1K
			spawn stream mt-stream "$RUN" --device cpu --threads 1
			stream-drive step "$RUN" 3 16 2 1 5 eval >"$T/$how"
			mt-score "$RUN" --seq 24 --micro 4 --tokens <"$GOLDEN/$case/data.bin" >>"$T/$how"
			if [ $how = none ]; then
				batch_ends_stream 78 3 16 1 1 5
				[ "$(wc -l <"$T/stream.err")" = 1 ]
				grep -q "^mt-stream: run '$RUN' has weights alone, for scores and samples: create" "$T/stream.err"
			fi
			mt-store rm "$RUN" --force
		done
		[ "$(grep -c -e '"logp"' -e loss "$T/fp32")" -gt 10 ]
		cmp "$T/fp32" "$T/none"
	done
}

@test "what updates or saves state refuses a run of weights alone with 78; its weights are exported in their dtype" {
	local command
	make_run "$GOLDEN/llama3/model" --dtype bf16 --state none
	for command in "mt-optim $RUN" "mt-step $RUN --steps 1 --batch 1 --seq 8 --lr 1" "mt-ckpt save $RUN $T/step" \
		"mt-ckpt serve $RUN --dir $T/dir"; do
		fails_with 78 timeout 20 $command
		grep -q "'$RUN' has weights alone, for scores and samples: create the run without --state none" "$T/fails.err"
	done
	fails_with 78 mt-ckpt export "$RUN" "$T/fp32" --dtype fp32
	grep -q "run '$RUN' has bf16 weights alone (--state none): export it without --dtype fp32" "$T/fails.err"
	[ ! -e "$T/step" ] && [ ! -e "$T/dir" ] && [ ! -e "$T/fp32" ]
	mt-store rm "$RUN"
	make_run "$GOLDEN/llama3/model" --dtype fp32 --state none
	mt-ckpt export "$RUN" "$T/fp32"
	mt-ckpt export "$RUN" "$T/bf16" --dtype bf16
	python3 "$TOP/tests/lib/mksafetensors.py" same "$GOLDEN/llama3/model" "$T/fp32"
}

@test "a load into weights alone that was killed leaves an unfilled run, and the next load fills it" {
	strace -f -o /dev/null true 2>/dev/null || skip "needs strace"
	local model=$GOLDEN/glm4-moe-bias/model
	make_run "$model" --dtype bf16 --state none
	ckpt-dump "$RUN" >"$T/whole"
	strace -o "$T/trace" -e trace=pread64 mt-ckpt load "$RUN" "$model" --threads 1
	no strace -o /dev/null -e inject=pread64:signal=KILL:when="$(grep -c pread64 "$T/trace")" \
		mt-ckpt load "$RUN" "$model" --threads 1
	[ "$(stat_value state)" = filling ]
	exits 69 mt-sample "$RUN" --wait 0.2 </dev/null 2>/dev/null >"$T/out"
	mt-ckpt load "$RUN" "$model"
	ckpt-dump "$RUN" | diff "$T/whole" -
}

@test "serve --until-eof removes a run of weights alone without a save, whatever was evaluated" {
	train run 3 --dtype bf16
	make_run "$T/run/step-00000003" --dtype bf16 --state none --step-tokens 1K
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	stream-drive step "$RUN" 3 16 1 1 5 eval >"$T/out"
	stream-drive step "$RUN" 3 16 1 1 5 eval >"$T/out"
	mkfifo "$T/owner"
	spawn serve sh -c 'exec mt-store serve "$0" --until-eof --dir "$1" <"$2"' "$RUN" "$T/dir" "$T/owner"
	sleep 0.2 >"$T/owner"
	wait "$PID"
	grep -q 'is removed; it had trained nothing' "$T/serve.err"
	fails_with 66 mt-store stat "$RUN"
	[ ! -e "$T/dir" ]
}

# Set a field of the control region: control FIELD NUMBER
control() {
	mt-store stat --abi --json | python3 -c 'import json, struct, sys
path, field, number = sys.argv[1:]
with open(path, "r+b") as f:
    f.seek(json.load(sys.stdin)["structures"]["mt_control"]["fields"][field]["offset"])
    f.write(struct.pack("<I", int(number)))' "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.control" "$@"
}

@test "a control region whose state and arrays disagree is damaged: 65" {
	local field
	make_run "$GOLDEN/glm4-moe/model" --state none
	for field in "grad 3 2" "state 3 2" "dtype 1 2"; do
		set -- $field
		control "$1" "$3"
		fails_with 65 mt-store stat "$RUN"
		control "$1" "$2"
		mt-store stat "$RUN" >"$T/out"
	done
}

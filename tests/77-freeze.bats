#!/usr/bin/env bats
# --train and --freeze: what is trained has the bits of a run in which the rest stays as it is, and the rest its own.
# tests/golden has steps of PyTorch with requires_grad False; tests/crash/crash.py kills stages of such runs (suite 80).
load helpers
load lib/golden
load lib/nodes

ARGS=(--steps 6 --batch 4 --micro 2 --seq 32 --lr 0.003 --warmup 1 --wd 0.1 --eps 1e-5 --clip 1)
CASE=$GOLDEN/llama3
BLOCK='model.layers.1.*,lm_head.weight'
NORMS='*norm*,model.layers.0.mlp.*'

# shellcheck disable=SC2034
setup() {
	T=$BATS_TEST_TMPDIR
	RUN=$(mt_run_name)
	NODE_REGIONS=${MT_SHM_DIR:-/dev/shm}
	NODES=0
	: >"$T/pids"
}

@test "one block and the LM head are trained: losses, norms and weights match PyTorch's" { golden llama3 --part block; }
@test "norms and the embedding are trained: losses, norms and weights match PyTorch's" { golden llama3 --part norms; }
@test "a tied embedding and a block are frozen: losses, norms and weights match PyTorch's" {
	golden qwen3 --part blocks
}

# The gradients of a step of a golden CASE in $T/OUT: grads OUT CASE "MT-STREAM'S OPTIONS" [mt-store create's]
grads() {
	local out=$1 case=$2 stream=$3
	shift 3
	make_run "$GOLDEN/$case/model" --dtype fp32 "$@"
	# shellcheck disable=SC2086
	spawn stream ${STREAM:-mt-stream --compute fp32} "$RUN" --threads 1 $stream
	spawn optim mt-optim "$RUN" --threads 1
	mt-step "$RUN" $(cat "$GOLDEN/$case/args") --until 1 <"$GOLDEN/$case/data.bin" >"$T/metrics" 2>"$T/step.err"
	ckpt-dump "$RUN" grads "$T/$out"
	mt-store rm "$RUN" --force
}

# $T/part has the gradients of $T/full of tensors with these names, and others are 0: as_in_full PATTERNS
as_in_full() {
	PYTHONPATH=$GOLDEN python3 - "$T/full" "$T/part" "$1" <<-'END'
		import fnmatch, sys
		from compare import read_safetensors
		full, part = map(read_safetensors, sys.argv[1:3])
		trained = {n for n in full if any(fnmatch.fnmatchcase(n, p) for p in sys.argv[3].split(","))}
		assert trained and trained < set(full), trained
		for name, (dtype, shape, values) in full.items():
		    assert list(part[name][2]) == (list(values) if name in trained else [0.0] * len(values)), name
	END
}

@test "what is trained has the gradients of a run that trains all, to the last bit, and what is not has none" {
	local line case options patterns
	while IFS='|' read -r case options patterns; do
		grads full "$case" "${options/--device*/}"
		grads part "$case" "$options" --train "$patterns"
		as_in_full "$patterns"
	done < <(mapfile -t all <<-'END'
		qwen3|--recompute full|model.norm.weight
		qwen3|--pass-rows 2|*.1.mlp.down_proj.weight,*norm*
		qwen3-moe|--expert-window 1 --device chaos:3|*.mlp.experts.2.*
		qwen3-moe||model.layers.0.self_attn.v_proj.weight
		gpt-oss|--expert-window 2 --device chaos:4|*bias
		gemma4-e|--device chaos:5|model.layers.[4-9].*
		gemma4-e|--recompute none|model.per_layer_projection_norm.weight
		gemma4-moe|--expert-window 1|*.1.*
		deepseek-v3|--device chaos:6|*.2.*,model.layers.1.mlp.gate.weight
		qwen3-5|--recompute full|*.A_log,*conv1d*
		falcon-h1||*norm*
	END
	some 3 "${all[@]}")
}

train() { train_case "$@"; }

same() { # NAME NAME
	diff "$T/$1.state" "$T/$2.state"
	diff <(timeless "$T/$1.metrics") <(timeless "$T/$2.metrics")
	[ "$(wc -l <"$T/$1.metrics")" = 6 ]
}

@test "frozen weights keep their bits, and a unit of them has neither lo, m, v nor gradients, by any optimizer" {
	local how name
	for how in "" $(some 3 --dtype=fp32 --state=bf16 --state=int8,--grad=bf16 --optim=lion --optim=sgd,--state=int8); do
		name=t${how//[=,-]/}
		BEFORE=1 train "$name" "${how//,/ } --train $NORMS"
		mt-ckpt export "$RUN" "$T/$name.after" --dtype fp32
		PYTHONPATH=$GOLDEN python3 - "$T/$name.before" "$T/$name.after" <<-'END'
			import sys
			from compare import read_model
			before, after = map(read_model, sys.argv[1:])
			for name, (_, _, values) in before.items():
			    same = list(values) == list(after[name][2])
			    assert same != ("norm" in name or "layers.0.mlp" in name), name
		END
		mt-store stat "$RUN" | grep -q "25.8 k parameters, 5.15 k of them trained"
		no grep -Eq "^unit 0 (lo|m|v) " "$T/$name.state"
		grep -q "^unit 0 version 6" "$T/$name.state"
		mt-store rm "$RUN" --force
	done
}

@test "two streams, threads, chaos, and an update as gradients come change no bit of a run with frozen parts" {
	local part
	for part in "--train $BLOCK" "--freeze model.layers.1.*,*.v_proj.weight,model.norm.weight,lm_head.weight"; do
		train one "$part"
		STREAMS=2 train two "$part"
		STREAM="mt-stream --device chaos:$RANDOM" OPTIM_THREADS=3 train chaos "$part"
		same one two
		same one chaos
		train late "$part" --clip 0
		UPDATE=early train early "$part" --clip 0
		same late early
		# without gradients in memory there is no norm
		train kept "$part" --clip 0 --micro 4
		train none "$part --grad none" --clip 0 --micro 4
		diff "$T/kept.state" "$T/none.state"
		rm "$T"/*.state
		for name in one two chaos late early kept none; do mt-store rm "$(mt_run_name $name)" --force; done
	done
}

@test "state in files: a run with frozen parts has the bits of one in memory, and its frozen units no files" {
	need_tier
	train memory "--train $NORMS" --clip 0
	train late "--train $NORMS --tier $DISK/late --tier-memory 0" --clip 0
	no find "$DISK/late" -name 'unit-0000.*' -o -name 'unit-0003.*' | grep .
	find "$DISK/late" -name 'unit-0002.*' | grep .
	UPDATE=early train early "--train $NORMS --tier $DISK/early --tier-memory 0 --update early" --clip 0
	same memory late
	same memory early
	for name in memory late early; do mt-store rm "$(mt_run_name $name)" --force; done
}

@test "two nodes give the bits of one machine where parts are frozen" {
	need_mpi
	mt-feed --epochs 4 --shuffle 1 "$CASE/data.bin" >"$T/records"
	for CREATE in "--freeze=model.embed_tokens.weight,model.layers.0.*" "--train=*norm*"; do
		export CREATE
		set -f
		one 2 "${ARGS[@]}"
		nodes 2 "${ARGS[@]}"
		set +f
		same_as_one
		rm -rf "$(region_dir one)" "$(region_dir 0)" "$(region_dir 1)"
	done
}

# bats test_tags=slow
@test "the cuda device on the emulator: what is trained has the bits of a run that trains all" {
	STREAM="$BUILD/emu/mt-stream --device cuda"
	[ -x "${STREAM%% *}" ] || skip "built without a C++ compiler, or with sanitizers"
	for case in qwen3 qwen3-moe; do
		grads full $case ""
		grads part $case "" --train '*.1.*'
		as_in_full '*.1.*'
	done
}

@test "a checkpoint has state of what is trained alone, loads with its own patterns, and exits 78 with others" {
	train one "--freeze model.embed_tokens.weight,model.layers.0.*,model.norm.weight"
	mt-ckpt save "$RUN" "$T/ck"
	mt-ckpt verify "$T/ck"
	grep -q '"version": 4' "$T/ck/run.json"
	python3 - "$T/ck" <<-'END'
		import json, struct, sys
		for kind in "lo", "m", "v":
		    with open("%s/optim-%s.safetensors" % (sys.argv[1], kind), "rb") as f:
		        names = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
		    assert any("layers.1" in n for n in names) and "model.norm.weight" in names, kind
		    assert not any("embed" in n or "layers.0" in n for n in names), kind
	END
	mt-store rm "$RUN" --force
	RUN=$(mt_run_name b)
	mt-store create "$RUN" --config "$T/ck" --freeze 'model.layers.0.*,*embed*,model.norm.weight' 2>"$T/err"
	mt-ckpt load "$RUN" "$T/ck"
	state_of "$RUN" | sed 's/ pin .*//' | diff - "$T/one.state"
	mt-store rm "$RUN"
	mt-store create "$RUN" --config "$T/ck" --freeze '*embed*' 2>"$T/err"
	fails_with 78 mt-ckpt load "$RUN" "$T/ck"
	grep -q "'model.layers.0.input_layernorm.weight' is frozen in the checkpoint, and trained in the run" "$T/fails.err"
	mt-ckpt load "$RUN" "$T/ck" --weights
	mt-ckpt export "$RUN" "$T/a" --dtype bf16
	mt-ckpt export --from "$T/ck" "$T/b"
	cmp "$T/a/model.safetensors" "$T/b/model.safetensors"
}

@test "mt-run --freeze: a training that was cut continues with its bits, and refuses other patterns" {
	local args=(--model "$CASE/model" --data "$CASE/data.bin" --batch 4 --seq 32 --lr 1e-3 --epochs 1 --quiet
		--ckpt-every 3 --freeze 'model.embed_tokens.weight,model.layers.0.*')
	mt-run "${args[@]}" --out "$T/whole" --dry-run | grep -q "^model  *12.9K of 25.8K parameters"
	mt-run "${args[@]}" --out "$T/whole"
	mt-run "${args[@]}" --out "$T/cut" --until 4
	mt-run "${args[@]}" --out "$T/cut" --resume
	cmp "$T/whole/model/model.safetensors" "$T/cut/model/model.safetensors"
	exits 78 mt-run "${args[@]:0:${#args[@]}-2}" --out "$T/cut" --resume 2>"$T/err"
	grep -q "is frozen in the checkpoint" "$T/err"
}

@test "the plan: frozen blocks take memory for weights alone, keep nothing, and have no backward pass" {
	plan() { mt-plan --config "$CONFIGS/qwen2.5-7b.json" --profile H100 --seq 2048 --micro 8 --json "$@"; }
	plan >"$T/all"
	plan --train 'model.layers.2[4-7].*,model.norm.weight,lm_head.weight' >"$T/top"
	plan --train '*norm*' >"$T/norms"
	python3 - "$T" <<-'END'
		import json, sys
		a, top, norms = (json.load(open("%s/%s" % (sys.argv[1], n))) for n in ("all", "top", "norms"))
		assert a["trained_params"] == a["params"] == a["state_params"]
		assert 0.19 < top["trained_params"] / a["params"] < 0.20 and top["trained_params"] == top["state_params"]
		assert norms["trained_params"] < 1e6 and norms["state_params"] > 7e9
		assert top["store_bytes"] < 0.31 * a["store_bytes"]
		assert top["backward_s"] < 0.35 * a["backward_s"] and 0.9 < top["forward_s"] / a["forward_s"] <= 1.001
		assert top["peak_bytes"] < 0.8 * a["peak_bytes"] and top["adam_s"] < 0.21 * a["adam_s"]
		assert 0.5 < norms["backward_s"] / a["backward_s"] < 0.8 and norms["bytes_out"] < 0.01 * a["bytes_out"]
	END
	mt-plan --config "$CONFIGS/qwen2.5-7b.json" --profile H100 --seq 2048 --micro 8 --train '*.27.*' >"$T/text"
	grep -q "28 blocks; 0.233 G trained, backward through 1" "$T/text"
}

@test "patterns of no tensor, that leave nothing, or that cut what is updated at once exit 64 and 78" {
	fails_with 64 mt-store create "$RUN" --config "$CASE/model" --train 'model.layer.*'
	grep -q -- "--train: no tensor of this model has the name 'model.layer.\*'" "$T/fails.err"
	fails_with 64 mt-store create "$RUN" --config "$CASE/model" --freeze '*'
	fails_with 64 mt-store create "$RUN" --config "$CASE/model" --train "$(printf 'x%.0s' $(seq 600))"
	fails_with 78 mt-store create "$RUN" --config "$GOLDEN/qwen2/model" --freeze '*k_proj.bias'
	grep -q "are parts of one matrix" "$T/fails.err"
	exits 64 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" --batch 4 --seq 32 --lr 1e-3 \
		--epochs 1 --freeze nothing 2>"$T/err"
	[ ! -e "$T/out/model" ]
	gone "$RUN"
}

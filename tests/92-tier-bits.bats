#!/usr/bin/env bats
# lo, m and v in files change no bit: trainings of 20 steps, of which some are skipped, with evaluations, end with the
# state and the metrics of the same trainings in memory. tests/crash/crash.py kills stages of such runs (suite 80).
load helpers

ARGS=(--steps 20 --batch 4 --micro 2 --seq 32 --lr 0.003 --warmup 3 --schedule cosine --wd 0.1 --eps 1e-5
	--eval-every 5)

setup_file() {
	export W=$BATS_FILE_TMPDIR
	python3 - "$TOP" "$W" <<-'END'
		import json, os, random, struct, sys
		sys.path.insert(0, sys.argv[1] + "/tests/crash")
		from crash import document, make_model
		where = sys.argv[2]
		cases = {"plain": {}, "tied": {"tied": True}, "experts": {"experts": 6}, "mla": {"mla": True}}
		for name, case in cases.items():
		    make_model(os.path.join(where, name), dict(case, vocab=6000))
		words = random.Random(5)
		with open(os.path.join(where, "data.bin"), "wb") as f:
		    for i in range(400):        # after 4 of 20 steps, there are two without a target
		        f.write(document(words, 2000, words.randint(2, 40)))
		        if i == 24:
		            f.write(struct.pack("<2I", 1, 5) * (3 * 4 * 32))
	END
}

# Train a run of model $1: train NAME MODEL CREATE-OPTIONS... -- STEP-OPTIONS...
# Its state and metrics: $T/NAME.state and .metrics. With a tier if $SLOTS is set: DIRS 1 or 3, TILE, MEMORY, THREADS.
train() {
	local name=$1 model=$W/$2 create=() tier=() early=() pids=() dirs
	shift 2
	while [ "$1" != -- ]; do create+=("$1"); shift; done
	shift
	RUN=$(mt_run_name "$name")
	if [ -n "${SLOTS:-}" ]; then
		dirs=$DISK/a
		[ "${DIRS:-1}" = 1 ] || dirs=$DISK/a,$DISK/b,$DISK/c
		tier=(--tier "$dirs" --tier-tile "${TILE:-64K}" --tier-memory "${MEMORY:-0}" --tier-slots "$SLOTS")
	fi
	case "${create[*]}" in *"--update early"*)
		early=(--update early)
		[ -n "${SLOTS:-}" ] || create=("${create[@]/--update/}") create=("${create[@]/early/}")
		;;
	esac
	# shellcheck disable=SC2068
	mt-store create "$RUN" --config "$model" --step-tokens 4K ${create[@]} "${tier[@]}" 2>"$T/$name.create.err"
	mt-store init "$RUN" --seed 3 2>/dev/null
	[ -z "${SLOTS:-}" ] || { spawn "$name.tier" mt-tier "$RUN" --threads "${THREADS:-4}"; pids+=("$PID"); }
	spawn "$name.stream" mt-stream "$RUN" --device cpu --threads 1 && pids+=("$PID")
	spawn "$name.optim" mt-optim "$RUN" --threads "${OPTIM_THREADS:-1}" "${early[@]}" && pids+=("$PID")
	# shellcheck disable=SC2046
	mt-feed --epochs 9 "$W/data.bin" | timeout 120 mt-step "$RUN" $(with "${ARGS[*]}" --eval "$W/plain/eval.bin" "$@") \
		>"$T/$name.metrics" 2>"$T/$name.err"
	end "${pids[@]}"
	[ -z "${SLOTS:-}" ] || passes >"$T/$name.passes"
	state_of "$RUN" | sed 's/ pin .*//' >"$T/$name.state"
	mt-store rm "$RUN"
	[ -z "${SLOTS:-}" ] || [ -z "$(find "$DISK" -type f)" ]
}

# Tiles of the run; of them loaded, updated and written since it was filled
passes() {
	local control at word
	control=$(regions_of "$RUN").control
	at=$(offset_of tier)
	echo "$(($(python3 "$TOP/tests/lib/region.py" "$control" "$at") & 0xffffffff))"
	for word in 128 192 256; do python3 "$TOP/tests/lib/region.py" "$control" $((at + word)); done
}

# same NAME NAME: the second one used its tier: each step that was not skipped is a pass
same() {
	local tiles loaded updated written
	[ "$(wc -l <"$T/$1.metrics")" -ge 20 ]
	diff "$T/$1.state" "$T/$2.state"
	diff <(timeless "$T/$1.metrics") <(timeless "$T/$2.metrics")
	{ read -r tiles; read -r loaded; read -r updated; read -r written; } <"$T/$2.passes"
	[ "$tiles" -ge "${LEAST:-6}" ]
	[ "$written" = $((tiles * $(grep -c '"skipped": false' "$T/$1.metrics"))) ]
	[ "$updated" = "$written" ] && [ "$loaded" -ge "$updated" ]
}

# kind MODEL CREATE-OPTIONS... -- STEP-OPTIONS...: in memory, then with a tier of $SLOTS slots
kind() {
	SLOTS='' train memory "$@"
	train tier "$@"
	grep -q '"skipped": true' "$T/memory.metrics"
	grep -q '"eval_loss"' "$T/memory.metrics"
	same memory tier
}

# bats test_tags=slow
@test "bf16, AdamW: 2 slots, 3 and 4 and one for each tile give the bits of memory" {
	need_tier
	SLOTS='' train memory plain -- --clip 0.5
	for n in 2 3 4 8; do
		SLOTS=$n train tier plain -- --clip 0.5
		same memory tier
	done
}
# bats test_tags=slow
@test "three directories, one thread and eight, several optimizer threads give the bits of memory" {
	need_tier
	SLOTS='' train memory plain --grad bf16 -- --clip 0.5
	SLOTS=3 DIRS=3 THREADS=1 train tier plain --grad bf16 -- --clip 0.5
	same memory tier
	SLOTS=4 DIRS=3 THREADS=8 OPTIM_THREADS=3 train tier plain --grad bf16 -- --clip 0.5
	same memory tier
}
# bats test_tags=slow
@test "large tiles, one for each unit, and some units in memory give the bits of memory" {
	need_tier
	SLOTS='' train memory plain -- --clip 0.5
	SLOTS=2 TILE=16M train tier plain -- --clip 0.5
	LEAST=4 same memory tier
	SLOTS=2 MEMORY=1M train tier plain -- --clip 0.5
	LEAST=3 same memory tier
}
@test "fp32 gives the bits of memory" { need_tier; SLOTS=3 kind plain --dtype fp32 -- --clip 0.5; }
@test "bf16 state gives the bits of memory" { need_tier; SLOTS=2 DIRS=3 kind plain --state bf16 -- --clip 0.5; }
@test "int8 state gives the bits of memory" { need_tier; SLOTS=3 kind plain --state int8 -- --clip 0.5; }
@test "Lion, fp32 with int8 state, gives the bits of memory" {
	need_tier
	SLOTS=2 kind plain --dtype fp32 --optim lion --state int8 -- --clip 0.5
}
@test "SGD with bf16 state gives the bits of memory" {
	need_tier
	SLOTS=4 kind plain --optim sgd --state bf16 --grad bf16 -- --clip 0.5
}
@test "tied embeddings give the bits of memory" { need_tier; LEAST=3 SLOTS=2 kind tied -- --clip 0.5; }
# bats test_tags=slow
@test "experts, and exact routers whose lo is in memory, give the bits of memory" {
	need_tier
	SLOTS=2 kind experts --grad bf16 -- --clip 0.5
	SLOTS=3 kind mla --state int8 -- --clip 0.5
}
@test "--grad none gives the bits of memory" { need_tier; SLOTS=2 kind plain --grad none -- --micro 4; }
@test "--grad none with int8 state, SGD, tied, in three directories gives the bits of memory" {
	need_tier
	LEAST=3 SLOTS=4 DIRS=3 kind tied --grad none --optim sgd --state int8 -- --micro 4
}
# bats test_tags=slow
@test "--update early gives the bits of memory" {
	need_tier
	SLOTS=2 kind plain --update early -- --clip 0
	LEAST=3 SLOTS=3 OPTIM_THREADS=2 kind tied --update early --state int8 --grad bf16 -- --clip 0
}

# bats test_tags=slow
@test "a run whose state is larger than its cgroup's memory trains, with its state in files" {
	need_tier
	no_asan
	local size limit stage
	python3 - "$TOP" "$T/model" <<-'END'
		import json, sys
		sys.path.insert(0, sys.argv[1] + "/tests/crash")
		from crash import make_model
		make_model(sys.argv[2], {})
		with open(sys.argv[2] + "/config.json") as f:
		    config = json.load(f)
		config.update(hidden_size=256, intermediate_size=1024, num_hidden_layers=24)
		with open(sys.argv[2] + "/config.json", "w") as f:
		    json.dump(config, f)
	END
	local create=(mt-store create "$RUN" --config "$T/model" --step-tokens 1K --grad bf16)
	local tier=(--tier "$DISK/a" --tier-memory 0 --tier-tile 1M --tier-slots 2)
	"${create[@]}" "${tier[@]}" 2>"$T/create.err"
	size=$(sed -n 's/.* \([0-9]*\) bytes in all$/\1/p' "$T/create.err")
	mt-store rm "$RUN"
	# ... and what the programs need beside the run
	limit=$((size + (64 << 20)))
	memory_group $limit
	fails_with 71 in_group "${create[@]}"
	in_group "${create[@]}" "${tier[@]}" 2>"$T/create.err"
	in_group mt-store init "$RUN" --seed 1 2>/dev/null
	[ "$(du -sb "$DISK" | cut -f 1)" -gt "$limit" ]
	local pids=()
	for stage in mt-tier "mt-stream --device cpu --threads 1" "mt-optim --threads 1"; do
		# shellcheck disable=SC2016,SC2086
		spawn "${stage%% *}" sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$GROUP" $stage "$RUN"
		pids+=("$PID")
	done
	in_group mt-step "$RUN" --steps 4 --batch 1 --micro 1 --seq 32 --lr 1e-3 <"$W/data.bin" >"$T/metrics"
	grep -q '"step": 4, "loss": [0-9]' "$T/metrics"
	end "${pids[@]}"
	mt-store rm "$RUN"
}

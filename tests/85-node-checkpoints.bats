# Checkpoints of a run on several nodes: each writes its part of the optimizer's state, and any number of nodes reads
# it. The nodes are processes of this machine, each with its own regions.
load helpers
load lib/nodes
load lib/nodes-ckpt

# ---- the same bits

# bats test_tags=slow
@test "a checkpoint of 2 nodes and of 3 loads on one machine with the state of one machine's checkpoint" {
	local n
	on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 4
	state_in "$T/one/step-00000004" >"$T/4"
	state_in "$T/one/step-00000008" >"$T/8"
	for n in 2 3; do
		on_nodes "$n" "$MODEL" "$T/out$n" "${ARGS[@]}" --ckpt-every 4
		no ls "$T"/node-*.ended
		holes_stay
		[ -e "$T/out$n/step-00000004/optim-m-node-$((n - 1))-of-$n.safetensors" ]
		mt-ckpt verify "$T/out$n/step-00000008"
		state_in "$T/out$n/step-00000004" | diff "$T/4" -
		state_in "$T/out$n/step-00000008" | diff "$T/8" -
		[ "$(ls -A "$T/out$n")" = "$(printf '%s\n' step-00000004 step-00000008)" ]
		forget_nodes
	done
}

# bats test_tags=slow
@test "tied embeddings and fp32 weights, bf16 and int8 state: 2 nodes save what one machine saves" {
	local how MODEL=$GOLDEN/qwen3/model
	for how in "--dtype fp32" "--state bf16" "--state int8"; do
		export CREATE=$how
		on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 8
		on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 8
		no ls "$T"/node-*.ended
		holes_stay
		resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
		forget_nodes
		mt-store rm "$RUN"
		rm -r "$T/one" "$T/out"
	done
}

# bats test_tags=slow
@test "3 nodes save, 2 nodes go on and save, one machine goes on: the bits of an undisturbed run" {
	on_one "$MODEL" "" "${ARGS[@]}"
	state_of "$RUN" >"$T/undisturbed"
	mt-store rm "$RUN"
	on_nodes 3 "$MODEL" "$T/out" "${ARGS[@]}" --until 3 --ckpt-every 1
	holes_stay
	forget_nodes
	on_nodes 2 "$T/out/step-00000003" "$T/out" "${ARGS[@]}" --until 6 --ckpt-every 100
	holes_stay
	on_one "$T/out/step-00000006" "" "${ARGS[@]}"
	state_of "$RUN" | diff "$T/undisturbed" -
}

@test "2 nodes go on from a checkpoint of one machine with the bits of an undisturbed run" {
	on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 4
	on_nodes 2 "$T/one/step-00000004" "$T/out" "${ARGS[@]}" --ckpt-every 1
	no ls "$T"/node-*.ended
	holes_stay
	resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
}

@test "weights that other nodes send wait for node 0's copy of the step before" {
	on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 4
	STOP=1 on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 4 3>&- &
	local all=$!
	# node 1 has saved its part of step 4, and sent what it owns of step 5
	eventually node_1_waits
	kill -CONT "$(cat "$T/node-0.ckpt.pid")"
	wait "$all"
	resaved_as "$T/one/step-00000004" "$T/out/step-00000004"
	resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
}
node_1_waits() {
	local MT_SHM_DIR=$NODE_REGIONS/$RUN-1
	export MT_SHM_DIR
	[ "$(mt-store stat "$RUN" --json | grep -o '"step":[0-9]*')" = '"step":5' ]
	mt-store stat "$RUN" | grep '^mt-optim' | grep -q 'waits for weights'
}

# The store of a run that loads DIR (with load's options), but for its header, and the memory that it takes more than
# after create: loaded NAME CREATE-OPTIONS DIR...
loaded() {
	local name=$1 how=$2 store memory dir
	shift 2
	mt-store create "$RUN" --config "$MODEL" $how 2>"$T/create.err"
	store=$(ls "$NODE_REGIONS"/mt.*."$RUN.store")
	memory=$(stat -c %b "$store")
	for dir; do mt-ckpt load "$RUN" $dir 2>"$T/load.err"; done
	[ "$(stat -c %b "$store")" = "$memory" ]
	tail -c +4097 "$store" >"$T/$name"
	mt-store rm "$RUN"
}

# bats test_tags=slow
@test "a checkpoint of 2 nodes and of one machine load alike: other types, other nodes, over another state" {
	on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 8
	mt-store rm "$RUN"
	on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 8
	load_alike
}

# bats test_tags=slow
@test "int8 state: checkpoints of 2 nodes and of one machine load alike: other types, other nodes, over another state" {
	export CREATE="--state int8"
	on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 8
	mt-store rm "$RUN"
	on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 8
	grep -q '"version": 2' "$T/out/step-00000008/run.json"
	load_alike
}

load_alike() {
	local one=$T/one/step-00000008 nodes=$T/out/step-00000008 how node
	for how in "" "--dtype fp32" "--state bf16" "--state int8"; do
		for node in 0/1 1/3; do
			loaded a "$how --node $node" "$one"
			loaded b "$how --node $node" "$nodes"
			cmp "$T/a" "$T/b"
			loaded c "$how --node $node" "$nodes" "$MODEL" "$nodes"
			cmp "$T/a" "$T/c"
		done
		loaded d "$how --node 1/3" "$nodes --weights"
		loaded e "$how --node 1/3" "$nodes" "$nodes --weights"
		cmp "$T/d" "$T/e"
	done
}

# ---- failures

# One machine's checkpoint of step 8, to compare with
step_8() {
	on_one "$MODEL" "$T/one" "${ARGS[@]}" --ckpt-every 8
	mt-store rm "$RUN"
}

# bats test_tags=slow
@test "a save that fails on one node fails on all, training goes on, and the next save succeeds" {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	step_8
	export CKPT_1="LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=write:1"
	exits 74 on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 4
	no ls "$T"/node-*.ended
	grep -qx 'mt-step: the save of step 4 failed; training goes on' "$T/node-0.step.err"
	grep -qx 'mt-ckpt: step 4 is not saved: node 1 could not save its part' "$T/node-0.ckpt.err"
	grep -q '^mt-ckpt: step 4 is not saved: .*: No space left on device$' "$T/node-1.ckpt.err"
	[ "$(wc -l <"$T/nodes.metrics")" = 8 ]
	[ "$(ls -A "$T/out")" = step-00000008 ]
	resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
}

# bats test_tags=slow
@test "a save that fails on node 0 leaves no files of other nodes, and the next save succeeds" {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	step_8
	export CKPT_0="LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=write:1"
	exits 74 on_nodes 3 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 4
	no ls "$T"/node-*.ended
	grep -q '^mt-ckpt: step 4 is not saved: .*: No space left on device$' "$T/node-0.ckpt.err"
	[ "$(ls -A "$T/out")" = step-00000008 ]
	resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
}

# bats test_tags=slow
@test "a save whose mt-ckpt is killed on one node fails on all; the next mt-ckpt there cleans up" {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	step_8
	CKPT_1="LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=write:1!" \
		exits 74 on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 4
	[ "$(wc -l <"$T/nodes.metrics")" = 8 ]
	[ "$(ls -A "$T/out")" = .step-00000004.mt-tmp-node-1 ]
	forget_nodes
	on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 8
	[ "$(ls -A "$T/out")" = step-00000008 ]
	resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
}

# bats test_tags=slow
@test "a new mt-ckpt on a node saves after one that was killed" {
	step_8
	STOP=1 on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 4 3>&- &
	local all=$!
	eventually test -s "$T/node-0.step.pid"
	kill -9 "$(cat "$T/node-1.ckpt.pid")"
	export MT_SHM_DIR=$NODE_REGIONS/$RUN-1
	eventually no alive "$(cat "$T/node-1.ckpt.pid")"
	spawn second mt-ckpt serve "$RUN" --dir "$T/out"
	eventually second_is_there
	kill -CONT "$(cat "$T/node-0.ckpt.pid")"
	wait "$all" || [ $? = 74 ] # step 4 may have been pinned when the first one died
	resaved_as "$T/one/step-00000008" "$T/out/step-00000008"
	end "$PID"
}
alive() { grep -q '^State:.*[^Z] (' "/proc/$1/status" 2>/dev/null; }
second_is_there() { mt-store stat "$RUN" | grep '^mt-ckpt' | grep -qw "$PID"; }

# bats test_tags=slow
@test "serve exits 78 on all nodes if they do not share its directory" {
	OUT_1=$T/elsewhere exits 78 on_nodes 2 "$MODEL" "$T/out" none
	[ "$(cat "$T/node-0.ckpt.err")" = "mt-ckpt: $T/out: node 1 does not see what node 0 writes there: --dir must be \
shared by all nodes" ]
	[ "$(cat "$T/node-1.ckpt.err")" = "mt-ckpt: $T/elsewhere: does not show what node 0 writes into its directory: \
--dir must be shared by all nodes" ]
	[ ! -e "$T/out" ]
	[ ! -e "$T/elsewhere" ]
}

@test "a part of a checkpoint that is damaged or missing is refused" {
	on_nodes 2 "$MODEL" "$T/out" "${ARGS[@]}" --ckpt-every 8
	local dir=$T/out/step-00000008 part=$T/out/step-00000008/optim-v-node-1-of-2.safetensors
	cp "$part" "$T/part"
	printf x | dd of="$part" bs=1 seek=9000 conv=notrunc 2>/dev/null
	fails_with 65 mt-ckpt verify "$dir"
	grep -q 'optim-v-node-1-of-2.safetensors: chunk 0 .* is damaged' "$T/fails.err"
	rm "$part"
	fails_with 65 mt-ckpt verify "$dir"
	grep -q 'optim-v-node-1-of-2.safetensors: is missing' "$T/fails.err"
	cp "$T/part" "$part"
	mt-ckpt verify "$dir"
	mv "$dir" "$T/copy"
	rm "$T/copy/run.json"
	fails_with 65 mt-ckpt verify "$T/copy"
	grep -q 'run.json is missing' "$T/fails.err"
}

# ---- one node alone

@test "save, and export of fp32 weights, exit 78 on one of several nodes; export of its own weights works" {
	make_run "$MODEL" --node 1/2
	fails_with 78 mt-ckpt save "$RUN" "$T/save"
	grep -q "node 1 of 2" "$T/fails.err"
	fails_with 78 mt-ckpt export "$RUN" "$T/export" --dtype fp32
	grep -q "node 1 of 2" "$T/fails.err"
	[ ! -e "$T/save" ]
	[ ! -e "$T/export" ]
	mt-ckpt export "$RUN" "$T/export"
	mt-store rm "$RUN"
	make_run "$MODEL"
	mt-ckpt export "$RUN" "$T/one"
	cmp "$T/one/model.safetensors" "$T/export/model.safetensors"
}

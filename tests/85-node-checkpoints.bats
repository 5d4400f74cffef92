# Checkpoints of a run on several nodes: each writes its part of the optimizer's state, and any number of nodes reads
# it. The nodes are processes of this machine, each with regions of its own.
load helpers
load lib/nodes-ckpt

ARGS="--steps 8 --batch 4 --micro 1 --seq 24 --lr 0.003 --warmup 2 --schedule cosine --wd 0.1 --eps 1e-5 --clip 1"
MODEL=$GOLDEN/llama3/model

setup() {
	T=$BATS_TEST_TMPDIR
	RUN=$(mt_run_name)
	: >"$T/pids"
	nodes_setup
	mt-feed --epochs 4 --shuffle 1 "$GOLDEN/llama3/data.bin" >"$T/records"
}

eval "$(declare -f teardown | sed '1s/teardown/programs_teardown/')"
teardown() {
	nodes_teardown
	programs_teardown
}

@test "a checkpoint of 2 nodes and of 3 loads on one machine with the state of one machine's checkpoint" {
	local n
	on_one "$MODEL" "$T/one" $ARGS --ckpt-every 4
	state_in "$T/one/step-00000004" >"$T/4"
	state_in "$T/one/step-00000008" >"$T/8"
	mt-store rm "$RUN"
	for n in 2 3; do
		on_nodes "$n" "$MODEL" "$T/out$n" $ARGS --ckpt-every 4
		no ls "$T"/node-*.ended
		[ -e "$T/out$n/step-00000004/optim-m-node-$((n - 1))-of-$n.safetensors" ]
		mt-ckpt verify "$T/out$n/step-00000008"
		state_in "$T/out$n/step-00000004" | diff "$T/4" -
		state_in "$T/out$n/step-00000008" | diff "$T/8" -
		[ "$(ls -A "$T/out$n")" = "$(printf '%s\n' step-00000004 step-00000008)" ]
		forget_nodes
	done
}

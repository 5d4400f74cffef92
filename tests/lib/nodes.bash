# shellcheck shell=bash disable=SC2034
# Runs on several nodes: processes of one machine, each with its own directory of regions.

ARGS=(--steps 8 --batch 4 --micro 1 --seq 24 --lr 0.003 --warmup 2 --schedule cosine --wd 0.1 --eps 1e-5 --clip 1)
MODEL=$GOLDEN/llama3/model

setup() {
	T=$BATS_TEST_TMPDIR
	RUN=$(mt_run_name)
	: >"$T/pids"
	NODE_REGIONS=${MT_SHM_DIR:-/dev/shm}
	NODES=0
	need_mpi
	mt-feed --epochs 4 --shuffle 1 "$GOLDEN/llama3/data.bin" >"$T/records"
}

# The nodes' processes first: helpers' teardown waits until mpirun has ended
eval "$(declare -f teardown | sed '1s/teardown/programs_teardown/')"
teardown() {
	local p
	for p in "$T"/node-*.pids; do [ ! -e "$p" ] || xargs -r kill -9 <"$p" 2>/dev/null || :; done
	programs_teardown
	if [ "${BATS_TEST_COMPLETED:-}" != 1 ]; then tail -n 50 "$T"/node-*.ended 2>/dev/null || :; fi
	forget_nodes
	[ ! -e "$T/netns" ] || xargs -n 1 ip netns del <"$T/netns"
}
forget_nodes() { rm -rf "${NODE_REGIONS:?}/$RUN-"* "$T"/node-*; }

# Regions of node R: region_dir R; of the run on one machine: region_dir one
region_dir() { printf '%s/%s-%s\n' "$NODE_REGIONS" "$RUN" "$1"; }

# nodes N [mt-step's options]: the run on N nodes, from MODEL, of the records in $T/records: metrics in $T/nodes.metrics
# and what node-stages writes of each node. STREAMS many mt-streams a node; CREATE: mt-store create's options;
# DEVICE_R: the device of node R; LINK_OPTIONS: mt-link's. Fails if a program does.
nodes() {
	local n=$1 name STREAMS=${STREAMS:-1}
	shift
	NODES=$n
	for name in PATH RUN T MODEL NODE_REGIONS DEVICE_0 DEVICE_1 DEVICE_2 LINK_OPTIONS STREAMS CREATE CHOICES \
		OTHER_WEIGHT; do
		printf '%s=%q\nexport %s\n' "$name" "${!name:-}" "$name"
	done >"$T/node.env"
	printf 'NODE_OPTIONS=%q\n' "$*" >>"$T/node.env"
	# MPIRUN: another command than that for processes of this machine
	${MPIRUN:-mpirun -n $n --oversubscribe} sh "$TOP/tests/lib/node" "$T/node.env" >"$T/mpirun.out" 2>"$T/mpirun.err"
}

# The same on one machine, with as many mt-streams as the nodes have together: one N [mt-step's options]
one() {
	local streams=$(($1 * ${STREAMS:-1})) dir
	shift
	dir=$(region_dir one)
	mkdir -p "$dir"
	(
		export MT_SHM_DIR=$dir
		make_run "$MODEL" --step-tokens 4K ${CREATE:-}
		STREAMS=$streams start_stages
		mt-step "$RUN" "$@" <"$T/records" >"$T/one.metrics" 2>"$T/one.err"
	)
}

# What both have come to, to the last bit
same_as_one() {
	local r dirs=()
	for ((r = 0; r < NODES; r++)); do dirs+=("$(region_dir "$r")"); done
	link-same "$RUN" "$(region_dir one)" "${dirs[@]}"
	[ -s "$T/one.metrics" ]
	diff <(timeless "$T/one.metrics") <(timeless "$T/nodes.metrics")
}

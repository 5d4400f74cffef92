# Runs on several nodes that save checkpoints, beside nodes.bash.

# on_nodes N FROM OUT [mt-step's options]: N nodes with MODEL's config load FROM, train on $T/records and save to OUT.
# Messages and programs that failed: see node-stages. CREATE: mt-store create's options; OUT_R:
# another OUT of node R; CKPT_R: environment of its mt-ckpt; STOP=1: node 0's is stopped before the first step.
# Returns mt-step's exit code; with "none" for its options that of node 0's mt-ckpt.
on_nodes() {
	local n=$1
	export FROM=$2 OUT=$3
	shift 3
	export RUN T MODEL NODE_REGIONS NODE_OPTIONS="$*" CREATE=${CREATE:-}
	mpirun -n "$n" --oversubscribe sh "$TOP/tests/lib/node-ckpt" >"$T/mpirun.out" 2>"$T/mpirun.err"
}

# The store's file of each node has the memory that create gave it, which is not all: nobody has touched a hole
holes_stay() {
	local f
	for f in "$T"/node-*.created; do
		diff "$f" "${f%.created}.after"
	done
	f=$(ls "$NODE_REGIONS/$RUN-0"/mt.*."$RUN.store")
	[ "$(($(stat -c %b "$f") * 512))" -lt "$(stat -c %s "$f")" ]
}

# The same on one machine: on_one FROM OUT [mt-step's options]; the run stays, without stages
on_one() {
	local from=$1 out=$2 p
	shift 2
	mt-store create "$RUN" --config "$MODEL" --step-tokens 4K ${CREATE:-} 2>"$T/create.err"
	mt-ckpt load "$RUN" "$from" 2>"$T/load.err"
	STREAMS=2 start_stages
	[ -z "$out" ] || spawn ckpt mt-ckpt serve "$RUN" --dir "$out"
	mt-step "$RUN" "$@" <"$T/records" >"$T/one.metrics" 2>"$T/one.err"
	while read -r p; do kill "$p"; done <"$T/pids"
	while read -r p; do wait "$p" || :; done <"$T/pids"
	: >"$T/pids"
}

# What one machine has after loading DIR: state_in DIR
state_in() {
	local run="$RUN-s"
	mt-store create "$run" --config "$MODEL" ${CREATE:-} 2>"$T/create.err"
	mt-ckpt load "$run" "$1" 2>"$T/load.err"
	state_of "$run"
	mt-store rm "$run"
}

# The same arrays as DIR, a checkpoint of one machine, after loading FROM on one: resaved_as DIR FROM
resaved_as() {
	local run="$RUN-s" f
	mt-store create "$run" --config "$MODEL" ${CREATE:-} 2>"$T/create.err"
	mt-ckpt load "$run" "$2" 2>"$T/load.err"
	rm -rf "$T/resaved"
	mt-ckpt save "$run" "$T/resaved"
	mt-store rm "$run"
	for f in model optim-m optim-v; do cmp "$1/$f.safetensors" "$T/resaved/$f.safetensors"; done
	[ ! -e "$1/optim-lo.safetensors" ] || cmp "$1/optim-lo.safetensors" "$T/resaved/optim-lo.safetensors"
}

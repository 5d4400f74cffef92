# nodes.sh: --nodes: a launcher (mpirun, srun) starts the same mt-run on each node. Node 0 feeds, steps and exports;
# the others end with mt-link, which carries all that goes between nodes and is the one MPI process of a node.
#
# The launcher starts the program mt-run, which starts this script in a separate session and passes the launcher's
# signals on in a pipe, whose end says that the launcher, or the program, is gone: mt-store/run/node.c, supervise.c.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

node='' node_count=''                           # empty: the run is on one machine
shim_pid=''                                     # set: the mt-run between the launcher and this process
shared=''                                       # OUT, if the run saves checkpoints

# From MT_RUN_NODE, "NODE/NODES/PID", with the pid of the program between the launcher and this process. A dry run has
# none.
find_node() {
	[ -n "${MT_RUN_NODE-}" ] || return 0
	node=${MT_RUN_NODE%%/*} node_count=${MT_RUN_NODE#*/} shim_pid=${MT_RUN_NODE##*/}
	node_count=${node_count%/*}
	unset MT_RUN_NODE
	[ "$node" = 0 ] || alike=1
	[ -z "$shim_pid" ] || show=1                # mpirun makes each stdout a terminal
}

alike=''                                        # set: what is wrong now is probably so on all nodes; node 0 says it

# The launcher ends this process when node 0 has said it. If node 0 finds nothing wrong, this node says it.
await_node0() {
	for _ in $(seq 100); do
		lives "${shim_pid:-$PPID}" || exit 0
		sleep 0.1
	done
}

check_nodes() { # what mt-run refuses on several nodes
	[ -n "$node_count" ] || return 0
	[ -n "$dry" ] || command -v mt-link >/dev/null || die 78 "--nodes: there is no mt-link: mt was built without MPI"
	[ "$grad" != none ] || die 64 "--grad none: not on several nodes, where gradients go to the node that updates"
	[ -z "$restart" ] || die 64 "--restart: not on several nodes: a stage that dies ends the run on all of them"
	share_out
	[ "$streams" -le $((MOST_STREAMS / node_count)) ] ||
		die 64 "--streams: $streams on each of $node_count nodes, and a run has $MOST_STREAMS mt-streams at most"
	run=$run-$node
}

# Checkpoints need an OUT that all nodes see; a run without any does not. On several nodes mt-store cannot save at the
# end, so mt-step saves the last step also where --ckpt-every is not given.
share_out() {
	case " $given ${resume:+--resume} ${best:+--keep-best} " in
	*" --ckpt-every "* | *" --until "* | *" --resume "* | *" --keep-best "*) shared=$out ;;
	*) return 0 ;;
	esac
	case $given in *" --ckpt-every "*) ;; *) step_options=$step_options--ckpt-every=999999999$nl ;; esac
}

# stderr of a node's programs. mt-link reports the end of a run on all nodes; what follows from it is left out, and
# so is mt-store's line of a death that mt-link tells.
open_lines() {
	mkfifo "$tmp/lines" || leave 74
	# Where several nodes share a machine, Open MPI (vader: 4, sm: 5) leaves files if mpirun is killed: $tmp is removed
	export OMPI_MCA_btl_vader_backing_directory="${OMPI_MCA_btl_vader_backing_directory:-$tmp}"
	export OMPI_MCA_btl_sm_backing_directory="${OMPI_MCA_btl_sm_backing_directory:-$tmp}"
	filter_lines <"$tmp/lines" >&2 &
	exec 2>"$tmp/lines"
}

filter_lines() {
	trap '' HUP INT TERM
	exec 3<&- 5<&- 7>&-
	set -- -e '/: its store is dirty (an update was cut short)/d' -e '/^mt-store: .* (pid [0-9]*) has died$/d'
	[ "$node" = 0 ] || set -- "$@" -e "/^mt-[a-z]*: node [0-9]/!s/^mt-[a-z]*: /&node $node: /"
	sed -u "$@" | while IFS= read -r line; do
		{ [ "$node" != 0 ] || printf '%s\n' "$line" >>"$out/log"; } 2>/dev/null
		printf '%s\n' "$line"
	done 2>/dev/null
}

start_link() { ask stage mt-link now mt-link "$run" --reason="$tmp/reason"; }

# Node 0 tells the others of this job which checkpoint it has found, if any: it may have waited for an earlier mt-run,
# which wrote one more
job_key() { echo "${PMIX_NAMESPACE-}.${SLURM_JOB_ID-}.${SLURM_STEP_ID-}"; }

tell_checkpoint() {
	[ -n "$resume" ] || return 0
	write_new "$out/.node-0" "$(job_key) ${newest##*/}"
}

# 1: node 0 has told nothing here, or what is not whole from here
hear_checkpoint() {
	key=$(job_key)
	[ "$key" != .. ] || return 1
	for _ in $(seq 700); do
		first=''
		[ -h "$shared/.node-0" ] || [ ! -f "$shared/.node-0" ] || first_line "$shared/.node-0"
		if [ "${first%% *}" = "$key" ]; then
			first=${first#* }
			newest=${first:+$shared/$first}
			[ -z "$newest" ] || mt-ckpt verify "$newest" --as-load $load_options 2>/dev/null
			return
		fi
		lives "$shim_pid" || exit 69            # the shim is gone, and nobody listens yet
		sleep 0.1
	done
	return 1
}

# All nodes choose by one rule: the newest that is whole. If they see different ones, mt-link ends the run.
find_shared_checkpoint() {
	quiet=1
	[ -n "$resume" ] || return 0
	! hear_checkpoint || return 0
	for dir in $(checkpoints "$shared" | sort -r); do   # node 0 tells what is wrong with the others
		if mt-ckpt verify "$dir" --as-load $load_options 2>/dev/null; then newest=$dir; return; fi
	done
}

# Node 0: until the mt-streams of all nodes are there, so that they share the first step
all_are_there() {
	[ -n "$node" ] || return 0
	ask await $((streams * node_count))
	[ "$answer" != 69 ] || rc=69
	[ "$answer" = 0 ]
}

# The last save has failed, and mt-store has kept the run for that. A second after one node has failed, mpirun kills the
# mt-run of the others: each waits until they have told it, too.
tell_how_to_save() {
	[ -n "$unsaved" ] || return 0
	when='when all other nodes have'
	[ "$node" = 0 ] || when='before node 0'
	save="mt-ckpt save --part $run$(quoted "$shared/step-$(printf %08d "$unsaved")")"
	say "save it $when: $save; remove it when node 0 has saved: mt-store rm $run --force"
	sleep 5
}

# Is all of a checkpoint written from here?
saves_all() { [ -z "$node" ] || { [ "$node" = 0 ] && [ -n "$shared" ]; }; }

# Other nodes than 0: until mt-link ends. What a signal means is for node 0 to decide, if mt-link is connected to it,
# and if it comes once. Node 0 has made OUT when mt-link is connected to it.
follow_node0() {
	began=''
	start_stages
	start_link
	[ -z "$shared" ] || ask stage mt-ckpt late mt-ckpt serve "$run" --dir "$shared"
	ask follow
	[ "$failed" = 0 ] || answer=$failed
	finish "$answer"
}

# nodes.sh: --nodes: a launcher (mpirun, srun) starts the same mt-run on each node. Node 0 feeds, steps and exports;
# the others end with mt-link, which carries all that goes between nodes and is the one MPI process of a node.
#
# The launcher starts the program mt-run, which starts this script in a separate session and passes the launcher's
# signals on in a pipe (descriptor 3), whose end says that the launcher, or the program, is gone: mt-store/run/node.c.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

node='' node_count=''                           # empty: the run is on one machine
shim_pid=''                                     # set: the mt-run between the launcher and this process
listener='' lines='' link=''
shared=''                                       # OUT, if the run saves checkpoints

# ---- the worker

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

# What the shim says: signals, for mt-run's own handler. Its end without one is a launcher or shim that was killed: the
# run ends at once. A worker that was killed has no need: mt-store ends its run.
listen() {
	trap '' HUP INT TERM
	exec 8>&- 6<&-
	asked=''
	while read -r asked_for <&3; do
		asked=$asked_for
		kill -s "$asked" $$ 2>/dev/null
	done
	tries=0
	while [ -n "$asked" ] && lives $$ && [ $tries -lt 100 ]; do # asked to end, it does, unless mt-link is stopped
		tries=$((tries + 1))
		sleep 0.1
	done
	lives $$ || return 0
	[ -n "$asked" ] || say "the launcher, or what it started here, was killed: the run ends on all nodes"
	{ [ -e "$tmp/failed" ] || echo 69 >"$tmp/failed"; } 2>/dev/null
	kill -s TERM $$ 2>/dev/null
	end_stage mt-link KILL
	signal_to KILL "$tmp/step"
}

begin_listening() {
	[ -n "$shim_pid" ] || return 0
	listen &
	listener=$!
}

end_listening() {
	[ -n "$listener" ] || return 0
	kill -9 "$listener" 2>/dev/null
	wait "$listener" 2>/dev/null
	listener=''
}

# stderr of a node's programs. mt-link reports the end of a run on all nodes; what follows from it is left out, and
# so is mt-store's line of a death that mt-link tells.
open_lines() {
	mkfifo "$tmp/lines" || leave 74
	filter_lines <"$tmp/lines" >&2 &
	lines=$!
	exec 2>"$tmp/lines"
}

filter_lines() {
	trap '' HUP INT TERM
	exec 3<&- 5<&- 6<&- 7>&- 8>&-
	set -- -e '/: its store is dirty (an update was cut short)/d' -e '/^mt-store: .* (pid [0-9]*) has died$/d'
	[ "$node" = 0 ] || set -- "$@" -e "/^mt-[a-z]*: node [0-9]/!s/^mt-[a-z]*: /&node $node: /"
	sed -u "$@" | while IFS= read -r line; do
		{ [ "$node" != 0 ] || printf '%s\n' "$line" >>"$out/log"; } 2>/dev/null
		printf '%s\n' "$line"
	done 2>/dev/null
}

close_lines() {
	exec 2>&-
	[ -z "$lines" ] || await "$lines"
	lines=''
}

# mt-link ends in order where node 0 ends it, and when another node ends in order: that is unexpected in node 0
start_link() {
	{
		stage mt-link mt-link "$run" --reason="$tmp/reason"
		if [ "$node" = 0 ] && lives $$ && [ ! -e "$tmp/mt-link.over" ] && [ ! -e "$tmp/failed" ]; then
			say "another node has left the run"
			fail 69
		fi
	} &
	link=$!
}

link_lives() { kill -0 "$link" 2>/dev/null; }

end_stage() { # NAME SIGNAL
	: >"$tmp/$1.over"
	signal_to "$2" "$tmp/$1.pid"
}

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
			[ -z "$newest" ] || mt-ckpt verify "$newest" 2>/dev/null
			return
		fi
		lives "$shim_pid" || exit 69            # the shim is gone, and nobody listens yet
		sleep 0.1
	done
	return 1
}

# All nodes choose by one rule: the newest that is whole. If they see different ones, mt-link ends the run.
find_shared_checkpoint() {
	newest=''
	[ -n "$resume" ] || return 0
	! hear_checkpoint || return 0
	set --
	set +f
	for dir in "$shared"/step-*; do set -- "$dir" "$@"; done
	set -f
	for dir; do                                 # node 0 tells what is wrong with the others
		if [ -d "$dir" ] && mt-ckpt verify "$dir" 2>/dev/null; then newest=$dir; return; fi
	done
}

# Node 0 has made OUT when mt-link is connected to it
start_saver_of_part() {
	[ -n "$shared" ] || return 0
	{
		trap '' HUP INT TERM
		exec 8>&-
		until link_is_connected; do
			if [ -e "$tmp/over" ] || ! lives $$; then exit 0; fi
			sleep 0.1
		done
		stage mt-ckpt mt-ckpt serve "$run" --dir "$shared"
	} &
}

connected='"stage":"mt-link",[^}]*"doing":"idle"'
link_is_connected() { shows "$connected"; }

shows() { status_of_run | grep -q "$1"; }

# a subshell, because mt-store must not end by Ctrl-C
status_of_run() (
	trap '' INT
	mt-store stat "$run" --json 2>/dev/null
)

# A stage that has failed may have done so because mt-link has ended the run: then mt-link's code is mt-run's.
await_verdict() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ ! -e "$tmp/failed" ] || return 0
		sleep 0.1
	done
}

# Where several nodes share a machine, Open MPI leaves these if mpirun is killed
drop_mpi_files() {
	job=$(printf %x "${PMIX_NAMESPACE-}" 2>/dev/null)
	set +f
	rm -f /dev/shm/vader_segment.*."$(id -u).$job.${OMPI_COMM_WORLD_LOCAL_RANK-}"
	set -f
}

# Node 0: until the mt-streams of all nodes are there, so that they share the first step; for 60 s after mt-link is
# connected
await_nodes() {
	rounds=0 here=0
	while :; do
		status=$(status_of_run)
		# the last programs of pipes are silent: after a kill of this shell nobody reads what they write
		here=$(printf %s "$status" | grep -o '"stage":"mt-stream [0-9]*"' | wc -l 2>/dev/null)
		if [ "$here" -ge $((streams * node_count)) ]; then return; fi
		if [ -n "$signal" ] || [ -e "$tmp/failed" ]; then return 1; fi
		! printf %s "$status" | grep -q "$connected" || rounds=$((rounds + 1))
		if [ $rounds -ge 600 ]; then
			say "of $((streams * node_count)) mt-streams of all nodes, $here came in 60 s"
			rc=69
			return 1
		fi
		sleep 0.1
	done
}

close_node() { # CODE
	[ "$node" != 0 ] || [ -z "$link" ] || close_link "$1"
	# an update that waits for other nodes would never end
	[ "$1" = 0 ] || end_stage mt-optim KILL
}

# Node 0: the others end when mt-link does
close_link() { # CODE
	if [ "$1" = 0 ] || [ -n "$signal" ]; then
		while [ "$signal" = USR1 ] && link_lives && [ ! -e "$tmp/failed" ] && ! link_is_connected; do sleep 0.1; done
		while link_lives && [ ! -e "$tmp/failed" ] && shows '"phase":"\(apply\|skip\)"'; do sleep 0.1; done
		stop_link
	elif [ "$1" = 69 ]; then                    # a stage was killed, which mt-link tells
		for _ in $(seq 30); do
			link_lives || break
			sleep 0.1
		done
		stop_link 69 "a stage was killed"
	else stop_link "$1" "mt-run ends with exit code $1"; fi
	await "$link"
	link=''
}

# mt-link sees that a stage other than mt-ckpt was killed, but not that one has exited: reported before mt-step is
# killed for that
tell_nodes_of_exit() { # CODE
	case $name,$1 in
	mt-link,*) return ;;
	mt-ckpt,69) stop_link 69 "mt-ckpt was killed" ;;
	*,69) return ;;
	*) stop_link "$1" "$name exited with $1" ;;
	esac
	for _ in $(seq 20); do
		[ -e "$tmp/mt-link.pid" ] || return
		sleep 0.1
	done
}

stop_link() { # [CODE TEXT], for all nodes; none: in order
	[ $# = 0 ] || echo "$*" >"$tmp/reason"
	if link_is_connected; then end_stage mt-link USR1; else end_stage mt-link KILL; fi
}

# The last save has failed, and mt-store has kept the run for that
tell_how_to_save() {
	[ -n "$unsaved" ] || return 0
	when='when all other nodes have'
	[ "$node" = 0 ] || when='before node 0'
	save="mt-ckpt save --part $run$(quoted "$shared/step-$(printf %08d "$unsaved")")"
	say "save it $when: $save; remove it when node 0 has saved: mt-store rm $run --force"
}

# Is all of a checkpoint written from here?
saves_all() { [ -z "$node" ] || { [ "$node" = 0 ] && [ -n "$shared" ]; }; }

# Other nodes than 0: all of it. What a signal means is for node 0 to decide, if mt-link is connected to it, and if it
# comes once.
follow_node0() {
	quiet=1 began=''
	find_shared_checkpoint
	make_tmp
	out=$tmp
	open_lines
	catch_signals
	create_run
	fill_run
	start_stages
	start_link
	start_saver_of_part
	while link_lives; do
		wait "$link" 2>/dev/null
		if [ -z "$signal" ] || ! link_lives; then continue; fi
		if [ $(($(date +%s) - signalled)) -gt 1 ] || { [ "$signal" != USR1 ] && ! link_is_connected; }; then
			end_stage mt-link KILL
		fi
	done
	await "$link"; rc=$?
	link=''
	first_line "$tmp/failed"
	finish "${first:-$rc}"
}

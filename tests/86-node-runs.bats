# mt-run --nodes: mpirun starts one mt-run a node. Here all nodes are on this machine. The bits of one machine, what is
# refused, checkpoints, and ends: signals to mpirun, kills of stages, of mt-run and of mpirun.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 1 --seq 32 --lr 1e-3 --threads 1 --wait 20"

setup_file() { need_mpi; }
export OMPI_MCA_orte_execute_quiet=1    # mpirun -q of Open MPI 4, which 5 does not have
export HWLOC_HIDE_ERRORS=2              # what mpirun says of a system without /sys

on_nodes() { # N ARGS...: mpirun in the background, its pid in $PID, its output in $T/nodes.out and .err
	local n=$1
	shift
	mkdir -p "$T/tmp"
	TMPDIR=$T/tmp spawn nodes mpirun -n "$n" --oversubscribe "$MT/mt-run" --nodes --run "$RUN" --out "$T/out" $ARGS \
		"$@" </dev/null
}
ENDLESS="--model $CASE/model --data $CASE/data.bin --steps 1000000 --epochs 1000000"
endless() { on_nodes 2 $ENDLESS "$@"; }
trained() { [ "$(cat "$T/out/metrics.jsonl" | wc -l)" -ge "$1" ]; }
pid_of() { pgrep -f "^$1 $RUN-$2( |\$)"; } # PROGRAM NODE
environment() { tr '\0' '\n' <"/proc/$1/environ"; }
started() { # NODE: the mt-run that mpirun started
	local p
	for p in $(pgrep -P "$PID"); do
		if environment "$p" | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$p"; fi
	done
}
processes() { ps -eo stat,args | grep -v '^Z' | grep -v grep | grep -e "mt-[a-z]* .*$RUN"; }
no_files() { ! ls -d "$T"/tmp/mt-run.*; }
all_gone() { gone "$RUN-0" && gone "$RUN-1" && gone "$RUN-2" && ! processes && no_files; }

# $T/bin: the programs, with a script from stdin in place of one; what it lets pass goes to the real one
replace() { # PROGRAM
	mkdir "$T/bin"
	ln -s "$MT"/* "$T/bin"
	rm "$T/bin/$1"
	{ echo '#!/bin/sh'; cat; echo "exec '$MT/$1' \"\$@\""; } >"$T/bin/$1"
	chmod +x "$T/bin/$1"
}

# A run whose PROGRAM begins with the lines of stdin ends on all nodes with CODE, and a line that matches LINE
replaced_fails() { # CODE PROGRAM LINE
	replace "$2"
	MT=$T/bin endless
	exits "$1" wait "$PID"
	eventually all_gone
	grep -q "^$3$" "$T/nodes.err"
	[ ! -e "$T/out/model" ]
}

# The same training on one machine, by as many mt-streams
alone() { # STREAMS ARGS...
	local streams=$1
	shift
	mt-run --run "$RUN-alone" --out "$T/alone" $ARGS --streams "$streams" "$@" >"$T/alone.out" 2>"$T/alone.err" 3>&-
}
same_as_alone() {
	cmp "$T/out/model/model.safetensors" "$T/alone/model/model.safetensors"
	diff <(timeless "$T/alone.out") <(timeless "$T/nodes.out") >&2
	diff <(timeless "$T/alone.out") <(timeless "$T/out/metrics.jsonl") >&2
}

# bats test_tags=slow
@test "two nodes end with the weights and metrics of one machine with two mt-streams" {
	local how="--model $CASE/model --data $CASE/data.bin --steps 8 --eval $CASE/data.bin --eval-every 4"
	on_nodes 2 $how
	wait "$PID"
	all_gone
	alone 2 $how
	same_as_alone
	# (Open MPI 5 says that it has no network between the processes of one machine)
	no grep -v -e "^mt-\(run\|step\): " -e '^\[.*btl_tcp' "$T/nodes.err"
}

# bats test_tags=slow
@test "three nodes, three mt-streams each, fp32, random weights, data from stdin: the bits of one machine" {
	local how="--model $CASE/model/config.json --data - --steps 6 --dtype fp32 --seed 5"
	mkdir "$T/tmp"
	TMPDIR=$T/tmp mpirun -n 3 --oversubscribe "$MT/mt-run" --nodes --run "$RUN" --out "$T/out" $ARGS --streams 3 \
		$how <"$CASE/data.bin" >"$T/nodes.out" 2>"$T/nodes.err" 3>&-
	all_gone
	alone 9 $how <"$CASE/data.bin"
	same_as_alone
}

@test "USR1 to mpirun: the step is finished, nothing is exported, all nodes exit 0, nothing is left" {
	endless
	eventually trained 5
	kill -USR1 "$PID"
	wait "$PID"
	all_gone
	grep -q "^mt-run: stopped by SIGUSR1: [0-9]* steps" "$T/nodes.err"
	grep -q "^mt-run: stopped by SIGUSR1: [0-9]* steps" "$T/out/log"
	[ ! -e "$T/out/model" ]
	tail -1 "$T/out/metrics.jsonl" | grep -q '}$'
}

# bats test_tags=nightly
@test "USR1 to mpirun at any moment of the start: all nodes exit 0, nothing is left" {
	local after before
	steps() { cat "$T/out/metrics.jsonl" 2>/dev/null | wc -l; }
	heard() { ! kill -0 "$PID" 2>/dev/null || [ "$(steps)" -gt $((before + 500)) ]; }
	for after in 0.2 0.3 0.4 0.5 0.6 0.7 0.9; do
		endless
		sleep $after
		before=$(steps)
		kill -USR1 "$PID"
		# on a busy machine, mpirun loses a signal that comes just before it starts its processes: they train on
		eventually heard
		! kill -0 "$PID" 2>/dev/null || kill -USR1 "$PID"
		code=0
		wait "$PID" || code=$?
		cat "$T/nodes.err"
		# before the shims have begun to hear it, it ends them
		[ "$code" = 0 ] || { [ "$code" -gt 128 ] && [ ! -e "$T/out/metrics.jsonl" ]; }
		eventually all_gone
		rm -rf "$T/out"
	done
}

# bats test_tags=nightly
@test "USR1 to mpirun while the processes that it has started begin: all nodes exit 0, nothing is left" {
	mkdir "$T/slow"
	printf '#!/bin/sh\necho >>%s/called\nsleep 1\nexec /usr/bin/nproc "$@"\n' "$T" >"$T/slow/nproc"
	chmod +x "$T/slow/nproc"
	PATH=$T/slow:$PATH endless
	both_began() { [ "$(wc -l <"$T/called")" -ge 2 ]; }
	eventually both_began
	kill -USR1 "$PID"
	exits 0 wait "$PID"
	eventually all_gone
}

# bats test_tags=nightly
@test "USR1 to mpirun while the processes that it has started make their pipes: all nodes exit 0, nothing is left" {
	mkdir "$T/slow"
	printf '#!/bin/sh\n: >>%s/called\nsleep 0.5\nexec /bin/rm "$@"\n' "$T" >"$T/slow/rm"
	chmod +x "$T/slow/rm"
	PATH=$T/slow:$PATH endless
	eventually [ -e "$T/called" ]
	sleep 0.2
	kill -USR1 "$PID"
	exits 0 wait "$PID"
	eventually all_gone
}

# bats test_tags=nightly
@test "mt-feed is killed, and USR1 comes when mt-step ends for it: 69, and the line says so" {
	replace mt-step <<-EOF
		case "\$*" in *--metrics*)
			trap '' USR1
			until pkill -9 -x -P "\$PPID" mt-feed; do sleep 0.05; done
			"$MT/mt-step" "\$@"; rc=\$?
			kill -USR1 "\$PPID"
			exit \$rc ;;
		esac
	EOF
	MT=$T/bin endless
	exits 69 wait "$PID"
	eventually all_gone
	grep -q "^mt-run: mt-feed was killed by signal 9" "$T/nodes.err"
}

# bats test_tags=nightly
@test "an option that only one node does not know: the run ends with 64 and that node's line" {
	replaced_fails 64 mt-run "mt-run: node 1: unknown option --no-such-option.*" \
		<<<'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" --no-such-option'
}

# bats test_tags=nightly
@test "mpirun is killed, and started again with --resume at once: it goes on" {
	local i last=0
	saved_after() { [ "$(newest_saved)" -gt "$1" ]; }
	for i in 1 2 3; do
		endless --ckpt-every 20 $([ $i = 1 ] || echo --resume)
		eventually saved_after "$last"
		kill -9 "$PID"
		wait "$PID" || true
		last=$(newest_saved)
	done
	endless --ckpt-every 20 --resume --until $((last + 100))
	wait "$PID"
	[ "$(newest_saved)" = $((last + 100)) ]
	eventually all_gone
}

# bats test_tags=nightly
@test "mpirun is killed, and with it the shim that starts a mt-run, before that has begun: nothing goes on" {
	mkdir -p "$T/bin/run"
	ln -s "$MT"/mt-* "$T/bin"
	cp --remove-destination "$MT/mt-run" "$T/bin"
	cat >"$T/bin/run/mt-run" <<-END
		#!/bin/sh
		: >>"$T/started"
		case \$MT_RUN_NODE in 0*) exit ;; esac
		sleep 1
		exec "$MT/run/mt-run" "\$@"
	END
	chmod +x "$T/bin/run/mt-run"
	MT=$T/bin endless --ckpt-every 20 --resume
	eventually [ -e "$T/started" ]
	kill -9 "$PID"
	wait "$PID" || true
	eventually all_gone
}

# bats test_tags=nightly
@test "mpirun is killed before the mt-run that it started has begun: nothing goes on" {
	replace mt-run <<-EOF
		[ "\$OMPI_COMM_WORLD_RANK" != 0 ] || exit 0
		: >"$T/started"
		sleep 1
	EOF
	MT=$T/bin endless --ckpt-every 20 --resume
	eventually [ -e "$T/started" ]
	kill -9 "$PID"
	wait "$PID" || true
	eventually all_gone
}

# bats test_tags=slow
@test "INT to mpirun: all nodes end, nothing is left" {
	endless
	eventually trained 5
	kill -INT "$PID"
	no wait "$PID"
	eventually all_gone
	[ ! -e "$T/out/model" ]
	tail -1 "$T/out/metrics.jsonl" | grep -q '}$'
}

# bats test_tags=nightly
@test "INT to mpirun while the mt-link of a node is stopped: all nodes end, nothing is left" {
	local node
	for node in 1 0; do
		endless
		eventually trained 5
		kill -STOP "$(pid_of mt-link $node)"
		kill -INT "$PID"
		no wait "$PID"
		eventually all_gone
		rm -r "$T/out"
	done
}

# bats test_tags=slow
@test "a stage that is killed ends the run on all nodes with 69 and the line that names it" {
	local what
	for what in "mt-step 0" "mt-stream 0" "mt-optim 1" "mt-stream 1"; do
		endless
		eventually trained 5
		local victim
		victim=$(pid_of $what)
		kill -9 "$victim"
		exits 69 wait "$PID"
		eventually all_gone
		grep -q "^mt-link: node ${what#* }: ${what% *}\( [0-9]\)\? (pid $victim) has died: the run ends on all nodes$" \
			"$T/nodes.err"
		no grep -q "dirty" "$T/nodes.err"
		rm -r "$T/out"
	done
}

# bats test_tags=nightly
@test "mt-link is killed: the run ends on all nodes with 69, nothing is left" {
	local node
	for node in 0 1; do
		endless
		eventually trained 5
		kill -9 "$(pid_of mt-link $node)"
		exits 69 wait "$PID"
		eventually all_gone
		grep -q -e "^mt-link: node $node is gone: its mt-link has died: the run ends on all nodes$" \
			-e "^mt-run: .*mt-link was killed by signal 9$" "$T/nodes.err"
		rm -r "$T/out"
	done
}

# bats test_tags=nightly
@test "mt-run is killed, as mpirun started it or the one that works: the run ends on all nodes, nothing is left" {
	local node victim
	for node in 0 1; do
		endless
		eventually trained 5
		kill -9 "$(started $node)"
		exits 137 wait "$PID"
		eventually all_gone
		rm -r "$T/out"
		endless
		eventually trained 5
		victim=$(ps -o pid=,sid= --ppid "$(started $node)" | awk '$1 == $2 { print $1 }')
		kill -9 "$victim"
		exits 69 wait "$PID"
		grep -q "^mt-run: \(node 1: \)\?its worker was killed by signal 9$" "$T/nodes.err"
		eventually gone "$RUN-0"
		eventually gone "$RUN-1"
		eventually all_gone
		rm -r "$T/out"
	done
}

# bats test_tags=nightly
@test "mt-run is killed while it waits for the mt-streams: its left-over processes print nothing about pipes or rings" {
	local victim shim
	replace mt-stream <<<'case $1 in *-1) : >>'"$T/called"'; exec sleep 30 ;; esac'
	MT=$T/bin endless
	eventually [ -e "$T/called" ]
	streams_of_one() { mt-store stat "$RUN-0" | grep -q mt-stream; }
	eventually streams_of_one
	shim=$(started 0)
	victim=$(ps -o pid=,sid= --ppid "$shim" | awk '$1 == $2 { print $1 }')
	kill -STOP "$shim"                  # so that mpirun hears of the end, and leaves, after all messages
	kill -9 "$victim"
	eventually gone "$RUN-0"
	kill -CONT "$shim" 2>/dev/null || true  # mpirun may have ended it: the other node has ended
	wait "$PID" || true
	eventually all_gone
	no grep -e "write error" -e "no ring" -e "cannot" "$T/nodes.err"
}

@test "mpirun is killed: all nodes end, nothing is left, no files of Open MPI either" {
	endless
	eventually trained 5
	[ "$(ls "$T"/tmp/mt-run.*/*_segment.* | wc -l)" = 2 ]   # of Open MPI
	kill -9 "$PID"
	wait "$PID" || true
	eventually all_gone
}

# ---- checkpoints

checkpoints() { (cd "$T/out" && ls -d step-*); }
newest_saved() { checkpoints | tail -1 | sed 's/step-0*//'; }
saved() { [ "$(checkpoints | wc -l)" -ge "$1" ]; }

# What is in OUT is that of training of N steps on one machine that nobody disturbed
undisturbed() { # N
	alone 1 $ENDLESS --until "$1"
	cmp "$T/out/model/model.safetensors" "$T/alone/model/model.safetensors"
	diff <(timeless "$T/alone/metrics.jsonl") <(timeless "$T/out/metrics.jsonl") >&2
}

# Two nodes with a checkpoint that a kill has ended; its step in $AT
cut_off() {
	endless --ckpt-every 3
	eventually saved 1
	kill -9 "$(pid_of "mt-stream" "$1")"
	exits 69 wait "$PID"
	eventually all_gone
	AT=$(newest_saved)
	[ -e "$T/out/step-$(printf %08d "$AT")/optim-m-node-1-of-2.safetensors" ]
}

# bats test_tags=slow
@test "two nodes with --ckpt-every, killed: --resume on two nodes ends with the bits of an undisturbed run" {
	cut_off 1
	endless --resume --until $((AT + 4))
	wait "$PID"
	all_gone
	grep -q "^mt-run: trains .*, from $T/out/step-$(printf %08d "$AT")," "$T/nodes.err"
	[ "$(newest_saved)" = $((AT + 4)) ]
	undisturbed $((AT + 4))
	no ls -d "$T"/out/.*tmp*
}

# bats test_tags=nightly
@test "two nodes with a class for images: --resume from checkpoints alone ends with the checkpoint of one machine" {
	local file ENDLESS="--model $T/in --data $GOLDEN/gemma3/data.bin --steps 1000000 --epochs 1000000"
	python3 "$TOP/tests/lib/wrap.py" "$GOLDEN/gemma3/model" "$T/was" gemma3
	cp -r "$T/was" "$T/in"
	cut_off 1
	rm -r "$T/in"
	endless --resume --until $((AT + 4))
	wait "$PID"
	all_gone
	grep -q "^mt-run: $T/in is gone: goes on from $T/out/step-$(printf %08d "$AT") alone" "$T/nodes.err"
	[ "$(newest_saved)" = $((AT + 4)) ]
	python3 "$TOP/tests/lib/wrap.py" --unwrap "$T/out/model" "$T/was" "$T/text"
	mv "$T/was" "$T/in"
	alone 2 $ENDLESS --until $((AT + 4))
	diff -r "$T/alone/model" "$T/out/model"
	for file in "$T/alone/step-$(printf %08d $((AT + 4)))"/model*; do
		cmp "$file" "$T/out/step-$(printf %08d $((AT + 4)))/${file##*/}"
	done
}

# bats test_tags=slow
@test "two nodes with --ckpt-every, killed: --resume on one machine ends with the bits of an undisturbed run" {
	cut_off 0
	mkdir -p "$T/out/.step-00000009.mt-tmp-node-1" # the kill may leave such a part
	mt-run --run "$RUN" --out "$T/out" $ARGS $ENDLESS --resume --until $((AT + 4)) >"$T/one.out" 2>"$T/one.err" 3>&-
	undisturbed $((AT + 4))
	for f in optim-lo optim-m optim-v; do
		cmp "$T/out/step-$(printf %08d $((AT + 4)))/$f.safetensors" \
			"$T/alone/step-$(printf %08d $((AT + 4)))/$f.safetensors"
	done
	no ls -d "$T"/out/.*tmp*
}

# bats test_tags=slow
@test "USR1 to mpirun saves the step; --resume goes on with the bits of an undisturbed run" {
	endless --ckpt-every 1000000
	eventually trained 5
	kill -USR1 "$PID"
	wait "$PID"
	all_gone
	[ "$(checkpoints | wc -l)" = 1 ]
	AT=$(newest_saved)
	tail -1 "$T/out/metrics.jsonl" | grep -q "^{\"step\": $AT,"
	grep -q "^mt-run: saved $T/out/step-$(printf %08d "$AT"); continue with the same command and --resume$" \
		"$T/nodes.err"
	endless --resume --until $((AT + 4))
	wait "$PID"
	all_gone
	undisturbed $((AT + 4))
}

# bats test_tags=nightly
@test "two nodes with --keep-best keep the best evaluated checkpoint and the newest" {
	local best
	ARGS=$(with "$ARGS" --lr 1)         # a rate that rises until the loss does, too
	on_nodes 2 --model "$CASE/model" --data "$CASE/data.bin" --steps 16 --warmup 100% --ckpt-every 2 --keep 1 \
		--keep-best --eval "$CASE/eval.bin" --eval-every 2
	wait "$PID"
	all_gone
	best=$(sed -n 's/.*best eval loss .* at step \([0-9]*\)$/\1/p' "$T/nodes.err")
	[ "$best" -gt 0 ]
	[ "$best" -lt 16 ]
	[ "$(checkpoints)" = "$(printf 'step-%08d\n' "$best" 16)" ]
	grep -q "; it is step 16, and step $best has a lower eval loss (--best exports that)" "$T/nodes.err"
	on_nodes 2 --model "$CASE/model" --data "$CASE/data.bin" --steps 17 --warmup 16 --ckpt-every 2 --keep 1 \
		--best --eval "$CASE/eval.bin" --eval-every 2 --resume
	wait "$PID"
	all_gone
	grep -q "; it is step $best, whose eval loss is the lowest of those that are saved" "$T/nodes.err"
	diff -r -x 'optim-*' -x run.json "$T/out/step-$(printf %08d "$best")" "$T/out/model"
}

# bats test_tags=nightly
@test "mt-ckpt is killed on a node: the run ends on all nodes with 69, and checkpoints remain" {
	local node
	for node in 0 1; do
		endless --ckpt-every 3
		eventually saved 1
		kill -9 "$(pid_of "mt-ckpt serve" $node)"
		exits 69 wait "$PID"
		eventually all_gone
		grep -q "^mt-run: \(node 1: \)\?mt-ckpt was killed by signal 9$" "$T/nodes.err"
		mt-ckpt verify "$T/out/step-$(printf %08d "$(newest_saved)")"
		rm -r "$T/out"
	done
}

# bats test_tags=nightly
@test "the last save fails: the runs of all nodes stay, and the lines' commands save and remove them" {
	local at=$T/out/step-00000006 how="--model $CASE/model --data $CASE/data.bin --steps 6" node f
	mkdir "$T/out"
	: >"$at"                            # a file, which no directory can replace
	on_nodes 2 $how --ckpt-every 100
	exits 74 wait "$PID"
	for node in 0 1; do
		no gone "$RUN-$node"
		grep -q "^mt-store: \(node 1: \)\?run '$RUN-$node' stays: its step 6 is not saved$" "$T/nodes.err"
	done
	no processes
	rm "$at"
	fails_with 66 mt-ckpt save --part "$RUN-0" "$at"        # without the other node's part
	for node in 1 0; do
		f=$(grep -o "mt-ckpt save --part $RUN-$node [^;]*" "$T/nodes.err")
		[ "$f" = "mt-ckpt save --part $RUN-$node $at" ]
		$f
	done
	grep -o "mt-store rm $RUN-[01] --force" "$T/nodes.err" >"$T/remove"
	sh "$T/remove"
	all_gone
	mt-ckpt verify "$at"
	no ls -d "$T"/out/.*tmp*
	alone 2 $how
	make_run "$T/alone/step-00000006"
	state_of "$RUN" >"$T/alone.state"
	mt-ckpt load "$RUN" "$at"
	state_of "$RUN" | cmp - "$T/alone.state"
	mt-store rm "$RUN"
}

# bats test_tags=nightly
@test "USR1 to mpirun, and its save fails: 74, the runs of all nodes stay, and the lines say how to save them" {
	local node step
	mkdir "$T/out"
	for step in $(seq -f %08g 400); do : >"$T/out/step-$step"; done # which no directory can replace
	endless --ckpt-every 1000000
	eventually trained 2
	kill -USR1 "$PID"
	exits 74 wait "$PID"
	for node in 0 1; do
		no gone "$RUN-$node"
		grep -q "mt-ckpt save --part $RUN-$node $T/out/step-[0-9]*; remove it" "$T/nodes.err"
		mt-store rm "$RUN-$node" --force
	done
	all_gone
}

# bats test_tags=slow
@test "OUT that another node does not see: the run ends with 78 and a line that says so" {
	replace mt-ckpt <<-EOF
		if [ "\$1 \$2" = "serve $RUN-1" ]; then
			set -- serve $RUN-1 --dir "$T/elsewhere"
		fi
	EOF
	MT=$T/bin endless --ckpt-every 3
	exits 78 wait "$PID"
	eventually all_gone
	grep -q "^mt-ckpt: .*: --dir must be shared by all nodes$" "$T/nodes.err"
	[ ! -e "$T/out" ]
	[ ! -e "$T/elsewhere" ]
}

# bats test_tags=slow
@test "--resume, and a node that sees another newest checkpoint: the run ends with 78" {
	alone 1 $ENDLESS --until 4 --ckpt-every 2
	mv "$T/alone" "$T/out"
	replace mt-ckpt <<<"case \"\$OMPI_COMM_WORLD_RANK \$*\" in '1 verify '*-00000004*) exit 65 ;; esac"
	MT=$T/bin endless --resume --ckpt-every 2
	exits 78 wait "$PID"
	eventually all_gone
	grep -q "^mt-link: .*the runs of node 0 and node 1 differ: " "$T/nodes.err"
	[ "$(newest_saved)" = 4 ]
}

@test "a launcher's environment that names no node of the run: 64 and one line" {
	local wrong
	for wrong in "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=0" "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2" \
		"OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2" "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2x" \
		"PMI_RANK=3 PMI_SIZE=2" "PMI_RANK=0 PMI_SIZE=-1" "PMIX_RANK=0 SLURM_NTASKS=" \
		"SLURM_PROCID=1 SLURM_NTASKS=1" "SLURM_PROCID=00 SLURM_NTASKS=2" \
		"SLURM_PROCID=1 SLURM_NTASKS=99999999999999999999"; do
		fails_with 64 env $wrong "$MT/mt-run" --nodes $ENDLESS --out "$T/out" $ARGS
		grep -q "^mt-run: --nodes: by the launcher's environment this is process '.* of .*'; expected 0 of N to " \
			"$T/fails.err"
	done
	fails_with 64 "$MT/mt-run" --nodes $ENDLESS --out "$T/out" $ARGS
	grep -q "^mt-run: --nodes: no launcher has started this process" "$T/fails.err"
	[ ! -e "$T/out" ]
}

# bats test_tags=slow
@test "OUT/.node-0 is a FIFO or a link: the run ends with 73, nothing waits for it or follows it, nothing is left" {
	local how
	mkdir "$T/out"
	echo precious >"$T/victim"
	for how in mkfifo "ln -s $T/victim"; do
		$how "$T/out/.node-0"
		endless --resume --ckpt-every 3
		exits 73 wait "$PID"
		eventually all_gone
		grep -q "^mt-run: $T/out/.node-0 is a link or not a plain file" "$T/nodes.err"
		rm "$T/out/.node-0"
	done
	[ "$(cat "$T/victim")" = precious ]
}

dry() { # N ARGS...
	local n=$1
	shift
	mkdir -p "$T/tmp"
	TMPDIR=$T/tmp mpirun -n "$n" --oversubscribe "$MT/mt-run" --nodes --run "$RUN" --model "$CONFIGS/demo.json" \
		--data "$CASE/data.bin" --out "$T/out" $ARGS --steps 12 --dry-run "$@" 3>&- </dev/null
}

# bats test_tags=slow
@test "--dry-run prints what each of several nodes needs, and the time with and without the network; nothing is left" {
	local has said
	dry 2 >"$T/report" 2>"$T/err"
	[ ! -s "$T/err" ]
	grep -qx "nodes     2, all as this one; the time leaves the network out (--net GB/s)" "$T/report"
	grep -q "^host      .* GB memory available: fits$" "$T/report"
	grep -q "^disk      .* free: the model: fits$" "$T/report"
	grep -q "^speed     .* tokens/s, 12 steps in " "$T/report"
	dry 2 --ckpt-every 5 | grep -q "^disk      .* free: 3 checkpoints of .* and the model: fits$"
	# 4 micro-batches of 4.9 M gradients: 2 a node, half of them to the other node, and as much of the weights
	dry 2 --net 0.01 --json >"$T/json"
	[ "$(value nodes <"$T/json")" = 2 ]
	python3 - "$T/json" <<-'PY'
		import json, sys
		dry = json.load(open(sys.argv[1]))
		params = dry["checkpoint_bytes"] / 12
		gradients = 2 * params / 2 * 4
		assert dry["time_s"] > 12 * gradients / 0.01e9, dry
		assert dry["time_s"] < 12 * (gradients + params) / 0.01e9 + 12 * 4, dry
	PY
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 32 --node 0/2 2>"$T/create.err"
	has=$(mt-store stat "$RUN" --json | value bytes) said=$(value shared_bytes <"$T/json")
	mt-store rm "$RUN" --force
	[ $((said - has)) -lt $((has / 20)) ] && [ $((has - said)) -lt $((has / 20)) ]
	[ ! -e "$T/out" ]
	all_gone
}

# bats test_tags=slow
@test "--dry-run exits 71 with a line of the node whose memory is short" {
	replace mt-stream <<<'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || set -- "$@" --device-memory 1M'
	MT=$T/bin exits 71 dry 3 >"$T/report" 2>"$T/err"
	grep -q "^mt-run: node 1: a micro-batch of 1 row of 32 tokens needs .* MiB of device memory, have 1 MiB" "$T/err"
	[ "$(grep -c ^mt-run "$T/err")" = 1 ]
	all_gone
}

# bats test_tags=nightly
@test "options that mt-run does not have on several nodes are refused by node 0 with one line" {
	refuses() { # CODE N ARGS...
		local want=$1 n=$2 code=0
		shift 2
		mpirun -n "$n" --oversubscribe "$MT/mt-run" --nodes --run "$RUN" --model "$CASE/model" \
			--data "$CASE/data.bin" --out "$T/out" $ARGS --steps 2 "$@" >"$T/refuses.out" 2>"$T/refuses.err" 3>&- \
			</dev/null || code=$?
		cat "$T/refuses.err"
		[ "$code" = "$want" ] && [ "$(wc -l <"$T/refuses.err")" = 1 ] && [ ! -s "$T/refuses.out" ]
	}
	refuses 64 2 --restart | grep "^mt-run: --restart: not on several nodes"
	ARGS=$(with "$ARGS" --micro auto) refuses 64 2 | grep "^mt-run: --micro auto: not on several nodes"
	refuses 64 2 --net 1 | grep "^mt-run: --net goes with --dry-run and --nodes$"
	refuses 64 2 --dry-run --net 0 | grep "^mt-run: --net: '0': 1e-6 to 1e6 GB/s, the network's speed$"
	refuses 64 3 --streams 22 | grep "^mt-run: --streams: 22 on each of 3 nodes, and a run has 64 mt-streams at most$"
	OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=65 fails_with 64 mt-run --nodes --run "$RUN"
	grep "^mt-run: --nodes: 65 nodes, and a run has 64 at most$" "$T/fails.err"
	refuses 64 2 --foo 1 | grep "^mt-run: unknown option --foo; see --help$"
	refuses 66 2 --eval "$T/none" | grep "^mt-run: $T/none: no such file$"
	[ ! -e "$T/out" ]
	mkdir -p "$T/out/step-00000004"
	refuses 73 2 --ckpt-every 5 | grep "^mt-run: $T/out has checkpoints: take --resume, or another --out$"
	eventually all_gone
	rmdir "$T/out/step-00000004"
	fails_with 64 env -u OMPI_COMM_WORLD_RANK -u PMIX_RANK -u PMI_RANK -u SLURM_PROCID "$MT/mt-run" --nodes \
		--model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 2
	grep -q "no launcher has started this process: mpirun -n NODES mt-run --nodes" "$T/fails.err"
}

# bats test_tags=nightly
@test "a stage that exits on one node ends the run on all nodes with its exit code" {
	local node
	for node in 0 1; do
		rm -rf "$T/bin" "$T/out"
		replaced_fails 71 mt-optim "mt-optim: \(node 1: \)\?no memory" \
			<<<"[ \"\$1\" != $RUN-$node ] || { echo 'mt-optim: no memory' >&2; exit 71; }"
	done
}

# bats test_tags=nightly
@test "a node whose mt-stream does not come ends the run on all nodes with 69 and a line" {
	replace mt-stream <<-'END'
		[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec sleep 1000
	END
	printf '#!/bin/sh\n[ "$1" = 0.1 ] || exec %s "$1"\n' "$(command -v sleep)" >"$T/bin/sleep"
	chmod +x "$T/bin/sleep"
	PATH=$T/bin:$PATH MT=$T/bin endless
	exits 69 wait "$PID"
	grep -q "^mt-run: of 2 mt-streams of all nodes, 1 came in 60 s$" "$T/nodes.err"
	eventually all_gone
}

# bats test_tags=slow
@test "a node whose run cannot be made ends all of them with its line" {
	replaced_fails 71 mt-store "mt-store: node 1: no room" \
		<<<'case "$*" in *--node=1/2*) echo "mt-store: no room" >&2; exit 71 ;; esac'
}

# bats test_tags=slow
@test "a socket that the launcher passes, as MPICH's does, is none of the script's descriptors: mt-link gets it" {
	replace mt-link <<<'readlink "/proc/self/fd/$PMI_FD" >&2; exit 70'
	mkdir "$T/launched"
	printf '#!/bin/sh\nexec 9</dev/zero\nPMI_FD=9 exec "%s" "$@"\n' "$T/bin/mt-run" >"$T/launched/mt-run"
	chmod +x "$T/launched/mt-run"
	MT=$T/launched endless
	exits 70 wait "$PID"
	grep -qx /dev/zero "$T/nodes.err"
	eventually all_gone
}

@test "one process under a launcher is a run on one machine" {
	on_nodes 1 --model "$CASE/model" --data "$CASE/data.bin" --steps 3
	wait "$PID"
	mt-ckpt verify "$T/out/step-00000003"
	[ -f "$T/out/model/config.json" ]
	gone "$RUN"
}

# bats test_tags=nightly
@test "strangers, wrong bits, kills, stops and signals: every job of two nodes ends or trains" {
	python3 "$TOP/tests/crash/nodes.py" --faults "${MT_NODE_FAULTS:-5}"
}

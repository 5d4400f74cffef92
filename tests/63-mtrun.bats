# mt-run under kills and invalid options: its own death, two on one OUT, signals at its end, messages.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 3 --dtype fp32"

start() { # ARGS...: mt-run in the background, its pid in $pid
	"${BIN:-$MT}/mt-run" --run "$RUN" --model "${MODEL:-$CASE/model}" --data "${DATA:-$T/data}" --out "$T/out" $ARGS \
		"$@" >>"$T/m" 2>>"$T/run.err" 3>&- &
	pid=$!
	echo "$pid" >>"$T/pids"
}
run_it() { start "$@"; wait "$pid"; }
processes() { ps -eo stat,args | grep -v '^Z' | grep -v grep | grep -e "mt-[a-z]* .*$RUN" -e "mt-feed .*$T/"; }
all_gone() { gone "$RUN" && ! processes; }
trained() { [ "$(wc -l <"$T/m")" -ge "$1" ]; }
newest() { ls -d "$T"/out/step-* | tail -1; }
emptied() { [ -z "$(ls "$1")" ]; }
reached() { [ "$(last_step)" -ge "$1" ]; }
last_step() { tail -1 "$T/m" | sed 's/.*"step": \([0-9]*\).*/\1/'; }

# Use a script from stdin in place of mt-ckpt (or $1); what the script does not handle goes to the real program.
# A second call replaces one more program.
replace() {
	[ -d "$T/bin" ] || { mkdir "$T/bin" && ln -s "$MT"/mt-* "$T/bin"; }
	rm "$T/bin/${1:-mt-ckpt}"
	{ echo '#!/bin/sh'; echo "T='$T' MT='$MT'"; cat; echo "exec '$MT/${1:-mt-ckpt}' \"\$@\""; } >"$T/bin/${1:-mt-ckpt}"
	chmod +x "$T/bin/${1:-mt-ckpt}"
	BIN=$T/bin
}

# TOOL takes SECONDS longer, for programs with $T/slow in PATH; $T/TOOL.called says that it was called
slowed() {
	mkdir -p "$T/slow"
	printf '#!/bin/sh\n: >>%s/%s.called\nsleep %s\nexec %s "$@"\n' "$T" "$1" "$2" "$(command -v "$1")" >"$T/slow/$1"
	chmod +x "$T/slow/$1"
}

# Train without a disturbance, for comparison: $T/whole/m, $T/whole/model
undisturbed() {
	run_it "$@"
	mkdir "$T/whole"
	timeless "$T/m" >"$T/whole/m"
	mv "$T/out/model" "$T/whole"
	rm -r "$T/out" "$T/m"
}
same_as_undisturbed() {
	timeless "$T/out/metrics.jsonl" | diff "$T/whole/m" - >&2
	cmp "$T/out/model/model.safetensors" "$T/whole/model/model.safetensors"
}

# bats test_tags=slow
@test "mt-run killed in training: the step is saved, nothing is left, --resume gives the undisturbed bits and metrics" {
	long_data
	mkdir "$T/tmp"
	export TMPDIR=$T/tmp
	undisturbed --steps 200
	local how
	for how in "" "--restart --ckpt-every 3 --streams 2"; do
		start --steps 200 $how
		eventually trained 20
		kill -9 $pid
		eventually all_gone
		[ ! -e "$T/out/model" ]
		eventually emptied "$T/tmp"
		mt-ckpt verify "$(newest)"
		[ "$(newest)" = "$T/out/step-$(printf %08d "$(last_step)")" ]
		run_it --steps 200 --resume
		same_as_undisturbed
		rm -r "$T/out" "$T/m"
	done
	[ -z "$(ls "$T/tmp")" ]
}

# bats test_tags=slow
@test "mt-run is killed and its model deleted: --resume goes on from the checkpoint alone, twice, with the same bits" {
	local kind
	for kind in text gemma3 llava; do
		CASE=$GOLDEN/gemma3
		[ $kind != llava ] || CASE=$GOLDEN/llama2
		if [ $kind = text ]; then cp -r "$CASE/model" "$T/was"
		else python3 "$TOP/tests/lib/wrap.py" "$CASE/model" "$T/was" $kind; fi
		cp -r "$T/was" "$T/in"
		MODEL=$T/in
		long_data
		undisturbed --steps 300
		start --steps 300 --ckpt-every 20
		eventually compgen -G "$T/out/step-*"
		kill -9 $pid
		rm -r "$T/in"
		eventually all_gone
		run_it --steps 300 --until $(($(last_step) + 20)) --resume --ckpt-every 2 --keep 1
		grep -q "^mt-run: $T/in is gone: goes on from $T/out/step-.* alone$" "$T/run.err"
		start --steps 300 --resume --ckpt-every 7
		eventually reached 150
		kill -9 $pid
		eventually all_gone
		run_it --steps 300 --resume
		timeless "$T/out/metrics.jsonl" | diff "$T/whole/m" - >&2
		diff -r "$T/whole/model" "$T/out/model"
		rm -r "$T/out" "$T/m" "$T/was" "$T/whole"
	done
}

@test "--resume without the model and without a whole checkpoint exits 66 or 65, and leaves OUT as it was" {
	cp -r "$CASE/model" "$T/in"
	MODEL=$T/in DATA=$CASE/data.bin
	resume() {
		mt-run --run "$RUN" --model "$T/in" --data "$DATA" --out "$T/out" $ARGS --steps 6 --resume "$@"
	}
	rm -r "$T/in"
	fails_with 66 resume
	grep -q "$T/in: no such directory" "$T/fails.err"
	[ ! -e "$T/out" ]
	mkdir "$T/out"
	fails_with 66 resume
	grep -q "$T/in: no such directory" "$T/fails.err"
	fails_with 66 resume --dry-run
	cp -r "$CASE/model" "$T/in"
	run_it --steps 6 --until 3
	rm "$T/in/config.json"
	resume --dry-run --json >"$T/json"
	[ "$(value fits <"$T/json")" = True ]
	truncate -s -1 "$T/out/step-00000003/config.json"
	exits 65 resume 2>"$T/err"
	grep -q "no checkpoint in $T/out is whole" "$T/err"
}

@test "mt-run is killed, and a process that it leaves writes in its directory while that is deleted: it is deleted" {
	mkdir "$T/tmp" "$T/late"
	export TMPDIR=$T/tmp
	# the first rm finds the directory not empty, as when another process has just made a file there
	cat >"$T/late/rm" <<-END
		#!/bin/sh
		case "\$*" in "-rf $T/tmp/mt-run."*)
			if (set -C; : >"$T/was-late") 2>/dev/null; then
				echo "rm: cannot remove '\$2': Directory not empty" >&2
				exit 1
			fi ;;
		esac
		exec /bin/rm "\$@"
	END
	chmod +x "$T/late/rm"
	PATH=$T/late:$PATH DATA=$CASE/data.bin start --steps 100000 --epochs 100000
	eventually trained 3
	kill -9 $pid
	eventually all_gone
	eventually emptied "$T/tmp"
	[ -e "$T/was-late" ]
	no grep "cannot remove" "$T/run.err"
}

@test "the end of a run does not wait for a reader of metrics that comes after its tail was killed" {
	mkfifo "$T/reader"
	cat >"$T/end" <<-END
		signal_to() { :; }
		await() { wait "\$1"; }
		tmp=$T
		. "$MT/run/out.sh"
		. "$MT/run/story.sh"
		tmp=$T
		(sleep 0.3; exec <"$T/reader"; cat) &
		end_watching reader \$!
		echo ended
	END
	[ "$(timeout 10 sh "$T/end")" = ended ]
}

# bats test_tags=slow
@test "mt-run killed with all its subshells while its input stays open: the step is saved, nothing is left" {
	long_data
	mkdir "$T/tmp"
	export TMPDIR=$T/tmp
	mkfifo "$T/fifo"
	{ for i in $(seq 20); do cat "$T/data"; done; sleep 60; } >"$T/fifo" 3>&- &
	echo $! >>"$T/pids"
	DATA=$T/fifo start --steps 100000 --restart
	eventually trained 20
	kill -9 $(pgrep -P $pid -x mt-run) $pid
	eventually all_gone
	pkill -P "$(head -1 "$T/pids")" sleep || true
	mt-ckpt verify "$(newest)"
	[ -n "$(ls "$T/tmp")" ]
	mt-run --run "$(mt_run_name b)" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/other" $ARGS --steps 1 \
		>/dev/null 3>&-
	[ -z "$(ls "$T/tmp")" ]             # the next mt-run deletes what the killed one left
}

@test "OUT is deleted before mt-store serves the run: 74, and the run is removed" {
	replace mt-store <<<'[ "$1" != serve ] || rm -r "$T/out"'
	replace <<<'[ "$1" != load ] || while [ -e "$T/out" ]; do sleep 0.02; done'
	DATA=$CASE/data.bin
	start --steps 5
	exits 74 wait $pid
	all_gone
	grep -q "^mt-store: $T/out: No such file or directory" "$T/run.err"
}

# bats test_tags=slow
@test "a disk that is too small is reported at the start; at the end, what is complete and how to save elsewhere" {
	full_disk 25M               # room for the model, not for a checkpoint
	mt-feed --bytes "$TOP/README.md" >"$T/data"
	exits 74 mt-run --run "$RUN" --model "$CONFIGS/demo.json" --data "$T/data" --out "$T/disk/out" --steps 4 \
		--batch 1 --seq 64 --lr 1e-3 --ckpt-every 3 --threads 1 >/dev/null 2>"$T/err" 3>&-
	grep -q "^mt-run: warning: $T/disk/out: 0.026 GB free, 2 checkpoints of .* need .* GB: no checkpoint fits$" "$T/err"
	grep -q "step 3 is not saved: $T/disk/out/step-00000003/optim-.*: No space left on device$" "$T/err"
	grep -q "the model is in $T/disk/out/model;" "$T/err"
	mt-ckpt verify "$T/disk/out/model"
	last=$(tail -1 "$T/err")
	[[ $last == "mt-store: run '$RUN' stays, since the disk is full; save and remove it: "* ]]
	last=${last#*remove it: }
	(cd "$T" && eval "${last/DIRECTORY-ON-ANOTHER-DISK/.}")
	mt-ckpt verify "$T/step-00000004"
	gone "$RUN"
	# no message where there is room
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/disk/small" --steps 1 --batch 1 \
		--seq 32 --lr 1e-3 --threads 1 >/dev/null 2>"$T/err" 3>&-
	no grep -q warning "$T/err"
}

# bats test_tags=slow
@test "OUT is deleted, and then mt-store killed: the last line tells how to save and remove the run" {
	long_data
	start --steps 5000
	eventually trained 5
	rm -r "$T/out"
	pkill -9 -f "^mt-store serve $RUN "
	kill -TERM $pid
	exits 143 wait $pid
	last=$(tail -1 "$T/run.err")
	[[ $last == "mt-store: run '$RUN' stays; save and remove it: mt-ckpt save $RUN $T/out/step-"* ]]
	mkdir "$T/out"
	eval "${last#*remove it: }"
	gone "$RUN"
}

# bats test_tags=slow
@test "mt-store is killed: it is started again, and training goes on" {
	long_data
	start --steps 250
	eventually trained 5
	pkill -9 -f "^mt-store serve $RUN "
	wait $pid
	grep -q "mt-store was killed by signal 9" "$T/run.err"
	[ -f "$T/out/model/config.json" ]
	mt-ckpt verify "$T/out/step-00000250"
	all_gone
}

# bats test_tags=slow
@test "the subshell of mt-store is killed: training goes on, the run is saved and removed, also without mt-store" {
	long_data
	for how in "" also; do
		start --steps 250
		eventually trained 5
		store=$(pgrep -f "^mt-store serve $RUN ")
		kill -9 "$(ps -o ppid= -p "$store" | tr -d ' ')"
		[ -z "$how" ] || kill -9 "$store"
		exits 0 wait $pid
		all_gone
		mt-ckpt verify "$T/out/step-00000250"
		no grep -e gone -e removed "$T/run.err"
		rm -r "$T/out" "$T/m"
	done
}

# The process that makes the run and keeps it served (mt-store/run/keeper.c); mt-run's script has the same name
keeper() {
	local p
	for p in $(pgrep -P "$pid" -x mt-run); do
		[[ $(readlink "/proc/$p/exe") != */mt-run ]] || echo "$p"
	done | grep .
}
slept() { awk '/^voluntary_ctxt/ { print $2 }' "/proc/$pid/status"; }
slept_more() { [ "$(slept)" -ge $(($1 + 10)) ]; }

# bats test_tags=slow
@test "the keeper is killed while it trains: another one serves the run, and mt-run sleeps between its looks" {
	long_data
	start --steps 50000 --epochs 100
	eventually trained 5
	local first second
	first=$(keeper)
	kill -9 "$first"
	new_keeper() { second=$(keeper) && [ "$second" != "$first" ]; }
	eventually new_keeper
	eventually slept_more "$(slept)"
	pkill -9 -f "^mt-store serve $RUN "
	eventually pgrep -P "$(keeper)" mt-store
	kill -TERM $pid
	exits 143 wait $pid
	all_gone
	mt-ckpt verify "$(newest)"
}

# bats test_tags=slow
@test "the keeper is killed before its mt-store has come to the run: another one waits for that, and training goes on" {
	long_data
	export LD_PRELOAD=$PROBES/so-late.so
	start --steps 50000 --epochs 100
	unset LD_PRELOAD
	eventually pgrep -f "^mt-store serve $RUN "
	kill -9 "$(keeper)"
	eventually grep -q 'mt-store is at work already' "$T/run.err"
	eventually slept_more "$(slept)"
	kill -TERM $pid
	exits 143 wait $pid
	all_gone
	mt-ckpt verify "$(newest)"
}

# mt-run while mt-store create works, and is stopped: its pid in $create
create_stopped() {
	MODEL=$CONFIGS/bench-97m.json DATA=$CASE/data.bin start --steps 5
	eventually compgen -G "$(regions_of "$RUN").*"
	create=$(pgrep -P "$(keeper)" -x mt-store)
	kill -STOP "$create"
	mt-store ls "$RUN" | grep -q 'half made'
}

@test "the keeper, or mt-store create, is killed while the run is made: mt-run exits 69 and says so; nothing is left" {
	local create victim
	for victim in keeper create; do
		create_stopped
		[ $victim = create ] || create=$(keeper)
		kill -9 "$create"
		exits 69 wait $pid
		all_gone
		grep -qx "mt-run: mt-store create was killed by signal 9" "$T/run.err"
		[ ! -e "$T/out" ]
	done
}

state_is() { [ "$(mt-store stat "$RUN" --json | value state)" = "$1" ]; }

# bats test_tags=slow
@test "processes of mt-run are killed when its run is whole and mt-store create has not ended: the run is removed" {
	local case create all
	for case in keeper create "create keeper" all; do
		export LD_PRELOAD=$PROBES/so-late.so
		DATA=$CASE/data.bin start --steps 5
		unset LD_PRELOAD
		eventually state_is empty
		keeper=$(keeper)
		create=$(pgrep -P "$keeper" -x mt-store)
		case $case in
		keeper) kill -9 "$keeper" ;;
		create) kill -9 "$create" ;;
		"create keeper") kill -9 "$create" "$keeper" ;;
		all)
			all="$create $(pgrep -P "$pid") $pid"
			kill -STOP $all                 # none sees another's death before its own
			kill -9 $all
			;;
		esac
		if [ "$case" = all ]; then
			exits 137 wait $pid
			DATA=$CASE/data.bin run_it --steps 5
			grep -q 'was killed while it made its run, whose [0-9]* bytes are removed' "$T/run.err"
		else
			exits 69 wait $pid
			[ ! -e "$T/out" ]
		fi
		all_gone
	done
}

# Becomes what its arguments say, with signals ignored as job scripts do: for a subshell
deaf() { trap '' USR1 USR2 ALRM CHLD; exec "$@"; }

# bats test_tags=slow
@test "USR1, ALRM and CHLD are ignored by mt-run's caller: TERM ends the training, and so does an error of mt-step" {
	long_data
	deaf mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 50000 --epochs 100 \
		>"$T/m" 2>"$T/run.err" 3>&- &
	pid=$!
	echo "$pid" >>"$T/pids"
	eventually trained 5
	kill -TERM $pid
	exits 143 wait $pid
	all_gone
	mt-ckpt verify "$(newest)"
	mkfifo "$T/fifo"
	{ cat "$CASE/data.bin"; printf '\001\000\000\000\377\377\377\000'; cat "$T/data"; sleep 60; } >"$T/fifo" 3>&- &
	echo $! >>"$T/pids"
	deaf mt-run --run "$RUN" --model "$CASE/model" --data "$T/fifo" --out "$T/b" $ARGS --steps 50000 >/dev/null \
		2>"$T/run.err" 3>&- &
	exits 65 wait $!
	all_gone
	pkill -P "$(tail -1 "$T/pids")" sleep || true
}

# bats test_tags=slow
@test "a checkpoint, or mt-step, hangs when TERM comes: later ones give it up, and end what hangs; --resume goes on" {
	long_data
	undisturbed --steps 400
	local who tries
	for who in "mt-ckpt serve $RUN " "mt-step $RUN .*--metrics="; do    # not mt-step --check
		start --steps 400 --ckpt-every 50 --resume
		eventually compgen -G "$T/out/step-*"
		eventually pkill -STOP -f "^$who"
		for tries in 1 2 3 4 5 6 7 8; do
			kill -TERM $pid 2>/dev/null || break
			sleep 1.5                       # a signal that comes sooner is the same request
		done
		exits 143 wait $pid
		no processes
		# an update that waited for the checkpoint was given up
		gone "$RUN" || grep -q "run '$RUN' stays; save and remove it: " "$T/run.err"
	done
	run_it --steps 400 --resume --ckpt-every 50
	same_as_undisturbed
	all_gone
}

@test "mt-store is killed when it has just removed the run: mt-run ends as usual" {
	replace mt-store <<<'[ "$1" != serve ] || { "$MT/mt-store" "$@"; kill -9 $$; }'
	DATA=$CASE/data.bin
	start --steps 3
	exits 0 wait $pid
	all_gone
	no grep -q "no such run" "$T/run.err"
}

@test "mt-run killed while the run is filled: nothing is left" {
	MODEL=$CONFIGS/demo.json
	DATA=$CASE/data.bin
	start --steps 5
	local filler=''
	while [ -z "$filler" ] && kill -0 $pid; do filler=$(pgrep -f "^mt-store init $RUN ") || true; done
	kill -STOP $filler
	kill -9 $pid
	eventually all_gone
	no ls "$T"/out/step-*
}

# bats test_tags=nightly
@test "mt-run killed when it has started mt-feed, but not mt-step: nothing is left" {
	replace mt-feed <<-'EOF2'
		case " $* " in *" --check "*) ;; *)
			kill -9 $PPID
			: >"$T/began" ;;
		esac
	EOF2
	mkdir "$T/tmp"
	long_data
	TMPDIR=$T/tmp start --steps 1000
	eventually [ -e "$T/began" ]
	eventually all_gone
	eventually emptied "$T/tmp"
}

# bats test_tags=slow
@test "mt-run killed during the last checkpoint or export: both are completed, and nothing is left" {
	replace <<-'EOF2'
		case $1 in
		serve) while [ ! -e "$T/over" ]; do sleep 0.1; done; exit 0 ;;
		save) : >"$T/saving"; sleep 0.3 ;;
		export) : >"$T/exporting"; sleep 0.3 ;;
		esac
	EOF2
	DATA=$CASE/data.bin
	start --steps 10
	eventually [ -e "$T/exporting" ]
	kill -9 $pid
	eventually gone "$RUN"
	mt-ckpt verify "$T/out/step-00000010"
	: >"$T/over"
	eventually all_gone
	rm -r "$T/out" "$T"/over "$T"/saving "$T"/exporting
	start --steps 10
	eventually [ -e "$T/saving" ]
	kill -9 $pid
	eventually gone "$RUN"
	: >"$T/over"
	eventually all_gone
	mt-ckpt verify "$T/out/step-00000010"
	[ -f "$T/out/model/config.json" ]
}

# bats test_tags=slow
@test "mt-run killed and saving fails: the run is kept, its stages end, the last line tells how to save and remove it" {
	replace <<-'EOF2'
		case $1 in
		serve) exec sleep 60 ;;
		save) [ -e "$T/disk" ] || { echo "mt-ckpt: no space left" >&2; exit 74; } ;;
		esac
	EOF2
	long_data
	start --steps 5000
	eventually trained 5
	kill -9 $pid
	eventually grep -q "save and remove it" "$T/run.err"
	last=$(tail -1 "$T/run.err")
	[[ $last == *"run '$RUN' stays; save and remove it: mt-ckpt save $RUN "*" && mt-store rm $RUN --force" ]]
	pkill -f "^sleep 60" -P "$(pgrep -f "mt-run --run $RUN" | head -1)" || true
	eventually bash -c "! pgrep -f '^mt-(step|stream|optim|store) .*$RUN'"
	: >"$T/disk"
	eval "${last#*remove it: }"
	mt-ckpt verify "$(newest)"
	gone "$RUN"
}

# bats test_tags=slow
@test "mt-run killed during a hanging step: SIGTERM to mt-store abandons it, saves and removes the run" {
	long_data
	start --steps 5000 --ckpt-every 5
	eventually trained 5
	stream=$(pgrep -f "^mt-stream $RUN ")
	echo "$stream" >>"$T/pids"
	kill -STOP "$stream"
	sleep 0.5 # then the open step is one that it has not computed
	kill -9 $pid
	eventually grep -q "its owner is gone" "$T/run.err"
	sleep 0.3
	no gone "$RUN"
	kill -TERM "$(sed -n 's/.*TERM to pid \([0-9]*\).*/\1/p' "$T/run.err")"
	eventually gone "$RUN"
	kill -CONT "$stream"
	eventually all_gone
	mt-ckpt verify "$(newest)"
}

# bats test_tags=slow
@test "two mt-runs on one OUT: the second exits 75 and names the first, which continues" {
	long_data
	start --steps 50000
	eventually trained 1
	ln -s out "$T/link"
	kill -STOP $(pgrep -f "^mt-stream $RUN ")
	fails_with 75 mt-run --run "$RUN-b" --model "$CASE/model" --data "$T/data" --out "$T/link/" $ARGS --steps 50000 \
		--resume
	grep -q "link/ is in use by another mt-run (pid $pid on $(uname -n), run '$RUN', since 20..-..-.. ..:..:..)" \
		"$T/fails.err"
	local at
	at=$(wc -l <"$T/m")
	kill -CONT $(pgrep -f "^mt-stream $RUN ")
	eventually trained $((at + 3))
	kill -TERM $pid
	exits 143 wait $pid
	mt-ckpt verify "$(newest)"
}

# bats test_tags=slow
@test "an mt-run started while stages of a killed one still save waits for them and continues from their checkpoint" {
	long_data
	undisturbed --steps 250
	start --steps 250
	eventually trained 5
	stream=$(pgrep -f "^mt-stream $RUN ")
	echo "$stream" >>"$T/pids"
	kill -STOP "$stream"
	kill -9 $pid
	start --steps 250 --resume
	eventually grep -q "is gone; waits for its stages" "$T/run.err"
	no grep -q "starts from" "$T/run.err"
	kill -CONT "$stream"
	wait $pid
	same_as_undisturbed
	grep -q "it goes on from $T/out/step-" "$T/run.err"
}

# bats test_tags=slow
@test "SIGTERM at mt-run's very end, while a killed stage restarts: mt-run exits after all stages have exited" {
	replace <<-'EOF2'
		case $1 in
		export) : >"$T/exporting"; until [ -e "$T/signalled" ]; do sleep 0.05; done ;;
		esac
	EOF2
	local i
	DATA=$CASE/data.bin
	for i in 0 1 2 3 4 5; do
		start --steps 3 --restart
		eventually [ -e "$T/exporting" ]
		pkill -9 -f "^mt-stream $RUN " || true
		[ $i = 0 ] || sleep 0.0$i
		kill -TERM $pid
		[ $((i % 2)) = 0 ] || pkill -9 -f "^mt-optim $RUN " || true
		: >"$T/signalled"
		exits 143 wait $pid
		no processes
		gone "$RUN"
		[ -f "$T/out/model/config.json" ]
		mt-ckpt verify "$T/out/step-00000003"
		rm -r "$T/out" "$T/exporting" "$T/signalled"
	done
	no grep -e "cannot create" -e "no such run" "$T/run.err"
}

# bats test_tags=slow
@test "a stage restarted while the run is removed does not look for the run" {
	replace <<<'[ "$1" != export ] || { : >"$T/exporting"; until [ -e "$T/signalled" ]; do sleep 0.05; done; }'
	replace mt-stream <<<'[ ! -e "$T/exporting" ] || sleep 1.5'
	DATA=$CASE/data.bin
	start --steps 3 --restart
	eventually [ -e "$T/exporting" ]
	pkill -9 -f "bin/mt-stream $RUN "
	kill -TERM $pid
	: >"$T/signalled"
	exits 143 wait $pid
	no processes
	gone "$RUN"
	no grep -e "waits for run" -e "no such run" "$T/run.err"
}

# bats test_tags=slow
@test "signals while mt-run waits for its last stages do not end the wait" {
	replace mt-stream <<-'EOF2'
		trap '' USR1
		"$MT/mt-stream" "$@"
		until [ -e "$T/signalled" ]; do sleep 0.05; done
		exit
	EOF2
	DATA=$CASE/data.bin
	start --steps 3
	eventually [ -d "$T/out/model" ]
	eventually gone "$RUN"
	local i
	for i in 1 2 3 4 5 6; do                # mt-run hears none while it says what it has trained
		kill -TERM $pid
		sleep 0.2
	done
	: >"$T/signalled"
	exits 143 wait $pid
	no processes
}

# bats test_tags=slow
@test "Ctrl-C held down until mt-run has ended: the step is saved, OUT stays, and nothing else is left" {
	long_data
	mkdir "$T/tmp"
	slowed awk 0.1                          # what mt-run lets others do takes long enough to be hit
	slowed find 0.1
	PATH=$T/slow:$PATH TMPDIR=$T/tmp spawn run env --default-signal=INT setsid "$MT/mt-run" --run "$RUN" \
		--model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 5000 --metrics "$T/m"
	pid=$PID
	eventually trained 12
	for i in $(seq 400); do
		kill -INT -- "-$pid" 2>/dev/null || break
		sleep 0.05
	done
	exits 130 wait "$pid"
	gone "$RUN"
	emptied "$T/tmp"
	mt-ckpt verify "$(newest)"
	grep -q "saved $(newest); continue" "$T/run.err"
	no grep -v "^mt-" "$T/run.err"
}

# bats test_tags=slow
@test "a second signal while mt-run reports its result: the step is saved, and the run removed" {
	long_data
	slowed awk 1
	PATH=$T/slow:$PATH start --steps 5000
	eventually trained 12
	rm -f "$T/awk.called"
	kill -TERM $pid
	sleep 1.1
	eventually [ -e "$T/awk.called" ]
	kill -TERM $pid
	exits 143 wait $pid
	gone "$RUN"
	grep -q "saved $(newest); continue" "$T/run.err"
}

# bats test_tags=slow
@test "mt-optim killed, also in an update: another one finishes it, the step is saved, and the run removed" {
	long_data
	local i
	for i in 1 2 3 4; do
		ARGS="--batch 1 --seq 16 --lr 1e-3 --threads 1 --wait 3" MODEL=$CONFIGS/demo.json start --steps 5000
		eventually trained $((10 * i))
		pkill -9 -f "^mt-optim $RUN"
		exits 69 wait $pid
		gone "$RUN"
		mt-ckpt verify "$(newest)"
		rm -r "$T/out" "$T/m"
	done
}

# bats test_tags=slow
@test "--resume with nothing left to train, but an evaluation: the checkpoint stays" {
	DATA=$CASE/data.bin
	run_it --steps 4 --eval "$CASE/eval.bin" --eval-every 2
	cp -r "$T/out/step-00000004" "$T/before"
	run_it --steps 4 --eval "$CASE/eval.bin" --eval-every 2 --resume
	diff -r "$T/before" "$T/out/step-00000004"
	[ "$(ls -d "$T"/out/*step-*)" = "$T/out/step-00000004" ]
}

@test "an mt-ckpt verify that is killed or lacks descriptors does not make --resume go on from an older checkpoint" {
	DATA=$CASE/data.bin
	run_it --steps 4 --ckpt-every 2
	replace <<<'case "$*" in "verify "*step-00000004*) kill -9 $$ ;; esac'
	start --steps 8 --resume
	exits 69 wait $pid
	grep -q "^mt-run: $T/out/step-00000004: cannot be verified" "$T/run.err"
	[ "$(newest)" = "$T/out/step-00000004" ]
	no_asan
	replace <<<"case \"\$*\" in \"verify \"*step-00000004*)
		export LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=open:5+ ;; esac" # EMFILE: nothing of the disk
	start --steps 8 --resume
	exits 71 wait $pid
	[ "$(newest)" = "$T/out/step-00000004" ]
}

# bats test_tags=slow
@test "--resume goes on from the older checkpoint where the newest is damaged or its disk fails, and says so" {
	no_asan
	DATA=$CASE/data.bin
	undisturbed --steps 8 --ckpt-every 3
	for how in flipped lost; do
		rm -rf "$T/out" "$T/m"
		run_it --steps 8 --until 6 --ckpt-every 3
		[ "$(newest)" = "$T/out/step-00000006" ]
		if [ $how = flipped ]; then
			printf '\377\377' | dd of="$T/out/step-00000006/model.safetensors" bs=1 seek=5000 conv=notrunc status=none
		else
			replace <<<"case \"\$*\" in \"verify \"*step-00000006*)
				export LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=pread:9+ ;; esac"
		fi
		: >"$T/run.err"
		run_it --steps 8 --ckpt-every 3 --resume
		grep -q "^mt-run: $T/out/step-00000006: is damaged, not completed, or cannot be read$" "$T/run.err"
		grep -q "^mt-run: trains .* from $T/out/step-00000003," "$T/run.err"
		same_as_undisturbed
	done
}

@test "what an mt-run that was killed had just made is deleted by the next: a directory, a file, the first pipe" {
	mkdir -p "$T/tmp/mt-run.killed" "$T/tmp/mt-run.livesX" "$T/tmp/mt-run.filled/some" "$T/tmp/mt-run.piped1"
	mkfifo "$T/tmp/mt-run.piped1/requests"
	touch -d "2 minutes ago" "$T/tmp/mt-run.killed" "$T/tmp/mt-run.filled" "$T/tmp/mt-run.empty1"
	DATA=$CASE/data.bin TMPDIR=$T/tmp run_it --steps 1
	[ "$(ls "$T/tmp" | tr '\n' ' ')" = "mt-run.filled mt-run.livesX " ]
}

@test "a limit on the size of files: exit code 74, one line, and nothing is left" {
	mkdir "$T/tmp"
	TMPDIR=$T/tmp fails_with 74 sh -c 'ulimit -f 200; exec mt-run "$@"' sh --run "$RUN" --model "$CASE/model" \
		--data "$CASE/data.bin" --out "$T/out" $ARGS --steps 3
	gone "$RUN"
	emptied "$T/tmp"
	[ ! -e "$T/out" ]
}

@test "a checkpoint that fails does not keep the model from being exported; mt-run ends with 74" {
	DATA=$CASE/data.bin
	mkdir "$T/out"
	: >"$T/out/step-00000002"               # a file, which no directory can replace
	start --steps 5 --ckpt-every 2
	exits 74 wait $pid
	gone "$RUN"
	grep -q "^mt-ckpt: step 2 is not saved: " "$T/run.err"
	grep -q "^mt-run: the model is in $T/out/model" "$T/run.err"
	[ -f "$T/out/model/model.safetensors" ]
	mt-ckpt verify "$T/out/step-00000005"
}

# bats test_tags=slow
@test "a killed export, load or create is named and ends mt-run with 69" {
	DATA=$CASE/data.bin
	replace <<<'[ "$1" != export ] || kill -9 $$'
	start --steps 3
	exits 69 wait $pid
	grep -q "mt-run: the export was killed by signal 9" "$T/run.err"
	mt-ckpt verify "$T/out/step-00000003"
	rm -r "$T/out"
	replace <<<'[ "$1" != load ] || kill -9 $$'
	fails_with 69 "$BIN/mt-run" --run "$RUN" --model "$CASE/model" --data "$DATA" --out "$T/out" $ARGS --steps 3
	replace mt-store <<<'[ "$1" != create ] || kill -9 $$'
	fails_with 69 "$BIN/mt-run" --run "$RUN" --model "$CASE/model" --data "$DATA" --out "$T/out" $ARGS --steps 3
	[ ! -e "$T/out" ]
	all_gone
}

@test "a run that fails at once prints nothing about stages that had not found it yet" {
	replace mt-step <<<'case "$*" in *--metrics*) exit 65 ;; esac'
	DATA=$CASE/data.bin
	start --steps 3 --streams 3
	exits 65 wait $pid
	all_gone
	[ ! -s "$T/run.err" ]
}

# bats test_tags=slow
@test "several --data are read in their order, as one file" {
	cat "$CASE/data.bin" "$GOLDEN/llama2/data.bin" >"$T/data"
	undisturbed --steps 24 --no-shuffle
	cp "$GOLDEN/llama2/data.bin" "$T/the second"
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --data "$T/the second" --out "$T/out" $ARGS \
		--steps 24 --no-shuffle \
		>"$T/m" 2>"$T/run.err" 3>&-
	same_as_undisturbed
	rm -r "$T/out"
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --data - --out "$T/out" $ARGS --steps 24 \
		<"$T/the second" >"$T/m" 2>"$T/run.err" 3>&-
	same_as_undisturbed
}

@test "repeated and unknown options are named" {
	try() {
		fails_with 64 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" --seq 32 \
			--lr 1e-3 "$@"
		cat "$T/fails.err"
	}
	[[ $(try --batch 2 --run b --steps 5) == "mt-run: --run is given twice" ]]
	[[ $(try --batch 2 --steps 5 --steps=6) == "mt-run: --steps is given twice" ]]
	[[ $(try --batch 2 --steps 5 --data - --data -) == "mt-run: --data: stdin can be read only once" ]]
	[[ $(try --batch-size 2 --steps 5) == "mt-run: unknown option --batch-size; there is --batch; see --help" ]]
	[[ $(try --batch 2 --steps 5 --resme) == *"unknown option --resme; there is"*" --resume"* ]]
	[[ $(try --batch 2 --steps 5 --warmup 0.1) == "mt-step: --warmup "*"'0.1' is a fraction"* ]]
	[ ! -e "$T/out" ]
}

# bats test_tags=slow
@test "--update early gives the bits of late; it needs --clip 0, one machine and room for new weights" {
	cp "$CASE/data.bin" "$T/data"
	run_it --steps 4 --clip 0
	mv "$T/out" "$T/late"
	run_it --steps 4 --clip 0.0 --update early
	cmp "$T/late/model/model.safetensors" "$T/out/model/model.safetensors"
	[ "$(timeless "$T/late/metrics.jsonl")" = "$(timeless "$T/out/metrics.jsonl")" ]
	rm -r "$T/out"
	run_it --steps 4 --clip 0 --update early --dry-run
	try() {
		fails_with 64 mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/none" --batch 2 --steps 2 \
			--seq 32 --lr 1e-3 --update "$@"
		cat "$T/fails.err"
	}
	[[ $(try early) == *"needs --clip 0"* ]]
	[[ $(try early --clip 1.0) == *"needs --clip 0"* ]]
	[[ $(try early --clip 0 --grad none) == *"as their gradients come, anyway" ]]
	[[ $(try early --clip 0 --dtype fp32 --grad bf16) == *"no room"* ]]
	[[ $(try soon --clip 0) == "mt-run: --update: 'soon' is not early or late" ]]
	[ ! -e "$T/none" ]
}

@test "a model name, JSON lines and compressed files each get a message with the remedy" {
	try() { mt-run --run "$RUN" --out "$T/out" $ARGS --steps 5 "$@"; }
	fails_with 66 try --model Qwen/Qwen2.5-0.5B --data "$CASE/data.bin"
	grep -q "mt does not download: 'hf download Qwen/Qwen2.5-0.5B --local-dir DIR'" "$T/fails.err"
	echo '{"messages": [{"role": "user", "content": "hi"}]}' >"$T/chats.jsonl"
	fails_with 65 try --model "$CASE/model" --data "$T/chats.jsonl"
	grep -q "chats.jsonl: is JSON.*mt-tokens MODEL $T/chats.jsonl > FILE" "$T/fails.err"
	fails_with 65 try --model "$CASE/model" --data "$CASE/data.bin" --data "$T/chats.jsonl"
	gzip -c "$CASE/data.bin" >"$T/data.gz"
	fails_with 65 try --model "$CASE/model" --data "$T/data.gz"
	grep -q "data.gz: is compressed: zcat $T/data.gz | mt-run ... --data -" "$T/fails.err"
	fails_with 65 try --model "$CONFIGS/demo.json" --data "$T/data.gz" --bytes
	[ ! -e "$T/out" ]
	mt-run --run "$RUN" --model "$CONFIGS/demo.json" --data "$T/chats.jsonl" --bytes --out "$T/out" $ARGS --steps 1 \
		>"$T/m" 2>"$T/run.err" 3>&-
	[ "$(wc -l <"$T/m")" = 1 ]          # with --bytes, JSON is a text like any other
}

@test "a model, data, evaluation or prompts without the permission to read them: 77 and the name, and no OUT is made" {
	mkdir "$T/shut"
	cp -r "$CASE/model" "$T"
	cp -r "$T/model" "$CASE/data.bin" "$T/shut"
	cp "$CASE/data.bin" "$T/shut.bin"
	cp -r "$T/model" "$T/odd"
	chmod 000 "$T/shut" "$T/shut.bin" "$T/odd/config.json"
	try() {
		fails_with 77 by_mode mt-run --run "$RUN" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 5 "$@"
		grep -q "^mt-[a-z]*: $T/\(shut\|odd\)" "$T/fails.err"
		[ ! -e "$T/out" ]
	}
	try --model "$T/shut"
	try --model "$T/shut/model"
	try --model "$T/odd"
	try --model "$T/model" --data "$T/shut.bin"
	try --model "$T/model" --data "$T/shut/data.bin"
	try --model "$T/model" --eval "$T/shut.bin" --eval-every 1
	try --model "$T/model" --sample "$T/shut/data.bin"
	chmod 700 "$T/shut"
}

@test "a file whose name has a backslash is shuffled as any other" {
	cp "$CASE/data.bin" "$T/plain"
	cp "$CASE/data.bin" "$T/a\\bc"
	for name in 'a\bc' plain; do
		rm -rf "$T/out"
		DATA=$T/$name run_it --steps 3
		[ "$(cat "$T/out/order")" = 1 ]
	done
	[ "$(timeless "$T/m" | sort -u | wc -l)" = 3 ]
}

@test "mt-run through a link elsewhere, and with CDPATH, finds its programs" {
	mkdir "$T/links"
	ln -s "$MT/mt-run" "$T/links/mt-run"
	local PATH=/usr/sbin:/usr/bin:/sbin:/bin
	DATA=$CASE/data.bin BIN=$T/links run_it --steps 1
	cd "$MT/.."
	DATA=$CASE/data.bin BIN=${MT##*/} CDPATH=. run_it --steps 2 --resume
	[ "$(last_step)" = 2 ]
}

@test "without /proc: one line, and no OUT" {
	no_asan
	unshare -m true 2>/dev/null || skip "needs leave to unmount (unshare -m)"
	fails_with 71 unshare -m sh -c 'umount -l /proc; exec timeout 20 "$@"' sh "$MT/mt-run" --run "$RUN" \
		--model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 2
	grep -q "^mt-run: needs /proc" "$T/fails.err"
	[ ! -e "$T/out" ]
}

# bats test_tags=slow
@test "mt-run is killed, and its parent does not wait for it: the run is saved and removed" {
	long_data
	python3 -c 'import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)' \
		"$MT/mt-run" --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 50000 \
		--sample "$CASE/data.bin" --sample-every 10000 --sample-tokens 2 >"$T/m" 2>"$T/run.err" 3>&- &
	echo $! >>"$T/pids"
	eventually trained 5
	kill -9 "$(pgrep -P $!)"
	eventually gone "$RUN"
	mt-ckpt verify "$(newest)"
}

@test "names that begin with a dash are files and directories, not options" {
	cp -r "$CASE/model" "$T/-model"
	cp "$CASE/data.bin" "$T/-n.rec"
	cp "$CASE/eval.bin" "$T/-e.rec"
	cd "$T"
	mt-run --run "$RUN" --model -model --data=-n.rec --data -n.rec:0.5 --out=-o $ARGS --steps 3 --eval -e.rec \
		--eval-every 2 --sample -e.rec --sample-every 1 --sample-tokens 2 --metrics -m >m 2>run.err 3>&-
	[ "$(grep -c '"loss"' ./-m)" = 3 ]
	[ -s ./-o/samples.jsonl ]
	mt-ckpt verify ./-o/step-00000003
	grep -q "^mt-run: 3 steps, " run.err
	mt-run --run "$RUN" --model=-model --data - --out=-o $ARGS --steps 4 --resume --metrics - --input new \
		<./-n.rec >m 2>run.err 3>&-
	[ "$(last_step)" = 4 ]
}

@test "shuffled or mixed data that is cut at its end: one line before anything is loaded, and no OUT" {
	{ cat "$CASE/data.bin"; printf '\011\0\0\0\001\0\0\0'; } >"$T/data"
	try() { fails_with 65 mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS "$@"; }
	local how
	for how in "" "--seed 7" "--epochs 9" "--no-shuffle --mix --data $CASE/data.bin" --dry-run; do
		try --steps 5 $how
		grep -q "^mt-feed: $T/data: record 128: input ends after 1 of its 9 elements$" "$T/fails.err"
		[ ! -e "$T/out" ]
	done
	gone "$RUN"
}

@test "a name on the command line sends no control character to the terminal" {
	fails_with 66 mt-run --model "$T/a\\033[31m" --data x --out "$T/out" $ARGS --steps 5
	grep -qF 'a\033[31m' "$T/fails.err"
	fails_with 66 mt-run --model "$T/a$(printf '\033[31m\302\233b\rc\nd')é" --data x --out "$T/out" $ARGS --steps 5
	no env LC_ALL=C grep -q "$(printf '[\001-\011\013-\037]\|\302\233')" "$T/fails.err"
	grep -qF 'a?[31m??b?c?dé' "$T/fails.err"
}

# bats test_tags=slow
@test "OUT/metrics.jsonl has the metrics of the training that continues, even if stdout is overwritten or closed" {
	DATA=$CASE/data.bin
	run_it --steps 12 --until 7 --ckpt-every 5 --eval "$CASE/data.bin" --eval-every 4
	timeless "$T/m" | cmp - <(timeless "$T/out/metrics.jsonl")
	rm -r "$T/out/step-00000007"            # a power failure: training continues from step 5
	printf '{"step": 8, "lo' >>"$T/out/metrics.jsonl"
	mt-run --run "$RUN" --model "$CASE/model" --data "$DATA" --out "$T/out" $ARGS --steps 12 --resume \
		--eval "$CASE/data.bin" --eval-every 4 \
		2>>"$T/run.err" 3>&- >&-
	[ "$(sed -n '/"loss"/s/.*"step": \([0-9]*\).*/\1/p' "$T/out/metrics.jsonl" | tr '\n' ' ')" = \
		"1 2 3 4 5 6 7 8 9 10 11 12 " ]
	[ "$(sed -n '/eval_loss/s/.*"step": \([0-9]*\).*/\1/p' "$T/out/metrics.jsonl" | tr '\n' ' ')" = "0 4 8 12 " ]
}

# bats test_tags=slow
@test "links, FIFOs and other users' files in OUT are neither opened nor waited for: 73 or 77 and the name" {
	DATA=$CASE/data.bin
	mkdir "$T/out"
	echo precious >"$T/victim"
	try() { # CODE NAME ARGS...
		fails_with "$1" timeout 60 mt-run --run "$RUN" --model "$CASE/model" --data "$DATA" --out "$T/out" $ARGS \
			"${@:3}"
		grep -q "^mt-run: $T/out/$2 \(is a link or not a plain file\|belongs to another user\)" "$T/fails.err"
	}
	local name
	for name in .lock .node-0 command count log order metrics.jsonl samples.jsonl; do
		ln -s "$T/victim" "$T/out/$name"
		try 73 "$name" --epochs 1
		ln -sf "$T/nowhere" "$T/out/$name"
		try 73 "$name" --steps 2 --resume
		rm "$T/out/$name"
		mkfifo "$T/out/$name"
		try 73 "$name" --epochs 1 --resume
		rm "$T/out/$name"
		if [ "$(id -u)" = 0 ]; then
			echo none >"$T/out/$name"
			chown 12345 "$T/out/$name"
			try 77 "$name" --steps 2 --resume
			rm "$T/out/$name"
		fi
	done
	mkfifo "$T/out/order"
	mkdir "$T/out/step-00000001"
	try 73 order --steps 2 --resume --dry-run
	rm -r "$T/out"/*
	mkdir "$T/elsewhere"
	ln -s "$T/elsewhere" "$T/out/model"
	fails_with 73 mt-run --run "$RUN" --model "$CASE/model" --data "$DATA" --out "$T/out" $ARGS --steps 2
	grep -q "^mt-run: $T/out/model is a link" "$T/fails.err"
	[ "$(cat "$T/victim")" = precious ]
	[ ! -e "$T/nowhere" ]
	gone "$RUN"
}

# bats test_tags=slow
@test "a FIFO, device or directory as config.json exits 65 before OUT is made, and nothing is waited for" {
	cp -r "$CASE/model" "$T/model"
	cp "$T/model/config.json" "$T/config.json"
	for plant in mkfifo "ln -s /dev/zero" mkdir; do
		rm -r "$T/model/config.json"
		$plant "$T/model/config.json"
		for how in "--steps 1" "--epochs 1" "--steps 1 --micro auto" "--epochs 1 --bytes"; do
			fails_with 65 timeout 20 mt-run --run "$RUN" --model "$T/model" --data "$CASE/data.bin" --out "$T/out" \
				--batch 4 --seq 32 --lr 1e-3 $how
			grep -q "config.json: not a regular file" "$T/fails.err"
		done
		fails_with 64 timeout 20 mt-feed --check --bytes --config "$T/model/config.json" --eos 999 "$T/config.json"
		timeout 20 mt-feed --check --bytes --config "$T/model/config.json" "$T/config.json"
	done
	[ ! -e "$T/out" ]
}

@test "a link that comes into OUT while mt-run trains is not followed" {
	DATA=$CASE/data.bin
	echo precious >"$T/victim"
	# before mt-step and the checkpoints open what has these names
	replace mt-step <<-'EOF2'
		case "$*" in *--own-metrics*)
			ln -s "$T/victim" "$T/out/metrics.jsonl"
			rm "$T/out/.lock"
			ln -s "$T/victim" "$T/out/.lock" ;;
		esac
	EOF2
	start --steps 3
	exits 73 wait $pid
	grep -q "^mt-step: --metrics: $T/out/metrics.jsonl is a link or not a plain file$" "$T/run.err"
	[ "$(cat "$T/victim")" = precious ]
	all_gone
}

# bats test_tags=slow
@test "too few file descriptors: 71 and a line with the number that is needed, and that number is enough" {
	local n
	closed() { # PROGRAM...: without what bats has open
		bash -c 'for fd in /proc/self/fd/*; do fd=${fd##*/}; [ $fd -le 2 ] || eval "exec $fd>&-"; done; exec "$@"' \
			bash "$@" 2>&1 >/dev/null </dev/null
	}
	limited() { # NUMBER ARGS...
		closed sh -c 'ulimit -n "$1"; shift; exec mt-run "$@"' sh "$1" --run "$RUN" --model "${MODEL:-$CASE/model}" \
			--data "${DATA:-$CASE/data.bin}" --out "$T/out" $ARGS --quiet --steps 8 "${@:2}"
	}
	for n in 10 11 12 13 16 19; do
		exits 71 limited $n >"$T/told"
		[ "$(cat "$T/told")" = "mt-run: needs 20 file descriptors, and may open $n: ulimit -n 20" ]
	done
	[ ! -e "$T/out" ]
	limited 20 --eval "$CASE/eval.bin" --eval-every 2 --ckpt-every 2 --sample "$CASE/eval.bin" --sample-every 2 \
		--sample-tokens 2 --streams 3 >"$T/told"
	no grep -v "longer than --seq" "$T/told"
	rm -r "$T/out"
	MODEL=$GOLDEN/llama3-v4/model DATA=$GOLDEN/llama3-v4/data.bin
	exits 71 limited 35 >"$T/told"
	grep -q "^mt-run: needs 36 file descriptors" "$T/told"
	limited 36 --until 4 >"$T/told"
	limited 36 --resume >>"$T/told"
	no grep -v "longer than --seq" "$T/told"
}

# mt-run and all that it has started, killed at once after some steps
kill_all() { # ARGS...; with HOW=update while an update is under way
	setsid "$MT/mt-run" --run "$RUN" --model "${MODEL:-$CASE/model}" --data "$T/data" --out "$T/out" $ARGS "$@" \
		>>"$T/m" 2>>"$T/run.err" 3>&- &
	pid=$!
	eventually trained 20
	stopped_in_update() {
		pkill -STOP -f "^mt-optim $RUN"
		mt-store stat "$RUN" | grep -q '^mt-optim .*: updates unit' || { pkill -CONT -f "^mt-optim $RUN"; return 1; }
	}
	[ "${HOW-}" != update ] || eventually stopped_in_update
	kill -9 -- -$pid
	wait $pid || true
	eventually no processes
	no gone "$RUN"
}

# bats test_tags=slow
@test "mt-run, its keeper and mt-store create are killed: OUT's next mt-run at last removes what is made" {
	local create script
	create_stopped
	kill -9 $pid "$(keeper)" "$create"
	eventually all_gone
	create_stopped
	script=$(pgrep -P $pid -x mt-run | grep -v "$(keeper)")
	kill -9 $script $pid "$(keeper)" "$create"
	eventually no processes
	no gone "$RUN"
	local dead=$pid
	RUN=$RUN-b DATA=$CASE/data.bin MODEL=$CASE/model run_it --steps 2
	grep -q "(pid $dead .*) was killed while it made its run, whose [0-9]* bytes are removed$" "$T/run.err"
	gone "$RUN"
	# a run of that name that somebody else has made stays
	mt-store create "$RUN" --config "$CONFIGS/demo.json" 2>/dev/null
	DATA=$CASE/data.bin MODEL=$CASE/model exits 73 run_it --steps 4 --resume
	DATA=$CASE/data.bin MODEL=$CASE/model exits 73 run_it --steps 4 --resume
	grep -q "run '$RUN' exists already: mt-store rm $RUN removes it$" "$T/run.err"
}

# bats test_tags=slow
@test "mt-run is killed while its script writes a request that does not fit a pipe: script and run end" {
	local i name data=()
	mkdir "$T/many"
	for i in $(seq 700); do
		name=$T/many/$(printf '%0150d' "$i")
		ln -s "$CASE/data.bin" "$name"
		data+=(--data "$name")
	done
	# the program does not read what follows the request for this stage
	replace <<<'[ "$1" != serve ] || kill -STOP "$PPID"'
	DATA=$CASE/data.bin start --steps 5000 "${data[@]}"
	stopped() { grep -q 'State:.T' "/proc/$pid/status"; }
	eventually stopped
	sleep 0.5                               # the script writes
	kill -9 $pid
	eventually all_gone
}

# bats test_tags=slow
@test "mt-run and all its stages are killed: --resume saves the memory's step and goes on with the undisturbed bits" {
	long_data
	undisturbed --steps 200
	local how step newest
	for how in "" "--ckpt-every 7 --streams 2"; do
		kill_all --steps 200 $how
		step=$(mt-store stat "$RUN" --json | value step)
		newest='there is no checkpoint'
		[ -z "$how" ] || newest="the newest checkpoint is of step $(newest | sed 's/.*step-0*//')"
		fails_with 73 mt-run --run "$RUN-b" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 200
		grep -q "killed: the memory has step $step, $newest: --resume .*: mt-store rm $RUN --force$" "$T/fails.err"
		: >"$T/run.err"
		run_it --steps 200 --resume $how
		grep -q "mt-store were killed: the memory has step $step, $newest; saves it and goes on$" "$T/run.err"
		grep -q "^mt-store: run '$RUN' is removed; it goes on from $T/out/step-" "$T/run.err"
		no grep -e "exists already" -e "waits for its stages" -e "has died" "$T/run.err"
		same_as_undisturbed
		all_gone
		rm -r "$T/out" "$T/m"
	done
}

# bats test_tags=slow
@test "mt-run, its keeper and mt-store are killed, stages live: --resume saves and goes on with the same bits" {
	long_data
	undisturbed --steps 400
	start --steps 400
	eventually trained 20
	kill -9 $pid "$(keeper)" $(pgrep -f "^mt-store serve $RUN ")
	fails_with 73 mt-run --run "$RUN-b" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 400
	run_it --steps 400 --resume
	grep -q "mt-store were killed: the memory has step .*; saves it and goes on$" "$T/run.err"
	same_as_undisturbed
	eventually all_gone
}

# bats test_tags=slow
@test "mt-run and mt-ckpt are killed, also mt-store, and an update waits for the snapshot: it is saved, the same bits" {
	local ckpt how
	stopped_in_a_save() {                           # whose snapshot is whole: only a mt-ckpt can finish it
		kill -STOP $ckpt
		mt-store stat "$RUN" | grep -q '^snapshot: sealed' || { kill -CONT $ckpt; return 1; }
	}
	update_waits() { mt-store stat "$RUN" | grep -q '^mt-optim .* waits for the save'; }
	long_data
	undisturbed --steps 1500 --ckpt-every 1
	for how in $(some 2 mt-store -); do
		how=${how#-}
		start --steps 1500 --ckpt-every 1
		eventually trained 20
		ckpt=$(pgrep -f "^mt-ckpt serve $RUN ")
		eventually stopped_in_a_save
		eventually update_waits
		kill -9 $pid ${how:+"$(keeper)" $(pgrep -f "^mt-store serve $RUN ")} $ckpt
		wait $pid || true
		[ -n "$how" ] || eventually all_gone
		run_it --steps 1500 --ckpt-every 1 --resume
		same_as_undisturbed
		eventually all_gone
		rm -r "$T/out" "$T/m"
	done
}

@test "the script reads JSON by a parser: values in any order, with blanks and escapes, among names that are alike" {
	json() { MT_RUN_AS=json mt-run "$@"; }
	printf '%s\n' '{"a" : {"step":9, "stage":"x"},"stages":[{"stage":"b","alive":true},{"alive" : false,"stage":"c"}]' \
		'{"text": "\n\"step\": 3,\t\u00e9\\\u0007\nmore", "step": 1e-05, "l": [1, 2], "n": null, "step_b": 2}' \
		>"$T/lines"
	json a.step step stages.c.alive n <"$T/lines" >"$T/values"
	printf '\t\t\t\n\t1e-5\t\tnull\n' | diff - "$T/values"
	sed -i '1s/$/}/' "$T/lines"
	json a.step step stages.c.alive stages.d.alive <"$T/lines" | head -1 >"$T/values"
	printf '9\t\tfalse\t\n' | diff - "$T/values"
	tail -1 "$T/lines" | json >"$T/values"
	printf '%s\t%s\n' text '"step": 3, é\?' step 1e-5 l '[1, 2]' n null step_b 2 | diff - "$T/values"
}

# bats test_tags=slow
@test "mt-run and all its stages are killed in an update: mt-store starts a mt-optim that finishes it, also if late" {
	long_data
	export MODEL=$CONFIGS/demo.json
	ARGS="--batch 1 --seq 16 --lr 1e-3 --threads 1 --wait 3"        # most of a step is its update
	HOW=update kill_all --steps 5000 --epochs 100
	local last=$(($(mt-store stat "$RUN" --json | value step) + 5))
	replace mt-optim <<<'if mkdir "$T/late" 2>/dev/null; then sleep 0.5; fi'
	run_it --steps 5000 --epochs 100 --until $last --resume
	grep -q "^mt-store: run '$RUN' is removed; it goes on from $T/out/step-" "$T/run.err"
	mt-ckpt verify "$T/out/step-$(printf %08d $last)"
	all_gone
}

# bats test_tags=slow
@test "mt-run and all its stages are killed: a run of that name that is another OUT's is left alone" {
	long_data
	kill_all --steps 200 --ckpt-every 7
	mt-store rm "$RUN" --force
	make_run "$CASE/model"
	mt-run --run "$RUN-b" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 200 --resume \
		>>"$T/m" 2>"$T/run.err" 3>&-
	no grep "were killed" "$T/run.err"
	[ "$(mt-store stat "$RUN" --json | value state)" = filled ]
	mt-store rm "$RUN"
}

# bats test_tags=slow
@test "mt-run and all its stages are killed, and the memory cannot be saved: the run stays, with the commands" {
	long_data
	kill_all --steps 200
	replace <<<'[ "$1" != save ] || { echo "mt-ckpt: no space left" >&2; exit 74; }'
	start --steps 200 --resume
	exits 74 wait $pid
	last=$(grep "save and remove it" "$T/run.err")
	[[ $last == *"run '$RUN' stays; save and remove it: mt-ckpt save $RUN "*" && mt-store rm $RUN --force" ]]
	BIN=$MT
	eval "${last#*remove it: }"
	mt-ckpt verify "$(newest)"
	run_it --steps 200 --resume
	all_gone
}

# bats test_tags=slow
@test "mt-run and all its stages are killed in an update that cannot be finished: 65, and the line has the commands" {
	long_data
	kill_all --steps 200 --ckpt-every 7
	printf '\3' | dd of="${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.control" bs=1 seek=12 \
		conv=notrunc status=none
	fails_with 65 mt-run --run "$RUN-b" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 200 \
		--resume
	grep -q "killed: .*an update cannot be finished: mt-store rm $RUN --force, then --resume$" "$T/fails.err"
	mt-store rm "$RUN" --force
	run_it --steps 200 --resume
	all_gone
}

# bats test_tags=slow
@test "--tier gives the bits of a run in memory; OUT/tier is empty after it, and checkpoints go on" {
	need_tier
	BIN=$MT MODEL=$CONFIGS/demo.json
	long_data
	ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30 --run $RUN --model $MODEL --data $T/data"
	mt-run $ARGS --out "$DISK/memory" --steps 6 --ckpt-every 2 >"$T/m" 2>"$T/run.err" 3>&-
	for part in "--until 3" --resume; do
		mt-run $ARGS --out "$DISK/out" --steps 6 --ckpt-every 2 --tier --tier-memory 0 --tier-tile 64K $part \
			>>"$T/m.tier" 2>>"$T/run.err" 3>&-
		gone "$RUN"
		[ ! -e "$DISK/out/tier" ]
	done
	timeless "$T/m" >"$T/m.plain"
	timeless "$T/m.tier" | diff "$T/m.plain" - >&2
	cmp "$DISK/out/model/model.safetensors" "$DISK/memory/model/model.safetensors"
}

# bats test_tags=nightly
@test "mt-run and mt-tier killed: mt-store starts another mt-tier, saves the step; --resume ends with the same bits" {
	need_tier
	MODEL=$CONFIGS/demo.json
	long_data
	tier="--ckpt-every 100 --tier $DISK/out/tier --tier-memory 0 --tier-tile 65536"
	ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30 --run $RUN --model $MODEL --data $T/data"
	mt-run $ARGS --out "$DISK/memory" --steps 40 >"$T/m" 2>"$T/run.err" 3>&-
	rm -f "$T/m"
	mt-run $ARGS --out "$DISK/out" --steps 40 $tier >"$T/m" 2>"$T/run.err" 3>&- &
	pid=$!
	eventually trained 8
	kill -9 $pid
	kill -9 "$(mt-store stat "$RUN" | sed -n 's/^mt-tier *pid \([0-9]*\) .*/\1/p')"
	eventually all_gone
	grep -q "run '$RUN' is removed; it goes on from $DISK/out/step-" "$T/run.err"
	mt-run $ARGS --out "$DISK/out" --steps 40 $tier --resume --restart >"$T/m" 2>"$T/run.err" 3>&- &
	pid=$!
	eventually trained 3
	kill -9 "$(mt-store stat "$RUN" | sed -n 's/^mt-tier *pid \([0-9]*\) .*/\1/p')"
	wait $pid
	[ "$(grep -c "mt-tier was killed by signal 9" "$T/run.err")" = 1 ]
	cmp "$DISK/out/model/model.safetensors" "$DISK/memory/model/model.safetensors"
	[ ! -e "$DISK/out/tier" ]
}

@test "mt-run --demo refuses other options with 64, and a directory that is there with 73" {
	fails_with 64 mt-run --demo "$T/new" --steps 5
	[ ! -e "$T/new" ]
	touch "$T/kept"
	fails_with 73 mt-run --demo "$T"
	grep -q "^mt-run: --demo: .*exists" "$T/fails.err"
	[ -e "$T/kept" ]
}

@test "mt-run deletes what runs whose memory is gone have left in OUT/tier, and nothing else there" {
	need_tier
	mkdir "$DISK/out"
	mt-store create "$RUN-2" --config "$CONFIGS/demo.json" --step-tokens 1K --tier "$DISK/out/tier" --tier-memory 0 \
		2>"$T/create.err"
	there=$(ls "$DISK/out/tier")
	copy() { # NAME [SED]: another directory of a tier, with what sed makes of the file `memory`
		cp -r "$DISK/out/tier/$there" "$DISK/out/tier/mt.$(id -u).$1.01234567.tier"
		sed -i "${2:-}" "$DISK/out/tier/mt.$(id -u).$1.01234567.tier/memory"
	}
	copy rebooted '1s/^./x/; 2s/$/-2/'          # its memory is not there: in another boot
	copy removed '2s/$/-2/'                     # in this one
	copy replaced '1s/$/1/'                     # or another file has the name
	copy hidden '1s/ \([0-9]*\) / \11 /; 2s/$/-2/' # it is in another container, or may be
	mkdir "$DISK/out/tier/mt.$(id -u).old.01234567.tier" "$DISK/out/tier/mt.$(id -u).empty.01234567.tier"
	touch "$DISK/out/tier/mt.$(id -u).old.01234567.tier/unit-0001.tile-000"
	mkdir "$DISK/out/tier/mine" "$T/shm"
	MT_SHM_DIR=$T/shm mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K --tier "$DISK/out/tier" \
		--tier-memory 0 2>"$T/create.err"
	printf '\1' | dd of="$T/shm/mt.$(id -u).$RUN.control" bs=1 seek=8 conv=notrunc status=none # of another ABI
	ls "$DISK/out/tier" | grep -v 'rebooted\|removed\|replaced\|empty' >"$T/stay"
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$DISK/out" $ARGS --steps 1 >"$T/m" \
		2>"$T/run.err" 3>&-
	ls "$DISK/out/tier" | diff "$T/stay" - >&2
	[ "$(grep -c "tier stays: the memory of its run" "$T/run.err")" = 2 ]
	grep -q "hidden.*tier stays: .*, ${MT_SHM_DIR:-/dev/shm}/mt\..*control-2, cannot be seen; if it" "$T/run.err"
	mt-store rm "$RUN-2"
	[ ! -e "$DISK/out/tier/$there" ]
}

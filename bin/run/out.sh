# out.sh: the directory OUT, which one mt-run at a time uses. Its lock is released when the last process that has it
# open ends: mt-run or a stage.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

tmp='' made=''                                  # made: OUT is new

lives() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }     # PID: is running, not a zombie

lock_out() {
	(: >>"$out/.lock") 2>/dev/null || die 74 "$out: cannot be written"
	exec 7<>"$out/.lock"
	flock -n 7 2>/dev/null; rc=$?
	if [ $rc = 1 ]; then
		host='' pid='' holder='' since=''
		IFS=' ' read -r host pid holder since <"$out/.lock"
		who="mt-run (pid $pid on $host, run '$holder', since $since)"
		if [ "$host" != "$(uname -n)" ] || lives "$pid"; then die 75 "$out is in use by another $who"; fi
		say "$out: its $who is gone; waits for its stages to save"
		flock -w 60 7 || die 75 "$out is in use by the stages of an $who that is gone; see mt-store stat $holder"
	elif [ $rc != 0 ]; then
		say "$out cannot be locked: take care that no other mt-run uses it"
	fi
	# the previous mt-run may have deleted .lock together with an OUT that it had created and not used
	[ "$(stat -Lc %d:%i /dev/fd/7)" = "$(stat -c %d:%i "$out/.lock" 2>/dev/null)" ]
}

take_out() {
	if [ ! -d "$out" ]; then
		[ ! -e "$out" ] || die 73 "$out is not a directory"
		mkdir -p "$out" 2>/dev/null || die 74 "$out: cannot be made"
		made=1
	fi
	until lock_out; do mkdir -p "$out"; done
	echo "$(uname -n) $$ $run $(date '+%Y-%m-%d %H:%M:%S')" >"$out/.lock"
}

is_export() { # DIR
	[ -f "$1/config.json" ] && { [ -f "$1/model.safetensors" ] || [ -f "$1/model.safetensors.index.json" ]; }
}

newest_step() {
	number=${newest##*/step-}
	number=${number#"${number%%[!0]*}"}
	echo "${number:-0}"
}

find_checkpoint() {
	newest='' found=''
	set +f
	for dir in "$out"/step-*; do                # names have as many digits as it takes to sort by step
		[ -d "$dir" ] || continue
		[ -n "$resume" ] || die 73 "$out has checkpoints: take --resume, or another --out"
		found=1
		mt-ckpt verify "$dir" && newest=$dir
	done
	set -f
	if [ -n "$(ls -A "$out/model" 2>/dev/null)" ]; then
		[ -n "$resume" ] || die 73 "$out/model is not empty"
		is_export "$out/model" || die 73 "$out/model is not a model that mt exported: move it, the result belongs there"
	fi
	[ -z "$newest" ] || return 0
	[ -z "$found" ] || die 65 "no checkpoint in $out is whole"
	[ -z "$resume" ] || say "no checkpoint in $out yet: starts from $model"
	[ -z "$dry" ] || return 0
	for file in metrics.jsonl samples.jsonl; do # an old file belongs to another run
		[ -s "$out/$file" ] || continue
		mv -f "$out/$file" "$out/$file.old" || die 74 "$out/$file: cannot be renamed"
	done
}

# Files of the processes of this mt-run. A directory that nobody holds a lock on is that of a killed one.
make_tmp() {
	set +f
	for old in "${TMPDIR:-/tmp}"/mt-run.*; do
		if [ -p "$old/mt-run-lives" ]; then flock -n "$old" rm -rf "$old" 2>/dev/null; fi
	done
	set -f
	tmp=$(mktemp -d "${TMPDIR:-/tmp}/mt-run.XXXXXX") || leave 74
	exec 5<"$tmp"
	flock -s 5 2>/dev/null
	mkfifo "$tmp/records" "$tmp/follow_lines" "$tmp/sample_steps" "$tmp/mt-run-lives" || leave 74
	# shellcheck disable=SC2094
	exec 8<>"$tmp/mt-run-lives" 6<"$tmp/mt-run-lives"
}

drop_tmp() {
	rm -rf "$tmp"
	exec 5<&- 6<&- 8>&-
	tmp=''
}

leave() { # CODE
	end_listening
	rm -rf "$tmp"
	if [ -n "$made" ]; then                     # is it unused?
		[ -n "$(find "$out" -mindepth 1 ! -name .lock ! -name command ! -name order ! -name count)" ] || rm -r "$out"
	fi
	if [ -n "$node" ]; then
		close_lines
		drop_mpi_files
	fi
	if [ "$signal" = USR1 ]; then               # is a request; mt-step, which heard it, may have died of it
		[ "$1" -lt 128 ] || set -- 0
	elif [ -n "$signal" ]; then trap - "$signal"; kill -s "$signal" $$; fi
	exit "$1"
}

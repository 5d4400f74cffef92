# out.sh: the directory OUT, which one mt-run at a time uses. Its lock is released when the last process that has it
# open ends: mt-run or a stage.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

tmp='' made='' lock_line=''                     # made: OUT is new
run_id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')   # of the run that this mt-run will make
newest='' looked=''                             # newest: the checkpoint to go on from; looked: it has been looked for

lives() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }     # PID: is running, not a zombie

# Where others may write OUT, they may have put a link or a FIFO there, which would be followed, or waited for. mt-run
# opens only what is absent or a plain file of this user. In sh that can change between this look and the opening; mt's
# programs look at what they have opened.
check_own() { # FILE
	if [ -h "$1" ] || { [ -e "$1" ] && [ ! -f "$1" ]; }; then
		die 73 "$1 is a link or not a plain file: move it away, or take another --out"
	fi
	# shellcheck disable=SC3067               # dash, bash and busybox have -O
	[ ! -e "$1" ] || [ -O "$1" ] || die 77 "$1 belongs to another user: take another --out"
}

check_out() {
	for name in .lock .node-0 command count log micro order metrics.jsonl samples.jsonl; do check_own "$out/$name"; done
	[ ! -h "$out/model" ] || die 73 "$out/model is a link: move it away, the result belongs there"
}

# Who has OUT: its line in .lock, which it writes just after it has taken the lock, and the id of its run
read_holder() {
	host='' pid='' holder='' since='' holder_id='' tries=0
	until { IFS=' ' read -r host pid holder since && { read -r holder_id || :; }; } </dev/fd/7 || [ $tries = 50 ]; do
		tries=$((tries + 1))
		sleep 0.02
	done
	who="mt-run (pid $pid on $host, run '$holder', since ${since%, ends})"
}

lock_out() {
	check_own "$out/.lock"
	(: <>"$out/.lock") 2>/dev/null || die 74 "$out: cannot be written"
	exec 7<>"$out/.lock"
	flock -n 7 2>/dev/null; rc=$?
	[ $rc != 0 ] || [ ! -s /dev/fd/7 ] || end_dead_run
	if [ $rc = 1 ]; then
		read_holder
		if [ "$host" = "$(uname -n)" ] && ! lives "$pid"; then
			end_dead_run
			[ -n "$ended" ] || say "$out: its $who is gone; waits for its stages to save"
			flock -w 60 7 || die 75 "$out is in use by the stages of an $who that is gone; see mt-store stat $holder"
		elif ! flock -w 3 7; then               # a new mt-run may be faster than the end of the last one
			read_holder
			case $since in *', ends') ;; *) die 75 "$out is in use by another $who" ;; esac
			say "$out: waits for the end of its $who"
			flock -w 60 7 || die 75 "$out is in use by another $who, which ends"
		fi
	elif [ $rc != 0 ]; then
		say "$out cannot be locked: take care that no other mt-run uses it"
	fi
	# the previous mt-run may have deleted .lock together with an OUT that it had created and not used; or it is a link
	[ "$(stat -Lc %d:%i /dev/fd/7)" = "$(stat -c %d:%i "$out/.lock" 2>/dev/null)" ]
}

# The mt-run that had OUT was killed, and with it mt-store, which would have ended its run: the memory stays. Another
# mt-store does it now. By now, a run of that name may be another OUT's.
end_dead_run() {
	ended=''
	read_holder
	[ "$host" = "$(uname -n)" ] && [ -n "$holder_id" ] || return 0
	bytes=0
	case $since in *', ends') ;; *) bytes=$(remove_unborn "$holder" "$holder_id") ;; esac
	[ "${bytes:-0}" = 0 ] || say "$out: its $who was killed while it made its run, whose $bytes bytes are removed"
	memory=$(mt-store stat "$holder" --json 2>/dev/null)
	[ "$(json_of "$memory" run_id)" = "$holder_id" ] || return 0
	[ "$(json_of "$memory" stages.mt-store.alive)" != true ] || return 0
	saved=$(saved_steps | tail -n 1)
	[ -z "$saved" ] || saved="the newest checkpoint is of step $saved"
	: "${saved:=there is no checkpoint}"
	who="$out: its $who and mt-store were killed: the memory has step $(json_of "$memory" step), $saved"
	[ "$(json_of "$memory" state)" != dirty ] ||
		die 65 "$who; an update cannot be finished: mt-store rm $holder --force, then --resume"
	[ -n "$resume" ] || die 73 "$who: --resume saves it and goes on; without it: mt-store rm $holder --force"
	say "$who; saves it and goes on"
	(: | mt-store serve "$holder" --until-eof --dir "$out" 2>&1 >/dev/null 7>&-) |
		sed '/^mt-store: .* (pid [0-9]*) has died$/d' >&2
	mt-store ls "$holder" >/dev/null 2>&1
	[ $? = 66 ] || die 74 "$out: run '$holder' could not be ended, see above"
	ended=1
}

take_out() {
	exec 7</dev/null
	stat /dev/fd/7 >/dev/null 2>&1 ||
		die 71 "needs /proc, and a shell that passes descriptors on, as dash, bash and busybox do"
	if [ ! -d "$out" ]; then
		[ ! -e "$out" ] || die 73 "$out is not a directory"
		mkdir -p "$out" 2>/dev/null || die 74 "$out: cannot be made"
		made=1
	fi
	until lock_out; do mkdir -p "$out"; done
	check_out
	lock_line="$(uname -n) $$ $run $(date '+%Y-%m-%d %H:%M:%S')"
	write_lock
	open_log
	drop_tiers
}

# Is the run's memory gone, which the file `memory` in its tier's directory names? 0: yes; 1: no; 2: it cannot be seen
# from here, as another container's
memory_gone() { # DIR
	[ -f "$1/memory" ] && { IFS=' ' read -r boot dev inode && memory=$(cat); } <"$1/memory" || return 2
	[ "$(stat -c %i -- "$memory" 2>/dev/null)" != "$inode" ] || return 1
	now=$(tr -d - 2>/dev/null </proc/sys/kernel/random/boot_id)
	case $boot in *[!0]*) [ "$boot" = "${now:-$boot}" ] || return 0 ;; esac
	[ "$(stat -c %d -- "${memory%/*}" 2>/dev/null)" = "$dev" ] || return 2
}

# Files of the tier that runs before have left in OUT/tier, whose memory is gone: a reboot, for example
drop_tiers() {
	set +f
	for left in "$out/tier/mt.$(id -u)".*.tier; do
		# shellcheck disable=SC3067           # as in check_own
		if [ ! -d "$left" ] || [ -h "$left" ] || [ ! -O "$left" ] || rmdir "$left" 2>/dev/null; then continue; fi
		memory=''
		memory_gone "$left"
		case $? in
		0) rm -rf "$left" || say "$left: cannot be removed" ;;
		2) say "$left stays: the memory of its run${memory:+, $memory,} cannot be seen; if it is gone, rm -r it" ;;
		esac
	done
	set -f
}

# OUT/log has the lines of stderr from now on, since a terminal may be gone before the end. mt's programs write it,
# as shm/say.c does; on several nodes node 0's filter_lines.
open_log() {
	[ -z "$(find "$out/log" -size +1023k 2>/dev/null)" ] || mv -fT "$out/log" "$out/log.old"
	[ -n "$node" ] || export MT_LOG="$out/log"
}

write_lock() { # [", ends"]
	{ printf '%s\n%s\n' "$lock_line${1-}" "$run_id" >/dev/fd/7; } 2>/dev/null
}

say_out_ends() { # to an mt-run that wants OUT
	[ -z "$lock_line" ] || write_lock ', ends'
}

# Write a new file in place of what was there, which is not opened
write_new() { # FILE LINE
	rm -f "$1" 2>/dev/null && (set -C; printf '%s\n' "$2" >"$1") 2>/dev/null
}

is_export() { # DIR
	[ -f "$1/config.json" ] && { [ -f "$1/model.safetensors" ] || [ -f "$1/model.safetensors.index.json" ]; }
}

newest_step() { as_number "${newest##*/step-}"; }
as_number() { # DIGITS: without zeros before it
	number=${1#"${1%%[!0]*}"}
	echo "${number:-0}"
}

checkpoint_of() { printf '%s/step-%08d\n' "$out" "$1"; }    # STEP

# Names have as many digits as it takes to sort by step
checkpoints() { find -L "$1/" -maxdepth 1 -type d -name 'step-*' 2>/dev/null | LC_ALL=C sort; }    # DIR

saved_steps() { # of checkpoints that are whole
	for dir in $(checkpoints "$out"); do
		[ ! -e "$dir/run.json" ] || as_number "${dir##*/step-}"
	done
}

# Of the checkpoints and of STEP, where the run is, the one with the lowest eval loss: sets best_step, STEP if none was
# evaluated. Only with --keep-best or --best.
find_best() { # STEP
	best_step=''
	[ -z "$best" ] || best_step=$(json step eval_loss <"$metrics" 2>/dev/null |
		grep -E "^($(saved_steps | tr '\n' '|')$1)[$tab][-0-9]" | LC_ALL=C sort -sgk 2 | sed "s/$tab.*//; q")
	: "${best_step:=$1}"
}

find_checkpoint() {
	found=''
	for dir in $(checkpoints "$out"); do
		[ -n "$resume" ] || die 73 "$out has checkpoints: take --resume, or another --out"
		found=1
		mt-ckpt verify "$dir" --as-load $load_options; rc=$?
		case $rc in
		0) newest=$dir ;;
		65 | 74) say "$dir: is damaged, not completed, or cannot be read" ;;
		*) exit_code $rc "mt-ckpt verify" || die $? "$dir: cannot be verified" ;;
		esac
	done
	if [ -n "$(ls -A "$out/model" 2>/dev/null)" ]; then
		[ -n "$resume" ] || die 73 "$out/model is not empty"
		is_export "$out/model" || die 73 "$out/model is not a model that mt exported: move it, the result belongs there"
	fi
	[ -z "$newest" ] || return 0
	[ -z "$found" ] || die 65 "no checkpoint in $out is whole"
	[ -e "$config" ] || no_model
	[ -z "$resume" ] || say "no checkpoint in $out yet: starts from $model"
	[ -z "$dry" ] || return 0
	for file in metrics.jsonl samples.jsonl; do # an old file belongs to another run
		[ -s "$out/$file" ] || continue
		mv -fT "$out/$file" "$out/$file.old" || die 74 "$out/$file: cannot be renamed"
	done
}

# Take OUT, if this is the node that uses it, and find the checkpoint to go on from. A dry run only looks.
find_start() {
	[ -z "$looked" ] || return 0
	looked=1
	if [ -n "$dry" ]; then [ ! -d "$out" ] || find_checkpoint
	elif [ "${node:-0}" = 0 ]; then
		take_out
		find_checkpoint
	else
		find_shared_checkpoint
	fi
}

no_room() {
	say "$tmp: cannot be written: too little room in ${TMPDIR:-/tmp}"
	leave 74
}

# Files of the processes of this mt-run. A directory that nobody holds a lock on is that of a killed one; so is one that
# stays empty, and such a file.
make_tmp() {
	set +f
	for old in "${TMPDIR:-/tmp}"/mt-run.*; do
		if [ -p "$old/requests" ]; then flock -n "$old" rm -rf "$old" 2>/dev/null; fi
	done
	set -f
	find "${TMPDIR:-/tmp}/" -maxdepth 1 -name 'mt-run.??????' -empty -mmin +1 -delete 2>/dev/null
	tmp=$(mktemp -d "${TMPDIR:-/tmp}/mt-run.XXXXXX") || leave 74
	exec 5<"$tmp"
	flock -s 5 2>/dev/null
	mkfifo "$tmp/requests" "$tmp/answers" || leave 74
	head -c 65536 /dev/zero 2>/dev/null >"$tmp/room" || no_room     # for all that comes here
	rm "$tmp/room"
}

# Other processes write there until they end
remove_tmp() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		if rm -rf "$tmp" 2>/dev/null; then return; fi
		sleep 0.1
	done
}

is_unused() { # OUT has nothing but what an mt-run that has not begun to train writes
	! find "$out/" -mindepth 1 -maxdepth 1 2>/dev/null | grep -qvE '/(\.lock|\.node-0|command|log|micro|order|count)$'
}

leave() { # CODE
	remove_tmp
	[ "$node" != 0 ] || rm -f "$out/.node-0"
	[ "$tier" != "$out/tier" ] || rmdir "$out/tier" 2>/dev/null
	if [ -n "$made" ] && is_unused; then        # what OUT has besides stays, whatever was seen of it
		rm -f "$out/.lock" "$out/command" "$out/log" "$out/micro" "$out/order" "$out/count" 2>/dev/null
		rmdir "$out" 2>/dev/null
	fi
	exit "$1"
}

# ---- the disk

existing() { # DIR, or what there is above it
	dir=$1
	until [ -d "$dir" ]; do dir=$(dirname -- "$dir"); done
	printf '%s\n' "$dir"
}

free_in() { df -B1 --output=avail -- "$(existing "$1")" | tail -1; }    # DIR, which need not exist

# Checkpoints that the disk must have room for beside those in OUT: as many as are kept while one is written, or as are
# written at all. Without --ckpt-every that is the last step.
checkpoints_kept() {
	if [ -n "$node_count" ] && [ -z "$shared" ]; then echo 0; return; fi
	most=$((keep + ${best:-0} + 1 - $(checkpoints "$out" | wc -l)))
	[ "$most" -gt 0 ] || most=1
	last=${until:-$steps} saves=1
	if [ -n "$stop_after" ]; then saves=$most
	elif [ -n "$ckpt_every" ] && [ "$ckpt_every" -gt 0 ] && [ "$last" -gt "$began" ]; then
		saves=$((last / ckpt_every - began / ckpt_every + (last % ckpt_every != 0)))
	fi
	if [ "$saves" -lt "$most" ]; then echo "$saves"; else echo "$most"; fi
}

# awk: bytes of a checkpoint, and of all with an export
sizes='
function gb(n) { return sprintf(n < 1e8 ? "%.3f GB" : "%.1f GB", n / 1e9) }
function checkpoint_bytes(params, with_state, state, optim, dtype, carried) {
	state = (state == "bf16" ? 2 : state == "int8" ? 1 + 4 / 64 : 4) * (optim == "adamw" ? 2 : 1)
	return params * (dtype == "fp32" ? 4 : 2) + with_state * ((dtype == "fp32" ? 0 : 2) + state) + carried
}
function disk_bytes(kept, each, params, dtype, carried) { # checkpoints share two files of what is carried untrained
	return kept * (each - carried) + params * (dtype == "fp32" ? 4 : 2) + carried * (1 + (kept < 2 ? kept : 2))
}
function files(kept, each) {
	return (kept ? kept " checkpoint" (kept > 1 ? "s" : "") " of " gb(each) " and " : "") "the model"
}
'

warn_of_disk() {
	lack=$(LC_ALL=C awk -v params="$params" -v with_state="$(fact state_params)" \
		-v kept="$(checkpoints_kept)" -v free="$(free_in "$out")" \
		-v state="$state" -v optim="$optim" -v dtype="$dtype" \
		-v carried="$([ -n "$drop_unused" ] || fact carried_bytes)" "$sizes"'BEGIN {
			each = checkpoint_bytes(params, with_state, state, optim, dtype, carried)
			need = disk_bytes(kept, each, params, dtype, carried)
			if (need > free) print gb(free) " free, " files(kept, each) " need " gb(need) \
				(kept && each > free ? ": no checkpoint fits" : "")
		}')
	[ -z "$lack" ] || say "warning: $out: $lack"
}

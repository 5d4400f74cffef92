# epochs.sh: how many steps the data makes, counted by the programs that will read it, and kept in OUT/count
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

MOST_STEPS=16777215                             # mt-step's limit

count_steps() { # --steps from --epochs
	[ -z "$new_input" ] || die 64 "--epochs gives no --steps for --input new, which continues a training: give --steps"
	inputs=$(data_key)
	count=$(sed -n "s/^$inputs //p" "$out/count" 2>/dev/null)
	[ -n "$count" ] || count_data
	steps=$(json_of "$count" steps)
	[ "$steps" -le $MOST_STEPS ] || die 64 "--epochs $epochs makes $steps steps, and mt-step takes $MOST_STEPS at most"
	step_options=$step_options--steps=$steps$nl
}

# What decides the count: sizes and times of the files, and the options of the programs that read and pack them
data_key() {
	{
		for file in $data; do
			printf '%s\n' "$file"
			find -L "$(path_of "$file")" -type f -printf '%p %s %T@ %C@\n' | LC_ALL=C sort
		done
		for option in $feed_options $step_options; do
			case $option in
			--lr=* | --until=* | --eval*=* | --ckpt-every=* | --max-skipped=*) ;;
			*) printf '%s\n' "$option" ;;
			esac
		done
		mt-step --version
		cat "$config"
	} | sha256sum | cut -c 1-64
}

# By the program mt-run, which ends both programs if this script is killed, the launcher ends, or USR1 comes
count_data() {
	[ ! -t 2 ] || tell "counts the steps of $(many "${epochs:-1}" epoch)"
	file=$(mktemp "${TMPDIR:-/tmp}/mt-run.XXXXXX") || exit 74
	# shellcheck disable=SC2094
	exec 8>"$file" 6<"$file"
	rm "$file"
	for name in HUP INT TERM; do
		# shellcheck disable=SC2064
		trap "signal=$name; kill -s USR1 \$! 2>/dev/null" $name
	done
	set -- mt-feed $feed_options $data
	MT_RUN_AS=count mt-run $$ $((${shim_pid:+1} + 0)) $# "$@" mt-step --count --config="$config" $step_options \
		<&9 >&8 &
	wait $!; rc=$?
	while kill -0 $! 2>/dev/null; do wait $!; rc=$?; done   # a signal ends a wait
	[ -z "$shim_pid" ] || [ $rc -le 128 ] || signal=$(kill -l $((rc - 128)))
	[ -z "$signal" ] || end_by "$signal"
	trap - HUP INT TERM
	[ $rc = 0 ] || exit $rc
	count=$(cat <&6)
	exec 6<&- 8>&-
}

end_by() { # SIGNAL
	[ "$1" != USR1 ] || exit 0                  # a request
	[ ! -t 2 ] || printf '\r\033[K' >&2         # the progress line of --count, which was killed
	trap - "$1"
	kill -s "$1" $$
	case $1 in HUP) exit 129 ;; INT) exit 130 ;; TERM) exit 143 ;; esac # to a container's first process it does nothing
}

# epochs.sh: how many steps the data makes, counted by the programs that will read it, and kept in OUT/count
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

MOST_STEPS=16777215                             # mt-step's limit

count_steps() { # --steps from --epochs
	[ -z "$new_input" ] || die 64 "--epochs gives no --steps for --input new, which continues a training: give --steps"
	inputs=$(data_key)
	count=$(sed -n "s/^$inputs //p" "$out/count" 2>/dev/null)
	[ -n "$count" ] || count_data
	steps=$(json_number "$count" steps)
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

# If mt-run is killed, the count ends too: then the FIFO ends whose write end only mt-run has
watch_count() {
	trap '' HUP INT TERM
	exec 8>&-
	read -r over <&6 && return
	kill -s USR1 "$step" 2>/dev/null
	kill -s ALRM "$producer" 2>/dev/null
	remove_tmp
}

count_data() {
	[ ! -t 2 ] || tell "counts the steps of $(many "$epochs" epoch)"
	to=1
	[ ! -t 2 ] || to=2                          # mt-step's progress line
	make_tmp
	catch_signals
	mt-feed $feed_options $data 5<&- 6<&- 8>&- <&9 >"$tmp/records" &
	producer=$!
	mt-step --count --config="$config" $step_options 5<&- 6<&- 8>&- <"$tmp/records" >"$tmp/count" 2>&$to &
	step=$!
	watch_count &
	watcher=$!
	[ -z "$signal" ] || kill -s USR1 "$step"
	await "$step"; rc=$?
	step=''
	[ $rc = 0 ] || kill -s ALRM "$producer" 2>/dev/null         # nobody reads what it writes
	await "$producer"; fed=$?
	[ $fed != 142 ] || fed=0                    # that was us
	echo over >&8
	await "$watcher"
	end_listening
	trap - HUP INT TERM
	[ -z "$signal" ] || leave 0
	exit_code $fed mt-feed || leave $?          # mt-step complains only about the cut input
	sed '/^{/d' "$tmp/count" >&2
	exit_code $rc mt-step || leave $?
	count=$(sed -n '/^{/p' "$tmp/count")
	drop_tmp
}

json_number() { printf '%s\n' "$1" | sed -n "s/.*\"$2\": \([0-9.e+-]*\).*/\1/p"; }      # JSON NAME: a number in it

# epochs.sh: how many steps the data makes, counted by the programs that will read it, and kept in OUT/count
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

MOST_STEPS=16777215                             # mt-step's limit

count_steps() { # --steps from --epochs
	[ -z "$new_input" ] || die 64 "--epochs gives no --steps for --input new, which continues a training: give --steps"
	inputs=$(data_key)
	count=$(sed -n "s/^$inputs //p" "$out/count" 2>/dev/null)
	[ -n "$count" ] || count_data
	steps=$(figure "$count" steps)
	[ "$steps" -le $MOST_STEPS ] || die 64 "--epochs $epochs makes $steps steps, and mt-step takes $MOST_STEPS at most"
	step_options=$step_options--steps=$steps$nl
}

# What decides the count: sizes and times of the files, and the options of the programs that read and pack them
data_key() {
	{
		for file in $data; do
			echo "$file"
			find -L "$(path_of "$file")" -type f -printf '%p %s %T@ %C@\n' | LC_ALL=C sort
		done
		for option in $feed_options $step_options; do
			case $option in --lr=* | --until=* | --eval*=* | --ckpt-every=*) ;; *) printf '%s\n' "$option" ;; esac
		done
		mt-step --version
	} | sha256sum | cut -c 1-64
}

count_data() {
	[ ! -t 2 ] || tell "counts the steps of $epochs epochs"
	to=1
	[ ! -t 2 ] || to=2                          # mt-step's progress line
	count=$({ { mt-feed $feed_options $data <&9; echo "fed $?" >&3; } |
		mt-step --count $step_options 2>&$to; echo "counted $?"; } 3>&1)
	code=$(printf '%s\n' "$count" | sed -n 's/^fed //p')
	exit_code "$code" mt-feed || exit           # mt-step complains only about the cut input
	printf '%s\n' "$count" | sed '/^{/d; /^fed /d; /^counted /d' >&2
	code=$(printf '%s\n' "$count" | sed -n 's/^counted //p')
	exit_code "$code" mt-step || exit
	count=$(printf '%s\n' "$count" | sed -n '/^{/p')
}

figure() { printf '%s\n' "$1" | sed -n "s/.*\"$2\": \([0-9.e+-]*\).*/\1/p"; }      # JSON NAME: a number in it

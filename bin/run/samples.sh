# samples.sh: --sample: mt-sample continues prompts beside the training, and they go to OUT/samples.jsonl. A process
# waits for the metrics of each N-th step. It delays nothing, and reports its first failure only.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

sampler=''                                      # the process that samples; self: this one

# Records have zero bytes, and text has none
is_text() { [ "$(LC_ALL=C tr -dc '\000' <"$1" | head -c 1 | wc -c 2>/dev/null)" = 0 ]; }

# Who makes text of tokens: bytes, tokenizer or nobody
text_maker() {
	case $nl$feed_options in *"$nl--bytes$nl"*) echo bytes; return ;; esac
	if [ -d "$model" ] && [ -n "$(find "$model/" -maxdepth 1 -name 'tokenizer*')" ]; then echo tokenizer; fi
}

# Sets with: the directory of the tokenizer: the model's or, if that is gone, the newest checkpoint
find_tokenizer() {
	with=$model
	until [ -d "$with" ]; do                    # a checkpoint may be deleted meanwhile
		with=$(checkpoints "$out" | tail -n 1)
		[ -n "$with" ] || return
	done
}

make_prompts() { # the prompts as records
	if [ "$maker" = bytes ]; then
		while IFS= read -r line || [ -n "$line" ]; do printf %s "$line" | mt-feed --bytes - || return; done <"$sample"
	elif [ "$maker" = tokenizer ] && is_text "$sample"; then
		mt-tokens --prompts "$model" "$sample"
	else
		mt-feed "$sample"
	fi
}

check_samples() {
	if [ -z "$sample" ]; then
		[ -z "$sample_every$sample_options" ] ||
			die 64 "--sample-every, --sample-tokens and --sample-temperature need --sample FILE"
		return
	fi
	if [ -n "$sample_every" ]; then
		number sample-every "$sample_every" 999999999
		[ -z "$metrics" ] || can_reread_metrics || die 64 "--sample-every needs --metrics to be a file"
	fi
	# mt-sample checks its options before it looks for the run, which is not there yet
	why=$(mt-sample "$run" $sample_options --wait=0 2>&1 </dev/null | sed 's/^mt-sample: //; s/--max-/--sample-/
		s/--temp/--sample-temp/')
	case $why in *--sample-*) die 64 "$why" ;; esac
	check_access "$sample"
	[ -f "$sample" ] || die 66 "$sample: no such file"
	LC_ALL=C grep -qa . "$sample" || die 65 "$sample has no prompt"
	maker=$(text_maker)
	if [ -n "$gone" ] && [ -z "$maker" ] && is_text "$sample"; then
		die 66 "--sample: $gone and its tokenizer are gone, and $newest has none: give the prompts as records"
	fi
	file=$(mktemp "${TMPDIR:-/tmp}/mt-run.XXXXXX") || exit 74
	exec 4>"$file"                              # until there is $tmp
	rm "$file"
	why=$(make_prompts 2>&1 >&4) || die $? "--sample $(printf '%s\n' "$why" |
		sed 's/^mt-[a-z]*: //; q')$([ "$maker" != tokenizer ] || echo '; or give the prompts as records')"
}

keep_prompts() {
	[ -n "$sample" ] || return 0
	cat /dev/fd/4 >"$tmp/prompts" || leave 74
	exec 4>&-
}

# The samples of steps after the one that training continues from are made again. A cut line is that of a crash.
cut_samples() {
	[ -s "$out/samples.jsonl" ] || return 0
	json step <"$out/samples.jsonl" >"$tmp/steps"
	LC_ALL=C awk -v began="$began" 'NR == FNR { kept[FNR] = $1 != "" && $1 <= began + 0; next } kept[FNR]' \
		"$tmp/steps" "$out/samples.jsonl" >"$tmp/samples"
	cat "$tmp/samples" 2>/dev/null >"$out/samples.jsonl" || say "$out/samples.jsonl: cannot be written"
}

begin_sampling() {
	cut_samples
	[ -n "$sample_every" ] || return 0
	watch_metrics sample_steps +1 step loss
	sampler=$watcher
}

end_sampling() {
	[ -n "$sampler" ] || return 0
	: >"$tmp/sampling-over"
	signal_to KILL "$tmp/sample.pid"
	end_watching sample_steps "$sampler"
	rm "$tmp/sampling-over"
	sampler=''
}

sample_steps() {
	sampler=self
	to=$began                                   # what was due until here is done or skipped
	while IFS=$tab read -r at loss; do
		if [ -z "$loss" ] || [ "$at" -le "$to" ] || [ $((at % sample_every)) != 0 ]; then continue; fi
		from=$(committed)
		# the metrics of a training that was cut off may have steps that are trained again
		if [ "${from:-0}" -ge "$at" ]; then take_sample; fi
	done
}

last_sample() {
	[ -n "$sample" ] || return 0
	end_sampling
	from=$(committed)
	{ [ -s "$out/samples.jsonl" ] && json step <"$out/samples.jsonl" | grep -qx "$from"; } ||
		take_sample --threads="$cores"
}

# Run a program that ends with the sampling; after the training, also by a signal to mt-run
beside() { # IN OUT ERRORS COMMAND...
	if [ "$sampler" != self ]; then
		ask sample "$@"
		return "$answer"
	fi
	prompts=$1 made=$2 errors=$3
	shift 3
	MT_LOG='' "$@" <"$prompts" >"$made" 2>"$errors" &
	echo $! >"$tmp/sample.pid"
	[ ! -e "$tmp/sampling-over" ] || kill -9 $! 2>/dev/null
	wait $! 2>/dev/null; rc=$?
	rm -f "$tmp/sample.pid"
	return $rc
}

wanted() { [ -z "$signal" ] && [ ! -e "$tmp/sampling-over" ] && lives $$; }

take_sample() { # MT-SAMPLE'S-OPTIONS...; sets to: the step at its end
	beside "$tmp/prompts" "$tmp/sample" "$tmp/sample.err" nice mt-sample "$run" --echo $sample_options "$@"; rc=$?
	to=$(committed)
	to=${to:-$from}
	if [ $rc != 0 ]; then
		why=$(sed 's/^mt-sample: //; q' "$tmp/sample.err" 2>/dev/null)
		sample_failed "step $from: no sample: ${why:-mt-sample was killed}"
		return
	fi
	write_down >"$tmp/samples" 2>/dev/null
	wanted || return
	if ! cat "$tmp/samples" 2>/dev/null >>"$out/samples.jsonl"; then
		sample_failed "$out/samples.jsonl: cannot be written"
	elif [ -t 2 ]; then tell_samples; fi
}

sample_failed() { # MESSAGE
	wanted && [ ! -e "$tmp/sample-failed" ] || return 0
	say "$1"
	: >"$tmp/sample-failed"
}

# $tmp/sample as JSON lines, with the step from which it was made, and that at its end if training went on
write_down() {
	if [ "$maker" = tokenizer ] && [ ! -e "$tmp/no-text" ]; then
		while find_tokenizer; do
			if beside /dev/null "$tmp/texts" /dev/null nice mt-tokens --decode --json "$with" "$tmp/sample"; then
				MT_RUN_AS=samples mt-run "$from" "$to" objects <"$tmp/texts"
				return
			fi
			wanted || return
			[ ! -d "$with" ] || break
		done
		: >"$tmp/no-text"                       # this Python cannot; tokens are written
	fi
	MT_RUN_AS=samples mt-run "$from" "$to" "${maker#tokenizer}" <"$tmp/sample"
}

tell_samples() { # the first line of each
	json step text tokens <"$tmp/samples" |
		awk -F '\t' '{ gsub(/[][]/, "", $3); print "step " $1 ": " ($3 == "" ? $2 : "tokens " $3) }' |
		while IFS= read -r first; do tell "$first"; done
}

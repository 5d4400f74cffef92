# score.sh: mt-run --score: the lines of mt-score on stdout, or records, instead of a training
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

# Those of mt-run, mt-feed and mt-score
SCORE_OPTIONS='args|score|model|data|dtype|device|compute|micro|streams|threads|numa|run|quiet|help|version|bytes|u16'
SCORE_OPTIONS="$SCORE_OPTIONS|u32|eos|block|seq|pack|long|tokens|sum|join|top|allow-image-tokens|wait"
# Tokens of a micro-batch, unless --micro says it: its weights are read once
SCORE_TOKENS=16384

check_score() {
	[ -n "$model" ] || die 64 "--model DIR is needed"
	[ -n "$data" ] || die 64 "--data FILE is needed"
	number seq "$seq" 999999999
	case $join in '' | ref | old) ;; *) die 64 "--join: '$join' is not ref or old" ;; esac
	[ -z "$top" ] || number top "$top" $MOST_TOP
	[ -z "$top" ] || [ -z "$join" ] || die 64 "only one of --join and --top"
	records=${join:+--join}${top:+--top}
	case $records$nl$step_options in
	-*"$nl--tokens$nl"* | -*"$nl--sum$nl"*) die 64 "$records writes records: not with --tokens or --sum" ;;
	esac
	if [ -z "$micro" ]; then
		micro=$(((SCORE_TOKENS + seq - 1) / seq))
		step_options=$step_options--micro=$micro$nl
	fi
	number micro "$micro" 999999999
	check_device; check_compute
	batch=$((streams * micro)) grad=none state=none show=1
	choose_places
	check_model
	[ -d "$model" ] || die 64 "--model: $model is no directory: random weights have no scores"
	check_descriptors
	check_access "$config"
	mt-feed --check --config="$config" $check_options $feed_options $data <&9 || exit
}

# Bytes of the records that mt-feed makes, without those of counts; none if a file can be read only once
record_bytes() {
	each=1
	case $nl$feed_options in *"$nl--bytes$nl"*) each=4 ;; *"$nl--u16$nl"*) each=2 ;; esac
	for file in $data; do
		can_reread "$file" || return
		path=$(path_of "$file") weight=1
		[ "$path" = "$file" ] || weight=${file##*:}
		find -L "$path" -type f -printf "%s $weight\n"
	done | LC_ALL=C awk -v each="$each" '{ n += $1 * $2 * each } END { printf "%.0f", n }'
}

score_it() {
	create_run
	fill_run
	start_streams
	expected=$(record_bytes)
	set -- mt-feed $feed_options $data
	ask train 0 $# "$@" mt-score "$run" $step_options ${expected:+--expect="$expected"}
	[ "$failed" = 0 ] || finish "$failed"       # the first failure is mt-run's
	[ "$answer" = 0 ] || finish "$answer"
	finish "$fed"
}

score() {
	check_score
	make_tmp
	out=$tmp
	supervise score_it
}

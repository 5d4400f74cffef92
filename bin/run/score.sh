# score.sh: mt-run --score: the lines of mt-score on stdout, instead of a training
# shellcheck shell=sh disable=SC2034,SC2086,SC2154   # mt-run sets and uses the variables; lists have an entry a line

# Tokens of a micro-batch, unless --micro says it: its weights are read once
SCORE_TOKENS=16384

check_score() {
	[ -n "$model" ] || die 64 "--model DIR is needed"
	[ -n "$data" ] || die 64 "--data FILE is needed"
	number seq "$seq" 999999999
	[ -n "$micro" ] || micro=$(((SCORE_TOKENS + seq - 1) / seq))
	number micro "$micro" 999999999
	batch=$((streams * micro)) grad=none state=none show=1
	check_places
	check_model
	[ -d "$model" ] || die 64 "--model: $model is no directory: random weights have no scores"
	check_descriptors
	check_access "$config"
	mt-feed --check --config="$config" $check_options $feed_options $data <&9 || exit
}

score_it() {
	create_run
	fill_run
	start_streams
	set -- mt-feed $feed_options $data
	ask train 0 $# "$@" mt-score "$run" --micro="$micro" $step_options
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

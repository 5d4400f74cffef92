# shellcheck shell=bash
# mt-run on the model of $CASE with the options $ARGS, for suites that look at a run while it trains.

# In the background, on data that outlast the test: start OPTIONS..., its pid in $pid. It has trained five steps then.
# COMMAND: what to start in mt-run's place; OUT: where the results go
start() {
	long_data
	${COMMAND:-mt-run} --run "$RUN" --model "$CASE/model" --data "$T/data" --out "${OUT:-$T/out}" $ARGS "$@" \
		>"$T/m" 2>"$T/run.err" 3>&- &
	pid=$!
	echo "$pid" >>"$T/pids"
	eventually grep -q '"step": 5' "$T/m"
}

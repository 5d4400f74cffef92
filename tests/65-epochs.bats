#!/usr/bin/env bats
# mt-run --epochs, whose steps are counted, and the order of documents.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30 --dtype fp32"

run_it() {
	"${BIN:-$MT}/mt-run" --run "$RUN" --model "$CASE/model" --data "${DATA:-$CASE/data.bin}" --out "$T/out" $ARGS "$@" \
		>>"$T/m" 2>"$T/run.err" 3>&-
}
count() { # MT-FEED'S-OPTIONS [MT-STEP'S]
	mt-feed --shuffle 1 $1 "$CASE/data.bin" | mt-step --count --batch 4 --seq 32 $2 | sed 's/.*"steps": \([0-9]*\)}/\1/'
}

# bats test_tags=slow
@test "--epochs without --steps trains exactly the steps of all epochs, with the schedule's end at the last one" {
	for pack in docs concat; do
		n=$(count "--epochs 2" "--pack $pack")
		run_it --epochs 2 --pack $pack --warmup 10%
		[ "$(wc -l <"$T/m")" = "$n" ]
		grep -q "^mt-run: steps 1 to $n (2 epochs), each" "$T/run.err"
		timeless "$T/m" >"$T/counted"
		rm -r "$T/out" "$T/m"
		run_it --epochs 2 --pack $pack --warmup 10% --steps "$n"
		timeless "$T/m" | cmp - "$T/counted"
		rm -r "$T/out" "$T/m"
	done
}

# bats test_tags=slow
@test "--resume with the same --epochs continues to the same bits and takes the count from OUT" {
	mkdir "$T/bin"
	ln -s "$MT"/mt-* "$T/bin"
	rm "$T/bin/mt-step"
	printf '%s\n' '#!/bin/sh' "case \"\$*\" in *--count*) echo >>'$T/counts' ;; esac" "exec '$MT/mt-step' \"\$@\"" \
		>"$T/bin/mt-step"
	chmod +x "$T/bin/mt-step"
	BIN=$T/bin
	run_it --epochs 2
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m" "$T/counts"
	run_it --epochs 2 --until 9
	run_it --epochs 2 --resume
	timeless "$T/m" | cmp - "$T/whole"
	[ "$(wc -l <"$T/counts")" = 1 ]
	run_it --epochs 3 --resume
	[ "$(wc -l <"$T/counts")" = 2 ]
	[ "$(wc -l <"$T/m")" = "$(count "--epochs 3")" ]
}

# bats test_tags=slow
@test "--resume never removes OUT/order and OUT/count, of which it needs the order" {
	run_it --epochs 1 --until 2
	ls -i "$T/out/order" "$T/out/count" >"$T/before"
	ln "$T/out/order" "$T/order"        # so that a new file has another inode
	ln "$T/out/count" "$T/count"
	run_it --epochs 1 --until 3 --resume
	ls -i "$T/out/order" "$T/out/count" | cmp - "$T/before"
}

@test "--epochs with --steps: --steps is the horizon" {
	run_it --epochs 9 --steps 25
	[ "$(wc -l <"$T/m")" = 25 ]
	[ ! -e "$T/out/count" ]
}

@test "--epochs without --steps on stdin or a FIFO, or with --input new, exits 64 and says to give --steps" {
	try() { mt-run --run "$RUN" --model "$CASE/model" --out "$T/out" $ARGS --epochs 2 "$@"; }
	fails_with 64 try --data -
	grep -q "reads the data twice, which /dev/stdin does not allow: give --steps N" "$T/fails.err"
	mkfifo "$T/fifo"
	fails_with 64 try --data "$T/fifo"
	fails_with 64 try --data "$CASE/data.bin" --input new
	grep -q "give --steps" "$T/fails.err"
	fails_with 64 mt-run --run "$RUN" --model "$CASE/model" --out "$T/out" $ARGS --data "$CASE/data.bin"
	grep -qx "mt-run: --steps N or --epochs N is needed" "$T/fails.err"
	[ ! -e "$T/out" ]
}

@test "damaged data under --epochs is found by the count: one line, no OUT" {
	{ cat "$CASE/data.bin"; printf '\011\0\0\0\001\0\0\0'; } >"$T/data"
	fails_with 65 mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --epochs 2
	fails_with 64 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --epochs 2 \
		--until 5000
	[ ! -e "$T/out" ]
	gone "$RUN"
}

@test "a token outside the vocabulary is found by the count, also at the end of data that is not shuffled" {
	{ cat "$CASE/data.bin"; printf '\002\0\0\0\005\0\0\0\145\0\0\0'; } >"$T/data"
	for order in --no-shuffle --shuffle=1; do
		fails_with 65 mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --epochs 2 $order
		grep -q "element 1: token 101 is outside the vocabulary of 101" "$T/fails.err"
		[ ! -e "$T/out" ]
	done
	gone "$RUN"
}

@test "--resume with more epochs says from which learning rate to which" {
	run_it --epochs 1
	last=$(tail -1 "$T/out/metrics.jsonl" | sed 's/.*"lr": \([^,]*\),.*/\1/')
	n=$(wc -l <"$T/out/metrics.jsonl")
	run_it --epochs 2 --resume
	first=$(sed -n "$((n + 1))p" "$T/out/metrics.jsonl" | sed 's/.*"lr": \([^,]*\),.*/\1/')
	set -- $(printf '%.3g %.3g' "$last" "$first")
	grep -q "^mt-step: the learning rate goes from $1 at step $n to $2 at step $((n + 1)): --steps (" \
		"$T/run.err"
}

@test "TERM or HUP to mt-run alone while it counts ends the count too, and leaves nothing" {
	mkdir "$T/tmp"
	export TMPDIR=$T/tmp
	counts() { pgrep -f "^mt-step --count .*=$T/m" && pgrep -f "^mt-feed --epochs=.* $T/data"; }
	env --default-signal=HUP true 2>/dev/null || skip "needs env --default-signal"
	ends() { # SIGNAL CODE ARGS...; nohup makes tests ignore HUP
		spawn run env --default-signal=HUP,TERM mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" \
			--out "$T/out" $ARGS --metrics "$T/m" --epochs 1000000000 "${@:3}"
		eventually counts
		counts >>"$T/pids"
		kill -s "$1" "$PID"
		exits "$2" wait "$PID"
		no pgrep -f "^mt-(step|feed) .*$T/"
		[ ! -s "$T/run.err" ]
		[ ! -e "$T/out" ]
		[ -z "$(ls "$T/tmp")" ]
	}
	cp "$CASE/data.bin" "$T/data"
	ends TERM 143
	ends HUP 129
	ends TERM 143 --dry-run --steps 5
}

@test "mt-run killed while it counts: the count ends too, and nothing is left" {
	mkdir "$T/tmp"
	export TMPDIR=$T/tmp
	cp "$CASE/data.bin" "$T/data"
	counts() { pgrep -f "^mt-step --count .*=$T/m" && pgrep -f "^mt-feed --epochs=.* $T/data"; }
	over() { ! pgrep -f "^mt-(step|feed) .*$T/" && [ -z "$(ls "$T/tmp")" ]; }
	local how
	for how in "" "--dry-run --steps 5"; do
		spawn run mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS \
			--metrics "$T/m" --epochs 1000000000 $how
		eventually counts
		counts >>"$T/pids"
		eventually pgrep -x -P "$PID" mt-run    # which watches
		kill -9 "$PID"
		eventually over
		[ ! -s "$T/run.err" ]
		[ ! -e "$T/out" ]
	done
}

# bats test_tags=slow
@test "data is shuffled by the seed unless --no-shuffle is given or it is a FIFO" {
	run_it --epochs 1
	timeless "$T/m" >"$T/shuffled"
	grep -q "^mt-run: steps .*, shuffled (seed 1)$" "$T/run.err"
	rm -r "$T/out" "$T/m"
	run_it --epochs 1 --shuffle 1 --seed 7
	timeless "$T/m" | cmp - "$T/shuffled"
	rm -r "$T/out" "$T/m"
	run_it --epochs 1 --no-shuffle
	timeless "$T/m" >"$T/in-order"
	no cmp -s "$T/in-order" "$T/shuffled"
	rm -r "$T/out" "$T/m"
	mkfifo "$T/fifo"
	cat "$CASE/data.bin" >"$T/fifo" 3>&- &
	DATA=$T/fifo run_it --steps "$(wc -l <"$T/in-order")"
	timeless "$T/m" | cmp - "$T/in-order"
	no grep -q shuffled "$T/run.err"
}

# bats test_tags=slow
@test "a resumed training keeps the order that it began with" {
	local how
	for how in "" --no-shuffle "--shuffle 9"; do
		run_it --epochs 1 $how
		timeless "$T/m" >"$T/whole"
		rm -r "$T/out" "$T/m"
		run_it --epochs 1 --until 5 $how
		run_it --steps "$(wc -l <"$T/whole")" --resume --seed 5
		timeless "$T/m" | cmp - "$T/whole"
		rm -r "$T/out" "$T/m"
	done
	fails_with 64 mt-run --shuffle 1 --no-shuffle
}

# bats test_tags=slow
@test "an OUT/order that is damaged or missing exits 65 and is named; --shuffle with its seed continues the training" {
	run_it --epochs 1
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m"
	run_it --epochs 1 --until 5
	local bad
	for bad in '' '\n' 'no\n' 'none1\n' '1\n2\n' '99999999999999999999\n' '\000\033[31m\n' '-1\n'; do
		printf -- "$bad" >"$T/out/order"
		[ -n "$bad" ] || rm "$T/out/order"
		fails_with 65 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS \
			--epochs 1 --resume
		grep -q "^mt-run: $T/out/order: '.*' is neither a seed nor none: give the --shuffle or " "$T/fails.err"
		no grep -q "$(printf '[\001-\011\013-\037]')" "$T/fails.err"
	done
	run_it --epochs 1 --resume --shuffle 1
	timeless "$T/m" | cmp - "$T/whole"
	[ "$(cat "$T/out/order")" = 1 ]
}

# bats test_tags=slow
@test "--epochs counts directories and weighted files, and --keep-best keeps the best evaluated checkpoint" {
	mkdir "$T/data"
	cp "$CASE/data.bin" "$T/data/a"
	cp "$CASE/eval.bin" "$T/data/b"
	feed() { mt-feed --shuffle 1 --epochs 2 "$T/data" "$CASE/data.bin:0.5"; }
	n=$(feed | mt-step --count --batch 4 --seq 32 | sed 's/.*"steps": \([0-9]*\)}/\1/')
	ARGS=$(with "$ARGS" --lr 1)         # a rate that rises until the loss does, too
	DATA=$T/data run_it --data "$CASE/data.bin:0.5" --epochs 2 --eval "$CASE/eval.bin" --eval-every 2 --ckpt-every 2 \
		--keep 1 --keep-best --warmup 100%
	[ "$(grep -c '"loss"' "$T/m")" = "$n" ]
	best=$(sed -n 's/.*best eval loss .* at step \([0-9]*\)$/\1/p' "$T/run.err")
	[ "$best" -lt "$n" ]
	[ "$best" -gt 0 ]
	[ -e "$T/out/$(printf step-%08d "$best")/run.json" ]
	[ "$(ls -d "$T"/out/step-* | wc -l)" = 2 ]
	fails_with 64 mt-run --model "$CASE/model" --data "$T/data" --out "$T/other" $ARGS --epochs 1 --keep-best
	grep -q "needs --eval" "$T/fails.err"
}

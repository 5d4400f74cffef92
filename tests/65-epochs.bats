#!/usr/bin/env bats
# mt-run --epochs: steps that are counted.
load helpers

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30 --dtype fp32"

run_it() {
	"${BIN:-$MT}/mt-run" --run "$RUN" --model "$CASE/model" --data "${DATA:-$CASE/data.bin}" --out "$T/out" $ARGS "$@" \
		>>"$T/m" 2>"$T/run.err" 3>&-
}
plain() { sed 's/, "tokens_per_s": [^,]*, "time_s": [^,]*//' "$@"; }
count() { mt-feed $1 "$CASE/data.bin" | mt-step --count --batch 4 --seq 32 $2 | sed 's/.*"steps": \([0-9]*\)}/\1/'; }

@test "--epochs without --steps trains exactly the steps of all epochs, with the schedule's end at the last one" {
	for pack in docs concat; do
		n=$(count "--epochs 2" "--pack $pack")
		run_it --epochs 2 --pack $pack --warmup 10%
		[ "$(wc -l <"$T/m")" = "$n" ]
		grep -q "^mt-run: steps 1 to $n (2 epochs), each" "$T/run.err"
		plain "$T/m" >"$T/counted"
		rm -r "$T/out" "$T/m"
		run_it --epochs 2 --pack $pack --warmup 10% --steps "$n"
		plain "$T/m" | cmp - "$T/counted"
		rm -r "$T/out" "$T/m"
	done
}

@test "--resume with the same --epochs continues to the same bits and takes the count from OUT" {
	mkdir "$T/bin"
	ln -s "$MT"/mt-* "$T/bin"
	rm "$T/bin/mt-step"
	printf '%s\n' '#!/bin/sh' "case \"\$*\" in *--count*) echo >>'$T/counts' ;; esac" "exec '$MT/mt-step' \"\$@\"" \
		>"$T/bin/mt-step"
	chmod +x "$T/bin/mt-step"
	BIN=$T/bin
	run_it --epochs 2
	plain "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m" "$T/counts"
	run_it --epochs 2 --until 9
	run_it --epochs 2 --resume
	plain "$T/m" | cmp - "$T/whole"
	[ "$(wc -l <"$T/counts")" = 1 ]
	run_it --epochs 3 --resume
	[ "$(wc -l <"$T/counts")" = 2 ]
	[ "$(wc -l <"$T/m")" = "$(count "--epochs 3")" ]
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

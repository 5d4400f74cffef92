# mt-run: the whole pipeline.
load helpers
load lib/mtrun

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 3"

run_it() {
	mt-run --run "$RUN" --model "$CASE/model" --data "${DATA:-$CASE/data.bin}" --out "$T/out" $ARGS "$@" \
		>>"$T/m" 2>"$T/run.err" 3>&-
}
no_stage_lives() { ! ps -eo args | grep -v grep | grep -q -- "mt-[a-z]* .*$RUN"; }

@test "mt-run trains a model, writes metrics and a model, and leaves nothing behind" {
	run_it --steps 10 --dtype fp32
	[ "$(steps <"$T/m")" = "$(seq -s ' ' 10)" ]
	[ -f "$T/out/model/model.safetensors" ]
	[ -f "$T/out/model/config.json" ]
	mt-ckpt verify "$T/out/step-00000010"
	gone "$RUN"
	eventually no_stage_lives
}

# bats test_tags=slow
@test "invalid records in a pipe or unshuffled data: the steps before are saved and exported, and mt-run exits 65" {
	local code bad='\002\0\0\0\005\0\0\0\145\0\0\0'
	for how in pipe file; do
		{ cat "$CASE/data.bin"; printf "$bad"; cat "$CASE/data.bin"; } >"$T/data"
		code=0
		case $how in
		pipe) DATA=- run_it --steps 99 <"$T/data" || code=$? ;;
		file) DATA=$T/data run_it --steps 99 --no-shuffle || code=$? ;;
		esac
		[ "$code" = 65 ]
		grep -q "element 1: token 101 is outside the vocabulary of 101" "$T/run.err"
		grep -q "^mt-run: the input ended with an error: exports what was trained before it$" "$T/run.err"
		step=$(tail -1 "$T/out/metrics.jsonl" | steps)
		[ "$step" -ge 20 ]
		mt-ckpt verify "$T/out/$(printf 'step-%08d' "$step")"
		mt-store create "$RUN" --config "$T/out/model" 2>"$T/create.err"
		mt-ckpt load "$RUN" "$T/out/$(printf 'step-%08d' "$step")"
		mt-ckpt export "$RUN" "$T/same"
		cmp "$T/same/model.safetensors" "$T/out/model/model.safetensors"
		mt-store rm "$RUN"
		rm -r "$T/out" "$T/same"
	done
	# nothing was trained before, or its loss is not finite: nothing is exported
	{ printf '\001\0\0\0\005\0\0\0'"$bad"; } >"$T/data"
	DATA=$T/data exits 65 run_it --steps 9 --no-shuffle
	[ ! -e "$T/out/model" ]
	exits 65 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" --batch 1 --seq 32 \
		--lr 1e30 --steps 30 --max-skipped 3 >"$T/m" 2>"$T/run.err" 3>&-
	grep -q "training stops (--max-skipped)" "$T/run.err"
	[ ! -e "$T/out/model" ]
	gone "$RUN"
}

@test "a config.json and raw bytes are enough to train" {
	seq 1 3000 >"$T/text"
	mt-run --run "$RUN" --model "$CONFIGS/demo.json" --data "$T/text" --bytes --block 32 --pack none --out "$T/out" \
		--batch 2 --seq 32 \
		--lr 1e-3 --steps 2 >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(steps <"$T/m")" = "1 2" ]
	[ -f "$T/out/model/model.safetensors" ]
}

# bats test_tags=slow
@test "--resume continues from the newest checkpoint with the metrics of an uninterrupted run" {
	run_it --steps 12 --dtype fp32
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m"
	run_it --steps 12 --until 5 --dtype fp32
	run_it --steps 12 --dtype fp32 --resume
	timeless "$T/m" | cmp - "$T/whole"
	mt-ckpt verify "$T/out/step-00000012"
}

# bats test_tags=slow
@test "--micro auto takes the rows that mt-plan selects; --resume goes on with those that the training began with" {
	local all
	ARGS=$(with "$ARGS" --batch 8 --dtype fp32 --micro auto)
	run_it --steps 2 --dry-run --json
	all=$(mt-plan --config "$CASE/model" --seq 32 --batch 8 --dtype fp32 --device cpu --threads 1 --json | value rows)
	[ "$(value micro <"$T/m")" = "$all" ]
	run_it --steps 2 --until 1
	[ "$(cat "$T/out/micro")" = "$all of 8" ]
	grep -q "each of 8 rows of 32 tokens, in micro-batches of $all rows, of " "$T/run.err"
	rm -r "$T/out" "$T/m"
	ARGS=$(with "$ARGS" --micro 2)
	run_it --steps 6
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m"
	run_it --steps 6 --until 3
	echo "2 of 8" >"$T/out/micro"
	ARGS=$(with "$ARGS" --micro auto)
	run_it --steps 6 --resume
	timeless "$T/m" | cmp - "$T/whole"
	ARGS=$(with "$ARGS" --micro some)
	fails_with 64 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/o" $ARGS --steps 1
	grep -q -- "--micro wants a number, 1 to 999999999, or auto" "$T/fails.err"
}

# bats test_tags=slow
@test "--resume skips a damaged newest checkpoint" {
	run_it --steps 9 --ckpt-every 3 --keep 5 --dtype fp32
	timeless "$T/m" >"$T/whole"
	truncate -s -1 "$T/out/step-00000009/model.safetensors"
	rm "$T/m"
	run_it --steps 9 --resume --dtype fp32 || true
	[ "$(steps <"$T/m")" = "7 8 9" ]
	timeless "$T/m" | cmp - <(tail -3 "$T/whole")
}

# bats test_tags=slow
@test "training that ends at the step of a damaged checkpoint saves its own, and keeps the damaged one aside" {
	run_it --steps 9 --ckpt-every 3 --keep 5 --dtype fp32
	truncate -s -1 "$T/out/step-00000009/model.safetensors"
	run_it --steps 9 --resume --dtype fp32
	mt-ckpt verify "$T/out/step-00000009"
	grep -q "step-00000009 is not of this run: it is renamed to .*/replaced.step-00000009" "$T/run.err"
	[ -d "$T/out/replaced.step-00000009" ]
}

# bats test_tags=slow
@test "training that saves a step of which there is a damaged checkpoint keeps that one aside" {
	run_it --steps 9 --ckpt-every 3 --keep 5 --dtype fp32
	truncate -s -1 "$T"/out/step-0000000[69]/model.safetensors
	mkdir "$T/out/replaced.step-00000006"
	cp -r "$T/out" "$T/was"
	run_it --steps 9 --ckpt-every 3 --keep 5 --dtype fp32 --resume
	mt-ckpt verify "$T/out/step-00000006"
	mt-ckpt verify "$T/out/step-00000009"
	grep -q "$T/out/step-00000009 is not of this run: it is renamed to $T/out/replaced.step-00000009$" "$T/run.err"
	diff -r "$T/was/step-00000009" "$T/out/replaced.step-00000009"
	diff -r "$T/was/step-00000006" "$T/out/replaced.step-00000006.2"
}

@test "--resume refuses an OUT/model that is no export with 73, before anything is loaded" {
	mkdir -p "$T/out/model"
	echo notes >"$T/out/model/notes"
	fails_with 73 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" \
		--steps 5 --resume $ARGS
	grep -q "out/model is not a model that mt exported" "$T/fails.err"
	gone "$RUN"
}

@test "--device cuda without a GPU or without CUDA exits 78 with one line, and leaves nothing behind" {
	CUDA_VISIBLE_DEVICES= exits 78 run_it --steps 4 --device cuda
	[ "$(grep -vc "^mt-store: note" "$T/run.err")" = 1 ]
	grep -q "^mt-stream: .*device cuda" "$T/run.err"
	gone "$RUN"
	[ ! -e "$T/out" ]
}

# bats test_tags=slow
@test "--resume on another kind of machine exits 78, and continues with --new-record" {
	MT_ISA=plain run_it --steps 4 --until 2 --dtype fp32
	rm -r "$T/out/model"
	local code=0
	run_it --steps 4 --dtype fp32 --resume || code=$?
	if [ $code = 0 ]; then skip "this CPU has but the plain kernels"; fi
	[ $code = 78 ]
	grep -q "the run was computed on 'plain'.*--new-record" "$T/run.err"
	[ ! -d "$T/out/model" ]
	run_it --steps 4 --dtype fp32 --resume --new-record
	[ "$(steps <"$T/m")" = "1 2 3 4" ]
	[ -f "$T/out/model/config.json" ]
}

@test "checkpoints in OUT without --resume exit 73" {
	mkdir -p "$T/out/step-00000003"
	fails_with 73 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" --steps 5 $ARGS
	gone "$RUN"
}

# bats test_tags=slow
@test "two streams give the same metrics" {
	run_it --steps 10 --dtype fp32
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m"
	run_it --steps 10 --dtype fp32 --streams 2
	timeless "$T/m" | cmp - "$T/whole"
}

@test "nine streams, more than a run has rings for by default, train; --streams 65 exits 64" {
	ARGS=$(with "$ARGS" --batch 9 --micro 1)
	run_it --steps 2 --dtype fp32
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m"
	run_it --steps 2 --dtype fp32 --streams 9
	timeless "$T/m" | cmp - "$T/whole"
	fails_with 64 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/new" $ARGS --steps 2 --streams 65
	grep -q "^mt-run: --streams wants a number, 1 to 64$" "$T/fails.err"
}

@test "input that ends within a record is not exported; the trained steps are saved" {
	{ cat "$CASE/data.bin"; printf '\011\0\0\0\001\0\0\0'; } >"$T/data"
	DATA=$T/data
	exits 65 run_it --steps 500 --no-shuffle
	[ ! -e "$T/out/model" ]
	ls "$T/out" | grep -q '^step-0'
	gone "$RUN"
}

# bats test_tags=slow
@test "an mt-feed killed between two records does not lead to an export; the trained steps are saved" {
	for i in $(seq 4096); do printf '\3\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0'; done >"$T/part"
	for i in $(seq 64); do cat "$T/part"; done >"$T/data"
	mkfifo "$T/fifo"
	{ cat "$T/data"; sleep 60; } >"$T/fifo" 3>&- &
	echo $! >>"$T/pids"
	mt-run --run "$RUN" --model "$CASE/model" --data "$T/fifo" --out "$T/out" $ARGS --steps 100000 \
		>"$T/m" 2>"$T/run.err" 3>&- &
	pid=$!
	eventually grep -q '"step": 5' "$T/m"
	pkill -9 -P $pid -f "^mt-feed "
	code=0
	wait $pid || code=$?
	pkill -P "$(tail -1 "$T/pids")" sleep || true
	[ "$code" = 69 ]
	grep -q "mt-feed was killed by signal 9" "$T/run.err"
	[ ! -e "$T/out/model" ]
	ls "$T/out" | grep -q '^step-0'
	gone "$RUN"
}

# bats test_tags=slow
@test "a killed mt-step is reported and ends the run with 69" {
	start --steps 5000
	pkill -9 -P $pid -f "^mt-step "
	exits 69 wait $pid
	grep -q "^mt-run: mt-step was killed by signal 9" "$T/run.err"
	[ ! -e "$T/out/model" ]
	gone "$RUN"
}

@test "bad input gives one line, whichever program finds it" {
	cp -r "$CASE/model" "$T/model"
	truncate -s -4 "$T/model/model.safetensors"
	printf '\011\0\0\0\001\0\0\0' >"$T/cut"
	: >"$T/none"
	on() {
		mt-run --run "$RUN" --model "${MODEL:-$CASE/model}" --data "${DATA:-$CASE/data.bin}" --out "$T/out" $ARGS \
			--steps 5 "$@"
	}
	MODEL=$T/model fails_with 65 on
	DATA=$T/cut fails_with 65 on
	DATA=$T/none fails_with 65 on
	DATA=$T fails_with 65 on
	fails_with 65 on --u16
	fails_with 66 on --eval "$T/nowhere" --eval-every 2
	fails_with 64 on --epochs 0
	fails_with 64 on --eos 3
	fails_with 64 on --device abacus
	fails_with 64 on --grad none
	ARGS="--batch 99999999999999999999 --seq 32 --lr 1e-3" fails_with 64 on
	[ ! -e "$T/out" ]
	gone "$RUN"
}

@test "--data - reads stdin" {
	mt-run --run "$RUN" --model "$CASE/model" --data - --out "$T/out" $ARGS --steps 5 \
		<"$CASE/data.bin" >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(steps <"$T/m")" = "1 2 3 4 5" ]
}

@test "invalid options and an unusable OUT exit with one line before a model is loaded, and leave no OUT" {
	run_args() { mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS "$@"; }
	fails_with 64 run_args --steps 5 --schedule square
	fails_with 64 run_args --steps 5 --bogus 1
	fails_with 64 run_args --steps 5 --threads x
	fails_with 64 run_args --steps 5 --seed x
	fails_with 64 run_args --steps 5 --dtype fp8
	fails_with 64 run_args
	[ ! -e "$T/out" ]
	: >"$T/out"
	fails_with 73 run_args --steps 5
	rm "$T/out"
	fails_with 74 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out /proc/nowhere/out $ARGS --steps 5
	gone "$RUN"
}

@test "invalid options are reported by the program that they belong to, and leave nothing behind" {
	exits 64 run_it --steps 5 --schedule square
	grep -q "mt-step: --schedule" "$T/run.err"
	[ ! -e "$T/out" ]
	gone "$RUN"
	fails_with 64 mt-run --data x --out "$T/out"
	fails_with 66 mt-run --model "$T/nowhere" --data x --out "$T/out" $ARGS
}

@test "--bytes with a vocabulary above 512 exits 64" {
	echo '{"vocab_size": 513}' >"$T/config.json"
	fails_with 64 mt-run --model "$T/config.json" --data "$CASE/data.bin" --bytes --out "$T/out" $ARGS
	grep -q "a vocabulary of 513" "$T/fails.err"
	printf '%s%s\n' '{"a": "\"vocab_size\": 7", "x": {"vocab_size": 1, "y": [{"vocab_size": 2}]}, "vocab_size": 513,' \
		' "z": {"vocab_size": 256}}' >"$T/config.json"
	fails_with 64 mt-run --model "$T/config.json" --data "$CASE/data.bin" --bytes --out "$T/out" $ARGS
	grep -q "a vocabulary of 513" "$T/fails.err"
	echo '{"model_type": "llama", "text_config": {"vocab_size": 256}}' >"$T/config.json"     # llama's default applies
	fails_with 64 mt-run --model "$T/config.json" --data "$CASE/data.bin" --bytes --out "$T/out" $ARGS
	grep -q "a vocabulary of 32000" "$T/fails.err"
}

@test "SIGTERM: the step is finished and saved, the run removed, and mt-run ends by the signal" {
	start --steps 5000
	kill -TERM $pid
	exits 143 wait $pid
	gone "$RUN"
	[ ! -e "$T/out/model" ]
	mt-ckpt verify "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")"
}

@test "SIGTERM to mt-run that is the first process of a container: the same, with exit code 143" {
	unshare --pid --fork --mount-proc true 2>/dev/null || skip "may not make a PID namespace"
	COMMAND="unshare --pid --fork --mount-proc --kill-child $MT/mt-run" start --steps 5000
	kill -TERM $(pgrep -P $pid)
	exits 143 wait $pid
	gone "$RUN"
	mt-ckpt verify "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")"
}

# bats test_tags=slow
@test "SIGTERM to all processes, twice, as timeout and supervisors send it, acts like SIGTERM to mt-run alone" {
	COMMAND="setsid mt-run" start --steps 50000
	stream=$(pgrep -f "^[^ ]*mt-stream $RUN ")
	echo "$stream" >>"$T/pids"
	kill -STOP "$stream"                # a step is open
	kill -TERM $pid
	kill -TERM -- -$pid
	sleep 0.3
	kill -CONT "$stream"
	exits 143 wait $pid
	if grep -E "has died|killed|not finished" "$T/run.err"; then return 1; fi
	gone "$RUN"
	mt-ckpt verify "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")"
}

# bats test_tags=slow
@test "a second, later signal abandons a hanging step; the trained steps are saved" {
	ARGS=$(with "$ARGS" --wait 60) start --steps 50000
	stream=$(pgrep -f "^[^ ]*mt-stream $RUN ")
	echo "$stream" >>"$T/pids"
	kill -STOP "$stream"
	kill -TERM $pid
	sleep 1.2
	kill -0 $pid
	kill -TERM $pid
	eventually grep -q "has died" "$T/run.err"
	kill -CONT "$stream"
	exits 143 wait $pid
	gone "$RUN"
	ls "$T/out" | grep -q '^step-0'
}

# bats test_tags=slow
@test "SIGTERM to all processes does not stop mt-run from writing the last checkpoint" {
	mkdir "$T/bin"
	ln -s "$MT"/mt-* "$T/bin"
	rm "$T/bin/mt-ckpt"
	cat >"$T/bin/mt-ckpt" <<-EOF2
		#!/bin/sh
		case \$1 in
		serve) while [ ! -e "$T/over" ]; do sleep 0.1; done; exit 0 ;;
		save) : >"$T/saving"; sleep 0.5 ;;
		esac
		exec "$MT/mt-ckpt" "\$@"
	EOF2
	chmod +x "$T/bin/mt-ckpt"
	COMMAND="setsid $T/bin/mt-run" start --steps 50000
	kill -TERM -- -$pid
	eventually [ -e "$T/saving" ]
	kill -TERM -- -$pid
	eventually gone "$RUN"
	: >"$T/over"
	exits 143 wait $pid
	mt-ckpt verify "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")"
}

# bats test_tags=slow
@test "Ctrl-C at a terminal reaches mt-step once, through mt-run: the step is finished" {
	env --default-signal=INT true 2>/dev/null || skip "needs env --default-signal"
	COMMAND="setsid env --default-signal=INT mt-run" start --steps 50000
	ignored=$(sed -n 's/SigIgn:[[:space:]]*//p' "/proc/$(pgrep -P $pid -f '^mt-step ')/status")
	[ $((0x$ignored & 2)) != 0 ]
	kill -INT -- -$pid
	exits 130 wait $pid
	if grep "mt-step.*has died" "$T/run.err"; then return 1; fi
	gone "$RUN"
	mt-ckpt verify "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")"
}

@test "a killed stage is reported and ends the run; the trained steps are saved" {
	start --steps 5000
	pkill -9 -f "^[^ ]*mt-stream $RUN "
	exits 69 wait $pid
	grep -q "mt-stream.0 was killed by signal 9" "$T/run.err"
	gone "$RUN"
	ls "$T/out" | grep -q '^step-0'
}

# bats test_tags=slow
@test "--restart restarts killed stages, and the metrics are those of an undisturbed run" {
	long_data
	DATA=$T/data run_it --steps 300 --dtype fp32
	timeless "$T/m" >"$T/whole"
	rm -r "$T/out" "$T/m"
	start --steps 300 --dtype fp32 --restart
	for stage in mt-stream mt-optim mt-step mt-stream; do
		pkill -9 -f "^[^ ]*$stage $RUN " || true
		sleep 0.05
	done
	wait $pid
	timeless "$T/m" | awk '!seen[$0]++' | cmp - "$T/whole"
	grep -q "was killed by signal 9" "$T/run.err"
	[ -f "$T/out/model/model.safetensors" ]
}

# bats test_tags=slow
@test "if saving fails the run is kept, and the last line tells how to save and remove it" {
	local out="$T/the user's out"
	mkdir -p "$out"
	OUT=$out start --steps 5000
	rm -r "$out" && touch "$out"
	kill -TERM $pid
	wait $pid || true
	rm "$out" && mkdir "$out"
	last=$(tail -1 "$T/run.err")
	[[ $last == *"mt-ckpt save $RUN "*" && mt-store rm $RUN --force" ]]
	eval "${last#*remove it: }"
	ls "$out" | grep -q '^step-0'
	gone "$RUN"
}

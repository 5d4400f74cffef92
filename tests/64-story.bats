#!/usr/bin/env bats
# What mt-run tells people on stderr, and OUT/command.
load helpers
load lib/mtrun

CASE=$GOLDEN/llama3
ARGS="--batch 4 --micro 2 --seq 32 --lr 1e-3 --threads 1 --wait 30 --dtype fp32"

run_it() {
	mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS "$@" \
		>"$T/m" 2>"$T/run.err" 3>&-
}
story() { sed -n 's/^mt-run: //p' "$T/run.err"; }

# Run a command on a separate terminal, in the background; its screen goes to $T/screen
on_terminal() {
	local words
	printf -v words ' %q' "$@"
	# shellcheck disable=SC2016
	script -qec "sh -c 'echo \$\$ >$T/pid; exec \"\$@\"' sh$words" /dev/null >"$T/screen" 2>&1 </dev/null 3>&- &
	screen=$!
	echo "$screen" >>"$T/pids"
	eventually [ -s "$T/pid" ]
	cat "$T/pid" >>"$T/pids"
}

@test "mt-run reports what it trains, and at the end steps, tokens, losses, the best evaluation, model and checkpoint" {
	run_it --steps 10 --eval "$CASE/eval.bin" --eval-every 3
	story >"$T/story"
	[ "$(wc -l <"$T/story")" = 5 ]
	sed -n 1p "$T/story" | grep -qxF \
		"trains llama, 25.8K parameters in fp32, from $CASE/model, on cpu; results go to $T/out"
	sed -n 2p "$T/story" |
		grep -qxF "steps 1 to 10, each of 4 rows of 32 tokens, of $CASE/data.bin, shuffled (seed 1)"
	sed -n 4p "$T/story" | grep -qF "the model is in $T/out/model; in Python: transformers.AutoModelForCausalLM.from_"
	sed -n 5p "$T/story" | grep -qxF "saved $T/out/step-00000010"
	python3 - "$T/m" "$(sed -n 3p "$T/story")" <<-'PY'
		import json, re, sys
		lines = [json.loads(line) for line in open(sys.argv[1])]
		steps = [line for line in lines if "loss" in line]
		best = min((line["eval_loss"], line["step"]) for line in lines if "eval_loss" in line)
		m = re.fullmatch(r"10 steps, ([\d.]+)K tokens in [\d.]+ s, [\d.]+K? tokens/s; loss ([\d.]+) to ([\d.]+); "
		    r"best eval loss ([\d.]+) at step (\d+)", sys.argv[2])
		assert m, sys.argv[2]
		assert m[1] == "%.2f" % (sum(line["processed"] for line in steps) / 1000)
		assert (m[2], m[3]) == ("%.4f" % steps[0]["loss"], "%.4f" % steps[-1]["loss"])
		assert (m[4], int(m[5])) == ("%.4f" % best[0], best[1])
	PY
}

@test "one step, one row and one epoch are written in the singular" {
	printf '\003\0\0\0\005\0\0\0\006\0\0\0\007\0\0\0' >"$T/data"
	set -- --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" \
		$(with "$ARGS" --batch 1 --micro 1 --seq 8) --epochs 1
	mt-run "$@" --dry-run >"$T/report"
	grep -q "^data      1 document, 3 tokens, 2 targets an epoch; the longest has 3 tokens; " "$T/report"
	grep -q "^speed .*, 1 step in " "$T/report"
	mt-run "$@" >"$T/m" 2>"$T/run.err" 3>&-
	story | grep -qx "steps 1 to 1 (1 epoch), each of 1 row of 8 tokens, of $T/data, shuffled (seed 1)"
	story | grep -q "^1 step, 3 tokens in "
}

@test "the losses reported at the end are means of the first and of the last twentieth of the steps" {
	for i in 1 2 3; do cat "$CASE/data.bin"; done >"$T/data"
	mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 45 \
		>"$T/m" 2>"$T/run.err" 3>&-
	python3 - "$T/m" "$(story | grep -o 'loss [0-9.]* to [0-9.]*')" <<-'PY'
		import json, sys
		losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
		assert len(losses) == 45, losses
		want = "loss %.4f to %.4f" % (sum(losses[:2]) / 2, sum(losses[-2:]) / 2)
		assert sys.argv[2] == want, (sys.argv[2], want)
	PY
}

# bats test_tags=slow
@test "--best exports the saved step of the lowest eval loss, also of an earlier part; the story says which step" {
	local best
	ARGS=$(with "$ARGS" --lr 1)         # a rate that rises until the loss does, too
	evaluated() { run_it --ckpt-every 2 --keep 1 --eval "$CASE/eval.bin" --eval-every 2 --warmup 16 "$@"; }
	is_model() { # STEP: of OUT/model
		local dir
		dir=$T/out/step-$(printf %08d "$1")
		diff -r -x 'optim-*' -x run.json "$dir" "$T/out/model"
	}
	evaluated --steps 16 --keep-best
	best=$(sed -n 's/.*best eval loss .* at step \([0-9]*\)$/\1/p' "$T/run.err")
	[ "$best" -gt 0 ]
	[ "$best" -lt 14 ]
	is_model 16
	story | grep -q "^the model is in .*; it is step 16, and step $best has a lower eval loss (--best exports that)$"
	rm -r "$T/out"
	evaluated --steps 16 --best --until 12
	is_model "$best"
	story | grep -q "; it is step $best, whose eval loss is the lowest of those that are saved$"
	evaluated --steps 16 --best --resume
	is_model "$best"
	story | grep -q "; it is step $best, whose eval loss is the lowest of those that are saved$"
	[ "$(story | tail -1)" = "saved $T/out/step-00000016" ]
	rm -r "$T/out"
	# steps that --stop-after saves count, and the last one may be the best
	evaluated --steps 16 --best --stop-after 2
	is_model "$best"
	rm -r "$T/out"
	evaluated --steps 16 --best --until "$best"
	is_model "$best"
	story | grep -q "; it is step $best$"
}

@test "--best without evaluations, with steps that are not compared, or with metrics that are no file exits 64" {
	local all="--eval $CASE/eval.bin --eval-every 2 --ckpt-every 4"
	mkfifo "$T/fifo"
	refused() { # WORDS OPTIONS...
		local words=$1
		shift
		fails_with 64 mt-run --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 8 --best "$@"
		grep -qF -- "$words" "$T/fails.err"
		[ ! -e "$T/out" ]
	}
	refused "--best needs --eval FILE and --eval-every N" --ckpt-every 4
	refused "--eval-every wants a number" --ckpt-every 4 --eval "$CASE/eval.bin"
	refused "--best needs --ckpt-every N, a multiple of --eval-every 2" --eval "$CASE/eval.bin" --eval-every 2
	refused "--best needs --ckpt-every N, a multiple of --eval-every 2" $(with "$all" --ckpt-every 5)
	refused "$T/fifo is no file, and --best and --keep-best read evaluations from it" $all --metrics "$T/fifo"
	run_it --steps 8 --best $all --dry-run
}

# bats test_tags=slow
@test "on a terminal, a last save that is reported before its step's evaluation is not reported again" {
	need_terminal
	for i in $(seq 250); do cat "$CASE/eval.bin"; done >"$T/eval"
	on_terminal mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 4 \
		--eval "$T/eval" --eval-every 4 --ckpt-every 4
	wait $screen || true
	[ "$(grep -c "saved $T/out/step-00000004" "$T/screen")" = 1 ]
}

@test "a resumed run tells its checkpoint and its own steps, also with --metrics FILE" {
	run_it --steps 6 --until 4 --metrics "$T/figures"
	story | grep -qxF "saved $T/out/step-00000004; continue with the same command and --resume, without --until"
	[ ! -e "$T/out/metrics.jsonl" ]
	run_it --steps 6 --resume --metrics "$T/figures"
	story | grep -q "^trains .*, from $T/out/step-00000004, on cpu"
	story | grep -q "^steps 5 to 6, each"
	story | grep -q "^2 steps, .* tokens/s; loss"
	story | grep -qxF "saved $T/out/step-00000006"
	[ "$(wc -l <"$T/figures")" = 6 ]
}

@test "--metrics may be a FIFO, a descriptor or /dev/null: they are only written, and the run reports the steps" {
	mkfifo "$T/fifo"
	spawn reader cat "$T/fifo"
	reader=$PID
	for to in "$T/fifo" /dev/stdout /dev/fd/2 /dev/null; do
		timeout 60 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" $ARGS --steps 3 \
			--metrics "$to" >"$T/m" 2>"$T/run.err" 3>&-
		story | grep -qx "3 steps"
		[ "$(story | tail -1)" = "saved $T/out/step-00000003" ]
		rm -r "$T/out"
	done
	eventually no kill -0 $reader
	[ "$(grep -c '"loss"' "$T/reader.out")" = 3 ]
}

@test "SIGINT: mt-run reports the last step, what it saved and how to continue" {
	COMMAND="setsid env --default-signal=INT mt-run" start --steps 50000
	kill -INT -- -$pid
	exits 130 wait $pid
	n=$(wc -l <"$T/m")
	story | grep -q "^stopped by SIGINT: $n steps, "
	[ "$(story | tail -1)" = "saved $T/out/step-$(printf %08d "$n"); continue with the same command and --resume" ]
	mt-ckpt verify "$T/out/step-$(printf %08d "$n")"
}

@test "OUT is deleted while mt-run trains: it tells how many steps were trained" {
	start --steps 50000
	rm -r "$T/out"
	kill -TERM $pid
	wait $pid || true
	story | grep -qx "stopped by SIGTERM: [0-9]* steps"
}

@test "a full disk keeps lines from the file of metrics: mt-run tells how many steps were trained, and exits 74" {
	mkdir "$T/disk"
	mount -t tmpfs -o size=64k tmpfs "$T/disk" 2>/dev/null || skip "needs the right to mount a small disk"
	head -c 60K /dev/zero >"$T/disk/full"
	long_data
	exits 74 mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 60 \
		--metrics "$T/disk/f" >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(wc -l <"$T/m")" = 60 ]
	story | grep -q "^ended by an error: 60 steps; the metrics have [1-5][0-9]: [0-9.]*K tokens in .*; loss "
	[ -f "$T/out/model/config.json" ]
}

# bats test_tags=slow
@test "a step whose line is written before and after its long evaluation is reported once" {
	for i in $(seq 1000); do printf '\004\0\0\0\001\0\0\0\002\0\0\0\003\0\0\0\004\0\0\0'; done >"$T/eval"
	for i in $(seq 5); do cat "$T/eval"; done >"$T/long"
	ARGS=$(with "$ARGS" --batch 2 --micro 1 --seq 8) run_it --steps 2 --eval "$T/long" --eval-every 2 --pack none
	[ "$(grep -c '"step": 2, "loss"' "$T/m")" = 2 ]
	story | grep -q "^2 steps, "
}

@test "a run that fails reports what was trained and saved; one that fails before its first step, only the error" {
	{ cat "$CASE/data.bin"; printf '\011\0\0\0\001\0\0\0'; } >"$T/data"
	exits 65 mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 500 --no-shuffle \
		>"$T/m" 2>"$T/run.err" 3>&-
	n=$(wc -l <"$T/m")
	story | grep -q "^ended by an error: $n steps, "
	[ "$(story | tail -1)" = "saved $T/out/step-$(printf %08d "$n"); continue with the same command and --resume" ]
	fails_with 65 mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/eval.bin" --out "$T/out" $ARGS --steps 500 \
		--resume
}

@test "--quiet tells nothing of a run that succeeds" {
	run_it --steps 3 --quiet
	[ -z "$(story)" ]
	[ "$(wc -l <"$T/m")" = 3 ]
}

@test "OUT/command has the command of each start as a line for a shell; a new training begins a new file" {
	local odd="$T/it's "'a $(dir)'
	on_odd() {
		mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$odd" $ARGS "$@" >"$T/m" \
			2>"$T/run.err" 3>&-
	}
	on_odd --steps 4 --until 2
	on_odd --steps 4 --until 3 --resume
	[ "$(wc -l <"$odd/command")" = 2 ]
	grep -qx "mt-run .* # 20..-..-.. ..:..:.. in $PWD" "$odd/command"
	mt-run() { printf '%s\n' "$@" >"$T/words"; }
	eval "$(tail -1 "$odd/command")"
	unset -f mt-run
	printf '%s\n' --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$odd" $ARGS --steps 4 --until 3 \
		--resume | cmp - "$T/words"
	eval "$(tail -1 "$odd/command" | sed 's/ --until 3//')" >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(sed 's/.*"step": \([0-9]*\).*/\1/' "$T/m")" = 4 ]
	rm -r "$odd"/step-*
	rm -r "$odd/model"
	on_odd --steps 1
	[ "$(wc -l <"$odd/command")" = 1 ]
}

# The words of the last command in OUT/command, a line each
last_command() { # OUT
	(
		mt-run() { printf '%s\n' "$@"; }
		eval "$(tail -1 "$1/command")"
	)
}

@test "--args FILE: an option a line, quoted or not, with comments; the command line wins over all that it excludes" {
	local odd="$T/a model's  # directory"
	cp -r "$CASE/model" "$odd"
	cp "$CASE/data.bin" "$T/data"
	cat >"$T/args" <<-END
		# all options
		--model "$odd"	# quoted
		--data ~/data
		  --out   $T/a  b # not quoted

		--batch=4 --micro 2 --seq 32 --run '$RUN' --threads 1 --wait 30 \\
		--lr 1e-3
		--shuffle 7
		--steps 9 --eval $CASE/eval.bin --eval-every 100
	END
	HOME=$T mt-run --steps 2 --args "$T/args" --no-shuffle >"$T/m" 2>"$T/run.err" 3>&-
	printf '%s\n' --model="$odd" --data="$T/data" --out="$T/a  b" --batch=4 --micro=2 --seq=32 --run="$RUN" \
		--threads=1 --wait=30 --lr=1e-3 --eval="$CASE/eval.bin" --eval-every=100 --steps 2 --no-shuffle |
		diff - <(last_command "$T/a  b")
	[ "$(cat "$T/a  b/order")" = none ]
}

@test "mt-run --args OUT/command repeats the last start, and its own OUT/command is such a file again" {
	local odd="$T/it's "'a $(dir)'
	run_it --steps 4 --until 2
	run_it --steps 4 --until 3 --resume
	mt-run --args="$T/out/command" --out "$odd" --until 1 >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(grep -c '"loss"' "$T/m")" = 1 ]
	grep -q "no checkpoint in $odd yet" "$T/run.err"
	mt-run --args "$odd/command" --until 4 >"$T/m" 2>"$T/run.err" 3>&-
	[ "$(grep -c '"loss"' "$T/m")" = 3 ]
	last_command "$odd" | grep -qxF -- --out="$odd"
}

@test "--args FILE that is missing, closed or a directory, or has lines that are no options, is refused by its line" {
	refused() { # CODE WORDS FORMAT: of the file
		printf -- "$3" >"$T/args"
		fails_with "$1" mt-run --args "$T/args" --data "$CASE/data.bin" --out "$T/out"
		grep -qF -- "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
		[ ! -e "$T/out" ]
	}
	fails_with 66 mt-run --args "$T/nothing"
	grep -qx "mt-run: --args: $T/nothing: no such file" "$T/fails.err"
	fails_with 64 mt-run --args "$T"
	fails_with 64 mt-run --args
	fails_with 64 mt-run --args=
	refused 64 "unknown option --bach (line 3 of $T/args); there is --batch; see --help" '# x\n\n--bach 4\n'
	refused 64 "--lr is given twice (line 2 of" '--lr 1e-3\n--lr 1e-4\n'
	refused 64 "--lr needs a value (line 1 of" '--lr\n'
	refused 64 "--resume takes no value (line 1 of" '--resume yes\n'
	refused 64 "line 2: --args is for the command line alone" '--lr 1\n--args other\n'
	refused 64 "line 1: --nodes is for the command line alone" '--nodes\n'
	refused 64 "line 1: a quote is not closed" "--model it's\n"
	refused 64 "line 1: unexpected operand 'b'; a value with blanks wants quotes" '--model "a" b\n'
	refused 64 "line 1: unexpected operand 'lr'" 'lr 1e-3\n'
	refused 65 "line 2: ends with CR LF" '--lr 1e-3\n--seq 32\r\n'
	refused 65 "line 1: has a NUL or another control character" '--lr 1e-3\0\n'
	refused 65 "line 1: has a NUL or another control character" '--model \033[31m\n'
	refused 64 "--score does not take --steps (line 2 of" '--score\n--steps 3\n'
	[ "$(id -u)" != 0 ] || return 0
	chmod 000 "$T/args"
	fails_with 77 mt-run --args "$T/args"
}

# bats test_tags=slow
@test "on a terminal, evaluations and saves are reported as they come, and metrics only with --metrics -" {
	need_terminal
	long_data
	for show in '' --metrics=-; do
		on_terminal mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 50000 \
			--eval "$CASE/eval.bin" --eval-every 5 --ckpt-every 5 $show
		eventually grep -q "mt-run: step 20: eval loss [0-9.]*" "$T/screen"
		eventually grep -q "mt-run: saved $T/out/step-[0-9]*.$" "$T/screen"
		kill -TERM "$(cat "$T/pid")"
		wait $screen || true
		grep -q "mt-run: stopped by SIGTERM" "$T/screen"
		gone "$RUN"
		grep -q '"loss"' "$T/out/metrics.jsonl"
		python3 - "$T/out/metrics.jsonl" "$T/screen" <<-'PY'
			import json, re, sys
			lines = [json.loads(line) for line in open(sys.argv[1])]
			losses = {line["step"]: "%.4f" % line["eval_loss"] for line in lines if "eval_loss" in line}
			told = re.findall(r"mt-run: step (\d+): eval loss ([\d.]+)\r", open(sys.argv[2], newline="").read())
			assert len(told) > 3 and all(losses[int(step)] == loss for step, loss in told), (told, losses)
		PY
		if [ -n "$show" ]; then grep -q '"loss"' "$T/screen"; else no grep '"loss"' "$T/screen"; fi
		rm -r "$T/out" "$T/pid"
	done
}

# bats test_tags=slow
@test "a terminal that closes: the closing words are in OUT/log, in their order, without control characters" {
	need_terminal
	long_data
	cat >"$T/close.py" <<-'END'
		import os, pty, sys, time
		pid, terminal = pty.fork()
		if not pid: os.execvp(sys.argv[2], sys.argv[2:])
		seen = b""
		while not (os.path.exists(sys.argv[1]) and len(open(sys.argv[1]).readlines()) > 20):
		    seen += os.read(terminal, 4096)
		assert b"\033[K" in seen, seen  # the progress line
		os.close(terminal)
		print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
	END
	[ "$(python3 "$T/close.py" "$T/out/metrics.jsonl" env --default-signal=HUP mt-run --run "$RUN" \
		--model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 50000)" = 1 ]
	gone "$RUN"
	cat "$T/out/log"
	[ "$(sed 's/[0-9].*//; s/ $//' "$T/out/log" | tail -n 2)" = \
		"$(printf '%s\n' 'mt-run: stopped by SIGHUP:' "mt-run: saved $T/out/step-" | sed 's/[0-9].*//')" ]
	grep -q "^mt-run: saved $T/out/step-.*; continue with the same command and --resume$" "$T/out/log"
	grep -q '^mt-run: trains llama' "$T/out/log"
	no grep -q "$(printf '[\001-\011\013-\037]')" "$T/out/log"
}

@test "OUT/log has the lines of stderr, in their order, also with --quiet; a new start goes on in it" {
	long_data
	local how
	for how in "" --quiet; do
		rm -rf "$T/out"
		mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 50000 $how \
			>"$T/m" 2>"$T/run.err" 3>&- &
		eventually grep -q '"step": 9' "$T/m"
		pkill -9 -f "^[^ ]*mt-stream $RUN "
		wait $! || true
		grep -q "mt-stream.0 was killed" "$T/run.err"
		cmp "$T/out/log" "$T/run.err"
	done
	cp "$T/run.err" "$T/first"
	mt-run --run "$RUN" --model "$CASE/model" --data "$T/data" --out "$T/out" $ARGS --steps 50000 --until 12 --resume \
		>"$T/m" 2>"$T/run.err" 3>&-
	cat "$T/first" "$T/run.err" | cmp - "$T/out/log"
}

@test "MT_LOG: at 1 MiB the log is renamed to FILE.old; a link or FIFO of that name is not opened" {
	export MT_LOG=$T/log
	fails_with 64 mt-step "$RUN" --steps 0
	cmp "$T/log" "$T/fails.err"
	head -c 1M /dev/zero >>"$T/log"
	fails_with 64 mt-step "$RUN" --steps 0
	cmp "$T/log" "$T/fails.err"
	[ "$(stat -c %s "$T/log.old")" -gt 1048576 ]
	rm "$T/log"
	echo precious >"$T/victim"
	ln -s "$T/victim" "$T/log"
	fails_with 64 mt-step "$RUN" --steps 0
	rm "$T/log"
	mkfifo "$T/log"
	fails_with 64 timeout 20 mt-step "$RUN" --steps 0
	[ "$(cat "$T/victim")" = precious ]
}

# The progress lines of mt-step and mt-score in terminals of several widths, which tmux emulates.
load helpers

CASE=$GOLDEN/llama3

# Start a command of sh in a terminal of that width; its stdin is the FIFO $T/in, which stays open through fd 9
terminal() { # COLUMNS COMMAND
	need_cmd tmux
	need_terminal
	mkfifo "$T/in"
	exec 9<>"$T/in"
	env -u TMUX LC_ALL=C.UTF-8 tmux -S "$T/tmux" -f /dev/null new-session -d -x "$1" -y 30 \
		"$2 <$T/in 9>&-; echo ended; exec sleep 1000" 3>&- 9>&-
	tmux -S "$T/tmux" display-message -p '#{pid}' >>"$T/pids"
}
resize() { tmux -S "$T/tmux" resize-window -x "$1"; }
# What the terminal shows, without empty rows; -J joins rows that it wrapped, -S - shows what has scrolled away as well
screen() { tmux -S "$T/tmux" capture-pane -p "$@" | sed 's/ *$//' | grep . || true; }
# The command has ended, and all that it wrote is shown
ended() { screen | tail -n 1 | grep -qx ended; }
# Wait until the terminal shows one row, which matches
one_row() {
	for _ in $(seq 600); do
		[ "$(screen | wc -l)" = 1 ] && screen | grep -Eqx "$1" && return 0
		sleep 0.05
	done
	echo "never the only row: $1"
	screen
	return 1
}
HOW="--batch 2 --seq 32 --lr 1e-3 --eval $CASE/eval.bin --eval-every 1"
NUMBER='[0-9.]+[kM]?' TIME='[0-9:]+'
FULL="loss $NUMBER  eval loss $NUMBER  $NUMBER tokens/s  $TIME left"

# bats test_tags=slow
@test "the progress line fills one row at 40, 80 and 200 columns, also when the terminal is resized" {
	ready
	terminal 200 "mt-step $RUN --steps 500 $HOW >$T/m"
	documents 8 >&9
	one_row "step 2/500  $FULL"
	resize 40
	one_row "step 2/500  loss $NUMBER  $TIME left"
	resize 25
	one_row "step 2/500  loss $NUMBER"
	resize 80
	one_row "step 2/500  $FULL"
	resize 40
	documents 2 >&9
	one_row "step 3/500  loss $NUMBER  $TIME left"
	resize 60
	one_row "step 3/500  loss $NUMBER  eval loss $NUMBER  $TIME left"
	resize 160
	one_row "step 3/500  $FULL"
	exec 9>&-
	eventually ended
	screen
	[ "$(screen | wc -l)" = 3 ]
	screen | head -n 1 | grep -Eqx 'mt-step: input ended at step 5 of 500: .*'
	screen | sed -n 2p | grep -Eqx "step 5/500  $FULL"
}

@test "with metrics on the same terminal each has a separate line, and the progress line is below them" {
	ready
	local width
	for width in 40 80 200; do
		rm -f "$T/in"
		terminal $width "mt-step $RUN --steps 500 --input new $HOW"
		documents 8 >&9
		exec 9>&-
		eventually ended
		screen -J -S - | grep -vx ended >"$T/screen"
		python3 - "$T/screen" $width <<-'PY'
			import json, re, sys
			lines = open(sys.argv[1]).read().splitlines()
			said = [line for line in lines if line[0] != "{"]
			steps = [json.loads(line)["step"] for line in lines if line[0] == "{"]
			assert len(steps) >= 4 and steps == list(range(steps[0], steps[0] + len(steps))), lines
			assert len(said) == 2 and said[0].startswith("mt-step: input ended at step"), lines
			assert re.fullmatch(rf"step {steps[-1]}/500  loss .*left", said[1]), said
			assert len(said[1]) < int(sys.argv[2]), said
		PY
		tmux -S "$T/tmux" kill-server
	done
}

# bats test_tags=slow
@test "a message of any program on the same terminal has a row without the progress line, and is not erased" {
	local program
	ready
	echo "mt-step $RUN --steps 500 $HOW <&8 >$T/m & while kill -0 \$! 2>/dev/null; do mt-feed --no; done" >"$T/all"
	for program in "$MT"/mt-*[!1]; do echo "printf 'step 1/5  loss 1.2345'; $program --no-such-option"; done >>"$T/all"
	terminal 200 "bash -c 'exec 8<&0; . $T/all'"
	for _ in $(seq 20); do
		documents 2 >&9
		sleep 0.05
	done
	exec 9>&-
	eventually ended
	screen -J -S - >"$T/screen"
	python3 - "$T/screen" "$MT" <<-'PY'
		import glob, os, re, sys
		rows = open(sys.argv[1]).read().splitlines()
		line = r"step \d+/500  loss [^ ]*  eval loss [^ ]*  [^ ]* tokens/s  [^ ]* left"
		for row in rows:
		    assert re.match(r"mt-[a-z]+: |(%s|ended)$" % line, row), row
		    assert len(re.findall(r"step \d+/|mt-[a-z]+: ", row)) <= 1 or "mt-step: input ended at step" in row, row
		for program in map(os.path.basename, glob.glob(sys.argv[2] + "/mt-*[!1]")):
		    n = sum(row.startswith(program + ": ") for row in rows)
		    assert n == 1 or program in ("mt-feed", "mt-step"), program
		assert sum(row.startswith("step 20/500  ") for row in rows) == 1, rows
	PY
}

@test "--count shows what it has read, and leaves only its result on the terminal" {
	terminal 80 "mt-step --count --batch 2 --seq 32"
	for _ in $(seq 600); do
		documents 1 >&9
		! screen | grep -Eqx "counted [0-9]+ documents  $NUMBER tokens" || break
		sleep 0.05
	done
	one_row "counted [0-9]+ documents  $NUMBER tokens"
	exec 9>&-
	eventually ended
	screen
	[ "$(screen -J | wc -l)" = 2 ]
	screen -J | head -n 1 | grep -q '^{"documents": .*}$'
}

# bats test_tags=slow
@test "mt-run --score shows on a terminal how many records are scored, and the time that is left, if it is known" {
	need_terminal
	local from n
	for n in $(seq 60); do cat "$CASE/data.bin"; done >"$T/data"
	n=$(mt-step --count --batch 1 --seq 64 <"$T/data" | value documents)
	for from in "$T/data" -; do
		python3 -c 'import pty, sys; sys.exit(pty.spawn(["sh", "-c", sys.argv[1]]) >> 8)' \
			"cat $T/data | mt-run --score --model $CASE/model --data $from --seq 64 --threads 1 >$T/lines" >"$T/rows"
		[ "$(wc -l <"$T/lines")" = "$n" ]
		tr '\r' '\n' <"$T/rows" | sed 's/\x1b\[K//g' | grep -x "scored .*" >"$T/shown"
		if [ "$from" = - ]; then no grep left "$T/shown"
		else grep -Eqx "scored [1-9][0-9]* records  $NUMBER tokens/s  $TIME left" "$T/shown"; fi
		tail -n 1 "$T/shown" | grep -Eqx "scored $n records  $NUMBER tokens/s(  0:00 left)?"
	done
	fails_with 64 mt-score "$RUN" --seq 64 --expect x <"$T/data"
}

@test "without a terminal there is no progress line" {
	ready
	mt-step "$RUN" --steps 3 $HOW <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	mt-step --count $HOW <"$CASE/data.bin" >"$T/m" 2>>"$T/err"
	no grep -q "left\|counted" "$T/err"
}

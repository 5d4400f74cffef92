# mt-plot draws the metrics of runs.
load helpers

line() { # STEP LOSS NORM LR SPEED [EVAL]
	printf '{"step": %s, "loss": %s, "grad_norm": %s, "lr": %s, "tokens": 64, "tokens_per_s": %s, "time_s": 1.0, ' \
		"$1" "$2" "$3" "$4" "$5"
	printf '"skipped": false%s}\n' "${6:+, \"eval_loss\": $6}"
}
metrics() { # FILE
	{
		echo '{"step": 0, "eval_loss": 5.5}'
		line 1 5.25 2 1e-05 64.5
		line 2 4 1.5 5e-06 70 4.5
		line 3 null null 0 null
	} >"$1"
}
values() { "$MT/mt-plot" --data "$@" | grep -v '^#'; }
row() { printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@"; }
is_png() { [ "$(head -c 8 "$1" | od -An -tx1 | tr -d ' ')" = 89504e470d0a1a0a ]; }
# The texts of an SVG, a line each; fails if it is not well-formed XML
texts() { "$PYTHON" -c 'import sys, xml.dom.minidom as m
for t in m.parse(sys.argv[1]).getElementsByTagName("text"):
    parts = [t, *t.getElementsByTagName("tspan")]
    print("".join(c.data for p in parts for c in p.childNodes if c.nodeType == 3).strip())
' "$1"; }
# mt-plot without gnuplot: all other programs are there
without_gnuplot() {
	local program
	mkdir -p "$T/path"
	for program in sh awk sort cat rm mktemp sed tr; do
		ln -sf "$(command -v $program)" "$T/path/$program"
	done
	PATH=$T/path "$@"
}

@test "--data prints a line a step: numbers as they are, NaN for null, - for what a line does not have" {
	mkdir "$T/out"
	metrics "$T/out/metrics.jsonl"
	{
		row 0 - 5.5 - - -
		row 1 5.25 - 2 1e-05 64.5
		row 2 4 4.5 1.5 5e-06 70
		row 3 NaN - NaN 0 NaN
	} >"$T/want"
	for how in "$T/out" "$T/out/" "$T/out/metrics.jsonl"; do
		values "$how" >"$T/got"
		diff "$T/want" "$T/got"
		[ "$("$MT/mt-plot" --data "$how" | head -n 1)" = "# out" ]
	done
	values - <"$T/out/metrics.jsonl" | diff "$T/want" -
}

@test "the last of several lines of a step counts, and steps are sorted" {
	{ line 10 4 1 1 1; line 9 3 1 1 1; line 10 5 1 1 1; line 2 6 1 1 1; line 9 2 1 1 1 7; } >"$T/m.jsonl"
	{ row 2 6 - 1 1 1; row 9 2 7 1 1 1; row 10 5 - 1 1 1; } >"$T/want"
	values "$T/m.jsonl" | diff "$T/want" -
}

@test "lines that are not metrics are left out and counted; a number that was cut off is not used" {
	metrics "$T/m.jsonl"
	"$MT/mt-plot" --data "$T/m.jsonl" >"$T/want"
	printf '%s\n' 'no JSON' '{"loss": 3}' '{"step": "x", "loss": 3}' >>"$T/m.jsonl"
	printf '{"step": 4, "loss": 2.1' >>"$T/m.jsonl"
	"$MT/mt-plot" --data "$T/m.jsonl" >"$T/got" 2>"$T/err"
	cmp "$T/want" "$T/got"
	[ "$(cat "$T/err")" = "mt-plot: $T/m.jsonl: 4 lines are not metrics, and are left out" ]
	{ line 1 4 1 1 1; echo 'no JSON'; } >"$T/m.jsonl"
	"$MT/mt-plot" --data "$T/m.jsonl" >"$T/got" 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-plot: $T/m.jsonl: 1 line is not metrics, and is left out" ]
}

@test "a step of more digits than a number holds is not metrics" {
	printf '{"step": %s, "loss": 2}\n' 1 999999999999999 1000000000000000 99999999999999999999999999999999 >"$T/huge"
	mt-plot --data "$T/huge" >"$T/o" 2>"$T/err"
	[ "$(grep -v '^#' "$T/o" | cut -f 1 | tr '\n' ' ')" = "1 999999999999999 " ]
	grep -q "2 lines are not metrics" "$T/err"
	sed -i 's/"step": 999999999999999,/"step": 2,/' "$T/huge"
	mt-plot --terminal "$T/huge" >"$T/o" 2>"$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
}

@test "--smooth N adds exponential moving averages of span N, corrected for the first steps" {
	for loss in 4 2 1e30 3 3 3; do echo "{\"step\": $((n += 1)), \"loss\": $loss}"; done >"$T/m.jsonl"
	values --smooth 3 "$T/m.jsonl" | cut -f 7 >"$T/got"
	python3 -c '
total = weight = 0
for x in (4, 2, 1e30, 3, 3, 3):
    total, weight = total / 2 + x / 2, weight / 2 + .5
    print("%.9g" % (total / weight))' | diff - "$T/got"
	values --smooth 1 "$T/m.jsonl" >"$T/one"
	values "$T/m.jsonl" | cmp - "$T/one"
}

@test "a noisy curve of 50 values or more is averaged by default, a smooth or a short one is not; --smooth 1: none is" {
	# of 60 steps: a loss that falls with noise, a norm that falls evenly but for one outlier, an even speed
	series() { # STEPS
		awk -v "steps=$1" 'BEGIN {
			for (i = 1; i <= steps; i++)
				printf "{\"step\": %d, \"loss\": %g, \"grad_norm\": %g, \"lr\": 1, \"tokens_per_s\": %g}\n", i,
					4 - i / 100 + (i * 7 % 5) / 10, i == 9 ? 1e30 : 5 - i / 20, 100
		}'
	}
	series 60 >"$T/noisy.jsonl"
	series 49 >"$T/short.jsonl"
	values "$T/noisy.jsonl" >"$T/got"
	values --smooth 3 "$T/noisy.jsonl" | cut -f 7 | cmp - <(cut -f 7 "$T/got")
	cut -f 4,6 "$T/got" | cmp - <(cut -f 8,9 "$T/got")
	[ "$(values "$T/short.jsonl" | head -n 1 | wc -w)" = 6 ]
	[ "$(values --smooth 1 "$T/noisy.jsonl" | head -n 1 | wc -w)" = 6 ]
	# beside a noisy run, the other has the columns, too
	values "$T/short.jsonl" "$T/noisy.jsonl" | head -n 1 >"$T/got"
	[ "$(wc -w <"$T/got")" = 9 ]
	cut -f 2 "$T/got" | cmp - <(cut -f 7 "$T/got")
	need_cmd gnuplot
	"$MT/mt-plot" -o "$T/p.svg" "$T/short.jsonl" "$T/noisy.jsonl"
	[ "$(grep -c "<path" "$T/p.svg")" -gt "$("$MT/mt-plot" --smooth 1 -o "$T/q.svg" "$T/short.jsonl" "$T/noisy.jsonl"
		grep -c "<path" "$T/q.svg")" ]
}

@test "--key NAME draws another key of the metrics in a panel of its own, with its average where it is noisy" {
	for ((i = 1; i <= 60; i++)); do
		printf '{"step": %d, "loss": 2, "wait": %s, "skipped": false}\n' $i $((i % 2 * i))
	done >"$T/m.jsonl"
	values --key wait --key absent --smooth 1 "$T/m.jsonl" | sed -n '6p;7p' >"$T/got"
	printf '%s\t2\t-\t-\t-\t-\t%s\t-\n' 6 0 7 7 | diff - "$T/got"
	"$MT/mt-plot" --data --key=wait "$T/m.jsonl" | sed -n '2p;5p' >"$T/got"
	tr '\t' ' ' <"$T/got" | grep -q " wait loss_average grad_norm_average tokens_per_s_average wait_average$"
	[ "$(tail -1 "$T/got" | wc -w)" = 11 ]
	for key in '' 'a b' 'a"' wait loss; do fails_with 64 mt-plot --data --key wait --key "$key" "$T/m.jsonl"; done
	need_cmd gnuplot
	"$MT/mt-plot" --key absent --key wait -o "$T/p.svg" "$T/m.jsonl"
	texts "$T/p.svg" >"$T/texts"
	for text in 'gradient norm' 'learning rate' tokens/s absent wait; do grep -qxF "$text" "$T/texts"; done
	[ "$(grep -c 'no values' "$T/texts")" = 4 ]
	COLUMNS=70 setsid "$MT/mt-plot" --terminal --key wait "$T/m.jsonl" >"$T/drawn"
	[ "$(grep -c 'step *$' "$T/drawn")" = 5 ]
}

@test "several runs are separated by two empty lines and named by their directories" {
	mkdir -p "$T/a" "$T/b"
	metrics "$T/a/metrics.jsonl"
	metrics "$T/b/metrics.jsonl"
	metrics "$T/c.jsonl"
	"$MT/mt-plot" --data "$T/a" "$T/b/metrics.jsonl" "$T/c.jsonl" >"$T/got"
	[ "$(grep '^# [a-c]$' "$T/got" | tr -d '\n')" = "# a# b# c" ]
	[ "$(grep -c '^$' "$T/got")" = 4 ]
}

@test "a PNG is drawn beside the metrics, 1600 x 1000 pixels; -o chooses the name and the format" {
	need_cmd gnuplot
	mkdir "$T/out"
	metrics "$T/out/metrics.jsonl"
	metrics "$T/other.jsonl"
	cd "$T"
	"$MT/mt-plot" out 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-plot: out/metrics.png is written" ]
	is_png out/metrics.png
	[ "$(od -An -tx1 -j 16 -N 8 out/metrics.png | tr -d ' ')" = 00000640000003e8 ]
	"$MT/mt-plot" other.jsonl
	is_png other.png
	"$MT/mt-plot" out other.jsonl --smooth 2 --log
	is_png mt-plot.png
	"$MT/mt-plot" --output=-x.svg out
	texts ./-x.svg >"$T/texts"
	for text in out 'eval loss' loss 'gradient norm' 'learning rate' tokens/s step; do
		grep -qxF -- "$text" "$T/texts" || { echo "no '$text'"; cat "$T/texts"; return 1; }
	done
	"$MT/mt-plot" -o - out | cat >"$T/stdout.png"
	is_png "$T/stdout.png"
	[ "$(ls -A)" = "$(printf '%s\n' -x.svg err metrics.png mt-plot.png other.jsonl other.png out pids stdout.png texts |
		grep -v '^metrics')" ]
}

@test "a name with quotes, backticks, dollars, markup and a line break is shown as it is, and nothing of it is run" {
	need_cmd gnuplot
	name="a'b\"c\`touch ran\`\$(touch ran)@d#e%f^{g}_<h>&amp;\\n
'; system('touch ran'); plot '"
	mkdir "$T/work"
	cd "$T/work"
	mkdir -p "x/$name"
	metrics "x/$name/metrics.jsonl"
	"$MT/mt-plot" "x/$name" "x/$name" --smooth 3 -o "$name.svg" 2>"$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
	[ ! -e ran ] && [ ! -e x/ran ]
	texts "$name.svg" >"$T/texts"
	[ "$(grep -cxF "$(printf %s "$name" | tr '\n' '?')" "$T/texts")" = 2 ]
	"$MT/mt-plot" --terminal "x/$name" >"$T/drawn"
	grep -qF '$(touch ran)@d#e%f^{g}_<h>' "$T/drawn"
	[ ! -e ran ]
}

@test "names that begin with a quote or have two in a row are shown as they are" {
	need_cmd gnuplot
	for name in "'a" "b''c" "''" "d'"; do
		metrics "$T/$name.jsonl"
		"$MT/mt-plot" -o "$T/p.svg" "$T/$name.jsonl"
		texts "$T/p.svg" | grep -qxF "$name"
		"$MT/mt-plot" -o "$T/p.svg" "$T/$name.jsonl" "$T/$name.jsonl"
		texts "$T/p.svg" | grep -qxF "$name"
	done
}

# bats test_tags=slow
@test "numbers above 1e300 are drawn as null, below 1e-300 as 0, with linear and logarithmic axes" {
	need_cmd gnuplot
	drawn() { # OPTIONS...
		timeout 60 "$MT/mt-plot" "$@" -o "$T/p.svg" "$T/m.jsonl"
		texts "$T/p.svg" | grep -qx 'learning rate'
	}
	for large in 1e308 1e+400 -1e308 1e301; do
		line 1 $large $large 1e-310 $large >"$T/m.jsonl"
		row 1 NaN - NaN 0 NaN | diff - <(values "$T/m.jsonl")
		for how in "" --log "--log --smooth 3"; do drawn $how; done
		line 2 1e-320 2 1 1 >>"$T/m.jsonl"
		for how in "" --log "--log --smooth 3"; do drawn $how; done
	done
	line 1 1e300 1e299 1 1 >"$T/m.jsonl"
	for how in "" --log; do drawn $how; done
}

# bats test_tags=slow
@test "metrics of one step, with only null values, or all zero are drawn; a panel without values says so" {
	need_cmd gnuplot
	line 7 null null 0 null >"$T/null.jsonl"
	line 7 0 0 0 0 >"$T/zero.jsonl"
	echo '{"step": 0, "eval_loss": 5.5}' >"$T/eval.jsonl"
	for file in null zero eval; do
		for how in "" --log "--smooth 4 --log"; do
			"$MT/mt-plot" $how -o "$T/p.svg" "$T/$file.jsonl" 2>"$T/err"
			[ "$(wc -l <"$T/err")" = 1 ]
			texts "$T/p.svg" >"$T/texts"
			case $file$how in
			null*) [ "$(grep -c 'no values' "$T/texts")" = 3 ] ;;
			zero) no grep 'no values' "$T/texts" ;;
			zero*) [ "$(grep -c 'no values' "$T/texts")" = 2 ] ;;
			eval*) [ "$(grep -c 'no values' "$T/texts")" = 3 ] ;;
			esac
		done
	done
}

@test "--terminal draws all four panels as wide as COLUMNS says, --sixel writes a sixel picture" {
	need_cmd gnuplot
	metrics "$T/m.jsonl"
	COLUMNS=70 setsid "$MT/mt-plot" --terminal "$T/m.jsonl" >"$T/drawn"
	[ "$(wc -L <"$T/drawn")" = 70 ]
	[ "$(grep -c 'step *$' "$T/drawn")" = 4 ]
	grep -q 'eval loss' "$T/drawn"
	"$MT/mt-plot" --sixel "$T/m.jsonl" >"$T/sixel"
	[ "$(head -c 2 "$T/sixel" | od -An -tx1 | tr -d ' ')" = 1b50 ]
}

@test "invalid options exit 64; missing, empty and foreign input exits 66 or 65; no file is written" {
	metrics "$T/m.jsonl"
	mkdir "$T/none"
	: >"$T/empty"
	echo hello >"$T/text"
	fails_with 64 mt-plot
	fails_with 64 mt-plot --what "$T/m.jsonl"
	fails_with 64 mt-plot "$T/m.jsonl" -o "$T/p.gif"
	fails_with 64 mt-plot "$T/m.jsonl" -o
	fails_with 64 mt-plot "$T/m.jsonl" --smooth 0
	fails_with 64 mt-plot "$T/m.jsonl" --smooth 2 --smooth 3
	fails_with 64 mt-plot "$T/m.jsonl" --data -o "$T/p.png"
	fails_with 64 mt-plot "$T/m.jsonl" --data --terminal
	fails_with 66 mt-plot --data "$T/nowhere"
	fails_with 66 mt-plot --data "$T/none"
	grep -q "has no metrics.jsonl: is it the OUT of an mt-run?" "$T/fails.err"
	mkfifo "$T/none/metrics.jsonl"
	fails_with 65 timeout 20 mt-plot --data "$T/none"
	grep -q "none/metrics.jsonl: not a regular file" "$T/fails.err"
	fails_with 65 mt-plot --data "$T/m.jsonl" "$T/empty"
	fails_with 65 mt-plot --data "$T/text"
	fails_with 65 mt-plot --data -
	fails_with 66 mt-plot --data "$(printf '%s/a\033[1m\302\2331m' "$T")"
	grep -qF '/a?[1m?1m: no such' "$T/fails.err"
	[ "$(find "$T" -name '*.png*')" = "" ]
}

@test "an output that cannot be written exits 74 and leaves nothing; one that is no file exits 73" {
	need_cmd gnuplot
	metrics "$T/m.jsonl"
	mkdir "$T/dir.png"
	fails_with 73 mt-plot -o "$T/dir.png" "$T/m.jsonl"
	fails_with 74 mt-plot -o "$T/nowhere/p.png" "$T/m.jsonl"
	[ -z "$(find "$T" -name '*.part.*')" ]
}

@test "without gnuplot mt-plot says what to install and exits 78; --data works" {
	metrics "$T/m.jsonl"
	fails_with 78 without_gnuplot "$MT/mt-plot" "$T/m.jsonl"
	grep -q "apt-get install gnuplot-nox" "$T/fails.err"
	without_gnuplot "$MT/mt-plot" --data "$T/m.jsonl" | cmp - <("$MT/mt-plot" --data "$T/m.jsonl")
}

@test "mt-plot that is killed while gnuplot draws has no temporary file" {
	metrics "$T/m.jsonl"
	mkdir "$T/tmp" "$T/slow"
	printf '#!/bin/sh\nls -A %s/tmp >%s/called\nsleep 60\n' "$T" "$T" >"$T/slow/gnuplot"
	chmod +x "$T/slow/gnuplot"
	PATH=$T/slow:$PATH TMPDIR=$T/tmp spawn plot "$MT/mt-plot" "$T/m.jsonl"
	eventually [ -e "$T/called" ]
	pgrep -P "$PID" >>"$T/pids"
	kill -9 "$PID"
	[ ! -s "$T/called" ]
	[ -z "$(ls -A "$T/tmp")" ]
}

@test "mt-plot leaves no temporary file, and passes shellcheck" {
	metrics "$T/m.jsonl"
	mkdir "$T/tmp"
	TMPDIR=$T/tmp "$MT/mt-plot" --data "$T/m.jsonl" >/dev/null
	TMPDIR=$T/tmp fails_with 65 mt-plot --data /dev/null
	[ -z "$(ls -A "$T/tmp")" ]
	need_cmd shellcheck
	shellcheck "$TOP/bin/mt-plot"
}

#!/usr/bin/env bats
# The form of the source: formatting, line lengths, which file may include which, names that were replaced.

load helpers

setup() {
	T=$BATS_TEST_TMPDIR
	: >"$T/pids"
	cd "$TOP" || return 1
	need_checkout
}

# Names of sources by git's patterns: files PATTERN...
files() { git ls-files -- "$@"; }

# The file must be empty; its lines are the faults: none FILE
none() {
	[ ! -s "$1" ] || { cat "$1" >&2; return 1; }
}

# bats test_tags=slow
@test "clang-format 14 changes no C, CUDA or C++ file" {
	for format in clang-format-14 clang-format; do ! $format --version 2>&1 | grep -q 'version 14\.' || break; done
	$format --version 2>&1 | grep -q 'version 14\.' || skip "needs clang-format 14"
	files '*.c' '*.h' '*.cu' '*.cc' | xargs $format --dry-run -Werror
}

# Everything that people write and read: sources, scripts, makefiles, READMEs, man pages, suites. Not: golden data,
# recorded results, the fuzzers' corpus, the licence; the changelog may name what was replaced; this file lists the old
# names.
written() {
	files . ':!tests/golden/*/*' ':!tests/golden/*.json' ':!tests/golden/*.txt' ':!tests/fuzz/corpus' ':!LICENSE' \
		':!*.png' ':!tests/gpu/results' ':!tests/bench/*.tsv' ':!.github/CHANGELOG.md' ':!tests/02-source.bats'
}

@test "no line that people write has more than 120 columns, except rows of tables in Markdown" {
	need_cmd python3
	written >"$T/files"
	echo tests/02-source.bats >>"$T/files"
	for kind in README.md Makefile bin/run/mt-run tests/run tests/helpers.bash tests/build.mk mt-stream/mt-stream.1 \
		tests/golden/make.py tests/11-config.bats shm/mt.h mt-stream/device/cuda/rows.cu; do
		grep -qx "$kind" "$T/files"
	done
	python3 - "$T/files" >"$T/long" <<-'PY'
		import sys
		for name in open(sys.argv[1]).read().split("\n")[:-1]:
		    with open(name, encoding="utf-8") as f:
		        for n, line in enumerate(f, 1):
		            if name.endswith(".md") and line.startswith("|"):
		                continue
		            width = len(line.rstrip("\n").expandtabs(4))
		            if width > 120:
		                print(f"{name}:{n}: {width} columns")
	PY
	none "$T/long"
}

@test "the table of suites in tests/README has a row for each suite" {
	(cd "$TOP" && ls tests/*.bats) | python3 -c 'import re, sys
rows = re.findall(r"^\| ([0-9][^|]*) \|", open(sys.argv[1]).read(), re.M)
spans = [[int(n) for n in span.split("–")] for row in rows for span in row.split(", ")]
suites = {int(name.split("/")[-1][:2]) for name in sys.stdin}
missing = [n for n in sorted(suites) if not any(span[0] <= n <= span[-1] for span in spans)]
assert spans and not missing, missing' "$TOP/tests/README.md"
}

@test "sections of a file begin with one form of line" {
	written | xargs -d '\n' grep -nE '^(/\*|#) -{5,}' >"$T/found" || true
	none "$T/found"
}

@test "no product file includes a file of tests/" {
	git grep -nE '^[[:space:]]*#[[:space:]]*include.*tests/' -- shm 'mt-*' bin >"$T/found" || true
	none "$T/found"
}

# bats test_tags=slow
@test "libmt includes no header of a program" {
	for header in $(files 'mt-*.h' | sed 's|.*/||' | sort -u); do
		git grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]+[\"<]([^\">]*/)?$header[\">]" -- shm || true
	done >"$T/found"
	none "$T/found"
}

@test "mt-stream's planner includes nothing of streams or of the cuda device" {
	git grep -nE '^[[:space:]]*#[[:space:]]*include.*(stream|schedule|cuda/[a-z-]*)\.h"' -- mt-stream/plan \
		>"$T/found" || true
	none "$T/found"
}

@test "mt-stream's top level has only the stream's own files; all others are in folders" {
	files mt-stream | grep -E '^mt-stream/[^/]+$' | grep -vE \
		'/((README|FAMILIES|LOSSES)\.md|build\.mk|mt-stream\.1|(balance|record|request|serve)\.c)$' |
		grep -vE '/(objective|stream|trace)\.[ch]$' >"$T/found" || true
	none "$T/found"
}

# Instructions of one CPU that are outside an #if of its architecture: foreign FILE...
foreign() {
	awk 'FNR == 1 { depth = 0 }
		/^[ \t]*#[ \t]*(el)?if/ {
			if ($0 !~ /#[ \t]*el/) depth++
			named[depth] = /__x86_64__|__aarch64__/
			inverted[depth] = /#[ \t]*ifndef|![ \t]*defined/
		}
		/^[ \t]*#[ \t]*else/ { inverted[depth] = !inverted[depth] }
		/^[ \t]*#[ \t]*endif/ { depth-- }
		/(immintrin|x86intrin|cpuid|arm_neon)\.h|(^|[^A-Za-z0-9_])(_mm(256|512)?_|__m(128|256|512)|__asm__|asm )/ ||
		/__builtin_(cpu|ia32)_/ {
			for (i = depth; i > 0; i--) if (named[i] && !inverted[i]) next
			print FILENAME ":" FNR ": " $0
		}' "$@"
}

@test "no *.c has intrinsics, assembler or questions to an x86 CPU outside an #if of that architecture" {
	printf '%s\n' '#if defined __x86_64__' '#include <immintrin.h>' '#else' '__builtin_cpu_init();' '#endif' \
		'#ifndef __x86_64__' 'x = _mm_setzero_ps();' '#else' 'y = _mm_setzero_ps();' '#endif' '__asm__("nop");' \
		>"$T/try.c"
	[ "$(foreign "$T/try.c" | sed 's/.*:\([0-9]*\):.*/\1/' | xargs)" = "4 7 11" ]
	mapfile -t all < <(files '*.c')
	grep -q __builtin_cpu_supports "${all[@]}"
	foreign "${all[@]}" >"$T/found"
	none "$T/found"
}

# One extended regular expression a line: the old names and phrases, in forms that cannot be right. (lane is right for
# SIMD, engine for a GPU's copy engine, "said" in a sentence, --blows and --lanes as old names of options.) The last
# one: a number of families or suites is wrong as soon as one is added.
old_names() {
	cat <<-'END'
		\bMT_GATHER\b
		MT_DOING|mt_doing|[.>]doing\b
		\bmt_try_next\b|\bMT_TRY\b|\btry_next\b
		\bthe house\b
		\b(x|o)_host\b|\bspill_|\bLEVEL_[A-Z]
		computed again|block_again
		\bmt_lanes?\b|\blane_(run|main)\b|\bstruct lane\b
		\bstruct (ask|planned|choice)\b|\bhow_asked\b
		\b[Ss]ettle|\b[Ss]ettling\b
		\b[Rr]ehears
		\b[Rr]un[ -]record\b
		\b[Hh]auls?\b|\bhaul_
		\bengine_(open|close|run|need|packs|name|find)\b|\bstruct engine\b|\bengine\.[ch]\b
		\bemulated engine\b|engines? of attention|engines? and their versions
		\btrial\b|\btrials\b|_trial\b
		\b([Mm]uster|[Dd]esert)(s|ed|er|ing)?\b|\b[Cc]rews?\b
		\b(told|said)\(|[.>](told|said)\b|\b(bool|char|int|long|def) \*?(told|said)\b|_said\b
		(^|[^-])\b[Bb]lows?\b
		\b[Ff]reedoms?\b
		\b[Ll]earnt\b
		->views\b|\bbool views\b
		all else that computes|waits for the bus
		what cannot be asked for
		(policy|[Rr]ows|records) that (is|are) none
		is one too many
		may carry it again
		the way that they went
		learning rate at its highest|gradient norm at most
		successor comes when
		\brubbish\b
		\b(is|are|was|were) told\b
		for an answer with\b
		terms of the loss that routers
		\b[0-9]+ (golden |small |model )?(families|models|suites|classes)\b
	END
}

@test "names and phrases that were replaced do not come back" {
	old_names >"$T/old"
	written >"$T/files"
	while read -r old; do
		exits 1 grep -E -e "$old" /dev/null # an expression that grep accepts
		xargs grep -nIE -e "$old" <"$T/files" || true
	done <"$T/old" >"$T/found"
	# file names, too
	grep -E 'engine|trial|haul|freedom|rehears|settle' "$T/files" >>"$T/found" || true
	none "$T/found"
}

@test "what a test that fails has started ends with it: bats waits for whoever has its output open" {
	printf '%s\n' 'load helpers' '@test "fails" {' 'sleep 1000 &' 'sleep 1000 3>&- &' 'spawn stopped sleep 1000' \
		'kill -STOP "$PID"' 'false' '}' >"$T/fails.bats"
	ln -s "$TOP/tests/helpers.bash" "$T/helpers.bash"
	exits 1 timeout 60 bats "$T/fails.bats"
	# every probe's children end with it
	no git -C "$TOP" grep -lE '[^_]fork\(\)' -- 'tests/probes/*.c'
}

@test "a suite of which bats runs a part has failed" {
	printf '%s\n' '@test "one" {' 'true' '}' '@test "two" {' 'kill -9 $PPID' 'sleep 1' '}' >"$T/part.bats"
	exits 1 "$TOP/tests/run" "$T/part.bats" >"$T/out"
	cat "$T/out"
	grep -q "^not ok $T/part.bats ended after [01] of 2 tests, bats with " "$T/out"
}

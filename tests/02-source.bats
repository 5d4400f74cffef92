#!/usr/bin/env bats
# The form of the source: formatting, line lengths, what may include what, names that were replaced.

load helpers

setup() {
	T=$BATS_TEST_TMPDIR
	: >"$T/pids"
	cd "$TOP" || return 1
	git ls-files --error-unmatch Makefile >/dev/null 2>&1 || skip "not a git checkout"
}

# Names of sources by git's patterns: files PATTERN...
files() { git ls-files -- "$@"; }

# The file must be empty; its lines are the faults: none FILE
none() {
	[ ! -s "$1" ] || { cat "$1" >&2; return 1; }
}

@test "clang-format 14 changes no C, CUDA or C++ file" {
	need_cmd clang-format
	clang-format --version | grep -q 'version 14\.' || skip "needs clang-format 14"
	files '*.c' '*.h' '*.cu' '*.cc' | xargs clang-format --dry-run -Werror
}

@test "no line of C, CUDA, Python, test suites or test scripts has more than 120 columns" {
	need_cmd python3
	files '*.c' '*.cu' '*.cc' '*.py' 'mt-*.h' 'tests/*.h' 'tests/*.bats' 'tests/*/run' tests/gpu/bench tests/gpu/check \
		tests/gpu/deps tests/gpu/first tests/gpu/headers tests/gpu/mutate tests/gpu/sass tests/gpu/trace >"$T/files"
	[ "$(wc -l <"$T/files")" -gt 200 ]
	python3 - "$T/files" >"$T/long" <<-'PY'
		import sys
		for name in open(sys.argv[1]).read().split("\n")[:-1]:
		    with open(name, encoding="utf-8") as f:
		        for n, line in enumerate(f, 1):
		            width = len(line.rstrip("\n").expandtabs(4))
		            if width > 120:
		                print(f"{name}:{n}: {width} columns")
	PY
	none "$T/long"
}

@test "no product file includes a file of tests/" {
	git grep -nE '^[[:space:]]*#[[:space:]]*include.*tests/' -- shm 'mt-*' bin >"$T/found" || true
	none "$T/found"
}

@test "libmt includes no header of a program" {
	for header in $(files 'mt-*.h' | sed 's|.*/||' | sort -u); do
		git grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]+[\"<]([^\">]*/)?$header[\">]" -- shm || true
	done >"$T/found"
	none "$T/found"
}

@test "mt-stream's top level has only the driver's files; all others are in plan/, cpu/ and cuda/" {
	files mt-stream | grep -E '^mt-stream/[^/]+$' | grep -vE \
		'/(README\.md|build\.mk|mt-stream\.1|(stream|serve|wait|schedule|template|trace)\.[ch]|device\.h|ops\.h)$' \
		>"$T/found" || true
	none "$T/found"
}

# The changelog may name what was replaced.
@test "names and phrases that were replaced do not come back" {
	for old in '\bMT_GATHER\b' '\bMT_DOING' '\bmt_try_next\b' 'freedom that its events' '\bthe house\b' \
		'the way that they went' 'NUMA policy that is none' 'what cannot be asked for'; do
		git grep -nIE "$old" -- . ':!.github/CHANGELOG.md' ':!tests/02-source.bats' || true
	done >"$T/found"
	git grep -nI 'learnt' -- tests shm '*.c' '*.h' '*.cu' ':!tests/02-source.bats' >>"$T/found" || true
	none "$T/found"
}

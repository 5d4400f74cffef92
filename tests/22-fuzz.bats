#!/usr/bin/env bats
# Fuzz every parser and every reader of shared memory for a second each. `make fuzz SECONDS=600` runs longer;
# tests/fuzz/TARGET.c describes each target.
# bats file_tags=slow

load helpers

# bats test_tags=slow
@test "fuzzing each parser and ring reader for a second finds no crash, hang or out-of-bounds read" {
	targets=$(ls "$TOP/tests/fuzz/corpus")
	for t in $targets; do [ -x "$BUILD/fuzz/$t" ] || skip "needs the targets: make fuzzers"; done
	BUILD=$BUILD "$TOP/tests/fuzz/run" 1 $targets >"$T/out"
	[ "$(wc -l <"$T/out")" = "$(echo "$targets" | wc -l)" ]
}

@test "a fuzz target that crashes fails the run and keeps the input" {
	mkdir -p "$T/build/fuzz"
	printf '#!/bin/sh\nexit 77\n' >"$T/build/fuzz/option"
	chmod +x "$T/build/fuzz/option"
	BUILD=$T/build exits 1 "$TOP/tests/fuzz/run" 1 option 2>"$T/err"
	grep -q "option: failed" "$T/err"
}

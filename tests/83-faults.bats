#!/usr/bin/env bats
# Every allocation and system call of a command fails in turn, once and from then on; the power is cut at every moment
# of a save. tests/fault/README.md says how. MT_FAULT_EVERY=N takes every Nth call only; MT_FAULT_SECONDS=N gives each
# stage N seconds.
# bats file_tags=slow
load helpers

faults() {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/faults.py" --every "${MT_FAULT_EVERY:-1}" "$@"
}

@test "create: each failing call ends it with one line and no file left, or it succeeds" { faults create; }
@test "init: each failing call ends it with one line and no mixture of weights, or it succeeds" { faults init; }
@test "load: each failing call ends it with one line and no mixture of weights, or it succeeds" { faults load; }
@test "save: each failing call ends it with one line and no directory, or the checkpoint is complete" { faults save; }
@test "export: each failing call ends it with one line and no directory, or the export is complete" { faults export; }
@test "export --replace: each failing call leaves the old export or the complete new one" { faults replace; }
@test "verify: each failing call ends it with one line" { faults verify; }
@test "create, load, save and export killed before each call succeed when they are run again" { faults kill; }

# The first failures of mt-stream are always the same ones: all files, mappings and threads; the others are drawn
stages() {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/stages.py" --seconds "${MT_FAULT_SECONDS:-1}" "$@"
}
@test "mt-feed, mt-step, mt-optim: each failing call of a start and a step ends them with one line, or is survived" {
	stages feed step optim
}
@test "mt-stream: each failing open, mmap or thread, also of its BLAS, ends it with one line, or is survived" {
	stages stream
}

@test "10,000 power cuts with reordered writes: a complete checkpoint of the last reported step is always there" {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/powercut.py" --states 10000
}

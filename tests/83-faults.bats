#!/usr/bin/env bats
# Each allocation and system call of a command fails in turn, once or from then on; the power is cut at every moment of
# a save. tests/fault/README.md describes how. Of a command's calls every tenth fails, from a random one on (nightly:
# every call). Scripts print the seed of what they draw. MT_FAULT_SECONDS=N tests each stage for N seconds.
# bats file_tags=slow
load helpers

faults() {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/faults.py" --every "$([ "$NIGHTLY" ] && echo 1 || echo 10)" "$@"
}

@test "create with any failing call exits with one line and leaves no files, or succeeds" { faults create; }
@test "init with any failing call exits with one line and no mixture of weights, or succeeds" { faults init; }
@test "load with any failing call exits with one line and no mixture of weights, or succeeds" { faults load; }
@test "save with any failing call exits with one line and no directory, or writes a complete checkpoint" {
	faults save
}
@test "export with any failing call exits with one line and no directory, or writes a complete export" {
	faults export
}
@test "export --replace with any failing call leaves the old export or the complete new one" { faults replace; }
@test "verify with any failing call exits with one line" { faults verify; }
@test "create, load, save and export killed before each call succeed when they run again" { faults kill; }
# bats test_tags=nightly
@test "int8 state: save, load and verify with any failing call exit with one line, or do all of their work" {
	faults --state int8 save load verify
}

# The first failures of mt-stream are always the same: all files, mappings and threads; further ones are random
stages() {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/stages.py" --seconds "${MT_FAULT_SECONDS:-1}" "$@"
}
@test "mt-feed, mt-step, mt-optim: each failing call of a start and a step ends them with one line, or is survived" {
	stages feed step optim
}
@test "mt-stream: each failing open, mmap or thread, also in its BLAS, ends it with one line, or is survived" {
	stages stream
}

@test "10,000 power cuts with reordered writes always leave a complete checkpoint of the last reported step" {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/powercut.py" --states 10000
}
@test "a run with a tier: 3,000 power cuts with reordered writes leave a complete checkpoint, whose tiles are links" {
	need_tier
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/powercut.py" --states 3000 --tier
}
@test "int8 state: 3,000 power cuts with reordered writes leave a complete checkpoint of the last reported step" {
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/fault/powercut.py" --states 3000 --state int8
}

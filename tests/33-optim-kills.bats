#!/usr/bin/env bats
# mt-optim: an update that is killed, at random or at any instruction, is finished with the same bits.
# bats file_tags=slow

load helpers

fake() { optim-fake "$1" "$RUN" "${@:2}"; }

# A program killed at random for 3 s (nightly: 20) and restarted ends with the state of an undisturbed run
killed() { # KEY=VALUE...
	local want
	want=$(fake train steps=30 "$@" | tail -n 1)
	fake train steps=30 aborts=1 kill="$([ "$NIGHTLY" ] && echo 20 || echo 3)" "seed=$RANDOM" "$@" >"$T/killed"
	cat "$T/killed"
	grep -q ' kills' "$T/killed"
	[ "$(tail -n 1 "$T/killed")" = "$want" ]
}

# A program killed at any instruction of the update is finished by another with the same bits:
# resumes [none] [bf16|int8] [lion|sgd]
resumes() {
	run optim-journal "$RUN" "$@"
	echo "$output"
	[ "$status" != 77 ] || skip "not for this CPU"
	[ "$status" = 0 ]
}

@test "an update killed at random and resumed by other threads and instruction sets ends with the same bits" {
	killed
	killed dtype=fp32 tied=1
	killed ple=1 tied=1
	killed state=bf16
	killed state=int8
	killed optim=lion state=bf16
	killed optim=sgd state=int8
}

@test "--grad none: an update killed at random ends with the same bits" {
	killed grad=none
}

@test "--update early: an update killed at random, before and after commits, ends with the same bits" {
	local how want
	for how in "" "state=int8 grad=bf16 tied=1"; do
		want=$(fake train steps=30 clips=0 $how | tail -n 1)
		fake train steps=30 aborts=1 kill="$([ "$NIGHTLY" ] && echo 20 || echo 3)" "seed=$RANDOM" \
			clips=0 early=1 backward=1 $how >"$T/killed"
		cat "$T/killed"
		grep -q ' kills' "$T/killed"
		[ "$(tail -n 1 "$T/killed")" = "$want" ]
	done
}

@test "--update early: an update killed at any instruction is finished with the same bits, w over g of each size" {
	resumes early
	resumes early16
	resumes early16 int8
}

@test "--update early, other state and rules: an update killed at any instruction is finished with the same bits" {
	resumes early bf16
	resumes early int8
	resumes early lion
	resumes early16 sgd bf16
}

@test "an update killed at any instruction is finished with the same bits" {
	resumes
}

@test "bf16 state: an update killed at any instruction is finished with the same bits" {
	resumes bf16
}

@test "int8 state: an update killed at any instruction is finished with the same bits, scales too" {
	resumes int8
}

@test "--grad none: an update killed at any instruction is finished with the same bits" {
	resumes none
}

@test "--grad none, bf16 and int8 state: an update killed at any instruction is finished with the same bits" {
	resumes none bf16
	resumes none int8
}

@test "lion: an update killed at any instruction is finished with the same bits, with every type of state" {
	resumes lion
	resumes lion bf16
	resumes lion int8
	resumes lion none
}

@test "sgd: an update killed at any instruction is finished with the same bits, with every type of state" {
	resumes sgd
	resumes sgd bf16
	resumes sgd int8
	resumes sgd none
}

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
# resumes [none|early|early16] [bf16|int8] [lion|sgd] [tier=DIR]
resumes() {
	native "single steps"
	run optim-journal "$RUN" "$@"
	echo "$output"
	[ "$status" != 77 ] || skip "needs an x86-64 CPU: single steps"
	[ "$status" = 0 ]
}

# Of these kinds one by chance, since single steps take long; nightly all of them
drawn() { # KIND...
	local kinds=("$@") kind
	[ "$NIGHTLY" ] || kinds=("${kinds[RANDOM % $#]}")
	# shellcheck disable=SC2086
	for kind in "${kinds[@]}"; do resumes $kind ${DISK:+tier="$DISK"}; done
}

@test "an update killed at random and resumed by other threads and instruction sets ends with the same bits" {
	local how
	for how in $(some 3 steps=30 dtype=fp32,tied=1 ple=1,tied=1 state=bf16 state=int8 optim=lion,state=bf16 \
		optim=sgd,state=int8); do
		killed ${how//,/ }
	done
}

@test "--grad none: an update killed at random ends with the same bits" {
	killed grad=none
}

# bats test_tags=nightly
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

# bats test_tags=nightly
@test "--update early: an update killed at any instruction is finished with the same bits, w over g of each size" {
	drawn early early16 "early16 int8"
}

# bats test_tags=nightly
@test "--update early, other state and rules: an update killed at any instruction is finished with the same bits" {
	drawn "early bf16" "early int8" "early lion" "early16 sgd bf16"
}

@test "an update killed at any instruction is finished with the same bits" {
	resumes
}

# bats test_tags=nightly
@test "bf16 state: an update killed at any instruction is finished with the same bits" {
	resumes bf16
}

# bats test_tags=nightly
@test "int8 state: an update killed at any instruction is finished with the same bits, scales too" {
	resumes int8
}

# bats test_tags=nightly
@test "--grad none: an update killed at any instruction is finished with the same bits" {
	resumes none
}

# bats test_tags=nightly
@test "--grad none, bf16 and int8 state: an update killed at any instruction is finished with the same bits" {
	drawn "none bf16" "none int8"
}

# bats test_tags=nightly
@test "lion: an update killed at any instruction is finished with the same bits, with every type of state" {
	drawn lion "lion bf16" "lion int8" "lion none"
}

# bats test_tags=nightly
@test "sgd: an update killed at any instruction is finished with the same bits, with every type of state" {
	drawn sgd "sgd bf16" "sgd int8" "sgd none"
}

# As `killed`, with the run on a tier, which is killed, too; the undisturbed run has none
killed_on_tier() { # KEY=VALUE...
	local want
	want=$(fake train steps=30 "$@" | tail -n 1)
	fake train steps=30 aborts=1 kill="$([ "$NIGHTLY" ] && echo 20 || echo 3)" "seed=$RANDOM" tier="$DISK" "$@" \
		>"$T/killed"
	cat "$T/killed"
	grep -q ' kills of the tier' "$T/killed"
	[ "$(tail -n 1 "$T/killed")" = "$want" ]
}

@test "a tier: an update and mt-tier killed at random end with the bits of a run without a tier" {
	local how
	need_tier
	for how in $(some 2 slots=2 slots=3,state=int8,tied=1,ple=1 slots=2,dtype=fp32,memory=2000000,optim=lion \
		slots=2,grad=none,backward=1,streams=1 slots=4,grad=none,backward=1,streams=2,twice=1,state=bf16 \
		slots=2,early=1,backward=1,clips=0 slots=3,early=1,clips=0,state=int8,grad=bf16); do
		killed_on_tier ${how//,/ }
	done
}

# bats test_tags=nightly
@test "a tier: an update killed at any instruction is finished with the same bits, in slots that have other tiles" {
	need_tier
	drawn "" int8 "lion bf16"
}

# bats test_tags=nightly
@test "a tier, --grad none: an update killed at any instruction is finished with the same bits" {
	need_tier
	drawn none "none int8"
}

# bats test_tags=nightly
@test "a tier, --update early: an update killed at any instruction is finished with the same bits" {
	need_tier
	drawn early "early16 int8"
}

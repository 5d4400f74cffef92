#!/usr/bin/env bats
# mt-optim: the update's arithmetic, its order, its decisions, and that it survives any kill bit for bit.

load helpers

fake() { optim-fake "$1" "$RUN" "${@:2}"; }

# the end state's hash, for which everything but the arithmetic is varied
same_hash() { # KEY=VALUE...: what the state depends on
	local want got
	want=$(fake train threads=1 streams=1 "$@")
	[ -n "$want" ]
	got=$(fake train threads=2 streams=2 seed=3 "$@")
	[ "$got" = "$want" ]
	got=$(fake train threads=3 streams=5 seed=4 aborts=1 "$@")
	[ "$got" = "$want" ]
}

# what is killed at random and started again ends where an undisturbed run ends
killed() { # KEY=VALUE...
	local want
	want=$(fake train steps=30 "$@" | tail -n 1)
	fake train steps=30 aborts=1 kill=10 "seed=$RANDOM" "$@" >"$T/killed"
	cat "$T/killed"
	grep -q ' kills' "$T/killed"
	[ "$(tail -n 1 "$T/killed")" = "$want" ]
}

@test "the fast updates give the bits of the scalar one, and that is PyTorch's AdamW" {
	optim-adamw
	MT_ISA=scalar optim-adamw sums
}

# bats test_tags=slow
@test "a master weight's two halves are exact for every one of 2^32 patterns" {
	hilo
}

# bats test_tags=slow
@test "bf16 weights, fp32 gradients: the state is that of the plain computation, however the gradients come" {
	same_hash
}

# bats test_tags=slow
@test "fp32 weights: the state is that of the plain computation, however the gradients come" {
	same_hash dtype=fp32
}

# bats test_tags=slow
@test "bf16 gradients are added in fp32 and rounded once a micro-batch" {
	same_hash grad=bf16
}

# bats test_tags=slow
@test "tied embeddings: both ends are added, however the gradients come" {
	same_hash tied=1
	same_hash tied=1 grad=bf16 dtype=fp32
}

@test "--grad none: the state is that of the plain computation, whatever the pieces" {
	same_hash grad=none
}

# bats test_tags=slow
@test "--grad none: a piece that is sent twice is applied once" {
	local want got
	want=$(fake train grad=none streams=1)
	for seed in 2 3 4; do
		got=$(fake train grad=none streams=1 twice=1 seed=$seed)
		[ "$got" = "$want" ]
	done
	fake train grad=none twice=1 kill=2 seed="$RANDOM" >"$T/killed"
}

@test "--grad none: a piece that leaves out the one before it ends mt-optim with 70, and the store is dirty" {
	fake hole
}

# bats test_tags=slow
@test "an update that is killed at random and resumed by other threads and instruction sets ends with the same bits" {
	killed
	killed dtype=fp32 tied=1
}

# bats test_tags=slow
@test "--grad none: killed at random, the same bits" {
	killed grad=none
}

# bats test_tags=slow
@test "an update that is killed at any instruction is finished with the same bits" {
	run optim-journal "$RUN"
	echo "$output"
	[ "$status" != 77 ] || skip "no ptrace here"
	[ "$status" = 0 ]
}

# bats test_tags=slow
@test "--grad none: killed at any instruction, the same bits" {
	run optim-journal "$RUN" none
	echo "$output"
	[ "$status" != 77 ] || skip "no ptrace here"
	[ "$status" = 0 ]
}

@test "a pinned unit is not overwritten, a sealed save is waited for, a dead saver's save fails" {
	fake save
}

@test "a message that lies about itself ends mt-optim with 70 and one line, and changes nothing" {
	fake bad
	fake bad tied=1 grad=bf16
}

@test "--grad none: an mt-stream that dies after the commit leaves a dirty store, and that is said" {
	fake dead-stream
}

@test "--grad none: a gradient that is not finite leaves a dirty store, and that is said" {
	fake nan-gradient
}

@test "mt-optim refuses options that it does not know and an instruction set that there is not" {
	fails_with 64 mt-optim "$RUN" --lanes 3
	MT_ISA=mmx fails_with 64 mt-optim "$RUN"
	fails_with 64 mt-optim 'no/name'
}

@test "a second mt-optim on a run is refused with 75, and SIGTERM ends the first with 0" {
	mt-store create "$RUN" --config "$CONFIGS/demo.json" >/dev/null
	mt-store init "$RUN" --seed 1 >/dev/null
	spawn optim mt-optim "$RUN"
	local first=$PID
	working() { mt-store stat "$RUN" | grep -q 'mt-optim'; }
	eventually working
	fails_with 75 mt-optim "$RUN"
	kill "$first"
	wait "$first"
}

@test "mt-optim waits for a run that is not there yet, and leaves with 0 when told to" {
	spawn optim mt-optim "$RUN"
	sleep 0.2
	kill "$PID"
	wait "$PID"
}

@test "mt-optim leaves with 0 when its run is gone" {
	mt-store create "$RUN" --config "$CONFIGS/demo.json" >/dev/null
	mt-store init "$RUN" --seed 1 >/dev/null
	spawn optim mt-optim "$RUN"
	working() { mt-store stat "$RUN" | grep -q 'mt-optim'; }
	eventually working
	mt-store rm "$RUN" --force
	wait "$PID"
}

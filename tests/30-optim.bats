#!/usr/bin/env bats
# mt-optim: the update's arithmetic, order and decisions. tests/33-optim-kills.bats has kills of it.

load helpers

fake() { optim-fake "$1" "$RUN" "${@:2}"; }

# The final state has this hash for every order, thread count and instruction set
same_hash() { # KEY=VALUE...: what the state depends on
	local want got
	want=$(fake train threads=1 streams=1 "$@")
	[ -n "$want" ]
	got=$(fake train threads=2 streams=2 seed=3 "$@")
	[ "$got" = "$want" ]
	got=$(fake train threads=3 streams=5 seed=4 aborts=1 "$@")
	[ "$got" = "$want" ]
}

# bats test_tags=slow
@test "the SIMD updates give the bits of the scalar one, which is PyTorch's AdamW or SGD, or Lion" {
	optim-update
	MT_ISA=scalar optim-update sums
}

@test "20 steps of 72 kinds of update have the same hash on every machine, by each instruction set" {
	local isas=scalar
	if [ "$(uname -m)" = aarch64 ] || [ -n "${MT_TEST_EMULATED:-}" ]; then isas='scalar neon'
	else
		! grep -q -w avx2 /proc/cpuinfo || isas="$isas avx2"
		! grep -q -w avx512bw /proc/cpuinfo || isas="$isas avx512"
	fi
	optim-update hash >"$T/hashes"
	for isa in $isas; do echo "$isa ad8b0e9082544896"; done | diff - "$T/hashes"
}

@test "on arm64, the update divides and takes roots by vectors alone, and the sums convert by vectors alone" {
	local objdump=objdump from=$BUILD/../host/usr
	if [ -n "${MT_TEST_EMULATED:-}" ]; then
		objdump="env LD_LIBRARY_PATH=$from/lib/x86_64-linux-gnu $from/bin/aarch64-linux-gnu-objdump"
	else
		[ "$(uname -m)" = aarch64 ] || skip "for arm64"
		need_cmd objdump
	fi
	$objdump -d --no-show-raw-insn "$BUILD/mt-optim/update-neon.o" >"$T/update"
	$objdump -d --no-show-raw-insn "$BUILD/mt-optim/sum.o" | awk '/>:$/ { in_it = /_wide>/ } in_it' >"$T/sum"
	# adamw: 24 kinds of 64 elements; all: 72, of fewer than 12 instructions an element
	[ "$(grep -cE '\sfdiv\s+v.*\.4s' "$T/update")" -ge 24 ]
	[ "$(grep -cE '\sfsqrt\s+v.*\.4s' "$T/update")" -ge 16 ]
	[ "$(wc -l <"$T/update")" -lt $((72 * 64 * 12)) ]
	no grep -E '\s(fdiv|fsqrt|fmadd|fadd|fsub)\s+s' "$T/update"
	[ "$(grep -cE '\sfcvtl2\s+v.*\.2d' "$T/sum")" -ge 8 ]
	no grep -E '\sfcvt\s+d' "$T/sum"
}

# bats test_tags=nightly
@test "splitting a master weight into two halves is exact for all 2^32 bit patterns" {
	hilo
}

# bats test_tags=slow
@test "bf16 weights, fp32 gradients: the state equals the plain computation's, in whatever order gradients arrive" {
	same_hash
}

# bats test_tags=slow
@test "fp32 weights: the state equals the plain computation's, in whatever order gradients arrive" {
	same_hash dtype=fp32
}

# bats test_tags=slow
@test "bf16 gradients are added in fp32 and rounded once a micro-batch" {
	same_hash grad=bf16
}

# bats test_tags=slow
@test "tied embeddings: embed and head gradients are both added, in whatever order they arrive" {
	same_hash tied=1
	same_hash tied=1 grad=bf16 dtype=fp32
}

# bats test_tags=slow
@test "blocks' own inputs: the unit that makes them is updated right after the embedding" {
	same_hash ple=1
	fake save ple=1
}

# bats test_tags=slow
@test "bf16 state: m and v equal the plain computation's, in whatever order gradients arrive" {
	same_hash state=bf16
	same_hash state=bf16 dtype=fp32 grad=bf16 tied=1
	same_hash state=bf16 grad=none
}

# bats test_tags=slow
@test "int8 state: codes and scales equal the plain computation's, in whatever order gradients arrive" {
	same_hash state=int8
	same_hash state=int8 dtype=fp32 grad=bf16 tied=1
	same_hash state=int8 grad=none
}

# bats test_tags=slow
@test "lion and sgd: w, lo and m equal the plain computation's with every type of state, in whatever order" {
	local rule state
	for rule in $(some 2 lion sgd); do
		for state in fp32 bf16 int8; do
			same_hash optim=$rule state=$state
		done
		same_hash optim=$rule state=int8 dtype=fp32 grad=bf16 tied=1
		same_hash optim=$rule grad=none
	done
}

@test "--grad none: the state equals the plain computation's, however gradients are cut into pieces" {
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

@test "--grad none: a missing piece ends mt-optim with 70, and the store is dirty" {
	fake hole
}

@test "a pinned unit is not overwritten, mt-optim waits for a sealed save, a dead saver's save fails" {
	fake save
}

@test "a message with wrong fields ends mt-optim with 70 and one line, and changes nothing" {
	fake bad
	fake bad tied=1 grad=bf16
}

@test "--grad none: an mt-stream that dies after the commit leaves a dirty store, which is reported" {
	fake dead-stream
}

@test "--grad none: a gradient that is not finite leaves a dirty store, which is reported" {
	fake nan-gradient
}

# bats test_tags=slow
@test "--update early: state and norms equal those of a late update, in whatever order gradients arrive" {
	local how want
	for how in $(some 2 dtype=bf16 dtype=fp32,tied=1 grad=bf16,ple=1 state=int8,grad=bf16,tied=1 \
		optim=lion,state=bf16); do
		how=${how//,/ }
		want=$(fake train clips=0 streams=1 $how)
		[ "$(fake train clips=0 early=1 backward=1 streams=1 $how)" = "$want" ]
		[ "$(fake train clips=0 early=1 backward=1 streams=3 threads=3 aborts=1 seed=3 $how)" = "$want" ]
		[ "$(fake train clips=0 early=1 streams=2 aborts=1 seed=4 $how)" = "$want" ]
	done
	want=$(fake train)
	[ "$(fake train early=1 2>"$T/clips")" = "$want" ]
	grep -qx 'mt-optim: --update early: steps are clipped, so units are updated after the commit' "$T/clips"
}

@test "--update early: a gradient that is not finite skips the step, or leaves a dirty store, which is reported" {
	fake early-nan
}

@test "--update early: a step that is half done is not copied, goes on with the same options, and not with others" {
	fake early-other
}

@test "--update early: mt-streams and mt-step give the bits of a late update, and units are updated before the commit" {
	local when
	for when in late early; do
		make_run "$GOLDEN/llama3/model" --dtype bf16 --grad bf16
		spawn stream mt-stream "$RUN" --device cpu --threads 1
		local stream=$PID
		spawn optim mt-optim "$RUN" --threads 1 --update $when
		mt-feed "$GOLDEN/llama3/data.bin" |
			mt-step "$RUN" --steps 4 --batch 4 --micro 2 --seq 24 --lr 1e-3 --clip 0 >"$T/$when.metrics"
		state_of "$RUN" >"$T/$when"
		mt-store stat "$RUN" --json | grep -o '"early_updates": *[0-9]*' >"$T/$when.n"
		end "$stream" "$PID"
		mt-store rm "$RUN"
	done
	cmp "$T/late" "$T/early"
	timeless "$T/late.metrics" | cmp - <(timeless "$T/early.metrics")
	[ "$(tr -dc 0-9 <"$T/late.n")" = 0 ]
	[ "$(tr -dc 0-9 <"$T/early.n")" -gt 0 ]
}

@test "a tier, --update early: units in files are updated before the commit, with the bits of memory" {
	local how create
	need_tier
	for how in memory tier; do
		create=()
		[ $how = memory ] || create=(--tier "$DISK" --tier-memory 0 --tier-tile 64K --tier-slots 2 --update early)
		make_run "$GOLDEN/llama3/model" --dtype bf16 --grad bf16 "${create[@]}"
		spawn stream mt-stream "$RUN" --device cpu --threads 1
		local stages=("$PID")
		spawn optim mt-optim "$RUN" --threads 1 --update early
		stages+=("$PID")
		[ $how = memory ] || { spawn tier mt-tier "$RUN" --threads 2 && stages+=("$PID"); }
		mt-feed "$GOLDEN/llama3/data.bin" |
			mt-step "$RUN" --steps 4 --batch 4 --micro 2 --seq 24 --lr 1e-3 --clip 0 >/dev/null
		mt-store stat "$RUN" --json | grep -o '"early_updates": *[0-9]*' | tr -dc 0-9 >"$T/$how.n"
		end "${stages[@]}"
		mt-ckpt save "$RUN" "$T/$how" 2>/dev/null
		mt-store rm "$RUN"
	done
	[ "$(cat "$T/tier.n")" -gt 0 ]
	(cd "$T/memory" && sha256sum -- *.safetensors) >"$T/sums"
	grep -q . "$T/sums"
	(cd "$T/tier" && sha256sum -c --quiet "$T/sums")
}

# The final state has this hash without a tier, and with one of any slots and size, under any order and threads
same_on_tier() { # KEY=VALUE...
	local want
	want=$(fake train "$@")
	[ -n "$want" ]
	[ "$(fake train tier="$DISK" slots=2 threads=1 "$@")" = "$want" ]
	[ "$(fake train tier="$DISK" slots=3 threads=3 aborts=1 seed=3 "$@")" = "$want" ]
	[ "$(fake train tier="$DISK" slots=4 memory=1700000 threads=2 seed=4 "$@")" = "$want" ]
}

# bats test_tags=slow
@test "a tier: the state equals the plain computation's, with every type of state and rule" {
	local how
	need_tier
	for how in $(some 2 state=fp32 state=int8,tied=1,ple=1 dtype=fp32,state=bf16,grad=bf16 optim=lion,state=int8 \
		optim=sgd); do
		same_on_tier ${how//,/ }
	done
}

# bats test_tags=slow
@test "a tier, --grad none: pieces are cut at tiles' borders, and bits stay" {
	need_tier
	same_on_tier grad=none backward=1 streams=1
	same_on_tier grad=none backward=1 streams=3 state=int8 twice=1 optim=lion
}

# bats test_tags=nightly
@test "a tier, --update early: state and norms equal those of a late update, with and without clipping" {
	local want
	need_tier
	same_on_tier early=1 backward=1 clips=0
	same_on_tier early=1 clips=0 state=int8 grad=bf16 ple=1
	want=$(fake train)
	[ "$(fake train tier="$DISK" early=1 slots=2 2>"$T/clips")" = "$want" ]
	[ "$(fake train clips=0)" = "$(fake train tier="$DISK" early=1 backward=1 clips=0)" ]
}

@test "a tier: mt-optim, asked to stop when mt-tier is dead, ends in the middle of the step, and the next goes on" {
	need_tier
	fake tier-stop tier="$DISK" >"$T/late"
	grep -qx 'mt-optim: stopped in the update of step 1: mt-tier is not running, and has tiles of it' "$T/late"
	fake tier-stop tier="$DISK" grad=none backward=1 streams=1
	fake tier-stop tier="$DISK" early=1 clips=0 backward=1 streams=1
}

@test "a tier: --update early is refused where the tiles are in the order of a late update" {
	need_tier
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --tier "$DISK" --tier-memory 0 --tier-tile 64K >/dev/null
	mt-store init "$RUN" --seed 1 >/dev/null
	fails_with 78 mt-optim "$RUN" --update early
}

@test "--update early is refused with --grad none, and where new weights have no room" {
	fails_with 64 mt-optim "$RUN" --update soon
	for how in "--grad none" "--dtype fp32 --grad bf16"; do
		mt-store create "$RUN" --config "$CONFIGS/demo.json" $how >/dev/null
		mt-store init "$RUN" --seed 1 >/dev/null
		fails_with 78 mt-optim "$RUN" --update early
		mt-store rm "$RUN"
	done
}

@test "mt-optim refuses unknown options and instruction sets that the CPU lacks" {
	fails_with 64 mt-optim "$RUN" --lanes 3
	MT_ISA=mmx fails_with 64 mt-optim "$RUN"
	fails_with 64 mt-optim 'no/name'
}

@test "a second mt-optim on a run exits 75, and SIGTERM ends the first with 0" {
	mt-store create "$RUN" --config "$CONFIGS/demo.json" >/dev/null
	mt-store init "$RUN" --seed 1 >/dev/null
	spawn optim mt-optim "$RUN"
	local first=$PID
	working() { mt-store stat "$RUN" | grep -q 'mt-optim'; }
	eventually working
	fails_with 75 mt-optim "$RUN"
	end "$first"
}

@test "mt-optim waits for a run that does not exist yet, and exits 0 on SIGTERM" {
	spawn optim mt-optim "$RUN"
	sleep 0.2
	end "$PID"
}

@test "mt-optim exits 0 when its run is removed" {
	mt-store create "$RUN" --config "$CONFIGS/demo.json" >/dev/null
	mt-store init "$RUN" --seed 1 >/dev/null
	spawn optim mt-optim "$RUN"
	working() { mt-store stat "$RUN" | grep -q 'mt-optim'; }
	eventually working
	mt-store rm "$RUN" --force
	wait "$PID"
}

# Threads that mt-optim has after two steps on two cores: threads_of [its options]
threads_of() {
	local two
	two=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep=",")')
	spawn optim taskset -c "$two" mt-optim "$RUN" "$@"
	mt-feed "$GOLDEN/llama2/data.bin" | mt-step "$RUN" $(cat "$GOLDEN/llama2/args") --until "$until" >/dev/null
	sed -n 's/^Threads:\t//p' "/proc/$PID/status"
	end "$PID"
}

@test "on two cores mt-optim updates the first unit with two threads, with --threads 1 with one" {
	native "a process's number of threads"
	[ "$(nproc)" -ge 2 ] || skip "one core"
	make_run "$GOLDEN/llama2/model"
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	until=2 threads_of >"$T/default"
	until=4 threads_of --threads 1 >"$T/one"
	[ "$(cat "$T/default")" = 2 ]
	[ "$(cat "$T/one")" = 1 ]
}

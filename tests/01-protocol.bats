# The protocols everything stands on, under adversarial schedules: rings, transaction words, versions.
# `make tsan` runs this suite under the thread sanitizer.
load helpers

@test "a ring loses, repeats and garbles nothing between threads that stumble by seed" {
	for seed in 1 2 3 4 5 6 7 8; do shm-ring threads $seed 2000; done
}

@test "a ring loses and garbles nothing when producer and consumer are killed at any instant" {
	run shm-ring kills 1 200000
	[ "$status" = 0 ]
	[ "${output%% *}" -ge 20 ]      # a run without kills would have tested nothing
	shm-ring kills 2 200000
}

@test "of commit and abort exactly one wins, and what a word speaks of stands before it" {
	for seed in 1 2 3 4 5 6; do shm-txn txn $seed 2000; done
}

@test "who reads version v of a unit finds weights of v or later" {
	for seed in 1 2 3 4; do shm-txn versions $seed 500; done
}

@test "whatever instruction a stage is killed or overtaken at, a choice in the reproducibility record stands once and whole" {
	run shm-choice kills 1 60
	[ "$status" != 77 ] || skip "no ptrace here"
	[ "$status" = 0 ]
	shm-choice full | grep -q 'the reproducibility record is full'
}

@test "libmt.so exports what its headers declare, all of it begins with mt_, and its soname is the ABI" {
	need_cmd readelf
	# numa_warn: libnuma's hook; __: a sanitizer's own
	nm -D --defined-only "$BUILD/libmt.so" | awk '$2 ~ /[TBDR]/ && $3 !~ /^(numa_warn$|__)/ { print $3 }' >"$T/symbols"
	for s in mt_run_create mt_run_open mt_ring_push mt_ring_peek mt_txn_cas mt_stage_claim mt_publish; do
		grep -qx "$s" "$T/symbols"
	done
	no grep -v '^mt_' "$T/symbols"
	while read -r s; do grep -qE "[ *]$s\b" "$TOP"/shm/*.h "$TOP"/shm/model/*.h; done <"$T/symbols"
	readelf -d "$BUILD/libmt.so" | grep -q "SONAME.*\[libmt.so.$(sed -n 's/^#define MT_ABI *//p' "$TOP/shm/mt.h")\]"
}

@test "shm/README.md lists every shared field where it is" {
	shm-abi >"$T/abi"
	awk '/^## Offsets/ { on = 1 } on && /^```/ { n++; next } on && n == 1' "$TOP/shm/README.md" >"$T/readme"
	diff "$T/abi" "$T/readme"
}

# The shared-memory protocols under adversarial schedules: rings, transaction words, versions.
# `make tsan` runs this suite under the thread sanitizer.
load helpers

@test "a ring loses, repeats and corrupts no record while both threads pause at random points" {
	for seed in 1 2 3 4 5 6 7 8; do shm-ring threads $seed 2000; done
}

# bats test_tags=slow
@test "no wake-up is lost, if waiters and wakers use bits or not" {
	for seed in 1 2 3; do shm-wake turns $seed 5000; done
}

@test "a wait for one kind of publication sleeps through all others" { shm-wake bits; }

# bats test_tags=slow
@test "a ring loses and corrupts no record when its producer and consumer are killed at random moments" {
	run shm-ring kills 1 200000
	[ "$status" = 0 ]
	[ "${output%% *}" -ge 20 ]      # with few kills the test would show nothing
	shm-ring kills 2 200000
}

@test "of commit and abort exactly one succeeds, and the data that a transaction word announces is already visible" {
	for seed in 1 2 3 4 5 6; do shm-txn txn $seed 2000; done
}

@test "a reader that sees version v of a unit reads weights of version v or later" {
	for seed in 1 2 3 4; do shm-txn versions $seed 500; done
}

@test "a stage killed or overtaken at any instruction leaves each recorded choice written once and complete" {
	native "ptrace"
	run shm-choice kills 1 60
	[ "$status" != 77 ] || skip "no ptrace here"
	[ "$status" = 0 ]
	shm-choice full | grep -q 'the reproducibility record is full'
}

@test "libmt.so exports exactly the symbols that its headers declare, all mt_*, and its soname is the ABI" {
	need_cmd readelf
	# numa_warn is libnuma's hook, names with __ are a sanitizer's
	nm -D --defined-only "$BUILD/libmt.so" |
		awk '$2 ~ /[TBDR]/ && $3 !~ /^(numa_warn$|__)/ { print $3 }' >"$T/symbols"
	for s in mt_run_create mt_run_open mt_ring_push mt_ring_peek mt_txn_cas mt_stage_claim mt_publish; do
		grep -qx "$s" "$T/symbols"
	done
	no grep -v '^mt_' "$T/symbols"
	while read -r s; do grep -qE "[ *]$s\b" "$TOP"/shm/*.h "$TOP"/shm/mt/*.h "$TOP"/shm/model/*.h; done <"$T/symbols"
	abi=$(sed -n 's/^#define MT_ABI *//p' "$TOP/shm/mt/version.h")
	readelf -d "$BUILD/libmt.so" | grep -q "SONAME.*\[libmt.so.$abi\]"
}

@test "shm/ABI.md lists every shared field at its real offset" {
	mt-store stat --abi >"$T/abi"
	sed '1,/^```/d; /^```/d' "$TOP/shm/ABI.md" | diff "$T/abi" -
}

@test "a shared field that takes reserved bytes or padding, and that abi.h does not list, does not compile" {
	compiles() { "${CC:-cc}" -std=gnu17 -D_GNU_SOURCE -I"$T/shm" -fsyntax-only "$T/shm/abi.c" 2>"$T/err"; }
	cp -r "$TOP/shm" "$T/shm"
	compiles
	for change in 's/n, reserved\[31\];/n, news, reserved[30];/' 's/reserved1\[4\];/reserved1[3], news;/' \
		's/double   aux, z;/double news, aux, z;/' 's/ zero;  /  news, zero;  /'; do
		cp "$TOP"/shm/mt/*.h "$T/shm/mt/"
		sed -i "$change" "$T"/shm/mt/*.h
		no diff -qr "$TOP/shm/mt" "$T/shm/mt" >/dev/null
		no compiles
		grep -q "reserved\|does not list all\|size of" "$T/err"
	done
}

@test "a batch with an objective is refused where its documents are not those of its kind, or a number is not finite" {
	shm-batch >"$T/said"
	diff - "$T/said" <<-'EOF'
	pg: valid
	a pair: valid
	a pair: valid
	a pair: valid
	answers: valid
	m.batch.documents = 0: valid
	m.batch.documents = 3: 3 documents are not pairs
	m.batch.documents = 2: row 1, position 0: a target of no document
	m.batch.documents = N + 1: 13 documents in 2 rows of 6 tokens
	m.batch.weights = 0: an objective without weights
	block.objective.kind = MT_NLL: objective of kind 0
	block.objective.kind = MT_LOSS_KINDS: objective of kind 7
	block.objective.beta = NAN: objective: number 1 is not finite
	block.old[7] = INFINITY: row 1, position 1: its old log-probability is not finite
	d[1].side = MT_CHOSEN: documents 0 and 1 are not a pair of one row
	d[1].side = 3: document 1: side 3
	d[1].side = MT_CHOSEN: document 1: side 1
	d[1].side = MT_SIDE_NONE: document 1: side 0
	block.targets[9] = block.targets[10] = MT_NO_TARGET; m.batch.documents = 3: valid
	block.targets[3] = block.targets[4] = MT_NO_TARGET: document 1: has no target
	d[1].ref = -INFINITY: document 1: its reference is not finite
	d[3].begin = N: document 3: begins at 12
	d[3].begin = UINT32_MAX: document 3: begins at 4294967295
	d[2].begin = 3: document 2: begins at 3
	d[2].begin = 7: document 2: begins at 7
	d[1].begin = 6; d[2].begin = 9; m.batch.documents = 2: documents 0 and 1 are not a pair of one row
	block.targets[3] = block.targets[4] = MT_NO_TARGET: document 1: has no target
	d[0].begin = 3; d[1].begin = 6; m.batch.documents = 2: row 0, position 0: a target of no document
	block.targets[3] = block.targets[4] = MT_NO_TARGET: valid
	block.objective.kind = MT_KD: objective of kind 6 with 0 tokens of a teacher
	if (batch_bytes(&m) != sizeof taught) return 1: valid
	taught.objective.kind = MT_PG: objective of kind 1 with 2 tokens of a teacher
	taught.teacher[0].ids[1] = 7: row 0, position 0: its teacher's is no distribution over 50 tokens
	taught.teacher[0].ids[1] = VOCAB: row 0, position 0: its teacher's is no distribution over 50 tokens
	taught.teacher[0].p[2] = NAN: row 0, position 0: its teacher's is no distribution over 50 tokens
	taught.teacher[0].p[0] = -0.5f: row 0, position 0: its teacher's is no distribution over 50 tokens
	taught.objective.temperature = NAN: objective: number 6 is not finite
	m.batch.top = 1 << 30: 1 row of 2 tokens do not fit in a block of 0 tokens
	EOF
}

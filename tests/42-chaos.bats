#!/usr/bin/env bats
# The schedule on the chaos device (stream-chaos): reordering that queues and events allow never changes a bit; removing
# any wait from the schedule does.

load helpers

@test "the chaos device performs every reordering that queues and events allow, and no other" {
	stream-reorder 200 >"$T/out" || { grep -v ^ok "$T/out" >&2; return 1; }
	[ "$(grep -c ^ok "$T/out")" -ge 16 ]
}

# Models of 1 to 7 blocks, tied and untied, with and without windows, biases, norms of q and k, norms before and after,
# caps, parallel blocks and experts; fp32 and bf16, every --grad; every checkpoint level, activations offloaded or not,
# any number of slots; experts with their block or by windows; both loop orders; training and evaluation; aborted steps;
# slow neighbours. Other seeds each time.
# bats test_tags=slow
@test "512 seeds (nightly 20,000) from a random one on, in both loop orders, give the cpu device's bits" {
	local from=$((RANDOM * 32768 + RANDOM + 1)) count=512
	[ -z "$NIGHTLY" ] || count=20000
	echo "seeds from $from on"
	stream-chaos seeds "$RUN" "$GOLDEN" "$from" "$count" | tee "$T/out"
	[ "${PIPESTATUS[0]}" = 0 ]
	grep -q '^[0-9]* seeds layer-major, [0-9]* pass-major: ' "$T/out"
	! grep -q -w 0 "$T/out" || false
}

# stream-chaos prints a line for each: the first seed with wrong bits in either loop order, and what is wrong
# bats test_tags=nightly
@test "removing any wait, signalling any event early or reusing memory too early changes the bits" {
	native "thousands of steps of wrong schedules, which are the same on every machine"
	stream-chaos without "$RUN" "$GOLDEN" 512 >"$T/out" || { grep "NEEDLESS" "$T/out" >&2; return 1; }
	[ "$(grep -c 'left out: ' "$T/out")" -ge 20 ]
	[ "$(grep -c 'too early: ' "$T/out")" -ge 9 ]
	[ "$(grep -c 'overlap: ' "$T/out")" = 11 ]
	[ "$(grep -c 'layer-major: seed' "$T/out")" -ge 25 ]
	[ "$(grep -c 'pass-major: seed' "$T/out")" -ge 20 ]
}

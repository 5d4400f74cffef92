#!/usr/bin/env bats
# mt-tier: tiles between slots and files, beside an optimizer of tests (tests/lib/tier.py) that moves counters alone and
# knows what each slot must hold. How runs with a tier are made: tests/13-tier.bats.

load helpers

tier() { python3 "$BATS_TEST_DIRNAME/lib/tier.py" "$1" "${NAME:-$RUN}" "${@:2}"; }

# A run whose lo, m and v are all on the tier but unit 0's, filled: make [create's options]; DIRS: a, or a,b
make() {
	local dirs=$DISK/a
	[ -z "${DIRS:-}" ] || dirs=$DISK/a,$DISK/b
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K --tier "$dirs" --tier-memory 0 \
		--tier-tile "${TILE:-64K}" "$@" 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	TILES=$(tier tiles | wc -l)
}

# mt-tier [after a command, as env], and wait until it serves
serve() {
	spawn tier "$@" mt-tier "$RUN"
	TIER=$PID
	eventually at_work
}
at_work() { mt-store stat "$RUN" | grep -Eq '^mt-tier .*(idle|tile)'; }
counters() { [ "$(tier words)" = "$1" ]; }

@test "tiles come into their slots and go back to their files, for each type of state, order and number of slots" {
	need_tier
	for kind in "--state fp32" "--state bf16 --tier-slots 2" "--state int8 --tier-slots 3" "--optim lion" \
		"--dtype fp32 --state int8" "--grad none --update early"; do
		make $kind
		serve
		tier update $((TILES * 5 / 2))
		end "$TIER"
		tier check
		[ ! -s "$T/tier.err" ]
		mt-store rm "$RUN"
	done
}

@test "two directories and tiles of several MiB; one thread of each kind does the same" {
	need_tier
	for threads in 1 16; do
		DIRS=2 TILE=1M make
		spawn tier mt-tier "$RUN" --threads $threads
		tier update $((TILES * 5 / 2))
		end "$PID"
		tier check
		mt-store rm "$RUN"
	done
}

@test "mt-tier reads as far as there are slots, and writes what was updated before it ends" {
	need_tier
	make --tier-slots 3
	serve
	eventually counters "3 0 0"
	tier update 2
	eventually counters "5 2 2"
	kill -STOP "$TIER"
	tier update 3
	counters "5 5 2"
	kill -TERM "$TIER"
	kill -CONT "$TIER"
	wait "$TIER"
	[ "$(tier words | cut -d ' ' -f 2-)" = "5 5" ]
	tier check
	serve
	tier update 3
	end "$TIER"
	tier check
}

@test "a file that has a second link is not written: a new file takes its name" {
	need_tier
	DIRS=2 make
	mkdir "$DISK/links"
	serve
	tier update 10
	eventually counters "18 10 10"
	for file in $(tier tiles | head -12); do ln "$file" "$DISK/links/"; done
	sha256sum "$DISK"/links/* >"$T/sums"
	tier update "$TILES"
	mt-store stat "$RUN" --json >"$T/stat"
	end "$TIER"
	tier check
	sha256sum -c --quiet "$T/sums"
	[ "$(stat -c %h "$DISK"/links/* | sort -u)" = 1 ]
	no ls "$DISK"/*/mt.*.tier/*.new
}

@test "another mt-tier, in random order and with delays, keeps the same counters and files" {
	need_tier
	DIRS=2 make --tier-slots 4
	mkdir "$DISK/links"
	for seed in 1 2; do
		spawn other python3 "$BATS_TEST_DIRNAME/lib/tier.py" serve "$RUN" $seed
		tier update "$TILES"
		ln "$(tier tiles | head -1)" "$DISK/links/$seed"
		end "$PID"
		tier check
		serve
		tier update "$TILES"
		end "$TIER"
		tier check
	done
}

@test "mt-tier is killed again and again: its successor goes on, and every tile is right" {
	need_tier
	DIRS=2 make
	mkdir "$DISK/links"
	local turns=5 i
	[ -z "$NIGHTLY" ] || turns=100
	for i in $(seq $turns); do
		serve
		python3 "$BATS_TEST_DIRNAME/lib/tier.py" update "$RUN" $((TILES + 7)) &
		update=$!
		ln -f "$(tier tiles | sed -n "$((i % TILES + 1))p")" "$DISK/links/x"
		sleep "0.0$((RANDOM % 10))"
		kill -9 "$TIER"
		spawn tier mt-tier "$RUN"
		sleep "0.0$((RANDOM % 10))"
		kill -9 "$PID"
		serve
		wait "$update"
		end "$TIER"
		tier check
	done
	no ls "$DISK"/*/mt.*.tier/*.new
}

@test "a flipped byte, and seals of another step, run or tile: read twice, then the run is dirty (74)" {
	need_tier
	for damage in "flip 5 70000" "flip 5 300000" "seal 5 t" "seal 5 run" "seal 5 tile"; do
		make --tier-slots 3
		serve
		tier update "$TILES"
		end "$TIER"
		tier $damage
		exits 74 timeout 20 mt-tier "$RUN" 2>"$T/err" &
		local p=$!
		tier update 5
		wait $p
		[ "$(wc -l <"$T/err")" = 1 ]
		grep -q "/unit-.*tile-...*: this tile is lost; load a checkpoint" "$T/err"
		mt-store stat "$RUN" | grep -q dirty
		mt-store rm "$RUN"
	done
}

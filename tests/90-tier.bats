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

# mt-tier, once it serves
serve() {
	spawn tier mt-tier "$RUN"
	TIER=$PID
	eventually at_work
}
at_work() { mt-store stat "$RUN" | grep -Eq '^mt-tier .*(idle|tile)'; }
counters() { [ "$(tier words)" = "$1" ]; }

# bats test_tags=slow
@test "mt-store create is killed while it makes files: rm, and the next create of that name, remove them" {
	need_tier
	local how
	for how in rm create; do
		spawn create mt-store create "$RUN" --config "$CONFIGS/bench-97m.json" --tier "$DISK/a,$DISK/b" \
			--tier-memory 0 --tier-tile 64K
		eventually compgen -G "$DISK/b/mt.*.tier/*"
		kill -9 "$PID"
		wait "$PID" || true
		mt-store ls "$RUN" | grep -q "half made"
		[ $how = create ] || mt-store rm "$RUN"
		[ $how = rm ] || make
		mt-store rm "$RUN" --force || [ $how = rm ]
		no compgen -G "$DISK/*/*"
	done
}

# bats test_tags=slow
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

# bats test_tags=slow
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

# bats test_tags=slow
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

# bats test_tags=slow
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

# bats test_tags=slow
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

# bats test_tags=slow
@test "mt-tier is killed again and again: its successor goes on, and every tile is right" {
	need_tier
	DIRS=2 make
	mkdir "$DISK/links"
	local turns=5 i
	[ -z "$NIGHTLY" ] || turns=100
	for i in $(seq $turns); do
		serve
		spawn update python3 "$BATS_TEST_DIRNAME/lib/tier.py" update "$RUN" $((TILES + 7))
		update=$PID
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

# bats test_tags=slow
@test "a flipped byte, and seals of another step, run or tile: read twice, then the run is dirty (74)" {
	need_tier
	for damage in "flip 5 70000" "flip 5 300000" "seal 5 t" "seal 5 run" "seal 5 tile"; do
		make --tier-slots 3
		serve
		tier update "$TILES"
		end "$TIER"
		tier $damage
		spawn lost timeout 20 mt-tier "$RUN"
		local p=$PID
		tier update 3 # the damaged tile is read when the third of these is written
		exits 74 wait "$p"
		mv "$T/lost.err" "$T/err"
		[ "$(wc -l <"$T/err")" = 1 ]
		grep -q "/unit-.*tile-...*: this tile is lost; load a checkpoint" "$T/err"
		mt-store stat "$RUN" | grep -q dirty
		mt-store rm "$RUN"
	done
}

@test "a file that is too short: 65, and the run is dirty" {
	need_tier
	make --tier-slots 3
	truncate -s 9000 "$(tier tiles | sed -n 2p)"
	fails_with 65 timeout 20 mt-tier "$RUN"
	grep -q "/unit-.*tile-..., byte [0-9]*: the file ends there: this tile is lost; load a checkpoint" "$T/fails.err"
	mt-store stat "$RUN" | grep -q dirty
}

@test "a tile that is lost, and is in a checkpoint, too: the message names the inode" {
	need_tier
	make --tier-slots 3
	ln "$(tier tiles | sed -n 2p)" "$DISK/link"
	tier flip 1 70000
	fails_with 74 timeout 20 mt-tier "$RUN"
	grep -q "every checkpoint that has this file (inode $(stat -c %i "$DISK/link")); load another one" "$T/fails.err"
}

# bats test_tags=slow
@test "writes fail: 74, and nothing is lost; --dir moves what the drive can read, and takes the rest from memory" {
	need_tier
	no_asan
	DIRS=2 make --tier-slots 6
	serve
	tier update $((TILES + 3))
	end "$TIER"
	spawn fails env LD_PRELOAD="$BUILD/fault/preload.so" MT_FAULT=pwrite:1+ mt-tier "$RUN"
	local p=$PID
	eventually counters "$((TILES + 9)) $((TILES + 3)) $((TILES + 3))" # it leaves at the first write
	tier update 6
	exits 74 wait "$p"
	mv "$T/fails.err" "$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
	grep -q "/unit-.*: Input/output error: nothing is lost; start mt-tier again.*--dir OLD=NEW" "$T/err"
	counters "$((TILES + 9)) $((TILES + 9)) $((TILES + 3))"
	tier tiles | grep "$DISK/b/" >"$T/old"
	# the tiles that were not written are not what the drive has now
	while read -r file; do cp "$file" "$T/one" && mv "$T/one" "$file"; done <"$T/old"
	fails_with 64 mt-tier "$RUN" --dir "$DISK/c=$DISK/d"
	fails_with 64 mt-tier "$RUN" --dir "$DISK/b"
	spawn moved mt-tier "$RUN" --dir "$DISK/b=$DISK/new"
	tier update 9
	end "$PID"
	grep -q "tiles of $DISK/b/.* are in $DISK/new/" "$T/moved.err"
	[ "$(ls -A "$DISK/b")" = "" ]
	tier tiles | grep -q "$DISK/new/mt"
	tier check
	mt-store rm "$RUN"
	[ "$(find "$DISK" -type f)" = "" ]
}

# bats test_tags=slow
@test "--dir: a link, a file or another user's directory at the new place is refused, and all tiles stay" {
	need_tier
	make
	local place=$DISK/c/$(cd "$DISK/a" && echo mt.*) before=$(tier tiles)
	refused() { # CODE
		fails_with "$1" mt-tier "$RUN" --dir "$DISK/a=$DISK/c"
		grep -q "$place" "$T/fails.err"
		[ "$(tier tiles)" = "$before" ]
		tier check
	}
	mkdir "$DISK/c" "$DISK/other"
	ln -s "$DISK/other" "$place"
	refused 74
	[ -z "$(ls -A "$DISK/other")" ]
	rm "$place" && touch "$place"
	refused 74
	rm "$place" && mkdir "$place" && touch "$place/mine"
	refused 74
	[ -e "$place/mine" ]
	if [ "$(id -u)" = 0 ]; then
		chown 4711 "$place"
		refused 77
		[ -e "$place/mine" ]
	fi
}

# bats test_tags=slow
@test "a tile that is a link or a FIFO: 74, nothing is waited for or lost, and mt-tier goes on with the file" {
	need_tier
	make --tier-slots 3
	local file=$(tier tiles | sed -n 2p)
	mv "$file" "$DISK/kept"
	for plant in "ln -s $DISK/kept" mkfifo mkdir; do
		$plant "$file"
		fails_with 74 timeout 20 mt-tier "$RUN"
		grep -q "$file: is a link or not a plain file: .*: nothing is lost; start mt-tier again" "$T/fails.err"
		no grep -q dirty <(mt-store stat "$RUN")
		fails_with 74 timeout 20 mt-ckpt save "$RUN" "$T/save"
		grep -q "$file: is a link or not a plain file" "$T/fails.err"
		fails_with 74 timeout 20 mt-tier "$RUN" --dir "$DISK/a=$DISK/c"
		rm -r "$file"
	done
	mv "$DISK/kept" "$file"
	serve
	tier update "$TILES"
	end "$TIER"
	tier check
}

# bats test_tags=slow
@test "--dir is killed before any of its calls: the run is as it was, and the next one moves the tiles" {
	need_tier
	no_asan
	DIRS=2 make
	local from=b to=c n=$((40 + RANDOM % 30))
	while :; do
		spawn moves env LD_PRELOAD="$BUILD/fault/preload.so" MT_FAULT="any:$n!" \
			mt-tier "$RUN" --dir "$DISK/$from=$DISK/$to"
		wait "$PID" || [ $? = 137 ]
		tier check
		tier tiles | grep -q "$DISK/$from/" || break
		n=$((n * 5 / 4))
	done
	serve
	tier update $((TILES + 3))
	end "$TIER"
	tier check
}

# bats test_tags=slow
@test "a full drive: mt-tier waits and says so, and goes on when there is room; stopped meanwhile, it ends with 74" {
	need_tier
	need_cmd mkfs.ext4
	truncate -s 90M "$DISK/image"
	mkfs.ext4 -q -O ^has_journal "$DISK/image"
	mkdir "$T/disk"
	mount -o loop "$DISK/image" "$T/disk" 2>/dev/null || skip "needs the right to mount a small disk"
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K --tier "$T/disk" --tier-memory 0 \
		--tier-tile 64K 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	TILES=$(tier tiles | wc -l)
	mkdir "$T/disk/links"
	for file in $(tier tiles); do ln "$file" "$T/disk/links/"; done
	serve
	spawn update tier update $((TILES * 2))
	local update=$PID
	eventually grep -q "no room in $T/disk/.* for unit-.*: waits until there is" "$T/tier.err"
	kill "$TIER"
	exits 74 wait "$TIER"
	grep -q "no room for a tile: it stays in memory" "$T/tier.err"
	serve
	eventually grep -q "no room" "$T/tier.err"
	rm -r "$T/disk/links"
	wait "$update"
	end "$TIER"
	tier check
}

@test "a process takes the slot of a stopped mt-tier without its lock: 75, and no counter changes" {
	need_tier
	make --tier-slots 3
	serve
	eventually counters "3 0 0"
	kill -STOP "$TIER"
	tier update 2
	tier steal
	kill -CONT "$TIER"
	exits 75 wait "$TIER"
	counters "3 2 0"
	grep -q "has lost its place as mt-tier" "$T/tier.err"
}

# bats test_tags=slow
@test "no read of a killed mt-tier ends after its lock is free" {
	need_tier
	TILE=1M make --tier-slots 4
	local kills=10
	[ -z "$NIGHTLY" ] || kills=100
	tier late $kills
}

# bats test_tags=slow
@test "each call of mt-tier fails once or for good, or is its last: the tiles are right" {
	need_tier
	no_asan
	local seconds=8
	[ -z "$NIGHTLY" ] || seconds=0
	"$BATS_TEST_DIRNAME/fault/tier.py" "$DISK" --seconds $seconds
}

at_its_files() { [ "$(ls -l "/proc/$PID/fd" | grep -c "$DISK/.*(deleted)")" -gt 2 ]; }
@test "--bench prints read, written and their sum as JSON, writes it to DIR, and leaves nothing else" {
	need_tier
	mt-tier --bench "$DISK" --seconds 0.3 --bytes 24M --threads 2 >"$T/out" 2>"$T/err"
	cmp "$T/out" "$DISK/mt-tier-bench.json"
	[ "$(ls -A "$DISK")" = mt-tier-bench.json ]
	python3 - "$T/out" <<-'END'
		import json, sys
		j = json.load(open(sys.argv[1]))
		assert set(j) == {"dir", "read", "written", "sum", "seconds", "flat", "bytes"}, j
		assert j["read"] > 0 and j["written"] > 0 and abs(j["sum"] - j["read"] - j["written"]) <= 1, j
		assert 0.5 < j["read"] / j["written"] < 2 and j["seconds"] >= 0.3, j
	END
	fails_with 66 mt-tier --bench "$DISK/none"
	fails_with 78 mt-tier --bench "$DISK" --bytes 1M
	fails_with 64 mt-tier --bench "$DISK" --seconds 0
	fails_with 64 mt-tier --bench "$DISK" "$RUN"
	for signal in TERM KILL; do
		spawn bench mt-tier --bench "$DISK" --bytes 24M
		eventually at_its_files
		kill -$signal "$PID"
		exits "$(kill -l $signal | awk '{ print 128 + $1 }')" wait "$PID"
		[ "$(ls -A "$DISK")" = mt-tier-bench.json ]
	done
	mt-tier --bench "$DISK" --seconds 0.1 --bytes 15M >"$T/out" 2>"$T/err" # more tiles than files
	[ "$(value bytes <"$T/out")" = $((15 << 20)) ]
}

@test "--bench replaces links and FIFOs that have the names of its files" {
	need_tier
	echo mine >"$DISK/mine"
	for plant in mkfifo "ln -s $DISK/mine" "ln $DISK/mine"; do
		for name in .mt-tier-bench.json mt-tier-bench.json; do
			rm -f "$DISK/$name"
			$plant "$DISK/$name"
		done
		timeout 60 mt-tier --bench "$DISK" --seconds 0.1 --bytes 8M >"$T/out" 2>"$T/err"
		cmp "$T/out" "$DISK/mt-tier-bench.json"
		[ "$(cat "$DISK/mine")" = mine ]
		[ "$(ls -A "$DISK" | tr '\n' ' ')" = "mine mt-tier-bench.json " ]
	done
}

@test "invalid options exit 64; a run without a tier 78; a second mt-tier 75; a lost directory 66" {
	need_tier
	fails_with 64 mt-tier "$RUN" --threads 0
	fails_with 64 mt-tier "$RUN" --engine uring
	fails_with 64 mt-tier "$RUN" --seconds 3
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	fails_with 78 mt-tier "$RUN"
	mt-store rm "$RUN"
	make
	serve
	fails_with 75 mt-tier "$RUN"
	end "$TIER"
	mv "$DISK/a" "$DISK/b"
	fails_with 66 mt-tier "$RUN"
	mv "$DISK/b" "$DISK/a"
	serve
	tier update 3
	mt-store rm "$RUN" --force
	wait "$TIER"
}

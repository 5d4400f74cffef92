#!/usr/bin/env bats
# mt-ckpt: checkpoints of a run whose lo, m and v are in files (mt-store create --tier): hard links to the tiles.

load helpers

demo() { mt-store create "$1" --config "$CONFIGS/demo.json" --step-tokens 1K "${@:2}" 2>"$T/create.err"; }
tier() { demo "$1" --tier "$DISK/a,$DISK/b" --tier-memory 0 --tier-tile 64K "${@:2}"; }

# The state of a run without the words that may differ between two runs with the same content
dump() { ckpt-dump "$1" | grep -v '^state'; }

# A run with a tier and some state at step 3, which serve is to save into $DISK/ck: filled [create's options]
filled() {
	need_tier
	tier "$RUN" "$@"
	ckpt-dump "$RUN" scribble 3 3
	dump "$RUN" >"$T/before"
	CK=$DISK/ck/step-00000003
}

serve() {
	spawn serve mt-ckpt serve "$RUN" --dir "$DISK/ck"
	SERVE=$PID
}

# The checkpoint of step 3, by hard links, of a run made so
saved() {
	filled "$@"
	serve
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	end "$SERVE"
}

# How many files of tiles have this many links: links NUMBER DIR...
links() {
	local n=$1
	shift
	find "$@" -name 'unit-*.tile-*' -links "$n" | wc -l
}

tiles() { find "$@" -name 'unit-*.tile-*' | wc -l; }

# One byte of a file becomes another: flip FILE OFFSET
flip() {
	python3 - "$1" "$2" <<-'END'
		import sys
		with open(sys.argv[1], "r+b") as f:
		    f.seek(int(sys.argv[2]))
		    byte = f.read(1)[0]
		    f.seek(int(sys.argv[2]))
		    f.write(bytes([byte ^ 1]))
	END
}

# bats test_tags=slow
@test "serve saves lo, m and v as hard links: loaded by links, into a run without a tier, and with other tiles" {
	local kind other
	other=$(mt_run_name b)
	for kind in "--state fp32" "--state int8" "--dtype fp32" "--grad none"; do
		saved $kind
		mt-ckpt verify "$CK"
		[ "$(tiles "$CK")" -gt 20 ]
		python3 - "$CK/run.json" "$CK" <<-'END'
			import json, os, sys
			run = json.load(open(sys.argv[1]))
			assert run["version"] == 3
			assert set(run["tier"]["files"]) == {f for f in os.listdir(sys.argv[2]) if f.startswith("unit-")}
			assert not any(f.startswith("unit-") for f in run["files"])
		END
		mt-store init "$RUN" --seed 1
		mt-ckpt load "$RUN" "$CK"
		[ "$(links 2 "$CK")" = "$(tiles "$CK")" ]
		dump "$RUN" | cmp - "$T/before"
		mt-ckpt save "$RUN" "$T/plain"
		grep -q '"version": [12],' "$T/plain/run.json"

		demo "$other" $kind
		mt-ckpt load "$other" "$CK"
		dump "$other" | cmp - "$T/before"
		mt-store rm "$other"
		demo "$other" $kind --tier "$DISK/c" --tier-tile 128K --tier-memory 4M
		mt-ckpt load "$other" "$CK"
		dump "$other" | cmp - "$T/before"
		[ "$(links 2 "$DISK/c")" = 0 ]
		mt-ckpt load "$other" "$T/plain"
		dump "$other" | cmp - "$T/before"
		mt-store rm "$other" && mt-store rm "$RUN"
		[ "$(links 1 "$CK")" = "$(tiles "$CK")" ]
		rm -r "$DISK" "$T/plain"
	done
}

# bats test_tags=slow
@test "a checkpoint whose tiles are symbolic links is copied into a run: its tiles are plain files" {
	saved
	mkdir "$DISK/away"
	for file in "$CK"/unit-000[23]*; do mv "$file" "$DISK/away/" && ln -s "$DISK/away/${file##*/}" "$file"; done
	mt-ckpt verify "$CK"
	mt-ckpt load "$RUN" "$CK"
	dump "$RUN" | cmp - "$T/before"
	[ -z "$(find "$DISK"/[ab] -type l)" ]
	spawn tier mt-tier "$RUN"
	eventually sh -c "mt-store stat $RUN | grep -Eq '^mt-tier .*(idle|tile)'"
	end "$PID"
	[ ! -s "$T/tier.err" ]
}

# bats test_tags=slow
@test "a checkpoint with tiles loads into runs with other types of state, as one without tiles does" {
	local other kind
	saved --state fp32
	mt-ckpt save "$RUN" "$T/own"
	mt-ckpt load "$RUN" "$CK"
	mt-ckpt save "$RUN" "$T/plain"
	other=$(mt_run_name b)
	for kind in "--state bf16" "--state int8" "--dtype fp32" "--state none --grad none"; do
		demo "$other" $kind
		mt-ckpt load "$other" "$T/plain" 2>"$T/err.plain"
		dump "$other" >"$T/plain.dump"
		mt-ckpt load "$other" "$CK" 2>"$T/err.tiles"
		dump "$other" | cmp - "$T/plain.dump"
		cmp "$T/err.plain" "$T/err.tiles"
		mt-store rm "$other"
	done
}

@test "exact routers' lo, which compute reads, is not in a tile" {
	need_tier
	local model=$GOLDEN/minimax-m2/model
	mt-store create "$RUN" --config "$model" --step-tokens 1K --tier "$DISK/a" --tier-memory 0 --tier-tile 64K \
		2>"$T/create.err"
	ckpt-dump "$RUN" scribble 3 3
	dump "$RUN" >"$T/before"
	serve
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	end "$SERVE"
	mt-ckpt load "$RUN" "$DISK/ck/step-00000003"
	dump "$RUN" | cmp - "$T/before"
	mt-store rm "$RUN"
	mt-store create "$RUN" --config "$model" --step-tokens 1K 2>"$T/create.err"
	mt-ckpt load "$RUN" "$DISK/ck/step-00000003"
	dump "$RUN" | cmp - "$T/before"
}

@test "files of a checkpoint with tiles have the modes that umask leaves; the tier's directory is the user's alone" {
	umask 027
	saved
	[ "$(find "$DISK/ck" -type f -exec stat -c %a {} + | sort -u)" = 640 ]
	[ "$(find "$DISK/ck" -type d -exec stat -c %a {} + | sort -u)" = 750 ]
	[ "$(stat -c %a "$DISK"/[ab]/mt.*.tier | sort -u)" = 700 ]
	mt-tier --bench "$DISK" --seconds 0.1 --bytes 8M >"$T/out" 2>"$T/err"
	[ "$(stat -c %a "$DISK/mt-tier-bench.json")" = 640 ]
}

# bats test_tags=slow
@test "what is loaded, saved or trained later never changes the files of a checkpoint" {
	saved
	cat "$CK"/unit-* | sha256sum >"$T/sums"
	mt-ckpt load "$RUN" "$CK"
	serve
	[ "$(ckpt-snap "$RUN" 3)" = saved ] # replaces it, by links to the same files
	end "$SERVE"
	cat "$CK"/unit-* | sha256sum | cmp - "$T/sums"
	cp -al "$CK" "$DISK/mine"
	mt-store init "$RUN" --seed 4
	mt-store rm "$RUN"
	mt-ckpt verify "$DISK/mine"
	cat "$DISK"/mine/unit-* | sha256sum | cmp - "$T/sums"
}

@test "export --from takes the model of a checkpoint with tiles, and no tile" {
	saved
	mt-ckpt load "$RUN" "$CK"
	mt-ckpt export "$RUN" "$T/own"
	mt-ckpt export --from "$CK" "$T/from"
	cmp "$T/own/model.safetensors" "$T/from/model.safetensors"
	[ "$(tiles "$T/from")" = 0 ]
}

# bats test_tags=slow
@test "--copy-tier copies the tiles and drops its links; without it another file system is 78 when serve starts" {
	filled
	[ "$(stat -c %d "$DISK")" != "$(stat -c %d "${MT_SHM_DIR:-/dev/shm}")" ] || skip "needs two file systems"
	OTHER=$(mktemp -d "${MT_SHM_DIR:-/dev/shm}/mt-test.XXXXXX")
	exits 78 mt-ckpt serve "$RUN" --dir "$OTHER" 2>"$T/err"
	grep -q -- "--copy-tier" "$T/err"
	touch "$DISK/$(cd "$DISK" && echo a/mt.*.tier)/unit-0001.tile-000.save" # of a saver that died
	for dir in "$OTHER" "$DISK/ck"; do
		spawn serve mt-ckpt serve "$RUN" --dir "$dir" --copy-tier
		[ "$(ckpt-snap "$RUN" 3)" = saved ]
		end "$PID"
		mt-ckpt verify "$dir/step-00000003"
		[ "$(links 1 "$dir")" = "$(tiles "$dir")" ]
		[ -z "$(find "$DISK" -name '*.save')" ]
		mt-ckpt load "$RUN" "$dir/step-00000003"
		dump "$RUN" | cmp - "$T/before"
	done
	rm -r "$OTHER"
}

# bats test_tags=slow
@test "a damaged tile: verify names file and chunk, load without links refuses it and leaves the run as it was" {
	saved
	local f=$CK/unit-0002.tile-000 other
	other=$(mt_run_name b)
	demo "$other"
	mt-store init "$other" --seed 1
	dump "$other" >"$T/other"
	refused() { # by verify, and a load that copies: refused PATTERN
		exits 65 mt-ckpt verify "$CK" 2>"$T/err"
		grep -q "unit-0002.tile-000: $1" "$T/err" && [ "$(wc -l <"$T/err")" = 1 ]
		exits 65 mt-ckpt load "$other" "$CK" 2>"$T/err"
		grep -q "unit-0002.tile-000: $1" "$T/err" && [ "$(wc -l <"$T/err")" = 1 ]
		dump "$other" | cmp - "$T/other"
	}
	cp "$f" "$T/good"
	flip "$f" 8192
	refused "chunk 0 (bytes 65536 to"
	cp "$T/good" "$f" && flip "$f" $(($(stat -c %s "$f") - 4096 + 40))
	refused "has a damaged seal"
	cp "$T/good" "$f" && flip "$f" 20
	refused ""
	cp "$CK/unit-0003.tile-000" "$f"
	refused "has no tensor 'unit.2"
	cp "$T/good" "$f" && truncate -s -4096 "$f"
	refused ""
	: >"$f"
	refused "is too short"
	rm "$f"
	refused "is missing"
	mkfifo "$f"
	refused "a FIFO"
}

# bats test_tags=slow
@test "of a damaged tile, verify and load name the newest checkpoint that has another file of it" {
	saved
	local i
	for i in 1 2 4; do cp -al "$CK" "$DISK/ck/step-0000000$i"; done
	cp "$CK/unit-0002.tile-000" "$T/good"
	for i in 1 2; do
		rm "$DISK/ck/step-0000000$i/unit-0002.tile-000"
		cp "$T/good" "$DISK/ck/step-0000000$i/unit-0002.tile-000"
	done
	flip "$CK/unit-0002.tile-000" 70000
	exits 65 mt-ckpt verify "$CK" 2>"$T/err"
	grep -q "unit-0002.tile-000: chunk 0 .* is damaged; step-00000002 has another file of this tile" "$T/err"
	exits 65 mt-ckpt verify "$DISK/ck/step-00000004" 2>"$T/err"
	grep -q "step-00000002 has another" "$T/err"
	mt-ckpt load "$RUN" "$DISK/ck/step-00000002"
}

# bats test_tags=slow
@test "a tile of another step or of another run is found by its seal, also before links are loaded" {
	saved
	local f=$CK/unit-0002.tile-000
	cp "$f" "$T/good"
	ckpt-dump "$RUN" scribble 3 4
	cp "$DISK"/*/mt.*.tier/unit-0002.tile-000 "$f"
	exits 65 mt-ckpt verify "$CK" 2>"$T/err"
	grep -q "is of a later step" "$T/err"
	exits 65 mt-ckpt load "$RUN" "$CK" 2>"$T/err"
	mt-store rm "$RUN"
	tier "$RUN"
	ckpt-dump "$RUN" scribble 3 3
	cp "$DISK"/*/mt.*.tier/unit-0002.tile-000 "$f"
	exits 65 mt-ckpt load "$RUN" "$CK" 2>"$T/err"
	grep -q "is of another run" "$T/err"
	cp "$T/good" "$f"
	mt-ckpt load "$RUN" "$CK"
	dump "$RUN" | cmp - "$T/before"
}

# bats test_tags=slow
@test "run.json whose tier does not fit the model is refused with 65" {
	saved
	local edit
	for edit in 'r["tier"]["tile_elems"] *= 2' 'r["tier"]["tile_elems"] = 1000' 'r["tier"]["first"] = 9' \
		'r["tier"]["order"] = "both"' 'r["tier"]["run_id"] = "x"' 'r["tier"]["files"].popitem()' \
		'r["tier"]["files"]["unit-0002.tile-000"] = "0" * 16' 'r["tier"]["files"]["../x"] = "0" * 16' \
		'r["tier"] = 3' 'del r["tier"]' 'r["version"] = 6' 'r["tier"]["files"]["unit-0002.tile-000"] = 7'; do
		cp "$CK/run.json" "$T/run.json"
		python3 - "$CK/run.json" "$edit" <<-'END'
			import json, sys
			r = json.load(open(sys.argv[1]))
			exec(sys.argv[2])
			json.dump(r, open(sys.argv[1], "w"))
		END
		ckpt-edit "$CK" mt_version edited # and the right checksum
		exits 65 mt-ckpt verify "$CK" 2>"$T/err" || { echo "$edit" && cat "$T/err" && false; }
		[ "$(wc -l <"$T/err")" = 1 ]
		cp "$T/run.json" "$CK/run.json"
	done
	mt-ckpt verify "$CK"
}

@test "a save with too little room on the tier's disk fails with one line, and later ones go on" {
	[ "$(id -u)" = 0 ] || skip "needs root, to mount a small disk"
	filled
	mt-store rm "$RUN"
	truncate -s 80M "$T/image"
	mkfs.ext4 -q "$T/image" 2>/dev/null || skip "needs mkfs.ext4"
	mkdir "$T/disk" && { mount -o loop "$T/image" "$T/disk" 2>/dev/null || skip "no loop devices"; }
	DISK=$T/disk
	tier "$RUN" || skip "the disk is too small"
	ckpt-dump "$RUN" scribble 3 3
	serve
	[ "$(ckpt-snap "$RUN" 3)" = failed ]
	grep -q "step 3 is not saved: .* are free, and the tiles of a checkpoint want" "$T/serve.err"
	[ -z "$(find "$DISK/ck" -mindepth 1)" ]
	end "$SERVE"
}

# serve [OPTIONS] is killed before each call that touches a file; the next one finishes or fails the save, and leaves
# nothing of the dead one. Every sixth call, from a random one on (nightly: each): killed OPTIONS...
killed() {
	local kind n i calls word
	export MT_FAULT MT_FAULT_COUNT LD_PRELOAD
	LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT_COUNT=$T/counts spawn count mt-ckpt serve "$RUN" --dir "$DISK/ck" "$@"
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	end "$PID"
	ckpt-dump "$RUN" scribble 3 3
	: >"$T/words"
	while read -r kind n; do
		case $kind in alloc | mmap | thread) continue ;; esac
		for i in $(seq $((NIGHTLY ? 1 : RANDOM % 6 + 1)) $((NIGHTLY ? 1 : 6)) "$n"); do
			rm -rf "$DISK/ck"
			ckpt-snap "$RUN" 3 pin
			LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=$kind:$i! spawn dies mt-ckpt serve "$RUN" --dir "$DISK/ck" "$@"
			calls=$PID
			eventually is_over "$calls"
			kill "$calls" 2>/dev/null || true # it had fewer calls this time
			wait "$calls" || true
			spawn again mt-ckpt serve "$RUN" --dir "$DISK/ck" "$@"
			eventually is_ended
			end "$PID"
			ckpt-snap "$RUN" word | cut -d' ' -f1,2 >>"$T/words"
			[ -z "$(find "$DISK" -name '.step-*' -o -name '*.save')" ]
			if ckpt-snap "$RUN" word | grep -q '^3 saved'; then
				mt-ckpt verify "$DISK/ck/step-00000003"
				[ "$(tiles "$DISK/ck")" = "$(tiles "$DISK"/a/mt.* "$DISK"/b/mt.*)" ]
			else
				[ ! -e "$DISK/ck/step-00000003" ]
			fi
			dump "$RUN" | grep -v " pin " | cmp - "$T/before"
		done
	done <"$T/counts"
	sort "$T/words" | uniq -c >"$T/kinds"
	grep -q saved "$T/kinds" && grep -q failed "$T/kinds"
}

is_ended() { ckpt-snap "$RUN" word | grep -qE '^3 (saved|failed)'; }
is_over() { ! kill -0 "$1" 2>/dev/null || is_ended; }

small() {
	need_tier
	[ -e "$BUILD/fault/preload.so" ] || skip "needs build/fault/preload.so"
	python3 "$TOP/tests/lib/mksafetensors.py" make "$T/model" --set num_hidden_layers=1
	mt-store create "$RUN" --config "$T/model" --step-tokens 64 --tier "$DISK/a,$DISK/b" --tier-memory 0 \
		--tier-tile 64K 2>"$T/create.err"
	ckpt-dump "$RUN" scribble 3 3
	dump "$RUN" | grep -v " pin " >"$T/before"
}

# bats test_tags=slow
@test "serve killed before each call: its links are deleted, and the save is made anew or has failed" {
	small
	killed
}

# bats test_tags=slow
@test "serve --copy-tier killed before each call leaves nothing beside the tiles" {
	small
	killed --copy-tier
}

# bats test_tags=slow
@test "a load by links with any failing call ends with one line and no mixture, or has all bits" {
	local kind n how ended last=90 whole=0
	small
	serve
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	end "$SERVE"
	for kind in link read open rename stat mmap write alloc; do
		for n in $(seq $((NIGHTLY ? 1 : RANDOM % 5 + 1)) $((NIGHTLY ? 1 : 5)) "$last"); do
			for how in "" +; do
				ended=0
				LD_PRELOAD=$BUILD/fault/preload.so MT_FAULT=$kind:$n$how \
					mt-ckpt load "$RUN" "$DISK/ck/step-00000003" 2>"$T/err" || ended=$?
				if [ "$ended" = 0 ]; then
					dump "$RUN" | grep -v " pin " | cmp - "$T/before"
					whole=$((whole + 1))
				else
					[ "$ended" -ge 64 ] && [ "$ended" -le 78 ] && [ "$(wc -l <"$T/err")" = 1 ]
				fi
			done
		done
	done
	[ "$whole" -gt 0 ]
	mt-ckpt load "$RUN" "$DISK/ck/step-00000003"
	dump "$RUN" | grep -v " pin " | cmp - "$T/before"
	mt-ckpt verify "$DISK/ck/step-00000003"
}

# bats test_tags=slow
@test "serve links a tile when mt-tier has counted its write, not before" {
	need_tier
	local word control tier step all
	tier "$RUN" --tier-slots 80     # as many as there are tiles
	mt-store init "$RUN" --seed 1
	control=$(regions_of "$RUN").control
	word=$(offset_of tier)
	counted() { [ "$(python3 "$TOP/tests/lib/region.py" "$control" $((word + $1)))" = "$all" ]; }
	all=$(tiles "$DISK")
	spawn tier mt-tier "$RUN"
	tier=$PID
	eventually counted 128          # loaded
	kill -STOP "$tier"
	start_stages
	serve
	mt-feed --bytes "$GOLDEN/llama3/data.bin" >"$T/data"
	spawn step sh -c 'exec mt-step "$0" --steps 1 --batch 2 --seq 64 --lr 1e-3 --ckpt-every 1 <"$1"' "$RUN" "$T/data"
	step=$PID
	eventually counted 192
	sleep 0.5
	[ -z "$(find "$DISK/ck" -name 'unit-*')" ]
	kill -0 "$step"
	kill -CONT "$tier"
	wait "$step"
	mt-ckpt verify "$DISK/ck/step-00000001"
	[ "$(tiles "$DISK/ck")" = "$all" ]
}

# ---- trainings

# Train up to a step, and save each: train STEP [mt-step's options]; serve's options: $SERVE_OPTIONS
train() {
	local until=$1 pids=()
	shift
	spawn tier mt-tier "$RUN" --threads 4 && pids+=("$PID")
	spawn stream mt-stream "$RUN" --device cpu --threads 1 && pids+=("$PID")
	spawn optim mt-optim "$RUN" --threads 1 && pids+=("$PID")
	# shellcheck disable=SC2086
	spawn serve mt-ckpt serve "$RUN" --dir "$DISK/ck" ${SERVE_OPTIONS:---keep 9} && pids+=("$PID")
	mt-feed --epochs 9 "$T/data" | timeout 120 mt-step "$RUN" --steps 10 --until "$until" --batch 2 --seq 32 --lr 3e-3 \
		--ckpt-every 1 "$@" >"$T/metrics" 2>"$T/step.err"
	end "${pids[@]}"
}

# A filled run whose model has several tiles, and its data: trained [create's options]
trained() {
	need_tier
	[ -e "$T/m" ] || python3 - "$TOP" "$T" <<-'END'
		import os, random, sys
		sys.path.insert(0, sys.argv[1] + "/tests/crash")
		from crash import document, make_model
		make_model(os.path.join(sys.argv[2], "m"), {"vocab": 3000})
		words = random.Random(5)
		with open(os.path.join(sys.argv[2], "data"), "wb") as f:
		    for i in range(200):
		        f.write(document(words, 2000, words.randint(2, 40)))
	END
	mt-store create "$RUN" --config "$T/m" --step-tokens 1K --tier "$DISK/a,$DISK/b" --tier-memory 0 --tier-tile 64K \
		--tier-slots 2 "$@" 2>"$T/create.err"
	mt-store init "$RUN" --seed 3 2>/dev/null
}

# bats test_tags=slow
@test "a training saved each step by links: a resumed one ends with the same bits, and no checkpoint has changed" {
	local kind last
	for kind in "--grad fp32" "--grad none --state int8"; do
		trained $kind
		train 8
		grep -q . "$T/serve.err" && cat "$T/serve.err" && return 1
		dump "$RUN" | sed 's/ pin .*//' >"$T/end"
		cat "$DISK"/ck/step-0000000[1-7]/unit-* | sha256sum >"$T/sums"
		for last in 3 5; do
			mt-ckpt load "$RUN" "$DISK/ck/step-0000000$last"
			[ "$(links 2 "$DISK/ck/step-0000000$last")" = "$(tiles "$DISK/ck/step-0000000$last")" ]
			train 8
			dump "$RUN" | sed 's/ pin .*//' | cmp - "$T/end"
		done
		cat "$DISK"/ck/step-0000000[1-7]/unit-* | sha256sum | cmp - "$T/sums"
		for last in 1 2 3 4 5 6 7 8; do mt-ckpt verify "$DISK/ck/step-0000000$last"; done
		mt-store rm "$RUN"
		mt-store create "$RUN" --config "$T/m" --step-tokens 1K $kind 2>"$T/create.err"
		mt-ckpt load "$RUN" "$DISK/ck/step-00000008"
		dump "$RUN" | sed 's/ pin .*//' | cmp - "$T/end"
		mt-store rm "$RUN"
		rm -r "$DISK"
	done
}

@test "--keep 1 and 2 delete older links, and --copy-tier saves a training as links do" {
	trained
	SERVE_OPTIONS="--keep 2 --copy-tier" train 4
	[ "$(cd "$DISK/ck" && echo *)" = "step-00000003 step-00000004" ]
	mt-ckpt verify "$DISK/ck/step-00000003"
	[ "$(links 1 "$DISK")" = "$(tiles "$DISK")" ]
	SERVE_OPTIONS="--keep 1" train 6
	[ "$(cd "$DISK/ck" && echo *)" = step-00000006 ]
	mt-ckpt verify "$DISK/ck/step-00000006"
	[ "$(links 2 "$DISK")" -gt 0 ]
	[ -z "$(find "$DISK" -name '*.save' -o -name '*.new')" ]
}

@test "a directory that mt-tier has moved while serve runs: the next saves link its tiles where they are" {
	trained
	local tier others=()
	spawn tier mt-tier "$RUN"
	tier=$PID
	spawn stream mt-stream "$RUN" --device cpu --threads 1 && others+=("$PID")
	spawn optim mt-optim "$RUN" --threads 1 && others+=("$PID")
	spawn serve mt-ckpt serve "$RUN" --dir "$DISK/ck" --keep 9 && others+=("$PID")
	step() {
		mt-feed --epochs 9 "$T/data" | timeout 120 mt-step "$RUN" --steps 10 --until "$1" --batch 2 --seq 32 --lr 3e-3 \
			--ckpt-every 1 >"$T/metrics" 2>"$T/step.err"
	}
	step 2
	end "$tier"
	spawn moved mt-tier "$RUN" --dir "$DISK/a=$DISK/c"
	tier=$PID
	eventually grep -q "$DISK/c/mt" "$T/moved.err"
	step 4
	end "$tier" "${others[@]}"
	[ "$(tiles "$DISK/a")" = 0 ] && [ "$(tiles "$DISK/c")" -gt 0 ]
	for n in 1 2 3 4; do mt-ckpt verify "$DISK/ck/step-0000000$n"; done
	[ "$(links 2 "$DISK/c")" = "$(tiles "$DISK/c")" ]
	mt-store rm "$RUN"
	[ "$(tiles "$DISK/c" "$DISK/b")" = 0 ]
}

#!/usr/bin/env bats
# mt-store create --tier: lo, m and v of the last units in files. What mt-tier does with them: tests/90-tier.bats.

load helpers

setup_file() {
	export M=$BATS_FILE_TMPDIR/model
	python3 "$BATS_TEST_DIRNAME/lib/mksafetensors.py" make "$M"
}

demo() { mt-store create "$1" --config "$CONFIGS/demo.json" --step-tokens 1K "${@:2}" 2>"$T/create.err"; }
in_files() { demo "$1" --tier "$DISK/a,$DISK/b" "${@:2}"; }
tier() { in_files "$1" --tier-memory 0 --tier-tile 64K "${@:2}"; }
tiles() { find "$DISK" -name 'unit-*.tile-*' | wc -l; }

# Two directories of a save or an export hold the same, but for the run's own number in run.json
same() {
	local f
	for f in "$1"/*; do
		[ "${f##*/}" = run.json ] || cmp "$f" "$2/${f##*/}"
	done
}

@test "create --tier makes a directory for each drive and every tile at its full size; rm removes them alone" {
	need_tier
	mkdir "$DISK/a" && touch "$DISK/a/mine"
	tier "$RUN"
	[ "$(tiles)" -gt 20 ]
	[ "$(stat -c %a "$DISK"/a/mt.*.tier)" = 700 ]
	[ "$(find "$DISK/a" -name 'unit-*' | wc -l)" -ge "$(find "$DISK/b" -name 'unit-*' | wc -l)" ]
	for f in "$DISK"/*/mt.*.tier/unit-*; do
		[ "$(stat -c %b "$f")" -ge $(($(stat -c %s "$f") / 512)) ]
	done
	mt-store rm "$RUN"
	[ "$(find "$DISK/a" "$DISK/b" | sort | tr '\n' ' ')" = "$DISK/a $DISK/a/mine $DISK/b " ]
}

@test "the files of tiles are safetensors, whose tensors are parts of units" {
	need_tier
	tier "$RUN" --state int8
	mt-store init "$RUN" --seed 1
	python3 - "$DISK"/*/mt.*.tier/unit-* <<-'END'
		import json, os, struct, sys
		parts = {}
		for path in sys.argv[1:]:
		    with open(path, "rb") as f:
		        n = struct.unpack("<Q", f.read(8))[0]
		        header = json.loads(f.read(n))
		    at = 0
		    for name, t in sorted(header.items(), key=lambda x: x[1]["data_offsets"]):
		        size = {"U8": 1, "I16": 2, "F32": 4}[t["dtype"]]
		        assert t["data_offsets"] == [at, at + size * t["shape"][0]], (path, name)
		        at = t["data_offsets"][1]
		        if name.startswith("unit."):
		            unit, rest = name[5:].split("[")
		            span = [int(x) for x in rest.split("]")[0].split(":")]
		            parts.setdefault((unit, rest.split("].")[1]), []).append(span)
		    assert os.path.getsize(path) == 8 + n + at
		assert {a for _, a in parts} == {"lo", "m", "m.scale", "v", "v.scale"}
		for spans in parts.values():            # each array of a unit is whole
		    spans.sort()
		    assert spans[0][0] == 0 and all(a[1] == b[0] for a, b in zip(spans, spans[1:]))
	END
}

# bats test_tags=slow
@test "init, load, save and export do the same with a tier as without one, for each type of state" {
	need_tier
	local other kind
	other=$(mt_run_name b)
	for kind in "--state fp32" "--state bf16" "--state int8" "--optim lion" "--dtype fp32" \
		"--grad none --state int8"; do
		demo "$other" $kind
		tier "$RUN" $kind
		mt-store init "$other" --seed 7
		mt-store init "$RUN" --seed 7
		mt-ckpt save "$other" "$T/plain"
		mt-ckpt save "$RUN" "$T/tiled"
		same "$T/plain" "$T/tiled"
		mt-ckpt export "$other" "$T/fp32" --dtype fp32
		mt-ckpt export "$RUN" "$T/tiled-fp32" --dtype fp32
		same "$T/fp32" "$T/tiled-fp32"
		mt-store init "$RUN" --seed 8
		mt-ckpt load "$RUN" "$T/plain"
		rm -r "$T/tiled" && mt-ckpt save "$RUN" "$T/tiled"
		same "$T/plain" "$T/tiled"
		mt-store rm "$RUN" && mt-store rm "$other"
		rm -r "$T/plain" "$T/tiled" "$T/fp32" "$T/tiled-fp32"
	done
}

# bats test_tags=slow
@test "a filling never writes to a file that has a second link" {
	need_tier
	tier "$RUN"
	mt-store init "$RUN" --seed 1
	mkdir "$DISK/links"
	ln "$DISK"/a/mt.*.tier/* "$DISK/links"
	cat "$DISK"/links/* | sha256sum >"$T/before"
	mt-store init "$RUN" --seed 2
	cat "$DISK"/links/* | sha256sum | cmp - "$T/before"
	cat "$DISK"/a/mt.*.tier/* | sha256sum >"$T/now"
	no cmp -s "$T/now" "$T/before"
}

@test "--tier-memory keeps the first units in memory; with all of them there is no tier, 78" {
	need_tier
	in_files "$RUN" --tier-tile 64K --tier-memory 20M
	local some
	some=$(tiles)
	mt-store rm "$RUN"
	tier "$RUN"
	[ "$(tiles)" -gt "$some" ] && [ "$some" -gt 0 ]
	mt-store rm "$RUN"
	exits 78 in_files "$RUN" --tier-memory 1G
	[ "$(tiles)" = 0 ] && no mt-store stat "$RUN" 2>/dev/null
}

@test "exact routers' lo stays in memory, where compute reads it" {
	need_tier
	local model=$GOLDEN/minimax-m2/model
	mt-store create "$RUN" --config "$model" --step-tokens 1K --tier "$DISK/a" --tier-memory 0 --tier-tile 64K
	mt-ckpt load "$RUN" "$model"
	no grep -aq '\.lo"' "$DISK"/a/mt.*.tier/unit-0001.tile-000
	grep -aq '\.m"' "$DISK"/a/mt.*.tier/unit-0001.tile-000
}

@test "what no tier can have is refused, and nothing is left behind" {
	need_tier
	exits 64 in_files "$RUN" --tier-memory 0 --tier-tile 1000
	grep -q "multiple of 65536" "$T/create.err"
	exits 64 demo "$RUN" --tier-memory 0
	exits 64 demo "$RUN" --tier ,
	exits 64 tier "$RUN" --tier-slots 1
	exits 78 tier "$RUN" --state none --grad none
	exits 78 tier "$RUN" --node 0/2
	exits 73 demo "$RUN" --tier "$DISK/no/such" --tier-memory 0
	exits 78 demo "$RUN" --tier "${MT_SHM_DIR:-/dev/shm}" --tier-memory 0
	grep -q "ext4, xfs, btrfs or f2fs" "$T/create.err"
	[ "$(tiles)" = 0 ] && exits 66 mt-store stat "$RUN" 2>/dev/null
	[ -z "$(find "${MT_SHM_DIR:-/dev/shm}" -name "mt.*$RUN*")" ]
}

@test "a file of a tile that is missing, cut or another's: load, save and export exit with one line" {
	need_tier
	tier "$RUN"
	mt-store init "$RUN" --seed 1
	local f
	f=$(echo "$DISK"/a/mt.*.tier/unit-0001.tile-000)
	mv "$f" "$DISK/away"
	exits 66 mt-ckpt save "$RUN" "$T/save" 2>"$T/err"
	grep -q "unit-0001.tile-000" "$T/err" && [ "$(wc -l <"$T/err")" = 1 ] && [ ! -e "$T/save" ]
	cp "$DISK/away" "$f" && truncate -s -4096 "$f"
	exits 65 mt-ckpt save "$RUN" "$T/save" 2>"$T/err"
	grep -q "another length" "$T/err"
	rm -r "$DISK/a"
	exits 66 mt-ckpt save "$RUN" "$T/save" 2>"$T/err"
	mt-ckpt export "$RUN" "$T/export" # w is in memory
	exits 66 mt-store init "$RUN" --seed 1 2>"$T/err"
	mt-store stat "$RUN" | grep -q empty
}

@test "a control region whose tier is damaged is refused with 65" {
	need_tier
	tier "$RUN"
	local control at first
	control=${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.control
	at=$(mt-store stat --abi --json | python3 -c 'import json, sys
s = json.load(sys.stdin)["structures"]
print(s["mt_control"]["fields"]["tier"]["offset"])')
	for field in 0 16 24 32 40 48; do
		first=$(python3 "$TOP/tests/lib/region.py" "$control" $((at + field)))
		python3 "$TOP/tests/lib/region.py" "$control" $((at + field)) $((first + 64))
		exits 65 mt-store stat "$RUN" 2>"$T/err"
		python3 "$TOP/tests/lib/region.py" "$control" $((at + field)) "$first"
	done
	mt-store stat "$RUN" >"$T/out"
}

# tests/bench/run: its table, its JSON and its pictures. What it measures is not tested here: machines may be busy.
load helpers

BENCH=$TOP/tests/bench
bench() { MT_BENCH_PYTHON="$T/python" TMPDIR="$T/tmp" "$BENCH/run" --out "$T/out" "$@"; }
setup() {
	T=$BATS_TEST_TMPDIR
	: >"$T/pids"
	mkdir "$T/tmp"
}
# A Python in which DeepSpeed is missing, and whose fused AdamW updates in half a second
fake_peers() {
	cat >"$T/python" <<-'EOF'
		#!/bin/sh
		case $* in *deepspeed*) echo '{"missing": "DeepSpeed"}'; exit ;; esac
		echo '{"torch": "0.0"}'
		while read -r n; do echo '{"seconds": [0.75, 0.5]}'; done
	EOF
	chmod +x "$T/python"
}
# Python with the result as b, its rows as rows, and those of one part as part("adam"): of_result CODE
of_result() {
	python3 -c 'import json, sys
b = json.load(open(sys.argv[1]))
rows = b["rows"]
part = lambda name: [r for r in rows if r["part"] == name]
'"$1" "$T/out/latest.json"
}
complete_is() { of_result "assert b['header']['complete'] is $1"; }

# bats test_tags=slow
@test "rows are flat and have the same keys; ratios are value / peer; limits are stated; one table shows all" {
	fake_peers
	bench --quick --only memory,adam,peers,ring >"$T/table"
	complete_is True
	PYTHONPATH=$BENCH of_result '
from rows import KEYS
assert all(not isinstance(x, (list, dict)) for r in [b["header"], *rows] for x in r.values())
assert all(tuple(r) == KEYS for r in rows)
assert {"cpu", "cores", "isa", "memory_bytes", "date", "commit", "load_before", "version_torch"} <= set(b["header"])
assert [r["part"] for r in rows] == sorted((r["part"] for r in rows), key=["memory", "adam", "peers", "ring"].index)
for r in rows:
    both = r["value"] is not None and r["peer_value"] is not None
    assert both == (r["ratio"] is not None), r
    assert not both or abs(r["ratio"] * r["peer_value"] / r["value"] - 1) < 1e-9, r
    assert r["low"] is None or r["low"] <= r["value"] <= r["high"], r
    got = r["bar_of"] and r[r["bar_of"]]
    want = None if got is None else got >= r["bar"] if r["bar_sign"] == ">=" else got <= r["bar"]
    assert r["met"] == want, r
bars = {(r["part"], r["bar_of"], r["bar_sign"], r["bar"]) for r in rows if r["bar"]}
assert bars == {("memory", "value", "<=", 6.2), ("memory", "value", "<=", 8.1), ("adam", "ratio", ">=", 1.35),
                ("adam", "ratio", ">=", 1.6), ("peers", "ratio", ">=", 1.3), ("peers", "ratio", ">=", 1.7),
                ("ring", "value", ">=", 20), ("ring", "ratio", ">=", 5)}, bars
'
	awk '/^part  / { on = 1; next } on && NF == 0 { exit } on { print $1 }' "$T/table" >"$T/shown"
	of_result 'print(*(r["part"] for r in rows), sep="\n")' | diff "$T/shown" -
	grep -q '^bars: [0-9]* met, [0-9]* missed$' "$T/table"
	! command -v gnuplot >/dev/null || [ "$(head -c 4 "$T/out/peers.png" | tail -c 3)" = PNG ]
	# into a directory that is not there yet, as it is in a new clone without --out
	PYTHONPATH=$BENCH of_result "import plots; plots.plot('$T/new/bench', rows)"
	! command -v gnuplot >/dev/null || cmp "$T/new/bench/peers.png" "$T/out/peers.png"
	[ -z "$(ls "$T/tmp")" ]
}

# bats test_tags=nightly
@test "training has a share of the peak: its FLOPs over its time over what multiply-adds alone do in the same run" {
	bench --quick --only fp32,bf16 --models demo --no-torch >"$T/table"
	of_result '
import os, statistics
config = json.load(open("'"$CONFIGS"'/demo.json"))
h, f, v, layers = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"))
assert config["num_key_value_heads"] == config["num_attention_heads"]
weights, scores = layers * (4 * h * h + 3 * h * f) + v * h, layers * 8 * 256 * 256 / 2
gflop = (6 * weights * 8 * 256 + 3 * 4 * scores * h) / 1e9
for name in "fp32", "bf16":
    peak, row = part(name)[:2]
    assert (peak["what"], row["what"], peak["share"]) == ("peak of multiply-adds", "training", None)
    share = gflop * row["value"] / (8 * 256) / peak["high"]
    assert 0.99 < row["share"] / share < 1.01 and 0.001 < row["share"] < 1.05, (row, peak, share)
fp32, bf16 = (part(name)[0]["value"] for name in ("fp32", "bf16"))
flags = open("/proc/cpuinfo").read().split()
assert fp32 > 1 and (bf16 > 1.5 * fp32 if "amx_bf16" in flags else bf16 > 0.8 * fp32), (fp32, bf16)
'
	grep -q "^fp32  training  .*  $(of_result 'print("%.3g" % part("fp32")[1]["share"])')  " "$T/table"
}

@test "README.md, tests/bench/results/README.md and shm/model/README.md have the tables that make figures writes" {
	"$BENCH/figures" --check
	# a number typed by hand shows, and so does a result that was added
	mkdir -p "$T/repo/tests" "$T/repo/shm"
	cp "$TOP/README.md" "$T/repo/"
	cp -r "$TOP/shm/model" "$T/repo/shm/"
	cp -r "$BENCH" "$T/repo/tests/"
	sed -i 's/^| Xeon with AMX | 1.54 /| Xeon with AMX | 1.55 /' "$T/repo/README.md"
	no "$T/repo/tests/bench/figures" --check >"$T/diff"
	grep -q '^-| Xeon with AMX | 1.55 ' "$T/diff"
	cat >"$T/latest.json" <<-'EOF'
		{"header": {"date": "2026-12-01T00:00:00Z", "commit": "0123456789", "changed": false, "cpu": "a CPU"},
		"rows": [{"part": "fp32", "what": "training", "model": "97M, 2 rows of 512", "value": 20.0, "unit": "tokens/s",
		"peer": "PyTorch", "peer_value": 10.0, "ratio": 2.0, "ratio_low": 1.5, "ratio_high": 2.5}]}
	EOF
	"$T/repo/tests/bench/figures" --add new 'EPYC (Zen 3)' "$T/latest.json"
	grep -q '^| EPYC (Zen 3) | 1.32 to 1.41 | – | 1.28 to 2 | ' "$T/repo/README.md"
	"$T/repo/tests/bench/figures" --check
}

# bats test_tags=slow
@test "a peer that is there gives its best update; a peer that is missing is named in its row" {
	fake_peers
	bench --quick --only peers >"$T/table"
	of_result '
torch = [r for r in rows if r["peer"] == "torch AdamW fused"]
deepspeed = [r for r in rows if r["peer"] == "DeepSpeed cpu_adam"]
assert len(torch) == len(deepspeed) == len(rows) / 2
assert all(abs(r["peer_value"] - r["size"] / 0.5 / 1e9) < 1e-12 and r["note"] is None for r in torch)
assert all(r["value"] > 0 and r["peer_value"] is None and r["met"] is None for r in deepspeed)
assert all(r["note"].startswith("skipped: ") and r["note"].endswith(" has no DeepSpeed") for r in deepspeed)
assert {r["model"] for r in rows} >= {"1 thread"}
'
	rm "$T/python"
	bench --quick --only peers >"$T/table"
	of_result 'assert all(r["note"].endswith("No such file or directory") and r["value"] > 0 for r in rows)'
}

@test "without git, the result of an unpacked archive names no commit" {
	mkdir "$T/programs"
	(IFS=:; for dir in $PATH; do ln -s "$dir"/* "$T/programs" 2>"$T/err" || true; done)
	rm -f "$T/programs/git"
	PATH=$T/programs bench --quick --only peers >"$T/table"
	of_result 'assert b["header"]["commit"] is None and b["header"]["changed"] is None'
}

@test "energy is what processors, memory and GPUs counted, beyond a counter's end too; null where nothing counts" {
	mkdir -p "$T/cap/intel-rapl:0" "$T/cap/intel-rapl:0:0" "$T/cap/intel-rapl:0:1" "$T/cap/intel-rapl-mmio:0" "$T/lib"
	ln -s "$BUILD/probes/so-nvml.so" "$T/lib/libnvidia-ml.so.1"
	TMPDIR=$T/tmp PYTHONPATH=$BENCH MT_POWERCAP=$T/cap NVML_SENSORS=$T/sensors LD_LIBRARY_PATH=$T/lib python3 - <<-'PY'
		import energy, os
		def zone(zone, name, now, end=1000000):
		    for file, value in (("name", name), ("energy_uj", now), ("max_energy_range_uj", end)):
		        with open(os.path.join(energy.POWERCAP, zone, file), "w") as f:
		            print(value, file=f)
		def sensors(*energies):
		    with open(os.environ["NVML_SENSORS"], "w") as f:
		        f.writelines("80000 1 1 1 1 1 1 %s\n" % e for e in energies)
		assert energy.Meter().joules() is None and energy.Meter().watts() is None
		zone("intel-rapl:0", "package-0", 900000)
		zone("intel-rapl:0:0", "core", 10)
		zone("intel-rapl:0:1", "dram", 500000, 2000000)
		zone("intel-rapl-mmio:0", "package-0", 1)
		sensors(5000, "-", 1000)
		meter, host = energy.Meter(), energy.Meter(energy.packages)
		zone("intel-rapl:0", "package-0", 100000)       # 0.2 J, over the end
		zone("intel-rapl:0:0", "core", 900000)          # part of the package's
		zone("intel-rapl:0:1", "dram", 800000, 2000000) # 0.3 J
		zone("intel-rapl-mmio:0", "package-0", 300000)  # the same package again
		sensors(7500, "-", 2000)                        # 3.5 J; the second does not count
		assert abs(meter.joules() - 4.0) < 1e-9, meter.joules()
		assert abs(host.joules() - 0.5) < 1e-9 and host.watts() > 0, host.joules()
		zone("intel-rapl:0", "package-0", "")           # not to be read by this user
		assert abs(energy.Meter().joules()) < 1e-9
		import programs
		assert programs.Watch().end()["joules"] is not None
	PY
}

# bats test_tags=slow
@test "mt and ZeRO-3 take turns from the same files: speed, memory with shared memory once, the loss of each step" {
	cat >"$T/python" <<-'EOF'
		#!/bin/sh
		echo '{"torch": "0.0", "deepspeed": "0.0"}'
		while read -r n; do
			[ "$n" = 1 ] && echo '{"losses": [5], "seconds": [9]}' || echo '{"losses": [4, 3], "seconds": [9, 2]}'
		done
	EOF
	chmod +x "$T/python"
	bench --quick --only zero3 --models tiny >"$T/table"
	of_result '
for dtype in "fp32", "bf16":
    found = {r["what"]: r for r in rows if r["model"] == "tiny %s, 2 rows of 32" % dtype}
    assert all(r["peer"] in ("DeepSpeed ZeRO-3", None) for r in found.values())
    assert found["training"]["peer_value"] == 2 * 32 / 2 and found["training"]["value"] > 0
    losses = [found["loss of step %d" % step] for step in (1, 2, 3)]
    assert [r["peer_value"] for r in losses] == [5, 4, 3] and all(4 < r["value"] < 6 for r in losses), losses
    memory, most = found["host memory"], found["host memory, most in a step"]
    params, both = memory["size"], (memory, most)
    assert 16 < memory["value"] <= most["value"] < 16 + (1 << 30) / params, both   # weights, gradients, m and v
    assert memory["peer_value"] * params < 50 << 20, both
assert b["header"]["version_deepspeed"] == "0.0" and len(part("zero3")) == 2 * 9
'
	[ -z "$(ls "$T/tmp")" ]
}

# bats test_tags=slow
@test "torch_train.py: FSDP2 and ZeRO-3, where installed, have the losses of PyTorch alone, with micro-batches too" {
	need_torch
	python3 - "$T/records" <<-'PY'
		import random, struct, sys
		with open(sys.argv[1], "wb") as f:
		    for _ in range(12):
		        f.write(struct.pack("<33I", 32, *(random.randrange(96) for _ in range(32))))
	PY
	train() {
		echo 3 | with_torch "$BENCH/torch_train.py" "$GOLDEN/qwen3/model" "$T/records" --batch 4 --seq 32 --lr 1e-3 "$@"
	}
	train >"$T/alone"
	for by in fsdp2 zero3; do
		train --by "$by" --micro 2 --recompute >"$T/$by" 2>"$T/$by.err"
		python3 - "$T/alone" "$T/$by" <<-'PY'
			import json, sys
			alone, other = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
			if other != [{"missing": "deepspeed"}]:
			    pairs = list(zip(alone[1]["losses"], other[1]["losses"]))
			    assert len(pairs) == 3 and all(abs(a - b) < 1e-5 * a for a, b in pairs), pairs
			    assert alone[1]["losses"][0] - alone[1]["losses"][2] != 0
		PY
	done
}

@test "a power is fitted to points on a logarithmic scale, with its residual" {
	PYTHONPATH=$BENCH python3 - <<-'PY'
		from rows import fit
		a, b, residual = fit([(10 ** i, 3 * (10 ** i) ** 1.5) for i in range(5)])
		assert abs(a - 1.5) < 1e-9 and abs(b - 1.0986) < 1e-4 and residual < 1e-9
		a, _, residual = fit([(1, 1.1), (10, 10 / 1.1), (100, 100 / 1.1), (1000, 1100)])
		assert abs(a - 1) < 1e-9 and abs(residual - 0.0953) < 1e-4
	PY
}

@test "the median of many pairs has its 95 % interval; a save that takes longer than two steps does not count" {
	TMPDIR=$T/tmp PYTHONPATH=$BENCH python3 - <<-'PY'
		from rows import make_row, median_interval
		from training import Stall
		ranks = {6: (1, 6), 12: (3, 10), 24: (7, 18), 40: (14, 27)}     # of the usual tables
		assert all(median_interval(list(range(n, 0, -1))) == ranks[n] for n in ranks)
		twice = [2.0 * i for i in range(1, 13)]
		row = make_row("stall", "x", twice, "s", "y", [1.0] * 12, pairs=True, bar="ratio_high <= 19")
		assert (row["ratio"], row["ratio_low"], row["ratio_high"], row["met"]) == (13, 6, 20, False), row
		stall = Stall()
		stall.add([10, 13, 16, 18, 20], [0, 1, 2, 4, 6], (10, 15))
		stall.add([20, 23, 26, 28, 30], [6, 7, 8, 9, 10], (20, 27))
		stall.add([30, 33, 36, 38, 40], [10, 11, 12, 13, 14], None)
		assert (stall.seconds, stall.cpu_s) == (([3], [2]), ([1], [2])), vars(stall)
		assert (stall.save_s, stall.longer) == ([5, 7], 2), vars(stall)
	PY
}

# bats test_tags=nightly
@test "a step is compared with its busiest stage, with one micro-batch and with several" {
	bench --quick --only overlap --models demo >"$T/table"
	of_result '
assert [r["what"] for r in rows] == ["step of one micro-batch", "step of 4 micro-batches"]
assert all((r["bar_of"], r["bar_sign"], r["bar"]) == ("ratio", "<=", 1.05) for r in rows)
assert all(r["peer"].startswith("mt-") and 0 < r["peer_value"] and 0 < r["value"] for r in rows)
'
	[ -z "$(ls "$T/tmp")" ]
}

# bats test_tags=nightly
@test "geometries have time, memory and fitted powers; a step without something has its ratio to one with all" {
	bench --quick --only geometry,ablation >"$T/table"
	PYTHONPATH=$BENCH of_result '
from left_out import LEFT_OUT
geometry = {(r["what"], r["model"].split(",")[0]): r["value"] for r in part("geometry")}
assert len([what for what, _ in geometry if what.startswith("exponent of ")]) == 6, geometry
assert all(value > 0 for (what, _), value in geometry.items() if " over " in what[:12]), geometry
memory = [geometry["memory over depth", f"{n} blocks of 512"] for n in (2, 4)]
assert 40 < memory[1] - memory[0] < 100, memory         # MB of 6.4 M parameters in 6.1 bytes, and rings
assert memory[1] < geometry["memory over depth, of equal size", "8 blocks of 512"], geometry
for compute in "bf16", "fp32":
    turns = [r for r in part("ablation") if r["model"] == f"demo, --compute {compute}"]
    assert [r["what"] for r in turns] == [what for what, *_ in LEFT_OUT] and turns[0]["ratio"] == 1, turns
'
	[ -z "$(ls "$T/tmp")" ]
}

# bats test_tags=nightly
@test "a step on two nodes is compared with one machine, and nothing is left of the nodes" {
	need_mpi
	local shm=${MT_SHM_DIR:-/dev/shm}/$(mt_run_name)
	mkdir "$shm"
	MT_SHM_DIR=$shm bench --quick --only nodes --models demo >"$T/table"
	of_result '
assert [r["what"] for r in rows] == ["step of 2 nodes", "CPU time of all mt-links in a step"]
assert (rows[0]["bar_of"], rows[0]["bar_sign"], rows[0]["bar"]) == ("ratio", "<=", 1.1)
assert rows[0]["peer"] == "one machine" and rows[0]["value"] > 0 and rows[0]["peer_value"] > 0 and rows[1]["value"] > 0
'
	[ -z "$(ls "$T/tmp")" ]
	rmdir "$shm"
}

# bats test_tags=slow
@test "a bench that is ended leaves the rows so far, marked as incomplete, and no process, run or file" {
	printf '#!/bin/sh\necho $$ >%s/peer\nexec sleep 600\n' "$T" >"$T/python"
	chmod +x "$T/python"
	spawn bench env MT_BENCH_PYTHON="$T/python" TMPDIR="$T/tmp" "$BENCH/run" --quick --only memory,peers --out "$T/out"
	eventually test -s "$T/peer"
	kill "$PID"
	exits 1 wait "$PID"
	[ "$(cat "$T/bench.err")" = "bench: SIGTERM" ]
	no kill -0 "$(cat "$T/peer")"
	[ -z "$(ls "$T/tmp")" ]
	complete_is False
	of_result 'assert rows and rows == part("memory")'
	no ls -d "$(regions_of "bench-$PID-")"*
}

@test "parts and models that do not exist are errors, and the message names those that do" {
	for option in --only --models; do
		no bench "$option" nothing 2>"$T/err" >"$T/out.txt"
		[ ! -s "$T/out.txt" ]
		grep -q -- "$option: 'nothing' is not of .*, " "$T/err"
	done
	[ -z "$(ls "$T/tmp")" ]
}

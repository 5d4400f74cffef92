# Watching a run: mt-store stat for people, as JSON, for Prometheus and for programs in other languages.
load helpers

CASE=$GOLDEN/llama3

# N documents of 32 tokens
documents() {
	python3 -c 'import struct, sys
for i in range(int(sys.argv[1])):
    sys.stdout.buffer.write(struct.pack("<33I", 32, *((i + j) % 90 + 1 for j in range(32))))' "$1"
}
at_step() { [ "$(mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/')" = "$1" ]; }
shm() { echo "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.$1"; }
metrics_has() { [ "$(wc -l <"$T/step.out")" = "$1" ]; }
mt_step_waits() { mt-store stat "$RUN" | grep -q '^mt-step .*waits for input'; }

# A run whose mt-step has trained N steps of 50 and waits for more input, which comes through fd 7: waiting N [OPTIONS]
waiting() {
	local n=$1
	shift
	make_run "$CASE/model" --dtype fp32
	start_stages
	mkfifo "$T/fifo"
	exec 7<>"$T/fifo"
	# not by spawn: bash gives a command in the background /dev/null as its stdin, unless it is redirected there
	mt-step "$RUN" --steps 50 --batch 2 --seq 32 --lr 1e-3 "$@" <"$T/fifo" >"$T/step.out" 2>"$T/step.err" 3>&- 7>&- &
	PID=$!
	echo "$PID" >>"$T/pids"
	documents $((2 * n + 1)) >&7
	eventually at_step "$n"
	eventually mt_step_waits
	eventually metrics_has "$n"
}

# check FILE.json... <<PYTHON: `a`, `b`, ... are the files' objects
check() {
	{
		printf 'import json, math, re, sys\nobjects = [json.load(open(f)) for f in sys.argv[1:]]\n'
		printf 'a, b, c = (objects + [None] * 3)[:3]\n'
		cat
	} >"$T/check.py"
	python3 "$T/check.py" "$@"
}

# ---- mt-store stat

@test "stat --json gives the last step's metrics as mt-step printed them, with its horizon, speed and ETA" {
	waiting 4 --until 40
	mt-store stat "$RUN" --json >"$T/stat.json"
	tail -1 "$T/step.out" >"$T/metrics.json"
	check "$T/stat.json" "$T/metrics.json" <<-'END'
		for key in "step", "loss", "grad_norm", "lr", "tokens", "skipped":
		    assert a[key] == b[key], (key, a[key], b[key])
		assert (a["step"], a["steps"], a["until"], a["trained_tokens"]) == (4, 50, 40, 4 * 62), a
		assert a["tokens_per_s"] > 0 and a["step_s"] > 0, a
		assert math.isclose(a["tokens_per_s"] * a["step_s"], 62), a
		assert math.isclose(a["eta_s"], 36 * a["step_s"]), a
		assert a["units"] == {"count": 4, "at_step": 4, "before": 0, "other": 0, "pinned": 0}, a
		assert a["ring_slots"]["batch.0"] == 2 and a["rings"]["batch.0"] == 0, a
		w, rest = a["memory"]["w"], a["memory"]
		assert w >= 4 * a["params"] and rest["m"] == rest["v"] == rest["g"] == w and rest["lo"] == 0, a
		assert sum(v for k, v in rest.items() if k not in ("rings", "control")) <= a["state_bytes"], a
		stages = {s["stage"]: s for s in a["stages"]}
		assert set(stages) == {"mt-step", "mt-optim", "mt-stream 0"}, a
		assert all(s["cpu_s"] >= 0 and s["age_s"] > 0 for s in stages.values()), a
	END
}

@test "stat without mt-step keeps the last step's metrics and does not know horizon, speed and ETA" {
	waiting 3
	kill "$PID"
	exec 7>&-
	wait "$PID" || true
	mt-store stat "$RUN" --json >"$T/stat.json"
	tail -1 "$T/step.out" >"$T/metrics.json"
	check "$T/stat.json" "$T/metrics.json" <<-'END'
		assert a["step"] == 3 and a["loss"] == b["loss"] and a["lr"] == b["lr"], a
		assert all(a[key] is None for key in ("steps", "until", "tokens_per_s", "step_s", "eta_s")), a
	END
}

@test "stat before the first step gives null for loss, norm and learning rate" {
	make_run "$CASE/model"
	mt-store stat "$RUN" --json >"$T/stat.json"
	check "$T/stat.json" <<-'END'
		assert a["step"] == 0 and a["trained_tokens"] == 0, a
		assert all(a[key] is None for key in ("loss", "grad_norm", "lr", "tokens", "skipped", "tokens_per_s")), a
		assert a["memory"]["w"] == a["memory"]["lo"] > 0, a
	END
	no grep -q '^training:' <(mt-store stat "$RUN")
}

@test "stat keeps the loss of a step that was evaluated, whose record stands beside the evaluation's" {
	make_run "$CASE/model" --dtype fp32
	start_stages
	documents 8 >"$T/eval"
	documents 8 | mt-step "$RUN" --steps 4 --batch 2 --seq 32 --lr 1e-3 --eval "$T/eval" --eval-every 2 >"$T/m"
	mt-store stat "$RUN" --json >"$T/stat.json"
	tail -1 "$T/m" >"$T/metrics.json"
	check "$T/stat.json" "$T/metrics.json" <<-'END'
		assert "eval_loss" in b and a["txn"]["kind"] == "eval", (a, b)
		assert a["step"] == b["step"] == 4 and a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)
	END
}

@test "stat prints step, loss, speed, ETA and memory in units that people read" {
	waiting 4 --until 40
	mt-store stat "$RUN" >"$T/stat"
	mt-store stat "$RUN" --json >"$T/stat.json"
	grep -qx "run $RUN: filled, step 4 of 40 (the schedule has 50)" "$T/stat"
	grep -qx "model: llama, 25.8 k parameters, fp32, gradients fp32" "$T/stat"
	loss=$(python3 -c 'import json, sys; print("%.4f" % json.load(open(sys.argv[1]))["loss"])' "$T/stat.json")
	grep -Eqx "training: loss $loss, grad norm [0-9.]+, lr [0-9.e-]+, [0-9.]+( k)? tokens/s, ETA ([0-9]+:)+[0-9]+" \
		"$T/stat"
	grep -Eq "^memory: 452 KiB of state, 17.92 bytes a parameter; [0-9.]+ MiB in all; numa default$" "$T/stat"
	grep -Eq "^arrays: w 102 KiB, m 102 KiB, v 102 KiB, g 102 KiB, rings [0-9.]+ MiB, control [0-9.]+ KiB$" "$T/stat"
	grep -Eq "^mt-stream 0 .*; micros 4, tokens 256, bytes_in [0-9.]+ [KM]iB, .* wait [0-9.]+ s, busy [0-9.]+ s" "$T/stat"
}

@test "stat --prometheus follows the format's grammar and has the values of stat --json" {
	waiting 4
	mt-store stat "$RUN" --prometheus >"$T/prom"
	mt-store stat "$RUN" --json >"$T/stat.json"
	python3 "$TOP/tests/lib/prometheus.py" "$T/prom" >"$T/prom.json"
	check "$T/prom.json" "$T/stat.json" <<-'END'
		assert all(labels["run"] == b["run"] and name.startswith("mt_") for name, labels, x in a), a
		def value(name, **more):
		    found = [x for n, labels, x in a if n == name and labels == dict(more, run=b["run"])]
		    assert len(found) == 1, (name, more, found)
		    return found[0]
		for name, key in ("mt_step", "step"), ("mt_steps", "steps"), ("mt_parameters", "params"), \
		        ("mt_loss", "loss"), ("mt_grad_norm", "grad_norm"), ("mt_learning_rate", "lr"), \
		        ("mt_trained_tokens_total", "trained_tokens"), ("mt_last_step_tokens", "tokens"), \
		        ("mt_run_bytes", "bytes"):
		    assert math.isclose(value(name), b[key], rel_tol=1e-14), name
		assert value("mt_tokens_per_second") > 0 and value("mt_eta_seconds") > 0
		assert value("mt_state", state="filled") == 1 and value("mt_state", state="dirty") == 0
		assert value("mt_memory_bytes", array="w") == b["memory"]["w"]
		assert value("mt_ring_slots", ring="batch.0") == 2 and value("mt_ring_messages", ring="save") == 0
		assert value("mt_units", version="step") == 4 and value("mt_units_pinned") == 0
		assert value("mt_stage_up", stage="mt-stream 0") == 1 and value("mt_stream_micros_total", stage="mt-stream 0") == 4
	END
}

@test "stat --prometheus escapes label values, and leaves out what is unknown" {
	make_run "$CASE/model"
	mt-store stat --abi --json >"$T/abi.json"
	python3 - "$T/abi.json" "$(shm control)" <<-'END'
		import json, sys
		field = json.load(open(sys.argv[1]))["structures"]["mt_control"]["fields"]["numa"]
		with open(sys.argv[2], "r+b") as f:
		    f.seek(field["offset"])
		    f.write(b'a"b\\c\nd\x1b[2J\xff\0')
	END
	mt-store stat "$RUN" --prometheus >"$T/prom"
	python3 "$TOP/tests/lib/prometheus.py" "$T/prom" >"$T/prom.json"
	check "$T/prom.json" <<-'END'
		info = [labels for name, labels, x in a if name == "mt_run_info"]
		assert info[0]["numa"] == 'a"b\\c?d?[2J?', info
		assert not {"mt_loss", "mt_learning_rate", "mt_steps", "mt_eta_seconds"} & {name for name, labels, x in a}, a
	END
	mt-store stat "$RUN" --json | python3 -c 'import json, sys
assert json.load(sys.stdin)["numa"] == "a\"b\\c?d?[2J?"'
}

@test "stat --abi --json is enough to read a live run's step, versions and stages from shared memory" {
	waiting 5
	mt-store stat --abi --json >"$T/abi.json"
	[ "$(wc -l <"$T/abi.json")" = 1 ]
	python3 "$TOP/tests/lib/abi-reader.py" "$T/abi.json" "$(shm control)" "$(shm rings)" >"$T/read.json"
	mt-store stat "$RUN" --json >"$T/stat.json"
	check "$T/read.json" "$T/stat.json" <<-'END'
		assert a["magic"] and a["abi"] and a["size"] and a["rings"], a
		for key in "run", "family", "state", "params", "step", "lr":
		    assert a[key] == b[key], (key, a[key], b[key])
		assert a["step"] == 5 and a["versions"] == [5] * 4 and a["first_ring"] == "batch.0", a
		assert sorted(s["pid"] for s in a["stages"].values()) == sorted(s["pid"] for s in b["stages"]), (a, b)
		stream = [s for s in b["stages"] if s["stage"] == "mt-stream 0"][0]
		assert a["stages"]["8"]["counters"][0] == stream["counters"]["micros"] == 5, (a, b)
	END
}

@test "stat --abi --json has the fields of stat --abi, each with a type that makes up its size" {
	mt-store stat --abi --json >"$T/abi.json"
	mt-store stat --abi >"$T/abi"
	check "$T/abi.json" <<-END
		text = open("$T/abi").read().split("\n\n")
		sizes = {"char": 1, "u8": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "f64": 8}
		sizes.update((name, s["size"]) for name, s in a["structures"].items())
		listed = 0
		for paragraph in text[:-1]:
		    name, *fields = paragraph.split("\n")
		    for line in fields:
		        offset, size, field = line.split()
		        f = a["structures"][name]["fields"][field]
		        assert (f["offset"], f["size"]) == (int(offset), int(size)), (name, field)
		        assert f["count"] * sizes[f["type"]] == f["size"], (name, field, f)
		        listed += 1
		assert listed == sum(len(s["fields"]) for s in a["structures"].values()) > 150
		assert dict(reversed(line.split()) for line in text[-1].strip().split("\n")[1:]) == \
		    {name: str(s["size"]) for name, s in a["structures"].items()}
		assert a["structures"]["mt_txn"]["fields"]["word"]["atomic"]
		assert not a["structures"]["mt_txn"]["fields"]["step"]["atomic"]
	END
}

@test "stat's options that exclude each other exit 64" {
	fails_with 64 mt-store stat "$RUN" --json --prometheus
	fails_with 64 mt-store stat "$RUN" --abi
	fails_with 64 mt-store stat --abi --prometheus
	fails_with 64 mt-store ls --prometheus
	unset MT_RUN
	fails_with 64 mt-store stat --prometheus
	MT_RUN=$RUN mt-store stat --abi >"$T/abi"
}

# Watching a run: mt-store stat for people, as JSON, for Prometheus and for programs in other languages; mt-top.
load helpers

CASE=$GOLDEN/llama3

at_step() { [ "$(mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/')" = "$1" ]; }
shm() { echo "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.$1"; }
metrics_has() { [ "$(wc -l <"$T/step.out")" = "$1" ]; }
mt_step_waits() { mt-store stat "$RUN" | grep -q '^mt-step .*waits for input'; }

# A run whose mt-step has trained N steps of 50 and waits for more input, which comes through fd 7: waiting N [OPTIONS]
waiting() {
	local n=$1
	shift
	make_run "$CASE/model" --dtype fp32
	start_stages ${STREAM_OPTIONS:-}
	${MORE_STAGES:-:}
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
		for key in "step", "loss", "grad_norm", "lr", "tokens", "processed", "skipped":
		    assert a[key] == b[key], (key, a[key], b[key])
		assert (a["step"], a["steps"], a["until"], a["trained_tokens"]) == (4, 50, 40, 4 * 62), a
		assert a["processed_tokens"] == 4 * 64, a
		assert a["tokens_per_s"] > 0 and a["step_s"] > 0, a
		assert math.isclose(a["tokens_per_s"] * a["step_s"], 64), a
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
	ready
	documents 8 >"$T/eval"
	documents 8 | mt-step "$RUN" --steps 4 --batch 2 --seq 32 --lr 1e-3 --eval "$T/eval" --eval-every 2 >"$T/m"
	mt-store stat "$RUN" --json >"$T/stat.json"
	tail -1 "$T/m" >"$T/metrics.json"
	check "$T/stat.json" "$T/metrics.json" <<-'END'
		assert "eval_loss" in b and a["txn"]["kind"] == "eval", (a, b)
		assert a["step"] == b["step"] == 4 and a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)
	END
}

# bats test_tags=slow
@test "stat beside training with evaluations never mixes steps: loss, norm and lr are those of its step's metrics" {
	ready
	documents 8 >"$T/eval"
	documents 600 | mt-step "$RUN" --steps 300 --batch 2 --micro 1 --seq 32 --lr 1e-3 --eval "$T/eval" --eval-every 2 \
		>"$T/step.out" 2>"$T/step.err" 3>&- &
	PID=$!
	echo "$PID" >>"$T/pids"
	while kill -0 "$PID" 2>/dev/null; do mt-store stat "$RUN" --json >>"$T/looks"; done
	wait "$PID"
	mt-store stat "$RUN" --json >>"$T/looks"
	python3 - "$T/looks" "$T/step.out" <<-'END'
		import json, sys
		looks = [json.loads(line) for line in open(sys.argv[1])]
		lines = {m["step"]: m for m in map(json.loads, open(sys.argv[2])) if "loss" in m}
		for look in looks:
		    for key in "loss", "grad_norm", "lr":
		        known = look[key] is not None
		        assert not known or look[key] == lines[look["step"]][key], (key, look, lines[look["step"]])
		assert looks[-1]["step"] == 300 and looks[-1]["loss"] is not None, looks[-1]
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
	counters="micros 4, tokens 256, bytes_in [0-9.]+ [KM]iB, .* wait [0-9.]+ s, busy [0-9.]+ s"
	grep -Eq "^mt-stream 0 .*; $counters" "$T/stat"
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
		        ("mt_processed_tokens_total", "processed_tokens"), ("mt_last_step_processed_tokens", "processed"), \
		        ("mt_run_bytes", "bytes"):
		    assert math.isclose(value(name), b[key], rel_tol=1e-14), name
		assert value("mt_tokens_per_second") > 0 and value("mt_eta_seconds") > 0
		assert value("mt_state", state="filled") == 1 and value("mt_state", state="dirty") == 0
		assert value("mt_memory_bytes", array="w") == b["memory"]["w"]
		assert value("mt_ring_slots", ring="batch.0") == 2 and value("mt_ring_messages", ring="save") == 0
		assert value("mt_units", version="step") == 4 and value("mt_units_pinned") == 0
		assert value("mt_stage_up", stage="mt-stream 0") == 1
		assert value("mt_stream_micros_total", stage="mt-stream 0") == 4
	END
}

# Write bytes over the run's NUMA policy, which is text: write_numa <<PYTHON'S-BYTES
write_numa() {
	mt-store stat --abi --json >"$T/abi.json"
	python3 -c '
import json, sys
field = json.load(open(sys.argv[1]))["structures"]["mt_control"]["fields"]["numa"]
with open(sys.argv[2], "r+b") as f:
    f.seek(field["offset"])
    f.write(eval(sys.stdin.read()))' "$T/abi.json" "$(shm control)"
}

@test "stat --prometheus escapes label values, and leaves out what is unknown" {
	make_run "$CASE/model"
	write_numa <<-'END'
		b'a"b\\c\nd\x1b[2J\xff\0'
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
	check "$T/read.json" "$T/stat.json" "$T/abi.json" <<-'END'
		assert a["magic"] and a["abi"] and a["size"] and a["rings"], a
		for key in "run", "family", "state", "params", "step", "lr":
		    assert a[key] == b[key], (key, a[key], b[key])
		assert a["step"] == 5 and a["versions"] == [5] * 4 and a["first_ring"] == "batch.0", a
		assert sorted(s["pid"] for s in a["stages"].values()) == sorted(s["pid"] for s in b["stages"]), (a, b)
		stream = [s for s in b["stages"] if s["stage"] == "mt-stream 0"][0]
		assert a["stages"]["8"]["counters"][0] == stream["counters"]["micros"] == 5, (a, b)
		names = c["constants"]["counters"]
		for s in b["stages"]:
		    assert names.get(s["stage"].split()[0], []) == list(s["counters"]), (names, s)
		assert "tiles_written" in names["mt-tier"], names
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

# ---- mt-top

printable() { [ -s "$1" ] && [ "$(LC_ALL=C tr -d ' -~\n' <"$1" | wc -c)" = 0 ]; } # printable ASCII and newlines alone
need_top() { need_cmd mt-top; }
once() { LC_ALL=${LOCALE:-C.UTF-8} COLUMNS=${1:-80} mt-top "$RUN" --once; }

# mt-top in a terminal of COLUMNS x ROWS: in_terminal COLUMNS ROWS [OPTIONS]. When it has ended, the terminal shows how,
# and whether it echoes again.
in_terminal() {
	local cols=$1 rows=$2
	shift 2
	need_top
	need_cmd tmux
	need_terminal
	unset TMUX
	export TMUX_TMPDIR=$T
	cat >"$T/pane" <<-'END'
		#!/bin/sh
		mt-top "$@" 2>"$T/top.err"
		echo "ended with $?"
		stty -a | grep -oE -- '-?\b(echo|icanon)\b' | tr '\n' ' '
		exec cat
	END
	T=$T LC_ALL=C.UTF-8 tmux -u -f /dev/null new-session -d -s top -x "$cols" -y "$rows" \
		"sh '$T/pane' '$RUN' --interval 0.2 $*" 3>&- 7>&-
	tmux display-message -p '#{pid}' >>"$T/pids"
}
# Gone, so that the next one does not connect to one that is ending
end_terminal() {
	local server
	server=$(tmux display-message -p '#{pid}')
	tmux kill-server
	eventually no kill -0 "$server"
}
captured() { tmux capture-pane -p -t top; }
shows() { captured | grep -Eq -- "$1"; }
shows_not() { ! captured | grep -Eq -- "$1"; }
shown_step() { captured | sed -n 's/^step \([0-9]*\).*/\1/p'; }
advanced() { local now; now=$(shown_step); [ -n "$now" ] && [ "$now" -gt "$1" ]; }
note_step() { shown_step >"$T/was" && [ -s "$T/was" ]; }
step_advances() { eventually note_step && eventually advanced "$(cat "$T/was")"; }
# The terminal is as it was: main screen, echo, lines
restored() { [ "$(tmux display-message -p -t top '#{alternate_on}')" = 0 ] && shows '^icanon echo'; }

# A run that trains for as long as a test may take
training() {
	ready
	mkfifo "$T/fifo"
	python3 -c 'import struct, sys
one = struct.pack("<33I", 32, *range(1, 33))
try:
    while True:
        sys.stdout.buffer.write(one * 64)
except BrokenPipeError:
    pass' >"$T/fifo" 2>/dev/null 3>&- &
	echo "$!" >>"$T/pids"
	mt-step "$RUN" --steps 9000000 --batch 2 --seq 32 --lr 1e-3 <"$T/fifo" >/dev/null 2>"$T/step.err" 3>&- &
	PID=$!
	echo "$PID" >>"$T/pids"
}

@test "mt-top --once prints what stat --json says, as UTF-8 or ASCII by the locale" {
	need_top
	waiting 4 --until 40
	mt-store stat "$RUN" --json >"$T/stat.json"
	once 80 >"$T/utf8"
	LOCALE=C once 80 >"$T/ascii"
	printable "$T/ascii"
	grep -q '█ 4 at step 4' "$T/utf8"
	grep -q '= 4 at step 4  - 0 at 3  p 0 pinned' "$T/ascii"
	grep -qx '====' "$T/ascii"
	python3 - "$T/stat.json" "$T/ascii" <<-'END'
		import json, re, sys
		stat, text = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
		def has(regex):
		    assert re.search("^" + regex + " *$", text, re.M), (regex, text)
		has(r" mt-top  %s  filled +every 1 s" % stat["run"])
		has(r"step 4 of 40  ETA [0-9:]+  \[#+ +\]  10.0 %")
		has(r"loss %.4f  norm %.3g  lr %.3g" % (stat["loss"], stat["grad_norm"], stat["lr"]))
		has(r"[0-9.]+( k)? tokens/s  [0-9.]+ m?s a step  update wait [0-9.]+ %  248 targets trained")
		has(r"model llama, 25.8 k parameters, fp32, gradients fp32")
		for s in stat["stages"]:
		    has(r"%s +%d +[0-9]+ %s" % (s["stage"], s["pid"], s["activity"]))
		has(r"batch.0 \[ {8}\] 0/2 +grad.0  \[ {8}\] 0/8")
		has(r"transaction 4: logged, train step 4, 1 micro-batch, attempt [0-9]+")
		has(r"snapshot none, step 0; 0 saved, 0 failed")
		has(r"memory [0-9.]+ MiB: w 102 KiB m 102 KiB v 102 KiB g 102 KiB rings [0-9.]+ MiB")
		has(r"loss       \S")
	END
}

@test "where mt-stream predicts, the metrics and mt-top have the plan's step and the MFU; elsewhere neither" {
	need_top
	local rates=cpu,h2d=9,d2h=8,hbm=30,flops=0.05,ram=20,adam=0.2
	STREAM_OPTIONS="--compute fp32 --verbose --profile $rates" waiting 4
	tail -1 "$T/step.out" >"$T/metrics.json"
	mt-store stat "$RUN" --json >"$T/stat.json"
	once 80 >"$T/top"
	mt-plan --config "$CASE/model" --device cpu --threads 1 --dtype fp32 --seq 32 --micro 2 --profile $rates --json \
		>"$T/plan.json" 2>/dev/null
	check "$T/metrics.json" "$T/plan.json" "$T/stat.json" <<-END
		model_s = b["model_tflops"] * b["step_s"] / 0.05
		assert math.isclose(a["planned_s"], b["step_s"], rel_tol=1e-3), (a, b)
		assert math.isclose(a["mfu"] * a["time_s"], model_s, rel_tol=1e-2), (a, b)
		top = open("$T/top").read()
		m = re.search(r"a step  planned ([0-9.]+) ([mµu]?s)  MFU ([0-9.]+) %", top)
		assert m, top
		assert abs(float(m[3]) - 100 * model_s / c["step_s"]) < 0.06, (m[0], model_s, c["step_s"])
	END
	kill "$STREAM" "$OPTIM" "$PID"
	exec 7>&-
	rm "$T/fifo"
	mt-store rm "$RUN" --force
	waiting 2
	no grep -q -e planned -e mfu "$T/step.out"
	once 80 >"$T/top"
	no grep -q -e planned -e MFU "$T/top"
}

# bats test_tags=slow
@test "optim_wait is 0 where an update ends before the next step begins, and else the time that it is waited for" {
	need_top
	shows_all() { mt-store stat "$RUN" >"$T/stat" && for part; do grep -q "$part" "$T/stat" || return 1; done; }
	more_stages() {
		spawn stream1 mt-stream "$RUN" --device cpu --threads 1
		spawn ckpt mt-ckpt serve "$RUN" --dir "$T/ck"
		ckpt=$PID
		eventually shows_all '^mt-stream 1' '^mt-ckpt'
	}
	MORE_STAGES=more_stages waiting 1 --micro 1 --ckpt-every 1
	documents 2 >&7
	eventually metrics_has 2
	[ "$(grep -c '"optim_wait": 0, "skipped"' "$T/step.out")" = 2 ]
	eventually shows_all '; saved 2,'
	# the update of step 4 waits until step 3 is saved
	kill -STOP "$ckpt"
	documents 6 >&7
	eventually shows_all '^mt-optim.*waits for the snapshot to let go' '^mt-stream 0.*waits for weights' \
		'^mt-stream 1.*waits for weights'
	sleep 1
	kill -CONT "$ckpt"
	eventually metrics_has 5
	eventually shows_all '^mt-step .*waits for input' '^mt-stream 0.*for a batch' '^mt-stream 1.*for a batch'
	mt-store stat "$RUN" --json >"$T/stat.json"
	mt-store stat "$RUN" --prometheus | grep '^mt_optim_wait{run="[^"]*"} 0\.[0-9]*$'
	once 80 | grep -Eq 'a step  update wait [0-9.]+ %  '
	check "$T/stat.json" <<-END
		lines = [json.loads(line) for line in open("$T/step.out")]
		assert all(0 <= m["optim_wait"] <= 1 for m in lines), lines
		assert sum(m["optim_wait"] * m["time_s"] for m in lines) > 0.8, lines
		stages = {s["stage"]: s for s in a["stages"]}
		step, *streams = (stages[s]["counters"]["update_wait_ns"] / 1e9 for s in
		    ("mt-step", "mt-stream 0", "mt-stream 1"))
		assert 0.8 < step < 0.8 * sum(streams), stages
		assert math.isclose(a["optim_wait"], step / stages["mt-step"]["age_s"]), a
	END
}

@test "mt-top's charts have the steps of before it was started, from the metrics that mt-step writes to a file" {
	need_top
	mkdir "$T/out"
	cd "$T/out"
	waiting 6 --metrics m.jsonl
	cd "$T"
	# 6 steps of half a second, the third without a finite loss; the line of an evaluation; one that is being written
	python3 - "$T/out/m.jsonl" <<-'END'
		import json, sys
		lines = [json.loads(line) for line in open(sys.argv[1])]
		for m in lines:
		    m["time_s"] = 2.0
		    m["processed"] *= 1 + m["step"] % 2
		lines[2]["loss"] = None
		with open(sys.argv[1], "w") as f:
		    f.writelines(json.dumps(m) + "\n" for m in [*lines[:3], {"step": 3, "eval_loss": 1.5}, *lines[3:]])
		    f.write('{"step": 7, "lo')
	END
	LOCALE=C once 80 >"$T/once"
	cat "$T/once"
	grep -Eqx 'tokens/s   #_#_#_' "$T/once"
	grep -Eqx 'loss       \S\S \S\S\S' "$T/once"
	# the file is elsewhere, and a FIFO has its name
	mv "$T/out/m.jsonl" "$T/was"
	mkfifo "$T/out/m.jsonl"
	once 80 >"$T/once"
	grep -qx 'tokens/s' "$T/once"
}

@test "mt-top --once is as wide as COLUMNS says, and no line is longer" {
	need_top
	waiting 4
	for cols in 40 80 200; do
		once $cols >"$T/once"
		[ "$(LC_ALL=C.UTF-8 wc -L <"$T/once")" -le $cols ]
		[ "$(head -1 "$T/once" | tr -d '\n' | wc -c)" = $((cols - 1)) ]
	done
}

@test "mt-top and stat show units behind, pinned and at other versions, messages that wait, and dead stages" {
	need_top
	ready
	documents 8 | mt-step "$RUN" --steps 4 --batch 2 --seq 32 --lr 1e-3 >"$T/step.out"
	end "$OPTIM"
	kill -9 "$STREAM"
	wait "$STREAM" || true
	mt-store stat --abi --json >"$T/abi.json"
	python3 - "$T/abi.json" "$(shm control)" <<-'END'
		import json, struct, sys
		s = json.load(open(sys.argv[1]))["structures"]
		def at(name, field):
		    return s[name]["fields"][field]["offset"]
		with open(sys.argv[2], "r+b") as f:
		    f.seek(at("mt_control", "off_units"))
		    units = struct.unpack("<Q", f.read(8))[0]
		    for unit, field, value in (0, "version", 3), (1, "pin", 4), (2, "version", 9):
		        f.seek(units + unit * s["mt_unit"]["size"] + at("mt_unit", field))
		        f.write(struct.pack("<Q", value))
	END
	python3 "$TOP/tests/lib/region.py" "$(shm rings)" push batch.0 1 1
	mt-store stat "$RUN" --json >"$T/stat.json"
	check "$T/stat.json" <<-'END'
		assert a["units"] == {"count": 4, "at_step": 2, "before": 1, "other": 1, "pinned": 1}, a["units"]
	END
	LOCALE=C once >"$T/once"
	grep -qx 'UNITS = 2 at step 4  - 1 at 3  p 1 pinned  ? 1 at another version' "$T/once"
	grep -Fqx -e '-p?=' "$T/once"
	grep -Eq '^batch.0 \[####    \] 1/2 +grad.0  \[        \] 0/8$' "$T/once"
	grep -Eq "^mt-stream 0 +$STREAM +- dead, was: " "$T/once"
	no grep -q '^mt-optim' "$T/once"
}

@test "mt-top changes no byte of a run and takes no slot" {
	need_top
	make_run "$CASE/model"
	sha256sum "$(shm control)" "$(shm rings)" "$(shm store)" >"$T/before"
	once >"$T/once"
	grep -q '^no stages' "$T/once"
	in_terminal 80 24
	eventually shows '^no stages'
	mt-store stat "$RUN" | grep -qx "no stages"
	tmux send-keys -t top q
	eventually shows 'ended with 0'
	sha256sum -c --quiet "$T/before"
}

@test "mt-top shows every part at 80x24, its step advances while training goes on, and q restores the terminal" {
	training
	in_terminal 80 24
	eventually shows '^step [0-9]+ of 9000000  ETA [0-9].*%'
	step_advances
	for part in '^loss [0-9.]+  norm' 'tokens/s  [0-9.]+ m?s a step' '^mt-stream 0 +[0-9]+ +[0-9]+ ' '^batch.0 \[' \
		'^UNITS █' '^memory ' '^loss +[▁▂▃▄▅▆▇█]' '^tokens/s +[▁▂▃▄▅▆▇█]' '^q quit'; do
		eventually shows "$part"
	done
	[ "$(tmux display-message -p -t top '#{alternate_on}')" = 1 ]
	tmux send-keys -t top q
	eventually shows 'ended with 0'
	eventually restored
	[ ! -s "$T/top.err" ]
}

# bats test_tags=slow
@test "mt-top works at 40x10 and 200x50, and follows a resize" {
	training
	in_terminal 40 10
	eventually shows '^step [0-9]+ of 9000000  ETA'
	step_advances
	# one row each, in their order: nothing is wrapped
	rows() { captured | cut -d' ' -f1 | head -5 | tr '\n' ' '; }
	first_rows() { rows | grep -Eqx ' *step loss [0-9.]+ model '; }
	eventually first_rows
	eventually shows '^mt-stream 0 +[0-9]+ '
	[ "$(captured | LC_ALL=C.UTF-8 wc -L)" -le 40 ]
	tmux resize-window -t top -x 200 -y 50
	title_has() { [ "$(captured | head -1 | tr -d '\n' | wc -c)" = "$1" ]; }
	eventually title_has 199
	eventually shows '^max '
	eventually shows '^q quit'
	step_advances
	tmux resize-window -t top -x 60 -y 20
	eventually title_has 59
	step_advances
	tmux send-keys -t top q
	eventually shows 'ended with 0'
}

@test "mt-top's keys pause, change the interval, and show help" {
	training
	in_terminal 80 24
	eventually shows 'every 0.2 s'
	tmux send-keys -t top +
	eventually shows ' every 0.5 s'
	tmux send-keys -t top - - -
	eventually shows ' every 0.1 s'
	tmux send-keys -t top h
	eventually shows '^ q +quit'
	tmux send-keys -t top x
	eventually shows_not '^ q +quit'
	tmux send-keys -t top p
	eventually shows 'paused, every 0.1 s'
	was=$(shown_step)
	at_least() { [ "$(mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/')" -ge "$1" ]; }
	eventually at_least $((was + 50))
	[ "$(shown_step)" = "$was" ]
	tmux send-keys -t top p
	eventually advanced $((was + 49))
}

# bats test_tags=slow
@test "mt-top ends with 0 when its run is removed, or its files are deleted, and says so" {
	make_run "$CASE/model"
	in_terminal 80 24
	eventually shows '^step 0'
	mt-store rm "$RUN"
	eventually shows 'ended with 0'
	eventually restored
	grep -qx "mt-top: run '$RUN' was removed" "$T/top.err"
	end_terminal
	make_run "$CASE/model"
	in_terminal 80 24
	eventually shows '^step 0'
	rm "$(shm control)" "$(shm rings)" "$(shm store)"
	eventually shows 'ended with 0'
	grep -qx "mt-top: run '$RUN' was removed" "$T/top.err"
}

# bats test_tags=slow
@test "mt-top restores the terminal when a signal ends it, and when the run's memory is truncated" {
	make_run "$CASE/model"
	in_pane() { pgrep -P "$(tmux display-message -p -t top '#{pane_pid}')" -x mt-top; }
	for signal in INT TERM HUP QUIT ABRT; do
		in_terminal 80 24
		eventually shows '^step 0'
		kill -s "$signal" "$(in_pane)"
		eventually shows "ended with $((128 + $(kill -l "$signal")))"
		eventually restored
		end_terminal
	done
	in_terminal 80 24
	eventually shows '^step 0'
	truncate -s 0 "$(shm control)"
	eventually shows 'ended with 65'
	eventually restored
	grep -q "shared memory is gone" "$T/top.err"
}

@test "words in a run's memory cannot command the terminal" {
	need_top
	make_run "$CASE/model"
	write_numa <<-'END'
		b"\x1b[2J\x9b31m\xc2\x9bx" + b"A" * 52
	END
	once >"$T/once"
	mt-store stat "$RUN" >"$T/stat"
	grep -q 'numa ?\[2J?31m??xAAA' "$T/stat"
	printable "$T/stat"
	LOCALE=C once >"$T/ascii"
	printable "$T/ascii"
}

@test "mt-top refuses a terminal that it cannot position on, and leaves it as it is" {
	make_run "$CASE/model"
	in_terminal 80 24
	eventually shows '^step 0'
	tmux send-keys -t top q
	eventually shows 'ended with 0'
	tmux respawn-pane -k -t top "TERM=dumb sh '$T/pane' '$RUN'"
	eventually shows 'ended with 64'
	eventually restored
	[ "$(wc -l <"$T/top.err")" = 1 ]
	grep -q "TERM: terminal type 'dumb' is unknown or has no cursor: mt-top --once" "$T/top.err"
}

@test "mt-top without a terminal, with invalid options, or without a run exits with one line" {
	need_top
	make_run "$CASE/model"
	fails_with 64 mt-top "$RUN"
	fails_with 64 mt-top "$RUN" --interval 0
	fails_with 64 mt-top "$RUN" --interval nan --once
	fails_with 64 mt-top "$RUN" --once more
	fails_with 64 mt-top a.b --once
	fails_with 66 mt-top "${RUN}b" --once
	exits 74 mt-top "$RUN" --once >/dev/full 2>"$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
}

@test "stat and mt-top show a tier: its files, tiles and slots" {
	need_top
	need_tier
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --tier "$DISK/a,$DISK/b" --tier-memory 0 --tier-tile 65536 \
		2>"$T/create.err"
	mt-store stat --abi --json >"$T/abi.json"
	python3 - "$T/abi.json" "$(shm control)" <<-'END'
		import json, struct, sys
		s = json.load(open(sys.argv[1]))["structures"]
		at = lambda of, field: s[of]["fields"][field]["offset"]
		with open(sys.argv[2], "r+b") as f:
		    for word, value in ("loaded", 85), ("updated", 83), ("written", 80):
		        f.seek(at("mt_control", "tier") + at("mt_tier", word))
		        f.write(struct.pack("<Q", value))
	END
	mt-store stat "$RUN" --json >"$T/stat.json"
	mt-store stat "$RUN" --prometheus >"$T/prom"
	python3 "$TOP/tests/lib/prometheus.py" "$T/prom" >"$T/prom.json"
	ls -d "$DISK"/*/* >"$T/dirs"
	check "$T/stat.json" "$T/prom.json" <<-END
		tier = a["tier"]
		assert [tier[k] for k in ("tiles", "slots", "loaded", "updated", "written")] == [80, 8, 85, 83, 80], tier
		assert tier["bytes_per_s"] is None and tier["directories"] == open("$T/dirs").read().split(), tier
		memory = a["memory"]
		assert memory["slots"] > 8 * 65536 * 10 and memory["m"] == memory["v"] == 2 * memory["lo"], memory
		assert sum(memory[k] for k in ("w", "lo", "m", "v", "slots", "g")) <= a["state_bytes"], a
		value = {name[8:]: x for name, labels, x in b if name.startswith("mt_tier_")}
		assert value == {"bytes": tier["file_bytes"], "tiles": 80, "slots": 8, "loaded_tiles_total": 85,
		    "updated_tiles_total": 83, "written_tiles_total": 80}, value
	END
	mt-store stat "$RUN" | grep -q "^tier: .* in 80 tiles, .*; slots 8, tiles loaded 85, updated 83, written 80; "
	once 80 | grep -q "^TIER .* on drives; slots: 2 read, 3 to write, of 8; - GB/s"
}

@test "mt-top without RUN shows the only run, and else exits 64 with the runs' names" {
	need_top
	unset MT_RUN
	mkdir "$T/shm"
	export MT_SHM_DIR=$T/shm
	fails_with 64 mt-top --once
	make_run "$CASE/model"
	mt-top --once | head -1 | grep -q " $RUN "
	mt-store create second --config "$CASE/model" 2>"$T/create.err"
	fails_with 64 mt-top --once
	grep -q "existing runs: second, $RUN\$" "$T/fails.err"
	MT_RUN=second mt-top --once | head -1 | grep -q " second  empty "
}

# bats test_tags=slow
@test "without ncurses the build says once that mt-top is not built; make install includes it where it is" {
	need_cmd make
	cd "$TOP"
	env -u MAKELEVEL -u MAKEFLAGS make -n NVCC= HAVE_CURSES= B=build/none all >"$T/without" 2>&1
	[ "$(grep -c 'mt-top' "$T/without")" = 1 ]
	grep -qx "no ncursesw found (libncurses-dev): mt-top is not built" "$T/without"
	env -u MAKELEVEL -u MAKEFLAGS make -n NVCC= HAVE_CURSES=yes PREFIX="$T/prefix" install >"$T/with" 2>&1
	grep -q 'install .*bin/mt-top .*bin$' "$T/with"
	grep -q 'mt-store/top/mt-top.1' "$T/with"
}

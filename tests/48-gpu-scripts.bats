#!/usr/bin/env bats
# The scripts for a machine with a GPU (tests/gpu: first, check, bench), run on the emulator, with faults injected into
# the programs that they start; and what make finds on such a machine.
# bats file_tags=slow

load helpers
load lib/step

export RESULTS MT BUILD

# Results of the emulated GPU, which do not begin with those that are committed
on_emulator() {
	need_emulator
	RESULTS=$T/results
	mkdir "$RESULTS"
	echo '{}' >"$RESULTS/first.json"
}

# A Python expression about a results file must be true: of FILE EXPRESSION
of() {
	python3 - "$1" "$2" <<-'PY'
		import json, os, sys
		cores = len(os.sched_getaffinity(0))
		b = json.load(open(sys.argv[1]))
		runs = [(r["config"], r["tokens"]) + (("cut",) if "cut" in r else ()) for r in b.get("runs", [])]
		undone = [n["what"] for n in b.get("not_done", [])]
		assert eval(f"({sys.argv[2]})"), (runs, b.get("not_done"), b.get("parts"))
	PY
}

# An mt-stream whose first COUNT starts run COMMAND instead: faulty COUNT COMMAND
faulty() {
	cat >"$T/faulty" <<-SH
		#!/bin/sh
		echo "\${MT_CUDNN-unset}" >>"$T/starts"
		[ "\$(wc -l <"$T/starts")" -gt $1 ] || $2
		exec "$EMU" "\$@"
	SH
	chmod +x "$T/faulty"
	: >"$T/starts"
}

# A Python that acts as torch_step.py: it reports that it is ready, then runs COMMAND
torch_that() {
	cat >"$T/python" <<-SH
		#!/bin/sh
		echo '{"torch": "0", "transformers": "0", "micro": 1, "how": "played"}'
		$1
	SH
	chmod +x "$T/python"
}

no_stage_of() { ! pgrep -f "^$1 gpu" >/dev/null; }

# bats test_tags=nightly
@test "gpu-first: part one reports what is missing, and every kernel matches its definition" {
	on_emulator
	"$TOP/tests/gpu/first" --stream "$EMU" --limit 1300 --quick 1 >"$T/out" || { grep -v '^ok' "$T/out" >&2; return 1; }
	[ "$(sed -n 's/^ok operations beside their definitions in double precision: \([0-9]*\) cases$/\1/p' "$T/out")" \
		-gt 150 ]
	of "$RESULTS/first.json" 'b["prerequisites"]["cc"] and set(b["prerequisites"]) >= {"nvcc", "cublasLt.h",
		"libcudart_static.a", "cudnn.h", "jansson.h", "libcublasLt.so", "a GPU"}
		and b["parts"]["build"]["outcome"] == "ok"'
	[ -e /dev/nvidia0 ] || grep -q '^missing: a GPU (' "$T/out"
}

# bats test_tags=nightly
@test "gpu-first: the other parts add their six files to one set of results, each by its own command" {
	on_emulator
	torch_that "while read -r n; do echo '{\"seconds\": [0.5, 0.5], \"peak_bytes\": 0}'; done"
	"$TOP/tests/gpu/first" --stream "$EMU" --quick main check >"$T/one"
	"$TOP/tests/gpu/first" --stream "$EMU" --quick --python "$T/python" 5 6 7 >"$T/two"
	of "$RESULTS/first.json" \
		'[b["parts"][p]["outcome"] for p in ("main", "check", "small", "none", "torch")] == ["ok"] * 5'
	of "$RESULTS/check.json" 'b["counts"]["ok"] == 6 and sum(b["counts"].values()) == 6'
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64), ("qwen2 --state int8", 64), ("qwen3", 64),
		("qwen2 --grad none", 64)] and not undone
		and all(r["step_s"] > 0 and r["plan"]["step_s"] > 0 and not r["account"]["wrong"] for r in b["runs"])
		and b["torch"][0]["mt_s"] > 0 and b["torch"][0]["torch_s"] == 0.5
		and all(s["remove_s"] > 0 for s in b["stores"])'
	grep -q '^| qwen2 --grad none | 64 | ' "$RESULTS/bench.md"
	python3 -m zipfile -l "$RESULTS/traces.zip" >"$T/traces"
	[ "$(grep -c json "$T/traces")" = 4 ]
	[ "$(cd "$RESULTS" && echo *)" = "bench.json bench.md check.json first.json first.log traces.zip" ]
	no_stage_of "$EMU"
	# the most important measurements came first, each of them once
	of "$RESULTS/bench.json" '[r["what"] for r in b["rates"]][:5] == ["gemm", "register", "h2d", "d2h", "both ways"]
		and [r["threads"] for r in b["rates"] if r["what"] == "adam"] == sorted({1, max(1, cores // 2), cores})'
}

# bats test_tags=nightly
@test "gpu-first: a card's first command trains what no card has shown, late and early, and repeats only what changed" {
	on_emulator
	"$TOP/tests/gpu/first" --stream "$EMU" --quick card >"$T/out"
	of "$RESULTS/first.json" 'b["parts"]["card"]["outcome"] == "ok"'
	of "$RESULTS/bench.json" 'not undone and [(r["config"], r["micro_rows"]) for r in b["runs"]] == [
		("qwen2 --state int8 --seq 16", 4), ("qwen2 --state int8 --micro 2 --update early --seq 16", 2),
		("qwen2 --state int8 --micro 1 --update early --seq 16", 1), ("qwen2 --state int8 --seq 16 --compute fp8", 4),
		("qwen2-moe --state int8 --seq 16", 4), ("qwen2-moe --state int8 --micro 2 --update early --seq 16", 2)]
		and {r["state"] for r in b["rates"] if r["what"] == "adam"} == {"int8"}'
	# of other sources of steps: trainings are measured again, rates are not
	python3 - "$RESULTS/bench.json" <<-'PY'
		import json, sys
		text = open(sys.argv[1]).read()
		open(sys.argv[1], "w").write(text.replace(json.loads(text)["runs"][0]["machine"], "0ther-0nes"))
	PY
	"$TOP/tests/gpu/first" --stream "$EMU" --quick card >"$T/out"
	of "$RESULTS/bench.json" 'len(runs) == 12 and [r["what"] for r in b["rates"]].count("h2d") == 1'
	"$TOP/tests/gpu/first" --stream "$EMU" --quick card >"$T/out"
	of "$RESULTS/bench.json" 'len(runs) == 12'
}

# bats test_tags=nightly
@test "gpu-first: programs that were packed elsewhere are taken if they are of these sources" {
	need_checkout
	[ -n "$(make -s -C "$TOP" gpu-have | sed -n 's/^nvcc \([^-].*\)/\1/p')" ] || skip "needs nvcc"
	clone "$T/clone"
	unset MT BUILD MAKELEVEL MAKEFLAGS MFLAGS
	"$T/clone/tests/gpu/first" --pack >"$T/out" 2>&1 || { tail "$T/out" >&2; return 1; }
	[ "$(stat -c %s "$T/clone/build/gpu-programs.tar.gz")" -lt $((30 << 20)) ]
	mkdir "$T/there"
	clone "$T/there"
	mkdir -p "$T/there/build"
	cp "$T/clone/build/"gpu-programs.tar.gz* "$T/there/build"
	"$T/there/tests/gpu/first" --unpack
	"$T/there/bin/mt-stream" --version
	echo >>"$T/there/mt-stream/serve.c"
	no "$T/there/tests/gpu/first" --unpack
}

# A copy of the tracked files but the results, and of what travels along: clone DIR
clone() {
	mkdir -p "$1"
	(
		cd "$TOP"
		git ls-files -z -- . ':!tests/gpu/results' | xargs -0 cp --parents -t "$1"
		[ ! -e build/gpu-deps.tar.gz ] || cp --parents build/gpu-deps.tar.gz "$1"
	)
}

# bats test_tags=nightly
@test "gpu-first: one part alone builds what is missing in a clean clone; the next command goes on from its results" {
	need_emulator
	need_checkout
	clone "$T/clone"
	unset MT BUILD MAKELEVEL MAKEFLAGS MFLAGS
	bare() { # PART: as README says, with the emulator; NVCC: where there is a toolkit, its kernels are not compiled
		mkdir "$T/out.$1"
		env -i PATH=/usr/bin:/bin NVCC= CFLAGS=-O0 MT_COMMIT=c0ffee RESULTS="$T/out.$1" \
			"$T/clone/tests/gpu/first" --limit 1500 --quick --stream build/emu/mt-stream "$1" >"$T/$1.log" 2>&1
	}
	bare main || { tail -50 "$T/main.log" >&2; return 1; }
	of "$T/out.main/bench.json" 'runs == [("qwen2", 64), ("qwen2 --state int8", 64)] and not undone'
	of "$T/out.main/first.json" 'b["parts"]["main"]["outcome"] == "ok"'
	# brought home; the next command has its own output folder
	cp -r "$T/out.main" "$T/clone/tests/gpu/results"
	bare none
	of "$T/out.none/bench.json" \
		'runs == [("qwen2", 64), ("qwen2 --state int8", 64), ("qwen2 --grad none", 64)] and not undone'
	# which machine each figure is from
	of "$T/out.none/first.json" '[b["parts"][p]["outcome"] for p in ("main", "none")] == ["ok"] * 2
		and len([f for f in b["figures"] if "step_s" in f]) == 3
		and all(set(b["machines"][r["machine"]]) >= {"commit", "card", "driver", "libraries", "sources"}
			for r in [*b["figures"], *b["parts"].values()])
		and {m["commit"] for m in b["machines"].values()} == {"c0ffee"}'
	[ "$(cd "$T/out.none" && echo *)" = "bench.json bench.md first.json first.log traces.zip" ]
	# given again, it repeats nothing
	cp -r "$T/out.none/." "$T/clone/tests/gpu/results"
	rm -r "$T/out.main"
	bare main
	grep -q 'qwen2: done before$' "$T/main.log"
	of "$T/out.main/bench.json" 'len(runs) == 3 and len(b["stores"]) == 3'
	# each part's last output is in the log, once
	[ "$(sed -n 's/^---- \(.*\): {"id".*/\1/p' "$T/out.main/first.log" | tr '\n' ' ')" = "none main " ]
	no grep -h Traceback "$T"/*.log
}

@test "gpu results that are committed: six small files, whose machines are known" {
	cd "$TOP/tests/gpu/results" || skip "there are none"
	[ "$(echo *)" = "bench.json bench.md check.json first.json first.log traces.zip" ]
	[ "$(cat ./* | wc -c)" -lt 3000000 ]
	python3 - <<-'PY'
		import json, zipfile
		first, check, bench = (json.load(open(n + ".json")) for n in ("first", "check", "bench"))
		for name, rows in (("first", [*first["parts"].values(), *first["figures"]]), ("check", check["checks"]),
		                   ("bench", bench["runs"])):
		    machines = {"first": first, "check": check, "bench": bench}[name]["machines"]
		    assert rows and all(set(machines[r["machine"]]) >= {"commit", "card", "driver"} for r in rows), name
		assert zipfile.ZipFile("traces.zip").testzip() is None
	PY
}

@test "gpu-first: the tracked files and what travels with them have at most 60 MiB" {
	need_checkout
	tracked=$(cd "$TOP" && git ls-files -z | xargs -0 cat | wc -c)
	deps=$(stat -c %s "$TOP/build/gpu-deps.tar.gz" 2>/dev/null || echo $((18 << 20)))
	[ "$((tracked + deps))" -le $((60 << 20)) ]
}

# bats test_tags=nightly
@test "gpu-bench, gpu-check: --add repeats nothing of the same sources and libraries, and measures others again" {
	on_emulator
	faulty 0 true
	more() { "$TOP/tests/gpu/bench" --stream "$T/faulty" --quick --add "$@" >"$T/out"; }
	more --only main --tokens 64
	more --only main --tokens 64,128
	[ "$(wc -l <"$T/starts")" = 2 ]
	more --only main --tokens 128,64
	[ "$(wc -l <"$T/starts")" = 2 ]
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64), ("qwen2", 128)] and len(b["stores"]) == 2'
	python3 - "$RESULTS/bench.json" <<-'PY'
		import json, sys
		text = open(sys.argv[1]).read()
		id_ = list(json.loads(text)["machines"])[0]
		open(sys.argv[1], "w").write(text.replace(id_, "0ther0ne"))
	PY
	more --only main --tokens 64
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64), ("qwen2", 128), ("qwen2", 64)]
		and len({r["machine"] for r in b["runs"]}) == 2 and len(b["machines"]) == 2'
	: >"$T/starts"
	again() { "$TOP/tests/gpu/check" --stream "$T/faulty" --quick --add --only "llama3 bf16: unpacked" >"$T/out"; }
	# an earlier failure of another check is not this command's
	BUILD=$T exits 1 "$TOP/tests/gpu/check" --stream "$T/faulty" --quick --only operations >"$T/out"
	again
	started=$(wc -l <"$T/starts")
	[ "$started" -gt 0 ]
	again
	[ "$(wc -l <"$T/starts")" = "$started" ]
	of "$RESULTS/check.json" 'b["counts"]["ok"] == 1 == b["counts"]["FAILED"] and sum(b["counts"].values()) == 2'
}

@test "gpu-first: the next command removes the run that a killed one left, and keeps its results" {
	on_emulator
	mkdir "$T/machine"
	export MT_SHM_DIR="$T/machine"
	# its second training hangs until it is killed, with all that it started
	cat >"$T/faulty" <<-SH
		#!/bin/sh
		echo >>"$T/starts"
		[ "\$(wc -l <"$T/starts")" != 2 ] || exec sleep 300
		exec "$EMU" "\$@"
	SH
	chmod +x "$T/faulty"
	: >"$T/starts"
	spawn first "$TOP/tests/gpu/first" --stream "$T/faulty" --quick main
	two() { [ "$(wc -l <"$T/starts")" = 2 ]; }
	for i in 1 2 3 4; do eventually two && break; done
	two
	bench=$(mt-store ls --json | sed -n 's/^{"run":"gpu\([0-9]*\)-.*/\1/p')
	kill -9 "$PID"
	kill -9 -- "-$bench"
	[ -n "$(mt-store ls)" ]
	: >"$RESULTS/traces.zip.part"           # as if it was killed while it wrote
	"$TOP/tests/gpu/first" --stream "$T/faulty" --quick main >"$T/out"
	[ -z "$(mt-store ls)" ]
	[ ! -e "$RESULTS/traces.zip.part" ]
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64), ("qwen2 --state int8", 64)]'
	of "$RESULTS/first.json" 'b["parts"]["main"]["outcome"] == "ok"'
}

@test "gpu scripts: missing programs, damaged results and too little memory are one line each, never a traceback" {
	on_emulator
	mkdir -p "$T/build/emu" "$T/build/probes"
	says() { # WORDS PROGRAM ARGS...
		local words=$1 code=0
		shift
		"$@" >"$T/out" 2>&1 || code=$?
		if [ "$code" = 0 ] || grep -q Traceback "$T/out" || ! grep -q -e "$words" "$T/out"; then
			cat "$T/out" >&2
			return 1
		fi
	}
	# nothing is built, and nothing is there to build it with
	says "cannot go on without .*jansson.h" env CC=false "$TOP/tests/gpu/first" --quick main
	[ -e /dev/nvidia0 ] || says "cannot go on without .*a GPU" "$TOP/tests/gpu/first" --quick main
	printf '#!/bin/sh\nexit 2\n' >"$T/build/make"
	chmod +x "$T/build/make"
	says "main: FAILED" env PATH="$T/build:$PATH" "$TOP/tests/gpu/first" --quick --stream "$BUILD/emu/mt-stream" main
	says "not done: main: .*No such file" env BUILD="$T/build" MT="$T/build" PATH=/usr/bin:/bin \
		"$TOP/tests/gpu/bench" --quick --stream "$EMU" --only main
	# results that cannot be read or written
	echo '{"runs": [' >"$RESULTS/bench.json"
	echo '{"parts": [' >"$RESULTS/first.json"
	echo 'PK' >"$RESULTS/traces.zip"
	says "its trace: File is not a zip file" "$TOP/tests/gpu/bench" --quick --stream "$EMU" --only main --tokens 64 \
		--add
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64)]'
	says "^first: results in '$T/python/results': " env RESULTS="$T/python/results" PATH="$PATH" \
		sh -c "echo >'$T/python'; exec '$TOP/tests/gpu/first' main"
	# memory
	mkdir "$T/disk"
	mount -t tmpfs -o size=64k mt "$T/disk" || skip "needs leave to mount"
	says "not done: main: .* free, .* are needed" "$TOP/tests/gpu/bench" --quick --stream "$EMU" --shm "$T/disk" \
		--only main,int8
}

# bats test_tags=nightly
@test "gpu-bench: PyTorch's micro-batch is halved after AdamW's state is there, and later in a timed step" {
	need_torch
	cat >"$T/short.py" <<-'PY'
		import runpy, sys
		sys.argv.pop(0)
		sys.path.insert(0, sys.argv[0].rpartition("/")[0])
		import torch, torch_step
		steps, gradients = [], torch_step.Trainer.gradients
		def short(self):
		    steps.append(self.micro)
		    most = 4 if not self.optimizer.state else 2 if len(steps) < 6 else 1
		    if self.micro > most:
		        raise torch.OutOfMemoryError("short of memory")
		    gradients(self)
		torch_step.Trainer.gradients = short
		torch_step.main()
		print(steps, file=sys.stderr)
	PY
	printf '2\n2\n' | with_torch "$T/short.py" "$TOP/tests/gpu/torch_step.py" "$GOLDEN/qwen2/model/config.json" \
		--rows 4 --seq 16 --micro 4 --device cpu >"$T/out" 2>"$T/torch.err"
	# the first step; the second in vain, and again; two steps; one in vain and again, not timed; two steps
	python3 - "$T/out" <<-'PY'
		import json, sys
		lines = [json.loads(l) for l in open(sys.argv[1])]
		assert [(l["micro"], len(l.get("seconds", []))) for l in lines] == [(2, 0), (2, 2), (1, 2)], lines
	PY
	[ "$(tail -1 "$T/torch.err")" = "[4, 4, 2, 2, 2, 2, 1, 1, 1]" ]
}

# bats test_tags=nightly
@test "gpu-bench: after a failed first training all trainings run with MT_CUDNN=none" {
	on_emulator
	faulty 1 "export MT_EMU_FAIL=50"
	exits 2 "$TOP/tests/gpu/bench" --stream "$T/faulty" --quick --only main >"$T/out"
	[ "$(tr '\n' ' ' <"$T/starts")" = "unset none none " ]
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64), ("qwen2", 128)] and undone == ["qwen2, 64 tokens a step"]
		and [r["cudnn"] for r in b["runs"]] == ["none", "none"]'
	grep -q 'cudaErrorLaunchFailure' "$RESULTS/bench.json"
}

# bats test_tags=nightly
@test "gpu-bench: a killed training keeps its finished steps; the next one continues from the run's step" {
	on_emulator
	# the second mt-stream dies when its training has done two of three steps
	cat >"$T/faulty" <<-SH
		#!/bin/sh
		echo "\${MT_CUDNN-unset}" >>"$T/starts"
		[ "\$(wc -l <"$T/starts")" = 2 ] || exec "$EMU" "\$@"
		"$EMU" "\$@" &
		until mt-store stat "\$1" --json | grep -q '"step":5,"step_tokens"'; do sleep 0.05; done
		kill -9 \$!
		wait
		exit 9
	SH
	chmod +x "$T/faulty"
	: >"$T/starts"
	exits 2 "$TOP/tests/gpu/bench" --stream "$T/faulty" --quick --only main --tokens 64,192,128 >"$T/out"
	[ "$(wc -l <"$T/starts")" = 3 ]
	of "$RESULTS/bench.json" 'runs == [("qwen2", 64), ("qwen2", 192, "cut"), ("qwen2", 128)]
		and undone == ["qwen2, 192 tokens a step"] and [[m["step"] for m in r["metrics"]] for r in b["runs"]]
		== [[1, 2, 3], [4, 5], [6, 7, 8]] and all(r["step_s"] > 0 for r in b["runs"])'
	grep -q '^| qwen2 | 192 | .* stopped after 2 steps$' "$RESULTS/bench.md"
	no_stage_of "$EMU"
}

@test "gpu-bench: ablation trains one run without each thing in turn, by plans without it" {
	on_emulator
	"$TOP/tests/gpu/bench" --stream "$EMU" --quick --only ablation --tokens 64 >"$T/out"
	of "$RESULTS/bench.json" '[c for c, _ in runs] == ["qwen2"] + ["qwen2 without " + w for w in
		("slots", "prefetch", "grads", "pieces", "update")] and len(b["stores"]) == 1 and not undone'
	of "$RESULTS/bench.json" '[r["plan"]["line"].split("; ")[1] for r in b["runs"][1:4]] ==
		["1 weight and 2 gradient slots", "2 weight and 2 gradient slots", "2 weight and 1 gradient slot"]'
}

@test "gpu-bench: a PyTorch that fails in training leaves no mt-stream; its last output is kept, trainings continue" {
	on_emulator
	torch_that "echo 'out of patience' >&2; read -r n; exit 3"
	code=0
	"$TOP/tests/gpu/bench" --stream "$EMU" --python "$T/python" --quick --only torch,small --tokens 64 >"$T/out" ||
		code=$?
	[ "$code" = 2 ]
	of "$RESULTS/bench.json" 'runs == [("qwen3", 64)] and undone == ["PyTorch"]
		and "ended with 3: out of patience" in b["not_done"][0]["why"]'
	no_stage_of "$EMU"
}

@test "gpu-bench and zero3 have joules a token; zero3 trains beside both trainers, and names what is missing" {
	on_emulator
	mkdir -p "$T/cap/intel-rapl:0" "$T/lib"
	ln -s "$BUILD/probes/so-nvml.so" "$T/lib/libnvidia-ml.so.1"
	echo package-0 >"$T/cap/intel-rapl:0/name"
	echo 1000000000000 >"$T/cap/intel-rapl:0/max_energy_range_uj"
	# 100 W of the processor, and of the GPU
	cat >"$T/powered" <<-'SH'
		n=0
		while n=$((n + 10)); do
			echo "$n"000000 >"$1/energy" && mv "$1/energy" "$1/cap/intel-rapl:0/energy_uj"
			echo "80000000000 1 100000 1 1 1 1 $n""000" >"$1/sensor" && mv "$1/sensor" "$1/sensors"
			sleep 0.1
		done
	SH
	spawn powered sh "$T/powered" "$T"
	eventually test -s "$T/sensors"
	export MT_POWERCAP=$T/cap NVML_SENSORS=$T/sensors LD_LIBRARY_PATH=$T/lib
	"$TOP/tests/gpu/bench" --stream "$EMU" --quick --only main --tokens 64 >"$T/out"
	of "$RESULTS/bench.json" 'all(r["host_j_token"] > 0 and "gpu_j_token" in r for r in b["runs"])'
	PYTHONPATH=$TOP/tests/gpu python3 -c '
import lib
assert lib.gpu_joules([{"gpu0_energy_j": 3, "gpu1_energy_j": 1, "gpu0_power_w": 9}, {"gpu0_energy_j": 2}]) == 6
assert lib.gpu_joules([{"gpu0_power_w": 9}]) is None'
	torch_that "while read -r n; do [ \$n = 1 ] && echo '{\"losses\": [5], \"seconds\": [9]}' ||
		echo '{\"losses\": [4, 3], \"seconds\": [9, 2]}'; done"
	"$TOP/tests/gpu/zero3" --quick --stream "$EMU" --python "$T/python" >"$T/out"
	of "$RESULTS/zero3/latest.json" '[(r["peer"], r["peer_value"]) for r in b["rows"] if r["what"] == "training"] ==
		[("DeepSpeed ZeRO-3", 32), ("PyTorch FSDP2", 32)]
		and all(r["value"] > 0 for r in b["rows"] if r["what"] == "energy")'
	printf '#!/bin/sh\necho %s\n' "'{\"missing\": \"GPU that torch sees\"}'" >"$T/python"
	"$TOP/tests/gpu/zero3" --quick --stream "$EMU" --python "$T/python" >"$T/out"
	[ "$(grep -c "skipped: $T/python has no GPU that torch sees\$" "$T/out")" = 4 ]
	# an mt-stream that ends leaves no run in the way of the next pair
	faulty 99 "exit 1"
	"$TOP/tests/gpu/zero3" --quick --stream "$T/faulty" --python "$T/python" >"$T/out"
	[ "$(grep -c "skipped: mt-step: .*: no mt-stream came in " "$T/out")" = 4 ]
	no_stage_of "$EMU"
}

@test "gpu-bench: a training without time left to remove its run is not started; build time counts" {
	on_emulator
	# the training needs 66 s and its removal 10 s. The script's clock runs 100 times slower, so that what it does
	# before takes less than a second of them, also on a busy machine
	cat >"$T/slow.py" <<-'PY'
		import runpy, subprocess, sys, time     # subprocess keeps the real clock
		real = time.monotonic
		time.monotonic = lambda: real() / 100
		sys.argv.pop(0)
		runpy.run_path(sys.argv[0], run_name="__main__")
	PY
	exits 1 python3 "$T/slow.py" "$TOP/tests/gpu/bench" --stream "$EMU" --quick --only main --tokens 64 --budget 75 \
		>"$T/out"
	of "$RESULTS/bench.json" \
		'not runs and undone == ["qwen2, 64 tokens a step"] and b["not_done"][0]["why"].startswith("6")'
	GPU_BEGAN=$(($(date +%s) - 70)) exits 1 "$TOP/tests/gpu/bench" --stream "$EMU" --quick --only main --budget 80 \
		>"$T/out"
	of "$RESULTS/bench.json" 'undone == ["main"] and b["not_done"][0]["why"] == "no time was left" and not b["stores"]'
}

@test "gpu-first: a wrong kernel fails part one, and the other parts still run" {
	on_emulator
	mkdir -p "$T/build/probes"
	printf '#!/bin/sh\necho "FAILED rmsnorm"\nexit 1\n' >"$T/build/probes/cuda-kernels"
	chmod +x "$T/build/probes/cuda-kernels"
	ln -s "$BUILD/emu" "$T/build/emu"
	ln -s "$BUILD/probes/stream-drive" "$T/build/probes/stream-drive"
	BUILD=$T/build exits 1 "$TOP/tests/gpu/first" --stream "$EMU" --quick 1 6 >"$T/out"
	of "$RESULTS/first.json" 'b["parts"]["build"]["outcome"] == "FAILED" and b["parts"]["none"]["outcome"] == "ok"'
	grep -q '^FAILED operations .*FAILED rmsnorm' "$RESULTS/first.log"
}

# bats test_tags=nightly
@test "gpu-first: a hanging command is killed at its part's limit with its children, and its run is removed" {
	on_emulator
	mkdir "$T/path"
	cat >"$T/path/make" <<-SH
		#!/bin/sh
		trap '' TERM
		mt-store create "gpu\$\$-1-left" --config "$GOLDEN/qwen2/model"
		echo "\$\$" >"$T/make.pid"
		sleep 100 &
		wait
	SH
	chmod +x "$T/path/make"
	PATH=$T/path:$PATH exits 1 "$TOP/tests/gpu/first" --stream "$EMU" --quick --limit 7 build >"$T/out" 2>&1
	of "$RESULTS/first.json" 'b["parts"]["build"]["outcome"] == "FAILED" and b["parts"]["build"]["seconds"] < 90
		and "its time was over" in b["parts"]["build"]["programs"][0]["why"]'
	pid=$(cat "$T/make.pid")
	no pgrep -r R,S,D,T -g "$pid"
	grep -q "^---- build: make .*gpu-have" "$RESULTS/first.log"
	gone "gpu$pid-1-left"
}

# bats test_tags=nightly
@test "gpu-check: cuDNN plans are made only for the checks of larger models" {
	on_emulator
	faulty 0 true
	"$TOP/tests/gpu/check" --stream "$T/faulty" --quick --only "llama3 bf16: layer" >"$T/out"
	[ "$(sort -u "$T/starts")" = none ]
	: >"$T/starts"
	"$TOP/tests/gpu/check" --stream "$T/faulty" --quick --only "a real micro-batch" >"$T/out"
	[ "$(sort -u "$T/starts")" = unset ]
}

@test "gpu-check: the most important checks come first; every family is in some, and none is named twice" {
	on_emulator
	exits 2 "$TOP/tests/gpu/check" --stream "$EMU" --jobs 1 --budget 0 >"$T/out"
	of "$RESULTS/check.json" 'b["counts"]["not reached"] == sum(b["counts"].values()) == len(b["checks"])'
	python3 - "$RESULTS/check.json" "$TOP/tests/gpu" <<-'PY'
		import json, os, sys
		sys.path.insert(0, sys.argv[2])
		import lib
		names = [c["name"] for c in json.load(open(sys.argv[1]))["checks"]]
		assert len(set(names)) == len(names)
		first = [names.index(n) for n in (
		    "operations", "llama3 fp32: training", "qwen2-moe fp32: training", "gpt-oss fp32: training",
		    "qwen3-5 fp32: training", "indices beyond 2^31", "restart in mid step", "llama3 bf16: two_streams",
		    "a real micro-batch beyond 2^31", "compute-sanitizer memcheck of a step", "llama3 bf16: layer-major",
		    "phi3 bf16: layer-major", "phi3 fp32: training")]
		assert first == sorted(first) and first[0] == 0, first
		def family(model):
		    c = json.load(open(os.path.join(lib.GOLDEN, model, "model", "config.json")))
		    return c.get("text_config", c)["model_type"]
		models = [m for m in os.listdir(lib.GOLDEN) if os.path.isdir(os.path.join(lib.GOLDEN, m, "model"))]
		for what in ("fp32: layer-major", "bf16: layer-major", "fp32: training"):
		    seen = {family(n.split()[0]) for n in names if n.endswith(what)}
		    assert seen == {family(m) for m in models}, what
	PY
}

@test "gpu-check: rounding to bf16 fails no check, also of auxiliary losses and where it changes a token's experts" {
	on_emulator
	for model in gemma3 qwen2-moe-aux; do
		"$TOP/tests/gpu/check" --stream "$EMU" --add --only "$model bf16: layer" >"$T/out" ||
			{ cat "$T/out" >&2; return 1; }
	done
	# a tensor changes by more than the bound for models that have neither
	[ "$(sed -n 's/^ok .*: layer-major beside cpu, by tensor: \(0.[0-9]*\) of 0.6.*/\1/p' "$T/out")" \> 0.06 ]
}

@test "gpu-check: wrong gradients and losses are found beside rounding: of a tensor, an expert, the whole" {
	cat >"$T/compare.py" <<-'PY'
		import array, math, random, sys
		sys.path.insert(0, sys.argv[1])
		import lib
		r = random.Random(1)
		lines = ["micro 0 aux loss 0x1p+1", "micro 0 loss 0x1.8p+8 over 90", "micro 0 unit 0 end 0 hash 1 norm 2"]
		def step(names, values, lines=lines):
		    tensors = [(100 * i, 100, n) for i, n in enumerate(names)]
		    return lib.Step(lines, "", array.array("f", values), tensors)
		dense, moe = ["q.weight", "k.bias", "norm.weight"], ["q.weight", "norm.weight", "mlp.experts.1"]
		good = [r.gauss(0, 1) for _ in range(300)]
		def off(by, at=range(300)):
		    return [x + by * r.gauss(0, 1) * (i in at) for i, x in enumerate(good)]
		def worst(names, values, dtype="bf16", exact=None, to=good, bound=None):
		    return lib.gradient_distances(step(names, values), step(names, to), dtype, bound,
		                                  step(names, exact) if exact else None)[0]
		k = range(100, 200)
		# rounding: what BOUND allows, what the cpu's rounding allows, and no more
		assert worst(dense, off(0.03), exact=off(0.01))[0] < 1 < worst(dense, off(0.09), exact=off(0.01))[0]
		assert worst(dense, off(0.09, k), exact=off(0.06, k))[0] < 1
		assert worst(dense, off(0.09, k), exact=off(0.01, k))[3] == "k.bias"
		assert worst(dense, off(0.8, k), exact=off(2.0, k))[0] > 1
		assert worst(dense, off(1e-5), "fp32")[0] < 1 < worst(dense, off(2e-4), "fp32")[0]
		assert worst(dense, off(0.1), bound=0.15)[0] < 1 < worst(dense, off(0.2), bound=0.15)[0]
		# a missing tensor, one that is not a number, one that should be zero
		for bad in (0, math.nan, math.inf):
		    values = [bad if i in k else x for i, x in enumerate(good)]
		    assert worst(dense, values)[0] > 1 and worst(moe, values)[0] > 1
		nothing = [1e-7 * x if i in k else x for i, x in enumerate(good)]
		assert worst(dense, [3 * x if i in k else x for i, x in enumerate(nothing)], to=nothing)[0] < 1
		assert worst(dense, [1e-2 if i in k else x for i, x in enumerate(nothing)], to=nothing)[3] == "k.bias"
		# an expert's tokens may differ, if that changes little of the whole; also another tensor's, less
		few = [x if i < 200 else 0.01 * x for i, x in enumerate(good)]
		expert = [x if i < 200 else 0.005 * x for i, x in enumerate(good)]
		assert worst(moe, expert, to=few)[0] < 1 < worst(dense, expert, to=few)[0]
		assert worst(moe, expert, "fp32", to=few)[0] > 1
		wrong = [x if i < 200 else 0.003 * x for i, x in enumerate(good)]
		assert worst(moe, wrong, to=few)[3].startswith("mlp.experts")
		assert worst(moe, off(0.5, range(200, 300)))[3] == "the whole gradient"
		# losses
		def losses(*changed):
		    return lib.loss_distance(step(dense, good, [*changed, *lines[len(changed):]]), step(dense, good))
		assert losses() == 0 and losses("micro 0 aux loss 0x1.8p+1") == 0.5
		assert losses("micro 0 z-loss 0x1p+1") == math.inf
		assert losses(lines[0], "micro 0 loss 0x1.8p+7 over 90") == 0.5
	PY
	python3 "$T/compare.py" "$TOP/tests/gpu"
}

@test "gpu scripts: the scripts wait for memory limits that grow late, and give up when they do not grow" {
	cat >"$T/memory.py" <<-'PY'
		import os, subprocess, sys, time
		sys.path.insert(0, sys.argv[1])
		import lib
		MIB, grows, held_since = 1 << 20, True, None
		def held():
		    ps = ["ps", "-o", "rss=", "--ppid", str(os.getpid())]
		    out = subprocess.run(ps, capture_output=True, text=True).stdout.split()
		    return sum(map(int, out)) * 1024, sum(int(kib) > 64 << 10 for kib in out)
		def meminfo(key):                       # 512 MiB that become 2048 MiB 1.5 s after 400 of them are used
		    global held_since
		    bytes_, several = held()
		    if bytes_ >= 400 * MIB and several >= min(2, len(os.sched_getaffinity(0))):
		        held_since = held_since or time.monotonic()
		    total = 2048 * MIB if grows and held_since and time.monotonic() > held_since + 1.5 else 512 * MIB
		    return total if key == "MemTotal" else total - 16 * MIB
		lib.meminfo = meminfo
		assert lib.wake_memory(1024 * MIB, limit=600, patience=600) >= 1024 * MIB
		assert held()[1] == 0
		grows, held_since, began = False, None, time.monotonic()
		assert lib.wake_memory(1024 * MIB, limit=600, patience=2) < 1024 * MIB
		assert 1.9 < time.monotonic() - began < 600
	PY
	python3 "$T/memory.py" "$TOP/tests/gpu"
}

# A toolkit that has only nvcc, and a folder of Python packages with the rest
bare_toolkit() {
	unset MAKELEVEL MAKEFLAGS MFLAGS        # within the make that runs the tests, our make would print less
	mkdir -p "$T/cuda/bin" "$T/cuda/include" "$T/site/nvidia/cu13/include" "$T/site/nvidia/cu13/lib" \
		"$T/site/nvidia/cudnn/lib"
	printf '#!/bin/sh\n' >"$T/cuda/bin/nvcc"
	chmod +x "$T/cuda/bin/nvcc"
	: >"$T/site/nvidia/cu13/include/cublasLt.h"
	: >"$T/site/nvidia/cu13/lib/libcudart_static.a"
	: >"$T/site/nvidia/cu13/lib/libcublasLt.so.13"
	: >"$T/site/nvidia/cudnn/lib/libcudnn.so.9"
}

@test "make finds cuBLASLt's header and CUDA's static runtime in toolkit or Python's wheels; else it names them" {
	bare_toolkit
	make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC="$T/cuda/bin/nvcc" PYTHON_LIB="$T/site" CUDNN_FRONTEND= all >"$T/out"
	grep -q -e "-isystem $T/cuda/include -isystem $T/site/nvidia/cu13/include .*mt-stream/device/cuda/gemm.c" "$T/out"
	grep -q -e "-o $T/bin/mt-stream .* $T/site/nvidia/cu13/lib/libcudart_static.a" "$T/out"
	make -C "$TOP" --no-print-directory NVCC="$T/cuda/bin/nvcc" PYTHON_LIB="$T/site" gpu-have >"$T/out"
	grep -q "^cublasLt.h $T/site/nvidia/cu13/include/cublasLt.h$" "$T/out"
	rm -r "$T/site/nvidia/cu13/lib" "$T/site/nvidia/cu13/include"
	make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC="$T/cuda/bin/nvcc" PYTHON_LIB="$T/site" all >"$T/out"
	grep -q '^no libcudart_static.a cublasLt.h found: mt-stream is built without its cuda device$' "$T/out"
	no grep -q 'cuda/gemm.c' "$T/out"
}

@test "gpu scripts: programs find the libraries of Python's wheels" {
	bare_toolkit
	mkdir "$T/none"
	cat >"$T/find.py" <<-'PY'
		import ctypes, os, sys
		sys.path[:0] = sys.argv[1:]
		import lib
		def nowhere(name):
		    raise OSError(name)
		ctypes.CDLL = nowhere
		site = sys.argv[2] + "/nvidia"
		lib.words = lambda *command: "release 13.0"
		found = lib.find_libraries()
		assert found == {"libcublasLt.so.13": site + "/cu13/lib/libcublasLt.so.13",
		                 "libcudnn.so.9": site + "/cudnn/lib/libcudnn.so.9"}
		assert os.environ["MT_CUBLASLT"] == found["libcublasLt.so.13"]
		assert os.environ["MT_CUDNN"] == found["libcudnn.so.9"]
		assert os.environ["LD_LIBRARY_PATH"].split(":")[-2:] == [site + "/cu13/lib", site + "/cudnn/lib"]
	PY
	env -u MT_CUDNN -u MT_CUBLASLT python3 "$T/find.py" "$TOP/tests/gpu" "$T/site"
}

@test "make builds what depends on the CUDA toolkit again after it was installed or removed, and only then" {
	local stream="$T/build/mt-stream/stream.o"
	bare_toolkit
	build() { # NVCC VARIABLES...
		make -C "$TOP" B="$T/bin" O="$T/build" PYTHON_LIB="$T/site" CUDNN_FRONTEND= NVCC="$@" "$stream" >"$T/out"
	}
	build ""
	no grep -q HAVE_CUDA "$T/out"
	build "" V=1
	no grep -q stream.c "$T/out"
	build "$T/cuda/bin/nvcc" V=1
	grep -q -e '-DHAVE_CUDA .*stream.c' "$T/out"
	build "$T/cuda/bin/nvcc" V=1
	no grep -q stream.c "$T/out"
	build "" V=1
	grep -q stream.c "$T/out"
}

@test "make compiles through ccache if it can write its cache, .cu files by their headers; not with CCACHE=" {
	bare_toolkit
	mkdir "$T/path"
	printf '%s\n' '#!/bin/sh' '[ "$1" != -k ] || { echo "$CACHE"; exit; }' "echo \"\$CCACHE_DEPEND \$*\" >>'$T/calls'" \
		'exec "$@"' >"$T/path/ccache"
	chmod +x "$T/path/ccache"
	compile() { # DIRECTORY-OF-THE-CACHE VARIABLES...
		rm -rf "$T/build"
		: >"$T/calls"
		CACHE=$1 PATH=$T/path:$PATH make -C "$TOP" B="$T/bin" O="$T/build" NVCC="$T/cuda/bin/nvcc" \
			PYTHON_LIB="$T/site" CUDNN_FRONTEND= "${@:2}" "$T/build/shm/error.o" "$T/build/mt-stream/device/cuda/rows.o"
		[ -s "$T/build/shm/error.o" ]
	}
	compile "$T/cache"
	grep -q "^ cc .* -c -o $T/build/shm/error.o" "$T/calls"
	grep -q "^1 $T/cuda/bin/nvcc .*mt-stream/device/cuda/rows.cu" "$T/calls"
	[ "$(wc -l <"$T/calls")" = 2 ]
	compile "$T/cache" CCACHE=
	[ ! -s "$T/calls" ]
	compile "$T/calls/cache"
	[ ! -s "$T/calls" ]
}

@test "make demo builds no more than it runs, and CUDA's files only if mt-stream has been built with them" {
	need_cmd bible
	need_cmd strace
	bare_toolkit
	local program
	plan() { # what make demo would do, with this in $O/mt-stream/devices
		mkdir -p "$T/build/mt-stream"
		echo "$1" >"$T/build/mt-stream/devices"
		make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC="$T/cuda/bin/nvcc" PYTHON_LIB="$T/site" CUDNN_FRONTEND= demo
	}
	plan "cpu chaos cuda" >"$T/out"
	grep -q 'cuda/rows' "$T/out"
	plan "cpu chaos" >"$T/out"
	no grep -q 'cuda/rows' "$T/out"
	mkdir -p "$T/tree/bin"
	ln -s "$TOP/bin/run" "$T/tree/bin"
	for program in $(sed -n "s|.* -o $T/bin/\(mt-[a-z]*\) .*|\1|p" "$T/out"); do
		cp "$MT/$program" "$T/tree/bin"
		echo "$program" >>"$T/built"
	done
	(
		PATH=${PATH#"$MT:$PROBES:"}
		MT_DEMO_STEPS=5 strace -f -e trace=execve -o "$T/trace" "$T/tree/bin/mt-run" --demo "$T/demo" >"$T/out" 2>&1
	) || { cat "$T/out"; return 1; }
	[ -s "$T/demo/run/samples.jsonl" ] && [ -s "$T/demo/run/model/model.safetensors" ]
	sed -n 's|.*execve("[^"]*tree/bin/\(mt-[a-z]*\)".*|\1|p' "$T/trace" | grep -vx mt-plot | sort -u >"$T/ran"
	sort "$T/built" | diff - "$T/ran"
}

@test "make uses OpenBLAS if oneDNN's header is missing" {
	make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC= CC="cc -nostdinc" "$T/bin/mt-stream" >"$T/out"
	grep -q -e "-o $T/bin/mt-stream .*-lopenblas" "$T/out"
	make -C "$TOP" -n B="$T/bin" O="$T/build" NVCC= CC="cc -isystem $T/oneapi" "$T/bin/mt-stream" >"$T/out"
	if [ -e /usr/include/dnnl.h ]; then grep -q -e "-o $T/bin/mt-stream .*-ldnnl" "$T/out"; fi
}

#!/usr/bin/env bats
# Several GPUs in one mt-run, emulated.
load helpers
load lib/step

# mt-run and all programs, of which mt-stream is the emulator's. FAULT="cuda:N VARIABLE=VALUE": of emulated GPU N alone
setup_gpus() { # NUMBER
	need_emulator
	export MT_EMU_DEVICES=$1 MT_CUBLASLT=$BUILD/emu/libcublasLt.so.13
	mkdir "$T/bin"
	ln -s "$MT"/* "$T/bin"
	rm "$T/bin/mt-stream"
	printf '%s\n' '#!/bin/sh' 'echo "$*" >>'"'$T/started'" \
		'[ -z "$FAULT" ] || case "$* " in *"${FAULT%% *} "*) export "${FAULT#* }" ;; esac' \
		"exec '$EMU' \"\$@\"" >"$T/bin/mt-stream"
	chmod +x "$T/bin/mt-stream"
	PATH=$T/bin:$PATH
}
trains() { # NAME OPTIONS...
	local name=$1
	shift
	: >"$T/started"
	run_it "$@" --out "$T/$name" >"$T/$name.m" 2>"$T/$name.err"
}
run_it() {
	mt-run --model "$GOLDEN/qwen3/model" --data "$GOLDEN/llama3/data.bin" --steps "${STEPS:-3}" --batch 4 \
		--micro "${MICRO:-1}" --seq 32 --lr 1e-3 --no-shuffle --run "$RUN" "$@" 3>&-
}
started() { sed -n 's/.*--device \([^ ]*\).*/\1/p' "$T/started" | sort | paste -sd ' ' -; }
same() { cmp "$T/one/model/model.safetensors" "$T/$1/model/model.safetensors"; } # NAME

# bats test_tags=slow
@test "mt-run --device cuda:0,cuda:2, cuda:all, two on one GPU, cuda --streams N: an mt-stream on each, the same bits" {
	setup_gpus 3
	trains one --device cuda
	[ "$(started)" = cuda:0 ]
	trains two --device cuda:0,cuda:2
	[ "$(started)" = "cuda:0 cuda:2" ]
	same two
	trains all --device cuda:all
	[ "$(started)" = "cuda:0 cuda:1 cuda:2" ]
	[ "$(grep -c -e --streams=3 "$T/started")" = 3 ]
	same all
	trains shared --device cuda:1,cuda:1 --streams 2
	[ "$(started)" = "cuda:1 cuda:1" ]
	same shared
	trains streams --device cuda --streams 2
	[ "$(started)" = "cuda:0 cuda:1" ]
	same streams
	: >"$T/started"
	run_it --device cuda:all --dry-run --out "$T/dry" >"$T/report" 2>"$T/dry.err"
	grep -q -e "--plan .*--micro-batches=2 .*--device cuda:0 .*--streams=3" "$T/started"
	grep -q "predicted by the rates of emulated" "$T/report"
}

@test "GPUs of one machine share the host's memory: each is as fast as alone where it does not bound, and not faster" {
	speed() { # STREAMS PROFILE-WITH-RAM...
		mt-plan --config "$CONFIGS/qwen2.5-7b.json" --seq 4096 --micro "$2" --streams "$1" --profile h100 --json |
			python3 -c 'import json, sys; print(json.load(sys.stdin)["backward_s"])'
	}
	python3 -c 'import sys
one, two, eight, long, longs = map(float, sys.argv[1:])
assert one < two < eight and eight > 3 * one, "short steps are bound by the links"
assert long <= longs < 1.2 * long, "long ones compute"' "$(speed 1 1)" "$(speed 2 1)" "$(speed 8 1)" "$(speed 1 64)" \
		"$(speed 2 64)"
}

# bats test_tags=slow
@test "GPUs of different memory, and one whose mt-stream is killed in a step: the same bits" {
	setup_gpus 2
	MICRO=2 trains one --device cuda
	MICRO=2 MT_EMU_MEMORY=4294967296,402940000 trains small --device cuda:all
	grep -q "2 weight and 2 gradient slots" "$T/small.err" && grep -q "1 weight and 1 gradient slot;" "$T/small.err"
	same small
	STEPS=12
	killer() {
		local pid
		eventually grep -q '"step": 1,' "$T/killed/metrics.jsonl"
		pid=$(pgrep -f "^$EMU $RUN --device cuda:1 ") && kill -9 $pid
	}
	killer &
	trains killed --device cuda:0,cuda:1 --restart
	wait $! || true
	[ "$(started | tr ' ' '\n' | grep -c cuda:1)" -ge 2 ]
	grep -q 'mt-stream.1 was killed' "$T/killed.err"
	trains whole --device cuda
	cmp "$T/whole/model/model.safetensors" "$T/killed/model/model.safetensors"
}

# bats test_tags=slow
@test "a training continues on another number of GPUs, and two score records: the bits of one GPU" {
	setup_gpus 3
	trains one --device cuda
	trains parts --device cuda:0,cuda:1 --until 1
	trains parts --device cuda:2 --until 2 --resume
	trains parts --device cuda:all --resume
	[ "$(started)" = "cuda:0 cuda:1 cuda:2" ]
	same parts
	for list in cuda cuda:1,cuda:2; do
		mt-run --score --model "$GOLDEN/qwen3/model" --data "$GOLDEN/llama3/data.bin" --seq 32 --run "$RUN" \
			--device $list >"$T/score.$list" 2>"$T/score.err" 3>&-
	done
	[ "$(wc -l <"$T/score.cuda")" -gt 30 ]
	cmp "$T/score.cuda" "$T/score.cuda:1,cuda:2"
}

# Kills at random moments, as in tests/80-crash.bats: the bits of one GPU that nothing disturbs
storm() {
	need_emulator
	python3 "$TOP/tests/crash/crash.py" --faults "${MT_CRASH_FAULTS:-20}" "$@"
}
# bats test_tags=nightly
@test "dpo, experts by windows, on two GPUs: kills at random moments change no bit" { storm gpus-2; }
# bats test_tags=nightly
@test "--update early, state in files, on three GPUs: kills at random moments change no bit" { storm gpus-3; }

# Sensors of the emulated GPUs, as tests/probes/so-nvml.c reads them: sensors LINE-OF-GPU...
sensors() {
	mkdir -p "$T/lib"
	ln -sf "$PROBES/so-nvml.so" "$T/lib/libnvidia-ml.so.1"
	export LD_LIBRARY_PATH=$T/lib NVML_SENSORS=$T/sensors
	printf '%s\n' "$@" >"$T/sensors.new"
	mv "$T/sensors.new" "$T/sensors"
}
stat_shows() { mt-store stat "$RUN" | grep -q -- "$1"; }
# $RUN with an mt-stream on each of N emulated GPUs, and an mt-step that has trained 2 steps and waits: serving N
serving() {
	need_emulator
	export MT_EMU_DEVICES=$1 MT_CUBLASLT=$BUILD/emu/libcublasLt.so.13
	mt-store create "$RUN" --config "$GOLDEN/llama3/model" --streams "$1" 2>"$T/create.err"
	mt-ckpt load "$RUN" "$GOLDEN/llama3/model" 2>"$T/load.err"
	for gpu in $(seq 0 $(($1 - 1))); do
		spawn "stream$gpu" "$EMU" "$RUN" --device "cuda:$gpu"
		STREAM=$PID
		eventually stat_shows "^mt-stream $gpu .*waits for a batch"
	done
	spawn optim mt-optim "$RUN" --threads 1
	mkfifo "$T/fifo"
	exec 7<>"$T/fifo"
	mt-step "$RUN" --steps 9 --batch 4 --micro 1 --seq 32 --lr 1e-3 <"$T/fifo" >"$T/step.out" 2>"$T/step.err" \
		3>&- 7>&- &
	echo "$!" >>"$T/pids"
	documents 9 >&7
	eventually grep -q '"step": 2,' "$T/step.out"
}

# bats test_tags=slow
@test "each GPU's sensors are in mt-top, stat, Prometheus and metrics; a sensor that is not supported is left out" {
	local first="150000000000 71000000000 612345 700000 1410 1980 61"
	local second="24000000000 1000000000 80000 - 1500 1500 40 - 1"
	sensors "$first 5000000 0x24" "$second"
	serving 2
	eventually stat_shows '^mt-stream 0 .*; GPU: power 612 of 700 W, clock 1410 of 1980 MHz, held down by power limit,'
	stat_shows '^mt-stream 1 .*; GPU: power 80 W, clock 1500 of 1500 MHz, temperature 40 C, memory'
	if [ -x "$MT/mt-top" ]; then
		COLUMNS=150 mt-top "$RUN" --once >"$T/top"
		grep -Eq "^GPU of mt-stream 0  tokens/s [0-9.]+( k)?  wait [0-9.]+ %  power 612 of 700 W  clock 1410 " "$T/top"
		grep -Eq "held down by power limit, temperature" "$T/top"
	fi
	# the energy since the mt-stream began, and that of a step
	sensors "$first 5123000 0x24" "$second"
	energy() {
		mt-store stat "$RUN" --prometheus >"$T/prom"
		grep -q '^mt_gpu_energy_joules_total{.*} 123$' "$T/prom"
	}
	eventually energy
	documents 4 >&7
	eventually grep -q '"step": 3,' "$T/step.out"
	mt-store stat "$RUN" --json >"$T/stat.json"
	python3 "$TOP/tests/lib/prometheus.py" "$T/prom" >"$T/prom.json"
	python3 - "$T" <<-'PY'
		import json, sys
		stat, prom = (json.load(open(sys.argv[1] + name)) for name in ("/stat.json", "/prom.json"))
		*before, line = map(json.loads, open(sys.argv[1] + "/step.out"))
		first, second = (s["gpu"] for s in stat["stages"] if s["stage"].startswith("mt-stream"))
		assert first == {"memory_used_bytes": 71e9, "memory_bytes": 150e9, "power_w": 612.345, "power_limit_w": 700,
		    "clock_hz": 1.41e9, "clock_limit_hz": 1.98e9, "temperature_c": 61, "energy_j": 123,
		    "clock_held_by": "power limit, temperature"}, first
		assert second["energy_j"] is None and second["power_limit_w"] is None and second["clock_held_by"] == "", second
		values = {(name, labels.get("stage"), labels.get("reason")): x for name, labels, x in prom}
		assert values["mt_gpu_power_watts", "mt-stream 0", None] == 612.345, values
		assert values["mt_gpu_clock_hertz", "mt-stream 1", None] == 1.5e9, values
		assert ("mt_gpu_power_limit_watts", "mt-stream 1", None) not in values, values
		assert [values["mt_gpu_clock_held", "mt-stream %d" % i, "power limit"] for i in (0, 1)] == [1, 0], values
		assert line["gpu0_energy_j"] == 123 and line["gpu0_power_w"] == 612.345 and "gpu1_energy_j" not in line, line
		tokens = sum(m["gpu0_tokens"] + m["gpu1_tokens"] for m in before + [line])
		assert 3 * 128 - 2 * 32 <= tokens <= 3 * 128 and 0 <= line["gpu1_wait"] <= 1, (tokens, line)
		assert line["gpu0_clock_held_by"] == "power limit, temperature" and line["gpu1_clock_held_by"] == "", line
	PY
	kill -9 "$STREAM"
	eventually no stat_shows '^mt-stream 1 .*GPU:'
}

# bats test_tags=slow
@test "without NVML, or if it fails, hangs or lacks functions, a run trains and ends as ever, and shows no sensors" {
	sensors "150000000000 71000000000 612345 700000 1410 1980 61 5000000 4"
	setup_gpus 1
	STEPS=1
	no_gpu() { # NAME
		no grep -q gpu0 "$T/$1.m"
		[ -s "$T/$1/model/model.safetensors" ]
	}
	LD_LIBRARY_PATH='' trains one --device cuda
	no_gpu one
	NVML_SENSORS=$T/none trains fails --device cuda
	no_gpu fails
	: >"$T/empty"
	NVML_SENSORS=$T/empty trains hangs --device cuda
	no_gpu hangs
	same hangs
	cp "$BUILD/emu/libcublasLt.so.13" "$T/lib/libnvidia-ml.so.1.new"
	mv "$T/lib/libnvidia-ml.so.1.new" "$T/lib/libnvidia-ml.so.1"
	trains lacks --device cuda
	no_gpu lacks
	same lacks
}

# bats test_tags=slow
@test "a GPU that fails or is short of memory is named in a line; with --restart the others go on, with the same bits" {
	setup_gpus 3
	STEPS=4
	trains one --device cuda
	broken="^mt-stream: cuda:1: .*: cudaErrorLaunchFailure .*; dmesg has an Xid if .*; mt-stream .*unit"
	FAULT="cuda:1 MT_EMU_FAIL=150" exits 74 trains fails --device cuda:all
	[ "$(grep -c "$broken" "$T/fails.err")" = 1 ]
	FAULT="cuda:1 MT_EMU_FAIL=150" trains goes --device cuda:all --restart
	[ "$(grep -c "$broken" "$T/goes.err")" = 1 ]
	grep -q "^mt-run: mt-stream.1 has failed (exit code 74) and is given up; the others go on" "$T/goes.err"
	[ "$(started)" = "cuda:0 cuda:1 cuda:2" ]
	same goes
	FAULT="cuda:2 MT_EMU_MEMORY=300000000" trains short --device cuda:all --restart
	grep -q "^mt-run: mt-stream.2 has failed (exit code 71) and is given up" "$T/short.err"
	same short
}

@test "mt-stream --gpus lists them; GPUs that are not there or not named for each mt-stream are refused" {
	setup_gpus 2
	[ "$(mt-stream --gpus | cut -d , -f 1)" = "$(printf 'cuda:%d emulated\n' 0 1)" ]
	refused() { # CODE WORDS OPTIONS...
		fails_with "$1" run_it --out "$T/no" "${@:3}"
		grep -qF -- "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	}
	refused 64 "--streams 3, and --device names 2 GPUs: name one for each mt-stream" --device cuda:0,cuda:1 --streams 3
	refused 64 "--streams 2, and --device names 1 GPU:" --device cuda:1 --streams 2
	refused 78 "--streams 3, and there are fewer GPUs: --device cuda:0,cuda:0 has two" --device cuda --streams 3
	for list in cuda:0,cpu cuda:0, cuda:all,cuda:0 cuda:x cuda:0,,cuda:1 cpu,cpu; do
		refused 64 "--device: '$list' is not cpu, chaos:SEED, cuda[:N][,cuda:N...] or cuda:all" --device $list
	done
	[ ! -e "$T/no" ]
	refused 78 "device cuda:2: there are 2 GPUs, from 0" --device cuda:0,cuda:2
	MT_EMU_NO_DRIVER=1 refused 78 "mt-run: device cuda: no NVIDIA driver" --device cuda:all
}

# bats test_tags=slow
@test "an mt-stream that is slower than the other one gets fewer micro-batches: the same bits" {
	run_it() {
		mt-run --model "$CONFIGS/demo.json" --data "$TOP/README.md" --bytes --epochs 9 --steps 16 --batch 12 --micro 1 \
			--seq 256 --threads 1 --lr 1e-3 --run "$RUN" "$@" 3>&-
	}
	stat() { mt-store stat "$RUN" --json | jq ".stages[] | select(.stage | startswith(\"mt-stream\")) | $1"; }
	slow() { # mt-stream 1 is stopped for most of the time until the run ends
		local pid
		eventually grep -q '"step": 1,' "$T/slow/metrics.jsonl"
		pid=$(stat .pid | tail -n 1)
		while kill -STOP "$pid" 2>&-; do
			sleep 0.06
			stat .counters.micros >"$T/now" && [ "$(wc -l <"$T/now")" = 2 ] && mv "$T/now" "$T/micros"
			kill -CONT "$pid" && sleep 0.02
		done
	}
	slow 2>&- &
	trains slow --streams 2
	wait $! || true
	trains one
	same slow
	awk 'NR == 1 { fast = $1 } END { exit !($1 > 0 && fast > 2 * $1) }' "$T/micros" || { cat "$T/micros"; return 1; }
}

# bats test_tags=slow
@test "GPUs of two types: refused without --shares, with it each has its share and its own choices; kill, resume" {
	setup_gpus 2
	export MT_EMU_GPU=large,small
	micros() { mt-store stat "$RUN" --json | jq '.stages[].counters.micros // empty' | paste -sd ' ' -; }
	ends_with() { # CODE OPTIONS...
		local rc=0
		trains "${@:2}" || rc=$?
		[ $rc = "$1" ] || { cat "$T/$2.err"; return 1; }
	}
	ends_with 78 none --device cuda:0,cuda:1
	grep -qF "mt-run: GPUs of several types (large, sm_90;small, sm_90): --shares N,N says how many" "$T/none.err"
	ends_with 64 none --device cuda:0,cuda:1 --shares 3
	grep -qF "mt-run: --shares: '3' is not a number for each of 2 GPUs" "$T/none.err"
	ends_with 64 zero --device cuda:0,cuda:1 --shares 3,0
	grep -qF "mt-step: --shares: '3,0' is not a list of numbers from 1 to 1000, one for each of at most" "$T/zero.err"
	STEPS=12
	killer() {
		eventually grep -q '"step": 2,' "$T/killed/metrics.jsonl"
		micros >"$T/micros"
		kill -9 "$(pgrep -f "^$EMU $RUN --device cuda:1 ")"
	}
	killer &
	trains killed --device cuda:0,cuda:1 --shares 3,1 --restart
	wait $! || true
	awk '{ exit !($1 > 2 * $2 && $2 > 0) }' "$T/micros" || { cat "$T/micros"; return 1; }
	trains half --device cuda:0,cuda:1 --shares 3,1 --until 4
	grep -q "\"mt-stream 1: machine\"" "$T/half/step-00000004/run.json"
	ends_with 78 half --device cuda:1,cuda:0 --resume
	ends_with 78 half --device cuda:0,cuda:1 --shares 1,1 --resume
	trains half --device cuda:0,cuda:1 --resume
	cmp "$T/half/model/model.safetensors" "$T/killed/model/model.safetensors"
}

@test "cuBLASLt is opened at MT_CUBLASLT, else among NVIDIA's wheels where the program is installed" {
	need_emulator
	wheel=$T/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13
	mkdir -p "$T/venv/bin" "${wheel%/*}"
	cp "$BUILD/emu/mt-plan" "$T/venv/bin"
	for library in "$wheel" "$T/given.so"; do
		echo '__attribute__((constructor)) static void opened(void) { puts(FROM); }' |
			cc -shared -fPIC -include stdio.h -D"FROM=\"opened $library\"" -xc -o "$library" -
	done
	opened() { "$T/venv/bin/mt-plan" --config "$GOLDEN/qwen3/model" --seq 32 --micro 1 --device cuda 2>/dev/null; }
	opened >"$T/out"
	grep -qx "opened $wheel" "$T/out"
	MT_CUBLASLT=$T/given.so opened >"$T/out"
	grep -qx "opened $T/given.so" "$T/out"
	no grep -q "opened.*/nvidia/" "$T/out"
}

@test "the emulated GPUs: what is of another device than the thread's ends the program" {
	need_emulator
	cat >"$T/uses.cc" <<-'END'
		#include <cuda_runtime.h>
		#include <cstdlib>
		#include <cstring>
		int main(int, char **argv)
		{
			void *a, *b;
			cudaStream_t one, other;
			cudaEvent_t e;
			char what = argv[1][0];
			for (int i = 0; i < 2; i++) {
				cudaSetDevice(i);
				cudaMalloc(i ? &b : &a, 64);
				cudaStreamCreateWithFlags(i ? &other : &one, cudaStreamNonBlocking);
				if (i) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
			}
			cudaSetDevice(what == 'm'); /* m: all is of device 1 */
			if (what == 'm') cudaMemsetAsync(b, 0, 64, other), cudaMemcpy(b, b, 8, cudaMemcpyDeviceToDevice);
			if (what == 'p') cudaMemsetAsync((char *)b + 60, 0, 4, one);
			if (what == 'c') cudaMemcpy(a, b, 64, cudaMemcpyDeviceToDevice);
			if (what == 's') cudaMemsetAsync(a, 0, 64, other);
			if (what == 'e') cudaStreamWaitEvent(one, e, 0);
			if (what == 'f') cudaFree(b);
			return 0;
		}
	END
	c++ -std=c++17 -I"$TOP/tests/gpu/emu" -o "$T/uses" "$T/uses.cc" "$BUILD"/emu/{emu,sdpa,wgmma}.o -lpthread
	MT_EMU_DEVICES=2 "$T/uses" m
	for what in p c s e f; do
		MT_EMU_DEVICES=2 exits 134 "$T/uses" $what 2>"$T/$what.err"
		grep -q "a thread uses what is of another device than its own" "$T/$what.err"
	done
}

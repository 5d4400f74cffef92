#!/usr/bin/env bats
# mt-stream --plan: plans for GPUs that are not here, as pure arithmetic.

load helpers

plan() { mt-stream --plan --config "$CONFIGS/$1.json" "${@:2}"; }

# value KEY < JSON
value() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

@test "more memory never predicts a slower step, and no plan is larger than the memory" {
	python3 - "$MT/mt-stream" "$CONFIGS" <<-'PY'
		import json, subprocess, sys
		stream, configs = sys.argv[1:]
		def plan(model, memory, *options):
		    p = subprocess.run([stream, "--plan", "--json", "--config", f"{configs}/{model}.json", "--device-memory",
		        str(memory), *options], capture_output=True, text=True)
		    assert p.returncode in (0, 71), p.stderr
		    return json.loads(p.stdout) if p.returncode == 0 else None
		cases = [("qwen2.5-7b", "--seq 4096 --micro 16", 6, 300), ("qwen2.5-7b", "--seq 131072 --micro 1 --profile H100", 8, 600),
		    ("qwen3-8b", "--seq 2048 --micro 5 --grad bf16 --profile rtx4090", 4, 90), ("demo", "--seq 256 --micro 8 --dtype fp32", 0.01, 1.2),
		    ("mistral-7b-v0.1", "--seq 16384 --micro 3 --recompute full", 4, 200), ("llama-120b", "--seq 4096 --micro 8 --grad none", 15, 900)]
		for model, options, low, high in cases:
		    last, seen, memory = None, set(), low * 1e9
		    while memory < high * 1e9:
		        p = plan(model, int(memory), *options.split())
		        assert p or not last, (model, memory, "fitted with less")
		        if p:
		            assert p["least_bytes"] <= p["peak_bytes"] <= memory, (model, p)
		            assert not last or p["step_s"] <= last["step_s"], (model, last, p)
		            parts = p["forward_s"] + p["backward_s"] + p["stall_s"] + p["tail_s"]
		            assert abs(parts - p["step_s"]) < 1e-6 * parts, p
		            seen.add(json.dumps({k: p[k] for k in ("order", "keep_all", "weight_slots", "chunk_tokens")}))
		        last, memory = p, memory * 1.19
		    assert last and len(seen) >= 3, (model, seen)
	PY
}

@test "the smallest budget that is named works, one MiB less does not" {
	for args in "qwen2.5-7b --seq 4096 --micro 64" "llama-120b --seq 8192 --micro 2 --grad none" \
		"demo --seq 64 --micro 1 --dtype fp32" "qwen2.5-7b --seq 524288 --micro 1" "qwen3-8b --seq 512 --micro 3 --recompute none"; do
		# shellcheck disable=SC2086
		fails_with 71 plan $args --device-memory 1M
		least=$(sed -n 's/.*needs \([0-9]*\) MiB.*/\1/p' "$T/fails.err")
		# shellcheck disable=SC2086
		plan $args --device-memory "${least}M" >/dev/null
		# shellcheck disable=SC2086
		fails_with 71 plan $args --device-memory "$((least - 1))M"
	done
}

@test "a 7B trains on 10 GiB" {
	plan qwen2.5-7b --device-memory 10G --seq 4096 --micro 16 --json >"$T/plan"
	[ "$(value peak_bytes <"$T/plan")" -le $((10 << 30)) ]
	[ "$(value order <"$T/plan")" = layer-major ]
}

@test "120 G parameters train on 141 GB, with 1.5 TB of state in host memory" {
	plan llama-120b --device-memory 141000000000 --seq 4096 --micro 8 --grad none --json >"$T/plan"
	[ "$(value store_bytes <"$T/plan")" -le 1500000000000 ]
	[ "$(value store_bytes <"$T/plan")" -ge "$((12 * $(value params <"$T/plan")))" ]
	plan llama-120b --device-memory 141000000000 --seq 4096 --micro 8 --grad none | grep -q "^host  *14[0-9][0-9]\.[0-9]* GB of state"
}

@test "the host need of 120 G parameters, activations that it is sent included, can be kept below 1.5 TB" {
	plan llama-120b --device-memory 141000000000 --seq 4096 --micro 4 --grad none --json >"$T/plan"
	[ "$(($(value store_bytes <"$T/plan") + $(value host_activation_bytes <"$T/plan")))" -le 1500000000000 ]
}

@test "one sequence of 128k tokens of a 7B on 80 GB, of 512k on 141 GB" {
	plan qwen2.5-7b --device-memory 80000000000 --profile H100 --seq 131072 --micro 1 --json >"$T/128k"
	[ "$(value peak_bytes <"$T/128k")" -le 80000000000 ]
	[ "$(value inputs_to_host <"$T/128k")" = True ]
	plan qwen2.5-7b --device-memory 141000000000 --seq 524288 --micro 1 --json >"$T/512k"
	[ "$(value peak_bytes <"$T/512k")" -le 141000000000 ]
	[ "$(value inputs_to_host <"$T/512k")" = True ]
	[ "$(value attention_to_host <"$T/512k")" = True ]
	[ "$(value mlp_tokens <"$T/512k")" -lt 524288 ]
	[ "$(value head_tokens <"$T/512k")" -lt 524288 ]
}

@test "where all fits, passes keep weights and gradients on the device and recompute nothing" {
	plan qwen2.5-7b --device-memory 141G --seq 4096 --micro 64 --json >"$T/plan"
	[ "$(value order <"$T/plan")" = pass-major ]
	[ "$(value keep_all <"$T/plan")" = 28 ]
	[ "$(value passes <"$T/plan")" -ge 2 ]
	[ "$(value grad_slots <"$T/plan")" = 28 ]
}

@test "a slower optimizer stalls the step by what the first forward pass does not hide" {
	plan qwen2.5-7b --device-memory 141G --seq 4096 --micro 2 --profile H200,adam=1 --json >"$T/plan"
	python3 - "$T/plan" <<-'PY'
		import json, sys
		p = json.load(open(sys.argv[1]))
		assert abs(p["adam_s"] - p["params"] / 1e9) < 1e-3, p
		assert p["stall_s"] > 0 and abs(p["stall_s"] - (p["adam_s"] - p["first_forward_s"])) < 1e-6, p
	PY
}

@test "rates that are given change what is predicted" {
	slow=$(plan demo --seq 256 --micro 8 --json --device-memory 2G --profile H200,flops=100 | value step_s)
	fast=$(plan demo --seq 256 --micro 8 --json --device-memory 2G --profile H200 | value step_s)
	python3 -c 'import sys; assert float(sys.argv[1]) > float(sys.argv[2])' "$slow" "$fast"
	plan demo --seq 256 --micro 8 --json --profile RTX3090 | value memory | grep -qx 24000000000
	fails_with 64 plan demo --seq 256 --micro 8 --profile voodoo2
	fails_with 64 plan demo --seq 256 --micro 8 --profile H200,warp=9
	fails_with 64 plan demo --seq 256 --micro 8 --profile H200,adam=
	fails_with 64 plan demo --seq 256 --micro 8 --profile adam=-1
}

@test "--plan without what it needs is 64, without its config 66" {
	fails_with 64 mt-stream --plan --seq 256 --micro 8
	fails_with 64 plan demo --micro 8
	fails_with 64 plan demo --seq 256
	fails_with 64 plan demo --seq 256 --micro 8 --grad fp16
	fails_with 64 plan demo --seq 256 --micro 8 --dtype none
	fails_with 66 mt-stream --plan --config "$T/nothing.json" --seq 256 --micro 8
}

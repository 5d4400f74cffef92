#!/usr/bin/env bats
# mt-stream --plan --nodes: what a run on several nodes sends, how long its step takes, and the memory of a node.

load helpers

plan() { mt-stream --plan --profile H200 --config "$CONFIGS/$1.json" "${@:2}"; }

# The plan for H200s, in $T/NAME: planned NAME CONFIG OPTION...
planned() { plan "${@:2}" --json >"$T/$1" 2>"$T/$1.err"; }

SHAPE="--seq 4096 --micro 16"

# bats test_tags=slow
@test "streams x micro-batches x bytes x (N - 1)/N of gradients leave a node, and (N - 1)/N of the weights come" {
	for nodes in 2 8; do
		for streams in 1 8; do
			for micros in 1 3; do
				planned "$nodes.$streams.$micros" qwen2.5-7b $SHAPE --nodes $nodes --streams $streams \
					--micro-batches $micros --net 12.5
			done
		done
	done
	python3 - "$T" <<-'PY'
		import json, sys
		params = 7615616512  # of Qwen2.5-7B; no unit of it is padded
		for nodes in 2, 8:
		    for streams in 1, 8:
		        for micros in 1, 3:
		            p = json.load(open(f"{sys.argv[1]}/{nodes}.{streams}.{micros}"))
		            away = (nodes - 1) / nodes
		            assert (p["nodes"], p["streams"], p["micro_batches"]) == (nodes, streams, micros), p
		            assert p["net_gb_s"] == 12.5, p
		            assert p["params"] == params and p["network_grad_bytes"] == streams * micros * 4 * params * away, p
		            assert p["network_weight_bytes"] == 2 * params * away, p
		            assert abs(p["network_grad_s"] - p["network_grad_bytes"] / 12.5e9) < 1e-6, p
		            assert abs(p["network_s"] - p["network_grad_s"] - p["network_weight_bytes"] / 12.5e9) < 1e-6, p
		            tokens = 16 * 4096 * nodes * streams * micros
		            assert p["step_tokens"] == tokens and abs(p["tokens_per_s"] * p["step_s"] / tokens - 1) < 1e-5, p
		            parts = [p[k + "_s"] for k in ("forward", "backward", "stall", "tail", "network_wait")]
		            assert min(parts) >= 0 and abs(sum(parts) - p["step_s"]) < 1e-6 * p["step_s"], p
		            assert abs(p["network_share"] - p["network_wait_s"] / p["step_s"]) < 1e-6, p
		PY
}

@test "at 100 Gb/s a 7B's gradients take 17 s of a round with 8 streams on each of 8 nodes, 2.1 s with one" {
	planned many qwen2.5-7b $SHAPE --nodes 8 --streams 8 --net 12.5
	planned one qwen2.5-7b $SHAPE --nodes 8 --net 12.5
	planned small qwen2.5-7b --seq 4096 --micro 1 --micro-batches 16 --nodes 8 --streams 8 --net 12.5
	python3 - "$T/many" "$T/one" "$T/small" <<-'PY'
		import json, sys
		many, one, small = (json.load(open(f)) for f in sys.argv[1:])
		assert 17.0 <= many["network_grad_s"] < 17.1 and 2.1 <= one["network_grad_s"] < 2.2, (many, one)
		# the network sets the pace of the backward pass: forward, then all gradients
		least = many["forward_s"] + many["network_grad_s"]
		assert least < many["step_s"] < 1.05 * least, many
		# 16 micro-batches of a sixteenth of the rows: 16 times the gradients, and little else
		assert 16 * 17.0 <= small["network_grad_s"] < small["step_s"] < 1.05 * small["network_grad_s"], small
		# one stream's gradients leave while its backward pass computes: most of the network's time is hidden
		assert one["backward_s"] > one["network_grad_s"] and one["network_share"] < 0.1, one
	PY
}

@test "a slow network takes all of a step, a fast one adds nothing" {
	for net in 0.001 0.01 0.1 1 10 10000; do
		planned $net demo --seq 256 --micro 8 --dtype fp32 --device-memory 2G --nodes 4 --net $net
	done
	python3 - "$T" <<-'PY'
		import json, sys
		p = [json.load(open(f"{sys.argv[1]}/{net}")) for net in ("0.001", "0.01", "0.1", "1", "10", "10000")]
		sent = 3 / 4 * 4 * p[0]["params"]  # gradients, and as many bytes of weights; of 4 nodes
		assert abs(p[0]["network_s"] - 2 * sent / 1e6) < 0.01 * p[0]["network_s"], p[0]
		assert 0.99 < p[0]["step_s"] / p[0]["network_s"] < 1.01 and p[0]["network_share"] > 0.99, p[0]
		assert p[-1]["network_share"] < 1e-3, p[-1]
		for slow, fast in zip(p, p[1:]):
		    assert slow["step_s"] > fast["step_s"] and slow["network_share"] > fast["network_share"], (slow, fast)
		    # what the network adds is apart: all else is the same
		    assert abs(slow["step_s"] - slow["network_wait_s"] - fast["step_s"] + fast["network_wait_s"]) < 1e-6, slow
	PY
}

@test "between its weights and its gradients a network waits for the last block, where the head is small" {
	# (in bf16, the share of the rate that fp32 has would be measured)
	mt-stream --plan --profile cpu,flops=0.1,h2d=10,d2h=10,hbm=20,ram=20,adam=0.5 --config "$CONFIGS/demo.json" \
		--seq 256 --micro 4 --nodes 2 --net 0.01 --compute fp32 --json >"$T/plan" 2>"$T/plan.err"
	python3 - "$T/plan" "$CONFIGS/demo.json" <<-'PY'
		import json, sys
		p, model = (json.load(open(f)) for f in sys.argv[1:])
		assert p["network_s"] > 2 * (p["forward_s"] + p["backward_s"]), p
		layers, head = model["num_hidden_layers"], model["vocab_size"] * model["hidden_size"]
		# while the head's weights come and its gradient goes, the last block computes; the network waits for the rest
		waits = p["forward_s"] / layers - head * 2 / 2 / 1e7 + p["backward_s"] / layers - head * 4 / 2 / 1e7
		assert 0.8 * waits < p["step_s"] - p["network_s"] < 1.5 * waits, (waits, p)
	PY
}

@test "tied embeddings send two gradients of the embedding and one of its weights" {
	planned tied qwen2.5-1.5b --seq 4096 --micro 4 --nodes 2 --net 12.5 --grad bf16
	python3 - "$T/tied" <<-'PY'
		import json, sys
		p = json.load(open(sys.argv[1]))
		assert p["network_weight_bytes"] == p["params"], p  # half of 2 bytes each
		assert p["network_grad_bytes"] == p["params"] + 151936 * 1536, p
	PY
}

@test "each of N nodes updates 1/N: the optimizer takes 1/N of the time" {
	for nodes in 1 4; do planned $nodes qwen2.5-7b --seq 4096 --micro 2 --nodes $nodes --net 50; done
	python3 - "$T/1" "$T/4" <<-'PY'
		import json, sys
		one, four = (json.load(open(f)) for f in sys.argv[1:])
		assert abs(one["adam_s"] - 4 * four["adam_s"]) < 1e-6 and four["stall_s"] < one["stall_s"], (one, four)
	PY
}

@test "with one node the plan is that without --nodes" {
	planned none qwen2.5-7b $SHAPE
	planned one qwen2.5-7b $SHAPE --nodes 1 --net 12.5
	cmp "$T/none" "$T/one"
	grep -q '"nodes": 1, "streams": 1, "micro_batches": 1, "step_tokens": 65536, "net_gb_s": null' "$T/one"
}

@test "a node takes the memory that the plan predicts: all weights and 1/N of the state" {
	planned two demo --grad bf16 --seq 128 --micro 8 --nodes 2 --streams 4 --net 1
	python3 - "$T/two" <<-'PY'
		import json, sys
		p = json.load(open(sys.argv[1]))
		# 2 bytes of a weight; half of 2 of lo, 4 of m, 4 of v, 2 of g
		assert 8 <= p["store_bytes"] / p["params"] < 8.1, p
	PY
	for node in 0 1; do
		mt-store create "$RUN" --config "$CONFIGS/demo.json" --grad bf16 --step-tokens 1024 --node $node/2 2>/dev/null
		mt-store stat "$RUN" --json >"$T/stat.$node"
		mt-store rm "$RUN"
	done
	python3 - "$T/two" "$T/stat.0" "$T/stat.1" <<-'PY'
		import json, sys
		p, *nodes = (json.load(open(f)) for f in sys.argv[1:])
		# beside the regions, each stream has the rows of a micro-batch and the rotary tables
		assert p["host_bytes"] - max(n["bytes"] for n in nodes) == 4 * (12 * 1024 + 4 * 128 * 64), (p, nodes)
		assert p["store_bytes"] == max(n["state_bytes"] for n in nodes), (p, nodes)
	PY
	planned twelve demo --grad bf16 --seq 128 --micro 8 --nodes 12 --streams 3 --net 1
	for node in 0 11; do
		mt-store create "$RUN" --config "$CONFIGS/demo.json" --grad bf16 --step-tokens 1024 --node $node/12 \
			--streams 3 2>/dev/null
		mt-store stat "$RUN" --json >"$T/stat.$node"
		mt-store rm "$RUN"
	done
	python3 - "$T/twelve" "$T/stat.0" "$T/stat.11" <<-'PY'
		import json, sys
		p, first, last = (json.load(open(f)) for f in sys.argv[1:])
		assert p["host_bytes"] - 3 * (12 * 1024 + 4 * 128 * 64) >= first["bytes"] > last["bytes"], (p, first, last)
		assert p["host_bytes"] - 3 * (12 * 1024 + 4 * 128 * 64) - first["bytes"] <= 1 << 20, (p, first)
	PY
	planned large qwen2.5-7b --seq 4096 --micro 1 --nodes 8 --net 12.5
	python3 - "$T/large" <<-'PY'
		import json, sys
		p = json.load(open(sys.argv[1]))
		assert abs(p["store_bytes"] / (p["params"] * (2 + 14 / 8)) - 1) < 1e-3, p
	PY
}

# bats test_tags=slow
@test "of several nodes the plan as text and as JSON state the same numbers" {
	plan qwen2.5-7b $SHAPE --nodes 8 --streams 8 --micro-batches 2 --net 12.5 >"$T/text" 2>"$T/err"
	planned json qwen2.5-7b $SHAPE --nodes 8 --streams 8 --micro-batches 2 --net 12.5
	PYTHONPATH=$TOP/tests/lib python3 - "$T/text" "$T/json" <<-'PY'
		import functools, json, sys
		from plan_text import NUMBER, text_says
		text, p = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
		n, says = NUMBER, functools.partial(text_says, text)
		says(f"run +nodes: {n}; streams of a node: {n}; micro-batches of a stream: {n}; {n} tokens", p["nodes"],
		    p["streams"], p["micro_batches"], p["step_tokens"])
		says(f"host .*: {n} GB a node$", p["host_bytes"] / 1e9)
		says(f"step +{n} s: .*, network wait {n}$", p["step_s"], p["network_wait_s"])
		says(f"network +at {n} GB/s: {n} GB of gradients in {n} s, {n} GB of weights in {n} s; {n} % of the step",
		    p["net_gb_s"], p["network_grad_bytes"] / 1e9, p["network_grad_s"], p["network_weight_bytes"] / 1e9,
		    p["network_weight_s"], 100 * p["network_share"])
		says(f"traffic .*: {n} x {n} x {n} GB, 7/8 of it to other nodes; one large micro-batch a stream sends least$",
		    8, 2, 4 * p["params"] / 1e9)
	PY
}

@test "--plan takes more nodes than a run may have, and one line on stderr says so" {
	planned many demo --seq 256 --micro 8 --nodes 64 --streams 2 --net 50
	grep -q '"nodes": 64' "$T/many"
	[ "$(cat "$T/many.err")" = \
		"mt-stream: plans for 64 nodes of 2 streams; a run has at most 64 nodes, and 64 streams in all" ]
	planned few demo --seq 256 --micro 8 --nodes 64 --net 50
	[ ! -s "$T/few.err" ]
}

@test "--nodes 0, more than 64, without --net or with --grad none, and --net 0 or without --nodes exit 64" {
	for args in "--nodes 0 --net 1" "--nodes 65 --net 1" "--nodes 2" "--net 1" "--nodes 2 --net 0" \
		"--nodes 2 --net -1" "--nodes 2 --net 1e300" "--nodes 2 --net 1 --grad none" "--streams 0" "--streams 65" \
		"--micro-batches 0" "--micro-batches 2 --grad none" "--streams 2 --grad none" \
		"--nodes 64 --streams 64 --micro-batches 513 --net 1"; do
		fails_with 64 plan demo --seq 256 --micro 8 $args
	done
}

# bats test_tags=slow
@test "the tables of shm/link/PLAN.md are what mt-stream plans" {
	MT=$MT "$TOP/shm/link/plan-table" >"$T/tables"
	[ "$(grep -c '^| [0-9]*B |' "$T/tables")" = 36 ]
	# all tables but the one that explains the columns
	sed '1,/^## 16 rows/d' "$TOP/shm/link/PLAN.md" | grep '^|' >"$T/printed"
	grep '^|' "$T/tables" | diff - "$T/printed"
}

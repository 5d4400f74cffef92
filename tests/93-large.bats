#!/usr/bin/env bats
# Models above 100B: a block of each at its true width, but with 16 of its 128 experts and a small vocabulary, trains on
# the CPU. A run takes 5 GB. 41-plan compares the tables of plans for the whole models.
#     WHOLE="glm-4.5-air llama-120b" bats tests/93-large.bats      of these, with all experts: 22 GB
load helpers

WHOLE=${WHOLE:-}

# Two steps of MODEL's block, in bf16 with m and v in int8: its state in $T/NAME.state, metrics in $T/NAME.metrics.
# Store and mt-stream take the memory that mt-plan prints: block NAME MODEL MT-STREAM'S OPTIONS...
block() {
	local name=$1 model=$T/$2 options="--dtype bf16 --grad bf16 --state int8" stream optim
	shift 2
	set -- "$@" ${WHOLE:+--device-memory 8G}
	mt-store create "$RUN" --config "$model" --step-tokens 64 $options
	mt-store init "$RUN" --seed 3
	spawn stream mt-stream "$RUN" --verbose "$@"
	stream=$PID
	spawn optim mt-optim "$RUN"
	optim=$PID
	documents 4 | mt-step "$RUN" --steps 2 --batch 2 --seq 32 --lr 1e-4 >"$T/$name.metrics"
	mt-plan --config "$model" --seq 32 --micro 2 --profile cpu $options "$@" --json >"$T/plan"
	mt-store stat "$RUN" --json >"$T/stat"
	python3 - "$T/plan" "$T/stat" "/proc/$stream/status" <<-'PY'
		import json, re, sys
		plan, stat = (json.load(open(path)) for path in sys.argv[1:3])
		taken = int(re.search(r"RssAnon:\s+(\d+)", open(sys.argv[3]).read())[1]) << 10
		print(plan["store_bytes"], stat["state_bytes"], plan["peak_bytes"], taken)
		assert plan["store_bytes"] == stat["state_bytes"]
		assert abs(taken / plan["peak_bytes"] - 1) < 0.03        # with what a process has of its own, 12 MB
	PY
	end "$stream" "$optim"
	state_of "$RUN" >"$T/$name.state"
	mt-store rm "$RUN"
}

# bats test_tags=nightly
@test "a block of GLM-4.5-Air, gpt-oss-120b and Qwen3-235B-A22B at true width: same bits with windows of experts" {
	local model
	for model in ${WHOLE:-glm-4.5-air gpt-oss-120b qwen3-235b-a22b}; do
		mkdir "$T/$model"
		python3 - "$CONFIGS/$model.json" "$WHOLE" >"$T/$model/config.json" <<-'PY'
			import json, sys
			config = json.load(open(sys.argv[1]))
			experts = 128 if sys.argv[2] else 16
			small = {"num_hidden_layers": 1, "vocab_size": 512, "first_k_dense_replace": 0, "num_experts": experts,
			         "n_routed_experts": experts, "num_local_experts": experts}
			json.dump({**config, **{key: small[key] for key in small if key in config}}, sys.stdout)
		PY
		block most $model --expert-window $((${#WHOLE} ? 8 : 16)) --recompute none
		[ -n "$WHOLE" ] || no grep -q "windows of" "$T/stream.err"
		block few $model --expert-window 3 --recompute full --threads 1
		[ $model = llama-120b ] || grep -q "windows of 3 experts" "$T/stream.err"
		diff "$T/most.state" "$T/few.state"
		diff <(timeless "$T/most.metrics") <(timeless "$T/few.metrics")
	done
}

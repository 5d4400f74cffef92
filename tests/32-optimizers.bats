# --optim lion, sgd: rules of the update without v. tests/30-optim.bats has the update itself,
# tests/33-optim-kills.bats kills of it, tests/70-golden.bats the comparison with PyTorch.
load helpers
load lib/training

STEPS=20 TRAIN="--lr 0.0005 --wd 0.1"

# bats test_tags=slow
@test "97M model, bf16 weights, --grad none: lion and sgd take at most 8.1, 6.1 and 5.2 bytes a parameter" {
	local rule
	for rule in lion sgd; do
		takes_at_most 81 --optim $rule --state fp32
		takes_at_most 61 --optim $rule --state bf16
		takes_at_most 52 --optim $rule --state int8
	done
}

@test "create, stat, stat --json and stat --prometheus name the optimizer; there is no v" {
	create
	[ "$(stat_value optimizer)" = adamw ]
	no grep -q optimizer "$T/create.err"
	mt-store stat "$RUN" --prometheus | grep -q 'mt_run_info{.*optimizer="adamw"'
	mt-store rm "$RUN"
	create --optim sgd --state bf16
	grep -q 'gradients fp32, optimizer sgd, optimizer state bf16: ' "$T/create.err"
	[ "$(stat_value optimizer)" = sgd ]
	[ "$(stat_value optimizer_state)" = bf16 ]
	mt-store stat "$RUN" >"$T/stat"
	grep -q 'gradients fp32, optimizer sgd, optimizer state bf16$' "$T/stat"
	grep -q '^arrays: .*, m ' "$T/stat"
	no grep -q '^arrays: .*, v ' "$T/stat"
	mt-store stat "$RUN" --prometheus >"$T/prometheus"
	grep -q 'mt_run_info{.*optimizer="sgd"' "$T/prometheus"
	grep -q 'mt_memory_bytes{.*array="v"} 0$' "$T/prometheus"
}

@test "--plan counts the memory that lion and sgd save, and their faster updates; --dry-run their smaller checkpoints" {
	local rule
	for rule in adamw lion sgd; do
		mt-stream --plan --json --config "$CONFIGS/qwen2.5-7b.json" --seq 4096 --micro 1 --profile H100 \
			--state bf16 --optim $rule 2>/dev/null >"$T/$rule.json"
	done
	python3 - "$T" <<-'PY'
	import json, sys
	adamw, lion, sgd = (json.load(open("%s/%s.json" % (sys.argv[1], rule))) for rule in ("adamw", "lion", "sgd"))
	assert abs((adamw["host_bytes"] - lion["host_bytes"]) / adamw["params"] - 2) < 0.01
	assert lion["adam_s"] < adamw["adam_s"]
	assert sgd == lion
	PY
	mt-run --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --epochs 9 --out "$T/none" --steps 20 \
		--batch 4 --seq 24 --lr 0.0005 --dry-run --optim lion >"$T/dry"
	grep -q 'gradients fp32, optimizer lion, ' "$T/dry"
	mt-run --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --epochs 9 --out "$T/none" --steps 20 \
		--batch 4 --seq 24 --lr 0.0005 --dry-run --json --optim lion |
		python3 -c 'import json, sys; assert json.load(sys.stdin)["checkpoint_bytes"] == 8 * 25824'
}

@test "--optim takes adamw, lion and sgd alone, before anything is made" {
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --optim adam
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --optim ''
	fails_with 64 mt-stream --plan --config "$CONFIGS/demo.json" --seq 64 --micro 1 --optim Lion
	fails_with 64 mt-run --run "$RUN" --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --out "$T/out" \
		--steps 1 --batch 4 --seq 24 --lr 1 --optim rmsprop
	gone "$RUN"
}

# bats test_tags=slow
@test "lion: a training that is stopped, saved, loaded and continued gives the bits of one that is not, in each state" {
	continues --optim lion
	continues --optim lion --state bf16
	model=qwen2 continues --optim lion --state int8
}

# bats test_tags=slow
@test "sgd: a training that is stopped, saved, loaded and continued gives the bits of one that is not, in each state" {
	continues --optim sgd
	continues --optim sgd --state bf16 --grad none --clip 0
	model=neox continues --optim sgd --state int8
}

# bats test_tags=slow
@test "lion and sgd: every instruction set of the CPU and number of threads gives the same bits" {
	local rule state isa isas threads
	isas="scalar $(optim-update isas)"
	for rule in lion sgd; do
		for state in fp32 int8; do
			threads=0
			for isa in $isas; do
				threads=$((threads + 1))
				make_run "$GOLDEN/llama3/model" --optim $rule --state $state
				spawn stream mt-stream "$RUN" --threads 1
				MT_ISA=$isa spawn optim mt-optim "$RUN" --threads $threads
				mt-step "$RUN" --steps 6 --batch 4 --seq 24 --lr 0.001 --wd 0.1 <"$GOLDEN/llama3/data.bin" \
					>"$T/metrics" 2>"$T/step.err"
				[ "$(wc -l <"$T/metrics")" = 6 ]
				state_of "$RUN" | grep -E '^unit [0-9]+ (w|lo|m) ' >"$T/$threads"
				mt-store rm "$RUN" --force
				grep -q '^unit 0 m ' "$T/$threads"
				cmp "$T/1" "$T/$threads"
			done
		done
	done
}

# bats test_tags=slow
@test "mt-step: betas are 0.9 and 0.99 in a run of Lion, 0.9 and 0.999 in others, or what --beta2 says" {
	local rule want
	betas() { tr -d ' \n' <"$T/$1/step-00000001/run.json" | grep -o '"betas":\[[^]]*\]'; }
	for rule in adamw lion sgd; do
		want=0.999
		[ $rule != lion ] || want=0.99
		train $rule 1 --optim $rule
		[ "$(betas $rule)" = "\"betas\":[0.9,$want]" ]
	done
	train other 1 --optim lion --beta2 0.5
	[ "$(betas other)" = '"betas":[0.9,0.5]' ]
}

# bats test_tags=slow
@test "a checkpoint of lion has no optim-v, verifies, and names its optimizer" {
	train run 2 --optim lion
	local dir=$T/run/step-00000002
	[ -e "$dir/optim-m.safetensors" ]
	[ ! -e "$dir/optim-v.safetensors" ]
	grep -q '"optim": "lion"' "$dir/run.json"
	mt-ckpt verify "$dir"
}

@test "lion, sgd: a checkpoint that loads into a run with another type of state warns of m alone, by the rule's name" {
	local rule name dir=$T/run/step-00000002 warning="mt-ckpt: warning: the checkpoint has"
	# loaded STATE WARNING
	loaded() {
		make_run "$dir" --optim $rule --state "$1"
		mt-store rm "$RUN"
		[ "$(cat "$T/load.err")" = "$2" ]
	}
	for rule in lion sgd; do
		train run 2 --optim $rule --state int8
		name=$([ $rule = lion ] && echo Lion || echo SGD)
		loaded int8 ""
		loaded fp32 "$warning $name's m in int8, the run in fp32: no bit is lost"
		loaded bf16 "$warning $name's m in int8, the run in bf16: it is rounded once, to nearest"
		rm -r "$T/run"
	done
}

@test "a checkpoint of another optimizer is refused with 78 and stays; --weights loads it" {
	train run 2 --optim lion
	local dir=$T/run/step-00000002
	for rule in adamw sgd; do
		mt-store create "$RUN" --config "$dir" --optim $rule 2>/dev/null
		fails_with 78 mt-ckpt load "$RUN" "$dir"
		grep -q "a checkpoint of lion, and the run is of $rule: create the run with --optim lion" "$T/fails.err"
		mt-store stat "$RUN" | grep -q ': empty, step 0$'
		mt-ckpt load "$RUN" "$dir" --weights
		mt-store stat "$RUN" | grep -q ': filled, step 0$'
		mt-store rm "$RUN"
	done
	local rc=0
	train run 4 --resume || rc=$?
	[ $rc = 78 ]
	grep -q 'create the run with --optim lion' "$T/run.err"
	train run 4 --resume --optim lion
}

@test "a run.json with an unknown optimizer is refused with 65, one whose files lack that optimizer's v with 66" {
	train run 2 --optim sgd
	local dir=$T/run/step-00000002
	mt-store create "$RUN" --config "$dir" --optim sgd 2>/dev/null
	ckpt-edit "$dir" optim SGD
	fails_with 65 mt-ckpt load "$RUN" "$dir"
	grep -q 'run.json: optim is neither adamw, lion nor sgd$' "$T/fails.err"
	ckpt-edit "$dir" optim adamw # which has an optim-v
	fails_with 66 mt-ckpt verify "$dir"
	ckpt-edit "$dir" optim sgd
	mt-ckpt load "$RUN" "$dir"
}

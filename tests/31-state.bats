# --state bf16: AdamW's m and v in bf16, rounded at random. tests/30-optim.bats has the update itself and kills of it.
load helpers

create() { mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K "$@" 2>"$T/create.err"; }
figure() { mt-store stat "$RUN" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# Train the golden model llama3, and continue where the run's last checkpoint is: train NAME UNTIL [mt-run's options]
train() {
	local name=$1 until=$2
	shift 2
	mt-run --run "$RUN" --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --epochs 9 --out "$T/$name" \
		--steps 30 --until "$until" --batch 4 --seq 24 --lr 0.003 --threads 1 "$@" >/dev/null 2>"$T/$name.err"
}
weights() { cat "$T/$1/model/model.safetensors"; }
losses() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$T/$1/metrics.jsonl"; }

@test "--state bf16 takes 4 bytes a parameter less; stat and --plan count it" {
	create --dtype bf16 --grad none
	local whole less params plan
	whole=$(figure state_bytes) params=$(figure params)
	[ "$(figure optimizer_state)" = fp32 ]
	mt-store rm "$RUN"
	create --dtype bf16 --grad none --state bf16
	grep -q 'optimizer state bf16' "$T/create.err"
	[ "$(figure optimizer_state)" = bf16 ]
	mt-store stat "$RUN" | grep -q 'optimizer state bf16'
	less=$(figure state_bytes)
	[ $((whole - less)) -ge $((params * 4 * 99 / 100)) ]
	[ "$less" -le $((params * 82 / 10)) ]
	for state in fp32 bf16; do
		mt-stream --plan --json --config "$CONFIGS/qwen2.5-7b.json" --seq 4096 --micro 1 --profile H100 \
			--state $state 2>/dev/null >"$T/$state.json"
	done
	python3 - "$T" <<-'PY'
	import json, sys
	fp32, bf16 = (json.load(open("%s/%s.json" % (sys.argv[1], s))) for s in ("fp32", "bf16"))
	saved = (fp32["host_bytes"] - bf16["host_bytes"]) / fp32["params"]
	assert 3.99 < saved < 4.01, saved
	assert bf16["adam_s"] < fp32["adam_s"]
	PY
}

@test "--state takes fp32 and bf16 alone" {
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --state fp16
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --state none
	fails_with 64 mt-stream --plan --config "$CONFIGS/demo.json" --seq 64 --micro 1 --state fp8
}

@test "bf16 state: a training that is stopped, saved, loaded and continued gives the bits of one that is not" {
	train whole 30 --state bf16
	train parts 12 --state bf16
	train parts 30 --state bf16 --resume
	[ "$(losses whole | wc -l)" = 30 ]
	[ "$(weights whole | sha256sum)" = "$(weights parts | sha256sum)" ]
	[ "$(losses whole)" = "$(losses parts)" ]
}

@test "bf16 state: losses stay within 1 % of those with fp32 state, and are not the same" {
	train fp32 30
	train bf16 30 --state bf16
	paste -d ' ' <(losses fp32) <(losses bf16) | awk '
		{ d = $1 - $2; if (d < 0) d = -d; if (d > $1 / 100) bad++; if (d > 0) other++ }
		END { exit !(NR == 30 && !bad && other) }'
}

@test "a checkpoint loads into a run with another type of state, with a warning" {
	train run 10
	train run 20 --state bf16 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in fp32, the run in bf16" "$T/run.err"
	grep -q '"state": "bf16"' "$T/run/step-00000020/run.json"
	train run 30 --resume
	grep -q "warning: the checkpoint has AdamW's m and v in bf16, the run in fp32" "$T/run.err"
	[ "$(losses run | wc -l)" = 30 ]
}

@test "a run.json whose state is no type, or not that of its files, is refused with 65" {
	train run 2 --state bf16
	local dir=$T/run/step-00000002
	mt-store create "$RUN" --config "$dir" --dtype bf16 --state bf16 2>/dev/null
	cp "$dir/run.json" "$T/run.json"
	sed -i 's/"state": "bf16"/"state": "fp16"/' "$dir/run.json"
	fails_with 65 mt-ckpt load "$RUN" "$dir"
	sed 's/"state": "bf16"/"state": "fp32"/' "$T/run.json" >"$dir/run.json"
	fails_with 65 mt-ckpt load "$RUN" "$dir"
	cp "$T/run.json" "$dir/run.json"
	mt-ckpt load "$RUN" "$dir"
}

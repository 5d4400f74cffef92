# shellcheck shell=bash
# Trainings of small models by mt-run, and values of mt-store stat, for the suites of the optimizer's states and rules.
# STEPS: how many a training has; TRAIN: mt-run's options in all of them.

# A run of the demo's config: create [mt-store create's options]
create() { mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K "$@" 2>"$T/create.err"; }
stat_value() { mt-store stat "$RUN" --json | value "$1"; }

# With the options, the store of a model of 97M parameters takes at most TENTHS / 10 bytes a parameter:
# takes_at_most TENTHS [mt-store create's options]
takes_at_most() {
	local most=$1 file
	shift
	mt-store create "$RUN" --config "$CONFIGS/bench-97m.json" --dtype bf16 --grad none "$@" 2>/dev/null
	file=$(stat -c %s "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.store")
	[ "$file" = "$(stat_value state_bytes)" ]
	[ "$((file * 10))" -le "$(($(stat_value params) * most))" ]
	mt-store rm "$RUN"
}

# Train a golden model ($model, else llama3), and continue where the run's last checkpoint is: train NAME UNTIL
# [mt-run's options]
train() {
	local name=$1 until=$2 from=$GOLDEN/${model:-llama3}
	shift 2
	mt-run --run "$RUN" --model "$from/model" --data "$from/data.bin" --epochs 9 --out "$T/$name" --steps "$STEPS" \
		--until "$until" --batch 4 --seq 24 --threads 1 $TRAIN "$@" >/dev/null 2>"$T/$name.err"
}
losses() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$T/$1/metrics.jsonl"; }

# A training that is stopped, saved, loaded and continued gives the bits of one that is not: continues [mt-run's
# options]
continues() {
	train whole "$STEPS" "$@"
	train parts $((STEPS * 2 / 5)) "$@"
	train parts "$STEPS" "$@" --resume
	[ "$(losses whole | wc -l)" = "$STEPS" ]
	cmp "$T/whole/model/model.safetensors" "$T/parts/model/model.safetensors"
	[ "$(losses whole)" = "$(losses parts)" ]
	rm -r "$T/whole" "$T/parts"
}

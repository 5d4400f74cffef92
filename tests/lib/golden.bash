# shellcheck shell=bash
# golden.bash: what the suites of golden data share. tests/golden/compare.py has the bounds and their reasons.

# 20 steps on CASE compared with PyTorch's: golden CASE [--bf16 | --optim lion|sgd | --part NAME]. PyTorch computed all
# in fp32, --bf16 with weights that are rounded to bf16. So mt computes in fp32, too (tests/73-compute.bats: in bf16).
# Step 1 runs alone first, because g then has its gradients; the same command continues to step 20.
golden() {
	local case=$GOLDEN/$1 dtype=fp32 kind=adamw eval=() args=args create=()
	[ "${2:-}" = --bf16 ] && dtype=bf16
	[ "${2:-}" != --optim ] || kind=$3 args=args.$3 create=(--optim "$3")
	[ "${2:-}" != --part ] || { kind=$3; mapfile -t create <"$case/create.$3"; }
	[ -e "$case/eval.bin" ] && eval=(--eval "$case/eval.bin" --eval-every 10)
	make_run "$case/model" --dtype "$dtype" "${create[@]}" ${TEACHER:+--top "$TEACHER"}
	start_stages --compute fp32
	mt-step "$RUN" $(cat "$case/$args") --until 1 "${eval[@]}" <"$case/data.bin" >"$T/first" 2>"$T/step.err"
	ckpt-dump "$RUN" grads "$T/grad1.safetensors"
	mt-step "$RUN" $(cat "$case/$args") "${eval[@]}" <"$case/data.bin" >"$T/rest" 2>>"$T/step.err"
	mt-ckpt export "$RUN" "$T/final" --dtype fp32
	cat "$T/first" "$T/rest" >"$T/metrics"
	if [ "$kind" != adamw ]; then # the gradients of step 1 are AdamW's
		python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --final "$T/final" --optim "$kind"
		[ "$2" = --part ] || python3 "$GOLDEN/compare.py" "$case" --grad1 "$T/grad1.safetensors"
	elif [ "$dtype" = bf16 ] && [ ! -e "$case/final.bf16.safetensors" ]; then
		python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --bf16
	else
		python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --grad1 "$T/grad1.safetensors" --final "$T/final" \
			"${@:2}"
	fi
}

# Each case in fp32 and in bf16: goldens CASE...
goldens() {
	local c dtype
	for c; do
		for dtype in "" --bf16; do
			RUN=$(mt_run_name "$c$dtype")
			echo "$c $dtype"
			golden "$c" $dtype
			mt-store rm "$RUN" --force
			rm -r "$T/final"
		done
	done
}

# Train $CASE's model: $T/NAME.state, .metrics and, with BEFORE, the model before that:
# train_case NAME "CREATE'S OPTIONS" [MT-STEP'S OPTIONS]. $ARGS are mt-step's, too
train_case() {
	local name=$1 create=$2 i
	shift 2
	RUN=$(mt_run_name "$name")
	set -f
	# shellcheck disable=SC2086
	make_run "$CASE/model" --step-tokens 4K $create
	set +f
	[ -z "${BEFORE:-}" ] || mt-ckpt export "$RUN" "$T/$name.before" --dtype fp32
	case $create in *--tier*) spawn "$name.tier" mt-tier "$RUN" ;; esac
	for i in $(seq "${STREAMS:-1}"); do
		spawn "$name.stream$i" ${STREAM:-mt-stream --device cpu} "$RUN" --threads 1 --compute fp32
	done
	spawn "$name.optim" mt-optim "$RUN" --threads "${OPTIM_THREADS:-1}" ${UPDATE:+--update "$UPDATE"}
	mt-step "$RUN" $(with "${ARGS[*]}" "$@") <"$CASE/data.bin" >"$T/$name.metrics" 2>"$T/$name.err"
	state_of "$RUN" | sed 's/ pin .*//' >"$T/$name.state"
}

# Hashes of the arrays of RUN's state: arrays RUN
arrays() { state_of "$1" | grep -E '^unit [0-9]+ (w|lo|m|v) '; }

# Three steps of a new run on FILE: metrics in $T/NAME.raw, without times in $T/NAME.m, hashes of the state in
# $T/NAME.state
trained() { # NAME FILE MT-STEP'S OPTIONS...
	local name=$1 file=$2
	shift 2
	make_run "$GOLDEN/${MODEL:-qwen3}/model" --dtype "${DTYPE:-fp32}" --grad "${GRAD:-fp32}" \
		${TEACHER:+--top "$TEACHER"}
	start_stages
	# shellcheck disable=SC2046
	mt-step "$RUN" $(with "--steps 3 --lr 1e-3 --wait 5" "$@") <"$file" >"$T/$name.raw" 2>"$T/step.err"
	timeless "$T/$name.raw" >"$T/$name.m"
	arrays "$RUN" >"$T/$name.state"
	mt-store rm "$RUN" --force
	# shellcheck disable=SC2046
	wait $(cat "$T/pids") 2>/dev/null || true
	: >"$T/pids"
}

# The first two steps of CASE by mt-stream's OPTIONS: its state's hashes in $T/NAME. two_steps NAME CASE "OPTIONS"
two_steps() {
	RUN=$(mt_run_name "$1")
	make_run "$GOLDEN/$2/model"
	spawn stream mt-stream "$RUN" $3
	spawn optim mt-optim "$RUN" --threads 1
	mt-step "$RUN" $(cat "$GOLDEN/$2/args") --until 2 <"$GOLDEN/$2/data.bin" >"$T/metrics" 2>"$T/step.err"
	arrays "$RUN" >"$T/$1"
	mt-store rm "$RUN" --force
	[ -s "$T/$1" ]
}

# Each case's model, loaded and exported, has the same tensors and the same geometry: same_export CASE...
same_export() {
	local c
	for c; do
		make_run "$GOLDEN/$c/model" --dtype fp32
		mt-ckpt export "$RUN" "$T/$c" 2>"$T/export.err"
		mt-store rm "$RUN"
		store-layout "$GOLDEN/$c/model" >"$T/before"
		store-layout "$T/$c" | diff "$T/before" -
		python3 - "$GOLDEN" "$GOLDEN/$c/model" "$T/$c" <<-'END'
			import sys
			sys.path.insert(0, sys.argv[1])
			from compare import read_model
			assert read_model(sys.argv[2]) == read_model(sys.argv[3])
		END
	done
}

# Train CASE, export it, and note mt's loss on RECORDS for transformers_agrees: loss_on RECORDS CASE [MT-STEP'S OPTIONS]
loss_on() {
	local records=$1 case=$GOLDEN/$2 name=$2 loss
	shift 2
	make_run "$case/model" --dtype fp32
	start_stages
	mt-step "$RUN" $(cat "$case/args") --eval "$records" "$@" <"$case/data.bin" >"$T/metrics" 2>"$T/step.err"
	mt-ckpt export "$RUN" "$T/$name"
	mt-store rm "$RUN" --force
	loss=$(python3 -c 'import json, sys; print([json.loads(l) for l in open(sys.argv[1])][-1]["eval_loss"])' \
		"$T/metrics")
	echo "$T/$name $records $loss $(sed 's/.*--seq \([0-9]*\).*/\1/' "$case/args")" >>"$T/losses"
}

# transformers computes these losses on the exported models
transformers_agrees() { with_torch "$GOLDEN/logits.py" --list "$T/losses"; }

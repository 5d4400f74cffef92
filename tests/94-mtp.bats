#!/usr/bin/env bats
# --mtp: the block of multi-token prediction is trained along. tests/golden/mtp.py is the same in PyTorch;
# tests/crash/crash.py kills stages of such runs (suite 80).
load helpers
load lib/golden
load lib/nodes

ARGS=(--steps 6 --batch 4 --micro 2 --seq 48 --lr 0.003 --warmup 1 --wd 0.1 --eps 1e-5)
CASE=$GOLDEN/qwen3-5-mtp

# shellcheck disable=SC2034
setup() {
	T=$BATS_TEST_TMPDIR
	RUN=$(mt_run_name)
	NODE_REGIONS=${MT_SHM_DIR:-/dev/shm}
	NODES=0
	: >"$T/pids"
}

@test "qwen3-5-mtp in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-5-mtp; }
@test "qwen3-5-mtp in bf16: results differ from PyTorch's only by rounding" { golden qwen3-5-mtp --bf16; }
@test "qwen3-next-mtp in fp32: losses, norms, gradients and weights match PyTorch's" { golden qwen3-next-mtp; }
@test "qwen3-next-mtp in bf16: results differ from PyTorch's only by rounding" { golden qwen3-next-mtp --bf16; }
@test "deepseek-v3-mtp in fp32: losses, norms, gradients and weights match PyTorch's" { golden deepseek-v3-mtp; }
@test "deepseek-v3-mtp in bf16: results differ from PyTorch's only by rounding" { golden deepseek-v3-mtp --bf16; }
@test "glm4-moe-mtp in fp32: losses, norms, gradients and weights match PyTorch's" { golden glm4-moe-mtp; }
@test "glm4-moe-mtp in bf16: results differ from PyTorch's only by rounding" { golden glm4-moe-mtp --bf16; }

train() {
	train_case "$@"
	mt-store rm "$RUN" --force
}

same() { # NAME NAME
	diff "$T/$1.state" "$T/$2.state"
	diff <(timeless "$T/$1.metrics") <(timeless "$T/$2.metrics")
	[ "$(grep -c mtp_loss "$T/$1.metrics")" = 6 ]
}

@test "two streams, threads, chaos, recompute, offloading, windows and an early update change no bit" {
	local how
	for CASE in "$GOLDEN"/{qwen3-5,deepseek-v3}-mtp; do
		train one "" --clip 1
		STREAMS=2 train two "" --clip 1
		same one two
		for how in --recompute=full --recompute=none --pass-rows=1 --expert-window=3; do
			STREAM="mt-stream --device chaos:$RANDOM ${how/=/ }" OPTIM_THREADS=3 train chaos "" --clip 1
			# passes add up the same gradients in another order
			[ $how = --pass-rows=1 ] || same one chaos
		done
		train late "" --clip 0
		UPDATE=early train early "" --clip 0
		same late early
	done
	train kept "" --clip 0 --micro 4 # the last case's embedding and head are not tied
	train none "--grad none" --clip 0 --micro 4
	diff "$T/kept.state" "$T/none.state"
}

@test "state in files, and frozen parts: the bits of a run in memory, and of tensors that are trained" {
	need_tier
	for create in "" "--freeze model.*"; do
		train memory "$create" --clip 0
		train tier "$create --tier $DISK/tier --tier-memory 0" --clip 0
		same memory tier
		rm -rf "$DISK/tier"
	done
	diff <(grep "^unit 1 " "$T/memory.state") <(grep "^unit 1 " "$T/tier.state")
}

@test "two nodes give the bits of one machine" {
	need_mpi
	MODEL=$CASE/model
	mt-feed --epochs 4 --shuffle 1 "$CASE/data.bin" >"$T/records"
	one 2 "${ARGS[@]}"
	nodes 2 "${ARGS[@]}"
	same_as_one
}

# $T/model: CASE's as released files are, without the weight of the loss; and with copies of embedding and LM head, or
# with WRAPPED in a class for images
as_released() {
	PYTHONPATH=$TOP/tests/lib python3 - "$CASE/model" "$T/model" "${WRAPPED:-}" <<-'END'
		import json, os, sys
		import wrap
		source, to, wrapped = sys.argv[1:]
		os.makedirs(to)
		with open(source + "/config.json") as f:
		    config = json.load(f)
		del config["mtp_loss_coef"]
		tensors = wrap.read(source)
		if config["model_type"] == "deepseek_v3":
		    tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
		    tensors["model.layers.2.shared_head.head.weight"] = tensors["lm_head.weight"]
		if wrapped:
		    tensors = {n.replace("model.", "model.language_model.", n.startswith("model.")): t
		               for n, t in tensors.items()}
		    tensors["model.visual.x"] = "F32", [1], bytes(4)
		    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
		              "text_config": config, "vision_config": {}, "tie_word_embeddings": True}
		with open(to + "/config.json", "w") as f:
		    json.dump(config, f)
		wrap.write(to, tensors)
	END
}

# Train $T/model with the options of CASE, in OUT: run OUT MT-RUN'S OPTIONS...
run() {
	local out=$1
	shift
	mt-run --model "$T/model" --data "$CASE/data.bin" --batch 4 --micro 2 --seq 48 --lr 1e-3 --steps 4 --no-shuffle \
		--compute fp32 --quiet --out "$T/$out" "$@"
}

@test "mt-run --mtp: a training that was cut continues with its bits, and exports have the names of the files" {
	local case
	for case in qwen3-5-mtp "qwen3-5-mtp wrapped" deepseek-v3-mtp; do
		rm -rf "$T"/{model,whole,cut,plain}
		CASE=$GOLDEN/${case% *}
		WRAPPED=
		[ "$case" = "${case% *}" ] || WRAPPED=1
		as_released
		run whole --mtp 0.3
		run cut --mtp 0.3 --ckpt-every 2 --until 2
		grep -q '"version": 5' "$T"/cut/step-*/run.json
		run cut --mtp 0.3 --ckpt-every 2 --resume
		[ "$(grep -c mtp_loss "$T/cut/metrics.jsonl")" = 4 ]
		run plain 2>"$T/plain.err"
		grep -q "are of multi-token prediction: .*; --mtp X trains" "$T/plain/log"
		PYTHONPATH=$TOP/tests/lib python3 - "$T" <<-'END'
			import json, sys
			import wrap
			places = ".", "whole", "cut", "plain"
			source, whole, cut, plain = (wrap.read("%s/%s/model" % (sys.argv[1], place)) for place in places)
			assert whole == cut
			copies = {n for n in source if ".layers.2." in n and n.endswith((".embed_tokens.weight", ".head.weight"))}
			assert set(whole) == set(source) - copies and set(plain) == set(source)
			own = [n for n in whole if n.startswith("mtp.") or "layers.2.eh_proj" in n or "layers.2.shared_head.n" in n]
			assert own and all(whole[n][2] != plain[n][2] and plain[n][2] == source[n][2] for n in own)
			with open(sys.argv[1] + "/whole/model/config.json") as f:
			    config = json.load(f)
			assert abs(config.get("text_config", config)["mtp_loss_coef"] - 0.3) < 1e-6
		END
	done
}

@test "mt-sample and mt-score of a run see the model alone" {
	as_released
	for create in "" "--mtp 0.3"; do
		RUN=$(mt_run_name a)
		# shellcheck disable=SC2086
		make_run "$T/model" --step-tokens 4K $create
		python3 "$TOP/tests/lib/tokens.py" prompts "$T/p" 3 53 1 20
		mt-sample "$RUN" --compute fp32 --temperature 0 --max-tokens 9 --stop none --logits "$T/l${create:+1}" <"$T/p" \
			>"$T/o${create:+1}"
		spawn stream mt-stream "$RUN" --device cpu --threads 1 --compute fp32
		mt-score "$RUN" --sum --seq 48 <"$GOLDEN/qwen3-5-mtp/data.bin" >"$T/s${create:+1}"
		mt-store rm "$RUN" --force
	done
	cmp "$T/l" "$T/l1"
	cmp "$T/o" "$T/o1"
	cmp "$T/s" "$T/s1"
}

@test "models without multi-token prediction, other losses and weights exit before anything is trained" {
	as_released
	fails_with 78 mt-store create "$RUN" --config "$GOLDEN/qwen3-5/model" --mtp 0.3
	grep -q "the model's files have no multi-token prediction" "$T/fails.err"
	fails_with 78 mt-store create "$RUN" --config "$GOLDEN/llama3/model" --mtp 0.3
	grep -q "multi-token prediction of llama is not trained, only that of deepseek_v3, glm4_moe, qwen3" "$T/fails.err"
	fails_with 78 mt-store create "$RUN" --config "$GOLDEN/glm4-moe-z/model" --mtp 0.3
	fails_with 64 mt-store create "$RUN" --config "$T/model" --mtp -1
	exits 78 mt-run --model "$GOLDEN/llama3/model" --data "$CASE/data.bin" --out "$T/out" --batch 4 --seq 32 --lr 1e-3 \
		--epochs 1 --mtp 0.3 2>"$T/err"
	[ ! -e "$T/out/model" ]
	mt-store create "$RUN" --config "$T/model" --mtp 0.3 2>"$T/err"
	mt-ckpt load "$RUN" "$T/model"
	fails_with 64 mt-step "$RUN" --steps 1 --batch 1 --seq 48 --lr 1e-3 --loss dpo <"$CASE/data.bin"
	mt-ckpt export "$RUN" "$T/exported"
	mt-store rm "$RUN"
	mt-store create "$RUN" --config "$GOLDEN/qwen3-5/model" 2>"$T/err"
	fails_with 65 mt-ckpt load "$RUN" "$T/exported"
	grep -q "trains multi-token prediction along, the run does not: --mtp X" "$T/fails.err"
}

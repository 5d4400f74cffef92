#!/usr/bin/env bats
# Files may have experts one by one or packed, transposed or not, under names of transformers 4 or 5: all load as the
# same model, and are written as they were read.
load helpers

forms() { python3 "$TOP/tests/lib/forms.py" "$@"; }
FAMILIES="mixtral qwen2-moe qwen3-moe olmoe granitemoe glm4-moe dots1 solar-open exaone-moe ernie4-5-moe minimax-m2
	sarvam-moe sarvam-mla deepseek-v2 deepseek-v3 glm4-moe-lite granite-hybrid-moe nemotron-h-moe afmoe gemma4-moe
	granitemoeshared flex-olmo mellum hy-v3 hunyuan-moe lara-mini deepseek-v32 glm-moe-dsa jamba flint"

# bats test_tags=slow
@test "every form of a family's files fills a run with the same bits, and is exported as it was read" {
	local c form forms
	# granitemoe's gate_up_proj is square: down_proj's shape says whether both are transposed
	for c in $(some 5 $FAMILIES kimi-linear); do
		forms="single new,packed transposed"
		[[ ! $c =~ mixtral|granite|sarvam ]] ||
			forms="new packed transposed single new,single new,packed new,transposed"
		make_run "$GOLDEN/$c/model" --dtype fp32
		ckpt-dump "$RUN" >"$T/own"
		mt-store rm "$RUN"
		for form in $forms; do
			rm -rf "$T/in" "$T/out"
			forms "$GOLDEN/$c/model" "$T/in" ${form//,/ }
			mt-ckpt verify "$T/in"
			make_run "$T/in" --dtype fp32
			no grep -v "are carried untrained" "$T/load.err" # an indexer is
			ckpt-dump "$RUN" | diff "$T/own" -
			mt-ckpt export "$RUN" "$T/out"
			mt-store rm "$RUN"
			forms same "$T/in" "$T/out"
		done
	done
}

# bats test_tags=slow
@test "transformers' own packed files of every family load, and it opens the exports: same tensors and logits" {
	local c some=$(some 5 $FAMILIES gpt-oss llama4-chunks olmo-hybrid aria-text)
	need_transformers
	mkdir "$T/in" "$T/out"
	with_torch "$GOLDEN/packed.py" make "$GOLDEN" "$T/in" $some 2>/dev/null
	for c in $some; do
		make_run "$T/in/$c" --dtype fp32
		mt-ckpt export "$RUN" "$T/out/$c"
		mt-store rm "$RUN"
		# exported with released files' prefix, backbone
		[ $c = nemotron-h-moe ] || forms same "$T/in/$c" "$T/out/$c"
	done
	with_torch "$GOLDEN/packed.py" check "$T/in" "$T/out" $some 2>/dev/null
}

# bats test_tags=slow
@test "Qwen3-VL-MoE: experts packed and transposed, as released, or in other forms, and all else as it was" {
	local form
	make_run "$GOLDEN/qwen3-vl-moe/model" --dtype fp32
	ckpt-dump "$RUN" >"$T/own"
	mt-store rm "$RUN"
	mkdir "$T/in" "$T/out"
	for form in transposed packed single; do
		forms "$GOLDEN/qwen3-vl-moe/model" "$T/in/$form" $form
		mt-ckpt verify "$T/in/$form" 2>"$T/verify.err"
		make_run "$T/in/$form" --dtype fp32
		ckpt-dump "$RUN" | diff "$T/own" -
		mt-ckpt export "$RUN" "$T/out/$form"
		mt-store rm "$RUN"
		forms same "$T/in/$form" "$T/out/$form"
	done
	! has torch transformers || with_torch "$GOLDEN/packed.py" check "$T/in" "$T/out" packed transposed 2>/dev/null
}

# Two steps on $T/in, of the golden data of CASE: metrics in $T/NAME, the model in $T/model.NAME: two_steps CASE NAME
two_steps() {
	make_run "$T/in" --dtype bf16
	start_stages
	mt-step "$RUN" $(cat "$GOLDEN/$1/args") --until 2 <"$GOLDEN/$1/data.bin" 2>"$T/step.err" | cut -d, -f1-3 >"$T/$2"
	mt-ckpt export "$RUN" "$T/model.$2" --dtype fp32
	mt-store rm "$RUN" --force
}

# bats test_tags=slow
@test "a model trains with the same bits from files of every form, and is exported in the form that was loaded" {
	local c form
	for c in mixtral granitemoe glm4-moe-bias sarvam-moe; do
		cp -r "$GOLDEN/$c/model" "$T/in"
		two_steps $c own
		[ "$(wc -l <"$T/own")" = 2 ]
		for form in "new single" packed "new packed" "new transposed"; do
			rm -r "$T/in"
			forms "$GOLDEN/$c/model" "$T/in" $form
			two_steps $c now
			cmp "$T/own" "$T/now"
			forms "$T/model.own" "$T/expect" $form
			forms same "$T/expect" "$T/model.now"
			rm -r "$T/expect" "$T/model.now"
		done
		rm -r "$T/in" "$T/model.own"
	done
}

# bats test_tags=slow
@test "checkpoints have the form that was loaded; resumed, a run trains with the same bits and exports that form" {
	local form dtype args
	for form in "new packed" "new transposed"; do
		forms "$GOLDEN/glm4-moe-bias/model" "$T/in" $form
		args=(--data "$GOLDEN/glm4-moe-bias/data.bin" --epochs 9 --model "$T/in" --steps 4 --batch 3 --seq 20
			--lr 0.002 --threads 1 --run "$RUN")
		for dtype in bf16 fp32; do
			mt-run "${args[@]}" --dtype $dtype --out "$T/whole" >/dev/null 2>"$T/whole.err"
			mt-run "${args[@]}" --dtype $dtype --out "$T/parts" --until 2 >/dev/null 2>"$T/parts.err"
			mt-ckpt verify "$T/parts/step-00000002"
			mt-run "${args[@]}" --dtype $dtype --out "$T/parts" --resume >/dev/null 2>"$T/parts.err"
			forms same "$T/whole/model" "$T/parts/model"
			mt-ckpt export --from "$T/parts/step-00000004" "$T/from"
			forms same "$T/parts/model" "$T/from"
			# loaded by a run in fp32, the checkpoint has the exact master weights
			make_run "$T/parts/step-00000004" --dtype $dtype
			mt-ckpt export "$RUN" "$T/exact" --dtype fp32
			mt-store rm "$RUN"
			make_run "$T/parts/step-00000004" --dtype fp32
			mt-ckpt export "$RUN" "$T/exact-too" --dtype fp32
			mt-store rm "$RUN"
			forms same "$T/exact" "$T/exact-too"
			rm -r "$T/whole" "$T/parts" "$T/from" "$T/exact" "$T/exact-too"
		done
		rm -r "$T/in"
	done
}

# bats test_tags=nightly
@test "large transposed experts are read and written in parts, by one thread or several" {
	mkdir "$T/m" "$T/out"
	sed 's/"hidden_size": 16/"hidden_size": 640/; s/"moe_intermediate_size": 6/"moe_intermediate_size": 424/' \
		"$GOLDEN/qwen3-moe/model/config.json" >"$T/m/config.json"
	mt-store create "$RUN" --config "$T/m" 2>"$T/create.err"
	mt-store init "$RUN" --seed 1
	mt-ckpt export "$RUN" "$T/own" --dtype fp32
	mt-store rm "$RUN"
	forms "$T/own" "$T/in" transposed
	for dtype in bf16 fp32; do
		make_run "$T/own" --dtype $dtype
		ckpt-dump "$RUN" >"$T/expect"
		mt-ckpt export "$RUN" "$T/out/own.$dtype" --dtype $dtype
		mt-store rm "$RUN"
		mt-store create "$RUN" --config "$T/in" --dtype $dtype 2>"$T/create.err"
		for threads in 1 3; do
			mt-ckpt load "$RUN" "$T/in" --threads $threads
			ckpt-dump "$RUN" | diff "$T/expect" -
			for to in bf16 fp32; do
				mt-ckpt export "$RUN" "$T/out/$to" --dtype $to --threads $threads
				[ $to = bf16 ] || forms same "$T/in" "$T/out/$to"
				if [ $to = $dtype ]; then
					forms "$T/out/own.$dtype" "$T/out/same" transposed
					forms same "$T/out/same" "$T/out/$to"
					rm -r "$T/out/same"
				fi
				rm -r "$T/out/$to"
			done
		done
		mt-store rm "$RUN"
	done
}

@test "shards: packed experts of one layer may be in two files" {
	forms "$GOLDEN/qwen3-moe/model" "$T/in" packed
	cp -r "$T/in" "$T/q"
	python3 - "$TOP" "$T/q" <<-'END'
		import json, os, sys
		sys.path.insert(0, sys.argv[1] + "/tests/lib")
		from wrap import read, write
		q = sys.argv[2]
		tensors = read(q)
		os.remove(q + "/model.safetensors")
		where = {n: f"model-{'down' in n:d}.safetensors" for n in tensors}
		for file in set(where.values()):
		    write(q, {n: t for n, t in tensors.items() if where[n] == file}, file)
		json.dump({"metadata": {}, "weight_map": where}, open(q + "/model.safetensors.index.json", "w"))
	END
	make_run "$T/q" --dtype fp32
	mt-ckpt export "$RUN" "$T/out"
	mt-ckpt export "$RUN" "$T/many" --shard 5K
	[ -e "$T/many/model.safetensors.index.json" ]
	forms same "$T/in" "$T/out"
	forms same "$T/in" "$T/many"
	mt-ckpt verify "$T/many"
}

# ---- damaged files

EDIT() { python3 "$TOP/tests/lib/mksafetensors.py" edit "$T/q/model.safetensors" "$1"; }
AT=model.layers.1.mlp.experts
# load and verify refuse the golden qwen3-moe in FORM, changed by CODE, with 65 and one line that has WORDS
refused() { # FORM CODE WORDS
	rm -rf "$T/q"
	forms "$GOLDEN/qwen3-moe/model" "$T/q" "$1"
	EDIT "$2"
	fails_with 65 mt-ckpt verify "$T/q"
	grep -qF "$3" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	[ -e "$T/created" ] || mt-store create "$RUN" --config "$T/q" 2>"$T/created"
	fails_with 65 mt-ckpt load "$RUN" "$T/q"
	grep -qF "$3" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
}

# bats test_tags=slow
@test "experts of another number or shape, some missing, or in two forms, exit 65 and are named" {
	refused packed "h['x'] = h.pop('$AT.down_proj')" "tensor '$AT.down_proj': is missing"
	refused single "h['x'] = h.pop('$AT.5.up_proj.weight')" "tensor '$AT.5.up_proj.weight': is missing"
	refused packed "h['$AT.gate_up_proj']['shape'] = [14, 6, 16]" \
		"tensor '$AT.gate_up_proj': shape (14, 6, 16) where config.json says (7, 12, 16)"
	refused packed "h['$AT.gate_up_proj']['shape'] = [7, 16, 12]" \
		"tensor '$AT.gate_up_proj': shape (7, 16, 12) where config.json says (7, 12, 16)"
	refused transposed "h['$AT.down_proj']['shape'] = [7, 96]" \
		"tensor '$AT.down_proj': shape (7, 96) where config.json says (7, 6, 16)"
	refused single "h['$AT.3.down_proj.weight']['shape'] = [6, 16]" \
		"tensor '$AT.3.down_proj.weight': shape (6, 16) where config.json says (16, 6)"
	local more="'data_offsets': [len(d), len(d) + 4]}; d.extend(b'1234')"
	refused packed "h['$AT.6.up_proj.weight'] = {'dtype': 'F32', 'shape': [1], $more" \
		"tensor '$AT.6.up_proj.weight': the model's experts are complete without it"
	refused single "h['$AT.7.up_proj.weight'] = {'dtype': 'F32', 'shape': [1], $more" \
		"tensor '$AT.7.up_proj.weight': the model's experts are complete without it"
	refused single "h['$AT.gate_up_proj'] = {'dtype': 'F32', 'shape': [1], $more" \
		"tensor '$AT.gate_up_proj': the model's experts are complete without it"
}

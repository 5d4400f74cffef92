# Classes for images too: the text model alone is trained, and everything else comes back byte for byte.
load helpers
load lib/golden

wrap() { python3 "$TOP/tests/lib/wrap.py" "$@"; }

# 20 steps on the text model CASE inside a wrapper match PyTorch's on the text model alone: wrapped CASE KIND
wrapped() {
	local case=$GOLDEN/$1
	wrap "$case/model" "$T/in" "$2"
	make_run "$T/in" --dtype fp32
	start_stages --compute fp32
	# shellcheck disable=SC2046
	mt-step "$RUN" $(cat "$case/args") <"$case/data.bin" >"$T/metrics" 2>"$T/step.err"
	mt-ckpt export "$RUN" "$T/out" --dtype fp32
	wrap --unwrap "$T/out" "$T/in" "$T/final"
	python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --final "$T/final"
}

@test "gemma3's text model in Gemma3ForConditionalGeneration trains as alone, and all else is exported as it was" {
	wrapped gemma3 gemma3
}
@test "gemma4's text model in Gemma4ForConditionalGeneration trains as alone, and all else is exported as it was" {
	wrapped gemma4 gemma4
}
@test "mistral in Mistral3ForConditionalGeneration trains as alone, though config.json ties its own head by default" {
	wrapped mistral mistral3
}
@test "llama in LlavaForConditionalGeneration trains as alone, and all else is exported as it was" {
	wrapped llama2 llava
}
@test "qwen3 in Qwen3VLForConditionalGeneration trains as alone, and all else is exported as it was" {
	wrapped qwen3 qwen3_vl
}
@test "qwen2 in Qwen2_5_VLForConditionalGeneration, its keys in the root, trains as alone" { wrapped qwen2 qwen2_5_vl; }

# 20 steps of the folder CASE match PyTorch's of the whole class, all but the text model frozen, on texts
train_whole() {
	local case=$1
	start_stages --compute fp32
	# shellcheck disable=SC2046
	mt-step "$RUN" $(cat "$case/args") --eval "$case/data.bin" --eval-every 20 <"$case/data.bin" >"$case/metrics" \
		2>"$T/step.err"
	mt-ckpt export "$RUN" "$case/final" --dtype fp32
	python3 "$GOLDEN/compare.py" "$case" --metrics "$case/metrics" --final "$case/final"
}
whole() {
	cp -r "$GOLDEN/$1" "$T/$1"
	make_run "$T/$1/model" --dtype fp32
	train_whole "$T/$1"
}

@test "Gemma3ForConditionalGeneration trains as in PyTorch" { whole gemma3-wrapper; }
@test "Gemma4ForConditionalGeneration trains as in PyTorch" { whole gemma4-wrapper; }
@test "Gemma4UnifiedForConditionalGeneration trains as in PyTorch" { whole gemma4-unified; }
@test "Mistral3ForConditionalGeneration with an LM head that only the file has trains as in PyTorch" {
	whole mistral3-wrapper
}
@test "Qwen3VLForConditionalGeneration trains as in PyTorch" { whole qwen3-vl; }
@test "Glm4vForConditionalGeneration trains as in PyTorch" { whole glm4v; }
@test "Glm4vMoeForConditionalGeneration trains as in PyTorch, the auxiliary loss too" { whole glm4v-moe; }

# bats test_tags=slow
@test "each class trains as in PyTorch; transformers opens its exports, of both forms of names: same tensors, logits" {
	need_torch
	with_torch "$GOLDEN/wrappers.py" make "$T" 2>"$T/make.err" >"$T/names"
	while read -r name; do
		for form in "" new; do
			RUN=$(mt_run_name "$name$form")
			make_run "$T/$name/${form:-model}" --dtype "$([ "$form" ] && echo bf16 || echo fp32)"
			mt-ckpt export "$RUN" "$T/$name/${form:+new-}out"
			[ "$form" ] || train_whole "$T/$name"
			mt-store rm "$RUN" --force
		done
	done <"$T/names"
	with_torch "$GOLDEN/wrappers.py" check "$T"
}

@test "load says how many tensors are carried untrained, and that those of multi-token prediction drift" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	mt-store create "$RUN" --config "$T/in" --dtype fp32 2>"$T/create"
	mt-ckpt load "$RUN" "$T/in" 2>"$T/load"
	grep -q "of gemma3 the text model is trained; 6 tensors of 178 bytes are carried untrained" "$T/create"
	grep -q "^mt-ckpt: 6 tensors of 178 bytes are carried untrained, as they are in " "$T/load"
	grep -q "^mt-ckpt: warning: 1 of them are of multi-token prediction" "$T/load"
}

@test "a checkpoint of a wrapper loads when its source is gone, and later ones share its file of carried tensors" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	make_run "$T/in" --dtype fp32
	mkdir "$T/o"
	mt-ckpt save "$RUN" "$T/o/step-00000001"
	mv "$T/in" "$T/was"
	mt-ckpt save "$RUN" "$T/o/step-00000002"
	[ "$T/o/step-00000001/model-carried.safetensors" -ef "$T/o/step-00000002/model-carried.safetensors" ]
	mt-ckpt load "$RUN" "$T/o/step-00000002"
	rm -r "$T/o/step-00000001"
	mt-ckpt export "$RUN" "$T/o/model"
	wrap --unwrap "$T/o/model" "$T/was" "$T/text"
	mt-ckpt verify "$T/o/step-00000002"
	mt-ckpt export --from "$T/o/step-00000002" "$T/from"
	wrap --unwrap "$T/from" "$T/was" "$T/text2"
}

@test "a wrapper's source that is gone, or whose carried tensors have changed, exits 66 and is named" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	make_run "$T/in" --dtype fp32
	mv "$T/in" "$T/was"
	fails_with 66 mt-ckpt export "$RUN" "$T/out"
	[ ! -e "$T/out" ]
	cp -r "$T/was" "$T/in"
	printf x | dd of="$T/in/model.safetensors" bs=1 seek=$(($(stat -c %s "$T/in/model.safetensors") - 1)) conv=notrunc \
		2>/dev/null
	fails_with 66 mt-ckpt export "$RUN" "$T/out"
	grep -q "$T/in: its tensors have changed since they were loaded" "$T/fails.err"
	touch -r "$T/was/model.safetensors" "$T/in/model.safetensors"
	fails_with 66 mt-ckpt save "$RUN" "$T/out"
	grep -q "cannot be read from where they were loaded: $T/in: its tensors have changed" "$T/fails.err"
	truncate -s -1 "$T/in/model.safetensors"
	fails_with 66 mt-ckpt export "$RUN" "$T/out"
	grep -q "$T/in: model.safetensors: " "$T/fails.err"
	rm "$T/in/model.safetensors"
	fails_with 66 mt-ckpt export "$RUN" "$T/out"
	grep -q "$T/in: model.safetensors: No such file or directory" "$T/fails.err"
	[ ! -e "$T/out" ]
	# trained tensors may change: they are in the run
	cp "$T/was/model.safetensors" "$T/in/model.safetensors"
	python3 - "$TOP/tests/lib" "$T/in" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import KINDS, read, write
		write(sys.argv[2], {name: (dtype, shape, bytes(len(data)) if name.startswith(KINDS["gemma3"][0]) else data)
		                    for name, (dtype, shape, data) in read(sys.argv[2]).items()})
	END
	mt-ckpt export "$RUN" "$T/out"
	wrap --unwrap "$T/out" "$T/was" "$T/text"
}

@test "a wrapper's source is deleted while mt-run trains: the run stays, and is saved when the source is back" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	local run_it=(mt-run --run "$RUN" --model "$T/in" --data "$GOLDEN/gemma3/data.bin" --out "$T/out"
		--steps 1000000 --epochs 1000000 --batch 2 --seq 24 --lr 1e-3 --dtype fp32 --threads 1 --wait 5 --quiet)
	spawn run "${run_it[@]}"
	eventually grep -q '"step": 2,' "$T/run.out"
	mv "$T/in" "$T/was"
	kill -TERM "$PID"
	exits 143 wait "$PID"
	grep -q "untrained cannot be read from where they were loaded: $T/in: No such file or directory$" "$T/run.err"
	last=$(grep "save and remove it: " "$T/run.err")
	mv "$T/was" "$T/in"
	eval "${last#*remove it: }"
	gone "$RUN"
	mt-ckpt verify "$T"/out/step-*
	rm -r "$T/in"
	last=$(ls "$T/out" | sed -n 's/step-0*//p')
	"${run_it[@]}" --resume --until $((last + 2)) >"$T/m"
	[ "$(wc -l <"$T/m")" = 2 ]
}

@test "a checkpoint whose carried tensors are damaged: exports name it, and --resume takes an older one" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	make_run "$T/in" --dtype fp32
	mkdir "$T/o"
	mt-ckpt save "$RUN" "$T/o/step-00000001"
	file=$T/o/step-00000001/model-carried.safetensors
	printf x | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 1)) conv=notrunc 2>/dev/null
	fails_with 65 mt-ckpt export "$RUN" "$T/o/model"
	grep -q "model-carried.safetensors of a checkpoint beside it: chunk 0 is damaged" "$T/fails.err"
	fails_with 65 mt-ckpt verify "$T/o/step-00000001"
	mt-store rm "$RUN"
	fails_with 65 mt-ckpt export --from "$T/o/step-00000001" "$T/o/model"
	rm "$file"
	fails_with 65 mt-ckpt verify "$T/o/step-00000001"
	grep -q "model-carried.safetensors: is missing" "$T/fails.err"
	[ "$(ls -A "$T/o")" = step-00000001 ]
}

# A wrapper's head beside tied embeddings: equal: it stays, equal to the trained embeddings; other: trained on its own
with_head() { # FIRST-BYTE
	python3 - "$TOP/tests/lib" "$T/in" "$1" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		tensors = read(sys.argv[2])
		dtype, shape, data = tensors["language_model.model.embed_tokens.weight"]
		data = bytes([int(sys.argv[3]) if sys.argv[3] else data[0]]) + data[1:]
		tensors["language_model.lm_head.weight"] = dtype, shape, data
		write(sys.argv[2], tensors)
	END
}

@test "a tied wrapper whose file has an equal LM head trains one tensor and exports it under both names" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	with_head ''
	make_run "$T/in" --dtype fp32
	start_stages
	# shellcheck disable=SC2046
	mt-step "$RUN" $(cat "$GOLDEN/gemma3/args") --until 2 <"$GOLDEN/gemma3/data.bin" >"$T/metrics"
	mt-ckpt export "$RUN" "$T/out"
	wrap --unwrap "$T/out" "$T/in" "$T/text"
	python3 - "$TOP/tests/lib" "$T/in" "$T/out" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read
		was, now = read(sys.argv[2]), read(sys.argv[3])
		embed, head = ("language_model." + n for n in ("model.embed_tokens.weight", "lm_head.weight"))
		assert now[embed] == now[head] != was[head]
	END
	[ "$(jq .tie_word_embeddings "$T/out/config.json")" = true ]
}

@test "a wrapper whose file has an LM head other than its embeddings is untied, whatever config.json says" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	with_head 77
	make_run "$T/in" --dtype fp32
	mt-ckpt export "$RUN" "$T/out"
	wrap --unwrap "$T/out" "$T/in" "$T/text"
	[ "$(jq .tie_word_embeddings "$T/out/config.json")" = false ]
	mt-store rm "$RUN"
	make_run "$T/out" --dtype fp32
}

@test "hostile files beside a wrapper's config.json harm neither create nor load: paths, lengths, offsets, names" {
	local i
	wrap "$GOLDEN/gemma3/model" "$T/good" gemma3
	for i in 'index "/etc/passwd"' 'index "../good/model.safetensors"' 'index 7' 'header 1e18' 'header 99999999' \
		'offsets [-5,5]' 'offsets [0,1e15]' 'offsets "x"' 'offsets [5,1]'; do
		rm -rf "$T/in"
		cp -r "$T/good" "$T/in"
		python3 - "$T/in" "${i%% *}" "${i#* }" <<-'END'
			import json, os, struct, sys
			path, what, value = sys.argv[1:]
			file = path + "/model.safetensors"
			with open(file, "rb") as f:
			    n, = struct.unpack("<Q", f.read(8))
			    header, data = json.loads(f.read(n)), f.read()
			if what == "index":
			    os.rename(file, path + "/a.safetensors")
			    with open(file + ".index.json", "w") as f:
			        json.dump({"weight_map": {name: json.loads(value) for name in header}}, f)
			elif what == "header":
			    with open(file, "r+b") as f:
			        f.write(struct.pack("<Q", int(float(value))))
			else:
			    header["projector.weight"]["data_offsets"] = json.loads(value)
			    text = json.dumps(header).encode()
			    with open(file, "wb") as f:
			        f.write(struct.pack("<Q", len(text)) + text + data)
		END
		mt-store create "$RUN" --config "$T/in" --dtype fp32 2>"$T/create.err"
		fails_with 65 mt-ckpt load "$RUN" "$T/in"
		mt-store rm "$RUN"
	done
}

@test "a wrapper without text_config, with another class or text model, or quantized, exits 78" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	cp "$T/in/config.json" "$T/config.json"
	for change in 'del(.text_config)' '.architectures = ["LlamaForCausalLM"]' '.text_config.model_type = "llama"' \
		'.quantization_config = {"quant_method": "gptq"}' '.model_type = "gemma9"'; do
		jq "$change" "$T/config.json" >"$T/in/config.json"
		fails_with 78 mt-store create "$RUN" --config "$T/in"
	done
}

@test "records with tokens that stand for images exit 65 and name the key, unless --allow-image-tokens is given" {
	local records=$GOLDEN/gemma3/data.bin options
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	# the first record is 3, 18, 32
	jq '.boi_token_index = 18 | .eos_token_id = 32' "$T/in/config.json" >"$T/config.json"
	mv "$T/config.json" "$T/in/config.json"
	options="$(cat "$GOLDEN/gemma3/args") --until 1"
	told="record 1, element 1: token 18 is boi_token_index of config.json and stands for no text"
	make_run "$T/in" --dtype fp32
	start_stages
	# shellcheck disable=SC2086
	fails_with 65 sh -c 'mt-step "$@" <"$0"' "$records" "$RUN" $options
	grep -q "$told; --allow-image-tokens trains on it" "$T/fails.err"
	# shellcheck disable=SC2086
	fails_with 65 mt-step "$RUN" $options --check --config "$T/in" --eval "$records" --eval-every 1
	grep -q "$told" "$T/fails.err"
	fails_with 65 mt-feed --check --shuffle 1 --config "$T/in/config.json" "$records"
	grep -q "$told" "$T/fails.err"
	mt-feed --check --shuffle 1 --config "$T/in/config.json" --allow-image-tokens "$records"
	# shellcheck disable=SC2086
	mt-step "$RUN" $options --allow-image-tokens <"$records" >"$T/metrics"
	[ "$(wc -l <"$T/metrics")" = 1 ]
	# a model of texts alone has no such tokens
	jq '.image_token_id = 18' "$GOLDEN/gemma3/model/config.json" >"$T/text.json"
	mt-feed --check --shuffle 1 --config "$T/text.json" "$records"
}

@test "mt-run refuses records with image tokens before it trains, and takes them with --allow-image-tokens" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	jq '.image_token_index = 18' "$T/in/config.json" >"$T/config.json"
	mv "$T/config.json" "$T/in/config.json"
	run_it() {
		mt-run --model "$T/in" --data "$GOLDEN/gemma3/data.bin" --out "$T/out" --steps 1 --batch 2 --seq 24 --lr 1e-3 \
			--dtype fp32 --quiet "$@"
	}
	fails_with 65 run_it --dry-run
	grep -q "token 18 is image_token_index of config.json" "$T/fails.err"
	[ ! -e "$T/out" ]
	run_it --allow-image-tokens >"$T/metrics"
	[ -e "$T/out/model/config.json" ]
}

@test "--dry-run, plans and create count the bytes that are carried: in the export, and once in all checkpoints" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	python3 - "$TOP/tests/lib" "$T/in" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		write(sys.argv[2], {**read(sys.argv[2]), "vision_tower.large": ("U8", [3 << 20], bytes(3 << 20))})
	END
	run_it() {
		mt-run --run "$RUN" --model "$T/in" --data "$GOLDEN/gemma3/data.bin" --out "$T/out" --steps 3 --batch 2 \
			--seq 24 --lr 1e-3 --threads 1 --ckpt-every 1 --quiet "$@"
	}
	run_it --dry-run --json >"$T/json"
	run_it >"$T/m" 2>"$T/err"
	python3 - "$T/json" "$(du -sb "$T/out/step-00000003" | cut -f1)" "$(du -sb "$T/out" | cut -f1)" <<-'END'
		import json, sys
		dry, (checkpoint, all) = json.load(open(sys.argv[1])), map(int, sys.argv[2:])
		assert 0 < checkpoint - dry["checkpoint_bytes"] < 60000, (checkpoint, dry)
		state = dry["checkpoint_bytes"] - (3 << 20) - 178
		assert dry["disk_bytes"] == 3 * state + 2 * ((3 << 20) + 178) + 2 * 9296, dry
		assert 0 < all - dry["disk_bytes"] + state < 150000, (all, dry)     # the third checkpoint is not kept
	END
	[ "$(mt-stream --plan --config "$T/in" --seq 24 --micro 2 --json | value carried_bytes)" = $(((3 << 20) + 178)) ]
	mt-stream --plan --config "$T/in" --seq 24 --micro 2 | grep -q "^model .*; 0.003 GB carried untrained$"
	mt-store create "$RUN" --config "$T/in" 2>"$T/create"
	grep -q "7 tensors of 3145906 bytes are carried untrained; with them a checkpoint has 3257458 bytes, " "$T/create"
	grep -q "an export 3164498$" "$T/create"
	[ "$(mt-store stat "$RUN" --json | value carried_bytes)" = 3145906 ]
}

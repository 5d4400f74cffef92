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
	mt-step "$RUN" $(cat "$case/args") <"$case/data.bin" >"$T/metrics" 2>"$T/step.err"
	mt-ckpt export "$RUN" "$T/out" --dtype fp32
	wrap --unwrap "$T/out" "$T/in" "$T/final"
	python3 "$GOLDEN/compare.py" "$case" --metrics "$T/metrics" --final "$T/final"
}

@test "gemma3's text model in Gemma3ForConditionalGeneration trains as alone, and all else is exported as it was" {
	wrapped gemma3 gemma3
}
@test "gemma3n's text model in Gemma3nForConditionalGeneration trains as alone, and all else is exported as it was" {
	wrapped gemma3n gemma3n
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
@test "Gemma4ForConditionalGeneration with experts trains as in PyTorch" { whole gemma4-moe-wrapper; }
@test "Gemma4ForConditionalGeneration with own inputs of blocks trains as in PyTorch" { whole gemma4-e-wrapper; }
@test "Gemma4UnifiedForConditionalGeneration trains as in PyTorch" { whole gemma4-unified; }
@test "k and v of layers that share them, which released files have and the class ignores, are carried along" {
	cp -r "$GOLDEN/gemma4-e-wrapper/model" "$T/model"
	python3 - "$TOP/tests/lib" "$T/model" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		tensors = read(sys.argv[2])
		of = "model.language_model.layers.%d.self_attn."
		names = [of + name for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight")]
		write(sys.argv[2], {**tensors, **{name % (i + 2): tensors[name % i] for name in names for i in (0, 1)}})
	END
	make_run "$T/model" --dtype fp32
	mt-ckpt export "$RUN" "$T/out" 2>"$T/export.err"
	python3 - "$TOP/tests/lib" "$T/model" "$T/out" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read
		out = read(sys.argv[3])
		assert read(sys.argv[2]) == out and "model.language_model.layers.3.self_attn.v_proj.weight" in out
	END
}
@test "Mistral3ForConditionalGeneration with an LM head that only the file has trains as in PyTorch" {
	whole mistral3-wrapper
}
@test "Qwen3VLForConditionalGeneration trains as in PyTorch" { whole qwen3-vl; }
@test "Qwen3VLMoeForConditionalGeneration trains as in PyTorch, the auxiliary loss too" { whole qwen3-vl-moe; }
@test "Glm4vForConditionalGeneration trains as in PyTorch" { whole glm4v; }
@test "Glm4vMoeForConditionalGeneration trains as in PyTorch, the auxiliary loss too" { whole glm4v-moe; }
@test "Qwen3_5ForConditionalGeneration trains as in PyTorch" { whole qwen3-5-wrapper; }
@test "Mistral3ForConditionalGeneration with MLA trains as in PyTorch" { whole mistral4-wrapper; }

# bats test_tags=slow
@test "exports of what transformers 5 wrote have the text model's rope as transformers 4 reads it, too" {
	local c
	rope() { # CASE WANTED
		make_run "$GOLDEN/$1/model" --dtype fp32
		mt-ckpt export "$RUN" "$T/$1"
		mt-store rm "$RUN"
		# (+ 0: jq 1.7 would print a number as the file writes it)
		jq -cS '.text_config | [.rope_theta, .rope_local_base_freq, .rope_scaling] |
			walk(if type == "number" then . + 0 else . end)' "$T/$1/config.json" >"$T/rope"
		[ "$(cat "$T/rope")" = "$2" ]
	}
	rope gemma3-wrapper '[1000000,10000,{"factor":8,"rope_type":"linear"}]'
	rope mistral3-wrapper '[10000,null,null]'
	rope qwen3-vl '[10000,null,{"mrope_section":[2,1,1],"rope_type":"default"}]'
	rope qwen3-5-wrapper '[10000,null,{"mrope_interleaved":true,"mrope_section":[1,1,0],"rope_type":"default"}]'
	[ "$(jq -c .text_config.partial_rotary_factor "$T/qwen3-5-wrapper/config.json")" = 0.25 ]
	need_transformers
	"$PYTHON" - "$GOLDEN" "$T" gemma3-wrapper mistral3-wrapper qwen3-vl qwen3-5-wrapper <<-'END'
		import sys
		from transformers import AutoConfig
		golden, out, *cases = sys.argv[1:]
		for case in cases:
		    was, now = (AutoConfig.from_pretrained(d).text_config.rope_parameters for d in (
		        "%s/%s/model" % (golden, case), "%s/%s" % (out, case)))
		    assert was == now, (case, was, now)
	END
}

# bats test_tags=slow
@test "each class trains as in PyTorch; transformers opens its exports, of both forms of names: same tensors, logits" {
	need_torch
	with_torch "$GOLDEN/wrappers.py" make "$T" $((NIGHTLY ? 1 : 12)) 2>"$T/make.err" >"$T/names"
	while read -r name; do
		for form in "" new; do
			RUN=$(mt_run_name "${name:0:16}$form")
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

# Add to $T/in, a text model, tensors that it does not train: layers of multi-token prediction and others
add_unused() {
	python3 - "$TOP/tests/lib" "$T/in" <<-'END'
		import json, re, sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		tensors = read(sys.argv[2])
		with open(sys.argv[2] + "/config.json") as f:
		    c = json.load(f)
		first = next(n for n in tensors if re.search(r"\.0\.", n))
		layer = re.match(r".*?\.0\.", first)[0]
		at = re.compile(re.escape(layer[:-2]) + r"(\d+)\.")
		last = max(int(at.match(n)[1]) for n in tensors if at.match(n))
		beyond = layer[:-2] + "%d." % (last + 1)
		new = {beyond + "eh_proj.weight": [2, 4], beyond + "mlp.experts.0.gate_proj.weight": [3, 2],
		       beyond + "shared_head.head.weight": [8, 2], "mtp.fc.weight": [4, 2], layer + "attn.k_scale": [],
		       "x.y": [2]}
		size = lambda shape: 2 * (shape[0] if shape else 1) * (shape[1] if shape[1:] else 1)
		write(sys.argv[2], {**tensors, **{k: ("BF16", v, bytes((7 * i) % 256 for i in range(size(v))))
		                                  for k, v in new.items()}})
		for key in "num_nextn_predict_layers", "mtp_num_hidden_layers":
		    c[key] = 1
		with open(sys.argv[2] + "/config.json", "w") as f:
		    json.dump(c, f)
	END
}

# bats test_tags=slow
@test "what a text model does not train comes back byte for byte in every family, and checkpoints have it" {
	local c
	for c in deepseek-v3 glm4-moe-lite glm4-moe qwen3-next exaone-moe nemotron-h nemotron-h-moe ernie4-5-moe qwen3-5 \
		gemma4-e llama3 gpt2 falcon neox opt gpt-oss sarvam-moe mixtral lfm2-moe; do
		rm -rf "$T/in" "$T/out" "$T/step-00000000"
		cp -r "$GOLDEN/$c/model" "$T/in"
		add_unused
		make_run "$T/in" --dtype fp32
		grep -q "^mt-store: run '.*': 6 tensors of 82 bytes are carried untrained; with them" "$T/create.err"
		grep -q "^mt-ckpt: 6 tensors of 82 bytes are carried untrained, .*mtp.fc.weight.*x.y" "$T/load.err"
		mt-ckpt verify "$T/in"
		mt-ckpt save "$RUN" "$T/step-00000000"
		mt-ckpt load "$RUN" "$T/step-00000000" 2>"$T/load.err"
		mt-ckpt export "$RUN" "$T/out"
		mt-store rm "$RUN"
		python3 "$TOP/tests/lib/forms.py" same "$T/in" "$T/out"
		[ "$(jq -c '[.num_nextn_predict_layers, .mtp_num_hidden_layers]' "$T/out/config.json")" = '[1,1]' ]
	done
}

@test "--drop-unused leaves out what is not trained, names it, and config.json announces no layers that are not there" {
	cp -r "$GOLDEN/deepseek-v3/model" "$T/in"
	add_unused
	fails_with 64 mt-ckpt save "$RUN" "$T/x" --drop-unused
	fails_with 64 mt-run --score --model "$T/in" --data "$GOLDEN/deepseek-v3/data.bin" --seq 24 --drop-unused
	mt-run --run "$RUN" --model "$T/in" --data "$GOLDEN/deepseek-v3/data.bin" --out "$T/out" --steps 1 --batch 2 \
		--seq 24 --lr 0 --dtype fp32 --threads 1 --drop-unused >"$T/m" 2>"$T/err"
	grep -q "6 tensors of 82 bytes are left out, which the model does not train: .*mtp.fc.weight" "$T/err"
	python3 "$TOP/tests/lib/forms.py" same "$GOLDEN/deepseek-v3/model" "$T/out/model"
	mt-ckpt verify "$T"/out/step-* 2>"$T/verify"
	[ ! -s "$T/verify" ]
	[ "$(jq -c '[.num_nextn_predict_layers, .mtp_num_hidden_layers]' "$T/out/model/config.json")" = '[0,0]' ]
	# of a class for images too
	wrap "$GOLDEN/gemma3/model" "$T/w" gemma3
	mt-store create "$RUN" --config "$T/w" --dtype fp32 2>"$T/create.err"
	mt-ckpt load "$RUN" "$T/w" --drop-unused 2>"$T/load.err"
	grep -q "^mt-ckpt: 6 tensors of 178 bytes are left out" "$T/load.err"
	mt-ckpt export "$RUN" "$T/alone"
	[ "$(ls "$T/alone")" = "config.json
model.safetensors" ]
}

@test "a checkpoint of a wrapper loads when its source is gone; each second one shares its file of carried tensors" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	make_run "$T/in" --dtype fp32
	mkdir "$T/o"
	mt-ckpt save "$RUN" "$T/o/step-00000001"
	mv "$T/in" "$T/was"
	mt-ckpt save "$RUN" "$T/o/step-00000002"
	mt-ckpt save "$RUN" "$T/o/step-00000003"
	[ ! "$T/o/step-00000001/model-carried.safetensors" -ef "$T/o/step-00000002/model-carried.safetensors" ]
	[ "$T/o/step-00000001/model-carried.safetensors" -ef "$T/o/step-00000003/model-carried.safetensors" ]
	mt-ckpt load "$RUN" "$T/o/step-00000002"
	rm -r "$T/o/step-00000001" "$T/o/step-00000003"
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

# Change the last byte of a file
damage() { # FILE
	python3 -c 'import os, sys; f = open(sys.argv[1], "r+b"); f.seek(-1, 2); b = f.read(1)[0]; f.seek(-1, 2)
f.write(bytes([b ^ 1]))' "$1"
}

@test "damaged carried tensors of a checkpoint: save, export and load take them from where they are whole" {
	local i
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	make_run "$T/in" --dtype fp32
	mkdir "$T/o"
	as_in() { wrap --unwrap "$1" "$T/was" "$T/text$((++i))"; }
	whole() { # a load of step-00000002, and exports of it, with words from a warning
		mt-ckpt load "$RUN" "$T/o/step-00000002" 2>"$T/load.err"
		grep -q "warning: .*model-carried.safetensors: chunk 0 .*taken from elsewhere" "$T/load.err"
		mt-ckpt export "$RUN" "$T/o/model" --replace
		as_in "$T/o/model"
		mt-ckpt export --from "$T/o/step-00000002" "$T/from" --replace
		as_in "$T/from"
	}
	cp -r "$T/in" "$T/was"
	for i in 1 2; do mt-ckpt save "$RUN" "$T/o/step-0000000$i"; done
	damage "$T/o/step-00000002/model-carried.safetensors"
	fails_with 65 mt-ckpt verify "$T/o/step-00000002"
	mt-ckpt verify "$T/o/step-00000002" --as-load
	mt-ckpt verify "$T/o/step-00000001"
	fails_with 64 mt-ckpt load "$RUN" "$T/o/step-00000002" --as-load
	mv "$T/in" "$T/gone"                        # from step 1
	whole
	mt-ckpt save "$RUN" "$T/o/step-00000003"
	mt-ckpt verify "$T/o/step-00000003"
	rm -r "$T/o/step-00000003"
	damage "$T/o/step-00000001/model-carried.safetensors"
	mv "$T/gone" "$T/in"                        # from the source
	whole
	mt-ckpt save "$RUN" "$T/o/step-00000003"
	mt-ckpt verify "$T/o/step-00000003"
	rm -r "$T/o/step-00000003"
	mv "$T/in" "$T/gone"                        # from nowhere
	fails_with 65 mt-ckpt load "$RUN" "$T/o/step-00000002"
	grep -q "model-carried.safetensors: chunk 0 (bytes 0 to [0-9]*) is damaged" "$T/fails.err"
	fails_with 65 mt-ckpt verify "$T/o/step-00000002" --as-load
	mt-ckpt verify "$T/o/step-00000002" --as-load --drop-unused
	fails_with 66 mt-ckpt export "$RUN" "$T/none"
	grep -q "$T/in: No such file or directory; step-00000002: model-carried.safetensors: chunk 0 " "$T/fails.err"
	[ ! -e "$T/none" ]
	fails_with 65 mt-ckpt export --from "$T/o/step-00000002" "$T/none"
	mt-ckpt load "$RUN" "$T/o/step-00000002" --drop-unused
	rm "$T/o/step-00000002/model-carried.safetensors"
	fails_with 65 mt-ckpt load "$RUN" "$T/o/step-00000002"
	grep -q "model-carried.safetensors: is missing" "$T/fails.err"
	[ "$(ls -A "$T/o")" = "model
step-00000001
step-00000002" ]
}

# bats test_tags=slow
@test "of the checkpoints that --keep 2 keeps, one bad block takes the carried tensors of one alone" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	run_it() {
		mt-run --run "$RUN" --model "$T/in" --data "$GOLDEN/gemma3/data.bin" --out "$T/out" --epochs 9 --steps 20 \
			--batch 2 --seq 24 --lr 1e-3 --dtype fp32 --threads 1 --ckpt-every 1 --quiet "$@"
	}
	run_it --until 5 >"$T/m"
	damage "$T/out/step-00000005/model-carried.safetensors"
	mt-ckpt verify "$T/out/step-00000004"
	mv "$T/in" "$T/was"
	run_it --resume --until 7 >"$T/m" 2>"$T/err"
	[ "$(wc -l <"$T/m")" = 2 ]                  # from step 5
	for i in 6 7; do mt-ckpt verify "$T/out/step-0000000$i"; done
	wrap --unwrap "$T/out/model" "$T/was" "$T/text"
	for i in 6 7; do damage "$T/out/step-0000000$i/model-carried.safetensors"; done
	exits 65 run_it --resume --until 9 2>"$T/err"
	mv "$T/was" "$T/in"
	run_it --resume --until 9 >"$T/m" 2>"$T/err"
	[ "$(wc -l <"$T/m")" = 2 ]
	for i in 8 9; do mt-ckpt verify "$T/out/step-0000000$i"; done
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

# Change the header and the data of $T/in's file by Python code on h and d: edit CODE
edit() {
	python3 - "$T/in/model.safetensors" "$1" <<-'END'
		import json, struct, sys
		with open(sys.argv[1], "rb") as f:
		    n, = struct.unpack("<Q", f.read(8))
		    h, d = json.loads(f.read(n)), f.read()
		def add(name, dtype, shape, data):
		    global d
		    h[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(d), len(d) + len(data)]}
		    d += data
		exec(sys.argv[2])
		text = h if isinstance(h, bytes) else json.dumps(h).encode()
		with open(sys.argv[1], "wb") as f:
		    f.write(struct.pack("<Q", len(text)) + text + d)
	END
}

# load and verify refuse $T/in, which create takes, with 65 and WORDS: damaged CODE WORDS
damaged() {
	edit "$1"
	mt-store create "$RUN" --config "$T/in" --dtype fp32 2>"$T/create.err"
	fails_with 65 mt-ckpt load "$RUN" "$T/in"
	grep -qF -- "$2" "$T/fails.err"
	ckpt-dump "$RUN" | grep -q '^state 0$'
	fails_with 65 mt-ckpt verify "$T/in"
	mt-store rm "$RUN"
}

# bats test_tags=slow
@test "carried tensors of unknown dtypes, impossible sizes or names that are not unique exit 65, and are not counted" {
	local i
	wrap "$GOLDEN/gemma3/model" "$T/good" gemma3
	for i in 'add("x", "F4", [2], b"a");tensor '"'x': unknown dtype 'F4'" \
		'add("x", "U8", [1] * 9, b"a");more than 8 dimensions' \
		'add("x", "U8", [2], b"a");1 byte for a shape that needs 2' \
		'h["projector.weight"].update(shape=[1 << 40], data_offsets=[0, 1 << 40]);offsets past end of file' \
		'h["projector.weight"].update(shape=[1 << 62, 8], data_offsets=[0, 1 << 62]);shape overflows' \
		'h["projector.weight"].update(data_offsets=[-15, 0]);data_offsets are not two whole numbers' \
		'add("x.embed_tokens.weight", "F32", [1], b"abcd");tensor '"'x.embed_tokens.weight': shape (1) where config" \
		'h = json.dumps(h)[:-1].encode() + b", \"mtp.fc.weight\": 7}";duplicate object key' \
		'h = json.dumps(h).replace("mtp.fc", "\\u0000").encode();NUL byte in object key' \
		'h = json.dumps(h).replace("mtp.fc", "\\ud800").encode();invalid Unicode'; do
		rm -rf "$T/in"
		cp -r "$T/good" "$T/in"
		damaged "${i%%;*}" "${i#*;}"
		no grep -E '[0-9]{6} bytes are carried|[0-9]{10}' "$T/create.err"
	done
}

@test "a text model that has a tensor twice, under the name of an export and another, exits 65 and names it" {
	wrap "$GOLDEN/phi/model" "$T/in" llava
	jq '.text_config.model_type = "phi"' "$T/in/config.json" >"$T/config.json"
	mv "$T/config.json" "$T/in/config.json"
	# wrap.py takes the bias for one of the text model's other tensors
	damaged 'h["model.lm_head.weight"] = h.pop("lm_head.weight"); h["lm_head.bias"] = h.pop("model.language_model.bias")
add("model.lm_head.bias", "F32", [1], b"abcd")' \
		"tensor 'model.lm_head.bias': the text model has it twice, here and in another form"
}

@test "odd but valid carried tensors come back: without elements, of odd and long names, thousands, in odd files" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	edit 'add("none", "F32", [0, 5], b""); add("x\n\x1b[31m\"\\\u2028", "U8", [1], b"a"); add("", "U8", [1], b"b")
add("n" * 5000, "U8", [1], b"c")
for i in range(5000): add("t.%d" % i, "U8", [i % 2], b"d" * (i % 2))'
	python3 - "$TOP/tests/lib" "$T/in" <<-'END'
		import json, os, sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		tensors, shards, index = read(sys.argv[2]), ["n" * 200 + ".safetensors", "a\n\x1b[31m.safetensors"], {}
		where = list(tensors).index("projector.weight") % 2
		for i, shard in enumerate(shards):
		    part = dict(list(tensors.items())[i::2])
		    # a tensor that the index does not list here is not of the model
		    write(sys.argv[2], {**part, **({"projector.weight": ("U8", [1], b"x")} if i != where else {})}, shard)
		    index |= {name: shard for name in part}
		os.remove(sys.argv[2] + "/model.safetensors")
		with open(sys.argv[2] + "/model.safetensors.index.json", "w") as f:
		    json.dump({"weight_map": index}, f)
		write(sys.argv[2] + "/..", tensors, "want.safetensors")
	END
	make_run "$T/in" --dtype fp32
	no grep -P '[\x00-\x08\x0b-\x1f]' "$T/create.err" "$T/load.err"
	mt-ckpt export "$RUN" "$T/out"
	python3 - "$TOP/tests/lib" "$T" <<-'END'
		import json, os, sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read
		os.mkdir(sys.argv[2] + "/want")
		os.rename(sys.argv[2] + "/want.safetensors", sys.argv[2] + "/want/model.safetensors")
		assert read(sys.argv[2] + "/want") == read(sys.argv[2] + "/out")
	END
}

@test "a wrapper in a directory whose path is not UTF-8 exits 65 with a line that says so" {
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	mv "$T/in" "$T/"$'caf\xe9'
	mt-store create "$RUN" --config "$T/"$'caf\xe9' 2>"$T/create.err"
	fails_with 65 mt-ckpt load "$RUN" "$T/"$'caf\xe9'
	grep -aq ": its path is not UTF-8" "$T/fails.err"
}

# bats test_tags=slow
@test "text_config that is missing, empty, no object, too large, too deep or another class's exits 65 or 78" {
	local i
	wrap "$GOLDEN/gemma3/model" "$T/in" gemma3
	cp "$T/in/config.json" "$T/config.json"
	refused() { # CODE WORDS
		fails_with "$1" mt-store create "$RUN" --config "$T/in"
		grep -qF -- "config.json: $2" "$T/fails.err"
		fails_with "$1" mt-ckpt verify "$T/in"
		gone "$RUN"
	}
	for i in '.text_config = [1];65 text_config is not an object' '.text_config = "x";65 text_config is not an object' \
		'.text_config = null;78 text_config is missing' '.text_config = {};78 text_config is missing' \
		".text_config = .;78 text_config: model_type 'gemma3' is not supported" \
		'.text_config.model_type = 7;65 model_type is not a string' \
		'.architectures = {};65 architectures is not a list' \
		'.text_config.num_hidden_layers = 1000000000000;78 num_hidden_layers' \
		'.text_config.x = "y" * 17000000;65 larger than 16 MiB'; do
		jq "${i%%;*}" "$T/config.json" >"$T/in/config.json"
		i=${i#*;}
		refused "${i%% *}" "${i#* }"
	done
	sed "s/\"text_config\": {/&\"x\": $(printf '%03000d' 0 | tr 0 '[')$(printf '%03000d' 0 | tr 0 ']'), /" \
		"$T/config.json" >"$T/in/config.json"
	refused 65 "line 1: not JSON: maximum parsing depth reached"
	# one in it is an unknown key
	jq '.text_config.text_config = (.text_config | .hidden_size = 99)' "$T/config.json" >"$T/in/config.json"
	mt-ckpt verify "$T/in"
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
	fails_with 65 sh -c 'mt-step "$@" <"$0"' "$records" "$RUN" $options
	grep -q "$told; --allow-image-tokens trains on it" "$T/fails.err"
	fails_with 65 mt-step "$RUN" $options --check --config "$T/in" --eval "$records" --eval-every 1
	grep -q "$told" "$T/fails.err"
	fails_with 65 mt-feed --check --shuffle 1 --config "$T/in/config.json" "$records"
	grep -q "$told" "$T/fails.err"
	mt-feed --check --shuffle 1 --config "$T/in/config.json" --allow-image-tokens "$records"
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

# bats test_tags=slow
@test "--dry-run, plans and create count the bytes that are carried: in the export, and twice in all checkpoints" {
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
		assert dry["disk_bytes"] == 3 * state + 3 * ((3 << 20) + 178) + 2 * 9296, dry
		assert 0 < all - dry["disk_bytes"] + state < 150000, (all, dry)     # the third checkpoint is not kept
	END
	[ "$(mt-stream --plan --config "$T/in" --seq 24 --micro 2 --json | value carried_bytes)" = $(((3 << 20) + 178)) ]
	mt-stream --plan --config "$T/in" --seq 24 --micro 2 | grep -q "^model .*; 0.003 GB carried untrained$"
	mt-store create "$RUN" --config "$T/in" 2>"$T/create"
	grep -q "7 tensors of 3145906 bytes are carried untrained; with them a checkpoint has 3257458 bytes, " "$T/create"
	grep -q "an export 3164498$" "$T/create"
	[ "$(mt-store stat "$RUN" --json | value carried_bytes)" = 3145906 ]
}

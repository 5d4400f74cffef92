#!/usr/bin/env bats
# mt-ckpt load: weights in FP8 and MXFP4 become the numbers that they stand for; damaged ones are refused.

load helpers

ST() { python3 "$TOP/tests/lib/mksafetensors.py" "$@"; }
Q() { python3 "$TOP/tests/lib/quantize.py" "$@"; }
create() { mt-store create "$@" 2>"$T/create.err"; }

# $T/q is loaded, verified and exported, by bf16 and fp32 runs, in bf16 and fp32, as the numbers of $T/q/expect
reads() { # KIND
	local dtype
	mt-ckpt verify "$T/q"
	for dtype in bf16 fp32; do
		make_run "$T/q" --dtype $dtype
		grep -qx "mt-ckpt: $1 read as $dtype; the export will be $dtype, [0-9.]* GB instead of [0-9.]*" "$T/load.err"
		[ "$(wc -l <"$T/load.err")" = 1 ]
		mt-ckpt export "$RUN" "$T/fp32" --dtype fp32
		mt-ckpt export "$RUN" "$T/bf16" --dtype bf16
		mt-store rm "$RUN"
		ST same "$T/q/expect" "$T/fp32" --cast F32
		ST same "$T/q/expect" "$T/bf16" --cast "$([ $dtype = bf16 ] && echo W || echo BF16)"
		no grep -q quantization_config "$T/fp32/config.json"
		rm -r "$T/fp32" "$T/bf16"
	done
	rm -r "$T/q"
}

like_transformers() {
	! has torch transformers || with_torch "$TOP/tests/lib/quantize.py" transformers "$T/q"
}

# bats test_tags=slow
@test "FP8 in full blocks is read as transformers reads it, with every type of scales" {
	local scale
	for scale in $(some 4 F32 BF16 F8_E8M0 U8); do
		Q fp8 "$GOLDEN/qwen3/model" "$T/q" --block 4,4 --scale $scale
		like_transformers
		reads FP8
	done
}

# bats test_tags=slow
@test "FP8 in partial blocks is divided by weight_block_size, not by the number of scales" {
	local block
	for block in 16,16 7,33 50,3 128,128; do
		Q fp8 "$GOLDEN/qwen3/model" "$T/q" --block $block
		reads FP8
	done
}

# bats test_tags=slow
@test "FP8 without weight_block_size is in blocks of 128 x 128" {
	ST make "$T/in" --set hidden_size=192 --set intermediate_size=272 --set num_hidden_layers=1
	Q fp8 "$T/in" "$T/q"
	reads FP8
}

# bats test_tags=slow
@test "FP8 with one scale a tensor is read as transformers reads it, and activation_scale is dropped" {
	Q fp8 "$GOLDEN/qwen3/model" "$T/q" --form scalar --scale BF16
	like_transformers
	reads FP8
}

# bats test_tags=slow
@test "FP8 of compressed-tensors with a scale for each row, or for each tensor" {
	local form
	for form in channel tensor; do
		Q fp8 "$GOLDEN/qwen3/model" "$T/q" --form $form --scale BF16
		reads FP8
	done
}

# bats test_tags=slow
@test "FP8 in fused tensors and of experts" {
	Q fp8 "$GOLDEN/phi3-mini/model" "$T/q" --block 16,16
	reads FP8
	Q fp8 "$GOLDEN/qwen3-moe/model" "$T/q" --block 5,5
	reads FP8
	Q fp8 "$GOLDEN/deepseek-v3/model" "$T/q" --block 5,5 # of latents, too; its correction stays F32 in bf16 exports
	make_run "$T/q" --dtype fp32
	mt-ckpt export "$RUN" "$T/fp32" --dtype fp32
	ST same "$T/q/expect" "$T/fp32" --cast F32
}

# bats test_tags=slow
@test "FP8 of compressed-tensors in blocks, and scales under other names" {
	local form
	for form in grid short qscale; do
		Q fp8 "$GOLDEN/qwen3/model" "$T/q" --form $form --block 7,33
		reads FP8
	done
}

# bats test_tags=nightly
@test "FP8 of packed experts: in full blocks as transformers reads it, and in partial ones, of gate and up apart too" {
	local form
	for form in packed transposed; do
		python3 "$TOP/tests/lib/forms.py" "$GOLDEN/qwen3-moe/model" "$T/in" $form
		Q fp8 "$T/in" "$T/q" --block 2,2
		like_transformers
		reads FP8
		Q fp8 "$T/in" "$T/q" --block 5,5
		reads FP8
		Q fp8 "$T/in" "$T/q" --form scalar
		reads FP8
		rm -r "$T/in"
	done
	python3 "$TOP/tests/lib/forms.py" "$GOLDEN/qwen3-moe/model" "$T/in" packed
	Q fp8 "$T/in" "$T/q" --form halves --block 4,4
	reads FP8
}

# bats test_tags=slow
@test "MXFP4 of gpt-oss is read as transformers reads it" {
	Q mxfp4 "$GOLDEN/gpt-oss/model" "$T/q"
	like_transformers
	reads MXFP4
}

# bats test_tags=nightly
@test "MXFP4 of many rows and columns is read in parts, by one thread or several" {
	Q mxfp4 "$GOLDEN/gpt-oss/model" "$T/q" --hidden 8192
	create "$RUN" --config "$T/q"
	mt-ckpt load "$RUN" "$T/q" --threads 1
	ckpt-dump "$RUN" >"$T/one"
	mt-ckpt load "$RUN" "$T/q" --threads 3
	diff "$T/one" <(ckpt-dump "$RUN")
	mt-store rm "$RUN"
	reads MXFP4
}

@test "shards: a scale may be in another file than its weight" {
	Q fp8 "$GOLDEN/qwen3/model" "$T/q" --block 16,16
	python3 - "$TOP" "$T/q" <<-'END'
		import json, os, sys
		sys.path.insert(0, sys.argv[1] + "/tests/lib")
		from mksafetensors import tensors_of, write_tensors
		q = sys.argv[2]
		tensors = tensors_of(q)
		os.remove(q + "/model.safetensors")
		where = {n: f"model-{'scale' in n:d}.safetensors" for n in tensors}
		for file in set(where.values()):
		    write_tensors(f"{q}/{file}", {n: t for n, t in tensors.items() if where[n] == file})
		json.dump({"metadata": {}, "weight_map": where}, open(q + "/model.safetensors.index.json", "w"))
	END
	reads FP8
}

# bats test_tags=slow
@test "FP8 in a class for images: blocks as text_config or the root says, and no scale is carried" {
	local at
	wrap() { python3 "$TOP/tests/lib/wrap.py" "$@"; }
	for at in text_config root; do
		Q fp8 "$GOLDEN/mistral/model" "$T/q" --block 16,16
		cp "$GOLDEN/mistral/model/config.json" "$T/q/expect/"
		wrap "$T/q" "$T/in" mistral3
		wrap "$T/q/expect" "$T/was" mistral3
		[ $at = text_config ] || ST json "$T/in/config.json" \
			'j["quantization_config"] = j["text_config"].pop("quantization_config")'
		make_run "$T/in" --dtype fp32
		mt-ckpt export "$RUN" "$T/out"
		mt-store rm "$RUN"
		wrap --unwrap "$T/out" "$T/was" "$T/text"
		wrap --unwrap "$T/was" "$T/was" "$T/expect"
		ST same "$T/expect" "$T/text"
		no grep -q quantization_config "$T/out/config.json"
		rm -r "$T/q" "$T/in" "$T/was" "$T/out" "$T/text" "$T/expect"
	done
}

# The projections of mistral3-wrapper's tower and of its text model are in FP8: exports have both as numbers, of the
# tower in bf16, and transformers opens them with these.
# bats test_tags=nightly
@test "FP8 outside of a class's text model is carried as bf16, and again from checkpoints" {
	local form
	for form in "blocks --block 5,7" "channel --scale BF16"; do
		Q fp8 "$GOLDEN/mistral3-wrapper/model" "$T/q" --form $form
		make_run "$T/q" --dtype fp32
		mt-ckpt verify "$T/q"
		mt-ckpt export "$RUN" "$T/out"
		mt-ckpt save "$RUN" "$T/step"
		mt-store rm "$RUN"
		make_run "$T/step" --dtype fp32
		mt-ckpt export "$RUN" "$T/again"
		mt-store rm "$RUN"
		python3 - "$TOP/tests/lib" "$T/q" "$T/out" "$T/again" <<-'END'
			import sys
			sys.path.insert(0, sys.argv[1])
			from mksafetensors import bits, nearest_even, tensors_of
			was, expect, out, again = map(tensors_of, (sys.argv[2], sys.argv[2] + "/expect", *sys.argv[3:]))
			assert out == again and set(out) == set(expect)
			for name, (dtype, shape, raw) in expect.items():
			    carried_fp8 = was[name][0] == "F8_E4M3" and not name.startswith("language_model.")
			    want = [nearest_even(b) for b in bits(dtype, raw)] if carried_fp8 else bits(dtype, raw)
			    assert out[name][:2] == ("BF16" if carried_fp8 else "F32", shape), (name, out[name][:2])
			    assert bits(out[name][0], out[name][2]) == want, name
		END
		! has torch transformers || with_torch - "$T/out" "$T/q/expect" <<-'END'
			import sys, torch
			from safetensors.torch import load_file
			from transformers import AutoModelForImageTextToText
			model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype=torch.float32)
			want = load_file(sys.argv[2] + "/model.safetensors")
			name = "layers.0.attention.q_proj.weight"
			tower = want["vision_tower.transformer." + name].bfloat16().float()
			assert torch.equal(dict(model.named_parameters())["model.vision_tower.transformer." + name], tower)
		END
		rm -r "$T/q" "$T/out" "$T/again" "$T/step"
	done
}

# ---- damaged files

# load and verify refuse $T/q with CODE and one line that contains WORDS; the run stays empty
refused() { # CODE WORDS
	create "$RUN" --config "$T/good"
	fails_with "$1" mt-ckpt load "$RUN" "$T/q"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	ckpt-dump "$RUN" | grep -q '^state 0$'
	mt-store rm "$RUN"
	fails_with "$1" mt-ckpt verify "$T/q"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
}
# The same of what is found only when the weights are read
refused_by_load() { # CODE WORDS
	create "$RUN" --config "$T/good"
	fails_with "$1" mt-ckpt load "$RUN" "$T/q"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	mt-store rm "$RUN"
}
# A good model again
anew() { # KIND DIR [OPTIONS]
	rm -rf "$T/q"
	[ -e "$T/good" ] || Q "$1" "$GOLDEN/$2/model" "$T/good" "${@:3}"
	cp -r "$T/good" "$T/q"
}
EDIT() { ST edit "$T/q/model.safetensors" "$1"; }
ADD_BYTE() { EDIT "h['$1'] = {'dtype': 'U8', 'shape': [1], 'data_offsets': [len(d), len(d) + 1]}; d.append(1)"; }
UP=model.layers.1.mlp.up_proj.weight
DOWN=model.layers.1.mlp.experts.down_proj

# bats test_tags=slow
@test "FP8: a missing scale, one without its weight, or of another shape or type exits 65" {
	anew fp8 qwen3 --block 16,16
	EDIT "h['x'] = h.pop('${UP}_scale_inv')"
	refused 65 "tensor '$UP': is FP8, and its weight_scale_inv or weight_scale is missing"
	anew
	ADD_BYTE x.weight_scale
	refused 65 "tensor 'x.weight_scale': a scale without its quantized weight"
	anew
	ADD_BYTE model.norm.weight_scale_inv
	refused 65 "tensor 'model.norm.weight_scale_inv': a scale without its quantized weight"
	anew
	EDIT "h['${UP}_scale_inv']['shape'].reverse()"
	refused 65 "tensor '${UP}_scale_inv': its shape is not (4, 2), the scales of '$UP'"
	anew
	EDIT "h['${UP}_scale_inv']['shape'] = [8]"
	refused 65 "tensor '${UP}_scale_inv': its shape is not (4, 2)"
	anew
	ST json "$T/q/config.json" "j['quantization_config']['weight_block_size'] = None"
	refused 65 "its shape is not (1, 1), the scales of"
	anew
	EDIT "t = h['${UP}_scale_inv']; t['dtype'] = 'I32'"
	refused 65 "tensor '${UP}_scale_inv': a scale is F32, BF16, F8_E8M0 or U8"
	anew
	EDIT "h['$UP']['dtype'] = 'F8_E5M2'"
	refused 65 "tensor '$UP': dtype F8_E5M2 is not one that can be loaded here"
}

# bats test_tags=slow
@test "a tied model whose embeddings and LM head are in FP8 loads if both are the same numbers; others exit 65" {
	mkdir -p "$T/q/expect"
	cp "$GOLDEN/qwen2/model/config.json" "$T/q"
	python3 - "$TOP/tests/lib" "$GOLDEN/qwen2/model" "$T/q" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from mksafetensors import SIZE, tensors_of, write_tensors
		from quantize import fp8
		SIZE["F8_E4M3"] = 1
		name, head = "model.embed_tokens.weight", "lm_head.weight"
		tensors = tensors_of(sys.argv[2])
		files, numbers = fp8(name, tensors[name][1], "blocks", (128, 128), "F32")
		write_tensors(sys.argv[3] + "/expect/model.safetensors", tensors | {name: ("F32", tensors[name][1], numbers)})
		tensors |= files | {n.replace(name, head): t for n, t in files.items()}
		write_tensors(sys.argv[3] + "/model.safetensors", tensors)
	END
	[ "$(jq .tie_word_embeddings "$T/q/config.json")" = true ]
	cp -r "$T/q" "$T/good"
	cp -r "$T/q" "$T/other"
	reads FP8
	mv "$T/other" "$T/q"
	EDIT "d[h['lm_head.weight_scale_inv']['data_offsets'][0]] ^= 1"
	refused 65 "tensor 'lm_head.weight': differs from its embeddings, but config.json ties them"
	EDIT "h['lm_head.weight_scale_inv']['shape'] = [1, 2]"
	refused 65 "lm_head.weight_scale_inv': its shape is not (2, 1), the scales of 'lm_head.weight'"
	EDIT "h['other'] = h.pop('lm_head.weight_scale_inv')"
	refused 65 "tensor 'lm_head.weight': is FP8, and its weight_scale_inv or weight_scale is missing"
}

# bats test_tags=slow
@test "FP8: scales and weights that are not finite exit 65" {
	anew fp8 qwen3 --block 16,16
	EDIT "at = h['${UP}_scale_inv']['data_offsets'][0]; d[at:at + 4] = struct.pack('<I', 0x7f800000)"
	refused 65 "tensor '${UP}_scale_inv': a scale is not finite"
	anew
	EDIT "d[h['$UP']['data_offsets'][0] + 5] = 0xff"
	refused_by_load 65 "tensor '$UP': element 5 is not a finite bf16"
	anew
	EDIT "at = h['${UP}_scale_inv']['data_offsets'][0]; d[at:at + 4] = struct.pack('<f', 3e38)
d[h['$UP']['data_offsets'][0]] = 0x7e"
	refused_by_load 65 "tensor '$UP': element 0 is not a finite bf16"
	rm -r "$T/good"
	anew fp8 qwen3 --block 16,16 --scale F8_E8M0
	EDIT "d[h['${UP}_scale_inv']['data_offsets'][0]] = 255"
	refused 65 "tensor '${UP}_scale_inv': a scale is not finite"
}

# bats test_tags=slow
@test "FP8: an invalid weight_block_size exits 65" {
	local size
	anew fp8 qwen3 --block 16,16
	for size in 0 '[16]' '[16, 0]' '[16, -1]' '[16, 16, 16]' '["a", 1]' '[1e9, 1]'; do
		ST json "$T/q/config.json" "j['quantization_config']['weight_block_size'] = $size"
		refused 65 "config.json: weight_block_size is not two whole numbers above 0"
	done
}

# bats test_tags=slow
@test "MXFP4: missing or damaged scales, and other shapes than config.json's, exit 65" {
	anew mxfp4 gpt-oss
	EDIT "h['x'] = h.pop('${DOWN}_scales')"
	refused 65 "tensor '${DOWN}_blocks': its _scales are missing"
	anew
	EDIT "h['x'] = h.pop('${DOWN}_blocks')"
	refused 65 "tensor '$DOWN': is missing"
	anew
	ADD_BYTE x_proj_scales
	refused 65 "tensor 'x_proj_scales': a scale without its quantized weight"
	anew
	EDIT "h['${DOWN}_scales']['shape'] = [5, 32, 2]"
	refused 65 "tensor '${DOWN}_scales': it is not U8 (5, 64, 1), the scales of '${DOWN}_blocks'"
	anew
	EDIT "h['${DOWN}_blocks']['shape'] = [5, 32, 2, 16]"
	refused 65 "tensor '${DOWN}_blocks': it is not U8 (5, 64, 1, 16), as config.json says"
	anew
	EDIT "h['${DOWN}_blocks']['dtype'] = 'I8'"
	refused 65 "tensor '${DOWN}_blocks': it is not U8"
	anew
	EDIT "d[h['${DOWN}_scales']['data_offsets'][0] + 70] = 255"
	refused_by_load 65 "tensor '${DOWN}_scales': a scale is 255, which is NaN"
	anew
	EDIT "d[h['${DOWN}_scales']['data_offsets'][0]] = 254; at = h['${DOWN}_blocks']['data_offsets'][0]
d[at:at + 16] = b'\\x11' * 15 + b'\\x71'"
	refused_by_load 65 "tensor '$DOWN': element 1984 is not a finite bf16"
}

@test "other quantizations exit 78 and are named" {
	local q
	ST make "$T/in"
	for q in "quant_method 'gptq'" "quant_method 'awq'" "quant_method 'bitsandbytes'" "format 'pack-quantized'" \
		"format 'nvfp4-pack-quantized'" "quant_algo 'NVFP4'" "quant_method ''"; do
		ST json "$T/in/config.json" "key, value = \"\"\"$q\"\"\".replace(\"'\", '').split(' ')
j['quantization_config'] = {'quant_method': 'compressed-tensors' if key == 'format' else 'modelopt'} | {key: value}"
		fails_with 78 mt-store create "$RUN" --config "$T/in"
		grep -qF "config.json: quantization_config is not supported: $q, only fp8, mxfp4 and" "$T/fails.err"
	done
}

# Tensors of X (weight, scale) with a dimension of 0, one of FP8's forms each, beside the model that is in $T/in
no_elements() {
	python3 - "$TOP/tests/lib" "$T/in" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		one, none = b"\0\0\x80\x3f", b""
		forms = {"a.weight": ([0, 128], "a.weight_scale_inv", [1, 1], one),
		         "b.weight": ([128, 0], "b.weight_scale_inv", [1], one),
		         "c.weight": ([0, 128], "c.weight_scale", [0, 1], none),
		         "d.weight": ([0, 0], "d.weight_scale", [], one),
		         "e.weight": ([0, 8], "e.scale", [0, 1], none),
		         "f.weight": ([8, 0], "f.qscale_weight", [], one),
		         "g.experts.gate_up_proj": ([0, 8, 8], "g.experts.gate_up_proj_scale_inv", [0, 1, 1], none),
		         "h.experts.gate_up_proj": ([2, 0, 8], "h.experts.gate_up_proj_scale_inv", [2, 0, 1], none),
		         "i.experts.down_proj": ([2, 8, 0], "i.experts.down_proj_scale_inv", [2, 1, 1], 2 * one)}
		tensors = read(sys.argv[2])
		for name, (shape, scale, scales, data) in forms.items():
		    tensors |= {name: ("F8_E4M3", shape, none), scale: ("F32", scales, data)}
		tensors |= {"j_blocks": ("U8", [0, 4, 2, 16], none), "j_scales": ("U8", [0, 4, 2], none)}
		write(sys.argv[2], tensors)
	END
}

@test "quantized tensors with a dimension of 0 are carried as bf16 or as they are, in each form" {
	python3 "$TOP/tests/lib/wrap.py" "$GOLDEN/llama3/model" "$T/in" llava
	no_elements
	make_run "$T/in" --dtype fp32
	mt-ckpt verify "$T/in"
	mt-ckpt export "$RUN" "$T/out"
	python3 - "$TOP/tests/lib" "$T/in" "$T/out" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read
		was, out = read(sys.argv[2]), read(sys.argv[3])
		empty = {name: t for name, t in was.items() if t[0] == "F8_E4M3" and not t[2]}
		assert len(empty) == 9 and all(out[n] == ("BF16", shape, b"") for n, (_, shape, _) in empty.items())
		assert out["j_blocks"] == was["j_blocks"] and not [n for n in out if "scale" in n and n[0] != "j"]
	END
}

@test "an LM head in FP8 with a dimension of 0, beside tied embeddings, exits 65" {
	local shape
	for shape in '[0, 128]' '[128, 0]' '[0, 0]'; do
		rm -rf "$T/in"
		cp -r "$GOLDEN/gemma/model" "$T/in"
		python3 - "$TOP/tests/lib" "$T/in" "$shape" <<-'END'
			import json, sys
			sys.path.insert(0, sys.argv[1])
			from wrap import read, write
			write(sys.argv[2], read(sys.argv[2]) | {"lm_head.weight": ("F8_E4M3", json.loads(sys.argv[3]), b""),
			      "lm_head.weight_scale_inv": ("F32", [1, 1], b"\0\0\x80\x3f")})
		END
		create "$RUN" --config "$T/in"
		fails_with 65 mt-ckpt load "$RUN" "$T/in"
		grep -q "tensor 'lm_head.weight': not of its embeddings' shape, but config.json ties them" "$T/fails.err"
		mt-store rm "$RUN"
	done
}

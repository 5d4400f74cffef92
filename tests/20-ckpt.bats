#!/usr/bin/env bats
# mt-ckpt: load and export Hugging Face directories, checkpoints, snapshots during training.

load helpers

ST() { python3 "$TOP/tests/lib/mksafetensors.py" "$@"; }
create() { mt-store create "$@" 2>"$T/create.err"; }

# The state of a run, without the fields that may differ between two runs with the same content
dump() { ckpt-dump "$1" | grep -v '^state'; }

# Load the tensors of DIR into a run of DTYPE and export them as fp32 to OUT: through DIR DTYPE OUT
through() {
	make_run "$1" --dtype "$2"
	mt-ckpt export "$RUN" "$3" --dtype fp32
	mt-store rm "$RUN"
}

# bats test_tags=nightly
@test "fp32 tensors pass through a bf16 run bit for bit, for every family" {
	for family in "$GOLDEN"/*/model; do
		through "$family" bf16 "$T/out"
		ST same "$family" "$T/out" --cast F32
		rm -r "$T/out"
	done
}

# bats test_tags=nightly
@test "fp32 tensors pass through an fp32 run bit for bit, for every family" {
	for family in "$GOLDEN"/*/model; do
		through "$family" fp32 "$T/out"
		ST same "$family" "$T/out" --cast F32
		rm -r "$T/out"
	done
}

@test "every finite F16 value is loaded exactly" {
	ST make "$T/in" --dtype F16 --every-pattern
	through "$T/in" bf16 "$T/out"
	ST same "$T/in" "$T/out" --cast F32
}

@test "every finite BF16 value is loaded exactly" {
	ST make "$T/in" --dtype BF16 --every-pattern
	through "$T/in" fp32 "$T/out"
	ST same "$T/in" "$T/out" --cast F32
}

@test "sharded weights are loaded through their index" {
	ST make "$T/in" --shards 3
	through "$T/in" bf16 "$T/out"
	ST same "$T/in" "$T/out"
	[ -e "$T/out/model.safetensors" ]
	[ ! -e "$T/out/model.safetensors.index.json" ]
}

# bats test_tags=slow
@test "a sharded export has an index with total_size and can be loaded" {
	ST make "$T/in"
	make_run "$T/in"
	mt-ckpt export "$RUN" "$T/out" --dtype fp32 --shard 3000
	[ "$(ls "$T/out" | grep -c '^model-000..-of-000...safetensors$')" -gt 3 ]
	ST json "$T/out/model.safetensors.index.json" "
import glob
files = [open(f, 'rb').read() for f in glob.glob('$T/out/*.safetensors')]
n = sum(len(f) - 8 - int.from_bytes(f[:8], 'little') for f in files)
assert j['metadata']['total_size'] == n, n"
	ST same "$T/in" "$T/out"
	mt-ckpt load "$RUN" "$T/out"
	mt-ckpt export "$RUN" "$T/again" --dtype fp32
	ST same "$T/in" "$T/again"
}

# bats test_tags=slow
@test "a bf16 export of an fp32 run rounds to nearest even" {
	ST make "$T/in"
	# values exactly between two bf16 numbers, rounded up and down to even; and the largest value below a tie
	ST edit "$T/in/model.safetensors" 'd[0:16] = struct.pack("<4I", 0x3f808000, 0x3f818000, 0x3f807fff, 0xbf818000)'
	make_run "$T/in" --dtype fp32
	mt-ckpt export "$RUN" "$T/out" --dtype bf16
	ST same "$T/in" "$T/out" --cast BF16
	mt-ckpt export "$RUN" "$T/fp32"
	ST same "$T/in" "$T/fp32" --cast F32
}

@test "a bf16 run exports its bf16 weights, in a file marked as PyTorch's" {
	ST make "$T/in" --dtype BF16
	make_run "$T/in"
	mt-ckpt export "$RUN" "$T/out"
	ST same "$T/in" "$T/out" --cast BF16
	ST edit "$T/out/model.safetensors" 'assert h["__metadata__"] == {"format": "pt"}'
}

# The dtypes of the tensors in DIR: of correction biases, of routers' weights, of all others
dtypes() {
	python3 - "$GOLDEN" "$1" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from records import read_safetensors
		parts = ["correction", "gate.weight", ""]
		kinds = {p: set() for p in parts}
		for name, tensor in read_safetensors(sys.argv[2] + "/model.safetensors").items():
		    kinds[next(p for p in parts if p in name)].add(tensor[0])
		print(*["/".join(sorted(kinds[p])) for p in parts])
	END
}

# bats test_tags=slow
@test "bf16 files keep correction biases in F32, and their routers in the dtype of the loaded file" {
	local c dtype
	for c in glm4-moe-bias ernie4-5-moe; do
		python3 "$TOP/tests/lib/truncate.py" "$GOLDEN/$c/model" "$T/$c"
		python3 "$TOP/tests/lib/truncate.py" "$GOLDEN/$c/model" "$T/$c-bf16" --routers
		for dtype in bf16 fp32; do
			make_run "$T/$c" --dtype $dtype
			mt-ckpt export "$RUN" "$T/$c-$dtype-out" --dtype bf16
			[ "$(dtypes "$T/$c-$dtype-out")" = "F32 F32 BF16" ]
			ST same "$T/$c" "$T/$c-$dtype-out"
			mt-ckpt load "$RUN" "$T/$c-bf16"
			mt-ckpt export "$RUN" "$T/$c-$dtype-routers" --dtype bf16
			[ "$(dtypes "$T/$c-$dtype-routers")" = "F32 BF16 BF16" ]
			ST same "$T/$c-bf16" "$T/$c-$dtype-routers"
			mt-store rm "$RUN"
		done
	done
}

@test "a bf16 checkpoint has exact correction biases and routers, and loads with the same state" {
	make_run "$GOLDEN/glm4-moe-bias/model"
	mt-ckpt save "$RUN" "$T/step"
	[ "$(dtypes "$T/step")" = "F32 F32 BF16" ]
	mt-ckpt verify "$T/step"
	dump "$RUN" >"$T/before"
	mt-ckpt export "$RUN" "$T/fp32" --dtype fp32
	mt-ckpt load "$RUN" "$T/step"
	dump "$RUN" | diff "$T/before" -
	mt-store rm "$RUN"
	make_run "$T/step" --dtype fp32
	mt-ckpt export "$RUN" "$T/again"
	ST same "$T/fp32" "$T/again"
}

@test "a tied model is exported without lm_head" {
	ST make "$T/in" --set tie_word_embeddings=true
	make_run "$T/in"
	mt-ckpt export "$RUN" "$T/out"
	[ "$(grep -c lm_head "$T/out/model.safetensors")" = 0 ]
}

@test "a tied model whose file has an identical lm_head is loaded" {
	ST make "$T/in" --set tie_word_embeddings=true
	ST edit "$T/in/model.safetensors" 'e = h["model.embed_tokens.weight"]; n = e["data_offsets"][1]
h["lm_head.weight"] = dict(e, data_offsets=[len(d), len(d) + n]); d += d[:n]'
	create "$RUN" --config "$T/in"
	run mt-ckpt load "$RUN" "$T/in"
	[ "$status" = 0 ]
	[ -z "$output" ]
}

# bats test_tags=slow
@test "names with another prefix or none, and tied embeddings called lm_head, are loaded and exported as usual" {
	local edit
	renamed() { # MKSAFETENSORS' OPTIONS
		rm -rf "$T/in" "$T/plain" "$T/out"
		ST make "$T/plain" "$@"
		cp -r "$T/plain" "$T/in"
		ST edit "$T/in/model.safetensors" "$edit"
		through "$T/in" fp32 "$T/out"
		ST same "$T/plain" "$T/out"
	}
	edit='h = {n.removeprefix("model."): t for n, t in h.items()}'
	renamed
	renamed --set 'architectures=["LlamaModel"]' --set tie_word_embeddings=true
	grep -q '"LlamaForCausalLM"' "$T/out/config.json"
	no grep -q '"LlamaModel"' "$T/out/config.json"
	edit='h = {n if n[0] == "_" else "model." + n.removeprefix("model."): t for n, t in h.items()}'
	renamed
	edit='h = {n if n[0] == "_" else "module." + n: t for n, t in h.items()}'
	renamed
	edit='h = {n.replace("model.", "model.language_model."): t for n, t in h.items()}'
	renamed
	renamed --set tie_word_embeddings=true
	edit='h = {n if n[0] == "_" else "language_model." + n: t for n, t in h.items()}'
	renamed
	edit='h["lm_head.weight"] = h.pop("model.embed_tokens.weight")'
	renamed --set tie_word_embeddings=true
	edit='h["model.lm_head.weight"] = h.pop("model.embed_tokens.weight")'
	renamed --set tie_word_embeddings=true
}

# bats test_tags=slow
@test "files of other classes and with other names load as AutoModelForCausalLM loads them, and exports open whole" {
	need_torch
	with_torch - "$T" "$RUN" <<'END'
import os, subprocess, sys, warnings
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import torch
import transformers as T
from safetensors.torch import load_file, save_file
T.utils.logging.disable_progress_bar()
where, run = sys.argv[1:]
small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=64, max_position_embeddings=64, pad_token_id=None)
def mt(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stderr
def same(kind, auto, rename=None, extra=None, **more):
    torch.manual_seed(1)
    src, out = where + "/src", where + "/out"
    subprocess.run(["rm", "-rf", src, out])
    config = T.AutoConfig.for_model(kind, **{**small, **more})
    auto.from_config(config).save_pretrained(src)
    if rename:
        f = src + "/model.safetensors"
        save_file({rename(n): t for n, t in load_file(f).items()}, f, {"format": "pt"})
    mt("mt-store", "create", run, "--config", src, "--dtype", "fp32")
    told = mt("mt-ckpt", "load", run, src)
    mt("mt-ckpt", "export", run, out)
    mt("mt-store", "rm", run)
    want = T.AutoModelForCausalLM.from_pretrained(src)
    have, info = T.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"], (kind, info)
    assert all(extra and n.startswith(extra) for n in info["unexpected_keys"]), (kind, info)
    assert have.config.architectures == [type(want).__name__], have.config.architectures
    a, b = want.state_dict(), have.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a), (kind, auto)
    assert (extra in told) if extra else not told, told
    _, info = auto.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"], (kind, info)
tied = dict(tie_word_embeddings=True)
Model, Sequence, Token = T.AutoModel, T.AutoModelForSequenceClassification, T.AutoModelForTokenClassification
Causal = T.AutoModelForCausalLM
same("llama", Causal, lambda n: n.removeprefix("model."))
same("llama", Model, **tied)
same("llama", Sequence, extra="score", **tied)
same("qwen2", Token, extra="score", **tied)
same("qwen2", Causal, lambda n: "lm_head.weight" if n == "model.embed_tokens.weight" else n, **tied)
same("mistral", Model, **tied)
same("gemma2", Model, head_dim=8, **tied)
same("gemma2", Sequence, extra="score", head_dim=8, **tied)
same("gpt_neox", Causal, lambda n: n.removeprefix("gpt_neox."))
same("gpt_neox", Model, **tied)
falcon = dict(multi_query=True, new_decoder_architecture=False)
same("falcon", Model, **falcon)
same("falcon", Causal, lambda n: "lm_head.weight" if n == "transformer.word_embeddings.weight" else n, **falcon)
same("mixtral", Causal, lambda n: n.removeprefix("model."))
same("gpt_oss", Model, head_dim=8, num_local_experts=4, **tied)
same("gpt2", Causal, lambda n: n.removeprefix("transformer."))
same("gpt_bigcode", Causal, lambda n: n.removeprefix("transformer."))
same("opt", Causal, lambda n: n.removeprefix("model."))
END
}

@test "where the names of tensors do not fit, the message has two names of the file" {
	misfit() { # EDIT WORDS
		rm -rf "$T/in"
		ST make "$T/in"
		ST edit "$T/in/model.safetensors" "$1"
		fails_with 65 mt-ckpt verify "$T/in"
		grep -qF "model.safetensors: tensor '$2" "$T/fails.err"
	}
	misfit 'h = {n.replace("embed_tokens", "tok_embeddings"): t for n, t in h.items()}' \
		"model.embed_tokens.weight': is missing; it has 'model.tok_embeddings.weight' and 'lm_head.weight'"
	misfit 'h = {n.replace("model.layers", "decoder.layers"): t for n, t in h.items()}' \
		"model.layers.0.input_layernorm.weight': is missing; it has 'decoder.layers.0.input_layernorm.weight' and 'dec"
	misfit 'h["score.weight"] = h.pop("lm_head.weight")' \
		"lm_head.weight': is missing; mt trains the LM head too"
	grep -qF "; it has 'score.weight' and '" "$T/fails.err"
}

@test "a tied model whose file has another head exits 65, also where the family's head has another name" {
	local case
	for case in llama2:lm_head.weight neox:embed_out.weight; do
		cp -r "$GOLDEN/${case%:*}/model" "$T/in"
		sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$T/in/config.json"
		create "$RUN" --config "$T/in"
		fails_with 65 mt-ckpt load "$RUN" "$T/in"
		grep -q "tensor '${case#*:}': differs from its embeddings, but config.json ties them" "$T/fails.err"
		mt-store rm "$RUN" --force 2>/dev/null
		rm -r "$T/in"
	done
}

@test "a family with rotary positions by type of layer is exported and loaded again, if all layers are of one type" {
	local layers
	for layers in 1 3; do
		sed "s/\"num_hidden_layers\": 3/\"num_hidden_layers\": $layers/" "$GOLDEN/gemma3/model/config.json" \
			>"$T/config.json"
		create "$RUN" --config "$T/config.json"
		mt-store init "$RUN" --seed 1 2>/dev/null
		mt-ckpt export "$RUN" "$T/out" 2>/dev/null
		mt-store rm "$RUN" --force 2>/dev/null
		make_run "$T/out"
		mt-store rm "$RUN" --force 2>/dev/null
		rm -r "$T/out"
	done
}

@test "load ignores rotary inv_freq and causal masks, and names other extra tensors in one line" {
	ST make "$T/in"
	ST edit "$T/in/model.safetensors" 'for k in ("model.layers.0.self_attn.rotary_emb.inv_freq", "one.more", "another",
		"gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.masked_bias", "h.0.attn.bias",
		"transformer.h.0.attn.masked_bias"):
    h[k] = {"dtype": "F32", "shape": [2], "data_offsets": [len(d), len(d) + 8]}; d += bytes(8)'
	create "$RUN" --config "$T/in"
	run mt-ckpt load "$RUN" "$T/in"
	[ "$status" = 0 ]
	[ "${#lines[@]}" = 1 ]
	[[ $output == mt-ckpt:*another*one.more* ]]
	[[ $output != *inv_freq* ]]
	[[ $output != *bias* ]]
}

# ---- files beside weights

@test "tokenizer, chat template and generation config are exported even if the source directory is gone" {
	ST make "$T/in"
	for f in tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json vocab.json \
		merges.txt chat_template.jinja generation_config.json; do
		printf '{"%s": "\303\244"}\n' "$f" >"$T/in/$f"
	done
	: >"$T/in/vocab.txt"
	echo no >"$T/in/README.md"
	mkdir "$T/in/tokenizer"
	cp -r "$T/in" "$T/copy"
	make_run "$T/in"
	rm -r "$T/in"
	mt-ckpt export "$RUN" "$T/out"
	for f in tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json vocab.json \
		merges.txt chat_template.jinja generation_config.json vocab.txt; do
		cmp "$T/copy/$f" "$T/out/$f"
	done
	[ ! -e "$T/out/README.md" ]
	[ ! -e "$T/out/tokenizer" ]
}

@test "all files beside weights and config.json are kept, in directories too; other models, runs and data are not" {
	local kept="tekken.json spiece.model sentencepiece.bpe.model qwen.tiktoken preprocessor_config.json
		processor_config.json tokenization_own.py LICENSE.md 1_Pooling/config.json
		additional_chat_templates/tool_use.jinja
		additional_chat_templates/rag.jinja"
	local others="README.md .gitattributes training_args.bin optimizer.pt rng_state_0.pth model.gguf tf_model.h5
		flax_model.msgpack model.onnx pytorch_model.bin.index.json adapter_config.json adapter_model.safetensors
		trainer_state.json events.out.tfevents.1.host.2.0 chats.jsonl chats.rec picture.png onnx/model.onnx
		onnx/tokenizer.json checkpoint-9/optimizer.pt checkpoint-9/vocab.json .cache/x.json a/b/c.json"
	ST make "$T/in"
	for f in $kept $others; do
		mkdir -p "$(dirname "$T/in/$f")"
		echo "$f" >"$T/in/$f"
	done
	mkdir "$T/elsewhere"
	echo secret >"$T/elsewhere/secret.json"
	ln -s "$T/elsewhere" "$T/in/link"
	make_run "$T/in"
	mv "$T/in" "$T/copy"
	mt-ckpt export "$RUN" "$T/out"
	mt-ckpt save "$RUN" "$T/ck"
	mt-ckpt verify "$T/ck"
	mt-store rm "$RUN"
	make_run "$T/ck"
	mkdir "$T/again"
	mt-ckpt export "$RUN" "$T/again"
	for f in $kept; do
		for dir in out ck again; do cmp "$T/copy/$f" "$T/$dir/$f"; done
	done
	for dir in out again; do
		(cd "$T/$dir" && find . -type f | sed 's|^./||' | sort) >"$T/has"
		printf '%s\n' config.json model.safetensors $kept | sort | diff - "$T/has"
		[ -z "$(find "$T/$dir" -type d -name '.*' ! -path "$T/$dir")" ]
	done
	mt-ckpt export "$RUN" "$T/out" --replace
	cmp "$T/copy/additional_chat_templates/rag.jinja" "$T/out/additional_chat_templates/rag.jinja"
}

@test "a link out of a model's directory is not kept, with a warning; links within it and in Hugging Face's cache are" {
	local model=$T/hub/models--a--b/snapshots/$(printf '%040d' 7) blobs=$T/hub/models--a--b/blobs f
	echo secret >"$T/secret"
	load_and_export() { # DIR: the export is $T/out
		rm -rf "$T/out"
		create "$RUN" --config "$1"
		mt-ckpt load "$RUN" "$1" 2>"$T/err"
		mt-ckpt export "$RUN" "$T/out"
		mt-store rm "$RUN"
	}
	ST make "$T/in"
	mkdir "$T/in/dir" "$T/in/.store"
	echo within >"$T/in/.store/file"
	ln -s .store/file "$T/in/vocab.json"
	ln -s "$T/in/.store/file" "$T/in/merges.txt"
	ln -s ../.store/file "$T/in/dir/x.jinja"
	ln -s ../secret "$T/in/notes.txt"
	ln -s "$T/secret" "$T/in/tokenizer.json"
	ln -s ../../secret "$T/in/dir/y.jinja"
	ln -s . "$T/in/here"
	ln -s here/../secret "$T/in/around.txt"
	load_and_export "$T/in"
	[ "$(cat "$T/err")" = "mt-ckpt: warning: around.txt is a link that leads out of the directory: it and 3 more \
are not kept, and exports are without them" ]
	no grep -rq secret "$T/out"
	for f in vocab.json merges.txt dir/x.jinja; do [ "$(cat "$T/out/$f")" = within ]; done
	mkdir -p "${model%/*}" "$blobs"
	ST make "$model"
	mkdir "$model/dir"
	for f in config.json model.safetensors vocab.json dir/x.jinja; do
		[ -e "$model/$f" ] || echo "$f" >"$model/$f"
		local hash=$(sha256sum "$model/$f" | head -c 64) up=../..
		mv "$model/$f" "$blobs/$hash"
		[ "$f" = "${f#dir}" ] || up=../../..
		ln -s "$up/blobs/$hash" "$model/$f"
	done
	echo ref >"$T/hub/models--a--b/refs"
	ln -s ../../refs "$model/notes.txt"
	mkdir "$blobs/dir"
	cp "$T/secret" "$blobs/dir/x"
	ln -s ../../blobs/dir/x "$model/y.txt"
	load_and_export "$model"
	[ "$(cat "$T/err")" = "mt-ckpt: warning: notes.txt is a link that leads out of the directory: it and 1 more \
are not kept, and exports are without them" ]
	for f in vocab.json dir/x.jinja; do [ "$(cat "$T/out/$f")" = "$f" ]; done
	[ ! -e "$T/out/notes.txt" ] && [ ! -e "$T/out/y.txt" ]
}

@test "export --from writes the model of a checkpoint, byte for byte as an export of its run; damaged ones exit 65" {
	local model
	for model in llama3 glm4-moe; do
		cp -r "$GOLDEN/$model/model" "$T/in"
		mkdir "$T/in/additional"
		echo one >"$T/in/tokenizer.json"
		echo two >"$T/in/additional/chat_template.jinja"
		make_run "$T/in"
		mt-ckpt save "$RUN" "$T/ck" --shard 6000
		mt-ckpt export "$RUN" "$T/want" --shard 6000
		mt-store rm "$RUN"
		mt-ckpt export --from "$T/ck" "$T/got"
		diff -r "$T/want" "$T/got"
		[ -e "$T/got/additional/chat_template.jinja" ]
		rm -r "$T/in" "$T/want"
		[ $model != llama3 ] || rm -r "$T/ck" "$T/got"
	done
	fails_with 73 mt-ckpt export --from "$T/ck" "$T/got"
	rm "$T/got/additional/chat_template.jinja"
	mt-ckpt export --from "$T/ck" "$T/got" --replace
	[ -e "$T/got/additional/chat_template.jinja" ]
	# the state is not read; a model that is damaged leaves the old one as it is
	rm "$T/ck"/optim-*
	mt-ckpt export --from "$T/ck" "$T/other"
	python3 - "$T/ck/model-00002-of-"*.safetensors <<-'PY'
		import sys
		with open(sys.argv[1], "r+b") as f:
		    f.seek(-7, 2)
		    byte = f.read(1)[0]
		    f.seek(-1, 1)
		    f.write(bytes([byte ^ 4]))
	PY
	fails_with 65 mt-ckpt export --from "$T/ck" "$T/other" --replace
	grep -q "model-00002-of-.*: chunk 0 (bytes 0 to [0-9]*) is damaged" "$T/fails.err"
	diff -r "$T/got" "$T/other"
	truncate -s -1 "$T/ck/config.json"
	fails_with 65 mt-ckpt export --from "$T/ck" "$T/new"
	rm "$T/ck/run.json"
	fails_with 65 mt-ckpt export --from "$T/ck" "$T/new"
	fails_with 65 mt-ckpt export --from "$GOLDEN/llama3/model" "$T/new"
	fails_with 66 mt-ckpt export --from "$T/none" "$T/new"
	fails_with 64 mt-ckpt export "$RUN" --from "$T/ck" "$T/new"
	fails_with 64 mt-ckpt export --from "$T/ck" "$T/new" --dtype fp32
	[ ! -e "$T/new" ]
	[ -z "$(find "$T" -maxdepth 1 -name '.*mt-tmp*')" ]
}

@test "files that are too large to keep are left out with a warning, whatever they are" {
	ST make "$T/in"
	truncate -s 129M "$T/in/tokenizer.json"
	echo x >"$T/in/vocab.json"
	echo x >"$T/in/$(printf 'x%.0s' $(seq 70)).json"
	create "$RUN" --config "$T/in"
	mt-ckpt load "$RUN" "$T/in" 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-ckpt: warning: tokenizer.json has more than 128 MiB: it and 1 more are not kept, \
and exports are without them" ]
	mt-ckpt export "$RUN" "$T/out"
	[ -z "$(find "$T/out" -name 'tokenizer*' -o -name 'x*')" ]
	[ -e "$T/out/vocab.json" ]
}

@test "a git-lfs pointer in place of weights, an index or a kept file exits 65 and is named" {
	local file
	ST make "$T/in" --shards 2
	create "$RUN" --config "$T/in"
	mkdir "$T/in/additional_chat_templates"
	for file in tokenizer.json chat_template.jinja additional_chat_templates/tool_use.jinja \
		model-00002-of-00002.safetensors model.safetensors.index.json; do
		[ ! -e "$T/in/$file" ] || mv "$T/in/$file" "$T/was"
		printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4976698672\n' 0 >"$T/in/$file"
		for command in "load $RUN" verify; do
			fails_with 65 mt-ckpt $command "$T/in"
			grep -q "^mt-ckpt: $file: is a git-lfs pointer, not the file itself: git lfs pull, " "$T/fails.err"
		done
		rm "$T/in/$file"
		[ ! -e "$T/was" ] || mv "$T/was" "$T/in/$file"
	done
	mt-ckpt load "$RUN" "$T/in"
}

@test "a second load replaces the kept files of the first" {
	ST make "$T/a"
	cp -r "$T/a" "$T/b"
	echo a >"$T/a/tokenizer.json"
	echo b >"$T/b/vocab.json"
	make_run "$T/a"
	mt-ckpt load "$RUN" "$T/b"
	mt-ckpt export "$RUN" "$T/out"
	[ -e "$T/out/vocab.json" ]
	[ ! -e "$T/out/tokenizer.json" ]
}

@test "config.json is exported in both dialects, with unknown keys and exact numbers kept" {
	ST make "$T/in" --set 'house={"rooms": [1, 2.5, null]}' --set rms_norm_eps=1e-05 --set third=0.1234567890123456 \
		--set 'rope_scaling={"type": "linear", "factor": 4.0}' --set rope_theta=500000.0
	make_run "$T/in"
	mt-ckpt export "$RUN" "$T/out"
	ST json "$T/out/config.json" '
assert j["house"] == {"rooms": [1, 2.5, None]} and j["rms_norm_eps"] == 1e-05 and j["third"] == 0.1234567890123456
assert j["dtype"] == j["torch_dtype"] == "bfloat16"
assert j["rope_theta"] == 500000.0
assert j["rope_scaling"] == {"type": "linear", "rope_type": "linear", "factor": 4.0}
assert j["rope_parameters"] == {"type": "linear", "rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}
assert j["tie_word_embeddings"] is False'
	mt-store rm "$RUN"
	create "$RUN" --config "$T/out"
	mt-ckpt load "$RUN" "$T/in"
}

@test "config.json is exported with the numbers that only Python parses" {
	ST make "$T/in" --set 'odd={"a": [NaN, -Infinity], "b": 123456789012345678901234567890, "c": "NaN"}' \
		--set big=9223372036854775808
	make_run "$T/in"
	mt-ckpt save "$RUN" "$T/out"
	mt-ckpt verify "$T/out"
	ST json "$T/out/config.json" '
a, b = j["odd"]["a"]
assert a != a and b == float("-inf") and j["odd"]["b"] == 123456789012345678901234567890 and j["odd"]["c"] == "NaN"
assert j["big"] == 1 << 63'
}

@test "a config.json of transformers 5 gains the keys of version 4" {
	make_run "$GOLDEN/llama3/model"
	mt-ckpt export "$RUN" "$T/out" --dtype fp32
	ST json "$T/out/config.json" '
p = j["rope_parameters"]
assert j["rope_theta"] == p["rope_theta"] == 500000.0
assert j["rope_scaling"] == {k: v for k, v in p.items() if k != "rope_theta"} and p["rope_type"] == "llama3"
assert j["dtype"] == j["torch_dtype"] == "float32"'
}

@test "an exported config.json states the head_dim that the original left out" {
	cp -r "$GOLDEN/mistral-v4/model" "$T/in"
	for left in '/"head_dim"/d' 's/"head_dim": 8/"head_dim": null/'; do
		sed "$left" "$GOLDEN/mistral-v4/model/config.json" >"$T/in/config.json"
		make_run "$T/in"
		mt-ckpt export "$RUN" "$T/out"
		ST json "$T/out/config.json" 'assert j["head_dim"] == 8'
		mt-store rm "$RUN"
		rm -r "$T/out"
	done
}

# bats test_tags=slow
@test "transformers reads the exported config as it reads the original" {
	need_transformers
	make_run "$GOLDEN/llama-linear/model"
	mt-ckpt export "$RUN" "$T/out" --dtype fp32
	"$PYTHON" - "$GOLDEN/llama-linear/model" "$T/out" <<-'END'
		import sys
		from transformers import AutoConfig
		a, b = (AutoConfig.from_pretrained(d).to_dict() for d in sys.argv[1:])
		keys = ["rope_theta", "rope_scaling"] if "rope_theta" in a else ["rope_parameters"]
		for k in keys + ["vocab_size", "tie_word_embeddings", "rms_norm_eps", "head_dim"]:
		    assert a[k] == b[k], (k, a[k], b[k])
	END
}

# ---- full state

@test "save, rm, create, load: every array, step, input position and reproducibility record are unchanged" {
	for how in "--dtype bf16" "--dtype fp32" "--dtype bf16 --state int8"; do
		for family in qwen3 llama-bias; do
			create "$RUN" --config "$GOLDEN/$family/model" $how
			ckpt-dump "$RUN" scribble 1 7
			dump "$RUN" >"$T/before"
			mt-ckpt save "$RUN" "$T/ck" --shard 10000
			mt-ckpt verify "$T/ck"
			mt-store rm "$RUN"
			create "$RUN" --config "$T/ck" $how
			mt-ckpt load "$RUN" "$T/ck"
			dump "$RUN" >"$T/after"
			diff "$T/before" "$T/after"
			grep -q '^step 7 t 6$' "$T/after"
			[ "$(grep -c '^choice' "$T/after")" = 3 ]
			mt-store rm "$RUN"
			rm -r "$T/ck"
		done
	done
}

@test "save, export and load by 1 thread and by 5 give the same files and the same state" {
	local n
	create "$RUN" --config "$CONFIGS/demo.json" --dtype fp32        # 20 MB an array: more than one chunk
	ckpt-dump "$RUN" scribble 2 5
	dump "$RUN" >"$T/before"
	for n in 1 5; do
		mt-ckpt save "$RUN" "$T/ck$n" --threads $n
		mt-ckpt save "$RUN" "$T/shards$n" --threads $n --shard 3M
		mt-ckpt export "$RUN" "$T/out$n" --threads $n --dtype bf16
		mt-ckpt verify "$T/shards$n" --threads $n
	done
	diff -r "$T/ck1" "$T/ck5"
	diff -r "$T/shards1" "$T/shards5"
	diff -r "$T/out1" "$T/out5"
	for n in 1 5; do
		ckpt-dump "$RUN" scribble 3 3
		mt-ckpt load "$RUN" "$T/shards5" --threads $n
		dump "$RUN" | diff "$T/before" -
	done
	fails_with 64 mt-ckpt verify "$T/ck1" --threads x
}

@test "verify by 1 thread and by 5 names the first of several damaged chunks" {
	local n
	create "$RUN" --config "$CONFIGS/demo.json" --dtype fp32
	ckpt-dump "$RUN" scribble 2 5
	mt-ckpt save "$RUN" "$T/ck"
	ST edit "$T/ck/model.safetensors" 'd[17000000] ^= 1'
	ST edit "$T/ck/optim-m.safetensors" 'd[1000000] ^= 1; d[17000000] ^= 1'
	for n in 1 5; do
		fails_with 65 mt-ckpt verify "$T/ck" --threads $n
		grep -q 'model.safetensors: chunk 1 .* is damaged' "$T/fails.err"
	done
}

@test "a save keeps an empty carry and a position with large hashes" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 4 3
	dump "$RUN" >"$T/before"
	grep -q ' 4294967295 24 4 1 9$' "$T/before"
	mt-ckpt save "$RUN" "$T/ck"
	ckpt-dump "$RUN" scribble 5 9
	mt-ckpt load "$RUN" "$T/ck"
	dump "$RUN" | diff "$T/before" -
}

@test "a checkpoint of a bf16 run gives the same state in an fp32 run, and the reverse" {
	create "$RUN" --config "$GOLDEN/qwen2/model" --dtype bf16
	ckpt-dump "$RUN" scribble 2 5
	dump "$RUN" >"$T/before"
	mt-ckpt save "$RUN" "$T/bf16"
	mt-ckpt export "$RUN" "$T/master" --dtype fp32
	mt-store rm "$RUN"
	make_run "$T/bf16" --dtype fp32
	mt-ckpt save "$RUN" "$T/fp32"
	ST same "$T/master" "$T/fp32" --cast F32
	mt-store rm "$RUN"
	make_run "$T/fp32" --dtype bf16
	dump "$RUN" | diff "$T/before" -
}

@test "load --weights loads the weights alone: step 0, zero moments, in a used run and in a new one" {
	create "$RUN" --config "$GOLDEN/qwen3/model" --dtype fp32
	ckpt-dump "$RUN" scribble 3 8
	mt-ckpt save "$RUN" "$T/ck"
	for n in 1 2; do
		mt-ckpt load "$RUN" "$T/ck" --weights
		ckpt-dump "$RUN" | grep -q '^step 0 t 0$'
		ckpt-dump "$RUN" | grep -q '^record 0 '
		mt-ckpt save "$RUN" "$T/again$n"
		ST same "$T/ck" "$T/again$n"
		ST zero "$T/again$n" optim-m
		ST zero "$T/again$n" optim-v
		mt-store rm "$RUN"
		create "$RUN" --config "$GOLDEN/qwen3/model" --dtype fp32
	done
}

@test "after a killed load of a checkpoint, a load of a bf16 model leaves lo, m and v zero" {
	strace -f -o /dev/null true 2>/dev/null || skip "needs strace"
	ST make "$T/in"
	create "$RUN" --config "$T/in" --dtype bf16
	ckpt-dump "$RUN" scribble 3 8
	mt-ckpt save "$RUN" "$T/ck"
	mt-ckpt export "$RUN" "$T/bf16"
	mt-store rm "$RUN"
	create "$RUN" --config "$T/in" --dtype bf16
	strace -o "$T/trace" -e trace=pread64 mt-ckpt load "$RUN" "$T/ck" --threads 1
	mt-store rm "$RUN"
	create "$RUN" --config "$T/in" --dtype bf16
	# killed at its last read, when it has loaded almost everything
	no strace -o /dev/null -e inject=pread64:signal=KILL:when="$(grep -c pread64 "$T/trace")" \
		mt-ckpt load "$RUN" "$T/ck" --threads 1
	ckpt-dump "$RUN" | grep -q '^state 1$'
	mt-ckpt load "$RUN" "$T/bf16"
	mt-ckpt save "$RUN" "$T/again"
	ST same "$T/bf16" "$T/again"
	for set in optim-lo optim-m optim-v; do ST zero "$T/again" $set; done
}

@test "load --new-record loads everything except the reproducibility record" {
	create "$RUN" --config "$GOLDEN/qwen3/model" --dtype fp32
	ckpt-dump "$RUN" scribble 3 8
	dump "$RUN" | grep -v -e ^record -e ^choice >"$T/before"
	mt-ckpt save "$RUN" "$T/ck"
	mt-store rm "$RUN"
	create "$RUN" --config "$T/ck" --dtype fp32
	mt-ckpt load "$RUN" "$T/ck" --new-record
	dump "$RUN" >"$T/after"
	grep -v -e ^record -e ^choice "$T/after" | diff "$T/before" -
	grep -q '^record 0 ' "$T/after"
	! grep -q ^choice "$T/after" || false
}

# names_flipped_bits [mt-store create's options]
names_flipped_bits() {
	create "$RUN" --config "$GOLDEN/qwen3/model" "$@"
	ckpt-dump "$RUN" scribble 3 8
	mt-ckpt save "$RUN" "$T/ck" --shard 20000
	mt-ckpt verify "$T/ck"
	for f in $(cd "$T/ck" && ls); do
		cp "$T/ck/$f" "$T/kept"
		python3 - "$T/ck/$f" <<-'END'
			import sys
			b = bytearray(open(sys.argv[1], "rb").read())
			# in run.json a bit of a digit, because white space may change unnoticed
			at = b.index(b'"step": 8') + 8 if sys.argv[1].endswith("run.json") else len(b) * 2 // 3
			b[at] ^= 1
			open(sys.argv[1], "wb").write(b)
		END
		fails_with 65 mt-ckpt verify "$T/ck"
		grep -q "^mt-ckpt: $f: " "$T/fails.err"
		[ "$f" = run.json ] || grep -q "chunk 0 " "$T/fails.err"
		fails_with 65 mt-ckpt load "$RUN" "$T/ck"
		cp "$T/kept" "$T/ck/$f"
	done
	mt-ckpt verify "$T/ck"
}

# bats test_tags=slow
@test "verify names the file of a flipped bit, whichever file it is in" {
	names_flipped_bits
}

# bats test_tags=slow
@test "int8 state: verify names the file of a flipped bit, whichever file it is in" {
	names_flipped_bits --state int8
}

# bats test_tags=slow
@test "verify names the chunk of a flipped bit" {
	mkdir "$T/in"
	sed 's/"vocab_size": [0-9]*/"vocab_size": 600000/' "$GOLDEN/llama2/model/config.json" >"$T/in/config.json"
	create "$RUN" --config "$T/in" --dtype fp32
	ckpt-dump "$RUN" scribble 3 8
	mt-ckpt save "$RUN" "$T/ck"
	printf 'x' | dd of="$T/ck/optim-m.safetensors" bs=1 seek=$((16 * 1048576 + 5)) conv=notrunc status=none
	fails_with 65 mt-ckpt verify "$T/ck"
	grep -q 'optim-m.safetensors: chunk 1 (bytes 16777216 to 33554431) is damaged' "$T/fails.err"
}

@test "a checkpoint with a missing file or extra bytes is refused" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 3 8
	mt-ckpt save "$RUN" "$T/ck"
	mv "$T/ck/optim-v.safetensors" "$T/aside"
	fails_with 65 mt-ckpt verify "$T/ck"
	mv "$T/aside" "$T/ck/optim-v.safetensors"
	printf x >>"$T/ck/config.json"
	fails_with 65 mt-ckpt verify "$T/ck"
}

@test "verify checks a plain Hugging Face directory against its config" {
	ST make "$T/in" --shards 2
	mt-ckpt verify "$T/in"
	ST json "$T/in/config.json" 'j["intermediate_size"] = 28'
	fails_with 65 mt-ckpt verify "$T/in"
	grep -q "tensor 'model.layers.0.mlp.gate_proj.weight': shape (24, 16)" "$T/fails.err"
}

# ---- refused operations

@test "RUN can come from MT_RUN, and options are accepted anywhere" {
	ST make "$T/in"
	create "$RUN" --config "$T/in"
	export MT_RUN=$RUN
	mt-ckpt load "$T/in"
	mt-ckpt export --dtype fp32 "$T/out"
	ST same "$T/in" "$T/out"
}

@test "wrong usage exits 64" {
	fails_with 64 mt-ckpt
	fails_with 64 mt-ckpt unload x y
	fails_with 64 mt-ckpt load
	fails_with 64 mt-ckpt load "$RUN" "$T" --dtype bf16
	fails_with 64 mt-ckpt export "$RUN" "$T/x" --dtype fp16
	fails_with 64 mt-ckpt serve "$RUN"
	fails_with 64 mt-ckpt serve "$RUN" --dir "$T" --keep 0
	fails_with 64 mt-ckpt verify
}

@test "serve exits 77 at once if it may not write to its directory" {
	ST make "$T/in"
	make_run "$T/in"
	mkdir -m 555 "$T/ck"
	fails_with 77 by_mode timeout 20 "$MT/mt-ckpt" serve "$RUN" --dir "$T/ck"
	grep -q "^mt-ckpt: $T/ck: Permission denied$" "$T/fails.err"
}

@test "a model without safetensors exits 66, and of pytorch_model.bin the message says how to convert it" {
	local file
	ST make "$T/in"
	create "$RUN" --config "$T/in"
	rm "$T/in/model.safetensors"
	fails_with 66 mt-ckpt load "$RUN" "$T/in"
	no grep pytorch_model.bin "$T/fails.err"
	for file in pytorch_model.bin pytorch_model.bin.index.json; do
		touch "$T/in/$file"
		fails_with 66 mt-ckpt load "$RUN" "$T/in"
		grep -q "model.safetensors: No such file or directory; mt does not read pytorch_model.bin: .*save_pretrained" \
			"$T/fails.err"
		rm "$T/in/$file"
	done
}

@test "a missing run or directory exits 66" {
	fails_with 66 mt-ckpt load "$RUN" "$T"
	fails_with 66 mt-ckpt export "$RUN" "$T/x"
	fails_with 66 mt-ckpt verify "$T/nowhere"
	fails_with 66 mt-ckpt verify "$T"
	ST make "$T/in"
	create "$RUN" --config "$T/in"
	fails_with 66 mt-ckpt load "$RUN" "$T/nowhere"
	mt-ckpt load "$RUN" "$T/in"
	fails_with 66 mt-ckpt export "$RUN" "$T/no/where"
}

@test "a run without weights cannot be saved" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	fails_with 65 mt-ckpt export "$RUN" "$T/out"
	fails_with 65 mt-ckpt save "$RUN" "$T/out"
	ckpt-dump "$RUN" state 1
	fails_with 75 mt-ckpt export "$RUN" "$T/out"
	ckpt-dump "$RUN" state 3
	fails_with 65 mt-ckpt export "$RUN" "$T/out"
	[ ! -e "$T/out" ]
}

@test "save refuses a run whose step is being applied, and saves one whose accumulation was abandoned" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 4
	ckpt-dump "$RUN" open 2
	fails_with 75 mt-ckpt export "$RUN" "$T/out"
	fails_with 75 mt-ckpt save "$RUN" "$T/out"
	[ ! -e "$T/out" ]
	ckpt-dump "$RUN" scribble 1 4
	ckpt-dump "$RUN" open 1
	mt-ckpt save "$RUN" "$T/out"
	grep -q '"step": 4,' "$T/out/run.json"
}

@test "save exits 73 for a directory that is not empty, and uses an empty one" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 1
	mkdir "$T/full" "$T/empty"
	echo x >"$T/full/x"
	fails_with 73 mt-ckpt export "$RUN" "$T/full"
	fails_with 73 mt-ckpt save "$RUN" "$T/full/x"
	[ "$(ls -A "$T/full")" = x ]
	(cd "$T" && mt-ckpt export "$RUN" empty/)
	[ -e "$T/empty/model.safetensors" ]
	(cd "$T" && mt-ckpt save "$RUN" new)
	mt-ckpt verify "$T/new"
	[ -z "$(find "$T" -name '*mt-tmp*')" ]
}

@test "load refuses a run with working stages" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 1
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck"
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	fails_with 75 mt-ckpt load "$RUN" "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" | grep -q '^step 1 '
	ckpt-dump "$RUN" | grep -q '^state 2$'
}

# bats test_tags=slow
@test "load of a config that differs from the run's exits 65, names the key and leaves the run unchanged" {
	ST make "$T/in"
	make_run "$T/in"
	dump "$RUN" >"$T/before"
	for change in hidden_size=32 num_hidden_layers=1 rope_theta=500.0 rms_norm_eps=0.001 tie_word_embeddings=true \
		vocab_size=33 attention_bias=true; do
		ST make "$T/other" --set $change
		fails_with 65 mt-ckpt load "$RUN" "$T/other"
		grep -q "config.json: ${change%=*} " "$T/fails.err"
	done
	dump "$RUN" | diff "$T/before" -
	ckpt-dump "$RUN" | grep -q '^state 2$'
}

# bats test_tags=slow
@test "load refuses weights that are not finite and leaves the run empty" {
	for bits in 0x7fc00000 0xff800000 0x7f7fffff; do        # the last is beyond bf16
		ST make "$T/in"
		ST edit "$T/in/model.safetensors" "d[-4:] = struct.pack('<I', $bits)"
		create "$RUN" --config "$T/in"
		fails_with 65 mt-ckpt load "$RUN" "$T/in"
		grep -q "tensor 'lm_head.weight': element 511 is not a finite bf16" "$T/fails.err"
		ckpt-dump "$RUN" | grep -q '^state 0$'
		mt-store rm "$RUN"
	done
}

@test "a run whose weights are not finite is saved, exported and loaded again, with one warning each time" {
	warns() { # COMMAND...: it succeeds, and its one line is the warning
		"$@" 2>"$T/warn"
		[ "$(cat "$T/warn")" = \
			"mt-ckpt: warning: 2 weights are infinite or NaN, the first of them in 'model.embed_tokens.weight'" ]
	}
	for dtype in bf16 fp32; do
		create "$RUN" --config "$GOLDEN/llama2/model" --dtype $dtype
		ckpt-dump "$RUN" scribble 1 4
		ckpt-dump "$RUN" poke model.embed_tokens.weight 7 7fc00000
		ckpt-dump "$RUN" poke model.norm.weight 1 ff800000
		dump "$RUN" >"$T/was"
		rm -rf "$T/ck" "$T/out" "$T/out2"
		warns mt-ckpt save "$RUN" "$T/ck"
		warns mt-ckpt export "$RUN" "$T/out"
		warns mt-ckpt export "$RUN" "$T/out2" --dtype $([ $dtype = bf16 ] && echo fp32 || echo bf16)
		mt-ckpt verify "$T/ck"
		mt-store rm "$RUN"
		create "$RUN" --config "$T/ck" --dtype $dtype
		warns mt-ckpt load "$RUN" "$T/ck"
		dump "$RUN" | cmp - "$T/was"
		fails_with 65 mt-ckpt load "$RUN" "$T/ck" --weights     # training cannot start from them
		fails_with 65 mt-ckpt load "$RUN" "$T/out"
		mt-store rm "$RUN"
	done
}

@test "after a killed load the run can be loaded again" {
	ST make "$T/in"
	create "$RUN" --config "$T/in"
	ckpt-dump "$RUN" scribble 1 4
	ckpt-dump "$RUN" state 1
	mt-ckpt load "$RUN" "$T/in"
	mt-ckpt export "$RUN" "$T/out" --dtype fp32
	ST same "$T/in" "$T/out"
}

# ---- full disks

@test "save and export into an existing empty directory keep that directory: a mount point or the caller's own" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 1
	mkdir "$T/here" && chmod 750 "$T/here"
	(cd "$T/here" && mt-ckpt save "$RUN" . && [ -f config.json ] && [ -f ../here/config.json ])
	mt-ckpt verify "$T/here"
	[ "$(stat -c %a "$T/here")" = 750 ]
	mkdir -p "$T/left/.files.mt-tmp-0123abcd"          # left by a dead process
	echo x >"$T/left/.files.mt-tmp-0123abcd/config.json"
	mt-ckpt export "$RUN" "$T/left"
	mt-ckpt verify "$T/left"
	[ -z "$(find "$T" -name '*mt-tmp*')" ]
	full_disk 4M
	mt-ckpt export "$RUN" "$T/disk"
	mt-ckpt verify "$T/disk"
}

@test "a failed export into an empty directory leaves it empty" {
	make_run "$GOLDEN/llama2/model"
	mkdir "$T/out"
	fails_with 74 bash -c "ulimit -f 8; exec mt-ckpt export $RUN $T/out"
	[ -d "$T/out" ]
	[ -z "$(ls -A "$T/out")" ]
}

@test "a save or export into an empty directory that is killed or fails at any rename never looks complete" {
	strace -o /dev/null true 2>/dev/null || skip "needs strace"
	make_run "$GOLDEN/llama2/model"
	for n in $(seq 7); do               # six files and config.json
		for how in signal=KILL error=EIO; do
			rm -rf "$T/out" && mkdir "$T/out"
			if strace -o /dev/null -e inject=renameat2:$how:when=$n mt-ckpt save "$RUN" "$T/out"; then return 1; fi \
				2>/dev/null
			if mt-ckpt verify "$T/out"; then return 1; fi 2>/dev/null
			[ ! -e "$T/out/config.json" ]
			[ $how = signal=KILL ] || [ -z "$(ls -A "$T/out")" ]
		done
	done
	rm -rf "$T/out" && mkdir "$T/out"   # a file system without RENAME_NOREPLACE
	strace -o /dev/null -e inject=renameat2:error=EINVAL mt-ckpt save "$RUN" "$T/out"
	mt-ckpt verify "$T/out"
}

@test "an export or save to a full disk exits 74 and leaves no files" {
	full_disk 128k
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 4
	fails_with 74 mt-ckpt save "$RUN" "$T/disk/ck"
	[ -z "$(ls -A "$T/disk")" ]
}

@test "an export or save beyond the file size limit exits 74 and leaves no files" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 4
	fails_with 74 bash -c "ulimit -f 8; exec mt-ckpt export $RUN $T/out"
	[ ! -e "$T/out" ]
	[ -z "$(find "$T" -name '*mt-tmp*')" ]
}

@test "a save that fails on a full disk is reported, the checkpoint before it stays, and the saver continues" {
	full_disk 500k          # space for one checkpoint, not for two
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 1
	spawn serve mt-ckpt serve "$RUN" --dir "$T/disk" --keep 1
	[ "$(ckpt-snap "$RUN" 1)" = saved ]
	ckpt-dump "$RUN" advance 2 2
	[ "$(ckpt-snap "$RUN" 2)" = failed ]
	grep -q '^mt-ckpt: step 2 is not saved: .*No space left' "$T/serve.err"
	mt-ckpt verify "$T/disk/step-00000001"
	[ "$(ls -A "$T/disk" | sort | tr '\n' ' ')" = "step-00000001 " ]
	ckpt-snap "$RUN" word | grep -q '^2 failed 1 1$'
	mv "$T/disk/step-00000001" "$T/aside"
	ckpt-dump "$RUN" advance 3 3
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	mt-ckpt verify "$T/disk/step-00000003"
	end "$PID"
}

# ---- snapshots

serve() { spawn serve mt-ckpt serve "$RUN" --dir "$T/ck" "$@"; }

# The checkpoint of STEP holds the state in file BEFORE (position and t are the snapshot's)
holds() { # STEP BEFORE
	mt-store rm "$RUN"
	create "$RUN" --config "$T/ck/step-0000000$1" --dtype bf16
	mt-ckpt verify "$T/ck/step-0000000$1"
	mt-ckpt load "$RUN" "$T/ck/step-0000000$1"
	dump "$RUN" | diff "$2" -
}

@test "a snapshot holds the pinned state although units are overwritten as soon as their pins are released" {
	create "$RUN" --config "$GOLDEN/qwen3/model"
	ckpt-dump "$RUN" scribble 7 7
	dump "$RUN" >"$T/before"
	serve
	[ "$(ckpt-snap "$RUN" 7)" = saved ]
	ckpt-snap "$RUN" word | grep -q '^7 saved 1 0$'
	[ "$(dump "$RUN")" != "$(cat "$T/before")" ]
	end "$PID"
	[ ! -s "$T/serve.err" ]
	holds 7 "$T/before"
}

@test "--keep deletes older checkpoints after a new one is complete, and leaves later ones" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	mkdir -p "$T/ck/step-00000009" "$T/ck/step-1"
	ckpt-dump "$RUN" scribble 1 1
	serve --keep 2
	for i in 1 2 3 4; do
		ckpt-dump "$RUN" advance $i $i
		[ "$(ckpt-snap "$RUN" $i)" = saved ]
	done
	eventually sh -c "[ \"\$(ls -A $T/ck | tr '\n' ' ')\" = 'step-00000003 step-00000004 step-00000009 step-1 ' ]"
}

@test "a checkpoint of the same step is replaced" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	mkdir -p "$T/ck/step-00000003/sub"
	echo old >"$T/ck/step-00000003/sub/old"
	ckpt-dump "$RUN" scribble 3 3
	serve
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	mt-ckpt verify "$T/ck/step-00000003"
	eventually sh -c "[ \"\$(ls -A $T/ck)\" = step-00000003 ]"
	[ ! -e "$T/ck/step-00000003/sub" ]
}

# bats test_tags=slow
@test "a snapshot that is abandoned during its save leaves no file, and the saver continues" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 3 3
	strace -o /dev/null true 2>/dev/null || skip "needs strace"
	# slow enough that the probe gives up before the saver seals
	spawn serve strace -D -o /dev/null -e inject=fsync:delay_enter=300000 mt-ckpt serve "$RUN" --dir "$T/ck"
	[ "$(ckpt-snap "$RUN" 3 give-up 0)" = failed ]
	eventually grep -q 'step 3 is not saved: the snapshot was given up' "$T/serve.err"
	eventually sh -c "[ -z \"\$(ls -A $T/ck)\" ]"
	ckpt-dump "$RUN" advance 4 4
	[ "$(ckpt-snap "$RUN" 4)" = saved ]
}

@test "a new saver saves a snapshot of which no pin was released" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 5 5
	dump "$RUN" >"$T/before"
	ckpt-snap "$RUN" 5 pin
	serve
	eventually sh -c "ckpt-snap $RUN word | grep -q '^5 saved 1 0$'"
	end "$PID"
	holds 5 "$T/before"
}

@test "a new saver fails a snapshot of which a pin was released, and cleans up" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 5 5
	ckpt-snap "$RUN" 5 pin
	ckpt-snap "$RUN" 5 unpin 0
	mkdir -p "$T/ck/.step-00000005.mt-tmp-0123abcd" "$T/ck/.step-00000002.mt-tmp-old"
	echo x >"$T/ck/.step-00000005.mt-tmp-0123abcd/x"
	serve
	eventually sh -c "ckpt-snap $RUN word | grep -q '^5 failed 0 1$'"
	[ -z "$(ls -A "$T/ck")" ]
	grep -q 'step 5 is not saved: its saver died' "$T/serve.err"
}

@test "a new saver that finds a sealed snapshot checks whether its directory is complete" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 5 5
	mkdir "$T/ck"
	mt-ckpt save "$RUN" "$T/ck/step-00000005"
	ckpt-snap "$RUN" 5 seal
	serve
	eventually sh -c "ckpt-snap $RUN word | grep -q '^5 saved 1 0$'"
	end "$PID"
	rm -r "$T/ck/step-00000005"
	ckpt-snap "$RUN" 6 seal
	serve
	eventually sh -c "ckpt-snap $RUN word | grep -q '^6 failed 1 1$'"
}

@test "SIGTERM lets a saver finish the save that was requested" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 5 5
	serve
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	kill -STOP "$PID"
	ckpt-snap "$RUN" 5 pin
	kill -TERM "$PID"
	kill -CONT "$PID"
	wait "$PID"
	mt-ckpt verify "$T/ck/step-00000005"
	ckpt-snap "$RUN" word | grep -q '^5 saved 1 0$'
}

@test "a saver leaves the temporary directory of another live saver alone" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 5 5
	need_cmd flock
	mkdir -p "$T/ck/.step-00000005.mt-tmp-0123abcd" "$T/ck/.step-00000006.mt-tmp-0123abcd"
	flock "$T/ck/.step-00000005.mt-tmp-0123abcd" sleep 60 3>&- &
	echo $! >>"$T/pids"
	eventually sh -c "! flock -n $T/ck/.step-00000005.mt-tmp-0123abcd true"
	serve
	eventually sh -c "[ \"\$(ls -A $T/ck)\" = .step-00000005.mt-tmp-0123abcd ]"
}

@test "a saver exits 0 on SIGTERM, and when its run is removed" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 5 5
	serve
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	fails_with 75 mt-ckpt serve "$RUN" --dir "$T/ck"
	end "$PID"
	serve
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	mt-store rm "$RUN" --force
	wait "$PID"
	spawn serve mt-ckpt serve "$RUN" --dir "$T/other"       # a run that is never made
	eventually test -d "$T/other"
	end "$PID"
	[ ! -e "$T/other" ]                                     # no directory was made
	[ ! -s "$T/serve.err" ]
}

# ---- convert --resize-vocab

resized() { "$PYTHON" "$TOP/tests/lib/resized.py" "$@"; }
# N rows for the model FROM: rows FROM N OPTIONS...
rows() {
	rm -rf "$T/new"
	mt-ckpt convert "$1" "$T/new" --resize-vocab "${@:2}"
}

@test "convert --resize-vocab appends the mean of all rows or cuts the last ones, and keeps all else byte for byte" {
	local dtype n
	for dtype in F32 BF16 F16; do
		ST make "$T/in" --dtype $dtype --shards 3 --set pad_token_id=31
		echo '{}' >"$T/in/tokenizer.json"
		for n in 1 31 32 45; do
			rows "$T/in" $n
			resized "$T/in" "$T/new" $n
			[ "$(cat "$T/new/tokenizer.json")" = '{}' ]
			[ "$(value pad_token_id <"$T/new/config.json")" = "$([ $n -lt 32 ] && echo None || echo 31)" ]
		done
		rows "$T/in" 33 --multiple-of 64
		resized "$T/in" "$T/new" 64
		rm -r "$T/in"
	done
}

@test "convert --resize-vocab keeps tied heads tied, and resizes biases, own inputs of blocks, wrappers, heads of MTP" {
	local case
	for case in qwen3 phi gemma4-e gemma4-e-wrapper; do
		rows "$GOLDEN/$case/model" 140
		resized "$GOLDEN/$case/model" "$T/new" 140
	done
	cp -r "$GOLDEN/glm4-moe/model" "$T/in"
	python3 - "$TOP/tests/lib" "$T/in" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read, write
		t = read(sys.argv[2])
		t["model.layers.7.embed_tokens.weight"] = t["model.embed_tokens.weight"]
		t["model.layers.7.shared_head.head.weight"] = t["lm_head.weight"]
		write(sys.argv[2], t)
	END
	rows "$T/in" 90
	resized "$T/in" "$T/new" 90
}

# bats test_tags=slow
@test "convert --resize-vocab makes what transformers' resize_token_embeddings makes, but for the noise in new rows" {
	need_torch
	local case n
	for case in llama3 qwen3 phi gemma4-e-wrapper; do
		for n in 90 140; do
			rows "$GOLDEN/$case/model" $n
			TRANSFORMERS_VERBOSITY=error with_torch "$TOP/tests/lib/resized.py" "$GOLDEN/$case/model" "$T/new" $n \
				--transformers
		done
	done
}

@test "a run trains on new tokens after convert --resize-vocab, of a checkpoint too, and not before" {
	words "$T/data" 4 1 2 110 3
	documents 60 30 >>"$T/data"
	make_run "$GOLDEN/llama3/model"
	mt-ckpt save "$RUN" "$T/ck"
	mt-store rm "$RUN"
	fails_with 65 mt-feed --check --config "$T/ck/config.json" "$T/data"
	grep -q "token 110 is outside the vocabulary of 101; mt-ckpt convert --resize-vocab " "$T/fails.err"
	rows "$T/ck" 111
	[ ! -e "$T/new/run.json" ]
	resized "$T/ck" "$T/new" 111
	make_run "$T/new"
	start_stages
	mt-step "$RUN" --steps 3 --batch 8 --seq 64 --lr 1e-3 <"$T/data" >"$T/metrics"
	mt-ckpt export "$RUN" "$T/out"
	python3 - "$TOP/tests/lib" "$T/out" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from wrap import read
		dtype, (n, d), data = read(sys.argv[2])["model.embed_tokens.weight"]
		rows = [data[i * d * 2:(i + 1) * d * 2] for i in range(n)]
		assert rows[108] == rows[109] != rows[110]
	END
}

@test "convert: wrong options exit 64, damage 65, a full directory 73, and nothing is left" {
	ST make "$T/in"
	fails_with 64 mt-ckpt convert "$T/in" "$T/new"
	fails_with 64 mt-ckpt convert "$T/new" --resize-vocab 40
	fails_with 64 mt-ckpt convert "$T/in" "$T/new" --resize-vocab 0
	fails_with 64 mt-ckpt load "$T/in" --resize-vocab 40
	fails_with 66 mt-ckpt convert "$T/none" "$T/new" --resize-vocab 40
	mkdir "$T/full"
	echo x >"$T/full/x"
	fails_with 73 mt-ckpt convert "$T/in" "$T/full" --resize-vocab 40
	truncate -s -1 "$T/in/model.safetensors"
	fails_with 65 mt-ckpt convert "$T/in" "$T/new" --resize-vocab 40
	[ ! -e "$T/new" ]
	[ -z "$(find "$T" -maxdepth 1 -name '.*mt-tmp*')" ]
}

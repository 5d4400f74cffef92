#!/usr/bin/env bats
# Damaged and malicious files: load and verify refuse each of them with one line and the documented exit code, and leave
# no files.

load helpers

ST() { python3 "$TOP/tests/lib/mksafetensors.py" "$@"; }
EDIT() { ST edit "$IN/model.safetensors" "$1"; }

setup() {
	T=$BATS_TEST_TMPDIR
	RUN=$(mt_run_name)
	IN=$T/in
	: >"$T/pids"
	ST make "$IN"
}

# load and verify refuse $IN with CODE and one line that contains WORDS; the run stays empty
refused() { # CODE WORDS
	mt-store create "$RUN" --config "$GOOD" 2>"$T/create.err"
	fails_with "$1" mt-ckpt load "$RUN" "$IN"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	ckpt-dump "$RUN" | grep -q '^state 0$'
	[ ! -e "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.files" ]
	mt-store rm "$RUN"
	gone "$RUN"
	fails_with "$1" mt-ckpt verify "$IN"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
}

# mt-store create and verify refuse $IN's config.json, and no run is made
config_refused() { # CODE WORDS
	fails_with "$1" mt-store create "$RUN" --config "$IN"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	gone "$RUN"
	fails_with "$1" mt-ckpt verify "$IN"
	grep -qF "$2" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
}

CONFIG() { ST json "$IN/config.json" "$1"; }

setup_file() {
	export GOOD=$BATS_FILE_TMPDIR/good
	python3 "$BATS_TEST_DIRNAME/lib/mksafetensors.py" make "$GOOD"
}

# ---- the file as a whole

@test "a missing model.safetensors exits 66" {
	rm "$IN/model.safetensors"
	refused 66 "model.safetensors: "
}

@test "an empty file exits 65" {
	: >"$IN/model.safetensors"
	refused 65 "0 bytes are too few for a safetensors file"
}

@test "a file truncated in its header exits 65" {
	truncate -s 100 "$IN/model.safetensors"
	refused 65 "past end of file"
}

@test "a file truncated in its last tensor exits 65" {
	truncate -s -1 "$IN/model.safetensors"
	refused 65 "tensor 'lm_head.weight': offsets past end of file"
}

@test "a file with extra bytes after its last tensor exits 65" {
	printf x >>"$IN/model.safetensors"
	refused 65 "1 byte at its end belongs to no tensor"
}

@test "an absurd header length exits 65" {
	for n in '\377\377\377\377\377\377\377\377' '\000\000\000\000\000\000\000\200' \
		'\001\341\365\005\000\000\000\000'; do
		printf "$n" | dd of="$IN/model.safetensors" conv=notrunc status=none
		refused 65 "is too large"
	done
}

@test "a header of zero bytes exits 65" {
	printf '\0\0\0\0\0\0\0\0' >"$IN/model.safetensors"
	refused 65 "header does not begin with '{'"
}

@test "a header that is not JSON exits 65" {
	ST raw "$IN/model.safetensors" '{"a": '
	refused 65 "model.safetensors: header: "
}

@test "a header of NULs and control characters exits 65, and the message has no control characters" {
	python3 -c 'import sys; sys.stdout.buffer.write((9).to_bytes(8, "little") + b"{\"\x1b[2J\n\0\0")' \
		>"$IN/model.safetensors"
	refused 65 "model.safetensors: header: "
	[ "$(tr -d '\n -~' <"$T/fails.err" | wc -c)" = 0 ]
}

@test "a header that is a list exits 65" {
	ST raw "$IN/model.safetensors" ' []'
	refused 65 "header does not begin with '{'"
}

@test "a header nested 100000 levels deep exits 65" {
	ST raw "$IN/model.safetensors" "{\"a\":$(printf '%0100000d' 0 | tr 0 '[')"
	refused 65 "model.safetensors: header: "
}

@test "a FIFO in place of the file exits 65 without waiting" {
	rm "$IN/model.safetensors"
	mkfifo "$IN/model.safetensors"
	refused 65 "model.safetensors: a FIFO, not a regular file"
}

@test "a directory in place of the file exits 65" {
	rm "$IN/model.safetensors"
	mkdir "$IN/model.safetensors"
	refused 65 "model.safetensors: a directory, not a regular file"
}

@test "a device in place of the file exits 65" {
	ln -sf /dev/zero "$IN/model.safetensors"
	refused 65 "not a regular file"
}

@test "a file without read permission exits 77" {
	[ "$(id -u)" != 0 ] || skip "root reads everything"
	chmod 0 "$IN/model.safetensors"
	refused 77 "model.safetensors: "
}

@test "a symbolic link to a valid file is followed" {
	mv "$IN/model.safetensors" "$T/blob"
	ln -s "$T/blob" "$IN/model.safetensors"
	mt-ckpt verify "$IN"
}

# ---- its tensors

@test "offsets past the end of the file exit 65" {
	EDIT 'h["model.norm.weight"]["data_offsets"] = [len(d), len(d) + 64]'
	refused 65 "tensor 'model.norm.weight': offsets past end of file"
}

# bats test_tags=slow
@test "offsets near 2^64, negative, reversed or not numbers exit 65" {
	for o in '[0, 2**63 - 1]' '[2**63 - 65, 2**63 - 1]' '[-64, 0]' '[64, 0]' '[0.0, 64.0]' \
		'["0", "64"]' '[0]' '[0, 64, 64]' '7'; do
		cp "$GOOD/model.safetensors" "$IN/"
		EDIT "h['model.norm.weight']['data_offsets'] = $o"
		refused 65 "tensor 'model.norm.weight': "
	done
}

@test "overlapping tensors exit 65" {
	EDIT 'h["model.norm.weight"]["data_offsets"] = h["model.layers.0.input_layernorm.weight"]["data_offsets"]'
	refused 65 "overlaps tensor 'model."
}

@test "tensors that overlap by one byte exit 65" {
	EDIT 'o = h["model.norm.weight"]["data_offsets"]; o[0] -= 1; o[1] -= 1'
	refused 65 "tensor 'model.norm.weight': overlaps tensor 'model.layers.1.mlp.down_proj.weight'"
}

@test "a gap between tensors exits 65" {
	EDIT 'd += bytes(4); o = h["lm_head.weight"]["data_offsets"]; o[0] += 4; o[1] += 4'
	refused 65 "tensor 'lm_head.weight': 4 bytes before it belong to no tensor"
}

@test "a shape that does not match its byte range exits 65" {
	EDIT 'h["model.norm.weight"]["shape"] = [15]'
	refused 65 "tensor 'model.norm.weight': 64 bytes for a shape that needs 60"
}

# bats test_tags=slow
@test "a shape that overflows, is negative, has 100 dimensions or is not numbers exits 65" {
	for s in '[2**62, 16]' '[2**40, 2**40, 0]' '[-16]' '[-4, -4]' '[1] * 100' '[16.0]' '"16"' '[[16]]'; do
		cp "$GOOD/model.safetensors" "$IN/"
		EDIT "h['model.norm.weight']['shape'] = $s"
		refused 65 "tensor 'model.norm.weight': "
	done
}

# bats test_tags=slow
@test "a shape that differs from config.json's exits 65" {
	EDIT 'h["model.layers.1.self_attn.q_proj.weight"]["shape"] = [8, 32]'
	refused 65 "tensor 'model.layers.1.self_attn.q_proj.weight': shape (8, 32) where config.json says (16, 16)"
	EDIT 'h["model.layers.1.self_attn.q_proj.weight"]["shape"] = [16, 16, 1]'
	refused 65 "shape (16, 16, 1) where config.json says (16, 16)"
	EDIT 'h["model.layers.1.self_attn.q_proj.weight"]["shape"] = [256]'
	refused 65 "shape (256) where config.json says (16, 16)"
}

# bats test_tags=slow
@test "a dtype that cannot be loaded exits 65" {
	for t in I32 F64 U8; do
		cp "$GOOD/model.safetensors" "$IN/"
		EDIT "n = {'I32': 16, 'F64': 8, 'U8': 64}['$t']; h['model.norm.weight'].update(dtype='$t', shape=[n])"
		refused 65 "tensor 'model.norm.weight': dtype $t is not one that can be loaded here"
	done
}

# bats test_tags=slow
@test "an unknown or missing dtype exits 65" {
	EDIT 'h["model.norm.weight"]["dtype"] = "F31\n"'
	refused 65 "tensor 'model.norm.weight': unknown dtype 'F31?'"
	EDIT 'del h["model.norm.weight"]["dtype"]'
	refused 65 "tensor 'model.norm.weight': no dtype"
}

# bats test_tags=slow
@test "a missing tensor exits 65" {
	EDIT 'h["model.norm.weight2"] = h.pop("model.norm.weight")'
	refused 65 "tensor 'model.norm.weight': is missing"
}

# bats test_tags=slow
@test "a tensor that is not an object exits 65" {
	EDIT 'h["model.norm.weight"] = [1]'
	refused 65 "tensor 'model.norm.weight': its entry is not an object"
}

# bats test_tags=slow
@test "duplicate keys exit 65" {
	first='"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
	second='"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}'
	ST raw "$IN/model.safetensors" "{$first,$second}" 2
	refused 65 "duplicate object key 'a': {"
	ST raw "$IN/model.safetensors" '{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}' 1
	refused 65 "duplicate object key"
}

# bats test_tags=slow
@test "metadata that is not text exits 65" {
	EDIT 'h["__metadata__"] = {"format": 1}'
	refused 65 "__metadata__: 'format' is not a string"
}

# bats test_tags=slow
@test "tied embeddings with a different lm_head exit 65" {
	CONFIG 'j["tie_word_embeddings"] = True'
	GOOD=$IN
	refused 65 "tensor 'lm_head.weight': differs from its embeddings"
}

# bats test_tags=slow
@test "a tensor name of megabytes exits 65 with one short line" {
	EDIT 'h["x" * 3000000 + "\n"] = 5'
	refused 65 "tensor 'xxxxxxxx"
	[ "$(wc -c <"$T/fails.err")" -lt 1000 ]
}

# ---- the index

sharded() {
	rm -r "$IN"
	ST make "$IN" --shards 2
	INDEX=$IN/model.safetensors.index.json
}

# bats test_tags=slow
@test "an index that points outside its directory exits 65" {
	sharded
	cp "$GOOD/model.safetensors" "$T/outside.safetensors"
	for name in ../outside.safetensors "$T/outside.safetensors" sub/x.safetensors .. . ''; do
		ST json "$INDEX" "j['weight_map']['model.norm.weight'] = '$name'"
		refused 65 "model.safetensors.index.json: tensor 'model.norm.weight': "
	done
}

@test "an index that names a missing file exits 66" {
	sharded
	rm "$IN/model-00002-of-00002.safetensors"
	refused 66 "model-00002-of-00002.safetensors: "
}

# bats test_tags=slow
@test "an index that names the wrong file exits 65" {
	sharded
	ST json "$INDEX" 'a, b = sorted(set(j["weight_map"].values()))
j["weight_map"] = {k: b if v == a else a for k, v in j["weight_map"].items()}'
	refused 65 ": is not in model-0000"
}

# bats test_tags=slow
@test "an index without a tensor, without a weight_map, or not JSON exits 65" {
	sharded
	ST json "$INDEX" 'del j["weight_map"]["model.norm.weight"]'
	refused 65 "tensor 'model.norm.weight': is missing"
	echo '{"weight_map": 7}' >"$INDEX"
	refused 65 "no weight_map"
	echo '[]' >"$INDEX"
	refused 65 "not a JSON object"
	echo '{"weight_map": {"a": "b", "a": "c"}}' >"$INDEX"
	refused 65 "duplicate object key"
}

@test "a FIFO or a directory in place of a shard exits 65" {
	sharded
	rm "$IN/model-00001-of-00002.safetensors"
	mkfifo "$IN/model-00001-of-00002.safetensors"
	refused 65 "model-00001-of-00002.safetensors: a FIFO"
	rm "$IN/model-00001-of-00002.safetensors"
	mkdir "$IN/model-00001-of-00002.safetensors"
	refused 65 "model-00001-of-00002.safetensors: a directory"
}

@test "a FIFO in place of the index or the tokenizer exits 65" {
	mkfifo "$IN/tokenizer.json"
	mt-store create "$RUN" --config "$GOOD" 2>/dev/null
	fails_with 65 mt-ckpt load "$RUN" "$IN"
	grep -q "tokenizer.json: a FIFO" "$T/fails.err"
	mt-store rm "$RUN"
	rm "$IN/tokenizer.json" "$IN/model.safetensors"
	mkfifo "$IN/model.safetensors.index.json"
	refused 65 "model.safetensors.index.json: a FIFO"
}

@test "a file given in place of a directory exits 65" {
	mt-store create "$RUN" --config "$GOOD" 2>/dev/null
	fails_with 65 mt-ckpt load "$RUN" "$IN/config.json"
	fails_with 65 mt-ckpt verify "$IN/config.json"
}

# ---- config.json

@test "config.json: missing exits 66; a directory, a FIFO, not JSON or duplicate keys exit 65" {
	rm "$IN/config.json"
	fails_with 66 mt-store create "$RUN" --config "$IN"
	fails_with 66 mt-ckpt verify "$IN"
	mkdir "$IN/config.json"
	config_refused 65 "config.json: not a regular file"
	rmdir "$IN/config.json"
	mkfifo "$IN/config.json"
	config_refused 65 "config.json: not a regular file"
	rm "$IN/config.json"
	echo '{"model_type": ' >"$IN/config.json"
	config_refused 65 "config.json: "
	echo '{"model_type": "llama", "model_type": "llama"}' >"$IN/config.json"
	config_refused 65 "config.json: "
}

# bats test_tags=slow
@test "config.json: an unknown or missing family exits 78" {
	CONFIG 'j["model_type"] = "bert"'
	config_refused 78 "bert"
	CONFIG 'del j["model_type"]'
	config_refused 78 "model_type"
}

# bats test_tags=slow
@test "config.json: an unsupported architecture, quantization, activation or rope exits 78" {
	for change in 'architectures=["MistralForCausalLM"]' 'quantization_config={"bits":4}' \
		'hidden_act="gelu"' \
		'rope_scaling={"rope_type":"longrope","factor":2.0}' 'partial_rotary_factor=0.5'; do
		ST make "$IN" --set "$change"
		config_refused 78 config.json
	done
}

# bats test_tags=slow
@test "config.json: sizes that do not divide evenly exit 78" {
	for change in hidden_size=15 num_key_value_heads=3 head_dim=7; do
		ST make "$T/made"
		cp "$T/made/config.json" "$IN/"
		CONFIG "j['${change%=*}'] = ${change#*=}; j['num_attention_heads'] = 4"
		config_refused 78 config.json
	done
}

# bats test_tags=slow
@test "config.json: absurd sizes exit 78, wrong types 65" {
	for change in 'hidden_size=0' 'hidden_size=-16' 'vocab_size=10**15' 'num_hidden_layers=10**9' \
		'intermediate_size=2**31' 'num_attention_heads=0' 'num_key_value_heads=0'; do
		cp "$GOOD/config.json" "$IN/"
		CONFIG "j['${change%=*}'] = ${change#*=}"
		config_refused 78 "${change%=*}"
	done
	for change in 'hidden_size="16"' 'hidden_size=16.5' 'tie_word_embeddings="yes"' 'rms_norm_eps="tiny"'; do
		cp "$GOOD/config.json" "$IN/"
		CONFIG "j['${change%=*}'] = ${change#*=}"
		config_refused 65 "${change%=*}"
	done
}

# bats test_tags=slow
@test "config.json: dialects that disagree exit 78" {
	CONFIG 'j["rope_parameters"] = {"rope_type": "default", "rope_theta": 20000.0}'
	config_refused 78 rope_theta
	cp "$GOOD/config.json" "$IN/"
	CONFIG 'j["dtype"] = "bfloat16"'
	config_refused 78 dtype
	cp "$GOOD/config.json" "$IN/"
	CONFIG 'j["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
j["rope_parameters"] = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}'
	config_refused 78 rope
}

# ---- run.json

# bats test_tags=slow
@test "run.json: not JSON, not a checkpoint's, another version or edited exits 65" {
	make_run "$GOOD"
	rm -r "$IN"
	mt-ckpt save "$RUN" "$IN"
	mt-store rm "$RUN"
	cp "$IN/run.json" "$T/run.json"
	: >"$IN/run.json"
	refused 65 "run.json: "
	echo '{}' >"$IN/run.json"
	refused 65 "run.json: not an mt checkpoint"
	for change in 'j["version"] = 2' 'j["step"] = 5' 'j["files"].pop("model.safetensors")' \
		'j["position"]["records"] = -1' \
		'del j["checksum"]' 'j["files"]["../x"] = {"bytes": 0, "xxh3": []}'; do
		cp "$T/run.json" "$IN/run.json"
		ST json "$IN/run.json" "$change"
		refused 65 "run.json: "
	done
	cp "$T/run.json" "$IN/run.json"
	mt-ckpt verify "$IN"
}

# bats test_tags=slow
@test "after any change of bytes verify exits 0, or with a documented code and one line" {
	python3 "$TOP/tests/fuzz/safetensors.py" --seed 1 --count 600 --dir "$T/fuzz"
}

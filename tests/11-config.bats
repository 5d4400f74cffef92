#!/usr/bin/env bats
# Hugging Face's config.json becomes a geometry: families, dialects, defaults, and refused files.

load helpers

# Write a small config.json to $T: config FAMILY MEMBER...
# A member '"key": value' replaces the default, '-key' drops it.
config() {
	local family=$1 member key
	shift
	printf '%s\n' "\"model_type\": \"$family\"" '"vocab_size": 64' '"hidden_size": 32' '"intermediate_size": 48' \
		'"num_hidden_layers": 3' '"num_attention_heads": 4' '"num_key_value_heads": 2' >"$T/members"
	for member; do
		key=${member#-}
		[ "$key" != "$member" ] || key=$(printf '%s' "$member" | cut -d '"' -f 2)
		sed -i "/^\"$key\":/d" "$T/members"
		[ "$member" = "-$key" ] || printf '%s\n' "$member" >>"$T/members"
	done
	{ echo '{'; paste -sd , "$T/members"; echo '}'; } >"$T/config.json"
}

# The config.json in $T is accepted, and its geometry has each of these lines: geometry LINE...
geometry() {
	local line
	store-layout "$T/config.json" >"$T/layout"
	for line; do
		grep -qxF -- "$line" "$T/layout" || { echo "not there: $line" >&2; head -20 "$T/layout" >&2; return 1; }
	done
}

# mt-store exits with CODE and one line that contains TEXT, and leaves no files: refused CODE TEXT
refused() {
	fails_with "$1" mt-store create "$RUN" --config "$T/config.json"
	grep -qF -- "mt-store: config.json: $2" "$T/fails.err" || { cat "$T/fails.err" >&2; return 1; }
	gone "$RUN"
}

# inv_freq of the last geometry at index I is VALUE within 1e-6 (pow differs by an ulp between C libraries):
# inv_freq I VALUE...
inv_freq() {
	while [ $# -gt 0 ]; do
		awk -v i="$1" -v want="$2" '$1 == "inv_freq" && $2 == i { found = ($4 - want) ^ 2 <= (1e-6 * want) ^ 2 }
			END { exit !found }' "$T/layout" || { grep "^inv_freq $1 " "$T/layout" >&2; return 1; }
		shift 2
	done
}

# ---- families

@test "llama: as many key-value heads as heads if the key is missing or null, no biases, untied embeddings" {
	config llama -num_key_value_heads
	geometry "family llama" "kv_heads 4" "head_dim 8" "tied 0" "qkv_bias 0" "o_bias 0" "mlp_bias 0" "qk_norm 0" \
		"window 0" "norm_eps 1e-06" "init_range 0.02" "pad_token -1" "max_position 2048"
	config llama '"num_key_value_heads": null'
	geometry "kv_heads 4"
}

@test "llama: attention_bias adds biases to q, k, v and o, mlp_bias to gate, up and down" {
	config llama '"attention_bias": true' '"mlp_bias": true'
	geometry "qkv_bias 1" "o_bias 1" "mlp_bias 1"
	for name in self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj \
		mlp.down_proj; do
		grep -q "^tensor model.layers.2.$name.bias " "$T/layout"
	done
}

@test "qwen2: always biases on q, k and v and none on o, whatever attention_bias is" {
	config qwen2 '"attention_bias": false'
	geometry "family qwen2" "qkv_bias 1" "o_bias 0" "max_position 32768"
	! grep -q "o_proj.bias" "$T/layout" || false
}

@test "qwen2: 32 key-value heads if the key is missing" {
	config qwen2 -num_key_value_heads '"num_attention_heads": 64' '"hidden_size": 128'
	geometry "kv_heads 32"
}

@test "qwen3: head_dim 128 if the key is missing, norms on q and k, attention_bias on all four projections" {
	config qwen3
	geometry "family qwen3" "head_dim 128" "qk_norm 1" "qkv_bias 0" "o_bias 0"
	grep -q "^tensor model.layers.0.self_attn.k_norm.weight .* shape 128 1 " "$T/layout"
	config qwen3 '"attention_bias": true'
	geometry "qkv_bias 1" "o_bias 1"
}

@test "mistral: 8 key-value heads and a window of 4096 if the keys are missing" {
	config mistral -num_key_value_heads '"num_attention_heads": 16'
	geometry "family mistral" "kv_heads 8" "window 4096" "window_layers www" "max_position 131072"
}

@test "mistral: sliding_window null means no window" {
	config mistral '"sliding_window": null'
	geometry "window 0" "window_layers ..."
}

@test "qwen: the window applies only with use_sliding_window, from layer max_window_layers on" {
	config qwen2 '"sliding_window": 16' '"max_window_layers": 1'
	geometry "window 0" "window_layers ..."
	config qwen2 '"sliding_window": 16' '"max_window_layers": 1' '"use_sliding_window": true'
	geometry "window 16" "window_layers .ww"
	config qwen3 '"use_sliding_window": true' '"max_window_layers": 2'
	geometry "window 4096" "window_layers ..w"
	config qwen3 '"use_sliding_window": true'
	geometry "window 0" "window_layers ..."
	config qwen3 '"use_sliding_window": true' '"sliding_window": null' '"max_window_layers": 0'
	geometry "window 0"
}

@test "granite: factors are read, the logits' and the class's own attention factor of 1 too" {
	config granite
	geometry "attention_scale 1" "logit_scale 1" "embed_scale 1" "residual_scale 1"
	config granite '"embedding_multiplier": 12' '"residual_multiplier": 0.22' '"attention_multiplier": 0.015625' \
		'"logits_scaling": 16.0'
	geometry "attention_scale 0.015625" "logit_scale 0.0625" "embed_scale 12" "residual_scale 0.219999999"
	config granite '"residual_multiplier": 0'
	refused 78 "residual_multiplier 0 is out of range"
	config llama '"residual_multiplier": 3'
	geometry "residual_scale 1" "attention_scale 0.353553385"
}

@test "an MLP's function: with a gate or without by family; other functions exit 78 and are named" {
	form() { config "${@:2}" '"pad_token_id": null'; geometry "form $1"; }
	form 0 llama '"hidden_act": "swish"'
	form 1 granite '"hidden_act": "gelu"'
	form 2 cohere2 '"hidden_act": "gelu_new"'
	form 2 gemma '"hidden_act": "gelu"'
	form 7 phi
	form 4 bitnet '"num_attention_heads": 4'
	form 5 nemotron
	form 5 arcee
	form 6 starcoder2 '"hidden_act": "gelu"'
	form 6 falcon
	form 7 starcoder2
	form 7 falcon '"activation": "gelu_new"'
	form 8 apertus
	config nemotron '"hidden_act": "silu"'
	refused 78 "hidden_act 'silu' is not supported"
	config llama '"hidden_act": "relu2"'
	refused 78 "hidden_act 'relu2' is not supported"
	config nemotron '"hidden_act": "xielu"'
	refused 78 "hidden_act 'xielu' is not supported"
	form 9 opt
	form 9 falcon '"activation": "relu"'
	config falcon '"activation": "tanh"'
	refused 78 "activation 'tanh' is not supported"
	config llama '"hidden_act": "relu"'
	refused 78 "hidden_act 'relu' is not supported"
}

@test "cohere2: layers without window have no rope; sliding_window_pattern and layer_types must agree" {
	config cohere2 '"num_hidden_layers": 5'
	geometry "window_layers www.w" "kind_of 00010" "window 4096" "tied 1" "pad_token 0" "logit_scale 0.0625"
	[ "$(grep "^rope_dim" "$T/layout" | paste -sd ' ')" = "rope_dim 8 rope_dim 0" ]
	no grep -q "bias" <(grep "^tensor" "$T/layout")
	config cohere2 '"sliding_window_pattern": 2' '"sliding_window": 5'
	geometry "window_layers w.w" "window 5"
	config cohere2 '"sliding_window_pattern": 2' \
		'"layer_types": ["full_attention", "sliding_attention", "full_attention"]'
	refused 78 "layer_types of layer 0 disagrees"
	config cohere2 '"sliding_window": null'
	refused 78 "sliding_window null is not supported"
}

@test "biases by family: use_bias of all layers, by default too; use_qkv_bias; attention_bias without o" {
	config starcoder2
	geometry "qkv_bias 1" "o_bias 1" "mlp_bias 1" "tied 1" "window 0" "norm_eps 1e-05" "init_range 0.018042"
	grep -q "^tensor model.layers.0.mlp.c_proj.bias " "$T/layout"
	config starcoder2 '"use_bias": false' '"norm_epsilon": 0.001' '"sliding_window": 9'
	geometry "qkv_bias 0" "o_bias 0" "mlp_bias 0" "window 9" "norm_eps 0.001"
	grep -q "^tensor model.layers.0.input_layernorm.bias " "$T/layout"
	config ernie4_5
	geometry "qkv_bias 0" "neighbours 1" "head_dim 128" "pad_token 0"
	config stablelm '"use_qkv_bias": true' '"layer_norm_eps": 0.01'
	geometry "qkv_bias 1" "o_bias 0" "mlp_bias 0" "rope_dim 2" "norm_eps 0.01"
	config helium '"attention_bias": true' '"head_dim": 8'
	geometry "qkv_bias 1" "o_bias 0" "norm_eps 1e-08" "neighbours 1" "pad_token 3"
	config helium
	refused 78 "head_dim 128 times num_attention_heads 4 is not hidden_size 32"
	config stablelm '"qk_layernorm": true'
	refused 78 "qk_layernorm true is not supported"
	config stablelm '"hidden_dropout": 0.1'
	refused 78 "hidden_dropout 0.1 is not supported"
}

@test "a part of each head turns: the class's part if the file says nothing" {
	config stablelm '"partial_rotary_factor": 0.5' '"head_dim": 2'
	geometry "rope_dim 4" "head_dim 8"
	config nemotron '"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25}'
	geometry "rope_dim 2"
	config nemotron '"head_dim": 12'
	geometry "rope_dim 6"
	config nemotron '"head_dim": 12' '"partial_rotary_factor": 0.3'
	refused 78 "partial_rotary_factor 0.3 is not supported"
	config granite '"partial_rotary_factor": 0.5'
	refused 78 "partial_rotary_factor 0.5 is not supported"
}

# bats test_tags=slow
@test "partial_rotary_factor null exits 78 in families with a default part" {
	local family key
	for family in glm4 glm4_moe minimax_m2 solar_open sarvam_moe stablelm nemotron phi3 gpt_neox; do
		key=partial_rotary_factor
		[ $family != gpt_neox ] || key=rotary_pct
		config $family '"head_dim": 8' '"pad_token_id": null'
		geometry "head_dim 8"
		config $family '"head_dim": 8' '"pad_token_id": null' "\"$key\": null"
		refused 78 "$key null is not supported"
		config $family '"head_dim": 8' '"pad_token_id": null' '"rope_parameters": {"partial_rotary_factor": null}'
		refused 78 "partial_rotary_factor null is not supported"
	done
	config llama '"partial_rotary_factor": null'
	geometry "rope_dim 8"
}

@test "rope_type proportional turns the class's part of a head if the file says nothing" {
	local rope='"rope_type": "proportional", "rope_theta": 10000.0'
	config glm4 '"head_dim": 8' '"pad_token_id": null' "\"rope_parameters\": {$rope}"
	geometry "rope_dim 8"
	inv_freq 0 1 1 0.1 2 0 3 0
	config llama "\"rope_parameters\": {$rope}"
	geometry "rope_dim 8"
	inv_freq 0 1 1 0.1 2 0.01 3 0.001
}

@test "hunyuan_v1_dense: alpha stretches rope's base, whatever the sequence's length" {
	config hunyuan_v1_dense '"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}'
	geometry "rope_scaling 1" "pad_token 0" "qk_norm 1"
	inv_freq 0 1 1 0.00999999978 2 0.0001 3 1e-06
	grep -q "^tensor model.layers.0.self_attn.query_layernorm.weight " "$T/layout"
}

@test "minimax_m2: rotary_dim says which part of a head turns, and must agree with partial_rotary_factor" {
	config minimax_m2
	geometry "head_dim 128" "rope_dim 128" "qk_norm 1" "norm_eps 1e-06" "ffn 0"
	grep -q "^tensor model.layers.0.block_sparse_moe.experts.255.w2.weight .* shape 32 48 " "$T/layout"
	grep -q "^tensor model.layers.0.self_attn.q_norm.weight .* shape 512 1 " "$T/layout"
	config minimax_m2 '"head_dim": 8' '"rope_theta": 10000.0' '"rotary_dim": 4'
	geometry "rope_dim 4"
	inv_freq 0 1 1 0.01
	config minimax_m2 '"head_dim": 8' '"rotary_dim": 4' '"partial_rotary_factor": 0.5'
	geometry "rope_dim 4"
	config minimax_m2 '"head_dim": 8' '"rotary_dim": null'
	geometry "rope_dim 8"
	config minimax_m2 '"head_dim": 8' '"rotary_dim": 4' '"partial_rotary_factor": 0.25'
	refused 78 "rotary_dim 4 of head_dim 8 and partial_rotary_factor 0.25 disagree"
	config minimax_m2 '"head_dim": 8' '"rotary_dim": 16'
	refused 78 "rotary_dim 16 is not between 2 and 8"
	config minimax_m2 '"num_local_experts": 4' '"num_experts": 5'
	refused 78 "num_local_experts 4 and num_experts 5 disagree"
	config minimax_m2 '"router_jitter_noise": 0.1'
	refused 78 "router_jitter_noise 0.1 is not supported, only 0"
}

@test "dots1: numbers of experts have no default; windows begin at max_window_layers, without a switch" {
	local experts='"n_routed_experts": 4' token='"num_experts_per_tok": 2' shared='"n_shared_experts": 1'
	config dots1 "$experts" "$token" "$shared"
	geometry "window_layers ..." "qk_norm 1" "pad_token -1" "ffn 0"
	grep -q "^tensor model.layers.0.mlp.shared_experts.up_proj.weight .* shape 1408 32 " "$T/layout"
	config dots1 "$experts" "$token" "$shared" '"max_window_layers": 1' '"sliding_window": 5' \
		'"first_k_dense_replace": 2'
	geometry "window_layers .ww" "window 5" "ffn 48" "kind_of 012"
	config dots1 "$experts" "$token" "$shared" '"max_window_layers": 1' '"sliding_window": null'
	geometry "window_layers ..."
	config dots1 "$token" "$shared" '"num_local_experts": 4'
	geometry "layers 3"
	config dots1 "$token" "$shared"
	refused 78 "n_routed_experts is missing"
	config dots1 "$experts" "$shared"
	refused 78 "num_experts_per_tok is missing"
	config dots1 "$experts" "$token"
	refused 78 "n_shared_experts is missing"
}

@test "solar_open: experts in all layers, whatever intermediate_size and first_k_dense_replace say" {
	config solar_open '"first_k_dense_replace": 2' '"attention_bias": true'
	geometry "kinds 1" "ffn 0" "head_dim 128" "rope_dim 128" "qkv_bias 1" "o_bias 0" "qk_norm 0" "norm_eps 1e-05"
	grep -q "^tensor model.layers.0.mlp.experts.127.gate_proj.weight .* shape 1280 32 " "$T/layout"
}

@test "exaone_moe: full layers have no rope; mlp_layer_types has precedence over first_k_dense_replace" {
	config exaone_moe '"num_hidden_layers": 5' '"first_k_dense_replace": 2'
	geometry "window_layers www.w" "kind_of 00121" "window 4096" "pad_token 0" "qk_norm 1"
	grep -q "^tensor model.layers.2.mlp.e_score_correction_bias .* shape 64 1 " "$T/layout"
	config exaone_moe '"mlp_layer_types": ["sparse", "dense", "sparse"]' '"sliding_window": null'
	geometry "window_layers ..." "kind_of 010"
	config exaone_moe '"mlp_layer_types": ["sparse", "dense"]'
	refused 78 "mlp_layer_types is not a list of 3 names"
	config exaone_moe '"mlp_layer_types": ["sparse", "dense", "linear"]'
	refused 78 "mlp_layer_types 'linear' is not supported"
}

@test "exaone, sarvam_moe: released files' names of keys, also beside the usual ones; 78 if they disagree" {
	config exaone -num_hidden_layers '"num_layers": 2' '"layer_norm_epsilon": 0.001' '"activation_function": "silu"' \
		'"architectures": ["ExaoneForCausalLM"]'
	geometry "layers 2" "norm_eps 0.001" "pad_token 0" "tied 0" "rope_dim 8"
	grep -q "^tensor transformer.h.1.attn.attention.out_proj.weight " "$T/layout"
	config exaone '"num_layers": 3' '"architectures": ["LlamaForCausalLM"]'
	geometry "layers 3" "norm_eps 1e-05"
	config exaone '"num_layers": 4'
	refused 78 "num_hidden_layers and num_layers disagree"
	config exaone '"activation_function": "gelu"'
	refused 78 "hidden_act 'gelu' is not supported"
	config exaone '"architectures": ["MistralForCausalLM"]'
	refused 78 "architectures 'MistralForCausalLM' is not supported, only ExaoneForCausalLM and other classes of exaone"
	config sarvam_moe '"num_experts": 4' '"num_experts_per_tok": 2' '"num_shared_experts": 2' '"use_qkv_bias": true' \
		'"architectures": ["SarvamMoEForCausalLM"]'
	geometry "qk_norm 1" "qkv_bias 1" "o_bias 0" "head_dim 64" "rope_dim 64" "init_range 0.006" "pad_token 0"
	grep -q "^tensor model.layers.2.attention.query_key_value.weight .* shape 512 32 " "$T/layout"
	grep -q "^tensor model.layers.1.mlp.shared_experts.up_proj.weight .* shape 2048 32 " "$T/layout"
	grep -q "^tensor model.layers.1.mlp.gate.expert_bias .* shape 4 1 " "$T/layout"
	config sarvam_moe '"num_experts": 4' '"n_routed_experts": 5'
	refused 78 "n_routed_experts and num_experts disagree"
	config sarvam_moe '"use_qkv_bias": true' '"attention_bias": false'
	refused 78 "attention_bias and use_qkv_bias disagree"
	config sarvam_moe '"architectures": ["Glm4MoeForCausalLM"]'
	geometry "layers 3"
}

@test "falcon: the forms of 7B, 40B and 11B, and those that transformers does not compute either" {
	falcon() { config falcon -intermediate_size -num_key_value_heads "$@"; }
	names() { grep "^tensor transformer.h.0" "$T/layout" | cut -d ' ' -f 2 | cut -d . -f 4- | paste -sd ' '; }
	falcon
	geometry "kv_heads 1" "ffn 128" "tied 1" "pad_token -1"
	[ "$(names)" = "input_layernorm.weight input_layernorm.bias self_attention.query_key_value.weight \
self_attention.dense.weight mlp.dense_h_to_4h.weight mlp.dense_4h_to_h.weight" ]
	falcon '"num_kv_heads": 2' '"ffn_hidden_size": 40' '"bias": true' '"pad_token_id": 5' '"head_dim": 2'
	geometry "kv_heads 1" "ffn 40" "pad_token -1" "head_dim 8" "qkv_bias 1"
	falcon '"new_decoder_architecture": true' '"num_kv_heads": 2'
	geometry "kv_heads 2"
	[ "$(names)" = "ln_attn.weight ln_attn.bias self_attention.query_key_value.weight \
self_attention.dense.weight ln_mlp.weight ln_mlp.bias mlp.dense_h_to_4h.weight mlp.dense_4h_to_h.weight" ]
	falcon '"new_decoder_architecture": true' '"num_kv_heads": 2' '"num_ln_in_parallel_attn": 1'
	geometry "kv_heads 2"
	no grep -q "ln_mlp" "$T/layout"
	falcon '"parallel_attn": false' '"multi_query": false'
	geometry "kv_heads 4"
	grep -q "^tensor transformer.h.2.post_attention_layernorm.bias " "$T/layout"
	falcon '"new_decoder_architecture": true' '"parallel_attn": false'
	refused 78 "new_decoder_architecture with parallel_attn false is not supported"
	falcon '"num_ln_in_parallel_attn": 2'
	refused 78 "num_ln_in_parallel_attn 2 without new_decoder_architecture is not supported"
	falcon '"multi_query": false' '"num_kv_heads": 2'
	refused 78 "num_kv_heads 2 is not num_attention_heads 4"
	falcon '"n_embed": 64'
	refused 78 "n_embed is not supported"
}

@test "rarer families: keys that change the computation exit 78 and are named; gpt-sw3 is gpt2" {
	config internlm3 '"qkv_bias": true'
	refused 78 "qkv_bias different from bias is not supported"
	config iquestcoder '"clip_qkv": 8.0'
	refused 78 "clip_qkv is not supported"
	config iquestcoder '"use_sliding_window": true'
	refused 78 "use_sliding_window true is not supported"
	config bloom '"apply_residual_connection_post_layernorm": true'
	refused 78 "apply_residual_connection_post_layernorm true is not supported"
	config bloom '"n_embed": 48'
	refused 78 "hidden_size and n_embed disagree"
	config openai-gpt '"afn": "silu"'
	refused 78 "afn 'silu' is not supported"
	config xglm '"add_cross_attention": true'
	refused 78 "add_cross_attention true is not supported"
	config xglm '"hidden_size": 2' '"num_attention_heads": 1'
	refused 78 "hidden_size 2 is not supported with sines"
	config ctrl '"layer_norm_epsilon": 1e-5'
	refused 78 "layer_norm_epsilon is not supported, only 1e-06"
	config mpt '"attn_config": {"alibi_bias_max": 16}'
	refused 78 "alibi_bias_max is not supported, only 8"
	config mpt '"attn_config": {"alibi": false}'
	refused 78 "alibi false is not supported"
	config mpt '"attn_config": {"qk_ln": true}'
	refused 78 "qk_ln true is not supported"
	config mpt '"attn_config": {"prefix_lm": true}'
	refused 78 "prefix_lm true is not supported"
	config mpt '"attn_config": {"attn_type": "multiquery_attention"}'
	refused 78 "attn_type 'multiquery_attention' is not supported"
	config mpt '"attn_config": {"attn_pdrop": 0.1}'
	refused 78 "attn_pdrop 0.1 is not supported"
	config mpt '"attn_config": {"clip_qkv": 6}'
	refused 78 "clip_qkv is not supported"
	config mpt '"no_bias": false'
	refused 78 "no_bias false is not supported"
	config mpt '"logit_scale": "inv_sqrt_d_model"'
	refused 78 "logit_scale is not supported"
	config mpt '"expansion_ratio": 2'
	refused 78 "expansion_ratio is not supported, only 4"
	config gptj '"rotary_dim": null'
	refused 65 "rotary_dim is not an integer"
	config gpt_neo '"attention_types": [[["global", "cross"], 1]]'
	refused 78 "attention_types is not supported, only lists of global and local"
	config biogpt '"layerdrop": 0.1'
	refused 78 "layerdrop 0.1 is not supported"
	config granite_swa '"layer_rope_theta": [10000.0, 500.0, 0]'
	refused 78 "layer_rope_theta with several bases is not supported"
	config granite_swa '"layer_rope_theta": [500.0, 500.0, 0]' '"rope_parameters": {"rope_theta": 300.0}'
	refused 78 "rope_theta is 500 here and 300 there: the two dialects disagree"
	config minicpm3 '"hidden_size": 4096' '"num_key_value_heads": 4'
	refused 78 "v_head_dim 1024 is not between 1 and 512"
	config sarvam_mla '"num_key_value_heads": 4' \
		'"rope_scaling": {"type": "deepseek_yarn", "factor": 40.0, "original_max_position_embeddings": 4096}'
	geometry
	grep -q "^rope_scaling 1.3688" "$T/layout"
	config hunyuan_v1_moe '"moe_topk": [1, 1, 2]' '"num_experts": 4'
	refused 78 "moe_topk with different numbers is not supported"
	config gpt-sw3
	geometry "family gpt2"
}

@test "olmo: norms without weight and bias, whose epsilon no key changes; clip_qkv exits 78" {
	config olmo '"rms_norm_eps": 0.5' '"layer_norm_eps": 0.5' '"clip_qkv": null'
	geometry "norm_eps 1e-05" "pad_token 1" "tied 0" "kv_heads 2"
	no grep -q "^tensor .*norm" "$T/layout"
	config olmo '"clip_qkv": 8.0'
	refused 78 "clip_qkv is not supported"
	config olmo '"attention_dropout": 0.1'
	refused 78 "attention_dropout 0.1 is not supported"
}

@test "gpt_neox: its names of rope's keys, which files of transformers 4 have beside the usual ones; refused keys" {
	config gpt_neox '"pad_token_id": 5'
	geometry "kv_heads 4" "head_dim 8" "rope_dim 2" "qkv_bias 1" "o_bias 1" "mlp_bias 1" "pad_token -1" "form 6"
	grep -q "^tensor embed_out.weight " "$T/layout"
	config gpt_neox '"rotary_emb_base": 100' '"rotary_pct": 0.5' '"attention_bias": false' '"hidden_act": "gelu_fast"'
	geometry "rope_dim 4" "qkv_bias 0" "o_bias 0" "mlp_bias 1" "form 7"
	inv_freq 0 1 1 0.1
	config gpt_neox '"rotary_emb_base": 100' '"rope_theta": 100' '"rotary_pct": 0.5' '"partial_rotary_factor": 0.5'
	geometry "rope_dim 4"
	inv_freq 0 1 1 0.1
	config gpt_neox '"rotary_pct": 0.5' '"rope_parameters": {"rope_type": "default", "rope_theta": 100}'
	geometry "rope_dim 4"
	inv_freq 0 1 1 0.1
	# without its own keys, transformers takes the class's values, and ignores these
	config gpt_neox '"rope_theta": 100'
	refused 78 "rope_theta is 10000 here and 100 there: the two dialects disagree"
	config gpt_neox '"partial_rotary_factor": 0.5'
	refused 78 "partial_rotary_factor is 0.25 here and 0.5 there: the two dialects disagree"
	config gpt_neox '"rotary_emb_base": 100' '"rope_parameters": {"rope_type": "default", "rope_theta": 50}'
	refused 78 "rope_theta is 100 here and 50 there: the two dialects disagree"
	config gpt_neox '"rotary_pct": 0.3'
	geometry "rope_dim 2"
	config gpt_neox '"rotary_pct": 0.45'
	refused 78 "rotary_pct 0.45 is not supported"
	config gpt_neox '"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.45}'
	refused 78 "partial_rotary_factor 0.45 is not supported"
	config gpt_neox '"rotary_emb_base": 0.5'
	refused 78 "rotary_emb_base 0.5 is out of range"
	config gpt_neox '"rope_parameters": {"rope_type": "default", "rope_theta": 0.5}'
	refused 78 "rope_theta 0.5 is out of range"
	config gpt_neox '"hidden_dropout": 0.1'
	refused 78 "hidden_dropout 0.1 is not supported"
	config gpt_neox '"attention_dropout": 0.1'
	refused 78 "attention_dropout 0.1 is not supported"
	config gpt_neox '"hidden_act": "tanh"'
	refused 78 "hidden_act 'tanh' is not supported"
}

@test "gpt_neox: a head_dim that is not hidden_size / num_attention_heads exits 78: only rope would have it" {
	config gpt_neox '"head_dim": 8'
	geometry "head_dim 8" "rope_dim 2"
	config gpt_neox '"head_dim": null'
	geometry "head_dim 8" "rope_dim 2"
	config gpt_neox '"head_dim": 16'
	refused 78 "head_dim 16 times num_attention_heads 4 is not hidden_size 32"
}

@test "gpt_neox: exports have rope's keys under the class's names too, which transformers reads first" {
	local rope='"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "partial_rotary_factor": 0.5'
	config gpt_neox "\"rope_parameters\": {$rope}"
	store-layout "$T/config.json" >"$T/before"
	mt-store create "$RUN" --config "$T/config.json" 2>"$T/err"
	mt-store init "$RUN" --seed 1 2>"$T/err"
	mt-ckpt export "$RUN" "$T/out" 2>"$T/err"
	store-layout "$T/out" | diff "$T/before" -
	python3 - "$T/out/config.json" <<-'END'
		import json, sys
		j = json.load(open(sys.argv[1]))
		assert (j["rotary_emb_base"], j["rotary_pct"]) == (50.0, 0.5) and "rope_theta" not in j
		assert j["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
	END
}

@test "a file without keys of rope is exported without them, so that its class's rope stays" {
	for family in ernie4_5 apertus helium llama; do
		config $family '"head_dim": 8'
		store-layout "$T/config.json" | grep -v "^rope_theta" >"$T/before"
		mt-store create "$RUN" --config "$T/config.json" 2>"$T/err"
		mt-store init "$RUN" --seed 1 2>"$T/err"
		rm -rf "$T/out"
		mt-ckpt export "$RUN" "$T/out" 2>"$T/err"
		mt-store rm "$RUN"
		store-layout "$T/out" | diff "$T/before" -
		no grep -q rope "$T/out/config.json"
	done
	config nemotron '"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}'
	mt-store create "$RUN" --config "$T/config.json" 2>"$T/err"
	mt-store init "$RUN" --seed 1 2>"$T/err"
	mt-ckpt export "$RUN" "$T/both" 2>"$T/err"
	python3 - "$T/both/config.json" <<-'END'
		import json, sys
		j = json.load(open(sys.argv[1]))
		assert (j["rope_theta"], j["rope_scaling"], j["partial_rotary_factor"]) == (50.0, None, 0.25)
		assert j["rope_parameters"] == {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}
	END
}

@test "gpt2: its names of keys, beside the usual ones too; what changes the computation exits 78" {
	printf '{"model_type": "gpt2"}' >"$T/config.json"
	geometry "layers 12" "hidden 768" "heads 12" "kv_heads 12" "ffn 3072" "vocab 50257" "max_position 1024" "tied 1" \
		"form 7" "rope_dim 0" "norm_eps 1e-05" "pad_token -1" "params 124439808"
	grep -q "^tensor transformer.wpe.weight unit 0 .* shape 1024 768 .* decay 1" "$T/layout"
	grep -q "^tensor transformer.h.11.attn.c_attn.weight .* shape 768 2304 " "$T/layout"
	grep -q "^tensor transformer.h.0.mlp.c_fc.weight .* shape 768 3072 " "$T/layout"
	config gpt2 '"n_inner": null' '"n_positions": 99' '"pad_token_id": 3' '"layer_norm_epsilon": 0.001'
	geometry "layers 3" "hidden 32" "heads 4" "ffn 128" "max_position 99" "pad_token -1" "norm_eps 0.001"
	config gpt2 '"n_embd": 24'
	refused 78 "n_embd and hidden_size disagree"
	config gpt2 '"scale_attn_weights": false' '"reorder_and_upcast_attn": true'
	geometry "attention_scale 1"
	config gpt2 '"scale_attn_by_inverse_layer_idx": true'
	refused 78 "scale_attn_by_inverse_layer_idx true is not supported"
	config gpt2 '"add_cross_attention": true'
	refused 78 "add_cross_attention true is not supported"
	config gpt2 '"activation_function": "tanh"'
	refused 78 "activation_function 'tanh' is not supported"
}

@test "gpt_bigcode: one key head unless multi_query is false; what changes the computation exits 78" {
	printf '{"model_type": "gpt_bigcode"}' >"$T/config.json"
	geometry "layers 12" "hidden 768" "heads 12" "kv_heads 1" "ffn 3072" "vocab 50257" "max_position 1024" "tied 1" \
		"form 7" "rope_dim 0" "norm_eps 1e-05" "pad_token -1"
	grep -q "^tensor transformer.h.11.attn.c_attn.weight .* shape 896 768 " "$T/layout"
	grep -q "^tensor transformer.h.0.mlp.c_fc.weight .* shape 3072 768 " "$T/layout"
	config gpt_bigcode '"multi_query": false' '"num_key_value_heads": 4' '"attention_softmax_in_fp32": false'
	geometry "heads 4" "kv_heads 4"
	config gpt_bigcode '"scale_attn_weights": false'
	geometry "kv_heads 1" "attention_scale 1"
	config gpt_bigcode '"multi_query": false' '"add_cross_attention": true'
	refused 78 "add_cross_attention true is not supported"
}

@test "opt: two more positions than its key says; norms without weight; what changes the computation exits 78" {
	printf '{"model_type": "opt"}' >"$T/config.json"
	geometry "layers 12" "hidden 768" "heads 12" "kv_heads 12" "ffn 3072" "vocab 50272" "max_position 2048" "tied 1" \
		"form 9" "rope_dim 0" "norm_eps 1e-05" "pad_token 1" "params 125239296"
	grep -q "^tensor model.decoder.embed_positions.weight unit 0 .* shape 2050 768 .* decay 1" "$T/layout"
	config opt '"ffn_dim": 40' '"word_embed_proj_dim": 32' '"init_std": 0.006' '"layer_norm_elementwise_affine": false'
	geometry "ffn 40" "init_range 0.006" "qkv_bias 1" "o_bias 1" "mlp_bias 1"
	no grep norm.weight "$T/layout"
	config opt '"enable_bias": false'
	geometry "qkv_bias 0" "o_bias 0" "mlp_bias 0"
	config opt '"word_embed_proj_dim": 16'
	refused 78 "word_embed_proj_dim is not hidden_size 32, which is not supported"
	config opt '"do_layer_norm_before": false'
	refused 78 "do_layer_norm_before false is not supported"
	config opt '"_remove_final_layer_norm": true'
	refused 78 "_remove_final_layer_norm true is not supported"
	config opt '"layerdrop": 0.1'
	refused 78 "layerdrop 0.1 is not supported"
}

@test "missing sizes get the defaults of the family's transformers class" {
	echo '{"model_type": "llama"}' >"$T/config.json"
	geometry "layers 32" "hidden 4096" "heads 32" "kv_heads 32" "head_dim 128" "ffn 11008" "vocab 32000"
	echo '{"model_type": "mistral"}' >"$T/config.json"
	geometry "ffn 14336" "vocab 32000" "kv_heads 8"
	echo '{"model_type": "qwen2"}' >"$T/config.json"
	geometry "ffn 22016" "vocab 151936" "kv_heads 32" "head_dim 128"
}

@test "head_dim null means hidden_size / num_attention_heads, and any even head_dim is accepted" {
	config qwen3 '"head_dim": null'
	geometry "head_dim 8"
	config mistral '"head_dim": 10' '"hidden_size": 30'
	geometry "head_dim 10"
	grep -q "^tensor model.layers.0.self_attn.q_proj.weight .* shape 40 30 " "$T/layout"
	grep -q "^tensor model.layers.0.self_attn.o_proj.weight .* shape 30 40 " "$T/layout"
}

@test "a negative pad_token_id counts from the end of the vocabulary, as in nn.Embedding" {
	config llama '"pad_token_id": -1'
	geometry "pad_token 63"
	config llama '"pad_token_id": 0'
	geometry "pad_token 0"
	config llama '"pad_token_id": null'
	geometry "pad_token -1"
}

@test "tied embeddings have no lm_head, and unit 0 gets a second gradient" {
	config llama '"tie_word_embeddings": true'
	geometry "tied 1"
	! grep -q "^tensor lm_head" "$T/layout" || false
	grep -Eq "^unit 0 .* g [1-9][0-9]* [1-9][0-9]*$" "$T/layout"
	grep -Eq "^unit 1 .* g [1-9][0-9]* 0$" "$T/layout"
}

@test "known models get their known numbers of parameters" {
	while read -r name params; do
		store-layout "$CONFIGS/$name.json" | grep -qx "params $params"
	done <<-END
		qwen2.5-7b 7615616512
		llama-3.1-8b 8030261248
		mistral-7b-v0.1 7241732096
		qwen3-8b 8190735360
		llama-120b 119822659584
		glm-4.7-flash 29943393920
		moonlight-16b-a3b 15960110208
		kimi-linear-48b-a3b 49122681728
		deepseek-v2-lite 15706484224
		deepseek-v2 235741434880
		llama-4-scout 107769861120
		deepseek-v3 671026419200
		bench-97m 96763520
		demo 4877568
	END
}

# ---- layout

@test "a block's tensors are in order of use: q, k, v and gate, up contiguous, other slabs at multiples of 64" {
	config qwen3 '"hidden_size": 30' '"head_dim": 6' '"intermediate_size": 50' '"attention_bias": true'
	store-layout "$T/config.json" |
		awk '$1 == "tensor" && $4 == 2 { sub("model.layers.1.", "", $2); print $2, $11, $13 }' >"$T/got"
	cat >"$T/want" <<-END
		input_layernorm.weight 0 30
		self_attn.q_proj.weight 64 720
		self_attn.k_proj.weight 784 360
		self_attn.v_proj.weight 1144 360
		self_attn.q_proj.bias 1536 24
		self_attn.k_proj.bias 1560 12
		self_attn.v_proj.bias 1572 12
		self_attn.q_norm.weight 1600 6
		self_attn.k_norm.weight 1664 6
		self_attn.o_proj.weight 1728 720
		self_attn.o_proj.bias 2496 30
		post_attention_layernorm.weight 2560 30
		mlp.gate_proj.weight 2624 1500
		mlp.up_proj.weight 4124 1500
		mlp.down_proj.weight 5632 1500
	END
	diff "$T/want" "$T/got"
	store-layout "$T/config.json" | grep -q "^unit 2 elems 7168 params 6810 tensors 16+15 "
}

@test "a unit's arrays w, lo, m, v, g follow in this order without overlap; fp32 has no lo, --grad none has no g" {
	config llama '"tie_word_embeddings": true'
	for row in "bf16 fp32 2 2 4" "bf16 bf16 2 2 2" "bf16 none 2 2 0" "fp32 fp32 4 0 4"; do
		set -- $row
		store-layout "$T/config.json" "$1" "$2" | awk -v w="$3" -v lo="$4" -v g="$5" '
			function take(off, size) {
				if (!size) { bad += off != 0; return }
				bad += off < end || off % 4096; end = off + size * elems
			}
			BEGIN { end = 128 }
			$1 == "store_bytes" { bytes = $2 }
			$1 == "unit" { elems = $4; take($10, w); take($12, lo); take($14, 4); take($16, 4); take($18, g)
				take($19, $2 == 0 ? g : 0) }
			END { exit bad || end > bytes }'
	done
}

@test "arrays of 2 MiB and more start on a huge page" {
	store-layout "$CONFIGS/llama-3.1-8b.json" |
		awk '$1 == "unit" { n++; for (i = 10; i <= 18; i += 2) bad += $i % 2097152 }
			END { exit !(n == 34 && !bad) }'
}

@test "weight decay applies to two-dimensional tensors only" {
	config qwen2
	store-layout "$T/config.json" |
		awk '$1 == "tensor" { n++; bad += $NF != ($2 !~ /norm|bias/) } END { exit !(n == 39 && !bad) }'
}

# ---- rope

@test "plain rope: rope_theta defaults to 10000, the same in both config dialects" {
	config llama '"head_dim": 16'
	geometry "rope_scaling 1"
	inv_freq 0 1 1 0.316227764 7 0.000316227786
	config llama '"rope_theta": 500000.0'
	geometry
	cp "$T/layout" "$T/v4"
	config llama '"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}'
	geometry
	cmp "$T/layout" "$T/v4"
	! grep -q "^inv_freq 1 .* 0.31622" "$T/layout" || false
}

@test "linear rope is accepted under rope_type and under the older key type" {
	for kind in rope_type type; do
		config llama '"head_dim": 16' "\"rope_scaling\": {\"$kind\": \"linear\", \"factor\": 4.0}"
		geometry "rope_scaling 1"
		inv_freq 0 0.25 1 0.079056941 7 7.90569466e-05
	done
}

@test "Llama 3's rope gives the table of transformers in both config dialects" {
	store-layout "$CONFIGS/llama-3.1-8b.json" >"$T/layout"
	inv_freq 0 1 28 0.00321144611 31 0.00085675146 34 0.000178507791 40 3.42810235e-05 63 3.06892588e-07
	cp "$T/layout" "$T/v4"
	sed -e '/"rope_theta"/d' -e '/"torch_dtype"/d' \
		-e 's/"rope_scaling": {/"rope_parameters": {"rope_theta": 500000.0,/' \
		"$CONFIGS/llama-3.1-8b.json" >"$T/config.json"
	geometry
	cmp "$T/layout" "$T/v4"
}

@test "yarn rope gives the table and the attention factor of transformers" {
	config llama '"head_dim": 128' '"rope_theta": 1000000.0' '"max_position_embeddings": 131072' \
		'"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'
	geometry "rope_scaling 1.13862944"
	inv_freq 0 1 20 0.0133352149 30 0.00106436096 40 4.44569851e-05 63 3.10234441e-07
	yarn='"factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0'
	config llama '"head_dim": 64' \
		'"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, '"$yarn"', "mscale_all_dim": 0.7}'
	geometry
	grep -q "^rope_scaling 1.08795" "$T/layout"
	inv_freq 0 1 8 0.100000001 12 0.0316227786 16 0.00566666666 31 3.33380353e-06
	yarn='"factor": 16.0, "truncate": false, "original_max_position_embeddings": 64, "attention_factor": 1.25'
	config llama '"head_dim": 16' '"rope_parameters": {"rope_type": "yarn", '"$yarn"'}'
	geometry "rope_scaling 1.25"
	inv_freq 0 1 4 0.000624999986 7 1.97642366e-05
}

@test "dynamic rope equals plain rope up to max_position_embeddings" {
	config llama
	geometry
	cp "$T/layout" "$T/plain"
	config llama '"rope_scaling": {"type": "dynamic", "factor": 4.0}'
	geometry "short_rows 1"
	diff <(grep -v "^short_rows" "$T/layout") <(grep -v "^short_rows" "$T/plain")
}

# ---- dialects

@test "a config.json with the same values in both dialects is accepted" {
	config qwen2 '"rope_theta": 1000000.0' '"rope_scaling": {"type": "linear", "factor": 2}' \
		'"torch_dtype": "bfloat16"' \
		'"rope_parameters": {"rope_type": "linear", "rope_theta": 1000000, "factor": 2.0}' '"dtype": "bfloat16"' \
		'"use_sliding_window": true' '"sliding_window": 8' '"max_window_layers": 2' \
		'"layer_types": ["full_attention", "full_attention", "sliding_attention"]'
	geometry "window 8" "window_layers ..w"
}

@test "layer_types alone decide which layers have the window" {
	config qwen3 '"use_sliding_window": true' '"sliding_window": 8' \
		'"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]'
	geometry "window 8" "window_layers w.w"
}

@test "attention that is not causal exits 78" {
	config qwen2 '"is_causal": false'
	refused 78 "is_causal false is not supported"
	config qwen2 '"is_causal": true'
	geometry "layers 3"
	config qwen2 '"is_causal": null'        # not true
	refused 78 "is_causal false is not supported"
}

@test "transformers' other names for the numbers of experts are read, and exit 78 if they disagree" {
	changed() { # CASE CHANGE
		python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); exec(sys.argv[2]); print(json.dumps(j))' \
			"$GOLDEN/$1/model/config.json" "$2" >"$T/config.json"
	}
	changed ernie4-5-moe 'j["num_experts_per_tok"] = 1'
	refused 78 "moe_k 2 and num_experts_per_tok 1 disagree"
	changed ernie4-5-moe 'j["num_experts"] = 3'
	refused 78 "moe_num_experts 6 and num_experts 3 disagree"
	changed gpt-oss 'j["num_experts"] = 3'
	refused 78 "num_local_experts 5 and num_experts 3 disagree"
	changed ernie4-5-moe 'j["num_experts_per_tok"] = j.pop("moe_k"); j["num_experts"] = j.pop("moe_num_experts")'
	mt-store create "$RUN" --config "$T/config.json" 2>/dev/null
}

@test "config dialects that disagree exit 78 and name the key" {
	config llama '"rope_theta": 10000.0' '"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}'
	refused 78 "rope_theta"
	config llama '"rope_scaling": {"type": "linear", "factor": 2.0}' \
		'"rope_parameters": {"rope_type": "linear", "factor": 4.0}'
	refused 78 "rope_scaling and rope_parameters disagree"
	config llama '"rope_scaling": null' '"rope_parameters": {"rope_type": "linear", "factor": 4.0}'
	refused 78 "rope_scaling and rope_parameters disagree"
	config llama '"rope_scaling": {"type": "linear", "factor": 2.0}' '"rope_parameters": {"rope_type": "default"}'
	refused 78 "rope_scaling and rope_parameters disagree"
	config llama '"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}'
	refused 78 "rope_scaling: rope_type 'linear' and type 'dynamic' disagree"
	config llama '"torch_dtype": "bfloat16"' '"dtype": "float32"'
	refused 78 "torch_dtype 'bfloat16' and dtype 'float32' disagree"
	config qwen2 '"use_sliding_window": true' '"max_window_layers": 1' \
		'"layer_types": ["full_attention", "full_attention", "sliding_attention"]'
	refused 78 "layer_types of layer 1 disagrees"
	config qwen2 '"layer_types": ["full_attention", "full_attention", "sliding_attention"]'
	refused 78 "layer_types: layer 2 is sliding_attention, but no window is in force"
	config mistral '"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]'
	refused 78 "layer_types of layer 0 disagrees"
	config llama '"original_max_position_embeddings": 64' \
		'"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}'
	refused 78 "original_max_position_embeddings"
}

@test "classes with scaled rope by default: rope_parameters {} is plain rope, rope_scaling null alone exits 78" {
	local family
	for family in apertus gpt_oss; do
		config $family '"head_dim": 8'
		geometry
		no inv_freq 0 1 1 0.1 2 0.01 3 0.001 2>/dev/null
		config $family '"head_dim": 8' '"rope_theta": 10000.0' '"rope_parameters": {}'
		geometry "rope_scaling 1"
		inv_freq 0 1 1 0.1 2 0.01 3 0.001
	done
	for family in apertus gpt_oss ministral3; do
		config $family '"head_dim": 8' '"rope_scaling": null'
		refused 78 "rope_scaling is empty and rope_parameters are missing: to transformers 4 this is plain rope, to 5"
	done
}

@test "rope_scaling with the older key type exits 78 where transformers 4 and 5 read it differently" {
	local family
	for family in gemma3_text olmo3; do
		config $family '"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4.0}'
		geometry "rope_scaling 1"
		config $family '"rope_scaling": {"type": "linear", "factor": 4.0}'
		refused 78 "rope_scaling: transformers 5 ignores the older key type here: write rope_type"
	done
}

# ---- 78

@test "other families and other architectures exit 78" {
	config bert
	refused 78 "model_type 'bert' is not supported: an encoder, whose tokens see those behind them"
	config newfam
	refused 78 "model_type 'newfam' is not supported"
	config llama -model_type
	refused 78 "model_type is missing"
	config llama '"architectures": ["MistralForCausalLM"]'
	refused 78 "architectures 'MistralForCausalLM' is not supported, only LlamaForCausalLM and other classes of llama"
	config llama '"architectures": ["MistralModel"]'
	refused 78 "architectures 'MistralModel'"
	config qwen2 '"architectures": ["Qwen3ForSequenceClassification"]'
	refused 78 "architectures 'Qwen3ForSequenceClassification'"
	config llama '"architectures": ["GPT2Model"]'
	refused 78 "architectures 'GPT2Model'"
	config llama '"architectures": [1]'
	refused 65 "architectures is not a list of names"
}

@test "other classes of the same family are read as its causal LM, as transformers' AutoModelForCausalLM does" {
	local name
	for name in llama:LLaMAForCausalLM llama:LlamaModel llama:LlamaForSequenceClassification \
		llama:LlamaForTokenClassification llama:OurForCausalLM mistral:MistralModel qwen2:Qwen2Model \
		qwen2:Qwen2ForRewardModel gpt_neox:GPTNeoXModel falcon:FalconModel ernie4_5:Ernie4_5_ForCausalLM \
		gpt2:GPT2Model gpt2:GPT2ForSequenceClassification; do
		config "${name%:*}" -architectures
		store-layout "$T/config.json" >"$T/without"
		config "${name%:*}" "\"architectures\": [\"${name#*:}\"]"
		store-layout "$T/config.json" | cmp - "$T/without"
	done
}

@test "seed_oss, starcoder2, gpt2 files that ask for dropout are trained without it, and mt-store create warns once" {
	local family
	for family in seed_oss starcoder2 gpt2; do
		config $family '"residual_dropout": 0.1' '"attention_dropout": 0.1' '"pad_token_id": null'
		mt-store create "$RUN" --config "$T/config.json" 2>"$T/err"
		mt-store rm "$RUN"
		[ "$(grep -c "^mt-store: warning: config.json asks for dropout, which mt does not do: " "$T/err")" = 1 ]
	done
	config seed_oss '"residual_dropout": 0' '"attention_dropout": 0' '"pad_token_id": null'
	mt-store create "$RUN" --config "$T/config.json" 2>"$T/err"
	mt-store rm "$RUN"
	no grep dropout "$T/err"
	config gpt2 '"resid_pdrop": 0' '"embd_pdrop": 0.0' '"attn_pdrop": 0'
	mt-store create "$RUN" --config "$T/config.json" 2>"$T/err"
	mt-store rm "$RUN"
	no grep dropout "$T/err"
}

@test "settings that change the computation and are not implemented exit 78 and are named" {
	config llama '"quantization_config": {"quant_method": "gptq"}'
	refused 78 "quantization_config is not supported"
	config llama '"hidden_act": "gelu"'
	refused 78 "hidden_act 'gelu' is not supported"
	config llama '"partial_rotary_factor": 0.5'
	refused 78 "partial_rotary_factor 0.5 is not supported"
	config llama '"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}'
	refused 78 "partial_rotary_factor 0.5 is not supported"
	config llama '"attention_dropout": 0.1'
	refused 78 "attention_dropout 0.1 is not supported"
	for kind in su mrope axial; do
		config llama "\"rope_scaling\": {\"type\": \"$kind\", \"factor\": 2.0}"
		refused 78 "rope_type '$kind' is not supported"
	done
	config qwen3 '"rope_parameters": {"full_attention": {"rope_type": "default"}}'
	refused 78 "rope_parameters by layer type is not supported"
	config qwen3 '"use_sliding_window": true' '"layer_types": ["linear_attention", "full_attention", "full_attention"]'
	refused 78 "layer_types 'linear_attention' is not supported"
}

full='"layer_types": ["sliding_attention", "full_attention", "full_attention"]'
@test "Gemma 4's own inputs of blocks, and layers that read the k and v of others" {
	config gemma4_text '"hidden_size_per_layer_input": 6' '"vocab_size_per_layer_input": 70' "$full" \
		'"num_kv_shared_layers": 1' '"use_double_wide_mlp": true' '"intermediate_size": 20'
	geometry "window_layers w.." "ple_dim 6" "ple_vocab 70"
	[ "$(grep -c '^kv_kind 2$' "$T/layout")" = 1 ]
	tensor() { grep -q -- "^tensor model.$1" "$T/layout"; }
	tensor "embed_tokens_per_layer.weight unit 5 .* shape 70 18 "
	tensor "per_layer_model_projection.weight unit 5 .* shape 18 32 "
	tensor "layers.0.per_layer_input_gate.weight unit 1 .* shape 6 32 "
	tensor "layers.1.self_attn.k_norm.weight unit 2 "
	tensor "layers.1.mlp.up_proj.weight unit 2 .* shape 20 32 "
	tensor "layers.2.mlp.up_proj.weight unit 3 .* shape 40 32 "
	no tensor "layers.2.self_attn.[kv]_"
}

@test "gemma3n: the class's defaults, layers with other sizes and sparse gates, and keys that are refused" {
	config gemma3n_text '"num_hidden_layers": 20' '"pad_token_id": null' -intermediate_size
	geometry "altup 4" "laurel_rank 64" "ple_dim 256" "ple_vocab 262144" "attention_scale 1" "logit_cap 30" \
		"window 512" "kind_of 00001222234444544445" "sparsity 0.949999988" "ffn 16384"
	config gemma3n_text '"num_kv_shared_layers": 0' '"intermediate_size": [40, 48, 56]' \
		'"activation_sparsity_pattern": [0, 0.5, 0]'
	geometry "ffn 40" "ffn 48" "ffn 56" "sparsity 0.5" "sparsity 0"
	config gemma3n_text
	refused 78 "num_kv_shared_layers 15 of 3 layers are not supported"
	gemma3n='"num_kv_shared_layers": 0'
	config gemma3n_text "$gemma3n" '"intermediate_size": [40, 48]'
	refused 78 "intermediate_size has 2 entries for 3 layers"
	config gemma3n_text "$gemma3n" '"activation_sparsity_pattern": [0, 1, 0]'
	refused 78 "activation_sparsity_pattern of layer 1 is not a number up to 0.9999"
	config gemma3n_text "$gemma3n" '"altup_active_idx": 1'
	refused 78 "altup_active_idx 1 is not supported"
	config gemma3n_text "$gemma3n" '"altup_correct_scale": false'
	refused 78 "altup_correct_scale false is not supported"
	config gemma3n_text "$gemma3n" '"altup_coef_clip": 1.5'
	refused 78 "altup_coef_clip 1.5 is not supported, only 100 and more"
	config gemma3n_text "$gemma3n" '"hidden_size_per_layer_input": 0'
	refused 78 "hidden_size_per_layer_input 0 is not supported"
}

@test "parts of Gemma 4, Seed-OSS and Phi-3 that are not implemented exit 78 and are named" {
	gemma4='"hidden_size_per_layer_input": 0'
	config gemma4_text "$gemma4" '"num_kv_shared_layers": 3'
	refused 78 "num_kv_shared_layers 3 of 3 layers are not supported"
	config gemma4_text "$gemma4" '"num_kv_shared_layers": 1'
	refused 78 "num_kv_shared_layers 1: no layer before has the k and v of layer 2"
	config gemma4_text "$gemma4" '"num_kv_shared_layers": 1' "$full" \
		'"per_layer_config": {"1": {"head_dim": 8}, "2": {"head_dim": 16}}'
	refused 78 "num_kv_shared_layers: layer 2 has heads of another size than layer 1"
	config gemma4_text '"vocab_size_per_layer_input": 9'
	refused 78 "vocab_size_per_layer_input 9 is smaller than vocab_size"
	config gemma4_text '"enable_moe_block": true'
	refused 78 "enable_moe_block with hidden_size_per_layer_input or num_kv_shared_layers is not supported"
	config gemma4_unified_text '"num_kv_shared_layers": 1' '"pad_token_id": null'
	refused 78 "num_kv_shared_layers 1 is not supported"
	config gemma4_text "$gemma4" '"enable_moe_block": true'
	refused 78 "moe_intermediate_size is missing"
	config gemma4_text "$gemma4" '"enable_moe_block": true' '"moe_intermediate_size": 8'
	refused 78 "num_experts is missing"
	config gemma4_text "$gemma4" '"enable_moe_block": true' '"moe_intermediate_size": 8' '"num_experts": 4'
	refused 78 "top_k_experts is missing"
	config gemma4_text "$gemma4" '"enable_moe_block": true' '"moe_intermediate_size": 8' '"num_experts": 4' \
		'"top_k_experts": 5'
	refused 78 "top_k_experts 5 is more than num_experts 4"
	config gemma4_text "$gemma4" '"use_bidirectional_attention": "all"'
	refused 78 "use_bidirectional_attention 'all' is not supported"
	config gemma4_text "$gemma4" '"per_layer_config": {"2": {"sliding_window": 7}}'
	refused 78 "per_layer_config: sliding_window is not supported"
	config gemma3_text '"use_bidirectional_attention": true'
	refused 78 "use_bidirectional_attention true is not supported"
	config gemma3_text '"architectures": ["Gemma3ForConditionalGeneration"]'
	refused 78 "architectures 'Gemma3ForConditionalGeneration' is not supported, only Gemma3ForCausalLM"
	config gemma3
	refused 78 "text_config is missing"
	config phi3 '"pad_token_id": null' '"resid_pdrop": 0.1'
	refused 78 "resid_pdrop 0.1 is not supported"
	config phi3 '"pad_token_id": null' '"rope_scaling": {"type": "linear", "factor": 2.0}'
	refused 78 "rope_type 'linear' is not supported"
	config phi3
	refused 78 "pad_token_id 32000 is not in a vocabulary of 64"
}

@test "longrope: the short factors and the attention factor of both lengths; rows beyond the original one exit 78" {
	longrope='"short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [9, 9, 9, 9]'
	config phi3 '"pad_token_id": null' '"max_position_embeddings": 128' '"original_max_position_embeddings": 32' \
		'"head_dim": 8' "\"rope_scaling\": {\"type\": \"su\", $longrope}"
	geometry "max_position 32" "rope_scaling 1.18321598"
	inv_freq 0 1 1 0.0500000007 2 0.00333333341 3 0.000250000012
	mt-store create "$RUN" --config "$T/config.json" 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	fails_with 78 mt-step "$RUN" --steps 1 --batch 1 --seq 33 --lr 1e-3
	grep -q "above 32 tokens" "$T/fails.err"
	local dynamic='{"rope_type": "dynamic", "factor": 4.0}' other
	local to16="{\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 16, \"factor\": 4.0, $longrope}"
	for other in "\"full_attention\": $to16, \"sliding_attention\": $dynamic" \
		"\"full_attention\": $dynamic, \"sliding_attention\": $to16"; do # the shorter of two
		config olmo3 '"pad_token_id": null' '"max_position_embeddings": 64' '"sliding_window": 5' \
			'"layer_types": ["full_attention", "sliding_attention", "full_attention"]' "\"rope_parameters\": {$other}"
		geometry "max_position 16"
	done
	config phi3 '"pad_token_id": null' '"head_dim": 12' "\"rope_scaling\": {\"type\": \"longrope\", $longrope}"
	fails_with 78 store-layout "$T/config.json"
	grep -q "short_factor has 4 entries for 6 pairs" "$T/fails.err"
}

@test "an indexer of attention: rows in which it does not choose all tokens exit 78" {
	make_run "$GOLDEN/glm-moe-dsa/model"
	grep -q "5 tensors of .* are carried untrained" "$T/load.err" "$T/create.err"
	fails_with 78 mt-step "$RUN" --steps 1 --batch 1 --seq 25 --lr 1e-3
	grep -q "above 24 tokens: there this model's rope (dynamic or longrope) or indexer" "$T/fails.err"
}

@test "layers by pattern: every second, fourth or sixth is full, as layer_types says or as the pattern's key says" {
	config gemma2 '"num_hidden_layers": 5'
	geometry "window_layers w.w.w" "window 4096" "pad_token 0" "tied 1"
	config gemma3_text '"num_hidden_layers": 7'
	geometry "window_layers wwwww.w"
	config gemma3_text '"sliding_window_pattern": 2' '"sliding_window": 5'
	geometry "window_layers w.w" "window 5"
	config gemma3_text '"layer_types": ["full_attention", "sliding_attention", "full_attention"]'
	geometry "window_layers .w."
	config gemma3_text '"sliding_window_pattern": 2' \
		'"layer_types": ["full_attention", "sliding_attention", "full_attention"]'
	refused 78 "layer_types of layer 0 disagrees"
	config gemma4_text '"hidden_size_per_layer_input": 0'
	geometry "window_layers ww." "window 512"
	config olmo3 '"num_hidden_layers": 5' '"pad_token_id": null'
	geometry "window_layers www.w"
	config exaone4 '"sliding_window_pattern": "LLG"'
	refused 78 "sliding_window_pattern without layer_types is not an integer"
	config exaone4 '"sliding_window_pattern": "LLG"' \
		'"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]'
	geometry "window_layers ww."
}

@test "NoPE: full layers of EXAONE 4 beside windows, and those that SmolLM3's lists name, have no rope" {
	ropes() { grep -E "^(kind_of|rope_dim)" "$T/layout" | paste -sd ' ' | grep -qxF -- "$1"; }
	config exaone4 '"sliding_window_pattern": 3'
	geometry "window_layers ww."
	ropes "kind_of 001 rope_dim 8 rope_dim 0"
	config exaone4 '"sliding_window": null'
	geometry "window_layers ..."
	ropes "kind_of 000 rope_dim 8"
	config smollm3 '"pad_token_id": null' '"num_hidden_layers": 5'
	geometry "window_layers ....."
	ropes "kind_of 00010 rope_dim 8 rope_dim 0"
	config smollm3 '"pad_token_id": null' '"no_rope_layer_interval": 2' '"use_sliding_window": true' \
		'"sliding_window": 6'
	geometry "window_layers .w."
	config smollm3 '"pad_token_id": null' '"no_rope_layers": [0, 1, 1]'
	geometry
	ropes "kind_of 011 rope_dim 0 rope_dim 8"
	config smollm3 '"pad_token_id": null' '"no_rope_layers": [0, 1]'
	refused 78 "no_rope_layers is not a list of 3 numbers"
}

@test "two ropes: full layers have rope_theta and rope_scaling, layers with a window another rope" {
	config gemma3_text '"sliding_window_pattern": 3' '"head_dim": 8' '"rope_theta": 10000.0' \
		'"rope_local_base_freq": 100.0' '"rope_scaling": {"rope_type": "linear", "factor": 8.0}'
	geometry
	[ "$(awk '$1 == "inv_freq" && $2 < 2 { printf "%.5f ", $4 }' "$T/layout")" = "1.00000 0.31623 0.12500 0.01250 " ]
	config gemma3_text '"sliding_window_pattern": 3' '"head_dim": 8' '"rope_local_base_freq": 0.5'
	refused 78 "rope_local_base_freq 0.5 is out of range"
	config olmo3 '"pad_token_id": null' '"rope_theta": 10000.0'
	refused 78 "rope_theta 10000 without rope_parameters of sliding_attention is not supported"
	config olmo3 '"pad_token_id": null' '"layer_types": ["full_attention", "full_attention", "full_attention"]' \
		'"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}'
	geometry "window_layers ..."
	config gemma3_text '"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}'
	refused 78 "rope_parameters have no full_attention and sliding_attention"
	config gemma4_text '"hidden_size_per_layer_input": 0' '"head_dim": 8' '"global_head_dim": 16' \
		'"attention_k_eq_v": true' '"num_global_key_value_heads": 1'
	geometry "k_is_v 1" "head_dim 8" "head_dim 16" "kv_heads 1"
	inv_freq 1 0.177827939 2 0 7 0
	! grep -q "layers.2.self_attn.v_proj" "$T/layout" || false
}

# The model of config.json in $T is exported, and Python's EXPRESSION of the new one, c, holds: exports EXPRESSION
exports() {
	rm -rf "$T/out"
	mt-store create "$RUN" --config "$T/config.json" 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	mt-ckpt export "$RUN" "$T/out" 2>/dev/null
	mt-store rm "$RUN"
	python3 -c '
import json, sys
c = json.load(open(sys.argv[1]))
s, p = c.get("rope_scaling"), c.get("rope_parameters")
assert eval(sys.argv[2]), (sys.argv[2], c)' "$T/out/config.json" "$1"
}

# What transformers 4.57.6 wants was found by opening such exports with it and with 5.23, and comparing losses
# bats test_tags=slow
@test "exports of ropes and experts have what transformers 4 reads beside what 5 reads" {
	local full='"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}'
	local plain='"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}' long
	local old types='"layer_types": ["full_attention", "sliding_attention", "full_attention"]'
	config gemma3_text '"pad_token_id": null' "$types" "\"rope_parameters\": {$full, $plain}"
	exports 's == {"rope_type": "linear", "factor": 8} and c["rope_theta"] == 1e6 and c["rope_local_base_freq"] == 1e4'
	config olmo3 '"pad_token_id": null' "$types" "\"rope_parameters\": {$full, ${plain/1e4/1e6\}}"
	exports 's == {"rope_type": "linear", "factor": 8} and c["rope_theta"] == 1e6'
	config olmo3 '"pad_token_id": null' "$types" "\"rope_parameters\": {$full, $plain}" # 4 has one theta
	exports '"rope_scaling" not in c and "rope_theta" not in c'
	config gemma3_text '"pad_token_id": null' "$types" "\"rope_parameters\": {$full, $plain}" \
		'"rope_scaling": {"rope_type": "linear", "factor": 4.0}'
	refused 78 "rope_scaling and rope_parameters of full_attention disagree"

	config olmo2 '"pad_token_id": null' '"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}'
	exports 's == {"type": "linear", "factor": 2} and p["rope_type"] == "linear"'
	long='"rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0'
	config llama '"max_position_embeddings": 64' "\"rope_parameters\": {\"rope_type\": \"llama3\", $long}"
	exports 's["original_max_position_embeddings"] == p["original_max_position_embeddings"] == 64'
	long='"short_factor": [1, 2, 3, 4], "long_factor": [9, 9, 9, 9], "original_max_position_embeddings": 16'
	config granite "\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 1e4, $long}"
	exports 's["rope_type"] == s["type"] == "longrope" and c["original_max_position_embeddings"] == 16'
	for old in su yarn; do
		long="\"type\": \"$old\", \"short_factor\": [1, 2, 3, 4], \"long_factor\": [9, 9, 9, 9]"
		config phi3 '"pad_token_id": null' '"original_max_position_embeddings": 16' "\"rope_scaling\": {$long}"
		exports 's["type"] == p["rope_type"] == "longrope" and "rope_type" not in s and "type" not in p'
	done
	long='"rope_theta": 500.0, "llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 8'
	config ministral3 '"pad_token_id": null' "\"rope_parameters\": {\"rope_type\": \"default\", $long}"
	exports 's is None and p["llama_4_scaling_beta"] == 0.2'
	for type in default linear; do # the temperature's positions, whatever the type
		config ministral3 '"pad_token_id": null' \
			"\"rope_parameters\": {\"rope_type\": \"$type\", \"factor\": 2.0, $long}"
		geometry "temperature 0.200000003 8"
	done
	exports 's["original_max_position_embeddings"] == p["original_max_position_embeddings"] == 8'
	config qwen3_moe '"num_local_experts": 4' '"num_experts_per_tok": 2' '"moe_intermediate_size": 8' '"head_dim": 8'
	exports 'c["num_experts"] == c["num_local_experts"] == 4'
}

@test "missing or absurd keys of a rope_type exit 78" {
	config llama '"rope_scaling": {"type": "longrope", "short_factor": [1.0]}'
	refused 78 "long_factor of rope_type 'longrope' is not a list of numbers"
	config llama '"rope_scaling": {"type": "longrope", "short_factor": [1.0, 0], "long_factor": [1.0, 2.0]}'
	refused 78 "short_factor has an entry that is not a number above 0"
	config llama '"rope_scaling": {"type": "linear"}'
	refused 78 "factor of rope_type 'linear' is missing"
	config llama '"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}'
	refused 78 "high_freq_factor of rope_type 'llama3' is missing"
	config llama \
		'"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}'
	refused 78 "high_freq_factor 4 is not above low_freq_factor 4"
	config llama '"rope_scaling": {"type": "linear", "factor": 0}'
	refused 78 "factor 0 is out of range"
	config llama '"rope_theta": -1'
	refused 78 "rope_theta -1 is out of range"
	config llama '"rope_theta": 1e300'
	refused 78 "rope_theta 1e+300 is out of range"
}

@test "sizes that do not divide evenly exit 78" {
	config llama '"num_attention_heads": 5' -num_key_value_heads
	refused 78 "hidden_size 32 is not a multiple of num_attention_heads 5"
	config llama '"num_key_value_heads": 3'
	refused 78 "num_attention_heads 4 is not a multiple of num_key_value_heads 3"
	config mistral '"head_dim": 7'
	refused 78 "head_dim 7 is not an even number"
	config llama '"hidden_size": 12'
	refused 78 "head_dim 3 is not an even number"
	config llama '"hidden_size": 2' '"num_key_value_heads": 1'
	refused 78 "hidden_size 2 is not a multiple"
	config qwen2 -num_key_value_heads
	refused 78 "num_attention_heads 4 is not a multiple of num_key_value_heads 32"
	config qwen2 '"layer_types": ["full_attention"]'
	refused 78 "layer_types has 1 entries for 3 layers"
}

@test "absurd sizes exit 78 and are named" {
	for pair in vocab_size:0 vocab_size:-1 vocab_size:1000000000000 hidden_size:0 hidden_size:9223372036854775807 \
		num_hidden_layers:0 num_hidden_layers:100000 num_attention_heads:0 num_key_value_heads:0 intermediate_size:0 \
		intermediate_size:99999999999 head_dim:0 head_dim:1024 max_position_embeddings:0; do
		config llama "\"${pair%:*}\": ${pair#*:}"
		refused 78 "${pair%:*} ${pair#*:} is not between"
	done
	config llama '"pad_token_id": 64'
	refused 78 "pad_token_id 64 is not in a vocabulary of 64"
	config llama '"rms_norm_eps": -1e-6'
	refused 78 "rms_norm_eps -1e-06 is out of range"
	config llama '"initializer_range": 1e9'
	refused 78 "initializer_range 1e+09 is out of range"
	config mistral '"sliding_window": 0'
	refused 78 "sliding_window 0 is not between"
}

@test "a unit too large for the journal exits 78, and no multiplication overflows on the way" {
	config llama '"vocab_size": 16777216' '"hidden_size": 1048576' '"head_dim": 64'
	fails_with 78 mt-store create "$RUN" --config "$T/config.json"
	grep -q "tensor 'model.embed_tokens.weight' of 16777216 x 1048576 is out of range" "$T/fails.err"
	gone "$RUN"
}

# ---- 65, 66

@test "a config.json that is not JSON exits 65" {
	for text in '' '{' '[]' '"llama"' '{"model_type": "llama",}' '{"model_type": llama}' '{"model_type": "llama"} {}' \
		'{"rope_theta": NaNa}' '{"rope_theta": 0123}' '{"rope_theta": 1.}' '{"hidden_size": -}' '{"hidden_size": +1}' \
		'{"hidden_size": 99999999999999999999x}' '{"a": Infinity "b"}' '{NaN: 1}' '{"model_type": "llama\u0000"}'; do
		printf '%s' "$text" >"$T/config.json"
		refused 65 ""
	done
	printf '{"model_type": "llama\0"}' >"$T/config.json"
	refused 65 ""
	printf '{"model_type": "\377"}' >"$T/config.json"
	refused 65 ""
}

@test "numbers that only Python parses are ignored in unused keys; in used keys they exit 78 and are named" {
	config llama '"a": NaN' '"b": [-Infinity, {"c": Infinity}]' '"d": 18446744073709551616' \
		'"e": -9223372036854775809' \
		'"f": 1e999' '"g": "NaN, 1e999, \"Infinity\""'
	geometry "vocab 64"
	while read -r key number; do
		config llama "\"$key\": $number"
		refused 78 "$key $number is out of range"
	done <<-'END'
		vocab_size 9223372036854775808
		hidden_size 99999999999999999999
		num_hidden_layers -1e400
		rope_theta NaN
		rope_theta Infinity
		rms_norm_eps -Infinity
		pad_token_id 1e999
	END
}

@test "a duplicate key exits 65" {
	echo '{"model_type": "llama", "hidden_size": 32, "hidden_size": 64}' >"$T/config.json"
	refused 65 "line 1: not JSON: duplicate object key"
}

@test "a duplicate key is named with both of its values, in inner objects too" {
	printf '{"model_type": "llama",\n"hidden_size": 32,\n"hidden_size" : 64}' >"$T/config.json"
	refused 65 "line 3: not JSON: duplicate object key 'hidden_size': 32 and 64"
	echo '{"rope_scaling": {"a": [{"factor": {"x": 1}, "factor": "\"y"}]}}' >"$T/config.json"
	refused 65 "line 1: not JSON: duplicate object key 'factor': {\"x\":1} and \"\\\"y\""
	python3 -c 'print("{\"k\": \"%s\", \"k\": null}" % ("long " * 1000))' >"$T/config.json"
	refused 65 "line 1: not JSON: duplicate object key 'k': \"long long long long long long long long... and null"
}

@test "a git-lfs pointer, a GGUF file and a file of weights in place of config.json exit 65 and are named" {
	printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 49\n' 0 >"$T/config.json"
	refused 65 "is a git-lfs pointer, not the file itself: git lfs pull, "
	printf 'GGUF\3\0\0\0' >"$T/config.json"
	truncate -s 20M "$T/config.json"
	refused 65 "is a GGUF file, which mt does not read: in Python (transformers and gguf), AutoModelForCausalLM"
	fails_with 65 mt-store create "$RUN" --config "$GOLDEN/llama3/model/model.safetensors"
	grep -q "model.safetensors: is a file of weights: give the model's directory" "$T/fails.err"
}

@test "a directory without config.json exits 66 and says what it has instead, and what to do" {
	without() { # FILE WORDS
		rm -rf "$T/in"
		mkdir "$T/in"
		touch "$T/in/$1" "$T/in/training_args.bin"
		fails_with 66 mt-store create "$RUN" --config "$T/in"
		grep -qF "mt-store: config.json: No such file or directory; $2" "$T/fails.err"
	}
	without adapter_config.json "a LoRA adapter, which is no whole model, has adapter_config.json: in Python, peft."
	grep -qF "merge_and_unload().save_pretrained(NEW)" "$T/fails.err"
	without model-Q4_K_M.gguf "mt does not read model-Q4_K_M.gguf: in Python (transformers and gguf)"
	without consolidated.00.pth "mt does not read consolidated.00.pth: it is in a format of PyTorch"
	without consolidated.safetensors "mt does not read consolidated.safetensors: it is in Mistral's own format"
	without pytorch_model-00001-of-00002.bin "mt does not read pytorch_model-00001-of-00002.bin: in Python"
	rm -r "$T/in"
	mkdir "$T/in"
	touch "$T/in/training_args.bin"
	fails_with 66 mt-store create "$RUN" --config "$T/in"
	[ "$(cat "$T/fails.err")" = "mt-store: config.json: No such file or directory" ]
}

# bats test_tags=slow
@test "values of the wrong JSON type exit 65 and are named" {
	while read -r member; do
		config llama "$member"
		key=$(printf '%s' "$member" | cut -d '"' -f 2)
		refused 65 "$key is not "
	done <<-'END'
		"model_type": 7
		"architectures": "LlamaForCausalLM"
		"hidden_size": "32"
		"hidden_size": 32.0
		"hidden_size": null
		"num_hidden_layers": [3]
		"tie_word_embeddings": 0
		"attention_bias": "true"
		"rms_norm_eps": "1e-6"
		"rope_theta": "10000"
		"rope_scaling": "linear"
		"rope_parameters": []
		"pad_token_id": 0.5
		"hidden_act": {}
		"layer_types": "full_attention"
		"torch_dtype": 16
	END
}

@test "a deeply nested or very long config.json exits 65 and does not crash" {
	awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >"$T/config.json"
	refused 65 ""
	truncate -s 17M "$T/config.json"
	refused 65 "larger than 16 MiB"
}

@test "a missing config.json exits 66" {
	fails_with 66 mt-store create "$RUN" --config "$T/nothing.json"
	fails_with 66 mt-store create "$RUN" --config "$T"
	fails_with 66 mt-store create "$RUN" --config "$T/nothing/config.json"
	gone "$RUN"
}

@test "a FIFO or a device as config.json exits 65 at once" {
	mkfifo "$T/config.json"
	refused 65 "not a regular file"
	rm "$T/config.json"
	ln -s /dev/zero "$T/config.json"
	refused 65 "not a regular file"
}

@test "an error message is one line, whatever the file contains" {
	config llama '"hidden_act": "ge\nlu\u001b[31m"'
	refused 78 "hidden_act 'ge?lu?[31m' is not supported"
}

# bats test_tags=slow
@test "every prefix of a config.json, and every changed byte of it, is either read or refused, without a crash" {
	config qwen3 '"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}' \
		'"use_sliding_window": true' '"layer_types": ["full_attention", "sliding_attention", "full_attention"]'
	size=$(stat -c %s "$T/config.json")
	for i in $(seq 0 3 "$size"); do
		head -c "$i" "$T/config.json" >"$T/short.json"
		{ head -c "$i" "$T/config.json"; printf '"'; tail -c +"$((i + 2))" "$T/config.json"; } >"$T/changed.json"
		for file in short changed; do
			code=0
			store-layout "$T/$file.json" >/dev/null 2>&1 || code=$?
			[ "$code" = 0 ] || [ "$code" = 65 ] || [ "$code" = 78 ]
		done
	done
}

# ---- transformers

# bats test_tags=slow
@test "geometry, tensors and rope tables equal those of transformers' own classes" {
	need_torch
	with_torch - "$T" <<'END'
import json, os, random, struct, subprocess, sys, warnings
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")
import torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM

random.seed(1)
where = sys.argv[1]

def ropes():
    return random.choice([
        None, {"rope_type": "linear", "factor": random.choice([2.0, 2.5])}, {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": random.choice([32, 8192])},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": random.choice([64, 8192])},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
         "mscale_all_dim": 0.7, "beta_fast": 16, "beta_slow": 2}])

for attempt in range(60):
    family = random.choice(["llama", "qwen2", "qwen3", "mistral"])
    kv = random.choice([1, 2, 4])
    heads = kv * random.choice([1, 2, 3])
    config = {"model_type": family, "vocab_size": random.randint(20, 90),
              "hidden_size": 4 * heads * random.choice([1, 2, 3]),
              "intermediate_size": random.randint(1, 80), "num_hidden_layers": random.randint(1, 5),
              "num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 65536}
    for key, values in {"head_dim": [8, 10, 64], "tie_word_embeddings": [True, False], "attention_bias": [True, False],
                        "mlp_bias": [True, False], "rms_norm_eps": [1e-5, 1e-6], "sliding_window": [5, 4096],
                        "use_sliding_window": [True, False], "max_window_layers": [0, 1, 3],
                        "pad_token_id": [0, 7]}.items():
        if random.random() < 0.6:
            config[key] = random.choice(values)
    if family == "mistral":    # transformers 4 fails if its head_dim is missing
        config.setdefault("head_dim", config["hidden_size"] // heads)
    rope, theta = ropes(), random.choice([10000.0, 1000000.0, 500000.0])
    if int(transformers.__version__.split(".")[0]) >= 5 and random.random() < 0.5:
        config["rope_parameters"] = dict(rope or {"rope_type": "default"}, rope_theta=theta)
    else:
        config["rope_theta"], config["rope_scaling"] = theta, rope
    path = os.path.join(where, "config.json")
    with open(path, "w") as f:
        json.dump(config, f)
    saved = os.path.join(where, "saved")
    AutoConfig.from_pretrained(where).save_pretrained(saved)    # in the dialect of the installed transformers
    lines = subprocess.run(["store-layout", path], capture_output=True, text=True, check=True).stdout.splitlines()
    again = subprocess.run(["store-layout", saved], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == again, (config, [x for x in zip(lines, again) if x[0] != x[1]][:3])

    meant = AutoConfig.from_pretrained(where)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(meant)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    got = {}
    for line in lines:
        w = line.split()
        if w[0] == "tensor":
            rows, columns = int(w[7]), int(w[8])
            got[w[1]] = (rows, columns) if w[-1] == "1" else (rows,)
    assert got == shapes, (config, set(got.items()) ^ set(shapes.items()))
    facts = dict(line.split(None, 1) for line in lines if len(line.split()) == 2)
    types = getattr(meant, "layer_types", None)
    window = meant.sliding_window if family != "llama" else None
    if family == "mistral":
        types = ["sliding_attention" if window else "full_attention"] * meant.num_hidden_layers
    pattern = "".join("w" if window and types and t == "sliding_attention" else "."
                      for t in types or ["."] * meant.num_hidden_layers)
    assert facts["window_layers"] == pattern, (config, facts)
    assert int(facts["window"]) == (window if "w" in pattern else 0), (config, facts)
    assert int(facts["pad_token"]) == (-1 if meant.pad_token_id is None else meant.pad_token_id)

    rotary = type(model.model.rotary_emb)(meant)
    # each kind of layers has this table, the first one's is complete before a line "kind 1"
    first = lines[:lines.index("kind 1")] if "kind 1" in lines else lines
    table = [int(line.split()[2], 16) for line in first if line.startswith("inv_freq")]
    want = [struct.unpack("I", struct.pack("f", x))[0] for x in rotary.inv_freq.tolist()]
    assert len(table) == len(want) and max(abs(a - b) for a, b in zip(table, want)) <= 2, (config, table, want)
    assert abs(float(facts["rope_scaling"]) - rotary.attention_scaling) <= 1e-7 * rotary.attention_scaling
END
}

@test "each class that transformers has for language models, for images too, has a golden case or a reason why not" {
	need_torch
	with_torch - "$TOP" "$T/config.json" <<-'END'
		import glob, json, re, subprocess, sys
		sys.path.insert(0, sys.argv[1] + "/tests/golden")
		import cases_wrappers
		from transformers.models.auto import modeling_auto as auto
		classes = {**auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
		           **auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
		configs = [json.load(open(path)) for path in glob.glob(sys.path[0] + "/*/model/config.json")]
		configs += [case["config"].to_dict() for case in cases_wrappers.MORE.values()]
		configs += [{"model_type": "gpt-sw3"}]  # which is gpt2
		configs += [{"model_type": "gemma3n"}]  # whose class needs timm: tests/79-wrappers wraps gemma3n_text
		cases = {part["model_type"] for c in configs for part in (c, c.get("text_config", c))}
		table = re.search("figures untrained(.*?)<!-- end", open(sys.argv[1] + "/shm/model/README.md").read(), re.S)[1]
		table = {name: row[0] for row in re.findall("\\| (.*?) \\| (.*?) \\|", table) for name in row[1].split(", ")}
		table = {name: why for name, why in table.items() if name not in ("model_type", "---")}
		assert table.keys() <= classes.keys(), ("no class any more", table.keys() - classes.keys())
		for name in classes:
		    json.dump({"model_type": name}, open(sys.argv[2], "w"))
		    said = subprocess.run(["store-layout", sys.argv[2]], capture_output=True, text=True).stderr
		    refused = "model_type '%s' is not supported" % name in said
		    assert refused == (name in table) and (not refused or said.endswith(": %s\n" % table[name])), said
		    assert refused or name in cases, "%s has no golden case" % name
	END
}

# bats test_tags=slow
@test "families with layers of several kinds: tensors, windows and ropes equal those of transformers' own classes" {
	need_torch
	with_torch "$BATS_TEST_DIRNAME/lib/families.py" "$T" $((NIGHTLY ? 6 : 2))
}

@test "gated DeltaNet: the class's defaults, each kind of layers, and keys that are refused" {
	config qwen3_5_text '"num_hidden_layers": 5' '"hidden_size": 64'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 00010$" "$T/layout"
	grep -q "^rope_dim 64$" "$T/layout" # a quarter of 256
	# 16 key heads and 32 value heads of 128
	grep -q "layers.0.linear_attn.in_proj_qkv.weight unit 1 .* shape 8192 64 " "$T/layout"
	grep -q "layers.0.linear_attn.in_proj_b.weight unit 1 .* shape 32 64 " "$T/layout"
	grep -q "layers.0.linear_attn.conv1d.weight unit 1 .* shape 8192 4 .* decay 1" "$T/layout"
	grep -q "layers.0.linear_attn.A_log unit 1 .* decay 0" "$T/layout"
	grep -q "layers.3.self_attn.q_proj.weight unit 4 .* shape 2048 64 " "$T/layout" # of four heads, with their gates
	config qwen3_5_text '"full_attention_interval": 2'
	store-layout "$T/config.json" | grep -q "^kind_of 010$"
	config qwen3_5_text '"layer_types": ["full_attention", "linear_attention", "linear_attention"]'
	store-layout "$T/config.json" | grep -q "^kind_of 011$"
	config qwen3_5_text '"layer_types": ["full_attention", "sliding_attention", "linear_attention"]'
	refused 78 "layer_types: layer 1 is sliding_attention, but no window is in force"
	config qwen3 '"layer_types": ["full_attention", "linear_attention", "full_attention"]'
	refused 78 "layer_types 'linear_attention' is not supported"
	config qwen3_5_text '"layer_types": ["linear_attention"]'
	refused 78 "layer_types has 1 entries for 3 layers"
	config qwen3_5_text '"linear_num_key_heads": 3'
	refused 78 "linear_num_value_heads 32 is not a multiple of linear_num_key_heads 3"
	config qwen3_5_text '"linear_key_head_dim": 257'
	refused 78 "linear_key_head_dim"
	config qwen3_5_text '"linear_conv_kernel_dim": 0'
	refused 78 "linear_conv_kernel_dim"
	config qwen3_5_text '"attn_output_gate": false'
	refused 78 "attn_output_gate false is not supported"
	config qwen3_5_text '"output_gate_type": "sigmoid"'
	refused 78 "output_gate_type 'sigmoid' is not supported"
	config qwen3_5_text '"mamba_ssm_dtype": "bfloat16"'
	refused 78 "mamba_ssm_dtype 'bfloat16' is not supported"
	config qwen3_5_text '"hidden_act": "gelu"'
	refused 78 "hidden_act 'gelu' is not supported"
}

@test "LFM2: short convolutions, the MLP's size, and keys that are refused" {
	config lfm2 '"num_hidden_layers": 4' '"hidden_size": 64' '"full_attn_idxs": [2, 9]' '"intermediate_size": 1000'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 0010$" "$T/layout"
	grep -q "layers.0.conv.in_proj.weight unit 1 .* shape 192 64 " "$T/layout"
	grep -q "layers.0.conv.conv.weight unit 1 .* shape 64 3 .* decay 1" "$T/layout"
	grep -q "layers.2.self_attn.out_proj.weight unit 3 .* shape 64 64 " "$T/layout"
	grep -q "layers.0.feed_forward.w1.weight unit 1 .* shape 768 64 " "$T/layout" # 666, rounded up
	config lfm2 '"block_auto_adjust_ff_dim": false' '"intermediate_size": 1000'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 000$" "$T/layout" # attention alone
	grep -q "layers.0.feed_forward.w2.weight unit 1 .* 1000 " "$T/layout"
	config lfm2 '"layer_types": ["full_attention", "conv", "linear_attention"]'
	refused 78 "layer_types 'linear_attention' is not supported"
	config lfm2 '"full_attn_idxs": 3'
	refused 65 "full_attn_idxs is not a list"
	config lfm2 '"full_attn_idxs": [1.5]'
	refused 65 "full_attn_idxs has an entry that is not an integer"
	config lfm2 '"conv_bias": true' '"full_attn_idxs": [1]'
	store-layout "$T/config.json" >"$T/layout"
	[ "$(grep -c "conv.*bias unit" "$T/layout")" = 6 ] # in_proj, conv and out_proj of two layers
	config lfm2 '"conv_L_cache": 5'
	refused 78 "conv_L_cache"
	config lfm2 '"block_ffn_dim_multiplier": -1'
	refused 78 "block_ffn_dim_multiplier -1 is out of range"
	config lfm2 '"block_ff_dim": 100' '"intermediate_size": 1000'
	refused 78 "intermediate_size and block_ff_dim disagree"
	config lfm2_moe '"layer_types": ["conv", "full_attention", "conv"]' '"num_experts": 4' '"moe_intermediate_size": 10'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "layers.1.feed_forward.w1.weight unit 2 .* shape 48 32 " "$T/layout"
	grep -q "layers.2.feed_forward.experts.3.w2.weight unit 3 .* shape 32 10 " "$T/layout"
	grep -q "layers.2.feed_forward.expert_bias unit 3 .* shape 4 1 .* decay 0" "$T/layout"
	config lfm2_moe '"num_experts": 4'
	refused 78 "layer_types is missing"
}

@test "Kimi Linear: which layers are what, sizes, and keys that are refused" {
	heads='"num_key_value_heads": 4'
	config kimi_linear "$heads" '"pad_token_id": null' '"num_hidden_layers": 10' # the class's rule
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 0111211121$" "$T/layout"
	grep -q "layers.0.self_attn.f_b_proj.weight unit 1 .* shape 4096 128 " "$T/layout"
	grep -q "layers.0.self_attn.A_log unit 1 .* shape 32 1 " "$T/layout"
	grep -q "layers.4.self_attn.kv_a_proj_with_mqa.weight unit 5 .* shape 576 32 " "$T/layout"
	grep -q "layers.4.self_attn.q_proj.weight unit 5 .* shape 768 32 " "$T/layout" # no latent of q
	linear='"head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 4'
	config kimi_linear "$heads" '"pad_token_id": null' '"num_hidden_layers": 3' \
		"\"linear_attn_config\": {\"full_attn_layers\": [2], \"kda_layers\": [3, 1], $linear}"
	store-layout "$T/config.json" | grep -q "^kind_of 012$"
	config kimi_linear "$heads" '"pad_token_id": null' '"num_hidden_layers": 3' \
		"\"linear_attn_config\": {\"full_attn_layers\": [2], \"kda_layers\": [3], $linear}"
	refused 78 "linear_attn_config does not say what layer 1 is"
	config kimi_linear "$heads" '"pad_token_id": null' '"num_hidden_layers": 3' \
		"\"linear_attn_config\": {\"full_attn_layers\": [2], \"kda_layers\": [4, 1], $linear}"
	refused 78 "kda_layers names layer 4, of 3, or twice"
	config kimi_linear "$heads" '"pad_token_id": null' '"mla_use_nope": false'
	refused 78 "mla_use_nope false is not supported"
	config kimi_linear "$heads" '"pad_token_id": null' '"moe_router_activation_func": "softmax"'
	refused 78 "moe_router_activation_func 'softmax' is not supported, only sigmoid"
	config kimi_linear "$heads" '"pad_token_id": null' '"moe_layer_freq": 2'
	refused 78 "moe_layer_freq is not supported, only 1"
	config kimi_linear "$heads" '"pad_token_id": null' '"tie_word_embeddings": true' # its class ties nothing
	refused 78 "tie_word_embeddings true is not supported"
}

@test "MLA: the class's defaults, with and without a latent of q, the factor of scores, and keys that are refused" {
	heads='"num_key_value_heads": 4'
	config deepseek_v3 "$heads" '"num_hidden_layers": 4'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 0001$" "$T/layout" # three dense layers first
	grep -q "^head_dim 192$" "$T/layout"
	grep -q "^rope_dim 64$" "$T/layout"
	grep -q "^neighbours 1$" "$T/layout"
	grep -q "layers.0.self_attn.q_a_proj.weight unit 1 .* shape 1536 32 " "$T/layout"
	grep -q "layers.0.self_attn.kv_a_proj_with_mqa.weight unit 1 .* shape 576 32 " "$T/layout"
	grep -q "layers.0.self_attn.q_b_proj.weight unit 1 .* shape 768 1536 " "$T/layout"
	grep -q "layers.0.self_attn.kv_b_proj.weight unit 1 .* shape 1024 512 " "$T/layout"
	grep -q "layers.0.self_attn.o_proj.weight unit 1 .* shape 32 512 " "$T/layout"
	grep -q "^attention_scale 0.0721687824$" "$T/layout" # 192^-1/2
	config deepseek_v3 "$heads" '"q_lora_rank": null' '"attention_bias": true' '"rope_interleave": false'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^neighbours 0$" "$T/layout"
	grep -q "layers.0.self_attn.q_proj.weight unit 1 .* shape 768 32 " "$T/layout"
	grep -q "layers.0.self_attn.kv_a_proj_with_mqa.bias" "$T/layout"
	! grep -q "layers.0.self_attn.q_.*bias\|q_a_layernorm\|q_b_proj" "$T/layout"
	config deepseek_v3 "$heads" '"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}'
	store-layout "$T/config.json" | grep -q "^attention_scale 0.1352337" # times (0.1 log(40) + 1)^2
	for type in linear dynamic; do # not of yarn alone
		config deepseek_v3 "$heads" "\"rope_scaling\": {\"type\": \"$type\", \"factor\": 4, \"mscale_all_dim\": 1.0}"
		store-layout "$T/config.json" | grep -q "^attention_scale 0.09356"
	done
	config glm4_moe_lite "$heads"
	store-layout "$T/config.json" | grep -q "^head_dim 256$"
	config mistral4 "$heads"
	store-layout "$T/config.json" | grep -q "^kind_of 000$"
	config deepseek_v3
	refused 78 "num_key_value_heads 2 is not num_attention_heads 4"
	config deepseek_v2 "$heads" '"num_experts_per_tok": 2' '"topk_method": "noaux_tc"'
	refused 78 "topk_method 'noaux_tc' is not supported, only greedy and group_limited_greedy"
	config deepseek_v2 "$heads" '"num_experts_per_tok": 2' '"topk_method": "group_limited_greedy"' '"n_group": 8'
	refused 78 "topk_method group_limited_greedy without n_group and topk_group"
	config deepseek_v2 "$heads" '"num_experts_per_tok": 2' '"topk_method": "group_limited_greedy"' '"n_group": 8' \
		'"topk_group": 9'
	refused 78 "topk_group 9 is more than n_group 8"
	config deepseek_v2 "$heads" '"topk_method": "group_limited_greedy"' '"n_group": 8' '"topk_group": 2'
	refused 78 "num_experts_per_tok is missing"
	config deepseek_v2 "$heads" '"num_experts_per_tok": 2' '"norm_topk_prob": true'
	refused 78 "norm_topk_prob true is not supported"
	config deepseek_v2 "$heads"
	refused 78 "num_experts_per_tok"
	config deepseek_v3 "$heads" '"head_dim": 100'
	refused 78 "head_dim 100 is not qk_rope_head_dim 64 or, with qk_nope_head_dim, 192"
	config deepseek_v3 "$heads" '"qk_nope_head_dim": 500'
	refused 78 "head_dim 564 is not an even number up to 512"
	config deepseek_v3 "$heads" '"v_head_dim": 0'
	refused 78 "v_head_dim"
	config deepseek_v3 "$heads" '"partial_rotary_factor": 0.5'
	refused 78 "partial_rotary_factor 0.5 is not supported"
}

@test "Mamba 2 in Granite 4: the class's defaults, a shared MLP alone, rope by a key, and keys that are refused" {
	config granitemoehybrid '"layer_types": ["mamba", "attention", "linear_attention"]' '"mamba_n_heads": 4'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 010$" "$T/layout"
	grep -q "layers.0.mamba.in_proj.weight unit 1 .* shape 644 32 " "$T/layout" # 64 + 64 + 2 * 256 + 4
	grep -q "layers.0.mamba.conv1d.weight unit 1 .* shape 576 4 " "$T/layout"
	grep -q "layers.0.mamba.conv1d.bias unit 1 .* shape 576 1 " "$T/layout"
	grep -q "layers.0.mamba.norm.weight unit 1 .* shape 64 1 " "$T/layout"
	grep -q "layers.0.block_sparse_moe.input_linear.weight" "$T/layout" # 8 experts
	grep -q "layers.0.shared_mlp.input_linear.weight unit 1 .* shape 2048 32 " "$T/layout"
	! grep -q "^rope_dim [^0]" "$T/layout"
	config granitemoehybrid '"num_local_experts": 0' '"shared_intermediate_size": 40' '"mamba_n_heads": 4' \
		'"position_embedding_type": "rope"' '"layer_types": ["attention", "attention", "attention"]'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 000$" "$T/layout"
	grep -q "^rope_dim 8$" "$T/layout"
	grep -q "layers.0.shared_mlp.input_linear.weight unit 1 .* shape 80 32 " "$T/layout"
	! grep -q "block_sparse_moe" "$T/layout"
	for limit in '[0.001, Infinity]' '[0.001, {"__float__": "Infinity"}]' '[0, 1]'; do
		config granitemoehybrid '"mamba_n_heads": 4' "\"time_step_limit\": $limit"
		store-layout "$T/config.json" | grep -q "^kind_of 000$" # all of them Mamba 2
	done
	config granitemoehybrid '"mamba_n_heads": 4' '"time_step_limit": [0.5, 0.1]'
	refused 78 "time_step_limit 0.5 to 0.1 is out of range"
	config granitemoehybrid '"mamba_n_heads": 4' '"time_step_limit": [0.5]'
	refused 65 "time_step_limit is not a list of two numbers"
	config granitemoehybrid '"mamba_n_heads": 4' '"mamba_d_head": 10'
	refused 78 "mamba_n_heads 4 of 10 are not mamba_expand times hidden_size 32"
	config granitemoehybrid '"mamba_n_heads": 4' '"mamba_n_groups": 3'
	refused 78 "mamba_n_heads 4 is not a multiple of mamba_n_groups 3"
	config granitemoehybrid '"mamba_n_heads": 4' '"mamba_d_state": 300'
	refused 78 "mamba_d_state"
	config granitemoehybrid '"mamba_n_heads": 4' '"mamba_d_conv": 5'
	refused 78 "mamba_d_conv"
	config granitemoehybrid '"mamba_n_heads": 4' '"hidden_act": "gelu"'
	refused 78 "hidden_act 'gelu' is not supported"
	config granitemoehybrid '"mamba_n_heads": 4' '"layer_types": ["mamba", "conv", "attention"]'
	refused 78 "layer_types 'conv' is not supported"
}

@test "Mamba 1: channels, a rank of dt, norms, layers of one half, Jamba's layers, and keys that are refused" {
	config mamba '"num_hidden_layers": 2' '"intermediate_size": null' '"time_step_rank": "auto"'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "backbone.layers.1.mixer.in_proj.weight unit 2 .* shape 128 32 " "$T/layout"
	grep -q "backbone.layers.1.mixer.x_proj.weight unit 2 .* shape 34 64 " "$T/layout" # 2 + 2 * 16
	grep -q "backbone.layers.1.mixer.A_log unit 2 .* shape 64 16 " "$T/layout"
	! grep -q "_layernorm\|lm_head\|in_proj.bias\|up_proj" "$T/layout" || false
	config falcon_mamba '"intermediate_size": 40' '"time_step_rank": 5' '"use_bias": true' '"use_conv_bias": false'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "layers.0.mixer.dt_proj.weight unit 1 .* shape 40 5 " "$T/layout"
	grep -q "layers.0.mixer.in_proj.bias unit 1 .* shape 80 1 " "$T/layout"
	grep -q "layers.0.mixer.out_proj.bias unit 1 .* shape 32 1 " "$T/layout"
	! grep -q "conv1d.bias" "$T/layout" || false
	for key in '"state_size": 129' '"conv_kernel": 5' '"time_step_rank": "full"' '"hidden_act": "gelu"' \
		'"mixer_rms_eps": 0'; do
		config falcon_mamba "$key"
		! store-layout "$T/config.json" 2>"$T/err" || { echo "$key is taken" >&2; return 1; }
		grep -q "$(printf %s "$key" | cut -d'"' -f2)" "$T/err"
	done
	config jamba '"num_hidden_layers": 4' '"attn_layer_period": 2' '"attn_layer_offset": 0' '"num_experts": 6' \
		'"expert_layer_period": 3' '"expert_layer_offset": 2'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 0121$" "$T/layout"
	grep -q "layers.0.self_attn.q_proj.weight" "$T/layout"
	grep -q "layers.1.mamba.dt_layernorm.weight unit 2 .* shape 2 1 " "$T/layout"
	grep -q "layers.2.feed_forward.experts.5.up_proj.weight" "$T/layout"
	! grep -q "^rope_dim [^0]\|layers.1.feed_forward.router" "$T/layout" || false
	config jamba '"num_experts": 1'
	store-layout "$T/config.json" >"$T/layout"
	! grep -q "feed_forward.router" "$T/layout" || false
	config jamba '"attn_layer_offset": 8'
	refused 78 "attn_layer_offset 8 is not below attn_layer_period 8"
}

@test "Nemotron-H: layers of one half by a list or a pattern of letters, and keys that are refused" {
	config nemotron_h '"hybrid_override_pattern": "M-*EM"' '"head_dim": 8'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^layers 5$" "$T/layout"
	grep -q "^kind_of 01230$" "$T/layout"
	grep -q "backbone.embeddings.weight unit 0 " "$T/layout"
	grep -q "backbone.layers.0.norm.weight unit 1 " "$T/layout"
	grep -q "backbone.layers.0.mixer.in_proj.weight unit 1 .* shape 18560 32 " "$T/layout" # 2 * 8192 + 2 * 1024 + 128
	grep -q "backbone.layers.1.mixer.up_proj.weight unit 2 .* shape 48 32 " "$T/layout"
	grep -q "backbone.layers.2.mixer.q_proj.weight unit 3 " "$T/layout"
	grep -q "backbone.layers.3.mixer.gate.e_score_correction_bias unit 4 " "$T/layout"
	grep -q "backbone.layers.3.mixer.experts.7.down_proj.weight unit 4 .* shape 32 7688 " "$T/layout"
	grep -q "backbone.layers.3.mixer.shared_experts.up_proj.weight unit 4 " "$T/layout"
	[ "$(grep -c "layers.1\." "$T/layout")" = 3 ] # a norm and two matrices
	cp "$T/layout" "$T/pattern"
	config nemotron_h '"layers_block_type": ["mamba", "mlp", "attention", "moe", "linear_attention"]' '"head_dim": 8'
	store-layout "$T/config.json" | cmp - "$T/pattern"
	config nemotron_h '"head_dim": 8'
	store-layout "$T/config.json" | grep -q "^kind_of 0123$"
	config nemotron_h '"hybrid_override_pattern": "MX"'
	refused 78 "hybrid_override_pattern 'X' is not supported"
	config nemotron_h '"hybrid_override_pattern": "M*"' '"layers_block_type": ["mamba", "mlp"]'
	refused 78 "layers_block_type and hybrid_override_pattern disagree"
	config nemotron_h '"layers_block_type": ["sliding_attention"]'
	refused 78 "layers_block_type 'sliding_attention' is not supported"
	config nemotron_h '"layers_block_type": []'
	refused 78 "0 layers are not between 1 and 1024"
	config nemotron_h '"layers_block_type": "M"'
	refused 65 "layers_block_type is not a list"
	config nemotron_h '"moe_latent_size": 16'
	refused 78 "moe_latent_size is not supported"
	config nemotron_h '"mlp_bias": true'
	refused 78 "mlp_bias true is not supported"
	config nemotron_h '"tie_word_embeddings": true'
	refused 78 "tie_word_embeddings true is not supported"
	config nemotron_h '"mamba_hidden_act": "gelu"'
	refused 78 "mamba_hidden_act 'gelu' is not supported"
	config nemotron_h '"time_step_min": -1'
	refused 78 "time_step_min -1 is out of range"
	config nemotron_h '"conv_kernel": 5'
	refused 78 "conv_kernel"
}

@test "Lara Mini: each five layers are the same, and full ones have no rope" {
	config lara_mini '"num_hidden_layers": 6' '"hidden_act": "silu"'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 010210$" "$T/layout"
	grep -q "^window_layers .w..w.$" "$T/layout"
	[ "$(grep "^rope_dim" "$T/layout" | tr '\n' ' ')" = "rope_dim 0 rope_dim 128 rope_dim 0 " ]
	grep -q "layers.0.linear_attn.in_proj.weight unit 1 .* shape 6176 32 " "$T/layout" # 2 * 1024 + 2 * 2048 + 2 * 16
	config lara_mini '"sliding_window": null'
	refused 78 "sliding_window null is not supported"
}

@test "OLMo Hybrid: which layers have attention, sizes that follow from others, and rope that null turns off" {
	config olmo_hybrid '"pad_token_id": 0' '"num_hidden_layers": 3' '"linear_num_value_heads": null' \
		'"rope_theta": 50.0'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 001$" "$T/layout"
	grep -q "^rope_dim 8$" "$T/layout"
	grep -q "layers.0.linear_attn.k_conv1d.weight unit 1 .* shape 24 4 " "$T/layout" # 3 / 4 of 32
	grep -q "layers.0.linear_attn.g_proj.weight unit 1 .* shape 48 32 " "$T/layout"
	grep -q "layers.0.feedforward_layer_norm.weight unit 1 " "$T/layout"
	grep -q "layers.2.post_feedforward_layernorm.weight unit 3 " "$T/layout"
	for rope in '"rope_theta": null' '"rope_theta": null, "rope_parameters": {"rope_type": "default"}' \
		'"rope_theta": 50.0, "rope_parameters": {"rope_type": "default", "rope_theta": null}'; do
		config olmo_hybrid '"pad_token_id": 0' '"num_hidden_layers": 4' "$rope"
		store-layout "$T/config.json" >"$T/layout"
		grep -q "^kind_of 0001$" "$T/layout"
		! grep -q "^rope_dim [^0]" "$T/layout"
	done
	config olmo_hybrid '"pad_token_id": 0' '"linear_num_key_heads": 3'
	refused 78 "linear_num_value_heads 4 is not a multiple of linear_num_key_heads 3"
	config olmo_hybrid '"pad_token_id": 0' '"hidden_act": "gelu"'
	refused 78 "hidden_act 'gelu' is not supported"
}

@test "Bamba and Mamba 2 alone: which layers have attention, the classes' defaults, and keys that are refused" {
	config bamba '"mamba_n_heads": 4' '"attn_layer_indices": [1, 7]' '"num_hidden_layers": 3' '"head_dim": 8'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 010$" "$T/layout"
	grep -q "^rope_dim 4$" "$T/layout"
	grep -q "layers.0.mamba.in_proj.weight unit 1 .* shape 644 32 " "$T/layout" # 64 + 64 + 2 * 256 + 4
	config bamba '"mamba_n_heads": 4' '"partial_rotary_factor": 0.25' # the class ignores it
	refused 78 "partial_rotary_factor is 0.5 here and 0.25 there"
	config bamba '"mamba_n_heads": 4' '"z_loss_coefficient": 0.1'
	refused 78 "z_loss_coefficient 0.1 is not supported"
	config mamba2 '"num_heads": 1' '"n_groups": 1' '"num_hidden_layers": 3'
	store-layout "$T/config.json" >"$T/layout"
	[ "$(grep -c "layers.2\." "$T/layout")" = 9 ] # a norm, and the mixer
	grep -q "layers.0.mixer.in_proj.weight unit 1 .* shape 385 32 " "$T/layout" # 64 + 64 + 2 * 128 + 1
	config mamba2 '"num_heads": 2' '"n_groups": 1' '"head_dim": 64'
	refused 78 "num_heads 2 of 64 are not expand times hidden_size 32"
	config mamba2 '"num_heads": 1' '"n_groups": 1' '"hidden_act": "gelu"'
	refused 78 "hidden_act 'gelu' is not supported"
}

@test "Falcon-H1: Mamba 2 beside attention: the class's defaults, factors, and keys that are refused" {
	config falcon_h1
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^kind_of 000$" "$T/layout"
	grep -q "^heads 4$" "$T/layout"
	grep -q "^rope_dim 8$" "$T/layout"
	grep -q "layers.0.self_attn.q_proj.weight unit 1 " "$T/layout"
	grep -q "layers.0.self_attn.o_proj.weight unit 1 " "$T/layout"
	grep -q "layers.0.mamba.in_proj.weight unit 1 .* shape 2688 32 " "$T/layout" # 2 * 1024 + 2 * 256 + 128
	grep -q "layers.0.mamba.conv1d.bias unit 1 .* shape 1536 1 " "$T/layout"
	grep -q "layers.0.mamba.out_proj.weight unit 1 .* shape 32 1024 " "$T/layout"
	grep -q "layers.0.pre_ff_layernorm.weight unit 1 " "$T/layout"
	grep -q "layers.0.feed_forward.down_proj.weight unit 1 " "$T/layout"
	grep -q "model.final_layernorm.weight unit 4 " "$T/layout"
	! grep -q "mamba.norm\|proj.bias" "$T/layout" || false
	config falcon_h1 '"mamba_d_ssm": null' '"mamba_n_heads": 4' '"mamba_rms_norm": true' '"mamba_proj_bias": true' \
		'"projectors_bias": true' '"attention_bias": true' '"mlp_bias": true' \
		'"layer_types": ["hybrid", "hybrid", "hybrid"]'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "layers.0.mamba.norm.weight unit 1 .* shape 64 1 " "$T/layout"
	[ "$(grep -c "layers.0.*proj.bias" "$T/layout")" = 9 ]
	config falcon_h1 '"attention_in_multiplier": 2' '"key_multiplier": 0.5' '"attention_out_multiplier": 0.25' \
		'"ssm_in_multiplier": 0.5' '"ssm_multipliers": [1, 2, 3, 4, 5]' '"mlp_multipliers": [0.5, 3]'
	geometry "attention_scale 0.176776692" "attention_in_scale 2" "residual_scale 0.25" "gate_scale 0.5" "mlp_scale 3" \
		"mamba_scale_0 2" "mamba_scale_1 1.5" "mamba_scale_2 1" "mamba_scale_3 0.5" "mamba_scale_4 2.5"
	config falcon_h1 '"ssm_in_multiplier": 0.5' '"mamba_proj_bias": true'
	geometry "mamba_in_scale 0.5" "mamba_scale_0 1"
	config falcon_h1 '"mamba_d_ssm": 48' '"mamba_n_heads": 4' '"mamba_d_head": 16'
	refused 78 "mamba_n_heads 4 of 16 are not mamba_d_ssm 48"
	config falcon_h1 '"ssm_multipliers": [1, 2]'
	refused 65 "ssm_multipliers is not a list of 5 numbers"
	config falcon_h1 '"mlp_multipliers": [1, 0]'
	refused 78 "mlp_multipliers 0 is out of range"
	config falcon_h1 '"layer_types": ["hybrid", "full_attention", "hybrid"]'
	refused 78 "layer_types 'full_attention' is not supported"
}

@test "Llama 4: spans and rope by layer, experts whose weights multiply their input, keys that are refused" {
	local small='"intermediate_size": 6' sizes='"intermediate_size_mlp": 20'
	config llama4_text "$small" "$sizes" '"num_local_experts": 4' '"moe_layers": [2]' '"attention_chunk_size": 16'
	store-layout "$T/config.json" >"$T/layout"
	[ "$(grep -c "^span 16$" "$T/layout")" = 2 ] # with experts and without
	grep -q "^temperature 0.1[0-9]* 8192$" "$T/layout"
	grep -q "layers.0.feed_forward.gate_proj.weight unit 1 .* shape 20 32 " "$T/layout"
	grep -q "layers.2.feed_forward.experts.gate_up_proj unit 3 .* shape 32 12 .* n 1536 " "$T/layout"
	grep -q "layers.2.feed_forward.shared_expert.down_proj.weight unit 3 .* shape 32 6 " "$T/layout"
	! grep -q "q_norm" "$T/layout"
	config llama4_text '"attention_chunk_size": null' '"no_rope_layers": []' '"attn_temperature_tuning": false'
	store-layout "$T/config.json" | grep -q "^temperature 0 8192$"
	! store-layout "$T/config.json" | grep -q "^span [1-9]"
	config llama4_text '"attn_temperature_tuning": 4' # as the first released files have it
	store-layout "$T/config.json" | grep -q "^temperature 0.1[0-9]* 8192$"
	config llama4_text '"attention_chunk_size": null' \
		'"layer_types": ["chunked_attention", "full_attention", "full_attention"]'
	refused 78 "layer_types: layer 0 is chunked_attention without attention_chunk_size"
	config llama4_text '"layer_types": ["sliding_attention", "full_attention", "full_attention"]'
	refused 78 "layer_types: layer 0 is sliding_attention, but no window is in force"
	config llama4_text '"attention_chunk_size": 0'
	refused 78 "attention_chunk_size 0 is not between 1"
	config llama4_text '"floor_scale": 0'
	refused 78 "floor_scale 0 is not between 1"
	config llama4_text '"attn_scale": -1'
	refused 78 "attn_scale -1 is out of range"
	config llama4_text '"moe_layers": 3'
	refused 65 "moe_layers is not a list"
	config llama4_text '"interleave_moe_layer_step": 0'
	refused 78 "interleave_moe_layer_step 0 is not between 1"
	config llama '"layer_types": ["chunked_attention", "full_attention", "full_attention"]'
	refused 78 "layer_types 'chunked_attention' is not supported"
}

@test "Trinity and Gemma 4's experts: sizes, tensors and layers by their keys" {
	config afmoe '"num_experts": 4' '"num_experts_per_tok": 2' '"moe_intermediate_size": 10' '"mup_enabled": true' \
		'"global_attn_every_n_layers": 2' '"sliding_window": 5'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "^window 5$" "$T/layout"
	grep -q "layers.0.mlp.gate_proj.weight unit 1 " "$T/layout" # one dense layer
	grep -q "layers.1.mlp.router.gate.weight unit 2 .* shape 4 32 " "$T/layout"
	grep -q "layers.1.mlp.expert_bias unit 2 .* shape 4 1 .* decay 0" "$T/layout"
	grep -q "layers.1.mlp.shared_experts.down_proj.weight unit 2 .* shape 32 20 " "$T/layout" # two of them
	grep -q "layers.2.self_attn.gate_proj.weight unit 3 " "$T/layout"
	config afmoe '"num_experts": 7' '"sliding_window": null'
	refused 78 "sliding_window null is not supported"
	config afmoe '"num_experts": 4' '"num_experts_per_tok": 5'
	refused 78 "num_experts_per_tok 5 is more than num_experts 4"
	config gemma4_text '"hidden_size_per_layer_input": 0' '"enable_moe_block": true' '"moe_intermediate_size": 8' \
		'"num_experts": 4' '"top_k_experts": 2'
	store-layout "$T/config.json" >"$T/layout"
	grep -q "layers.0.experts.gate_up_proj unit 1 .* shape 16 32 .* n 2048 " "$T/layout"
	grep -q "layers.2.router.per_expert_scale unit 3 .* shape 4 1 .* decay 0" "$T/layout"
	grep -q "layers.2.mlp.down_proj.weight unit 3 .* shape 32 48 " "$T/layout"
}

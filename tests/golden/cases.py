"""Golden cases of families whose layers are of several kinds or have separate ropes: Gemma, GLM-4, OLMo, EXAONE 4,
Phi, SmolLM3, Seed-OSS, Ministral 3, and every rope scaling of llama. make.py has the others and says what the keys
mean. The models are as small as their knobs allow: the files of all cases together stay small.

both: the case also gets config.other.json, the same model in the other form of config.json; mt must read the same
geometry from it."""

from transformers import (Exaone4Config, Gemma2Config, Gemma3TextConfig, Gemma4TextConfig, Glm4Config, LlamaConfig,
                          Ministral3Config, Olmo2Config, Olmo3Config, Phi3Config, SeedOssConfig, SmolLM3Config)

SLIDING, FULL = "sliding_attention", "full_attention"

# Over 24 positions, four pairs of a head of 8 lie on all parts of yarn's ramp.
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 4.0, "beta_slow": 1.0}

SMALL = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


def small(config, **keys):
    return config(**{**SMALL, **keys})


def llama(**rope):
    return small(LlamaConfig, head_dim=8, rope_parameters=rope)


FAMILIES = {
    # windows of 5 and full attention in turn, caps on scores and logits that are felt, a scale that is not that of
    # head_dim; the padding token is in the data
    "gemma2": {
        "config": small(Gemma2Config, head_dim=8, sliding_window=5, query_pre_attn_scalar=12,
                        attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
        "dialect": 5, "both": True, "train": {"micro": 2, "warmup": 2, "clip": 3.0}},
    # two thetas, linear scaling of the full layers' only
    "gemma3": {
        "config": small(Gemma3TextConfig, head_dim=8, sliding_window=5, query_pre_attn_scalar=12, num_hidden_layers=3,
                        layer_types=[SLIDING, FULL, SLIDING],
                        rope_parameters={FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                                         SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}),
        "dialect": 4, "both": True, "also": {"sliding_window_pattern": 2},
        "train": {"micro": 2, "schedule": "cosine", "wd": 0.1, "clip": 3.0}},
    # full layers have heads of 16, one key head, no v_proj and no bias for it; the first quarter of the pairs turns; v
    # has a norm. With norms of q and k around 1 instead of scores times 1 / sqrt(head_dim), softmax would be steep and
    # rounding errors large
    "gemma4": {
        "config": small(Gemma4TextConfig, head_dim=8, global_head_dim=16, num_global_key_value_heads=1,
                        attention_k_eq_v=True, attention_bias=True, hidden_size_per_layer_input=0, num_hidden_layers=3,
                        sliding_window=5, layer_types=[SLIDING, FULL, FULL], final_logit_softcapping=4.0),
        "dialect": 5, "both": True, "bf16": True, "eval": True, "factors": {"q_norm": 0.5, "k_norm": 0.5},
        "train": {"micro": 2, "warmup": 3, "clip": 3.0}},
    # half of a head turns, neighbours pair; norms before and after; biases on q, k and v
    "glm4": {
        "config": small(Glm4Config, head_dim=12, pad_token_id=None, rms_norm_eps=1.5625e-7,
                        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        "dialect": 4, "both": True, "train": {"wd": 0.05, "clip": 3.0}},
    # norms after attention and MLP only, and of all heads of q and k together, which differ in number
    "olmo2": {
        "config": small(Olmo2Config, hidden_size=24, pad_token_id=1),
        "dialect": 4, "both": True, "train": {"micro": 2, "schedule": "constant", "warmup": 2, "clip": 3.0}},
    "olmo3": {
        "config": small(Olmo3Config, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, sliding_window=5,
                        max_position_embeddings=256, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL],
                        rope_parameters={FULL: {**YARN, "rope_theta": 500000.0, "beta_fast": 2.0, "beta_slow": 0.1,
                                                "attention_factor": 1.2},
                                         SLIDING: {"rope_type": "default", "rope_theta": 500000.0}}),
        "dialect": 5, "both": True, "train": {"micro": 2, "warmup": 2, "clip": 3.0}},
    # full layers without positions
    "exaone4": {
        "config": small(Exaone4Config, hidden_size=24, sliding_window=5, sliding_window_pattern=3, num_hidden_layers=3,
                        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                         "original_max_position_embeddings": 32}),
        "dialect": 4, "both": True, "also": {"sliding_window_pattern": "LLG"}, "keep": ["layer_types"],
        "train": {"micro": 2, "clip": 3.0}},
    # as Phi-4-mini: three quarters of a head turn, longrope, windows; q, k and v are one tensor, gate and up another
    "phi3-mini": {
        "config": small(Phi3Config, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, pad_token_id=None,
                        sliding_window=7, max_position_embeddings=128, original_max_position_embeddings=32,
                        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                                         "short_factor": [1.0, 1.25, 1.5], "long_factor": [2.0, 4.0, 8.0],
                                         "original_max_position_embeddings": 32}),
        "dialect": 5, "both": True, "eval": True, "train": {"micro": 2, "wd": 0.1, "clip": 3.0}},
    # as Phi-4
    "phi3": {
        "config": small(Phi3Config, pad_token_id=None,
                        rope_parameters={"rope_type": "default", "rope_theta": 250000.0}),
        "dialect": 4, "both": True, "train": {"schedule": "cosine", "clip": 3.0}},
    # a layer without positions, which alone has a window
    "smollm3": {
        "config": small(SmolLM3Config, pad_token_id=None, num_hidden_layers=3, no_rope_layers=[1, 0, 1],
                        use_sliding_window=True, sliding_window=5, tie_word_embeddings=True,
                        rope_parameters={"rope_type": "default", "rope_theta": 2000000.0}),
        "dialect": 4, "both": True, "train": {"micro": 2, "clip": 3.0}},
    "seed-oss": {
        "config": small(SeedOssConfig, head_dim=8, pad_token_id=1, attention_dropout=0.0, residual_dropout=0.0),
        "dialect": 5, "both": True, "train": {"micro": 2, "warmup": 1, "clip": 3.0}},
    # q grows with the position, in steps of 8 tokens
    "ministral3": {
        "config": small(Ministral3Config, head_dim=8, pad_token_id=None, sliding_window=None,
                        rope_parameters={**YARN, "original_max_position_embeddings": 8, "beta_slow": 0.25,
                                         "beta_fast": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                         "llama_4_scaling_beta": 0.3}),
        "dialect": 5, "eval": True, "train": {"micro": 2, "warmup": 2, "clip": 3.0}},
    "llama-yarn": {
        "config": small(LlamaConfig, head_dim=8, max_position_embeddings=256,
                        rope_parameters={**YARN, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}),
        "dialect": 4, "both": True, "train": {"clip": 3.0}},
    # below max_position_embeddings nothing is scaled
    "llama-dynamic": {
        "config": llama(rope_type="dynamic", rope_theta=10000.0, factor=4.0),
        "dialect": 5, "both": True, "train": {"clip": 3.0}},
    "llama-longrope": {
        "config": llama(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.25, 1.5, 2.0],
                        long_factor=[2.0, 4.0, 8.0, 16.0], original_max_position_embeddings=32),
        "dialect": 5, "both": True, "train": {"clip": 3.0}},
}

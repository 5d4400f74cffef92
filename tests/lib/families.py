#!/usr/bin/env python3
"""Compare the geometry that mt reads from random config.json files with transformers' classes: names and shapes of all
tensors, each layer's window, rope and heads, factors, and the padding token. The same of classes for images too, with
random keys in text_config.

    python3 families.py DIR        (DIR: for files; store-layout is in PATH)
"""

import copy
import json
import math
import os
import random
import struct
import subprocess
import sys
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore")

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM  # noqa: E402
from transformers.core_model_loading import revert_weight_conversion  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "golden"))
import cases_wrappers  # noqa: E402
from released import released  # noqa: E402

FULL, SLIDING, DELTA, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 8.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 5000.0}
TYPES = {"layer_types": [None, [SLIDING, FULL, FULL, SLIDING], [FULL] * 4]}
BIAS, MLP_BIAS = {"attention_bias": [True, False]}, {"mlp_bias": [True, False]}


def longrope(pairs):
    return {"short_factor": [1 + 0.25 * i for i in range(pairs)], "long_factor": [2.0] * pairs}


def by_type(full, local):
    return {FULL: {"rope_theta": 1000000.0, **full}, SLIDING: {"rope_theta": 10000.0, **local}}


# Keys and the values that they may have, each left out at times
FAMILIES = {
    "gemma2": {**TYPES, **BIAS, "sliding_window": [5], "rope_theta": [500.0], "query_pre_attn_scalar": [7]},
    "gemma3_text": {**TYPES, **BIAS, "sliding_window_pattern": [2], "sliding_window": [5], "rope_theta": [500.0],
                    "rope_local_base_freq": [50.0], "rope_scaling": [None, LINEAR]},
    "gemma4_text": {**TYPES, **BIAS, "attention_k_eq_v": [True, False], "num_global_key_value_heads": [None, 1],
                    "global_head_dim": [16, 24], "sliding_window": [5], "enable_moe_block": [True, False],
                    "rope_parameters": [None, by_type(PROPORTIONAL, {"rope_type": "default"})]},
    "glm4": {**BIAS, "rope_theta": [500.0], "partial_rotary_factor": [0.5, 0.25, 1.0]},
    "olmo2": {**BIAS, "rope_theta": [500.0], "rope_scaling": [None, YARN]},
    "olmo3": {**TYPES, **BIAS, "sliding_window": [5], "rope_scaling": [None, YARN],
              "rope_parameters": [None, by_type(YARN, {"rope_type": "default"})]},
    "exaone4": {"sliding_window": [None, 5], "sliding_window_pattern": [2, 3], "rope_theta": [500.0],
                "rope_scaling": [None, LLAMA3]},
    "phi3": {"sliding_window": [None, 5], "original_max_position_embeddings": [32, 64],
             "rope_scaling": [None, {"type": "su", **longrope(4)}, {"type": "longrope", **longrope(4)}]},
    "smollm3": {**BIAS, "mlp_bias": [True, False], "no_rope_layers": [None, [1, 0, 1, 1]],
                "no_rope_layer_interval": [2], "use_sliding_window": [True, False], "sliding_window": [None, 5]},
    "seed_oss": {**BIAS, "attention_out_bias": [True, False], "mlp_bias": [True, False], "rope_theta": [500.0]},
    "ministral3": {"sliding_window": [None, 5],
                   "rope_parameters": [None, {**YARN, "rope_theta": 100.0, "llama_4_scaling_beta": 0.2}]},
    "llama": {"rope_scaling": [{"rope_type": "longrope", **longrope(4), "original_max_position_embeddings": 32},
                               {"rope_type": "longrope", **longrope(4), "factor": 4.0}]},
}
GRANITE = {**BIAS, **MLP_BIAS, "embedding_multiplier": [12], "residual_multiplier": [0.22], "rope_theta": [500.0],
           "attention_multiplier": [0.015625], "logits_scaling": [16.0], "rope_scaling": [None, LINEAR]}
FAMILIES.update({
    "granite": GRANITE, "hyperclovax": {**GRANITE, "use_post_norm": [True, False]},
    "cohere2": {**TYPES, **BIAS, "sliding_window_pattern": [2], "sliding_window": [5], "logit_scale": [0.5],
                "rope_theta": [500.0]},
    "cohere": {**BIAS, "logit_scale": [0.5], "rope_theta": [500.0], "rope_scaling": [None, LINEAR]},
    "phi": {"partial_rotary_factor": [0.25, 1.0], "rope_theta": [500.0], "layer_norm_eps": [0.001],
            "rope_scaling": [None, LINEAR]},
    "gemma": {**BIAS, "rope_theta": [500.0], "hidden_act": ["gelu", "gelu_pytorch_tanh"]},
    "glm": {**BIAS, "partial_rotary_factor": [0.25, 1.0], "rope_theta": [500.0]},
    "starcoder2": {"use_bias": [True, False], "sliding_window": [None, 5], "rope_theta": [500.0],
                   "hidden_act": ["gelu", "gelu_pytorch_tanh"], "norm_epsilon": [0.001]},
    "stablelm": {"use_qkv_bias": [True, False], "use_parallel_residual": [True, False], "rope_scaling": [None, LINEAR],
                 "partial_rotary_factor": [0.25, 0.5, 1.0], "layer_norm_eps": [0.001]},
    "nemotron": {**BIAS, **MLP_BIAS, "partial_rotary_factor": [0.25, 0.5, 1.0], "rope_theta": [500.0]},
    "jais2": {**BIAS, **MLP_BIAS, "rope_scaling": [None, LLAMA3], "layer_norm_eps": [0.001]},
    "nanochat": {**BIAS, "hidden_act": ["gelu"], "final_logit_softcapping": [None, 3.0], "rope_theta": [500.0]},
    "bitnet": {**BIAS, "hidden_act": ["silu"], "rope_scaling": [None, LLAMA3], "rms_norm_eps": [0.001]},
    "arcee": {**BIAS, **MLP_BIAS, "rope_scaling": [None, YARN], "rope_theta": [500.0]},
    "internlm3": {"rope_scaling": [None, LLAMA3], "rope_theta": [500.0]},
    "iquestcoder": {**BIAS, **MLP_BIAS, "rope_scaling": [None, YARN], "rope_theta": [500.0]},
    "cwm": {**MLP_BIAS, **TYPES, "sliding_window": [5], "rope_parameters": [{**LLAMA3, "rope_theta": 500.0}]},
    "ministral": {**TYPES, "sliding_window": [5], "rope_theta": [500.0]},
    "vaultgemma": {**TYPES, **BIAS, "sliding_window": [5], "rope_theta": [500.0], "query_pre_attn_scalar": [7]},
    "apertus": {**BIAS, "rope_scaling": [LLAMA3, LINEAR]},
    "ernie4_5": {"use_bias": [True, False], "rope_theta": [500.0]},
    "helium": {**BIAS, **MLP_BIAS, "rope_theta": [500.0]},
    "hunyuan_v1_dense": {**BIAS, "rope_theta": [500.0],
                         "rope_scaling": [None, {"type": "dynamic", "factor": 1.0, "alpha": 50.0},
                                          {"type": "dynamic", "factor": 2.0}]},
    "falcon": {"bias": [True, False], "ffn_hidden_size": [24], "rope_theta": [500.0], "activation": ["gelu_new"],
               "rope_scaling": [None, LINEAR], "alibi": [True, False]},
    "bloom": {"n_embed": [32], "layer_norm_epsilon": [0.001], "seq_length": [64], "pretraining_tp": [2]},
    "openai-gpt": {"afn": ["relu", "gelu"], "layer_norm_epsilon": [0.001], "attn_pdrop": [0]},
    "xglm": {"scale_embedding": [True, False], "ffn_dim": [24], "activation_function": ["relu"], "dropout": [0, 0.2],
             "init_std": [0.02]},
    "ctrl": {"dff": [24], "resid_pdrop": [0], "n_positions": [128]},
    "gpt_neox_japanese": {"intermediate_multiple_size": [2], "rotary_pct": [0.5, 1.0], "rotary_emb_base": [500.0],
                          "layer_norm_eps": [0.001], "hidden_act": ["gelu_fast"], "attention_dropout": [0]},
    "mpt": {"attn_config": [{"softmax_scale": 0.5}, {"alibi_bias_max": 8}], "layer_norm_epsilon": [0.001]},
    "olmo": {**BIAS, "rope_theta": [500.0], "rope_scaling": [None, LINEAR], "clip_qkv": [None]},
    "gpt_neox": {**BIAS, "use_parallel_residual": [True, False], "rotary_pct": [0.5, 1.0], "rotary_emb_base": [500.0],
                 "layer_norm_eps": [0.001], "hidden_act": ["gelu", "gelu_fast"], "rope_scaling": [None, LINEAR],
                 "rope_parameters": [None, {"rope_type": "default", "rope_theta": 300.0},
                                      {**YARN, "partial_rotary_factor": 0.5}]},
})
FAMILIES.update({
    "gpt2": {"n_inner": [None, 24], "activation_function": ["gelu", "gelu_pytorch_tanh"], "embd_pdrop": [0, 0.2],
             "layer_norm_epsilon": [0.001], "scale_attn_weights": [True, False]},
    "gpt_bigcode": {"n_inner": [None, 24], "multi_query": [True, False], "activation_function": ["gelu"],
                    "attn_pdrop": [0], "scale_attn_weights": [True, False]},
    "gptj": {"n_inner": [None, 24], "rotary_dim": [2, 8], "layer_norm_epsilon": [0.001]},
    "codegen": {"n_inner": [None, 24], "rotary_dim": [2, 8], "activation_function": ["gelu"]},
    "gpt_neo": {"window_size": [5], "attention_types": [[[["global", "local"], 2]], [[["local"], 3], [["global"], 1]]]},
    "biogpt": {"scale_embedding": [True, False], "hidden_act": ["relu"]},
    "opt": {"ffn_dim": [24], "enable_bias": [True, False], "layer_norm_elementwise_affine": [True, False],
            "activation_function": ["gelu"], "dropout": [0, 0.2], "word_embed_proj_dim": [None, 32]},
})
MOE = {"norm_topk_prob": [True, False], "routed_scaling_factor": [1.5], "n_group": [1, 2]}
FAMILIES.update({
    "exaone": {**BIAS, **MLP_BIAS, "rope_theta": [500.0], "layer_norm_epsilon": [0.001], "num_layers": [4],
               "activation_function": ["silu"], "rope_scaling": [None, LLAMA3]},
    "minimax_m2": {"rotary_dim": [None, 2, 4], "rope_theta": [500.0], "rope_scaling": [None, LINEAR]},
    "dots1": {**TYPES, **BIAS, **MOE, "first_k_dense_replace": [1, 2], "max_window_layers": [0, 2],
              "sliding_window": [5, 6], "rope_scaling": [None, YARN]},
    "solar_open": {**BIAS, **MOE, "partial_rotary_factor": [0.5], "rope_theta": [500.0], "rope_scaling": [None, YARN]},
    "exaone_moe": {**MOE, "sliding_window": [5], "sliding_window_pattern": [2, 3], "rope_theta": [500.0],
                   "first_k_dense_replace": [0, 2], "mlp_layer_types": [None, ["sparse", "dense", "sparse", "dense"]]},
    "sarvam_moe": {**MOE, "use_qkv_bias": [True, False], "use_qk_norm": [True, False], "first_k_dense_replace": [0, 2],
                   "num_shared_experts": [2], "partial_rotary_factor": [0.5], "rope_scaling": [None, LINEAR]},
})
HYBRID = {**BIAS, "layer_types": [None, [DELTA, FULL, FULL, DELTA]], "full_attention_interval": [2, 3, 8],
          "linear_conv_kernel_dim": [3], "rope_theta": [500.0], "partial_rotary_factor": [0.5, 1.0]}
FAMILIES.update({
    "qwen3_5_text": HYBRID, "qwen3_5_moe_text": {**HYBRID, "shared_expert_intermediate_size": [10]},
    "qwen3_next": {**HYBRID, "mlp_only_layers": [[1]], "decoder_sparse_step": [2], "norm_topk_prob": [False]},
})
FAMILIES["lara_mini"] = {**BIAS, "layer_types": [None, [DELTA, FULL, SLIDING, DELTA]], "sliding_window": [5],
                         "linear_conv_kernel_dim": [3], "norm_topk_prob": [False], "rope_theta": [500.0],
                         "shared_expert_intermediate_size": [10]}
FAMILIES["olmo_hybrid"] = {
    **BIAS, "layer_types": [None, [DELTA, FULL, FULL, DELTA]], "linear_key_head_dim": [None, 10],
    "linear_num_value_heads": [None, 8], "linear_value_head_dim": [None, 10], "linear_conv_kernel_dim": [3],
    "linear_allow_neg_eigval": [True, False], "rope_parameters": [
        None, {"rope_type": "default", "rope_theta": None}, {**YARN, "rope_theta": 500.0}]}
FAMILIES["gemma3n_text"] = {
    **TYPES, **BIAS, "intermediate_size": [[20, 24, 20, 20]], "sliding_window": [5], "altup_num_inputs": [2, 3],
    "num_kv_shared_layers": [0, 1, 2], "laurel_rank": [5], "hidden_size_per_layer_input": [6],
    "vocab_size_per_layer_input": [30], "activation_sparsity_pattern": [[0.9, 0.5, 0.0, 0.0]],
    "final_logit_softcapping": [9.0],
    "rope_parameters": [by_type({**YARN, "rope_theta": 500.0}, {"rope_type": "default"})]}
FAMILIES["lfm2"] = {"layer_types": [None, [CONV, FULL, FULL, CONV]], "full_attn_idxs": [[0, 2], [3]],
                    "conv_L_cache": [2, 4], "conv_bias": [True, False], "block_auto_adjust_ff_dim": [True, False],
                    "block_multiple_of": [4], "block_ffn_dim_multiplier": [1.3], "block_ff_dim": [24],
                    "rope_theta": [500.0], "tie_embedding": [True, False], "norm_eps": [0.001]}
FAMILIES["lfm2_moe"] = {"norm_topk_prob": [True, False], "routed_scaling_factor": [1.5], "num_dense_layers": [0, 1],
                        "use_expert_bias": [True, False], "conv_L_cache": [2, 4], "conv_bias": [True, False],
                        "rope_theta": [500.0], "tie_embedding": [True, False], "norm_eps": [0.001]}
LATENT = {**BIAS, **MOE, "q_lora_rank": [None, 12], "kv_lora_rank": [10], "qk_nope_head_dim": [6], "v_head_dim": [10],
          "rope_interleave": [True, False], "rope_theta": [500.0]}
LATENT_ROPE = {"rope_scaling": [None, YARN, {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
                                {"rope_type": "linear", "factor": 4.0, "mscale_all_dim": 1.0}]}
INDEXED = {**{k: v for k, v in LATENT.items() if k != "rope_interleave"}, **LATENT_ROPE, "q_lora_rank": [12],
           "first_k_dense_replace": [0, 2], "mlp_layer_types": [None, ["sparse", "dense", "sparse", "dense"]],
           "index_topk": [24, 200]}
FAMILIES.update({
    "deepseek_v2": {**{k: v for k, v in LATENT.items() if k != "norm_topk_prob"}, **LATENT_ROPE,
                    "first_k_dense_replace": [0, 2], "topk_method": ["greedy", "group_limited_greedy"]},
    "deepseek_v3": {**LATENT, **LATENT_ROPE, "first_k_dense_replace": [0, 2]},
    "deepseek_v32": INDEXED, "glm_moe_dsa": {**INDEXED, "indexer_types": [None, ["full", "shared", "full", "shared"]]},
    "glm4_moe_lite": {**LATENT, **LATENT_ROPE, "mlp_layer_types": [["sparse", "dense", "sparse", "dense"]]},
})
DENSE_LATENT = {key: values for key, values in LATENT.items() if key not in MOE}
FAMILIES.update({
    "youtu": {**DENSE_LATENT, **LATENT_ROPE},
    "minicpm3": {**DENSE_LATENT, **MLP_BIAS, "scale_emb": [3], "scale_depth": [None, 2.0], "dim_model_base": [None, 8]},
    "sarvam_mla": {**LATENT, **LATENT_ROPE, "first_k_dense_replace": [0, 2]},
    "flex_olmo": {**BIAS, "norm_topk_prob": [True, False], "rope_theta": [500.0]},
    "flint": {**TYPES, **BIAS, "norm_topk_prob": [True, False], "sliding_window": [5], "mlp_only_layers": [[], [1]],
              "rope_theta": [500.0], "rms_norm_eps": [1e-3]},
    "aria_text": {**BIAS, "moe_num_shared_experts": [1, 3], "rope_theta": [500.0]},
    "phi4_multimodal": {"rope_theta": [500.0], "sliding_window": [None, 5]},
    "mellum": {**TYPES, **BIAS, "norm_topk_prob": [True, False], "sliding_window": [5],
               "mlp_layer_types": [["sparse", "dense", "sparse", "dense"]],
               "rope_parameters": [by_type(YARN, {"rope_type": "default"})]},
    "hy_v3": {**BIAS, "router_scaling_factor": [1.5], "num_shared_experts": [2], "rope_theta": [500.0],
              "mlp_layer_types": [["sparse", "dense", "sparse", "dense"]]},
    "hunyuan_v1_moe": {**BIAS, "moe_topk": [3, [3, 3, 3, 3]], "rope_theta": [500.0]},
    "granitemoeshared": {**{k: v for k, v in GRANITE.items() if k != "mlp_bias"}, "shared_intermediate_size": [0, 10]},
    "granite_swa": {**GRANITE, **TYPES, "rope_scaling": [None], "sliding_window": [5], "rope_theta": [10000.0],
                    "layer_rope_theta": [[10000.0, 0, 0, 10000.0]]},
})
FAMILIES["granitemoe_swa"] = {**FAMILIES["granitemoeshared"], **FAMILIES["granite_swa"], "mlp_bias": [False]}
KIMI = {"full_attn_layers": [3], "kda_layers": [4, 1, 2], "num_heads": 2, "head_dim": 6, "short_conv_kernel_size": 3}
FAMILIES["apertus1p5_text"] = FAMILIES["apertus"]
FAMILIES["kimi_linear"] = {
    **BIAS, "layer_types": [None, [FULL, DELTA, FULL, DELTA]], "linear_attn_config": [KIMI],
    "linear_num_heads": [4], "linear_head_dim": [10], "linear_conv_kernel_dim": [2], "q_lora_rank": [None, 12],
    "kv_lora_rank": [10], "qk_nope_head_dim": [6], "v_head_dim": [10], "moe_renormalize": [True, False],
    "num_expert_group": [1, 2], "num_shared_experts": [2], "routed_scaling_factor": [1.5], "rope_theta": [500.0],
    "first_k_dense_replace": [0, 2], "mlp_layer_types": [None, ["sparse", "dense", "sparse", "dense"]]}
FAMILIES["granitemoehybrid"] = {
    **BIAS, "layer_types": [[DELTA, FULL, FULL, DELTA], ["attention", "mamba", "mamba", "attention"]],
    "position_embedding_type": [None, "rope", "nope"], "shared_intermediate_size": [10],
    "mamba_conv_bias": [True, False], "mamba_proj_bias": [True, False], "mamba_n_groups": [2], "mamba_d_conv": [3],
    "time_step_limit": [[0.1, 0.5]], "embedding_multiplier": [12], "residual_multiplier": [0.22],
    "attention_multiplier": [0.015625], "logits_scaling": [16.0], "rope_theta": [500.0]}
MAMBA_1 = {"expand": [3], "intermediate_size": [20, 48], "state_size": [6], "conv_kernel": [3],
           "use_bias": [True, False], "use_conv_bias": [True, False], "time_step_rank": ["auto", 5],
           "layer_norm_epsilon": [0.001]}
FAMILIES.update({
    "mamba": MAMBA_1, "falcon_mamba": {**MAMBA_1, "mixer_rms_eps": [0.001]},
    "jamba": {"attn_layer_period": [2, 3], "attn_layer_offset": [0, 1], "expert_layer_period": [1, 3],
              "mamba_d_state": [6], "mamba_d_conv": [3], "mamba_expand": [3],
              "mamba_dt_rank": ["auto", 5], "mamba_conv_bias": [True, False], "mamba_proj_bias": [True, False]},
})
FAMILIES["falcon_h1"] = {
    **BIAS, **MLP_BIAS, "mamba_rms_norm": [True, False], "mamba_norm_before_gate": [True, False],
    "mamba_conv_bias": [True, False], "mamba_proj_bias": [True, False], "projectors_bias": [True, False],
    "mamba_n_groups": [2], "mamba_d_conv": [3], "mamba_d_ssm": [None, 48], "mamba_d_head": ["auto"],
    "time_step_limit": [[0.1, 0.5]], "embedding_multiplier": [5.5], "lm_head_multiplier": [0.02],
    "key_multiplier": [0.4], "attention_out_multiplier": [0.3], "ssm_out_multiplier": [0.1],
    "attention_in_multiplier": [1.0, 1.5], "ssm_in_multiplier": [1.0, 0.7], "mlp_multipliers": [None, [0.4, 0.6]],
    "ssm_multipliers": [None, [0.3, 0.4, 0.5, 0.6, 0.7]], "rope_theta": [1e11], "rope_scaling": [None, LINEAR]}
MAMBA = {"use_conv_bias": [True, False], "use_bias": [True, False], "conv_kernel": [3], "layer_norm_epsilon": [0.001]}
FAMILIES["nemotron_h"] = {**MAMBA, **MOE, "hybrid_override_pattern": ["MM*E", "-*ME-M"], "time_step_min": [0.1]}
FAMILIES["mamba2"] = {**MAMBA, "time_step_limit": [[0.1, 0.5]], "residual_in_fp32": [True, False]}
FAMILIES["bamba"] = {
    **BIAS, **MLP_BIAS, "attn_layer_indices": [None, [1, 2], [3, 9]], "mamba_d_conv": [3], "mamba_n_groups": [2],
    "mamba_conv_bias": [True, False], "mamba_proj_bias": [True, False], "time_step_limit": [[0.1, 0.5]],
    "rope_theta": [500.0], "rope_scaling": [None, LINEAR],
    "rope_parameters": [None, {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}]}
FAMILIES["afmoe"] = {**TYPES, **BIAS, "sliding_window": [5], "global_attn_every_n_layers": [2, 3],
                     "rope_theta": [500.0], "rope_scaling": [None, YARN], "num_dense_layers": [0, 2],
                     "num_shared_experts": [1], "route_scale": [1.5], "mup_enabled": [True, False]}
CHUNKED = "chunked_attention"
FAMILIES["llama4_text"] = {
    **BIAS, "layer_types": [None, [CHUNKED, FULL, FULL, CHUNKED], [FULL] * 4], "no_rope_layers": [[], [1, 0, 1, 1]],
    "no_rope_layer_interval": [2, 3], "attention_chunk_size": [8, 64], "moe_layers": [None, [0, 2], []],
    "interleave_moe_layer_step": [2], "intermediate_size_mlp": [24], "use_qk_norm": [True, False],
    "attn_temperature_tuning": [True, False], "floor_scale": [5], "attn_scale": [0.2], "rope_theta": [300.0],
    "rope_scaling": [None, LLAMA3]}
FALCONS = [{}, {"num_kv_heads": 2}, {"new_decoder_architecture": True, "num_kv_heads": 2},
           {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, {"parallel_attn": False},
           {"multi_query": False}, {"multi_query": False, "parallel_attn": False}]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 6}
HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10}
ALWAYS = {"gemma4_text": {"hidden_size_per_layer_input": 0, "num_experts": 6, "top_k_experts": 2,
                          "moe_intermediate_size": 6},
          "afmoe": {**EXPERTS, "num_experts": 6},
          "llama4_text": {"intermediate_size_mlp": 20, "intermediate_size": 6, "num_local_experts": 6},
          "seed_oss": {"attention_dropout": 0, "residual_dropout": 0},
          "minimax_m2": {"num_local_experts": 6, "num_experts_per_tok": 2},
          "dots1": {**EXPERTS, "n_routed_experts": 6, "n_shared_experts": 1},
          "solar_open": {**EXPERTS, "n_routed_experts": 6},
          "exaone_moe": {**EXPERTS, "num_experts": 6},
          "sarvam_moe": {**EXPERTS, "num_experts": 6},
          "qwen3_5_text": HEADS, "qwen3_5_moe_text": {**HEADS, **EXPERTS, "num_experts": 6},
          "qwen3_next": {**HEADS, **EXPERTS, "num_experts": 6}, "lara_mini": {**HEADS, **EXPERTS, "num_experts": 6},
          "granitemoehybrid": {"num_local_experts": 0, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 6},
          "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 6},
          "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 6, "n_groups": 2},
          "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 6},
          "nemotron_h": {**EXPERTS, "n_routed_experts": 6, "moe_shared_expert_intermediate_size": 10, "n_groups": 2,
                         "mamba_num_heads": 4, "mamba_head_dim": 6, "ssm_state_size": 10},
          "lfm2_moe": {**EXPERTS, "num_experts": 6, "layer_types": [CONV, FULL, FULL, CONV]}}

# The same of text models that only classes for images have, and of others that these often have
MROPE = {"type": "mrope", "mrope_section": [2, 1, 1]}
HALF = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
QWEN = {"use_sliding_window": [True, False], "sliding_window": [5], "max_window_layers": [0, 2], "rope_theta": [500.0]}
QWEN_VL = {**QWEN, "rope_scaling": [None, MROPE], "rope_parameters": [None, {**MROPE, "rope_theta": 300.0}]}
TEXTS = {
    "llama": {**BIAS, **MLP_BIAS, "rope_theta": [500.0], "rope_scaling": [None, LLAMA3]},
    "qwen2": QWEN, "qwen3": {**QWEN, **BIAS}, "qwen2_vl_text": QWEN_VL, "qwen2_5_vl_text": QWEN_VL,
    "qwen3_vl_text": {**BIAS, "rope_theta": [500.0], "rope_scaling": [None, {**MROPE, "type": "default"}]},
    "qwen3_vl_moe_text": {**BIAS, "norm_topk_prob": [True, False], "mlp_only_layers": [[], [1, 2]],
                          "decoder_sparse_step": [2], "rope_theta": [500.0],
                          "rope_scaling": [None, {**MROPE, "type": "default"}]},
    "mistral": {"sliding_window": [None, 5], "rope_theta": [500.0]},
    "glm4v_text": {"rope_theta": [500.0], "partial_rotary_factor": [0.5, 1.0], "rope_parameters": [None, HALF]},
    "glm4v_moe_text": {**BIAS, **MOE, "first_k_dense_replace": [0, 2], "rope_theta": [500.0],
                       "partial_rotary_factor": [0.25, 1.0], "rope_parameters": [None, HALF]},
    "gemma4_unified_text": FAMILIES["gemma4_text"], "granite4_vision_text": GRANITE,
    "qwen2_5_omni_text": {**QWEN_VL, "rope_scaling": [{**MROPE, "type": "default"}], "rope_parameters": [None]},
    "paddleocr_vl_text": {"use_bias": [True, False], "rope_theta": [500.0]},
    "hunyuan_vl_text": {**BIAS, "rope_theta": [500.0]},
}
TEXTS.update(glm_ocr_text=TEXTS["glm4v_text"], qwen3_omni_moe_text=TEXTS["qwen3_vl_moe_text"])
TEXTS["mistral4"] = {**LATENT, "rope_theta": [10000.0], "rope_parameters": [
    {**YARN, "rope_theta": 100.0, "llama_4_scaling_beta": 0.2, "mscale_all_dim": 1.0}]}
ALWAYS["youtu"] = ALWAYS["minicpm3"] = {"num_attention_heads": 4, "num_key_value_heads": 4, "qk_rope_head_dim": 8}
ALWAYS.update({family: {**EXPERTS, "num_experts": 6, "num_local_experts": 6}
               for family in ("flint", "flex_olmo", "mellum", "hy_v3", "granitemoeshared", "granitemoe_swa")})
ALWAYS["aria_text"] = {"moe_num_experts": 6, "moe_topk": 2}
ALWAYS["jamba"] = {"num_experts": 6, "attn_layer_period": 4, "attn_layer_offset": 1, "expert_layer_offset": 0}
ALWAYS["hunyuan_v1_moe"] = {"num_experts": 6, "moe_topk": 2}
ALWAYS["gptj"] = ALWAYS["codegen"] = {"rotary_dim": 4}
ALWAYS["gemma3n_text"] = {"num_kv_shared_layers": 0, "num_attention_heads": 4}
ALWAYS["gpt_neo"] = {"attention_types": [[["global", "local"], 2]]}
for family in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "mistral4", "sarvam_mla"):
    ALWAYS[family] = {**EXPERTS, "num_attention_heads": 4, "num_key_value_heads": 4, "qk_rope_head_dim": 8,
                      "n_routed_experts": 8, "n_group": 2, "topk_group": 1}
ALWAYS["kimi_linear"] = {"num_attention_heads": 4, "num_key_value_heads": 4, "qk_rope_head_dim": 8, "num_experts": 6,
                         "num_experts_per_token": 2, "moe_intermediate_size": 6}
ALWAYS["qwen3_vl_moe_text"] = {**EXPERTS, "num_experts": 6}
ALWAYS["qwen3_omni_moe_text"] = {**EXPERTS, "num_experts": 6, "head_dim": 8}
ALWAYS["paddleocr_vl_text"] = {"head_dim": 8, "rope_scaling": {"type": "default", "mrope_section": [2, 1, 1]}}
ALWAYS["hunyuan_vl_text"] = {"head_dim": 8, "rope_scaling": {"type": "xdrope", "alpha": 50.0, "factor": 1.0,
                                                             "xdrope_section": [1, 1, 1, 1]}}
ALWAYS["glm4v_moe_text"] = {**EXPERTS, "n_routed_experts": 6, "head_dim": 8}
# The text models of each class for images; the first one is that of a text_config without model_type
WRAPPERS = {
    "gemma3": ["gemma3_text"], "gemma4": ["gemma4_text"], "gemma4_unified": ["gemma4_unified_text"],
    "mistral3": ["mistral", "ministral3", "mistral4", "qwen2"], "llava": ["llama", "mistral", "gemma"],
    "llava_next": ["llama", "mistral", "granite"], "llava_onevision": ["qwen2"], "internvl": ["qwen2", "qwen3"],
    "idefics3": ["llama"], "smolvlm": ["llama"], "ovis2": ["qwen2"], "got_ocr2": ["qwen2"], "lighton_ocr": ["qwen3"],
    "aya_vision": ["cohere2"], "cohere2_vision": ["cohere2"], "glm4v": ["glm4v_text"], "glm46v": ["glm4v_text"],
    "glm4v_moe": ["glm4v_moe_text"], "qwen3_vl": ["qwen3_vl_text"], "qwen3_vl_moe": ["qwen3_vl_moe_text"],
    "qwen2_5_vl": ["qwen2_5_vl_text"], "qwen2_vl": ["qwen2_vl_text"], "qwen3_5": ["qwen3_5_text"],
    "qwen3_5_moe": ["qwen3_5_moe_text"], "llama4": ["llama4_text"],
    "llava_next_video": ["llama", "qwen2"], "video_llava": ["llama"], "vipllava": ["llama"], "video_llama_3": ["qwen2"],
    "fast_vlm": ["qwen2"], "perception_lm": ["llama"], "qianfan_ocr": ["qwen3"], "idefics2": ["mistral"],
    "pp_chart2table": ["qwen2"], "deepseek_vl": ["llama"], "deepseek_vl_hybrid": ["llama"], "janus": ["llama"],
    "lfm2_vl": ["lfm2"], "exaone4_5": ["exaone4"],
    "hyperclovax_vision_v2": ["hyperclovax"], "minicpm_ocr": ["qwen3_5_text"], "minicpmv4_6": ["qwen3_5_text"],
    "minicpmv4_7": ["qwen3_5_text"], "glmga": ["glm4v_text"],
    "granite_speech": ["granite"], "granite_speech_plus": ["granite"],
    "moss_transcribe_diarize": ["qwen3"], "omniasr": ["llama"], "qwen2_audio": ["qwen2"], "qwen3_asr": ["qwen3"],
    "vibevoice_asr": ["qwen2"], "voxtral": ["llama"], "qwen2_5_omni_thinker": ["qwen2_5_omni_text"],
    "qwen3_omni_moe_thinker": ["qwen3_omni_moe_text"], "granite4_vision": ["granite4_vision_text"],
    "glm_ocr": ["glm_ocr_text"], "paddleocr_vl": ["paddleocr_vl_text"],
    "hunyuan_vl": ["hunyuan_vl_text"], "aria": ["aria_text"],
}
# whose classes never tie
UNTIED = {"omniasr", "qwen2_audio", "vibevoice_asr", "voxtral"}
# Of these, transformers cannot make a model of the class's own sizes, or not with what ALWAYS has
NO_DEFAULTS = {"nemotron", "hunyuan_v1_dense", "granitemoehybrid", "bamba", "mamba2", "ministral", "minicpm3",
               "hunyuan_v1_moe"}
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
         "max_position_embeddings", "pad_token_id"}


GEMMA_4_E = {"hidden_size_per_layer_input": [6], "vocab_size_per_layer_input": [262150, 262200],
             "num_kv_shared_layers": [1, 2], "use_double_wide_mlp": [True, False]}


def draw(keys, generator=random):
    return {key: generator.choice(values) for key, values in keys.items() if generator.random() < 0.6}


def random_config(family, keys):
    config = {"model_type": family, "vocab_size": 40, "hidden_size": 32, "intermediate_size": 20,
              "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": random.choice([1, 2, 4]),
              "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": random.choice([None, 3])}
    config.update(ALWAYS.get(family, {}))
    config.update(draw({**keys, "tie_word_embeddings": [True, False]}))
    if config.get("rope_parameters"):
        for key in ("rope_scaling", "rotary_pct", "rotary_emb_base"):
            config.pop(key, None)
        if family in TEXTS:
            config.pop("rope_theta", None)
            config.pop("partial_rotary_factor", None)
    if family in ("gemma4_text", "gemma4_unified_text", "ministral3") and config.get("rope_parameters", 1) is None:
        del config["rope_parameters"]
    if family == "gemma4_text" and not config.get("enable_moe_block"):
        config.update(draw(GEMMA_4_E, random.Random(str(config))))
    if config.get("num_kv_shared_layers"):  # of each type, one layer before these
        config["layer_types"] = [SLIDING, FULL, FULL, FULL]
    if family == "phi3" and config.get("rope_scaling") is None:
        config["partial_rotary_factor"] = random.choice([1.0, 0.5])
    if family == "exaone4" and config.get("sliding_window", 1) is None:  # transformers 5.23 divides by 0 otherwise
        config["layer_types"] = [FULL] * 4
    if family == "falcon":
        for key in ("head_dim", "num_key_value_heads", "intermediate_size"):
            del config[key]
        config.update(random.choice(FALCONS))
    if family in ("nemotron_h", "kimi_linear"):
        config.pop("tie_word_embeddings", None)
    for name, key in ("num_layers", "num_hidden_layers"), ("block_ff_dim", "intermediate_size"), (
            "tie_embedding", "tie_word_embeddings"):  # two names of one key
        if name in config:
            config.pop(key, None)
    if family in ("gemma3_text", "cohere2") and config.get("layer_types"):
        config.pop("sliding_window_pattern", None)
    return config


def random_wrapper(kind):
    """Its text_config has all keys, or few besides the class's defaults, or is the root of the file."""
    family = random.choice(WRAPPERS[kind])
    text = random_config(family, TEXTS.get(family) or FAMILIES[family])
    if family in ("glm4v_text", "mistral4"):
        del text["head_dim"]
    if family == WRAPPERS[kind][0] and kind != "exaone4_5" and random.random() < 0.5:
        del text["model_type"]
    if random.random() < 0.4:
        for key in SIZES - ALWAYS.get(family, {}).keys():
            text.pop(key, None)
    cases = (cases_wrappers.KEPT | cases_wrappers.MORE).values()
    case = next(c for c in cases if c["config"].model_type == kind)
    config = case["config"].to_dict()
    for key in ("dtype", "text_config", "tie_word_embeddings", "architectures"):
        config.pop(key, None)
    if kind == "ovis2":  # whose head has the sizes of the root
        config.update(vocab_size=text.get("vocab_size", 151936), hidden_size=text.get("hidden_size", 4096))
    if random.random() < 0.5 and kind not in UNTIED:
        config["tie_word_embeddings"] = random.choice([True, False])
    config[random.choice(["dtype", "torch_dtype"])] = "bfloat16"
    if kind in ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl", "hunyuan_vl") and random.random() < 0.5:
        return {**text, **config}  # as in files of transformers 4.4x
    return {**config, "text_config": text}


def layout(path):
    lines = subprocess.run(["store-layout", path], capture_output=True, text=True, check=True).stdout.splitlines()
    kinds, facts, tensors = [], {}, {}
    for line in lines:
        w = line.split()
        if w[0] == "heads":
            kinds.append({"inv_freq": []})
        if w[0] == "inv_freq":
            kinds[-1]["inv_freq"].append(int(w[2], 16))
        elif w[0] == "tensor":
            rows, cols, n = int(w[7]), int(w[8]), int(w[12])
            experts = () if n == rows * cols else (n // rows // cols,)
            tensors[w[1]] = (*experts, rows, cols) if w[-1] == "1" else (rows,)
        elif len(w) == 2 and kinds and w[0] != "kind":
            kinds[-1][w[0]] = w[1]
        facts[w[0]] = w[-1]
    return lines, facts, [kinds[int(k)] for k in facts["kind_of"]], tensors


def check_rope(config, meant, rotary, layer, i):
    """Layer i's frequencies are those that its attention gets from transformers' rotary embedding."""
    types = getattr(meant, "layer_types", None) or [None] * meant.num_hidden_layers
    nope = meant.model_type in ("exaone4", "exaone_moe", "cohere2") and bool(meant.sliding_window) and types[i] == FULL
    nope |= types[i] in (DELTA, CONV) or meant.model_type in ("afmoe", "flint", "lara_mini") and types[i] == FULL
    nope |= meant.model_type == "granitemoehybrid" and meant.position_embedding_type != "rope"
    nope |= meant.model_type in ("smollm3", "llama4_text") and not meant.no_rope_layers[i] or rotary is None
    nope |= getattr(meant, "alibi", False)
    nope |= meant.model_type in ("granite_swa", "granitemoe_swa") and not meant.layer_rope_theta[i]
    if meant.model_type == "kimi_linear" and types[i] == FULL:  # the part without positions has angles of 0
        assert layer["rope_dim"] == str(meant.qk_rope_head_dim) and not any(layer["inv_freq"]), (config, i)
    elif nope:
        assert layer["rope_dim"] == "0", (config, i)
    if nope:
        return
    if meant.model_type in ("gptj", "codegen"):  # they have a table of sines instead of frequencies
        assert layer["rope_dim"] == str(meant.rotary_dim), (config, i)
        return
    prefix = types[i] + "_" if hasattr(rotary, "%s_inv_freq" % types[i]) else ""
    way = -1 if meant.model_type == "nanochat" else 1  # its class rotates backwards
    want = [struct.unpack("I", struct.pack("f", way * x))[0] for x in getattr(rotary, prefix + "inv_freq").tolist()]
    got, scaling = layer["inv_freq"], getattr(rotary, prefix + "attention_scaling")
    assert len(got) == len(want) and max(abs(a - b) for a, b in zip(got, want)) <= 2, (config, i, got, want)
    assert abs(float(layer["rope_scaling"]) - scaling) <= 2e-7 * scaling, (config, i)


def check_parts(config, meant, layer, i):
    """What some layers of a model have alone: a norm of what they get (1), a bias of o (2)"""
    last = meant.num_hidden_layers - 1
    want = {("bloom", 0): 1, ("nanochat", 0): 1, ("gpt_neox_japanese", last): 2}.get((meant.model_type, i), 0)
    assert int(layer["parts"]) == (min(i, 1) if meant.model_type == "openai-gpt" else want), (config, i)


def check_window(config, meant, facts, layer, i):
    types = getattr(meant, "layer_types", None) or getattr(meant, "attention_layers", None)
    window = getattr(meant, "sliding_window", None) or getattr(meant, "window_size", 0)
    if types and types[i] not in (SLIDING, "local") or meant.model_type == "smollm3" and not meant.use_sliding_window:
        window = 0
    got = int(facts["window"]) if facts["window_layers"][i] == "w" else 0
    assert got == window, (config, i, got, window)
    span = meant.attention_chunk_size if types and types[i] == CHUNKED else 0
    assert int(layer["span"]) == span, (config, i, layer["span"], span)


def check_numbers(config, meant, model, facts):
    """Factors, and the norms' epsilon"""
    base = base_of(model)
    layers = getattr(base, "layers", None) or getattr(base, "h", None)
    names = ("attention", "self_attn", "self_attention", "attn")
    attentions = [getattr(layer, n) for layer in layers or [] for n in names if getattr(layer, n, None)]
    scales = [a.scaling for a in attentions if getattr(a, "scaling", None)]  # Kimi's delta attention has none
    want = {"norm_eps": epsilon(model)}
    if scales or not layers or (attentions and meant.model_type != "kimi_linear"):  # else gated DeltaNet alone
        want["attention_scale"] = scales[0] if scales else float(facts["head_dim"]) ** -0.5
    if meant.model_type == "gpt_neo":
        want["attention_scale"] = 1
    if meant.model_type == "mpt":
        want.update(attention_scale=meant.attn_config.softmax_scale or float(facts["head_dim"]) ** -0.5, alibi=8)
    if meant.model_type in ("falcon", "bloom"):
        want["alibi"] = 8 if getattr(meant, "alibi", True) else 0
    if meant.model_type in ("biogpt", "xglm", "ctrl"):
        want["embed_scale"] = meant.hidden_size ** 0.5 if getattr(meant, "scale_embedding", True) else 1
    if meant.model_type in ("xglm", "ctrl"):
        want["sine_step"] = math.log(10000) / (meant.hidden_size // 2 - (meant.model_type == "xglm"))
    if meant.model_type == "minicpm3":
        depth = meant.scale_depth * meant.num_hidden_layers ** -0.5
        want.update(embed_scale=meant.scale_emb, residual_scale=depth, mlp_scale=depth,
                    logit_scale=1 / meant.logits_scaling)
    if meant.model_type in ("granite", "granitemoehybrid", "granitemoeshared", "granite_swa", "granitemoe_swa",
                            "hyperclovax"):
        want.update(embed_scale=meant.embedding_multiplier, residual_scale=meant.residual_multiplier,
                    logit_scale=meant.logits_scaling ** (1 if meant.model_type == "hyperclovax" else -1))
    if meant.model_type == "falcon_h1":
        z, x, b, c, dt = meant.ssm_multipliers
        after, before = (1, meant.ssm_in_multiplier) if meant.mamba_proj_bias else (meant.ssm_in_multiplier, 1)
        want.update(embed_scale=meant.embedding_multiplier, logit_scale=meant.lm_head_multiplier,
                    attention_scale=float(facts["head_dim"]) ** -0.5 * meant.key_multiplier,
                    residual_scale=meant.attention_out_multiplier, gate_scale=meant.mlp_multipliers[0],
                    mlp_scale=meant.mlp_multipliers[1], mamba_out_scale=meant.ssm_out_multiplier, mamba_in_scale=before,
                    attention_in_scale=meant.attention_in_multiplier,
                    **{"mamba_scale_%d" % i: factor * after for i, factor in enumerate((c, b, x, z, dt))})
    if meant.model_type == "afmoe":
        want["embed_scale"] = meant.hidden_size ** 0.5 if meant.mup_enabled else 1
    if meant.model_type == "llama4_text":
        assert facts["temperature"] == str(meant.floor_scale), config  # the last word of its line
    if meant.model_type in ("cohere", "cohere2"):
        want["logit_scale"] = meant.logit_scale
    for name, value in want.items():
        assert abs(float(facts[name]) - value) <= 1e-6 * value, (config, name, facts[name], value)


def base_of(model):
    """Llama 4's base_model_prefix is that of the class for images."""
    base = getattr(model, "model", model) if type(model).__name__ == "Llama4ForCausalLM" else model.base_model
    return getattr(base, "decoder", base)


def epsilon(model):
    base = base_of(model)
    norms = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "embedding_norm", "norm_f", "layer_norm",
             "layernorm")
    norm = next((getattr(base, n) for n in norms if hasattr(base, n)), None)
    norm = norm or base.h[-1].ln_2  # openai-gpt
    return next((getattr(norm, key) for key in ("eps", "variance_epsilon") if hasattr(norm, key)), 1e-5)  # olmo: fixed


def text_names(tensors):
    """Those of a class for images that are of its text model, with the names that this has alone"""
    embed = "embed_tokens.weight"
    prefix = min((name[:-len(embed)] for name in tensors if name.endswith(embed)), key=len)
    head = {"lm_head.weight": t for name, t in tensors.items() if name.endswith("lm_head.weight")}
    return {**{"model." + name[len(prefix):]: t for name, t in tensors.items()
               if name.startswith(prefix) and not name.endswith("lm_head.weight")}, **head}


def one_by_one(tensors):
    """Packed experts as mt has them"""
    out = {}
    for name, shape in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "gate_up_proj" and len(shape) == 3:
            n, rows, cols = shape
            out.update({f"{module}.{e}.{half}_proj.weight": (rows // 2, cols)
                        for e in range(n) for half in ("gate", "up")})
        elif leaf == "down_proj" and len(shape) == 3:
            out.update({f"{module}.{e}.down_proj.weight": shape[1:] for e in range(shape[0])})
        else:
            out[name] = shape
    return out


def check(where, config):
    path = os.path.join(where, "config.json")
    with open(path, "w") as f:
        json.dump(config, f)
    lines, facts, layers, tensors = layout(path)
    meant = AutoConfig.from_pretrained(where)
    saved = os.path.join(where, "saved")
    meant.save_pretrained(saved)
    assert layout(saved)[0] == lines, (config, set(layout(saved)[0]) ^ set(lines))
    whole = AutoModelForMultimodalLM if config["model_type"] in WRAPPERS else AutoModelForCausalLM
    with torch.device("meta"):
        model = whole.from_config(meant)
    kept = {n: b for n, b in model.named_buffers() if n in model.state_dict()}
    files = released(meant, revert_weight_conversion(model, {**dict(model.named_parameters()), **kept}))
    files = {name: p for name, p in files.items() if ".indexer." not in name and "embed_tokens_extend" not in name}
    shapes = {name: tuple(p.squeeze(1).shape if "conv" in name and p.dim() == 3 else
                          p.flatten(0, 2).shape if p.dim() == 4 else p.shape) or (1,) for name, p in files.items()}
    if config["model_type"] in WRAPPERS:
        shapes, tensors = one_by_one(text_names(shapes)), one_by_one(tensors)
        meant = meant.get_text_config()
        model, = (m for n, m in model.named_modules() if n in (
            "model.language_model", "model.text_model", "language_model.model"))
    assert tensors == shapes, (config, set(tensors.items()) ^ set(shapes.items()))
    if facts["short_rows"] == "0" and "mamba" not in config["model_type"]:  # else how far they hold; no limit
        key = {"mpt": "max_seq_len", "bloom": "seq_length"}.get(meant.model_type, "max_position_embeddings")
        assert int(facts["max_position"]) == getattr(meant, key, 2048), config  # bloom's class has no such key
    elif hasattr(meant, "index_topk"):
        assert int(facts["max_position"]) == min(meant.index_topk, meant.max_position_embeddings), config
    pad = model.get_input_embeddings().padding_idx
    assert int(facts["pad_token"]) == (-1 if pad is None else pad), config
    base = base_of(model)
    rotary = next((type(getattr(base, n))(meant) for n in ("rotary_emb", "pos_emb") if getattr(base, n, None)), None)
    check_numbers(config, meant, model, facts)
    for i, layer in enumerate(layers):
        check_rope(config, meant, rotary, layer, i)
        check_window(config, meant, facts, layer, i)
        check_parts(config, meant, layer, i)


def main():
    each = int(sys.argv[2])
    random.seed(2)
    for family in FAMILIES:
        checked = 0
        while checked <= each:
            config = random_config(family, FAMILIES[family])
            if not checked and family not in NO_DEFAULTS:
                config = {"model_type": family, "num_hidden_layers": 4, **ALWAYS.get(family, {})}
            try:
                AutoConfig.for_model(**copy.deepcopy(config))
            except KeyError:            # transformers refuses some of phi3's ropes
                assert family == "phi3", config
                continue
            check(sys.argv[1], config)
            checked += 1
    for kind in WRAPPERS:
        for _ in range(each):
            check(sys.argv[1], random_wrapper(kind))


if __name__ == "__main__":
    main()

"""Golden cases of families whose MLPs are mixtures of experts. make.py has the others and says what the keys mean. The
models are as small as their knobs allow: the files of a case together stay below 200 kB."""

from transformers import (AriaTextConfig, Dots1Config, Ernie4_5_MoeConfig, ExaoneMoeConfig, FlexOlmoConfig, FlintConfig,
                          Glm4MoeConfig, GptOssConfig, GraniteMoeConfig, GraniteMoeSharedConfig, GraniteMoeSWAConfig,
                          HunYuanMoEV1Config, HYV3Config, MellumConfig, MiniMaxM2Config, MixtralConfig, OlmoeConfig,
                          Qwen2MoeConfig, Qwen3MoeConfig, SarvamMoEConfig, SolarOpenConfig)

SMALL = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None}


def small(config, **keys):
    return config(**{**SMALL, **keys})


TRAIN = {"batch": 3, "micro": 1, "seq": 20, "warmup": 2, "clip": 3.0}

AUX = {"output_router_logits": True, "router_aux_loss_coef": 0.05}

CASES = {
    "mixtral": {
        "config": small(MixtralConfig, num_local_experts=4, num_experts_per_tok=2),
        "dialect": 4, "train": TRAIN},
    # a dense layer beside one with experts; weights are divided by their sum
    "qwen3-moe": {
        "config": small(Qwen3MoeConfig, head_dim=6, moe_intermediate_size=6, num_experts=7, num_experts_per_tok=3,
                        norm_topk_prob=True, mlp_only_layers=[0], tie_word_embeddings=True),
        "dialect": 5, "train": {**TRAIN, "clip": 4.0}},
    # a shared expert with a gate; every second layer is dense; weights as they are
    "qwen2-moe": {
        "config": small(Qwen2MoeConfig, moe_intermediate_size=6, shared_expert_intermediate_size=10, num_experts=5,
                        num_experts_per_tok=2, decoder_sparse_step=2),
        "dialect": 5, "train": {**TRAIN, "micro": 3, "schedule": "cosine"}},
    "olmoe": {
        "config": small(OlmoeConfig, intermediate_size=6, num_experts=6, num_experts_per_tok=2),
        "dialect": 5, "train": TRAIN},
    # files have all experts in one tensor; every factor of Granite
    "granitemoe": {
        "config": small(GraniteMoeConfig, intermediate_size=8, num_local_experts=5, num_experts_per_tok=2,
                        embedding_multiplier=3.0, logits_scaling=1.5, residual_multiplier=0.7,
                        attention_multiplier=0.3),
        "dialect": 5, "train": {**TRAIN, "clip": 1.3}},
    "granitemoeshared": {
        "config": small(GraniteMoeSharedConfig, intermediate_size=8, num_local_experts=5, num_experts_per_tok=2,
                        shared_intermediate_size=10, residual_multiplier=0.7, attention_multiplier=0.3),
        "dialect": 5, "train": {**TRAIN, "clip": 3.0}},
    # with sinks, and windows of 5 in all layers but the first, whose rope is that of all but the second
    "granitemoe-swa": {
        "config": small(GraniteMoeSWAConfig, intermediate_size=8, num_local_experts=5, num_experts_per_tok=2,
                        num_hidden_layers=3, sliding_window=5, layer_rope_theta=[10000.0, 0, 10000.0],
                        residual_multiplier=0.7, attention_multiplier=0.3),
        "dialect": 5, "train": {**TRAIN, "clip": 3.5}},
    # olmoe with norms after attention and experts
    "flex-olmo": {
        "config": small(FlexOlmoConfig, intermediate_size=6, num_experts=6, num_experts_per_tok=2),
        "dialect": 5, "train": {**TRAIN, "clip": 4.3, "eps": 1e-3}},
    # two ropes, windows of 5 in layers 0 and 2, of which the first has a dense MLP
    "mellum": {
        "config": small(MellumConfig, head_dim=6, num_hidden_layers=3, moe_intermediate_size=6, num_experts=6,
                        num_experts_per_tok=2, sliding_window=5,
                        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                        mlp_layer_types=["dense", "sparse", "sparse"]),
        "dialect": 5, "train": TRAIN},
    # files have all experts in one tensor, transposed; three shared ones
    "aria-text": {
        "config": small(AriaTextConfig, intermediate_size=6, moe_num_experts=5, moe_num_shared_experts=3,
                        attention_bias=True),
        "dialect": 5, "train": {**TRAIN, "clip": 4.0}},
    # experts by sigmoid, a shared one, sinks; windows and rope on one layer, the first two dense
    "flint": {
        "config": small(FlintConfig, head_dim=6, num_hidden_layers=4, moe_intermediate_size=6,
                        shared_expert_intermediate_size=10, num_experts=6, num_experts_per_tok=2, sliding_window=5,
                        **AUX),
        "dialect": 5, "factors": {"mlp.gate.weight": 3.0}, "train": {**TRAIN, "clip": 6.0, "eps": 1e-3}},
    # experts by sigmoid and correction, a shared one, a dense layer first; names of tensors of its own
    "hy-v3": {
        "config": small(HYV3Config, head_dim=6, moe_intermediate_size=6, num_experts=6, num_experts_per_tok=2,
                        num_shared_experts=1, router_scaling_factor=1.5),
        "dialect": 5, "train": TRAIN},
    # norms on q and k after rope, whose base alpha stretches; a shared expert, numbers for each layer
    "hunyuan-moe": {
        "config": small(HunYuanMoEV1Config, head_dim=6, num_experts=6, moe_topk=[2, 2],
                        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 20.0, "factor": 1.0}),
        "dialect": 5, "train": TRAIN},
    # groups of experts, of which a token uses the best two; a bias on the choice; a dense layer first
    "glm4-moe": {
        "config": small(Glm4MoeConfig, moe_intermediate_size=5, n_routed_experts=9, num_experts_per_tok=3, n_group=3,
                        topk_group=2, n_shared_experts=2, routed_scaling_factor=1.8, first_k_dense_replace=1,
                        head_dim=8, attention_bias=True, use_qk_norm=True, num_mtp_layers=0),
        "dialect": 5, "train": TRAIN},
    # corrections as in released files: they stay fp32 in a bf16 run, where bf16 would leave few different ones
    "glm4-moe-bias": {
        "config": small(Glm4MoeConfig, moe_intermediate_size=5, n_routed_experts=8, num_experts_per_tok=2, n_group=1,
                        topk_group=1, n_shared_experts=1, first_k_dense_replace=1, head_dim=8, num_mtp_layers=0),
        "dialect": 5, "bf16": True, "correction": (7, 0.06),
        "train": {**TRAIN, "clip": 4.5}},
    # with multi-token prediction, as the layer after the last one; on records with weights
    "glm4-moe-mtp": {
        "config": small(Glm4MoeConfig, moe_intermediate_size=5, n_routed_experts=8, num_experts_per_tok=2, n_group=1,
                        topk_group=1, n_shared_experts=1, first_k_dense_replace=1, head_dim=8, use_qk_norm=True,
                        num_nextn_predict_layers=1, mtp_loss_coef=0.3),
        "dialect": 5, "double": True, "weights": True, "train": {**TRAIN, "seq": 28, "clip": 4.0}},
    "ernie4-5-moe": {
        "config": small(Ernie4_5_MoeConfig, moe_intermediate_size=5, moe_num_experts=6, moe_k=2,
                        moe_num_shared_experts=1, moe_layer_start_index=1, tie_word_embeddings=True),
        "dialect": 5, "train": TRAIN},
    # biases everywhere, sinks, windows; experts' weights are transposed, and gate and up alternate
    "gpt-oss": {
        "config": small(GptOssConfig, intermediate_size=6, head_dim=6, num_local_experts=5, num_experts_per_tok=2,
                        sliding_window=5),
        "dialect": 5, "train": TRAIN},
    # norms of whole rows of q and k, half of each head turns, no shared expert; corrections as in released files
    "minimax-m2": {
        "config": small(MiniMaxM2Config, intermediate_size=6, head_dim=8, num_local_experts=7, num_experts_per_tok=3,
                        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
                        **AUX),
        "dialect": 4, "also": {"rotary_dim": 4}, "correction": (8, 0.06), "train": TRAIN},
    # dense before full, full before a window of 5; weights are not divided by their sum
    "dots1": {
        "config": small(Dots1Config, num_hidden_layers=3, moe_intermediate_size=5, n_routed_experts=7,
                        num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.4,
                        sliding_window=5, max_window_layers=2),
        "dialect": 5, "correction": (7, 0.06), "train": {**TRAIN, "clip": 4.0}},
    # yarn, biases of q, k and v, groups, all layers with experts
    "solar-open": {
        "config": SolarOpenConfig(
            **{k: v for k, v in SMALL.items() if k != "intermediate_size"}, head_dim=6, attention_bias=True,
            moe_intermediate_size=5, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
            rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                             "original_max_position_embeddings": 16}),
        "dialect": 4, "correction": (7, 0.06), "train": {**TRAIN, "clip": 4.0, "micro": 3}},
    # windows of 5 with rope, a full layer without; norms of heads; the first layer dense, by name
    "exaone-moe": {
        "config": small(ExaoneMoeConfig, num_hidden_layers=3, head_dim=6, moe_intermediate_size=5, num_experts=6,
                        num_experts_per_tok=2, num_shared_experts=1, sliding_window=5, sliding_window_pattern=2,
                        mlp_layer_types=["dense", "sparse", "sparse"],
                        rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "correction": (7, 0.2), "train": {**TRAIN, "clip": 5.0}},
    # as released: other names of keys; q, k and v in one tensor, norms of heads
    "sarvam-moe": {
        "config": small(SarvamMoEConfig, head_dim=6, attention_bias=True, moe_intermediate_size=5,
                        n_routed_experts=7, num_experts_per_tok=2),
        "dialect": 4, "both": True, "correction": (7, 0.06), "train": {**TRAIN, "clip": 4.0},
        "names": {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts",
                  "use_qkv_bias": "attention_bias"}},
    # terms of the loss: several micro-batches, whose targets are their weights; one of whole steps with padding
    "mixtral-aux": {
        "config": small(MixtralConfig, num_local_experts=4, num_experts_per_tok=2, **AUX),
        "dialect": 4, "train": TRAIN},
    "qwen2-moe-aux": {
        "config": small(Qwen2MoeConfig, moe_intermediate_size=6, shared_expert_intermediate_size=10, num_experts=5,
                        num_experts_per_tok=2, decoder_sparse_step=2, **AUX),
        "dialect": 5, "train": {**TRAIN, "micro": 3}},
    # the most probable experts count, not those that the correction bias chooses
    "ernie4-5-moe-aux": {
        "config": small(Ernie4_5_MoeConfig, moe_intermediate_size=5, moe_num_experts=6, moe_k=2,
                        moe_num_shared_experts=1, moe_layer_start_index=0, tie_word_embeddings=True, **AUX),
        "dialect": 5, "train": {**TRAIN, "micro": 2}},
    # both terms
    "gpt-oss-aux": {
        "config": small(GptOssConfig, intermediate_size=6, head_dim=6, num_local_experts=5, num_experts_per_tok=2,
                        sliding_window=5, router_z_loss_coef=0.03, **AUX),
        "dialect": 5, "train": {**TRAIN, "micro": 2}},
    # the z-loss alone: output_router_logits changes no loss of this family
    "glm4-moe-z": {
        "config": small(Glm4MoeConfig, moe_intermediate_size=5, n_routed_experts=9, num_experts_per_tok=3, n_group=3,
                        topk_group=2, n_shared_experts=2, routed_scaling_factor=1.8, first_k_dense_replace=1,
                        head_dim=8, attention_bias=True, use_qk_norm=True, num_mtp_layers=0, output_router_logits=True,
                        router_z_loss_coef=0.02),
        "dialect": 5, "train": {**TRAIN, "micro": 2}},
}

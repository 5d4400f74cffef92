"""Cases of make.py whose blocks have other mixers than softmax attention alone."""

import math

import transformers

# As make.py's CASES. one: norms multiply by 1 + weight, so their weights are around 0; uniform: tensors with other
# bounds. As the classes start them (A up to 16, dt_bias 1), a state forgets within a token, and A_log's gradient is
# noise. The gated norm of a document's first token divides by almost nothing where its q and k are almost orthogonal:
# with a small eps, or a residual stream that consists of such outputs, fp32 and fp64 soon differ.
SMALL = {"vocab_size": 53, "hidden_size": 24, "max_position_embeddings": 256, "rms_norm_eps": 1e-2}
FACTORS = {"embed": 3.0, "out_proj": 0.3}
UNIFORM = {"A_log": (math.log(0.2), math.log(2.0)), "dt_bias": (-3.0, 0.5), "linear_attn.norm": (0.6, 1.4)}
ROPE = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25}
MAMBA = {"A_log": (math.log(0.2), math.log(2.0)), "dt_bias": (-3.0, 0.5), "mamba.norm": (0.6, 1.4), ".D": (0.5, 1.5)}
SCAN = {"A_log": (math.log(0.2), math.log(2.0)), "dt_proj.bias": (-3.0, 0.5), "_layernorm": (0.6, 1.4),
        ".D": (0.5, 1.5)}
NEMOTRON = {"vocab_size": 53, "hidden_size": 24, "max_position_embeddings": 256, "layer_norm_epsilon": 1e-2,
            "eos_token_id": 2}

CASES = {
    # two layers of gated DeltaNet before each of attention, three value heads to a key head, heads of unlike sizes; a
    # quarter of a head turns, gates. Documents longer than two chunks of 64
    "qwen3-5": {
        "config": transformers.Qwen3_5TextConfig(
            **SMALL, intermediate_size=30, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
            head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8,
            linear_value_head_dim=6, rope_parameters=ROPE,
            layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"]),
        "dialect": 5, "double": True, "one": True, "factors": FACTORS, "uniform": UNIFORM,
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 1.5}},
    # their mixture: a shared expert with a gate, and weights that are divided by their sum; a bias of q, gate, k, v, o
    "qwen3-5-moe": {
        "config": transformers.Qwen3_5MoeTextConfig(
            **SMALL, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            attention_bias=True, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=6,
            linear_value_head_dim=10, moe_intermediate_size=6, shared_expert_intermediate_size=10, num_experts=7,
            num_experts_per_tok=3, rope_parameters=ROPE,
            layer_types=["full_attention", "linear_attention", "linear_attention"]),
        "dialect": 5, "double": True, "one": True, "factors": FACTORS, "uniform": UNIFORM,
        "train": {"micro": 1, "batch": 3, "seq": 70, "warmup": 2, "clip": 1.5}},
    # in files, the rows of q, k, v and z, and those of b and a, are cut by key head; a dense layer
    "qwen3-next": {
        "config": transformers.Qwen3NextConfig(
            **SMALL, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
            head_dim=8, linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=4,
            linear_value_head_dim=6, linear_conv_kernel_dim=3, moe_intermediate_size=6,
            shared_expert_intermediate_size=8, num_experts=6, num_experts_per_tok=2, mlp_only_layers=[2],
            rope_parameters={**ROPE, "partial_rotary_factor": 0.5}, layer_types=[
                "linear_attention", "full_attention", "linear_attention"]),
        "dialect": 4, "also": {"full_attention_interval": 2}, "double": True, "one": True, "factors": FACTORS,
        "uniform": UNIFORM,
        "train": {"micro": 3, "batch": 3, "seq": 66, "schedule": "cosine", "clip": 2.0}},
    # multi-token prediction: a module of its own with attention; dense and tied, and with experts
    "qwen3-5-mtp": {
        "config": transformers.Qwen3_5TextConfig(
            **SMALL, intermediate_size=30, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
            head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
            linear_value_head_dim=6, rope_parameters=ROPE, tie_word_embeddings=True, mtp_num_hidden_layers=1,
            mtp_loss_coef=0.3, layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "dialect": 5, "double": True, "one": True, "factors": FACTORS, "uniform": UNIFORM,
        "train": {"micro": 2, "seq": 48, "warmup": 2, "wd": 0.1, "clip": 6.4}},
    "qwen3-next-mtp": {
        "config": transformers.Qwen3NextConfig(
            **SMALL, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            head_dim=8, linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=4,
            linear_value_head_dim=6, linear_conv_kernel_dim=3, moe_intermediate_size=6,
            shared_expert_intermediate_size=8, num_experts=6, num_experts_per_tok=2, mtp_loss_coef=0.5,
            rope_parameters={**ROPE, "partial_rotary_factor": 0.5}, layer_types=["linear_attention", "full_attention"]),
        "dialect": 5, "double": True, "one": True, "factors": FACTORS, "uniform": UNIFORM,
        "train": {"micro": 1, "batch": 3, "seq": 40, "schedule": "cosine", "clip": 2.0}},
    # as the layer after the last one, with latents; in cases_experts.py without
    "deepseek-v3-mtp": {
        "config": transformers.DeepseekV3Config(
            **SMALL, intermediate_size=30, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
            moe_intermediate_size=6, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
            topk_group=2, first_k_dense_replace=1, num_nextn_predict_layers=1, mtp_loss_coef=0.1,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "double": True, "factors": {"embed": 3.0, "gate.weight": 3.0, "q_b_proj": 0.6},
        "correction": (0, 0.4),
        "train": {"micro": 2, "seq": 40, "warmup": 2, "clip": 2.2}},
    # OLMo Hybrid: gated DeltaNet with beta up to 2, and norms before it and its MLP; norms behind attention, which has
    # no rope, and its MLP. Values are small, as the gated norm's eps is 1e-5 always
    "olmo-hybrid": {
        "config": transformers.OlmoHybridConfig(
            **{**SMALL, "hidden_size": 16}, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, pad_token_id=None, attention_bias=True, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_conv_kernel_dim=3, linear_value_head_dim=10,
            rope_parameters={"rope_type": "default", "rope_theta": None},
            layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "dialect": 5, "double": True, "factors": {"embed": 3.0, "linear_attn.o_proj": 0.3, "conv1d": 0.05},
        "uniform": {**UNIFORM, "o_norm": (0.6, 1.4)},
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 3.04}},
    # Lara Mini: gated DeltaNet between windows with rope and full attention without; all of its projections are one
    # tensor in files; experts packed, and a shared one without a gate
    "lara-mini": {
        "config": transformers.LaraMiniConfig(
            **{**SMALL, "hidden_size": 16}, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
            linear_value_head_dim=8, moe_intermediate_size=6, shared_expert_intermediate_size=8, num_experts=5,
            num_experts_per_tok=2, sliding_window=5, tie_word_embeddings=False, eos_token_id=2,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": UNIFORM,
        "train": {"micro": 2, "seq": 70, "warmup": 2, "wd": 0.1, "clip": 2.0}},
    # short convolutions of 3 tokens before and behind attention, tied; the MLP's size is 2 / 3 of intermediate_size,
    # times a factor, rounded up
    "lfm2": {
        "config": transformers.Lfm2Config(
            vocab_size=59, hidden_size=28, intermediate_size=40, num_hidden_layers=4, num_attention_heads=2,
            num_key_value_heads=1, norm_eps=1e-3, max_position_embeddings=128, pad_token_id=None, block_multiple_of=6,
            block_ffn_dim_multiplier=1.2, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            full_attn_idxs=[2]),
        "dialect": 4, "double": True,
        "train": {"micro": 2, "seq": 40, "warmup": 2, "wd": 0.1, "clip": 5.5}},
    # with biases of the convolutions and of what is around them
    "lfm2-bias": {
        "config": transformers.Lfm2Config(
            vocab_size=59, hidden_size=20, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=2, norm_eps=1e-2, max_position_embeddings=128, pad_token_id=None, conv_bias=True,
            block_auto_adjust_ff_dim=False, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            layer_types=["conv", "full_attention", "conv"], tie_word_embeddings=False),
        "dialect": 5, "double": True,
        "train": {"micro": 2, "seq": 40, "warmup": 2, "clip": 3.8}},
    # their mixture: sigmoid and corrections, weights divided by their sum, to which 1e-6 is added; a dense first layer
    "lfm2-moe": {
        "config": transformers.Lfm2MoeConfig(
            vocab_size=59, hidden_size=16, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, norm_eps=1e-3, max_position_embeddings=128, pad_token_id=None, conv_L_cache=4,
            moe_intermediate_size=6, num_experts=6, num_experts_per_tok=2, num_dense_layers=1,
            routed_scaling_factor=1.5, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            layer_types=["conv", "conv", "full_attention", "conv"]),
        "dialect": 5, "double": True,
        "train": {"micro": 1, "batch": 3, "seq": 26, "warmup": 2, "clip": 4.5}},
    # multi-head latent attention: latents of q, and of k and v, with norms of their own (whose eps is 1e-6 always);
    # heads of 8 + 4 elements of q and k, 6 of v. A dense layer first; experts of the best groups, a correction. Yarn,
    # whose factor of scores is counted twice
    "deepseek-v3": {
        "config": transformers.DeepseekV3Config(
            **SMALL, intermediate_size=30, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
            attention_bias=True, moe_intermediate_size=6, n_shared_experts=2, n_routed_experts=8,
            num_experts_per_tok=3, n_group=4, topk_group=2, first_k_dense_replace=1, rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 32,
                "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 1.0}),
        "dialect": 4, "double": True, "factors": {"embed": 3.0, "gate.weight": 3.0, "q_b_proj": 0.6},
        "correction": (0, 0.4),
        "train": {"micro": 2, "seq": 70, "warmup": 2, "wd": 0.1, "clip": 2.2}},
    # as Sarvam 105B: deepseek-v3 without a latent of q and without groups, in the names of its files
    "sarvam-mla": {
        "config": transformers.SarvamMLAConfig(
            **SMALL, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2, q_lora_rank=None,
            kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6, moe_intermediate_size=6,
            n_shared_experts=1, n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=1,
            routed_scaling_factor=1.5, rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 32,
                "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}),
        "dialect": 4, "names": {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        "factors": {"embed": 3.0, "gate.weight": 3.0}, "correction": (0, 0.4),
        "train": {"micro": 2, "warmup": 2, "clip": 2.2}},
    # as deepseek-v3; an indexer chooses all tokens of a row
    "deepseek-v32": {
        "config": transformers.DeepseekV32Config(
            **SMALL, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8,
            moe_intermediate_size=6, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=2, n_group=4,
            topk_group=2, first_k_dense_replace=1, index_topk=24, index_head_dim=8, index_n_heads=2, rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 32,
                "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}),
        "dialect": 5, "factors": {"embed": 3.0, "gate.weight": 3.0}, "correction": (0, 0.4),
        "train": {"micro": 2, "warmup": 2, "clip": 2.6}},
    # as GLM-5: the same without groups, and layer 1 takes layer 0's choice
    "glm-moe-dsa": {
        "config": transformers.GlmMoeDsaConfig(
            **SMALL, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8,
            moe_intermediate_size=6, n_shared_experts=1, n_routed_experts=6, num_experts_per_tok=2,
            first_k_dense_replace=1, index_topk=24, index_head_dim=8, index_n_heads=2, indexer_types=["full", "shared"],
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "factors": {"embed": 3.0, "gate.weight": 3.0}, "correction": (0, 0.4),
        "train": {"micro": 2, "warmup": 2, "clip": 2.94}},
    # experts by softmax alone, whose weights are not divided by their sum; yarn whose two factors are equal
    "deepseek-v2": {
        "config": transformers.DeepseekV2Config(
            **SMALL, intermediate_size=22, num_hidden_layers=3, num_attention_heads=2, q_lora_rank=None,
            kv_lora_rank=14, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=8, moe_intermediate_size=6,
            n_shared_experts=2, n_routed_experts=7, num_experts_per_tok=3, first_k_dense_replace=1,
            routed_scaling_factor=1.5, rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 32,
                "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}),
        "dialect": 4, "double": True, "factors": {"embed": 3.0},
        "train": {"micro": 2, "seq": 38, "warmup": 2, "clip": 3.0}},
    # as DeepSeek V2 236B: experts of the best groups, by their best expert; q of a latent, all layers with experts
    "deepseek-v2-groups": {
        "config": transformers.DeepseekV2Config(
            **SMALL, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2, q_lora_rank=12,
            kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, moe_intermediate_size=6,
            n_shared_experts=1, n_routed_experts=12, num_experts_per_tok=3, topk_method="group_limited_greedy",
            n_group=4, topk_group=2, routed_scaling_factor=4.0,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 4, "double": True, "factors": {"embed": 3.0, "gate.weight": 3.0},
        "train": {"micro": 2, "seq": 38, "warmup": 2, "clip": 3.0}},
    # q without a latent, rope of halves
    "moonlight": {
        "config": transformers.DeepseekV3Config(
            **SMALL, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            q_lora_rank=None, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=6, v_head_dim=8,
            rope_interleave=False, moe_intermediate_size=6, n_shared_experts=1, n_routed_experts=6,
            num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "double": True, "factors": {"gate.weight": 4.0}, "correction": (0, 0.2),
        "train": {"micro": 1, "batch": 3, "seq": 66, "warmup": 2, "clip": 3.0}},
    # delta attention with a gate for each channel of a key, before and behind MLA without rope; a dense layer first,
    # experts with a correction. Documents longer than two chunks of 64
    "kimi-linear": {
        "config": transformers.KimiLinearConfig(
            **SMALL, intermediate_size=26, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
            kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, linear_num_heads=3,
            linear_head_dim=6, moe_intermediate_size=6, n_shared_experts=1, num_local_experts=6,
            num_experts_per_tok=2, pad_token_id=None, layer_types=[
                "linear_attention", "linear_attention", "full_attention", "linear_attention"]),
        "dialect": 4, "double": True, "factors": {"embed": 3.0, "gate.weight": 3.0, "o_proj": 0.3},
        "uniform": {"A_log": (math.log(0.2), math.log(2.0)), "dt_bias": (-3.0, 0.5), "o_norm": (0.6, 1.4)},
        "correction": (0, 0.5),
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 1.6}},
    # values as wide as keys, of which a part turns; one group, and mlp_layer_types
    "glm4-moe-lite": {
        "config": transformers.Glm4MoeLiteConfig(
            **SMALL, intermediate_size=26, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
            q_lora_rank=8, kv_lora_rank=12, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=16,
            moe_intermediate_size=6, n_shared_experts=1, n_routed_experts=7, num_experts_per_tok=2,
            mlp_layer_types=["sparse", "dense", "sparse"],
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "double": True, "factors": {"embed": 3.0, "gate.weight": 3.0, "q_b_proj": 0.6},
        "correction": (0, 0.4),
        "train": {"micro": 2, "seq": 40, "warmup": 2, "clip": 2.2}},
    # Mamba 2 before and behind attention without positions, two groups of three heads; the MLP is the shared expert
    # alone
    "granite-hybrid": {
        "config": transformers.GraniteMoeHybridConfig(
            **SMALL, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, shared_intermediate_size=30,
            num_local_experts=0, embedding_multiplier=2.5, residual_multiplier=0.7, attention_multiplier=0.4,
            logits_scaling=1.5, mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=6, mamba_d_head=8,
            layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"]),
        "dialect": 4, "keep": ["layer_types"], "double": True, "factors": FACTORS, "uniform": MAMBA,
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 0.6}},
    # with experts beside it; rope, limits of the time step, no bias of the convolution
    "granite-hybrid-moe": {
        "config": transformers.GraniteMoeHybridConfig(
            **SMALL, intermediate_size=10, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
            shared_intermediate_size=12, num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=2.5,
            residual_multiplier=0.8, attention_multiplier=0.3, logits_scaling=2.0, position_embedding_type="rope",
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}, mamba_n_heads=4, mamba_d_state=10,
            mamba_d_head=12, mamba_d_conv=3, mamba_conv_bias=False, time_step_limit=(0.15, 0.9),
            tie_word_embeddings=True, layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": MAMBA,
        "train": {"micro": 1, "batch": 3, "seq": 70, "warmup": 2, "clip": 2.6}},
    # Bamba: Mamba 2 before and behind attention, of whose heads a half turns; biases of all but the convolution
    "bamba": {
        "config": transformers.BambaConfig(
            **{**SMALL, "hidden_size": 16}, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, attn_layer_indices=[1], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6,
            mamba_d_conv=3, mamba_conv_bias=False, mamba_proj_bias=True, attention_bias=True, mlp_bias=True,
            time_step_limit=(0.1, 1.5), rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 4, "double": True, "factors": FACTORS, "uniform": MAMBA,
        "train": {"micro": 2, "seq": 70, "warmup": 2, "wd": 0.1, "clip": 2.2}},
    # Mamba 2 alone, in three groups, with biases of its projections
    "mamba2": {
        "config": transformers.Mamba2Config(
            vocab_size=53, hidden_size=16, num_hidden_layers=3, layer_norm_epsilon=1e-2, num_heads=6, head_dim=8,
            expand=3, n_groups=3, state_size=6, use_bias=True),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": {**MAMBA, "mixer.norm": (0.6, 1.4)},
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 1.42}},
    # layers that are a mixer or an MLP alone, two of each in a row
    "nemotron-h": {
        "config": transformers.NemotronHConfig(
            **NEMOTRON, intermediate_size=20, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
            mamba_num_heads=6, n_groups=3, ssm_state_size=8, mamba_head_dim=6, time_step_min=0.1,
            layers_block_type=["linear_attention", "linear_attention", "mlp", "mlp", "full_attention",
                               "full_attention", "linear_attention"]),
        "dialect": 4, "double": True, "factors": FACTORS, "uniform": {**MAMBA, "mixer.norm": (0.6, 1.4)},
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 1.5}},
    # or experts alone, with a shared one, none of which has a gate
    "nemotron-h-moe": {
        "config": transformers.NemotronHConfig(
            **NEMOTRON, intermediate_size=14, num_attention_heads=2, num_key_value_heads=2, head_dim=6,
            mamba_num_heads=4, n_groups=2, ssm_state_size=6, mamba_head_dim=10, use_conv_bias=False,
            n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=8,
            moe_shared_expert_intermediate_size=10, routed_scaling_factor=1.5, n_group=2, topk_group=1,
            layers_block_type=["moe", "linear_attention", "moe", "full_attention", "mlp"]),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": {**MAMBA, "mixer.norm": (0.6, 1.4)},
        "train": {"micro": 1, "batch": 3, "seq": 70, "warmup": 2, "clip": 1.5}},
    # Mamba: blocks without an MLP, whose rows of tokens end within a span of 16, and channels within vectors
    "mamba": {
        "config": transformers.MambaConfig(
            vocab_size=53, hidden_size=20, num_hidden_layers=2, state_size=6, layer_norm_epsilon=1e-2),
        "dialect": 5, "double": True, "factors": {"embed": 0.7, "out_proj": 0.3, "x_proj": 0.5}, "uniform": SCAN,
        "train": {"micro": 2, "seq": 54, "warmup": 2, "wd": 0.1, "lr": 1e-3, "clip": 2.05}},
    # Falcon Mamba: dt, B and C have norms without weights; a number of channels of its own, biases of all but the
    # convolution, of 3 tokens; untied
    "falcon-mamba": {
        "config": transformers.FalconMambaConfig(
            vocab_size=53, hidden_size=24, intermediate_size=36, num_hidden_layers=2, state_size=10, conv_kernel=3,
            time_step_rank=5, use_bias=True, use_conv_bias=False, mixer_rms_eps=1e-3, layer_norm_epsilon=1e-2,
            tie_word_embeddings=False),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": SCAN,
        "train": {"micro": 1, "batch": 3, "seq": 54, "warmup": 2, "clip": 2.63}},
    # Jamba: these with weights, attention without positions in between, experts in every other layer
    "jamba": {
        "config": transformers.JambaConfig(
            **SMALL, intermediate_size=12, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
            attn_layer_period=3, attn_layer_offset=1, expert_layer_offset=0, num_experts=3, mamba_d_state=8,
            mamba_dt_rank=3, output_router_logits=True, router_aux_loss_coef=0.02),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": SCAN,
        "train": {"micro": 2, "seq": 54, "warmup": 2, "clip": 3.2}},
    # Falcon-H1: Mamba 2 beside attention in every layer, without a norm behind it; two groups, every factor
    "falcon-h1": {
        "config": transformers.FalconH1Config(
            **SMALL, intermediate_size=30, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
            head_dim=10, mamba_d_ssm=36, mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=8, mamba_d_head=6,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}, embedding_multiplier=2.5,
            lm_head_multiplier=0.6, mlp_multipliers=[1.7, 0.6], key_multiplier=0.7, attention_out_multiplier=0.8,
            attention_in_multiplier=1.2, ssm_multipliers=[0.7, 1.3, 0.8, 1.4, 0.9], ssm_in_multiplier=1.2,
            ssm_out_multiplier=0.7),
        "dialect": 4, "double": True, "factors": FACTORS, "uniform": MAMBA,
        "train": {"micro": 2, "seq": 140, "warmup": 2, "wd": 0.1, "clip": 1.05}},
    # with a norm before the gate, biases of all but the convolution, of 3 tokens, limits of the time step; tied
    "falcon-h1-norm": {
        "config": transformers.FalconH1Config(
            **SMALL, intermediate_size=22, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            mamba_d_ssm=None, mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=10, mamba_d_conv=3,
            mamba_rms_norm=True, mamba_conv_bias=False, mamba_proj_bias=True, projectors_bias=True,
            attention_bias=True, mlp_bias=True, time_step_limit=(0.15, 0.9), tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}, embedding_multiplier=2.5,
            lm_head_multiplier=0.3, attention_in_multiplier=1.3, ssm_in_multiplier=0.8,
            ssm_multipliers=[0.7, 1.3, 0.8, 1.4, 0.9]),
        "dialect": 5, "double": True, "factors": FACTORS, "uniform": MAMBA,
        "train": {"micro": 1, "batch": 3, "seq": 70, "warmup": 2, "clip": 1.35}},
    # Trinity: a gate with a matrix of its own, norms before and behind attention and MLP, experts with sigmoid,
    # corrections and a factor, shared experts, a dense first layer; rope in windows only; embeddings times sqrt(hidden)
    "afmoe": {
        "config": transformers.AfmoeConfig(
            vocab_size=61, hidden_size=16, intermediate_size=20, num_hidden_layers=4, num_attention_heads=3,
            num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-2, max_position_embeddings=128,
            moe_intermediate_size=6, num_experts=7, num_experts_per_tok=3, num_shared_experts=2, num_dense_layers=1,
            route_scale=1.6, sliding_window=5, global_attn_every_n_layers=2, mup_enabled=True, attention_bias=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0}),
        "dialect": 5, "double": True, "factors": {"router.gate": 8}, "correction": (0, 0.3),
        "train": {"micro": 1, "seq": 24, "warmup": 2, "wd": 0.1, "clip": 3.2}},
    # Llama 4 Scout: attention inside chunks of 7 tokens, whose q and k have norms without weights behind rope, before
    # and behind full attention without rope, whose queries grow with the position; one expert by sigmoid, which
    # multiplies its input, beside a shared one, or a dense layer
    "llama4-chunks": {
        "config": transformers.Llama4TextConfig(
            vocab_size=53, hidden_size=24, intermediate_size=10, intermediate_size_mlp=20, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-2, max_position_embeddings=256,
            num_local_experts=5, interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1, 1], attention_chunk_size=7,
            floor_scale=4, attn_scale=0.3, rope_parameters={
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        "dialect": 4, "keep": ["layer_types"], "double": True, "factors": {"router": 4},
        "train": {"micro": 2, "seq": 40, "warmup": 2, "wd": 0.1, "clip": 3.6}},
    # two experts, all layers with them; chunks without rope and rope without chunks, neither norms nor
    # temperature, tied
    "llama4-plain": {
        "config": transformers.Llama4TextConfig(
            vocab_size=53, hidden_size=20, intermediate_size=8, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-2, max_position_embeddings=256, num_local_experts=6,
            num_experts_per_tok=2, use_qk_norm=False, attn_temperature_tuning=False,
            attention_chunk_size=64, no_rope_layers=[1, 0, 1], tie_word_embeddings=True,
            layer_types=["full_attention", "chunked_attention", "chunked_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        "dialect": 5, "double": True, "factors": {"router": 4},
        "train": {"micro": 1, "batch": 3, "seq": 140, "warmup": 2, "clip": 3.0}},
    # Gemma 4 26B: experts beside an MLP, each with norms of its own, and a norm behind both; a router with a norm
    "gemma4-moe": {
        "config": transformers.Gemma4TextConfig(
            vocab_size=67, hidden_size=20, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, global_head_dim=16, num_global_key_value_heads=1,
            attention_k_eq_v=True, rms_norm_eps=1e-2, max_position_embeddings=128, sliding_window=6,
            layer_types=["sliding_attention", "full_attention", "full_attention"], hidden_size_per_layer_input=0,
            enable_moe_block=True, num_experts=7, top_k_experts=3, moe_intermediate_size=10,
            final_logit_softcapping=6.0),
        "dialect": 5, "double": True,
        "factors": {"router.proj": 8}, "uniform": {"q_norm": (0.15, 0.35)},
        "train": {"micro": 2, "batch": 4, "seq": 30, "warmup": 2, "wd": 0.1, "clip": 2.8}},
    # AltUp with four copies, LAuReL, gates of which a part counts as 0, blocks' inputs of a table that some tokens are
    # beyond, MLPs of several sizes; the last two layers read other layers' k and v
    "gemma3n": {
        "config": transformers.Gemma3nTextConfig(
            vocab_size=47, hidden_size=20, intermediate_size=[14, 18, 14, 14, 14, 14], num_hidden_layers=6,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-2, max_position_embeddings=128,
            sliding_window=6, layer_types=["sliding_attention", "full_attention"] * 3, hidden_size_per_layer_input=4,
            vocab_size_per_layer_input=42, num_kv_shared_layers=2, laurel_rank=5,
            activation_sparsity_pattern=[0.7, 0.4, 0.0, 0.0, 0.5, 0.0], final_logit_softcapping=6.0),
        "dialect": 5,
        "uniform": {"q_norm": (0.15, 0.35), "post_attention_layernorm": (0.3, 0.7),
                    "post_feedforward_layernorm": (0.3, 0.7), "post_per_layer_input_norm": (0.2, 0.5)},
        "train": {"micro": 2, "batch": 4, "seq": 30, "warmup": 2, "wd": 0.1, "clip": 1.95}},
    # Gemma 4 E2B: an input of its own for each block; layers that read the k and v of others, and have a wider MLP
    "gemma4-e": {
        "config": transformers.Gemma4TextConfig(
            vocab_size=67, hidden_size=20, intermediate_size=18, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, global_head_dim=16, rms_norm_eps=1e-2, max_position_embeddings=128,
            sliding_window=6, layer_types=[
                "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention",
                "full_attention"],
            hidden_size_per_layer_input=6, vocab_size_per_layer_input=70, num_kv_shared_layers=3,
            use_double_wide_mlp=True, final_logit_softcapping=6.0),
        "dialect": 5, "double": True,
        "uniform": {"q_norm": (0.15, 0.35), "post_attention_layernorm": (0.3, 0.7),
                    "post_feedforward_layernorm": (0.3, 0.7), "post_per_layer_input_norm": (0.2, 0.5)},
        "train": {"micro": 2, "batch": 4, "seq": 30, "warmup": 2, "wd": 0.1, "clip": 2.0}},
}

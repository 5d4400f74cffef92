"""Cases of make.py whose blocks differ from llama's in norms, MLP, factors or the layout of their tensors."""

import transformers

# As make.py's CASES. one: norms multiply by 1 + weight, so their weights are around 0.
#
# Models with a bias on k have a small rope_theta. A shift of all keys by a vector that rope hardly turns hardly changes
# softmax: with a large rope_theta the gradient of such a bias is mostly rounding errors.
SMALL = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 64}

NO_DROPOUT = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}

QUICK = {"rope_type": "default", "rope_theta": 100.0}

CASES = {
    # all four factors far from 1 (attention's from 1 / sqrt(head_dim)), biases everywhere
    "granite": {
        "config": transformers.GraniteConfig(
            **SMALL, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
            attention_bias=True, mlp_bias=True, embedding_multiplier=3.0, residual_multiplier=0.6,
            attention_multiplier=0.25, logits_scaling=1.5),
        "dialect": 4,
        "train": {"micro": 2, "wd": 0.1, "clip": 1.6}},
    # as granite, but the logits' factor is no divisor, and norms after attention and MLP, too, before the factor
    "hyperclovax": {
        "config": transformers.HyperCLOVAXConfig(
            **SMALL, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2, attention_bias=True,
            mlp_bias=True, embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.25,
            logits_scaling=0.7, rope_parameters=QUICK),
        "dialect": 4,
        "train": {"micro": 2, "wd": 0.1, "clip": 1.3}},
    # LayerNorm without bias, attention and MLP parallel behind one norm; windows of 5 with rope, layer 1 without both;
    # pad_token_id 0 as in its class
    "cohere2": {
        "config": transformers.Cohere2Config(
            **{**SMALL, "num_hidden_layers": 3}, intermediate_size=26, num_attention_heads=3, num_key_value_heads=1,
            sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            logit_scale=0.6),
        "dialect": 5,
        "train": {"micro": 2, "seq": 26, "warmup": 2, "clip": 1.7}},
    # files of transformers 4 have a number for layer_types: every second layer is full
    "cohere2-v4": {
        "config": transformers.Cohere2Config(
            **SMALL, intermediate_size=26, num_attention_heads=4, num_key_value_heads=2, sliding_window=7,
            sliding_window_pattern=2, logit_scale=0.8, tie_word_embeddings=False, pad_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": 50000.0}),
        "dialect": 4, "also": {"sliding_window_pattern": 2},
        "train": {"schedule": "cosine", "clip": 1.8}},
    # cohere2 without windows: rope in all layers, neighbours
    "cohere": {
        "config": transformers.CohereConfig(
            **SMALL, intermediate_size=26, num_attention_heads=4, num_key_value_heads=2, logit_scale=0.7,
            attention_bias=True, rope_parameters=QUICK),
        "dialect": 4,
        "train": {"micro": 2, "seq": 24, "clip": 2.0}},
    # attention and MLP parallel behind one LayerNorm with bias, gelu without a gate, half of each head turns, biases
    # everywhere, of the LM head too
    "phi": {
        "config": transformers.PhiConfig(
            **SMALL, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1,
            rope_parameters={**QUICK, "partial_rotary_factor": 0.5}),
        "dialect": 5,
        "train": {"micro": 2, "warmup": 2, "clip": 2.5, "eps": 1e-3}},
    # gemma2 without norms after a half, caps and windows
    "gemma": {
        "config": transformers.GemmaConfig(
            **SMALL, intermediate_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=10),
        "dialect": 4, "one": True,
        "train": {"micro": 2, "wd": 0.05, "clip": 2.8}},
    # glm4 without norms after a half
    "glm": {
        "config": transformers.GlmConfig(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=8, pad_token_id=None,
            rope_parameters={**QUICK, "partial_rotary_factor": 0.5}),
        "dialect": 4,
        "train": {"schedule": "cosine", "clip": 3.5}},
    # LayerNorm with bias, MLP without a gate, gelu, biases everywhere, a window of 6 in all layers
    "starcoder2": {
        "config": transformers.Starcoder2Config(
            **SMALL, intermediate_size=40, num_attention_heads=4, num_key_value_heads=1, sliding_window=6,
            rope_parameters=QUICK),
        "dialect": 5,
        "train": {"micro": 2, "seq": 28, "warmup": 3, "schedule": "cosine", "clip": 2.0}},
    # only a quarter of each head turns; biases on q, k and v. The three quarters of k's bias that do not turn have no
    # gradient but rounding errors, hence Adam's large epsilon
    "stablelm": {
        "config": transformers.StableLmConfig(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=3, use_qkv_bias=True,
            rope_parameters={**QUICK, "partial_rotary_factor": 0.25}),
        "dialect": 4,
        "train": {"clip": 3.4, "eps": 1e-3}},
    # attention and MLP parallel behind one LayerNorm, which has a bias; gelu with a gate
    "stablelm-parallel": {
        "config": transformers.StableLmConfig(
            **SMALL, intermediate_size=26, num_attention_heads=3, num_key_value_heads=1, use_parallel_residual=True,
            hidden_act="gelu", tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        "dialect": 5,
        "train": {"micro": 2, "warmup": 2, "clip": 2.8}},
    # LayerNorm times 1 + weight, with bias; squared relu without a gate; half of each head turns
    "nemotron": {
        "config": transformers.NemotronConfig(
            **SMALL, intermediate_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=12, mlp_bias=True),
        "dialect": 4, "one": True,
        "train": {"micro": 2, "wd": 0.05, "clip": 2.8}},
    # LayerNorm with bias, squared relu without a gate, biases everywhere
    "jais2": {
        "config": transformers.Jais2Config(
            **SMALL, intermediate_size=36, num_attention_heads=3, num_key_value_heads=1, rope_parameters=QUICK),
        "dialect": 5,
        "train": {"micro": 2, "wd": 0.05, "clip": 2.8}},
    # norms without weights, also behind the embedding and, after rope, of heads; rope the other way, squared relu
    # without a gate, a cap of logits
    "nanochat": {
        "config": transformers.NanoChatConfig(
            **SMALL, intermediate_size=36, num_attention_heads=3, num_key_value_heads=1, final_logit_softcapping=4.0,
            attention_bias=True, rope_parameters=QUICK),
        "dialect": 5,
        "train": {"micro": 2, "wd": 0.05, "clip": 2.0}},
    # norms of what o and down read, squared relu with a gate
    "bitnet": {
        "config": transformers.BitNetConfig(
            **SMALL, intermediate_size=44, num_attention_heads=3, num_key_value_heads=1, attention_bias=True,
            rope_parameters=QUICK),
        "dialect": 4,
        "train": {"micro": 2, "clip": 3.2}},
    # squared relu without a gate in a block that is llama's otherwise; yarn
    "arcee": {
        "config": transformers.ArceeConfig(
            **{**SMALL, "max_position_embeddings": 256}, intermediate_size=36, num_attention_heads=3,
            num_key_value_heads=1, attention_bias=True,
            rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0,
                             "original_max_position_embeddings": 32}),
        "dialect": 5,
        "train": {"warmup": 1, "clip": 3.1}},
    # xIELU with two trained slopes a layer, norms on q and k, other names of norms
    "apertus": {
        "config": transformers.ApertusConfig(
            **{**SMALL, "max_position_embeddings": 256}, intermediate_size=36, num_attention_heads=3,
            num_key_value_heads=1,
            rope_parameters={"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        "dialect": 5,
        "train": {"micro": 2, "warmup": 2, "schedule": "wsd", "decay": 6, "clip": 2.2}},
    # neighbours turn together; use_bias is of every linear layer; head_dim far from hidden / heads
    "ernie4_5": {
        "config": transformers.Ernie4_5Config(
            **SMALL, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2, head_dim=10, use_bias=True,
            rope_parameters=QUICK),
        "dialect": 4,
        "train": {"micro": 2, "clip": 4.0}},
    # neighbours turn together; attention_bias is of q, k and v only; a tiny epsilon
    "helium": {
        "config": transformers.HeliumConfig(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
            attention_bias=True, mlp_bias=True, rope_parameters=QUICK),
        "dialect": 5,
        "train": {"wd": 0.1, "clip": 3.1}},
    # norms on q and k after rope; alpha stretches rope's base
    "hunyuan": {
        "config": transformers.HunYuanDenseV1Config(
            **SMALL, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 20.0, "factor": 1.0}),
        "dialect": 5,
        "train": {"micro": 2, "warmup": 2, "clip": 3.0}},
    # LayerNorm without weight and bias; pad_token_id 1 as in its class
    "olmo": {
        "config": transformers.OlmoConfig(
            **SMALL, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2),
        "dialect": 4,
        "train": {"micro": 2, "clip": 3.0}},
    # as OLMo 1B: tied, so that the last unit has no tensor at all
    "olmo-tied": {
        "config": transformers.OlmoConfig(
            **SMALL, intermediate_size=30, num_attention_heads=3, attention_bias=True, tie_word_embeddings=True,
            rope_parameters=QUICK),
        "dialect": 5,
        "train": {"wd": 0.1, "clip": 3.4}},
    # as Falcon 7B: one LayerNorm, parallel, one key head behind the query heads in query_key_value
    "falcon": {
        "config": transformers.FalconConfig(**SMALL, num_attention_heads=4, ffn_hidden_size=40),
        "dialect": 4,
        "train": {"micro": 2, "clip": 2.4}},
    # as Falcon 40B: two LayerNorms, parallel; query_key_value has each key head behind its query heads; all biases
    "falcon-40b": {
        "config": transformers.FalconConfig(
            **SMALL, num_attention_heads=6, num_kv_heads=2, ffn_hidden_size=40, new_decoder_architecture=True,
            bias=True),
        "dialect": 5,
        "train": {"micro": 2, "warmup": 2, "schedule": "cosine", "clip": 2.3}},
    # as EXAONE 3.5: other names of keys and tensors, llama3's rope; tied, all biases
    "exaone": {
        "config": transformers.ExaoneConfig(
            **SMALL, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2, attention_bias=True,
            mlp_bias=True, tie_word_embeddings=True,
            rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        "dialect": 4, "both": True,
        "names": {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps",
                  "activation_function": "hidden_act"},
        "train": {"micro": 2, "warmup": 2, "clip": 4.0}},
    # neither parallel nor with shared keys; untied
    "falcon-sequential": {
        "config": transformers.FalconConfig(
            **SMALL, num_attention_heads=3, ffn_hidden_size=36, parallel_attn=False, multi_query=False,
            tie_word_embeddings=False, activation="gelu_pytorch_tanh"),
        "dialect": 5,
        "train": {"clip": 2.0}},
    # as Falcon-RW: ALiBi, rounded to bf16, a number of heads that is no power of two; all biases
    "falcon-alibi": {
        "config": transformers.FalconConfig(
            **SMALL, num_attention_heads=6, alibi=True, parallel_attn=False, multi_query=False, bias=True),
        "dialect": 5,
        "train": {"micro": 2, "clip": 2.48}},
    # ALiBi of 5 heads, a norm behind the embedding, which block 0 has; q, k and v by head; all biases
    "bloom": {
        "config": transformers.BloomConfig(
            vocab_size=53, hidden_size=20, n_layer=3, n_head=5, bos_token_id=None, eos_token_id=None),
        "dialect": 5,
        "train": {"micro": 2, "clip": 2.0}},
    # norms of the sums with the residual, of which the last one is the final norm; learned positions
    "openai-gpt": {
        "config": transformers.OpenAIGPTConfig(
            vocab_size=53, n_embd=18, n_layer=3, n_positions=64, n_head=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        "dialect": 5,
        "train": {"micro": 2, "clip": 2.0}},
    # sines as positions, whose angles fall from 1 to 1 / 10000, behind two others; pad_token_id's position has zeros
    "xglm": {
        "config": transformers.XGLMConfig(
            vocab_size=53, d_model=24, num_layers=2, ffn_dim=36, attention_heads=3, max_position_embeddings=64,
            dropout=0, attention_dropout=0, pad_token_id=6, decoder_start_token_id=2),
        "dialect": 5,
        "train": {"micro": 2, "clip": 2.0}},
    # sines of other angles, relu, a bias of the tied LM head
    "ctrl": {
        "config": transformers.CTRLConfig(
            vocab_size=53, n_embd=24, n_layer=2, n_positions=64, n_head=3, dff=36, resid_pdrop=0, embd_pdrop=0),
        "dialect": 5,
        "train": {"micro": 2, "clip": 1.2}},
    # ALiBi, no biases at all
    "mpt": {
        "config": transformers.MptConfig(
            vocab_size=53, d_model=24, n_layers=2, n_heads=3, max_seq_len=64,
            attn_config={"softmax_scale": 0.5}),
        "dialect": 5,
        "train": {"micro": 2, "clip": 2.94}},
    # as Pythia: two LayerNorms, parallel; q, k and v of one head after another in query_key_value; half of each head
    # turns; all biases. k's bias has a large epsilon for the same reason as stablelm's
    "neox": {
        "config": transformers.GPTNeoXConfig(
            **SMALL, intermediate_size=40, num_attention_heads=3,
            rope_parameters={**QUICK, "partial_rotary_factor": 0.5}),
        "dialect": 4, "both": True,
        "train": {"micro": 2, "warmup": 2, "schedule": "cosine", "clip": 1.9, "eps": 1e-3}},
    # learned positions, which begin anew in each document; (in, out) matrices, one for q, k and v; tied
    "gpt2": {
        "config": transformers.GPT2Config(
            vocab_size=101, n_embd=24, n_layer=2, n_positions=64, n_head=3, n_inner=40, **NO_DROPOUT),
        "dialect": 5,
        "train": {"micro": 2, "seq": 26, "wd": 0.1, "warmup": 2, "clip": 1.7}},
    # as SantaCoder: gpt2 with one key head behind the query heads in c_attn, whose matrices are (out, in)
    "gpt-bigcode": {
        "config": transformers.GPTBigCodeConfig(
            vocab_size=53, n_embd=24, n_layer=2, n_positions=64, n_head=4, n_inner=40, **NO_DROPOUT),
        "dialect": 5,
        "train": {"micro": 2, "seq": 26, "warmup": 2, "schedule": "cosine", "clip": 2.1}},
    # q, k and v of one head after another in c_attn; untied
    "gpt-bigcode-heads": {
        "config": transformers.GPTBigCodeConfig(
            vocab_size=53, n_embd=24, n_layer=2, n_positions=64, n_head=3, multi_query=False,
            tie_word_embeddings=False, **NO_DROPOUT),
        "dialect": 5,
        "train": {"wd": 0.1, "clip": 2.3}},
    # learned positions behind two rows of the table, relu, pad_token_id 1 as in its class; tied
    "opt": {
        "config": transformers.OPTConfig(
            vocab_size=53, hidden_size=24, num_hidden_layers=2, max_position_embeddings=64, num_attention_heads=3,
            ffn_dim=40, dropout=0),
        "dialect": 5,
        "train": {"micro": 2, "schedule": "cosine", "clip": 3.0}},
    # norms without weight and bias, matrices without bias; untied
    "opt-plain": {
        "config": transformers.OPTConfig(
            vocab_size=53, hidden_size=24, num_hidden_layers=2, max_position_embeddings=64, num_attention_heads=3,
            ffn_dim=40, dropout=0, enable_bias=False, layer_norm_elementwise_affine=False,
            tie_word_embeddings=False, activation_function="gelu"),
        "dialect": 5,
        "train": {"warmup": 2, "wd": 0.1, "clip": 2.0}},
    # llama with one key for biases of attention and one for the MLP's
    "internlm3": {
        "config": transformers.InternLM3Config(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
            attention_bias=True, mlp_bias=True, rope_parameters={**QUICK, "rope_type": "dynamic", "factor": 6.0}),
        "dialect": 4, "names": {"qkv_bias": "attention_bias", "bias": "mlp_bias"},
        "train": {"micro": 2, "clip": 3.0}},
    "iquestcoder": {
        "config": transformers.IQuestCoderConfig(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10),
        "dialect": 5,
        "train": {"micro": 2, "wd": 0.1, "clip": 3.0}},
    # the first layer is full, the others have windows of 5; llama3's rope
    "cwm": {
        "config": transformers.CwmConfig(
            **{**SMALL, "num_hidden_layers": 3}, intermediate_size=26, num_attention_heads=3, num_key_value_heads=1,
            head_dim=8, sliding_window=5,
            rope_parameters={"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        "dialect": 4,
        "train": {"micro": 2, "clip": 3.0}},
    # mistral whose layers may be full
    "ministral": {
        "config": transformers.MinistralConfig(
            **{**SMALL, "num_hidden_layers": 3}, intermediate_size=26, num_attention_heads=3, num_key_value_heads=1,
            head_dim=10, sliding_window=5,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        "dialect": 5,
        "train": {"micro": 2, "seq": 26, "clip": 3.0}},
    # gemma2 without norms after attention and MLP
    "vaultgemma": {
        "config": transformers.VaultGemmaConfig(
            **SMALL, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=5,
            query_pre_attn_scalar=12, attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
        "dialect": 5,
        "train": {"micro": 2, "clip": 1.75}},
    # attention and MLP parallel behind one LayerNorm, neighbours turn in a part of a head, biases of MLP and LM head
    "gptj": {
        "config": transformers.GPTJConfig(
            vocab_size=53, n_embd=24, n_layer=2, n_positions=64, n_head=3, n_inner=36, rotary_dim=4),
        "dialect": 5,
        "train": {"micro": 2, "clip": 1.9}},
    # as gptj, but q, v and k are one tensor, cut into four parts
    "codegen": {
        "config": transformers.CodeGenConfig(
            vocab_size=53, n_embd=24, n_layer=2, n_positions=64, n_head=2, rotary_dim=4, pad_token_id=None),
        "dialect": 5,
        "train": {"micro": 2, "clip": 2.3}},
    # learned positions, windows of 5 in the first two layers, a factor of scores of 1; a bias of o, not of q, k and v
    "gpt-neo": {
        "config": transformers.GPTNeoConfig(
            vocab_size=53, hidden_size=24, num_layers=3, max_position_embeddings=64, num_heads=3, intermediate_size=36,
            window_size=5, attention_types=[[["local"], 2], [["global"], 1]]),
        "dialect": 5,
        "train": {"micro": 2, "clip": 3.2}},
    # as opt, with a factor of embeddings; pad_token_id 1 as in its class
    "biogpt": {
        "config": transformers.BioGptConfig(
            **SMALL, intermediate_size=36, num_attention_heads=3, hidden_dropout_prob=0,
            attention_probs_dropout_prob=0),
        "dialect": 5,
        "train": {"micro": 2, "clip": 1.8}},
    # MLA and a dense MLP
    "youtu": {
        "config": transformers.YoutuConfig(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=14,
            kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10),
        "dialect": 4,
        "train": {"micro": 2, "clip": 4.1}},
    # MLA whose rope pairs elements as llama does, factors of embedding, residual and logits
    "minicpm3": {
        "config": transformers.MiniCPM3Config(
            **SMALL, intermediate_size=30, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=14,
            kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, scale_emb=3, dim_model_base=16),
        "dialect": 4,
        "train": {"micro": 2, "clip": 2.1}},
    # sinks, windows of 5 in all layers but the first, whose rope is that of all but the second
    "granite-swa": {
        "config": transformers.GraniteSWAConfig(
            **{**SMALL, "num_hidden_layers": 3}, intermediate_size=26, num_attention_heads=3, num_key_value_heads=1,
            sliding_window=5, layer_rope_theta=[10000.0, 0, 10000.0], embedding_multiplier=3.0,
            residual_multiplier=0.6, attention_multiplier=0.25, logits_scaling=1.5),
        "dialect": 5,
        "train": {"micro": 2, "clip": 1.8}},
    # no biases but one, of the last layer's o; half of each head turns
    "neox-japanese": {
        "config": transformers.GPTNeoXJapaneseConfig(
            **SMALL, intermediate_multiple_size=2, num_attention_heads=3, attention_dropout=0, bos_token_id=None,
            eos_token_id=None, rope_parameters={**QUICK, "partial_rotary_factor": 0.5}),
        "dialect": 5,
        "train": {"micro": 2, "clip": 3.18}},
    # one block after the other, as RedPajama-INCITE; biases of the MLP only; the whole head turns; tied
    "neox-sequential": {
        "config": transformers.GPTNeoXConfig(
            **SMALL, intermediate_size=36, num_attention_heads=4, use_parallel_residual=False, attention_bias=False,
            hidden_act="gelu_fast", tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0,
                             "partial_rotary_factor": 1.0}),
        "dialect": 5,
        "train": {"wd": 0.1, "clip": 2.5}},
}

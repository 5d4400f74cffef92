"""Golden cases of classes for images too. The whole class is trained on texts, all but its text model frozen, whose
tensors mt must carry; make.py has the other cases. Those of KEPT are in folders here; wrappers.py makes the others
where it is called, as they share their code with these.

own_head: config.json does not say that the LM head is not the embeddings, only the file does."""

import transformers as hf

import cases_mixers

FULL, SLIDING = "full_attention", "sliding_attention"
TEXT = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": 1,
        "eos_token_id": 2}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 8, "patch_size": 4}
PIXTRAL = {**VISION, "model_type": "pixtral", "head_dim": 8}
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
QWEN_VISION = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 16,
               "patch_size": 2, "spatial_merge_size": 1, "temporal_patch_size": 1}
GLM_VISION = {**QWEN_VISION, "out_hidden_size": 32, "image_size": 4}
QWEN3_5_VISION = {**QWEN_VISION, "num_position_embeddings": 4}
# of gated DeltaNet
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10,
         "rms_norm_eps": 1e-2}
MIXERS = {"double": True, "one": True, "factors": cases_mixers.FACTORS, "uniform": cases_mixers.UNIFORM}
# above the vocabulary, since no text has them
IMAGE, VIDEO = {"image_token_id": 70}, {"image_token_id": 70, "video_token_id": 71}
TRAIN = {"micro": 2, "warmup": 2, "clip": 3.0}


OF_CASE = ("own_head", "factors", "correction", "uniform", "one", "double")


def text(kind, **more):
    return {**TEXT, "model_type": kind, **more}


def mrope(*section, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section, **more}}


def case(config, text_config, vision, train=(), **more):
    outer = {key: more.pop(key) for key in list(more) if key not in OF_CASE}
    if vision:
        outer["vision_config"] = vision
    return {"config": config(text_config=text_config, **outer), "dialect": 5, "train": {**TRAIN, **dict(train)}, **more}


KEPT = {
    # two thetas, linear scaling of the full layer's
    "gemma3-wrapper": case(
        hf.Gemma3Config,
        text("gemma3_text", head_dim=8, sliding_window=5, query_pre_attn_scalar=12, layer_types=[SLIDING, FULL],
             rope_parameters={FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                              SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}),
        SIGLIP, mm_tokens_per_image=4, **IMAGE),
    "gemma4-wrapper": case(
        hf.Gemma4Config,
        text("gemma4_text", head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
             hidden_size_per_layer_input=0, sliding_window=5, layer_types=[SLIDING, FULL], final_logit_softcapping=4.0,
             use_bidirectional_attention="vision", pad_token_id=0),
        {**VISION, "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 4}, audio_config=None,
        factors={"q_norm": 0.5, "k_norm": 0.5}, **VIDEO),
    "gemma4-moe-wrapper": case(
        hf.Gemma4Config,
        text("gemma4_text", head_dim=8, global_head_dim=16, hidden_size_per_layer_input=0, sliding_window=5,
             layer_types=[SLIDING, FULL], rms_norm_eps=1e-2, enable_moe_block=True, num_experts=5, top_k_experts=2,
             moe_intermediate_size=6, final_logit_softcapping=4.0, pad_token_id=0),
        {**VISION, "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 4}, {"clip": 2.8},
        audio_config=None, factors={"q_norm": 0.25, "router.proj": 8}, **VIDEO),
    # as Gemma 4 E2B; the clip is of all that is trained
    "gemma4-e-wrapper": case(
        hf.Gemma4Config,
        text("gemma4_text", head_dim=8, global_head_dim=16, num_hidden_layers=4,
             layer_types=[SLIDING, FULL, SLIDING, FULL], hidden_size_per_layer_input=6, vocab_size_per_layer_input=61,
             num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=5, rms_norm_eps=1e-2,
             final_logit_softcapping=4.0, pad_token_id=0),
        {**VISION, "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 4}, {"clip": 2.0},
        audio_config=None, uniform={"q_norm": (0.15, 0.35), "post_attention_layernorm": (0.3, 0.7),
                                    "post_feedforward_layernorm": (0.3, 0.7),
                                    "post_per_layer_input_norm": (0.2, 0.5)}, **VIDEO),
    "gemma4-unified": case(
        hf.Gemma4UnifiedConfig,
        text("gemma4_unified_text", head_dim=8, global_head_dim=16, sliding_window=5, layer_types=[SLIDING, FULL],
             final_logit_softcapping=4.0, pad_token_id=0),
        {"patch_size": 2, "pooling_kernel_size": 1, "mm_embed_dim": 16, "mm_posemb_size": 4, "output_proj_dims": 16},
        train={"clip": 2.5}, audio_config={"audio_embed_dim": 8}, factors={"q_norm": 0.5, "k_norm": 0.5}, **VIDEO),
    "mistral3-wrapper": case(
        hf.Mistral3Config, text("mistral", head_dim=6, sliding_window=None), PIXTRAL, own_head=True,
        tie_word_embeddings=False, **IMAGE),
    "qwen3-vl": case(
        hf.Qwen3VLConfig, text("qwen3_vl_text", head_dim=8, **mrope(2, 1, 1)),
        {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 4}, **VIDEO),
    # norm_topk_prob is not a key of this class
    "qwen3-vl-moe": case(
        hf.Qwen3VLMoeConfig,
        text("qwen3_vl_moe_text", head_dim=8, moe_intermediate_size=6, num_experts=6, num_experts_per_tok=2,
             norm_topk_prob=False, mlp_only_layers=[0], num_hidden_layers=3, output_router_logits=True,
             router_aux_loss_coef=0.05, **mrope(2, 1, 1)),
        {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 4}, **VIDEO),
    # half of a head turns, neighbours pair
    "glm4v": case(
        hf.Glm4vConfig,
        text("glm4v_text", hidden_size=32, intermediate_size=20, **mrope(1, 1, 0, partial_rotary_factor=0.5)),
        GLM_VISION, {"clip": 4.0}, **VIDEO),
    "glm4v-moe": case(
        hf.Glm4vMoeConfig,
        text("glm4v_moe_text", hidden_size=32, intermediate_size=20, moe_intermediate_size=5, n_routed_experts=6,
             num_experts_per_tok=2, n_group=2, topk_group=1, routed_scaling_factor=1.5, output_router_logits=True,
             router_aux_loss_coef=0.05, **mrope(1, 1, 0, partial_rotary_factor=0.5)),
        GLM_VISION, **VIDEO),
    "qwen3-5-wrapper": case(
        hf.Qwen3_5Config,
        text("qwen3_5_text", head_dim=16, layer_types=["linear_attention", FULL], **DELTA,
             **mrope(1, 1, 0, partial_rotary_factor=0.25, mrope_interleaved=True)),
        QWEN3_5_VISION, {"clip": 2.0}, **MIXERS, **VIDEO),
    # MLA, routers by softmax, groups without a correction; q grows with the position
    "mistral4-wrapper": case(
        hf.Mistral3Config,
        text("mistral4", num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=6,
             v_head_dim=8, moe_intermediate_size=8, n_shared_experts=1, n_routed_experts=6, num_experts_per_tok=2,
             n_group=3, topk_group=2, rms_norm_eps=1e-2,
             rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "mscale": 1.0,
                              "original_max_position_embeddings": 8, "beta_fast": 4.0, "beta_slow": 1.0,
                              "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.5}),
        PIXTRAL, {"clip": 5.0}, double=True, factors={"gate.weight": 3.0, "q_b_proj": 0.6}, **IMAGE),
}

CLIP = {**VISION, "model_type": "clip_vision_model"}
SAM = {"hidden_size": 8, "output_channels": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
       "patch_size": 4, "window_size": 2, "global_attn_indexes": [0], "mlp_dim": 8}
SOUND = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_mel_bins": 8, "max_source_positions": 4, "max_position_embeddings": 4}
WHISPER = {"d_model": 16, "encoder_ffn_dim": 24, "encoder_layers": 1, "encoder_attention_heads": 2, "num_mel_bins": 8,
           "max_source_positions": 4}
VIBE = {"model_type": "vibevoice_acoustic_tokenizer_encoder", "hidden_size": 4, "num_filters": 4, "depths": [1],
        "downsampling_ratios": []}
GRANITE = text("granite", embedding_multiplier=3.0, logits_scaling=1.5, attention_multiplier=0.3)
GRANITE_SPEECH = {"encoder_config": {"input_dim": 8, "num_layers": 2, "hidden_dim": 16, "feedforward_mult": 1,
                                     "num_heads": 2, "output_dim": 4, "context_size": 4, "max_pos_emb": 4,
                                     "conv_kernel_size": 3, "conv_expansion_factor": 1},
                  "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 16, "num_hidden_layers": 1,
                                       "num_attention_heads": 2, "intermediate_size": 24, "encoder_hidden_size": 16}}
QWEN3_5 = text("qwen3_5_text", head_dim=16, layer_types=["linear_attention", FULL], **DELTA,
               **mrope(1, 1, 0, partial_rotary_factor=0.25, mrope_interleaved=True))
MINICPM = {**VISION, "insert_layer_id": 0}
NEMOTRON_H = text("nemotron_h", num_hidden_layers=3, head_dim=8, mamba_num_heads=4, mamba_head_dim=4, ssm_state_size=8,
                  n_groups=2, chunk_size=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                  layers_block_type=["linear_attention", FULL, "moe"], moe_shared_expert_intermediate_size=12,
                  layer_norm_epsilon=1e-2)
AUDIO = {"audio_token_id": 70}
MORE = {
    "llava": case(hf.LlavaConfig, text("llama"), CLIP, **IMAGE),
    # as Granite Vision
    "llava_next": case(
        hf.LlavaNextConfig, GRANITE, CLIP, {"clip": 1.3}, **IMAGE),
    "llava_onevision": case(hf.LlavaOnevisionConfig, text("qwen2"), SIGLIP, **VIDEO),
    "internvl": case(hf.InternVLConfig, text("qwen3", head_dim=8),
                     {**VISION, "image_size": [8, 8], "patch_size": [4, 4]}, **IMAGE),
    "idefics3": case(hf.Idefics3Config, text("llama"), {**VISION, "model_type": "idefics3_vision"}, **IMAGE),
    "smolvlm": case(hf.SmolVLMConfig, text("llama"), {**VISION, "model_type": "smolvlm_vision"}, **IMAGE),
    "ovis2": case(hf.Ovis2Config, text("qwen2"), {**VISION, "vocab_size": 8, "hidden_stride": 1},
                  visual_indicator_token_ids=[71, 72, 73, 74, 75], vocab_size=61, hidden_size=16, **IMAGE),
    "got_ocr2": case(hf.GotOcr2Config, text("qwen2"),
                     {"hidden_size": 8, "output_channels": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 8, "patch_size": 4, "window_size": 2, "global_attn_indexes": [0], "mlp_dim": 8},
                     **IMAGE),
    "lighton_ocr": case(hf.LightOnOcrConfig, text("qwen3", head_dim=8), PIXTRAL, **IMAGE),
    "llava_next_video": case(hf.LlavaNextVideoConfig, text("llama"), CLIP, **VIDEO),
    "video_llava": case(hf.VideoLlavaConfig, text("llama"), CLIP, **VIDEO),
    "vipllava": case(hf.VipLlavaConfig, text("llama"), CLIP, vision_feature_layer=[-1], **IMAGE),
    "video_llama_3": case(hf.VideoLlama3Config, text("qwen2"), VISION, **VIDEO),
    # with the classes' own vision towers, which need timm
    "fast_vlm": case(hf.FastVlmConfig, text("qwen2"), CLIP, **IMAGE),
    "perception_lm": case(hf.PerceptionLMConfig, text("llama", tie_word_embeddings=True),
                          {**CLIP, "model_args": {"embed_dim": 16}}, **VIDEO),
    "qianfan_ocr": case(hf.QianfanOCRConfig, text("qwen3", head_dim=8), VISION, **IMAGE),
    "idefics2": case(hf.Idefics2Config, text("mistral", sliding_window=5), VISION, **IMAGE, perceiver_config={
        "resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8,
        "num_key_value_heads": 2, "hidden_size": 16}),
    "pp_chart2table": case(hf.PPChart2TableConfig, text("qwen2"), SAM, **IMAGE),
    "aria": case(
        hf.AriaConfig, text("aria_text", moe_num_experts=6, moe_num_shared_experts=3, rms_norm_eps=1e-2),
        {**VISION, "model_type": "idefics3_vision"}, projector_patch_to_query_dict={"4": 2}, image_token_index=70,
        factors={"router": 4}),
    "apertus1p5": case(
        hf.Apertus1p5Config, text("apertus1p5_text", output_vocab_size=61),
        {"codebook_size": 4, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1],
         "num_res_blocks": 1, "attn_resolutions": [], "resolution": 8}, {"clip": 2.2},
        audio_config={"model_type": "wavtokenizer_encoder", "num_filters": 2, "upsampling_ratios": [2],
                      "num_lstm_layers": 1, "hidden_size": 4, "codebook_dim": 4, "codebook_size": 4},
        image_token_id=70, audio_token_id=71, image_token_offset=40, audio_token_offset=44),
    "emu3": case(
        hf.Emu3Config, text("emu3_text_model", pad_token_id=0, attention_dropout=0.0), None,
        vocabulary_map={"<image>": 70},
        vq_config={"codebook_size": 8, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1,
                   "hidden_size": 32, "attn_resolutions": []}),
    "phi4_multimodal": {
        "config": hf.Phi4MultimodalConfig(
            **TEXT, vision_config={**VISION, "crop_size": 8, "image_token_id": 70},
            audio_config={"hidden_size": 16, "intermediate_size": 24, "num_blocks": 1, "num_attention_heads": 2,
                          "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "input_size": 8,
                          "nemo_conv_channels": 8, "bias_max_distance": 4, "audio_token_id": 71}),
        "dialect": 5, "train": TRAIN},
    "deepseek_ocr2": case(
        hf.DeepseekOcr2Config,
        text("deepseek_ocr2_text", moe_intermediate_size=6, n_routed_experts=6, num_experts_per_tok=2,
             n_shared_experts=1, routed_scaling_factor=1.5, mlp_layer_types=["dense", "sparse"]),
        {"sam_config": {**SAM, "downsample_channels": [8, 8]},
         "encoder_config": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "num_key_value_heads": 2}}, factors={"gate.weight": 3}, **IMAGE),
    "deepseek_vl": case(hf.DeepseekVLConfig, text("llama"), SIGLIP, **IMAGE),
    "deepseek_vl_hybrid": case(hf.DeepseekVLHybridConfig, text("llama"), SIGLIP, {"clip": 2.1},
                               high_res_vision_config={**SAM, "model_type": "sam_vision_model"}, **IMAGE),
    "janus": case(hf.JanusConfig, text("llama"), {**VISION, "projection_dim": 16}, **IMAGE, vq_config={
        "embed_dim": 4, "num_embeddings": 8, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1],
        "num_res_blocks": 1, "projection_dim": 16, "image_token_embed_dim": 16}),
    "kimi_k25": case(
        hf.Kimi_K25Config,
        text("deepseek_v3", num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6,
             qk_rope_head_dim=6, v_head_dim=8, moe_intermediate_size=8, n_routed_experts=6, num_experts_per_tok=2,
             n_group=3, topk_group=2, first_k_dense_replace=1),
        {**VISION, "pos_emb_height": 2, "pos_emb_width": 2}, projection_hidden_size=16, **VIDEO),
    "lfm2_vl": case(hf.Lfm2VlConfig, text("lfm2", layer_types=["conv", FULL]),
                    {**VISION, "model_type": "siglip2_vision_model", "num_patches": 4}, projector_hidden_size=8,
                    **IMAGE),
    "exaone4_5": case(hf.Exaone4_5_Config, text("exaone4", sliding_window=5, sliding_window_pattern=2),
                      {**QWEN_VISION, "num_key_value_heads": 2, "fullatt_block_indexes": [0]}, **VIDEO),
    "hyperclovax_vision_v2": case(hf.HyperCLOVAXVisionV2Config, text("hyperclovax"),
                                  {**QWEN_VISION, "model_type": "qwen2_5_vl_vision"}, **VIDEO),
    "minicpm_ocr": case(hf.MiniCPMOcrConfig, QWEN3_5, MINICPM, {"clip": 6.3}, insert_layer_id=0, **MIXERS, **VIDEO),
    "minicpmv4_6": case(hf.MiniCPMV4_6Config, QWEN3_5, MINICPM, {"clip": 2.0}, insert_layer_id=0, **MIXERS, **VIDEO),
    "minicpmv4_7": case(hf.MiniCPMV4_7Config, QWEN3_5, MINICPM, {"clip": 2.0}, insert_layer_id=0, **MIXERS, **VIDEO),
    "nemotron_h_omni": case(
        hf.NemotronH_Omni_Reasoning_V3_Config, NEMOTRON_H,
        {**VISION, "model_type": "radio", "max_img_size": 8, "video_temporal_patch_size": 2}, projector_hidden_size=16,
        vision_hidden_size=16, double=True, **VIDEO),
    "fun_asr_nano": case(
        hf.FunAsrNanoConfig, text("qwen3", head_dim=8), None, **AUDIO,
        audio_config={**SOUND, "model_type": "fun_asr_nano_encoder", "num_stacked_frames": 1,
                      "num_timestamp_prediction_layers": 1, "fsmn_kernel_size": 3},
        adaptor_config={"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 4, "num_hidden_layers": 1,
                        "projector_hidden_size": 8}),
    "glmasr": case(hf.GlmAsrConfig, text("llama"), None, audio_config={**SOUND, "model_type": "glmasr_encoder"},
                   **AUDIO),
    "granite_speech": case(hf.GraniteSpeechConfig, GRANITE, None, {"clip": 1.3}, audio_token_index=70,
                           **GRANITE_SPEECH),
    "granite_speech_plus": case(hf.GraniteSpeechPlusConfig, GRANITE, None, {"clip": 1.3}, audio_token_index=70,
                                **GRANITE_SPEECH),
    "moss_transcribe_diarize": case(hf.MossTranscribeDiarizeConfig, text("qwen3", head_dim=8), None,
                                    audio_config=SOUND, audio_merge_size=1, **AUDIO),
    "omniasr": case(
        hf.OmniASRConfig, text("llama"), None, **AUDIO,
        audio_config={**SOUND, "model_type": "omniasr_audio", "conv_dim": [8], "conv_kernel": [3], "conv_stride": [2],
                      "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}),
    "qwen2_audio": case(hf.Qwen2AudioConfig, text("qwen2"), None, audio_token_index=70,
                        audio_config={**WHISPER, "model_type": "qwen2_audio_encoder"}),
    "qwen3_asr": case(hf.Qwen3ASRConfig, text("qwen3", head_dim=8), None, **AUDIO, audio_config={
        **WHISPER, "model_type": "qwen3_asr_encoder", "output_dim": 16, "downsample_hidden_size": 8}),
    "vibevoice_asr": case(hf.VibeVoiceAsrConfig, text("qwen2"), None, semantic_tokenizer_encoder_config=VIBE,
                          acoustic_tokenizer_encoder_config=VIBE, **AUDIO),
    "voxtral": case(hf.VoxtralConfig, text("llama"), None, {"clip": 5.0}, **AUDIO,
                    audio_config={**SOUND, "model_type": "voxtral_encoder", "vocab_size": 61}),
    "qwen3_5_moe": case(
        hf.Qwen3_5MoeConfig,
        text("qwen3_5_moe_text", head_dim=16, layer_types=["linear_attention", FULL], moe_intermediate_size=6,
             shared_expert_intermediate_size=10, num_experts=5, num_experts_per_tok=2, **DELTA,
             **mrope(1, 1, 0, partial_rotary_factor=0.25, mrope_interleaved=True)),
        QWEN3_5_VISION, {"clip": 2.0}, **MIXERS, **VIDEO),
    "llama4": case(
        hf.Llama4Config,
        text("llama4_text", head_dim=8, intermediate_size=8, intermediate_size_mlp=12, num_local_experts=5,
             interleave_moe_layer_step=2, attention_chunk_size=6, no_rope_layers=[1, 0], floor_scale=4, attn_scale=0.3,
             rms_norm_eps=1e-2, rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
        {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "vision_output_dim": 16, "projector_input_dim": 16,
         "projector_output_dim": 16}, {"clip": 4.0}, factors={"router": 4}, double=True, image_token_index=70),
    "qwen2_5_vl": case(hf.Qwen2_5_VLConfig, text("qwen2_5_vl_text", **mrope(1, 1, 0)), QWEN_VISION, **VIDEO),
    "qwen2_vl": case(hf.Qwen2VLConfig, text("qwen2_vl_text", **mrope(1, 1, 0)),
                     {"depth": 1, "embed_dim": 8, "hidden_size": 16, "num_heads": 2, "patch_size": 2,
                      "spatial_merge_size": 1, "temporal_patch_size": 1}, **VIDEO),
    "glm46v": case(hf.Glm46VConfig, text("glm4v_text", **mrope(1, 1, 0)),
                   {**QWEN_VISION, "model_type": "glm4v_vision", "image_size": 4}, **VIDEO),
    "glmga": case(hf.GlmgaConfig, text("glm4v_text", **mrope(1, 1, 0)),
                  {**QWEN_VISION, "model_type": "glm4v_vision", "image_size": 4}, **VIDEO),
    "qwen2_5_omni_thinker": case(
        hf.Qwen2_5OmniThinkerConfig, text("qwen2_5_omni_text", **mrope(1, 1, 0)), QWEN_VISION, image_token_index=70,
        audio_config={**WHISPER, "output_dim": 16}),
    "qwen3_omni_moe_thinker": case(
        hf.Qwen3OmniMoeThinkerConfig,
        text("qwen3_omni_moe_text", moe_intermediate_size=6, num_experts=6, num_experts_per_tok=2, head_dim=8,
             mlp_only_layers=[0], output_router_logits=True, router_aux_loss_coef=0.05, **mrope(2, 1, 1)),
        {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 4}, **VIDEO,
        audio_config={**WHISPER, "output_dim": 16, "downsample_hidden_size": 8}),
    "granite4_vision": case(
        hf.Granite4VisionConfig, {**GRANITE, "model_type": "granite4_vision_text"},
        {**CLIP, "hidden_size": 64, "num_attention_heads": 1}, {"clip": 1.3}, downsample_rate="1/2",
        deepstack_layer_map=[[-1, 0]], spatial_target_layers=[],
        qformer_config={"model_type": "blip_2_qformer", "num_hidden_layers": 1, "intermediate_size": 24}, **IMAGE),
    "granite_docling": case(
        hf.GraniteDoclingConfig, {**GRANITE, "model_type": "granite_docling_text"},
        {**VISION, "out_hidden_size": 16, "scale_factor": 1, "deepstack_visual_indexes": [0], "use_fine_route": False},
        {"clip": 0.81}, **IMAGE),
    "glm_ocr": case(hf.GlmOcrConfig, text("glm_ocr_text", **mrope(1, 1, 0)), {**GLM_VISION, "out_hidden_size": 16},
                    **VIDEO),
    "paddleocr_vl": case(hf.PaddleOCRVLConfig, text("paddleocr_vl_text", head_dim=8, use_bias=True, **mrope(2, 1, 1)),
                         VISION, **VIDEO),
    "hunyuan_vl": case(
        hf.HunYuanVLConfig,
        text("hunyuan_vl_text", head_dim=8, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0, "mrope_section": [1, 1, 1, 1]}),
        {**VISION, "out_hidden_size": 16}, **IMAGE),
    "aya_vision": case(hf.AyaVisionConfig, text("cohere2", sliding_window=5, logit_scale=1.5), SIGLIP, **IMAGE),
    "cohere2_vision": case(hf.Cohere2VisionConfig, text("cohere2", sliding_window=5, logit_scale=1.5), SIGLIP,
                           alignment_intermediate_size=16, **IMAGE),
}

#!/usr/bin/env python3
"""Small random models of transformers' own classes for images too, and what mt makes of them.

    wrappers.py make DIR        a model of each class in DIR/NAME, and its text-only logits in DIR/NAME.pt
    wrappers.py check DIR OUT   OUT/NAME, exported from DIR/NAME: its class opens it, with the same tensors and logits
"""
import sys

import torch
import transformers as hf

TEXT = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": None,
        "bos_token_id": 1, "eos_token_id": 2}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 8, "patch_size": 4}
PIXTRAL = {**VISION, "model_type": "pixtral", "head_dim": 8}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 16,
               "patch_size": 4, "spatial_merge_size": 1, "temporal_patch_size": 1}


def text(kind, **more):
    return {**TEXT, "model_type": kind, **more}


MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
MODELS = {
    "gemma3": lambda: hf.Gemma3ForConditionalGeneration(hf.Gemma3Config(
        text_config=text("gemma3_text", sliding_window=5, layer_types=["sliding_attention", "full_attention"]),
        vision_config={**VISION, "model_type": "siglip_vision_model"}, mm_tokens_per_image=4, image_token_id=50)),
    "mistral3": lambda: hf.Mistral3ForConditionalGeneration(hf.Mistral3Config(
        text_config=text("mistral"), vision_config=PIXTRAL, image_token_id=50, tie_word_embeddings=False)),
    "llava": lambda: hf.LlavaForConditionalGeneration(hf.LlavaConfig(
        text_config=text("llama"), vision_config={**VISION, "model_type": "clip_vision_model"}, image_token_id=50)),
    "idefics3": lambda: hf.Idefics3ForConditionalGeneration(hf.Idefics3Config(
        text_config=text("llama"), vision_config={**VISION, "model_type": "idefics3_vision"}, image_token_id=50)),
    "smolvlm": lambda: hf.SmolVLMForConditionalGeneration(hf.SmolVLMConfig(
        text_config=text("llama"), vision_config={**VISION, "model_type": "smolvlm_vision"}, image_token_id=50)),
    "lighton_ocr": lambda: hf.LightOnOcrForConditionalGeneration(hf.LightOnOcrConfig(
        text_config=text("qwen3"), vision_config=PIXTRAL, image_token_id=50)),
    "ovis2": lambda: hf.Ovis2ForConditionalGeneration(hf.Ovis2Config(
        text_config=text("qwen2"), vision_config={**VISION, "vocab_size": 8, "hidden_stride": 1},
        image_token_id=50, visual_indicator_token_ids=[51, 52, 53, 54, 55])),
    "internvl": lambda: hf.InternVLForConditionalGeneration(hf.InternVLConfig(
        text_config=text("qwen2"), vision_config={**VISION, "image_size": [8, 8], "patch_size": [4, 4]},
        image_token_id=50)),
    "qwen3_vl": lambda: hf.Qwen3VLForConditionalGeneration(hf.Qwen3VLConfig(
        text_config=text("qwen3_vl_text", **MROPE), image_token_id=50, video_token_id=51,
        vision_config={**QWEN_VISION, "deepstack_visual_indexes": [0]})),
    "qwen2_5_vl": lambda: hf.Qwen2_5_VLForConditionalGeneration(hf.Qwen2_5_VLConfig(
        text_config=text("qwen2_5_vl_text", **MROPE), image_token_id=50, video_token_id=51, vision_config=QWEN_VISION)),
}


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 20)[None], attention_mask=torch.ones(1, 17)).logits


def make(where):
    for name, build in MODELS.items():
        torch.manual_seed(len(name))
        model = build()
        model.save_pretrained(f"{where}/{name}")
        torch.save(logits(model), f"{where}/{name}.pt")
        print(name)


def keys(config):
    """Those that must be as they were; exports say the same tie in text_config as in the root."""
    all_keys = config.to_dict()
    all_keys.pop("_name_or_path")
    all_keys["text_config"].pop("tie_word_embeddings", None)
    return all_keys


def check(where, out):
    for name in MODELS:
        cls = type(MODELS[name]())
        was, now = (cls.from_pretrained(f"{d}/{name}", dtype=torch.float32) for d in (where, out))
        assert keys(was.config) == keys(now.config), name
        a, b = was.state_dict(), now.state_dict()
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a), name
        assert torch.equal(logits(now), torch.load(f"{where}/{name}.pt")), name


{"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])

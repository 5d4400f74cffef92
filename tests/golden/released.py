"""Tensors as released files have them, where transformers 5.24 writes others."""

import re

import torch

import mtp

# Names of modules, as re.sub takes them: kimi_linear's dense layers have their MLP under the name of experts there
RENAMED = {"kimi_linear": (r"block_sparse_moe\.(\w+_proj)", r"mlp.\1"),
           "kimi_k25": (r"(language_model\.model)\.blocks", r"\1.layers"),
           "qianfan_ocr": (r"(language_model\.model)\.encoder\.layers", r"\1.layers")}


def released(config, tensors):
    """A norm behind olmo_hybrid's attention has the name of one before its MLP there, and the convolutions of q, k
    and v are thirds of their sum."""
    renamed = RENAMED.get(config.model_type, ("^$", ""))
    tensors = {mtp.files(config, re.sub(*renamed, name)): t for name, t in tensors.items()}
    if config.model_type != "olmo_hybrid":
        return tensors
    full = tuple("layers.%d.feed" % i for i, of in enumerate(config.layer_types) if of == "full_attention")
    files = {}
    for name, t in tensors.items():
        behind = any(of in name for of in full)
        files[name.replace("feedforward_layer_norm", "post_attention_layernorm") if behind else name] = t
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    for name in [name for name in files if "q_conv1d" in name]:
        of = [name.replace("q_conv1d", x + "_conv1d") for x in "qkv"]
        whole = torch.cat([files[n] for n in of])
        files.update(zip(of, (t.contiguous() for t in whole.split([keys, keys, len(whole) - 2 * keys]))))
    return files

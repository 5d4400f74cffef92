#!/usr/bin/env python3
"""A model of a class for images too, made of a text model of tests/golden: its tensors under the names that released
files have, and others beside them.

    wrap.py TEXT DIR KIND       KIND: gemma3, gemma3n, gemma4, mistral3, llava, qwen3_vl, qwen2_5_vl
    wrap.py --unwrap EXPORT WRAPPED TEXT    the text model of EXPORT; what it carries must be that of WRAPPED
"""
import json
import os
import struct
import sys

# what stands before the names of the text model, the LM head, model_type of text_config; None: its keys are in the root
KINDS = {"gemma3": ("language_model.model.", "language_model.lm_head.weight", "gemma3_text"),
         "gemma3n": ("model.language_model.", "lm_head.weight", "gemma3n_text"),
         "gemma4": ("model.language_model.", "lm_head.weight", "gemma4_text"),
         "mistral3": ("language_model.model.", "language_model.lm_head.weight", "mistral"),
         "llava": ("model.language_model.", "lm_head.weight", "llama"),
         "qwen3_vl": ("model.language_model.", "lm_head.weight", "qwen3_vl_text"),
         "qwen2_5_vl": ("model.", "lm_head.weight", None)}
CLASSES = {"gemma3": "Gemma3", "gemma3n": "Gemma3n", "gemma4": "Gemma4", "mistral3": "Mistral3", "llava": "Llava",
           "qwen3_vl": "Qwen3VL", "qwen2_5_vl": "Qwen2_5_VL"}
# of any dtype and rank
CARRIED = {"visual.patch_embed.weight": ("F32", [3, 2, 1, 2, 2]), "vision_tower.position_ids": ("I64", [1, 5]),
           "vision_tower.layers.0.clip": ("BF16", []), "projector.weight": ("F8_E4M3", [5, 3]),
           "projector.packed": ("U8", [7]), "mtp.fc.weight": ("BF16", [3, 3])}
BYTES = {"F32": 4, "I64": 8, "BF16": 2, "F8_E4M3": 1, "U8": 1}


def read(path):
    """All tensors of a directory: dtype, shape and bytes by name; with an index, those that it lists."""
    index = os.path.join(path, "model.safetensors.index.json")
    files, listed = ["model.safetensors"], None
    if not os.path.exists(os.path.join(path, files[0])):
        with open(index) as f:
            root = json.load(f)
        listed = root["weight_map"]
        files = sorted(set(listed.values()))
    tensors = {}
    for name in files:
        with open(os.path.join(path, name), "rb") as f:
            n, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(n))
            data = f.read()
        header.pop("__metadata__", None)
        for key, t in header.items():
            assert listed is None or listed[key] == name, key
            begin, end = t["data_offsets"]
            tensors[key] = t["dtype"], t["shape"], data[begin:end]
    if listed is not None:
        assert sorted(tensors) == sorted(listed)
        assert root["metadata"]["total_size"] == sum(len(t[2]) for t in tensors.values())
    return tensors


def write(path, tensors, name="model.safetensors"):
    header, at = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(os.path.join(path, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def carried():
    out = {}
    for i, (name, (dtype, shape)) in enumerate(CARRIED.items()):
        n = BYTES[dtype]
        for size in shape:
            n *= size
        out[name] = dtype, shape, bytes((37 * i + 11 * j) % 251 for j in range(n))
    return out


def wrap(text, out, kind):
    prefix, head, text_type = KINDS[kind]
    tensors = read(text)
    os.makedirs(out)
    named = {head if name == "lm_head.weight" else prefix + name.split(".", 1)[1]: t for name, t in tensors.items()}
    write(out, {**named, **carried()})
    with open(os.path.join(text, "config.json")) as f:
        config = json.load(f)
    tied = config.pop("tie_word_embeddings", "gemma" in kind)
    config.pop("architectures", None)
    outer = {"model_type": kind, "architectures": [CLASSES[kind] + "ForConditionalGeneration"],
             "dtype": config.get("dtype") or config.get("torch_dtype"), "vision_config": {"hidden_size": 4},
             "image_token_id": 1000000}
    if tied != (kind in ("gemma3", "gemma4", "mistral3")) and kind != "mistral3":
        outer["tie_word_embeddings"] = tied
    if text_type:
        config["model_type"] = text_type
        outer["text_config"] = config
    else:
        outer = {**config, **outer}
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(outer, f)


def unwrap(export, wrapped, text):
    with open(os.path.join(wrapped, "config.json")) as f:
        kind = json.load(f)["model_type"]
    with open(os.path.join(export, "config.json")) as f:
        config = json.load(f)
    assert config["model_type"] == kind and config["architectures"] == [CLASSES[kind] + "ForConditionalGeneration"]
    prefix, head, text_type = KINDS[kind]
    assert ("text_config" in config) == (text_type is not None)
    was, now = read(wrapped), read(export)
    assert sorted(was) == sorted(now), sorted(set(was) ^ set(now))
    assert {n: now[n] for n in CARRIED} == {n: was[n] for n in CARRIED} == carried()
    os.makedirs(text)
    write(text, {"lm_head.weight" if n == head else "model." + n[len(prefix):]: t
                 for n, t in now.items() if n not in CARRIED})


if __name__ == "__main__":
    unwrap(*sys.argv[2:]) if sys.argv[1] == "--unwrap" else wrap(*sys.argv[1:])

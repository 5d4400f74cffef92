#!/usr/bin/env python3
"""Is DIR what mt-ckpt convert --resize-vocab N makes of FROM? resized.py FROM DIR N [--transformers]

Of all tensors, by Python alone: old rows, and tensors without rows of tokens, byte for byte; new rows are the mean of
the old ones; --transformers: DIR opens there as the resized model, with equal tensors but for new rows, which are
within 2e-4 of a standard deviation of the old ones."""
import json
import math
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from wrap import read

FORM = {"F32": "I", "BF16": "H", "F16": "e"}
TOKENS = ("embed_tokens.weight", "embed_tokens_per_layer.weight", "head.weight", "lm_head.bias")


def numbers(dtype, data):
    """Their values as Python's floats"""
    v = struct.unpack("<%d%s" % (len(data) // struct.calcsize(FORM[dtype]), FORM[dtype]), data)
    shift = {"F32": 0, "BF16": 16}.get(dtype)
    return v if shift is None else [struct.unpack("<f", struct.pack("<I", x << shift))[0] for x in v]


def mean_row(dtype, rows):
    mean = [math.fsum(column) / len(rows) for column in zip(*rows)]
    if dtype == "F16":
        return struct.pack("<%de" % len(mean), *mean)
    bits = struct.unpack("<%dI" % len(mean), struct.pack("<%df" % len(mean), *mean))
    if dtype == "F32":
        return struct.pack("<%dI" % len(bits), *bits)
    return struct.pack("<%dH" % len(bits), *((b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits))


def config(path):
    with open(os.path.join(path, "config.json")) as f:
        return json.load(f)


def check(source, new, n):
    was, now = read(source), read(new)
    assert list(was) == list(now), set(was) ^ set(now)
    text = config(source).get("text_config", config(source))
    for name, (dtype, shape, data) in was.items():
        resized = name.endswith(TOKENS) and shape[0] in (text["vocab_size"], text.get("vocab_size_per_layer_input"))
        want = data
        if resized:
            row = len(data) // shape[0]
            rows = [numbers(dtype, data[i:i + row]) for i in range(0, len(data), row)]
            want = data[:n * row] + mean_row(dtype, rows) * max(0, n - shape[0])
            shape = [n] + shape[1:]
        assert now[name] == (dtype, shape, want), name
    c = config(new)
    assert c.get("text_config", c)["vocab_size"] == n and c.get("vocab_size", n) == n
    index = os.path.join(new, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            assert json.load(f)["metadata"]["total_size"] == sum(len(t[2]) for t in now.values())


def with_transformers(source, new, n):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
    wrapper = hasattr(AutoConfig.from_pretrained(source), "text_config")
    cls = AutoModelForMultimodalLM if wrapper else AutoModelForCausalLM
    model, ours = (cls.from_pretrained(d, dtype="auto") for d in (source, new))
    was = {k: v.clone() for k, v in model.state_dict().items()}
    model.resize_token_embeddings(n)
    assert ours.config.get_text_config().vocab_size == n
    now, has = model.state_dict(), ours.state_dict()
    assert now.keys() == has.keys()
    for k, v in now.items():
        rows = len(v) if v.shape == was[k].shape else min(len(v), len(was[k]))
        assert v.shape == has[k].shape and torch.equal(v[:rows], has[k][:rows]), k
        assert ((v[rows:] - has[k][rows:]).abs() <= 2e-4 * was[k].std(0)).all(), k


if __name__ == "__main__":
    (with_transformers if sys.argv[4:] else check)(sys.argv[1], sys.argv[2], int(sys.argv[3]))

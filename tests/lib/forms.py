#!/usr/bin/env python3
"""A mixture of experts of tests/golden with its tensors in another form. Needs only Python.

    forms.py IN OUT [new] [single | packed | transposed]
            new: names of transformers 5's classes; experts one by one, in two tensors of all, or in two transposed ones
    forms.py same A B       the tensors of A are those of B: names, dtypes, shapes and bytes
"""
import json
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from wrap import read, write

ELEM = {"F32": 4, "BF16": 2}
# names in released files and in transformers 5's classes, by model_type
NEW = {"mixtral": [("block_sparse_moe.", "mlp.")], "minimax_m2": [("block_sparse_moe.", "mlp.")],
       "exaone_moe": [("mlp.e_score", "mlp.gate.e_score")], "ernie4_5_moe": [("mlp.moe_", "mlp.gate.moe_")],
       **{granite: [("router.layer.weight", "router.weight")]
          for granite in ("granitemoe", "granitemoeshared", "granitemoehybrid")},
       "hy_v3": [("router.gate.", "gate."), ("mlp.expert_bias", "mlp.e_score_correction_bias"),
                 ("shared_mlp.", "shared_experts.")],
       "sarvam_moe": [("word_embeddings", "embed_tokens"), ("gate.expert_bias", "gate.e_score_correction_bias"),
                      ("attention.dense", "self_attn.o_proj"), ("attention.query_layernorm", "self_attn.q_norm"),
                      ("attention.key_layernorm", "self_attn.k_norm"), ("attention.query_key_value", "self_attn.qkv")],
       "kimi_linear": [("mlp.", "block_sparse_moe.")], "flint": [("softmax_offset", "sinks")]}
MODULES = {"granitemoe": "block_sparse_moe.", "granitemoeshared": "block_sparse_moe.",
           "granitemoehybrid": "block_sparse_moe.", "kimi_linear": "block_sparse_moe.", "nemotron_h": "mixer.",
           "gemma4_text": "", "jamba": "feed_forward."}
ROLES = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def take_experts(tensors):
    """{layer: {role: (dtype, shape, [bytes of each expert])}}, which are taken out of tensors; gate and up apart.
    Without a gate there is no such role."""
    out = {}
    for name in list(tensors):
        one = re.fullmatch(r"(.*layers\.\d+\.)(?:\w+\.)?experts\.(\d+)\.(\w+)\.weight", name)
        if one:
            dtype, shape, data = tensors.pop(name)
            _, _, all_of = out.setdefault(one[1], {}).setdefault(ROLES[one[3]], (dtype, shape, {}))
            all_of[int(one[2])] = data
        elif re.search(r"moe\.(in|out)put_linear.weight$|\.experts\.(gate_up|up|down)_proj$", name):
            dtype, (n, rows, cols), data = tensors.pop(name)
            layer = out.setdefault(re.match(r".*layers\.\d+\.", name)[0], {})
            each = [data[len(data) * i // n:len(data) * (i + 1) // n] for i in range(n)]
            if "output" in name or "down" in name or ".up_proj" in name:
                role = "up" if ".up_proj" in name else "down"
                layer[role] = dtype, [rows, cols], dict(enumerate(each))
            else:
                for half, role in enumerate(("gate", "up")):
                    layer[role] = dtype, [rows // 2, cols], {
                        i: e[len(e) // 2 * half:len(e) // 2 * (half + 1)] for i, e in enumerate(each)}
    return {p: {r: (d, s, [a[i] for i in range(len(a))]) for r, (d, s, a) in l.items()} for p, l in out.items()}


def turn(data, shape, elem):
    rows, cols = shape
    return b"".join(data[(r * cols + c) * elem:(r * cols + c + 1) * elem] for c in range(cols) for r in range(rows))


def give_experts(tensors, module, experts, form):
    for prefix, layer in experts.items():
        inner = [role for role in ("gate", "up") if role in layer]
        dtype, (hidden, ffn), down = layer["down"]
        elem = ELEM[dtype]
        if form == "single":
            for role in (*inner, "down"):
                for e, data in enumerate(layer[role][2]):
                    tensors[f"{prefix}{module}{e}.{role}_proj.weight"] = dtype, layer[role][1], data
            continue
        both = [b"".join(parts) for parts in zip(*(layer[role][2] for role in inner))]
        for name, shape, all_of in (("_".join(inner) + "_proj", [len(inner) * ffn, hidden], both),
                                    ("down_proj", [hidden, ffn], down)):
            if form == "transposed":
                all_of = [turn(data, shape, elem) for data in all_of]
                shape = shape[::-1]
            tensors[f"{prefix}{module}{name}"] = dtype, [len(all_of), *shape], b"".join(all_of)


def split_qkv(tensors, config):
    heads = config["num_attention_heads"], config["num_key_value_heads"], config["num_key_value_heads"]
    for name in [n for n in tensors if ".qkv." in n]:
        dtype, shape, data = tensors.pop(name)
        at = 0
        for letter, n in zip("qkv", heads):
            size = len(data) * n // sum(heads)
            tensors[name.replace("qkv", letter + "_proj")] = (
                dtype, [shape[0] * n // sum(heads), *shape[1:]], data[at:at + size])
            at += size


def convert(source, out, *words):
    shutil.copytree(source, out)
    with open(out + "/config.json") as f:
        config = json.load(f)
    kind, tensors = config["model_type"], read(source)
    always = {"mixtral": "single", "minimax_m2": "single", "granitemoe": "packed", "granitemoeshared": "packed",
              "granitemoehybrid": "packed"}
    form = next((w for w in words if w != "new"), always.get(kind) if "new" in words else None)
    experts = take_experts(tensors) if form else {}
    give_experts(tensors, MODULES.get(kind, "mlp.") + "experts.", experts, form)
    if "new" in words:
        for old, new in NEW.get(kind, []):
            tensors = {n.replace(old, new): t for n, t in tensors.items()}
        split_qkv(tensors, config)
    write(out, tensors)


def same(a, b):
    a, b = read(a), read(b)
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    for name in a:
        assert a[name] == b[name], name


if __name__ == "__main__":
    same(*sys.argv[2:]) if sys.argv[1] == "same" else convert(*sys.argv[1:])

#!/usr/bin/env python3
"""Make, edit and compare small Hugging Face directories. Needs only Python.

    make DIR [--dtype F32] [--shards N] [--set KEY=JSON]... [--every-pattern]
                              a random llama; --every-pattern: embeddings have each finite bit pattern of the dtype once
    edit FILE CODE            run CODE on h (the header), d (the data, a bytearray), h's order kept; write FILE anew
    raw FILE HEADER [N]       FILE with that header text and N bytes of data
    json FILE CODE            run CODE on j, the file's JSON
    same A B [--cast DTYPE]   tensors of A, cast (fp32 to nearest even), equal those of B, names and shapes too;
                              DTYPE W: BF16, as a bf16 run has fp32 weights: ties away from zero
    zero DIR PREFIX           every tensor in files PREFIX* is zero
"""
import argparse
import glob
import json
import os
import random
import struct
import sys

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16,
          "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_scaling": None,
          "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32"}
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "I16": 2, "F64": 8, "I64": 8, "U8": 1}


def shapes(c):
    d = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    h, f, q, kv = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": [c["vocab_size"], h]}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out |= {p + "input_layernorm.weight": [h], p + "self_attn.q_proj.weight": [q, h],
                p + "self_attn.k_proj.weight": [kv, h], p + "self_attn.v_proj.weight": [kv, h],
                p + "self_attn.o_proj.weight": [h, q], p + "post_attention_layernorm.weight": [h],
                p + "mlp.gate_proj.weight": [f, h], p + "mlp.up_proj.weight": [f, h],
                p + "mlp.down_proj.weight": [h, f]}
    out["model.norm.weight"] = [h]
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], h]
    return out


def count(shape):
    n = 1
    for s in shape:
        n *= s
    return n


def pack_file(path, header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def unpack_file(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    return json.loads(b[8:8 + n]), bytearray(b[8 + n:])


def write_tensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    pack_file(path, header, data)


def tensors_of(directory, prefix="model"):
    out = {}
    for path in sorted(glob.glob(f"{directory}/{prefix}*.safetensors")):
        header, data = unpack_file(path)
        for name, t in header.items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                assert name not in out, name + " stands twice"
                out[name] = (t["dtype"], t["shape"], bytes(data[begin:end]))
    return out


def finite(dtype):
    """Every finite 16-bit pattern"""
    mask = 0x7C00 if dtype == "F16" else 0x7F80
    return [i for i in range(65536) if i & mask != mask]


def make(a):
    os.makedirs(a.dir, exist_ok=True)
    config = dict(CONFIG)
    if a.every_pattern:  # 63488 of F16, 65280 of BF16: rows of 64
        config |= {"hidden_size": 64, "vocab_size": len(finite(a.dtype)) // 64}
    for s in a.set:
        key, value = s.split("=", 1)
        config[key] = json.loads(value)
    json.dump(config, open(a.dir + "/config.json", "w"), indent=2)
    rnd, tensors = random.Random(1), {}
    for name, shape in shapes(config).items():
        n = count(shape)
        if name == "model.embed_tokens.weight" and a.every_pattern:
            raw = struct.pack(f"<{n}H", *finite(a.dtype))
        elif a.dtype == "F32":
            raw = struct.pack(f"<{n}f", *(rnd.gauss(0, 1) for _ in range(n)))
        elif a.dtype == "F16":
            raw = struct.pack(f"<{n}e", *(rnd.gauss(0, 1) for _ in range(n)))
        else:
            raw = b"".join(struct.pack("<f", rnd.gauss(0, 1))[2:] for _ in range(n))
        tensors[name] = (a.dtype, shape, raw)
    if a.shards == 1:
        return write_tensors(a.dir + "/model.safetensors", tensors)
    names, index = list(tensors), {}
    for s in range(a.shards):
        file = f"model-{s + 1:05}-of-{a.shards:05}.safetensors"
        part = names[s::a.shards]
        write_tensors(f"{a.dir}/{file}", {n: tensors[n] for n in part})
        index |= {n: file for n in part}
    json.dump({"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}, "weight_map": index},
              open(a.dir + "/model.safetensors.index.json", "w"), indent=2)


def bits(dtype, raw):
    """fp32 patterns"""
    n = len(raw) // SIZE[dtype]
    if dtype == "F32":
        return list(struct.unpack(f"<{n}I", raw))
    if dtype == "BF16":
        return [i << 16 for i in struct.unpack(f"<{n}H", raw)]
    return list(struct.unpack(f"<{n}I", struct.pack(f"<{n}f", *struct.unpack(f"<{n}e", raw))))


def nearest_even(b):
    return (b + 0x7FFF + (b >> 16 & 1) >> 16) << 16


def same(a):
    x, y = tensors_of(a.a), tensors_of(a.b)
    if set(x) != set(y):
        sys.exit(f"names differ: {sorted(set(x) ^ set(y))}")
    for name in x:
        have, want = bits(y[name][0], y[name][2]), bits(x[name][0], x[name][2])
        if a.cast == "BF16":
            want = [nearest_even(b) for b in want]
        if a.cast == "W":
            want = [b + 0x8000 >> 16 << 16 for b in want]
        dtype = "BF16" if a.cast == "W" else a.cast
        if dtype and y[name][0] != dtype:
            sys.exit(f"{name}: {y[name][0]} and not {dtype}")
        if x[name][1] != y[name][1] or have != want:
            sys.exit(f"{name} differs")


def zero(a):
    files = tensors_of(a.dir, a.prefix)
    if not files or any(any(t[2]) for t in files.values()):
        sys.exit("not all zero")


def edit(a):
    h, d = unpack_file(a.file)
    scope = {"h": h, "d": d, "struct": struct}
    exec(a.code, scope)
    pack_file(a.file, scope["h"], bytes(scope["d"]))


def raw_file(a):
    text = a.header.encode()
    with open(a.file, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(a.n))


def edit_json(a):
    scope = {"j": json.load(open(a.file))}
    exec(a.code, scope)
    json.dump(scope["j"], open(a.file, "w"), indent=2)


def main():
    p = argparse.ArgumentParser()
    sub = p.add_subparsers(required=True)

    def command(name, function, *operands):
        c = sub.add_parser(name)
        for o in operands:
            c.add_argument(o)
        c.set_defaults(function=function)
        return c

    c = command("make", make, "dir")
    c.add_argument("--dtype", default="F32")
    c.add_argument("--shards", type=int, default=1)
    c.add_argument("--set", action="append", default=[])
    c.add_argument("--every-pattern", action="store_true")
    command("edit", edit, "file", "code")
    command("raw", raw_file, "file", "header").add_argument("n", type=int, nargs="?", default=0)
    command("json", edit_json, "file", "code")
    command("same", same, "a", "b").add_argument("--cast")
    command("zero", zero, "dir", "prefix")
    a = p.parse_args()
    a.function(a)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Make a quantized model of random numbers from a Hugging Face directory, and what its numbers are, by the definition.

    quantize.py fp8 IN OUT [--form blocks|halves|scalar|channel|tensor|grid|short|qscale] [--block R,C]
                    [--scale F32|BF16|F8_E8M0|U8]
            blocks: of R x C, weight_scale_inv; without --block the config has no weight_block_size
            halves: the same, but of packed experts gate and up have blocks of their own; short: named .scale
            scalar: weight_block_size null, one weight_scale_inv, and an activation_scale; qscale: named .qscale_weight
            channel, tensor, grid: of compressed-tensors, weight_scale (R, 1), or one number, or blocks
    quantize.py mxfp4 IN OUT [--hidden N]       IN: the golden gpt-oss
    quantize.py transformers OUT                transformers' own dequantization of OUT gives OUT/expect

OUT/expect/model.safetensors has F32 tensors. Only `transformers` needs torch and transformers."""

import json
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mksafetensors import SIZE, count, tensors_of, write_tensors

rnd = random.Random(1)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def e4m3(code):
    exp, frac = code >> 3 & 15, code & 7
    x = (8 + frac) * 2.0 ** (exp - 10) if exp else frac * 2.0**-9
    return -x if code & 0x80 else x


FP8 = [e4m3(c) for c in range(256)]
assert max(FP8[:0x7F]) == 448 and FP8[1] == 2.0**-9


def random_scale(dtype):
    """A scale's bytes and value"""
    if dtype in ("U8", "F8_E8M0"):
        code = rnd.randrange(110, 130)
        return bytes([code]), 2.0 ** (code - 127)
    raw = struct.pack("<f", rnd.uniform(0.5, 1) * 2.0 ** rnd.randrange(-20, 0))
    if dtype == "BF16":
        raw = b"\0\0" + raw[2:]
    return raw[2:] if dtype == "BF16" else raw, struct.unpack("<f", raw)[0]


def fp8(name, shape, form, block, scale_dtype):
    """The tensors that are in the file for a weight, and its numbers"""
    *experts, rows, cols = shape
    r, c = (1, cols) if form == "channel" else shape[-2:] if form in ("scalar", "tensor", "qscale") else block
    parts = count(experts) * (2 if form == "halves" and "gate_up" in name else 1)
    height = rows * count(experts) // parts
    grid = [-(-height // r), -(-cols // c)]
    scales = [[random_scale(scale_dtype) for _ in range(grid[0] * grid[1])] for _ in range(parts)]
    codes = bytes(rnd.choice([i for i in range(256) if i & 0x7F != 0x7F]) for _ in range(count(shape)))
    scale_at = [s[i // r * grid[1] + j // c][1] for s in scales for i in range(height) for j in range(cols)]
    numbers = [FP8[code] * scale for code, scale in zip(codes, scale_at)]
    old, new = {"short": ("weight", "scale"), "qscale": ("weight", "qscale_weight")}.get(
        form, ("", "_scale" if form in ("channel", "tensor", "grid") else "_scale_inv"))
    scale_shape = [*experts, grid[0] * parts // count(experts), grid[1]]
    if form in ("scalar", "tensor", "qscale"):
        scale_shape = experts
    scale_bytes = b"".join(s[0] for part in scales for s in part)
    files = {name: ("F8_E4M3", shape, codes), name.removesuffix(old) + new: (scale_dtype, scale_shape, scale_bytes)}
    if form == "scalar":
        at = name.removesuffix("weight") if name.endswith("weight") else name + "_"
        files[at + "activation_scale"] = ("BF16", [], b"\x80\x3f")
    return files, struct.pack(f"<{len(numbers)}f", *numbers)


def quantize_fp8(source, form="blocks", block=None, scale="F32"):
    tensors, expect = {}, {}
    for name, (dtype, shape, raw) in tensors_of(source).items():
        tensors[name] = expect[name] = dtype, shape, raw
        if name.endswith(("_proj.weight", "_with_mqa.weight")) or len(shape) == 3:
            files, numbers = fp8(name, shape, form, block or (128, 128), scale)
            tensors |= files
            expect[name] = "F32", shape, numbers
    q = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    if form in ("channel", "tensor"):
        q = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    elif form == "grid":
        weights = {"strategy": "block", "block_structure": block, "num_bits": 8, "type": "float"}
        q = {"quant_method": "compressed-tensors", "format": "float-quantized",
             "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    elif form in ("scalar", "qscale") or block:
        q["weight_block_size"] = block
    return tensors, expect, q


def mxfp4(experts, rows, cols):
    """Blocks and scales, and the numbers of (experts, cols, rows)"""
    groups = experts * rows * cols // 32
    blocks = rnd.randbytes(groups * 16)
    scales = bytes(rnd.randrange(253) for _ in range(groups))
    numbers = [0.0] * (groups * 32)
    for group in range(groups):
        row, at = divmod(group, cols // 32)
        first = row // rows * rows * cols + row % rows + at * 32 * rows
        power = 2.0 ** (scales[group] - 127)
        for i in range(16):
            byte = blocks[group * 16 + i]
            numbers[first + 2 * i * rows] = E2M1[byte & 15] * power
            numbers[first + (2 * i + 1) * rows] = E2M1[byte >> 4] * power
    return blocks, scales, struct.pack(f"<{len(numbers)}f", *numbers)


def quantize_mxfp4(source, config, hidden):
    old, inner, experts = config["hidden_size"], 32, config["num_local_experts"]
    config["hidden_size"], config["intermediate_size"] = hidden, inner
    tensors, expect = {}, {}
    for name, (_, shape, _) in tensors_of(source).items():
        shape = [hidden if n == old else n for n in shape]
        if name.endswith("gate_up_proj_bias"):
            shape[1] = 2 * inner
        if name.endswith("_proj") and "experts" in name:
            shape = [experts, hidden, 2 * inner] if "gate_up" in name else [experts, inner, hidden]
            rows, cols = shape[2], shape[1]
            blocks, scales, numbers = mxfp4(experts, rows, cols)
            tensors[name + "_blocks"] = "U8", [experts, rows, cols // 32, 16], blocks
            tensors[name + "_scales"] = "U8", [experts, rows, cols // 32], scales
        else:
            numbers = struct.pack(f"<{count(shape)}f", *(rnd.gauss(0, 1) for _ in range(count(shape))))
            tensors[name] = "F32", shape, numbers
        expect[name] = "F32", shape, numbers
    return tensors, expect, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def make(kind, source, out, options):
    with open(source + "/config.json") as f:
        config = json.load(f)
    if "--block" in options:
        options["--block"] = [int(n) for n in options["--block"].split(",")]
    if kind == "fp8":
        tensors, expect, q = quantize_fp8(source, **{k.removeprefix("--"): v for k, v in options.items()})
    else:
        tensors, expect, q = quantize_mxfp4(source, config, int(options.get("--hidden", 64)))
    os.makedirs(out + "/expect")
    with open(out + "/config.json", "w") as f:
        json.dump(config | {"quantization_config": q}, f, indent=2)
    write_tensors(out + "/model.safetensors", tensors)
    write_tensors(out + "/expect/model.safetensors", expect)


def transformers(out):
    import torch
    from safetensors.torch import load_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, compared = load_file(out + "/model.safetensors"), 0
    for name, want in load_file(out + "/expect/model.safetensors").items():
        if name + "_scale_inv" in tensors:
            has = Fp8Dequantize(None)._dequantize_one(tensors[name], tensors[name + "_scale_inv"], torch.float32)
        elif name + "_blocks" in tensors:
            has = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"], dtype=torch.float32)
        else:
            continue
        compared += 1
        if not torch.equal(has.view(torch.int32), want.view(torch.int32)):
            sys.exit(f"{name} differs")
    assert compared, "nothing is quantized"


if __name__ == "__main__":
    SIZE["F8_E4M3"] = SIZE["F8_E8M0"] = 1
    if sys.argv[1] == "transformers":
        transformers(sys.argv[2])
    else:
        make(*sys.argv[1:4], dict(zip(sys.argv[4::2], sys.argv[5::2])))

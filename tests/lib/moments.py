"""m and v of a checkpoint by plain Python: a second implementation of the format, independent of mt's."""
import array
import json
import os
import struct


def tensors(path):
    """A safetensors file -> {name: (dtype, bytes)}"""
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = {k: v for k, v in json.loads(data[8:8 + size]).items() if k != "__metadata__"}
    return {k: (v["dtype"], data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]])
            for k, v in header.items()}


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def number(pattern):
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def decoded(which, code, scale):
    """The fp32 pattern of a code of m or v"""
    if which == "v":
        return bits(number(0x30000000 + (code << 20)) * scale)
    return bits(number((code >> 7 << 31) + 0x38000000 + ((code & 127) << 20)) * scale if code & 127 else -0.0)


def place(i):
    """Where the code of element i of a group is: words have two neighbours, and those 32 later"""
    return i % 32 // 2 * 4 + i // 32 * 2 + i % 2


def read(directory, which, layout):
    """Tensor -> fp32 patterns of m or v; layout: lines of store-layout, which say where tensors are in units"""
    file = tensors(os.path.join(directory, "optim-%s.safetensors" % which))
    if not any(dtype == "U8" for dtype, _ in file.values()):
        return {name: [x << 16 for x in array.array("H", data)] if dtype == "BF16" else list(array.array("I", data))
                for name, (dtype, data) in file.items()}
    units, values = {}, {}
    for name, (dtype, codes) in file.items():
        if not name.endswith(".scale"):
            assert dtype == "U8" and file[name + ".scale"][0] == "F32", name
            scales = array.array("f", file[name + ".scale"][1])
            assert len(codes) == 64 * len(scales) and name.endswith("[0:%d]" % len(codes)), name
            units[name.split("[")[0]] = [decoded(which, codes[group * 64 + place(i)], scale)
                                         for group, scale in enumerate(scales) for i in range(64)]
    for words in map(str.split, layout):
        if words[0] == "tensor":
            _, name, _, unit, *rest = words
            at, n = int(rest[rest.index("off") + 1]), int(rest[rest.index("n") + 1])
            values[name] = units["unit." + unit][at:at + n]
    return values

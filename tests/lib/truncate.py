#!/usr/bin/env python3
"""Copy a golden model: truncate.py MODEL OUT [--routers]. All weights but exact ones (golden/compare.py) keep bf16's
bits alone, and stay F32: so a bf16 run and an fp32 run have equal weights. --routers: routers' weights become BF16."""

import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from compare import exact

model, out = sys.argv[1:3]
shutil.copytree(model, out)
with open(os.path.join(out, "config.json")) as f:
    model_type = json.load(f)["model_type"]
file = os.path.join(out, "model.safetensors")
with open(file, "rb") as f:
    (length,) = struct.unpack("<Q", f.read(8))
    header = json.loads(f.read(length))
    data = f.read()
made, new = b"", {}
for name, entry in header.items():
    if name != "__metadata__":
        raw = data[slice(*entry["data_offsets"])]
        words = [raw[at : at + 4] for at in range(0, len(raw), 4)]
        if "--routers" in sys.argv and name.endswith(".gate.weight"):
            entry["dtype"] = "BF16"
            words = [w[2:] for w in words]
        elif not exact(model_type, name):
            words = [b"\0\0" + w[2:] for w in words]
        entry["data_offsets"] = [len(made), len(made) + sum(map(len, words))]
        made += b"".join(words)
    new[name] = entry
text = json.dumps(new).encode()
with open(file, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + made)

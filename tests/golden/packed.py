#!/usr/bin/env python3
"""Golden mixtures of experts as transformers' classes have them in memory, olmo-hybrid as transformers writes it, and
what mt makes of them.

    packed.py make GOLDEN DIR CASE...   save GOLDEN/CASE/model to DIR/CASE, under the names of the classes' parameters
    packed.py check DIR OUT CASE...     OUT/CASE, exported from DIR/CASE: transformers opens it: same tensors and logits
"""
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM


def opened(path):
    images = hasattr(AutoConfig.from_pretrained(path), "text_config")
    cls = AutoModelForMultimodalLM if images else AutoModelForCausalLM
    # by default, sizes must be multiples of 16 bytes
    return cls.from_pretrained(path, dtype=torch.float32, experts_implementation="eager").eval()


def make(golden, where, *cases):
    for case in cases:
        opened(f"{golden}/{case}/model").save_pretrained(f"{where}/{case}", save_original_format=case == "olmo-hybrid")


def check(where, out, *cases):
    tokens = torch.arange(3, 20)[None]
    for case in cases:
        was, now = opened(f"{where}/{case}"), opened(f"{out}/{case}")
        a, b = was.state_dict(), now.state_dict()
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a), case
        with torch.no_grad():
            # torch adds in another order where memory is aligned in another way
            assert (was(tokens).logits - now(tokens).logits).abs().max() < 1e-5, case


{"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])

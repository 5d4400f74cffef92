#!/usr/bin/env python3
"""Train in plain PyTorch what mt has trained, and compare each step's loss and gradient norm, and the final weights.

usage: compare.py MODEL RECORDS METRICS RESULT --pack docs|none --batch B --seq T --lr X --warmup N --steps N

MODEL is the directory that both start from, METRICS what mt-step printed, RESULT what mt exported. Each document is
computed by itself, so nothing is packed here. The norm that counts is that of PyTorch's gradients, added up in fp64.
Prints the worst of each difference. Exit 1 if the losses differ by more than 2e-6 of themselves, norms by 1e-5, or the
final weights of a tensor by more than 5e-4 of its whole update: the bounds of tests/golden.
"""
import argparse
import json
import math
import sys

import torch
import transformers

from rows import CONTEXT_ONLY, read_records, rows

LOSS, NORM, FINAL = 2e-6, 1e-5, 5e-4


def options():
    p = argparse.ArgumentParser()
    for name in ("model", "records", "metrics", "result"):
        p.add_argument(name)
    p.add_argument("--pack", choices=("docs", "none"), required=True)
    for name in ("batch", "seq", "warmup", "steps"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--lr", type=float, required=True)
    return p.parse_args()


def train(o, model):
    """Loss, norm in fp64 and norm by PyTorch of each step"""
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, o.warmup, o.steps)
    source = rows(read_records(o.records), o.seq, o.pack == "docs")
    for _ in range(o.steps):
        pieces = [piece for _ in range(o.batch) for piece in next(source)]
        targets = sum(not word & CONTEXT_ONLY for piece in pieces for word in piece[1:])
        loss = 0.0
        for piece in pieces:
            ids = torch.tensor([word & ~CONTEXT_ONLY for word in piece])
            wanted = torch.tensor([0] + [not word & CONTEXT_ONLY for word in piece[1:]], dtype=torch.bool)
            if not wanted.any():
                continue
            logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
            labels = torch.where(wanted, ids, -100)[1:]
            # in fp64: over 49,152 logits PyTorch's fp32 is 3e-6 off
            part = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum") / targets
            part.backward()
            loss += part.item()
        exact = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield loss, exact, norm


def main():
    o = options()
    with open(o.metrics) as f:
        theirs = [json.loads(line) for line in f]
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(o.model, dtype=torch.float32).train()
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    worst = {"loss": 0.0, "norm": 0.0, "PyTorch's own norm": 0.0}
    for mt, (loss, exact, norm) in zip(theirs, train(o, model), strict=True):
        for name, got, want in (("loss", mt["loss"], loss), ("norm", mt["grad_norm"], exact),
                                ("PyTorch's own norm", norm, exact)):
            worst[name] = max(worst[name], abs(got / want - 1))
    result = dict(load(o.result, dtype=torch.float32).named_parameters())
    worst["final weights"] = max(
        ((result[name] - p).double().norm() / (p - first[name]).double().norm()).item()
        for name, p in model.named_parameters())
    print("%d steps, loss %.4f to %.4f; worst differences: %s" % (
        o.steps, theirs[0]["loss"], theirs[-1]["loss"], ", ".join("%s %.2g" % kind for kind in worst.items())))
    sys.exit(worst["loss"] > LOSS or worst["norm"] > NORM or worst["final weights"] > FINAL)


main()

#!/usr/bin/env python3
"""The same training step in plain PyTorch and transformers, which gpu-bench compares with mt's.

usage: torch_step.py CONFIG --rows N --seq T [--micro N] [--device cuda] [--memory SHARE]

Eager, bf16 weights and activations, scaled_dot_product_attention, transformers' own loss (logits to fp32), no
recompute; fp32 master weights updated by fused AdamW, gradients bf16, clipped to norm 1, accumulated over
micro-batches. A micro-batch that does not fit is halved, also later, and that step is not timed. Random tokens. Prints
a line of versions when ready, then reads numbers of steps on stdin and answers each with one line of seconds. A line
{"missing": ...} instead means that something is missing.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time

try:
    import torch
    import transformers
except ImportError as e:
    print(json.dumps({"missing": f"Python's {e.name}"}), flush=True)
    sys.exit(0)


def options():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--rows", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--micro", type=int, default=4)
    p.add_argument("--device", default="cuda")
    p.add_argument("--memory", type=float, default=1.0, help="share of the device's memory that may be used")
    return p.parse_args()


def model_of(path, device):
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(path, os.path.join(d, "config.json"))
        config = transformers.AutoConfig.from_pretrained(d)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.config.use_cache = False
    return model.to(torch.bfloat16).train()


class Trainer:
    def __init__(self, o):
        self.o, self.micro = o, min(o.micro, o.rows)
        self.model = model_of(o.config, o.device)
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        self.masters = [p.detach().float() for p in self.weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-5, weight_decay=0.0, fused=o.device != "cpu")
        self.rows = torch.randint(0, self.model.config.vocab_size, (o.rows, o.seq), device=o.device)

    def gradients(self):
        for rows in self.rows.split(self.micro):
            loss = self.model(input_ids=rows, labels=rows, use_cache=False).loss * (len(rows) / len(self.rows))
            loss.backward()

    def step(self):
        self.gradients()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        with torch.no_grad():
            for master, w in zip(self.masters, self.weights):
                master.grad = w.grad.float()
                w.grad = None
            self.optimizer.step()
            for master, w in zip(self.masters, self.weights):
                w.copy_(master)
                master.grad = None
        if self.o.device != "cpu":
            torch.cuda.synchronize()

    def fitting_step(self):
        """A step, with smaller micro-batches until one fits. Returns its seconds, without those that did not fit"""
        while True:
            began = time.perf_counter()
            try:
                self.step()
                return time.perf_counter() - began
            except torch.OutOfMemoryError:
                if self.micro == 1:
                    raise
            self.micro //= 2
            for tensor in (*self.weights, *self.masters):
                tensor.grad = None
            if self.o.device != "cpu":
                torch.cuda.empty_cache()

    def first(self):
        """Two steps: from the second on there is AdamW's state beside the activations"""
        for _ in range(2):
            self.fitting_step()

    def timed_step(self):
        while True:
            before, seconds = self.micro, self.fitting_step()
            if self.micro == before:
                return seconds


def main():
    o = options()
    if o.device != "cpu" and not torch.cuda.is_available():
        print(json.dumps({"missing": "a GPU that torch sees"}), flush=True)
        return
    if o.memory < 1 and o.device != "cpu":
        torch.cuda.set_per_process_memory_fraction(o.memory)
    try:
        trainer = Trainer(o)
        trainer.first()
    except (torch.OutOfMemoryError, RuntimeError, ValueError, TypeError) as e:
        print(json.dumps({"missing": f"what it needs: {str(e).splitlines()[0][:300]}"}), flush=True)
        return
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "micro": trainer.micro,
                      "how": "eager, bf16 weights, sdpa, fp32 master with fused AdamW, no recompute"}), flush=True)
    for line in sys.stdin:
        try:
            seconds = [trainer.timed_step() for _ in range(int(line))]
        except torch.OutOfMemoryError as e:
            sys.exit(f"out of memory with micro-batches of one row: {str(e).splitlines()[0][:300]}")
        peak = torch.cuda.max_memory_allocated() if o.device != "cpu" else 0
        print(json.dumps({"seconds": seconds, "peak_bytes": peak, "micro": trainer.micro}), flush=True)


if __name__ == "__main__":
    main()

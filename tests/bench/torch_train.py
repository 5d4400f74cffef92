#!/usr/bin/env python3
"""The training step that mt is compared with, in plain PyTorch and transformers on the CPU.

usage: torch_train.py MODEL RECORDS --batch B --seq T [--dtype fp32|bf16] [--threads N] [--compile]

MODEL is a Hugging Face directory; RECORDS are mt's (u32 count, then that many u32s), each of T tokens, B a step.
Prints a line of versions when ready, then reads numbers of steps on stdin and answers each with one line: the losses
and the seconds of these steps. fp32: everything in fp32. bf16: fp32 weights, forward and backward under autocast.
"""
import argparse
import json
import sys
import time

try:
    import torch
    import transformers
except ImportError as e:
    print(json.dumps({"missing": e.name}), flush=True)
    sys.exit(0)


def options():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("records")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--compile", action="store_true")
    return p.parse_args()


def batches(path, batch, seq):
    """(B, T) tokens of a step, in mt's order"""
    with open(path, "rb") as f:
        rows = torch.frombuffer(bytearray(f.read()), dtype=torch.int32).view(-1, seq + 1)[:, 1:].long()
    yield from rows.split(batch)


class Trainer:
    def __init__(self, o):
        config = transformers.AutoConfig.from_pretrained(o.model)
        experts = {"experts_implementation": "grouped_mm"} if hasattr(config, "num_experts") else {}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            o.model, dtype=torch.float32, attn_implementation="sdpa", **experts)
        self.model.config.use_cache = False
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=o.lr, weight_decay=0.0, fused=True)
        self.forward = torch.compile(self.model) if o.compile else self.model
        self.autocast = o.dtype == "bf16"
        self.batches = batches(o.records, o.batch, o.seq)

    def step(self):
        rows = next(self.batches)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.forward(input_ids=rows, labels=rows, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def main():
    o = options()
    torch.set_num_threads(o.threads)
    trainer = Trainer(o)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
    for line in sys.stdin:
        losses, seconds = [], []
        for _ in range(int(line)):
            start = time.perf_counter()
            losses.append(trainer.step())
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"losses": losses, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()

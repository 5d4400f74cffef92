#!/usr/bin/env python3
"""The update that mt's is compared with: torch.optim.AdamW(fused=True), or DeepSpeed's DeepSpeedCPUAdam.

usage: peer_adam.py torch|deepspeed PARAMETERS --threads N

fp32 weights, gradients, m and v in one tensor each. Prints a line of versions when ready, or what is missing. Then
reads numbers of updates on stdin and answers each with the seconds of these updates: CPU time of the only thread, or
wall time of several. DeepSpeed compiles cpu_adam when it is first used: a minute or more, with ninja and g++.
"""
import argparse
import sys
import time

from peer import answer, leave


def make_optimizer(kind, params):
    if kind == "torch":
        return torch.optim.AdamW([params], lr=1e-3, weight_decay=0.1, fused=True), {"torch": torch.__version__}
    try:
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        leave("DeepSpeed")
    return (DeepSpeedCPUAdam([params], lr=1e-3, weight_decay=0.1, adamw_mode=True),
            {"torch": torch.__version__, "deepspeed": deepspeed.__version__})


def main():
    p = argparse.ArgumentParser()
    p.add_argument("optimizer", choices=("torch", "deepspeed"))
    p.add_argument("parameters", type=int)
    p.add_argument("--threads", type=int, required=True)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    torch.set_flush_denormal(True)
    params = torch.nn.Parameter(torch.full((o.parameters,), 0.01))
    params.grad = (torch.arange(o.parameters) % 1000).float() * 1e-5
    optimizer, versions = make_optimizer(o.optimizer, params)
    clock = time.thread_time if o.threads == 1 else time.perf_counter
    optimizer.step()            # allocates m and v
    answer(versions)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = clock()
            optimizer.step()
            seconds.append(clock() - start)
        answer({"seconds": seconds})


if __name__ == "__main__":
    try:
        import torch
    except ImportError:
        leave("torch")
    main()

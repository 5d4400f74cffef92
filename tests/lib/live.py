#!/usr/bin/env python3
"""Reads a run's weights (tests/examples/mtweights.py) beside its training, whose stages are killed at random.

    live.py RUN MODEL CHECKPOINTS DATA READS [OPTIONS] -- OPTIONS OF mt-step

    --update early      as mt-optim's
    --unchecked         reads do not look whether they were overtaken, and nobody is killed: then some must be torn
    --vllm              mtvllm.py reads, in a stub of vLLM
    --seed N            of when which stage is killed

RUN exists and has no stages. It is loaded from MODEL and trained on DATA, again and again, until READS reads were made;
a fresh process of each stage follows a killed one. CHECKPOINTS has step-XXXXXXXX of every step of the same training,
undisturbed, and of step 0. Every read must have the bytes of its step's checkpoint. Prints how late they were."""
import argparse
import glob
import hashlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "examples")]
from mtweights import Weights
from wrap import read


def digest(tensors):
    h = hashlib.blake2b()
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        h.update(repr((name, dtype, list(shape))).encode() + bytes(data))
    return h.digest()


class ByVllm:
    """Reads as vLLM would, and gives what its model got"""
    NAMES = {"torch.float32": "F32", "torch.bfloat16": "BF16"}

    def __init__(self, run):
        import vllm_stub
        self.worker = vllm_stub.Worker(run)

    def __getattr__(self, name):
        return getattr(self.worker.engine.weights, name)

    def read(self):
        import torch
        return {name: (self.NAMES[str(t.dtype)], list(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes())
                for name, t in self.worker.update().items()}


class Storm(threading.Thread):
    """Trains until `over` is set, and kills"""

    def __init__(self, a, options):
        super().__init__()
        self.a, self.options, self.over = a, options, threading.Event()
        self.chance, self.kills, self.rounds, self.error = random.Random(a.seed), 0, 0, None
        self.lock, self.committed = threading.Lock(), 0

    def start_stage(self, what):
        threads = ["--threads", "1"]
        command = {"stream": ["mt-stream", self.a.run, *threads], "step": ["mt-step", self.a.run, *self.options],
                   "optim": ["mt-optim", self.a.run, *threads, "--update", self.a.update]}[what]
        with open(self.a.data, "rb") as data:
            return subprocess.Popen(command, stdin=data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def train(self):
        subprocess.run(["mt-ckpt", "load", self.a.run, self.a.model], check=True, stderr=subprocess.DEVNULL)
        stages = {what: self.start_stage(what) for what in ("stream", "optim", "step")}
        try:
            while stages["step"].poll() is None and not self.over.is_set():
                time.sleep(self.chance.uniform(0.01, 0.2))
                what = self.chance.choice(list(stages))
                if self.a.unchecked or stages["step"].poll() is not None:
                    continue
                stages[what].kill()
                stages[what].wait()
                stages[what] = self.start_stage(what)
                self.kills += 1
            if not self.over.is_set() and stages["step"].returncode:
                raise AssertionError("mt-step ended with %d" % stages["step"].returncode)
        finally:
            for stage in stages.values():
                stage.kill()
                stage.wait()
        self.rounds += 1

    def run(self):
        try:
            while not self.over.is_set():
                self.train()
        except (AssertionError, subprocess.CalledProcessError) as e:
            self.error = e


def main():
    p = argparse.ArgumentParser()
    for name in "run", "model", "checkpoints", "data":
        p.add_argument(name)
    p.add_argument("reads", type=int)
    p.add_argument("--update", default="late")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    p.add_argument("--unchecked", action="store_true")
    p.add_argument("--vllm", action="store_true")
    at = sys.argv.index("--")
    a = p.parse_args(sys.argv[1:at])
    want = {int(d[-8:]): digest(read(d)) for d in glob.glob(a.checkpoints + "/step-*")}
    storm, lags, behind, seen, last = Storm(a, sys.argv[at + 1:]), [], [], set(), None
    storm.start()
    weights = ByVllm(a.run) if a.vllm else Weights(a.run)
    if a.unchecked:
        weights.check = lambda: None
    try:
        for i in range(a.reads):
            if i % 2 and weights.step is not None:      # half of them wait for a commit, half begin at any time
                since, fills = time.monotonic(), weights.fills
                while weights.filling() in (None, fills) and weights.committed() == weights.step:
                    if time.monotonic() > since + 60 or storm.error:
                        raise AssertionError("no commit: %s" % storm.error)
                    time.sleep(0.0002)
            since = time.monotonic()
            tensors = weights.read()
            lags.append(time.monotonic() - since)
            behind.append(weights.committed() - weights.step)
            assert digest(tensors) == want[weights.step], "torn: read %d, step %d, seed %d" % (i, weights.step, a.seed)
            seen.add(weights.step)
    finally:
        storm.over.set()
        storm.join()
    lags.sort()
    print("%d reads of %d steps, %d trainings, %d kills, seed %d: none torn; overtaken %d times; ms: median %.1f, "
          "99 %% %.1f, most %.1f; steps behind at its end: %d of them, at most %d" % (
              a.reads, len(seen), storm.rounds + 1, storm.kills, a.seed, weights.overtaken,
              1e3 * statistics.median(lags), 1e3 * lags[len(lags) * 99 // 100], 1e3 * lags[-1],
              sum(b != 0 for b in behind), max(behind)))
    if storm.error:
        raise storm.error


main()

#!/usr/bin/env python3
"""GRPO on one machine: rollouts by transformers, rewards by this program, updates by mt. One run lives through all
rounds, and no file of weights is written before the end: transformers' model takes them from the run's memory.

    grpo.py MODEL OUT ROUNDS [--prompts N] [--group N] [--tokens N] [--seq T] [mt-step's options]

MODEL is a Hugging Face directory, or has a config.json alone: then the weights are random. The task is in prompts() and
reward(): count up, digit after digit. OUT gets the model, and metrics.jsonl with the mean rewards, too:
mt-plot OUT/metrics.jsonl --key reward draws them. It needs torch, transformers and mt's programs in PATH."""
import argparse
import glob
import json
import os
import signal
import subprocess
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mtweights import Weights, tensor

DIGITS = 10


def prompts(n):
    """Token ids of each"""
    return [[i % DIGITS] for i in range(n)]


def reward(ids, start):
    """How many of the tokens from `start` on are the digit after the one before them, of all"""
    right = sum(b == (a + 1) % DIGITS and a < DIGITS for a, b in zip(ids[start - 1:], ids[start:]))
    return right / (len(ids) - start)


class Run:
    """A run with an mt-stream. mt-optim is there only while mt-step is: mt-score takes its place."""

    def __init__(self, model, name, log):
        self.name, self.log = name, log
        self.call("mt-store", "create", name, "--config", model)
        if glob.glob(os.path.join(model, "*.safetensors")):
            self.call("mt-ckpt", "load", name, model)
        else:
            self.call("mt-store", "init", name, "--seed", "1")
        self.stream = self.start("mt-stream")

    def start(self, program):
        return subprocess.Popen([program, self.name], stderr=self.log)

    def call(self, *command, **files):
        subprocess.run(command, check=True, stderr=self.log, **files)

    def train(self, records, metrics, options):
        optim = self.start("mt-optim")
        with open(records, "rb") as source, open(metrics, "a", encoding="utf-8") as sink:
            self.call("mt-step", self.name, "--loss", "pg", "--input", "new", *options, stdin=source, stdout=sink)
        self.stop(optim)

    def stop(self, stage):
        stage.send_signal(signal.SIGTERM)
        stage.wait()

    def close(self):
        self.stop(self.stream)
        self.call("mt-store", "rm", self.name, "--force")


def take_weights(weights, model):
    """Copy the newest step into transformers' model. Nobody overtakes: training waits for the rollouts."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, dtype, shape, data in weights.each():
            parameters.pop(name).copy_(tensor(dtype, shape, data))
    assert not parameters, list(parameters)


def rollouts(model, a):
    """Lines for mt-tokens, and the mean reward. The advantage of a sample is its reward beside those of its group."""
    lines, total = [], 0
    for prompt in prompts(a.prompts):
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                             do_sample=True, top_k=0, num_return_sequences=a.group, max_new_tokens=a.tokens,
                             pad_token_id=0).tolist()
        rewards = torch.tensor([reward(ids, len(prompt)) for ids in out])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        total += rewards.sum().item()
        for ids, advantage in zip(out, advantages.tolist()):
            trained = [0] * len(prompt) + [1] * (len(ids) - len(prompt))
            lines.append(json.dumps({"ids": ids, "trained": trained, "advantage": advantage}))
    return lines, total / len(lines)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("rounds", type=int)
    for name, default in ("prompts", 10), ("group", 16), ("tokens", 8), ("seq", 64):
        p.add_argument("--" + name, type=int, default=default)
    a, options = p.parse_known_args()
    os.makedirs(a.out)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(a.model)).eval()
    model.generation_config.eos_token_id = None     # all answers have the same length
    path = {name: os.path.join(a.out, name) for name in (
        "rollouts.jsonl", "rollouts.rec", "old.rec", "metrics.jsonl", "model")}
    torch.manual_seed(1)
    run = Run(a.model, "grpo-%d" % os.getpid(), open(os.path.join(a.out, "log"), "ab"))
    try:
        weights = Weights(run.name)
        for _ in range(a.rounds):
            take_weights(weights, model)
            lines, mean = rollouts(model, a)
            with open(path["metrics.jsonl"], "a", encoding="utf-8") as f:
                print(json.dumps({"step": weights.step, "reward": mean}), file=f)
            print("step %d: mean reward %.3f" % (weights.step, mean), file=sys.stderr)
            with open(path["rollouts.jsonl"], "w", encoding="utf-8") as f:
                f.write("\n".join(lines) + "\n")
            run.call("mt-tokens", "--bytes", path["rollouts.jsonl"], "-o", path["rollouts.rec"])
            with open(path["rollouts.rec"], "rb") as source, open(path["old.rec"], "wb") as sink:
                run.call("mt-score", run.name, "--seq", str(a.seq), "--join", "old", stdin=source, stdout=sink)
            run.train(path["old.rec"], path["metrics.jsonl"], ["--seq", str(a.seq), *options])
        run.call("mt-ckpt", "export", run.name, path["model"])
    finally:
        run.close()


main()

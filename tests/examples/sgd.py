#!/usr/bin/env python3
"""SGD in Python in place of mt-optim: w -= lr g, without libmt; mtshm.py beside it shows a run's memory to Python.

usage: sgd.py RUN

For fp32 runs with fp32 gradients, one mt-stream, untied embeddings and one micro-batch a step, without --ckpt-every.
It needs mt-store in PATH. Python adds floats one by one: take small models."""
import signal
import sys
import time

from mtshm import CONSTANTS, Run, part

STATE, PHASE, KIND, MESSAGE = (CONSTANTS[name] for name in ("states", "phases", "kinds", "messages"))
TXN = "mt_txn.word"


class Sgd:
    def __init__(self, name):
        self.run, self.begun = Run(name), 0
        control, fp32 = self.run.control, CONSTANTS["dtypes"]["fp32"]
        if control["dtype"] != fp32 or control["grad"] != fp32 or not self.filled():
            sys.exit("sgd: expected a filled fp32 run with fp32 gradients")
        self.run.claim(CONSTANTS["slots"]["mt-optim"])
        self.ring = self.run.ring(b"grad.0")
        self.trained = [unit for unit in self.run.units if unit["m"]]
        if any(part(txn.load("word"), TXN, "phase") in (PHASE["apply"], PHASE["skip"]) for txn in self.run.txns):
            self.run.header["state"] = STATE["dirty"]                   # another one died while it applied a step

    def filled(self):
        return self.run.header["state"] == STATE["filled"]

    def take(self, word, txn):
        """Take what has come of the attempt in word. True when the loss and every unit's gradient are there."""
        loss = txn.inner("losses")
        if word != self.begun:
            self.begun, loss["entered"] = word, 0
            trained = self.trained if txn["kind"] == KIND["train"] else []
            self.left = 1 + sum(unit["elems"] for unit in trained)
        for m, block in self.run.messages(self.ring, word):
            if m["kind"] == MESSAGE["loss"]:
                for field in "sum", "targets", "nonfinite":
                    loss[field] = m["loss." + field]
                loss["entered"] = 1
                self.left -= 1
            elif m["kind"] == MESSAGE["grad"]:  # figures of objectives are dropped
                n, g = m["grad.n"], self.run.units[m["grad.unit"]]["g"]
                self.run.floats(g + 4 * m["grad.off"], n)[:] = block[:4 * n].cast("f")
                self.left -= n
        return not self.left

    def commit(self, word, txn, before):
        """The outcome first, then the word. `before`: the record of the transaction before, which has Adam's t."""
        train, loss = txn["kind"] == KIND["train"], txn.inner("losses")
        skip = train and (loss["nonfinite"] or not txn["targets"])
        txn["t"], txn["skipped"] = before["t"] + (train and not skip), bool(skip)
        txn["norm"], txn["clip_factor"] = float("nan"), 1
        phase = PHASE["done" if not train else "skip" if skip else "apply"]
        committed = word - PHASE["accumulate"] + phase
        if not self.run.publish(txn, "word", word, committed) or not train:
            return
        for unit in self.run.units:
            if not skip and unit in self.trained:
                self.descend(unit, txn["lr"])
            self.run.publish(unit, "version", txn["step"] - 1, txn["step"])
        self.run.publish(txn, "word", committed, word - PHASE["accumulate"] + PHASE["done"])

    def descend(self, unit, lr):
        w, g = self.run.floats(unit["w"], unit["elems"]), self.run.floats(unit["g"], unit["elems"])
        for i in range(len(w)):
            w[i] -= lr * g[i]

    def serve(self):
        while self.filled():
            for txn, before in zip(self.run.txns, reversed(self.run.txns)):
                word = txn.load("word")
                if part(word, TXN, "phase") == PHASE["accumulate"] and self.take(word, txn):
                    self.commit(word, txn, before)
            time.sleep(0.002)                                           # it polls; mt.h's mt_wait would sleep


if len(sys.argv) != 2:
    sys.exit(__doc__)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Sgd(sys.argv[1]).serve()

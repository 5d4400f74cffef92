"""The weights of a run, also while it trains: all tensors of one committed step by Hugging Face's names and shapes.

    weights = Weights("RUN")
    weights.wait(after=41)                      # until step 42, or a later one, is committed
    tensors = weights.read()                    # a copy of all: name -> (dtype, shape, bytes)
    weights.step, weights.overtaken             # the step that they are of; how often reading began again
    for name, dtype, shape, data in weights.each():
        use(tensor(dtype, shape, data))         # torch's view of the run's own memory: nothing is copied

As mt-sample, a reader takes no slot, and no stage waits for it. mt-optim commits step s, then writes unit after unit
and raises each one's version to s. It writes none of them again before it has committed s + 1. So what was read of a
unit is of step s if its version was s before, and s is still the newest committed step afterwards. Else each() raises
Overtaken, and read() begins again, with the newer step, right behind mt-optim.

It needs mt-store and mt-ckpt in PATH; `mt-ckpt map` says where the tensors are. Those that are carried untrained are
not among them: they stay as they are in the model's directory."""
import array
import json
import subprocess
import time
import warnings

from mtshm import ACQUIRE, ATOMIC, CONSTANTS, Run, part

TXN, PHASE, STATE = "mt_txn.word", CONSTANTS["phases"], CONSTANTS["states"]
POLL_S = 0.0005


class Overtaken(Exception):
    """A newer step was committed, or the run was filled again, while a step was read."""


class Gone(Exception):
    """The run was removed, or holds half a step which nothing can complete."""


def joined(w, lo):
    """fp32 of the two halves of exact master weights (routers with corrections)"""
    return array.array("I", ((a << 16) + b & 0xffffffff for a, b in zip(w.cast("H"), lo.cast("h")))).tobytes()


def transposed(data, rows, cols, code):
    source, out = array.array(code, bytes(data)), array.array(code, bytes(len(data)))
    for i in range(cols):
        out[i::cols] = source[i * rows:(i + 1) * rows]
    return out.tobytes()


def tensor(dtype, shape, data):
    import torch
    with warnings.catch_warnings():             # of memory that cannot be written
        warnings.simplefilter("ignore")
        return torch.frombuffer(data, dtype={"F32": torch.float32, "BF16": torch.bfloat16}[dtype]).view(shape)


class Weights:
    def __init__(self, name):
        self.name, self.run = name, Run(name, write=False)
        self.store = memoryview(self.run.store)
        self.step = self.fills = self.table = None
        self.overtaken = 0

    def committed(self):
        """The newest committed step"""
        while True:
            words = [txn.load("word") for txn in self.run.txns]
            phases = [part(word, TXN, "phase") for word in words]
            k = max(part(word, TXN, "k") if phase != PHASE["closed"] else 0 for word, phase in zip(words, phases))
            if phases[k & 1] == PHASE["accumulate"] and k:
                k -= 1                          # the newest is open
            step = self.run.txns[k & 1]["step"]
            ATOMIC.atomic_thread_fence(ACQUIRE)
            if words == [txn.load("word") for txn in self.run.txns]:
                return step

    def filling(self):
        """The number of fillings; None: one is under way, or there was none"""
        fills, state = self.run.control.load("fills"), self.run.header["state"]
        if state in (STATE["gone"], STATE["dirty"]):
            raise Gone(self.name)
        return fills if state == STATE["filled"] and not fills % 2 else None

    def wait(self, after):
        """Wait until a step behind `after` is committed, and return it."""
        while self.filling() is None or self.committed() <= after:
            time.sleep(POLL_S)
        return self.committed()

    def check(self):
        """Raise Overtaken, unless all that was read since begin() is of self.step."""
        ATOMIC.atomic_thread_fence(ACQUIRE)     # it was read before the words that tell whether it has changed
        if self.filling() != self.fills or self.committed() != self.step:
            raise Overtaken(self.step)

    def begin(self):
        while (fills := self.filling()) is None:
            time.sleep(POLL_S)
        if fills != self.fills:                 # tensors may have other names now
            self.table = json.loads(subprocess.run(["mt-ckpt", "map", self.name], check=True,
                                                   stdout=subprocess.PIPE).stdout)
        self.fills, self.step = fills, self.committed()

    def data(self, t):
        """The tensor's bytes, in the run's memory if they are there as they are in files"""
        parts = [self.store[at:at + n] for at, n in t["pieces"]]
        if t["lo"] is not None:
            parts = [joined(w, self.store[at + t["lo"]:][:n]) for w, (at, n) in zip(parts, t["pieces"])]
        if t["transposed"]:
            parts = [transposed(p, *t["shape"][-2:], "I" if t["dtype"] == "F32" else "H") for p in parts]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def each(self):
        """Tensors of the newest committed step, each as soon as it is published. Those that were yielded before the
        end, or before check(), are of self.step; Overtaken says that they may not be."""
        self.begin()
        for t in self.table:
            while self.run.units[t["unit"]].load("version") != self.step:
                self.check()
                time.sleep(POLL_S)
            yield t["name"], t["dtype"], t["shape"], self.data(t)
            self.check()

    def read(self):
        while True:
            try:
                return {name: (dtype, shape, bytes(data)) for name, dtype, shape, data in self.each()}
            except Overtaken:
                self.overtaken += 1

#!/usr/bin/env python3
"""Make each allocation and system call of a stage's start and first step fail in turn, once or from then on.

    stages.py [STAGE...] [--seconds N] [--seed N]

STAGE: feed, step, optim, stream (default: all). tests/fault/preload.c makes the calls fail; the other stages run
without faults. First every open, mmap and thread fails once, then the other calls, and all of them for good, in random
order, until N seconds for each stage are over (default: until all are done, which takes hours for mt-stream's
allocations).

After each failure one of these must hold; anything else is reported, and the exit code is 1:
    the stage ends with 64..78, but not 70, and one line on stderr; the same stage started again finishes the step
    the stage finishes the step, and ends with 0 (mt-optim and mt-stream: soon after SIGTERM)
At the end the weights are those that as many steps without a failure give.
"""
import argparse
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
PRELOAD = os.path.join(BUILD, "fault", "preload.so")
DUMP = os.path.join(BUILD, "probes", "ckpt-dump")
FEW, ALL = ("mmap", "thread", "open"), ("mmap", "thread", "open", "alloc", "read", "write", "stat", "truncate")
SLOW_S = 20         # a stage that continues takes less
SEQ = 16


def command(program, *argv):
    return [os.path.join(BIN, program), *map(str, argv)]


def start(argv, fault=None, count=None, out=subprocess.DEVNULL):
    env = {**os.environ}
    if fault or count:
        env["LD_PRELOAD"] = PRELOAD
    if fault:
        env["MT_FAULT"] = fault
    if count:
        env["MT_FAULT_COUNT"] = count
    with open(os.path.join(tmp, "records"), "rb") as records:
        p = subprocess.Popen(argv, stdin=records, stdout=out, stderr=subprocess.PIPE, env=env)
    alive.append(p)
    return p


def ended(p, seconds=SLOW_S):
    """(exit code, stderr); None: it does not end"""
    try:
        err = p.communicate(timeout=seconds)[1].decode(errors="replace")
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        return None, ""
    finally:
        alive.remove(p)
    return p.returncode, err


def stop(p):
    p.send_signal(signal.SIGTERM)
    return ended(p)


class Run:
    """A run and its stages by name; it trains one step at a time"""

    def __init__(self, name):
        self.name, self.steps, self.stages = name, 0, {}
        model = os.path.join(tmp, "model")
        for argv in (("create", name, "--config", model, "--step-tokens", "64"), ("init", name, "--seed", 1)):
            subprocess.run(command("mt-store", *argv), stderr=subprocess.DEVNULL, check=True)

    def argv(self, stage):
        return command(*{
            "optim": ("mt-optim", self.name, "--threads", 2),
            "stream": ("mt-stream", self.name, "--threads", 4),
            "step": ("mt-step", self.name, "--steps", 10 ** 6, "--until", self.steps + 1, "--input", "new",
                     "--wait", SLOW_S, "--batch", 1, "--seq", SEQ, "--lr", 1e-3, "--schedule", "constant"),
        }[stage])

    def have(self, *stages):
        for s in stages:
            if s not in self.stages:
                self.stages[s] = start(self.argv(s))

    def lose(self, stage):
        if stage in self.stages:
            p = self.stages.pop(stage)
            p.kill()
            ended(p)

    def step_of(self):
        out = subprocess.run([DUMP, self.name], stdout=subprocess.PIPE).stdout.decode()
        return int(out.split("step ", 1)[1].split()[0])

    def weights(self):
        out = subprocess.run([DUMP, self.name], stdout=subprocess.PIPE, check=True).stdout.decode()
        return [line for line in out.split("\n") if line.startswith("unit")]

    def end(self):
        for s in list(self.stages):
            self.lose(s)
        subprocess.run(command("mt-store", "rm", self.name, "--force"), stderr=subprocess.DEVNULL)


# ---- one start with a fault: (exit code, stderr, complaint)

def feed(run, fault, count=None):
    p = start(command("mt-feed", os.path.join(tmp, "records")), fault, count, open(os.path.join(tmp, "fed"), "wb"))
    code, err = ended(p)
    with open(os.path.join(tmp, "fed"), "rb") as f, open(os.path.join(tmp, "records"), "rb") as g:
        fed, want = f.read(), g.read()
    if code == 0 and fed != want:
        return code, err, "exit 0, and not all records"
    return code, err, None if want.startswith(fed) else "wrong records"


def step(run, fault, count=None):
    run.have("optim", "stream")
    code, err = ended(start(run.argv("step"), fault, count))
    now = run.step_of()
    wrong = None
    if now not in (run.steps, run.steps + 1) or (code == 0 and now == run.steps):
        wrong = f"exit {code} at step {now} after step {run.steps}"
    run.steps = now
    return code, err, wrong


def served(run, stage, fault, count=None):
    """mt-optim or mt-stream"""
    other = "stream" if stage == "optim" else "optim"
    run.have(other)
    run.lose(stage)
    p, driver = start(run.argv(stage), fault, count), start(run.argv("step"))
    until = time.monotonic() + SLOW_S
    while p.poll() is None and driver.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    failed = p.poll() is not None
    code, err = ended(p) if failed else stop(p)
    if failed or code:
        run.have(stage)
    wrong = None
    if failed and code == 0:
        wrong = "it ended before the step did"
    driven = ended(driver)
    if driven[0] != 0:
        wrong = f"the step was not finished: mt-step {driven}"
    run.steps += 1
    return code, err, wrong


def run_once(run, stage, fault, count=None):
    return {"feed": feed, "step": step}.get(stage, lambda *a: served(a[0], stage, *a[1:]))(run, fault, count)


def judge(stage, fault, code, err, wrong):
    if code is None:
        wrong = f"it does not end within {SLOW_S} s" + (f"; {wrong}" if wrong else "")
    elif code < 0:
        wrong = f"died of {signal.Signals(-code).name}"
    elif code and not (64 <= code <= 78 and code != 70):
        wrong = "no exit code for a failure"
    elif code and err.count("\n") != 1:
        wrong = f"{err.count(chr(10))} lines on stderr, not one"
    if wrong:
        complaints.append(wrong)
        print(f"stages.py: {stage}, {fault}: exit {code}: {wrong}; stderr: {err.strip()!r}", flush=True)


def inject(stage):
    until = time.monotonic() + args.seconds if args.seconds else None
    run = Run(f"faults-{os.getpid()}-{stage}")
    runs.append(run)
    path = os.path.join(tmp, "count")
    code, err, wrong = run_once(run, stage, None, path)
    if code or wrong:
        raise SystemExit(f"stages.py: {stage} without a failure: {code}: {wrong}: {err}")
    with open(path) as f:
        n = {k: int(calls) for k, calls in (line.split() for line in f)}
    first = [f"{k}:{i}" for k in FEW for i in range(1, n[k] + 1)]
    others = [f"{k}:{i}" for k in ALL if k not in FEW for i in range(1, n[k] + 1)]
    others += [f + "+" for f in first + others]
    random.shuffle(others)
    tried = failed = 0
    for fault in first + others:
        if tried >= len(first) and until and time.monotonic() > until:
            break
        code, err, wrong = run_once(run, stage, fault)
        judge(stage, fault, code, err, wrong)
        tried += 1
        failed += code != 0
    print(f"stages.py: {stage}: {tried} failures injected, {failed} of them ended it; calls: "
          + ", ".join(f"{n[k]} {k}" for k in ALL if n[k]), flush=True)
    return run


def undisturbed(steps):
    """The weights after a number of steps"""
    run = Run(f"faults-{os.getpid()}-twin")
    runs.append(run)
    run.have("optim", "stream")
    run.steps = steps - 1
    code, err = ended(start(run.argv("step")), 300)
    if code:
        raise SystemExit(f"stages.py: {steps} steps without a failure: {code}: {err}")
    found = run.weights()
    run.end()
    return found


p = argparse.ArgumentParser()
p.add_argument("stages", nargs="*")
p.add_argument("--seconds", type=float)
p.add_argument("--seed", type=int, default=random.randrange(10 ** 6))
args = p.parse_args()
random.seed(args.seed)
print(f"stages.py: seed {args.seed}")
complaints, alive, runs = [], [], []
tmp = tempfile.mkdtemp(prefix="mt-stages.")
try:
    make_model = os.path.join(TOP, "tests", "lib", "mksafetensors.py")
    subprocess.run([sys.executable, make_model, "make", os.path.join(tmp, "model"), "--set", "num_hidden_layers=1"],
                   check=True)
    with open(os.path.join(tmp, "records"), "wb") as f:         # all equal, so that each step has the same input
        f.write(struct.pack(f"<{SEQ + 1}I", SEQ, *range(1, SEQ + 1)) * 20000)
    for name in args.stages or ["feed", "step", "optim", "stream"]:
        run = inject(name)
        if run.steps and run.weights() != undisturbed(run.steps):
            complaints.append("weights")
            print(f"stages.py: {name}: {run.steps} steps gave other weights than in an undisturbed run", flush=True)
        run.end()
finally:
    for p in list(alive):
        p.kill()
        p.wait()
    for run in runs:
        run.stages.clear()
        run.end()
    shutil.rmtree(tmp)
print(f"stages.py: {len(complaints)} complaints")
sys.exit(bool(complaints))

#!/usr/bin/env python3
"""Make each allocation and system call of mt-tier fail in turn, once or from then on; kill it before each.

    tier.py DIR [--seconds N] [--seed N]

DIR: an empty directory for the files of tiles. tests/fault/preload.c makes the calls fail, in random order, until N
seconds are over (default: until all are done). Beside mt-tier runs the optimizer of tests/lib/tier.py; some files have
a second link, so new ones are made. After each failure one of these must hold; anything else is reported, and the exit
code is 1:

    mt-tier goes on: the tiles are updated, and SIGTERM ends it with 0
    it waits for room, says so, and SIGTERM ends it with 74
    it ends with 64..78, but not 70, and one line; without a fault, its successor goes on
    the same, and the run is dirty: only if reads failed for good, or opening did

Then all files have what was updated last, and their seals; files with a second link are as they were."""
import argparse
import hashlib
import os
import random
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "lib"))
import tier  # noqa: E402

BIN = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
PRELOAD = os.path.join(BUILD, "fault", "preload.so")
KINDS = ("alloc", "open", "read", "write", "mmap", "truncate", "stat", "thread", "rename", "pread", "pwrite", "short")
NAME, TILES, DIRTY, ENOSPC = f"tierfault-{os.getpid()}", 12, 3, 28
os.environ["PATH"] = BIN + ":" + os.environ["PATH"]


def quiet(*argv):
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


class Case:
    def __init__(self, directory):
        self.dir = directory
        self.links = os.path.join(directory, "links")
        os.mkdir(self.links)
        quiet("mt-store", "create", NAME, "--config", os.path.join(TOP, "tests", "configs", "demo.json"),
              "--step-tokens", "1K", "--tier", directory, "--tier-memory", "0", "--tier-tile", "128K")
        self.fill()

    def fill(self):
        quiet("mt-store", "init", NAME, "--seed", "1")
        self.run = tier.Run(NAME)

    def link(self):
        """Some of the tiles that are written next"""
        for f in os.listdir(self.links):
            os.unlink(os.path.join(self.links, f))
        q = self.run.word("updated")
        for i in range(q + 2, q + TILES, 5):
            os.link(self.run.shapes[i % self.run.tiles]["path"], os.path.join(self.links, str(i)))
        self.sums = self.sum()

    def sum(self):
        found = {}
        for f in os.listdir(self.links):
            with open(os.path.join(self.links, f), "rb") as file:
                found[f] = hashlib.sha256(file.read()).digest()
        return found

    def serve(self, fault, count=None, seconds=3.0):
        """(exit code, stderr, finished) of mt-tier while TILES tiles are updated; a code of None: it had to be stopped
        and did not end"""
        env = {**os.environ}
        if fault or count:
            env["LD_PRELOAD"] = PRELOAD
        if fault:
            env["MT_FAULT"], _, env["MT_FAULT_ERRNO"] = fault.partition(" ")
        if count:
            env["MT_FAULT_COUNT"] = count
        p = subprocess.Popen(["mt-tier", NAME, "--threads", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             env=env)
        goal, until = self.run.word("updated") + TILES, time.time() + seconds
        while self.run.word("written") < goal and p.poll() is None and time.time() < until:
            if self.run.word("updated") < min(goal, self.run.word("loaded")):
                tier.update(self.run, 1)
            else:
                time.sleep(0.001)
        finished = self.run.word("written") == goal
        p.terminate()
        try:
            err = p.communicate(timeout=20)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            p.kill()
            return None, p.communicate()[1].decode(errors="replace"), finished
        return p.returncode, err, finished

    def turn(self, fault):
        """None, or what is wrong"""
        self.link()
        code, err, finished = self.serve(fault)
        dirty = self.run.get("mt_header", "state") == DIRTY
        lines = err.count("\n")
        if code is None:
            return f"it does not end: {err}"
        if code in (-9, 137):
            if "!" not in fault:
                return "killed"
        elif code == -15 and not err:       # SIGTERM came before it could wait for it
            pass
        elif code == 0:
            if not finished or err and "no room" not in err:
                return f"ended with 0, tiles updated: {finished}: {err}"
        elif not 64 <= code <= 78 or code == 70 or lines != 1 and "no room" not in err:
            return f"exit code {code}: {err}"
        if dirty:
            may_be = "+" in fault and fault.split(":")[0] in ("read", "pread", "open", "short")
            if code not in (74, 65) or not may_be:
                return f"dirty: {code}: {err}"
            self.fill()
            return None
        code, err, finished = self.serve(None, seconds=20)
        if code or err or not finished:
            return f"its successor: {code}: {err}"
        tier.check(self.run)
        if self.sum() != self.sums:
            return "a file with a second link was written"
        left = [f for _, _, files in os.walk(self.dir) for f in files if f.endswith(".new")]
        return f"left {left}" if left else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10 ** 6))
    args = parser.parse_args()
    random.seed(args.seed)
    bad = done = 0
    try:
        case = Case(args.dir)
        count = os.path.join(args.dir, "count")
        case.link()
        code, err, _ = case.serve(None, count)
        if code or err:
            sys.exit(f"tier.py: without a fault: {code}: {err}")
        with open(count) as f:
            calls = {k: int(n) for k, n in (line.split() for line in f)}
        calls["pread"], calls["pwrite"], calls["short"] = calls["read"], calls["write"], calls["read"]
        faults = [f"{k}:{n}{how}" for k in KINDS for n in range(1, calls[k] + 1) for how in ("", "+")]
        faults += [f"{k}:{n} {ENOSPC}" for k in ("pwrite",) for n in range(1, calls[k] + 1)]
        faults += [f"any:{n}!" for n in range(1, sum(calls[k] for k in KINDS[:9]) + 1)]
        random.shuffle(faults)
        faults.sort(key=lambda f: f not in ("pread:9+", "pwrite:9+", "truncate:2+", "rename:1", "short:1+"))
        began = time.time()
        for fault in faults:
            if args.seconds and time.time() > began + args.seconds:
                break
            try:
                wrong = case.turn(fault)
            except AssertionError as e:
                wrong = str(e)
            done += 1
            if wrong:
                bad += 1
                print(f"{fault}: {wrong}", flush=True)
                case.fill()
    finally:
        subprocess.run(["mt-store", "rm", NAME, "--force"], stderr=subprocess.DEVNULL)
    print(f"{done} of {len(faults)} faults, {bad} bad, seed {args.seed}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

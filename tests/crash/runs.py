#!/usr/bin/env python3
"""Kill mt-run's own processes, or end it by signals, at random and aimed moments; start it again with --resume until
the training is complete, and compare the result bit for bit with that of an undisturbed one.

    runs.py [--faults N] [--how HOW,...] [--seed N]

HOW is any of
    order  SIGKILL some of mt-run's program, its script, its keeper and mt-store (create or serve), in a random order
           with random pauses
    term   TERM, INT or HUP to mt-run
    hang   SIGSTOP a stage, mt-ckpt in half of the cases, and then TERM again and again, until mt-run ends
Half of the starts are by a caller that ignores USR1, ALRM and CHLD. A fault comes at a random moment, while the run is
made, when it is first served, at a random step, while a checkpoint is written, or at the export.

mt-run must end in LIMIT seconds. If its program and script, the keeper or a serving mt-store is alive then, nothing of
the run may be left, unless a line says that it stays; else what is left must be ended by the next start. A training
that makes no checkpoint between FAULTS faults is left alone for one start. Afterwards the metrics but for times, and
the weights, are those of the undisturbed training, and no process, memory or directory is left. Anything else: exit 1,
and the seed is printed.
"""

import argparse
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from nodes import BIN, CASE, SHM, Wrong, metrics, processes

HOWS = ("order", "term", "hang")
AIMS = ("time", "make", "serve", "step", "step", "save", "export")
STEPS, LIMIT, FAULTS = 60, 90, 6
IGNORED = (signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD)
STAGES = ("mt-ckpt", "mt-ckpt", "mt-stream", "mt-optim", "mt-step")


def deaf():
    for sig in IGNORED:
        signal.signal(sig, signal.SIG_IGN)


def children(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def program_of(pid):
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
    except OSError:
        pass


def until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


class Training:
    def __init__(self, where, name):
        self.where, self.name, self.p = where, name, None
        self.out, self.tmp = os.path.join(where, "out"), os.path.join(where, "tmp")
        for path in (self.out, self.tmp):
            shutil.rmtree(path, ignore_errors=True)
        os.mkdir(self.tmp)
        self.err = open(os.path.join(where, "err"), "w+b")

    def start(self, ignoring=False):
        self.err.seek(0)
        self.err.truncate()
        self.p = subprocess.Popen(
            [os.path.join(BIN, "mt-run"), "--run", self.name, "--out", self.out,
             "--model", os.path.join(CASE, "model"), "--data", os.path.join(CASE, "data.bin"), "--epochs", "9",
             "--steps", str(STEPS), "--batch", "4", "--micro", "2", "--seq", "32",
             "--lr", "1e-3", "--threads", "1", "--ckpt-every", "5", "--resume"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.err,
            env=dict(os.environ, TMPDIR=self.tmp), preexec_fn=deaf if ignoring else None)

    def lines(self):
        self.err.seek(0)
        return self.err.read().decode(errors="replace")

    def processes(self):
        return processes([self.name.encode()])

    def regions(self):
        return glob.glob(os.path.join(SHM, "mt.%d.%s.*" % (os.geteuid(), self.name)))

    def roles(self):
        """PIDs of mt-run's processes that are there: program, script, keeper, store"""
        found = {"program": self.p.pid}
        for child in children(self.p.pid):
            found.setdefault("keeper" if program_of(child) == "mt-run" else "script", child)
        for child in children(found.get("keeper", 0)):
            found["store"] = child
        if program_of(self.p.pid) != "mt-run":          # it checks its options: its children are not the script
            found.pop("script", None)
        return found

    def step(self):
        try:
            with open(os.path.join(self.out, "metrics.jsonl")) as f:
                return json.loads(f.readlines()[-1])["step"]
        except (OSError, IndexError, ValueError):
            return 0

    def checkpoints(self):
        return sorted(glob.glob(os.path.join(self.out, "step-*")))

    def reached(self, aim, rng):
        """Wait for an instant, or mt-run's end"""
        began, saved = self.step(), set(os.listdir(self.out)) if os.path.isdir(self.out) else set()
        to = rng.randrange(began + 1, STEPS + 1) if began < STEPS else STEPS
        hit = {
            "make": self.regions,
            "serve": lambda: any("mt-store serve" in line for _, line in self.processes()),
            "step": lambda: self.step() >= to,
            "save": lambda: os.path.isdir(self.out) and any("step-" in n for n in set(os.listdir(self.out)) - saved),
            "export": lambda: glob.glob(os.path.join(self.out, "*model*")),
        }
        if aim == "time":
            time.sleep(rng.expovariate(1))
        else:
            until(lambda: hit[aim]() or self.p.poll() is not None, LIMIT)
            time.sleep(rng.choice((0, 0, 1e-3, 1e-2, 0.1)))
        return self.p.poll() is None

    def end(self, code_ok):
        """mt-run has ended, with this code"""
        try:
            code = self.p.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Wrong("mt-run does not end:\n%s" % "\n".join(line for _, line in self.processes()))
        if code not in code_ok:
            here = "\n".join("%d %s" % p for p in self.processes())
            stat = subprocess.run([os.path.join(BIN, "mt-store"), "stat", self.name], capture_output=True, text=True)
            raise Wrong("mt-run -> %d; there are:\n%s\n%s%s" % (code, here, stat.stdout, stat.stderr))
        if code > 0 and not self.lines():
            raise Wrong("mt-run -> %d, without a line" % code)
        return code

    def gone(self):
        if not until(lambda: not self.processes() and not self.regions(), LIMIT):
            raise Wrong("left: %s" % ([line for _, line in self.processes()] + self.regions()))

    def result(self):
        lines = metrics(os.path.join(self.out, "metrics.jsonl"))
        steps = dict(lines)
        if len(steps) != len(lines):
            raise Wrong("a step is twice in the metrics")
        with open(os.path.join(self.out, "model", "model.safetensors"), "rb") as f:
            return steps, f.read()

    def abandon(self):
        for pid, _ in self.processes():
            kill(pid)
        subprocess.run([os.path.join(BIN, "mt-store"), "rm", self.name, "--force"], stderr=subprocess.DEVNULL)


def order(training, rng, count):
    """Returns whether somebody lives who ends the run"""
    roles = training.roles()
    serves = any("mt-store serve" in line for pid, line in training.processes() if pid == roles.get("store"))
    victims = rng.sample(sorted(roles), rng.randint(1, len(roles)))
    for who in victims:
        kill(roles[who])
        count[who] = count.get(who, 0) + 1
        time.sleep(rng.choice((0, 0, 0, 1e-4, 1e-3, 1e-2, 0.1)))
    lives = set(roles) - set(victims)
    if "store" in lives and not serves:
        lives.remove("store")
    if "script" in victims:
        lives.discard("program")            # it leaves the run to the keeper and mt-store
    script = roles.get("script")
    if not until(lambda: not script or program_of(script) == "", LIMIT):
        if "program" in victims:
            raise Wrong("the script does not end")
    return bool(lives - {"script"})


def hang(training, rng, count):
    stage = rng.choice(STAGES)
    for pid, line in training.processes():
        if line.split()[0].endswith(stage):
            kill(pid, signal.SIGSTOP)
            count[stage] = count.get(stage, 0) + 1
    end = time.monotonic() + LIMIT
    while training.p.poll() is None and time.monotonic() < end:
        kill(training.p.pid, signal.SIGTERM)
        until(lambda: training.p.poll() is not None, 1.2)   # a signal that comes sooner is the same request
    for pid, line in training.processes():
        if line.split()[0].endswith(stage):
            kill(pid, signal.SIGCONT)   # of the script's checks, or what ended an earlier run


def one_training(where, name, want, rng, hows, count):
    training = Training(where, name)
    saved, faults, owed = [], 0, False
    try:
        while True:
            disturbed = faults < FAULTS
            training.start(ignoring=rng.random() < 0.5)
            if not disturbed:
                faults = 0
            elif training.reached(rng.choice(AIMS), rng):
                how = rng.choice(hows)
                faults += 1
                count["faults"] += 1
                count[how] = count.get(how, 0) + 1
                ends = True
                if how == "order":
                    ends = order(training, rng, count)
                elif how == "hang":
                    hang(training, rng, count)
                    ends = " stays; save and remove it: " not in training.lines()   # its update was given up
                else:
                    kill(training.p.pid, rng.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
                code = training.end((0, 69, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, 137, 143))
                if ends and not owed:
                    training.gone()
                owed = bool(training.regions())     # which the next start that gets so far ends
                if training.checkpoints() != saved:
                    saved, faults = training.checkpoints(), 0
                if code == 0 and os.path.exists(os.path.join(training.out, "model", "model.safetensors")):
                    break
                continue
            training.end((0,))
            break
        training.gone()
        if training.result() != want:
            raise Wrong("the metrics or weights differ from the undisturbed ones")
        if os.listdir(training.tmp):    # of a killed mt-run, whose stages were alive at the last start: the next one's
            training.start()
            training.end((0,))
            training.gone()
        # mt-run killed before it holds a lock on its directory leaves that empty; a start that is later removes it
        left = [path for path in glob.glob(os.path.join(training.tmp, "*"))
                if (os.listdir(path) if os.path.isdir(path) else os.path.getsize(path))]
        if left:
            raise Wrong("left: %s" % left)
        count["trainings"] += 1
    except Wrong as e:
        raise Wrong("%s; stderr:\n%s" % (e, training.lines()))
    finally:
        training.abandon()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--how", default=",".join(HOWS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    hows = args.how.split(",")
    if set(hows) - set(HOWS):
        parser.error("--how: some of %s" % ", ".join(HOWS))
    where, rng, count = tempfile.mkdtemp(prefix="mt-runs-"), random.Random(args.seed), {"faults": 0, "trainings": 0}
    name = "crash%d-run" % os.getpid()
    try:
        whole = Training(where, name)
        whole.start()
        whole.end((0,))
        want = whole.result()
        while count["faults"] < args.faults:
            one_training(where, name, want, rng, hows, count)
    except Wrong as e:
        print("runs: seed %d, after %s: %s" % (args.seed, count, e), file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(where, ignore_errors=True)
    print("runs: " + ", ".join("%s %d" % item for item in sorted(count.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

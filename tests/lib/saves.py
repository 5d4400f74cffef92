#!/usr/bin/env python3
"""Run save and export in a loop beside a training with steps of about a millisecond. Compare each result bit for bit
with the state of its step: the checkpoint of that step from an undisturbed run with the same seeds and input.

    saves.py RUN DIR CONFIG [--saves N] [--seed N]

RUN and RUN-twin are made and removed; DIR is empty. This script feeds the input, so steps happen at random moments of
the saves. A save may exit 75, which is counted; any other failure, a mixture or a leftover file: exit 1.
"""
import argparse, hashlib, json, os, random, shutil, struct, subprocess, sys, threading, time

SEQ = 16


def fail(words):
    print("saves.py: " + words, file=sys.stderr)
    sys.exit(1)


def record(n):
    rng = random.Random(n)
    return struct.pack("<I", SEQ) + struct.pack("<%dI" % SEQ, *(rng.randrange(64) for _ in range(SEQ)))


class Training:
    """A run and its stages; it trains one step for each record that it gets."""

    def __init__(self, run, dir, config, saver, steps):
        self.run, self.dir, self.given, self.proc = run, dir, 0, []
        quiet = {"stderr": subprocess.DEVNULL}
        subprocess.run(["mt-store", "create", run, "--config", config, "--step-tokens", "1K"], check=True, **quiet)
        subprocess.run(["mt-store", "init", run, "--seed", "3"], check=True, **quiet)
        log = open(dir + ".err", "w")
        self.start(["mt-stream", run, "--device", "cpu", "--threads", "1"], stderr=log)
        self.start(["mt-optim", run, "--threads", "1"], stderr=log)
        more = []
        if saver:
            self.start(["mt-ckpt", "serve", run, "--dir", dir, "--keep", "1"], stderr=log)
            more = ["--ckpt-every", "1"]
        self.step = self.start(
            ["mt-step", run, "--steps", str(steps), "--batch", "1", "--seq", str(SEQ), "--pack", "none", "--lr", "1e-2",
             *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def start(self, argv, **kw):
        self.proc.append(subprocess.Popen(argv, **kw))
        return self.proc[-1]

    def give(self, n):
        for _ in range(n):
            self.given += 1
            self.step.stdin.write(record(self.given))
        self.step.stdin.flush()

    def line(self):
        line = self.step.stdout.readline()
        if not line:
            fail("mt-step has ended: see " + self.dir + ".err")
        return json.loads(line)["step"]

    def end(self):
        for p in self.proc:
            p.kill()
            p.wait()
        subprocess.run(["mt-store", "rm", self.run, "--force"], check=True)


def content(dir):
    """The content of a checkpoint, and its weights alone as a file."""
    with open(os.path.join(dir, "run.json")) as f:
        j = json.load(f)
    sums = {name: j["files"][name] for name in j["files"] if name.endswith(".safetensors")}
    return (j["t"], json.dumps(j["position"], sort_keys=True), json.dumps(sums, sort_keys=True)), weights(dir)


def weights(dir):
    with open(os.path.join(dir, "model.safetensors"), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def states(run, dir, config, steps):
    """From an undisturbed run: step -> content, weights -> step"""
    os.makedirs(dir)
    twin = Training(run, dir, config, True, steps + 1)
    path = os.path.join(dir, "start")
    subprocess.run(["mt-ckpt", "export", run, path], check=True)
    whole, by_weights = {}, {weights(path): 0}
    twin.give(1)                            # with --ckpt-every mt-step looks one record ahead
    for n in range(1, steps + 1):
        twin.give(1)
        if twin.line() != n:
            fail("a line is missing")
        path = os.path.join(dir, "step-%08d" % n)
        while not os.path.exists(path):
            time.sleep(0.0005)
        whole[n], w = content(path)
        by_weights[w] = n
    twin.end()
    shutil.rmtree(dir)
    return whole, by_weights


def main():
    p = argparse.ArgumentParser()
    p.add_argument("run")
    p.add_argument("dir")
    p.add_argument("config")
    p.add_argument("--saves", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    plan = [rng.choice((0, 0, 1, 1, 2, 5)) for _ in range(a.saves)]
    steps = sum(plan)
    whole, by_weights = states(a.run + "-twin", os.path.join(a.dir, "twin"), a.config, steps)

    run = Training(a.run, os.path.join(a.dir, "run"), a.config, False, steps + 1)
    seen = [0]
    threading.Thread(target=lambda: [seen.__setitem__(0, run.line()) for _ in range(steps)], daemon=True).start()
    took, good, busy, raced = 0.02, {"save": 0, "export": 0}, 0, 0
    for i, n in enumerate(plan):
        while seen[0] < run.given:          # the run has used all its input
            time.sleep(0.0002)
        path, verb, first = os.path.join(a.dir, "s%d" % i), rng.choice(("save", "export")), run.given
        if not n and not first:
            continue
        began = time.monotonic()
        save = subprocess.Popen(["mt-ckpt", verb, a.run, path], stderr=subprocess.PIPE)
        for _ in range(n):
            time.sleep(rng.random() * took / n)
            run.give(1)
        words = save.stderr.read().decode().strip()
        code = save.wait()
        took = 0.9 * took + 0.1 * (time.monotonic() - began)
        if code == 75:
            busy += 1
            if os.path.exists(path):
                fail("%s: 75 leaves it" % path)
            continue
        if code:
            fail("%s: %d: %s" % (path, code, words))
        if verb == "save":
            with open(os.path.join(path, "run.json")) as f:
                step = json.load(f)["step"]
            same = content(path)[0] == whole.get(step) if step else by_weights.get(weights(path)) == 0
        else:
            step = by_weights.get(weights(path))
            same = step is not None
        if not same or (step is not None and not first <= step <= run.given):
            fail("%s (%s) is not the state of a step: %s" % (path, verb, step))
        raced += n > 0
        good[verb] += 1
        shutil.rmtree(path)
    while seen[0] < run.given:
        time.sleep(0.0002)
    run.end()
    left = [f for f in os.listdir(a.dir) if not f.endswith(".err")]
    if left:
        fail("left behind: %s" % left)
    print("%d saves and %d exports, each the state of its step, %d of them during a step; %d busy; %d steps" %
          (good["save"], good["export"], raced, busy, steps))


main()

#!/usr/bin/env python3
"""Jobs of two nodes on this machine (mpirun, mt-run --nodes), each with a fault at a random moment: none may hang.

    nodes.py [--faults N] [--how HOW,...] [--seed N]

HOW is any of
    strangers  while the job starts, connections to node 0's port that say nothing, too little or something else
    damage     one node's mt-link sends wrong bits, once or again and again
    kill       SIGKILL of one process of the job: a stage, an mt-run, what mpirun has started, mpirun itself
    stop       SIGSTOP of one process for a while, longer than mt-link's time-out or not
    signal     TERM, INT, HUP or USR1 to mpirun
A job ends within LIMIT seconds; with 0 and, but for damage, the weights of an undisturbed job, or after a signal with
some of its steps; or it fails with a line that says why. Afterwards no process and no memory of it is there, and, if
nothing was killed, no directory. A job that ends by a fault is no error, one that hangs or lies is: exit 1, and the
seed is printed.
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MT", os.path.join(TOP, "bin"))
PROBES = os.path.join(os.environ.get("BUILD", os.path.join(TOP, "build")), "probes")
SHM = os.environ.get("MT_SHM_DIR", "/dev/shm")
CASE = os.path.join(TOP, "tests", "golden", "llama3")
HOWS = ("strangers", "damage", "kill", "stop", "signal")
STEPS, LIMIT = 12, 150
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Wrong(Exception):
    pass


def metrics(path):
    """(step, its line without the fields that depend on time) of each line"""
    with open(path) as f:
        lines = [json.loads(re.sub('"tokens_per_s.*"skipped', '"skipped', line)) for line in f]
    return [(line["step"], line) for line in lines]


def processes(names):
    """(PID, command line) of the processes that have one of these words in it"""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path, "rb").read().split(b"\0")
            state = open(os.path.dirname(path) + "/stat").read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state not in "ZX" and any(w in names for w in words):
            found.append((int(path.split("/")[2]), b" ".join(words).decode(errors="replace")))
    return found


class Job:
    def __init__(self, where, name, damage=None):
        self.where, self.name = where, name
        self.out, self.tmp = os.path.join(where, "out"), os.path.join(where, "tmp")
        for path in (self.out, self.tmp):
            shutil.rmtree(path, ignore_errors=True)
        os.mkdir(self.tmp)
        env = dict(os.environ, TMPDIR=self.tmp, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_orte_execute_quiet="1")
        programs = BIN
        if damage:
            programs = os.path.join(where, "bin")
            env["DAMAGED"], env["MT_DAMAGE"] = (str(n) for n in damage)
        self.err = open(os.path.join(where, "err"), "w+b")
        self.mpirun = subprocess.Popen(
            ["mpirun", "-n", "2", "--oversubscribe", os.path.join(programs, "mt-run"), "--nodes",
             "--run", name, "--out", self.out, "--model", os.path.join(CASE, "model"),
             "--data", os.path.join(CASE, "data.bin"), "--steps", str(STEPS), "--batch", "4", "--micro", "1",
             "--seq", "32", "--lr", "1e-3", "--threads", "1", "--wait", "20"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.err, env=env, start_new_session=True)

    def processes(self):
        return processes([self.name.encode()] + self.runs())

    def runs(self):
        return [("%s-%d" % (self.name, node)).encode() for node in (0, 1)]

    def left(self, how):
        regions = [p for run in self.runs() for p in glob.glob(os.path.join(SHM, "mt.*.%s.*" % run.decode()))]
        # the next mt-run removes the directory of one that was killed
        directories = [] if how == "kill" else os.listdir(self.tmp)
        return [c for _, c in self.processes()] + regions + directories

    def lines(self):
        self.err.seek(0)
        return self.err.read().decode(errors="replace")

    def end(self, how=None):
        """Its exit code"""
        try:
            code = self.mpirun.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Wrong("the job hangs: %s" % "\n".join(c for _, c in self.processes()))
        until = time.monotonic() + LIMIT
        while self.left(how):
            if time.monotonic() > until:
                raise Wrong("the job has left: %s" % "\n".join(self.left(how)))
            time.sleep(0.1)
        return code

    def weights(self):
        try:
            with open(os.path.join(self.out, "model", "model.safetensors"), "rb") as f:
                return f.read()
        except OSError:
            return None

    def abandon(self):
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.mpirun.kill()
        self.mpirun.wait()
        for run in self.runs():
            subprocess.run([os.path.join(BIN, "mt-store"), "rm", run.decode(), "--force"], stderr=subprocess.DEVNULL)


def ports_of_links():
    listening = {}
    with open("/proc/net/tcp6") as f:
        for line in f:
            words = line.split()
            if words[3] == "0A":
                listening[words[9]] = int(words[1].split(":")[1], 16)
    for name in glob.glob("/proc/[0-9]*/comm"):
        try:
            if open(name).read().strip() != "mt-link":
                continue
            for fd in glob.glob(os.path.dirname(name) + "/fd/*"):
                port = listening.get(os.readlink(fd)[8:-1], 0)
                if port > 9999:         # MPI's own are from 1024 on
                    yield port
        except OSError:
            pass


def strangers(job, rng, over):
    """Connections to every mt-link that listens, until the job is over"""
    held, shape = [], rng.randrange(4)
    while not over.is_set():
        for port in ports_of_links():
            for _ in range(rng.randrange(1, 120)):
                s = socket.socket()
                s.settimeout(0.05)
                held.append(s)
                try:
                    s.connect(("127.0.0.1", port))
                    if shape == 1:      # a hello of node 1, and perhaps a proof that is none
                        s.send(os.urandom(16) + struct.pack("<Q", 1) + os.urandom(rng.choice((0, 3, 8, 8))))
                    elif shape == 2:
                        s.send(os.urandom(rng.randrange(1, 200)))
                    elif shape == 3 and rng.random() < 0.5:
                        s.close()
                except OSError:
                    pass
            del held[:-600]
        time.sleep(0.001)


def disturb(job, how, rng):
    """After a random time"""
    time.sleep(rng.random() * rng.choice((0.3, 2, 4)))
    if how == "signal":
        job.mpirun.send_signal(rng.choice(SIGNALS))
        return
    victims = [pid for pid, _ in job.processes()]
    if not victims:
        return
    victim = rng.choice(victims)
    try:
        if how == "kill":
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(rng.random() * rng.choice((0.1, 2, 5)))
            os.kill(victim, signal.SIGCONT)
    except OSError:
        pass


def one(where, name, how, rng, right):
    damage = (rng.randrange(2), rng.choice((1, 2, 3, 4, 5, 7, 10, 20, 40, 80))) if how == "damage" else None
    job = Job(where, name, damage)
    over = threading.Event()
    guests = threading.Thread(target=strangers, args=(job, rng, over)) if how == "strangers" else None
    try:
        if guests:
            guests.start()
        elif how != "damage":
            disturb(job, how, rng)
        code = job.end(how)
        lines = job.lines()
        if code == 0 and how not in ("damage", "signal") and job.weights() != right:
            raise Wrong("the job ended well, with other weights")
        if how == "strangers" and code:
            raise Wrong("strangers ended the job: %d" % code)
        # a quiet mpirun is silent if what it has started is killed before that has begun
        if code > 0 and code != 137 and how != "signal" and not lines.strip():
            raise Wrong("the job failed with %d and no line" % code)
        if 0 < code < 64 and how != "signal":
            raise Wrong("the job failed with %d, which is no exit code of mt" % code)
        return code
    except Wrong as e:
        lines = job.lines()
        job.abandon()
        raise Wrong("%s%s: %s\n%s" % (how, " %s" % (damage,) if damage else "", e, lines))
    finally:
        over.set()
        if guests:
            guests.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--how", default=",".join(HOWS))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    hows = args.how.split(",")
    if not set(hows) <= set(HOWS):
        parser.error("--how: %s: any of %s" % (args.how, ",".join(HOWS)))
    rng, counts = random.Random(args.seed), {}
    where = tempfile.mkdtemp(prefix="mt-nodes.")
    try:
        os.mkdir(os.path.join(where, "bin"))
        for program in os.listdir(BIN):
            os.symlink(os.path.join(BIN, program), os.path.join(where, "bin", program))
        link = os.path.join(where, "bin", "mt-link")
        os.unlink(link)
        with open(link, "w") as f:
            f.write("#!/bin/sh\n[ \"$OMPI_COMM_WORLD_RANK\" != \"$DAMAGED\" ] || export LD_PRELOAD='%s'\n"
                    "exec '%s' \"$@\"\n" % (os.path.join(PROBES, "so-damage.so"), os.path.join(BIN, "mt-link")))
        os.chmod(link, 0o755)
        name = "nodes%d" % os.getpid()
        whole = Job(where, name)
        if whole.end() or not whole.weights():
            raise Wrong("the undisturbed job fails:\n" + whole.lines())
        right = whole.weights()
        for i in range(args.faults):
            how = hows[i % len(hows)]
            code = one(where, name, how, rng, right)
            counts[how, code] = counts.get((how, code), 0) + 1
        print("nodes: %d faults: %s" % (args.faults, ", ".join("%s -> %d: %d" % (h, c, n)
                                                               for (h, c), n in sorted(counts.items()))))
    except Wrong as e:
        print("nodes: seed %d, after %s: %s" % (args.seed, counts, e), file=sys.stderr)
        sys.exit(1)
    finally:
        shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Kill mt's stages at random and aimed moments, restart them with the same commands, and compare the results bit for
bit with those of an undisturbed run. Needs only Python and the built programs.

    crash.py [CASE...] [--seconds S] [--faults N] [--takeovers N] [--how HOW,...] [--seed N] [--keep]

A case (table CASES below) is a small random model, its training options and its stages. It is trained undisturbed
first, then again and again with injected faults, until at least --faults of them were injected, at least --takeovers
stages have taken a dead one's slot (over all cases) and --seconds have passed. HOW is any of
    kill   SIGKILL one stage          stop   SIGSTOP, wait a moment, SIGCONT
    again  SIGKILL one stage and start it again at once, while it may still be dying
    two    SIGKILL two at once        hold   SIGSTOP, wait while the others run, SIGKILL
    all    SIGKILL all, restart all   term   SIGTERM, which must end the stage normally, restart
    load   SIGKILL all, remove the run, make it again from its last checkpoint; sometimes also SIGKILL mt-store create,
           mt-store init or mt-ckpt load at work, and run it again
    replace  SIGSTOP, start a second one, which must be refused (75), SIGCONT
    fds    start a second one with few file descriptors, which must be refused
    ns     start a second one in another PID namespace, which must be refused; SIGKILL the first; start another there,
           which takes the slot and is killed as well
    lied   SIGSTOP, start a second one that finds the lock free and takes the slot, SIGCONT: the first one must exit 75.
           Not while the first one writes a unit: only the real lock protects that window
    pause  SIGSTOP one, SIGKILL the others: load and rm must be refused; rm --force, make it again as for load, SIGCONT
Cases without checkpoints skip load and pause. Half of the faults are aimed: injected when a stage reports an activity
(applying, saving, ...) or a transaction has a phase. The others come at random moments. After a few faults without a
new step or checkpoint the run is left alone until there is one, so that every run ends, even on a slow machine.
mt-step and mt-feed are one stage: they are killed and started together.

Compared: w, lo, m, v of every unit, step, t and position, every metric except the times, every checkpoint's files.
A run that hangs (no step for 60 s), a stage with an unexpected exit code, or a case without any fault: exit 1.
"""

import argparse
import fcntl
import glob
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from nodes import metrics

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MT", os.path.join(TOP, "bin"))
PROBES = os.path.join(os.environ.get("BUILD", os.path.join(TOP, "build")), "probes")
EMU, CUBLASLT = (os.path.join(PROBES, "../emu", name) for name in ("mt-stream", "libcublasLt.so.13"))
SHM = os.environ.get("MT_SHM_DIR", "/dev/shm")

# grad none: a stage that dies after a step's commit leaves a dirty run, which continues from its last checkpoint.
CASES = {
    "fp32": dict(dtype="fp32", micros=3),
    "fp32-streams": dict(dtype="fp32", micros=5, streams=2, threads=2, isa="scalar", vocab=8000),
    "bf16": dict(dtype="bf16", micros=2, save=3, isa="scalar", vocab=16000),
    "bf16-grad": dict(dtype="bf16", grad="bf16", micros=3, streams=2, save=4, pack="concat"),
    "tied": dict(dtype="bf16", tied=True, micros=4, streams=2, eval=3, save=5),
    "eval": dict(dtype="fp32", micros=2, eval=2, save=3, threads=2),
    "none": dict(dtype="bf16", grad="none", save=2, isa="scalar", vocab=8000, threads=2),
    "none-tied": dict(dtype="bf16", grad="none", tied=True, save=2, streams=2, eval=4),
    "int8": dict(dtype="bf16", state="int8", micros=2, save=3, threads=2, vocab=8000),
    "lion": dict(dtype="fp32", optim="lion", state="bf16", micros=3, streams=2, save=4),
    "none-sgd": dict(dtype="bf16", grad="none", optim="sgd", state="int8", save=2, vocab=8000),
    "windows": dict(dtype="bf16", experts=6, windows=3, micros=3, streams=2, save=3),
    "hybrid": dict(dtype="bf16", hybrid=True, micros=3, streams=2, save=3),
    "mla": dict(dtype="bf16", mla=True, micros=3, streams=2, save=3),
    "mtp": dict(dtype="bf16", mla=True, mtp=0.3, micros=3, streams=2, save=3),
    "halves": dict(dtype="bf16", halves=True, micros=3, streams=2, save=3),
    "beside": dict(dtype="bf16", beside=True, micros=3, save=3),
    "early": dict(dtype="bf16", early=True, micros=3, streams=2, save=3, eval=4, threads=2, vocab=8000),
    "early-tied": dict(dtype="bf16", early=True, tied=True, grad="bf16", state="int8", save=4, vocab=8000),
    "early-windows": dict(dtype="bf16", early=True, experts=6, windows=3, micros=3, streams=2, save=3),
    "shared": dict(dtype="bf16", shared=True, tied=True, micros=3, streams=2, save=3),
    "pairs": dict(dtype="bf16", loss="dpo", micros=3, streams=2, save=3, eval=4),
    "frozen": dict(dtype="bf16", train="model.layers.1.*,*norm*", micros=3, streams=2, save=3, eval=4, threads=2),
    "frozen-early": dict(dtype="bf16", freeze="model.layers.1.*,*.v_proj.*", early=True, tier=(1, 3), micros=2, save=3,
                         threads=2, vocab=8000),
    "frozen-none": dict(dtype="bf16", freeze="model.embed_tokens.*,model.layers.0.mlp.*", grad="none", save=2),
    # an mt-stream on each emulated GPU; mt-streams that reorder all that they may
    "gpus-2": dict(dtype="bf16", device="cuda", experts=6, windows=3, loss="dpo", micros=3, streams=2, save=3,
                   vocab=100, steps=6),
    "chaos-3": dict(dtype="bf16", device="chaos", micros=4, streams=3, save=3, eval=4),
    # tier: directories, slots. lo, m and v of all units but the first are in files
    "gpus-3": dict(dtype="bf16", device="cuda", tier=(1, 3), early=True, micros=4, streams=3, save=3, vocab=100,
                   steps=6),
    "tier": dict(dtype="bf16", tier=(1, 2), micros=2, streams=2, save=3, threads=2, vocab=8000),
    "tier-eval": dict(dtype="bf16", tier=(3, 4), grad="bf16", state="bf16", tied=True, micros=2, eval=2, vocab=8000),
    "tier-int8": dict(dtype="bf16", tier=(2, 3), state="int8", micros=2, save=4, threads=2, isa="scalar", vocab=8000),
    "tier-none": dict(dtype="bf16", tier=(1, 3), grad="none", state="int8", save=2, threads=2, vocab=8000),
    "tier-early": dict(dtype="bf16", tier=(1, 3), early=True, micros=2, save=3, threads=2, vocab=8000),
}
STEPS = 24
HOWS = ("kill", "again", "two", "all", "stop", "hold", "term", "load", "replace", "fds", "ns", "lied", "pause")
FROM_CHECKPOINT = ("load", "pause")
FAULTS_A_STEP = 6       # without a new step or checkpoint; a reload loses more work and counts as LOAD_COSTS
LOAD_COSTS = 3
FILLED, DIRTY = 2, 3    # enum mt_state
DISKS = ("ext2/ext3", "xfs", "btrfs", "f2fs")
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
LIES = os.path.join(PROBES, "so-lies.so")

READ_TILE, WRITE_TILE = 20, 21  # enum mt_activity

# A fault can be aimed at these values of enum mt_activity (with the stage's slot), enum mt_phase and enum mt_snap
AIMS = (
    [("optim", "activity", d) for d in (13, 14, 15, 15, 15, 16)]
    + [("stream0", "activity", d) for d in (8, 9, 10, 11, 12)]
    + [("step", "activity", d) for d in (3, 6, 7)]
    + [("ckpt", "activity", 17)] * 3
    + [(None, "phase", p) for p in (1, 2, 2, 4)]
    + [("ckpt", "snap", s) for s in (1, 2, 3)]
)
# ... and, with a tier, at the instants at which a counter changes, a tile gets a new file, or tiles are to be linked
TIER_AIMS = (
    [("tier", "activity", d) for d in (READ_TILE, WRITE_TILE)]
    + [(who, "counter", c) for who, c in (("tier", "loaded"), ("optim", "updated"), ("tier", "updated"),
                                          ("tier", "written"), ("ckpt", "written"))]
    + [("tier", "new file", None), ("tier", "to link", None)] * 2
)
BUSY = {15: "applying", 17: "saving", READ_TILE: "reading", WRITE_TILE: "writing"}
SLOTS = {"store": 0, "step": 1, "optim": 2, "ckpt": 3, "fill": 4, "tier": 6, "stream0": 8, "stream1": 9,
         "stream2": 10}


class Wrong(Exception):
    pass


def tool(*argv, **kw):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **kw)
    if done.returncode:
        raise Wrong("%s -> %d: %s" % (" ".join(argv), done.returncode, done.stderr.decode().strip()))
    return done.stdout.decode()


def processes_of(stage):
    return ["step", "feed"] if stage == "step" else [stage]


def program(name):
    return os.path.join(BIN, name)


class Watch:
    """Reads the control region: the stages' activities and the transactions' phases"""

    def __init__(self, run, tiles=()):
        """tiles: the run's directories of files"""
        self.at = {}
        for line in tool(program("mt-store"), "stat", "--abi").splitlines():
            words = line.split()
            if len(words) == 1:
                struct_name = words[0]
            elif len(words) == 3:
                self.at[struct_name + "." + words[2]] = int(words[0])
            elif len(words) == 2:
                self.at["sizeof " + words[1]] = int(words[0])
        path = os.path.join(SHM, "mt.%d.%s.control" % (os.geteuid(), run))
        self.file = open(path, "rb")
        self.map = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
        self.versions = []
        self.tiles = [os.path.realpath(path) for path in tiles]

    def word(self, offset, form):
        return struct.unpack_from(form, self.map, offset)[0]

    def state(self):
        return self.word(self.at["mt_header.state"], "<I")

    def filling(self):
        return self.word(self.at["mt_control.fills"], "<I") % 2 == 1

    def holds(self, slot, pid):
        word = self.word(self.at["mt_control.slots"] + slot * self.at["sizeof mt_slot"], "<Q")
        return word >> 42 == pid

    def locked(self, slot):
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(self.file, fcntl.F_OFD_GETLK, lock))[0] != fcntl.F_UNLCK

    def taken(self, slot):
        return self.word(self.at["mt_control.slots"] + slot * self.at["sizeof mt_slot"], "<Q")

    def look_at_versions(self):
        """Versions of units must only grow."""
        units = self.word(self.at["mt_control.n_units"], "<I")
        first = self.word(self.at["mt_control.off_units"], "<Q") + self.at["mt_unit.version"]
        now = [self.word(first + u * self.at["sizeof mt_unit"], "<Q") for u in range(units)]
        for u, (before, after) in enumerate(zip(self.versions, now)):
            if after < before:
                raise Wrong("the version of unit %d went back from %d to %d" % (u, before, after))
        self.versions = now

    def activity(self, slot):
        here = self.at["mt_control.slots"] + slot * self.at["sizeof mt_slot"]
        return self.word(here + self.at["mt_slot.activity"], "<I")

    def phases(self):
        first = self.at["mt_control.txn"]
        words = [self.word(first + i * self.at["sizeof mt_txn"], "<Q") for i in (0, 1)]
        return [w & 0xFF for w in words], max(w >> 32 for w in words)

    def snap(self):
        return self.word(self.at["mt_control.snap"], "<Q") & 0xFF

    def counter(self, name):
        return self.word(self.at["mt_control.tier"] + self.at["mt_tier." + name], "<Q")

    def hits(self, aim, before):
        """before: what it was when the aim was taken"""
        who, what, value = aim
        if what == "counter":
            return self.counter(value) != before
        if what == "to link":           # a snapshot is pinned, and a tile of it may not be in its file
            return self.snap() == 1 and self.counter("written") < self.counter("updated")
        if what == "new file":
            return any(file.endswith(".new") for path in self.tiles for file in os.listdir(path))
        if what == "activity":
            return self.activity(SLOTS[who]) == value
        return self.snap() == value if what == "snap" else value in self.phases()[0]


class Run:
    """One run of a case: its shared memory, its stages and their output."""

    def __init__(self, case, where, name):
        self.c = dict({"grad": "fp32", "state": "fp32", "optim": "adamw", "streams": 1, "threads": 1, "micros": 1,
                       "pack": "docs", "device": "cpu"}, **case)
        self.where, self.name = where, name
        self.out = os.path.join(where, name)
        os.makedirs(self.out)
        self.proc = {}
        self.saver_hurt = False
        self.takeovers = 0              # slots taken after their holder was killed or counted as dead
        self.hit = []                   # activities in BUSY that killed stages had
        self.seed = 0                   # of the last mt-stream
        self.killed_making = {}         # command -> how often it was killed while it made the run
        self.loaded = 0                 # the step of the checkpoint that the run was loaded from
        self.make()

    def make(self, checkpoint=None, rng=None):
        """Make the run. With rng, the programs that make it are sometimes killed, and run again."""
        c = self.c
        create = [program("mt-store"), "create", self.name, "--config", os.path.join(self.where, "config.json"),
                  "--dtype", c["dtype"], "--grad", c["grad"], "--state", c["state"], "--optim", c["optim"],
                  "--step-tokens", "4K", *("--%s=%s" % (o, c[o]) for o in ("train", "freeze", "mtp") if o in c)]
        if "tier" in c:
            early = ["--update", "early"] if "early" in c else []
            create += ["--tier", ",".join(self.disks()), "--tier-memory", "0", "--tier-tile", "64K", "--tier-slots",
                       str(c["tier"][1])] + early
        fill = [program("mt-store"), "init", self.name, "--seed", "7"]
        if checkpoint:
            fill = [program("mt-ckpt"), "load", self.name, checkpoint]
        while rng and rng.random() < 0.5:
            self.kill_create(create, rng)
        tool(*create)
        self.watch = Watch(self.name, self.tiles())
        done = False
        while not done and rng and rng.random() < 0.5:
            done = self.kill_fill(fill, rng)
        if not done:
            tool(*fill)

    def disks(self):
        return [os.path.join(self.out, "disk%d" % i) for i in range(self.c.get("tier", (0,))[0])]

    def tiles(self):
        return [path for disk in self.disks() for path in glob.glob(os.path.join(disk, "mt.*.tier"))]

    def kill_while(self, argv, rng, busy):
        """Kill a program at a random moment, or at one at which it is busy. Returns its dead process."""
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if rng.random() < 0.3:
            time.sleep(rng.expovariate(1 / 0.01))
        else:
            while p.poll() is None and not busy():
                pass
            time.sleep(rng.choice((0, 0, 1e-4, 3e-4, 1e-3, 3e-3)))
        p.kill()
        err = p.communicate()[1].decode()
        if p.returncode not in (0, -signal.SIGKILL):
            raise Wrong("%s -> %d: %s" % (" ".join(argv), p.returncode, err))
        if p.returncode:
            self.killed_making[argv[1]] = self.killed_making.get(argv[1], 0) + 1
        return p

    def kill_create(self, create, rng):
        """mt-store rm, without --force, removes all that a killed mt-store create left."""
        mine = os.path.join(SHM, "mt.%d.%s.*" % (os.geteuid(), self.name))
        self.kill_while(create, rng, lambda: glob.glob(mine))
        if glob.glob(mine):
            tool(program("mt-store"), "rm", self.name)
        if glob.glob(mine) or self.tiles():
            raise Wrong("mt-store rm leaves %s" % (glob.glob(mine) + self.tiles()))

    def kill_fill(self, fill, rng):
        """True if the run was filled before the kill, and is used as it is."""
        p = self.kill_while(fill, rng, self.watch.filling)
        # the next program that fills the run takes the slot
        self.takeovers += self.watch.holds(SLOTS["fill"], p.pid)
        whole = self.watch.state() == FILLED
        if p.returncode == 0 and not whole:
            raise Wrong("%s ended well, and the run is not filled" % " ".join(fill))
        if whole and self.watch.filling():
            raise Wrong("%s: the run is filled, and is being filled" % " ".join(fill))
        return whole and rng.random() < 0.7

    def remove(self):
        tool(program("mt-store"), "rm", self.name, "--force")

    def argv(self, stage):
        c = self.c
        if stage == "store":
            return [program("mt-store"), "serve", self.name]
        if stage == "optim":
            early = ["--update", "early"] if "early" in c else []
            return [program("mt-optim"), self.name, "--threads", str(c["threads"])] + early
        if stage == "tier":
            return [program("mt-tier"), self.name, "--threads", str(c["threads"])]
        if stage == "ckpt":
            return [program("mt-ckpt"), "serve", self.name, "--dir", os.path.join(self.out, "ck"), "--keep", "1000"]
        if stage == "feed":
            return [program("mt-feed"), os.path.join(self.where, "data.bin")]
        if stage == "step":
            eval_ = []
            if "eval" in c:
                eval_ = ["--eval", os.path.join(self.where, "eval.bin"), "--eval-every", str(c["eval"])]
            save = ["--ckpt-every", str(c["save"])] if "save" in c else []
            clip = ["--clip", "0" if "early" in c else "0.5"] if c["grad"] != "none" else []
            return [program("mt-step"), self.name, "--steps", str(c["steps"]), "--batch", str(2 * c["micros"]),
                    "--micro", "2", "--seq", "32", "--lr", "0.01", "--warmup", "3", "--schedule", "cosine",
                    "--wd", "0.1", "--eps", "1e-5", "--pack", c["pack"], "--wait", "30"] + eval_ + save + clip + \
                (["--loss", c["loss"]] if "loss" in c else [])
        windows = ["--expert-window", str(c["experts"] // c["windows"])] if "windows" in c else []
        self.seed += 1
        device = {"cpu": "cpu", "chaos": "chaos:%d" % self.seed, "cuda": "cuda:" + stage[-1]}[c["device"]]
        emulated = ["env", "MT_EMU_SEED=%d" % self.seed, "MT_EMU_DEVICES=%d" % c["streams"], "MT_CUBLASLT=" + CUBLASLT]
        argv = emulated + [EMU] if c["device"] == "cuda" else [program("mt-stream")]
        return argv + [self.name, "--device", device, "--threads", "1"] + windows

    def stages(self):
        names = ["store", "optim"] + ["stream%d" % i for i in range(self.c["streams"])] + ["step"]
        if "tier" in self.c:
            names.append("tier")
        return names + ["ckpt"] if "save" in self.c else names

    def rival(self, stage, prefix=(), **kw):
        """Start a second process of a living stage. Returns its exit code."""
        with open(os.path.join(self.out, stage + ".rival"), "ab") as err:
            return subprocess.run(list(prefix) + self.argv(stage), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=err, timeout=60, **kw).returncode

    def start(self, stage, lie=None):
        path = os.path.join(self.out, stage)
        with open(path + ".err", "ab") as err, open(path + ".out", "ab") as out:
            env = dict(os.environ)
            if stage == "optim" and "isa" in self.c:
                env["MT_ISA"] = self.c["isa"]
            if lie is not None:
                env.update(LD_PRELOAD=LIES, MT_LIE_LOCK=str(lie))
            if stage == "step":
                self.proc["feed"] = subprocess.Popen(self.argv("feed"), stdout=subprocess.PIPE, stderr=err)
                pipe = self.proc["feed"].stdout
                self.proc["step"] = subprocess.Popen(self.argv("step"), stdin=pipe, stdout=out, stderr=err, env=env)
                pipe.close()
            else:
                self.proc[stage] = subprocess.Popen(self.argv(stage), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                    env=env)

    def start_all(self):
        for stage in self.stages():
            if stage not in self.proc:
                self.start(stage)

    def reported(self, stage):
        with open(os.path.join(self.out, stage + ".err"), errors="replace") as f:
            return f.read()[-600:]

    # mt-step gets the signal first: it would take a dead mt-feed for the end of its input
    def strike(self, stages, sig=signal.SIGKILL):
        order = sorted(stages, key=lambda s: s != "step")
        if sig == signal.SIGKILL:
            self.takeovers += sum(self.at_work(s) for s in order)
        for stage in order:
            self.proc[stage].send_signal(sig)
            if stage == "step" and sig == signal.SIGKILL:
                self.proc["feed"].send_signal(sig)
        if sig == signal.SIGKILL:
            for stage in order:
                self.bury(stage)
                if SLOTS.get(stage) and self.watch.activity(SLOTS[stage]) in BUSY:
                    self.hit.append(BUSY[self.watch.activity(SLOTS[stage])])
            if "ckpt" in stages:
                self.saver_hurt = True

    def kill_and_start(self, stage):
        self.takeovers += self.at_work(stage)
        dying = [self.proc.pop(name) for name in processes_of(stage)]
        for p in dying:
            p.kill()
        self.start(stage)
        for p in dying:
            p.wait()
        self.saver_hurt |= stage == "ckpt"

    def bury(self, stage, timeout=60):
        code = None
        for name in processes_of(stage):
            try:
                got = self.proc.pop(name).wait(timeout)
            except subprocess.TimeoutExpired:
                raise Wrong("%s does not end" % name)
            code = got if code is None else code
        return code

    def at_work(self, stage):
        """True if it holds its slot. It has handled signals for long by then."""
        return any(self.watch.holds(slot, self.proc[stage].pid) for slot in self.slots(stage))

    def slots(self, stage):
        """Those that it may have: an mt-stream takes the first one that is free."""
        return range(8, 8 + max(2, self.c["streams"])) if stage.startswith("stream") else (SLOTS[stage],)

    def dirty(self):
        return self.watch.state() == DIRTY and self.c["grad"] == "none"

    def ended_well(self, code):
        """mt-step's exit code after its last step, or after a signal when its newest save has failed: 74 if a save
        failed, as one does whose mt-ckpt was killed."""
        return code == 0 or code == 74 and self.saver_hurt

    def await_work(self, stage):
        end = time.monotonic() + 30
        while not self.at_work(stage):
            if stage == "step" and self.ended_well(self.proc[stage].poll()):    # the run had reached its last step
                return
            if self.proc[stage].poll() == 65 and self.dirty():          # by an earlier fault
                return
            if time.monotonic() > end or self.proc[stage].poll() is not None:
                raise Wrong("%s does not come to work: %s" % (stage, self.reported(stage)))
            time.sleep(0.001)

    def end_all(self):
        """Stages exit 0 on SIGTERM, unless an earlier fault is the reason for another code."""
        rest = [s for s in self.proc if s != "feed"]
        for stage in rest:
            self.await_work(stage)
        for stage in rest:
            self.proc[stage].send_signal(signal.SIGCONT)
            self.proc[stage].send_signal(signal.SIGTERM)
        for stage in rest:
            code = self.bury(stage, 30)
            accepted = stage == "step" and self.ended_well(code) or code == 65 and self.dirty()     # as in await_work
            if code and not accepted:
                raise Wrong("%s: SIGTERM -> %d: %s" % (stage, code, self.reported(stage)))

    def abandon(self):
        for p in self.proc.values():
            p.kill()
        for p in self.proc.values():
            p.wait()
        self.proc = {}
        subprocess.run([program("mt-store"), "rm", self.name, "--force"], stderr=subprocess.DEVNULL)

    def checkpoints(self):
        return sorted(glob.glob(os.path.join(self.out, "ck", "step-*")))

    def newest_checkpoint(self):
        last = self.checkpoints()
        return int(last[-1][-8:]) if last else 0

    def reload(self, rng):
        """Kill all and remove the run; make it again from its newest checkpoint."""
        before = self.takeovers
        self.strike([s for s in self.proc if s != "feed"])
        self.takeovers = before         # nobody takes these slots
        self.remove()
        self.loaded = self.newest_checkpoint()
        self.make(self.checkpoints()[-1] if self.loaded else None, rng)

    # ------------------------------------------------------------------------------------------ results

    def state(self):
        lines = tool(os.path.join(PROBES, "ckpt-dump"), self.name).splitlines()
        return [line.split(" pin ")[0] for line in lines]

    def metrics(self):
        """Step -> its metrics; the last line if a step was written twice."""
        return dict(metrics(os.path.join(self.out, "step.out")))

    def saved(self):
        """Name of a checkpoint -> its files; of run.json only the fields that must not change."""
        result = {}
        for path in self.checkpoints():
            files = {}
            for file in sorted(os.listdir(path)):
                with open(os.path.join(path, file), "rb") as f:
                    files[file] = without_seal(f.read())
            record = json.loads(files.pop("run.json"))
            files["run.json"] = repr([record[k] for k in ("step", "t", "position", "dtype")])
            result[os.path.basename(path)] = files
        return result


def without_seal(file):
    """A tile's file up to its seal, which has the run's number; others whole"""
    n = struct.unpack_from("<Q", file)[0] if len(file) > 8 else 0
    seal = json.loads(file[8:8 + n]).get("seal") if 0 < n < len(file) and file[8:9] == b"{" else None
    return file[:8 + n + seal["data_offsets"][0]] if seal else file


def make_model(where, case):
    os.makedirs(where)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": case.get("vocab", 2000),
        "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.1,
        "rope_theta": 10000.0, "tie_word_embeddings": bool(case.get("tied")), "torch_dtype": "float32",
    }
    if "experts" in case:
        config.update(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", head_dim=16, mlp_only_layers=[1],
                      num_experts=case["experts"], num_experts_per_tok=2, moe_intermediate_size=64)
    if "hybrid" in case:  # gated DeltaNet beside attention
        config.update(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", head_dim=16,
                      full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4,
                      linear_key_head_dim=16, linear_value_head_dim=16)
    if "mla" in case:  # multi-head latent attention, experts with routers in fp32 behind a dense layer
        config.update(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_key_value_heads=4,
                      q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
                      first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1,
                      moe_intermediate_size=32)
    if "halves" in case:  # layers that are Mamba 2, an MLP, experts or attention alone
        config.update(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", head_dim=16,
                      hybrid_override_pattern="M-E*M", mamba_num_heads=4, mamba_head_dim=16, n_groups=2,
                      ssm_state_size=16, n_routed_experts=4, moe_intermediate_size=64,
                      moe_shared_expert_intermediate_size=64)
    if "beside" in case:  # Mamba 2 beside attention
        config.update(architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", head_dim=16, mamba_d_ssm=64,
                      mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=16, mamba_d_head=16, mamba_rms_norm=True,
                      key_multiplier=0.5, ssm_multipliers=[0.5, 2.0, 1.0, 1.0, 0.5], ssm_out_multiplier=0.5,
                      mlp_multipliers=[0.5, 2.0])
    if "shared" in case:  # an input of its own for each block; the last layers read the k and v of others
        config.update(architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", head_dim=16, global_head_dim=32,
                      num_hidden_layers=4, sliding_window=8, num_kv_shared_layers=2, use_double_wide_mlp=True,
                      layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=8,
                      vocab_size_per_layer_input=2000)
        for key in ("hidden_act", "rope_theta"):
            del config[key]
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(config, f)
    words, vocab = random.Random(3), min(config["vocab_size"], 2000)
    for name, documents in (("data.bin", 40 * 2 * case.get("micros", 1) * 3), ("eval.bin", 12)):
        with open(os.path.join(where, name), "wb") as f:
            for _ in range(documents):
                f.write(pair(words, vocab) if "loss" in case else document(words, vocab, words.randint(2, 50)))


def document(words, vocab, n, parts=b""):
    tokens = [min(words.randrange(vocab), words.randrange(vocab)) for _ in range(n)]
    return struct.pack("<I", n) + parts + struct.pack("<%dI" % n, *tokens)


def pair(words, vocab):
    """A chosen and a rejected document with the sums of a reference model's log-probabilities"""
    both = b""
    for side in words.sample((1, 2), 2):
        n = words.randint(2, 16)
        both += document(words, vocab, n, struct.pack("<IId", 1 | 2, side, -8.0 * n))
    return struct.pack("<I", 1 << 31 | len(both) // 4) + both


def undisturbed(case, where):
    """By one mt-stream, whatever the case has"""
    case = dict(case, streams=1, device="cuda" if case.get("device") == "cuda" else "cpu")
    run = Run(case, where, "crash%d-ref" % os.getpid())
    try:
        run.start_all()
        code = run.bury("step", 120)
        if code:
            raise Wrong("the undisturbed run: mt-step -> %d: %s" % (code, run.reported("step")))
        run.end_all()
        return run.state(), run.metrics(), run.saved()
    finally:
        run.abandon()


class Storm:
    """The disturbed run of a case: inject faults until mt-step has finished."""

    def __init__(self, run, rng, hows, count, taken):
        self.run, self.rng, self.hows, self.count, self.taken = run, rng, hows, count, taken
        self.moved, self.newest = time.monotonic(), None
        self.furthest, self.cost = (0, 0), 0            # (checkpoint, step) reached, and the faults since then

    def living(self):
        return [s for s, p in self.run.proc.items() if s != "feed" and p.poll() is None]

    def dirty(self):
        return self.run.dirty()

    def finished(self, code):
        return self.run.ended_well(code)

    def hung(self):
        k = self.run.watch.phases()
        if k != self.newest:
            self.newest, self.moved = k, time.monotonic()
        elif time.monotonic() - self.moved > 60:
            raise Wrong("hangs:\n" + tool(program("mt-store"), "stat", self.run.name))

    def spared(self):
        """True after enough faults at this step: no more until the run makes progress (a checkpoint counts more than a
        step)"""
        now = self.run.newest_checkpoint(), self.run.loaded + self.run.watch.phases()[1]
        if now > self.furthest:
            self.furthest, self.cost = now, 0
        return self.cost >= FAULTS_A_STEP

    def see_ends(self):
        """Check the stages that ended by themselves. True if mt-step has finished."""
        for stage in [s for s in self.run.proc if s != "feed"]:
            code = self.run.proc[stage].poll()
            if code is None:
                continue
            if self.dirty():
                if code not in (0, 65, 69):
                    raise Wrong("%s of a dirty run -> %d: %s" % (stage, code, self.run.reported(stage)))
                self.count["dirty"] += 1
                self.run.reload(self.rng)
                return False
            self.run.bury(stage)
            if stage == "step" and self.finished(code):
                return True
            raise Wrong("%s ended with %d: %s" % (stage, code, self.run.reported(stage)))
        return False

    def wait_for_instant(self):
        """Wait for a random moment, or until an aim is hit. Returns the aimed stage."""
        if self.rng.random() < 0.5:
            time.sleep(self.rng.expovariate(1 / 0.03))
            return None
        aims = TIER_AIMS if "tier" in self.run.c and self.rng.random() < 0.6 else AIMS
        aim = self.rng.choice(aims)
        before = self.run.watch.counter(aim[2]) if aim[1] == "counter" else None
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            if self.run.watch.hits(aim, before):
                time.sleep(self.rng.choice((0, 0, 1e-5, 1e-4, 1e-3)))
                return aim[0]
        return None

    def inject(self):
        who = self.wait_for_instant()
        living = self.living()
        if "step" not in living or not living:
            return
        how = self.rng.choice(self.hows)
        before = self.run.takeovers
        self.cost += LOAD_COSTS if how in FROM_CHECKPOINT else 1
        self.moved = time.monotonic()
        stage = who if who in living and self.rng.random() < 0.5 else self.rng.choice(living)
        if how not in ("term", "replace", "fds", "ns", "lied", "pause"):
            self.count[how] = self.count.get(how, 0) + 1
        if how == "kill":
            self.run.strike([stage])
        elif how == "again":
            self.run.kill_and_start(stage)
        elif how == "two":
            self.run.strike(self.rng.sample(living, 2))
        elif how == "all":
            self.run.strike(living)
        elif how == "load":
            self.run.reload(self.rng)
        elif how == "stop" or how == "hold":
            self.run.strike([stage], signal.SIGSTOP)
            time.sleep(self.rng.expovariate(1 / 0.05))
            self.run.strike([stage], signal.SIGCONT if how == "stop" else signal.SIGKILL)
        elif how == "term":
            self.term(stage)
        else:
            getattr(self, how)(stage)
        self.taken[how] = self.taken.get(how, 0) + self.run.takeovers - before

    def counted(self, how):
        self.count[how] = self.count.get(how, 0) + 1

    def refused(self, stage, codes, **kw):
        code = self.run.rival(stage, **kw)
        if code not in codes and not self.dirty():
            raise Wrong("a second %s -> %d" % (stage, code))

    def replace(self, stage):
        if stage.startswith("stream") or not self.run.at_work(stage):    # a second mt-stream is allowed
            return
        self.run.strike([stage], signal.SIGSTOP)
        self.refused(stage, (75,))
        self.run.strike([stage], signal.SIGCONT)
        self.counted("replace")

    def fds(self, stage):
        if stage.startswith("stream") or not self.run.at_work(stage):
            return
        n = self.rng.choice((4, 5, 6, 8, 12))
        self.run.strike([stage], signal.SIGSTOP)        # else it may end before its rival starts
        self.refused(stage, (74, 75), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
        self.run.strike([stage], signal.SIGCONT)
        self.counted("fds")

    def ns(self, stage):
        streams = [s for s in self.run.proc if s.startswith("stream")]
        # an mt-stream that is starting could take the slot instead
        if stage == "step" or not all(self.run.at_work(s) for s in streams + [stage]):
            return
        slot = [s for s in self.run.slots(stage) if self.run.watch.holds(s, self.run.proc[stage].pid)][0]
        if not stage.startswith("stream"):
            self.run.strike([stage], signal.SIGSTOP)
            self.refused(stage, (75,), prefix=NAMESPACE)
        self.run.strike([stage])
        dead = self.run.watch.taken(slot)
        with open(os.path.join(self.run.out, stage + ".err"), "ab") as err:
            other = subprocess.Popen(NAMESPACE + self.run.argv(stage), stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=err)
        end = time.monotonic() + 30
        while self.run.watch.taken(slot) == dead and other.poll() is None:
            if time.monotonic() > end:
                raise Wrong("%s in another namespace does not take the dead one's slot: %s" %
                            (stage, self.run.reported(stage)))
            time.sleep(0.001)
        if other.poll() is not None and not self.dirty():
            raise Wrong("%s in another namespace -> %d: %s" % (stage, other.poll(), self.run.reported(stage)))
        time.sleep(self.rng.expovariate(1 / 0.03))
        other.kill()
        other.wait()
        while self.run.watch.locked(slot):              # unshare's child dies after it
            if time.monotonic() > end:
                raise Wrong("%s in another namespace does not die" % stage)
            time.sleep(0.001)
        self.run.takeovers += 1
        self.run.saver_hurt |= stage == "ckpt"
        self.counted("ns")

    def outside_of_stores(self, stage, pid):
        """True if it is stopped while it sleeps on the doorbell: it checks its slot before it writes again."""
        with open("/proc/%d/syscall" % pid) as f:
            if f.read().split()[0] != "202":            # futex
                return False
        activity = self.run.watch.activity(SLOTS[stage])
        return {"optim": activity in (2, 7, 13), "stream0": activity in (8, 9)}.get(stage, True)

    def lied(self, stage):
        if stage not in ("optim", "step", "ckpt", "stream0") or not self.run.at_work(stage):
            return
        slot, first, feed = SLOTS[stage], self.run.proc[stage], self.run.proc.get("feed")
        if not self.run.watch.holds(slot, first.pid):
            return
        for _ in range(20):
            first.send_signal(signal.SIGSTOP)
            time.sleep(0.002)
            if first.poll() is not None:
                return
            if self.outside_of_stores(stage, first.pid):
                break
            first.send_signal(signal.SIGCONT)
            time.sleep(self.rng.expovariate(1 / 0.003))
        else:
            return
        self.run.saver_hurt |= stage == "ckpt"
        others = [p for s, p in self.run.proc.items() if s not in ("feed", stage)]
        try:
            self.run.start(stage, lie=slot)
            self.run.await_work(stage)
            time.sleep(self.rng.expovariate(1 / 0.05))
            # Between the two locks the second one looks dead. The others are stopped, because they would abort its work
            # now, and not again when it is killed.
            for p in others:
                p.send_signal(signal.SIGSTOP)
            time.sleep(0.005)
            first.send_signal(signal.SIGCONT)
            code = first.wait(30)
            end = time.monotonic() + 30
            while not self.run.watch.locked(slot) and self.run.proc[stage].poll() is None and time.monotonic() < end:
                time.sleep(0.001)
        except subprocess.TimeoutExpired:
            raise Wrong("%s lost its slot and continues" % stage)
        finally:
            for p in others:
                p.send_signal(signal.SIGCONT)
            for p in [first] + ([feed] if stage == "step" else []):
                p.kill()
                p.wait()
        # the second one may have ended the training meanwhile, and mt-store then removes the run
        over = self.finished(code) or code == 74 and "was removed" in self.run.reported(stage)
        at_end = stage == "step" and over and self.finished(self.run.proc[stage].poll())
        if code != 75 and not at_end and not self.dirty():
            raise Wrong("%s lost its slot -> %d: %s" % (stage, code, self.run.reported(stage)))
        self.run.takeovers += not at_end and not self.dirty()
        self.counted("lied")

    def pause(self, stage):
        if not self.run.at_work(stage):
            return
        first, feed = self.run.proc[stage], self.run.proc.get("feed")
        first.send_signal(signal.SIGSTOP)
        rest = [s for s in self.run.proc if s not in ("feed", stage)]
        before = self.run.takeovers
        self.run.strike(rest)
        self.run.takeovers = before
        del self.run.proc[stage]
        if stage == "step":
            del self.run.proc["feed"]
        last = self.run.checkpoints()
        for argv in ["mt-store", "rm", self.run.name], ["mt-ckpt", "load", self.run.name] + last[-1:]:
            if argv[1] == "rm" or last and stage != "store":    # load ignores mt-store serve
                code = subprocess.run([program(argv[0])] + argv[1:], stderr=subprocess.DEVNULL, timeout=60).returncode
                if code != 75:
                    raise Wrong("%s beside a stopped %s -> %d" % (" ".join(argv), stage, code))
        self.run.reload(self.rng)
        first.send_signal(signal.SIGCONT)
        try:
            code = first.wait(30)
        except subprocess.TimeoutExpired:
            raise Wrong("%s of a removed run continues" % stage)
        finally:
            for p in [first] + ([feed] if stage == "step" else []):
                p.kill()
                p.wait()
        if code not in (0, 65, 69) and not (stage == "step" and self.finished(code)):
            raise Wrong("%s of a removed run -> %d: %s" % (stage, code, self.run.reported(stage)))
        self.counted("pause")

    def term(self, stage):
        if not self.run.at_work(stage):
            return
        self.count["term"] = self.count.get("term", 0) + 1
        self.run.strike([stage], signal.SIGTERM)
        code = self.run.bury(stage)
        if stage == "ckpt":             # a save that was requested meanwhile has failed
            self.run.saver_hurt = True
        if stage == "step" and self.finished(code):     # it was at its end, or 74: the newest save had failed
            self.run.start(stage)
        elif self.dirty() and code in (0, 65, 69):      # it saw the dirty store before the signal
            self.run.start(stage)
        elif code != (-signal.SIGTERM if stage == "step" else 0):
            raise Wrong("%s: SIGTERM -> %d: %s" % (stage, code, self.run.reported(stage)))

    def turn(self):
        """True if the run has ended."""
        self.run.start_all()
        self.run.watch.look_at_versions()
        self.hung()
        if self.see_ends():
            return True
        if self.spared():
            time.sleep(0.005)
        else:
            self.inject()
        return False


# A checkpoint has no figures of pairs: they are null in a line that was not written before it (mt-step.1)
OF_PAIRS = ("reward_chosen", "reward_rejected", "margin", "accuracy")


def same_line(run, want, got):
    if run.loaded and want and got and all(got.get(key, 0) is None for key in OF_PAIRS):
        want = {**want, **dict.fromkeys(OF_PAIRS)}
    return want == got


def compare(run, want, count):
    state, metrics, saved = want
    if run.state() != state:
        theirs = run.state()
        raise Wrong("the state differs:\n" + "\n".join("%s | %s" % p for p in zip(state, theirs) if p[0] != p[1]))
    mine = run.metrics()
    differ = [s for s in sorted(set(metrics) | set(mine)) if not same_line(run, metrics.get(s), mine.get(s))]
    if differ:
        raise Wrong("metrics differ:\n" + "\n".join("%s | %s" % (metrics.get(s), mine.get(s)) for s in differ))
    for name, files in run.saved().items():
        tool(program("mt-ckpt"), "verify", os.path.join(run.out, "ck", name))
        count["checkpoints"] += 1
        for file in files if name in saved else ():
            if saved[name].get(file) != files[file]:
                raise Wrong("checkpoint %s: %s differs" % (name, file))


def faults(count):
    return sum(count.get(h, 0) for h in HOWS)


def numbers(count):
    return ", ".join("%s %d" % p for p in sorted(count.items()))


def one_storm(name, where, want, rng, hows, count, taken, i):
    run = Run(dict({"steps": STEPS}, **CASES[name]), where, "crash%d-%d" % (os.getpid(), i))
    try:
        storm = Storm(run, rng, hows, count, taken)
        while not storm.turn():
            pass
        run.end_all()
        compare(run, want, count)
        count["runs"] += 1
        count["takeovers"] += run.takeovers
        for busy in run.hit:
            count[busy] = count.get(busy, 0) + 1
        for verb, n in run.killed_making.items():
            count[verb + " killed"] = count.get(verb + " killed", 0) + n
        shutil.rmtree(run.out)
    finally:
        run.abandon()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--faults", "--blows", type=int, default=20)
    parser.add_argument("--takeovers", type=int, default=0)
    parser.add_argument("--how", default=",".join(HOWS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="keep the files of a failed case")
    args = parser.parse_args()
    hows = args.how.split(",")
    for word in set(hows) - set(HOWS):
        parser.error("--how: '%s' is none of %s" % (word, ", ".join(HOWS)))
    build = os.path.dirname(PROBES)
    disk = subprocess.run(["stat", "-f", "-c", "%T", build], stdout=subprocess.PIPE).stdout.decode().strip()
    if subprocess.run(NAMESPACE + ["true"], stderr=subprocess.DEVNULL).returncode:
        hows = [h for h in hows if h != "ns"]
    if not os.path.exists(LIES) or "asan" in LIES:
        hows = [h for h in hows if h != "lied"]
    status = 0
    cases = args.cases or list(CASES)
    for name in cases:
        here_hows = hows if "save" in CASES[name] else [h for h in hows if h not in FROM_CHECKPOINT]
        if not here_hows:
            print("%s: skipped: none of --how applies to it" % name, flush=True)
            continue
        if "tier" in CASES[name] and disk not in DISKS:
            print("%s: skipped: wants a drive's file system below %s" % (name, build), flush=True)
            continue
        where = tempfile.mkdtemp(prefix="mt-crash-", dir=build if "tier" in CASES[name] else None)
        taken = {}
        rng = random.Random("%d %s" % (args.seed, name))
        count = {"runs": 0, "checkpoints": 0, "dirty": 0, "takeovers": 0}
        began = time.monotonic()
        try:
            make_model(os.path.join(where, "w"), CASES[name])
            here = os.path.join(where, "w")
            want = undisturbed(dict({"steps": STEPS}, **CASES[name]), here)
            i = 0
            while (faults(count) < args.faults or count["takeovers"] < args.takeovers / len(cases) or
                   time.monotonic() - began < args.seconds):
                one_storm(name, here, want, rng, here_hows, count, taken, i)
                i += 1
                if i > 20 and not faults(count):
                    raise Wrong("no fault was injected")
            print("%s: %s (%.0f s)\n    takeovers: %s" %
                  (name, numbers(count), time.monotonic() - began, numbers(taken)), flush=True)
        except Wrong as e:
            status = 1
            print("%s: seed %d, after %s: %s" % (name, args.seed, count, e), file=sys.stderr)
            print("its files are in %s" % where if args.keep else "", file=sys.stderr, flush=True)
            if args.keep:
                continue
        shutil.rmtree(where, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Check that a power cut at any moment of a save or export leaves a complete checkpoint or export.

    powercut.py [--states N] [--state TYPE] [--tier] [--seed N] [--verbose]

mt's savers run under tests/fault/preload.c, which records each change of a file or directory. A state after a power cut
is made from a prefix of that record. It has all changes that an fsync of the file or directory made durable, and any
subset of the others, because file systems reorder writes. A file whose data was not synced may have any subset of its
writes, with zeros between. At least N different states are checked (default 10000), unless fewer exist.

With --tier, the run's tiles are files beside the checkpoints, which link them: what mt-tier writes is recorded, too.

In each state must hold:
    a directory under a final name (step-*, model) is byte for byte one that was complete when it got that name
    after "step n is saved" was reported, the newest checkpoint is of step n or later
    after an export was reported, `model` exists
"""
import argparse
import collections
import os
import random
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
RUN = f"powercut-{os.getpid()}"



# ---- making a record

class Recording:
    """Runs savers below DIR; the file `record` gets their operations, and our marks between."""

    def __init__(self, tmp, state, tier):
        self.state = state
        self.dir, self.file = os.path.join(tmp, "disk"), os.path.join(tmp, "record")
        self.model = os.path.join(tmp, "model")
        self.out = os.path.join(self.dir, "out")
        os.mkdir(self.dir)
        self.tier = ["--tier", os.path.join(self.dir, "tier"), "--tier-memory", 0, "--tier-tile", 65536] if tier else []
        self.stages = []

    def env(self, recorded):
        if not recorded:
            return None
        return {**os.environ, "LD_PRELOAD": os.path.join(BUILD, "fault", "preload.so"), "MT_FAULT_RECORD": self.file,
                "MT_FAULT_UNDER": self.dir}

    def do(self, *argv, recorded=False, stdin=None):
        with open(stdin or os.devnull, "rb") as f:
            q = subprocess.run([os.path.join(BIN, argv[0]), *map(str, argv[1:])], env=self.env(recorded), stdin=f,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120)
        if q.returncode:
            raise SystemExit(f"powercut.py: {' '.join(map(str, argv))}: {q.returncode}: {q.stderr.decode()}")

    def start(self, *argv, recorded=False):
        self.stages.append(subprocess.Popen([os.path.join(BIN, argv[0]), *map(str, argv[1:])], env=self.env(recorded),
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))

    def stop(self):
        for q in self.stages:
            q.terminate()
        for q in self.stages:
            if q.wait(60):
                raise SystemExit(f"powercut.py: a stage ended with {q.returncode}")
        self.stages = []

    def mark(self, *words):
        with open(self.file, "a") as f:
            f.write("mark " + " ".join(map(str, words)) + "\n")

    def train(self, until, keep):
        """Train each step in `until`. mt-ckpt serve saves it; it counts as reported when mt-step has ended"""
        if self.tier:
            self.start("mt-tier", RUN, "--threads", 2, recorded=True)
        self.start("mt-stream", RUN, "--threads", 1)
        self.start("mt-optim", RUN, "--threads", 1)
        self.start("mt-ckpt", "serve", RUN, "--dir", self.out, "--keep", keep, recorded=True)
        for step in until:
            self.do("mt-step", RUN, "--steps", 100, "--until", step, "--batch", 2, "--seq", 8, "--lr", "1e-3",
                    "--ckpt-every", 1, stdin=self.data)
            self.mark("saved", step)
        self.stop()

    def export(self, *options):
        self.do("mt-ckpt", "export", RUN, os.path.join(self.out, "model"), *options, recorded=True)
        self.mark("exported")

    def make(self):
        subprocess.run([sys.executable, os.path.join(TOP, "tests", "lib", "mksafetensors.py"), "make", self.model,
                        "--set", "num_hidden_layers=1"], check=True)
        self.data = os.path.join(os.path.dirname(self.dir), "data")
        with open(self.data, "wb") as f:
            for i in range(64):
                tokens = [(i * 7 + j * 3) % 32 for j in range(9)]
                f.write(b"".join(word.to_bytes(4, "little") for word in [9] + tokens))
        self.do("mt-store", "create", RUN, "--config", self.model, "--step-tokens", 64, "--state", self.state,
                *self.tier, recorded=bool(self.tier))
        self.do("mt-ckpt", "load", RUN, self.model, recorded=bool(self.tier))
        self.train([1, 2, 3, 4], 3)
        self.do("mt-ckpt", "load", RUN, os.path.join(self.out, "step-00000002"), recorded=bool(self.tier))
        self.mark("back to", 2)         # steps 3 and 4 are saved again, over existing directories
        self.train([3, 4, 5], 2)
        self.export()
        self.train([6], 1)
        self.export("--replace")
        self.do("mt-ckpt", "save", RUN, os.path.join(self.out, "step-00000007"), recorded=True)
        self.mark("saved", 7)
        self.do("mt-store", "rm", RUN)


# ---- the record as operations on inodes

Op = collections.namedtuple("Op", "kind ino sets removes data")     # sets: [(dir, name, ino)], removes: [(dir, name)]


def parse(file, top):
    """The operations in order; durable[i]: index of the fsync that makes operation i durable, or None"""
    root = os.stat(top).st_ino
    dirs = {root: {}}
    ops = []

    def at(path):
        d = root
        parts = os.path.relpath(path, top).split("/")
        for p in parts[:-1]:
            d = dirs[d][p]
        return d, parts[-1]

    with open(file) as f:
        for line in f:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word in ("create", "mkdir"):
                path, ino = rest.split("\t")
                d, name = at(path)
                ino = fresh(int(ino), dirs)
                dirs[d][name] = ino
                if word == "mkdir":
                    dirs[ino] = {}
                ops.append(Op(word, ino, [(d, name, ino)], [], None))
            elif word == "link":
                path, ino = rest.split("\t")
                d, name = at(path)
                dirs[d][name] = known[int(ino)]
                ops.append(Op(word, known[int(ino)], [(d, name, known[int(ino)])], [], None))
            elif word == "unlink":
                d, name = at(rest)
                ops.append(Op(word, dirs[d].pop(name), [], [(d, name)], None))
            elif word in ("rename", "exchange"):
                (d, a), (e, b) = (at(p) for p in rest.split("\t"))
                x, y = dirs[d].pop(a), dirs[e].pop(b, None)
                dirs[e][b] = x
                if word == "exchange":
                    dirs[d][a] = y
                    ops.append(Op(word, x, [(e, b, x), (d, a, y)], [], None))
                else:
                    ops.append(Op(word, x, [(e, b, x)], [(d, a)], None))
            elif word == "write":
                ino, off, n, *data = rest.split(" ")
                ops.append(Op(word, known[int(ino)], [], [], (int(off), bytes.fromhex(data[0] if data else ""))))
            elif word == "truncate":
                ino, n = rest.split(" ")
                ops.append(Op(word, known[int(ino)], [], [], (int(n), None)))
            elif word == "fsync":
                ops.append(Op(word, known.get(int(rest), int(rest)), [], [], None))
            elif word == "mark":
                ops.append(Op(word, None, [], [], rest))
            else:
                raise SystemExit(f"powercut.py: what is {line!r}?")
    return root, ops


known, used = {}, set()


def fresh(ino, dirs):
    """Inode numbers are reused: give each file its own number"""
    mine = ino
    while mine in used:
        mine += 1 << 40
    used.add(mine)
    known[ino] = mine
    return mine


def touched(op):
    """Directories that must be synced to make a change of names durable: for a rename, the one with the new name"""
    return {d for d, _, _ in op.sets} or {d for d, _ in op.removes}


def durable_at(ops):
    """For each operation the index of the fsync that makes it durable"""
    lasts = [None] * len(ops)
    pending = collections.defaultdict(list)
    for i, op in enumerate(ops):
        if op.kind == "fsync":
            for j in pending.pop(op.ino, []):
                lasts[j] = i
        elif op.kind in ("write", "truncate"):
            pending[op.ino].append(i)
        elif op.kind != "mark":
            for d in touched(op):
                pending[d].append(i)
    return lasts


class Disk:
    def __init__(self, root):
        self.root, self.dirs, self.files = root, collections.defaultdict(dict), collections.defaultdict(bytes)

    def copy(self):
        new = Disk(self.root)
        new.dirs.update({ino: dict(names) for ino, names in self.dirs.items()})
        new.files.update(self.files)
        return new

    def apply(self, op):
        if op.kind == "write":
            off, data = op.data
            old = self.files[op.ino].ljust(off, b"\0")
            self.files[op.ino] = old[:off] + data + old[off + len(data):]
        elif op.kind == "truncate":
            self.files[op.ino] = self.files[op.ino][:op.data[0]].ljust(op.data[0], b"\0")
        for d, name in op.removes:
            if self.dirs[d].get(name) == op.ino:
                del self.dirs[d][name]
        for d, name, ino in op.sets:
            self.dirs[d][name] = ino

    def directory(self, ino):
        return tuple(sorted((name, self.files[i]) for name, i in self.dirs[ino].items()))

    def final(self):
        """{final name: content} of the directory `out`"""
        out = self.dirs[self.root].get("out")
        if out is None:
            return {}
        return {n: self.directory(i) for n, i in self.dirs[out].items() if not n.startswith(".")}


# ---- checking states

def step_of(name):
    return int(name[5:]) if name.startswith("step-") else None


def wrong(state, versions, saved, exported):
    for name, content in state.items():
        if content not in versions.get(name, ()):
            return f"{name} is not complete: {[(f, len(b)) for f, b in content]}"
    steps = [step_of(n) for n in state if n.startswith("step-")]
    if saved is not None and (not steps or max(steps) < saved):
        return f"step {saved} was reported as saved; the newest checkpoint is {max(steps, default='none')}"
    if exported and "model" not in state:
        return "the export was reported, and is not there"


def complete_versions(root, ops):
    """{final name: contents that it had when it got that name}"""
    disk, versions = Disk(root), collections.defaultdict(set)
    for op in ops:
        disk.apply(op)
        if op.kind in ("rename", "exchange"):
            for name, content in disk.final().items():
                if (name in [n for _, n, _ in op.sets]):
                    versions[name].add(content)
    return versions


def states(root, ops, want):
    """(index, disk) after a power cut: for every prefix all unsynced changes lost, none lost, and random subsets"""
    lasts = durable_at(ops)
    rounds = max(3, -(-want // len(ops)) + 2)
    base, done = Disk(root), 0      # the first operations, as far as all of them are durable
    for i in range(len(ops) + 1):
        while done < i and (ops[done].kind in ("mark", "fsync") or (lasts[done] is not None and lasts[done] < i)):
            base.apply(ops[done])
            done += 1
        for turn in range(rounds):
            chance = 0 if turn == 0 else 1 if turn == 1 else random.choice((0.1, 0.5, 0.9))
            disk = base.copy()
            for j in range(done, i):
                if ops[j].kind in ("mark", "fsync"):
                    continue
                if (lasts[j] is not None and lasts[j] < i) or random.random() < chance:
                    disk.apply(ops[j])
            yield i, disk


def reported(ops):
    """Before operation i: the step last reported as saved, and whether an export was reported"""
    saved, exported, out = None, False, []
    for op in ops:
        out.append((saved, exported))
        if op.kind == "mark":
            words = op.data.split()
            saved = int(words[-1]) if words[0] in ("saved", "back") else saved
            exported = exported or words[0] == "exported"
    return out + [(saved, exported)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--states", type=int, default=10000)
    p.add_argument("--state", default="fp32", help="data type of m and v")
    p.add_argument("--tier", action="store_true", help="lo, m and v are in files, which checkpoints link")
    p.add_argument("--seed", type=int, default=random.randrange(10 ** 6))
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    random.seed(args.seed)
    tmp = tempfile.mkdtemp(prefix="tier.", dir=BUILD) if args.tier else tempfile.mkdtemp(prefix="mt-powercut.")
    recording = Recording(tmp, args.state, args.tier)
    try:
        recording.make()
        root, ops = parse(recording.file, recording.dir)
        for name in sorted(os.listdir(recording.out)):      # mt's own check must accept the final directories
            if name.startswith("step-"):
                recording.do("mt-ckpt", "verify", os.path.join(recording.out, name))
    finally:
        for q in recording.stages:
            q.kill()
        subprocess.run([os.path.join(BIN, "mt-store"), "rm", RUN, "--force"], stderr=subprocess.DEVNULL)
        shutil.rmtree(tmp)
    versions, marks = complete_versions(root, ops), reported(ops)
    seen, bad, looked = set(), collections.Counter(), 0
    for i, disk in states(root, ops, args.states):
        looked += 1
        state = disk.final()
        seen.add((i, hash(frozenset(state.items()))))
        what = wrong(state, versions, *marks[i])
        if what:
            bad[what] += 1
            if args.verbose and bad[what] == 1:
                print(f"powercut.py: before operation {i}: {what}")
    print(f"powercut.py: seed {args.seed}: {len(ops)} operations, {looked} states ({len(seen)} different ones), "
          f"{sum(bad.values())} bad")
    for what, n in bad.most_common(10):
        print(f"powercut.py: {n} times: {what}")
    sys.exit(bool(bad) or looked < args.states)


main()

#!/usr/bin/env python3
"""Make each allocation and system call of mt's commands fail in turn, once or from then on, and check the results.

    faults.py [COMMAND...] [--every N] [--keep]

COMMAND: create, init, load, save, export, replace, verify, kill (default: all). tests/fault/preload.c makes the calls
fail. --every N tests only every Nth call of each kind, from a random one on.

After each failure one of these must hold; anything else is reported, and the exit code is 1:
    exit 0        the result is complete and equals, byte for byte, the result without a failure
    exit 64..78   but not 70; one line on stderr; existing files are unchanged; no incomplete directory has a final
                  name, no temporary directory is left
kill: the command is killed before each call of any kind; the same command then succeeds and removes the remains.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
SHM = os.environ.get("MT_SHM_DIR", "/dev/shm")
PRELOAD = os.path.join(BUILD, "fault", "preload.so")
KINDS = ("alloc", "open", "mkdir", "read", "write", "fsync", "rename", "mmap", "truncate", "stat", "thread")
RUN = f"fault-{os.getpid()}"
HALF = "an incomplete directory has its final name"
MIXTURE = "the run is marked as filled, and holds a mixture"


def command(*argv):
    return [os.path.join(BIN, argv[0]), *map(str, argv[1:])]


def do(*argv):
    """Run a command without faults; it must succeed"""
    done = subprocess.run(command(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"faults.py: {' '.join(map(str, argv))}: {done.returncode}: {done.stderr.decode()}")
    return done.stdout


def faulty(argv, fault, count=None):
    """(exit code, stderr) of a command with a fault"""
    env = {**os.environ, "LD_PRELOAD": PRELOAD}
    env.pop("MT_FAULT", None)
    if fault:
        env["MT_FAULT"] = fault
    if count:
        env["MT_FAULT_COUNT"] = count
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env,
                          timeout=60)
    return done.returncode, done.stderr.decode(errors="replace")


def counts(argv):
    path = os.path.join(tmp, "count")
    code, err = faulty(argv, None, path)
    if code:
        raise SystemExit(f"faults.py: {' '.join(argv)}: {code}: {err}")
    with open(path) as f:
        return {k: int(n) for k, n in (line.split() for line in f)}


def tree(path):
    """{name: bytes} of a directory; None: it does not exist"""
    if not os.path.isdir(path):
        return None
    found = {}
    for name in sorted(os.listdir(path)):
        with open(os.path.join(path, name), "rb") as f:
            found[name] = f.read()
    return found


def others(parent, *names):
    return sorted(set(os.listdir(parent)) - set(names))


def shm_files(run):
    return sorted(f for f in os.listdir(SHM) if f.startswith(f"mt.{os.geteuid()}.{run}."))


def state(run):
    """The run's content as one hash, and the line with its state: empty, filled, ..."""
    dump = [os.path.join(BUILD, "probes", "ckpt-dump"), run]
    text = subprocess.run(dump, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
    return hashlib.sha256(text).hexdigest(), text.split(b"\n", 1)[0].decode()


# ---- cases: the command, the preparation, and the check of its result (a complaint or None)

class Case:
    def before(self):
        pass

    def end(self):
        pass


class Create(Case):
    argv = command("mt-store", "create", RUN, "--config", "@model", "--step-tokens", "64")

    def before(self):
        if shm_files(RUN):
            do("mt-store", "rm", RUN, "--force")

    def after(self, code):
        left = shm_files(RUN)
        if code and left:
            return f"left {', '.join(left)}"
        if not code and b"empty" not in do("mt-store", "stat", RUN):
            return "the run is not empty"

    end = before


def create():
    do("mt-store", "create", RUN, "--config", os.path.join(tmp, "model"), "--step-tokens", "64", "--state", args.state)


class Filling(Case):
    """Fill a run that holds A with B."""

    def __init__(self):
        create()
        do(*self.other)
        self.a = state(RUN)[0]
        do(*[os.path.basename(self.argv[0]), *[a.replace("@", tmp + "/") for a in self.argv[1:]]])
        self.b = state(RUN)[0]
        self.now = None

    def before(self):
        if self.now != self.a:
            do(*self.other)
            self.now = self.a

    def after(self, code):
        now, word = state(RUN)
        self.now = now
        if code == 0 and now != self.b:
            return "exit 0, but the run does not hold the new content"
        if code and word == "state 2" and now != self.a:
            return MIXTURE

    def end(self):
        do("mt-store", "rm", RUN, "--force")


class Init(Filling):
    argv = command("mt-store", "init", RUN, "--seed", 2)
    other = ("mt-store", "init", RUN, "--seed", 1)


class Load(Filling):
    argv = command("mt-ckpt", "load", RUN, "@ckpt")

    def __init__(self):
        self.other = ("mt-ckpt", "load", RUN, os.path.join(tmp, "model"))
        super().__init__()


class Writing(Case):
    """Write a new directory: all of it, or nothing."""

    def __init__(self):
        self.parent = os.path.join(tmp, "out")
        self.out = os.path.join(self.parent, "new")
        self.old = None
        os.makedirs(self.parent)
        create()
        do("mt-ckpt", "load", RUN, os.path.join(tmp, "ckpt"))
        self.first()
        do(*[os.path.basename(self.argv[0]), *[a.replace("@", tmp + "/") for a in self.argv[1:]]])
        self.want = tree(self.out)
        self.clean = False

    def first(self):
        pass

    def before(self):
        if not self.clean:
            shutil.rmtree(self.parent)
            os.makedirs(self.parent)
            self.first()
        self.clean = True

    def after(self, code):
        now = tree(self.out)
        left = others(self.parent, "new")
        self.clean = now == self.old and not left
        if code == 0 and now != self.want:
            return "exit 0, but the directory has other content"
        if code and now is not None and now != self.old:
            return "it failed, but the directory exists" if now == self.want else HALF
        if code and self.old and now != self.old:
            return "it failed, and the old directory is gone"
        if left:
            return f"left {', '.join(left)}"

    def end(self):
        shutil.rmtree(self.parent)
        do("mt-store", "rm", RUN, "--force")


class Save(Writing):
    argv = command("mt-ckpt", "save", RUN, "@out/new")


class Export(Writing):
    argv = command("mt-ckpt", "export", RUN, "@out/new")


class Replace(Writing):
    argv = command("mt-ckpt", "export", RUN, "@out/new", "--replace")

    def first(self):
        shutil.copytree(os.path.join(tmp, "exported"), self.out)
        self.old = tree(self.out)


class Verify(Case):
    argv = command("mt-ckpt", "verify", "@ckpt")

    def after(self, code):
        return None


CASES = {"create": Create, "init": Init, "load": Load, "save": Save, "export": Export, "replace": Replace,
         "verify": Verify}


# ---- one command, each call of each kind

def complain(name, fault, code, err, what):
    complaints.append((name, fault, code, what))
    print(f"faults.py: {name}, {fault}: exit {code}: {what}; stderr: {err.strip()!r}", flush=True)


def judged(name, case, argv, fault):
    case.before()
    code, err = faulty(argv, fault)
    lines = [line for line in err.split("\n") if line and "warning" not in line]
    if code < 0:
        complain(name, fault, code, err, f"died of signal {signal.Signals(-code).name}")
    elif code and not (64 <= code <= 78 and code != 70):
        complain(name, fault, code, err, "not an exit code for a failure")
    elif code and len(lines) != 1:
        complain(name, fault, code, err, f"{len(lines)} lines on stderr, not one")
    wrong = case.after(code)
    if wrong:
        complain(name, fault, code, err, wrong)
    return code


def inject(name):
    case = CASES[name]()
    argv = [a.replace("@", tmp + "/") for a in case.argv]
    case.before()
    n = counts(argv)
    case.after(0)
    case.clean = False
    tried = failed = 0
    for kind in KINDS:
        first = random.randrange(args.every) + 1
        for nth in range(first, n[kind] + 1, args.every):
            for how in ("", "+"):
                tried += 1
                failed += judged(name, case, argv, f"{kind}:{nth}{how}") != 0
    case.end()
    print(f"faults.py: {name}: {tried} failures injected, {failed} of them ended the command; calls: "
          + ", ".join(f"{n[k]} {k}" for k in KINDS if n[k]), flush=True)


def kills():
    """Kill each command before each call that touches files or shared memory, then run it again."""
    for name in ("create", "load", "save", "export", "replace"):
        case = CASES[name]()
        argv = [a.replace("@", tmp + "/") for a in case.argv]
        case.before()
        n = counts(argv)
        case.after(0)
        killed = 0
        for kind in KINDS[1:]:
            for nth in range(random.randrange(args.every) + 1, n[kind] + 1, args.every):
                if isinstance(case, Writing):
                    case.clean = False
                case.before()
                code, _ = faulty(argv, f"{kind}:{nth}!")
                killed += code == -signal.SIGKILL
                now = tree(case.out) if isinstance(case, Writing) else None
                if name == "create":
                    subprocess.run(command("mt-store", "rm", RUN), stderr=subprocess.DEVNULL)
                elif isinstance(case, Writing) and now not in (case.old, None, case.want):
                    complain(name, f"{kind}:{nth}!", code, "", HALF)
                elif isinstance(case, Writing) and now == case.want and case.want != case.old:
                    continue                            # it had finished
                elif name == "load":
                    now, word = state(RUN)
                    if word == "state 2" and now not in (case.a, case.b):
                        complain(name, f"{kind}:{nth}!", code, "", MIXTURE)
                code, err = faulty(argv, None)
                wrong = f"exit {code}" if code else case.after(code)
                if wrong:
                    complain(name, f"{kind}:{nth}!, then again", code, err, wrong)
        case.end()
        print(f"faults.py: {name}: killed {killed} times, and run again", flush=True)


p = argparse.ArgumentParser()
p.add_argument("commands", nargs="*")
p.add_argument("--every", type=int, default=1)
p.add_argument("--state", default="fp32", help="data type of m and v")
p.add_argument("--seed", type=int, default=random.randrange(10 ** 6))
p.add_argument("--keep", action="store_true")
args = p.parse_args()
random.seed(args.seed)
print(f"faults.py: seed {args.seed}")
complaints = []
# in memory: on a disk the fsyncs of a thousand saves take longer than all else
tmp = tempfile.mkdtemp(prefix="mt-faults.", dir=SHM)
try:
    subprocess.run([sys.executable, os.path.join(TOP, "tests", "lib", "mksafetensors.py"), "make",
                    os.path.join(tmp, "model"), "--set", "num_hidden_layers=1"], check=True)
    create()
    do("mt-store", "init", RUN, "--seed", 7)
    do("mt-ckpt", "save", RUN, os.path.join(tmp, "ckpt"))
    do("mt-ckpt", "load", RUN, os.path.join(tmp, "model"))
    do("mt-ckpt", "export", RUN, os.path.join(tmp, "exported"))
    do("mt-store", "rm", RUN)
    for name in args.commands or [*CASES, "kill"]:
        kills() if name == "kill" else inject(name)
finally:
    subprocess.run(command("mt-store", "rm", RUN, "--force"), stderr=subprocess.DEVNULL)
    if args.keep:
        print(tmp)
    else:
        shutil.rmtree(tmp)
print(f"faults.py: {len(complaints)} complaints")
sys.exit(bool(complaints))

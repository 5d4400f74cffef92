"""lib.py: what gpu-check and gpu-bench share: runs of mt, the machine's description. Nothing but Python's own library."""

import array
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MT = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
GOLDEN = os.path.join(TOP, "tests", "golden")
RESULTS = os.path.join(TOP, "tests", "gpu", "results")
os.environ["PATH"] = f"{MT}:{os.path.join(BUILD, 'probes')}:{os.environ['PATH']}"


def find_cublas():
    """cuBLASLt in a Python wheel, where the loader does not find one by itself"""
    import ctypes
    import glob

    for name in ("libcublasLt.so.13", "libcublasLt.so.12"):
        try:
            ctypes.CDLL(name)
            return
        except OSError:
            pass
    try:
        import nvidia
    except ImportError:
        return
    for path in nvidia.__path__:
        for found in sorted(glob.glob(os.path.join(path, "*", "lib", "libcublasLt.so.*"))):
            os.environ.setdefault("MT_CUBLASLT", found)


def words(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=TOP).stdout.strip()
    except OSError:
        return ""


def machine():
    with open("/proc/meminfo") as f:
        memory = int(f.readline().split()[1]) * 1024
    return {
        "gpu": words("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "commit": words("git", "rev-parse", "--short", "HEAD") or os.environ.get("MT_COMMIT", ""),
        "pidfds": hasattr(os, "pidfd_open") and pidfd_works(),
    }


def pidfd_works():
    try:
        os.close(os.pidfd_open(os.getpid()))
        return True
    except OSError:
        return False


class Run:
    """A run of mt and the stages that serve it; gone at the end of a with-block"""

    def __init__(self, name):
        self.name = f"gpu{os.getpid()}-{name}"[:32]
        self.stages = []
        self.dir = tempfile.mkdtemp(prefix="mt-gpu-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        subprocess.run(["mt-store", "rm", self.name, "--force"], capture_output=True)

    def do(self, *command, **kw):
        kw.setdefault("capture_output", True)
        done = subprocess.run([str(c) for c in command], text=True, **kw)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.returncode}: {done.stderr or ''}{self.errors()}")
        return done.stdout

    def start(self, *command):
        out = open(os.path.join(self.dir, f"{len(self.stages)}.err"), "w+")
        self.stages.append((subprocess.Popen([str(c) for c in command], stdout=out, stderr=out), out))

    def errors(self):
        text = ""
        for _, out in self.stages:
            out.seek(0)
            text += out.read()
        return text

    def stop(self):
        for p, _ in self.stages:
            p.send_signal(signal.SIGTERM)
        for p, _ in self.stages:
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        self.stages = []


def step(model, dtype, device, options=(), rows=5, seq=24, micros=1, streams=1, stream="mt-stream"):
    """One step of random rows: (sorted lines of hashes and losses, first micro-batch's gradients)"""
    with Run("step") as r:
        r.do("stream-drive", "make", r.name, os.path.join(GOLDEN, model, "model"), dtype, dtype, 1024, 7)
        for _ in range(streams):
            r.start(stream, r.name, "--device", device, "--chunk-tokens", 48, "--head-tokens", 40, *options)
        dump = os.path.join(r.dir, "dump")
        out = r.do("stream-drive", "step", r.name, rows, seq, micros, streams, 3, f"dump={dump}", timeout=120)
        with open(dump, "rb") as f:
            return sorted(out.splitlines()), array.array("f", f.read())


def distance(a, b):
    norm = math.sqrt(sum(x * x for x in a))
    if len(a) != len(b) or not norm:
        return math.inf
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b))) / norm


def save(name, what):
    os.makedirs(RESULTS, exist_ok=True)
    path = os.path.join(RESULTS, name)
    with open(path, "w") as f:
        json.dump(what, f, indent=1)
        f.write("\n")
    print(f"-> {os.path.relpath(path, TOP)}")


QUEUES = ("compute", "weights in", "gradients out")


def trace_account(path):
    """A file of mt-stream --trace: micro-batches' accounts, seconds by (queue, pass, operation), what cannot be"""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    micros = [e for e in events if e.get("cat") == "micro-batch"]
    ops, over, wrong, flop = {}, {}, [], 0
    for e in sorted((e for e in events if e["ph"] == "X" and e["tid"] < len(QUEUES)), key=lambda e: e["ts"]):
        queue, end = QUEUES[e["tid"]], e["ts"] + e["dur"]
        if not any(m["ts"] - 50 <= e["ts"] and end <= m["ts"] + m["dur"] + 50 for m in micros):
            wrong.append(f"{e['name']} of unit {e['args']['unit']} lies in no micro-batch")
        if e["ts"] < over.get(queue, 0) - 50:
            wrong.append(f"{queue}: {e['name']} of unit {e['args']['unit']} begins before the one before it is over")
        over[queue] = end
        row = ops.setdefault(f"{e['cat']}: {e['name']}, {queue}" if e["tid"] else f"{e['cat']}: {e['name']}",
                             {"seconds": 0, "times": 0, "flop": 0})
        row["seconds"] += e["dur"] / 1e6
        row["times"] += 1
        if "k" in e["args"]:
            row["flop"] += 2 * e["args"]["m"] * e["args"]["n"] * e["args"]["k"]
            flop += 2 * e["args"]["m"] * e["args"]["n"] * e["args"]["k"]
    if not micros:
        wrong.append("no whole micro-batch")
    if set(over) != set(QUEUES):
        wrong.append(f"nothing ran on {', '.join(set(QUEUES) - set(over))}")
    products = sum(r["seconds"] for r in ops.values() if r["flop"])
    return {"micros": [{"s": m["dur"] / 1e6, **m["args"]} for m in micros], "operations": ops, "wrong": wrong,
            "products_tflops": flop / products / 1e12 if products else 0}


def trace_table(account):
    lines = ["| pass: operation | s | times | TFLOP/s |", "| --- | --- | --- | --- |"]
    for name, o in sorted(account["operations"].items(), key=lambda i: -i[1]["seconds"]):
        rate = f"{o['flop'] / o['seconds'] / 1e12:.3g}" if o["flop"] and o["seconds"] else ""
        lines.append(f"| {name} | {o['seconds']:.4f} | {o['times']} | {rate} |")
    for m in account["micros"]:
        lines.append(f"step {m['step']}, micro-batch {m['micro']}: " + ", ".join(
            f"{k[:-2].replace('_', ' ')} {v:.3f} s" for k, v in m.items() if k.endswith("_s")))
    return "\n".join(lines)

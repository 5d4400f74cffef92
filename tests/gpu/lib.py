"""lib.py: what gpu-check and gpu-bench share: runs of mt, the machine, its memory, time. Needs only Python."""

import array
import atexit
import contextlib
import ctypes
import functools
import glob
import hashlib
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MT = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
GOLDEN = os.path.join(TOP, "tests", "golden")
CONFIGS = os.path.join(TOP, "tests", "configs")
RESULTS = os.environ.get("RESULTS", os.path.join(TOP, "tests", "gpu", "results"))
os.environ["PATH"] = f"{MT}:{os.path.join(BUILD, 'probes')}:{os.environ['PATH']}"
Failed = (RuntimeError, OSError, ValueError, KeyError, IndexError, MemoryError, zipfile.BadZipFile,
          subprocess.TimeoutExpired)


def report_bug(kind, error, where):
    """An exception that nothing expected: one line instead of a traceback"""
    places = []
    while where:
        places.append(f"{os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno}")
        where = where.tb_next
    text, program = " ".join(str(error).split())[:500], os.path.basename(sys.argv[0])
    print(f"{program}: {kind.__name__}: {text} ({' > '.join(places)})", file=sys.stderr, flush=True)


sys.excepthook = report_bug


# ---- time ----

class Budget:
    """Seconds left of a script's limit. `reserve` of them are kept for removing the run's memory. They are counted from
    GPU_BEGAN (seconds since 1970) if that is set, which includes make's build before the script."""

    def __init__(self, seconds):
        self.began = time.monotonic() - max(0.0, time.time() - float(os.environ.pop("GPU_BEGAN", None) or time.time()))
        self.seconds = seconds
        self.reserve = 0

    def left(self):
        return self.began + self.seconds - self.reserve - time.monotonic()

    def spent(self):
        return time.monotonic() - self.began

    def at_most(self, seconds):
        return max(1, min(seconds, self.left()))


def end_on_signals():
    """A signal raises an exception, so that no run and no stage is left"""
    def leave(number, _):
        raise SystemExit(128 + number)

    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(s, leave)


# ---- the machine ----

def wheels():
    """Directories of Python wheels that hold CUDA's libraries: nvidia/cu13, nvidia/cudnn, ..."""
    return sorted(d for path in sys.path for d in glob.glob(os.path.join(path, "nvidia", "*")) if os.path.isdir(d))


def nvcc():
    return shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")


def find_library(stem, variable, version):
    """A library as the loader finds it, or a wheel's path, also set in the variable; None: nowhere"""
    name = f"lib{stem}.so.{version}"
    for place in (name, f"/usr/local/cuda/lib64/{name}"):
        try:
            ctypes.CDLL(place)
            return place
        except OSError:
            pass
    for found in [os.environ.get(variable), *(os.path.join(d, "lib", name) for d in wheels())]:
        if found and os.path.exists(found):
            os.environ.setdefault(variable, found)
            return found
    return None


def find_libraries():
    """Let programs started from here find the wheels' libraries; cuDNN opens some of them by name. {library: where}"""
    own = [d for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d] + \
        glob.glob(os.path.join(TOP, "build", "gpu-deps", "usr", "lib", "*-linux-gnu"))
    os.environ["LD_LIBRARY_PATH"] = ":".join([*own, *(d for d in (os.path.join(w, "lib") for w in wheels())
                                                      if os.path.isdir(d) and d not in own)])
    major = (re.findall(r"release (\d+)", words(nvcc(), "--version")) or ["13"])[0]
    found = {f"libcublasLt.so.{major}": find_library("cublasLt", "MT_CUBLASLT", major),
             "libcudnn.so.9": find_library("cudnn", "MT_CUDNN", 9)}
    if not os.environ["LD_LIBRARY_PATH"]:
        del os.environ["LD_LIBRARY_PATH"]
    return found


def words(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=TOP, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def meminfo(key):
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def pidfd_works():
    try:
        os.close(os.pidfd_open(os.getpid()))
        return True
    except (OSError, AttributeError):
        return False


VERSION = """
import ctypes, sys
version = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])
version.restype = ctypes.c_size_t
n = version()
print(f"{n // 10000}.{n // 100 % 100}.{n % 100}")
"""


def versions(found):
    """{library: its version}, of what find_libraries returned, without loading them into this process"""
    ask = {"libcublasLt": "cublasLtGetVersion", "libcudnn": "cudnnGetVersion"}
    return {name.split(".")[0]: words(sys.executable, "-c", VERSION, place, ask[name.split(".")[0]]) or "unknown"
            for name, place in found.items() if place}


# What results of a kind depend on, beside the machine: files and folders below the top
OF_KERNELS = ("mt-stream/ops", "mt-stream/device/cuda", "tests/gpu/common.h")
OF_STEPS = ("shm", "mt-store", "mt-stream", "mt-optim", "mt-step")
DEPENDS = {
    "rates": ("tests/gpu/rates.c", "tests/gpu/common.h", "mt-optim", "mt-stream/device/cuda/gemm.c"),
    "kernels": (*OF_KERNELS, "tests/gpu/kernels.c", "tests/gpu/products.c", "tests/bench/mixer.h"),
    "operations": (*OF_KERNELS, "tests/probes", "tests/gpu/large.c"),
    "steps": OF_STEPS,
    "checks": (*OF_STEPS, "tests/gpu/check", "tests/gpu/lib.py"),
}
BESIDE = {"results", "sample", "score", "feed", "top", "run", "link", "tier"}     # folders that no step uses


@functools.cache
def sources(kind):
    """A hash of what results of that kind depend on: those of an earlier commit with the same one are not repeated"""
    h = hashlib.sha256()
    for place in DEPENDS[kind]:
        found = [os.path.join(TOP, place)] if os.path.isfile(os.path.join(TOP, place)) else []
        for folder, below, names in os.walk(os.path.join(TOP, place)):
            below[:] = sorted(set(below) - BESIDE)
            found += [os.path.join(folder, n) for n in sorted(names) if n.endswith((".c", ".h", ".cu"))]
        for path in found:
            with open(path, "rb") as f:
                h.update(f.read())
    return h.hexdigest()[:12]


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def machine(found, kind="checks"):
    """What a result of that kind depends on; `id` names what must be equal, so that it is not measured again: `place`
    (card, driver, libraries, processor) and the sources. found: what find_libraries returned"""
    commit = os.environ.get("MT_COMMIT") or words("git", "rev-parse", "--short", "HEAD")
    if commit and not os.environ.get("MT_COMMIT") and words("git", "status", "--porcelain", "--untracked-files=no",
                                                            "--", ".", ":!tests/gpu/results"):
        commit += "+"
    smi = words("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines()
    card, driver = smi[0].rsplit(", ", 1) if smi and ", " in smi[0] else ("", "")
    toolkit = (re.findall(r"release ([\d.]+)", words(nvcc(), "--version")) or [""])[0]
    same = {"card": card, "driver": driver, "libraries": {"nvcc": toolkit, **versions(found)}, "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0))}
    return of_kind({"place": hashlib.sha256(json.dumps(same).encode()).hexdigest()[:8], "commit": commit, **same,
                    "kernel": platform.release(), "memory": meminfo("MemTotal"), "available": meminfo("MemAvailable"),
                    "shm": free_in("/dev/shm"), "pidfds": pidfd_works(),
                    "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}, kind)


def of_kind(machine, kind):
    """The same machine, for results of another kind"""
    return {**machine, "id": f"{machine['place']}-{sources(kind)[:8]}", "sources": sources(kind)}


def gpu_bytes():
    """Memory of the first GPU; of the machine where it has none of its own (GB10: [N/A]); 0: no GPU"""
    found = words("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits").split()
    return 0 if not found else int(found[0]) << 20 if found[0].isdigit() else meminfo("MemTotal")


def gpu_joules(metrics):
    """What all GPUs took for the steps of these lines of mt-step; None: they do not count it"""
    found = [v for line in metrics for k, v in line.items() if re.fullmatch(r"gpu\d+_energy_j", k)]
    return sum(found) if found else None


# ---- memory for runs ----

def free_in(directory):
    try:
        s = os.statvfs(directory)
    except OSError:
        return 0
    return s.f_bavail * s.f_frsize


TOUCH = """
import mmap, sys, time
most, spare, held = int(sys.argv[1]), int(sys.argv[2]), []
def available():
    with open("/proc/meminfo") as f:
        return next(int(l.split()[1]) * 1024 for l in f if l.startswith("MemAvailable:"))
while len(held) << 26 < most:
    if available() < spare:
        time.sleep(0.05)
        continue
    m = mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, 1 << 26, 4096):
        m[at] = 1
    held.append(m)
sys.stdin.read()
"""


def wake_memory(need, limit=60, patience=10):
    """Some virtual machines get memory only as they use it. Several processes use all memory until `need` bytes would
    be available without them, for at most `limit` seconds, and at most `patience` seconds without growth. The kernel
    kills them before any other process. Returns the bytes that are available afterwards"""
    if meminfo("MemAvailable") >= need:
        return meminfo("MemAvailable")
    several = max(1, min(8, len(os.sched_getaffinity(0))))
    most, grew = meminfo("MemTotal"), time.monotonic()
    used, end = most - meminfo("MemAvailable"), grew + limit
    held = [subprocess.Popen([sys.executable, "-c", TOUCH, str(need // several), str(1 << 30)], stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(several)]
    try:
        for p in held:
            with contextlib.suppress(OSError), open(f"/proc/{p.pid}/oom_score_adj", "w") as f:
                f.write("1000")
        while most - used < need and time.monotonic() < min(end, grew + patience):
            time.sleep(0.1)
            if meminfo("MemTotal") > most:
                most, grew = meminfo("MemTotal"), time.monotonic()
    finally:
        for p in held:
            p.kill()
            p.wait()
            p.stdin.close()
    return meminfo("MemAvailable")


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def remove_left():
    """Remove the runs of scripts that were killed before they could"""
    for line in words("mt-store", "ls", "--json").splitlines():
        name = json.loads(line).get("run", "")
        pid = re.match(r"gpu(\d+)-", name)
        if pid and not lives(pid.group(1)):
            words("mt-store", "rm", name, "--force")


def unmount_own(libc, directory):
    MNT_DETACH = 2
    libc.umount2(directory.encode(), MNT_DETACH)
    os.rmdir(directory)


def mount_own(bytes_):
    """Mount a tmpfs in a new mount namespace, which ends with this process: its directory, or why not"""
    CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
    libc = ctypes.CDLL(None, use_errno=True)
    directory = tempfile.mkdtemp(prefix="mt-shm-")
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None):
        why = os.strerror(ctypes.get_errno())
        os.rmdir(directory)
        return None, f"a mount namespace of one's own: {why}"
    for options in (f"size={bytes_},mode=700,huge=advise", f"size={bytes_},mode=700"):
        if not libc.mount(b"mt", directory.encode(), b"tmpfs", ctypes.c_ulong(0), options.encode()):
            atexit.register(unmount_own, libc, directory)
            return directory, options
    why = os.strerror(ctypes.get_errno())
    os.rmdir(directory)
    return None, f"mounting a tmpfs: {why}"


def huge_pages_in(directory):
    """Can a file there get huge pages? By mount option, or by the kernel's default for /dev/shm"""
    def asked(mode):
        return mode in ("advise", "always", "within_size", "force")

    with open("/proc/mounts") as f:
        mounts = [line.split() for line in f]
    above = [m for m in mounts if os.path.realpath(directory) == m[1]]
    options = above[-1][3].split(",") if above else []
    given = [o[5:] for o in options if o.startswith("huge=")]
    if given:
        return asked(given[-1])
    default = words("cat", "/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return asked(default[default.find("[") + 1:default.find("]")])


def place_runs(bytes_, directory):
    """Set $MT_SHM_DIR to a directory with space for runs of that many bytes. Returns what was done, in words;
    RuntimeError: there is none. If /dev/shm has no huge pages, a large run goes to our own tmpfs: registering and Adam
    need them"""
    LARGE = 8 << 30
    if directory:
        os.environ["MT_SHM_DIR"] = directory
    here = os.environ.get("MT_SHM_DIR", "/dev/shm")
    room = free_in(here) >= bytes_
    if room and ("MT_SHM_DIR" in os.environ or bytes_ < LARGE or huge_pages_in(here)):
        return f"{here}, {free_in(here) / 2**30:.1f} GiB free"
    how = "as requested"
    if not directory:
        own, how = mount_own(bytes_ + (1 << 30))
        if own:
            os.environ["MT_SHM_DIR"] = own
            return f"a tmpfs of our own ({how}): /dev/shm has {free_in('/dev/shm') / 2**30:.1f} GiB free"
    if room:
        return f"{here}, {free_in(here) / 2**30:.1f} GiB free, on small pages ({how})"
    raise RuntimeError(f"{here} has {free_in(here) / 2**30:.1f} GiB free, {bytes_ / 2**30:.1f} are needed ({how}): "
                       "mount -o remount,size=SIZE /dev/shm, or --shm DIR on a larger tmpfs")


class Watch:
    """The peak use of GPU memory and host memory while this is open"""

    def __init__(self):
        self.gpu, self.host, self.over = 0, 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        while not self.over.wait(1.0):
            used = words("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").splitlines()
            if used and used[0].strip().isdigit():
                self.gpu = max(self.gpu, int(used[0]) << 20)
            self.host = max(self.host, meminfo("MemTotal") - meminfo("MemAvailable"))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


SENSORS = ("power.draw.instant", "clocks.sm", "temperature.gpu", "clocks_event_reasons.active")


class Sensors:
    """The first GPU's power (W), clock (MHz), temperature and what holds the clock down, every 100 ms until the end"""

    def __init__(self):
        self.rows = []
        with contextlib.suppress(OSError):
            p = subprocess.Popen(["nvidia-smi", "-i", "0", f"--query-gpu={','.join(SENSORS)}", "-lms", "100",
                                  "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True,
                                 stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            atexit.register(p.kill)
            threading.Thread(target=self.read, args=(p.stdout,), daemon=True).start()

    def read(self, lines):
        for line in lines:
            words = line.strip().split(", ")
            if len(words) == len(SENSORS) and words[0].replace(".", "", 1).isdigit() and words[1].isdigit():
                self.rows.append((time.monotonic(), float(words[0]), int(words[1]), words[3]))

    def since(self, began):
        """Means since then, and the share of time in which each reason held the clock down; {}: nothing was read"""
        rows = [r for r in self.rows if r[0] >= began]
        if not rows:
            return {}
        reasons = [r[3] for r in rows]
        return {"power_w": sum(r[1] for r in rows) / len(rows), "clock_mhz": sum(r[2] for r in rows) / len(rows),
                "power_most_w": max(r[1] for r in rows),
                "reasons": {r: reasons.count(r) / len(rows) for r in sorted(set(reasons))}}


# ---- runs ----

class Stopped(RuntimeError):
    """A program was stopped before its end; `out`: its stdout until then"""

    def __init__(self, why, out):
        super().__init__(why)
        self.out = out


class Run:
    """A run of mt and its stages; the end of a with-block removes all of them"""

    count = 0

    def __init__(self, name):
        Run.count += 1
        self.name = f"gpu{os.getpid()}-{Run.count}-{name}"[:32]
        self.stages, self.ended = [], []

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="mt-gpu-")
        return self

    def __exit__(self, *_):
        self.stop()
        subprocess.run(["mt-store", "rm", self.name, "--force"], capture_output=True, timeout=120)
        shutil.rmtree(self.dir, ignore_errors=True)

    def do(self, *command, **kw):
        """Run a program to its end. Returns its stdout. Raises Stopped if a stage dies meanwhile"""
        what, why, limit = " ".join(map(str, command))[:200], "", kw.pop("timeout", 120)
        end = time.monotonic() + limit
        argv = [str(c) for c in command]
        with subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw) as p:
            try:
                while True:
                    try:
                        out, err = p.communicate(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        dead = [q for q, _ in self.stages if q.poll() is not None and q not in self.ended]
                        if dead:
                            why = f"{what}: {dead[0].args[0]} ended with {dead[0].returncode}; {self.errors()}"
                        elif time.monotonic() > end:
                            why = f"{what}: not over after {limit:.0f} s; {self.errors()}"
                        if why:
                            p.kill()
            finally:
                if p.poll() is None:
                    p.kill()
        if why:
            raise Stopped(why, out)
        if p.returncode:
            raise RuntimeError(f"{what}: {p.returncode}: {err}{self.errors()}")
        return out

    def start(self, *command, **kw):
        out = open(os.path.join(self.dir, f"{len(self.stages)}.err"), "w+")
        p = subprocess.Popen([str(c) for c in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, **kw)
        self.stages.append((p, out))
        return p

    def end_all(self, program):
        """Kill the stages of that program; those that had ended by themselves count as ended too"""
        for p, _ in self.stages:
            if p.poll() is None and p.args[:len(program)] == program:
                p.kill()
                p.wait()
            if p.poll() is not None and p not in self.ended:
                self.ended.append(p)

    def stderr_of(self, p):
        """The stderr of one stage"""
        out = next(out for q, out in self.stages if q is p)
        out.seek(0)
        return out.read()

    def committed_step(self, limit=60):
        """The run's step, after the optimizer has finished it"""
        end = time.monotonic() + limit
        while True:
            stat = json.loads(self.do("mt-store", "stat", self.name, "--json"))
            if stat["txn"]["phase"] not in ("apply", "skip"):
                return stat["step"]
            if time.monotonic() > end:
                raise RuntimeError(f"the optimizer does not finish step {stat['txn']['step']}; {self.errors()}")
            time.sleep(0.05)

    def errors(self):
        text = ""
        for _, out in self.stages:
            out.seek(0)
            text += out.read()
        return text

    def end(self, p, wait=30):
        """End one stage, given its process. Returns its exit status"""
        self.ended.append(p)
        p.send_signal(signal.SIGTERM)
        try:
            return p.wait(wait)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            raise RuntimeError(f"{p.args[0]} did not end within {wait} s of SIGTERM; {self.errors()}")

    def stop(self):
        for p, _ in self.stages:
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for p, out in self.stages:
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
            out.close()
        self.stages = []


def records(path, rows, seq, vocab, seed=1):
    """Write `rows` documents of seq + 1 tokens, little-endian u32, each after its length, from one random sequence"""
    import random
    r = random.Random(seed)
    pool = array.array("I", r.choices(range(vocab), k=4 * seq + (1 << 18)))
    with open(path, "wb") as f:
        for _ in range(rows):
            at = r.randrange(len(pool) - seq - 1)
            array.array("I", [seq + 1]).tofile(f)
            pool[at:at + seq + 1].tofile(f)


# ---- comparing gradients ----

class Step:
    """A step of random rows: sorted hashes and losses, mt-stream's stderr, the first micro-batch's gradients"""

    def __init__(self, lines, stderr, values, tensors):
        self.lines, self.stderr, self.values, self.tensors = lines, stderr, values, tensors

    def losses(self):
        """The first micro-batch's {"loss": sum}, with "aux loss" and "z-loss" of models that have them"""
        found = (re.match(r"micro 0 (loss|aux loss|z-loss) (\S+)", line) for line in self.lines)
        return {m[1]: float.fromhex(m[2]) for m in found if m}


def step(config, dtype, device, options=(), rows=5, seq=24, micros=1, streams=1, stream="mt-stream", grad=None,
         plain=False, chunk=48, head=40, limit=120, stride=1, dump=True, env=None):
    """stride: keep only every stride-th value"""
    with Run("step") as r:
        r.do("stream-drive", "make", r.name, config, dtype, grad or dtype, max(1024, rows * seq), 7, timeout=limit)
        chunks = ("--chunk-tokens", chunk, "--head-tokens", head) if chunk else ()
        for _ in range(streams):
            r.start(*stream.split(), r.name, "--device", device, *chunks, "--verbose", *options, env=env)
        path = os.path.join(r.dir, "dump")
        extra = [f"dump={path}"] if dump else []
        out = r.do("stream-drive", "step", r.name, rows, seq, micros, streams, 3, f"limit={int(limit)}", *extra,
                   *(["plain"] if plain else []), timeout=limit + 30)
        stderr, values, tensors = r.errors(), array.array("f"), []
        if dump:
            with open(path, "rb") as f:
                values.frombytes(f.read())
            with open(path + ".map") as f:
                tensors = [(int(l.split()[0]), int(l.split()[1]), l.split()[2]) for l in f]
        if stride > 1:
            tensors, values = [(at // stride, max(1, n // stride), name) for at, n, name in tensors], values[::stride]
        return Step(sorted(out.splitlines()), stderr, values, tensors)


# How far a gradient may lie from the cpu's, as a share of its norm. fp32: sums in another order; the golden models
# differ by at most 2e-5. bf16: where a value is rounded up instead of down, later layers enlarge the difference. Each
# model's measure is how far the cpu's own bf16 step lies from its fp32 step: 0.3 % of the whole gradient, up to 25 %
# (gemma4, with these random weights). The device and the cpu differ by at most 2.1 times that, or by 0.044 of a tensor;
# allowed are 3 times, and BOUND. Where rounding sends one of 120 tokens to another expert, the gradients of experts and
# routers change by up to 0.49, of other tensors by up to 0.11: ROUTED and BESIDE_ROUTED are allowed. A gradient that
# nearly cancels (opt's bias of keys: 4e-10 of the whole) is all rounding, so REST of the whole gradient's norm is
# added. The whole gradient has no such allowances. Tried with faults in the emulated device's kernels (backward of
# norms without their weight, of rope turned the wrong way, of attention without the diagonal; tokens to experts without
# their weight): each model whose gradient a fault changes exceeds these bounds.
BOUND = {"fp32": 1e-4, "bf16": 6e-2}
ROUNDING, MOST, ROUTED, BESIDE_ROUTED = 3, 0.6, 0.6, 0.2
REST = {"fp32": 1e-7, "bf16": 1e-5}
LOSS = {"fp32": 1e-4, "bf16": 3e-3}     # of a loss; measured: 2e-8 and 6e-4
OF_ROUTING = re.compile(r"expert|router|moe|\.gate\.")


def squares(a, b=None):
    """The sum of squares of a, or of a - b; infinite if their sizes differ, or a value is not a number"""
    if b is not None and len(a) != len(b):
        return math.inf
    found = sum(x * x for x in a) if b is None else sum((x - y) ** 2 for x, y in zip(a, b))
    return found if found == found else math.inf


def gradient_distances(a, b, dtype, bound=None, exact=None):
    """[(distance / what is allowed, distance, allowed, tensor)] of two Steps' gradients, the worst first; also of the
    whole gradient; relative to b's norm. bound: instead of BOUND; exact: b's step in fp32, for bf16"""
    if [t[2] for t in a.tensors] != [t[2] for t in b.tensors] or not a.tensors:
        return [(math.inf, math.inf, 0.0, "not the same tensors")]
    sums = [(squares(a.values[i:i + n], b.values[i:i + n]), squares(b.values[i:i + n]),
             squares(b.values[i:i + n], exact.values[i:i + n]) if exact else 0.0) for i, n, _ in b.tensors]
    far, whole, rounding = (math.sqrt(sum(column)) for column in zip(*sums))
    routing = dtype == "bf16" and any(OF_ROUTING.search(t[2]) for t in b.tensors)

    def compared(name, far, size, rounding, least, rest):
        allowed = max(least * size, min(ROUNDING * rounding, MOST * size)) + rest
        ratio = far / allowed if allowed else math.inf if far else 0.0
        return ratio, far / size if size else ratio, allowed / size if size else 1.0, name

    bound = bound or BOUND[dtype]
    found = [compared("the whole gradient", far, whole, rounding, bound, 0.0)]
    for (_, _, name), three in zip(b.tensors, sums):
        least = max(bound, ROUTED if OF_ROUTING.search(name) else BESIDE_ROUTED) if routing else bound
        found.append(compared(name, *map(math.sqrt, three), least, REST[dtype] * whole))
    return sorted(found, key=lambda d: -d[0] if d[0] == d[0] else -math.inf)


def loss_distance(a, b):
    """The largest relative distance of two Steps' losses"""
    a, b = a.losses(), b.losses()
    return max(abs(a[k] - b[k]) / max(1e-9, abs(b[k])) for k in b) if b and a.keys() == b.keys() else math.inf


def plan_reported(stderr):
    """mt-stream's plan and prediction for a training micro-batch as a dict, from its stderr; {} if there is none"""
    line = next((l for l in stderr.splitlines() if ": train: " in l), "")
    guess = next((l for l in stderr.splitlines() if ": predicted by the rates of " in l), "")
    found = {"line": line.split(": train: ")[-1]} if line else {}
    if guess:
        found["predicted"] = guess.split(": predicted by ")[-1]
    for key, pattern, kind in (("all", r"(\d+) all,", int), ("but_gate_up", r"(\d+) all but gate and up", int),
                               ("attention", r"(\d+) attention's output", int), ("input", r"(\d+) their input", int),
                               ("mib", r": ([\d.]+) of [\d.]+ MiB of device memory", float),
                               ("budget_mib", r" of ([\d.]+) MiB of device memory", float),
                               ("host_mib", r"([\d.]+) MiB of host memory", float),
                               ("step_s", r"micro-batch(?:es)? ([\d.e+-]+) s\b", float)):
        m = re.search(pattern, f"{line}\n{guess}")
        if m:
            found[key] = kind(m.group(1))
    if line:
        found["inputs_to_host"] = "residuals offloaded" in line
        found["passes"] = "passes of" in line
    return found


# ---- results ----

def earlier(name):
    """An earlier command's results of that name; {} if there are none, or none that can be read"""
    try:
        with open(os.path.join(RESULTS, name)) as f:
            found = json.load(f)
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        print(f"{name} is not kept: {e}", flush=True)
        return {}


def save(name, what):
    """Write a file under results/, whole or not at all"""
    os.makedirs(RESULTS, exist_ok=True)
    path = os.path.join(RESULTS, name)
    with open(path + ".part", "w") as f:
        if isinstance(what, str):
            f.write(what)
        else:
            json.dump(what, f, indent=1)
            f.write("\n")
    os.replace(path + ".part", path)
    return os.path.relpath(path, TOP)


ARCHIVE_MOST = 15 << 20


def keep_trace(name, path):
    """Add a file to the archive of traces, whole or not at all; the archive stays below 15 MiB, to be sent easily"""
    os.makedirs(RESULTS, exist_ok=True)
    archive = os.path.join(RESULTS, "traces.zip")
    with contextlib.ExitStack() as files:
        new = files.enter_context(zipfile.ZipFile(archive + ".part", "w", zipfile.ZIP_DEFLATED))
        if os.path.exists(archive):
            old = files.enter_context(zipfile.ZipFile(archive))
            for n in old.namelist():
                if n != name:
                    new.writestr(n, old.read(n))
        new.write(path, name)
    if os.path.getsize(archive + ".part") > ARCHIVE_MOST:
        os.remove(archive + ".part")
        raise RuntimeError("the archive of traces is full")
    os.replace(archive + ".part", archive)


# ---- traces ----

QUEUES = ("compute", "weights in", "gradients out")


def trace_account(path):
    """A file of mt-stream --trace: micro-batches' accounts, seconds by (queue, pass, operation), contradictions"""
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

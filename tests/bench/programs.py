"""programs.py: starts and ends programs, and measures what they and others take of the machine. The end leaves no
process, no run, no shared memory, no file."""
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

from energy import Meter

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
MT = os.environ.get("MT", os.path.join(TOP, "bin"))
BUILD = os.environ.get("BUILD", os.path.join(TOP, "build"))
PYTHON = os.environ.get("MT_BENCH_PYTHON", "python3")
CPUS = sorted(os.sched_getaffinity(0))
CORES = len(CPUS)
TICK = os.sysconf("SC_CLK_TCK")
ANSWER_S = 900                  # limit of one answer of a Python program, including what it compiles first

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

children = []                   # Popen, newest last
runs = []                       # names
undo = []                       # commands that remove what else was made
shm = []                        # files of shared memory that are not a run's
scratch = tempfile.mkdtemp(prefix="mt-bench.")


def say(line=""):
    print(line, flush=True)


def config_path(name):
    return os.path.join(TOP, "tests/configs", name)


def program(name):
    return os.path.join(MT, name)


def mt(name, *args, **kw):
    """Run a program of mt to its end. Returns its stdout; shows its stderr if it fails"""
    done = subprocess.run([program(name), *map(str, args)], capture_output=True, text=True, **kw)
    if done.returncode:
        raise RuntimeError("%s: exit %d: %s" % (name, done.returncode, done.stderr.strip()))
    return done.stdout


def start(args, **kw):
    # a signal between the two would end us without the child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        child = subprocess.Popen(list(map(str, args)), **kw,
                                 preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
        children.append(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


def stop(child, wait_s=10):
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(wait_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child in children:
        children.remove(child)


def clean_up():
    for child in reversed(list(children)):
        stop(child)
    for name in list(runs):
        remove_run(name)
    for path in list(shm):
        remove_shm(path)
    for command in undo:
        subprocess.run(command, stderr=subprocess.DEVNULL)
    shutil.rmtree(scratch, ignore_errors=True)


def make_run(label, config, *options):
    name = "bench-%d-%s" % (os.getpid(), label)
    runs.append(name)
    mt("mt-store", "create", name, "--config", config, *options)
    return name


def remove_run(name):
    subprocess.run([program("mt-store"), "rm", name, "--force"], stderr=subprocess.DEVNULL)
    runs.remove(name)


def new_shm(label):
    shm.append("/dev/shm/mt-bench-%d-%s" % (os.getpid(), label))
    return shm[-1]


def remove_shm(path):
    if os.path.exists(path):
        os.unlink(path)
    shm.remove(path)


def json_lines(args):
    """The JSON lines that a program prints"""
    done = subprocess.run(list(map(str, args)), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("%s: exit %d: %s" % (os.path.basename(args[0]), done.returncode, done.stderr.strip()))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


# ---- programs in Python that wait between their rounds

class Missing(Exception):
    pass


class PythonSide:
    """A script of this directory: says {"missing": MODULE} or its versions, then answers each number of steps"""

    def __init__(self, script, *args, threads=CORES):
        command = [PYTHON, os.path.join(HERE, script), *args, "--threads", threads]
        try:
            self.log = tempfile.TemporaryFile(mode="w+")
            self.child = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        except OSError as e:
            raise Missing("%s: %s" % (PYTHON, e.strerror))
        self.script = script
        ready = self.answer()
        if "missing" in ready:
            stop(self.child)
            raise Missing("%s has no %s" % (PYTHON, ready["missing"]))
        self.versions = ready

    def answer(self):
        signal.alarm(ANSWER_S)
        line = self.child.stdout.readline()
        signal.alarm(0)
        if not line:
            self.log.seek(0)
            raise RuntimeError("%s: %s" % (self.script, (self.log.read().strip().splitlines() or ["ended"])[-1]))
        return json.loads(line)

    def pids(self):
        return {self.script: self.child.pid}

    def round(self, steps):
        self.child.stdin.write("%d\n" % steps)
        self.child.stdin.flush()
        return self.answer()

    def close(self):
        stop(self.child)


# ---- CPU time during a measurement

def cpu_seconds(pid):
    """user and system time of a process so far"""
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def busy_seconds():
    """CPU time of all cores, with what a hypervisor took from them"""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


class Watch:
    """CPU time of named processes over an interval, energy, and the share of the machine that others used"""

    def __init__(self, pids=()):
        self.pids = dict(pids)
        self.cpu = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        self.busy = busy_seconds()
        self.own = sum(os.times()[:4])
        self.meter = Meter()
        self.wall = time.monotonic()

    def end(self):
        wall = time.monotonic() - self.wall
        busy = busy_seconds() - self.busy
        cpu = {name: cpu_seconds(pid) - self.cpu[name] for name, pid in self.pids.items()}
        ours = sum(cpu.values()) + sum(os.times()[:4]) - self.own
        return {"wall_s": wall, "joules": self.meter.joules(), "cpu_s": cpu,
                "others": max(0.0, busy - ours) / (wall * (os.cpu_count() or 1))}


class Sides:
    """Times of commands that take turns, by label"""

    def __init__(self):
        self.seconds, self.cpu, self.shares = {}, {}, []

    def time(self, label, *args):
        """Run a command to its end, and add its time under a label"""
        before, watch = resource.getrusage(resource.RUSAGE_CHILDREN), Watch()
        done = subprocess.run(list(map(str, args)), capture_output=True, text=True)
        wall = time.monotonic() - watch.wall
        self.shares.append(watch.end()["others"])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError("%s: exit %d: %s" % (os.path.basename(args[0]), done.returncode, done.stderr.strip()))
        self.seconds.setdefault(label, []).append(wall)
        self.cpu.setdefault(label, []).append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def sums(self, label, *parts):
        """A label for what several labels take together, turn by turn"""
        for all_of in (self.seconds, self.cpu):
            all_of[label] = [sum(turn) for turn in zip(*(all_of[part] for part in parts))]

    def others(self):
        return statistics.mean(self.shares)


# ---- the machine

def first(path, pattern):
    try:
        with open(path) as f:
            found = re.search(pattern, f.read(), re.M)
            return found.group(1).strip() if found else None
    except OSError:
        return None


def available_bytes():
    return int(first("/proc/meminfo", r"^MemAvailable:\s*(\d+)") or 0) * 1024

"""training.py: steps of mt beside PyTorch's (fp32, bf16), a step beside its busiest stage (overlap), and what a
checkpoint costs (stall)."""
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time

from programs import (BUILD, CORES, CPUS, Missing, PythonSide, Watch, config_path, make_run, mt, program, remove_run,
                      scratch, start, stop)

# name, config, rows a step, tokens a row, timed steps of a round after one that is not timed
MODELS = [
    ("demo", "demo.json", 8, 256, 8),
    ("97M", "bench-97m.json", 2, 512, 3),
    ("MoE", "bench-moe.json", 2, 512, 3),
    ("Qwen3-5", "bench-qwen3.5.json", 2, 512, 3),
]
LEARNING_RATE = 1e-4
BARS = {("demo", "PyTorch"): 1.6, ("demo", "PyTorch compiled"): 1.3, ("97M", "PyTorch"): 1.6,
        ("97M", "PyTorch compiled"): 1.5, ("MoE", "PyTorch"): 1.5, ("Qwen3-5", "PyTorch"): 2.0,
        ("demo", "PyTorch autocast"): 1.3, ("97M", "PyTorch autocast"): 1.3}


def vocabulary(config):
    with open(config) as f:
        return json.load(f)["vocab_size"]


def write_records(path, rows, seq, vocab):
    """Write `rows` random documents of seq tokens, each one row, the same every time"""
    r = random.Random(1)
    with open(path, "wb") as f:
        for _ in range(rows):
            f.write(struct.pack("<%dI" % (seq + 1), seq, *(r.randrange(vocab) for _ in range(seq))))


class MtSide:
    """A run with its stages; a round is one mt-step, which continues where the last one stopped. create: options of
    mt-store; cpus: cores that all of it is pinned to; stream: mt-stream and its options; config: a model's directory
    has its weights loaded"""

    def __init__(self, label, config, batch, seq, records, create=(), compute=None, micro=None, cpus=None,
                 threads=None, stream=("mt-stream",)):
        self.name = "mt --compute " + compute if compute else "mt"
        self.batch, self.seq, self.records, self.step = batch, seq, records, 0
        self.step_options = ["--micro", micro] if micro else []
        self.run = make_run(label + (compute or ""), config, "--step-tokens", batch * seq, *create)
        if os.path.isdir(config):
            mt("mt-ckpt", "load", self.run, config)
        else:
            mt("mt-store", "init", self.run, "--seed", 1)
        self.log = tempfile.TemporaryFile(mode="w+")
        self.pin = ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []
        thread_options = ["--threads", threads] if threads else []
        compute_options = ["--compute", compute] if compute else []
        self.stream_options = [self.run, *thread_options, *compute_options]
        self.stages = {}
        for stage, *options in (("mt-store", "serve", self.run), ("mt-optim", self.run, *thread_options),
                                (*stream, *self.stream_options)):
            self.add(stage, options, self.pin)
        self.versions = {"mt": mt("mt-store", "--version").split()[-1]}

    def add(self, stage, options, pin=(), env=None):
        self.stages[os.path.basename(stage)] = start([*pin, program(stage), *options], stdin=subprocess.DEVNULL,
                                                     stdout=subprocess.DEVNULL, stderr=self.log,
                                                     env={**os.environ, **(env or {})})

    def stream_again(self, env, more):
        """Another mt-stream in place of the one that serves: with these variables, and more options"""
        stop(self.stages["mt-stream"])
        self.add("mt-stream", [*self.stream_options, *more], self.pin, env)

    def pids(self):
        return {name: child.pid for name, child in self.stages.items()}

    def round(self, steps, *more, each=lambda: None):
        """each: called after each step"""
        self.step += steps
        command = [*self.pin, program("mt-step"), self.run, "--steps", 1000000, "--until", self.step, "--batch",
                   self.batch, "--seq", self.seq, "--lr", LEARNING_RATE, "--schedule", "constant", "--pack", "none",
                   *self.step_options, *more]
        with open(self.records, "rb") as f, tempfile.TemporaryFile(mode="w+") as errors:
            child = start(command, stdin=f, stdout=subprocess.PIPE, stderr=errors, text=True)
            metrics = []
            for line in child.stdout:
                metrics.append(json.loads(line))
                each()
            code = child.wait()
            stop(child)
            if code:
                errors.seek(0)
                self.log.seek(0)
                raise RuntimeError("mt-step: exit %d: %s; stages: %s" %
                                   (code, errors.read().strip(), self.log.read().strip()))
        if len(metrics) != steps or any(m["tokens"] != self.batch * (self.seq - 1) for m in metrics):
            raise RuntimeError("mt-step: not %d steps of %d targets: %s" %
                               (steps, self.batch * (self.seq - 1), metrics))
        return {"losses": [m["loss"] for m in metrics], "seconds": [m["time_s"] for m in metrics]}

    def stat(self):
        return json.loads(mt("mt-store", "stat", self.run, "--json"))

    def counter(self, stage, name):
        """A counter's sum over the stages of a program; they are named "mt-optim", "mt-stream 0" """
        return sum(s["counters"][name] for s in self.stat()["stages"] if s["stage"].split()[0] == stage)

    def close(self):
        for name in reversed(list(self.stages)):
            stop(self.stages[name])
        remove_run(self.run)


# ---- fp32, bf16: mt and PyTorch in turns

class TorchSide(PythonSide):
    def __init__(self, name, model, dtype, batch, seq, records, *more):
        self.name = name
        super().__init__("torch_train.py", model, records, "--batch", batch, "--seq", seq, "--dtype", dtype, "--lr",
                         LEARNING_RATE, *more)


def export_model(label, config, dtype="fp32"):
    """Export the random weights that mt starts from, so that PyTorch starts from them too"""
    path = os.path.join(scratch, label + "." + dtype)
    if not os.path.exists(path):
        name = make_run("export", config, "--dtype", "fp32")
        mt("mt-store", "init", name, "--seed", 1)
        mt("mt-ckpt", "export", name, path, "--dtype", dtype)
        remove_run(name)
    return path


def take_turns(sides, rounds, timed):
    """Rounds of each side in turn; the first step of a round is not timed, because caches and threads are cold"""
    keys = "seconds", "losses", "medians", "cpu_s", "joules", "others"
    results = {s.name: {key: [] for key in keys} for s in sides}
    for _ in range(rounds):
        for side in sides:
            watch = Watch(side.pids())
            answer = side.round(timed + 1)
            seen, r = watch.end(), results[side.name]
            r["losses"] += answer["losses"]
            r["seconds"] += answer["seconds"][1:]
            r["medians"].append(statistics.median(answer["seconds"][1:]))
            r["cpu_s"].append(sum(seen["cpu_s"].values()) / (timed + 1))
            r["joules"].append(seen["joules"] and seen["joules"] / (timed + 1))
            r["others"].append(seen["others"])
    return results


def far_apart(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def make_sides(model, dtype, options, records):
    """Sides, and why PyTorch is none of them"""
    name, config, batch, seq, _ = model
    config = config_path(config)
    computes = (None, "fp32") if dtype == "bf16" else (None,)
    sides = [MtSide(name, config, batch, seq, records, ("--dtype", dtype, "--grad", "fp32"), c) for c in computes]
    if options.no_torch:
        return sides, None
    path = export_model(name, config)
    try:
        for compiled in (False, True) if options.compile else (False,):
            peer = "PyTorch" + (" compiled" if compiled else "") + (" autocast" if dtype == "bf16" else "")
            sides.append(TorchSide(peer, path, dtype, batch, seq, records, *(["--compile"] if compiled else [])))
    except Missing as e:
        return sides, str(e)
    return sides, None


def measure_peak(part):
    """GFLOP/s of multiply-adds on registers alone, on as many threads as mt has, by the fastest instruction that is
    allowed, and its name"""
    done = subprocess.run([os.path.join(BUILD, "bench/peak"), str(CORES)], capture_output=True, text=True, check=True)
    peak = json.loads(done.stdout)
    dtype = part if peak[part] and peak[part] > peak["fp32"] else "fp32"
    return peak[dtype], peak[dtype + "_by"]


def gflop_of_step(config, batch, seq):
    """Model FLOPs of a step, as mt-plan counts them: 6 for each weight and token, and causal attention"""
    plan = json.loads(mt("mt-plan", "--config", config, "--batch", batch, "--seq", seq, "--profile", "H100", "--json"))
    return plan["model_tflops"] * 1e3 * plan["step_s"]


def energy_row(table, part, shape, tokens, ours, peer=None, theirs=None):
    ours, theirs = (None if not side or None in side["joules"] else [joules / tokens for joules in side["joules"]]
                    for side in (ours, theirs))
    table.add(part, "energy", ours, "J/token", peer, theirs, model=shape, higher_is_better=False,
              note=None if ours else "neither RAPL nor NVML can be read here")


def compare_training(table, part, shape, tokens, ours, peer, r, bar=None):
    """Rows of one peer: the steps, their CPU time and energy, and whether both computed the same"""
    others = statistics.mean(ours["others"] + r["others"])
    for side in (ours, r):
        side["tokens_per_s"] = [tokens / s for s in side["seconds"]]
    turns = [b / a for a, b in zip(ours["medians"], r["medians"])]
    table.add(part, "training", ours["tokens_per_s"], "tokens/s", peer, r["tokens_per_s"], turns, model=shape,
              share=ours.get("share"), others=others, bar=bar and "ratio >= %g" % bar)
    table.add(part, "CPU time of a step", ours["cpu_s"], "s", peer, r["cpu_s"], model=shape)
    energy_row(table, part, shape, tokens, ours, peer, r)
    if not peer.startswith("mt "):
        table.add(part, "greatest difference of a step's loss", far_apart(ours["losses"], r["losses"]), "of the loss",
                  model=shape, note="from " + peer)


def bench_training(table, part, options):
    for model in MODELS:
        name, config, batch, seq, timed = model
        if name not in options.models:
            continue
        shape = "%s, %d rows of %d" % (name, batch, seq)
        records = os.path.join(scratch, name + ".records")
        write_records(records, options.rounds * (timed + 1) * batch, seq, vocabulary(config_path(config)))
        sides, why = make_sides(model, part, options, records)
        peaks = [measure_peak(part)]
        results = take_turns(sides, options.rounds, timed)
        peaks.append(measure_peak(part))
        for s in sides:
            table.versions(s.versions)
            s.close()
        ours = results.pop("mt")
        gflop = gflop_of_step(config_path(config), batch, seq)
        ours["share"] = gflop / statistics.median(ours["seconds"]) / max(peaks)[0]
        table.add(part, "peak of multiply-adds", [gflops for gflops, _ in peaks], "GFLOP/s", model=shape,
                  note="%s, %d threads; a step has %.1f GFLOP" % (peaks[0][1], CORES, gflop))
        for peer, r in results.items():
            compare_training(table, part, shape, batch * seq, ours, peer, r, BARS.get((name, peer)))
        if not any(peer.startswith("PyTorch") for peer in results):
            table.add(part, "training", [batch * seq / s for s in ours["seconds"]], "tokens/s", "PyTorch", model=shape,
                      share=ours["share"], others=statistics.mean(ours["others"]), note=why or "--no-torch")
            energy_row(table, part, shape, batch * seq, ours)


# ---- overlap: a step beside the time in which its busiest stage works

def busy(side):
    """Seconds that each stage has worked so far. mt-stream measures its micro-batches without the waits in which
    compute was at rest, too. mt-optim: its CPU time on each of its threads, or its updates, which is longer: both are
    less than it worked"""
    stream = side.counter("mt-stream", "busy_ns") / 1e9
    update = (side.counter("mt-optim", "update_ns") - side.counter("mt-optim", "snapshot_wait_ns")) / 1e9
    return {"mt-stream": stream, "mt-optim": update}


def overlap_of(side, rounds, steps):
    """Mean seconds of a step and of the busiest stage in a step, by round; the name of that stage. The counters are
    of whole rounds, so the first step of a round counts on both sides."""
    side.round(2)
    seconds, stages, others = [], {}, []
    for _ in range(rounds):
        before, watch = busy(side), Watch(side.pids())
        seconds.append(statistics.mean(side.round(steps)["seconds"]))
        seen, after = watch.end(), busy(side)
        others.append(seen["others"])
        after["mt-optim"] = max(after["mt-optim"], before["mt-optim"] + seen["cpu_s"]["mt-optim"] / max(1, CORES // 2))
        for stage in after:
            stages.setdefault(stage, []).append((after[stage] - before[stage]) / steps)
    busiest = max(stages, key=lambda stage: sum(stages[stage]))
    return seconds, stages[busiest], busiest, statistics.mean(others)


def bench_overlap(table, part, options):
    for name, config, batch, seq, timed in MODELS[:2]:
        if name not in options.models:
            continue
        steps = 3 if options.quick else 4 * timed
        records = os.path.join(scratch, name + ".overlap")
        write_records(records, (2 + options.rounds * steps) * batch, seq, vocabulary(config_path(config)))
        for micros, what in ((1, "one micro-batch"), (min(batch, 4), "%d micro-batches" % min(batch, 4))):
            side = MtSide("overlap", config_path(config), batch, seq, records, ("--dtype", "bf16"),
                          micro=batch // micros)
            seconds, stage, busiest, others = overlap_of(side, options.rounds, steps)
            side.close()
            table.add(part, "step of " + what, seconds, "s", "%s works" % busiest, stage, bar="ratio <= 1.05",
                      model="%s bf16, %d rows of %d" % (name, batch, seq), others=others)


# ---- stall: steps during saves beside steps after them

SAVE_EVERY = 16                 # steps; a save is under way in the first two after it was asked for
PAIRS = 4                       # of a round
LEAST_PAIRS = 6                 # fewer have no 95 % interval


def save_time(path):
    """When a checkpoint began and ended: the birth of its directory and the rename. None: it has not ended"""
    times = subprocess.run(["stat", "-c", "%.3W %.3Z", path], capture_output=True, text=True).stdout.split()
    return tuple(map(float, times)) if times else None


def thread_seconds(pids):
    """CPU time of all threads of processes, in more digits than cpu_seconds() has"""
    ns = 0
    for pid in pids:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/schedstat" % (pid, task)) as f:
                ns += int(f.read().split()[0])
    return ns / 1e9


class Stall:
    """Pairs of two steps during a save and the steps after them: seconds of a step, and its CPU time in mt-stream
    and mt-optim"""

    def __init__(self):
        self.seconds, self.cpu_s, self.save_s = ([], []), ([], []), []
        self.longer = 0         # saves that took more than two steps, whose pairs do not count

    def add(self, ends, cpu, save):
        """ends, cpu: when the step before the pair and the pair's steps ended, and CPU time so far"""
        if save:
            self.save_s.append(save[1] - save[0])
        if not save or save[1] > ends[2]:
            self.longer += 1
            return
        for values, at in ((self.seconds, ends), (self.cpu_s, cpu)):
            values[0].append((at[2] - at[0]) / 2)
            values[1].append((at[-1] - at[2]) / (len(at) - 3))


def measure_stall(side, saves, pairs):
    """A Stall, the share of the saves in which the update waited, mt-ckpt's CPU time of a save, others"""
    stall, ends, cpu, first = Stall(), [], [], side.step
    training = [side.stages[name].pid for name in ("mt-stream", "mt-optim")]

    def step_over():
        ends.append(time.time())
        cpu.append(thread_seconds(training))
        if len(ends) > SAVE_EVERY and len(ends) % SAVE_EVERY == 0:
            save = save_time(os.path.join(saves, "step-%08d" % (first + len(ends) - SAVE_EVERY)))
            stall.add(ends[-SAVE_EVERY - 1:], cpu[-SAVE_EVERY - 1:], save)

    waited, watch = side.counter("mt-optim", "snapshot_wait_ns"), Watch(side.pids())
    side.round(SAVE_EVERY * (pairs + 1), "--ckpt-every", SAVE_EVERY, each=step_over)
    seen, waited = watch.end(), (side.counter("mt-optim", "snapshot_wait_ns") - waited) / 1e9
    return stall, waited / sum(stall.save_s), seen["cpu_s"]["mt-ckpt"] / (pairs + 1), seen["others"]


def stall_rows(table, part, shape, measured):
    stall, waits, cpu_s, others = measured
    bar = "ratio_high <= 1.01" if "pinned" in shape else None
    enough = len(stall.cpu_s[0]) >= LEAST_PAIRS
    note = "95 %% interval of the median of %d pairs" % len(stall.cpu_s[0]) if enough else "skipped: too few pairs"
    if stall.longer:
        note += "; %d saves took longer than two steps" % stall.longer
    for what, (during, after) in (("step during a save", stall.seconds),
                                  ("CPU time of a step during a save", stall.cpu_s)):
        if not enough:
            during = after = None
        table.add(part, what, during, "s", "after the save", after, pairs=True, bar=bar, model=shape, others=others,
                  note=note)
    table.add(part, "a save takes", stall.save_s, "s", model=shape)
    table.add(part, "CPU time of a save", cpu_s, "s", model=shape)
    table.add(part, "share of a save in which the update waits for it", waits, "of it", model=shape,
              bar="value <= 0.01")


def bench_stall(table, part, options):
    """With all cores, and with training on all cores but one, which the saver has for itself"""
    batch, seq, pairs = 1, 256, PAIRS * options.rounds
    config = config_path("bench-97m.json")
    records, saves = os.path.join(scratch, "stall"), os.path.join(scratch, "saves")
    write_records(records, (2 + pairs) * SAVE_EVERY * batch, seq, vocabulary(config))
    for pinned in (False, True):
        if pinned and CORES < 2:
            table.add(part, "step during a save", None, "s", "after the save", bar="ratio_high <= 1.01",
                      note="skipped: needs a core for training and one for mt-ckpt")
            continue
        trainers = CPUS[:-1] if pinned else None
        side = MtSide("stall", config, batch, seq, records, ("--dtype", "fp32", "--grad", "fp32"), cpus=trainers,
                      threads=len(trainers) if pinned else None)
        side.add("mt-ckpt", ["serve", side.run, "--dir", saves, "--keep", 3],
                 ["taskset", "-c", str(CPUS[-1])] if pinned else [])
        side.round(SAVE_EVERY)
        measured = measure_stall(side, saves, pairs)
        side.close()
        shutil.rmtree(saves)
        shape = "97M fp32, " + ("pinned to %d of %d cores" % (CORES - 1, CORES) if pinned else "all cores")
        stall_rows(table, part, shape, measured)

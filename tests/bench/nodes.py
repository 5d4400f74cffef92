"""nodes.py: a run on several nodes beside the same run on one machine. The nodes are processes of this machine, each on
one core: so the network costs what copies in memory cost."""
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from programs import CORES, CPUS, HERE, MT, Watch, config_path, program, remove_run, runs, scratch, start, stop
from training import MODELS, MtSide, vocabulary, write_records

NODES = 2
START_S = 120


# Open MPI starts as root only with these
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Nodes:
    """The nodes' stages, started by mpirun. mpi: its options, where nodes are not processes of this machine; where: a
    command that starts it; more: arguments of ./node"""

    def __init__(self, label, config, step_tokens, mpi=(), *more, where=()):
        base = "bench-%d-%s" % (os.getpid(), label)
        self.names = ["%s-%d" % (base, r) for r in range(NODES)]
        runs.extend(self.names)
        self.log = tempfile.TemporaryFile(mode="w+")
        self.mpirun = start([*where, "mpirun", *(mpi or ["-n", NODES, "--oversubscribe"]), "--bind-to", "none", "sh",
                             os.path.join(HERE, "node"), base, config, step_tokens, *more], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=self.log, env={**os.environ, **ROOT, "MT": MT})
        until = time.time() + START_S
        while not self.connected():
            if time.time() > until or self.mpirun.poll() is not None:
                self.log.seek(0)
                raise RuntimeError("the nodes do not start: " + self.log.read().strip())
            time.sleep(0.1)

    def stages_of(self, run):
        done = subprocess.run([program("mt-store"), "stat", run, "--json"], capture_output=True, text=True)
        return json.loads(done.stdout)["stages"] if done.returncode == 0 else []

    def close(self):
        stop(self.mpirun, 30)
        for name in self.names:
            remove_run(name)


class NodesSide(Nodes, MtSide):
    """Nodes that train; mt-step is started on node 0"""

    def __init__(self, label, config, batch, seq, records, mpi=(), where=()):
        super().__init__(label, config, batch * seq, mpi, where=where)
        self.name, self.run, self.stages = "%d nodes" % NODES, self.names[0], {}
        self.batch, self.seq, self.records, self.step = batch, seq, records, 0
        self.step_options, self.pin = ["--micro", batch // NODES], ["taskset", "-c", str(CPUS[0])]

    def connected(self):
        return sum(s["stage"].startswith("mt-stream") for s in self.stages_of(self.names[0])) == NODES

    def pids(self):
        found = {}
        for r, run in enumerate(self.names):
            stages = {s["stage"]: s["pid"] for s in self.stages_of(run)}
            for stage, pid in stages.items():       # mt-link also holds the slots of other nodes' stages
                if stage == "mt-link" or pid != stages.get("mt-link"):
                    found["%s of node %d" % (stage, r)] = pid
        return found


def measure(sides, rounds, timed):
    """Medians of a step's seconds, CPU time of all mt-links in a step, others: lists of the rounds, by side"""
    results = [{"seconds": [], "links": [], "others": []} for _ in sides]
    for _ in range(rounds):
        for side, r in zip(sides, results):
            watch = Watch(side.pids())
            seconds = side.round(timed + 1)["seconds"][1:]
            seen = watch.end()
            r["seconds"].append(statistics.median(seconds))
            r["links"].append(sum(s for p, s in seen["cpu_s"].items() if p.startswith("mt-link")) / (timed + 1))
            r["others"].append(seen["others"])
    return results


def bench_nodes(table, part, options):
    what, bar = "step of %d nodes" % NODES, "ratio <= 1.1"
    for name, config, batch, seq, timed in MODELS[:2]:
        if name not in options.models:
            continue
        shape = "%s bf16, %d rows of %d, one core for each mt-stream" % (name, batch, seq)
        if CORES < NODES or not shutil.which("mpirun") or not os.path.exists(program("mt-link")):
            table.add(part, what, None, "s", "one machine", bar=bar, model=shape,
                      note="skipped: needs %d cores, mpirun and mt-link" % NODES)
            continue
        records = os.path.join(scratch, name + ".nodes")
        write_records(records, options.rounds * (timed + 1) * batch, seq, vocabulary(config_path(config)))
        common = (config_path(config), batch, seq, records)
        one = MtSide("one", *common, threads=1, micro=batch // NODES, cpus=CPUS[:NODES])
        one.stages["second mt-stream"] = start([*one.pin, program("mt-stream"), one.run, "--threads", 1],
                                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=one.log)
        sides = [one, NodesSide("nodes", *common)]
        ones, theirs = measure(sides, options.rounds, timed)
        for side in sides:
            side.close()
        table.add(part, what, theirs["seconds"], "s", "one machine", ones["seconds"], bar=bar, model=shape,
                  others=statistics.mean(ones["others"] + theirs["others"]))
        table.add(part, "CPU time of all mt-links in a step", theirs["links"], "s", model=shape)

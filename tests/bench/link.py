"""link.py: what mt-link carries between two nodes of this machine, beside a plain MPI program that sends the same
messages (ping.c)."""
import os
import shutil
import statistics

from nodes import NODES, ROOT, Nodes
from programs import BUILD, CORES, CPUS, Watch, json_lines, program
from scaling import config_of

LINK, PING = os.path.join(BUILD, "bench/link"), os.path.join(BUILD, "bench/ping")
TRANSPORTS = [("shared memory", "vader,self"), ("TCP", "tcp,self")]
SLOTS = 8                       # of a ring
RATE = 1                        # GB/s at which CPU time is compared


class LinkSide(Nodes):
    """Two nodes with nothing but mt-link"""

    def __init__(self, label, config, mpi):
        super().__init__(label, config, 512, ["-n", NODES, "--oversubscribe", *mpi], "link")
        # those that give and take have cores of their own where there are enough
        self.cpus = CPUS[NODES:2 * NODES] if CORES >= 2 * NODES else CPUS[:NODES]

    def connected(self):
        return all("mt-link" in [s["stage"] for s in self.stages_of(run)] for run in self.names)

    def carry(self, mib, *rate):
        return json_lines([LINK, *self.names, *self.cpus, mib, *rate])[0]


def ping(mpi, how, piece, mib, *rate):
    return json_lines(["mpirun", "-n", NODES, "--oversubscribe", "--bind-to", "none", *mpi, PING, how, mib, piece,
                       SLOTS, *rate])[0]


def bench_transport(table, part, options, transport, btl):
    mib, capped = (512, 256) if options.quick else (4096, 1024)
    mpi, shape = ["--mca", "btl", btl], "pieces of 1 MiB, " + transport
    turns = {"link": [], "spin": [], "sleep": [], "link at rate": [], "sleep at rate": []}
    side, watch = LinkSide("link", config_of(512, 1, 512), mpi), Watch()
    for _ in range(2 * options.rounds):
        piece = side.carry(64)["piece"]         # and wakes both up
        turns["link"].append(side.carry(mib))
        turns["spin"].append(ping(mpi, "spin", piece, mib))
        turns["sleep"].append(ping(mpi, "sleep", piece, mib))
        turns["link at rate"].append(side.carry(capped, RATE))
        turns["sleep at rate"].append(ping(mpi, "sleep", piece, capped, RATE))
    others = watch.end()["others"]
    side.close()
    values = {name: {key: [t[key] for t in of] for key in ("gb_per_s", "cpu_s_per_gb", "cpu_share")}
              for name, of in turns.items()}
    more = {"model": shape, "others": others}
    table.add(part, "rings that mt-link carries", values["link"]["gb_per_s"], "GB/s", "MPI that waits inside MPI",
              values["spin"]["gb_per_s"], bar="ratio >= 0.9", **more)
    table.add(part, "rings that mt-link carries", values["link"]["gb_per_s"], "GB/s", "MPI that sleeps 100 us",
              values["sleep"]["gb_per_s"], **more)
    table.add(part, "CPU time of both mt-links for a GB", values["link"]["cpu_s_per_gb"], "s",
              "MPI that waits inside MPI", values["spin"]["cpu_s_per_gb"], **more)
    ours, theirs = (values[name]["cpu_share"] for name in ("link at rate", "sleep at rate"))
    table.add(part, "CPU time of both mt-links at %d GB/s" % RATE, [100 * x for x in ours], "% of a core",
              "MPI that sleeps 100 us", [100 * x for x in theirs], **more)
    table.add(part, "CPU time in excess of MPI's at %d GB/s" % RATE, statistics.median(
        100 * (a - b) for a, b in zip(ours, theirs)), "% of a core", bar="value <= 10", **more)


def bench_link(table, part, options):
    missing = [path for path in (LINK, PING, program("mt-link")) if not os.path.exists(path)]
    if CORES < NODES or not shutil.which("mpirun") or missing:
        return table.add(part, "rings that mt-link carries", None, "GB/s", "MPI that waits inside MPI",
                         bar="ratio >= 0.9", note="skipped: needs %d cores, mpirun, mt-link and ping" % NODES)
    os.environ.update(ROOT)
    for transport, btl in TRANSPORTS:
        bench_transport(table, part, options, transport, btl)
    return None

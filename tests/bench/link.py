"""link.py: what mt-link carries between two nodes of this machine, beside a plain MPI program that sends the same
messages (ping.c)."""
import collections
import os
import shutil
import statistics

from network import can_make_namespaces, limit, make_namespaces, mpirun_options
from nodes import NODES, ROOT, Nodes
from programs import BUILD, CORES, CPUS, Watch, json_lines, program
from scaling import config_of

LINK, PING = os.path.join(BUILD, "bench/link"), os.path.join(BUILD, "bench/ping")
TRANSPORTS = [("shared memory", "vader,self"), ("TCP", "tcp,self")]
NETWORKS = [1000, 10000]        # Mbit/s
WHAT, BAR = "rings that mt-link carries", "ratio >= 0.9"
SLOTS = 8                       # of a ring
RATE = 1                        # GB/s at which CPU time is compared


class LinkSide(Nodes):
    """Two nodes with nothing but mt-link"""

    def __init__(self, label, config, mpi, where):
        super().__init__(label, config, 512, mpi, "link", where=where)
        # producers and consumers have separate cores where there are enough
        self.cpus = CPUS[NODES:2 * NODES] if CORES >= 2 * NODES else CPUS[:NODES]

    def connected(self):
        return all("mt-link" in [s["stage"] for s in self.stages_of(run)] for run in self.names)

    def carry(self, mib, *rate):
        return json_lines([LINK, *self.names, *self.cpus, mib, *rate])[0]


def ping(mpi, where, how, piece, mib, *rate):
    return json_lines([*where, "mpirun", *mpi, "--bind-to", "none", PING, how, mib, piece, SLOTS, *rate])[0]


def measure(mpi, where, rounds, mib, capped=0):
    """What mt-link and MPI did, by key of their lines: lists of the turns; and the share that others had. capped: so
    many MiB are carried at RATE, too"""
    turns = collections.defaultdict(list)
    side, watch = LinkSide("link", config_of(512, 1, 512), mpi, where), Watch()
    for _ in range(2 * rounds):
        piece = side.carry(64)["piece"]         # and wakes both up
        turns["link"].append(side.carry(mib))
        for how in ("spin", "sleep"):
            turns[how].append(ping(mpi, where, how, piece, mib))
        if capped:
            turns["link at rate"].append(side.carry(capped, RATE))
            turns["sleep at rate"].append(ping(mpi, where, "sleep", piece, capped, RATE))
    others = watch.end()["others"]
    side.close()
    return {name: {key: [t[key] for t in of] for key in ("gb_per_s", "cpu_s_per_gb", "cpu_share")}
            for name, of in turns.items()}, others


def add_speeds(table, part, values, more):
    table.add(part, WHAT, values["link"]["gb_per_s"], "GB/s", "MPI that waits inside MPI", values["spin"]["gb_per_s"],
              bar=BAR, **more)
    table.add(part, WHAT, values["link"]["gb_per_s"], "GB/s", "MPI that sleeps 100 us", values["sleep"]["gb_per_s"],
              **more)
    table.add(part, "CPU time of both mt-links for a GB", values["link"]["cpu_s_per_gb"], "s",
              "MPI that waits inside MPI", values["spin"]["cpu_s_per_gb"], **more)


def bench_transport(table, part, options, transport, btl):
    mib, capped = (512, 256) if options.quick else (4096, 1024)
    values, others = measure(["-n", NODES, "--oversubscribe", "--mca", "btl", btl], (), options.rounds, mib, capped)
    more = {"model": "pieces of 1 MiB, " + transport, "others": others}
    add_speeds(table, part, values, more)
    ours, theirs = (values[name]["cpu_share"] for name in ("link at rate", "sleep at rate"))
    table.add(part, "CPU time of both mt-links at %d GB/s" % RATE, [100 * x for x in ours], "% of a core",
              "MPI that sleeps 100 us", [100 * x for x in theirs], **more)
    table.add(part, "CPU time in excess of MPI's at %d GB/s" % RATE, statistics.median(
        100 * (a - b) for a, b in zip(ours, theirs)), "% of a core", bar="value <= 10", **more)


def bench_networks(table, part, options):
    """The same between network namespaces, where the network is slower than what mt-link can carry"""
    if not can_make_namespaces():
        return
    names = make_namespaces()
    for mbit in NETWORKS:
        limit(names, mbit)
        mib = int(mbit / 8 * (1 if options.quick else 4))       # seconds
        values, others = measure(mpirun_options(names, mbit), ["ip", "netns", "exec", names[0]], options.rounds, mib)
        add_speeds(table, part, values,
                   {"model": "pieces of 1 MiB, TCP at %g Gbit/s" % (mbit / 1000), "others": others})


def bench_link(table, part, options):
    missing = [path for path in (LINK, PING, program("mt-link")) if not os.path.exists(path)]
    if CORES < NODES or not shutil.which("mpirun") or missing:
        return table.add(part, WHAT, None, "GB/s", "MPI that waits inside MPI", bar=BAR,
                         note="skipped: needs %d cores, mpirun, mt-link and ping" % NODES)
    os.environ.update(ROOT)
    for transport, btl in TRANSPORTS:
        bench_transport(table, part, options, transport, btl)
    bench_networks(table, part, options)
    return None

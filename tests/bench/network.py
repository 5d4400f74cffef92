"""network.py: steps of two nodes in network namespaces, joined by a veth pair of a limited rate, beside the plan's."""
import functools
import json
import os
import shutil
import statistics
import subprocess

from nodes import NODES, NodesSide
from programs import CORES, CPUS, Watch, config_path, program, scratch, undo
from training import MODELS, vocabulary, write_records

NET = "10.99.1"
# model, tokens a row, Mbit/s; in the last one the network takes most of the step
CASES = [("demo", 256, 200), ("97M", 512, 1000), ("97M", 64, 1000)]
BURST_S = 0.004                 # what may leave at once: a timer that is late must not cost any of the rate
WHAT = "step of %d nodes on a network" % NODES
CARRIED = 1448 / 1514           # of the bytes of a packet of Ethernet, those that TCP carries
OFF, BAR = "the plan is off by", "value <= 20"


def ip(*args):
    done = subprocess.run(["ip", *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("ip %s: %s" % (" ".join(map(str, args)), done.stderr.strip()))


def can_make_namespaces():
    return not os.geteuid() and all(map(shutil.which, ("mpirun", "ip", "tc"))) and not subprocess.run(
        ["ip", "netns"], capture_output=True).returncode


@functools.cache
def make_namespaces():
    """Two of them with an end of a veth pair each, the same at each call; the end of the bench removes them"""
    names = ["mt-bench-%d-%s" % (os.getpid(), end) for end in "ab"]
    for name in names:
        ip("netns", "add", name)
        undo.append(["ip", "netns", "del", name])
    ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v1", "netns", names[1])
    for i, name in enumerate(names):
        ip("-n", name, "addr", "add", "%s.%d/24" % (NET, i + 1), "dev", "v%d" % i)
        for device in ("lo", "v%d" % i):
            ip("-n", name, "link", "set", device, "up")
    return names


def limit(names, mbit):
    burst = int(max(64 << 10, mbit * 1e6 / 8 * BURST_S))
    for i, name in enumerate(names):
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "v%d" % i, "root", "tbf", "rate",
                        "%dmbit" % mbit, "burst", str(burst), "latency", "50ms"], check=True)


def mpirun_options(names, mbit):
    """mpirun starts what it starts on another machine by a program that it calls instead of ssh: HOST COMMAND..."""
    agent = os.path.join(scratch, "agent")
    with open(agent, "w") as f:
        f.write('#!/bin/sh\nshift\nexec ip netns exec %s sh -c "$*"\n' % names[1])
    os.chmod(agent, 0o755)
    # what shm/link/README.md recommends; with small buffers, mt-link sleeps longer than they last on fast networks
    send = ["--mca", "btl_tcp_flags", "send", "--mca", "btl_tcp_sndbuf", "131072" if mbit <= 1000 else "0"]
    return [*send, "-host", ",".join("%s.%d:1" % (NET, i + 1) for i in range(NODES)), "-x", "MT", "--mca",
            "plm_rsh_agent", agent, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", NET + ".0/24", "--mca",
            "oob_tcp_if_include", NET + ".0/24"]


def planned(config, batch, seq, mbit):
    """Each node has one core; so has the plan"""
    args = ["taskset", "-c", CPUS[0], program("mt-stream"), "--plan", "--config", config, "--seq", seq, "--micro",
            batch // NODES, "--threads", 1, "--nodes", NODES, "--net", mbit / 8000 * CARRIED, "--json"]
    done = subprocess.run(list(map(str, args)), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("mt-stream --plan: " + done.stderr.strip())
    return json.loads(done.stdout)


def bench_network(table, part, options):
    if CORES < NODES or not can_make_namespaces() or not os.path.exists(program("mt-link")):
        return table.add(part, OFF, None, "%", bar=BAR,
                         note="skipped: needs %d cores, root, mpirun, mt-link, ip netns and tc" % NODES)
    try:
        names = make_namespaces()
    except RuntimeError as e:
        return table.add(part, OFF, None, "%", bar=BAR, note="skipped: %s" % e)
    for name, seq, mbit in CASES:
        if name not in options.models:
            continue
        limit(names, mbit)
        _, config, batch, _, timed = next(m for m in MODELS if m[0] == name)
        records = os.path.join(scratch, name + ".network")
        write_records(records, options.rounds * (timed + 1) * batch, seq, vocabulary(config_path(config)))
        side = NodesSide("net%d" % seq, config_path(config), batch, seq, records, mpirun_options(names, mbit),
                         ["ip", "netns", "exec", names[0]])
        seconds, plans, watch = [], [], Watch(side.pids())
        for _ in range(options.rounds):
            plans.append(planned(config_path(config), batch, seq, mbit))
            seconds.append(statistics.median(side.round(timed + 1)["seconds"][1:]))
        others = watch.end()["others"]
        side.close()
        plans = [p["step_s"] for p in plans]
        more = {"others": others, "model": "%s bf16, %d rows of %d, %d Mbit/s" % (name, batch, seq, mbit)}
        table.add(part, WHAT, seconds, "s", "the plan", plans, **more)
        table.add(part, OFF, [100 * abs(s / p - 1) for s, p in zip(seconds, plans)], "%", bar=BAR, **more)
    return None

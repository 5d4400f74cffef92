"""updates.py: AdamW's update (adam, peers), gradients added (accumulate), messages (ring), bytes a parameter
(memory)."""
import json
import os
import statistics

from programs import (BUILD, CORES, TOP, Missing, PythonSide, Watch, config_path, json_lines, make_run, mt, remove_run,
                      scratch)

# ---- adam: each loop on one thread; mt-optim's on all

ADAM = os.path.join(BUILD, "bench/adam")
PLAIN_LOOP = "reads and writes alone"
# Parameters/s of the fastest loops, as multiples of those with fp32 state and the same gradients
FASTER = {"state bf16": 1.35, "state int8": 1.6}


def loops_of(lines):
    """{loop: G parameters/s} of one run of build/bench/adam"""
    return {line["loop"]: line["gparams_per_s"] for line in lines}


def missing(table, part, what, unit, path):
    table.add(part, what, None, unit, note="skipped: %s is not built (make bench does)" % os.path.relpath(path, TOP))


def bench_adam(table, part, options):
    if not os.path.exists(ADAM):
        return missing(table, part, "update", "G parameters/s", ADAM)
    watch = Watch()
    millions = 4 if options.quick else 32
    runs = [json_lines([ADAM, millions]) for _ in range(1 if options.quick else 3)]
    others = watch.end()["others"]
    speed = {loop: [loops_of(lines)[loop] for lines in runs] for loop in loops_of(runs[0])}
    gb = {loop: [line["gb_per_s"] for lines in runs for line in lines if line["loop"] == loop] for loop in speed}
    shape = {"model": "1 thread", "size": millions << 20, "size_unit": "parameters", "others": others}
    for loop in gb:
        if loop != PLAIN_LOOP:
            table.add(part, loop, gb[loop], "GB/s", PLAIN_LOOP, gb[PLAIN_LOOP], **shape)
    isa = [loop for loop in speed if loop in ("scalar", "avx2", "avx512", "neon")][-1]
    for gradients in ("", ", gradients bf16"):
        for state, bar in FASTER.items():
            what = "%s, %s%s" % (isa, state, gradients)
            table.add(part, what, speed[what], "G parameters/s", isa + ", state fp32" + gradients,
                      speed[isa + gradients], bar="ratio >= %g" % bar, **shape)
    if CORES > 1:
        adam_on_all(table, part, millions, len(runs))


def adam_on_all(table, part, millions, rounds):
    """All threads share the memory's bandwidth, so there fewer bytes count for more than on one"""
    watch = Watch()
    runs = [loops_of(json_lines([ADAM, millions, CORES])) for _ in range(rounds)]
    others = watch.end()["others"]
    for state, bar in FASTER.items():
        table.add(part, "update, " + state, [r[state] for r in runs], "G parameters/s", "state fp32",
                  [r["state fp32"] for r in runs], bar="ratio >= %g" % bar, model="%d threads" % CORES,
                  size=millions << 20, size_unit="parameters", others=others)


# ---- peers: mt's update beside PyTorch's and DeepSpeed's, in turns

PEERS = (("torch", "torch AdamW fused", {}),
         ("deepspeed", "DeepSpeed cpu_adam", {"state fp32": 1.3, "state bf16": 1.7}))


class PeerSide(PythonSide):
    def __init__(self, optimizer, params, threads):
        super().__init__("peer_adam.py", optimizer, str(params), threads=threads)


def peer_sides(params, threads, torch_ok):
    """{peer: side, or why there is none}"""
    sides = {}
    for optimizer, peer, _ in PEERS:
        try:
            sides[peer] = PeerSide(optimizer, params, threads) if torch_ok else "--no-torch"
        except (Missing, RuntimeError) as e:
            sides[peer] = str(e)
    return sides


def peer_turns(sides, millions, threads, steps, rounds):
    """G parameters/s of the best update of each turn: mt's by loop, theirs by peer; and the share that others had"""
    ours, theirs, others = {}, {}, []
    for _ in range(rounds):
        watch = Watch()
        for loop, speed in loops_of(json_lines([ADAM, millions, threads])).items():
            ours.setdefault(loop, []).append(speed)
        others.append(watch.end()["others"])
        for peer, side in sides.items():
            if isinstance(side, PeerSide):
                watch = Watch(side.pids())
                theirs.setdefault(peer, []).append((millions << 20) / min(side.round(steps)["seconds"]) / 1e9)
                others.append(watch.end()["others"])
    return ours, theirs, statistics.mean(others)


def bench_peers(table, part, options):
    if not os.path.exists(ADAM):
        return missing(table, part, "update", "G parameters/s", ADAM)
    millions, steps = (4, 3) if options.quick else (32, 9)
    for threads in sorted({1, CORES}):
        sides = peer_sides(millions << 20, threads, not options.no_torch)
        ours, theirs, others = peer_turns(sides, millions, threads, steps, options.rounds)
        for side in sides.values():
            if isinstance(side, PeerSide):
                table.versions(side.versions)
                side.close()
        for _, peer, bars in PEERS:
            for loop, speed in ours.items():
                table.add(part, "update, " + loop, speed, "G parameters/s", peer, theirs.get(peer), others=others,
                          bar="ratio >= %g" % bars[loop] if loop in bars else None, size=millions << 20,
                          size_unit="parameters", model="1 thread" if threads == 1 else "%d threads" % threads,
                          note=None if peer in theirs else "skipped: " + sides[peer])


# ---- accumulate

def bench_accumulate(table, part, options):
    path = os.path.join(BUILD, "bench/accumulate")
    if not os.path.exists(path):
        return missing(table, part, "pieces added", "GB/s", path)
    watch, lines = Watch(), json_lines([path])
    others = watch.end()["others"]
    copied = {line["loop"][:4]: line["gb_per_s"] for line in lines if line["loop"].endswith("copied")}
    for line in lines:
        if not line["loop"].endswith("copied"):
            table.add(part, line["loop"], line["gb_per_s"], "GB/s", "copied", copied[line["loop"][:4]],
                      model="1 thread", others=others)


# ---- ring

def bench_ring(table, part, options):
    path = os.path.join(BUILD, "probes/shm-ring")
    if not os.path.exists(path):
        return missing(table, part, "messages of 64 bytes", "M messages/s", path)
    watch = Watch()
    lines = [line for _ in range(1 if options.quick else 5)
             for line in json_lines([path, "bench", 1, 200000 if options.quick else 5000000])]
    others = watch.end()["others"]
    speed = {key: [line[key] / 1e6 for line in lines] for key in lines[0]}

    def row(what, ring, peer=None, pipe=None, bar=None):
        table.add(part, "messages of 64 bytes, " + what, speed[ring], "M messages/s", peer, speed.get(pipe), bar=bar,
                  others=others)
    row("32 at once", "ring_batches", bar="value >= 20")
    row("32 at once", "ring_batches", "pipe, a message a write", "pipe")
    row("32 at once", "ring_batches", "pipe, 32 messages a write", "pipe_batches")
    row("one by one", "ring", "pipe, a message a write", "pipe", bar="ratio >= 5")


# ---- memory: sizes of the regions that a run has

# dtype, gradients, state, optimizer; the limits are on bytes a parameter of the 97M model
STATES = ("int8", "bf16", "fp32")
KINDS = [*[("bf16", grad, state, "adamw") for grad in ("none", "bf16", "fp32") for state in STATES],
         *[("bf16", "none", state, "lion") for state in STATES], ("fp32", "fp32", "fp32", "adamw")]
LIMITS = {("97M", *KINDS[0]): 6.2, ("97M", *KINDS[1]): 8.1}
# bytes of master weights, gradients, and m or v
MASTER, GRADIENTS, MOMENT = 4, {"none": 0, "bf16": 2, "fp32": 4}, {"fp32": 4, "bf16": 2, "int8": 1 + 4 / 64}

CONFIG_97M = config_path("bench-97m.json")


def wide_config():
    """A llama of 341 M parameters with tied embeddings: its arrays are much larger than their 2 MiB alignment"""
    with open(CONFIG_97M) as f:
        config = json.load(f)
    config.update(hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16,
                  num_key_value_heads=16, tie_word_embeddings=True)
    path = os.path.join(scratch, "wide.json")
    with open(path, "w") as f:
        json.dump(config, f)
    return path


def region_bytes(name):
    regions, directory = {}, os.environ.get("MT_SHM_DIR", "/dev/shm")
    for region in ("control", "rings", "store"):
        there = os.stat(os.path.join(directory, "mt.%d.%s.%s" % (os.getuid(), name, region)))
        regions[region] = max(there.st_size, there.st_blocks * 512)
    return regions


def memory_rows(table, part, model, config, kind):
    dtype, grad, state, optim = kind
    limit = LIMITS.get((model, *kind))
    designed = MASTER + GRADIENTS[grad] + MOMENT[state] * (2 if optim == "adamw" else 1)
    shape = {"model": "%s %s, --grad %s, --state %s" % (model, dtype, grad, state)
                      + ("" if optim == "adamw" else ", --optim " + optim)}
    try:
        name = make_run("memory", config, "--dtype", dtype, "--grad", grad, "--state", state, "--optim",
                        optim)
    except RuntimeError as e:                   # too little memory on this machine
        return table.add(part, "store", None, "bytes/parameter", note="skipped: %s" % e, **shape)
    regions = region_bytes(name)
    params = json.loads(mt("mt-store", "stat", name, "--json"))["params"]
    remove_run(name)
    shape.update(size=params, size_unit="parameters", higher_is_better=False)
    table.add(part, "store", regions["store"] / params, "bytes/parameter", "sum of the arrays", designed,
              bar="value <= %g" % limit if limit else None, **shape)
    table.add(part, "store, control and rings", sum(regions.values()) / params, "bytes/parameter", "sum of the arrays",
              designed, **shape)


def bench_memory(table, part, options):
    if options.quick:
        models, kinds = [("97M", CONFIG_97M)], KINDS[:2]
    else:
        models, kinds = [("97M", CONFIG_97M), ("341M", wide_config())], KINDS
    for model, config in models:
        for kind in kinds:
            memory_rows(table, part, model, config, kind)

"""scaling.py: the time of a step over parameters, threads and length of rows (scaling), and time and memory of a step
over depth, width, and depth of models of equal size (geometry), each with the exponent of a fitted power.

All runs are bf16 with --grad none and --state int8, the smallest state per parameter: so a billion parameters fit.
"""
import json
import os
import statistics

from programs import CORES, CPUS, Watch, available_bytes, first, scratch
from rows import fit, large
from training import MtSide, write_records

# name, hidden size, blocks of a llama with byte-level tokens and heads of 64
SIZES = [("1M", 128, 5), ("3M", 192, 7), ("10M", 320, 8), ("30M", 512, 9), ("100M", 768, 14), ("300M", 1024, 23),
         ("1B", 2048, 20)]
CREATE = ("--dtype", "bf16", "--grad", "none", "--state", "int8")
# of llamas as these: what grows, its unit, and (hidden size, blocks)
GEOMETRIES = [("depth", "blocks", [(512, 2), (512, 4), (512, 8), (512, 16), (512, 32)]),
              ("width", "hidden size", [(128, 8), (256, 8), (512, 8), (1024, 8)]),
              ("depth, of equal size", "blocks", [(1024, 2), (512, 8), (384, 14), (256, 32), (192, 57), (128, 128)])]
VOCABULARY = 256
BYTES = 6.2                     # of state, a parameter


def config_of(hidden, blocks, positions):
    path = os.path.join(scratch, "llama-%d-%d-%d.json" % (hidden, blocks, positions))
    with open(path, "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
                   "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": hidden * 11 // 4,
                   "num_hidden_layers": blocks, "num_attention_heads": hidden // 64, "rms_norm_eps": 1e-5,
                   "num_key_value_heads": hidden // 64, "max_position_embeddings": positions,
                   "tie_word_embeddings": False, "vocab_size": VOCABULARY}, f)
    return path


def parameters(hidden, blocks):
    return blocks * (4 * hidden ** 2 + 3 * hidden * (hidden * 11 // 4) + 2 * hidden) + 2 * VOCABULARY * hidden + hidden


def measure(label, config, batch, seq, budget_s, threads=None):
    """Seconds of steps: as many as take about budget_s, 3 to 30; others' share; bytes of memory, of which what several
    processes share counts once. With threads: pinned to that many cores"""
    records = os.path.join(scratch, "scaling-%d" % seq)
    write_records(records, 33 * batch, seq, VOCABULARY)
    side = MtSide("scaling-" + label, config, batch, seq, records, CREATE, cpus=CPUS[:threads] if threads else None,
                  threads=threads)
    slowest = side.round(2)["seconds"][1]
    watch = Watch(side.pids())
    seconds = side.round(1 + max(3, min(30, int(budget_s / slowest))))["seconds"][1:]
    others = watch.end()["others"]
    memory = sum(1024 * int(first("/proc/%d/smaps_rollup" % pid, r"^Pss:\s*(\d+)") or 0)
                 for pid in side.pids().values())
    side.close()
    return seconds, others, memory


def add_fit(table, part, what, points, model, of="a step's time"):
    what = "exponent of %s over %s" % (of, what)
    if len(points) < 2:
        return table.add(part, what, None, "exponent", model=model, higher_is_better=False,
                         note="skipped: needs two points")
    a, _, residual = fit(points)
    table.add(part, what, a, "exponent", model=model, residual=residual, higher_is_better=False)


def over_parameters(table, part, options):
    seq, points = 256, []
    for name, hidden, blocks in SIZES[:3] if options.quick else SIZES:
        params = parameters(hidden, blocks)
        shape = {"model": "llama " + name, "size": params, "size_unit": "parameters"}
        if params * BYTES > available_bytes() / 3:
            table.add(part, "step over parameters", None, "s", note="skipped: more than a third of memory", **shape)
            continue
        seconds, others, _ = measure(name, config_of(hidden, blocks, seq), 1, seq, 1 if options.quick else 10)
        table.add(part, "step over parameters", seconds, "s", others=others, **shape)
        points.append((params, statistics.median(seconds)))
    add_fit(table, part, "parameters", points, "1 row of %d" % seq)


def thread_counts():
    counts = [1 << i for i in range(CORES.bit_length()) if 1 << i <= CORES]
    return counts if counts[-1] == CORES else [*counts, CORES]


def over_threads(table, part, options):
    name, hidden, blocks = SIZES[0 if options.quick else 3]
    seq, points = 512, []
    for threads in thread_counts():
        seconds, others, _ = measure("threads", config_of(hidden, blocks, seq), 1, seq, 1 if options.quick else 10,
                                  threads)
        table.add(part, "step over threads", seconds, "s", model="llama " + name, size=threads, size_unit="threads",
                  others=others)
        points.append((threads, statistics.median(seconds)))
    add_fit(table, part, "threads", points, "llama %s, 1 row of %d" % (name, seq))


def over_length(table, part, options):
    name, hidden, blocks = SIZES[0 if options.quick else 2]
    tokens, points = 512 if options.quick else 4096, []
    config, seq = config_of(hidden, blocks, tokens), 128
    while seq <= tokens:
        seconds, others, _ = measure("length", config, tokens // seq, seq, 1 if options.quick else 10)
        table.add(part, "step over row length", seconds, "s", model="llama " + name, size=seq, size_unit="tokens a row",
                  others=others)
        points.append((seq, statistics.median(seconds)))
        seq *= 2
    add_fit(table, part, "row length", points, "llama %s, %d tokens a step" % (name, tokens))


def bench_scaling(table, part, options):
    over_parameters(table, part, options)
    over_threads(table, part, options)
    over_length(table, part, options)


def bench_geometry(table, part, options):
    seq, seen = 256, {}
    for what, unit, geometries in GEOMETRIES:
        points = []
        for hidden, blocks in geometries[:2] if options.quick else geometries:
            label = "%d blocks of %d" % (blocks, hidden)
            if label not in seen:
                seen[label] = measure("geometry", config_of(hidden, blocks, seq), 1, seq, 1 if options.quick else 6)
            seconds, others, memory = seen[label]
            shape = {"model": "%s, %s" % (label, large(parameters(hidden, blocks))), "size_unit": unit,
                     "size": blocks if unit == "blocks" else hidden}
            table.add(part, "step over " + what, seconds, "s", others=others, **shape)
            table.add(part, "memory over " + what, memory / 1e6, "MB", higher_is_better=False, **shape)
            points.append((shape["size"], statistics.median(seconds), memory))
        add_fit(table, part, what, [p[:2] for p in points], "1 row of %d" % seq)
        add_fit(table, part, what, [p[::2] for p in points], "1 row of %d" % seq, "memory")

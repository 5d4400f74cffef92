"""zero3.py: mt in turns with trainers that keep weights, gradients and AdamW's state in host memory, too: DeepSpeed
ZeRO-3, and on a GPU FSDP2. All start from the same files and take the same rows."""
import os

import training
from programs import Missing, available_bytes, config_path, first, scratch
from training import MtSide, TorchSide
from updates import region_bytes

TINY = ("tiny", "../golden/qwen3/model/config.json", 2, 32, 1)          # for tests: measured only if it is named
ON_CPU = [TINY, *training.MODELS[1:]]
ON_GPU = [TINY, ("1.5B", "qwen2.5-1.5b.json", 8, 4096, 2), ("3B", "qwen2.5-3b.json", 8, 4096, 2)]
TRAINERS = {"zero3": "DeepSpeed ZeRO-3", "fsdp2": "PyTorch FSDP2"}
ON_GPU_OPTIONS = ["--device", "cuda", "--micro", 2, "--recompute"]      # of torch_train.py


def status_bytes(pid, key):
    return int(first("/proc/%d/status" % pid, r"^%s:\s*(\d+)" % key) or 0) * 1024


def host_bytes(side):
    """Memory now, and the most since forget_peaks(), without pages of files; a run's regions count once"""
    run = sum(region_bytes(side.run).values()) if isinstance(side, MtSide) else 0
    now = most = run
    for pid in side.pids().values():
        most_mapped, anonymous, files, shared = (status_bytes(pid, key) for key in
                                                 ("VmHWM", "RssAnon", "RssFile", "RssShmem"))
        now += anonymous + (0 if run else shared)
        most += most_mapped - files - (shared if run else 0)
    return now, most


def forget_peaks(side):
    for pid in side.pids().values():
        with open("/proc/%d/clear_refs" % pid, "w") as f:
            f.write("5")


def begin(sides, make):
    """Add a side after its first step, with its loss, and by how much less memory is available since before"""
    before = available_bytes()
    sides.append(make())
    sides[-1].first = sides[-1].round(1)["losses"]
    sides[-1].taken = before - available_bytes()


def measure(table, part, options, model, dtype, by):
    name, config, batch, seq, timed = model
    shape = "%s %s, %d rows of %d" % (name, dtype, batch, seq)
    path, records = training.export_model(name, config_path(config), dtype), os.path.join(scratch, name + ".zero3")
    training.write_records(records, (1 + options.rounds * (timed + 1)) * batch, seq,
                           training.vocabulary(config_path(config)))
    peer, sides = TRAINERS[by], []
    more = [] if options.device == "cpu" else ON_GPU_OPTIONS
    try:
        begin(sides, lambda: MtSide("zero3", path, batch, seq, records, ("--dtype", dtype),
                                    stream=options.stream.split()))
        begin(sides, lambda: TorchSide(peer, path, dtype, batch, seq, records, "--by", by, *more))
        params = sides[0].stat()["params"]
        if options.device == "cpu":
            for side in sides:
                forget_peaks(side)
        results = training.take_turns(sides, options.rounds, timed)
        memory = [host_bytes(side) if options.device == "cpu" else [side.taken] for side in sides]
        for side in sides:
            table.versions(side.versions)
            results[side.name]["losses"] = side.first + results[side.name]["losses"]
    except (Missing, RuntimeError) as e:
        return table.add(part, "training", None, "tokens/s", peer, model=shape, note="skipped: %s" % e)
    finally:
        for side in sides:
            side.close()
    ours, theirs = results["mt"], results[peer]
    training.compare_training(table, part, shape, batch * seq, ours, peer, theirs)
    for what, mine, other in zip(("host memory", "host memory, most in a step"), *memory):
        table.add(part, what, mine / params, "bytes/parameter", peer, other / params, model=shape,
                  higher_is_better=False, size=params, size_unit="parameters")
    for step, losses in enumerate(zip(ours["losses"], theirs["losses"]), 1):
        table.add(part, "loss of step %d" % step, losses[0], "nats", peer, losses[1], model=shape,
                  higher_is_better=False)


def bench_zero3(table, part, options):
    if options.no_torch:
        return table.add(part, "training", None, "tokens/s", note="skipped: --no-torch")
    on_cpu = options.device == "cpu"
    for model in ON_CPU if on_cpu else ON_GPU:
        for dtype in ("fp32", "bf16") if on_cpu else ("bf16",):
            for by in ("zero3",) if on_cpu else TRAINERS:
                if model[0] in options.models:
                    measure(table, part, options, model, dtype, by)

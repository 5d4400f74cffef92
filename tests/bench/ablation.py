"""ablation.py: a step without what overlaps, one thing at a time, in turns with a step that has all of it."""
import os
import statistics

from left_out import LEFT_OUT
from programs import Watch, config_path, scratch
from training import MODELS, MtSide, vocabulary, write_records

MODEL = "97M"


def bench_ablation(table, part, options):
    name, config, batch, seq, timed = next(m for m in MODELS if m[0] == ("demo" if options.quick else MODEL))
    records = os.path.join(scratch, "ablation.records")
    write_records(records, options.rounds * (timed + 1) * batch * len(LEFT_OUT), seq, vocabulary(config_path(config)))
    for compute in "bf16", "fp32":      # bf16 weights are read in place, or converted into slots
        side = MtSide("ablation", config_path(config), batch, seq, records, ("--dtype", "bf16"), compute)
        turns, others = {what: [] for what, *_ in LEFT_OUT}, []
        for _ in range(options.rounds):
            for what, without, more, _ in LEFT_OUT:
                side.stream_again({"MT_WITHOUT": without}, more.split())
                watch = Watch(side.pids())
                turns[what].append(statistics.median(side.round(timed + 1)["seconds"][1:]))
                others.append(watch.end()["others"])
        side.close()
        for what, seconds in turns.items():
            table.add(part, what, seconds, "s", "nothing left out", turns["nothing"],
                      model="%s, --compute %s" % (name, compute), others=statistics.mean(others))

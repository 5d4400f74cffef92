#!/usr/bin/env python3
"""Sums and differences in words, a task whose answers a program checks.

    sums.py lines TRAIN HELD                    20,000 problems as lines for mt-tokens, 1,000 of them into HELD
    sums.py train MODEL RECORDS OUT [options]   trains in PyTorch, in fp32: OUT/metrics.jsonl, OUT/step-*
    sums.py score RECORDS MODEL                 prints the share of records that MODEL answers right
    sums.py plot DIR PICTURE                    loss and right answers over steps of all trainings in DIR (learn)

The problems are all sums and differences of a number below 1,000 and one below 10, in random order. An answer is right
if each of its tokens, also its end, is the most likely one, so that greedy decoding writes it.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import time

from rows import CONTEXT_ONLY, read_records, rows

HELD = 1000
SMALL = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def words(n):
    if n < 0:
        return "minus " + words(-n)
    if n < 20:
        return SMALL[n]
    high, low, name = (n // 10 * 10, n % 10, TENS[n // 10 - 2]) if n < 100 else (
        (n // 100 * 100, n % 100, SMALL[n // 100] + " hundred") if n < 1000 else (1000, n - 1000, "one thousand"))
    return name + (("-" if n < 100 else " ") + words(low) if low else "")


def lines(o):
    problems = [("%s %s %s is" % (words(a), name, words(b)), " " + words(a + sign * b))
                for name, sign in (("plus", 1), ("minus", -1)) for a in range(1000) for b in range(10)]
    random.Random(1).shuffle(problems)
    for path, part in (o.train, problems[HELD:]), (o.held, problems[:HELD]):
        with open(path, "w") as f:
            for question, answer in part:
                print(json.dumps({"prompt": question, "completion": answer}), file=f)


def logits_of(model, records):
    """(logits, labels) of all tokens that are trained on, record after record, and how many each record has"""
    import torch
    longest = max(map(len, records))
    ids = torch.tensor([[i & ~CONTEXT_ONLY for i in r] + [0] * (longest - len(r)) for r in records])
    wanted = torch.tensor([[not i & CONTEXT_ONLY for i in r[1:]] + [False] * (longest - len(r)) for r in records])
    # padding stands behind a record, where causal attention does not see it
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    return model.lm_head(hidden[wanted]), ids[:, 1:][wanted], wanted.sum(1).tolist()


def load(path):
    import torch
    import transformers
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def train(o):
    import torch
    import transformers
    os.makedirs(o.out, exist_ok=True)
    path, log = os.path.join(o.out, "step-%08d"), os.path.join(o.out, "metrics.jsonl")
    done = max((step for step in range(1, o.steps) if os.path.exists(path % step)), default=0)
    model = load(path % done if done else o.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, o.warmup, o.steps)
    lines = []
    if done:
        parts = torch.load(os.path.join(path % done, "optimizer.pt"))
        optimizer.load_state_dict(parts[0])
        schedule.load_state_dict(parts[1])
        with open(log) as f:
            lines = f.readlines()[:done]
    source = rows(read_records(o.records), o.seq, True)
    for _ in range(done * o.batch):
        next(source)
    with open(log, "w") as metrics:
        metrics.writelines(lines)
        for step in range(done + 1, o.steps + 1):
            start = time.monotonic()
            batch = [record for _ in range(o.batch) for record in next(source)]
            logits, labels, _ = logits_of(model, batch)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            print(json.dumps({"step": step, "loss": loss.item(), "tokens": len(labels),
                              "time_s": time.monotonic() - start}), file=metrics, flush=True)
            if step % o.ckpt_every == 0 or step == o.steps:
                new = os.path.join(o.out, "new")
                model.save_pretrained(new)
                torch.save((optimizer.state_dict(), schedule.state_dict()), os.path.join(new, "optimizer.pt"))
                os.rename(new, path % step)


def score(o):
    import torch
    records = list(read_records(o.records))[:o.first]
    model, right = load(o.model).eval(), 0
    with torch.no_grad():
        for at in range(0, len(records), 50):
            logits, labels, counts = logits_of(model, records[at:at + 50])
            right += sum(part.all().item() for part in (logits.argmax(-1) == labels).split(counts))
    print(right / len(records))


def plot(o):
    """Each training's loss, a mean of 10 steps, and its share of right answers"""
    trainings = sorted(glob.glob(os.path.join(o.dir, "*.[0-9]")))
    script, curves = "", {"loss": [], "right": []}
    for i, path in enumerate(trainings):
        with open(os.path.join(path, "metrics.jsonl")) as f:
            losses = [json.loads(line)["loss"] for line in f]
        points = {"loss": [(at + 10, sum(losses[at:at + 10]) / 10) for at in range(0, len(losses) - 9, 10)],
                  "right": [(0, float(open(os.path.join(o.dir, "before")).read()))] + sorted(
                      (int(name.rpartition(".")[2]), float(open(name).read()))
                      for name in glob.glob(os.path.join(path, "right.*[0-9]")))}
        kind, seed = os.path.basename(path).split(".")
        kind = {"torch": "PyTorch, fp32", "fp32": "mt, fp32"}.get(kind, "mt, bf16, m and v in " + kind)
        for name, values in points.items():
            script += "$%s%d << E\n%s\nE\n" % (name, i, "\n".join("%g %g" % point for point in values))
            curves[name].append("$%s%d with linespoints lw 2 pt 7 ps 0.6 title '%s, order %s'" % (name, i, kind, seed))
    subprocess.run(["gnuplot"], text=True, check=True, input=script + """
set terminal pngcairo noenhanced size 1000,420 font ",10"
set output '%s'
set grid lc rgb "#dddddd"
set xlabel "step"
set multiplot layout 1,2
set title "loss, mean of 10 steps"
set logscale y
set yrange [0.05:5]
plot %s
unset logscale
set title "held-out problems answered right"
set yrange [0:1]
set key top left
plot %s
""" % (o.picture, ", ".join(curves["loss"]), ", ".join(curves["right"])))


def main():
    p = argparse.ArgumentParser()
    commands = p.add_subparsers(required=True)
    for command, operands in ((lines, ("train", "held")), (train, ("model", "records", "out")),
                              (score, ("records", "model")), (plot, ("dir", "picture"))):
        c = commands.add_parser(command.__name__)
        c.set_defaults(run=command)
        for name in operands:
            c.add_argument(name)
        if command is train:
            for name in "batch", "seq", "warmup", "steps", "ckpt-every":
                c.add_argument("--" + name, type=int, required=True)
            c.add_argument("--lr", type=float, required=True)
        if command is score:
            c.add_argument("--first", type=int, default=HELD)
    o = p.parse_args()
    o.run(o)


main()

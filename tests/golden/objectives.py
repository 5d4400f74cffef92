#!/usr/bin/env python3
"""objectives.txt: what PyTorch computes, in fp64 and by autograd, of the losses in mt-stream/objective.c. One line a
pair of documents, an answer or a target of pg, random ones and extreme ones:

    LOSS beta gamma low high scale chosen_scale  logp ref targets (chosen)  logp ref targets (rejected)
        loss  s (chosen)  s (rejected)  reward (chosen)  reward (rejected)
    kto  beta gamma low high scale chosen_scale  side logp ref targets  loss s reward
    pg   beta gamma low high scale chosen_scale  logp old advantage  loss s clipped

Numbers are hexadecimal. s is minus the derivative of the loss by a target's log-probability. The losses are written as
in TRL 1.16: DPOTrainer's 'sigmoid', CPOTrainer's 'simpo', ORPOTrainer.odds_ratio_loss, GRPOTrainer's 'dapo',
KTOTrainer's 'apo_zero_unpaired'. Each loss has a seed of its own, its name."""

import os
import random
import sys

import torch
import torch.nn.functional as F

from records import CHOSEN, REJECTED

HERE = os.path.dirname(os.path.abspath(__file__))


def number(x):
    return torch.tensor(x, dtype=torch.float64)


def log1mexp(x):
    """trl.trainer.utils.log1mexp"""
    t = -0.6931471805599453094
    return torch.where(x < t, torch.log1p(-torch.exp(x)), torch.log(-torch.expm1(x)))


def dpo(o, chosen, rejected, ref_chosen, ref_rejected):
    logits = (chosen.sum() - ref_chosen) - (rejected.sum() - ref_rejected)
    loss = -F.logsigmoid(o["beta"] * logits) * o["scale"]
    return loss, o["beta"] * (chosen.sum() - ref_chosen), o["beta"] * (rejected.sum() - ref_rejected)


def simpo(o, chosen, rejected, *_):
    logits = chosen.mean() - rejected.mean() - o["gamma"] / o["beta"]
    return -F.logsigmoid(o["beta"] * logits) * o["scale"], o["beta"] * chosen.mean(), o["beta"] * rejected.mean()


def orpo(o, chosen, rejected, *_):
    c, r = chosen.mean(), rejected.mean()
    log_odds = (c - r) - (log1mexp(c) - log1mexp(r))
    loss = -chosen.sum() * o["chosen_scale"] - o["beta"] * F.logsigmoid(log_odds) * o["scale"]
    return loss, o["beta"] * c, o["beta"] * r


def kto(o, side, logps, ref):
    reward = o["beta"] * (logps.sum() - ref)
    if side == CHOSEN:                  # TRL's 1 - sigmoid(reward) and sigmoid(reward), without cancellation
        return torch.exp(F.logsigmoid(-reward)) * o["chosen_scale"], reward
    return torch.exp(F.logsigmoid(reward)) * o["scale"], reward


def pg(o, logp, old, advantage):
    ratio = torch.exp(logp - old)
    clipped = torch.clamp(ratio, 1 - o["low"], 1 + o["high"])
    loss = -torch.min(ratio * advantage, clipped * advantage) * o["scale"]
    is_clipped = ((ratio < 1 - o["low"]) & (advantage < 0)) | ((ratio > 1 + o["high"]) & (advantage > 0))
    return loss, is_clipped


KEYS = ("beta", "gamma", "low", "high", "scale", "chosen_scale")
PAIRS = {"dpo": dpo, "simpo": simpo, "orpo": orpo}
ANSWERS = {"kto": kto}


def options(rng):
    return {"beta": rng.choice([0.1, 2.0, 0.01 + rng.random()]), "gamma": rng.choice([0.0, 1.0, rng.random()]),
            "low": 0.2, "high": rng.choice([0.2, 0.28]), "scale": 1 / rng.randrange(1, 65),
            "chosen_scale": 1 / rng.randrange(1, 5000)}


def line(*fields):
    return " ".join(x if isinstance(x, str) else float(x.detach() if torch.is_tensor(x) else x).hex()
                    for x in fields) + "\n"


def pair_line(kind, o, sums, refs, targets):
    """All of a document's targets have the same log-probability; s is the derivative by one of them."""
    logps = [torch.full((n,), s / n, dtype=torch.float64, requires_grad=True) for s, n in zip(sums, targets)]
    loss, *rewards = PAIRS[kind](o, *logps, *map(number, refs))
    loss.backward()
    sides = [x for side in zip((p.sum() for p in logps), refs, targets) for x in side]
    return line(kind, *(o[k] for k in KEYS), *sides, loss, *(-p.grad[0] for p in logps), *rewards)


def answer_line(kind, o, side, total, ref, targets):
    logps = torch.full((targets,), total / targets, dtype=torch.float64, requires_grad=True)
    loss, reward = ANSWERS[kind](o, side, logps, number(ref))
    loss.backward()
    return line(kind, *(o[k] for k in KEYS), side, logps.sum(), ref, targets, loss, -logps.grad[0], reward)


def pg_line(o, logp, old, advantage):
    logp = number(logp).requires_grad_()
    loss, clipped = pg(o, logp, number(old), number(advantage))
    loss.backward()
    return line("pg", *(o[k] for k in KEYS), logp, old, advantage, loss, -logp.grad, clipped)


def extreme(kind):
    """Sums, references and targets of the two documents"""
    each = [((-1e4, -1.0), (0.0, 0.0), (1, 1)), ((-1.0, -1e4), (0.0, 0.0), (1, 1)),
            ((-1e4, -1e4), (-1e4, -1e4), (3, 7)),
            ((-80.5, -80.5), (-80.5, -80.5), (9, 9)), ((-1e-9, -2.0), (-1.0, -1.0), (1, 2)),
            ((-2.0, -1e-9), (-1.0, -1.0), (2, 1)), ((-1e-9, -1e-9), (-3.0, -3.0), (1, 1)),
            ((-1e6, -2.0), (-2.0, -1e6), (999, 1)), ((-2.0, -1e6), (-1e6, -2.0), (1, 999))]
    # 1 / (1 - probability) by autograd is 0 / 0 where the loss is flat
    return each if kind != "orpo" else each[:6] + [((-690.0, -1.0), (0.0, 0.0), (1, 1))]


def main():
    torch.set_num_threads(1)
    with open(os.path.join(HERE, "objectives.txt") if len(sys.argv) < 2 else sys.argv[1], "w") as f:
        for kind in PAIRS:
            rng = random.Random(kind)
            for _ in range(25):
                targets = [rng.randrange(1, 40) for _ in range(2)]
                sums = [-n * rng.expovariate(0.5) - 1e-3 for n in targets]
                f.write(pair_line(kind, options(rng), sums, [s + rng.gauss(0, 5) for s in sums], targets))
            for sums, refs, targets in extreme(kind):
                f.write(pair_line(kind, options(rng), sums, refs, targets))
        rng = random.Random("pg")
        for _ in range(40):
            logp = -rng.expovariate(0.5)
            f.write(pg_line(options(rng), logp, logp + rng.gauss(0, 0.3), rng.gauss(0, 1)))
        for logp, old, advantage in ((-1e4, -1.0, 1.0), (-1e4, -1.0, -1.0), (-1.0, -500.0, 1.0), (-1.0, -500.0, -1.0),
                                     (-2.0, -2.0, 0.0), (-2.0, -2.0, 1.5), (-2.0, -2.0, -1.5)):
            f.write(pg_line(options(rng), logp, old, advantage))
        for kind in ANSWERS:
            rng = random.Random(kind)
            for side in CHOSEN, REJECTED:
                for _ in range(20):
                    targets = rng.randrange(1, 40)
                    total = -targets * rng.expovariate(0.5) - 1e-3
                    f.write(answer_line(kind, options(rng), side, total, total + rng.gauss(0, 5), targets))
                for total, ref in (-80.5, -80.5), (-1e4, 0.0), (-2.0, -300.0), (-300.0, -2.0):
                    f.write(answer_line(kind, {**options(rng), "beta": 0.1}, side, total, ref, 3))


if __name__ == "__main__":
    main()

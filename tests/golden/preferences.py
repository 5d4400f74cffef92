"""Data and losses of make.py's cases with an objective. The losses are those of objectives.py."""

import math

import torch

import objectives
from records import CHOSEN, CONTEXT_ONLY, REJECTED, Group, Weighted, ids, pack, target_weights, targets


def logps(model, piece):
    """The log-probability of each target of a document, which runs alone."""
    at, want = zip(*((t, token) for t, token in enumerate(targets(piece)) if token is not None))
    logits = model(input_ids=torch.tensor([ids(piece)]), use_cache=False).logits[0]
    return torch.log_softmax(logits, -1)[list(at), list(want)]


def answers(rng, document, vocab, seq):
    """A prompt, which has no loss, and its answers: the one that was chosen, the one that was rejected."""
    prompt = [token | CONTEXT_ONLY for token in document(rng, vocab, rng.randint(1, seq // 6))]
    return [prompt + [t & ~CONTEXT_ONLY for t in document(rng, vocab, rng.randint(1, seq // 3))] for _ in range(2)]


def pairs(rng, document, vocab, seq, rows, reference):
    """Pairs for so many rows; either side comes first. reference: the model that ref is of, or None"""
    made = []
    while len(pack(made, seq, "docs")) < rows:
        sides = [CHOSEN, REJECTED]
        rng.shuffle(sides)
        group = Group(Weighted(d, side=side) for d, side in zip(answers(rng, document, vocab, seq), sides))
        for d in group if reference else []:
            with torch.no_grad():
                d.ref = float(logps(reference, d).sum())
        made.append(group)
    return made


def labelled(rng, document, vocab, seq, rows, reference):
    """Answers of both sides for so many rows, each a record of its own, but for some pairs."""
    made = []
    for group in pairs(rng, document, vocab, seq, rows + rows // 2, reference):
        made += [group] if rng.random() < 0.2 else [d for d in group if rng.random() < 0.8]
    if len(pack(made, seq, "docs")) < rows:
        raise SystemExit("too few rows")
    return made


def samples(rng, document, vocab, seq, rows, policy):
    """Documents for so many rows whose tokens have an advantage and the log-probability of a policy near this one."""
    made = []
    while len(pack(made, seq, "docs")) < rows:
        tokens = answers(rng, document, vocab, seq)[0]
        with torch.no_grad():
            logp = iter(logps(policy, tokens).tolist())
        old = [0.0 if t is None else next(logp) + rng.gauss(0, 0.35) for t in [None, *targets(tokens)[:-1]]]
        made.append(Weighted(tokens, [(rng.randint(-6, 10) or 1) / 4 for _ in tokens],
                             old=torch.tensor(old, dtype=torch.float32).tolist()))
    return made


def taught(top, rng, document, vocab, seq, rows, teacher):
    """Documents for so many rows with the teacher's most likely tokens, their log-probabilities in fp16."""
    made = []
    while len(pack(made, seq, "docs")) < rows:
        tokens = document(rng, vocab, rng.randint(2, seq + 9 * (len(made) % 5 == 4)))
        with torch.no_grad():
            logs = torch.log_softmax(teacher(input_ids=torch.tensor([ids(tokens)]), use_cache=False).logits[0], -1)
        each = [None]
        for logp, target in zip(logs, targets(tokens)[:-1]):
            best = sorted(logp.topk(top).indices.tolist())
            rest = math.log1p(-float(logp[best].exp().sum())) if top < vocab else -math.inf
            half = torch.tensor([*logp[best].tolist(), rest]).to(torch.float16).tolist()
            each.append(None if target is None else (best, half))
        made.append(Weighted(tokens, [rng.randint(1, 8) / 4 for _ in tokens] if len(made) % 3 == 0 else None,
                             taught=(top, vocab), teacher=each))
    return made


def distillation(logits, best, logs, options):
    """The loss of one position, of the teacher's log-probabilities as records have them: KL to the student's softmax,
    t^2 as Hinton et al. (arXiv 1503.02531) have it. All other tokens are one class, or none."""
    t, rest = options.get("temperature", 1.0), options.get("rest", 1.0)
    student = torch.log_softmax(logits / t, -1)
    p = torch.tensor(logs, dtype=logits.dtype)[:-1] / t
    q = student[best]
    if rest and len(best) < len(logits):
        others = torch.ones(len(logits), dtype=torch.bool)
        others[best] = False
        q = torch.cat([q, student[others].logsumexp(-1, keepdim=True)])
        p = torch.cat([p, torch.tensor([logs[-1] + math.log(rest)], dtype=logits.dtype)])
    return torch.nn.functional.kl_div(q, p.log_softmax(-1), reduction="sum", log_target=True) * t * t


def step_of_taught(model, rows, o):
    documents = [d for row in rows for d in row]
    count = sum(t is not None for d in documents for t in targets(d))
    total, hard = 0.0, o.get("hard", 0.0)
    for d in documents:
        logits = model(input_ids=torch.tensor([ids(d)]), use_cache=False).logits[0]
        for at, target in enumerate(targets(d)):
            if target is None:
                continue
            loss = (1 - hard) * distillation(logits[at], *d.teacher[at + 1], o)
            loss = loss - hard * torch.log_softmax(logits[at], -1)[target]
            total = total + target_weights(d)[at] * loss / count
    total.backward()
    return float(total.detach()), {}


def step_of_pairs(model, rows, o):
    documents = [d for row in rows for d in row]
    of_pairs = [sorted(documents[i : i + 2], key=lambda d: d.side) for i in range(0, len(documents), 2)]
    chosen = sum(t is not None for c, _ in of_pairs for t in targets(c))
    options = {"gamma": 0.0, **o, "scale": 1 / len(of_pairs), "chosen_scale": 1 / chosen}
    total, rewards = 0.0, [0.0, 0.0]
    accuracy = 0
    for c, r in of_pairs:
        loss, *each = objectives.PAIRS[o["loss"]](options, logps(model, c), logps(model, r), c.ref, r.ref)
        loss.backward()
        total += float(loss.detach())
        rewards = [a + float(b.detach()) / len(of_pairs) for a, b in zip(rewards, each)]
        margin = float((each[0] - each[1]).detach())
        if abs(margin) < 1e-4:
            raise SystemExit("a margin of %g: rounding might change its sign" % margin)
        accuracy += margin > 0
    return total, {"reward_chosen": rewards[0], "reward_rejected": rewards[1], "margin": rewards[0] - rewards[1],
                   "accuracy": accuracy / len(of_pairs)}


def step_of_answers(model, rows, o):
    documents = [d for row in rows for d in row]
    scale = 1 / len(documents)
    options = {**o, "scale": o.get("undesirable", 1) * scale, "chosen_scale": o.get("desirable", 1) * scale}
    total, right, rewards = 0.0, 0, {CHOSEN: [], REJECTED: []}
    for d in documents:
        loss, reward = objectives.ANSWERS[o["loss"]](options, d.side, logps(model, d), d.ref)
        loss.backward()
        total += float(loss.detach())
        rewards[d.side].append(float(reward.detach()))
        if abs(rewards[d.side][-1]) < 1e-4:
            raise SystemExit("a reward of %g: rounding might change its sign" % rewards[d.side][-1])
        right += (rewards[d.side][-1] > 0) == (d.side == CHOSEN)
    chosen, rejected = (sum(rewards[side]) / len(rewards[side]) for side in (CHOSEN, REJECTED))
    return total, {"reward_chosen": chosen, "reward_rejected": rejected, "margin": chosen - rejected,
                   "accuracy": right / len(documents)}


def step_of_samples(model, rows, o):
    documents = [d for row in rows for d in row]
    count = sum(t is not None for d in documents for t in targets(d))
    options = {"low": o["clip_low"], "high": o["clip_high"], "scale": 1 / count}
    total, clipped, kl = 0.0, 0, 0.0
    for d in documents:
        logp = logps(model, d)
        at = [t for t, token in enumerate(targets(d)) if token is not None]
        old = torch.tensor([d.old[t + 1] for t in at], dtype=logp.dtype)
        advantages = torch.tensor([target_weights(d)[t] for t in at], dtype=logp.dtype)
        loss, is_clipped = objectives.pg(options, logp, old, advantages)
        for bound in 1 - o["clip_low"], 1 + o["clip_high"]:
            if float((torch.exp(logp - old) - bound).detach().abs().min()) < 2e-5:
                raise SystemExit("a ratio at %g: rounding might clip it" % bound)
        loss.sum().backward()
        total += float(loss.detach().sum())
        clipped += int(is_clipped.sum())
        kl += float((old - logp).detach().sum())
    return total, {"clip_fraction": clipped / count, "kl": kl / count}


def step(model, rows, o):
    """A step's gradients, its loss and what its metrics have beside it."""
    steps = {"pg": step_of_samples, "kto": step_of_answers, "kd": step_of_taught}
    total, metrics = steps.get(o["loss"], step_of_pairs)(model, rows, o)
    if not math.isfinite(total):
        raise SystemExit("a loss of %g" % total)
    return total, metrics

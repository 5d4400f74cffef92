#!/usr/bin/env python3
"""Log-probabilities by transformers in fp64: scores.py GOLDEN DIR CASE..., where DIR has for each case CASE.rec and
CASE.lines, what mt-score --tokens wrote of these records. Ends with an error if a token differs by more than fp32
allows."""
import json
import sys

import torch
from transformers import AutoModelForCausalLM

from make import fp64
from records import CONTEXT_ONLY, read_records

BOUND = 5e-6  # of a log-probability, or absolute below 1


def check(model, documents, lines):
    assert [line["record"] for line in lines] == list(range(1, len(documents) + 1)), "a line for each record, in order"
    worst = 0
    for line, document in zip(lines, documents):
        tokens = torch.tensor([token & ~CONTEXT_ONLY for token in document])
        logits = model(tokens[None]).logits[0, :-1].double()
        logp = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        best = [x == y for x, y, d in zip(logits.argmax(-1), tokens[1:], document[1:]) if not d & CONTEXT_ONLY]
        assert line["greedy"] == all(best), line["record"]
        want = [None] + [None if d & CONTEXT_ONLY else x for d, x in zip(document[1:], logp.tolist())]
        assert [x is None for x in want] == [x is None for x in line["tokens"]], line["record"]
        pairs = [(x, y) for x, y in zip(line["tokens"], want) if y is not None]
        worst = max([worst, *(abs(x - y) / max(1, abs(y)) for x, y in pairs)])
        assert line["targets"] == len(pairs)
        assert abs(line["logp"] - sum(x for x, _ in pairs)) < 1e-9 * max(1, abs(line["logp"]))
    return worst


golden, where, *cases = sys.argv[1:]
for case in cases:
    model = AutoModelForCausalLM.from_pretrained(f"{golden}/{case}/model", dtype=torch.float64,
                                                 experts_implementation="eager").eval()
    with fp64(), torch.no_grad():
        lines = [json.loads(line) for line in open(f"{where}/{case}.lines")]
        worst = check(model, read_records(f"{where}/{case}.rec"), lines)
    print(case, "worst:", worst)
    assert worst < BOUND, case

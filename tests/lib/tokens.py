#!/usr/bin/env python3
"""Look into what mt-sample wrote, without torch.

    tokens.py prompts FILE SEED VOCAB LENGTH...   a file of records: random prompts of these lengths
    tokens.py show FILE                           a line of tokens for each record
    tokens.py argmax LOGITS VOCAB                 the first of the largest logits of each row, one a line
    tokens.py prefixes OUT PROMPTS CONTINUATIONS  records: each prompt with 0, 1, ... of its new tokens
    tokens.py close A B VOCAB                     rows of two files of logits differ by less than 1e-5 of the largest
    tokens.py among LOGITS VOCAB N TOKENS         each of the tokens (a line each) is one of the N likeliest of its row
    tokens.py shares LOGITS VOCAB TOKENS          tokens drawn from one row, many times: 5 standard deviations
    tokens.py steps LOGITS REFERENCE VOCAB LEAST  each row is bit for bit one of the reference's, never an earlier one
                                                  than the row before, and at least that many of them occur
    tokens.py follow LOGITS REFERENCE VOCAB LEAST the reference is the same continuation at one step after another: each
                                                  row is close to its row at one step, likewise
"""

import math
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from records import ids, read_records, write_records  # noqa: E402


def rows(path, vocab):
    """The whole rows of a file of logits, as bytes."""
    with open(path, "rb") as f:
        data = f.read()
    return [data[at : at + 4 * vocab] for at in range(0, len(data) // (4 * vocab) * 4 * vocab, 4 * vocab)]


def floats(row):
    return struct.unpack("<%df" % (len(row) // 4), row)


def tokens(path):
    with open(path) as f:
        return [int(token) for line in f for token in line.split()]


def prompts(path, seed, vocab, *lengths):
    draw = random.Random(int(seed))
    write_records(path, [[draw.randrange(int(vocab)) for _ in range(int(n))] for n in lengths])


def show(path):
    for record in read_records(path):
        print(*record)


def argmax(path, vocab):
    for row in map(floats, rows(path, int(vocab))):
        print(row.index(max(row)))


def prefixes(out, prompts_path, continuations_path):
    write_records(out, [ids(p) + new[:i] for p, new in zip(read_records(prompts_path), read_records(continuations_path))
                        for i in range(len(new))])


def apart(row, other):
    """The largest difference, relative to the largest logit"""
    x, y = floats(row), floats(other)
    return max(abs(s - t) for s, t in zip(x, y)) / max(map(abs, x))


def close(a, b, vocab):
    left, right = rows(a, int(vocab)), rows(b, int(vocab))
    assert left and len(left) == len(right), (len(left), len(right))
    for i, (x, y) in enumerate(zip(left, right)):
        assert apart(x, y) < 1e-5, "row %d: %g" % (i, apart(x, y))


def among(path, vocab, n, drawn):
    got, found = tokens(drawn), rows(path, int(vocab))
    assert got and len(got) == len(found), (len(got), len(found))
    seen = set()
    for token, row in zip(got, map(floats, found)):
        rank = sorted(range(len(row)), key=lambda i: (-row[i], i)).index(token)
        assert rank < int(n), "rank %d" % rank
        seen.add(rank)
    assert len(seen) > 1, "always the likeliest"


def shares(path, vocab, drawn):
    got, row = tokens(drawn), floats(rows(path, int(vocab))[0])
    weights = [math.exp(x - max(row)) for x in row]
    for token, weight in enumerate(weights):
        p = weight / sum(weights)
        deviations = abs(got.count(token) - len(got) * p) / math.sqrt(len(got) * p * (1 - p))
        assert deviations < 5, "token %d: %d times of %d, probability %g" % (token, got.count(token), len(got), p)


def steps(path, reference, vocab, least):
    known = {row: step for step, row in enumerate(rows(reference, int(vocab)))}
    found = rows(path, int(vocab))
    for i, row in enumerate(found):
        assert row in known, "row %d is of no committed step" % i
    in_order([known[row] for row in found], least)


def follow(path, reference, vocab, least):
    found, known = rows(path, int(vocab)), rows(reference, int(vocab))
    n, seen = len(found), []
    assert n and len(known) % n == 0, (n, len(known))
    for i, row in enumerate(found):
        near = [step for step in range(len(known) // n) if apart(row, known[step * n + i]) < 1e-5]
        assert len(near) == 1, "row %d is of the steps %s" % (i, near)
        seen += near
    in_order(seen, least)


def in_order(seen, least):
    assert seen == sorted(seen), "a later row is of an earlier step: %s" % seen
    assert len(set(seen)) >= int(least), "only steps %s" % sorted(set(seen))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

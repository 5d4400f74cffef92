"""Records: a little-endian u32 count and that many u32 token ids. Bit 31 of an id excludes the token from the loss,
bit 31 of a count begins a group of documents (mt-step(1))."""

import array
import sys

from .errors import EX_DATA, Problem

CONTEXT_ONLY = GROUP = 1 << 31
WEIGHTS = 8             # of a document's parts in a group


def record(ids, trained, weights=None):
    """trained: a flag for each id, or None where loss is computed on all. weights: of each, or None where all are 1."""
    weighted = weights is not None and any(w != 1 for w in weights)
    words = array.array("I", [GROUP | 2 + 2 * len(ids), len(ids), WEIGHTS] if weighted else [len(ids)])
    words.extend(ids if trained is None else
                 [i if wanted else i | CONTEXT_ONLY for i, wanted in zip(ids, trained)])
    if weighted:
        words.frombytes(array.array("f", weights).tobytes())
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def read_exactly(file, size):
    """size bytes, or fewer at the end: in parts, since a damaged count can ask for 16 GB."""
    parts, left = [], size
    while left and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def documents(where, words):
    """The ids of each document of a group."""
    at, number = 0, 0
    while at < len(words):
        number += 1
        count, parts = (*words[at:at + 2], 0)[:2]
        end = at + 2 + count * (1 + (parts == WEIGHTS))
        if parts not in (0, WEIGHTS) or not count or end > len(words):
            raise Problem(EX_DATA, "%s, document %d: is not valid in its group" % (where, number))
        yield "%s, document %d" % (where, number), words[at + 2:at + 2 + count]
        at = end


def records(name, file):
    number = 0
    while head := read_exactly(file, 4):
        number += 1
        where = "%s: record %d" % (name, number)
        size = (int.from_bytes(head, "little") & ~GROUP) * 4
        body = read_exactly(file, size)
        if len(head) < 4 or len(body) < size:
            raise Problem(EX_DATA, "%s: the input ends inside it" % where)
        words = array.array("I", body)
        if sys.byteorder == "big":
            words.byteswap()
        group = int.from_bytes(head, "little") & GROUP
        for at, ids in documents(where, words) if group else [(where, words)]:
            yield at, [word & ~CONTEXT_ONLY for word in ids]

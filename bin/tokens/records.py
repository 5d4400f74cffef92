"""Records: a little-endian u32 count and that many u32 token ids. Bit 31 of an id excludes the token from the loss."""

import array
import sys

from .errors import EX_DATA, Problem

CONTEXT_ONLY = 1 << 31


def record(ids, trained):
    """trained: a flag for each id, or None where loss is computed on all."""
    words = array.array("I", [len(ids)])
    words.extend(ids if trained is None else
                 [i if wanted else i | CONTEXT_ONLY for i, wanted in zip(ids, trained)])
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


def records(name, file):
    number = 0
    while head := read_exactly(file, 4):
        number += 1
        where = "%s: record %d" % (name, number)
        size = int.from_bytes(head, "little") * 4
        body = read_exactly(file, size)
        if len(head) < 4 or len(body) < size:
            raise Problem(EX_DATA, "%s: the input ends inside it" % where)
        words = array.array("I", body)
        if sys.byteorder == "big":
            words.byteswap()
        yield where, [word & ~CONTEXT_ONLY for word in words]

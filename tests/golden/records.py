"""Records, rows and safetensors in plain Python: a second implementation of the documented formats, independent of mt's
C, for the scripts of this folder and other tests."""

import array
import json
import struct
import sys

CONTEXT_ONLY = 1 << 31  # "no loss for predicting this token"


GROUP = 1 << 31         # of a record's count: it is that of a group's words
SIDE, REF, WEIGHTS, OLD, TEACHER = 1, 2, 8, 16, 32      # parts of a group's document
CHOSEN, REJECTED = 1, 2


class Weighted(list):
    """A document with a weight for each token, and with what else it has in a group: its side, the sum of a reference
    model's log-probabilities, the sampler's log-probability of each token; None: it has none. Its parts keep these.
    teacher: (ids, log-probabilities of these and of all others) of each token that is a target; taught: how many ids,
    and the vocabulary."""

    def __init__(self, tokens, weights=None, side=None, ref=None, old=None, taught=None, teacher=None):
        super().__init__(tokens)
        self.weights, self.side, self.ref, self.old = weights, side, ref, old
        self.taught, self.teacher = taught, teacher

    def __getitem__(self, at):
        if not isinstance(at, slice):
            return super().__getitem__(at)
        weights, old, teacher = (x and x[at] for x in (self.weights, self.old, self.teacher))
        return Weighted(super().__getitem__(at), weights, self.side, self.ref, old, self.taught, teacher)


class Group(list):
    """Documents that are one record."""


def words_of(form, *values):
    data = struct.pack("<" + form, *values)
    return list(struct.unpack("<%dI" % (len(data) // 4), data))


def values_of(form, words):
    return list(struct.unpack("<" + form, struct.pack("<%dI" % len(words), *words)))


def read_group(words):
    documents, at = Group(), 0

    def take(n):
        nonlocal at
        at += n
        return words[at - n : at]

    while at < len(words):
        count, parts = take(2)
        (side,) = take(1) if parts & SIDE else (None,)
        (ref,) = values_of("d", take(2)) if parts & REF else (None,)
        taught = tuple(take(2)) if parts & TEACHER else None
        tokens = list(take(count))
        weights, old = (values_of("%df" % count, take(count)) if parts & part else None for part in (WEIGHTS, OLD))
        teacher = [None if at == 0 or token & CONTEXT_ONLY else
                   (list(take(taught[0])), values_of("%de" % (taught[0] // 2 * 2 + 2), take(taught[0] // 2 + 1))
                    [: taught[0] + 1]) for at, token in enumerate(tokens)] if taught else None
        documents.append(Weighted(tokens, weights, side, ref, old, taught, teacher) if parts else tokens)
    return documents[0] if len(documents) == 1 else documents


def group_words(documents):
    words = []
    for d in documents:
        side, ref, weights, old = (getattr(d, x, None) for x in ("side", "ref", "weights", "old"))
        taught = getattr(d, "taught", None)
        parts = ((SIDE, side), (REF, ref), (WEIGHTS, weights), (OLD, old), (TEACHER, taught))
        words += [len(d), sum(part for part, has in parts if has is not None)]
        words += ([] if side is None else [side]) + ([] if ref is None else words_of("d", ref))
        words += [*(taught or []), *d]
        for floats in weights, old:
            words += words_of("%df" % len(d), *floats) if floats is not None else []
        for of, logs in filter(None, d.teacher if taught else []):
            words += [*of, *words_of("%de" % (len(of) // 2 * 2 + 2), *logs, *[0] * (len(of) // 2 * 2 + 1 - len(of)))]
    return [GROUP | len(words), *words]


def read_records(path):
    """A file of records -> a list of documents, each a list of u32; groups of several documents are a Group."""
    with open(path, "rb") as f:
        data = f.read()
    words = struct.unpack("<%dI" % (len(data) // 4), data)
    documents, at = [], 0
    while at < len(words):
        count = words[at] & ~GROUP
        of = words[at + 1 : at + 1 + count]
        documents.append(read_group(of) if words[at] & GROUP else list(of))
        at += 1 + count
    if at != len(words) or len(data) % 4:
        raise ValueError("%s: ends inside a record" % path)
    return documents


def write_records(path, documents):
    with open(path, "wb") as f:
        for document in documents:
            words = group_words(document) if isinstance(document, Group) else \
                group_words([document]) if isinstance(document, Weighted) else [len(document), *document]
            f.write(struct.pack("<%dI" % len(words), *words))


def cut(document, seq):
    """Pieces of at most seq tokens; each begins with the last token of the one before."""
    if len(document) <= seq:
        return [document]
    return [document[at : at + seq] for at in range(0, len(document) - 1, seq - 1)]


def pack(documents, seq, how):
    """Documents -> rows. A row is a list of pieces that do not see each other, together at most seq tokens."""
    if how == "concat":
        stream = [token for document in documents for token in document]
        return [[piece] for piece in cut(stream, seq)]
    rows, room = [], 0
    for document in documents:
        if isinstance(document, Group):  # whole, in one row
            length = sum(map(len, document))
            if how == "none" or length > room:
                rows.append([])
                room = seq
            rows[-1] += document
            room -= length
            continue
        for piece in cut(document, seq):
            # A document that must be cut begins a new row, even if the row before has space.
            if how == "none" or len(document) > seq or len(piece) > room:
                rows.append([])
                room = seq
            rows[-1].append(piece)
            room -= len(piece)
    return rows


def ids(piece):
    return [token & ~CONTEXT_ONLY for token in piece]


def targets(piece):
    """The target of each position, or None."""
    return [None if token & CONTEXT_ONLY else token for token in piece[1:]] + [None]


def target_weights(piece):
    """The weight of each position's target; a weight stands at the token that it is about."""
    return [*(getattr(piece, "weights", None) or [1.0] * len(piece))[1:], 1.0]


def target_olds(piece):
    """The sampler's log-probability of each position's target."""
    return [*(getattr(piece, "old", None) or [0.0] * len(piece))[1:], 0.0]


def read_safetensors(path):
    """A safetensors file -> {name: (dtype, shape, numbers)}, F32, BF16 and I64 only."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        if entry["dtype"] == "BF16":  # the upper half of an fp32
            raw = b"".join(b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2))
        elif entry["dtype"] not in ("F32", "I64"):
            raise ValueError("%s: tensor '%s': dtype %s is not read here" % (path, name, entry["dtype"]))
        values = array.array("q" if entry["dtype"] == "I64" else "f", raw)
        if sys.byteorder == "big":
            values.byteswap()
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), values)
    return tensors

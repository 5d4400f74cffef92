"""Records, rows and safetensors in plain Python: a second implementation of the documented formats, independent of mt's
C, for the scripts of this folder and other tests."""

import array
import json
import struct
import sys

CONTEXT_ONLY = 1 << 31  # "no loss for predicting this token"


GROUP = 1 << 31         # of a record's count: it is that of a group's words
WEIGHTS = 8             # of a document's parts


class Weighted(list):
    """A document with a weight for each token. Its parts keep their weights."""

    def __init__(self, tokens, weights):
        super().__init__(tokens)
        self.weights = weights

    def __getitem__(self, at):
        return Weighted(super().__getitem__(at), self.weights[at]) if isinstance(at, slice) else super().__getitem__(at)


class Group(list):
    """Documents that are one record."""


def read_group(words):
    documents, at = Group(), 0
    while at < len(words):
        count, parts = words[at : at + 2]
        tokens = list(words[at + 2 : at + 2 + count])
        at += 2 + count
        if parts == WEIGHTS:
            tokens = Weighted(tokens, list(struct.unpack("<%df" % count, struct.pack("<%dI" % count,
                                                                                    *words[at : at + count]))))
            at += count
        documents.append(tokens)
    return documents[0] if len(documents) == 1 else documents


def group_words(documents):
    words = []
    for d in documents:
        weights = getattr(d, "weights", None)
        words += [len(d), WEIGHTS if weights else 0, *d]
        words += struct.unpack("<%dI" % len(d), struct.pack("<%df" % len(d), *weights)) if weights else []
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
    return [*getattr(piece, "weights", [1.0] * len(piece))[1:], 1.0]


def read_safetensors(path):
    """A safetensors file -> {name: (dtype, shape, floats)}, F32 and BF16 only."""
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
        elif entry["dtype"] != "F32":
            raise ValueError("%s: tensor '%s': dtype %s is not read here" % (path, name, entry["dtype"]))
        values = array.array("f", raw)
        if sys.byteorder == "big":
            values.byteswap()
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), values)
    return tensors

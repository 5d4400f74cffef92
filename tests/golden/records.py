"""Records, rows and safetensors in plain Python: a second implementation of the documented formats, independent of mt's
C, for the scripts of this folder and other tests."""

import array
import json
import struct
import sys

CONTEXT_ONLY = 1 << 31  # "no loss for predicting this token"


def read_records(path):
    """A file of records -> a list of documents, each a list of u32."""
    with open(path, "rb") as f:
        data = f.read()
    words = struct.unpack("<%dI" % (len(data) // 4), data)
    documents, at = [], 0
    while at < len(words):
        documents.append(list(words[at + 1 : at + 1 + words[at]]))
        at += 1 + words[at]
    if at != len(words) or len(data) % 4:
        raise ValueError("%s: ends inside a record" % path)
    return documents


def write_records(path, documents):
    with open(path, "wb") as f:
        for document in documents:
            f.write(struct.pack("<%dI" % (len(document) + 1), len(document), *document))


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

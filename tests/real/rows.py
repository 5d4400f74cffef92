"""rows.py: records, and rows as mt-step fills them."""
import array

CONTEXT_ONLY = 1 << 31


def read_records(path):
    with open(path, "rb") as f:
        words = array.array("I", f.read())
    at = 0
    while at < len(words):
        yield words[at + 1:at + 1 + words[at]]
        at += 1 + words[at]


def rows(records, seq, packed):
    """Rows as mt-step fills them, each a list of pieces of documents."""
    row, left = [], seq
    for ids in records:
        # a piece of a long document begins with the last token of the one before
        pieces = [ids[:seq]] + [ids[at - 1:at + seq - 1] for at in range(seq, len(ids), seq - 1)]
        for i, piece in enumerate(pieces):
            if row and (not packed or i or len(ids) > left):
                yield row
                row, left = [], seq
            row.append(piece)
            left -= len(piece)
    if row:
        yield row

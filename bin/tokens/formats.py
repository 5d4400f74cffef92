"""The format of a file, by its first bytes, and a remedy where mt-tokens cannot read it."""

import array
import codecs
import re
import sys

from .errors import EX_DATA, Problem
from .records import GROUP, WEIGHTS

HEAD = 1 << 16          # bytes of a file that tell its form
UNPACK = "unpack it first"
KNOWN = (       # pattern of the beginning, what it is, what to do
    (rb"GGUF[\1-\x0f]\0\0\0", "a GGUF file", "a model, no documents"),
    (rb"PK\x03\x04", "a zip archive", UNPACK),
    (rb"BZh[1-9]1AY", "bzip2 data", UNPACK + ": bzip2 -d"),
    (rb"\xfd7zXZ\0", "xz data", UNPACK + ": xz -d"),
    (rb"\x04\x22\x4d\x18", "lz4 data", UNPACK + ": lz4 -d"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (rb"Rar!\x1a\x07", "a rar archive", UNPACK),
    (rb"(?s).{257}ustar", "a tar archive", UNPACK + ": tar -xf"),
    (rb"ARROW1\0\0|\xff\xff\xff\xff[\0-\xff]{2}\0\0", "an Arrow file",
     "save it as parquet: datasets.Dataset.from_file(FILE).to_parquet(...)"),
    (rb"Obj\x01", "an Avro file", "save it as parquet or as JSON lines"),
    (rb"SQLite format 3\0", "an SQLite database", "export its rows as JSON lines"),
    (rb"\x89HDF\r\n", "an HDF5 file", "export its documents as JSON lines"),
    (rb"\x93NUMPY", "a NumPy file", "token ids of u16 or u32: mt-feed --u16 or --u32"),
    (rb"\x80[\x02-\x05][\x95}\]c(]", "a Python pickle", "export its documents as JSON lines"),
    (rb"%PDF-", "a PDF file", "export its text as JSON lines"),
    (rb"(?s).{5}\0\0\0\{\"", "a safetensors file", "weights of a model, no documents"),
    (rb"version https://git-lfs", "a git-lfs pointer and not the file itself", "git lfs pull fetches it"),
    (rb"(?i)\s*<(!doctype|html|\?xml)", "HTML or XML", "export its text as JSON lines"),
)
NAME = rb'("[^"\n]+"|[\w .-]+)'
COLUMNS = re.compile(NAME + rb"([,;\t])" + NAME + rb"(\2" + NAME + rb")*\r?\n")


def refuse(name, head):
    """End with the name of the format, if the file begins as one that mt-tokens cannot read."""
    for pattern, what, remedy in KNOWN:
        if re.match(pattern, head):
            raise Problem(EX_DATA, "%s: is %s: %s" % (name, what, remedy))
    if has_records(head):
        raise Problem(EX_DATA, "%s: holds records already: mt-run --data takes it as it is, mt-tokens --decode "
                      "prints it" % name)


# Forms of other programs: keys that tell them, what they are, and a filter of jq that gives mt-tokens's keys
OTHERS = (
    (("input_ids", "labels"), "token ids stand in 'ids', and which of them have loss in 'trained'",
     "{ids: .input_ids, trained: [.labels[] != -100]}"),
    (("input_ids",), "token ids stand in 'ids', and which of them have loss in 'trained'", "{ids: .input_ids}"),
    (("preferred_output", "non_preferred_output"), "pairs have 'prompt', 'chosen' and 'rejected'",
     "{prompt: .input.messages, tools: .input.tools, chosen: .preferred_output, rejected: .non_preferred_output}"),
)


def its_keys(line):
    return "its keys: %s" % (", ".join(list(line)[:8]) or "none")


def what_it_holds(line):
    """For an object that is no document: where its documents may be, or its keys"""
    if "nbformat" in line:
        return "it is a Jupyter notebook"
    for keys, what, jq in OTHERS:
        if all(line.get(key) is not None for key in keys):
            return "%s: jq -c '%s' FILE" % (what, jq)
    for key, value in line.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, dict) and ("role" in first or "from" in first):
            return "if '%s' has the messages, jq -c '.messages = .[\"%s\"]' FILE names them so" % (key, key)
        if isinstance(first, dict):
            return "if its documents are in '%s', jq -c '.[\"%s\"][]' FILE makes lines of them" % (key, key)
    return its_keys(line)


def refuse_packed(name, head):
    """End if what gzip or zstd has packed is not text."""
    refuse(name, head)
    if re.match(rb"PAR1|\x1f\x8b|\x28\xb5\x2f\xfd", head):
        raise Problem(EX_DATA, "%s: what is packed in it is packed itself: unpack it first" % name)


def refuse_other_than_records(name, head):
    """End if a file that should have records is text or of another known form."""
    if not head or has_records(head):
        return
    refuse(name, head)
    if re.match(rb"PAR1|\x1f\x8b|\x28\xb5\x2f\xfd|[\t-\r -~]{4}|\xef\xbb\xbf", head):
        raise Problem(EX_DATA, "%s: holds no records: --decode reads what mt-tokens wrote" % name)


def refuse_text(name, head):
    """End with a remedy for text that is not JSON: a table or prose."""
    lines = head.splitlines()
    header = COLUMNS.match(head)
    if header and (re.search(r"\.[ct]sv\b", name) or
                   lines[1:] and lines[1].count(header[2]) >= lines[0].count(header[2])):
        raise Problem(EX_DATA, "%s: is a table of columns (CSV): convert it by pandas.read_csv(FILE).to_json(OUT, "
                      "orient='records', lines=True)" % name)
    raise Problem(EX_DATA, "%s: line %d: is not JSON; a file of plain text becomes a document by jq -Rs "
                  "'{text: .}' FILE" % (name, 1 + next(i for i, line in enumerate(lines) if line.strip())))


def has_records(head):
    """Does it begin with records? Each count leads to the next one, and no id is beyond all vocabularies."""
    if len(head) < 8 or head.startswith(codecs.BOM_UTF32_LE):
        return False
    words, at = array.array("I", head[:len(head) & ~3]), 0
    if sys.byteorder == "big":
        words.byteswap()
    while at < len(words):
        count = words[at] & ~GROUP
        ids = words[at + 1:at + 1 + count]
        if words[at] & GROUP and len(ids) > 1:          # of a group, the first document's
            ids = ids[2:2 + ids[0]] if ids[1] in (0, WEIGHTS) and ids[0] < count else [GROUP - 1]
        if not 0 < count < 1 << 28 or any(word & 0x7fffffff >= 1 << 20 for word in ids):
            return False
        at += 1 + count
    return True

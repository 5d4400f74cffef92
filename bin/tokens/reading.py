"""Input -> the JSON that makes a document each: lines, elements of an array, objects, or rows of a parquet file."""

import codecs
import functools
import json
import os
import re

from . import formats
from .arrow import parquet_rows
from .errors import EX_DATA, EX_NOINPUT, Problem
from .model import is_model
from .unpack import gunzip, unzstd
from .values import LONGEST, elements, objects

CHUNK_LINES, CHUNK_BYTES = 256, 1 << 18         # what a process converts at once
PIECE = 1 << 20                                 # bytes that are read at once


def look(pieces):
    """The beginning, and all pieces. A Problem comes when its piece is wanted."""
    head, problem = b"", None
    try:
        while len(head) < formats.HEAD and (piece := next(pieces, None)) is not None:
            head += piece
    except Problem as e:
        problem = e

    def whole():
        yield head
        if problem:
            raise problem
        yield from pieces

    return head, whole()


def encoding(head):
    """UTF-8 unless a byte order mark says something else, or zero bytes beside the first character of JSON do."""
    marked = head.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return json.detect_encoding(head[:4]) if marked or re.match(rb"\0[{\[\s]|[{\[\s]\0", head) else "utf-8"


def decoded(name, code, pieces):
    """Pieces in UTF-8, without a byte order mark"""
    decoder, done = codecs.getincrementaldecoder(code)(), False
    try:
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", True).encode()
    except UnicodeError as e:
        raise Problem(EX_DATA, "%s: damaged %s: %s" % (name, code.upper(), getattr(e, "reason", e)))


def with_line_feeds(pieces):
    """Where lines end by CR, alone or before LF, they end by LF."""
    cut = False
    for piece in pieces:
        text = piece[1:] if cut and piece.startswith(b"\n") else piece
        cut = piece.endswith(b"\r")
        yield text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def text_of(name, file, documents=True):
    """The beginning of a file's text and its pieces: unpacked, in UTF-8, with lines that end by LF. Without documents
    it may be any text."""
    head = file.peek(formats.HEAD)
    unpack = {b"\x1f\x8b": gunzip, b"\x28\xb5": unzstd}.get(head[:2])
    if documents or b"\0" in head and not unpack:
        formats.refuse(name, head)
    head, pieces = look(unpack(name, file) if unpack else iter(functools.partial(file.read1, PIECE), b""))
    if unpack:
        formats.refuse_packed(name, head)
    code = encoding(head)
    if code != "utf-8":
        head, pieces = look(decoded(name, code, pieces))
    if b"\n" not in head:
        head, pieces = look(with_line_feeds(pieces))
    return head, pieces


def split_lines(name, pieces):
    parts, size, number = [], 0, 1
    for piece in pieces:
        first, *lines = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > LONGEST:
            raise Problem(EX_DATA, "%s: line %d is longer than 1 GiB" % (name, number))
        if lines:
            yield b"".join(parts)
            rest = lines.pop()
            yield from lines
            number += 1 + len(lines)
            parts, size = [rest], len(rest)
    if size:
        yield b"".join(parts)


def parse(line):
    """The JSON value of a line"""
    try:
        return json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError as e:
        raise Problem(EX_DATA, "is not UTF-8: byte 0x%02x" % e.object[e.start])
    except json.JSONDecodeError as e:
        why = {"Extra data": "something follows its value"}.get(e.msg, e.msg.removesuffix(" starting at"))
        raise Problem(EX_DATA, "is not JSON: " + ("it has zero bytes" if b"\0" in line else
                                                  "%s at character %d" % (why, e.pos + 1)))


def first_line(head):
    """Is it a JSON value ("whole"), one that goes on in the next lines or has another behind it ("open"), or ""?"""
    line, end, _ = head.lstrip().partition(b"\n")
    if not end and len(head) >= formats.HEAD:
        return "whole"
    try:
        json.loads(line)
    except json.JSONDecodeError as e:
        goes_on = e.pos >= len(e.doc.rstrip()) or e.msg == "Extra data" and e.doc[e.pos] == "{"
        return "open" if line[:1] == b"{" and goes_on else ""
    except (ValueError, RecursionError):
        return ""
    return "whole"


def read_documents(name, file):
    """What a file has (lines, elements, objects or rows), and an iterator over them"""
    if file.peek(4)[:4] == b"PAR1":
        return "row", parquet_rows(name)
    head, pieces = text_of(name, file)
    begin = head.lstrip()[:1]
    if begin == b"[":
        return "element", elements(name, pieces)
    first = first_line(head)
    if first == "open":
        return "object", objects(name, pieces)
    if not first and begin not in (b"{", b"\0", b""):
        formats.refuse_text(name, head)
    return "line", split_lines(name, pieces)


def open_file(name, stdin):
    if name == "-" and not stdin:
        raise Problem(EX_NOINPUT, "stdin: is closed")
    if os.path.isdir(name):
        raise Problem(EX_NOINPUT, "%s: is a directory, expected a file of %s" % (
            name, "documents; MODEL stands before the FILEs, and not with --bytes" if is_model(name) else "documents"))
    try:
        return stdin if name == "-" else open(name, "rb")
    except OSError as e:
        raise Problem(EX_NOINPUT, "%s: %s" % (name, e.strerror))


def file_chunks(name, file):
    unit, lines = read_documents(name, file)
    where, part, size, first = "%s: %s" % (name, unit), [], 0, 1
    empty, problem = True, None
    try:
        for line in lines:
            empty = empty and not line.strip()
            part.append(line)
            size += len(line)
            if len(part) == CHUNK_LINES or size >= CHUNK_BYTES:
                yield where, first, part
                part, size, first = [], 0, first + len(part)
    except Problem as e:                # what came before the damage is converted
        problem = e
    if part:
        yield where, first, part
    if problem:
        raise problem
    if empty:
        raise Problem(EX_DATA, "%s: is empty: it has no documents" % name)


def chunks(names, stdin):
    """All input in parts: (where, number of the first line, lines). One that cannot be read ends them:
    (None, exit code, message)."""
    try:
        for name in names:
            with open_file(name, stdin) as file:
                yield from file_chunks("stdin" if name == "-" else name, file)
    except Problem as e:
        yield None, e.code, str(e)

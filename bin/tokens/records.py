"""Records: a little-endian u32 count and that many u32 token ids. Bit 31 of an id excludes the token from the loss,
bit 31 of a count begins a group of documents (mt-step(1))."""

import array
import collections
import sys

from .errors import EX_DATA, Problem

CONTEXT_ONLY = GROUP = 1 << 31
SIDE, REF, WEIGHTS, OLD, TEACHER = 1, 2, 8, 16, 32      # parts of a document in a group
CHOSEN, REJECTED = 1, 2                     # sides


class Document(collections.namedtuple("Document", "ids trained weights side old", defaults=(None, None, 0, None))):
    """trained: a flag for each id, or None where loss is computed on all. weights: of each, or None where all are 1.
    side: CHOSEN, REJECTED or 0. old: the log-probability of each by the policy that sampled it, or None."""
    __slots__ = ()

    def targets(self):
        """How many tokens loss is computed on: nothing predicts the first one."""
        return len(self.ids) - 1 if self.trained is None else sum(self.trained) - self.trained[0]

    def cut(self, longest):
        """Only the first ones."""
        return Document(*(part[:longest] if isinstance(part, list) else part for part in self))

    def parts(self):
        weighted = self.old is not None or self.weights is not None
        return SIDE * (self.side != 0) | WEIGHTS * weighted | OLD * (self.old is not None)

    def words(self):
        return array.array("I", self.ids if self.trained is None else
                           [i if wanted else i | CONTEXT_ONLY for i, wanted in zip(self.ids, self.trained)])

    def group_words(self):
        """The document as a group has it."""
        parts = self.parts()
        words = array.array("I", [len(self.ids), parts] + [self.side] * (self.side != 0)) + self.words()
        for part, floats in (WEIGHTS, self.weights or [1] * len(self.ids)), (OLD, self.old):
            if parts & part:
                words.frombytes(array.array("f", floats).tobytes())
        return words


def record(*documents):
    """The bytes of documents that stay together."""
    if len(documents) == 1 and not documents[0].parts():
        words = array.array("I", [len(documents[0].ids)]) + documents[0].words()
    else:
        words = array.array("I")
        for document in documents:
            words += document.group_words()
        words.insert(0, GROUP | len(words))
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
        head = at + 2 + bool(parts & SIDE) + 2 * bool(parts & REF)
        begin = head + 2 * bool(parts & TEACHER)
        end = begin + count * (1 + bool(parts & WEIGHTS) + bool(parts & OLD))
        if parts & TEACHER and begin + count <= len(words):
            targets = sum(word < CONTEXT_ONLY for word in words[begin + 1:begin + count])
            end += targets * (words[head] + (words[head] + 2) // 2)
        if parts & ~(SIDE | REF | WEIGHTS | OLD | TEACHER) or not count or end > len(words):
            raise Problem(EX_DATA, "%s, document %d: is not valid in its group" % (where, number))
        yield "%s, document %d" % (where, number), words[begin:begin + count]
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

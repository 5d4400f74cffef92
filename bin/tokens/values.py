"""A text of several JSON values -> the bytes of each. Only one value at a time is in memory."""

import codecs
import json
import re

from .errors import EX_DATA, Problem

LONGEST = 1 << 30       # a line or value beyond this is refused: a small packed file can stand for any size
BLANK = re.compile(r"[ \t\n\r]*")


class Text:
    """What has been read of a text, and not been taken yet."""

    def __init__(self, name, unit, pieces):
        self.name, self.pieces, self.problem = name, pieces, None
        self.unit, self.number = unit, 0            # what a value is called, and how many have begun
        self.decode = codecs.getincrementaldecoder("utf-8")().decode
        self.text, self.at, self.line = "", 0, 1    # the line that the text begins in
        self.scan = json.JSONDecoder().raw_decode

    def refuse(self, why, at=None):
        line = self.line + self.text.count("\n", 0, self.at if at is None else at)
        raise Problem(EX_DATA, "%s: %s %d, line %d: %s" % (self.name, self.unit, self.number, line, why))

    def fill(self):
        """Read on until there is twice as much text, so that trying again takes linear time. False: at the end."""
        if self.problem:
            self.refuse(self.problem, len(self.text))
        self.line += self.text.count("\n", 0, self.at)
        parts, size = [self.text[self.at:]], 0
        wanted = max(len(parts[0]), 1 << 16)
        if wanted > LONGEST:
            self.refuse("is longer than 1 GiB")
        self.at = 0
        while size < wanted and (piece := next(self.pieces, None)) is not None:
            try:
                parts.append(self.decode(piece))
            except UnicodeDecodeError as e:         # what comes before it is read
                parts.append(e.object[:e.start].decode())
                self.problem = "is not UTF-8: byte 0x%02x" % e.object[e.start]
                break
            size += len(parts[-1])
        self.text = "".join(parts)
        return size > 0 or self.problem is not None

    def look(self):
        """The next character that is not blank; "" at the end."""
        while True:
            self.at = BLANK.match(self.text, self.at).end()
            if self.at < len(self.text) or not self.fill():
                return self.text[self.at:self.at + 1]

    def take(self):
        """The next value."""
        while True:
            try:
                end = self.scan(self.text, self.at)[1]
                break
            except json.JSONDecodeError as e:
                # an error before the end is one; at the end, or in a string that is open, more text may mend it
                if e.pos < len(self.text) - 16 and not e.msg.startswith("Unterminated string"):
                    self.refuse("%s" % e.msg, e.pos)
                if not self.fill():
                    at_end = e.pos >= len(self.text) - 1 or "string" in e.msg
                    self.refuse("the file ends inside it" if at_end else e.msg, e.pos)
            except RecursionError:
                self.refuse("is nested too deeply")
            except ValueError as e:                 # a number with thousands of digits
                self.refuse(e)
        value, self.at = self.text[self.at:end].encode(), end
        return value


def elements(name, pieces):
    """The elements of a file that is one array."""
    text = Text(name, "element", pieces)
    text.look()
    text.at += 1
    if text.look() != "]":
        while True:
            text.number += 1
            if text.look() in ("]", ""):
                text.refuse("expected an element behind the comma" if text.look() else "the file ends inside its array")
            yield text.take()
            if (mark := text.look()) == "]":
                break
            if mark != ",":
                text.refuse("expected a comma or the array's end behind it" if mark else
                            "the file ends inside its array")
            text.at += 1
    text.at += 1
    if text.look():
        text.refuse("something follows the array's end")


def objects(name, pieces):
    """Values one after the other, each of any number of lines."""
    text = Text(name, "object", pieces)
    while text.look():
        text.number += 1
        yield text.take()

"""What goes wrong: a Problem has an exit code (sysexits.h) and one line for people."""

import os
import sys
import unicodedata

EX_USAGE, EX_DATA, EX_NOINPUT, EX_PEER, EX_NOMEM, EX_IO, EX_CONFIG = 64, 65, 66, 69, 71, 74, 78


class Problem(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def say(message):
    """Print one line on stderr. Control characters (also C1) and bytes that are not UTF-8, which could command the
    terminal, become '?'."""
    line = "".join("?" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(str(message).split()))
    if sys.stderr:      # None if it was closed at the start: print would then write to stdout, among the records
        try:
            erase = "\r\033[K" if sys.stderr.isatty() else ""        # the row may have a progress line
            print(erase + "mt-tokens: " + line, file=sys.stderr, flush=True)
        except OSError:     # its reader has closed: the conversion goes on, and Python's own flush at the end succeeds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

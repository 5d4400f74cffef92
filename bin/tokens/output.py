"""Where records or text go: stdout, or a FILE that has its name only once it is whole."""

import contextlib
import os
import signal
import stat
import sys

from .errors import EX_IO, EX_USAGE, Problem

STOPS = (signal.SIGHUP, signal.SIGTERM)


class Stopped(BaseException):
    """A signal ends the program: what it has begun is removed, then it dies of the signal."""


def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)


def open_output(path, inputs):
    """The file to write to, and its name once it is whole or None"""
    if path in (None, "-"):
        if not sys.stdout:
            raise Problem(EX_IO, "stdout: is closed")
        return sys.stdout.buffer, None
    exists = os.path.exists(path)
    if exists and any(os.path.exists(name) and os.path.samefile(name, path) for name in inputs):
        raise Problem(EX_USAGE, "-o %s: is one of the FILEs that are read" % path)
    try:
        if exists and not stat.S_ISREG(os.stat(path).st_mode):      # a pipe or device
            return open(path, "wb"), None
        path = os.path.realpath(path)                               # what a link points to is replaced, not the link
        return open("%s.%d.part" % (path, os.getpid()), "xb"), path
    except OSError as e:
        raise Problem(EX_IO, "-o %s: cannot be written: %s" % (path, e.strerror))


@contextlib.contextmanager
def output(path, inputs):
    """The file to write to. It is written under another name beside PATH; the name PATH comes last. If anything fails
    before that, what was at PATH stays."""
    for number in STOPS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, stop)
    out, path = open_output(path, inputs)
    if not path:
        yield out
        out.flush()
        return
    try:
        with out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.rename(out.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(out.name)
        raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

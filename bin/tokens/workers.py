"""Several processes: each converts a chunk at a time; results are taken in the order of the input."""

import collections
import os
import signal
import sys
import time

from .errors import EX_PEER, Problem
from .notes import many

worker_job = None


def begin_worker(job, parent):
    global worker_job
    worker_job = job
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):          # what the parent handles: it ends
            signal.signal(number, signal.SIG_IGN)
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG: a worker does not outlive its parent
    except (ImportError, AttributeError, OSError):
        pass
    if os.getppid() != parent:
        os._exit(1)


def run_worker(chunk):
    return worker_job(*chunk)


def convert_all(job, jobs, parts):
    """Yield what job makes of each part, in order. Small input is converted without other processes."""
    first = next(parts, None)
    if first is None:
        return
    yield job(*first)
    second = next(parts, None) if jobs > 1 else None
    if second is None:
        for part in parts:
            yield job(*part)
        return
    import concurrent.futures
    import multiprocessing
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, multiprocessing.get_context("fork"), begin_worker, (job, os.getpid()))
    try:
        waiting = collections.deque([pool.submit(run_worker, second)])
        for part in parts:
            if len(waiting) == 3 * jobs:                # bounds what is in memory
                yield waiting.popleft().result()
            waiting.append(pool.submit(run_worker, part))
        while waiting:
            yield waiting.popleft().result()
    except concurrent.futures.process.BrokenProcessPool:
        raise Problem(EX_PEER, "a process was killed (out of memory?): try fewer --jobs")
    finally:
        # waits for chunks at work: at exit, Python 3.11 may still wake a pool that is closing by itself, and fails
        pool.shutdown(wait=True, cancel_futures=True)


class Progress:
    """A line on a terminal, twice a second."""

    def __init__(self):
        self.shown = bool(sys.stderr) and sys.stderr.isatty()
        self.next = time.monotonic() + 0.5

    def show(self, made):
        if self.shown and time.monotonic() >= self.next:
            self.next = time.monotonic() + 0.5
            sys.stderr.write("\r\033[Kmt-tokens: %s, %s"
                             % (many(made.documents, "document"), many(made.tokens, "token")))
            sys.stderr.flush()

    def clear(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

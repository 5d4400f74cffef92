#!/usr/bin/env python3
"""SGD in Python in place of mt-optim: w -= lr g, by the offsets of shm/README.md, without libmt.

usage: sgd.py RUN

For fp32 runs with fp32 gradients, one mt-stream, untied embeddings and one micro-batch a step, without --ckpt-every.
It needs libatomic (a package of every gcc) for compare-and-swap. Python adds floats one by one: take small models."""
import ctypes
import fcntl
import mmap
import os
import signal
import struct
import sys
import time

ATOMIC, LIBC = ctypes.CDLL("libatomic.so.1"), ctypes.CDLL(None)
LOAD, CAS, ADD = ATOMIC.__atomic_load_8, ATOMIC.__atomic_compare_exchange_8, ATOMIC.__atomic_fetch_add_4
LOAD.restype, CAS.restype = ctypes.c_uint64, ctypes.c_bool
ACQUIRE, RELEASE, FUTEX, WAKE, EVERYBODY = 2, 3, 202, 1, 0x7fffffff
ABI, FILLED, DIRTY, FP32, OPTIM = 3, 2, 3, 2, 2                         # OPTIM: mt-optim's slot
# struct mt_control
EVENT, WAITERS, DTYPE, GRAD, N_UNITS, OFF_UNITS, SLOTS, TXNS = 128, 132, 236, 240, 244, 288, 3136, 7232
TXN, LOSSES = 98624, 320                                                # struct mt_txn: size, offset of losses
ACCUMULATE, APPLY, SKIP, DONE = 1, 2, 3, 4                              # phases of a transaction
LOSS, PIECE = 2, 3                                                      # kinds of messages


class Region:
    """One file of the run. Words that others change go through libatomic."""

    def __init__(self, run, name):
        path = f"{os.environ.get('MT_SHM_DIR', '/dev/shm')}/mt.{os.geteuid()}.{run}.{name}"
        self.fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        self.map = mmap.mmap(self.fd, 0)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if self.get("I", 8) != ABI or self.get("Q", 24) != len(self.map):
            sys.exit(f"sgd: {path}: another ABI, or half made")

    def get(self, what, off):
        return struct.unpack_from("<" + what, self.map, off)[0]

    def set(self, what, off, *values):
        struct.pack_into("<" + what, self.map, off, *values)

    def load(self, off):
        return LOAD(ctypes.c_void_p(self.at + off), ACQUIRE)

    def cas(self, off, expect, want):
        expected = ctypes.c_uint64(expect)
        return CAS(ctypes.c_void_p(self.at + off), ctypes.byref(expected), ctypes.c_uint64(want), RELEASE, 0)

    def floats(self, off, n):
        return memoryview(self.map)[off:off + 4 * n].cast("f")


class Sgd:
    def __init__(self, run):
        self.control, self.rings, self.store = (Region(run, name) for name in ("control", "rings", "store"))
        c = self.control
        if c.get("I", 12) != FILLED or c.get("I", GRAD) != FP32 or c.get("I", DTYPE) != FP32:
            sys.exit("sgd: expected a filled fp32 run with fp32 gradients")
        self.units = [c.get("Q", OFF_UNITS) + 256 * u for u in range(c.get("I", N_UNITS))]
        self.claim()
        self.ring = next(at for at in range(256, 256 + 256 * self.rings.get("I", 128), 256)
                         if self.rings.map[at:at + 32].rstrip(b"\0") == b"grad.0")

    def claim(self):
        """Take mt-optim's slot. Its holder is dead if its lock is free."""
        c, slot = self.control, SLOTS + 256 * OPTIM
        try:
            fcntl.fcntl(c.fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, OPTIM, 1, 0))
        except OSError:
            sys.exit(75)
        word = c.load(slot)
        with open("/proc/self/stat") as f:
            start = int(f.read().rsplit(")", 1)[1].split()[19]) & 0x1ffffff
        c.set("Q", slot + 88, 0)
        mine = os.getpid() << 42 | 1 << 41 | start << 16 | (word + 1) & 0xffff
        if not c.cas(slot, word, mine):
            sys.exit(75)
        c.set("Q", slot + 88, os.stat("/proc/self/ns/pid").st_ino)
        c.set("I", slot + 8, 0)

    def publish(self, region, off, expect, want):
        """Compare-and-swap, then ring the doorbell."""
        done = region.cas(off, expect, want)
        event = ctypes.c_void_p(self.control.at + EVENT)
        ADD(event, 1, RELEASE)
        if self.control.get("I", WAITERS):
            LIBC.syscall(FUTEX, event, WAKE, EVERYBODY, None, None, 0)
        return done

    def newest(self):
        """The word and the record of the newest transaction that is not closed."""
        words = [(self.control.load(at), at) for at in (TXNS, TXNS + TXN)]
        return max((pair for pair in words if pair[0] & 0xff), default=(0, 0))

    def messages(self, word):
        """Messages of the attempt, with their pieces. A message is popped when the caller is done with it."""
        r, ring = self.rings, self.ring
        slots, messages, blocks, block_bytes = struct.unpack_from("<I4xQQQ", r.map, ring + 32)
        while r.load(ring + 128) > (head := r.load(ring + 192)):
            m = messages + 64 * (head % slots)
            k, attempt, kind = struct.unpack_from("<IIH", r.map, m)
            newer = attempt - (word >> 8) & 0xffffff
            if newer and newer < 0x800000:
                return                                                  # the word has changed
            if not newer and k == word >> 32:
                yield kind, m, blocks + block_bytes * (head % slots)
            self.publish(r, ring + 192, head, head + 1)

    def train(self, word, txn):
        """Take what has come for this attempt; commit and apply when all is there."""
        c = self.control
        if word != self.word:
            train = c.get("I", txn + 72) == 1
            self.word, self.pieces = word, {}
            self.left = 1 + (sum(c.get("Q", u) for u in self.units) if train else 0)
            c.set("I", txn + LOSSES + 20, 0)
        for kind, m, block in self.messages(word):
            if kind == LOSS:
                c.set("dQII", txn + LOSSES, *struct.unpack_from("<dQI", self.rings.map, m + 24), 1)
                self.left -= 1
            elif kind == PIECE:
                unit, _, off, n = struct.unpack_from("<IIQQ", self.rings.map, m + 24)
                self.store.floats(c.get("Q", self.units[unit] + 48) + 4 * off, n)[:] = self.rings.floats(block, n)
                self.left -= n
        if not self.left:
            self.commit(word, txn)

    def commit(self, word, txn):
        c, train = self.control, self.control.get("I", txn + 72) == 1
        skip = train and (c.get("I", txn + LOSSES + 16) or not c.get("Q", txn + 80))
        before = c.get("Q", 2 * TXNS + TXN - txn + 256)                 # the other record's t
        c.set("QddI", txn + 256, before + (train and not skip), float("nan"), 1, bool(skip))
        phase = (SKIP if skip else APPLY) if train else DONE
        if not self.publish(c, txn, word, word & ~0xff | phase) or not train:
            return
        step, lr = c.get("Q", txn + 64), c.get("d", txn + 88)
        for unit in self.units:
            n, w, g = c.get("Q", unit), c.get("Q", unit + 16), c.get("Q", unit + 48)
            if not skip:
                weights, gradient = self.store.floats(w, n), self.store.floats(g, n)
                for i in range(n):
                    weights[i] -= lr * gradient[i]
            self.publish(c, unit + 128, step - 1, step)
        self.publish(c, txn, word & ~0xff | phase, word & ~0xff | DONE)

    def run(self):
        self.word = 0
        while self.control.get("I", 12) == FILLED:
            word, txn = self.newest()
            if word & 0xff == ACCUMULATE:
                self.train(word, txn)
            elif word & 0xff in (APPLY, SKIP):                          # another one died while it applied this step
                self.control.set("I", 12, DIRTY)
            time.sleep(0.002)                                           # it polls; mt.h's mt_wait would sleep


if len(sys.argv) != 2:
    sys.exit(__doc__)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Sgd(sys.argv[1]).run()

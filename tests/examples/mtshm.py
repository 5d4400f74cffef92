"""A run's shared memory in Python, without libmt: regions, structures by the names of their fields, a slot, a ring.

Offsets, sizes and constants are those that `mt-store stat --abi --json` prints; shm/PROTOCOL.md says what they mean.
Words that other processes change go through libatomic, a package of every gcc."""
import ctypes
import fcntl
import json
import mmap
import os
import struct
import subprocess
import sys

ABI = json.loads(subprocess.run(["mt-store", "stat", "--abi", "--json"], check=True, stdout=subprocess.PIPE).stdout)
STRUCTURES, CONSTANTS = ABI["structures"], ABI["constants"]
FORM = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "f32": "f", "f64": "d"}
ATOMIC, LIBC = ctypes.CDLL("libatomic.so.1"), ctypes.CDLL(None)
LOAD, CAS, ADD = ATOMIC.__atomic_load_8, ATOMIC.__atomic_compare_exchange_8, ATOMIC.__atomic_fetch_add_4
LOAD_32 = ATOMIC.__atomic_load_4
LOAD.restype, LOAD_32.restype, CAS.restype = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_bool
ACQUIRE, RELEASE, SEQ_CST = 2, 3, 5    # gcc's
FUTEX_WAKE, EVERYBODY = 1, 0x7fffffff
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]


def part(word, name, field):
    """One field of a word that packs several: part(word, "mt_txn.word", "phase")"""
    bits = CONSTANTS["words"][name][field]
    return word >> bits["shift"] & (1 << bits["bits"]) - 1


def packed(name, **fields):
    """The word of these fields; what is too long loses its high bits"""
    bits = CONSTANTS["words"][name]
    return sum((value & (1 << bits[f]["bits"]) - 1) << bits[f]["shift"] for f, value in fields.items())


class At:
    """Structure `name` at byte `off` of a region. at["field"] and at["field"] = x for plain fields (of an array: its
    first element); load and swap (compare-and-swap) for words of 8 bytes that others change."""

    def __init__(self, region, name, off=0):
        self.region, self.off, self.fields = region, off, STRUCTURES[name]["fields"]

    def place(self, field):
        f = self.fields[field]
        return "<" + FORM.get(f["type"], f"{f['size']}s"), self.region, self.off + f["offset"]

    def __getitem__(self, field):
        return struct.unpack_from(*self.place(field))[0]

    def __setitem__(self, field, value):
        struct.pack_into(*self.place(field), value)

    def inner(self, field, i=0):
        """Structure i of a field that is one or several structures"""
        return elements(self.region, self.fields[field]["type"], self.place(field)[2])(i)

    def address(self, field):
        return ctypes.byref(ctypes.c_char.from_buffer(self.region, self.place(field)[2]))

    def load(self, field):
        return LOAD(self.address(field), ACQUIRE)

    def swap(self, field, expect, want):
        return CAS(self.address(field), ctypes.byref(ctypes.c_uint64(expect)), ctypes.c_uint64(want), RELEASE, 0)


def elements(region, name, off):
    """A table of structures at byte `off`: i -> the structure i"""
    return lambda i: At(region, name, off + i * STRUCTURES[name]["size"])


class Run:
    """write=False: of a reader, which can change nothing: what it would store in `control` nobody sees"""

    def __init__(self, name, write=True):
        self.write = write
        (self.fd, control), (_, self.rings), (_, self.store) = map(self.open, [name] * 3, ("control", "rings", "store"))
        self.control, self.header = At(control, "mt_control"), At(control, "mt_header")
        self.txns = [self.control.inner("txn", i) for i in (0, 1)]
        self.units = list(map(elements(control, "mt_unit", self.control["off_units"]), range(self.control["n_units"])))

    def open(self, name, region):
        path = f"{os.environ.get('MT_SHM_DIR', '/dev/shm')}/mt.{os.geteuid()}.{name}.{region}"
        fd = os.open(path, (os.O_RDWR if self.write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK)
        # ctypes takes addresses of writable memory alone: a private mapping shows others' stores while it has none
        how = {"prot": mmap.PROT_READ} if region == "store" else {"flags": mmap.MAP_PRIVATE}
        memory = mmap.mmap(fd, 0, **({} if self.write else how))
        header = At(memory, "mt_header")
        if header["abi"] != ABI["abi"] or header["size"] != len(memory):
            sys.exit(f"{path}: another ABI, or half made")
        return fd, memory

    def floats(self, off, n):
        """n floats at byte `off` of the store, to be read and written"""
        return memoryview(self.store)[off:off + 4 * n].cast("f")

    def claim(self, n):
        """Take slot n, or exit with 75. Its holder is dead if its lock is free."""
        slot = self.control.inner("slots", n)
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, n, 1, 0))
        except OSError:
            sys.exit(75)
        with open("/proc/self/stat") as f:
            start = int(f.read().rsplit(")", 1)[1].split()[19])
        word, slot["pid_ns"] = slot.load("word"), 0
        if not slot.swap("word", word, packed("mt_slot.word", pid=os.getpid(), locked=1, start_time=start,
                                              generation=part(word, "mt_slot.word", "generation") + 1)):
            sys.exit(75)
        slot["pid_ns"], slot["aborted"] = os.stat("/proc/self/ns/pid").st_ino, 0

    def publish(self, at, field, expect, want):
        """Compare-and-swap, then ring the doorbell."""
        done, event = at.swap(field, expect, want), self.control.address("event")
        ADD(event, 1, SEQ_CST)
        if LOAD_32(self.control.address("waiters"), SEQ_CST):
            LIBC.syscall(SYS_FUTEX, event, FUTEX_WAKE, EVERYBODY, None, None, 0)
        return done

    def ring(self, name):
        table = elements(self.rings, "mt_ringbuf", CONSTANTS["first_ring"])
        return next(r for r in map(table, range(At(self.rings, "mt_rings")["n"])) if r["name"].rstrip(b"\0") == name)

    def messages(self, ring, word):
        """Messages of the attempt in a transaction's word, and their blocks. One is popped when its turn is over."""
        attempts = 1 << CONSTANTS["words"]["mt_txn.word"]["attempt"]["bits"]
        while ring.load("tail") > (head := ring.load("head")):
            i = head % ring["slots"]
            m = elements(self.rings, "mt_msg", ring["off_messages"])(i)
            newer = (m["attempt"] - part(word, "mt_txn.word", "attempt")) % attempts
            if 0 < newer < attempts // 2:
                return                                                  # the word has changed
            if not newer:
                begin, n = ring["off_blocks"] + i * ring["block_bytes"], ring["block_bytes"]
                zero = m["kind"] == CONSTANTS["messages"]["grad"] and m["grad.zero"]
                yield m, memoryview(bytes(n)) if zero else memoryview(self.rings)[begin:begin + n]
            self.publish(ring, "head", head, head + 1)

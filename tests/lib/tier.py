"""Tiles of a run for tests of mt-tier: an optimizer that only moves counters, checks of the files, another mt-tier.

    tier.py update RUN N         plays mt-optim for N tiles: each slot must have what its last update has left there
    tier.py check RUN            every file has what the last update has left, and the right seal
    tier.py words RUN            print loaded, updated and written
    tier.py tiles RUN            print each tile's file
    tier.py flip RUN TILE BYTE   change a byte of a tile's file
    tier.py seal RUN TILE t|run|tile    change a word of a tile's seal, and its sum
    tier.py late RUN N           kill mt-tier N times while it reads: nothing comes into a slot when its lock is free
    tier.py steal RUN            the slot's word becomes another process's, without its lock
    tier.py serve RUN [SEED]     an mt-tier that reads and writes parts of tiles in random order, until SIGTERM

Pages that `update` writes name their tile, version (Adam's t) and place."""
import ctypes
import fcntl
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time

HEADER, CHUNK, PAGE, SEAL = 65536, 1 << 20, 65536, 48
MT_TIER, ON_TIER, FUTEX, WAKE_BITSET = 6, 1 << 5, 202, 10
xxh = ctypes.CDLL("libxxhash.so.0")
xxh.XXH3_64bits.restype = ctypes.c_uint64
xxh.XXH3_64bits.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc = ctypes.CDLL(None, use_errno=True)


def xxh3(data):
    data = bytes(data)
    return xxh.XXH3_64bits(data, len(data))


def up(n, to=PAGE):
    return (n + to - 1) // to * to


class Run:
    FORMS = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "f32": "f", "f64": "d"}

    def __init__(self, name):
        self.abi = json.loads(subprocess.run(["mt-store", "stat", "--abi", "--json"], stdout=subprocess.PIPE,
                                             check=True).stdout)["structures"]
        base = os.path.join(os.environ.get("MT_SHM_DIR", "/dev/shm"), f"mt.{os.getuid()}.{name}.")
        self.fd = os.open(base + "control", os.O_RDWR)
        self.map = mmap.mmap(self.fd, 0)
        with open(base + "store", "r+b") as f:
            self.store = mmap.mmap(f.fileno(), 0)
        self.tier = self.off("mt_control", "tier")
        word = ctypes.c_uint64
        self.words = {w: word.from_buffer(self.map, self.tier + self.off("mt_tier", w))
                      for w in ("loaded", "updated", "written")}
        self.event = ctypes.c_uint32.from_buffer(self.map, self.off("mt_control", "event"))
        for f in ("tiles", "slots", "dirs", "moved", "tile_elems", "off_slots", "slot_bytes", "off_dirs", "t0", "from"):
            setattr(self, f + "_" if f == "from" else f, self.get("mt_tier", f, self.tier))
        self.run_id = bytes(self.get("mt_header", "run_id"))
        places = [self.off_dirs + 512 * (2 * i + (self.moved >> i & 1)) for i in range(self.dirs)]
        self.paths = [self.map[at:at + 512].split(b"\0")[0].decode() for at in places]
        self.shapes = [self.shape(i) for i in range(self.tiles)]

    def off(self, of, name):
        return self.abi[of]["fields"][name]["offset"]

    def get(self, of, name, base=0):
        field = self.abi[of]["fields"][name]
        values = struct.unpack_from("<%d%s" % (field["count"], self.FORMS[field["type"]]), self.map,
                                    base + field["offset"])
        return values[0] if field["count"] == 1 else list(values)

    def shape(self, i):
        """unit, file, places in the slot of what the arrays have, seal, bytes"""
        size = self.abi["mt_unit"]["size"]
        for u in range(self.get("mt_control", "n_units")):
            base = self.get("mt_control", "off_units") + u * size
            first, n = self.get("mt_unit", "first_tile", base), self.get("mt_unit", "tiles", base)
            if first <= i < first + n:
                break
        elems, lo = self.get("mt_unit", "elems", base), self.get("mt_unit", "lo", base)
        begin = (i - first) * self.tile_elems
        n = min(elems - begin, self.tile_elems)
        state, both = self.get("mt_control", "state"), self.get("mt_control", "optim") == 1
        arrays = [2 * n] if lo >= len(self.store) else []
        arrays += ({1: [2 * n], 2: [4 * n], 4: [n, n // 64 * 4]}[state]) * (1 + both)
        places, at = [], 0
        for bytes_ in arrays:
            places.append((at, bytes_))
            at += up(bytes_)
        chunks = (HEADER + at + CHUNK - 1) // CHUNK
        path = os.path.join(self.paths[i % self.dirs], "unit-%04d.tile-%03d" % (u, i - first))
        return {"unit": u, "path": path, "places": places, "seal": at, "chunks": chunks,
                "bytes": at + up(SEAL + 8 * chunks, 4096)}

    def word(self, name):
        return self.words[name].value

    def count(self, name):
        self.words[name].value += 1
        self.event.value += 1
        libc.syscall(FUTEX, ctypes.byref(self.event), WAKE_BITSET, 0x7fffffff, None, None, ON_TIER)

    def slot(self, q):
        return self.off_slots + q % self.slots * self.slot_bytes

    def expected(self, q):
        """run_id and t of what is read for q"""
        return (bytes(self.from_) if q < self.tiles else self.run_id), self.t0 + q // self.tiles


def pages(tile, version, bytes_):
    data = b"".join(struct.pack("<QQQ", tile, version, p) + bytes(PAGE - 24) for p in range(up(bytes_) // PAGE))
    return data[:bytes_]


def content(run, tile, version):
    return [pages(tile, version * 8 + i, n) for i, (_, n) in enumerate(run.shapes[tile]["places"])]


def make_seal(run, tile, run_id, t, image):
    s = run.shapes[tile]
    sums = []
    for i in range(s["chunks"]):
        begin = i * CHUNK - HEADER if i else 0
        sums.append(xxh3(image[begin:min(s["seal"], (i + 1) * CHUNK - HEADER)]))
    return seal_block(run_id, tile, s["chunks"], t, sums)


def seal_block(run_id, tile, chunks, t, sums):
    def block(total):
        return (b"mtSEAL 1" + run_id + struct.pack("<IIQQ", tile, chunks, t, total) +
                b"".join(struct.pack("<Q", x) for x in sums))
    # struct mt_seal is 48 bytes and its sums
    return block(xxh3(block(0)))


def update(run, n):
    for q in range(run.word("updated"), run.word("updated") + n):
        until = time.time() + 30
        while run.word("loaded") <= q:
            time.sleep(0.001)
            assert time.time() < until, f"tile of {q} was not loaded"
        tile, version = q % run.tiles, run.t0 + q // run.tiles
        s, at = run.shapes[tile], run.slot(q)
        if version > run.t0:
            for (place, size), want in zip(s["places"], content(run, tile, version)):
                assert run.store[at + place:at + place + size] == want, f"slot of {q} has something else"
        for (place, size), new in zip(s["places"], content(run, tile, version + 1)):
            run.store[at + place:at + place + size] = new
        assert run.word("updated") == q
        run.count("updated")


def check(run):
    assert run.word("written") == run.word("updated"), run.words
    done = run.word("written")
    for tile, s in enumerate(run.shapes):
        version = run.t0 + done // run.tiles + (tile < done % run.tiles)
        with open(s["path"], "rb") as f:
            image = f.read()[HEADER:]
        assert len(image) == s["bytes"], s["path"]
        if version > run.t0:
            for (place, size), want in zip(s["places"], content(run, tile, version)):
                assert image[place:place + size] == want, f"{s['path']} is not at {version}"
        want = make_seal(run, tile, bytes(run.from_) if version == run.t0 else run.run_id, version, image)
        assert image[s["seal"]:s["seal"] + len(want)] == want, f"{s['path']}: seal"


def flip(run, tile, byte):
    with open(run.shapes[tile]["path"], "r+b") as f:
        f.seek(byte)
        old = f.read(1)[0]
        f.seek(byte)
        f.write(bytes([old ^ 1]))
        f.flush()
        os.fsync(f.fileno())


def reseal(run, tile, what):
    s = run.shapes[tile]
    with open(s["path"], "r+b") as f:
        f.seek(HEADER + s["seal"])
        block = f.read(48 + 8 * s["chunks"])
        run_id = block[8:24]
        number, chunks, t = struct.unpack_from("<IIQ", block, 24)
        sums = struct.unpack_from("<%dQ" % chunks, block, 48)
        if what == "t":
            t -= 1
        elif what == "run":
            run_id = bytes(16)
        else:
            number += 1
        f.seek(HEADER + s["seal"])
        f.write(seal_block(run_id, number, chunks, t, sums))
        f.flush()
        os.fsync(f.fileno())


def late(run, n):
    under_way = 0
    for _ in range(n):
        first = run.words["loaded"].value = run.word("written")     # nobody lives who counts
        slots = [(run.slot(q), run.slot_bytes) for q in range(first, run.word("written") + run.slots)]
        for at, size in slots:
            run.store[at:at + size] = b"\x5a" * size
        p = subprocess.Popen(["mt-tier", os.path.basename(sys.argv[2])])
        until = time.time() + 20
        while all(run.store[at + i] == 0x5a for at, size in slots for i in range(0, size, CHUNK)):
            assert p.poll() is None and time.time() < until
        time.sleep(random.random() * 0.005)
        p.send_signal(signal.SIGKILL)
        until = time.time() + 20
        while True:
            try:
                lock(run)
                break
            except OSError:
                assert time.time() < until
        under_way += run.word("loaded") == first
        slots = [(run.slot(q), run.slot_bytes) for q in range(run.word("loaded"), run.word("written") + run.slots)]
        for at, size in slots:
            run.store[at:at + size] = b"\xa5" * size
        time.sleep(0.2)
        for at, size in slots:
            assert run.store[at:at + size] == b"\xa5" * size, "a read ended after the lock was free"
        lock(run, fcntl.F_UNLCK)
        p.wait()
    print(under_way, "of", n, "before the first tile was loaded")


# ---- an mt-tier: one tile is moved page group by page group, several tiles at once, whichever chance says

def lock(run, kind=fcntl.F_WRLCK):
    fcntl.fcntl(run.fd, 37, struct.pack("hhqqi4x", kind, os.SEEK_SET, MT_TIER, 1, 0))      # F_OFD_SETLK


def slot_word(run):
    at = run.off("mt_control", "slots") + MT_TIER * run.abi["mt_slot"]["size"]
    return at, ctypes.c_uint64.from_buffer(run.map, at + run.off("mt_slot", "word"))


def claim(run):
    lock(run)
    at, word = slot_word(run)
    with open("/proc/self/stat") as f:
        started = int(f.read().rsplit(")", 1)[1].split()[19])
    ns = os.stat("/proc/self/ns/pid").st_ino
    struct.pack_into("<Q", run.map, at + run.off("mt_slot", "pid_ns"), 0)
    word.value = os.getpid() << 42 | 1 << 41 | (started & 0x1ffffff) << 16 | ((word.value & 0xffff) + 1) & 0xffff
    struct.pack_into("<Q", run.map, at + run.off("mt_slot", "pid_ns"), ns)
    return word


class Move:
    """A tile that is read or written, as parts that are left"""

    def __init__(self, run, q, write):
        self.run, self.q, self.write, self.tile = run, q, write, q % run.tiles
        s = run.shapes[self.tile]
        self.path, self.name = s["path"], s["path"]
        end = s["seal"] if write else s["bytes"]
        self.parts = [(i, min(64 * PAGE, end - i)) for i in range(0, end, 64 * PAGE)]
        random.shuffle(self.parts)
        if write and os.stat(self.path).st_nlink > 1:
            self.name = self.path + ".new"
            with open(self.path, "rb") as f, open(self.name, "wb") as g:
                g.write(f.read(HEADER))
                g.truncate(HEADER + s["bytes"])

    def part(self):
        begin, n = self.parts.pop()
        at = self.run.slot(self.q)
        with open(self.name, "r+b") as f:
            f.seek(HEADER + begin)
            if self.write:
                f.write(self.run.store[at + begin:at + begin + n])
            else:
                self.run.store[at + begin:at + begin + n] = f.read(n)
        if not self.parts:
            self.end()

    def end(self):
        run, s, at = self.run, self.run.shapes[self.tile], self.run.slot(self.q)
        run_id, t = run.expected(self.q)
        image = run.store[at:at + s["bytes"]]
        if not self.write:
            want = make_seal(run, self.tile, run_id, t, image)
            assert image[s["seal"]:s["seal"] + len(want)] == want, f"{self.path}: seal"
            return
        with open(self.name, "r+b") as f:
            f.seek(HEADER + s["seal"])
            f.write(make_seal(run, self.tile, run.run_id, t + 1, image))
        if self.name != self.path:
            os.rename(self.name, self.path)


def serve(run):
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    slot = claim(run)
    reading, writing, moves, done = run.word("loaded"), run.word("written"), [], set()
    while True:
        assert run.get("mt_header", "state") in (2, 4)
        if run.get("mt_header", "state") == 4:
            break
        while writing < run.word("updated"):
            moves.append(Move(run, writing, True))
            writing += 1
        while not stop and reading < run.word("written") + run.slots:
            moves.append(Move(run, reading, False))
            reading += 1
        if moves:
            m = random.choice(moves)
            m.part()
            if not m.parts:
                moves.remove(m)
                done.add((m.write, m.q))
        elif stop and run.word("written") == run.word("updated"):
            break
        for name, write in (("loaded", False), ("written", True)):
            while (write, run.word(name)) in done:
                done.remove((write, run.word(name)))
                run.count(name)
        if random.random() < 0.05 or not moves:
            time.sleep(random.random() * 0.002)
    slot.value &= 0xffff


def main():
    verb, name, *rest = sys.argv[1:]
    run = Run(name)
    if verb == "update":
        update(run, int(rest[0]))
    elif verb == "check":
        check(run)
    elif verb == "words":
        print(*(run.word(w) for w in ("loaded", "updated", "written")))
    elif verb == "tiles":
        print("\n".join(s["path"] for s in run.shapes))
    elif verb == "steal":
        slot_word(run)[1].value ^= 1
    elif verb == "late":
        late(run, int(rest[0]))
    elif verb == "flip":
        flip(run, int(rest[0]), int(rest[1]))
    elif verb == "seal":
        reseal(run, int(rest[0]), rest[1])
    else:
        random.seed(int(rest[0]) if rest else 0)
        serve(run)


if __name__ == "__main__":
    main()

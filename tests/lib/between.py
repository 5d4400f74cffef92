#!/usr/bin/env python3
"""A custom stage between two rings, written from shm/PROTOCOL.md alone. It forwards every message of one ring to
another and reports on stderr what it forwarded. It ends when the run is removed, or on SIGTERM.

usage: between.py RUN FROM TO [--scale X]     X: multiply gradients by X (fp32 runs)
"""
import array, ctypes, mmap, os, signal, struct, sys, time

PAGE = os.environ.get("MT_SHM_DIR", "/dev/shm")


class Region:
    def __init__(self, run, what, magic):
        with open(f"{PAGE}/mt.{os.geteuid()}.{run}.{what}", "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)
        assert self.map[:8] == magic, f"{what} is not a region of mt"
        assert self.u32(8) == 24, f"{what} is of another ABI version"
        assert self.u64(24) == len(self.map)

    def u32(self, at):
        return struct.unpack_from("<I", self.map, at)[0]

    def u64(self, at):          # one aligned load
        return ctypes.c_uint64.from_buffer(self.map, at).value

    def store64(self, at, v):   # one aligned store; x86 keeps stores in order, which is release
        ctypes.c_uint64.from_buffer(self.map, at).value = v


class Ring:
    def __init__(self, run, name):
        self.region = None
        for what, magic in (("rings", b"mtRINGS "), (f"ring.{name}", b"mtRING  ")):
            try:
                region = Region(run, what, magic)
            except FileNotFoundError:
                continue
            for i in range(region.u32(128)):
                at = 256 + 256 * i
                if region.map[at:at + 32].split(b"\0")[0].decode() == name:
                    self.region, self.at = region, at
        assert self.region, f"no ring '{name}'"
        self.slots = self.region.u32(self.at + 32)
        self.messages = self.region.u64(self.at + 40)
        self.blocks = self.region.u64(self.at + 48)
        self.block_bytes = self.region.u64(self.at + 56)

    def tail(self): return self.region.u64(self.at + 128)
    def head(self): return self.region.u64(self.at + 192)
    def set_tail(self, v): self.region.store64(self.at + 128, v)
    def set_head(self, v): self.region.store64(self.at + 192, v)

    def message(self, k):
        at = self.messages + 64 * (k % self.slots)
        return slice(at, at + 64)

    def block(self, k, n):
        at = self.blocks + self.block_bytes * (k % self.slots)
        return slice(at, at + n)


def main():
    args = sys.argv[1:]
    scale = None
    if "--scale" in args:
        i = args.index("--scale")
        scale = float(args[i + 1])
        del args[i:i + 2]
    run, upstream, downstream = args
    control = Region(run, "control", b"mtCONTRL")
    up, down = Ring(run, upstream), Ring(run, downstream)
    element = 2 if control.u32(240) == 1 else 4
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    counts = {2: 0, 3: 0}
    print("ready", flush=True)
    while not stop and control.u32(12) != 4:
        k = up.head()
        if up.tail() == k or down.tail() - down.head() == down.slots:
            time.sleep(0.0002)
            continue
        message = bytes(up.region.map[up.message(k)])
        kind = struct.unpack_from("<H", message, 8)[0]
        n = struct.unpack_from("<Q", message, 40)[0] * element if kind == 3 else 0
        assert n <= up.block_bytes
        data = bytes(up.region.map[up.block(k, n)])
        if scale is not None and n:
            data = array.array("f", (x * scale for x in array.array("f", data))).tobytes()
        t = down.tail()
        down.region.map[down.block(t, n)] = data
        down.region.map[down.message(t)] = message
        down.set_tail(t + 1)
        up.set_head(k + 1)      # only now: had we died before, the message would still stand upstream
        struct.pack_into("<I", control.map, 128, (control.u32(128) + 1) & 0xffffffff)
        counts[kind] = counts.get(kind, 0) + 1
    print(f"between: {counts[2]} losses, {counts[3]} pieces went through", file=sys.stderr)


main()

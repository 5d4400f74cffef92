"""region.py FILE OFF [VALUE]: print or set the u64 at byte OFF of a region's file; OFF may be RING.tail or RING.head.
region.py FILE lock: print "held" and hold the lock of a run's maker for a minute.
region.py FILE push RING K ATTEMPT: append a batch message of transaction K without rows."""
import fcntl
import struct
import sys
import time

path, what, *rest = sys.argv[1:]
HEADER, RING, TAIL, HEAD = 256, 256, 128, 192       # struct mt_rings, struct mt_ringbuf


def ring(f, name):
    f.seek(128)
    n = struct.unpack("<I", f.read(4))[0]
    for i in range(n):
        f.seek(HEADER + i * RING)
        if f.read(32).rstrip(b"\0").decode() == name:
            return HEADER + i * RING
    sys.exit(f"no ring {name}")


def u64(f, at, value=None):
    f.seek(at)
    if value is None:
        return struct.unpack("<Q", f.read(8))[0]
    f.write(struct.pack("<Q", value))
    f.flush()


with open(path, "r+b", buffering=0) as f:
    if what == "lock":
        fcntl.fcntl(f, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 128, 1, 0))     # F_OFD_SETLK
        print("held", flush=True)
        time.sleep(60)
    elif what == "push":
        at = ring(f, rest[0])
        tail, slots = u64(f, at + TAIL), u64(f, at + 32) & 0xffffffff
        f.seek(u64(f, at + 40) + 64 * (tail % slots))
        f.write(struct.pack("<IIHHIQ40x", int(rest[1]), int(rest[2]), 1, 1, 0, int(rest[1])))
        u64(f, at + TAIL, tail + 1)
    else:
        at = int(what) if what.isdigit() else ring(f, what[:-5]) + (TAIL if what.endswith(".tail") else HEAD)
        if rest:
            u64(f, at, int(rest[0]) % 2**64)
        else:
            print(u64(f, at))

#!/usr/bin/env python3
"""Change a valid directory's files at random. mt-ckpt verify must exit with 0, or with a documented code and one line
on stderr. The same seed gives the same changes; a failed case is kept in DIR/failed-N."""
import argparse
import os
import random
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MAKE = os.path.join(HERE, "..", "lib", "mksafetensors.py")
CODES = {0, 65, 66, 78}  # 66: an index with another file name; 78: config.json only
NUMBERS = [b"0", b"1", b"-1", b"64", b"65535", b"4294967296", b"9223372036854775807", b"18446744073709551615", b"1e308"]
WORDS = [b'"F32"', b'"BF16"', b'"F16"', b'"I64"', b'"F8_E4M3"', b"null", b"[]", b"{}", b'""', b"true", b'"../x"',
         b'"\\u0000"']


def number_at(b, rnd):
    """Bounds of a run of digits in b, or None"""
    start = rnd.randrange(len(b))
    while start < len(b) and not 48 <= b[start] <= 57:
        start += 1
    end = start
    while end < len(b) and 48 <= b[end] <= 57:
        end += 1
    return (start, end) if start < end else None


def mutate(b, rnd):
    kind = rnd.randrange(8)
    head = min(len(b), 3000)  # most fields that can be misread are at the beginning
    at = rnd.randrange(head) if rnd.random() < 0.8 else rnd.randrange(len(b))
    if kind == 0:
        b[at] ^= 1 << rnd.randrange(8)
    elif kind == 1:
        b[at] = rnd.randrange(256)
    elif kind == 2:
        del b[at:at + rnd.randrange(1, 40)]
    elif kind == 3:
        b[at:at] = bytes(rnd.randrange(256) for _ in range(rnd.randrange(1, 10)))
    elif kind == 4:
        del b[rnd.randrange(len(b)):]
    elif kind == 5:
        b[at:at] = b[rnd.randrange(head):][:rnd.randrange(1, 200)]
    elif kind == 6:
        place = number_at(b, rnd)
        if place:
            old = int(bytes(b[place[0]:place[1]])[:18])
            b[place[0]:place[1]] = rnd.choice(NUMBERS + [b"%d" % (old + rnd.choice([-64, -4, -1, 1, 4, 64]))])
    else:
        b[at:at + rnd.randrange(8)] = rnd.choice(WORDS)
    return b


def make_inputs(base):
    subprocess.run([sys.executable, MAKE, "make", base + "/plain"], check=True)
    subprocess.run([sys.executable, MAKE, "make", base + "/shards", "--shards", "2"], check=True)
    return [(base + "/plain", "model.safetensors"), (base + "/plain", "model.safetensors"),
            (base + "/plain", "config.json"),
            (base + "/shards", "model.safetensors.index.json"), (base + "/shards", "model-00002-of-00002.safetensors")]


def verify(directory, timeout):
    p = subprocess.run(["mt-ckpt", "verify", directory], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    lines = p.stderr.count(b"\n")
    ok = p.returncode in CODES and not p.stdout and (lines == 1 if p.returncode else lines <= 1)
    return ok and not any(c < 32 and c != 10 for c in p.stderr), p


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--count", type=int, default=2000)
    a.add_argument("--dir", default="/tmp/mt-fuzz")
    a = a.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    inputs, rnd, failed, codes = make_inputs(a.dir), random.Random(a.seed), 0, {}
    for i in range(a.count):
        source, name = rnd.choice(inputs)
        work = a.dir + "/work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source, work)
        b = bytearray(open(f"{work}/{name}", "rb").read())
        for _ in range(rnd.choice([1, 1, 1, 2, 3, 8])):
            b = mutate(b, rnd) if b else b
        open(f"{work}/{name}", "wb").write(b)
        ok, p = verify(work, 60)
        codes[p.returncode] = codes.get(p.returncode, 0) + 1
        if not ok:
            failed += 1
            shutil.copytree(work, f"{a.dir}/failed-{i}", dirs_exist_ok=True)
            print(f"seed {a.seed}, case {i}, {name}: exit {p.returncode}: {p.stderr!r}")
    print(f"{a.count} cases, exit codes {dict(sorted(codes.items()))}, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

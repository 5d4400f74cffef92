"""disk.py: checkpoints and Hugging Face directories into shared memory (load) and from it (save)."""
import os
import shutil
import subprocess

from programs import (BUILD, CORES, Sides, make_run, mt, new_shm, program, remove_run, remove_shm, runs, scratch)
from updates import CONFIG_97M, missing, region_bytes

FILES = os.path.join(BUILD, "bench/files")


def big_files(path):
    """Names of a directory's files of tensors"""
    return sorted(os.path.join(path, f) for f in os.listdir(path) if f.endswith(".safetensors"))


def add_rows(table, part, what, t, ours, peer, theirs, n):
    """Speed for n bytes, and CPU time, of mt and of the plain program, which took turns"""
    shape = {"model": "97M", "size": n, "size_unit": "bytes"}
    mine, plain = ([n / s / 1e9 for s in t.seconds[side]] for side in (ours, theirs))
    table.add(part, what, mine, "GB/s", peer, plain, others=t.others(), **shape)
    table.add(part, what + ": CPU time", t.cpu[ours], "s", peer, t.cpu[theirs], **shape)


# ---- load: mt-ckpt load, and threads that pread the same files

def make_sources():
    """Directories to load: Hugging Face in both dtypes, a checkpoint with optimizer state: (label, path, dtype)"""
    name = make_run("source", CONFIG_97M, "--dtype", "fp32")
    mt("mt-store", "init", name, "--seed", 1)
    paths = [os.path.join(scratch, "load-" + d) for d in ("fp32", "bf16", "ckpt")]
    mt("mt-ckpt", "export", name, paths[0])
    mt("mt-ckpt", "export", name, paths[1], "--dtype", "bf16")
    mt("mt-ckpt", "save", name, paths[2])
    remove_run(name)
    return list(zip(("Hugging Face fp32", "Hugging Face bf16", "checkpoint fp32"), paths, ("fp32", "bf16", "fp32")))


def load_turn(t, path, dtype, cold):
    """One turn of each side; the run is new each time, as in a training's start"""
    files = big_files(path)
    name = "bench-%d-load" % os.getpid()
    if cold:
        subprocess.run([FILES, "drop", *files], check=True)
    runs.append(name)
    t.time("create", program("mt-store"), "create", name, "--config", CONFIG_97M, "--dtype", dtype)
    t.time("load", program("mt-ckpt"), "load", name, path)
    region = sum(region_bytes(name).values())
    remove_run(name)
    if cold:
        subprocess.run([FILES, "drop", *files], check=True)
    plain = new_shm("plain")
    t.time("allocate", FILES, "allocate", plain, region, CORES)
    t.time("read", FILES, "read", plain, CORES, *files)
    remove_shm(plain)


def bench_load(table, part, options):
    if not os.path.exists(FILES):
        return missing(table, part, "load", "GB/s", FILES)
    peer = "%d threads that pread" % CORES
    for label, path, dtype in make_sources():
        n = sum(map(os.path.getsize, big_files(path)))
        for cold in (False, True):
            t = Sides()
            for _ in range(1 if options.quick else 2 * options.rounds):
                load_turn(t, path, dtype, cold)
            add_rows(table, part, label + (", from disk" if cold else ", page cache"), t, "load", peer, "read", n)
            if not cold:
                t.sums("create and load", "create", "load")
                t.sums("allocate and read", "allocate", "read")
                add_rows(table, part, label + ", with mt-store create", t, "create and load", peer,
                         "allocate and read", n)


# ---- save: mt-ckpt, and dd of files of the same lengths

def save_turn(t, name, args, source):
    """mt-ckpt writes a new directory; dd writes files of the same lengths, each with an fsync"""
    out, plain = os.path.join(scratch, "saved"), os.path.join(scratch, "plain")
    os.sync()
    t.time("mt", program("mt-ckpt"), args[0], name, out, *args[1:])
    lengths = [os.path.getsize(f) for f in big_files(out)]
    shutil.rmtree(out)
    os.mkdir(plain)
    os.sync()
    labels = []
    for i, length in enumerate(lengths):
        labels.append("dd %d" % i)
        t.time(labels[-1], "dd", "if=" + source, "of=%s/%d" % (plain, i), "bs=16M", "iflag=count_bytes,fullblock",
               "count=%d" % length, "conv=fsync")
    t.sums("dd", *labels)
    shutil.rmtree(plain)
    return sum(lengths)


def bench_save(table, part, options):
    for label, dtype, args in (("save, fp32 run", "fp32", ["save"]), ("save, bf16 run", "bf16", ["save"]),
                               ("export, fp32 run", "fp32", ["export"]),
                               ("export --dtype bf16, fp32 run", "fp32", ["export", "--dtype", "bf16"])):
        name = make_run("save", CONFIG_97M, "--dtype", dtype)
        mt("mt-store", "init", name, "--seed", 1)
        source = new_shm("source")
        with open(source, "wb") as f:          # weights, as bytes to write
            block = os.urandom(1 << 20)
            for _ in range(512):
                f.write(block)
        t, n = Sides(), 0
        for _ in range(1 if options.quick else 2 * options.rounds):
            n = save_turn(t, name, args, source)
        add_rows(table, part, label, t, "mt", "dd conv=fsync", "dd", n)
        remove_shm(source)
        remove_run(name)

"""tier.py: mt-tier on a drive, compared with fio in turns: 16 readers and 16 writers at once, 1 MiB, direct I/O."""
import json
import os
import shutil
import subprocess
import tempfile

from programs import BUILD, make_run, mt, program, remove_run, start, stop
from updates import CONFIG_97M, missing

DRIVE = os.environ.get("MT_BENCH_TIER", BUILD)
TIER = os.path.join(BUILD, "bench/tier")
BYTES = 1 << 30


def fio(path, seconds):
    """Bytes a second, read and written together"""
    common = ["--directory=" + path, "--direct=1", "--bs=1M", "--ioengine=psync", "--numjobs=16",
              "--size=%d" % (BYTES // 32), "--time_based", "--runtime=%g" % seconds, "--group_reporting"]
    done = subprocess.run(["fio", "--output-format=json", "--name=r", "--rw=read", *common, "--name=w", "--rw=write",
                           *common], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("fio: exit %d: %s" % (done.returncode, done.stderr.strip()))
    jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    return sum(j["read"]["bw_bytes"] + j["write"]["bw_bytes"] for j in jobs)


def tiles(name, seconds):
    server = start([program("mt-tier"), name])
    rate = float(subprocess.run([TIER, name, str(seconds)], check=True, capture_output=True, text=True).stdout)
    stop(server, 60)
    return rate


def bench_tier(table, part, options):
    for needed in (TIER, shutil.which("fio")):
        if not needed or not os.path.exists(needed):
            return missing(table, part, "tiles read and written", "GB/s", needed or "fio")
    seconds = 2 if options.quick else 20
    drive = tempfile.mkdtemp(prefix="mt-bench.", dir=DRIVE)
    try:
        name = make_run("tier", CONFIG_97M, "--tier", drive, "--tier-memory", 0, "--tier-tile", "4M")
        mt("mt-store", "init", name, "--seed", 1)
        ours, plain, theirs = [], [], []
        for _ in range(options.rounds):
            theirs.append(fio(drive, seconds) / 1e9)
            ours.append(tiles(name, seconds) / 1e9)
            result = json.loads(mt("mt-tier", "--bench", drive, "--seconds", seconds, "--bytes", BYTES))
            plain.append(result["sum"] / 1e9)
        note = "%s; MT_BENCH_TIER names another drive" % DRIVE
        for what, mine in (("tiles of a run", ours), ("mt-tier --bench", plain)):
            table.add(part, what, mine, "GB/s", "fio, 16 + 16 threads", theirs, bar="ratio >= 0.9", note=note)
        remove_run(name)
    finally:
        shutil.rmtree(drive, ignore_errors=True)

"""abi-reader.py ABI.json CONTROL RINGS: read a run's words by the offsets of mt-store stat --abi --json alone; print
them as JSON."""
import json
import mmap
import os
import struct
import sys

abi = json.load(open(sys.argv[1]))
structures, constants = abi["structures"], abi["constants"]
FORMS = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "f32": "f", "f64": "d"}


class Region:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        self.size = os.stat(path).st_size

    def get(self, path, base=0):
        """The field at "struct.field", of the structure at byte `base`"""
        of, name = path.split(".", 1)
        field = structures[of]["fields"][name]
        at = base + field["offset"]
        if field["type"] == "char":
            return self.map[at:at + field["size"]].split(b"\0")[0].decode()
        values = struct.unpack_from("<%d%s" % (field["count"], FORMS[field["type"]]), self.map, at)
        return values[0] if field["count"] == 1 else list(values)

    def at(self, path, i=0, base=0):
        """Byte of element i of a field that is a structure or an array of them"""
        of, name = path.split(".", 1)
        field = structures[of]["fields"][name]
        return base + field["offset"] + i * structures[field["type"]]["size"]


def part(word, of, name):
    p = constants["words"][of][name]
    return word >> p["shift"] & (1 << p["bits"]) - 1


def committed_step(control):
    """The step of the newest transaction that is decided"""
    best = (-1, 0)
    decided = [constants["phases"][p] for p in ("apply", "skip", "done", "logged")]
    for i in range(structures["mt_control"]["fields"]["txn"]["count"]):
        txn = control.at("mt_control.txn", i)
        word = control.get("mt_txn.word", txn)
        if part(word, "mt_txn.word", "phase") in decided:
            best = max(best, (part(word, "mt_txn.word", "k"), control.get("mt_txn.step", txn)))
    return best[1]


def all_rings(control):
    """Of node 0: batches and gradients of all mt-streams, and "save\""""
    nodes = control.at("mt_control.nodes")
    return 2 * control.get("mt_nodes.streams", nodes) * control.get("mt_nodes.nodes", nodes) + 1


control, rings = Region(sys.argv[2]), Region(sys.argv[3])
names = {v: k for k, v in constants["states"].items()}
stages = {}
for i in range(constants["limits"]["slots"]):
    slot = control.at("mt_control.slots", i)
    pid = part(control.get("mt_slot.word", slot), "mt_slot.word", "pid")
    if pid:
        stages[i] = {"pid": pid, "counters": control.get("mt_slot.counters", slot)}
json.dump({
    "magic": control.get("mt_header.magic") == constants["magic"]["control"] and
    rings.get("mt_header.magic") == constants["magic"]["rings"],
    "abi": control.get("mt_header.abi") == abi["abi"],
    "size": control.get("mt_header.size") == control.size,
    "run": control.get("mt_control.name"),
    "family": control.get("mt_geometry.family", control.at("mt_control.geo")),
    "state": names[control.get("mt_header.state")],
    "params": control.get("mt_control.params"),
    "step": committed_step(control),
    "lr": control.get("mt_hyper.lr", control.at("mt_control.hyper", committed_step(control) & 1)),
    "stages": stages,
    "rings": rings.get("mt_rings.n") == all_rings(control) <= constants["limits"]["rings"],
    "first_ring": rings.get("mt_ringbuf.name", constants["first_ring"]),
    "versions": [control.get("mt_unit.version", control.get("mt_control.off_units") + i * structures["mt_unit"]["size"])
                 for i in range(control.get("mt_control.n_units"))],
}, sys.stdout)

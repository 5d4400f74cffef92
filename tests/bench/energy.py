"""energy.py: joules that the machine's processors and memory (RAPL, root alone reads it) and its GPUs (NVML) take."""
import ctypes
import glob
import itertools
import os
import time

POWERCAP = os.environ.get("MT_POWERCAP", "/sys/class/powercap")


def text(*path):
    try:
        with open(os.path.join(*path)) as f:
            return f.read().strip()
    except OSError:
        return ""


def packages():
    """{zone: (joules, the joules at which it begins with 0 again)}. Zones of cores are part of the packages', and
    intel-rapl-mmio has the same ones again"""
    zones = [z for z in glob.glob(POWERCAP + "/intel-rapl:*") if text(z, "name").startswith(("package", "dram"))]
    found = {z: (text(z, "energy_uj"), text(z, "max_energy_range_uj")) for z in zones}
    return {z: tuple(int(v) / 1e6 for v in values) for z, values in found.items() if all(map(str.isdigit, values))}


def gpus():
    """{number: (joules, 0)}"""
    found, gpu, energy = {}, ctypes.c_void_p(), ctypes.c_ulonglong()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return found
        for number in itertools.count():
            if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(gpu)):
                break
            if not nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(energy)):
                found[number] = energy.value / 1e3, 0
    except (OSError, AttributeError):
        pass
    return found


def counters():
    return {**packages(), **gpus()}


class Meter:
    """Joules since it was made. RAPL's counters may pass their ends once meanwhile: they do in 20 minutes or so"""

    def __init__(self, read=counters):
        self.read, self.before, self.began = read, read(), time.monotonic()

    def joules(self):
        """None: nothing counts them here"""
        spent = [now - self.before[key][0] + (end if now < self.before[key][0] else 0)
                 for key, (now, end) in self.read().items() if key in self.before]
        return sum(spent) if spent else None

    def watts(self):
        joules = self.joules()
        return joules and joules / (time.monotonic() - self.began)

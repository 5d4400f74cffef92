"""The table of mt-stream/plan/results/README.md that puts a GH200 beside an H200: `plan_table.py MT-PLAN CONFIGS
README` compares its numbers with those of mt-plan, `... --print` prints the rows as they should be."""
import json
import re
import subprocess
import sys

mt_plan, configs, readme = sys.argv[1:4]
GEMM = {"GH200": 695, "H200": 762}  # TFLOP/s, checked against the plan's text below


def plan_of(model, gpu, options):
    command = [mt_plan, "--config", f"{configs}/{model}.json", "--profile", gpu, *options.split()]
    text, data = (subprocess.run([*command, *how], capture_output=True, text=True, check=True).stdout
                  for how in ([], ["--json"]))
    assert f"rates     of {gpu}: GEMM {GEMM[gpu]} TFLOP/s" in text, text
    return json.loads(data)


def cells(gpu, p):
    shares = {"GEMM": p["gemm_s"], "attention": p["attention_s"], "other kernels": p["other_kernels_s"],
              "recompute": p["recompute_s"], "the optimizer": p["stall_s"], "copies": p["pcie_wait_s"] + p["tail_s"]}
    parts = [f"{name} {100 * s / p['step_s']:.0f}" for name, s in sorted(shares.items(), key=lambda x: -x[1])
             if s / p["step_s"] >= 0.03]
    return [f"{p['step_s']:.3g}", f"{p['tokens_per_s']:,.0f}", f"{p['model_tflops'] / GEMM[gpu]:.2f}",
            f"{p['host_bytes'] / 1e9:.0f}", ", ".join(parts)]


def same(printed, exact):
    """Equal but for one unit of the last digit: rounding may differ between compilers"""
    number = re.compile(r"[\d,]*\d(?:\.\d+)?")
    if number.sub("#", printed) != number.sub("#", exact):
        return False
    for a, b in zip(number.findall(printed), number.findall(exact)):
        unit = 10.0 ** -len(b.partition(".")[2])
        if abs(float(a.replace(",", "")) - float(b.replace(",", ""))) > 1.001 * unit:
            return False
    return True


with open(readme) as f:
    table = f.read().split("## A GH200 beside an H200")[1].split("\n## ")[0]
common = re.search(r"mt-plan --config tests/configs/MODEL\.json --profile GPU (.*) OPTIONS", table)[1]
rows = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")]
wrong = 0
for model, options, gpu, *printed in rows:
    exact = cells(gpu, plan_of(model.strip("`"), gpu, f"{common} {options.strip('`')}"))
    if "--print" in sys.argv:
        print("| " + " | ".join([model, options, gpu, *exact]) + " |")
    elif len(printed) != len(exact) or not all(map(same, printed, exact)):
        print(f"{model} {options} {gpu}:\n  printed {printed}\n  planned {exact}")
        wrong += 1
print(f"{len(rows)} rows, {wrong} wrong", file=sys.stderr)
sys.exit(wrong > 0 or len(rows) < 12)

#!/usr/bin/env python3
"""Compare a run of mt with a golden case. Needs only Python.

    python3 compare.py CASE [--metrics FILE] [--grad1 FILE] [--final DIR] [--bf16 | --optim lion|sgd]

CASE is a folder beside this file; --metrics is what mt-step printed, --grad1 a safetensors file with the unclipped
gradients of step 1 under their Hugging Face names, --final a directory exported with --dtype fp32. What is given is
compared; the worst of each is printed as a part of its bound. Exit 1 if anything is out of bounds or not there.
"""

import argparse
import glob
import json
import math
import os
import sys

from records import read_safetensors

# Bounds for an fp32 run compared with PyTorch's. expect.json's fp32_against_fp64 is the effect of fp32 rounding alone:
# it is below an eighth of each bound (a third for the gradients, a half for the norm).
LOSS = 2e-6  # of the loss
NORM = 1e-5  # of the norm
GRAD = 1e-5  # of the norm of the tensor's gradient
FINAL = 5e-4  # of the norm of the tensor's whole update

# For Lion. Where the argument of its sign is nearly 0, rounding may turn the sign: with gradients of 1e-2 and errors of
# 3e-8, in one or two of the 25 000 x 20 cases. The element is then off by 2 lr, and a matrix of 1024 elements, whose
# update is 6 to 12 lr times 32, by a hundredth of it: four in one matrix are allowed. What follows from a turned sign
# changes loss and norm by about as much as rounding.
LION = {"loss": 1e-5, "grad_norm": 1e-4, "final": 2e-2}

OF_OBJECTIVES = ("reward_chosen", "reward_rejected", "margin", "accuracy", "clip_fraction", "kl")
OBJECTIVE = 1e-5  # what an objective's metrics may be off by: means of sums of some ten log-probabilities

LR = 1e-6  # of --lr: the transaction record holds it in fp32


EXACT = ("glm4_moe", "ernie4_5_moe", "minimax_m2", "dots1", "solar_open", "exaone_moe", "sarvam_moe", "lfm2_moe",
         "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "nemotron_h", "afmoe",
         "kimi_linear", "sarvam_mla", "hy_v3", "hunyuan_v1_moe", "lara_mini", "flint")


def exact(model_type, name):
    """Is it a tensor that compute reads in fp32 in a bf16 run? As in transformers, where the routers of these families
    compute in fp32: most of them keep their corrections and weights in fp32, and minimax_m2's released files have
    them so. kimi_linear's dt_bias, too."""
    names = (".gate.weight", ".wg.weight", "correction_bias", "expert_bias")
    names += ("dt_bias",) * (model_type == "kimi_linear")
    return model_type in EXACT and name.endswith(names)


def sized_by(name):
    """The tensor by whose size errors of this one are measured: for biases of k those of q, whose gradients are sums of
    terms of the same size. A shift of all keys does not change softmax, but for what rope turns: so the terms nearly
    cancel, and a sum of rounding errors is left. Without rope, as in OPT, the gradient is 0 but for these. (seed-oss:
    1.2e-5 of what is left in 4 lanes with FMA, as on arm64, where x86's orders of addition leave less.)"""
    return name.replace("k_proj.bias", "q_proj.bias").replace("Wk.bias", "Wq.bias")


def bf16_bounds(case, steps):
    """The bounds for a bf16 run, compared with PyTorch on weights rounded like mt's.

    Activations and gradients are fp32 in both, so step 1, which starts from equal bits, keeps the fp32 bounds. Then the
    masters differ by rounding, and a weight whose master lies by the middle between two bf16 numbers is rounded up in
    one run and down in the other: a master off by d flips it with probability d/s and moves it by s, the distance of
    its bf16 neighbours. So the weights that compute sees differ by sqrt(d s) in the mean square, which is far more than
    d, and this feeds on itself until it converges, however small the first difference was. With u the weights' update,
    D the masters' difference as a part of u, and A the factor from relative change of weights to relative change of
    gradients:
        d = D |u|,    r^2 = sum(|u| s) / sum(w^2),    relative change of the weights: sqrt(D) r
        Adam turns a relative change of gradients into one of its updates as large:  D = A sqrt(D) r,  so  D = A^2 r^2
    A gradient goes through each of 4 matrices a layer, the embedding and the head, once forward and once backward;
    independent relative errors add up in squares: A = sqrt(2 (4 layers + 2)). D then bounds the final weights and, as
    A sqrt(D) r = D, the gradient norm. The loss changes by sum(g dw) over independent flips: sqrt(sum(g^2 D |u| s)).
    These are root mean squares, and the bounds are three of them."""
    with open(os.path.join(case, "model", "config.json")) as f:
        config = json.load(f)
    kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    layers = next((config[name] for name in names if config.get(name)), None) or len(kinds)
    first = read_model(os.path.join(case, "model"))
    last = read_safetensors(os.path.join(case, "final.safetensors"))
    grad = read_safetensors(os.path.join(case, "grad1.safetensors"))
    flips = squares = effect = 0.0
    for name in grad:  # what is carried has none
        for w, end, g in zip(first[name][2], last[name][2], grad[name][2]):
            # neighbours of a number in [2^(e-1), 2^e) with 8 bits of precision are 2^(e-8) apart
            flip = 0 if exact(config["model_type"], name) else abs(end - w) * math.ldexp(1.0, math.frexp(w)[1] - 8)
            flips += flip
            squares += w * w
            effect += g * g * flip
    d = 2 * (4 * layers + 2) * flips / squares
    return {"loss": 3 * math.sqrt(d * effect) / steps[0]["loss"], "grad_norm": 3 * d, "final": 3 * d}


def read_model(path):
    tensors = {}
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        tensors.update(read_safetensors(file))
    return tensors


def read_metrics(path):
    """Step number -> its metrics. A restarted mt-step may print a step again: the last line counts."""
    steps = {}
    with open(path) as f:
        for line in f:
            entry = json.loads(line)
            steps.setdefault(entry["step"], {}).update(entry)
    return steps


class Report:
    """Collects each measure's largest ratio to its bound, and other errors."""

    def __init__(self):
        self.worst = {}
        self.wrong = []

    def check(self, measure, what, error, bound):
        ratio = error / bound if math.isfinite(error) else math.inf
        if ratio > 1:
            self.wrong.append("%s: %s is off by %.3g, and %.3g is allowed" % (measure, what, error, bound))
        if ratio >= self.worst.get(measure, (-1,))[0]:
            self.worst[measure] = (ratio, what, error, bound)

    def print(self, case):
        for measure, (ratio, what, error, bound) in self.worst.items():
            print("%-14s %-10s %6.3f of the bound (%.2g of %.2g) at %s" % (case, measure, ratio, error, bound, what))
        for line in self.wrong[:20]:
            print("%s: %s" % (case, line), file=sys.stderr)
        if len(self.wrong) > 20:
            print("%s: and %d more" % (case, len(self.wrong) - 20), file=sys.stderr)
        return 1 if self.wrong else 0


def relative(got, want):
    return abs(got - want) / abs(want) if isinstance(got, (int, float)) else math.inf


def difference(got, want):
    return abs(got - want) if isinstance(got, (int, float)) else math.inf


def compare_metrics(report, golden, got, bounds):
    for want in golden["steps"]:
        n = want["step"]
        if n not in got or got[n].get("loss") is None:
            report.wrong.append("step %d has no loss" % n)
            continue
        entry, at = got[n], "step %d" % n
        report.check("loss", at, relative(entry["loss"], want["loss"]), LOSS if n == 1 else bounds["loss"])
        report.check("grad_norm", at, relative(entry.get("grad_norm"), want["grad_norm"]),
                     NORM if n == 1 else bounds["grad_norm"])
        # Terms of the loss. A token whose experts are almost equally probable counts for either of them. With rounded
        # weights it may be another one than in PyTorch, so a bf16 run is compared before its first update only; so are
        # an objective's metrics.
        for key in ("aux_loss", "z_loss", "mtp_loss", *OF_OBJECTIVES):
            if key in want and (n == 1 or bounds["loss"] == LOSS):
                error, bound = (difference, OBJECTIVE) if key in OF_OBJECTIVES else (relative, LOSS)
                report.check(key, at, error(entry.get(key), want[key]), bound)
            elif (key in want) != (key in entry):
                report.wrong.append("step %d: %s is there in one of the two only" % (n, key))
        # Relative to --lr, not to the step's, which warm-up and decay reduce to 0.
        lr = entry.get("lr")
        report.check("lr", at, math.inf if lr is None else abs(lr - want["lr"]) / golden["args"]["lr"], LR)
        if entry.get("tokens") != want["tokens"]:
            report.wrong.append("step %d has %s target tokens, not %d" % (n, entry.get("tokens"), want["tokens"]))
        if entry.get("skipped"):
            report.wrong.append("step %d was skipped" % n)
    beyond = [n for n in got if n > golden["args"]["steps"]]
    if beyond:
        report.wrong.append("there is a step %d" % max(beyond))
    # Evaluations are compared if the run made them, from the case's eval.bin.
    for n, want in golden["eval"].items():
        if got.get(int(n), {}).get("eval_loss") is not None:
            report.check("eval_loss", "step " + n, relative(got[int(n)]["eval_loss"], want),
                         LOSS if n == "0" else bounds["loss"])


def compare_tensors(report, measure, got, want, scale_from, bound):
    """|got - want| relative to |want - scale_from|, tensor by tensor; without scale_from relative to |want|."""
    for name in sorted(set(got) - set(want)):
        report.wrong.append("%s: tensor '%s' should not be there" % (measure, name))
    for name, (kind, shape, values) in want.items():
        if name not in got:
            report.wrong.append("%s: tensor '%s' is not there" % (measure, name))
            continue
        dtype, got_shape, got_values = got[name]
        if (dtype, got_shape) != (kind, shape):
            report.wrong.append("%s: tensor '%s' is %s %s, not %s %s" % (
                measure, name, dtype, got_shape, kind, shape))
            continue
        error = math.sqrt(sum((a - b) ** 2 for a, b in zip(got_values, values)))
        size = want[sized_by(name)][2]
        start = scale_from[sized_by(name)][2] if scale_from else [0.0] * len(size)
        scale = math.sqrt(sum((b - c) ** 2 for b, c in zip(size, start)))
        if scale == 0:  # a tensor that is not trained, or of an expert without tokens
            report.check(measure, name, 0.0 if error == 0 else math.inf, bound)
            continue
        report.check(measure, name, error / scale, bound)


def main():
    parser = argparse.ArgumentParser(description="compare a run of mt with a golden case")
    parser.add_argument("case", metavar="CASE")
    parser.add_argument("--metrics", metavar="FILE", help="mt-step's output")
    parser.add_argument("--grad1", metavar="FILE", help="unclipped gradients of step 1")
    parser.add_argument("--final", metavar="DIR", help="the model exported in fp32")
    parser.add_argument("--bf16", action="store_true", help="the run is a bf16 run")
    parser.add_argument("--optim", default="adamw", metavar="RULE", help="the run's optimizer (default: adamw)")
    options = parser.parse_args()
    if not (options.metrics or options.grad1 or options.final):
        parser.error("nothing to compare: give --metrics, --grad1 or --final")

    if options.bf16 and options.optim != "adamw":
        parser.error("--bf16 goes with adamw only")
    kind = ".bf16" if options.bf16 else "" if options.optim == "adamw" else "." + options.optim

    def golden_file(stem, suffix):
        path = os.path.join(options.case, stem + kind + suffix)
        if not os.path.exists(path):
            parser.error("%s: this case has no such golden file" % path)
        return path

    with open(golden_file("expect", ".json")) as f:
        golden = json.load(f)
    bounds = {"loss": LOSS, "grad_norm": NORM, "final": FINAL}
    if options.bf16:
        bounds = bf16_bounds(options.case, golden["steps"])
    if options.optim == "lion":
        bounds = LION
    report = Report()
    if options.metrics:
        compare_metrics(report, golden, read_metrics(options.metrics), bounds)
    if options.grad1:
        want = read_safetensors(golden_file("grad1", ".safetensors"))
        compare_tensors(report, "grad1", read_safetensors(options.grad1), want, None, GRAD)
    if options.final:
        want = read_safetensors(golden_file("final", ".safetensors"))
        start = read_model(os.path.join(options.case, "model"))
        compare_tensors(report, "final", read_model(options.final), want, start, bounds["final"])
    sys.exit(report.print(os.path.basename(os.path.normpath(options.case)) + kind.replace(".", " ")))


if __name__ == "__main__":
    main()

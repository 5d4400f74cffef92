#!/usr/bin/env python3
"""Open a directory exported by mt in transformers, and compare its loss on a file of records with mt's.

    python3 logits.py DIR RECORDS LOSS [--seq T] [--tolerance X]
    python3 logits.py --list FILE [--tolerance X]      (a line for each model: DIR RECORDS LOSS T)

LOSS is the token mean over RECORDS, as mt-step's eval_loss gives it; documents longer than --seq are cut as mt cuts
them. Exit 0 if the two agree, 1 if not, 77 (skipped) without torch and transformers.
"""

import argparse
import os
import sys

try:
    import torch
    import transformers
except ImportError:
    torch = None

from records import cut, ids, read_records, targets

# fp32 losses of two programs; a bf16 export is widened here as in mt, so the same bound holds.
TOLERANCE = 2e-6


def plainly(config):
    """How transformers shall compute. Falcon's eager attention of 5.24 adds ALiBi twice."""
    attention = "sdpa" if getattr(config, "alibi", False) else "eager"
    return {"attn_implementation": attention, "experts_implementation": "eager"}


def opened(path):
    how = plainly(transformers.AutoConfig.from_pretrained(path))
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True, **how)
    odd = {kind: sorted(names) for kind, names in report.items() if names}
    if odd:
        print("%s: transformers did not take the model as it is: %s" % (path, odd))
        sys.exit(1)
    return model


def loss_of(model, records, seq):
    """transformers' loss, and over how many tokens it is the mean"""
    total, count = 0.0, 0
    with torch.no_grad():
        for document in read_records(records):
            for piece in cut(document, seq or max(2, len(document))):
                want = torch.tensor([-100 if t is None else t for t in targets(piece)])
                logits = model(input_ids=torch.tensor([ids(piece)]), use_cache=False).logits[0].double()
                total += float(torch.nn.functional.cross_entropy(logits, want, ignore_index=-100, reduction="sum"))
                count += int((want != -100).sum())
    return total / count, count


def compare(path, records, mt, seq, tolerance):
    loss, count = loss_of(opened(path), records, seq)
    error = abs(loss - mt) / loss
    print("transformers %s: %s: loss %.9g over %d tokens, mt %.9g, apart by %.2g (%.2g allowed)" % (
        transformers.__version__, os.path.basename(path), loss, count, mt, error, tolerance))
    return error <= tolerance


def main():
    parser = argparse.ArgumentParser(description="compare the loss of an exported model in transformers with mt's")
    parser.add_argument("dir", metavar="DIR", nargs="?")
    parser.add_argument("records", metavar="RECORDS", nargs="?")
    parser.add_argument("loss", metavar="LOSS", type=float, nargs="?")
    parser.add_argument("--seq", type=int, metavar="T", help="cut documents longer than this")
    parser.add_argument("--list", metavar="FILE", help="instead: lines of DIR RECORDS LOSS T")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, metavar="X",
                        help="relative (default %(default)g)")
    options = parser.parse_args()
    if not torch:
        print("skipped: no torch, or no transformers")
        sys.exit(77)
    if not options.list and options.loss is None:
        parser.error("DIR, RECORDS and LOSS, or --list")
    torch.set_num_threads(1)
    models = [(options.dir, options.records, options.loss, options.seq)]
    if options.list:
        with open(options.list) as f:
            models = [(d, r, float(loss), int(seq)) for d, r, loss, seq in map(str.split, f)]
    same = [compare(*model, options.tolerance) for model in models]
    sys.exit(0 if models and all(same) else 1)


if __name__ == "__main__":
    main()

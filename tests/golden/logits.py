#!/usr/bin/env python3
"""Open a directory exported by mt in transformers, and compare its loss on a file of records with mt's.

    python3 logits.py DIR RECORDS LOSS [--seq T] [--tolerance X]

LOSS is the token mean over RECORDS, as mt-step's eval_loss gives it; documents longer than --seq are cut as mt cuts
them. Exit 0 if the two agree, 1 if not, 77 (skipped) without torch and transformers.
"""

import argparse
import sys

from records import cut, ids, read_records, targets

# fp32 losses of two programs; a bf16 export is widened here as in mt, so the same bound holds.
TOLERANCE = 2e-6


def main():
    parser = argparse.ArgumentParser(description="compare the loss of an exported model in transformers with mt's")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("records", metavar="RECORDS")
    parser.add_argument("loss", metavar="LOSS", type=float)
    parser.add_argument("--seq", type=int, metavar="T", help="cut documents longer than this")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, metavar="X",
                        help="relative (default %(default)g)")
    options = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        print("skipped: %s" % error)
        sys.exit(77)

    torch.set_num_threads(1)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        options.dir, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    odd = {kind: sorted(names) for kind, names in report.items() if names}
    if odd:
        print("transformers did not take the model as it is: %s" % odd)
        sys.exit(1)
    total, count = 0.0, 0
    with torch.no_grad():
        for document in read_records(options.records):
            for piece in cut(document, options.seq or max(2, len(document))):
                want = torch.tensor([-100 if t is None else t for t in targets(piece)])
                logits = model(input_ids=torch.tensor([ids(piece)]), use_cache=False).logits[0].double()
                total += float(torch.nn.functional.cross_entropy(logits, want, ignore_index=-100, reduction="sum"))
                count += int((want != -100).sum())
    loss = total / count
    error = abs(loss - options.loss) / loss
    print("transformers %s: loss %.9g over %d tokens, mt %.9g, apart by %.2g (%.2g allowed)" % (
        transformers.__version__, loss, count, options.loss, error, options.tolerance))
    sys.exit(0 if error <= options.tolerance else 1)


if __name__ == "__main__":
    main()

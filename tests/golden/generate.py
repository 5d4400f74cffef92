#!/usr/bin/env python3
"""Compare mt-sample's greedy continuations and their logits with transformers'.

    python3 generate.py --max-tokens N DIR...

Each DIR holds `model`, exported by mt; `prompts` and `continuations`, files of records; and `logits`, which mt-sample
--logits wrote: a vocabulary of fp32 for each new token. The continuations must be those of transformers' generate, and
each row of logits that of transformers' forward pass without a cache. Exit 0 if all agree, 1 if not.
"""

import argparse
import os
import struct
import sys

import torch

from logits import opened
from records import ids, read_records

# Relative to the row's largest logit. Two programs compute in fp32, in different orders of summation.
TOLERANCE = 1e-5


def compare(path, max_tokens):
    """One DIR: the largest difference of a logit, relative to the largest logit of its row."""
    model = opened(os.path.join(path, "model"))
    prompts = [ids(p) for p in read_records(os.path.join(path, "prompts"))]
    continuations = read_records(os.path.join(path, "continuations"))
    if not prompts or len(prompts) != len(continuations):
        sys.exit("%s: %d prompts, %d continuations" % (path, len(prompts), len(continuations)))
    vocab, worst = model.config.vocab_size, 0.0
    # with a cache, a step of Mamba 2 in transformers forgets the limits of the time step, which a whole pass has
    cache = not hasattr(model.config, "time_step_limit")
    with open(os.path.join(path, "logits"), "rb") as f, torch.no_grad():
        for prompt, new in zip(prompts, continuations):
            row = torch.tensor([prompt])
            want = model.generate(row, attention_mask=torch.ones_like(row), do_sample=False, use_cache=cache,
                                  max_new_tokens=max_tokens)[0, len(prompt):].tolist()
            if want != new:
                sys.exit("%s: after %s: mt-sample %s, transformers %s" % (path, prompt, new, want))
            # each position attends only to what is before it: one pass computes the logits of all prefixes
            all_logits = model(input_ids=torch.tensor([prompt + new[:-1]]), use_cache=False).logits[0].double()
            for one in all_logits[len(prompt) - 1:]:
                got = torch.tensor(struct.unpack("<%df" % vocab, f.read(4 * vocab)), dtype=torch.float64)
                worst = max(worst, float((got - one).abs().max() / one.abs().max()))
        if f.read():
            sys.exit("%s: more logits than new tokens" % path)
    return worst


def main():
    parser = argparse.ArgumentParser(description="compare mt-sample's continuations and logits with transformers'")
    parser.add_argument("dirs", metavar="DIR", nargs="+")
    parser.add_argument("--max-tokens", type=int, required=True, metavar="N", help="as given to mt-sample")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for path in options.dirs:
        worst = compare(path, options.max_tokens)
        failed |= worst > TOLERANCE
        print("%s: logits apart by %.2g (%.2g allowed)" % (os.path.basename(path), worst, TOLERANCE), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

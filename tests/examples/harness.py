#!/usr/bin/env python3
"""lm-evaluation-harness with mt's log-probabilities and samples: a model that is larger than the GPU, or one that mt
has just trained. Needs lm_eval and transformers.

    harness.py MODEL TASK...            the tasks' results as JSON, as lm_eval prints them

In your own script: lm_eval.simple_evaluate(model=MT("out/model", seq=2048), tasks=["lambada_openai"])."""
import array
import json
import os
import subprocess
import sys

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import AutoTokenizer

CONTEXT_ONLY = 1 << 31


def run(*command, records=b""):
    return subprocess.run(command, input=records, stdout=subprocess.PIPE, check=True).stdout


def record(ids, context=0):
    """Loss is computed behind the first `context` ids."""
    return array.array("I", [len(ids), *(i | CONTEXT_ONLY for i in ids[:context]), *ids[context:]]).tobytes()


class MT(TemplateLM):
    """seq: tokens of a row, at most those of the model's positions; options: of mt-run --score, such as --device."""

    def __init__(self, model, seq=2048, dtype="bf16", options=()):
        super().__init__()
        self.model, self.max_length, self.dtype, self.options = model, seq - 1, dtype, options
        self.tokenizer = AutoTokenizer.from_pretrained(model)

    @property
    def eot_token_id(self):
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self):
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        bos = self.tokenizer.decode(self.prefix_token_id)
        special = not string.startswith(bos) if add_special_tokens is None else add_special_tokens
        return self.tokenizer.encode(string, add_special_tokens=special)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt)

    def _loglikelihood_tokens(self, requests, **kwargs):
        records = []
        for _, context, continuation in requests:
            ids = (context + continuation)[-self.max_length - 1:]      # as lm_eval: the end of what is too long
            records.append(record(ids, max(len(ids) - len(continuation), 1)))
        lines = run("mt-run", "--score", "--model", self.model, "--data", "-", "--seq", str(self.max_length + 1),
                    "--dtype", self.dtype, *self.options, records=b"".join(records)).splitlines() if records else []
        return [(line["logp"], line["greedy"]) for line in map(json.loads, lines)]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        windows = [[(None, *make_disjoint_window(pair)) for pair in get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, self.max_length, 1)] for text, in (r.args for r in requests)]
        scores = iter(self._loglikelihood_tokens(sum(windows, [])))
        return [sum(next(scores)[0] for _ in mine) for mine in windows]

    def generate_until(self, requests, disable_tqdm=False):
        name, texts = "harness-%d" % os.getpid(), []
        run("mt-store", "create", name, "--config", self.model, "--state", "none", "--dtype", self.dtype)
        try:
            run("mt-ckpt", "load", name, self.model, "--weights")
            for prompt, given in (request.args for request in requests):
                how = normalize_gen_kwargs(given, 256)
                stops = list(filter(None, handle_stop_sequences(
                    how["until"], eos=self.tokenizer.decode(self.eot_token_id))))
                ids = self.tok_encode(prompt)[-(self.max_length - how["max_gen_toks"]):]
                ends = ("--stop=" + stop.replace("\\", r"\\") for stop in stops if not stop.isdigit())
                new = array.array("I", run("mt-sample", name, "--max-tokens", str(how["max_gen_toks"]), "--temperature",
                                           str(how.get("temperature", 0)), *ends, records=record(ids)))
                text = self.tokenizer.decode(new[1:], skip_special_tokens=True)
                texts.append(min((text.split(stop)[0] for stop in stops), key=len, default=text))
        finally:
            run("mt-store", "rm", name, "--force")
        return texts


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    import lm_eval
    print(json.dumps(lm_eval.simple_evaluate(model=MT(sys.argv[1]), tasks=sys.argv[2:])["results"], indent=2))

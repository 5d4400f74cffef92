#!/usr/bin/env python3
"""Small random models of transformers' classes for images too (cases_wrappers.py), and what mt makes of them.

    wrappers.py make DIR N   makes each Nth class, from a random one on, and prints their names; in DIR/NAME a golden
                             case; DIR/NAME/new: its model in bf16, under the names of transformers 5's modules, which
                             newer trainers write
    wrappers.py check DIR    DIR/NAME/out and DIR/NAME/new-out, exported from DIR/NAME/model and DIR/NAME/new as they
                             were loaded, have the same tensors, and transformers opens them as the same class, with the
                             same logits. Of DIR/NAME/final, exported after training, it computes mt's loss.
"""
import json
import os
import random
import shutil
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch  # noqa: E402
import transformers  # noqa: E402

import make  # noqa: E402
from cases_wrappers import KEPT, MORE  # noqa: E402
from logits import TOLERANCE, loss_of  # noqa: E402

sys.path.insert(0, os.path.join(make.HERE, os.pardir, "lib"))
from wrap import read  # noqa: E402


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 20)[None], use_cache=False).logits


def opened(path, dtype=torch.float32):
    """As transformers opens it by itself"""
    model, report = transformers.AutoModelForMultimodalLM.from_pretrained(
        path, dtype=dtype, output_loading_info=True, **make.plainly(transformers.AutoConfig.from_pretrained(path)))
    assert not any(report.values()), (path, report)
    return make.with_text_scale(model.eval())


def make_some(where, n):
    stdout, sys.stdout = sys.stdout, sys.stderr  # make.py's table
    for name, case in list({**KEPT, **MORE}.items())[random.randrange(int(n))::int(n)]:
        path = os.path.join(where, name)
        if name in KEPT:
            shutil.copytree(os.path.join(make.HERE, name), path)
        else:
            make.make_case(name, case, where, once=True)
        bf16 = opened(path + "/model", torch.bfloat16)
        bf16.save_pretrained(path + "/new", save_original_format=False)
        print(name, file=stdout, flush=True)


def keys(config):
    """Those that must be as they were: not the tie, which exports have by the tensors, nor a key of transformers 4."""
    all_keys = config.to_dict()
    for part in all_keys, all_keys.get("text_config", {}):
        for key in "_name_or_path", "tie_word_embeddings", "partial_rotary_factor":
            part.pop(key, None)
    return all_keys


def check_same(was, now):
    assert read(was) == read(now), now
    a, b = opened(was), opened(now)
    assert type(a) is type(b) and keys(a.config) == keys(b.config), now
    # torch's GEMMs may round otherwise where memory is aligned otherwise
    one, other = logits(a), logits(b)
    assert (one - other).abs().max() <= 2e-7 * one.abs().max(), (now, (one - other).abs().max(), one.abs().max())


def check(where):
    for name in sorted(os.listdir(where)):
        path = os.path.join(where, name)
        if name not in KEPT and name not in MORE:
            continue
        check_same(path + "/model", path + "/out")
        check_same(path + "/new", path + "/new-out")
        with open(path + "/metrics") as f:
            mt = [json.loads(line) for line in f][-1]["eval_loss"]
        loss, _ = loss_of(opened(path + "/final"), path + "/data.bin", 24)
        print("%-16s loss %.9g, mt %.9g, apart by %.2g" % (name, loss, mt, abs(loss - mt) / loss))
        assert abs(loss - mt) <= TOLERANCE * loss, name


torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
{"make": make_some, "check": check}[sys.argv[1]](*sys.argv[2:])

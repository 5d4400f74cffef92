"""peer.py: how the programs that mt is compared with answer: lines of JSON on the stdout that they began with."""
import json
import os
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)                   # DeepSpeed and its compiler print on stdout


def answer(line):
    print(json.dumps(line), file=answers, flush=True)


def leave(missing):
    answer({"missing": missing})
    sys.exit(0)

"""MODEL, before its tokenizer is loaded: is it a model's directory, and how large is its vocabulary?"""

import json
import os

from . import formats
from .errors import EX_CONFIG, EX_DATA, EX_USAGE, Problem

GGUF = "is a GGUF file: mt reads directories of transformers; \"A model in GGUF\" in the README and in mt-tokens(1) " \
    "makes one of it"


def is_model(path):
    return any(os.path.isfile(os.path.join(path, name)) for name in ("config.json", "tokenizer_config.json"))


def check_model(model, files):
    """End if MODEL is a file, or has no model but in GGUF."""
    if os.path.isfile(model):
        with open(model, "rb") as file:
            head = file.read(formats.HEAD)
        if head.startswith(b"GGUF"):
            raise Problem(EX_CONFIG, "%s: %s" % (model, GGUF))
        other = next((name for name in files if os.path.isdir(name)), "MODEL")
        kind = "a file of records" if formats.has_records(head) else "a file"
        raise Problem(EX_USAGE, "%s: is %s, expected the directory of a model before the FILEs: mt-tokens %s %s" % (
            model, kind, other, model))
    for name in sorted(os.listdir(model)) if os.path.isdir(model) else ():      # any of them may be read
        path = os.path.join(model, name)
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise Problem(EX_DATA, "%s: not a regular file" % path)
    if os.path.isdir(model) and not is_model(model):
        gguf = sorted(name for name in os.listdir(model) if name.lower().endswith(".gguf"))
        if gguf:
            raise Problem(EX_CONFIG, "%s: %s" % (os.path.join(model, gguf[0]), GGUF))


def read(model, name):
    """An object in a file; {}: mt-run says what is wrong with it"""
    try:
        with open(os.path.join(model, name), encoding="utf-8") as f:
            root = json.load(f)
    except (OSError, ValueError):
        root = None
    return root if isinstance(root, dict) else {}


def text_config(config):
    text = config.get("text_config")                # of a model that reads pictures, too
    return text if isinstance(text, dict) else config


def special_text(model, token):
    """The text of a token that marks something and is no text itself; None: it is another one"""
    added = [(read(model, "tokenizer_config.json").get("added_tokens_decoder") or {}).get(str(token)) or {}]
    added += (t for t in read(model, "tokenizer.json").get("added_tokens") or [] if t["id"] == token)
    return next((t["content"] for t in added if t.get("special")), None)


def missing_end(model, ends):
    """A line, if most answers end in a token that ends no generation, as mt-ckpt load --turn-end finds it"""
    all_ends, text = sum(times for (place, _), times in ends.items() if place == 0), None
    for (_, token), times in sorted(ends.items()):      # the last token first
        if text is None and 2 * times >= all_ends:
            text, end = special_text(model, token), token
    config, name = read(model, "generation_config.json"), "generation_config.json"
    if not config:
        config, name = read(model, "config.json"), "config.json"
        config = config if "eos_token_id" in config else text_config(config)
    eos = config.get("eos_token_id")
    if text is None or (eos is None and name == "config.json") or end in (eos if isinstance(eos, list) else [eos]):
        return []
    return ["answers end in '%s', token %d, which %s lacks as eos_token_id, and generation would not stop: mt-run "
            "writes it into the export's generation_config.json" % (text, end, name)]


class Vocabulary:
    """The ids that the model has rows for, if its config.json says so"""

    def __init__(self, model=None):
        self.model = model
        size = model and text_config(read(model, "config.json")).get("vocab_size")
        self.size = size if type(size) is int else None

    def check(self, ids, tokenizer):
        if self.size and ids and max(ids) >= self.size:
            bad = next(i for i in ids if i >= self.size)
            raise Problem(EX_DATA, "token %d, '%s', is outside the vocabulary of %d in the model's config.json: take "
                          "the tokenizer that the model was trained with, or give the model rows for it: mt-ckpt "
                          "convert %s NEW --resize-vocab N" % (
                              bad, tokenizer.decode([bad]).decode(errors="replace"), self.size, self.model))

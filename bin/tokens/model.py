"""MODEL, before its tokenizer is loaded."""

import os


def is_model(path):
    return any(os.path.isfile(os.path.join(path, name)) for name in ("config.json", "tokenizer_config.json"))

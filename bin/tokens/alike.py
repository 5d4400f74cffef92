"""Does transformers make the same ids of text as tokenizer.json alone? Where that is sure, importing it is not needed.

transformers 5 takes tokenizer.json as it is for its general class. Some other classes take vocabulary and merges from
the file, and the rest from their own code: that is the same where the file has just what the code makes. Whatever is
not known here is left to transformers.
"""

import json
import os

GENERAL = ("PreTrainedTokenizer", "TokenizersBackend")
# Families whose models are loaded with the class of tokenizer_config.json, or as here
FAMILIES = (
    None, "llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "glm4", "glm4_moe", "olmo2", "olmo3", "exaone4", "phi3",
    "smollm3", "seed_oss", "granite", "granitemoe", "stablelm", "nemotron", "arcee", "apertus", "helium", "falcon",
    "gpt_oss", "hunyuan_v1_dense", "starcoder2")
ALWAYS = {"qwen2": "Qwen2Tokenizer"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False}
OWN_CODE = {
    "GPT2Tokenizer": (None, [{**BYTES, "use_regex": True}]),
    "Qwen2Tokenizer": ({"type": "NFC"}, [
        {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
            r"\s+(?!\S)|\s+")}},
        {**BYTES, "use_regex": False}])}


def steps(pre_tokenizer):
    """A pre_tokenizer as a list, without what changes no id."""
    if not pre_tokenizer:
        return []
    parts = pre_tokenizer["pretokenizers"] if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    return [{key: value for key, value in part.items() if key != "trim_offsets"} for part in parts]


def is_as_coded(tokenizer, name, config):
    """Does tokenizer.json have what transformers' class of this name makes?"""
    normalizer, pre_tokenizer = OWN_CODE[name]
    model = tokenizer.get("model", {})
    return (tokenizer.get("normalizer") == normalizer and steps(tokenizer.get("pre_tokenizer")) == pre_tokenizer
            and (tokenizer.get("decoder") or {}).get("type") == "ByteLevel" and model.get("type") == "BPE"
            and not any(model.get(key) for key in (
                "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
                "ignore_merges"))
            and len(config.get("added_tokens_decoder") or {}) == len(tokenizer.get("added_tokens") or []))


def are_tokens_alike(tokenizer, config):
    """Special tokens and added ones must be in tokenizer.json, with the same properties."""
    added = {token["content"]: token for token in tokenizer.get("added_tokens") or []}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        if not isinstance(token, dict) or added.get(token.get("content")) != {"id": int(number), **token}:
            return False
    named = [value for key, value in config.items() if key.endswith("_token") and isinstance(value, (str, dict))]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key) or []
        named += more.values() if isinstance(more, dict) else more
    tokens = [added.get(token["content"] if isinstance(token, dict) else token) for token in named]
    return all(token and token["special"] and not token["normalized"] for token in tokens)


def read(model, name):
    path = os.path.join(model, name)
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def config_of(model):
    return {**read(model, "special_tokens_map.json"), **read(model, "tokenizer_config.json")}


def is_sure(model):
    try:
        return is_known(model, config_of(model), read(model, "tokenizer.json"),
                        read(model, "config.json").get("model_type"))
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return False                        # the code that loads it reports what is wrong


def is_known(model, config, tokenizer, model_type):
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    parts = steps(tokenizer["pre_tokenizer"])
    if model_type not in FAMILIES or "auto_map" in config or config.get("split_special_tokens") or \
            "fix_mistral_regex" in config or \
            config.get("add_prefix_space") and any(part.get("add_prefix_space") is False for part in parts) or \
            any(os.path.exists(os.path.join(model, other)) for other in ("added_tokens.json", "tekken.json")):
        return False
    name = ALWAYS.get(model_type, name)
    if name == "LlamaTokenizer" and "ByteLevel" in [part.get("type") for part in parts]:
        name = GENERAL[0]
    return (name in GENERAL or name in OWN_CODE and is_as_coded(tokenizer, name, config)) and \
        are_tokens_alike(tokenizer, config)

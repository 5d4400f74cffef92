"""Tokenizers: text -> ids and where they are in it, messages -> text. By transformers, by tokenizers alone, or bytes.

placed(text, special) gives (ids, begins, ends): places in characters, None where a tokenizer does not know them.
`marks` are the ids that no ordinary text makes, such as those that end a turn.
"""

import json
import os
import re

from .alike import config_of, is_sure, read
from .errors import EX_CONFIG, EX_DATA, EX_NOINPUT, Problem
from .template import Rendered, Templates, named_templates


class Transformers:
    """A tokenizer that transformers has loaded."""

    def __init__(self, model, trust, clock):
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer
        from transformers.utils import chat_template_utils
        chat_template_utils.datetime = self.clock = clock       # whose now() its strftime_now calls
        self.tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust)
        self.bos, self.eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        self.bos_token, self.eos_token = self.tokenizer.bos_token, self.tokenizer.eos_token
        self.templates, self.marks = {}, set(getattr(self.tokenizer, "added_tokens_decoder", ()))

    def text(self, text):
        return list(self.tokenizer(text)["input_ids"])

    def texts(self, texts):
        return self.tokenizer(texts)["input_ids"] if texts else []

    def placed(self, text, special):
        if not self.tokenizer.is_fast:
            return list(self.tokenizer(text, add_special_tokens=special)["input_ids"]), None, None
        made = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        return list(made["input_ids"]), *columns(made["offset_mapping"])

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).encode(
            errors="replace")

    def template(self, tools):
        try:
            return self.tokenizer.get_chat_template(tools=tools)
        except ValueError as e:
            raise Problem(EX_CONFIG, e)

    def render(self, messages, tools, ask, variables):
        """The text is apply_chat_template's. Where its messages stand in it is known if the template alone makes it."""
        text = self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=ask, tokenize=False,
                                                  **variables)
        source = self.template(tools)
        if source not in self.templates:
            self.templates[source] = Templates({"default": source}, self.tokenizer.special_tokens_map, self.clock)
        made = self.templates[source].render(messages, tools, ask, variables)
        return made if made.text == text else Rendered(text, None, {}, None)


def columns(places):
    """Where tokens begin and where they end."""
    return [begin for begin, _ in places], [end for _, end in places]


class Plain:
    """tokenizer.json and a chat template, read with tokenizers and jinja2 alone."""

    def __init__(self, model, trust, clock):    # trust is not needed: no code of the model is run
        from tokenizers import Tokenizer
        path = os.path.join(model, "tokenizer.json")
        if not os.path.isfile(path):
            raise Problem(EX_NOINPUT, "%s: no such file (only transformers reads older tokenizers)" % path)
        self.config = config_of(model)
        self.tokenizer = Tokenizer.from_str(json.dumps(self.as_configured(read(model, "tokenizer.json"))))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.specials = {k: self.content(v) for k, v in self.config.items() if k.endswith("_token") and self.content(v)}
        for token in [*self.specials.values(), *map(self.content, self.config.get("additional_special_tokens") or [])]:
            if self.tokenizer.token_to_id(token) is None:
                raise Problem(EX_CONFIG, "tokenizer.json has no token '%s': only transformers can read this tokenizer"
                              % token)
        self.bos_token, self.eos_token = self.specials.get("bos_token"), self.specials.get("eos_token")
        self.bos, self.eos = (token and self.tokenizer.token_to_id(token) for token in (self.bos_token, self.eos_token))
        self.marks = set(self.tokenizer.get_added_tokens_decoder())
        templates = Templates(named_templates(model, self.config), self.specials, clock)
        self.template, self.render = templates.source, templates.render

    def as_configured(self, tokenizer):
        """tokenizer.json with the one key that transformers takes from tokenizer_config.json where both have it."""
        prefix, pre = self.config.get("add_prefix_space"), tokenizer.get("pre_tokenizer") or {}
        if isinstance(prefix, bool) and "add_prefix_space" in pre:
            pre["add_prefix_space"] = prefix
        return tokenizer

    @staticmethod
    def content(token):
        return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None

    def text(self, text):
        return self.tokenizer.encode(text).ids

    def texts(self, texts):
        return [made.ids for made in self.tokenizer.encode_batch_fast(texts)]

    def placed(self, text, special):
        made = self.tokenizer.encode(text, add_special_tokens=special)
        return made.ids, *columns(made.offsets)

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False).encode(errors="replace")


class Bytes:
    """No model: a token is a byte. Needs nothing beside Python."""
    bos = eos = bos_token = eos_token = None

    def text(self, text):
        return list(text.encode())

    def texts(self, texts):
        return map(self.text, texts)

    def placed(self, text, special):
        return self.text(text), None, None

    def decode(self, ids):
        try:
            return bytes(ids)
        except ValueError:
            raise Problem(EX_DATA, "id %d is not a byte: ids above 255 need a tokenizer's MODEL, not --bytes"
                          % next(i for i in ids if i > 255))

    def template(self, tools):
        raise Problem(EX_CONFIG, "--bytes has no chat template")


def load(model, way, trust, clock):
    """way: plain, transformers, or None: plain where that is sure to give the ids of transformers, whose import takes
    seconds."""
    if os.path.sep in model and not os.path.isdir(model):
        hub = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model, re.ASCII)
        raise Problem(EX_NOINPUT, "%s: no such directory; %smt does not download: hf download %s --local-dir %s" % (
            (model, "if a Hugging Face name is meant: ", model, "DIR") if hub else (model, "", "ORG/NAME", model)))
    if way:
        kinds = [Plain] if way == "plain" else [Transformers]
    else:
        kinds = [Plain, Transformers] if is_sure(model) else [Transformers, Plain]
    for kind in kinds:
        try:
            return kind(model, trust, clock)
        except ModuleNotFoundError as e:
            if (e.name or "").split(".")[0] not in ("transformers", "tokenizers", "jinja2"):
                raise
        except Problem:
            raise
        except Exception as e:
            if not trust and "trust_remote_code" in str(e):
                raise Problem(EX_CONFIG, "%s: its tokenizer is Python code in that directory; run it with "
                              "--trust-remote-code" % model)
            raise Problem(EX_NOINPUT, "%s: %s" % (model, e))
    raise Problem(EX_CONFIG, "needs transformers, or tokenizers and jinja2: pip install transformers")

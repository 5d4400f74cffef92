"""Tokenizers: text -> ids, messages -> ids, messages -> text, messages -> (ids, trained)."""

import json
import os
import re

from .errors import EX_CONFIG, EX_DATA, EX_NOINPUT, Problem


def inside(turns, places):
    """Does a token reach into a turn? Both are [begin, end) in characters."""
    return [any(a < end and b > begin for begin, end in turns) for a, b in places]


class Transformers:
    """A tokenizer that transformers has loaded."""

    def __init__(self, model, trust):
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer
        self.tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust)
        self.eos = self.tokenizer.eos_token_id

    def text(self, text):
        return list(self.tokenizer(text)["input_ids"])

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).encode(
            errors="replace")

    def template(self):
        try:
            return self.tokenizer.get_chat_template()
        except ValueError as e:
            raise Problem(EX_CONFIG, e)

    def render(self, messages, tools, ask):
        return self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=ask, tokenize=False)

    def chat(self, messages, tools, ask):
        return list(self.tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=ask, tokenize=True, return_dict=True)["input_ids"])

    def marked_chat(self, messages, tools):
        """As apply_chat_template, but for its mask: that ends before a turn whose first character has no token, which
        is so of a blank in tokenizers that leave blanks out of a token's place, such as GPT-NeoX's."""
        from transformers.utils.chat_template_utils import render_jinja_template
        messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
        (text,), (turns,) = render_jinja_template(
            [messages], tools=tools, chat_template=self.tokenizer.get_chat_template(tools=tools),
            return_assistant_tokens_mask=True, **self.tokenizer.special_tokens_map)
        made = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(made["input_ids"]), inside(turns, made["offset_mapping"])


class Plain:
    """tokenizer.json and a chat template, read with tokenizers and jinja2 alone."""

    BEGIN, END = "\ue0f0", "\ue0f1"     # private-use characters around the assistant's text

    def __init__(self, model, trust):       # trust is not needed: no code of the model is run
        from tokenizers import Tokenizer
        path = os.path.join(model, "tokenizer.json")
        if not os.path.isfile(path):
            raise Problem(EX_NOINPUT, "%s: no such file (only transformers reads older tokenizers)" % path)
        self.config = {**self.read(model, "special_tokens_map.json"), **self.read(model, "tokenizer_config.json")}
        self.tokenizer = Tokenizer.from_str(json.dumps(self.as_configured(self.read(model, "tokenizer.json"))))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.specials = {k: self.content(v) for k, v in self.config.items() if k.endswith("_token") and self.content(v)}
        for token in [*self.specials.values(), *map(self.content, self.config.get("additional_special_tokens") or [])]:
            if self.tokenizer.token_to_id(token) is None:
                raise Problem(EX_CONFIG, "tokenizer.json has no token '%s': only transformers can read this tokenizer"
                              % token)
        eos = self.specials.get("eos_token")
        self.eos = self.tokenizer.token_to_id(eos) if eos else None
        self.source = self.find_template(model)
        self.compiled = None

    def as_configured(self, tokenizer):
        """tokenizer.json with the one key that transformers takes from tokenizer_config.json where both have it."""
        prefix, pre = self.config.get("add_prefix_space"), tokenizer.get("pre_tokenizer") or {}
        if isinstance(prefix, bool) and "add_prefix_space" in pre:
            pre["add_prefix_space"] = prefix
        return tokenizer

    @staticmethod
    def read(model, name):
        path = os.path.join(model, name)
        if not os.path.isfile(path):
            return {}
        with open(path, encoding="utf-8") as f:
            return json.load(f)

    @staticmethod
    def content(token):
        return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None

    def find_template(self, model):
        path = os.path.join(model, "chat_template.jinja")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as f:
                return f.read()
        template = self.config.get("chat_template")
        if isinstance(template, list):      # several with names
            template = {t["name"]: t["template"] for t in template}.get("default")
        return template

    def template(self):
        if not self.source:
            raise Problem(EX_CONFIG, "the model has no chat template")
        return self.source

    def compile(self):
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
        plain = self

        class Generation(jinja2.ext.Extension):
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

            def mark(self, caller):
                return plain.BEGIN + caller() + plain.END

        def complain(message):
            raise jinja2.TemplateError(message)

        def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                              sort_keys=sort_keys)

        def now(form):
            import datetime
            return datetime.datetime.now().strftime(form)

        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
        env.filters["tojson"] = to_json
        env.globals.update(raise_exception=complain, strftime_now=now)
        return env.from_string(self.template())

    @staticmethod
    def completed(message):
        """As transformers shows it to a template: without nulls, and with all names of what an assistant thought."""
        message = {key: value for key, value in message.items() if value is not None}
        names = ("reasoning_content", "thinking", "reasoning")
        thought = next((message[name] for name in names if name in message), None)
        return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}

    def marked(self, messages, tools, ask):
        self.compiled = self.compiled or self.compile()
        return self.compiled.render(messages=[self.completed(m) for m in messages], tools=tools, documents=None,
                                    add_generation_prompt=ask, **self.specials)

    def text(self, text):
        return self.tokenizer.encode(text).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False).encode(errors="replace")

    def render(self, messages, tools, ask):
        return self.marked(messages, tools, ask).replace(self.BEGIN, "").replace(self.END, "")

    def chat(self, messages, tools, ask):
        return self.tokenizer.encode(self.render(messages, tools, ask), add_special_tokens=False).ids

    def marked_chat(self, messages, tools):
        turns, text = [], ""                # turns: [begin, end) of the assistant's, in characters
        for piece in re.split("([%s%s])" % (self.BEGIN, self.END), self.marked(messages, tools, False)):
            if piece == self.BEGIN:
                turns.append([len(text), len(text)])
            elif piece == self.END:
                turns[-1][1] = len(text)
            else:
                text += piece
        made = self.tokenizer.encode(text, add_special_tokens=False)
        return made.ids, inside(turns, made.offsets)


class Bytes:
    """No model: a token is a byte. Needs nothing beside Python."""
    eos = None

    def text(self, text):
        return list(text.encode())

    def decode(self, ids):
        try:
            return bytes(ids)
        except ValueError:
            raise Problem(EX_DATA, "id %d is not a byte: ids above 255 need a tokenizer's MODEL, not --bytes"
                          % next(i for i in ids if i > 255))

    def template(self):
        raise Problem(EX_CONFIG, "--bytes has no chat template")


def load(model, plain, trust):
    if os.path.sep in model and not os.path.isdir(model):
        hub = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model, re.ASCII)
        raise Problem(EX_NOINPUT, "%s: no such directory" % model + (
            "; if a Hugging Face name is meant: mt does not download: hf download %s --local-dir DIR" % model
            if hub else ""))
    for kind in [Plain] if plain else [Transformers, Plain]:
        try:
            return kind(model, trust)
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

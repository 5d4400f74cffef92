"""Chat templates, rendered by jinja2 as transformers renders them."""

import json
import os

from .errors import EX_CONFIG, Problem
from .straight import Watched, is_straight


class Templates:
    """The templates of a model: one, or several with names."""

    def __init__(self, model, config, specials):
        self.named, self.specials, self.compiled = self.find(model, config), specials, {}

    @staticmethod
    def find(model, config):
        """{name: source}; the files come before tokenizer_config.json."""
        named, path = {}, os.path.join(model, "chat_template.jinja")
        others = os.path.join(model, "additional_chat_templates")
        if os.path.isfile(path):
            named["default"] = path
        if os.path.isdir(others):
            named.update((name[:-6], os.path.join(others, name)) for name in os.listdir(others)
                         if name.endswith(".jinja"))
        for name, path in named.items():
            with open(path, encoding="utf-8") as f:
                named[name] = f.read()
        if named:
            return named
        source = config.get("chat_template")
        return {t["name"]: t["template"] for t in source} if isinstance(source, list) else \
            {"default": source} if source else {}

    def source(self, tools):
        source = self.named.get("default")
        if tools is not None:
            source = self.named.get("tool_use", source)
        if not source:
            raise Problem(EX_CONFIG, "the model has no chat template" + (
                " named default, only %s" % ", ".join(sorted(self.named)) if self.named else ""))
        return source

    def compile(self, source):
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
        spans = self

        class Generation(jinja2.ext.Extension):
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

            def mark(self, caller):
                text = caller()
                spans.spans.append((spans.length, spans.length + len(text)))
                return text

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
        return env.from_string(source), is_straight(env.parse(source))

    @staticmethod
    def completed(message):
        """As transformers shows it to a template: without nulls, and with all names of what an assistant thought."""
        message = {key: value for key, value in message.items() if value is not None}
        names = ("reasoning_content", "thinking", "reasoning")
        thought = next((message[name] for name in names if name in message), None)
        return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}

    def compiled_of(self, tools):
        source = self.source(tools)
        if source not in self.compiled:
            self.compiled[source] = self.compile(source)
        return self.compiled[source]

    def pieces(self, messages, tools, ask, variables):
        """The text in the pieces in which jinja2 writes it. self.length is what has been written so far."""
        template, _ = self.compiled_of(tools)
        self.spans, self.length = [], 0
        for piece in template.generate(
                messages=messages, tools=tools, documents=None, add_generation_prompt=ask,
                **{**self.specials, **variables}):
            yield piece
            self.length += len(piece)

    def render(self, messages, tools, ask, variables):
        return "".join(self.pieces(list(map(self.completed, messages)), tools, ask, variables))

    def marked(self, messages, tools, variables):
        """(text, [begin, end) of what {% generation %} marks): marked text comes behind the text written so far."""
        return self.render(messages, tools, False, variables), self.spans

    def bounds(self, messages, tools, variables):
        """(where each message and the loop over them ends, the generation prompt); None if the template is not
        straight. Behind the messages it must write nothing but the generation prompt."""
        if not self.compiled_of(tools)[1]:
            return None
        made = []
        for part, ask in (messages, False), (messages[:1], True):
            watched = Watched(map(self.completed, part), lambda: self.length)
            text = "".join(self.pieces(watched, tools, ask, variables))
            if len(watched.bounds) != len(part) + 1:
                return None
            made.append((watched.bounds, text[watched.bounds[-1]:]))
        (bounds, rest), (_, header) = made
        return None if rest else (bounds, header)

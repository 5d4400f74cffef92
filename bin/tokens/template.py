"""Chat templates, rendered by jinja2 as transformers renders them.

Each loop of a template is made to note which message it is at, and how much text has been written until then. So one
render shows where every message stands in the text, also where the template looks at later messages.
"""

import collections
import datetime
import json
import os

from .errors import EX_CONFIG, Problem

# text; [begin, end) of what {% generation %} marks, or None; {place of a message: [begin, end) of what its turn in the
# loop writes}; where the loop over the messages ends, or None
Rendered = collections.namedtuple("Rendered", "text marks places end")


def named_templates(model, config):
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


class Clock:
    """The time that templates write: that of --date, or one time for all records."""

    def __init__(self, date=None):
        self.time, self.asked = date or datetime.datetime.now(), False

    def now(self):
        self.asked = True
        return self.time


class Templates:
    """The templates of a model: one, or several with names."""

    def __init__(self, named, specials, clock):
        self.named, self.specials, self.clock, self.compiled = named, specials, clock, {}

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
                spans.marks.append((spans.length, spans.length + len(text)))
                return text

            def note(self, loop, message):
                if id(message) in spans.known:
                    spans.notes.append((loop, spans.known[id(message)], spans.length))

            def leave(self, loop):
                spans.notes.append((loop, None, spans.length))

        def complain(message):
            raise jinja2.TemplateError(message)

        def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                              sort_keys=sort_keys)

        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
        env.filters["tojson"] = to_json
        env.globals.update(raise_exception=complain, strftime_now=lambda form: self.clock.now().strftime(form))
        tree = env.parse(source)
        watch(tree, Generation.identifier, iter(range(len(source))))
        return env.from_string(tree)

    @staticmethod
    def completed(message):
        """As transformers shows it to a template: without nulls, and with all names of what an assistant thought."""
        message = {key: value for key, value in message.items() if value is not None}
        names = ("reasoning_content", "thinking", "reasoning")
        thought = next((message[name] for name in names if name in message), None)
        return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}

    def render(self, messages, tools, ask, variables):
        source = self.source(tools)
        if source not in self.compiled:
            self.compiled[source] = self.compile(source)
        messages = list(map(self.completed, messages))
        self.known = {id(message): at for at, message in enumerate(messages)}
        self.marks, self.notes, self.length, pieces = [], [], 0, []
        for piece in self.compiled[source].generate(
                messages=messages, tools=tools, documents=None, add_generation_prompt=ask,
                **{**self.specials, **variables}):
            pieces.append(piece)
            self.length += len(piece)
        return Rendered("".join(pieces), self.marks, *places(self.notes, len(messages), self.length))


def watch(node, extension, numbers):
    """Make the loops below this node of a template's tree call note at each turn, and leave behind the last one. Loops
    in loops look ahead: they do not, since it would take most of the time."""
    from jinja2 import nodes

    def call(name, line, *values):
        hook = nodes.Call(nodes.ExtensionAttribute(extension, name), list(values), [], None, None)
        return nodes.ExprStmt(hook).set_lineno(line, override=True)

    for part in node.iter_child_nodes():
        if not isinstance(part, nodes.For):
            watch(part, extension, numbers)
    for _, value in node.iter_fields():
        for at in range(len(value) - 1, -1, -1) if isinstance(value, list) else ():
            part = value[at]
            if isinstance(part, nodes.For) and isinstance(part.target, nodes.Name):
                number, line = nodes.Const(next(numbers)), part.lineno
                part.body.insert(0, call("note", line, number, nodes.Name(part.target.name, "load")))
                value.insert(at + 1, call("leave", line, number))


def places(notes, count, length):
    """(places, end) of Rendered. Of the loops that have a message, that counts which writes the most text."""
    running, longest, found, last = {}, {}, {}, None
    for loop, at, begin in notes:
        if at is not None:
            running.setdefault(loop, []).append((at, begin))
            continue
        turns = running.pop(loop, None)
        if not turns or turns[0][1] == begin:
            continue
        last = begin
        for (at, start), stop in zip(turns, [start for _, start in turns[1:]] + [begin]):
            if begin - turns[0][1] > longest.get(at, 0):
                longest[at], found[at] = begin - turns[0][1], (start, stop)
    if count - 1 in found:                  # what stands behind the loop is the last message's
        found[count - 1] = found[count - 1][0], length
    return found, last

"""Which tokens of a document are trained on: a line in any form -> Documents (records.py): ids, with a flag for each.

A chat is tokenized once. The ends of its messages, or the lengths of rendered beginnings of the chat, show where the
assistant's turns are in its text; the tokens' places in the text show where they are among the ids.
"""

import bisect
import re

from .errors import EX_DATA, Problem
from .normalize import Chat, Ids, Pair, Text, document, line_weight, shapes, without_begin, without_end
from .notes import Notes
from .pairs import has_sides, sides
from .records import CHOSEN, REJECTED, Document
from .tokenizer import Bytes

BLANK = "\ue0f2\ue0f3"                      # private-use characters, instead of what a turn says


def common(a, b):
    """The length of the common beginning of two strings or lists, found by halves: comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Turns:
    """Where the assistant's turns are in a rendered chat."""

    def __init__(self, tokenizer, chat, text):
        self.tokenizer, self.chat, self.text = tokenizer, chat, text
        self.bounds = tokenizer.bounds(chat.messages, chat.tools, chat.variables)

    def render(self, messages, ask=False):
        """None if the template fails at it: it may refuse a chat that ends early."""
        try:
            return self.tokenizer.render(messages, self.chat.tools, ask, self.chat.variables)
        except MemoryError:
            raise
        except Exception:
            return None

    def begins_with(self, part):
        return part is not None and self.text.startswith(part)

    def find(self, at, since):
        """[begin, end) in characters of the turn at this place, which is behind `since`, or the reason why its words
        are not there."""
        messages = self.chat.messages
        if self.bounds and at:
            bounds, header = self.bounds
            if self.text.startswith(header, bounds[at]):
                return bounds[at] + len(header), bounds[at + 1]
        before = self.render(messages[:at], True) if at else None
        after = self.text if at + 1 == len(messages) else self.render(messages[:at + 1])
        whole = self.begins_with(after)
        if whole and not at:
            return self.first(), len(after)
        if whole and self.begins_with(before):
            return len(before), len(after)
        return self.search(at, since, before, len(after) if whole else None)

    def first(self):
        """Where the turn of an assistant begins that speaks first: behind the generation prompt."""
        header = self.header([{"role": "user", "content": "a"}])
        return self.text.index(header) + len(header) if header and header in self.text else 0

    def header(self, messages, asking=None):
        silent = self.render(messages)
        asking = self.render(messages, True) if asking is None else asking
        return asking[len(silent):] if silent is not None and asking is not None and asking.startswith(silent) else ""

    def search(self, at, since, before, end):
        """A turn that the template renders in another way when it is the last: the part of the text that changes when
        the turn has other words, and the text that the template writes behind a turn."""
        messages, text = self.chat.messages, self.text
        blank = blanked(messages[at])
        other = self.render([*messages[:at], blank, *messages[at + 1:]])
        alone = self.render([*messages[:at], blank])
        if other is None or BLANK not in other:
            return "the chat template does not show where they are"
        begin = common(text, other)
        stop = len(text) - common(text[::-1][:len(text) - begin], other[::-1][:len(other) - begin])
        if end is None:
            tail = alone[alone.rindex(BLANK) + len(BLANK):] if alone is not None and BLANK in alone else ""
            end = stop + common(tail, text[stop:])
        begin = self.begin_of(at, since, begin, before)
        if begin is None:
            return "the chat template does not show where they begin"
        return (begin, end) if has_words(messages[at], text[begin:end]) else \
            "the chat template leaves out a part of them, such as their reasoning"

    def begin_of(self, at, since, limit, before):
        """Where the turn begins: behind the generation prompt, which ends at `limit` or earlier."""
        if self.begins_with(before):
            return len(before)
        messages, text = self.chat.messages[:at], self.text
        if not messages:
            return min(self.first(), limit)
        silent = self.render(messages)
        header = self.header(messages, before)
        if self.begins_with(silent):
            return len(silent) + common(header, text[len(silent):])
        found = text.rfind(header, since, limit) if header else -1
        if found >= 0:
            return found + len(header)
        ended = any(text.endswith(header[:n], since, limit) for n in range(len(header), 0, -1))
        return limit if ended and not self.chat.messages[at].get("tool_calls") else None


def blanked(message):
    """The message with other words: of a tool call, another function's name."""
    if message.get("tool_calls"):
        *calls, last = message["tool_calls"]
        return {**message, "tool_calls": [*calls, {**last, "function": {**last["function"], "name": BLANK}}]}
    return {**message, "content": BLANK}


def has_words(message, turn):
    """Are all of a message's words in this text?"""
    words = re.split("</?think>", message.get("content") or "")
    words += [message[key] for key in ("reasoning_content", "reasoning", "thinking") if message.get(key)]
    words += [call["function"]["name"] for call in message.get("tool_calls") or []]
    return all(isinstance(part, str) and part.strip() in turn for part in words)


def without(spans, others):
    """Spans without what is in others; both in order."""
    for begin, end in others:
        spans = [piece for a, b in spans for piece in ((a, min(b, begin)), (max(a, end), b)) if piece[0] < piece[1]]
    return spans


class Maker:
    """Converts a line to Documents."""

    def __init__(self, tokenizer, pairs=False):
        self.tokenizer, self.pairs, self.notes, self.ready = tokenizer, pairs, Notes(), {}
        sample = tokenizer.text("a")
        self.begins = tokenizer.bos is not None and sample[:1] == [tokenizer.bos]      # adds BOS itself
        self.ends = tokenizer.eos is not None and sample[-1:] == [tokenizer.eos]
        try:
            self.has_template = bool(tokenizer.template(None))
        except Problem:
            self.has_template = False

    def prepare(self, lines):
        """Tokenizes the texts of many lines at once, which takes less time than one by one."""
        texts = [line["text"] for line in lines if isinstance(line, dict) and isinstance(line.get("text"), str)]
        try:
            self.ready = dict(zip(texts, self.tokenizer.texts(texts)))
        except Exception:                   # whichever is at fault says so when its turn comes
            self.ready = {}

    def documents(self, line):
        """The Documents of a line that stay together: one, or those of chosen and rejected."""
        if has_sides(line, self.pairs, self.notes):
            made = map(self.document, sides(line, self.has_template, self.notes))
            return [made._replace(side=side) for made, side in zip(made, (CHOSEN, REJECTED))]
        made, weight = self.document(document(line, self.has_template, self.notes)), line_weight(line)
        if weight != 1:
            made = made._replace(weights=[weight * w for w in made.weights or [1] * len(made.ids)])
        return [made]

    def document(self, made):
        if isinstance(made, Ids):
            return Document(made.ids, made.trained, made.weights, old=made.logprobs)
        if isinstance(made, Chat):
            made = Document(*self.chat(made))
            self.notes.end(made.ids, made.trained)
            return made
        return Document(*(self.text(made.text) if isinstance(made, Text) else self.pair(made)))

    # ---- texts

    def once(self, ids):
        """The ids of a text without a second BOS or EOS where the text has its own: (ids, how many left out before)."""
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        before = int(self.begins and ids[1:2] == [bos])
        if before:
            self.notes.count("text begins with BOS: the tokenizer adds no second one",
                             "texts begin with BOS: the tokenizer adds no second one")
        behind = int(self.ends and len(ids) > 1 and ids[-2] == eos)
        if behind or not self.ends and eos is not None and len(ids) > before and ids[-1] == eos:
            self.notes.count("text ends in EOS: no second one is added", "texts end in EOS: no second one is added")
        return (ids[before:len(ids) - behind] if before or behind else ids), before

    def with_end(self, ids):
        eos = self.tokenizer.eos
        if eos is None:
            if not isinstance(self.tokenizer, Bytes):
                self.notes.say("the tokenizer has no EOS: nothing marks the end of a document")
        elif not ids or ids[-1] != eos:
            ids.append(eos)
        return ids

    def text(self, text):
        ids = self.ready.pop(text, None) or self.tokenizer.text(text)
        return self.with_end(self.once(ids)[0]), None

    def prompt(self, text):
        """The ids of a text that the model is to continue: without EOS."""
        if not text:
            return []
        ids = self.tokenizer.text(text)
        return self.once(ids[:-1] if self.ends else ids)[0]

    def pair(self, pair):
        ids, _, ends = self.tokenizer.placed(pair.prompt + pair.completion, True)
        if ends is None:
            context = common(self.tokenizer.text(pair.prompt), ids)
        else:                               # a token that spans both belongs to the completion
            context = next((at for at, end in enumerate(ends) if end > len(pair.prompt)), len(ids) - self.ends)
        ids, before = self.once(ids)
        ids, context = self.with_end(ids), max(context - before, 0)
        return ids, [False] * context + [True] * (len(ids) - context)

    # ---- chats

    def chat(self, chat):
        marked = chat.start is None and re.search(r"\{%-?\s*generation\b", self.tokenizer.template(chat.tools))
        chat, text, spans = self.rendered(chat, marked)
        turns = Turns(self.tokenizer, chat, text)
        if marked:
            spans = without(spans, self.masked(turns, 0))
        elif chat.start is not None:
            prompt = self.tokenizer.render(chat.messages[:chat.start], chat.tools, True, chat.variables)
            spans = without([(common(prompt, text), len(text))], self.masked(turns, chat.start))
        else:
            spans = self.answers(turns)
        return *self.flagged(text, spans, marked), self.weights(turns, marked)

    def weights(self, turns, marked):
        """A weight for each token, or None where all are 1."""
        weights, since = None, 0
        for at, weight in sorted(turns.chat.weights.items()):
            if not weight or turns.chat.messages[at]["role"] != "assistant":
                continue
            found = turns.find(at, since)
            if isinstance(found, str):
                raise Problem(EX_DATA, "message %d has a weight, but %s" % (at + 1, found))
            since = found[1]
            ids, here = self.flagged(turns.text, [found], marked)
            weights = [weight if i else w for i, w in zip(here, weights or [1] * len(ids))]
        return weights

    def rendered(self, chat, marked):
        """(chat, text, spans): the chat as its template takes it."""
        failure = None
        for messages in shapes(chat.messages):
            try:
                shown = chat.changed(messages)
                text, spans = self.show(shown, marked)
                return self.without_doubles(shown, text, spans, marked)
            except (MemoryError, Problem):
                raise
            except Exception as e:
                failure = failure or e
        raise failure

    def show(self, chat, marked):
        """(text, what {% generation %} marks)"""
        if marked:
            return self.tokenizer.marked(chat.messages, chat.tools, chat.variables)
        return self.tokenizer.render(chat.messages, chat.tools, False, chat.variables), []

    def without_doubles(self, chat, text, spans, marked):
        """Messages that hold the template's BOS or EOS themselves are shown without it."""
        bos, eos = self.tokenizer.bos_token, self.tokenizer.eos_token
        if bos and text.startswith(bos):
            messages = without_begin(chat.messages, bos)
            other = messages and self.show(chat.changed(messages), marked)
            if other and other[0].startswith(bos):
                self.notes.count("chat begins with BOS: the template's is the only one",
                                 "chats begin with BOS: the template's is the only one")
                chat, (text, spans) = chat.changed(messages), other
        if eos and re.search(re.escape(eos) + r"\s*" + re.escape(eos), text):
            messages = without_end(chat.messages, eos)
            if messages:
                self.notes.count("chat has turns that end in EOS: the template's is the only one",
                                 "chats have turns that end in EOS: the template's is the only one")
                chat = chat.changed(messages)
                text, spans = self.show(chat, marked)
        return chat, text, spans

    def answers(self, turns):
        """Where the turns of the assistant are that are to be trained on."""
        spans, since = [], 0
        for at, message in enumerate(turns.chat.messages):
            if message["role"] != "assistant" or at in turns.chat.masked:
                continue
            found = turns.find(at, since)
            if isinstance(found, str):
                self.notes.lose(found)
            else:
                spans.append(found)
                since = found[1]
        return spans

    @staticmethod
    def masked(turns, start):
        """Where the turns from `start` on are that are not to be trained on."""
        spans = []
        for at in sorted(turns.chat.masked):
            if at < start or turns.chat.messages[at]["role"] != "assistant":
                continue
            found = turns.find(at, spans[-1][1] if spans else 0)
            if isinstance(found, str):
                raise Problem(EX_DATA, "message %d is not to be trained on, but %s" % (at + 1, found))
            spans.append(found)
        return spans

    def flagged(self, text, spans, marked):
        """A token that spans a turn's begin is the turn's. One that spans its end is not, unless the template marks the
        end: so it is in transformers."""
        ids, begins, ends = self.tokenizer.placed(text, False)
        trained = [False] * len(ids)
        for begin, end in spans:
            if ends is None:
                first, last = (common(self.tokenizer.placed(text[:at], False)[0], ids) for at in (begin, end))
            else:
                first = bisect.bisect_right(ends, begin)
                last = bisect.bisect_left(begins, end) if marked else bisect.bisect_right(ends, end)
            trained[first:last] = [True] * (last - first)
        return ids, trained

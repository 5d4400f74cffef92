"""Which tokens of a document are trained on: a line in any form -> Documents (records.py): ids, with a flag for each.

A chat is tokenized once. turns.py finds where the assistant's turns are in its text; the tokens' places in the text
show where they are among the ids.
"""

import bisect
import re

from .errors import EX_DATA, Problem
from .normalize import (Chat, Ids, Pair, Text, document, label, line_weight, prompt, shapes, with_parts, without_begin,
                        without_end)
from .notes import Notes
from .pairs import has_sides, sides
from .records import CHOSEN, REJECTED, Document
from .tokenizer import Bytes
from .turns import ANSWER, HIDDEN, NOWHERE, QUESTION, Known, Turns, common


def without(spans, others):
    """Spans without what is in others; both in order."""
    for begin, end in others:
        spans = [piece for a, b in spans for piece in ((a, min(b, begin)), (max(a, end), b)) if piece[0] < piece[1]]
    return spans


class Maker:
    """Converts a line to Documents."""

    def __init__(self, tokenizer, pairs=False, eos=True):
        self.tokenizer, self.pairs, self.eos = tokenizer, pairs, eos
        self.notes, self.ready, self.known = Notes(), {}, Known()
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
        """The Documents of a line that stay together: one, or those of chosen and rejected. With a label, one has
        a side, too."""
        if has_sides(line, self.pairs, self.notes):
            made = map(self.document, sides(line, self.has_template, self.notes))
            return [made._replace(side=side) for made, side in zip(made, (CHOSEN, REJECTED))]
        made, weight = self.document(document(line, self.has_template, self.notes)), line_weight(line)
        good = label(line)
        if good is not None:
            if weight != 1 or made.weights:
                raise Problem(EX_DATA, "has a weight, and a label: answers that are compared take none")
            return [made._replace(side=CHOSEN if good else REJECTED)]
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
        """The ids of a text without the tokenizer's EOS, and with one BOS where the text has its own: (ids, how many
        left out before)."""
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        before = int(self.begins and ids[1:2] == [bos])
        if before:
            self.notes.count("text begins with BOS: the tokenizer adds no second one",
                             "texts begin with BOS: the tokenizer adds no second one")
        ids = ids[before:len(ids) - self.ends]
        if eos is not None and ids[-1:] == [eos]:
            self.notes.count("text ends in EOS: no second one is added", "texts end in EOS: no second one is added")
        return ids, before

    def with_end(self, ids):
        eos = self.tokenizer.eos
        if not self.eos:
            return ids
        if eos is None:
            if not isinstance(self.tokenizer, Bytes):
                self.notes.say("the tokenizer has no EOS: nothing marks the end of a document")
        elif not ids or ids[-1] != eos:
            ids.append(eos)
        return ids

    def text(self, text):
        ids = self.ready.pop(text, None) or self.tokenizer.text(text)
        return self.with_end(self.once(ids)[0]), None

    def prompt(self, line):
        """The ids of what the model is to continue: a text without EOS, or of an object what it asks."""
        text = prompt(line, self.has_template, self.notes) if isinstance(line, dict) else line
        if isinstance(text, Chat):          # up to the generation prompt
            self.tokenizer.template(text.tools)         # fails if there is none
            chat, _ = self.rendered(text)
            return self.tokenizer.placed(self.render(chat, True).text, False)[0]
        if not text:
            return []
        return self.once(self.tokenizer.text(text))[0]

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
        turns = Turns(self.render, *self.rendered(chat), self.known)
        chat = turns.chat
        marked = chat.start is None and turns.marks is not None and re.search(
            r"\{%-?\s*generation\b", self.tokenizer.template(chat.tools))
        self.count_tools(turns)
        found, hidden = self.answers(turns, marked)
        if marked:
            spans = turns.marks
        elif chat.start is None:
            spans = list(found.values())
        else:
            spans = [(found.get(chat.start, turns.places.get(chat.start, (len(turns.text),)))[0], len(turns.text))]
        if marked or chat.start is not None:
            spans = without(spans, [turns.places.get(at, (0, len(turns.text))) for at in hidden])
        return self.flagged(turns, spans, found, marked)

    def answers(self, turns, marked):
        """({place: [begin, end) of the turn that is trained on}, places of those that are not)."""
        found, hidden = {}, []
        for at, message in enumerate(turns.chat.messages):
            if message["role"] != "assistant" or at < (turns.chat.start or 0):
                continue
            if at in turns.chat.masked:
                place = "" if at in turns.places else NOWHERE
            elif marked:
                place = HIDDEN if turns.left_out(at) == HIDDEN else turns.places.get(at)
            else:
                place = turns.find(at)
            if place and isinstance(place, str):
                self.notes.lose(place)
            if isinstance(place, str):
                hidden.append(at)
            elif place:
                found[at] = place
        return found, hidden

    def count_tools(self, turns):
        tools = [tool.get("function", tool) for tool in turns.chat.tools or []]
        if any(isinstance(tool, dict) and str(tool.get("name", "")) not in turns.text for tool in tools):
            self.notes.count("chat has tools that its template does not show",
                             "chats have tools that their template does not show")

    def render(self, chat, ask=False):
        show = with_parts if self.known.remember(chat, "parts", lambda: self.reads_parts(chat)) else list
        return self.tokenizer.render(show(chat.messages), chat.tools, ask, chat.variables)

    def reads_parts(self, chat):
        """Does the template show content that is a list of parts, and not text?"""
        def shows(messages):
            try:
                return ANSWER["content"] in self.tokenizer.render(messages, chat.tools, False, chat.variables).text
            except (MemoryError, Problem):
                raise
            except Exception:
                return False
        return not shows([QUESTION, ANSWER]) and shows(with_parts([QUESTION, ANSWER]))

    def rendered(self, chat):
        """(chat, how it is rendered): the chat as its template takes it."""
        failure = None
        for messages in shapes(chat.messages):
            try:
                shown = chat.changed(messages)
                return self.without_doubles(shown, self.render(shown))
            except (MemoryError, Problem):
                raise
            except Exception as e:
                failure = failure or e
        raise failure

    def without_doubles(self, chat, shown):
        """Messages that hold the template's BOS or EOS themselves are shown without it."""
        bos, eos = self.tokenizer.bos_token, self.tokenizer.eos_token
        if bos and shown.text.startswith(bos):
            messages = without_begin(chat.messages, bos)
            other = messages and self.render(chat.changed(messages))
            if other and other.text.startswith(bos):
                self.notes.count("chat begins with BOS: the template's is the only one",
                                 "chats begin with BOS: the template's is the only one")
                chat, shown = chat.changed(messages), other
        if eos and re.search(re.escape(eos) + r"\s*" + re.escape(eos), shown.text):
            messages = without_end(chat.messages, eos)
            if messages:
                self.notes.count("chat has turns that end in EOS: the template's is the only one",
                                 "chats have turns that end in EOS: the template's is the only one")
                chat = chat.changed(messages)
                shown = self.render(chat)
        return chat, shown

    def flagged(self, turns, spans, found, marked):
        """(ids, is each trained on, weights or None). A token that spans a turn's begin is the turn's. One that spans
        its end is not, unless the template marks the end: so it is in transformers."""
        text = turns.text
        ids, begins, ends = self.tokenizer.placed(text, False)
        unended = set() if marked or turns.question("ends") else {end for _, end in found.values()}
        if len(text) in unended:
            following = self.tokenizer.placed(turns.next_header(), False)[0][:1]
            ids.extend(i for i in following if i in self.tokenizer.marks)

        def tokens(begin, end):
            if ends is None:
                first, last = (common(self.tokenizer.placed(text[:at], False)[0], ids) for at in (begin, end))
            else:
                first = bisect.bisect_right(ends, begin)
                last = bisect.bisect_left(begins, end) if marked else bisect.bisect_right(ends, end)
            if end in unended and ids[last:last + 1] and ids[last] in self.tokenizer.marks:
                last += 1                   # the model ends its turn by the next header
            elif end in unended:
                self.notes.say("the chat template writes no mark behind an answer: nothing ends it")
            return slice(first, last)

        trained = [False] * len(ids)
        for span in spans:
            part = tokens(*span)
            trained[part] = [True] * (part.stop - part.start)
        if not any(at in found and weight for at, weight in turns.chat.weights.items()):
            return ids, trained, None
        weights = [1] * len(ids)
        for at, span in found.items():
            part = tokens(*span)
            weights[part] = [turns.chat.weights.get(at, 1)] * (part.stop - part.start)
        return ids, trained, weights

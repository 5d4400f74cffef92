"""Where the turns of a rendered chat are, in one way for all templates.

The chat is rendered once more with numbered words instead of what the assistant and the tools say. The template shows
a turn if it shows all of the turn's numbers; before the first one it has written the turn's header, which is compared
with the generation prompt. What a model is prompted with is not trained on; what it has to write itself is.
"""

import json
import re

SLOT = "zq%dx%dqz"                          # the words of a message by its place, numbered; letters need no escape
SLOTS = re.compile(r"zq(\d+)x(\d+)qz")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
MOST = 1 << 10                              # entries of Known: each line may have other variables
QUESTION = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": SLOT % (1, 0)}
HIDDEN = "the chat template leaves out a part of them, such as their reasoning or a tool call"
MIXED = "the chat template writes another message's words between them"
NOWHERE = "the chat template does not show where they are"
HEADLESS = "the chat template does not show where they begin"


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


def blanked(message, at):
    """(the message with numbered words, how many the template has to show). Messages of users stay as they are."""
    if message["role"] not in ("assistant", "tool"):
        return message, 0
    slots = 0

    def slot():
        nonlocal slots
        slots += 1
        return SLOT % (at, slots - 1)

    made, thought = dict(message), None
    for key in THOUGHTS:                    # one thought, under one name or several
        if isinstance(message.get(key), str) and message[key].strip():
            thought = made[key] = thought or slot()
    if (message.get("content") or "").strip():
        made["content"] = "".join(part if re.fullmatch("</?think>|\\s*", part) else slot()
                                  for part in re.split("(</?think>)", message["content"]))
    if message.get("tool_calls"):
        made["tool_calls"] = [{**call, "function": {**call["function"], "name": slot()}}
                              for call in message["tool_calls"]]
    return made if slots else {**made, "content": SLOT % (at, 0)}, slots


def blocks(header):
    """`<A><think>\n` has two."""
    return re.findall(r".[^<\[]*", header, re.S)


def whole(header, text):
    """The length of the header's beginning, in whole blocks, with which the text begins."""
    length = 0
    for block in blocks(header):
        if not text.startswith(block, length):
            break
        length += len(block)
    return length


def place_of(header, text):
    """(where the header begins in the text, how much of it is there in whole blocks): of several places the last of
    those with the most; (-1, 0) if there is none."""
    starts = [match.start() for match in re.finditer(re.escape(blocks(header)[0]), text)]
    length, start = max(((whole(header, text[at:]), at) for at in starts), default=(0, -1))
    return start, length


class Known:
    """What is true of all chats of a template with the same variables."""

    def __init__(self):
        self.made = {}

    def remember(self, chat, key, make):
        key = key, chat.tools is not None, json.dumps(chat.variables, sort_keys=True)
        if key not in self.made:
            if len(self.made) == MOST:
                self.made.clear()
            self.made[key] = make()
        return self.made[key]


class Turns:
    """The turns of a chat."""

    def __init__(self, render, chat, text, known):
        self.render, self.chat, self.known, self.beginning = render, chat, known, False
        self.text, self.marks, self.places, _ = self.placed(chat.messages, text)
        self.other = None

    def shown(self, messages, ask=False):
        """None if the template fails at it."""
        try:
            return self.placed(messages, self.render(self.chat.changed(messages), ask))
        except MemoryError:
            raise
        except Exception:
            return None

    def placed(self, messages, shown):
        """Where nothing shows the places, as with a loop in a macro: by the lengths of the chat's beginnings."""
        if shown.places or self.beginning:
            return shown
        self.beginning = True
        parts = [self.shown(messages[:at]) for at in range(1, len(messages))]
        self.beginning = False
        ends = [0, *(len(part.text) if part and shown.text.startswith(part.text) else None for part in parts),
                len(shown.text)]
        return shown._replace(places={at: place for at, place in enumerate(zip(ends, ends[1:])) if None not in place})

    def remember(self, key, make):
        return self.known.remember(self.chat, key, make)

    def words(self, at):
        """(what is written at this message where it has numbered words, where each of its own is first, and the others'
        are, how many it should have); None if that is unknown."""
        if self.other is None:
            made = [blanked(message, at) for at, message in enumerate(self.chat.messages)]
            self.other = self.shown([message for message, _ in made]), [slots for _, slots in made]
        shown, slots = self.other
        if not shown or at not in shown.places or at not in self.places:
            return None
        text, own, others = shown.text[slice(*shown.places[at])], {}, []
        for match in SLOTS.finditer(text):
            if int(match[1]) == at:
                own.setdefault(match[2], match)
            else:
                others.append(match.start())
        return text, list(own.values()), others, slots[at]

    def left_out(self, at):
        """Why the turn cannot be trained on, or None."""
        words = self.words(at)
        if not words:
            return NOWHERE
        _, own, others, slots = words
        if len(own) < max(slots, 1):
            return HIDDEN
        return MIXED if any(own[0].start() < other < own[-1].start() for other in others) else None

    def find(self, at):
        """[begin, end) in characters of the assistant's turn at this place, or the reason why it is context."""
        reason = self.left_out(at)
        if reason:
            return reason
        begin, end = self.places[at]
        text, own, others, _ = self.words(at)
        if others and others[-1] > own[-1].start():
            end = self.end_alone(at, own[-1][0])
        skip = None if end is None else self.skip(at, text[:own[0].start()], self.text[begin:end])
        return HEADLESS if skip is None else (begin + skip, end)

    # ---- the beginning

    def skip(self, at, before, turn):
        """How much of the turn's text the model is prompted with. before: what stands before the first word."""
        header, usual = self.header(at), self.question("header")
        if usual and place_of(usual, before)[1]:
            header = usual
        if not header:
            return None if header is None else 0
        start, _ = place_of(header, before)
        if start < 0:                       # the turn goes on behind a tool's answer
            return 0 if not before or header != usual else None
        length = whole(header, turn[start:])
        if length < len(header) and header == usual:
            length = min(length, self.question("plain"))
        return start + length if turn.startswith(before[:start + length]) else None

    def header(self, at):
        """What the template writes behind the messages to ask for the turn at this place."""
        since = max(at - 1, 0)
        while since and self.chat.messages[since]["role"] == "tool":
            since -= 1
        part = self.chat.messages[since:at]
        if not part or part[0]["role"] != "assistant":
            return self.question("header")
        made = self.remember(("header", len(part) > 1, bool(part[0].get("tool_calls"))),
                             lambda: self.asked([QUESTION, *part]))
        return self.question("header") if made is None else made

    def asked(self, messages):
        shown = self.shown(messages, True)
        if shown and shown.end is not None:
            return shown.text[shown.end:]
        silent = self.shown(messages)
        return shown.text[len(silent.text):] if shown and silent and shown.text.startswith(silent.text) else None

    def question(self, what):
        """What is true of an answer to a question that is not the last: the header that asks for it; how much of that
        is written before it (`plain`); does a mark end it (`ends`)?"""
        return self.remember("question", self.sampled)[what]

    def sampled(self):
        header = self.asked([QUESTION])
        shown = self.shown([QUESTION, ANSWER, QUESTION])
        text = shown.text[slice(*shown.places[1])] if shown and 1 in shown.places else ""
        before, found, behind = text.partition(ANSWER["content"])
        return {"header": header, "plain": place_of(header, before)[1] if header and found else len(header or ""),
                "ends": bool(behind.strip()) or not found}

    # ---- the end

    def end_alone(self, at, last):
        """The end of a turn behind which the template goes on with a tool's answer: it ends as it would if it were the
        chat's last; None if that is not in the text."""
        alone = self.shown([QUESTION, blanked(self.chat.messages[at], at)[0]])
        tail = alone.text.rpartition(last)[2] if alone and last in alone.text else ""
        place = self.text.find(tail, *self.places[at]) if tail else -1
        return place + len(tail) if place >= 0 else None

    def next_header(self):
        """What the template would write next, behind the chat's last turn."""
        message = self.chat.messages[-1]
        other = {"role": "tool", "content": "a"} if message.get("tool_calls") else QUESTION
        return self.remember(("next", other["role"]), lambda: self.begun([QUESTION, message, other]))

    def begun(self, messages):
        shown = self.shown(messages)
        return shown.text[shown.places[2][0]:] if shown and 2 in shown.places else ""

"""A line with chosen and rejected -> a Pair or a Chat for each: the same prompt, and two answers to it."""

import os.path

from .errors import EX_DATA, Problem
from .normalize import (BESIDE, SHAREGPT, Chat, Pair, answer_chat, instruction, kind, line_weight, messages_of, parsed,
                        string, with_system)

SIDES = ("chosen", "rejected")
CHATS = ("messages", "conversations")
DOCUMENTS = ("text", "completion", "ids", "output")     # other forms that a line may have beside chosen and rejected


def given(line, *keys):
    return [key for key in keys if line.get(key) is not None]


def is_answered(value, key):
    """Do these messages end in an answer of the assistant's?"""
    value = parsed(value, "'%s'" % key)
    last = value[-1] if isinstance(value, list) and value else None
    return isinstance(last, dict) and SHAREGPT.get(last.get("role") or last.get("from")) == "assistant"


def has_sides(line, always, notes):
    """Is it a line of preferences? Unless always, it is not if it has a document of another form: that one is read."""
    sides = given(line, *SIDES) if isinstance(line, dict) else []
    if always and len(sides) == 2:
        return True
    if not sides or given(line, "text", "completion", "ids") or len(given(line, "instruction", "output")) == 2:
        return False
    chats = given(line, *CHATS)
    if chats and (len(sides) == 1 or is_answered(line[chats[0]], chats[0])):
        if len(sides) == 2:
            notes.say("'%s' ends in an answer, so it is read, and not chosen and rejected: --pairs reads these"
                      % chats[0])
        return False
    if len(sides) == 1:
        raise Problem(EX_DATA, "has '%s' without '%s'" % (sides[0], "rejected" if sides == ["chosen"] else "chosen"))
    return True


def answer_of(value, key, notes):
    """A side: text, or messages of which some may be context. Weights are not for pairs."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, (list, dict)):
        raise Problem(EX_DATA, "'%s' is %s: expected text, a message or a list of messages" % (key, kind(value)))
    messages, weights = messages_of(value if isinstance(value, list) else [value], key, notes)
    if any(weights.values()):
        raise Problem(EX_DATA, "%s %d has a weight: answers that are compared take none"
                      % (key, 1 + next(at for at, weight in weights.items() if weight)))
    return messages, weights


def common_texts(chosen, rejected):
    """The length of the prompt that both texts begin with, without a blank at its end. Each keeps an answer."""
    at = min(len(os.path.commonprefix([chosen, rejected])), len(chosen) - 1, len(rejected) - 1)
    return at - 1 if at > 0 and chosen[at - 1] == " " else max(at, 0)


def common_messages(chosen, rejected):
    """The number of messages that both chats begin with. Each keeps an answer."""
    most = min(len(chosen), len(rejected)) - 1
    return next((at for at in range(most) if chosen[at] != rejected[at]), most)


def no_prompt():
    return Problem(EX_DATA, "'chosen' and 'rejected' have no common beginning, and there is no prompt")


def holds_text(value):
    if isinstance(value, (list, dict)):
        return any(map(holds_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and bool(value.strip())


def refuse_other_text(line):
    """What both answers begin with is taken for the prompt only if the prompt can be nowhere else: answers may begin
    alike, with <think> or a word."""
    key = next((key for key, value in line.items() if key not in {*SIDES, *DOCUMENTS} | BESIDE and holds_text(value)),
               None)
    if key:
        raise Problem(EX_DATA, "there is no prompt, but text in '%s': jq -c '.prompt = .[\"%s\"]' FILE makes it the "
                      "prompt, jq -c 'del(.[\"%s\"])' FILE leaves it out" % (key, key, key))


def texts(line, source, answers, notes):
    """Both sides as text, which no template renders. source: the line with all of its keys."""
    notes.unused(line, {*SIDES, "prompt"} | BESIDE)
    if not line.get("prompt"):
        refuse_other_text(source)
    if given(line, "prompt"):
        prompt = with_system(line, string(line, "prompt"))
        return [Pair(prompt, answer) for answer in answers]
    at = common_texts(*answers)
    if not at:
        raise no_prompt()
    return [Pair(with_system(line, answer[:at]), answer[at:]) for answer in answers]


def chats(line, source, answers, notes):
    """Both sides as chats."""
    used = given(line, *CHATS)[:1] or (["prompt"] if isinstance(line.get("prompt"), list) else [])
    whole = not any(isinstance(messages, str) or messages[0]["role"] == "assistant" for messages, _ in answers)
    if used:
        prompt = messages_of(line[used[0]], used[0], notes)[0]
    elif given(line, "prompt") and not whole:
        used, prompt = ["prompt"], [{"role": "user", "content": string(line, "prompt")}]
    elif any(isinstance(messages, str) for messages, _ in answers):
        raise Problem(EX_DATA, "'chosen' and 'rejected' are text and messages: expected two of a kind")
    else:
        prompt = answers[0][0][:common_messages(answers[0][0], answers[1][0])]
        if not any(message["role"] == "user" for message in prompt):
            refuse_other_text(source)
        if not prompt:
            raise no_prompt()
    notes.unused(line, {*SIDES, *used, *(["prompt"] if not used else [])} | BESIDE)
    return [answer_chat(line, prompt, [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer,
                        weights, key) for (answer, weights), key in zip(answers, SIDES)]


def instructions(line, answers, has_template, notes):
    notes.unused(line, {*SIDES, "instruction", "input"} | BESIDE)
    made = [instruction({**line, "output": answer}, has_template, notes) for answer in answers]
    for side in made:
        if isinstance(side, Chat):              # earlier answers are context
            side.start = len(side.messages) - 1
    return made


def sides(line, has_template, notes):
    """The Pair or Chat of chosen, and that of rejected."""
    source, line = line, {key: value for key, value in line.items()
                          if key not in CHATS or value is not None and not is_answered(value, key)}
    if line_weight(line) != 1:
        raise Problem(EX_DATA, "has a weight, and chosen and rejected: answers that are compared take none")
    answers = [answer_of(line[key], key, notes) for key in SIDES]
    are_texts = all(isinstance(answer, str) for answer, _ in answers)
    if given(line, "instruction") and not given(line, "prompt", *CHATS):
        if not are_texts:
            raise Problem(EX_DATA, "has an instruction, but 'chosen' and 'rejected' are not both text")
        return instructions(line, [answer for answer, _ in answers], has_template, notes)
    if are_texts and not given(line, *CHATS) and not isinstance(line.get("prompt"), list):
        return texts(line, source, [answer for answer, _ in answers], notes)
    return chats(line, source, answers, notes)

"""What mt-tokens trains on with the chat templates that TRL ships, in conversations whose every part has a word of its
own.

    templates.py PARTS TEMPLATES [CHATS]    a line for each template: its name, how many turns were trained on, how many
                                            were not, and `differs` if TRL's training template marks other text; ends
                                            with 1 at the first fault. PARTS is the directory of the parts of mt-tokens
"""

import glob
import json
import os
import random
import re
import sys
import tempfile

ODD = ("", "<b>", "<answer>", "<", "[1] ", "{x}", "\n", " ", "\n\n", "é", "東京 ", "🙂", '"', "'", "- ", "\\n", "</b>",
       "|")
WORD = re.compile(r"[A-Z]\d+Z")


def conversation(seed):
    """Messages: system, user, answers with thoughts (T), calls (F and their values, V), tools' answers (R)."""
    chance = random.Random(seed)
    made = []

    def say(kind, odd=True):
        word = "%s%dZ" % (kind, len(made))
        return chance.choice(ODD) + word + chance.choice(ODD) if odd else word

    def answer(content):
        turn = {"role": "assistant", "content": content}
        if thinks and chance.random() < 0.7:
            turn["reasoning_content"] = say("T")
        return turn

    thinks, calls = chance.random() < 0.4, chance.random() < 0.4
    if chance.random() < 0.4:
        made.append({"role": "system", "content": say("S")})
    for _ in range(chance.randint(1, 3)):
        made.append({"role": "user", "content": say("U")})
        while calls and chance.random() < 0.6:
            turn = answer(say("A") if chance.random() < 0.3 else chance.choice(["", None]))
            function = {"name": say("F", False), "arguments": {"x": say("V"), "n": 3}}
            made.append({**turn, "tool_calls": [{"type": "function", "id": "c%d" % len(made), "function": function}]})
            made.append({"role": "tool", "tool_call_id": "c%d" % (len(made) - 1), "content": say("R")})
        made.append(answer(say("A")))
    return made


def own(message):
    """The words of a message."""
    return set(WORD.findall(json.dumps(message)))


def make(top, templates):
    """Models in top, one for each template: a token is a byte, or a mark of the templates."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    sources = {}
    for path in sorted(glob.glob(os.path.join(templates, "*.jinja"))):
        with open(path, encoding="utf-8") as f:
            sources[os.path.basename(path)[:-6]] = f.read()
    for name, source in sources.items():
        t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
                                 merges=[]))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        t.decoder = decoders.ByteLevel()
        marks = re.findall(r"<\|[\w/]+\|?>|<[\w/]+\|>|<｜[^>]*?｜>|<(?:start|end)_of_\w+>|<sop>", source)
        t.add_special_tokens(["<s>", "</s>", *sorted(set(marks) | {"<|user|>", "<|assistant|>", "<|observation|>"})])
        os.makedirs(os.path.join(top, name))
        t.save(os.path.join(top, name, "tokenizer.json"))
        with open(os.path.join(top, name, "tokenizer_config.json"), "w") as f:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                       "chat_template": source}, f)
    return list(sources)


class Model:
    def __init__(self, path):
        from tokens.masks import Maker
        from tokens.template import Clock
        from tokens.tokenizer import Plain
        self.tokenizer = Plain(path, False, Clock())
        self.maker = Maker(self.tokenizer)
        self.is_marked = "generation %}" in self.tokenizer.template(None)
        question = [{"role": "user", "content": "q"}]
        self.header = (self.render(question, True) or "")[len(self.render(question) or ""):]

    def shown(self, document):
        """(the text, [what is trained on in one piece])."""
        pieces, since = [], None
        for at, flag in enumerate([*document.trained, False]):
            if flag and since is None:
                since = at
            elif not flag and since is not None:
                pieces.append(self.tokenizer.decode(document.ids[since:at]).decode())
                since = None
        return self.tokenizer.decode(document.ids).decode(), pieces

    def tokens(self, line):
        """([(text, pieces)], how many turns are context only); None if the template takes no such chat."""
        from tokens.notes import Notes
        self.maker.notes = Notes()
        try:
            made = self.maker.documents(line)
        except Exception:
            return None, 0
        return list(map(self.shown, made)), sum(self.maker.notes.lost.values())

    def render(self, messages, ask=False):
        from tokens.normalize import shapes
        for shape in shapes(messages):
            try:
                return self.tokenizer.render(shape, None, ask, {}).text
            except Exception:
                continue
        return None


def found(pieces):
    return set(WORD.findall(" ".join(pieces)))


def check_chat(model, messages):
    """(turns trained on, turns that are not) of a chat; it ends with 1 if something does not hold."""
    made, lost = model.tokens({"messages": messages})
    if made is None:
        return 0, 0
    (text, pieces), count = made[0], 0
    others = set().union(*(own(m) for m in messages if m["role"] != "assistant"))
    assert not found(pieces) & others, ("words of others", pieces)
    for at, message in enumerate(messages):
        mine = own(message)
        if message["role"] != "assistant" or not mine & found(pieces):
            continue
        count += 1
        holding = [piece for piece in pieces if found([piece]) & mine]
        if not model.is_marked:
            assert len(holding) == 1, ("a turn in pieces", holding)
            before, after = model.render(messages[:at], True), model.render(messages[:at + 1])
            begin, end = (len(part) if part and text.startswith(part) else None for part in (before, after))
            if begin is not None:           # behind the prompt, or a header that the template asks for elsewhere
                gap = text[begin:].partition(holding[0])[0]
                assert gap in ("", model.header), ("begins elsewhere", before[-40:], gap, holding)
                begin += len(gap)
            # with the end mark; a template that has none lets the next header's first token end the turn
            assert None in (begin, end) or -2 <= begin + len(holding[0]) - end <= 20, ("ends", after[-40:], holding)
        assert found(holding) == mine, ("words of another turn, or not all of its own", holding)
    silent = sum(message["role"] == "assistant" for message in messages) - count
    assert lost == silent, ("turns that are not counted", silent, lost, pieces)
    return count, lost


def check_answer(model, prompt, answer):
    """A completion and a pair are trained on as the last turn of a chat is."""
    made, _ = model.tokens({"messages": [*prompt, answer]})
    if made is None:
        return
    want = made[0][1][-1:] if found(made[0][1]) & own(answer) else []
    (_, pieces), = made = model.tokens({"prompt": prompt, "completion": [answer]})[0]
    assert found(pieces) == found(want) and (model.is_marked or pieces == want), ("completion", pieces, want)
    other = {"role": "assistant", "content": "<b>X99Z"}
    pair, _ = model.tokens({"prompt": prompt, "chosen": [answer], "rejected": [other]})
    assert pair[0] == made[0], ("chosen", pair[0], made[0])
    assert found(pair[1][1]) == {"X99Z"} and "<b>X99Z" in pair[1][1][0], ("rejected", pair[1])
    whole, _ = model.tokens({"chosen": [*prompt, answer], "rejected": [*prompt, other]})
    assert whole == pair, ("whole chats", whole, pair)


def compare(model, training, messages):
    """Does the training template mark other text in the same chat?"""
    (mine, _), (theirs, _) = (m.tokens({"messages": messages}) for m in (model, training))
    if mine is None or theirs is None or mine[0][0] != theirs[0][0]:
        return mine is not None and theirs is not None
    for piece, other in zip(mine[0][1], theirs[0][1]):
        if found([piece]) == found([other]):
            # more of the header, less of what is behind the end
            assert piece in other or other.rstrip() in piece or piece.rstrip().endswith(other), (piece, other)
    return mine != theirs


def main(parts, templates, chats="20"):
    sys.path.insert(0, parts)
    with tempfile.TemporaryDirectory() as top:
        names = make(top, templates)
        models = {name: Model(os.path.join(top, name)) for name in names}
        for name, model in models.items():
            training, trained, context, differs = models.get(name + "_training"), 0, 0, False
            for seed in range(int(chats)):
                messages = conversation(seed)
                try:
                    turns, silent = check_chat(model, messages)
                    for at, message in enumerate(messages):
                        if message["role"] == "assistant":
                            check_answer(model, messages[:at], message)
                    differs |= bool(training) and compare(model, training, messages)
                except AssertionError as e:
                    sys.exit("%s, chat %d: %s" % (name, seed, e))
                trained, context = trained + turns, context + silent
            print(name, trained, context, *["differs"] * differs)
            assert trained, name


if __name__ == "__main__":
    main(*sys.argv[1:])

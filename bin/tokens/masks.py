"""Documents: a line in any form -> (ids, trained). trained has a flag for each id: is loss computed on it?"""

import re

from .errors import EX_DATA, Problem
from .tokenizer import Bytes

# A model without a chat template gets the prompt of Stanford's Alpaca.
ALPACA = ("Below is an instruction that describes a task%s. Write a response that appropriately completes the "
          "request.\n\n### Instruction:\n%s\n\n%s### Response:\n")
ALPACA_INPUT = ", paired with an input that provides further context"

# ShareGPT's names of the roles
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system",
         "tool": "tool"}


def common(a, b):
    """The length of the common beginning of two lists."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Maker:
    """Converts a line to (ids, trained); trained has a flag for each id: is loss computed on it?"""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.ends = tokenizer.eos is not None and tokenizer.text("a")[-1:] == [tokenizer.eos]     # adds EOS itself
        self.reports = []

    def report_once(self, message):
        if message not in self.reports:
            self.reports.append(message)

    def with_eos(self, ids):
        if self.tokenizer.eos is None:
            if not isinstance(self.tokenizer, Bytes):
                self.report_once("the tokenizer has no EOS: nothing marks the end of a document")
            return ids
        return ids if self.ends else ids + [self.tokenizer.eos]

    def text(self, text):
        ids = self.with_eos(self.tokenizer.text(text))
        return ids, [True] * len(ids)

    def completion(self, prompt, completion):
        ids = self.with_eos(self.tokenizer.text(prompt + completion))
        context = common(self.tokenizer.text(prompt), ids)  # a token that spans both belongs to the completion
        return ids, [i >= context for i in range(len(ids))]

    def chat_completion(self, prompt, completion, tools):
        ids = self.tokenizer.chat(prompt + completion, tools, False)
        context = common(self.tokenizer.chat(prompt, tools, True), ids)
        return ids, [i >= context for i in range(len(ids))]

    def messages(self, messages, tools):
        if re.search(r"\{%-?\s*generation\b", self.tokenizer.template()):
            return self.tokenizer.marked_chat(messages, tools)
        ids, text = self.tokenizer.chat(messages, tools, False), self.tokenizer.render(messages, tools, False)
        trained = [False] * len(ids)
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = (messages[:i], tools, True), (messages[:i + 1], tools, False)
            parts = [before, after] if i else [after]
            if all(text.startswith(self.tokenizer.render(*part)) for part in parts):
                # a token that spans both is the turn's
                begin = common(self.tokenizer.chat(*before), ids) if i else self.begin_of_first(ids, tools)
                end = common(self.tokenizer.chat(*after), ids)
                trained[begin:end] = [True] * (end - begin)
            elif i + 1 == len(messages):
                raise Problem(EX_DATA, "the chat template does not say where the assistant's turn begins")
            else:
                self.report_once("the chat template renders the assistant's earlier turns in another way than its "
                                 "last: those are context only")
        return ids, trained

    def begin_of_first(self, ids, tools):
        """Where an assistant's turn begins that comes first: behind what the template asks for an answer with."""
        user = [{"role": "user", "content": "a"}]
        silent, asking = self.tokenizer.chat(user, tools, False), self.tokenizer.chat(user, tools, True)
        header = asking[len(silent):] if asking[:len(silent)] == silent else []
        for at in range(len(ids) - len(header) + 1):
            if header and ids[at:at + len(header)] == header:
                return at + len(header)
        return 0

    def has_template(self):
        try:
            return bool(self.tokenizer.template())
        except Problem:
            return False

    def instruction(self, line):
        text, more, answer = (self.checked_text(line, key) for key in ("instruction", "input", "output"))
        if self.has_template():
            user = {"role": "user", "content": text + "\n" + more if more else text}
            return self.messages(self.with_system(line, [user, {"role": "assistant", "content": answer}]), None)
        self.report_once("there is no chat template: instructions are put into Alpaca's prompt")
        return self.completion(
            ALPACA % (ALPACA_INPUT if more else "", text, "### Input:\n%s\n\n" % more if more else ""), answer)

    def conversation(self, line):
        turns = line["conversations"]
        if isinstance(turns, list) and turns and all(isinstance(t, dict) and "role" in t for t in turns):
            return self.checked_messages(line, "conversations")
        if not isinstance(turns, list) or not turns or not all(
                isinstance(t, dict) and isinstance(t.get("from"), str) and isinstance(t.get("value"), str)
                for t in turns):
            raise Problem(EX_DATA, "'conversations' is not a list of turns with from and value")
        for turn in turns:
            if turn["from"] not in ROLES:
                raise Problem(EX_DATA, "a turn is from '%s': expected human, gpt, system or tool" % turn["from"])
        return self.with_system(line, [{"role": ROLES[t["from"]], "content": t["value"]} for t in turns])

    @staticmethod
    def with_system(line, messages):
        """Some files have the system prompt in a key of its own."""
        system = line.get("system")
        if isinstance(system, str) and system and messages[0]["role"] != "system":
            return [{"role": "system", "content": system}, *messages]
        return messages

    def document(self, line):
        if not isinstance(line, dict):
            raise Problem(EX_DATA, "is not an object")
        tools = line.get("tools")
        if "messages" in line:
            return self.messages(self.checked_messages(line, "messages"), tools)
        if "conversations" in line:
            return self.messages(self.conversation(line), tools)
        if "prompt" in line or "completion" in line:
            if isinstance(line.get("prompt"), list) and isinstance(line.get("completion"), list):
                prompt, completion = (self.checked_messages(line, key) for key in ("prompt", "completion"))
                return self.chat_completion(prompt, completion, tools)
            return self.completion(self.checked_text(line, "prompt"), self.checked_text(line, "completion"))
        if "text" in line:
            return self.text(self.checked_text(line, "text"))
        if "instruction" in line and "output" in line:
            return self.instruction({**line, "input": line.get("input") or ""})
        raise Problem(EX_DATA, "has neither text nor messages nor prompt and completion, nor the keys of ShareGPT or "
                      "Alpaca")

    @staticmethod
    def checked_text(line, key):
        if not isinstance(line.get(key), str):
            raise Problem(EX_DATA, "'%s' is not a string" % key)
        return line[key]

    @staticmethod
    def checked_messages(line, key):
        messages = line[key]
        if not isinstance(messages, list) or not messages or not all(
                isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
            raise Problem(EX_DATA, "'%s' is not a list of messages with roles" % key)
        return messages

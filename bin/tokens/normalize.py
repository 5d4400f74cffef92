"""A line in any form -> a Text, a Pair, a Chat or Ids. Whatever a message may look like, a template sees text in it.

A Chat is what transformers' apply_chat_template takes: messages with role and content, tools as objects.
"""

import json
import math

from .errors import EX_DATA, Problem
from .formats import its_keys, what_it_holds

# A model without a chat template gets the prompt of Stanford's Alpaca.
ALPACA = ("Below is an instruction that describes a task%s. Write a response that appropriately completes the "
          "request.\n\n### Instruction:\n%s\n\n%s### Response:\n")
ALPACA_INPUT = ", paired with an input that provides further context"

# ShareGPT's names of the roles, and those of other data sets in its form
SHAREGPT = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
            "bot": "assistant", "model": "assistant", "system": "system", "tool": "tool"}
# Roles that chat templates do not know: what an assistant calls, and what the tool answers
CALLS = ("function_call", "tool_call")
ANSWERS = ("function", "observation", "function_response", "tool_response")
ROLES = ("system", "developer", "user", "assistant", "tool")

# Keys of a turn that tell whether it is trained on: true and 1 are yes in the first, no in the second. Some may be a
# weight of its tokens in the loss.
WEIGHTS = ("weight", "loss_weight")
TRAINED = ("weight", "train", "loss", "trainable", "training", "loss_mask", "loss_weight")
MASKED = ("mask", "masked")
# Keys that say how good an answer is. Where no form reads them, training would be on bad answers as on good ones.
JUDGED = ("reward", "advantage", "logprobs")

# What apply_chat_template takes besides variables of the template
RESERVED = {"conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
            "continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length",
            "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self"}


class Text:
    """Loss is computed on all of it."""

    def __init__(self, text):
        self.text = text


class Pair:
    """Loss is computed on the completion."""

    def __init__(self, prompt, completion):
        self.prompt, self.completion = prompt, completion


class Chat:
    """Messages of which the assistant's are trained on. Those before `start` are the prompt of a completion, on all of
    which loss is computed; `weights` has the places of the turns whose weight is not 1: `masked` of those with 0, which
    are not to be trained on."""

    def __init__(self, messages, weights, tools=None, variables=None, start=None):
        self.messages, self.weights, self.tools, self.variables = messages, weights, tools, variables or {}
        self.start, self.masked = start, {at for at, weight in weights.items() if not weight}

    def changed(self, messages):
        return Chat(messages, self.weights, self.tools, self.variables, self.start)


class Ids:
    """Token ids, with a flag for each or None, a weight for each or None, and a log-probability for each or None."""

    def __init__(self, ids, trained, weights, logprobs):
        self.ids, self.trained, self.weights, self.logprobs = ids, trained, weights, logprobs


def parsed(value, what):
    """A value that may stand in a string as JSON, as OpenAI and parquet have it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise Problem(EX_DATA, "%s is a string that is not JSON" % what)


def kind(value):
    """A JSON value's type in words."""
    return {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string",
            list: "a list", dict: "an object"}.get(type(value), type(value).__name__)


# ---- messages

class Parts(str):
    """The text of a list of parts, which some templates read one by one."""

    def __new__(cls, parts):
        made = super().__new__(cls, "".join(parts))
        made.parts = parts
        return made


def text_of(content, what):
    """The text of a message's content: a string, null, or a list of parts of text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem(EX_DATA, "%s is %s: expected text or a list of text parts" % (what, kind(content)))
    texts = []
    for number, part in enumerate(content, 1):
        if isinstance(part, dict) and part.get("type", "text") in ("text", "input_text", "output_text"):
            part = part.get("text")
        elif isinstance(part, dict):
            raise Problem(EX_DATA, "%s, part %d is of type '%s': expected text" % (what, number, part.get("type")))
        if not isinstance(part, str):
            raise Problem(EX_DATA, "%s, part %d is not text" % (what, number))
        texts.append(part)
    return Parts(texts)


def call_of(call, what):
    """A tool call as templates expect it: arguments are an object, not its JSON."""
    call = parsed(call, what)
    if not isinstance(call, dict):
        raise Problem(EX_DATA, "%s is %s: expected an object" % (what, kind(call)))
    if "function" not in call:
        call = {"type": "function", "function": call}
    function = parsed(call["function"], what)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Problem(EX_DATA, "%s has no function with a name" % what)
    if function.get("arguments") is not None:
        arguments = parsed(function["arguments"], what + ": arguments")
        if not isinstance(arguments, (dict, list)):
            raise Problem(EX_DATA, "%s: arguments are %s: expected an object" % (what, kind(arguments)))
        function = {**function, "arguments": arguments}
    return {**call, "function": function}


def calls_of(value, what):
    value = parsed(value, what)
    return [call_of(call, what) for call in (value if isinstance(value, list) else [value])]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def weight_of(turn, what):
    """(weight, key) of the turn's tokens in the loss, by the keys that say so, which are taken out of it. 0: it is not
    to be trained on, as the key says."""
    weight, zero = 1, None
    for key in (*TRAINED, *MASKED):
        value = turn.pop(key, None)
        if value is None:
            continue
        if isinstance(value, str) and value.lower() in ("true", "false", "0", "1", "0.0", "1.0"):
            value = value.lower() in ("true", "1", "1.0")
        if not (key in WEIGHTS and is_number(value)) and (
                value not in (0, 1) or key in MASKED and not isinstance(value, bool)):
            raise Problem(EX_DATA, "%s: %s is %s: expected %s" % (
                what, key, json.dumps(value), "true or false" if key in MASKED else
                "a number, or true or false" if key in WEIGHTS else "0 or 1, or true or false"))
        factor = value if key in TRAINED else not value
        weight, zero = weight * factor, zero if factor else zero or key
    return weight, zero


def message_of(turn, what, notes):
    """(message, weight) of a turn in OpenAI's form or in ShareGPT's."""
    turn = dict(turn)
    if not isinstance(turn.get("role"), str):
        role = turn.pop("from")
        turn.pop("role", None)
        if role not in SHAREGPT and role not in CALLS and role not in ANSWERS:
            raise Problem(EX_DATA, "a turn is from '%s': expected human, gpt, system, tool, function_call or "
                          "observation" % role)
        content = turn.pop("content", None)
        turn = {"role": SHAREGPT.get(role, role), "content": turn.pop("value", content), **turn}
        if turn["content"] is None and not turn.get("tool_calls") and not turn.get("function_call"):
            raise Problem(EX_DATA, "%s has no value" % what)
    weight, zero = weight_of(turn, what)
    role = turn["role"]
    if role in CALLS:
        turn = {**turn, "role": "assistant", "content": None,
                "tool_calls": calls_of(turn.get("content"), "%s: what it calls" % what)}
    elif role in ANSWERS:
        turn["role"] = "tool"
    if "content" in turn:
        turn["content"] = text_of(turn["content"], "%s: content" % what)
    call = turn.pop("function_call", None)
    if call and turn.get("tool_calls"):
        raise Problem(EX_DATA, "%s has both function_call and tool_calls" % what)
    if call:
        turn["tool_calls"] = [call_of(call, "%s: function_call" % what)]
    elif turn.get("tool_calls"):
        turn["tool_calls"] = calls_of(turn["tool_calls"], "%s: tool_calls" % what)
    else:
        turn.pop("tool_calls", None)
    if zero and turn["role"] == "assistant":
        notes.lose("'%s' says so" % zero)
    if turn["role"] not in ROLES:
        notes.role(turn["role"])
    silent = not turn.get("content") if turn["role"] == "assistant" else turn.get("content") is None
    if silent and "tool_calls" not in turn and not any(
            turn.get(key) for key in ("reasoning_content", "reasoning", "thinking")):
        notes.count("turn says nothing: it has neither text nor a tool call",
                    "turns say nothing: they have neither text nor a tool call")
    return turn, weight


def messages_of(value, key, notes):
    """([message...], {place: weight of those whose weight is not 1})"""
    value = parsed(value, "'%s'" % key)
    if not isinstance(value, list) or not value or not all(
            isinstance(m, dict) and (isinstance(m.get("role"), str) or isinstance(m.get("from"), str)) for m in value):
        raise Problem(EX_DATA, "'%s' is not a list of turns with from and value" % key if key == "conversations" else
                      "'%s' is not a list of messages with roles" % key)
    made = [message_of(turn, "%s %d" % (key, number), notes) for number, turn in enumerate(value, 1)]
    return [message for message, _ in made], {at: weight for at, (_, weight) in enumerate(made) if weight != 1}


def history_of(value):
    """Earlier turns, as [question, answer] pairs."""
    value = parsed(value, "'history'")
    if not isinstance(value, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
            for pair in value):
        raise Problem(EX_DATA, "'history' is not a list of pairs of a question and its answer")
    return [{"role": role, "content": text} for pair in value for role, text in zip(("user", "assistant"), pair)]


# ---- what stands beside the messages

def tools_of(line):
    tools = parsed(line.get("tools") or None, "'tools'") if line.get("tools") != [] else []
    functions = parsed(line.get("functions") or None, "'functions'")
    if tools and functions:
        raise Problem(EX_DATA, "has both tools and functions")
    if functions:
        key, tools = "functions", functions
    else:
        key = "tools"
    if tools is None:
        return None
    tools = [parsed(tool, "'%s'" % key) for tool in (tools if isinstance(tools, list) else [tools])]
    if not all(isinstance(tool, dict) for tool in tools):
        raise Problem(EX_DATA, "'%s' is not a list of objects" % key)
    return [{"type": "function", "function": tool} for tool in tools] if key == "functions" else tools


def variables_of(line):
    value = parsed(line.get("chat_template_kwargs"), "'chat_template_kwargs'")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Problem(EX_DATA, "'chat_template_kwargs' is %s: expected an object" % kind(value))
    for key in value:
        if key in RESERVED or key.endswith("_token"):
            raise Problem(EX_DATA, "'chat_template_kwargs' has '%s', which is not the line's to set" % key)
    return value


def system_of(line):
    return text_of(line.get("system"), "'system'") or ""


def chat_of(line, messages, weights, start=None):
    """A Chat with all that stands beside the messages: the system prompt, earlier turns, tools, variables."""
    system, before = system_of(line), []
    first = messages[0]
    if system and first["role"] == "system" and (first.get("content") or "").strip() != system.strip():
        raise Problem(EX_DATA, "'system' differs from the system message")
    if first["role"] == "system":
        before, messages = messages[:1], messages[1:]
        weights = {at - 1: weight for at, weight in weights.items()}
        start = start and start - 1
    elif system:
        before = [{"role": "system", "content": system}]
    if line.get("history"):
        before = before + history_of(line["history"])
    return Chat(before + messages, {at + len(before): weight for at, weight in weights.items() if at >= 0},
                tools_of(line), variables_of(line), None if start is None else start + len(before))


def answer_chat(line, prompt, answer, weights, key):
    """The Chat of a prompt and what answers it. That may be a whole chat, which begins with the prompt; the system
    message of either is both's."""
    systems = [messages[0] for messages in (prompt, answer) if messages[0]["role"] == "system"]
    asked, said = ([m for at, m in enumerate(messages) if at or m["role"] != "system"] for messages in (prompt, answer))
    if len(said) > len(asked) and said[:len(asked)] == asked:
        said = said[len(asked):]
    if not said or systems[:1] != systems[-1:] or asked and said[0]["role"] == asked[-1]["role"] == "user":
        raise Problem(EX_DATA, "'%s' begins with other messages than the prompt" % key)
    prompt, skipped = systems[:1] + asked, len(answer) - len(said)
    weights = {at - skipped + len(prompt): weight for at, weight in weights.items() if at >= skipped}
    return chat_of(line, prompt + said, weights, len(prompt))


# ---- lines

BESIDE = {"tools", "functions", "system", "history", "chat_template_kwargs", "weight"}
# All keys that a form reads or refuses
KEYS = BESIDE | {"messages", "conversations", "prompt", "completion", "chosen", "rejected", "text", "ids", "trained",
                 "instruction", "input", "output", "label", *JUDGED}


def string(line, key):
    if not isinstance(line.get(key), str):
        raise Problem(EX_DATA, "'%s' is not a string" % key)
    return line[key]


def with_system(line, prompt):
    """Before a prompt of text, which no template renders."""
    for key in ("history", "tools", "functions", "chat_template_kwargs"):
        if line.get(key) and line[key] not in ("[]", "{}"):
            raise Problem(EX_DATA, "has '%s', which needs a chat template and messages" % key)
    system = system_of(line)
    return system + "\n\n" + prompt if system and not prompt.startswith(system) else prompt


def instruction(line, has_template, notes):
    """Alpaca's form."""
    text, answer = string(line, "instruction"), string(line, "output")
    more = string(line, "input") if line.get("input") is not None else ""
    if has_template:
        user = {"role": "user", "content": text + "\n" + more if more else text}
        turn, _ = message_of({"role": "assistant", "content": answer}, "output", notes)
        return chat_of(line, [user, turn], {})
    notes.say("there is no chat template: instructions are put into Alpaca's prompt")
    return Pair(with_system(line, ALPACA % (
        ALPACA_INPUT if more else "", text, "### Input:\n%s\n\n" % more if more else "")), answer)


def ids_of(line, notes):
    """Token ids as another program made them, with what a policy gradient needs."""
    ids, trained, advantage, logprobs = (line.get(key) for key in ("ids", "trained", "advantage", "logprobs"))
    notes.unused(line, {"ids", "trained", "advantage", "logprobs", "weight"})
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
        raise Problem(EX_DATA, "'ids' is not a list of token ids")
    if trained is not None and (not isinstance(trained, list) or len(trained) != len(ids) or
                                not all(flag in (0, 1) for flag in trained)):
        raise Problem(EX_DATA, "'trained' is not a list of true or false, one for each id")
    if is_number(advantage):
        advantage = [advantage] * len(ids)
    if advantage is not None and (not isinstance(advantage, list) or len(advantage) != len(ids) or
                                  not all(map(is_number, advantage))):
        raise Problem(EX_DATA, "'advantage' is neither a number nor a list of numbers, one for each id")
    return Ids(ids, trained and list(map(bool, trained)), advantage,
               None if logprobs is None else logprobs_of(logprobs, trained or [True] * len(ids)))


def logprobs_of(logprobs, trained):
    """A number for each id: those without loss, and the first one, which nothing predicts, may have null."""
    if not isinstance(logprobs, list) or len(logprobs) != len(trained):
        raise Problem(EX_DATA, "'logprobs' is not a list of numbers, one for each id")
    for at, (value, wanted) in enumerate(zip(logprobs, trained)):
        if not (is_number(value) and value < 1e-3) and (wanted and at or value is not None):
            raise Problem(EX_DATA, "'logprobs', number %d is %s: expected a number of at most 0"
                          % (at + 1, value if is_number(value) else kind(value)))
    return [value or 0 for value in logprobs]


def refuse_judged(line):
    """Ends for a line of text, or of a prompt and completion, that says how good it is."""
    key = next((key for key in JUDGED if line.get(key) is not None), None)
    if key:
        raise Problem(EX_DATA, "'%s' is not read here: leave it out, or give 'weight', the weight of the line's tokens "
                      "in the loss; 'ids' take advantage and logprobs" % key)
    if label(line) is None and "completion" in line and str(line.get("label")).lower() in ("false", "0", "0.0"):
        raise Problem(EX_DATA, "'label' says that the completion is bad, and it would be trained on: leave such lines "
                      "out, make true and false of it (--loss kto), or pairs of chosen and rejected")


def label(line):
    """Is the completion of this line good (True) or bad (False)? None: the line does not say it."""
    judged = isinstance(line, dict) and line.get("completion") is not None and isinstance(line.get("label"), bool)
    return line["label"] if judged else None


def line_weight(line):
    """The weight of all of a line's tokens in the loss."""
    weight = line.get("weight") if isinstance(line, dict) else None
    if weight is not None and not is_number(weight):
        raise Problem(EX_DATA, "'weight' is %s: expected a number" % kind(weight))
    return 1 if weight is None else weight


def document(line, has_template, notes):
    """The Text, Pair, Chat or Ids of a line: of several forms the first that fits. Keys that are of no use are
    counted."""
    if not isinstance(line, dict):
        raise Problem(EX_DATA, "is not an object")
    for key in ("messages", "conversations"):
        if line.get(key) is not None:
            notes.unused(line, {key} | BESIDE)
            return chat_of(line, *messages_of(line[key], key, notes))
    if line.get("prompt") is not None or line.get("completion") is not None:
        for key, other in ("prompt", "completion"), ("completion", "prompt"):
            if line.get(key) is None:
                raise Problem(EX_DATA, "has '%s' without '%s'; %s" % (other, key, its_keys(line)))
        refuse_judged(line)
        notes.unused(line, {"prompt", "completion"} | BESIDE | ({"label"} if label(line) is not None else set()))
        if isinstance(line["prompt"], list) and isinstance(line["completion"], list):
            (prompt, _), (answer, weights) = (messages_of(line[key], key, notes) for key in ("prompt", "completion"))
            return answer_chat(line, prompt, answer, weights, "completion")
        return Pair(with_system(line, string(line, "prompt")), string(line, "completion"))
    if line.get("text") is not None:
        refuse_judged(line)
        notes.unused(line, {"text", "weight"})
        return Text(string(line, "text"))
    if line.get("ids") is not None:
        return ids_of(line, notes)
    if line.get("instruction") is not None and line.get("output") is not None:
        notes.unused(line, {"instruction", "input", "output"} | BESIDE)
        return instruction(line, has_template, notes)
    raise Problem(EX_DATA, "has neither text nor messages nor prompt and completion, nor the keys of ShareGPT or "
                  "Alpaca; " + what_it_holds(line))


PROMPTS = ("messages", "conversations", "prompt", "instruction", "text")    # the first that a line has is its prompt


def prompt(line, has_template, notes):
    """What a model is to continue, of a line in any form: a text, or a Chat that ends before its answer. There need be
    no answer."""
    key = next(key for key in PROMPTS if line.get(key) is not None)
    if key == "instruction":
        made = instruction({**line, "output": "a"}, has_template, notes)
        return made.prompt if isinstance(made, Pair) else made.changed(made.messages[:-1])
    if key == "text" or key == "prompt" and isinstance(line[key], str):
        return string(line, key) if key == "text" else with_system(line, line[key])
    chat = chat_of(line, messages_of(line[key], key, notes)[0], {})
    end = len(chat.messages)
    while end and chat.messages[end - 1]["role"] == "assistant":
        end -= 1
    if not end:
        raise Problem(EX_DATA, "'%s' has no message to answer" % key)
    if end < len(chat.messages):
        notes.count("chat ends in an answer, which is left out: the model is to give it",
                    "chats end in an answer, which is left out: the model is to give it")
    return chat.changed(chat.messages[:end])


# ---- other ways to show a chat to a template that fails at the usual one

def with_content(messages):
    """"" for a content that is absent beside tool calls: templates that join strings need it."""
    return [{**m, "content": ""} if m.get("content") is None and m.get("tool_calls") else m for m in messages]


def with_written_arguments(messages):
    """Arguments as JSON text: some templates join strings with it."""
    def written(call):
        function = call["function"]
        if isinstance(function.get("arguments"), (dict, list)):
            function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
        return {**call, "function": function}
    return [{**m, "tool_calls": [written(call) for call in m["tool_calls"]]} if m.get("tool_calls") else m
            for m in messages]


def with_parts(messages):
    """Content as lists of text parts: templates of models that read pictures loop over them."""
    def shown(message):
        content = message.get("content")
        parts = [{"type": "text", "text": part} for part in getattr(content, "parts", None) or [content]]
        return {**message, "content": parts}
    return [shown(m) if isinstance(m.get("content"), str) else m for m in messages]


def shapes(messages):
    """The messages, and in what other ways to show them where the template fails."""
    tried = [messages]
    for other in (with_written_arguments(messages), with_content(messages),
                  with_content(with_written_arguments(messages))):
        if other not in tried:
            tried.append(other)
    return tried


def without_begin(messages, bos):
    """The messages without the BOS with which the first one begins, or None if it does not."""
    text = messages[0].get("content") or ""
    return [{**messages[0], "content": text[len(bos):]}, *messages[1:]] if text.startswith(bos) else None


def without_end(messages, eos):
    """The messages without the EOS in which the assistant's end, or None if none does."""
    def ends(message):
        return message["role"] == "assistant" and (message.get("content") or "").rstrip().endswith(eos)
    if not any(map(ends, messages)):
        return None
    return [{**m, "content": m["content"].rstrip()[:-len(eos)]} if ends(m) else m for m in messages]

"""Small tokenizers with chat templates, and what mt-tokens makes with them.

    chats.py make DIR               models in DIR: a token is a byte, or one of MARKS
    chats.py show MODEL <records    a document a line, as a Python string; trained tokens stand in [[ ]]; behind
                                    "chosen: " or "rejected: " if it has a side
    chats.py pair MODEL <lines      "context, all" tokens of chosen and of rejected of each line, as TRL's DPOTrainer
                                    takes them: by the common beginning of chat templates with and without the answer
    chats.py count <records         the same of each document of records
    chats.py same DIR PARTS <lines  a line is MODEL, tab, JSON: transformers must make of it what tokenizers alone do.
                                    PARTS is the directory of the parts of mt-tokens
"""

import json
import os
import struct
import sys

CHAT = ("{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")
# Llama 3 and Gemma: anything becomes a string
TRIM = CHAT.replace("m['content']", "m['content'] | trim")
TOOLS = (
    "{% if tools %}{{ '<|start|>system' }}{% for t in tools %}{{ '\n' + (t | tojson) }}{% endfor %}{{ '<|end|>\n' }}"
    "{% endif %}{% for m in messages %}{{ '<|start|>' + m.role + '\n' }}{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + "
    "(c.function.arguments | tojson) + '}</call>' }}{% endfor %}{{ '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")
# DeepSeek: arguments and content must be strings
STRINGS = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.function.name + ' ' + c.function.arguments + '</call>' }}{% endfor %}{{ '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")
# Qwen3: thoughts of turns before the last question are left out; the last turn always has one
THINKS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% set content = m.content if m.content is string else '' %}"
    "{% if m.role == 'assistant' %}{% set thought = '' %}{% if m.reasoning_content is string %}"
    "{% set thought = m.reasoning_content %}{% elif '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<|start|>assistant\n' }}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}{% else %}"
    "{{ content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + ' ' + (c.function.arguments | tojson) + "
    "'</call>' }}{% endfor %}{{ '<|end|>\n' }}{% elif m.role == 'tool' %}"
    "{{ '<|start|>user\n<answer>' + content + '</answer><|end|>\n' }}"
    "{% else %}{{ '<|start|>' + m.role + '\n' + content + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}")
# DeepSeek-R1: the generation prompt has <think>, and answers are written without their thoughts
STRIPS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|start|>A' + m.content.split('</think>')[-1] + '<|end|>' }}{% else %}"
    "{{ '<|start|>U' + m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>A<think>\n' }}{% endif %}")
# Gemma 4: the generation prompt has an empty thought
CHANNEL = CHAT.replace("{{ '<|start|>assistant\n' }}", "{{ '<|start|>assistant\n<channel>thought\n<over>' }}")
# gpt-oss: thoughts and answers have headers of their own; a call's thought is left out once an answer follows; the last
# turn ends in another mark
HARMONY = (
    "{% set ns = namespace(final=false) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
    "{% set ns.final = true %}{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking and (not ns.final if m.tool_calls else loop.last) %}"
    "{{ '<|start|>assistant<|thought|>' + m.thinking + '<|end|>' }}{% endif %}{% if m.tool_calls %}"
    "{{ '<|start|>assistant to=' + m.tool_calls[0].function.name + '<|call|>' }}{% else %}"
    "{{ '<|start|>assistant<|final|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}{% endif %}{% else %}"
    "{{ '<|start|>' + m.role + '<|final|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}")
# GLM: nothing ends a turn but the next one's header
ENDLESS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.function.name }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
# LLaVA: content is a list of parts, and no token ends an answer
PARTS = (
    "{% for m in messages %}{{ m.role.upper() + ': ' }}{% for c in m.content | selectattr('type', 'equalto', 'text') %}"
    "{{ c.text + ' ' }}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}")
# the loop over the messages is in a macro
MACRO = (
    "{% macro show(messages) %}{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}"
    "{% endfor %}{% endmacro %}{{ show(messages) }}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")
# a template that shows the words of the last turn alone
LAST = CHAT.replace("m['content'] +", "(m['content'] if loop.last or m.role != 'assistant' else '...') +")
MARKED = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|end|>' }}{% endgeneration %}{{ '\n' }}{% else %}{{ m.content + '<|end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")
NAMED = [{"name": "default", "template": CHAT}, {"name": "tool_use", "template": TOOLS}]
# Mistral: no chat but one whose turns alternate; BOS first, EOS behind answers
ALTERNATES = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}")
TEMPLATES = {"chat": CHAT, "trim": TRIM, "tools": TOOLS, "strings": STRINGS, "thinks": THINKS, "strips": STRIPS,
             "last": LAST, "marked": MARKED, "named": NAMED, "alternates": ALTERNATES, "bos": CHAT, "none": None,
             "channel": CHANNEL, "harmony": HARMONY, "endless": ENDLESS, "parts": PARTS, "macro": MACRO}
MARKS = ["<s>", "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|final|>", "<|thought|>", "<|user|>",
         "<|assistant|>", "<|tool|>"]


def make(top):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing
    for name, template in TEMPLATES.items():
        directory = os.path.join(top, name)
        os.makedirs(directory)
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
        t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        t.add_special_tokens(MARKS)
        if name == "bos":
            t.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
        t.save(directory + "/tokenizer.json")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|end|>",
                  "clean_up_tokenization_spaces": False}
        with open(directory + "/tokenizer_config.json", "w") as f:
            json.dump({**config, "chat_template": template} if template else config, f)


def documents(data):
    """(side, ids) of each document of records."""
    words, at = struct.unpack("<%dI" % (len(data) // 4), data), 0
    while at < len(words):
        end = at + 1 + (words[at] & 0x7fffffff)
        if not words[at] >> 31:
            yield 0, words[at + 1:end]
            at = end
            continue
        at += 1
        while at < end:
            count, parts = words[at:at + 2]
            side = words[at + 2] if parts & 1 else 0
            at += 2 + (parts & 1)
            yield side, words[at:at + count]
            at += count * (1 + (parts >> 3 & 1) + (parts >> 4 & 1))


def pair(model):
    from transformers import AutoTokenizer
    t = AutoTokenizer.from_pretrained(model)

    def show(messages, ask):
        return t.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
    for line in map(json.loads, sys.stdin):
        prompt, sides = line.get("prompt"), [line["chosen"], line["rejected"]]
        if not prompt:                  # as trl.data_utils.extract_prompt
            at = next((i for i, (a, b) in enumerate(zip(*sides)) if a != b), min(map(len, sides)) - 1)
            prompt, sides = sides[0][:at], [side[at:] for side in sides]
        for side in sides:
            if isinstance(prompt, str):
                before, whole = prompt, prompt + side + t.eos_token
            else:
                before, whole = show(prompt, True), show(prompt + side, False)
                before = os.path.commonprefix([before, whole])
            ids = [t(text, add_special_tokens=False)["input_ids"] for text in (before, whole)]
            print(len(ids[0]), *ids[1])


def count():
    for _, ids in documents(sys.stdin.buffer.read()):
        context = next(i for i, word in enumerate(ids) if not word >> 31)
        assert not any(word >> 31 for word in ids[context:])
        print(context, *(word & 0x7fffffff for word in ids))


def show(model):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(model + "/tokenizer.json")
    for side, words in documents(sys.stdin.buffer.read()):
        shown, part, trained = "", [], False
        for word in [*words, None]:
            now = word is not None and not word >> 31
            if now != trained or word is None:
                text = tokenizer.decode(part, skip_special_tokens=False)
                shown, part, trained = shown + ("[[%s]]" % text if trained else text), [], now
            part.append(word and word & 0x7fffffff)
        print(("", "chosen: ", "rejected: ")[side] + repr(shown)[1:-1])


def same(top, parts):
    sys.path.insert(0, parts)
    from tokens.alike import is_sure
    from tokens.masks import Maker
    from tokens.template import Clock
    from tokens.tokenizer import Plain, Transformers
    made, count = {}, 0
    for line in sys.stdin:
        name, line = line.split("\t", 1)
        model = os.path.join(top, name)
        if name not in made:
            assert is_sure(model), name
            made[name] = [Maker(kind(model, False, Clock())) for kind in (Plain, Transformers)]
        plain, other = (maker.documents(json.loads(line)) for maker in made[name])
        assert plain == other, (name, line, plain, other)
        count += 1
    print(len(made), count)


if __name__ == "__main__":
    {"make": make, "show": show, "same": same, "pair": pair, "count": count}[sys.argv[1]](*sys.argv[2:])

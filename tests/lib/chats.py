"""Small tokenizers with chat templates, and what mt-tokens makes with them.

    chats.py make DIR               models in DIR: a token is a byte, or <s>, <|start|>, <|end|>
    chats.py show MODEL <records    a record a line, as a Python string; trained tokens stand in [[ ]]
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
             "last": LAST, "marked": MARKED, "named": NAMED, "alternates": ALTERNATES, "bos": CHAT, "none": None}


def make(top):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing
    for name, template in TEMPLATES.items():
        directory = os.path.join(top, name)
        os.makedirs(directory)
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
        t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        t.add_special_tokens(["<s>", "<|start|>", "<|end|>"])
        if name == "bos":
            t.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
        t.save(directory + "/tokenizer.json")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|end|>",
                  "clean_up_tokenization_spaces": False}
        with open(directory + "/tokenizer_config.json", "w") as f:
            json.dump({**config, "chat_template": template} if template else config, f)


def show(model):
    from tokenizers import Tokenizer
    tokenizer, data, at = Tokenizer.from_file(model + "/tokenizer.json"), sys.stdin.buffer.read(), 0
    while at < len(data):
        count, = struct.unpack_from("<I", data, at)
        words = struct.unpack_from("<%dI" % count, data, at + 4)
        at += 4 + 4 * count
        shown, part, trained = "", [], False
        for word in [*words, None]:
            now = word is not None and not word >> 31
            if now != trained or word is None:
                text = tokenizer.decode(part, skip_special_tokens=False)
                shown, part, trained = shown + ("[[%s]]" % text if trained else text), [], now
            part.append(word and word & 0x7fffffff)
        print(repr(shown)[1:-1])


def same(top, parts):
    sys.path.insert(0, parts)
    from tokens.alike import is_sure
    from tokens.masks import Maker
    from tokens.tokenizer import Plain, Transformers
    made, count = {}, 0
    for line in sys.stdin:
        name, line = line.split("\t", 1)
        model = os.path.join(top, name)
        if name not in made:
            assert is_sure(model), name
            made[name] = Maker(Plain(model, False)), Maker(Transformers(model, False))
        plain, other = (maker.document(json.loads(line)) for maker in made[name])
        assert plain == other, (name, line, plain, other)
        count += 1
    print(len(made), count)


if __name__ == "__main__":
    {"make": make, "show": show, "same": same}[sys.argv[1]](*sys.argv[2:])

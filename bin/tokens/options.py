"""The command line."""

import argparse
import datetime
import os
import re
import sys

from .errors import EX_IO, EX_USAGE, Problem, say
from .template import Clock

VERSION = "0.2.0"
DESCRIPTION = "converts texts and chats to records, with a model's tokenizer and chat template, or records to text."

EPILOG = """each line of a FILE (default: stdin) is one of
  {"text": "..."}                        loss is computed on all tokens and a final EOS
  {"prompt": "...", "completion": "..."} loss on the completion and EOS only; both may be lists of messages
  {"messages": [...], "tools": [...]}    loss on the assistant's tokens only; tools may be absent
  {"conversations": [...]}               the same in ShareGPT's form: from (human, gpt, system) and value
  {"instruction": "...", "input": "...", "output": "..."}
                                         Alpaca's form: a chat of two messages; input may be absent
  {"prompt": ..., "chosen": ..., "rejected": ...}
                                         two answers to compare (--loss dpo, ...), texts or messages; the prompt may be
                                         messages, conversations, instruction and input, or what both begin with
  {"prompt": ..., "completion": ..., "label": true}
                                         an answer that is good (true) or bad (false), for --loss kto
  {"ids": [...], "trained": [...], "advantage": x, "logprobs": [...]}
                                         token ids as they are; for policy gradients with the log-probabilities that
                                         the sampler had (--loss pg), or without

Beside a chat, system is its first message, history has [question, answer] pairs before it, and chat_template_kwargs
are variables of the template. A turn with "weight": 0, "train": false or "loss": false is context.

A FILE may also be one JSON array of these, pretty-printed or not; be compressed with gzip or zstd; or be a parquet
file with columns of these names.

The ids of messages are those of apply_chat_template. The assistant's tokens are those between {% generation %} and
{% endgeneration %} in the template; without these marks, those that a turn of the assistant adds to the prompt before
it. bin/tokens/README.md has a table of all forms."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        say(message)
        sys.exit(EX_USAGE)

    def _print_message(self, message, file=None):       # argparse's own hides that stdout is full
        if not file:
            raise Problem(EX_IO, "stdout: is closed")
        try:
            file.write(message)
            file.flush()
        except OSError as e:
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            raise Problem(EX_IO, "stdout: " + e.strerror) from e


class Rows(argparse.Action):
    """--options: a row an option, as shm/cli/README.md has them."""

    def __call__(self, parser, *_):
        for a in parser._actions:
            if a.option_strings and a.help != argparse.SUPPRESS:
                kind = "flag" if a.nargs == 0 else "list" if a.default == [] else "value"
                print(a.option_strings[-1].lstrip("-"), kind, a.metavar or "", "", "", a.help, sep="\t")
        parser.exit()


def number_of_jobs(text):
    if not re.fullmatch("[1-9][0-9]{0,3}", text, re.ASCII):
        raise argparse.ArgumentTypeError("'%s': expected a number of processes, 1 to 9999" % text)
    return int(text)


def number_of(what):
    def number(text):
        if not re.fullmatch("[1-9][0-9]{0,8}", text, re.ASCII):
            raise argparse.ArgumentTypeError("'%s': expected a number of %s, 1 to 999999999" % (text, what))
        return int(text)
    return number


def day(text):
    try:
        if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text, re.ASCII):
            return datetime.datetime.fromisoformat(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError("'%s': expected a date, YYYY-MM-DD" % text)


def parse():
    parser = Parser(prog="mt-tokens", description=DESCRIPTION, epilog=EPILOG,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", nargs="?",
                        help="directory of a Hugging Face model; not with --bytes")
    parser.add_argument("files", metavar="FILE", nargs="*", help="documents, or with --decode records; - is stdin")
    parser.add_argument("-o", dest="output", metavar="FILE",
                        help="write FILE, whole or not at all, instead of stdout; - is stdout")
    parser.add_argument("--decode", action="store_true", help="write the text of records, a document a line")
    parser.add_argument("--sep", metavar="TEXT",
                        help="what ends a document of --decode (default: \\n; \\0: a zero byte)")
    parser.add_argument("--stop", metavar="TEXT", action="append", default=[],
                        help="with --decode: cut a document whose last token completes TEXT before it; may be repeated")
    parser.add_argument("--json", action="store_true", help='with --decode: write {"text": "..."} a line')
    parser.add_argument("--prompts", action="store_true",
                        help="prompts for mt-sample: a line is plain text, which gets no EOS, or a chat, which gets "
                             "the generation prompt in place of its last answer")
    parser.add_argument("--show", metavar="N", type=number_of("documents"),
                        help="write the text of the first N documents instead of records, with what is trained on in "
                             "[[ ]], on a terminal in green")
    parser.add_argument("--bytes", action="store_true", help="no MODEL: a token is a byte; needs no package")
    parser.add_argument("--keep-empty", action="store_true", help="write documents without tokens to train on as well")
    parser.add_argument("--no-eos", action="store_true",
                        help="add no EOS to texts and completions, such as the choices that mt-score compares")
    parser.add_argument("--pairs", action="store_true",
                        help="read chosen and rejected also of lines that have a document of another form")
    parser.add_argument("--max-length", metavar="N", type=number_of("tokens"),
                        help="cut documents, of a pair each side, at their end to N tokens (default: whole)")
    parser.add_argument("--date", metavar="YYYY-MM-DD", type=day,
                        help="what a chat template takes for today (default: today)")
    parser.add_argument("--jobs", metavar="N", type=number_of_jobs, default=len(os.sched_getaffinity(0)),
                        help="processes (default: the cores); the output is the same for any number")
    parser.add_argument("--plain", dest="way", action="store_const", const="plain",
                        help="use tokenizers and jinja2 alone (default where transformers gives the same for sure)")
    parser.add_argument("--transformers", dest="way", action="store_const", const="transformers",
                        help="use transformers")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="let transformers run Python code of the model directory")
    parser.add_argument("--version", action="version", version="mt-tokens " + VERSION)
    parser.add_argument("--options", action=Rows, nargs=0, help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.bytes and options.model is not None:
        options.files.insert(0, options.model)
    elif not options.bytes and options.model is None:
        parser.error("the following arguments are required: MODEL")
    if options.sep is not None and not options.decode:
        parser.error("--sep is for --decode")
    if options.stop and not (options.decode and all(options.stop)):
        parser.error("--stop: an empty text" if options.decode else "--stop is for --decode; mt-sample has its own")
    if options.json and (not options.decode or options.sep is not None):
        parser.error("--json is for --decode, without --sep")
    if options.prompts and options.decode:
        parser.error("--prompts makes records, --decode reads them")
    if options.show and (options.prompts or options.decode):
        parser.error("--show is for documents to train on, not with --prompts or --decode")
    if options.no_eos and (options.prompts or options.decode):
        parser.error("--no-eos is for documents, not for --prompts and --decode")
    if options.date and (options.bytes or options.decode):
        parser.error("--date is for a chat template, which --bytes and --decode have not")
    options.clock = Clock(options.date)
    options.sep = "\n" if options.sep is None else options.sep
    return options

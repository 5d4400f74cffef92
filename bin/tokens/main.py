"""mt-tokens: options, the tokenizer, then one of three conversions."""

import os
import signal
import sys

from .convert import decode, encode, encode_prompts
from .errors import EX_IO, EX_NOMEM, EX_USAGE, Problem, say
from .model import Vocabulary, check_model
from .options import parse
from .output import Stopped, output
from .tokenizer import Bytes, load


def take_stdin():
    """stdin as a file that only the caller reads. sys.stdin becomes an empty file: transformers asks there whether to
    run a model's code, and must not take a "y" in the data for the answer."""
    data = sys.stdin and os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    sys.stdin = open(os.devnull)
    return data


def open_standard_fds():
    """Open fd 0, 1 and 2 if they are closed: the next file to be opened would get that number, and its input or
    output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if fd else os.O_WRONLY)     # the wrong direction: reads and writes fail


def main():
    options = parse()
    options.terminal = options.output is None and bool(sys.stdout) and sys.stdout.isatty()
    if options.terminal and not options.decode and not options.show:
        raise Problem(EX_USAGE, "records are binary: redirect stdout to a file or a pipe, or name a file by -o")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")    # processes share the work; its threads survive no fork
    stdin = take_stdin()
    with output(options.output, options.files) as out:
        if options.bytes:
            tokenizer, vocabulary = Bytes(), Vocabulary()
        else:
            check_model(options.model, options.files)
            tokenizer = load(options.model, options.way, options.trust_remote_code, options.clock)
            vocabulary = Vocabulary(options.model)
        how = decode if options.decode else encode_prompts if options.prompts else encode
        how(tokenizer, vocabulary, options, out, stdin)


def start():
    open_standard_fds()
    try:
        main()
    except Problem as problem:
        say(problem)
        sys.exit(problem.code)
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())   # discard what is buffered
        if isinstance(problem, BrokenPipeError):
            sys.exit(0)
        say("reading or writing: %s" % problem.strerror)
        sys.exit(EX_IO)
    except MemoryError:
        say("not enough memory")
        sys.exit(EX_NOMEM)
    except KeyboardInterrupt:
        sys.exit(130)
    except Stopped as stopped:
        signal.signal(stopped.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), stopped.args[0])

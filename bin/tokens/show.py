"""Documents for people (--show): their text, with what loss is computed on between marks."""

import itertools
import unicodedata

from .records import CHOSEN, REJECTED
from .turns import common

MARKS = "[[", "]]"
COLOUR = "\033[32m", "\033[0m"              # green, on a terminal


def parts(tokenizer, document):
    """(text, is it trained on) of the document's parts. A part's text is what it adds to the text before it: decoded
    alone, some tokenizers leave out its first blank."""
    flags = [False, *(document.trained or [True] * len(document.ids))[1:]]      # nothing predicts the first token
    whole, at, begin = tokenizer.decode(document.ids), 0, 0
    for trained, run in itertools.groupby(flags):
        at += len(list(run))
        end = common(tokenizer.decode(document.ids[:at]), whole) if at < len(flags) else len(whole)
        yield whole[begin:end].decode(errors="replace"), trained
        begin = end


def printable(text):
    """Text that commands no terminal."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text)


def shown(where, documents, tokenizer, terminal):
    """What --show writes of a line's documents."""
    begin, end = COLOUR if terminal else MARKS
    made = []
    for document in documents:
        text = "".join(begin + printable(text) + end if trained else printable(text)
                       for text, trained in parts(tokenizer, document))
        made.append("--- %s%s: %d tokens, %d trained on\n%s\n" % (
            where, {CHOSEN: ", chosen", REJECTED: ", rejected"}.get(document.side, ""), len(document.ids),
            document.targets(), text))
    return "".join(made).encode()

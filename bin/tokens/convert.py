"""Lines -> records, with counts and reports; records -> text."""

import json
import re

from .arrow import is_of_arrow, without_nulls
from .errors import EX_DATA, Problem, say
from .formats import HEAD, refuse_other_than_records
from .masks import Maker
from .model import missing_end
from .normalize import BESIDE, PROMPTS
from .notes import Notes, many
from .reading import chunks, open_file, parse, split_lines, text_of
from .records import Document, record, records
from .show import shown
from .turns import common
from .workers import Progress, convert_all


class Made:
    """The records and counts of a chunk of lines, or of all lines."""

    def __init__(self):
        self.records, self.notes, self.problem = [], Notes(), None
        self.documents = self.tokens = self.trained = self.longest = 0
        self.prompted = 0                   # documents that begin with context
        self.pairs = 0                      # of the documents, those that are two: chosen and rejected
        self.lines = self.left_out = 0      # lines that made a document; those of them without tokens to train on
        self.unexplained = 0                # those of them for which no note says why
        self.first_left_out = None

    def add(self, other):
        """Counts and notes only: records are written when they come."""
        self.notes.add(other.notes)
        for key in ("documents", "tokens", "trained", "lines", "left_out", "unexplained", "prompted", "pairs"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        self.longest = max(self.longest, other.longest)
        self.first_left_out = self.first_left_out or other.first_left_out


def half_pair(line):
    """What is wrong with a line of JSON that has only one half of a surrogate pair, or None: tokenizers fail at such
    text, each with other words."""
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        return "has the escape \\u%x: half of a surrogate pair without the other" % ord(e.object[e.start])
    except Exception:
        return None


def parsed(line):
    """A line's value, or why it is not JSON."""
    try:
        value = parse(line)
        return without_nulls(value) if is_of_arrow(value) else value
    except (Problem, ValueError, RecursionError) as e:
        return e


def shortened(documents, longest, notes):
    """The documents without what --max-length leaves out of each."""
    cut = [made.cut(longest) for made in documents] if longest else documents
    for made, kept in zip(documents, cut):
        if len(made.ids) > len(kept.ids):
            notes.count("document is cut to --max-length", "documents are cut to --max-length")
        if made.targets() and not kept.targets():
            notes.reasons += 1
            notes.count("prompt fills --max-length: no token of the answer is left",
                        "prompts fill --max-length: no token of the answers is left")
    if len(cut) > 1 and cut[0].ids == cut[1].ids and cut[0].targets():
        notes.count("pair has the same answer on both sides", "pairs have the same answer on both sides")
    return cut


def convert(maker, vocabulary, options, where, first, lines):
    made = Made()
    maker.notes = made.notes
    if where is None:
        made.problem = first, lines
        return made
    values = [parsed(line) for line in lines]
    maker.prepare(values)
    for number, (line, value) in enumerate(zip(lines, values), first):
        if not line.strip():
            continue
        made.notes.at = at = "%s %d" % (where, number)
        reasons = made.notes.reasons
        try:
            if isinstance(value, Exception):
                raise value
            documents = shortened(maker.documents(value), options.max_length, made.notes)
            for document in documents:
                if not document.ids:
                    raise Problem(EX_DATA, "makes no token")
                vocabulary.check(document.ids, maker.tokenizer)
        except MemoryError:
            raise
        except Exception as e:      # a Problem, invalid JSON, or any error of a template or a tokenizer
            code, why = (e.code, e) if isinstance(e, Problem) else (EX_DATA, half_pair(line) or e)
            made.problem = code, "%s: %s" % (at, why)
            return made
        say_day(options, made.notes)
        made.lines += 1
        wanted, pair = [document.targets() for document in documents], len(documents) > 1
        sides = documents[0].side != 0
        if not all(wanted):
            made.left_out += 1
            made.unexplained += made.notes.reasons == reasons
            made.first_left_out = made.first_left_out or at
            if sides or not options.keep_empty:
                continue
        made.records.append(shown(at, documents, maker.tokenizer, options.terminal) if options.show else
                            record(*documents))
        made.documents += 1
        made.pairs += pair
        made.tokens += sum(len(document.ids) for document in documents)
        made.trained += sum(wanted)
        made.prompted += bool(not sides and wanted[0] and documents[0].trained and not documents[0].trained[0])
        made.longest = max(made.longest, sum(len(document.ids) for document in documents))
    return made


def say_day(options, notes):
    if options.clock.asked and not options.date:
        notes.say("the chat template writes today's date, so another day makes other records: --date YYYY-MM-DD "
                  "fixes it")


def one_by_one(parts):
    for where, first, lines in parts:
        if where is None:
            yield where, first, lines
        else:
            yield from ((where, number, [line]) for number, line in enumerate(lines, first))


def encode(tokenizer, vocabulary, options, out, stdin):
    maker, total, progress = Maker(tokenizer, options.pairs, not options.no_eos), Made(), Progress()

    def job(*chunk):
        return convert(maker, vocabulary, options, *chunk)

    parts, jobs = chunks(options.files or ["-"], stdin), options.jobs
    if options.show:                        # no line is read behind the last one that is shown
        parts, jobs = one_by_one(parts), 1
    try:
        for made in convert_all(job, jobs, parts):
            out.write(b"".join(made.records))
            total.add(made)
            if made.problem:
                raise Problem(*made.problem)
            if options.show and total.documents == options.show:
                break
            progress.show(total)
    finally:
        progress.clear()
        out.flush()
    finish(total, vocabulary.model)


def finish(total, model):
    lost = total.notes.losses()
    if total.left_out and not total.documents:
        raise Problem(EX_DATA, "no line has tokens to train on: no record is written; the first is %s%s%s" % (
            total.first_left_out, lost, "".join("; " + line for line in total.notes.lines())))
    for line in [*total.notes.lines(), *(missing_end(model, total.notes.ends) if model else [])]:
        say(line)
    if total.left_out:
        one = total.left_out == 1
        say("%d of %s %s %s: %s no tokens to train on%s; the first is %s" % (
            total.left_out, many(total.lines, "line"), "is" if one else "are", "left out" if total.documents <
            total.lines else "context only", "it has" if one else "they have",
            " (no assistant turn?)" if total.unexplained else "", total.first_left_out))
    if total.prompted:
        say("%d of %s %s with a prompt: if --seq is below %d, train with --long drop; by default the "
            "later parts of a longer one have answers without it" % (
                total.prompted, many(total.documents, "document"), "begins" if total.prompted == 1 else "begin",
                total.longest))
    if total.pairs:
        say("%s of chosen and rejected: training leaves out those with more tokens than --seq, in both together; "
            "--max-length N cuts each answer at its end" % many(total.pairs, "pair"))
    say("%s, %s, %d of them trained on; the longest has %d%s; %s skipped" % (
        many(total.documents, "document"), many(total.tokens, "token"), total.trained, total.longest, lost,
        many(total.lines - total.documents, "line")))


def asked(line, notes):
    """A line of --prompts: the object that asks in one of the forms, or else its text."""
    form = r'\s*\{\s*"(%s)"\s*:' % "|".join((*PROMPTS, *BESIDE))
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        if re.match(form, line):
            parse(line.encode())            # says what is wrong
        return line
    if not isinstance(value, dict):
        return line
    if any(value.get(key) is not None for key in PROMPTS):
        return value
    notes.count("line is an object without messages and is read as plain text",
                "lines are objects without messages and are read as plain text")
    return line


def encode_prompts(tokenizer, vocabulary, options, out, stdin):
    """Lines that the model is to continue: chats or plain text."""
    maker, written = Maker(tokenizer), False
    for name in options.files or ["-"]:
        with open_file(name, stdin) as file:
            _, pieces = text_of("stdin" if name == "-" else name, file, False)
            for number, line in enumerate(split_lines(name, pieces), 1):
                maker.notes.at = "%s: line %d" % ("stdin" if name == "-" else name, number)
                try:
                    ids = maker.prompt(asked(line.rstrip(b"\r").decode(), maker.notes))
                except UnicodeDecodeError:
                    raise Problem(EX_DATA, "%s is not UTF-8" % maker.notes.at)
                except MemoryError:
                    raise
                except Exception as e:      # of the line, a template or a tokenizer
                    raise Problem(getattr(e, "code", EX_DATA), "%s: %s" % (maker.notes.at, half_pair(line) or e))
                vocabulary.check(ids, tokenizer)
                say_day(options, maker.notes)
                if ids:
                    out.write(record(Document(ids)))
                    written = True
    out.flush()
    for line in maker.notes.lines():
        say(line)
    if not written:
        raise Problem(EX_DATA, "no line has a prompt")


def unescaped(text):
    """The bytes of an option's text: \\n, \\t, \\0 and \\\\ in it stand for what is hard to type."""
    escapes = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}
    return re.sub(r"\\([nt0\\])", lambda m: escapes[m[1]], text).encode(errors="surrogateescape")


def stopped(tokenizer, ids, text, stops):
    """The text before the first of `stops` that the last token completes, and that one or None: mt-sample --stop ends
    there."""
    since = common(tokenizer.decode(ids[:-1]), text) if stops else 0
    found = [(at, stop) for stop in stops for at in [text.find(stop, max(since - len(stop) + 1, 0))] if at >= 0]
    at, stop = min(found, default=(len(text), None))
    return text[:at], stop


def decode(tokenizer, _, options, out, stdin):
    sep, stops = unescaped(options.sep), list(map(unescaped, options.stop))
    try:
        for name in options.files or ["-"]:
            with open_file(name, stdin) as file:
                refuse_other_than_records(name, file.peek(HEAD))
                for where, ids in records("stdin" if name == "-" else name, file):
                    try:
                        text = tokenizer.decode(ids)
                    except Problem as e:
                        raise Problem(e.code, "%s: %s" % (where, e))
                    text, stop = stopped(tokenizer, ids, text, stops)
                    if options.json:
                        line = {"text": text.decode(errors="replace")}
                        if stops:
                            line["stop_reason"] = stop and stop.decode(errors="replace")
                        text = json.dumps(line, ensure_ascii=False).encode()
                    out.write(text + sep)
    finally:
        out.flush()

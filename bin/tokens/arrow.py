"""Rows of Arrow: of a parquet file -> lines of JSON, the columns that are used, few rows at a time; or written as JSON
by another program."""

import contextlib
import json
import re

from .errors import EX_CONFIG, EX_DATA, EX_IO, EX_NOMEM, Problem
from .normalize import KEYS
from .values import LONGEST

BATCH, ROWS = 1 << 26, 256      # what is read at once: bytes, and rows


def without_nulls(value):
    """Arrow gives each object the keys of all rows' objects, those that its own row lacks with null. A map comes as
    pairs, which nothing else does."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        value = dict(value)
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


# ---- written as JSON

def nested(value, key=None):
    """Every list and object in it, with the key that it stands under"""
    if isinstance(value, (list, dict)):
        yield key, value
        for name, part in value.items() if isinstance(value, dict) else ((key, part) for part in value):
            yield from nested(part, name)


def is_of_arrow(line):
    """Is it a row of Arrow that was written as JSON, such as by to_json of datasets? All objects of a list have the
    same keys then. Nulls that others do not write show it: in several messages, or as a property of a tool."""
    if not isinstance(line, dict):
        return False
    chats = "messages", "conversations", "prompt", "completion", "chosen", "rejected"
    parts = list(nested({key: line.get(key) for key in (*chats, "tools", "functions")}))
    objects = [(key, [item for item in part if isinstance(item, dict)])
               for key, part in parts if isinstance(part, list)]
    return (any(item is None for key, part in parts if key == "properties" and isinstance(part, dict)
                for item in part.values()) or
            any(item is None for key, several in objects if key in chats and len(several) > 1
                for message in several for item in message.values())) and all(
        list(item) == list(several[0]) for _, several in objects for item in several)


# ---- of a parquet file

def as_json(kind):
    """The type that has the values of a type of Arrow as JSON can have them: text for what is in a dictionary, and for
    times, of which Python has fewer than Arrow."""
    import pyarrow
    types = pyarrow.types
    if types.is_dictionary(kind):
        return as_json(kind.value_type)
    if types.is_temporal(kind):
        return pyarrow.string()
    if types.is_decimal(kind):
        return pyarrow.float64()
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(as_json(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(as_json(kind.key_type), as_json(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(as_json(kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return (pyarrow.list_ if types.is_list(kind) else pyarrow.large_list)(as_json(kind.value_type))
    return kind


def has_text(kind):
    import pyarrow
    types = pyarrow.types
    if types.is_nested(kind):
        return any(has_text(kind.field(i).type) for i in range(kind.num_fields))
    return types.is_string(kind) or types.is_large_string(kind)


def used_columns(schema):
    """Columns that a form may use. For pairs also those that may have the prompt under another name."""
    pairs = {"chosen", "rejected"} <= set(schema.names)
    return [field.name for field in schema if field.name in KEYS or pairs and has_text(field.type)]


def to_json(row):
    """Bytes are no text: an object stands for them, which whatever needs text refuses."""
    return json.dumps(row, ensure_ascii=False, default=lambda value: {}).encode()


@contextlib.contextmanager
def explained(name, where=""):
    """Ends with what an error of pyarrow is: a damaged file, or a failure of this machine."""
    import pyarrow
    try:
        yield
    except MemoryError as e:
        raise Problem(EX_NOMEM, "%s: %snot enough memory: %s" % (name, where, e))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as e:
        if getattr(e, "errno", None):
            raise Problem(EX_IO, "%s: %s" % (name, e.strerror))
        raise Problem(EX_DATA, "%s: damaged parquet file: %s%s" % (name, where, e))


def longest_value(file, chunk):
    """Bytes that a value of a column chunk may have in the memory that its dictionary takes: a small file can repeat a
    long one. The header of the first page tells (PageHeader of parquet.thrift, in Thrift's compact protocol): fields 1
    and 2 are its type, 2 for a dictionary, and its size when it is unpacked."""
    file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
    numbers = re.match(rb"\x15([\x80-\xff]*.)\x15([\x80-\xff]*.)", file.read(32), re.DOTALL)
    kind, size = (sum((byte & 127) << 7 * at for at, byte in enumerate(number)) >> 1
                  for number in numbers.groups()) if numbers else (2, chunk.total_uncompressed_size)
    return size if kind == 2 else 0


class Rows:
    """Iterates over the rows of a parquet file, as lines of JSON. A column that is not read is there as true."""

    def __init__(self, name, parquet):
        self.name, self.number, self.file = name, 0, parquet.ParquetFile(name, pre_buffer=False, buffer_size=1 << 20)
        schema = self.file.schema_arrow
        self.names, self.used = schema.names, used_columns(schema) or schema.names
        self.kinds = {field.name: as_json(field.type) for field in schema}
        paths = [self.file.schema.column(i).path.split(".")[0] for i in range(len(self.file.schema))]
        self.chunks = [i for i, path in enumerate(paths) if path in self.used]

    def batches(self, group):
        """Of a row group, so many rows at a time that they have no more than BATCH bytes, unless one has."""
        def read(rows):
            return self.file.iter_batches(rows, [group], self.used, use_threads=False)

        next(read(1), None)     # meta.column aborts at some damage that is an error here
        meta = self.file.metadata.row_group(group)
        with open(self.name, "rb") as file:
            size = sum(max(longest_value(file, chunk) * chunk.num_values, chunk.total_uncompressed_size)
                       for chunk in map(meta.column, self.chunks))
        return read(max(1, min(ROWS, BATCH * meta.num_rows // max(size, 1))))

    def lines(self, batch):
        import pyarrow
        if batch.num_rows > 1 and batch.nbytes > BATCH:
            yield from self.one_by_one(batch)
            return
        if batch.nbytes > LONGEST:
            raise Problem(EX_DATA, "%s: row %d is longer than 1 GiB" % (self.name, self.number + 1))
        values = {}
        try:
            for name, array in zip(batch.schema.names, batch.columns):
                kind = self.kinds[name]
                values[name] = (array if array.type == kind else array.cast(kind)).to_pylist()
        except MemoryError:
            raise
        except (pyarrow.ArrowException, ValueError, OverflowError) as e:
            if batch.num_rows > 1:          # rows before the one that is at fault are read
                yield from self.one_by_one(batch)
                return
            why = "is not UTF-8: byte 0x%02x" % e.object[e.start] if isinstance(e, UnicodeDecodeError) else \
                "cannot be read: %s" % e
            raise Problem(EX_DATA, "%s: row %d: '%s' %s" % (self.name, self.number + 1, name, why))
        for at in range(batch.num_rows):
            self.number += 1
            yield to_json(without_nulls({name: values[name][at] if name in values else True for name in self.names}))

    def one_by_one(self, batch):
        for at in range(batch.num_rows):
            yield from self.lines(batch.slice(at, 1))

    def __iter__(self):
        for group in range(self.file.num_row_groups):
            with explained(self.name, "row group %d: " % (group + 1)):
                for batch in self.batches(group):
                    yield from self.lines(batch)


def parquet_rows(name):
    if name == "stdin":
        raise Problem(EX_DATA, "stdin: a parquet file cannot be read from a pipe")
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise Problem(EX_CONFIG, "%s: needs pyarrow: pip install pyarrow" % name)
    except (ImportError, SystemError) as e:     # without memory each of its libraries fails in its own way
        short = isinstance(e, SystemError) or re.search("allocate memory|map segment", str(e))
        raise Problem(EX_NOMEM if short else EX_CONFIG, "%s: loading pyarrow: %s%s" % (
            name, "not enough memory: " if short else "", e))
    with explained(name):
        rows = Rows(name, parquet)
    yield from rows

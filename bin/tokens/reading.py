"""Input: lines of JSON, plain or compressed, or the rows of a parquet file."""

from .errors import EX_CONFIG, EX_DATA, EX_NOINPUT, Problem

CHUNK_LINES, CHUNK_BYTES = 256, 1 << 18         # what a process converts at once


def split_lines(pieces):
    rest = b""
    for piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest


def unzstd(name, file):
    """The pieces of a zstd file, by the module zstandard or else by the program zstd."""
    try:
        import zstandard
    except ImportError:
        yield from unzstd_program(name)
        return
    whole = True
    while data := file.read(1 << 17):
        while data:
            if whole:
                frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as e:
                raise Problem(EX_DATA, "%s: damaged zstd file: %s" % (name, e))
            whole, data = frame.eof, frame.unused_data
    if not whole:
        raise Problem(EX_DATA, "%s: damaged zstd file: it ends early" % name)


def unzstd_program(name):
    import subprocess
    if name == "stdin":
        raise Problem(EX_CONFIG, "stdin: zstd data needs the module zstandard: pip install zstandard, or use zstd -dc")
    try:
        with open(name, "rb") as file:
            child = subprocess.Popen(["zstd", "-dcq", "--long=31"], stdin=file, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Problem(EX_CONFIG, "%s: needs zstd: apt-get install zstd, or pip install zstandard" % name)
    with child.stdout:
        while data := child.stdout.read(1 << 17):
            yield data
    if child.wait():
        raise Problem(EX_DATA, "%s: damaged zstd file" % name)


def gunzip(name, file):
    import gzip
    import zlib
    unpacked = gzip.GzipFile(fileobj=file)
    try:
        while data := unpacked.read(1 << 17):
            yield data
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise Problem(EX_DATA, "%s: damaged gzip file: %s" % (name, e))


def without_nulls(value):
    """Arrow gives each object the keys of all rows' objects, those that its own row lacks with null. A map comes as
    pairs, which nothing else does."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        value = dict(value)
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def parquet_rows(name):
    if name == "stdin":
        raise Problem(EX_DATA, "stdin: a parquet file cannot be read from a pipe")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Problem(EX_CONFIG, "%s: needs pyarrow: pip install pyarrow" % name)
    try:
        for batch in parquet.ParquetFile(name).iter_batches(batch_size=CHUNK_LINES):
            for row in batch.to_pylist():
                yield without_nulls(row)
    except pyarrow.ArrowException as e:
        raise Problem(EX_DATA, "%s: damaged parquet file: %s" % (name, e))


def read_lines(name, file):
    """The name of what a file has, line or row, and an iterator over them."""
    head = file.peek(4)[:4]
    if head == b"PAR1":
        return "row", parquet_rows(name)
    if head[:2] == b"\x1f\x8b":
        return "line", split_lines(gunzip(name, file))
    if head == b"\x28\xb5\x2f\xfd":
        return "line", split_lines(unzstd(name, file))
    return "line", file


def open_file(name, stdin):
    if name == "-" and not stdin:
        raise Problem(EX_NOINPUT, "stdin: is closed")
    try:
        return stdin if name == "-" else open(name, "rb")
    except OSError as e:
        raise Problem(EX_NOINPUT, "%s: %s" % (name, e.strerror))


def file_chunks(name, file):
    unit, lines = read_lines(name, file)
    where, part, size, first = "%s: %s" % (name, unit), [], 0, 1
    problem = None
    try:
        for line in lines:
            part.append(line)
            size += len(line) if isinstance(line, bytes) else 1
            if len(part) == CHUNK_LINES or size >= CHUNK_BYTES:
                yield where, first, part
                part, size, first = [], 0, first + len(part)
    except Problem as e:                # what came before the damage is converted
        problem = e
    if part:
        yield where, first, part
    if problem:
        raise problem


def chunks(names, stdin):
    """All input in parts: (where, number of the first line, lines). One that cannot be read ends them:
    (None, exit code, message)."""
    try:
        for name in names:
            with open_file(name, stdin) as file:
                yield from file_chunks("stdin" if name == "-" else name, file)
    except Problem as e:
        yield None, e.code, str(e)

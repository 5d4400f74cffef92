"""What gzip and zstd have packed -> pieces of bytes. No piece is long, however small its packed form is."""

from .errors import EX_CONFIG, EX_DATA, Problem

PIECE = 1 << 17


def gunzip(name, file):
    import gzip
    import zlib
    unpacked = gzip.GzipFile(fileobj=file)
    try:
        while data := unpacked.read(PIECE):
            yield data
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise Problem(EX_DATA, "%s: damaged gzip file: %s" % (name, e))


def unzstd(name, file):
    """By the module zstandard or else by the program zstd."""
    try:
        import zstandard
    except ImportError:
        yield from unzstd_program(name)
        return
    try:
        while magic := file.read(4):
            yield from zstd_frame(zstandard, magic, file)
    except (EOFError, zstandard.ZstdError) as e:
        raise Problem(EX_DATA, "%s: damaged zstd file: %s" % (name, e))


def zstd_frame(zstandard, magic, file):
    """A frame, block by block (RFC 8878): four bytes of a block may stand for 128 KiB, so that what many blocks give
    is not bounded."""
    def read(size):
        data = file.read(size)
        if len(data) < size:
            raise EOFError("it ends early")
        return data

    head = magic + read(1)
    if magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:     # a skippable frame
        left = int.from_bytes(head[4:] + read(3), "little")
        while left:
            left -= len(read(min(left, PIECE)))
        return
    head += read(zstandard.frame_header_size(head.ljust(18, b"\0")) - len(head))
    checksum = zstandard.get_frame_parameters(head).has_checksum
    frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    yield frame.decompress(head)
    last = False
    while not last:
        block = read(3)
        bits = int.from_bytes(block, "little")
        last, kind, size = bits & 1, bits >> 1 & 3, bits >> 3
        yield frame.decompress(block + read(1 if kind == 1 else size))      # 1: one byte, repeated
    if checksum:
        yield frame.decompress(read(4))


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
        while data := child.stdout.read(PIECE):
            yield data
    if child.wait():
        raise Problem(EX_DATA, "%s: damaged zstd file" % name)

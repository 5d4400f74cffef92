#!/usr/bin/env python3
"""A filter of records: drops documents of fewer than N tokens. usage: min-length.py N <records >records"""
import struct
import sys

if len(sys.argv) != 2 or not sys.argv[1].isdigit():
    sys.exit(__doc__)
shortest = int(sys.argv[1])
while head := sys.stdin.buffer.read(4):
    tokens = 4 * struct.unpack("<I", head)[0] if len(head) == 4 else 0
    body = sys.stdin.buffer.read(tokens)
    if len(head) != 4 or len(body) != tokens:
        print("min-length: stdin ends inside a record", file=sys.stderr)
        sys.exit(65)
    if tokens >= 4 * shortest:
        sys.stdout.buffer.write(head + body)

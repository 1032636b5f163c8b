"""Reads what a test wants to know of a 64-bit Mach-O library."""

import struct
from dataclasses import dataclass

MAGIC = 0xFEEDFACF
ARM64 = 0x0100000C  # CPU_TYPE_ARM64
DYLIB = 6  # MH_DYLIB
SYMBOL_TABLE, LOADED = 0x2, 0xC  # LC_SYMTAB, LC_LOAD_DYLIB
DEBUG, EXTERNAL, PRIVATE, KIND = 0xE0, 0x01, 0x10, 0x0E  # of a symbol's n_type
WEAK = 0x80  # N_WEAK_DEF of a symbol's n_desc


@dataclass(frozen=True)
class MachO:
    """Names have C's leading underscore; `exported` are the strong ones."""

    processor: int
    kind: int
    libraries: tuple[str, ...]
    exported: frozenset[str]
    needed: frozenset[str]


def _text(data, start):
    return data[start : data.index(b"\0", start)].decode()


def read(path):
    """The library at `path`; AssertionError where it is no 64-bit Mach-O file."""
    data = path.read_bytes()
    magic, processor, _, kind, commands = struct.unpack_from("<5I", data)
    assert magic == MAGIC
    libraries, exported, needed = [], set(), set()
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command == LOADED:
            libraries.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif command == SYMBOL_TABLE:
            symbols, count, texts, _ = struct.unpack_from("<4I", data, at + 8)
            for i in range(count):
                name, flags, _, more, _ = struct.unpack_from("<IBBHQ", data, symbols + 16 * i)
                if flags & (DEBUG | PRIVATE) or not flags & EXTERNAL:
                    continue
                if flags & KIND == 0:
                    needed.add(_text(data, texts + name))
                elif not more & WEAK:
                    exported.add(_text(data, texts + name))
        at += size
    return MachO(processor, kind, tuple(libraries), frozenset(exported), frozenset(needed))

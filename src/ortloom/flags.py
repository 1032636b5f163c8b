"""The table of server flags: names, kinds, defaults and what this build does with each.

The facts are in flags.json beside this file. The classes:

- works: the flag does its work (see `commands.configuration`).
- later: the flag is known and its work is not in this build; any value that asks for it exits 2.
- refuse: the flag asks for something this engine does not have; a non-default value exits 2.
- inert: the flag can mean nothing here; it is accepted and one line says so.
- notice: as inert, but only a value other than the default prints the line.

A value equal to the default, or listed in `same` (it asks for what happens anyway), is always
accepted.
"""

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal[
    "text",  # any string
    "choice",  # one of `choices`
    "int",
    "float",
    "size",  # human-readable integer: 1k = 1000, 1K = 1024
    "context",  # size, or auto / -1
    "switch",  # a pair: the name and its `negative`
    "flag",  # present or absent
    "list",  # one or more strings
    "append",  # one string each time it is given
    "ints",  # one or more integers
    "json",  # a JSON value or dotted keys
    "jsonlist",  # a JSON list of strings
    "optional",  # bare = true, else a string
]
FlagClass = Literal["works", "later", "refuse", "inert", "notice"]

GROUPS: dict[str, str] = {
    "Server": "process, logging and shutdown",
    "Frontend": "the HTTP side: address, keys, CORS, templates, replies",
    "ModelConfig": "the model, its context and its sampling defaults",
    "LoadConfig": "reading bundles and checkpoints",
    "ProviderConfig": "execution provider and threads",
    "CacheConfig": "the KV cache: blocks, size, prefix sharing",
    "SchedulerConfig": "step budget, batch size, queue limits",
    "StructuredOutputsConfig": "grammar-bound output and reasoning parsers",
    "ParallelConfig": "several devices, replicas or machines",
    "MultiModalConfig": "image, audio and video input",
    "LoRAConfig": "LoRA adapters",
    "ObservabilityConfig": "metrics and traces",
    "OffloadConfig": "weights outside device memory",
    "CompilationConfig": "CUDA graphs",
    "KernelConfig": "kernel choice",
    "AttentionConfig": "attention kernels",
    "MambaConfig": "recurrent state kernels",
    "VllmConfig": "structured options that span groups",
    "Compatibility": "flags of other servers",
}


class Flag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row. `name` is the long form with dashes; `aliases` other spellings, short ones with one
    dash included; `refused` those of `choices` that are known, and refused with a reason of their
    own; `why` names a sentence of `FlagTable.reasons`; `instead` what to write in place of
    a name that is deprecated."""

    name: str
    group: str
    kind: Kind
    default: object
    class_: FlagClass = msgspec.field(name="class")
    aliases: tuple[str, ...] = ()
    negative: str | None = None
    choices: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    same: tuple[object, ...] = ()
    help: str = ""
    why: str = ""
    instead: str = ""

    @property
    def offered(self) -> tuple[str, ...]:
        """What a user may choose: `choices` without `refused`."""
        return tuple(choice for choice in self.choices if choice not in self.refused)

    def is_default(self, value: object) -> bool:
        """Whether a parsed value asks for nothing beyond what happens without the flag."""
        for other in (self.default, *self.same):
            if value == other and isinstance(value, bool) == isinstance(other, bool):
                return True
        return False


class FlagTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rows and the sentences their `why` refers to."""

    reasons: dict[str, str]
    flags: tuple[Flag, ...]

    def reason(self, flag: Flag) -> str:
        """The sentence that explains the class of a flag."""
        return self.reasons[flag.why]

    def by_name(self, name: str) -> Flag:
        """The row of a long name with dashes.

        Raises:
            KeyError: no such flag.
        """
        return _index()[name]


def named_by_option(flag: Flag) -> Flag:
    """A row as it is for commands whose model is usually an option: --model is not deprecated."""
    return msgspec.structs.replace(flag, instead="") if flag.name == "--model" else flag


@cache
def flag_table() -> FlagTable:
    """The table, read once."""
    data = Path(__file__).with_name("flags.json").read_bytes()
    return msgspec.json.decode(data, type=FlagTable)


@cache
def _index() -> dict[str, Flag]:
    return {flag.name: flag for flag in flag_table().flags}

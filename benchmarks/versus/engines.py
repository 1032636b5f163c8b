"""An engine as the comparison sees it: a command, and how it is driven."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Precision = Literal["int4", "int8", "bf16", "fp32"]
Drive = Literal["process", "http"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PEERS = BUILD / "peers"
PRECISIONS: tuple[Precision, ...] = ("int4", "int8", "bf16", "fp32")
OURS = "ortloom"
PEER_NAMES = ("llama.cpp", "genai", "openvino", "transformers", "vllm")


@dataclass(frozen=True)
class Engine:
    """One engine at one precision.

    `drive` process: `command` is a worker of workers/protocol.py; http: a server, with `{port}` in
    its command. `note` says what the row is where its name does not. `fields` go into each HTTP
    request. `scores` is False where it gives no log-probabilities. `memory` is what it is expected
    to take when it is loaded, in bytes (memory_plan.py).
    """

    peer: str
    precision: Precision
    label: str
    command: tuple[str, ...]
    drive: Drive = "process"
    note: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, object] = field(default_factory=dict)
    model_name: str = "m"
    scores: bool = True
    score_command: tuple[str, ...] = ()
    memory: int = 0

    @property
    def name(self) -> str:
        """Unique among all engines of a run."""
        return f"{self.peer} {self.label}" + (" (HTTP)" if self.drive == "http" else "")

    @property
    def ours(self) -> bool:
        """Whether it is ortloom."""
        return self.peer == OURS


def worker(python: Path | str, module: str, *arguments: object) -> tuple[str, ...]:
    """The command of a Python worker; run from the repository's root."""
    name = f"benchmarks.versus.workers.{module}"
    return (str(python), "-m", name, *(str(argument) for argument in arguments))

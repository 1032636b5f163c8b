"""The models that are compared, and where each engine's files of a model lie.

`demo` is SmolLM2-135M-Instruct, out of one Q4_1 file. `llama-1b` has the sizes of Llama 3.2 1B and
random weights: it shows speeds at a size where the weights fit no cache, and nothing else.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.versus.engines import BUILD, OURS, PEERS

SYNTHETIC = "llama-1b"
MODEL_NAMES = ("demo", SYNTHETIC)


@dataclass(frozen=True)
class Model:
    """One model's files; `checkpoint` and `gguf` are made on demand (setup/files.py).

    Attributes:
        name: as in --model.
        origin: the demo model's GGUF file, the only thing that is fetched: the weights of `demo`,
            the tokenizer of all.
        gguf: the file that llama.cpp's other types are requantised from.
        checkpoint: a Hugging Face folder of the same weights.
        source: what `ortloom export` reads.
        trained: False where predictions mean nothing, so that agreement is not computed.
    """

    name: str
    origin: Path
    gguf: Path
    checkpoint: Path
    source: Path
    trained: bool

    def place(self, peer: str) -> Path:
        """The folder of what one engine made of the model."""
        if self.name != "demo":
            return PEERS / self.name / peer
        if peer == OURS:
            return BUILD / "versus"
        return PEERS / "llama.cpp" / "models" if peer == "llama.cpp" else PEERS / peer


def find(name: str, origin: Path) -> Model:
    """A model of MODEL_NAMES; `origin` is the demo model's GGUF file."""
    demo = Model("demo", origin, origin, PEERS / "hf-fp32", origin, trained=True)
    if name == "demo":
        return demo
    home = PEERS / name
    gguf = home / "llama.cpp" / f"{name}.BF16.gguf"
    checkpoint = home / "checkpoint"
    return Model(name, origin, gguf, checkpoint, checkpoint, trained=False)

"""ortloom: export language models to ONNX bundles and serve them behind the OpenAI API.

`LLM` and `SamplingParams` are loaded on first use, so that importing the package stays cheap.
"""

from typing import TYPE_CHECKING

from ortloom.errors import OrtloomError

if TYPE_CHECKING:
    from ortloom.runtime.llm import LLM, RequestOutput
    from ortloom.runtime.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "OrtloomError", "RequestOutput", "SamplingParams", "__version__"]

_LAZY = {
    "LLM": "ortloom.runtime.llm",
    "RequestOutput": "ortloom.runtime.llm",
    "SamplingParams": "ortloom.runtime.sampling_params",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ortloom' has no attribute {name!r}")

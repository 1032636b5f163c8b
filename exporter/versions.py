"""Versions of the tools whose release decides the bundle's bytes."""

from importlib.metadata import PackageNotFoundError, version

from ortloom.errors import MissingDependency
from ortloom.models.manifest import Producer

DECIDING = ("gguf", "onnx", "onnx-ir", "onnxscript", "tokenizers", "torch", "transformers")


def producer() -> Producer:
    """The version of ortloom and those of the tools; local build tags (`+cpu`) left out.

    Raises:
        MissingDependency: the export extra is not installed.
    """
    packages = []
    for name in DECIDING:
        try:
            packages.append((name, version(name).partition("+")[0]))
        except PackageNotFoundError:
            raise MissingDependency(
                f"'{name}' is not installed: pip install 'ortloom[export]'"
            ) from None
    return Producer(version=version("ortloom"), packages=tuple(packages))

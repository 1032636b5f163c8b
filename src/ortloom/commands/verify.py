"""`ortloom verify BUNDLE`: hash every file of a bundle, weight contents included."""

import argparse
from pathlib import Path

from ortloom.models.manifest import Manifest


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        ManifestError: the folder is no bundle, or a file differs from the manifest.
    """
    parser = argparse.ArgumentParser(prog="ortloom verify", description=__doc__)
    parser.add_argument("bundle", type=Path, help="bundle folder")
    options = parser.parse_args(tokens)
    manifest = Manifest.load(options.bundle)
    manifest.verify_weights(options.bundle)
    print(f"{options.bundle}: intact, artefact {manifest.artefact_id}")
    return 0

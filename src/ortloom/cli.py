"""The command line: `ortloom export | serve | collect-env`."""

import argparse
from collections.abc import Sequence

from ortloom import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="ortloom")
    parser.add_argument("-v", "--version", action="version", version=__version__)
    parser.parse_args(argv)
    parser.print_help()
    return 0

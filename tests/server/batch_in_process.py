"""`python -m batch_in_process ARGUMENTS`: `ortloom run-batch` with the fake engine."""

import sys

import fake_engine  # noqa: F401  (puts its runner in place)

from ortloom.cli import main

if __name__ == "__main__":
    sys.exit(main(["run-batch", *sys.argv[1:]]))

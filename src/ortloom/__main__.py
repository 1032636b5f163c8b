"""`python -m ortloom`."""

import sys

from ortloom.cli import main

if __name__ == "__main__":
    sys.exit(main())

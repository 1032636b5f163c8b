"""`python -m by_flags MODEL [options]`: `ortloom serve` as typed, with the fake engine."""

import sys

from ortloom.commands import serve
from ortloom.server import spawn

if __name__ == "__main__":
    spawn.ENGINE_MODULE = "fake_engine"
    sys.exit(serve.run(sys.argv[1:]))

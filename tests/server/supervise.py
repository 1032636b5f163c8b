"""`python -m supervise CONFIG.json`: the real supervisor with the fake engine."""

import sys
from pathlib import Path

import msgspec

from ortloom.config import Config
from ortloom.server import spawn, supervisor

if __name__ == "__main__":
    spawn.ENGINE_MODULE = "fake_engine"
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
    sys.exit(supervisor.run(config))

"""`python -m benchmarks.sse.front CONFIG.json`: the real supervisor and fronts, the scripted
engine."""

import sys
from pathlib import Path

import msgspec

from ortloom.config import Config
from ortloom.server import spawn, supervisor

if __name__ == "__main__":
    spawn.ENGINE_MODULE = "benchmarks.sse.engine"
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
    sys.exit(supervisor.run(config))

"""`python -m in_one_process CONFIG.json`: the real server in one process, with the fake engine."""

import sys
from pathlib import Path

import fake_engine  # noqa: F401  (puts its runner in place)
import msgspec

from ortloom.config import Config
from ortloom.server import one_process

if __name__ == "__main__":
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
    sys.exit(one_process.run(config))

"""A script: the real engine process around FakeModelRunner. Arguments: address, JSON options."""

import json
import os
import sys

from fakes import FakeModelRunner, make_config

from ortloom.errors import ProviderUnavailable
from ortloom.parent_death import die_with_parent
from ortloom.runtime.engine_process import serve


def main():
    options = json.loads(sys.argv[2])
    runner_options = options.pop("runner", {})
    failure = options.pop("failure", None)

    def factory(config):
        if failure == "expected":
            raise ProviderUnavailable("provider cuda cannot run here: no device")
        if failure == "bug":
            raise ZeroDivisionError("oops")
        return FakeModelRunner(**runner_options)

    die_with_parent(os.getppid())
    return serve(make_config(**options), sys.argv[1], factory)


if __name__ == "__main__":
    sys.exit(main())

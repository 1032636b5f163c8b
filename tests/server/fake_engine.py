"""The real engine process over a model that counts: `python -m fake_engine` in place of
`ortloom.runtime.engine_process`. One step takes FAKE_STEP seconds; after FAKE_DIE_AFTER of them
none works any more."""

import os
import sys
import time

from fakes import FakeModelRunner  # tests/runtime

from ortloom.errors import ManifestError
from ortloom.runtime import engine_process
from ortloom.runtime.messages import ProviderReport
from ortloom.runtime.sampling_state import NOT_FINITE
from ortloom.runtime.scheduler_output import ModelRunnerOutput, RowResult


class CountingRunner(FakeModelRunner):
    """Draws a letter by the length of the sequence; ids are those of the tiny tokenizer."""

    def __init__(self):
        super().__init__(512, 16, 4096, step_seconds=float(os.environ.get("FAKE_STEP", "0.002")))
        self.vocab_size = 256
        self.provider_report = ProviderReport("fake", "fake", "counts", {"cuda": "no device"})
        self.notices = ("this model only counts",)

    def execute(self, plan, meanwhile=None):
        time.sleep(self.step_seconds)
        self.num_steps += 1
        die = int(os.environ.get("FAKE_DIE_AFTER", "0"))
        if die and self.num_steps >= die:
            self.broken = True
            raise RuntimeError("injected")
        rows = []
        for item in plan.scheduled:
            token = 97 + (len(item.request.token_ids) % 26)
            broken = item.request.token_ids[0] == 255
            rows.append(
                RowResult(error=NOT_FINITE)
                if broken
                else RowResult(token if item.samples else None)
            )
        return ModelRunnerOutput(rows)


def load(config):
    if os.environ.get("FAKE_FAIL"):
        raise ManifestError("the fake bundle was changed")
    gate = os.environ.get("FAKE_GATE")  # a file that must be there before the first step
    while gate and not os.path.exists(gate):
        time.sleep(0.01)
    return CountingRunner()


engine_process.load_runner = load
engine_process.serve.__defaults__ = (load,)

if __name__ == "__main__":
    sys.exit(engine_process.main())

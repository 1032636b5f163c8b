"""An interrupt ends an export even where Python drops the exception."""

import os
import signal

import pytest

from ortloom.exporter.staging import staged


class Swallows:
    """Sends itself the signal inside a destructor, where KeyboardInterrupt is dropped."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        try:
            os.kill(os.getpid(), self.number)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            pass


def write_and_drop_one(out, number):
    with staged(out, force=False) as work:
        (work / "file").write_text("x")
        swallows = Swallows(number)
        del swallows


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_dropped_interrupt_still_ends_the_export(tmp_path, number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        write_and_drop_one(tmp_path / "out", number)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


def test_without_an_interrupt_the_output_appears(tmp_path):
    with staged(tmp_path / "out", force=False) as work:
        (work / "file").write_text("x")
    assert (tmp_path / "out" / "file").read_text() == "x"

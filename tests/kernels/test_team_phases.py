"""The team's phases: each begins when the one before is done, whatever threads there are."""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "kernels" / "csrc"
WAIT = "progress[p].done.value.load(std::memory_order_acquire) < phase.tasks;"
CLEAN = {"overlaps": 0, "wrong runs": 0, "bad_alloc": 0, "OpError": 0}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles the driver with team.cc, in which `old` may be replaced."""
    folder = tmp_path_factory.mktemp("phases")

    def make(name, old="", new=""):
        team = (CSRC / "team.cc").read_text()
        if old:
            assert team.count(old) == 1
        source = folder / f"{name}.cc"
        source.write_text(team.replace(old, new) if old else team)
        command = [
            os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-pthread", f"-I{CSRC}",
            HERE / "phases_driver.cc", source, "-o", folder / name,
        ]  # fmt: skip
        subprocess.run([str(part) for part in command], check=True, timeout=300)
        return folder / name

    return make


@pytest.fixture(scope="module")
def driver(build):
    return build("team")


def seen(program, what, threads):
    """The driver's facts by name."""
    done = subprocess.run(
        [program, what, str(threads)], capture_output=True, text=True, timeout=120, check=True
    )
    facts = {}
    for line in done.stdout.splitlines():
        if line.startswith("refused "):
            facts["refused"] = line.removeprefix("refused ")
        else:
            name, _, number = line.rpartition(" ")
            facts[name] = int(number)
    return facts


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_phases_never_overlap_and_every_task_runs_once(driver, threads):
    assert seen(driver, "drawn", threads) == {"regions": 60, **CLEAN}


@pytest.mark.parametrize("threads", [2, 8])
def test_more_threads_than_tasks_and_phases_without_any(driver, threads):
    assert seen(driver, "few tasks", threads) == {"regions": 62, **CLEAN}


def test_callers_at_once_each_see_their_own_phases_in_order(driver):
    """One of them gets the team, the others run alone."""
    assert seen(driver, "several callers", 3) == {"regions": 60, **CLEAN}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_failing_task_ends_no_phase_early_and_is_told(driver, threads):
    """All tasks run; what is thrown says of which kind a failure was; the next region is clean."""
    facts = seen(driver, "failing", threads)
    assert facts == {"regions": 60, **CLEAN, "bad_alloc": 20, "OpError": 20}


def test_too_many_phases_are_refused(driver):
    facts = seen(driver, "too many phases", 2)
    assert facts == {"regions": 1, **CLEAN, "refused": "a region has too many phases"}


def test_the_driver_sees_a_team_that_does_not_wait(build):
    hasty = build("hasty", WAIT, f"false && {WAIT}")
    assert seen(hasty, "drawn", 3)["overlaps"] > 0

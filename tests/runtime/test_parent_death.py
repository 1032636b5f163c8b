"""A child ends with the process that started it, whatever that one's pid is."""

import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import sys, time
from ortloom.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]))
print("alive", flush=True)
time.sleep(60)
"""


def start(parent):
    command = [sys.executable, "-c", PROGRAM, str(parent)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_child_whose_parent_is_gone_already_ends_at_once():
    with start(os.getpid() + 1) as child:
        assert child.wait(20) == 1
        assert child.stdout.read() == ""


def test_a_child_lives_while_its_parent_does():
    with start(os.getpid()) as child:
        assert child.stdout.readline() == "alive\n"
        child.kill()


def test_a_child_ends_with_its_parent():
    middle = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {PROGRAM!r}, str(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""
    command = [sys.executable, "-c", middle]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "alive\n"
        parent.kill()
    end = time.monotonic() + 20
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)

"""The optional grammar engines, each the real one, against the default one."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ortloom.config import StructuredOutputsConfig
from ortloom.errors import ConfigError
from ortloom.runtime.grammars import select

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("grammar_agreement.py")
PACKAGES = ("xgrammar", "apache-tvm-ffi", "outlines-core", "lm-format-enforcer", "interegular")

UNKNOWN = {"outlines": {"ebnf", "lark", "tag"}, "lm-format-enforcer": {"ebnf", "lark", "tag"}}
"""Kinds of constraints an engine does not have."""


@pytest.mark.parametrize(
    ("backend", "package"),
    [
        ("xgrammar", "xgrammar"),
        ("outlines", "outlines-core"),
        ("lm-format-enforcer", "lm-format-enforcer"),
    ],
)
def test_an_engine_that_is_not_installed_is_refused_by_its_package(backend, package, monkeypatch):
    monkeypatch.setattr(select.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"pip install {package}$"):
        select.check_options(StructuredOutputsConfig(backend=backend))


def test_a_switch_that_an_engine_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr(select.importlib.util, "find_spec", lambda name: name)
    options = StructuredOutputsConfig(backend="lm-format-enforcer", disable_any_whitespace=True)
    with pytest.raises(ConfigError, match="disable_any_whitespace"):
        select.check_options(options)


@pytest.fixture(scope="module")
def python():
    """A venv with the engines, over the packages of this one; kept under build/."""
    folder = ROOT / "build" / "grammar-engines"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(python), "-m", "pip", "install", "-q", "--no-deps", *PACKAGES]
    subprocess.run(command, check=True)
    return python


def ask(python, backend, path):
    places = [str(ROOT / "src"), sysconfig.get_paths()["purelib"], *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(
        [str(python), str(SCRIPT), backend, str(path)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def path(tokenizer, tmp_path_factory):
    file = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture(scope="module")
def default(path):
    return ask(sys.executable, "auto", path)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer"])
def test_engines_agree(python, path, default, backend):
    found = ask(python, backend, path)
    assert found.keys() == default.keys()
    for name, expected in default.items():
        if name in UNKNOWN.get(backend, ()):
            assert backend in found[name]
        elif isinstance(expected, str):
            assert isinstance(found[name], str), name
        else:
            assert found[name] == expected, name

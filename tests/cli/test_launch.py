"""Refusals of commands that take the flags of `ortloom serve` name the command that was typed."""

import pytest

from ortloom.cli import main


@pytest.mark.parametrize(
    ("line", "usage", "text"),
    [
        (
            "launch render",
            "ortloom launch render",
            "no model is named: ortloom launch render MODEL",
        ),
        (
            "launch render --served-model-name a",
            "ortloom launch render",
            "write the model first: ortloom launch render MODEL --served-model-name NAME",
        ),
        ("launch render m --bogus", "ortloom launch render", "unrecognized arguments: --bogus"),
        ("launch engine", "ortloom launch", "unknown kind of server 'engine'"),
        (
            "run-batch -i in.jsonl -o out.jsonl",
            "ortloom run-batch",
            "no model is named: ortloom run-batch --model MODEL",
        ),
        ("serve", "ortloom serve", "no model is named: ortloom serve MODEL"),
    ],
)
def test_a_refusal_names_its_own_command(line, usage, text, capsys):
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"usage: {usage} [options]; see {usage} --help\n{usage}: error: ")
    assert text in shown.err

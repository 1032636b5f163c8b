"""Prompts out of files in the forms that public data sets have."""

import csv
import json
from pathlib import Path

import numpy as np

from ortloom.bench.samples import Sample
from ortloom.errors import BenchmarkFailed
from ortloom.models.tokenizer import Tokenizer

LEAST_TOKENS = 4
MOST_PROMPT_TOKENS = 1024
MOST_TOKENS = 2048
"""Bounds of the ShareGPT rows that the field's serving benchmarks use: shorter turns say nothing
and longer ones do not fit small contexts."""

_SONNET_TASK = "Write on from these lines of a poem, in their manner:\n"


def _read(path: str | None) -> str:
    try:
        return Path(path or "").expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BenchmarkFailed(f"the data set '{path}' cannot be read: {reason}") from None


def _json_lines(path: str | None) -> list[dict[str, object]]:
    rows = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BenchmarkFailed(f"'{path}' line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise BenchmarkFailed(f"'{path}' line {number} is not a JSON object")
        rows.append(row)
    return rows


def sharegpt_pairs(path: str | None) -> list[tuple[str, str]]:
    """The first two turns of every conversation of a ShareGPT JSON file.

    Raises:
        BenchmarkFailed: not readable, or not in that form.
    """
    try:
        tree = json.loads(_read(path))
    except ValueError as error:
        raise BenchmarkFailed(f"'{path}' is not JSON: {error}") from None
    pairs = []
    try:
        for entry in tree:
            turns = entry.get("conversations", entry.get("conversation", []))
            if len(turns) >= 2:
                pairs.append((str(turns[0]["value"]), str(turns[1]["value"])))
    except (AttributeError, KeyError, TypeError):
        raise BenchmarkFailed(
            f"'{path}' is not in the ShareGPT form: a list of objects with conversations of "
            "objects with a value"
        ) from None
    return pairs


def sharegpt_samples(
    pairs: list[tuple[str, str]], tokenizer: Tokenizer, output_len: int | None, most: int
) -> list[Sample]:
    """The pairs within the usual bounds, up to a number of them.

    Args:
        pairs: prompt and answer; the answer's length is the output length.
        tokenizer: counts both.
        output_len: an output length that replaces the answer's.
        most: samples wanted.
    """
    samples: list[Sample] = []
    for prompt, answer in pairs:
        if len(samples) == most:
            break
        length = len(tokenizer.encode(prompt))
        output = len(tokenizer.encode(answer)) if output_len is None else output_len
        too_short = length < LEAST_TOKENS or (output_len is None and output < LEAST_TOKENS)
        if too_short or length > MOST_PROMPT_TOKENS or length + output > MOST_TOKENS:
            continue
        samples.append(Sample(prompt, length, output))
    return samples


def custom_rows(path: str | None) -> list[tuple[str, int | None]]:
    """`prompt` and, where it is there, `output_tokens` of each line of a JSONL file.

    Raises:
        BenchmarkFailed: not readable, or a line without a prompt.
    """
    rows: list[tuple[str, int | None]] = []
    for row in _json_lines(path):
        prompt, output = row.get("prompt"), row.get("output_tokens")
        if not isinstance(prompt, str):
            raise BenchmarkFailed(f"'{path}': every line needs a text named prompt")
        rows.append((prompt, output if isinstance(output, int) and output > 0 else None))
    return rows


def spec_bench_texts(path: str | None, category: str | None) -> list[str]:
    """The first turn of each question of a Spec-Bench JSONL file, of one category or of all.

    Raises:
        BenchmarkFailed: not readable, or a line without turns.
    """
    texts = []
    for row in _json_lines(path):
        if category is not None and row.get("category") != category:
            continue
        turns = row.get("turns")
        if not isinstance(turns, list) or not turns:
            raise BenchmarkFailed(f"'{path}': every line needs a list named turns")
        texts.append(str(turns[0]))
    return texts


def burstgpt_lengths(path: str | None) -> list[tuple[int, int]]:
    """(request, response) tokens of the GPT-4 rows of a BurstGPT CSV file that have an answer.

    Raises:
        BenchmarkFailed: not readable, without the columns, or without such rows.
    """
    rows = []
    try:
        for row in csv.DictReader(_read(path).splitlines()):
            answer = int(row["Response tokens"])
            if row["Model"] == "GPT-4" and answer > 0:
                rows.append((int(row["Request tokens"]), answer))
    except (KeyError, TypeError, ValueError):
        raise BenchmarkFailed(
            f"'{path}' is not in the BurstGPT form: columns Model, Request tokens, Response tokens"
        ) from None
    if not rows:
        raise BenchmarkFailed(f"'{path}' has no GPT-4 row with an answer")
    return rows


def sonnet_texts(
    path: str | None,
    tokenizer: Tokenizer,
    input_len: int,
    prefix_len: int,
    count: int,
    draw: np.random.Generator,
) -> list[str]:
    """Prompts that end in lines of a poem, about `input_len` tokens each.

    All share the task and the poem's first lines, together about `prefix_len` tokens; the other
    lines are drawn.

    Raises:
        BenchmarkFailed: the file cannot be read or has no lines, or the task alone is longer.
    """
    lines = [line + "\n" for line in _read(path).splitlines() if line.strip()]
    if not lines:
        raise BenchmarkFailed(f"'{path}' has no lines")
    task = len(tokenizer.encode(_SONNET_TASK))
    if input_len <= task or prefix_len > input_len:
        raise BenchmarkFailed(
            f"the sonnet input length must be above {task} tokens and at least the prefix length"
        )
    per_line = sum(len(tokenizer.encode(line, False)) for line in lines) / len(lines)
    shared = min(len(lines), max(0, round((prefix_len - task) / per_line)))
    drawn = max(0, round((input_len - task) / per_line) - shared)
    texts = []
    for _ in range(count):
        picks = draw.integers(0, len(lines), drawn)
        texts.append(_SONNET_TASK + "".join(lines[:shared]) + "".join(lines[int(i)] for i in picks))
    return texts

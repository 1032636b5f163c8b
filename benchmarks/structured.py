"""What a JSON schema costs while decoding, and what jump-forward gives back.

    python -m benchmarks.structured BUNDLE [--rows 1 8 32] [--tokens 64] [--rounds 7] [--threads 0]

Decodes the same number of tokens without a constraint, with a schema, and with the schema and
jump-forward, in turns in one process; a time is that of the whole batch from its first to its last
token, and the ratios are medians over the rounds. The schema is a long list of objects with texts,
numbers, an enumeration and fixed names, so all kinds of masks occur. Sampling is at temperature 1
from fixed seeds. `saved` is the share of tokens that needed no decode step.
"""

import argparse
import json
import statistics
import time

from ortloom import LLM, SamplingParams
from ortloom.config import (
    CacheConfig,
    Config,
    ModelConfig,
    ProviderConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from ortloom.runtime.sampling_params import StructuredOutput

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["customer", "supplier", "employee"]},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "kind", "address", "active"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 500}
PROMPT = "A JSON list of people we work with, each with name, age, kind, address: "


def open_llm(bundle, rows, tokens, threads, jump):
    return LLM.from_config(
        Config(
            model=ModelConfig(bundle=bundle, max_model_len=tokens + 64),
            cache=CacheConfig(num_blocks=rows * (tokens // 16 + 8)),
            scheduler=SchedulerConfig(max_num_seqs=rows),
            provider=ProviderConfig(threads=threads),
            structured_outputs=StructuredOutputsConfig(
                disable_any_whitespace=True, jump_forward=jump, load_early=True
            ),
        )
    )


def params(rows, tokens, constraint):
    return [
        SamplingParams(
            temperature=1.0,
            seed=100 + row,
            max_tokens=tokens,
            min_tokens=tokens,
            ignore_eos=True,
            structured_output=constraint,
        )
        for row in range(rows)
    ]


def seconds(llm, rows, tokens, constraint):
    """From the first token of the batch to the last."""
    results = llm.generate([PROMPT] * rows, params(rows, tokens, constraint))
    assert all(len(r.outputs[0].token_ids) == tokens for r in results)
    first = max(r.metrics.first_token_time for r in results)
    return max(r.metrics.last_token_time for r in results) - first


def measure(bundle, rows, tokens, rounds, threads):
    schema = StructuredOutput("json", json.dumps(SCHEMA))
    with (
        open_llm(bundle, rows, tokens, threads, False) as plain,
        open_llm(bundle, rows, tokens, threads, True) as jumping,
    ):
        ways = {"free": (plain, None), "schema": (plain, schema), "jump": (jumping, schema)}
        times = {name: [] for name in ways}
        for llm, constraint in ways.values():
            seconds(llm, rows, tokens, constraint)
        for _ in range(rounds):
            for name, (llm, constraint) in ways.items():
                times[name].append(seconds(llm, rows, tokens, constraint))
        stats = jumping._loop.run(jumping._client.fetch_stats())
        saved = stats.jump_forward_tokens / stats.generation_tokens
    speed = {name: rows * (tokens - 1) / statistics.median(its) for name, its in times.items()}
    pairs = {
        name: statistics.median(f / t for f, t in zip(times["free"], times[name], strict=True))
        for name in ("schema", "jump")
    }
    return speed, pairs, saved


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    print("rows    free tok/s  schema tok/s  of free    jump tok/s  of free  saved")
    for rows in options.rows:
        start = time.monotonic()
        speed, pairs, saved = measure(
            options.bundle, rows, options.tokens, options.rounds, options.threads
        )
        print(
            f"{rows:4}  {speed['free']:12.1f}  {speed['schema']:12.1f}  {pairs['schema']:7.3f}  "
            f"{speed['jump']:12.1f}  {pairs['jump']:7.3f}  {saved:5.2f}"
            f"   ({time.monotonic() - start:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()

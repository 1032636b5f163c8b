"""Follows texts with one grammar engine: `python grammar_agreement.py BACKEND TOKENIZER`.

Prints a JSON object: case name → what the engine says of each text (end, part, no), or the error
that refused the constraint.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from ortloom.config import StructuredOutputsConfig
from ortloom.errors import InvalidRequest
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler

VOCAB, EOS = 264, 0
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f>"],
}

CASES = {
    "regex": ("regex", "[ab]{3}-(true|12)", ["aba-true", "aba-", "abc", "ab-12"]),
    "choice": ("choice", json.dumps(["yes", "no", 'a"b\\ c']), ["yes", "n", "maybe", 'a"b\\ c']),
    "object": (
        "json",
        json.dumps(PERSON),
        ['{"name": "Bob", "age": 3}', '{"name": 3', '{"name": "B"', '{"age": "x"'],
    ),
    "enum": ("json", json.dumps({"enum": ["alpha", "beta"]}), ['"beta"', '"al', '"gamma"']),
    "array": (
        "json",
        json.dumps({"type": "array", "items": {"type": "boolean"}, "minItems": 1}),
        ["[true, false]", "[tr", "[]", "[1"],
    ),
    "bad regex": ("regex", "(", []),
    "bad schema": ("json", "[1]", []),
    "ebnf": ("grammar", 'root ::= "a" root "b" | "12"', ["a12b", "aa", "12b"]),
    "lark": ("grammar", 'start: "true" | "ab"+', ["abab", "tr", "ba"]),
    "tag": ("structural_tag", json.dumps(TAG), ["free", "x<f>12</f>y", "x<f>true"]),
}


def verdicts(compiler, tokenizer, kind, value, texts):
    try:
        start = compiler.compile(StructuredOutput(kind, value))
    except InvalidRequest as error:
        return str(error)
    found = []
    for text in texts:
        matcher = start.deep_copy()
        fits = all(matcher.consume_token(token) for token in tokenizer.encode(text).ids)
        found.append("no" if not fits else "end" if matcher.is_accepting() else "part")
    return found


def main():
    backend, path = sys.argv[1:]
    options = StructuredOutputsConfig(backend=backend)
    compiler = GrammarCompiler(Path(path), VOCAB, [EOS], None, options)
    tokenizer = Tokenizer.from_file(path)
    print(json.dumps({n: verdicts(compiler, tokenizer, *case) for n, case in CASES.items()}))


if __name__ == "__main__":
    main()

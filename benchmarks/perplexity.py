"""Perplexity of bundles on a fixed text, through the engine that serves them.

`python -m benchmarks.perplexity BUNDLE [BUNDLE ...] [--text FILE] [--window 1024] [--tokens N]`
prints one line a bundle, with the change against the first one. The text is cut into windows of so
many tokens, each read on its own; every token but a window's first is scored.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

TEXT = Path(__file__).resolve().parents[1] / "tests" / "data" / "prose.txt"
"""Public-domain prose; tests/data/NOTICE says whose."""

WINDOW = 1024
LEAST_WINDOW = 2  # one token is read, one is scored


@dataclass(frozen=True)
class Score:
    """`nats` is the sum of -ln p over the `tokens` that were scored."""

    tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.tokens)

    def above(self, base: "Score") -> float:
        """By which share the perplexity is above another's."""
        return self.perplexity / base.perplexity - 1


def windows(ids: list[int], size: int) -> list[list[int]]:
    """Neighbouring pieces of `size` tokens; a last one too short to score is left out."""
    if size < LEAST_WINDOW:
        raise ValueError(f"a window has at least {LEAST_WINDOW} tokens, not {size}")
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)]
    return [piece for piece in pieces if len(piece) >= LEAST_WINDOW]


def score(
    bundle: Path, text: str, window: int = WINDOW, limit: int | None = None, threads: int = 0
) -> Score:
    """Score a text with a bundle.

    Args:
        bundle: folder that `ortloom export` wrote; its own tokenizer cuts the text.
        text: what is scored; no begin-of-text token is added.
        window: tokens read together.
        limit: only the text's first tokens; None = all.
        threads: 0 = as many as `ortloom serve` takes.

    Raises:
        ValueError: the text has too few tokens.
        OrtloomError: the bundle cannot be run here.
    """
    from ortloom import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    tokens, terms = 0, []
    with LLM(bundle, max_model_len=window + 1, max_num_seqs=1, threads=threads) as llm:
        assert llm.tokenizer is not None
        pieces = windows(llm.tokenizer.encode(text, add_special_tokens=False)[:limit], window)
        if not pieces:
            raise ValueError(f"the text is too short: it needs {LEAST_WINDOW} tokens at least")
        for piece in pieces:
            (output,) = llm.generate([piece], params)
            entries = output.prompt_logprobs or []
            if len(entries) != len(piece):
                raise RuntimeError(f"{len(entries)} log-probabilities for {len(piece)} tokens")
            for token, entry in zip(piece[1:], entries[1:], strict=True):
                assert entry is not None
                terms.append(-entry[token].logprob)
                tokens += 1
    return Score(tokens, math.fsum(terms))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--tokens", type=int, help="only the first so many")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    base: Score | None = None
    for bundle in options.bundles:
        found = score(bundle, text, options.window, options.tokens, options.threads)
        base = base or found
        print(
            f"{bundle}: perplexity {found.perplexity:.4f} on {found.tokens} tokens "
            f"({found.above(base):+.3%})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

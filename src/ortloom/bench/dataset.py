"""Data sets of prompts: made of random tokens, or read from files."""

from collections.abc import Callable

import msgspec
import numpy as np

from ortloom.bench import file_prompts
from ortloom.bench.context import check_room
from ortloom.bench.prompt_maker import PromptMaker
from ortloom.bench.samples import Sample, Workload
from ortloom.errors import BenchmarkFailed
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.tokenizer import Tokenizer


class DatasetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which data set, and its sizes in tokens.

    `input_len` and `output_len` go before the data set's own lengths. `range_ratio` is (input,
    output): lengths are drawn from length × (1 ± ratio). `chat` says that the server applies its
    chat template itself.
    """

    name: str = "random"
    path: str | None = None
    num_prompts: int = 1000
    seed: int = 0
    input_len: int | None = None
    output_len: int | None = None
    random_input_len: int = 1024
    random_output_len: int = 128
    random_prefix_len: int = 0
    range_ratio: tuple[float, float] = (0.0, 0.0)
    custom_output_len: int = 256
    sharegpt_output_len: int | None = None
    sonnet_input_len: int = 550
    sonnet_output_len: int = 150
    sonnet_prefix_len: int = 200
    spec_output_len: int = 256
    spec_category: str | None = None
    repeated_prefix_len: int = 256
    repeated_suffix_len: int = 256
    repeated_num_prefixes: int = 10
    repeated_output_len: int = 128
    shuffle: bool = True
    oversample: bool = True
    chat: bool = False
    skip_chat_template: bool = False


class Vocabulary(msgspec.Struct, frozen=True):
    """What prompts are made and counted with; either may be missing."""

    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None


def build_workload(
    plan: DatasetPlan, vocabulary: Vocabulary, context: int | None = None
) -> Workload:
    """Make or read the prompts.

    Args:
        plan: which and how long.
        vocabulary: what they are made and counted with.
        context: tokens that a prompt and its answer may have together; None = not known.

    Raises:
        BenchmarkFailed: the file cannot be used, or a tokenizer is needed and there is none.
        ConfigError: lengths that were asked for do not fit the context; no prompt is made then.
    """
    draw = np.random.default_rng(plan.seed)
    if context is not None:
        check_lengths(plan, context)
    if plan.name in _MADE:
        samples = _MADE[plan.name](plan, PromptMaker(_needed(plan, vocabulary), draw), draw)
        return Workload(samples[: plan.num_prompts], samples[plan.num_prompts])
    samples = _READ[plan.name](plan, vocabulary, draw)
    if not samples:
        raise BenchmarkFailed(f"'{plan.path}' has no prompt that can be used")
    samples = _fill(samples, plan, draw)
    return Workload(samples, samples[0])


def _fill(samples: list[Sample], plan: DatasetPlan, draw: np.random.Generator) -> list[Sample]:
    """As many as asked for: some are repeated where the file has too few."""
    count = plan.num_prompts
    if len(samples) >= count or not plan.oversample:
        return samples[:count]
    picks = draw.integers(0, len(samples), count - len(samples))
    return samples + [samples[int(i)] for i in picks]


def lengths(
    length: int, ratio: float, count: int, draw: np.random.Generator, least: int = 1
) -> list[int]:
    """Whole numbers drawn evenly from length × (1 ± ratio), bounds included."""
    low = max(least, int(np.floor(length * (1 - ratio))))
    high = max(low, int(np.ceil(length * (1 + ratio))))
    return [int(n) for n in draw.integers(low, high + 1, count)]


def check_lengths(plan: DatasetPlan, context: int) -> None:
    """Refuse a plan whose prompts and answers cannot fit into a context of so many tokens.

    Raises:
        ConfigError: naming the lengths and the context.
    """
    for prompt, output in _lengths_to_come(plan):
        check_room(context, prompt, output)


def _lengths_to_come(plan: DatasetPlan) -> list[tuple[int, int]]:
    """(prompt, output) of what is going to be asked for, as far as the plan alone says it.

    Where the prompts are in a file, their lengths are not known yet and count as one token.
    """
    if plan.name == "random":
        drawn = _random_lengths(plan, np.random.default_rng(plan.seed))[: plan.num_prompts]
        return [(plan.random_prefix_len + prompt, output) for prompt, output in drawn]
    if plan.name == "prefix_repetition":
        output = plan.repeated_output_len if plan.output_len is None else plan.output_len
        return [(plan.repeated_prefix_len + plan.repeated_suffix_len, output)]
    if plan.name == "sonnet":
        output = plan.sonnet_output_len if plan.output_len is None else plan.output_len
        # lines of a poem have about the length asked for
        length = plan.sonnet_input_len if plan.input_len is None else plan.input_len
        return [(length // 2, output)]
    own = {
        "custom": plan.custom_output_len,
        "spec_bench": plan.spec_output_len,
        "sharegpt": plan.sharegpt_output_len,
    }.get(plan.name)
    asked = own if plan.output_len is None else plan.output_len
    return [] if asked is None or asked < 1 else [(1, asked)]


def _random_lengths(plan: DatasetPlan, draw: np.random.Generator) -> list[tuple[int, int]]:
    """(prompt without its prefix, output) of all samples and of the trial, in tokens."""
    count = plan.num_prompts + 1
    length = plan.random_input_len if plan.input_len is None else plan.input_len
    output = plan.random_output_len if plan.output_len is None else plan.output_len
    inputs = lengths(length, plan.range_ratio[0], count, draw)
    outputs = lengths(output, plan.range_ratio[1], count, draw)
    return list(zip(inputs, outputs, strict=True))


def _random(plan: DatasetPlan, maker: PromptMaker, draw: np.random.Generator) -> list[Sample]:
    chosen = _random_lengths(plan, draw)
    prefix = maker.tokens(plan.random_prefix_len)
    return [maker.sample(prefix + maker.tokens(n), m) for n, m in chosen]


def _prefix_repetition(
    plan: DatasetPlan, maker: PromptMaker, draw: np.random.Generator
) -> list[Sample]:
    """Every prefix starts as many prompts as the others (the first ones one more), shuffled."""
    output = plan.repeated_output_len if plan.output_len is None else plan.output_len
    kinds = min(plan.repeated_num_prefixes, plan.num_prompts)
    prefixes = [maker.tokens(plan.repeated_prefix_len) for _ in range(kinds)]
    order = [i % kinds for i in range(plan.num_prompts)]
    if plan.shuffle:
        draw.shuffle(order)
    order_of_prefixes = [prefixes[i] for i in order]
    order_of_prefixes.append(maker.tokens(plan.repeated_prefix_len))  # the trial's own
    return [
        maker.sample(prefix + maker.tokens(plan.repeated_suffix_len), output)
        for prefix in order_of_prefixes
    ]


def _burstgpt(plan: DatasetPlan, maker: PromptMaker, draw: np.random.Generator) -> list[Sample]:
    rows = file_prompts.burstgpt_lengths(plan.path)
    count = plan.num_prompts + 1
    if plan.shuffle:
        picks = draw.choice(len(rows), count, replace=len(rows) < count)
        rows = [rows[int(i)] for i in picks]
    chosen = [rows[i % len(rows)] for i in range(count)]
    return [
        maker.sample(maker.tokens(length), output if plan.output_len is None else plan.output_len)
        for length, output in chosen
    ]


def _sharegpt(plan: DatasetPlan, vocabulary: Vocabulary, draw: np.random.Generator) -> list[Sample]:
    pairs = file_prompts.sharegpt_pairs(plan.path)
    if plan.shuffle:
        draw.shuffle(pairs)
    wanted = plan.sharegpt_output_len if plan.output_len is None else plan.output_len
    return file_prompts.sharegpt_samples(pairs, _needed(plan, vocabulary), wanted, plan.num_prompts)


def _custom(plan: DatasetPlan, vocabulary: Vocabulary, draw: np.random.Generator) -> list[Sample]:
    rows = file_prompts.custom_rows(plan.path)
    if plan.shuffle:
        draw.shuffle(rows)
    wanted = plan.custom_output_len if plan.output_len is None else plan.output_len
    samples = []
    for text, own in rows[: plan.num_prompts]:
        output = wanted if wanted != -1 else own
        if output is None:
            raise BenchmarkFailed(
                f"'{plan.path}': with an output length of -1 every line needs output_tokens"
            )
        samples.append(_text_sample(text, output, plan, vocabulary))
    return samples


def _spec_bench(
    plan: DatasetPlan, vocabulary: Vocabulary, draw: np.random.Generator
) -> list[Sample]:
    texts = file_prompts.spec_bench_texts(plan.path, plan.spec_category)
    if plan.shuffle:
        draw.shuffle(texts)
    output = plan.spec_output_len if plan.output_len is None else plan.output_len
    chosen = texts[: plan.num_prompts]
    return [_text_sample(text, output, plan, vocabulary) for text in chosen]


def _sonnet(plan: DatasetPlan, vocabulary: Vocabulary, draw: np.random.Generator) -> list[Sample]:
    tokenizer = _needed(plan, vocabulary)
    output = plan.sonnet_output_len if plan.output_len is None else plan.output_len
    length = plan.sonnet_input_len if plan.input_len is None else plan.input_len
    texts = file_prompts.sonnet_texts(
        plan.path, tokenizer, length, plan.sonnet_prefix_len, plan.num_prompts, draw
    )
    return [_text_sample(text, output, plan, vocabulary) for text in texts]


def _needed(plan: DatasetPlan, vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.tokenizer is None:
        raise BenchmarkFailed(
            f"data set '{plan.name}' counts tokens and needs the model's tokenizer: give its "
            "folder with --tokenizer"
        )
    return vocabulary.tokenizer


def _text_sample(text: str, output: int, plan: DatasetPlan, vocabulary: Vocabulary) -> Sample:
    """A text as the user's message of a chat, where the server does not make it one itself."""
    apply = vocabulary.template is not None and not plan.chat and not plan.skip_chat_template
    if apply and vocabulary.template is not None:
        message = {"role": "user", "content": text}
        text = vocabulary.template.render([message], add_generation_prompt=True)
    tokenizer = vocabulary.tokenizer
    return Sample(text, 0 if tokenizer is None else len(tokenizer.encode(text)), output)


_MADE: dict[str, Callable[[DatasetPlan, PromptMaker, np.random.Generator], list[Sample]]] = {
    "random": _random,
    "prefix_repetition": _prefix_repetition,
    "burstgpt": _burstgpt,
}
_READ: dict[str, Callable[[DatasetPlan, Vocabulary, np.random.Generator], list[Sample]]] = {
    "sharegpt": _sharegpt,
    "custom": _custom,
    "spec_bench": _spec_bench,
    "sonnet": _sonnet,
}
DATASETS = (*_MADE, *_READ)
"""Names of the data sets."""

FROM_FILES = ("burstgpt", *_READ)
"""Those that need a path."""

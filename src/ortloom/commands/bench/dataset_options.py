"""From flags to the plan of a data set."""

import json

from ortloom.bench.dataset import DATASETS, FROM_FILES, DatasetPlan
from ortloom.commands.bench.options import Options
from ortloom.errors import ConfigError

_NOT_BUILT = {
    "hf": "nothing is fetched from a hub",
    "speed_bench": "nothing is fetched from a hub",
    "timed_trace": "data sets with times of their own are not built",
    "random-rerank": "rerank data sets are not built",
}


def dataset_plan(
    options: Options,
    chat: bool,
    name: str | None = None,
    path: str | None = None,
    prefix_len: int | None = None,
) -> DatasetPlan:
    """The plan.

    Args:
        options: the flags.
        chat: the server (or the engine) applies the chat template itself.
        name: goes before --dataset-name.
        path: goes before --dataset-path.
        prefix_len: goes before the data sets' own prefix lengths.

    Raises:
        ConfigError: a length is out of range, or the data set is not built or has no path.
    """
    name = name or options.word("--dataset-name")
    path = path or options.text("--dataset-path")
    if name not in DATASETS:
        reason = _NOT_BUILT.get(name, "image, audio and video input is not built")
        raise ConfigError(
            f"argument --dataset-name: '{name}' is known, but not in this build yet: {reason}"
        )
    if name in FROM_FILES and path is None:
        raise ConfigError(f"argument --dataset-path: data set '{name}' needs the path of its file")
    if name not in FROM_FILES and path is not None:
        raise ConfigError(
            f"argument --dataset-path: data set '{name}' reads no file; name one that does with "
            "--dataset-name"
        )
    custom = options.count("--custom-output-len", -1)
    if custom == 0:
        raise ConfigError("argument --custom-output-len: must be -1 or at least 1, got 0")
    random_prefix = options.count("--random-prefix-len", 0)
    sonnet_prefix = options.count("--sonnet-prefix-len", 0)
    return DatasetPlan(
        name=name,
        path=path,
        num_prompts=options.count("--num-prompts"),
        seed=options.count("--seed", 0),
        input_len=options.whole("--input-len", 1),
        output_len=options.whole("--output-len", 1),
        random_input_len=options.count("--random-input-len"),
        random_output_len=options.count("--random-output-len"),
        random_prefix_len=random_prefix if prefix_len is None else prefix_len,
        range_ratio=range_ratio(options.word("--random-range-ratio")),
        custom_output_len=custom,
        sharegpt_output_len=options.whole("--sharegpt-output-len", 1),
        sonnet_input_len=options.count("--sonnet-input-len"),
        sonnet_output_len=options.count("--sonnet-output-len"),
        sonnet_prefix_len=sonnet_prefix if prefix_len is None else prefix_len,
        spec_output_len=options.count("--spec-bench-output-len"),
        spec_category=options.text("--spec-bench-category"),
        repeated_prefix_len=options.count("--prefix-repetition-prefix-len"),
        repeated_suffix_len=options.count("--prefix-repetition-suffix-len"),
        repeated_num_prefixes=options.count("--prefix-repetition-num-prefixes"),
        repeated_output_len=options.count("--prefix-repetition-output-len"),
        shuffle=not options.on("--disable-shuffle"),
        oversample=not options.on("--no-oversample"),
        chat=chat,
        skip_chat_template=options.on("--skip-chat-template"),
    )


def range_ratio(text: str) -> tuple[float, float]:
    """(input, output) of --random-range-ratio: one number, or a JSON object with both.

    Raises:
        ConfigError: neither, or a ratio outside [0, 1).
    """
    flag = "argument --random-range-ratio"
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    if isinstance(tree, dict) and set(tree) <= {"input", "output"}:
        pair: list[object] = [tree.get("input", 0.0), tree.get("output", 0.0)]
    else:
        pair = [tree, tree]
    ratios = [r for r in pair if isinstance(r, int | float) and not isinstance(r, bool)]
    if len(ratios) < 2:
        raise ConfigError(
            f'{flag}: expected a number or {{"input": A, "output": B}}, got \'{text}\''
        )
    if not all(0 <= ratio < 1 for ratio in ratios):
        raise ConfigError(f"{flag}: must be at least 0 and below 1, got '{text}'")
    return float(ratios[0]), float(ratios[1])

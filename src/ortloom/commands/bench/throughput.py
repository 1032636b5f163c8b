"""`ortloom bench throughput MODEL [options]`."""

from ortloom.commands.bench.dataset_options import dataset_plan
from ortloom.commands.bench.engine import engine_config
from ortloom.commands.bench.options import output_path, read_options, write_json
from ortloom.errors import ConfigError

_ABOUT = "Time a whole data set of prompts, in this process and without HTTP."
_USAGE = "usage: ortloom bench throughput MODEL [options]"


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        OrtloomError: a flag is wrong, or the model or the data set cannot be used.
    """
    options = read_options("throughput", tokens, _ABOUT, _USAGE)
    if options is None:
        return 0
    from ortloom.bench.dataset import check_lengths
    from ortloom.bench.throughput import ThroughputPlan, measure_throughput

    output = output_path(options)
    backend = options.word("--backend")
    if backend not in ("vllm", "vllm-chat"):
        raise ConfigError(f"argument --backend: '{backend}' cannot be had here: see --help=backend")
    older = options.text("--dataset")
    if older is not None and options.given("--dataset-path"):
        raise ConfigError("--dataset and --dataset-path are the same setting")
    chat = backend == "vllm-chat"
    plan = ThroughputPlan(
        dataset=dataset_plan(
            options,
            chat=chat,
            name=None if older is None else "sharegpt",
            path=older,
            prefix_len=options.whole("--prefix-len", 0),
        ),
        n=options.count("--n"),
        num_warmups=options.count("--num-warmups", 0),
        detokenize=not options.on("--disable-detokenize"),
        chat=chat,
    )
    config = engine_config(
        options,
        "throughput",
        check_context=lambda context: check_lengths(plan.dataset, context),
    )
    result = measure_throughput(config, plan)
    print("\n".join(result.lines()))
    if output is not None:
        write_json(output, result.to_json())
    return 0

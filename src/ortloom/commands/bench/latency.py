"""`ortloom bench latency MODEL [options]`."""

from ortloom.commands.bench.engine import engine_config
from ortloom.commands.bench.options import output_path, read_options, write_json

_ABOUT = "Time one batch of random prompts again and again, in this process and without HTTP."
_USAGE = "usage: ortloom bench latency MODEL [options]"


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        OrtloomError: a flag is wrong, or the model cannot be run.
    """
    options = read_options("latency", tokens, _ABOUT, _USAGE)
    if options is None:
        return 0
    from ortloom.bench.context import check_room
    from ortloom.bench.latency import LatencyPlan, measure_latency

    output = output_path(options)
    plan = LatencyPlan(
        input_len=options.count("--input-len"),
        output_len=options.count("--output-len"),
        batch_size=options.count("--batch-size"),
        n=options.count("--n"),
        num_iters_warmup=options.count("--num-iters-warmup", 0),
        num_iters=options.count("--num-iters"),
        detokenize=not options.on("--disable-detokenize"),
        hide_progress=options.on("--disable-tqdm"),
    )
    # a batch that comes again would find its own prompts in the cache
    config = engine_config(
        options,
        "latency",
        prefix_caching=False,
        check_context=lambda context: check_room(context, plan.input_len, plan.output_len),
    )
    result = measure_latency(config, plan)
    print("\n".join(result.lines()))
    if output is not None:
        write_json(output, result.to_json())
    return 0

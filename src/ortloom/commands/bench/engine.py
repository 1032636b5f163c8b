"""The engine configuration of the benchmarks that load a bundle themselves."""

from collections.abc import Callable

import msgspec

from ortloom.bench.context import context_before_export
from ortloom.commands.additional_config import expand_additional_config
from ortloom.commands.bench.options import Options
from ortloom.commands.configuration import build_plan
from ortloom.commands.contradictions import check_contradictions
from ortloom.commands.environment_lines import warn_about_environment
from ortloom.commands.model_files import with_bundle
from ortloom.commands.structured_outputs import with_reasoning_flags
from ortloom.config import Config
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.logs import say


def engine_config(
    options: Options,
    command: str,
    prefix_caching: bool | None = None,
    check_context: Callable[[int], None] | None = None,
) -> Config:
    """The configuration that the engine flags and the environment give.

    A checkpoint is exported into the cache first, as `ortloom serve` does.

    Args:
        options: the flags.
        command: the benchmark's name.
        prefix_caching: what holds where no flag says it; None = the engine's default.
        check_context: raises where the tokens of a context are too few; called before a
            checkpoint is exported, if the context is known by then.

    Raises:
        OrtloomError: a flag is wrong, or the model cannot be used.
    """
    table = flag_table()
    args = with_reasoning_flags(options.args, table)
    if not args.positionals and not args.get("--model"):
        raise ConfigError(f"no model is named: ortloom bench {command} MODEL")
    expand_additional_config(args, table)
    check_contradictions(args)
    env = read_environment()
    warn_about_environment(env, args)
    plan = build_plan(args, env)
    for line in plan.notices:
        say(f"warning: {line}")
    if check_context is not None and plan.source.changes_checkpoint is None:
        context = context_before_export(plan.config)
        if context is not None:
            check_context(context)
    config = with_bundle(plan)
    said = options.given("--enable-prefix-caching") or options.given("--enable-radix-attention")
    if prefix_caching is None or said:
        return config
    cache = msgspec.structs.replace(config.cache, enable_prefix_caching=prefix_caching)
    return msgspec.structs.replace(config, cache=cache)

"""`ortloom run-batch -i FILE -o FILE MODEL [options]`: OpenAI's batch format, offline.

The requests go to a server of this process, on a loopback address with a key that nobody else
has, so they are checked and answered exactly as `ortloom serve` would.
"""

import asyncio
import json
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortloom.batch.lines import BatchRequest, parse_lines, refusal, result_line
from ortloom.batch.metrics_port import MetricsPort
from ortloom.batch.places import check_writable, read_place, write_place
from ortloom.bench.http_client import HttpClient
from ortloom.bench.progress import Progress
from ortloom.commands.additional_config import expand_additional_config
from ortloom.commands.arguments import Arguments
from ortloom.commands.configuration import ServePlan, build_plan
from ortloom.commands.contradictions import check_contradictions
from ortloom.commands.dialect import apply_dialect
from ortloom.commands.environment_lines import warn_about_environment
from ortloom.commands.help_text import help_text
from ortloom.commands.model_files import with_bundle
from ortloom.commands.serve import help_request, parse, show_help
from ortloom.commands.structured_outputs import with_reasoning_flags
from ortloom.config import Config
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import GROUPS, FlagTable, flag_table, named_by_option
from ortloom.log_setup import set_up_logging
from ortloom.logs import say
from ortloom.process_title import blank_arguments

_ABOUT = "Answer a file of requests in OpenAI's batch format."
_USAGE = "usage: ortloom run-batch -i INPUT_FILE -o OUTPUT_FILE [model] [options]"
_GROUPS = {"Batch": "the batch: input, output, metrics", **GROUPS}
_SERVER_ONLY = frozenset(
    {
        *("--uds", "--api-key", "--api-server-count", "--disable-frontend-multiprocessing"),
        *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
        *("--enable-ssl-refresh", "--root-path", "--middleware", "--headless"),
    }
)
"""Flags that have no meaning without a server for others."""

AT_A_TIME = 512
"""Requests that are sent at a time; the engine runs as many of them as it can."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Where the batch comes from and goes to. `metrics` = address of /metrics, None = none."""

    input: str
    output: str
    tmp_dir: str | None
    metrics: tuple[str, int] | None


def batch_table() -> FlagTable:
    """The command's own flags and those of the engine and the replies."""
    own = msgspec.json.decode(
        Path(__file__).with_name("run_batch_flags.json").read_bytes(), type=FlagTable
    )
    taken = {flag.name for flag in own.flags} | _SERVER_ONLY
    rest = tuple(flag for flag in flag_table().flags if flag.name not in taken)
    return FlagTable(flag_table().reasons, (*own.flags, *map(named_by_option, rest)))


def run(tokens: list[str]) -> int:
    """Run the command; 0 also when single requests failed, their lines say so.

    Raises:
        ConfigError: a flag is wrong.
        BatchFailed: the input cannot be used, or the output cannot be written.
    """
    table = batch_table()
    word = help_request(tokens)
    if word is not None:
        show_help(help_text(word or None, table, _GROUPS, _USAGE, _ABOUT), paged=word == "page")
        return 0
    args = with_reasoning_flags(parse(tokens, table), table)
    expand_additional_config(args, table)
    token = args.get("--hf-token")
    blank_arguments([token] if isinstance(token, str) else [])
    batch = _batch(args)
    check_contradictions(_engine_only(args))
    notices = [*args.warnings, *apply_dialect(args, table)]
    env = read_environment()
    warn_about_environment(env, args)
    plan = build_plan(_engine_only(args), env, "ortloom run-batch --model MODEL")
    for line in (*notices, *plan.notices):
        say(f"warning: {line}")
    requests = parse_lines(read_place(batch.input))  # before anything is loaded
    check_writable(batch.output, batch.tmp_dir)
    lines = asyncio.run(_answer(requests, _config(plan), batch))
    write_place(batch.output, lines, batch.tmp_dir)
    return 0


def _batch(args: Arguments) -> Batch:
    given = {name: args.get(name) for name in ("--input-file", "--output-file")}
    for name, value in given.items():
        if value is None:
            raise ConfigError(f"the following argument is required: {name}")
    host, url = args.get("--host"), args.get("--url")
    if url is not None:
        say("warning: --url is deprecated, use --host")
    port = args.get("--port")
    port = port if isinstance(port, int) else 8000
    if not 0 <= port <= 65535:
        raise ConfigError(f"argument --port: must be from 0 to 65535, got {port}")
    tmp_dir = args.get("--output-tmp-dir")
    return Batch(
        input=str(given["--input-file"]),
        output=str(given["--output-file"]),
        tmp_dir=None if tmp_dir is None else str(tmp_dir),
        metrics=(str(host or url or "0.0.0.0"), port) if args.get("--enable-metrics") else None,
    )


def _engine_only(args: Arguments) -> Arguments:
    """Without the flags that mean something else here than for a server."""
    hidden = {"--enable-metrics", "--host", "--port", "--url"}
    passed = {name: entry for name, entry in args.passed.items() if name not in hidden}
    return Arguments(passed, args.positionals, args.warnings)


def _config(plan: ServePlan) -> Config:
    """The tree of the server of this process."""
    config = with_bundle(plan)
    front = msgspec.structs.replace(
        config.front,
        host="127.0.0.1",
        port=0,
        api_keys=(secrets.token_hex(32),),
        access_log=False,
        one_process=True,
        request_deadline=30 * 86400.0,
    )
    return msgspec.structs.replace(config, front=front)


async def _answer(requests: Sequence[BatchRequest], config: Config, batch: Batch) -> list[bytes]:
    """The output's lines, in the order of the input."""
    from ortloom.server.embedded import EmbeddedServer

    set_up_logging(config.log, "batch")
    with socket.create_server((config.front.host, 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with EmbeddedServer(config, listener):
            client = HttpClient(url, {"Authorization": f"Bearer {config.front.api_keys[0]}"})
            try:
                return await _send_all(requests, client, batch)
            finally:
                client.close()


async def _send_all(
    requests: Sequence[BatchRequest], client: HttpClient, batch: Batch
) -> list[bytes]:
    places = asyncio.Semaphore(AT_A_TIME)
    with Progress(len(requests)) as progress:

        async def one(request: BatchRequest) -> bytes:
            async with places:
                line = await _send(request, client)
            progress.step()
            return line

        if batch.metrics is None:
            return list(await asyncio.gather(*map(one, requests)))
        async with MetricsPort(*batch.metrics, client):
            return list(await asyncio.gather(*map(one, requests)))


async def _send(request: BatchRequest, client: HttpClient) -> bytes:
    reason = refusal(request)
    if reason is not None:
        return result_line(request, 400, None, reason)
    try:
        reply = await client.post(request.url, msgspec.json.encode(request.body))
        body = json.loads(reply.body)
    except (OSError, ValueError) as error:
        return result_line(request, 500, None, f"no reply: {error}")
    if reply.status == 200:
        return result_line(request, 200, body, None)
    return result_line(request, reply.status, None, body.get("error", body))

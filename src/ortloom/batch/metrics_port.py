"""/metrics for the time a batch runs, and nothing else."""

import asyncio
from contextlib import suppress

from ortloom.batch.lines import BatchFailed
from ortloom.bench.http_client import HttpClient

_HEAD_SECONDS = 10.0


class MetricsPort:
    """An async context manager that passes GET /metrics on to the server of the batch.

    Args:
        host: to listen on.
        port: to listen on.
        client: reaches that server.
    """

    def __init__(self, host: str, port: int, client: HttpClient) -> None:
        self._host, self._port = host, port
        self._client = client
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "MetricsPort":
        """Begin to listen.

        Raises:
            BatchFailed: the address is not to be had.
        """
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise BatchFailed(f"cannot listen on {where}: {error.strerror}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._reply(head.split(b"\r\n")[0].split(b" ")))
                await writer.drain()
        writer.close()

    async def _reply(self, line: list[bytes]) -> bytes:
        status, kind, body = b"404 Not Found", b"application/json", b'{"detail":"Not Found"}'
        if len(line) > 1 and line[0] == b"GET" and line[1].partition(b"?")[0] == b"/metrics":
            found = await self._client.get("/metrics")
            status, body = b"200 OK", found.body
            kind = found.headers.get("content-type", "text/plain").encode()
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        return head % (status, kind, len(body)) + body

"""An HTTP/1.1 response, parsed as its bytes arrive (RFC 9112); knows no sockets."""

_MOST_HEAD = 256 * 1024
"""Bytes of a response head, or of a chunk-size line, before the server is taken for broken."""


class ProtocolError(ConnectionError):
    """The peer's bytes are no HTTP/1.1 response, or they ended too early."""


class ResponseParser:
    """Feed it bytes, get body bytes.

    `status` is 0 and `headers` empty until the head is complete; header names are lower case.
    `finished` turns True at the end of the body.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.finished = False
        self.touched = False
        self._buffer = b""
        self._left: int | None = None  # body or chunk bytes to come; None = up to the close
        self._chunked = False
        self._in_chunk = False
        self._trailer = False

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request after this response."""
        known_end = self._chunked or self._left is not None
        return self.finished and known_end and self.headers.get("connection", "") != "close"

    def feed(self, data: bytes) -> bytes:
        """Take bytes off the wire.

        Returns:
            The body bytes among them.

        Raises:
            ProtocolError: the bytes are no HTTP/1.1 response.
        """
        self.touched = True
        self._buffer += data
        while not self.status:
            if not self._head():
                return b""
        if self._chunked:
            return self._chunks()
        body, self._buffer = self._buffer, b""
        if self._left is not None:
            body = body[: self._left]
            self._left -= len(body)
            self.finished = self._left == 0
        return body

    def feed_end(self) -> None:
        """The peer closed.

        Raises:
            ProtocolError: in the middle of the response.
        """
        if self.finished:
            return
        if self.status and not self._chunked and self._left is None:
            self.finished = True
            return
        raise ProtocolError("the server closed the connection in the middle of a response")

    def _head(self) -> bool:
        """Parse a complete head; interim (1xx) ones are dropped."""
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            if len(head) > _MOST_HEAD:
                raise ProtocolError("the response head has no end")
            return False
        self._buffer = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ProtocolError(f"not an HTTP/1.1 response: {first[:80]!r}")
        if words[1].startswith("1"):
            return True
        self.status = int(words[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._body_length(words[0])
        return True

    def _body_length(self, version: str) -> None:
        if version == "HTTP/1.0":
            self.headers.setdefault("connection", "close")
        self.headers["connection"] = self.headers.get("connection", "").lower()
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif self.status in (204, 304):
            self._left = 0
        elif "content-length" in self.headers:
            text = self.headers["content-length"]
            if not text.isdigit():
                raise ProtocolError(f"bad Content-Length: {text[:40]!r}")
            self._left = int(text)
        self.finished = self._left == 0

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while not self.finished:
            if self._in_chunk:
                size = self._left or 0
                if len(self._buffer) < size + 2:
                    break
                pieces.append(self._buffer[:size])
                if self._buffer[size : size + 2] != b"\r\n":
                    raise ProtocolError("a chunk does not end where its size says")
                self._buffer = self._buffer[size + 2 :]
                self._in_chunk = False
                continue
            line, end, rest = self._buffer.partition(b"\r\n")
            if not end:
                if len(line) > _MOST_HEAD:
                    raise ProtocolError("a chunk size has no end")
                break
            self._buffer = rest
            if self._trailer:
                self.finished = not line
                continue
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise ProtocolError(f"bad chunk size: {line[:40]!r}") from None
            self._in_chunk = self._left > 0
            self._trailer = self._left == 0
        return b"".join(pieces)

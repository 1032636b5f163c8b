"""Server-sent events, parsed as their bytes arrive."""


class EventParser:
    """Feed it bytes, get the data of the events that are complete; comments and names are dropped.

    Lines may end in LF or CR LF.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take bytes.

        Returns:
            The data of each event that a blank line completed, its lines joined by LF.
        """
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

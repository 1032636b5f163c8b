"""What the engine does while its model runs (--async-scheduling).

The graph of a step runs in a thread of its own. Meanwhile the outputs of the step before are sent
and new requests are read, checked and queued. The plan of a step is made when the one before is
applied, as without overlap, so the results are the same.
"""

from ortloom.runtime.engine_protocols import Inbox, MessageHandler, Outbox
from ortloom.runtime.messages import ClientMessage, EngineControl


class StepOverlap:
    """Called once a step, in the engine's thread, while the graph runs.

    Args:
        handler: the engine.
        inbox: where messages come from.
        outbox: where outputs go.
    """

    def __init__(self, handler: MessageHandler, inbox: Inbox, outbox: Outbox) -> None:
        self._handler = handler
        self._inbox = inbox
        self._outbox = outbox
        self._held: list[tuple[bytes, ClientMessage]] = []
        self._error: Exception | None = None

    def __call__(self) -> None:
        """Send and read. An error is kept for `settle`: the step that runs is not to blame."""
        try:
            self._handler.flush(self._outbox)
            for client_id, message in self._inbox.drain(0.0):
                # A control call may touch what the running step uses, and calls keep their order.
                if self._held or isinstance(message, EngineControl):
                    self._held.append((client_id, message))
                else:
                    self._handler.apply(client_id, message)
        except Exception as error:
            self._error = error

    def settle(self) -> None:
        """After the step: apply what had to wait.

        Raises:
            Exception: what went wrong while the step ran.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        held, self._held = self._held, []
        for client_id, message in held:
            self._handler.apply(client_id, message)

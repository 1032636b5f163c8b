"""Requests on their way to the scheduler: checked, and refused with a reason or admitted."""

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from ortloom.errors import CapacityError, RequestError
from ortloom.runtime.admission import Admission
from ortloom.runtime.engine_protocols import Runner
from ortloom.runtime.messages import EngineOutput, EngineRequest
from ortloom.runtime.outbound import Outbound
from ortloom.runtime.request_table import REQUEST_FAILED
from ortloom.runtime.scheduler import Scheduler

log = logging.getLogger("ortloom.engine")

VALIDATORS = 2
"""Threads: so that a constraint that is known need not wait for one that is hard."""


class Entrance:
    """Checks requests; those that take long to check are checked in threads, beside the steps.

    Args:
        scheduler: gets what is admitted.
        admission: limits and ids.
        runner: knows what the model can do.
        outbound: gets refusals.
    """

    def __init__(
        self, scheduler: Scheduler, admission: Admission, runner: Runner, outbound: Outbound
    ) -> None:
        self._scheduler = scheduler
        self._admission = admission
        self._runner = runner
        self._outbound = outbound
        self._validator: ThreadPoolExecutor | None = None
        self._validating: dict[str, tuple[bytes, EngineRequest, Future[None]]] = {}

    @property
    def busy(self) -> bool:
        """Requests are being checked."""
        return bool(self._validating)

    def ids(self) -> list[str]:
        """Of the requests that are being checked."""
        return list(self._validating)

    def ids_of(self, client_id: bytes) -> list[str]:
        """The same, of one client."""
        return [i for i, (owner, _, _) in self._validating.items() if owner == client_id]

    def take(self, client_id: bytes, message: EngineRequest) -> None:
        """A new request: admitted, refused, or being checked from now on."""
        if message.request_id in self._validating:
            error = RequestError(f"request id '{message.request_id}' is in use.", "request_id")
            self._refuse(client_id, message, error)
        elif not message.sampling.slow_to_check:
            self._admit(client_id, message, validated=False)
        else:
            # Compiling a grammar may take longer than many steps: others must not wait for it.
            if self._validator is None:
                self._validator = ThreadPoolExecutor(VALIDATORS, "ortloom-validate")
            future = self._validator.submit(self._runner.validate, message)
            self._validating[message.request_id] = (client_id, message, future)

    def settle(self) -> None:
        """Admit or refuse those whose check is done."""
        done = [item for item in self._validating.items() if item[1][2].done()]
        for request_id, (client_id, message, future) in done:
            del self._validating[request_id]
            error = future.exception()
            if error is None:
                self._admit(client_id, message, validated=True)
            else:
                self._refuse(client_id, message, error)

    def drop(self, request_ids: Iterable[str]) -> list[tuple[bytes, EngineRequest]]:
        """Take requests out of those that are being checked."""
        dropped = []
        for request_id in request_ids:
            pending = self._validating.pop(request_id, None)
            if pending is not None:
                client_id, message, future = pending
                future.cancel()
                dropped.append((client_id, message))
        return dropped

    def close(self) -> None:
        """Check nothing more."""
        if self._validator is not None:
            self._validator.shutdown(wait=False, cancel_futures=True)

    def _admit(self, client_id: bytes, message: EngineRequest, *, validated: bool) -> None:
        try:
            request = self._admission.admit(message, client_id, len(self._validating))
            if not validated:
                self._runner.validate(message)
        except Exception as error:
            self._refuse(client_id, message, error)
        else:
            self._scheduler.add(request)

    def _refuse(self, client_id: bytes, message: EngineRequest, error: BaseException) -> None:
        output = EngineOutput(message.request_id, finish_reason="error", error=str(error))
        if isinstance(error, CapacityError):
            output.error_kind = "capacity"
            self._scheduler.counters.admission_rejections += 1
        elif isinstance(error, RequestError):
            output.error_kind = "invalid"
            output.error_param = error.param
        else:
            log.error("admission of %s failed", message.request_id, exc_info=error)
            output.error_kind = "internal"
            output.error = REQUEST_FAILED
        self._outbound.post_end(client_id, output, numbers=True)

"""The error tree. Each class knows its HTTP status and its exit code; nobody else maps them.

OrtloomError
├─ RequestError          InvalidRequest 400 · ContextLengthExceeded 400 · UnsupportedParameter 400
│                        AuthenticationFailed 401 · PermissionDenied 403 · ModelNotFound 404
│                        ResponseRefused 400 · ResponseNotFound 404
│                        NotImplementedHere 501 · RequestTooLarge 413 · HeadersTooLarge 431
├─ CapacityError 503     QueueFull · ServerDraining          (always with Retry-After)
├─ EngineError 500       EngineDead 503 · RequestFailed 500 · DeadlineExceeded 504
├─ BenchmarkFailed       exit 1
├─ ConfigError           exit 2 where an argument is wrong, 1 where the machine or a file is:
│                        ManifestError 1 · ProviderUnavailable 1 · KernelUnavailable 1
└─ ExportError           SourceInvalid 3 · UnsupportedModel 4 · ParityFailed 5 ·
                         InsufficientResources 6 · OutputExists 7 · ArtefactStale 8 ·
                         MissingDependency 1
"""

from typing import ClassVar


class OrtloomError(Exception):
    """Root of all errors that ortloom raises on purpose; `str(error)` is meant for the user."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    wire_type: ClassVar[str] = "InternalServerError"


class RequestError(OrtloomError):
    """A request that can never succeed as it is.

    Args:
        message: what is wrong, naming field and value limits.
        param: the field, in the form the OpenAI error object uses (`messages[2].role`), or None.
    """

    status = 400
    wire_type = "BadRequestError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A field has the wrong type, range or combination; `schema` errors use type `Bad Request`."""


class SchemaViolation(InvalidRequest):
    """The body does not fit the request schema (not JSON, wrong type, cross-field rule)."""

    wire_type = "Bad Request"


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room in the context."""


class UnsupportedParameter(RequestError):
    """The field is known but its value is not supported here."""


class AuthenticationFailed(RequestError):
    """No key or a wrong key."""

    status = 401
    wire_type = "Unauthorized"


class PermissionDenied(RequestError):
    """The route or field is switched off by a flag."""

    status = 403
    wire_type = "PermissionDeniedError"


class ModelNotFound(RequestError):
    """The model name is not served."""

    status = 404
    wire_type = "NotFoundError"


class ResponseRefused(RequestError):
    """A rule of the Responses API; its errors have a type of their own."""

    wire_type = "invalid_request_error"


class ResponseNotFound(ResponseRefused):
    """No such stored response, or item of one."""

    status = 404


class NotImplementedHere(RequestError):
    """The route exists but not for this model."""

    status = 501
    wire_type = "NotImplementedError"


class RequestTooLarge(RequestError):
    """The body is over the limit."""

    status = 413
    wire_type = "RequestEntityTooLarge"


class HeadersTooLarge(RequestError):
    """The request head is over a limit."""

    status = 431
    wire_type = "RequestHeaderFieldsTooLarge"


class CapacityError(OrtloomError):
    """Retry later; answered with Retry-After.

    Args:
        message: what is full.
        retry_after: seconds.
    """

    status = 503
    wire_type = "ServiceUnavailableError"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(CapacityError):
    """An admission limit is reached."""


class FrontBusy(CapacityError):
    """Another process of the server does not answer in time."""


class ServerDraining(CapacityError):
    """The server is shutting down."""


class EngineError(OrtloomError):
    """The engine failed; the text that reaches a client never holds internals."""


class EngineDead(EngineError):
    """The engine process is gone."""

    status = 503
    wire_type = "ServiceUnavailableError"


class RequestFailed(EngineError):
    """One request failed inside the engine; others go on."""


class DeadlineExceeded(EngineError):
    """The request deadline passed."""

    status = 504
    wire_type = "GatewayTimeout"


class BenchmarkFailed(OrtloomError):
    """A benchmark could not be run: no server, a failed test request, an unusable data set."""


class ConfigError(OrtloomError):
    """A flag, file or environment value is wrong."""

    exit_code = 2


class ManifestError(ConfigError):
    """The folder is not a usable bundle: missing, other schema version, or changed."""

    exit_code = 1


class ProviderUnavailable(ConfigError):
    """The provider that was asked for cannot run here; the text names why and what mends it."""

    exit_code = 1


class KernelUnavailable(ConfigError):
    """The op library is missing or cannot run here."""

    exit_code = 1


class KernelRefused(KernelUnavailable):
    """The environment asks for a tier or an op library that cannot be had."""

    exit_code = 2


class ExportError(OrtloomError):
    """Export failed and nothing was left at the output path."""


class SourceInvalid(ExportError):
    """The checkpoint is incomplete, corrupt or unsafe."""

    exit_code = 3


class UnsupportedModel(ExportError):
    """The architecture or a feature of it is not supported."""

    exit_code = 4


class ParityFailed(ExportError):
    """The exported graph does not agree with the reference."""

    exit_code = 5


class InsufficientResources(ExportError):
    """Not enough disk or memory; checked before anything is written."""

    exit_code = 6


class OutputExists(ExportError):
    """The output folder exists and --force was not given."""

    exit_code = 7


class ArtefactStale(ExportError):
    """`--check` of an existing output: changed since its export, or not what would come out now."""

    exit_code = 8


class MissingDependency(ExportError):
    """An optional extra is not installed; the text names the command that installs it."""

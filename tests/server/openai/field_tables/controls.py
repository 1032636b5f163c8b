"""Control routes: their bodies, and the parameters of their URLs."""

from field_tables.rows import BAD, OMIT, REFUSED, SAME, Field, Kind, no, ok, reply, wrong
from ortloom.server.routes import abort, dev

NO_WORKERS = ("NotImplementedError", None, "no workers")
BROKEN_IDS = [
    *wrong("request_ids", "x", 5),
    no([5], BAD, "body.request_ids.0"),
]


def call(name):
    """A member of the control call that reached the engine."""
    return lambda sight: getattr(sight.engine.controls[0], name)


def at_last(call):
    """The same for a call that nobody waits for."""

    def see(sight):
        sight.until(lambda: sight.engine.controls)
        return call(sight)

    return see


def rpc(name, taken, *bad):
    """A member of a call that is refused even where it fits."""
    return Field(
        reply(),
        None,
        [],
        [*wrong(name, *bad), no(taken, *NO_WORKERS, status=501)],
        missing=no(OMIT, *NO_WORKERS, status=501),
        null=no(None, *NO_WORKERS, status=501),
    )


def one_of(name, default, others, bad, **more):
    return Field(
        call(name),
        default,
        [ok(value, seen) for value, seen in others],
        [no(value, REFUSED, name) for value in bad],
        **more,
    )


def mode(default="abort"):
    return one_of(
        "mode", default, [(m, m) for m in ("abort", "wait", "keep")], ["never"], null=SAME
    )


def switch(name, default, seen=None):
    seen = seen or call(name)
    return Field(
        seen,
        default,
        [ok("true", True), ok("false", False), ok("1", True), ok("0", False), ok("False", False)],
        [no("perhaps", REFUSED, name)],
    )


KINDS = [
    Kind("abort", "/abort_requests", (dev.AbortBody,), {
        "request_ids": Field(
            call("request_ids"), [], [ok(["x"], ["x"]), ok([], [])], BROKEN_IDS
        ),
    }, lambda fields: fields, on="open"),
    Kind("abort of tokens only", "/abort_requests", (abort.AbortBody,), {
        "request_ids": Field(
            at_last(call("request_ids")),
            None,
            [ok(["x", "y"], ["x", "y"])],
            [*BROKEN_IDS, no([], BAD, "body.request_ids")],
            missing=no(OMIT, BAD, "body.request_ids", "required"),
            null=no(None, BAD, "body.request_ids"),
        ),
    }, lambda fields: fields, on="tokens_only"),
    Kind("rpc", "/collective_rpc", (dev.RpcBody,), {
        "method": rpc("method", "f", 5).but(
            missing=no(OMIT, BAD, "body.method", "required"),
            null=no(None, BAD, "body.method", "required"),
        ),
        "args": rpc("args", [1], "x"),
        "kwargs": rpc("kwargs", {"a": 1}, "x"),
        "timeout": rpc("timeout", 3, "x"),
    }, lambda fields: {"method": "f", **fields}, on="open"),
    Kind("pause", "/pause", (), {
        "mode": mode(),
        "clear_cache": switch("clear_cache", True),
    }, lambda fields: fields, on="open", query=True),
    Kind("sleep", "/sleep", (), {
        "mode": mode(),
        "level": one_of("level", 1, [("0", 0), ("1", 1), ("2", 2)], ["3", "x", "-1"]),
    }, lambda fields: fields, on="open", query=True),
    Kind("wake up", "/wake_up", (), {
        "tags": one_of("tags", [], [("weights", ["weights"]),
                                    (["weights", "kv_cache"], ["weights", "kv_cache"])],
                       ["everything", ["weights", "x"]]),
    }, lambda fields: fields, on="open", query=True),
    Kind("reset prefix cache", "/reset_prefix_cache", (), {
        "reset_running_requests": switch(
            "reset_running_requests", False, lambda s: s.engine.controls[0][1]
        ),
        "reset_external": switch("reset_external", False).but(
            seen=reply("success"), default=True,
            taken=[ok("true", True), ok("false", True)],
        ),
    }, lambda fields: fields, query=True),
    Kind("server info", "/server_info", (), {
        "config_format": Field(
            lambda s: type(s.json["vllm_config"]).__name__,
            "str",
            [ok("text", "str"), ok("json", "dict")],
            [no("yaml", REFUSED, "config_format")],
        ),
    }, lambda fields: fields, method="GET", query=True),
]  # fmt: skip

"""Failures inside the engine that are a request's own fault, or nobody's: each is told apart."""

from fakes import Harness, make_request

from ortloom.runtime.sampling_params import StructuredOutput

PROMPT = [5, 6, 7, 8, 9]


def test_an_error_of_one_row_that_a_field_is_to_blame_for_is_the_clients():
    engine = Harness()
    engine.runner.row_errors["bad"] = "no token is allowed@bad_words"
    engine.add("bad", PROMPT, 4)
    engine.run()
    last = engine.last("bad")
    assert (last.error, last.error_kind, last.error_param) == (
        "no token is allowed",
        "invalid",
        "bad_words",
    )


def test_a_checker_that_panics_still_answers():
    """What native code raises there need not be an Exception; the client must hear something."""

    class PanicError(BaseException):
        pass

    def panic(request):
        raise PanicError

    engine = Harness()
    engine.runner.validate = panic
    message = make_request("r", PROMPT, 3, structured_output=StructuredOutput("regex", "x"))
    engine.send(message)
    for _ in range(10_000_000):
        engine.step()
        if engine.outputs("r"):
            break
    assert (engine.last("r").finish_reason, engine.last("r").error_kind) == ("error", "internal")

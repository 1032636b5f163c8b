"""What is asked: requests that Hypothesis draws, whose answers depend on nothing but themselves."""

import re
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

LONG = "The river rose for three days, and on the fourth the miller counted his sacks. " * 6
PROMPTS = (
    "The capital of Portugal is",
    "Once upon a time",
    "A list of three birds:",
    "def add(a, b):",
    LONG,
    LONG + "What he found was",
    LONG + "His daughter said that",
    "Zählen wir: eins, zwei, drei,",
)
STOPS = ("\n", ".", " the", "a", "er", ", ", "and then", "\u00e9")
CHOICES = (["yes", "no", "perhaps"], ["left", "leftmost", "right"])
REGEXES = (r"[a-c]{2,5}", r"[0-9]{1,3}(\.[0-9]{2})?", r"(one|two|three)( (one|two|three)){0,2}")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["bird", "fish"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
LIMIT = 24  # tokens of an answer; 40 with a schema


@dataclass(frozen=True)
class Asked:
    """One request. `body` has neither `stream` nor its options."""

    path: str
    body: dict[str, Any]

    @property
    def chat(self) -> bool:
        return self.path.endswith("chat/completions")

    def fits_constraint(self, text: str) -> bool:
        """Whether a finished text is what its constraint allows."""
        constraint = self.body.get("structured_outputs", {})
        if "choice" in constraint:
            return text in constraint["choice"]
        if "regex" in constraint:
            return re.fullmatch(constraint["regex"], text) is not None
        return True


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    chat = draw(st.booleans())
    body: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, LIMIT)),
        "return_token_ids": True,
        "temperature": 0,
    }
    prompt = draw(st.sampled_from(PROMPTS))
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
        if draw(st.booleans()):
            body |= {"logprobs": True, "top_logprobs": draw(st.integers(0, 5))}
    else:
        body["prompt"] = prompt
        if draw(st.booleans()):
            body["logprobs"] = draw(st.integers(0, 5))
    if draw(st.booleans()):
        body |= {"temperature": draw(st.sampled_from((0.7, 1.2))), "seed": draw(st.integers(0, 99))}
        body |= draw(st.sampled_from(({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05})))
        body["n"] = draw(st.integers(1, 4))
    if draw(st.booleans()):
        body["stop"] = draw(st.lists(st.sampled_from(STOPS), min_size=1, max_size=3, unique=True))
        body["include_stop_str_in_output"] = draw(st.booleans())
    body |= draw(st.sampled_from(({}, {"ignore_eos": True}, {"repetition_penalty": 1.2})))
    if draw(st.integers(0, 2)) == 0:
        body |= draw(constraints())
    if draw(st.integers(0, 7)) == 0:
        body["prompt_logprobs"] = draw(st.integers(0, 2))
    return Asked("/v1/chat/completions" if chat else "/v1/completions", body)


@st.composite
def constraints(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(("choice", "regex", "schema", "object")))
    if kind == "choice":
        return {"structured_outputs": {"choice": draw(st.sampled_from(CHOICES))}}
    if kind == "regex":
        return {"structured_outputs": {"regex": draw(st.sampled_from(REGEXES))}}
    if kind == "schema":
        form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
        return {"response_format": form, "max_tokens": 40}
    return {"response_format": {"type": "json_object"}}


def draw_requests(number: int, count: int) -> list[Asked]:
    """`count` different requests (at most), the same ones for the same `number`."""
    found: list[Asked] = []

    @seed(number)
    @settings(
        max_examples=count,
        derandomize=False,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests())
    def collect(asked: Asked) -> None:
        found.append(asked)

    collect()
    return found

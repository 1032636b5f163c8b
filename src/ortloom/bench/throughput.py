"""Throughput in this process: all prompts of a data set at once."""

import time
from pathlib import Path

import msgspec

from ortloom.bench.context import check_room, known_context
from ortloom.bench.dataset import DatasetPlan, Vocabulary, build_workload
from ortloom.bench.samples import Sample
from ortloom.config import Config
from ortloom.logs import say
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.manifest import Manifest
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.llm import LLM
from ortloom.runtime.request_output import RequestOutput
from ortloom.runtime.sampling_params import SamplingParams


class ThroughputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`n` samples a prompt; `chat` puts each prompt into the model's chat template."""

    dataset: DatasetPlan
    n: int = 1
    num_warmups: int = 0
    detokenize: bool = True
    chat: bool = False


class ThroughputResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts as the engine saw them, and the seconds all requests took together."""

    elapsed: float
    num_requests: int
    prompt_tokens: int
    output_tokens: int

    def lines(self) -> list[str]:
        """The printed report."""
        total = self.prompt_tokens + self.output_tokens
        return [
            f"Throughput: {self.num_requests / self.elapsed:.2f} requests/s, "
            f"{total / self.elapsed:.2f} total tokens/s, "
            f"{self.output_tokens / self.elapsed:.2f} output tokens/s",
            f"Total num prompt tokens:  {self.prompt_tokens}",
            f"Total num output tokens:  {self.output_tokens}",
        ]

    def to_json(self) -> dict[str, object]:
        """The JSON result."""
        total = self.prompt_tokens + self.output_tokens
        return {
            "elapsed_time": self.elapsed,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "requests_per_second": self.num_requests / self.elapsed,
            "tokens_per_second": total / self.elapsed,
        }


def measure_throughput(config: Config, plan: ThroughputPlan) -> ThroughputResult:
    """Load the bundle and time the whole workload.

    Raises:
        OrtloomError: the bundle cannot be run, the data set cannot be used, or a prompt does not
            fit the context.
    """
    context = known_context(config, Manifest.load(Path(config.model.bundle)).architecture)
    folder = Path(config.model.tokenizer or config.model.bundle)
    tokenizer = Tokenizer.load(folder)
    vocabulary = Vocabulary(tokenizer, ChatTemplate.load(folder, tokenizer))
    workload = build_workload(plan.dataset, vocabulary, context)
    _check_all(context, workload.samples)
    with LLM.from_config(config) as llm:
        _check_all(llm.max_model_len, workload.samples)
        if plan.num_warmups:
            say(f"warming up with {plan.num_warmups} requests")
            _generate(llm, [workload.trial] * plan.num_warmups, plan)
        say(f"generating for {len(workload.samples)} prompts")
        begin = time.perf_counter()
        outputs = _generate(llm, workload.samples, plan)
        elapsed = time.perf_counter() - begin
    short = _short_answers(workload.samples, outputs)
    if short:
        say(f"warning: {short} answers ended at the end of the context")
    return ThroughputResult(
        elapsed=elapsed,
        num_requests=len(outputs),
        prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        output_tokens=sum(len(one.token_ids) for output in outputs for one in output.outputs),
    )


def _check_all(context: int, samples: list[Sample]) -> None:
    for sample in samples:
        check_room(context, sample.prompt_len, sample.output_len)


def _short_answers(samples: list[Sample], outputs: list[RequestOutput]) -> int:
    """A chat template adds tokens to a prompt whose length was checked without them."""
    return sum(
        len(one.token_ids) < sample.output_len
        for sample, output in zip(samples, outputs, strict=True)
        for one in output.outputs
    )


def _generate(llm: LLM, samples: list[Sample], plan: ThroughputPlan) -> list[RequestOutput]:
    params = [
        SamplingParams(
            n=plan.n,
            temperature=1.0,
            max_tokens=sample.output_len,
            ignore_eos=True,
            detokenize=plan.detokenize,
        )
        for sample in samples
    ]
    if plan.chat:
        talks = [[{"role": "user", "content": sample.prompt}] for sample in samples]
        return llm.chat(talks, params)
    return llm.generate([sample.prompt for sample in samples], params)

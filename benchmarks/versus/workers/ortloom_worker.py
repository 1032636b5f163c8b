"""ortloom in process: `ortloom_worker BUNDLE THREADS KV_CACHE_DTYPE KV_BYTES`."""

import sys
from collections.abc import Sequence

from benchmarks.versus.workers.protocol import TOP, claim_stdout, serve

MAX_MODEL_LEN = 1280


class OrtloomEngine:
    """`LLM` with prefix caching off and room for 32 short or 8 long streams."""

    def __init__(self, bundle: str, threads: int, kv_cache_dtype: str, kv_bytes: int) -> None:
        from ortloom import LLM, SamplingParams, __version__

        self.version = __version__
        self._params = SamplingParams
        self._llm = LLM(
            bundle,
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=32,
            kv_cache_memory_bytes=kv_bytes,
            kv_cache_dtype=kv_cache_dtype,
            enable_prefix_caching=False,
            max_logprobs=TOP,
            threads=threads,
        )

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, float]:
        params = self._params(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate(list(prompts), params)
        metrics = [output.metrics for output in outputs]
        begin = min(m.arrival_time for m in metrics)
        return {
            "first": min(m.first_token_time for m in metrics) - begin,
            "last": max(m.last_token_time for m in metrics) - begin,
            "tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
        }

    def score(self, ids: Sequence[int], path: str) -> str:
        """From the engine's own log-probabilities: of prompt tokens, and of the one after."""
        import numpy as np

        params = self._params(
            temperature=0,
            max_tokens=1,
            ignore_eos=True,
            logprobs=TOP,
            prompt_logprobs=TOP,
            detokenize=False,
        )
        (output,) = self._llm.generate([list(ids)], params)
        assert output.prompt_logprobs is not None
        assert output.outputs[0].logprobs is not None
        found_ids, found = [], []
        for position in [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]:
            assert position is not None
            ranked = sorted(position.items(), key=lambda item: item[1].rank)[:TOP]
            found_ids.append([token for token, _ in ranked])
            found.append([entry.logprob for _, entry in ranked])
        with open(path, "wb") as file:
            np.savez(file, ids=np.array(found_ids), logprobs=np.array(found, np.float32))
        return "top"


if __name__ == "__main__":
    stream = claim_stdout()
    engine = OrtloomEngine(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    serve(engine, stream)

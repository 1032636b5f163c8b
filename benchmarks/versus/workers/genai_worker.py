"""onnxruntime-genai in process: `genai_worker MODEL`; threads are in its genai_config.json.

It has no continuous batching here: all prompts of a run have one length, its best case.
"""

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.versus.workers.protocol import Times, claim_stdout, serve


class GenaiEngine:
    """A model and a generator for each run."""

    def __init__(self, folder: str) -> None:
        import onnxruntime_genai as og

        self.version = og.__version__
        self._og = og
        self._model = og.Model(folder)

    def _generator(self, prompts: Sequence[Sequence[int]], total: int) -> tuple[Any, Any]:
        import numpy as np

        params = self._og.GeneratorParams(self._model)
        params.set_search_options(
            max_length=total, min_length=total, do_sample=False, batch_size=len(prompts)
        )
        ids = np.array(prompts, dtype=np.int32)
        return self._og.Generator(self._model, params), ids if len(prompts) > 1 else ids[0]

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, float]:
        generator, ids = self._generator(prompts, len(prompts[0]) + new)
        times = Times()
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
            times.add(len(prompts))
        return times.result()

    def score(self, ids: Sequence[int], path: str) -> str:
        import numpy as np

        generator, array = self._generator([ids], len(ids) + 1)
        generator.append_tokens(array)
        logits = np.asarray(generator.get_output("logits"), dtype=np.float32)
        with open(path, "wb") as file:
            np.save(file, logits.reshape(-1, logits.shape[-1]))
        return "logits"


if __name__ == "__main__":
    stream = claim_stdout()
    serve(GenaiEngine(sys.argv[1]), stream)

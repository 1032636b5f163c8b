"""transformers' generate() in process: `transformers_worker CHECKPOINT DTYPE THREADS`.

A static batch, equal lengths: its best case. In fp32 it is also what agreement is measured against.
"""

import sys
from collections.abc import Sequence

from benchmarks.versus.workers.protocol import Times, claim_stdout, serve


class TransformersEngine:
    """The checkpoint in one dtype, eager with torch's scaled dot product attention."""

    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        import torch
        import transformers
        from transformers.generation.streamers import BaseStreamer

        class Stream(BaseStreamer):
            """Notes the time of each step; the first call brings the prompt."""

            def __init__(self, rows: int) -> None:
                self.times = Times()
                self._rows = rows
                self._prompt_seen = False

            def put(self, value: object) -> None:
                if self._prompt_seen:
                    self.times.add(self._rows)
                self._prompt_seen = True

            def end(self) -> None:
                pass

        torch.set_num_threads(threads)
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self._torch, self._stream = torch, Stream
        loader = transformers.AutoModelForCausalLM
        self._model = loader.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self._model.generation_config.eos_token_id = None  # runs go on past an end token
        self._model.generation_config.pad_token_id = 0

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, float]:
        torch = self._torch
        ids = torch.tensor([list(prompt) for prompt in prompts])
        stream = self._stream(len(prompts))
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=new,
                streamer=stream,
            )
        return stream.times.result()

    def score(self, ids: Sequence[int], path: str) -> str:
        import numpy as np

        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([list(ids)])).logits[0].float().numpy()
        with open(path, "wb") as file:
            np.save(file, logits)
        return "logits"


if __name__ == "__main__":
    stream = claim_stdout()
    serve(TransformersEngine(sys.argv[1], sys.argv[2], int(sys.argv[3])), stream)

"""OpenVINO GenAI's ContinuousBatchingPipeline in process: `openvino_worker MODEL [KEY=VALUE ...]`.

Properties go to the plugin, for example INFERENCE_PRECISION_HINT=f32.
"""

import sys
from collections.abc import Sequence

from benchmarks.versus.workers.protocol import Times, claim_stdout, serve


class OpenvinoEngine:
    """A pipeline with prefix caching off."""

    def __init__(self, folder: str, properties: dict[str, str]) -> None:
        import openvino as ov
        import openvino_genai as og

        core = ov.Core()
        for name, value in properties.items():
            core.set_property("CPU", {name: value})
        hints = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
        found = [f"{name}={core.get_property('CPU', name).get_type_name()}" for name in hints]
        self.version = ", ".join([og.__version__, *found])
        self._ov, self._og, self._core = ov, og, core
        self._folder, self._properties = folder, properties
        scheduler = og.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 4096
        scheduler.enable_prefix_caching = False
        self._pipeline = og.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, float]:
        import numpy as np

        config = self._og.GenerationConfig()
        config.max_new_tokens = new
        config.ignore_eos = True
        config.do_sample = False
        inputs = [self._ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        times = Times()
        handles = [self._pipeline.add_request(i, ids, config) for i, ids in enumerate(inputs)]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            count = 0
            for handle in handles:
                if handle.can_read():
                    count += sum(len(o.generated_ids) for o in handle.read().values())
            if count:
                times.add(count)
        return times.result()

    def score(self, ids: Sequence[int], path: str) -> str:
        """By the plain model with the same properties: the pipeline gives no prompt logits."""
        import numpy as np

        file = f"{self._folder}/openvino_model.xml"
        compiled = self._core.compile_model(file, "CPU", self._properties)
        count = len(ids)
        row = np.array([ids], dtype=np.int64)
        feeds = {
            "input_ids": row,
            "attention_mask": np.ones_like(row),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        request = compiled.create_infer_request()
        names = {name for port in compiled.inputs for name in port.names}
        found = request.infer({key: value for key, value in feeds.items() if key in names})
        logits = np.asarray(found["logits"], dtype=np.float32)[0]
        with open(path, "wb") as out:
            np.save(out, logits)
        return "logits"


if __name__ == "__main__":
    stream = claim_stdout()
    pairs = dict(argument.split("=", 1) for argument in sys.argv[2:])
    serve(OpenvinoEngine(sys.argv[1], pairs), stream)

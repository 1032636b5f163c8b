"""Single-stream decode of onnxruntime-genai: `ort_genai.py MODEL PROMPT_TOKENS NEW_TOKENS`.

One JSON line when ready, then one a line read from stdin: decode tokens per second without
prefill.
"""

import json
import random
import sys
import time


def main(model_folder: str, prompt_tokens: int, new_tokens: int) -> None:
    import numpy as np
    import onnxruntime_genai as og

    model = og.Model(model_folder)
    draw = random.Random(1)

    def run(count: int) -> float:
        params = og.GeneratorParams(model)
        total = prompt_tokens + count
        params.set_search_options(max_length=total, min_length=total, do_sample=False)
        generator = og.Generator(model, params)
        ids = [draw.randrange(300, 48000) for _ in range(prompt_tokens)]
        generator.append_tokens(np.array(ids, dtype=np.int32))
        times = []
        while not generator.is_done():
            generator.generate_next_token()
            times.append(time.perf_counter())
        return (len(times) - 1) / (times[-1] - times[0])

    run(8)
    print(json.dumps({"ready": True, "version": og.__version__}), flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            return
        print(json.dumps({"tokens_per_second": run(new_tokens)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

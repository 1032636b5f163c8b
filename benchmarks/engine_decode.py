"""Single-stream decode of ortloom in process: `engine_decode.py BUNDLE PROMPT_TOKENS NEW_TOKENS`.

Same protocol as peers/ort_genai.py: one JSON line when ready, then one a line read from stdin.
"""

import json
import random
import sys


def main(bundle: str, prompt_tokens: int, new_tokens: int) -> None:
    from ortloom import LLM, SamplingParams, __version__

    llm = LLM(bundle, max_model_len=prompt_tokens + new_tokens + 8, max_num_seqs=4)
    draw = random.Random(1)

    def run(count: int) -> float:
        ids = [draw.randrange(300, 48000) for _ in range(prompt_tokens)]
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        (output,) = llm.generate([ids], params)
        metrics = output.metrics
        assert len(output.outputs[0].token_ids) == count
        return (count - 1) / (metrics.last_token_time - metrics.first_token_time)

    run(8)
    print(json.dumps({"ready": True, "version": __version__}), flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            return
        print(json.dumps({"tokens_per_second": run(new_tokens)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

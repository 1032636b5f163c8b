"""Greedy continuations by transformers' own GGUF reader in float32.

Usage: `golden_reference.py GGUF OUT`. It runs as a process of its own and touches nothing of
ortloom, so the ids it writes are an independent oracle for importer, exporter, kernels and engine.
"""

import json
import sys
from pathlib import Path

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain what a hash table is in two sentences.",
    "List three primary colours.",
    "Translate 'good morning' into Spanish.",
    "What is 12 plus 30?",
    "Give me a short recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "Write a Python function that reverses a string.",
    "Why is the sky blue?",
]
NEW_TOKENS = 64


def main(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    rows = []
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        with torch.no_grad():
            result = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
            )
        rows.append(
            {
                "question": question,
                "prompt_ids": ids[0].tolist(),
                "output_ids": result[0, ids.shape[1] :].tolist(),
            }
        )
    temporary = out.with_suffix(".tmp")
    temporary.write_text(json.dumps({"rows": rows}))
    temporary.rename(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

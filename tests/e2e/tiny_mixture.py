"""A tiny Qwen3-MoE with random weights, and greedy continuations by transformers in float32.

Usage: `tiny_mixture.py FOLDER`. It runs as a process of its own and touches nothing of ortloom, so
the ids it writes (FOLDER/golden.json) are an independent oracle for exporter, ops and engine. The
checkpoint is written by transformers, three layers of which the second has no experts.
"""

import json
import sys
from pathlib import Path

TEXTS = [
    "The lighthouse keeper counted the ships.",
    "a",
    "Where does the river end? It ends where the map was torn, north of the old railway bridge.",
    "def area(r): return 3.14159 * r ** 2",
]
NEW_TOKENS = 24
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: 256 bytes and two special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))


def main(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(5)
    torch.set_num_threads(2)
    config = Qwen3MoeConfig(
        vocab_size=258,
        hidden_size=128,
        intermediate_size=192,
        moe_intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = Qwen3MoeForCausalLM(config).eval()
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    greedy = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    rows = []
    for text in TEXTS:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for kind, ids in (("text", tokenizer(text)["input_ids"]), ("chat", chat)):
            prompt = torch.tensor([ids])
            with torch.no_grad():
                found = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), generation_config=greedy
                )
            output = found[0, len(ids) :].tolist()
            rows.append({"kind": kind, "text": text, "prompt_ids": ids, "output_ids": output})
    (folder / "golden.json").write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

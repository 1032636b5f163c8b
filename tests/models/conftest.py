"""Small real tokenizers, trained here: byte-level, and word-boundary with byte fallback."""

import json

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CORPUS = [
    "Hello there! How can I assist you today?",
    "The sea is a place of endless wonder and mystery.",
    "Count: 1, 2, 3, 4, 5. Small boats drift home.",
    "def f(x):\n\treturn x + 1\n",
    "日本語 한국어 café 👍🏽 🇳🇴",
] * 4

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byte-level")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIAL[1], "eos_token": {"content": SPECIAL[2]}, "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def byte_fallback_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byte-fallback")
    words = ["▁", "▁Hello", "▁the", "re", "▁sea", "s", "!", "e", "a", "h", "t", "\n"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder

"""A bundle without graphs: all that a front reads, with a tokenizer of a few thousand words."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ortloom.models.bundle_files import hash_file
from ortloom.models.manifest import (
    Architecture,
    FileEntry,
    KVGroup,
    Manifest,
    Producer,
    Source,
    TokenizerFiles,
)

PROSE = Path(__file__).resolve().parents[1] / "versus" / "prose.txt"
VOCABULARY = 4096
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_bundle(folder: Path) -> Path:
    """Write it; about a second."""
    folder.mkdir(parents=True)
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        PROSE.read_text("utf-8").splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text("{}")
    manifest = Manifest(
        producer=Producer(version="0"),
        source=Source(name="prose", format="safetensors"),
        architecture=Architecture(
            class_name="Scripted",
            model_type="scripted",
            num_layers=1,
            hidden_size=8,
            num_heads=1,
            vocab_size=backend.get_vocab_size(),
            max_position_embeddings=1_000_000,
            num_parameters=1,
            tied_embeddings=True,
            eos_token_ids=(0,),
        ),
        graphs=(),
        kv_groups=(KVGroup(id=0, layers=(0,), kv_heads=1, head_dim_k=8, head_dim_v=8),),
        weights=(),
        tokenizer=TokenizerFiles(
            tokenizer=_entry(folder, "tokenizer.json"),
            tokenizer_config=_entry(folder, "tokenizer_config.json"),
            chat_template=_entry(folder, "chat_template.jinja"),
            generation_config=_entry(folder, "generation_config.json"),
        ),
    )
    (folder / "manifest.json").write_bytes(manifest.sealed().to_bytes())
    return folder


def _entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    return FileEntry(path=name, size=path.stat().st_size, sha256=hash_file(path))

"""The least folder a front accepts as a bundle."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

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

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    return FileEntry(path=name, size=path.stat().st_size, sha256=hash_file(path))


def write_bundle(folder: Path) -> Path:
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5}))
    manifest = Manifest(
        producer=Producer(version="0"),
        source=Source(name="tiny", format="safetensors", hub_id="org/tiny", revision="abc123"),
        architecture=Architecture(
            class_name="Tiny",
            model_type="tiny",
            num_layers=1,
            hidden_size=8,
            num_heads=1,
            vocab_size=256,
            max_position_embeddings=4096,
            num_parameters=1,
            tied_embeddings=True,
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

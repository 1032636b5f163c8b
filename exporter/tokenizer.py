"""Tokenizer and chat template: carried over, and proven to work before the bundle appears."""

import json
from pathlib import Path
from typing import Any

from ortloom.errors import SourceInvalid
from ortloom.models.bundle_files import hash_file
from ortloom.models.manifest import FileEntry, TokenizerFiles

PROBES = (
    "Hello, world!",
    "  two spaces\n\nand\ttabs",
    "Grüße, 世界 🙂 — naïve café",
    "def f(x):\n    return x ** 2  # 1234567890",
)


def _entry(root: Path, name: str) -> FileEntry | None:
    path = root / name
    if not path.exists():
        return None
    return FileEntry(path=name, size=path.stat().st_size, sha256=hash_file(path))


def _template(root: Path) -> str | None:
    file = root / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    config = root / "tokenizer_config.json"
    if not config.exists():
        return None
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def check_tokenizer(root: Path, vocab_size: int, warnings: list[str]) -> None:
    """Load the tokenizer, encode and decode probe texts.

    Raises:
        SourceInvalid: it cannot be loaded, or makes ids the model does not have.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    except Exception as error:
        raise SourceInvalid(f"tokenizer.json cannot be loaded: {error}") from error
    for text in PROBES:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if not ids or max(ids) >= vocab_size:
            raise SourceInvalid(
                f"the tokenizer makes ids up to {max(ids, default=-1)}, the model has {vocab_size}"
            )
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back.strip() != text.strip():
            warnings.append(f"the tokenizer does not give {text!r} back: {back!r}")
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > vocab_size:
        warnings.append(f"the tokenizer has {size} entries, the model {vocab_size} rows")


def _raise(message: str) -> None:
    raise SourceInvalid(f"the chat template refuses a plain conversation: {message}")


def check_template(root: Path) -> None:
    """Render a two-turn conversation, and a one-turn one where the template refuses two.

    Raises:
        SourceInvalid: the template cannot be parsed or rendered.
    """
    source = _template(root)
    if source is None:
        return
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals.update(raise_exception=_raise, strftime_now=lambda form: "2026-01-01")
    config = root / "tokenizer_config.json"
    facts: dict[str, Any] = json.loads(config.read_text("utf-8")) if config.exists() else {}

    def token(name: str) -> str:
        value = facts.get(name)
        return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")

    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ]
    try:
        template = environment.from_string(source)
        text = template.render(
            messages=turns,
            add_generation_prompt=True,
            bos_token=token("bos_token"),
            eos_token=token("eos_token"),
            tools=None,
            documents=None,
        )
    except jinja2.TemplateError as error:
        raise SourceInvalid(f"the chat template cannot be rendered: {error}") from error
    if "Bye" not in text:
        raise SourceInvalid("the chat template drops the last user message")


def normalise_template(root: Path) -> None:
    """Give the bundle a chat_template.jinja where the template lies in tokenizer_config.json."""
    file = root / "chat_template.jinja"
    template = _template(root)
    if template is not None and not file.exists():
        file.write_text(template, encoding="utf-8")


def describe_tokenizer(root: Path) -> TokenizerFiles:
    """The manifest entries of the files in a bundle folder."""
    return TokenizerFiles(
        tokenizer=_entry(root, "tokenizer.json"),
        tokenizer_config=_entry(root, "tokenizer_config.json"),
        chat_template=_entry(root, "chat_template.jinja"),
        generation_config=_entry(root, "generation_config.json"),
        config=_entry(root, "config.json"),
    )

import json
import threading
import time

import pytest

from ortloom.errors import InvalidRequest, ManifestError
from ortloom.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(byte_level_folder):
    return Tokenizer.load(byte_level_folder)


def test_text_comes_back_whole(tokenizer):
    for text in ("Hello there!", "日本語 👍🏽 🇳🇴", "def f(x):\n\treturn", "مرحبا", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_bytes_joined_are_the_text(tokenizer):
    text = "a👍🏽b 日本語 é 한국어 🇳🇴 c<|im_end|>"
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_token_strings_are_those_of_the_vocabulary(tokenizer):
    ids = tokenizer.encode("The sea")
    assert "".join(map(tokenizer.token_str, ids)) == "TheĠsea"


def test_special_ids_and_names(tokenizer):
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.token_str(tokenizer.bos_token_id) == "<|im_start|>"
    assert tokenizer.token_str(tokenizer.eos_token_id) == "<|im_end|>"
    assert tokenizer.eos_token_id in tokenizer.special_ids
    tool = tokenizer.encode("<tool>")[0]
    assert tokenizer.is_added(tool)
    assert tool not in tokenizer.special_ids


def test_special_tokens_in_text_are_skipped_or_kept(tokenizer):
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_added_tokens_are_joined_without_blanks_when_asked(tmp_path):
    """A decoder that puts blanks between words puts none between added tokens."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({"a": 0, "b": 1, "<x>": 2, "[UNK]": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<x>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    words = Tokenizer.load(tmp_path)
    ids = [0, 2, 2, 2, 1]
    assert words.decode(ids, False) == "a <x> <x> <x> b"
    assert words.decode(ids, False, spaces_between_special_tokens=False) == "a <x><x><x> b"
    assert words.decode(ids, True, spaces_between_special_tokens=False) == "a b"


def test_byte_fallback_tokens_have_their_byte(byte_fallback_folder):
    tokenizer = Tokenizer.load(byte_fallback_folder)
    ids = tokenizer.encode("Hello 日")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " Hello 日".encode()


def test_ids_above_the_vocabulary_have_no_text(tokenizer):
    beyond = tokenizer.vocab_size + 5
    assert tokenizer.decode([beyond]) == ""
    assert tokenizer.token_str(beyond) == ""
    assert tokenizer.token_bytes(beyond) == b""


def test_a_lone_surrogate_is_the_clients_fault(tokenizer):
    with pytest.raises(InvalidRequest, match="Unicode"):
        tokenizer.encode("\ud800")


def test_truncation_and_padding_of_the_file_are_off(byte_level_folder, tmp_path):
    data = json.loads((byte_level_folder / "tokenizer.json").read_text())
    data["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert len(Tokenizer.load(tmp_path).encode("The sea is a place of wonder")) > 2


@pytest.mark.parametrize("text", [None, "{", '{"model": 1}'])
def test_an_unusable_folder_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ManifestError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_long_texts_and_lists_are_as_short_ones(tokenizer):
    """The library has another way for them."""
    text = "Grüße, 世界! <|im_end|> hello " * 300
    assert len(text) > 4096
    ids = tokenizer.encode(text)
    assert ids == tokenizer._backend.encode(text).ids
    assert len(ids) > 4096
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == tokenizer._backend.decode(ids, skip)
    with pytest.raises(InvalidRequest, match="half of a pair"):
        tokenizer.encode(text + "\ud800")


def test_a_long_text_holds_no_other_thread_up(tokenizer):
    """One word of it: the library looks at no other thread before it is done."""
    text = "é" * 400_000
    ended = threading.Event()
    longest = 0.0

    def encode():
        tokenizer.encode(text)
        ended.set()

    thread = threading.Thread(target=encode)
    began = last = time.monotonic()
    thread.start()
    while not ended.is_set():
        time.sleep(0.002)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    thread.join()
    assert longest < (last - began) / 2

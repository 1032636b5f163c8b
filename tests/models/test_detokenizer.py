import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortloom.models.detokenizer import IncrementalDetokenizer
from ortloom.models.tokenizer import Tokenizer

TEXTS = [
    "Hello there! How are you",
    "a👍🏽b 日本語 é 한국어 🇳🇴 c",
    "def f(x):\n\treturn x",
    "مرحبا",
    "🙂🙃 and 👩‍👩‍👧‍👦",
    "Hello the sea <|im_start|> hat<|im_end|>\n",
    "  two  blanks ",
]


@pytest.fixture(scope="module", params=["byte_level_folder", "byte_fallback_folder"])
def tokenizer(request):
    return Tokenizer.load(request.getfixturevalue(request.param))


def pieces(tokenizer, ids, sizes=(1,), **kwargs):
    detokenizer = IncrementalDetokenizer(tokenizer, **kwargs)
    found, start, turn = [], 0, 0
    while start < len(ids):
        size = sizes[turn % len(sizes)]
        found.append(detokenizer.push(ids[start : start + size]))
        start, turn = start + size, turn + 1
    return found, detokenizer.finish()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sizes", [(1,), (2,), (3, 1), (100,)])
@pytest.mark.parametrize("skip", [True, False])
def test_joined_pieces_are_the_decoded_whole(tokenizer, text, sizes, skip):
    ids = tokenizer.encode(text)
    found, rest = pieces(tokenizer, ids, sizes, skip_special_tokens=skip)
    assert "".join(found) + rest == tokenizer.decode(ids, skip)
    assert rest == ""
    assert all("\ufffd" not in piece for piece in found)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_joined_pieces_are_the_decoded_whole_for_any_text(tokenizer, data):
    text = data.draw(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ids = tokenizer.encode(text)
    found, rest = pieces(tokenizer, ids, sizes)
    assert "".join(found) + rest == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_byte_level_ids_decode_alike(byte_level_folder, data):
    """Also for ids that are no text: the two ways agree where bytes decode one by one."""
    tokenizer = Tokenizer.load(byte_level_folder)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=120))
    found, rest = pieces(tokenizer, ids)
    assert "".join(found) + rest == tokenizer.decode(ids)


def test_an_unfinished_character_waits_and_appears_at_the_end(byte_level_folder):
    tokenizer = Tokenizer.load(byte_level_folder)
    ids = [t for b in "é".encode()[:1] for t in range(tokenizer.vocab_size)
           if tokenizer.token_bytes(t) == bytes([b])][:1]  # fmt: skip
    found, rest = pieces(tokenizer, ids)
    assert found == [""]
    assert rest == "\ufffd"


def test_endless_broken_bytes_do_not_pile_up(byte_level_folder):
    tokenizer = Tokenizer.load(byte_level_folder)
    broken = next(t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"\x80")
    detokenizer = IncrementalDetokenizer(tokenizer)
    text = "".join(detokenizer.push([broken]) for _ in range(500))
    assert len(text) > 480
    assert len(detokenizer._window) <= 65
    assert text + detokenizer.finish() == "\ufffd" * 500


def test_the_first_word_keeps_its_blank_after_a_prompt(byte_fallback_folder):
    tokenizer = Tokenizer.load(byte_fallback_folder)
    hello, sea = tokenizer.encode("Hello")[-1], None
    sea = next(t for t in range(tokenizer.vocab_size) if tokenizer.token_str(t) == "▁sea")
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids=[hello])
    assert detokenizer.push([sea]) == " sea"
    assert IncrementalDetokenizer(tokenizer).push([sea]) == "sea"


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_the_prompt_began_is_finished(byte_level_folder, cut):
    tokenizer = Tokenizer.load(byte_level_folder)
    single = {tokenizer.token_bytes(t): t for t in range(tokenizer.vocab_size - 1, -1, -1)}
    ids = [single[bytes([b])] for b in "x🙂".encode()]
    prompt, output = ids[: 1 + cut], ids[1 + cut :]
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids=prompt)
    assert detokenizer.push(output) == "🙂"


def test_special_tokens_are_joined_without_blanks(byte_level_folder):
    tokenizer = Tokenizer.load(byte_level_folder)
    ids = tokenizer.encode("a<|im_end|><|im_end|><|im_end|>b")
    found, rest = pieces(
        tokenizer, ids, skip_special_tokens=False, spaces_between_special_tokens=False
    )
    assert "".join(found) + rest == "a<|im_end|><|im_end|><|im_end|>b"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_pieces_known_beforehand_are_the_decoded_ones(tokenizer, decoding, data):
    """What a token adds is known without decoding; piece by piece it is what decoding says."""
    text = data.draw(st.text(st.sampled_from("ab \n日é👍\ufffd") | st.characters(codec="utf-8")))
    ids = tokenizer.encode(text)
    ids += data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    split = data.draw(st.integers(0, len(ids)))
    options = {"skip_special_tokens": data.draw(st.booleans()), "prompt_token_ids": ids[:split]}
    options["spaces_between_special_tokens"] = data.draw(st.booleans())
    assert pieces(tokenizer, ids[split:], **options) == pieces(decoding, ids[split:], **options)


@pytest.fixture(scope="module")
def decoding(request, tokenizer):
    """The same tokenizer, which knows no token's text."""
    folder = "byte_level_folder" if "ByteLevel" in tokenizer._kinds else "byte_fallback_folder"
    made = Tokenizer.load(request.getfixturevalue(folder))
    made._joins = False
    return made


def test_most_tokens_are_known_beforehand(tokenizer):
    def whole(token):
        text = tokenizer.token_text(token)
        single_byte = tokenizer.token_str(token).startswith("<0x")
        return not (tokenizer.is_added(token) or single_byte or "\ufffd" in text)

    known = [i for i in range(tokenizer.vocab_size) if tokenizer.inner_text(i)]
    assert known == [i for i in range(tokenizer.vocab_size) if whole(i)]
    assert len(known) > 10
    assert all(tokenizer.inner_text(i) == tokenizer.token_text(i) for i in known)

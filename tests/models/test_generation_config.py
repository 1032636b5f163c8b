import json

import pytest

from ortloom.errors import ConfigError
from ortloom.models.generation_config import GenerationDefaults

FILE = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_new_tokens": 99,
    "eos_token_id": [2, 7, 7, 9],
    "do_sample": True,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(FILE))
    return tmp_path


def test_auto_reads_the_bundle(folder):
    got = GenerationDefaults.resolve(folder, primary_eos_token_ids=(2,))
    assert (got.temperature, got.top_k, got.top_p, got.min_p) == (0.6, 20, 0.9, 0.05)
    assert (got.repetition_penalty, got.max_new_tokens) == (1.1, 99)
    assert got.secondary_eos_token_ids == (7, 9)
    assert "temperature=0.6" in got.describe()


def test_vllm_is_neutral_and_reads_no_ids(folder):
    assert GenerationDefaults.resolve(folder, "vllm") == GenerationDefaults()
    assert GenerationDefaults().describe() == "sampling defaults: neutral"


def test_a_folder_replaces_the_bundle(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_k": 3, "eos_token_id": 5}')
    got = GenerationDefaults.resolve(folder, str(other))
    assert got == GenerationDefaults(top_k=3, secondary_eos_token_ids=(5,))
    with pytest.raises(ConfigError, match="not a folder"):
        GenerationDefaults.resolve(folder, str(tmp_path / "nope"))


@pytest.mark.parametrize("text", [None, "", "{", "[]", '"x"', '{"top_k": "many", "top_p": [1]}'])
def test_a_missing_or_broken_file_is_silent(tmp_path, text, caplog):
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    assert GenerationDefaults.resolve(tmp_path) == GenerationDefaults()
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


def test_overrides_merge_on_top(folder):
    got = GenerationDefaults.resolve(folder, overrides={"top_k": 5, "temperature": None})
    assert (got.top_k, got.temperature, got.top_p) == (5, None, 0.9)
    neutral = GenerationDefaults.resolve(folder, "vllm", {"temperature": 0.2, "eos_token_id": 4})
    assert neutral == GenerationDefaults(temperature=0.2, secondary_eos_token_ids=(4,))


@pytest.mark.parametrize("wrong", [{"top_k": "x"}, {"temperature": True}, {"eos_token_id": ["a"]}])
def test_overrides_of_the_wrong_type_are_refused(folder, wrong):
    with pytest.raises(ConfigError, match="override-generation-config"):
        GenerationDefaults.resolve(folder, overrides=wrong)

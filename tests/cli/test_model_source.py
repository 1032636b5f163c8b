"""Flags about the model's source, and one real export without weights."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ortloom.checkpoint_cache import CheckpointCache
from ortloom.commands.model_files import with_bundle
from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError, ManifestError
from ortloom.exporter.source_variation import SourceVariation, overridden
from ortloom.exporter.sources.dummy import DummyFolder
from ortloom.exporter.sources.open_source import open_source
from ortloom.flags import flag_table
from ortloom.models.manifest import KVGroup, Manifest
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.context_window import ContextWindow


def plan(model, *tokens):
    return make_plan([str(model), *map(str, tokens)], read_environment({}), flag_table())[1]


@pytest.fixture
def exported(monkeypatch):
    """What the bundle cache is asked for; nothing is exported."""
    asked = []

    def bundle(cache, source, options, report, *, paths, bars):
        asked.append((source, dict(options), dict(paths), bars))
        return Path("/bundle")

    monkeypatch.setattr(CheckpointCache, "bundle", bundle)
    return asked


def test_changes_of_a_checkpoint_reach_the_export(checkpoint, exported, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    tokens = [
        "--hf-overrides.rms_norm_eps=0.5",
        "--rope-theta=5000",
        '--rope-scaling={"rope_type": "linear", "factor": 2.0}',
        f"--model-weights={weights}",
        f"--hf-config-path={checkpoint}",
        "--no-use-tqdm-on-load",
        "--load-format=safetensors",
    ]
    with_bundle(plan(checkpoint, *tokens))
    ((source, options, paths, bars),) = exported
    assert source == checkpoint
    assert json.loads(options["hf-overrides"]) == {
        "rms_norm_eps": 0.5,
        "rope_theta": 5000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    assert paths == {"model-weights": weights, "hf-config-path": checkpoint / "config.json"}
    assert not bars


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["--load-format", "dummy"], "--load-format dummy"),
        (["--hf-overrides", '{"a": 1}'], "--hf-overrides"),
        (["--rope-theta", "1e4"], "--rope-theta"),
        (["--model-weights", "w"], "--model-weights"),
        (["--hf-config-path", "."], "--hf-config-path"),
    ],
)
def test_a_finished_bundle_refuses_what_only_an_export_can_do(tmp_path, tokens, text):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"{text}.*finished bundle") as caught:
        with_bundle(plan(tmp_path, *tokens))
    assert caught.value.exit_code == 2


def test_what_names_no_other_form_of_what_is_there_is_told(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    tokens = ["--load-format", "gguf", "--revision", "v1", "--tokenizer-revision", "v2"]
    with_bundle(plan(tmp_path, *tokens))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == [
        "--revision",
        "--tokenizer-revision",
        "--load-format",
    ]
    with_bundle(plan(tmp_path))
    assert capsys.readouterr().err == ""


def test_the_format_named_must_be_that_of_the_files(checkpoint, exported, tmp_path):
    with pytest.raises(ConfigError, match="no GGUF model"):
        with_bundle(plan(checkpoint, "--load-format", "gguf"))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="no safetensors checkpoint"):
        with_bundle(plan(file, "--load-format", "safetensors"))
    with_bundle(plan(file, "--load-format", "gguf"))
    assert len(exported) == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--load-format tensorizer", "'tensorizer' cannot be had here: weights are read as"),
        ("--load-format nonsense", "invalid choice: 'nonsense'"),
        ("--config-format mistral", "'mistral' cannot be had here"),
        ("--tokenizer-mode slow", "'slow' cannot be had here: tokenizers are read from"),
        ("--tokenizer-mode mistral", "'mistral' cannot be had here"),
        ("--hf-config-path /no/such", "does not exist"),
        ("--tokenizer-config /no/such", "is no file"),
        ("--rope-theta -1", "above 0"),
        ("--hf-overrides [1]", "must be a JSON object"),
        ("--model-loader-extra-config.x 1", "'x' is no option of the loader"),
        ("--renderer-num-workers 0", "from 1 to"),
    ],
)
def test_values_that_cannot_be_had(line, text):
    with pytest.raises(ConfigError, match=text) as caught:
        plan("m", *line.split())
    assert caught.value.exit_code == 2


def test_known_loader_options_get_one_line():
    (line,) = plan("m", "--model-loader-extra-config.num_threads", "4").notices
    assert "weights are memory-mapped" in line


@pytest.mark.parametrize(("asked", "longer"), [("1000", True), ("100", False), ("auto", False)])
def test_a_longer_context_is_exported_where_the_user_allows_it(
    checkpoint, exported, asked, longer, capsys
):
    env = read_environment({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    tokens = [str(checkpoint), "--max-model-len", asked]
    with_bundle(make_plan(tokens, env, flag_table())[1])
    options = exported[0][1]
    assert ("hf-overrides" in options) == longer
    assert ("longer than the model's own" in capsys.readouterr().err) == longer
    if longer:
        assert json.loads(options["hf-overrides"]) == {"max_position_embeddings": 1000}


def test_a_tokenizer_must_be_one(checkpoint, exported, tmp_path):
    config = with_bundle(plan(checkpoint, "--tokenizer", checkpoint))
    assert config.model.tokenizer == str(checkpoint)
    with pytest.raises(ManifestError, match=r"has no tokenizer\.json"):
        with_bundle(plan(checkpoint, "--tokenizer", tmp_path))


def test_a_tokenizer_config_of_its_own(checkpoint, tmp_path):
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"eos_token": "<s>", "chat_template": "other"}))
    assert plan("m", "--tokenizer-config", file).config.model.tokenizer_config == str(file)
    tokenizer = Tokenizer.load(checkpoint, file)
    assert tokenizer.eos_token_id == 0
    assert tokenizer.chat_templates == {"default": "other"}


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (["--limit-mm-per-prompt.image", "16"], "0 of image, "),
        (["--limit-mm-per-prompt", '{"images": 2, "video": {"count": 5, "width": 9}}'], "video"),
        (["--limit-mm-per-prompt", '{"audio": {"length": 9}}'], "0 of audio, "),
        (["--limit-mm-per-prompt", '{"audio": 0}'], None),
        (["--language-model-only"], None),
        (["--language-model-only", "--limit-mm-per-prompt.image", "3"], None),
    ],
)
def test_media_that_are_allowed_and_cannot_be_had_are_told(tokens, told):
    notices = plan("m", *tokens).notices
    if told is None:
        assert notices == ()
    else:
        (line,) = notices
        assert told in line


@pytest.mark.parametrize(
    "value", ['{"image": -1}', '{"smell": 1}', '{"image": {"depth": 1}}', '{"image": "x"}', "[1]"]
)
def test_media_limits_that_are_none(value):
    with pytest.raises(ConfigError, match="--limit-mm-per-prompt"):
        plan("m", "--limit-mm-per-prompt", value)


# ---- what the exporter does with it


def test_overrides_merge_and_reach_either_form_of_rope():
    assert overridden({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": None}) == {
        "a": {"b": 9, "c": 2},
        "d": None,
    }
    new = {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}}
    assert overridden(new, {"rope_theta": 1e4})["rope_parameters"]["rope_theta"] == 1e4
    linear = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert overridden(new, linear)["rope_parameters"] == {
        "rope_theta": 5e5,
        "rope_type": "linear",
        "factor": 2.0,
    }
    assert overridden({"rope_theta": 1.0, "rope_scaling": {"a": 1}}, linear) == {
        "rope_theta": 1.0,
        **linear,
    }


def test_weights_and_config_of_other_folders(checkpoint, tmp_path):
    apart, config = tmp_path / "weights", tmp_path / "config.json"
    apart.mkdir()
    shutil.move(checkpoint / "model.safetensors", apart)
    config.write_text(json.dumps({**json.loads((checkpoint / "config.json").read_text()), "x": 1}))
    source = open_source(
        str(checkpoint),
        SourceVariation(weights=str(apart), config=str(config), overrides={"y": 2}),
    )
    assert source.config()["x"] == 1
    assert source.config()["y"] == 2
    assert apart / "model.safetensors" in source.files()
    assert source.rows("model.norm.weight", 0, 2).tolist() == [1.0, 1.0]


def test_dummy_values_do_not_depend_on_how_they_are_read(checkpoint):
    source = DummyFolder(checkpoint)
    name = "model.layers.0.mlp.gate_proj.weight"
    whole = source.rows(name, 0, 256)
    assert whole.shape == (256, 128)
    assert np.array_equal(whole[60:201], source.rows(name, 60, 201))
    assert 0.015 < whole.std() < 0.025
    assert not np.array_equal(whole, source.rows(name.replace("gate", "up"), 0, 256))
    assert source.rows("model.norm.weight", 3, 5).tolist() == [1.0, 1.0]


def test_a_model_without_weights_is_served_from_config_and_tokenizer(checkpoint, tmp_path, capsys):
    """--load-format dummy: by the server's engine, and by the benchmarks as they are published."""
    from ortloom.commands.bench import latency, throughput
    from ortloom.runtime.llm import LLM

    (checkpoint / "model.safetensors").unlink()
    tokens = ["--load-format", "dummy", "--bundle-cache", tmp_path / "cache", "--threads", "1"]
    tokens += ["--hf-overrides.max_position_embeddings=128", "--rope-theta", "5000"]
    tokens += ["--rope-scaling", '{"rope_type": "linear", "factor": 2.0}', "--dtype", "bfloat16"]
    config = with_bundle(plan(checkpoint, *tokens))
    manifest = Manifest.load(Path(config.model.bundle))
    assert manifest.source.format == "dummy"
    assert manifest.architecture.max_position_embeddings == 128
    assert manifest.architecture.rope.theta == 5000.0
    assert manifest.architecture.rope.type == "linear"
    assert manifest.dtypes.weights == "bfloat16"
    again = with_bundle(plan(checkpoint, *tokens))
    assert again.model.bundle == config.model.bundle
    with LLM.from_config(config) as llm:
        (reply,) = llm.generate(["abc"])
        assert len(reply.outputs[0].token_ids) >= 1
    lengths = ["--input-len", "4", "--output-len", "2", "--num-gpu-blocks-override", "64"]
    line = ["--model", *map(str, [checkpoint, *tokens]), *lengths]
    assert latency.run([*line, "--batch-size=2", "--num-iters=1", "--num-iters-warmup=1"]) == 0
    assert "Avg latency: " in capsys.readouterr().out
    assert throughput.run([*line, "--num-prompts", "2"]) == 0
    assert "Total num output tokens:  4" in capsys.readouterr().out


def test_a_context_without_windows_ends_where_the_window_does():
    """--disable-sliding-window"""

    def manifest(*windows):
        groups = [
            KVGroup(id=i, layers=(i,), kv_heads=1, head_dim_k=8, head_dim_v=8, window=window)
            for i, window in enumerate(windows)
        ]

        class Facts:  # of a manifest, what is looked at
            architecture = type("A", (), {"max_position_embeddings": 100})
            kv_groups = groups

        return Facts

    assert ContextWindow.of(manifest(40), False).max_len == 100
    assert ContextWindow.of(manifest(40), True) == ContextWindow(40)
    assert ContextWindow.of(manifest(None), True) == ContextWindow(100)
    assert ContextWindow.of(manifest(400), True).max_len == 100
    mixed = ContextWindow.of(manifest(40, None), True)
    assert mixed.max_len == 100
    assert "caps nothing" in mixed.notices[0]

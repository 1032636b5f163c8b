"""One export as a whole: plan, resources, atomicity, determinism, the check."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from ortloom.errors import (
    InsufficientResources,
    OutputExists,
    ParityFailed,
    SourceInvalid,
    UnsupportedModel,
)
from ortloom.exporter import packed_weights, pipeline
from ortloom.exporter.options import ExportOptions
from ortloom.exporter.plan import plan, require_resources
from ortloom.exporter.progress import JsonProgress, LineProgress, RichProgress, progress_for
from ortloom.exporter.verify import check
from ortloom.models.manifest import Manifest


def hashes(folder):
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def options(source, output, **changes):
    return ExportOptions(source=str(source), output=str(output), **changes)


# --- plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize("quant", [None, "int4", "int8"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_the_plan_knows_the_size_to_the_byte(name, quant, checkpoints, bundles):
    planned = plan(options(checkpoints(name), "unused", quant=quant))
    manifest = Manifest.load(bundles(name, quant))
    size = manifest.weight_bytes("cpu")
    # the file's last tensor is not padded
    assert 0 <= planned.weight_bytes["cpu"] - size < 64 * 1024
    assert planned.weight_bytes["plain"] == planned.weight_bytes["cpu"]
    assert planned.parameters == manifest.architecture.num_parameters
    assert planned.kv_bytes_per_token == manifest.bytes_per_token()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_four_bit_output_layer_is_planned_and_recorded(name, tiny, checkpoints, tmp_path):
    asked = {"quant": "int4", "lm_head_quant": "int4"}
    planned = plan(options(checkpoints(name), "unused", **asked)).weight_bytes["cpu"]
    tiny.run_export(checkpoints(name), tmp_path / "out", **asked)
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.quantization.lm_head_bits == 4
    stored = {tensor.name for file in manifest.weights for tensor in file.tensors}
    assert {"lm_head.weight.u4", "model.embed_tokens.weight.u4"} & stored
    assert 0 <= planned - manifest.weight_bytes("cpu") < 64 * 1024


def test_a_dry_run_needs_the_config_alone_and_no_torch(checkpoints, tmp_path):
    (tmp_path / "config.json").write_bytes((checkpoints("qwen3") / "config.json").read_bytes())
    code = (
        "import sys, time; start = time.monotonic()\n"
        "from ortloom.exporter.pipeline import plan\n"
        "from ortloom.exporter.options import ExportOptions\n"
        f"text = plan(ExportOptions(source={str(tmp_path)!r}, output='x')).lines()\n"
        "assert any('Qwen3ForCausalLM, 2 layers' in line for line in text), text\n"
        "assert not {'torch', 'transformers', 'onnx'} & set(sys.modules)\n"
        "assert time.monotonic() - start < 5\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_disk_and_memory_are_checked_first(checkpoints, tmp_path):
    planned = plan(options(checkpoints("llama"), tmp_path / "out"))
    require_resources(planned, tmp_path / "deep" / "out")
    for field, named in (("disk_bytes", "of disk"), ("memory_bytes", "of memory")):
        huge = msgspec.structs.replace(planned, **{field: 1 << 60})
        with pytest.raises(InsufficientResources, match=named) as caught:
            require_resources(huge, tmp_path / "out")
        assert caught.value.exit_code == 6


# --- the folder -------------------------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes(checkpoints, bundles, tmp_path):
    """Another process, another hash seed, another folder."""
    code = (
        "import sys\n"
        "from ortloom.exporter.pipeline import export\n"
        "from ortloom.exporter.options import ExportOptions\n"
        "from ortloom.exporter.progress import LineProgress\n"
        "for quant in (None, 'int4'):\n"
        "    out = f'{sys.argv[2]}-{quant}'\n"
        "    made = ExportOptions(source=sys.argv[1], output=out, quant=quant)\n"
        "    export(made, LineProgress(sys.stderr))\n"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    out = tmp_path / "out"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(checkpoints("llama")), str(out)],
        env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True,
    )  # fmt: skip
    trees = []
    for quant in (None, "int4"):
        trees.append(hashes(out.with_name(f"out-{quant}")))
        assert trees[-1] == hashes(bundles("llama", quant))
        assert {"graphs/contract.onnx", "weights/model.bin", "manifest.json"} <= set(trees[-1])
    assert trees[0] != trees[1]


def test_nothing_of_this_machine_is_inside(bundles, checkpoints):
    folder = bundles("qwen3")
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".bin":
            data = path.read_bytes()
            assert b"/site-packages/" not in data, path
            assert str(checkpoints("qwen3").parent).encode() not in data, path


def test_an_output_that_exists_is_kept(checkpoints, bundles, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("data")
    for force in (False, True):
        with pytest.raises(OutputExists) as caught:
            pipeline.export(
                options(checkpoints("llama"), out, force=force), LineProgress(sys.stderr)
            )
        assert caught.value.exit_code == 7
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (out / "precious").read_text() == "data"


def test_force_replaces_a_bundle(tiny, checkpoints, bundles, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(bundles("llama"), out)
    first = Manifest.load(out).artefact_id
    with pytest.raises(OutputExists, match="--force"):
        tiny.run_export(checkpoints("llama"), out)
    tiny.run_export(checkpoints("llama"), out, force=True, hub_id="org/name", revision="abc")
    manifest = Manifest.load(out)
    assert (manifest.source.hub_id, manifest.source.revision) == ("org/name", "abc")
    assert manifest.artefact_id != first
    manifest.verify_weights(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_export_cut_short_leaves_nothing(checkpoints, tmp_path):
    class Interrupting(LineProgress):
        def advance(self, amount):
            assert list(tmp_path.glob("out.tmp-*/weights/model.bin"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.export(options(checkpoints("llama"), tmp_path / "out"), Interrupting(sys.stderr))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_target_is_refused(checkpoints, tmp_path):
    with pytest.raises(UnsupportedModel, match="cuda"):
        pipeline.export(
            options(checkpoints("llama"), tmp_path / "out", targets=("cuda",)),
            LineProgress(sys.stderr),
        )


# --- tokenizer and template -------------------------------------------------------------------


def broken(tiny, tmp_path, change):
    folder = tiny.write_checkpoint(tmp_path / "m", tiny.family_config("llama"))
    change(folder)
    with pytest.raises(SourceInvalid) as caught:
        tiny.run_export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    return str(caught.value)


def test_a_missing_tokenizer_is_refused(tiny, tmp_path):
    def change(folder):
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()

    assert "tokenizer" in broken(tiny, tmp_path, change)


def test_a_garbled_tokenizer_is_refused(tiny, tmp_path):
    text = broken(tiny, tmp_path, lambda f: (f / "tokenizer.json").write_text("{}"))
    assert "tokenizer.json cannot be loaded" in text


def test_a_tokenizer_of_another_model_is_refused(tiny, tmp_path):
    def change(folder):
        tree = json.loads((folder / "tokenizer.json").read_text())
        tree["model"]["vocab"]["H"] = 4000
        (folder / "tokenizer.json").write_text(json.dumps(tree))

    assert "ids up to 4000" in broken(tiny, tmp_path, change)


def test_a_broken_template_is_refused(tiny, tmp_path):
    text = broken(tiny, tmp_path, lambda f: (f / "chat_template.jinja").write_text("{% for %}"))
    assert "chat template" in text


def test_a_template_inside_the_tokenizer_config_becomes_a_file(bundles, tiny):
    assert (bundles("llama") / "chat_template.jinja").read_text() == tiny.TEMPLATE
    assert Manifest.load(bundles("llama")).tokenizer.chat_template is not None


# --- check ------------------------------------------------------------------------------------


def test_check_writes_its_figures(tiny, checkpoints, tmp_path):
    out = tmp_path / "out"
    tiny.run_export(checkpoints("mistral"), out, check=True, check_layers=1)
    report = json.loads((out / "report.json").read_text())
    parity = report["parity"]
    assert report["checked"] is True
    assert (parity["layers"], parity["window"]) == (1, 12)
    assert set(parity["targets"]) == {"cpu", "plain"}
    for target in parity["targets"].values():
        assert target["against_transformers"]["relative"] <= parity["tolerance"]
        assert target["against_transformers"]["rows"] == 101
    assert parity["targets"]["cpu"]["scheduled_against_one_shot_max_abs"] == 0
    caches = parity["targets"]["cpu"]["kv_cache_against_float32"]
    assert set(caches) == {"float16", "bfloat16", "int8_per_token_head"}
    for figures in caches.values():
        assert 0 < figures["kl"] < 0.01
        assert figures["top1"] > 0.9
    assert "kv_cache_against_float32" not in parity["targets"]["plain"]
    assert {"cpu", "cpu.kv-float16", "cpu.kv-bfloat16", "cpu.kv-int8"} < set(report["ops"])
    assert Manifest.load(out)


def test_a_failed_check_leaves_nothing(checkpoints, tmp_path, monkeypatch):
    """A weight that is wrong by one part in a thousand on its way into the file."""
    real = packed_weights.packed_job

    def wrong(name, form, shape, rows, blocks):
        if name != "model.layers.1.mlp.down_proj.weight":
            return real(name, form, shape, rows, blocks)
        return real(name, form, shape, lambda *place: rows(*place) * np.float32(1.001), blocks)

    monkeypatch.setattr("ortloom.exporter.graph_build.packed_job", wrong)
    with pytest.raises(ParityFailed, match="logits differ") as caught:
        pipeline.export(
            options(checkpoints("llama"), tmp_path / "out", check=True), LineProgress(sys.stderr)
        )
    assert caught.value.exit_code == 5
    assert list(tmp_path.iterdir()) == []


def test_check_tokens_fit_the_schedule(bundles):
    tokens = check.check_tokens(bundles("llama"), 320)
    assert [len(t) for t in tokens] == [53, 48]


# --- progress ---------------------------------------------------------------------------------


def play(progress):
    progress.phase("trace")
    progress.phase("weights", 3_000_000, "B")
    progress.advance(1_000_000)
    progress.advance(2_000_000)
    progress.note("noted")
    progress.warn("careful")
    progress.close()


def test_lines_are_plain():
    stream = io.StringIO()
    play(LineProgress(stream))
    text = stream.getvalue()
    assert "trace: " in text
    assert "weights ... (3 MB)" in text
    assert "warning: careful" in text
    assert "\x1b" not in text


def test_json_is_one_event_a_line():
    stream = io.StringIO()
    play(JsonProgress(stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["phase", "phase", "progress", "note", "warning", "end"]
    assert events[2] == {"event": "progress", "name": "weights", "done": 3000000, "total": 3000000}


def test_bars_are_for_terminals():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    progress = progress_for(False, stream)
    assert isinstance(progress, RichProgress)
    play(progress)
    assert "weights" in stream.getvalue()
    assert isinstance(progress_for(False, io.StringIO()), LineProgress)
    assert isinstance(progress_for(True, stream), JsonProgress)

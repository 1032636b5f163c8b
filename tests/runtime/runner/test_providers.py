"""Selection: order, every losing reason, and no silent fallback."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ortloom.config import ProviderConfig
from ortloom.errors import ConfigError, ManifestError, ProviderUnavailable
from ortloom.models.manifest import Manifest
from ortloom.runtime.providers import gpu_probe
from ortloom.runtime.providers.plain import PlainProvider
from ortloom.runtime.providers.select import all_providers, select, survey
from ortloom.runtime.session import OrtSession


class Candidate(PlainProvider):
    """A provider whose availability is given."""

    def __init__(self, name: str, reason: str | None) -> None:
        self.name = name
        self._reason = reason

    def available(self, manifest: Manifest | None) -> str | None:
        return self._reason


@pytest.fixture
def manifest(bundle: Path) -> Manifest:
    return Manifest.load(bundle)


def test_order():
    names = [provider.name for provider in all_providers()]
    assert names == ["tensorrt", "tensorrt_ep", "cuda", "cpu", "plain"]


def test_auto_takes_the_first_that_can_and_names_every_loser(manifest):
    candidates = [Candidate("a", "no a here"), Candidate("b", None), Candidate("c", None)]
    report = select(ProviderConfig(), manifest, candidates).report
    assert report.name == "b"
    assert report.losing == {"a": "no a here", "c": "can run, but b comes first"}


def test_an_explicit_choice_never_falls_back(manifest):
    candidates = [Candidate("cpu", "broken; run X"), Candidate("plain", None)]
    with pytest.raises(ProviderUnavailable, match=r"--provider cpu .*broken; run X") as raised:
        select(ProviderConfig(provider="cpu"), manifest, candidates)
    assert raised.value.exit_code == 1
    chosen = select(ProviderConfig(provider="plain"), manifest, candidates)
    assert chosen.provider is candidates[1]


def test_require(manifest):
    candidates = [Candidate("cpu", "broken"), Candidate("plain", None)]
    with pytest.raises(ProviderUnavailable, match=r"cpu.*plain was selected instead: broken"):
        select(ProviderConfig(require="cpu"), manifest, candidates)
    assert select(ProviderConfig(require="plain"), manifest, candidates).report.name == "plain"
    with pytest.raises(ConfigError, match="choose from cpu, plain"):
        select(ProviderConfig(require="tpu"), manifest, candidates)


def test_nothing_can_run(manifest):
    candidates = [Candidate("a", "one"), Candidate("b", "two")]
    with pytest.raises(ProviderUnavailable, match="a: one; b: two"):
        select(ProviderConfig(), manifest, candidates)


def test_gpu_providers_say_all_that_is_missing_and_how_to_mend_it(manifest):
    for provider in all_providers()[:3]:
        reason = provider.available(manifest)
        assert reason is not None
        assert "bundle" in reason
    cuda = all_providers()[2].available(manifest)
    assert "--targets cpu,plain,cuda" in cuda
    assert "pip install 'ortloom[gpu]'" in (gpu_probe.missing_ort_provider("NoSuchEP") or "")
    assert "pip install 'ortloom[x]'" in (gpu_probe.missing_module("no_such_module", "x") or "")
    assert gpu_probe.missing_module("numpy", "x") is None


def test_the_bundle_without_a_graph_loses(manifest):
    bare = msgspec.structs.replace(
        manifest, graphs=tuple(g for g in manifest.graphs if g.variant == "plain")
    )
    selection = select(ProviderConfig(), bare)
    assert selection.report.name == "plain"
    assert "no graph for target cpu" in selection.report.losing["cpu"]


def test_survey_has_a_line_for_each():
    assert [line.split(":")[0] for line in survey()] == [p.name for p in all_providers()]


def test_what_the_session_uses_is_compared_with_what_was_asked(manifest, bundle):
    class Impostor(PlainProvider):
        ort_provider = "NoSuchExecutionProvider"

        def provider_options(self):
            return [("CPUExecutionProvider", {})]

    with pytest.raises(ProviderUnavailable, match="runs on CPUExecutionProvider"):
        OrtSession(Impostor(), manifest, bundle, manifest.graph("plain"), 1)


def test_a_manifest_that_names_other_inputs_is_refused(manifest, bundle):
    graph = manifest.graph("plain")
    wrong = msgspec.structs.replace(
        graph, io=msgspec.structs.replace(graph.io, slot_mapping="slots")
    )
    with pytest.raises(ManifestError, match="slot_mapping"):
        OrtSession(PlainProvider(), manifest, bundle, wrong, 1)


SCRIPT = """
import sys
from ortloom.config import Config, ModelConfig, CacheConfig
from ortloom.errors import OrtloomError
from ortloom.runtime.model_runner import ModelRunner
try:
    model, cache = ModelConfig(bundle=sys.argv[1]), CacheConfig(num_blocks=8)
    runner = ModelRunner.load(Config(model=model, cache=cache))
except OrtloomError as error:
    print(type(error).__name__, error)
    sys.exit(error.exit_code)
runner.warm_up()
print(runner.provider_report.name, runner.provider_report.losing["cpu"], runner.notices)
"""


def load_with(bundle: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_the_library_plain_runs_and_says_so_once(bundle):
    done = load_with(bundle, ORTLOOM_NO_OPS="1", ORTLOOM_CPU_ISA="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plain ")
    assert "ORTLOOM_NO_OPS" in done.stdout
    assert done.stdout.count("slower") == 1


@pytest.mark.parametrize("extra", [{}, {"ORTLOOM_NO_OPS": "1"}])
def test_a_forced_tier_that_cannot_be_had_fails_closed(bundle, extra):
    done = load_with(bundle, ORTLOOM_CPU_ISA="no_such_tier", **extra)
    assert done.returncode == 2
    assert done.stdout.startswith("KernelRefused")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("named", ["absent.so", ".", "text.so", "libc.so.6"])
def test_a_named_library_that_is_none_fails_closed(bundle, named, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    path = named if named == "libc.so.6" else str(tmp_path / named)
    if named == "libc.so.6":  # a real library, without our ops
        maps = Path("/proc/self/maps").read_text().splitlines()
        path = next(line.split()[-1] for line in maps if named in line)
    done = load_with(bundle, ORTLOOM_OPS_LIBRARY=path, ORTLOOM_CPU_ISA="")
    assert done.returncode == 2
    assert done.stdout.startswith("KernelRefused")
    assert path in done.stdout
    assert "Traceback" not in done.stderr

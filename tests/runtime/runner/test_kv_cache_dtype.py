"""`--kv-cache-dtype` from the flag's value to the pools: what is taken, what is refused, sizes, and
that nothing about an int8 cache depends on how requests are scheduled."""

import msgspec
import pytest

from ortloom.config import CacheConfig, Config, ModelConfig, ProviderConfig
from ortloom.errors import ConfigError, ManifestError, ProviderUnavailable
from ortloom.models.manifest import MANIFEST_NAME, Manifest
from ortloom.runtime.kv_cache_dtype import EIGHT_BIT, INT8, REFUSED, parse_kv_cache_dtype
from ortloom.runtime.kv_pools import PoolSpec, pool_specs
from ortloom.runtime.llm import LLM
from ortloom.runtime.model_runner import ModelRunner
from ortloom.runtime.providers.kv_cache import refusal
from ortloom.runtime.providers.select import all_providers, select
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler import Scheduler

PROMPT = [(7 * i * i + 3) % 250 + 1 for i in range(45)]
KINDS = [
    pytest.param("float32", 4 * 64, id="float32"),
    pytest.param("float16", 2 * 64, id="float16"),
    pytest.param("bfloat16", 2 * 64, id="bf16"),
    pytest.param("int8_per_token_head", 64 + 4, id="int8"),
]
"""Value of the flag and bytes of a head's key or value of 64 channels."""


# ---- the flag's values


def test_what_is_taken():
    for value in ("auto", "float32", "float16", "bfloat16", INT8):
        choice = parse_kv_cache_dtype(value)
        assert (choice.dtype, choice.notice) == (value, None)
    assert parse_kv_cache_dtype("int8") == parse_kv_cache_dtype(INT8)
    for value in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head"):
        assert value in EIGHT_BIT
        choice = parse_kv_cache_dtype(value)
        assert choice.dtype == INT8
        assert f"--kv-cache-dtype {value}: the KV cache is stored as {INT8}" in choice.notice
        assert "\n" not in choice.notice


@pytest.mark.parametrize("value", REFUSED)
def test_what_is_refused_says_why_and_what_to_write(value):
    with pytest.raises(ConfigError) as caught:
        parse_kv_cache_dtype(value)
    text = str(caught.value)
    assert f"'{value}' cannot be had here: {REFUSED[value]}" in text
    assert "choose from auto, float32, float16, bfloat16, int8_per_token_head, int8" in text
    assert caught.value.exit_code == 2


def test_an_unknown_value(bundle):
    with pytest.raises(ConfigError, match="'float64' is unknown"):
        parse_kv_cache_dtype("float64")
    with pytest.raises(ConfigError, match="'float64' is unknown"):
        LLM(bundle, kv_cache_dtype="float64", num_blocks=8)


# ---- providers and bundles


def test_each_provider_refuses_by_name_what_it_has_not(bundle):
    manifest = Manifest.load(bundle)
    by_name = {provider.name: provider for provider in all_providers()}
    for name in ("tensorrt", "tensorrt_ep", "cuda"):
        for kind in ("float32", INT8):
            text = refusal(by_name[name], kind)
            assert f"provider {name} has no KV cache of {kind} (it has: float16, bf" in text
            losing = select(ProviderConfig(), manifest, kv_cache_dtype=kind).report.losing
            assert text in losing[name]
        assert refusal(by_name[name], "float16") is refusal(by_name[name], "auto") is None
    for kind in ("float16", "bfloat16", INT8):
        assert "write --kv-cache-dtype auto, or choose another" in refusal(by_name["plain"], kind)
        assert refusal(by_name["cpu"], kind) is None
    assert refusal(by_name["plain"], "float32") is refusal(by_name["plain"], "auto") is None


def test_plain_has_float32_only(make_config):
    for kind in ("auto", "float32"):
        runner = ModelRunner.load(make_config("plain", kv_cache_dtype=kind))
        assert runner.cache_config["cache_dtype"] == "float32"
    with pytest.raises(ProviderUnavailable, match=r"provider plain has no KV cache of float16"):
        ModelRunner.load(make_config("plain", kv_cache_dtype="float16"))


def test_without_the_library_auto_names_both_reasons(make_config, monkeypatch):
    monkeypatch.setenv("ORTLOOM_NO_OPS", "1")
    with pytest.raises(ProviderUnavailable, match=r"ORTLOOM_NO_OPS.*plain has no KV cache of int8"):
        ModelRunner.load(make_config("auto", kv_cache_dtype="int8"))


@pytest.fixture
def old_bundle(bundle, tmp_path):
    """A bundle as it was exported before there were typed pools."""
    folder = tmp_path / "old"
    folder.mkdir()
    for path in bundle.iterdir():
        if path.name != MANIFEST_NAME:
            (folder / path.name).symlink_to(path)
    for name in ("graphs", "weights"):
        (folder / name).unlink()
        (folder / name).mkdir()
        for path in (bundle / name).iterdir():
            (folder / name / path.name).write_bytes(path.read_bytes())
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_bytes((bundle / "tokenizer.json").read_bytes())
    manifest = Manifest.load(bundle)
    plain = manifest.graph("plain")
    io = msgspec.structs.replace(plain, variant="cpu")  # token-major, as cpu graphs were
    manifest = msgspec.structs.replace(manifest, graphs=(io, plain)).sealed()
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return folder


def test_a_bundle_from_before_serves_float32_and_asks_for_an_export_else(old_bundle, driver):
    def config(kind):
        return Config(
            model=ModelConfig(bundle=str(old_bundle)),
            cache=CacheConfig(num_blocks=64, kv_cache_dtype=kind),
            provider=ProviderConfig(provider="cpu", threads=1),
        )

    old = type(driver)(ModelRunner.load(config("auto")))
    a = driver.generate(driver.request(PROMPT, "a", logprobs=5), 8)
    b = old.generate(old.request(PROMPT, "b", logprobs=5), 8)
    assert a == b  # one arithmetic in both layouts
    for kind in ("float16", "int8", "fp8"):
        with pytest.raises(ProviderUnavailable, match=r"it has: float32.*run ortloom export again"):
            ModelRunner.load(config(kind))


# ---- pools


@pytest.mark.parametrize(("kind", "head_bytes"), KINDS)
def test_sizes_count_the_scales(make_config, kind, head_bytes):
    runner = ModelRunner.load(make_config(kv_cache_dtype=kind))
    assert runner.kv_cache_bytes == 65 * 16 * 2 * 2 * 2 * head_bytes
    assert runner.cache_config["cache_dtype"] == kind
    assert runner.notices == []
    budget = ModelRunner.load(
        make_config(kv_cache_dtype=kind, num_blocks=None, kv_cache_memory_bytes=1 << 20)
    )
    assert budget.num_blocks == (1 << 20) // (16 * 2 * 2 * 2 * head_bytes)


def test_scale_pools_are_pools(bundle):
    graph = Manifest.load(bundle).graph("cpu", INT8)
    specs = pool_specs(graph)
    assert len(specs) == 8
    assert specs[0] == PoolSpec("k_cache.0", "k_cache_out.0", "int8", (2, 64))
    assert specs[-1] == PoolSpec("v_scale.1", "v_scale_out.1", "float32", (2,))
    lost = msgspec.structs.replace(graph, io=msgspec.structs.replace(graph.io, v_scale_out=()))
    with pytest.raises(ManifestError, match="does not give back every pool"):
        pool_specs(lost)


def test_an_eight_bit_float_is_noticed_once(make_config):
    runner = ModelRunner.load(make_config(kv_cache_dtype="fp8_e5m2"))
    assert runner.cache_config["cache_dtype"] == INT8
    (line,) = runner.notices
    assert line.startswith("--kv-cache-dtype fp8_e5m2: the KV cache is stored as int8_per_token")


# ---- scheduling


@pytest.mark.parametrize(("kind", "head_bytes"), KINDS[1:])
def test_chunks_and_threads_do_not_change_a_bit(driver, make_config, kind, head_bytes):
    results = []
    for threads, chunks in ((1, [45]), (2, [16, 16, 13]), (1, [1] * 45)):
        runner = ModelRunner.load(make_config(kv_cache_dtype=kind, threads=threads))
        other = type(driver)(runner)
        rows = other.generate(other.request(PROMPT, "r", logprobs=20), 12, chunks)
        results.append([row for row in rows if row.token_id is not None])
    assert results[0] == results[1] == results[2]
    exact = driver.generate(driver.request(PROMPT, "r", logprobs=20), 12)
    assert results[0] != exact  # the cache is really another


def completions(bundle, **options):
    """Tokens and logprobs of prompts with common beginnings, twice, and prompt tokens not computed
    the second time."""
    llm = LLM(bundle, kv_cache_dtype="int8", threads=1, **options)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, logprobs=5, ignore_eos=True)
    prompts = [[*PROMPT[:40], 9, tail] for tail in range(1, 7)] * 2
    try:
        rounds = [llm.generate(prompts, params) for _ in range(2)]
    finally:
        llm.close()
    rows = [[(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in done] for done in rounds]
    return rows, sum(output.num_cached_tokens for output in rounds[1])


def test_prefix_sharing_and_preemption_do_not_change_a_bit_of_int8(bundle, monkeypatch):
    preempted = []
    preempt = Scheduler._preempt

    def counted(scheduler, request):
        preempted.append(request)
        preempt(scheduler, request)

    monkeypatch.setattr(Scheduler, "_preempt", counted)
    apart, cached = completions(bundle, num_blocks=128, enable_prefix_caching=False)
    assert (cached, len(preempted)) == (0, 0)
    shared, cached = completions(bundle, num_blocks=128)
    assert cached >= 12 * 32
    assert not preempted
    cramped, _ = completions(bundle, num_blocks=12, max_model_len=96)
    assert preempted
    assert shared == apart == cramped
    assert shared[0] == shared[1]

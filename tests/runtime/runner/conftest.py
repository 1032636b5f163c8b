"""A tiny real bundle: two PagedAttention layers over random weights, with a real tokenizer."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ortloom.config import CacheConfig, Config, ModelConfig, ProviderConfig, SchedulerConfig
from ortloom.kernels.contract import (
    CANONICAL_LAYOUT,
    DOMAIN,
    DOMAIN_VERSION,
    HEAD_MAJOR_LAYOUT,
    INPUTS,
    POOL_OPS,
    PagedAttentionAttributes,
)
from ortloom.kernels.function_body import paged_attention_function
from ortloom.models.bundle_files import hash_file
from ortloom.models.manifest import (
    MANIFEST_NAME,
    Architecture,
    FileEntry,
    Graph,
    GraphIO,
    KVGroup,
    Manifest,
    Producer,
    Source,
    TensorSpec,
    TokenizerFiles,
)
from ortloom.models.weight_file import WEIGHT_ALIGNMENT, WeightFile, WeightTensor, weight_header
from ortloom.runtime.model_runner import ModelRunner
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import ScheduledRequest, SchedulerOutput

LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, CONTEXT = 2, 4, 2, 64, 96, 512
EOS = 0


def make_tokenizer() -> Tokenizer:
    """Byte-level: an end token, 256 bytes, and a few longer tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<end>": EOS}
    for char in alphabet:
        vocab[char] = len(vocab)
    merges = []
    for left, right in (("t", "r"), ("tr", "u"), ("tru", "e"), ("a", "b"), ("1", "2")):
        merges.append((left, right))
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


VOCAB = 1 + 256 + 5 + 2  # two logits columns more than tokens, as padded checkpoints have


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = {"embed": draw(VOCAB, HIDDEN) * 8, "head": draw(HIDDEN, VOCAB) * 3}
    for i in range(LAYERS):
        weights[f"q{i}"] = draw(HIDDEN, HEADS * HEAD)
        weights[f"k{i}"] = draw(HIDDEN, KV_HEADS * HEAD)
        weights[f"v{i}"] = draw(HIDDEN, KV_HEADS * HEAD)
        weights[f"o{i}"] = draw(HEADS * HEAD, HIDDEN)
        weights[f"up{i}"] = draw(HIDDEN, 128)
        weights[f"down{i}"] = draw(128, HIDDEN)
    angles = np.arange(CONTEXT)[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
    weights["cos"] = np.cos(angles).astype(np.float32)
    weights["sin"] = np.sin(angles).astype(np.float32)
    return weights


CACHES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8_per_token_head": "int8",
}
"""Types of KV cache → element types of the pools."""

_GIVEN = {*INPUTS[:11]}  # up to slot_mapping; no sinks, no norms


def _nodes(io: GraphIO, pools: str, layout: str) -> list[onnx.NodeProto]:
    nodes = [helper.make_node("Gather", ["embed", io.input_ids], ["h0"])]
    for i in range(LAYERS):
        for name in "qkv":
            nodes.append(helper.make_node("MatMul", [f"h{i}", f"{name}{i}"], [f"{name}_{i}"]))
        scales = [pool[i : i + 1] for pool in (io.k_scale, io.v_scale)]
        scales_out = [pool[i : i + 1] for pool in (io.k_scale_out, io.v_scale_out)]
        nodes.append(
            helper.make_node(
                POOL_OPS[pools],
                [f"q_{i}", f"k_{i}", f"v_{i}", io.k_cache[i], io.v_cache[i], io.cu_seqlens,
                 io.past_seqlens, io.block_table, "cos", "sin", io.slot_mapping,
                 *(["", "", "", *scales[0], *scales[1]] if io.k_scale else [])],
                [f"att{i}", io.k_cache_out[i], io.v_cache_out[i], *scales_out[0], *scales_out[1]],
                domain=DOMAIN, num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1,
                kv_layout=layout,
            )
        )  # fmt: skip
        nodes += [
            helper.make_node("MatMul", [f"att{i}", f"o{i}"], [f"o_{i}"]),
            helper.make_node("Add", [f"h{i}", f"o_{i}"], [f"m{i}"]),
            helper.make_node("MatMul", [f"m{i}", f"up{i}"], [f"u{i}"]),
            helper.make_node("Relu", [f"u{i}"], [f"r{i}"]),
            helper.make_node("MatMul", [f"r{i}", f"down{i}"], [f"d{i}"]),
            helper.make_node("Add", [f"m{i}", f"d{i}"], [f"h{i + 1}"]),
        ]
    nodes.append(helper.make_node("Gather", [f"h{LAYERS}", io.logits_indices], ["last"]))
    nodes.append(helper.make_node("MatMul", ["last", "head"], [io.logits]))
    return nodes


def _specs(io: GraphIO, kind: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    pool = ("num_blocks", "block_size", KV_HEADS, HEAD)
    inputs = [
        TensorSpec(name=io.input_ids, dtype="int64", shape=("T",)),
        TensorSpec(name=io.positions, dtype="int64", shape=("T",)),
        TensorSpec(name=io.cu_seqlens, dtype="int32", shape=("R1",)),
        TensorSpec(name=io.past_seqlens, dtype="int32", shape=("R",)),
        TensorSpec(name=io.block_table, dtype="int32", shape=("R", "M")),
        TensorSpec(name=io.slot_mapping, dtype="int32", shape=("T",)),
        TensorSpec(name=io.logits_indices, dtype="int64", shape=("N",)),
    ]
    pools = [*io.k_cache, *io.v_cache]
    inputs += [TensorSpec(name=n, dtype=kind, shape=pool) for n in pools]
    scales = [*io.k_scale, *io.v_scale]
    inputs += [TensorSpec(name=n, dtype="float32", shape=pool[:3]) for n in scales]
    outputs = [TensorSpec(name=io.logits, dtype="float32", shape=("N", VOCAB))]
    back = [*io.k_cache_out, *io.v_cache_out]
    outputs += [TensorSpec(name=n, dtype=kind, shape=pool) for n in back]
    scales_back = [*io.k_scale_out, *io.v_scale_out]
    outputs += [TensorSpec(name=n, dtype="float32", shape=pool[:3]) for n in scales_back]
    return tuple(inputs), tuple(outputs)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind = (
        TensorProto.FLOAT
        if spec.dtype == "float32"
        else TensorProto.DataType.Value(spec.dtype.upper())
    )
    return helper.make_tensor_value_info(spec.name, kind, list(spec.shape))


def _entry(folder: Path, path: str) -> FileEntry:
    full = folder / path
    return FileEntry(path=path, size=full.stat().st_size, sha256=hash_file(full))


def write_bundle(folder: Path) -> Path:
    """The bundle, with a cpu graph for each type of KV cache and a plain one."""
    (folder / "graphs").mkdir(parents=True)
    (folder / "weights").mkdir()
    weights = _weights()
    tensors, initializers, blob = [], [], bytearray(weight_header(len(weights)))
    for name, array in weights.items():
        data = array.tobytes()
        location = {"location": "weights/model.bin", "offset": len(blob), "length": len(data)}
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        proto.data_location = TensorProto.EXTERNAL
        for key, value in location.items():
            proto.external_data.add(key=key, value=str(value))
        initializers.append(proto)
        tensors.append(
            WeightTensor(
                name=name, dtype="float32", shape=array.shape, offset=len(blob), length=len(data)
            )
        )
        blob += data + bytes(-len(data) % WEIGHT_ALIGNMENT)
    (folder / "weights/model.bin").write_bytes(blob)
    make_tokenizer().save(str(folder / "tokenizer.json"))

    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    graphs = []
    for variant, cache in [*(("cpu", name) for name in CACHES), ("plain", "float32")]:
        names = ["k_cache", "v_cache"]
        names += ["k_scale", "v_scale"] if CACHES[cache] == "int8" else []
        both = [*names, *(f"{name}_out" for name in names)]
        io = GraphIO(**{name: tuple(f"{name}.{i}" for i in range(LAYERS)) for name in both})
        inputs, outputs = _specs(io, CACHES[cache])
        layout = HEAD_MAJOR_LAYOUT if variant == "cpu" else CANONICAL_LAYOUT
        graph = helper.make_graph(
            _nodes(io, CACHES[cache], layout),
            "tiny",
            [_value(s) for s in inputs],
            [_value(s) for s in outputs],
            initializers,
        )
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        if variant == "plain":
            attributes = PagedAttentionAttributes(HEADS, KV_HEADS, do_rotary=1)
            present = tuple(name in _GIVEN for name in INPUTS)
            body = paged_attention_function(attributes, present, opset=21)
            model.functions.append(body)
            for node in model.graph.node:
                if node.domain == DOMAIN:
                    node.overload = body.overload
        path = f"graphs/{variant}-{cache}.onnx"
        (folder / path).write_bytes(model.SerializeToString())
        imports = tuple(sorted((o.domain, o.version) for o in model.opset_import))
        graphs.append(
            Graph(
                variant=variant, file=_entry(folder, path), io=io, inputs=inputs, outputs=outputs,
                opset_imports=imports, kv_cache_dtype=cache, kv_layout=layout,
            )
        )  # fmt: skip
    manifest = Manifest(
        producer=Producer(version="0"),
        source=Source(name="tiny", format="safetensors"),
        architecture=Architecture(
            class_name="Tiny", model_type="tiny", num_layers=LAYERS, hidden_size=HIDDEN,
            num_heads=HEADS, vocab_size=VOCAB, max_position_embeddings=CONTEXT,
            num_parameters=sum(w.size for w in weights.values()), tied_embeddings=False,
            eos_token_ids=(EOS,),
        ),
        graphs=tuple(graphs),
        kv_groups=(
            KVGroup(
                id=0, layers=tuple(range(LAYERS)), kv_heads=KV_HEADS, head_dim_k=HEAD,
                head_dim_v=HEAD,
            ),
        ),
        weights=(
            WeightFile(
                file=_entry(folder, "weights/model.bin"), variants=("cpu", "plain"),
                tensors=tuple(tensors),
            ),
        ),
        tokenizer=TokenizerFiles(tokenizer=_entry(folder, "tokenizer.json")),
    )  # fmt: skip
    (folder / MANIFEST_NAME).write_bytes(manifest.sealed().to_bytes())
    return folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle") / "tiny")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


ConfigMaker = Callable[..., Config]


@pytest.fixture(scope="session")
def make_config(bundle: Path) -> ConfigMaker:
    def make(provider: str = "cpu", **model: object) -> Config:
        cache = {k: model.pop(k) for k in list(model) if k in CacheConfig.__struct_fields__}
        threads = model.pop("threads", 1)
        cache.setdefault("num_blocks", 64)
        return Config(
            model=ModelConfig(bundle=str(bundle), **model),
            cache=CacheConfig(**cache),
            scheduler=SchedulerConfig(max_num_seqs=16),
            provider=ProviderConfig(provider=provider, threads=threads),
        )

    return make


@pytest.fixture(scope="session")
def runner(make_config: ConfigMaker) -> ModelRunner:
    return ModelRunner.load(make_config())


class Driver:
    """A scheduler of one line: gives each request its own blocks and runs its tokens in chunks."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._free = list(range(runner.num_blocks, 0, -1))

    def request(self, prompt: list[int], name: str = "r", **sampling: object) -> Request:
        params = SamplingParams(**{"temperature": 0.0, **sampling})
        digest = hashlib.sha256(json.dumps([name, prompt]).encode()).hexdigest()[:8]
        request = Request(f"{name}-{digest}", prompt, params, 10_000)
        request.seed = params.seed or 0
        return request

    def chunk(self, request: Request, count: int) -> ScheduledRequest:
        start = request.num_computed_tokens
        end = start + count
        while len(request.block_ids) * self.runner.block_size < end:
            request.block_ids.append(self._free.pop())
        samples = end == request.num_tokens
        return ScheduledRequest(request, start, count, samples, request.block_ids)

    def step(self, *items: ScheduledRequest) -> list:
        rows = self.runner.execute(SchedulerOutput(list(items))).rows
        for item, row in zip(items, rows, strict=True):
            item.request.num_computed_tokens = item.start + item.num_tokens
            if row.token_id is not None:
                item.request.token_ids.append(row.token_id)
        return rows

    def generate(self, request: Request, new_tokens: int, chunks: list[int] | None = None) -> list:
        """Run to `new_tokens` outputs; the prompt in the given chunk sizes."""
        rows = []
        for count in chunks or [request.num_tokens]:
            rows += self.step(self.chunk(request, count))
        while request.num_output_tokens < new_tokens:
            rows += self.step(self.chunk(request, 1))
        self.free(request)
        return rows

    def free(self, request: Request) -> None:
        self._free += reversed(request.block_ids)
        self.runner.remove(request.request_id)


@pytest.fixture
def driver(runner: ModelRunner) -> Driver:
    return Driver(runner)

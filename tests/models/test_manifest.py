"""The manifest: schema, canonical bytes, and what a changed bundle is told."""

import json
from typing import Literal, get_args

import msgspec
import pytest

from ortloom.errors import ManifestError
from ortloom.models import bundle_files, weight_file
from ortloom.models import manifest as m


def entry(root, path, data):
    full = root / path
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(data)
    return m.FileEntry(path=path, size=len(data), sha256=bundle_files.hash_file(full))


def make(root):
    data = weight_file.weight_header(2).ljust(3 * weight_file.WEIGHT_ALIGNMENT, b"\1")
    tensors = tuple(
        weight_file.WeightTensor(
            name=name,
            dtype="float32",
            shape=(4, 4),
            offset=(i + 1) * weight_file.WEIGHT_ALIGNMENT,
            length=64,
        )
        for i, name in enumerate("ab")
    )
    io = m.GraphIO(
        k_cache=("k_cache.0",), v_cache=("v_cache.0",),
        k_cache_out=("k_cache_out.0",), v_cache_out=("v_cache_out.0",),
    )  # fmt: skip
    graphs = tuple(
        m.Graph(
            variant=variant,
            file=entry(root, f"graphs/{variant}.onnx", variant.encode()),
            io=io,
            inputs=(m.TensorSpec(name="input_ids", dtype="int64", shape=("T",)),),
            outputs=(m.TensorSpec(name="logits", dtype="float32", shape=("N", 320)),),
            opset_imports=(("ai.onnx", 23), ("ortloom", 1)),
            ops=(("ortloom::PagedAttention", 1),),
        )
        for variant in ("contract", "cpu")
    )
    made = m.Manifest(
        producer=m.Producer(version="0.1.0", packages=(("torch", "2.13.0"),)),
        source=m.Source(name="tiny", format="safetensors", hub_id="org/tiny", revision="abc"),
        architecture=m.Architecture(
            class_name="LlamaForCausalLM", model_type="llama", num_layers=1, hidden_size=128,
            num_heads=4, vocab_size=320, max_position_embeddings=256, num_parameters=32,
            tied_embeddings=True, eos_token_ids=(2,),
        ),
        graphs=graphs,
        kv_groups=(
            m.KVGroup(id=0, layers=(0,), kv_heads=2, head_dim_k=64, head_dim_v=64, window=12,
                      kind="sliding"),
        ),
        weights=(
            weight_file.WeightFile(
                file=entry(root, "weights/model.bin", data), variants=("cpu",), tensors=tensors
            ),
        ),
        tokenizer=m.TokenizerFiles(tokenizer=entry(root, "tokenizer.json", b"{}")),
    ).sealed()  # fmt: skip
    (root / m.MANIFEST_NAME).write_bytes(made.to_bytes())
    return made


def rewrite(root, change):
    path = root / m.MANIFEST_NAME
    tree = json.loads(path.read_bytes())
    change(tree)
    path.write_text(json.dumps(tree))


def refused(root, *parts):
    with pytest.raises(ManifestError) as caught:
        m.Manifest.load(root)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_code == 1


def test_round_trip(tmp_path):
    made = make(tmp_path)
    loaded = m.Manifest.load(tmp_path)
    assert loaded == made
    assert loaded.to_bytes() == made.to_bytes() == (tmp_path / m.MANIFEST_NAME).read_bytes()
    loaded.verify_weights(tmp_path)


def test_bytes_are_canonical(tmp_path):
    data = make(tmp_path).to_bytes()
    tree = json.loads(data)
    assert data == (json.dumps(tree, sort_keys=True, indent=2) + "\n").encode()
    assert data.endswith(b"}\n")

    def keys_sorted(node):
        if isinstance(node, dict):
            assert list(node) == sorted(node)
            node = list(node.values())
        if isinstance(node, list):
            for child in node:
                keys_sorted(child)

    keys_sorted(tree)


def walk(struct, seen):
    """Every struct class reachable from one, through tuples and unions."""
    if struct in seen:
        return
    seen.add(struct)
    for field in msgspec.structs.fields(struct):
        stack = [field.type]
        while stack:
            kind = stack.pop()
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                walk(kind, seen)
            elif getattr(kind, "__origin__", None) is not Literal:
                stack += get_args(kind)


def test_every_part_is_frozen_and_refuses_unknown_fields():
    seen = set()
    walk(m.Manifest, seen)
    assert {m.Source, m.Graph, m.GraphIO, m.KVGroup, weight_file.WeightTensor, m.Engine} <= seen
    for struct in seen:
        config = struct.__struct_config__
        assert config.frozen, struct
        assert config.forbid_unknown_fields, struct


@pytest.mark.parametrize(
    ("field", "empty"),
    [
        ("inputs_embeds", None),
        ("inputs_embeds_mask", None),
        ("k_scale", ()),
        ("v_scale", ()),
        ("k_scale_out", ()),
        ("v_scale_out", ()),
        ("state_pools", ()),
        ("state_pools_out", ()),
        ("state_slots", None),
        ("lora_a_pools", ()),
        ("lora_b_pools", ()),
        ("adapter_ids", None),
        ("draft_hidden_states", None),
        ("hidden_states_out", None),
        ("positions_rows", 1),
    ],
)
def test_what_later_graphs_need_is_reserved(field, empty, tmp_path):
    """A graph without the optional part has it empty; one with it round-trips."""
    assert getattr(m.GraphIO(), field) == empty
    filled = 3 if empty == 1 else ("name",) if empty == () else "name"
    made = make(tmp_path)
    io = msgspec.structs.replace(made.graphs[0].io, **{field: filled})
    graph = msgspec.structs.replace(made.graphs[0], io=io)
    changed = msgspec.structs.replace(made, graphs=(graph, *made.graphs[1:])).sealed()
    assert getattr(m.Manifest.from_bytes(changed.to_bytes()).graphs[0].io, field) == filled


def test_a_manifest_from_before_typed_pools_keeps_its_id(tmp_path):
    made = make(tmp_path)
    tree = json.loads(made.to_bytes())
    for graph in tree["graphs"]:
        assert not {"kv_cache_dtype", "kv_layout"} & set(graph)
        assert not {"k_scale_out", "v_scale_out"} & set(graph["io"])
    loaded = m.Manifest.from_bytes(made.to_bytes())
    assert loaded.artefact_id == made.artefact_id
    assert {(g.kv_cache_dtype, g.kv_layout) for g in loaded.graphs} == {("float32", "NB,BS,H,D")}


def test_a_variant_may_have_a_graph_for_each_type_of_kv_cache(tmp_path):
    made = make(tmp_path)
    cpu = made.graph("cpu")
    half = msgspec.structs.replace(
        cpu,
        file=msgspec.structs.replace(cpu.file, path="graphs/half.onnx"),
        kv_cache_dtype="float16",
        kv_layout="NB,H,BS/16,D,16|NB,H,BS,D",
    )
    made = msgspec.structs.replace(made, graphs=(half, *made.graphs)).sealed()
    loaded = m.Manifest.from_bytes(made.to_bytes())
    assert loaded == made
    assert loaded.kv_cache_dtypes("cpu") == ("float16", "float32")
    assert loaded.kv_cache_dtypes("cuda") == ()
    assert loaded.graph("cpu").file.path == "graphs/cpu.onnx"
    assert loaded.graph("cpu", "float16") == half
    with pytest.raises(
        ManifestError,
        match=r"'contract' with a KV cache of float16 \(it has: float32\)",
    ):
        loaded.graph("contract", "float16")


def test_the_source_may_name_its_origin(tmp_path):
    loaded = make(tmp_path)
    assert (loaded.source.hub_id, loaded.source.revision) == ("org/tiny", "abc")


def test_figures(tmp_path):
    made = make(tmp_path)
    assert made.bytes_per_token() == 2 * (64 + 64) * 4
    assert made.weight_bytes("cpu") == 3 * weight_file.WEIGHT_ALIGNMENT
    assert made.weight_bytes("plain") == 0
    assert made.graph("cpu").file.path == "graphs/cpu.onnx"
    with pytest.raises(
        ManifestError, match=r"no graph for target 'cuda' \(it has: contract, cpu\)"
    ):
        made.graph("cuda")


def test_engines_are_outside_the_artefact_id(tmp_path):
    made = make(tmp_path)
    engine = m.Engine(provider="tensorrt", device="sm_90", key="k")
    assert msgspec.structs.replace(made, engines=(engine,)).sealed().artefact_id == made.artefact_id


# --- what is refused --------------------------------------------------------------------------


def test_no_bundle(tmp_path):
    refused(tmp_path / "nowhere", "nowhere", "does not exist")
    refused(tmp_path, "not a bundle", m.MANIFEST_NAME)
    (tmp_path / m.MANIFEST_NAME).write_bytes(b"\xff{")
    refused(tmp_path, "not valid JSON")
    (tmp_path / m.MANIFEST_NAME).write_text("[]")
    refused(tmp_path, "not a JSON object")


def test_other_versions_are_told_apart(tmp_path):
    make(tmp_path)
    rewrite(tmp_path, lambda t: t.update(schema_version=2))
    refused(tmp_path, "schema version 2", "reads version 1", "export it again")
    make(tmp_path)
    rewrite(tmp_path, lambda t: t.update(op_contract_version=9))
    refused(tmp_path, "op contract 9", "export it again")


def test_a_field_that_does_not_fit_is_named(tmp_path):
    make(tmp_path)
    rewrite(tmp_path, lambda t: t["architecture"].update(num_layers="one"))
    refused(tmp_path, "architecture.num_layers")
    make(tmp_path)
    rewrite(tmp_path, lambda t: t.update(surprise=1))
    refused(tmp_path, "surprise")


def test_a_changed_manifest_is_noticed(tmp_path):
    make(tmp_path)
    rewrite(tmp_path, lambda t: t["architecture"].update(vocab_size=321))
    refused(tmp_path, "changed after export")


@pytest.mark.parametrize("path", ["graphs/cpu.onnx", "tokenizer.json"])
def test_changed_small_files_are_noticed(tmp_path, path):
    make(tmp_path)
    data = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    refused(tmp_path, path, "changed after export")
    (tmp_path / path).write_bytes(data + b"x")
    refused(tmp_path, path, "bytes")
    (tmp_path / path).unlink()
    refused(tmp_path, path, "missing")


def test_weights_are_checked_by_size_and_header_and_on_request_by_content(tmp_path):
    made = make(tmp_path)
    path = tmp_path / "weights/model.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    loaded = m.Manifest.load(tmp_path)  # contents are not read
    with pytest.raises(ManifestError, match=r"weights/model\.bin.*changed"):
        loaded.verify_weights(tmp_path)
    data[0] ^= 1
    path.write_bytes(data)
    refused(tmp_path, "weights/model.bin", "header")
    path.write_bytes(data[:-1])
    refused(tmp_path, "weights/model.bin", f"the manifest says {made.weights[0].file.size}")


def test_a_tensor_outside_its_file_is_noticed(tmp_path):
    made = make(tmp_path)
    far = msgspec.structs.replace(
        made.weights[0].tensors[0], offset=9 * weight_file.WEIGHT_ALIGNMENT
    )
    weight = msgspec.structs.replace(made.weights[0], tensors=(far, *made.weights[0].tensors[1:]))
    changed = msgspec.structs.replace(made, weights=(weight,)).sealed()
    (tmp_path / m.MANIFEST_NAME).write_bytes(changed.to_bytes())
    refused(tmp_path, "tensor 'a' lies outside")


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "graphs/../../secret", "a\\b"])
def test_paths_that_leave_the_bundle_are_refused(tmp_path, path):
    make(tmp_path)

    def change(tree):
        tree["tokenizer"]["tokenizer"]["path"] = path

    made = json.loads((tmp_path / m.MANIFEST_NAME).read_bytes())
    change(made)
    sealed = msgspec.convert(made, m.Manifest).sealed()
    (tmp_path / m.MANIFEST_NAME).write_bytes(sealed.to_bytes())
    refused(tmp_path, "outside the bundle")


def test_a_link_that_leaves_the_bundle_is_refused(tmp_path):
    root = tmp_path / "bundle"
    root.mkdir()
    make(root)
    outside = tmp_path / "outside"
    outside.write_bytes((root / "tokenizer.json").read_bytes())
    (root / "tokenizer.json").unlink()
    (root / "tokenizer.json").symlink_to(outside)
    refused(root, "outside the bundle")


def test_links_in_a_circle_are_refused(tmp_path):
    make(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").symlink_to("tokenizer.json")
    refused(tmp_path, "leads nowhere")

"""Weights in a file: read through the library's own map of it, and equal to weights handed in."""

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from op_runners import session_options

from ortloom.kernels import load
from ortloom.kernels.contract import DOMAIN, DOMAIN_VERSION
from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR, PackedAttributes
from ortloom.kernels.packing import pack_blocks, pack_codes

HUGE_PAGE = 2 << 20
TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TYPES = {"uint8": TensorProto.UINT8, "float16": TensorProto.FLOAT16}
AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ \S+\s+(.*)$")


def weights(rows):
    attributes = PackedAttributes("u8", N=rows, K=1024, block_size=32)
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 256, (rows, 1024), dtype=np.uint8)
    scales = generator.random((rows, 32)).astype(np.float16)
    return attributes, {"weight": pack_codes(codes, "u8"), "scales": pack_blocks(scales)}


def model(attributes, arrays, location):
    """PackedLinear over `arrays`: tensors of the file `location`, or inputs if that is None."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, attributes.K])]
    tensors, offset = [], 0
    for name, array in arrays.items():
        kind = TYPES[array.dtype.name]
        if location is None:
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
            continue
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        offset += -(-array.nbytes // 65536) * 65536
    node = helper.make_node(
        PACKED_LINEAR,
        ["x", *(name if name in arrays else "" for name in LINEAR_INPUTS[1:])],
        ["y"],
        domain=DOMAIN,
        **{key: value for key, value in asdict(attributes).items() if value not in ("", 0)},
    )
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    graph = helper.make_graph([node], "one", inputs, outputs, initializer=tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write(folder, arrays, name="weights.bin"):
    with (folder / name).open("wb") as file:
        for array in arrays.values():
            file.write(array.tobytes())
            file.write(bytes(-array.nbytes % 65536))
    return folder / name


def session_of(made, folder):
    path = folder / "model.onnx"
    onnx.save(made, path)
    options = session_options()
    load.register(options)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def own_maps(file):
    """(start, flags) of the areas that map a file from its begin to its end, shared."""
    found = []
    area = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        match = AREA.match(line)
        if match:
            start, end, rights, offset, name = match.groups()
            whole = int(end, 16) - int(start, 16) >= file.stat().st_size
            mine = name.strip() == str(file) and rights == "r--s" and offset.strip("0") == ""
            area = int(start, 16) if mine and whole else None
        elif area is not None and line.startswith("VmFlags:"):
            found.append((area, line.split()[1:]))
    return found


def test_weights_of_a_file_are_read_through_one_map_that_suits_huge_pages(tmp_path):
    attributes, arrays = weights(4096)
    file = write(tmp_path, arrays)
    x = np.random.default_rng(4).standard_normal((3, attributes.K), dtype=np.float32)
    (wanted,) = session_of(model(attributes, arrays, None), tmp_path).run(None, {"x": x, **arrays})

    first = session_of(model(attributes, arrays, file.name), tmp_path)
    second = session_of(model(attributes, arrays, file.name), tmp_path)
    ((start, flags),) = own_maps(file)
    assert start % HUGE_PAGE == 0
    if TRANSPARENT.exists():  # a kernel without huge pages refuses them
        assert "hg" in flags
    for session in (first, second):
        (got,) = session.run(None, {"x": x})
        assert np.array_equal(got, wanted)

    del first, session
    assert len(own_maps(file)) == 1  # the other session reads it still
    assert np.array_equal(second.run(None, {"x": x})[0], wanted)
    del second
    assert own_maps(file) == []


def test_a_file_that_is_replaced_keeps_the_session_s_own_weights(tmp_path):
    attributes, arrays = weights(4096)
    file = write(tmp_path, arrays)
    x = np.random.default_rng(4).standard_normal((1, attributes.K), dtype=np.float32)
    old = session_of(model(attributes, arrays, file.name), tmp_path)
    (before,) = old.run(None, {"x": x})
    other = {**arrays, "weight": arrays["weight"] ^ np.uint8(1)}
    write(tmp_path, other, "new.bin").replace(file)
    new = session_of(model(attributes, other, file.name), tmp_path)
    (after,) = new.run(None, {"x": x})
    assert np.array_equal(old.run(None, {"x": x})[0], before)
    assert not np.array_equal(after, before)
    expected = session_of(model(attributes, other, None), tmp_path).run(None, {"x": x, **other})
    assert np.array_equal(after, expected[0])


@pytest.mark.parametrize("rows", [16, 1024])
def test_small_files_are_left_to_onnxruntime(tmp_path, rows):
    attributes, arrays = weights(rows)
    file = write(tmp_path, arrays)
    assert file.stat().st_size < HUGE_PAGE
    session = session_of(model(attributes, arrays, file.name), tmp_path)
    assert own_maps(file) == []
    x = np.ones((1, attributes.K), dtype=np.float32)
    assert np.isfinite(session.run(None, {"x": x})[0]).all()


def test_weights_that_are_handed_in_may_change_from_call_to_call(tmp_path):
    attributes, arrays = weights(64)
    session = session_of(model(attributes, arrays, None), tmp_path)
    x = np.ones((1, attributes.K), dtype=np.float32)
    (first,) = session.run(None, {"x": x, **arrays})
    doubled = {**arrays, "scales": arrays["scales"] * np.float16(2)}
    (second,) = session.run(None, {"x": x, **doubled})
    assert np.array_equal(second, 2 * first)

"""A call that breaks the contract is refused with a clear text, and nothing was written."""

import numpy as np
import onnxruntime as ort
import pytest

from ortloom.kernels.contract import PagedAttentionAttributes

PLAIN = PagedAttentionAttributes(6, 2)
ROTARY = PagedAttentionAttributes(6, 2, do_rotary=1)


@pytest.fixture
def refused(run_op, steps, request_of):
    def check(text, edit, attributes=PLAIN, **kinds):
        inputs = steps(1).step(attributes, [request_of(0, 3), request_of(20, 2)], **kinds)
        edit(inputs)
        before = inputs["key_cache"].copy()
        session = run_op.session(attributes, inputs)
        binding = session.io_binding()
        values = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("key_cache_out", values["key_cache"])
        binding.bind_ortvalue_output("value_cache_out", values["value_cache"])
        binding.bind_output("output")
        with pytest.raises(Exception, match=text):
            session.run_with_iobinding(binding)
        assert np.array_equal(inputs["key_cache"], before)

    return check


def put(name, index, value):
    def edit(inputs):
        inputs[name][index] = value

    return edit


def replace(name, change):
    def edit(inputs):
        inputs[name] = np.ascontiguousarray(change(inputs[name]))

    return edit


CU = "cumulative_sequence_length"


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        (rf"{CU}\[0\] = 1, but must be 0", put(CU, 0, 1)),
        (rf"{CU}\[2\] = 2 is below the entry before it, 3", put(CU, 2, 2)),
        (rf"{CU} ends at 4, but query has 5", put(CU, 2, 4)),
        (r"past_seqlens\[1\] = -1 is negative", put("past_seqlens", 1, -1)),
        (r"request 1 has 1002 tokens, but .* covers 48", put("past_seqlens", 1, 1000)),
        (r"block_table\[1, 0\] = 5 is outside -1 .. 4", put("block_table", (1, 0), 5)),
        (r"block_table\[0, 2\] = -2 is outside", put("block_table", (0, 2), -2)),
        (r"slot_mapping\[4\] = 80 is outside -1 .. 79", put("slot_mapping", 4, 80)),
        (r"slot_mapping\[0\] = -2 is outside", put("slot_mapping", 0, -2)),
    ],
)
def test_wrong_indices(refused, text, edit):
    refused(text, edit)


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        (r"key has shape \[4, 128\]", replace("key", lambda a: a[:4])),
        (r"query has shape \[5, 320\].*num_heads", replace("query", lambda a: a[:, :320])),
        (r"value_cache has shape .*as in key_cache", replace("value_cache", lambda a: a[:4])),
        (r"slot_mapping has shape \[4\]", replace("slot_mapping", lambda a: a[:4])),
        (r"block_table has shape \[1, 3\]", replace("block_table", lambda a: a[:1])),
        (rf"{CU} has shape \[2\]", replace(CU, lambda a: a[:2])),
    ],
)
def test_wrong_shapes(refused, text, edit):
    refused(text, edit)


PACKED_WIDTH = r"axis 1 must be 640 \(\(num_heads \+ 2 \* kv_num_heads\) \* head size: packed QKV"


@pytest.mark.parametrize(
    ("text", "absent", "width"),
    [
        ("key and value must be given together, or neither", ["key"], 384),
        ("key and value must be given together, or neither", ["value"], 640),
        (rf"query has shape \[5, 384\], but {PACKED_WIDTH}", ["key", "value"], 384),
        (rf"query has shape \[5, 768\], but {PACKED_WIDTH}", ["key", "value"], 768),
        (r"query has shape \[5, 640\], but axis 1 must be 384 \(num_heads \*", [], 640),
    ],
)
def test_wrong_packing(refused, text, absent, width):
    def edit(inputs):
        for name in absent:
            del inputs[name]
        inputs["query"] = np.zeros((5, width), dtype=np.float32)

    refused(text, edit)


def pools(block_size, heads, head_size):
    def edit(inputs):
        for name in ("key_cache", "value_cache"):
            inputs[name] = np.zeros((5, block_size, heads, head_size), dtype=np.float32)

    return edit


@pytest.mark.parametrize("size", [32, 48, 72, 272, 512])
def test_unsupported_head_sizes_name_the_rule(refused, size):
    refused(
        f"head size {size} is not supported: .*64 to 256 and a multiple of 16", pools(16, 2, size)
    )


@pytest.mark.parametrize("size", [8, 24, 512])
def test_unsupported_block_sizes_name_the_rule(refused, size):
    refused(
        f"block size {size} is not supported: .*16 to 256 and a multiple of 16", pools(size, 2, 64)
    )


def test_wrong_head_count(refused):
    refused(r"key_cache has shape .* axis 2 must be 2 \(kv_num_heads\)", pools(16, 3, 64))


def test_optional_inputs_are_checked(refused):
    refused(r"head_sink has shape \[5\]", replace("head_sink", lambda a: a[:5]), sinks=True)
    refused(r"q_norm_weight has shape", replace("q_norm_weight", lambda a: a[:5]), norms=True)
    refused("must be given together", lambda i: i.pop("k_norm_weight"), norms=True)
    refused(
        r"request 1 reaches position 21, but cos_cache has 21 rows",
        lambda i: i.update(cos_cache=i["cos_cache"][:21], sin_cache=i["sin_cache"][:21]),
        ROTARY,
    )
    refused("do not fit head size 64", lambda i: None, ROTARY, rotary_half=40)
    refused("must be given together", lambda i: i.pop("sin_cache"), ROTARY)
    refused("do_rotary = 1 needs", lambda i: [i.pop(n) for n in ("cos_cache", "sin_cache")], ROTARY)


@pytest.mark.parametrize("name", ["k_scale", "v_scale", "attention_metadata"])
def test_reserved_inputs_are_refused_by_name(refused, name):
    array = np.zeros(2, np.int32) if name == "attention_metadata" else np.zeros((2, 2, 2), "f4")
    refused(f"{name} is reserved", lambda i: i.update({name: array}))


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("positive multiple of kv_num_heads 4", PagedAttentionAttributes(6, 4)),
        ("positive multiple", PagedAttentionAttributes(6, 0)),
        ("local_window_size 0 must be -1", PagedAttentionAttributes(6, 2, local_window_size=0)),
        ("local_window_size -2 must be", PagedAttentionAttributes(6, 2, local_window_size=-2)),
        ("rotary_offset -1 is negative", PagedAttentionAttributes(6, 2, rotary_offset=-1)),
        ("must be finite", PagedAttentionAttributes(6, 2, softcap=float("nan"))),
        ("kv_layout .* is not supported", PagedAttentionAttributes(6, 2, kv_layout="NB,H,BS,D")),
        ("softcap must be a float", PagedAttentionAttributes(6, 2, softcap=1)),
        ("num_heads must be an integer", PagedAttentionAttributes(6.0, 2)),
    ],
)
def test_wrong_attributes_stop_the_session(run_op, steps, request_of, text, attributes):
    inputs = steps(1).step(PLAIN, [request_of(0, 3)])
    with pytest.raises(Exception, match=text):
        run_op.session(attributes, inputs)


def test_pools_must_be_bound_in_place(run_op, steps, request_of):
    inputs = steps(1).step(PLAIN, [request_of(0, 3)])
    session = run_op.session(PLAIN, inputs)
    with pytest.raises(Exception, match="bind one OrtValue as input and as output"):
        session.run(None, inputs)


def test_the_session_works_on_after_an_error(run_op, steps, request_of):
    inputs = steps(1).step(PLAIN, [request_of(0, 3), request_of(20, 2)])
    good, *_ = run_op(PLAIN, inputs)
    broken = dict(inputs, slot_mapping=inputs["slot_mapping"] + 1000)
    with pytest.raises(Exception, match="slot_mapping"):
        run_op(PLAIN, broken)
    again, *_ = run_op(PLAIN, inputs)
    assert np.array_equal(good, again)

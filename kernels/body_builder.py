"""Collecting the nodes of an op body: thin names over onnx.helper, results named by a counter."""

import onnx
from onnx import TensorProto, helper


class BodyBuilder:
    """Collects nodes; every method returns the name of its result.

    Args:
        prefix: of the result names; a subgraph takes one of its own.
    """

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._prefix = prefix
        self._count = 0

    def op(self, kind: str, *inputs: str, out: str | None = None, **attributes: object) -> str:
        """One node with one result, named `out` or by the counter."""
        self._count += 1
        result = out if out is not None else f"{self._prefix}{kind.lower()}_{self._count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def attribute(self, name: str, kind: int) -> str:
        """The function's attribute `name` as a scalar."""
        key = "value_int" if kind == onnx.AttributeProto.INT else "value_float"
        result = self.op("Constant")
        reference = self.nodes[-1].attribute.add()
        reference.name, reference.type, reference.ref_attr_name = key, kind, name
        return result

    def integers(self, name: str) -> str:
        """The function's integer attribute `name` as a 1-D tensor of one element."""
        return self.unsqueeze(self.attribute(name, onnx.AttributeProto.INT), 0)

    def real(self, name: str) -> str:
        """The function's float attribute `name` as a scalar."""
        return self.attribute(name, onnx.AttributeProto.FLOAT)

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        tensor = helper.make_tensor("value", TensorProto.INT64, [len(values)], values)
        return self.op("Constant", value=tensor)

    def integer(self, value: int) -> str:
        """A scalar int64 constant."""
        tensor = helper.make_tensor("value", TensorProto.INT64, [], [value])
        return self.op("Constant", value=tensor)

    def number(self, value: float) -> str:
        """A scalar float32 constant."""
        tensor = helper.make_tensor("value", TensorProto.FLOAT, [], [value])
        return self.op("Constant", value=tensor)

    def int64(self, x: str) -> str:
        """Cast to int64."""
        return self.op("Cast", x, to=TensorProto.INT64)

    def float32(self, x: str) -> str:
        """Cast to float32."""
        return self.op("Cast", x, to=TensorProto.FLOAT)

    def dim(self, x: str, axis: int) -> str:
        """One dimension of x as a 1-D tensor of one element."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def count_to(self, length: str) -> str:
        """0 .. length - 1 for a 1-D tensor of one element."""
        return self.op("Range", self.integer(0), self.op("Squeeze", length), self.integer(1))

    def concat(self, *parts: str, axis: int = 0) -> str:
        """Join along an axis."""
        return self.op("Concat", *parts, axis=axis)

    def slice(self, x: str, start: str, end: str, axis: int = 0) -> str:
        """x[start:end] along an axis; start and end are 1-D tensors of one element."""
        return self.op("Slice", x, start, end, self.ints(axis))

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Insert axes of size 1."""
        return self.op("Unsqueeze", x, self.ints(*axes))

    def reshape(self, x: str, *dims: str) -> str:
        """Reshape to 1-D tensors of dimensions, joined; 0 is a size like any other."""
        shape = self.concat(*dims) if len(dims) > 1 else dims[0]
        return self.op("Reshape", x, shape, allowzero=1)

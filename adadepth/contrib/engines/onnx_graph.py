"""ONNX graph in which later steps of a model are branches, put together from one ONNX model per step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper


class StepGraph:
    """ONNX graph of a first step, and branches `If(goes_on) then step else nothing` for later steps.

    Weights that several steps use are stored once. Values of step n are named `step_n/...`.

    Args:
        first: ONNX model of the inputs and the first step. Its outputs are those of `Carried`, with `goes_on` first,
            and the constants of the batch.
    """

    def __init__(self, first: ModelProto) -> None:
        self._model = ModelProto()
        self._model.CopyFrom(first)
        graph = self._model.graph
        for field in (graph.node, graph.initializer, graph.output, graph.value_info):
            del field[:]
        self._weights: dict[str, str] = {}
        self._shapes = {f"step_1/{output.name}": output for output in first.graph.output}
        graph.node.extend(self._rename(first.graph, "step_1/", {value.name: value.name for value in first.graph.input}))

    def add_branch(self, step: int, later: ModelProto, values: Sequence[str]) -> list[str]:
        """Add a later step to the graph.

        Args:
            step: Number of the step.
            later: ONNX model of the step. Its inputs are the values, and its first output says whether the next step
                runs.
            values: Names of the values before the step: the carried ones in the order of the outputs, and the
                constants.

        Returns:
            Names of the carried values after the step.
        """
        prefix = f"step_{step}/"
        names = {value.name: name for value, name in zip(later.graph.input, values, strict=True)}
        runs, passes = GraphProto(name=f"{prefix}runs"), GraphProto(name=f"{prefix}passes")
        runs.node.extend(self._rename(later.graph, f"{prefix}runs/", names))
        for output, value in zip(later.graph.output, values, strict=False):
            passes.node.append(helper.make_node("Identity", [value], [f"{prefix}passes/{output.name}"]))
            for graph in (runs, passes):
                kind = output.type.tensor_type.elem_type
                graph.output.append(helper.make_tensor_value_info(f"{graph.name}/{output.name}", kind, None))
        carried = [prefix + output.name for output in later.graph.output]
        self._model.graph.node.append(
            helper.make_node("If", [values[0]], carried, name=f"{prefix}if", then_branch=runs, else_branch=passes)
        )
        return carried

    def finish(self, outputs: Mapping[str, str]) -> ModelProto:
        """Return the model whose outputs are the given values, by the name of the output."""
        graph = self._model.graph
        for name, value in outputs.items():
            graph.node.append(helper.make_node("Identity", [value], [name]))
            graph.output.append(self._shapes[f"step_1/{name}"])
        return self._model

    def _rename(self, graph: GraphProto, prefix: str, names: Mapping[str, str]) -> list[NodeProto]:
        """Return the nodes of a graph, whose values get a prefix; its weights are added to the whole graph.

        Args:
            graph: Graph of a step.
            prefix: Prefix of the values.
            names: Names of the inputs of the step in the whole graph.
        """
        renamed = dict(names) | {weight.name: self._store_weight(weight, prefix) for weight in graph.initializer}
        return [_rename_node(node, prefix, renamed) for node in graph.node]

    def _store_weight(self, weight: TensorProto, prefix: str) -> str:
        """Add a weight to the graph unless it has an equal one, and return its name there."""
        anonymous = TensorProto()
        anonymous.CopyFrom(weight)
        anonymous.ClearField("name")
        digest = hashlib.sha256(anonymous.SerializeToString(deterministic=True)).hexdigest()
        if digest not in self._weights:
            stored = self._model.graph.initializer.add()
            stored.CopyFrom(weight)
            is_taken = weight.name in self._weights.values()
            stored.name = self._weights[digest] = prefix + weight.name if is_taken else weight.name
        return self._weights[digest]


def _rename_node(node: NodeProto, prefix: str, names: Mapping[str, str]) -> NodeProto:
    """Return a copy of a node with other names of its values, also in graphs within it; an empty name is no value."""
    copy: Any = NodeProto()
    copy.CopyFrom(node)
    copy.name = prefix + node.name
    for field in (copy.input, copy.output):
        field[:] = [name and names.get(name, prefix + name) for name in field]
    for attribute in copy.attribute:
        assert not attribute.HasField("g"), "a step has no branches"
    return copy

"""A fitted model as a sequence of statements, any range of which can become a piece.

Values that cross a cut are drawn anew, with the layout that they have in the model. Integers never
are, since an invented index is out of bounds: the statements that make them are repeated in the
piece, back to the arguments of the model, whose range is known. A piece that would need too many
of them is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from torch import fx

from fusewise.datasets.graphnet.cutting import name_of, weight
from fusewise.datasets.graphnet.fitting import Fitted
from fusewise.datasets.graphnet.meta import Unloadable
from fusewise.datasets.graphnet.pieces import Piece, PieceInput, build_graph, fingerprint
from fusewise.datasets.graphnet.tracing import TensorSpec, is_batched, tensors
from fusewise.datasets.graphnet.work import flops

#: Statements that a piece may repeat to make its integers.
_MOST_REPEATED = 80
#: Operations whose integers are indices into what they were made from, whatever that holds.
_MAKES_INDICES = {"argmax", "argmin", "topk", "sort", "argsort", "max", "min", "size", "one_hot"}
#: Operations on levels of vmap: they only work between their brackets.
_BRACKETED = {
    *("_vmap_increment_nesting", "_vmap_decrement_nesting", "_add_batch_dim"),
    "_remove_batch_dim",
}
_OF_POSITIVE = {"sqrt", "rsqrt", "log", "log2", "sqrt_", "rsqrt_", "pow"}
_KEEPS_SIGN = {"add", "iadd", "add_", "to", "float", "clamp", "unsqueeze", "view", "expand", "mean"}
#: Operations that fail where a gradient would be needed.
_NOT_FOR_TRAINING = {"_native_multi_head_attention", "_transformer_encoder_layer_fwd"}
_NO_GRADIENT = {"detach", "argmax", "argmin", "zeros_like", "ones_like", "full_like", "sign"}


class Program:
    """A fitted model as a sequence of statements that pieces are made of."""

    def __init__(self, fitted: Fitted, *, training: bool) -> None:
        self.training = training
        #: Why it has its own batch where a larger one was wanted; "" where it has not.
        self.kept = fitted.kept
        self.trace = fitted.trace
        self._metas = fitted.inputs
        _gather_parts(fitted)
        values = self.trace.values
        known = [node for node in fitted.graph.nodes if node in values]
        self.nodes: list[fx.Node] = [node for node in known if node not in self._metas]
        self._position = {node: i for i, node in enumerate(self.nodes)}
        #: Of each value when it was made; a later statement may change its size in place.
        self._specs = {n: TensorSpec.of(t) for n in known for t in tensors(values[n])[:1]}
        self._storages = {node: self.trace.storages(node) for node in known}
        self._writers: dict[int, list[int]] = {}
        for node, written in self.trace.writes.items():
            for storage in written:
                self._writers.setdefault(storage, []).append(self._position[node])
        self._differentiable = self._gradients(known)
        self._from_data = self._real(known)
        self._from_vmap = self._bracketed(known)

    def piece(self, start: int, stop: int) -> Piece:
        """The statements ``[start, stop)`` of :attr:`nodes`.

        Raises:
            Unloadable: they cannot stand alone; says why.
        """
        body = set(self._repeated(start, stop)) | set(range(start, stop))
        outputs = self._outputs(start, stop)
        nodes = self._live(sorted(body), outputs)
        training = self.training and any(node in self._differentiable for node in outputs)
        training = training and not any(name_of(node) in _NOT_FOR_TRAINING for node in nodes)
        inputs = self._inputs(nodes, training=training)
        if any(self._in_vmap(n) for node in nodes for n in (node, *node.all_input_nodes)):
            raise Unloadable("it holds a part of a vmap")
        graph = build_graph(nodes, inputs, outputs, self._specs)
        return Piece(
            graph=graph,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            fingerprint=fingerprint(graph, inputs, training=training),
            training=training,
            flops=sum(flops(node, self.trace.values) for node in nodes),
            weight=sum(map(weight, nodes)),
        )

    # What is in a piece

    def _repeated(self, start: int, stop: int) -> set[int]:
        """Earlier statements that make the integers that the range uses."""
        found: set[int] = set()
        waiting = [
            node
            for user in self.nodes[start:stop]
            for node in user.all_input_nodes
            if not (self._is_real(node) and self._specs[node].shape)
        ]
        waiting += self._rounded(start, stop)
        while waiting:
            node = waiting.pop()
            at = self._position.get(node)
            # A number that only depends on integers may be an index later: a position, say.
            if at is None or at >= start or at in found:
                continue
            if (self._is_real(node) and node in self._from_data) or self._is_mask(node):
                continue
            if self._rounds(node) and any(n in self._from_data for n in node.all_input_nodes):
                raise Unloadable("its integers are rounded from numbers")
            found.add(at)
            waiting += node.all_input_nodes
            for storage in self._storages[node]:
                for writer in self._writers.get(storage, ()):
                    if writer < start and writer not in found:
                        found.add(writer)
                        waiting += self.nodes[writer].all_input_nodes
            if len(found) > _MOST_REPEATED:
                raise Unloadable("its integers are made by too many statements")
        return found

    def _rounded(self, start: int, stop: int) -> list[fx.Node]:
        """Earlier numbers that the range rounds to integers: their own values matter."""
        found: list[fx.Node] = []
        waiting = [
            source
            for node in self.nodes[start:stop]
            if self._rounds(node)
            for source in node.all_input_nodes
        ]
        seen: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if start <= self._position.get(node, -1):
                waiting += node.all_input_nodes
            elif self._is_mask(node) or (self._is_real(node) and node in self._from_data):
                raise Unloadable("it rounds numbers to integers")
            else:
                found.append(node)
        return found

    def _rounds(self, node: fx.Node) -> bool:
        """Whether the statement makes integers of numbers, other than indices into them."""
        value = self.trace.values[node]
        if not isinstance(value, torch.Tensor) or self._is_real(node):
            return False
        integers = value.dtype is not torch.bool and name_of(node) not in _MAKES_INDICES
        return integers and any(map(self._is_real, node.all_input_nodes))

    def _is_real(self, node: fx.Node) -> bool:
        """Whether the value is a tensor of numbers that any others can replace."""
        spec = self._specs.get(node)
        value = self.trace.values[node]
        is_tensor = isinstance(value, torch.Tensor) and spec is not None
        return is_tensor and (value.is_floating_point() or value.is_complex())

    def _in_vmap(self, node: fx.Node) -> bool:
        return name_of(node) in _BRACKETED or is_batched(self.trace.values[node])

    def _is_mask(self, node: fx.Node) -> bool:
        """Whether the value is a mask from a vmap, which no piece can hold: drawn anew then."""
        spec = self._specs.get(node)
        return spec is not None and spec.dtype is torch.bool and node in self._from_vmap

    def _outputs(self, start: int, stop: int) -> list[fx.Node]:
        """Values that a later statement or the model's caller uses."""
        outputs = []
        for node in self.nodes[start:stop]:
            later = any(self._position.get(user, stop) >= stop for user in node.users)
            if later and isinstance(self.trace.values[node], torch.Tensor):
                outputs.append(node)
            elif later:
                raise Unloadable("a tuple crosses its end")
        if not outputs:
            raise Unloadable("nothing that it makes is used")
        return outputs

    def _live(self, body: Sequence[int], outputs: Sequence[fx.Node]) -> list[fx.Node]:
        """The statements that the outputs depend on, or that write to something."""
        needed = set(outputs)
        kept: list[fx.Node] = []
        for at in reversed(body):
            node = self.nodes[at]
            if node in needed or self.trace.writes.get(node):
                kept.append(node)
                needed.update(node.all_input_nodes)
        return kept[::-1]

    def _inputs(self, nodes: Sequence[fx.Node], *, training: bool) -> list[PieceInput]:
        made = set(nodes)
        crossing: dict[int, list[fx.Node]] = {}
        for used in dict.fromkeys(n for node in nodes for n in node.all_input_nodes):
            if used not in made:
                # Writing in place gives the tensor itself: both names are one input.
                crossing.setdefault(id(self.trace.values[used]), []).append(used)
        written = {s for node in nodes for s in self.trace.writes.get(node, ())}
        shared: set[int] = set()
        inputs = []
        for node, *also in crossing.values():
            if not isinstance(self.trace.values[node], torch.Tensor):
                raise Unloadable("a tuple crosses its start")
            aliased = self._storages[node] & written
            if aliased & shared:
                raise Unloadable("it writes to memory that two of its inputs share")
            shared |= aliased
            spec = self._specs[node]
            if node not in self._metas and not (self._is_real(node) or self._is_mask(node)):
                raise Unloadable(f"an integer crosses its start ({name_of(node)})")
            inputs.append(
                PieceInput(
                    node,
                    spec,
                    training and node in self._differentiable,
                    self._metas.get(node),
                    positive=_needs_positive(node, made),
                    also=tuple(also),
                    cloned=training and bool(aliased),
                )
            )
        if not inputs:
            raise Unloadable("it has no inputs")
        return inputs

    # What flows through the model

    def _gradients(self, known: Iterable[fx.Node]) -> set[fx.Node]:
        """Values that depend on a parameter differentiably."""
        found: set[fx.Node] = set()
        for node in known:
            floats = any(t.is_floating_point() for t in tensors(self.trace.values[node]))
            if node in self._metas:
                parameter = "Parameter" in node.meta["annotation"] or "_parameters_" in node.name
                reached = parameter
            else:
                reached = name_of(node) not in _NO_GRADIENT and any(
                    n in found for n in node.all_input_nodes
                )
            if floats and reached:
                found.add(node)
        return found

    def _real(self, known: Iterable[fx.Node]) -> set[fx.Node]:
        """Values that depend on a floating-point argument of the model."""
        found: set[fx.Node] = set()
        for node in known:
            if node in self._metas:
                real = self._metas[node].dtype.is_floating_point
            else:
                real = any(n in found for n in node.all_input_nodes)
            if real:
                found.add(node)
        return found

    def _bracketed(self, known: Iterable[fx.Node]) -> set[fx.Node]:
        """Values that depend on one inside a vmap."""
        found: set[fx.Node] = set()
        for node in known:
            if self._in_vmap(node) or any(n in found for n in node.all_input_nodes):
                found.add(node)
        return found


def _needs_positive(node: fx.Node, body: set[fx.Node], depth: int = 4) -> bool:
    """Whether ``body`` takes a root of the value, perhaps after adding an epsilon."""
    for user in node.users:
        if user not in body:
            continue
        name = name_of(user)
        if name in _OF_POSITIVE:
            exponent = user.args[1] if name == "pow" and len(user.args) > 1 else 0.5
            if not isinstance(exponent, int | float) or exponent != int(exponent):
                return True
        alone = depth > 0 and name in _KEEPS_SIGN and len(user.all_input_nodes) == 1
        if alone and _needs_positive(user, body, depth - 1):
            return True
    return False


def _gather_parts(fitted: Fitted) -> None:
    """Move each ``values[i]`` of a tuple right behind what made it: only tensors cross cuts."""
    values = fitted.trace.values
    for node in list(fitted.graph.nodes):
        if isinstance(values.get(node), tuple | list):
            for user in reversed(list(node.users)):
                if user.target is operator.getitem and user.args[0] is node and user in values:
                    node.append(user)

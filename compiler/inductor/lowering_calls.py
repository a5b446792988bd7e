"""Operators of a captured graph lowered otherwise than Inductor lowers them.

``GraphLowering.call_function`` is where Inductor turns one operator of a graph into its own terms.
It is replaced by a dispatcher that asks first; what is asked looks at a context variable of its
own and leaves to Inductor whatever it does not want.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor import graph as inductor_graph
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.hooks import is_subgraph

#: Of the graph, an operator, its arguments and keywords: what it is lowered to, None for Inductor's
#: own way. Calling the graph's ``call_function`` with other arguments asks everybody again.
Otherwise = Callable[[inductor_graph.GraphLowering, Any, Any, dict[str, Any]], Any]


def lower_otherwise(otherwise: Otherwise) -> None:
    """Ask ``otherwise`` of each operator from now on, but of none within another operator."""
    lowering_class = inductor_graph.GraphLowering
    original = lowering_class.call_function

    @functools.wraps(original)
    def call_function(
        self: inductor_graph.GraphLowering, target: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        found = None if is_subgraph(V.graph) else otherwise(self, target, args, kwargs)
        return original(self, target, args, kwargs) if found is None else found

    lowering_class.call_function = call_function  # type: ignore[method-assign]

"""Quotients and remainders of loops in an index: how far it goes on straight along each loop.

A vector keeps to an index that has them only where each of its vectors lies within one quotient
and one period (``simplify_index_in_vec_range`` in torch/_inductor/sizevars.py); elsewhere they are
worked out element by element. Knows one access and the loops round it, no vectors and no costs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fusewise.costmodel.geometry import formula_of
from fusewise.costmodel.layout import loops_of_variables
from fusewise.schedule.problem import Access


class Winding(NamedTuple):
    """How one index goes along one loop."""

    #: Turns that go on straight, from each multiple of so many: 0 for all, 1 for none.
    span: int = 0
    #: Quotients and remainders that the loop is in.
    divided: int = 0

    def breaks(self, lanes: int) -> bool:
        """Whether vectors of so many elements along the loop do not keep to it."""
        return self.divided > 0 and self.span % lanes != 0

    def beside(self, span: int) -> Winding:
        """With one more quotient or remainder, that goes on for ``span`` turns."""
        return Winding(math.gcd(self.span, span), self.divided + 1)


#: Of a loop that is in none.
STRAIGHT: Final = Winding()


def windings_of(access: Access, loops: Sequence[int]) -> tuple[Winding, ...]:
    """Along each of the ``loops`` of several turns, outermost first; empty where none winds.

    It is empty as well where the index cannot be read.
    """
    if "//" not in access.index and "(" not in access.index:
        return ()
    extents = tuple(extent for extent in loops if extent > 1)
    return _windings(access.index, extents, access.along, access.stride == 0)


@lru_cache(maxsize=1 << 16)
def _windings(index: str, loops: tuple[int, ...], along: int, stays: bool) -> tuple[Winding, ...]:
    formula = formula_of(index)
    placed = formula and loops_of_variables(formula.sizes, loops, along, stays)
    if formula is None or placed is None:
        return ()
    wound = _by_variable(index)
    found = [STRAIGHT] * len(loops)
    for name, (first, last) in zip(formula.names, placed, strict=True):
        winding = wound.get(name, STRAIGHT)
        if first < last and winding.divided:
            # Of several loops that are one variable none is what is divided.
            winding = winding._replace(span=1)
        found[first : last + 1] = [winding] * (last + 1 - first)
    return tuple(found) if any(each.divided for each in found) else ()


def _by_variable(index: str) -> Mapping[str, Winding]:
    """The windings of an index that can be read, by the names of its variables."""
    found: dict[str, Winding] = {}
    for divided, span in _divisions(ast.parse(index.partition(" : ")[0].strip(), mode="eval").body):
        for node in ast.walk(divided):
            if isinstance(node, ast.Name):
                each = span if isinstance(divided, ast.Name) else 1
                found[node.id] = found.get(node.id, STRAIGHT).beside(each)
    return found


def _divisions(tree: ast.expr) -> Iterator[tuple[ast.expr, int]]:
    """What is divided in an expression, and for how many turns it goes on straight if it is a loop.

    A quotient stays as it is for so many; a remainder of the loop itself is a neighbour of the
    last.
    """
    for node in ast.walk(tree):
        match node:
            case (
                ast.BinOp(
                    left=left, op=ast.FloorDiv() | ast.Mod(), right=ast.Constant(value=int(by))
                )
                | ast.Call(
                    func=ast.Name(id="FloorDiv" | "Mod" | "PythonMod"),
                    args=[left, ast.Constant(value=int(by))],
                )
            ):
                yield left, by
            case ast.Call(
                func=ast.Name(id="ModularIndexing"),
                args=[left, ast.Constant(value=int(by)), ast.Constant(value=int(period))],
            ):
                yield left, period if by == 1 else by
            case (
                ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod())
                | ast.Call(func=ast.Name(id="ModularIndexing"), args=[left, *_])
            ):
                yield left, 1

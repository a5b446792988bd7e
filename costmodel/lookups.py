"""Where a node's lookups lead: anywhere, as loaded indices do, or on as its loops do.

Judges by the accesses and operations of nodes alone; indices themselves are not known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fusewise.costmodel.geometry import formula_of, looked_up_steps
from fusewise.schedule.problem import Access, Node, Problem

#: Dtypes of indices.
_INTEGER: Final = re.compile(r"int(16|32|64)$")
#: Operators that look up, by places that they are given.
_GIVEN: Final = ("index", "gather", "scatter", "embedding", "take")
#: What the compiler takes others apart into, which look up where it computes itself: resizing.
_COMPUTED: Final = "_unsafe_"
#: A place in an index, by the number that its node gives it, and by none.
_NUMBERED: Final = re.compile(r"(?:tmp|indirect)(\d+)")
_PLACE: Final = "place"
#: Operations that find places: how many there are tells those of one node from another's.
_FINDING: Final = frozenset(
    {"ceil", "floor", "index_expr", "indirect_indexing", "maximum", "minimum"}
)
#: What :func:`lookups_told` finds.
_Told = Mapping[tuple[str, str], tuple[str, int]]


def computes_places(node: Node) -> bool:
    """Whether a node looks up where it computes from its loops' positions."""
    return any(name == "index_expr" for name, _ in node.ops) and any(
        access.looked_up for access in node.reads
    )


def each_once(node: Node, problem: Problem) -> Node:
    """``node`` without those of its lookups that must be others of them, told anew.

    A value that is used several times is written out as often, with another number of its place
    each time, and the compiler finds them to be the same. How many are left a node says that says
    what it computes. Of others it is known that indices which are loaded tell no more places of a
    buffer, by one kind of index, than there are of them.
    """
    told = lookups_told(node.reads)
    if not told:
        return node
    again = _not_loaded(node, told) if node.computed else _beyond_indices(node, problem, told)
    if not again:
        return node
    reads = tuple(a for a in node.reads if (a.buffer, a.index) not in again)
    return msgspec.structs.replace(node, reads=reads)


def _not_loaded(node: Node, told: _Told) -> set[tuple[str, str]]:
    """The lookups, last ones of their kind first, that are more than a node says that it loads."""
    others = {(a.buffer, a.index) for a in node.reads if a.kind != "opaque" and not a.looked_up}
    loaded = sum(each.count for each in node.computed if each.name == "load")
    more = max(len(told) - max(loaded - len(others), 1), 0)
    return set(sorted(told, key=lambda key: told[key][1], reverse=True)[:more])


def _beyond_indices(node: Node, problem: Problem, told: _Told) -> set[tuple[str, str]]:
    """The lookups that are more of their kind than the indices that a node loads tell places."""
    indices = len(loaded_indices(node, problem))
    if not indices or computes_places(node):
        return set()
    return {
        key for key, (index, turn) in told.items() if turn >= indices ** max(index.count(_PLACE), 1)
    }


def places_sought(node: Node, problem: Problem) -> Hashable:
    """What is equal for nodes that look up the same places in the same buffer by the same index.

    An index says that a place was told, not which: one corner of an interpolation is found by
    other bounds than the next, one table's rows by another's numbers.
    """
    finding: tuple[tuple[str, int], ...] = ()
    if computes_places(node):
        finding = tuple(sorted(count for count in node.ops if count[0] in _FINDING))
    return finding, frozenset((a.buffer, a.index) for a in loaded_indices(node, problem))


def lookups_told(accesses: Iterable[Access]) -> dict[tuple[str, str], tuple[str, int]]:
    """What tells the lookups of one node apart, by buffer and index, and is equal in all nodes.

    Each node numbers its places anew, and what one has at ``4*tmp0 + 1`` another has at ``4*tmp2 +
    1``. So it is the index without numbers, and which of its node's by such an index it is.
    """
    found = {}
    turns: Counter[tuple[str, str]] = Counter()
    looked_up = {(a.buffer, a.index) for a in accesses if a.looked_up}
    for key in sorted(looked_up, key=lambda key: [int(n) for n in _NUMBERED.findall(key[1])]):
        alike = key[0], _NUMBERED.sub(_PLACE, key[1])
        found[key] = (alike[1], turns[alike])
        turns[alike] += 1
    return found


def component_of(access: Access, line_bytes: int) -> tuple[Hashable, int]:
    """What is equal for lookups of one line of a row if they have the place in common, and the
    component of the row.

    Vertices, cells and boxes are rows of a few components, each of which is read by an index of its
    own: ``4*tmp0``, ``4*tmp1 + 1`` and so on.
    """
    formula = formula_of(access.index)
    if formula is None:
        return (access.buffer, access.index), 0
    origin = formula.at({})
    steps = tuple(formula.at({name: 1}) - origin for name in formula.names)
    line = origin * access.itemsize // line_bytes
    return (access.buffer, looked_up_steps(access.index), steps, formula.sizes, line), origin


def found_beside(line: Hashable, component: int, seen: Counter[Hashable]) -> bool:
    """Whether a lookup has the line of an earlier one: another component of the row found there.

    So many rows are looked up as the component has that is looked up most: one index is loaded
    once, whichever of them it tells. ``seen`` counts the lookups of each line and component and is
    kept up.
    """
    own = (line, component)
    seen[own] += 1
    more = seen[own] > seen[line]
    seen[line] += more
    return not more


def loaded_indices(node: Node, problem: Problem) -> list[Access]:
    """Reads of a node that may be of indices: of integers, themselves not looked up."""
    found = []
    for access in node.reads:
        buffer = problem.buffer_by_name.get(access.buffer)
        if access.kind != "gather" and buffer is not None and _INTEGER.search(buffer.dtype):
            found.append(access)
    return found


def sought_along(
    node: Node,
    problem: Problem,
    steps: Mapping[tuple[str, str], tuple[int, ...]],
    loops: int,
) -> tuple[bool, ...]:
    """Along which of its loops a node may look up another place, as far as is known: else all.

    Args:
        node: of ``problem``.
        problem: its buffers tell what indices are.
        steps: of its accesses (buffer and index), elements from one turn of each loop to the next.
        loops: how many of them turn more than once.
    """
    unknown = (True,) * loops
    if any(name == "index_expr" for name, _ in node.ops):
        return unknown
    indices = [steps.get((a.buffer, a.index)) for a in loaded_indices(node, problem)]
    if not indices or None in indices:
        return unknown
    return tuple(any(each and each[i] for each in indices) for i in range(loops))


def follows_loops(node: Node, problem: Problem) -> bool:
    """Whether a node looks up where its loops say, one place after the other.

    It computes where, as interpolation does, or has a table with one place for each turn of a loop.
    Whoever loads an index of another kind may be sent anywhere. Other integers that are read beside
    (labels, counts) are values.
    """
    found = [a for a in (*node.reads, *node.writes) if a.looked_up]
    if not found:
        return False
    computes = any(name == "index_expr" for name, _ in node.ops)
    loaded = loaded_indices(node, problem)
    others = [access for access in loaded if not _is_table(access, node)]
    tables = len(loaded) - len(others)
    if not computes and not tables:
        return False
    if _computed_alone(node):
        return True
    leading = sum(_may_lead(access, found, node) for access in others)
    if leading == 0:
        return True
    # Tables or an interpolation, which looks neighbours up, give all places of each index: then an
    # integer that is not enough for one of them is a value.
    places = min(len(looked_up_steps(a.index)) for a in found)
    neighbours = len({a.buffer for a in found}) < len(found)
    return leading < places and (places <= tables or (computes and neighbours))


def _is_table(access: Access, node: Node) -> bool:
    """Whether a read has one entry for each turn of one of its node's loops."""
    entries = access.bytes // max(access.itemsize, 1)
    return entries in (*node.ranges[0], *node.ranges[1]) and entries != access.touched


def _computed_alone(node: Node) -> bool:
    """Whether all that a node looks up is where the compiler's own decompositions compute."""
    others = [origin for origin in node.origins if _COMPUTED not in origin]
    given = any(word in origin for origin in others for word in _GIVEN)
    return len(others) < len(node.origins) and not given


def _may_lead(access: Access, found: Sequence[Access], node: Node) -> bool:
    """Whether a read can be the index that takes lookups ``found`` elsewhere, turn by turn.

    Not if it stays in place along the innermost of the loops that are in none of their indices.
    """
    turning = sum(extent > 1 for extent in (*node.ranges[0], *node.ranges[1]))
    for a in found:
        free = [i for i in range(turning) if not a.along >> i & 1]
        if access.along < 0 or a.along < 0 or not free or access.along >> free[-1] & 1:
            return True
    return False

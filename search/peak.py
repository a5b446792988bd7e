"""How much memory a plan needs at one time, by an estimate.

The compiler reorders kernels for less memory and reuses buffers as it sees fit, so this ranks plans
and measures none.
"""

from __future__ import annotations

from collections import defaultdict

from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem


def peak_bytes(problem: Problem, plan: Plan) -> int:
    """Most bytes alive at one time, inputs included, when the groups run in the plan's order.

    A buffer lives from the group that writes it to the last one that reads it, outputs to the end.
    What is written and read within one group alone is never stored. A buffer whose last reader
    writes another one of the same size gives its memory to it.
    """
    owner = plan.group_of()
    order = {group: at for at, group in enumerate(_in_order(problem, plan, owner))}
    # What shares the memory of another buffer has none of its own.
    size = {b.name: 0 if b.aliases else b.bytes for b in problem.buffers}
    now = sum(buffer.bytes for buffer in problem.buffers if buffer.is_input)
    made: dict[str, int] = {}
    for node in problem.nodes:
        made.update((access.buffer, order[owner[node.name]]) for access in node.writes)
    for dependency in problem.dependencies:
        if not dependency.weak:
            made[dependency.buffer] = order[owner[dependency.producer]]
    last: dict[str, int] = {}
    for buffer in problem.buffers:
        users = [order[owner[user]] for user in buffer.users if user in owner]
        end = len(order) if buffer.is_output else max(users, default=-1)
        for name in (buffer.name, *buffer.aliases):
            last[name] = max(end, last.get(name, -1))
    made = {b.name: made[b.name] for b in problem.buffers if b.name in made and not b.is_input}
    written: dict[int, list[str]] = defaultdict(list)
    dying: dict[int, list[str]] = defaultdict(list)
    for name, at in made.items():
        # Without a reader outside its group, it never leaves the registers.
        if last[name] > at:
            written[at].append(name)
            dying[last[name]].append(name)
    most = now
    for at in range(len(order)):
        free = [size[name] for name in dying[at]]
        reused = 0
        for name in written[at]:
            if size[name] in free:
                free.remove(size[name])
                reused += size[name]
        now += sum(size[name] for name in written[at]) - reused
        most = max(most, now)
        now -= sum(size[name] for name in dying[at]) - reused
    return most


def _in_order(problem: Problem, plan: Plan, owner: dict[str, int]) -> list[int]:
    """Groups in an order that keeps all dependencies, as near to the plan's as there is."""
    needs: dict[int, set[int]] = {at: set() for at in range(len(plan.groups))}
    for dependency in problem.dependencies:
        consumer, producer = owner[dependency.consumer], owner[dependency.producer]
        if consumer != producer:
            needs[consumer].add(producer)
    done: dict[int, None] = {}
    left = list(needs)
    while left:
        ready = next(at for at in left if needs[at] <= done.keys())
        done[ready] = None
        left.remove(ready)
    return list(done)

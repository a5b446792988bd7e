"""Times of library calls that are known under another signature.

A call's signature has the operators before it, as far as the compiler says that it comes from them,
so the calls of two lowerings of one graph may differ in it and be the same. Where only those of one
were timed, plans of the other would lack what the calls take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from fusewise.datasets.samples import ScheduleSamples
from fusewise.schedule.problem import FINISHED_KINDS, Problem, call_signature


def calls_known(extern_us: Mapping[str, float], samples: ScheduleSamples) -> dict[str, float]:
    """``extern_us`` with the calls of other lowerings of the same graphs.

    Args:
        extern_us: microseconds of extern and template nodes by signature.
        samples: schedules of all lowerings that count.

    Raises:
        StoreError: a stored problem cannot be read.
        DatasetError: a published one cannot be read.
    """
    by_graph: dict[str, dict[str, Problem]] = defaultdict(dict)
    for sample in samples:
        if samples.has_problem(sample):
            by_graph[sample.graph_key][sample.problem_key] = samples.problem(sample)
    known = dict(extern_us)
    for problems in by_graph.values():
        nodes = [
            node
            for problem in problems.values()
            for node in problem.nodes
            if node.kind in FINISHED_KINDS
        ]
        alike: dict[str, dict[str, float]] = defaultdict(dict)
        for node in nodes:
            if node.signature in extern_us:
                alike[call_signature(node)][node.signature] = extern_us[node.signature]
        for node in nodes:
            if node.signature not in extern_us and call_signature(node) in alike:
                times = list(alike[call_signature(node)].values())
                known[node.signature] = float(np.median(times))
    return known

"""What explaining leaves unsaid, and what it does not do where only names are wanted."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.program import explain_program
from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import CorpusError


def _sample(call: Any, *args: Any) -> GraphSample:
    return GraphSample(
        name="call", family="call", module=call, args=args, kwargs={}, training=False
    )


def test_an_error_of_an_operator_is_told_once(store: Path) -> None:
    heard: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    log, collect = logging.getLogger("torch._subclasses.fake_tensor"), Collect()
    log.addHandler(collect)
    try:
        with pytest.raises(CorpusError, match="must have same reduction dim"):
            explain_program(_sample(lambda x: x @ x, torch.randn(2, 3)), Wish(store=store))
        assert heard == []
        # Whoever runs the program by itself hears what torch has to say.
        with pytest.raises(Exception, match="must have same reduction dim"):
            torch.compile(lambda x: x @ x, backend="eager")(torch.randn(2, 3))
        assert heard
    finally:
        log.removeHandler(collect)


def test_kernels_have_the_same_names_whether_they_are_timed_or_not(store: Path) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = (x + y).softmax(-1)
        return total @ y, total.sum(0), x.t().contiguous().exp()

    sample = _sample(call, torch.randn(24, 24), torch.randn(24, 24))
    found = [
        [(group.nodes, group.kernel) for group in graph.groups]
        for measure in (False, True)
        for graph in explain_program(sample, Wish(store=store, measure=measure)).graphs
    ]
    assert found[0] == found[1] and any(kernel for _, kernel in found[0])

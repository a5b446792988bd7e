"""Inductor's pool of compiling processes, which starts while programs are compiled."""

from __future__ import annotations

import pytest
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile

from fusewise.compiler.inductor.triton_ahead import await_pool


@pytest.fixture
def unasked() -> None:
    """A process that has not asked yet whether its pool is there."""
    AsyncCompile._ready_future = None


@pytest.mark.usefixtures("unasked")
def test_a_pool_that_starts_is_waited_for() -> None:
    with inductor_config.patch(compile_threads=2):
        assert await_pool(120.0)
        # Afterwards nothing is waited for.
        assert await_pool(0.0)


@pytest.mark.usefixtures("unasked")
def test_no_pool_is_waited_for_where_there_is_none() -> None:
    with inductor_config.patch(compile_threads=1):
        assert not await_pool(120.0)

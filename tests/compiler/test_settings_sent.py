"""Settings that a program is sent to another process with."""

from __future__ import annotations

from torch._inductor import config

from fusewise.compiler.inductor.program import changed_settings


def test_what_was_set_back_is_not_changed() -> None:
    before = changed_settings()
    other = not config.split_reductions
    with config.patch(split_reductions=other):
        assert changed_settings() == {**before, "split_reductions": other}
    assert changed_settings() == before

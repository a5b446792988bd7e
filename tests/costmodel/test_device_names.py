"""What a processor is called, which decides whose timings count for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewise.costmodel import device
from fusewise.costmodel.device import device_key

_NAMED = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) 8480C\n"
_GENERIC = (
    "processor\t: 0\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n"
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The key of this processor where the system says something else of it."""

    def key_of(cpuinfo: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(cpuinfo)
        monkeypatch.setattr(device, "_CPUINFO", path)
        return device_key(torch.device("cpu"))

    return key_of


def test_a_name_that_says_which_it_is_is_taken_as_it_is(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: threads)
    assert told(_NAMED) == f"cpu-Intel_R_Xeon_R_8480C-{threads}t"


def test_some_cores_of_a_machine_are_not_a_machine_of_as_many(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 8 * threads)
    assert told(_NAMED) == f"cpu-Intel_R_Xeon_R_8480C-{threads}t-of-{8 * threads}"


def test_processors_that_share_a_brand_have_keys_of_their_own(told: Any) -> None:
    older, newer = told(_GENERIC.format(25, 17)), told(_GENERIC.format(26, 2))
    assert older != newer
    assert "family_25_model_17" in older


def test_a_system_that_tells_nothing_is_no_error(told: Any) -> None:
    assert told("").startswith("cpu-")
    assert told("model name\t: Fast One\n").startswith("cpu-Fast_One-")

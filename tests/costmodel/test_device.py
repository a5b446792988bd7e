"""The probe gives rates that can be, quickly, and keeps them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from fusewise.costmodel.device import device_key, device_profile, probe_device
from fusewise.schedule.errors import ModelError, UnsupportedError

CPU = torch.device("cpu")


def test_a_cpu_can_be_probed(monkeypatch: pytest.MonkeyPatch):
    before = torch.backends.mkldnn.matmul.fp32_precision
    start = time.perf_counter()
    profile = probe_device(CPU)
    # Two seconds is the budget; a loaded machine gets more.
    assert time.perf_counter() - start < 10
    assert profile.key == device_key(CPU)
    assert profile.key.startswith("cpu-")
    assert profile.threads == torch.get_num_threads()
    for rate in (profile.copy_gbs, profile.gather_gbs, profile.cache_gbs, profile.flops_gfs):
        assert 0.01 < rate < 1e6
    assert 0.05 < profile.launch_us < 1000
    assert profile.cache_bytes >= 1 << 16
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_can_be_probed():
    profile = probe_device(torch.device("cuda"))
    assert profile.key.startswith("cuda-")
    assert profile.copy_gbs > 50
    assert profile.flops_gfs > 500
    assert 0.5 < profile.launch_us < 100


def test_a_profile_is_measured_once(tmp_path: Path):
    first = device_profile(CPU, tmp_path)
    assert device_profile(CPU, tmp_path) == first
    (path,) = (tmp_path / "devices").iterdir()
    path.write_text('{"key": 1}')
    with pytest.raises(ModelError, match="no device profile"):
        device_profile(CPU, tmp_path)


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedError, match="'meta'"):
        device_key(torch.device("meta"))

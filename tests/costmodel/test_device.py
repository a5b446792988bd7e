"""The probe gives rates that can be, quickly, and keeps them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
import torch

from fusewise.costmodel import device as device_module
from fusewise.costmodel.device import (
    DeviceProfile,
    device_key,
    device_profile,
    probe_device,
    renew_profile,
)
from fusewise.schedule.errors import ModelError, UnsupportedError

CPU = torch.device("cpu")
_RATES = ("copy_gbs", "gather_gbs", "flops_gfs", "transcendental_gops", "launch_us")


def test_a_cpu_can_be_probed_and_is_once_unless_that_is_renewed(tmp_path: Path):
    before = torch.backends.mkldnn.matmul.fp32_precision
    start = time.perf_counter()
    profile = device_profile(CPU, tmp_path)
    # Three seconds are usual, a minute is the budget.
    assert time.perf_counter() - start < 60
    assert profile.key == device_key(CPU)
    assert profile.key.startswith("cpu-")
    assert profile.threads == torch.get_num_threads()
    for rate in (profile.copy_gbs, profile.gather_gbs, profile.cache_gbs, profile.flops_gfs):
        assert 0.01 < rate < 1e6
    for rate in (profile.strided_gbs, profile.atomic_gops, profile.contended_gops):
        assert 1e-4 < rate < 1e5
    # What is asked for is what was probed, not a part of something else.
    assert profile.strided == profile.strided_gbs
    assert profile.atomic == profile.atomic_gops
    assert profile.contended == profile.contended_gops
    assert 0.05 < profile.launch_us < 1000
    assert profile.cache_bytes >= 1 << 16
    assert torch.backends.mkldnn.matmul.fp32_precision == before

    assert device_profile(CPU, tmp_path) == profile
    (path,) = (tmp_path / "devices").iterdir()
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(profile, copy_gbs=1e-3)))
    assert device_profile(CPU, tmp_path).copy_gbs == 1e-3
    start = time.perf_counter()
    renewed = renew_profile(CPU, tmp_path, seconds=2.5)
    assert time.perf_counter() - start > 2.5
    assert renewed == device_profile(CPU, tmp_path)
    assert renewed.copy_gbs != 1e-3
    assert list((tmp_path / "devices").iterdir()) == [path]
    path.write_text('{"key": 1}')
    with pytest.raises(ModelError, match="no device profile"):
        device_profile(CPU, tmp_path)


@pytest.mark.parametrize(
    ("told", "compiler"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright 2022", "gcc 12"),
        ("g++-13 (Ubuntu 13.3.0-6ubuntu2~24.04.1) 13.3.0", "gcc 13"),
        ("Debian clang version 14.0.6\nTarget: x86_64", "clang 14"),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", "clang 15"),
        ("something else", ""),
        (None, ""),
    ],
)
def test_what_compiles_is_told_by_its_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, compiler: str
):
    path = tmp_path / "cxx"
    if told is not None:
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\n")
        path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setattr(device_module, "probe", lambda *_, **__: dict.fromkeys(_RATES, 1.0))
    assert probe_device(CPU).compiler == compiler


def test_where_none_can_be_kept_none_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_module, "probe", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        device_profile(CPU, tmp_path / "file")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_can_be_probed():
    profile = probe_device(torch.device("cuda"))
    assert profile.key.startswith("cuda-")
    assert profile.copy_gbs > 50
    assert profile.flops_gfs > 500
    assert 0.5 < profile.launch_us < 100
    # Lines that are read for four bytes each, and additions that must reach memory.
    assert profile.copy_gbs / 64 < profile.strided_gbs < profile.copy_gbs
    assert profile.gather_gbs / 64 < profile.atomic_gops < profile.gather_gbs
    assert profile.contended_gops > 0.1


def test_a_user_s_settings_do_not_change_a_rate_and_are_kept():
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert probe_device(CPU).atomic_gops > 1e-4
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.get_num_threads() == threads


def test_a_profile_from_before_the_newer_rates_is_what_it_was(tmp_path: Path):
    text = (
        '{"key":"cuda-NVIDIA_H200","kind":"cuda","name":"NVIDIA H200","threads":270336,'
        '"copy_gbs":4250.0,"gather_gbs":142.0,"flops_gfs":51673.0,"transcendental_gops":910.0,'
        '"launch_us":1.1,"cache_bytes":62914560,"cores":132,"cache_gbs":7989.0}'
    )
    profile = msgspec.json.decode(text, type=DeviceProfile)
    # What is hashed into the names of models stays as it was.
    assert msgspec.json.encode(profile).decode() == text
    assert profile.strided == pytest.approx(4250.0 / 8)
    assert profile.atomic == pytest.approx(142.0 / 4 / 2)
    assert profile.contended == profile.atomic
    on_cpu = msgspec.structs.replace(profile, kind="cpu")
    assert on_cpu.contended == pytest.approx(25 * profile.atomic)


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedError, match="'meta'"):
        device_key(torch.device("meta"))

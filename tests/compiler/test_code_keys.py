"""Hashes of the packages' own code, as another process told them."""

from __future__ import annotations

import pickle

import pytest
from torch._inductor.codecache import torch_key
from torch._inductor.runtime import triton_compat

from fusewise.compiler.inductor.code_keys import CodeKeys, code_keys, take_code_keys


def test_what_was_told_is_this_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = code_keys()
    told = CodeKeys(bytes(32), "told" if own.triton else "")
    defined_in = None
    if own.triton:
        defined_in = __import__(triton_compat.triton_key.__module__, fromlist=["triton_key"])
        monkeypatch.setattr(defined_in, "triton_key", triton_compat.triton_key)
    try:
        take_code_keys(pickle.loads(pickle.dumps(told)))
        assert torch_key() == told.torch
        if defined_in is not None:
            assert defined_in.triton_key() == "told"
    finally:
        take_code_keys(CodeKeys(own.torch, ""))


def test_a_key_is_of_the_packages_that_are_installed() -> None:
    own = code_keys()
    assert own.torch == torch_key()
    assert bool(own.triton) == triton_compat.HAS_TRITON

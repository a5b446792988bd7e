"""The key under which Inductor keeps a graph whose compile goes on as another schedule.

Inductor asks for a key before it lowers a graph, and keeps under it what comes out. What was
decided in between is no part of that key: another compile would be given code that it did not ask
for. Inductor's methods are replaced once a process by dispatchers that ask a context variable.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch.fx
from torch._inductor.codecache import FxGraphCache

from fusewise.compiler.inductor.replacing import holding, once

_cache: Any = FxGraphCache


@dataclass
class CacheKey:
    """Of one compile."""

    #: What Inductor asked for it with, but for the graph; None where it did not.
    asked: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    #: The graph as it was handed to Inductor, to ask for another key with; None to keep the key.
    changed: torch.fx.GraphModule | None = None

    def change(self, gm: torch.fx.GraphModule) -> None:
        """Have the graph kept as one that is compiled under what is in force when it is kept.

        ``gm``: a copy of the graph as it was handed to Inductor, which may change it.
        """
        self.changed = gm


_key: ContextVar[CacheKey | None] = ContextVar("fusewise_cache_key", default=None)


@contextmanager
def cache_key() -> Iterator[CacheKey]:
    """The key of the one compile in this context, which may be changed."""
    _install()
    key = CacheKey()
    with holding(_key, key):
        yield key


_prepare_key = _cache.prepare_key


@once
def _install() -> None:
    save = _cache._save_graph

    @functools.wraps(_prepare_key)
    def prepare_key(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        key = _key.get()
        # A compile to the end while this one waits asks for a key of its own.
        if key is not None and key.asked is None:
            key.asked = args, kwargs
        return _prepare_key(gm, *args, **kwargs)

    @functools.wraps(save)
    def save_graph(name: str, compiled: Any, *args: Any, **kwargs: Any) -> None:
        key = _key.get()
        if key is None or key.changed is None:
            save(name, compiled, *args, **kwargs)
            return
        assert key.asked is not None, "a graph is kept that no key was asked for"
        found, _ = _prepare_key(key.changed, *key.asked[0], **key.asked[1])
        if found is not None:
            compiled._fx_graph_cache_key = found[0]
            save(found[0], compiled, *args, **kwargs)

    _cache.prepare_key = staticmethod(prepare_key)
    _cache._save_graph = staticmethod(save_graph)

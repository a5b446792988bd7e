"""The key of a graph: what a stored choice holds for, in named parts.

A part each for the captured graph, its inputs, how it is to be compiled, Inductor's settings, the
versions and the device, so that a miss can say which one differed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

import fusewise
from fusewise.compiler.inductor.origins import operations
from fusewise.compiler.inductor.settings import portable_settings
from fusewise.schedule.rules import RuleSet


@dataclass(frozen=True)
class GraphKey:
    """Named hashes and the one made of all of them."""

    parts: Mapping[str, str]

    @property
    def key(self) -> str:
        """Hash over all parts."""
        return _hash(json.dumps(dict(sorted(self.parts.items()))))

    def differs(self, parts: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the parts in which ``parts`` is another graph or another setting."""
        names = dict.fromkeys((*self.parts, *parts))
        return tuple(name for name in names if parts.get(name) != self.parts.get(name))


#: Keyword arguments of a compile that decide its code.
_KWARGS = ("is_backward", "is_inference", "cpp_wrapper", "static_input_idxs", "layout_opt")


def graph_key(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    device_key: str,
    model_id: str,
    rules: RuleSet | None = None,
) -> GraphKey:
    """Key of one graph as AOTAutograd hands it over. Call it under the settings that will hold.

    ``rules`` are a part of it where there are any, with what they can tell operations apart by.
    """
    symbols: dict[str, str] = {}
    by_rules = {} if rules is None or not rules.rules else {"rules": _hash(_selected(rules, gm))}
    return GraphKey(
        {
            "graph": _hash("\n".join(_graph_lines(gm, symbols))),
            "inputs": _hash(repr([_input(value, symbols) for value in example_inputs])),
            "compile": _hash(repr([(name, _plain(kwargs.get(name))) for name in _KWARGS])),
            "settings": _hash(_settings()),
            "versions": _hash(f"{torch.__version__} {fusewise.__version__} {_triton_version()}"),
            "device": _hash(f"{device_key} {_determinism()}"),
            "model": _hash(model_id),
            **by_rules,
        }
    )


def _selected(rules: RuleSet, gm: torch.fx.GraphModule) -> str:
    """The rules, and all that they look at beside operators: equal graphs can differ in it."""
    lines = [rules.id]
    for found in operations(gm):
        looked_at = {"node": found.name, "module": found.module, "source": found.source}
        seen = [text for name, text in looked_at.items() if rules.looks_at(name)]
        lines.append(" ".join([*seen, found.written_as]))
    return "\n".join(lines)


def _settings() -> str:
    settings = portable_settings()
    return "\n".join(f"{name}={_named(value)}" for name, value in sorted(settings.items()))


def _named(value: Any) -> str:
    """Text that is the same in every process: a function by its name, not its address."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"
    return repr(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


def _determinism() -> str:
    return f"{torch.are_deterministic_algorithms_enabled()} {torch.get_float32_matmul_precision()}"


def _graph_lines(gm: torch.fx.GraphModule, symbols: dict[str, str]) -> Iterable[str]:
    numbers: dict[torch.fx.Node, int] = {}
    for i, node in enumerate(gm.graph.nodes):
        numbers[node] = i
        target = node.target if isinstance(node.target, str) else str(node.target)
        if node.op == "placeholder":
            target = ""
        elif node.op == "get_attr":
            value = getattr(gm, str(node.target), None)
            if isinstance(value, torch.fx.GraphModule):
                yield from _graph_lines(value, symbols)
            target = str(_input(value, symbols)) if isinstance(value, torch.Tensor) else ""
        # Choices about single nodes call them by name. Of inputs, only the position counts.
        name = node.name if node.op == "call_function" else str(i)
        yield f"{name} {node.op} {target} {_arguments(node.args, numbers, symbols)} " + _arguments(
            node.kwargs, numbers, symbols
        )


def _arguments(value: Any, numbers: Mapping[torch.fx.Node, int], symbols: dict[str, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_arguments(v, numbers, symbols) for v in value)}]"
    if isinstance(value, Mapping):
        items = (f"{k}={_arguments(v, numbers, symbols)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, torch.SymInt):
        return _symbolic(value, symbols)
    return str(value)


def _input(value: Any, symbols: dict[str, str]) -> tuple[Any, ...]:
    if not isinstance(value, torch.Tensor):
        return (type(value).__name__, _symbolic(value, symbols))
    sizes = tuple(_symbolic(n, symbols) for n in value.shape)
    if value.layout is not torch.strided:
        return ("tensor", str(value.dtype), sizes, str(value.layout), value.device.type)
    strides = tuple(_symbolic(n, symbols) for n in value.stride())
    return ("tensor", str(value.dtype), sizes, strides, value.device.type)


def _symbolic(value: Any, symbols: dict[str, str]) -> str:
    """A number, or a symbol under the name of its first appearance and the magnitude of its hint.

    Which schedule is fast depends on how large a dynamic size is, but not on its exact value.
    """
    if not isinstance(value, torch.SymInt):
        return str(value)
    text = str(value.node.expr)
    if text not in symbols:
        hint = value.node.hint if value.node.has_hint() else None
        magnitude = int(hint).bit_length() if isinstance(hint, int) else "?"
        symbols[text] = f"s{len(symbols)}~{magnitude}"
    return symbols[text]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value

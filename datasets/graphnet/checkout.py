"""A checkout of GraphNet: which samples it holds, in what order they are drawn.

Reads names and the ends of files; never parses or runs a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fusewise.datasets.graphnet.families import NEAR_TEST, architecture
from fusewise.schedule.errors import CorpusError

GET_IT = "git clone https://github.com/PaddlePaddle/GraphNet and give the folder that it makes"

#: How much of a model's end tells it from others: its last blocks, with the numbers of their
#: values, which count the blocks before.
_TAIL = 1 << 15
_WEIGHT_NAME = re.compile(rb"\b[lL]_\w+")
#: Widths tell models apart; numbers of tokens, which are small here, do not.
_SMALL_NUMBER = re.compile(rb"(?<![\w.])\d{1,2}(?![\w.])")
_SPACE = re.compile(rb"[\s()]+")


@dataclass(frozen=True)
class Checkout:
    """The samples below a folder.

    Args:
        root: the checkout, or its ``samples`` folder.

    Raises:
        CorpusError: there is nothing like that; says how to get it.
    """

    root: Path

    def __post_init__(self) -> None:
        folder = self.samples
        if not folder.is_dir() or not any(folder.glob("*/*/graph_net.json")):
            raise CorpusError(
                f"{str(self.root)!r} holds no samples of GraphNet",
                subject="GraphNet corpus",
                remedy=GET_IT,
            )

    @property
    def samples(self) -> Path:
        """The folder that holds the collections."""
        inside = self.root / "samples"
        return inside if inside.is_dir() else self.root

    @cached_property
    def architectures(self) -> dict[str, str]:
        """Architecture of each sample, by the sample's path below ``samples``; sorted."""
        found: dict[str, str] = {}
        for folder, below, files in os.walk(self.samples):
            below.sort()
            if "model.py" in files and "graph_net.json" in files:
                path = Path(folder)
                name = path.relative_to(self.samples).as_posix()
                if name not in NEAR_TEST:
                    found[name] = architecture(name, _tags(path / "graph_net.json"))
        return dict(sorted(found.items()))

    def in_turn(self, seed: int) -> Iterator[str]:
        """All samples but repeated ones, the architectures of all collections in turn."""
        source = random.Random(f"graphnet/{seed}")
        groups: dict[tuple[str, str], list[str]] = {}
        for name, kind in self.architectures.items():
            groups.setdefault((name.split("/")[0], kind), []).append(name)
        turns = list(groups.values())
        source.shuffle(turns)
        for group in turns:
            source.shuffle(group)
        seen: set[bytes] = set()
        while turns:
            for group in turns:
                drawn = self._next(group, seen)
                if drawn is not None:
                    yield drawn
            turns = [group for group in turns if group]

    def _next(self, group: list[str], seen: set[bytes]) -> str | None:
        while group:
            name = group.pop()
            mark = _mark(self.samples / name / "model.py")
            if mark not in seen:
                seen.add(mark)
                return name
        return None


def _tags(path: Path) -> list[str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("original_tag")
    except (OSError, ValueError, AttributeError):
        return []
    return [str(tag) for tag in found] if isinstance(found, list) else []


def _mark(path: Path) -> bytes:
    """Equal for models whose code ends alike but for names of weights and numbers of tokens."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read()
    except OSError:
        return str(path).encode()
    text = _SPACE.sub(b"", _SMALL_NUMBER.sub(b"0", _WEIGHT_NAME.sub(b"w", text)))
    # What is cut off at the start depends on the lengths of the names that were replaced.
    return hashlib.sha256(text[-_TAIL // 4 :]).digest()

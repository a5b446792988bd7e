"""Offers: codegen choices that are worth trying on a chosen plan, and what they might save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fusewise.schedule.schedule import Choice

#: Part of a plan's time that an offer has to promise: the gate takes no gain below one percent.
LEAST_SHARE: Final = 0.01


@dataclass(frozen=True)
class Offer:
    """Codegen choices to try on a plan."""

    choices: tuple[Choice, ...]
    #: What they might save, by a rough estimate; microseconds.
    gain_us: float
    #: Why they are offered.
    reason: str
    #: What of that no contest has to find out: by choices that made nothing slower yet.
    sure_us: float = 0.0

    def __add__(self, other: Offer) -> Offer:
        return Offer(
            tuple(sorted((*self.choices, *other.choices))),
            self.gain_us + other.gain_us,
            f"{self.reason}; {other.reason}",
            self.sure_us + other.sure_us,
        )


def best_two(every: Iterable[Offer | None]) -> list[Offer]:
    """Of some offers the best, and it with the next."""
    offers = sorted((o for o in every if o is not None), key=lambda o: (-o.gain_us, o.choices))
    return [offers[0], offers[0] + offers[1]] if len(offers) > 1 else offers


def on_top(codegen: Iterable[Choice], offer: Offer) -> tuple[Choice, ...]:
    """The codegen choices of a schedule with those of an offer."""
    return tuple(sorted({*codegen, *offer.choices}))

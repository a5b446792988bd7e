"""The beam over the plans of one part.

Works as a generator that yields the groups whose cost it needs next, so that many parts can go
step by step together and have all their groups scored in one call.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fusewise.schedule.problem import bits
from fusewise.search.part import Masks, Move, Part

#: Moves tried for each place in the beam before a step gives up on filling it.
_TRIES: Final = 8
#: Steps without a better plan after which a part is done.
_PATIENCE: Final = 4
#: A gain smaller than this part of the time is none: float noise must not make moves.
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one part may spend."""

    #: Plans kept from step to step.
    width: int
    #: Complete plans built.
    states: int


class State(NamedTuple):
    """A complete plan of a part. Ordered by time, then by the groups, so that ties are settled."""

    us: float
    key: Masks
    masks: Masks
    #: What it descends from: ``default`` itself, ``neighbour`` by one move from it, ``beam`` by
    #: more; ``unfused`` itself, ``constructive`` by moves from that.
    origin: str

    @property
    def derived(self) -> bool:
        """Whether it is the default or descends from it."""
        return self.origin in {"default", "neighbour", "beam"}

    @property
    def heir(self) -> str:
        """Origin of a plan that is one move from this one."""
        if self.origin == "default":
            return "neighbour"
        return "beam" if self.derived else "constructive"


class PartBeam:
    """Searches one part; :attr:`found` holds what is known so far at any moment."""

    def __init__(self, part: Part, *, construct: bool) -> None:
        """Args:
        part: what is searched.
        construct: whether it starts from the default, and so also from nothing fused and from a
            constructive beam; else from what an earlier search has found.
        """
        self.part = part
        self._construct = construct
        self._origin = "default" if construct else "beam"
        #: Every complete plan built, by its groups.
        self.found: dict[Masks, State] = {}
        #: Whether the limit on states ended the search.
        self.exhausted = False
        self._limits = Limits(1, 1)
        self._best = float("inf")

    @property
    def start(self) -> State:
        """The plan that the part was started from; its groups must have been scored."""
        return self._add(self.part.start, self._origin)

    def ranked(self, keep: int) -> list[State]:
        """The ``keep`` best plans found, best first."""
        return heapq.nsmallest(keep, self.found.values())

    def steps(self, limits: Limits) -> Generator[list[int], None, None]:
        """Search, yielding at each step the masks to be scored before it goes on."""
        part = self.part
        self._limits = limits
        yield part.unknown(dict.fromkeys((*part.start, *part.loose)))
        beam = [self.start]
        if self._construct and part.start != part.loose:
            beam.append(self._add(part.loose, "unfused"))
        if self._construct:
            built = yield from self._constructed()
            beam += built
        beam = sorted(set(beam))[: self._limits.width]
        waited = 0
        while beam and waited < _PATIENCE:
            before = self._best
            beam = yield from self._step(beam)
            waited = 0 if self._best < before - _NOTHING * abs(before) else waited + 1
            if len(self.found) >= self._limits.states:
                self.exhausted = True
                return

    def _add(self, masks: Masks, origin: str, us: float | None = None) -> State:
        key = tuple(sorted(masks))
        known = self.found.get(key)
        if known is None:
            if us is None:
                us = sum(self.part.us[mask] for mask in masks)
            known = self.found[key] = State(us, key, masks, origin)
            self._best = min(self._best, us)
        return known

    def _constructed(self) -> Generator[list[int], None, list[State]]:
        """From nothing fused, fuse or leave each pair that touches, in dependency order."""
        part = self.part
        width = max(2, self._limits.width // 2)
        beam = [self._add(part.loose, "unfused")]
        for bit in part.alone:
            for other_at in bits(part.near(bit) & (bit - 1)):
                if len(self.found) >= self._limits.states:
                    return beam
                other = 1 << other_at
                merges: list[tuple[State, Move]] = []
                for state in beam:
                    a = next(m for m in state.masks if m & other)
                    b = next(m for m in state.masks if m & bit)
                    if a != b:
                        merges.append((state, Move("merge", a, b)))
                fresh = part.unknown(dict.fromkeys(m for _, mv in merges for m in mv.added()))
                if fresh:
                    yield fresh
                ranked = sorted((state.us + part.gain(mv), state, mv) for state, mv in merges)
                worst = beam[-1].us if len(beam) >= width else float("inf")
                for us, state, move in ranked:
                    if us <= worst:
                        made = self._take(state, move, us)
                        if made is not None:
                            beam.append(made)
                beam = sorted(set(beam))[:width]
        return beam

    def _take(self, state: State, move: Move, us: float) -> State | None:
        masks = self.part.applied(state.masks, move)
        if masks is None:
            return None
        if tuple(sorted(masks)) not in self.found and not self.part.build(move):
            return None
        return self._add(masks, state.heir, us)

    def _step(self, beam: list[State]) -> Generator[list[int], None, list[State]]:
        """The next beam: the best new neighbours of this one, and one bold step from its best."""
        part = self.part
        # Moves of single nodes are the most by far, so only the best plan is looked at for them.
        moves = [part.moves(state.masks, shifts=at == 0) for at, state in enumerate(beam)]
        fresh = part.unknown(dict.fromkeys(m for some in moves for mv in some for m in mv.added()))
        if fresh:
            yield fresh
        ranked = [
            (state.us + part.gain(move), at, move)
            for at, (state, some) in enumerate(zip(beam, moves, strict=True))
            for move in some
        ]
        known = len(self.found)
        following = {self._bold(beam[0], moves[0])}
        heapq.heapify(ranked)
        tries = _TRIES * self._limits.width
        while ranked and tries and len(following) <= self._limits.width:
            us, at, move = heapq.heappop(ranked)
            masks = part.applied(beam[at].masks, move)
            if masks is None:
                continue
            same = self.found.get(tuple(sorted(masks)))
            if same is not None:
                if beam[at].derived and not same.derived:
                    self.found[same.key] = same._replace(origin=beam[at].heir)
                continue
            tries -= 1
            if part.build(move):
                following.add(self._add(masks, beam[at].heir, us))
        if len(self.found) == known:
            return []
        return sorted(following)[: self._limits.width]

    def _bold(self, state: State, moves: Iterable[Move]) -> State:
        """All moves at once that make ``state`` better and do not get into each other's way."""
        part = self.part
        better = sorted(
            (gain, move)
            for move in moves
            for gain in (part.gain(move),)
            if gain < -_NOTHING * state.us
        )
        masks, us = state.masks, state.us
        present = set(masks)
        for gain, move in better:
            if all(mask in present for mask in move.removed()):
                after = part.applied(masks, move)
                if after is not None and part.build(move):
                    masks, us = after, us + gain
                    present.difference_update(move.removed())
                    present.update(move.added())
        return self._add(masks, "beam" if state.derived else "constructive", us)

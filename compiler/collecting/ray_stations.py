"""Stations on a Ray cluster: an actor for each GPU, or for each node where the CPU is timed.

The driver asks each actor by one call at a time and does not wait for it: a slow actor holds up
nobody. What dies costs what was in flight there, and is started again on its node; a station that
cannot be is given up with its reason. Only the driver writes a store.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import fusewise
from fusewise.compiler.collecting.ray_cluster import (
    Place,
    Shared,
    connect,
    first,
    imported,
    places,
)
from fusewise.compiler.collecting.remote import Exchange
from fusewise.compiler.collecting.work import Batch, Item, Settings, Usage
from fusewise.schedule.errors import FusewiseError, MeasureError, UnsupportedError

log = logging.getLogger(__name__)

#: Seconds in which actors have to be there; who comes later joins in.
_START_S = 180.0
#: Seconds that an actor may wait for something to tell.
_LINGER_S = 0.3
#: An actor that leaves a call unanswered for so long is taken for dead.
_SILENT_S = 300.0
#: Seconds that actors have to end their processes.
_CLOSE_S = 8.0
#: Times that an actor is started again in the place of one that died.
_MOST_RESTARTS = 3


@contextmanager
def ray_stations(
    address: str,
    settings: Settings,
    timed: Callable[[str], Mapping[str, int]],
    *,
    actors: int | None = None,
) -> Iterator[list[RemoteStation]]:
    """Stations on all GPUs of a Ray cluster, or on all its nodes where ``settings.device`` is cpu.

    Args:
        address: of the cluster; ``auto`` for the one that runs here, ``local`` to start one. A
            process that is connected already keeps its connection.
        settings: for each station; ``home`` is where the driver keeps profiles and models.
        timed: how often kernels were timed, by signature, on the device of a key.
        actors: on each CPU node so many that share its cores, for tests; None for one that has
            the node for itself.

    Raises:
        UnsupportedError: Ray is not installed, the cluster has no such device, or fusewise is
            missing on its nodes.
        MeasureError: the cluster cannot be reached, or no actor could be started.
        FusewiseError: what kept every station from starting.
    """
    ray = imported()
    connected = ray.is_initialized()
    if not connected:
        connect(ray, address)
    stations: list[RemoteStation] = []
    try:
        found = places(ray, address, settings, actors)
        shared = Shared(ray, settings, timed, exclusive=actors is None)
        stations += [RemoteStation(shared, place) for place in found]
        _wait_for(stations, address)
        yield stations
    finally:
        _end(ray, stations)
        if not connected:
            ray.shutdown()


class RemoteStation:
    """The driver's end of one station."""

    def __init__(self, shared: Shared, place: Place) -> None:
        self.place = place
        #: "" until the node has told it.
        self.device_key = ""
        self._shared = shared
        self._ray = shared.ray
        self._state: Literal["naming", "profiling", "starting", "working", "gone"] = "naming"
        self._failure: FusewiseError | None = None
        #: Given, and not known to be through.
        self._given: dict[Item, None] = {}
        #: Of these, not yet sent.
        self._unsent: list[Item] = []
        self._news: list[str] = []
        self._lost: list[Item] = []
        #: What an actor that is started in place of another has to know.
        self._counts: Counter[str] = Counter()
        self._room = 0
        self._usage = Usage()
        #: Of actors that died.
        self._before = Usage()
        self._restarts = 0
        self._actor: Any = None
        self._answer: Any = None
        self._asked = 0.0
        self._begin()

    @property
    def is_starting(self) -> bool:
        """Whether it can take no items yet."""
        return self._state not in ("working", "gone")

    def failure(self) -> FusewiseError | None:
        """Why it can do nothing any more; None where it can."""
        return self._failure

    def room(self) -> int:
        """How many more items it can take, as far as is known."""
        return max(0, self._room - len(self._unsent)) if self._state == "working" else 0

    def idle(self) -> bool:
        """Whether everything that was given is through, or lost."""
        return not self._given

    def lost(self) -> list[Item]:
        """Items that were in flight when it died, once."""
        lost, self._lost = self._lost, []
        return lost

    def submit(self, items: Sequence[Item], news: Sequence[str] = ()) -> None:
        """Take items, and signatures of what was timed elsewhere meanwhile."""
        self._given.update(dict.fromkeys(items))
        self._unsent += items
        self._news += news
        self._counts.update(news)

    def poll(self, timeout_s: float) -> list[Batch]:
        """Batches of the actor's last answer, waiting for that no longer than ``timeout_s``."""
        if self._state == "gone":
            return []
        ready, _ = self._ray.wait([self._answer], timeout=timeout_s)
        if not ready:
            # An actor that waits for a GPU or for cores to become free is not silent.
            if not self.is_starting and time.monotonic() - self._asked > _SILENT_S:
                self._died(f"said nothing for {_SILENT_S:.0f} s")
            return []
        try:
            return self._advance(self._ray.get(ready[0]))
        except FusewiseError as error:
            self._give_up(error)
        except self._ray.exceptions.RayTaskError as error:
            self._give_up(self._blamed(error))
        except self._ray.exceptions.RayError as error:
            told = str(error)
            if "No module named" in told:
                self._give_up(self._missing(told))
            else:
                self._died(first(told))
        return []

    def usage(self) -> Usage:
        """Where the time went, as the actor told last."""
        return self._before.plus(self._usage)

    def close(self) -> None:
        """Have the actor end its processes; :func:`ray_stations` waits for that."""
        if self._actor is not None and self._state != "gone":
            self._state = "gone"
            self._answer = self._actor.close.remote()

    def kill(self) -> None:
        """End the actor, and with it all its processes."""
        if self._actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(self._actor)
            self._actor = None

    def ending(self) -> Any:
        """The answer to :meth:`close`, to wait for; None where there is none."""
        return self._answer if self._actor is not None else None

    # What follows what.

    def _begin(self) -> None:
        self._actor = self._shared.actor(self.place)
        self._ask("naming", self._actor.named)

    def _ask(
        self,
        state: Literal["naming", "profiling", "starting", "working"],
        method: Any,
        *arguments: Any,
    ) -> None:
        self._state = state
        self._answer = method.remote(*arguments)
        self._asked = time.monotonic()

    def _advance(self, answer: Any) -> list[Batch]:
        """Take an answer and ask what comes next."""
        batches: list[Batch] = []
        if self._state == "naming":
            self.device_key, version = answer
            if version != fusewise.__version__:
                raise self._other_version(version)
            if self._shared.profile(self.device_key) is None:
                self._ask("profiling", self._actor.profile)
                return batches
            self._start()
        elif self._state == "profiling":
            self._shared.keep_profile(self.device_key, answer)
            self._start()
        elif self._state == "starting":
            self._exchange()
        else:
            assert isinstance(answer, Exchange)
            batches = answer.batches
            self._room, self._usage = answer.room, answer.usage
            for batch in batches:
                self._counts.update(batch.signatures)
                if batch.finished:
                    self._given.pop(batch.item, None)
            if answer.failure is not None:
                self._give_up(answer.failure)
            else:
                self._exchange()
        return batches

    def _start(self) -> None:
        if not self._counts:
            self._counts.update(self._shared.timed(self.device_key))
        profile = self._shared.profile(self.device_key)
        models, model = self._shared.models(self.device_key)
        self._ask("starting", self._actor.start, profile, models, model, dict(self._counts))

    def _exchange(self) -> None:
        items, self._unsent = self._unsent, []
        news, self._news = self._news, []
        self._room = max(0, self._room - len(items))
        self._ask("working", self._actor.exchange, items, news, _LINGER_S)

    # What goes wrong.

    def _died(self, what: str) -> None:
        """Items that were there are lost; another actor is started in its place."""
        self._forget()
        self._before, self._usage = self._before.plus(self._usage), Usage()
        self._before.lost += 1
        if self._restarts == _MOST_RESTARTS:
            self._give_up(
                MeasureError(
                    f"its actor died {_MOST_RESTARTS + 1} times, the last time: {what}",
                    subject=f"station on {self.place.host}",
                    remedy="look into Ray's logs of that node",
                )
            )
            return
        self._restarts += 1
        log.warning("the station on %s died and is started again: %s", self.place.host, what)
        self._begin()

    def _give_up(self, error: FusewiseError) -> None:
        self._forget()
        self._failure = error
        self._state = "gone"

    def _forget(self) -> None:
        self._lost += self._given
        self._given, self._unsent = {}, []
        self._room = 0
        self.kill()

    def _blamed(self, error: Any) -> FusewiseError:
        cause = error.cause
        if isinstance(cause, FusewiseError):
            return cause
        if isinstance(cause, ModuleNotFoundError):
            return self._missing(str(cause))
        return MeasureError(
            f"{type(cause).__name__}: {first(str(cause))}",
            subject=f"station on {self.place.host}",
            remedy="look into Ray's logs of that node",
        )

    def _missing(self, told: str) -> UnsupportedError:
        lines = [line for line in told.splitlines() if "No module named" in line]
        return UnsupportedError(
            lines[-1].strip() if lines else told,
            subject=f"node {self.place.host} of the Ray cluster",
            remedy="install the same fusewise and torch on every node: pip install fusewise[ray]",
        )

    def _other_version(self, version: str) -> UnsupportedError:
        return UnsupportedError(
            f"it has fusewise {version}, this is {fusewise.__version__}",
            subject=f"node {self.place.host} of the Ray cluster",
            remedy="install the same fusewise on every node",
        )


def _wait_for(stations: Sequence[RemoteStation], address: str) -> None:
    """Wait until all stations work or failed; for a while only, where one works.

    Raises:
        FusewiseError: what kept all of them from working.
    """
    deadline = time.monotonic() + _START_S
    while any(s.is_starting for s in stations) and time.monotonic() < deadline:
        for station in stations:
            station.poll(0.5 / len(stations))
    failures = [failure for station in stations if (failure := station.failure())]
    if len(failures) == len(stations):
        raise failures[0]
    if all(s.is_starting for s in stations if s.failure() is None):
        raise MeasureError(
            f"none of {len(stations)} actors was started within {_START_S:.0f} s",
            subject=f"--ray {address}",
            remedy="see `ray status`: other work holds what they need",
        )


def _end(ray: Any, stations: Sequence[RemoteStation]) -> None:
    for station in stations:
        station.close()
    answers = [answer for station in stations if (answer := station.ending()) is not None]
    with contextlib.suppress(ray.exceptions.RayError):
        if answers:
            ray.wait(answers, num_returns=len(answers), timeout=_CLOSE_S)
    for station in stations:
        station.kill()

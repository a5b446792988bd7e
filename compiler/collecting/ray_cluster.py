"""A Ray cluster as stations see it: how it is reached, where actors go, what all of them need.

Starts actors and knows nothing of what they do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fusewise.compiler.collecting.remote import StationActor
from fusewise.compiler.collecting.station import SPARE_CORES
from fusewise.compiler.collecting.work import Settings
from fusewise.costmodel.model_file import SUFFIX
from fusewise.costmodel.registry import find_model, list_models
from fusewise.schedule.errors import MeasureError, UnsupportedError


@dataclass(frozen=True)
class Place:
    """Where an actor is to run, and with what."""

    node_id: str
    #: Address of the node.
    host: str
    cpus: float
    gpus: int
    #: Processes that compile.
    workers: int


class Shared:
    """What the stations of a cluster have in common."""

    def __init__(
        self,
        ray: Any,
        settings: Settings,
        timed: Callable[[str], Mapping[str, int]],
        *,
        exclusive: bool,
    ) -> None:
        self.ray = ray
        self.timed = timed
        self._settings = settings
        self._home = Path(settings.home)
        self._exclusive = exclusive

    def actor(self, place: Place) -> Any:
        """A new actor; it waits where what it needs is not free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = self.ray.remote(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node_id, soft=False),
        )(StationActor)
        settings = msgspec.structs.replace(self._settings, workers=place.workers)
        return kind.remote(settings, exclusive=self._exclusive)

    def profile(self, key: str) -> bytes | None:
        """The profile of the device, where the driver has it.

        One for all devices of a key: features hold it, and equal kernels must have equal ones.
        """
        path = self._profile_path(key)
        return path.read_bytes() if path.is_file() else None

    def keep_profile(self, key: str, profile: bytes) -> None:
        """Keep the profile that a node measured, unless another node was faster."""
        path = self._profile_path(key)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(profile)

    def models(self, key: str) -> tuple[dict[str, bytes], str]:
        """Files of the model that the active strategy asks, and the name to ask for it by."""
        asked = self._settings.model
        if self._settings.strategy != "active" or asked == "roofline":
            return {}, asked
        if asked:
            path = find_model(asked, self._home)
            return {path.name: path.read_bytes()}, path.name.removesuffix(SUFFIX)
        for entry in list_models(self._home):
            if entry.usable and entry.manifest.profile.key == key:
                return {entry.path.name: entry.path.read_bytes()}, entry.name
        return {}, ""

    def _profile_path(self, key: str) -> Path:
        return self._home / "devices" / f"{key}.json"


def imported() -> Any:
    """Ray.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UnsupportedError(
            "Ray is not installed", subject="--ray", remedy="pip install fusewise[ray]"
        ) from error
    return ray


def connect(ray: Any, address: str) -> None:
    """Connect this process to the cluster at ``address``, or start one for ``local``.

    Raises:
        MeasureError: it cannot be reached.
    """
    # A cluster of this one process reports to nobody; one that runs already has been asked.
    options: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        raise MeasureError(
            f"no Ray cluster can be reached: {first(str(error))}",
            subject=f"--ray {address}",
            remedy="start one with `ray start --head`, give its address, or use --ray local",
        ) from error


def places(ray: Any, address: str, settings: Settings, actors: int | None) -> list[Place]:
    """Where actors go.

    Raises:
        UnsupportedError: no node has such a device.
    """
    found: list[Place] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        cpus = node["Resources"].get("CPU", 0.0)
        gpus = int(node["Resources"].get("GPU", 0))
        if settings.device == "cuda":
            # A station knows nothing of those beside it: the cores of a node are shared out here.
            workers = settings.workers or max(1, int(cpus) // max(gpus, 1) - SPARE_CORES)
            place = Place(node["NodeID"], node["NodeManagerAddress"], min(cpus, 1.0), 1, workers)
            found += [place] * gpus
        elif cpus:
            count = actors or 1
            share = cpus // count or cpus / count
            workers = settings.workers or max(1, int(share))
            place = Place(node["NodeID"], node["NodeManagerAddress"], share, 0, workers)
            found += [place] * count
    if not found:
        raise UnsupportedError(
            f"no node of the Ray cluster has a {'GPU' if settings.device == 'cuda' else 'core'}",
            subject=f"--ray {address}",
            remedy="start Ray on nodes that have one, or use another --device",
        )
    return found


def first(text: str) -> str:
    """The first line of what an error says."""
    return (text.strip().splitlines() or ["no reason is given"])[0][:300]

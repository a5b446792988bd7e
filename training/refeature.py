"""New features for kernels that were measured before, from the problems that were kept.

The one place where features of stored kernels are computed anew. Measures nothing: a time stays
good when what is known of the kernel is told in another way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.interface import FloatArray
from fusewise.datasets.rows import DeviceRow, KernelRow
from fusewise.datasets.samples import Problems
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError


def profile_of(row: DeviceRow, subject: str) -> DeviceProfile:
    """The profile that was stored with a device; ``subject`` is what errors name.

    Raises:
        ModelError: it is of another form.
    """
    told = {**row.profile, "key": row.key, "kind": row.kind, "name": row.name}
    try:
        return msgspec.convert(told, DeviceProfile, strict=False)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"the profile of device {row.key} is of another form: {error}",
            subject=subject,
            remedy="collect on the device again, which stores its profile anew",
        ) from error


def features_of(
    problems: Problems,
    profile: DeviceProfile,
    graph_keys: Iterable[str],
    nodes: Sequence[Sequence[str]],
) -> FloatArray:
    """Features [n, F] of this version of n kernels; nan in rows whose problem was not kept.

    Args:
        problems: by key.
        profile: of the device that the kernels ran on.
        graph_keys: [n], the problem of each kernel.
        nodes: [n], names of the nodes of each kernel.
    """
    by_graph: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(graph_keys):
        by_graph[key].append(row)
    features = np.full((len(nodes), len(FEATURES)), np.nan)
    for key, rows in by_graph.items():
        if key in problems:
            featurizer = Featurizer(problems[key], profile)
            features[rows] = featurizer.batch([nodes[row] for row in rows])
    return features


def refeature(store: Store) -> int:
    """Give kernels with features of another version those of this one; how many got them.

    Kernels whose problem was not kept stay as they are, and are left out of training.

    Raises:
        StoreError: the store cannot be read or written.
        ModelError: the profile of a device is of another form.
    """
    problems = store.problems()
    devices = {device.key: device for device in store.devices()}
    outdated: dict[str, list[KernelRow]] = defaultdict(list)
    for row in cast(list[KernelRow], store.rows("kernels")):
        if row.features_version != FEATURES_VERSION and row.device_key in devices:
            outdated[row.device_key].append(row)
    changed = 0
    for device_key, rows in outdated.items():
        profile = profile_of(devices[device_key], f"store {store.path}")
        keys, nodes = [row.graph_key for row in rows], [row.nodes for row in rows]
        features = features_of(problems, profile, keys, nodes)
        changed += store.append(
            msgspec.structs.replace(
                row, features=values.tolist(), features_version=FEATURES_VERSION
            )
            for row, values in zip(rows, features, strict=True)
            if np.isfinite(values).all()
        )
    store.ingest()
    return changed

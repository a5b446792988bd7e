"""New features for the kernels of a store, from the problems that were kept.

Measures nothing: a time stays good when what is known of the kernel is told in another way.
"""

from __future__ import annotations

from collections import defaultdict
from typing import cast

import msgspec

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.datasets.rows import KernelRow
from fusewise.datasets.store import Store


def refeature(store: Store) -> int:
    """Give kernels with features of another version those of this one; how many got them.

    Kernels whose problem was not kept stay as they are, and are left out of training.

    Raises:
        StoreError: the store cannot be read or written.
    """
    problems = store.problems()
    profiles = {
        device.key: msgspec.convert(
            {**device.profile, "key": device.key, "kind": device.kind, "name": device.name},
            DeviceProfile,
            strict=False,
        )
        for device in store.devices()
    }
    outdated: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in cast(list[KernelRow], store.rows("kernels")):
        known = row.graph_key in problems and row.device_key in profiles
        if row.features_version != FEATURES_VERSION and known:
            outdated[row.graph_key, row.device_key].append(row)
    changed = 0
    for (graph_key, device_key), rows in outdated.items():
        features = Featurizer(problems[graph_key], profiles[device_key]).batch(
            [row.nodes for row in rows]
        )
        changed += store.append(
            msgspec.structs.replace(
                row, features=values.tolist(), features_version=FEATURES_VERSION
            )
            for row, values in zip(rows, features, strict=True)
        )
    store.ingest()
    return changed

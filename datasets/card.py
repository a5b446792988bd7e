"""The card of a published dataset: its manifest and the meaning of its columns, to be read.

Only words; every number is the manifest's and every column that of ``columns.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from string import Template
from typing import Final

from fusewise.datasets.columns import BLOCKS, PUBLISHED
from fusewise.datasets.manifest import Manifest

_MIB: Final = 1 << 20

_MEASURED: Final = {
    "cuda": """\
On a GPU, a kernel is launched many times in a row inside a captured CUDA graph, which CUDA events
time: neither the CPU nor the launch of a single kernel is in it. The L2 cache is warm, with what
the kernel itself left there. Inputs are like those that the program had: values of integer and
index tensors are the observed ones. Whole graphs are timed by replaying them as CUDA graphs (or by
plain calls where one cannot be captured), in rounds that take turns with the compiler's own
schedule.
""",
    "cpu": """\
On a CPU, a kernel is one generated C++ function, a loop nest each, called on inputs like those that
the program had: values of integer and index tensors are the observed ones. Threads are pinned, and
their number is part of the device. Caches are warm, with what the kernel itself left there. Whole
graphs are timed by plain calls, in rounds that take turns with the compiler's own schedule.
""",
}

_BLOCKS: Final = """\
- **Block sizes**: distinct Triton kernels with their source, each timed with the compiler's own
  block sizes and with others: half of them the nearest to those, half drawn from farther away. All
  sizes of a kernel are timed in turns where the kernel stands in a program, with a warm cache, on
  the same values. `Dataset.blocks()` gives them.
"""


def card(manifest: Manifest) -> str:
    """``CARD.md`` of a dataset."""
    template = resources.files("fusewise.datasets").joinpath("card.txt").read_text("utf-8")
    kinds = sorted({device.kind for device in manifest.devices})
    return Template(template).substitute(
        name=manifest.name,
        summary=_summary(manifest),
        created=f"{manifest.created:%Y-%m-%d}",
        torch=", ".join(manifest.torch_versions),
        devices=_devices(manifest),
        classes=_classes(manifest),
        blocks=_BLOCKS if manifest.has(BLOCKS) else "",
        measured="\n".join(_MEASURED[kind] for kind in kinds),
        noise=_noise(manifest),
        families=_families(manifest),
        corpora=_table(
            ("corpus", "licence", "graphs"),
            ((c.corpus, c.licence or "each its own", c.graphs) for c in manifest.corpora),
        ),
        columns=_columns(manifest),
        features=_features(manifest),
    )


def _summary(manifest: Manifest) -> str:
    kernels = manifest.kernels_of("train") + manifest.kernels_of("test")
    size = sum(file.bytes for file in manifest.files.values()) / _MIB
    schedules = sum(device.schedules for device in manifest.devices)
    return (
        f"{kernels:,} kernels,\n{manifest.problems:,} problems and {schedules:,} schedules of "
        f"{len(manifest.families):,} families, {size:.1f} MiB."
    )


def _devices(manifest: Manifest) -> str:
    told = any(device.blocks for device in manifest.devices)
    return _table(
        (
            *("device", "name", "threads", "kernels", "schedules", "extern calls", "failed"),
            *(["with block sizes"] * told),
        ),
        (
            (
                f"`{d.key}`",
                d.name,
                d.threads or "",
                d.kernels,
                d.schedules,
                d.externs,
                d.kernels_failed + d.schedules_failed,
                *([d.blocks] * told),
            )
            for d in manifest.devices
        ),
    )


def _classes(manifest: Manifest) -> str:
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for count in manifest.kernels:
        rows.setdefault((count.device_key, count.kernel_class), {})[count.split] = count.kernels
    return _table(
        ("device", "class", "train", "test"),
        (
            (f"`{device}`", kind, splits.get("train", 0), splits.get("test", 0))
            for (device, kind), splits in rows.items()
        ),
    )


def _noise(manifest: Manifest) -> str:
    found = manifest.repeatability
    if found.within_5_percent is None:
        return "No kernel of 5 µs or more was measured more than once.\n"
    return (
        f"Of the {found.kernels:,} kernels of 5 µs or more that were measured more than once, "
        f"{found.within_5_percent:.1%} have\nmedians that agree within 5 %, compared by the block "
        "sizes that they ran with. Shorter ones vary\nmore.\n"
    )


def _families(manifest: Manifest) -> str:
    return _table(
        ("family", "split", "graphs", "kernels", "schedules"),
        (
            (f"`{name}`", f.split, f.graphs, f.kernels, f.schedules)
            for name, f in manifest.families.items()
        ),
    )


def _columns(manifest: Manifest) -> str:
    parts = []
    for table, columns in PUBLISHED.items():
        if not manifest.has(table):
            continue
        file = manifest.files[f"{table}.parquet"]
        told = _table(
            ("column", "type", "unit", "meaning"),
            ((f"`{c.name}`", c.type, c.unit, c.meaning) for c in columns),
        )
        parts.append(f"\n### `{table}`\n\n{file.rows:,} rows, {file.bytes:,} bytes.\n\n{told}\n")
    return "".join(parts)


def _features(manifest: Manifest) -> str:
    version = f"Version {manifest.features_version} of the feature table"
    if not manifest.features:
        return f"{version}, which the fusewise that published this does not have."
    told = _table(
        ("place", "feature", "unit", "definition"),
        ((i, f"`{f.name}`", f.unit, f.definition) for i, f in enumerate(manifest.features)),
    )
    return f"{version}, in the order of the numbers in `kernels.features`.\n\n{told}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    told = [[f"{v:,}" if isinstance(v, int) else str(v) for v in row] for row in rows]
    lines = [head, ["---"] * len(head), *told]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)

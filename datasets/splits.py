"""Splits of samples by family, never by row.

Rows of one family are near copies of each other: a split by row would test on what was trained.
Which families are never trained or tuned on is fixed here, for all stores and versions, so that
models of different times are judged alike. Only says which rows go where; never moves or weighs
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from fusewise.schedule.errors import StoreError

Indices = npt.NDArray[np.int64]
Labels = Sequence[str] | npt.NDArray[np.object_]

#: Collections of GraphNet that may be trained on: the rest is for testing as a whole, since its
#: models come from other authors and for other tasks than anything that is trained on.
TRAINED_COLLECTIONS: Final = ("transformers-auto-model", "timm", "torchvision")

#: Architectures that are held out wherever they are from, by what their families begin with: about
#: one in six, of each kind, so that each kind has one that no model saw. An architecture is held
#: out as a whole, and in every corpus that has it, as its sizes and versions share their kernels.
HELD_OUT: Final[dict[str, tuple[str, ...]]] = {
    # Encoders, decoders, both, vision, audio, state space.
    "transformers": (
        "electra",
        "deberta",
        "gpt_neox",
        "qwen3",
        "bart",
        "swin",
        "swinv2",
        "wav2vec2",
        "mamba",
        # Also in collections that are for testing as a whole, and two of the same architecture.
        "hubert",
        "wavlm",
        "segformer",
        "unispeech",
        "data2vec_audio",
        # A segmenter, a straightener of pages, a reader of bytes.
        "mask2former",
        "uvdoc",
        "blt_patcher",
    ),
    # By timm's modules and by the models in them, which differ for some.
    "timm": (
        "swin",
        "swinv2",
        "mlp_mixer",
        "mixer",
        "resmlp",
        "gmlp",
        "densenet",
        "xcit",
        "cait",
        "res2net",
        "hrnet",
        "ghostnet",
        "maxxvit",
        "coatnet",
        "maxvit",
    ),
    # A normalisation, a piece of attention, a loss, a scatter, a layout, a tiny kernel; every sixth
    # random structure.
    "generated": (
        "group_norm",
        "rope",
        "kl_divergence",
        "graph_messages",
        "pixel_shuffle",
        "timestep_embedding",
        # The fourth of each module of programs from ``resized`` on.
        "resized_positions",
        "calendar",
        "differences",
        "lattice_boltzmann",
        "quantiles",
        "frequencies",
        "running_moments",
        "split_attention",
        "state_space",
        "total_correlation",
        "cell_fluxes",
        "byte_cache",
        "spatial_gating",
        "kept_codes",
        "polynomial_basis",
        "low_rank",
        # One of each subject that came with ``tabular`` and later.
        "field_crosses",
        "head_caches",
        "latent_worlds",
        "addressed_memory",
        "axial_scores",
        "compared_features",
        "object_context",
        "gathered_regions",
        "angles",
        "small_matrices",
        "streamed_scores",
        "folded_periods",
        "folded_windows",
        "thinned_maps",
        "radial_units",
        "substitutions",
        *(f"composed_{number:03d}" for number in range(5, 1600, 6)),
    ),
}

#: Where a collection of GraphNet has its architectures from.
_SAME_AS: Final = {"transformers-auto-model": "transformers", "torchvision": "timm"}


@dataclass(frozen=True)
class Split:
    """Row numbers of the two sides; no family stands on both."""

    train: Indices
    test: Indices


def split_of(family: str) -> Literal["train", "test"]:
    """Whether a family may be trained and tuned on; families that nobody held out may.

    Args:
        family: ``corpus/architecture``, or ``graphnet/collection/architecture``.
    """
    corpus, _, architecture = family.partition("/")
    if corpus == "graphnet":
        collection, _, architecture = architecture.partition("/")
        if collection not in TRAINED_COLLECTIONS:
            return "test"
        corpus = _SAME_AS.get(collection, collection)
    plain = architecture.lower().replace("-", "_")
    held = any(_is_one(name, plain) for name in HELD_OUT.get(corpus, ()))
    return "test" if held else "train"


def _is_one(name: str, architecture: str) -> bool:
    """Whether an architecture is of that name.

    "bart" is followed by a size or version, never by letters: "barthez" is something else. A number
    at the end is followed by no further digits.
    """
    more = "[a-z0-9]" if name[-1].isdigit() else "[a-z]"
    return re.match(f"{name}(?!{more})", architecture) is not None


def split_groups(family: Labels, graph_key: Labels) -> list[str]:
    """What each row is split by: its family, or its graph where it has none. n labels each.

    Raises:
        StoreError: the two are not of the same length.
    """
    if len(family) != len(graph_key):
        raise StoreError(
            f"{len(family)} families stand beside {len(graph_key)} graphs",
            subject="split",
            remedy="give one of each for every row",
        )
    return [str(f) or f"graph {g}" for f, g in zip(family, graph_key, strict=True)]


def split_by_family(groups: Labels, *, test_fraction: float = 0.2, seed: int = 0) -> Split:
    """One split in which about ``test_fraction`` of the groups are for testing.

    Args:
        groups: label of each row, see :func:`split_groups`.
        test_fraction: of the groups, not of the rows; at least one group is on each side.
        seed: equal seeds and groups give equal splits.

    Raises:
        StoreError: there are fewer than two groups.
    """
    from sklearn.model_selection import GroupShuffleSplit

    labels = np.asarray(groups, dtype=object)
    count = len(_at_least(labels, 2))
    test = min(count - 1, max(1, round(test_fraction * count)))
    splitter = GroupShuffleSplit(n_splits=1, test_size=test, random_state=seed)
    train_rows, test_rows = next(splitter.split(labels, groups=labels))
    return Split(train_rows, test_rows)


def folds_by_family(groups: Labels, *, folds: int = 5) -> list[Split]:
    """``folds`` splits, each group tested in exactly one of them; folds of about equal rows.

    Raises:
        StoreError: there are fewer groups than folds.
    """
    from sklearn.model_selection import GroupKFold

    labels = np.asarray(groups, dtype=object)
    _at_least(labels, folds)
    splitter = GroupKFold(n_splits=folds)
    return [Split(train, test) for train, test in splitter.split(labels, groups=labels)]


def _at_least(labels: npt.NDArray[np.object_], wanted: int) -> list[str]:
    found = sorted({str(label) for label in labels})
    if len(found) < wanted:
        named = f": {', '.join(found)}" if found else ""
        raise StoreError(
            f"samples are of {len(found)} families where {wanted} are needed{named}",
            subject="split",
            remedy="collect graphs of more families, or ask for fewer folds",
        )
    return found

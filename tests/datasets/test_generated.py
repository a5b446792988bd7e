from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
import torch

from fusewise.datasets.corpus import Corpus, GraphSample
from fusewise.datasets.generated import FAMILIES, GeneratedCorpus
from fusewise.datasets.generated.corpus import KINDS
from fusewise.datasets.generated.draw import Draw
from fusewise.datasets.splits import HELD_OUT

SMALL = 0.005
#: Families that are never trained.
UNTRAINED = {
    *("adam", "sgd", "many_small", "factored"),
    *("quantise", "dequantise", "eight_bit_floats", "integer_residual", "accumulated"),
    *("in_place", "key_cache", "decode_step", "ring", "slices", "pages"),
    *("counters", "histogram", "colours", "sampler_step"),
    *("framed", "decibels", "diffusion_step", "time_step", "lattice_boltzmann"),
    *("staggered", "forces", "running_moments", "clipped_gradients", "sampling_logits"),
    *("class_centres", "particles_on_grid", "cell_fluxes", "reactions", "depth_fusion"),
    *("reordered_beams", "draft_acceptance", "byte_cache", "tones", "mixed_batches"),
    *("calibrated", "hits", "kept_codes", "compressed", "filtered", "level_set"),
    *("single_updates", "single_lookups", "single_scans"),
    *("long_rows", "tall_columns", "single_transposes"),
    *("weight_updates", "guided_steps", "matching_costs", "parameter_sums"),
}

Run = Callable[[GraphSample], list[torch.Tensor]]
Drawn = Callable[[Corpus, int, int], list[GraphSample]]
Tensors = Callable[[object], list[torch.Tensor]]


@pytest.mark.parametrize("family", KINDS)
def test_families_run_forward_and_backward(family: str, drawn: Drawn, run: Run) -> None:
    samples = drawn(GeneratedCorpus(scale=SMALL, families=[family]), 12, 40)
    trained = [sample for sample in samples if sample.training]
    # Some are trained seldom.
    for sample in [*samples[:4], *trained[:1]]:
        assert sample.family == f"generated/{family}" and sample.licence
        run(sample)
    assert bool(trained) == (family not in UNTRAINED)


def test_equal_names_give_equal_programs_and_leave_the_global_state(
    run: Run, tensors: Tensors
) -> None:
    before = torch.random.get_rng_state()
    names = list(itertools.islice(GeneratedCorpus().names(3), 3 * len(KINDS) // 2))
    for name in names:
        (first,), (second,) = (GeneratedCorpus(scale=SMALL).build(name) for _ in range(2))
        assert first.name == second.name == name and first.training == second.training
        given = tensors(first.args), tensors(second.args)
        assert all(torch.equal(a, b) for a, b in zip(*given, strict=True))
    for name in names[::5]:
        found = []
        for _ in range(2):
            (sample,) = GeneratedCorpus(scale=SMALL).build(name)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                found.append(run(sample))
        assert all(map(torch.equal, *found))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert next(GeneratedCorpus().names(4)) != names[0]


def test_names_are_cheap_and_without_end() -> None:
    corpus: Corpus = GeneratedCorpus(scale=1e6)
    # Of this process: others may have the cores meanwhile.
    start = time.process_time()
    names = list(itertools.islice(corpus.names(0), 10_000))
    assert time.process_time() - start < 1.0
    assert len(set(names)) == len(names)
    families = [name.split("/")[0] for name in names]
    kinds = [family for family in families if family in KINDS]
    assert kinds[: len(KINDS)] == list(KINDS)
    # Every third is a random structure, and all of those come as often.
    assert len(kinds) == pytest.approx(len(names) * 2 / 3, abs=1)
    assert set(families) == set(FAMILIES)


def test_scale_scales(drawn: Drawn, tensors: Tensors) -> None:
    def elements(scale: float) -> int:
        samples = drawn(GeneratedCorpus(scale=scale), 0, 30)
        return sum(tensor.numel() for sample in samples for tensor in tensors(sample.args))

    assert elements(0.1) > 3 * elements(SMALL)


def test_all_dtypes_occur(drawn: Drawn, tensors: Tensors) -> None:
    samples = drawn(GeneratedCorpus(scale=SMALL), 0, 60)
    dtypes = {tensor.dtype for sample in samples for tensor in tensors(sample.args)}
    assert {torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool} <= dtypes


@pytest.mark.parametrize("scale", [0.25, 16.0])
def test_sizes_are_of_every_order_of_magnitude_and_bounded(scale: float) -> None:
    drawn = [Draw(str(seed), scale) for seed in range(1000)]
    sizes = [draw.numel for draw in drawn]
    assert min(sizes) < 2**12
    assert 0.2 < max(draw.numel * draw.dtype.itemsize for draw in drawn) / (2**25 * scale) <= 1
    assert sum(size > 2**16 for size in sizes) > 300


def test_large_tensors_are_drawn_in_part() -> None:
    x = Draw("0", 1.0).tensor((5, 1_000_003), grad=False)
    assert x.shape == (5, 1_000_003) and x.is_contiguous()
    assert abs(float(x.float().std()) - 1) < 0.01


def test_held_out_families_exist() -> None:
    assert set(HELD_OUT["generated"]) < set(FAMILIES)

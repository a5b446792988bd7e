"""Samples of one call until its median is known well enough, or the time for it is up.

Knows seconds and disturbances; knows nothing of what is called.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fusewise.search.samples import interval_rank, summary

#: Samples that a call gets which takes longer than there is time for.
_LEAST_SAMPLES = 3
#: Of so many samples the fastest counts as undisturbed, but this many where they are half at most:
#: the fewest whose median has a 95 % interval.
_FASTEST, _WITH_INTERVAL = 4, 6
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class BlockTimes:
    """Times of one kernel with several block sizes."""

    #: Median microseconds of a launch with each, None where there is none.
    us: tuple[float | None, ...]
    #: Samples of each, but for those that take long by themselves.
    rounds: int
    #: Half the distance between the quartiles of the samples over their median, the middle one of
    #: all; None where none was sampled so often.
    spread: float | None


@dataclass
class CallTimes:
    """Times of one call in a program."""

    #: Name of the generated kernel; "" for an extern call.
    kernel: str
    #: Microseconds for one launch, one value a sample, on the CPU as at its usual pace; empty where
    #: it was not to be timed.
    samples: list[float] = field(default_factory=list)
    #: Whether the interval of the median is as narrow as was asked for.
    settled: bool = False
    #: How time was taken. On the CPU ``c loop``, or ``calls`` from Python; on a GPU ``cuda graph``
    #: of many launches, ``cuda graph less copies`` where inputs are put back before each launch, or
    #: ``events`` round a launch that cannot be captured, some microseconds of launching included.
    clock: str = ""
    #: Samples left out because another program got in between.
    dropped: int = 0
    #: Whether so many were disturbed that some had to be kept, or the processor had slowed down.
    disturbed: bool = False
    #: On the CPU: how much longer standard pieces of work took beside them than at full pace,
    #: arithmetic and what goes through a core's second cache.
    slowness: float = 1.0
    drag: float = 1.0
    #: Why there are no samples of a call that was to be timed; "" where there are.
    failure: str = ""
    #: Block sizes and warps of a Triton kernel, as tuned.
    config: str = ""
    #: How often it was gone over, at different moments.
    passes: int = 1
    #: With each of the block sizes that it was to be timed with; None where there were none.
    blocks: BlockTimes | None = None


@dataclass(frozen=True)
class Effort:
    """How well to time each kernel: until it is known well, and no longer than it is worth."""

    #: Seconds a kernel, at most, but for one that takes longer by itself.
    seconds: float = 0.05
    min_samples: int = 9
    max_samples: int = 40
    #: Half the 95 % interval of the median, relative, at which more samples are no use.
    target_interval: float = 0.03


def undisturbed(samples: Sequence[float]) -> list[float]:
    """The fastest quarter of the samples, at least six or half of them, and three in any case.

    Whatever else runs on the machine, or on its host beside it, only ever adds time. On a quiet
    machine all quarters are alike.
    """
    quarter, half = -(-len(samples) // _FASTEST), len(samples) // 2
    return sorted(samples)[: max(_LEAST_SAMPLES, quarter, min(_WITH_INTERVAL, half))]


def together(passes: Sequence[Sequence[CallTimes]], target: float) -> list[CallTimes]:
    """The calls of a program that was gone over several times, each with its undisturbed samples.

    What slows a machine down lasts longer than all samples of one pass, which then agree with each
    other and are wrong together; another pass meets another moment.

    Args:
        passes: the calls in their order, of each pass; at least one.
        target: as in :class:`Effort`.
    """
    named = [[call.kernel for call in calls] for calls in passes]
    alike = [calls for calls, names in zip(passes, named, strict=True) if names == named[0]]
    return [_of_all(calls, target) for calls in zip(*alike, strict=True)]


def _of_all(calls: Sequence[CallTimes], target: float) -> CallTimes:
    timed = [call for call in calls if call.samples]
    if not timed:
        return calls[0]
    good = [call for call in timed if not call.disturbed] or timed
    samples = undisturbed([sample for call in good for sample in call.samples])
    return dataclasses.replace(
        good[0],
        samples=samples,
        settled=is_settled(samples, target),
        dropped=sum(call.dropped for call in timed),
        slowness=min(call.slowness for call in good),
        drag=min(call.drag for call in good),
        passes=len(good),
    )


def is_settled(samples: Sequence[float], target: float) -> bool:
    """Whether half the 95 % interval of the median is at most ``target``, relative."""
    return (
        interval_rank(len(samples), _CONFIDENCE) > 0
        and summary(samples, confidence=_CONFIDENCE).half_width <= target
    )


def take_samples(
    times: CallTimes, effort: Effort, sample: Callable[[], tuple[float, bool]]
) -> None:
    """Fill ``times``.

    Args:
        times: gets the samples, in microseconds, and what is to be said of them.
        effort: when to stop.
        sample: takes one: seconds for one call, and whether it was disturbed.
    """
    began = time.perf_counter()
    left_out: list[float] = []
    while len(times.samples) + len(left_out) < effort.max_samples:
        seconds, disturbed = sample()
        (left_out if disturbed else times.samples).append(seconds * 1e6)
        if len(times.samples) >= effort.min_samples and is_settled(
            times.samples, effort.target_interval
        ):
            break
        taken = len(times.samples) + len(left_out)
        spent = time.perf_counter() - began
        if spent > effort.seconds and (
            taken >= effort.min_samples or (taken >= _LEAST_SAMPLES and spent > 4 * effort.seconds)
        ):
            break
    missing = min(effort.min_samples, len(times.samples) + len(left_out)) - len(times.samples)
    if missing > 0:
        # A disturbance only adds time: the shortest are the least disturbed.
        left_out.sort()
        times.samples += left_out[:missing]
        times.disturbed = True
    times.dropped = len(left_out) - max(missing, 0)
    times.settled = is_settled(times.samples, effort.target_interval)

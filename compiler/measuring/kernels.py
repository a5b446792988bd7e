"""Timing each kernel of a program where it stands: on the values that reach it in a real run.

The kernels are globals of the generated module. Each is replaced by a stand-in that, when the
program calls it, calls the kernel many times, takes the time, and puts back what it changed before
it lets the program go on. Everything is warm: inputs and outputs that fit are in the cache.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from fusewise.compiler.inductor.cpp_kernels import definitions
from fusewise.compiler.inductor.cpp_loading import repeater
from fusewise.compiler.inductor.effects import Effect, cpp_effects, triton_effects
from fusewise.compiler.measuring import cuda_clock, cuda_timing
from fusewise.compiler.measuring.block_timing import LoadedBlocks, time_blocks
from fusewise.compiler.measuring.flags import drawn, flag_places
from fusewise.compiler.measuring.pace import SLOW, Moment, Pace, at_usual_pace
from fusewise.compiler.measuring.quiet import Quiet
from fusewise.compiler.measuring.runs import memory
from fusewise.compiler.measuring.sampling import (
    BlockTimes,
    CallTimes,
    Effort,
    take_samples,
    undisturbed,
)
from fusewise.schedule.errors import first_line

__all__ = ["CallTimes", "Effort", "KernelTimer", "undisturbed"]

log = logging.getLogger(__name__)

#: One sample lasts at least this long, so that the clock's own cost does not count.
_SAMPLE_S = 3e-4
_MOST_REPEATS = 2000
#: Calls in a row of a kernel that changes its own inputs: more would make them unlike any that it
#: gets in earnest, and on a CPU denormal numbers are slow.
_MOST_UPDATES = 8
#: Calls on a CPU before any is timed, and the seconds after which fewer will do.
_WARM_CALLS, _WARM_S = 3, 3e-3
#: Seconds that a first call may take for a second one to be made undisturbed by others.
_FIRST_S = 0.25
#: Seconds to wait for a processor that has slowed down, before a kernel's samples, and samples that
#: are taken where that was in vain. Others may do something useful before it is gone over again.
_RECOVERY_S, _SLOW_SAMPLES = 0.05, 3
#: Of the seconds that a kernel is timed for, what an extern call gets, and its least samples.
_EXTERN_SHARE, _EXTERN_SAMPLES = 0.2, 5
#: Larger arguments are not copied and put back around a kernel's timing.
_MOST_COPIED_BYTES = 1 << 28


class KernelTimer:
    """Stand-ins for the kernels and extern calls of one loaded program."""

    def __init__(
        self,
        module: ModuleType,
        source: str,
        device: torch.device,
        effort: Effort,
        skipped: frozenset[tuple[str, int]] = frozenset(),
        pace: Pace | None = None,
        blocks: LoadedBlocks | None = None,
        flags: frozenset[str] = frozenset(),
    ) -> None:
        """Put the stand-ins in place.

        Args:
            module: the program.
            source: that it was loaded from.
            device: that it runs on.
            effort: how well to time each call.
            skipped: calls to leave untimed, by kernel name ("" for extern) and occurrence.
            pace: of the processor, as far as it has been seen in this process.
            blocks: kernels that are timed with several block sizes besides.
            flags: names of the program's variables that C++ kernels are timed on drawn flags in
                the place of, where they read them.
        """
        self._blocks = blocks
        self._device = device
        self._effort = effort
        self._skipped = skipped
        self._seen: Counter[str] = Counter()
        self._quiet = Quiet()
        self._pace = pace or Pace()
        self._rehearsing = False
        #: What was called, in order.
        self.calls: list[CallTimes] = []
        stand_ins: dict[str, Any] = {"torch": _Torch(self)}
        cpp = definitions(source)
        self._flags = flag_places(source, cpp, flags)
        for name, value in vars(module).items():
            if name in cpp:
                effects = cpp_effects(cpp[name][1])
                stand_ins[name] = _Function(self, name, value, effects)
            elif name.startswith("triton_") and hasattr(value, "run"):
                stand_ins[name] = _Launcher(self, name, value)
        for name in ("extern_kernels", "aten", "inductor_ops", "_quantized"):
            if hasattr(module, name):
                stand_ins[name] = _Namespace(self, getattr(module, name))
        self._module = module
        self._stood_for = {name: getattr(module, name) for name in stand_ins}
        vars(module).update(stand_ins)

    def leave(self) -> None:
        """Put back what stand-ins stand for: the program can be called, or timed again."""
        vars(self._module).update(self._stood_for)

    def rehearse(self, run: Callable[[], Any]) -> Any:
        """Run the program without timing it: kernels that tune themselves do so now.

        What is called is waited for, so that an error is of the last of :attr:`calls`.
        """
        self._rehearsing = True
        result = run()
        self._rehearsing = False
        self.calls, self._seen = [], Counter()
        return result

    def flags(self, kernel: str, args: Sequence[Any]) -> list[torch.Tensor]:
        """Those of the arguments of the next call of a C++ kernel that it is timed on others of."""
        calls, at = self._flags.get(kernel, ()), self._seen[kernel]
        return [args[i] for i in calls[at]] if at < len(calls) else []

    def time(
        self,
        kernel: str,
        call: Callable[[], Any],
        changed: Sequence[torch.Tensor],
        repeat: Callable[[int], float] | None = None,
        flags: Sequence[torch.Tensor] = (),
        also: Callable[[LoadedBlocks], BlockTimes | None] | None = None,
    ) -> Any:
        """Time ``call``, then leave its effects as if it had been called once.

        Args:
            kernel: name of the generated kernel; "" for an extern call.
            call: calls it once.
            changed: tensors that a second call would find changed by the first.
            repeat: calls it so many times and gives the seconds that took, if there is a way
                without Python.
            flags: tensors of flags that it reads and is timed on others of.
            also: times it with several block sizes, on the same values.
        """
        occurrence = (kernel, self._seen[kernel])
        self._seen[kernel] += 1
        times = CallTimes(kernel)
        self.calls.append(times)
        if self._rehearsing:
            result = call()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            return result
        if occurrence not in self._skipped:
            try:
                with drawn(flags):
                    self._time(times, call, changed, repeat)
            except Exception as error:  # noqa: BLE001 - the program may well run all the same
                times.samples.clear()
                times.failure = f"timing it: {first_line(error)}"
                self._recover()
            if also is not None and self._blocks is not None and times.samples:
                times.blocks = self._timed_blocks(also, self._blocks)
        return call()

    def _timed_blocks(
        self, also: Callable[[LoadedBlocks], BlockTimes | None], blocks: LoadedBlocks
    ) -> BlockTimes | None:
        try:
            return also(blocks)
        except Exception:
            # The kernel itself has been timed.
            log.debug("block sizes are not timed", exc_info=True)
            self._recover()
            return None

    def _recover(self) -> None:
        """Free what timing took; raises where the device can do nothing any more."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _time(
        self,
        times: CallTimes,
        call: Callable[[], Any],
        changed: Sequence[torch.Tensor],
        repeat: Callable[[int], float] | None,
    ) -> None:
        # Indices that were overwritten would send a second call out of bounds.
        single = any(not tensor.dtype.is_floating_point for tensor in changed)
        copied = [memory(t) for t in changed if t.numel() * t.itemsize <= _MOST_COPIED_BYTES]
        if single and len(copied) < len(changed):
            raise RuntimeError("it overwrites more than is copied to be put back")
        before = [t.clone() for t in copied]

        def restore() -> None:
            for tensor, value in zip(copied, before, strict=True):
                if self._device.type == "cuda":
                    tensor.copy_(value)
                else:
                    # torch would wake threads that go on to wait, spinning, beside the kernel's.
                    ctypes.memmove(tensor.data_ptr(), value.data_ptr(), value.nbytes)

        try:
            if self._device.type == "cuda":
                # What went wrong before must not be blamed on this kernel.
                torch.cuda.synchronize()
                cuda_clock.wake()
                sample, times.clock = cuda_timing.sampler(call, restore, single=single)
                take_samples(times, self._effort_for(times), lambda: (sample(), False))
                cuda_clock.stay_awake()
            else:
                most = 1 if single else _MOST_UPDATES if changed else _MOST_REPEATS
                times.clock = "calls" if repeat is None else "c loop"
                self._time_on_cpu(times, repeat or _python_loop(call), restore, most)
        finally:
            restore()

    def _effort_for(self, times: CallTimes) -> Effort:
        """Less for an extern call, which no model learns from: it is the same in every plan."""
        effort = self._effort
        if times.kernel:
            return effort
        return dataclasses.replace(
            effort,
            seconds=effort.seconds * _EXTERN_SHARE,
            min_samples=min(effort.min_samples, _EXTERN_SAMPLES),
        )

    def _time_on_cpu(
        self,
        times: CallTimes,
        repeat: Callable[[int], float],
        restore: Callable[[], None],
        most: int,
    ) -> None:
        quiet = self._quiet
        restore()
        # Threads are started by now. Others on their cores may have made it a thousand times as
        # long as it is, which only a window tells.
        quiet.expect(repeat(1), longest=_FIRST_S)
        once: list[float] = []
        # What takes long by itself is warm after one call.
        while len(once) < _WARM_CALLS and sum(once) < _WARM_S:
            restore()
            with quiet:
                once.append(repeat(1))
        calls = max(1, min(most, int(_SAMPLE_S / max(min(once[1:] or once), 1e-7))))
        # Between two samples others have had the caches, and threads have gone to sleep. Where a
        # call takes long that is a small part of it.
        ahead = most > 1 and min(once) < _WARM_S
        calls = min(calls, most - 1) if ahead else calls
        quiet.expect((calls + ahead) * min(once))

        full = self._pace.recovered(_RECOVERY_S)
        moments = [self._pace.moment()]

        def sample() -> tuple[float, bool]:
            restore()
            with quiet:
                if ahead:
                    repeat(1)
                seconds = repeat(calls) / calls
            disturbed = quiet.disturbed
            moments.append(self._pace.moment())
            return seconds, disturbed or max(m.slowness for m in moments[-2:]) > SLOW

        effort = self._effort_for(times)
        if not full and not self._pace.stays_slow:
            few = min(effort.min_samples, _SLOW_SAMPLES)
            effort = dataclasses.replace(effort, min_samples=few, max_samples=few)
        take_samples(times, effort, sample)
        meanwhile = Moment(*map(statistics.median, zip(*moments, strict=True)))
        times.slowness, times.drag = meanwhile
        times.samples = [at_usual_pace(us, meanwhile) for us in times.samples]


def _python_loop(call: Callable[[], Any]) -> Callable[[int], float]:
    def repeat(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start

    return repeat


def _changed(
    args: Sequence[Any], kwargs: dict[str, Any], effects: Sequence[Effect] | None
) -> list[torch.Tensor]:
    """The tensors that a second call would find changed by the first.

    ``effects``: of the positional arguments; a keyword ``out`` is written, others are read. None
    where nothing is known: all may be changed.
    """
    if effects is None:
        return [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    known = [*zip(args, effects, strict=False), (kwargs.get("out"), "write")]
    known += [(value, "read") for name, value in kwargs.items() if name != "out"]
    tensors = [(v, effect) for v, effect in known if isinstance(v, torch.Tensor)]
    return [
        tensor
        for i, (tensor, effect) in enumerate(tensors)
        if effect == "update"
        or (
            effect == "write"
            and any(_overlap(tensor, other) for j, (other, _) in enumerate(tensors) if j != i)
        )
    ]


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    first, second = memory(a), memory(b)
    return (
        first.data_ptr() < second.data_ptr() + second.numel() * second.itemsize
        and second.data_ptr() < first.data_ptr() + first.numel() * first.itemsize
    )


def _extern_effects(function: Callable[..., Any], kwargs: dict[str, Any]) -> list[Effect] | None:
    """Effects of an extern function on its positional arguments; None where they are not known."""
    if isinstance(function, torch._ops.OpOverload):
        written = [
            a.name for a in function._schema.arguments if a.alias_info and a.alias_info.is_write
        ]
        if any(name in kwargs and name != "out" for name in written):
            return None
        return ["update" if a.name in written else "read" for a in function._schema.arguments]
    return ["read"] * 64 if "out" in kwargs else None


class _Function:
    """Stands for a generated C++ kernel or an extern function."""

    def __init__(
        self,
        timer: KernelTimer,
        kernel: str,
        function: Callable[..., Any],
        effects: Sequence[Effect] | None = None,
    ) -> None:
        self._timer, self._kernel, self._function = timer, kernel, function
        self._effects = effects

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self._function
        effects = self._effects if self._kernel else _extern_effects(function, kwargs)
        many = repeater(function)
        changed = _changed(args, kwargs, effects)
        flags = self._timer.flags(self._kernel, args)
        return self._timer.time(
            self._kernel,
            lambda: function(*args, **kwargs),
            changed,
            None if many is None else lambda calls: many(calls, *args),
            [flag for flag in flags if not any(_overlap(flag, other) for other in changed)],
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _Launcher:
    """Stands for a Triton kernel, which a program launches by its ``run``."""

    def __init__(self, timer: KernelTimer, kernel: str, launcher: Any) -> None:
        self._timer, self._kernel, self._launcher = timer, kernel, launcher
        self._effects = triton_effects(launcher)

    def run(self, *args: Any, stream: Any, **kwargs: Any) -> Any:
        """Launch on the current stream, which under graph capture is not the program's."""
        del stream
        launcher = self._launcher

        def launch() -> Any:
            current = torch.cuda.current_stream().cuda_stream
            return launcher.run(*args, stream=current, **kwargs)

        changed = _changed(args, kwargs, self._effects)

        def also(blocks: LoadedBlocks) -> BlockTimes | None:
            loaded = blocks.take(self._kernel)
            # Indices that were overwritten would send a second launch out of bounds.
            single = any(not tensor.dtype.is_floating_point for tensor in changed)
            return None if single else time_blocks(launcher, loaded, args, kwargs)

        result = self._timer.time(self._kernel, launch, changed, also=also)
        self._timer.calls[-1].config = _config(launcher)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)


def _config(launcher: Any) -> str:
    """Block sizes and warps that tuning has left; "" where it has not left one set."""
    left: Sequence[Any] = getattr(launcher, "launchers", ())
    return str(left[0].config) if len(left) == 1 else ""


class _Namespace:
    """Stands for a namespace of extern functions, or an operator of which no overload is named."""

    def __init__(self, timer: KernelTimer, namespace: Any) -> None:
        self._timer, self._namespace = timer, namespace

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._namespace, name)
        if isinstance(value, torch._ops.OpOverload):
            return _Function(self._timer, "", value)
        if isinstance(value, torch._ops._OpNamespace | torch._ops.OpOverloadPacket):
            return _Namespace(self._timer, value)
        return _Function(self._timer, "", value) if callable(value) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Time the operator: ``aten.index_put_(...)``, whichever overload the arguments choose."""
        return _Function(self._timer, "", self._namespace)(*args, **kwargs)


class _Torch:
    """Stands for ``torch`` in a generated program: operators are timed, all else is torch's."""

    def __init__(self, timer: KernelTimer) -> None:
        self.ops = _Namespace(timer, torch.ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

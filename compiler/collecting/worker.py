"""A compile worker: builds programs, captures their graphs, compiles what is to be timed.

Started by the station as ``python -m``. Programs from elsewhere are loaded here and nowhere else.
Never times anything, and keeps nothing between items but what is known of timed kernels.
"""

from __future__ import annotations

import gc
import heapq
import logging
import os
import pickle
import random
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fusewise.compiler.collecting.capture import CapturedGraph, capture
from fusewise.compiler.collecting.child import die_with_parent
from fusewise.compiler.collecting.prepare import prepare
from fusewise.compiler.collecting.programs import Context
from fusewise.compiler.collecting.work import (
    Finished,
    Item,
    PreparedGraph,
    Ready,
    Settings,
)
from fusewise.compiler.inductor.assembler import use_pools_assembler
from fusewise.compiler.inductor.toolchain import trust_probes
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.registry import load_model
from fusewise.datasets.corpora import on_device, open_corpus
from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import FusewiseError, first_line

log = logging.getLogger(__name__)


class Timed:
    """How often kernels were timed, as far as this worker has been told."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts
        self.round = 0

    def is_wanted(self, signature: str) -> bool:
        """Whether the kernel was timed no more often than there were rounds before this one."""
        return self._counts.get(signature, 0) <= self.round

    def claim(self, signature: str) -> bool:
        """Whether it was never timed; is taken for timed from now on."""
        if self._counts.get(signature, 0):
            return False
        self._counts[signature] = 1
        return True

    def add(self, signatures: list[str]) -> None:
        """Take in what was timed meanwhile."""
        for signature in signatures:
            self._counts[signature] = self._counts.get(signature, 0) + 1


class Worker:
    """State of the process."""

    def __init__(self, settings: Settings, counts: dict[str, int]) -> None:
        # Workers compile side by side; only code for the CPU depends on the number of threads.
        torch.set_num_threads(settings.threads if settings.device == "cpu" else 1)
        self._settings = settings
        self._device = torch.device(settings.device)
        self._timed = Timed(counts)
        self._fingerprints: set[str] = set()
        if self._device.type == "cuda":
            # Who times finds what is compiled here only if it does so with the same assembler.
            use_pools_assembler()
        profile = device_profile(self._device, Path(settings.home))
        predictor = None
        if settings.strategy == "active":
            model = load_model(settings.model or None, profile, Path(settings.home))
            predictor = Predictor(model, profile, {})
        self._context = Context(settings, profile, self._timed, predictor)

    def learn(self, signatures: list[str], fingerprints: list[str]) -> None:
        """Take in what was timed and met by others."""
        self._timed.add(signatures)
        self._fingerprints.update(fingerprints)

    def work(self, item: Item) -> Iterator[PreparedGraph | Finished]:
        """The graphs of an item, one by one, and then how it went."""
        failures: list[str] = []
        met: list[str] = []
        graphs = 0
        self._timed.round = item.round
        try:
            for sample in self._pieces(item):
                if sample.fingerprint:
                    self._fingerprints.add(sample.fingerprint)
                    met.append(sample.fingerprint)
                for prepared in self._sample(sample, item, failures):
                    graphs += 1
                    yield prepared
        except Exception as error:
            log.debug("item %s failed", item, exc_info=True)
            failures.append(str(error) if isinstance(error, FusewiseError) else first_line(error))
        yield Finished(item, graphs, tuple(failures), tuple(met))

    def _pieces(self, item: Item) -> Iterator[GraphSample]:
        """Those pieces of an item that nobody met, or as many of them as are wanted."""

        def is_new(sample: GraphSample) -> bool:
            # The second time round it is known from the first.
            return item.round > 0 or sample.fingerprint not in self._fingerprints

        def rank(sample: GraphSample) -> float:
            return random.Random(sample.name).random()

        new = filter(is_new, open_corpus(item.corpus).build(item.name))
        if self._settings.pieces:
            # Keeps no more of them than are wanted: each has tensors.
            return iter(heapq.nsmallest(self._settings.pieces, new, key=rank))
        return new

    def _sample(
        self, sample: GraphSample, item: Item, failures: list[str]
    ) -> Iterator[PreparedGraph]:
        found: list[PreparedGraph] = []
        forward_key: str | None = None

        def visit(captured: CapturedGraph) -> None:
            nonlocal forward_key
            prepared = prepare(self._context, captured, sample, item, forward_key, failures)
            if prepared is not None:
                found.append(prepared)
                if captured.graph.kind == "forward":
                    forward_key = prepared.key

        try:
            with torch.set_grad_enabled(sample.training):
                capture(on_device(sample, self._device), visit)
        except Exception as error:
            log.debug("sample %s failed", sample.name, exc_info=True)
            failures.append(f"{sample.name}: {first_line(error)}")
        yield from found
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def serve(connection: Connection) -> None:
    """Work on items until the station closes its end."""

    def send(message: object) -> None:
        connection.send_bytes(pickle.dumps(message))

    try:
        settings, counts = pickle.loads(connection.recv_bytes())
        try:
            worker = Worker(settings, counts)
        except FusewiseError as error:
            send(error)
            return
        send(Ready())
        while True:
            item, signatures, fingerprints = pickle.loads(connection.recv_bytes())
            worker.learn(signatures, fingerprints)
            for message in worker.work(item):
                send(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def main() -> None:
    """Entry of the process: ``python -m fusewise.compiler.collecting.worker FD``."""
    # An interrupt from the terminal is meant for the station, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever times comes first.
    os.nice(5)
    die_with_parent()
    trust_probes()
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()

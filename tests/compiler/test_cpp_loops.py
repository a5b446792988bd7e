"""What is told of C++ loops beforehand, against the code that Inductor writes for them."""

from __future__ import annotations

import re
from typing import Any

import torch

from fusewise.compiler.inductor.cpp_kernels import definitions
from fusewise.compiler.inductor.launches import generate_with_launches
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule

_LOOP = re.compile(r"for\(int64_t x\d")
#: Bytes of a vector of the instructions that Inductor picks.
_WIDTHS = {"AVX512": 64, "AVX2": 32}


def test_loops_are_shared_and_vectorised_as_told(graph: Any) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    profile = DeviceProfile(
        key="cpu-test",
        kind="cpu",
        name="test",
        threads=torch.get_num_threads(),
        copy_gbs=10.0,
        gather_gbs=1.0,
        flops_gfs=100.0,
        transcendental_gops=1.0,
        launch_us=1.0,
        cache_bytes=1 << 20,
        cores=2,
        vector_width=_WIDTHS.get(capability, 0),
    )
    problem = graph.surveyed.problem
    featurizer = Featurizer(problem, profile)
    told, found = [], []
    for plan in (graph.surveyed.default, unfused([node.name for node in problem.nodes])):
        with graph.context():
            program, launches = generate_with_launches(graph.compile, Schedule(plan=plan))
        kernels = definitions(program.source)
        for launch in launches:
            if launch.kind == "extern" or launch.kernel not in kernels:
                continue
            source = kernels[launch.kernel][1]
            row = featurizer.group(launch.nodes)
            told.append(
                (
                    launch.nodes,
                    row[COLUMN["shared_nests"]] > 0,
                    row[COLUMN["lanes"]] > 1,
                    2.0 ** row[COLUMN["sent_off"]] - 1.0 > 1.5,
                )
            )
            within = _LOOP.search(source.partition("#pragma omp parallel")[0])
            shared = "#pragma omp for" in source
            found.append((launch.nodes, shared, "at::vec" in source, shared and within is not None))
    assert told == found

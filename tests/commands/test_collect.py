from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from click.testing import Result

from fusewise.commands.corpora import corpus_spec, graphnet_spec
from fusewise.compiler.collecting import claim as claim_module
from fusewise.datasets.corpora import on_device
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.store import Store
from fusewise.schedule.errors import CorpusError

Invoke = Callable[..., Result]
Refused = Callable[..., None]

#: As little of everything as there can be.
LITTLE = ("--plans", 0, "--lowerings", 0, "--schedules", 0, "--threads", 1)


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims of this test's own: somebody may be collecting on this machine."""
    own = SimpleNamespace(gettempdir=lambda: str(tmp_path))
    monkeypatch.setattr(claim_module, "tempfile", own)


@pytest.fixture(autouse=True, scope="module")
def threads() -> Any:
    """A collection sets torch's threads for this process: put them back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_collect(invoke: Invoke, targets: Path, home: Path) -> None:
    store = home / "collected.duckdb"
    corpora = ("--corpus", f"{targets}:inference", "--corpus", f"{targets}:failing")
    active = ("--strategy", "active", "--model", "roofline", "--plans", 1, "--lowerings", 1)
    little = ("--schedules", 2, "--threads", 1, "--workers", 1)
    arguments = (*corpora, *active, *little, "--store", store, "--json")
    result = invoke("collect", *arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.keys() == {
        *("items", "graphs", "kernels", "schedules", "failures", "seconds", "ended", "usage"),
        *("dropped", "blocks", "store", "kernels_in_store"),
    }
    assert (told["items"], told["graphs"], told["ended"]) == (2, 1, "items")
    assert told["kernels"] == told["kernels_in_store"] > 1
    assert told["schedules"] > 1 and told["dropped"] == []
    (failure,) = told["failures"]
    assert "ValueError: not today" in failure
    (usage,) = told["usage"]
    assert usage.keys() == {"elapsed", "timing", "compiling", "workers", "lost"}
    with Store.open(store) as opened:
        sources = {row.source for row in opened.rows("graphs")}  # type: ignore[union-attr]
        assert sources == {f"target:{targets}:inference"}
        assert {row.status for row in opened.rows("items")} == {"ok", "failed"}  # type: ignore[union-attr]

    # The same again has nothing to do, and starts nothing to do it with.
    again = invoke("collect", *arguments)
    told = json.loads(again.stdout)
    assert (told["items"], told["kernels"], told["ended"]) == (0, 0, "items")
    assert told["kernels_in_store"] > 1
    (usage,) = told["usage"]
    assert usage["timing"] == usage["compiling"] == 0
    shown = invoke("collect", *arguments[:-1])
    assert "0 programs, 0 graphs, 0 kernels" in shown.stdout
    assert "waiting 100%" in shown.stdout


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_killed_collection_leaves_nothing_running_and_goes_on(
    tmp_path: Path, targets: Path, home: Path
) -> None:
    store = home / "killed.duckdb"
    mark = f"{tmp_path}"
    names = [str(part) for part in LITTLE]
    command = [
        *(sys.executable, "-P", "-m", "fusewise.commands.main", "collect", *names),
        *("--corpus", f"{targets}:inference", "--corpus", f"{targets}:training"),
        *("--workers", "2", "--store", str(store), "--json"),
    ]
    environment = {**os.environ, "TMPDIR": mark}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    # Alone it takes a minute; the cores may be shared with other tests.
    deadline = time.monotonic() + 240
    while not any('"measurements"' in f.read_text() for f in _spool(store)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    assert len(_marked(mark)) >= 3
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while _marked(mark):
        assert time.monotonic() < deadline, [p.cmdline() for p in _marked(mark)]
        time.sleep(0.1)
    with Store.open(store) as opened:
        kept = opened.info().counts
    assert kept["measurements"] > 0 and kept["items"] < 2

    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["items"] == 2 - kept["items"] and told["failures"] == []
    with Store.open(store) as opened:
        counts = opened.info().counts
        signatures = [row.subject_id for row in opened.rows("measurements")]  # type: ignore[union-attr]
    assert counts["items"] == 2 and counts["measurements"] > kept["measurements"]
    # What was timed before it was killed was not timed again.
    assert len(signatures) == len(set(signatures))
    assert _marked(mark) == []


def _spool(store: Path) -> list[Path]:
    return list(store.with_name(store.name + ".spool").glob("*.jsonl"))


def _marked(folder: str) -> list[psutil.Process]:
    """Running processes whose folder for temporary files is this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == folder:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_device_that_is_taken(
    invoke: Invoke, refused: Refused, targets: Path, tmp_path: Path
) -> None:
    with claim_module.claim("cpu"):
        result = invoke(
            "collect", "--corpus", f"{targets}:inference", "--store", tmp_path / "s.duckdb"
        )
    refused(result, f"process {os.getpid()} is collecting on it", "device cpu")
    with claim_module.claim("cpu"):
        pass


def test_unknown_corpus(invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    result = invoke("collect", "--corpus", "generate", "--store", tmp_path / "store.duckdb")
    refused(result, "generate", "transformers")


def test_folder_that_is_no_checkout_of_graphnet(
    invoke: Invoke, refused: Refused, tmp_path: Path, home: Path
) -> None:
    result = invoke("collect", "--graphnet", tmp_path, "--store", home / "none.duckdb")
    refused(result, "holds no samples of GraphNet", "git clone")


def test_without_transformers(
    invoke: Invoke, refused: Refused, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    store = home / "none.duckdb"
    refused(
        invoke("collect", "--corpus", "transformers", "--store", store), "pip install transformers"
    )


def test_model_that_is_not_there(invoke: Invoke, refused: Refused, home: Path) -> None:
    arguments = ("--strategy", "active", "--model", "none", "--store", home / "none.duckdb")
    refused(invoke("collect", *arguments), "no model 'none'", "roofline")


def test_bad_store(invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    path.write_bytes(b"something else" * 1000)
    refused(invoke("collect", "--store", path), str(path))


def test_store_of_a_newer_schema(invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "store.duckdb"
    Store.open(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (99, 'future', now()::TIMESTAMP)")
    refused(invoke("collect", "--store", path), "schema version 99", "upgrade fusewise")


def test_without_ray(
    invoke: Invoke, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = invoke("collect", "--ray", "auto", "--store", tmp_path / "store.duckdb")
    refused(result, "pip install fusewise[ray]")


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--seconds", "soon"), ("--seconds", "0"), ("--limit", "0"), ("--plans", "-1")),
        *(("--repeat", "0"), ("--workers", "0"), ("--strategy", "best"), ("--scale", "0")),
    ],
)
def test_bad_options(invoke: Invoke, arguments: tuple[str, str]) -> None:
    result = invoke("collect", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert arguments[0] in result.stderr


def test_block_sizes_on_a_cpu(invoke: Invoke, refused: Refused) -> None:
    result = invoke("collect", "--block-sizes", "12")
    refused(result, "--block-sizes 12", "--device cuda")
    assert "--block-sizes" in invoke("collect", "--block-sizes", "-1").stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(invoke: Invoke, refused: Refused) -> None:
    refused(invoke("collect", "--device", "cuda"), "GPU", "--device cpu")


def test_corpora_by_name(tmp_path: Path) -> None:
    assert corpus_spec("generated", "cpu").label == "generated"
    assert corpus_spec("timm", "cuda").scale > 1
    assert corpus_spec("a.py:make", "cpu").name == "target"
    assert corpus_spec("generated:softmax, rope", "cpu").families == ("softmax", "rope")
    assert corpus_spec("generated", "cpu").families == ()
    spec = graphnet_spec(tmp_path / "x" / ".." / "y", "cpu")
    assert Path(spec.path).is_absolute()
    with pytest.raises(CorpusError, match="nearest is 'timm'"):
        corpus_spec("tim", "cpu")


def test_moving_a_sample_keeps_what_is_trained() -> None:
    module = torch.nn.Linear(3, 3)
    trained = torch.ones(3, requires_grad=True)
    sample = GraphSample("a", "b", module, (trained, 2), {"mask": torch.ones(3)})
    moved = on_device(sample, torch.device("meta"))
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}
    first, number = moved.args
    assert first.device.type == moved.kwargs["mask"].device.type == "meta"
    assert first.is_leaf
    assert first.requires_grad
    assert not moved.kwargs["mask"].requires_grad
    assert number == 2

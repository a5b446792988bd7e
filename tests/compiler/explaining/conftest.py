"""Explanations of any size, made of the real types, and a browser to open their pages in."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fusewise.compiler.explaining.outcomes import outcome_of
from fusewise.compiler.explaining.report import (
    ExplainedCandidate,
    ExplainedEdge,
    ExplainedFusion,
    ExplainedGraph,
    ExplainedGroup,
    ExplainedNode,
    ExplainedPlan,
    ExplainedProgram,
    ExplainedRewrite,
)
from fusewise.costmodel.feature_table import FEATURES
from fusewise.schedule.inlining import InliningDecision

_OPERATORS = ("aten.add.Tensor", "aten.exp.default", "aten.mul.Tensor", "aten.sum.dim_IntList")
_BOUNDS = ("memory", "arithmetic", "launch", "library")
Make = Callable[..., ExplainedProgram]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, profiled: Path) -> Path:
    """A store beside which the devices are known."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "devices").symlink_to(profiled)
    return folder / "store.duckdb"


@pytest.fixture(scope="session")
def make_explained() -> Make:
    """``make_explained(nodes=1500)``: a program in which every fifth kernel differs."""
    return explained_program


def explained_program(
    *, nodes: int, mark: str = "", kinds: Sequence[str] = ("inference",), same: bool = False
) -> ExplainedProgram:
    """A program of graphs with ``nodes`` nodes each, and ``mark`` wherever a user's words go."""
    graphs = tuple(_graph(kind, nodes, mark, same) for kind in kinds)
    return ExplainedProgram(program=f"made{mark}", fusewise="0", torch="2.13", graphs=graphs)


def _graph(kind: str, count: int, mark: str, same: bool) -> ExplainedGraph:
    nodes = tuple(_node(i, mark) for i in range(count))
    names = [node.name for node in nodes]
    own = [tuple(names[i : i + 3]) for i in range(0, count, 3)]
    chosen = list(own)
    for at in range(len(own) - 2, 0, -5):
        if not same:
            chosen[at : at + 2] = [(*own[at], *own[at + 1])]
    groups, own_groups = (
        tuple(_group(i, group, mark) for i, group in enumerate(plan)) for plan in (chosen, own)
    )
    return ExplainedGraph(
        kind=kind,
        key=f"key of {kind}",
        key_parts={},
        device="cpu",
        model="roofline",
        rewrites=(
            ExplainedRewrite(
                stage="joint",
                name=f"pass{mark}",
                nodes_before=9,
                nodes_after=8,
                removed={"add.Tensor": 1},
                added={},
            ),
        ),
        inlining=tuple(_decision(i, mark) for i in range(count)),
        nodes=nodes,
        edges=tuple(_edges(count)),
        score_parts=("template", "type", "bytes", "order", "distance"),
        rounds=(count, 2),
        possible_fusions=tuple(_fusions(names, own, chosen, mark)),
        groups=groups,
        plan=_plan("inductor" if same else "store", groups),
        default_groups=own_groups,
        default_plan=_plan("inductor", own_groups),
        candidates=tuple(_candidate(i, same) for i in range(6)),
    )


def _node(i: int, mark: str) -> ExplainedNode:
    return ExplainedNode(
        name=f"op{i}",
        kind="reduction" if i % 4 == 3 else "pointwise",
        device="cpu",
        operators=(_OPERATORS[i % 4], f"aten.op{mark}.default") if mark else (_OPERATORS[i % 4],),
        loops=((64, 64), ()),
        reads=(f"buf{max(i - 1, 0)}", "arg0_1"),
        writes=(f"buf{i}",),
        bytes_read=4096 * (1 + i % 7),
        bytes_written=4096,
        source=f"/model/block{i % 12}{mark}.py:{i}",
        sources=(f"/model/block{i % 12}{mark}.py:{i}",),
        modules=(f"blocks.{i // 24}.norm{mark}",),
        signature=f"{i:x}",
    )


def _edges(count: int) -> Iterator[ExplainedEdge]:
    """A chain whose every eighth value is needed far below, too, with branches of three."""
    for i in range(1, count):
        before = i - 1 if i % 12 < 9 else i - i % 12 + 8
        far = [i - 24] if i % 8 == 0 and i >= 24 else []
        for producer in (before, *far):
            yield ExplainedEdge(
                producer=f"op{producer}",
                consumer=f"op{i}",
                buffer=f"buf{producer}",
                bytes=4096 << (producer % 9),
                weak=False,
            )


def _fusions(
    names: Sequence[str], own: Sequence[Any], chosen: Sequence[Any], mark: str
) -> Iterator[ExplainedFusion]:
    of, of_chosen = (
        {name: i for i, group in enumerate(plan) for name in group} for plan in (own, chosen)
    )
    for i, a in enumerate(names):
        for j in range(i + 1, min(i + 8, len(names))):
            b = names[j]
            together = of[a] == of[b]
            taken = together and j == i + 1
            legal = together or (i + j) % 3 == 0
            reason = "" if taken else "already_together" if together else "fused_elsewhere"
            gain, fused = (i % 11) / 2 - 1, of_chosen[a] == of_chosen[b]
            reason = reason if legal else "loop_sizes"
            yield ExplainedFusion(
                a=a,
                b=b,
                a_nodes=(a,),
                b_nodes=(b,),
                inductor_score=(2, 1, 4096 * (1 + i % 5), 0, i - j),
                predicted_gain_us=gain,
                predicted_gain_low_us=(i % 11) / 2 - 3,
                predicted_gain_high_us=(i % 11) / 2 + 3,
                legal=legal,
                reason=reason,
                detail="" if taken else f"loops of {a} and {b} differ{mark}",
                taken=taken,
                together=together,
                together_chosen=fused,
                outcome=outcome_of(
                    taken=taken,
                    legal=legal,
                    reason=reason,
                    together=fused,
                    predicted_gain_us=gain,
                ),
                blocked_by=(),
                vertical=True,
                rounds=(1,),
            )


def _group(i: int, names: tuple[str, ...], mark: str) -> ExplainedGroup:
    us = 2.0 + (i * 7919 % 97) / 5
    at = int(names[0][2:])
    lines = tuple(f"/model/block{(at + k) % 12}{mark}.py:{at + k}" for k in range(len(names)))
    return ExplainedGroup(
        nodes=names,
        predicted_us=us,
        predicted_low_us=us / 2,
        predicted_high_us=us * 2,
        predicted_by="learned",
        measured_us=us * (1 + (i % 5) / 10),
        kernel=f"cpp_fused_{i}{mark}",
        source=", ".join(lines),
        sources=lines,
        operators=tuple(_OPERATORS[(at + k) % 4] for k in range(min(len(names), 4))),
        bytes_read=8192 * len(names),
        bytes_written=4096,
        around_us=0.5,
        bound_by=_BOUNDS[i % 4],
        launch_us=1.0,
        memory_us=us - 1,
        arithmetic_us=us / 3,
        features={feature.name: float(i % 13) for feature in FEATURES},
    )


def _plan(origin: str, groups: Sequence[ExplainedGroup]) -> ExplainedPlan:
    us = sum(group.predicted_us + group.around_us for group in groups)
    return ExplainedPlan(
        origin=origin,
        schedule=f"{origin} of {len(groups)}",
        choices=f"{len(groups)} groups",
        predicted_us=us,
        predicted_low_us=us / 2,
        predicted_high_us=us * 2,
        around_us=0.5 * len(groups),
        measured_us=sum(group.measured_us or 0.0 for group in groups),
    )


def _candidate(i: int, same: bool) -> ExplainedCandidate:
    return ExplainedCandidate(
        schedule=str(i),
        choices=f"{10 + i} groups",
        origin="default" if i == 0 else "beam",
        groups=10 + i,
        own_groups=() if i == 0 else (("op0", "op1"),),
        default=i == 0,
        chosen=i == (0 if same else 2),
        predicted_us=900.0 - 20 * i,
        predicted_low_us=800.0 - 20 * i,
        predicted_high_us=1100.0,
        measured_us=None if i == 5 else 950.0 - 15 * i,
        spread=0.01,
        rounds=20,
        status="predicted" if i == 5 else "measured",
        reason="",
    )


def _decision(i: int, mark: str) -> InliningDecision:
    return InliningDecision(
        node=f"add_{i}{mark}",
        operator="aten.add.Tensor",
        kind="pointwise",
        outcome="inline" if i % 3 else "store",
        rule="cheap" if i % 3 else "many_reads",
        buffer="" if i % 3 else f"buf{i}",
        inlined_into=(f"mul_{i}",) if i % 3 else (),
        ops=3,
        reads=2,
        bytes=4096,
        read_bytes=8192,
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven through chromedriver; skips where either is missing."""
    for needed in ("chromium", "chromedriver"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} here (Debian: apt install chromium chromium-driver)")
    if importlib.util.find_spec("selenium") is None:
        pytest.skip("selenium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    # Without them it starts neither as root nor where /dev/shm is small.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--window-size=1440,1000")
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def write_explained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ExplainedProgram], Path]:
    """Write the page of an explanation into a folder of its own."""

    def write(explained: ExplainedProgram) -> Path:
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(explained.html(), encoding="utf-8")
        return path

    return write


class Page:
    """An opened report."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get_log("browser"), browser.get_log("performance")
        browser.get(path.as_uri())
        self.settle()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until what was asked to be drawn is drawn."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))"
        self.browser.execute_async_script(f"const done = arguments[0]; {frames}")

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def click(self, selector: str) -> None:
        self.one(selector).click()
        self.settle()

    def find(self, query: str) -> str:
        """Search; what is said to be found."""
        box = self.one("#query")
        box.clear()
        box.send_keys(query)
        self.settle()
        return self.text("#found").replace("\u202f", "")

    def choose(self, which: str, value: str) -> None:
        change = "arguments[0].dispatchEvent(new Event('change'))"
        self.run(f"arguments[0].value = arguments[1]; {change}", self.one(which), value)
        self.settle()

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()
        self.settle()

    def hover(self, element: Any) -> None:
        from selenium.webdriver import ActionChains

        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        self.settle()
        ActionChains(self.browser).move_to_element(element).perform()
        self.settle()

    def boxes(self, side: str) -> dict[str, tuple[float, float]]:
        """Where each drawn kernel of a plan stands, by its second line."""
        script = """return [...document.querySelectorAll(`[data-side=${arguments[0]}] g.kernel`)]
            .map(g => [g.querySelector('.detail').textContent, g.getAttribute('transform')])"""
        found = {}
        for name, transform in self.run(script, side):
            x, y = transform.removeprefix("translate(").removesuffix(")").split(",")
            found[name.split(" · ")[0]] = (float(x), float(y))
        return found


@pytest.fixture
def show(
    browser: Any, write_explained: Callable[[ExplainedProgram], Path]
) -> Iterator[Callable[[ExplainedProgram], Page]]:
    """Open the page of an explanation; what went wrong in it fails the test."""
    yield lambda explained: Page(browser, write_explained(explained))
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.fixture(scope="session")
def small(make_explained: Make) -> ExplainedProgram:
    """Two plans of 30 nodes: ten kernels against eight, two of which are two in the other."""
    return make_explained(nodes=30)

"""The page in a real Chromium: drawn, found, hovered, walked by keys, and as large as it gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusewise.compiler.explaining.report import ExplainedGraph, ExplainedProgram

pytest.importorskip("jinja2")

HOSTILE = "</script><img src=x onerror=\"document.title='broken out'\">&amp;<!--"
Make = Callable[..., ExplainedProgram]


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


@pytest.fixture(scope="module")
def small(make_explained: Make) -> ExplainedProgram:
    """Two plans of 30 nodes: ten kernels, of which four are two in the other."""
    return make_explained(nodes=30)


Show = Callable[[ExplainedProgram], Page]


def _only(graph: ExplainedGraph) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    own, chosen = ({g.nodes for g in plan} for plan in (graph.default_groups, graph.groups))
    return own - chosen, chosen - own


def test_both_plans_are_drawn_with_what_differs(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    page.click("#whole")
    only = _only(graph)
    assert only[0] and only[1]
    for side, groups, own in zip(
        ("default", "chosen"), (graph.default_groups, graph.groups), only, strict=True
    ):
        assert len(page.all(f"[data-side={side}] g.kernel")) == len(groups)
        assert len(page.all(f"[data-side={side}] g.kernel.only")) == len(own)
        flows = {
            (i, j)
            for edge in graph.edges
            for i, a in enumerate(groups)
            for j, b in enumerate(groups)
            if i != j and edge.producer in a.nodes and edge.consumer in b.nodes
        }
        assert len(page.all(f"[data-side={side}] path.flow")) == len(flows)


def test_data_flow_goes_down_and_what_both_have_lies_side_by_side(
    show: Show, small: ExplainedProgram
) -> None:
    page, (graph,) = show(small), small.graphs
    page.click("#whole")
    own, chosen = page.boxes("default"), page.boxes("chosen")
    common = {g.nodes for g in graph.groups} & {g.nodes for g in graph.default_groups}
    assert len(common) > 2
    for nodes in common:
        name = f"{nodes[0]} +{len(nodes) - 1}"
        assert own[name][1] == chosen[name][1]
    of = {n: f"{g.nodes[0]} +{len(g.nodes) - 1}" for g in graph.default_groups for n in g.nodes}
    for edge in graph.edges:
        a, b = of[edge.producer], of[edge.consumer]
        assert a == b or own[a][1] < own[b][1]
    assert len(set(own.values())) == len(own)


def test_a_kernel_under_the_pointer_tells_of_itself(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    assert not page.one("#tip").is_displayed()
    page.hover(page.one("[data-side=default] g.kernel.only"))
    told = page.one("#tip").text
    first = min(_only(graph)[0], key=lambda nodes: int(nodes[0][2:]))
    lines = [f"{Path(n.source).name}" for n in graph.nodes if n.name in first]
    for part in (*first, *lines, "reread", "loop_sizes", "predicted", "Only in this plan"):
        assert part in told
    # Its nodes in the other plan stand out with it.
    assert len(page.all("[data-side=chosen] g.kernel.lit")) == 1


def test_a_kernel_is_reached_and_pinned_by_keys(show: Show, small: ExplainedProgram) -> None:
    page = show(small)
    page.run("document.querySelector('[data-side=default] g.kernel[tabindex=\"0\"]').focus()")
    page.settle()
    assert "op0" in page.one("#tip").text
    seen = []
    for _ in range(3):
        page.press("\ue015")  # arrow down
        seen.append(page.run("return document.activeElement.querySelector('.detail').textContent"))
    assert len(set(seen)) == 3 and not any(text.startswith("op0 ") for text in seen)
    page.press("\ue007")  # enter
    pinned = page.one("#pinned").text
    assert seen[-1].split(" · ")[0] in pinned
    assert "Features that are not 0" in pinned and "Data flow" in pinned
    page.press("\ue00c")  # escape
    assert not page.one("#pinned").is_displayed()
    page.press("n")
    assert "only" in page.run("return document.activeElement.getAttribute('class')")


def test_search_finds_whole_names_and_parts(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    many = len(graph.groups) + len(graph.default_groups)
    pairs = graph.possible_fusions
    with_op2 = sum("op2" in (*f.a_nodes, *f.b_nodes) for f in pairs)
    assert page.find("op2") == f"2 of {many} kernels, {with_op2} of {len(pairs)} fusions"
    page.click("#whole")
    assert len(page.all("g.kernel:not(.dim)")) == 2
    assert len(page.all("#kernels .rows .row")) == 1
    refused = sum(f.reason == "loop_sizes" and "op2" in (*f.a_nodes, *f.b_nodes) for f in pairs)
    assert f" {refused} of" in page.find("op2 loop_sizes")
    lines = [f for f in pairs if {"op7", "op19"} & {*f.a_nodes, *f.b_nodes}]
    assert f" {len(lines)} of" in page.find("block7.py")
    assert page.find("nothing of the kind").startswith("0 of")
    assert page.one("#pairs .none").is_displayed()
    page.click("#clear")
    assert page.text("#found") == "" and not page.all("g.kernel.dim")


def test_fusions_are_filtered_by_outcome_and_reason(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    pairs = graph.possible_fusions
    rows = "return Number(document.querySelector('#pairs .long').getAttribute('aria-rowcount')) - 1"
    assert page.run(rows) == len(pairs)
    page.choose("#state", "taken")
    assert page.run(rows) == sum(f.taken for f in pairs)
    page.choose("#state", "differs")
    assert page.run(rows) == sum(f.together != f.together_chosen for f in pairs) > 0
    page.choose("#state", "")
    page.choose("#reason", "loop_sizes")
    assert page.run(rows) == sum(f.reason == "loop_sizes" for f in pairs)
    page.hover(page.one("#pairs .rows .row"))
    told = page.one("#tip").text
    for part in ("loop_sizes", "different extents", "predicted gain", "distance", "refused"):
        assert part in told


def test_fusions_of_one_kernel(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    page.click("[data-side=default] g.kernel")
    page.click("#around")
    nodes = set(graph.default_groups[0].nodes)
    around = sum(bool(nodes & {*f.a_nodes, *f.b_nodes}) for f in graph.possible_fusions)
    assert f" {around} of" in page.text("#found") and "around op0" in page.text("#found")


def test_tables_are_sorted_by_a_click(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    page.click("#kernels .head > div:nth-child(5) button")
    first = page.text("#kernels .rows .row > div:nth-child(5)")
    longest = max(group.predicted_us for group in graph.groups)
    assert first == f"{longest:.1f} µs"
    assert page.one("#kernels .head > div:nth-child(5)").get_attribute("aria-sort") == "descending"


def test_predicted_against_measured(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    candidates, kernels = page.all(".scatter")
    timed = [c for c in graph.candidates if c.measured_us is not None]
    assert len(candidates.find_elements("css selector", "circle")) == len(timed)
    assert len(candidates.find_elements("css selector", "circle.chosen")) == 1
    only = _only(graph)[1]
    drawn = len(kernels.find_elements("css selector", "circle"))
    assert drawn == len(graph.default_groups) + len(only)
    assert len(page.all("#candidates tbody tr")) == len(graph.candidates)


def test_names_are_shown_and_never_run(show: Show, make_explained: Make) -> None:
    page = show(make_explained(nodes=30, mark=HOSTILE))
    page.hover(page.one("[data-side=default] g.kernel"))
    page.click("[data-side=default] g.kernel")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    assert page.run("return document.images.length") == 0
    assert page.browser.title.startswith(f"made{HOSTILE}")
    assert HOSTILE in page.text("#pinned") and HOSTILE in page.text("h1")
    assert HOSTILE in page.text("#lowering") and HOSTILE in page.text("#pairs .rows")


def test_nothing_is_asked_of_a_network(show: Show, small: ExplainedProgram) -> None:
    page = show(small)
    page.hover(page.one("[data-side=default] g.kernel"))
    events = [json.loads(e["message"])["message"] for e in page.browser.get_log("performance")]
    asked = [e for e in events if e["method"] == "Network.requestWillBeSent"]
    urls = {event["params"]["request"]["url"] for event in asked}
    assert len(urls) == 1 and urls.pop().startswith("file://")


def test_of_1500_nodes_only_what_is_in_sight_is_made(show: Show, make_explained: Make) -> None:
    explained = make_explained(nodes=1500)
    page, (graph,) = show(explained), explained.graphs
    assert len(graph.groups) == 400 and len(graph.possible_fusions) > 10_000

    def made() -> tuple[int, int]:
        return len(page.all("g.kernel")), len(page.all("#pairs .row, #kernels .row"))

    assert 0 < made()[0] < 60 and 0 < made()[1] < 100
    # The panes go together.
    page.run("const s = document.querySelector('[data-side=default] .scroll'); s.scrollTop = 1e9")
    page.settle()
    assert 0 < made()[0] < 60
    last = [plan[-1].nodes for plan in (graph.default_groups, graph.groups)]
    for side, nodes in zip(("default", "chosen"), last, strict=True):
        assert f"{nodes[0]} +{len(nodes) - 1}" in page.boxes(side)
    page.run("document.querySelector('#pairs .rows .row').focus()")
    page.press("\ue010")  # end
    assert "op1499" in page.run("return document.activeElement.textContent")
    assert 0 < made()[1] < 100
    assert page.find("op1496").startswith("2 of 900 kernels, 10 of 10472")


@pytest.mark.parametrize("width", [400, 900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(
    show: Show, small: ExplainedProgram, width: int, scheme: str
) -> None:
    page = show(small)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    try:
        page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        page.settle()
        assert page.run("return document.documentElement.scrollWidth") <= width
        contrast = page.run(_CONTRAST, _TEXTS)
        page.choose("#state", "missed")
        contrast |= page.run(_CONTRAST, [".state-missed"])
        assert set(contrast) == {*_TEXTS, ".state-missed"}
        assert {name: round(c, 1) for name, c in contrast.items() if c < 4.5} == {}
        first, second = (page.one(f"[data-side={side}]").rect for side in ("default", "chosen"))
        assert (first["y"] == second["y"]) == (width > 890)
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


#: Contrast ratio of texts with what lies behind them (WCAG 2.2, relative luminance).
_CONTRAST = """
const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = (css) => {
  const [r, g, b] = css.match(/[\\d.]+/g).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  const { backgroundColor } = getComputedStyle(node);
  return /, 0\\)$/.test(backgroundColor) ? behind(node.parentElement) : backgroundColor;
};
const found = {};
for (const selector of arguments[0]) {
  for (const node of document.querySelectorAll(selector)) {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found[selector] = Math.min(found[selector] || 21, ratio);
  }
}
return found;
"""
_TEXTS = (
    *("h1", ".quiet", ".hint", ".card .value", "#query", "#theme", ".row.head", ".rows .row"),
    *(".tag", "[aria-selected=true]", ".state-taken", ".state-refused"),
    *(".state-together", "#legend", "th", "td", "figcaption", ".numbers", ".key"),
)


def test_graphs_are_shown_one_at_a_time(show: Show, make_explained: Make) -> None:
    page = show(make_explained(nodes=12, kinds=("forward", "backward")))
    tabs = page.all("#graphs button")
    assert [tab.text for tab in tabs] == ["forward", "backward"]
    assert "key of forward" in page.text("#about")
    tabs[1].click()
    page.settle()
    assert tabs[1].get_attribute("aria-selected") == "true"
    assert "key of backward" in page.text("#about") and len(page.all(".pane")) == 2


def test_where_the_default_was_chosen_it_is_shown_once(show: Show, make_explained: Make) -> None:
    page = show(make_explained(nodes=12, same=True))
    assert len(page.all(".pane")) == 1 and not page.all("g.kernel.only")
    assert "one plan to show" in page.text("#summary")
    assert not page.one("#next").is_displayed()


def test_plans_of_other_nodes_are_compared_by_what_they_compute(
    show: Show, small: ExplainedProgram
) -> None:
    (graph,) = small.graphs
    renamed = {node.name: f"op{i + 1}" for i, node in enumerate(graph.nodes)}

    def change(text: str) -> str:
        return renamed.get(text, text)

    other = msgspec.structs.replace(
        graph,
        chosen_nodes=tuple(msgspec.structs.replace(n, name=renamed[n.name]) for n in graph.nodes),
        chosen_edges=tuple(
            msgspec.structs.replace(e, producer=change(e.producer), consumer=change(e.consumer))
            for e in graph.edges
        ),
        groups=tuple(
            msgspec.structs.replace(g, nodes=tuple(map(change, g.nodes))) for g in graph.groups
        ),
    )
    page = show(msgspec.structs.replace(small, graphs=(other,)))
    page.click("#whole")
    only = _only(graph)
    assert len(page.all("[data-side=default] g.kernel.only")) == len(only[0])
    assert len(page.all("[data-side=chosen] g.kernel.only")) == len(only[1])
    assert "by what they compute" in page.text("#summary")

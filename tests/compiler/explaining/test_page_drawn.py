"""What a real Chromium draws of the page: both plans, at any size and in both schemes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusewise.compiler.explaining.report import ExplainedGraph, ExplainedProgram, Side, Why
from fusewise.compiler.reports import RuleReport, RulesReport
from fusewise.costmodel.attribution import Attribution, Contribution

pytest.importorskip("jinja2")

HOSTILE = "</script><img src=x onerror=\"document.title='broken out'\">&amp;<!--"
Make = Callable[..., ExplainedProgram]
Show = Callable[[ExplainedProgram], Any]


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


def test_plans_whose_orders_contradict_each_other_are_drawn(
    show: Show, make_explained: Make
) -> None:
    """Each plan has an order, and what both have in common has none that fits both."""
    (graph,) = make_explained(nodes=6).graphs
    edges = [("op0", "op1"), ("op2", "op3"), ("op3", "op4"), ("op5", "op0")]
    plans = (
        [("op0",), ("op1", "op2"), ("op3",), ("op4",), ("op5",)],
        [("op0",), ("op1",), ("op2",), ("op3",), ("op4", "op5")],
    )
    own, chosen = (
        tuple(msgspec.structs.replace(graph.groups[0], nodes=nodes) for nodes in plan)
        for plan in plans
    )
    changed = msgspec.structs.replace(
        graph,
        edges=tuple(
            msgspec.structs.replace(graph.edges[0], producer=a, consumer=b) for a, b in edges
        ),
        default_groups=own,
        groups=chosen,
    )
    explained = make_explained(nodes=6)
    page = show(msgspec.structs.replace(explained, graphs=(changed,)))
    page.click("#whole")
    for side, plan in zip(("default", "chosen"), plans, strict=True):
        boxes = page.boxes(side)
        assert len(boxes) == len(set(boxes.values())) == len(plan)
        name = {n: f"{g[0]} +1" if len(g) > 1 else g[0] for g in plan for n in g}
        assert all(boxes[name[a]][1] < boxes[name[b]][1] for a, b in edges)


def test_a_kernel_under_the_pointer_tells_of_itself(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    assert not page.one("#tip").is_displayed()
    box = page.one("[data-side=default] g.kernel.only")
    page.hover(box)
    told = page.one("#tip").text
    first = min(_only(graph)[0], key=lambda nodes: int(nodes[0][2:]))
    lines = [f"{Path(n.source).name}" for n in graph.nodes if n.name in first]
    for part in (*first, *lines, "reread", "loop_sizes", "predicted", "Only in this plan"):
        assert part in told
    # Its nodes in the other plan stand out with it, and neither is covered.
    (twin,) = page.all("[data-side=chosen] g.kernel.lit")
    tip = page.one("#tip").rect
    for kernel in (box.rect, twin.rect):
        apart = any(
            tip[at] >= kernel[at] + kernel[size] or kernel[at] >= tip[at] + tip[size]
            for at, size in (("x", "width"), ("y", "height"))
        )
        assert apart, (tip, kernel)


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


def test_one_fusion_is_told_with_what_drives_it(show: Show, small: ExplainedProgram) -> None:
    (graph,) = small.graphs

    def side(nodes: tuple[str, ...], us: float, *, passes: float) -> Side:
        told = Contribution(feature="passes", value=passes, unit="count", shap=0.5, factor=1.65)
        return Side(
            nodes=nodes,
            predicted_us=us,
            predicted_low_us=us / 2,
            predicted_high_us=us * 2,
            predicted_by="learned",
            around_us=0.5,
            attribution=Attribution(
                roofline_us=us,
                launch_us=1.0,
                memory_us=us,
                arithmetic_us=0.5,
                contributions=(told,),
            ),
        )

    why = Why(
        a="op0",
        b="op1",
        a_nodes=("op0",),
        b_nodes=("op1",),
        change="removed",
        plan="store",
        legal=True,
        reason="",
        detail="",
        fusion=graph.possible_fusions[0],
        before=(side(("op0", "op1"), 8.0, passes=2),),
        after=(side(("op0",), 3.0, passes=1), side(("op1",), 4.0, passes=1)),
        predicted_us=100.0,
        predicted_changed_us=99.0,
        predicted_gain_us=1.0,
        predicted_gain_low_us=-10.0,
        predicted_gain_high_us=12.5,
        not_measured="no time",
    )
    page = show(msgspec.structs.replace(small, graphs=(msgspec.structs.replace(graph, why=why),)))
    told = page.text("#why").replace("\u00a0", " ")
    for part in ("op0 with op1", "removed", "1.00 µs (-10 to 13)", "99.0 µs", "taken", "no time"):
        assert part in told
    assert "before op0+op1" in told and "2: ×1.65" in told
    assert "The roofline predicts" not in told
    rough = [msgspec.structs.replace(s, predicted_by="roofline") for s in (*why.before, *why.after)]
    why = msgspec.structs.replace(why, before=(rough[0],), after=tuple(rough[1:]))
    page = show(msgspec.structs.replace(small, graphs=(msgspec.structs.replace(graph, why=why),)))
    told = page.text("#why")
    assert "too uncertain to count" in told and "The roofline predicts" in told
    assert not show(small).one("#why").is_displayed()


def test_rules_and_what_was_not_measured_are_told(show: Show, small: ExplainedProgram) -> None:
    (graph,) = small.graphs
    rules = RulesReport(
        rules=(RuleReport("rule 1: never fuse a with b", 2, 1, True), RuleReport("x", 0, 0, False)),
        conflicts=("rule 1 against rule 2",),
        unkept=("rule 2: cannot be",),
    )
    changed = msgspec.structs.replace(graph, rules=rules, not_measured="the process is gone")
    told = show(msgspec.structs.replace(small, graphs=(changed,))).text("#summary")
    for part in ("never fuse a with b: 2 nodes, 1 pairs", "x: matches nothing", "against rule 2"):
        assert part in told
    assert "cannot be" in told and "Not measured: the process is gone" in told


def test_what_happened_before_the_scheduler(show: Show, small: ExplainedProgram) -> None:
    page, (graph,) = show(small), small.graphs
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    told = page.text("#lowering")
    inlined = sum(d.outcome == "inline" for d in graph.inlining)
    assert f"{inlined} of {len(graph.inlining)} values inlined" in told
    for part in ("joint", "−1 add.Tensor", "add_1", "no rule wants it stored"):
        assert part in told


def test_light_and_dark_are_changed_by_hand(show: Show, small: ExplainedProgram) -> None:
    page = show(small)
    back = "return getComputedStyle(document.body).backgroundColor"
    first = page.run(back)
    page.click("#theme")
    assert page.run(back) != first
    page.click("#theme")
    assert page.run(back) == first

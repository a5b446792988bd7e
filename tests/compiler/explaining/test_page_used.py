"""The page in a real Chromium as it is used: by keys, searched, filtered, and very large."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fusewise.compiler.explaining.report import ExplainedProgram

pytest.importorskip("jinja2")

HOSTILE = "</script><img src=x onerror=\"document.title='broken out'\">&amp;<!--"
Make = Callable[..., ExplainedProgram]
Show = Callable[[ExplainedProgram], Any]


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
    # Brought together by other fusions and illegal at once: that counts as refused.
    assert any(not f.legal and f.together_chosen for f in pairs)
    of = Counter(f.outcome for f in pairs)
    assert of["refused"] == sum(not f.legal for f in pairs)
    told = f"{of['taken']} taken, {of['missed']} missed, {of['refused']} refused"
    assert told in page.text("#summary")
    for outcome, count in of.items():
        page.choose("#state", outcome)
        assert page.run(rows) == count
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


def test_a_program_without_graphs_says_so(show: Show) -> None:
    page = show(ExplainedProgram(program="plain", fusewise="0", torch="2.13", graphs=()))
    assert "no graph that computes anything" in page.text("#summary")
    assert [s.get_attribute("id") for s in page.all("main > section") if s.is_displayed()] == [
        "summary"
    ]
    assert not page.one("#query").is_displayed()
    # No key does anything where there is nothing to see; what goes wrong would fail the test.
    page.press("n", "p", "/", "\ue00c")


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

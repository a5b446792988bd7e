"""Rules as data, their file form, and what patterns match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusewise.schedule import rules
from fusewise.schedule.errors import RuleError
from fusewise.schedule.patterns import Operation
from fusewise.schedule.problem import Node
from fusewise.schedule.rule_file import read_rule_file
from fusewise.schedule.rules import RuleSet, Selector, rule_set, select

EXP = Operation(
    "exp_3",
    "aten.exp.default",
    "aten._softmax.default",
    "model.layers.0.mlp.act",
    "/src/net/model.py:42",
    ("op4", "buf4"),
)


@pytest.mark.parametrize(
    ("field", "pattern", "expected"),
    [
        ("op", "aten.exp", True),
        ("op", "aten.exp.default", True),
        ("op", "aten.*", True),
        ("op", "aten._softmax", True),
        ("op", "aten.ex", False),
        ("op", "aten.expm1", False),
        ("op", "exp", False),
        ("module", "model.layers.*.mlp", True),
        ("module", "model.layers.0.mlp.act", True),
        ("module", "model.layers.*", True),
        ("module", "**.mlp", True),
        ("module", "**.act", True),
        ("module", "layers.*.mlp", False),
        ("module", "model.*.mlp", False),
        ("module", "model.layers.1", False),
        ("node", "exp_3", True),
        ("node", "exp_*", True),
        ("node", "op4", True),
        ("node", "buf4", True),
        ("node", "exp", False),
        ("source", "model.py:42", True),
        ("source", "net/model.py:42", True),
        ("source", "model.py", True),
        ("source", "model.py:40-42", True),
        ("source", "*.py:42", True),
        ("source", "model.py:43", False),
        ("source", "model.py:4", False),
        ("source", "other/model.py:42", False),
        ("source", "del.py:42", False),
    ],
)
def test_patterns(field: str, pattern: str, expected: bool) -> None:
    assert select(**{field: pattern}).matches(EXP) is expected
    unknown = Operation("", "aten.exp.default", "", "", "")
    if field != "op":
        assert not select(**{field: pattern}).matches(unknown)


def test_all_fields_have_to_match_and_of_a_list_one() -> None:
    assert select(op=["aten.sum", "aten.exp"], module="**.mlp").matches(EXP)
    assert not select(op="aten.exp", module="**.attention").matches(EXP)
    assert not select(op=["aten.sum", "aten.mul"]).matches(EXP)


TOML = """
schema = 1

[[rules]]
action = "never"
op = "aten.exp"
with = "aten.sum"

[[rules]]
action = "always"
module = "model.layers.*.mlp"
with = { op = ["aten.add", "aten.mul"], source = "model.py:42" }

[[rules]]
action = "alone"
node = "op4"

[[rules]]
action = "store"
op = "aten.exp"

[[rules]]
action = "inline"
op = "aten.rsqrt"

[[rules]]
action = "at_most"
nodes = 4
inputs = 8
bytes = 1048576

[[rules]]
action = "at_most"
op = "aten.sum"
nodes = 2
"""

IN_PYTHON = RuleSet(
    (
        rules.never("aten.exp", "aten.sum"),
        rules.always(
            select(module="model.layers.*.mlp"),
            select(op=["aten.add", "aten.mul"], source="model.py:42"),
        ),
        rules.alone(select(node="op4")),
        rules.store("aten.exp"),
        rules.inline("aten.rsqrt"),
        rules.at_most(nodes=4, inputs=8, bytes=1048576),
        rules.at_most("aten.sum", nodes=2),
    )
)


def test_a_file_says_what_python_says(tmp_path: Path) -> None:
    toml = tmp_path / "rules.toml"
    toml.write_text(TOML)
    read = read_rule_file(toml)
    assert read.rules == IN_PYTHON.rules
    assert (read.id, read.origin) == (IN_PYTHON.id, str(toml))
    as_json = tmp_path / "rules.json"
    as_json.write_bytes(msgspec.json.encode(msgspec.toml.decode(TOML.encode())))
    assert read_rule_file(as_json).rules == read.rules


@pytest.mark.parametrize(
    ("rule", "field", "value", "remedy"),
    [
        ({"action": "nevr", "op": "a"}, "rules[0].action", "'nevr'", "'never'"),
        ({"op": "a"}, "rules[0].action", "missing", "never"),
        ({"action": "alone", "ops": "a"}, "rules[0].ops", "no such field", "'op'"),
        ({"action": "alone", "op": 3}, "rules[0].op", "3 is a int", "quotes"),
        ({"action": "alone", "op": []}, "rules[0].op", "empty", "pattern"),
        ({"action": "alone", "op": ["a", ""]}, "rules[0].op", "''", "quotes"),
        ({"action": "alone"}, "rules[0]", "selects by nothing", "module"),
        ({"action": "alone", "op": "a", "with": "b"}, "rules[0].with", "pairs", "leave it out"),
        ({"action": "never", "op": "a", "with": {}}, "rules[0].with", "nothing", "module"),
        ({"action": "never", "op": "a", "with": {"opp": "b"}}, "rules[0].with.opp", "", "'op'"),
        ({"action": "never", "op": "a", "nodes": 3}, "rules[0].nodes", "bounds", "leave it out"),
        ({"action": "at_most"}, "rules[0]", "no bound", "inputs"),
        ({"action": "at_most", "nodes": 0}, "rules[0]", "nodes is 0", "above 0"),
        ({"action": "at_most", "nodes": "4"}, "rules[0]", "'4'", "whole number"),
        ({"action": "at_most", "bytes": True}, "rules[0]", "True", "whole number"),
        ("never", "rules[0]", "'never' is a str", "table"),
        (
            {"action": "alone", "source": "model.py:60-40"},
            "rules[0].source",
            "'model.py:60-40' run backwards",
            "model.py:40-60",
        ),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, rule: Any, field: str, value: str, remedy: str
) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rules": [rule]}))
    with pytest.raises(RuleError) as caught:
        read_rule_file(path)
    assert caught.value.subject == f"rule file {path}"
    assert caught.value.cause.startswith(f"{field}: ")
    assert value in caught.value.cause
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules = 3", "rules: 3 is a int"),
        ("schema = 2\nrules = []", "schema: 2"),
        ("rule = []", "it has no rules"),
        ("rules = []\nmore = 1", "more: there is no such field"),
        ("[[rules]", "no TOML"),
    ],
)
def test_files_of_another_form(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RuleError, match=f"rule file {path}.*{told}"):
        read_rule_file(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="No such file"):
        read_rule_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rules.never(""),
        lambda: rules.never(3),
        select,
        lambda: select(op=["aten.exp", 3]),
        lambda: select(where=len),
        lambda: select(source="model.py:60-40"),
        rules.at_most,
        lambda: rules.at_most(nodes=0),
        lambda: rules.store(select(where=lambda _: True)),
        lambda: rule_set(["aten.exp"]),
    ],
)
def test_what_is_no_rule_is_refused(wrong: Any) -> None:
    with pytest.raises(RuleError):
        wrong()


def test_the_id_is_of_what_rules_do() -> None:
    first = rule_set([rules.never("aten.exp", "aten.sum"), rules.alone("aten.mm")])
    assert first.id == RuleSet(first.rules, "elsewhere.toml").id
    others = [
        rule_set([rules.never("aten.sum", "aten.exp"), rules.alone("aten.mm")]),
        rule_set([rules.never("aten.exp"), rules.alone("aten.mm")]),
        rule_set([rules.always("aten.exp", "aten.sum"), rules.alone("aten.mm")]),
        rule_set(list(reversed(first.rules))),
        rule_set(rules.at_most(nodes=2)),
        rule_set(rules.at_most(inputs=2)),
        rule_set([]),
    ]
    assert len({first.id, *(other.id for other in others)}) == len(others) + 1


def test_a_predicate_is_known_by_its_code_and_what_it_closes_over() -> None:
    def larger_than(bound: int) -> Any:
        def large(node: Node) -> bool:
            return node.numel > bound

        return large

    def made(bound: int) -> RuleSet:
        return rule_set(rules.alone(select(where=larger_than(bound))))

    assert made(10).id == made(10).id
    assert made(10).id != made(11).id
    other = rule_set(rules.alone(select(where=lambda node: node.rnumel > 10)))
    another = rule_set(rules.alone(select(where=lambda node: node.rnumel > 11)))
    assert len({made(10).id, other.id, another.id}) == 3


def test_rules_tell_what_they_say() -> None:
    told = [rule.describe() for rule in IN_PYTHON.rules]
    assert told == [
        "never fuse aten.exp with aten.sum",
        "always fuse in model.layers.*.mlp with aten.add|aten.mul at model.py:42",
        "keep node op4 alone",
        "store aten.exp",
        "inline aten.rsqrt",
        "at most 4 nodes, 8 inputs, 1048576 bytes for everything",
        "at most 2 nodes for aten.sum",
    ]
    assert IN_PYTHON.name(0) == "rule 1: never fuse aten.exp with aten.sum"
    assert rules.never(Selector(op=("a",))).describe() == "never fuse a with each other"

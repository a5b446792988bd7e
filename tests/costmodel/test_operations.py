"""Classes of operations, and what the members of one cost beside each other."""

from __future__ import annotations

from collections import Counter

from fusewise.costmodel.operations import (
    CLASSES,
    SORTS,
    operation_class,
    operation_weight,
    shared_by_angles,
)


def test_new_operations_are_plain_arithmetic() -> None:
    assert CLASSES[operation_class("some_new_operation")] == "arithmetic"
    assert CLASSES[operation_class("special_something")] == "transcendental"
    assert operation_class("store") == -1


def test_weights_are_those_of_the_cheapest_of_each_class() -> None:
    assert operation_weight("add") == operation_weight("exp") == operation_weight("truediv") == 1.0
    assert operation_weight("sin") > operation_weight("tanh") > operation_weight("sigmoid") > 1.0
    assert operation_weight("some_new_operation") == 1.0


def test_a_sine_and_its_cosine_bring_their_angle_into_range_once() -> None:
    both = shared_by_angles({"sin": 2.0, "cos": 1.0})
    assert 0 < both < operation_weight("cos")
    assert shared_by_angles({"sin": 2.0, "exp": 1.0}) == 0


def test_each_operation_is_told_in_one_column() -> None:
    told = Counter(name for names in SORTS.values() for name in names)
    assert set(told.values()) == {1}
    for column, names in SORTS.items():
        assert column == f"op_{names[0]}"

"""Shares of a prediction add up to the prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusewise.costmodel.attribution import amounts, attribute, moved_bytes
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.roofline import Roofline, roofline_parts, roofline_us
from fusewise.costmodel.trained import DESIGN
from fusewise.schedule.errors import ModelError
from fusewise.schedule.problem import Problem

MakeKernels = Callable[[int, int], Any]


def test_shap_values_add_up_to_the_prediction(kernels: MakeKernels) -> None:
    train, test = kernels(600, 1), kernels(20, 2)
    estimator = LearnedCostModel(seed=3, n_estimators=40, networks=1, epochs=4)
    model = estimator.fit(train.features, train.us).model_
    predicted = model.predict(test.features)
    learned = [i for i, source in enumerate(predicted.source) if source == "learned"]
    found = attribute(model, test.features)
    assert len(found) == len(test.features) and learned
    for i in learned:
        assert found[i].learned_us == pytest.approx(predicted.us[i])
        shaps = [abs(c.shap) for c in found[i].contributions]
        assert shaps == sorted(shaps, reverse=True)
        assert len(shaps) == len(DESIGN)
        for c in found[i].contributions:
            assert c.factor == pytest.approx(np.exp(c.shap))


def test_the_roofline_has_parts_and_no_trees(softmax: Problem, profile: DeviceProfile) -> None:
    features = Featurizer(softmax, profile).batch([("op0",), ("op0", "op1", "op2", "op3")])
    model = Roofline(profile)
    for i, found in enumerate(attribute(model, features)):
        assert found.contributions == () and found.learned_us is None
        slower = max(found.memory_us, found.arithmetic_us)
        assert found.launch_us + slower == pytest.approx(model.predict(features).us[i])
        largest = max(found.launch_us, found.memory_us, found.arithmetic_us)
        assert getattr(found, f"{found.bound_by}_us") == largest
    np.testing.assert_array_equal(
        roofline_parts(features, profile).us, roofline_us(features, profile)
    )


def test_fusion_moves_fewer_bytes(softmax: Problem, profile: DeviceProfile) -> None:
    featurizer = Featurizer(softmax, profile)
    alone = [moved_bytes(featurizer.group([node.name])) for node in softmax.nodes]
    read, written = moved_bytes(featurizer.group([node.name for node in softmax.nodes]))
    assert written == softmax.buffer_by_name["buf3"].bytes
    assert read < sum(r for r, _ in alone) and written < sum(w for _, w in alone)
    assert amounts(featurizer.group(["op1"]))["nodes"] == 1


def test_features_of_another_shape_are_refused(profile: DeviceProfile) -> None:
    with pytest.raises(ModelError, match="shape"):
        attribute(Roofline(profile), np.zeros((2, 3)))

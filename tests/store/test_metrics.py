import math

import numpy as np
import pytest

from agrpo.store import metrics


def test_values_come_back_with_nan_and_infinity(store, attempt):
    values = {"reward": np.float32(0.5), "loss": float("nan"), "max": float("inf"), "min": float("-inf"), "count": 3}
    metrics.log(attempt, 1, values)
    ((step, found),) = metrics.series(store, "small")
    assert step == 1
    assert math.isnan(found.pop("loss"))
    assert found == {"reward": 0.5, "max": math.inf, "min": -math.inf, "count": 3.0}


def test_a_step_is_logged_once(store, attempt):
    """Fault 26: after a crash between checkpoint and step the replayed step logs nothing new."""
    metrics.log(attempt, 2, {"reward": 0.2})
    metrics.log(attempt, 1, {"reward": 0.1})
    metrics.log(attempt, 2, {"reward": 0.9})
    assert metrics.series(store, "small") == [(1, {"reward": 0.1}), (2, {"reward": 0.2})]


def test_windows_are_appended(store, attempt):
    metrics.window(attempt, "worker", 0, {"tokens": 1})
    metrics.window(attempt, "worker", 0, {"tokens": 2})
    first, second = metrics.windows_since(store, "small", 0)
    assert (first.kind, first.index, first.values, second.values) == ("worker", 0, {"tokens": 1.0}, {"tokens": 2.0})
    assert metrics.windows_since(store, "small", first.id) == [second]
    assert (metrics.last_window(store, "small"), metrics.last_window(store, "other")) == (second.id, 0)
    metrics.forget_windows(attempt, second.id)
    assert metrics.windows_since(store, "small", 0) == [second]


def test_a_window_after_a_forgotten_one_is_new(store, attempt):
    """SQLite gives the id of a deleted last row again."""
    metrics.window(attempt, "worker", 0, {"tokens": 1})
    counted = metrics.last_window(store, "small")
    metrics.forget_windows(attempt, counted)
    metrics.window(attempt, "worker", 0, {"tokens": 2})
    assert [window.values for window in metrics.windows_since(store, "small", counted)] == [{"tokens": 2.0}]


def test_a_value_that_is_no_number_is_refused(attempt):
    with pytest.raises(ValueError, match="could not convert"):
        metrics.log(attempt, 1, {"reward": "high"})

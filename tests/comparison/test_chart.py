"""The chart: labels do not overlap."""

from __future__ import annotations

from slimilar.comparison.chart import apart

# --- what is asked ------------------------------------------------------------------------------------------------


def test_labels_are_pushed_apart_no_further_than_need_be():
    assert apart([], 1, 0, 10) == []
    assert apart([1, 4, 9], 1, 0, 10) == [1, 4, 9]
    assert apart([5, 5, 5], 1, 0, 10) == [4, 5, 6]
    assert apart([0, 0], 1, 0, 10) == [0, 1]
    assert apart([10, 10], 1, 0, 10) == [9, 10]

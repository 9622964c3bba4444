"""The order of tasks, and what a failure means for those that depend on it."""

from __future__ import annotations

from slimilar.comparison import ComparisonRow
from slimilar.comparison.schedule import run as schedule
from slimilar.comparison.tasks import Choice, Entry


def test_what_depends_on_a_failure_fails_with_its_reason():
    choice = Choice("similarity", 0)
    wanted = [Entry("similarity", s, False, "0.5", 0, choice) for s in ("none", "linear")]

    class Refuses:
        """Does everything but choose."""

        capacity = 1

        def submit(self, task):
            self.task = task

        def next(self):
            from slimilar.comparison.engines import Failed

            return self.task, Failed("no channels") if isinstance(self.task, Choice) else None

    rows: list[ComparisonRow] = []
    schedule(wanted, Refuses(), rows.append, lambda event: None, 0)
    assert [row.error for row in rows] == ["no channels", "no channels"]

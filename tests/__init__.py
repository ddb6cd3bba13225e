"""A package, so that `python -m tests.faults.scorecard` finds it whatever else is installed under this name."""

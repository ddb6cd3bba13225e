"""Ranks that run one test after the other, for ``a2a_pytest`` and ``a2a.testing.RanksTestCase``; pytest is not needed.

``channel`` carries messages between processes. ``template`` is the process from which ranks are forked, ``pool`` keeps
ranks from test to test. ``serving`` is what a rank does, ``world`` what it has during a test. ``run`` has ranks run one
test, and collects how each ended. ``stuck`` says where ranks are that do not end. ``verdict`` groups what failed."""

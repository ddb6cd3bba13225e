"""The conformance kit: one suite for every framework, transport and signature, as data plus a runner.

``a2a conformance`` is its command line; docs/design/conformance.md says how to add a case or a call, CONTRIBUTING.md
how to add a framework.

    from a2a import conformance
    cases = conformance.load()
    tasks = conformance.plan(cases, ranks=2, framework="numpy", libraries=["core"])
    assert all(result.verdict == conformance.PASS for result in conformance.run("shm", 2, tasks))
"""

from .cases import Case, load
from .rank import PASS, Task
from .report import Matrix
from .runner import plan, plan_mixed, run
from .session import Result

__all__ = ["PASS", "Case", "Matrix", "Result", "Task", "load", "plan", "plan_mixed", "run"]

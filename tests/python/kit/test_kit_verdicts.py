"""What pytest says of a test that fails on some of its ranks: once, with the culprit first; and the next test runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import kit_programs
import pytest

pytest.importorskip("a2a_pytest")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> kit_programs.Run:
    folder = tmp_path_factory.mktemp("verdicts")
    shutil.copy(Path(kit_programs.__file__).with_name("kit_verdicts.py"), folder / "test_verdicts.py")
    done = kit_programs.run_pytest(folder, "test_verdicts.py")
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("a2a-")) == []
    return done


# What the text has, in this order.
FAILURES = {
    "test_one_rank_fails": [
        "rank 1 failed first:",
        "AssertionError: I am one",
        "ranks 0, 2 followed:",
        "AbortedError: rank 1 aborted: rank 1 failed",
    ],
    "test_all_fail_alike": ["all 3 ranks failed alike:", "assert 3 == 4"],
    "test_each_fails_with_its_own_value": [r"rank \d failed first:", r"assert \d == 7"],
    "test_killed": [
        "rank 1 was killed by SIGKILL",
        "rank 0 followed:",
        "PeerLostError: barrier #1: rank 0 lost rank 1",
    ],
    "test_segfault": ["rank 1 was killed by SIGSEGV", r"test_verdicts.py:\d+ in test_segfault", "rank 0 followed:"],
    "test_exits_by_os_exit": ["rank 1 exited with code 3 before the test had ended", "rank 0 followed:"],
    "test_exits_by_sys_exit": ["rank 1 of 2 failed:", "SystemExit: 4"],
    "test_hangs": [
        r"rank 1 did not come to an end in 1 s\n.*test_verdicts.py:\d+ in test_hangs\n +time.sleep\(100\)",
        r"rank 0 did not come to an end in 1 s\n.*test_verdicts.py:\d+ in test_hangs\n +comm.barrier\(\)",
        "operation #1 is not finished on all ranks, because of rank 1",
        "rank 1 has called nothing on this communicator",
    ],
    "test_stopped": ["rank 1 did not come to an end in 1 s", "it is stopped", "rank 0 did not come to an end"],
    "test_goes_on_after_another_has_failed": [
        "rank 0 failed first:",
        "assert 0 == 1",
        "rank 1 did not come to an end in 3 s after another rank had failed",
        r"time.sleep\(100\)",
    ],
    "test_skips_on_one_rank": [r"rank 1 skipped the test \(Skipped: odd\), and rank 0 did not"],
    "test_unexpected_success": [r"\[XPASS\(strict\)\] no rank"],
    "test_forks": ["rank 1 has forked: process .* came out of the test, too"],
    "test_closes_stdout": ["rank 1 of 2 failed:", "the test has closed sys.stdout"],
    "test_closes_descriptors": ["rank 1 has closed its connection to the process that runs the tests"],
    "test_leaves_work_unfinished": [
        r"rank \d has not waited for allreduce #1, called from .*test_verdicts.py:\d+ in test_leaves_work"
    ],
    "test_calls_differ": ["rank 0 calls allgather_bytes, rank 1 calls barrier"],
    "test_one_thread_fails": ["rank 2 failed first:", "assert 2 != 2", "ranks 0-1, 3 followed:", "AbortedError"],
    "test_a_thread_hangs": [
        "ranks 0-1 did not come to an end in 1 s",
        "rank 0:",
        r"comm.barrier\(\)",
        "rank 1:",
        r"time.sleep\(100\)",
        "because of rank 1",
    ],
    "test_a_fault_that_does_not_strike": [r"faults.kill\(1, at=30\) did not strike: rank 1 started 1 operations"],
    "test_a_fault_of_no_rank": ["all 2 ranks failed alike:", "there is no rank 2 of 2"],
    "test_dies_of_something_else_than_planned": ["rank 1 exited with code 5"],
}
ERRORS = {
    "test_fails_in_a_fixture": ["rank 1 of 2 failed:", "ZeroDivisionError"],
    "test_without_a_number": [r"@pytest.mark.ranks needs the number of ranks: @pytest.mark.ranks\(4\)"],
    "test_with_a_word": [r"@pytest.mark.ranks\('two'\): a number of ranks is an integer from 1 on"],
    "test_with_an_unknown_argument": ["has no argument timout; it has threads, timeout, torch, paddle, jax"],
    "test_with_an_unknown_backend": ['torch is "a2a" or "gloo"'],
    "test_with_more_hosts_than_ranks": [r"@pytest.mark.hosts\(3,\) needs one number of hosts from 1 to .* 2"],
    "test_with_too_many_ranks": ["1000000 ranks need .* MiB available"],
    "test_comm_without_the_mark": [r"the fixture comm is for tests with the mark ranks: @pytest.mark.ranks\(4\)"],
    "test_threads_with_a_fixture_of_one_rank": ["fixtures are set up once for all ranks, so the fixture of_rank"],
    "test_threads_with_faults": ["the fixture faults needs processes"],
}
PASSES = ("test_forks_rightly", "test_records_what_cannot_be_pickled", "test_warns", "test_after_all")
SKIPPED = ("test_skips", "test_skipped_by_its_mark", "test_expected_failure")


def require(case: kit_programs.Case, patterns: list[str]) -> None:
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(case.text, at)
        assert found is not None, f"no {pattern!r} after the first {at} characters of\n{case.text}"
        at = found.end()


@pytest.mark.smoke
@pytest.mark.parametrize("name", FAILURES)
def test_failures(run: kit_programs.Run, name: str) -> None:
    case = run.cases[name]
    assert case.verdicts == ["failure"], case
    require(case, FAILURES[name])


@pytest.mark.parametrize("name", ERRORS)
def test_errors(run: kit_programs.Run, name: str) -> None:
    case = run.cases[name]
    assert case.verdicts == ["error"], case
    require(case, ERRORS[name])


def test_others(run: kit_programs.Run) -> None:
    assert {name: run.cases[name].verdicts for name in PASSES} == {name: [] for name in PASSES}
    assert {name: run.cases[name].verdicts for name in SKIPPED} == {name: ["skipped"] for name in SKIPPED}
    assert set(run.cases) == {*FAILURES, *ERRORS, *PASSES, *SKIPPED}


def test_each_assertion_is_shown_once(run: kit_programs.Run) -> None:
    text = run.cases["test_each_fails_with_its_own_value"].text
    assert all(len(re.findall(rf"E +assert {rank} == 7", text)) == 1 for rank in range(3)), text
    assert text.count("@pytest.mark.ranks(3)") == 1, text


def test_a_hang_ends_at_its_limit(run: kit_programs.Run) -> None:
    assert 1 <= run.cases["test_hangs"].seconds < 4


def test_output_is_told_by_rank(run: kit_programs.Run) -> None:
    printed = run.printed
    for rank in range(3):
        assert re.search(rf"Captured stdout call on rank {rank} -+\nhello of {rank}\n", printed), printed
    assert re.search(r"Captured stdout call on ranks 0-2 -+\nthe same\n", printed)
    assert re.search(r"Captured stdout call on ranks 0-1 -+\nbefore the end\n", printed), (
        "output of a rank that was killed"
    )


def test_a_warning_of_all_ranks_is_shown_once(run: kit_programs.Run) -> None:
    assert run.printed.count("UserWarning: of all ranks") == 1

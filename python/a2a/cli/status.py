"""``a2a status``: what the ranks of running jobs do now, and who is behind."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import time
from collections.abc import Iterator

from .. import _status
from .._core import InvalidArgumentError
from .._status import JobStatus, RankStatus
from .._status_hosts import RSH, Remote, merged, pack
from .._status_pages import found
from .._status_ranks import Sample
from ._diagnosis import name_ranks
from ._parser import Parser, add_command, in_words, offer
from ._terminal import Table, is_rich, show

_INTERVAL = 0.1
_EXAMPLES = (
    ("a2a status", "the running jobs of this user on this host, and who is behind"),
    ("a2a status train-7", "one job, by its name, the beginning of it, or the process id of a rank"),
    ("a2a status --watch", "again each second, until Ctrl-C"),
    ("a2a status --hosts node2 node3", "the ranks of these hosts, too"),
    ("a2a status --json", "all that is known, for a program"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    text = (
        "Show what the ranks of this user on this host do now: the operation, its place in the program, for whom they "
        "wait, and who keeps the others waiting. Nothing has to be set before the job starts. No rank is stopped or "
        "asked, so this also works for one that hangs. Exits with 0 when nobody is behind, with 1 when somebody is, "
        "and with 2 when no job runs."
    )
    parser = add_command(commands, "status", "what running ranks do now, and who is behind", text, _EXAMPLES)
    job = parser.add_argument(
        "job", nargs="?", metavar="JOB", help="name of a job, its beginning, or the pid of a rank"
    )
    offer(job, _Names())
    parser.add_argument(
        "--watch", nargs="?", type=_seconds, const=1.0, metavar="SECONDS", help="show it again and again"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON; with --watch a line each time")
    parser.add_argument(
        "--hosts", nargs="+", default=[], metavar="HOST", help="look on these hosts, too, by ssh; they need no password"
    )
    parser.add_argument(
        "--rsh", default=RSH, metavar="COMMAND", help=f"instead of ssh: called with a host and a command ({RSH})"
    )
    parser.add_argument("--sample", action="store_true", help="write what this host sees, for a2a status elsewhere")
    parser.set_defaults(function=_status_command)


class _Names:
    """The names of the jobs that run, found when a shell asks for them."""

    def __iter__(self) -> Iterator[str]:
        return iter([one.name for one in _status.status(interval=0)])


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds from 0.1 to 3600")
    return seconds


def _status_command(options: argparse.Namespace) -> int:
    if options.sample:
        print(pack(_look(None)))
        return 0
    if options.watch is not None:
        return _watch(options)
    before, now = _look(options)
    try:
        jobs = _status.jobs_of(before, now, options.job)
    except InvalidArgumentError as error:
        print(f"a2a {in_words(error)}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in jobs], indent=2))
    elif not jobs:
        where = "on these hosts" if options.hosts else "on this host"
        print(f"a2a status: no rank of this user runs {where}", file=sys.stderr)
    else:
        _show(jobs)
    return 2 if not jobs else int(any(job.behind for job in jobs))


def _look(options: argparse.Namespace | None) -> tuple[Sample, Sample]:
    """Return two samples of this host and those of ``options``. Says which of these do not answer."""
    remote = Remote(options.hosts, options.rsh) if options is not None else None
    with found() as processes:
        before = Sample.of(processes)
        time.sleep(_INTERVAL)
        now = Sample.of(processes)
    if remote is None:
        return before, now
    others, problems = remote.samples()
    for problem in problems:
        print(f"a2a status: {problem}", file=sys.stderr)
    return merged(before, [one for one, _ in others]), merged(now, [one for _, one in others])


def _watch(options: argparse.Namespace) -> int:
    before: Sample | None = None
    with _screen(options.json) as draw:
        while True:
            if options.hosts:
                before, now = _look(options)
            else:
                with found() as processes:
                    now = Sample.of(processes)
            jobs: list[JobStatus] = []
            with contextlib.suppress(InvalidArgumentError):  # it has not begun, or has ended
                jobs = _status.jobs_of(before or now, now, options.job)
            before = now
            if options.json:
                print(json.dumps([dataclasses.asdict(one) for one in jobs]), flush=True)
            else:
                draw(jobs)
            time.sleep(options.watch)


@contextlib.contextmanager
def _screen(plain: bool) -> Iterator[_Draw]:
    """Yield what draws the jobs in place of those before."""
    if plain or not is_rich(sys.stdout):
        yield _Draw(None)
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield _Draw(live)


class _Draw:
    def __init__(self, live: object) -> None:
        self._live = live

    def __call__(self, jobs: list[JobStatus]) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as text:  # no terminal, so it is drawn without colours
            print(time.strftime("%H:%M:%S"))
            _show(jobs)
            if not jobs:
                print("no rank runs")
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text.getvalue()), refresh=True)  # type: ignore[attr-defined]
        else:
            print(("\x1b[H\x1b[J" if sys.stdout.isatty() else "") + text.getvalue(), flush=True)


def _show(jobs: list[JobStatus]) -> None:
    for at, job in enumerate(jobs):
        if at:
            print()
        print(f"{job.name} on {job.host}: {len(job.ranks)} of {job.size} rank{'s' * (job.size > 1)} here")
        if job.hosts > 1 and job.missing:
            print(f"  its ranks are on {job.hosts} hosts; a2a status --hosts shows those of others")
        for one in job.behind:
            text = f"  behind: {name_ranks(one.ranks)} of {one.label} {one.why}"
            others = [rank for rank in one.waiting if rank not in one.ranks]
            if others:
                text += f"; {name_ranks(others)} {'wait' if len(others) > 1 else 'waits'} for {_time(one.seconds)}"
            print(text)
        show(Table("", [_row(rank) for rank in job.ranks], _COLUMNS, right=(0, 1, 2, 8, 9, 10)))


_COLUMNS = (
    "rank", "pid", "CPU", "process", "framework", "does", "since", "waits for", "calls/s", "bytes/s", "shared",
    "called from",
)  # fmt: skip


def _row(rank: RankStatus) -> tuple[str, ...]:
    own = rank.communicators[0]
    doing = own.waits_in or own.operation or "nothing yet"
    if own.phase in ("after", "failed"):
        doing = f"{own.phase} {doing}"
    if own.phase == "meets":
        doing = f"waits in {own.label}"
    elif own.label != "world":
        doing += f" of {own.label}"
    process = rank.state + (f" {rank.cpu_share:.0%}" if rank.state == "runs" and rank.cpu_share else "")
    return (
        str(rank.rank),
        str(rank.pid),
        str(rank.cpu),
        process,
        rank.frameworks or "-",
        doing,
        _time(own.seconds),
        _some(own.waits_for),
        f"{rank.operations_per_second:.0f}",
        _size(rank.bytes_per_second),
        _size(rank.shared_bytes),
        own.site,
    )


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _size(amount: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""

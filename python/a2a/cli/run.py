"""``a2a run``: starts a program as ranks of this host."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO

from .._ended import EndedRanks
from ._parser import Parser, add_command, add_ranks, whole
from ._rank_environment import Ports, environment_of_job, environment_of_rank
from ._rank_output import RankOutput
from ._rank_process import RankProcess
from ._restarts import Restarts
from ._verdict import End, cause, verdict

# How long ranks may take to leave after a signal before they are killed.
_GRACE_SECONDS = 5.0
# How long to wait for the rank that caused a failure after other ranks noticed it.
_CAUSE_SECONDS = 0.5

_DESCRIPTION = """\
Start a Python program as N ranks of this host.

Environment: each rank finds A2A_RANK, A2A_SIZE, A2A_LOCAL_RANK and A2A_JOB, which a2a.init() reads, and A2A_SECRET, the
job's secret. RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torch reads, and
OMP_NUM_THREADS, the CPUs per rank, are set unless they are set already.

Output: each line begins with its rank, such as [0]. Ranks read nothing from standard input.

Failures: when a rank fails, the others are ended. The last line names the rank that caused it. The exit code is that
rank's, or 128 + the number of its signal. A rank that waits in a2a.init() for one that has ended raises an error.

Restarts: with --restarts K a rank that fails is started again, K times in the whole job. It waits 0.1 seconds before,
then twice as long each time, at most 10 seconds; after a minute without a failure it begins with 0.1 seconds again. It
finds in A2A_RESTART how often it was started again, and each rank finds K in A2A_RESTARTS.

Signals: SIGINT, SIGTERM and SIGHUP are forwarded. Ranks that do not leave within 5 seconds are killed, and at once
after a second signal."""

_EXAMPLES = (
    ("a2a run -n 4 train.py --epochs 3", "four ranks; what follows the program is the program's"),
    ("a2a run -n 2 -m pytest tests", "a Python module"),
    ("a2a run -n 2 --no-python ./program", "any executable"),
    ("a2a run -n 4 --restarts 3 train.py", "starts ranks that fail again, three times in all"),
    ("A2A_DUMP=dumps a2a run -n 4 train.py", "keeps records: a2a explain dumps says who is late"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    usage = "a2a run -n N [--restarts K] [--no-prefix] [--no-python] [-m] [--] program [args]"
    parser = add_command(commands, "run", "start a program as ranks", _DESCRIPTION, _EXAMPLES, usage)
    add_ranks(parser, "how many ranks")
    parser.add_argument(
        "--restarts", type=_restarts, default=0, metavar="K", help="how often ranks that fail are started again (0)"
    )
    parser.add_argument("-m", "--module", action="store_true", help="the program is a Python module")
    parser.add_argument("--no-python", action="store_true", help="the program is any executable")
    parser.add_argument("--no-prefix", action="store_true", help="ranks write to the terminal themselves")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    parser.set_defaults(function=lambda options: _run(parser, options))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if options.ranks is None:
        parser.error(f"how many ranks? For example: a2a run -n 4 {' '.join(program) or 'program.py'}")
    if not program:
        parser.error(f"which program? For example: a2a run -n {options.ranks} program.py")
    if options.module:
        program = [sys.executable, "-u", "-m", *program]
    elif not options.no_python:
        if not Path(program[0]).exists():
            parser.error(f"{program[0]}: no such file{_advice(program[0])}")
        program = [sys.executable, "-u", *program]
    try:
        with _Job(program, options.ranks, options.restarts, not options.no_prefix) as job:
            return job.wait()
    except OSError as error:
        print(f"a2a run: {program[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _restarts(text: str) -> int:
    return whole(text, least=0, most=2**31 - 1)


def _advice(program: str) -> str:
    if shutil.which(program):
        return f"; {program} is a command, which --no-python starts"
    return "" if "/" in program or program.endswith(".py") else f"; -m {program} starts a module"


class _Job:
    """All ranks. One thread waits for their output, their ends and signals."""

    def __init__(self, program: list[str], ranks: int, restarts: int, prefix: bool) -> None:
        self._code: int | None = None  # of the whole job, once it is known
        self._kill_at = float("inf")
        self._decide_at = float("inf")  # at the latest; then the ends so far decide why the job fails
        self._ends: list[End] = []  # of ranks that are not started again
        self._ended_ranks: list[int] | None = None  # those that had not failed when the job did
        self._processes: dict[int, RankProcess] = {}  # the last one of each rank
        self._running: set[int] = set()
        self._restarts = Restarts(restarts)
        self._program, self._prefix = program, prefix
        self._outputs: dict[int, tuple[IO[bytes], RankOutput]] = {}
        self._own_output = RankOutput(b"a2a run: ", 2)
        self._poller = select.poll()
        self._wake = _catch_signals()
        self._poller.register(self._wake, select.POLLIN)
        self._torchs = Ports(2)  # of torch's store, and the next, where ranks on several hosts meet
        self._paddles = Ports(1)
        env = environment_of_job(ranks, self._torchs.number, self._paddles.number)
        self._told = EndedRanks(env["A2A_JOB"], ranks, restarts)
        self._env = env | self._told.environment
        try:
            for rank in range(ranks):
                self._start(rank)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, rank: int) -> None:
        self._restarts.started(rank)
        env = environment_of_rank(rank, self._env, self._restarts.of(rank))
        self._processes[rank] = RankProcess(self._program, env, self._prefix)
        self._running.add(rank)
        for stream, target in self._processes[rank].outputs:
            self._outputs[stream.fileno()] = stream, RankOutput(f"[{rank}] ".encode(), target)
            self._poller.register(stream, select.POLLIN)

    def _start_again(self, rank: int) -> None:
        ended = self._processes[rank]
        ended.signal(signal.SIGKILL)  # what it left behind
        self._told.start_again(rank)
        try:
            self._start(rank)
        except OSError as error:
            self._judge([End(rank, 127, f"could not be started again: {error.strerror}", "")])
        else:
            ended.reap()

    def wait(self) -> int:
        """Wait for all ranks to end and return the job's exit code."""
        while self._running or self._restarts.next_at < float("inf"):
            left = min(self._kill_at, self._decide_at, self._restarts.next_at) - time.monotonic()
            for descriptor, _ in self._poller.poll(None if left == float("inf") else max(left, 0) * 1000):
                if descriptor == self._wake.fileno():
                    self._on_signals(self._wake.recv(4096))
                else:
                    self._copy(descriptor)
            if time.monotonic() >= self._decide_at:
                self._fail()
            if time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = float("inf")
            for rank in self._restarts.due():
                self._start_again(rank)
        # The last output of ranks is still in the pipes; processes that they left behind may hold the pipes open for
        # ever.
        while any([self._copy(descriptor) for descriptor, _ in self._poller.poll(0) if descriptor in self._outputs]):
            pass
        for _, output in self._outputs.values():
            output.end()
        if self._ended_ranks is not None:
            self._say(verdict(self._ends, self._ended_ranks))
        return self._code or 0

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                self._reap()
            elif self._kill_at == float("inf") and self._code is None:
                self._end(128 + number, number)
            else:
                self._kill_at = 0

    def _reap(self) -> None:
        ends: list[End] = []
        for rank in sorted(self._running):
            if (end := self._processes[rank].end()) is not None:
                self._running.remove(rank)
                ends.append(End(rank, *end, self._told.last_words(rank)))
        # Of ranks that are found to have ended at once, one that was killed is more likely the cause.
        self._judge(sorted(ends, key=lambda end: end.how.startswith("exited")))

    def _judge(self, ends: list[End]) -> None:
        """Start ranks that failed again as long as restarts are left. Then the job fails."""
        for end in ends:
            failed = end.code != 0 and self._code is None
            if failed and (number := self._restarts.plan(end)):
                self._processes[end.rank].signal(signal.SIGTERM)  # what it left behind
                self._say(f"rank {end.rank} {end.reason}; starting it again ({number})")
                continue
            self._told.add(end.rank, end.reason)
            if self._code is None:
                self._ends.append(end)
        failures = [end for end in self._ends if end.code != 0]
        if not failures or self._code is not None:
            return
        self._start_no_more()
        # A rank that failed because of another one often ends first.
        if all(end.follows for end in failures) and self._running:
            self._decide_at = min(self._decide_at, time.monotonic() + _CAUSE_SECONDS)
        else:
            self._fail()

    def _start_no_more(self) -> None:
        ends = self._restarts.cancel()
        for end in ends:
            self._told.add(end.rank, end.reason)
        self._ends = ends + self._ends

    def _fail(self) -> None:
        """End the job because of the ranks that have failed."""
        self._ended_ranks = sorted(self._running)
        self._end(cause(self._ends).code, signal.SIGTERM)

    def _end(self, code: int, number: int) -> None:
        self._code, self._decide_at = code, float("inf")
        self._kill_at = time.monotonic() + _GRACE_SECONDS
        self._start_no_more()
        self._signal(number)

    def _signal(self, number: int) -> None:
        for process in self._processes.values():
            process.signal(number)

    def _say(self, text: str) -> None:
        self._own_output.write(f"{text}\n".encode())

    def _copy(self, descriptor: int) -> bool:
        """Copy a rank's output. Returns False at its end."""
        stream, output = self._outputs[descriptor]
        data = os.read(descriptor, 1 << 16)
        if not data:
            self._poller.unregister(descriptor)
            del self._outputs[descriptor]
            stream.close()
            output.end()
            return False
        if not output.write(data) and self._code is None:
            self._end(128 + signal.SIGPIPE, signal.SIGTERM)
        return True

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes.values():
            process.reap()
        for stream, _ in self._outputs.values():
            stream.close()
        signal.set_wakeup_fd(-1)
        self._wake.close()
        self._told.close()
        self._torchs.close()
        self._paddles.close()


def _catch_signals() -> socket.socket:
    """Return a socket from which the numbers of the launcher's signals can be read."""
    wake, waker = socket.socketpair()
    wake.setblocking(False)
    waker.setblocking(False)
    numbers = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # the parent may have left them blocked
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
    return wake

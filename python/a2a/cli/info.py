"""``a2a info``: versions, the machine's limits, and the launcher."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import _spawn, frameworks
from .._core import (
    Communicator,
    Error,
    core_version,
    host_facts,
    host_ways,
    library_of,
    network_choice,
    progress_thread_choice,
    stage_choices,
    stage_choices_between,
)
from .._neighbour import import_names
from ..launch import Launch, meeting_of
from ._machine import affinity_cpus, allowed_cpus, available_memory, cgroup_cpus
from ._parser import Parser, add_command, add_ranks, size
from ._terminal import Table, show

# The time limit of the probe between ranks.
_TIMEOUT_SECONDS = 60.0


_EXAMPLES = (
    ("a2a info", "what works on this machine"),
    ("a2a info -n 8 --why 64K", "which way 64 KiB go between 8 ranks, and why"),
    ("a2a info -n 8 --why 64K --hosts 2", "the same, and the stages of collectives between two hosts"),
    ("a2a info --json", "all facts, for a report"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    text = (
        "Show what works on this machine, the versions, and the launcher that a2a.init() would follow. Exits with 1 "
        "when shared memory does not work."
    )
    parser = add_command(commands, "info", "what works on this machine", text, _EXAMPLES)
    add_ranks(parser, "how many ranks to try it with (default 2)", old=("-r",), default=2)
    parser.add_argument(
        "--why",
        metavar="BYTES",
        type=size,
        help="show only which way so many bytes, such as 65536 or 64K, go from rank to rank, where every pair has as "
        "many, and the stages of collectives, and why",
    )
    parser.add_argument(
        "--hosts",
        metavar="H",
        type=int,
        default=1,
        help="with --why: show the stages of collectives of ranks that are divided among so many hosts (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="all facts, as JSON")
    parser.set_defaults(function=lambda options: _info(parser, options))


def _info(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not 1 <= options.hosts <= options.ranks:
        parser.error(f"--hosts: {options.hosts} hosts for {options.ranks} ranks")
    facts = gather(options.ranks) if options.why is None else why(options.ranks, options.why, options.hosts)
    if options.json:
        print(json.dumps(facts, indent=2))
    elif options.why is not None:
        for title, entries in facts.items():
            show(Table(title, [*entries.items()]))
    else:
        for table in in_words(facts, options.ranks):
            show(table)
    return 0 if options.why is not None or facts["transports"]["shared memory"] == "works" else 1


def why(ranks: int, nbytes: int, hosts: int = 1) -> dict[str, dict[str, str]]:
    """Return the way of ``nbytes`` bytes for each kind of host memory, the stages of collectives, and the reasons.
    Starts ranks, which measure."""
    ways, stages = _spawn.spawn(_ways_and_stages, ranks, nbytes, timeout=_TIMEOUT_SECONDS)[0]
    if hosts > 1:
        stages = stage_choices_between([rank * hosts // ranks for rank in range(ranks)])
    where = "one host" if hosts == 1 else f"{hosts} hosts"
    return {
        f"{nbytes} bytes for each of {ranks} ranks": {memory: f"{way}: {reason}" for memory, way, reason in ways},
        f"Stages of collectives of {ranks} ranks on {where}": {
            collective + (f" from {begin} bytes" if begin else ""): f"{name}: {reason}"
            for collective, name, begin, reason in stages
        },
        "Operations in flight": {"progress thread": progress_thread_choice(-(-ranks // hosts), allowed_cpus(), hosts)},
    }


def _ways_and_stages(
    comm: Communicator, nbytes: int
) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, int, str]]]:
    return host_ways(comm, nbytes), stage_choices(comm)


def gather(ranks: int = 2) -> dict[str, dict[str, Any]]:
    """Return all facts, by group. Starts ranks to find out what works between processes."""
    probe = _probe(ranks)
    quota = cgroup_cpus()
    return {
        "versions": {
            "a2a-comm": core_version,
            "import names": import_names(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            **{name: frameworks.load(name).version() or "not installed" for name in frameworks.known()},
            **{name: _version(name) for name in ("ml_dtypes", "matplotlib")},
        },
        "machine": {
            "cpus online": os.cpu_count(),
            "cpus by affinity": affinity_cpus(),
            "cpus by cgroup quota": "no quota" if quota is None else quota,
            "cpus allowed": allowed_cpus(),
            "memory available MiB": available_memory() >> 20,
        },
        "transports": {
            "shared memory": probe["shared memory"],
            "process_vm_readv": probe["process_vm_readv"],
            "nccl": _library("nccl"),
            "hccl": _library("hccl"),
            "mpi": _library("mpi"),
            "ucx": _library("ucx"),
            "tcp": _secret(),
            "network": network_choice(),
        },
        f"thresholds of {ranks} ranks, bytes": probe["thresholds"],
        "launcher": _launcher(),
    }


def in_words(facts: dict[str, dict[str, Any]], ranks: int) -> Iterator[Table]:
    """The facts as tables for people."""
    versions, machine, ways = facts["versions"], facts["machine"], facts["transports"]
    yield Table(f"a2a-comm {versions['a2a-comm']} with Python {versions['python']} on {versions['system']}", [])
    yield Table("Import it as", [(versions["import names"],)])
    yield Table("What works here", [*_works(ways)])
    others = ("a2a-comm", "import names", "python", "system")
    yield Table(
        "Frameworks and what goes with them",
        [(name, version) for name, version in versions.items() if name not in others],
    )
    cpus = f"{machine['cpus allowed']} for this process, of {machine['cpus online']}"
    quota = machine["cpus by cgroup quota"]
    cpus += f"; {machine['cpus by affinity']} by affinity, {quota if quota == 'no quota' else f'a quota of {quota}'}"
    yield Table("This machine", [("CPUs", cpus), ("memory", f"{machine['memory available MiB']} MiB are free")])
    thresholds = facts[f"thresholds of {ranks} ranks, bytes"]
    if thresholds:
        yield Table(f"From how many bytes on, with {ranks} ranks", [*_from(thresholds)])
    yield Table("What a2a.init() would do here", [*_start(facts["launcher"])])


def _works(ways: dict[str, str]) -> Iterator[tuple[str, str]]:
    shared, reading = ways["shared memory"], ways["process_vm_readv"]
    yield "ranks of this host", "yes, through shared memory" if shared == "works" else f"no, shared memory {shared}"
    copies = "one copy" if reading == "allowed" else "two copies"
    if reading != "unknown":
        yield "large tensors", f"{copies}: to read another rank's memory (process_vm_readv) is {reading}"
        yield "tensors of empty()", "read by their receiver"
    yield "NVIDIA GPUs", ways["nccl"]
    yield "Ascend NPUs", ways["hccl"]
    yield "several hosts, MPI", ways["mpi"]
    yield "several hosts, UCX", ways["ucx"]
    yield "several hosts, TCP", ways["tcp"]
    yield "several hosts, chosen", ways["network"]


def _start(launcher: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if launcher["seen"].startswith("error: "):
        yield "raise", launcher["seen"].removeprefix("error: ")
    elif launcher["seen"] == "none":
        yield "launcher", "none is seen: a group of one rank"
    else:
        yield "launcher", launcher["seen"]
        yield "this rank", f"{launcher['rank']} of {launcher['size']}"
        yield "job", launcher["job"]
        if "several hosts" in launcher:
            yield "several hosts", launcher["several hosts"]
        yield "ranks meet", launcher["ranks meet"]


def _from(thresholds: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    meanings = {
        "A2A_SHM_DIRECT_MIN": "one copy out of shared memory, instead of two",
        "A2A_SHM_CMA_MIN": "one copy out of a rank's own memory, instead of two",
        "A2A_SHM_STREAM_MIN": "copies pass by the caches",
    }
    for name, meaning in meanings.items():
        yield name, str(thresholds[name]), meaning
    yield "set from outside", thresholds["set from outside"], ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _library(transport: Literal["nccl", "hccl", "mpi", "ucx"]) -> str:
    try:
        return " ".join(f"yes: {library_of(transport)}".split())
    except Error as error:
        return f"no: {str(error).partition(';')[0]}"


def _secret() -> str:
    """Describe the secret that ranks need to meet over TCP."""
    for name in ("A2A_SECRET_FILE", "A2A_SECRET"):
        if os.environ.get(name):
            return f"yes: with the secret of {name}"
    return "not yet: needs A2A_SECRET_FILE or A2A_SECRET, the same for all ranks"


def _probe(ranks: int) -> dict[str, Any]:
    try:
        facts = _spawn.spawn(_probe_rank, ranks, timeout=_TIMEOUT_SECONDS)[0]
    except Error as error:
        return {"shared memory": f"fails: {error}", "process_vm_readv": "unknown", "thresholds": {}}
    allowed = "allowed" if facts["cma"] else f"not allowed ({_ptrace_scope()})"
    thresholds = {
        f"A2A_SHM_{name}_MIN": "never" if facts[f"{name.lower()}_min"] is None else facts[f"{name.lower()}_min"]
        for name in ("DIRECT", "CMA", "STREAM")
    }
    thresholds["set from outside"] = ", ".join(name for name in thresholds if name in os.environ) or "none"
    return {
        "shared memory": "works",
        "process_vm_readv": allowed,
        "thresholds": thresholds,
    }


def _probe_rank(comm: Communicator) -> dict[str, Any]:
    mine, expected = np.arange(comm.size) + comm.size * comm.rank, np.arange(comm.size) * comm.size + comm.rank
    received = np.full(comm.size, -1, np.int64)
    comm.alltoall(mine, received)
    if received.tolist() != expected.tolist():
        raise Error(f"rank {comm.rank} received {received.tolist()} from an exchange of {mine.tolist()}")
    return host_facts(comm)


def _ptrace_scope() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return "no Yama; seccomp or a missing capability"
    return f"kernel.yama.ptrace_scope = {scope}"


def _launcher() -> dict[str, Any]:
    try:
        launch = Launch.from_environ()
    except Error as error:
        return {"seen": f"error: {error}"}
    facts = {"seen": launch.launcher, "rank": launch.rank, "size": launch.size, "job": launch.job or "none"}
    if launch.several_hosts:
        facts["several hosts"] = launch.several_hosts
    try:
        facts["ranks meet"] = meeting_of(launch)
    except Error as error:
        facts["ranks meet"] = f"error: {error}"
    return facts

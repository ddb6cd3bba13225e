"""``a2a info``: versions, what the machine allows, and which launcher is seen."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import _spawn, frameworks
from .._core import Communicator, Error, core_version, host_facts, host_ways, library_of
from ..launch import Launch, meeting_of
from ._machine import affinity_cpus, allowed_cpus, available_memory, cgroup_cpus

# Longest time of the probe between ranks.
_TIMEOUT_SECONDS = 60.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Show versions, what this machine allows, and the launcher. Exits with 1 when shared memory does not work."
    parser = commands.add_parser("info", help="versions and what this machine allows", description=text)
    parser.add_argument("-r", "--ranks", type=int, default=2, help="whose thresholds to show (default: 2)")
    parser.add_argument(
        "--why",
        metavar="BYTES",
        type=int,
        help="show only which way so many bytes go from rank to rank, where every pair has as many, and why",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(function=_info)


def _info(options: argparse.Namespace) -> int:
    if options.ranks < 1:
        print(f"a2a info: --ranks {options.ranks} is not a number of ranks", file=sys.stderr)
        return 2
    if options.why is not None and options.why < 0:
        print(f"a2a info: --why {options.why} is not a number of bytes", file=sys.stderr)
        return 2
    facts = gather(options.ranks) if options.why is None else why(options.ranks, options.why)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        for title, entries in facts.items():
            width = max(20, *map(len, entries))
            print(title)
            for name, value in entries.items():
                print(f"  {name:<{width}} {value}")
    return 0 if options.why is not None or facts["transports"]["shared memory"] == "works" else 1


def why(ranks: int, nbytes: int) -> dict[str, dict[str, str]]:
    """The way of ``nbytes`` bytes for each kind of host memory, and the reason. Starts ranks, which measure."""
    ways = _spawn.spawn(host_ways, ranks, nbytes, timeout=_TIMEOUT_SECONDS)[0]
    return {f"{nbytes} bytes for each of {ranks} ranks": {memory: f"{way}: {reason}" for memory, way, reason in ways}}


def gather(ranks: int = 2) -> dict[str, dict[str, Any]]:
    """All facts, by group. Starts ranks to see what works between processes."""
    probe = _probe(ranks)
    quota = cgroup_cpus()
    return {
        "versions": {
            "a2a-comm": core_version,
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
            "copies": probe["copies"],
            "shared tensors": probe["shared tensors"],
            "nccl": _library("nccl"),
            "hccl": _library("hccl"),
            "mpi": _library("mpi"),
            "tcp": _secret(),
        },
        f"thresholds of {ranks} ranks, bytes": probe["thresholds"],
        "launcher": _launcher(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _library(transport: Literal["nccl", "hccl", "mpi"]) -> str:
    try:
        return library_of(transport)
    except Error as error:
        return str(error).partition(";")[0]


def _secret() -> str:
    """Whether ranks that meet over TCP could."""
    for name in ("A2A_SECRET_FILE", "A2A_SECRET"):
        if os.environ.get(name):
            return f"with the secret of {name}"
    return "needs A2A_SECRET_FILE or A2A_SECRET"


def _probe(ranks: int) -> dict[str, Any]:
    try:
        facts = _spawn.spawn(_probe_rank, ranks, timeout=_TIMEOUT_SECONDS)[0]
    except Error as error:
        unknown = dict.fromkeys(("process_vm_readv", "copies", "shared tensors"), "unknown")
        return {"shared memory": f"fails: {error}", **unknown, "thresholds": {}}
    allowed = "allowed" if facts["cma"] else f"not allowed ({_ptrace_scope()})"
    thresholds = {
        f"A2A_SHM_{name}_MIN": "never" if facts[f"{name.lower()}_min"] is None else facts[f"{name.lower()}_min"]
        for name in ("DIRECT", "CMA", "STREAM")
    }
    settings = (*thresholds, "A2A_SHM_REP_MOVSB", "A2A_SHM_PUT")
    thresholds["set from outside"] = ", ".join(name for name in settings if name in os.environ) or "none"
    copies = "rep movsb from 4096 bytes on" if facts["string_copies"] else "without rep movsb"
    return {
        "shared memory": "works",
        "process_vm_readv": allowed,
        "copies": copies,
        "shared tensors": "written by their sender" if facts["puts"] else "read by their receiver",
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

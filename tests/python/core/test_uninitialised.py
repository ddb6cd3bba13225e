"""Objects without content: whatever Python lets a program make of an extension type, no method of it ends the process.
They are tried in a process apart, so that a crash is seen and named."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from a2a import _core

pytestmark = pytest.mark.timeout(120)

DRIVER = r"""
import copy, json, os, pickle, signal, sys
import numpy as np
import a2a
from a2a import _core
from a2a.atb import _binding

HEAP_TYPE = 1 << 9
types = [kind for module in (_core, _binding) for kind in vars(module).values()
         if isinstance(kind, type) and kind.__module__ == module.__name__ and not kind.__flags__ & HEAP_TYPE]
ARGUMENTS = [(), (0,), (np.zeros(4), np.zeros(4)), (b"x",), (None, None, None), ([np.zeros(4)], [np.zeros(4)]),
             (np.zeros(4), [4], np.zeros(4), [4])]


def awaited(thing):
    try:
        thing.__await__().send(None)
    except StopIteration:
        pass


PROTOCOLS = [len, iter, repr, str, hash, bool, memoryview, bytes, np.asarray, np.from_dlpack, copy.copy, copy.deepcopy,
             pickle.dumps, awaited, _core.describe_tensor, lambda thing: thing[0], lambda thing: thing == thing,
             lambda thing: _core.refuse(thing, ValueError()), lambda thing: _core.host_facts(thing),
             lambda thing: a2a.init(0, 1).alltoall(thing, thing), lambda thing: _core.connect(0, 1, bootstrap=thing)]


def fresh(kind):
    # Every way to an object of the type that has not been through its making.
    yield lambda: kind.__new__(kind)
    yield lambda: kind()
    yield lambda: object.__new__(kind)
    for other in types:
        yield lambda other=other: other.__new__(kind)
    yield lambda: type("Child", (kind,), {})()
    yield lambda: type("Child", (kind,), {"__new__": lambda cls: object.__new__(cls)})()
    yield lambda: copy.copyreg.__newobj__(kind)
    yield lambda: kind.__reduce_ex__(kind, 2)


def quietly(call):
    try:
        return call()
    except BaseException:
        return None


def crashes(calls):
    # The names of those calls that a signal ends. A process makes one after the other; the next goes on after a crash.
    at, found = 0, []
    while at < len(calls):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for name, call in calls[at:]:
                os.write(writer, b".")
                quietly(call)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as told:
            at += len(told.read())
        if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            found.append(calls[at - 1][0])
    return found


made, crashed = [], []
for kind in types:
    ways = [(f"{kind.__name__} by way {at}", make) for at, make in enumerate(fresh(kind))]
    crashed += crashes(ways)
    things = [thing for thing in map(quietly, [make for name, make in ways if name not in crashed])
              if isinstance(thing, kind)]
    for thing in things[:1]:  # one is like another
        made.append(kind.__name__)
        calls = [(f"{kind.__name__} {f.__name__}", lambda f=f: f(thing)) for f in PROTOCOLS]
        for name in dir(kind):
            if name not in ("__class__", "__init_subclass__", "__subclasshook__"):
                calls.append((f"{kind.__name__}.{name}", lambda name=name: getattr(thing, name)))
                calls += [(f"{kind.__name__}.{name}{a!r}", lambda name=name, a=a: getattr(thing, name)(*a))
                          for a in ARGUMENTS]
        crashed += crashes(calls)
print(json.dumps({"types": [kind.__name__ for kind in types], "made": made, "crashed": crashed}), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def report() -> dict[str, list[str]]:
    done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_no_member_of_any_type_crashes(report: dict[str, list[str]]) -> None:
    assert report["crashed"] == []


def test_only_the_core_makes_its_objects(report: dict[str, list[str]]) -> None:
    public = {"Communicator", "CoreBootstrap", "Plan", "SharedArray", "Views", "Work"}
    assert public | {"AtbOperation", "Dialect", "TcpBootstrap"} <= set(report["types"])
    assert report["made"] == ["ShownMeeting"]  # which has nothing that only the core could set


def test_nobody_makes_what_wraps_the_calls() -> None:
    kind = type(inspect.getattr_static(_core.Communicator, "alltoall"))
    for make in (kind, lambda: kind.__new__(kind), lambda: object.__new__(kind)):
        with pytest.raises(TypeError):
            make()

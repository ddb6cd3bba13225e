"""a2a.frameworks: the files of the package, and one of the user's own, which all calls then know."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import a2a
from a2a import frameworks, testing

pytestmark = pytest.mark.timeout(100)

FILE = '''
"""A framework of NumPy arrays in a class of its own."""
import math
import sys
import numpy as np
from a2a.frameworks import Framework, Recorder


class Array:
    written, trained = 0, False

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):  # where it can, in the manner of old, which does not say that it may be written
        return self.array.__dlpack__(**({} if self.array.flags.writeable else options))


Array.__module__ = "toys.arrays"


def wrote(tensor):
    tensor.written += 1


class Toys(Framework):
    packages = ("toys",)

    def recorder(self, kind):
        return Recorder(lambda tensor: tensor.trained, lambda: True, wrote, "toys.nn")

    def from_dlpack(self, array):
        return Array(np.from_dlpack(array))

    def convert(self, like, made):
        return Array(made)

    def dtypes(self):
        return frozenset(["int32", "float64"])

    def tensor(self, memory, offset, dtype, shape):
        return Array(memory[offset:][: math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape))

    def read(self, thing):
        return super().read(getattr(thing, "array", thing))


FRAMEWORK = Toys
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toys") / "toys.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def array(file: Path) -> Any:
    """Its class of tensors, once it is known."""
    return sys.modules[type(frameworks.load(str(file))).__module__].Array


@pytest.fixture
def comm() -> Iterator[a2a.Communicator]:
    with a2a.init(0, 1) as made:
        yield made


def test_a_framework_of_ones_own_in_every_call(array: Any, comm: a2a.Communicator) -> None:
    x = array(np.arange(6.0).reshape(3, 2))
    made, counts = comm.exchange(x, [3])
    assert type(made) is array and made.array.tolist() == x.array.tolist() and counts.tolist() == [3]
    assert type(comm.global_scatter(x, [3], [3], async_op=True).result) is array
    empty = comm.empty((3, 2), "float64", like="toys")
    comm.alltoall(x, empty)
    assert empty.array.tolist() == x.array.tolist() and empty.written == 1
    assert type(comm.empty(2, "int32", like=x)) is type(comm.allgather_views(empty, like=x)[0]) is array
    assert testing.as_bytes(x).tolist() == x.array.view(np.uint8).reshape(-1).tolist()


def test_a_child_is_of_the_framework_of_its_parent(array: Any, comm: a2a.Communicator) -> None:
    child = type("Child", (array,), {})(np.zeros(2))
    assert type(comm.exchange(child, [2])[0]) is array
    child.trained = True
    with pytest.raises(a2a.InvalidArgumentError, match=r"recv requires a gradient.*toys\.nn"):
        comm.alltoall(np.ones(2), child)
    with pytest.raises(a2a.InvalidArgumentError, match=r"send requires a gradient.*toys\.nn"):
        comm.exchange(child, [2])


def test_it_passes_the_kit(file: Path) -> None:
    command = [sys.executable, "-m", "a2a.cli", "conformance", "--frameworks", str(file)]
    done = subprocess.run(
        [*command, "--ranks", "2", "--sample", "300"], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0 and "300 pass" in done.stdout, done.stdout + done.stderr


def test_a_file_takes_nothing_from_the_package(tmp_path: Path) -> None:
    file = tmp_path / "torch.py"
    file.write_text("from a2a.frameworks.numpy import NumPy\nclass FRAMEWORK(NumPy): pass\n")
    mine = frameworks.load(str(file))
    assert mine.name == "torch" and frameworks.named("torch") is frameworks.load("torch") is not mine
    assert frameworks.of(np.ndarray) is frameworks.load("numpy") is frameworks.named("numpy") is not mine


def test_what_nobody_knows(comm: a2a.Communicator) -> None:
    assert frameworks.of(types.SimpleNamespace) is None and frameworks.named("nobody") is None
    for like in ("nobody", "os", types.SimpleNamespace()):
        with pytest.raises(
            a2a.InvalidArgumentError, match=r'pass "numpy", "jax", "paddle", "torch", "a2a", or a tensor'
        ):
            comm.empty(2, like=like)
    with pytest.raises(ModuleNotFoundError):
        frameworks.load("nobody")


def test_a_look_imports_nothing() -> None:
    code = (
        "import sys; from a2a import frameworks\n"
        "for name in frameworks.known(): frameworks.load(name).version()\n"
        "print({'torch', 'paddle', 'jax', 'ml_dtypes'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("name", frameworks.installed("host"))
def test_each_finds_its_own_tensors(name: str) -> None:
    framework = frameworks.load(name)
    memory = framework.make(np.arange(64, dtype=np.uint8))
    tensor = framework.tensor(memory, 8, "float32", (2, 3))
    assert frameworks.of(type(tensor)) is frameworks.named(name) is framework
    assert framework.read(tensor).tolist() == list(range(8, 32)) and framework.read(memory)[1] == 1
    assert framework.version() and "float32" in framework.dtypes() <= frameworks.dtype_names.keys()

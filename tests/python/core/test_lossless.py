"""What a framework's arrays carry beside their bytes is not lost without a word, and what a framework makes is what was
asked for."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def comm() -> Iterator[a2a.Communicator]:
    with a2a.init(rank=0, size=1) as made:
        yield made


class Metres(np.ndarray):  # type: ignore[type-arg]
    """An array with a unit."""


MASKED = np.ma.masked_array(np.arange(4.0), [0, 1, 0, 1])
CALLS: dict[str, Callable[[a2a.Communicator, Any], object]] = {
    "send": lambda c, x: c.alltoall(x, np.zeros(4)),
    "recv": lambda c, x: c.alltoall(np.zeros(4), x),
    "list": lambda c, x: c.alltoall_list([x], [np.zeros(4)]),
    "exchange": lambda c, x: c.exchange(x, [4]),
    "scatter": lambda c, x: c.global_scatter(x, [4], [4]),
    "gather": lambda c, x: c.allgather(x, np.zeros(4)),
    "plan": lambda c, x: c.plan_alltoall(x, np.zeros(4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays_that_carry_more_than_bytes(name: str, comm: a2a.Communicator) -> None:
    for array, advice in ((MASKED, r"filled\(\) or .*data"), (np.zeros(4).view(Metres), r"numpy.asarray\(")):
        with pytest.raises(a2a.InvalidArgumentError, match=f"may carry more.*{advice}"):
            CALLS[name](comm, array)
    assert comm.exchange(MASKED.filled(9), [4])[0].tolist() == [0, 9, 2, 9]
    with pytest.raises(a2a.InvalidArgumentError, match="may carry more"):
        comm.exchange(np.zeros(4), np.ma.masked_array([4], [1]))
    with pytest.warns(PendingDeprecationWarning):
        assert comm.exchange(np.matrix([[1, 2]]), [1])[0].tolist() == [[1, 2]]


JAX_32_BITS = """
import numpy as np, jax, jax.numpy as jnp, a2a
from a2a import _core
comm = a2a.init(0, 1)
with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
    long = jnp.arange(4) + 2**40
    assert long.dtype == np.int64
    assert comm.exchange(long, [4])[0].tolist() == long.tolist()
    assert comm.empty(4, "int64", like="jax").dtype == np.int64
views = comm.empty(4, "int64")
views[:] = 2**40
calls = [lambda: comm.exchange(long, [4]), lambda: comm.global_scatter(long, [4], [4]),
         lambda: comm.global_scatter(long, [4], [4], async_op=True).result, lambda: comm.empty(4, "int64", like="jax"),
         lambda: comm.empty(4, "float64", like=jnp.zeros(1)), lambda: comm.empty(4, "complex128", like="jax"),
         lambda: comm.allgather_views(views, like="jax")]
for call in calls:
    try:
        result = call()
    except a2a.InvalidArgumentError as error:
        assert "jax_enable_x64" in str(error), error
    else:
        raise AssertionError(f"not refused: {result}")
short = jnp.arange(4, dtype=jnp.float32)
assert comm.exchange(short, [4])[0].tolist() == short.tolist()
assert comm.empty(4, "bfloat16", like="jax").dtype == jnp.bfloat16
out = np.zeros(4, np.int64)
comm.alltoall(long, out)
assert out.tolist() == views.tolist()[:0] + [2**40 + i for i in range(4)]
print("right")
"""


def test_jax_in_its_32_bit_mode() -> None:
    pytest.importorskip("jax")
    done = subprocess.run([sys.executable, "-c", JAX_32_BITS], capture_output=True, text=True, timeout=90)
    assert done.stdout == "right\n", done.stderr[-2000:]


def test_a_framework_that_makes_something_else(comm: a2a.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    take_over = torch.from_dlpack
    for change, message in (
        (lambda t: t.to(torch.int32), "made a tensor of int32"),
        (lambda t: t.clone(), "copied"),
        (lambda t: t[:2], "instead of 4 rows"),
    ):
        monkeypatch.setattr(torch, "from_dlpack", lambda array, change=change: change(take_over(array)))
        with pytest.raises(a2a.UnsupportedError, match=message):
            comm.empty(4, "int64", like="torch")


class Exporter:
    """What a producer of tensors raises, with or without an interest in options."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: Any = None, copy: Any = None) -> Any:
        if max_version is None:
            warnings.warn("unversioned", DeprecationWarning, stacklevel=2)
        raise self.error


@pytest.mark.parametrize("text", ["a true mistake", "a true mistake of an argument"])
def test_the_first_error_of_an_export_is_shown(text: str) -> None:
    for warnings_are in ("error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(warnings_are)  # type: ignore[arg-type]
            with pytest.raises(a2a.InvalidArgumentError, match=text) as caught:
                _core.describe_tensor(Exporter(TypeError(text)))
        assert isinstance(caught.value.__cause__, TypeError)

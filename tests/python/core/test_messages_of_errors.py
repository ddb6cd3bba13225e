"""What a new user reads when something is wrong: what to pass instead, and what is public."""

from __future__ import annotations

import re
import time
import types
from typing import Any

import numpy as np
import pytest
from commands import needs

import a2a
import a2a.moe
from a2a import _spawn

# What people pass at first, in place of a tensor.
NO_TENSORS: dict[str, Any] = {
    "list": [1.0, 2.0],
    "tuple": (1, 2),
    "number": 3.0,
    "range": range(3),
    "text": "text",
    "None": None,
    "dict": {1: 2},
}


@pytest.mark.parametrize("name", NO_TENSORS)
def test_an_object_that_is_no_tensor_is_named_by_its_type(name: str) -> None:
    given = NO_TENSORS[name]
    with a2a.init(0, 1) as comm:
        for which, arguments in (("send", (given, np.zeros(2))), ("recv", (np.zeros(2), given))):
            with pytest.raises(a2a.InvalidArgumentError) as info:
                comm.alltoall(*arguments)
            assert re.match(rf"rank 0: {which} is not a tensor: {type(given).__name__} has no DLPack", str(info.value))


@pytest.mark.parametrize("given", [[1.0], np.zeros(2), 3])
def test_torchs_calls_say_how_to_make_a_tensor(given: Any) -> None:
    needs("torch")
    from a2a.torch import _errors

    text = str(_errors.not_a_tensor("tensor", given))
    kind = "numpy.ndarray" if isinstance(given, np.ndarray) else type(given).__name__
    assert text == f"tensor is {kind}, not torch.Tensor; pass torch.as_tensor(x)"
    assert str(_errors.not_a_tensor("output", None)) == "output is NoneType, not torch.Tensor"


def test_paddles_calls_say_how_to_make_a_tensor() -> None:
    needs("paddle")
    from a2a.paddle import _arguments

    with pytest.raises(TypeError, match=r"tensor is list, not paddle.Tensor; pass paddle.to_tensor\(x\)"):
        _arguments.plain([1.0], "tensor")


def test_dir_lists_what_is_public() -> None:
    listed = dir(a2a)
    assert set(a2a.__all__) <= set(listed) and sorted(listed) == listed
    others = [name for name in listed if name not in a2a.__all__]
    assert [name for name in others if name.startswith("_")] == []
    assert [name for name in others if not isinstance(getattr(a2a, name), types.ModuleType)] == []


# ---- what the core says ----------------------------------------------------------------------------------------------


class Arraylike:
    """Has no buffer and no DLPack, but NumPy can read it, as pandas' and Pillow's objects."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.zeros(2)


@pytest.mark.parametrize("given", [[1.0, 2.0], (1, 2), 3.0, range(3), Arraylike()])
def test_what_numpy_can_read_is_to_be_passed_as_an_array(given: Any) -> None:
    with a2a.init(0, 1) as comm:
        with pytest.raises(a2a.InvalidArgumentError, match=r"; pass numpy\.asarray\(x\)$"):
            comm.alltoall(given, np.zeros(2))
        with pytest.raises(a2a.InvalidArgumentError, match=r"; pass an array to write into, such as numpy\.empty"):
            comm.alltoall(np.zeros(2), given)
        with pytest.raises(a2a.InvalidArgumentError, match=r"; pass an array or a tensor$"):
            comm.alltoall("text", np.zeros(2))


def test_reprs() -> None:
    with a2a.init(0, 1) as comm:
        plan = comm.plan_alltoall(np.zeros((2, 3), "f4"), np.zeros((2, 3), "f4"))
        assert repr(plan) == f"<Plan {plan.number}: alltoall of float32, sends 24 bytes, receives 24, rank 0 of 1>"
        work = comm.alltoall(np.zeros(2), np.zeros(2), async_op=True)
        work.wait()
        assert repr(work) == "<Work of rank 0 of 1, done>"


def other_widths(comm: a2a.Communicator) -> None:
    rows = np.zeros((4, 16 if comm.rank == 0 else 8), np.float32)
    comm.alltoall(rows, rows.copy())


@pytest.mark.parametrize("threads", [False, True])
def test_rows_of_other_widths_are_told_as_such(threads: bool) -> None:
    with pytest.raises(a2a.MismatchError) as info:
        a2a.spawn(other_widths, 2, threads=threads, timeout=30)
    assert "alltoall #1: rank 0 has rows of 16 columns, rank 1 has rows of 8 columns (float32)" in str(info.value)


def come_late(comm: a2a.Communicator) -> str:
    if comm.rank == 1:
        time.sleep(2)
        return ""
    try:
        comm.barrier(timeout=0.3)
    except a2a.TimeoutError as error:
        return str(error)
    return "came"


def test_a_timeout_says_so_and_what_to_do() -> None:
    outcomes = _spawn.run(come_late, 2, keep_going=True, timeout=30)
    text = str(outcomes[0].value or outcomes[0].error)
    assert text.startswith("barrier #1: timeout on rank 0, which still waits for rank 1 (")
    assert text.endswith("; with A2A_DUMP=folder ranks record what they do, and `a2a explain folder` compares it")


def test_what_the_core_refuses_names_the_rank() -> None:
    with a2a.init(rank=0, size=1) as comm:
        experts = a2a.moe.ExpertParallel(comm, 1)
        routed = experts.dispatch(np.ones((2, 2), np.int32), np.array([[0], [0]]))
        with pytest.raises(a2a.InvalidArgumentError, match=r"^rank 0: a weighted sum is not defined for int32"):
            experts.combine(routed.x, routed)

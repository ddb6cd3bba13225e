"""One exchange whose ranks live in different frameworks: a2a run -n 4 examples/mixed_frameworks.py

Ranks use NumPy, Torch, Paddle and JAX in turn, as far as they are installed. What a rank receives is a tensor of its
own framework, whatever the senders use.
"""

import importlib
import importlib.util
from typing import Any

import numpy as np

import a2a


def tensor(name: str, values: np.ndarray[Any, Any]) -> Any:
    """The values in the framework of that name."""
    framework = importlib.import_module(name)
    if name == "numpy":
        return values
    if name == "torch":
        return framework.from_numpy(values)
    return framework.to_tensor(values) if name == "paddle" else framework.numpy.asarray(values)


def main() -> None:
    installed = [name for name in ("numpy", "torch", "paddle", "jax") if importlib.util.find_spec(name)]
    with a2a.init() as comm:
        name = installed[comm.rank % len(installed)]
        if name == "jax":
            importlib.import_module("jax.numpy")

        # Rank r sends r + 1 rows to every rank.
        rows = (comm.rank + 1) * comm.size
        send = tensor(name, np.full((rows, 8), comm.rank, dtype=np.float32))
        recv, recv_counts = comm.exchange(send, [comm.rank + 1] * comm.size)

        assert type(recv) is type(send)
        assert recv_counts.tolist() == [peer + 1 for peer in range(comm.size)]
        assert (np.asarray(recv) == np.repeat(np.arange(comm.size), recv_counts)[:, None]).all()
        print(f"rank {comm.rank}: received {len(recv)} rows as {type(recv).__module__}.{type(recv).__qualname__}")


if __name__ == "__main__":
    main()

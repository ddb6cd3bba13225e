"""The ranks of ``a2a run`` for ``jax.distributed.initialize()``, which then needs no arguments."""

from __future__ import annotations

import os
from typing import Any

from jax._src import clusters

__all__: list[str] = []


class A2aCluster(clusters.ClusterEnv):  # type: ignore[misc]
    """JAX asks each of these classes whether the process is in its environment. The coordinator is at the address that
    the launcher has reserved for stores of rank 0."""

    name = "a2a"

    @classmethod
    def is_env_present(cls) -> bool:
        wanted = ("A2A_RANK", "A2A_SIZE", "MASTER_ADDR", "MASTER_PORT")
        return all(name in os.environ for name in wanted) and os.environ.get("RANK") == os.environ["A2A_RANK"]

    @classmethod
    def get_coordinator_address(cls, timeout_secs: Any = None, override_coordinator_port: Any = None) -> str:
        return f"{os.environ['MASTER_ADDR']}:{override_coordinator_port or os.environ['MASTER_PORT']}"

    @classmethod
    def get_process_count(cls) -> int:
        return int(os.environ["A2A_SIZE"])

    @classmethod
    def get_process_id(cls) -> int:
        return int(os.environ["A2A_RANK"])

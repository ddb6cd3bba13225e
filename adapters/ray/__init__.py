"""Ray on a2a: ``import a2a.ray`` registers the backend "a2a" of ``ray.util.collective``. Every process of the group
imports it: the driver, and the module that defines the actors::

    import a2a.ray
    from ray.util import collective

    collective.init_collective_group(world_size, rank, backend="a2a", group_name="grads")   # in each actor
    collective.allreduce(tensor, "grads")

Tensors are CPU tensors of Torch and arrays of NumPy. ``TorchConfig(backend="a2a")`` of Ray Train needs no import."""

from __future__ import annotations

from ray.util.collective.backend_registry import _global_registry, register_collective_backend

from ._group import A2AGroup

__all__ = ["A2AGroup"]

if not _global_registry.is_registered("A2A"):
    register_collective_backend("A2A", A2AGroup)

"""Process groups: how their ranks meet, which communicator serves one, and the group that Torch 2.9 to 2.13 get for
the backend "a2a".

``communicators`` finds the communicator of a ``group`` argument. ``world`` starts and ends the default group.
``operations`` are the methods that a group and the backend of Torch 2.14 have in common. The groups are those of
``group``, of ``delegating`` where torch's NCCL serves CUDA tensors, and of ``reconfigurable``, in every version,
where the ranks change."""

"""Process groups: how their ranks meet, which communicator serves one, and the torch.distributed backend "a2a".

``communicators`` finds the communicator of a ``group`` argument. ``world`` starts and ends the default group.
``backend`` registers the backend. Its groups are those of ``group``, or of ``delegating`` where torch's NCCL serves
CUDA tensors."""

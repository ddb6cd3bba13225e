"""The backend "a2a" of torch.distributed. ``registration`` gives each version of torch what it can use.

That of Torch 2.14 on is a true backend, one of those of a process group of torch: ``backend`` is its class. ``hooks``
are what programs have called at the end of operations and before an abort. ``mends`` has the places at which torch 2.14
forgets that a backend may be written in Python. The operations are those of ``a2a.torch._process_group.operations``.
Torch 2.9 to 2.13 get the process group of that folder."""

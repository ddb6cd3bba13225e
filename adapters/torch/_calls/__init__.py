"""The calls of ``a2a.torch`` in place of torch.distributed's, with the same signatures and return values.

Each finds the communicator of its ``group`` argument and runs an operation of ``_operations`` on it. Torch itself
serves the call where a2a does not."""

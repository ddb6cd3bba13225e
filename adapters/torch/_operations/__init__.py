"""The operations of c10d on an a2a communicator, and what they need: tensors prepared for the core, reduce ops, works.

Both the functions of ``a2a.torch`` (``_calls``) and the backend "a2a" (``_process_group``) call ``c10d_operations``.
Nothing here knows process groups."""

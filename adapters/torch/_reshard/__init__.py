"""Tensors from one sharding to another, on comm.reshard and its plans.

``shardings`` says in the words of a2a.sharding how torch divides a tensor. ``dtensors`` has the calls: of one DTensor,
with gradients, and of a state dict. DTensor is slow to import, so none of these imports it before a call."""

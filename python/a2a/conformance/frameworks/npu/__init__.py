"""Tensors on Ascend devices."""

"""Tensors on NVIDIA GPUs."""

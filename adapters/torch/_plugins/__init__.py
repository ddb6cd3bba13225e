"""What other modules than those of ``a2a.torch`` get from this package.

``dtensor`` gives torch's DTensor an all-to-all of host tensors. ``quantized`` gives a2a.quantized its arithmetic on
device tensors."""

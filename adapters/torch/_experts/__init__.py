"""What ``a2a.torch.moe`` and ``a2a.torch.deep_ep`` share: tokens move to the ranks of their experts and back.

``placement`` says where experts are, and finds the *way* of tokens: an object that moves rows, of host tensors
(``host``) or of device tensors (``device``). ``autograd`` has dispatch and combine with gradients, ``custom_ops`` the
same for torch.compile."""

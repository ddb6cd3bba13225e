"""The calls as custom operators, which torch.compile, autograd, torch.func and vmap know.

``linear`` makes an operator with all its derivatives. ``custom_ops`` has the operators. ``a2a.torch.nn`` calls them."""

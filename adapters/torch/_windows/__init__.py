"""Windows: tensors into which other ranks put data. ``window`` has the calls; ``shared_tensor`` maps a tensor of
another process of this host."""

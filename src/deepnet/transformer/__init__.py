"""The deep-stack model: attention, feed-forward, residual sites, layers, stacks and the three architectures."""

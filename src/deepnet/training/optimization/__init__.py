"""What turns gradients into weights: optimisers, learning rates, averages."""

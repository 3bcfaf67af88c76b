"""What the papers predict of a deep Transformer, computed for any coefficients and for a live model's own weights."""

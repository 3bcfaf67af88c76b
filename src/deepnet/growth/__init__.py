"""Depth as a choice that is made late: what it pays, a trained model made deeper, and one made shallower."""

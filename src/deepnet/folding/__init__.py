"""A trained model rewritten as a plain one that computes the same: the scheme goes into the weights."""

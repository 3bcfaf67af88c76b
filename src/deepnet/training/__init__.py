"""One training loop, and the parts it is made of."""

"""One file per model measured; each has `build(size)`, a module that maps a batch to logits."""

"""One file per model measured.

Each has `build(size)`, a module that maps (source, source_keep, target_in) to logits, and `PAD`, the
id it uses for padding.
"""

"""Checkpoints: what is in one, what may change on resume, which one a finished run hands on."""

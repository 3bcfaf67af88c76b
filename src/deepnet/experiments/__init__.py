"""The papers' figures, each in a file: what is claimed, the runs that ask it, and the verdict on their numbers."""

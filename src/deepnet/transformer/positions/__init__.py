"""Where a token stands: a file per kind, whose name is the kind's in a recipe."""

"""Where the records of a run go besides its folder: the terminal, TensorBoard."""

"""The figures of the papers, a file each."""

"""Residual schemes: one file each, the file name being the public name; `base` holds their contract."""

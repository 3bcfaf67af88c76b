"""Stands in for timm.models: holds layers.drop_path alone."""

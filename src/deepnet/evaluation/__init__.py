"""Scores of translations and the significance of their differences."""

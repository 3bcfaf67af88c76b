"""Measurements of any model that change none of it."""

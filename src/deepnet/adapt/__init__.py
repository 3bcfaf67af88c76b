"""A residual scheme put on somebody else's model, with a report of every change, and taken off again."""

"""Building blocks for layers that somebody else writes: the residual sites of any scheme, and draws by role."""

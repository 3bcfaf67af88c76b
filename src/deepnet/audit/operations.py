"""Which operations of torch do what to a stream, as the audit tells them apart."""

VIEWS = frozenset((
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "permute", "t",
    "unsqueeze", "squeeze", "expand", "select", "slice", "split", "split_with_sizes", "unbind",
    "chunk", "narrow", "alias", "detach", "clone", "contiguous", "_to_copy", "copy",
    "lift_fresh_copy", "unflatten", "flatten", "overwrite", "unfold", "repeat_interleave",
    "index", "index_select", "cat", "stack", "pad", "constant_pad_nd",
))  # fmt: skip
"""Numbers move and stay what they are."""

FUSED_NORMS = frozenset(("native_layer_norm", "_fused_rms_norm", "rms_norm", "native_group_norm"))
"""Norms that are one operation; others are found by what they compute."""

SUMS = frozenset(("add", "sub", "rsub", "lerp", "addcmul"))
"""What may add a branch to a skip."""

MASKS = frozenset(("masked_fill", "where", "native_dropout"))

SCALES = frozenset(("mul", "div", "neg"))

MATRIX_PRODUCTS = frozenset((
    "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "addmv", "mv",
))  # fmt: skip

SOFTMAXES = frozenset(("_softmax", "_safe_softmax", "softmax"))

TRANSPARENT = VIEWS | FUSED_NORMS | SUMS | MASKS | SCALES
"""What leaves a stream a stream: at most moved, scaled, shifted, masked, normed or added to another."""

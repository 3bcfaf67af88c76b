"""What the page calls things: probes, sites and roles, kinds of incidents."""

from dataclasses import dataclass

STACKS = ("encoder", "decoder")
_SITES = {
    "self": "self-attention",
    "cross": "cross-attention",
    "merged": "merged attention",
    "ffn": "feed-forward",
}
OUTSIDE = ("embedding", "vocabulary", "output", "final")
"""Places that belong to no layer."""

KINDS = {
    "nan": "not a number",
    "spike": "spike",
    "explosion": "explosion",
    "plateau": "plateau",
}
ACTIONS = {
    "warn": "warned",
    "skip": "batch skipped",
    "roll_back": "rolled back",
    "lower_lr": "learning rate lowered",
    "lengthen_warmup": "warm-up lengthened",
    "stop": "stopped",
}


@dataclass(frozen=True, kw_only=True)
class ProbeWords:
    """How the page speaks of one probe."""

    title: str
    about: str
    """What is measured, in which unit, and what to look for."""


PROBES = {
    "gradient_norm": ProbeWords(
        title="Gradient norm",
        about="L2 norm of the gradient of a layer's weights, before clipping. A band that darkens from one end of the "
        "stack is a gradient that vanishes on its way.",
    ),
    "norm_input": ProbeWords(
        title="Input of the norms",
        about="Root mean square of what each norm reads. The larger it grows, the smaller the gradient that passes.",
    ),
    "branch_ratio": ProbeWords(
        title="Branch to skip",
        about="Size of what a branch adds, relative to the stream it is added to.",
    ),
    "similarity": ProbeWords(
        title="Similarity of neighbours",
        about="Cosine between the outputs of a layer and of the one below. Near 1 a layer changes nothing.",
    ),
    "sparsity": ProbeWords(
        title="Active units",
        about="Share of the feed-forward activations that are not zero.",
    ),
    "attention_entropy": ProbeWords(
        title="Attention entropy",
        about="In nats, mean over heads and positions. At 0 each position looks at a single one.",
    ),
    "token_mean_energy": ProbeWords(
        title="Token mean to variation",
        about="Length of the mean over a sequence's tokens, relative to what varies around it, in a layer's output and "
        "in what a branch adds. The larger, the less tokens differ; independent ones have 1 / sqrt(T - 1). 'varying': "
        "what varies in the branch, relative to what varies in the stream.",
    ),
    "update_ratio": ProbeWords(
        title="Update to weight",
        about="L2 norm of one optimiser step over that of the weights. Adam with a fitting rate is often near 0.001.",
    ),
    "model_update": ProbeWords(
        title="Model update by layer",
        about="How far a layer's output on the probe batch has moved since the start, relative to where it was.",
    ),
    "step_update": ProbeWords(
        title="Update of one step by layer",
        about="How far a layer's output on the probe batch moves in one optimiser step, relative to itself.",
    ),
}
"""In the order of the page."""


def probe_words(key: str) -> ProbeWords:
    """Return the words for a probe; one that this page does not know is called by its key."""
    plain = ProbeWords(title=key.replace("_", " ").capitalize(), about=f"'{key}' of probes.jsonl.")
    return PROBES.get(key, plain)


def stack_of(place: str) -> str | None:
    """Return the stack whose layers a key of probes.jsonl goes through, None where it belongs to no layer."""
    stack, _, rest = place.partition(".")
    return stack if stack in STACKS and rest.split(".")[0] not in OUTSIDE else None


def site_label(place: str) -> str:
    """Return "self-attention, q" for "encoder.self.q": what is meant within its stack."""
    _, *parts = place.split(".")
    if not parts:
        return "whole layers"
    site, *roles = parts
    return ", ".join([_SITES.get(site, site), *roles])


@dataclass(frozen=True, kw_only=True)
class ChartWords:
    """How the page speaks of one line chart."""

    title: str
    about: str
    unit: str
    """Title of the vertical axis."""
    number: str = ".4~g"
    """How values are read out, in d3's format language."""
    may_be_log: bool = True
    """Whether the axis starts logarithmic where the values go over many powers of ten."""
    noisy: bool = True
    """Whether smoothing means anything."""


CHARTS = {
    "loss": ChartWords(
        title="Loss",
        about="Thin: training, with label smoothing and dropout. With markers: validation, without. The two are not on "
        "one scale.",
        unit="nats per target token",
        number=".4f",
    ),
    "bleu": ChartWords(
        title="BLEU",
        about="With markers: on the first sentences of the valid part, while training. Star: test part, at the end.",
        unit="BLEU, 0 to 100",
        number=".2f",
    ),
    "lr": ChartWords(
        title="Learning rate",
        about="The rate that took effect in each recorded update.",
        unit="learning rate",
        number=".3~e",
        may_be_log=False,
        noisy=False,
    ),
    "gradient_norm": ChartWords(
        title="Gradient norm of the model",
        about="L2 norm over all weights, before clipping; mean since the last record.",
        unit="gradient norm",
    ),
    "tokens_per_second": ChartWords(
        title="Speed",
        about="Updates alone: without validation and saving.",
        unit="target tokens per second",
        number=",.0f",
    ),
    "skipped_updates": ChartWords(
        title="Updates skipped",
        about="Since the last record, because a gradient was not finite.",
        unit="updates",
        number=",d",
    ),
    "model_update": ChartWords(
        title="Since the start",
        about="How far the output on a fixed probe batch has moved. Thin: logits. Thick: last layer. Dotted: what "
        "theory predicts of the last layer, where it applies.",
        unit="relative to the first output",
    ),
    "step_update": ChartWords(
        title="Of one optimiser step",
        about="How far the same outputs move in a single update. Thin: the logits. Thick: the last layer.",
        unit="relative to the output before",
    ),
    "incident-loss": ChartWords(
        title="Loss",
        about="Training loss of each update.",
        unit="nats per target token",
        number=".4f",
    ),
    "incident-gradient_norm": ChartWords(
        title="Gradient norm of the model",
        about="L2 norm over all weights in each update, before clipping.",
        unit="gradient norm",
    ),
    "incident-lr": ChartWords(
        title="Learning rate",
        about="The rate of each update.",
        unit="learning rate",
        number=".3~e",
        may_be_log=False,
        noisy=False,
    ),
    "logit_scale": ChartWords(
        title="Scale of the logits",
        about="Standard deviation of the logits over the vocabulary, on the probe batch.",
        unit="logit scale",
    ),
}

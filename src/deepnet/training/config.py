"""The recipe sections [training], [optimizer] and [schedule]."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.left_open import LeftOpen

OptimizerName = Literal["adam", "adamw", "radam", "sgd", "lamb", "adafactor", "muon"]
PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]
CompileName = Literal["off", "blocks"]
OptimizerFamily = Literal["sgd", "adam", "lamb"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

_USES: dict[OptimizerName, tuple[str, ...]] = {
    "adam": ("betas", "eps"),
    "adamw": ("betas", "eps"),
    "radam": ("betas", "eps"),
    "lamb": ("betas", "eps"),
    "adafactor": ("eps",),
    "sgd": ("momentum",),
    "muon": ("betas", "eps"),
}


class MuonConfig(Section):
    """Muon's part of optimizer.name = "muon": the matrices of branches (q, k, v, out, fc1, gate, fc2), each by itself.

    Embeddings, vocabulary, norms, biases, scales and what a scheme adds of its own are AdamW's, by the keys of
    [optimizer]. Both learning rates follow the curve of [schedule].
    """

    lr: Positive | None = None
    """Learning rate of the matrices at the end of the warm-up; unset: optimizer.lr. adjust_lr = "original" needs it."""
    weight_decay: NotNegative = 0.1
    """Decay of the matrices, per unit of learning rate; that of the rest is optimizer.weight_decay."""
    momentum: Fraction = 0.95
    """Decay per update of the running mean of the gradient."""
    nesterov: bool = True
    """Whether the present gradient counts once more beside the running mean."""
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    """Newton-Schulz steps that bring the singular values of an update near 1."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    """What the rate of a matrix [rows, columns] is multiplied by: 0.2 * sqrt(max(rows, columns)), with which a rate
    moves numbers as far as AdamW's usually does, or (original) sqrt(max(1, rows / columns)), for rates such as 0.02."""
    L_base: Annotated[int, Field(ge=1)] | None = None
    """Layers of the model on which the rates were tuned: in one of L layers, those of its deepest stack, every rate is
    multiplied by sqrt(L_base / L), Muon's weight decay by L_base / L besides; unset: neither. HyperP's code has 8."""

    @model_validator(mode="after")
    def _rate_of_its_own(self) -> Self:
        if self.adjust_lr == "original" and self.lr is None:
            raise ValueError(
                "adjust_lr = 'original' takes rates of another size than AdamW's; set lr beside it, such as 0.02, or "
                "leave adjust_lr out"
            )
        return self


class OptimizerConfig(Section):
    """What turns gradients into updates."""

    name: OptimizerName = "adam"
    """adam adds weight decay to the gradient, adamw takes it off the weights; lamb needs the extra
    deepnet-transformers[optimizers]; adafactor is torch's, whose learning rate is min(lr, 1/sqrt(step)) times the root
    mean square of the parameter, whatever the schedule says; muon is torch's Muon for the matrices of branches and
    AdamW for everything else."""
    lr: Positive = 5e-4
    """Learning rate at the end of the warm-up; with muon AdamW's, and the matrices' unless optimizer.muon.lr is set."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    """Decay per update of the running means of the gradient and of its square (Adam, AdamW, RAdam, LAMB)."""
    eps: Positive | None = None
    """Added to the denominator; unset: 1e-8 for Adam, AdamW, RAdam, 1e-6 for LAMB, machine epsilon for Adafactor."""
    weight_decay: NotNegative = 0.0
    """Decay of the weights, per unit of learning rate; norms, biases and scales have none."""
    momentum: Fraction = 0.0
    """Momentum of SGD; the others take theirs from betas, Muon from optimizer.muon."""
    muon: MuonConfig | None = None
    """The section optimizer.muon, for name = "muon" alone, which has its defaults where it is left out."""

    @model_validator(mode="before")
    @classmethod
    def _muon_has_its_section(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("name") == "muon":
            return {**given, "muon": given.get("muon") or {}}
        return given

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.muon and self.name != "muon":
            raise ValueError(f"muon has no effect with name = '{self.name}'; leave it out")
        used = _USES[self.name]
        given = {"betas": self.betas != (0.9, 0.98), "eps": self.eps is not None}
        for field, is_given in {**given, "momentum": self.momentum != 0}.items():
            if is_given and field not in used:
                raise ValueError(f"{field} has no effect with name = '{self.name}'; leave it out")
        return self


class ScheduleConfig(Section):
    """The learning rate at each update: a linear warm-up, then the named curve."""

    name: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """inverse_sqrt: lr * sqrt(warmup_steps / step); linear and cosine: from lr to min_lr at decay_steps,
    without them at the end of the run."""
    warmup_steps: Count = 4000
    """Updates of linear warm-up; 0 for none. A rate that falls towards max_epochs or max_minutes does so from half of
    them on, even if the warm-up is not over."""
    warmup_init_lr: NotNegative = 1e-7
    """Learning rate of the first update of the warm-up."""
    min_lr: NotNegative = 0.0
    """Learning rate the curve ends at (linear, cosine) or does not fall below (inverse_sqrt)."""
    decay_steps: Count = 0
    """Update at which linear and cosine reach min_lr, warm-up included; 0: at the end of the run, at the nearest of
    training.max_steps, max_epochs and max_minutes, which a resumed run then cannot change."""

    @model_validator(mode="after")
    def _decay_after_warmup(self) -> Self:
        if self.decay_steps and self.name not in ("linear", "cosine"):
            raise ValueError(f"decay_steps has no effect with name = '{self.name}'; leave it out")
        if 0 < self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps = {self.decay_steps} must be greater than warmup_steps = {self.warmup_steps}"
            )
        return self


class TrainingConfig(Section):
    """How long to train, how to check on it and what to keep."""

    seed: Count = 1
    """Seed of the initial weights, the order of the sentences and the dropout."""
    max_steps: Count = 0
    """Stop after so many updates; 0: no limit. One of the three limits is needed; the first that is reached ends it."""
    max_epochs: Count = 0
    """Stop after so many passes over the training set; 0: no limit."""
    max_minutes: NotNegative = 0.0
    """Stop after so many minutes of wall clock, all sessions of a resumed run together; 0: no limit."""
    clip_norm: Annotated[NotNegative, LeftOpen()] = 0.0
    """Largest L2 norm of the whole gradient; longer ones are scaled down to it; 0: no clipping. A recipe that says
    nothing gets 1 under Adam without weight decay and AdamW, unless it fine-tunes or steps in the backward pass
    (docs/guard.md)."""
    precision: PrecisionName = "auto"
    """Type of the matrix products; weights stay in float32. auto: bf16 where the device has it and the width pays; what
    was found is recorded when the run begins, and a resumed run goes on in it on any device."""
    engine: Literal["auto", "data_parallel", "sharded"] = "auto"
    """What runs the model on several processes. data_parallel: each holds all of it. sharded: each holds a part of
    every matrix, of its gradient and of the optimiser's state (torch's FSDP2), which needs probes.every = 0. auto:
    data_parallel. A run goes on under any of them."""
    offload: bool = False
    """Keep the parts of the sharded engine in main memory while no pass needs them."""
    recompute: bool = False
    """Compute the activations of a block again in the backward pass instead of keeping them: less memory, more time."""
    recompute_segment: Count = 1
    """Layers of a stack that are computed again together: with more, fewer states between them are kept, and the
    activations of more at a time. 0: about the square root of the depth, and of such a segment one layer at a time,
    which computes all of them once more."""
    step_in_backward: bool = False
    """Let each parameter take its step in the backward pass, as soon as its gradient is complete, and drop that: the
    same update in less memory. Refused with what needs all gradients first: clip_norm where it is asked for, several
    micro-batches per update, fp16, a guard that skips updates, probes, several processes, LAMB. The guard does not
    compute an update again, as its weights are gone."""
    compile: CompileName = "off"
    """blocks: torch.compile makes one graph for each kind of block, of any length, in the first updates; it needs a C++
    compiler on a CPU, where it was slower, and Triton and a C compiler on CUDA. A run goes on under either; dropout
    then draws other masks."""
    label_smoothing: Fraction = 0.1
    """Share of the target probability that is spread evenly over the vocabulary."""
    validate_every: Count = 0
    """Updates from one validation to the next; 0: only at the end."""
    save_every: Count = 1000
    """Updates from one checkpoint to the next; 0: only at the end and at the best validation."""
    keep_last: Annotated[int, Field(ge=1)] = 3
    """Number of latest checkpoints kept; the best one is kept besides."""
    keep_best: Literal["loss", "bleu"] = "loss"
    """Validation figure by which the best checkpoint is chosen."""
    patience: Count = 0
    """Validations without a better figure after which training stops early; 0: never."""
    ema_decay: Fraction = 0.0
    """Decay per update of an exponential moving average of the weights, which is then validated and kept; 0: off. At
    update t, from 0, it is (1 + t) / (10 + t) where that is less, so that the first weights are soon forgotten."""
    average_last: Count = 0
    """Number of latest checkpoints whose average becomes the final model; 0: the best checkpoint does. One that an
    interruption made is not among them."""
    log_every: Annotated[int, Field(ge=1)] = 10
    """Updates from one line of metrics.jsonl to the next."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not (self.max_steps or self.max_epochs or self.max_minutes):
            raise ValueError(
                "no limit is set; give max_steps, max_epochs or max_minutes a value above 0"
            )
        if self.average_last > self.keep_last:
            raise ValueError(
                f"average_last = {self.average_last} needs keep_last of at least as many, not {self.keep_last}"
            )
        if self.offload and self.engine != "sharded":
            raise ValueError(f"offload has no effect with engine = '{self.engine}'; leave it out")
        if self.recompute_segment != 1 and not self.recompute:
            raise ValueError(
                f"recompute_segment = {self.recompute_segment} has no effect with recompute = false; set that to true"
            )
        if self.patience and not self.validate_every:
            raise ValueError("patience needs validate_every above 0")
        return self


def optimizer_family(name: OptimizerName) -> OptimizerFamily:
    """Return the family by which schemes derive their coefficients: how an update's size follows the gradient's.

    SGD's is proportional to the gradient, Adam's independent of it, LAMB's and Adafactor's relative to the weights.
    Muon's is independent of it, too, so that it gets Adam's coefficients: ours, no source derives any for it.
    """
    if name == "sgd":
        return "sgd"
    return "lamb" if name in ("lamb", "adafactor") else "adam"

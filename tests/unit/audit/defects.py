"""Small Transformers written by hand with the mistakes of published DeepNorm code, and one without."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Combine = Callable[[Tensor, nn.Module, Callable[[Tensor], Tensor]], Tensor]
Scaled = Callable[[str, "Shape"], dict[str, float]]
D, FFN, HEADS, VOCABULARY = 64, 128, 4, 200
BRANCH_ROLES = ("v", "out", "fc1", "fc2")


@dataclass(frozen=True)
class Shape:
    """N encoder and M decoder layers."""

    n: int
    m: int

    @property
    def root(self) -> float:
        return (self.n**4 * self.m) ** (1 / 16)

    def alpha(self, stack: str) -> float:
        if not (self.n and self.m):
            return (2 * (self.n + self.m)) ** 0.25
        return 0.81 * self.root if stack == "encoder" else (3 * self.m) ** 0.25

    def beta(self, stack: str) -> float:
        if not (self.n and self.m):
            return (8 * (self.n + self.m)) ** -0.25
        return 0.87 / self.root if stack == "encoder" else (12 * self.m) ** -0.25


# The model ------------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Projections under names that say nothing, fused into one matrix or not."""

    def __init__(self, *, fused: bool, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.multiplier: float | None = None
        self.a = nn.ModuleList([nn.Linear(D, 3 * D)] if fused else [nn.Linear(D, D) for _ in "qkv"])
        self.b = nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        if len(self.a) == 1:
            q, k, v = self.a[0](x).chunk(3, dim=-1)
        else:
            q, k, v = self.a[0](x), self.a[1](memory), self.a[2](memory)
        q, k, v = (h.view(*h.shape[:2], HEADS, -1).transpose(1, 2) for h in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.multiplier)
        return self.b(y.transpose(1, 2).flatten(2))

    def parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        weights, biases = torch.cat([p.weight for p in self.a]), torch.cat([p.bias for p in self.a])
        if len(self.a) == 1:
            weights, biases = self.a[0].weight, self.a[0].bias
            found = zip("qkv", zip(weights.chunk(3), biases.chunk(3), strict=True), strict=True)
        else:
            found = zip("qkv", ((p.weight, p.bias) for p in self.a), strict=True)
        return {**dict(found), "out": (self.b.weight, self.b.bias)}


class FeedForward(nn.Module):
    def __init__(self, *, gated: bool = False) -> None:
        super().__init__()
        self.c = nn.Linear(D, FFN)
        self.g = nn.Linear(D, FFN) if gated else None
        self.d = nn.Linear(FFN, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.c(x)
        return self.d(F.relu(h) if self.g is None else F.silu(self.g(x)) * h)

    def parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        gate = {} if self.g is None else {"gate": (self.g.weight, self.g.bias)}
        return {
            "fc1": (self.c.weight, self.c.bias),
            **gate,
            "fc2": (self.d.weight, self.d.bias),
        }


class RmsNorm(nn.Module):
    """RMSNorm in separate operations, as in many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Site(nn.Module):
    def __init__(self, branch: nn.Module, combine: Combine, norm: nn.Module) -> None:
        super().__init__()
        self.branch, self.norm, self.combine = branch, norm, combine

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        return self.combine(x, self.norm, lambda h: self.branch(h, *memory))


class Model(nn.Module):
    """An encoder-decoder, or one stack where N or M is 0."""

    def __init__(
        self,
        shape: Shape,
        *,
        encoder: Combine,
        decoder: Combine,
        fused: bool = False,
        rms: bool = False,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        norm = RmsNorm if rms else lambda: nn.LayerNorm(D)
        self.stacks = nn.ModuleDict({"encoder": nn.ModuleList(), "decoder": nn.ModuleList()})
        for stack, layers, combine in (
            ("encoder", shape.n, encoder),
            ("decoder", shape.m, decoder),
        ):
            for _ in range(layers):
                branches: list[nn.Module] = [Attention(fused=fused, causal=stack == "decoder")]
                if stack == "decoder" and shape.n:
                    branches.append(Attention(fused=False))
                branches.append(FeedForward(gated=gated))
                self.stacks[stack].extend(Site(one, combine, norm()) for one in branches)
        self.final = nn.Identity()
        self.table = nn.Embedding(VOCABULARY, D)
        self.last = nn.Linear(D, VOCABULARY, bias=False)
        nn.init.normal_(self.table.weight, std=D**-0.5)
        nn.init.normal_(self.last.weight, std=D**-0.5)

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        streams = [self.table(ids) * D**0.5 for ids in (source, target) if ids is not None]
        x, *rest = streams
        for site in self.stacks["encoder"]:
            x = site(x)
        memory, x = ((x,), rest[0]) if rest else ((), x)
        for site in self.stacks["decoder"]:
            crosses = isinstance(site.branch, Attention) and not site.branch.causal and memory
            x = site(x, *memory) if crosses else site(x)
        return self.last(self.final(x))

    def parts(self, stack: str) -> list[dict[str, tuple[Tensor, Tensor]]]:
        return [site.branch.parts() for site in self.stacks[stack]]


def inputs(shape: Shape) -> tuple[Tensor, ...]:
    ids = torch.randint(0, VOCABULARY, (2, 6)), torch.randint(0, VOCABULARY, (2, 5))
    return ids if shape.n and shape.m else ids[:1]


# Residual sites -------------------------------------------------------------------------------------------------------


def post(alpha: float) -> Combine:
    return lambda x, norm, f: norm(alpha * x + f(x))


def post_scaled_branch(alpha: float) -> Combine:
    return lambda x, norm, f: norm(x + alpha * f(x))


def pre(alpha: float) -> Combine:
    return lambda x, norm, f: alpha * x + f(norm(x))


# Initialisation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def draw(
    model: Model,
    gain: Callable[[str], float],
    *,
    roles: tuple[str, ...] = BRANCH_ROLES,
    start: Callable[[Tensor], Tensor] = nn.init.xavier_normal_,
    bias_start: Callable[[Tensor], Tensor] = nn.init.zeros_,
) -> Model:
    """Draw every matrix and every bias, then multiply those of some roles."""
    for stack in ("encoder", "decoder"):
        for parts in model.parts(stack):
            for role, (weight, bias) in parts.items():
                start(weight)
                nn.init.zeros_(bias)
                if role in roles:
                    weight.mul_(gain(stack))
                    bias_start(bias).mul_(gain(stack))
    return model


def linear_default(weight: Tensor) -> Tensor:
    """Draw as torch.nn.Linear does, U(+-fan_in^(-1/2))."""
    return nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)


def default_bias(bias: Tensor) -> Tensor:
    """Draw as torch.nn.Linear does where fan_in is the width of the stream, wide enough a range elsewhere."""
    return nn.init.uniform_(bias, -(D**-0.5), D**-0.5)


# Models ---------------------------------------------------------------------------------------------------------------


def correct(shape: Shape, **options: bool) -> Model:
    model = Model(
        shape, encoder=post(shape.alpha("encoder")), decoder=post(shape.alpha("decoder")), **options
    )
    return draw(model, shape.beta)


def branch_scaled(shape: Shape) -> Model:
    """labml: LN(x + alpha * f(x))."""
    sites = [post_scaled_branch(shape.alpha(stack)) for stack in ("encoder", "decoder")]
    return draw(Model(shape, encoder=sites[0], decoder=sites[1]), shape.beta)


def default_start(shape: Shape) -> Model:
    """labml, torchscale: beta multiplies torch.nn.Linear's default, not Glorot."""
    return draw(correct(shape), shape.beta, start=linear_default)


def silently_pre_norm(shape: Shape) -> Model:
    """torchscale's decoder: alpha on the skip of a pre-norm site."""
    model = Model(shape, encoder=post(shape.alpha("encoder")), decoder=pre(shape.alpha("decoder")))
    return draw(model, shape.beta)


def inverted_beta(shape: Shape) -> Model:
    """torchscale's encoder: 1.15 instead of 0.87."""
    betas = {"encoder": 1.15 / shape.root, "decoder": shape.beta("decoder")}
    return draw(correct(shape), betas.__getitem__)


def biases_scaled(shape: Shape) -> Model:
    """torchscale: a filter on names scales the biases too, which were drawn like torch.nn.Linear's."""
    return draw(correct(shape), shape.beta, bias_start=default_bias)


def value_missed(shape: Shape) -> Model:
    """xformers: a filter on names does not find v in the fused projection."""
    return draw(correct(shape, fused=True), shape.beta, roles=("out", "fc1", "fc2"))


def queries_scaled(shape: Shape) -> Model:
    """xformers: every projection is scaled, q and k as well."""
    return draw(correct(shape), shape.beta, roles=("q", "k", *BRANCH_ROLES))


def alpha_of_stack_alone(shape: Shape) -> Model:
    """xformers: alpha as if the other stack were not there, beta as if it were."""
    model = Model(
        shape,
        encoder=post((2 * shape.n) ** 0.25),
        decoder=post((2 * shape.m) ** 0.25),
    )
    return draw(model, shape.beta)


def variance_scaled(shape: Shape) -> Model:
    """xformers: the gain multiplies the variance."""
    return draw(correct(shape), lambda stack: math.sqrt(shape.beta(stack)))


def vocabulary_scaled(shape: Shape) -> Model:
    """joeynmt: "output_layer" matches the vocabulary projection too."""
    model = correct(shape)
    with torch.no_grad():
        model.last.weight.mul_(shape.beta("decoder"))
    return model


def alpha_before_pre_norm(shape: Shape) -> Model:
    """joeynmt: alpha is applied in the pre-norm layout as well."""
    model = Model(shape, encoder=pre(shape.alpha("encoder")), decoder=pre(shape.alpha("decoder")))
    return draw(model, shape.beta)


def wrong_sign(shape: Shape) -> Model:
    """Mix-LN's and LayerNorm-Scaling's baseline: gain (8L)^(+1/4); SwiGLU and RMSNorm as there."""
    gain = (8 * (shape.n + shape.m)) ** 0.25
    return draw(correct(shape, rms=True, gated=True), lambda stack: gain)


def constant_alpha(shape: Shape) -> Model:
    """Mix-LN's and LayerNorm-Scaling's baseline: alpha of 32 layers at every depth."""
    model = Model(shape, encoder=post(2.828), decoder=post(2.828), rms=True, gated=True)
    return draw(model, shape.beta)


def scores_as_they_are(shape: Shape) -> Model:
    """Attention without 1/sqrt(d_head), as T5 has it, but with queries drawn as if it were there."""
    model = correct(shape)
    for module in model.modules():
        if isinstance(module, Attention):
            module.multiplier = 1.0
    return model


def plain_pre_norm(shape: Shape, *, final: bool = True) -> Model:
    """A Pre-LN of one stack."""
    model = Model(shape, encoder=pre(1.0), decoder=pre(1.0))
    model.final = nn.LayerNorm(D) if final else nn.Identity()
    return draw(model, lambda stack: 1.0)


def without_final_norm(shape: Shape) -> Model:
    """A Pre-LN whose output is not normed."""
    return plain_pre_norm(shape, final=False)


def open_rezero(shape: Shape) -> Model:
    """x + f(x), where a trained number before f should start at 0."""
    plain: Combine = lambda x, norm, f: x + f(x)  # noqa: E731
    return draw(Model(shape, encoder=plain, decoder=plain), lambda stack: 1.0)


# The matrix -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Defect:
    """A published mistake: who made it, a model that has it alone, and words that every finding must contain."""

    package: str
    mistake: str
    build: Callable[[Shape], Model]
    shape: Shape
    where: str
    says: str
    claims: str = "deepnorm"


DEFECTS = (
    Defect("labml", "alpha on the branch, not on the skip", branch_scaled, Shape(6, 0),
           "encoder, all 12 sites", "the branch is scaled instead of the skip"),
    Defect("labml, torchscale", "beta times the default start, not Glorot", default_start, Shape(6, 0),
           "encoder, v", "on torch.nn.Linear's default"),
    Defect("torchscale", "encoder's beta 1.15 (N^4 M)^(-1/16)", inverted_beta, Shape(6, 6),
           "encoder, v", "1.15 (N^4 M)^(-1/16), where 0.87"),
    Defect("torchscale", "decoder silently pre-norm", silently_pre_norm, Shape(6, 6),
           "decoder, all 18 sites", "the norms stand elsewhere"),
    Defect("torchscale", "biases scaled with their weights", biases_scaled, Shape(6, 6),
           "decoder, fc1", "scaled with its weight"),
    Defect("xformers", "v missed in the fused projection", value_missed, Shape(6, 6),
           "encoder, v", "1, not scaled"),
    Defect("xformers", "q and k scaled", queries_scaled, Shape(6, 6),
           "encoder, q", "the gain of v, out, fc1 and fc2"),
    Defect("xformers", "alpha as if the other stack were not there", alpha_of_stack_alone, Shape(6, 6),
           "decoder, all 18 sites", "(2L)^(1/4), of a stack alone"),
    Defect("xformers", "the gain multiplies the variance", variance_scaled, Shape(6, 6),
           "encoder, out", "the square root of the claimed gain"),
    Defect("joeynmt", "vocabulary projection scaled by the decoder's beta", vocabulary_scaled, Shape(6, 6),
           "last.weight", "scaled by the decoder's gain"),
    Defect("joeynmt", "alpha in the pre-norm layout", alpha_before_pre_norm, Shape(6, 6),
           "encoder, all 12 sites", "makes the stream grow"),
    Defect("Mix-LN, LayerNorm-Scaling", "sign of the exponent of the gain", wrong_sign, Shape(0, 6),
           "decoder, v", "(8L)^(+1/4), the sign"),
    Defect("Mix-LN, LayerNorm-Scaling", "alpha 2.828 at every depth", constant_alpha, Shape(0, 6),
           "decoder, all 12 sites", "of 32 layers"),
    Defect("planted", "attention scores without 1/sqrt(d_head)", scores_as_they_are, Shape(6, 6),
           "decoder, 6 of 6 self sites", "scores are multiplied"),
    Defect("planted", "norms not divided by the root of the layer", plain_pre_norm, Shape(0, 6),
           "decoder, 5 of 6 self sites", "is another multiple of the norm", "layernorm_scaling"),
    Defect("planted", "no norm at the end of Pre-LN", without_final_norm, Shape(0, 6),
           "decoder, 1 of 12 sites", "no norm after the last site", "pre_ln"),
    Defect("planted", "ReZero's numbers start at 1", open_rezero, Shape(6, 0),
           "encoder, all 12 sites", "the branch's scale is another", "rezero"),
)  # fmt: skip

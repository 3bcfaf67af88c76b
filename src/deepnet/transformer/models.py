"""The three architectures: encoder-decoder, encoder-only and decoder-only, any scheme, any depth."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor, nn

from deepnet.data.tokenizer import EOS
from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Architecture,
    Ends,
    OptimizerFamily,
    Policy,
    ResidualScheme,
    Role,
    RoleWeight,
    StackName,
    undefined,
)
from deepnet.transformer.cache import DecoderCache, LayerCache
from deepnet.transformer.config import TransformerConfig as TransformerConfig
from deepnet.transformer.embeddings import TokenEmbedding, VocabularyProjection
from deepnet.transformer.ends import SCHEMES_OWN, EndsConfig, choose_ends
from deepnet.transformer.initialize import initialize, planned_weight
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.layers import LayerShape, Sublayer
from deepnet.transformer.masks import broadcast_keep, causal_keep
from deepnet.transformer.materialise import reset_parts
from deepnet.transformer.plans import plan_stack
from deepnet.transformer.scales import end_scale, scaled
from deepnet.transformer.stacks import Stack
from deepnet.transformer.stepping import Stepped

STACKS: tuple[StackName, ...] = ("encoder", "decoder")


class Transformer(Stepped):
    """A Transformer built from a scheme's plan and initialised by role from torch's global generator.

    `ends` says how embeddings and the vocabulary projection are held, drawn and trained where not as the scheme has it.
    """

    def __init__(
        self,
        config: TransformerConfig,
        scheme: ResidualScheme,
        *,
        ends: EndsConfig = SCHEMES_OWN,
        optimizer_family: OptimizerFamily = "adam",
    ) -> None:
        super().__init__()
        if config.vocab_size < 3:
            raise ConfigError(
                f"vocab_size is {config.vocab_size}; expected at least 3 ids (eos, unk, padding)"
            )
        check_defined(scheme, config.architecture)
        self.config = config
        self.scheme = scheme
        self.ends = ends
        self.optimizer_family = optimizer_family
        self.count_updates()
        self.encoder = self._stack("encoder") if config.encoder_layers else None
        self.decoder = self._stack("decoder") if config.decoder_layers else None
        self._build_vocabulary()
        initialize(self)

    def reset_parameters(self) -> None:
        """Make every parameter and buffer as a new model has them, drawn from torch's global generator.

        What `to_empty` left without numbers equals, from the same seed, a model that was built in place. Raises
        SchemeError where a module of the scheme cannot make its own again.
        """
        reset_parts(self, drawn=[weight.parameter for weight in self.role_weights()])
        self.advance(0)
        initialize(self)
        self.is_empty = False

    def forward(
        self,
        source: Tensor,
        source_keep: Tensor | None = None,
        target_in: Tensor | None = None,
    ) -> Tensor:
        """Return logits [B, T, V - 1] over every id but padding.

        An encoder-decoder reads `source` [B, S] and predicts what follows each prefix of `target_in` [B, T]; the other
        two read `source` alone. `source_keep` [B, S] is True at tokens and False at padding; None means no padding.
        """
        if self.decoder is None:
            return self.project(self.encode(source, source_keep))
        if self.encoder is None:
            return self.project(self._decode(source, None, None, own_keep=source_keep))
        assert target_in is not None
        memory = self.encode(source, source_keep)
        return self.project(self._decode(target_in, memory, source_keep))

    def encode(self, source: Tensor, source_keep: Tensor | None = None) -> Tensor:
        """Return the encoder's output [B, S, D]."""
        assert self.encoder is not None
        inputs = Inputs(keep=broadcast_keep(source_keep))
        self.check_made()
        encoded: Tensor = self.encoder(source, self.source_embedding, inputs)
        return encoded

    def project(self, x: Tensor) -> Tensor:
        """Return logits [B, T, V - 1] from the last stack's output [B, T, D]."""
        logits: Tensor = self.vocabulary(x)
        return scaled(logits, self.logit_scale)

    def begin(self, memory: Tensor | None, source_keep: Tensor | None = None) -> DecoderCache:
        """Return the cache with which `step` decodes against `memory` [B, S, D]."""
        assert self.decoder is not None
        layers = [LayerCache() for _ in self.decoder.layers.unrolled()]
        return DecoderCache(layers, memory, broadcast_keep(source_keep))

    def step(
        self, tokens: Tensor, position: int, cache: DecoderCache, keep: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, W, V - 1] of what follows `tokens` [B, W], W hypotheses at one position.

        The W tokens join the cache, whose C entries are kept in the order of their coming; `keep` [B, W, C] is True
        where a hypothesis may attend (its own ancestors and itself), None where it may attend to all.
        """
        assert self.decoder is not None
        inputs = Inputs(
            keep=None if keep is None else keep[:, None],
            memory=cache.memory,
            memory_keep=cache.memory_keep,
        )
        self.check_made()
        ids = self._started(tokens)
        x = self.decoder(ids, self.target_embedding, inputs, start=position, cache=cache)
        return self.project(x)

    @property
    def start(self) -> int:
        """Return the id a decoder is given to start from: the padding id, one more than the ids it can choose."""
        return self.config.vocab_size - 1

    @property
    def max_positions(self) -> int | None:
        """Return the longest sentence, in tokens, or None where there is no limit."""
        return self.config.max_positions if self.config.positions == "learned" else None

    def stacks(self) -> list[Stack]:
        """Return the stacks there are, the encoder first."""
        return [stack for stack in (self.encoder, self.decoder) if stack is not None]

    def sites(self) -> list[Sublayer]:
        """Return every residual site with its branch, in order, the encoder's first."""
        return [site for stack in self.stacks() for site in stack.sites()]

    def role_weights(self) -> Iterator[RoleWeight]:
        """Yield every matrix once, with its role: the sites' first, then embeddings and the projection.

        Raises ConfigError where the scheme plans no draw for a role.
        """
        for stack in self.stacks():
            yield from stack.role_weights()
        seen: set[int] = set()
        for stack in self.stacks():
            for role, parameter in self._end_roles(stack):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield planned_weight(stack.name, 0, role, parameter, stack.plan.ends)

    def role_policies(self) -> Iterator[tuple[nn.Module, Mapping[Role, Policy]]]:
        """Yield the policies by role of what is in a module: of each stack, the logits' scale and every site."""
        for stack in self.stacks():
            yield stack, stack.plan.ends.policy
            yield from ((site, site.residual.plan.policy) for site in stack.sites())
        if self.logit_scale is not None:
            yield self.logit_scale, self.stacks()[-1].plan.ends.policy

    def _end_roles(self, stack: Stack) -> Iterator[tuple[Role, Tensor]]:
        """Yield the tables of a stack's ends, which another stack may share."""
        is_first = stack.name == "encoder"
        yield "embedding", (self.source_embedding if is_first else self.target_embedding).weight
        if stack is self.stacks()[-1]:
            yield "vocabulary", self.vocabulary.rows.weight
        if stack.entry.positions is not None:
            yield from stack.entry.positions.roles().items()

    def _decode(
        self,
        ids: Tensor,
        memory: Tensor | None,
        memory_keep: Tensor | None,
        *,
        own_keep: Tensor | None = None,
    ) -> Tensor:
        """Return the decoder's output [B, T, D]; padding at the end needs no mask of its own, the future is hidden."""
        assert self.decoder is not None
        inputs = Inputs(
            keep=None if own_keep is None else causal_keep(own_keep),
            causal=own_keep is None,
            memory=memory,
            memory_keep=broadcast_keep(memory_keep),
        )
        self.check_made()
        decoded: Tensor = self.decoder(self._started(ids), self.target_embedding, inputs)
        return decoded

    def _started(self, ids: Tensor) -> Tensor:
        """Return the decoder's ids [B, T] with eos in place of padding where a translation starts from that."""
        return ids.masked_fill(ids == self.start, EOS) if self.config.starts_from_eos else ids

    def _stack(self, name: StackName) -> Stack:
        config = self.config
        context, plan = plan_stack(
            self.scheme, config, name, optimizer_family=self.optimizer_family
        )
        shape = LayerShape(**config.model_dump(include=set(LayerShape._fields)))
        return Stack(
            replace(plan, ends=choose_ends(plan.ends, self.ends, context)),
            context,
            shape=shape,
            positions=config.positions,
            max_positions=config.max_positions,
        )

    def _build_vocabulary(self) -> None:
        """Create the embeddings and the projection, as many matrices as the tying leaves."""
        config = self.config
        plans = [stack.plan.ends for stack in self.stacks()]
        self.target_embedding = TokenEmbedding(
            config.vocab_size, config.d_model, unit_rows=plans[-1].unit_rows
        )
        self.source_embedding = self.target_embedding
        if config.architecture == "encoder_decoder" and config.tie_embeddings != "all":
            size = config.source_vocab_size or config.vocab_size
            self.source_embedding = TokenEmbedding(
                size, config.d_model, unit_rows=plans[0].unit_rows
            )
        elif len({_sharing(plan) for plan in plans}) > 1:
            raise ConfigError(
                "the scheme treats the two stacks' embeddings differently, but tie_embeddings is "
                "'all'; set it to 'decoder' or 'none'"
            )
        ends = plans[-1].init
        if config.tie_embeddings != "none" and ends.get("embedding") != ends.get("vocabulary"):
            raise ConfigError(
                "the scheme draws embeddings and the vocabulary projection differently, but "
                f"tie_embeddings is '{config.tie_embeddings}'; set it to 'none'"
            )
        self.vocabulary = VocabularyProjection(
            self.target_embedding, tied=config.tie_embeddings != "none"
        )
        self.logit_scale = end_scale(plans[-1].logit_scale, config.vocab_size - 1)


def check_defined(scheme: ResidualScheme, architecture: Architecture) -> None:
    """Raise ConfigError where a scheme is not defined for an architecture."""
    if architecture not in scheme.architectures:
        raise ConfigError(f"this scheme is {undefined(scheme, architecture)}")


def _sharing(plan: Ends) -> tuple[object, ...]:
    """Return what two stacks must agree on to share one embedding matrix."""
    return plan.unit_rows, plan.init.get("embedding"), plan.policy.get("embedding")

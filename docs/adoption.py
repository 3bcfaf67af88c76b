"""Write docs/adoption.md: which schemes can be put on which models, tried out on small ones; `--check` only compares.

Every cell is the outcome of doing it: applying the scheme, saving and restoring, undoing, folding; outputs are compared
in float64 and called equal below 1e-12.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from deepnet.adapt.apply import apply_scheme
from deepnet.adapt.folded import folded, save_folded
from deepnet.adapt.saving import from_pretrained
from deepnet.anatomy.locate import locate
from deepnet.errors import DeepNetError
from deepnet.schemes.catalogue import list_schemes

PAGE = Path(__file__).parent / "adoption.md"
HEAD = "<!-- Written by docs/adoption.py (python docs/adoption.py); every cell was tried out. -->"
VOCAB, WIDTH, FFN = 40, 16, 32
SHOWN = ("deepnorm", "branchnorm", "pre_ln")

Batch = dict[str, Tensor] | tuple[Tensor, ...]


def marian(**changes: Any) -> nn.Module:
    """Return a small Marian."""
    settings = {**_TWO_STACKS, "scale_embedding": True, "decoder_start_token_id": VOCAB - 1}
    config = transformers.MarianConfig(**{**settings, **changes})
    return transformers.MarianMTModel(config).double().eval()


def bart(**changes: Any) -> nn.Module:
    """Return a small BART."""
    config = transformers.BartConfig(**{**_TWO_STACKS, **changes})
    return transformers.BartForConditionalGeneration(config).double().eval()


def bert(**changes: Any) -> nn.Module:
    """Return a small BERT."""
    config = transformers.BertConfig(**{**_ONE_STACK, **_NO_DROPOUT, **changes})
    return transformers.BertForMaskedLM(config).double().eval()


def roberta() -> nn.Module:
    """Return a small RoBERTa."""
    config = transformers.RobertaConfig(**_ONE_STACK, **_NO_DROPOUT)
    return transformers.RobertaForMaskedLM(config).double().eval()


def opt(*, before: bool = True, **changes: Any) -> nn.Module:
    """Return a small OPT, pre-norm or post-norm."""
    sizes = {"ffn_dim": FFN, "dropout": 0.0, "word_embed_proj_dim": WIDTH}
    settings = {**_ONE_STACK, **sizes, "do_layer_norm_before": before, **changes}
    del settings["intermediate_size"]
    config = transformers.OPTConfig(**settings)
    return transformers.OPTForCausalLM(config).double().eval()


def gpt2() -> nn.Module:
    """Return a small GPT-2."""
    sizes = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32}
    sizes["n_inner"] = FFN
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).double().eval()


def t5(*, decoder_layers: int = 3) -> nn.Module:
    """Return a small T5."""
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 8, "d_ff": FFN, "num_heads": 2}
    layers = {"num_layers": 2, "num_decoder_layers": decoder_layers}
    config = transformers.T5Config(**sizes, **layers, dropout_rate=0.0)
    return transformers.T5ForConditionalGeneration(config).double().eval()


def llama() -> nn.Module:
    """Return a small Llama with fewer keys than queries."""
    settings = {**_ONE_STACK, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).double().eval()


def torch_transformer(**changes: Any) -> nn.Module:
    """Return a small torch.nn.Transformer."""
    settings: dict[str, Any] = {"dropout": 0.0, "batch_first": True, **changes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that pre-norm has no nested tensors
        return nn.Transformer(WIDTH, 2, 2, 3, FFN, **settings).double().eval()


def torch_encoder() -> nn.Module:
    """Return the encoder of a small torch.nn.Transformer, alone."""
    return torch_transformer().get_submodule("encoder")


def torch_decoder() -> nn.Module:
    """Return the decoder of a small torch.nn.Transformer, alone."""
    return torch_transformer().get_submodule("decoder")


_IDS = {"vocab_size": VOCAB, "pad_token_id": VOCAB - 1}
_TWO_STACKS: dict[str, Any] = {
    **_IDS,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": FFN,
    "decoder_ffn_dim": FFN,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "activation_function": "relu",
}
_ONE_STACK: dict[str, Any] = {
    **_IDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": FFN,
    "max_position_embeddings": 64,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "nn.Transformer": torch_transformer,
    "nn.Transformer, norm first": lambda: torch_transformer(norm_first=True),
    "nn.TransformerEncoder": torch_encoder,
    "nn.TransformerDecoder": torch_decoder,
    "Marian": marian,
    "BART": bart,
    "BERT": bert,
    "RoBERTa": roberta,
    "OPT": opt,
    "OPT, norm after": lambda: opt(before=False),
    "GPT-2": gpt2,
    "T5": t5,
    "Llama": llama,
}


def inputs(model: nn.Module) -> Batch:
    """Return a batch [2, 6] for any of the models."""
    ids = torch.randint(3, VOCAB - 1, (2, 6), generator=torch.Generator().manual_seed(5))
    if isinstance(model, nn.TransformerEncoder):
        return (_stream(ids),)
    if isinstance(model, (nn.Transformer, nn.TransformerDecoder)):
        return _stream(ids), _stream(ids.flip(1))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    described: Any = model
    return {**batch, "decoder_input_ids": ids} if described.config.is_encoder_decoder else batch


def outputs(model: nn.Module) -> Tensor:
    """Return what the model makes of its batch: logits, or states of torch's own models."""
    batch = inputs(model)
    with torch.no_grad():
        if isinstance(batch, tuple):
            states: Tensor = model(*batch)
            return states
        logits: Tensor = model(**batch).logits
        return logits


def adopt(model: nn.Module, scheme: str, **ends: Any) -> Any:
    """Apply a scheme with a batch to measure on, and say of a decoder that its encoder has two layers."""
    layers = (2, 3) if isinstance(model, nn.TransformerDecoder) else None
    return apply_scheme(model, scheme, batches=[inputs(model)], layers=layers, ends=ends)


def _stream(ids: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(ids % WIDTH, WIDTH).double()


# The page -----------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return docs/adoption.md."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    parts = [HEAD, INTRODUCTION, "## What happens to a model"]
    head = "| model | scheme | applied | saved, restored | undone | folded in memory | saved folded, read by stock |"
    rows = [row for name in MODELS for row in _rows(name, SHOWN)]
    parts.append("\n".join([head, "|---" * 7 + "|", *rows]))
    unit = [row for name in MODELS for row in _rows(name, _fitting(name), rows="unit")]
    parts += [ENDS, "\n".join([head, "|---" * 7 + "|", *unit])]
    return "\n\n".join([*parts, *_matrix()]) + "\n"


INTRODUCTION = """# Schemes on other people's models

`deepnet.apply_scheme(model, "deepnorm")` puts a residual scheme on a model of torch.nn or Hugging Face; the
[tutorial](tutorial_adopt.md) shows it. These tables were made by doing it on models of two or three layers, width 16,
in float64. *Equal* means outputs within 1e-12 of the adopted model's; *undone* means the same modules and bits as
before. Weights and norms were moved away from their start first, so that nothing is equal by chance.

A stock class refuses what an adopted model's `save_pretrained` writes: where norms were, the file has a tensor of
another shape. `deepnet.from_pretrained` reads it. What stock classes can read is written by
`deepnet.adapt.folded.save_folded`, where the scheme has an exact stock form on that model."""


ENDS = """## Embeddings and the vocabulary projection

Both are left as they are unless `ends` says otherwise. It takes the keys of a recipe's [[ends]](recipes.md#ends):
`apply_scheme(model, "deepnorm", ends={"embedding_lr_multiplier": 30})`. What the scheme itself fixes cannot be
chosen.

**A std** (`embedding_std`, `vocabulary_std`): the rows are drawn with it, and padding's row is zero, as in the stock
class. An untied projection follows the embedding unless it has a std of its own. With `initialize=False` a std is
refused.

**Unit rows** (`rows = "unit"`) are FixNorm's to the letter: every use sees rows of length 1, drawn from U(-0.01,
0.01) unless there is a std, and whatever multiplies them in the stock model goes on doing so. Marian and BART
multiply what they look up by sqrt(D) where `scale_embedding` is on. Elsewhere a token enters with numbers of size
D^(-1/2), 0.036 at width 768, and not with the family's own size: T5 draws its embedding with std 1, BERT, GPT-2 and
OPT with 0.02. T5 also multiplies the stream by D^(-1/2) before a projection that is tied, so that its logits begin
within -1 and 1 and grow with the gain of its final norm. A bias of the projection stays what it is, and a row of
zeros, padding's, stays zero until an update moves it. On trained weights unit rows would compute something else: with
`initialize=False` they are refused.

**Multipliers** of the learning rate and the weight decay are the optimiser's to carry out, and that is not ours. The
report gives it the groups, and after `from_pretrained` `deepnet.parameter_groups(model, lr=..., weight_decay=...)`
does:

```python
optimizer = torch.optim.AdamW(report.parameter_groups(lr=1e-3, weight_decay=0.01))
trainer = transformers.Trainer(model, settings, optimizers=(optimizer, None))  # or a loop of your own
```

AdamW takes off weight decay in proportion to the rate: at 30 times the rate, `embedding_weight_decay_multiplier=1/30`
keeps what it takes off. Every trainable parameter is in one group: embeddings and the projection with their
multipliers, what has one dimension (norms, biases, scales) without weight decay, the rest as given. A schedule that
multiplies each group's rate, as torch's and the Trainer's do, keeps the multipliers.

torch.nn's models have no embeddings, and refuse. A vocabulary is best resized before the scheme is applied:
`resize_token_embeddings` puts a stock module where an untied projection with unit rows was, and saving then refuses.

With `ends={"rows": "unit"}`:"""


def _fitting(name: str) -> list[str]:
    """Return the scheme shown with unit rows: one with the model's placement of norms; none where it has no rows."""
    anatomy = locate(MODELS[name]())
    placement = next(anatomy.sites()).part.placement
    return ["deepnorm" if placement == "post" else "pre_ln"] if anatomy.rows() else []


def _rows(name: str, schemes: Iterable[str], **ends: Any) -> list[str]:
    tried = [(scheme, " | ".join(_tried(name, scheme, ends))) for scheme in schemes]
    return [f"| {name} | {scheme} | {cells} |" for scheme, cells in tried]


def _tried(name: str, scheme: str, ends: dict[str, Any]) -> list[str]:
    model = MODELS[name]()
    try:
        undone = _undone(model, scheme, ends)
    except DeepNetError as error:
        return [f"refused: {_why(error)}", *["-"] * 4]
    adopt(model, scheme, **ends)
    _move(model)
    return ["yes", _restored(model), undone, _in_memory(model), _saved_folded(model)]


def _undone(model: nn.Module, scheme: str, ends: dict[str, Any]) -> str:
    before, weights = outputs(model), {k: v.clone() for k, v in model.state_dict().items()}
    adopt(model, scheme, **ends).undo()
    same = torch.equal(outputs(model), before) and list(model.state_dict()) == list(weights)
    bits = all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())
    return "yes" if same and bits else "NO"


@torch.no_grad()
def _move(model: nn.Module) -> None:
    """Move every trained number, and let a schedule stand in its middle."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.05 * torch.randn_like(parameter))
    state: Any = model.get_submodule("deepnet")
    state.advance(1000)


def _restored(model: nn.Module) -> str:
    if not isinstance(model, transformers.PreTrainedModel):
        other = _same_class(model)
        other.load_state_dict(model.state_dict())
        return _compared(other, model) + " (state_dict)"
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return _compared(from_pretrained(folder), model)


def _same_class(model: nn.Module) -> nn.Module:
    """Return another model of that class with the scheme on it and weights of its own."""
    fresh = {type(make()): make for make in (torch_transformer, torch_encoder, torch_decoder)}
    other = fresh[type(model)]()
    state: Any = model.get_submodule("deepnet")
    adopt(other, type(state.scheme).__module__.rpartition(".")[2])
    return other


def _in_memory(model: nn.Module) -> str:
    try:
        return _compared(folded(model), model)
    except DeepNetError:
        return "no exact form"


def _saved_folded(model: nn.Module) -> str:
    if not isinstance(model, transformers.PreTrainedModel):
        return "-"
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_folded(model, folder)
        except DeepNetError as error:
            return "refused: eps has no place in the configuration" if "eps" in str(error) else "-"
        return _compared(type(model).from_pretrained(folder), model)


def _compared(other: nn.Module, model: nn.Module) -> str:
    difference = float((outputs(other) - outputs(model)).abs().max())
    return "equal" if difference < 1e-12 else f"OFF BY {difference:.1e}"


def _matrix() -> list[str]:
    """Return the table of all schemes and models, and the numbered reasons under it."""
    reasons: dict[str, int] = {}
    models = [make() for make in MODELS.values()]
    rows = [
        f"| {scheme} | " + " | ".join(_cell(model, scheme, reasons) for model in models) + " |"
        for scheme in list_schemes()
    ]
    head = "| scheme | " + " | ".join(MODELS) + " |"
    numbered = "\n".join(f"{number}. {reason}" for reason, number in reasons.items())
    table = "\n".join([head, "|---" * (len(MODELS) + 1) + "|", *rows])
    return [
        "## Every scheme on every model",
        "A number is the reason below why not.",
        table,
        numbered,
    ]


def _cell(model: nn.Module, scheme: str, reasons: dict[str, int]) -> str:
    try:
        adopt(model, scheme).undo()
    except DeepNetError as error:
        return str(reasons.setdefault(_why(error), len(reasons) + 1))
    return "yes"


def _why(error: DeepNetError) -> str:
    """Return the reason alone: between the colon and the advice."""
    return str(error).partition(": ")[2].partition(". What can: ")[0].replace("|", "/")


def main() -> None:
    """Write the page, or with --check exit with 1 where it is out of date."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/adoption.md is out of date; run: python docs/adoption.py")


if __name__ == "__main__":
    main()

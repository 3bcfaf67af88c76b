"""Faults planted inside one module of a model: whether the guard names the layer and the site.

    python benchmarks/guard_places.py --out results/guard_places

Nine models of three layers a stack: six schemes of ours (two of them encoder-decoders, the others decoders alone),
GPT-2, BERT and T5. Each is trained for 20 updates; then, one update at a time and never applied, a fault stands in
every module with a matrix, of every layer:

    forward     one element of what the module returns is not a number
    backward    one element of the gradient of what it returns is not a number
    weight      the module's matrix is a thousand times as large
    branch      what the branch of a site returns is a thousand times as large
    gradient    the gradient of what the module returns is a thousand times as large; in the middle layer alone

"once" means that the fault is gone when the guard computes the update again; in the middle layer alone.
With --models those of another run of it are kept.
"""

import argparse
import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from deepnet.pipeline.run import follow_updates
from deepnet.probes.norm_input import NormInputs
from deepnet.record import RunFolder, write_json
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.ranks import Ranks
from deepnet.training.guard.config import GuardConfig
from deepnet.training.guard.judge import Verdict
from deepnet.training.plan import settle
from deepnet.training.probing import Probes
from deepnet.training.session import Session
from deepnet.training.stopwatch import Stopwatch
from deepnet.training.trained import untrained
from deepnet.training.update import run_update
from deepnet.transformer.models import Transformer, TransformerConfig
from guard_faults import FACTOR, enlarged, planted, spoilt
from measuring import commit, device, versions

SCHEMES = ("deepnorm", "post_ln", "pre_ln", "branchnorm", "rezero", "t_fixup")
FAMILIES = ("gpt2", "bert", "t5")
BOTH_STACKS = ("deepnorm", "t_fixup", "t5")
LAYERS = 3
SETTLING = 20
IDS = 24
MIDDLE = ("gradient", "forward, once", "backward, once")
"""Faults that stand in the second layer alone."""
HEAD = """# Where the guard says that a planted fault is

    python benchmarks/guard_places.py --out results/guard_places

Right of the faults that became an incident: the place named has the stack, the layer and the site of the fault.

"""
Module = tuple[str, str]
"""The path of a module, and its place in the words of an incident: "encoder.1.ffn.fc1"."""


# The models ---------------------------------------------------------------------------------------------------------


def ours(scheme: str, layers: int = LAYERS) -> Transformer:
    """Return a model of ours of that many layers a stack."""
    both = scheme in BOTH_STACKS
    config = TransformerConfig(
        architecture="encoder_decoder" if both else "decoder_only",
        encoder_layers=layers if both else 0,
        decoder_layers=layers,
        d_model=16,
        ffn_dim=32,
        num_heads=2,
        vocab_size=IDS + 1,
        tie_embeddings="decoder" if both else "all",
    )
    options = {"T": SETTLING // 2} if scheme == "branchnorm" else {}  # no branches at its beginning
    return Transformer(config, load_scheme(scheme, options), optimizer_family="adam")


def huggingface(family: str, layers: int = LAYERS) -> nn.Module:
    """Return a model of that family with random weights."""
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if family == "gpt2":
        sizes = {"n_embd": 16, "n_layer": layers, "n_head": 2, "n_positions": 16}
        return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=IDS, **sizes, **ends))
    if family == "bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2}
        return hf.BertForMaskedLM(hf.BertConfig(vocab_size=IDS, intermediate_size=32, **sizes))
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": layers, "num_heads": 2}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=IDS, **sizes, **ends))


def make(name: str, layers: int = LAYERS) -> nn.Module:
    """Return the model of a scheme or family."""
    torch.manual_seed(0)
    return huggingface(name, layers) if name in FAMILIES else ours(name, layers)


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of each next token."""
    if isinstance(model, Transformer):
        logits = model(ids, None, ids if model.encoder is not None else None)
    elif model.config.model_type == "t5":
        logits = model(input_ids=ids, decoder_input_ids=ids).logits
    else:
        logits = model(input_ids=ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def modules(name: str, layer: int) -> list[Module]:
    """Return the modules with a matrix in one layer, written down by hand for each family."""
    n = layer - 1
    if name == "gpt2":
        rows = {"attn.c_attn": "self.qkv", "attn.c_proj": "self.out"}
        rows |= {"mlp.c_fc": "ffn.fc1", "mlp.c_proj": "ffn.fc2"}
        return [(f"transformer.h.{n}.{p}", f"decoder.{layer}.{r}") for p, r in rows.items()]
    if name == "bert":
        rows = {f"attention.self.{p}": f"self.{p[0]}" for p in ("query", "key", "value")}
        rows |= {"attention.output.dense": "self.out"}
        rows |= {"intermediate.dense": "ffn.fc1", "output.dense": "ffn.fc2"}
        return [(f"bert.encoder.layer.{n}.{p}", f"encoder.{layer}.{r}") for p, r in rows.items()]
    return [
        (f"{path}.{module}", f"{stack}.{layer}.{site}.{role}")
        for stack, site, path in branches(name, layer)
        for role, module in _roles(name, site).items()
    ]


def branches(name: str, layer: int) -> list[tuple[str, str, str]]:
    """Return (stack, site, path) of the modules that are a whole branch."""
    n = layer - 1
    if name == "gpt2":
        return [
            ("decoder", "self", f"transformer.h.{n}.attn"),
            ("decoder", "ffn", f"transformer.h.{n}.mlp"),
        ]
    if name == "bert":
        return []  # its branches end inside modules that add and norm
    sites: dict[str, tuple[str, ...]] = {"decoder": ("self", "ffn")}
    if name in BOTH_STACKS:
        sites = {"encoder": ("self", "ffn"), "decoder": ("self", "cross", "ffn")}
    kinds = {"self": "SelfAttention", "cross": "EncDecAttention", "ffn": "DenseReluDense"}
    pattern = "{stack}.layers.{n}.sublayers.{site}.branch"
    if name == "t5":
        pattern = "{stack}.block.{n}.layer.{place}.{kind}"
    return [
        (stack, site, pattern.format(stack=stack, n=n, site=site, place=place, kind=kinds[site]))
        for stack, there in sites.items()
        for place, site in enumerate(there)
    ]


def _roles(name: str, site: str) -> dict[str, str]:
    roles = ("fc1", "fc2") if site == "ffn" else ("q", "k", "v", "out")
    theirs = {"fc1": "wi", "fc2": "wo", "out": "o"} if name == "t5" else {}
    return {role: theirs.get(role, role) for role in roles}


# The faults ---------------------------------------------------------------------------------------------------------


@contextmanager
def heavier(module: nn.Module) -> Iterator[None]:
    """Make a module's matrix a thousand times as large for a while."""
    weight: Any = module.weight
    with torch.no_grad():
        held = weight.clone()
        weight.mul_(FACTOR)
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(held)


class Subject:
    """A model that has been trained a little, and a guard that judges one more update as often as it is asked."""

    def __init__(
        self, model: nn.Module, folder: Path, *, loss: Callable[..., Tensor] = loss
    ) -> None:
        self.model, is_ours = model, isinstance(model, Transformer)
        plan = settle(
            TrainingConfig(max_steps=SETTLING, precision="fp32"),
            OptimizerConfig(lr=1e-3),
            ScheduleConfig(name="constant", warmup_steps=0),
            precision=None,
            device=torch.device("cpu"),
            updates_per_epoch=SETTLING,
            saved={},
        )
        engine = Engine(model, optimizer=plan.optimizer, precision=plan.precision, ranks=Ranks())
        inputs, run = NormInputs(model), RunFolder(folder)
        self.trained = untrained(
            engine,
            plan,
            guard=GuardConfig(spike="skip", nan="skip", plateau="off"),
            norm_inputs=inputs,
        )
        self._session = Session(
            trained=self.trained,
            plan=plan,
            loader=ListedUpdates([]),
            loss=loss,
            after_update=follow_updates(model.scheme) if is_ours else None,
            validation=None,
            norm_inputs=inputs,
            probes=Probes(None, model=model, run=run, ranks=engine.ranks),
            run=run,
            sinks=(),
            on_incident=(),
            settings={},
            watch=Stopwatch(),
        )
        model.train()
        draw = torch.Generator().manual_seed(1)
        self._batches = [torch.randint(1, IDS, (4, 8), generator=draw) for _ in range(SETTLING + 1)]
        for batch in self._batches[:-1]:
            assert self._run(batch) is None, "a healthy update was told of"
            self.trained.state.step += 1
        states = model.state_dict(), self.trained.engine.optimizer.state_dict()
        self._model_state, self._optimizer_state = copy.deepcopy(states)

    def judge(self) -> Verdict | None:
        """Return what the guard says of the next update; everything is then as before."""
        guard = self.trained.guard
        memory, seen = copy.deepcopy(guard.memory), guard.history.tensors()
        verdict = self._run(self._batches[-1])
        guard.memory = memory
        guard.history.load(seen)
        if verdict is None:  # the weights have taken it
            self.model.load_state_dict(self._model_state)
            self.trained.engine.optimizer.load_state_dict(copy.deepcopy(self._optimizer_state))
        return verdict

    def _run(self, batch: Tensor) -> Verdict | None:
        update = ListedUpdate((batch,), 1)
        with self._session.norm_inputs.open():
            outcome = run_update(self._session, update, interrupted=lambda: False, began=0.0)
        return outcome.verdict


# The cells ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One fault and what the guard said of it."""

    model: str
    fault: str
    place: str
    kind: str | None = None
    sign: str | None = None
    named: str | None = None
    found_by: str | None = None

    @property
    def is_right(self) -> bool:
        """Whether layer and site are the ones that the fault was planted in."""
        return _site(self.named) == _site(self.place)


def _site(place: str | None) -> str:
    return ".".join((place or "").split(".")[:3])


def cells(name: str, folder: Path) -> Iterator[Cell]:
    """Yield every fault of one model."""
    subject = Subject(make(name), folder)
    for layer in range(1, LAYERS + 1):
        for path, place in modules(name, layer):
            module = subject.model.get_submodule(path)
            for fault, planting in _faults(module).items():
                if fault in MIDDLE and layer != 2:
                    continue
                with planting:
                    yield _cell(name, fault, place, subject.judge())
        for stack, site, path in branches(name, layer):
            module = subject.model.get_submodule(path)
            with planted(module, enlarged, backward=False):
                yield _cell(name, "branch", f"{stack}.{layer}.{site}", subject.judge())


def _faults(module: nn.Module) -> dict[str, Any]:
    return {
        "forward": planted(module, spoilt, backward=False),
        "backward": planted(module, spoilt, backward=True),
        "forward, once": planted(module, spoilt, backward=False, once=True),
        "backward, once": planted(module, spoilt, backward=True, once=True),
        "weight": heavier(module),
        "gradient": planted(module, enlarged, backward=True),
    }


def _cell(name: str, fault: str, place: str, verdict: Verdict | None) -> Cell:
    if verdict is None:
        return Cell(name, fault, place)
    named = None if verdict.where is None else str(verdict.where)
    return Cell(name, fault, place, verdict.kind, verdict.sign.name, named, verdict.found_by)


FAULTS = ("forward", "backward", "weight", "branch", "gradient", "forward, once", "backward, once")


def table(found: list[Cell]) -> str:
    """Return the share of right places by model and fault, and every cell that is wrong."""
    rows = ["| model | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    names = list(dict.fromkeys(cell.model for cell in found))
    for name in (*names, "all"):
        of_model = [cell for cell in found if name in (cell.model, "all")]
        rows.append(f"| {name} | " + " | ".join(_share(of_model, fault) for fault in FAULTS) + " |")
    told = [cell for cell in found if cell.kind]
    roles = sum(cell.named == cell.place for cell in told if cell.fault != "branch")
    of = sum(cell.fault != "branch" for cell in told)
    rows += [
        "",
        f"Of the {of} incidents whose fault is in one module, {roles} also name its role.",
        "",
    ]
    return "\n".join(rows) + "\n" + _wrong(found)


def _share(found: list[Cell], fault: str) -> str:
    of_fault = [cell for cell in found if cell.fault == fault]
    told = [cell for cell in of_fault if cell.kind]
    if not of_fault:
        return "-"
    silent = len(of_fault) - len(told)
    right = sum(cell.is_right for cell in told)
    return f"{right} of {len(told)}" + (f" ({silent} silent)" if silent else "")


def _wrong(found: list[Cell]) -> str:
    wrong = [cell for cell in found if cell.kind and not cell.is_right]
    rows = ["## Where layer or site is wrong", ""]
    rows += [
        "| model | fault | planted in | named | sign | found by |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {c.model} | {c.fault} | {c.place} | {c.named or '-'} | {c.sign} | {c.found_by} |"
        for c in wrong
    ]
    silent: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for cell in found:
        if cell.kind is None:
            silent[cell.model, cell.fault][cell.place.rpartition(".")[2]] += 1
    rows += ["", "## Faults that are no incident: nothing leaves its range", ""]
    rows += [
        f"- {m}, {fault}: " + ", ".join(f"{n} x {r}" for r, n in c.items())
        for (m, fault), c in silent.items()
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the table is written")
    parser.add_argument("--models", nargs="*", default=[*SCHEMES, *FAMILIES])
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "cells.json"
    earlier = json.loads(path.read_text())["cells"] if path.exists() else []
    found = [Cell(**one) for one in earlier if one["model"] not in options.models]
    for name in options.models:
        found += cells(name, options.out)
        print(name, *(_share(found, fault) for fault in FAULTS), sep=" | ", flush=True)
        where = {"device": device(), "versions": versions(), "commit": commit()}
        cells_found = [asdict(cell) for cell in found]
        write_json(path, {**where, "cells": cells_found}, indent=None)
        (options.out / "table.md").write_text(HEAD + table(found))


if __name__ == "__main__":
    main()

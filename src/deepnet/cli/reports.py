"""How a finished run and a dry run are shown to people, and described to machines."""

from typing import TYPE_CHECKING, Any

from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.pipeline.inspecting import Inspection
    from deepnet.pipeline.outlook import EndReport
    from deepnet.pipeline.run import FinishedRun


def describe_run(run: "FinishedRun") -> dict[str, Any]:
    """Return what a run came to, for JSON; "bundle" and "scores" are null where it was interrupted."""
    training = run.training
    return {
        "run": str(run.folder),
        "bundle": str(run.bundle) if run.scores else None,
        "stopped": training.stopped,
        "step": training.step,
        "best": training.best,
        "best_step": training.best_step,
        "scores": run.scores,
    }


def show_run(output: Output, run: "FinishedRun") -> None:
    """Show the scores of a run, where everything is, and what to type next."""
    folder, training = run.folder, run.training
    if run.scores is None:
        output.say(f"\ninterrupted after update {training.step:,}; the checkpoint is saved")
        output.say(f"go on with:   deepnet train {folder} --out {folder} --resume")
        return
    output.say(f"\nended by training.{training.stopped} after {training.step:,} updates")
    if training.best_step is not None:
        output.say(f"best validation: {training.best:.4g} at update {training.best_step:,}")
    output.say()
    if "perplexity" in run.scores:
        show_perplexity(output, run.scores, part="test")
        output.say(f"\nmodel:        {run.bundle}")
        output.say(f"everything:   {folder}")
        return
    show_scores(output, run.scores)
    output.say(f"\nmodel:        {run.bundle}")
    output.say(f"translations: {folder / 'outputs'}")
    output.say(f"everything:   {folder}")
    given = f"{folder}{_trust_needed(run)}"
    into = ""
    if "directions" in run.scores:
        into = f" --to {next(iter(run.scores['directions'].values()))['target']}"
    output.say(f'\ntranslate:    echo "..." | deepnet translate {given}{into}')
    output.say(f"score again:  deepnet evaluate {given} decoding.beam_size=10")


def _trust_needed(run: "FinishedRun") -> str:
    """Return the option that the run's bundle asks for, "" where it needs no class of somebody's own."""
    from deepnet.bundle import read_bundle_config
    from deepnet.schemes.catalogue import is_own

    name = read_bundle_config(run.bundle).scheme_name
    return f" --trust-code {name}" if is_own(name) else ""


def show_scores(output: Output, scores: dict[str, Any]) -> None:
    """Show a table of scores with the signatures that say how they were computed; of many directions one for each."""
    if "directions" in scores:
        _show_directions(output, scores)
        return
    rows = [(name, scores[name], signature) for name, signature in scores["signature"].items()]
    output.table(["score", "", "signature"], rows)
    output.say(f"{scores['sentences']:,} sentences translated in {scores['seconds']:.1f} s")


def _show_directions(output: Output, scores: dict[str, Any]) -> None:
    """Show the scores of every direction, then the averages."""
    output.table(
        ["direction", "BLEU", "chrF", "sentences", "", "BLEU's signature"],
        [
            (
                name,
                round(one["bleu"], 2),
                round(one["chrf"], 2),
                one["sentences"],
                "" if one["trained"] else "zero-shot",
                one["signature"]["bleu"],
            )
            for name, one in scores["directions"].items()
        ],
    )
    output.say()
    output.table(
        ["average over", "BLEU", "chrF", "directions"],
        [
            (kind, round(mean["bleu"], 2), round(mean["chrf"], 2), mean["directions"])
            for kind, mean in scores["averages"].items()
        ],
    )
    output.say(f"{scores['sentences']:,} sentences translated in {scores['seconds']:.1f} s")


def show_perplexity(output: Output, scores: dict[str, Any], *, part: str) -> None:
    """Show how well a model predicts a part of one text."""
    rows = [("loss (nats per token)", scores["loss"]), ("perplexity", scores["perplexity"])]
    output.table(["score", ""], rows)
    output.say(
        f"{scores['tokens']:,} tokens of {scores['sentences']:,} {part} lines predicted in {scores['seconds']:.1f} s"
    )


def show_inspection(output: Output, found: "Inspection") -> None:
    """Show a dry run: parameters, coefficients, initial weights, updates, and one forward and backward."""
    output.say()
    output.table(["parameters", ""], list(found.parameters.items()))
    output.say()
    show_coefficients(output, found.coefficients)
    output.say("\ninitial weights, standard deviation pooled over a stack")
    output.table(
        ["stack", "role", "expected", "measured"],
        [(r.stack, r.role, r.expected_std, r.measured_std) for r in found.initialization],
    )
    update, step = found.update, found.step
    output.say(
        f"\nan update: {update.sentences:,} sentences, {update.source_tokens:,} source and "
        f"{update.target_tokens:,} target tokens on average; {update.per_epoch:,} updates per epoch"
    )
    output.say(_describe_end(found.end))
    output.say(
        f"one forward and backward of the largest micro-batch ({step.sentences} sentences of up to "
        f"{step.source_length} and {step.target_length} tokens): {step.seconds:.2f} s on "
        f"{step.device} in {step.precision}, loss {step.loss:.3f}, peak memory "
        f"{step.peak_bytes / 2**20:,.0f} MiB"
    )


def _describe_end(end: "EndReport") -> str:
    """Return what ends a run, and whether its learning rate falls towards that."""
    limits = " or ".join(f"{key} = {limit:,}" for key, limit in end.limits.items())
    first = ", whichever comes first" if len(end.limits) > 1 else ""
    updates = "" if end.updates is None else f"; at most {end.updates:,} updates"
    falls = "; the learning rate falls towards that end" if end.anneals else ""
    return f"the run ends at {limits}{first}{updates}{falls}"


def show_coefficients(output: Output, found: dict[str, Any]) -> None:
    """Show alpha and beta per stack, and every site of a stack in which one of them is not constant."""
    stacks = {name: found[name] for name in ("encoder", "decoder") if found[name]}
    sites = {name: [s for s in found["sites"] if s["stack"] == name] for name in stacks}
    output.say(f"{found['scheme']} ({found['architecture']}); alpha scales the skip, beta is the")
    output.say("gain of v, out, fc1 and fc2; - is a value that differs between sites")
    output.table(
        ["stack", "sites", "alpha", "beta"],
        [(name, len(sites[name]), s["alpha"], s["beta"]) for name, s in stacks.items()],
    )
    uneven = [name for name, s in stacks.items() if None in s.values()]
    if uneven:
        output.table(
            ["stack", "layer", "site", "skip", "branch", "gains"],
            [_site_row(site) for name in uneven for site in sites[name]],
        )


def _site_row(site: dict[str, Any]) -> tuple[object, ...]:
    gains = ", ".join(f"{role} {gain:.4g}" for role, gain in site["gain"].items() if gain)
    return site["stack"], site["layer"], site["kind"], site["skip"], site["branch"], gains

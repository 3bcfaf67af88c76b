"""A run in one paragraph: what was trained, how far it came and how it ended."""

from typing import Any

from deepnet.report.folder import ReportedRun
from deepnet.report.rounding import real


def summary_of(run: ReportedRun) -> str:
    """Return the paragraph, in whole sentences."""
    parts = (_model(run), _progress(run), _ending(run), _best(run), _test(run))
    return " ".join(part for part in parts if part)


def scheme_of(run: ReportedRun) -> str:
    """Return the scheme's name, with its own options where the recipe has any."""
    scheme = run.recipe.get("scheme", {})
    options = ", ".join(f"{key} = {value}" for key, value in scheme.items() if key != "name")
    name = str(scheme.get("name", "unknown scheme"))
    return f"{name} ({options})" if options else name


def depth_of(run: ReportedRun) -> str:
    """Return "18 + 18 layers" for an encoder-decoder, "24 layers" for one stack, "6 layers x 3" for loops."""
    model = run.recipe.get("model", {})
    stacks = {
        "encoder_only": ("encoder_layers",),
        "decoder_only": ("decoder_layers",),
    }.get(str(model.get("architecture")), ("encoder_layers", "decoder_layers"))
    loops = f" x {model['loops']}" if model.get("loops", 1) != 1 else ""
    return f"{' + '.join(str(model.get(stack, '?')) for stack in stacks)} layers{loops}"


def last_step(run: ReportedRun) -> int:
    """Return the updates done, as far as the records say."""
    return max((record["step"] for record in run.metrics), default=0)


def best_validation(run: ReportedRun) -> tuple[float, int] | None:
    """Return the lowest validation loss and its step."""
    found = [
        (loss, record["step"])
        for record in run.metrics
        if (loss := real(record.get("validation_loss"))) == loss
    ]
    return min(found, default=None)


def status_of(run: ReportedRun) -> str:
    """Return "going on", "finished" or "ended early" (stopped by the guard, interrupted, or failed)."""
    if run.is_going_on:
        return "going on"
    return "finished" if run.has_bundle or run.scores else "ended early"


def test_score(run: ReportedRun) -> str:
    """Return the score of the test part in a few words, "" before there is one."""
    scores = run.scores or {}
    if "bleu" in scores:
        how = f" ({run.bleu_signature})" if run.bleu_signature else ""
        return f"BLEU {real(scores['bleu']):.1f}{how}, chrF {real(scores.get('chrf')):.1f}"
    return f"perplexity {real(scores['perplexity']):.4g}" if "perplexity" in scores else ""


def _model(run: ReportedRun) -> str:
    model = run.recipe.get("model", {})
    size = f", {_count(run.parameters)} parameters" if run.parameters else ""
    return f"{scheme_of(run)}, {depth_of(run)} of width {model.get('d_model', '?')}{size}."


def _progress(run: ReportedRun) -> str:
    if not run.metrics:
        return "Nothing is recorded yet."
    last = run.metrics[-1]
    tokens, seconds = real(last.get("tokens")), real(last.get("seconds"))
    seen = f", {_count(tokens)} target tokens" if tokens == tokens else ""
    taken = f", {_duration(seconds)}" if seconds == seconds else ""
    return f"{last_step(run):,} updates{seen}{taken}."


def _ending(run: ReportedRun) -> str:
    status = status_of(run)
    if status == "going on":
        progress = real(run.metrics[-1].get("progress")) if run.metrics else float("nan")
        return f"Going on: {progress:.0%} done." if progress == progress else "Going on."
    if status == "finished":
        return f"Finished: {_limit(run)}."
    if run.incidents and run.incidents[-1].get("action") == "stop":
        return f"Stopped by the guard at update {run.incidents[-1]['step']:,}."
    return "Ended without a finished model: interrupted, or failed, or this folder is a part of the run."


def _limit(run: ReportedRun) -> str:
    """Return the limit of the recipe that the last record has reached."""
    training = run.recipe.get("training", {})
    last: dict[str, Any] = run.metrics[-1] if run.metrics else {}
    reached = {
        "training.max_steps": (last.get("step"), training.get("max_steps"), 1),
        "training.max_epochs": (last.get("epoch"), training.get("max_epochs"), 1),
        "training.max_minutes": (last.get("seconds"), training.get("max_minutes"), 60),
    }
    for name, (value, limit, unit) in reached.items():
        if limit and real(value) >= real(limit) * unit:
            return f"{name} = {limit:,} was reached"
    if training.get("patience"):
        return f"training.patience = {training['patience']}: validation no longer got better"
    return "training has ended"


def _best(run: ReportedRun) -> str:
    best = best_validation(run)
    return f"Best validation loss {best[0]:.4g} at update {best[1]:,}." if best else ""


def _test(run: ReportedRun) -> str:
    score, sentences = test_score(run), real((run.scores or {}).get("sentences"))
    if not score:
        return ""
    return f"Test part: {score}" + (f" over {sentences:,.0f} sentences." if sentences > 0 else ".")


def _count(number: float) -> str:
    """Return 4.2 million for 4,213,000, and numbers below a hundred thousand as they are."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,.0f}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02} min" if hours else f"{minute} min {second:02} s"

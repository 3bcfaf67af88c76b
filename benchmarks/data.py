"""What preparing text costs, before and after a change, and whether the loader keeps up with training.

    git worktree add /tmp/before e7b65c9
    python benchmarks/data.py prepare --pairs 100000 --rounds 3 --before /tmp/before/src
    python benchmarks/data.py prepare --pairs 1000000 --rounds 1 --before /tmp/before/src
    python benchmarks/data.py loader

`prepare` repeats the built-in German and English pairs with a number behind each sentence, so that none is a duplicate.
Each preparation is a process of its own that imports deepnet from the named folder; before and after alternate, in an
order that changes from round to round, once with a tokenizer that is given and once with one trained on the text, which
is SentencePiece's work and the same on both sides. Their files are compared byte for byte. Memory is that of all
processes together (Pss, every 50 ms) above what the first one has when all is imported.

`loader` takes updates alone, then trains on them, plain and made ahead. Both add to results/data; a run that repeats
another takes its place.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any

from measuring import commit, device, ratios, spread, versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "data"
LANGUAGES = ("de", "en")
POLL_SECONDS = 0.05
SIZE = (
    "model.encoder_layers=6",
    "model.decoder_layers=6",
    "model.d_model=512",
    "model.ffn_dim=2048",
    "model.num_heads=8",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("--pairs", type=int, default=100_000)
    preparing.add_argument("--rounds", type=int, default=1)
    preparing.add_argument("--before", type=Path, required=True, help="src of the other commit")
    preparing.add_argument("--note", default="", help="what else the machine did")
    preparing.add_argument("--tokenizers", nargs="+", default=["given", "trained"])
    loading = commands.add_parser("loader")
    loading.add_argument("--updates", type=int, default=10)
    loading.add_argument("--max-tokens", type=int, default=4096)
    loading.add_argument("--threads", type=int, default=2)
    loading.add_argument("--note", default="")
    one = commands.add_parser("one", help="one preparation, as `prepare` runs it")
    one.add_argument("text", type=Path)
    one.add_argument("cache", type=Path)
    one.add_argument("--model", default="")
    options = parser.parse_args()
    {"prepare": measure_preparation, "loader": measure_loader, "one": prepare_one}[options.command](
        options
    )


def write_corpus(folder: Path, pairs: int) -> None:
    """Write the built-in pairs again and again, each time with another number behind the sentences."""
    from deepnet.data.corpora import builtin_folder  # noqa: PLC0415
    from deepnet.data.text import read_rows  # noqa: PLC0415

    corpus = builtin_folder() / "tatoeba-en-de"
    rows = [row for row in read_rows([corpus / f"train.{x}.gz" for x in LANGUAGES]) if all(row)]
    numbered = ((row, number) for number in count() for row in rows)
    folder.mkdir(parents=True)
    files = [(folder / f"train.{language}").open("w", encoding="utf-8") for language in LANGUAGES]
    for row, number in islice(numbered, pairs):
        for file, sentence in zip(files, row, strict=True):
            file.write(f"{sentence} ({number})\n" if number else f"{sentence}\n")
    for file in files:
        file.close()


def prepare_one(options: argparse.Namespace) -> None:
    """Prepare once when told to, with what any version of deepnet has; say how long it took."""
    from deepnet.config import build  # noqa: PLC0415
    from deepnet.data.cleaning import CleaningConfig  # noqa: PLC0415
    from deepnet.data.prepare import prepare  # noqa: PLC0415
    from deepnet.data.sources import DataConfig  # noqa: PLC0415
    from deepnet.data.tokenizer import TokenizerConfig  # noqa: PLC0415

    sides = zip(("source", "target"), LANGUAGES, strict=True)
    files = {f"train_{side}": str(options.text / f"train.{language}") for side, language in sides}
    languages = {"source_language": "de", "target_language": "en"}
    config = build(DataConfig, files | languages, where="data")
    print("ready", flush=True)
    sys.stdin.readline()
    wall, before = time.monotonic(), os.times()
    prepared = prepare(
        config,
        cleaning=CleaningConfig(),
        tokenizer=TokenizerConfig(source_model=options.model),
        cache_dir=options.cache,
    )
    wall, after = time.monotonic() - wall, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    print(json.dumps({"wall": wall, "cpu": cpu, "folder": str(prepared.folder)}), flush=True)


def run_one(source: Path, text: Path, model: Path | None) -> dict[str, Any]:
    """Prepare in a process that imports deepnet from `source`; return seconds, bytes and what the files are."""
    with tempfile.TemporaryDirectory(prefix="deepnet-") as cache:
        command = [sys.executable, __file__, "one", str(text), cache, "--model", str(model or "")]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            assert process.stdout.readline() == "ready\n"
            imported = resident(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            peak = imported
            with ThreadPoolExecutor(1) as pool:
                said = pool.submit(process.stdout.readline)
                while not said.done():
                    peak = max(peak, resident(process.pid))
                    time.sleep(POLL_SECONDS)
        result = json.loads(said.result())
        folder = Path(result.pop("folder"))
        return {**result, "memory": peak - imported, "files": hash_files(folder)}


def resident(pid: int) -> int:
    """Return the resident bytes of a process and all below it, those of several shared out among them."""
    try:
        status = Path(f"/proc/{pid}/smaps_rollup").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if thread.name != str(pid):
                below += (thread / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0  # it has just ended
    own = next((line for line in status.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(own.split()[1]) * 1024 + sum(resident(int(child)) for child in below)


def hash_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a preparation but the one that says how long it took."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "preparation.json"
    }


def measure_preparation(options: argparse.Namespace) -> None:
    sources = {"before": options.before.resolve(), "after": ROOT / "src"}
    with tempfile.TemporaryDirectory(prefix="deepnet-") as temporary:
        text, model = Path(temporary) / "text", Path(temporary) / "tokenizer.model"
        write_corpus(text, options.pairs)
        model.write_bytes(trained_model(text))
        for tokenizer in options.tokenizers:
            made: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
            for index in range(options.rounds):
                for name in list(sources)[:: 1 if index % 2 == 0 else -1]:
                    given = model if tokenizer == "given" else None
                    made[name].append(run_one(sources[name], text, given))
                    times = {k: round(made[name][-1][k], 2) for k in ("wall", "cpu")}
                    print(
                        tokenizer,
                        name,
                        times,
                        f"{made[name][-1]['memory'] / 1e6:.0f} MB",
                        flush=True,
                    )
            command = f"prepare --pairs {options.pairs} --rounds {options.rounds}"
            keep(
                f"prepare, {options.pairs:,} pairs, tokenizer {tokenizer}",
                f"{command} --before BEFORE/src --tokenizers {tokenizer}",
                summarise(made, options),
            )


def trained_model(text: Path) -> bytes:
    """Return a tokenizer of 8,000 ids, trained on the first 50,000 lines of each side."""
    from deepnet.data.text import read_lines  # noqa: PLC0415
    from deepnet.data.tokenizer import TokenizerConfig, train_tokenizer  # noqa: PLC0415

    files = [text / f"train.{language}" for language in LANGUAGES]
    lines = [line for file in files for line in islice(read_lines(file), 50_000)]
    return train_tokenizer(lines, config=TokenizerConfig()).model


def summarise(made: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """Return pairs per second of wall clock and CPU time, memory, and the ratios of the same rounds."""
    found: dict[str, Any] = {
        name: {
            "pairs_per_second": spread([options.pairs / run["wall"] for run in runs]),
            "pairs_per_cpu_second": spread([options.pairs / run["cpu"] for run in runs]),
            "memory_bytes": spread([run["memory"] for run in runs]),
        }
        for name, runs in made.items()
    }
    files = [run["files"] for runs in made.values() for run in runs]
    for clock in ("wall", "cpu"):
        before, after = ([run[clock] for run in made[name]] for name in ("before", "after"))
        found[f"{clock}_ratio"] = ratios(before, after)
    same = all(these == files[0] for these in files)
    return {**found, "same_files": same, "rounds": options.rounds, "note": options.note}


def measure_loader(options: argparse.Namespace) -> None:
    """Take every update of an epoch, then train on a few: plain, and made ahead."""
    import torch  # noqa: PLC0415

    from deepnet.data.prefetch import Prefetched  # noqa: PLC0415
    from deepnet.pipeline.preparing import build_model, make_loader, prepare_data  # noqa: PLC0415
    from deepnet.pipeline.recipe import load_recipe  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    recipe = load_recipe("demo", [*SIZE, f"batching.max_tokens={options.max_tokens}"])
    with tempfile.TemporaryDirectory(prefix="deepnet-") as cache:
        data = prepare_data(recipe, cache=Path(cache))
        loader = make_loader(recipe, data)
        alone = take(loader.updates(0), lambda batch: None)
        step = make_step(build_model(recipe, data.tokenizers))
        take(islice(loader.updates(1), 1), step)
        plain = take(islice(loader.updates(1), options.updates), step)
        with Prefetched(loader) as ahead:
            made_ahead = take(islice(ahead.updates(1), options.updates), step)
    keep(
        f"loader, {options.max_tokens:,} tokens per micro-batch, 6L-6L d=512",
        f"loader --max-tokens {options.max_tokens} --updates {options.updates} "
        f"--threads {options.threads}",
        {
            "loader": alone,
            "training": plain,
            "training, made ahead": made_ahead,
            "ratio": alone["tokens_per_second"] / plain["tokens_per_second"],
            "cpu_ratio": alone["tokens_per_cpu_second"] / plain["tokens_per_cpu_second"],
            "note": options.note,
        },
    )


def make_step(model: Any) -> Callable[[Any], None]:
    """Return an update of the weights on one micro-batch: forward, backward, AdamW."""
    import torch  # noqa: PLC0415

    from deepnet.training.loss import token_loss  # noqa: PLC0415

    loss = token_loss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        (loss(model, batch) / batch.num_tokens).backward()
        optimizer.step()

    return step


def take(updates: Iterator[Any], step: Callable[[Any], None]) -> dict[str, float]:
    """Take updates and do a step on each micro-batch; return tokens per second and how long it waited for updates."""
    tokens = number = 0
    waited = 0.0
    wall, cpu = time.perf_counter(), time.process_time()
    while True:
        asked = time.perf_counter()
        update = next(updates, None)
        waited += time.perf_counter() - asked
        if update is None:
            break
        number += 1
        for batch in update.batches:
            tokens += batch.num_tokens + batch.num_source_tokens
            step(batch)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "tokens_per_second": tokens / wall,
        "tokens_per_cpu_second": tokens / cpu,
        "waited_ms_per_update": 1000 * waited / number,
        "updates": number,
    }


def keep(name: str, command: str, result: dict[str, Any]) -> None:
    """Put a result with its environment into results/data, and write the table again."""
    path = RESULTS / "metrics.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    where = {"device": device(), "commit": commit(), "versions": versions()}
    results[name] = {"command": f"python benchmarks/data.py {command}", **where, **result}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    (RESULTS / "table.md").write_text(table(results))


def table(results: dict[str, Any]) -> str:
    """Return all results as a page."""
    preparing = {name: found for name, found in results.items() if "same_files" in found}
    loading = {name: found for name, found in results.items() if "loader" in found}
    lines = [
        "# Preparing text, and the loader",
        "",
        "Generated by `benchmarks/data.py`, which says how the code before is run; do not edit. Medians of rounds,",
        "lowest and highest in brackets; ratios pair the same round. Memory: all processes together, above what the",
        "first one has when all is imported. What is waited for updates includes the plan of the epoch.",
    ]
    if preparing:
        lines += [
            "",
            "| what | pairs/s before | after | ratio | pairs per CPU second before | after | ratio | MB before | after "
            "| same files |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(preparation_row(name, found) for name, found in sorted(preparing.items())),
        ]
    if loading:
        lines += [
            "",
            "| what | tokens/s, loader alone | training | ratio | of CPU time | ms waited per update | made ahead |",
            "|---|---|---|---|---|---|---|",
            *(loader_row(name, found) for name, found in sorted(loading.items())),
        ]
    notes = [
        f"- {name}: `{found['command']}`, {found['device']}, commit {found['commit']}. {found['note']}".rstrip()
        for name, found in sorted(results.items())
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def preparation_row(name: str, found: dict[str, Any]) -> str:
    cells = [name.removeprefix("prepare, ")]
    for rate, ratio in (("pairs_per_second", "wall_ratio"), ("pairs_per_cpu_second", "cpu_ratio")):
        cells += [shown(found[side][rate], ",.0f") for side in ("before", "after")]
        cells.append(shown(found[ratio], ".2f"))
    for side in ("before", "after"):
        cells.append(shown({k: v / 1e6 for k, v in found[side]["memory_bytes"].items()}, ",.0f"))
    return "| " + " | ".join([*cells, "yes" if found["same_files"] else "NO"]) + " |"


def loader_row(name: str, found: dict[str, Any]) -> str:
    numbers = [
        f"{found['loader']['tokens_per_second']:,.0f}",
        f"{found['training']['tokens_per_second']:,.0f}",
        f"{found['ratio']:,.0f}",
        f"{found['cpu_ratio']:,.0f}",
        f"{found['training']['waited_ms_per_update']:.2f}",
        f"{found['training, made ahead']['waited_ms_per_update']:.2f}",
    ]
    return "| " + " | ".join([name.removeprefix("loader, "), *numbers]) + " |"


def shown(found: dict[str, float], form: str) -> str:
    median, low, high = (format(found[key], form) for key in ("median", "low", "high"))
    return median if low == high else f"{median} [{low}, {high}]"


if __name__ == "__main__":
    main()

"""What a run keeps of its text: it is measured where the text never was, and goes on where the files were moved.

A run is of contents, not of paths: its folder has the tokenizer, the held-out text and the sha256 of every input file.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepnet.data.prepare import (
    PreparedData,
    check_contents,
    find_prepared,
    fingerprint_files,
    open_prepared,
    report_found,
)
from deepnet.data.sources import FILE_FIELDS
from deepnet.data.steps import SUMMARY_FILE
from deepnet.data.tokenizer import MODEL_FIELDS, model_files
from deepnet.errors import ConfigError, DataError, DeepNetError
from deepnet.pipeline.preparing import CACHE, Report, prepare_data
from deepnet.pipeline.recipe import Recipe
from deepnet.record import RunFolder, atomic_folder, write_json

_FILES = {"data": FILE_FIELDS, "tokenizer": MODEL_FIELDS}
"""The keys of a recipe that are paths, by section."""


def keep_text(run: RunFolder, data: PreparedData) -> None:
    """Copy tokenizer and held-out text into the run, in place of what an earlier start left there.

    Raises DeepNetError where the disk refuses.
    """
    shutil.rmtree(run.data, ignore_errors=True)
    try:
        with atomic_folder(run.data) as folder:
            for file in data.kept_files():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(data.folder / file, folder / file)
            write_json(folder / SUMMARY_FILE, {**data.summary, "prepared": data.name})
    except OSError as error:
        raise DeepNetError(
            f"cannot write {run.data}: {error.strerror or error}; make room, and start again"
        ) from error


def kept_text(run: RunFolder) -> PreparedData | None:
    """Return what a run keeps of its text, which has no training part; None for a run of an earlier version."""
    return open_prepared(run.data) if (run.data / SUMMARY_FILE).exists() else None


def held_out_text(
    run: RunFolder, recipe: Recipe, *, cache: Path = CACHE, report: Report | None = None
) -> PreparedData:
    """Return valid and test of a run as it keeps them; a run of an earlier version is looked up in `cache`."""
    return kept_text(run) or prepare_data(recipe, cache=cache, report=report)


def whole_text(
    run: RunFolder, recipe: Recipe, *, cache: Path = CACHE, report: Report | None = None
) -> PreparedData:
    """Return all text of a run that goes on: from `cache`, else prepared again from files of the same contents.

    Raises ConfigError where a file has changed, and, as preparing does, where there is neither.
    """
    kept = kept_text(run)
    if kept is None:
        return prepare_data(recipe, cache=cache, report=report)
    _check_files(recipe, kept, cache)
    folder = find_prepared(cache, kept.name)
    if folder is None:
        return _prepared_again(run, recipe, kept, cache, report)
    found = open_prepared(folder)
    if report:
        if notice := kept.summary["notice"]:
            report(notice)
        report_found(found, recipe.data.unit, report)
    return found


def named_as_before(settings: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with its files called as they were in earlier settings: only contents count.

    Prepared data has an earlier name where it ends in the same key.
    """
    named = {name: dict(section) for name, section in settings.items()}
    for name, keys in _FILES.items():
        old = before.get(name, {})
        named[name] |= {key: old[key] for key in keys if old.get(key) and named[name][key]}
    texts = [every.get("prepared", {}).get("text", "") for every in (settings, before)]
    if texts[1] and texts[0].rpartition("-")[2] == texts[1].rpartition("-")[2]:
        named["prepared"] = {"text": texts[1]}
    return named


def _check_files(recipe: Recipe, kept: PreparedData, cache: Path) -> None:
    """Raise ConfigError where a file that is there, under the recipe's name or the recorded one, has changed.

    Not so a tokenizer under its recorded name: the run has its own copy.
    """
    given = {**recipe.data.model_dump(), **recipe.tokenizer.model_dump()}
    recorded = kept.summary["inputs"]
    files = {role: Path(given.get(role) or file["path"]) for role, file in recorded.items()}
    there = {
        role: file
        for role, file in files.items()
        if os.access(file, os.R_OK)
        and not (role in MODEL_FIELDS and str(file.absolute()) == recorded[role]["path"])
    }
    check_contents(fingerprint_files(there, cache_dir=cache), recorded)


def _prepared_again(
    run: RunFolder, recipe: Recipe, kept: PreparedData, cache: Path, report: Report | None
) -> PreparedData:
    try:
        return prepare_data(
            _with_kept_models(recipe, kept), cache=cache, report=report, repeats=kept
        )
    except (ConfigError, DataError) as error:
        raise type(error)(
            f"the prepared data of {run.path}, {kept.name}, are not in {cache}, and the text cannot be prepared "
            f"again: {error}. Copy that folder there, name the cache that has it with --cache, or say where the "
            "files are now, such as data.train_source=PATH"
        ) from error


def _with_kept_models(recipe: Recipe, kept: PreparedData) -> Recipe:
    """Return the recipe with the run's own copies of the tokenizers that were given as files."""
    models = model_files(kept.folder)
    own = dict(zip(MODEL_FIELDS, (models[0], models[-1]), strict=True))
    given = recipe.tokenizer.model_dump(include=set(MODEL_FIELDS))
    update = {key: str(own[key]) for key, path in given.items() if path}
    return recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update=update)})

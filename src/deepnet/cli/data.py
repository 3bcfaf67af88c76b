"""Verbs `data list` and `data get`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepnet.cli.options import Cache, Json, cache_folder, examples
from deepnet.cli.output import Output
from deepnet.errors import ConfigError

if TYPE_CHECKING:
    from deepnet.data.corpora import Corpus

LIST_EXAMPLES = examples("deepnet data list", "DEEPNET_DATA=/data/corpora deepnet data list")
GET_EXAMPLES = examples(
    "deepnet data get multi30k",
    "deepnet data get opus-100 de en",
    "deepnet data get iwslt14-de-en --cache /data/deepnet",
)


def list_corpora(cache: Cache = None, as_json: Json = False) -> None:
    """List the corpora that a recipe can name.

    Those that are built in, of the catalogue, and the folders below DEEPNET_DATA, with where each is.
    """
    from deepnet.data.listing import corpus_table

    output = Output(as_json=as_json)
    found = corpus_table(downloads=cache_folder(cache) / "corpora")
    columns = ["corpus", "what", "languages", "where", "licence"]
    output.result(found, show=lambda: output.table(columns, [_row(corpus) for corpus in found]))


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `deepnet data list` shows it.")],
    languages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LANGUAGE",
            help="A pair; needed where each pair has its own files.",
            show_default=False,
        ),
    ] = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Fetch a corpus and say where its files are.

    Training fetches by itself; this verb is for machines that will be offline. DEEPNET_DATA names a folder of corpora
    that is looked at before the network.
    """
    from deepnet.data.corpora import find_corpus
    from deepnet.data.download import get_corpus

    output = Output(as_json=as_json)
    corpus = find_corpus(name)
    output.say(corpus.notice)
    folder = get_corpus(
        corpus,
        _pair(languages or [], corpus),
        downloads=cache_folder(cache) / "corpora",
        report=output.say,
    )
    output.result({"name": name, "folder": str(folder)}, show=lambda: output.say(str(folder)))


def _pair(languages: list[str], corpus: "Corpus") -> tuple[str, str]:
    if not languages and (len(corpus.languages) == 2 or not corpus.pairwise):
        return corpus.languages[0], corpus.languages[1]
    if len(languages) != 2:
        raise ConfigError(
            f"{corpus.name} has {len(corpus.languages)} languages; name two, such as: "
            f"deepnet data get {corpus.name} {' '.join(corpus.languages[:2])}"
        )
    return languages[0], languages[1]


def _row(corpus: dict[str, Any]) -> list[object]:
    languages = corpus["languages"]
    shown = " ".join(languages) if len(languages) <= 6 else f"{len(languages)} languages"
    absent = f"to be downloaded, checksum {corpus['checksum']}"
    where = "built in" if corpus["builtin"] else corpus["folder"] or absent
    return [corpus["name"], corpus["title"], shown, where, corpus["licence"]]

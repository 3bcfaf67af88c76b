"""The corpora there are, and which of them are on this machine."""

from itertools import combinations
from pathlib import Path
from typing import Any

from deepnet.data.corpora import Corpus, find_corpus, find_folder, list_corpora, offline_folder


def corpus_table(*, downloads: Path) -> list[dict[str, Any]]:
    """Return name, title, languages, splits, licence, attribution, homepage, checksum and folder of every corpus.

    First those of the catalogue, then the folders of one's own below DEEPNET_DATA. "folder" is None where the corpus
    would have to be downloaded.
    """
    return [
        {
            "name": corpus.name,
            "title": corpus.title,
            "languages": list(corpus.languages),
            "splits": list(corpus.splits),
            "licence": corpus.licence,
            "attribution": corpus.attribution,
            "homepage": corpus.homepage,
            "checksum": corpus.checksum,
            "builtin": corpus.builtin,
            "folder": _folder(corpus, downloads),
        }
        for corpus in [*list_corpora().values(), *_own_corpora()]
    ]


def _folder(corpus: Corpus, downloads: Path) -> str | None:
    """Return the folder that holds at least one pair of the corpus's languages."""
    for pair in combinations(corpus.languages, 2):
        if not corpus.pivot or corpus.pivot in pair:
            folder = find_folder(corpus, pair, downloads=downloads)
            if folder is not None:
                return str(folder.parent if corpus.pairwise else folder)
    return None


def _own_corpora() -> list[Corpus]:
    """Return the folders below DEEPNET_DATA that the catalogue does not know, where they have a train part."""
    offline = offline_folder()
    names = sorted(path.name for path in offline.iterdir() if path.is_dir()) if offline else []
    corpora = [find_corpus(name) for name in names if name not in list_corpora()]
    return [corpus for corpus in corpora if corpus.languages]

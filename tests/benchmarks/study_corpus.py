"""English prose from Debian's documentation packages, as one Dolma-format source: the text of docs/studies.

    python -m tests.benchmarks.study_corpus --to study-corpus

Downloads the packages named below with `apt-get download` (nothing is installed), unpacks them, and keeps what reads as
prose: paragraphs, list items and definitions of at least MIN_WORDS words that are mostly letters. Code, tables, menus and
dictionaries are left out. A paragraph that occurred before anywhere in the corpus is dropped, so no text is repeated; a
document is one file of a package. The order is that of package and path, so the same package versions give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

MIN_WORDS = 12
MIN_LETTERS = 0.88
"""Share of letters and spaces."""

PACKAGES = {
    # package -> (globs below /usr/share, what must not occur in the path)
    "anarchism": (("doc/anarchism/html/*.html",), ()),
    "apache2-doc": (("doc/apache2-doc/manual/en/**/*.html", "doc/apache2-doc/manual/**/*.html.en"), ()),
    "debian-faq": (("**/*.en.html",), ()),
    "debian-handbook": (("doc/debian-handbook/html/en-US/*.html",), ()),
    "debian-kernel-handbook": (("**/*.html",), ()),
    "debian-reference-en": (("**/*.en.html", "**/*.html"), ()),
    "developers-reference": (("**/*.html",), ()),
    "gimp-help-en": (("**/*.html",), ()),
    "git-doc": (("**/*.html",), ("RelNotes",)),
    "libreoffice-help-en-us": (("**/*.html",), ()),
    "linux-doc-6.1": (("doc/linux-doc-6.1/html/**/*.html",), ("translations",)),
    "maint-guide": (("**/*.html",), ()),
    "octave-doc": (("**/*.html",), ()),
    "perl-doc": (("perl/**/*.pod",), ()),
    "postgresql-doc-15": (("**/*.html",), ()),
    "python3.11-doc": (("**/*.html",), ("genindex", "whatsnew/changelog")),
    "r-doc-html": (("**/*.html",), ()),
}

_PROSE = {"p", "dd", "li", "blockquote"}
_BLOCK = _PROSE | {
    "div",
    "td",
    "th",
    "tr",
    "table",
    "ul",
    "ol",
    "dl",
    "dt",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "body",
}
_SKIPPED = {"pre", "script", "style", "nav", "header", "footer", "table"}
_SPACE = re.compile(r"\s+")
_POD_MARKUP = re.compile(r"[A-Z]<+ ?([^<>|]*?\|)?([^<>]*?) ?>+")


class _Paragraphs(HTMLParser):
    """Collects the text of every prose element; a block inside it starts a paragraph of its own."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self._text: list[str] = []
        self._prose = False
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in _SKIPPED:
            self._skipping += 1
        if tag in _BLOCK:
            self._close()
            self._prose = tag in _PROSE
        elif tag == "br":
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        if tag in _BLOCK:
            self._close()
            self._prose = False

    def handle_data(self, data: str) -> None:
        if self._prose and not self._skipping:
            self._text.append(data)

    def _close(self) -> None:
        self.paragraphs.append(_SPACE.sub(" ", "".join(self._text)).strip())
        self._text = []


def html_paragraphs(text: str) -> list[str]:
    """The paragraphs, list items and definitions of a page, white space collapsed."""
    parser = _Paragraphs()
    parser.feed(text)
    parser.close()
    return parser.paragraphs


def pod_paragraphs(text: str) -> list[str]:
    """The ordinary paragraphs of Perl's documentation format."""
    plain = [part for part in text.split("\n\n") if part and part[0] not in "= \t"]
    for _ in range(3):  # markup nests
        plain = [_POD_MARKUP.sub(r"\2", part) for part in plain]
    return [_SPACE.sub(" ", part).strip() for part in plain]


def reads_as_prose(paragraph: str) -> bool:
    """Whether a paragraph is long enough and made of words."""
    if len(paragraph.split()) < MIN_WORDS:
        return False
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return letters >= MIN_LETTERS * len(paragraph)


def package_files(root: Path, package: str) -> Iterator[Path]:
    """The documentation files of one unpacked package, sorted, links and their doubles left out."""
    globs, unwanted = PACKAGES[package]
    share = root / "usr" / "share"
    found = {path for glob in globs for path in share.glob(glob) if path.is_file() and not path.is_symlink()}
    for path in sorted(found):
        if not any(part in path.as_posix() for part in unwanted):
            yield path


def documents(unpacked: Path) -> Iterator[dict[str, str]]:
    """One document a file: its paragraphs that read as prose and did not occur before."""
    seen: set[bytes] = set()
    for package in PACKAGES:
        root = unpacked / package
        for path in package_files(root, package):
            text = path.read_bytes().decode("utf-8", errors="replace")
            paragraphs = pod_paragraphs(text) if path.suffix == ".pod" else html_paragraphs(text)
            kept = []
            for paragraph in filter(reads_as_prose, paragraphs):
                key = hashlib.blake2b(paragraph.lower().encode(), digest_size=12).digest()
                if key not in seen:
                    seen.add(key)
                    kept.append(paragraph)
            if kept:
                yield {
                    "id": f"{package}/{path.relative_to(root).as_posix()}",
                    "text": "\n\n".join(kept),
                    "source": package,
                }


def unpack(package: str, unpacked: Path, downloads: Path) -> None:
    """Fetch one package with the ordinary client and unpack it; nothing is installed."""
    if (unpacked / package).is_dir():
        return
    downloads.mkdir(parents=True, exist_ok=True)
    if not list(downloads.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", package], cwd=downloads, check=True)
    (archive,) = downloads.glob(f"{package}_*.deb")
    (unpacked / package).mkdir(parents=True)
    subprocess.run(["dpkg", "-x", archive, unpacked / package], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--to", type=Path, default=Path("study-corpus"), help="folder of the source")
    parser.add_argument("--work", type=Path, default=None, help="where packages are unpacked")
    arguments = parser.parse_args()
    work = arguments.work or arguments.to / ".work"
    for package in PACKAGES:
        unpack(package, work / "x", work / "debs")
    arguments.to.mkdir(parents=True, exist_ok=True)
    counts: dict[str, list[int]] = {}
    with gzip.GzipFile(arguments.to / "prose.jsonl.gz", "wb", mtime=0) as file:
        for document in documents(work / "x"):
            file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
            count = counts.setdefault(document["source"], [0, 0])
            count[0] += 1
            count[1] += len(document["text"].encode())
    for package, (files, size) in counts.items():
        print(f"{package:26} {files:6} documents {size / 1e6:8.2f} MB")
    print(
        f"{'all':26} {sum(f for f, _ in counts.values()):6} documents {sum(s for _, s in counts.values()) / 1e6:8.2f} MB"
    )


if __name__ == "__main__":
    main()

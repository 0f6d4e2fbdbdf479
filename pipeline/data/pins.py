"""Pins: what exactly a source is, resolved once, kept, and compared with its place every time.

A pin is the sorted list of (relative path, size, hash) of a source's files. Its digest is the source's identity;
where the files lie is runtime, so the same bytes on another disk or in a bucket are the same source. Every plan and run
lists the place again: other content is refused until it is taken with `ncp data pin SOURCE --renew`, which keeps the pin
before it for the runs that name it. Every later read is checked against the pin.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from curriculum.schema import SourceSpec
from pipeline.data.builtin_layout import lay_out
from pipeline.data.compare import Comparison, compare
from pipeline.data.content_tag import content_digest
from pipeline.data.errors import SourceError
from pipeline.data.formats import MAGIC_BYTES, contradiction
from pipeline.data.objects import Listing, Listings, PinnedFile
from pipeline.data.source_files import SourceFiles, source_files
from pipeline.data.verified import hash_object
from pipeline.storage import Storage, StorageError, StorageUnavailable

PIN_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A source, exactly. `digest` covers names, sizes and hashes of the content alone."""

    source: str
    location: str
    """Directory or URL; for a builtin source the key prefix in storage."""
    builtin: bool
    files: tuple[PinnedFile, ...]
    digest: str

    def open_root(self, storage: Storage) -> Storage:
        """The root that the files' paths are relative to."""
        return Storage(storage.uri(self.location)) if self.builtin else Storage(self.location)

    @property
    def size(self) -> int:
        """Bytes of all files as stored."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Look:
    """A source as a plan sees it: its pin where there is one, and what its place holds now."""

    name: str
    place: str
    """Where it lies, or why nothing is known of that yet."""
    files: int | None
    bytes: int | None
    pin: Pin | None = None
    """The kept pin, proved against the place; None when the source was never pinned."""
    left_out: tuple[tuple[str, str], ...] = ()
    """(path, reason) of files below the place that the source leaves out."""
    note: str = ""


def pin_key(name: str, spec: SourceSpec, digest: str | None = None) -> str:
    """Storage key of a source's pin, or of one that was renewed since, by its digest.

    It depends on the name and on what selects the files, not on where they lie.
    """
    selection = {"builtin": spec.builtin, "globs": list(spec.globs)}
    of_selection = sha256(json.dumps(selection, sort_keys=True).encode()).hexdigest()[:12]
    return f"pins/{name}-{of_selection}{f'@{digest[:16]}' if digest else ''}.json"


def load_pin(
    storage: Storage, name: str, spec: SourceSpec, location: str | None, digest: str | None = None
) -> Pin | None:
    """The pin made earlier, at `location` if one is given; None if the source was never pinned here.

    With `digest` the pin of that content, renewed since or not: what a run is planned with stays what it reads. Lists
    nothing: `look` compares.
    """
    found = _read(storage, pin_key(name, spec), name, spec)
    if found is not None and digest is not None and found[1].digest != digest:
        found = None
    if found is None and digest is not None:
        found = _read(storage, pin_key(name, spec, digest), name, spec)
    if found is None:
        return None
    record, pin = found
    if location and not spec.builtin and location != record["requested"]:
        return dataclasses.replace(pin, location=Storage(location).url)
    return pin


def look(
    storage: Storage,
    name: str,
    spec: SourceSpec,
    location: str | None,
    *,
    text: bool = True,
    listings: Listings | None = None,
) -> Look:
    """List the source's place and compare it with the kept pin. Only reads.

    `text`: the files are read as documents, so their kinds must be known. Raises SourceError naming the source: what was
    added, removed or changed since it was pinned, or what can't be read; StorageUnavailable when the place does not answer.
    """
    return _look(storage, name, spec, location, text, listings or Listings())[0]


def make_pin(
    storage: Storage,
    name: str,
    spec: SourceSpec,
    location: str | None,
    *,
    text: bool = True,
    listings: Listings | None = None,
) -> Pin:
    """The kept pin, compared with the place as by `look`; a source that was never pinned is resolved and kept.

    Idempotent. Raises as `look`, and SourceError for no location, an unknown builtin, an unreadable place, no file.
    """
    listings = listings or Listings()
    found, matched = _look(storage, name, spec, location, text, listings)
    if found.pin is not None:
        assert matched is not None
        _refresh(storage, matched, found.pin, spec, location)
        return found.pin
    pin = _resolved(storage, name, spec, location, text, listings)
    storage.create_json(pin_key(name, spec), _record(spec, pin, location, text))
    # Of two racing callers one wins, and both use its pin.
    kept = load_pin(storage, name, spec, location)
    assert kept is not None
    if kept.digest != pin.digest:
        raise SourceError(
            f"sources.{name}: another process pinned other content at this moment; run the command again"
        )
    return kept


def renew_pin(
    storage: Storage, name: str, spec: SourceSpec, location: str | None, *, text: bool = True
) -> tuple[Pin, str | None]:
    """Take what the place holds now as the source; (its pin, digest of the one before if that was another).

    The pin before stays readable by its digest, for the runs that name it. Nothing made from it is touched. Without
    `location` the place is the one of the kept pin. Raises as `make_pin`.
    """
    found = _read(storage, pin_key(name, spec), name, spec)
    if found is None:
        return make_pin(storage, name, spec, location, text=text), None
    record, before = found
    location = location or record["requested"] or (None if before.builtin else before.location)
    pin = _resolved(storage, name, spec, location, text, Listings())
    if pin.digest != before.digest:
        storage.write_json(pin_key(name, spec, before.digest), _plain(record))
    storage.write_json(pin_key(name, spec), _record(spec, pin, location, text))
    return pin, before.digest if pin.digest != before.digest else None


def _look(
    storage: Storage,
    name: str,
    spec: SourceSpec,
    location: str | None,
    text: bool,
    listings: Listings,
) -> tuple[Look, str | None]:
    """The look, and the key of the pin that matches."""
    keys = (pin_key(name, spec), *_renewed(storage, name, spec))
    found = [(key, *kept) for key in keys if (kept := _read(storage, key, name, spec)) is not None]
    if not found:
        return _first_look(name, spec, location, text, listings), None
    first: Comparison | None = None
    place, now = location, None
    for key, record, pin in found:
        wanted = location or record["requested"]
        root, listing = _list(storage, name, pin if spec.builtin else None, wanted or pin.location, listings)
        if not location and not spec.builtin and not listing.files:
            note = "its place is not there now; what was staged from it is"
            return _seen(pin, root.url, None, note), key
        if spec.builtin:
            now = SourceFiles(files=listing.files)
        else:
            now = source_files(name, root.url, listing, spec.globs, text=text)
        place = root.url
        same_place = spec.builtin is not None or root.url == pin.location
        try:
            comparison = compare(pin.files, now.files, root, same_place=same_place)
        except StorageUnavailable:
            raise
        except OSError as error:
            raise SourceError(f"sources.{name}: {place}: a pinned file cannot be read ({error})") from error
        if comparison.same:
            moved = pin.location if spec.builtin else root.url
            return _seen(
                dataclasses.replace(pin, files=comparison.files, location=moved), place, now, ""
            ), key
        first = first or comparison
    given = f" --location {shlex.quote(location)}" if location else ""
    raise SourceError(
        f"sources.{name}: {place} is not what was pinned ({found[0][2].digest[:12]}): {first}; restore it, or take it "
        f"as the source with: ncp data pin {shlex.quote(name)} --renew{given} --storage {shlex.quote(storage.url)}"
        + ("" if spec.builtin else "; other data in this storage needs a source of another name")
    )


def _seen(pin: Pin, place: str, now: SourceFiles | None, note: str) -> Look:
    return Look(
        name=pin.source,
        place=place,
        files=len(pin.files),
        bytes=pin.size,
        pin=pin,
        left_out=now.left_out if now else (),
        note=note,
    )


def _first_look(name: str, spec: SourceSpec, location: str | None, text: bool, listings: Listings) -> Look:
    """A source that was never pinned: what a run would take. A place that is not there yet is told, not refused."""
    unknown = Look(name=name, place=f"builtin {spec.builtin}", files=None, bytes=None)
    if spec.builtin:
        return dataclasses.replace(unknown, note="laid out by the first run")
    if not location:
        return dataclasses.replace(unknown, place="", note=f"no location; set runtime.locations.{name}")
    try:
        root = Storage(listings.fixed(location))
        listing = listings.of(root)
    except Exception as error:
        reason = f"cannot be listed now ({_line(error)})"
        return dataclasses.replace(unknown, place=location, note=reason)
    now = source_files(name, root.url, listing, spec.globs, text=text)
    note = "not pinned yet"
    if not now.files:
        note = f"no file there matches {', '.join(spec.globs)}"
    return Look(
        name=name,
        place=root.url,
        files=len(now.files),
        bytes=sum(file.size for file in now.files.values()),
        left_out=now.left_out,
        note=note,
    )


def _resolved(
    storage: Storage, name: str, spec: SourceSpec, location: str | None, text: bool, listings: Listings
) -> Pin:
    """The pin of what is there now. Writes nothing but the text of a builtin source."""
    if spec.builtin:
        laid = lay_out(storage, name, spec.builtin)
        root = Storage(storage.uri(laid.location))
        stamps = listings.of(root).files
        files = tuple(dataclasses.replace(file, stamp=stamps[file.path].stamp) for file in laid.files)
        return Pin(source=name, location=laid.location, builtin=True, files=files, digest=laid.digest)
    if not location:
        raise SourceError(f"sources.{name}: no location; set runtime.locations.{name} to a directory or URL")
    root, listing = _list(storage, name, None, location, listings)
    found = source_files(name, root.url, listing, spec.globs, text=text)
    if not found.files:
        left_out = "".join(f"; left out: {path!r} ({reason})" for path, reason in found.left_out[:3])
        raise SourceError(
            f"sources.{name}: no file below {location!r} matches {', '.join(spec.globs)}; "
            f"check runtime.locations.{name} and sources.{name}.globs{left_out}"
        )
    files = tuple(_with_content(name, root, file, text) for file in found.files.values())
    digest = content_digest([(file.path, file.size, file.sha256 or file.etag) for file in files])
    return Pin(source=name, location=root.url, builtin=False, files=files, digest=digest)


def _list(
    storage: Storage, name: str, builtin: Pin | None, location: str, listings: Listings
) -> tuple[Storage, Listing]:
    """The root of a source's place and what lies there."""
    root = None
    try:
        root = builtin.open_root(storage) if builtin else Storage(listings.fixed(location))
        return root, listings.of(root)
    except StorageUnavailable:
        raise
    except (StorageError, OSError, ValueError) as error:
        if root is not None and isinstance(error, FileNotFoundError):
            return root, Listing(files={})  # an object store says of an empty prefix that it is not there
        raise SourceError(
            f"runtime.locations.{name}: {location!r} cannot be listed ({_line(error)})"
        ) from error


def _with_content(name: str, root: Storage, file: PinnedFile, text: bool) -> PinnedFile:
    """The file with a tag of its content. Local files have none of their own, so they are read once."""
    if not root.local and (file.sha256 or file.etag):
        return file
    try:
        if text:
            with root.open_read(file.path) as stream:
                wrong = contradiction(file.path, stream.read(MAGIC_BYTES))
            if wrong:
                raise SourceError(
                    f"sources.{name}: {root.uri(file.path)} is {wrong}; rename it to what it is, or fetch it again"
                )
        size, digest = hash_object(root, file.path)
    except StorageUnavailable:
        raise
    except OSError as error:
        raise SourceError(f"sources.{name}: {root.uri(file.path)} cannot be read ({error})") from error
    return dataclasses.replace(file, size=size, sha256=digest, etag="")


def _renewed(storage: Storage, name: str, spec: SourceSpec) -> list[str]:
    """Keys of the pins that the current one replaced."""
    stem = pin_key(name, spec).removeprefix("pins/").removesuffix(".json")
    return [f"pins/{child}" for child in storage.children("pins") if child.startswith(f"{stem}@")]


def _refresh(storage: Storage, key: str, pin: Pin, spec: SourceSpec, location: str | None) -> None:
    """Keep the stamps of now and the place, so that what was read to prove the pin is not read again."""
    found = _read(storage, key, pin.source, spec)
    if found is None or found[1].digest != pin.digest:
        return  # renewed by another process meanwhile
    record, kept = found
    requested = location or record["requested"]
    unchanged = kept.location == pin.location and record["requested"] == requested
    if unchanged and [file.stamp for file in kept.files] == [file.stamp for file in pin.files]:
        return
    files = [dataclasses.asdict(file) for file in pin.files]
    storage.write_json(
        key, {**_plain(record), "requested": requested, "location": pin.location, "files": files}
    )


def _record(spec: SourceSpec, pin: Pin, location: str | None, text: bool) -> dict[str, Any]:
    return {
        "format": PIN_FORMAT,
        "source": pin.source,
        "builtin": spec.builtin,
        "globs": list(spec.globs),
        "text": text,
        "requested": location,
        "location": pin.location,
        "files": [dataclasses.asdict(file) for file in pin.files],
        "digest": pin.digest,
    }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "record_sha256"}


def _read(storage: Storage, key: str, name: str, spec: SourceSpec) -> tuple[dict[str, Any], Pin] | None:
    """A kept record and its pin; None when there is none."""
    try:
        record = storage.read_json(key)
    except FileNotFoundError:
        return None
    if record.get("format") != PIN_FORMAT:
        raise SourceError(
            f"sources.{name}: {storage.uri(key)} has pin format {record.get('format')!r}, not {PIN_FORMAT}"
        )
    known = {item.name for item in dataclasses.fields(PinnedFile)}
    files = tuple(
        PinnedFile(**{field: value for field, value in file.items() if field in known})
        for file in record["files"]
    )
    return record, Pin(
        source=name,
        location=record["location"],
        builtin=spec.builtin is not None,
        files=files,
        digest=record["digest"],
    )


def kept_selection(storage: Storage, name: str) -> tuple[SourceSpec, str | None, bool]:
    """What a kept pin of that name selects, where its place was said to be, and whether it is text.

    For who names a source without a recipe. Raises SourceError when there is none, or several with other selections.
    """
    found = []
    for child in storage.children("pins"):
        if child.startswith(f"{name}-") and "@" not in child[len(name) :]:
            record = storage.read_json(f"pins/{child}")
            if record.get("source") == name and "globs" in record:
                found.append(record)
    if len(found) != 1:
        many = "several pins (with other globs)" if found else "no pin that says what it selects"
        raise SourceError(
            f"data pin: {name!r} has {many} in {storage.url}; give the recipe too: ncp data pin {name} RECIPE --renew"
        )
    (record,) = found
    spec = SourceSpec(builtin=record["builtin"], globs=tuple(record["globs"]))
    return spec, record["requested"], record.get("text", True)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())

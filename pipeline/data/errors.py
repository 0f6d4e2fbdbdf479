"""What can be wrong with a body of text. All are the user's to fix, so all are ValueErrors with one line."""

from __future__ import annotations

from curriculum.errors import InputError


class SourceError(InputError):
    """A source that cannot be pinned or staged as asked. Names the source, the place and the fix."""


class DamagedFile(SourceError):
    """A file that cannot be read to its end. Nothing of its group is committed."""


class ChangedSincePinned(SourceError):
    """A file whose size or hash is not the pinned one."""


class ShardError(InputError):
    """A shard or manifest that is not what its records say."""


class TokenizerError(InputError):
    """A tokenizer that would lose, change or draw at random what it encodes, or that is not the one asked for."""

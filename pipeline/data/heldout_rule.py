"""Which documents are held out: a rule on the text alone.

Dolma upsamples by physical duplication, so a rule on ids, files or positions would leave copies of a held-out text in
training. The text is normalised first (ASCII white space removed, ASCII letters lower-cased), so that copies that
differ in layout go together. The rule is a threshold on a hash, so a larger fraction holds out a superset.
"""

from __future__ import annotations

import hashlib

HELDOUT_VERSION = 1

_LOWER = bytes(range(256)).lower()
_WHITE_SPACE = b" \t\n\r\x0b\x0c"


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a text belongs to the held-out share `fraction` of [0, 1]."""
    if fraction <= 0.0:
        return False
    normalised = text.encode().translate(_LOWER, _WHITE_SPACE)
    digest = hashlib.blake2b(normalised, digest_size=8, person=b"ncp-heldout-1").digest()
    return int.from_bytes(digest, "little") < fraction * 2**64

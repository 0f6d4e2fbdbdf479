"""A store that a group shares: what one member writes, the others may read and add to, whatever the umask.

Only where the store's own folder is writable for its group; then new folders and files get the group's rights too.
"""

from __future__ import annotations

import os
import pwd
import stat

_FOLDER = stat.S_IRWXG | stat.S_ISGID
_FILE = stat.S_IRGRP | stat.S_IWGRP


class GroupRights:
    """The group's rights below `root`, a local folder."""

    def __init__(self, root: str):
        self._root = root

    @property
    def shared(self) -> bool:
        """Whether the root exists and its group may write there."""
        try:
            return bool(os.stat(self._root).st_mode & stat.S_IWGRP)
        except OSError:
            return False

    def make_folders(self, folder: str) -> None:
        """Make `folder` and what is missing above it."""
        if os.path.isdir(folder):
            return
        if not self.shared:
            os.makedirs(folder, exist_ok=True)
            return
        self.make_folders(os.path.dirname(folder))
        try:
            os.mkdir(folder)
        except FileExistsError:
            return
        os.chmod(folder, os.stat(folder).st_mode | _FOLDER)

    def share(self, descriptor: int) -> None:
        """Give the group its rights on a file that this process has just made."""
        if self.shared:
            os.fchmod(descriptor, os.fstat(descriptor).st_mode | _FILE)

    def explain(self, error: PermissionError) -> str:
        """Which folder refuses, whose it is, and what lets the others in."""
        place = str(error.filename or self._root)
        while not os.path.exists(place) and place != os.path.dirname(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place) or not os.access(place, os.W_OK):
            blocked = place
        else:
            blocked = os.path.dirname(place)
        found = os.stat(blocked)
        umask = os.umask(0)
        os.umask(umask)
        return (
            f"PermissionError: {blocked} belongs to {_user(found.st_uid)} with mode {stat.filemode(found.st_mode)}, and this "
            f"umask is {umask:03o}; to share a store let its owner run chmod -R g+rwXs {self._root}"
        )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"

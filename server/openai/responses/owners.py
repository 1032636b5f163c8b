"""Which front keeps a response, as links in a folder that all fronts share.

A link's name is made of the id of a response or of an output item, and it points to the index of
the front that has it. Links are made whole or not at all, so that of two fronts which take the same
id at once only one gets it, and nobody ever reads half a link.
"""

import hashlib
import logging
import os
from pathlib import Path

logger = logging.getLogger("ortloom.server")


class Owners:
    """The links as one front sees them.

    Args:
        folder: where they are; made if it is missing.
        index: of the front.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self._folder = folder
        self._own = str(index)
        folder.mkdir(mode=0o700, exist_ok=True)

    def forget_own(self) -> None:
        """Remove the links of an earlier process of this front; what it kept died with it."""
        for entry in os.scandir(self._folder):
            if _target(entry.path) == self._own:
                os.unlink(entry.path)

    def claim(self, key: str) -> bool:
        """Take an id for this front; False = another one has it.

        Where no link can be made (the disk is full) the id is this front's alone: others do not
        find it.
        """
        path = self._path(key)
        try:
            os.symlink(self._own, path)
        except FileExistsError:
            return _target(path) == self._own
        except OSError as error:
            logger.warning("other fronts will not find a response: %s", error.strerror)
        return True

    def owner(self, key: str) -> int | None:
        """Index of the front that has an id; None = nobody."""
        target = _target(self._path(key))
        return None if target is None else int(target)

    def release(self, key: str) -> None:
        """Give an id of this front back."""
        self._unlink(key, self._own)

    def evict(self, key: str, index: int) -> None:
        """Take an id from a front that is gone."""
        self._unlink(key, str(index))

    def _unlink(self, key: str, owner: str) -> None:
        path = self._path(key)
        if _target(path) == owner:
            try:
                os.unlink(path)
            except FileNotFoundError:
                logger.debug("a link was gone already")

    def _path(self, key: str) -> str:
        """Ids come from users: names are made of digests."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return str(self._folder / digest[:40])


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return None

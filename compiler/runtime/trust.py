"""Check that no other user can change the contents of a folder.

Code is loaded from these folders, so only this user and root may be able to write to them, or to replace them by
another folder. Thus verified files stay unchanged until they are loaded.
"""

import errno
import functools
import grp
import os
import pwd
import stat
from pathlib import Path

OURS = 0o700  # the mode of created folders, whatever the umask


def complaint(folder: Path, within: Path) -> str:
    """Describe how another user could change `folder`, which is `within` or inside it and has no links in its path.
    Returns "" if none could.

    Parents of `within` may be sticky like /tmp, where everybody may write but rename only their own files. Missing
    folders are ignored.
    """
    for place in (folder, *folder.parents):
        try:
            found = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        above = place not in (folder, within) and within.is_relative_to(place)
        if not ours(found) and not (above and found.st_uid == _unmapped()):
            return f"{place} belongs to {_name(found.st_uid)}, who could put foreign code there"
        if others_write(found) and not (above and found.st_mode & stat.S_ISVTX):
            mode = stat.S_IMODE(found.st_mode)
            return f"others may write to {place} (mode {mode:04o}) and put foreign code there; `chmod go-w {place}`"
    return ""


def ours(found: os.stat_result) -> bool:
    """Whether a file belongs to this user or to root."""
    return found.st_uid in (0, os.geteuid())


def others_write(found: os.stat_result) -> bool:
    """Whether others may write; a group with this user as its only member does not count."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid != _own_group()


def make(folder: Path) -> None:
    """Create the folder and its missing parents, for this user alone."""
    if not folder.is_dir():
        make(folder.parent)
        try:
            folder.mkdir(OURS)
        except FileExistsError as problem:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from problem


@functools.cache
def _own_group() -> int:
    """The group of this user alone that systems create for each user; -1 if there is none."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return -1
    return group.gr_gid if group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name} else -1


@functools.cache
def _unmapped() -> int:
    """The owner of system files in a container with its own user namespace; -1 outside of one."""
    try:
        users = Path("/proc/self/uid_map").read_text().split()
        return -1 if users[:2] == ["0", "0"] else int(Path("/proc/sys/fs/overflowuid").read_text())
    except (OSError, ValueError):
        return -1


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"

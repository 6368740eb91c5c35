"""Who could change what lies in a folder: the folder in, a complaint about it or about one above it out.

Code is loaded from these folders, so nobody but this user and root may be able to write to them, nor to put another
folder in their place. Then what was verified stays what it was until it is loaded.
"""

import errno
import functools
import grp
import os
import pwd
import stat
from pathlib import Path

OURS = 0o700  # what folders are made with, whatever the umask


def complaint(folder: Path, within: Path) -> str:
    """What another user could do to `folder`, which lies in `within` or is it and has no links in its path; else "".

    Parents of `within` may be of the kind of /tmp, in which everybody may write but only rename what is his own. What
    does not exist is nobody's yet.
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
    """Whether a file is this user's own or root's."""
    return found.st_uid in (0, os.geteuid())


def others_write(found: os.stat_result) -> bool:
    """Whether anybody else may write; a group of which this user is the only member is nobody else."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid != _own_group()


def make(folder: Path) -> None:
    """The folder and those above it that are missing, for this user alone."""
    if not folder.is_dir():
        make(folder.parent)
        try:
            folder.mkdir(OURS)
        except FileExistsError as problem:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from problem


@functools.cache
def _own_group() -> int:
    """The group that systems make for each user alone; -1 where this user has none."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return -1
    return group.gr_gid if group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name} else -1


@functools.cache
def _unmapped() -> int:
    """Who files of the system belong to inside a container that has other users than its host; -1 outside of any."""
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

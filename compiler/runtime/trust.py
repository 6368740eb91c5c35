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

PRIVATE_MODE = 0o700  # the mode of created folders, whatever the umask


def distrust_reason(folder: Path, root: Path) -> str:
    """Describe how another user could change `folder`, which is `root` or inside it and has no links in its path.
    Returns "" if none could.

    Parents of `root` may be sticky like /tmp, where everybody may write but rename only their own files. Missing
    folders are ignored.
    """
    for path in (folder, *folder.parents):
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        is_parent = path not in (folder, root) and root.is_relative_to(path)
        if not is_trusted_owner(status) and not (is_parent and status.st_uid == _overflow_user()):
            return f"{path} belongs to {_user_name(status.st_uid)}, who could put foreign code there"
        if is_writable_by_others(status) and not (is_parent and status.st_mode & stat.S_ISVTX):
            mode = stat.S_IMODE(status.st_mode)
            return f"others may write to {path} (mode {mode:04o}) and put foreign code there; `chmod go-w {path}`"
    return ""


def is_trusted_owner(status: os.stat_result) -> bool:
    """Whether a file belongs to this user or to root."""
    return status.st_uid in (0, os.geteuid())


def is_writable_by_others(status: os.stat_result) -> bool:
    """Whether others may write; a group with this user as its only member does not count."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and status.st_gid != _private_group()


def make_private(folder: Path) -> None:
    """Create the folder and its missing parents, for this user alone."""
    if not folder.is_dir():
        make_private(folder.parent)
        try:
            folder.mkdir(PRIVATE_MODE)
        except FileExistsError as problem:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from problem


@functools.cache
def _private_group() -> int:
    """The group of this user alone that systems create for each user; -1 if there is none."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return -1
    return group.gr_gid if group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name} else -1


@functools.cache
def _overflow_user() -> int:
    """The owner of system files in a container with its own user namespace; -1 outside of one."""
    try:
        users = Path("/proc/self/uid_map").read_text().split()
        return -1 if users[:2] == ["0", "0"] else int(Path("/proc/sys/fs/overflowuid").read_text())
    except (OSError, ValueError):
        return -1


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"

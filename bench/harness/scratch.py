"""Folders for operands of gigabytes, gone with their process: those of killed ones are removed by the next."""
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager

PREFIX = "tilewright-bench-"


def open_folder(path):
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def lock(folder):
    """False if a living process holds it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_abandoned(parent):
    for entry in os.scandir(parent):
        if not entry.name.startswith(PREFIX):
            continue
        try:
            folder = open_folder(entry.path)
        except OSError:
            continue
        try:
            if os.fstat(folder).st_uid == os.geteuid() and lock(folder):
                shutil.rmtree(entry.path, ignore_errors=True)
        finally:
            os.close(folder)


def locked_folder(parent):
    """A new one and its descriptor. Before it is locked, another process may take it for abandoned."""
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        try:
            folder = open_folder(path)
        except FileNotFoundError:
            continue
        if lock(folder) and os.path.exists(path):
            return path, folder
        os.close(folder)


@contextmanager
def scratch_folder(parent):
    remove_abandoned(parent)
    path, folder = locked_folder(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(folder)

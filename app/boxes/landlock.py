"""Landlock: rules of the kernel about which files a process and all that it starts may touch.

Makes rule sets; who puts them on is `warden.py`. Knows no tools.
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CREATE_RULESET, _ADD_RULE = 444, 445  # the same on every architecture
_VERSION = 1
_PATH_BENEATH = 1

# Signals and abstract sockets are covered from here on; before it a command could kill the server that it belongs to.
LEAST_ABI = 6
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_ALL_FILES = (1 << 16) - 1
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2

READ = _EXECUTE | _READ_FILE | _READ_DIR
CHANGE = _ALL_FILES & ~(_MAKE_CHAR | _MAKE_BLOCK)
DEVICE = _READ_FILE | _WRITE_FILE
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What may be done at a place and below it. `place`: a path, which is left out when there is none, or a handle."""

    place: Path | int
    allowed: int


_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version that the kernel offers; 0 when it offers none."""
    return max(0, _call(_CREATE_RULESET, None, 0, _VERSION))


def missing() -> str | None:
    """Why commands cannot be held by it here; None when they can."""
    version = abi()
    if version >= LEAST_ABI:
        return None
    if version:
        return f"the kernel has Landlock version {version}, which does not stop signals; Linux 6.12 or later does"
    return "the kernel has no Landlock, it is switched off, or a filter of system calls forbids it"


def ruleset(rules: Iterable[Rule]) -> int:
    """A rule set that allows just this, without network and without signals to others; the caller closes the handle.

    Raises OSError.
    """
    wanted = _Ruleset(_ALL_FILES, _BIND_TCP | _CONNECT_TCP, _ABSTRACT_SOCKETS | _SIGNALS)
    made = _call(_CREATE_RULESET, ctypes.byref(wanted), ctypes.sizeof(wanted), 0)
    if made < 0:
        raise OSError(-made, f"a Landlock rule set cannot be made: {os.strerror(-made)}")
    try:
        for rule in rules:
            _add(made, rule)
    except BaseException:  # whatever it is: the handle is not left open
        os.close(made)
        raise
    return made


def _add(made: int, rule: Rule) -> None:
    if isinstance(rule.place, int):
        _allow(made, rule.place, rule.allowed)
        return
    try:
        place = os.open(rule.place, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
            return
        raise
    try:
        _allow(made, place, rule.allowed if rule.place.is_dir() else rule.allowed & _OF_FILES)
    finally:
        os.close(place)


def _allow(made: int, place: int, allowed: int) -> None:
    problem = _call(_ADD_RULE, made, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, place)), 0)
    if problem < 0:
        raise OSError(-problem, f"a Landlock rule cannot be added: {os.strerror(-problem)}")


def _call(number: int, *arguments: object) -> int:
    """The result of a system call, negative for an error."""
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    done = int(_libc.syscall(ctypes.c_long(number), *given))
    return done if done >= 0 else -ctypes.get_errno()

"""Kinds of trouble that a store can be in. Each is begun, lasts, and is over; none knows what the service does."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.trouble.proxy import Proxy, State

KEEP_MB = 1  # what filling works in


@contextlib.asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Another process holds the write lock."""
    other = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


class CannotMount(Exception):
    """This machine gives no small file system of its own."""


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size. Raises `CannotMount`."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        raise CannotMount("a file system in memory cannot be mounted here: this needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Nothing more goes onto the disk: whatever is freed meanwhile is taken too."""
    filler = disk / "filler"
    try:
        fill(filler)
        yield
    finally:
        filler.unlink()


def fill(filler: Path) -> None:
    """Write until the disk is full, to the last byte."""
    with filler.open("ab", buffering=0) as file:
        for size in (KEEP_MB << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass


@contextlib.contextmanager
def slow(folder: Path, most_ms: int) -> Iterator[None]:
    """Each commit waits for up to that long."""
    flag = folder / "slow"
    flag.write_text(str(most_ms))
    try:
        yield
    finally:
        flag.unlink()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Whatever is opened on a small disk can only be read; what is open stays as it was."""
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxic:
    """What a proxy does to the connections of a database for a while."""

    name: str
    state: State
    cut: bool = False
    reset: bool = False
    ends: bool = True  # whether connections that met it are of use afterwards
    stops: bool = True  # whether nothing passes


TOXICS = (
    Toxic(name="latency of 200 ms", state=State(delay_s=0.2), stops=False),
    Toxic(name="64 KiB a second", state=State(bytes_per_s=65_536), stops=False),
    Toxic(name="cut, and refused", state=State(refusing=True), cut=True),
    Toxic(name="reset, and refused", state=State(refusing=True), cut=True, reset=True),
    Toxic(name="held, then let go", state=State(held=True)),
    Toxic(name="held for good, new ones pass", state=State(held=True), ends=False),
)


@contextlib.asynccontextmanager
async def poisoned(proxy: Proxy, toxic: Toxic) -> AsyncIterator[None]:
    """A proxy under a toxic."""
    proxy.set(toxic.state)
    if toxic.cut:
        proxy.cut(reset=toxic.reset)
    try:
        yield
    finally:
        if not toxic.ends:
            proxy.forget()
        proxy.set(State())

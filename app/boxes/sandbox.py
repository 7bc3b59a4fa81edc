"""Runs command lines in the best box that this machine holds, and none in a worse one than was demanded.

Knows no tools and no agents: a command is a text, a workspace is a directory.
"""

import asyncio
import base64
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from app.boxes import bubblewrap, landlock, probe, warden
from app.boxes.box import BoxRefused, End, Ended, Level, Limits, Standing
from app.boxes.bubblewrap import Inside
from app.boxes.covering import Covering
from app.boxes.covers import Handle, Survey, Veil, survey
from app.boxes.directory import NotThere
from app.boxes.landlock import CHANGE, DEVICE, READ, Rule
from app.boxes.ownership import Identity, identity_for
from app.boxes.pipes import Pipe, memory_file
from app.boxes.places import ABOUT_MACHINE, CONFIGURATION, DEVICES, SHELL, SYSTEM, environment
from app.boxes.process import Launch, carried_out
from app.boxes.seccomp import filter_for
from app.boxes.syscalls import this_machine
from app.boxes.temporary import Temporary, temporary
from app.boxes.usage import tasks_of
from app.boxes.workspaces import Opened, Workspaces, opened_at

log = logging.getLogger(__name__)

MAX_COMMAND_BYTES = 120_000  # the kernel takes arguments of up to 128 KiB
NOBODY = 65534
_PROBLEM_BYTES = 500
_NO_VEIL = Veil()


class Sandbox:
    """`lowest`: commands are refused where no box of this level holds. `workspaces`: those in which `run` works and,
    below a root, may hand over to the user number `spare` when server and workspace are root's; None: opened by their
    names. `variables` and `paths`: what commands find besides the usual environment and, for reading, the system tree.
    """

    def __init__(
        self,
        *,
        lowest: Level = Level.FULL,
        limits: Limits | None = None,
        spare: int = NOBODY,
        workspaces: Workspaces | None = None,
        variables: Mapping[str, str] | None = None,
        paths: Sequence[Path] = (),
    ) -> None:
        if spare < 1:
            raise ValueError("commands cannot run as root: give the number of another user")
        self.lowest = lowest
        self.limits = limits or Limits()
        self._spare = spare
        self._workspaces = workspaces
        self._variables = dict(variables or {})
        self._paths = tuple(paths)
        self._standing: asyncio.Task[Standing] | None = None
        self._process_tree = True
        self._hiding = False

    def hides(self) -> bool:
        """Whether commands run in a box that hides what they may not read. False until that was tried out."""
        return self._hiding

    async def standing(self) -> Standing:
        """The best level that holds, found by attacking each from inside; done once."""
        if self._standing is None:
            self._standing = asyncio.create_task(self._probed(), name="probe the sandbox")
        return await asyncio.shield(self._standing)

    async def refusal(self) -> str | None:
        """Why no command is run here; None when they are."""
        standing = await self.standing()
        if standing.level.reaches(self.lowest):
            return None
        return (
            f"commands are not run: the server demands a sandbox of level {self.lowest} and has {standing.level} "
            f"({standing.why()})"
        )

    async def run(
        self,
        command: str,
        workspace: Path,
        *,
        timeout_s: float,
        output: Callable[[bytes], None],
        veil: Veil = _NO_VEIL,
    ) -> tuple[Ended, Identity]:
        """Run a command line; how it ended and as whom. `output` gets what it writes, as it comes. What `veil` names is
        hidden where `hides` says so. Raises `BoxRefused`, also for a text that cannot be a command. When this returns
        or is cancelled no process of it is left."""
        refusal = await self.refusal()
        if refusal is not None:
            raise BoxRefused(refusal)
        level, veil = (await self.standing()).level, veil if self._hiding else _NO_VEIL
        return await self.run_at(
            level, command, workspace, timeout_s=timeout_s, output=output, veil=veil, beneath=self._workspaces
        )

    async def run_at(
        self,
        level: Level,
        command: str,
        workspace: Path,
        *,
        timeout_s: float,
        output: Callable[[bytes], None],
        veil: Veil = _NO_VEIL,
        beneath: Workspaces | None = None,
    ) -> tuple[Ended, Identity]:
        """As `run`, at a given level, whatever was demanded: for probes and measurements. `full` alone hides things.
        `beneath`: how the workspace is opened; None: by its name, and it is not handed over."""
        _check(command)
        said = bytearray()

        def heard(data: bytes) -> None:
            said.extend(data[: max(0, _PROBLEM_BYTES - len(said))])
            output(data)

        async with AsyncExitStack() as held:
            try:
                opened = opened_at(workspace, beneath)
            except NotThere as gone:
                raise BoxRefused(str(gone)) from None
            place = opened.handle
            held.callback(os.close, place)
            try:
                identity = await self._identity(opened)
            except OSError as error:
                raise BoxRefused(f"the workspace cannot be given to the user {self._spare}: {error.strerror}") from None
            others = 0 if level is Level.FULL else await asyncio.to_thread(tasks_of, identity.user)
            found: Survey | None = None
            if level is Level.FULL and veil:
                found = await survey(place, veil, identity.user if identity.dropped else None)
            try:
                home = None if level is Level.FULL else await held.enter_async_context(temporary(identity))
                launch = held.enter_context(self._launch(level, command, place, identity, others, found, home))
                ended, problem = await carried_out(launch, self.limits, timeout_s, heard)
            except OSError as error:
                raise BoxRefused(f"the command could not be started: {error.strerror or error}") from None
        if ended.output_lost:
            log.error("a command in %s could not be ended: a process of it is stuck in the kernel", workspace)
        if ended.end is End.NOT_STARTED:
            problem = problem or said.decode(errors="replace").strip() or "the box was not built, without a reason"
            raise BoxRefused(f"the command was not started: {problem}")
        return replace(ended, hidden=() if found is None else found.hidden), identity

    async def _identity(self, opened: Opened) -> Identity:
        """As whom; only what was opened below a root is ever given away, wherever its name leads by now."""
        if os.geteuid() != 0:
            return identity_for(opened.handle, self._spare, may_hand_over=False)
        held = Handle(opened.handle)
        return await asyncio.to_thread(
            lambda own: identity_for(own.number, self._spare, may_hand_over=opened.below), held
        )

    @contextmanager
    def _launch(
        self,
        level: Level,
        command: str,
        place: int,
        identity: Identity,
        others: int,
        found: Survey | None,
        home: Temporary | None,
    ) -> Iterator[Launch]:
        with ExitStack() as held:
            ready = Pipe()
            held.callback(ready.close)
            if home is None:
                yield self._wrapped(held, ready, command, place, identity, found)
            else:
                yield self._guarded(held, ready, level, command, place, identity, others, home)

    def _wrapped(
        self, held: ExitStack, ready: Pipe, command: str, place: int, identity: Identity, found: Survey | None
    ) -> Launch:
        """Level `full`."""
        inner, program = Pipe(), memory_file(_filter(own_namespaces=True) or b"")
        held.callback(inner.close)
        held.callback(os.close, program)
        path = os.readlink(f"/proc/self/fd/{place}")  # of what was opened, whatever its name leads to by now
        covering = Covering.of(found, place, path, held) if found is not None else None
        inside = Inside(
            command=command,
            workspace=place,
            path=path,
            identity=identity,
            filter=program,
            status=inner.write,
            ready=ready.write,
            process_tree=self._process_tree,
            more=None if covering is None else covering.words,
            gate=None if covering is None else covering.gate.read,
        )
        usual = {
            name: value for name, value in environment(bubblewrap.home(), {}).items() if name not in self._variables
        }
        return Launch(
            argv=bubblewrap.command_line(inside, self.limits, usual, self._paths),
            environment=self._variables,
            ready=ready,
            inner=inner,
            held=False,
            places=(place,),
            handles=(place, program, *(() if covering is None else covering.handles)),
            check=None if covering is None else covering.check,
            gate=None if covering is None else covering.gate,
            in_memory=bubblewrap.in_memory(),
        )

    def _guarded(
        self,
        held: ExitStack,
        ready: Pipe,
        level: Level,
        command: str,
        place: int,
        identity: Identity,
        others: int,
        home: Temporary,
    ) -> Launch:
        """Level `landlock`, and `none`: the warden, with or without restrictions."""
        rules = code = None
        handles = [place]
        if level is Level.LANDLOCK:
            rules = landlock.ruleset(self._rules(place, home))
            held.callback(os.close, rules)
            handles.append(rules)
            code = _filter(own_namespaces=False)
        plan = {
            "argv": [SHELL, "--noprofile", "--norc", "-c", command],
            "environment": environment(home.path, self._variables),
            "workspace": place,
            "ready": ready.write,
            "user": identity.user if identity.dropped else None,
            "group": identity.group,
            "ruleset": rules,
            "filter": base64.b64encode(code).decode() if code else None,
            "limits": self._resource_limits(others),
            "temporary": home.path,
        }
        written = memory_file(json.dumps(plan).encode())
        held.callback(os.close, written)
        return Launch(
            argv=(sys.executable, "-I", "-S", "-B", str(Path(warden.__file__).resolve()), str(written)),
            environment={},
            ready=ready,
            held=True,
            handles=(*handles, written),
            places=(place, home.place),
        )

    def _rules(self, place: int, home: Temporary) -> list[Rule]:
        reading = [*SYSTEM, *CONFIGURATION, *ABOUT_MACHINE, *self._paths]
        return [
            *(Rule(place=path, allowed=READ) for path in reading),
            *(Rule(place=path, allowed=DEVICE) for path in DEVICES),
            Rule(place=place, allowed=CHANGE),
            Rule(place=home.place, allowed=CHANGE),
        ]

    def _resource_limits(self, others: int) -> dict[str, int]:
        limits = self.limits
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": limits.processes + others,  # the kernel counts all of the user
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_DATA": limits.memory_bytes,
            "RLIMIT_NOFILE": limits.open_files,
        }

    async def _probed(self) -> Standing:
        missing: list[tuple[Level, str]] = []
        for level in (Level.FULL, Level.LANDLOCK):
            reason = missing_for(level) or await self._attacked(level)
            if reason is None:
                self._hiding = level is Level.FULL and await self._hides_indeed()
                return Standing(level=level, missing=tuple(missing))
            missing.append((level, reason))
        return Standing(level=Level.NONE, missing=tuple(missing))

    async def _hides_indeed(self) -> bool:
        async def attempt(command: str, workspace: Path, timeout_s: float) -> str:
            said, veil = bytearray(), Veil(conceals=probe.HIDDEN.__eq__)
            await self.run_at(Level.FULL, command, workspace, timeout_s=timeout_s, output=said.extend, veil=veil)
            return said.decode(errors="replace")

        try:
            return await probe.hides(attempt)
        except (BoxRefused, OSError) as error:
            log.warning("commands run, but nothing can be hidden from them: %s", error)
            return False

    async def _attacked(self, level: Level) -> str | None:
        """Why a level does not hold; None when it does. In some containers no /proc can be mounted: a box without one
        holds as well, and only some commands miss it."""
        reason = await self._attacked_once(level)
        if reason is not None and level is Level.FULL:
            self._process_tree = False
            if await self._attacked_once(level) is None:
                return None
        return reason

    async def _attacked_once(self, level: Level) -> str | None:
        async def attempt(command: str, workspace: Path, timeout_s: float) -> str:
            said = bytearray()
            await self.run_at(level, command, workspace, timeout_s=timeout_s, output=said.extend)
            return said.decode(errors="replace")

        try:
            return await probe.attack(attempt, self._spare)
        except (BoxRefused, OSError) as error:
            return str(error)


def _check(command: str) -> None:
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise BoxRefused("the command was not run: it is no valid Unicode") from None
    if "\0" in command or size > MAX_COMMAND_BYTES:
        raise BoxRefused(
            f"the command was not run: it must be without NUL characters and at most {MAX_COMMAND_BYTES:,} bytes; "
            "write a longer one to a file and run that"
        )


def missing_for(level: Level) -> str | None:
    """What a level needs and this machine lacks; None when it can be tried."""
    if this_machine() is None:
        return "the numbers of the system calls of this machine are not known"
    return bubblewrap.missing() if level is Level.FULL else landlock.missing()


def _filter(*, own_namespaces: bool) -> bytes | None:
    machine = this_machine()
    return None if machine is None else filter_for(machine, own_namespaces=own_namespaces)

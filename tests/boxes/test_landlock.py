"""The filter of system calls as a program, rule sets, and what a warden does when it cannot do what it should."""

import errno
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from app.boxes import landlock, warden
from app.boxes.box import Level
from app.boxes.landlock import CHANGE, READ, Rule
from app.boxes.seccomp import filter_for
from app.boxes.syscalls import Machine, machine_of
from tests.boxes.outside import need

ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0000


def judged(program: bytes, machine: Machine, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the program answers to a call: a small copy of the kernel's machine."""
    data = struct.pack("=iIQ6Q", number, audit or machine.audit, 0, *(*arguments, *[0] * (6 - len(arguments))))
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        what, yes, no, operand = code[at]
        at += 1
        match what:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                value &= operand
            case 0x06:
                return int(operand)
            case _:
                tests = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}
                at += yes if tests[what] else no


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
@pytest.mark.parametrize("own_namespaces", [True, False])
def test_the_filter_refuses_what_leads_out_on_both_machines(name: str, own_namespaces: bool) -> None:
    machine = machine_of(name)
    assert machine is not None
    program = filter_for(machine, own_namespaces=own_namespaces)
    assert len(program) // 8 < 4096

    def answer(call: str, *arguments: int) -> int:
        found = judged(program, machine, machine.numbers[call], *arguments)
        return 0 if found == ALLOW else found - REFUSE

    for call in ("ptrace", "mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "open_by_handle_at"):
        assert answer(call) == errno.EPERM, call
    assert answer("clone3") == errno.ENOSYS
    assert (answer("clone", 0x1000_0000), answer("clone", 0x11)) == (errno.EPERM, 0)
    assert (answer("ioctl", 0, 0x5412), answer("ioctl", 0, 0x5401)) == (errno.EPERM, 0)
    assert answer("socket", 40) == errno.EAFNOSUPPORT
    shared = not own_namespaces
    assert [answer("socket", family) != 0 for family in (1, 2, 10, 16)] == [shared] * 4
    for kind, refused in ((1 | 0o2000000, False), (5 | 0o4000, False), (2, shared), (3, shared), (2 | 0o4000, shared)):
        assert (answer("socketpair", 1, kind) != 0) == refused, kind
    assert answer("socketpair", 30, 1) == errno.EAFNOSUPPORT
    for call in ("shmget", "shmat", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl"):
        assert answer(call) == errno.ENOSYS, call
    assert [answer(call) for call in ("memfd_create", "memfd_secret", "openat2")] == [errno.ENOSYS] * 3
    for call in ("mq_open", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr", "inotify_add_watch"):
        assert (answer(call) != 0) == shared, call
    for call in ("getxattr", "listxattrat", "listmount", "statmount"):
        assert (answer(call) != 0) == shared, call
    assert [answer("prlimit64", process) != 0 for process in (0, 7)] == [False, shared]
    assert (answer("utimensat", 3, 0), answer("utimensat", 3, 1 << 40) != 0) == (0, shared)
    assert [answer("setpriority", *given) != 0 for given in ((0, 0), (0, 7), (2, 0))] == [False, shared, shared]
    assert judged(program, machine, 0, audit=0x4000_0003) == REFUSE | errno.ENOSYS
    assert judged(program, machine, 2) == ALLOW


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
@pytest.mark.parametrize("right", [0o4000, 0o2000])
def test_no_call_gives_a_file_the_rights_of_its_owner(name: str, right: int) -> None:
    machine = machine_of(name)
    assert machine is not None
    program = filter_for(machine, own_namespaces=True)
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
    for call in modes.keys() & machine.numbers.keys():
        before = [0] * modes[call]
        assert judged(program, machine, machine.numbers[call], *before, 0o755) == ALLOW, call
        assert judged(program, machine, machine.numbers[call], *before, right | 0o755) == REFUSE | errno.EPERM, call
    creating, nameless = os.O_CREAT | os.O_WRONLY, 0o20000000 | 0o200000
    for call in {"open": 1, "openat": 2}.keys() & machine.numbers.keys():
        before = [0] * {"open": 1, "openat": 2}[call]
        for flags, mode, refused in (
            (creating, 0o755, False),
            (creating, right | 0o755, True),
            (nameless, right | 0o755, True),
            (os.O_RDONLY, right, False),  # without a new file what stands there means nothing
        ):
            found = judged(program, machine, machine.numbers[call], *before, flags, mode)
            assert (found != ALLOW) == refused, (call, flags, mode)


@pytest.mark.spec("7.3")
def test_numbers_of_the_second_table_are_closed() -> None:
    machine = machine_of("x86_64")
    assert machine is not None
    program = filter_for(machine, own_namespaces=True)
    assert judged(program, machine, 0x4000_0000 + 101) == REFUSE | errno.ENOSYS
    assert machine_of("riscv64") is None


@pytest.mark.spec("7.3")
def test_a_rule_set_can_be_made_and_places_that_do_not_exist_are_left_out(tmp_path: Path) -> None:
    need(Level.LANDLOCK)
    handle = os.open(tmp_path, os.O_PATH)
    rules = [Rule(place=handle, allowed=CHANGE), Rule(place=tmp_path / "gone", allowed=READ)]
    made = landlock.ruleset([*rules, Rule(place=Path("/etc/passwd"), allowed=READ)])
    os.close(made)
    os.close(handle)


@pytest.mark.spec("7.3")
def test_an_older_kernel_is_told_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, text in ((0, "no Landlock"), (5, "version 5, which does not stop signals")):
        monkeypatch.setattr(landlock, "abi", lambda version=version: version)
        assert text in (landlock.missing() or "")
    monkeypatch.setattr(landlock, "abi", lambda: landlock.LEAST_ABI)
    assert landlock.missing() is None


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("broken", [{"ruleset": 999}, {"filter": "AAAA"}, {"limits": {"RLIMIT_NONE": 1}}, {"user": -5}])
def test_a_restriction_that_cannot_be_had_keeps_the_command_from_starting(
    broken: dict[str, object], tmp_path: Path
) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    reading, writing = os.pipe()
    plan = {
        "argv": ["/bin/sh", "-c", "echo x > made"],
        "environment": {},
        "workspace": place,
        "ready": writing,
        "user": None,
        "group": 0,
        "ruleset": None,
        "filter": None,
        "limits": {},
        "temporary": str(tmp_path / "temporary"),
        **broken,
    }
    (tmp_path / "plan").write_text(json.dumps(plan))
    handle = os.open(tmp_path / "plan", os.O_RDONLY)
    command = [sys.executable, "-I", "-S", "-B", warden.__file__, str(handle)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(place, writing, handle)) as process:
        os.close(writing)
        assert process.wait(20) == warden.NOT_STARTED
    for one in (place, handle):
        os.close(one)
    with os.fdopen(reading, "rb") as said:
        assert not said.read().startswith(warden.STARTED)
    assert not (tmp_path / "made").exists()

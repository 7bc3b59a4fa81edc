"""The filter of system calls around a command, as a program for the kernel's packet filter machine.

It takes away what no command of an agent needs and what leads out of a box or into the kernel. Knows no tools.
"""

import errno
import struct
from collections.abc import Sequence

from app.boxes.syscalls import Machine

_ALLOW = 0x7FFF_0000
_ERRNO = 0x0005_0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _AUDIT, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

_NEW_NAMESPACES = 0x7E02_0080  # every CLONE_NEW… flag that clone takes
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the terminal of somebody else
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _PACKETS = 1, 5  # connected for ever; all other pairs can be sent from to any address
_KIND = 0xF  # of a socket, without its flags
_OTHERS_RIGHTS = 0o6000  # a program that runs as its owner or with its group
_MAKES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: only with these does opening take a mode

_DENIED = (
    # other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise", "process_mrelease",
    "move_pages", "migrate_pages",
    # keys, kernel programs, tracing, rings that no filter looks into
    "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "fanotify_init", "io_uring_setup",
    "io_uring_enter", "io_uring_register",
    # mounts, namespaces, roots, files by number
    "mount", "umount2", "pivot_root", "chroot", "mount_setattr", "open_tree", "open_tree_attr", "move_mount", "fsopen",
    "fsconfig", "fsmount", "fspick", "unshare", "setns", "open_by_handle_at", "name_to_handle_at",
    # the machine itself
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "swapon", "swapoff", "reboot",
    "syslog", "acct", "settimeofday", "adjtimex", "clock_settime", "clock_adjtime", "sethostname", "setdomainname",
    "quotactl", "quotactl_fd", "vhangup", "lookup_dcookie", "iopl", "ioperm", "modify_ldt",
)  # fmt: skip
# Memory that belongs to no process, so that no count of what processes hold finds it; also shared with the host where
# a box has no namespace of such objects. By numbers, which one need not have asked for: each call, not only the first.
_NOBODYS_MEMORY = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl",
)  # fmt: skip
_FILES_IN_MEMORY = ("memfd_create", "memfd_secret")
_QUEUES = ("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr")
# Calls by path that Landlock does not judge: they reach all that belongs to the same user, of the server or of others.
_ATTRIBUTES = (
    "chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "utime", "utimes", "futimesat", "setxattr",
    "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat", "file_setattr",
)  # fmt: skip
# The same for looking: what is written beside a file, what happens to it, where everything is mounted.
_SIGHTS = ("inotify_add_watch", "listmount", "statmount")
_ATTRIBUTES_READ = ("getxattr", "lgetxattr", "getxattrat", "listxattr", "llistxattr", "listxattrat", "file_getattr")
_MODES = (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1), ("mknod", 1), ("mknodat", 2))
_OPENS = (("open", 1), ("openat", 2))  # where their flags are; the mode is next
_OTHERS_LIMITS = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")


def filter_for(machine: Machine, *, own_namespaces: bool) -> bytes:
    """The program. `own_namespaces`: the box has its own files, network, processes and shared memory. Otherwise sockets
    are had only as connected pairs, and nothing is changed by its path or number that may belong to another box."""
    program = _Program(machine)
    program.deny(_DENIED)
    program.deny(("clone3",), errno.ENOSYS)  # its flags lie in memory, where no filter sees them; libraries use clone
    program.deny_bits("clone", 0, _NEW_NAMESPACES)
    program.deny_values("ioctl", 1, _TERMINAL_INPUT)
    program.only("socketpair", 0, (_UNIX,), errno.EAFNOSUPPORT)
    program.deny(_NOBODYS_MEMORY, errno.ENOSYS)  # as in a kernel built without them: programs have another way then
    program.deny(_FILES_IN_MEMORY, errno.ENOSYS)
    _keep_rights(program)
    if own_namespaces:
        # the rest are the host's, whatever namespace one is in: the machine below a virtual one, the kernel's ciphers
        program.only("socket", 0, (_UNIX, _INET, _INET6, _NETLINK), errno.EAFNOSUPPORT)
        return program.finished()
    program.deny(("socket",), errno.EAFNOSUPPORT)
    program.only("socketpair", 1, (_STREAM, _PACKETS), errno.EPERM, mask=_KIND)
    program.deny(_QUEUES)
    program.deny(_ATTRIBUTES)
    program.deny(_SIGHTS)
    program.deny(_ATTRIBUTES_READ, errno.EOPNOTSUPP)  # as on a file system without them, which `ls` is used to
    program.only("utimensat", 1, (0,), errno.EPERM, wide=True)  # no path: of an open file
    for name in _OTHERS_LIMITS:
        program.only(name, 0, (0,), errno.EPERM)
    for name, whole_user in (("setpriority", 2), ("ioprio_set", 3)):
        program.deny_values(name, 0, (whole_user,))
        program.only(name, 1, (0,), errno.EPERM)
    return program.finished()


def _keep_rights(program: "_Program") -> None:
    """No program in a workspace that gives whoever starts it, outside, the rights of the user of commands."""
    program.deny(("openat2",), errno.ENOSYS)  # its mode lies in memory; libraries use the older ones
    for name, mode in _MODES:
        program.deny_bits(name, mode, _OTHERS_RIGHTS)
    for name, flags in _OPENS:
        program.deny_bits(name, flags + 1, _OTHERS_RIGHTS, only_with=(flags, _MAKES))


class _Program:
    """Blocks of instructions, each about one call; whatever none of them denies is allowed."""

    def __init__(self, machine: Machine) -> None:
        self._numbers = machine.numbers
        self._code = [
            _op(_LOAD, _AUDIT),
            _op(_EQUAL, machine.audit, 1, 0),
            _refuse(errno.ENOSYS),  # a call of another machine's kind, for instance of 32 bits
            _op(_LOAD, _NUMBER),
        ]
        if machine.beyond:
            self._code += [_op(_AT_LEAST, machine.beyond, 0, 1), _refuse(errno.ENOSYS)]

    def deny(self, names: Sequence[str], problem: int = errno.EPERM) -> None:
        for name in names:
            self._block(name, [_refuse(problem)])

    def deny_bits(self, name: str, argument: int, bits: int, only_with: tuple[int, int] | None = None) -> None:
        """Deny any of these bits; `only_with`: an argument and bits of it without which the other one means nothing."""
        block = [_load(argument), _op(_ANY_BIT, bits, 0, 1), _refuse(errno.EPERM)]
        if only_with is not None:
            other, needed = only_with
            block = [_load(other), _op(_ANY_BIT, needed, 0, len(block)), *block]
        self._block(name, block)

    def deny_values(self, name: str, argument: int, values: Sequence[int]) -> None:
        block = [_load(argument)]
        for value in values:
            block += [_op(_EQUAL, value, 0, 1), _refuse(errno.EPERM)]
        self._block(name, block)

    def only(
        self,
        name: str,
        argument: int,
        values: Sequence[int],
        problem: int,
        *,
        mask: int = 0xFFFF_FFFF,
        wide: bool = False,
    ) -> None:
        """Deny all but these values; `wide`: the upper half of the argument must be 0."""
        block = [_load(argument), _op(_MASK, mask)]
        block += [_op(_EQUAL, value, len(values) - at, 0) for at, value in enumerate(values)]
        block.append(_refuse(problem))
        if wide:
            block += [_load(argument, upper=True), _op(_EQUAL, 0, 1, 0), _refuse(problem)]
        self._block(name, block)

    def finished(self) -> bytes:
        return b"".join([*self._code, _op(_RETURN, _ALLOW)])

    def _block(self, name: str, block: list[bytes]) -> None:
        number = self._numbers.get(name)
        if number is None:
            return
        whole = [*block, _op(_LOAD, _NUMBER)]  # a block may have loaded an argument
        self._code += [_op(_EQUAL, number, 0, len(whole)), *whole]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(argument: int, *, upper: bool = False) -> bytes:
    return _op(_LOAD, _FIRST_ARGUMENT + 8 * argument + 4 * upper)  # both machines store the lower half first


def _refuse(problem: int) -> bytes:
    return _op(_RETURN, _ERRNO | problem)

"""Numbers of the system calls that are kept from commands, for the two machines that the service is run on.

From the tables of Linux 6.18. Knows no policy.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

# name: (x86_64, aarch64); None where the machine has no such call
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chmod": (90, None),
    "chown": (92, None), "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "clone": (56, 220), "clone3": (435, 435), "creat": (85, None), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchownat": (260, 54), "file_getattr": (468, 468), "file_setattr": (469, 469), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "futimesat": (261, None),
    "getxattr": (191, 8), "getxattrat": (464, 464), "init_module": (175, 105), "inotify_add_watch": (254, 27),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29),
    "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "lchown": (94, None),
    "lgetxattr": (192, 9), "listmount": (458, 458), "listxattr": (194, 11), "listxattrat": (465, 465),
    "llistxattr": (195, 12), "lookup_dcookie": (212, 18), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "mknod": (133, None),
    "mknodat": (259, 33), "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_getsetattr": (245, 185), "mq_notify": (244, 184),
    "mq_open": (240, 180), "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182), "mq_unlink": (241, 181),
    "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188), "msgsnd": (69, 189), "name_to_handle_at": (303, 264),
    "open": (2, None), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "openat": (257, 56), "openat2": (437, 437), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "prlimit64": (302, 261), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "removexattr": (197, 14), "removexattrat": (466, 466),
    "request_key": (249, 218), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semctl": (66, 191), "semget": (64, 190),
    "semop": (65, 193), "semtimedop": (220, 192), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "setpriority": (141, 140), "settimeofday": (164, 170), "setxattr": (188, 5),
    "setxattrat": (463, 463), "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194), "socket": (41, 198),
    "socketpair": (53, 199), "statmount": (457, 457), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "utime": (132, None), "utimensat": (280, 88),
    "utimes": (235, None), "vhangup": (153, 58),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How a filter tells calls apart: the audit code of the machine, and the numbers of its calls. From `beyond` on
    numbers belong to a second table, which is not judged but closed; 0: there is none."""

    audit: int
    numbers: Mapping[str, int]
    beyond: int = 0


def machine_of(name: str) -> Machine | None:
    """The machine of a name as `uname -m` says it; None for one whose numbers are not known."""
    if name == "x86_64":
        return Machine(audit=0xC000003E, numbers=_column(0), beyond=0x4000_0000)
    if name in ("aarch64", "arm64"):
        return Machine(audit=0xC00000B7, numbers=_column(1))
    return None


def this_machine() -> Machine | None:
    """The one that the service runs on."""
    return machine_of(platform.machine())


def _column(index: int) -> dict[str, int]:
    return {name: number for name, numbers in _NUMBERS.items() if (number := numbers[index]) is not None}

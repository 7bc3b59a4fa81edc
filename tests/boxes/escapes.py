"""The attempts to break out: commands that say `ESCAPED`, show the secret, or leave a mark outside on success."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.boxes.outside import LIBC, SECRET, Outside, python


class Without(Enum):
    """How an attempt succeeds when no box holds it: at level `none`; as an ordinary child; as a child that is root."""

    LEVEL_NONE = 1
    CHILD = 2
    ROOT = 3


@dataclass(frozen=True, slots=True)
class Escape:
    """An attempt. `mark`: what has changed outside when it succeeded. `led`: by what the server's environment names as
    the startup file of shells. `reads`: files of the machine of which one must be there for it to succeed."""

    command: str
    without: Without = Without.LEVEL_NONE
    mark: Callable[[Outside], bool] | None = None
    led: bool = False
    reads: tuple[str, ...] = ()

    def succeeded(self, world: Outside, said: str) -> bool:
        return "ESCAPED" in said or SECRET in said or (self.mark is not None and self.mark(world))


def _exists(name: str) -> Callable[[Outside], bool]:
    return lambda world: (world.folder / name).exists()


def _came(name: str) -> Callable[[Outside], bool]:
    def came(world: Outside) -> bool:
        listener = getattr(world, name)
        try:
            if name in ("udp", "datagram"):
                return bool(listener.recv(100))
            listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    return came


def _through_fifo(world: Outside) -> bool:
    try:
        return bool(os.read(world.fifo, 100))
    except BlockingIOError:
        return False


def _nice(world: Outside) -> bool:
    return os.getpriority(os.PRIO_PROCESS, world.decoy.pid) != os.getpriority(os.PRIO_PROCESS, 0)


def _limited(world: Outside) -> bool:
    limits = Path(f"/proc/{world.decoy.pid}/limits").read_text().splitlines()
    return any(line.startswith("Max open files") and line.split()[3] == "7" for line in limits)


def _closed(world: Outside) -> bool:
    return (world.out / "own").stat().st_mode & 0o777 == 0


def _aged(world: Outside) -> bool:
    return (world.out / "own").stat().st_mtime < 2_000_000


def _raised(world: Outside) -> bool:
    getval = 12
    return int(LIBC.semctl(world.semaphore, 0, getval, 0)) == 7


def _has_rights(name: str) -> Callable[[Outside], bool]:
    def has(world: Outside) -> bool:
        made = world.workspace / name
        return made.exists() and bool(made.stat().st_mode & 0o6000)

    return has


_SYSCALL = "say(call({0}) >= 0)"
_MANY_FILES = python("os.mkdir('many')\nfor n in range(60_000): os.mknod('many/%d' % n)\ntime.sleep(1); say(1)")
_ROOT = Without.ROOT
_CHILD = Without.CHILD

ESCAPES = {
    # files
    "read a file outside": Escape("cat @OUT@/canary"),
    "read a file of root": Escape("cat @FOLDER@/private", _ROOT),
    "read a file of another user": Escape("cat @FOLDER@/strange", _ROOT),
    "read the passwords": Escape("head -c1 /etc/shadow >/dev/null && echo ESCAPED", _ROOT),
    "read another workspace": Escape("cat @FOLDER@/other/note"),
    "read by dots": Escape("cat ../outside/canary"),
    "read through a link": Escape("ln -s @OUT@/canary link; cat link"),
    "read through a hard link": Escape("ln @OUT@/own hard && cat hard"),
    "read through a link to the root of a process": Escape("cat /proc/@DECOY@/root/@OUT@/canary"),
    "read by moving a file in": Escape("mv @OUT@/movable here && cat here"),
    "read by a race of links": Escape(
        "mkdir a; echo x > a/canary; (while :; do ln -sfn @OUT@ b; ln -sfn a b; done) & "
        "for i in {1..300}; do cat b/canary; done; kill %1"
    ),
    "list a directory outside": Escape("ls @OUT@ | grep -q canary && echo ESCAPED"),
    "write a file outside": Escape("echo x > @OUT@/written", mark=_exists("outside/written")),
    "write through a link": Escape("ln -s @OUT@ way; echo x > way/written", mark=_exists("outside/written")),
    "write into another workspace": Escape("echo x > @FOLDER@/other/written", mark=_exists("other/written")),
    "write into the temporary directory of all": Escape(
        "touch /tmp/@DECOY@.canary", mark=lambda world: _taken(f"/tmp/{world.decoy.pid}.canary")
    ),
    "write the system tree": Escape("exec 3>>/usr/bin/env && echo ESCAPED", _ROOT),
    "remove a file outside": Escape("rm -f @OUT@/own", mark=lambda world: not (world.out / "own").exists()),
    "truncate a file outside": Escape("truncate -s0 @OUT@/own", mark=lambda world: not (world.out / "own").read_text()),
    "change the mode of a file outside": Escape("chmod 000 @OUT@/own", mark=_closed),
    "change the times of a file outside": Escape("touch -d @1000000 @OUT@/own", mark=_aged),
    "read what is written beside a file outside": Escape(python("print(os.getxattr('@OUT@/canary', 'user.note'))")),
    "watch a directory outside": Escape(
        python("say(libc.inotify_add_watch(libc.inotify_init(), b'@OUT@', 0xfff) >= 0)")
    ),
    "make a program that runs as its user": Escape(
        python("at = os.open('given', os.O_CREAT | os.O_RDWR, 0o755); os.fchmod(at, 0o6755)"),
        mark=_has_rights("given"),
    ),
    "make it at once": Escape(
        python("os.umask(0); os.open('born', os.O_CREAT | os.O_RDWR, 0o4755)"), mark=_has_rights("born")
    ),
    "write into a pipe outside": Escape("echo x 1<> @OUT@/fifo", mark=_through_fifo),
    "use an open file of the server": Escape(
        python("for n in range(3, 200):\n try: print(os.pread(n, 100, 0))\n except OSError: pass"), _CHILD
    ),
    # sockets
    "open a TCP connection": Escape("echo x > /dev/tcp/127.0.0.1/@TCP@", mark=_came("tcp")),
    "send a UDP packet": Escape("echo x > /dev/udp/127.0.0.1/@UDP@", mark=_came("udp")),
    "connect to an abstract socket": Escape(
        python("socket.socket(socket.AF_UNIX).connect('\\0@ABSTRACT@')"), mark=_came("abstract")
    ),
    "connect to a socket in the file tree": Escape(
        python("socket.socket(socket.AF_UNIX).connect('@OUT@/stream')"), mark=_came("stream")
    ),
    "send to a socket in the file tree from a pair": Escape(
        python("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '@OUT@/datagram')"),
        mark=_came("datagram"),
    ),
    "send to a socket in the file tree from a raw pair": Escape(
        python("socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'x', '@OUT@/datagram')"),
        mark=_came("datagram"),
    ),
    "read a queue of messages": Escape(
        python("m = ctypes.create_string_buffer(64); libc.msgrcv(@QUEUE@, m, 32, 0, 0o4000); print(m.raw[8:40])")
    ),
    "set a semaphore": Escape(python("libc.semctl(@SEMAPHORE@, 0, 16, 7)"), mark=_raised),
    "have a socket to the machine below": Escape(python("socket.socket(40, socket.SOCK_STREAM); say(1)")),
    "have a raw socket": Escape(python("socket.socket(socket.AF_PACKET, socket.SOCK_RAW); say(1)"), _ROOT),
    # other processes
    "read the environment of a process": Escape("cat /proc/@DECOY@/environ"),
    "read the environment of the first process": Escape(
        "grep -q . /proc/1/environ && echo ESCAPED", _ROOT, reads=("/proc/1/environ",)
    ),
    "read the environment of the server": Escape("grep -q . /proc/@SERVER@/environ && echo ESCAPED", _ROOT),
    "reach the program of the server": Escape("readlink /proc/@SERVER@/exe && echo ESCAPED", _ROOT),
    "kill a process": Escape("kill -9 @DECOY@; sleep 0.1", mark=lambda world: world.decoy.poll() is not None),
    "trace a process": Escape(python(_SYSCALL.format("@NR_ptrace@, 0x4206, @DECOY@, 0, 0"))),
    "read the memory of a process": Escape(
        python(
            "at = int(open('/proc/@DECOY@/maps').readline().split('-')[0], 16)\n"
            "buffer = ctypes.create_string_buffer(16)\n"
            "class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
            "here, there = Vec(ctypes.addressof(buffer), 16), Vec(at, 16)\n"
            "say(call(@NR_process_vm_readv@, @DECOY@, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 16)"
        )
    ),
    "compare with a process": Escape(python(_SYSCALL.format("@NR_kcmp@, os.getpid(), @DECOY@, 2, 0, 0"))),
    "take a file from a process": Escape(python(_SYSCALL.format("@NR_pidfd_getfd@, os.pidfd_open(@DECOY@), 0, 0"))),
    "limit a process": Escape("prlimit --pid @DECOY@ --nofile=7:7", mark=_limited),
    "slow a process down": Escape("renice -n 7 -p @DECOY@", mark=_nice),
    "make way for a process that is unlike others": Escape(
        python("say(call(@NR_sched_setaffinity@, @DECOY@, 8, ctypes.byref(ctypes.c_ulong(1))) >= 0)")
    ),
    # privileges
    "use a program of root": Escape('test "$(./whoami -u)" = 0 && echo ESCAPED', _CHILD),
    "have new privileges": Escape("grep -q 'NoNewPrivs:.0' /proc/self/status && echo ESCAPED", _CHILD),
    "make a user namespace": Escape("unshare -U true && echo ESCAPED"),
    "mount in a user namespace": Escape("unshare -Urm mount -t tmpfs x /mnt && echo ESCAPED"),
    "mount": Escape("unshare -m mount -t tmpfs x /mnt && echo ESCAPED", _ROOT),
    "mount by handles": Escape(python(_SYSCALL.format("@NR_open_tree@, -100, ctypes.c_char_p(b'/'), 1, 0, 0")), _ROOT),
    "change the root": Escape(python("os.chroot('/usr'); say(1)"), _ROOT),
    "enter a namespace": Escape("{ nsenter -t 1 -m true || nsenter -t @DECOY@ -m true; } && echo ESCAPED", _ROOT),
    "make a device": Escape("mknod device c 1 3 && echo ESCAPED", _ROOT),
    "open a device": Escape("exec 3</dev/kmsg && echo ESCAPED", _ROOT),
    "open a disk or the memory": Escape(
        "for one in /dev/mem /dev/vda /dev/sda /dev/nvme0n1; do head -c1 $one >/dev/null && echo ESCAPED; done", _ROOT,
        reads=("/dev/mem", "/dev/vda", "/dev/sda", "/dev/nvme0n1")
    ),
    "open a file by its number": Escape(
        python(
            "h = ctypes.create_string_buffer(136); ctypes.c_uint.from_buffer(h).value = 128; m = ctypes.c_int()\n"
            "call(@NR_name_to_handle_at@, -100, ctypes.c_char_p(b'@OUT@/canary'), h, ctypes.byref(m), 0)\n"
            "at = os.open('.', os.O_RDONLY)\n"
            "print(os.read(call(@NR_open_by_handle_at@, at, h, 0), 100))"
        ),
        _ROOT,
    ),
    "set what the kernel runs at a crash": Escape("exec 3>>/proc/sys/kernel/core_pattern && echo ESCAPED", _ROOT),
    "write a setting of the kernel": Escape("exec 3>>/sys/kernel/uevent_seqnum || exec 3>>/sys/power/state; "
                                            "test -e /proc/self/fd/3 && echo ESCAPED", _ROOT),
    # the kernel's own doors
    "type into a terminal": Escape(
        python("import fcntl, pty; m, s = pty.openpty(); fcntl.ioctl(s, 0x5412, b'x'); say(1)"), _ROOT
    ),
    "load a program into the kernel": Escape(
        python("a = (ctypes.c_uint * 32)(2, 4, 4, 1)\n" + _SYSCALL.format("@NR_bpf@, 0, ctypes.byref(a), 128")), _ROOT
    ),
    "use the keys of the kernel": Escape(python(_SYSCALL.format("@NR_keyctl@, 0, -3, 1, 0, 0"))),
    "have a ring that no filter sees": Escape(
        python("a = (ctypes.c_ubyte * 120)()\n" + _SYSCALL.format("@NR_io_uring_setup@, 1, ctypes.byref(a)"))
    ),
    "handle page faults": Escape(python(_SYSCALL.format("@NR_userfaultfd@, 0")), _ROOT),
    "count what the processor does": Escape(
        python(
            "a = (ctypes.c_uint * 32)(1, 128)\n"
            + _SYSCALL.format("@NR_perf_event_open@, ctypes.byref(a), 0, -1, -1, 0")
        ),
        _ROOT,
    ),
    # what is inherited
    "read a secret of the server's environment": Escape("echo $SERVICE_TOKEN", _CHILD),
    "be led by the server's environment": Escape("true", _CHILD, led=True),
    # resources
    "start 200 processes": Escape(
        python(
            "made = []\ntry:\n for _ in range(200):\n  n = os.fork()\n  if not n: signal.pause()\n  made.append(n)\n"
            "except OSError: pass\nsay(len(made) == 200)\nfor n in made: os.kill(n, 9)"
        ),
        _CHILD,
    ),
    "take 300 MB in one process": Escape(python("x = bytearray(300 << 20); say(1)"), _CHILD),
    "take 400 MB in five processes": Escape(
        python(
            "for _ in range(4):\n if not os.fork(): break\nx = b'x' * (80 << 20); time.sleep(1.2); say(1)"
        ),
        _CHILD,
    ),
    "take 400 MB of shared memory": Escape(
        python("m = mmap.mmap(-1, 400 << 20)\nfor at in range(0, 400 << 20, 4096): m[at] = 1\ntime.sleep(1); say(1)"),
        _CHILD,
    ),
    "take 300 MB of files in memory": Escape(
        python(
            "held = [os.memfd_create('x') for _ in range(10)]\n"
            "for one in held:\n for _ in range(30): os.write(one, b'x' * (1 << 20))\n"
            "time.sleep(1); say(1)"
        ),
        _CHILD,
    ),
    "take 300 MB of memory that no process holds": Escape(
        python(
            "libc.shmat.restype = ctypes.c_void_p\nmade = []\n"
            "for _ in range(10):\n"
            " made.append(libc.shmget(0, 30 << 20, 0o1600))\n"
            " at = ctypes.c_void_p(libc.shmat(made[-1], None, 0))\n"
            " ctypes.memset(at, 1, 30 << 20); libc.shmdt(at)\n"
            "time.sleep(1); say(1)\nfor one in made: libc.shmctl(one, 0, None)"
        ),
        _CHILD,
    ),
    "take 240 MB of tables of pages": Escape(
        python(
            "size = 120 << 30\n"
            "m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)\n"
            "for at in range(0, size, 2 << 20): m[at]\n"
            "time.sleep(1); say(1)"
        ),
        _CHILD,
    ),
    "take 300 MB in sockets and pipes": Escape(
        python(
            "def fill():\n"
            " held = []\n"
            " try:\n"
            "  while True: held.append([s.detach() for s in socket.socketpair()]); held.append(os.pipe())\n"
            " except OSError: pass\n"
            " for one in held:\n"
            "  try: os.set_blocking(one[1], False); [os.write(one[1], b'x' * 4096) for _ in range(99)]\n"
            "  except OSError: pass\n"
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (250, 250))\n"
            "for _ in range(24):\n if not os.fork(): fill(); time.sleep(9); os._exit(0)\n"
            "time.sleep(4); say(1); os.killpg(0, 9)"
        ),
        _CHILD,
    ),
    "fill the directory of devices": Escape(
        "head -c 30M /dev/zero > /dev/@DECOY@.canary && echo ESCAPED; rm -f /dev/@DECOY@.canary", _ROOT
    ),
    "fill the directory of shared memory": Escape(
        "head -c 60M /dev/zero > /dev/shm/@DECOY@; test $(stat -c %s /dev/shm/@DECOY@) = 62914560 && echo ESCAPED; "
        "rm -f /dev/shm/@DECOY@",
        _CHILD,
    ),
    "make 60,000 files": Escape(_MANY_FILES, _CHILD),
    "make 60,000 files in the temporary directory": Escape("cd ${TMPDIR:-.}; " + _MANY_FILES, _CHILD),
    "write a file of 60 MB": Escape(
        "head -c 60M /dev/zero > big; test $(stat -c %s big) = 62914560 && echo ESCAPED", _CHILD
    ),
    "fill the temporary directory": Escape(
        "cd ${TMPDIR:-.}; head -c 60M /dev/zero > big; test $(stat -c %s big) = 62914560 && echo ESCAPED; rm big",
        _CHILD,
    ),
    "fill the disk": Escape(
        "for i in {1..12}; do head -c 20M /dev/zero > big$i; done; sync -f .; sleep 1; echo ESCAPED", _CHILD
    ),
}  # fmt: skip


def _taken(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True

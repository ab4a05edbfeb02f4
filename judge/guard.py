"""Confines the process that calls guard(), before this process runs a stranger's code. docs/judge.md gives the reasons.

The judge uses this module through judge/sandbox.py. The system calls for which Python has no function are made here.
The module needs Linux and the standard library alone. The process that calls guard() must lead a process group, so that
the judge can stop it with its descendants. It must have one thread: the kernel keeps capabilities, Landlock rules and
seccomp filters separately for each thread, and only later threads and children inherit them.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import termios

LIBC = ctypes.CDLL(None, use_errno=True)

# ==== 1. System calls by name ====

# Each entry is the name of a system call, its number on x86_64 and its number on aarch64.
NUMBERS = """
    bpf 321 280 clone 56 220 clone3 435 435 fcntl 72 25 io_uring_enter 426 426 io_uring_register 427 427
    io_uring_setup 425 425 ioctl 16 29 ioprio_set 251 30 kcmp 312 272 kill 62 129 migrate_pages 256 238
    move_pages 279 239 mq_notify 244 184 open_by_handle_at 304 265 perf_event_open 298 241 pidfd_getfd 438 438
    pidfd_open 434 434 pidfd_send_signal 424 424 prctl 157 167 prlimit64 302 261 process_madvise 440 440
    process_mrelease 448 448 process_vm_readv 310 270 process_vm_writev 311 271 ptrace 101 117
    rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240 sched_setaffinity 203 122 sched_setattr 314 274
    sched_setparam 142 118 sched_setscheduler 144 119 seccomp 317 277 setns 308 268 setpgid 109 154
    setpriority 141 140 setsid 112 157 setsockopt 54 208 tgkill 234 131 timer_create 222 107 tkill 200 130
    unshare 272 97 userfaultfd 323 282
"""
# ARCHITECTURE is the number that the headers of Linux give to this machine's architecture (AUDIT_ARCH). COLUMN selects
# the architecture's system call numbers in NUMBERS. Both are 0 on an architecture that NUMBERS does not cover.
ARCHITECTURE, COLUMN = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}.get(os.uname().machine, (0, 0))
# CALLS has this machine's numbers by name. On an architecture that NUMBERS does not cover, it is empty, and no process
# gets a filter.
CALLS = dict(zip(NUMBERS.split()[::3], map(int, NUMBERS.split()[COLUMN::3]), strict=True)) if COLUMN else {}
# These numbers are the same on x86_64, aarch64 and most other architectures.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446

PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 3, 4, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522


def is_dumpable():
    return bool(LIBC.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))


def set_dumpable(dumpable):
    """Opens or closes this process's memory and descriptors to processes without capabilities."""
    LIBC.prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def stop_thread(process, thread):
    """Sends SIGSTOP to one thread. Returns False if the thread is gone.

    The function makes the system call by number, because glibc has tgkill only from 2.30 on. On an architecture that
    NUMBERS does not cover, it does nothing and returns True.
    """
    return not CALLS or LIBC.syscall(CALLS["tgkill"], process, thread, signal.SIGSTOP) == 0


# ==== 2. Seccomp: some system calls are refused or limited ====

# A filter sees the number and the arguments of a system call, but cannot follow pointers. The calls of LIMITS take the
# id of a process. The filter accepts 0, which names the caller, and the id of the process that installs the filter. It
# refuses all other ids, because they may belong to another run. So descendants can name themselves by 0 only.
LIMITS = "prlimit64 sched_setattr sched_setscheduler sched_setparam move_pages migrate_pages"
# These calls are refused altogether. An io_uring, for example, goes on working while its process is stopped.
REFUSED = """ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd pidfd_send_signal process_madvise
    process_mrelease unshare ioprio_set perf_event_open bpf userfaultfd timer_create mq_notify io_uring_setup
    io_uring_enter io_uring_register setns open_by_handle_at"""
# These are flags of clone. CLONE_NEW has all flags that make a namespace. CLONE_PARENT makes the new process a child of
# the caller's parent, which may be the judge. CLONE_PTRACE makes a tracer trace the new process too. CLONE_SIGNAL masks
# the number of the signal that the parent gets when the new process ends.
CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
CLONE_PARENT, CLONE_PTRACE, CLONE_SIGNAL = 0x00008000, 0x00002000, 0xFF
# These are commands of fcntl. F_SETOWN and F_SETOWN_EX choose a process that gets signals. F_SETSIG chooses the signal,
# which could be SIGCONT. A SIGCONT would continue a process that the judge has stopped.
F_SETOWN_EX = 15
SIGNALLING_COMMANDS = (fcntl.F_SETOWN, fcntl.F_SETSIG, F_SETOWN_EX)
# These are requests of ioctl. FIOSETOWN and SIOCSPGRP choose a process that gets signals. TIOCSTI puts input into a
# terminal, and TCXONC stops the terminal's output. The last three of TERMINAL_REQUESTS can give a process a terminal or
# take it away. A process that loses its terminal gets SIGCONT.
FIOSETOWN, SIOCSPGRP, TIOCSPTLCK = 0x8901, 0x8902, 0x40045431
TERMINAL_REQUESTS = (termios.TIOCSTI, termios.TCXONC, termios.TIOCSCTTY, termios.TIOCNOTTY, TIOCSPTLCK)
SOL_SOCKET, SO_LINGER = 1, 13  # a socket with SO_LINGER that is sent to the judge could make it wait in close()

SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4  # leaves the processor's speculation on, which a filter could otherwise switch off
SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
# An instruction of the filter is (opcode, skip if true, skip if false, k). The two skips are numbers of instructions,
# and k is a constant. These are the opcodes.
LOAD, MASK, IS_EQUAL, IS_AT_LEAST, HAS_BIT_OF, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
X32_NUMBERS = 1 << 30  # x86_64 has a second set of calls from this number on


def filter_program(own_pid, pid_limit):
    """Returns the seccomp filter as a list of instructions.

    The calls that send signals may name process ids from `own_pid` to below `pid_limit`. Descendants have such ids.
    """
    allow = (RETURN, 0, 0, SECCOMP_RET_ALLOW)
    refuse, missing = ((RETURN, 0, 0, SECCOMP_RET_ERRNO | error) for error in (errno.EPERM, errno.ENOSYS))
    in_vain = (RETURN, 0, 0, SECCOMP_RET_ERRNO)  # the call does nothing and reports success
    number, architecture, first, second, third = ((LOAD, 0, 0, offset) for offset in (0, 4, 16, 24, 32))
    # A signal to a negative process id goes to a process group, or to all processes if the id is -1. Honest code starts
    # a program in a session of its own, and sends a signal to its group later. Here this group never exists, because
    # the filter makes setsid and setpgid do nothing. So the signal fails with ESRCH, as if the group's processes had
    # all ended.
    no_group = (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.ESRCH)
    descendant = [(IS_AT_LEAST, 0, 1, 1 << 31), no_group, (IS_AT_LEAST, 0, 1, pid_limit), refuse]
    descendant += [(IS_AT_LEAST, 0, 1, own_pid), allow, refuse]
    # This accepts 0, which names the calling process, and the id of this process. The ids of descendants cannot be
    # listed, because they are not known yet.
    caller = [(IS_EQUAL, 1, 0, 0), (IS_EQUAL, 0, 1, own_pid), allow]

    def unless(argument, *values):
        return [argument, *(instruction for value in values for instruction in ((IS_EQUAL, 0, 1, value), refuse))]

    bodies = {
        "kill tkill rt_sigqueueinfo": [*unless(second, signal.SIGCONT), first, *descendant],
        "tgkill rt_tgsigqueueinfo": [*unless(third, signal.SIGCONT), first, *descendant],
        LIMITS: [first, *caller, refuse],
        "setpriority": [first, (IS_EQUAL, 1, 0, os.PRIO_PROCESS), refuse, second, *caller, refuse],
        # A call that names an id other than 0 and this process's own does nothing and reports success. It is not
        # refused, because OpenMP with OMP_PROC_BIND pins its threads by their ids, and ends the process if that fails.
        "sched_setaffinity": [first, *caller, in_vain],
        "fcntl": [*unless(second, *SIGNALLING_COMMANDS), allow],
        "ioctl": [*unless(second, FIOSETOWN, SIOCSPGRP, *TERMINAL_REQUESTS), allow],
        "clone": [
            first,
            *[(HAS_BIT_OF, 0, 1, CLONE_NEW | CLONE_PARENT | CLONE_PTRACE), refuse],
            # A clone may ask that its parent gets SIGCHLD, or no signal, when the new process ends. If it asks for any
            # other signal, it is refused.
            *[(MASK, 0, 0, CLONE_SIGNAL), (IS_EQUAL, 0, 1, 0), allow, (IS_EQUAL, 0, 1, signal.SIGCHLD), allow, refuse],
        ],
        "setsockopt": [second, (IS_EQUAL, 1, 0, SOL_SOCKET), allow, *unless(third, SO_LINGER), allow],
        "prctl": [first, (IS_EQUAL, 0, 1, PR_SET_PDEATHSIG), in_vain, allow],
        "setsid setpgid": [in_vain],
        "clone3": [missing],
        REFUSED: [refuse],
    }
    # Calls by another architecture's interface and by x32 are refused. CALLS does not have the numbers of such calls,
    # so the filter would not recognize them.
    instructions = [
        architecture,
        (IS_EQUAL, 1, 0, ARCHITECTURE),
        refuse,
        number,
        (IS_AT_LEAST, 0, 1, X32_NUMBERS),
        refuse,
    ]
    for names, body in bodies.items():
        for name in names.split():
            instructions += [(IS_EQUAL, 0, len(body), CALLS[name]), *body]
    return [*instructions, allow]


def filter_calls(judge_pid, other_pids):
    """Filters the system calls of this process. Returns whether that succeeds; guard() explains the arguments."""
    if not CALLS:
        return False
    # Linux counts process ids up, and begins anew after the largest. If the judge's id or one of `other_pids` is higher
    # than this process's id, the count has begun anew in between. Signals may then reach only ids below that id.
    pid_limit = min((pid for pid in (judge_pid, *other_pids) if pid > os.getpid()), default=1 << 31)
    words = [code | yes << 16 | no << 24 | k << 32 for code, yes, no, k in filter_program(os.getpid(), pid_limit)]
    instructions = (ctypes.c_uint64 * len(words))(*words)
    program = (ctypes.c_uint64 * 2)(len(words), ctypes.addressof(instructions))
    return LIBC.syscall(CALLS["seccomp"], SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, program) == 0


# ==== 3. Landlock: most files cannot be written ====

LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH = 1, 1
WRITE_FILE = 1 << 1
CHANGE_FOLDER = sum(1 << bit for bit in range(4, 14))  # the rights to make, remove and move files of all kinds
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
# With these, signals and connections to abstract Unix sockets reach only this process and its descendants.
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2


def restrict_files(builds):
    """Restricts by Landlock where this process can write. Returns Landlock's version, or 0 if nothing is restricted.

    The process can still write in the temporary folder, in the folder `builds`, in /dev/shm, and to the devices that a
    solution needs. With a GPU it can also write in /proc/self/task.
    """
    version = LIBC.syscall(LANDLOCK_CREATE_RULESET, 0, 0, LANDLOCK_CREATE_RULESET_VERSION)
    if version < 2:  # no Landlock, or its first version, with which builds could not move files between folders
        return 0
    rights, scope = WRITE_FILE | CHANGE_FOLDER, 0
    if version >= 3:
        rights |= TRUNCATE
    if version >= 5:
        rights |= IOCTL_DEV
    if version >= 6:
        scope = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL
    attributes = (ctypes.c_uint64 * 3)(rights, 0, scope)
    rules = LIBC.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.sizeof(attributes), 0)
    paths = [os.environ["TMPDIR"], builds, "/dev/shm", "/dev/null", "/dev/zero", "/dev/dri"]
    if gpus := [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia")]:
        paths += [*gpus, "/proc/self/task"]  # the GPU's driver names its threads there, and fails if it cannot
    for path in filter(os.path.exists, paths):
        handle = os.open(path, os.O_PATH)
        allowed = rights if os.path.isdir(path) else rights & (WRITE_FILE | TRUNCATE | IOCTL_DEV)
        rule = allowed.to_bytes(8, "little") + handle.to_bytes(4, "little")
        LIBC.syscall(LANDLOCK_ADD_RULE, rules, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        os.close(handle)
    restricted = LIBC.syscall(LANDLOCK_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return version if restricted else 0


# ==== 4. All restrictions together ====

# set_environment() removes these environment variables. Caches then lie in HOME, which it sets to a temporary folder.
CACHES = """XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME TORCH_HOME TORCHINDUCTOR_CACHE_DIR TRITON_HOME TRITON_CACHE_DIR
    TRITON_DUMP_DIR TRITON_OVERRIDE_DIR CCACHE_DIR"""


def set_environment(folder, builds):
    """Sets the environment so that caches lie in a home inside the temporary folder, and torch's builds in `builds`."""
    import site
    import tempfile  # both are imported here, so that the warden (see section 5), which runs this file, starts sooner

    home = os.path.join(folder, "home")
    os.makedirs(home, exist_ok=True)
    os.makedirs(builds, exist_ok=True)
    for name in CACHES.split():
        os.environ.pop(name, None)
    # HOME changes below, and Python finds the user's packages by HOME. PYTHONUSERBASE keeps their folder, so that a
    # Python that starts later still finds them.
    os.environ["PYTHONUSERBASE"] = site.getuserbase()
    # The GPU's driver has its cache in ~/.nv. The judge executes what lies there, so a solution must not write there.
    # The cache of this process lies in the temporary folder instead.
    os.environ["TMPDIR"] = os.environ["CUDA_CACHE_PATH"] = tempfile.tempdir = folder
    os.environ["HOME"] = home
    os.environ["TORCH_EXTENSIONS_DIR"] = builds


def guard(judge_pid, other_pids, folder, builds):
    """Gives up what no solution needs: capabilities, writing to most files, and reaching processes outside its group.

    `judge_pid` is the process id of the judge. `other_pids` has the ids of the warden (see section 5) and of the
    children that run already. `folder` becomes the temporary folder of this process. `builds` is the folder for torch's
    builds; None stands for a folder in `folder`.

    Returns a dict with the keys "capabilities", "landlock" and "seccomp". A value is true if the system provides that
    protection.
    """
    builds = builds or os.path.join(folder, "home", "builds")
    set_environment(folder, builds)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # if memory runs out, Linux ends this process before the judge
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    no_capabilities = (ctypes.c_uint32 * 6)()
    dropped = LIBC.capset((ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0), no_capabilities) == 0
    return {"capabilities": dropped, "landlock": restrict_files(builds), "seccomp": filter_calls(judge_pid, other_pids)}


# ==== 5. The warden: a process that ends the processes that a run leaves ====

REMOVE = 'exec 2>/dev/null; rm -rf "$0" || { chmod -R u+rwx "$0"; rm -rf "$0"; }'  # removes the folder $0, in a shell


def end_groups(folder):
    """Ends the process groups that standard input names, and removes their temporary folder.

    The function first reads standard input to its end. The end comes when the judge closes the pipe or has died.
    """
    set_dumpable(False)  # without Landlock, another process of the same user could otherwise write code into this one
    for group in sys.stdin.read().split():
        with contextlib.suppress(OSError):
            os.killpg(int(group), signal.SIGKILL)
    with contextlib.suppress(OSError):  # a limit may forbid to start a process; the folder then stays
        os.spawnlp(os.P_WAIT, "sh", "sh", "-c", REMOVE, folder)


if __name__ == "__main__":
    end_groups(sys.argv[1])

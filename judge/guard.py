"""What a process gives up before it runs a stranger's code. docs/judge.md says why.

The module needs Linux and the standard library alone. guard() is for a process that has one thread and leads a
process group. The kernel keeps capabilities, Landlock rules and seccomp filters for each thread. Later threads and
children inherit them.
"""

import contextlib
import ctypes
import hashlib
import os
import signal
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)

LEFT_OPEN = {  # what a process can still do on a system that lacks one of these
    "seccomp": "by signals and the like reach the judge's process and its clock",
    "landlock": "write to your files, and by /proc to memory of your processes",
    "capabilities": "do what yours allow",
}
# MACHINE has the column of this machine's numbers below, its AUDIT_ARCH, and the numbers of seccomp and tgkill.
MACHINE = {"x86_64": (0, 0xC000003E, 317, 234), "aarch64": (1, 0xC00000B7, 277, 131)}.get(os.uname().machine)
# Here and below, the name of a system call is followed by its numbers on x86_64 and aarch64. A filter sees these
# numbers and the arguments of calls, but not what pointers point to. The calls of LIMITS name a process by its id.
# The caller is 0 or its own id. Any other id may belong to another run's process.
LIMITS = """prlimit64 302 261 sched_setattr 314 274 sched_setscheduler 144 119 sched_setparam 142 118 move_pages 279 239
    migrate_pages 256 238"""
# These calls are refused altogether. An io_uring, for example, goes on working while its process is stopped.
REFUSED = """ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271 kcmp 312 272 pidfd_open 434 434
    pidfd_getfd 438 438 pidfd_send_signal 424 424 process_madvise 440 440 process_mrelease 448 448 unshare 272 97
    ioprio_set 251 30 perf_event_open 298 241 bpf 321 280 userfaultfd 323 282 timer_create 222 107 mq_notify 244 184
    io_uring_setup 425 425 io_uring_enter 426 426 io_uring_register 427 427 setns 308 268 open_by_handle_at 304 265"""
# These flags of clone are refused. CLONE_NEW* makes namespaces. CLONE_PARENT makes children of the judge.
# CLONE_PTRACE shares a tracer.
FLAGS = 0x7E02A000


def filter_program(own, beyond):
    """Returns the seccomp filter as a list of BPF instructions (code, jump if true, jump if false, k).

    Signals and similar calls may reach the process ids from `own` to below `beyond`. Descendants have these ids.
    """
    load, mask, equal, least, any_bit, end = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    allow, in_vain, refuse, missing = ((end, 0, 0, k) for k in (0x7FFF0000, 0x50000, 0x50000 + 1, 0x50000 + 38))
    # `in_vain` does nothing and reports success, `refuse` reports EPERM, and `missing` reports ENOSYS.
    first, second, third = ((load, 0, 0, at) for at in (16, 24, 32))  # loads an argument of the call
    descendant = [(least, 0, 1, beyond), refuse, (least, 0, 1, own), allow, refuse]
    caller = [(equal, 1, 0, 0), (equal, 0, 1, own), allow]  # 0 or its own id; the ids of descendants are not known yet
    no_exit_signal = [(equal, 0, 1, 0), allow]

    def unless(argument, *values):
        return [argument, *(word for value in values for word in ((equal, 0, 1, value), refuse))]

    bodies = {
        "kill 62 129 tkill 200 130 rt_sigqueueinfo 129 138": [*unless(second, signal.SIGCONT), first, *descendant],
        "tgkill 234 131 rt_tgsigqueueinfo 297 240": [*unless(third, signal.SIGCONT), first, *descendant],
        LIMITS: [first, *caller, refuse],
        "setpriority 141 140": [first, (equal, 1, 0, 0), refuse, second, *caller, refuse],
        # OpenMP pins its threads by their ids if OMP_PROC_BIND is set, and ends the process if that is refused
        "sched_setaffinity 203 122": [first, *caller, in_vain],
        "fcntl 72 25": [*unless(second, 8, 10, 15), allow],  # F_SETOWN, F_SETSIG, F_SETOWN_EX
        # FIOSETOWN, SIOCSPGRP, TIOCSTI; TCXONC stops a terminal; TIOCSCTTY, TIOCNOTTY and TIOCSPTLCK can take it away
        "ioctl 16 29": [*unless(second, 0x8901, 0x8902, 0x5412, 0x540A, 0x540E, 0x5422, 0x40045431), allow],
        "clone 56 220": [
            first,
            *[(any_bit, 0, 1, FLAGS), refuse],
            *[(mask, 0, 0, 0xFF), *no_exit_signal, (equal, 0, 1, signal.SIGCHLD), allow, refuse],
        ],
        "setsockopt 54 208": [second, (equal, 1, 0, 1), allow, *unless(third, 13), allow],  # SO_LINGER
        "prctl 157 167": [first, (equal, 0, 1, 1), in_vain, allow],  # PR_SET_PDEATHSIG
        "setsid 112 157 setpgid 109 154": [in_vain],
        "clone3 435 435": [missing],
        REFUSED: [refuse],
    }
    # Calls with the numbers of another machine are refused.
    words = [(load, 0, 0, 4), (equal, 1, 0, MACHINE[1]), refuse, (load, 0, 0, 0), (least, 0, 1, 1 << 30), refuse]
    for calls, body in bodies.items():
        for number in calls.split()[1 + MACHINE[0] :: 3]:
            words += [(equal, 0, len(body), int(number)), *body]
    return [*words, allow]


def restrict_files(builds):
    """Restricts by Landlock where this process can write.

    Returns Landlock's version, or 0 if the system has none that serves.

    What remains is the temporary folder, the folder `builds`, and the devices that a solution needs.
    """
    version = LIBC.syscall(444, 0, 0, 1)
    if version < 2:
        return 0
    # Write, make, remove, rename; truncate; ioctl of devices.
    rights = 0x3FF2 | (version >= 3) << 14 | (version >= 5) << 15
    # Abstract Unix sockets and signals reach descendants only; older versions demand zero.
    scope = 3 if version >= 6 else 0
    rules = LIBC.syscall(444, (ctypes.c_uint64 * 3)(rights, 0, scope), 24, 0)
    gpus = [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia")]
    gpus += ["/proc/self/task"] * bool(gpus)  # the driver names its threads there, and does not start if it cannot
    for path in filter(
        os.path.exists, (os.environ["TMPDIR"], builds, "/dev/shm", "/dev/null", "/dev/zero", "/dev/dri", *gpus)
    ):
        handle = os.open(path, os.O_PATH)
        allowed = rights if os.path.isdir(path) else rights & 0xC002  # write, truncate, ioctl
        LIBC.syscall(445, rules, 1, allowed.to_bytes(8, "little") + handle.to_bytes(4, "little"), 0)
        os.close(handle)
    restricted = LIBC.syscall(446, rules, 0) == 0
    os.close(rules)
    return version if restricted else 0


def settle_in(folder, builds):
    """Sets the environment so that caches and settings go to a home in the temporary folder, and torch's builds to
    `builds`.
    """
    import site
    import tempfile  # imported here, so that the process that ends groups starts sooner

    home = os.path.join(folder, "home")
    os.makedirs(home, exist_ok=True)
    for name in (
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "TORCH_HOME",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_HOME",
    ):
        os.environ.pop(name, None)  # the defaults are folders in the home
    for name in ("TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR", "CCACHE_DIR"):
        os.environ.pop(name, None)
    os.environ["PYTHONUSERBASE"] = site.getuserbase()  # a Python that starts later finds the same packages
    # ~/.nv is the cache of the GPU's driver. The judge uses it, too, and executes what lies there, so a solution gets
    # another one.
    os.environ["TMPDIR"] = os.environ["CUDA_CACHE_PATH"] = tempfile.tempdir = folder
    os.environ["HOME"] = home
    os.environ["TORCH_EXTENSIONS_DIR"] = builds


KEPT_BUILDS = 8  # the number of files whose builds are kept, and the number of builds that are copied for one file


def newest_first(paths):
    """Returns the paths that exist, those changed last first."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def folder_of_builds(text):
    """Returns a folder, beside torch's builds, for the builds of the file with this text.

    A run writes to no other build folder.

    Builds that the file has made elsewhere are copied, so that they need not be made again. Returns None for a file
    that builds nothing. It also returns None if the folder cannot be made, and builds are then kept for this run
    alone.
    """
    if "cpp_extension" not in text and "TORCH_EXTENSIONS_DIR" not in text:
        return None
    import shutil
    from pathlib import Path

    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(caches, "torch_extensions")).absolute()
    folder = root / f"judged_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for old in newest_first(root.glob("judged_*"))[KEPT_BUILDS:]:
            # 86400 s are a day; a run that is still going on may need a newer folder.
            if time.time() - old.stat().st_mtime > 86400.0:
                shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return None
    builds = [path for path in (*root.glob("*/"), *root.glob("py*_*/*/")) if not path.name.startswith("judged_")]
    named = [path for path in builds if is_named(path.name, text) and not (folder / path.name).exists()]
    for path in newest_first(named)[:KEPT_BUILDS]:
        copy = folder / path.name
        try:
            shutil.copytree(path, copy, symlinks=True)  # copies the times as well, because ninja compares them
        except (OSError, shutil.Error):  # an incomplete copy is removed
            shutil.rmtree(copy, ignore_errors=True)
    return str(folder)


def is_named(build, text):
    """Returns whether a text has the name of a build, or the name without a hash after the last underscore."""
    stem = build.rpartition("_")[0]
    return build in text or bool(stem) and f"{stem}_" in text


def guard(judge, others, folder, builds):
    """Gives up what no solution needs: capabilities, foreign files and foreign processes.

    `judge` is the process id of the judge, and `others` has the ids of its other processes. `folder` becomes the
    temporary folder of this process. `builds` is the folder for torch's builds; None stands for a folder in `folder`.

    Returns a dict with the keys of LEFT_OPEN. A value is true if the system provides that protection.
    """
    builds = builds or os.path.join(folder, "home", "builds")
    settle_in(folder, builds)
    os.makedirs(builds, exist_ok=True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # if memory runs out, Linux ends this process before the judge
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    dropped = LIBC.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
    landlock, seccomp = restrict_files(builds), False
    if MACHINE:
        # A judge's process with a higher id is older than this one, because the count of ids has begun anew.
        beyond = min((pid for pid in (judge, *others) if pid > os.getpid()), default=1 << 31)
        words = [code | yes << 16 | no << 24 | k << 32 for code, yes, no, k in filter_program(os.getpid(), beyond)]
        program = (ctypes.c_uint64 * 2)(len(words), ctypes.addressof(code := (ctypes.c_uint64 * len(words))(*words)))
        # 4 leaves the processor's speculation as it is.
        seccomp = LIBC.syscall(MACHINE[2], 1, 4, program) == 0 and bool(code)
    return {"capabilities": dropped, "landlock": landlock, "seccomp": seccomp}


def stop_thread(process, thread):
    """Sends SIGSTOP to one thread.

    Returns False if the thread is gone.

    It makes the system call by number, because glibc has tgkill only from 2.30 on. It does nothing on a machine
    without a number.
    """
    return not MACHINE or LIBC.syscall(MACHINE[3], process, thread, signal.SIGSTOP) == 0


def end_groups(folder):
    """Ends the process groups that standard input names, and removes their folder.

    It begins at the end of the input, which comes when no process can write to it any more.
    """
    # PR_SET_DUMPABLE: without Landlock, another process of the same user could otherwise write code into this one.
    LIBC.prctl(4, 0, 0, 0, 0)
    for group in sys.stdin.read().split():
        with contextlib.suppress(OSError):
            os.killpg(int(group), signal.SIGKILL)
    with contextlib.suppress(OSError):  # another process may be forbidden; that costs no verdict
        os.spawnlp(
            os.P_WAIT,
            "sh",
            "sh",
            "-c",
            'exec 2>/dev/null; rm -rf "$0" || { chmod -R u+rwx "$0"; rm -rf "$0"; }',
            folder,
        )


if __name__ == "__main__":
    end_groups(sys.argv[1])

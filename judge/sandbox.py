"""Runs strangers' code in confined processes, which the judge can stop, and whose memory it can read and write.

    with Sandbox() as sandbox:
        process = sandbox.start(program, spec, text, ...)   # it runs, and program calls Sandbox.enter() first of all
        process.stop()                                      # it stands still
        process.read(address, size)                         # returns a copy of a part of its memory
        process.resume()                                    # it runs again
        process.end()

judge/guard.py defines what a process gives up in Sandbox.enter(). Both modules need Linux and the standard library
only. The sandbox protects the judgement, not the user: a confined process can read the user's files and use the
network.
"""

import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from judge import guard

EXHAUSTED = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC)
# The time limit in seconds for stopping a process. Stopping has taken 5 s on a machine with two busy cores.
STOPPING = 20.0
ENDING = 10.0  # the time limit in seconds for the end of a process, which a driver may delay
MOST_BYTES = 1 << 30  # one system call reads or writes at most this many bytes
LEFT_OPEN = {  # the keys are protections, and a value says what a process can do on a system without this protection
    "seccomp": "by signals and the like reach the judge's process and its clock",
    "landlock": "write to your files, and by /proc to memory of your processes",
    "capabilities": "do what yours allow",
}


# ==== 1. Builds ====

# Each judged file that builds extensions has a folder for its builds. Only the 8 folders that were used last are kept
# longer than a day after their last use. Each run copies at most 8 of torch's other builds into the folder of its file,
# so that they need not be made again.
KEPT_BUILDS = 8
DAY = 86400.0  # in seconds


def newest_first(paths):
    """Returns the paths that exist, the most recently modified one first."""
    dated_paths = []
    for path in paths:
        with contextlib.suppress(OSError):
            dated_paths.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated_paths, reverse=True)]


def is_named(build, text):
    """Returns whether a text contains a build's name, or the part of it up to its last underscore.

    A file may append a hash, which its text does not contain, after this underscore.
    """
    stem = build.rpartition("_")[0]
    return build in text or bool(stem) and f"{stem}_" in text


def folder_of_builds(text):
    """Returns the folder for the builds of the file with this text, after making it in torch's folder of builds.

    A run builds in no other folder there. Builds in torch's folder whose names the text contains are copied, so that
    they need not be made again. The result is None if the text mentions neither cpp_extension nor TORCH_EXTENSIONS_DIR,
    or if the folder cannot be made. Builds are then kept for this run alone.
    """
    if "cpp_extension" not in text and "TORCH_EXTENSIONS_DIR" not in text:
        return None
    import shutil

    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(caches, "torch_extensions")).absolute()
    folder = root / f"judged_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for old in newest_first(root.glob("judged_*"))[KEPT_BUILDS:]:
            if time.time() - old.stat().st_mtime > DAY:  # a younger folder may belong to a run that is going on
                shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return None
    builds = [path for path in (*root.glob("*/"), *root.glob("py*_*/*/")) if not path.name.startswith("judged_")]
    named = [path for path in builds if is_named(path.name, text) and not (folder / path.name).exists()]
    for path in newest_first(named)[:KEPT_BUILDS]:
        copy = folder / path.name
        try:
            shutil.copytree(path, copy, symlinks=True)  # keeps the times of modification, because ninja compares them
        except (OSError, shutil.Error):  # an incomplete copy is removed
            shutil.rmtree(copy, ignore_errors=True)
    return str(folder)


# ==== 2. One process with its descendants ====


def kills_for_memory():
    """Returns how many processes the system has killed since boot because memory had run out, or 0 if it is unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/vmstat") as counters:
        return int(next(line for line in counters if line.startswith("oom_kill ")).split()[1])
    return 0


def schedule_of(thread):
    """Returns the processors on which a thread may run, its nice value and its policy, or None if it has ended."""
    with contextlib.suppress(OSError):  # the error means that the thread has ended
        affinity = sorted(os.sched_getaffinity(thread))
        return affinity, os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)


def halts(pid, thread):
    """Tells whether a thread is stopped or has ended, or will stop before it runs again.

    A thread that sleeps uninterruptibly in the kernel (state D), as in vfork, gets a SIGSTOP of its own, which takes
    effect when the thread wakes. The SIGSTOP of the process group is not enough, because another thread may receive it.
    """
    state = (thread / "stat").read_bytes().rpartition(b") ")[2][:1]
    return state in b"TZX" or state == b"D" and guard.stop_thread(pid, int(thread.name))


class ConfinedProcess:
    """A process in the sandbox and all its descendants. They are one process group, which stops and ends as a whole.

    The process leads the group, and `child` is its subprocess.Popen.
    """

    def __init__(self, child):
        self.child, self.pid, self.schedules, self.killed_before = child, child.pid, {}, kills_for_memory()
        # Linux lets only root open the memory of a process that is not dumpable. The judge is not dumpable, and neither
        # is its child until it executes Python. Popen may return before that, so the loop waits.
        for _ in range(int(STOPPING / 1e-3)):
            if os.access(f"/proc/{self.pid}/mem", os.W_OK):
                break
            time.sleep(1e-3)
        # The process has not run a line of a stranger's code yet, so nothing has closed its memory to the judge.
        self.memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR)

    # ---- Running and standing still. ----

    def send(self, signal_number):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # for example, no process of the group is left
            os.killpg(self.pid, signal_number)

    def resume(self):
        self.send(signal.SIGCONT)

    def pause(self):
        """Sends SIGSTOP to the group, without waiting. Under the seccomp filter the group cannot send SIGCONT."""
        self.send(signal.SIGSTOP)

    def stop(self):
        """Stops the group, waits until it stands still, and returns whether it does."""
        self.pause()
        # The judge's CPU time and the number of rounds are limited. Neither advances while the machine is suspended.
        end = time.process_time() + STOPPING
        rounds = int(STOPPING / 5e-4)  # one round takes 0.5 to 1 ms
        while not self.stands():
            rounds -= 1
            if rounds < 0 or time.process_time() > end:
                return False
            time.sleep(4e-4)
        return True

    def stands(self):
        """Tells whether each thread of the group stands still, as halts() defines it."""
        # The leader of the group is checked first, because it is the process that most likely still runs.
        for pid in (self.pid, *map(int, filter(str.isdigit, os.listdir("/proc")))):
            runs = False
            try:  # noqa: SIM105 (each request checks hundreds of processes, and suppress() takes half as long again)
                if runs := os.getpgid(pid) == self.pid:
                    runs = not all(halts(pid, thread) for thread in Path(f"/proc/{pid}/task").iterdir())
            except OSError as error:  # a thread that ends during the check counts as one that was running
                if error.errno in EXHAUSTED:  # the judge itself has run out of a resource
                    raise
            if runs:
                return False
        return True

    def end(self):
        """Ends the group, and waits until its leader has ended."""
        os.close(self.memory)
        self.send(signal.SIGKILL)
        self.status(ENDING)

    def has_ended(self):
        return self.child.poll() is not None

    def status(self, seconds):
        """Returns the exit status of the process, or None if it does not end within this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.child.wait(seconds)

    def was_ended_for_memory(self):
        """Tells whether SIGKILL ended the process after the system had killed some process to free memory.

        Only killings since the start of the process count.
        """
        return self.child.returncode == -signal.SIGKILL and kills_for_memory() > self.killed_before

    def change_of_schedule(self):
        """Returns in words how the scheduling of one of the process's threads has changed, or an empty string.

        The first call that sees a thread records its schedule, and later calls compare it.
        """
        for thread in map(int, os.listdir(f"/proc/{self.pid}/task")):
            now = schedule_of(thread)
            before = self.schedules.setdefault(thread, now)
            if now is not None and before is not None and now != before:
                return f"processors, nice value and policy were {before}, and are {now}"
        return ""

    # ---- Memory. ----

    def read(self, address, size):
        """Returns a copy of `size` bytes of the process's memory."""
        data = bytearray(size)
        for start, part in parts(data):
            if os.preadv(self.memory, [part], address + start) < len(part):
                raise OSError("its memory ends there")
        return data

    def write(self, address, data):
        for start, part in parts(data):
            if os.pwrite(self.memory, part, address + start) < len(part):
                raise OSError("a part of it is read-only")


def parts(data):
    """Yields pairs of an offset and the part of a buffer that begins there. One system call can move such a part."""
    whole = memoryview(data)
    for start in range(0, len(whole), MOST_BYTES):
        yield start, whole[start : start + MOST_BYTES]


# ==== 3. The sandbox ====


class Sandbox(contextlib.ExitStack):
    """Starts the confined processes of one run. While the sandbox is open, only root can open the judge's memory.

    A further process, the warden, waits until the sandbox is closed or the judge has died. Then it ends the confined
    processes that are left, and removes their temporary folder.
    """

    def __init__(self, folder=None):
        super().__init__()
        self.folder, self.warden, self.processes = folder, None, []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(guard.set_dumpable, guard.is_dumpable())
            guard.set_dumpable(False)
            self.folder = tempfile.mkdtemp(prefix="check-")
            command = [sys.executable, "-IS", guard.__file__, self.folder]
            warden = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            self.warden = stack.enter_context(warden)
            self.push(stack.pop_all())
        return self

    def start(self, program, spec, text, **streams):
        """Starts a Python program that enters the sandbox, and returns its ConfinedProcess.

        The program gets the arguments "--child" and `spec` in JSON. The item "sandbox" of this JSON is for enter().
        `text` is the text of the file that the program will execute. It decides which builds the program finds.
        """
        # `other_pids` has the warden and the running processes of this sandbox. The new process must not signal them.
        other_pids = [process.pid for process in self.processes if not process.has_ended()]
        other_pids += [self.warden.pid] if self.warden else []
        enter_arguments = [os.getpid(), other_pids, tempfile.mkdtemp(dir=self.folder), folder_of_builds(text)]
        command = [sys.executable, program, "--child", json.dumps({**spec, "sandbox": enter_arguments})]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **streams)
        if self.warden:
            os.write(self.warden.stdin.fileno(), b"%d\n" % child.pid)
        self.processes.append(ConfinedProcess(child))
        return self.processes[-1]

    @staticmethod
    def enter(arguments):
        """Confines this process, which must have one thread and lead a process group.

        Returns a dict with the keys of LEFT_OPEN. A value is true if the system provides that protection.
        """
        return guard.guard(*arguments)

    @staticmethod
    def close_memory():
        """Closes this process's memory to all processes but root's. The judge has opened it before and keeps access."""
        guard.set_dumpable(False)

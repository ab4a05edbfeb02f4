"""The build at import, whatever happens to it: killed midway, asked for by two processes at once, failed, finished. Real processes, torch's
own load_inline and ninja; a few lines of C++ stand for the kernels, so that no GPU and no nvcc is needed."""

import contextlib
import fcntl
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import COMPILER, ROOT, SMALL_EXTENSION, SOURCE, forked_processes, forks

pytestmark = [
    forks,
    pytest.mark.skipif(COMPILER is None or shutil.which("ninja") is None, reason="a C++ compiler or ninja is not installed"),
]


def import_in(folders, toolkit, answer, environment, said):
    """Imports the file with torch as it is where an H200 is, into one folder of builds after the other. Says what the extension answers,
    where it lies, and whether torch's builder was imported."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with SIGINT ignored
    os.environ.update(environment)
    os.chdir(ROOT)
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    torch.cuda.is_available, torch.cuda.device_count, torch.cuda.get_device_capability = lambda: True, lambda: 1, lambda device=None: (9, 0)

    builder = "torch.utils.cpp_extension"
    if sys.modules.pop(builder, None):  # by what was imported before the fork
        del torch.utils.cpp_extension

    def patch(cpp_extension):
        cpp_extension.CUDA_HOME = toolkit
        if not hasattr(patch, "real"):
            patch.real = cpp_extension.load_inline
            replaced = {"cpp_sources": [SMALL_EXTENSION], "extra_cflags": [f"-DANSWER={answer}"]}
            replaced |= dict.fromkeys(("cuda_sources", "extra_cuda_cflags", "extra_ldflags"), [])
            cpp_extension.load_inline = lambda **load: patch.real(**{**load, **replaced})

    line = "    from torch.utils import cpp_extension\n"
    text = SOURCE.read_text()
    assert text.count(line) == 1
    text = text.replace(line, line + "    patch(cpp_extension)\n")
    for folder in folders:
        names = {"patch": patch}
        os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
        exec(text, names)
        print(names["_EXTENSION"].answer(), names["_EXTENSION"].__file__, builder in sys.modules)


# A compiler that writes down that it began, and compiles no sooner than HOLD is gone.
WRAPPER = """#!/bin/sh
case " $* " in *" -c "*) echo $$ >> {room}/started; while [ -n "$HOLD" ] && [ -e "$HOLD" ]; do sleep 0.05; done ;; esac
exec {compiler} "$@"
"""


class Room:
    """A folder with a compiler, a toolkit that has nvcc's name, and builds, in a folder whose name is a pattern of glob's."""

    def __init__(self, folder):
        self.folder, self.builds, self.hold, self.children = folder, folder / "builds[1]", folder / "hold", []
        (folder / "toolkit" / "bin").mkdir(parents=True)
        (folder / "toolkit" / "bin" / "nvcc").touch()
        (folder / "c++").write_text(WRAPPER.format(room=folder, compiler=COMPILER))
        (folder / "c++").chmod(0o755)

    def start(self, *folders, held=False, answer="42"):
        environment = {"CXX": str(self.folder / "c++"), "HOLD": str(self.hold) if held else "", "TRIL_MATMUL_PATH": "auto"}
        if held:
            self.hold.touch()
        files = [self.folder / f"{name} {len(self.children)}" for name in ("stdout", "stderr")]
        arguments = (folders or [self.builds], str(self.folder / "toolkit"), answer, environment, files)
        child = forked_processes().Process(target=import_in, args=arguments, daemon=True)
        child.start()
        child.output, child.said = (lambda file=file: file.read_text() if file.exists() else "" for file in files)
        self.children.append(child)
        return child

    def end(self, child):
        """(answer, path, whether torch's builder was imported), for each folder."""
        child.join(120)
        assert child.exitcode == 0, child.said()
        return [line.split() for line in child.output().splitlines()]

    def wait_for(self, what, why):
        for _ in range(1200):
            if what():
                return
            time.sleep(0.05)
        pytest.fail(why, pytrace=False)

    def wait_for_the_compiler(self):
        child = self.children[-1]
        self.wait_for(lambda: (self.folder / "started").exists() or not child.is_alive(), "the compiler is not started")
        assert child.is_alive(), child.said()

    def left(self):
        return sorted(path.name.rpartition(".")[2] if "." in path.name else "build" for path in self.builds.iterdir())


@pytest.fixture
def room(tmp_path):
    room = Room(tmp_path)
    yield room
    room.hold.unlink(missing_ok=True)  # a compiler whose Python was killed goes on, and ends
    for child in room.children:
        child.kill()
        child.join()


def test_a_build_that_was_killed_is_built_again(room):
    killed = room.start(held=True)
    room.wait_for_the_compiler()
    killed.kill()
    killed.join()
    compiler = int((room.folder / "started").read_text().split()[0])
    os.kill(compiler, 0)  # it outlives its Python
    after = room.start()
    ((answer, path, _),) = room.end(after)
    assert answer == "42" and Path(path).exists() and "waiting" not in after.said(), after.said()
    room.hold.unlink()
    room.wait_for(lambda: not Path(f"/proc/{compiler}").exists(), "the compiler of the killed build does not end")
    assert room.left() == ["build", "lock"]
    (lock,) = room.builds.glob("*.lock")
    assert lock.read_text() == f"process {after.pid}"  # and no more: whoever waits says so
    assert Path(path).parent.stat().st_mode & 0o777 == 0o755  # others may use it
    assert room.end(room.start()) == [["42", path, "False"]]


def test_two_imports_at_once_build_once(room):
    first = room.start(held=True)
    room.wait_for_the_compiler()
    second = room.start(answer="43")
    room.wait_for(lambda: "waiting" in second.said() or not second.is_alive(), "the second import does not say that it waits")
    assert f"waiting for process {first.pid}, which is building" in second.said(), second.said()
    assert len(second.said().splitlines()) == 1
    room.hold.unlink()
    ((answer, path, _),), ((same_answer, same_path, _),) = room.end(first), room.end(second)
    assert (answer, path) == (same_answer, same_path) == ("42", path)
    assert "building the CUDA kernels for sm_90" in first.said() and len((room.folder / "started").read_text().split()) == 1


def test_one_that_waits_builds_if_the_other_is_killed(room):
    first = room.start(held=True)
    room.wait_for_the_compiler()
    second = room.start(answer="43")
    room.wait_for(lambda: "waiting" in second.said(), "the second import does not say that it waits")
    first.kill()
    assert room.end(second)[0][0] == "43"


def test_a_finished_build_waits_for_nobody(room):
    ((_, path, used),) = room.end(room.start())
    assert used == "True"
    (Path(path).parent / "lock").touch()  # what torch leaves behind where it was killed
    (lock,) = room.builds.glob("*.lock")
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        again = room.start(answer="43")
        assert room.end(again) == [["42", path, "False"]]
    assert again.said() == ""


def test_a_build_that_fails_says_so_and_leaves_nothing(room):
    failing = room.start(answer="oops")
    failing.join(120)
    assert failing.exitcode == 1 and failing.output() == ""
    assert "the build failed after" in failing.said() and "oops" in failing.said()
    assert room.left() == ["lock"]
    assert room.end(room.start())[0][0] == "42"


def test_one_process_builds_in_two_folders(room):
    """torch numbers the second build's name, and another process finds it all the same."""
    folders = [room.folder / "one", room.folder / "two"]
    built = room.end(room.start(*folders))
    assert [answer for answer, *_ in built] == ["42", "42"]
    for folder, (_, path, _) in zip(folders, built, strict=True):
        assert Path(path).is_relative_to(folder)
        assert room.end(room.start(folder, answer="43")) == [["42", path, "False"]]


def test_a_file_system_without_locks(model, monkeypatch, tmp_path):
    """Then each process builds for itself; what it would wait for is not there."""

    def no_locks(file, operation):
        raise OSError(38, "Function not implemented")

    from torch.utils import cpp_extension

    (tmp_path / "toolkit" / "bin").mkdir(parents=True)
    (tmp_path / "toolkit" / "bin" / "nvcc").touch()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setattr(fcntl, "flock", no_locks)

    class Built:
        def __init__(self, name, build_directory, **_):
            self.__file__ = f"{build_directory}/{name}.so"
            Path(self.__file__).touch()

    monkeypatch.setattr(cpp_extension, "load_inline", Built)
    other = tmp_path / "name.build.other"  # of a process that may still build
    other.mkdir()
    assert model._compile(str(tmp_path), "name", [], ["sm_90a"]).__file__ == str(tmp_path / "name" / "name.so")
    assert (tmp_path / "name" / "name.so").exists() and other.exists()
    monkeypatch.setattr(model, "_load_build", lambda folder, name: None)  # as it was when the slower one looked
    assert model._compile(str(tmp_path), "name", [], ["sm_90a"]).__file__.startswith(str(tmp_path / "name.build."))


def test_a_finished_build_is_loaded_on_a_full_disk(model, monkeypatch, tmp_path):
    """Of another process, which this one waited for: that its own name cannot be written to the lock does not matter."""
    from torch.utils import cpp_extension

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(model, "_load_build", lambda folder, name: "built")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))  # an error of the system where a file grows, as a full disk is
    try:
        assert model._compile(str(tmp_path), "name", [], ["sm_90a"]) == "built"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


# ---- What the machine has: toolkits, folders, variables. ----


class Started(Exception):
    """Raised where the build would start: what was asked of load_inline, and of nvcc."""


@pytest.fixture
def asked(model, monkeypatch, tmp_path):
    """asked(home): the arguments that a build hands to (nvcc, load_inline) where torch has found the toolkit `home`."""
    from torch.utils import cpp_extension

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "builds"))
    for name in ("PYTORCH_NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(model, "_CAPABILITIES", [(9, 0)])
    monkeypatch.setattr(sys, "path", [])
    started = {}

    def start(room, nvcc, flags, jobs):
        started.update(nvcc=nvcc, flags=flags)
        return subprocess.Popen(["true"], start_new_session=True), ["kernels0.o"]

    def load_inline(**load):
        started.update(load)
        raise Started

    monkeypatch.setattr(model, "_start_nvcc", start)
    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)

    def ask(home):
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", home and str(home))
        started.clear()
        with contextlib.suppress(Started):
            assert model._build() is None
        return started

    return ask


ANSWERING_NVCC = """#!/bin/sh
case "$*" in *--dryrun*) echo "#$ TOP={home}" ;; *) echo "Cuda compilation tools, release {release}, V{release}.88" ;; esac
"""


def make_toolkit(home, release="13.0"):
    """A folder as a toolkit has it, whose nvcc answers questions and compiles nothing."""
    for folder in ("bin", "lib64", "include"):
        (home / folder).mkdir(parents=True)
    (home / "lib64" / "libcudart.so").touch()
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(ANSWERING_NVCC.format(home=home, release=release))
    nvcc.chmod(0o755)
    return home


def make_wrapper(folder, toolkit):
    """An nvcc in a folder of commands, which calls that of a toolkit elsewhere."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "nvcc").write_text(f"#!/bin/sh\nexec '{toolkit}/bin/nvcc' \"$@\"\n")
    (folder / "bin" / "nvcc").chmod(0o755)
    return folder / "bin" / "nvcc"


def test_the_toolkit_behind_a_wrapper_is_linked(asked, tmp_path):
    """torch takes the folder above nvcc's for the toolkit, where neither headers nor libcudart lie."""
    home = make_toolkit(tmp_path / "cuda-13.0")
    wrapper = make_wrapper(tmp_path / "local", home)
    load = asked(tmp_path / "local")
    assert load["nvcc"] == str(wrapper)
    assert f"-L{home}/lib64" in load["extra_ldflags"] and load["extra_include_paths"] == [f"{home}/include"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc was found")
def test_the_nvcc_on_path_says_where_its_toolkit_is(model, tmp_path):
    wrapper = make_wrapper(tmp_path / "local", tmp_path / "toolkit")
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("nvcc")} "$@"\n')
    _, headers, runtime = model._find_toolkit(str(tmp_path / "local"))
    assert any((Path(folder) / "cuda_runtime_api.h").exists() for folder in headers)
    assert (Path(runtime) / "libcudart.so").exists()


def test_a_cuda_home_without_nvcc_gives_way_to_the_one_on_path(asked, monkeypatch, tmp_path, capfd):
    home = make_toolkit(tmp_path / "cuda-13.0")
    monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")
    load = asked("/nonexistent")
    assert load["nvcc"] == f"{home}/bin/nvcc" and f"-L{home}/lib64" in load["extra_ldflags"]
    assert f"CUDA_HOME is /nonexistent, which has no bin/nvcc; {home}/bin/nvcc compiles instead" in capfd.readouterr().err


def test_a_cuda_home_without_nvcc_is_named_by_the_first_call(model, asked, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert asked("/nonexistent") == {}
    monkeypatch.setattr(model, "_EXTENSION", None)
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    with pytest.raises(RuntimeError, match=r"because no nvcc was found .* CUDA_HOME=/nonexistent has no bin/nvcc\. Install"):
        model._built()


@pytest.mark.parametrize(("release", "warns"), [("12.8", True), ("13.2", False), ("13.0", False)])
def test_an_nvcc_of_another_major_version_is_a_warning(asked, tmp_path, capfd, release, warns):
    asked(make_toolkit(tmp_path / "toolkit", release))
    warnings = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == warns
    assert all(f"CUDA {release}" in line and "CUDA 13.0" in line and "CUDA_HOME" in line for line in warnings)


def test_a_folder_with_a_space_or_a_dollar_is_quoted(asked, tmp_path):
    home = make_toolkit(tmp_path / "my $toolkit")
    load = asked(home)
    assert shlex.split(load["nvcc"]) == [f"{home}/bin/nvcc"]
    (folder,) = (flag for flag in load["extra_ldflags"] if "lib64" in flag)
    assert shlex.split(folder.replace("$$", "$")) == [f"-L{home}/lib64"]  # $$: as ninja has a $


def test_neither_torch_nor_the_environment_is_told_of_a_toolkit(asked, monkeypatch, tmp_path):
    """Another thread may build an extension at the same time, and reads both."""
    from torch.utils import cpp_extension

    before, seen = dict(os.environ), []
    faked = cpp_extension.load_inline

    def load_inline(**load):
        seen.append((dict(os.environ), cpp_extension.CUDA_HOME))
        faked(**load)

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    make_wrapper(tmp_path / "local", make_toolkit(tmp_path / "cuda-13.0"))
    load = asked(tmp_path / "local")
    assert load["with_cuda"] is False
    assert seen == [(before, str(tmp_path / "local"))]


@pytest.mark.parametrize("root", ["a file", "in a read-only folder"])
def test_a_folder_that_cannot_be_written_names_its_variable(model, asked, monkeypatch, tmp_path, root):
    folder = tmp_path / "folder"
    if root == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder = folder / "builds"

        def read_only(path, *_, **__):
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "makedirs", read_only)  # root may write anywhere
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    with pytest.raises(OSError, match="set TORCH_EXTENSIONS_DIR to a folder in which this process may write") as raised:
        asked(make_toolkit(tmp_path / "toolkit"))
    assert isinstance(raised.value, FileExistsError if root == "a file" else PermissionError)
    assert str(folder) in str(raised.value)


def test_a_finished_build_that_cannot_be_read_names_the_variable_of_its_folder(model, asked, monkeypatch):
    def unreadable(folder, name):
        raise PermissionError(13, "Permission denied", f"{folder}/{name}.so")

    monkeypatch.setattr(model, "_load_build", unreadable)  # root may read anything
    with pytest.raises(PermissionError, match=r"set TORCH_EXTENSIONS_DIR to a folder .*\.so"):
        asked(None)


@pytest.mark.parametrize("name", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "PYTORCH_NVCC", "NVCC_CCBIN", "CC", "CXX"])
def test_what_decides_the_binary_is_part_of_its_name(model, asked, monkeypatch, name):
    names = []
    monkeypatch.setattr(model, "_compile", lambda root, build, flags, targets: names.append(build))
    for value in ("", "--use_fast_math", "--use_fast_math", "-O0"):
        monkeypatch.setenv(name, value)
        model._build()
    monkeypatch.delenv(name)
    model._build()
    assert names[0] == names[4] and names[1] == names[2] and len(set(names)) == 3


# ---- What becomes of a build: damaged, interrupted, slow. ----


@pytest.mark.parametrize("damage", ["half of it", "its end is missing", "empty", "other bytes"])
def test_a_damaged_library_is_built_again(room, damage):
    ((_, path, _),) = room.end(room.start())
    whole = Path(path).read_bytes()
    size = {"half of it": len(whole) // 2, "its end is missing": len(whole) - 1, "empty": 0, "other bytes": len(whole)}[damage]
    os.unlink(path)  # the other process may have it open
    Path(path).write_bytes(bytes(size) if damage == "other bytes" else whole[:size])
    assert room.end(room.start(answer="43")) == [["43", path, "True"]]
    assert room.end(room.start(answer="44")) == [["43", path, "False"]]  # and is kept


def test_an_interrupt_is_no_error_of_the_compiler(room):
    child = room.start(held=True)
    room.wait_for_the_compiler()
    os.kill(child.pid, signal.SIGINT)
    child.join(60)
    assert child.exitcode and "KeyboardInterrupt" in child.said(), (child.exitcode, child.said())
    assert "the build failed" not in child.said() and "compiler's" not in child.said()
    room.hold.unlink()
    room.wait_for(lambda: room.left() == ["lock"], "the folder of the interrupted build is left")


SLOW_NVCC = """#!/bin/sh
case "$*" in *-c*) echo $$ >> {room}/nvcc; sleep 600 ;; esac
"""


def test_a_slow_build_says_that_it_goes_on_and_ends_with_its_python(model, monkeypatch, tmp_path, capfd):
    """In the room of a build, nvcc alone: a line every so many seconds, until the build is given up; then no process is left."""
    nvcc = tmp_path / "nvcc.py"
    nvcc.write_text(SLOW_NVCC.format(room=tmp_path))
    nvcc.chmod(0o755)
    monkeypatch.setattr(model, "_SECONDS_BETWEEN_REPORTS", 1)
    process, objects = model._start_nvcc(str(tmp_path), str(nvcc), [], 3)
    assert objects == [f"kernels{number}.o" for number in range(3)]
    said = ""
    for _ in range(200):
        said += capfd.readouterr().err
        if "for 2 s so far" in said and len((tmp_path / "nvcc").read_text().split()) == 3:
            break
        time.sleep(0.05)
    model._end(process)
    assert "still building the CUDA kernels, for 1 s so far" in said and "for 2 s so far" in said
    for pid in (tmp_path / "nvcc").read_text().split():
        for _ in range(100):
            if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"nvcc, process {pid}, goes on")


START_AND_END = """
import os, sys
from helpers import load
model = load()
model._SECONDS_BETWEEN_REPORTS = 1
process, _ = model._start_nvcc(*sys.argv[1:], [], 1)
print(process.pid, flush=True)
os._exit(9)
"""


def test_a_build_whose_python_is_gone_says_nothing(tmp_path):
    nvcc = tmp_path / "nvcc.py"
    nvcc.write_text(SLOW_NVCC.format(room=tmp_path))
    nvcc.chmod(0o755)
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, "-c", START_AND_END, str(tmp_path), str(nvcc)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=ROOT / "tests")
        time.sleep(3.5)
        os.killpg(int(done.stdout), signal.SIGKILL)  # nvcc was still at it
        said.seek(0)
        assert done.returncode == 9 and "still building" not in said.read()


def test_a_sandbox_without_groups_lets_a_build_end(model, monkeypatch):
    """The judge answers so. A build on a GPU raised PermissionError there, and the file was convicted."""

    def refuse(group, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    model._end(process)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(("jobs", "seconds"), [("2", "65"), ("16", "15"), ("64", "15")])
def test_the_estimate_depends_on_the_number_of_cores(asked, monkeypatch, tmp_path, capfd, jobs, seconds):
    monkeypatch.setenv("MAX_JOBS", jobs)
    asked(make_toolkit(tmp_path / "toolkit"))
    assert f"about {seconds} s on {jobs} cores" in capfd.readouterr().err


def test_the_parts_are_shared_out_evenly(model):
    weights = [seconds for seconds, _ in model._CUDA_PARTS]
    for jobs in range(1, 20):
        groups = model._group_parts(jobs)
        assert sorted(part for group in groups for part in group) == list(range(len(weights)))
        assert len(groups) == min(jobs, len(weights))
        sums = [sum(weights[part] for part in group) for group in groups]
        assert max(sums) - min(sums) <= max(weights)

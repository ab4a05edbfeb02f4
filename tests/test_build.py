"""The build at import, whatever happens to it: killed midway, asked for by two processes at once, failed, finished. Real processes, torch's
own load_inline and ninja; a few lines of C++ stand for the kernels, so that no GPU and no nvcc is needed."""

import fcntl
import os
import resource
import shutil
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

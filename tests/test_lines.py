"""Compilers, profilers and debuggers name model_new.py and the right line, however the file is executed."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import COMPILER, HAS_CUDA, ROOT, SOURCE, execute, module

NVCC = module("benchmark").find_nvcc()
SECTION = re.compile(r'^(_CUDA_\w+|_CPP_BINDING) = r"""\n', re.MULTILINE)
NAMES = SECTION.findall(SOURCE.read_text())


def plant(text, statement):
    """The text with a statement at the end of every section of C++; {section: the statement's line}."""
    lines, planted, section = [], {}, None
    for line in text.split("\n"):
        if section and line == '"""':
            lines.append(statement.format(section))
            planted[section] = len(lines)
            section = None
        begins = SECTION.match(line + "\n")
        section = begins[1] if begins else section
        lines.append(line)
    return "\n".join(lines), planted


@pytest.fixture
def executed_again():
    yield
    execute()  # torch's operator is then the file's as it is


@pytest.mark.skipif(NVCC is None, reason="no nvcc was found")
@pytest.mark.skipif(HAS_CUDA, reason="the kernels would be built, and the build would fail")
@pytest.mark.parametrize("file", ["model_new.py", "<string>", 'cell "1" of a\\notebook'])
def test_nvcc_names_the_line_of_an_error_in_each_section(tmp_path, executed_again, file):
    text, planted = plant(SOURCE.read_text(), 'static_assert(sizeof(int) == 0, "planted in {}");')
    room = {}
    exec(compile(text, file, "exec"), room)
    (tmp_path / "joined.cu").write_text("\n".join(room["_add_lines"](room["_CUDA_SOURCES"])))
    command = [NVCC, "-std=c++17", "-arch=compute_90a", "-ptx", "joined.cu", "-o", "joined.ptx"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stderr
    found = {
        name: (where, int(line)) for where, line, name in re.findall(r'^(.*)\((\d+)\): error: .*"planted in (\w+)"', said, re.MULTILINE)
    }
    assert found == {name: (file, planted[name]) for name in NAMES if name != "_CPP_BINDING"}, said[:2000]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")
@pytest.mark.skipif(HAS_CUDA, reason="the kernels would be built, and the build would fail")
def test_the_compiler_of_the_binding_names_the_line_of_an_error(tmp_path, executed_again):
    text, planted = plant(SOURCE.read_text(), "#error planted in {}")
    room = {}
    exec(compile(text, "model_new.py", "exec"), room)
    lined = room["_add_lines"]([room["_CUDA_TYPES"], room["_CPP_BINDING"]])
    (tmp_path / "main.cpp").write_text("\n".join(re.sub(r"^#include .*$", "", each, flags=re.MULTILINE) for each in lined))
    said = subprocess.run([COMPILER, "-fsyntax-only", "main.cpp"], capture_output=True, text=True, cwd=tmp_path).stderr
    found = {name: int(line) for line, name in re.findall(r"^model_new\.py:(\d+):.*planted in (\w+)", said, re.MULTILINE)}
    assert found == {name: planted[name] for name in ("_CUDA_TYPES", "_CPP_BINDING")}, said[:2000]


IN_A_NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
for _ in range(2):  # pasted twice
    assert shell.run_cell(open("cell", encoding="utf-8").read()).success
names = shell.user_ns
lined = names["_add_lines"]([names[name] for name in sys.argv[1:]])
print(names["_MODULE_CODE"].co_filename, *lined[::2], sep="\\n")
"""


def test_a_cell_of_a_notebook_is_named_with_its_lines(tmp_path):
    """A notebook compiles the statements of a cell one by one."""
    pytest.importorskip("IPython")
    cell = "first_line = 1\n" + SOURCE.read_text(encoding="utf-8")
    (tmp_path / "cell").write_text(cell, encoding="utf-8")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "IPYTHONDIR": str(tmp_path)}
    command = [sys.executable, "-c", IN_A_NOTEBOOK, *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    file, *directives = done.stdout.splitlines()
    lines = [cell[: match.start()].count("\n") + 1 for match in SECTION.finditer(cell)]
    assert directives == [f'#line {line} "{file}"' for line in lines]


def test_the_name_of_a_build_depends_on_no_line_and_no_file(monkeypatch):
    """The same code elsewhere, say in a notebook with lines of its own before it, finds the same build."""
    names = []
    for before, file in (("", "model_new.py"), ("\n\n# a comment\n", "<string>")):
        room = {}
        exec(compile(before + SOURCE.read_text(), file, "exec"), room)
        room["_CAPABILITIES"].append((9, 0))
        room["_load_build"] = lambda folder, name: names.append(name) or True
        room["_build"]()
    execute()  # torch's operator is then the file's as it is
    assert len(names) == 2 and names[0] == names[1]


def test_reading_order_is_compile_order(model):
    compiled = [name for string in model._CUDA_SOURCES for name in NAMES if string == getattr(model, name)]
    assert compiled == [name for name in NAMES if name != "_CPP_BINDING"]


@pytest.mark.skipif(NVCC is None, reason="no nvcc was found")
def test_each_prefix_of_the_sections_compiles(model, tmp_path):
    """A section uses what stands above it."""
    lined, sections = model._add_lines(model._CUDA_SOURCES), {getattr(model, name) for name in NAMES}
    can_hurry = "--Ofast-compile" in subprocess.run([NVCC, "--help"], capture_output=True, text=True).stdout
    flags = ["-std=c++17", "-arch=compute_90a", "-diag-suppress=177", *(["--Ofast-compile=max"] if can_hurry else [])]
    failed = []
    for end in [number + 1 for number, string in enumerate(lined) if string in sections]:
        prefix = lined[:end] + ["#endif"] * (sum(line.startswith("#if !def") for line in lined[:end]) - lined[:end].count("#endif"))
        (tmp_path / "prefix.cu").write_text("\n".join(prefix))
        command = [NVCC, *flags, "-ptx", "prefix.cu", "-o", "prefix.ptx"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        failed += [done.stderr] if done.returncode else []
    assert not failed, failed[0][:2000]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc was found")
def test_the_sources_are_written_for_tools(tmp_path):
    command = [sys.executable, "tests/write_sources.py", str(tmp_path / "sources")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "-DPART=2" in done.stdout
    source = (tmp_path / "sources" / "kernels.cu").read_text()
    assert f'"{SOURCE}"' in source and source.count("#line") >= len(NAMES) - 1
    assert (tmp_path / "sources" / "binding.cpp").exists() and "-xcuda" in (tmp_path / "sources" / "compile_flags.txt").read_text()


@pytest.mark.skipif(NVCC is None, reason="no nvcc was found")
def test_profilers_find_the_lines_of_a_kernel(model, tmp_path):
    """The flags of a build put line numbers into the code: those of this file, as ncu's source view shows them."""
    (tmp_path / "part.cu").write_text("\n".join(model._add_lines(model._CUDA_SOURCES)))
    command = [NVCC, "-std=c++17", *model._NVCC_FLAGS, "-DPART=0", "-diag-suppress=177", "-arch=compute_90a", "-ptx", "part.cu"]
    done = subprocess.run([*command, "-o", "part.ptx"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ptx = (tmp_path / "part.ptx").read_text()
    files = re.findall(rf'^\s*\.file\s+(\d+) "{re.escape(str(SOURCE))}"', ptx, re.MULTILINE)
    assert files, "the code names no line of model_new.py"
    lines = SOURCE.read_text().split("\n")
    written = {lines[int(line) - 1].strip() for line in re.findall(rf"^\s*\.loc\s+{files[0]}\s+(\d+)", ptx, re.MULTILINE)}
    assert "if (t == 0) *args.progress = args.launch;" in written, sorted(written)[:20]

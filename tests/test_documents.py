"""The documents hold what benchmarks/results holds, each table once; their links lead somewhere; the figures are those of the records."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest
from helpers import COMPILER, ROOT, SOURCE, module

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def tables():
    return module("tables")


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # figures.py puts its folder there
    return module("figures")


# ---- Text. -----------------------------------------------------------------------------------------------------------


def test_the_documents_are_up_to_date(tables, capsys):
    assert sorted(tables.DOCUMENTS) == sorted(DOCUMENTS)
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


def test_each_table_stands_once(tables):
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = Counter(re.findall(r"^<!-- begin: (\S+) -->$", text, re.MULTILINE))
    of_others = [name for name in named if "/" in name]  # of another GPU's records
    assert named == Counter([*tables.TABLES, *tables.SENTENCES, *of_others])
    results = ROOT / "benchmarks" / "results"
    assert {path.relative_to(results).with_suffix("").as_posix() for path in results.glob("*/*.json")} <= {*of_others}


def test_tokens_are_counted_without_comments(tables):
    code = 'a += 1.5f; // b\n/* c\nd */ f("x // y\\"") - 0x1p-3f'
    assert tables.count_tokens(code) == 20


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_the_example_prints_what_it_says():
    """The README's Python: each print has what it prints as its comment."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    expected = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert len(expected) == example.count("print(") >= 3
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr


def test_the_history_is_a_table():
    """At most 120 changes, and of each what was predicted, what was measured and why."""
    lines = (ROOT / "docs" / "history.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and not line.startswith(("| change |", "|---"))]
    assert 100 < len(rows) <= 120
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert len(cells) == 4 and all(cells), f"a row needs four cells: {row}"


def prose(path):
    """A document without its blocks of code, in which `[&](int cta)` is no link."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path):
    for link in re.findall(r"\]\(([^)#]+)", prose(path)):
        assert link.startswith("https://") or (path.parent / link).exists(), f"{path.name} links to {link}, which is not there"


def anchors(path):
    """What GitHub calls the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_sections(path):
    for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", prose(path)):
        there = (path.parent / file) if file else path
        assert anchor in anchors(there), f"{path.name} links to {file}#{anchor}, a section that is not there"


@pytest.mark.parametrize("name", ["kernel", "limits"])
def test_names_in_the_text_are_those_of_the_file(name):
    source, text = SOURCE.read_text(encoding="utf-8"), (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\w+", source))
    named = [part for span in re.findall(r"`([\w:]+)`", text) for part in span.split("::")]
    assert len(named) > 3
    unknown = sorted({part for part in named if part not in known})
    assert not unknown, f"docs/{name}.md names what model_new.py does not have: {', '.join(unknown)}"


def without_layout(code):
    """C++ without its comments and its white space."""
    return re.sub(r"\s+", "", re.sub(r"//.*", "", code))


QUOTED = re.findall(r"^```cuda (\w+)\n(.*?)^```$", (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("function", "quoted"), QUOTED, ids=[function for function, _ in QUOTED])
def test_quoted_code_stands_in_the_function_that_it_is_said_to_be_of(function, quoted):
    """Piece by piece, in this order; a line `...` stands for what is left out."""
    definition = rf"^[^\n#/]*\b{function}\([^;]*?{{(?: [^\n]*}}$|\n.*?^}})"  # on one line, or up to a brace that begins one
    found = re.findall(definition, SOURCE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"model_new.py has no function {function}"
    pieces = [without_layout(piece) for piece in quoted.split("...\n")]
    in_order = re.compile(".*?".join(map(re.escape, pieces)))
    assert any(in_order.search(without_layout(body)) for body in found), f"docs/kernel.md quotes what {function} does not say:\n{quoted}"


def test_the_budget_of_errors_adds_up():
    """kernel.md's table: what each source adds at worst, and all of them, in units of 1e-7."""
    text = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8").partition("## The budget of errors")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+)(?: x ([\d.]+))? \| [^|]*\|$", text.partition("\n\nWhat was found")[0], re.MULTILINE)
    *sources, (name, total, _) = [(name, float(one), float(factor or 1)) for name, one, factor in rows]
    assert name == "all of them" and len(sources) == 7
    assert sum(one * factor for _, one, factor in sources) == pytest.approx(total, abs=0.06)


def test_kernel_md_quotes_the_code():
    assert len(QUOTED) > 10


def test_the_table_of_kernels_is_what_the_policy_decides(capsys):
    policy = module("policy")
    if COMPILER is None:
        pytest.skip("no C++ compiler was found")
    assert policy.main(["--check"]) == 0, capsys.readouterr().err


def test_another_policy_makes_the_table_of_kernels_stale(tmp_path, monkeypatch, capsys):
    policy = module("policy")
    if COMPILER is None:
        pytest.skip("no C++ compiler was found")
    changed = re.sub(r"(kMinFp16x3Triangle = )\d+", r"\g<1>300", SOURCE.read_text(encoding="utf-8"))
    (tmp_path / "model_new.py").write_text(changed, encoding="utf-8")
    table = policy.table(tmp_path / "model_new.py")
    monkeypatch.setattr(policy, "table", lambda: table)
    assert policy.main(["--check"]) == 1 and "not up to date" in capsys.readouterr().err


# ---- Figures. --------------------------------------------------------------------------------------------------------


def test_the_figures_are_up_to_date(figures, capsys):
    assert figures.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", ["time", "error", "where", "pipeline", "order"])
def test_a_figure_is_drawn_alike_each_time(figures, name, tmp_path):
    pytest.importorskip("matplotlib")
    for file in ("one.svg", "other.svg"):
        figures.draw(name, ROOT / "benchmarks" / "results", tmp_path / file)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert set(figures.FIGURES) == {path.stem for path in figures.FOLDER.iterdir()}


def test_another_record_makes_a_figure_stale(figures, tmp_path, capsys):
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    record = json.loads((tmp_path / "peers.json").read_text())
    record["rows"][0]["ours"]["median_us"] += 1
    (tmp_path / "peers.json").write_text(json.dumps(record))
    assert figures.main(["--check", "--results", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "time.svg: not up to date; run: python benchmarks/figures.py" in printed.err and "where.svg: up to date" in printed.out


def test_a_figure_without_a_record_or_matplotlib_is_an_error(figures, tmp_path, capsys, monkeypatch):
    assert figures.main(["--check", "--results", str(tmp_path)]) == 1
    assert "peers.json is missing; run: python benchmarks/benchmark.py --suite peers" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # makes `import matplotlib` an ImportError
    assert figures.main(["--files", str(tmp_path / "time.svg"), str(tmp_path / "speed.svg")]) == 1
    printed = capsys.readouterr().err
    assert "time.svg: drawing needs matplotlib" in printed and "speed.svg: there is no figure 'speed'; accepted: time, error" in printed

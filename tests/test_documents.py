"""The documents hold what benchmarks/results holds, each table once; their links lead somewhere; the figures are those of the records."""

import json
import re
import sys
from collections import Counter

import pytest
from helpers import ROOT, module

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
    assert named == Counter([*tables.TABLES, *tables.SENTENCES])


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path):
    for link in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (path.parent / link).exists(), f"{path.name} links to {link}, which is not there"


# ---- Figures. --------------------------------------------------------------------------------------------------------


def test_the_figures_are_up_to_date(figures, capsys):
    assert figures.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", ["time", "error", "where"])
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
    with pytest.raises(SystemExit) as stop:
        figures.main(["--out", str(tmp_path)])
    assert stop.value.code == 2 and "needs matplotlib" in capsys.readouterr().err

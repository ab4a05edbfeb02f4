"""examples/quickstart.ipynb runs from its first cell to its last, on a CPU and unchanged on a GPU, and keeps no outputs."""

import json
import sys

import pytest
import torch
from helpers import DEVICES, ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


@pytest.fixture
def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_no_outputs_are_kept(cells):
    for cell in cells:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None), cell["source"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_cells_run_in_order(cells, device, model, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")  # a window would wait
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    namespace, code = {"__name__": "__main__"}, [cell for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(code):
        exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, code cell {number}", "exec"), namespace)
    out = capsys.readouterr().out
    assert namespace["device"] == device and len(code) == 7
    assert "above the diagonal: 0.0" in out and "dB: error" in out and "step 20" in out
    assert namespace["losses"][-1] < namespace["losses"][0]


def test_without_the_file_it_says_where_to_put_it(cells, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    with pytest.raises(FileNotFoundError, match="copy it beside this notebook"):
        exec(first, {})

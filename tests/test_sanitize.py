"""tests/sanitize.py reads what the tools say, ends what takes too long, and tells which arguments it takes."""

import re
import time
from pathlib import Path

import pytest
import sanitize


def test_what_its_kernels_call_exists(model):
    called = set(re.findall(r"module\.(\w+)", Path(sanitize.__file__).read_text()))
    assert {"_product", "_PATH", "tril_matmul"} <= called
    assert not [name for name in called if not hasattr(model, name)]


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0),
        ("========= ERROR SUMMARY: 1 error", 1),
        ("========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n", 3),
        ("computed by half", 0),
    ],
)
def test_summaries_are_read(printed, number):
    assert sanitize.found(printed) == number


@pytest.mark.parametrize(
    ("status", "printed", "result"),
    [
        (0, "ERROR SUMMARY: 0 errors", "clean"),
        (1, "ERROR SUMMARY: 7 errors", "7 found"),
        (0, "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)", "2 found"),
        (1, "AssertionError", "failed"),
        (None, "", "timed out"),
    ],
)
def test_a_pair_is_clean_only_if_its_tool_and_its_kernel_are(monkeypatch, status, printed, result):
    monkeypatch.setattr(sanitize, "run_child", lambda before, tool, kernels, seconds: (status, printed))
    row = sanitize.look("racecheck", "half", 10.0)
    assert row["result"] == result
    assert result in sanitize.table([row], ["racecheck"], ["half"])


def test_what_takes_too_long_is_ended():
    start = time.perf_counter()
    assert sanitize.run_child(["bash", "-c", "sleep 60 & echo begun; wait"], "memcheck", ["half"], 0.5) == (None, "begun\n")
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("arguments", [["nothing"], ["memcheck", "--parallel", "0"], ["--seconds", "-1"]])
def test_bad_arguments_end_with_status_2(arguments):
    with pytest.raises(SystemExit) as ended:
        sanitize.main(arguments)
    assert ended.value.code == 2

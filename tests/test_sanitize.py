"""tests/sanitize.py shows each kernel every kind of mask, reads what the tools say, ends what takes too long, and tells which arguments it
takes."""

import json
import re
import time
import types
from pathlib import Path

import pytest
import sanitize
import torch
from helpers import FAMILY, MASKED, TRIU, masks, module


def test_what_its_kernels_call_exists(model):
    called = set(re.findall(r"module\.(\w+)", Path(sanitize.__file__).read_text()))
    assert {"_built", "_PATH", "tril_matmul", "gram", "triangular_inverse"} <= called
    assert not [name for name in called if not hasattr(model, name)]


def kind(contraction, structure):
    """What a kernel tells a product by, which it computes as the transpose if C is upper triangular: whether X and Y have masks, that of C;
    and where both have one and C none, from which corner on the tiles become longer."""
    x, y, c = masks(structure)
    x, y, c = (y, x, 1) if c == TRIU else (x, y, c)
    return bool(x), bool(y), c, x if x and y and not c else None


def test_the_other_masks_are_one_of_each_kind():
    kinds = [kind(*MASKED[name]) for name in sanitize.OTHERS]
    assert len(kinds) == len({*kinds}) and {*kinds} == {kind(*member) for member in MASKED.values()}
    assert not {*kinds} & {kind(*member) for member in FAMILY}


def on_cpu(name):
    """A function of torch's, without a device."""
    return staticmethod(lambda *arguments, device, **options: getattr(torch, name)(*arguments, **options))


class OnCpu:
    """torch, where no device is a GPU."""

    cuda = types.SimpleNamespace(synchronize=lambda: None)
    randn, eye, logspace = map(on_cpu, ("randn", "eye", "logspace"))

    def set_float32_matmul_precision(self, _):
        """It would stay so for other tests."""

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.mark.parametrize("name", sanitize.KERNELS)
def test_what_a_kernel_is_given(model, name, monkeypatch):
    """By the CPU's operator: operands that fit, results that are finite where they should be; and every kind of mask."""
    seen = set()

    def product(X, Y, contraction, structure, path, keep):
        seen.add((contraction, structure))
        return model._product_by_torch(X, Y, contraction, structure), "cpu", None

    monkeypatch.setattr(model, "_built", lambda: types.SimpleNamespace(product=product))
    monkeypatch.setattr(model, "_PATH", model._PATHS["auto"])
    monkeypatch.setattr(sanitize, "HALF_BATCHES", tuple((2, N) for _, N in sanitize.HALF_BATCHES))  # all would take ten seconds
    sanitize.KERNELS[name](OnCpu(), model)
    if name not in ("half_many", "half_large", "half_shared", "family"):  # of which half and half_batches see the rest
        assert seen == {*FAMILY, *(MASKED[name] for name in sanitize.OTHERS)}


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
        (1, "torch.AcceleratorError: CUDA error: out of memory\nERROR SUMMARY: 0 errors", "no memory"),
        (1, "didn't track the launch. (Unable to allocate enough memory)\nERROR SUMMARY: 2 errors", "no memory"),
        (0, "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)", "2 found"),
        (1, "AssertionError", "failed"),
        (None, "", "timed out"),
    ],
)
def test_a_pair_is_clean_only_if_its_tool_and_its_kernel_are(monkeypatch, status, printed, result):
    monkeypatch.setattr(sanitize, "run_child", lambda before, tool, kernels, seconds: (status, printed))
    row = sanitize.look("racecheck", "half", 10.0)
    assert row["result"] == result
    assert result in module("tables").sanitizers([row])


def test_a_record_keeps_other_pairs_of_the_same_file(monkeypatch, tmp_path):
    about, benchmark = {"solution_sha256": "a", "device": "this one"}, module("benchmark")
    monkeypatch.setattr(benchmark, "environment", lambda bench: about)
    monkeypatch.setattr(sanitize.helpers, "module", lambda name: benchmark)
    path = tmp_path / "sanitizers.json"

    def written(*rows):
        sanitize.write(path, [dict(zip(("tool", "kernel", "result"), row, strict=True)) for row in rows])
        record = json.loads(path.read_text())
        return record["complete"], [tuple(row.values())[:3] for row in record["rows"]]

    assert written(("racecheck", "half", "timed out")) == (False, [("racecheck", "half", "timed out")])
    half, mma = ("racecheck", "half", "clean"), ("memcheck", "mma", "clean")
    assert written(half, mma) == (False, [mma, half])
    every = [(tool, kernel, "clean") for tool in sanitize.TOOLS for kernel in sanitize.KERNELS]
    assert written(*every[::-1]) == (True, every)
    about["solution_sha256"] = "b"
    assert written(mma) == (False, [mma])


def test_what_takes_too_long_is_ended():
    start = time.perf_counter()
    assert sanitize.run_child(["bash", "-c", "sleep 60 & echo begun; wait"], "memcheck", ["half"], 0.5) == (None, "begun\n")
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("arguments", [["nothing"], ["memcheck", "--parallel", "0"], ["--seconds", "-1"]])
def test_bad_arguments_end_with_status_2(arguments):
    with pytest.raises(SystemExit) as ended:
        sanitize.main(arguments)
    assert ended.value.code == 2

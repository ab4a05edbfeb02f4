"""The soak runs, draws every kind of call, finds what is wrong and says which call it was; its record keeps what still holds."""

import json
import math
import pickle
import subprocess
import sys
import types

import pytest
import torch
from helpers import DTYPES, ROOT, SOURCE, module, needs_cuda, needs_two_gpus

from judge.measures import allowed

soak = module("soak")

SIZES = 100  # the largest that is drawn
NEWER = [function for function in soak.FUNCTIONS if function not in soak.KERNELBENCH]


def run_of(solution, device="cpu", calls=30):
    return soak.Soak(device, solution, calls=calls, largest=SIZES if device == "cpu" else 2000)


def test_a_run_on_a_cpu(tmp_path):
    """Every section, by the command; those that need a GPU say so."""
    command = [sys.executable, ROOT / "benchmarks" / "soak.py", "--device", "cpu", "--calls", "30", "--largest", str(SIZES)]
    done = subprocess.run([*command, "--out", tmp_path, "--commit", "abc"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "soak.json").read_text())
    assert [row["section"] for row in record["rows"]] == ["mixed", "threads", "large", "search"] and record["failures"] == []
    for row in record["rows"]:
        assert row["calls"] == row["planned"] > 0 and row["comparisons"] >= row["calls"] and row["wrong"] == 0 and row["commit"] == "abc"
        assert 0 < row["worst_error_of_bound"] <= 1
    assert done.stdout.count("skipped: ") == len(soak.SECTIONS) - 4


def test_draws_are_of_every_kind_and_repeat():
    calls = [soak.draw(0, number) for number in range(3000)]
    assert calls == [soak.draw(0, number) for number in range(3000)] and calls[0] != soak.draw(1, 0)
    assert {(call.dtype, call.tf32, call.problem) for call in calls} == {(*kind, p) for kind in soak.KINDS for p in soak.PROBLEMS}
    assert {call.dtype for call in calls} == set(DTYPES)
    assert {layout for call in calls for layout in call.layouts} == set(soak.LAYOUTS)
    rectangles = [{*soak.PROBLEMS[call.problem].sides} for call in calls if len({*call.sides}) > 1]
    assert all(letters in rectangles for letters in ({*"KN"}, {*"KM"}, {*"KMN"})) and {*"N"} not in rectangles
    assert {call.stream for call in calls} == set(range(soak.STREAMS)) and any(call.broadcast for call in calls)
    assert 0.05 < sum(call.gradients for call in calls) / len(calls) < 0.2
    largest = [max(call.sides) for call in calls]
    for low, high in ((1, 64), (64, 512), (512, 1153), (1153, 1409), (1409, 3329), (3329, 8401)):  # of each kernel, and more
        assert any(low <= size < high for size in largest), f"no size from {low} to {high - 1}"


@pytest.mark.parametrize("layout", soak.LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 3, 8, 8), (1, 1)])
def test_layouts_hold_the_same_values(layout, shape):
    V = torch.rand(shape)
    laid = soak.LAYOUTS[layout](V)
    assert torch.equal(laid, V)
    assert layout in ("rows", "batch last", "padded rows", "padded columns") or math.prod(shape) == 1 or laid.stride() != V.stride()


def with_other(model, **names):
    """The solution, of which some names mean something else."""
    return types.SimpleNamespace(**vars(model) | names)


def spoiled(model, spoil):
    """The solution, of which `spoil` changes all results."""

    def class_of(inner):
        class Spoiled(torch.nn.Module):
            def forward(self, A, B):
                return spoil(inner()(A, B))

        return Spoiled

    def function_of(inner):
        return lambda *operands, **options: spoil(inner(*operands, **options))

    classes = {name: class_of(getattr(model, name)) for name in ("ModelNew", "UpperModelNew", "TransposedAModelNew")}
    return with_other(model, **classes, **{name: function_of(getattr(model, name)) for name in NEWER})


def one_element(C):
    C = C.clone()
    C.view(-1)[-1] += 1.0 if C.shape[-1] > 2 else 0.0
    return C


def one_nan(C):
    C = C.clone()
    C[..., -1, 0] = math.nan
    return C


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, C):
        return C.clone()

    @staticmethod
    def backward(ctx, G):
        return 1.01 * G


@pytest.mark.parametrize("spoil", [one_element, one_nan, WrongGradient.apply], ids=["element", "nan", "gradient"])
@pytest.mark.parametrize("section", ["mixed", "threads"])
def test_what_is_wrong_is_found_and_named(model, section, spoil, capsys):
    run = run_of(spoiled(model, spoil))
    outcome = soak.SECTIONS[section](run)
    assert outcome.calls == 30 and outcome.judge.wrong
    number = int(outcome.judge.wrong[0].split("of call ")[1].split()[0])
    judge = soak.Judge("cpu")
    tf32 = section == "mixed"
    soak.judge_call(soak.draw(0 if tf32 else 1, number, SIZES if tf32 else SIZES // 2, tf32=tf32), run.solution, judge)
    judge.settle()
    assert judge.wrong and judge.wrong[0] in capsys.readouterr().err
    assert not judge.worst <= 1


WRONG = [  # what a function might do in place of what it should
    ("triangular_matmul", lambda right: lambda A, X, **options: right(A, X, **options | {"unitriangular": False})),
    ("gram", lambda right: lambda X, **options: right(X, **options).tril()),
    ("lu_matmul", lambda right: lambda L, U: right(U.mT, L.mT)),
    ("triangular_inverse", lambda right: lambda L, **options: right(L.tril() * 1.001, **options)),
    *((name, lambda right: lambda *operands, **options: WrongGradient.apply(right(*operands, **options))) for name in NEWER),
]


@pytest.mark.parametrize(("function", "wrong"), WRONG)
def test_one_wrong_function_is_found(model, function, wrong):
    outcome = soak.SECTIONS["mixed"](run_of(with_other(model, **{function: wrong(getattr(model, function))}), calls=400))
    assert outcome.judge.wrong and all(f" {function}" in line for line in outcome.judge.wrong)


def test_a_call_that_is_asked_for_by_number(model, capsys):
    number = next(number for number in range(100) if soak.draw(5, number, SIZES).problem.startswith("gram"))
    arguments = ["--device", "cpu", "--largest", str(SIZES), "--seed", "5", "--call", str(number)]
    assert soak.main(arguments) == 0
    assert f"{soak.draw(5, number, SIZES)}: 0 wrong" in capsys.readouterr().out


def test_a_wrong_part_of_a_large_result_is_found():
    for batch in ((), (7,)):
        judge, X, Y = soak.Judge("cpu"), torch.rand(*batch, 30, 20), torch.rand(*batch, 20, 25)
        result = X @ Y
        soak.compare_parts(judge, "C", result, X, Y, lambda V, first: V, torch.float32, 200)
        assert not judge.wrong and judge.comparisons > 2
        result[-1, -1] += 1.0
        soak.compare_parts(judge, "C", result, X, Y, lambda V, first: V, torch.float32, 200)
        assert len(judge.wrong) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("off", [1e-7, 3e-5, 1.0])
def test_twice_what_torch_is_off_by_is_excused(monkeypatch, dtype, off):
    """Of float64 nothing is; of others no more than check.py excuses, and of 16-bit ones not their one rounding."""
    call = next(c for c in (soak.draw(0, n, 100) for n in range(3000)) if c.dtype == dtype and not c.tf32 and c.problem == "lower")
    (exact, magnitude) = (results["C"] for results in soak.in_float64(call, *soak.make(call, "cpu")))
    rounding = torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0.0
    in_float64 = ({"C": exact}, {"C": magnitude})
    monkeypatch.setattr(soak, "in_float64", lambda *_: in_float64)
    rounded = rounding * exact.abs().clamp_min(torch.finfo(dtype).smallest_normal)
    monkeypatch.setattr(soak, "by_torch", lambda *_: {"C": exact + exact.sign() * (rounded + off * magnitude)})
    least, most = allowed(dtype, call.sides[0])
    wanted = 1.0 if dtype == torch.float64 else (min(2 * off, most) + rounding) / (least + rounding)
    assert soak.excuse(call, "C", "cpu") == pytest.approx(wanted, rel=1e-3)


def test_memory_that_is_not_given_back_is_a_failure():
    before = {"tensors": 1000, "device": 10**9}
    assert soak.growth(before, before) == [] == soak.growth(None, None)
    assert len(soak.growth(before, {"tensors": 1001, "device": 10**9})) == 1
    assert len(soak.growth(before, {"tensors": 1000, "device": 10**9 + soak.GROWTH + 1})) == 1


def test_rows_of_another_file_or_device_are_dropped(tmp_path):
    described = {"solution_sha256": "a", "device": "here"}
    rows = [{"section": "mixed", **described}, {"section": "large", **described, "device": "there"}]
    path = tmp_path / "soak.json"
    assert soak.benchmark.earlier_rows(path, described) == []
    path.write_text(json.dumps({"rows": [*rows, {"section": "graphs", "solution_sha256": "b", "device": "here"}]}))
    assert soak.benchmark.earlier_rows(path, described) == rows[:1]


@pytest.mark.parametrize(
    "arguments", [["--section", "nothing"], ["--seconds", "0"], ["--calls", "-1"], ["--solution", "nowhere.py"], ["--device", "tpu"]]
)
def test_bad_arguments_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        soak.main(arguments)
    assert ended.value.code == 2 and f"argument {arguments[0]}" in capsys.readouterr().err


# ---- On a GPU: a little of each section. -----------------------------------------------------------------------------


@needs_cuda
@pytest.mark.xdist_group("soak")
@pytest.mark.parametrize("section", ["mixed", "threads", "graphs", "streams"])
def test_a_section_on_a_gpu(model, section):
    outcome = soak.SECTIONS[section](run_of(model, "cuda", calls=200))
    assert outcome.calls == outcome.planned and not outcome.judge.wrong and not outcome.failures
    assert not soak.growth(outcome.before, outcome.after)


@needs_cuda
@pytest.mark.alone
def test_no_memory_on_a_gpu(model, monkeypatch):
    monkeypatch.setattr(soak, "MEMORY_CALLS", soak.MEMORY_CALLS[3:4])
    outcome = soak.SECTIONS["memory"](run_of(model, "cuda"))
    assert outcome.details["refused"] >= 3 and not outcome.judge.wrong and not outcome.failures


@pytest.fixture
def importable(monkeypatch):
    """soak.py as other processes import it: what they run is pickled by its name."""
    monkeypatch.setitem(sys.modules, "soak", soak)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_other_processes_find_what_they_run(importable):
    assert all(pickle.loads(pickle.dumps(f)) is f for f in (soak.train, soak.first_call))


@needs_two_gpus
@pytest.mark.alone
@pytest.mark.parametrize(("kind", "dtype"), soak.TRAININGS)
def test_training_by_two_processes(model, kind, dtype, importable):
    assert soak.training_error(SOURCE, "cuda", kind, dtype, 1200) < (1e-4 if dtype == torch.float32 else 0.05)

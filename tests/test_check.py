"""What holds of check.py: right solutions are found right, each way of being wrong or of cheating is found and named, and the exit
status, the record and the exported files are what its manual says."""

import importlib.util
import json
import math
import pathlib
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]

spec = importlib.util.spec_from_file_location("check", ROOT / "check.py")
check = importlib.util.module_from_spec(spec)
sys.modules["check"] = check  # dataclasses look their module up
spec.loader.exec_module(check)

IMPORTS = "import math, sys\nimport torch\n"
PRODUCT = "torch.tril(torch.matmul(A, B))"
# In a solution that cheats: `frame` is None unless the call is being timed.
FIND_TIMING = "frame = sys._getframe()\nwhile frame is not None and frame.f_code.co_name != 'take_turns':\n    frame = frame.f_back\n"


def solution(body, top=""):
    """A KernelBench-style file whose forward has this body."""
    lines = "\n".join(f"        {line}" for line in body.strip("\n").split("\n"))
    return (
        f"{IMPORTS}{top}\nclass ModelNew(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.kept = {{}}\n"
        f"        self.calls = 0\n\n    def forward(self, A, B):\n{lines}\n"
    )


@pytest.fixture
def judge(tmp_path, capsys):
    """judge(text, *options) -> (exit status, the record of --json, what was printed)."""

    def run(text, *options, size=128, device="cpu", timing=False):
        (tmp_path / "solution.py").write_text(text)
        record = tmp_path / "record.json"
        argv = ["--solution", str(tmp_path / "solution.py"), "--size", str(size), "--device", device, "--json", str(record), *options]
        status = check.main(argv if timing else [*argv, "--no-timing"])
        printed = capsys.readouterr()
        return status, json.loads(record.read_text()) if record.exists() else None, printed.out + printed.err

    return run


def faults(record):
    return [c for c in record["checks"] if c["verdict"] == "WRONG"]


# ---- Right solutions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("problem", ["lower", "upper", "transposed_a"])
def test_our_solution_is_right(judge, problem, device):
    status, record, printed = judge((ROOT / "model_new.py").read_text(), "--problem", problem, device=device)
    assert status == 0 and not faults(record), printed
    assert all(c["verdict"] == "ok" for c in record["checks"]), printed  # it promises the contract: nothing is a mere note
    assert record["solution"]["promises_contract"] and record["paths"]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_our_solution_is_right_in_other_dtypes(judge, dtype):
    status, _, printed = judge((ROOT / "model_new.py").read_text(), "--dtype", dtype, size=100)
    assert status == 0, printed


@pytest.mark.parametrize("device", DEVICES)
def test_a_foreign_solution_is_right_and_what_it_never_promised_is_noted(judge, device):
    # What a reference does, with a result that is not contiguous.
    status, record, printed = judge(solution("return torch.triu(torch.matmul(B.mT, A.mT)).mT"), device=device)
    assert status == 0, printed
    notes = {c["name"] for c in record["checks"] if c["verdict"] == "note"}
    assert {"the other triangle is not read", "NaN and Inf stay in their sums"} <= notes


@pytest.mark.parametrize("problem,body", [("upper", "return torch.triu(A @ B)"), ("transposed_a", "return A.mT @ B")])
def test_a_file_for_one_problem_is_judged_by_its_plain_names(judge, problem, body):
    status, record, printed = judge(solution(body), "--problem", problem)
    assert status == 0, printed
    assert record["solution"]["class"] == "ModelNew" and record["reference"]["class"] != "Model"


def test_a_solution_to_another_problem_is_wrong(judge):
    assert judge(solution(f"return {PRODUCT}"), "--problem", "upper")[0] == 1


def test_timing_is_reported_and_recorded(judge):
    status, record, printed = judge((ROOT / "model_new.py").read_text(), "--trials", "5", size=64, timing=True)
    assert status == 0, printed
    for key in ("forward", "forward_backward"):
        for name in ("reference", "solution"):
            t = record["timings"][key][name]
            assert len(t["samples_us"]) == 5
            assert 0 < t["best_us"] <= t["p10_us"] <= t["median_us"] <= t["p90_us"]
        ratio = record["timings"][key]["reference"]["median_us"] / record["timings"][key]["solution"]["median_us"]
        assert record["timings"][key]["ratio"] == pytest.approx(ratio)
    assert f"{record['ratio']:.2f}x" in printed
    assert record["timings"]["forward"]["flops"] == pytest.approx(
        64 * 65 * 66 / 3 / (record["timings"]["forward"]["solution"]["median_us"] * 1e-6)
    )


# ---- Wrong solutions and cheats --------------------------------------------------------------------------------------

# name: (the file, what the failing check must say). Each is right but for the one thing that its name says.
WRONG = {
    "zero in a part of the matrix": (solution(f"C = {PRODUCT}\nC[len(C) // 2 :, : len(C) // 4] = 0\nreturn C"), "worst element C["),
    "last row not written": (solution(f"C = torch.empty_like(A)\nC[:-1] = {PRODUCT}[:-1]\nreturn C"), "= nan, exact"),
    "sums over k = 0..j": (solution("return torch.tril(A * B.diagonal())"), "worst element C["),
    "modifies an input": (solution(f"C = {PRODUCT}\nA[-1, -1] += 1\nreturn C"), "the input A is modified"),
    "modifies it in the last bit": (solution(f"C = {PRODUCT}\nB.view(torch.int32)[-1, 0] ^= 1\nreturn C"), "the input B is modified"),
    "cached by pointer": (
        solution(
            "key = A.data_ptr(), B.data_ptr(), A.shape\n"
            f"if key not in self.kept:\n    self.kept[key] = {PRODUCT}\nreturn self.kept[key].clone()"
        ),
        "worst element C[",
    ),
    "cached by pointer, version and trace": (
        solution(
            "key = A.data_ptr(), B.data_ptr(), A._version, float(A.diagonal().sum()), float(B.diagonal().sum()), len(A)\n"
            f"if key not in self.kept:\n    self.kept[key] = {PRODUCT}\nreturn self.kept[key].clone()"
        ),
        "with the same pointers and new content",
    ),
    "one buffer for every result": (
        solution(f"C = self.kept.setdefault((len(A), A.dtype), torch.empty_like(A))\nC.copy_({PRODUCT})\nreturn C"),
        "shares memory with that of call",
    ),
    "right in the first call": (
        solution(f"self.calls += 1\nreturn {PRODUCT} if self.calls == 1 else torch.zeros_like(A)"),
        "worst element C[",
    ),
    "another dtype": (solution(f"return {PRODUCT}.double()"), "dtype is torch.float64"),
    "another shape": (solution(f"return {PRODUCT}[None]"), "shape is (1, "),
    "not zero above the diagonal": (
        solution(f"return {PRODUCT} + torch.full_like(A, 1e-30).triu(1)"),
        "above the diagonal, where exact zeros belong",
    ),
    "an input as the result": (solution(f"return A.copy_({PRODUCT})"), "shares memory with the input A"),
    "bfloat16 products": (solution("return torch.tril(A.bfloat16() @ B.bfloat16()).float()"), "worst element C["),
    "raises": (solution("raise ValueError('no such luck')"), "the solution raises ValueError: no such luck"),
    "exits": (solution("sys.exit(0)"), "the solution raises SystemExit"),
    "a tensor subclass": (
        solution(f"return {PRODUCT}.as_subclass(Lazy)", "class Lazy(torch.Tensor):\n    pass\n"),
        "not a plain torch.Tensor",
    ),
    "not a tensor": (solution(f"return ({PRODUCT},)"), "the result is a builtins.tuple"),
    "right for multiples of 64": (
        solution("n = len(A) // 64 * 64\nC = torch.zeros_like(A)\nC[:n, :n] = torch.tril(A[:n, :n] @ B[:n, :n])\nreturn C"),
        "worst element C[",
    ),
    "refuses odd sizes": (
        solution(f"if len(A) % 2:\n    raise RuntimeError('odd')\nreturn {PRODUCT}"),
        "the solution raises RuntimeError: odd",
    ),
    "raises on being loaded": ("raise RuntimeError('cannot build')", "raises while it is loaded: RuntimeError: cannot build"),
    "exits on being loaded": ("import sys\nsys.exit(0)", "raises while it is loaded: SystemExit"),
    "does not parse": ("class ModelNew(:\n", "raises while it is loaded: SyntaxError"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_solution_is_found_and_the_fault_named(judge, name, device):
    text, says = WRONG[name]
    status, record, printed = judge(text, size=65, device=device)
    assert status == 1, printed
    assert record["verdict"] == "wrong"
    assert any(says in c["detail"] for c in faults(record)), printed
    assert says in printed


def fault_names(judged):
    status, record, printed = judged
    assert status == 1, printed
    return {c["name"] for c in faults(record)}


def test_accuracy_lost_on_badly_scaled_rows_alone_is_found(judge):
    # A is rounded to 2^-40 of its largest element: better than float32 on ordinary data.
    text = solution("q = A.double().abs().max() * 2.0**-40\nreturn torch.tril((A.double() / q).round() * q @ B.double()).float()")
    status, record, printed = judge(text)
    assert status == 1
    verdicts = {c["name"]: c["verdict"] for c in record["checks"] if c["kind"] == "row"}
    assert verdicts["uniform"] == verdicts["normal"] == "ok", printed
    assert verdicts["rows of A over 16 decades"] == "WRONG"


def test_denormal_inputs_flushed_to_zero_are_found(judge):
    text = solution("A = torch.where(A.abs() < 2.0**-126, 0.0, A)\nreturn torch.tril(torch.matmul(A, B))")
    assert fault_names(judge(text)) == {"denormals and 1e10"}


def test_results_that_differ_from_run_to_run_are_found(judge):
    text = solution(f"return {PRODUCT} * (1 + 2.0**-23 * torch.randint(0, 2, (), device=A.device))")
    assert "bitwise the same on every run" in fault_names(judge(text))


def test_float64_in_float32_arithmetic_is_found(judge):
    names = fault_names(judge(solution("return torch.tril(A.float() @ B.float()).to(A.dtype)"), "--dtype", "float64", size=65))
    assert {"uniform", "normal"} <= names


def test_float64_that_loses_its_last_bits_is_found(judge):
    names = fault_names(judge(solution(f"return {PRODUCT} * (1 + 2.0**-46)"), "--dtype", "float64", size=65))
    assert {"uniform", "normal"} <= names


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_kept_in_16_bits_are_found(judge, dtype):
    text = solution("C = torch.zeros_like(A)\nfor k in range(len(A)):\n    C += A[:, k : k + 1] * B[k]\nreturn C.tril()")
    assert {"uniform", "normal", "signed"} <= fault_names(judge(text, "--dtype", dtype, size=65))


def test_a_cache_that_serves_timed_calls_alone_is_found(judge):
    cheat = (
        f"{FIND_TIMING}if frame is None or len(A) not in self.kept:\n    self.kept[len(A)] = {PRODUCT}\nreturn self.kept[len(A)].clone()"
    )
    assert fault_names(judge(solution(cheat), "--trials", "3", size=64, timing=True)) == {
        "timed calls, forward",
        "timed calls, forward + backward",
    }


def test_a_timed_call_that_leaves_a_part_to_reused_memory_is_found(judge):
    cheat = f"{FIND_TIMING}C = torch.empty_like(A)\nC.copy_({PRODUCT}) if frame is None else C[:1].copy_({PRODUCT}[:1])\nreturn C"
    assert fault_names(judge(solution(cheat), "--trials", "3", size=256, timing=True)) == {
        "timed calls, forward",
        "timed calls, forward + backward",
    }


AUTOGRAD = """
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        ctx.save_for_backward(A, B)
        return torch.tril(A.tril() @ B.tril())

    @staticmethod
    def backward(ctx, G):
        A, B = ctx.saved_tensors
        return {dA}, {dB}
"""


@pytest.mark.parametrize(
    "dA,dB,says",
    [
        ("(G.tril() @ B.tril().mT).tril()", "(A.tril().mT @ G.tril()).tril()", None),
        ("(G.tril() @ B.tril()).tril()", "(A.tril().mT @ G.tril()).tril()", "dA["),
        ("(G.tril() @ B.tril().mT).tril()", "(A.tril() @ G.tril()).tril()", "dB["),
        ("(G.tril() @ B.tril().mT)", "(A.tril().mT @ G.tril()).tril()", "dA is not zero"),
        ("(G.tril() @ B.tril().mT).tril()", "None", "raises RuntimeError"),
    ],
)
def test_gradients_are_judged(judge, dA, dB, says):
    promise = "def tril_matmul(A, B):\n    return Product.apply(A, B)\n"
    status, record, printed = judge(solution("return tril_matmul(A, B)", AUTOGRAD.format(dA=dA, dB=dB) + promise), size=65)
    found = [c for c in record["checks"] if c["name"] == "gradients"]
    if says is None:
        assert found[0]["verdict"] == "ok", printed
    else:
        assert status == 1 and found[0]["verdict"] == "WRONG" and says in found[0]["detail"], printed


def test_who_promises_the_contract_is_held_to_it(judge):
    promise = "def tril_matmul(A, B):\n    return torch.tril(torch.matmul(A.detach(), B.detach()))\n"
    names = fault_names(judge(solution("return tril_matmul(A, B)", promise), size=65))
    assert names == {"the other triangle is not read", "NaN and Inf stay in their sums", "gradients"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_work_that_leaves_the_current_stream_is_found(judge):
    body = f"with torch.cuda.stream(STREAM):\n    C = {PRODUCT}\nreturn C"
    names = fault_names(judge(solution(body, "STREAM = torch.cuda.Stream()\n"), size=1000, device="cuda"))
    assert "work on the current stream" in names


# ---- Exit status 2 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv,says",
    [
        (["--size", "0"], ["--size", "'0'", "whole number from 1"]),
        (["--size", "-3"], ["--size", "-3"]),
        (["--size", "big"], ["--size", "'big'", "whole number"]),
        (["--trials", "-1"], ["--trials", "-1", "whole number from 1"]),
        (["--trials", "2.5"], ["--trials", "'2.5'"]),
        (["--seed", "-1"], ["--seed", "-1", "whole number from 0"]),
        (["--dtype", "int8"], ["--dtype", "'int8'", "float32", "bfloat16"]),
        (["--problem", "dense"], ["--problem", "'dense'", "transposed_a"]),
        (["--device", "mps"], ["--device", "'mps'", "cpu, cuda"]),
        (["--device", "tpu"], ["--device", "'tpu'", "cpu, cuda"]),
        (["--device", "cuda:99"], ["--device", "'cuda:99'"]),
        (["--json", "no/such/folder/record.json"], ["--json", "no/such/folder", "existing folder"]),
        (["--json", "."], ["--json", "is a folder"]),
        (["--export", "no/such/folder/file.py"], ["--export", "no/such/folder"]),
        (["--solution", "missing.py"], ["--solution", "missing.py", "No such file"]),
        (["--solution", "."], ["--solution", "cannot be read"]),
        (["--reference", "missing.py"], ["--reference", "missing.py", "No such file"]),
        (["--unknown"], ["--unknown"]),
    ],
)
def test_a_bad_option_says_what_was_given_and_what_is_accepted(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check.main(argv) == 2
    printed = capsys.readouterr().err
    assert all(s in printed for s in says), printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_no_verdict(capsys):
    assert check.main(["--device", "cuda"]) == 2
    assert "sees no CUDA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option,text,says",
    [
        ("--solution", "x = 1\n", "defines no class ModelNew"),
        ("--reference", "x = 1\n", "get_inputs"),
        ("--reference", "def get_inputs():\n    return []\n", "defines no class Model"),
        ("--reference", "raise RuntimeError('boom')\n", "raises while it is loaded: RuntimeError: boom"),
        ("--reference", (ROOT / "reference_model.py").read_text().replace("torch.tril(torch.matmul(A, B))", "A + B"), "does not compute"),
        ("--reference", (ROOT / "reference_model.py").read_text().replace("torch.matmul(A, B)", "1 / 0"), "raises ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_serve_is_no_verdict(option, text, says, tmp_path, capsys):
    (tmp_path / "file.py").write_text(text)
    (tmp_path / "good.py").write_text(solution(f"return {PRODUCT}"))
    argv = ["--size", "8", "--no-timing", "--device", "cpu", "--solution", str(tmp_path / "good.py"), option, str(tmp_path / "file.py")]
    assert check.main(argv) == 2
    assert says in capsys.readouterr().err


# ---- The record ------------------------------------------------------------------------------------------------------


def test_the_record_holds_what_is_needed_to_repeat_the_run(judge, tmp_path):
    text = solution(f"return {PRODUCT}")
    _, first, printed = judge(text, "--seed", "7", size=65)
    _, again, _ = judge(text, "--seed", "7", size=65)
    _, other, _ = judge(text, size=65)
    assert "--seed 7" in printed and first["seed"] == 7 != other["seed"]
    assert [c.get("error") for c in first["checks"]] == [c.get("error") for c in again["checks"]]
    assert [c.get("error") for c in first["checks"]] != [c.get("error") for c in other["checks"]]
    assert first["machine"]["torch"] == torch.__version__ and first["machine"]["device"] == "cpu" and first["options"]["size"] == 65
    assert len(first["solution"]["sha256"]) == len(first["reference"]["sha256"]) == 64
    assert first["verdict"] == "ok" and not first["timings"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["record.json", "solution.py"]  # nothing temporary is left


def test_a_record_of_nan_and_inf_is_json_all_the_same(judge, tmp_path):
    judge(solution("return torch.full_like(A, math.nan).tril()"), size=8)
    rows = json.loads((tmp_path / "record.json").read_text(), parse_constant=pytest.fail)["checks"]
    assert rows[0]["error"] == "inf"


# ---- Export ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["lower", "upper", "transposed_a"])
def test_an_exported_file_serves_kernelbench(problem, tmp_path, capsys):
    path = tmp_path / f"{problem}.py"
    argv = ["--problem", problem, "--export", str(path)]
    assert check.main(argv) == 0
    assert str(path) in capsys.readouterr().out
    names = {}
    exec(path.read_text(), names)
    model = names["ModelNew"](*names["get_init_inputs"]())
    shapes = [tuple(X.shape) for X in names["get_inputs"]()]
    assert shapes == ([(8192, 2048), (8192, 4096)] if problem == "transposed_a" else [(4096, 4096)] * 2)
    A, B = (torch.randn(33, 33, dtype=torch.float64) for _ in range(2))
    expected = {"lower": A.tril() @ B.tril(), "upper": A.triu() @ B.triu(), "transposed_a": A.mT @ B}[problem]
    torch.testing.assert_close(model(A, B), expected)

    before = path.read_text()
    assert check.main(argv) == 2  # and never overwrites
    assert "exists already" in capsys.readouterr().err and path.read_text() == before


def test_what_cannot_be_exported_is_said(tmp_path, capsys):
    (tmp_path / "one.py").write_text(solution(f"return {PRODUCT}"))
    argv = ["--solution", str(tmp_path / "one.py"), "--problem", "upper", "--export", str(tmp_path / "out.py")]
    assert check.main(argv) == 2
    assert "UpperModelNew" in capsys.readouterr().err and not (tmp_path / "out.py").exists()


# ---- The measures themselves -----------------------------------------------------------------------------------------


def test_the_float64_truth_is_exact_to_the_last_bit_and_beyond():
    generator = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(4, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    X, Y = X * 10.0 ** torch.arange(-6, 6, 3).double(), Y * 10.0 ** torch.arange(6, -6, -3).double()
    high, low = check.exact_product(X, Y)
    for i in range(4):
        for j in range(4):
            exact = sum(Fraction(float(X[i, k])) * Fraction(float(Y[k, j])) for k in range(4))
            assert abs(Fraction(float(high[i, j])) + Fraction(float(low[i, j])) - exact) <= abs(exact) * Fraction(1, 2**95)


def test_products_that_may_underflow_are_known():
    generator = torch.Generator().manual_seed(2)
    X, Y = (10.0 ** (-30 * torch.rand(20, 20, generator=generator)) for _ in range(2))
    X[3], Y[:, 4] = 0, 0
    smallest = torch.where(X[:, :, None] * Y.double() > 0, X[:, :, None].double() * Y.double(), math.inf).amin(1)
    hits = check.may_underflow(X, Y)
    assert bool(hits[smallest < 2.0**-126].all()) and not bool(hits[smallest > 2.0**-124].any())


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_nobody_wrote_is_nan(device):
    for n in (1, 64, 1000):
        with check.poisoned(torch.device(device), 4 * n * n):
            assert bool(torch.empty(n, n, device=device).isnan().all())


def test_the_command_line_works_from_anywhere(tmp_path):
    (tmp_path / "good.py").write_text(solution(f"return {PRODUCT}"))
    (tmp_path / "wrong.py").write_text(solution("return A.tril()"))
    for name, status in (("good.py", 0), ("wrong.py", 1)):
        command = [sys.executable, str(ROOT / "check.py"), "--size", "16", "--no-timing", "--device", "cpu", "--solution", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stdout + done.stderr
        assert "check.py: conduct" in done.stderr  # progress goes to stderr, the report to stdout
        assert ("all holds" in done.stdout) == (status == 0)

"""The benchmark writes records with all that a reader needs, and the tables in the documents are made from them and nothing else."""

import contextlib
import functools
import json
import math
import re
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import sanitize
import torch
from helpers import HAS_CUDA, ROOT, module, needs_cuda

import check

SPECIAL_DTYPES = ("float16", "bfloat16", "float64")
ROW_FIELDS = {"group", "problem", "shape", "N", "dtype", "inputs", "path", "reference", "ours", "ratio", "trials", "compared"}

# A solution as slow and as right as the reference, gradients included: these tests are about the benchmark.
STAND_IN = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, A, B):
        C = torch.tril(torch.matmul(A.tril(), B.tril()))
        if C.isfinite().all():
            return C
        i, k, j = torch.meshgrid(*[torch.arange(A.shape[-1])] * 3, indexing="ij")
        return torch.where((i >= k) & (k >= j), A[..., None] * B[..., None, :, :], 0).sum(-2)
class UpperModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.triu(torch.matmul(A, B))
class TransposedAModelNew(torch.nn.Module):
    def forward(self, A, B):
        return torch.matmul(A.mT, B)
def tril_matmul(A, B):
    return ModelNew()(A, B)
def triangular_matmul(A, X):
    return A.tril() @ X
def gram(X, structure="dense"):
    X = X.tril() if structure == "lower" else X
    return X @ X.mT
def lu_matmul(L, U):
    return L.tril() @ U.triu()
def triangular_inverse(L):
    return torch.linalg.solve_triangular(L.tril(), torch.eye(L.shape[-1], dtype=L.dtype), upper=False)
_CUDA_SOURCES = _NVCC_FLAGS = []
"""
PTXAS = """ptxas info    : Compiling entry function '_Z11mma_productIdLi64ELb1ELb1EEv7Producti' for 'sm_80'
ptxas info    : Function properties for _Z11mma_productIdLi64ELb1ELb1EEv7Producti
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 140 registers, used 1 barriers, 8 bytes cumulative stack size
"""


@pytest.fixture
def suites(monkeypatch):
    loaded = module("benchmark")
    monkeypatch.setattr(loaded, "BATCHES", ((3, 40),))
    monkeypatch.setattr(loaded, "CHECKS", (("lower", "float32", "auto"),))
    monkeypatch.setattr(loaded, "TRANSPOSED_A_SHAPES", ((50, 30, 40),))
    monkeypatch.setattr(loaded, "HOST_CALLS", 3)
    monkeypatch.setattr(loaded, "WARM_IMPORTS", 1)  # each takes torch's own seconds
    monkeypatch.setattr(loaded, "MOST_ATTEMPTS", 2)  # other tests run beside these
    monkeypatch.setattr(loaded, "find_nvcc", lambda: sys.executable)
    monkeypatch.setattr(loaded, "ptxas_report", lambda sources, flags, architecture: PTXAS)
    # load() puts what it reads where `import` would find it; the other tests' model_new must not be this one
    for name in ("stand_in", "reference_model", "model_new"):
        if name in sys.modules:
            monkeypatch.setitem(sys.modules, name, sys.modules[name])
    yield loaded
    sys.modules.pop("stand_in", None)


@pytest.fixture
def tables():
    return module("tables")


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return path


def ncu_output():
    """What ncu prints for three calls of one kernel."""
    lines = ["==PROF== Connected to process 1", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    for call in range(3):
        kernel = f'"{call}","void hopper_product<(Contraction)0>(HopperProduct)"'
        lines += [
            f'{kernel},"gpu__time_duration.sum","ns","15{call},000"',
            f'{kernel},"lts__t_sector_hit_rate.pct","%","71.75"',
            f'{kernel},"dram__bytes.sum.per_second","byte/s","n/a"',
        ]
    return "\n".join(lines)


DEVICES_ROW = {"what": "64 x 64, columns", "mode": "forward", "one_ms": 70.2, "together_ms": 34.9, "ratio": 2.01, "norm_error": 1.8e-7}


CYCLES_ROW = {"N": 2048, "inputs": "uniform", "what": "forward", "tiles": 1.06, "kernel_cycles": 55225, "clock_ghz": 1.78, "zeros": 14926}
CYCLES_ROW |= dict.fromkeys(("start", "previous_kernel", "first_stage", "main_loop", "chains", "epilogue", "next_stage", "exit"), 6000)
CYCLES_ROW["idle_at_end"] = 7225


def run_suites(suites, stand_in, folder, *names):
    """Suites at toy sizes, on the CPU: what they measure there means nothing, but all of their code runs."""
    real = subprocess.run

    def run(command, **rest):
        if command[0] == "ncu":  # the profiler itself is NVIDIA's
            return subprocess.CompletedProcess(command, 0, stdout=ncu_output(), stderr="")
        if check.__file__ in command:  # the judge, by a call: a process of its own takes seconds to begin
            return subprocess.CompletedProcess(command, check.main([*command[2:], "--trials", "6"]), stdout="", stderr="")
        if str(suites.ROOT / "benchmarks" / "cycles.py") in command:  # it builds the kernels for a GPU
            return subprocess.CompletedProcess(command, 0, stdout=json.dumps(CYCLES_ROW) + "\n", stderr="")
        if "torch.distributed.run" in command:  # two GPUs
            Path(command[-1]).write_text(json.dumps([DEVICES_ROW, {**DEVICES_ROW, "mode": "forward + backward", "all_reduce_ms": 12.7}]))
            return subprocess.CompletedProcess(command, 0, stdout="", stderr="")
        return real(command, **rest)

    for name in names:
        bench = suites.Bench("cpu", stand_in, trials=5, sizes=[24, 40])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(suites.subprocess, "run", run)
            for limit, value in (("REQUEST_SECONDS", {"cpu": 0.02}), ("MOST_CALLS", {"cpu": 24}), ("CHECK_SECONDS", 1.0), ("ROUNDS", 2)):
                patch.setattr(check, limit, value)
            assert suites.run_suite(name, bench, folder, commit="abc123") == []


def test_an_older_file_is_timed_in_turns(suites, stand_in, tmp_path, monkeypatch, capsys):
    """Every product has a side `before`, with its error. Rows that take more than 2 % longer than that side are listed at the end."""
    before = tmp_path / "before.py"
    before.write_text(STAND_IN)
    bench = suites.Bench("cpu", stand_in, trials=5, sizes=[24], against=before)
    assert bench.against.__file__ == str(before) and bench.solution.__file__ == str(stand_in)
    us = {"reference": 9.0, "before": 10.0, "ours": 10.1}
    monkeypatch.setattr(bench, "alternate", lambda calls: {side: {**SIDE, "median_us": us.get(side, 1.0)} for side in calls})
    for ours, listed in ((10.1, 0), (10.3, 1)):
        us["ours"] = ours
        for suite in ("family", "backward"):
            assert suites.run_suite(suite, bench, tmp_path, commit="abc123") == []
            rows = json.loads((tmp_path / f"{suite}.json").read_text())["rows"]
            compared = [row for row in rows if row.get("what") != "L^-1"]
            assert len(compared) >= 3 and not any("before" in row for row in rows if row not in compared)
            assert all(row["change"] == pytest.approx(ours / 10 - 1) and row["before"]["worst_error"] < 1e-2 for row in compared)
            assert capsys.readouterr().out.count("+3.0 % against `before`") == listed * len(compared)


def test_sides_take_turns_in_random_order(suites):
    order = []
    suites.Bench("cpu", trials=30).alternate({side: functools.partial(order.append, side) for side in ("reference", "ours", "before")})
    rounds = [tuple(order[n : n + 3]) for n in range(0, len(order), 3)]
    assert len(rounds) >= 30 and all(len({*each}) == 3 for each in rounds) and len({*rounds}) == 6


def test_the_last_call_is_what_the_profile_tells(suites, stand_in, tmp_path):
    run_suites(suites, stand_in, tmp_path, "profile")
    (row,) = json.loads((tmp_path / "profile.json").read_text())["rows"]
    assert row == {"kernel": "hopper_product", "duration": [152000.0, "ns"], "l2_hit_rate": [71.75, "%"]}


def test_tools_look_at_kernels_that_exist(suites, model):
    """ncu and compute-sanitizer are told names of kernels; one that is no kernel's any more would only make them see less."""
    kernels = set(re.findall(r"__global__ void (?:__launch_bounds__\(.*\)\s+)?(\w+)\(", "\n".join(model._CUDA_SOURCES)))
    assert len(kernels) == "\n".join(model._CUDA_SOURCES).count("__global__ void")
    assert set(suites.PROFILED_KERNELS) <= kernels
    assert all(any(name in kernel for name in sanitize.NAMED) for kernel in kernels), kernels
    assert all(any(name in kernel for kernel in kernels) for name in sanitize.NAMED), kernels


# ---- benchmark.py ----------------------------------------------------------------------------------------------------


def test_cpu_suite_in_a_shell(tmp_path):
    script = str(ROOT / "benchmarks" / "benchmark.py")
    arguments = ["--suite", "cpu", "--sizes", "64", "128", "--trials", "6", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert record["suite"] == "cpu" and record["complete"] and record["failures"] == []
    assert set(record["versions"]) == {"torch", "cuda", "driver", "python"}
    assert record["versions"]["torch"] == torch.__version__
    assert {"device", "capability", "commit", "date", "trials", "seed", "solution_sha256"} <= set(record)
    assert [(row["problem"], row["N"]) for row in record["rows"]] == [(p, N) for p in ("lower", "lower, dA, dB") for N in (64, 128)]
    for row in record["rows"]:
        assert set(row) >= ROW_FIELDS
        for side in ("reference", "ours"):
            times = row[side]
            assert 0 < times["best_us"] <= times["p10_us"] <= times["median_us"] <= times["p90_us"]
            assert 0 < times["norm_error"] < 1e-5 and 0 < times["worst_error"] < 1e-5
        assert row["ratio"] == row["reference"]["median_us"] / row["ours"]["median_us"]
        assert row["within_contract"] is True
        assert row["useful_flop"] == row["N"] * (row["N"] + 1) * (row["N"] + 2) / (3 if row["problem"] == "lower" else 1)


def test_every_suite_and_every_table(suites, tables, stand_in, quick, tmp_path):
    results = tmp_path / "results"
    run_suites(suites, stand_in, results, *suites.SUITES)
    for name in ("wanted", "sanitizers", "soak"):  # which other programs write
        kept = json.loads((tables.ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        (results / f"{name}.json").write_text(json.dumps({**kept, "commit": "abc123"}))
    assert {path.stem for path in results.iterdir()} == {*suites.SUITES, "wanted", "sanitizers", "soak"}
    (results / "h100").mkdir()  # another GPU's
    (results / "h100" / "forward.json").write_bytes((results / "forward.json").read_bytes())
    made = {**{name: suite for name, (suite, *_) in tables.TABLES.items()}, "h100/forward": "h100/forward"}
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- begin: {name} -->\n<!-- end: {name} -->\n" for name in [*made, *tables.SENTENCES]))
    arguments = ["--results", str(results), "--files", str(page)]
    assert tables.main(arguments) == 0
    text = page.read_text()
    for name, suite in made.items():
        body = text.split(f"<!-- begin: {name} -->")[1].split(f"<!-- end: {name} -->")[0].strip().splitlines()
        columns = body[0].count("|")
        assert len(body) >= 5, f"table {name} is empty"
        assert all(line.count("|") == columns for line in body if line.startswith("|")), f"table {name} is ragged"
        assert body[-1].endswith(f"commit abc123, from benchmarks/results/{suite}.json.")
    for name in tables.SENTENCES:
        assert text.split(f"<!-- begin: {name} -->")[1].split(f"<!-- end: {name} -->")[0].strip(), f"{name} says nothing"
    assert tables.main([*arguments, "--check"]) == 0


def test_a_ratio_that_the_judge_does_not_certify_is_called_too_noisy(tables):
    Row = tables.Row
    rows = [
        Row(path="auto", dims=str(size), dtype="float32", timings={"gradients": Row(ratio=ratio)})
        for size, ratio in ((64, None), (96, 2.0), (128, 1.5))
    ]
    backward, host = [Row(N=128, dtype="float32", problem="lower, dA, dB", ratio=1.75)], [Row(mode="plain", tril_matmul=Row(median_us=9.0))]
    assert tables.columns(rows[:1], {"ratio": "{timings[gradients].ratio}"}).splitlines()[-1] == "| too noisy |"
    assert "for 128, forward and backward, check.py says 1.50x" in tables.short_calls(rows, backward, host)
    assert "for 64, forward and backward, check.py says too noisy" in tables.short_calls(rows[:1], backward, host)


def test_the_judge_is_asked_as_the_list_says(suites, stand_in, tmp_path, monkeypatch):
    """The rows in the order of CHECKS; a verdict against the solution is a failure of its row alone. No row keeps the single calls."""
    monkeypatch.setattr(suites, "CHECKS", [("lower", "float32", "auto", "--tf32"), ("upper", "float16", "mma")])

    def run(*command, TRIL_MATMUL_PATH, **rest):
        times = {who: {"us": 2.0, "each": [{"outside_us": 2.0, "inside_us": [2.0]}]} for who in ("alone", "reference", "solution")}
        verdict = {"verdict": "ok", "sentence": f"{TRIL_MATMUL_PATH}: {' '.join(command)}", "timings": {"forward": times}}
        verdict |= {"verdict": "wrong", "timings": {}} if "upper" in command else {}  # convicted before anything is timed
        Path(command[command.index("--json") + 1]).write_text(json.dumps(verdict))

    monkeypatch.setattr(suites, "run", run)
    (failure,) = suites.run_suite("check", suites.Bench("cpu", stand_in), tmp_path, commit="abc123")
    first, second = json.loads((tmp_path / "check.json").read_text())["rows"]
    assert first["sentence"].startswith("auto: ") and "--problem lower --dtype float32 --tf32 --json" in first["sentence"]
    assert first["timings"]["forward"] == {who: {"us": 2.0} for who in ("alone", "reference", "solution")} and not second["timings"]
    assert failure == f"check upper float16 mma: {second['sentence']}" and (second["path"], second["dtype"]) == ("mma", "float16")


def test_peers_that_are_not_there_say_why(suites, stand_in, tmp_path):
    run_suites(suites, stand_in, tmp_path, "peers")
    rows = json.loads((tmp_path / "peers.json").read_text())["rows"]
    assert [(row["N"], row["dtype"]) for row in rows] == [(24, "float32"), (40, "float32"), *((40, dtype) for dtype in SPECIAL_DTYPES)]
    for row in rows:
        assert {"reference", "ours", "blocked"} <= set(row) and set(row["skipped"]) == {"tf32", "strmm", "triton"} - set(row)
    assert "no TRMM for float16" in rows[2]["skipped"]["strmm"]


def test_a_wrong_peer_is_not_timed(suites, stand_in, tmp_path, monkeypatch):
    peers = module("peers")
    monkeypatch.setitem(peers.PEERS, "blocked", lambda A, B: lambda: torch.matmul(A, B) * 1.1)
    monkeypatch.setattr(suites, "load", lambda path, load=suites.load: peers if path.stem == "peers" else load(path))
    bench = suites.Bench("cpu", stand_in, trials=5, sizes=[24])
    monkeypatch.setattr(bench, "alternate", lambda *calls: pytest.fail("something wrong is timed"))
    failures = suites.run_suite("peers", bench, tmp_path)
    assert len(failures) == 4 and "nothing is timed, because of blocked: worst error 1.00e-01" in failures[0]


@pytest.mark.parametrize("N", [7, 1024, 1500])
def test_blocked_products(N):
    A, B = (torch.randn(N, N, dtype=torch.float64).tril() for _ in range(2))
    torch.testing.assert_close(module("peers").blocked(A, B)(), A @ B)


def test_tiles_come_longest_first():
    order = module("peers")._tile_order(512, 128, 256, "cpu").tolist()
    assert sorted(order) == [[i, j] for i in range(4) for j in range(2)]
    assert order[0] == [3, 0] and order[-2:] == [[0, 1], [1, 1]]


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_peers_on_a_gpu_compute_the_product(dtype):
    peers, before = module("peers"), torch.get_float32_matmul_precision()
    A, B = (torch.randn(512, 512, device="cuda", dtype=dtype).tril() for _ in range(2))
    for name, prepare in peers.PEERS.items():
        try:
            C = prepare(A, B)()
        except peers.Unavailable:
            continue
        assert not C.triu(1).any(), name
        torch.testing.assert_close(C.double(), A.double() @ B.double(), atol=0.1, rtol=0.01, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.get_float32_matmul_precision() == before


@needs_cuda
def test_gpu_suites_in_a_shell(tmp_path):
    script = str(ROOT / "benchmarks" / "benchmark.py")
    names = ["forward", "mma", "backward", "host"]
    arguments = ["--suite", *names, "--sizes", "64", "200", "--trials", "5", "--out", str(tmp_path), "--commit", "abc123"]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for suite in names:
        record = json.loads((tmp_path / f"{suite}.json").read_text())
        assert record["complete"] and record["commit"] == "abc123" and record["capability"], record
    assert {row["path"] for row in json.loads((tmp_path / "mma.json").read_text())["rows"]} == {"mma"}


def test_what_ptxas_says(suites):
    row = {"kernel": "_Z11mma_productIdLi64ELb1ELb1EEv7Producti", "registers": 140, "stack_bytes": 8, "spilled_bytes": 0}
    assert suites.kernels_of(PTXAS) == [row]


def test_a_spill_of_a_kernel_is_not_hidden_by_a_function_that_it_calls(suites):
    called = """ptxas info    : Function properties for correct_tile
    16 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads
"""
    (row,) = suites.kernels_of(PTXAS.replace("0 bytes spill loads", "4 bytes spill loads") + called)
    assert (row["spilled_bytes"], row["stack_bytes"]) == (12, 16)


def test_a_spill_is_a_failure(suites, stand_in, tmp_path, monkeypatch):
    spilling = PTXAS.replace("0 bytes spill stores", "4 bytes spill stores")
    monkeypatch.setattr(suites, "ptxas_report", lambda sources, flags, architecture: spilling if architecture == "sm_86" else PTXAS)
    failures = suites.run_suite("registers", suites.Bench("cpu", stand_in), tmp_path)
    assert len(failures) == 1 and "registers on sm_86: _Z11mma_product" in failures[0] and "spills 4 bytes" in failures[0]


def test_a_wrong_result_is_a_failure(suites, stand_in, tmp_path):
    stand_in.write_text(STAND_IN.replace("C = torch.tril(torch.matmul(A.tril(), B.tril()))", "C = torch.matmul(A, B) * 1.001"))
    failures = suites.run_suite("cpu", suites.Bench("cpu", stand_in, trials=5, sizes=[24]), tmp_path)
    assert len(failures) == 2 and "lower 24 float32 uniform: worst error 1.00e-03" in failures[0] and "dA, dB 24" in failures[1]
    assert json.loads((tmp_path / "cpu.json").read_text())["rows"][0]["within_contract"] is False


def test_a_failing_row_costs_that_row_alone(suites, stand_in, tmp_path):
    stand_in.write_text(STAND_IN.replace("class UpperModelNew", "class Other"))
    failures = suites.run_suite("problems", suites.Bench("cpu", stand_in, trials=5, sizes=[24]), tmp_path)
    assert len(failures) == 1 and "upper 24" in failures[0] and "UpperModelNew" in failures[0]
    record = json.loads((tmp_path / "problems.json").read_text())
    assert [row["problem"] for row in record["rows"]] == ["lower", *["transposed_a"] * 3] and record["failures"] == failures


def test_a_failing_suite_is_reported(suites, stand_in, tmp_path):
    stand_in.write_text("raise RuntimeError('no such kernel')")
    failures = suites.run_suite("host", suites.Bench("cpu", stand_in, trials=5), tmp_path)
    assert failures == ["host: RuntimeError: no such kernel"]
    assert json.loads((tmp_path / "host.json").read_text())["complete"] is False


def test_errors_of_float64_are_exact(suites):
    torch.manual_seed(3)
    X, Y = (torch.randn(30, 30, dtype=torch.float64) for _ in range(2))
    C = X @ Y
    worst = 0
    for i in range(30):
        for j in range(30):
            terms = [Fraction(float(X[i, k])) * Fraction(float(Y[k, j])) for k in range(30)]
            worst = max(worst, abs(Fraction(float(C[i, j])) - sum(terms)) / sum(map(abs, terms)))
    wrong = C.clone()
    wrong += 1e-9
    ((norm, found), (_, of_wrong)), compared = suites.product_errors(X, Y, [C, wrong])
    assert 0 < found <= float(worst) * (1 + 1e-12) and found >= float(worst) * (1 - 1e-12)  # the very worst: all are compared
    assert 0 < norm < 1e-15 and of_wrong > 1e-11 and "exact" in compared


def test_errors_beyond_the_triangle_and_nan_are_seen(suites):
    A, B = torch.rand(20, 20).tril(), torch.rand(20, 20).tril()
    beyond, nan = (A @ B).tril(), (A @ B).tril()
    beyond[0, 19], nan[0, 19] = 1e-30, math.nan
    (right, outside, poisoned), _ = suites.product_errors(A, B, [(A @ B).tril(), beyond, nan])
    assert right[1] < 1e-6 and outside[1] == math.inf and math.isnan(poisoned[1])


def test_rows_and_columns_are_sampled_at_large_sizes(suites, monkeypatch):
    monkeypatch.setattr(suites, "FULL_ERROR_EDGE", 30)
    monkeypatch.setattr(suites, "SAMPLED_LINES", 8)
    A, B = torch.rand(40, 40).tril(), torch.rand(40, 40).tril()
    ((norm, worst),), compared = suites.product_errors(A, B, [(A @ B).tril()])
    assert 0 < norm < 1e-6 and 0 < worst < 1e-6 and compared == "8 random rows and columns"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "0"], "--sizes: '0' is given; a whole number from 1 to 1000000000 is accepted"),
        (["--trials", "1.5"], "--trials: '1.5' is given; a whole number from 1 to 1000000000 is accepted"),
        (["--suite", "speed"], "argument --suite: invalid choice: 'speed'"),
        (["--suite", "cpu", "--solution", "README.md"], "--solution: README.md is no Python file"),
        (["--suite", "cpu", "--solution", "nowhere.py"], "--solution: nowhere.py is no Python file"),
        (["--suite", "cpu", "--against", "nowhere.py"], "--against: nowhere.py is no Python file"),
        (["--suite", "cpu", "--against", "check.py"], "holds the records of one file; with --against, another folder is accepted"),
        pytest.param(
            ["--suite", "cpu", "forward"],
            "--suite: forward need a CUDA GPU, and torch sees none; accepted without one: registers, cpu, nan",
            marks=pytest.mark.skipif(HAS_CUDA, reason="a CUDA GPU is visible"),
        ),
    ],
)
def test_bad_arguments(suites, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        suites.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_forced_path_is_not_recorded_as_the_usual_one(suites, monkeypatch, capsys):
    monkeypatch.setenv("TRIL_MATMUL_PATH", "mma")
    with pytest.raises(SystemExit):
        suites.main(["--suite", "cpu"])
    assert "TRIL_MATMUL_PATH is 'mma'" in capsys.readouterr().err


def test_the_forced_suite_has_a_process_of_its_own_and_the_same_arguments(suites, monkeypatch):
    seen = []

    def run(command, env):
        seen.append((command, env["TRIL_MATMUL_PATH"]))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.delenv("TRIL_MATMUL_PATH", raising=False)
    monkeypatch.setattr(suites.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(suites.subprocess, "run", run)
    assert suites.main(["--suite", "mma", "--sizes", "64", "200", "--commit", "abc123"]) == 1  # as its process ended
    ((command, path),) = seen
    monkeypatch.setenv("TRIL_MATMUL_PATH", path)
    given = suites.parse_arguments(command[2:])
    assert (given.suite, given.sizes, given.commit, path) == (["mma"], [64, 200], "abc123", "mma")


# ---- tables.py -------------------------------------------------------------------------------------------------------

SIDE = {"median_us": 2728.1, "p10_us": 2720.0, "p90_us": 2741.0, "norm_error": 7.3e-7, "worst_error": 3.9e-6}


def record_of(N, **changes):
    """A made-up record of the CPU suite."""
    row = {
        "group": "cpu",
        "dtype": "float32",
        "shape": str(N),
        "reference": SIDE,
        "ours": {**SIDE, "median_us": 156.78},
        "ratio": 17.4,
        "within_contract": True,
    }
    return {
        "suite": "cpu",
        "device": "a device",
        "versions": {"torch": "2.11.0", "cuda": "13.0", "driver": None, "python": "3.12"},
        "commit": "abc123",
        "date": "2026-11-20",
        "complete": True,
        "failures": [],
        "rows": [row],
        **changes,
    }


def rows_of(tables, *rows):
    """Made-up rows, as tables.py reads those of a record."""
    return json.loads(json.dumps(rows), object_hook=tables.Row)


@pytest.fixture
def page(tmp_path):
    """A page with one table, and the arguments that name it."""
    (tmp_path / "cpu.json").write_text(json.dumps(record_of(4096)))
    path = tmp_path / "page.md"
    path.write_text("before\n\n<!-- begin: cpu -->\nold\n<!-- end: cpu -->\n\nafter µ\n", encoding="utf-8")
    return path, ["--results", str(tmp_path), "--files", str(path)]


NOISY = {**SIDE, "median_us": 32.0, "p10_us": 7.4, "p90_us": 62.0}


def test_where_one_side_was_disturbed_no_ratio_is_given(tables):
    row = record_of(4096)["rows"][0]
    for changed, said in (
        ({}, ["2,728", "157 (2,720 to 2,741)", "17.4x"]),
        ({"reference": NOISY}, ["32.0 (7.4 to 62.0)", "157 (2,720 to 2,741)", "–"]),
        ({"ours": NOISY}, ["2,728", "32.0 (7.4 to 62.0)", "–"]),
    ):
        (told,) = rows_of(tables, row | changed)
        assert tables.columns([told], tables.SPEED).splitlines()[-1] == f"| {' | '.join(said)} |"


@pytest.mark.parametrize("disturbed", [0, 1, 9])
def test_a_row_that_others_disturb_is_measured_again(suites, monkeypatch, disturbed):
    """The spreads are those of the last attempt, and how many there were stands beside them."""
    seen, quiet = [], {**SIDE, "best_us": 2715.0}

    def spread(samples):
        attempt, side = divmod(len(seen), 2)
        seen.append(len(samples))
        return {**NOISY, "best_us": 7.0} if attempt < disturbed and side == 0 else quiet

    monkeypatch.setattr(suites.measures, "spread", spread)
    told = suites.Bench("cpu", trials=5).alternate({"reference": lambda: None, "ours": lambda: None})
    attempts = min(disturbed, suites.MOST_ATTEMPTS - 1) + 1
    assert (told["attempts"], told["trials"], seen) == (attempts, 5, [5] * 2 * attempts)
    assert told["ours"] == quiet and (told["reference"] == quiet) == (disturbed < 2)


@pytest.mark.parametrize(
    ("product", "at", "value"),  # `at`: of the records that the table is made from, the last two of a CPU and of the mma kernel
    [("4096", 0, 18), ("4096, beside cuBLAS", 0, 6), ("4096, of a copy's rate", 0, 0.5), ("4096, on a CPU", -2, 18)]
    + [("4096, mma kernel forced", -1, 18)],
)
def test_what_was_wanted_is_met_or_has_its_reason(tables, product, at, value):
    row = {**record_of(4096)["rows"][0], "group": "sizes", "problem": "lower", "dtype": "float32", "inputs": "uniform", "ratio": 18}
    row |= {side: {"median_us": factor * row["ours"]["median_us"]} for side, factor in (("cublas", 6), ("copy", 0.4))}
    for asked, said in ((value, "| met |"), (value * 1.01, "| packing |")):
        records = [[] for _ in range(7)]
        records[at] = rows_of(tables, row, {**row, "inputs": "normal", "ratio": 99})
        assert said in tables.wanted(rows_of(tables, {"product": product, "ratio": asked, "why": "packing"}), *records)
        records[at] = rows_of(tables, {**row, "reference": NOISY})
        told = tables.wanted(rows_of(tables, {"product": product, "ratio": asked}), *records)
        assert told.endswith("| – | no record that nothing disturbed |")


def test_all_that_is_slower_is_named_once(tables):
    row = {"problem": "lower", "shape": "64", "dtype": "float32", "ratio": 0.5, "reference": SIDE, "ours": SIDE}
    gram = {**row, "what": "X X^T", "dtype": "bfloat16"}
    family = [{**gram, "shape": f"{N} x {N}", "ratio": value} for N, value in ((512, 0.9), (2048, 1.1))]
    noisy = {"reference": NOISY, "ours": NOISY | {"p10_us": 10.0}}  # the quiet calls are slower
    family.append({**family[-1], "shape": "256 x 256", **noisy})
    records = [{**row, "dtype": "float16"}, {**row, "ratio": 2.0}], [{**row, "dtype": "float16"}], family, [row]
    records = [rows_of(tables, *rows) for rows in records]
    expected = [("GPU", "64, float16", "0.50x"), ("GPU", "X X^T, 512×512, bfloat16", "0.90x"), ("GPU", "X X^T, 256×256, bfloat16", "0.74x")]
    expected.append(("CPU", "64", "0.50x"))
    assert named_ratios(tables.slower(*records)) == expected
    assert named_ratios(tables.slowest(*records)) == [expected[0], expected[2], expected[3]]


def named_ratios(table):
    """(machine, product, ratio) of each row of a table of what is slower."""
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [(machine, product, told) for machine, product, _, _, told in cells]


def test_ratios_stand_by_dtype(tables):
    """A dash where a dtype was not measured or others disturbed it; no product of one dtype alone."""
    row = {"problem": "lower", "shape": "4096", "N": 4096, "dtype": "float32", "ratio": 16.7, "reference": SIDE, "ours": SIDE}
    forward = [row, {**row, "dtype": "float16", "ratio": 4.2}, {**row, "dtype": "float64", "ratio": 4.9, "reference": NOISY}]
    batch = [{**row, "shape": f"{count} x 512 x 512", "N": 512, "dtype": dtype} for count in (1, 2, 3) for dtype in ("float32", "float16")]
    records = forward, [row | {"problem": "lower, dA, dB"}], batch, [], [], forward[:1]
    table = tables.by_type(*(rows_of(tables, *rows) for rows in records))
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert head == ["times as fast as torch", "4096", "1×512×512", "2×512×512"]
    assert rows[:2] == [["float32", "16.7x", "16.7x", "16.7x"], ["float16", "4.20x", "16.7x", "16.7x"]]
    assert rows[2:] == [["bfloat16", "–", "–", "–"], ["float64", "–", "–", "–"]]


def test_each_line_of_the_file_is_in_one_part(tables):
    text = (tables.ROOT / "model_new.py").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in tables.parts().splitlines()[2:]]
    counts = [int(count.replace(",", "")) for _, count in rows]
    assert sum(counts[:-1]) == counts[-1] == len(text.splitlines()) and min(counts) > 5
    assert len(rows) == 2 + len(re.findall("^# ----", text, re.MULTILINE)) and "16-bit" in [name for name, _ in rows]


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z6mirrorPji", "mirror"),
        ("_Z11mma_productIdLi64ELb1ELb1EEv7Producti", "mma_product"),
        ("_Z11pack_blocks12PairsProduct", "pack_blocks"),
    ],
)
def test_the_name_of_a_kernel(tables, mangled, name):
    assert tables.kernel_of(mangled) == name


def test_markers_are_filled_and_the_rest_stays(tables, page):
    path, arguments = page
    assert tables.main(arguments) == 0
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n\n<!-- begin: cpu -->\n") and text.endswith("<!-- end: cpu -->\n\nafter µ\n") and "old" not in text
    assert "| 4096 | 2,728 | 157 (2,720 to 2,741) | 17.4x | 7.3e-7 / 3.9e-6 | 7.3e-7 / 3.9e-6 |" in text
    assert "a device, torch 2.11.0, CUDA 13.0, 2026-11-20, commit abc123, from benchmarks/results/cpu.json." in text


def test_check_tells_a_stale_page_and_changes_nothing(tables, page, capsys):
    path, arguments = page
    before = path.read_bytes()
    assert tables.main([*arguments, "--check"]) == 1
    assert path.read_bytes() == before and "not up to date; run: python benchmarks/tables.py" in capsys.readouterr().err
    assert tables.main(arguments) == 0
    assert tables.main([*arguments, "--check"]) == 0
    (path.parent / "cpu.json").write_text(json.dumps(record_of(8192)))
    assert tables.main([*arguments, "--check"]) == 1


def test_a_table_without_a_record_is_an_error(tables, page, capsys):
    path, arguments = page
    (path.parent / "cpu.json").unlink()
    for extra in ([], ["--check"]):
        assert tables.main([*arguments, *extra]) == 1
        message = capsys.readouterr().err
        assert "cpu.json is missing; run: python benchmarks/benchmark.py --suite cpu\n" in message
    assert "old" in path.read_text()
    path.write_text("<!-- begin: a100/cpu -->\n<!-- end: a100/cpu -->\n")
    assert tables.main(arguments) == 1
    assert "run: python benchmarks/benchmark.py --suite cpu --out benchmarks/results/a100\n" in capsys.readouterr().err


def test_a_missing_record_names_the_script_that_writes_it(tables, tmp_path):
    for suite, remedy in (("soak", "benchmarks/soak.py"), ("sanitizers", "tests/sanitize.py --json"), ("wanted", "restore it with git")):
        with pytest.raises(tables.TableError, match=f"is missing; .*{remedy}"):
            tables.read_record(tmp_path, suite)
    assert tables.remedy("a100/cpu") == "run: python benchmarks/benchmark.py --suite cpu --out benchmarks/results/a100"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"complete": False}, "was cut short"),
        ({"failures": ["lower 64: RuntimeError: no"]}, "has failures that no table shows (lower 64: RuntimeError: no)"),
        ({"rows": []}, "has no rows for the table 'cpu'"),
    ],
)
def test_a_record_that_is_not_whole_is_an_error(tables, page, capsys, changes, message):
    path, arguments = page
    (path.parent / "cpu.json").write_text(json.dumps(record_of(64, **changes)))
    assert tables.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_a_broken_contract_shows_in_the_table(tables, page):
    path, arguments = page
    record = record_of(64, failures=["lower 64: worst error"])
    record["rows"][0]["within_contract"] = False
    (path.parent / "cpu.json").write_text(json.dumps(record))
    assert tables.main(arguments) == 0
    assert "(not within the contract)" in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- begin: speed -->\n<!-- end: speed -->\n", "there is no table 'speed'; accepted: peers, peers-errors, forward"),
        ("<!-- begin: cpu -->\n", "<!-- begin: cpu --> is followed by no marker; a begin needs an end of the same name"),
        ("<!-- end: cpu -->\n", "<!-- end: cpu --> is followed by no marker"),
        ("<!-- begin: cpu -->\n<!-- end: host -->\n", "<!-- begin: cpu --> is followed by <!-- end: host -->"),
        ("<!-- begin: cpu -->\n<!-- begin: host -->\n", "<!-- begin: cpu --> is followed by <!-- begin: host -->"),
    ],
)
def test_bad_markers(tables, page, capsys, text, message):
    path, arguments = page
    path.write_text(text)
    assert tables.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_numbers_have_no_needless_digits(tables):
    assert [tables.microseconds(v) for v in (9.23, 99.96, 112.4, 21608.3)] == ["9.2", "100", "112", "21,608"]
    assert [tables.ratio(v) for v in (0.966, 9.994, 17.42)] == ["0.97x", "9.99x", "17.4x"]
    assert [tables.error(v) for v in (7.3e-7, 1.24e-16, 2.0, 0.0)] == ["7.3e-7", "1.2e-16", "2.0e0", "0"]


def test_the_cycles_of_a_case_add_up_to_the_kernel():
    """Two CTAs, each with a clock of 2 GHz: the parts of a case are means over both, and their sum is the kernel's time."""
    cycles = module("cycles")
    words = [0] * cycles.WORDS

    def write(cta, role, events):  # (event, nanoseconds since the first CTA's start)
        begin = (cta * cycles.ROLES + role) * (1 + cycles.ENTRIES) * 2
        words[begin] = len(events)
        for n, (event, now) in enumerate(events, 1):
            words[begin + 2 * n], words[begin + 2 * n + 1] = 2 * now + 1000 * cta, (5000 + now) << 4 | event

    for cta, late in ((0, 0), (1, 10)):
        write(cta, cycles.PRODUCER, [(cycles.ENTERED, late), (cycles.PREVIOUS_DONE, 30), (cycles.EXITED, 200 - 3 * late)])
        write(cta, cycles.ZEROS, [(cycles.ZEROS_BEGUN, 40), (cycles.ZEROS_WRITTEN, 60)])
        tile = [(cycles.STAGE_FULL, 50), (cycles.CHAIN_SUMMED, 70), (cycles.CHAIN_KEPT, 75), (cycles.STAGE_FULL, 76)]
        tile += [(cycles.SUMMED, 100), (cycles.WRITTEN, 120), (cycles.TILES_DONE, 121)]
        for warpgroup in (0, 1):
            write(cta, warpgroup, tile)
    found = cycles.summarize(words)
    assert found["kernel_cycles"] == 400 and found["clock_ghz"] == 2.0 and found["tiles"] == 1 and found["zeros"] == 40
    expected = {"start": 10, "previous_kernel": 50, "first_stage": 40, "main_loop": 88, "chains": 10, "epilogue": 40, "next_stage": 4}
    assert {part: found[part] for part in cycles.PARTS} == expected | {"exit": 128, "idle_at_end": 30}
    assert sum(found[part] for part in cycles.PARTS) == found["kernel_cycles"]
    words[(cycles.ROLES + cycles.PRODUCER) * (1 + cycles.ENTRIES) * 2] = cycles.ENTRIES + 1
    with pytest.raises(RuntimeError, match="CTA 1, role 3: 256 events"):
        cycles.summarize(words)


def test_traces_name_events_that_the_header_has(model):
    """TRACE's arguments vanish in an ordinary build, so that no compiler would miss a name."""
    header = (ROOT / "benchmarks" / "trace.cuh").read_text(encoding="utf-8")
    events = re.search(r"enum TraceEvent : int \{(.*?)\}", header, re.DOTALL)[1].split(",")
    used = re.findall(r"\bTRACE\([^;]*\);", "\n".join(model._CUDA_SOURCES))
    named = {name for call in used for name in re.findall(r"\bk[A-Z]\w+", call)} - {"kTraceZeros", "kTraceProducer", "kEndsTile"}
    assert named == {event.strip() for event in events}
    assert [event.strip() for event in events].index("kZerosWritten") == module("cycles").ZEROS_WRITTEN


# ---- KernelBench's references. ---------------------------------------------------------------------------------------


def test_references_are_judged_as_their_own_solutions(tmp_path, capsys):
    """Two judges at a time, one of which finds that it cannot be made. A second run judges only what has no verdict of the same device."""
    references, out = module("references"), tmp_path / "results.json"
    folder = tmp_path / "level1"
    folder.mkdir()
    (folder / "4_Softmax.py").write_text((ROOT / "tests" / "references" / "softmax.py").read_text())
    (folder / "8_Missing.py").write_text("import a_package_that_nobody_has\n")
    (folder / "9_Left_out.py").write_text("")
    arguments = [str(tmp_path), "--every", "4", "--out", str(out), "--", "--device", "cpu", "--no-timing"]
    assert references.main(arguments) == 0
    record = json.loads(out.read_text())
    assert record["suite"] == "references" and record["complete"] and not record["failures"] and record["date"]
    verdicts = {row["name"]: (row["verdict"], row["sentence"]) for row in record["rows"]}
    assert {name: verdict for name, (verdict, _) in verdicts.items()} == {"level1/4": "holds", "level1/8": "could not be judged"}
    assert "all holds: " in verdicts["level1/4"][1] and "a_package_that_nobody_has" in verdicts["level1/8"][1]
    told = capsys.readouterr().out
    assert "level1/8     could not be judged, " in told and re.search(r"level1 +1 +0 +1 +0\n", told)
    assert references.main(arguments) == 0
    assert re.fullmatch(r"level1/8 +could not be judged, [^\n]*\n\n.*\n +level1 +1 +0 +1 +0\n", capsys.readouterr().out)
    next(row for row in record["rows"] if row["verdict"] == "holds")["device"] = "another CPU"
    out.write_text(json.dumps(record))
    assert references.main(arguments) == 0
    assert "level1/4     holds" in capsys.readouterr().out


def test_large_problems_are_judged_alone(tmp_path):
    made = "import torch\n\nprint(12)\nModel = torch.nn.ReLU\n\n\ndef get_init_inputs():\n    return []\n\n\ndef get_inputs():\n"
    large, small = (f"{made}    return [torch.rand({size})]\n" for size in ("1 << 28", "8"))
    texts = {"large": large, "small": small, "none": "1 / 0\n"}
    files = {name: tmp_path / f"{name}.py" for name in texts}
    for name, file in files.items():
        file.write_text(texts[name])
    references = module("references")
    series = references.Series(SimpleNamespace(seconds=100, out=None, given=["--device", "cpu"]))
    assert series.large(["none", "large", "small"], files) == {"large"}
    assert "threads" in series.about["device"] and series.about["versions"]["torch"] == torch.__version__
    series.end = 0.0
    assert series.large(["large"], files) == set()


def names(command_line, text):
    """Whether a process has this text in its command line, and has not ended meanwhile."""
    with contextlib.suppress(OSError):
        return text.encode() in command_line.read_bytes()


def test_a_series_that_is_cut_short_leaves_no_judge(tmp_path, capsys):
    references = module("references")
    (tmp_path / "level2").mkdir()
    (tmp_path / "level2" / "3_Sleeps.py").write_text("import time\n\ntime.sleep(600)\n")
    begun = time.monotonic()
    assert references.main([str(tmp_path), "--seconds", "3", "--", "--device", "cpu"]) == 0
    assert time.monotonic() - begun < 60 and re.search(r"level2 +0 +0 +0 +1\n", capsys.readouterr().out)
    for _ in range(100):
        if not (left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if names(path, str(tmp_path))]):
            break
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize(
    "arguments,told", [(["--only", "level1/7"], "has no level1/7"), ([], "has no level1/*.py"), (["--every", "0"], "from 1")]
)
def test_a_series_says_what_it_accepts(arguments, told, tmp_path, capsys):
    if arguments[:1] == ["--every"]:
        (tmp_path / "level1").mkdir()
        (tmp_path / "level1" / "1_One.py").write_text("")
    with pytest.raises(SystemExit) as stop:
        module("references").main([str(tmp_path), *arguments])
    assert stop.value.code == 2 and told in capsys.readouterr().err

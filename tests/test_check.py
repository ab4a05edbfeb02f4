"""What holds of check.py: each file of tests/cheats gets the verdict that its first line names, and options, exit status, record and
exported files are as its manual says.

A cheat's first line reads `# VERDICT [on cuda] [with OPTIONS][, below Rx][, "finding"]: why`. VERDICT is ok, WRONG, `ok or WRONG` (either
is just, since the file depends on a race), or `cannot run` (exit status 2). The finding is a part of what check.py prints. The ratio is
what it may certify at most, and only then calls are timed.

CHECK_SEEDS=100 python -m pytest tests/test_check.py -k honest       judges the honest files with so many seeds
"""

import contextlib
import functools
import itertools
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from fractions import Fraction
from pathlib import Path

import helpers
import pytest
import torch
from forked_judge import Fork, Shared

import check
from judge import guard, measures, problems, sandbox

ROOT = helpers.ROOT
CHEATS = sorted((Path(__file__).parent / "cheats").glob("*.py"))
GUARDED = "import json, os, sys; from judge import guard; print(json.dumps(guard.guard(os.getppid(), [], sys.argv[1], None)))"
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run([sys.executable, "-c", GUARDED, folder], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    GUARDS = json.loads(done.stdout)
guarded = pytest.mark.skipif(not all(GUARDS.values()), reason=f"the kernel lacks what these would be kept from by: {GUARDS}")
WITHOUT_GUARDS = {  # what is convicted, or ends, stops or changes the tests' own process, where nothing keeps it from that
    *("kills_the_judge", "kills_the_reference", "limits_the_judge", "reaches_for_the_system", "signals_the_judge_when_it_ends"),
    *("continues_itself_by_a_timer", "sends_a_lingering_socket", "stops_the_judge", "writes_to_the_judges_memory"),
}
SEEDS = int(os.environ.get("CHECK_SEEDS", "1"))

# ---- The files of tests/cheats. --------------------------------------------------------------------------------------

HARD_ENOUGH = ["integers", "zero", "elimination", "lognormal, sigma 3", "rows of A over 16 decades", "one huge entry", "denormals and 1e10"]
STATUS = {"ok": 0, "WRONG": 1, "cannot run": 2}
LAST_LINE = {"ok": "all holds: ", "WRONG": "WRONG: "}
HEADER = re.compile(r'# (ok|WRONG|ok or WRONG|cannot run)( on cuda)?(?: with ([^,:]+))?(?:, below ([\d.]+)x)?(?:, "([^"]+)")?: .+')


def judge(capsys, path, *options):
    """(exit status, stdout, stderr) of the judge, called in this process. The last option of a name counts."""
    status = check.main(["--solution", str(path), "--device", "cpu", "--size", "96", "--problem", "lower", *options])
    return status, *capsys.readouterr()


def parameters():
    for path in CHEATS:
        match = HEADER.fullmatch(path.read_text().split("\n", 1)[0])
        assert match, f"{path}: the first line is not of the form that tests/test_check.py names"
        verdict, on_cuda, options, below, finding = match.groups()
        options = (options or "").split()
        marks = [helpers.needs_cuda] * bool(on_cuda) + [guarded] * (path.stem in WITHOUT_GUARDS)
        marks += [pytest.mark.alone] * bool(below or on_cuda)  # the judge wants the GPU for itself
        options += [] if below or "--trials" in options else ["--no-timing"]
        yield pytest.param(path, verdict, options + ["--device", "cuda"] * bool(on_cuda), below, finding, id=path.stem, marks=marks)


@pytest.mark.parametrize("path,verdict,options,below,finding", list(parameters()))
def test_each_file_gets_the_verdict_of_its_first_line(path, verdict, options, below, finding, quick, capsys, tmp_path, monkeypatch):
    for name, value in (
        ("REQUEST_SECONDS", {"cpu": 0.03, "cuda": 0.03}),
        ("MOST_CALLS", {"cpu": 24, "cuda": 24}),
        ("CHECK_SECONDS", 3.0),
        ("ANSWER_BYTES", 1 << 20),
        ("ROUNDS", 2),
    ):
        monkeypatch.setattr(check, name, value)
    if "--trials" in options:
        options = ["--size", "160", "--forward-only", *options]
    if "stand still" in (finding or ""):  # who is waited for in vain; of the others a busy machine may take seconds to stop one
        monkeypatch.setattr(sandbox, "STOPPING", 3.0)
    if verdict == "WRONG" and "--dtype" not in options:  # those that are honest meet them all
        monkeypatch.setattr(problems, "HARD", {name: measures.HARD[name] for name in HARD_ENOUGH})
    real, most = problems.Products.calls_to_judge, 8 if below else 1000 if verdict == "WRONG" and "--no-timing" in options else None
    if verdict.startswith("ok") and not path.stem.startswith("honest"):  # what it does to the judge it does in each
        most = most or 40

    def few(problem):
        """Those that are made twice, and some of the rest."""
        calls = real(problem)
        twice = sorted((call for call in calls if calls.count(call) > 1), key=calls.index)  # each beside its other one
        twice = twice if verdict == "WRONG" or most is None else twice[:1] * 2
        return [*twice, *(call for call in dict.fromkeys(calls) if call not in twice)][:most]

    groups = check.Choices.groups

    def until_convicted(draws, calls):
        """No more calls, once what the first line names is found."""
        wanted = lambda: any((finding or "") in f"{what}: {detail}" for what, detail in findings.items())  # noqa: E731
        findings = draws.run.report.findings
        return itertools.takewhile(lambda _: verdict != "WRONG" or not wanted(), groups(draws, calls))

    monkeypatch.setattr(check.Choices, "groups", until_convicted)
    if most:
        monkeypatch.setattr(problems.Products, "calls_to_judge", few)
    record = tmp_path / "record.json"
    for seed in range(SEEDS if path.stem.startswith("honest") else 1):
        seeded = [] if below else ["--seed", str(seed)]  # with a seed no ratio is certified
        status, out, err = judge(capsys, path, "--json", str(record), *seeded, *options)
        if status == 2:
            Shared.drop()
        kept = json.loads(record.read_text()) if record.exists() else {}
        lines = [line for line in err.splitlines() if not line.startswith("solution: ")]
        if verdict == "ok or WRONG":
            verdict = "WRONG" if status == STATUS["WRONG"] else "ok"
        wrong = [
            status != STATUS[verdict] and f"exit status {status}, not {STATUS[verdict]}",
            any("Traceback" in line for line in lines) and "check.py itself raises",
            finding and finding not in out + err and f"{finding!r} is not found",
            status < 2 and not out.splitlines()[-1].startswith(LAST_LINE.get(verdict, "none")) and "the last line is another",
            status < 2 and kept.get("verdict") != verdict.lower() and "the record says something else",
            below and (kept.get("ratio") or 0) >= float(below) and f"a ratio of {kept['ratio']:.2f} is certified",
        ]
        if any(wrong):
            pytest.fail(f"seed {seed}: {'; '.join(filter(None, wrong))}:\n{out}{err}", pytrace=False)


def test_large_results_are_compared_by_their_fingerprints(quick, capsys, monkeypatch):
    monkeypatch.setattr(check, "MOST_KEPT", 0)
    name = "other_bits_of_small_matrices"
    status, out, _ = judge(capsys, helpers.ROOT / f"tests/cheats/{name}.py", "--no-timing", "--forward-only", "--seed", "1")
    assert status == 1 and "two calls with the same inputs differ at C" in out and "differ at C[" not in out, out
    status, out, err = judge(capsys, helpers.ROOT / "tests/cheats/honest_plain.py", "--no-timing", "--forward-only", "--seed", "1")
    assert status == 0, out + err


@pytest.mark.parametrize("free,released", [(30, False), (10, True)])
def test_memory_is_given_back_where_it_is_scarce(free, released, monkeypatch):
    """On a GPU of 100 bytes, of which some are free."""
    done = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("waits"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empties"))
    gpu, child = object.__new__(check.GpuMemory), check.Child()
    gpu.device, gpu.opened = torch.device("cuda", 0), {"a handle": 4096}
    gpu.call = lambda name, address: done.append((name, address.value))
    gpu.release()
    assert done == (["waits", ("cuIpcCloseMemHandle", 4096), "empties"] if released else [])
    assert gpu.opened == ({} if released else {"a handle": 4096})
    done.clear()
    child.device = gpu.device
    for child.cuda in (False, True):
        child.release()
    assert done == ["empties"] * released


@pytest.mark.parametrize("size", ["1", "96"])
@pytest.mark.parametrize("problem", measures.PRODUCTS)
def test_each_kind_of_gradient_has_its_turn(problem, size):
    run = check.Run(check.parse(["--solution", "theirs.py", "--problem", problem, "--size", size, "--device", "cpu"]))
    run.gradients = True
    calls = run.problem.calls_to_judge()
    for name in ("zero", "identity"):  # one operand of a call is that, A or B
        assert {call.number % 2 for call in calls if call.name == name and call.mode == "forward"} == {0, 1}
    calls = [call for call in calls if call.mode == "gradients"]
    assert {(call.kind, call.way) for call in calls if call.kind < 8} == {*measures.GRADIENTS}
    # A special operand, such as zero, or a tiny matrix can hide a wrong gradient.
    telling = [call for call in calls if call.name in measures.ORDINARY and max(call.dims) >= min(16, int(size))]
    assert {(call.kind, call.way) for call in telling if call.kind < 8} == {*measures.GRADIENTS}
    assert {call.other for call in calls} == {*range(1 << len(run.problem.product.names))}  # which are weights, and which are computed
    timed = [call for call in calls if call.dims == run.problem.dims]
    sums = [call for call in timed if call.kind == 2 and call.number % 2 == 0]  # of C.sum()
    assert any(bool((call.inputs[-1] == 1).all()) for call in sums)


@pytest.mark.parametrize("size", [150, 400, 1024])
def test_hard_inputs_reach_the_size_that_is_timed(size):
    """Gradients had them up to 150 only; above 600 a CPU had six kinds, so that flushed denormals were certified."""
    run = check.Run(check.parse(["--solution", "theirs.py", "--size", str(size), "--device", "cpu", "--seed", "1"]))
    run.gradients = True
    calls = [call for call in run.problem.calls_to_judge() if call.name in measures.HARD]
    for mode in check.MODES:
        mine = [call for call in calls if call.mode == mode]
        assert {call.name for call in mine} == {*run.problem.hard}
        assert {call.name for call in mine if call.dims == (size,)} >= {*measures.EXTREME}
        assert sum(call.dims[-1] > size * 0.75 for call in mine) >= 6


def test_batches_have_their_turn():
    """Of 30 runs 8 had no dC that is the same in all of a batch, 19 certified what is wrong for wide numbers in batches."""
    run = check.Run(check.parse(["--solution", "theirs.py", "--batches", "--size", "64", "--device", "cpu"]))
    run.gradients = True
    calls = run.problem.calls_to_judge()
    batches = [call for call in calls if len(call.dims) > 1 and call.dims[0] > 1]
    assert {call.name for call in batches if call.mode == "forward"} >= {*run.problem.hard}
    assert sum(call.kind == 8 and call.inputs[-1].stride()[0] == 0 != call.inputs[-1].stride()[1] for call in batches) > 1
    assert len({call.name for call in calls if calls.count(call) > 1 and len(call.dims) == 1} & {*run.problem.hard}) == 7
    draws = [
        measures.gradient_of(kind, 0, measures.Draw(1, n, run.device), torch.float32, (3, 5, 5), torch.tril)
        for kind in (0, 1, 5, 6, 7)
        for n in range(9)
    ]
    assert all(G.is_contiguous() for G in draws)  # in timed calls no stride tells


@pytest.mark.parametrize("seed", range(8))
def test_no_run_lacks_batches_whose_sides_are_aligned(seed):
    """Of 60 runs 5 had no batch of at least three matrices with sides that are multiples of 4."""
    options = ["--solution", "theirs.py", "--batches", "--size", "64", "--device", "cpu", "--seed", str(seed)]
    run = check.Run(check.parse(options))
    run.gradients = True
    calls = run.problem.calls_to_judge()
    aligned = [call for call in calls if len(call.dims) > 1 and call.dims[0] > 2 and call.dims[1] % 16 == 0]
    assert {call.mode for call in aligned} == {*check.MODES}
    assert any(call.name in measures.ORDINARY for call in aligned)


def test_columns_of_many_scales_begin_or_end_with_a_small_one():
    """A gradient's sums begin at the first column of dC or end at the last. A large one there hides what is wrong beside it."""
    draws = [measures.Draw(1, n, torch.device("cpu")) for n in range(40)]
    made = [measures.gradient_of(7, 0, draw, torch.float32, (64, 64), torch.tril).abs().amax(0) for draw in draws]
    small = [bool(columns[0] < 1e-4 * columns.max() and columns[-1] < 1e-4 * columns.max()) for columns in made]
    assert 24 <= sum(small) < 40


def test_hard_inputs_are_drawn_anew():
    """What stood always in the same place, or in all of a batch, could be looked at there alone."""
    draws = [measures.Draw(1, n, torch.device("cpu")) for n in range(9)]
    made = {
        name: [measures.inputs_of(name, draw, torch.float32, (2, 512, 512))[0] for draw in draws]
        for name in ("elimination", "unit diagonal", "uniform, large entries")
    }
    assert len({int((X[0] != torch.eye(512)).sum(1).argmax()) for X in made["elimination"]}) > 2
    assert {float(x) for X in made["unit diagonal"] for x in X[:, 0, 0]} == {1, -1} and any(
        len(X[:, 0, 0].unique()) > 1 for X in made["unit diagonal"]
    )
    assert all(0 < int((X[0].abs() > 1).sum()) < 50 for X in made["uniform, large entries"])


def test_what_is_drawn_tells_nothing_of_what_will_be_drawn():
    """Of a Mersenne Twister 19,937 bits tell all others, and its seed: signs, sizes, places, and which result is looked at first."""
    runs = [check.Run(check.parse(["--seed", seed, "--size", "1", "--device", "cpu"])) for seed in "112"]
    states = [[run.random.getstate() for _ in range(9)] for run in runs]
    assert states[0] == states[1] and len({*states[0], *states[2]}) == 18


def test_the_document_has_each_file_with_its_verdict():
    rows = [line.split(" | ") for line in (ROOT / "docs" / "judge.md").read_text().splitlines() if line.startswith("| ")]
    found = [
        (name.rstrip("*"), row[1], name[-1] == "*") for row in rows if len(row) == 3 for name in row[2].rstrip(" |").split() if "_" in name
    ]
    words = {"ok": "harmless", "ok or WRONG": "harmless", "WRONG": "convicted", "cannot run": "no verdict"}
    for path in CHEATS:
        verdict, on_cuda, *_ = HEADER.fullmatch(path.read_text().split("\n", 1)[0]).groups()
        wanted = "all holds" if path.stem.startswith("honest_") else words[verdict]
        named = [row for row in found if row[0] == path.stem] if "_" in path.stem else [(path.stem, wanted, bool(on_cuda))]
        assert named == [(path.stem, wanted, bool(on_cuda))]


PLAIN = (CHEATS[0].parent / "honest_plain.py").read_text()
PRODUCT = "torch.tril(torch.matmul(A, B))"


def solution(tmp_path, text, name="solution.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_signal_that_the_judges_shell_ignores_is_one_that_a_file_may_not_ignore():
    """In a script's background job SIGINT is ignored, and takes_a_signal.py was not convicted there."""
    options = ["--device", "cpu", "--size", "9", "--no-timing", "--forward-only"]
    command = [sys.executable, check.__file__, "--solution", str(CHEATS[0].parent / "takes_a_signal.py"), *options]
    done = subprocess.run(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "signal handlers" in done.stdout.splitlines()[-1], done.stdout + done.stderr


def test_at_most_three_examples_of_a_finding(quick, capsys):
    status, out, _ = judge(capsys, CHEATS[0].parent / "zeros_always.py", "--no-timing")
    row = next(line for line in out.splitlines() if line.startswith("mixed  "))  # of four calls at least
    after = out[out.index(row) :].splitlines()[1:6]
    assert status == 1 and [line.startswith("    ") for line in after] == [True] * 4 + [False], out
    assert re.match(r" +\.\.\. and \d+ more", after[3])


def test_the_judge_does_not_execute_the_solution(quick, capsys, tmp_path):
    text = "import builtins, os, sys\n\nbuiltins.executed = os.environ['EXECUTED'] = sys.EXECUTED = 'here'\n" + PLAIN
    assert judge(capsys, solution(tmp_path, text), "--no-timing")[0] == 0
    assert not hasattr(check.__builtins__, "executed") and "EXECUTED" not in os.environ and not hasattr(sys, "EXECUTED")


def test_a_gpu_that_is_never_quiet_is_no_verdict(small_slab, monkeypatch):
    monkeypatch.setattr(check, "QUIETING", 0.01)
    requests, slow = check.Requests(types.SimpleNamespace(device=small_slab.device)), iter([1e-3] * 5 + [2e-5])
    requests.quiet, requests.probe = 1e-5, lambda: next(slow, 1e-3)
    requests.wait_for_a_quiet_gpu()
    with pytest.raises(check.CannotRun, match="at work while no call is answered"):
        requests.wait_for_a_quiet_gpu()


# ---- model_new.py. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(check.DTYPES))
@pytest.mark.parametrize("problem", list(measures.PRODUCTS))
def test_our_solution_is_right(problem, dtype, quick, capsys):
    status, out, err = judge(capsys, helpers.SOURCE, "--no-timing", "--problem", problem, "--dtype", dtype, "--size", "80")
    assert status == 0 and "WRONG" not in out, out + err
    assert out.splitlines()[-1].startswith("all holds: model_new.py computes ") and ", gradients included" in out, out


@pytest.mark.parametrize(
    "problem,product", [("lower", PRODUCT), ("upper", "torch.triu(torch.matmul(A, B))"), ("transposed_a", "torch.matmul(A.mT, B)")]
)
def test_a_file_for_one_problem_is_judged_by_its_plain_names(problem, product, quick, capsys, tmp_path):
    path = solution(tmp_path, PLAIN.replace(PRODUCT, product))
    assert judge(capsys, path, "--no-timing", "--problem", problem)[0] == 0
    for other in set(measures.PRODUCTS) - {problem}:
        assert judge(capsys, path, "--no-timing", "--problem", other, "--size", "9", "--forward-only")[0] == 1


def test_who_leaves_gradients_out_need_not_be_able_to_record_any(quick, capsys, tmp_path):
    path = solution(tmp_path, PLAIN.replace(PRODUCT, "torch.matmul(A, B, out=torch.empty_like(A)).tril_()"))
    assert judge(capsys, path, "--no-timing", "--forward-only", "--size", "9")[0] == 0


SOLVE = "torch.linalg.solve_triangular(L, torch.eye(L.shape[-1], dtype=L.dtype), upper=False)"
SHAPED = "self.__dict__.setdefault(str(X.shape), {}).detach()"
T = "(torch.eye(L.shape[-1]) - (1 / L.diagonal(dim1=-2, dim2=-1))[..., None] * L.tril())"  # L = D (1 - T)


@pytest.mark.parametrize(
    "problem,inputs,product,says",
    [
        ("triangular", "A, X", "torch.tril(A) @ X", "all holds"),
        ("triangular", "A, X", "A @ X", "worst element C["),  # reads what stands above the diagonal
        ("triangular", "A, X", "torch.tril(A) @ torch.tril(X)", "worst element C["),
        ("triangular", "A, X", "torch.tril(A) @ (2 * X - X.detach())", "worst element dX["),
        ("triangular", "A, X", "(2 * torch.tril(A) - torch.tril(A).detach()) @ X", "worst element dA["),
        ("gram", "X", "torch.cat([X, torch.zeros_like(X)], -1) @ torch.cat([X, X], -1).mT", "all holds"),
        ("gram", "X", "torch.tril(X @ X.mT)", "worst element C["),
        ("gram", "X", f"torch.tril(X @ X.mT) + torch.triu({SHAPED.format('X @ X.mT')}, 1)", "worst element C["),  # of an earlier call
        ("gram", "X", "X.mT @ X", "worst element C["),
        ("gram", "X", "X @ X.detach().mT", "worst element dX["),  # G X alone
        ("inverse", "L", SOLVE, "all holds"),
        ("inverse", "L", "torch.linalg.inv(L)", "WRONG"),  # reads what stands above the diagonal
        ("inverse", "L", "torch.diag_embed(1 / L.diagonal(dim1=-2, dim2=-1))", "worst element C["),
        ("inverse", "L", f"sum(torch.linalg.matrix_power({T}, k) for k in range(9)) / L.diagonal(dim1=-2, dim2=-1)[..., None, :]", "C["),
        ("inverse", "L", f"(lambda X: 2 * X - X.detach())({SOLVE})", "worst element dL["),
        ("inverse", "L", f"{SOLVE}.bfloat16().float()", "worst element C["),
        ("inverse", "L", f"{SOLVE} + torch.full_like(L, 1e-30).triu(1)", "] = 0, allowed"),
    ],
)
def test_what_is_right_and_wrong_in_other_problems(problem, inputs, product, says, quick, capsys, tmp_path):
    path = solution(tmp_path, PLAIN.replace("A, B):", f"{inputs}):").replace(PRODUCT, product))
    status, out, err = judge(capsys, path, "--no-timing", "--problem", problem, "--size", "48")
    assert status == (says != "all holds") and says in out.splitlines()[-1], out + err


# ---- The reference. --------------------------------------------------------------------------------------------------

REFERENCE = (ROOT / "reference_model.py").read_text()
TAKES_A_TENSOR = """

class Model(Model):
    def __init__(self, scale):
        super().__init__()


def get_init_inputs():
    return [torch.ones(1)]
"""


@pytest.mark.parametrize(
    "text,says",
    [
        (REFERENCE.replace(PRODUCT, "torch.tril(A + B)"), "does not compute C = tril(A) tril(B)"),
        (REFERENCE.replace(PRODUCT, "torch.tril(A.bfloat16() @ B.bfloat16()).float()"), "does not compute"),
        (REFERENCE.replace(PRODUCT, "1 / 0"), "ZeroDivisionError"),
        (REFERENCE.replace(PRODUCT, "torch.matmul(A.mul_(2), B)"), "is modified"),
        (REFERENCE + "raise RuntimeError('boom')\n", "boom"),
        ("x = 1\n", "defines no class Model"),
        ("import os\nos._exit(0)\n", "ends with status 0"),
        (REFERENCE + TAKES_A_TENSOR, "get_init_inputs() returns a tensor"),
    ],
    ids=["another sum", "bfloat16", "raises", "modifies", "raises when loaded", "no class", "exits", "a tensor for its constructor"],
)
def test_a_reference_that_is_wrong_is_no_verdict(text, says, quick, capsys, tmp_path):
    path = solution(tmp_path, text, "reference.py")
    status, out, err = judge(capsys, CHEATS[0].parent / "honest_plain.py", "--no-timing", "--reference", str(path), "--forward-only")
    assert status == 2 and "all holds" not in out, out + err
    assert "--reference" in err.splitlines()[-1] and says in err.splitlines()[-1], err


def test_a_reference_that_ends_while_it_is_timed_is_no_verdict(quick, capsys, tmp_path):
    path = solution(
        tmp_path, REFERENCE.replace("import torch\n", "import os\n\nimport torch\n", 1).replace(PRODUCT, "os._exit(3)"), "reference.py"
    )
    status, out, err = judge(capsys, CHEATS[0].parent / "honest_plain.py", "--reference", str(path), "--forward-only")
    assert status == 2 and "WRONG" not in out and "--reference" in err.splitlines()[-1] and "ends with status 3" in err, out + err


def test_a_reference_without_gradients_is_noted(quick, capsys, tmp_path):
    path = solution(tmp_path, REFERENCE.replace(PRODUCT, f"{PRODUCT}.detach()"), "reference.py")
    status, out, _ = judge(capsys, CHEATS[0].parent / "detached.py", "--no-timing", "--reference", str(path))
    assert (
        status == 0
        and "note   gradients: " in out
        and out.splitlines()[-1].endswith("; gradients were not looked at; its time was not measured")
    ), out


def test_the_constructor_gets_the_arguments_of_get_init_inputs(quick, capsys, tmp_path):
    reference = REFERENCE.replace("return []", "return [2, 'x']").replace(
        "    def forward",
        "    def __init__(self, two=2, x='x'):\n        super().__init__()\n        assert [two, x] == [2, 'x']\n\n    def forward",
        1,
    )
    path = solution(tmp_path, reference.replace("Model(torch", "ModelNew(torch", 1))
    reference = solution(tmp_path, reference, "reference.py")
    status, out, err = judge(capsys, path, "--no-timing", "--reference", str(reference), "--size", "9")
    assert status == 0, out + err


@pytest.mark.parametrize(
    "name,options,says",
    [
        ("tf32", [], ["uniform inputs: 1: worst element C[0, 0]", "--tf32"]),
        ("nan_above_the_diagonal", [], ["uniform inputs: 2: worst element C[0, 1] = nan, never written?"]),
        ("no_grad", [], ["uniform, gradients inputs: 1: ", "--forward-only"]),
        ("wrong_gradient", [], ["uniform, gradients inputs: ", "worst element d", "--forward-only"]),
        ("honest_of_one_size", [], ["uniform inputs: 1: the solution raises AssertionError: N must be 96", "--size 96 --one-size"]),
        ("multiples_of_16_only", [], ["uniform inputs: 1: "]),
        ("wrong_below_8", [], ["uniform inputs: 1: "]),
        ("wrong_at_one_size", ["--size", "64", "--forward-only"], ["uniform inputs: 64: worst element C["]),
        ("flushes_denormals", [], ["denormals and 1e10 inputs: "]),
    ],
)
def test_the_simplest_case_comes_first_with_a_hint(name, options, says, quick, capsys):
    """A random hard input was named, and nothing of what its author could do."""
    status, out, _ = judge(capsys, CHEATS[0].parent / f"{name}.py", "--no-timing", *options)
    last = out.splitlines()[-1]
    assert status == 1 and all(part in last for part in says), last
    assert ("Hint: " in last) == any(part.count("--") for part in says), last


def test_one_size_is_judged_alone(quick, capsys, tmp_path):
    record = tmp_path / "record.json"
    path = CHEATS[0].parent / "honest_of_one_size.py"
    status, out, err = judge(capsys, path, "--one-size", "--no-timing", "--json", str(record))
    rows = json.loads(record.read_text())["rows"]
    assert status == 0 and {row["size"] for row in rows} == {"96"} and len(rows) > 50, out + err
    assert " at 96 alone" in out.splitlines()[-1] and "calls were made twice" in out


def test_the_last_line_names_the_dtype_and_the_device(quick, capsys):
    """A ratio that is quoted alone could be misread."""
    status, out, _ = judge(capsys, CHEATS[0].parent / "honest_plain.py", "--no-timing", "--dtype", "bfloat16", "--size", "9")
    assert status == 0 and " in bfloat16 on a CPU (" in out.splitlines()[-1]
    status, out, _ = judge(capsys, CHEATS[0].parent / "zeros_always.py", "--no-timing", "--dtype", "float16", "--size", "9")
    assert status == 1 and " in float16 on a CPU (" in out.splitlines()[-1]
    run = types.SimpleNamespace(options=types.SimpleNamespace(dtype="float32"), dtype=torch.float32, cuda=True, device_name="NVIDIA H200")
    run.tf32 = True
    assert problems.setting(run) == "float32 (with TF32) on NVIDIA H200"
    run.tf32 = False
    assert problems.setting(run) == "float32 (without TF32) on NVIDIA H200"


@pytest.mark.parametrize(
    "error,missing",
    [
        (ModuleNotFoundError("No module named 'tilelang.language'", name="tilelang"), "the package tilelang.language"),
        (ImportError("cannot import name 'jit' from 'triton'"), "what it imports"),
        (ImportError("libcudart.so.11.0: cannot open shared object file"), "the library cudart"),
        (
            RuntimeError("Error building extension 'x': FAILED: cuda.o\n/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\n"),
            "the CUDA toolkit",
        ),
        (RuntimeError("Error building extension 'x': FAILED: main.o\n/bin/sh: 1: c++: not found\n"), "a C++ compiler"),
        (RuntimeError("kernel.cu:3:10: fatal error: cutlass/gemm.h: No such file or directory"), "the header cutlass/gemm.h"),
        (RuntimeError("nvcc fatal   : Unsupported gpu architecture 'compute_120a'"), "a GPU of the kind"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "a GPU of the kind"),
        (AssertionError("Torch not compiled with CUDA enabled"), "a GPU that torch sees"),
        (FileNotFoundError(2, "No such file or directory", "/usr/local/cuda/bin/nvcc"), "the CUDA toolkit"),
        (RuntimeError("A must be a CUDA tensor"), "inputs on a GPU"),
        (NotImplementedError("Could not run 'my::product' with arguments from the 'CPU' backend."), "inputs on a GPU"),
        (ImportError("/tmp/x.so: undefined symbol: _Z7productPfS_"), ""),
        (RuntimeError("Error building extension 'x': c++ -c main.cpp\nmain.cpp:1:1: error: 'product' does not name a type"), ""),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), ""),
        (ValueError("N must be a multiple of 64"), ""),
        (FileNotFoundError(2, "No such file or directory", "weights.pt"), ""),
    ],
)
def test_what_a_machine_does_not_have_is_read_from_the_error(error, missing):
    found = check.what_is_missing(error, torch.device("cpu"))
    assert found.startswith(missing) and bool(found) == bool(missing), found
    try:
        raise RuntimeError("it failed") from error
    except RuntimeError as wrapped:
        assert check.what_is_missing(wrapped, torch.device("cpu")) == found
    if missing == "inputs on a GPU":
        assert check.what_is_missing(error, torch.device("cuda")) == ""


# ---- Options, exit statuses. -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv,says",
    [
        (["--size", "0"], ["--size", "'0'", "whole number from 1"]),
        (["--size", "big"], ["--size", "'big'", "whole number"]),
        (["--trials", "-1"], ["--trials", "-1"]),
        (["--trials", "2.5"], ["--trials", "'2.5'", "whole number"]),
        (["--timeout", "0"], ["--timeout", "'0'", "a number of seconds from 0.1"]),
        (["--timeout", "nan"], ["--timeout", "'nan'"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--dtype", "int8"], ["--dtype", "'int8'", "float32", "bfloat16"]),
        (["--problem", "dense"], ["--problem", "'dense'", "transposed_a"]),
        (["--device", "mps"], ["--device", "'mps'", "choose from", "cpu"]),
        (["--device", "tpu"], ["--device", "'tpu'", "choose from", "cpu"]),
        (["--device", "cuda:99"], ["--device", "'cuda:99'"]),
        (["--json", "no/such/folder/record.json"], ["--json", "no/such/folder", "existing folder"]),
        (["--json", "."], ["--json", "is a folder"]),
        (["--json", "/dev/null"], ["--json", "a device"]),
        (["--json", "theirs.py", "--size", "1", "--no-timing"], ["--json", "Python"]),
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


def test_it_finds_its_parts_where_python_looks_beside_no_script():
    """It ended with status 1, by which it convicts."""
    done = subprocess.run([sys.executable, check.__file__, "--help"], env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_help_shows_examples_and_exit_statuses(capsys):
    assert check.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 50 and printed.index("Each element of each result") < printed.index("    python check.py")
    assert "python check.py --size 256 --no-timing" in printed and "Exit status: 0 all holds; 1 " in printed and "--batches" in printed


def start(folder, text, out=subprocess.PIPE, err=subprocess.PIPE, **others):
    """The judge in a process of its own, in another folder."""
    options = ["--solution", solution(folder, text).name, "--size", "16", "--no-timing", "--forward-only", "--device", "cpu"]
    return Fork([sys.executable, check.__file__, *options], cwd=folder, stdout=out, stderr=err, text=True, **others)


@pytest.mark.usefixtures("quick")
def test_a_record_that_cannot_be_written_costs_no_verdict(tmp_path, capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(check.os, "replace", refuse)
    wrong = CHEATS[0].parent / "zeros_always.py"
    for path, status, verdict in ((solution(tmp_path, PLAIN), 2, "all holds: "), (wrong, 1, "WRONG: ")):
        got, out, err = judge(capsys, path, "--no-timing", "--size", "8", "--json", str(tmp_path / "r.json"))
        assert got == status and out.splitlines()[-1].startswith(verdict)
        assert f"check.py: --json {tmp_path}/r.json: cannot be written ([Errno 13] Permission denied)" in err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_folder_that_cannot_be_removed_costs_no_verdict(quick, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, _ = judge(capsys, CHEATS[0].parent / "zeros_always.py", "--no-timing", "--forward-only")
    assert status == 1 and out.splitlines()[-1].startswith("WRONG: ")


def test_closed_descriptors_cost_no_verdict(tmp_path):
    """The inputs' memory was number 0 or 1, which a child has for its own."""
    judge = start(tmp_path, PLAIN, closed=(0, 1))
    _, err = judge.communicate(timeout=300)
    assert judge.returncode == 0, err


LEAVES_GARBAGE = """
import gc, os, pathlib, sys, test_check
tests = os.getpid()
kept = []
for _ in range(60):
    cycle = [open(os.devnull)]
    cycle.append(cycle)
    kept.append(cycle)
del cycle
gc.collect()
os.register_at_fork(after_in_child=kept.clear, after_in_parent=lambda: os.getpid() != tests and gc.collect())
judge = test_check.start(pathlib.Path(sys.argv[1]), test_check.PLAIN)
print(judge.communicate(timeout=300)[1], judge.returncode)
"""


def test_garbage_of_the_tests_closes_no_descriptor_of_a_fork(tmp_path):
    """Beside other tests two of these got no verdict at times: a slab's descriptor was closed, or was another file's."""
    done = subprocess.run([sys.executable, "-c", LEAVES_GARBAGE, str(tmp_path)], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.stdout.endswith(" 0\n"), done.stdout + done.stderr


@pytest.mark.parametrize("text,status,verdict", [(PLAIN, 0, "all holds: "), ("1 / 0\n", 1, "WRONG: ")], ids=["right", "wrong"])
def test_what_cannot_be_written_to_standard_error_costs_no_verdict(text, status, verdict, tmp_path):
    """Where its disk was full the judge ended with status 1, by which it convicts, and without a verdict."""
    with open("/dev/full", "w") as full:
        judge = start(tmp_path, text, err=full)
    out, _ = judge.communicate(timeout=300)
    assert judge.returncode == status and out.splitlines()[-1].startswith(verdict), out


def test_only_what_lacks_memory_is_told_to_take_a_smaller_size(capsys, monkeypatch):
    """ "...: memory cannot be shared between processes; a smaller --size may fit", said the judge."""
    with monkeypatch.context() as patch:
        patch.setattr(check.os.path, "exists", lambda _: False)  # no /proc
        assert check.main(["--device", "cpu"]) == 2
    gpu = object.__new__(check.GpuMemory)
    gpu.driver = types.SimpleNamespace(cuIpcGetMemHandle=lambda: 801)
    for fails in (functools.partial(gpu.call, "cuIpcGetMemHandle"), lambda: torch.empty(1 << 60)):
        monkeypatch.setattr(check, "referee", lambda _, fails=fails: fails())
        assert check.main(["--device", "cpu"]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "smaller" not in first + second and third.endswith("; a smaller --size may fit"), (first, second, third)


LACKS = {
    "its GPU": torch.OutOfMemoryError("out of memory"),
    "its CPU": RuntimeError("DefaultCPUAllocator: out of memory"),
    "Python": MemoryError("out of memory"),
    "the kernel": OSError(24, "Too many open files: out of memory"),
}


@pytest.mark.parametrize("who", ["the solution", *LACKS])
@pytest.mark.parametrize("wrong", [False, True])
def test_who_lacks_memory_keeps_what_was_found(who, wrong, quick, capsys, monkeypatch):
    """Where the judge's own GPU, or CPU, had no memory left, a solution that it had convicted had no verdict."""

    def found(judgement):
        run = judgement.run
        run.report.findings |= {"normal inputs": "8: wrong"} if wrong else {}
        if who in LACKS:
            raise LACKS[who]
        run.solution.ask = lambda *_: {"calls": [{"no_memory": "out of memory"}]}
        run.requests.inspect(run.solution, [types.SimpleNamespace()], [{"expected": None}], [{}], {}, 1.0)

    monkeypatch.setattr(check.Judgement, "values", found)
    status, out, err = judge(capsys, CHEATS[0].parent / "honest_plain.py", "--no-timing", "--forward-only")
    assert status == 2 - wrong and "out of memory; " in (out if wrong else err), out + err


def test_what_ends_without_a_verdict_has_not_the_status_of_one(tmp_path):
    """Python's own is 1: who had no torch, or a full disk under standard error, had the solution convicted."""
    (tmp_path / "torch.py").write_text("raise ImportError('none')\n")
    where = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, check.__file__], env=where, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.endswith("ImportError: none\n")
    alone = tmp_path / "check.py"
    alone.write_bytes(Path(check.__file__).read_bytes())
    done = subprocess.run([sys.executable, str(alone)], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "the folder judge/ is missing" in done.stderr and str(tmp_path) in done.stderr


def test_a_failure_of_the_judge_is_no_verdict(capsys, monkeypatch):
    """A ValueError of its own ended it with status 1, by which it convicts."""
    monkeypatch.setattr(check, "referee", lambda _: int("x"))
    assert check.main(["--device", "cpu"]) == 2
    assert "the judge itself failed" in capsys.readouterr().err


def test_a_judge_without_descriptors_does_not_convict(monkeypatch):
    """It could not look whether the child's threads stand, and the solution was convicted of not standing still."""

    def refuse(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(sandbox, "halts", lambda *_: refuse(None))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        try:
            with pytest.raises(OSError, match="Too many open files"):
                sandbox.ConfinedProcess.stands(process)
        finally:
            process.kill()
    requests = check.Requests(types.SimpleNamespace(reference=None, device=torch.device("cpu")))
    contender = types.SimpleNamespace(who="solution", fetch=lambda *_, **__: refuse(None))
    call, told = types.SimpleNamespace(aliases=()), {"expected": [["C", "float32", [1, 1]]]}
    with pytest.raises(OSError, match="Too many open files"):
        requests.take(contender, call, told["expected"], {"results": [[0, 0, [1, 1]]]})


@pytest.mark.parametrize("kind", ["OSError(24, 'Too many open files')", 'RuntimeError("can\'t start new thread")'])
def test_a_solution_that_lacks_what_is_exhausted_is_not_convicted(kind, quick, capsys, tmp_path):
    for text in (f"raise {kind}\n" + PLAIN, PLAIN.replace("return ", f"raise {kind}\n        return ")):
        status, out, err = judge(capsys, solution(tmp_path, text), "--no-timing", "--forward-only", "--size", "9")
        assert status == 2 and "lacks memory or another resource" in err.splitlines()[-1], out + err


def test_a_process_that_the_system_ended_for_its_memory_is_not_convicted(quick, capsys, monkeypatch):
    kills = itertools.count()
    monkeypatch.setattr(sandbox, "kills_for_memory", lambda: next(kills))
    status, out, err = judge(capsys, CHEATS[0].parent / "kills_itself.py", "--no-timing", "--forward-only", "--size", "9")
    assert status == 2 and "the system had no memory left" in err.splitlines()[-1], out + err


def test_a_run_ends_within_its_bound(quick, capsys):
    begun = time.perf_counter()
    path = CHEATS[0].parent / "hangs_asleep.py"
    status, out, err = judge(capsys, path, "--no-timing", "--forward-only", "--within", "3", "--timeout", "600", "--size", "9")
    assert status == 2 and "--within" in err.splitlines()[-1] and time.perf_counter() - begun < 30, out + err


def test_a_run_ends_within_its_bound_while_no_child_is_waited_for():
    """Comparisons of large results had no bound."""
    run = object.__new__(check.Run)
    run.report = types.SimpleNamespace(start_time=time.perf_counter() - 10.0)
    run.options = types.SimpleNamespace(within=5.0)
    run.device, run.problem, run.reference = torch.device("cpu"), None, None
    examine, send = check.Judgement(run).examine, check.Requests(run).send
    for act in (functools.partial(examine, types.SimpleNamespace(), []), functools.partial(send, None, [])):
        with pytest.raises(check.CannotRun, match="--within"):
            act()


def test_a_reference_that_somebody_slows_down_is_no_verdict(quick, capsys, monkeypatch):
    """Another run's solution pinned it to one core at nice 19: a ratio of 8 was certified."""
    Shared.drop()
    real, requests = sandbox.schedule_of, itertools.count()

    def schedule_of(thread):
        if (found := real(thread)) is None:  # the thread has ended meanwhile
            return None
        processors, nice, policy = found
        return processors, nice + (next(requests) > 20), policy

    monkeypatch.setattr(sandbox, "schedule_of", schedule_of)
    status, out, err = judge(capsys, CHEATS[0].parent / "honest_plain.py", "--no-timing", "--forward-only", "--size", "9")
    Shared.drop()
    assert status == 2 and "has changed how the reference's process is scheduled" in err.splitlines()[-1], out + err


def test_nobody_finds_the_seed_by_trying_all():
    """Of 48 bits a GPU can try a part that counts, in the seconds that requests may take: of each what --timeout allows."""
    options = check.parse(["--solution", "theirs.py", "--size", "1", "--device", "cpu"])
    assert max(check.Run(options).seed for _ in range(9)) >= 2**60


def test_what_the_terminal_cannot_write_is_written_as_numbers(tmp_path):
    judge = start(tmp_path, "raise ValueError('\u00e9 \u6f22')\n", encoding="ascii")
    out, err = judge.communicate(timeout=300)
    assert judge.returncode == 1 and out.splitlines()[-1].startswith("WRONG: ") and r"ValueError: \xe9 \u6f22" in out, out + err


def test_ctrl_c_and_a_closed_pipe_end_it_quietly(tmp_path):
    read, write = os.pipe()
    os.close(read)
    unread = start(tmp_path, PLAIN, write)
    os.close(write)
    waits = start(tmp_path, "import sys, time\n\nprint('is here', file=sys.stderr, flush=True)\ntime.sleep(600)\n")
    while "is here" not in (line := waits.stderr.readline()):  # while a Fork begins, Python would lose the interrupt in what logging
        assert line, "the judge has ended"  # has called there
    waits.send_signal(signal.SIGINT)
    out, err = waits.communicate(timeout=100)
    assert waits.returncode == 130 and err == "check.py: interrupted\n" and "check.py:" not in out, out + err
    assert "Error" not in unread.communicate(timeout=100)[1] and unread.returncode == 141


LEAVES_PROCESSES = """import os, time

for _ in range(3):
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(2, b"I am %d\\n" % os.getpid())  # in one piece
        time.sleep(600)
        os._exit(0)
"""


def lives(pid):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@guarded
@pytest.mark.parametrize("ends", ["a verdict", "SIGKILL", "SIGTERM"])
def test_no_process_is_left_behind(ends, tmp_path):
    judge = start(tmp_path, LEAVES_PROCESSES + (PLAIN if ends == "a verdict" else "time.sleep(600)"))
    found = []
    while len(found) < 3:
        assert (line := judge.stderr.readline()), f"the judge has ended: {judge.communicate()}"
        found += map(int, re.findall(r"solution: I am (\d+)", line))
    assert all(map(lives, found))
    if ends != "a verdict":
        os.kill(judge.pid, getattr(signal, ends))
    out, _ = judge.communicate(timeout=100)  # until nobody holds its pipes any more
    assert ("all holds" in out) == (ends == "a verdict") and judge.returncode == {"a verdict": 0, "SIGKILL": -9, "SIGTERM": -15}[ends]
    until = time.time() + 20
    while any(map(lives, found)) and time.time() < until:
        time.sleep(0.02)
    assert not any(map(lives, found))


def test_a_short_timeout_is_not_that_of_importing_torch(quick, capsys, monkeypatch):
    """With --timeout 0.5 a busy machine had not imported torch in time, and a solution that hangs got no verdict."""
    real, limits = check.Contender, {}

    def contender(who, *arguments, **others):
        made = real(who, *arguments, **others)
        if who == "solution":
            ask = made.ask
            made.ask = lambda do, limit, **k: limits.setdefault(do, limit) and ask(do, limit, **k)
        return made

    monkeypatch.setattr(check, "Contender", contender)
    judge(capsys, CHEATS[0].parent / "hangs_asleep.py", "--timeout", "0.5", "--no-timing", "--forward-only")
    assert limits["start"] >= 60 and limits["load"] == 5


@pytest.mark.parametrize("said", [b'{"here": 1}\n\n', b'{"here": 1}\n'], ids=["all of it", "a part"])
def test_who_has_answered_while_the_judge_was_stopped_does_not_hang(said, monkeypatch):
    """Ctrl-Z for longer than --timeout, and an honest solution was convicted. Who has not said all of it hangs."""
    channel, other = socket.socketpair()
    other.sendall(said)
    clock, real = [0.0], select.select

    def stopped(*arguments):
        clock.append(1e9)
        return real(*arguments)

    monkeypatch.setattr(check, "time", types.SimpleNamespace(perf_counter=lambda: clock[-1]))
    monkeypatch.setattr(check, "select", types.SimpleNamespace(select=stopped))
    child = object.__new__(check.Contender)
    process = types.SimpleNamespace(resume=lambda: None, pause=lambda: None)
    vars(child).update({"who": "solution", "path": "", "gpu": None, "channel": channel, "prints": []})
    vars(child).update({"process": process, "stop": lambda: None, "ends_by": float("inf")})
    with channel, other, contextlib.nullcontext() if said.endswith(b"\n\n") else pytest.raises(check.Wrong, match="hangs"):
        assert child.ask("calls", 60.0) == {"here": 1}


def test_a_child_that_ends_while_it_is_stopped_stands():
    """Between two questions of the judge's; "No child processes" was its last word then (seen once, of parent_goes.py)."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    child = types.SimpleNamespace(pid=pid)
    try:
        assert sandbox.ConfinedProcess.stands(child)
    finally:
        os.waitpid(pid, 0)
    assert sandbox.ConfinedProcess.stands(child)


def test_a_process_whose_threads_end_does_not_stand(monkeypatch):
    """One of them was gone when the judge came to it, and the others were not looked at."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as process:

        def gone(path):
            raise FileNotFoundError

        monkeypatch.setattr(sandbox.Path, "read_bytes", gone)
        try:
            stands = sandbox.ConfinedProcess.stands(process)
        finally:
            process.kill()
    assert not stands


def test_a_child_that_ends_before_the_solution_is_loaded_is_no_verdict(quick, capsys, monkeypatch):
    """It is the first to go where memory runs out, and has not run a line of the solution's."""
    real = check.Contender

    def contender(who, *arguments, **others):
        made = real(who, *arguments, **others)
        if who == "solution":
            os.kill(made.process.pid, signal.SIGKILL)
        return made

    monkeypatch.setattr(check, "Contender", contender)
    status, out, err = judge(capsys, CHEATS[0].parent / "honest_plain.py", "--no-timing", "--forward-only")
    assert status == 2 and "killed by signal 9" in err and "WRONG" not in out, out + err


def test_a_childs_memory_is_opened_as_soon_as_the_system_allows_it(small_slab, monkeypatch):
    """Whoever was not root had no verdict in some runs: "Permission denied: '/proc/PID/mem'"."""

    class LateDumpable:
        """A process that becomes dumpable a moment after its parent goes on, as one that an exec has made."""

        def __init__(self, *_, **__):
            self.pid = os.fork()
            if self.pid == 0:
                os.setsid(), time.sleep(0.3), guard.set_dumpable(True), time.sleep(5), os._exit(0)

        def wait(self, _):
            os.waitpid(self.pid, 0)

    room = tempfile.TemporaryDirectory()  # not every system lets others write to /tmp
    os.chmod(room.name, 0o777)
    monkeypatch.setattr(tempfile, "tempdir", room.name)
    tester = os.fork()
    if tester == 0:
        status = 1
        try:
            monkeypatch.setattr(sandbox, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": LateDumpable}))
            if os.getuid() == 0:
                os.setgroups([]), os.setresgid(*[65534] * 3), os.setresuid(*[65534] * 3)
            guard.set_dumpable(False)
            with check.Contender("solution", "", small_slab, sandbox.Sandbox()):
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(tester, 0)[1]) == 0


def test_the_judge_imports_nothing_beside_the_solution(tmp_path):
    """A solution that writes to files which the judge imports later would run inside it."""
    code = "import sys, check; real = check.Contender.__init__; seen = []\n"
    code += "check.REQUEST_SECONDS['cpu'] = 0.005\n"
    code += "def begin(self, who, *a, **k): seen.append(set(sys.modules)); real(self, who, *a, **k)\n"
    code += (
        f"check.Contender.__init__ = begin; check.main(['--size', '16', '--device', 'cpu', '--trials', '4', '--json', '{tmp_path}/r'])\n"
    )
    code += "print(len(seen), sorted(set(sys.modules) - seen[1]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("\n2 []\n"), done.stdout[-1000:] + done.stderr


@pytest.mark.skipif(helpers.HAS_CUDA, reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_no_verdict(capsys):
    for name in ("cuda", "cuda:1"):
        assert check.main(["--device", name]) == 2
        assert f"'{name}' is given, but torch sees no GPU" in capsys.readouterr().err


# ---- The record, seeds. ----------------------------------------------------------------------------------------------


def test_the_record_repeats_the_run(quick, capsys, tmp_path):
    path, record = solution(tmp_path, "\ufeff" + PLAIN), tmp_path / "record.json"  # a byte order mark, as some editors leave
    runs = []
    for options in (["--seed", "7"], ["--seed", "7"], []):
        status, out, _ = judge(capsys, path, "--no-timing", "--json", str(record), *options)
        runs.append(json.loads(record.read_text(), parse_constant=pytest.fail))
        assert status == 0 and f"--seed {runs[-1]['seed']} repeats this run" in out
    calls = [[(row["input"], row["size"], row["error"]) for row in run["rows"]] for run in runs]
    assert calls[0] == calls[1] != calls[2] and sorted(c[1] for c in calls[1]) != sorted(c[1] for c in calls[2])
    assert runs[0]["seed"] == 7 != runs[2]["seed"] and runs[0]["verdict"] == "ok" and runs[0]["ratio"] is None
    assert runs[0]["sentence"].startswith("all holds: ") and runs[0]["torch"] == torch.__version__
    assert all(len(digest) == 64 for digest in runs[0]["sha256"].values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["record.json", "solution.py"]  # nothing temporary is left
    for name in ("nan", "infinite"):
        judge(capsys, path.with_name("x.py"), "--json", str(record))  # a run that cannot be made leaves the record alone
        assert json.loads(record.read_text())["seed"] == runs[2]["seed"]
        assert judge(capsys, CHEATS[0].parent / f"{name}.py", "--no-timing", "--json", str(tmp_path / "wrong.json"), "--size", "8")[0] == 1
        assert json.loads((tmp_path / "wrong.json").read_text(), parse_constant=pytest.fail)["verdict"] == "wrong"


def test_times_are_reported_and_recorded(quick, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REQUEST_SECONDS", {"cpu": 0.02})
    monkeypatch.setattr(check, "TOO_NOISY", float("inf"))  # other tests may be at work beside this one
    path, record = CHEATS[0].parent / "honest_slow.py", tmp_path / "record.json"
    status, out, err = judge(capsys, path, "--trials", "8", "--json", str(record))
    assert status == 0, out + err
    kept = json.loads(record.read_text())
    for mode in ("forward", "gradients"):
        times = kept["timings"][mode]
        for who in ("alone", "reference", "solution"):
            inside = times[who]["inside"]
            assert 0 < inside["p10_us"] <= inside["median_us"] <= inside["p90_us"] and times[who]["outside_us"] > 0
            each = [request["inside_us"] for request in times[who]["each"]]
            assert len(each) == times[who]["requests"] and sum(map(len, each)) == times[who]["calls"]
            assert measures.spread([*itertools.chain(*each)]) == pytest.approx(inside, abs=0.01)
        assert times["ratio"] == pytest.approx(times["reference_us"] / times["solution"]["us"])
        assert times["solution"]["us"] > 2000 and times["ratio"] < 1
        assert (f"{times['ratio']:.2g}x" if times["ratio"] < 0.1 else f"{times['ratio']:.2f}x") in out
    assert kept["ratio"] == kept["timings"]["forward"]["ratio"]


@pytest.mark.parametrize("path", [Path(check.__file__), *sorted(Path(guard.__file__).parent.glob("*.py"))], ids=lambda path: path.name)
def test_lines_of_the_judge_have_at_most_120_columns(path):
    """The formatter allows check.py as many as the rest of the repository has."""
    assert [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120] == []


# ---- What the kernel keeps the solution from. ------------------------------------------------------------------------


def test_a_system_without_guards_is_named(quick, capsys, tmp_path, monkeypatch):
    """The report says what is left open, and so does the record."""
    real, record = check.Contender, tmp_path / "record.json"
    missing = {"capabilities": True, "landlock": 0, "seccomp": False}

    def contender(who, *arguments, **others):
        made = real(who, *arguments, **others)
        if who == "solution":
            ask = made.ask
            made.ask = lambda do, *a, **k: {**ask(do, *a, **k), **({"guard": missing} if do == "start" else {})}
        return made

    monkeypatch.setattr(check, "Contender", contender)
    status, out, err = judge(capsys, solution(tmp_path, PLAIN), "--no-timing", "--json", str(record), "--size", "9")
    notes = [line for line in out.splitlines() if line.startswith("note   guard: ")]
    assert status == 0 and len(notes) == 2 and "seccomp" in notes[0] and "landlock" in notes[1], out + err
    assert json.loads(record.read_text())["guard"] == missing


def test_this_system_has_all_guards(quick, capsys, tmp_path):
    status, out, _ = judge(capsys, solution(tmp_path, PLAIN), "--no-timing", "--json", str(tmp_path / "record.json"), "--size", "9")
    guard = json.loads((tmp_path / "record.json").read_text())["guard"]
    assert status == 0 and guard["capabilities"] and ("guard: " in out) == (not (guard["seccomp"] and guard["landlock"]))


def test_the_memory_of_the_process_that_ends_groups_is_closed():
    """A solution of the same user wrote there, where the system has no Landlock: this process has no filter, and may stop the judge."""
    code = "from judge import guard; guard.end_groups('/no/such'); print(guard.is_dumpable())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stdout + done.stderr


def verdict_of_filter(words, number, *arguments):
    """What a seccomp filter answers, by a reading of it that is not the kernel's."""
    data = number.to_bytes(4, "little") + guard.ARCHITECTURE.to_bytes(4, "little") + bytes(8)
    data += b"".join((a % 2**64).to_bytes(8, "little") for a in (*arguments, *[0] * (6 - len(arguments))))
    at = A = 0
    while True:
        code, yes, no, k = words[at]
        at += 1
        if code == 0x20:
            A = int.from_bytes(data[k : k + 4], "little")
        elif code == 0x54:
            A &= k
        elif code == 0x06:
            return k
        else:
            at += yes if {0x15: k == A, 0x35: k <= A, 0x45: bool(A & k)}[code] else no


@pytest.mark.skipif(not guard.CALLS, reason="a filter for x86_64 and aarch64")
def test_the_filter_lets_descendants_alone_be_reached():
    numbers = guard.CALLS
    allow, in_vain, refuse, no_such_group = 0x7FFF0000, 0x50000, 0x50001, 0x50003
    words = guard.filter_program(1000, 1 << 31)
    answer = lambda name, *arguments: verdict_of_filter(words, numbers[name], *arguments)  # noqa: E731
    for pid, says in (
        (1000, allow),
        (1001, allow),
        (2**31 - 1, allow),
        (999, refuse),
        (1, refuse),
        (0, refuse),
        (-1, no_such_group),
        (-1000, no_such_group),
    ):
        assert answer("kill", pid, 9) == answer("tkill", pid, 9) == answer("tgkill", pid, pid, 9) == says, pid
        assert answer("kill", pid, 18) == answer("tgkill", pid, pid, 18) == answer("rt_tgsigqueueinfo", pid, pid, 18) == refuse
        own = allow if pid in (0, 1000) else refuse  # a younger process may be another run's
        assert answer("prlimit64", pid, 7) == answer("sched_setscheduler", pid, 0) == answer("move_pages", pid) == own
        assert answer("setpriority", 0, pid, 5) == own
        assert answer("sched_setaffinity", pid, 8) == (allow if pid in (0, 1000) else in_vain)
    assert answer("setpriority", 2, 0, 5) == refuse
    for flags, says in ((17, allow), (0x3D0F00, allow), (0x8000 | 17, refuse), (0x10000000 | 17, refuse), (9, refuse), (18, refuse)):
        assert answer("clone", flags) == says, hex(flags)
    for command, says in ((0, allow), (8, refuse), (10, refuse), (15, refuse), (1030, allow)):
        assert answer("fcntl", 3, command) == says
    for command, says in ((0x8901, refuse), (0x8902, refuse), (0x5412, refuse), (0x5401, allow)):
        assert answer("ioctl", 3, command) == says
    assert answer("prctl", 1, 0) == in_vain and answer("prctl", 4, 0) == allow and answer("setsid") == in_vain
    refused = guard.REFUSED.split()
    assert len(refused) == 21 and all(answer(name) == refuse for name in refused)
    assert answer("clone3") == 0x50000 + 38 and verdict_of_filter(words, 1 << 30 | 62, 1, 9) == refuse
    assert verdict_of_filter(words, 0) == allow  # read, or io_setup
    begun_anew = guard.filter_program(1000, 30000)  # the judge is process 30000: ids have begun anew since it was started
    assert verdict_of_filter(begun_anew, numbers["kill"], 30000, 9) == refuse
    assert verdict_of_filter(begun_anew, numbers["kill"], 29999, 9) == allow


CONFINED = """
import ctypes, json, os, sys
sys.path.insert(0, os.getcwd())
from judge.sandbox import Sandbox
told = Sandbox.enter(json.loads(sys.argv[2])["sandbox"])
own = ctypes.create_string_buffer(b"own bytes")
print(json.dumps([ctypes.addressof(own), told, os.environ["TMPDIR"]]), flush=True)
while own.value == b"own bytes":
    ctypes.string_at(own)
print(own.value.decode(), flush=True)
os.fork()
while True:
    ctypes.string_at(own)
"""


def test_a_process_in_the_sandbox(tmp_path):
    """It stands still while it is stopped, the judge reads and writes its memory, and nothing of it is left."""
    program = solution(tmp_path, CONFINED, "program.py")
    with sandbox.Sandbox() as confines, open(tmp_path / "printed", "w+") as printed:
        assert not guard.is_dumpable()
        process = confines.start(str(program), {}, "", stdout=printed, cwd=ROOT)
        try:
            wait_for(lambda: "\n" in (tmp_path / "printed").read_text())
            address, told, folder = json.loads((tmp_path / "printed").read_text())
            assert told == GUARDS and folder.startswith(confines.folder) and not process.stands()
            assert process.stop() and process.stands()
            assert process.read(address, 9) == b"own bytes" and process.change_of_schedule() == ""
            process.write(address, b"the judge")
            with pytest.raises(OSError):
                process.read(8, 8)
            time.sleep(0.1)
            assert "the judge" not in (tmp_path / "printed").read_text()
            process.resume()
            wait_for(lambda: (tmp_path / "printed").read_text().endswith("the judge\n"))
            assert process.stop() and not process.has_ended()
        finally:
            process.end()
        assert process.has_ended() and process.status(0) == -signal.SIGKILL
        wait_for(lambda: not lives_in_group(process.pid))
    assert guard.is_dumpable() and not os.path.exists(confines.folder)


def wait_for(condition, seconds=60.0):
    until = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < until
        time.sleep(1e-3)


def lives_in_group(group):
    """Whether a process of the group lives. A zombie does not."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getpgid(int(pid)) == group and lives(int(pid)):
                return True
    return False


REACHES_OUT = """
import os, socket, sys
from judge import guard
guard.guard(os.getppid(), [], sys.argv[1], None)
own = socket.socket(socket.AF_UNIX)
own.bind("\\0of a descendant " + sys.argv[2])
own.listen()
socket.socket(socket.AF_UNIX).connect(own.getsockname())
try:
    socket.socket(socket.AF_UNIX).connect("\\0" + sys.argv[2])
except PermissionError:
    print("refused", os.environ["HOME"], os.environ["TORCH_EXTENSIONS_DIR"])
"""


@pytest.mark.skipif(GUARDS["landlock"] < 6, reason="a Landlock that knows no scopes")
def test_abstract_sockets_of_others_are_out_of_reach(tmp_path):
    """A younger run's processes may listen on one. A descendant's can be reached, and home is a folder of the run."""
    name = f"of nobody's {os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(f"\0{name}")
        listens.listen()
        done = subprocess.run([sys.executable, "-c", REACHES_OUT, str(tmp_path), name], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"refused {tmp_path}/home {tmp_path}/home/builds\n", done.stdout + done.stderr


def test_a_file_finds_its_builds_and_writes_beside_them(tmp_path, monkeypatch):
    """Each text has a folder of its own. What the text names is copied there; another text's folder is another one."""
    root = tmp_path / "torch_extensions"
    text = "from torch.utils import cpp_extension\nname = 'product_' + some_hash\n"
    for name in ("product_12ab", "of_others", "py311_cu130/product_34cd"):
        (root / name).mkdir(parents=True)
        (root / name / "library.so").write_text(name)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root))
    folder = Path(sandbox.folder_of_builds(text))
    assert folder.parent == root and sorted(path.name for path in folder.iterdir()) == ["product_12ab", "product_34cd"]
    (folder / "product_12ab" / "library.so").write_text("altered by the file itself")
    assert (root / "product_12ab" / "library.so").read_text() == "product_12ab"
    assert sandbox.folder_of_builds(text) == str(folder)
    assert (folder / "product_12ab" / "library.so").read_text() == "altered by the file itself"  # the next run finds it
    assert sandbox.folder_of_builds(text + "#") != str(folder)
    assert sandbox.folder_of_builds("import torch") is None


# ---- The measures themselves. ----------------------------------------------------------------------------------------


def of_many_scales(*shape, seed, span):
    g = helpers.generator(seed)
    exponents = torch.randint(-span, span, shape, generator=g)
    return torch.ldexp(torch.randn(*shape, dtype=torch.float64, generator=g), exponents)


@pytest.mark.parametrize("span", [1, 30, 150])
def test_the_float64_truth_is_exact_far_beyond_float64(span):
    X, Y = of_many_scales(7, 9, seed=1, span=span), of_many_scales(9, 5, seed=2, span=span)
    X[2], Y[3, 1], X[4, 4] = 0, 0, 2.0**-1060
    high, low, _ = measures.exact_product(X, Y)
    for i in range(7):
        for j in range(5):
            terms = [Fraction(float(X[i, k])) * Fraction(float(Y[k, j])) for k in range(9)]
            off = abs(Fraction(float(high[i, j])) + Fraction(float(low[i, j])) - sum(terms))
            assert off <= sum(map(abs, terms)) * Fraction(1, 2**95) + Fraction(1, 2**1000)


def test_the_truth_of_an_inverse_is_exact_far_beyond_float64_and_of_its_gradient_to_float64():
    L, G = measures.dominant(of_many_scales(7, 7, seed=4, span=20), torch.float64), of_many_scales(7, 7, seed=5, span=20)
    high, low, magnitude = measures.inverse_of(L, None)
    gradient, _, off = measures.inverse_of(L, G)
    fractions, n = [[[Fraction(x) for x in row] for row in X.tolist()] for X in (L, G)], range(7)
    C = [[Fraction(i == j) for j in n] for i in n]
    for i in n:
        C[i] = [(C[i][j] - sum(fractions[0][i][k] * C[k][j] for k in range(i))) / fractions[0][i][i] for j in n]
    for i in n:
        for j in range(i + 1):
            assert abs(Fraction(float(high[i, j])) + Fraction(float(low[i, j])) - C[i][j]) <= Fraction(float(magnitude[i, j])) / 2**95
            exact = -sum(C[k][i] * fractions[1][k][m] * C[j][m] for k in n for m in n)
            assert abs(Fraction(float(gradient[i, j])) - exact) <= Fraction(float(off[i, j])) / 2**50


def test_slices_add_up_and_have_few_bits():
    X = of_many_scales(6, 8, seed=3, span=200)
    X[1] = 0
    parts = [*measures.slices(X, 1, 20)]
    assert sum(Fraction(float(part[0, 0])) for part in parts) == Fraction(float(X[0, 0]))
    assert torch.equal(sum(reversed(parts)), X)
    for part in parts:
        unit = part.abs().amax(1).frexp()[1] - 22
        assert torch.equal(torch.ldexp(part, -unit[:, None]).round(), torch.ldexp(part, -unit[:, None]))


@pytest.mark.parametrize("decades", [1, 18, 19, 20, 30])
def test_products_that_may_underflow_are_known(decades):
    generator = helpers.generator(2)
    X, Y = (10.0 ** (-decades * torch.rand(20, 20, generator=generator)) for _ in range(2))
    X[3], Y[:, 4] = 0, 0
    terms = X[:, :, None].double() * Y.double()
    smallest = torch.where(terms > 0, terms, torch.inf).amin(1)
    hits = measures.may_underflow(X, Y).bool()
    assert bool(hits[smallest < 2.0**-126].all()) and not bool(hits[smallest > 2.0**-124].any())


@pytest.mark.parametrize(
    "dtype,floor,most", [(torch.float32, 1.5e-6, 16 * 10 * 2.0**-24), (torch.float64, 20 * 2.0**-53, 16 * 10 * 2.0**-53)]
)
def test_the_reference_loosens_a_bound_only_so_far(dtype, floor, most):
    X, Y = (helpers.normal(100, 100, seed=seed, dtype=dtype) for seed in (1, 2))
    truth = measures.Truth(X, Y, torch.tril)
    assert truth.bound(0.0) == floor and truth.bound(floor) == 2 * floor and truth.bound(1.0) == pytest.approx(most)
    assert measures.Truth(X, Y, torch.tril, exact=True).bound(1.0) == 0.0
    C = torch.tril(X.double() @ Y.double())
    C[50, 20] += 3 * truth.magnitude[50, 20]
    C[60, 10] = torch.nan
    errors = truth.errors(C)
    assert errors[50, 20] == pytest.approx(3, rel=1e-6) and errors[60, 10] == torch.inf and measures.worst_of(errors)[1] == (60, 10)
    assert not errors.triu(1).any()


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4)])
def test_the_worst_element_is_found_without_a_list_of_all_that_are_as_bad(shape, monkeypatch):
    """Of 16384 x 16384 zeros it took 4.3 GB."""
    monkeypatch.setattr(torch.Tensor, "nonzero", None)
    for n in range(torch.zeros(shape).numel()):
        errors = torch.zeros(shape)
        errors.view(-1)[n:] = torch.inf
        at = measures.worst_of(errors.mT.contiguous().mT)[1]
        assert sum(i * s for i, s in zip(at, errors.stride(), strict=True)) == n
    assert measures.first_difference(errors, errors + 1).startswith("[0")


def test_what_is_allowed_of_16_bits_of_tf32_and_of_float64():
    assert measures.allowed(torch.float16, 100) == (10 * 2.0**-23, 2.0**-9)
    assert measures.allowed(torch.bfloat16, 100) == (10 * 2.0**-23, 2.0**-6)
    assert measures.allowed(torch.float32, 100, tf32=True) == (2.0**-10 + 2.0**-22 + 10 * 2.0**-23, 2.0**-8)
    assert [measures.allowed(torch.float64, 400, inverse=inverse)[0] for inverse in (False, True)] == [20 * 2.0**-52, 1e-6 * 2.0**-29]


@pytest.mark.parametrize("most", [1, 3, 192, 3000, 8192])
def test_sizes_reach_the_largest(most):
    """Where it is no power of two, the last half octave was left out."""
    assert max(size for seed in range(99) for size in measures.some_sizes(random.Random(seed), most)) == most


def test_percentiles():
    assert measures.spread([4.0, 1.0, 3.0, 2.0, 5.0]) == pytest.approx({"median_us": 3.0, "p10_us": 1.4, "p90_us": 4.6, "best_us": 1.0})
    assert set(measures.spread([7.0]).values()) == {7.0}


def watch_of(reference):
    """A Stopwatch that has timed these requests of the reference before the solution was loaded."""
    watch = object.__new__(check.Stopwatch)
    watch.overhead = 0.0
    watch.alone = watch.summary(reference)
    return watch


@pytest.mark.parametrize(
    "inside,outside,clock",
    [(100, 101, "inside"), (100, 110, "outside"), (110, 100, "outside"), (1, 100, "outside"), (0, 100, "outside")],
)
def test_the_time_from_outside_counts_where_clocks_disagree(inside, outside, clock):
    reference = [(10, 10 * 1000e-6, [1000.0] * 10)] * 3
    watch = watch_of(reference)
    times = watch.compare(reference, [(10, 10 * outside * 1e-6, [float(inside)] * 10)] * 3)
    assert times["clock"] == clock and times["ratio"] == pytest.approx(1000 / (inside if clock == "inside" else outside))
    assert times["lower_bound"] == (clock == "outside")
    slower = watch.compare([(10, 10 * 3000e-6, [3000.0] * 10)] * 3, [(10, 1e-2, [1000.0] * 10)] * 3)
    assert slower["ratio"] == pytest.approx(1)  # the reference before the solution was loaded counts, where it was faster


@pytest.mark.parametrize(("times", "slower"), [([2000.0] * 10, True), ([900.0] * 3 + [9000.0] * 7, False)], ids=["slow", "disturbed"])
def test_who_is_disturbed_is_not_called_slower(times, slower):
    reference = [(10, 10 * 1000e-6, [1000.0] * 10)] * 3
    assert watch_of(reference).compare(reference, [(10, sum(times) * 1e-6, times)] * 3)["slower"] == slower


@pytest.mark.parametrize("slow,slower", [(13500.0, False), (11400.0, True)], ids=["noisy", "steady"])
def test_a_copy_of_the_reference_is_not_called_slower(slow, slower):
    """A network of many short kernels was judged as its own solution: 13.14 ms for 11.32 ms, and the verdict said "0.86x, slower"."""
    quiet, solution = [11320.0] * 10, [13140.0] * 10
    noisy = quiet[:5] + [slow] * 5
    requests = {name: [(10, sum(each) * 1e-6, each)] * 3 for name, each in (("alone", quiet), ("reference", noisy), ("solution", solution))}
    times = watch_of(requests["alone"]).compare(requests["reference"], requests["solution"])
    assert times["ratio"] == pytest.approx(0.8615, rel=1e-3) and times["slower"] == slower and times["lower_bound"] != slower
    assert check.ratio(times) == ("0.86x, slower" if slower else "at least 0.86x, which leaves open whether it is faster")


@pytest.mark.parametrize("spread,told", [(500.0, "1.20x, which may be noise"), (100.0, "1.20x")], ids=["noisy", "steady"])
def test_a_copy_of_the_reference_is_not_called_faster(spread, told):
    """A network of many short kernels was judged as its own solution: 2.52 ms for 3.00 ms, and the verdict said "1.19x"."""
    reference = [(10, 10 * 3000e-6, [2900.0] * 5 + [3100.0] * 5)] * 3
    inside = [2500.0 - spread] * 2 + [2500.0] * 6 + [2500.0 + spread] * 2
    times = watch_of(reference).compare(reference, [(10, sum(inside) * 1e-6, inside)] * 3)
    assert times["clock"] == "inside" and not times["lower_bound"] and check.ratio(times) == told


def test_a_ratio_of_one_needs_no_remark():
    reference = [(10, 10 * 1000e-6, [990.0] * 5 + [1010.0] * 5)] * 3
    assert check.ratio(watch_of(reference).compare(reference, reference)) == "1.00x"


@pytest.mark.parametrize(
    "nbytes,shape,sizes", [(1, None, [8, 8, 4]), (100, None, [2] * 10), (999, None, [1] * 20), (1, (3, 5), [4] * 5), (1, (99, 9), [1] * 20)]
)
def test_pieces_have_room_for_inputs_and_results(nbytes, shape, sizes):
    """Level2/16 of KernelBench has results four times as large as its input. Their truths filled 140 GB of a GPU."""
    draws = check.Choices(types.SimpleNamespace(slab=types.SimpleNamespace(size=1000)))
    calls = [types.SimpleNamespace(nbytes=nbytes, expected=shape and [("result", "float32", shape)], n=n) for n in range(20)]
    pieces = [*draws.in_pieces(calls)]
    assert [len(piece) for piece in pieces] == sizes and sum(pieces, []) == calls


@pytest.mark.parametrize(
    "reads,left",
    [([1.15, 1.16, 1.15, 1.02, 9.0], [9.0]), ([0.9, 1.02, 9.0], [1.02, 9.0]), ([1.15] * 9, [])],
    ids=["slow", "best", "deadline"],
)
def test_timed_calls_wait_until_memory_is_fast(reads, left, monkeypatch):
    """Calls took 15 % longer while the driver cleared memory that the other contender had given back."""
    reads, clock = list(reads), itertools.count(step=check.CLEARING / 9)
    event = types.SimpleNamespace(record=lambda: None, elapsed_time=lambda _: reads.pop(0))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(check.time, "perf_counter", lambda: next(clock))
    requests = object.__new__(check.Requests)
    requests.wait, requests.meter, requests.fastest = (lambda: None), torch.zeros(1), 1.0
    requests.wait_for_fast_memory()
    assert reads[: len(left)] == left and (not left or len(reads) == len(left))
    assert requests.fastest == min(1.0, 0.9 if left[:1] == [1.02] else 1.0)


@pytest.mark.parametrize("quiet,slow,counts", [(3, 110.0, 110.0), (3, 8000.0, 100.0), (1, 700.0, 700.0), (1, 8000.0, 100.0)])
def test_calls_of_the_reference_that_others_slow_down_prove_nothing(quiet, slow, counts):
    """On a machine with other work the reference once took 7 ms, a cheat 0.5: 14x was certified."""
    inside = [100.0] * quiet + [slow] * (20 - quiet)
    reference = [(20, sum(inside) * 1e-6, inside)] * 3
    watch = watch_of(reference)
    times = watch.compare(reference, [(10, 10 * 50e-6, [50.0] * 10)] * 3)
    assert times["clock"] == "inside" and times["ratio"] == pytest.approx(counts / 50)
    noisy = "too noisy to time: other processes are using the processor"
    assert check.ratio(times) == (f"{counts / 50:.2f}x" if slow == counts else noisy)


def test_with_a_seed_no_ratio_is_certified(quick, capsys, tmp_path, monkeypatch):
    """It stands on the command line: a solution read it there, and computed everything beforehand."""
    monkeypatch.setattr(check, "REQUEST_SECONDS", {"cpu": 0.02})
    path, record = CHEATS[0].parent / "honest_plain.py", tmp_path / "record.json"
    status, out, err = judge(capsys, path, "--trials", "4", "--forward-only", "--seed", "5", "--json", str(record))
    kept = json.loads(record.read_text())
    assert status == 0 and kept["ratio"] is None and kept["timings"]["forward"]["ratio"] is None, out + err
    assert out.endswith("; with --seed, which repeats a run, no ratio is certified\n") and not re.search(r"\d\.\d\dx", out), out


@pytest.mark.parametrize("clock", ["inside", "outside"])
def test_what_memory_cannot_have_moved_is_impossible(clock):
    contender, watch, took = object.__new__(check.Contender), object.__new__(check.Stopwatch), {}
    contender.ask = lambda *_: {"us": [took["inside"]]}
    run = {"solution": contender, "reference": None, "random": random.Random(1), "options": types.SimpleNamespace(timeout=1), "dims": ()}
    run["requests"] = types.SimpleNamespace(send=lambda *_, **__: ([None], took["outside"] * 1e-6))
    run["judgement"] = types.SimpleNamespace(examine=lambda *_: None)
    run["choices"] = types.SimpleNamespace(in_pieces=lambda calls: [calls])
    run["problem"] = types.SimpleNamespace(timed_calls=lambda *_: [None], find_truths=lambda _: None)
    watch.run, watch.best, watch.mode = types.SimpleNamespace(**run), {contender: 1.0, None: 1.0}, "forward"
    watch.target, watch.most_calls, watch.least_calls, watch.overhead, watch.reference_seconds = 1.0, 1, 1, 0.0, 1.0
    watch.peak, watch.cache, watch.bytes = 1e12, 10_000_000, 50_000_000
    took |= {"inside": 41.0, "outside": 41.0}
    watch.request(contender)
    took[clock] = 39.0
    with pytest.raises(check.Wrong, match="impossible"):
        watch.request(contender)
    watch.bytes = watch.cache  # which may hold it all
    watch.request(contender)


def test_a_slow_solution_is_slower():
    quiet = {"noisy": False, "too_short": False}
    assert check.ratio({"ratio": 0.85, "lower_bound": True, "slower": True, **quiet}) == "0.85x, slower"
    open_ = "at least 0.85x, which leaves open whether it is faster"
    assert check.ratio({"ratio": 0.85, "lower_bound": True, "slower": False, **quiet}) == open_
    assert check.ratio({"ratio": 1.85, "lower_bound": True, "slower": False, **quiet}) == "at least 1.85x"
    assert check.ratio({"ratio": 0.0034, "lower_bound": False, "slower": True, **quiet}) == "0.0034x, slower"  # never 0.00x


@pytest.mark.parametrize("in_turns,noisy", [(1000.0, False), (1300.0, False), (3000.0, True)])
def test_no_ratio_where_the_reference_differs_from_itself(in_turns, noisy):
    """Under load an exact copy of the reference got "at least 0.07x"."""
    watch = watch_of([(10, 10 * 1000e-6, [1000.0] * 10)] * 3)
    loaded = [(10, 10 * in_turns * 1e-6, [in_turns] * 10)] * 3
    times = watch.compare(loaded, [(10, 10 * 14000e-6, [14000.0] * 10)] * 3)
    assert times["noisy"] == noisy and ("too noisy" in check.ratio(times)) == noisy


def test_what_the_judge_itself_takes_is_not_blamed_on_others():
    """At N = 64 "other processes are using the processor" was said of a quiet machine, where requests take longer than their calls."""
    requests = [(10, 10 * 100e-6, [20.0] * 10)] * 3
    times = watch_of(requests).compare(requests, [(10, 10 * 150e-6, [20.0] * 10)] * 3)
    assert times["clock"] == "outside" and not times["noisy"] and times["too_short"]
    assert check.ratio(times).startswith("too short to time")
    disturbed = [(10, 10 * 160e-6, [20.0] * 10)] * 3  # by the same clock the reference differs from itself
    times = watch_of(requests).compare(disturbed, [(10, 10 * 150e-6, [20.0] * 10)] * 3)
    assert times["noisy"] and not times["too_short"]


def test_what_a_request_takes_for_each_call_is_not_the_calls():
    """At N = 64 the verdict was 0.04x, of a solution that both clocks of the child gave 0.34x."""
    watch = object.__new__(check.Stopwatch)
    watch.overhead, watch.call_overhead = 500e-6, 20e-6
    requests = [(500, 500e-6 + 500 * 20e-6 + 500 * 40e-6, [40.0] * 500)] * 3
    assert watch.summary(requests)["outside_us"] == pytest.approx(40)
    swift = [(500, 500e-6 + 500 * 2e-6, [2.0] * 500)] * 3  # at most half of what a request takes is not its calls
    assert watch.summary(swift)["outside_us"] == pytest.approx(1.5)


def test_a_slow_start_does_not_make_the_sample_small(quick, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REQUEST_SECONDS", {"cpu": 0.03})
    path, record = CHEATS[0].parent / "slow_at_first.py", tmp_path / "record.json"
    status, out, err = judge(capsys, path, "--trials", "4", "--forward-only", "--json", str(record), "--size", "160", "--timeout", "60")
    calls = {who: kept["calls"] for who, kept in json.loads(record.read_text())["timings"]["forward"].items() if isinstance(kept, dict)}
    assert status == 0 and calls["solution"] > 0.6 * calls["reference"], out + err

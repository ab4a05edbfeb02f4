"""examples/train.py converges through tril_matmul, and as it does through tril(matmul)."""

import os
import subprocess
import sys
import types

import helpers
import pytest
import torch
from helpers import DEVICES, ROOT, needs_cuda

SCRIPT = ROOT / "examples" / "train.py"

SIZE = 200  # more than one block of the CPU path and one tile of a kernel, and no multiple of either
STEPS = 250
FALL = 200  # the loss falls by this factor at least; at this setting it falls three times further
# Two float32 products differ by some 1e-7 in each element; the loss, a sum of squares, is far above that here all the way.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def example():
    before = list(sys.path)
    yield helpers.module("train", "examples")
    sys.path[:] = before


@pytest.mark.parametrize("device", DEVICES)
def test_training_converges_as_with_the_reference(example, device):
    import model_new

    target = example.make_target(SIZE, device)
    losses = example.train(model_new.tril_matmul, target, STEPS)
    reference = example.train(example.reference_product, target, STEPS)
    assert len(losses) == STEPS + 1
    assert losses[-1] < losses[0] / FALL, f"the loss fell from {losses[0]:.3e} to {losses[-1]:.3e} only"
    step = max(range(STEPS + 1), key=lambda s: abs(losses[s] - reference[s]) / reference[s])
    worst = abs(losses[step] - reference[step]) / reference[step]
    assert worst == example.largest_difference(losses, reference)
    assert worst <= TOLERANCE, f"step {step}: loss {losses[step]!r}, with the reference {reference[step]!r}, {worst:.1e} > {TOLERANCE}"


def test_factors_stay_lower_triangular(example):
    """The upper triangles get a zero gradient, so that an optimiser leaves them alone."""
    import model_new

    seen = []

    def product(A, B):
        seen.append((A, B))
        return model_new.tril_matmul(A, B)

    example.train(product, example.make_target(40), 5)
    for matrix in seen[-1]:
        assert not matrix.triu(1).any()


def test_steps_are_checked(example):
    with pytest.raises(ValueError, match="steps must be at least 1, but is 0"):
        example.train(example.reference_product, example.make_target(8), 0)


def test_largest_difference(example):
    assert example.largest_difference([1.0, 2.2, 3.0], [1.0, 2.0, 3.0]) == pytest.approx(0.1)


def test_main_prints_progress_and_the_comparison(example, capsys):
    assert example.main(["--size", "40", "--steps", "20", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "tril_matmul   step    20 of 20" in out
    assert "tril(matmul)  step    20 of 20" in out
    assert "largest relative difference of the two loss curves" in out
    head, *rows = [line.split() for line in out.split("\n\n")[1].splitlines()[:3]]
    assert head == ["first", "loss", "last", "loss", "ms", "a", "step", "peak", "memory"]
    for row, name in zip(rows, ("tril_matmul", "tril(matmul)"), strict=True):
        assert row[0] == name and float(row[2]) < float(row[1]) and float(row[3]) > 0 and row[4:] == ["not", "counted"]


def test_both_are_warmed_up_before_either_is_measured(example, monkeypatch):
    order = []
    monkeypatch.setattr(example, "train", lambda product, target, steps, **rest: order.append(steps) or [1.0] * (steps + 1))
    assert example.main(["--size", "8", "--steps", "20", "--device", "cpu"]) == 0
    assert order == [example.WARM_STEPS, example.WARM_STEPS, 20, 20]


@needs_cuda
def test_memory_is_told_on_a_gpu(example):
    import model_new

    losses, milliseconds, megabytes = example.measure(model_new.tril_matmul, example.make_target(64, "cuda"), 3)
    assert len(losses) == 4 and milliseconds > 0 and megabytes > 5 * 64 * 64 * 4 / 1e6


def test_reference_alone_in_a_shell():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--size", "16", "--steps", "3", "--device", "cpu", "--reference"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "tril(matmul)" in done.stdout
    assert "largest relative difference" not in done.stdout


def test_plot(example, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("loss.png", "loss", "loss.curves"):
        example.plot({"one": [3.0, 2.0, 1.0], "other": [3.0, 2.0, 1.5]}, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(example, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # makes `import matplotlib` an ImportError
    with pytest.raises(SystemExit) as stop:
        example.main(["--reference", "--plot", str(tmp_path / "loss.png")])
    assert stop.value.code == 2
    assert "--plot: needs matplotlib, which is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "0"], "--size: '0' is no positive whole number"),
        (["--steps", "many"], "--steps: 'many' is no positive whole number"),
        (["--device", "tpu"], "--device: 'tpu' is given; accepted: cpu, cuda or cuda:N"),
    ],
)
def test_bad_arguments(example, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        example.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


# ---- Every script. ---------------------------------------------------------------------------------------------------


SCRIPTS = ["examples/compiler.py", "examples/timing.py", *(f"benchmarks/{name}.py" for name in ("cycles", "peers", "references", "soak"))]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_answers_help(script):
    done = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {script.split('/')[1]}")


@pytest.mark.parametrize("name", ["upper.py", "transposed_a.py"])
def test_git_ignores_what_the_readme_tells_to_write(name):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    assert subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", name]).returncode == 0


@pytest.mark.parametrize("name", ["muon", "gaussian"])
def test_an_example_says_that_a_cpu_shows_values_not_speed(name, capsys):
    script = helpers.module(name, "examples")
    script.main(["--device", "cpu", *(["--sizes", "8x8"] if name == "muon" else ["--batch", "1", "--size", "8", "--samples", "2"])])
    assert "On a CPU this shows that the values agree, not how fast" in capsys.readouterr().out


# ---- kernelbench.py. -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernelbench():
    return helpers.module("kernelbench", "examples")


@pytest.mark.parametrize("problem", ["lower", "upper", "transposed_a"])
def test_an_exported_file_serves_kernelbench(problem, kernelbench, tmp_path, capsys):
    path = tmp_path / f"{problem}.py"
    assert kernelbench.main([problem, str(path)]) == 0 and str(path) in capsys.readouterr().out
    names = helpers.execute(path.read_text())
    model = names["ModelNew"](*names["get_init_inputs"]())
    reference = helpers.execute((helpers.ROOT / "reference_model.py").read_text())
    wanted = reference["get_inputs" if problem == "lower" else f"get_inputs_{problem}"]()
    for X, Y in zip(names["get_inputs"](), wanted, strict=True):
        assert (X.shape, X.dtype) == (Y.shape, Y.dtype) and ((X.cpu() > 0) != (Y.cpu() > 0)).float().mean() < 1e-3  # as triangular
    A, B = (helpers.normal(33, 33, seed=seed, dtype=torch.float64) for seed in (1, 2))
    expected = {"lower": A.tril() @ B.tril(), "upper": A.triu() @ B.triu(), "transposed_a": A.mT @ B}[problem]
    torch.testing.assert_close(model(A, B), expected)
    before = path.read_text()
    assert kernelbench.main([problem, str(path)]) == 2 and path.read_text() == before
    assert f"kernelbench.py: {path} exists, and is not replaced" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text,says",
    [("class ModelNew: ...\n", "defines no UpperModelNew, get_inputs, get_init_inputs"), ("class ModelNew(:\n", "invalid syntax")],
)
def test_what_cannot_be_exported_is_said(text, says, kernelbench, tmp_path, capsys):
    (tmp_path / "theirs.py").write_text(text)
    assert kernelbench.main(["upper", str(tmp_path / "out.py"), "--solution", str(tmp_path / "theirs.py")]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out.py").exists()


# ---- compiler.py. ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiler():
    return helpers.module("compiler", "examples")


def test_the_compiler_is_that_of_torchs_cuda(compiler, model):
    """The same packages as the file's own error names."""
    assert compiler.packages("13.2") == [f"{package}~=13.2.0" for package in model._PIP_PACKAGES]
    for cuda, says in ((None, "for CPUs"), ("12.8", "pip has no nvcc of CUDA 12.8")):
        with pytest.raises(ValueError, match=says):
            compiler.packages(cuda)


def test_the_line_that_brings_nvcc_stops_nothing(tmp_path):
    """The README's line: where compiler.py has nothing to install, xargs calls nothing, and that is no failure."""
    assert "python examples/compiler.py | xargs -r pip install" in (ROOT / "README.md").read_text(encoding="utf-8")
    for folder, cuda in ((tmp_path / "cpu", None), (tmp_path / "gpu", "13.0")):
        folder.mkdir()
        (folder / "torch.py").write_text(f"class version: cuda = {cuda!r}")
        line = f"{sys.executable} {ROOT}/examples/compiler.py | xargs -r echo pip install"
        environment = os.environ | {"PYTHONPATH": str(folder)}
        done = subprocess.run(["sh", "-ec", line], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("pip install nvidia-cuda-nvcc~=13.0.0") if cuda else not done.stdout
        assert ("nothing has to be compiled" in done.stderr) == (cuda is None)


# ---- plot.py. --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plot():
    return helpers.module("plot", "examples")


def test_a_plot_of_what_check_measures(plot, tmp_path, capfd):
    pytest.importorskip("matplotlib")
    file, plain = tmp_path / "time.svg", ROOT / "tests" / "cheats" / "honest_plain.py"
    plot.main([str(file), "--sizes", "8", "--solution", str(plain), "--device", "cpu", "--trials", "4"])
    said = capfd.readouterr().out
    assert "<svg" in file.read_text() and f"wrote {file}, after" in said
    assert "record.json" not in said, "a temporary file is announced"
    assert "size 1 of 1: 8\n" in said and "problem 15" in said  # what check.py says


def test_a_plot_of_a_convicted_file_is_not_drawn(plot, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plot, "run_check", lambda options, record: 1)
    with pytest.raises(SystemExit, match="check.py ends with status 1 at --size 8"):
        plot.main([str(tmp_path / "time.svg"), "--sizes", "8"])
    assert not list(tmp_path.iterdir())


def test_a_plot_says_beforehand_what_it_cannot_draw(plot, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    cases = {"time.txt": ".png, .svg or .pdf", "no/time.svg": "existing folder", "time.svg": "needs matplotlib, which is not installed"}
    for name, says in cases.items():
        with pytest.raises(SystemExit):
            plot.main([str(tmp_path / name)])
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--no-timing"], ["--no-tim"], ["--json", "mine.json"], ["--json=mine.json"], ["--js=mine.json"]])
def test_a_plot_hands_on_no_option_that_leaves_nothing_to_draw(plot, tmp_path, capsys, options):
    with pytest.raises(SystemExit):
        plot.main([*options, str(tmp_path / "time.svg")])
    assert "--no-timing leaves nothing to draw, and --json is this script's own" in capsys.readouterr().err


@pytest.mark.parametrize("problem,dims,side", [("inverse", [1024, 16], "N"), ("transposed_a", [16, 4, 8], "K")])
def test_a_plot_is_against_what_size_stands_for(problem, dims, side, plot, tmp_path):
    pytest.importorskip("matplotlib")
    timing = {"reference_us": 2.0, "solution": {"us": 1.0}, "ratio": 2.0, "lower_bound": False}
    record = {"problem": problem, "dims": dims, "options": {"size": 16, "dtype": "float32"}, "device": "a GPU"}
    plot.draw([{**record, "timings": {"forward": timing}}], str(tmp_path / "time.svg"))
    drawn = (tmp_path / "time.svg").read_text()
    assert "<!-- 16 -->" in drawn and f"<!-- {side} -->" in drawn and "<!-- 1024 -->" not in drawn


# ---- muon.py. --------------------------------------------------------------------------------------------------------


@pytest.fixture
def muon(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the example puts its folders there
    return helpers.module("muon", "examples")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(48, 48), (80, 32), (32, 80)])
def test_an_update_is_orthogonalised(muon, shape, device):
    """Singular values come near 1 and the singular vectors stay, by gram as by the dense products."""
    G = helpers.normal(*shape, seed=1, device=device)
    mine, dense = muon.orthogonalised(G), muon.orthogonalised(G, muon.by_dense_products)
    assert mine.shape == G.shape and mine.dtype == G.dtype
    tolerance = 2e-2 if device == "cuda" else 1e-6  # bfloat16 there
    assert muon.largest_difference(mine, dense) < tolerance
    U, S, Vt = torch.linalg.svd(G.double(), full_matrices=False)
    polynomial = S / S.norm()
    for _ in range(muon.ITERATIONS):
        polynomial = muon.A1 * polynomial + muon.A3 * polynomial**3 + muon.A5 * polynomial**5
    assert muon.largest_difference(mine.double(), U * polynomial @ Vt) < tolerance
    assert polynomial.median().item() == pytest.approx(1, abs=0.3)


def test_muon_prints_its_table(muon, capsys):
    assert muon.main(["--sizes", "24x24", "40x16", "--device", "cpu"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["24", "x", "24"], ["40", "x", "16"]]
    assert all(float(row[6]) < 1e-6 for row in rows)
    with pytest.raises(SystemExit):
        muon.main(["--sizes", "24"])
    assert "'24' is no shape such as 4096x1024" in capsys.readouterr().err


def test_muon_times_a_published_kernel_where_there_is_one(muon, monkeypatch, capsys):
    asked = []
    there = types.SimpleNamespace(fast_newtonschulz=lambda G, steps: asked.append((tuple(G.shape), steps)))
    monkeypatch.setitem(sys.modules, "flash_muon", None)  # makes `import flash_muon` an ImportError
    assert muon.published("cuda") is None
    monkeypatch.setitem(sys.modules, "flash_muon", there)
    assert muon.published("cpu") is None
    monkeypatch.setattr(muon, "published", lambda _, real=muon.published: real("cuda"))
    assert muon.main(["--sizes", "40x16", "--device", "cpu"]) == 0
    _, head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[3] == "flash-muon" and float(row[6]) >= 0 and set(asked) == {((40, 16), muon.ITERATIONS)}


# ---- gaussian.py. ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gaussian(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return helpers.module("gaussian", "examples")


@pytest.mark.parametrize("device", DEVICES)
def test_a_normal_distribution_is_that_of_torch(gaussian, device, monkeypatch):
    """What both make of the same normal numbers, moments, and the gradient by which a factor is fitted."""
    L = gaussian.make_factors(3, 40, device).double().requires_grad_()
    mean, Z = (helpers.normal(3, *shape, seed=2, dtype=torch.float64, device=device) for shape in ((40,), (40, 7)))
    expected = torch.distributions.MultivariateNormal(mean, scale_tril=L)
    drawn = gaussian.samples(mean, L, Z)
    monkeypatch.setattr(torch.distributions.multivariate_normal, "_standard_normal", lambda *_, **__: Z.movedim(-1, 0))
    torch.testing.assert_close(drawn, expected.rsample(torch.Size([7])).movedim(0, -1))
    torch.testing.assert_close(gaussian.covariance(L), expected.covariance_matrix)
    torch.testing.assert_close(gaussian.precision(L), expected.precision_matrix)
    white = gaussian.precision_factor(L) @ (drawn - mean[..., None])
    torch.testing.assert_close(white, Z)
    of_samples = [torch.autograd.grad(of.square().sum(), L)[0] for of in (drawn, mean[..., None] + L.tril() @ Z)]
    torch.testing.assert_close(*of_samples)


def test_gaussian_prints_its_table(gaussian, capsys, monkeypatch):
    options = ["--batch", "2", "--size", "12", "--samples", "5", "--device", "cpu"]
    assert gaussian.main(options) == 0
    out = capsys.readouterr().out
    for name in ("samples ", "covariance ", "precision's factor", "precision ", "MultivariateNormal.rsample"):
        assert name in out
    monkeypatch.setattr(gaussian, "LARGEST_COPY", 0)
    monkeypatch.setattr(gaussian, "LARGEST_DIFFERENCE", -1.0)
    assert gaussian.main(options) == 1 and "rsample" not in capsys.readouterr().out

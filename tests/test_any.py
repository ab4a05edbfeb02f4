"""What holds of check.py --reference FILE: each reference of tests/references is judged right against itself and an honest solution.

Each wrong solution of tests/references/wrong.py is convicted.
"""

import itertools
import json
import re
import runpy
from pathlib import Path

import helpers
import pytest

import check

FOLDER = Path(__file__).parent / "references"
WRONG = runpy.run_path(str(FOLDER / "wrong.py"))
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "wrong")


@pytest.fixture
def few(quick, monkeypatch):
    """Children are forked, and few calls are timed."""
    monkeypatch.setattr(check, "REQUEST_SECONDS", dict.fromkeys(("cpu", "cuda"), 0.01))
    monkeypatch.setattr(check, "MOST_CALLS", dict.fromkeys(("cpu", "cuda"), 8))
    monkeypatch.setattr(check, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(check, "ROUNDS", 2)


def judge(capsys, name, solution, *options):
    """(exit status, stdout, stderr) of the judge."""
    argv = ["--reference", str(FOLDER / f"{name}.py"), "--solution", str(solution), "--device", "cpu", "--seed", "1", *options]
    return check.main(argv), *capsys.readouterr()


def itself(tmp_path, name):
    path = tmp_path / "itself.py"
    path.write_text((FOLDER / f"{name}.py").read_text().replace("class Model(", "class ModelNew("))
    return path


def test_each_reference_has_its_solutions():
    assert {*NAMES} == {path.stem for path in (FOLDER / "solutions").glob("*.py")} == {*WRONG["OF"]}
    assert min(map(len, WRONG["OF"].values())) >= 3


CUDA = pytest.param("cuda", marks=[helpers.needs_cuda, pytest.mark.alone])  # the judge wants the GPU for itself


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", NAMES)
def test_an_honest_solution_holds(name, device, capsys):
    status, out, err = judge(capsys, name, FOLDER / "solutions" / f"{name}.py", "--no-timing", "--device", device)
    assert status == 0 and out.splitlines()[-1].startswith("all holds: "), out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", NAMES)
def test_a_reference_holds_as_its_own_solution(name, device, capsys, tmp_path):
    status, out, err = judge(capsys, name, itself(tmp_path, name), "--gradients", "--device", device)
    assert status == 0 and out.splitlines()[-1].startswith("all holds: "), out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name,kind", [(name, kind) for name, kinds in WRONG["OF"].items() for kind in kinds])
def test_a_wrong_solution_is_convicted(name, kind, capsys, tmp_path, monkeypatch):
    groups = check.Choices.groups

    def no_more_than_one(draws, calls):
        return itertools.takewhile(lambda _: not draws.run.report.findings, groups(draws, calls))

    monkeypatch.setattr(check.Choices, "groups", no_more_than_one)
    path = tmp_path / "solution.py"
    path.write_text(WRONG["KINDS"][kind])
    status, out, err = judge(capsys, name, path, "--no-timing")
    assert status == 1 and out.splitlines()[-1].startswith("WRONG: "), out + err


def test_the_command_of_the_readme_prints_what_the_readme_says(quick, capsys, monkeypatch):
    """The last line is compared but for the machine: the command runs on a CPU here, whose threads may be others."""
    section = (helpers.ROOT / "README.md").read_text().split("## Judge any KernelBench solution\n")[1]
    command, _, told = re.search(r"```\n\$ python check\.py (.*?)\n(\.\.\.)\n(.*?)```", section, re.DOTALL).groups()
    monkeypatch.chdir(helpers.ROOT)
    assert check.main([*command.split(), "--device", "cpu"]) == 0
    machine = re.compile(r"\(\w+, \d+ threads\)")
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert machine.sub("", last_line) == machine.sub("", " ".join(told.split()))


# ---- Other references. -----------------------------------------------------------------------------------------------

PLAIN = """import torch

batch_size = 6


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(batch_size, 50)]
"""


def run(capsys, tmp_path, reference, solution, *options, timing=False):
    """(exit status, stdout, stderr) of the judge. `solution`: what stands in the class ModelNew(Model), or replaces it."""
    paths = {"--reference": tmp_path / "reference.py", "--solution": tmp_path / "solution.py"}
    paths["--reference"].write_text(reference)
    paths["--solution"].write_text(solution)
    argv = [str(each) for pair in paths.items() for each in pair]
    status = check.main([*argv, "--device", "cpu", "--seed", "1", *([] if timing else ["--no-timing"]), *options])
    return status, *capsys.readouterr()


SAME = "class ModelNew(Model):\n    pass\n"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "reference,told",
    [
        (PLAIN.replace("torch.tanh(x)", "1 / 0"), "ZeroDivisionError"),
        (PLAIN.replace("torch.tanh(x)", "x / 0 * 0"), "returns no finite number"),
        (PLAIN.replace("torch.tanh(x)", "{1, 2}"), "the result is of no kind that can be compared: a builtins.set is given"),
        (PLAIN.replace("[torch.randn(batch_size, 50)]", "[object()]"), "a builtins.object is given; tensors, numbers"),
        (PLAIN.replace("get_inputs", "inputs"), "get_inputs"),
        ("class Model\n", "SyntaxError"),
        ("x = 1\n", "defines no class Model"),
    ],
    ids=["raises", "nan", "set", "object", "no inputs", "syntax", "no class"],
)
def test_a_reference_that_cannot_be_used_is_no_verdict(reference, told, capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, reference, SAME)
    assert status == 2 and "--reference" in err.splitlines()[-1] and told in err.splitlines()[-1], out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "reference,note",
    [
        (PLAIN.replace("tanh", "log").replace("randn", "rand"), "not used, or not always: signs, zeros (the reference returns NaN or Inf)"),
        (PLAIN.replace("tanh(x)", "tanh(x.float())"), "the reference does not run in float64"),
        (PLAIN.replace("tanh(x)", "tanh(x + torch.rand(50))"), "the reference draws random numbers"),
        (PLAIN.replace("torch.randn(batch_size, 50)", "torch.linspace(0.1, 1, 300)"), "get_inputs() always returns the same"),
        (PLAIN.replace("randn", "ones"), "each call has the same inputs, which cannot be changed"),
    ],
    ids=["domain", "float32", "random", "same", "ones"],
)
def test_what_could_not_be_judged_is_noted(reference, note, capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, reference, SAME)
    assert status == 0 and any(line.startswith("note ") and note in line for line in out.splitlines()), out + err


@pytest.mark.usefixtures("few")
def test_random_numbers_do_not_widen_what_is_allowed(capsys, tmp_path):
    """The reference would draw other numbers in float64, under each seed of the constructor."""
    solution = "class ModelNew(Model):\n    made = 0\n\n    def __init__(self):\n        super().__init__()\n"
    solution += "        ModelNew.made += 1\n\n    def forward(self, x):\n"
    solution += "        return super().forward(x) + (0.01 if ModelNew.made == 3 else 0)\n"
    random = PLAIN.replace("tanh(x)", "tanh(x + torch.rand(50))")
    status, out, err = run(capsys, tmp_path, random, solution, "--no-timing")
    assert status == 1 and "worst element result[" in out.splitlines()[-1], out + err


@pytest.mark.usefixtures("few")
def test_a_constant_result_of_constant_inputs_is_convicted(capsys, tmp_path):
    solution = "kept = torch.tanh(torch.ones(6, 50))\n\nclass ModelNew(Model):\n    def forward(self, x):\n        return kept\n"
    status, out, err = run(capsys, tmp_path, PLAIN.replace("randn", "ones"), solution)
    assert status == 1 and "worst element result[" in out.splitlines()[-1], out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("keep", ["self.kept = made", "self.register_buffer('kept', made)"], ids=["attribute", "buffer"])
def test_a_result_is_no_tensor_that_the_module_keeps(keep, capsys, tmp_path):
    """What the caller writes into the result of one call would be in the result of the next one."""
    zeros = PLAIN.replace("torch.tanh(x)", "x - x")
    solution = "class ModelNew(Model):\n    def __init__(self):\n        super().__init__()\n"
    solution += f"        made = torch.zeros(6, 50)\n        {keep}\n\n    def forward(self, x):\n        return self.kept\n"
    status, out, err = run(capsys, tmp_path, zeros, solution)
    assert status == 1 and "shares memory with an input or with a tensor that the module keeps" in out.splitlines()[-1], out + err
    assert run(capsys, tmp_path, zeros, solution.replace("self.kept\n", "self.kept.clone()\n"))[0] == 0
    own = f"import torch\n\n{solution.replace('ModelNew(Model)', 'Model(torch.nn.Module)')}\n{PLAIN[PLAIN.index('def get_inputs') :]}"
    status, out, err = run(capsys, tmp_path, own.replace("batch_size", "6"), SAME)  # a solution may, where the reference does
    assert status == 0, out + err


@pytest.mark.usefixtures("few")
def test_other_constants(capsys, tmp_path):
    solution = "class ModelNew(Model):\n    def forward(self, x):\n        assert x.shape == (3, 50)\n        return super().forward(x)\n"
    assert run(capsys, tmp_path, PLAIN, solution)[0] == 1
    status, out, err = run(capsys, tmp_path, PLAIN, solution, "--set", "batch_size=3")
    assert status == 0 and "--set changes batch_size = 3" in out.splitlines()[0] and " 3x50 " in out, out + err
    for wrong, told in (
        ("batch_size", "NAME=VALUE with a number"),
        ("rows=3", "rows is no constant of the reference; these are: batch_size"),
    ):
        status, _, err = run(capsys, tmp_path, PLAIN, solution, "--set", wrong)
        assert status == 2 and told in err.splitlines()[-1], err


@pytest.mark.parametrize("option", [["--size", "5"], ["--dtype", "float16"], ["--batches"], ["--forward-only"]])
def test_options_of_other_problems_are_refused(option, capsys, tmp_path):
    status, _, err = run(capsys, tmp_path, PLAIN, SAME, *option)
    assert status == 2 and f"argument {option[0]}: is not for --problem any" in err.splitlines()[-1], err
    assert check.main(["--set", "a=1"]) == 2 and "argument --set: is not for --problem lower" in capsys.readouterr().err


WEIGHT = PLAIN.replace("    def forward", "    def __init__(self):\n        super().__init__()\n        {}\n\n    def forward", 1)
WEIGHT = WEIGHT.format("self.weight = torch.nn.Parameter(torch.randn(50))").replace("(x)\n", "(x * self.weight)\n")


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("options", [[], ["--gradients"]], ids=["forward", "gradients"])
@pytest.mark.parametrize(
    "line,convicted",
    [
        ("torch.tanh(x * self.weight)", ""),
        ("torch.tanh(x * self.weight.detach())", "worst element d weight["),
        ("torch.tanh(x.detach() * self.weight)", "worst element d input 0["),
    ],
    ids=["right", "no weight", "no input"],
)
def test_gradients_are_judged_where_they_are_asked_for(line, convicted, options, capsys, tmp_path):
    solution = f"class ModelNew(Model):\n    def forward(self, x):\n        return {line}\n"
    status, out, err = run(capsys, tmp_path, WEIGHT, solution, *options)
    wanted = convicted if options else ""
    assert status == bool(wanted) and wanted in out.splitlines()[-1], out + err
    assert ("gradients included" in out.splitlines()[-1]) == bool(options and not wanted)


@pytest.mark.usefixtures("few")
def test_who_draws_in_another_order_gets_the_references_parameters(capsys, tmp_path):
    solution = "class ModelNew(Model):\n    def __init__(self):\n        torch.randn(3)\n        super().__init__()\n"
    assert run(capsys, tmp_path, WEIGHT, solution)[0] == 0
    renamed = f"{solution}        self.other = self.weight\n        del self.weight\n\n"
    renamed += "    def forward(self, x):\n        return torch.tanh(x * self.other)\n"
    status, out, err = run(capsys, tmp_path, WEIGHT, renamed)
    assert status == 1 and "note   parameters: the solution's have other names" in out, out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("options", [[], ["--gradients"]], ids=["forward", "gradients"])
def test_who_is_right_with_its_own_parameters_keeps_them(options, capsys, tmp_path):
    """As in KernelBench, which copies no parameters: some solutions multiply a weight by a factor beforehand."""
    solution = "class ModelNew(Model):\n    def __init__(self):\n        super().__init__()\n        self.weight.data.mul_(3)\n\n"
    solution += "    def forward(self, x):\n        return torch.tanh(x * (self.weight / 3))\n"
    status, out, err = run(capsys, tmp_path, WEIGHT, solution, *options)
    assert status == 0 and "note   parameters: the solution is right with its own" in out, out + err
    status, out, err = run(capsys, tmp_path, WEIGHT, solution.replace("/ 3", "/ 2"), *options)
    assert status == 1 and "note   parameters: the solution has the reference's" in out, out + err


@pytest.mark.usefixtures("few")
def test_an_error_of_the_reference_is_the_references(capsys, tmp_path):
    status, _, err = run(capsys, tmp_path, PLAIN.replace("return torch", "raise ValueError('no')\n        return torch"), SAME)
    assert status == 2 and "the reference raises ValueError: no" in err and "the solution raises" not in err, err


@pytest.mark.usefixtures("few")
def test_the_solution_is_told_no_seed_before_its_clock_runs(capsys, tmp_path):
    """A solution that knew the seed of get_inputs() could compute earlier, and so could one that knew the seed of its generators."""
    solution = """
import sys

Child = sys.modules["__main__"].Child
real = Child.prepare


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [value] if type(value) is int and value > 2**30 else []


def prepare(self, calls, **others):
    Child.told = numbers(calls)
    return real(self, calls=calls, **others)


Child.prepare = prepare


class ModelNew(Model):
    def forward(self, x):
        assert not Child.told, "known before"
        return torch.tanh(x)
"""
    status, out, err = run(capsys, tmp_path, PLAIN, solution)
    assert status == 0, out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("result", ["self.weight", "self.weight[1:]", "(x, self.weight + x)", "x.T", "x[0].expand(4, 50)", "x[:0]"])
def test_a_result_may_be_what_the_module_or_its_caller_keeps(result, capsys, tmp_path):
    """The judge leaves NaN where it takes a result. Elements may share memory, and there may be none."""
    reference = WEIGHT.replace("return torch.tanh(x * self.weight)", f"return {result}")
    status, out, err = run(capsys, tmp_path, reference, SAME, timing=True)
    assert status == 0, out + err
    status, out, err = run(capsys, tmp_path, WEIGHT, f"class ModelNew(Model):\n    def forward(self, x):\n        return {result}\n")
    assert status == 1, out + err


# ---- Odd references and solutions. -----------------------------------------------------------------------------------

# Each row: what the reference's forward does with its inputs, get_inputs(), and what the solution's does ("" does the same).
RANDN = "[torch.randn(6, 50)]"
TWICE = "    h = torch.tanh(x)\n    return h, h"
LAZY = """    class Lazy(list):
        def __iter__(self):
            return iter([torch.tanh(x)])
    return Lazy([x])"""
LAZY_DICT = """    class Lazy(dict):
        def __iter__(self):
            dict.__setitem__(self, "y", torch.tanh(x))
            return dict.__iter__(self)
    return Lazy(y=x)"""
LAZY_TENSOR = """    class Lazy(torch.Tensor):
        def resolve_conj(self):
            return torch.tanh(self.as_subclass(torch.Tensor))
    return x.as_subclass(Lazy)"""
LIAR = """    class Liar:
        __class__ = property(lambda self: torch.Tensor)
        def resolve_conj(self):
            return torch.tanh(x)
    return Liar()"""
LYING_LIST = """    class Lazy(list):
        @property
        def __class__(self):
            self[:] = [torch.tanh(x)]
            return list
    return Lazy([x])"""
LAZY_TEXT = """    class Lazy(str):
        __str__ = __repr__ = lambda self: "high" if x[0, 0] > 0 else "low"
    return torch.tanh(x), Lazy("none"), {Lazy("none"): x * 2}"""
LAZY_NUMBER = """    class Lazy(int):
        __str__ = __int__ = __index__ = lambda self: int(x.abs().max() * 100)
    return torch.tanh(x), Lazy(0)"""
NUMBER = "    class Number(float):\n        pass\n    return torch.tanh(x), Number(x.abs().max())"
DRIFTS = """    self.drift = getattr(self, "drift", -1) + 1
    return torch.tanh(x) + self.drift"""
OWN_GENERATOR = """    if not hasattr(self, "own"):
        self.own = torch.Generator()
    return torch.tanh(x) + torch.rand(50, generator=self.own)"""
CONVICTED = {
    "whole numbers, one of them at a tie": (
        "    return (x.cumsum(-1) * 1e4).round().int()",
        "[torch.randn(64, 4096)]",
        "    return x.int() * 0",
    ),
    "a tensor returned twice": (TWICE, RANDN, "    return torch.tanh(x), torch.full_like(x, 7.0)"),
    "nothing in place": ("    x.mul_(2)", RANDN, "    return None"),
    "transposed inputs": ("    return x * 2", "[torch.randn(50, 6).t()]", "    return torch.as_strided(x, (300,), (1,)).view(x.shape) * 2"),
    "a changed complex input": (
        "    return torch.fft.fft(x)",
        "[torch.randn(6, 50, dtype=torch.complex64)]",
        "    y = torch.fft.fft(x)\n    x.zero_()\n    return y",
    ),
    "a state that drifts": ("    return torch.tanh(x)", RANDN, DRIFTS),
    "a seed": ("    return torch.tanh(x)", RANDN, "    torch.manual_seed(0)\n    return torch.tanh(x)"),
    "a list that computes later": ("    return [torch.tanh(x)]", RANDN, LAZY),
    "a dict that computes later": ('    return {"y": torch.tanh(x)}', RANDN, LAZY_DICT),
    "a tensor that computes later": ("    return torch.tanh(x)", RANDN, LAZY_TENSOR),
    "an object that lies about its class": ("    return torch.tanh(x)", RANDN, LIAR),
    "a list that lies about its class": ("    return [torch.tanh(x)]", RANDN, LYING_LIST),
    "a text that computes later": (
        '    word = "high" if x[0, 0] > 0 else "low"\n    return torch.tanh(x), word, {word: x * 2}',
        RANDN,
        LAZY_TEXT,
    ),
    "a whole number that computes later": ("    return torch.tanh(x), int(x.abs().max() * 100)", RANDN, LAZY_NUMBER),
    "another truth value": ("    return torch.tanh(x), bool(x[0, 0] > 0)", RANDN, "    return torch.tanh(x), True"),
    "in place with a number": ("    torch.tanh_(x)\n    return 0", RANDN, "    return 0"),
    "an emptied list": ("    return sum(x)", f"[{RANDN}]", "    y = sum(x)\n    x.clear()\n    return y"),
}
HOLDS = {
    "one object for two results": ("    y = torch.tanh(x)\n    return y, y + 0", RANDN, TWICE),
    "two objects for one": (TWICE, RANDN, "    return torch.tanh(x), torch.tanh(x)"),
    "complex128": ("    return torch.fft.fft(x)", "[torch.randn(6, 50, dtype=torch.complex128)]", ""),
    "an empty input": ("    return torch.tanh(x)", "[torch.randn(0, 50)]", ""),
    "a number of a subclass": ("    return torch.tanh(x), float(x.abs().max())", RANDN, NUMBER),
    "unique": ("    return torch.unique(1 + x * 1e-6)", "[torch.randn(600, 50)]", ""),
    "channels last": ("    return x * 2", "[torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)]", "    return x + x"),
}
HOLD_TIMED = {
    "in place": ("    torch.tanh_(x)", RANDN, "    x.copy_(torch.tanh(x))"),
    "a whole number and a truth value": ("    return torch.tanh(x), int(x.abs().max() * 100), bool(x[0, 0] > 0)", RANDN, ""),
    "Python's generator": ("    import random\n    return torch.tanh(x) * random.random()", RANDN, ""),
    "a value that few inputs have": ("    return torch.tanh(x), bool(x.abs().max() < 30)", RANDN, ""),
    "a shape by values": ("    return x[x > 30]", RANDN, ""),
    "another structure after eval()": ("    y = torch.tanh(x)\n    return (y, y * 2) if self.training else y", RANDN, ""),
}
NO_VERDICT = {
    "a generator of its own": (OWN_GENERATOR, RANDN, "    return torch.tanh(x) + 0.5", "draw from a generator of its own"),
    "nothing": ("    return None", RANDN, "", "returns None and changes no input"),
    "shapes that vary": ("    return x[x > 0]", RANDN, "", "has results of other shapes or structure in each call"),
    "a sparse result": ("    return x.to_sparse()", RANDN, "", "result's layout is torch.sparse_coo, and should be torch.strided"),
}


def odd(capsys, tmp_path, forward, inputs, solution, *options, timing=False):
    """The judge's (exit status, stdout, stderr) for a row of the tables above."""
    indented = "\n".join(f"    {line}" for line in forward.splitlines())
    reference = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n" + indented
    text = SAME if not solution else SAME.replace("    pass\n", f"    def forward(self, x):\n{solution}\n".replace("\n    ", "\n        "))
    reference += f"\n\n\ndef get_inputs():\n    return {inputs}\n"
    return run(capsys, tmp_path, reference, f"import torch\n\n\n{text}", *options, timing=timing)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", CONVICTED)
def test_an_odd_solution_is_convicted(name, capsys, tmp_path):
    status, out, err = odd(capsys, tmp_path, *CONVICTED[name])
    assert status == 1 and out.splitlines()[-1].startswith("WRONG: "), out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("timing,name", [(timing, name) for timing, names in ((False, HOLDS), (True, HOLD_TIMED)) for name in names])
def test_an_odd_reference_holds(timing, name, capsys, tmp_path):
    options = ["--gradients"] if name == "two objects for one" else []
    status, out, err = odd(capsys, tmp_path, *(HOLDS | HOLD_TIMED)[name], *options, timing=timing)
    assert status == 0 and out.splitlines()[-1].startswith("all holds: "), out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", NO_VERDICT)
def test_an_odd_reference_that_cannot_be_judged_is_named(name, capsys, tmp_path):
    *row, told = NO_VERDICT[name]
    status, out, err = odd(capsys, tmp_path, *row, timing=name == "shapes that vary")
    assert status == 2 and told in err and "judge itself failed" not in err, out + err


STATE = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(50))

    def forward(self, x):
        self.total.mul_(0.9).add_(x.sum(0))
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(6, 50)]
"""
NOTHING_ADDED = """
class ModelNew(Model):
    def __init__(self):
        super().__init__()
        self.register_buffer("more", torch.zeros(1))

    def forward(self, x):
        return torch.tanh(x)
"""
ADDED_WHEN_ASKED = """
class ModelNew(Model):
    def forward(self, x):
        self.last = x.clone()
        return torch.tanh(x)

    def state_dict(self, *arguments, **options):
        if hasattr(self, "last"):
            Model.forward(self, self.last)
        return super().state_dict(*arguments, **options)
"""
ADDED_BY_A_SUBMODULE = """
class Sub(torch.nn.Module):
    def named_modules(self, *arguments, **options):
        if hasattr(self, "owner"):
            Model.forward(self.owner[0], self.owner[0].last)
        return super().named_modules(*arguments, **options)


class ModelNew(Model):
    def __init__(self):
        super().__init__()
        self.sub = Sub()

    def forward(self, x):
        self.last, self.sub.owner = x.clone(), [self]
        return torch.tanh(x)
"""
ADDED_BY_A_DICT = """
class Lazy(dict):
    def items(self):
        if hasattr(self, "owner"):
            Model.forward(self.owner, self.owner.last)
        return super().items()


class ModelNew(Model):
    def forward(self, x):
        self.last = x.clone()
        if not isinstance(self._buffers, Lazy):
            self.__dict__["_buffers"] = Lazy(self._buffers)
        self._buffers.owner = self
        return torch.tanh(x)
"""
UNTIMED = """
import sys


class ModelNew(Model):
    def forward(self, x):
        frame = sys._getframe()
        while not hasattr(frame.f_locals.get("self"), "timed"):
            frame = frame.f_back
        return super().forward(x) if not frame.f_locals["self"].timed else UNCHANGED
"""


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("timing", [False, True])
@pytest.mark.parametrize("solution", [NOTHING_ADDED, ADDED_WHEN_ASKED, ADDED_BY_A_SUBMODULE, ADDED_BY_A_DICT])
def test_the_state_has_to_change_as_the_references(timing, solution, capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, STATE, f"import torch\n{solution}", timing=timing)
    assert status == 1 and "state total" in out.splitlines()[-1], out + err


@pytest.mark.usefixtures("few")
def test_state_that_a_solution_lacks_is_named(capsys, tmp_path):
    solution = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.tanh(x)\n"
    status, out, err = run(capsys, tmp_path, STATE, solution, timing=True)
    assert status == 0 and re.search("note +state that calls change: not compared.*: total", out), out + err


@pytest.mark.usefixtures("few")
def test_the_state_that_timed_calls_leave_is_compared(capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, STATE, SAME, timing=True)
    assert status == 0, out + err
    solution = "import torch\n" + UNTIMED.replace("UNCHANGED", "torch.tanh(x)")
    status, out, err = run(capsys, tmp_path, STATE, solution, timing=True)
    assert status == 1 and "timed calls: worst element state total" in out.splitlines()[-1], out + err


WEIGHTED = STATE.replace("torch.zeros(50))", "torch.zeros(50))\n        self.weight = torch.nn.Parameter(torch.randn(50))").replace(
    "torch.tanh(x)", "torch.tanh(x * self.weight)"
)
# It is right with its own parameter, which is four times the reference's.
OWN_WEIGHT = """
class ModelNew(Model):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.weight.mul_(4)

    def forward(self, x):
        self.total.mul_(0.9).add_(x.sum(0))
        return torch.tanh(x * (self.weight / 4))
"""


@pytest.mark.usefixtures("few")
def test_the_state_is_compared_where_a_solution_has_its_own_parameters(capsys, tmp_path):
    status, out, err = run(capsys, tmp_path, WEIGHTED, f"import torch\n{OWN_WEIGHT}", timing=True)
    assert status == 0 and "the solution is right with its own" in out, out + err
    solution = UNTIMED.replace("super().forward(x)", "self.forward_untimed(x)").replace("UNCHANGED", "torch.tanh(x * (self.weight / 4))")
    solution += OWN_WEIGHT.split("class ModelNew(Model):\n")[1].replace("def forward", "def forward_untimed")
    status, out, err = run(capsys, tmp_path, WEIGHTED, f"import torch\n{solution}", timing=True)
    assert status == 1 and "timed calls: worst element state total" in out.splitlines()[-1], out + err


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("timing", [False, True])
@pytest.mark.parametrize(
    "change,same",
    [
        ("self.total.copy_(torch.maximum(self.total, x.max(0).values - 2))", ""),
        ("self.total.add_(1 if x.max() > 3.3 else 0)", ""),
        ("self.total.copy_((x + 300).square().mean(0) - (x + 300).mean(0).square())", "self.total.copy_(x.double().var(0, correction=0))"),
    ],
)
def test_state_that_seldom_changes_or_is_inexact(timing, change, same, capsys, tmp_path):
    reference = STATE.replace("self.total.mul_(0.9).add_(x.sum(0))", change)
    solution = f"\n\nclass ModelNew(Model):\n    def forward(self, x):\n        {same}\n        return torch.tanh(x)\n" if same else SAME
    status, out, err = run(capsys, tmp_path, reference, f"import torch\n{solution}", timing=timing)
    assert status == 0, out + err


@pytest.mark.usefixtures("few")
def test_the_inputs_that_timed_calls_change_are_compared(capsys, tmp_path):
    """A reference that returns nothing changes its inputs."""
    reference = PLAIN.replace("return torch.tanh(x)", "torch.tanh_(x)")
    status, out, err = run(capsys, tmp_path, reference, "import torch\n" + UNTIMED.replace("UNCHANGED", "None"), timing=True)
    assert status == 1 and "timed calls: input 0 is not modified" in out.splitlines()[-1], out + err
    later = """
import sys

Child = sys.modules["__main__"].Child
real = Child.inspect


def inspect(self):
    for operands in self.operands:
        torch.tanh_(operands[0])
    return real(self)


Child.inspect = inspect


class ModelNew(Model):
    def forward(self, x):
        pass
"""
    status, out, err = run(capsys, tmp_path, reference, f"import torch\n{later}")
    assert status == 1 and "is not modified" in out.splitlines()[-1], out + err


KEEPS = {
    "an expanded tensor": ("torch.ones(1).expand(1 << 16)", "torch.tanh(x * self.kept[:50])"),
    "a sparse tensor": ("torch.eye(50).to_sparse_csr()", "torch.tanh((self.kept @ x.T).T)"),
    "a scripted module": ("torch.jit.script(torch.nn.Linear(50, 50))", "torch.tanh(x + 0 * self.kept(x))"),
    "a tensor until it is called": ("torch.ones(1)", "torch.tanh(x * self.item())"),
    "a frozen module": ("torch.jit.freeze(torch.jit.script(torch.nn.Tanh()).eval())", "self.kept(x)"),
}


@pytest.mark.usefixtures("few")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kept", KEEPS)
def test_a_module_may_keep(kept, capsys, tmp_path):
    made, result = KEEPS[kept]
    solution = f"""import torch


class ModelNew(Model):
    def __init__(self):
        super().__init__()
        self.kept = {made}

    def forward(self, x):
        return {result}

    def item(self):
        self.kept = float(self.kept)
        return self.kept
"""
    status, out, err = run(capsys, tmp_path, PLAIN, solution)
    assert status == 0, out + err


@pytest.mark.usefixtures("few")
def test_the_record_has_all_of_it(capsys, tmp_path):
    status, out, _ = run(capsys, tmp_path, PLAIN, SAME, "--json", str(tmp_path / "record.json"))
    record = json.loads((tmp_path / "record.json").read_text())
    assert status == 0 and record["problem"] == "any" and record["verdict"] == "ok" and record["sentence"] == out.splitlines()[-1]
    row = record["rows"][0]
    assert row["error"] <= row["bound"] and {"input", "size", "reference_error", "ties"} <= {*row}
    assert record["options"]["constants"] == {"batch_size": 6}
    assert [check["name"] for check in record["checks"]][-1] == "not promised"

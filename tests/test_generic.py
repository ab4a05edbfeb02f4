"""What holds of the parts of the judge that know any problem in KernelBench's form: judge/values.py, modules.py and generic.py."""

import math
from types import SimpleNamespace

import pytest
import torch

import check
from judge import generic, measures, modules, problems, settings, values

CPU = torch.device("cpu")


class Count(torch.nn.Module):
    """Has a parameter, a buffer that is saved, one that is not, and a plain tensor, and changes all but the parameter when it is called."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.last = torch.zeros(3)

    def forward(self, x):
        self.calls += 1
        self.hidden += x
        self.last = self.last + x
        return self.weight * self.last + self.calls + self.hidden


# ---- What goes in and comes out. -------------------------------------------------------------------------------------


@pytest.mark.parametrize("X", [torch.rand(2, 3), torch.rand(2, 3).mT, torch.rand(4, 4)[:, ::2]], ids=["rows", "columns", "strided"])
def test_a_tensor_that_occurs_twice_in_arguments_is_one_tensor(X):
    """A column-major one was two: the solution got two tensors for one of the reference."""
    tensors, skeleton = values.split([X, {"again": X}, torch.rand(2, 3)])
    first, again, _ = values.join(skeleton, tensors)
    assert len(tensors) == 2 and torch.equal(first, X) and again["again"].data_ptr() == first.data_ptr()
    assert len(values.split([X, X], results_on=CPU)[0]) == 2


def test_what_is_split_can_be_joined():
    x, y = torch.ones(2), torch.zeros(3, dtype=torch.int64)
    value = [x, (y, 2, None), {"a": [x, "text"], 3: True}, torch.float16, torch.device("cpu"), 1.5]
    tensors, skeleton = values.split(value)
    assert [t is given for t, given in zip(tensors, (x, y), strict=True)] == [True, True]
    joined = values.join(skeleton, tensors)
    assert joined[0] is x and joined[2]["a"][0] is x and joined[1][0] is y
    assert joined[1][1:] == (2, None) and joined[2][3] is True and joined[3:] == [torch.float16, torch.device("cpu"), 1.5]
    assert values.places(skeleton, "input") == ["input[0]", "input[1][0]"]


def test_a_result_of_another_kind_is_named():
    with pytest.raises(TypeError, match="a builtins.set is given; tensors, numbers"):
        values.split({1, 2})


def test_structures_are_told_apart_but_for_lists_and_tuples():
    x = torch.ones(1)

    def outline(value):
        return values.outline(values.split(value, results_on=CPU)[1])

    assert outline((x, [x, 2.5])) == outline([x, (x, 3.5)]) == "(tensor, (tensor, tensor))"
    assert outline({"a": x, "b": 1}) == outline({"b": 2, "a": x}) == "{'a': tensor, 'b': tensor}"  # numbers are compared like tensors
    assert values.outline(values.split([torch.ones(2, 3).T])[1]) == "(tensor)"
    assert outline({"a": x, "b": "1"}) == outline({"b": "1", "a": x}) != outline({"a": x, "b": "2"})
    assert outline(x) != outline([x])


# ---- The file. -------------------------------------------------------------------------------------------------------

FILE = '''"""Ä"""
batch_size = 8 * 4
shape = (3,
         5)
name, other = "x", 2
height = width = 512  # both
derived = batch_size + 1


def f():
    inner = 3
'''


def test_which_assignments_are_constants():
    text = "N: int = 3\nM: int\n*a, b = 1, 2, 3\nc, d = 4, -5\ne = f = (6, [7])\ng = print\n"
    assert modules.constants(text) == {"N": 3, "c": 4, "d": -5, "e": (6, [7]), "f": (6, [7])}
    names = {}
    exec(modules.with_constants(text, {"N": 8}), names)
    assert names["N"] == 8


def test_constants_can_be_changed():
    assert modules.constants(FILE) == {"batch_size": 32, "shape": (3, 5), "name": "x", "other": 2, "height": 512, "width": 512}
    names = {}
    exec(modules.with_constants(FILE, {"batch_size": 7, "shape": (1, 2), "other": 30, "name": "longer"}), names)
    assert (names["batch_size"], names["shape"], names["derived"], names["name"], names["other"]) == (7, (1, 2), 8, "longer", 30)
    for changes, sides in (({}, (512, 512)), ({"width": 4}, (512, 4)), ({"height": 3, "width": 4}, (3, 4))):
        changed = modules.with_constants(FILE, changes)
        exec(changed, names)
        assert (names["height"], names["width"]) == sides and len(changed.splitlines()) == len(FILE.splitlines())
    with pytest.raises(ValueError, match="size is no constant of the reference; these are: batch_size, shape, name, other, height, width"):
        modules.with_constants(FILE, {"size": 1})


# ---- A module and its state. -----------------------------------------------------------------------------------------


def test_a_module_is_brought_back_to_its_first_state():
    model = modules.construct(Count, [], 1, CPU)
    before, x = modules.Snapshot(model), torch.randn(3)
    first = model(x).detach().clone()
    last = model.last
    with torch.no_grad():
        model.weight.mul_(2)
    model.eval()
    before.restore()
    assert model.training and model.last is not last
    assert torch.equal(model(x), first) and not torch.equal(model(x), first)
    before.restore(evaluates=True)
    assert not model.training and torch.equal(model(x), first)


def test_state_is_copied_where_the_keys_agree():
    one, two = (modules.construct(Count, [], seed, CPU) for seed in (1, 2))
    assert not torch.equal(one.weight, two.weight)
    assert modules.load_state(two, one.state_dict()) and torch.equal(one.weight, two.weight)
    assert not modules.load_state(two, {"weight": torch.zeros(3)})
    assert not modules.load_state(two, {"weight": torch.zeros(2), "calls": torch.zeros(())})


def test_the_reference_in_float64():
    reference = modules.Reference(Count, [], 1, CPU)
    tensors, skeleton = values.split([torch.randn(3)])
    reference.begin(5)
    result = reference.forward(tensors)
    exact, _ = reference.exact(skeleton, tensors, 5)
    assert result.dtype == torch.float32 and exact.dtype == torch.float64 and torch.allclose(result.double(), exact, atol=1e-6)
    assert {*reference.before.changed()} == {"calls", "hidden", "last"}
    assert torch.allclose(reference.before.changed()["last"].double(), reference.twin.before.changed()["last"])
    reference.begin(5)
    assert torch.equal(reference.forward(tensors), result)
    assert reference.influence(skeleton, tensors, 5) == 2 * 3 * 4  # the input and the weight
    assert reference.remembers(skeleton, tensors, 5) and not reference.is_random(skeleton, tensors, 5)


def model_of(forward):
    class Model(torch.nn.Module):
        def forward(self, x):
            return forward(x)

    return Model


@pytest.mark.parametrize(
    "forward",
    [lambda x: x.float() * 2, lambda x: torch.ones(3, dtype=torch.float32) @ x],
    ids=["float32", "mixed"],
)
def test_where_there_is_no_float64(forward):
    reference = modules.Reference(model_of(forward), [], 1, CPU)
    tensors, skeleton = values.split([torch.randn(3)])
    assert reference.exact(skeleton, tensors, 1) is None


def test_random_numbers_of_a_call_are_no_numbers_of_float64():
    reference = modules.Reference(model_of(torch.nn.functional.dropout), [], 1, CPU)
    tensors, skeleton = values.split([torch.randn(3)])
    assert reference.exact(skeleton, tensors, 1) is not None
    assert reference.is_random(skeleton, tensors, 1) and reference.exact(skeleton, tensors, 1) is None
    assert not reference.remembers(skeleton, tensors, 1)


def test_gradients_by_name():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))

        def forward(self, x, number, factor):
            return {"a": self.weight * x * factor, "b": number}

    tensors, skeleton = values.split([torch.tensor([5.0, 7.0]), torch.arange(2), 10.0])
    with torch.no_grad():
        _, found = modules.Runner(Model, [], 1, CPU).gradients(skeleton, tensors, 4)
        _, wide = modules.Runner(Model, [], 1, CPU, wide=True).gradients(skeleton, tensors, 4)
    (G, _) = modules.cotangents_of([tensors[0], tensors[1]], 4)
    assert found.keys() == wide.keys() == {"d input 0", "d weight"} and not tensors[0].requires_grad
    assert torch.allclose(found["d input 0"], G * torch.tensor([20.0, 30.0])) and torch.allclose(
        found["d weight"], G * torch.tensor([50.0, 70.0])
    )
    assert all(torch.allclose(X.double(), wide[name]) for name, X in found.items()) and wide["d weight"].dtype == torch.float64


def test_what_a_call_has_to_read_is_what_has_a_gradient():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(10, 4))

        def forward(self, at, x, unused):
            return self.table[at] * x[:, 1:]

    reference = modules.Reference(Model, [], 1, CPU)
    tensors, skeleton = values.split([torch.tensor([2, 2, 7]), torch.randn(3, 5), torch.randn(100)])
    assert reference.influence(skeleton, tensors, 1) == (2 * 4 + 3 * 4) * 4


def test_gradients_are_zero_where_nothing_depends():
    x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    found = modules.gradients([3 * x, torch.arange(2)], [torch.full((2,), 2.0), None], [x, y])
    assert [X.tolist() for X in found] == [[6, 6], [0, 0, 0]]


# ---- Variants. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", generic.VARIANTS)
def test_a_variant_changes_what_it_says(name):
    change, (x, number) = generic.VARIANTS[name], (torch.rand(40, 50), torch.arange(4))
    one, same, other = (generic.vary(change, [x, number], seed, CPU) for seed in (1, 1, 2))
    assert torch.equal(one[0], same[0]) and one[1] is number and one[0].dtype == x.dtype and bool(one[0].isfinite().all())
    assert name in ("small", "large") or not torch.equal(one[0], other[0])
    made = one[0]
    holds = {
        "signs": torch.equal(made.abs(), x) and 0.4 < float((made < 0).float().mean()) < 0.6,
        "powers of two": torch.equal(torch.frexp(made)[0], torch.frexp(x)[0]) and float((made / x).max()) == 256,
        "small": torch.equal(made * 64, x),
        "large": torch.equal(made, x * 16),
        "zeros": 0.3 < float((made == 0).float().mean()) < 0.6 and bool((made == 0).all(1).any()),
        "one large element": int((made != x).sum()) == 1 and float((made / x).max()) == 1024,
        "equal elements": made.unique().numel() == 1 and float(made[0, 0]) in x,
        "permuted rows": {tuple(row) for row in made.tolist()} == {tuple(row) for row in x.tolist()},
    }
    assert holds[name]


@pytest.mark.parametrize("name", [*generic.VARIANTS])
def test_a_variant_keeps_what_the_problem_is_about(name):
    change, x = generic.VARIANTS[name], torch.randn(30, 30)
    (triangle,) = generic.vary(change, [x.tril()], 1, CPU) or [x.tril()]
    assert torch.equal(triangle, triangle.tril())
    (symmetric,) = generic.vary(change, [x + x.T], 1, CPU) or [x + x.T]
    assert torch.equal(symmetric, symmetric.T)
    labels = torch.randint(0, 2, (50,)).float() * 2 - 1
    (made,) = generic.vary(change, [labels], 1, CPU) or [labels]
    assert {*made.tolist()} <= {-1.0, 1.0}
    rows = torch.rand(20, 30).softmax(-1)
    (made,) = generic.vary(change, [rows], 1, CPU) or [rows]
    assert torch.allclose(made.sum(-1), torch.ones(20))


@pytest.mark.parametrize("seed", range(6))
def test_a_symmetric_matrix_gets_a_large_element_in_both_triangles(seed):
    """The element is drawn from the whole matrix, and has its mirror image."""
    x = torch.rand(9, 9) + 1
    (made,) = generic.vary(generic.VARIANTS["one large element"], [x + x.T], seed, CPU)
    changed = made != x + x.T
    assert torch.equal(made, made.T) and 1 <= int(changed.sum()) <= 2 and bool((made[changed] > 1000).all())


def test_float16_accumulators_count_as_a_setting():
    cuda = torch.backends.cuda.matmul
    before, kept = settings.precisions(), cuda.allow_fp16_accumulation
    try:
        cuda.allow_fp16_accumulation = not kept
        assert [name for name, value in settings.precisions().items() if value != before[name]] == ["float16 accumulators"]
    finally:
        cuda.allow_fp16_accumulation = kept
    assert settings.precisions() == before


@pytest.mark.parametrize("shape", [(128, 128), (127, 127), (1, 1), (0, 5), (64,)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex128, torch.bool])
def test_each_input_in_the_slab_has_room_behind_it(dtype, shape):
    """The room is for NaN, also between inputs whose sizes are multiples of 512 bytes."""
    taken, size = problems.room(dtype, shape), math.prod(shape) * dtype.itemsize
    assert taken % 512 == 0 and dtype.itemsize <= taken - size <= 512
    assert problems.room(dtype, shape, (3, 3)) == taken + problems.room(dtype, (3, 3))


def test_what_a_variant_leaves_is_none_of_its_kind():
    labels = torch.randint(0, 2, (50,)).float()
    assert generic.vary(generic.VARIANTS["signs"], [labels, torch.arange(3)], 1, CPU) is None


# ---- Truth and bounds. -----------------------------------------------------------------------------------------------


def test_errors_are_kernelbenchs_beside_the_truth():
    exact = torch.tensor([0.0, 1.0, -100.0], dtype=torch.float64)
    truth = generic.Truth(exact.float(), exact)
    error, at = truth.worst(torch.tensor([0.0, 1.0, -100.5]))
    assert at == 2 and math.isclose(error, 0.5 / 101) and truth.bound(0.0) == 1e-4 and truth.bound(1e-3) == 4e-3
    assert generic.Truth(exact.bfloat16(), exact).bound(0.0) == 1e-2


def test_zeros_are_no_softmax():
    exact = torch.full((1000,), 1e-4, dtype=torch.float64)
    for ordinary, convicted in ((True, True), (False, False)):
        truth = generic.Truth(exact.float(), exact, ordinary)
        assert (truth.worst(torch.zeros(1000))[0] > truth.bound(0.0)) == convicted


def test_what_is_not_finite_has_to_be_the_same():
    reference = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    truth = generic.Truth(reference, reference.double())
    assert truth.worst(reference) == (0.0, 0)
    for at, value in ((0, 1.0), (0, -math.inf), (2, 0.0), (3, math.nan), (3, math.inf)):
        found = reference.clone()
        found[at] = value
        assert truth.worst(found) == (math.inf, at)


def test_numbers_are_compared_in_pieces(monkeypatch):
    monkeypatch.setattr(generic, "CHUNK", 7)
    exact = torch.zeros(5, 5, dtype=torch.float64)
    found = torch.zeros(5, 5)
    found[4, 3] = 2.0
    truth = generic.Truth(exact.float(), exact)
    error, at = truth.worst(found)
    assert error == 2.0 and truth.position(at) == [4, 3]
    error, _, tied = truth.worst_beside_ties(found, [exact, exact + 3], 1e-4)
    assert (error, tied) == (0.0, 1)
    assert generic.Truth(torch.zeros(0, 3), None).worst(torch.zeros(0, 3)) == (0.0, 0)


def test_complex_results_are_compared_by_parts():
    exact = torch.tensor([1 + 1j, 2 - 2j], dtype=torch.complex128)
    truth = generic.Truth(exact.to(torch.complex64), exact)
    error, at = truth.worst(torch.tensor([1 + 1j, 2 - 5j], dtype=torch.complex64))
    assert math.isclose(error, 1.0) and truth.position(at) == [1, 1]


def test_whole_numbers_agree_but_for_ties():
    x = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 1.0]])
    truth = generic.Truth(x.argmax(1), x.double().argmax(1))
    assert truth.worst(torch.tensor([1, 0])) == (0.0, 0) and truth.worst(torch.tensor([1, 1])) == (1.0, 1)
    perturbed = [generic.perturb([x], seed, CPU, absolute=True)[0].argmax(1) for seed in range(8)]
    assert truth.worst_beside_ties(torch.tensor([1, 1]), perturbed, 0.0)[::2] == (0.0, 1)
    assert truth.worst_beside_ties(torch.tensor([0, 1]), perturbed, 0.0) == (1.0, 0, 1)
    for garbage in (-7, 50):  # no position of these three columns
        assert truth.worst_beside_ties(torch.tensor([1, garbage]), perturbed, 0.0) == (1.0, 1, 0)


def test_perturbed_inputs_lie_to_both_sides():
    x, number = torch.rand(100), torch.arange(3)
    for absolute in (False, True):
        (up, same), (down, _) = (generic.perturb([x, number], seed, CPU, absolute) for seed in (2, 3))
        assert torch.allclose((up + down) / 2, x.double(), rtol=0, atol=1e-15) and same is number
        off = (up - x.double()).abs() / (x.double().max() if absolute else x.double())
        off /= torch.finfo(torch.float32).eps
        assert float(off.min()) > 7.9 and float(off.max()) < 16.1


def test_a_reference_that_fails_in_the_middle_is_named():
    """Without memory for a convolution, torch's error names no memory, and the judge failed with a TypeError."""
    anything = object.__new__(problems.Anything)
    anything.run = SimpleNamespace(reference=SimpleNamespace(fault=lambda what: problems.CannotRun(f"the reference{what}")))
    told = "the reference raises RuntimeError: GET was unable to find an engine"
    anything.ask = lambda calls, in_float64: [{"result": torch.ones(1)}, told]
    with pytest.raises(problems.CannotRun, match="the reference is wrong: .*unable to find an engine"):
        anything.find_truths([SimpleNamespace(truth=None), SimpleNamespace(truth=None)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bool, torch.int64, torch.complex64])
def test_a_fingerprint_differs_where_one_element_does(dtype):
    x = torch.arange(30).view(5, 6).to(dtype)
    other = x.clone()
    other[3, 2] = 0  # the element 20, in the third chunk of eight
    before, after = (measures.fingerprint(each, chunk=8) for each in (x, other))
    assert (before != after).nonzero().flatten().tolist() == [2]
    assert torch.equal(before, measures.fingerprint(x.mT.clone().mT, chunk=8))
    assert not torch.equal(measures.fingerprint(torch.zeros(3)), measures.fingerprint(-torch.zeros(3)))


def test_whole_numbers_have_the_whole_range():
    drawn = generic.Changes(3, CPU).whole(torch.empty(1000), -8, 8)
    assert drawn.unique().tolist() == [*range(-8, 9)]


def test_where_a_tensor_ends():
    X = torch.ones(8, 8)
    ends = [check.end_of(Y) - X.data_ptr() for Y in (X, X[:, 1], X.T, torch.as_strided(X, (1 << 20,), (0,)))]
    assert ends == [256, 4 + 7 * 32 + 4, 256, 4]
    assert check.end_of(X[:0]) == X[:0].data_ptr()

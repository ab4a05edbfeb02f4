"""Holds what several tests share: devices, operands, exact results, error bounds, comparisons, and CUDA source that is compiled as C++.

The operator torch.ops.tril_matmul.product takes a contraction and a structure. A contraction is NN (X Y), NT (X Y^T) or TN (X^T Y). A
structure holds three masks, one each for X, Y and C as they are stored: FULL, TRIL, TRIU or, for C alone, SYMMETRIC.
"""

import contextlib
import functools
import importlib.util
import math
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "model_new.py"
sys.path.insert(0, str(ROOT))  # model_new.py and check.py lie there

from judge.measures import allowed, elementwise_bound, exact_product, inverse_of  # noqa: E402


@functools.lru_cache
def marked(name):
    """Returns the text of model_new.py between two marks. Each mark is a comment on a line of its own. The marks are `// [begin NAME]` and
    `// [end NAME]` in C++, and `# [begin NAME]` and `# [end NAME]` in Python."""
    begin, end = (rf"^ *(?://|#) \[{which} {re.escape(name)}\]\n" for which in ("begin", "end"))
    text = SOURCE.read_text()
    counts = [len(re.findall(line, text, re.MULTILINE)) for line in (begin, end)]
    part = re.search(rf"{begin}(.*?){end}", text, re.MULTILINE | re.DOTALL)
    assert counts == [1, 1] and part, (
        f"{SOURCE.name} needs one comment '[begin {name}]' and, below it, one comment '[end {name}]';"
        f" it has {counts[0]} and {counts[1]} such lines"
    )
    return part[1]


# These are the contractions, masks and problems of model_new.py. They are taken from its text, because importing the file builds the
# kernels on a machine with a GPU.
_names = {}
exec(marked("structures") + marked("problems"), _names)
NN, NT, TN = (_names[name] for name in ("_NN", "_NT", "_TN"))
FULL, TRIL, TRIU, SYMMETRIC = (_names[name] for name in ("_FULL", "_TRIL", "_TRIU", "_SYMMETRIC"))
DENSE, LOWER, UPPER = (_names[name] for name in ("_DENSE", "_LOWER", "_UPPER"))  # structures whose three masks are the same
masked, masks = _names["_masked"], _names["_masks"]  # masked() packs three masks into a structure; masks() unpacks them
PROBLEMS = _names["_PROBLEMS"]

FAMILY = [(contraction, structure) for contraction in (NN, NT, TN) for structure in (DENSE, LOWER, UPPER)]
FAMILY_NAMES = [f"{c}-{s}" for c in ("NN", "NT", "TN") for s in ("dense", "lower", "upper")]
# Products whose three masks are not all the same. The public functions and their gradients compute such products.
MASKED = {
    "L X": (NN, masked(TRIL, FULL, FULL)),
    "U X": (NN, masked(TRIU, FULL, FULL)),
    "X L": (NN, masked(FULL, TRIL, FULL)),
    "X U": (NN, masked(FULL, TRIU, FULL)),
    "L^T X": (TN, masked(TRIL, FULL, FULL)),
    "X L^T": (NT, masked(FULL, TRIL, FULL)),
    "L U": (NN, masked(TRIL, TRIU, FULL)),
    "U L": (NN, masked(TRIU, TRIL, FULL)),
    "X X^T": (NT, masked(FULL, FULL, SYMMETRIC)),
    "X^T X": (TN, masked(FULL, FULL, SYMMETRIC)),
    "L L^T": (NT, masked(TRIL, TRIL, SYMMETRIC)),
    "L^T L": (TN, masked(TRIL, TRIL, SYMMETRIC)),
    "U U^T": (NT, masked(TRIU, TRIU, SYMMETRIC)),
    "tril(X Y^T)": (NT, masked(FULL, FULL, TRIL)),
    "triu(X Y^T)": (NT, masked(FULL, FULL, TRIU)),
    "tril(X U^T)": (NT, masked(FULL, TRIU, TRIL)),
    "triu(L^T X)": (TN, masked(TRIL, FULL, TRIU)),
    "tril(X L)": (NN, masked(FULL, TRIL, TRIL)),
}
every_mask = pytest.mark.parametrize(("contraction", "structure"), MASKED.values(), ids=MASKED)
FUNCTIONS = {"tril_matmul": PROBLEMS["lower"], "triu_matmul": PROBLEMS["upper"], "transposed_a_matmul": PROBLEMS["transposed_a"]}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

HAS_CUDA = torch.cuda.is_available()
HAS_HOPPER = HAS_CUDA and torch.cuda.get_device_capability() == (9, 0)
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA GPU is visible")
needs_hopper = pytest.mark.skipif(not HAS_HOPPER, reason="no GPU of compute capability 9.0 is visible")
needs_two_gpus = pytest.mark.skipif(not HAS_CUDA or torch.cuda.device_count() < 2, reason="fewer than two CUDA GPUs are visible")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def cuda_path(model, hopper="mma"):
    """Returns the name of the kernel that should compute a product on a GPU. If TRIL_MATMUL_PATH is `exact` or `mma`, it is that kernel.
    Otherwise it is the argument `hopper` on a Hopper GPU, and the mma kernel on other GPUs."""
    if model._PATH in (model._PATHS["exact"], model._PATHS["mma"]):
        return next(name for name, path in model._PATHS.items() if path == model._PATH)
    return hopper if HAS_HOPPER else "mma"


@contextlib.contextmanager
def by(model, path):
    """Within this context `path` chooses the kernels, as the value of TRIL_MATMUL_PATH would. If TRIL_MATMUL_PATH chooses already, `path`
    has no effect. 'hopper' chooses Hopper's two kernels for products of every size, if the kernels support the dtype."""
    with pytest.MonkeyPatch.context() as patch:
        if not model._PATH:
            patch.setattr(model, "_PATH", model._PATHS[path])
        yield


@contextlib.contextmanager
def tf32_setting(allowed):
    """Within this context torch allows TF32 in float32 products if `allowed` is true, and forbids it otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# This mark is for tests that call forked_processes. xdist runs them all in one worker, so that they share one fork server.
forks = pytest.mark.xdist_group("forked processes")


def forked_processes():
    """Returns multiprocessing's context "forkserver". Its server imports torch, pytest, and the modules that an optimiser's first step or a
    DTensor imports. The forked processes find these modules imported. Otherwise each process would spend seconds on the imports."""
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.tensor", "pytest"])
    return context


def load():
    """Returns the module model_new, which a test process imports only once."""
    return importlib.import_module("model_new")


def module(name, folder="benchmarks"):
    """Loads a script of benchmarks/ or examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def execute(text=None):
    """Executes the text of model_new.py, or the given text, in an empty dict, and returns the dict. KernelBench executes a file in the same
    way, so the file must not even need __name__."""
    namespace = {}
    exec(compile(SOURCE.read_text() if text is None else text, "<model_new>", "exec"), namespace)
    return namespace


def product(X, Y, contraction, structure):
    """Calls the operator directly, as compiled code does. So the checks that the public functions make are left out."""
    return torch.ops.tril_matmul.product(X, Y, contraction, structure)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed, dtype=torch.float32, device="cpu"):
    """Returns normally distributed values, which are the same on every device."""
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(device, dtype)


# ---- Structure. ------------------------------------------------------------------------------------------------------


def sizes_for(structure, N, R):
    """Returns (M, N, K) for these masks. If exactly one of X, Y and C is triangular or symmetric, this matrix is N x N. R is then the size
    that this matrix does not have. In all other cases X, Y and C are N x N."""
    x, y, c = masks(structure)
    return R if y and not (x or c) else N, R if x and not (y or c) else N, R if c and not (x or y) else N


def mask_of(what):
    """Returns the mask that `what` stands for. `what` is a mask, or a structure with three equal masks (DENSE, LOWER or UPPER)."""
    assert what in (FULL, TRIL, TRIU, SYMMETRIC, DENSE, LOWER, UPPER), f"{what} is neither a mask nor a structure with three equal masks"
    return what & 3


def read_part(T, mask):
    """Returns T with zeros outside the mask."""
    mask = mask_of(mask)
    return T.tril() if mask == TRIL else T.triu() if mask == TRIU else T


def unread(T, mask):
    """Returns a Boolean matrix that is True outside the mask, where a matrix is not read or has zeros."""
    ones = torch.ones(T.shape[-2:], dtype=torch.bool, device=T.device)
    mask = mask_of(mask)
    return ones.triu(1) if mask == TRIL else ones.tril(-1) if mask == TRIU else ~ones


def poison(T, mask, value=math.nan):
    """Returns a copy of T with NaN, or another value, outside the mask, where nothing may be read."""
    return T.masked_fill(unread(T, mask), value)


def bits(T):
    """Returns the bit patterns of T as integers. Unlike the values, they differ for 0 and -0, and are equal for the same NaN."""
    T = T.detach().contiguous()
    return T.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[T.element_size()])


# ---- Calls. ----------------------------------------------------------------------------------------------------------


def computed(function, A, B, G, times):
    """Makes `times` calls, and then `times` backward passes through the last call's graph. Returns {name: results} for C, dA and dB. On a
    GPU, poison_memory makes each result begin as NaN, so that the comparison finds an element that was not written."""
    A, B = A.detach().requires_grad_(), B.detach().requires_grad_()
    results = {"C": [], "dA": [], "dB": []}
    for _ in range(times):
        poison_memory(G, 2)
        C = function(A, B)
        results["C"].append(C.detach())
    for _ in range(times):
        poison_memory(A, 2)
        poison_memory(B, 2)
        for name, gradient in zip(("dA", "dB"), torch.autograd.grad(C, (A, B), G, retain_graph=True), strict=True):
            results[name].append(gradient)
    return results


# ---- Layouts. --------------------------------------------------------------------------------------------------------

# Each function returns V in the layout that its name describes. The last three change the values: they repeat the first row, column or
# element of each matrix. If a view has memory between its elements, this memory holds NaN. "batch last" makes the batch the innermost
# dimension in memory, and leaves a single matrix as it is.
LAYOUTS = {
    "contiguous": lambda V: V.contiguous(),
    "transposed": lambda V: V.mT.contiguous().mT,
    "slice": lambda V: surrounded(V, rows=slice(2, 2 + V.shape[-2]), cols=slice(1, 1 + V.shape[-1])),
    "steps": lambda V: surrounded(V, rows=slice(1, 1 + 2 * V.shape[-2], 2), cols=slice(0, 3 * V.shape[-1], 3)),
    "transposed steps": lambda V: surrounded(V.mT, rows=slice(0, 3 * V.shape[-1], 3), cols=slice(1, 1 + V.shape[-2])).mT,
    "batch last": lambda V: (
        V.reshape(-1, *V.shape[-2:]).movedim(0, -1).contiguous().movedim(-1, 0).unflatten(0, V.shape[:-2])
        if V.dim() > 2 and V.numel()
        else V
    ),
    "equal rows": lambda V: V[..., :1, :].expand(V.shape),
    "equal columns": lambda V: V[..., :1].expand(V.shape),
    "one value": lambda V: V[..., :1, :1].expand(V.shape),
}


def surrounded(V, rows, cols):
    storage = V.new_full((*V.shape[:-2], 3 * V.shape[-2] + 4, 3 * V.shape[-1] + 4), math.nan)
    storage[..., rows, cols] = V
    return storage[..., rows, cols]


class Way(NamedTuple):
    """The layouts of A, B and the gradient of C. Each matrix is stored by columns or by rows. If `padded` is true, each stored column or
    row begins at a multiple of 16 bytes. Otherwise there are no gaps in memory."""

    by_columns: tuple[bool, bool, bool]
    padded: bool


# Over the first four ways, any two of the three matrices have all four combinations of "by columns" and "by rows".
WAYS = [Way((a, b, a != b), True) for a in (False, True) for b in (False, True)] + [Way((False,) * 3, False), Way((True,) * 3, False)]


def laid_out(V, by_columns, padded):
    """Returns V stored by columns or by rows. If `padded`, each stored column or row begins at a multiple of 16 bytes, and the gaps hold
    NaN."""
    W = V.mT if by_columns else V
    line = 16 // V.element_size()
    storage = W.new_full((*W.shape[:-1], -(-W.shape[-1] // line) * line if padded else W.shape[-1]), math.nan)
    storage = storage[..., : W.shape[-1]].copy_(W)
    return storage.mT if by_columns else storage


def poison_memory(like, count):
    """On a GPU, fills `count` tensors of the size of `like` with NaN and frees them. torch's allocator then uses their memory for the next
    `count` tensors of this size."""
    if like.is_cuda:
        tensors = [torch.full_like(like, math.nan, memory_format=torch.contiguous_format) for _ in range(count)]
        del tensors


# ---- Truth and bounds. -----------------------------------------------------------------------------------------------


def plain_operands(X, Y, contraction, structure):
    """Returns the operands of the dense product X Y that equals the contraction. They have zeros outside the masks, and an operand that the
    contraction transposes is a transposed view."""
    x, y, _ = masks(structure)
    X, Y = read_part(X, x), read_part(Y, y)
    return X.mT if contraction == TN else X, Y.mT if contraction == NT else Y


def truth(X, Y, contraction, structure):
    """Returns the product in float64, and |X| |Y|, by which componentwise errors are divided. The judge's exact_product computes both."""
    high, low, magnitude = exact_product(*plain_operands(X.detach(), Y.detach(), contraction, structure))
    _, _, c = masks(structure)
    return read_part(high + low, c), read_part(magnitude, c)


def dense_error(X, Y, contraction, structure, exact, magnitude):
    """Returns the worst componentwise error of torch's dense product in the operands' own dtype. Errors that are not finite count as 0."""
    dense = torch.matmul(*plain_operands(X.detach(), Y.detach(), contraction, structure)).double()
    error = torch.where(magnitude > 0, (dense - exact).abs() / magnitude, 0.0)
    return error.nan_to_num(nan=0.0, posinf=0.0).max().item() if error.numel() else 0.0


def bound_for(X, Y, contraction, structure, exact, magnitude):
    """Returns the largest error that each element may have: elementwise_bound of judge/measures.py, with two exceptions.

    In float32 the bound is raised to twice the worst error of torch's dense product relative to |X| |Y|, but at most to the second bound
    that allowed() of judge/measures.py returns. This limit does not apply where |X| |Y| is too small for a normal float32. In float64 half
    of elementwise_bound is used. It allows for the errors of two sums, and here only the result has errors, because `truth` is exact.
    """
    terms = X.shape[-2] if contraction == TN else X.shape[-1]
    bound = elementwise_bound(X.dtype, terms, exact, magnitude)
    if X.dtype == torch.float64:
        return bound / 2
    if X.dtype == torch.float32:
        twice = 2 * dense_error(X, Y, contraction, structure, exact, magnitude)
        underflows = magnitude < torch.finfo(torch.float32).smallest_normal  # the contract excludes these elements
        return bound.maximum(torch.where(underflows, twice, min(twice, allowed(X.dtype, terms)[1])) * magnitude)
    return bound


def assert_within(C, exact, bound, what="C"):
    """Asserts |C - exact| <= bound for every element. The message shows the element with the largest ratio of error to bound. A NaN counts
    as the largest error."""
    assert C.shape == exact.shape, f"{what}: shape {tuple(C.shape)}, expected {tuple(exact.shape)}"
    if C.numel() == 0:
        return
    C = C.detach().double()
    error = (C - exact).abs()
    excess = torch.where(error > 0, error / bound, 0.0).masked_fill(error.isnan(), math.inf)
    worst = int(excess.argmax())
    if excess.flatten()[worst] <= 1:
        return
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), C.shape))
    worst_bound = float(bound.flatten()[worst])
    pytest.fail(
        f"{what}: {int((excess > 1).sum())} of {C.numel()} elements are wrong. The worst, {list(index)}, is {C.flatten()[worst].item():.9g}"
        f"; the float64 product is {exact.flatten()[worst].item():.9g}; error {error.flatten()[worst].item():.3g}, bound {worst_bound:.3g}",
        pytrace=False,
    )


def assert_product(C, X, Y, contraction, structure, what="C"):
    """Asserts that C has the shape of the product, and the dtype and device of X. C has to be contiguous, in memory that neither operand
    shares. Outside its mask C has to be zero, and a SYMMETRIC C has to be symmetric bit by bit. Errors have to be within bound_for()."""
    batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
    X, Y = X.expand(*batch, *X.shape[-2:]), Y.expand(*batch, *Y.shape[-2:])
    exact, magnitude = truth(X, Y, contraction, structure)
    assert C.shape == exact.shape, f"{what}: shape {tuple(C.shape)}, expected {tuple(exact.shape)}"
    assert C.dtype == X.dtype, f"{what}: {C.dtype}, expected {X.dtype}"
    assert C.device == X.device, f"{what}: on {C.device}, expected {X.device}"
    assert C.is_contiguous(), f"{what}: strides {C.stride()} of shape {tuple(C.shape)} are not contiguous"
    if C.numel():
        storages = {T.untyped_storage().data_ptr() for T in (X, Y)}
        assert C.untyped_storage().data_ptr() not in storages, f"{what} shares its memory with an input"
    _, _, c = masks(structure)
    outside = C[..., unread(C, c)]
    assert not bool((outside != 0).any()), f"{what}: {int((outside != 0).sum())} elements of the zero triangle are not zero"
    if c == SYMMETRIC:
        assert_bitwise(C.mT, C, f"{what}^T beside {what}")
    assert_within(C, exact, bound_for(X, Y, contraction, structure, exact, magnitude), what)


def assert_gradients(gradients, function, A, B, G, what=""):
    """Asserts that the gradients (dA, dB) of a function in FUNCTIONS are within the contract's bound. G is the gradient of its result."""
    contraction, structure = FUNCTIONS[function]
    formulas = {NN: ((G, B, NT), (A, G, TN)), TN: ((B, G, NT), (A, G, NN))}[contraction]
    for name, gradient, (X, Y, gradient_contraction) in zip(("dA", "dB"), gradients, formulas, strict=True):
        exact, magnitude = truth(X, Y, gradient_contraction, structure)
        assert gradient.dtype == X.dtype
        assert_within(gradient, exact, bound_for(X, Y, gradient_contraction, structure, exact, magnitude), name + what)


def assert_inverse(X, L, unit, what="the inverse"):
    """Asserts that X is the inverse of the lower triangle of L, within the judge's bound. If `unit` is true, L counts as having ones on its
    diagonal."""
    identity = torch.eye(L.shape[-1], dtype=torch.float64, device=L.device)
    matrix = L.detach().double().tril(-1) + identity if unit else L.detach().double().tril()
    exact, low, magnitude = inverse_of(matrix, None)
    exact = exact + low
    assert_within(X, exact, elementwise_bound(X.dtype, L.shape[-1], exact, magnitude, inverse=True), what)


def assert_bitwise(C, expected, what="C"):
    """Asserts that C and `expected` agree in every bit."""
    assert C.shape == expected.shape and C.dtype == expected.dtype, f"{what}: {C.dtype} {tuple(C.shape)}, expected {expected.dtype}"
    differ = bits(C) != bits(expected)
    if bool(differ.any()):
        index = tuple(differ.nonzero()[0].tolist())
        pytest.fail(
            f"{what}: {int(differ.sum())} elements differ in bits, the first {list(index)}:"
            f" {C[index].item()!r} and {expected[index].item()!r}",
            pytrace=False,
        )


def expected_with_specials(X, Y, contraction, structure):
    """Returns the product in float64, and |X| |Y|. The product has NaN and Inf where the sum of the terms inside the masks has.

    Below, X (M x K) and Y (K x N) are the factors after the transpose that the contraction asks for. For some k, column k of X or row k of
    Y has a NaN or Inf. Each term X[i, k] Y[k, j] of these k is added by itself, if both elements lie inside their masks. Otherwise a zero
    outside a mask times NaN or Inf would be NaN. One matrix product, with zeros outside the masks, sums the terms of all other k. That
    takes a hundredth of the time of adding every k by itself.
    """
    *operand_masks, c = masks(structure)
    has_x, has_y = (~unread(T, mask) for T, mask in zip((X, Y), operand_masks, strict=True))
    X, Y = (read_part(T.detach().double(), mask) for T, mask in zip((X, Y), operand_masks, strict=True))
    if contraction == TN:
        X, has_x = X.mT, has_x.mT
    if contraction == NT:
        Y, has_y = Y.mT, has_y.mT
    # finite[k]: whether column k of X and row k of Y are finite in all batches
    finite = (X.isfinite().all(-2) & Y.isfinite().all(-1))[None].flatten(0, -2).all(0)
    x, y = X[..., finite], Y[..., finite, :]
    exact, magnitude = x @ y, x.abs() @ y.abs()
    for k in finite.logical_not().nonzero().flatten().tolist():
        term = X[..., k, None] * Y[..., k, None, :]
        term = term.where(has_x[:, k, None] & has_y[k], 0.0)
        exact += term
        magnitude += term.abs()
    outside = unread(exact, c)
    return exact.masked_fill(outside, 0.0), magnitude.masked_fill(outside, 0.0)


def assert_same_specials(C, exact, what="C"):
    """Asserts that C has NaN, +Inf and -Inf at the same places as `exact`."""
    for name, test in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        differ = test(C) != test(exact)
        if bool(differ.any()):
            index = tuple(differ.nonzero()[0].tolist())
            pytest.fail(
                f"{what}: {name} is wrongly there or missing in {int(differ.sum())} elements, the first {list(index)}:"
                f" {C[index].item()!r}, but the sum over k is {exact[index].item()!r}",
                pytrace=False,
            )


# ---- Constants of the CUDA source. -----------------------------------------------------------------------------------


@functools.lru_cache
def cuda_sections():
    """Returns {name: text} of the strings in model_new.py that make up the CUDA source."""
    return dict(re.findall(r'^(_CUDA_\w+) = r"""(.*?)^"""', SOURCE.read_text(), re.MULTILINE | re.DOTALL))


def constant(section, name, **known):
    """Returns the value of an integer constant of the CUDA source, given its section and its name. The constant, and constants in its
    expression, are looked up in this section first, then in all sections. `known` gives the values of other texts in the expression, such
    as template arguments and sizeof(T)."""
    for text in (cuda_sections()[section], *cuda_sections().values()):
        found = re.search(rf"\bconstexpr int [^;]*?\b{name} = ([^,;]+)[,;]", text)
        if found:
            expression = re.sub(r"(.+) \? (.+) : (.+)", r"(\2) if (\1) else (\3)", found[1].replace("/", "//").replace("&&", "and"))
            for unknown, value in known.items():
                expression = expression.replace(unknown, str(int(value)))
            return int(eval(re.sub(r"\bk[A-Z]\w*", lambda match: str(constant(section, match[0], **known)), expression), {}))
    raise LookupError(f"the CUDA source of {SOURCE.name} has no integer constant {name}, in {section} or elsewhere")


# ---- How kernels cut a product. --------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """How a kernel divides a product into tiles and k-blocks."""

    edge: int  # the rows, and also the columns, of a whole tile; one CTA or one cluster computes the tile
    block: int  # k per k-block
    stages: int  # stages of the pipeline


def classes(cut):
    """Returns remainders of a size divided by the edge. Sizes with these remainders end at the end of a k-block, one element after it, or
    near the middle or the end of a tile. The remainder 0 is returned as the edge."""
    inside = {boundary + offset for boundary in range(0, cut.edge, cut.block) for offset in (0, 1)}
    return sorted(r or cut.edge for r in inside | {cut.edge // 2, cut.edge // 2 + 1, cut.edge - 1})


def cuts():
    """Returns {name: Cut}. A kernel has several entries if its cut depends on its tile size, its element type or TF32."""
    block, tile = constant("_CUDA_SCHEDULE", "kBlock"), constant("_CUDA_SCHEDULE", "kTileEdge")
    half = [constant("_CUDA_SIXTEEN_BIT", "kStages", kLarge=is_large) for is_large in (0, 1)]
    mma = {
        size: Cut(block, *(constant("_CUDA_MMA", name, **{"sizeof(T)": size}) for name in ("kMmaBlockK", "kMmaStages")))
        for size in (2, 4, 8)
    }
    line = constant("_CUDA_COPIER", "kLineBytes")
    tf32 = [constant("_CUDA_SPLIT_TF32", name) for name in ("kSplitTf32BlockK", "kSplitTf32Stages")]
    return {
        "half, small tiles": Cut(tile // 2, block, half[0]),
        "half, large tiles": Cut(tile, block, half[1]),
        "hopper": Cut(tile, block, constant("_CUDA_FP16X3", "kStages", kLo=1)),
        "hopper, tf32": Cut(tile, block, constant("_CUDA_FP16X3", "kStages", kLo=0)),
        "tf32": Cut(block, *tf32),
        "mma, 16 bits": mma[2],
        "mma, float32": mma[4],
        "mma, float64": mma[8],
        "exact": Cut(block, line // 4, 2),
        "exact, float64": Cut(block, line // 8, 2),
    }


# ---- Source text for tests that compile it, and programs for the host. -----------------------------------------------


def hooked(text, definitions):
    """Returns the text of model_new.py with `definitions` in place of its line `// [hooks]`. The `definitions` are #defines of the names
    that the hooks below this line test."""
    changed, count = re.subn(r"^// \[hooks\]$", lambda _: definitions, text, flags=re.MULTILINE)
    assert count == 1, f"{SOURCE.name} needs one line '// [hooks]'; it has {count}"
    return changed


# The sections Types, Schedule and Policy of the CUDA source include no header of CUDA. With this text in front they compile as C++.
HOST_PRELUDE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>
#include <vector>
using std::max;
using std::min;
#define __device__
#define __host__
#define __noinline__
#define __ffs __builtin_ffs
"""

COMPILER = next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)

# A small extension module, which compiles quickly. Its function answer() returns ANSWER, a macro that the test defines.
SMALL_EXTENSION = r"""
#include <Python.h>
#define INIT_(name) PyInit_##name
#define INIT(name) INIT_(name)
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "small", nullptr, 0, methods};
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""


# -fno-strict-aliasing: kernels read memory as another type than it was written as. Device code may do so, but standard C++ may not.
# _FORTIFY_SOURCE: some distributions' compilers set it. It is set on every machine here, so that its aborts show on every machine.
# -march=native: the program may use all instructions of this machine, because it runs on no other machine.
# -ffp-contract=off: the compiler makes no fma that the source does not call.
HOST_FLAGS = ["-std=c++17", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-march=native", "-ffp-contract=off"]


def host_program(folder, name, parts, optimise="-O1"):
    """Compiles the parts into one program in `folder`. Returns run(*arguments), which runs the program and returns what the
    program printed. run() fails the test with that text, unless the exit status is 0 and the text contains "all holds".

    `optimise` is an option of the compiler. -O1 makes the total time of compiling and running the shortest. -Og is for programs that are
    large and run briefly. -pthread is for programs with threads of the operating system.
    """
    (folder / f"{name}.cpp").write_text("\n".join(parts))
    call = functools.partial(subprocess.run, capture_output=True, text=True, cwd=folder)
    build = call([COMPILER, *HOST_FLAGS, optimise, "-c", f"{name}.cpp"])
    # The program is linked statically if the static libraries are installed. Some programs run a thousand times, and a static program
    # starts in a third of the time. With -pthread a program is always linked dynamically.
    for static in [] if build.returncode else [["-static"], []][optimise == "-pthread" :]:
        build = call([COMPILER, *static, optimise, "-o", name, f"{name}.o"])
        if build.returncode == 0:
            break
    assert build.returncode == 0, f"the {name} of model_new.py does not compile on the host:\n" + textwrap.shorten(build.stderr, 4000)

    def run(*arguments):
        process = subprocess.run([folder / name, *map(str, arguments)], capture_output=True, text=True)
        if process.returncode != 0 or "all holds" not in process.stdout:
            pytest.fail(
                f"{' '.join(map(str, arguments))}: exit status {process.returncode}: {process.stdout}{process.stderr}", pytrace=False
            )
        return process.stdout

    return run

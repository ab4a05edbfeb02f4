"""Every size at which a kernel cuts a product in another way is right, and gives the same bits three times: one row left, one block, half a
tile, the last tile of a cluster empty, every number of k-blocks modulo the stages of a pipeline.

The sizes are made of the schedule's own constants, read from the CUDA source, so a new size of tiles brings its own. At each size C, dA and
dB are computed of operands that lie every way, in poisoned memory, and all elements are compared with float64 on the device. On a CPU
small sizes of the same kind go through the CPU's operator. `TRIL_MATMUL_PATH=mma` and `=exact` send all of them to one kernel; `=hopper`
is set here where sizes are for the fp16x3 kernel, also those that are too small for it.
"""

import itertools
import math
import re
from typing import NamedTuple

import pytest
import sanitize
import torch
from helpers import (
    COMPILER,
    DENSE,
    HAS_CUDA,
    HAS_HOPPER,
    HOST_PRELUDE,
    LOWER,
    MASKED,
    NN,
    SOURCE,
    SYMMETRIC,
    UPPER,
    WAYS,
    Cut,
    bits,
    by,
    classes,
    computed,
    constant,
    cuda_sections,
    cuts,
    dense_error,
    host_program,
    laid_out,
    masks,
    needs_cuda,
    poison,
    read_part,
    sizes_for,
    tf32_setting,
)

from judge.measures import elementwise_bound

# ---- The sizes. ------------------------------------------------------------------------------------------------------


def sizes(cut, least):
    """From `least` on (a multiple of the edge): every class, with every number of k-blocks modulo the stages that it can have."""
    assert least % cut.edge == 0, f"{least} is no multiple of {cut.edge}"
    turns = cut.stages // math.gcd(cut.stages, -(-cut.edge // cut.block))
    return [least + turn * cut.edge + r for turn in range(turns) for r in classes(cut)]


def rectangles(cut, K, M, N):
    """(K, M, N) from these bases on: each class once as each of them, beside other ones."""
    rest = classes(cut)
    turned = [rest[len(rest) * side // 3 :] + rest[: len(rest) * side // 3] for side in range(3)]
    return [(K + k, M + m, N + n) for k, m, n in zip(*turned, strict=True)]


class Group(NamedTuple):
    """Sizes that are for one kernel of a GPU of compute capability 9.0."""

    name: str
    kernels: tuple[str, ...]  # that explain names among them
    dtype: torch.dtype
    shapes: list  # N, of triangular products, or (K, M, N), of A^T B
    batches: tuple[int, ...] = ()
    tf32: bool = False  # allowed
    path: str = "auto"  # which TRIL_MATMUL_PATH would ask for

    @property
    def label(self):
        return f"{str(self.dtype).removeprefix('torch.')}{', TF32' * self.tf32}: {self.name}"


WRONG_GRADIENTS = [3585, 3841, 4097, 5121, 6000, 6145, 7000, 8193]  # dB, before a warpgroup waited for its copies of C
WRONG_IN_BATCHES = [(4, 2049), (16, 800), (64, 800), (256, 300), (1000, 257)]
HALVES, SINGLE, DOUBLE = (torch.float16, torch.bfloat16), torch.float32, torch.float64


def groups():
    cut = cuts()
    tile = cut["half, large tiles"].edge
    found = []
    for dtype in HALVES:
        found += [
            Group("mma", ("mma",), dtype, sizes(cut["mma, 16 bits"], 0) + sizes(cut["mma, 16 bits"], 512)),
            Group("mma, two CTAs a tile", ("mma",), dtype, sizes(cut["mma, 16 bits"], 960)),
            Group("small tiles, many of them halved", ("half",), dtype, sizes(cut["half, small tiles"], 1280)),
            Group("small tiles, more of them than SMs", ("half",), dtype, sizes(cut["half, small tiles"], 8 * tile)),
            Group("large tiles, many of them halved", ("half",), dtype, sizes(cut["half, large tiles"], 12 * tile)),
            Group("large tiles", ("half",), dtype, sizes(cut["half, large tiles"], 14 * tile) + sizes(cut["half, large tiles"], 21 * tile)),
            Group("large tiles, known to have been wrong", ("half",), dtype, WRONG_GRADIENTS),
            *(Group(f"batches of {b}, known to have been wrong", ("half",), dtype, [N], (b,)) for b, N in WRONG_IN_BATCHES),
            Group("mma, batches", ("mma",), dtype, classes(cut["mma, 16 bits"]), (2, 3)),
            Group("small tiles, batches", ("half",), dtype, sizes(cut["half, small tiles"], 2 * tile), (10,)),
            Group("large tiles, batches", ("half",), dtype, sizes(cut["half, large tiles"], 2 * tile), (40,)),
            Group("mma, dense", ("mma",), dtype, rectangles(cut["mma, 16 bits"], 192, 128, 256)),
            Group("mma, dense, eight CTAs a tile", ("mma",), dtype, rectangles(cut["mma, 16 bits"], 4096, 128, 64)),
            Group("four CTAs share k, dense", ("half",), dtype, rectangles(cut["half, small tiles"], 4096, 512, 512)),
            Group("two CTAs share k, dense", ("half",), dtype, rectangles(cut["half, small tiles"], 2048, 768, 768)),
            Group("small tiles halved, dense", ("half",), dtype, rectangles(cut["half, small tiles"], 1024, 768, 768)),
            Group("small tiles, dense batches", ("half",), dtype, rectangles(cut["half, small tiles"], tile, 0, 0), (600,)),
            Group("large tiles, dense", ("half",), dtype, rectangles(cut["half, large tiles"], 2 * tile, 6 * tile, 8 * tile)),
            Group("some large tiles halved, dense", ("half",), dtype, rectangles(cut["half, large tiles"], 2 * tile, 8 * tile, 8 * tile)),
            Group("short sums, dense", ("half",), dtype, rectangles(cut["half, large tiles"], 0, 10 * tile, 12 * tile)),
            Group("large tiles, dense batches", ("half",), dtype, rectangles(cut["half, large tiles"], tile, 2 * tile, tile), (20,)),
        ]
    found += [
        Group("tf32, few tiles", ("tf32",), SINGLE, sizes(cut["tf32"], 0) + sizes(cut["tf32"], 320)),
        Group("tf32", ("tf32",), SINGLE, sizes(cut["tf32"], 448) + sizes(cut["tf32"], 640) + sizes(cut["tf32"], 1024)),
        Group("hopper, small", ("hopper",), SINGLE, sizes(cut["hopper"], 0), path="hopper"),
        Group("hopper", ("hopper",), SINGLE, sizes(cut["hopper"], 5 * tile), path="hopper"),
        Group("hopper, where chains begin", ("hopper",), SINGLE, [2047, 2048, 2049, 2113], path="hopper"),
        Group("hopper, large", ("hopper",), SINGLE, [4095, 4096, 4097, 5121, 8193], path="hopper"),
        Group("tf32, few tiles, batches", ("tf32",), SINGLE, classes(cut["tf32"]), (2, 3)),
        Group("tf32, batches", ("tf32",), SINGLE, sizes(cut["tf32"], 512), (2, 4)),
        Group("tf32, large batches", ("tf32",), SINGLE, sizes(cut["tf32"], 0) + sizes(cut["tf32"], 64), (600,)),
        Group("hopper, batches", ("hopper",), SINGLE, classes(cut["hopper"]) + sizes(cut["hopper"], 5 * tile)[:9], (3,), path="hopper"),
        Group("tf32, few tiles, dense", ("tf32",), SINGLE, rectangles(cut["tf32"], 320, 128, 64)),
        Group("tf32, long sums", ("tf32",), SINGLE, rectangles(cut["tf32"], 3008, 64, 0)),
        Group("mma, long sums", ("mma",), SINGLE, rectangles(cut["tf32"], 140032, 64, 0), path="mma"),
        Group("hopper, long sums", ("hopper",), SINGLE, rectangles(cut["tf32"], 140032, 64, 0)),
        Group("tf32, dense", ("tf32",), SINGLE, rectangles(cut["tf32"], 640, 512, 384) + rectangles(cut["tf32"], 2048, 192, 256)),
        Group("hopper, dense", ("hopper",), SINGLE, rectangles(cut["hopper"], 4 * tile, 5 * tile, 6 * tile), path="hopper"),
        Group("hopper, dense, small", ("hopper",), SINGLE, rectangles(cut["hopper"], 0, 0, tile), path="hopper"),
        Group("hopper, short sums", ("hopper",), SINGLE, rectangles(cut["hopper"], 0, 10 * tile, 12 * tile), path="hopper"),
        Group("hopper, dense, batches", ("hopper",), SINGLE, rectangles(cut["hopper"], 3 * tile, 4 * tile, 3 * tile), (3,), path="hopper"),
        Group("tf32", ("tf32",), SINGLE, sizes(cut["tf32"], 640), tf32=True),
        Group(
            "hopper",
            ("hopper",),
            SINGLE,
            sizes(cut["hopper, tf32"], 5 * tile) + sizes(cut["hopper, tf32"], 14 * tile),
            tf32=True,
            path="hopper",
        ),
        Group("hopper, batches", ("hopper",), SINGLE, sizes(cut["hopper, tf32"], 5 * tile), (3,), tf32=True, path="hopper"),
        Group(
            "hopper, dense", ("hopper",), SINGLE, rectangles(cut["hopper, tf32"], 4 * tile, 5 * tile, 6 * tile), tf32=True, path="hopper"
        ),
        Group("mma, few tiles", ("mma",), DOUBLE, sizes(cut["mma, float64"], 0) + sizes(cut["mma, float64"], 320)),
        Group("mma", ("mma",), DOUBLE, sizes(cut["mma, float64"], 704)),
        Group("mma, all layouts", ("mma",), DOUBLE, sizes(cut["mma, float64"], 1472)),
        Group("mma, batches", ("mma",), DOUBLE, classes(cut["mma, float64"]), (150,)),
        Group("mma, few tiles, dense", ("mma",), DOUBLE, rectangles(cut["mma, float64"], 320, 128, 64)),
        Group("mma, dense", ("mma",), DOUBLE, rectangles(cut["mma, float64"], 256, 640, 768)),
    ]
    return found


def forced_groups():
    """Further sizes, for TRIL_MATMUL_PATH=mma and =exact."""
    cut = cuts()
    found = [Group("mma", ("mma",), SINGLE, sizes(cut["mma, float32"], 64) + sizes(cut["mma, float32"], 1024))]
    for dtype in (SINGLE, DOUBLE, *HALVES):
        of_dtype = cut["exact, float64" if dtype == DOUBLE else "exact"]
        found.append(Group("exact", ("exact",), dtype, sizes(of_dtype, 0) + sizes(of_dtype, 320)))
        found.append(Group("exact, batches", ("exact",), dtype, classes(of_dtype), (2, 3)))
        found.append(Group("exact, dense", ("exact",), dtype, rectangles(of_dtype, 320, 128, 64)))
    return found


def small_groups():
    """For a CPU."""
    cut = cuts()["half, large tiles"]
    found = []
    for dtype in (*HALVES, SINGLE, DOUBLE):
        found.append(Group("triangles", ("cpu",), dtype, classes(cut)))
        found.append(Group("batches", ("cpu",), dtype, classes(cut)[1::3], (2, 2)))
        found.append(Group("dense", ("cpu",), dtype, rectangles(cut, 64, 0, 32)))
    return found


GPU_GROUPS, FORCED_GROUPS, CPU_GROUPS = groups(), forced_groups(), small_groups()

# ---- What is computed, and what it should be. ------------------------------------------------------------------------


class Expected(NamedTuple):
    """X Y, in float64, |X| |Y|, and what each element may be off by."""

    X: torch.Tensor
    Y: torch.Tensor
    exact: torch.Tensor
    magnitude: torch.Tensor
    bound: torch.Tensor

    def transposed(self):
        """Y^T X^T."""
        return Expected(self.Y.mT, self.X.mT, *(V.mT for V in self[2:]))


def expected_of(A, B, G, structure, tf32):
    """{result: Expected} of C = A B and its gradients, of lower triangles; dense: of C = A^T B."""
    a, b, g = (read_part(V, structure) for V in (A, B, G))
    triangles, dense = {"C": (a, b), "dA": (g, b.mT), "dB": (a.mT, g)}, {"C": (a.mT, b), "dA": (b, g.mT), "dB": (a, g)}
    found = {}
    for name, (X, Y) in (dense if structure == DENSE else triangles).items():
        exact, magnitude = (read_part(x @ y, structure) for x, y in ((X.double(), Y.double()), (X.double().abs(), Y.double().abs())))
        found[name] = Expected(X, Y, exact, magnitude, elementwise_bound(A.dtype, X.shape[-1], exact, magnitude, tf32))
    return found


def is_wrong(result, exact, bound):
    """Where a result is off by more than the bound; a NaN is."""
    return ((result.double() - exact).abs_() <= bound).logical_not_()


def worst_of(result, exact, bound, what):
    """A line about a result that is wrong."""
    wrong, error = is_wrong(result, exact, bound), (result.double() - exact).abs()
    excess = torch.where(error.isnan(), math.inf, torch.where(wrong, error / bound, 0.0))
    at = tuple(int(i) for i in torch.unravel_index(excess.argmax().cpu(), excess.shape))
    rows, cols = (wrong.sum(dim).flatten(0, -2).sum(0).nonzero().flatten() for dim in (-1, -2)) if wrong.dim() == 2 else (None, None)
    where = f", in rows {rows.min()} to {rows.max()}, columns {cols.min()} to {cols.max()}" if rows is not None else ""
    return (
        f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are wrong{where}. The worst, {list(at)}, is {result[at].item():.9g}; the"
        f" float64 product is {exact[at].item():.9g}; error {error[at].item():.3g}, bound {bound[at].item():.3g}"
    )


class Comparison:
    """Results beside what they should be. The device is asked once for many, by `report`."""

    def __init__(self):
        self.counts, self.lines = [], []

    def count(self, flags, line):
        """`line` tells about what is wrong, if any of the flags is set."""
        self.counts.append(flags.sum())
        self.lines.append(line)

    def report(self):
        counts = torch.stack(self.counts).tolist()
        return [line() for count, line in zip(counts, self.lines, strict=True) if count]


def check_results(results, expected, group, what):
    """Lines about what is wrong among the results of one call, each computed several times."""
    comparison = Comparison()
    for name, (_, _, exact, _, bound) in expected.items():
        first, *others = results[name]
        comparison.count(is_wrong(first, exact, bound), lambda n=name: lines_about(results[n], expected[n], group, f"{what}, {n}"))
        for number, other in enumerate(others, 2):
            comparison.count(bits(first) != bits(other), lambda n=name, call=number: [line_about_bits(results[n], call, f"{what}, {n}")])
    return list(itertools.chain(*comparison.report()))


def line_about_bits(results, call, what):
    """A line about a call whose bits are others than the first one's."""
    first, other = results[0], results[call - 1]
    differ = bits(first) != bits(other)
    at = tuple(differ.nonzero()[0].tolist())
    values = f"{first[at].item():.9g} and {other[at].item():.9g}"
    return f"{what}: calls 1 and {call} differ in {int(differ.sum())} of {differ.numel()} elements, the first {list(at)}: {values}"


def lines_about(results, expected, group, what):
    """Lines about results that are off by more than the bound. float32: twice what torch's own product is off by is allowed, too."""
    X, Y, exact, magnitude, bound = expected
    if group.dtype == torch.float32 and not group.tf32:
        bound = bound.maximum(2 * dense_error(X, Y, NN, DENSE, exact, magnitude) * magnitude)
    calls = [(number, result) for number, result in enumerate(results, 1) if bool(is_wrong(result, exact, bound).any())]
    return [worst_of(result, exact, bound, f"{what}, call {number}") for number, result in calls]


def check_size(model, group, shape, device, ways, times=3):
    """(lines about what is wrong, the kernels that computed) of one size."""
    generator = torch.Generator(device).manual_seed(hash((shape, group.batches)) % 2**31)
    structure = LOWER if isinstance(shape, int) else DENSE
    K, M, N = (shape,) * 3 if structure else shape
    A, B, G = (
        torch.rand(*group.batches, *sides, generator=generator, device=device).sub_(0.5).to(group.dtype)
        for sides in ((K, M), (K, N), (M, N))
    )
    expected = expected_of(A, B, G, structure, group.tf32)
    problems = {"transposed_a": (model.transposed_a_matmul, DENSE, (A, B, G), expected)}
    if structure:  # upper triangles: (X Y)^T = Y^T X^T
        mirrored = {name: expected[other].transposed() for name, other in (("C", "C"), ("dA", "dB"), ("dB", "dA"))}
        problems = {"lower": (model.tril_matmul, LOWER, (A, B, G), expected)}
        problems["upper"] = (model.triu_matmul, UPPER, (B.mT, A.mT, G.mT), mirrored)
    lines, kernels = [], set()
    for (problem, (function, part, operands, wanted)), way in itertools.product(problems.items(), ways):
        laid = [laid_out(poison(V, part), by, way.padded) for V, by in zip(operands, way.by_columns, strict=True)]
        by = ", ".join("by columns" if by else "by rows" for by in way.by_columns)
        what = f"{group.label}: {problem}, {group.batches or ''} {shape}, {by}{'' if way.padded else ', not padded'}"
        kernels.add(model.explain(*laid[:2], problem)["path"])
        lines += check_results(computed(function, *laid, times), wanted, group, what)
    return lines, kernels


def check_group(model, group, device, ways=WAYS, times=3):
    wrong, kernels, failed = [], set(), []
    with tf32_setting(group.tf32):
        for shape in group.shapes:
            lines, paths = check_size(model, group, shape, device, ways, times)
            wrong += lines
            kernels |= paths
            failed += [shape] * bool(lines)
    if wrong:
        more = f"\n... and {len(wrong) - 12} more" * (len(wrong) > 12)
        pytest.fail(
            f"{group.label}: {len(failed)} of {len(group.shapes)} sizes are wrong: {failed}\n" + "\n".join(wrong[:12]) + more, pytrace=False
        )
    return kernels


# ---- The tests. ------------------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("group", GPU_GROUPS, ids=lambda group: group.label)
def test_every_class_of_sizes(model, group):
    with by(model, group.path):
        kernels = check_group(model, group, "cuda")
    if HAS_HOPPER and not model._PATH:
        assert kernels >= set(group.kernels), f"{group.label}: computed by {sorted(kernels)}, and not by all of {group.kernels}"


@needs_cuda
@pytest.mark.parametrize("group", FORCED_GROUPS, ids=lambda group: group.label)
def test_every_class_of_sizes_of_a_forced_kernel(model, group):
    (kernel,) = group.kernels
    if model._PATHS[kernel] != model._PATH:
        pytest.skip(f"this needs TRIL_MATMUL_PATH={kernel}")
    assert check_group(model, group, "cuda") == {kernel}


@pytest.mark.skipif(HAS_CUDA, reason="the same, and more, runs on the GPU")
@pytest.mark.parametrize("group", CPU_GROUPS, ids=lambda group: group.label)
def test_every_class_of_sizes_on_a_cpu(model, group):
    assert check_group(model, group, "cpu", ways=WAYS[1:3], times=2) == {"cpu"}


def test_every_kernel_has_a_group(model):
    """Of each kernel that the source names there are sizes, single ones, batches and dense ones."""
    names = set(model_kernels())
    for kind in (lambda g: not g.batches, lambda g: g.batches, lambda g: isinstance(g.shapes[0], tuple)):
        assert {kernel for group in (*GPU_GROUPS, *FORCED_GROUPS) if kind(group) for kernel in group.kernels} == names
    assert {(group.dtype, group.tf32) for group in GPU_GROUPS} == {*((d, False) for d in (*HALVES, SINGLE, DOUBLE)), (SINGLE, True)}


def model_kernels():
    """The names that explain has for kernels, from the CUDA source."""
    listed = re.findall(r"kKernelNames\[\] = \{(.*?)\}", "\n".join(cuda_sections().values()))
    assert len(listed) == 1, f"{SOURCE.name} has {len(listed)} lists kKernelNames"
    return re.findall(r'"(\w+)"', listed[0])


def test_a_tile_of_another_size_brings_its_own_sizes():
    assert sorted(classes(Cut(256, 64, 4))) == [1, 64, 65, 128, 129, 192, 193, 255, 256]
    assert sorted(classes(Cut(96, 32, 2))) == [1, 32, 33, 48, 49, 64, 65, 95, 96]
    assert {-(-N // 64) % 6 for N in sizes(Cut(256, 64, 6), 512)} == set(range(6))
    for place in range(3):  # each class once for each side
        assert sorted(shape[place] for shape in rectangles(Cut(256, 64, 4), 0, 0, 0)) == sorted(classes(Cut(256, 64, 4)))


PLANS = r"""
int main(int, char** arguments) {
  const Gpu gpu = {132, 9};   // an H200
  for (char** at = arguments + 1; *at; at += 5) {
    Product p = {};
    p.k = std::atoi(at[0]), p.m = std::atoi(at[1]), p.n = std::atoi(at[2]), p.batches = std::atoi(at[3]);
    const int masks = std::atoi(at[4]);
    p.x_range = KRange(masks & 1), p.y_range = KRange(masks >> 1 & 1), p.c_lower = masks >> 2 & 1, p.symmetric = masks >> 3;
    const ClusterTiles tiles = choose_sixteen_bit_tiles(p, gpu);
    std::printf("%d %d %d\n", tiles.splits, tiles.order.edge * kBlock, tiles.column_split_tiles > 0);
  }
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def plans(model, tmp_path_factory):
    """plans([(K, M, N, batch, masks), ...]): of each (CTAs that share the k of a tile, its edge, whether some are halved). masks: 1 for X,
    2 for Y, 4 for C, and 8 if it is symmetric."""
    run = host_program(
        tmp_path_factory.mktemp("plans"), "plans", [HOST_PRELUDE, model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, PLANS]
    )
    return lambda shapes: [tuple(map(int, line.split())) for line in run(*itertools.chain(*shapes)).splitlines()[:-1]]


LARGE = constant("_CUDA_SCHEDULE", "kTileEdge")
SMALL = LARGE // 2
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")


@needs_compiler
@pytest.mark.xdist_group("schedule")
def test_every_plan_of_half_precision_is_among_the_sizes(plans):
    """Tiles of which CTAs share k, two or four, or none; with and without halved ones: by the schedule's own code."""
    shapes = [(g, shape) for g in GPU_GROUPS if "half" in g.kernels and g.dtype == torch.float16 for shape in g.shapes]
    numbers = [
        (*((shape,) * 3 if isinstance(shape, int) else shape), math.prod(g.batches), 7 * isinstance(shape, int)) for g, shape in shapes
    ]
    found = {True: set(), False: set()}  # of triangles, and of dense products
    for (_, shape), plan in zip(shapes, plans(numbers), strict=True):
        found[isinstance(shape, int)].add(plan)
    both = {(1, edge, halved) for edge in (SMALL, LARGE) for halved in (0, 1)}
    assert found == {True: both, False: both | {(2, SMALL, 0), (4, SMALL, 0)}}


@needs_compiler
@pytest.mark.xdist_group("schedule")
def test_the_sanitizer_sees_every_plan_of_half_precision(plans):
    def lower(N, batch=1):
        return N, N, N, batch, 7

    def others(N, R, *batch):
        """Splits and edge of all that sanitize.others computes."""
        shapes = []
        for name in sanitize.OTHERS:
            (M, cols, K), of_each = sizes_for(MASKED[name][1], N, R), masks(MASKED[name][1])
            bits = sum(bool(mask) << at for at, mask in enumerate(of_each)) + 8 * (of_each[2] == SYMMETRIC)
            shapes.append((K, M, cols, *(batch or [1]), bits))
        return {name: plan[:2] for name, plan in zip(sanitize.OTHERS, plans(shapes), strict=True)}

    single = [lower(N) for N in (sanitize.HALF_SIZE, sanitize.HALF_LARGE)]
    batches = [lower(N, batch) for batch, N in (sanitize.HALF_MANY, *sanitize.HALF_BATCHES)]
    K, R, _ = sanitize.HALF_SHARED
    shared = [(*sanitize.HALF_LONG, 1, 0), (*sanitize.HALF_SHARED, 1, 0), (K, K, R, 1, 1), (K, R, K, 1, 2)]
    expected = [(1, SMALL, 1), (1, LARGE, 1), (1, SMALL, 0), (1, LARGE, 0), (1, LARGE, 0), (4, SMALL, 0), *[(2, SMALL, 0)] * 3]
    assert plans([*single, *batches, *shared]) == expected
    assert plans([(100, 100, 100, 1000, 1), (100, 100, 300, 1000, 1)]) == [(1, SMALL, 0), (1, LARGE, 0)], "one small tile in a large one"
    assert plans([(K, M, M, 1, 12) for M, K in sanitize.HALF_TWICE]) == [(1, SMALL, 0), (1, SMALL, 0), (1, LARGE, 0)]
    batch, N = sanitize.HALF_MANY
    assert batch * math.comb(-(-N // SMALL) + 1, 2) > 132, "each CTA has one tile"
    assert {*others(200, 150).values()} == {(1, SMALL)}
    assert others(*sanitize.HALF_OTHERS) == {name: (1, SMALL if name == "X X^T" else LARGE) for name in sanitize.OTHERS}

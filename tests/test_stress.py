"""Kernels whose warps are delayed at random compute the same bits: no result depends on which warp comes first.

In a second build of the CUDA source, every function of the PTX section that waits, arrives, copies or commits may sleep first. A hash of
the clock, the warp and the CTA decides. So each warp of each role is late at times, and a missing barrier shows.

The number of CTAs that share the k of a tile depends on how many clusters the GPU holds at once. That depends on registers, and a build
with delays needs more of them. So both builds count clusters in a way that does not depend on registers (TRIL_MATMUL_STRESS).
"""

import ast
import itertools
import re

import pytest
import torch
from helpers import (
    DENSE,
    LOWER,
    SOURCE,
    UPPER,
    WAYS,
    assert_bitwise,
    computed,
    cuda_sections,
    execute,
    hooked,
    laid_out,
    needs_cuda,
    poison,
    tf32_setting,
)

TIMES = 3

# ---- The delayed build. ----------------------------------------------------------------------------------------------


ALIKE = "#define TRIL_MATMUL_STRESS\n"  # clusters are counted in the same way with delays and without
DELAY = """
#define TRIL_MATMUL_DELAY
#if defined(__CUDACC__)
__device__ inline void stress_delay() {
  const uint32_t random = (uint32_t(clock64()) ^ (threadIdx.x / 32 * 7919 + blockIdx.x * 104729)) * 2654435761u >> 20;
  if (random % 8 == 0) __nanosleep(random);
}
#endif
"""
# Functions of cuda::ptx that kernels call directly, and that synchronize threads.
CALLED = ("cp_async_bulk_tensor", "mbarrier_try_wait_parity")
# Instructions that synchronize threads with each other, with the copy engine or with the tensor cores.
TELLING = (
    r"mbarrier[._](arrive|try_wait)|cp[._]async|st\.async|bar\.(sync|red)|barrier\.cluster|wait_group"
    r"|const volatile|griddepcontrol\.wait|wgmma\.(fence|commit_group)"
)
WRAPPER = re.compile(r"^(DEVICE [^\n;{]*?\b(\w+)\([^{;]*\) \{)(.*?\}$)", re.MULTILINE | re.DOTALL)


def delayed_ptx(section):
    """The PTX section with delays, and the names of the functions that have them."""
    late = []

    def delay(found):
        begin, name, rest = found.groups()
        if not re.search(TELLING, rest):
            return found[0]
        late.append(name)
        return f"{begin} stress_delay();{rest}"

    return WRAPPER.sub(delay, section), late


def source_of(text, delays):
    """The text of model_new.py up to its extension module, with delays or without. A process may define the operator only once."""
    if delays:
        section = cuda_sections()["_CUDA_PTX"]
        assert text.count(section) == 1
        text = re.sub(rf"(!?ptx::({'|'.join(CALLED)})\()", r"stress_delay(), \1", text).replace(section, delayed_ptx(section)[0])
    text = hooked(text, ALIKE + DELAY * delays)
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    ends = [node.end_lineno for node in assigned if ast.unparse(node.targets[0]) == "_EXTENSION"]
    assert len(ends) == 1, f"{SOURCE.name} assigns _EXTENSION {len(ends)} times"
    return "\n".join(text.splitlines()[: ends[0]]) + "\n"


@pytest.fixture(scope="module")
def builds():
    """The extension modules without delays and with delays. Each takes 30 s to build on 16 cores, once."""
    return [execute(source_of(SOURCE.read_text(), delays))["_EXTENSION"] for delays in (False, True)]


# ---- Products in both builds. ----------------------------------------------------------------------------------------


def plain(A, B, G):
    pass


def outliers(A, B, G):
    """float32: makes some blocks wide, and some elements too small for a pair of float16."""
    for V in (A, B, G):
        V[..., -3, 1] = 1e-6
        V[..., -2, 0] = V[..., -1, 3] = 1e-10


def decades(A, B, G):
    """float32: makes operands that pairs of float16 cannot represent."""
    A.mul_(torch.logspace(-8, 8, A.shape[-1], device=A.device, dtype=A.dtype))


def infinity(A, B, G):
    """Makes sums that are not finite, which are computed again."""
    A[..., -1, 2] = G[..., -2, 1] = torch.inf


HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
CASES = [  # (dtype, N or (K, M, N), batch, what changes the operands, whether TF32 is allowed)
    *((HALF, N, (), plain, False) for N in (3585, 4097, 6145, 3600, 2305, 1857, 1300)),
    *((HALF, N, (b,), plain, False) for b, N in ((4, 2049), (16, 800), (256, 300))),
    *((HALF, shape, (), plain, False) for shape in ((200, 1700, 2100), (70, 2600, 3100), (4200, 640, 700), (1100, 900, 800))),
    (HALF, 3585, (), infinity, False),
    (HALF, 1300, (), infinity, False),
    *((SINGLE, N, (), plain, False) for N in (1281, 2050, 3137)),
    (SINGLE, 1300, (3,), outliers, False),
    *((SINGLE, 1500, (), kind, False) for kind in (outliers, decades, infinity)),
    (SINGLE, (700, 1300, 1450), (), outliers, False),
    *((SINGLE, 2050, (), kind, True) for kind in (plain, outliers)),
    *((SINGLE, N, (), plain, False) for N in (500, 1001, 300)),
    (SINGLE, 1000, (), infinity, False),
    (SINGLE, 257, (40,), plain, False),
    (SINGLE, (3000, 200, 260), (), plain, False),
    *((HALF, N, (), plain, False) for N in (200, 700, 1030)),
    *((HALF, shape, (), plain, False) for shape in ((4100, 130, 70), (250, 700, 900))),
    (HALF, 700, (), infinity, False),
    *((DOUBLE, N, (), kind, False) for N in (300, 900) for kind in (plain, infinity)),
]


def label(case):
    dtype, shape, batch, kind, tf32 = case
    sides = "x".join(map(str, (*batch, shape) if isinstance(shape, int) else (*batch, *shape)))
    return f"{str(dtype).removeprefix('torch.')}{'-TF32' * tf32}-{sides}-{kind.__name__}"


def find_operands(case):
    dtype, shape, batch, kind, _ = case
    K, M, N = (shape,) * 3 if isinstance(shape, int) else shape
    generator = torch.Generator("cuda").manual_seed(K + M + N)
    made = [torch.rand(*batch, *sides, generator=generator, device="cuda").sub_(0.5).to(dtype) for sides in ((K, M), (K, N), (M, N))]
    kind(*made)
    return made


@needs_cuda
@pytest.mark.xdist_group("stress")
@pytest.mark.parametrize("case", CASES, ids=label)
def test_delays_change_no_bit(model, builds, monkeypatch, case):
    assert len({each.__name__ for each in (*builds, model._EXTENSION)}) == 3, "the delayed build is the ordinary one"
    operands, triangles = find_operands(case), isinstance(case[1], int)
    problems = [(model.tril_matmul, LOWER), (model.triu_matmul, UPPER)] if triangles else [(model.transposed_a_matmul, DENSE)]
    with tf32_setting(case[4]):
        for (function, structure), way in itertools.product(problems, WAYS[:4]):
            laid = [laid_out(poison(V, structure), by, way.padded) for V, by in zip(operands, way.by_columns, strict=True)]
            with monkeypatch.context() as patch:
                patch.setattr(model, "_EXTENSION", builds[0])
                ordinary = computed(function, *laid, 1)
                patch.setattr(model, "_EXTENSION", builds[1])
                late = computed(function, *laid, TIMES)
            for name, results in late.items():
                for number, result in enumerate(results, 1):
                    assert_bitwise(result, ordinary[name][0], f"{function.__name__}, {way}, {name}, delayed call {number}")


# ---- The places of the delays. ---------------------------------------------------------------------------------------


def test_every_function_that_synchronizes_is_delayed():
    section = cuda_sections()["_CUDA_PTX"]
    text, late = delayed_ptx(section)
    assert len(late + [*CALLED]) >= 20 and len(late) == len(set(late)), f"only {sorted(late)} were found"
    told = re.sub(r"//.*", "", section)
    assert len(re.findall(rf"^[^\n]*({TELLING})", told, re.MULTILINE)) >= len(late) == text.count("stress_delay();")
    others = "\n".join(text for name, text in cuda_sections().items() if name != "_CUDA_PTX")
    others = re.sub(r"#if defined\(TRIL_MATMUL_RACECHECK\).*?#else", "", others, flags=re.DOTALL)  # which is not compiled here
    silent = {"fence_proxy_async", "mbarrier_init", "get_sreg_clusterid_x"}  # these do not synchronize threads
    assert set(re.findall(r"ptx::(\w+)\(", others)) == {*CALLED, *silent}


def test_the_delayed_source_has_the_extension_and_no_operator():
    for delays in (False, True):
        room = execute(source_of(SOURCE.read_text(), delays))
        assert ALIKE in room["_CUDA_TYPES"] and (DELAY in room["_CUDA_TYPES"]) == delays
        assert "_EXTENSION" in room and "tril_matmul" not in room
        changed = {name for name in cuda_sections() if cuda_sections()[name] != room[name]}
        assert changed == {"_CUDA_TYPES", *["_CUDA_PTX", "_CUDA_SIXTEEN_BIT"] * delays}

"""The mma kernel without a GPU; see emulation.py."""

import emulation
import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, MASKED, NN, NT, TN, UPPER, constant, every_mask, host_program, sizes_for

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("mma emulated")]

MAIN = r"""
template <typename T>
int run_type(char** arguments) {
  const int at_once = std::atoi(arguments[14]);
  return run_product<T>(arguments, [&](const Product& p) {
    const bool x_k_major = p.x_col == 1, y_k_major = p.y_row == 1;
    const SplitPlan plan = choose_split_plan(p, kMmaBlockK<T>, at_once, at_once / mma_ctas_per_sm<T>(900));
    auto memory = []() -> MmaMemory<T>& { return *reinterpret_cast<MmaMemory<T>*>(current->block->memory); };
    int cluster_of;
    constexpr bool kUnit = sizeof(T) == 4 ? kAnyStrides : kUnitStrides;   // float32 as the fallback computes it
    body = [&] {
      auto compute = x_k_major ? (y_k_major ? mma_compute<T, true, true, kUnit> : mma_compute<T, true, false, kUnit>)
                               : (y_k_major ? mma_compute<T, false, true, kUnit> : mma_compute<T, false, false, kUnit>);
      compute(p, plan, cluster_of, memory());
    };
    for (cluster_of = 0; cluster_of < plan.clusters * p.batches; ++cluster_of)
      run_cluster<MmaMemory<T>>(cluster_of, plan.cluster_size, kTileThreads, [](MmaMemory<T>& memory) {
        memory.sums_arrived = 0;   // there is no barrier yet
      });
    if (sizeof(T) == 4 && std::atoi(arguments[12]) == 4 && !votes) fail("an Inf, and no sum is made again");
  });
}

int main(int, char** arguments) {
  const int type = std::atoi(arguments[13]);
  if (type == kFloat32) return run_type<float>(arguments);
#ifndef BEFORE_HOPPER   // there is float32 alone
  if (type == kFloat64) return run_type<double>(arguments);
  return type == kFloat16 ? run_type<__half>(arguments) : run_type<__nv_bfloat16>(arguments);
#endif
}
"""

FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = range(4)
TYPES = pytest.mark.parametrize("dtype", range(4), ids=["float32", "float64", "float16", "bfloat16"])


def built(model, folder, definitions=""):
    """The program, behind these definitions."""
    parts = [definitions, emulation.PRELUDE, model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER]
    parts += [emulation.on_host(model._CUDA_EXACT), model._CUDA_TILES, emulation.on_host(model._CUDA_MMA)]
    return host_program(folder, "mma_kernel", [*parts, emulation.PRODUCT, MAIN])


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(dtype, contraction, structure, sizes, ...): fails with what the program found wrong."""
    program = built(model, tmp_path_factory.mktemp("mma"))

    def run(dtype, contraction, structure, sizes, *, batches=1, at_once=0, late=0, x_by_rows=1, y_by_rows=1, kind=0, c_pad=0, pad=None):
        if pad is None:  # so that rows are multiples of 16 bytes, and are copied in chunks
            pad = -sizes[0] % 8 if len(set(sizes)) == 1 else 0
        program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pad, c_pad, kind, dtype, at_once)

    return run


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_products_of_any_size_and_layout_are_right(run, dtype, contraction, structure):
    layouts = [(1, 1), (0, 0)] if (contraction + structure + dtype) % 2 else [(1, 0), (0, 1)]
    for (N, late), (x_by_rows, y_by_rows) in zip(((70, 0), (132, 1)), layouts, strict=True):
        run(dtype, contraction, structure, (N, N, N), late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows, c_pad=N % 3)


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_any_strides_are_read(run, dtype, contraction, structure):
    """Rows that are not aligned and, for the fallback, operands without neighbours are copied element by element."""
    layouts = [(3, 0), (2, 3)] if (contraction + structure + dtype) % 2 else [(1, 2), (3, 1)]
    for N, late, (x_by_rows, y_by_rows) in zip((66, 131), (1, 0), layouts, strict=True):
        if dtype != FLOAT32:  # other dtypes have operands without neighbours copied first
            x_by_rows, y_by_rows = x_by_rows % 2, y_by_rows % 2
        run(dtype, contraction, structure, (N, N, N), late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows, pad=1)


@TYPES
@pytest.mark.parametrize("at_once", [3, 92])
def test_ctas_of_a_cluster_share_the_k_of_a_tile(run, dtype, at_once):
    """All CTAs of a cluster share a tile, or half of them do, or each has its own, also if not all clusters run at once."""
    block_k = constant("_CUDA_MMA", "kMmaBlockK", **{"sizeof(T)": {FLOAT32: 4, FLOAT64: 8}.get(dtype, 2)})
    N = 5 * block_k + 8
    for contraction, structure, sizes in ((NN, LOWER, (N, N, N)), (NT, UPPER, (N, N, N)), (TN, DENSE, (72, 136, 7 * block_k + 8))):
        run(dtype, contraction, structure, sizes, at_once=at_once, late=1)


@pytest.mark.parametrize("name", ["L L^T", "L^T L"])
def test_mirrored_tiles_have_as_many_splits(run, name):
    """A tile and its mirror image have the same bits, also where another tile has more splits."""
    run(FLOAT16, *MASKED[name], (448,) * 3, kind=10, at_once=18)


def test_bits_that_tensor_cores_cut_off_stay_within_the_contract(model, run, tmp_path):
    """The worst operands that were found. Before Hopper tensor cores cut off twice as often, and one bit earlier."""
    before = built(model, tmp_path, "#define BEFORE_HOPPER")
    for sizes in ((1, 1, 16), (64, 64, 640)):
        run(FLOAT32, NT, DENSE, sizes, kind=9)
        before(NT, DENSE, *sizes, 1, 0, 1, 1, 0, 0, 9, FLOAT32, 0)


@TYPES
def test_batches_are_right(run, dtype):
    for N, contraction, structure in ((33, NN, LOWER), (72, NT, UPPER), (65, TN, DENSE)):
        run(dtype, contraction, structure, (N, N, N), batches=3, late=1)


@TYPES
@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_rectangular_products_are_right(run, dtype, contraction):
    for late, sizes in enumerate(((72, 136, 200), (200, 64, 8))):
        run(dtype, contraction, DENSE, sizes, late=late)


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_long_sums_of_one_sign_stay_within_the_bound(run, contraction):
    """A single total would exceed the bound, since it is rounded at every 16 k. The last k-block ends a chain in one case."""
    for at_once, k in ((0, 4096), (92, 4000)):
        run(FLOAT32, contraction, DENSE, (64, 64, k), kind=5, at_once=at_once)


@pytest.mark.parametrize("kind", [1, 2, 3, 4], ids=["large", "large and small", "denormals", "infinity"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_float32_sums_beyond_tf32_are_summed_again(run, contraction, structure, kind):
    run(FLOAT32, contraction, structure, (80, 80, 80), kind=kind, late=1)


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT16, BFLOAT16], ids=["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_infinity_stays_where_the_sum_has_it(run, dtype, contraction, structure):
    run(dtype, contraction, structure, (72, 72, 72), kind=4)


@every_mask
def test_every_mask_is_applied(run, contraction, structure):
    """For every dtype: an edge that no block divides, copies by chunks and by elements, splits, a batch, and an Inf."""
    for dtype in range(4):
        edge, late = constant("_CUDA_SCHEDULE", "kBlock"), dtype % 2
        sizes = sizes_for(structure, edge + 8, 8 * (1 + late))
        run(dtype, contraction, structure, sizes, batches=1 + late, late=late, x_by_rows=late, y_by_rows=dtype // 2, pad=0, c_pad=late)
        run(dtype, contraction, structure, sizes_for(structure, edge + 1, 3), at_once=92, late=1 - late, pad=1)
        run(dtype, contraction, structure, sizes_for(structure, edge + 8, 4 * edge), at_once=92, kind=4, pad=0)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=["float32", "float16"])
@every_mask
def test_elements_outside_a_mask_are_not_read(run, dtype, contraction, structure):
    """They are finite here: the exact path would repair the sums if they were NaN."""
    for late, size in ((0, 200), (1, 70)):
        run(dtype, contraction, structure, sizes_for(structure, size, 72), late=late, kind=7, pad=-size % 8)

"""The exact path without a GPU; see emulation.py. It sums again what is not finite, and is the referee of the other kernels."""

import emulation
import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, NN, NT, TN, UPPER, constant, every_mask, host_program, sizes_for
from test_outliers_emulated import cut

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("exact emulated")]

MEMORY = "__shared__ ExactMemory memory;"
KERNEL = "struct {\n  int x;\n} blockIdx;\n"

MAIN = r"""
template <typename T>
int run_type(char** arguments) {
  return run_product<T>(arguments, [&](const Product& p) {
    body = [&] { exact_product<T>(p); };
    for (blockIdx.x = 0; blockIdx.x < tile_count(p, kBlock) * p.batches; ++blockIdx.x)
      run_cluster<ExactMemory>(blockIdx.x, 1, kExactThreads);
  });
}

int main(int, char** arguments) {
  const int type = std::atoi(arguments[13]);
  if (type == kFloat32) return run_type<float>(arguments);
  if (type == kFloat64) return run_type<double>(arguments);
  return type == kFloat16 ? run_type<__half>(arguments) : run_type<__nv_bfloat16>(arguments);
}
"""

TYPES = pytest.mark.parametrize("dtype", range(4), ids=["float32", "float64", "float16", "bfloat16"])


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(dtype, contraction, structure, sizes, ...): fails with what the program found wrong."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_ELEMENTS]
    kernel = cut(model._CUDA_EXACT, "// A CTA a tile, and the zeros opposite.", "void launch_exact(")
    assert kernel.count(MEMORY) == 1
    kernel = KERNEL + kernel.replace(MEMORY, "auto& memory = *reinterpret_cast<ExactMemory*>(current->block->memory);")
    parts = [emulation.PRELUDE, *source, emulation.device(model._CUDA_EXACT), kernel, emulation.PRODUCT, MAIN]
    program = host_program(tmp_path_factory.mktemp("exact"), "exact_kernel", parts, optimise="-Og")

    def run(dtype, contraction, structure, sizes, *, batches=1, late=0, x_by_rows=1, y_by_rows=1, pad=0, kind=0, c_pad=0):
        program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pad, c_pad, kind, dtype)

    return run


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_sizes_and_layouts(run, dtype, contraction, structure):
    late = (contraction + structure + dtype) % 2
    for N, by_rows, pad in ((1, (1, 1), 0), (71, (1, 1), 1), (132, (late, 1 - late), 0)):
        x_by_rows, y_by_rows = by_rows
        run(dtype, contraction, structure, (N, N, N), late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows, pad=pad, c_pad=pad)


@TYPES
def test_batches(run, dtype):
    for contraction, structure in ((NN, LOWER), (NT, UPPER), (TN, DENSE)):
        run(dtype, contraction, structure, (70, 70, 70), batches=2, late=1)


@TYPES
def test_rectangles(run, dtype):
    for contraction, sizes in ((NN, (65, 130, 40)), (NT, (7, 64, 200)), (TN, (130, 3, 0))):
        run(dtype, contraction, DENSE, sizes)


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_infinity_stays_where_the_sum_has_it(run, dtype, contraction, structure):
    for N in (70, 129):
        run(dtype, contraction, structure, (N, N, N), kind=4)


BLOCK = constant("_CUDA_SCHEDULE", "kBlock")


@every_mask
def test_every_mask(run, contraction, structure):
    """Every dtype at one size, operands by rows and by columns, C padded and not; and Inf, which is summed in no other place."""
    for dtype in range(4):
        late = dtype % 2
        sizes = sizes_for(structure, 2 * BLOCK + 1 + dtype, BLOCK - 1 + late)
        run(dtype, contraction, structure, sizes, batches=1 + late, late=late, x_by_rows=late, y_by_rows=dtype // 2, pad=late, c_pad=late)
        run(dtype, contraction, structure, sizes_for(structure, BLOCK + 1, 1), kind=4)

"""The portable kernel without a GPU; see emulation.py. It is the referee of the others, and computes on every GPU but Hopper."""

import emulation
import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, NN, NT, TN, UPPER, host_program

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("portable emulated")]

MAIN = r"""
template <typename T, int kEdge>
struct PortableMemory {
  PortableWorkTile work;
  alignas(16) unsigned char stages[Portable<T, kEdge>::kSharedBytes];
};

template <typename T, int kEdge>
int run_edge(char** arguments) {
  const int splits = std::atoi(arguments[15]);
  return run_product<T>(arguments, [&](const Product& p) {
    int cluster_of;
    body = [&] {
      auto& memory = *reinterpret_cast<PortableMemory<T, kEdge>*>(current->block->memory);
      if (current->x == 0) memory.work = work_tile_of<T, kEdge>(p, cluster_of, current->block->rank);
      __syncthreads();
      compute_tile<T, kEdge>(p, splits, memory.work, reinterpret_cast<typename Portable<T, kEdge>::Acc*>(memory.stages));
    };
    for (cluster_of = 0; cluster_of < tile_count(p, kEdge) * p.batches; ++cluster_of)
      run_cluster<PortableMemory<T, kEdge>>(cluster_of, splits, Portable<T, kEdge>::kThreads);
  });
}

template <typename T>
int run_type(char** arguments) {
  const int edge = std::atoi(arguments[14]);
  if constexpr (sizeof(T) >= 4)
    if (edge == 128) return run_edge<T, 128>(arguments);
  return edge == 64 ? run_edge<T, 64>(arguments) : run_edge<T, 32>(arguments);
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
    """run(dtype, edge, contraction, structure, sizes, ...): fails with what the program found wrong."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_EPILOGUE, model._CUDA_ELEMENTS, model._CUDA_PORTABLE]
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, MAIN]
    program = host_program(tmp_path_factory.mktemp("portable"), "portable_kernel", parts, optimise="-Og")

    def run(dtype, edge, contraction, structure, sizes, *, batches=1, splits=1, late=0, x_by_rows=1, y_by_rows=1, pad=0, kind=0, c_pad=0):
        program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pad, c_pad, kind, dtype, edge, splits)

    return run


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_sizes_and_layouts(run, dtype, contraction, structure):
    late = (contraction + structure + dtype) % 2
    for edge, N, by_rows, pad in ((32, 71, (1, 1), 1), (64, 127, (late, 1 - late), 0)):
        x_by_rows, y_by_rows = by_rows
        run(dtype, edge, contraction, structure, (N, N, N), late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows, pad=pad, c_pad=pad)


@pytest.mark.parametrize("dtype", [0, 1], ids=["float32", "float64"])
@pytest.mark.parametrize(("contraction", "structure"), [(NN, LOWER), (NT, UPPER), (TN, DENSE)])
def test_large_tiles(run, dtype, contraction, structure):
    run(dtype, 128, contraction, structure, (140, 140, 140), late=1, x_by_rows=0)


@TYPES
def test_splits_and_batches(run, dtype):
    for contraction, structure in ((NN, LOWER), (NT, UPPER), (TN, DENSE)):
        run(dtype, 32, contraction, structure, (70, 70, 70), splits=3, batches=2, late=1)


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), [(NN, LOWER), (NT, LOWER), (TN, UPPER)])
def test_infinity_stays_where_the_sum_has_it(run, dtype, contraction, structure):
    run(dtype, 32, contraction, structure, (70, 70, 70), kind=4)

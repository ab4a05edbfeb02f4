"""The exact path without a GPU; see emulation.py. It recomputes sums that are not finite, and is the referee of the other kernels."""

import emulation
import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, NN, NT, TN, UPPER, constant, every_mask, host_program, sizes_for

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("exact emulated")]

MAIN = r"""
template <typename T>
int run_type(char** arguments) {
  return run_product<T>(arguments, [&](const Product& p) {
    body = [&] { exact_product<T>(p); };
    for (int block = 0; block < TileOrder::make(p, kBlock).count() * p.batches; ++block) run_cluster<Nothing>(block, 1, kExactThreads);
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
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER, emulation.on_host(model._CUDA_EXACT)]
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, MAIN]
    program = host_program(tmp_path_factory.mktemp("exact"), "exact_kernel", parts)

    def run(dtype, contraction, structure, sizes, *, batches=1, late=0, x_by_rows=1, y_by_rows=1, pad=0, kind=0, c_pad=0):
        program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pad, c_pad, kind, dtype)

    return run


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_products_of_any_size_and_layout_are_right(run, dtype, contraction, structure):
    late = (contraction + structure + dtype) % 2
    for N, by_rows, pad in ((1, (1, 1), 0), (71, (1, 1), 1), (132, (late + 2, 3 - late), 0)):
        x_by_rows, y_by_rows = by_rows
        run(dtype, contraction, structure, (N, N, N), late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows, pad=pad, c_pad=pad)


@TYPES
def test_batches_are_right(run, dtype):
    for contraction, structure in ((NN, LOWER), (NT, UPPER), (TN, DENSE)):
        run(dtype, contraction, structure, (70, 70, 70), batches=2, late=1)


@TYPES
def test_rectangular_products_are_right(run, dtype):
    for contraction, sizes in ((NN, (65, 130, 40)), (NT, (7, 64, 200)), (TN, (130, 3, 0))):
        run(dtype, contraction, DENSE, sizes)


@TYPES
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_infinity_stays_where_the_sum_has_it(run, dtype, contraction, structure):
    for N, kind in ((70, 4), (129, 4), (129, 8)):
        for late in (0, 1):  # an Inf in X; in Y
            run(dtype, contraction, structure, (N, N, N), kind=kind, late=late)


BLOCK = constant("_CUDA_SCHEDULE", "kBlock")


@every_mask
def test_every_mask_is_applied(run, contraction, structure):
    """For every dtype, with operands by rows and by columns, and with C padded or not. An Inf reaches only the sums that have it."""
    for dtype in range(4):
        late = dtype % 2
        sizes = sizes_for(structure, 2 * BLOCK + 1 + dtype, BLOCK - 1 + late)
        run(dtype, contraction, structure, sizes, batches=1 + late, late=late, x_by_rows=late, y_by_rows=dtype // 2, pad=late, c_pad=late)
        run(dtype, contraction, structure, sizes_for(structure, BLOCK + 1, 1), kind=4)


# ---- Inverses. -------------------------------------------------------------------------------------------------------

INVERSE_MAIN = r"""
// Compares with substitution in long double. L has NaN above the diagonal and, if it is unitriangular, on the diagonal.
template <typename T>
int run_inverse(int n, int batches, bool by_rows, bool unit, int kind) {
  const int size = n * n;
  const auto at = [&](int i, int j) { return by_rows ? i * n + j : j * n + i; };
  std::vector<T> l(batches * size, T(NAN)), c(batches * size, T(NAN));
  for (int batch = 0; batch < batches; ++batch) {
    T* const L = l.data() + batch * size;
    std::vector<long double> factor(size);   // the Cholesky factor of a smooth kernel's matrix, which is nearly singular
    for (int i = 0; i < n; ++i)
      for (int j = 0; j <= i; ++j) {
        long double sum = std::exp(-25.0L * (i - j) * (i - j) / (n * n)) + 1e-8L * (i == j);
        for (int k = 0; k < j; ++k) sum -= factor[i * n + k] * factor[j * n + k];
        factor[i * n + j] = i == j ? std::sqrt(sum) : sum / factor[j * n + j];
        if (i > j || !unit) L[at(i, j)] = T(factor[i * n + j] / (unit ? factor[j * n + j] : 1));
      }
    if (kind == 1) L[at(n - 1, 0)] = T(INFINITY);
    if (kind == 2) L[at(n / 2, n / 2)] = 0;
  }
  Product p = {};
  p.x = l.data(), p.c = c.data(), p.m = p.n = p.k = n, p.c_row = n, p.c_col = 1, p.x_row = at(1, 0), p.x_col = at(0, 1);
  p.batches = p.batch_size[0] = batches, p.batch_dims = 1, p.x_batch[0] = p.c_batch = size;
  for (int first = 0; first < n; first += kBlock) {
    const int rows = std::min(kBlock, n - first);
    std::vector<T> before(batches * rows * first);
    for (int u = 0; u < int(before.size()); ++u) {
      const int batch = u / first / rows, i = first + u / first % rows, j = u % first;
      long double sum = 0;
      for (int k = j; k < first; ++k) sum += (long double)(l[batch * size + at(i, k)]) * c[batch * size + k * n + j];
      before[u] = T(sum);
    }
    body = [&] { invert_rows<T>(p, first / kBlock, before.data(), unit); };
    for (int block = 0; block < (first / kBlock + 1) * batches; ++block) run_cluster<Nothing>(block, 1, kBlock);
  }
  Comparison comparison;
  for (int batch = 0; batch < batches; ++batch) {
    const T* const L = l.data() + batch * size;
    const auto of_l = [&](int i, int k) { return unit && i == k ? 1.0L : (long double)(L[at(i, k)]); };
    std::vector<long double> exact(size), off(size);
    for (int j = 0; j < n; ++j)
      for (int i = j; i < n; ++i) {
        long double sum = i == j;
        for (int k = j; k < i; ++k) sum -= of_l(i, k) * exact[k * n + j], off[i * n + j] += std::abs(of_l(i, k) * exact[k * n + j]);
        exact[i * n + j] = sum / of_l(i, i), off[i * n + j] += std::abs(of_l(i, i) * exact[i * n + j]);
      }
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) {
        long double bound = 0;   // |X| |L| |X|, to which the error of substitution is proportional
        for (int k = j; k <= i; ++k) bound += std::abs(exact[i * n + k]) * off[k * n + j];
        const T found = c[batch * size + i * n + j];
        const long double wanted = exact[i * n + j], most = bound * (sizeof(T) == 4 ? 1e-6L : 2e-15L);
        if (!std::isfinite(wanted)) {
          if (std::isfinite(found)) fail("a finite element where substitution finds none");
        } else if (std::isfinite(bound)) {   // else any element is allowed; above the diagonal the bound is 0
          comparison.add(batch, i, j, found, wanted, most);
        }
      }
  }
  if (comparison.failed()) return 1;
  std::puts("all holds");
  return 0;
}

int main(int, char** arguments) {
  int number[6];
  for (int u = 0; u < 6; ++u) number[u] = std::atoi(arguments[u + 1]);
  return number[5] == kFloat64 ? run_inverse<double>(number[0], number[1], number[2], number[3], number[4])
                               : run_inverse<float>(number[0], number[1], number[2], number[3], number[4]);
}
"""


@pytest.fixture(scope="module")
def run_inverse(model, tmp_path_factory):
    """run(N, batches, by rows, unitriangular, kind, dtype). Kinds of L: 0 ill-conditioned, 1 with an Inf, 2 singular."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER, emulation.on_host(model._CUDA_INVERSE)]
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, INVERSE_MAIN]
    return host_program(tmp_path_factory.mktemp("inverse"), "inverse", parts, optimise="-Og")


@pytest.mark.parametrize("kind", range(3), ids=["ill-conditioned", "infinite", "singular"])
@pytest.mark.parametrize("dtype", range(2), ids=["float32", "float64"])
def test_inverses_are_as_exact_as_substitution(run_inverse, dtype, kind):
    for N, batches, by_rows, unit in ((1, 2, 1, 0), (64, 1, 1, 1), (65, 2, 0, 0), (130, 1, 1, 0), (130, 2, 0, 1), (192, 1, 0, 0)):
        if not (kind == 2 and unit):
            run_inverse(N, batches, by_rows, unit, kind, dtype)

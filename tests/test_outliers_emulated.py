"""Corrections without a GPU; see emulation.py. The terms of outliers are summed apart and added to C once. A promotion undoes the powers of
two of small sums last."""

import emulation
import pytest
from helpers import COMPILER, host_program, marked

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("outliers emulated")]


# ---- Outliers. -------------------------------------------------------------------------------------------------------

# C begins as the product kernel leaves it: the sums of what the packed blocks hold, in float32. After the correction it meets the contract.
OUTLIERS_MAIN = r"""
struct PackedOperand {
  Packed packed;
  std::vector<uint8_t> blocks;
  std::vector<BlockMetadata> metadata;
  std::vector<uint32_t> by_row, by_col;
  double held(int row, int col) const {   // of an element, hi and lo
    const int64_t number = block_index(packed, row / kBlock, col / kBlock);
    double pair = 0;
    for (int lo = 0; lo < 2; ++lo) {
      __half part;
      std::memcpy(&part, &blocks[number * block_bytes(false) + lo * kOperandBytes + swizzled(row % kBlock, col % kBlock)], 2);
      pair += static_cast<double>(__half2float(part)) * (lo ? metadata[number].head.residual : 1.0f);
    }
    return pair * metadata[number].head.unscale;
  }
};

int main(int, char** arguments) {
  const Contraction contraction = static_cast<Contraction>(std::atoi(arguments[1]));
  const int n = std::atoi(arguments[2]), kind = std::atoi(arguments[3]);
  const int blocks = ceil_div(n, kBlock), count = static_cast<int>(triangle(blocks));
  uint64_t state = 1;
  auto uniform = [&] { return static_cast<float>((state = state * 6364136223846793005ull + 1442695040888963407ull) >> 40) * 0x1p-24f; };
  Control control = {};
  unsigned long long progress = 0;
  std::vector<Matrix<float>> matrix;
  for (int which = 0; which < 2; ++which) matrix.emplace_back(n, n, true, 1, 1);
  for (int which = 0; which < 2; ++which)
    for (int row = 0; row < n; ++row)
      for (int col = 0; col <= row; ++col) {
        float v = 0.5f + uniform();
        // Many outliers in one line, that of most k; their terms are each less than half a last bit of the sum of the others
        const bool lines_are_rows = which == 0 ? contraction != kTN : contraction == kNT;
        const int line = lines_are_rows ? row : col, k = lines_are_rows ? col : row;
        if (k % 5 == 0 && kind != 1 - which && line == (lines_are_rows ? n - 3 : 5)) v *= 0x1p-31f;
        if (k % 5 && kind == 3 && line == (lines_are_rows ? n - 3 : 5)) v = 0.0f;   // outliers meet outliers, and nothing else
        if (k % 5 == 0 && kind == 1 - which) v *= 0x1p14f;
        matrix[which].at(0, row, col) = v;
      }
  PackedOperand operands[2];
  Product p = {};
  for (int which = 0; which < 2; ++which) {
    PackedOperand& o = operands[which];
    o.blocks.assign(count * block_bytes(false), 0xFF), o.metadata.resize(count);
    o.by_row.resize(blocks * mask_words(blocks)), o.by_col.resize(blocks * mask_words(blocks));
    Matrix<float>& m = matrix[which];
    o.packed = {m.begin(), m.row_stride(), m.col_stride(), n, n, 1, blocks, 1, count, o.blocks.data(), o.metadata.data(), o.by_row.data(),
                o.by_col.data()};
    Fp16x3Product packing = {};
    packing.p.batches = 1, packing.x_blocks = count, packing.controls = &control, packing.progress = &progress;
    packing.words = which == 0 ? 2 : 0, packing.launch = 8;   // both count in one
    packing.p.m = 1 << 23, packing.x = o.packed;
    body = [&] { pack_blocks(packing); };
    for (int block = 0; block < count; ++block) run_cluster<Nothing>(block, 1, kPackers);
  }
  if (control.fallback || control.outliers < n / 8) fail("there are not the outliers that the test is about");
  Matrix<float> c(n, n, true, 0, 1);
  p.m = p.n = p.k = n, p.c_lower = 1, p.batches = 1;
  p.x_range = contraction == kTN ? KRange::kFromDiagonal : KRange::kToDiagonal;
  p.y_range = contraction == kNT ? KRange::kToDiagonal : KRange::kFromDiagonal;
  p.x = matrix[0].begin(), p.x_row = matrix[0].row_stride(), p.x_col = matrix[0].col_stride();
  p.y = matrix[1].begin(), p.y_row = matrix[1].row_stride(), p.y_col = matrix[1].col_stride();
  if (contraction == kTN) std::swap(p.x_row, p.x_col);
  if (contraction == kNT) std::swap(p.y_row, p.y_col);
  p.c = c.begin(), p.c_row = c.row_stride(), p.c_col = c.col_stride();
  std::vector<double> exact(n * n), magnitude(n * n);
  for (int row = 0; row < n; ++row)
    for (int col = 0; col < n; ++col) {
      double sum = 0;
      for (int k = 0; k < n; ++k) {
        if (col > row || !is_in_range(p.x_range, row, k) || !is_in_range(p.y_range, col, k)) continue;
        const int xr = contraction == kTN ? k : row, xc = contraction == kTN ? row : k, yr = contraction == kNT ? col : k,
                  yc = contraction == kNT ? k : col;
        const double term = static_cast<double>(matrix[0].at(0, xr, xc)) * matrix[1].at(0, yr, yc);
        exact[row * n + col] += term, magnitude[row * n + col] += std::fabs(term);
        sum += operands[0].held(xr, xc) * operands[1].held(yr, yc);
      }
      c.at(0, row, col) = static_cast<float>(sum);
    }
  Fp16x3Product h = {p, operands[0].packed, operands[1].packed};
  struct Memory {
    Corrections corrections;
  };
  for (int i = 0; i < blocks; ++i)
    for (int j = 0; j <= i; ++j) {
      body = [&] {
        correct_tile(h, 0, TileOrder::make(p, kBlock).make_tile(i, j), reinterpret_cast<Memory*>(current->block->memory)->corrections);
      };
      run_cluster<Memory>(0, 1, kTileThreads);
    }
  Comparison comparison;
  for (int e = 0; e < n * n; ++e) comparison.add(0, e / n, e % n, c.at(0, e / n, e % n), exact[e], 6e-7 * magnitude[e]);
  if (comparison.failed()) return 1;
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def run_outliers(model, tmp_path_factory):
    """run_outliers(contraction, N, kind): fails with what the program found wrong."""
    source = [
        model._CUDA_TYPES,
        model._CUDA_SCHEDULE,
        model._CUDA_POLICY,
        model._CUDA_COPIER,
        emulation.on_host(model._CUDA_EXACT),
        model._CUDA_PACKED,
    ]
    queue = "struct TileQueue {};"  # that nobody asks here
    source += [queue, emulation.on_host(model._CUDA_PACKING + model._CUDA_PACKING_KERNEL), marked("outlier corrections")]
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, OUTLIERS_MAIN]
    return host_program(tmp_path_factory.mktemp("outliers"), "outliers", parts)


@pytest.mark.parametrize("kind", range(4), ids=["row", "column", "both", "each other"])
@pytest.mark.parametrize("contraction", range(3), ids=["NN", "NT", "TN"])
def test_many_outliers_in_a_line_are_added_once(run_outliers, contraction, kind):
    run_outliers(contraction, 330, kind)


# ---- Promotion. ------------------------------------------------------------------------------------------------------

PROMOTE_MAIN = r"""
int main() {
  // The scales of a wide block of denormals (unscale 2^-126, residual 2^-11) against one whose largest element is 2^25
  for (int swap = 0; swap < 2; ++swap)
    for (int bit = 0; bit < 20; ++bit) {
      float sums[32], total[32] = {};
      for (int u = 0; u < 32; ++u) sums[u] = 0x1p-11f * (1.0f + bit * 0x1p-5f) * (u % 2 ? -1 : 1);
      swap ? promote(sums, 0x1p10f, 0x1p-137f, total) : promote(sums, 0x1p-137f, 0x1p10f, total);
      for (int u = 0; u < 32; ++u) {
        const double exact = static_cast<double>(sums[u]) * 0x1p-127;
        if (std::fabs(total[u] - exact) > 0x1p-150) fail("a sum has lost more than its last bit");
      }
    }
  std::printf("all holds\n");
}
"""


def test_small_powers_of_two_are_undone_last(model, tmp_path):
    parts = [
        emulation.PRELUDE,
        model._CUDA_TYPES,
        model._CUDA_SCHEDULE,
        model._CUDA_POLICY,
        model._CUDA_COPIER,
        model._CUDA_PACKED,
        PROMOTE_MAIN,
    ]
    host_program(tmp_path, "promote", parts)()

"""Packing without a GPU; see emulation.py. Every element is recovered from its block or from the list of outliers. The masks of wide blocks
lead to all outliers, since fixup_kernel looks for outliers nowhere else."""

import emulation
import pytest
from helpers import COMPILER, host_program

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("packing emulated")]

# Arguments: rows, columns, triangular, 1 if the matrix is stored by rows, padding, and the kind of elements.
MAIN = r"""
int main(int, char** arguments) {
  int a[6];
  for (int i = 0; i < 6; ++i) a[i] = std::atoi(arguments[1 + i]);
  const int rows = a[0], cols = a[1], triangular = a[2], kind = a[5], tf32 = kind == 5;
  Matrix<float> matrix(rows, cols, a[3], a[4], 1);
  uint64_t state = 1;
  auto uniform = [&] { return static_cast<float>((state = state * 6364136223846793005ull + 1442695040888963407ull) >> 40) * 0x1p-24f; };
  int expected_outliers = 0;
  for (int row = 0; row < rows; ++row)
    for (int col = 0; col < cols; ++col) {
      if (triangular && col > row) continue;
      float v = uniform() - 0.5f;
      if (kind == 1 && (row + 37 * col) % 1009 == 0) v = 1e-10f, ++expected_outliers;
      if (kind == 2 && (row + col) % 50 == 0) v = (0.5f + std::fabs(v)) * 0x1p-23f;   // lo loses bits: wide blocks
      if (kind == 3) v = (row + 5 * col) % 7 ? v : 0.0f;
      if (kind == 6) v = std::copysign(0.5f + std::fabs(v), v) * 0x1p-120f;   // no power of two brings these near 2^16
      if (kind == 8) v = std::copysign(0.5f + std::fabs(v), v) * 0x1p126f;   // beside Inf no outliers
      if (kind == 7 && row % kBlock == kBlock - 1 && col % kBlock < kMaxOutliers) v = 0x1p-33f, ++expected_outliers;   // no bit is lost
      if (kind == 9) {   // the largest right below, at and above what rounds beyond float16; the least lose bits, or outliers begin
        const int block = row / kBlock * 3 + col / kBlock, lowest = block % 2 ? 28 : 19;
        const float largest = 1.0f + (0x7FEFFF + block % 3) * 0x1p-23f;
        const float least = std::ldexp(0x1.FFCp-15f, block % 3 ? -14 : -15);   // that hi holds as a normal number
        v = std::ldexp(0.75f + std::fabs(v) / 2, -(row + 7 * col) % lowest);
        if (col % kBlock == 0 && row % kBlock < (block % 2 ? 3 : 1)) {
          expected_outliers += row % kBlock == 2;
          v = row % kBlock == 0 ? largest : row % kBlock == 1 ? -least : std::nextafter(least, 0.0f);
        }
      }
      matrix.at(0, row, col) = v;
    }
  if (kind == 4 || kind == 8) matrix.at(0, rows - 1, 0) = kind == 4 ? NAN : INFINITY;
  const int block_rows = ceil_div(rows, kBlock), block_cols = ceil_div(cols, kBlock);
  const int blocks = static_cast<int>(triangular ? triangle(block_rows) : int64_t(block_rows) * block_cols);
  std::vector<uint8_t> packed(blocks * block_bytes(tf32) + kOperandBytes, 0xFF);
  std::vector<BlockMetadata> metadata(blocks);
  std::vector<uint32_t> by_row(block_rows * mask_words(block_cols)), by_col(block_cols * mask_words(block_rows));
  const int batches = kind % 4 ? 1 : 3;   // products that all have the matrix
  Control controls[3] = {{7, 7}, {7, 7}, {7, 7}}, &control = controls[batches - 1];   // which packing resets
  const int lines = kind == 7 ? ceil_div(expected_outliers, 8) : 1 << 17;   // which may have eight each
  Control kept = {0, kind == 7 ? 8 * lines - expected_outliers : 3};        // of the other operand, where it was packed before
  unsigned long long progress = 7;
  Fp16x3Product p = {};
  p.p.batches = batches, p.x_blocks = blocks, p.controls = controls, p.words = 6, p.progress = &progress, p.launch = 4096;
  if (kind == 1 || kind == 7) p.kept = &kept, expected_outliers += kept.outliers;
  p.p.m = lines * kBlock, p.p.allow_tf32 = tf32;
  p.x = {matrix.begin(), matrix.row_stride(), matrix.col_stride(), rows, cols, triangular, block_cols, 1, blocks,
         packed.data(), metadata.data(), by_row.data(), by_col.data()};
  body = [&] { pack_blocks(p); };
  for (int times = 0; times < 2; ++times) {   // as a graph that is launched again
    for (int block = 0; block < blocks; ++block) run_cluster<Nothing>(block, 1, kPackers);
    if (control.fallback != (kind == 4 || kind == 8)) fail("the wrong verdict");
    if (progress != p.launch + (control.outliers ? kOutliers : 0) + (control.fallback ? kFallback : 0)) fail("the wrong progress");
    progress |= kPackingDone | kFallback;
  }
  if (kind == 4 || kind == 8) return std::printf("all holds\n"), 0;
  if (control.outliers != expected_outliers) fail("outliers are counted wrong");
  if (packed.back() != 0xFF) fail("lo is stored where hi alone is wanted, or more than that");
  int wide_blocks = 0;
  Comparison comparison;
  for (int r = 0; r < block_rows; ++r)
    for (int c = 0; c < (triangular ? r + 1 : block_cols); ++c) {
      const int64_t number = block_index(p.x, r, c);
      const BlockMetadata& of = metadata[number];
      const uint32_t *const row = wide_in_line(p.x, 0, false, r), *const col = wide_in_line(p.x, 0, true, c);
      const bool wide = row[1 + c / 32] >> c % 32 & 1, too = col[1 + r / 32] >> r % 32 & 1;
      wide_blocks += wide;
      if (wide != too || (of.head.outliers && !wide)) fail("a block with outliers is not in the masks");
      if (of.head.outliers && !(*row && *col)) fail("a line whose outliers nobody looks for");
      if (wide != (of.head.residual != 1.0f)) fail("a wide block whose residuals are not scaled, or the other way round");
      std::vector<float> outlier(kBlock * kBlock);
      for (int e = 0; e < of.head.outliers; ++e) outlier[of.outlier[e].row * kBlock + of.outlier[e].col] = of.outlier[e].value;
      for (int row = 0; row < kBlock; ++row)
        for (int col = 0; col < kBlock; ++col) {
          const int i = r * kBlock + row, k = c * kBlock + col;
          const float v = i < rows && k < cols && (!triangular || k <= i) ? matrix.at(0, i, k) : 0.0f;
          __half part[2] = {};
          for (int lo = 0; lo < 2; ++lo)
            if (!(lo && tf32)) std::memcpy(&part[lo], &packed[number * block_bytes(tf32) + lo * kOperandBytes + swizzled(row, col)], 2);
          if (const float hi = __half2float(part[0]); hi != 0 && std::fabs(hi) < 0x1p-14f) fail("hi that has no leading bit");
          const double pair = __half2float(part[0]) + static_cast<double>(__half2float(part[1])) * of.head.residual;
          comparison.add(0, i, k, pair * of.head.unscale + outlier[row * kBlock + col], v, (tf32 ? 0x1p-11 : 0x1p-22) * std::fabs(v));
        }
    }
  if (comparison.failed()) return 1;
  if (kind == 2 && !wide_blocks) fail("blocks that lose bits, and none is wide");
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(rows, columns, triangular, ...): fails with what the program found wrong."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER, model._CUDA_PACKED]
    queue = "struct TileQueue {};"  # that nobody asks here
    parts = [
        emulation.PRELUDE,
        *source,
        queue,
        emulation.on_host(model._CUDA_PACKING + model._CUDA_PACKING_KERNEL),
        emulation.PRODUCT,
        MAIN,
    ]
    return host_program(tmp_path_factory.mktemp("packing"), "packing", parts)


KINDS = ["uniform", "outliers", "wide", "zeros", "nan", "hi alone", "tiny", "as many outliers as there may be", "infinity"]
KINDS += ["ends of float16"]


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_every_element_is_recovered(run, kind):
    shapes = [(130, 130, 1, 1, 2), (140, 140, 1, 0, 0), (100, 150, 0, 1, 0), (70, 129, 0, 0, 1)]
    shapes += [(2100, 60, 0, 1, 0), (60, 2100, 0, 1, 0)] * (kind == 1)  # their masks have more than one word
    for rows, cols, triangular, by_rows, pad in shapes:
        run(rows, cols, triangular, by_rows, pad, kind)

"""All launches of the fp16x3 kernel without a GPU, by the launchers' own code; see emulation.py: packing, the product, the fix-up,
the mirror of a symmetric result, and the gradients, which use the packed operands again. Each seed draws masks, sizes, a batch, strides
(zero, overlapping, not aligned, or of a single line), elements (outliers, NaN, the ends of the range), SMs, and room for clusters.
"""

import emulation
import pytest
from helpers import COMPILER, host_program, marked

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("chain emulated")]

MAIN = r"""
// ---- A seed's numbers.

uint64_t state;
uint64_t random_bits() {   // SplitMix64: of a linear generator what 45 seeds draw first was no sixth of them zero
  uint64_t bits = state += 0x9E3779B97F4A7C15ull;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ull, bits = (bits ^ bits >> 27) * 0x94D049BB133111EBull;
  return (bits ^ bits >> 31) >> 33;
}
int below(int end) { return int(random_bits() % end); }
template <typename... Of>
int one_of(Of... values) {
  const int all[] = {values...};
  return all[below(sizeof...(values))];
}

std::vector<std::vector<uint8_t>> workspaces;   // which hold anything
uint8_t* aligned(std::vector<uint8_t>& bytes) { return bytes.data() + -reinterpret_cast<uintptr_t>(bytes.data()) % 1024; }
void* allocate(const Gpu&, int64_t bytes) {
  workspaces.emplace_back(bytes + 1024);
  for (uint8_t& byte : workspaces.back()) byte = uint8_t(random_bits());
  return aligned(workspaces.back());
}

// The elements of a matrix, or of a batch, and strides of its lines and of k, whatever they are.
struct Elements {
  std::vector<float> memory;
  const float* begin;
  int64_t line, k, batch[kMaxBatchDims] = {};
  bool infinite;
  Elements(const Product& p, int lines, int depth) {
    switch (below(5)) {
      case 0: k = 1, line = depth + one_of(0, 0, 1, 4); break;
      case 1: line = 1, k = lines + one_of(0, 0, 1, 4); break;
      case 2: k = 2, line = 2 * depth + 1; break;
      case 3: line = 3, k = 3 * lines; break;
      default: k = one_of(0, 1), line = one_of(0, 1, 4);
    }
    int64_t size = line * (lines - 1) + k * (depth - 1) + 1;
    if (lines == 1 && below(2)) line = one_of(0, 7, 1000000007);
    if (depth == 1 && below(2)) k = one_of(0, 7, 1000000007);
    const bool common = below(4) == 0;
    for (int d = p.batch_dims - 1; d >= 0; --d) {
      batch[d] = common || below(4) == 0 ? 0 : size + one_of(0, 0, 1, 4);
      size += batch[d] * (p.batch_size[d] - 1);
    }
    memory.resize(size + 8);
    begin = memory.data() + -reinterpret_cast<uintptr_t>(memory.data()) % 16 / 4 + one_of(0, 0, 1, 2);
    const int kind = below(8), rare = one_of(3, 50, 1000), exponent = one_of(0, 60, -60, -120, 100);
    infinite = kind == 5;
    for (float& v : memory) {
      v = float(random_bits()) * 0x1p-30f - 1;
      if (kind == 1) v = std::ldexp(v, -below(24));   // wide blocks
      if (kind == 2) v = std::ldexp(v, exponent);
      if (kind == 3 && below(rare) == 0) v = std::ldexp(v, -below(60));   // outliers
      if (kind == 4) v = std::fabs(v);
      if (kind == 5 && below(3000) == 0) v = below(2) ? INFINITY : NAN;
      if (kind == 6 && below(3000) == 0) v = std::ldexp(1 + v, 100);
      if (kind == 7) v = below(4) ? 0 : std::ldexp(v, -below(40));
    }
  }
};

// ---- Products, and their truth.

struct Result {
  std::vector<float> memory;
  Product& p;
  Result(Product& p, bool by_columns) : memory(p.batches * p.m * p.n + 8, 77.0f), p(p) {
    p.c = memory.data() + -reinterpret_cast<uintptr_t>(memory.data()) % 16 / 4;
    p.c_row = by_columns ? 1 : p.n, p.c_col = by_columns ? p.m : 1;
    p.c_batch = int64_t(p.m) * p.n;
  }
  void check(bool infinite) const {
    const float* const end = static_cast<const float*>(p.c) + p.batches * p.m * p.n;
    for (const float& v : memory)
      if ((&v < p.c || &v >= end) && v != 77.0f) fail("written beyond C");
    Comparison comparison;
    for (int batch = 0; batch < p.batches; ++batch) {
      const float* const x = static_cast<const float*>(p.x) + batch_offset(p, p.x_batch, batch);
      const float* const y = static_cast<const float*>(p.y) + batch_offset(p, p.y_batch, batch);
      for (int i = 0; i < p.m; ++i)
        for (int j = 0; j < p.n; ++j) {
          const bool opposite = p.symmetric && j > i;
          const int m = opposite ? j : i, n = opposite ? i : j;
          double sum = 0, magnitude = 0;
          for (int k = 0; k < p.k && (!p.c_lower || n <= m); ++k)
            if (is_in_range(p.x_range, m, k) && is_in_range(p.y_range, n, k)) {
              const double term = double(x[m * p.x_row + k * p.x_col]) * y[k * p.y_row + n * p.y_col];
              sum += term, magnitude += std::fabs(term);
            }
          const double got = c_matrix<float>(p, batch)[i * p.c_row + j * p.c_col];
          if (std::isfinite(magnitude) && magnitude > 0x1p127) continue;   // parts of the sum may be Inf
          if (!std::isfinite(magnitude) && !infinite) fail("a sum of finite elements is not finite");
          comparison.add(batch, i, j, got, sum, (p.allow_tf32 ? 1.1e-3 : 1.5e-6) * magnitude + p.k * 1.5e-45);
        }
    }
    if (comparison.failed()) fail("a product is wrong");
  }
};

void with_operands(Product& p, const Elements& x, bool x_transposed, const Elements& y, bool y_transposed) {
  p.x = x.begin, p.x_row = x_transposed ? x.k : x.line, p.x_col = x_transposed ? x.line : x.k;
  p.y = y.begin, p.y_col = y_transposed ? y.k : y.line, p.y_row = y_transposed ? y.line : y.k;
  std::copy(x.batch, x.batch + kMaxBatchDims, p.x_batch), std::copy(y.batch, y.batch + kMaxBatchDims, p.y_batch);
}

int main(int, char** arguments) {
  state = std::atoi(arguments[1]);
  const int largest = std::atoi(arguments[2]);
  const bool gradients = std::atoi(arguments[3]);
  auto size = [&] { return below(3) ? 1 + below(largest) : one_of(1, 2, 63, 64, 65, 127, 128, 129); };
  Product p = {};
  p.type = kFloat32, p.allow_tf32 = below(6) == 0, p.batches = 1, p.batch_dims = below(3);
  for (int d = 0; d < p.batch_dims; ++d) p.batches *= p.batch_size[d] = 2 + below(2);
  const KRange sides[] = {KRange::kAll, KRange::kToDiagonal, KRange::kFromDiagonal};
  p.x_range = sides[gradients ? 1 : below(3)], p.y_range = sides[gradients ? 2 : below(3)];
  const bool lower = p.x_range == KRange::kToDiagonal && p.y_range == KRange::kFromDiagonal;   // then C is
  // an upper C is computed as a lower one
  if (p.x_range == KRange::kFromDiagonal && p.y_range == KRange::kToDiagonal) p.y_range = KRange::kFromDiagonal;
  p.c_lower = lower || below(2), p.symmetric = p.c_lower && p.x_range == p.y_range && below(2);
  p.m = p.n = p.k = size();
  if (!p.x_range && !p.c_lower) p.m = size();
  if (!p.y_range && !p.c_lower) p.n = size();
  if (!p.x_range && !p.y_range) p.k = size();
  const Gpu gpu = {one_of(4, 5, 8, 16, 40, 132), 9, nullptr, allocate};
  clusters_there = one_of(0, 1, 3, 12, 92), late = below(2);
  const bool by_columns = below(2), same = p.symmetric || (gradients && below(5) == 0);
  const Elements x(p, p.m, p.k), other(p, p.n, p.k), &y = same ? x : other;
  // Of one matrix twice, a lower one, Y's lines are its columns
  with_operands(p, x, false, y, same && !p.symmetric);
  const Result c(p, by_columns);
  workspaces.reserve(2);
  launch_fp16x3(p, gpu);
  if (p.symmetric) launch_kernel<mirror<uint32_t>>({triangle(ceil_div(p.m, kBlock)) * p.batches, kMirrorThreads, 0, 1, true, nullptr}, p);
  c.check(x.infinite || y.infinite);
  if (gradients) {
    Product dx = p, dy = p;
    const Elements g(p, p.m, p.n);
    with_operands(dx, g, false, y, !(same && !p.symmetric)), with_operands(dy, x, true, g, true);
    dx.x_range = dx.y_range = KRange::kToDiagonal, dy.x_range = dy.y_range = KRange::kFromDiagonal;
    const Result c_of_dx(dx, by_columns), c_of_dy(dy, by_columns);
    std::vector<uint8_t>& kept = workspaces[0];
    Product otherwise = p;
    otherwise.allow_tf32 = !p.allow_tf32;
    if (launch_gradients(otherwise, dx, dy, aligned(kept), kept.size() - 1024, gpu)) fail("packed operands without lo are taken, or with");
    if (launch_gradients(p, otherwise, dy, aligned(kept), kept.size() - 1024, gpu)) fail("they are taken by what has another setting");
    if (launch_gradients(p, dx, dy, aligned(kept), kept.size() - 1023, gpu)) fail("packed operands of another product are taken");
    if (!launch_gradients(p, dx, dy, aligned(kept), kept.size() - 1024, gpu)) fail("packed operands are not taken");
    c_of_dx.check(g.infinite || y.infinite), c_of_dy.check(x.infinite || g.infinite);
  }
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(seed, largest size, gradients): fails with what the program found wrong. gradients: 1 to compute gradients as well."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER, model._CUDA_PACKED]
    source += [emulation.on_host(section) for section in (model._CUDA_EXACT, model._CUDA_TILES, model._CUDA_MMA)]
    source += [emulation.hopper_skeleton(model), emulation.on_host(model._CUDA_PACKING + model._CUDA_PACKING_KERNEL)]
    source += [model._CUDA_FP16X3, model._CUDA_FP16X3_TILES_LAUNCH]
    source += [emulation.on_host(section) for section in (model._CUDA_FIXUP, model._CUDA_MIRROR)]
    source += [model._CUDA_FIXUP_LAUNCH, *emulation.instances(model, "launch_product_", "launch_gradients_")]
    source += [marked("fp16x3 launches"), marked("launch of gradients")]
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, MAIN]
    return host_program(tmp_path_factory.mktemp("chain"), "chain", parts)


@pytest.mark.parametrize("gradients", [0, 1], ids=["products", "gradients"])
def test_random_products_are_right(run, gradients):
    for seed in range(24):
        run(seed, 140, gradients)


@pytest.mark.parametrize("gradients", [0, 1], ids=["products", "gradients"])
def test_random_products_of_several_tiles_are_right(run, gradients):
    for seed in range(100, 102):
        run(seed, 400, gradients)

"""The fp16x3 kernel of float32 and of TF32 without a GPU; see emulation.py: the skeleton's barriers and queue, bulk copies of packed
blocks, tiles in splits, wide blocks, blocks with different scales, and two products in one launch, in the launchers' own workspace."""

import functools

import emulation
import pytest
from helpers import (
    COMPILER,
    DENSE,
    FAMILY,
    FAMILY_NAMES,
    FULL,
    LOWER,
    MASKED,
    NN,
    NT,
    TN,
    TRIL,
    TRIU,
    constant,
    every_mask,
    host_program,
    marked,
    masked,
    sizes_for,
)

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("pairs emulated")]

# The workspace holds arbitrary bytes, except for the words that packing resets. Packer packs the operands as pack_blocks does, and NaN
# stands where the kernel may not read. For TF32 the operands are rounded to 11 bits beforehand, so that the same bounds hold.
#
# Arguments after run_product's: the number of clusters; 1 for TF32; 1 for some wide blocks; the number of different scales of blocks; 1 for
# a second product in the same launch; 1 if the last product of the batch needs the fallback, or 2 if packing reports that late; and the
# number of k-blocks per chain.
MAIN = r"""
struct Packer {
  const Product& p;
  int tf32, wide, scales;
  Packer of(const Product& another) const { return {another, tf32, wide, scales}; }
  void pack(Operand operand, const Packed& to) const {
    const auto& strides = operand == kX ? p.x_batch : p.y_batch;
    for (int matrix = 0; matrix < to.matrices; ++matrix)
      for (int r = 0; r < ceil_div(to.rows, kBlock); ++r)
        for (int c = 0; c < (to.triangular ? r + 1 : to.block_cols); ++c) {
          const int64_t number = static_cast<int64_t>(matrix) * to.blocks_each + block_index(to, r, c);
          const bool is_wide = wide && (r + 2 * c) % 3 == 0;
          const float scale = std::ldexp(1.0f, 10 - (r + c) % scales), residual = is_wide ? 0x1p-11f : 1.0f;
          to.metadata[number].head = {1 / scale, residual, 0};
          if (is_wide) {
            wide_in_line(to, matrix, false, r)[1 + c / 32] |= 1u << c % 32;
            wide_in_line(to, matrix, true, c)[1 + r / 32] |= 1u << r % 32;
          }
          for (int row = 0; row < kBlock; ++row)
            for (int col = 0; col < kBlock; ++col) {
              const int i = r * kBlock + row, j = c * kBlock + col;
              const bool exists = i < to.rows && j < to.cols && (!to.triangular || j <= i);
              const float v = exists ? to.source[matrix * strides[0] + i * to.row_stride + j * to.col_stride] * scale : 0.0f;
              const __half hi = __float2half_rn(v), lo = __float2half_rn((v - __half2float(hi)) / residual);
              uint8_t* const at = to.blocks + number * block_bytes(tf32) + swizzled(row, col);
              std::memcpy(at, &hi, 2);
              if (!tf32) std::memcpy(at + kOperandBytes, &lo, 2);
            }
        }
  }
};

void round_to_11_bits(const void* data, const int64_t* batch, int64_t row, int64_t col, int rows, int cols, int batches) {
  for (int b = 0; b < batches; ++b)
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; ++j) {
        float& v = const_cast<float*>(static_cast<const float*>(data))[b * batch[0] + i * row + j * col];
        if (!std::isnan(v)) v = std::nearbyint(v * 1024) / 1024;
      }
}

// Everything that a launch needs, of one product, or of two gradients.
struct Launched {
  std::vector<uint8_t> memory;
  Workspace at;
  Fp16x3Product& product = at.product[0];
  Launched(const Product& p, const Packer& packer, int clusters, const Product* dy = nullptr, const Fp16x3Product* kept = nullptr)
      : memory(Workspace(p, clusters, nullptr, dy, kept).bytes + 1024, 0xFF), at(p, clusters, aligned(), dy, kept) {
    std::memset(aligned(), 0, sizeof(uint64_t) + product.words * sizeof(int));
    packer.pack(kX, product.x);
    if (!dy) packer.pack(kY, product.y);
  }
  uint8_t* aligned() { return memory.data() + (1024 - reinterpret_cast<uintptr_t>(memory.data()) % 1024) % 1024; }
};

template <typename First, typename Second = NoSecondProduct>
void run(int clusters, const Fp16x3Product& first, const typename Second::Args& second = {}) {
  body = [&] { tile_product<First, Second>(first, second); };
  for (int number = 0; number < clusters; ++number) run_cluster<SharedMemory<First>>(number, 2, kSkeletonThreads, {}, 1024);
}

template <bool kLo>
void run_all(const Product& p, const Product& q, const Packer& packer, int clusters, bool two, int fallback) {
  const Product& nt = p.x_range == KRange::kToDiagonal ? p : q;
  const Product& tn = p.x_range == KRange::kToDiagonal ? q : p;
  Product forward = nt;   // of which those are gradients: of one matrix and itself, as Y of the one, and X of the other
  forward.x = nt.y, forward.x_row = forward.y_row = nt.y_col, forward.x_col = forward.y_col = nt.y_row;
  forward.y_range = KRange::kFromDiagonal;
  std::copy(nt.y_batch, nt.y_batch + kMaxBatchDims, forward.x_batch);
  const std::unique_ptr<Launched> kept(two ? new Launched(forward, packer.of(forward), clusters) : nullptr);
  Launched one(two ? nt : p, packer.of(two ? nt : p), clusters, two ? &tn : nullptr, two ? kept->at.product : nullptr);
  if (fallback) *one.product.progress = kFallback, one.product.controls[p.batches - 1].fallback = 1;
  if (fallback == 2) late_report = one.product.progress, taken = one.product.queue.word;
  if (two) {
    run<Fp16x3Policy<false, false, kLo>, Fp16x3Policy<true, true, kLo>>(clusters, one.product, one.at.product[1]);
  } else if (k_is_row(kX, p)) {
    run<Fp16x3Policy<true, true, kLo>>(clusters, one.product);
  } else {
    k_is_row(kY, p) ? run<Fp16x3Policy<false, true, kLo>>(clusters, one.product)
                    : run<Fp16x3Policy<false, false, kLo>>(clusters, one.product);
  }
  if (!(*one.product.progress & kPackingDone)) fail("nobody says that packing has ended");
  if (*one.product.queue.word != 0 && !(fallback && p.batches == 1)) fail("the queue is not left empty");
  std::printf("%d tiles, %d places, ", one.product.tiles.count, one.product.tiles.partial_slots);
}

int main(int, char** arguments) {
  const int clusters = std::atoi(arguments[13]), tf32 = std::atoi(arguments[14]), wide = std::atoi(arguments[15]);
  const int scales = std::atoi(arguments[16]), two = std::atoi(arguments[17]), fallback = std::atoi(arguments[18]);
  kChain = std::atoi(arguments[19]);
  return run_product<float>(arguments, [&](const Product& of) {
    Product p = of, q = of;
    p.allow_tf32 = tf32;
    if (tf32) {
      round_to_11_bits(p.x, p.x_batch, p.x_row, p.x_col, p.m, p.k, p.batches);
      round_to_11_bits(p.y, p.y_batch, p.y_row, p.y_col, p.k, p.n, p.batches);
    }
    std::vector<float> scratch(static_cast<size_t>(p.m) * p.n * p.batches + 4);
    if (two) {   // the other one: of the same matrices, in each other's place
      q.allow_tf32 = tf32, q.x_range = static_cast<KRange>(-p.x_range), q.y_range = static_cast<KRange>(-p.y_range);
      std::swap(q.x, q.y), std::swap(q.x_row, q.y_row), std::swap(q.x_col, q.y_col), std::swap(q.x_batch, q.y_batch);
      q.c = scratch.data(), q.c_row = q.n, q.c_col = 1, q.c_batch = static_cast<int64_t>(q.m) * q.n;
    }
    const Packer packer = {p, tf32, wide, scales};
    if (fallback) {   // what is left out stays as it is, but for zeros
      const int64_t last = (p.batches - 1) * p.c_batch;
      for (int i = 0; i < p.m; ++i)
        for (int j = 0; j < p.n; ++j) static_cast<float*>(p.c)[last + i * p.c_row + j * p.c_col] = j > i && has_zeros(p) ? 0.0f : 77.0f;
    }
    tf32 ? run_all<false>(p, q, packer, clusters, two, fallback) : run_all<true>(p, q, packer, clusters, two, fallback);
    if (!fallback) return;
    for (int batch = 0; batch < p.batches; ++batch)
      for (int i = 0; i < p.m; ++i)
        for (int j = 0; j < (has_zeros(p) ? i + 1 : p.n); ++j) {
          const float got = static_cast<float*>(p.c)[batch * p.c_batch + i * p.c_row + j * p.c_col];
          if (fallback == 2 && batch == p.batches - 1) continue;
          if ((got == 77.0f) != (batch == p.batches - 1)) fail("a product that is not left out, or another one that is");
        }
    std::printf("all holds\n");
    std::exit(0);
  });
}
"""


CHAIN = constant("_CUDA_COPIER", "kChain")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(contraction, structure, sizes, ...): fails with what the program found wrong, and returns its description of the tiles."""
    elements = emulation.as_variable(model._CUDA_COPIER, "kChain")
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, elements, model._CUDA_PACKED, emulation.hopper_skeleton(model)]
    source += [emulation.on_host(model._CUDA_PACKING + model._CUDA_PACKING_KERNEL), model._CUDA_FP16X3, marked("workspace")]
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, MAIN]
    program = host_program(tmp_path_factory.mktemp("pairs"), "pairs_kernel", parts)

    def run(contraction, structure, sizes, *, batches=1, late=0, rows=(1, 1), pad=0, kind=0, **options):
        numbers = {"clusters": 1, "tf32": 0, "wide": 0, "scales": 1, "two": 0, "fallback": 0, "chain": CHAIN} | options
        return program(contraction, structure, *sizes, batches, late, *rows, pad, pad, kind, *numbers.values())

    return run


@pytest.fixture(scope="module")
def run_with_short_chains(run):
    """The same with chains of two k-blocks, so that small products have several chains."""
    return functools.partial(run, chain=2)


LATE = pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
TF32 = pytest.mark.parametrize("tf32", [0, 1], ids=["float32", "TF32"])
EVERY_MEMBER = pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
GRADIENTS = pytest.mark.parametrize("contraction", [NT, TN], ids=["NT", "TN"])


@TF32
@LATE
@EVERY_MEMBER
def test_products_of_the_family_are_right(run, contraction, structure, tf32, late):
    """With an edge that no block divides, places in the queue that are used again, zeros, and rows of C that are aligned or not."""
    run(contraction, structure, (257 + 64 * late,) * 3, batches=3, late=late, tf32=tf32, rows=(late, 1 - late))
    run(contraction, structure, (256,) * 3, late=late, tf32=tf32, clusters=2, pad=1)


@pytest.mark.parametrize("mask", [TRIL, TRIU], ids=["lower", "upper"])
@GRADIENTS
def test_one_matrix_with_two_masks_is_packed_twice(run, contraction, mask):
    """Each operand has its own part of the matrix."""
    for structure in (masked(mask, FULL, FULL), masked(FULL, mask, FULL)):
        run(contraction, structure, (150,) * 3, kind=20)


@TF32
@LATE
@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_splits_of_a_tile_are_added(run, contraction, tf32, late):
    """The k of a tile is summed in two or three parts: of a triangle, and of a dense batch."""
    assert "10 tiles, 4 places" in run(contraction, LOWER, (641,) * 3, late=late, tf32=tf32, clusters=20, scales=1 + late)
    assert "18 tiles, 4 places" in run(contraction, DENSE, (257, 129, 700), batches=3, late=late, tf32=tf32, clusters=20)
    assert "6 tiles, 1 places" in run(
        contraction, DENSE, (1030, 70, 520), late=late, tf32=tf32, clusters=4
    )  # the fifth tile, for four clusters


@LATE
@EVERY_MEMBER
def test_wide_blocks_are_multiplied_at_their_scale(run, contraction, structure, late):
    run(contraction, structure, (200 + 100 * late,) * 3, late=late, wide=1, scales=3)


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_wide_blocks_in_masks_of_several_words_are_found(run, contraction):
    """More than 32 k-blocks, and the kernel begins in the middle of k."""
    run(contraction, DENSE, (64, 70, 2200), wide=1)


@pytest.mark.parametrize("k", [2112, 4160, 8192])
def test_long_sums_of_one_sign_stay_within_the_bound(run, k):
    """Two, three and four chains. A single total would exceed the bound at k = 8192, since it is rounded at each of 128 k-blocks."""
    run((NN, NT, TN)[k // 2000 % 3], DENSE, (64, 70, k), kind=5, late=k // 4096 % 2)


@LATE
@EVERY_MEMBER
def test_chains_of_a_tile_are_added(run_with_short_chains, contraction, structure, late):
    """C with aligned rows and without, with edges and without, tiles with one k-block more than a chain, and wide blocks."""
    for N, pad, wide in ((512, 0, 0), (321 + 64 * late, 1, 1)):
        run_with_short_chains(contraction, structure, (N,) * 3, late=late, pad=pad, wide=wide, clusters=1 + late)


@LATE
@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_chains_of_splits_are_added(run_with_short_chains, contraction, late):
    """Splits of four to six k-blocks keep the sums of their chains in the workspace. Then all tiles keep them there."""
    assert "4 tiles, 1 places" in run_with_short_chains(contraction, LOWER, (512,) * 3, late=late, clusters=4)
    assert "4 tiles, 2 places" in run_with_short_chains(contraction, DENSE, (70, 257, 641), late=late, clusters=4)
    assert "6 tiles, 1 places" in run_with_short_chains(contraction, DENSE, (70, 70, 513), batches=3, late=late, clusters=6)


@GRADIENTS
def test_chains_of_two_products_in_a_launch_are_added(run_with_short_chains, contraction):
    run_with_short_chains(contraction, LOWER, (330,) * 3, clusters=3, two=1)


@EVERY_MEMBER
def test_tf32_blocks_of_several_scales_are_right(run, contraction, structure):
    run(contraction, structure, (330,) * 3, tf32=1, scales=3)


@TF32
@LATE
@GRADIENTS
def test_two_products_in_a_launch_are_right(run, contraction, tf32, late):
    run(contraction, LOWER, (400,) * 3, late=late, tf32=tf32, clusters=3, two=1, wide=1 - tf32)
    run(contraction, LOWER, (641,) * 3, tf32=tf32, clusters=40, two=1)
    run(contraction, LOWER, (300,) * 3, batches=3, late=late, tf32=tf32, clusters=3, two=1)


@TF32
def test_what_needs_the_fallback_is_left_out(run, tf32):
    run(NN, LOWER, (300,) * 3, batches=3, tf32=tf32, fallback=1)
    run(TN, DENSE, (200,) * 3, tf32=tf32, fallback=1)


@LATE
def test_small_rectangular_products_are_right(run, late):
    for sizes in ((1, 1, 1), (1, 201, 65), (300, 4, 20), (64, 128, 64), (129, 9, 1)):
        for contraction in (NN, NT, TN):
            run(contraction, DENSE, sizes, late=late, rows=(1, late))


# ---- Every combination of masks. -------------------------------------------------------------------------------------

BLOCK, TILE = constant("_CUDA_SCHEDULE", "kBlock"), constant("_CUDA_SCHEDULE", "kTileEdge")


@every_mask
def test_every_mask_is_applied(run, contraction, structure):
    """With one row in the last tiles, one block less, wide blocks, several scales, places in the queue that are used again, and TF32."""
    late = list(MASKED.values()).index((contraction, structure)) % 2
    options = {"batches": 1 + late, "late": late, "rows": (late, 1 - late), "pad": late}
    run(contraction, structure, sizes_for(structure, TILE + 1, BLOCK + 1), wide=1, scales=2, **options)
    run(contraction, structure, sizes_for(structure, TILE - BLOCK + 4, 2 * BLOCK), tf32=1, clusters=2, **(options | {"late": 1 - late}))


@pytest.mark.parametrize("name", ["L X", "L U", "X X^T", "X^T X", "L L^T", "tril(X Y^T)"])
def test_splits_of_a_tile_are_added_for_other_masks(run, name):
    contraction, structure = MASKED[name]
    free = name in ("X X^T", "X^T X", "tril(X Y^T)")
    said = run(
        contraction, structure, sizes_for(structure, TILE + 1 if free else 2 * TILE + 1, 10 * BLOCK if free else BLOCK), clusters=40, late=1
    )
    assert " 0 places" not in said, said


def test_what_needs_the_fallback_is_left_out_of_other_masks(run):
    for name in ("X X^T", "X L"):
        run(*MASKED[name], sizes_for(MASKED[name][1], TILE - BLOCK, BLOCK), batches=2, fallback=1)


def test_a_product_is_left_out_while_its_splits_are_handed_out(run):
    """Packing may report that a product needs the fallback after a later split of a tile has been taken, and before the first one is. The
    first one is then left out, and the later one must not wait for it."""
    assert "20 tiles, 4 places" in run(NN, LOWER, (641,) * 3, batches=2, clusters=60, fallback=2)


@TF32
def test_a_stage_is_released_after_it_has_been_read(run, tf32):
    """A warp that releases stages is behind all other warps, copies arrive at once, and products are late."""
    for warp in (0, 7):
        run(NN, LOWER, (513,) * 3, late=-2 * warp - 2, tf32=tf32, clusters=2)

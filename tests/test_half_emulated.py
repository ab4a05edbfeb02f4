"""The half-precision kernel without a GPU; see emulation.py: its barriers, its queue, tensor maps and wgmma on operands as they lie in
shared memory, with copies that come, and products that are done, at once or as late as may be; and what is not finite, summed again."""

import emulation
import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, MASKED, NN, NT, TN, constant, every_mask, host_program, masks, sizes_for
from test_outliers_emulated import cut

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("half emulated")]

# ---- What of CUDA and of the section "PTX" only this kernel needs. ---------------------------------------------------

CUDA = r"""
struct BlockIndex {
  unsigned x;
};
#define blockIdx BlockIndex{static_cast<unsigned>(cluster->number * cluster->size + current->block->rank)}
struct {
  unsigned x;
} gridDim;
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  if (reinterpret_cast<uintptr_t>(at) % 8) fail("a word that is not aligned");
  return std::exchange(*at, *at + value);
}
inline unsigned long long atomicExch(unsigned long long* at, unsigned long long value) { return std::exchange(*at, value); }
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long assumed, unsigned long long value) {
  return *at == assumed ? std::exchange(*at, value) : *at;
}
inline uint32_t atomicMin(uint32_t* at, uint32_t value) { return std::exchange(*at, std::min(*at, value)); }
inline void __threadfence() {}
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline void __nanosleep(int) {}
inline void __trap() { fail("a trap"); }
inline void __syncwarp() { meet(warp().meeting, 32); }
template <typename Two>
Two __hfma2(Two a, Two b, Two c) {
  return {a.x * b.x + c.x, a.y * b.y + c.y};
}
template <typename Two>
Two __hadd2(Two a, Two b) {
  return {a.x + b.x, a.y + b.y};
}
template <int kRegisters>
void warpgroup_reg_alloc() {}
template <int kRegisters>
void warpgroup_reg_dealloc() {}

// A tensor map: three dimensions of 16-bit elements, the nearest first; and its boxes of 64 x 64, in rows of 128 bytes with their swizzle.
struct CUtensorMap {
  const uint16_t* data;
  int64_t size[3], stride[3];
  int rows;   // of a box
};
inline void prefetch_tma_descriptor(const CUtensorMap&) {}
inline void load_box(uint32_t to, const CUtensorMap& map, int at0, int at1, int at2, uint32_t barrier) {
  if (to % 1024) fail("a box that is not aligned");
  there(to);
  auto now = [=, &map] {
    for (int row = 0; row < map.rows; ++row)
      for (int col = 0; col < 64; col += 8) {   // 16 bytes
        const int64_t at[3] = {at0 + col, at1 + row, at2};
        int64_t offset = 0, begin = max(-at[0], int64_t(0)), end = min(map.size[0] - at[0], int64_t(8));   // of those that exist
        for (int d = 0; d < 3; ++d) offset += at[d] * map.stride[d];
        for (int d = 1; d < 3; ++d)
          if (at[d] < 0 || at[d] >= map.size[d]) end = 0;
        uint16_t elements[8] = {};
        if (begin < end) std::memcpy(elements + begin, map.data + offset + begin, 2 * (end - begin));
        std::memcpy(at_address(to) + swizzled(row, col), elements, 16);
      }
    reinterpret_cast<Barrier*>(at_address(barrier))->change(-128 * map.rows, 0);
  };
  if (late)
    engine.push_back(now);
  else
    now();
}
namespace ptx {
inline void cp_async_bulk_tensor(Space, Space, void* to, const CUtensorMap* map, const int (&at)[3], uint64_t* barrier) {
  load_box(shared_address(to), *map, at[0], at[1], at[2], shared_address(barrier));
}
inline void cp_async_bulk_tensor(Space, Space, void* to, const CUtensorMap* map, const int (&at)[3], uint64_t* barrier, uint16_t ctas) {
  if (cluster->came < cluster->size * block_threads) fail("sent to a CTA that may not have begun");
  for (int rank = 0; ctas >> rank; ++rank)
    if (ctas >> rank & 1)
      load_box(address_in_peer(shared_address(to), rank), *map, at[0], at[1], at[2], address_in_peer(shared_address(barrier), rank));
}
}  // namespace ptx

template <bool kTransposed>
void stmatrix_x4(uint32_t at, const uint32_t (&w)[4]) {
  const int lane = current->x % 32;
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[lane][0] = at;
  std::memcpy(brought[lane] + 1, w, sizeof(w));
  meet(warp().meeting, 32);
  no_conflict(brought, lane / 8 * 8, 8, 16);
  for (int e = 0; e < 8; ++e) {   // the row, or column, lane % 8 of matrix lane / 8
    const int row = kTransposed ? e : lane % 8, col = kTransposed ? lane % 8 : e;
    const uint16_t element = brought[4 * row + col / 2][1 + lane / 8] >> 16 * (col % 2);
    std::memcpy(at_address(at) + 2 * e, &element, 2);
  }
}

// Every 16-bit number as a float: an emulation does little else than look here.
template <typename T>
const float* wide_numbers() {
  static const std::vector<float> all = [] {
    std::vector<float> numbers(65536);
    for (int bits = 0; bits < 65536; ++bits) numbers[bits] = T{static_cast<uint16_t>(bits)};
    return numbers;
  }();
  return all.data();
}

// The numbers of 16 k and kLines lines of an operand in shared memory, those of a thread's columns side by side. What a thread has found,
// the others of a warpgroup find again, as long as the bytes are the same, which the first of a warp looks at: else all time would go by in
// looking numbers up.
using Two = double __attribute__((vector_size(16)));
using Four = double __attribute__((vector_size(32)));
template <typename T, int kLines, int kMajor>
__attribute__((optimize("O3"))) auto numbers_of(const unsigned char* memory, uint32_t operand) {
  constexpr int kSpan = kMajor ? 2048 : 32, kSpans = kLines * 32 / kSpan;   // bytes that lie together; for 64 lines, for one
  struct Found {
    const unsigned char* from = nullptr;
    int time = 0;
    uint64_t bytes[kSpans][kSpan / 8];
    Two numbers[16][4][kLines / 8];   // by k, by thread % 4
  };
  static std::vector<Found> all(61);
  const unsigned char* const from = memory + operand;
  Found& found = all[reinterpret_cast<uintptr_t>(from) / 32 % all.size()];
  const bool known = std::exchange(found.from, from) == from;
  if (std::exchange(found.time, multiplying) == multiplying && known && multiplying) return found.numbers;
  for (int span = 0; span < kSpans; ++span) {
    const uint32_t begin = operand + (kMajor ? span * 8192 : span * 128), at = swizzled_address(begin) & ~31u;
    const auto* const bytes = reinterpret_cast<const uint64_t*>(memory + at);
    uint64_t other = !known;
    for (int u = 0; u < kSpan / 8; ++u) other |= bytes[u] ^ found.bytes[span][u];
    if (!other) continue;
    std::memcpy(found.bytes[span], bytes, kSpan);
    for (int u = 0; u < kSpan; u += 2) {
      const uint32_t place = swizzled_address(at + u) - begin;   // without the swizzle
      const int line = kMajor ? span * 64 + place % 128 / 2 : span, k = place / (kMajor ? 128 : 2);
      found.numbers[k][line % 8 / 2][line / 8][line % 2] = wide_numbers<T>()[*reinterpret_cast<const uint16_t*>(memory + at + u)];
    }
  }
  return found.numbers;
}

// sums += A B of 64 x kN and 16 k, both in shared memory.
template <typename T, int kN, int kMajorA, int kMajorB>
void wgmma(float* sum, uint64_t a, uint64_t b, int add) {
  if (current->block->written) fail("multiplied what was written without a fence");
  current->products.push_back([=]() __attribute__((optimize("O3"))) {
    constexpr uint32_t kPlace = (1 << kRankShift) - 1;
    const unsigned char* const memory = current->block->memory - memory_begin;
    const int warp = current->x / 32 % 4, g = current->x % 32 / 4, q = current->x % 4;
    const float* const wide = wide_numbers<T>();
    const auto* const columns = numbers_of<T, kN, kMajorB>(memory, b & kPlace);
    Four rows[16];   // rows g and g + 8 of the warp's
    for (int r = 0; r < 2; ++r)
      for (int k = 0; k < 16; ++k) {
        const int line = warp * 16 + r * 8 + g;
        const uint32_t at = (a & kPlace) + (kMajorA ? k * 128 + line * 2 : line * 128 + k * 2);
        rows[k][2 * r] = rows[k][2 * r + 1] = wide[*reinterpret_cast<const uint16_t*>(memory + swizzled_address(at))];
      }
    Four all[kN / 8];   // of these rows, and the columns that are this thread's
    auto* const one_by_one = reinterpret_cast<double*>(all);
    for (int u = 0; u < kN / 2; ++u) one_by_one[u] = add ? sum[u] : 0.0;
    for (int k = 0; k < 16; ++k)
      for (int four = 0; four < kN / 8; ++four) {
        const Two cols = columns[k][q][four];
        all[four] += rows[k] * Four{cols[0], cols[1], cols[0], cols[1]};
      }
    for (int u = 0; u < kN / 2; ++u) sum[u] = static_cast<float>(one_by_one[u]);
  });
}
"""

# The launcher's own code on a GPU of few SMs, so that clusters take several tiles, over a workspace that holds anything, and twice: a graph
# may be launched again. The first cluster takes all that it can before the next one begins.
LAUNCH = r"""
using cudaError_t = int;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
constexpr int cudaErrorNotSupported = 801, cudaEnableDefault = 0;
constexpr int CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9, CU_TENSOR_MAP_INTERLEAVE_NONE = 0;
constexpr int CU_TENSOR_MAP_SWIZZLE_128B = 3, CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0;
int cuTensorMapEncodeTiled(CUtensorMap* map, int, int, void* data, const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                           const uint32_t*, int, int, int, int) {
  if (reinterpret_cast<uintptr_t>(data) % 16 || strides[0] % 16 || strides[1] % 16 || box[0] != 64 || box[2] != 1) return 1;
  *map = {static_cast<const uint16_t*>(data), {}, {1, int64_t(strides[0] / 2), int64_t(strides[1] / 2)}, int(box[1])};
  return std::copy(sizes, sizes + 3, map->size), 0;
}
int cudaGetDriverEntryPointByVersion(const char*, void** found, int, int) {
  return *found = reinterpret_cast<void*>(&cuTensorMapEncodeTiled), 0;
}

std::vector<unsigned long long> workspace;
void* allocate(const Gpu&, int64_t bytes) {
  workspace.assign(bytes / 8, 0x123456789ABCDEFull);
  return workspace.data();
}
bool infinite;
template <auto kKernel, typename Second>
void launch_kernel(const Launch& launch, const HalfProduct& h, const Second& second) {
  body = [&] { kKernel(h, second); };
  unsigned long long* const end = workspace.data() + workspace.size();
  if (h.queue.word != workspace.data() || h.non_finite.left + h.non_finite.boxes + 1 != end) fail("the workspace is not what is used");
  for (int turn = 0; turn < 2; ++turn) {
    run_clusters(launch);
    if (h.tiles.clusters < h.tiles.count && *h.queue.word != 0 && *h.queue.word != h.queue.launch)   // the latter by one that began late
      fail("the queue is not left empty");
    // Nothing else is summed again: what NaN stands for has been masked
    const bool any = h.non_finite.parts(end[-1]);
    if (any != (infinite && is_masked(h.p))) fail("boxes are summed again that are finite, or none where one is not");
    for (const auto* word = h.non_finite.left; word < end - 1; ++word)
      if (h.non_finite.parts(*word)) fail("boxes are not summed again");
  }
  std::printf("%d CTAs a cluster, tiles of %d, %d in halves, %d clusters, %d tiles, %s", launch.cluster, h.tiles.edge * kBlock,
              h.tiles.halved, h.tiles.clusters, h.tiles.count, h.tiles.corners ? "corners, " : "");
}
"""

MAIN = r"""
template <typename T>
int run_type(char** arguments) {
  return run_product<T>(arguments, [&](Product& p) {
    infinite = std::atoi(arguments[12]) % 10 >= 4;
    launch_half<T>(p, {std::atoi(arguments[14]), 9, nullptr, allocate});
    if (is_stored_twice(p)) p.symmetric = 0;   // so that nothing is mirrored
  });
}

int main(int, char** arguments) {
  return std::atoi(arguments[13]) ? run_type<__nv_bfloat16>(arguments) : run_type<__half>(arguments);
}
"""


def skeleton(model):
    """The source of the skeleton of Hopper's kernels."""
    pipeline = cut(model._CUDA_PTX, "// Where in a pipeline of shared memory a role is.", "// Four words into the shared memory of a CTA")
    declaration = "extern __shared__ __align__(1024) uint8_t raw[];"
    assert model._CUDA_SKELETON.count(declaration) == 1
    return pipeline + model._CUDA_SKELETON.replace(declaration, "unsigned char* const raw = current->block->memory;")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(contraction, structure, sizes, ...): fails with what the program found wrong; returns what it says of the plan."""

    half, masks_row = model._CUDA_HALF, "*chunk(on) = make_uint4("
    assert half.count(masks_row) == 1
    half = half.replace(masks_row, f"note_written(), {masks_row}")  # a fence has to follow
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_ELEMENTS]
    parts = [
        emulation.PRELUDE,
        *source,
        emulation.device(model._CUDA_EXACT),
        model._CUDA_PACKED,
        CUDA,
        cut(
            model._CUDA_PTX,
            "template <typename T>\nDEVICE T load_relaxed",
            "template <int kRegisters>\nDEVICE void warpgroup_reg_alloc",
        ),
        model._CUDA_LAUNCH[model._CUDA_LAUNCH.index("// ---- Launching: the strides") :],
        skeleton(model),
        cut(half, "// ---- Half precision: sizes", "// ---- Half precision: launching."),
        emulation.PRODUCT,
        emulation.LAUNCHING,
        LAUNCH,
        half[half.index("// ---- Half precision: launching.") :],
        MAIN,
    ]
    program = host_program(tmp_path_factory.mktemp("half"), "half_kernel", parts)

    def run(contraction, structure, sizes, *, batches=1, sms=2, late=0, x_by_rows=1, y_by_rows=1, kind=0, bfloat16=0):
        pads = [-side % 8 for side in (sizes[0], sizes[1], sizes[2])]
        assert len(set(pads)) == 1, f"{sizes}: one pad for all"
        return program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pads[0], pads[0], kind, bfloat16, sms)

    return run


LATE = pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
EVERY_MEMBER = pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
LAYOUTS = [(0, 0), (0, 1), (1, 1), (1, 0)]  # whether X and Y lie by rows


@LATE
@EVERY_MEMBER
def test_small_tiles(run, contraction, structure, late):
    """Single CTAs, of which one takes two tiles."""
    sizes, batches = ((180, 180, 180), 1) if structure else ((100, 100, 180), 3)
    for x_by_rows, y_by_rows in LAYOUTS[late::2]:
        laid = {"x_by_rows": x_by_rows, "y_by_rows": y_by_rows, "bfloat16": x_by_rows}
        said = run(contraction, structure, sizes, batches=batches, late=late, **laid)
        assert "1 CTAs a cluster, tiles of 128" in said and "2 clusters" in said


@LATE
@EVERY_MEMBER
def test_large_tiles(run, contraction, structure, late):
    """Pairs of CTAs: all tiles of three products for one cluster, whose places in the queue are used again."""
    lines = 257 if structure else 385  # of fewer, small tiles are the faster ones
    for x_by_rows, y_by_rows in LAYOUTS[1 - late :: 2] if structure == LOWER else LAYOUTS[:1]:
        said = run(contraction, structure, (lines, lines, 257), batches=3, late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows)
        assert "2 CTAs a cluster, tiles of 256" in said and "1 clusters" in said


@pytest.mark.parametrize("warp", [0, 3, 6])
def test_a_warp_that_is_behind(run, warp):
    """It still reads the last box of half a small tile when the others of its warpgroup write the first one of a whole tile; of tiles that
    are stored twice, some end with either place."""
    for late in (0, 1):
        said = run(NN, DENSE, (100, 100, 100), batches=5, sms=4, late=2 * warp + 2 + late)
        assert "tiles of 128, 1 in halves, 4 clusters, 6 tiles" in said
        said = run(*MASKED["X X^T"], (1409, 1409, 65), late=2 * warp + 2 + late)
        assert "tiles of 256" in said and "1 clusters" in said
    # Copies at once, products when they are waited for: a stage is given back when it has been read
    run(NN, DENSE, (100, 100, 700), batches=3, late=-2 * warp - 2)
    run(NN, LOWER, (516, 516, 516), batches=3, late=-2 * warp - 2)


@pytest.mark.parametrize(("tiles", "batches", "sms"), [(2, 1, 2), (3, 1, 5), (4, 1, 9), (2, 2, 4), (5, 1, 13)])
@pytest.mark.parametrize("name", ["X X^T", "X^T X"])
def test_corners(run, name, tiles, batches, sms):
    """The last one half empty, if tiles on the diagonal are odd; an edge; a warp that is behind."""
    for N, late in ((tiles * LARGE // 2 - 60, 0), (tiles * LARGE // 2, 1), (tiles * LARGE // 2 - 4, 2 * tiles + 3)):
        for x_by_rows in (0, 1):
            laid = {"x_by_rows": x_by_rows, "y_by_rows": x_by_rows, "bfloat16": x_by_rows}
            sizes = sizes_for(MASKED[name][1], N, 2 * BLOCK + N % 8)
            said = run(*MASKED[name], sizes, batches=batches, sms=sms, late=late, **laid)
            assert "tiles of 128" in said and "corners" in said


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_halved_tiles(run, contraction):
    """Of a triangle, with a right half that is empty, large and small tiles, and of dense products."""
    said = run(contraction, LOWER, (897,) * 3, late=1, sms=14)
    assert "tiles of 256, 1 in halves" in said
    said = run(contraction, LOWER, (641,) * 3, late=1, sms=30)
    assert "tiles of 128, 10 in halves" in said
    assert "tiles of 256, 1 in halves" in run(contraction, DENSE, (396, 396, 100), sms=6)
    if contraction != NN:  # not those on the diagonal
        assert "tiles of 128, 3 in halves" in run(contraction, MASKED["X X^T"][1], (300, 300, 68), late=1, sms=132)
    assert "tiles of 128, 2 in halves" in run(contraction, DENSE, (70, 150, 518), sms=132)


@LATE
@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_shared_k(run, contraction, late):
    assert "2 CTAs a cluster, tiles of 128" in run(contraction, DENSE, (70, 150, 1990), sms=132, late=late)
    assert "4 CTAs a cluster, tiles of 128" in run(contraction, DENSE, (100, 36, 4100), sms=132, late=late)


@EVERY_MEMBER
def test_infinity(run, contraction, structure):
    """One, and one in each row of X."""
    for kind in (4, 6):
        run(contraction, structure, (180,) * 3, kind=kind, late=1)
        run(contraction, structure, (257,) * 3, kind=kind)
    run(contraction, structure, (129,) * 3, kind=6, batches=5, bfloat16=1)


def test_infinity_in_more_boxes_than_threads_look_for_at_once(run):
    run(NN, LOWER, (8,) * 3, kind=6, batches=2050)


@LATE
def test_small_rectangles(run, late):
    for sizes in ((1, 1, 1), (1, 201, 65), (300, 4, 20), (64, 128, 64), (129, 9, 1)):
        for contraction in (NN, NT, TN):
            run(contraction, DENSE, sizes, late=late, y_by_rows=late)


# ---- Every combination of masks. -------------------------------------------------------------------------------------

BLOCK, LARGE = constant("_CUDA_SCHEDULE", "kBlock"), constant("_CUDA_SCHEDULE", "kTileEdge")
FREE_K = {name for name, (_, structure) in MASKED.items() if not any(masks(structure)[:2])}  # X and Y have all elements


@every_mask
def test_small_tiles_of_every_mask(run, contraction, structure):
    """A row and a column left, by every way that operands lie; then Inf."""
    number = list(MASKED.values()).index((contraction, structure))
    x_by_rows, y_by_rows = LAYOUTS[number % 4]
    options = {"late": number % 2, "x_by_rows": x_by_rows, "y_by_rows": y_by_rows, "bfloat16": number // 2 % 2}
    sms = 3 if any(masks(structure)[:2]) else 132  # of masked operands small tiles are taken for longer
    said = run(contraction, structure, sizes_for(structure, LARGE // 2 + 1, BLOCK + 1), sms=sms, **options)
    assert "1 CTAs a cluster, tiles of 128" in said
    for kind in (4, 6):
        run(contraction, structure, sizes_for(structure, LARGE // 2 + 4, 4), kind=kind, sms=4, **options)


@every_mask
def test_large_tiles_of_every_mask(run, contraction, structure):
    """One cluster takes them all: of a symmetric C some write an odd number of boxes, and the next one finds two places in turn."""
    number = list(MASKED.values()).index((contraction, structure))
    x_by_rows, y_by_rows = LAYOUTS[(number + 2) % 4]
    N, batches = LARGE + 1, 3
    if not any(masks(structure)[:2]):  # of so few tiles small ones are the faster
        N, batches = 5 * LARGE + LARGE // 2 + 1, 1
    sizes = sizes_for(structure, N, BLOCK + 1)
    said = run(contraction, structure, sizes, batches=batches, late=number % 2, x_by_rows=x_by_rows, y_by_rows=y_by_rows)
    assert "2 CTAs a cluster, tiles of 256" in said


@pytest.mark.parametrize(
    ("name", "sms", "N", "R"),
    [
        ("L X", 10, 3 * LARGE - 6, 2 * LARGE - 6),
        ("L U", 16, 2 * LARGE + LARGE // 2 + 2, 0),
        ("X X^T", 10, 5 * LARGE + LARGE // 2 + 1, BLOCK + 1),
        ("L L^T", 14, 3 * LARGE + LARGE // 2 + 2, 0),
    ],
)
def test_halved_tiles_of_other_masks(run, name, sms, N, R):
    contraction, structure = MASKED[name]
    said = run(contraction, structure, sizes_for(structure, N, R), sms=sms)
    assert "tiles of 256" in said and " 0 in halves" not in said, said


@pytest.mark.parametrize("name", ["X X^T", "X^T X", "triu(X Y^T)", "X L"])
def test_shared_k_of_other_masks(run, name):
    contraction, structure = MASKED[name]
    N, R = (LARGE // 2 + 6, 31 * BLOCK + 6) if name in FREE_K else (31 * BLOCK + 6, 6)
    assert "2 CTAs a cluster, tiles of 128" in run(contraction, structure, sizes_for(structure, N, R), sms=132, late=name in FREE_K)


@pytest.mark.parametrize("name", ["L L^T", "L^T L", "U U^T", "X X^T"])
def test_all_of_a_symmetric_product(run, name):
    """What stands opposite has the same bits though nothing is mirrored, also where it is summed again."""
    contraction, structure = MASKED[name]
    for kind in (10, 14, 16):
        run(contraction, structure, (150,) * 3, batches=2, sms=132, kind=kind)


@pytest.mark.parametrize("name", ["L L^T", "L^T L", "U U^T"])
def test_halves_of_a_symmetric_product_meet_the_same_infinity(run, name):
    """Here one of k that a half of a tile does not need, and the whole tile opposite does: both are to be summed again."""
    assert " 0 in halves" not in run(*MASKED[name], (6 * BLOCK,) * 3, sms=132, kind=18)


def test_four_share_k_of_a_symmetric_product(run):
    contraction, structure = MASKED["X X^T"]
    said = run(contraction, structure, sizes_for(structure, LARGE // 2 - 26, 64 * BLOCK + 6), sms=132)
    assert "4 CTAs a cluster, tiles of 128" in said


# ---- The queue of tiles, by threads of the system, which are there at once. ------------------------------------------

QUEUE = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>
#define DEVICE
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long assumed, unsigned long long value) {
  __atomic_compare_exchange_n(at, &assumed, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return assumed;
}
"""

# Clusters that take `count` tiles and then find none: each number comes once, whatever stood in the word, whether or not clusters begin,
# and when; and once more, as a graph has it.
QUEUE_MAIN = r"""
int main(int, char** arguments) {
  const uint32_t clusters = std::atoi(arguments[1]), count = std::atoi(arguments[2]), all = count + clusters;
  std::mt19937_64 random(clusters * 1000 + count);
  for (int turn = 0; turn < 60; ++turn) {
    const uint64_t launch = random();
    unsigned long long word = turn % 4 == 0 ? 0 : turn % 4 == 1 ? launch - 1 - turn : turn % 4 == 2 ? random() : launch + all + 1;
    const TileQueue queue = {&word, launch};
    for (int replay = 0; replay < 2; ++replay) {
      std::vector<std::vector<uint32_t>> taken(clusters);
      std::vector<std::thread> threads;
      for (uint32_t cluster = 0; cluster < clusters; ++cluster) {
        if (turn % 3) threads.emplace_back([&] { queue.begin(all); });
        threads.emplace_back([&, cluster] {
          do taken[cluster].push_back(queue.take(all));
          while (taken[cluster].back() < count);
        });
      }
      for (std::thread& thread : threads) thread.join();
      std::vector<int> times(all);
      for (const auto& numbers : taken)
        for (const uint32_t number : numbers)
          if (number >= all || times[number]++) return std::printf("number %u, turn %d, replay %d\n", number, turn, replay), 1;
      for (uint32_t number = 0; number < all; ++number)
        if (!times[number]) return std::printf("nobody took number %u, turn %d, replay %d\n", number, turn, replay), 1;
      if (word != 0 && word != launch) return std::printf("the word is left at %llu\n", word), 1;
    }
  }
  std::puts("all holds");
}
"""


def test_every_tile_is_taken_once(model, tmp_path):
    queue = cut(model._CUDA_SKELETON, "struct TileQueue {", "// A policy has")
    run = host_program(tmp_path, "queue", [QUEUE, queue, QUEUE_MAIN], optimise="-pthread")
    for clusters, count in ((1, 5), (3, 0), (8, 40), (24, 7)):
        run(clusters, count)


# ---- Boxes that are not finite, in the same way. ---------------------------------------------------------------------

EXCHANGE = r"""
inline unsigned long long atomicExch(unsigned long long* at, unsigned long long value) {
  return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
"""

# Some threads find boxes that are not finite, as tiles end, and all take parts, while there are some, before they end: each part that was
# found is taken once. Words hold anything beforehand; and once more, as a graph has it.
NON_FINITE_MAIN = r"""
int main(int, char** arguments) {
  const uint32_t ctas = std::atoi(arguments[1]), boxes = std::atoi(arguments[2]);
  std::mt19937_64 random(ctas * 1000 + boxes);
  for (int turn = 0; turn < 40; ++turn) {
    const uint64_t launch = random();
    std::vector<unsigned long long> words(boxes + 1);
    for (auto& word : words) word = turn % 2 ? random() : launch - (2ull << 32) + turn % 6;
    const NonFinite list = {words.data(), launch, boxes};
    for (int replay = 0; replay < 2; ++replay) {
      if (replay == 0 && list.parts(words[boxes])) return std::printf("something was found beforehand, turn %d\n", turn), 1;
      std::vector<std::vector<uint32_t>> taken(ctas);
      std::vector<std::thread> threads;
      for (uint32_t cta = 0; cta < ctas; ++cta)
        threads.emplace_back([&, cta] {
          for (uint32_t box = cta; box < boxes; box += ctas)
            if (box % 3 == uint32_t(turn) % 3) list.add(box);
          for (uint32_t box = 0; box < boxes; ++box)
            for (int part; (part = list.take(box)) >= 0;) taken[cta].push_back(box * NonFinite::kParts + part);
        });
      for (std::thread& thread : threads) thread.join();
      if (boxes > 2 && !list.parts(words[boxes])) return std::printf("nothing was found, turn %d\n", turn), 1;
      std::vector<int> times(boxes * NonFinite::kParts);
      for (const auto& parts : taken)
        for (const uint32_t part : parts) ++times[part];
      for (uint32_t part = 0; part < times.size(); ++part) {
        const int wanted = part / NonFinite::kParts % 3 == uint32_t(turn) % 3;
        if (times[part] != wanted) return std::printf("part %u was taken %d times, not %d, turn %d\n", part, times[part], wanted, turn), 1;
      }
      for (uint32_t box = 0; box < boxes; ++box)
        if (list.parts(words[box])) return std::printf("box %u has parts left, turn %d\n", box, turn), 1;
    }
  }
  std::puts("all holds");
}
"""


def test_every_box_is_summed_again_once(model, tmp_path):
    boxes = cut(model._CUDA_HALF, "struct NonFinite {", "struct HalfProduct {")
    edges = f"constexpr int kBlock = {BLOCK}, kExactRows = {constant('_CUDA_EXACT', 'kExactRows')};"
    run = host_program(tmp_path, "boxes", [QUEUE, EXCHANGE, edges, boxes, NON_FINITE_MAIN], optimise="-pthread")
    for ctas, count in ((1, 9), (3, 1), (8, 200), (24, 40)):
        run(ctas, count)

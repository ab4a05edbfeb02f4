"""The half-precision kernel without a GPU; see emulation.py: its barriers, its queue, its tensor maps, wgmma on operands in shared memory,
and sums that are not finite, which the exact path recomputes. Copies arrive, and products are computed, at once or as late as possible."""

import emulation
import pytest
from helpers import (
    COMPILER,
    DENSE,
    FAMILY,
    FAMILY_NAMES,
    LOWER,
    MASKED,
    NN,
    NT,
    TN,
    constant,
    every_mask,
    host_program,
    marked,
    masks,
    sizes_for,
)

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("half emulated")]

# The launcher's own code runs on a GPU with few SMs, so that clusters take several tiles. The workspace holds arbitrary words. The kernel
# is launched twice, as a graph is. The first cluster takes as many tiles as it can before the next one begins.
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
template <auto kKernel, typename Product, typename Second>   // of a SixteenBitProduct
void launch_kernel(const Launch& launch, const Product& h, const Second& second) {
  body = [&] { kKernel(h, second); };
  unsigned long long* const end = workspace.data() + workspace.size();
  if (h.queue.word != workspace.data() || h.non_finite.words + h.non_finite.boxes + 1 != end) fail("the workspace is not what is used");
  for (int turn = 0; turn < 2; ++turn) {
    run_clusters(launch);
    if (h.tiles.clusters < h.tiles.count && *h.queue.word != 0 && *h.queue.word != h.queue.launch)   // the latter by one that began late
      fail("the queue is not left empty");
    // Only boxes with an Inf are summed again: a NaN from outside a mask would be another box
    const bool any = h.non_finite.parts(end[-1]);
    if (any != (infinite && is_masked(h.p))) fail("boxes are summed again that are finite, or none where one is not");
    for (const auto* word = h.non_finite.words; word < end - 1; ++word)
      if (h.non_finite.parts(*word)) fail("boxes are not summed again");
  }
  std::printf("%d CTAs a cluster, tiles of %d, %d in halves, %d clusters, %d tiles, %s", launch.cluster, h.tiles.order.edge * kBlock,
              h.tiles.column_split_tiles, h.tiles.clusters, h.tiles.count, h.tiles.diagonal_pairs ? "diagonal pairs, " : "");
}
"""

MAIN = r"""
template <typename T>
int run_type(char** arguments) {
  return run_product<T>(arguments, [&](Product& p) {
    infinite = std::atoi(arguments[12]) % 10 >= 4;
    p.type = std::is_same_v<T, __half> ? kFloat16 : kBFloat16;
    launch_sixteen_bit(p, {std::atoi(arguments[14]), 9, nullptr, allocate});
    if (is_stored_twice(p)) p.symmetric = 0;   // so that nothing is mirrored
  });
}

int main(int, char** arguments) {
  return std::atoi(arguments[13]) ? run_type<__nv_bfloat16>(arguments) : run_type<__half>(arguments);
}
"""


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(contraction, structure, sizes, ...): fails with what the program found wrong, and returns its description of the plan."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER, emulation.on_host(model._CUDA_EXACT)]
    source += [emulation.hopper_skeleton(model), LAUNCH, model._CUDA_SIXTEEN_BIT, model._CUDA_SIXTEEN_BIT_LAUNCH]
    source += emulation.instances(model, "launch_small_", "launch_large_")
    parts = [emulation.PRELUDE, *source, emulation.PRODUCT, MAIN]
    program = host_program(tmp_path_factory.mktemp("half"), "half_kernel", parts)

    def run(contraction, structure, sizes, *, batches=1, sms=2, late=0, x_by_rows=1, y_by_rows=1, kind=0, bfloat16=0):
        pads = [-side % 8 for side in (sizes[0], sizes[1], sizes[2])]
        assert len(set(pads)) == 1, f"{sizes}: one pad for all"
        return program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pads[0], pads[0], kind, bfloat16, sms)

    return run


LATE = pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
EVERY_MEMBER = pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
LAYOUTS = [(0, 0), (0, 1), (1, 1), (1, 0)]  # whether X is stored by rows, whether Y is


@LATE
@EVERY_MEMBER
def test_tiles_of_one_cta_are_right(run, contraction, structure, late):
    """One of the CTAs takes two tiles."""
    sizes, batches = ((180, 180, 180), 1) if structure else ((100, 100, 180), 3)
    for x_by_rows, y_by_rows in LAYOUTS[late::2]:
        laid = {"x_by_rows": x_by_rows, "y_by_rows": y_by_rows, "bfloat16": x_by_rows}
        said = run(contraction, structure, sizes, batches=batches, late=late, **laid)
        assert "1 CTAs a cluster, tiles of 128" in said and "2 clusters" in said


@LATE
@EVERY_MEMBER
def test_tiles_of_two_ctas_are_right(run, contraction, structure, late):
    """One cluster takes all tiles of three products, so that it uses its places in the queue several times."""
    lines = 257 if structure else 385  # with fewer lines small tiles would be faster
    for x_by_rows, y_by_rows in LAYOUTS[1 - late :: 2] if structure == LOWER else LAYOUTS[:1]:
        said = run(contraction, structure, (lines, lines, 257), batches=3, late=late, x_by_rows=x_by_rows, y_by_rows=y_by_rows)
        assert "2 CTAs a cluster, tiles of 256" in said and "1 clusters" in said


@pytest.mark.parametrize("warp", [0, 3, 6])
def test_a_warp_that_is_behind_finds_its_data_unchanged(run, warp):
    """The warp still reads the last box of half a small tile when the other warps of its group write the first box of a whole tile. Tiles
    that are stored twice end with either of the two box buffers."""
    for late in (0, 1):
        said = run(NN, DENSE, (100, 100, 100), batches=5, sms=4, late=2 * warp + 2 + late)
        assert "tiles of 128, 1 in halves, 4 clusters, 6 tiles" in said
        said = run(*MASKED["X X^T"], (1409, 1409, 65), late=2 * warp + 2 + late)
        assert "tiles of 256" in said and "1 clusters" in said
    # Copies at once and late products: a stage may only be released after it has been read
    run(NN, DENSE, (100, 100, 700), batches=3, late=-2 * warp - 2)
    run(NN, LOWER, (516, 516, 516), batches=3, late=-2 * warp - 2)


@pytest.mark.parametrize(("tiles", "batches", "sms"), [(2, 1, 2), (3, 1, 5), (4, 1, 9), (2, 2, 4), (5, 1, 13)])
@pytest.mark.parametrize("name", ["X X^T", "X^T X"])
def test_diagonal_pairs_of_a_symmetric_product_are_right(run, name, tiles, batches, sms):
    """With a last pair that is half empty (an odd number of tiles on the diagonal), with an edge, and with a warp that is behind."""
    for N, late in ((tiles * LARGE // 2 - 60, 0), (tiles * LARGE // 2, 1), (tiles * LARGE // 2 - 4, 2 * tiles + 3)):
        for x_by_rows in (0, 1):
            laid = {"x_by_rows": x_by_rows, "y_by_rows": x_by_rows, "bfloat16": x_by_rows}
            sizes = sizes_for(MASKED[name][1], N, 2 * BLOCK + N % 8)
            said = run(*MASKED[name], sizes, batches=batches, sms=sms, late=late, **laid)
            assert "tiles of 128" in said and "diagonal pairs" in said


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_halved_tiles_are_right(run, contraction):
    """Large and small tiles, of triangles (with an empty right half) and of dense products."""
    said = run(contraction, LOWER, (897,) * 3, late=1, sms=14)
    assert "tiles of 256, 1 in halves" in said
    said = run(contraction, LOWER, (641,) * 3, late=1, sms=30)
    assert "tiles of 128, 10 in halves" in said
    assert "tiles of 256, 1 in halves" in run(contraction, DENSE, (396, 396, 100), sms=6)
    if contraction != NN:  # tiles on the diagonal are not halved
        assert "tiles of 128, 3 in halves" in run(contraction, MASKED["X X^T"][1], (300, 300, 68), late=1, sms=132)
    assert "tiles of 128, 2 in halves" in run(contraction, DENSE, (70, 150, 518), sms=132)


@LATE
@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_ctas_that_share_k_add_their_sums(run, contraction, late):
    assert "2 CTAs a cluster, tiles of 128" in run(contraction, DENSE, (70, 150, 1990), sms=132, late=late)
    assert "4 CTAs a cluster, tiles of 128" in run(contraction, DENSE, (100, 36, 4100), sms=132, late=late)


@EVERY_MEMBER
def test_infinity_stays_where_the_sum_has_it(run, contraction, structure):
    """One Inf, and one Inf in each row of X."""
    for kind in (4, 6):
        run(contraction, structure, (180,) * 3, kind=kind, late=1)
        run(contraction, structure, (257,) * 3, kind=kind)
    run(contraction, structure, (129,) * 3, kind=6, batches=5, bfloat16=1)


def test_infinity_in_more_boxes_than_threads_check_at_once(run):
    run(NN, LOWER, (8,) * 3, kind=6, batches=2050)


@LATE
def test_small_rectangular_products_are_right(run, late):
    for sizes in ((1, 1, 1), (1, 201, 65), (300, 4, 20), (64, 128, 64), (129, 9, 1)):
        for contraction in (NN, NT, TN):
            run(contraction, DENSE, sizes, late=late, y_by_rows=late)


# ---- Every combination of masks. -------------------------------------------------------------------------------------

BLOCK, LARGE = constant("_CUDA_SCHEDULE", "kBlock"), constant("_CUDA_SCHEDULE", "kTileEdge")
FREE_K = {name for name, (_, structure) in MASKED.items() if not any(masks(structure)[:2])}  # neither X nor Y has a mask


@every_mask
def test_tiles_of_one_cta_are_right_for_every_mask(run, contraction, structure):
    """With one row and one column in the last tiles, in every layout of the operands, and with Inf."""
    number = list(MASKED.values()).index((contraction, structure))
    x_by_rows, y_by_rows = LAYOUTS[number % 4]
    options = {"late": number % 2, "x_by_rows": x_by_rows, "y_by_rows": y_by_rows, "bfloat16": number // 2 % 2}
    sms = 3 if any(masks(structure)[:2]) else 132  # masked operands have small tiles up to larger sizes
    said = run(contraction, structure, sizes_for(structure, LARGE // 2 + 1, BLOCK + 1), sms=sms, **options)
    assert "1 CTAs a cluster, tiles of 128" in said
    for kind in (4, 6):
        run(contraction, structure, sizes_for(structure, LARGE // 2 + 4, 4), kind=kind, sms=4, **options)


@every_mask
def test_tiles_of_two_ctas_are_right_for_every_mask(run, contraction, structure):
    """One cluster takes all tiles. Some tiles of a symmetric C write an odd number of boxes, so that tiles begin with either buffer."""
    number = list(MASKED.values()).index((contraction, structure))
    x_by_rows, y_by_rows = LAYOUTS[(number + 2) % 4]
    N, batches = LARGE + 1, 3
    if not any(masks(structure)[:2]):  # with so few tiles small ones would be faster
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
def test_halved_tiles_are_right_for_other_masks(run, name, sms, N, R):
    contraction, structure = MASKED[name]
    said = run(contraction, structure, sizes_for(structure, N, R), sms=sms)
    assert "tiles of 256" in said and " 0 in halves" not in said, said


@pytest.mark.parametrize("name", ["X X^T", "X^T X", "triu(X Y^T)", "X L"])
def test_ctas_that_share_k_add_their_sums_for_other_masks(run, name):
    contraction, structure = MASKED[name]
    N, R = (LARGE // 2 + 6, 31 * BLOCK + 6) if name in FREE_K else (31 * BLOCK + 6, 6)
    assert "2 CTAs a cluster, tiles of 128" in run(contraction, structure, sizes_for(structure, N, R), sms=132, late=name in FREE_K)


@pytest.mark.parametrize("name", ["L L^T", "L^T L", "U U^T", "X X^T"])
def test_a_symmetric_product_that_is_computed_whole_has_symmetric_bits(run, name):
    """Mirrored elements have the same bits although nothing is copied, also where sums are recomputed."""
    contraction, structure = MASKED[name]
    for kind in (10, 14, 16):
        run(contraction, structure, (150,) * 3, batches=2, sms=132, kind=kind)


@pytest.mark.parametrize("name", ["L L^T", "L^T L", "U U^T"])
def test_halves_of_a_symmetric_product_meet_the_same_infinity(run, name):
    """The Inf is at a k that half a tile does not need, and that the whole mirrored tile needs. Both have to be recomputed."""
    assert " 0 in halves" not in run(*MASKED[name], (6 * BLOCK,) * 3, sms=132, kind=18)


def test_four_ctas_share_k_of_a_symmetric_product(run):
    contraction, structure = MASKED["X X^T"]
    said = run(contraction, structure, sizes_for(structure, LARGE // 2 - 26, 64 * BLOCK + 6), sms=132)
    assert "4 CTAs a cluster, tiles of 128" in said


# ---- The queue of tiles, with threads of the system, which run at once. ----------------------------------------------

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

# Clusters take `count` tiles, and then find none. Each number is taken once, whatever the word held before, and whether and whenever
# clusters call begin(). Then the same is launched again, as a graph is.
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


def test_every_tile_is_taken_once(tmp_path):
    run = host_program(tmp_path, "queue", [QUEUE, marked("tile queue"), QUEUE_MAIN], optimise="-pthread")
    for clusters, count in ((1, 5), (3, 0), (8, 40), (24, 7)):
        run(clusters, count)


# ---- Boxes that are not finite, with threads of the system. ----------------------------------------------------------

EXCHANGE = r"""
inline unsigned long long atomicExch(unsigned long long* at, unsigned long long value) {
  return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
"""

# Some threads add boxes that are not finite, and all threads take parts until there are none. Each part of an added box is taken once. The
# words hold arbitrary values beforehand. Then the same is launched again, as a graph is.
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


def test_every_box_is_summed_again_once(tmp_path):
    edges = f"constexpr int kBlock = {BLOCK}, kExactRows = {constant('_CUDA_EXACT', 'kExactRows')};"
    run = host_program(tmp_path, "boxes", [QUEUE, EXCHANGE, edges, marked("non-finite boxes"), NON_FINITE_MAIN], optimise="-pthread")
    for ctas, count in ((1, 9), (3, 1), (8, 200), (24, 40)):
        run(ctas, count)

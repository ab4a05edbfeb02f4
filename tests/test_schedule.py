"""The order of tiles and of packing, on the host: the functions of the CUDA source that compute them are compiled by the C++ compiler and
walked through. Every tile comes once, the long ones first; every block is packed once, and whoever waits for it waits for the right count.
"""

import re
import shutil
import subprocess
import textwrap

import pytest

COMPILER = next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")


def between(source, name, begin, end):
    """The text from one marker up to another."""
    for marker in (begin, end):
        assert source.count(marker) == 1, (
            f"{name} of model_new.py holds the marker {marker!r} {source.count(marker)} times, not once; tests/test_schedule.py finds the"
            " schedule by it: name the new one there"
        )
    first, last = source.index(begin), source.index(end)
    assert first < last, f"in {name} of model_new.py the marker {end!r} no longer follows {begin!r}"
    return source[first:last]


def constant(model, name):
    """The line that defines a whole-number constant."""
    found = re.search(rf"^(?:\[\[maybe_unused\]\] )?constexpr int {name} = \d+;", "\n".join(model._CUDA_SOURCES), re.MULTILINE)
    assert found, f"model_new.py no longer defines 'constexpr int {name} = <number>;'; tests/test_schedule.py needs it"
    return found[0]


PRELUDE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>
#include <vector>
using std::max;
using std::min;
#define __device__
#define __host__
#define __align__(n) alignas(n)
struct Record;
struct Control;
"""

HARNESS = r"""
#define CHECK(holds, ...)                               \
  do {                                                  \
    if (!(holds)) {                                     \
      std::printf("line %d, %s: ", __LINE__, #holds);   \
      std::printf(__VA_ARGS__);                         \
      std::printf("\n");                                \
      std::exit(1);                                     \
    }                                                   \
  } while (0)

// The least and the largest k that the sums of a tile's elements have, and whether there are any.
void range_of_k(const Product& p, int m0, int m1, int n0, int n1, int& begin, int& end) {   // m0 .. m1 - 1, n0 .. n1 - 1
  begin = 0, end = p.k;
  if (!p.triangular) return;
  if (p.contraction == kNN) begin = n0, end = m1;
  else if (p.contraction == kNT) end = n1;
  else begin = m0;
}

// ---- The portable kernel's tiles.

void check_tiles(Contraction contraction, int m, int n, int k, int triangular, int edge) {
  Product p = {};
  p.m = m, p.n = n, p.k = k, p.triangular = triangular, p.contraction = contraction;
  const int rows = (m + edge - 1) / edge, cols = (n + edge - 1) / edge;
  int64_t expected = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) expected += !triangular || j <= i;
  const int64_t count = tile_count(p, edge);
  CHECK(count == expected, "%lld tiles, expected %lld", (long long)count, (long long)expected);
  std::vector<char> seen(static_cast<size_t>(rows) * cols, 0);
  int before = 0x7FFFFFFF;
  for (int64_t rank = 0; rank < count; ++rank) {
    const Tile t = tile_at(p, edge, rank);
    CHECK(t.i >= 0 && t.i < rows && t.j >= 0 && t.j < cols && (!triangular || t.j <= t.i),
          "rank %lld: tile %d, %d", (long long)rank, t.i, t.j);
    CHECK(!seen[static_cast<size_t>(t.i) * cols + t.j]++, "tile %d, %d comes twice", t.i, t.j);
    int begin, end;
    range_of_k(p, t.i * edge, min(m, (t.i + 1) * edge), t.j * edge, min(n, (t.j + 1) * edge), begin, end);
    CHECK(t.k_begin == begin && t.k_end == end, "tile %d, %d sums k = %d .. %d, not %d .. %d", t.i, t.j, t.k_begin,
          t.k_end - 1, begin, end - 1);
    CHECK(end - begin <= before, "tile %d, %d is %d long, after one of %d", t.i, t.j, end - begin, before);
    before = end - begin;
  }
}

void check_roots() {
  uint64_t random = 12345;
  for (int t = 0; t < 2000000; ++t) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const int64_t r = t < 100000 ? t : static_cast<int64_t>(random >> 33) % (kMaxSize / 32 + 2);
    for (int64_t q : {triangle(r), triangle(r) + r, triangle(r) + r / 2})
      CHECK(triangle_root(q) == r, "the root of %lld is %d, not %lld", (long long)q, triangle_root(q), (long long)r);
  }
}

// ---- The Hopper kernel's packing and its items.

template <Contraction kC>
void check_hopper(int m, int n, int k, int triangular, int longest_item) {
  HopperProduct p = {};
  p.m = m, p.n = n, p.k = k, p.triangular = triangular, p.contraction = kC;
  p.lines_x = blocks_in(m), p.lines_y = blocks_in(n), p.slabs = blocks_in(k);
  p.longest_item = max(1, min(longest_item, p.slabs));
  p.parts = parts_in(max(p.lines_x, p.lines_y));
  p.jobs = triangular ? p.slabs * (p.slabs + 1) : p.slabs * (p.lines_x + p.lines_y);
  p.x.triangular = p.y.triangular = triangular;   // as stored: TN keeps X, and NT keeps Y, the other way round
  p.x.block_cols = kC == kTN ? p.lines_x : p.slabs;
  p.y.block_cols = kC == kNT ? p.slabs : p.lines_y;
  const int64_t x_blocks = triangular ? triangle(p.slabs) : static_cast<int64_t>(p.slabs) * p.lines_x;
  const int64_t y_blocks = triangular ? triangle(p.slabs) : static_cast<int64_t>(p.slabs) * p.lines_y;
  std::vector<int> ready(static_cast<size_t>(p.slabs) * 2 * p.parts, 0);
  p.ready = ready.data();

  // Packing: every block once, each in a place of its own, whether the walk comes from the start or not.
  std::vector<char> packed_x(x_blocks, 0), packed_y(y_blocks, 0);
  Jobs jobs;
  for (int q = 0; q < p.jobs; ++q) {
    const Job job = jobs.at<kC>(p, q);
    if (q % 7 == 0) {
      Jobs anew;
      const Job same = anew.at<kC>(p, q);
      CHECK(same.of_x == job.of_x && same.line == job.line && same.k == job.k && same.add == job.add,
            "job %d differs from a new walk's", q);
    }
    CHECK(job.k >= 0 && job.k < p.slabs && job.line >= 0, "job %d: line %d, slab %d", q, job.line, job.k);
    CHECK(job.of_x ? has_x<kC>(p, job.line, job.k) : has_y<kC>(p, job.line, job.k),
          "job %d: no such block, line %d, slab %d", q, job.line, job.k);
    const int64_t place = job.of_x ? x_block<kC>(p, job.line, job.k) : y_block<kC>(p, job.line, job.k);
    CHECK(place >= 0 && place < (job.of_x ? x_blocks : y_blocks), "job %d: place %lld", q, (long long)place);
    CHECK(!(job.of_x ? packed_x : packed_y)[place]++, "job %d: the block in line %d, slab %d is packed twice", q, job.line, job.k);
    CHECK(part_of<kC>(p, job.of_x, job.line) == job.part && job.part < p.parts, "job %d: line %d is in part %d", q, job.line, job.part);
    int* const count = ready_count(p, job.of_x, job.part, job.k);
    CHECK(count >= ready.data() && count < ready.data() + ready.size(), "job %d: its count lies outside", q);
    *count += job.add;
  }
  for (int64_t b = 0; b < x_blocks; ++b) CHECK(packed_x[b], "block %lld of X is never packed", (long long)b);
  for (int64_t b = 0; b < y_blocks; ++b) CHECK(packed_y[b], "block %lld of Y is never packed", (long long)b);
  for (int count : ready) CHECK(count == 0 || count == kReady, "a count ends as %d", count);

  // Items: every slab that a pair of tiles needs, once.
  const int rows = (m + kTileEdge - 1) / kTileEdge, pairs = (n + 2 * kTileEdge - 1) / (2 * kTileEdge);
  std::map<std::pair<int, int>, std::vector<char>> summed;
  Items items;
  Item item;
  int count = 0, before = 0x7FFFFFFF;
  for (; items.find(p, count, item); ++count) {
    if (count % 5 == 0) {
      Items anew;
      Item same;
      CHECK(anew.find(p, count, same) && same.i == item.i && same.pair == item.pair && same.begin == item.begin && same.end == item.end &&
                same.piece == item.piece,
            "item %d differs from a new walk's", count);
    }
    const int length = item.end - item.begin;
    CHECK(item.i >= 0 && item.i < rows && item.pair >= 0 && item.pair < pairs, "item %d: row %d, pair %d", count, item.i, item.pair);
    CHECK(!triangular || 2 * item.pair <= item.i, "item %d: row %d, pair %d is above the diagonal", count, item.i, item.pair);
    CHECK(item.begin >= 0 && item.end <= p.slabs && length > 0, "item %d: slabs %d .. %d", count, item.begin, item.end - 1);
    CHECK(length <= p.longest_item, "item %d is %d long, longer than %d", count, length, p.longest_item);
    // A pair of tiles on the diagonal may be shorter, by the two slabs of one tile, than others of its group.
    if (item.piece < 0) {
      CHECK(length - 2 <= before, "item %d is %d long, after one of %d", count, length, before);
      before = min(before, length);
    }
    std::vector<char> mine(p.slabs, 0);
    std::vector<char>& all = summed[{item.i, item.pair}];
    all.resize(p.slabs, 0);
    const int x_part = part_of<kC>(p, true, 2 * item.i), y_part = part_of<kC>(p, false, 4 * item.pair);
    for (int t = 0; t < length; ++t) {
      const int slab = Items::slab_at<kC>(p, item, t);
      CHECK(slab >= item.begin && slab < item.end && !mine[slab]++, "item %d: slab %d at time %d", count, slab, t);
      CHECK(!all[slab]++, "item %d: slab %d of row %d, pair %d is summed twice", count, slab, item.i, item.pair);
      CHECK(*ready_count(p, true, x_part, slab) == kReady, "item %d would wait for X in slab %d for ever", count, slab);
      CHECK(*ready_count(p, false, y_part, slab) == kReady, "item %d would wait for Y in slab %d for ever", count, slab);
      for (int u = 0; u < 2; ++u)
        CHECK(!has_x<kC>(p, 2 * item.i + u, slab) || part_of<kC>(p, true, 2 * item.i + u) == x_part, "item %d: X in two parts", count);
      for (int u = 0; u < 4; ++u)
        CHECK(!has_y<kC>(p, 4 * item.pair + u, slab) || part_of<kC>(p, false, 4 * item.pair + u) == y_part,
              "item %d: Y in two parts", count);
    }
  }
  for (int again = 0; again < 3; ++again) CHECK(!items.find(p, count + again, item), "there are items after the last");
  for (int i = 0; i < rows; ++i)
    for (int pair = 0; pair < pairs; ++pair) {
      if (triangular && 2 * pair > i) continue;
      const auto key = std::make_pair(i, pair);
      CHECK(summed.count(key), "row %d, pair %d never comes", i, pair);
      for (int slab = 0; slab < p.slabs; ++slab) {
        bool needed = false;
        for (int u = 0; u < 2; ++u)
          for (int v = 0; v < 4; ++v) {
            const bool exists = !triangular || 2 * pair + v / 2 <= i;
            needed |= exists && has_x<kC>(p, 2 * i + u, slab) && has_y<kC>(p, 4 * pair + v, slab);
          }
        CHECK(!needed || summed[key][slab], "row %d, pair %d lacks slab %d", i, pair, slab);
      }
    }
  std::printf("%d items, ", count);
}

int main(int, char** arguments) {
  int a[6] = {};
  for (int i = 0; i < 6 && arguments[2 + i]; ++i) a[i] = std::atoi(arguments[2 + i]);
  const Contraction contraction = static_cast<Contraction>(a[0]);
  switch (arguments[1][0]) {
    case 't': check_tiles(contraction, a[1], a[2], a[3], a[4], a[5]); break;
    case 'r': check_roots(); break;
    default:
      if (contraction == kNN) check_hopper<kNN>(a[1], a[2], a[3], a[4], a[5]);
      else if (contraction == kNT) check_hopper<kNT>(a[1], a[2], a[3], a[4], a[5]);
      else check_hopper<kTN>(a[1], a[2], a[3], a[4], a[5]);
  }
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
    """run('tiles' or 'hopper' or 'roots', numbers ...): fails with what the program found wrong."""
    hopper = model._CUDA_HOPPER
    parts = [
        PRELUDE,
        between(model._CUDA_SHARED, "_CUDA_SHARED", "enum Contraction", "// Launches on"),
        model._CUDA_SCHEDULE,
        constant(model, "kTileEdge"),
        constant(model, "kPartLines"),
        constant(model, "kBlock"),
        between(model._CUDA_PACKING, "_CUDA_PACKING", "// One packed matrix.", "// Where in the hi (or lo) half"),
        between(hopper, "_CUDA_HOPPER", "struct HopperProduct {", "// One step of the pipeline"),
        between(hopper, "_CUDA_HOPPER", "// Two tiles side by side", "constexpr int kNoMoreItems"),
        between(hopper, "_CUDA_HOPPER", "// ---- Geometry of tiles", "// One thread of the cluster takes"),
        HARNESS,
    ]
    room = tmp_path_factory.mktemp("schedule")
    (room / "schedule.cpp").write_text("\n".join(parts))
    built = subprocess.run([COMPILER, "-O1", "-std=c++17", "-o", "schedule", "schedule.cpp"], capture_output=True, text=True, cwd=room)
    assert built.returncode == 0, "the schedule of model_new.py does not compile on the host:\n" + textwrap.shorten(built.stderr, 4000)

    def run(*arguments):
        done = subprocess.run([room / "schedule", *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0 or "all holds" not in done.stdout:
            pytest.fail(f"{' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stdout}{done.stderr}", pytrace=False)

    return run


CONTRACTIONS = {"NN": 0, "NT": 1, "TN": 2}
NEVER = 2**31 - 1
RECTANGLES = [(2048, 4096, 8192), (300, 700, 500), (3000, 5000, 1000), (1, 5000, 70), (5000, 1, 70), (129, 257, 1), (64, 4097, 4095)]


@pytest.mark.parametrize("edge", [32, 64, 128])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_the_portable_kernel_takes_each_lower_tile_once_longest_first(program, contraction, edge):
    for N in (1, 31, 32, 33, 64, 65, 127, 128, 129, 300, 640, 1000, 2048, 4096):
        program("tiles", CONTRACTIONS[contraction], N, N, N, 1, edge)


@pytest.mark.parametrize("edge", [32, 64, 128])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_the_portable_kernel_takes_each_tile_of_a_rectangle_once(program, contraction, edge):
    for sizes in RECTANGLES:
        program("tiles", CONTRACTIONS[contraction], *sizes, 0, edge)


def test_the_root_of_a_triangular_number_is_exact(program):
    program("roots")


@pytest.mark.parametrize("longest_item", [4, 7, 12, 30, NEVER])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_packing_and_items_of_triangles(program, contraction, longest_item):
    for N in (1, 64, 65, 128, 129, 192, 300, 640, 1000, 1280, 2048, 2080, 2100, 4000, 4096, *((8192,) if longest_item == NEVER else ())):
        program("hopper", CONTRACTIONS[contraction], N, N, N, 1, longest_item)


@pytest.mark.parametrize("longest_item", [4, 7, NEVER])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_packing_and_items_of_rectangles(program, contraction, longest_item):
    for sizes in RECTANGLES:
        program("hopper", CONTRACTIONS[contraction], *sizes, 0, longest_item)

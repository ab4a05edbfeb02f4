"""The order of tiles, on the host: the functions of the CUDA source that compute it are compiled by the C++ compiler and walked through.
Every tile comes once, the long ones first; every packed block and every partial sum has a place of its own; a split waits for earlier ones.
"""

import itertools
import sys

import pytest
from helpers import COMPILER, HOST_PRELUDE, host_program, marked, module

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("schedule")]


CHECK = r"""
#define CHECK(holds, ...)                               \
  do {                                                  \
    if (!(holds)) {                                     \
      std::printf("line %d, %s: ", __LINE__, #holds);   \
      std::printf(__VA_ARGS__);                         \
      std::printf("\n");                                \
      std::exit(1);                                     \
    }                                                   \
  } while (0)

"""

PRODUCT_OF = r"""
// Masks: 1 for X, 2 for Y, as they are stored, lower triangular; 4 for C.
Product product_of(Contraction contraction, int m, int n, int k, int masks, int batches = 1) {
  Product p = {};
  p.m = m, p.n = n, p.k = k, p.batches = batches;
  if (masks & 1) p.x_range = contraction == kTN ? KRange::kFromDiagonal : KRange::kToDiagonal;   // TN: stored k x m
  if (masks & 2) p.y_range = contraction == kNT ? KRange::kToDiagonal : KRange::kFromDiagonal;   // NT: stored n x k
  p.c_lower = masks >> 2 & 1, p.symmetric = masks >> 3;
  return p;
}

"""

HARNESS = r"""
// The k that the sums of a tile's elements may have: rows m0 .. m1 - 1 of X, and columns n0 .. n1 - 1 of Y.
void range_of_k(const Product& p, int m0, int m1, int n0, int n1, int& begin, int& end) {
  begin = 0, end = p.k;
  if (p.x_range == KRange::kFromDiagonal) begin = max(begin, m0);
  if (p.x_range == KRange::kToDiagonal) end = min(end, m1);
  if (p.y_range == KRange::kToDiagonal) end = min(end, n1);
  if (p.y_range == KRange::kFromDiagonal) begin = max(begin, n0);
}

// ---- The tiles of the exact, the split-tf32 and the mma kernel.

void check_tiles(Contraction contraction, int m, int n, int k, int masks, int edge) {
  const Product p = product_of(contraction, m, n, k, masks);
  const int rows = (m + edge - 1) / edge, cols = (n + edge - 1) / edge;
  int64_t expected = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) expected += !p.c_lower || j <= i;
  const TileOrder order = TileOrder::make(p, edge);
  const int64_t count = order.count();
  CHECK(count == expected, "%lld tiles, expected %lld", (long long)count, (long long)expected);
  std::vector<char> seen(static_cast<size_t>(rows) * cols, 0);
  int before = 0x7FFFFFFF;
  for (int64_t rank = 0; rank < count; ++rank) {
    const Tile t = order.find_tile(int(rank));
    CHECK(t.i >= 0 && t.i < rows && t.j >= 0 && t.j < cols && (!p.c_lower || t.j <= t.i),
          "rank %lld: tile %d, %d", (long long)rank, t.i, t.j);
    CHECK(!seen[static_cast<size_t>(t.i) * cols + t.j]++, "tile %d, %d comes twice", t.i, t.j);
    int begin, end;
    range_of_k(p, t.i * edge, min(m, (t.i + 1) * edge), t.j * edge, min(n, (t.j + 1) * edge), begin, end);
    CHECK(t.k_begin == begin && t.k_end == end, "tile %d, %d sums k = %d .. %d, not %d .. %d", t.i, t.j, t.k_begin,
          t.k_end - 1, begin, end - 1);
    CHECK(end - begin <= before && begin < end, "tile %d, %d is %d long, after one of %d", t.i, t.j, end - begin, before);
    before = end - begin;
  }
  // Groups have the tiles in that order; those of one are equally long, but for what an edge cuts off
  int64_t rank = 0;
  for (int group = 0; group < order.groups(); ++group)
    for (int64_t at = 0; at < order.tiles_in_group(group); ++at, ++rank) {
      CHECK(rank < count, "group %d has more tiles than there are", group);
      const Tile t = order.find_tile(int(rank));
      const int length = t.k_end - t.k_begin, of_group = order.length(group);
      CHECK(length <= of_group && of_group - length < edge, "tile %d, %d is %d long, and its group %d", t.i, t.j, length, of_group);
    }
  CHECK(rank == count && order.count() == count, "the groups have %lld tiles of %lld", (long long)rank, (long long)count);
}

void check_roots() {
  uint64_t random = 12345;
  for (int t = 0; t < 2000000; ++t) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const int64_t r = t < 100000 ? t : static_cast<int64_t>(random >> 33) % (kMaxSize / 32 + 2);
    for (int64_t q : {triangle(r), triangle(r) + r, triangle(r) + r / 2}) {
      const int small = static_cast<int>(q);   // tiles, and blocks, have numbers of one word
      if (small == q) CHECK(triangle_root(small) == r, "the root of %d is %d, not %lld", small, triangle_root(small), (long long)r);
    }
    // Of all of C, both operands triangular, group g begins at g * g
    const int side = int(std::min<int64_t>(r, 46340));
    const TileOrder order = {46341, 46341, KRange::kFromDiagonal, KRange::kFromDiagonal, 0};
    for (const int at : {0, side, 2 * side})
      if (const int64_t place = int64_t(side) * side + at; place <= 2147483647) {
        const Tile found = order.find_tile(int(place));
        const int both = at <= side ? 2 * side - at : at - 1;
        CHECK(max(found.i, found.j) == side && found.i + found.j == both, "place %d of group %d", at, side);
      }
  }
}

// ---- The plan of the split-tf32 and the mma kernel.

void check_plan(Contraction contraction, int m, int n, int k, int masks, int at_once, int batches, int block_k) {
  static float elements[512];   // where the products of the batch begin: one after the other in x, two apart in y, and so on
  Product p = product_of(contraction, m, n, k, masks, batches);
  p.batch_dims = batches % 4 ? 1 : 3, p.batch_size[0] = batches >> (p.batch_dims - 1), p.batch_size[1] = p.batch_size[2] = 2;
  for (int64_t d = 0, step = batches; d < p.batch_dims; ++d)
    step /= p.batch_size[d], p.x_batch[d] = step, p.y_batch[d] = 2 * step;
  p.x = p.y = p.c = elements, p.c_batch = 3;
  const int spread = at_once / 3;   // clusters, over all SMs
  const SplitPlan plan = choose_split_plan(p, block_k, at_once, spread);
  const int rows = ceil_div(m, kBlock), cols = ceil_div(n, kBlock), size = plan.cluster_size;
  const int64_t tiles = p.c_lower ? triangle(rows) : static_cast<int64_t>(rows) * cols;
  const int clusters = static_cast<int>(plan.clusters);
  CHECK(size == 1 ? clusters == tiles : size == SplitPlan::kMostSplits && clusters >= 1, "%d clusters of %d", clusters, size);
  CHECK(size == 1 || clusters * batches <= at_once || tiles * batches > at_once * size, "%d clusters of %d, of which %d are there at once",
        clusters, size, at_once);
  std::map<std::tuple<int64_t, int, int>, int> seen;   // by product and tile
  std::vector<double> loads(size > 1 ? clusters : 0);  // the most that a CTA of a cluster sums, in whole blocks
  for (int cluster = 0; cluster < clusters * batches; ++cluster)
    for (int rank = 0; rank < size;) {
      const WorkTile<float> first = find_work<float>(p, plan, cluster, rank, block_k);
      if (first.tile.i < 0) {
        ++rank;
        continue;
      }
      const int i = first.tile.i, j = first.tile.j;
      const int64_t batch = first.x - elements;
      CHECK(batch >= 0 && batch < batches && first.y - elements == 2 * batch && first.c - elements == 3 * batch, "product %lld",
            (long long)batch);
      CHECK(i >= 0 && i < rows && j >= 0 && j < cols && (!p.c_lower || j <= i), "tile %d, %d", i, j);
      CHECK(!seen[std::make_tuple(batch, i, j)]++, "tile %d, %d comes twice", i, j);
      int begin, end;
      range_of_k(p, i * kBlock, min(m, (i + 1) * kBlock), j * kBlock, min(n, (j + 1) * kBlock), begin, end);
      CHECK((first.splits == 1 || first.splits == size / 2 || first.splits == size) && rank % first.splits == 0,
            "%d splits from rank %d of %d on", first.splits, rank, size);
      if (size > 1 && batch == 0)
        loads[cluster / batches] = max(loads[cluster / batches], static_cast<double>(ceil_div(end - begin, kBlock)) / first.splits);
      for (int split = 0; split < first.splits; ++split, ++rank) {
        const WorkTile<float> place = find_work<float>(p, plan, cluster, rank, block_k);
        CHECK(place.tile.i == i && place.tile.j == j && place.x == first.x && place.splits == first.splits &&
                  place.split == split,
              "rank %d has split %d of %d of tile %d, %d, not split %d of %d of %d, %d", rank, place.split, place.splits, place.tile.i,
              place.tile.j, split, first.splits, i, j);
        CHECK(place.k_begin == begin && place.k_blocks >= 0, "split %d of %d begins at %d, not %d", split, first.splits, place.k_begin,
              begin);
        begin += place.k_blocks * block_k;
      }
      CHECK(begin >= end && begin < end + block_k, "tile %d, %d is summed up to %d, not %d", i, j, begin, end);
    }
  CHECK(static_cast<int64_t>(seen.size()) == tiles * batches, "%zu tiles, expected %lld", seen.size(), (long long)(tiles * batches));
  for (size_t at = 1; at < loads.size(); ++at) {   // by their lengths, which the last group's edge may leave a block above
    const int rising = clusters * batches <= at_once ? min(clusters, spread / batches) : 0;
    const bool rises = static_cast<int>(at) < rising, falls = static_cast<int>(at) > rising;
    CHECK(!rises || loads[at - 1] <= loads[at] + 1, "cluster %zu has less to do than the one before", at);
    CHECK(!falls || loads[at - 1] + 1 >= loads[at], "cluster %zu has more to do than the one before", at);
  }
}

// ---- The tiles of float32's kernel on Hopper.

void check_hopper(Contraction contraction, int m, int n, int k, int masks, int clusters, int products, int batches) {
  Fp16x3Product h = {};
  const Product& p = h.p = product_of(contraction, m, n, k, masks, batches);
  const int k_blocks = ceil_div(k, kBlock);
  h.tiles = choose_split_tiles(p, clusters, products);
  const ClusterTiles& tiles = h.tiles;
  CHECK(tiles.order.depth == k_blocks, "%d k-blocks", tiles.order.depth);
  const bool by_row[] = {k_is_row(kX, p), k_is_row(kY, p)};
  CHECK(!p.x_range || by_row[0] == (contraction == kTN), "X is not packed as a lower triangle");
  CHECK(!p.y_range || by_row[1] == (contraction != kNT), "Y is not packed as a lower triangle");
  h.x.triangular = p.x_range != KRange::kAll, h.y.triangular = p.y_range != KRange::kAll;
  h.x.block_cols = by_row[0] ? ceil_div(m, kBlock) : k_blocks, h.y.block_cols = by_row[1] ? ceil_div(n, kBlock) : k_blocks;

  // Blocks: each has a place of its own, and they fill what there is.
  for (int of_x = 0; of_x < 2; ++of_x) {
    const int lines = of_x ? ceil_div(m, kBlock) : ceil_div(n, kBlock);
    const int64_t blocks = (of_x ? p.x_range : p.y_range) ? triangle(k_blocks) : static_cast<int64_t>(k_blocks) * lines;
    std::vector<char> taken(blocks, 0);
    int64_t count = 0;
    for (int line = 0; line < lines; ++line)
      for (int k_block = 0; k_block < k_blocks; ++k_block) {
        if (!has_block(h, of_x ? kX : kY, line, k_block)) continue;
        const int64_t place = of_x ? find_block(h, kX, by_row[0], line, k_block) : find_block(h, kY, by_row[1], line, k_block);
        CHECK(place >= 0 && place < blocks && !taken[place]++, "the block in line %d, k-block %d is at %lld", line, k_block,
              (long long)place);
        ++count;
      }
    CHECK(count == blocks, "%lld of %lld blocks", (long long)count, (long long)blocks);
    CHECK(!has_block(h, of_x ? kX : kY, lines, 0), "there is a block beyond the last line");
  }

  // Work tiles: every k-block that a tile needs, once; and a place for the partial sums of every split but a tile's last.
  constexpr int kEdge = kTileEdge / kBlock;
  const int rows = ceil_div(m, kTileEdge), cols = ceil_div(n, kTileEdge), places = tiles.partial_slots * batches;   // of all products
  std::map<std::pair<int, int>, std::vector<char>> summed;
  std::map<std::tuple<int, int, int>, int> next_split;
  std::vector<char> place_taken(places, 0);
  int before = 0x7FFFFFFF, splits = 0;
  std::vector<int> busy(clusters);   // for how many k-blocks
  for (int number = 0; number < tiles.count; ++number) {
    const ClusterTile tile = tiles.find_split(number);
    splits = max(splits, tile.splits);
    const int length = tile.k_end - tile.k_begin, i = tile.row / kEdge, j = tile.col / kEdge;
    CHECK(tile.row % kEdge == 0 && tile.col % kEdge == 0 && tile.cols == kEdge, "tile %d: %d, %d", number, tile.row, tile.col);
    CHECK(i >= 0 && i < rows && j >= 0 && j < cols, "tile %d: row %d, column %d", number, i, j);
    CHECK(!p.c_lower || j <= i, "tile %d: row %d, column %d is above the diagonal", number, i, j);
    CHECK(tile.k_begin >= 0 && tile.k_end <= k_blocks && length > 0, "tile %d: k-blocks %d .. %d", number, tile.k_begin, tile.k_end - 1);
    CHECK(length <= (tiles.order.masked() || tile.splits > 1 ? tiles.longest : k_blocks),
          "tile %d is %d long, longer than %d", number, length, tiles.longest);
    const int first_free = static_cast<int>(std::min_element(busy.begin(), busy.end()) - busy.begin());   // whoever is done first takes it
    busy[first_free] += length;
    CHECK(tile.batch == number % batches, "tile %d is of product %d", number, tile.batch);   // they take turns
    if (tile.splits == 1) {   // a tile on the edge may be shorter than others of its group, by less than its own edge
      CHECK(length - (kEdge - 1) <= before, "tile %d is %d long, after one of %d", number, length, before);
      before = min(before, length);
    }
    // A split waits for the splits before it: they must have been handed out.
    int& next = next_split[std::make_tuple(i, j, tile.batch)];
    CHECK(tile.split == next++ && tile.split < tile.splits, "tile %d is split %d of %d", number, tile.split, tile.splits);
    if (tile.split < tile.splits - 1) {
      const int place = tile.partial_slot + tile.split;
      CHECK(place >= 0 && place < places && !place_taken[place]++, "tile %d: its partial sums have place %d of %d", number, place, places);
    }
    if (tile.batch > 0) continue;
    std::vector<char>& all = summed[std::make_pair(i, j)];
    all.resize(k_blocks, 0);
    for (int at = 0; at < length; ++at) {
      const int k_block = tiles.k_block(tile, at);
      CHECK(k_block >= tile.k_begin && k_block < tile.k_end && !all[k_block]++, "tile %d: k-block %d of row %d, column %d is summed twice",
            number, k_block, i, j);
    }
  }
  if (!tiles.order.masked()) {   // equally long tiles: those that are left over are cut, if all are then done sooner
    const int64_t whole = (int64_t(rows) * cols * batches + clusters - 1) / clusters * k_blocks;
    const int64_t last = *std::max_element(busy.begin(), busy.end());
    CHECK(p.c_lower || (splits > 1 ? last < whole : last == whole), "the last is done after %lld, uncut after %lld", (long long)last,
          (long long)whole);
  }
  for (char taken : place_taken) CHECK(taken, "there are more places for partial sums than splits");
  int64_t work = 0;   // of one product
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) {
      if (p.c_lower && j > i) continue;
      const auto key = std::make_pair(i, j);
      CHECK(summed.count(key), "row %d, column %d never comes", i, j);
      for (int k_block = 0; k_block < k_blocks; ++k_block) {
        bool needed = false;
        for (int u = 0; u < kEdge; ++u)
          for (int v = 0; v < kEdge; ++v)
            needed |= has_block(h, kX, kEdge * i + u, k_block) && has_block(h, kY, kEdge * j + v, k_block);
        CHECK(needed == summed[key][k_block], "row %d, column %d has k-block %d, or lacks it", i, j, k_block);
        work += needed;
      }
    }
  const int64_t assumed = tiles.order.work();
  CHECK(work <= assumed && assumed - work < kEdge * static_cast<int64_t>(summed.size()), "work of %lld, not %lld", (long long)assumed,
        (long long)work);
  std::printf("%d tiles, ", tiles.count);
}

// ---- The half-precision kernel's tiles, as its plan says, of a batch.

void check_half(Contraction contraction, int m, int n, int k, int masks, int batches, int sms);

// What is computed apart: where it begins in memory, and its own tiles.
void check_apart(const Product& p, int tiles, int sms) {
  Product strides = p;
  strides.x_row = 1000, strides.x_col = 3, strides.y_row = 2000, strides.y_col = 5, strides.c_row = 7000, strides.c_col = 11;
  const Product q = last_on_diagonal(strides, tiles);
  const ClusterTiles apart = choose_sixteen_bit_tiles(q, {sms, 9});
  CHECK(apart.splits == 4 && !apart.tail_tiles && q.m == 256 && q.n == 256 && q.k == p.k, "%d tiles apart", tiles);
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t first = p.m - (tiles - tile) * 256;
    auto offset = [&](const void* to, int64_t batch) { return reinterpret_cast<intptr_t>(to) / 2 + tile * batch; };
    CHECK(offset(q.x, q.x_batch[0]) == first * 1000 && offset(q.y, q.y_batch[0]) == first * 5 && offset(q.c, q.c_batch) == first * 7011,
          "tile %d apart", tile);
  }
  check_half(kNN, 256, 256, p.k, p.c_lower << 2 | p.symmetric << 3, tiles, sms);
}

void check_half(Contraction contraction, int m, int n, int k, int masks, int batches, int sms) {
  const Product p = product_of(contraction, m, n, k, masks, batches);
  const bool triangular = p.x_range || p.y_range;
  const ClusterTiles tiles = choose_sixteen_bit_tiles(p, {sms, 9});
  if (tiles.tail_tiles) check_apart(p, tiles.tail_tiles, sms);
  // blocks from there on are of the tail tiles, on the diagonal
  const int apart_from = ceil_div(m, kBlock) - tiles.tail_tiles * tiles.order.edge;
  const int m_blocks = ceil_div(m, kBlock), n_blocks = ceil_div(n, kBlock), k_blocks = ceil_div(k, kBlock), splits = tiles.splits;
  const int ctas = tiles.order.edge == 4 ? 2 : splits;   // of a cluster
  CHECK(tiles.count <= kMaxSize && tiles.column_split_tiles >= 0 && 2 * tiles.column_split_tiles <= tiles.count,
        "%d numbers, %d tiles in halves", tiles.count,
        tiles.column_split_tiles);
  CHECK(tiles.clusters >= 1 && tiles.clusters <= tiles.count && tiles.clusters * ctas <= sms, "%d clusters", tiles.clusters);
  CHECK(splits == 1 || (tiles.clusters == tiles.count && tiles.order.edge == 2), "CTAs that share k take %d tiles", tiles.count);
  CHECK(triangular || splits > 1 || tiles.order.edge == 2 || 2 * tiles.column_split_tiles <= tiles.clusters,
        "%d dense tiles in halves", tiles.column_split_tiles);
  CHECK(triangular || !tiles.column_split_tiles || tiles.count <= sms / ctas || tiles.count - tiles.column_split_tiles > sms / ctas,
        "halves make more numbers, %d, than there is room for at once", tiles.count);
  std::map<std::tuple<int, int, int>, std::vector<char>> summed;   // by product and block of C
  auto is_masked = [&](const ClusterTile& tile, int k) {
    const uint32_t x = k - first_on_diagonal(p.x_range, tile.row), y = k - first_on_diagonal(p.y_range, tile.col);
    return x < static_cast<uint32_t>(tiles.order.edge) || y < static_cast<uint32_t>(tile.cols);
  };
  int before = 1 << 30;
  for (int number = 0; number < tiles.count; ++number) {
    const ClusterTile tile = tiles.find_tile(number);
    const bool half = number < 2 * tiles.column_split_tiles, beyond = tile.col >= n_blocks;   // beyond: nothing of it is stored
    CHECK(tile.row >= 0 && (tile.row < m_blocks || tile.pair_half == 1) && tile.col >= 0 && tile.batch >= 0 && tile.batch < batches,
          "tile %d: row %d, column %d of product %d", number, tile.row, tile.col, tile.batch);
    CHECK(tile.cols == tiles.order.edge / (half ? 2 : 1), "tile %d has %d columns of blocks", number, tile.cols);
    const bool meets = tile.row == tile.col + 2 && tile.col % 4 == 0;   // two tiles on the diagonal, of which the first has an even number
    CHECK(!tile.pair_half || (is_stored_twice(p) && tiles.order.edge == 2 && !half && meets), "tile %d is no half of a pair", number);
    CHECK(!half || !is_stored_twice(p) || tiles.order.edge == 4 || tile.row != tile.col / 2 * 2, "half of a cheap tile, %d", number);
    std::vector<char> all(k_blocks, 0);
    int length = 0;
    for (int rank = 0; rank < splits; ++rank) {
      ClusterTile part = tile;
      part.take_split(rank, splits);
      CHECK(part.k_begin >= 0 && part.k_begin <= part.k_end && part.k_end <= k_blocks, "tile %d: k-blocks %d .. %d", number, part.k_begin,
            part.k_end - 1);
      CHECK(splits > 1 || part.k_begin < part.k_end, "tile %d has no k-block", number);
      bool masked = !triangular || beyond || splits > 1;
      for (int i = 0; i < part.k_end - part.k_begin; ++i, ++length) {
        const int k_block = tiles.k_block(part, i);
        CHECK(k_block >= part.k_begin && k_block < part.k_end && !all[k_block]++, "tile %d: k-block %d comes twice", number, k_block);
        if (i == 0 && part.k_begin <= k_blocks / 2 && k_blocks / 2 < part.k_end)
          CHECK(k_block == k_blocks / 2, "tile %d begins with k-block %d", number, k_block);
        masked |= is_masked(tile, k_block);
      }
      CHECK(masked, "tile %d of a triangle has no k-block on a diagonal", number);
    }
    if (beyond) continue;
    CHECK(length - (tiles.order.edge - 1) <= before, "tile %d is %d long, after one of %d", number, length, before);
    before = min(before, length);
    const int rows = tile.pair_half ? 2 * tiles.order.edge : tiles.order.edge, first = tile.pair_half ? tile.col : tile.row;
    for (int i = first; i < min(m_blocks, first + rows); ++i)
      for (int j = tile.col; j < min(n_blocks, tile.col + (tile.pair_half ? i - first + 1 : tile.cols)); ++j) {
        if (tile.pair_half && (i / 2 == j / 2 ? i >= tile.row : i > tile.row) != (tile.pair_half == 2)) continue;   // the other one has it
        CHECK(!summed.count({tile.batch, i, j}), "block %d, %d of product %d is computed twice", i, j, tile.batch);
        summed[{tile.batch, i, j}] = all;
        for (int k_block = 0; triangular && k_block < k_blocks; ++k_block) {   // a block on a diagonal has to be masked
          const bool on_diagonal = (p.x_range && k_block == i) || (p.y_range && k_block == j);
          CHECK(!all[k_block] || !on_diagonal || is_masked(tile, k_block), "tile %d: k-block %d is not masked", number, k_block);
        }
      }
  }
  for (int batch = 0; batch < batches; ++batch)
    for (int i = 0; i < m_blocks; ++i)
      for (int j = 0; j < (p.c_lower ? i + 1 : n_blocks); ++j) {
        if (i >= apart_from && j >= apart_from && i / tiles.order.edge == j / tiles.order.edge) {
          CHECK(tiles.tail_tiles && !summed.count({batch, i, j}), "block %d, %d is computed apart, too", i, j);
          continue;
        }
        CHECK(summed.count({batch, i, j}), "block %d, %d of product %d is left out", i, j, batch);
        int begin, end;
        range_of_k(p, i * kBlock, min(m, (i + 1) * kBlock), j * kBlock, min(n, (j + 1) * kBlock), begin, end);
        for (int k_block = begin / kBlock; k_block * kBlock < end; ++k_block)
          CHECK(summed[std::make_tuple(batch, i, j)][k_block], "block %d, %d lacks k-block %d", i, j, k_block);
      }
  std::printf("%d CTAs a cluster, tiles of %d, %d in halves, %d apart, ", ctas, tiles.order.edge * kBlock,
              tiles.column_split_tiles, tiles.tail_tiles);
}

int main(int, char** arguments) {
  int a[8] = {};
  for (int i = 0; i < 8 && arguments[2 + i]; ++i) a[i] = std::atoi(arguments[2 + i]);
  const Contraction contraction = static_cast<Contraction>(a[0]);
  switch (arguments[1][0]) {
    case 'b': check_half(contraction, a[1], a[2], a[3], a[4], a[5], a[6]); break;
    case 't': check_tiles(contraction, a[1], a[2], a[3], a[4], a[5]); break;
    case 'r': check_roots(); break;
    case 'm': {   // 3 tiles of each: more numbers than an int has, which the launch looks for
      const ClusterTiles tiles = choose_split_tiles(product_of(kNN, 512, 512, 512, 7, kMaxSize), 66, 1);
      CHECK(tiles.count + int64_t(66) > kMaxSize, "%d numbers", tiles.count);
    } break;
    case 'p': check_plan(contraction, a[1], a[2], a[3], a[4], a[5], a[6], a[7]); break;
    default:
      check_hopper(contraction, a[1], a[2], a[3], a[4], a[5], a[6], a[7] ? a[7] : 2);
  }
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
    """run('tiles', 'plan', 'hopper', 'more than an int', 'blocks' or 'roots', numbers ...): fails with what the program found wrong."""
    parts = [
        HOST_PRELUDE,
        model._CUDA_TYPES,
        model._CUDA_SCHEDULE,
        model._CUDA_POLICY,
        model._CUDA_PACKED,
        "struct TileQueue {};",
        marked("fp16x3 product"),
        CHECK,
        PRODUCT_OF,
        HARNESS,
    ]
    return host_program(tmp_path_factory.mktemp("schedule"), "schedule", parts)


CONTRACTIONS = {"NN": 0, "NT": 1, "TN": 2}
DENSE, X, Y, C, LOWER = 0, 1, 2, 4, 7  # masks: X and Y, as they are stored, and C lower triangular, one or some of them; all three
SYMMETRIC = 8  # of C's, which is lower triangular, too: what stands opposite
# Every other combination that the binding makes. Two that are triangular the same way, NN, have a triangular product: there is no such C
# that has all elements.
MASKED = {
    f"{name}-{'X' * (masks & X)}{'Y' * (masks & Y > 0)}{'C' * (c > 0)}": (contraction, c | masks)
    for name, contraction in CONTRACTIONS.items()
    for c in (0, C)
    for masks in (0, X, Y, X | Y)
    if c | masks not in (DENSE, LOWER) and (name, c | masks) != ("NN", X | Y)
}
every_mask = pytest.mark.parametrize(("contraction", "masks"), MASKED.values(), ids=MASKED)
CLUSTERS = [1, 7, 66, 1000]  # with one nothing is cut, with 1000 all that is long
RECTANGLES = [(2048, 4096, 8192), (300, 700, 500), (3000, 5000, 1000), (1, 5000, 70), (5000, 1, 70), (129, 257, 1), (64, 4097, 4095)]


@pytest.mark.parametrize("edge", [32, 64, 128])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_each_lower_tile_is_taken_once_longest_first(program, contraction, edge):
    for N in (1, 31, 32, 33, 64, 65, 127, 128, 129, 300, 640, 1000, 2048, 4096):
        program("tiles", CONTRACTIONS[contraction], N, N, N, LOWER, edge)


@pytest.mark.parametrize("edge", [32, 64, 128])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_each_tile_of_a_rectangle_is_taken_once(program, contraction, edge):
    for sizes in RECTANGLES:
        program("tiles", CONTRACTIONS[contraction], *sizes, DENSE, edge)


@pytest.mark.parametrize("block_k", [16, 32, 64])
@pytest.mark.parametrize("batches", [1, 3, 100])
@pytest.mark.parametrize("at_once", [0, 12, 92])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_ctas_sum_each_tile_of_64_once(program, contraction, at_once, batches, block_k):
    for N in (1, 63, 64, 65, 127, 128, 129, 300, 448, 449, 640, 1000, 1024, 1151, 1408, 1856, *((2048, 2500) if batches == 1 else ())):
        program("plan", CONTRACTIONS[contraction], N, N, N, LOWER, at_once, batches, block_k)
    for sizes in RECTANGLES:
        program("plan", CONTRACTIONS[contraction], *sizes, DENSE, at_once, 3 if batches == 100 else batches, block_k)


def test_where_there_is_room_for_more_clusters_than_a_plan_holds_it_has_no_more(program):
    """On a GPU larger than any that there is: else a plan would write beyond its order."""
    for batches in (1, 2):
        program("plan", CONTRACTIONS["NN"], 3000, 3000, 3000, LOWER, 200 * batches, batches, 32)


def test_the_root_of_a_triangular_number_is_exact(program):
    program("roots")


@pytest.mark.parametrize("clusters", CLUSTERS)
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_the_hopper_kernel_sums_each_tile_of_a_triangle_once(program, contraction, clusters):
    sizes = (1, 64, 65, 128, 129, 192, 300, 640, 1000, 1280, 2048, 2080, 2100, 4000, 4096, *((8192,) if clusters == 1 else ()))
    for number, N in enumerate(sizes):
        program("hopper", CONTRACTIONS[contraction], N, N, N, LOWER, clusters, 1 + number % 2)


def test_the_hopper_kernel_does_not_take_more_tiles_than_an_int_counts(program):
    program("more than an int")


@pytest.mark.parametrize("clusters", [*CLUSTERS, 16])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_the_hopper_kernel_sums_each_tile_of_a_rectangle_once(program, contraction, clusters):
    for sizes in RECTANGLES:
        program("hopper", CONTRACTIONS[contraction], *sizes, DENSE, clusters, 1)


@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_of_two_products_with_three_tiles_left_both_have_two_cut(program, contraction):
    """Else the one that is left over would be a round by itself: two of 30 tiles each, for 57 clusters, and of 35 for 67."""
    program("hopper", CONTRACTIONS[contraction], 1536, 1280, 4096, DENSE, 57, 1)
    program("hopper", CONTRACTIONS[contraction], 1792, 1280, 12736, DENSE, 67, 1)


@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_of_more_products_than_clusters_no_tile_is_cut(program, contraction):
    """As many of each would be more than a round. Measured: at 75 x 256 x 256 x 2048 that gains nothing, and at k = 1024 it loses."""
    for tiles, batches in ((1, 75), (2, 100), (1, 132), (2, 69)):
        assert f"{tiles * batches} tiles, " in program("hopper", CONTRACTIONS[contraction], 256, 256 * tiles, 2048, DENSE, 66, 1, batches)


@pytest.mark.parametrize("sms", [132, 114, 78])
@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_the_half_precision_kernel_sums_each_tile_once_longest_first(program, contraction, sms):
    for N in (1, 65, 129, 449, 1000, 1280, 1409, 2048, 2304, 2561, 2816, 3072, 3329, 3584, 4096, 4097, 6000):
        program("blocks", CONTRACTIONS[contraction], N, N, N, LOWER, 1, sms)
    for N in (64, 320, 1000, 1536, 2080):
        program("blocks", CONTRACTIONS[contraction], N, N, N, LOWER, 3, sms)
    for batch, N in ((300, 257), (64, 800), (37, 385)):
        program("blocks", CONTRACTIONS[contraction], N, N, N, LOWER, batch, sms)
    for sizes in RECTANGLES:
        for batch in (1, 2, 11):
            program("blocks", CONTRACTIONS[contraction], *sizes, DENSE, batch, sms)
    program("blocks", CONTRACTIONS[contraction], 1500, 1400, 4096, DENSE, 1, sms)


@pytest.mark.parametrize("sms", [180, 264, 300, 400])
def test_tail_tiles_lie_on_the_diagonal_for_any_number_of_sms(program, sms):
    """4352 rows are 17 tiles of 256 x 256 on the diagonal, and 153 tiles of a symmetric product: 21 are left over by 66 or 132 clusters."""
    for N in (2048, 2816, 4352, 5632):
        program("blocks", CONTRACTIONS["NT"], N, N, 4096, C | SYMMETRIC, 1, sms)


# ---- Every combination of masks. -------------------------------------------------------------------------------------


def fitting(masks, *sizes):
    """(M, N, K) of sizes N and R, for these masks: what is triangular is square, and R is a side that is free."""
    for N, R in sizes:
        yield {DENSE: (R, N, N), X: (N, R, N), Y: (R, N, N), C: (N, N, R)}.get(masks, (N, N, N))


TILES = [
    (1, 1),
    (31, 200),
    (33, 1),
    (64, 4097),
    (65, 64),
    (127, 3),
    (128, 129),
    (129, 1000),
    (300, 31),
    (640, 513),
    (1000, 65),
    (2048, 2500),
]


@pytest.mark.parametrize("edge", [32, 64, 128])
@every_mask
def test_every_mask_takes_each_tile_once_longest_first(program, contraction, masks, edge):
    for sizes in fitting(masks, *TILES):
        program("tiles", contraction, *sizes, masks, edge)


@pytest.mark.parametrize("batches", [1, 3])
@every_mask
def test_ctas_sum_each_tile_of_64_of_every_mask_once(program, contraction, masks, batches):
    for number, sizes in enumerate(fitting(masks, *TILES[:-1], (1151, 700), (2000, 300))):
        program("plan", contraction, *sizes, masks, (0, 12, 92)[number % 3], batches, (16, 32, 64)[number // 3 % 3])


@pytest.mark.parametrize("clusters", CLUSTERS)
@every_mask
def test_the_hopper_kernel_sums_each_tile_of_every_mask_once(program, contraction, masks, clusters):
    for sizes in fitting(masks, (1, 1), (64, 300), (65, 7), (129, 2100), (300, 64), (640, 1000), (1280, 70), (2080, 1500), (2100, 4096)):
        program("hopper", contraction, *sizes, masks, clusters, 1)


@pytest.mark.parametrize("sms", [132, 78])
@every_mask
def test_the_half_precision_kernel_sums_each_tile_of_every_mask_once_longest_first(program, contraction, masks, sms):
    one = [(1, 1), (65, 700), (129, 1), (449, 300), (1000, 4097), (1409, 64), (2048, 1281), (2561, 4000), (3329, 3000), (4096, 1024)]
    for sizes in fitting(masks, *one):
        program("blocks", contraction, *sizes, masks, 1, sms)
    for batch, *size in ((3, 1000, 320), (300, 257, 65), (64, 385, 800)):
        for sizes in fitting(masks, size):
            program("blocks", contraction, *sizes, masks, batch, sms)


@pytest.mark.parametrize("contraction", [1, 2])
def test_the_half_precision_kernel_sums_each_tile_of_what_is_stored_twice_once(program, contraction):
    """Their plan goes by what tiles on the diagonal of C cost: each way of it."""
    shapes = [(129, 64, 1), (900, 5000, 1), (1152, 1152, 1), (2048, 2048, 1), (2304, 2304, 1), (3000, 64, 1), (3584, 3584, 1)]
    shapes += [(4096, 1024, 1), (4096, 4096, 1), (2048, 4096, 2), (1536, 1536, 40), (128, 512, 100), (1000, 300, 2)]
    found = [program("blocks", contraction, M, M, K, C | SYMMETRIC, batches, 132) for M, K, batches in shapes]
    small, large = "1 CTAs a cluster, tiles of 128, ", "2 CTAs a cluster, tiles of 256, "
    for way in (small + "0 in halves", large + "0 in halves, 0 apart", large + "0 in halves, 4 apart", "4 CTAs a cluster, tiles of 128"):
        assert any(way in said for said in found), (way, found)
    assert any(small in said and " 0 in halves" not in said for said in found), found


@pytest.mark.parametrize("contraction", [1, 2])
def test_what_half_precision_leaves_on_the_diagonal_is_computed_apart(program, contraction):
    assert "4 apart" in program("blocks", contraction, 4096, 4096, 4096, C, 1, 132)
    assert "3 apart" in program("blocks", contraction, 5120, 5120, 4100, C, 1, 138)
    for M, K, batches in ((4095, 4096, 1), (4096, 4032, 1), (4096, 4096, 2), (8192, 4096, 1)):
        said = program("blocks", contraction, M, M, K, C, batches, 132)
        assert said.count("apart") == 1 and "0 apart" in said, said  # what is apart says so of its own tiles, too


# ---- Which kernel computes a product. --------------------------------------------------------------------------------

CHOICE_MAIN = r"""
int main(int, char** arguments) {
  // contraction, n, k, masks, batches, whether the operands and C are aligned, compute capability; and element type, path, SMs
  int a[10] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 132};
  for (int i = 0; i < 10 && arguments[1 + i]; ++i) a[i] = std::atoi(arguments[1 + i]);
  Product p = product_of(static_cast<Contraction>(a[0]), a[1], a[1], a[2], a[3], a[4]);
  const Gpu gpu = {a[9], a[6] / 10};
  p.type = static_cast<ElementType>(a[7]);
  const int pitch = (a[1] + a[2]) / 8 * 8 + 8 + (a[5] ? 0 : 1);
  const bool k_first = a[0] != kTN, k_first_y = a[0] == kNT;
  p.x_row = k_first ? pitch : 1, p.x_col = k_first ? 1 : pitch, p.y_row = k_first_y ? 1 : pitch, p.y_col = k_first_y ? pitch : 1;
  p.c_row = pitch, p.c_col = 1;
  p.y = reinterpret_cast<const void*>(p.symmetric ? 0 : 16);   // another matrix than x
  if (arguments[8]) {
    const Kernel kernel = kernel_for(p, gpu, static_cast<Path>(a[8]));
    return std::printf("%s, all holds", kKernelNames[kernel]), 0;
  }
  const char* const float32 = is_fp16x3_faster(p, gpu, !operands_to_copy(p, kSixteenBitKernel)) ? "hopper" : "small tiles";
  p.type = kFloat16;
  if (p.symmetric && is_computed_whole(p, gpu)) p.c_lower = p.symmetric = 0;
  const char* const c = !p.symmetric ? "whole" : is_stored_twice(p) ? "twice" : "mirror";
  std::printf("%s, %s, %s, all holds", is_mma_faster(p, gpu) ? "mma" : "half", c, float32);
}
"""


@pytest.fixture(scope="module")
def choice(model, tmp_path_factory):
    """choice(contraction, n, k, masks, batches, aligned, compute capability): what is chosen for a product of n x n; and with element type,
    path and SMs: which kernel computes it."""
    parts = []
    head = ["#include <numeric>", HOST_PRELUDE, model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY]
    program = [*head, CHECK, PRODUCT_OF, *parts, CHOICE_MAIN]
    return host_program(tmp_path_factory.mktemp("choice"), "choice", program)


def test_which_kernel_computes_by_dtype_path_and_gpu(model, choice):
    """A row of the table in docs/kernel.md each."""

    def kernel(dtype, n, k=None, path="auto", capability=90, sms=132, batches=1, aligned=1, masks=LOWER):
        arguments = (0, n, n if k is None else k, masks, batches, aligned, capability, dtype, model._PATHS[path], sms)
        return choice(*arguments).partition(",")[0]

    for dtype, n in itertools.product(range(4), (64, 1024, 4096)):
        for capability, path in itertools.product((80, 90, 100, 120), model._PATHS):
            assert kernel(dtype, n, path="exact", capability=capability) == "exact"
            assert kernel(dtype, n, path="mma", capability=capability) == "mma"
            assert capability == 90 or path == "exact" or kernel(dtype, n, path=path, capability=capability) == "mma"
            assert path == "exact" or kernel(dtype, n, path=path, sms=3) == "mma"
        large, small = ("hopper", "mma", "half", "half")[dtype], ("tf32", "mma", "mma", "mma")[dtype]
        assert kernel(dtype, n, path="hopper") == kernel(dtype, n, path="hopper", sms=4) == large
        assert kernel(dtype, n) == (large if n == 4096 else small)
    # Float32, few tiles, and many: the split-tf32 kernel also serves batches of more than four an SM
    for batches, aligned, found in ((65, 1, "tf32"), (66, 1, "mma"), (263, 0, "tf32"), (264, 0, "mma"), (528, 1, "mma"), (529, 1, "tf32")):
        assert kernel(0, 32, batches=batches, aligned=aligned) == found


def test_which_kernel_computes_float32(choice):
    """The faster one, where they were a quarter apart or more."""
    lower, both, square = (0, LOWER), (1, LOWER | SYMMETRIC), (1, C | SYMMETRIC)
    small = [(*square, 640, 2048, 1), (*square, 896, 1024, 1), (*both, 768, 768, 2), (*both, 640, 640, 8), (*both, 1408, 1408, 1)]
    small += [(0, X | Y, 896, 896, 1), (0, X | Y, 512, 512, 16), (0, X, 1024, 1024, 1), (*lower, 1280, 1280, 1), (*lower, 768, 768, 20)]
    large = [(*square, 1024, 2048, 1), (*square, 128, 32768, 1), (*both, 1024, 1024, 16), (0, X | Y, 1024, 1024, 8), (0, X, 1536, 1536, 1)]
    large += [(2, 0, 1024, 1024, 1), (2, 0, 512, 4096, 1), (*lower, 1281, 1281, 1), (*lower, 1152, 1152, 2), (*lower, 768, 768, 28)]
    for contraction, masks, n, k, batches in small:
        assert "small tiles" in choice(contraction, n, k, masks, batches, 1, 90), (contraction, masks, n, k, batches)
    for contraction, masks, n, k, batches in large:
        assert "hopper" in choice(contraction, n, k, masks, batches, 1, 90), (contraction, masks, n, k, batches)
    for n in (900, 1100):  # which of the two copies by elements takes longer there
        assert "small tiles" in choice(1, n, n, C | SYMMETRIC, 1, 1, 90) and "hopper" in choice(1, n, n, C | SYMMETRIC, 1, 0, 90)
    for n, k, found in ((64, 16384, "hopper"), (100, 32768, "hopper"), (64, 2048, "small tiles"), (1, 1, "small tiles")):
        assert found in choice(2, n, k, 0, 1, 1, 90)


def test_which_kernel_computes_what_is_symmetric_or_l_times_u(choice):
    """None leaves to a launch behind, or to copies before, what another kernel does by itself as fast."""
    for contraction in (1, 2):
        for n, k, batches in ((1040, 64, 1), (1408, 256, 1), (720, 64, 2), (300, 256, 16), (2304, 256, 1), (700, 128, 2)):
            for aligned in (0, 1):
                assert "half, twice" in choice(contraction, n, k, C | SYMMETRIC, batches, aligned, 90)
        for n, k, batches in ((1024, 256, 1), (128, 200, 80), (256, 1024, 500)):
            assert "whole" in choice(contraction, n, k, C | SYMMETRIC, batches, 1, 90)
        for n, k, batches in ((64, 64, 100), (64, 1024, 5000), (30, 64, 1)):
            assert "mma, whole" in choice(contraction, n, k, C | SYMMETRIC, batches, 1, 90)
        for n, batches, found in ((1024, 50, "whole"), (2048, 1, "whole"), (1280, 8, "mirror"), (2049, 1, "mirror"), (4096, 1, "mirror")):
            assert found in choice(contraction, n, n, LOWER | SYMMETRIC, batches, 1, 90)
        for n, found in ((256, "whole"), (257, "twice")):
            assert found in choice(contraction, n, 64, C | SYMMETRIC, 1, 1, 80)
    assert "half" in choice(0, 200, 200, X | Y, 1, 1, 90) and "mma" in choice(0, 64, 64, X | Y, 5000, 1, 90)


# ---- Batches: how the binding describes them. ------------------------------------------------------------------------

BATCH_HARNESS = r"""
// A tensor as the binding looks at its batch.
struct Tensor {
  std::vector<int64_t> sizes, strides;   // of the leading dimensions
  int64_t dim() const { return sizes.size() + 2; }
  int64_t size(int64_t d) const { return sizes[d]; }
  int64_t stride(int64_t d) const { return strides[d]; }
};
"""

BATCH_MAIN = r"""
uint64_t state = 12345;
int random_below(int end) { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33, int(state >> 33) % end; }

// Contiguous, its dimensions in any order, or some of them broadcast.
Tensor tensor_of(const std::vector<int64_t>& sizes, bool contiguous) {
  Tensor t = {sizes, std::vector<int64_t>(sizes.size())};
  std::vector<int> order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = int(order.size() - 1 - d);
  for (size_t d = 0; !contiguous && d < order.size(); ++d) std::swap(order[d], order[random_below(int(order.size()))]);
  int64_t stride = 12;
  for (const int d : order) t.strides[d] = !contiguous && random_below(4) == 0 ? 0 : stride, stride *= t.strides[d] ? sizes[d] : 1;
  return t;
}
int64_t offset_in(const Tensor& t, int64_t number) {
  int64_t offset = 0;
  for (int64_t d = t.dim() - 3; d >= 0; --d) offset += number % t.sizes[d] * t.strides[d], number /= t.sizes[d];
  return offset;
}

int main() {
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> sizes(random_below(6));
    for (int64_t& size : sizes) size = 1 + random_below(4);
    const bool contiguous = round % 4 == 0;
    const Tensor x = tensor_of(sizes, contiguous), y = tensor_of(sizes, contiguous);
    Product p = {};
    describe_batch(x, y, p);
    int64_t all = 1;
    for (const int64_t size : sizes) all *= size;
    CHECK(p.batches == all && (!contiguous || p.batch_dims == (all > 1)), "%lld products, %d dimensions", (long long)p.batches,
          p.batch_dims);
    for (int number = 0; number < all; ++number)
      CHECK(batch_offset(p, p.x_batch, number) == offset_in(x, number) && batch_offset(p, p.y_batch, number) == offset_in(y, number),
            "product %d", number);
  }
  const std::vector<int64_t> many(kMaxBatchDims + 1, 2);   // contiguous they are one, as the binding counts on
  const Tensor t = tensor_of(many, true);
  Product p = {};
  describe_batch(t, t, p);
  CHECK(p.batch_dims == 1 && p.batches == 1 << many.size(), "%d dimensions", p.batch_dims);
  std::printf("all holds\n");
}
"""


def test_each_product_of_a_batch_is_found_by_its_number(model, tmp_path):
    """Whatever the order of its dimensions, which are merged where they can be, and whichever of them an operand does not have."""
    described = f"void describe_batch(const Tensor& x, const Tensor& y, Product& p) {{\n{marked('batch of a product')}}}\n"
    head = [HOST_PRELUDE, model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, CHECK, BATCH_HARNESS]
    host_program(tmp_path, "batches", [*head, described, BATCH_MAIN])()


# ---- The figure of the order. ----------------------------------------------------------------------------------------

ORDER_MAIN = r"""
int main(int, char** arguments) {
  const int rows = std::atoi(arguments[1]);
  for (const Contraction contraction : {kNN, kNT, kTN}) {
    const TileOrder order = TileOrder::make(product_of(contraction, rows * 64, rows * 64, rows * 64, 7), 64);
    for (int number = 0; number < order.count(); ++number) {
      const Tile tile = order.find_tile(number);
      std::printf("%d %d %d %d %d\n", int(contraction), number, tile.i, tile.j, (tile.k_end - tile.k_begin) / 64);
    }
  }
  std::printf("all holds\n");
}
"""


def test_the_figure_has_the_order_of_the_source(model, tmp_path, monkeypatch):
    """docs/figures/order.svg: the number and the length of each tile."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # figures.py puts its folder there
    figures = module("figures")
    head = [HOST_PRELUDE, model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, CHECK, PRODUCT_OF]
    order = host_program(tmp_path, "order", [*head, ORDER_MAIN])
    for rows in (1, 8, 13):
        found = sorted(tuple(map(int, line.split())) for line in order(rows).splitlines()[:-1])
        drawn = []
        for name, contraction in CONTRACTIONS.items():
            for i, j in itertools.combinations_with_replacement(range(rows), 2):  # i <= j: the row is j
                place, length = (of_tile(name, j, i, rows) for of_tile in (figures.place_of_tile, figures.length_of_tile))
                drawn.append((contraction, place, j, i, length))
        assert sorted(drawn) == found

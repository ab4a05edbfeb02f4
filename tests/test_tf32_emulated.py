"""The tf32 kernel without a GPU: its source, compiled by the C++ compiler, run by a scheduler of its own.

Every thread of a cluster is a fibre; what CUDA does for a warp, a thread block or a cluster (barriers, shuffles, wgmma, copies on their
way, sums sent to another thread block) stands in the harness below. Copies arrive and products are done either at once, or as late as the
kernel allows: what a barrier is missing for shows in one of the two. What an operand does not have is NaN in memory, and so is C before it
is written.
"""

import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, NN, NT, TN, UPPER, host_program

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("tf32 emulated")]

PRELUDE = r"""
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>
using std::max;
using std::min;
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
template <typename To, typename From>
To bits_as(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline uint32_t __float_as_uint(float v) { return bits_as<uint32_t>(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline float __uint_as_float(uint32_t v) { return bits_as<float>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }

[[noreturn]] void fail(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  std::_Exit(1);   // without destructors: they would free the stack that this runs on
}

// ---- A cluster: its thread blocks, their warps, their threads.

constexpr int kThreads = 128;

struct Rendezvous {   // of so many threads, again and again
  int came = 0, turn = 0;
};
struct Warp {
  Rendezvous meeting;
  uint32_t brought[2][32][4];   // what lanes bring to a meeting of an even turn, and of an odd one: it is there until they have met again
};
struct Block {
  int rank;
  unsigned char* memory;
  Rendezvous meeting;
  int votes[2] = {};
  Warp warps[kThreads / 32];
  std::vector<struct Thread*> threads;
};
struct Thread {
  ucontext_t context;                // where it goes on
  std::function<bool()> can_go_on;   // what it waits for; none: it has not begun
  Thread* next;                      // round and round through the cluster
  Block* block;
  unsigned x;
  bool done = false;
  std::vector<std::function<void()>> copies;
  std::vector<size_t> groups;   // how many copies had been asked for at the end of each
  size_t arrived = 0;
  std::vector<std::function<void()>> products;   // asked for, and not yet waited for
  bool written = false;                          // to shared memory, and no fence since
};
struct Cluster {
  int number, size, came = 0;
  std::vector<Block> blocks;
};
Cluster* cluster;
Thread* current;
ucontext_t all_are_done;
bool late;   // copies arrive, and products are done, as late as the kernel allows

// Threads take turns, each until it waits for what does not hold yet. (By swapcontext: longjmp to another stack aborts under
// _FORTIFY_SOURCE. swapcontext asks the kernel for the signal mask each time, so a thread that cannot go on is not switched to.)
void switch_to_next() {
  Thread* const from = current;
  do {
    current = current->next;
    if (current == from) fail("they wait for each other forever");
  } while (current->done || (current->can_go_on && !current->can_go_on()));
  swapcontext(&from->context, &current->context);
}
template <typename Condition>
void wait_until(const Condition& holds) {
  if (holds()) return;
  current->can_go_on = std::ref(holds);
  switch_to_next();
}
void meet(Rendezvous& meeting, int threads) {
  const int turn = meeting.turn;
  if (++meeting.came == threads)
    meeting.came = 0, ++meeting.turn;
  else
    wait_until([&] { return meeting.turn != turn; });
}
Warp& warp() { return current->block->warps[current->x / 32]; }
#define threadIdx (*current)

void __syncthreads() { meet(current->block->meeting, kThreads); }
int __syncthreads_or(int vote) {
  Block& block = *current->block;
  const int turn = block.meeting.turn;
  block.votes[turn % 2] |= vote;
  __syncthreads();
  const int result = block.votes[turn % 2];
  __syncthreads();
  block.votes[turn % 2] = 0;
  return result;
}
template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[current->x % 32][0] = bits_as<uint32_t>(value);
  meet(warp().meeting, 32);
  return bits_as<T>(brought[lane][0]);
}

// ---- What stands in the section "PTX", by name.

constexpr int kRankShift = 24;
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(current->block->rank) << kRankShift |
         static_cast<uint32_t>(static_cast<const unsigned char*>(p) - current->block->memory);
}
inline unsigned char* at_address(uint32_t at) { return cluster->blocks[at >> kRankShift].memory + (at & ((1 << kRankShift) - 1)); }
inline uint32_t address_in_peer(uint32_t at, uint32_t rank) {
  if (rank >= static_cast<uint32_t>(cluster->size)) fail("a thread block that the cluster does not have");
  return (at & ((1 << kRankShift) - 1)) | rank << kRankShift;
}
inline uint32_t cluster_rank() { return current->block->rank; }
inline uint32_t cluster_number() { return cluster->number; }
inline void cluster_arrive() { ++cluster->came; }
inline void cluster_wait() {
  wait_until([] { return cluster->came >= cluster->size * kThreads; });
}
struct Barrier {   // of one phase
  int32_t bytes;
  uint16_t arrivals, begun;
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));
inline void barrier_init(uint64_t* barrier, uint32_t count) { *reinterpret_cast<Barrier*>(barrier) = {0, static_cast<uint16_t>(count), 1}; }
inline void barrier_init_fence() {}
inline void barrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  Barrier& b = *reinterpret_cast<Barrier*>(barrier);
  b.bytes += bytes, --b.arrivals;
}
inline void barrier_wait(uint64_t* barrier, uint32_t) {
  const Barrier& b = *reinterpret_cast<Barrier*>(barrier);
  wait_until([&] { return !b.arrivals && !b.bytes; });
}
inline void store_async(uint32_t to, int a, int b, int c, int d, uint32_t barrier) {
  if (cluster->size < 2) fail("sent in a cluster of one");
  if (cluster->came < cluster->size * kThreads) fail("sent to a thread block that may not have begun");
  if (to >> kRankShift != barrier >> kRankShift || to % 16) fail("sent to a place that is not the barrier's, or not aligned");
  const int words[4] = {a, b, c, d};
  std::memcpy(at_address(to), words, 16);
  Barrier& here = *reinterpret_cast<Barrier*>(at_address(barrier));
  if (!here.begun) fail("a barrier that is not there");
  here.bytes -= 16;
}
inline float4 load_shared_four(uint32_t at) {
  if (at >> kRankShift != cluster_rank() || at % 16) fail("four that are not aligned, or not here");
  return *reinterpret_cast<float4*>(at_address(at));
}
inline float2 load_shared_two(uint32_t at) {
  if (at >> kRankShift != cluster_rank() || at % 8) fail("two that are not aligned, or not here");
  return *reinterpret_cast<float2*>(at_address(at));
}
inline void store_shared_four(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if (at >> kRankShift != cluster_rank() || at % 16) fail("four that are not aligned, or not here");
  const uint32_t words[4] = {a, b, c, d};
  std::memcpy(at_address(at), words, 16);
  current->written = true;
}
inline void fence_proxy_async_shared() { current->written = false; }
inline void copy(uint32_t to, const void* from, int bytes, int all) {
  if (to >> kRankShift != cluster_rank() || to % all || (bytes && reinterpret_cast<uintptr_t>(from) % all))
    fail("a copy that is not aligned");
  auto now = [=] {
    std::memset(at_address(to), 0, all);
    if (bytes) std::memcpy(at_address(to), from, bytes);
  };
  if (late)
    current->copies.push_back(now);
  else
    now();
}
void cp_async_16(uint32_t to, const void* from, int existing = 16) { copy(to, from, existing, 16); }
template <int kBytes>
void cp_async(uint32_t to, const void* from, bool exist) {
  copy(to, from, exist ? kBytes : 0, kBytes);
}
inline void cp_async_commit_group() { current->groups.push_back(current->copies.size()); }
template <int kPending>
void cp_async_wait_group() {
  if (current->groups.size() <= kPending) return;
  const size_t end = current->groups[current->groups.size() - 1 - kPending];
  for (; current->arrived < end; ++current->arrived) current->copies[current->arrived]();
}
template <typename Word>
void keep(Word&) {}

// sums (+)= A B of 64 x 64 and eight k: truncated operands, as the tensor cores read them, B in rows of 128 bytes with their swizzle. Late,
// they read B when the products are waited for.
inline uint64_t make_descriptor(uint32_t at, uint32_t, uint32_t stride) {
  if (at % 1024 || stride != 1024) fail("an operand that is not swizzled as the kernel says");
  return at;
}
inline uint64_t advance_descriptor(uint64_t operand, uint32_t bytes) { return operand + bytes; }
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
void wgmma_tf32(float (&sum)[32], const uint32_t (&a)[4], uint64_t b, int add) {
  const int lane = current->x % 32, g = lane / 4, q = lane % 4;
  for (const Thread* thread : current->block->threads)
    if (thread->written) fail("multiplied what was written without a fence");
  auto& brought = warp().brought[warp().meeting.turn % 2];
  std::memcpy(brought[lane], a, sizeof(a));
  meet(warp().meeting, 32);
  auto number = [](uint32_t bits) { return static_cast<double>(__uint_as_float(bits & 0xFFFFE000)); };
  double rows[2][8];
  for (int r = 0; r < 2; ++r)
    for (int k = 0; k < 8; ++k) rows[r][k] = number(brought[g * 4 + k % 4][r + k / 4 * 2]);
  auto now = [=, &sum] {
    for (int u = 0; u < 32; ++u) {
      const int r = u / 2 % 2, col = u / 4 * 8 + 2 * q + u % 2;
      double all = add ? sum[u] : 0.0;
      for (int k = 0; k < 8; ++k) {
        uint32_t bits, at = static_cast<uint32_t>(b) + col * 128 + k * 4;
        at ^= (at >> 7 & 7) << 4;
        std::memcpy(&bits, at_address(at), 4);
        all += rows[r][k] * number(bits);
      }
      sum[u] = static_cast<float>(all);
    }
  };
  if (late)
    current->products.push_back(now);
  else
    now();
}
template <int kPending>
void warpgroup_wait() {
  static_assert(kPending == 0);
  for (auto& product : current->products) product();
  current->products.clear();
}
"""

HARNESS = r"""
// ---- Runs one cluster after the other.

std::function<void()> body;
int left;   // threads that are not done
void thread_main() {
  body();
  current->done = true;
  --left ? switch_to_next() : static_cast<void>(setcontext(&all_are_done));
}
void run_cluster(int number, int size) {
  static const size_t stack_size = 64 * 1024;
  static std::vector<char> stacks;   // of one cluster after the other
  stacks.resize(std::max(stacks.size(), size * kThreads * stack_size));
  Cluster here = {number, size};
  std::vector<unsigned char> memory(size * (sizeof(Tf32Memory) + 1024) + 1024, 0xFF);   // as floats NaN
  here.blocks.resize(size);
  unsigned char* next = memory.data();
  for (int rank = 0; rank < size; ++rank) {
    next += (1024 - reinterpret_cast<uintptr_t>(next) % 1024) % 1024;
    here.blocks[rank].rank = rank, here.blocks[rank].memory = next, next += sizeof(Tf32Memory);
    reinterpret_cast<Tf32Memory*>(here.blocks[rank].memory)->sums_are_here = 0;
  }
  cluster = &here;
  std::vector<Thread> threads(size * kThreads);
  for (int t = 0; t < size * kThreads; ++t) {
    Thread& thread = threads[t];
    thread.block = &here.blocks[t / kThreads], thread.x = t % kThreads;
    thread.block->threads.push_back(&thread);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = &stacks[t * stack_size], thread.context.uc_stack.ss_size = stack_size;
    makecontext(&thread.context, thread_main, 0);
    thread.next = &threads[(late ? t + size * kThreads - 1 : t + 1) % (size * kThreads)];
  }
  left = size * kThreads;
  current = &threads[late ? left - 1 : 0];
  swapcontext(&all_are_done, &current->context);
}

template <bool kXAlongK, bool kYAlongK>
void tf32_product(const Product& p, const Tf32Plan& plan) {
  tf32_compute<kXAlongK, kYAlongK>(p, plan, *reinterpret_cast<Tf32Memory*>(current->block->memory));
}

// ---- One product and its truth.

struct Matrix {   // of a batch; stored by rows or by columns, with a pitch, and NaN in between
  int rows, cols, pitch;
  bool by_rows;
  int64_t size;
  std::vector<float> memory;
  Matrix(int rows, int cols, bool by_rows, int pad, int batches)
      : rows(rows),
        cols(cols),
        pitch((by_rows ? cols : rows) + pad),
        by_rows(by_rows),
        size(static_cast<int64_t>(by_rows ? rows : cols) * pitch) {
    memory.assign(size * batches + 4, NAN);
    while (reinterpret_cast<uintptr_t>(begin()) % 16) ++skipped;
  }
  int skipped = 0;
  float* begin() { return memory.data() + skipped; }
  float& at(int batch, int row, int col) {
    return begin()[batch * size + (by_rows ? static_cast<int64_t>(row) * pitch + col : static_cast<int64_t>(col) * pitch + row)];
  }
  int64_t row_stride() const { return by_rows ? pitch : 1; }
  int64_t col_stride() const { return by_rows ? 1 : pitch; }
};

int main(int, char** arguments) {
  int a[13];
  for (int i = 0; i < 13; ++i) a[i] = std::atoi(arguments[1 + i]);
  const Contraction contraction = static_cast<Contraction>(a[0]);
  const int structure = a[1], m = a[2], n = a[3], k = a[4], batches = a[5], at_once = a[6], pad = a[10], kind = a[11];
  late = a[7];
  const bool upper = structure == kUpper;
  Matrix x(contraction == kTN ? k : m, contraction == kTN ? m : k, a[8], pad, batches);
  Matrix y(contraction == kNT ? n : k, contraction == kNT ? k : n, a[9], pad, batches), c(m, n, true, a[12], batches);
  uint64_t state = 1;
  auto uniform = [&] { return static_cast<double>((state = state * 6364136223846793005ull + 1442695040888963407ull) >> 11) * 0x1p-53; };
  auto has = [&](int row, int col) { return structure == kDense || (upper ? row <= col : row >= col); };
  for (Matrix* of : {&x, &y})
    for (int batch = 0; batch < batches; ++batch)
      for (int row = 0; row < of->rows; ++row)
        for (int col = 0; col < of->cols; ++col)
          if (has(row, col)) {
            double v = 2 * uniform() - 1;
            if (kind == 1) v *= of == &x ? 1e30 : 1e4;     // sums beyond the first scale
            if (kind == 2) v *= of == &x ? 1e36 : 1e-36;   // an element beyond it, and sums that are small
            if (kind == 3) v *= of == &x ? 1e-42 : 1e30;   // denormals
            of->at(batch, row, col) = static_cast<float>(v);
          }
  if (kind == 4) x.at(0, x.rows - 1, upper ? x.cols - 1 : 0) = INFINITY;

  Product p = {};
  p.m = m, p.n = n, p.k = k, p.contraction = contraction, p.triangular = structure != kDense;
  p.batches = batches, p.batch_dims = batches > 1, p.batch_size[0] = batches;
  p.x_batch[0] = x.size, p.y_batch[0] = y.size, p.c_batch[0] = c.size;
  p.x = x.begin(), p.x_row = x.row_stride(), p.x_col = x.col_stride();   // as the binding does
  p.y = y.begin(), p.y_row = y.row_stride(), p.y_col = y.col_stride();
  p.c = c.begin(), p.c_row = c.row_stride(), p.c_col = c.col_stride();
  if (contraction == kTN) std::swap(p.x_row, p.x_col);
  if (contraction == kNT) std::swap(p.y_row, p.y_col);
  if (upper) transpose(p);
  Tf32Plan plan;
  tf32_plan(p, at_once, plan);
  const bool x_along_k = p.x_col == 1, y_along_k = p.y_row == 1;
  body = [&] {
    if (x_along_k)
      y_along_k ? tf32_product<true, true>(p, plan) : tf32_product<true, false>(p, plan);
    else
      y_along_k ? tf32_product<false, true>(p, plan) : tf32_product<false, false>(p, plan);
  };
  for (int number = 0; number < plan.clusters * batches; ++number) run_cluster(number, plan.cluster_size);

  for (int batch = 0; batch < batches; ++batch)
    for (int row = 0; row < m; ++row)
      for (int col = 0; col < n; ++col) {
        double exact = 0, magnitude = 0;
        for (int i = 0; i < k; ++i) {
          const int x_row = contraction == kTN ? i : row, x_col = contraction == kTN ? row : i;
          const int y_row = contraction == kNT ? col : i, y_col = contraction == kNT ? i : col;
          if (!has(x_row, x_col) || !has(y_row, y_col) || !has(row, col)) continue;
          const double term = static_cast<double>(x.at(batch, x_row, x_col)) * y.at(batch, y_row, y_col);
          exact += term, magnitude += std::fabs(term);
        }
        const float got = c.at(batch, row, col);
        const bool right = !has(row, col)          ? got == 0
                           : std::isnan(exact)     ? std::isnan(got)
                           : !std::isfinite(exact) ? got == exact
                                                   : std::fabs(got - exact) <= 1e-6 * magnitude + 1e-44;
        if (!right) {
          std::printf("product %d, element %d, %d is %.9g, not %.9g (|X| |Y| = %.9g)\n", batch, row, col, got, exact, magnitude);
          return 1;
        }
      }
  std::printf("all holds\n");
}
"""


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(contraction, structure, sizes, ...): fails with what the program found wrong."""
    parts = [
        PRELUDE,
        model._CUDA_TYPES,
        model._CUDA_SCHEDULE,
        model._CUDA_EPILOGUE,
        model._CUDA_TF32_PLAN,
        model._CUDA_TF32,
        HARNESS,
    ]
    program = host_program(tmp_path_factory.mktemp("tf32"), "tf32_kernel", parts)

    def run(contraction, structure, sizes, *, batches=1, at_once=92, late=0, x_by_rows=1, y_by_rows=1, pad=0, kind=0, c_pad=0):
        program(contraction, structure, *sizes, batches, at_once, late, x_by_rows, y_by_rows, pad, kind, c_pad)

    return run


@pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_sizes_and_layouts(run, contraction, structure, late):
    for N, at_once, pad in ((70, 92, 2), (132, 92, 0), (140, 2, 1)):
        for x_by_rows, y_by_rows in ((1, 1), (0, 0)) if late else ((0, 1), (1, 0)):
            run(
                contraction,
                structure,
                (N, N, N),
                at_once=at_once,
                late=late,
                x_by_rows=x_by_rows,
                y_by_rows=y_by_rows,
                pad=pad,
                c_pad=pad % 3,
            )


@pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_batches(run, contraction, structure, late):
    for N, batches, at_once in ((33, 3, 92), (68, 3, 1), (130, 2, 92)):
        run(contraction, structure, (N, N, N), batches=batches, at_once=at_once, late=late)


@pytest.mark.parametrize(("contraction", "structure", "N"), [(NN, LOWER, 448), (NT, UPPER, 449), (TN, LOWER, 500), (TN, DENSE, 384)])
def test_sizes_that_a_gpu_computes_so(run, contraction, structure, N):
    run(contraction, structure, (N, N, N), late=1)


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_rectangles(run, contraction):
    for sizes in ((65, 130, 400), (200, 64, 7), (64, 70, 900)):
        for late in (0, 1):
            run(contraction, DENSE, sizes, late=late)


@pytest.mark.parametrize("kind", [1, 2, 3, 4], ids=["large", "large and small", "denormals", "infinity"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_what_is_summed_again(run, contraction, structure, kind):
    run(contraction, structure, (100, 100, 100), kind=kind, late=1)

"""Products of triangular matrices on a GPU, in one file: a sixth of the work, on tensor cores, at float32 accuracy.

    C = tril_matmul(A, B)            C = tril(A) @ tril(B), lower triangular as well
    C = triu_matmul(A, B)            the same for upper triangles
    C = transposed_a_matmul(A, B)    C = A^T @ B, dense
    ModelNew()(A, B)                 tril_matmul, as KernelBench calls it (level 1, problem 15); UpperModelNew is problem 14 and
                                     TransposedAModelNew problem 16

A dense product spends 2 N^3 floating-point operations; a triangular one a sixth of that, because

    C[i, j] = sum over k = j..i of A[i, k] * B[k, j]      (i >= j, and exactly zero above the diagonal)

The contract:

  * A and B are float32, float64, float16 or bfloat16, with any strides; leading dimensions broadcast as in torch.matmul. What stands
    above the diagonals of A and B is never read. The result is differentiable any number of times.
  * float32: each element's error is at most the larger of 1e-6 and twice that of cuBLAS float32, relative to |A| |B|, for every finite
    input whose products neither overflow nor underflow. float16 and bfloat16 are accumulated in float32.
  * NaN and Inf come out where the sum over k = j..i puts them, and nowhere else.
  * The same input gives bitwise the same result on every run on the same GPU. No input is modified. The work runs on the current
    stream and never synchronises the host.
  * On a CUDA tensor it is always our kernel that computes. A build or a launch that fails raises an error.

The file is the source: nothing generates it, and it needs only torch (and ninja and nvcc where there is a GPU). The CUDA
kernels are compiled at import, once; a machine without a GPU compiles nothing and computes on the CPU.

Rooms, top to bottom: the CUDA source (what is shared, the tile schedule, PTX, the portable kernel, packing, the Hopper kernel, its
launch), the C++ binding and the build, the operator (checks of arguments, CPU, CUDA, autograd), the KernelBench classes.
"""

import functools
import hashlib
import os
import sys
import time

import torch

# ======================================================================================================================
# 1. CUDA source
# ======================================================================================================================

# ---- Shared by the kernels and the C++ binding: one product, described without any torch type. -----------------------
#
# Three contractions make the whole family, forward and gradients (each is a partial derivative of the trilinear form
# T(A, B, G) = sum over i >= k >= j of A[i,k] B[k,j] G[i,j]). As C[m, n] = sum over k of X[m, k] * Y[k, n] they are:
#
#     name   result            X[m, k]    Y[k, n]    k runs over    X has k    Y has k
#     NN     C  = A B          A[m, k]    B[k, n]    n .. m         <= m       >= n
#     NT     dA = G B^T        G[m, k]    B[n, k]    0 .. n         <= m       <= n
#     TN     dB = A^T G        A[k, m]    G[k, n]    m .. N-1       >= m       >= n
#
# The binding turns a transposed operand into swapped strides, so a kernel sees X[m, k], Y[k, n] and a range of k, no more.
_CUDA_SHARED = r"""
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <utility>

enum Contraction : int { kNN = 0, kNT = 1, kTN = 2 };
enum Structure : int { kDense = 0, kLower = 1, kUpper = 2 };
enum ElementType : int { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3 };
enum Path : int { kAutomaticPath = 0, kPortablePath = 1 };   // which kernel computes

[[maybe_unused]] constexpr int64_t kMaxSize = 2147483647 - 1024;   // rows or columns: 32-bit indices, with room for the last tile
constexpr int kMaxBatchDims = 8;

// Strides are in elements and may be zero (expanded operands). All of C is written, zeros above the diagonal too.
struct Product {
  const void* x;
  const void* y;
  void* c;
  int64_t x_row, x_col, y_row, y_col, c_row, c_col;
  int m, n, k;             // C is m x n; k is what is summed over. Triangular products have m = n = k.
  Contraction contraction;
  int triangular;          // 1: the operands and C are lower triangular; 0: they are dense and the sum runs over all k
  int64_t batches;         // how many products: batch_size[0] * ... * batch_size[batch_dims - 1]
  int batch_dims;
  int64_t batch_size[kMaxBatchDims], x_batch[kMaxBatchDims], y_batch[kMaxBatchDims], c_batch[kMaxBatchDims];
};

struct Gpu {
  int multiprocessors, capability;   // 90 for compute capability 9.0
};

// Launches on `stream` of the current device, which is `gpu`. The workspace is device memory of workspace_bytes_for bytes; null (or
// zero bytes) means the portable kernel. Its first kControlBytes tell afterwards how the product was computed: whether the Hopper
// kernel refused, and how many elements it kept in lists; two 32-bit integers.
constexpr int kControlBytes = 8;
int64_t workspace_bytes_for(const Product& product, ElementType type, const Gpu& gpu);
cudaError_t launch_product(const Product& product, ElementType type, const Gpu& gpu, void* workspace, cudaStream_t stream);
"""

# ---- Schedule: which tile comes when, and which k it sums. All arithmetic of tiles stands here. ----------------------
#
# Tiles differ in length (how many k they sum) by a factor of N / edge. They are taken longest first: what is left at the end is
# short, so no multiprocessor works on alone for long.
_CUDA_SCHEDULE = r"""
__host__ __device__ inline int64_t triangle(int64_t n) { return n * (n + 1) / 2; }

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The largest r with triangle(r) <= q.
__device__ inline int triangle_root(int64_t q) {
  int r = static_cast<int>((sqrt(8.0 * static_cast<double>(q) + 1.0) - 1.0) * 0.5);
  while (triangle(r + 1) <= q) ++r;  // rounding may put the root one off, either way
  while (triangle(r) > q) --r;
  return r;
}

// Where one product of the batch begins, in elements, by its number.
__host__ __device__ inline int64_t batch_offset(const Product& p, const int64_t (&strides)[kMaxBatchDims], int number) {
  int64_t offset = 0;
#pragma unroll 1
  for (int d = p.batch_dims - 1; d >= 0; --d) {
    const int size = static_cast<int>(p.batch_size[d]);
    offset += number % size * strides[d];
    number /= size;
  }
  return offset;
}

struct Tile {
  int i, j;            // tile row and tile column of C, i >= j
  int k_begin, k_end;  // the half-open range of k that the tile sums
};

constexpr int kBandRows = 8;  // tile rows that a dense product walks through together, so that its tiles meet in the L2 cache

__host__ __device__ inline int64_t tile_count(const Product& p, int edge) {
  const int64_t rows = ceil_div(p.m, edge), cols = ceil_div(p.n, edge);
  return p.triangular ? triangle(rows) : rows * cols;
}

// The tile at place `rank` of the longest-first order, `edge` rows and columns each.
__device__ inline Tile tile_at(const Product& p, int edge, int rank) {
  const int side = ceil_div(p.m, edge), cols = ceil_div(p.n, edge);
  Tile tile;
  if (!p.triangular) {  // all of one length
    const int band = rank / (kBandRows * cols) * kBandRows, rows = min(kBandRows, side - band), place = rank - band * cols;
    tile.i = band + place % rows;
    tile.j = place / rows;
    tile.k_begin = 0;
    tile.k_end = p.k;
    return tile;
  }
  const int group = triangle_root(rank);  // group g holds the g + 1 tiles of one length
  const int place = static_cast<int>(rank - triangle(group));
  switch (p.contraction) {
    case kNN:  // length i - j + 1: the corner first, then one anti-diagonal after another
      tile.i = place + side - 1 - group;
      tile.j = place;
      tile.k_begin = tile.j * edge;
      tile.k_end = min(p.k, (tile.i + 1) * edge);
      break;
    case kNT:  // length j + 1: the last tile column first
      tile.i = place + side - 1 - group;
      tile.j = side - 1 - group;
      tile.k_begin = 0;
      tile.k_end = min(p.k, (tile.j + 1) * edge);
      break;
    default:  // kTN, length side - i: the first tile row first
      tile.i = group;
      tile.j = place;
      tile.k_begin = tile.i * edge;
      tile.k_end = p.k;
      break;
  }
  return tile;
}
"""

# ---- PTX: the instructions of Hopper (sm_90a) that CUDA C++ has no name for, one small function each. ----------------
#
# Addresses of shared memory are 32-bit; `at` of the peer is the same offset in the other thread block of the cluster.
_CUDA_PTX = r"""
__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// threadIdx.x, read anew: what is derived from it in a rarely used place then takes no register elsewhere.
__device__ inline int fresh_thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline uint32_t address_in_peer(uint32_t at, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}

template <typename T>
__device__ T load_in_peer(uint32_t at);   // at: as address_in_peer gives it
template <>
__device__ inline float load_in_peer<float>(uint32_t at) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
  return value;
}
template <>
__device__ inline double load_in_peer<double>(uint32_t at) {
  double value;
  asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(value) : "r"(at) : "memory");
  return value;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// mbarriers: a phase ends when `count` arrivals and all the bytes that were announced have come.
__device__ inline void barrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// In thread block `rank` of the cluster. What it tells is that this thread has read its part of a stage: no memory is published, so
// the default scope does, and the fence of a wider one, in every step of the pipeline, would cost more than the step.
__device__ inline void barrier_arrive_in(uint64_t* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_peer(shared_address(barrier), rank)) : "memory");
}

__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// The same two for a word that one thread block of the cluster tells another.
__device__ inline void barrier_publish_in(uint64_t* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in_peer(shared_address(barrier), rank))
               : "memory");
}

__device__ inline void barrier_wait_published(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ inline void store_in(void* p, uint32_t rank, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address_in_peer(shared_address(p), rank)), "r"(value) : "memory");
}

// Bulk copies from global to shared memory, done by the copy engine; the bytes are counted on the barrier. The second form writes
// to the same place in both thread blocks of the cluster and counts on the barrier of each.
__device__ inline void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

__device__ inline void copy_bulk_to_both(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(3))
               : "memory");
}

// And from shared to global memory, in groups that the issuing thread waits for: until they have been read, or are complete.
__device__ inline void copy_bulk_out(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
__device__ inline void copies_out_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void copies_out_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void copies_out_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Order this thread's ordinary accesses to global, or to shared, memory with those of the copy engine.
__device__ inline void proxy_fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ inline void proxy_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barriers of some of the warps, numbered 1 to 15: sync arrives and waits, arrive does not wait.
__device__ inline void group_arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void group_sync(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The number of threads in the group whose predicate holds.
__device__ inline int group_count(int barrier, int threads, bool predicate) {
  int count;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "barrier.cta.red.popc.aligned.u32 %0, %1, %2, p;\n"
      "}"
      : "=r"(count)
      : "r"(barrier), "r"(threads), "r"(static_cast<int>(predicate))
      : "memory");
  return count;
}

// Over all lanes of a warp.
__device__ inline uint32_t warp_max(uint32_t value) {
  uint32_t result;
  asm volatile("redux.sync.max.u32 %0, %1, 0xFFFFFFFF;" : "=r"(result) : "r"(value));
  return result;
}
__device__ inline uint32_t warp_min(uint32_t value) {
  uint32_t result;
  asm volatile("redux.sync.min.u32 %0, %1, 0xFFFFFFFF;" : "=r"(result) : "r"(value));
  return result;
}

__device__ inline int load_acquire(const int* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ inline int load_relaxed(const int* p) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ inline void add_release(int* p, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

template <int kRegisters>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Two float16, each zero if it was below 2^-14: times one, with subnormal numbers flushed.
__device__ inline uint32_t flush_halves(uint32_t two) {
  uint32_t flushed;
  asm("mul.rn.ftz.f16x2 %0, %1, %2;" : "=r"(flushed) : "r"(two), "r"(0x3C003C00));
  return flushed;
}

// Programmatic dependent launch: wait for the kernel before this one in the stream; let the one after it begin. Other GPUs have no such
// thing, and there the kernels of a stream run one after the other.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// wgmma: one warpgroup multiplies operands that lie in shared memory. An operand is described by its address and two strides, all in
// units of 16 bytes, and the swizzle, 1 for 128 bytes. The same for all threads of a warp, and told to the compiler as such, or it would
// move it to the uniform registers before each instruction anew.
__device__ inline uint64_t operand(uint32_t at, uint32_t leading_bytes, uint32_t stride_bytes) {
  const uint32_t low = __shfl_sync(0xFFFFFFFFu, (at & 0x3FFFF) >> 4 | (leading_bytes >> 4) << 16, 0);
  return static_cast<uint64_t>(stride_bytes >> 4 | 1u << 30) << 32 | low;
}
__device__ inline uint64_t operand_after(uint64_t operand, uint32_t bytes) {   // the strides stay: only the low word changes
  return (operand & 0xFFFFFFFF00000000ull) | (static_cast<uint32_t>(operand) + (bytes >> 4));
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define SUMS_8(s, i) \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), "+f"(s[i + 7])
#define SUMS_32(s, i) SUMS_8(s, i), SUMS_8(s, i + 8), SUMS_8(s, i + 16), SUMS_8(s, i + 24)

// sums = A B (+ sums, if add), 64 x 128 by 16 of k; kMajorA, kMajorB: 0 where k runs along the 128-byte rows, else 1.
template <int kMajorA, int kMajorB>
__device__ inline void wgmma(float (&s)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, %67, %68;\n"
      "}"
      : SUMS_32(s, 0), SUMS_32(s, 32)
      : "l"(a), "l"(b), "r"(add), "n"(kMajorA), "n"(kMajorB));
}
"""

# ---- The portable kernel: any GPU, any strides, four dtypes; the referee of every faster kernel. ---------------------
#
# Enters: a Product. Leaves: all of C. One thread block a tile. Its threads form teams: each team sums the whole tile over its own
# share of k, kept in registers, and at the end the teams' sums are added in a fixed order. That is more work per element read than
# one team of smaller parts would have, and shorter chains of additions. A team walks its share in slabs, which wait in shared
# memory, k the slow index, the next ones already on their way from global memory. It has slabs and a barrier of its own, so that
# one team multiplies while another waits.
#
# float32 and the 16-bit types are multiplied by fused multiply-adds; float64 too, on the double-precision tensor cores from sm_80 on.
#
# Where an operand has no element (beyond its diagonal or its edge) the slab holds a zero. Zero times Inf would make a NaN where
# the sum over k has no such term. So a tile whose sums hold a NaN is summed a second time, leaving out the terms that are not there.
_CUDA_PORTABLE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What each element type is accumulated in, and the way there and back (rounding to nearest). The 16-bit conversions serve tensors
// of those types; no float32 element goes through them here.
template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline void narrow(float v, float& to) { to = v; }
__device__ inline void narrow(double v, double& to) { to = v; }
__device__ inline void narrow(float v, __half& to) { to = __float2half_rn(v); }
__device__ inline void narrow(float v, __nv_bfloat16& to) { to = __float2bfloat16_rn(v); }

// Which elements an operand has, by its line (row m of X, column n of Y) and k.
enum Side : int { kUpToLine, kFromLine, kEverywhere };

__device__ inline bool on_side(Side side, int line, int k) { return side == kUpToLine ? k <= line : side == kFromLine ? k >= line : true; }

// How the threads of one team share a tile of kEdge x kEdge: each sums kRows x kCols elements. A warp is 4 x 8 threads whose
// elements come in groups of four (float32), or 8 x 4 threads whose elements lie as the double-precision tensor cores want them;
// both ways its reads of a slab meet no bank conflict.
template <typename Acc, int kEdge>
struct Layout;

template <int kEdge>
struct Layout<float, kEdge> {
  static constexpr int kRows = kEdge / 8, kCols = kEdge == 32 ? 4 : 8, kWarpRows = 4 * kRows, kWarpCols = 8 * kCols;
  __device__ static int row(int lane, int r) { return lane / 8 * 4 + r / 4 * 16 + r % 4; }
  __device__ static int col(int lane, int s) { return lane % 8 * 4 + s / 4 * 32 + s % 4; }
};

template <int kEdge>
struct Layout<double, kEdge> {
  static constexpr int kRows = 4, kCols = kEdge == 32 ? 8 : 16, kWarpRows = 8 * kRows, kWarpCols = 4 * kCols;
  __device__ static int row(int lane, int r) { return lane / 4 + r * 8; }
  __device__ static int col(int lane, int s) { return lane % 4 * 2 + s / 2 * 8 + s % 2; }
};

// One operand as a thread block sees it: lines from first_line on, and what exists of them.
template <typename T>
struct Panel {
  const T* data;   // line 0, k = 0: on the diagonal, an element that may always be read
  int64_t line_stride, k_stride;
  Side side;
  int first_line, lines, depth;
};

// at + step. Keeps the compiler from computing all addresses of an unrolled loop beforehand, which would take registers that data need.
template <typename T>
__device__ inline T* next_address(T* at, int64_t step) {
  at += step;
  asm volatile("" : "+l"(at));
  return at;
}

// Keeps a value in its register. For what the compiler would compute anew in every slab, all threads of a team would wait.
__device__ inline void keep(int& value) { asm volatile("" : "+r"(value)); }

// Copies kBytes (4, 8 or 16) to shared memory, asynchronously. Of a missing element no byte is read, and its place is filled with zeros.
template <int kBytes>
__device__ inline void copy_async(uint32_t to, const void* from, bool exists) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(exists ? kBytes : 0) : "memory");
}

// Copies a panel's part of each slab of a team to shared memory: kEdge lines by kDepth values of k. begin() starts the copy and
// finish() ends it. Where the GPU can copy elements of this type by itself (sm_80 on, 4 or 8 bytes), all happens in between; elsewhere
// begin() reads into registers and finish() stores them.
template <typename T, int kEdge, int kDepth, int kThreads>
struct SlabCopier {
  using Acc = typename AccumulatorOf<T>::type;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  static constexpr bool kAsync = sizeof(T) >= 4;
#else
  static constexpr bool kAsync = false;
#endif
  static constexpr int kPitch = kEdge + 4;   // a row of the slab; the padding spreads the stores over the banks

  // Neighbouring threads read along the direction of the smaller stride. Along k they turn the slab round: a warp reads 32 bytes, a
  // sector, of each of several lines, and its stores meet no bank conflict. Along the lines they may copy 16 bytes at a time.
  enum Way : int { kAlongK, kAlongLines, kBy16Bytes };
  static constexpr int kRun = kDepth < 32 / int(sizeof(Acc)) ? kDepth : 32 / int(sizeof(Acc)), kRuns = kDepth / kRun;
  __host__ __device__ static constexpr int width(Way way) { return way == kBy16Bytes ? 16 / int(sizeof(T)) : 1; }
  __host__ __device__ static constexpr int loads(Way way) { return kEdge * kDepth / kThreads / width(way); }
  __host__ __device__ static constexpr int steps(Way way) {
    return way == kAlongK ? kThreads / kDepth : kThreads * width(way) / kEdge;
  }   // in lines, or in k
  static constexpr int kLoads = kEdge * kDepth / kThreads;
  static_assert(kThreads / 32 % kRuns == 0 && kThreads % kEdge == 0 && kLoads * kThreads == kEdge * kDepth,
                "a thread's elements must lie evenly spaced along the lines or along k");

  // The place of thread t's first element in the slab.
  __device__ static int line(Way way, int t) {
    return way == kAlongK ? t % 32 / kRun + t / 32 / kRuns * (32 / kRun) : t % (kEdge / width(way)) * width(way);
  }
  __device__ static int k(Way way, int t) { return way == kAlongK ? t % kRun + t / 32 % kRuns * kRun : t / (kEdge / width(way)); }

  int way;         // a Way
  int clear;       // the slab nearest to the diagonal that lies wholly in the operand begins here
  const T* next;   // this thread's first element of the slab that is to be copied next
  int place;       // of the first element in the slab
  T held[kAsync ? 1 : kLoads];

  __device__ SlabCopier(const Panel<T>& panel, int thread, int k0) {
    const bool aligned =
        panel.line_stride == 1 && panel.k_stride * int64_t(sizeof(T)) % 16 == 0 && reinterpret_cast<uintptr_t>(panel.data) % 16 == 0;
    const Way chosen = llabs(panel.k_stride) <= llabs(panel.line_stride) ? kAlongK : kAsync && aligned ? kBy16Bytes : kAlongLines;
    const int last_line = panel.first_line + kEdge - 1;
    if (panel.side == kFromLine)
      clear = last_line < panel.lines ? last_line : panel.depth;
    else
      clear = last_line >= panel.lines ? -1 : panel.side == kUpToLine ? panel.first_line + 1 - kDepth : panel.depth;
    const int l = line(chosen, thread), kk = k(chosen, thread);
    next = panel.data + (panel.first_line + l) * panel.line_stride + (k0 + kk) * panel.k_stride;
    place = kk * kPitch + l;
    way = chosen;
    keep(way), keep(clear), keep(place);
  }

  // Copies the thread's elements of a slab, all or those numbered number .. number + count - 1.
  template <Way kWay, bool kMasked>
  __device__ void copy(const Panel<T>& panel, const T* at, uint32_t to, int number = 0, int count = 0) {
    const int64_t at_step = steps(kWay) * (kWay == kAlongK ? panel.line_stride : panel.k_stride);
    constexpr int kToStep = steps(kWay) * (kWay == kAlongK ? 1 : kPitch) * int(sizeof(Acc));
#pragma unroll
    for (int i = 0; i < loads(kWay); ++i, at = next_address(at, at_step)) {
      const bool exists = !kMasked || static_cast<uint32_t>(i - number) < static_cast<uint32_t>(count);
      if constexpr (kAsync) {
        copy_async<width(kWay) * int(sizeof(T))>(to + i * kToStep, at, exists);
      } else {
        const T value = *(exists ? at : panel.data);   // an address that may be read in any case, so that no load waits behind a branch
        held[i] = exists ? value : T();
      }
    }
  }

  // Copies a slab of which only a part exists. Such slabs are few: what they need shall take no registers elsewhere.
  template <Way kWay>
  __device__ void copy_existing(const Panel<T>& panel, int k0, Acc* slab) {
    const int t = static_cast<uint32_t>(fresh_thread_index()) % kThreads, l = line(kWay, t), kk = k(kWay, t);
    const int this_line = panel.first_line + l, this_k = k0 + kk;
    const bool up_to_line = panel.side == kUpToLine, from_line = panel.side == kFromLine;
    int from, to, at;   // along the direction in which the elements are numbered
    if (kWay == kAlongK)
      at = this_line, from = up_to_line ? this_k : 0,
      to = this_k >= panel.depth ? 0
           : from_line           ? min(panel.lines, this_k + 1)
                                 : panel.lines;
    else
      at = this_k, from = from_line ? this_line : 0,
      to = this_line >= panel.lines ? 0
           : up_to_line             ? min(panel.depth, this_line + 1)
                                    : panel.depth;
    const int number = ceil_div(max(from - at, 0), steps(kWay)), count = max(ceil_div(max(to - at, 0), steps(kWay)) - number, 0);
    copy<kWay, true>(panel, panel.data + this_line * panel.line_stride + this_k * panel.k_stride, shared_address(slab + kk * kPitch + l),
                     number, count);
  }

  // The slab at k0; the one after it will be at k0 + kStep.
  template <int kStep>
  __device__ void begin(const Panel<T>& panel, int k0, Acc* slab) {
    const T* const at = next;
    next += kStep * panel.k_stride;
    const uint32_t to = shared_address(slab + place);
    const bool inside = k0 + kDepth <= panel.depth && (panel.side == kFromLine ? k0 >= clear : k0 <= clear);
    if constexpr (kAsync)
      if (inside && way == kBy16Bytes) return copy<kBy16Bytes, false>(panel, at, to);
    if (inside && way == kAlongK)
      copy<kAlongK, false>(panel, at, to);
    else if (inside)
      copy<kAlongLines, false>(panel, at, to);
    else if (way == kAlongK)
      copy_existing<kAlongK>(panel, k0, slab);
    else
      copy_existing<kAlongLines>(panel, k0, slab);
  }

  __device__ void finish(Acc* slab) {
    if constexpr (!kAsync) {
      Acc* const to = slab + place;
      const int to_step = way == kAlongK ? steps(kAlongK) : steps(kAlongLines) * kPitch;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) to[i * to_step] = widen(held[i]);
    }
  }
};

// Waits for the threads of one team.
template <int kThreads>
__device__ inline void team_sync(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kThreads) : "memory");   // 0 is the barrier of __syncthreads
}

template <int kPending>
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

__device__ inline void end_group_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// sum += (this thread's rows of X) * (its columns of Y) over kDepth values of k, in ascending order. x and y point to the warp's
// first line at the first k.
template <typename L, int kDepth, int kPitch>
__device__ inline void multiply(const float* x, const float* y, int lane, float (&sum)[L::kRows][L::kCols]) {
#pragma unroll(L::kRows == 8 ? 2 : 8)   // with 8 x 8 sums a thread, two thread blocks a multiprocessor, registers are few
  for (int k = 0; k < kDepth; ++k) {
    float a[L::kRows], b[L::kCols];
#pragma unroll
    for (int r = 0; r < L::kRows; r += 4)
      *reinterpret_cast<float4*>(a + r) = *reinterpret_cast<const float4*>(x + k * kPitch + L::row(lane, r));
#pragma unroll
    for (int s = 0; s < L::kCols; s += 4)
      *reinterpret_cast<float4*>(b + s) = *reinterpret_cast<const float4*>(y + k * kPitch + L::col(lane, s));
#pragma unroll
    for (int r = 0; r < L::kRows; ++r)
#pragma unroll
      for (int s = 0; s < L::kCols; ++s) sum[r][s] = fmaf(a[r], b[s], sum[r][s]);
  }
}

// The same in float64. The tensor cores' multiply-adds are fused and round as IEEE says; a lane holds line lane / 4 (and 8 on) at
// k = lane % 4, and two neighbouring sums.
template <typename L, int kDepth, int kPitch>
__device__ inline void multiply(const double* x, const double* y, int lane, double (&sum)[L::kRows][L::kCols]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#pragma unroll
  for (int k = 0; k < kDepth; k += 4) {
    double a[L::kRows], b[L::kCols / 2];
#pragma unroll
    for (int r = 0; r < L::kRows; ++r) a[r] = x[(k + lane % 4) * kPitch + r * 8 + lane / 4];
#pragma unroll
    for (int s = 0; s < L::kCols / 2; ++s) b[s] = y[(k + lane % 4) * kPitch + s * 8 + lane / 4];
#pragma unroll
    for (int r = 0; r < L::kRows; r += 2)
#pragma unroll
      for (int s = 0; s < L::kCols; s += 2) {
#if __CUDA_ARCH__ >= 900
        asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+d"(sum[r][s]), "+d"(sum[r][s + 1]), "+d"(sum[r + 1][s]), "+d"(sum[r + 1][s + 1])
                     : "d"(a[r]), "d"(a[r + 1]), "d"(b[s / 2]));
#else
#pragma unroll
        for (int h = 0; h < 2; ++h)
          asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                       : "+d"(sum[r + h][s]), "+d"(sum[r + h][s + 1])
                       : "d"(a[r + h]), "d"(b[s / 2]));
#endif
      }
  }
#else
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int r = 0; r < L::kRows; ++r)
#pragma unroll
      for (int s = 0; s < L::kCols; ++s) sum[r][s] = fma(x[k * kPitch + L::row(lane, r)], y[k * kPitch + L::col(lane, s)], sum[r][s]);
  }
#endif
}

// The same, leaving out each term that one of the operands does not have: (m, n) is the warp's first element, k0 the first k.
template <typename L, int kDepth, int kPitch, typename Acc>
__device__ inline void multiply_masked(const Acc* x, const Acc* y, Side x_side, Side y_side, int m, int n, int k0,
                                       Acc (&sum)[L::kRows][L::kCols]) {
  const int lane = static_cast<uint32_t>(fresh_thread_index()) % 32;
#pragma unroll 1
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int r = 0; r < L::kRows; ++r) {
      const int row = L::row(lane, r);
      const Acc a = x[k * kPitch + row];
#pragma unroll
      for (int s = 0; s < L::kCols; ++s) {
        const int col = L::col(lane, s);
        if (on_side(x_side, m + row, k0 + k) && on_side(y_side, n + col, k0 + k)) sum[r][s] = fma(a, y[k * kPitch + col], sum[r][s]);
      }
    }
}

// Whether one of the sums is a NaN.
template <typename Acc, int kRows, int kCols>
__device__ inline bool any_nan(const Acc (&sum)[kRows][kCols]) {
  bool found = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int s = 0; s < kCols; ++s) found |= sum[r][s] != sum[r][s];
  return found;
}

// Zeros for the mirror image of tile (i, j) of C, which lies above the diagonal.
template <typename T, int kEdge, int kThreads>
__device__ inline void write_zeros_above(const Product& p, T* c, int i, int j) {
  constexpr int kWide = 16 / sizeof(T);
  c += static_cast<int64_t>(j * kEdge) * p.c_row + static_cast<int64_t>(i * kEdge) * p.c_col;
  const int cols = min(kEdge, p.n - i * kEdge);   // and all rows: those of the diagonal come before the last
  if (cols == kEdge && p.c_col == 1 && p.c_row % kWide == 0 && reinterpret_cast<uintptr_t>(c) % 16 == 0) {
#pragma unroll 4
    for (int e = threadIdx.x * kWide; e < kEdge * kEdge; e += kThreads * kWide)
      *reinterpret_cast<uint4*>(c + e / kEdge * p.c_row + e % kEdge) = uint4();
  } else {
#pragma unroll 1
    for (int e = threadIdx.x; e < kEdge * kEdge; e += kThreads)
      if (e % kEdge < cols) narrow(typename AccumulatorOf<T>::type(0), c[e / kEdge * p.c_row + e % kEdge * p.c_col]);
  }
}

// What a thread block computes.
struct Place {
  Tile tile;
  int batch;   // which product of the batch
  int share;   // which share of the tile's k
  const void *x, *y;   // of that product
};

// The sizes of the kernel: tiles of 128, 64 or 32, always 256 threads, with more teams to a smaller tile.
template <typename T, int kEdge>
struct Portable {
  using Acc = typename AccumulatorOf<T>::type;
  using L = Layout<Acc, kEdge>;
  static constexpr int kThreads = 256, kStages = kEdge >= 64 ? 2 : 3;
  // Thread blocks a multiprocessor: while one waits the other multiplies. One where the registers of two would not hold the sums.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
  static constexpr int kBlocks = 1;
#else
  static constexpr int kBlocks = sizeof(T) == 4 && kEdge <= 64 ? 2 : 1;
#endif
  static constexpr int kTeamThreads = kEdge / L::kWarpRows * (kEdge / L::kWarpCols) * 32, kTeams = kThreads / kTeamThreads;
  static constexpr int kDepth = (kEdge >= 64 ? 16384 : 8192) / (kTeams * kEdge * static_cast<int>(sizeof(Acc)));   // of a team's slab
  // A slab is multiplied in parts. Where a team has two warps on each scheduler, one of them copies in the second part only, so that
  // one always multiplies.
  static constexpr int kParts = kTeamThreads > 128 ? 2 : 1;
  using Copier = SlabCopier<T, kEdge, kDepth, kTeamThreads>;
  static constexpr int kSlab = kDepth * Copier::kPitch;   // elements
  static constexpr int kSharedBytes = kStages * kTeams * 2 * kSlab * static_cast<int>(sizeof(Acc));
};

template <typename T, int kEdge>
__global__ void __launch_bounds__(Portable<T, kEdge>::kThreads, Portable<T, kEdge>::kBlocks)
    portable_product(const Product p, int split, const int* only_if) {
  using P = Portable<T, kEdge>;
  using L = typename P::L;
  using Acc = typename P::Acc;
  using Copier = typename P::Copier;
  constexpr int kDepth = P::kDepth, kStep = P::kTeams * kDepth, kPitch = Copier::kPitch, kStages = P::kStages;
  wait_for_previous_kernel();   // returns at once where no kernel before this one let it begin early
  if (only_if && *only_if == 0) return;
  extern __shared__ __align__(16) unsigned char slab_memory[];
  Acc* const slabs = reinterpret_cast<Acc*>(slab_memory);
  const int team = P::kTeams == 1 ? 0 : threadIdx.x / P::kTeamThreads, in_team = threadIdx.x % P::kTeamThreads, warp = in_team / 32,
            lane = threadIdx.x % 32;
  auto slab_x = [&](int stage) { return slabs + 2 * (stage * P::kTeams + team) * P::kSlab; };
  auto slab_y = [&](int stage) { return slab_x(stage) + P::kSlab; };

  __shared__ Place place;   // kept there, and not in registers: the loop over the slabs rarely needs it
  if (threadIdx.x == 0) {
    const int rest = blockIdx.x / split, batch = rest % static_cast<int>(p.batches);
    place = {tile_at(p, kEdge, rest / static_cast<int>(p.batches)), batch, static_cast<int>(blockIdx.x) % split,
             static_cast<const T*>(p.x) + batch_offset(p, p.x_batch, batch),
             static_cast<const T*>(p.y) + batch_offset(p, p.y_batch, batch)};
  }
  __syncthreads();

  const Side x_side = !p.triangular ? kEverywhere : p.contraction == kTN ? kFromLine : kUpToLine;
  const Side y_side = !p.triangular ? kEverywhere : p.contraction == kNT ? kUpToLine : kFromLine;
  auto panel_x = [&] { return Panel<T>{static_cast<const T*>(place.x), p.x_row, p.x_col, x_side, place.tile.i * kEdge, p.m, p.k}; };
  auto panel_y = [&] { return Panel<T>{static_cast<const T*>(place.y), p.y_col, p.y_row, y_side, place.tile.j * kEdge, p.n, p.k}; };

  constexpr int kWarpsDown = kEdge / L::kWarpRows;
  const int warp_row = warp % kWarpsDown * L::kWarpRows, warp_col = warp / kWarpsDown * L::kWarpCols;
  auto first_row = [&] { return place.tile.i * kEdge + warp_row; };
  auto first_col = [&] { return place.tile.j * kEdge + warp_col; };
  // The slabs in which the warp's part of the tile has terms; in the blocks on the diagonals half of them have none.
  int terms_from = max(x_side == kFromLine ? first_row() : 0, y_side == kFromLine ? first_col() : 0) - kDepth;
  int terms_to = min(x_side == kUpToLine ? first_row() + L::kWarpRows : p.k, y_side == kUpToLine ? first_col() + L::kWarpCols : p.k);

  Acc sum[L::kRows][L::kCols];
  const int all_steps = ceil_div(place.tile.k_end - place.tile.k_begin, kStep);
  const int first_step = all_steps / split * place.share + min(place.share, all_steps % split);   // the first shares may have one more
  int slabs_of_team = all_steps / split + (place.share < all_steps % split);   // each takes every kTeams-th
  const int k_begin = place.tile.k_begin + first_step * kStep + team * kDepth;
  keep(terms_from), keep(terms_to), keep(slabs_of_team);
  // Asynchronous copies run kStages - 1 slabs ahead; those through registers one slab, which is what the registers hold.
  constexpr int kAhead = Copier::kAsync ? kStages - 1 : 1;
  for (bool careful = false;; careful = true) {
    Copier copier_x(panel_x(), in_team, k_begin), copier_y(panel_y(), in_team, k_begin);
#pragma unroll
    for (int r = 0; r < L::kRows; ++r)
#pragma unroll
      for (int s = 0; s < L::kCols; ++s) sum[r][s] = 0;
    int stage = 0, k0 = k_begin - kAhead * kStep;   // of slab `number`
#pragma unroll 1
    for (int number = -kAhead; number < slabs_of_team; ++number, k0 += kStep) {
      if (number >= 0) {
        copier_x.finish(slab_x(stage));
        copier_y.finish(slab_y(stage));
        wait_for_copies<kAhead - 1>();
        team_sync<P::kTeamThreads>(team);   // the slab is there, and the one before it is done with
      }
      const int k_next = k0 + kAhead * kStep, stage_next = stage + kAhead < kStages ? stage + kAhead : stage + kAhead - kStages;
#pragma unroll 1
      for (int part = 0; part < P::kParts; ++part) {
        if (part == warp / 4 % P::kParts) {
          if (number + kAhead < slabs_of_team) {
            copier_x.template begin<kStep>(panel_x(), k_next, slab_x(stage_next));
            copier_y.template begin<kStep>(panel_y(), k_next, slab_y(stage_next));
          }
          end_group_of_copies();
        }
        if (number < 0 || k0 <= terms_from || k0 >= terms_to) continue;
        constexpr int kPart = kDepth / P::kParts;
        const Acc *x_of_warp = slab_x(stage) + part * kPart * kPitch + warp_row,
                  *y_of_warp = slab_y(stage) + part * kPart * kPitch + warp_col;
        if (careful)
          multiply_masked<L, kPart, kPitch>(x_of_warp, y_of_warp, x_side, y_side, first_row(), first_col(), k0 + part * kPart, sum);
        else
          multiply<L, kPart, kPitch>(x_of_warp, y_of_warp, lane, sum);
      }
      // While the first slabs are on their way.
      if (number == -1 && !careful && p.triangular && place.tile.i != place.tile.j && place.share == split - 1)
        write_zeros_above<T, kEdge, P::kThreads>(p, static_cast<T*>(p.c) + batch_offset(p, p.c_batch, place.batch), place.tile.i,
                                                 place.tile.j);
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
    // A term that the product does not have, zero times Inf, can only have made a NaN. Then the tile is summed again, with care.
    if (careful || !p.triangular || !__syncthreads_or(any_nan(sum))) break;
  }

  // The teams' sums, added one after the other, 64 elements of each thread at a time.
  constexpr int kElements = L::kRows * L::kCols, kRound = kElements < 64 ? kElements : 64;
  static_assert(P::kTeams == 1 || kRound * P::kTeamThreads * sizeof(Acc) <= P::kSharedBytes, "a team's round must fit the slabs");
  Acc* const flat = &sum[0][0];
#pragma unroll 1
  for (int other = 1; other < P::kTeams; ++other)
#pragma unroll
    for (int first = 0; first < kElements; first += kRound) {
      __syncthreads();
      if (team == other)
#pragma unroll
        for (int e = 0; e < kRound; ++e) slabs[e * P::kTeamThreads + in_team] = flat[first + e];
      __syncthreads();
      if (team == 0)
#pragma unroll
        for (int e = 0; e < kRound; ++e) flat[first + e] += slabs[e * P::kTeamThreads + in_team];
    }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // The shares of the thread blocks of a cluster, likewise: each leaves its sums in its shared memory, and the first one adds them.
  if (split > 1) {
    __syncthreads();
    if (place.share != 0 && team == 0)
#pragma unroll
      for (int e = 0; e < kElements; ++e) slabs[e * P::kTeamThreads + in_team] = flat[e];
    cluster_sync();
    if (place.share == 0 && team == 0)
#pragma unroll 1
      for (int other = 1; other < split; ++other) {
        const uint32_t from = address_in_peer(shared_address(slabs + in_team), other);
#pragma unroll
        for (int e = 0; e < kElements; ++e) flat[e] += load_in_peer<Acc>(from + e * P::kTeamThreads * static_cast<int>(sizeof(Acc)));
      }
    cluster_sync();   // nobody may leave while his sums are being read
  }
#endif

  // The first team of the first share writes the tile, neighbours together where it can.
  constexpr int kGroup = sizeof(Acc) == 4 ? 4 : 2;
  struct alignas(kGroup * sizeof(T)) Group {
    T v[kGroup];
  };
  const int row = first_row(), col = first_col();
  T* const corner = static_cast<T*>(p.c) + batch_offset(p, p.c_batch, place.batch) + row * p.c_row + col * p.c_col;
  const bool whole =
      (place.tile.i + 1) * kEdge <= p.m && (place.tile.j + 1) * kEdge <= p.n && !(p.triangular && place.tile.i == place.tile.j);
  if (team != 0 || place.share != 0) return;
  if (whole && p.c_col == 1 && p.c_row % kGroup == 0 && reinterpret_cast<uintptr_t>(corner) % sizeof(Group) == 0) {
#pragma unroll
    for (int r = 0; r < L::kRows; ++r)
#pragma unroll
      for (int s = 0; s < L::kCols; s += kGroup) {
        Group group;
#pragma unroll
        for (int g = 0; g < kGroup; ++g) narrow(sum[r][s + g], group.v[g]);
        *reinterpret_cast<Group*>(corner + L::row(lane, r) * p.c_row + L::col(lane, s)) = group;
      }
  } else {
#pragma unroll
    for (int r = 0; r < L::kRows; ++r)
#pragma unroll
      for (int s = 0; s < L::kCols; ++s) {
        const int m = row + L::row(lane, r), n = col + L::col(lane, s);
        if (m < p.m && n < p.n)
          narrow(p.triangular && n > m ? Acc(0) : sum[r][s], corner[L::row(lane, r) * p.c_row + L::col(lane, s) * p.c_col]);
      }
  }
}

// `split`: how many thread blocks, a cluster of Hopper or later, share the range of k of each tile.
template <typename T, int kEdge>
cudaError_t launch_portable_as(const Product& p, int split, const int* only_if, cudaStream_t stream) {
  using P = Portable<T, kEdge>;
  const int64_t blocks = tile_count(p, kEdge) * p.batches * split;
  if (blocks > 2147483647) return cudaErrorInvalidConfiguration;
  const auto kernel = portable_product<T, kEdge>;
  if (P::kSharedBytes > 48 * 1024) {   // more than a kernel gets without asking
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2];
  int count = 0;
  if (only_if) {   // the kernel that decides whether this one has anything to do lets it begin before its own end
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (split > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = split;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1, ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(P::kThreads);
  config.dynamicSmemBytes = P::kSharedBytes, config.stream = stream;
  config.attrs = attributes, config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, p, split, only_if);
}

// Large tiles read least, but only many tiles keep every multiprocessor busy to the end. Where there are few, several thread blocks
// share the range of k of one, if the GPU has clusters, and the tiles are made smaller. The limits are measured, on an H200.
template <typename T>
cudaError_t launch_portable_sized(const Product& p, const Gpu& gpu, const int* only_if, cudaStream_t stream) {
  const int64_t processors = gpu.multiprocessors;
  if (gpu.capability >= 80) {   // earlier ones have too little shared memory for the slabs of the larger tiles
    if constexpr (sizeof(T) >= 4)   // the copies of 16-bit elements go through registers, and the largest tile leaves none for them
      if (tile_count(p, 128) * p.batches >= 3 * processors) return launch_portable_as<T, 128>(p, 1, only_if, stream);
    const int64_t tiles = tile_count(p, 64) * p.batches;
    if (tiles >= 2 * processors) return launch_portable_as<T, 64>(p, 1, only_if, stream);
    if (sizeof(T) == 8 && gpu.capability >= 90 && tiles >= processors) return launch_portable_as<T, 64>(p, 2, only_if, stream);
  }
  const bool few = 2 * tile_count(p, 32) * p.batches <= (sizeof(T) == 8 ? 1 : 3) * processors;   // as many as fit at a time, about
  return launch_portable_as<T, 32>(p, gpu.capability >= 90 && few && p.k >= 256 ? 2 : 1, only_if, stream);
}

// If `only_if` is given, the kernel does nothing where that word of device memory is zero.
cudaError_t launch_portable(const Product& p, ElementType type, const Gpu& gpu, const int* only_if, cudaStream_t stream) {
  switch (type) {
    case kFloat32:
      return launch_portable_sized<float>(p, gpu, only_if, stream);
    case kFloat64:
      return launch_portable_sized<double>(p, gpu, only_if, stream);
    case kFloat16:
      return launch_portable_sized<__half>(p, gpu, only_if, stream);
    case kBFloat16:
      return launch_portable_sized<__nv_bfloat16>(p, gpu, only_if, stream);
  }
  return cudaErrorInvalidValue;
}
"""

# ---- Packing: float32 -> scaled pairs of fp16 in the tensor cores' own layout. All layouts stand here. ---------------
#
# Enters: a matrix of float32 with any strides. Leaves: packed blocks of 64 x 64, each the image that wgmma wants in shared memory, and a
# record for each with its scale and what its image misses. A power of two brings the largest element of a block near 2^14; hi + lo then
# hold 22 bits of every element down to 2^-3. Of smaller ones the rest is computed, and listed if it matters.
_CUDA_PACKING = r"""
constexpr int kBlock = 64;                            // a packed block is 64 x 64 elements
constexpr int kHalfBytes = kBlock * kBlock * 2;       // its hi parts, or its lo parts
constexpr int kBlockBytes = 2 * kHalfBytes;           // hi, then lo
constexpr int kMaxLost = 14;

// An element whose 22 bits did not fit the block's scale: place in the block and what hi + lo misses of it, unscaled.
struct Lost {
  uint16_t row, col;
  float rest;
};

struct alignas(128) Record {
  float unscale;   // hi + lo times this is the element
  int lost_count;
  int unused[2];
  Lost lost[kMaxLost];
};
static_assert(sizeof(Record) == 128, "a record is copied as one bulk copy and must fill its 128 bytes");

// One packed matrix. Triangular: the lower blocks only, row by row; else all of them.
struct Packed {
  const float* source;
  int64_t row_stride, col_stride;
  int rows, cols;          // elements
  int triangular;
  int block_cols;
  uint8_t* blocks;
  Record* records;
};

__host__ __device__ inline int blocks_in(int n) { return (n + kBlock - 1) / kBlock; }

__device__ inline int64_t block_index(const Packed& p, int r, int c) {
  return p.triangular ? triangle(r) + c : static_cast<int64_t>(r) * p.block_cols + c;
}

// Where in the hi (or lo) half of a block an element lies: rows of 128 bytes whose 16-byte pieces are permuted by the row (the
// 128-byte swizzle that wgmma expects of both K-major and MN-major operands).
__device__ inline int swizzled(int row, int col) { return row * 128 + (((col >> 3) ^ (row & 7)) << 4) + ((col & 7) << 1); }

constexpr int kPackers = 256;                             // threads that pack one block together
constexpr int kPieces = kBlock * kBlock / kPackers / 4;   // pieces of four neighbouring columns a thread

// One block's way through the packers, as the dealer lays it out.
struct Task {
  const float* source;     // its first element
  uint8_t* block;          // where it goes
  Record* record;
  int rows, cols;          // of the matrix from there on, possibly more than 64
  int* ready;              // the count that it adds `add` to; null: there are no more tasks
  int add;
  uint8_t of_x, diagonal;  // which operand; only elements with column <= row
  uint8_t quads;           // whether four neighbours in a row can be read at once
  uint8_t along_rows;      // whether rows, or else columns, run along the smaller stride
};

struct PackScratch {
  uint32_t largest[2][kPackers / 32], least[2][kPackers / 32];
  uint8_t lost[kPackers];
};

// x = hi + lo, two neighbours at a time: hi the nearest fp16, lo the nearest fp16 to the rest, 22 bits together. Scaled elements below
// 2^-3 may lose some of the 22, because fp16 ends at 2^-24.
constexpr float kTolerance = 0x1p-22f, kSmall = 0x1p-3f;

// Below this a float16 has no leading bit. The tensor cores align products by their exponents, so of such an element they would keep
// fewer bits than of others, which shows where a sum has no larger term. Its image is zero, and all of it goes into the record.
constexpr float kLeast = 0x1p-14f;

__device__ inline void split_two(float x, float y, float scale, uint32_t& hi, uint32_t& lo) {
  const __half2 high = __floats2half2_rn(x * scale, y * scale);
  const float2 back = __half22float2(high);
  const __half2 low = __floats2half2_rn(fmaf(x, scale, -back.x), fmaf(y, scale, -back.y));   // zero where hi is below kLeast
  hi = flush_halves(*reinterpret_cast<const uint32_t*>(&high));
  lo = *reinterpret_cast<const uint32_t*>(&low);
}

// What the image misses of x, unscaled. hi + lo and the difference are exact.
__device__ inline float rest_of(float x, float scale, float unscale) {
  const float a = x * scale, high = __half2float(__float2half_rn(a)), low = __half2float(__float2half_rn(a - high));
  return fabsf(high) < kLeast ? x : fmaf(-(high + low), unscale, x);
}

// How the threads share a block: 16 x 16 pieces at a time where rows run along memory, or 64 x 4 where columns do.
struct Pieces {
  int row, col, row_step, col_step;   // this thread's first piece, and from each to its next
  __device__ Pieces(bool along_rows, int t)
      : row(along_rows ? t / 16 : t % 64),
        col(along_rows ? t % 16 * 4 : t / 64 * 16),
        row_step(along_rows ? 16 : 0),
        col_step(along_rows ? 0 : 4) {}
};

// One block in registers, or on its way there.
struct BlockInFlight {
  float v[kPieces][4];
};

// Starts the loads of a block. Nothing waits for them here: where an element does not exist another one is read, and `inspect` puts a
// zero in its place.
__device__ inline void load_block(const Task& task, const Packed& p, int t, BlockInFlight& block) {
  const Pieces piece(task.along_rows, t);
  const float* at = task.source + piece.row * p.row_stride + piece.col * p.col_stride;
  const int64_t step = piece.row_step * p.row_stride + piece.col_step * p.col_stride;
  if (task.quads) {
    const float* low = at + (p.col_stride == 1 ? 0 : -3);   // the lowest address of the piece
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float* from = piece.row + i * piece.row_step < task.rows ? low : task.source + (p.col_stride == 1 ? 0 : -3);
      const float4 q = __ldcs(reinterpret_cast<const float4*>(from));
      block.v[i][0] = q.x, block.v[i][1] = q.y, block.v[i][2] = q.z, block.v[i][3] = q.w;
      low = next_address(low, step);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int cols = piece.row + i * piece.row_step < task.rows ? task.cols - piece.col - i * piece.col_step : 0;
      const float* from = at;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        block.v[i][e] = __ldcs(e < cols ? from : task.source);
        from = next_address(from, p.col_stride);
      }
      at = next_address(at, step);
    }
  }
}

// Waits for the loads. Zeros for elements that do not exist; then the largest magnitude among this warp's elements and the least one
// that is not zero, less one, as bits: magnitudes order as integers do, with NaN and Inf above all others.
__device__ inline void inspect(const Task& task, const Packed& p, BlockInFlight& block, uint32_t& largest, uint32_t& least) {
  float (&v)[kPieces][4] = block.v;
  if (task.quads && p.col_stride == -1) {   // quads come in the order of memory
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float first = v[i][0], second = v[i][1];
      v[i][0] = v[i][3], v[i][1] = v[i][2], v[i][2] = second, v[i][3] = first;
    }
  }
  if (task.rows < kBlock || task.cols < kBlock || task.diagonal) {
    const Pieces piece(task.along_rows, fresh_thread_index() % kPackers);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int row = piece.row + i * piece.row_step;
      const int cols = row >= task.rows ? 0 : task.diagonal ? min(task.cols, row + 1) : task.cols;   // that the row has
      const int here = cols - piece.col - i * piece.col_step;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e >= here) v[i][e] = 0.0f;
    }
  }
  largest = 0, least = 0xFFFFFFFFu;
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t magnitude = __float_as_uint(v[i][e]) & 0x7FFFFFFFu;
      largest = max(largest, magnitude), least = min(least, magnitude - 1);
    }
  largest = warp_max(largest);
  least = warp_min(least);
}

// The power of two that brings a magnitude, given as bits, to [2^14, 2^15), as an exponent; at most 126, so that its inverse is a
// normal number.
__device__ inline int scale_exponent(uint32_t largest) { return largest == 0 ? 0 : min(126, 141 - static_cast<int>(largest >> 23)); }
__device__ inline float power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }

// Splits this thread's elements into the shared image of a packed block.
__device__ inline void split_block(const Task& task, int t, float scale, const BlockInFlight& block, uint8_t* image) {
  const Pieces piece(task.along_rows, t);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    uint2 hi, lo;
    split_two(block.v[i][0], block.v[i][1], scale, hi.x, lo.x);
    split_two(block.v[i][2], block.v[i][3], scale, hi.y, lo.y);
    uint8_t* at = image + swizzled(piece.row + i * piece.row_step, piece.col + i * piece.col_step);
    *reinterpret_cast<uint2*>(at) = hi;
    *reinterpret_cast<uint2*>(at + kHalfBytes) = lo;
  }
}

// The rare part: elements that lost bits go into the record, in the order of threads and elements. Returns their number in the whole
// block, or -1 if the record cannot hold them.
__device__ inline int list_lost(const Task& task, int barrier, float scale, float unscale, const BlockInFlight& block, Record& record,
                                PackScratch& scratch) {
  const int t = fresh_thread_index() % kPackers;
  uint32_t mine = 0;
#pragma unroll
  for (int e = 0; e < 4 * kPieces; ++e) {
    const float x = block.v[e / 4][e % 4];
    if (fabsf(rest_of(x, scale, unscale)) > fabsf(x) * kTolerance) mine |= 1u << e;
  }
  if (group_count(barrier, kPackers, mine != 0) == 0) return 0;
  scratch.lost[t] = __popc(mine);
  group_sync(barrier, kPackers);
  int total = 0, at = 0;
#pragma unroll 1
  for (int u = 0; u < kPackers; ++u) {
    if (u == t) at = total;
    total += scratch.lost[u];
  }
  group_sync(barrier, kPackers);   // before the counts are written again
  if (total > kMaxLost) return -1;
  const Pieces piece(task.along_rows, t);
  Lost* to = record.lost + at;
  asm volatile("" : "+f"(scale));   // the rests are computed again: kept since the count, they would take 32 registers
#pragma unroll
  for (int e = 0; e < 4 * kPieces; ++e)
    if (mine >> e & 1) {
      *to = {static_cast<uint16_t>(piece.row + e / 4 * piece.row_step), static_cast<uint16_t>(piece.col + e / 4 * piece.col_step + e % 4),
             rest_of(block.v[e / 4][e % 4], scale, unscale)};
      to = next_address(to, 1);
    }
  return total;
}
"""

# ---- The Hopper kernel: float32 accuracy from float16 tensor cores, in one launch. ------------------------------------
#
# Enters: a HopperProduct, float32, triangular or dense. Leaves: all of C; or `control->refused`, and then C is for the portable kernel.
#
# Thread blocks stay until everything is done, two a cluster, one a multiprocessor. Their packers split the operands into packed blocks in
# global memory, in the order in which the tiles want them; their producers bring packed blocks into shared memory as soon as they are
# there; their consumers multiply. Packing beside the products costs about as much as packing first, because both need the L2, but no
# second kernel has to start. Every number below that depends on another is derived from it; docs/kernel.md has the measurements.
_CUDA_HOPPER = r"""
constexpr int kTileEdge = 128;            // a thread block computes 128 x 128 of C at a time; two of them side by side are a cluster
constexpr int kStages = 3;
constexpr int kGroupsOfConsumers = 2;     // warpgroups that multiply, 64 rows of the tile each
constexpr int kHopperThreads = 5 * 128;   // warpgroups: two of consumers, two of packers, and one of single warps, each with a role
constexpr int kEntryRegisters = 96, kConsumerRegisters = 152, kPackerRegisters = 64, kSingleRegisters = 48;
static_assert(kEntryRegisters == 65536 / kHopperThreads / 8 * 8 &&
                  2 * kConsumerRegisters + 2 * kPackerRegisters + kSingleRegisters <= 5 * kEntryRegisters,
              "a warpgroup can only gain registers that another has given up");
constexpr int kItems = 4;                 // places for items on their way to the producers
constexpr int kPartLines = 32;            // blocks of an operand that are packed, and waited for, together in a slab
constexpr int kTasks = 8;                 // those that the dealer, the packers and the sender can be at, and some more
[[maybe_unused]] constexpr int kDecisionEvery = 8;   // stages from one look at `refused` to the next; more than kStages
[[maybe_unused]] constexpr int kAskAhead = 4;        // stages before the end of an item when the next is asked for

// Numbers of barriers, two each but one of the packers.
enum GroupBarrier : int { kConsumerBarrier = 1, kPackerBarrier = 3, kImagesFull = 4, kImagesEmpty = 6, kTurnBarrier = 8 };

struct Control {
  int refused;    // set when a block cannot be held in pairs of fp16: the product is then left to the portable kernel
  int lost;       // elements whose missing bits went into records
  int next_job;   // of packing
  int next_item;
  int packed;     // blocks packed
};
static_assert(offsetof(Control, lost) + sizeof(int) == kControlBytes, "the binding reads these two words");

struct HopperProduct {
  Packed x, y;          // as stored: x holds X, or its transpose for TN; y holds Y, or its transpose for NT
  float* c;
  int64_t c_row, c_col;
  int m, n, k;
  int lines_x, lines_y, slabs;   // the same in blocks: row blocks of X, column blocks of Y, slabs of k
  int parts, jobs;               // of packing, below
  Contraction contraction;
  int triangular;
  int longest_item;     // stages; a longer pair of tiles is summed in pieces, by several clusters
  int clusters;
  Control* control;
  int* ready;           // for each slab of k (64 wide), operand and part of its lines, how many blocks are packed
  int* pieces_written;  // for each half tile (64 rows) that is summed in pieces
};

// One step of the pipeline: 64 of k for a tile, as packed blocks, and what the consumers are to do with them.
struct __align__(1024) Stage {
  uint8_t x[2][kBlockBytes];      // the two row blocks: hi, lo
  uint8_t y_hi[2][kHalfBytes];    // hi of the two column blocks, one after the other so that wgmma sees 128 columns; then lo
  uint8_t y_lo[2][kHalfBytes];
};

enum StageFlag : int { kStop = 1, kLast = 2, kHasX = 4, kHasY = 16 };  // kHasX << row block, kHasY << column block

struct StageInfo {
  int flags, tile_i, tile_j, piece;
};

// Two tiles side by side, for the two thread blocks of a cluster; or a piece of their range of k.
struct Item {
  int i, pair;      // tile row; column of pairs, -1 when there are no more
  int begin, end;   // the slabs of k
  int piece;        // -1: all of the range
};

constexpr int kNoMoreItems = 0x40000000;

enum Verdict : int { kGoOn, kStopHere, kAllPacked };

struct SharedMemory {
  Stage stage[kStages];
  uint8_t image[2][kBlockBytes];
  Record image_record[2];
  Record x_record[kStages][2], y_record[kStages][2];
  StageInfo info[kStages];
  uint64_t full[kStages], empty[kStages], decided;
  Task task[kTasks];
  int tasks_made, tasks_begun;   // counted by the dealer and by the packers
  int verdict;
  int items_wanted;   // by the producer of the first thread block
  Item item[kItems];
  uint64_t item_made[kItems];
  PackScratch scratch;
};
static_assert(sizeof(SharedMemory) <= 232448, "a thread block of Hopper has 227 KB");

// ---- Geometry of tiles of 128 and blocks of 64. Lines are row blocks of X and column blocks of Y.

template <Contraction kC>
__device__ inline bool has_x(const HopperProduct& p, int line, int k) {
  return line < p.lines_x && (!p.triangular || (kC == kTN ? k >= line : k <= line));
}

template <Contraction kC>
__device__ inline bool has_y(const HopperProduct& p, int line, int k) {
  return line < p.lines_y && (!p.triangular || (kC == kNT ? k <= line : k >= line));
}

template <Contraction kC>
__device__ inline int x_block(const HopperProduct& p, int line, int k) {
  return kC == kTN ? block_index(p.x, k, line) : block_index(p.x, line, k);
}

template <Contraction kC>
__device__ inline int y_block(const HopperProduct& p, int line, int k) {
  return kC == kNT ? block_index(p.y, line, k) : block_index(p.y, k, line);
}

// ---- The order of packing. The longest tiles come first and share few lines of each operand: the last ones of X and the first ones
// of Y (NN), the last of both (NT), the first of both (TN). So lines form parts, numbered from that end, and part 0 is packed
// first, then part 1, ... Within a part come the slabs of k as the long tiles want them: all of these tiles contain the middle of the
// range (NN), its beginning (NT) or its end (TN).

__host__ __device__ inline int parts_in(int lines) { return (lines + kPartLines - 1) / kPartLines; }

// The part that a line is in, or, the other way round, the first line of a part as counted from line 0. Four lines that start at a
// multiple of four, which is what a pair of tiles reads, are always in one part.
__device__ inline bool from_end(const HopperProduct& p, bool of_x, Contraction c) { return p.triangular && (of_x ? c != kTN : c == kNT); }

template <Contraction kC>
__device__ inline int part_of(const HopperProduct& p, bool of_x, int line) {
  const int padded = ((of_x ? p.lines_x : p.lines_y) + 3) / 4 * 4;
  return (from_end(p, of_x, kC) ? padded - 1 - line : line) / kPartLines;
}

// The lines of a part that have a block in slab k: first .. end - 1.
template <Contraction kC>
__device__ inline void lines_of(const HopperProduct& p, bool of_x, int part, int k, int& first, int& end) {
  const int lines = (of_x ? p.lines_x : p.lines_y), padded = (lines + 3) / 4 * 4;
  first = from_end(p, of_x, kC) ? padded - (part + 1) * kPartLines : part * kPartLines;
  end = min(lines, first + kPartLines);
  first = max(first, 0);
  if (p.triangular) {
    const bool up_to_line = of_x ? kC != kTN : kC == kNT;   // which k a line has
    if (up_to_line)
      first = max(first, k);
    else
      end = min(end, k + 1);
  }
  end = max(first, end);
}

// The blocks of a part in a slab are counted: each adds one when it is packed, and the first of them adds what makes the sum kReady
// when all are there. A tile that sums a slab always meets at least one block of each operand there.
[[maybe_unused]] constexpr int kReady = 1 << 24;

__device__ inline int* ready_count(const HopperProduct& p, bool of_x, int part, int k) {
  return p.ready + (static_cast<int64_t>(k) * 2 + of_x) * p.parts + part;
}

struct Job {
  bool of_x;
  int line, k, part;
  int add;   // to the count
};

// Walks through the jobs; the numbers that it is asked for must rise.
struct Jobs {
  int part = 0, step = 0, base = 0;   // `base`: the number of the first job of this step

  template <Contraction kC>
  __device__ Job at(const HopperProduct& p, int number) {
    for (;;) {
      int k = step;
      if (p.triangular && kC == kNN) k = step % 2 == 0 ? p.slabs / 2 + step / 2 : p.slabs / 2 - (step + 1) / 2;
      if (p.triangular && kC == kTN) k = p.slabs - 1 - step;
      int next = base;
      for (int of_x = 1; of_x >= 0; --of_x) {
        int first, end;
        lines_of<kC>(p, of_x, part, k, first, end);
        const int place = number - next;
        if (place < end - first) return {of_x == 1, first + place, k, part, place == 0 ? kReady - (end - first) + 1 : 1};
        next += end - first;
      }
      base = next;
      if (++step == p.slabs) step = 0, ++part;
    }
  }
};

// ---- The order of tiles.

struct Items {
  int group = 0, base = 0;   // `base`: the number of the group's first item

  // Pairs of tiles in groups of one length, the longest first. Finds an item by its number; the numbers asked for must rise. False if
  // there are no more.
  __device__ bool find(const HopperProduct& p, int number, Item& item) {
    const int rows = ceil_div(p.m, kTileEdge), pairs = ceil_div(p.n, 2 * kTileEdge), slabs = p.slabs;
    const int groups = !p.triangular ? ceil_div(rows, kBandRows) : p.contraction == kNT ? pairs : rows;
    int place, pieces;
    for (;; ++group) {   // the group that the item is in
      if (group >= groups) return false;
      int count = group / 2 + 1, length = p.contraction == kNN ? 2 * (rows - group) : slabs - 2 * group;
      if (!p.triangular)
        count = min(kBandRows, rows - group * kBandRows) * pairs, length = slabs;
      else if (p.contraction == kNT)
        count = rows - 2 * (pairs - 1 - group), length = 4 * (pairs - group);
      pieces = ceil_div(min(length, slabs), p.longest_item);
      place = number - base;
      if (place < count * pieces) break;
      base += count * pieces;
    }
    item.piece = pieces > 1 ? place % pieces : -1;
    place /= pieces;
    item.begin = 0, item.end = slabs;
    if (!p.triangular) {
      const int band = min(kBandRows, rows - group * kBandRows);
      item.i = group * kBandRows + place % band;
      item.pair = place / band;
    } else if (p.contraction == kNT) {
      item.pair = pairs - 1 - group;
      item.i = 2 * item.pair + place;
      item.end = min(slabs, 2 * min(2 * item.pair + 1, item.i) + 2);
    } else if (p.contraction == kNN) {
      item.pair = place;
      item.i = 2 * place + rows - 1 - group;
      item.begin = 4 * item.pair;
      item.end = min(slabs, 2 * item.i + 2);
    } else {
      item.pair = place;
      item.i = group;
      item.begin = 2 * item.i;
    }
    if (pieces > 1) {
      const int begin = item.begin, length = item.end - begin;
      item.begin = begin + length * item.piece / pieces, item.end = begin + length * (item.piece + 1) / pieces;
    }
    return true;
  }

  // The slab of k that comes at time t of an item: from the slab that is packed first, outwards.
  template <Contraction kC>
  __device__ static int slab_at(const HopperProduct& p, const Item& item, int t) {
    if (!p.triangular || kC == kNT) return item.begin + t;
    if (kC == kTN) return item.end - 1 - t;
    const int start = p.slabs / 2, up = item.end - start, down = start - item.begin;
    if (up <= 0) return item.end - 1 - t;
    if (down <= 0) return item.begin + t;
    const int both = min(up, down);
    if (t < 2 * both) return t % 2 == 0 ? start + t / 2 : start - 1 - t / 2;
    return up > down ? start + t - both : start - 1 - (t - both);
  }
};

// One thread of the cluster takes the items from the queue that all clusters share, each when the one before is nearly done, and hands
// them to both producers. Which cluster computes an item makes no difference to the result.
__device__ void make_items(const HopperProduct& p, SharedMemory& shared) {
  Items items;
  Item item;
  bool more = true;
  for (int made = 0; more; ++made) {
    int wanted;
    while ((wanted = *static_cast<volatile int*>(&shared.items_wanted)) <= made) __nanosleep(40);
    if (wanted == kNoMoreItems) return;
    more = items.find(p, atomicAdd(&p.control->next_item, 1), item);
    if (!more) item.pair = -1;
    Item& to = shared.item[made % kItems];
    for (uint32_t rank = 0; rank < 2; ++rank) {
      store_in(&to.i, rank, item.i), store_in(&to.pair, rank, item.pair), store_in(&to.begin, rank, item.begin);
      store_in(&to.end, rank, item.end), store_in(&to.piece, rank, item.piece);
      barrier_publish_in(&shared.item_made[made % kItems], rank);
    }
  }
}

// ---- Producer: one warp. It follows the items, waits for packed blocks and for a free stage, and starts the copies.

template <Contraction kContraction>
__device__ void produce(const HopperProduct& p, SharedMemory& shared) {
  const int rank = static_cast<int>(cluster_rank()), lane = threadIdx.x % 32, jobs = p.jobs;
  int position = 0, stage = 0, verdict = kGoOn;
  uint32_t free_parity = 1, decided_parity = 0;   // the first turn of the stages finds them free

  for (int taken = 0; verdict != kStopHere; ++taken) {
    barrier_wait_published(&shared.item_made[taken % kItems], taken / kItems % 2);
    const Item item = shared.item[taken % kItems];
    if (item.pair < 0) break;
    const int length = item.end - item.begin, tile_j = 2 * item.pair + rank;
    const bool tile_exists = !p.triangular || tile_j <= item.i;
    const int x_part = part_of<kContraction>(p, true, 2 * item.i), y_part = part_of<kContraction>(p, false, 4 * item.pair);
    int ready = 0;   // how many stages from here on have their blocks packed

    for (int t = 0; t < length; ++t, ++position, --ready) {
      if (lane == 0 && t == max(0, length - kAskAhead)) *static_cast<volatile int*>(&shared.items_wanted) = taken + 2;
      // Both thread blocks must go on, or stop, from the same stage on: the first one looks and tells the other.
      if (verdict == kGoOn && position % kDecisionEvery == 0) {
        if (rank == 0) {
          const bool all = load_acquire(&p.control->packed) == jobs;
          verdict = load_relaxed(&p.control->refused) ? kStopHere : all ? kAllPacked : kGoOn;
          verdict = __shfl_sync(0xFFFFFFFFu, verdict, 0);
          if (lane == 0) {
            store_in(&shared.verdict, 1, verdict);
            barrier_publish_in(&shared.decided, 1);
          }
        } else {
          barrier_wait_published(&shared.decided, decided_parity);
          decided_parity ^= 1;
          verdict = *static_cast<volatile int*>(&shared.verdict);
        }
        proxy_fence_global();
        if (verdict == kStopHere) break;
      }
      // The lanes look at the blocks of the next stages together. After a refusal nothing more is packed; what is copied then is
      // multiplied for nothing, until the next decision.
      while (verdict == kGoOn && ready <= 0) {
        bool packed = false;
        const bool refused = load_relaxed(&p.control->refused);
        if (t + lane < length) {
          const int k = Items::slab_at<kContraction>(p, item, t + lane);
          const int x_count = load_relaxed(ready_count(p, true, x_part, k)), y_count = load_relaxed(ready_count(p, false, y_part, k));
          packed = x_count == kReady && y_count == kReady;
        }
        ready = __ffs(~__ballot_sync(0xFFFFFFFFu, packed)) - 1;
        if (ready < 0) ready = 32;
        if (ready == 0 && refused) ready = 1;
        ready = __shfl_sync(0xFFFFFFFFu, ready, 0);
        if (ready > 0) {   // acquires what the counts released
          __threadfence();
          proxy_fence_global();
        }
      }
      if (lane == 0) {
        const int k = Items::slab_at<kContraction>(p, item, t);
        int flags = t == length - 1 ? kLast : 0;
        uint32_t bytes = 0;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          if (has_x<kContraction>(p, 2 * item.i + u, k)) flags |= kHasX << u, bytes += kBlockBytes + sizeof(Record);
          if (tile_exists && has_y<kContraction>(p, 2 * tile_j + u, k)) flags |= kHasY << u, bytes += kBlockBytes + sizeof(Record);
        }
        uint64_t* full = &shared.full[stage];
        Stage& to = shared.stage[stage];
        barrier_wait(&shared.empty[stage], free_parity);
        shared.info[stage] = {flags, item.i, tile_j, item.piece};
        barrier_expect(full, bytes);
        if (flags >> rank & kHasX) {   // each thread block fetches one row block for both
          const int from = x_block<kContraction>(p, 2 * item.i + rank, k);
          copy_bulk_to_both(to.x[rank], p.x.blocks + static_cast<int64_t>(from) * kBlockBytes, kBlockBytes, full);
          copy_bulk_to_both(&shared.x_record[stage][rank], p.x.records + from, sizeof(Record), full);
        }
#pragma unroll
        for (int u = 0; u < 2; ++u)
          if (flags & kHasY << u) {
            const int from = y_block<kContraction>(p, 2 * tile_j + u, k);
            const uint8_t* block = p.y.blocks + static_cast<int64_t>(from) * kBlockBytes;
            copy_bulk(to.y_hi[u], block, kHalfBytes, full);
            copy_bulk(to.y_lo[u], block + kHalfBytes, kHalfBytes, full);
            copy_bulk(&shared.y_record[stage][u], p.y.records + from, sizeof(Record), full);
          }
      }
      __syncwarp();
      if (++stage == kStages) stage = 0, free_parity ^= 1;
    }
  }
  if (lane == 0) {
    *static_cast<volatile int*>(&shared.items_wanted) = kNoMoreItems;
    barrier_wait(&shared.empty[stage], free_parity);
    shared.info[stage] = {kStop, 0, 0, 0};
    barrier_expect(&shared.full[stage], 0);
  }
  __syncwarp();
}

// ---- Consumers: two warpgroups, 64 rows of the tile each.

__device__ inline float value_at(const uint8_t* hi, const uint8_t* lo, int at) {
  return __half2float(*reinterpret_cast<const __half*>(hi + at)) + __half2float(*reinterpret_cast<const __half*>(lo + at));
}

// This warp is done with a stage: tell both thread blocks.
__device__ inline void release_stage(SharedMemory& shared, int stage) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if (lane < 2) barrier_arrive_in(&shared.empty[stage], lane);
}

// The two warpgroups of consumers take turns at the tensor cores: each issues all its products of a stage, and hands the turn on when
// two thirds of them are done. The other's then follow without a gap, and while they run this one promotes its sums.
__device__ inline void take_turn(int group) { group_sync(kTurnBarrier + group, 2 * 128); }
__device__ inline void hand_on_turn(int group) { group_arrive(kTurnBarrier + (group ^ 1), 2 * 128); }

// sums = X Y over one stage: hi lo + lo hi first, then hi hi, so that the small terms are added while the sums are small.
template <Contraction kContraction>
__device__ inline void multiply_stage(const Stage& stage, int group, float (&sums)[64]) {
  constexpr int kMajorX = kContraction == kTN, kMajorY = kContraction != kNT;
  constexpr uint32_t kStepX = kMajorX ? 16 * 128 : 32, kStepY = kMajorY ? 16 * 128 : 32;   // bytes from 16 of k to the next
  const uint64_t x = operand(shared_address(stage.x[group]), kHalfBytes, 1024);
  const uint64_t y = operand(shared_address(stage.y_hi[0]), kHalfBytes, 1024);
  take_turn(group);
  wgmma_fence();
#pragma unroll
  for (int product = 0; product < 3; ++product) {
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k)
      wgmma<kMajorX, kMajorY>(sums, operand_after(x, (product == 0 ? kHalfBytes : 0) + k * kStepX),
                              operand_after(y, (product == 1 ? 2 * kHalfBytes : 0) + k * kStepY), product + k > 0);
    if (product >= 1) wgmma_commit();
  }
  wgmma_wait<1>();
  hand_on_turn(group);
  wgmma_wait<0>();
}

// Adds this thread's sums of one column block to the total, with the two blocks' powers of two undone.
template <int kColumnBlock>
__device__ inline void promote(const float (&sums)[64], float x_unscale, float y_unscale, float (&total)[64]) {
  const float unscale = x_unscale * y_unscale;
  if (unscale >= 0x1p-126f && unscale <= 0x1p127f) {
#pragma unroll
    for (int u = 32 * kColumnBlock; u < 32 * kColumnBlock + 32; ++u) total[u] = fmaf(sums[u], unscale, total[u]);
  } else {  // the product of the two powers is no normal number, but what it scales may be one
#pragma unroll
    for (int u = 32 * kColumnBlock; u < 32 * kColumnBlock + 32; ++u) total[u] += sums[u] * x_unscale * y_unscale;
  }
}

// Adds what hi + lo misses of the elements that the records list, times the other operand in full, for one column block. Each
// thread goes through all its columns and adds zeros where nothing is meant: `total` must stay in registers, so nothing may index it.
template <Contraction kContraction, int kColumnBlock>
__device__ inline void add_lost(const Stage& stage, const Record& x_record, const Record& y_record, int group, float (&total)[64]) {
  constexpr bool kSwapX = kContraction == kTN, kSwapY = kContraction != kNT;   // whether k is the row of the stored block
  const int thread = fresh_thread_index(), lane = thread % 32, row0 = thread / 32 % 4 * 16 + lane / 4, col0 = lane % 4 * 2;
  const uint8_t *x_hi = stage.x[group], *x_lo = x_hi + kHalfBytes, *y_hi = stage.y_hi[kColumnBlock], *y_lo = stage.y_lo[kColumnBlock];
  const int x_count = min(static_cast<uint32_t>(x_record.lost_count), static_cast<uint32_t>(kMaxLost));
  const int y_count = min(static_cast<uint32_t>(y_record.lost_count), static_cast<uint32_t>(kMaxLost));
#pragma unroll 1
  for (int e = 0; e < x_count; ++e) {
    const Lost lost = x_record.lost[e];
    const int m = (kSwapX ? lost.col : lost.row) & 63, k = (kSwapX ? lost.row : lost.col) & 63;
    if (m / 16 != thread / 32 % 4) continue;   // a row of another warp
    const float rest0 = m == row0 ? lost.rest : 0.0f, rest1 = m == row0 + 8 ? lost.rest : 0.0f;
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      const int n = g / 2 * 8 + col0 + g % 2;
      float y = value_at(y_hi, y_lo, kSwapY ? swizzled(k, n) : swizzled(n, k)) * y_record.unscale;
#pragma unroll 1
      for (int f = 0; f < y_count; ++f) {
        const Lost other = y_record.lost[f];
        if ((kSwapY ? other.row : other.col) == k && (kSwapY ? other.col : other.row) == n) y += other.rest;
      }
      float& first = total[kColumnBlock * 32 + g / 2 * 4 + g % 2];
      float& second = total[kColumnBlock * 32 + g / 2 * 4 + g % 2 + 2];
      first = fmaf(rest0, y, first), second = fmaf(rest1, y, second);
    }
  }
#pragma unroll 1
  for (int f = 0; f < y_count; ++f) {
    const Lost lost = y_record.lost[f];
    const int k = (kSwapY ? lost.row : lost.col) & 63, n = (kSwapY ? lost.col : lost.row) & 63;
    const float x0 = value_at(x_hi, x_lo, kSwapX ? swizzled(k, row0) : swizzled(row0, k)) * x_record.unscale;
    const float x1 = value_at(x_hi, x_lo, kSwapX ? swizzled(k, row0 + 8) : swizzled(row0 + 8, k)) * x_record.unscale;
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      const float rest = n == g / 2 * 8 + col0 + g % 2 ? lost.rest : 0.0f;
      float& first = total[kColumnBlock * 32 + g / 2 * 4 + g % 2];
      float& second = total[kColumnBlock * 32 + g / 2 * 4 + g % 2 + 2];
      first = fmaf(x0, rest, first), second = fmaf(x1, rest, second);
    }
  }
}

// Writes (or adds to what is there) the 64 rows that this warpgroup holds. Zeros above the diagonal.
__device__ inline void write_rows(const HopperProduct& p, int tile_i, int tile_j, int group, bool add, const float (&total)[64]) {
  const int thread = fresh_thread_index(), lane = thread % 32;
  const int row0 = tile_i * kTileEdge + group * 64 + thread / 32 % 4 * 16 + lane / 4, col0 = tile_j * kTileEdge + lane % 4 * 2;
  const bool whole = (tile_i + 1) * kTileEdge <= p.m && (tile_j + 1) * kTileEdge <= p.n && !(p.triangular && tile_i == tile_j);
  const bool forward = p.c_col == 1, backward = p.c_col == -1;
  float* at = p.c + row0 * p.c_row + col0 * p.c_col;
  if (whole && (forward || backward) && p.c_row % 2 == 0 && reinterpret_cast<uintptr_t>(forward ? p.c : p.c - 1) % 8 == 0) {
    if (backward) --at;   // two neighbours lie in memory the other way round
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float2 other[16] = {};   // read all before anything is written: the reads then wait for memory together
      float* pair = next_address(at, 8 * h * p.c_row);
      if (add)
#pragma unroll
        for (int g = 0; g < 16; ++g) other[g] = __ldcg(reinterpret_cast<const float2*>(pair + 8 * g * p.c_col));
#pragma unroll
      for (int g = 0; g < 16; ++g) {
        const float a = total[g * 4 + 2 * h], b = total[g * 4 + 2 * h + 1];
        __stcs(reinterpret_cast<float2*>(pair), make_float2((forward ? a : b) + other[g].x, (forward ? b : a) + other[g].y));
        pair = next_address(pair, 8 * p.c_col);
      }
    }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row0 + 8 * h, cols = row >= p.m ? 0 : p.triangular ? min(p.n, row + 1) : p.n;   // cols: of the row that have sums
      float other[32] = {};
      float* one = next_address(at, 8 * h * p.c_row);
      if (add)
#pragma unroll
        for (int g = 0; g < 32; ++g)
          if (col0 + g / 2 * 8 + g % 2 < cols) other[g] = __ldcg(one + (g / 2 * 8 + g % 2) * p.c_col);
#pragma unroll
      for (int g = 0; g < 32; ++g) {
        const int col = col0 + g / 2 * 8 + g % 2;
        if (row < p.m && col < p.n) __stcs(one, col < cols ? total[g / 2 * 4 + 2 * h + g % 2] + other[g] : 0.0f);
        one = next_address(one, g % 2 == 0 ? p.c_col : 7 * p.c_col);
      }
    }
  }
}

// A tile in pieces: the first piece writes its sums, and each of the others adds its own when the one before it has. The order is fixed,
// so the result is. No piece waits for one that has not begun: they are handed out in their order, one after the other.
__device__ inline int* pieces_written(const HopperProduct& p, int tile_i, int tile_j, int group) {
  return p.pieces_written + 2 * (static_cast<int64_t>(tile_i) * ceil_div(p.n, kTileEdge) + tile_j) + group;
}

__device__ inline void write_sums(const HopperProduct& p, const StageInfo& info, int group, const float (&total)[64]) {
  const int barrier = kConsumerBarrier + group;
  if (info.piece > 0) {
    if (fresh_thread_index() % 128 == 0) {
      const int* written = pieces_written(p, info.tile_i, info.tile_j, group);
      while (load_acquire(written) != info.piece && !load_relaxed(&p.control->refused)) __nanosleep(32);   // a refusal stops the others
    }
    group_sync(barrier, 128);
  }
  write_rows(p, info.tile_i, info.tile_j, group, info.piece > 0, total);
  if (info.piece >= 0) {
    group_sync(barrier, 128);
    if (fresh_thread_index() % 128 == 0) add_release(pieces_written(p, info.tile_i, info.tile_j, group), 1);
  }
}

// One stage for one warpgroup. A missing column block was multiplied with what the stage held before; its sums are not looked at.
template <Contraction kContraction>
__device__ inline void consume_stage(SharedMemory& shared, int stage, int flags, int group, float (&total)[64]) {
  const bool has_first = flags & kHasY, has_second = flags & kHasY << 1;
  const Record &x_record = shared.x_record[stage][group], *y_record = shared.y_record[stage];
  const bool lost = x_record.lost_count | (has_first ? y_record[0].lost_count : 0) | (has_second ? y_record[1].lost_count : 0);
  const float x_unscale = x_record.unscale, first_unscale = y_record[0].unscale, second_unscale = y_record[1].unscale;
  float sums[64];
  multiply_stage<kContraction>(shared.stage[stage], group, sums);
  if (!lost) release_stage(shared, stage);
  if (has_first) promote<0>(sums, x_unscale, first_unscale, total);
  if (has_second) promote<1>(sums, x_unscale, second_unscale, total);
  if (lost) {   // now that the other warpgroup has the tensor cores
    if (has_first) add_lost<kContraction, 0>(shared.stage[stage], x_record, y_record[0], group, total);
    if (has_second) add_lost<kContraction, 1>(shared.stage[stage], x_record, y_record[1], group, total);
    release_stage(shared, stage);
  }
}

template <Contraction kContraction>
__device__ void consume(const HopperProduct& p, SharedMemory& shared) {
  const int group = threadIdx.x / 128;
  int stage = 0;
  uint32_t parity = 0;
  if (group == 1) hand_on_turn(group);   // the first turn is the first group's
  for (;;) {   // a tile at a time
    float total[64];
#pragma unroll
    for (int u = 0; u < 64; ++u) total[u] = 0.0f;
    StageInfo info;
    do {
      barrier_wait(&shared.full[stage], parity);
      info = shared.info[stage];
      if (info.flags & kStop) return;
      if (info.flags & kHasX << group && info.flags & kHasY * 3)
        consume_stage<kContraction>(shared, stage, info.flags, group, total);
      else {
        take_turn(group);
        hand_on_turn(group);
        release_stage(shared, stage);
      }
      if (++stage == kStages) stage = 0, parity ^= 1;
    } while (!(info.flags & kLast));
    if (p.triangular ? info.tile_j > info.tile_i : info.tile_j * kTileEdge >= p.n) continue;   // the pair's second tile may not exist
    write_sums(p, info, group, total);
  }
}

// ---- Packers: two warpgroups, one block at a time between them. They take blocks from a queue that all thread blocks share, so packing
// goes on as long as any of them runs, and then write the zeros above the diagonal.

__device__ inline void write_zeros(const HopperProduct& p, int t) {
  const int64_t tiles = triangle(ceil_div(p.m, kTileEdge) - 1);
  const int warp = t / 32, lane = t % 32;
  for (int64_t q = blockIdx.x; q < tiles; q += gridDim.x) {
    const int group = triangle_root(q), i = static_cast<int>(q - triangle(group)), j = group + 1;   // i < j
    for (int row = i * kTileEdge + warp; row < (i + 1) * kTileEdge; row += kPackers / 32) {
      const int col = j * kTileEdge + lane * 4;   // rows above the diagonal always lie inside
      float* at = p.c + row * p.c_row + col * p.c_col;
      float* low = p.c_col == -1 ? at - 3 : at;
      if ((p.c_col == 1 || p.c_col == -1) && col + 4 <= p.n && reinterpret_cast<uintptr_t>(low) % 16 == 0) {
        __stcs(reinterpret_cast<float4*>(low), make_float4(0.0f, 0.0f, 0.0f, 0.0f));
      } else {
        for (int e = 0; e < 4; ++e)
          if (col + e < p.n) at[e * p.c_col] = 0.0f;
      }
    }
  }
}

// One thread lays out the tasks. It takes numbers from the queue that all thread blocks share, one task ahead of the one that is being
// loaded and no more: a number taken early is a block packed late, and a slab is ready with its last block.
template <Contraction kContraction>
__device__ void deal(const HopperProduct& p, SharedMemory& shared) {
  const int count = p.jobs;
  Jobs jobs;
  for (int made = 0;; ++made) {
    while (made - *static_cast<volatile int*>(&shared.tasks_begun) > 1) __nanosleep(20);
    const int refused = made > 0 && load_relaxed(&p.control->refused), number = atomicAdd(&p.control->next_job, 1);
    const bool more = number < count && !refused;
    Task& task = shared.task[made % kTasks];
    task.ready = nullptr;
    if (more) {
      const Job job = jobs.at<kContraction>(p, number);
      const Packed& operand = job.of_x ? p.x : p.y;
      const bool k_is_row = job.of_x ? kContraction == kTN : kContraction != kNT;
      const int r = k_is_row ? job.k : job.line, c = k_is_row ? job.line : job.k;
      const int index = block_index(operand, r, c);
      task.source =
          operand.source + static_cast<int64_t>(r * kBlock) * operand.row_stride + static_cast<int64_t>(c * kBlock) * operand.col_stride;
      task.block = operand.blocks + static_cast<int64_t>(index) * kBlockBytes;
      task.record = operand.records + index;
      task.rows = operand.rows - r * kBlock, task.cols = operand.cols - c * kBlock;
      task.ready = ready_count(p, job.of_x, job.part, job.k), task.add = job.add;
      task.of_x = job.of_x, task.diagonal = p.triangular && r == c;
      task.along_rows = llabs(operand.col_stride) <= llabs(operand.row_stride);
      task.quads = (operand.col_stride == 1 || operand.col_stride == -1) && operand.row_stride % 4 == 0 && task.cols >= kBlock &&
                   reinterpret_cast<uintptr_t>(task.source + (operand.col_stride == 1 ? 0 : -3)) % 16 == 0;
    }
    __threadfence_block();
    *static_cast<volatile int*>(&shared.tasks_made) = made + 1;
    if (!more) break;
  }
}

// While the packers split one block the next is on its way.
__device__ void pack(const HopperProduct& p, SharedMemory& shared) {
  static_assert(kGroupsOfConsumers * 128 % kPackers == 0, "the packers' first thread must have a number divisible by theirs");
  BlockInFlight block, next;
  auto operand_of = [&](const Task& task) -> const Packed& { return task.of_x ? p.x : p.y; };
  auto start = [&](int number) {
    while (*static_cast<volatile int*>(&shared.tasks_made) <= number) {
    }
    __threadfence_block();
    const Task& task = shared.task[number % kTasks];
    next = {};   // so that no register has to keep what was there before
    if (task.ready) load_block(task, operand_of(task), fresh_thread_index() % kPackers, next);
  };
  start(0);
  int number = 0;
  for (;; ++number) {
    const Task& task = shared.task[number % kTasks];
    const int image = number % 2, t = fresh_thread_index() % kPackers;
    if (!task.ready) break;
    if (t == 0) *static_cast<volatile int*>(&shared.tasks_begun) = number + 1;
    block = next;
    uint32_t largest, least;
    inspect(task, operand_of(task), block, largest, least);
    if (t % 32 == 0) shared.scratch.largest[image][t / 32] = largest, shared.scratch.least[image][t / 32] = least;
    start(number + 1);
    group_sync(kPackerBarrier, kPackers);
#pragma unroll
    for (int w = 0; w < kPackers / 32; ++w) {
      largest = max(largest, shared.scratch.largest[image][w]);
      least = min(least, shared.scratch.least[image][w]);
    }
    const int exponent = scale_exponent(largest);
    const float scale = power_of_two(exponent);
    group_sync(kImagesEmpty + image, kPackers + 32);
    Record& record = shared.image_record[image];
    split_block(task, t, scale, block, shared.image[image]);
    const bool wild = largest >= 0x7F800000u;   // a NaN or an Inf
    int lost = 0;
    if (!wild && largest != 0 && __uint_as_float(least + 1) * scale < kSmall)
      lost = list_lost(task, kPackerBarrier, scale, power_of_two(-exponent), block, record, shared.scratch);
    if (t == 0) {
      record.unscale = power_of_two(-exponent), record.lost_count = max(lost, 0);
      if (lost > 0) atomicAdd(&p.control->lost, lost);
      if (wild || lost < 0) atomicExch(&p.control->refused, 1);
    }
    proxy_fence_shared();
    group_arrive(kImagesFull + image, kPackers + 32);
  }
  group_sync(kImagesEmpty + number % 2, kPackers + 32);
  group_arrive(kImagesFull + number % 2, kPackers + 32);   // the sender, too, finds that there are no more tasks
  // After a refusal the portable kernel writes all of C.
  if (p.triangular && !load_relaxed(&p.control->refused)) write_zeros(p, threadIdx.x - kGroupsOfConsumers * 128);
}

// One warp sends the packed blocks to global memory, and then counts them.
__device__ void send(const HopperProduct& p, SharedMemory& shared) {
  const int lane = threadIdx.x % 32;
  group_arrive(kImagesEmpty, kPackers + 32);
  group_arrive(kImagesEmpty + 1, kPackers + 32);
  for (int number = 0;; ++number) {
    const int image = number % 2;
    group_sync(kImagesFull + image, kPackers + 32);
    const Task task = shared.task[number % kTasks];
    if (!task.ready) break;
    if (lane == 0) {
      copy_bulk_out(task.block, shared.image[image], kBlockBytes);
      copy_bulk_out(task.record, &shared.image_record[image], sizeof(Record));
      copies_out_commit();
      copies_out_wait_read();
    }
    __syncwarp();
    group_arrive(kImagesEmpty + image, kPackers + 32);
    if (lane == 0) {
      copies_out_wait();
      proxy_fence_global();
      add_release(task.ready, task.add);
      add_release(&p.control->packed, 1);
    }
  }
}

// Clusters of two thread blocks, one a multiprocessor, which stay until all tiles are done. All work, blocks to pack and tiles, is
// taken from queues: clusters that another kernel keeps from starting are not waited for.
template <Contraction kContraction>
__global__ void __launch_bounds__(kHopperThreads, 1) hopper_product(const __grid_constant__ HopperProduct p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    if (shared_address(raw) % 1024 != 0) __trap();   // the swizzle goes by the address
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], 2 * kGroupsOfConsumers * 4);   // each consuming warp of both thread blocks
    }
    barrier_init(&shared.decided, 1);
    for (int u = 0; u < kItems; ++u) barrier_init(&shared.item_made[u], 1);
    barrier_init_fence();
    shared.items_wanted = 1;
    shared.tasks_made = shared.tasks_begun = 0;
  }
  let_next_kernel_begin();
  cluster_sync();
  wait_for_previous_kernel();   // which cleared the control words
  constexpr int kPackerWarp = 4 * kGroupsOfConsumers, kSingleWarp = kPackerWarp + kPackers / 32;
  if (warp < kPackerWarp) {
    registers_up<kConsumerRegisters>();
    consume<kContraction>(p, shared);
  } else if (warp < kSingleWarp) {
    registers_down<kPackerRegisters>();
    pack(p, shared);
  } else {
    registers_down<kSingleRegisters>();
    if (warp == kSingleWarp) produce<kContraction>(p, shared);
    if (warp == kSingleWarp + 1 && lane == 0 && cluster_rank() == 0) make_items(p, shared);
    if (warp == kSingleWarp + 2) send(p, shared);
    if (warp == kSingleWarp + 3 && lane == 0) deal<kContraction>(p, shared);
  }
  __syncwarp();
  cluster_sync();   // neither thread block may end while the other still signals it
#endif
}

__global__ void clear_words(int* words, int count) {
  let_next_kernel_begin();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) words[i] = 0;
}
"""

# ---- Launching: which kernel, and the Hopper kernel with what it needs. ----------------------------------------------
#
# Three kernels make a Hopper product: one clears the counters in the workspace, the product itself, and the portable kernel, which does
# nothing unless the product was refused. The second and the third start before the one before them has ended, and wait for it inside.
_CUDA_HOPPER_LAUNCH = r"""
// Everything that a Hopper product needs besides its operands, as offsets into one allocation. The words come first and are cleared
// before each product.
struct Workspace {
  int words;
  int64_t x_records, y_records, x_blocks, y_blocks, bytes;

  explicit Workspace(const Product& p) {
    const int64_t side = blocks_in(p.k), lines_x = blocks_in(p.m), lines_y = blocks_in(p.n);
    const int64_t x = p.triangular ? triangle(side) : side * lines_x, y = p.triangular ? triangle(side) : side * lines_y;
    const int64_t half_tiles = 2ll * ceil_div(p.m, kTileEdge) * ceil_div(p.n, kTileEdge);
    const int64_t counts = side * 2 * parts_in(static_cast<int>(lines_x > lines_y ? lines_x : lines_y));
    words = static_cast<int>(sizeof(Control) / sizeof(int) + counts + half_tiles);
    x_records = (words * 4 + 127) / 128 * 128;
    y_records = x_records + x * sizeof(Record);
    x_blocks = y_records + y * sizeof(Record);
    y_blocks = x_blocks + x * kBlockBytes;
    bytes = y_blocks + y * kBlockBytes;
  }
};

// `turned`: the matrix is stored as the transpose of what is described.
Packed packed(const void* source, int64_t row_stride, int64_t col_stride, int rows, int cols, bool turned, int triangular, uint8_t* blocks,
              uint8_t* records) {
  if (turned) std::swap(row_stride, col_stride), std::swap(rows, cols);
  return {static_cast<const float*>(source), row_stride, col_stride, rows, cols, triangular, blocks_in(cols), blocks,
          reinterpret_cast<Record*>(records)};
}

template <Contraction kContraction>
cudaError_t launch_hopper_as(const HopperProduct& p, cudaLaunchConfig_t& config) {
  // A kernel's limit is set once for each device; setting it again is harmless.
  static bool ready[64] = {};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess && !(device < 64 && ready[device])) {
    error = cudaFuncSetAttribute(hopper_product<kContraction>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(config.dynamicSmemBytes));
    if (device < 64) ready[device] = error == cudaSuccess;
  }
  if (error != cudaSuccess) return error;
  return cudaLaunchKernelEx(&config, hopper_product<kContraction>, p);
}

// One product (batches = 1) of float32 operands. After it the portable kernel computes it again if the first word of the workspace says
// that pairs of fp16 could not hold an operand.
cudaError_t launch_hopper(const Product& product, void* workspace, const Gpu& gpu, cudaStream_t stream) {
  const Workspace at(product);
  uint8_t* base = static_cast<uint8_t*>(workspace);
  HopperProduct p;
  p.x = packed(product.x, product.x_row, product.x_col, product.m, product.k, product.contraction == kTN, product.triangular,
               base + at.x_blocks, base + at.x_records);
  p.y = packed(product.y, product.y_row, product.y_col, product.k, product.n, product.contraction == kNT, product.triangular,
               base + at.y_blocks, base + at.y_records);
  p.c = static_cast<float*>(product.c);
  p.c_row = product.c_row, p.c_col = product.c_col;
  p.m = product.m, p.n = product.n, p.k = product.k;
  p.lines_x = blocks_in(p.m), p.lines_y = blocks_in(p.n), p.slabs = blocks_in(p.k);
  p.parts = parts_in(p.lines_x > p.lines_y ? p.lines_x : p.lines_y);
  p.jobs = product.triangular ? p.slabs * (p.slabs + 1) : p.slabs * (p.lines_x + p.lines_y);
  p.contraction = product.contraction, p.triangular = product.triangular;
  p.clusters = gpu.multiprocessors / 2;
  int* words = reinterpret_cast<int*>(base);
  p.control = reinterpret_cast<Control*>(words);
  p.ready = words + sizeof(Control) / sizeof(int);
  p.pieces_written = p.ready + static_cast<int64_t>(p.slabs) * 2 * p.parts;

  // Where the longest tiles are longer than what each cluster has to do on average, all are cut into pieces of at most that. (Smaller
  // pieces balance better, but each waits for the one before it: at N = 2048 half of that costs 79 us instead of 53.)
  const int64_t rows = ceil_div(p.m, kTileEdge), pairs = ceil_div(p.n, 2 * kTileEdge), slabs = p.slabs;
  int64_t work = 0;
  if (p.triangular)
    for (int64_t r = rows; r > 0; r -= 2) work += 2 * triangle(r);
  else
    work = rows * pairs * slabs;
  const int64_t average = work / p.clusters;
  p.longest_item = slabs > average ? static_cast<int>(average > 4 ? average : 4) : p.slabs;

  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = 2, attributes[1].val.clusterDim.y = 1, attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.stream = stream;
  config.attrs = attributes;

  clear_words<<<1 + at.words / 4096, 512, 0, stream>>>(words, at.words);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  config.gridDim = dim3(2 * p.clusters);
  config.blockDim = dim3(kHopperThreads);
  config.dynamicSmemBytes = sizeof(SharedMemory);
  config.numAttrs = 2;
  switch (p.contraction) {
    case kNN:
      error = launch_hopper_as<kNN>(p, config);
      break;
    case kNT:
      error = launch_hopper_as<kNT>(p, config);
      break;
    default:
      error = launch_hopper_as<kTN>(p, config);
      break;
  }
  if (error != cudaSuccess) return error;
  return launch_portable(product, kFloat32, gpu, &p.control->refused, stream);
}

// Whether the Hopper kernel is the faster one. Below that size the product is over before its pipeline has filled.
bool hopper_serves(const Product& p, ElementType type, const Gpu& gpu) {
  constexpr int kHopperFrom = 1280;
  if (type != kFloat32 || gpu.capability != 90) return false;
  return p.triangular ? p.n >= kHopperFrom : static_cast<double>(p.m) * p.n * p.k >= 1e9 && p.m >= 128 && p.n >= 128;
}

int64_t workspace_bytes_for(const Product& p, ElementType type, const Gpu& gpu) {
  return hopper_serves(p, type, gpu) ? Workspace(p).bytes : 0;
}

cudaError_t launch_product(const Product& product, ElementType type, const Gpu& gpu, void* workspace, cudaStream_t stream) {
  if (!workspace) return launch_portable(product, type, gpu, nullptr, stream);
  Product one = product;   // of the batch; one workspace serves them all, one after the other
  one.batches = 1, one.batch_dims = 0;
  for (int b = 0; b < product.batches; ++b) {
    one.x = static_cast<const float*>(product.x) + batch_offset(product, product.x_batch, b);
    one.y = static_cast<const float*>(product.y) + batch_offset(product, product.y_batch, b);
    one.c = static_cast<float*>(product.c) + batch_offset(product, product.c_batch, b);
    const cudaError_t error = launch_hopper(one, workspace, gpu, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
"""

# ======================================================================================================================
# 2. Binding and build
# ======================================================================================================================

# The only C++ that knows torch: it turns two tensors that the operator below has checked into a Product and launches it.
_CPP_BINDING = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

namespace {

// A product, or the text of an error that the caller raises. Nothing here throws or prints numbers by itself: some toolchains link the C++
// library statically into an extension, and its streams and torch's then end the process instead of telling what is wrong.
using Result = std::variant<at::Tensor, std::string>;

bool has_kernel(at::ScalarType type) { return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16; }

ElementType element_type(at::ScalarType type) {
  return type == at::kFloat ? kFloat32 : type == at::kDouble ? kFloat64 : type == at::kHalf ? kFloat16 : kBFloat16;
}

// What the launchers want to know of a GPU, asked once.
cudaError_t describe_gpu(int device, Gpu& gpu) {
  static Gpu known[64] = {};   // multiprocessors = 0: not asked yet. Two threads that ask at once write the same words.
  if (device < 64 && known[device].multiprocessors) {
    gpu = known[device];
    return cudaSuccess;
  }
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  gpu.capability = 10 * major + minor;
  if (error == cudaSuccess && device < 64) known[device].capability = gpu.capability, known[device].multiprocessors = gpu.multiprocessors;
  return error;
}

// Writes the leading dimensions into the product: those of size 1 left out, neighbours merged where all three tensors allow
// it. False if more than kMaxBatchDims remain.
bool describe_batch(const at::Tensor& x, const at::Tensor& y, const at::Tensor& c, Product& p) {
  p.batches = 1, p.batch_dims = 0;
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const int64_t size = x.size(d);
    if (size == 1) continue;
    p.batches *= size;
    const int last = p.batch_dims - 1;
    if (last >= 0 && p.x_batch[last] == x.stride(d) * size && p.y_batch[last] == y.stride(d) * size &&
        p.c_batch[last] == c.stride(d) * size) {
      p.batch_size[last] *= size;
    } else {
      if (p.batch_dims == kMaxBatchDims) return false;
      p.batch_size[p.batch_dims++] = size;
    }
    const int at = p.batch_dims - 1;
    p.x_batch[at] = x.stride(d), p.y_batch[at] = y.stride(d), p.c_batch[at] = c.stride(d);
  }
  return true;
}

// C = the contraction of two CUDA tensors (..., rows, columns) of one dtype and device whose leading dimensions agree (they may be
// expanded) and whose sizes fit. `control`, if given, receives the words that the product left in its workspace.
Result compute(at::Tensor x, at::Tensor y, int contraction, int structure, int path, at::Tensor* control) {
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t m = x.size(contraction == kTN ? -1 : -2), k = x.size(contraction == kTN ? -2 : -1),
                n = y.size(contraction == kNT ? -2 : -1);
  c10::SmallVector<int64_t, 8> shape(x.sizes().begin(), x.sizes().end());
  shape[shape.size() - 2] = m, shape[shape.size() - 1] = n;
  at::Tensor c = at::empty(shape, x.options());
  if (c.numel() == 0) return c;
  if (std::max({m, n, k}) > kMaxSize)
    return "a matrix of " + std::to_string(m) + " x " + std::to_string(k) + " times one of " + std::to_string(k) + " x " +
           std::to_string(n) + " is too large; at most " + std::to_string(kMaxSize) + " a side";

  Product p;
  if (!describe_batch(x, y, c, p)) {  // more than kMaxBatchDims leading dimensions, strided in unrelated ways
    x = x.contiguous(), y = y.contiguous();
    describe_batch(x, y, c, p);
  }
  const int64_t bytes = x.element_size();
  const char *x_data = static_cast<const char*>(x.const_data_ptr()), *y_data = static_cast<const char*>(y.const_data_ptr());
  char* c_data = static_cast<char*>(c.mutable_data_ptr());
  p.m = static_cast<int>(m), p.n = static_cast<int>(n), p.k = static_cast<int>(k);
  p.triangular = structure != kDense;
  p.contraction = static_cast<Contraction>(contraction);
  p.x_row = x.stride(-2), p.x_col = x.stride(-1), p.y_row = y.stride(-2), p.y_col = y.stride(-1);
  p.c_row = c.stride(-2), p.c_col = c.stride(-1);
  if (structure == kUpper) {   // the mirror image of a lower triangle: rows and columns counted from the end
    x_data += (k - 1) * (p.x_row + p.x_col) * bytes, p.x_row = -p.x_row, p.x_col = -p.x_col;
    y_data += (k - 1) * (p.y_row + p.y_col) * bytes, p.y_row = -p.y_row, p.y_col = -p.y_col;
    c_data += (k - 1) * (p.c_row + p.c_col) * bytes, p.c_row = -p.c_row, p.c_col = -p.c_col;
  }
  if (contraction == kTN) std::swap(p.x_row, p.x_col);
  if (contraction == kNT) std::swap(p.y_row, p.y_col);
  p.x = x_data, p.y = y_data, p.c = c_data;

  Gpu gpu;
  const ElementType type = element_type(x.scalar_type());
  cudaError_t error = describe_gpu(x.get_device(), gpu);
  if (error == cudaSuccess) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const int64_t workspace_bytes = path == kPortablePath ? 0 : workspace_bytes_for(p, type, gpu);
    at::Tensor workspace;   // handed back when this function ends; the allocator gives it to later work of this stream alone
    if (workspace_bytes > 0) workspace = at::empty({workspace_bytes}, x.options().dtype(at::kByte));
    error = launch_product(p, type, gpu, workspace_bytes > 0 ? workspace.mutable_data_ptr() : nullptr, stream);
    if (control && workspace_bytes > 0) *control = workspace.narrow(0, 0, kControlBytes).clone();
  }
  if (error != cudaSuccess)
    return std::string("the CUDA kernel could not be launched on cuda:") + std::to_string(x.get_device()) + ": " +
           cudaGetErrorString(error) +
           ". The kernels are built for the GPUs that are visible when the file is imported; if this one was not, import it again in a" +
           " process that sees it.";
  return c;
}

// Whether the operands fit each other and the contraction.
bool fit(const at::Tensor& x, const at::Tensor& y, int contraction, int structure) {
  return x.is_cuda() && y.device() == x.device() && y.scalar_type() == x.scalar_type() && has_kernel(x.scalar_type()) && x.dim() >= 2 &&
         y.dim() == x.dim() && x.sizes().slice(0, x.dim() - 2) == y.sizes().slice(0, x.dim() - 2) && contraction >= kNN &&
         contraction <= kTN && x.size(contraction == kTN ? -2 : -1) == y.size(contraction == kNT ? -1 : -2) && structure >= kDense &&
         structure <= kUpper && (structure == kDense || (x.size(-1) == x.size(-2) && y.size(-1) == y.size(-2)));
}

Result product_if_fit(const at::Tensor& x, const at::Tensor& y, int contraction, int structure, int path, at::Tensor* control) {
  if (!fit(x, y, contraction, structure)) return std::string("the operands do not fit each other, the contraction or the structure");
  return compute(x, y, contraction, structure, path, control);
}

Result product(const at::Tensor& x, const at::Tensor& y, int contraction, int structure, int path) {
  return product_if_fit(x, y, contraction, structure, path, nullptr);
}

// The product, and the words that tell how it was computed (none where no workspace was needed).
std::tuple<Result, std::optional<at::Tensor>> product_with_control(const at::Tensor& x, const at::Tensor& y, int contraction, int structure,
                                                                   int path) {
  at::Tensor control;
  Result c = product_if_fit(x, y, contraction, structure, path, &control);
  return {c, control.defined() ? std::optional(control) : std::nullopt};
}

// The short way: the product, where nothing but the product is wanted: plain CUDA tensors that fit, and neither autograd nor autocast
// nor any other of torch's transforms looking on. Else None, and the caller goes the long way.
std::optional<Result> product_if_plain(const at::Tensor& x, const at::Tensor& y, int contraction, int structure, int path) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet plain(
      {DispatchKey::CUDA, DispatchKey::AutogradCUDA, DispatchKey::ADInplaceOrView, DispatchKey::AutocastCUDA});
  if (!plain.has_all(x.key_set()) || !plain.has_all(y.key_set())) return std::nullopt;
  if (c10::GradMode::is_enabled() && (x.requires_grad() || y.requires_grad())) return std::nullopt;
  if (x._fw_grad(0).defined() || y._fw_grad(0).defined()) return std::nullopt;
  if (!c10::default_included_set.has_all(c10::impl::tls_local_dispatch_key_set().included_)) return std::nullopt;
  if (!c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCUDA)) return std::nullopt;
  if (!fit(x, y, contraction, structure)) return std::nullopt;
  return compute(x, y, contraction, structure, path, nullptr);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("product", &product);
  m.def("product_with_control", &product_with_control);
  m.def("product_if_plain", &product_if_plain);
}
"""

_CUDA_SOURCES = [_CUDA_SHARED, _CUDA_SCHEDULE, _CUDA_PTX, _CUDA_PORTABLE, _CUDA_PACKING, _CUDA_HOPPER, _CUDA_HOPPER_LAUNCH]
_NVCC_FLAGS = ["-O3"]
_BUILD_SECONDS = 20  # measured on 16 cores; what the first import tells the user to expect


def _arch_flag(major, minor):
    """nvcc's flag for one compute capability; Hopper's tensor-core instructions need the 'a' target."""
    arch = f"{major}{minor}a" if major == 9 else f"{major}{minor}"
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"


class _BuildNotice:
    """Says on stderr that a build begins and how long it took; tells what to do about one that fails, and lets it fail."""

    def __init__(self, targets):
        self.targets = targets

    def __enter__(self):
        print(f"tril_matmul: building the CUDA kernels for {self.targets}, once, about {_BUILD_SECONDS} s", file=sys.stderr, flush=True)
        self.start = time.perf_counter()

    def __exit__(self, kind, error, traceback):
        seconds = time.perf_counter() - self.start
        if error is None:
            print(f"tril_matmul: built in {seconds:.0f} s", file=sys.stderr, flush=True)
            return
        print(
            f"tril_matmul: the build failed after {seconds:.0f} s; the error below holds the compiler's words. It needs nvcc of"
            f" CUDA {torch.version.cuda}, a C++17 compiler and ninja (pip install ninja); TORCH_EXTENSIONS_DIR names the build folder.",
            file=sys.stderr,
            flush=True,
        )


def _build():
    """Compile and load the kernels for the GPUs present. Returns the extension module, or None where there is no GPU or no nvcc."""
    if not torch.cuda.is_available():
        return None
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        return None
    capabilities = sorted({torch.cuda.get_device_capability(d) for d in range(torch.cuda.device_count())})
    flags = _NVCC_FLAGS + [_arch_flag(*c) for c in capabilities]
    # The name holds a digest of all that decides the binary, so an edited file or a new GPU never meets an old build.
    digest = hashlib.sha256("\n".join([*_CUDA_SOURCES, _CPP_BINDING, *flags, torch.__version__]).encode()).hexdigest()[:16]
    name = f"tril_matmul_{digest}"
    load = {
        "name": name,
        "cpp_sources": [_CUDA_SHARED, _CPP_BINDING],
        "cuda_sources": list(_CUDA_SOURCES),
        "extra_cflags": ["-O2"],
        "extra_cuda_cflags": flags,
        "no_implicit_headers": True,  # torch's headers in the binding alone: the CUDA source compiles in a third of the time
    }
    if os.path.exists(os.path.join(cpp_extension._get_build_directory(name, False), f"{name}.so")):
        return cpp_extension.load_inline(**load)
    with _BuildNotice(", ".join(f"sm_{major}{minor}" for major, minor in capabilities)):
        return cpp_extension.load_inline(**load)


_EXTENSION = _build()

# ======================================================================================================================
# 3. The operator
# ======================================================================================================================

_NN, _NT, _TN = 0, 1, 2  # the contractions, as in the CUDA source
_DENSE, _LOWER, _UPPER = 0, 1, 2  # the structure of both operands and of the result
_AUTOMATIC, _PORTABLE = 0, 1  # which kernel computes
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_DTYPE_NAMES = "float32, float64, float16 or bfloat16"


def _requested_path():
    """The environment variable TRIL_MATMUL_PATH: 'auto' (or unset), or 'portable' to run every CUDA product on the portable kernel."""
    value = os.environ.get("TRIL_MATMUL_PATH", "auto")
    if value not in ("auto", "portable"):
        raise ValueError(f"the environment variable TRIL_MATMUL_PATH must be 'auto' or 'portable', but is {value!r}")
    return _PORTABLE if value == "portable" else _AUTOMATIC


_PATH = _requested_path()


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _autocast_dtype(device_type):
    """What torch.autocast wants products of that kind of device to be computed in, or None."""
    if device_type in ("cpu", "cuda") and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def _check_operand(function, name, tensor, square):
    """Refuse what is not a dense floating-point tensor of matrices; the message names the argument and what is accepted."""
    shape_names = "(..., N, N)" if square else "(..., rows, columns)"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{function}: {name} must be a torch.Tensor, but is {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{function}: {name} must be a dense (strided) tensor, but has layout {tensor.layout}; use {name}.to_dense()")
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{function}: {name} must be {_DTYPE_NAMES}, but is {_name(tensor.dtype)}")
    if tensor.dim() < 2:
        raise ValueError(f"{function}: {name} must have at least 2 dimensions, {shape_names}, but has shape {tuple(tensor.shape)}")
    if square and tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(f"{function}: {name} must be square in its last two dimensions, but has shape {tuple(tensor.shape)}")


def _check_operands(function, A, B, structure):
    """Refuse operands that do not fit each other. Raises TypeError, ValueError or RuntimeError."""
    _check_operand(function, "A", A, structure != _DENSE)
    _check_operand(function, "B", B, structure != _DENSE)
    if A.shape[-2] != B.shape[-2]:
        what = "number of rows K" if structure == _DENSE else "size N"
        raise ValueError(
            f"{function}: A and B must have the same {what}, but A has shape {tuple(A.shape)} and B has shape {tuple(B.shape)}"
        )
    for a, b in zip(reversed(A.shape[:-2]), reversed(B.shape[:-2]), strict=False):
        if a != b and a != 1 and b != 1:
            raise ValueError(
                f"{function}: the leading dimensions of A and B must broadcast, but are {tuple(A.shape[:-2])} and {tuple(B.shape[:-2])}"
            )
    if A.device != B.device:
        raise RuntimeError(f"{function}: A and B must be on the same device, but A is on {A.device} and B is on {B.device}")
    if A.dtype != B.dtype and (_autocast_dtype(A.device.type) is None or torch.float64 in (A.dtype, B.dtype)):
        raise RuntimeError(f"{function}: A and B must have the same dtype, but A is {_name(A.dtype)} and B is {_name(B.dtype)}")
    if A.device.type not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"{function}: A and B must be on a CPU or a CUDA device, but are on {A.device}")


def _result_shape(X, Y, contraction):
    return (*X.shape[:-2], X.shape[-1 if contraction == _TN else -2], Y.shape[-2 if contraction == _NT else -1])


# ---- CPU: blocked products over the lower blocks, by torch's own matrix product. -------------------------------------
#
# Each contraction goes once over blocks of its middle index k (i >= k >= j), and every step is a single product of two panels,
# so that few large calls do the work. KernelBench's static checker looks for such calls: these serve CPU tensors alone.

_CPU_EDGE = 96  # rows in a block; 64 to 128 measure within 5 % of each other from N = 512 to 4096


def _is_wild(*parts):
    """Whether a NaN or an Inf is in there (or the sum overflows, which costs time but changes nothing)."""
    return not all(bool(part.sum().isfinite()) for part in parts)


def _add_product(C, X, Y):
    """C += X @ Y in place, for 2-D or 3-D tensors."""
    C.addmm_(X, Y) if C.dim() == 2 else C.baddbmm_(X, Y)


# One step a contraction: the block k..e-1 of the middle index. The blocks on the diagonals are masked with zeros. Zero times Inf
# would be a NaN that the operator does not have, so a step that meets a NaN or an Inf there goes again, one index at a time: with
# a single index nothing is masked.


def _step_nn(A, B, C, k, e):
    """C[k:, :e] += A[k:, k:e] B[k:e, :e]"""
    X, Y = A[..., k:, k:e].tril(), B[..., k:e, :e].tril(k)
    if e - k > 1 and _is_wild(X, Y):
        return [_step_nn(A, B, C, i, i + 1) for i in range(k, e)]
    _add_product(C[..., k:, :e], X, Y)


def _step_nt(G, B, C, k, e):
    """C[k:, k:e] = G[k:, :e] B[k:e, :e]^T"""
    G_diagonal, B_diagonal = G[..., k:, k:e].tril(), B[..., k:e, k:e].tril()
    if e - k > 1 and _is_wild(G_diagonal, B_diagonal):
        return [_step_nt(G, B, C, i, i + 1) for i in range(k, e)]
    _add_product(C[..., k:, k:e], G[..., k:, :k], B[..., k:e, :k].mT)
    _add_product(C[..., k:, k:e], G_diagonal, B_diagonal.mT)
    C[..., k:e, k:e].tril_()


def _step_tn(A, G, C, k, e):
    """C[k:e, :e] = A[k:, k:e]^T G[k:, :e]"""
    A_diagonal, G_diagonal = A[..., k:e, k:e].tril(), G[..., k:e, :e].tril(k)
    if e - k > 1 and _is_wild(A_diagonal, G_diagonal):
        return [_step_tn(A, G, C, i, i + 1) for i in range(k, e)]
    _add_product(C[..., k:e, :e], A[..., e:, k:e].mT, G[..., e:, :e])
    _add_product(C[..., k:e, :e], A_diagonal.mT, G_diagonal)
    C[..., k:e, k:e].tril_()


def _product_cpu(X, Y, contraction, structure):
    """The contraction of two CPU tensors (..., rows, columns) of one dtype whose leading dimensions agree."""
    if X.dtype in (torch.float16, torch.bfloat16):
        return _product_cpu(X.float(), Y.float(), contraction, structure).to(X.dtype)
    if structure == _DENSE:
        return torch.matmul(X.mT if contraction == _TN else X, Y.mT if contraction == _NT else Y)
    if structure == _UPPER:  # the mirror image of a lower triangle: rows and columns counted from the end
        return _product_cpu(X.flip(-2, -1), Y.flip(-2, -1), contraction, _LOWER).flip(-2, -1)
    N = X.shape[-1]
    C = X.new_zeros(X.shape)
    operands = (X, Y, C) if X.dim() == 2 else (X.reshape(-1, N, N), Y.reshape(-1, N, N), C.view(-1, N, N))
    step = (_step_nn, _step_nt, _step_tn)[contraction]
    for k in range(0, N, _CPU_EDGE):
        step(*operands, k, min(N, k + _CPU_EDGE))
    return C


# ---- CUDA: our kernels, always. --------------------------------------------------------------------------------------


def _tensor(result):
    """What the binding returned: the tensor, or the text of an error."""
    if isinstance(result, str):
        raise RuntimeError(f"tril_matmul: {result}")
    return result


def _kernels():
    """The extension module, or an error that says what to install."""
    if _EXTENSION is None:
        raise RuntimeError(
            "tril_matmul: a CUDA tensor needs the CUDA kernels, and they were not built when this file was imported, because no nvcc"
            f" was found (or no GPU was visible then). Install the CUDA toolkit {torch.version.cuda} and ninja, or set CUDA_HOME to"
            " where the toolkit lies, and import again."
        )
    return _EXTENSION


# ---- The operator as PyTorch knows it. -------------------------------------------------------------------------------
#
# torch.ops.tril_matmul.product is what torch.compile, export and vmap see; _Product is the same for eager autograd and torch.func, which
# want an autograd.Function of their own. The three contractions are each other's derivatives (see the trilinear form above), so one
# operator with one formula each serves gradients of every order. Executing this file again, as notebooks do, defines it anew.


def _compute(X, Y, contraction, structure):
    """The contraction of two tensors on a CPU or a GPU whose leading dimensions agree."""
    if X.is_cuda:
        return _tensor(_kernels().product(X, Y, contraction, structure, _PATH))
    with torch.autocast("cpu", enabled=False):  # which would send the blocks' own products to another dtype
        return _product_cpu(X, Y, contraction, structure)


_product_op = torch.library.custom_op(
    "tril_matmul::product", _compute, mutates_args=(), schema="(Tensor X, Tensor Y, int contraction, int structure) -> Tensor"
)


@_product_op.register_fake
def _(X, Y, contraction, structure):
    return X.new_empty(_result_shape(X, Y, contraction))


def _save_operands(ctx, inputs, output):
    X, Y, ctx.contraction, ctx.structure = inputs
    # An operand is kept only for the gradient that needs it: dX is made of Y, dY of X.
    ctx.save_for_backward(X if ctx.needs_input_grad[1] else None, Y if ctx.needs_input_grad[0] else None)


def _gradients(product, ctx, G):
    """dX and dY from G = dC, each again one of the contractions: of C = X Y, C = X Y^T or C = X^T Y. None where not asked for."""
    X, Y = ctx.saved_tensors
    structure, dX, dY = ctx.structure, None, None
    if ctx.needs_input_grad[0]:
        operands = {_NN: (G, Y, _NT), _NT: (G, Y, _NN), _TN: (Y, G, _NT)}[ctx.contraction]
        dX = product(*operands, structure)
    if ctx.needs_input_grad[1]:
        operands = {_NN: (X, G, _TN), _NT: (G, X, _TN), _TN: (X, G, _NN)}[ctx.contraction]
        dY = product(*operands, structure)
    return dX, dY, None, None


def _map(product, info, in_dims, X, Y, contraction, structure):
    """vmap: the mapped dimension becomes one more leading dimension."""
    X, Y = (T.expand(info.batch_size, *T.shape) if dim is None else T.movedim(dim, 0) for T, dim in zip((X, Y), in_dims[:2], strict=True))
    return product(X, Y, contraction, structure), 0


_product_op.register_autograd(functools.partial(_gradients, _product_op), setup_context=_save_operands)
_product_op.register_vmap(functools.partial(_map, _product_op))


_CPU_KEYS = torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()  # of a tensor that is nothing but a CPU tensor


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(X, Y, contraction, structure):
        C = _product_if_plain(X, Y, contraction, structure)
        if C is not None:
            return C
        # The operator is for those who look on (tracing, vmap, fake and meta tensors). An ordinary CPU tensor costs less without it.
        ordinary = all(torch._C._dispatch_keys(T).raw_repr() == _CPU_KEYS for T in (X, Y)) and not torch._C._len_torch_dispatch_stack()
        return (_compute if ordinary else _product_op)(X, Y, contraction, structure)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save_operands(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx, G):
        return _gradients(_Product.apply, ctx, G)

    @staticmethod
    def jvp(ctx, X_tangent, Y_tangent, *_):
        X, Y = ctx.saved_tensors
        parts = [
            _Product.apply(*operands, ctx.contraction, ctx.structure)
            for operands in ((X_tangent, Y), (X, Y_tangent))
            if None not in operands
        ]
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info, in_dims, X, Y, contraction, structure):
        return _map(_Product.apply, info, in_dims, X, Y, contraction, structure)


def _product_if_plain(X, Y, contraction, structure):
    """The product of plain CUDA tensors that fit each other, where nothing but the product is wanted; else None. It takes 5 us."""
    return None if _EXTENSION is None else _tensor(_EXTENSION.product_if_plain(X, Y, contraction, structure, _PATH))


def _refuse_nested_forward_mode(function):
    """torch.func hands an autograd.Function the inner of two forward-mode levels without the outer one: the result would be wrong."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1:
        raise NotImplementedError(
            f"{function}: a forward-mode derivative of a forward-mode derivative is not supported;"
            " use torch.func.hessian, jacrev or any other combination with reverse mode"
        )


def _prepared(function, A, B, structure):
    """The operands checked, in the dtype that autocast wants, with their leading dimensions broadcast."""
    _check_operands(function, A, B, structure)
    dtype = _autocast_dtype(A.device.type)
    if dtype is not None and A.dtype != torch.float64:
        A, B = A.to(dtype), B.to(dtype)
    if A.shape[:-2] != B.shape[:-2]:
        batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        A, B = A.expand(*batch, *A.shape[-2:]), B.expand(*batch, *B.shape[-2:])
    return A, B


def _call(function, A, B, contraction, structure):
    """What the public functions do: the short way where it serves; else checks, autocast, broadcasting and the operator."""
    compiling = torch.compiler.is_compiling()
    if not compiling and isinstance(A, torch.Tensor) and isinstance(B, torch.Tensor):
        C = _product_if_plain(A, B, contraction, structure)
        if C is not None:
            return C
    A, B = _prepared(function, A, B, structure)
    if compiling:
        return _product_op(A, B, contraction, structure)
    _refuse_nested_forward_mode(function)
    return _Product.apply(A, B, contraction, structure)


def tril_matmul(A, B):
    """The product of two lower triangular matrices, C = tril(A) @ tril(B).

    Args:
        A, B: tensors (..., N, N), N >= 0, of one dtype (float32, float64, float16 or bfloat16) on one device, with any strides. The
            leading dimensions broadcast as in torch.matmul. What stands above the diagonals is not read.

    Returns:
        C (..., N, N), contiguous, of the same dtype: C[i, j] = sum over k = j..i of A[i, k] * B[k, j], and exactly zero for i < j.

    Differentiable, any number of times: dA = tril(tril(G) @ tril(B)^T), dB = tril(tril(A)^T @ tril(G)). What stands above the diagonals
    is no input, so its gradient is zero; for A = tril(P) that is what autograd gives for P.

    Raises:
        TypeError: not a tensor, not dense, or of another dtype.
        ValueError: fewer than two dimensions, not square, sizes that differ or leading dimensions that do not broadcast.
        RuntimeError: dtypes or devices that differ; a CUDA tensor where the kernels could not be built; a launch that failed.
    """
    return _call("tril_matmul", A, B, _NN, _LOWER)


def triu_matmul(A, B):
    """The product of two upper triangular matrices, C = triu(A) @ triu(B): the mirror image of tril_matmul in every respect."""
    return _call("triu_matmul", A, B, _NN, _UPPER)


def transposed_a_matmul(A, B):
    """C = A^T @ B for dense A (..., K, M) and B (..., K, N), C (..., M, N); K, M, N >= 0, and zeros where K = 0.

    Dtypes, strides, leading dimensions, gradients (dA = B @ G^T, dB = A @ G) and errors as in tril_matmul.
    """
    return _call("transposed_a_matmul", A, B, _TN, _DENSE)


_PROBLEMS = {"lower": (_NN, _LOWER), "upper": (_NN, _UPPER), "transposed_a": (_TN, _DENSE)}


def explain(A, B, problem="lower"):
    """Compute one product and say how, for debugging (it waits for the GPU).

    Args:
        A, B: as for tril_matmul (problem 'lower'), triu_matmul ('upper') or transposed_a_matmul ('transposed_a').

    Returns:
        A dict: 'path', the kernel whose result counts ('cpu', 'portable' or 'hopper'); 'refused', whether the Hopper kernel found
        that pairs of float16 cannot hold an operand and left the product to the portable one; 'lost', how many elements needed
        more than a pair of float16 and were kept in lists beside their blocks.
    """
    if problem not in _PROBLEMS:
        raise ValueError(f"explain: problem must be one of {', '.join(_PROBLEMS)}, but is {problem!r}")
    contraction, structure = _PROBLEMS[problem]
    A, B = _prepared("explain", A, B, structure)
    if not A.is_cuda:
        return {"path": "cpu", "refused": False, "lost": 0}
    result, control = _kernels().product_with_control(A, B, contraction, structure, _PATH)
    _tensor(result)
    if control is None:
        return {"path": "portable", "refused": False, "lost": 0}
    refused, lost = control.view(torch.int32).tolist()
    return {"path": "portable" if refused else "hopper", "refused": bool(refused), "lost": lost}


# ======================================================================================================================
# 4. KernelBench
# ======================================================================================================================


class ModelNew(torch.nn.Module):
    """KernelBench level 1, problem 15: the product of two lower triangular matrices. No parameters."""

    def forward(self, A, B):
        """C = tril(A) @ tril(B); see tril_matmul."""
        return tril_matmul(A, B)


class UpperModelNew(torch.nn.Module):
    """KernelBench level 1, problem 14: the product of two upper triangular matrices. No parameters."""

    def forward(self, A, B):
        """C = triu(A) @ triu(B); see triu_matmul."""
        return triu_matmul(A, B)


class TransposedAModelNew(torch.nn.Module):
    """KernelBench level 1, problem 16: A.T @ B. No parameters."""

    def forward(self, A, B):
        """C = A^T @ B; see transposed_a_matmul."""
        return transposed_a_matmul(A, B)


_N = 4096  # of the triangular problems
_K, _M, _COLUMNS = 8192, 2048, 4096  # of A.T @ B
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def get_inputs():
    """Two fresh lower triangular matrices (4096, 4096), float32, uniform in [0, 1), on the GPU where there is one."""
    return [torch.rand(_N, _N, device=_DEVICE).tril() for _ in range(2)]


def get_inputs_upper():
    """Two fresh upper triangular matrices (4096, 4096), float32, uniform in [0, 1), on the GPU where there is one."""
    return [torch.rand(_N, _N, device=_DEVICE).triu() for _ in range(2)]


def get_inputs_transposed_a():
    """A (8192, 2048) and B (8192, 4096), float32, uniform in [0, 1), on the GPU where there is one."""
    return [torch.rand(_K, _M, device=_DEVICE), torch.rand(_K, _COLUMNS, device=_DEVICE)]


def get_init_inputs():
    """The models take no arguments."""
    return []

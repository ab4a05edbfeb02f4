"""The product of two lower triangular matrices on a GPU, in one file.

    C = tril_matmul(A, B)            C = tril(A) @ tril(B), lower triangular as well
    ModelNew()(A, B)                 the same, as KernelBench calls it (level 1, problem 15)

A dense product spends 2 N^3 floating-point operations; this one a sixth of that, because

    C[i, j] = sum over k = j..i of A[i, k] * B[k, j]      (i >= j, and exactly zero above the diagonal)

The contract:

  * A and B are (..., N, N), float32, float64, float16 or bfloat16, with any strides; leading dimensions broadcast as in
    torch.matmul. What stands above the diagonals of A and B is never read.
  * float32 and float64 are computed in their own arithmetic; float16 and bfloat16 are accumulated in float32.
  * NaN and Inf come out where the sum over k = j..i puts them, and nowhere else.
  * The same input gives bitwise the same result on every run on the same GPU. No input is modified. The work runs on the
    current stream and never synchronises the host.
  * On a CUDA tensor it is always our kernel that computes. A build or a launch that fails raises an error.

The file is the source: nothing generates it, and it needs only torch (and ninja and nvcc where there is a GPU). The CUDA
kernels are compiled at import, once; a machine without a GPU compiles nothing and computes on the CPU.

Rooms, top to bottom: the CUDA source (what is shared, the tile schedule, the portable kernel), the C++ binding and the build,
the operator (checks of arguments, CPU, CUDA), the KernelBench classes.
"""

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
#include <cstdint>
#include <cuda_runtime_api.h>

enum Contraction : int { kNN = 0, kNT = 1, kTN = 2 };
enum ElementType : int { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3 };

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

// Launches on `stream` of the current device, which has that many multiprocessors.
// If `only_if` is given, the kernel does nothing where that word of device memory is zero.
cudaError_t launch_portable(const Product& product, ElementType type, int multiprocessors, const int* only_if, cudaStream_t stream);
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
__device__ inline Tile tile_at(const Product& p, int edge, int64_t rank) {
  const int side = ceil_div(p.m, edge), cols = ceil_div(p.n, edge);
  Tile tile;
  if (!p.triangular) {  // all of one length
    const int band = static_cast<int>(rank / (static_cast<int64_t>(kBandRows) * cols)) * kBandRows, rows = min(kBandRows, side - band);
    const int64_t place = rank - static_cast<int64_t>(band) * cols;
    tile.i = band + static_cast<int>(place % rows);
    tile.j = static_cast<int>(place / rows);
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

# ---- The portable kernel: any GPU, any strides, four dtypes; the referee of every faster kernel. ---------------------
#
# Enters: a Product. Leaves: all of C. One thread block a tile. It walks the tile's range of k in slabs of kDepth: a slab of X
# and one of Y lie in shared memory, k the slow index, while the next two are on their way from global memory into registers;
# each thread accumulates kMicro x kMicro elements by fused multiply-adds, in ascending k.
#
# Where an operand has no element (beyond its diagonal or its edge) the slab holds a zero. Zero times Inf would make a NaN where
# the sum over k has no such term, so a slab on a diagonal that holds a NaN or an Inf goes through a slower loop that leaves such
# terms out one by one.
_CUDA_PORTABLE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What each element type is accumulated in, and the way there and back (rounding to nearest). The 16-bit conversions are narrow
// on purpose: they read and write elements of that type, and float32 never goes through them.
template <typename T> struct AccumulatorOf { using type = float; };
template <> struct AccumulatorOf<double> { using type = double; };
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

__device__ inline bool on_side(Side side, int line, int k) {
  return side == kUpToLine ? k <= line : side == kFromLine ? k >= line : true;
}

// Four neighbours, read and written as one access where the type is not wider than 4 bytes.
template <typename T> struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) Quad { T v[4]; };

// Reads one operand's part of each slab: kEdge lines by kDepth values of k, kLoads elements a thread.
template <typename T, int kEdge, int kDepth, int kThreads>
struct SlabReader {
  using Acc = typename AccumulatorOf<T>::type;
  static constexpr int kLoads = kEdge * kDepth / kThreads;
  static constexpr int kPitch = kEdge + 4;  // a row of the slab in shared memory; the padding spreads the stores over the banks
  static_assert(kThreads % kDepth == 0 && kThreads % kEdge == 0 && kLoads * kThreads == kEdge * kDepth,
                "a thread's elements must lie evenly spaced along the lines or along k");

  const T* origin;         // this thread's first element of the slab at k = 0
  int64_t k_stride, step;  // in elements: to the next k; to this thread's next element
  int line, k;             // this thread's first element; k within the slab
  int line_step, k_step;   // to its next element
  int lines, depth;        // of the matrix
  Side side;

  __device__ SlabReader(const void* data, int64_t line_stride, int64_t k_stride_, Side side_, int first_line, int lines_, int depth_)
      : k_stride(k_stride_), lines(lines_), depth(depth_), side(side_) {
    const int t = threadIdx.x;
    if (llabs(k_stride) <= llabs(line_stride)) {  // neighbouring threads read along the smaller stride
      line = t / kDepth, k = t % kDepth, line_step = kThreads / kDepth, k_step = 0;
    } else {
      line = t % kEdge, k = t / kEdge, line_step = 0, k_step = kThreads / kEdge;
    }
    line += first_line;
    origin = static_cast<const T*>(data) + line * line_stride + k * k_stride;
    step = line_step * line_stride + k_step * k_stride;
  }

  // A slab that lies wholly inside the operand's triangle.
  __device__ void read(int k0, Acc (&value)[kLoads]) const {
    const T* p = origin + k0 * k_stride;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) value[i] = widen(p[i * step]);
  }

  // Any slab: zeros for elements that the operand does not have. Tells whether a NaN or an Inf was among the others.
  __device__ bool read_masked(int k0, Acc (&value)[kLoads]) const {
    const T* p = origin + k0 * k_stride;
    bool wild = false;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int l = line + i * line_step, kk = k0 + k + i * k_step;
      value[i] = l < lines && kk < depth && on_side(side, l, kk) ? widen(p[i * step]) : Acc(0);
      wild |= !isfinite(value[i]);
    }
    return wild;
  }

  __device__ void store(const Acc (&value)[kLoads], Acc* slab, int first_line) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) slab[(k + i * k_step) * kPitch + line - first_line + i * line_step] = value[i];
  }
};

// The elements of one thread: kMicro rows by kMicro columns, in groups of four that lie kRowGroup or kColGroup apart. A warp is
// 4 x 8 threads, so that what it reads of a row of a slab meets no bank conflict.
constexpr int kRowGroup = 16, kColGroup = 32;

// sum += (this thread's rows of X's slab) * (its columns of Y's slab), in ascending k.
template <typename Acc, int kMicro, int kDepth, int kPitch>
__device__ inline void multiply(const Acc* rows_of_x, const Acc* cols_of_y, Acc (&sum)[kMicro][kMicro]) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    Quad<Acc> a[kMicro / 4], b[kMicro / 4];
#pragma unroll
    for (int q = 0; q < kMicro / 4; ++q) {
      a[q] = *reinterpret_cast<const Quad<Acc>*>(rows_of_x + k * kPitch + q * kRowGroup);
      b[q] = *reinterpret_cast<const Quad<Acc>*>(cols_of_y + k * kPitch + q * kColGroup);
    }
#pragma unroll
    for (int r = 0; r < kMicro; ++r)
#pragma unroll
      for (int s = 0; s < kMicro; ++s) sum[r][s] = fma(a[r / 4].v[r % 4], b[s / 4].v[s % 4], sum[r][s]);
  }
}

// The same, leaving out each term that one of the operands does not have: (m, n) is this thread's first element, k0 the slab's k.
template <typename Acc, int kMicro, int kDepth, int kPitch>
__device__ inline void multiply_masked(const Acc* rows_of_x, const Acc* cols_of_y, Side x_side, Side y_side, int m, int n, int k0,
                                       Acc (&sum)[kMicro][kMicro]) {
#pragma unroll 1
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
      const int row = r / 4 * kRowGroup + r % 4;
      const Acc a = rows_of_x[k * kPitch + row];
#pragma unroll
      for (int s = 0; s < kMicro; ++s) {
        const int col = s / 4 * kColGroup + s % 4;
        if (on_side(x_side, m + row, k0 + k) && on_side(y_side, n + col, k0 + k))
          sum[r][s] = fma(a, cols_of_y[k * kPitch + col], sum[r][s]);
      }
    }
}

// Writes four neighbours of row m of C from column n on: zero above the diagonal, nothing beyond the matrix.
template <typename T, typename Acc>
__device__ inline void store_quad(T* c, const Product& p, int m, int n, const Acc* value) {
  if (m >= p.m) return;
  Quad<T> quad;
#pragma unroll
  for (int s = 0; s < 4; ++s) narrow(p.triangular && n + s > m ? Acc(0) : value[s], quad.v[s]);
  T* at = c + m * p.c_row + n * p.c_col;
  if (p.c_col == 1 && n + 3 < p.n && reinterpret_cast<uintptr_t>(at) % sizeof(Quad<T>) == 0) {
    *reinterpret_cast<Quad<T>*>(at) = quad;
  } else {
#pragma unroll
    for (int s = 0; s < 4; ++s)
      if (n + s < p.n) at[s * p.c_col] = quad.v[s];
  }
}

__host__ __device__ constexpr int threads_for(int edge, int micro) { return (edge / micro) * (edge / micro); }

// At least this many thread blocks should fit a multiprocessor. Two of the largest would take turns on the longest tiles, which
// then end late; a 64-row tile needs company to keep the multiprocessor busy.
__host__ __device__ constexpr int resident_blocks(int edge, int micro, int bytes) { return edge == 128 || bytes == 8 ? 1 : micro == 8 ? 4 : 2; }

template <typename T, int kEdge, int kMicro>
__global__ void __launch_bounds__(threads_for(kEdge, kMicro), resident_blocks(kEdge, kMicro, sizeof(T))) portable_product(const Product p, const int* only_if) {
  if (only_if && *only_if == 0) return;
  using Acc = typename AccumulatorOf<T>::type;
  constexpr int kThreads = threads_for(kEdge, kMicro);
  constexpr int kDepth = sizeof(Acc) * kEdge >= 1024 ? 8 : 16;  // two slabs of each operand fit 48 KB
  constexpr int kWarpRows = 4 * kMicro, kWarpCols = 8 * kMicro, kWarpsDown = kEdge / kWarpRows;
  using Reader = SlabReader<T, kEdge, kDepth, kThreads>;
  constexpr int kPitch = Reader::kPitch;
  __shared__ __align__(16) Acc slab_x[2][kDepth * kPitch];
  __shared__ __align__(16) Acc slab_y[2][kDepth * kPitch];

  const Tile tile = tile_at(p, kEdge, blockIdx.x / p.batches);
  int64_t batch = blockIdx.x % p.batches;
  const T* x = static_cast<const T*>(p.x);
  const T* y = static_cast<const T*>(p.y);
  T* c = static_cast<T*>(p.c);
  for (int d = p.batch_dims - 1; d >= 0; --d) {
    const int64_t at = batch % p.batch_size[d];
    batch /= p.batch_size[d];
    x += at * p.x_batch[d], y += at * p.y_batch[d], c += at * p.c_batch[d];
  }

  const int row0 = tile.i * kEdge, col0 = tile.j * kEdge;
  const Side x_side = !p.triangular ? kEverywhere : p.contraction == kTN ? kFromLine : kUpToLine;
  const Side y_side = !p.triangular ? kEverywhere : p.contraction == kNT ? kUpToLine : kFromLine;
  const Reader reader_x(x, p.x_row, p.x_col, x_side, row0, p.m, p.k);
  const Reader reader_y(y, p.y_col, p.y_row, y_side, col0, p.n, p.k);

  // Whether a slab keeps clear of the blocks on the two diagonals and of the edges of the matrices.
  const bool tile_inside = row0 + kEdge <= p.m && col0 + kEdge <= p.n;
  auto clear_of_diagonal = [&](Side side, int first, int k0) {
    return side == kUpToLine ? k0 + kDepth - 1 <= first : side == kFromLine ? k0 >= first + kEdge - 1 : true;
  };
  auto inside = [&](int k0) {
    return tile_inside && k0 + kDepth <= p.k && clear_of_diagonal(x_side, row0, k0) && clear_of_diagonal(y_side, col0, k0);
  };
  Acc next_x[Reader::kLoads], next_y[Reader::kLoads];
  auto read = [&](int k0) {
    if (inside(k0)) {
      reader_x.read(k0, next_x);
      reader_y.read(k0, next_y);
      return false;
    }
    const bool wild_x = reader_x.read_masked(k0, next_x), wild_y = reader_y.read_masked(k0, next_y);
    return wild_x || wild_y;
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp % kWarpsDown * kWarpRows, warp_col = warp / kWarpsDown * kWarpCols;
  const int row = warp_row + lane / 8 * 4, col = warp_col + lane % 8 * 4;
  // Whether the warp's part of the tile has a term in the slab at all; in the blocks on the diagonals half of them have none.
  auto meets = [&](Side side, int first, int count, int k0) {
    return side == kUpToLine ? k0 <= first + count - 1 : side == kFromLine ? k0 + kDepth - 1 >= first : true;
  };

  Acc sum[kMicro][kMicro] = {};
  bool wild = read(tile.k_begin);
  reader_x.store(next_x, slab_x[0], row0);
  reader_y.store(next_y, slab_y[0], col0);
  wild = __syncthreads_or(wild);
  for (int k0 = tile.k_begin, now = 0; k0 < tile.k_end; k0 += kDepth, now ^= 1) {
    const bool more = k0 + kDepth < tile.k_end;
    bool next_wild = false;
    if (more) next_wild = read(k0 + kDepth);
    if (meets(x_side, row0 + warp_row, kWarpRows, k0) && meets(y_side, col0 + warp_col, kWarpCols, k0)) {
      if (!wild)
        multiply<Acc, kMicro, kDepth, kPitch>(slab_x[now] + row, slab_y[now] + col, sum);
      else
        multiply_masked<Acc, kMicro, kDepth, kPitch>(slab_x[now] + row, slab_y[now] + col, x_side, y_side, row0 + row, col0 + col, k0,
                                                     sum);
    }
    if (more) {
      reader_x.store(next_x, slab_x[now ^ 1], row0);
      reader_y.store(next_y, slab_y[now ^ 1], col0);
    }
    wild = __syncthreads_or(next_wild);
  }

#pragma unroll
  for (int r = 0; r < kMicro; ++r)
#pragma unroll
    for (int q = 0; q < kMicro / 4; ++q) {
      const int tile_row = row + r / 4 * kRowGroup + r % 4, tile_col = col + q * kColGroup;
      store_quad(c, p, row0 + tile_row, col0 + tile_col, &sum[r][q * 4]);
      if (p.triangular && tile.i != tile.j) {  // the mirror image of this tile lies above the diagonal
        const Acc zeros[4] = {};
        store_quad(c, p, col0 + tile_row, row0 + tile_col, zeros);
      }
    }
}

template <typename T, int kEdge, int kMicro>
cudaError_t launch_portable_as(const Product& p, const int* only_if, cudaStream_t stream) {
  const int64_t blocks = tile_count(p, kEdge) * p.batches;
  if (blocks > 2147483647) return cudaErrorInvalidConfiguration;
  portable_product<T, kEdge, kMicro><<<static_cast<unsigned>(blocks), threads_for(kEdge, kMicro), 0, stream>>>(p, only_if);
  return cudaGetLastError();
}

// Large tiles read least, but only many of them keep every multiprocessor busy; the smallest kernel has the shortest longest tile.
template <typename T>
cudaError_t launch_portable_sized(const Product& p, int multiprocessors, const int* only_if, cudaStream_t stream) {
  const int64_t large = tile_count(p, 128) * p.batches;
  if (large >= 3 * multiprocessors) return launch_portable_as<T, 128, 8>(p, only_if, stream);
  return launch_portable_as<T, 64, 4>(p, only_if, stream);
}

cudaError_t launch_portable(const Product& p, ElementType type, int multiprocessors, const int* only_if, cudaStream_t stream) {
  switch (type) {
    case kFloat32: return launch_portable_sized<float>(p, multiprocessors, only_if, stream);
    case kFloat64: return launch_portable_sized<double>(p, multiprocessors, only_if, stream);
    case kFloat16: return launch_portable_sized<__half>(p, multiprocessors, only_if, stream);
    case kBFloat16: return launch_portable_sized<__nv_bfloat16>(p, multiprocessors, only_if, stream);
  }
  return cudaErrorInvalidValue;
}
"""

# ======================================================================================================================
# 2. Binding and build
# ======================================================================================================================

# The only C++ that knows torch: it turns two tensors that the operator below has checked into a Product and launches it.
_CPP_BINDING = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/utils/pybind.h>

namespace {

ElementType element_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return kFloat32;
    case at::kDouble: return kFloat64;
    case at::kHalf: return kFloat16;
    case at::kBFloat16: return kBFloat16;
    default: TORCH_CHECK_TYPE(false, "tril_matmul: no kernel for ", type);
  }
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

// x, y: CUDA tensors (..., N, N) of the same shape, dtype and device; leading dimensions may be expanded.
at::Tensor product(at::Tensor x, at::Tensor y, int contraction) {
  TORCH_CHECK(x.is_cuda() && y.device() == x.device() && y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type() &&
                  x.dim() >= 2 && x.size(-1) == x.size(-2) && contraction >= kNN && contraction <= kTN,
              "tril_matmul: the binding was called with operands that the operator should have refused");
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor c = at::empty(x.sizes(), x.options());
  if (c.numel() == 0) return c;
  TORCH_CHECK_VALUE(x.size(-1) <= 2147483647 - 128, "tril_matmul: N = ", x.size(-1), " is too large; at most 2^31 - 129");

  Product p;
  if (!describe_batch(x, y, c, p)) {  // more than kMaxBatchDims leading dimensions, strided in unrelated ways
    x = x.contiguous(), y = y.contiguous();
    describe_batch(x, y, c, p);
  }
  p.x = x.const_data_ptr(), p.y = y.const_data_ptr(), p.c = c.mutable_data_ptr();
  p.m = p.n = p.k = static_cast<int>(x.size(-1));
  p.triangular = 1;
  p.contraction = static_cast<Contraction>(contraction);
  p.x_row = x.stride(-2), p.x_col = x.stride(-1), p.y_row = y.stride(-2), p.y_col = y.stride(-1);
  p.c_row = c.stride(-2), p.c_col = c.stride(-1);
  if (contraction == kTN) std::swap(p.x_row, p.x_col);
  if (contraction == kNT) std::swap(p.y_row, p.y_col);

  int multiprocessors = 0;
  cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, x.get_device());
  if (error == cudaSuccess)
    error = launch_portable(p, element_type(x.scalar_type()), multiprocessors, nullptr, c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(error == cudaSuccess, "tril_matmul: the CUDA kernel could not be launched on ", x.device(), ": ",
              cudaGetErrorString(error), ". The kernels are built for the GPUs that are visible when the file is imported; if this ",
              "one was not, import it again in a process that sees it.");
  return c;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("product", &product, pybind11::arg("x"), pybind11::arg("y"), pybind11::arg("contraction")); }
"""

_CUDA_SOURCES = [_CUDA_SHARED, _CUDA_SCHEDULE, _CUDA_PORTABLE]
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
    load = dict(
        name=name,
        cpp_sources=[_CUDA_SHARED, _CPP_BINDING],
        cuda_sources=list(_CUDA_SOURCES),
        extra_cflags=["-O2"],
        extra_cuda_cflags=flags,
        no_implicit_headers=True,  # torch's headers in the binding alone: the CUDA source compiles in a third of the time
    )
    if os.path.exists(os.path.join(cpp_extension._get_build_directory(name, False), f"{name}.so")):
        return cpp_extension.load_inline(**load)
    with _BuildNotice(", ".join(f"sm_{major}{minor}" for major, minor in capabilities)):
        return cpp_extension.load_inline(**load)


_EXTENSION = _build()

# ======================================================================================================================
# 3. The operator
# ======================================================================================================================

_NN, _NT, _TN = 0, 1, 2  # the contractions, as in the CUDA source
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_DTYPE_NAMES = "float32, float64, float16 or bfloat16"


def _check_operand(function, name, tensor):
    """Refuse what is not a (..., N, N) dense floating-point tensor; the message names the argument and what is accepted."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{function}: {name} must be a torch.Tensor, but is {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{function}: {name} must be a dense (strided) tensor, but has layout {tensor.layout}; use {name}.to_dense()")
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{function}: {name} must be {_DTYPE_NAMES}, but is {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.dim() < 2:
        raise ValueError(f"{function}: {name} must have at least 2 dimensions, (..., N, N), but has shape {tuple(tensor.shape)}")
    if tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(f"{function}: {name} must be square in its last two dimensions, but has shape {tuple(tensor.shape)}")


def _check_operands(function, A, B):
    """Refuse operands that do not fit each other. Raises TypeError, ValueError or RuntimeError."""
    _check_operand(function, "A", A)
    _check_operand(function, "B", B)
    if A.shape[-1] != B.shape[-1]:
        raise ValueError(
            f"{function}: A and B must have the same size N, but A has shape {tuple(A.shape)} and B has shape {tuple(B.shape)}"
        )
    for a, b in zip(reversed(A.shape[:-2]), reversed(B.shape[:-2]), strict=False):
        if a != b and a != 1 and b != 1:
            raise ValueError(
                f"{function}: the leading dimensions of A and B must broadcast, but are {tuple(A.shape[:-2])} and {tuple(B.shape[:-2])}"
            )
    if A.dtype != B.dtype:
        raise RuntimeError(
            f"{function}: A and B must have the same dtype, but A is {str(A.dtype).removeprefix('torch.')}"
            f" and B is {str(B.dtype).removeprefix('torch.')}"
        )
    if A.device != B.device:
        raise RuntimeError(f"{function}: A and B must be on the same device, but A is on {A.device} and B is on {B.device}")
    if A.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"{function}: A and B must be on a CPU or a CUDA device, but are on {A.device}")


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


def _product_cpu(X, Y, contraction):
    """The contraction of two CPU tensors (..., N, N) of the same shape and dtype."""
    if X.dtype in (torch.float16, torch.bfloat16):
        return _product_cpu(X.float(), Y.float(), contraction).to(X.dtype)
    N = X.shape[-1]
    C = X.new_zeros(X.shape)
    if X.dim() == 2:
        operands = X, Y, C
    else:
        operands = X.reshape(-1, N, N), Y.reshape(-1, N, N), C.view(-1, N, N)
    step = (_step_nn, _step_nt, _step_tn)[contraction]
    for k in range(0, N, _CPU_EDGE):
        step(*operands, k, min(N, k + _CPU_EDGE))
    return C


# ---- CUDA: our kernels, always. --------------------------------------------------------------------------------------


def _product_cuda(X, Y, contraction):
    """The contraction of two CUDA tensors (..., N, N) of the same shape, dtype and device."""
    if _EXTENSION is None:
        raise RuntimeError(
            "tril_matmul: a CUDA tensor needs the CUDA kernels, and they were not built when this file was imported, because no nvcc"
            f" was found (or no GPU was visible then). Install the CUDA toolkit {torch.version.cuda} and ninja, or set CUDA_HOME to"
            " where the toolkit lies, and import again."
        )
    return _EXTENSION.product(X, Y, contraction)


def _product(X, Y, contraction):
    batch = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
    X, Y = X.expand(*batch, *X.shape[-2:]), Y.expand(*batch, *Y.shape[-2:])
    return (_product_cuda if X.is_cuda else _product_cpu)(X, Y, contraction)


def tril_matmul(A, B):
    """The product of two lower triangular matrices, C = tril(A) @ tril(B).

    Args:
        A, B: tensors (..., N, N), N >= 0, of one dtype (float32, float64, float16 or bfloat16) on one device, with any strides. The
            leading dimensions broadcast as in torch.matmul. What stands above the diagonals is not read.

    Returns:
        C (..., N, N), contiguous, of the same dtype: C[i, j] = sum over k = j..i of A[i, k] * B[k, j], and exactly zero for i < j.

    Raises:
        TypeError: not a tensor, not dense, or of another dtype.
        ValueError: fewer than two dimensions, not square, sizes that differ or leading dimensions that do not broadcast.
        RuntimeError: dtypes or devices that differ; a CUDA tensor where the kernels could not be built; a launch that failed.
    """
    _check_operands("tril_matmul", A, B)
    return _product(A, B, _NN)


# ======================================================================================================================
# 4. KernelBench
# ======================================================================================================================


class ModelNew(torch.nn.Module):
    """KernelBench level 1, problem 15: the product of two lower triangular matrices. No parameters."""

    def forward(self, A, B):
        """C = tril(A) @ tril(B); see tril_matmul."""
        return tril_matmul(A, B)


_N = 4096


def get_inputs():
    """Two fresh lower triangular matrices (4096, 4096), float32, uniform in [0, 1), on the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.rand(_N, _N, device=device).tril() for _ in range(2)]


def get_init_inputs():
    """ModelNew takes no arguments."""
    return []

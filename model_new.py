"""This file multiplies triangular matrices in PyTorch: with a sixth of the work, on tensor cores, at float32 accuracy.

    import torch
    from model_new import tril_matmul

    A, B = (torch.randn(4096, 4096, device="cuda").tril().requires_grad_() for _ in range(2))
    C = tril_matmul(A, B)    # tril(A) @ tril(B)
    C.sum().backward()       # A.grad and B.grad are lower triangular, as A, B and C are

A dense product of N x N matrices takes 2 N^3 floating-point operations. A product of two triangles takes a sixth of
them, because only these terms exist:

    C[i, j] = sum over k = j..i of A[i, k] * B[k, j]      (i >= j, and exactly zero above the diagonal)

The functions take float32, float64, float16 or bfloat16 tensors of any strides. Leading dimensions broadcast. The
docstring of each function lists the shapes, and the errors that it raises. All functions but explain have gradients of
any order.

    tril_matmul(A, B)             tril(A) @ tril(B)
    triu_matmul(A, B)             triu(A) @ triu(B)
    lu_matmul(L, U)               tril(L) @ triu(U)
    transposed_a_matmul(A, B)     A.mT @ B for dense A and B
    triangular_matmul(A, X)       tril(A) @ X for a dense X. Options: upper, left, unitriangular, diagonal.
    triangular_inverse(L)         The inverse of tril(L). Options: upper, unitriangular.
    gram(X)                       X @ X.mT, which is symmetric. Options: transpose, structure.
    explain(A, B)                 Computes a product and tells which kernel computed it.
    ModelNew()(A, B)              Computes tril_matmul for KernelBench, level 1, problem 15.
    UpperModelNew()(A, B)         Computes triu_matmul for KernelBench, level 1, problem 14.
    TransposedAModelNew()(A, B)   Computes transposed_a_matmul for KernelBench, level 1, problem 16.

TriangularModelNew, GramModelNew and InverseModelNew are modules as well. check.py, the judge of this repository, uses
these modules.

The contract consists of two tables. The first table bounds errors. The error of an element of C is relative to the
same element of |A| |B|.

    setting                   largest error of an element
    -----------------------   --------------------------------------------------------------------------------------
    float32 on a GPU          The larger of 1.5e-6 and twice the error of cuBLAS in float32.
    float32, TF32 allowed     2^-10 more in large products, whose operands may be rounded to 11 bits.
    float16, bfloat16         The error of float32 sums on tensor cores, and one rounding of the result.
    float64                   2 sqrt(k) 2^-53 as a rule, and at most 3/8 k 2^-53 where all terms are alike.
    a CPU, a GPU before 8.0   The error of torch's own products.

  * The float32 bound is not promised if |A| |B| overflows or a product underflows. Inputs that were constructed to
    exceed the bound have reached 2.4e-6. Up to k = 8192 no input exceeds 5.3e-6.
  * On a CPU, torch's errors are larger if the result is a single row or column and its sums are long. On a CPU that
    supports bfloat16 products, set_float32_matmul_precision("medium") lets torch round float32 operands to 8 bits.

    subject                   promise
    -----------------------   --------------------------------------------------------------------------------------
    NaN and Inf               They reach an element of C if its sum over k = j..i meets them, and no other element.
                              Where |A| |B| overflows, parts of a sum may be Inf.
    determinism               The same input, strides and alignment give the same bits on every run on the same GPU.
    inputs                    No input is modified.
    streams                   The work runs on the current stream, and the host never waits for it.
    GPUs from 8.0 on          Only the kernels of this file compute. A build or a launch that fails raises an error.
    CPUs, GPUs before 8.0     torch's own products are used. On these GPUs the host waits for the results. In large
                              products of two lower or two upper triangles, blocks of zeros are not multiplied.

The file needs torch 2.9 or later, and Python 3.10 or later. With a GPU it also needs ninja, nvcc and a C++ compiler.
The first import compiles the kernels for the GPUs present. Every import initialises CUDA, in order to see these GPUs. A
process that has imported the file must therefore spawn, not fork, the processes that are to use a GPU.

The map lists the sections in order. `# ====` begins a part, `# ----` a section, and `// ----` a subsection of C++.

    1  CUDA source
         Types                      How the kernels and the C++ binding describe one product.
         Schedule                   The order of tiles, and the range of k that a tile sums.
         Policy                     Every decision of the host: kernels, tile sizes, splits, copies of operands.
         PTX                        One function for each instruction that has no name in CUDA C++.
         Launching                  What the launchers of all kernels share.
         Tiles of 64 x 64, part 1   Copies k-blocks into shared memory.
         The exact path             Sums only the terms that exist, on the CUDA cores.
         Tiles of 64 x 64, part 2   Reads k-blocks from shared memory, and writes C.
         The split-tf32 kernel      float32 products that are too small for the fp16x3 kernel.
         The mma kernel             Products on the tensor cores of any GPU from Ampere on.
         Launching                  The launchers of the exact path, the split-tf32 and the mma kernel.
         The skeleton               What Hopper's two kernels share: tile queue, roles of warps, barriers, zeros of C.
         16-bit                     Hopper's kernel for float16 and bfloat16.
         Packing                    Splits float32 operands into scaled pairs of float16.
         fp16x3                     Hopper's kernel for float32, which multiplies the pairs from Packing.
         Fix-up                     Corrects outliers, and computes products with Inf, NaN or too many outliers.
         Symmetric results          Copies the lower half of C to the upper half.
         Inverse                    Computes 64 rows of an inverse at a time.
         Launching                  The launchers of the fp16x3 kernel, and of products by any kernel.
    2  Binding and build
         Binding                    Checks tensors in C++, and describes them as products.
         Which kernel is asked for  Reads the environment variable TRIL_MATMUL_PATH.
         Build                      Compiles the kernels at import.
    3  The operator
         Private names of torch     All private names of torch that the file uses.
         Arguments                  Contractions, masks, and the checks of what a caller gives.
         Our kernels                Says which tensors the kernels of this file compute.
         torch's own products       The computation on CPUs, and on GPUs before compute capability 8.0.
         Computation                Products, inverses, their gradients, and their cost.
         Registration               The operators, as PyTorch knows them, with their derivatives.
         Dispatch                   The short way past torch's dispatcher, and when a call takes it.
         Public functions           What users call.
    4  KernelBench                  The modules, get_inputs and get_init_inputs.

tril_matmul 1.0, MIT licence (see LICENSE).
"""

import contextlib
import dis
import functools
import glob
import hashlib
import importlib.machinery
import importlib.util
import linecache
import math
import numbers
import operator
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.utils.flop_counter

__version__ = "1.0"
__all__ = ["tril_matmul", "triu_matmul", "transposed_a_matmul", "triangular_matmul", "gram", "lu_matmul"]
__all__ += ["triangular_inverse", "explain", "ModelNew", "UpperModelNew", "TransposedAModelNew"]
__all__ += ["TriangularModelNew", "GramModelNew", "InverseModelNew", "get_inputs", "get_init_inputs"]

# ==== 1. CUDA source ====

# ---- Types: how the kernels and the C++ binding describe one product, without any torch type. ----
#
# The product of two lower triangles and its two gradients are contractions of one form:
# C[m, n] = sum over k of X[m, k] * Y[k, n]. They are the partial derivatives of the scalar
# T(A, B, G) = sum over i >= k >= j of A[i,k] B[k,j] G[i,j], where G is the gradient of C:
#
#     name  result       X[m, k]  Y[k, n]  k runs over  X exists for  Y exists for
#     NN    C  = A B     A[m, k]  B[k, n]  n .. m       k <= m        k >= n
#     NT    dA = G B^T   G[m, k]  B[n, k]  0 .. n       k <= m        k <= n
#     TN    dB = A^T G   A[k, m]  G[k, n]  m .. N-1     k >= m        k >= n
#
# The binding swaps the strides of a transposed operand. So a kernel sees only X[m, k], Y[k, n] and a range of k.
_CUDA_TYPES = r"""
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

// The macros below are hooks for tests. tests/sanitize.py and tests/test_stress.py build copies of this file with
// #defines in place of the mark `[hooks]`. Without those #defines the macros expand to nothing. Other tests read the
// parts of this file between pairs of marks such as `[begin workspace]` and `[end workspace]`: see tests/helpers.py.
// [hooks]
#if defined(TRIL_MATMUL_RACECHECK)
#define IF_RACECHECK(...) __VA_ARGS__
// In racecheck builds every thread arrives at an mbarrier itself, because racecheck expects that. In all other builds
// one thread arrives for its warp, or for its team of several warps.
constexpr bool kEveryThreadArrives = true;
#else
#define IF_RACECHECK(...)
constexpr bool kEveryThreadArrives = false;
#endif
// How many arrivals an mbarrier counts per consumer warp.
[[maybe_unused]] constexpr int kWarpArrivals = kEveryThreadArrives ? 32 : 1;
#if defined(TRIL_MATMUL_INITCHECK)
#define IF_INITCHECK(...) __VA_ARGS__
#else
#define IF_INITCHECK(...)
#endif
#if defined(TRIL_MATMUL_DELAY)   // tests/test_stress.py adds delays, and checks that they break nothing
#define IF_DELAY(...) __VA_ARGS__
#else
#define IF_DELAY(...)
#endif

// The table at the head of this section defines the three contractions.
enum Contraction : int { kNN = 0, kNT = 1, kTN = 2 };
enum Mask : int { kFull = 0, kLower = 1, kUpper = 2, kSymmetric = 3 };   // only a result can be kSymmetric
// Says which elements an operand has. A line is a row m of X or a column n of Y. The operand has the elements with
// (k - line) * KRange <= 0. is_in_range computes this product, so the values of the enum matter.
enum KRange : int { kFromDiagonal = -1, kAll, kToDiagonal };
enum ElementType : int { kFloat32, kFloat64, kFloat16, kBFloat16 };
// The value of TRIL_MATMUL_PATH: which kernels the user allows.
enum Path : int { kAutomaticPath = 0, kExactPath = 1, kMmaPath = 2, kHopperPath = 3 };

// The most rows or columns of a matrix. Indices have 32 bits. The last tile may reach beyond the last row or column, so
// the largest size lies below the largest index.
constexpr int64_t kMaxSize = 2147483647 - 1024;
constexpr int kMaxBatchDims = 8;

// Describes one product, or a batch of products of one size. Strides are in elements, and 0 for expanded dimensions.
// A kernel writes all of C, including the zeros above its diagonal.
struct Product {
  const void* x;
  const void* y;
  void* c;
  int64_t x_row, x_col, y_row, y_col, c_row, c_col;   // strides; c_row or c_col is 1
  int64_t c_batch;           // the stride between the Cs of successive products
  int m, n, k;               // X is m x k, Y is k x n, C is m x n
  KRange x_range, y_range;   // kAll for dense operands; a triangular operand is square
  int c_lower;               // 1: C is square, and only its lower triangle is computed
  int symmetric;             // 1: Y is X transposed; the lower triangle of C is also written to the upper one
  int allow_tf32;            // 1: 11 significant bits of float32 operands are enough (torch's TF32)
  int64_t batches;           // batch_size[0] * ... * batch_size[batch_dims - 1]
  int batch_dims;
  ElementType type;
  // The sizes of the batch dimensions, and the strides of X and of Y in these dimensions
  int64_t batch_size[kMaxBatchDims], x_batch[kMaxBatchDims], y_batch[kMaxBatchDims];
};

struct Gpu {
  // The number of streaming multiprocessors, and the first number of the compute capability (9 for 9.0)
  int sms, major;
  struct CUstream_st* stream;   // the cudaStream_t on which all kernels of a call run
  // Allocates device memory for this call. Only later work of the same stream may get the same memory.
  void* (*allocate)(const Gpu& gpu, int64_t bytes);
};

// What packing records about a product of the fp16x3 kernel, for the later kernels and for the host. The Controls lie
// in device memory.
struct Control {
  // 1: fixup_kernel computes all of this product, because an operand has an Inf, a NaN or too many outliers
  int fallback;
  int outliers;   // how many elements are too small to be packed, compared with the largest of their block
};

// The workspace of an fp16x3 launch begins with an 8-byte word, which has the flags of Progress. The Controls of all
// products follow it.
[[maybe_unused]] constexpr int64_t kControlsOffset = 8;

enum Kernel : int { kExactKernel, kSplitTf32Kernel, kSixteenBitKernel, kMmaKernel, kFp16x3Kernel };
// The name that explain() gives to each kernel, in the order of Kernel.
[[maybe_unused]] constexpr const char* kKernelNames[] = {"exact", "tf32", "half", "mma", "hopper"};
"""

_CUDA_LAUNCHERS = r"""
// ---- Launchers: what the binding calls.

#include <cuda_runtime_api.h>

// Returns the kernel that computes a product. `path` is the user's TRIL_MATMUL_PATH.
Kernel kernel_for(const Product& product, const Gpu& gpu, Path path);

// Returns which operands a kernel cannot read as they are: bit 0 for x, bit 1 for y.
int operands_to_copy(const Product& product, Kernel kernel);

// Whether the kernel computes both triangles of a symmetric 16-bit product. Otherwise it computes the lower triangle,
// and the kernel or `mirror` copies it to the upper one. Either way C[i, j] and C[j, i] have the same bits. The policy
// takes the faster way.
bool is_computed_whole(const Product& product, const Gpu& gpu);

// Raises a Python error if `error` is not cudaSuccess. The symbol is hidden, because other libraries may also have
// a function of this name.
__attribute__((visibility("hidden"))) void check(cudaError_t error);

// Launches all kernels of a product on the current device, which `gpu` describes. The fp16x3 kernel's workspace
// has the Controls of all products at kControlsOffset.
void launch_product(const Product& p, Kernel kernel, const Gpu& gpu);

// Computes rows 64 * row to 64 * row + 63 of p.c, the inverse of the lower triangular p.x (float32 or float64).
// `before` and `unit` are explained at invert_rows.
void launch_inverse(const Product& p, int row, const void* before, bool unit, const Gpu& gpu);

// Computes the gradients dx = G y^T and dy = x^T G of the float32 product x y of two triangles. The forward product has
// left both operands packed in its workspace, `kept`, which has `bytes` bytes. The function returns false, and launches
// nothing, in two cases. In the first, a workspace made now for `product` would have another size than `bytes`, for
// example because TF32 was switched since the forward. In the second, `dx` has another TF32 setting than `product`,
// because another thread has switched TF32 between the two descriptions.
bool launch_gradients(const Product& product, const Product& dx, const Product& dy, void* kept, int64_t bytes,
                      const Gpu& gpu);
"""

# ---- Schedule: the arithmetic of tiles. ----
#
# Takes a Product and the number of a tile. Produces the position of this tile in C, and the range of k that it sums.
#
# The length of a tile is the number of k that it sums. Where an operand is triangular, tiles differ in length. The
# longest tiles have the smallest numbers, and begin first. Otherwise one SM could begin a long tile last, and still
# work on it when all other SMs are idle. find_tile reads no table in memory, so a CTA finds its tile in a few
# instructions.
_CUDA_SCHEDULE = r"""
// ---- Schedule: arithmetic.

#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define DEVICE __device__ inline
#define HOST_DEVICE __host__ __device__ inline

// The edge of a block of an operand, in elements. The k-blocks of the 16-bit and the fp16x3 kernel are as deep.
constexpr int kBlock = 64;

HOST_DEVICE int64_t triangle(int64_t n) { return n * (n + 1) / 2; }
// The arguments are unsigned, because a signed division takes more instructions.
HOST_DEVICE int ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Returns the largest r with triangle(r) <= q. The float root is r or r + 1. The second line corrects it to r.
DEVICE int triangle_root(int q) {
  const uint32_t r = sqrt(8 * float(q) + 1) / 2;
  return r - (uint64_t(r) * (r + 1) > 2 * uint32_t(q));
}

// ---- Schedule: an operand tile.

// An operand tile is 64 x 64 elements of 16 bits in shared memory, as wgmma reads them: 64 rows of 128 bytes in the
// 128-byte swizzle. The swizzle permutes the eight 16-byte chunks of a row by the row's number.
constexpr int kOperandBytes = kBlock * kBlock * 2;

// Returns the offset of an element in its operand tile, in bytes.
DEVICE int swizzled(int row, int col) { return row * 128 + (((col >> 3) ^ (row & 7)) << 4) + ((col & 7) << 1); }

// ---- Schedule: the products of a batch.

// Calls f(d, index) for each batch dimension d. `index` is the index of product `number` in dimension d.
template <typename F>
DEVICE void for_each_batch_dim(const Product& p, int number, const F& f) {
  // Without batch dimensions `number` is 0, and the only call is f(0, 0), which is harmless
  uint32_t remainder = number;
  NO_UNROLL for (int d = p.batch_dims - 1; d > 0; --d) {   // each dimension but the first takes a division
    const uint32_t size = p.batch_size[d];
    f(d, remainder % size);
    remainder /= size;
  }
  f(0, remainder);
}

// Returns the offset of product `number` in an operand with these batch strides, in elements.
DEVICE int64_t batch_offset(const Product& p, const int64_t (&strides)[kMaxBatchDims], int number) {
  int64_t offset = 0;
  for_each_batch_dim(p, number, [&](int d, uint32_t index) { offset += index * strides[d]; });
  return offset;
}
// Returns the C of product `number`.
template <typename T>
DEVICE T* c_matrix(const Product& p, int number) { return static_cast<T*>(p.c) + uint32_t(number) * p.c_batch; }

// ---- Schedule: what may be multiplied, and the range of k that follows.

enum Operand : int { kX, kY };

// Whether k is the row index of an operand as the fp16x3 kernel packs it. Otherwise k is its column index. A triangular
// operand is packed as a lower triangle, which determines its row index. A dense operand keeps its order in memory,
// with one exception: k is never the row index of X alone. So k is the row index of neither operand (NT), of Y alone
// (NN), or of both (TN). The fp16x3 kernel has one version for each of these three cases.
HOST_DEVICE bool k_is_row(Operand operand, const Product& p) {
  const bool x_k_is_row =
      p.x_range == KRange::kFromDiagonal || (!p.x_range && p.y_range != KRange::kToDiagonal && p.x_row < p.x_col);
  return x_k_is_row || (operand == kY && (p.y_range == KRange::kFromDiagonal || (!p.y_range && p.y_col < p.y_row)));
}

DEVICE bool is_in_range(KRange k_range, int line, int k) { return (k - line) * k_range <= 0; }

// Returns the first k-block that may meet the diagonal of an operand whose lines begin with block `line` of 64 lines. A
// dense operand has no diagonal, so the result is a number beyond every k-block.
DEVICE int first_on_diagonal(KRange k_range, int line) { return k_range ? line : int(kMaxSize); }

// Whether a kernel has to write zeros above the diagonal of C.
HOST_DEVICE bool has_zeros(const Product& p) { return p.c_lower && !p.symmetric; }

// Whether X, Y and C are triangles: tril_matmul and its gradients.
HOST_DEVICE bool all_triangular(const Product& p) { return p.x_range && p.y_range && has_zeros(p); }

// Whether an operand is triangular. In place of the missing elements of such an operand, tensor cores multiply zeros. A
// zero that meets an Inf or a NaN of the other operand makes a NaN.
HOST_DEVICE bool is_masked(const Product& p) { return p.x_range || p.y_range; }

// Whether the 16-bit kernel stores each element of a symmetric C both below and above the diagonal, as the kernels of
// 64 x 64 tiles do. Otherwise a launch of `mirror` copies the lower triangle to the upper one afterwards.
HOST_DEVICE bool is_stored_twice(const Product& p) { return p.symmetric && !is_masked(p); }

// A tile with rows [row, row_end) and columns [col, col_end) of C sums k in [first_k, end_of_k). All arguments are in
// one unit: elements, or blocks of one size. `depth` is the number of all k.
HOST_DEVICE int first_k(KRange x_range, KRange y_range, int row, int col) {
  return max(x_range == KRange::kFromDiagonal ? row : 0, y_range == KRange::kFromDiagonal ? col : 0);
}
HOST_DEVICE int end_of_k(KRange x_range, KRange y_range, int row_end, int col_end, int depth) {
  return min(min(depth, x_range == KRange::kToDiagonal ? row_end : depth),
             y_range == KRange::kToDiagonal ? col_end : depth);
}

// ---- Schedule: the order of tiles, the longest first.

struct Tile {
  int i, j;             // row and column of the tile, in tiles
  int k_begin, k_end;   // the tile sums k in [k_begin, k_end), in units of TileOrder
};

// The order of the tiles of one C, which has R rows and S columns of tiles. The tiles come in groups. All tiles of a
// group have the same length, and the group with the longest tiles comes first. With a triangular operand there are G
// groups, where G is the number of tile edges that cover all k. A tile of group g sums G - g tile edges of k. These are
// the groups:
//
//   C       triangular   number of tiles in group g       what the group is
//   lower   X and Y      g + 1                            a diagonal (NN), a column (NT) or a row (TN)
//   lower   X or Y       g + 1, or R - g (groups_shrink)  a row (if X is triangular) or a column (if Y is)
//   all     X and Y      2 g + 1                          a row and a column that meet on the diagonal
//   all     X or Y       S or R                           a row (if X is triangular) or a column (if Y is)
//   lower   none         all tiles: one group             its tiles come by diagonals, from the lower left corner
//   all     none         all tiles: one group             its tiles come in bands of rows
//
// A band is eight rows of tiles. The tiles of a band share operands, so they find these operands in the L2 cache.
struct TileOrder {
  int rows, cols;   // how many rows and columns of tiles one C has
  KRange x_range, y_range;
  int c_lower;
  // The edge of a tile, and the length of k, rounded up. Both are counted in units of the argument `unit` of `make`
  int edge, depth;

  // `edge` and `unit` are in elements. In the result, `edge`, `depth` and the k of every Tile are counted in units of
  // `unit` elements.
  HOST_DEVICE static TileOrder make(const Product& p, int edge, int unit = 1) {
    return {ceil_div(p.m, edge), ceil_div(p.n, edge), p.x_range,          p.y_range,
            p.c_lower,           edge / unit,         ceil_div(p.k, unit)};
  }
  HOST_DEVICE bool masked() const { return x_range || y_range; }
  HOST_DEVICE bool both_masked() const { return x_range && y_range; }
  // Whether groups are rows of tiles and not columns. This has a meaning only if exactly one operand is triangular.
  HOST_DEVICE bool by_rows() const { return !y_range; }
  // Whether later groups have fewer tiles. This has a meaning only if C is lower and an operand is triangular. With two
  // triangular operands it is false.
  HOST_DEVICE bool groups_shrink() const {
    return by_rows() ? x_range == KRange::kToDiagonal : !x_range && y_range == KRange::kFromDiagonal;
  }

  HOST_DEVICE int64_t count() const { return c_lower ? triangle(rows) : int64_t(rows) * cols; }
  HOST_DEVICE int groups() const { return !masked() ? 1 : x_range ? rows : cols; }
  HOST_DEVICE int64_t tiles_in_group(int group) const {
    return !masked()       ? count()
           : c_lower       ? (groups_shrink() ? rows - group : group + 1)
           : both_masked() ? 2 * group + 1
                           : (by_rows() ? cols : rows);
  }
  // Returns the length of each tile of the group: how many k it sums, counted in the units of `make`.
  HOST_DEVICE int length(int group) const { return masked() ? min(depth, (groups() - group) * edge) : depth; }
  // Returns the sum of the lengths of all tiles.
  int64_t work() const {
    int64_t sum = 0;
    for (int group = 0; group < groups(); ++group) sum += tiles_in_group(group) * length(group);
    return sum;
  }

  DEVICE Tile make_tile(int i, int j) const {
    return {i, j, first_k(x_range, y_range, i * edge, j * edge),
            end_of_k(x_range, y_range, (i + 1) * edge, (j + 1) * edge, depth)};
  }
  // Returns the tile at position tile_index of the order. It finds the group first, by a square root or a division,
  // and then the position within the group.
  DEVICE Tile find_tile(int tile_index) const {
    // Returns the row or column of tiles that forms this group. Called only if exactly one operand is triangular
    auto group_to_line = [&](int group) {
      return (by_rows() ? x_range : y_range) == KRange::kToDiagonal ? groups() - 1 - group : group;
    };
    int i, j;
    if (c_lower && masked() == both_masked()) {
      // root * (root + 1) fits 32 bits, which take half the instructions of 64 bits
      const uint32_t root = triangle_root(tile_index), first = root * (root + 1) / 2;
      const int group = root, index_in_group = tile_index - first;
      i = x_range == KRange::kFromDiagonal ? group : index_in_group + rows - 1 - group;
      j = y_range == KRange::kToDiagonal ? rows - 1 - group : index_in_group;
    } else if (c_lower) {
      // Exactly one operand is triangular. If groups shrink, tiles are counted from the last one, so that groups grow
      const int rising_index = groups_shrink() ? int(count()) - 1 - tile_index : tile_index,
                root = triangle_root(rising_index), index_in_group = rising_index - int(triangle(root));
      const int line = group_to_line(groups_shrink() ? rows - 1 - root : root),
                index_in_line = groups_shrink() ? root - index_in_group : index_in_group;
      i = by_rows() ? line : line + index_in_line;
      j = by_rows() ? index_in_line : line;
    } else if (both_masked()) {
      // A group begins with its tile on the diagonal. The other tiles of its row follow, and then the tiles of its
      // column. Tiles (i, j) and (j, i) are in one group. So in a symmetric product both have the same length and the
      // same number of splits
      int group = triangle_root(tile_index / 2);   // the square root of tile_index, rounded down, or one less
      group += uint32_t(group + 1) * (group + 1) <= uint32_t(tile_index);
      const int index_in_line = tile_index - group * group;
      i = index_in_line <= group ? group : index_in_line - group - 1;
      j = index_in_line <= group ? group - index_in_line : group;
      if (x_range == KRange::kToDiagonal) {
        i = rows - 1 - i;
        j = rows - 1 - j;
      }
    } else {
      constexpr int kBand = 8;   // rows of tiles in a band
      const uint32_t width = !masked() ? kBand * cols : by_rows() ? cols : rows;
      const uint32_t group = tile_index / width, index_in_group = tile_index % width;
      if (masked()) {
        i = by_rows() ? group_to_line(group) : index_in_group;
        j = by_rows() ? index_in_group : group_to_line(group);
      } else {
        const uint32_t first = group * kBand, height = min(kBand, rows - int(first));
        i = first + index_in_group % height;
        j = index_in_group / height;
      }
    }
    return make_tile(i, j);
  }
};

// ---- Schedule: tiles of 64 x 64, in elements, for all kernels but the 16-bit and the fp16x3 kernel.

// What a CTA computes: one split of a tile. A split has all rows and columns of the tile, and a part of its k.
template <typename T>
struct WorkTile {
  const T *x, *y;          // the matrices of one product of the batch
  T* c;
  Tile tile;               // tile.i is -1 if the CTA has nothing to do
  int splits, split;       // the number of splits of the tile, a power of two, and the index of this CTA's split
  int k_begin, k_blocks;   // where the split begins, in elements, and how many k-blocks it has
  DEVICE WorkTile(const Product& p, int batch, const Tile& tile, int splits, int split, int block_k)
      : x(static_cast<const T*>(p.x)),
        y(static_cast<const T*>(p.y)),
        c(c_matrix<T>(p, batch)),
        tile(tile),
        splits(splits),
        split(split) {
    for_each_batch_dim(p, batch, [&](int d, uint32_t index) {
      x += index * p.x_batch[d];
      y += index * p.y_batch[d];
    });
    const int all_k_blocks = ceil_div(tile.k_end - tile.k_begin, block_k), log_splits = __ffs(splits) - 1,
              first_k_block = all_k_blocks * split >> log_splits;
    k_begin = tile.k_begin + first_k_block * block_k;
    k_blocks = (all_k_blocks * (split + 1) >> log_splits) - first_k_block;
  }
};

// Says which CTAs compute which tile. Tiles are numbered by falling length. If any tile is split, clusters have four
// CTAs. All four CTAs of a cluster share the k of a tile with a low number. Two CTAs share the k of each of the
// following tiles. One CTA computes each remaining tile. docs/kernel.md has a picture.
struct SplitPlan {
  static constexpr uint32_t kMostSplits = 4, kMostClusters = 256;
  TileOrder tile_order;
  uint32_t tiles;          // the number of tiles of one product; 0 if no tile is split
  uint32_t cluster_size;   // kMostSplits, or 1 if no tile is split
  // One entry per cluster, in launch order: four times the number of its first tile, plus log2 of the number of splits
  // per tile. It is unused if no tile is split.
  uint16_t order[kMostClusters];
  int64_t clusters;        // the number of clusters of one product
};

// Returns what the CTA with this rank in this cluster computes. Successive clusters belong to successive products of a
// batch. A CTA cannot copy its first k-block before this function returns. Divisions are slow, so they are done only
// for a batch, and in find_tile for some orders.
template <typename T>
DEVICE WorkTile<T> find_work(const Product& p, const SplitPlan& plan, uint32_t cluster, uint32_t rank, int block_k) {
  int batch = 0, splits = 1, split = 0;
  if (p.batches > 1) {
    batch = cluster % uint32_t(p.batches);
    cluster /= uint32_t(p.batches);
  }
  uint32_t tile = cluster;
  if (plan.cluster_size > 1) {
    const uint32_t entry = plan.order[cluster], log_splits = entry % 4;
    tile = entry / 4 + (rank >> log_splits);
    splits = 1 << log_splits;
    split = rank % splits;
    if (tile >= plan.tiles) return {p, 0, {-1}, 1, 0, block_k};
  }
  return {p, batch, plan.tile_order.find_tile(tile), splits, split, block_k};
}

// ---- Schedule: the tiles of the 16-bit and the fp16x3 kernel, in blocks, each found by its number.

// The edge of an fp16x3 tile and of a large 16-bit tile, in elements. A cluster of two CTAs computes such a tile.
constexpr int kTileEdge = 256;

// A tile of C, or one split of it, as a cluster computes it. Rows, columns and k are in blocks of 64.
struct alignas(16) ClusterTile {
  int row, col, cols;   // the first row, or -1 if no tile is left; the first column; the number of columns
  int batch;            // which product of the batch it is
  int k_begin, k_end;   // the k-blocks that are summed: [k_begin, k_end)
  int pair_half;        // 0: an ordinary tile; 1 or 2: the first or second half of a diagonal pair (see ClusterTiles)
  int split, splits;    // the index of this split, and the number of splits; take_split sets both
  int partial_slot;     // where the partial sums of the tile's first split go; find_split sets it
  IF_DELAY(int tile_seq;)   // the number of the tile among the tiles of its cluster

  // Divides the tile into `parts` splits, and reduces it to the split with this number.
  DEVICE void take_split(int number, int parts) {
    split = number;
    splits = parts;
    if (parts == 1) return;
    const uint32_t length = k_end - k_begin, count = parts;   // an unsigned division takes fewer instructions
    k_end = k_begin + length * (number + 1) / count;
    k_begin += length * number / count;
  }
};

// Numbers the tiles of a batch, the longest first. At each position of C, the tiles of all products have successive
// numbers. The 16-bit kernel calls find_tile. Its numbers stand for whole tiles, for column halves of tiles (see
// column_split_tiles), and for halves of diagonal pairs (see diagonal_pairs). The fp16x3 kernel calls find_split. Its
// numbers stand for splits of whole tiles.
struct ClusterTiles {
  TileOrder order;
  int batches;
  // The first column_split_tiles tiles are computed as two column halves each, so each of these tiles has two numbers.
  int column_split_tiles;
  // Whether the last tiles are halves of diagonal pairs. A pair has three tiles of a symmetric C. Tiles a and b lie on
  // the diagonal. The third tile has the rows of b and the columns of a. One CTA computes one half of a pair.
  bool diagonal_pairs;
  int count;                // how many tile numbers there are
  int splits = 1;           // how many CTAs of a cluster share the k-blocks of a tile
  int clusters;             // how many clusters are launched
  int tail_tiles;           // how many further tiles have no number, because a launch of their own computes them
  // The most k-blocks of a split, if its tile is split. With a triangular operand, every longer tile is split
  int longest;
  int num_split_tiles;      // how many tiles of a dense product are split, counted from the first
  // How many splits of one product store their partial sums in memory: all splits but the last one of each tile
  int partial_slots;

  // Returns the tile that has this number, with the range of its k-blocks.
  DEVICE ClusterTile find_tile(uint32_t number) const {
    const int edge = order.edge, depth = order.depth;
    const bool is_column_half = number < 2u * column_split_tiles;
    uint32_t tile = is_column_half ? number / 2 : number - column_split_tiles;
    int batch = 0;
    if (batches > 1) {
      batch = tile % batches;
      tile /= batches;
    }
    // With diagonal pairs, the last numbers stand for the tiles on the main diagonal and directly below it. last_index
    // is the position among these numbers. The first beside_diagonal of them stand for the tiles directly below the
    // diagonal that belong to no pair. Each of the remaining numbers stands for one half of a pair. With an odd number
    // of rows the last pair has only tile a, and only its first half
    const int last_index = diagonal_pairs ? int(tile - triangle(order.rows - 2)) : -1;
    const int beside_diagonal = (order.rows - 1) / 2;
    if (diagonal_pairs && last_index >= beside_diagonal) {
      const int on_diagonal = last_index - beside_diagonal, first_block = on_diagonal / 2 * 2 * edge;
      return {first_block + edge, first_block, edge, batch, 0, depth, on_diagonal % 2 + 1};
    }
    const Tile ordered =
        last_index >= 0 ? order.make_tile(2 * last_index + 2, 2 * last_index + 1) : order.find_tile(tile);
    const int row = ordered.i * edge;
    const int col = ordered.j * edge + (is_column_half && number % 2 ? edge / 2 : 0);
    const int cols = is_column_half ? edge / 2 : edge;
    // A column half sums only the k that its own columns need. There is one exception: in a product of two triangles
    // with a full C, a column half sums the k of its whole tile. So the tiles (i, j) and (j, i) of a symmetric C meet
    // the same Inf
    if (!is_column_half || (order.both_masked() && !order.c_lower))
      return {row, col, cols, batch, ordered.k_begin, ordered.k_end};
    // Every half has at least one k-block, even if it lies beyond the last column of C
    const int k_begin = min(first_k(order.x_range, order.y_range, row, col), depth - 1);
    const int k_end = end_of_k(order.x_range, order.y_range, row + edge, col + cols, depth);
    return {row, col, cols, batch, k_begin, k_end};
  }

  // Returns the k-block at position k_index of a tile's sum. A tile that has the k-block in the middle of all k begins
  // with this k-block, and wraps around at the end of its own k. So tiles that begin at the same time read the same
  // blocks.
  DEVICE int k_block(const ClusterTile& tile, int k_index) const {
    const int middle = order.depth / 2;
    const int k = (tile.k_begin <= middle && middle < tile.k_end ? middle : tile.k_begin) + k_index;
    return k < tile.k_end ? k : k - (tile.k_end - tile.k_begin);
  }

  // The tiles of a group have equal lengths and equally many splits. A dense product has two groups: its split tiles,
  // and its other tiles.
  HOST_DEVICE int groups() const { return order.masked() ? order.groups() : 2; }
  HOST_DEVICE int64_t tiles_in_group(int group) const {
    return order.masked() ? order.tiles_in_group(group)
           : group == 0   ? num_split_tiles
                          : order.count() - num_split_tiles;
  }
  HOST_DEVICE int splits_in_group(int group) const {
    return order.masked() || group == 0 ? ceil_div(order.length(group), longest) : 1;
  }

  // Returns the split that has this number. In each product of the batch, the splits of a tile follow each other. The
  // last split of a tile waits for the sums of its other splits, which have all begun before, since their numbers are
  // smaller.
  DEVICE ClusterTile find_split(uint32_t number) const {
    const uint32_t products = batches, batch = number % products, index_in_product = number / products;
    // first_tile is the number of the group's first tile. `remaining` counts splits from the first split of this tile
    uint32_t remaining = index_in_product, first_tile = 0, group = 0, splits, group_tiles;
    for (; (splits = splits_in_group(group)) > 1 && remaining >= (group_tiles = tiles_in_group(group)) * splits;
         ++group) {
      remaining -= group_tiles * splits;
      first_tile += group_tiles;
    }
    const uint32_t index_in_group = remaining / splits;
    ClusterTile tile = find_tile((first_tile + index_in_group) * products + batch);
    tile.take_split(remaining - index_in_group * splits, splits);
    // Each earlier tile of this product has one slot fewer than it has splits
    tile.partial_slot = batch * partial_slots + index_in_product - tile.split - (first_tile + index_in_group);
    return tile;
  }
};

"""

# ---- Policy: every decision of the host. ----
#
# Takes a Product and a Gpu. Produces the kernel that computes the product, and the operands that are copied first. Also
# produces the tiles, the number of their splits, and whether both triangles of a symmetric product are computed. No
# other section chooses kernels, tiles or splits.
#
# Most of the constants were fitted to measurements on an H200 (132 SMs, torch 2.11, CUDA 13). A comment that begins
# with a date gives the day of the measurements, also for the constants after it, up to the next date. The records are
# benchmarks/results/forward.json, family.json, batch.json, peers.json and mma.json. docs/limits.md compares the kernels
# at the sizes where another one becomes faster. On another GPU other values may be faster. Every kernel is correct for
# every product that it is given. So no value makes a result wrong, with one exception: kMinHopperSms is a requirement.
# kMaxSplitTf32K was also chosen to keep errors small.
_CUDA_POLICY = r"""
#include <numeric>

// ---- Policy: the splits of the split-tf32 and the mma kernel.

// 2026-11-24. Only tiles of more than two k-blocks are split, since every split takes time to start and to end. The
// k-blocks of 16-bit types take the least time. With these types, no tile is split unless the longest tile of the
// product has at least five k-blocks.
constexpr int kMinSplitKBlocks = 2, kMinSharedKBlocks16Bit = 5;
// An even share is the number of k-blocks of all tiles, divided by the number of CTAs that the GPU holds at once. If
// the GPU has no room for all clusters at once, only tiles of more than 8 / 5 of an even share are split.
constexpr int64_t kCrowdedShareNumerator = 8, kCrowdedShareDenominator = 5;
// The search for the length of splits goes up in steps of a 32nd of that length.
constexpr int64_t kLongestStepFraction = 32;

// Returns the plan with the shortest splits with which the GPU has room for all clusters at once. If the GPU has no
// room even for one CTA per tile, the splits are the shortest that kCrowdedShareNumerator allows. If no such plan
// exists, no tile is split. The GPU has room for clusters_at_once clusters. With only one CTA per SM it has room for
// first_clusters clusters.
inline SplitPlan choose_split_plan(const Product& p, int block_k, int64_t clusters_at_once, int64_t first_clusters) {
  const TileOrder tile_order = TileOrder::make(p, kBlock), in_k_blocks = TileOrder::make(p, kBlock, block_k);
  const int64_t tiles = tile_order.count(), ctas_at_once = clusters_at_once * SplitPlan::kMostSplits;
  auto length = [&](int group) { return in_k_blocks.length(group); };
  const int64_t even_share = ctas_at_once ? p.batches * in_k_blocks.work() / ctas_at_once : in_k_blocks.depth;
  const int min_shared_k_blocks = block_k == kBlock ? kMinSharedKBlocks16Bit : 0;
  for (int64_t longest = std::max<int64_t>(kMinSplitKBlocks, even_share);
       longest < length(0) && length(0) >= min_shared_k_blocks; longest += 1 + longest / kLongestStepFraction) {
    int64_t by_all = 0, by_half = 0;   // how many tiles four CTAs share, and how many two CTAs share
    for (int group = 0; group < tile_order.groups() && length(group) > longest; ++group)
      (length(group) > 2 * longest ? by_all : by_half) += tile_order.tiles_in_group(group);
    by_all += by_half % 2;
    by_half -= by_half % 2;
    const int64_t alone = tiles - by_all - by_half;
    const int64_t clusters = by_all + by_half / 2 + (alone + SplitPlan::kMostSplits - 1) / SplitPlan::kMostSplits;
    if (clusters > SplitPlan::kMostClusters) continue;
    const bool crowded = clusters * p.batches > clusters_at_once;
    const bool is_worth_it = tiles * p.batches > ctas_at_once &&
                             kCrowdedShareDenominator * longest >= kCrowdedShareNumerator * even_share;
    if (crowded && !is_worth_it) continue;
    SplitPlan plan = {tile_order, uint32_t(tiles), SplitPlan::kMostSplits, {}, clusters};
    // loads[t] is the number of k-blocks of the cluster whose first tile is t. This number is computed as if all
    // tiles of the cluster were as long as the first one
    int64_t loads[4 * SplitPlan::kMostClusters], tile = 0, group_end = 0;
    for (int cluster = 0, group = -1; cluster < clusters; ++cluster) {
      const int log_splits = cluster < by_all ? 2 : cluster < by_all + by_half / 2 ? 1 : 0;
      const int tiles_of_cluster = 4 >> log_splits;
      while (tile >= group_end) group_end += tile_order.tiles_in_group(++group);
      plan.order[cluster] = uint16_t(4 * tile + log_splits);
      loads[tile] = length(group) * tiles_of_cluster;
      tile += tiles_of_cluster;
    }
    // The clusters come in falling order of load. If the GPU holds all clusters at once, the clusters that give each SM
    // its first CTA come in rising order instead. So an SM whose first CTA has a small load gets a second CTA with a
    // larger load
    std::stable_sort(plan.order, plan.order + clusters, [&](int a, int b) { return loads[a / 4] > loads[b / 4]; });
    if (!crowded) std::reverse(plan.order, plan.order + std::min(clusters, first_clusters / p.batches));
    return plan;
  }
  return {tile_order, 0, 1, {}, tiles};
}

// ---- Policy: the splits of the fp16x3 kernel.

// 2026-11-23. A split costs about as much time as one k-block. So tiles of at most four k-blocks are not split.
constexpr int kMinFp16x3SplitKBlocks = 4;
// With a triangular operand, the length of a split is bounded by the average work of a cluster, in k-blocks. If the
// average is below 40 k-blocks, the bound is 1.25 times the average, since more splits cost more than they save. If the
// average is below 20 k-blocks and the launch has two gradients, the bound is 1.5 times the average.
constexpr int64_t kFewKBlocks = 40, kFewKBlocksOfGradients = 20;

// Returns the tiles of the fp16x3 kernel. `products` is the number of products of one size that share the clusters: 2
// if a launch has two gradients, and 1 otherwise.
inline ClusterTiles choose_split_tiles(const Product& p, int clusters, int products) {
  const TileOrder order = TileOrder::make(p, kTileEdge, kBlock);
  ClusterTiles tiles = {order, int(p.batches)};
  tiles.longest = max(1, order.depth);
  if (order.masked()) {
    int64_t most_k_blocks = order.work() * p.batches * products / clusters;
    if (most_k_blocks < kFewKBlocks)
      most_k_blocks += most_k_blocks / (products == 2 && most_k_blocks < kFewKBlocksOfGradients ? 2 : 4);
    tiles.longest = int(std::min<int64_t>(tiles.longest, std::max<int64_t>(kMinFp16x3SplitKBlocks, most_k_blocks)));
  } else {
    // In a dense product, some tiles may be left over when all clusters have computed equally many tiles. The loop
    // finds the number of splits with which these leftover tiles end soonest
    const int64_t leftover_tiles = (p.batches * order.count() % clusters + p.batches - 1) / p.batches;   // per product
    int best = tiles.longest;
    for (int splits = 2; leftover_tiles && splits < best && ceil_div(order.depth, splits) >= kMinFp16x3SplitKBlocks;
         ++splits) {
      const int length = ceil_div(order.depth, splits);
      const int time = ceil_div(int(leftover_tiles) * int(p.batches) * splits, clusters) * length + splits;
      if (time < best) {
        best = time;
        tiles.longest = length;
      }
    }
    if (tiles.longest < order.depth) tiles.num_split_tiles = int(leftover_tiles);
  }
  int64_t numbers = 0;   // how many splits one product has
  for (int group = 0; group < tiles.groups(); ++group)
    numbers += tiles.tiles_in_group(group) * tiles.splits_in_group(group);
  tiles.partial_slots = int(numbers - order.count());
  // Clamped to fit an int. launch_fp16x3 rejects a product with that many numbers
  tiles.count = int(std::min<int64_t>(p.batches * numbers, kMaxSize));
  return tiles;
}

// ---- Policy: the tiles of the 16-bit kernel.

// The edges of small and of large tiles, in elements. SixteenBitPolicy has the same sizes in blocks: kBlocksN across,
// and kBlocksM * kCtas down. All tiles of the fp16x3 kernel are large, so kLargeTile does not change alone.
constexpr int kSmallTile = 128, kLargeTile = kTileEdge;

// Returns the last `tiles` large tiles on the diagonal of C as a batch of products, for a launch of their own. In the
// main launch these few tiles would leave most clusters idle for the time of a large tile. In their own launch four
// CTAs can share each small tile, which takes a fraction of that time.
inline Product last_on_diagonal(const Product& p, int tiles) {
  Product q = p;
  const int first = p.m - tiles * kLargeTile;
  q.x = static_cast<const uint16_t*>(p.x) + first * p.x_row;
  q.y = static_cast<const uint16_t*>(p.y) + first * p.y_col;
  q.c = static_cast<uint16_t*>(p.c) + first * (p.c_row + p.c_col);
  q.m = q.n = kLargeTile;
  q.batch_dims = 1;
  q.batches = q.batch_size[0] = tiles;
  q.x_batch[0] = kLargeTile * p.x_row;
  q.y_batch[0] = kLargeTile * p.y_col;
  q.c_batch = kLargeTile * (p.c_row + p.c_col);
  return q;
}

// 2026-11-25. Several CTAs may share the k of each small tile. Their number depends on how many SMs there are per small
// tile, and on the number of k-blocks of the product:
//   four   for at least four SMs and 48 k-blocks, or four SMs and 64 k-blocks if an operand is triangular
//   two    otherwise, for at least two SMs and 32 k-blocks
constexpr int64_t kMinKBlocksFor4Ctas = 48, kMinKBlocksFor4CtasMasked = 64, kMinKBlocksFor2Ctas = 32;
// A product with a triangular operand gets large tiles if two conditions hold. It would have more than 11 / 5 small
// tiles per SM, and C has more than 128 rows or columns.
constexpr int64_t kSmallTilesPer5Sms = 11;
// These are estimated times for dense products, in hundredths of the time of a large tile. Half of the columns of a
// large tile take kHalfTileTime. A wave of small tiles, one per SM, takes kSmallTileTime. If an SM has several small
// tiles, each of these takes at least kSharedSmSmallTileTime. The launch for the tail tiles takes kTailTime.
constexpr int64_t kLargeTileTime = 100, kHalfTileTime = 60, kSmallTileTime = 60, kSharedSmSmallTileTime = 72,
                  kTailTime = 20;
// The start and end of a tile take as long as this many k-blocks.
constexpr int64_t kLargeTileOverhead = 5, kSmallTileOverhead = 2;
// The tail tiles are the large tiles that are left over when all clusters have computed equally many. In a single X X^T
// whose m is a multiple of 256 they may get a launch of their own. For that, there must be at most one tail tile per 12
// SMs, and each must have at least 64 k-blocks. Tail tiles come from the diagonal (see last_on_diagonal), so there may
// not be more of them than of tiles on the diagonal.
constexpr int64_t kTailSms = 12, kMinTailKBlocks = 64;
// 2026-11-23. With a triangular operand, a tile is computed as two column halves if its length is more than 6 / 5 of
// the average work of a cluster. For this comparison, a small tile counts as four k-blocks longer than it is, because
// of its start and its end.
constexpr int64_t kHalvedShareNumerator = 6, kHalvedShareDenominator = 5, kSmallTileMaskedOverhead = 4;

// Returns the tiles of the 16-bit kernel. Large tiles, of 256 x 256, take the least time per element. But if there are
// few of them, SMs are idle. docs/kernel.md has a table.
inline ClusterTiles choose_sixteen_bit_tiles(const Product& p, const Gpu& gpu) {
  const int64_t sms = gpu.sms, sm_pairs = sms / 2, k_blocks = ceil_div(p.k, kBlock);
  const int64_t small_tiles = p.batches * TileOrder::make(p, kSmallTile).count();
  const int64_t large_tiles = p.batches * TileOrder::make(p, kLargeTile).count();
  const int64_t leftover_large_tiles = large_tiles % sm_pairs, rows = ceil_div(p.m, kSmallTile);
  // A small tile on the diagonal of a symmetric C takes half as long as another small tile: see on_diagonal_of_c
  const int64_t on_diagonal = is_stored_twice(p) ? p.batches * rows : 0;
  const int64_t ctas_with_pairs = small_tiles - (on_diagonal ? p.batches * (rows / 2) : 0);
  // With diagonal pairs, two CTAs compute three tiles. Pairs are used only if they reduce two waves of CTAs to one,
  // because half of a pair takes a fifth longer than an ordinary tile
  const bool diagonal_pairs = small_tiles > sms && ctas_with_pairs <= sms;
  // The time of all small tiles, in units of the time of one that is not on the diagonal
  const int64_t small_tiles_work = diagonal_pairs ? ctas_with_pairs : small_tiles - on_diagonal / 2;

  const int64_t min_for_4 = is_masked(p) ? kMinKBlocksFor4CtasMasked : kMinKBlocksFor4Ctas;
  int splits = 1;
  if (4 * small_tiles <= sms && k_blocks >= min_for_4)
    splits = SplitPlan::kMostSplits;
  else if (2 * small_tiles <= sms && k_blocks >= kMinKBlocksFor2Ctas)
    splits = 2;
  const bool is_tail_short = p.c_lower && p.batches == 1 && p.m % kLargeTile == 0 &&
                             leftover_large_tiles < large_tiles && kTailSms * leftover_large_tiles <= sms &&
                             leftover_large_tiles <= p.m / kLargeTile && k_blocks >= kMinTailKBlocks;

  bool is_large = false;
  if (splits == 1 && is_masked(p)) {
    is_large = small_tiles > large_tiles && 5 * small_tiles > kSmallTilesPer5Sms * sms;
  } else if (splits == 1) {
    int64_t time_of_leftover = kLargeTileTime;
    if (leftover_large_tiles == 0) time_of_leftover = 0;
    else if (is_tail_short) time_of_leftover = kTailTime;
    else if (2 * leftover_large_tiles <= sm_pairs) time_of_leftover = kHalfTileTime;
    const int64_t waves = (small_tiles_work + sms - 1) / sms;
    const int64_t time_of_large = kLargeTileTime * (large_tiles / sm_pairs) + time_of_leftover;
    const int64_t time_of_small =
        std::max(kSmallTileTime * waves, kSharedSmSmallTileTime * small_tiles_work * (k_blocks + kSmallTileOverhead) /
                                             ((k_blocks + kLargeTileOverhead) * sms));
    is_large = time_of_large < time_of_small;
  }

  ClusterTiles tiles = {TileOrder::make(p, is_large ? kLargeTile : kSmallTile, kBlock), int(p.batches)};
  tiles.splits = splits;
  tiles.diagonal_pairs = diagonal_pairs && !is_large;
  const int64_t all_tiles = is_large ? large_tiles : diagonal_pairs ? small_tiles_work : small_tiles;
  const int64_t clusters_at_once = sms / (is_large ? 2 : splits);
  const int64_t leftover_tiles = is_large ? leftover_large_tiles : small_tiles_work % clusters_at_once;
  int64_t column_split_tiles = 0;
  if (splits == 1 && is_masked(p)) {
    const int64_t overhead = is_large ? 0 : kSmallTileMaskedOverhead;
    int64_t work = p.batches * tiles.order.work() + all_tiles * overhead;
    for (int group = 0; group < tiles.order.groups(); ++group) {
      const int64_t length = tiles.order.length(group) + overhead;
      if (kHalvedShareDenominator * clusters_at_once * length <= kHalvedShareNumerator * work) break;
      const int64_t found = p.batches * tiles.order.tiles_in_group(group);
      column_split_tiles += found;
      work += found * length / 2;   // two halves together take 1.5 times as long as the whole tile
    }
  } else if (is_large && is_tail_short) {
    tiles.tail_tiles = int(leftover_tiles);
  } else if (splits == 1 && 2 * leftover_tiles <= clusters_at_once) {
    // Whole leftover tiles would leave at least half of the clusters idle. Tiles on the diagonal come last and are
    // not split
    column_split_tiles = std::min(leftover_tiles, is_large ? large_tiles : small_tiles - on_diagonal);
  }
  const int64_t count = all_tiles + column_split_tiles - tiles.tail_tiles;
  tiles.clusters = int(std::min(clusters_at_once, count));
  tiles.column_split_tiles = int(column_split_tiles);
  tiles.count = int(std::min(count, kMaxSize + 1));   // fits an int; launch_sixteen_bit rejects more than kMaxSize
  return tiles;
}

// ---- Policy: which operands are copied first.

// Returns the greatest common divisor of all batch strides, in elements. Tensor maps count batch offsets in this unit.
// If all strides are 0 it returns 8: in all types 8 elements are a multiple of 16 bytes.
inline int64_t batch_unit(const Product& p, const int64_t* strides) {
  int64_t unit = 0, last = 0;
  for (int d = 0; d < p.batch_dims; ++d) {
    unit = std::gcd(unit, strides[d]);
    last += (p.batch_size[d] - 1) * strides[d];
  }
  // Offsets in units have to fit an int. If they do not, the unit is 1 and the operand is copied
  return unit == 0 ? 8 : last / unit > kMaxSize ? 1 : unit;
}

// The source is compiled in several parts at once. The functions that the binding calls are in part 0 only.
#if !defined(PART) || PART == 0

// 2026-11-26. The mma kernel can read an unaligned operand element by element. Up to this k that takes less time than
// to make an aligned copy first.
constexpr int kMaxKByElements = 1024, kMaxKByElements16Bit = 64;
// Strides in elements must be below this number, because cuTensorMapEncodeTiled takes only strides below 2^40 bytes.
constexpr int64_t kMaxTensorMapStride = int64_t(1) << 38;

int operands_to_copy(const Product& p, Kernel kernel) {
  if (kernel != kSixteenBitKernel && kernel != kMmaKernel) return 0;   // the other kernels need no aligned strides
  const bool by_elements = kernel == kMmaKernel && p.k <= (p.type < kFloat16 ? kMaxKByElements : kMaxKByElements16Bit);
  // The number of elements in 16 bytes, or 1 if the mma kernel copies by elements
  const int unit = by_elements ? 1 : p.type == kFloat64 ? 2 : p.type == kFloat32 ? 4 : 8;
  // A kernel can read an operand if one stride is 1, and its other strides and its address are multiples of the unit
  auto reads = [&](const void* data, int64_t row, int64_t col, const int64_t* batch) {
    return std::min(row, col) == 1 && std::max(row, col) % unit == 0 && std::max(row, col) < kMaxTensorMapStride &&
           batch_unit(p, batch) % unit == 0 && (unit == 1 || reinterpret_cast<uintptr_t>(data) % 16 == 0);
  };
  const bool reads_x = reads(p.x, p.x_row, p.x_col, p.x_batch), reads_y = reads(p.y, p.y_row, p.y_col, p.y_batch);
  return (reads_x ? 0 : 1) | (reads_y ? 0 : 2);
}

// ---- Policy: whether a symmetric product is computed whole.

// 2026-11-26. "Whole" means that both triangles of a symmetric 16-bit C are computed. A C of another type is never
// computed whole. A 16-bit C of at most 256 rows is computed whole on every GPU. On GPUs of compute capability 9.0 a
// larger C is computed whole up to these sizes. The small tiles of both triangles are counted, in all products of the
// batch.
//   L L^T             1024 rows, or two small tiles per SM, whichever allows more
//   X X^T, k < 3072   one small tile per two SMs (2026-11-25)
//   X X^T, k >= 3072  one small tile per four SMs
// If a larger L L^T is not computed whole, `mirror` is launched after the kernel. With a long k it is faster to compute
// the lower triangle alone, because more CTAs can share each of its tiles.
constexpr int kMaxWholeSize = 256, kMaxWholeMaskedSize = 1024, kLongWholeK = 3072;

bool is_computed_whole(const Product& p, const Gpu& gpu) {
  if (p.type < kFloat16) return false;
  if (p.m <= kMaxWholeSize || gpu.major != 9) return p.m <= kMaxWholeSize;
  const int64_t rows = ceil_div(p.m, kSmallTile), tiles = p.batches * rows * rows;
  if (!is_stored_twice(p)) return p.m <= kMaxWholeMaskedSize || tiles <= 2 * gpu.sms;
  return tiles <= gpu.sms / (p.k < kLongWholeK ? 2 : 4);
}

// ---- Policy: which kernel computes a product.

// 2026-11-22. These bounds are for N x N products in which X, Y and C are triangles. They take into account that the
// gradients use the packed operands, too. The fp16x3 kernel is the fastest from N = 1281 on for one product with
// aligned operands. For batches and for operands that are not aligned it is the fastest from N = 1152 on. From N = 768
// on it is also the fastest if the batch has at least 1.25e10 multiply-adds, counting N^3 for each product.
constexpr int kMinFp16x3Triangle = 1281, kMinFp16x3OtherTriangle = 1152, kMinFp16x3BatchedTriangle = 768;
constexpr double kMinFp16x3BatchTerms = 1.25e10;
// 2026-11-26. These costs are for all other products. They were fitted to 761 products drawn at random. The unit of
// cost is one multiply-add of the split-tf32 or the mma kernel.
constexpr double kFp16x3Overhead = 4e8,     // the cost of the fp16x3 kernel besides its tiles
                 kFp16x3TermCost = .45,     // the cost of the fp16x3 kernel per multiply-add of its tiles
                 // A lower bound on the cost of the split-tf32 and the mma kernel: this share of the multiply-adds of
                 // the longest tile, times the number of SMs
                 kLongestTileShare = .23,
                 // The factor for the cost of the split-tf32 and the mma kernel if operands are not aligned
                 kByElementsFactor = 1.6;

// Whether the fp16x3 kernel is faster than the split-tf32 and the mma kernel. `chunks` says whether the operands can
// be copied 16 bytes at a time.
static bool is_fp16x3_faster(const Product& p, const Gpu& gpu, bool chunks) {
  if (all_triangular(p)) {
    const double terms = double(p.n) * p.n * p.n * p.batches;
    const int min_size = p.batches == 1 && chunks ? kMinFp16x3Triangle : kMinFp16x3OtherTriangle;
    return p.n >= min_size || (p.n >= kMinFp16x3BatchedTriangle && terms >= kMinFp16x3BatchTerms);
  }
  auto terms = [&](int edge) { return double(TileOrder::make(p, edge).work()) * edge * edge * p.batches; };
  const double longest = kLongestTileShare * TileOrder::make(p, kBlock).length(0) * kBlock * kBlock * gpu.sms;
  return std::max(terms(kBlock), longest) * (chunks ? 1 : kByElementsFactor) >=
         kFp16x3Overhead + kFp16x3TermCost * terms(kTileEdge);
}

// 2026-11-26. Up to this k the mma kernel is faster than the 16-bit kernel if X, Y and C are triangles. It is also
// faster for other products of up to two tiles per SM. The exceptions are L U and X X^T, for which it takes 2 us
// longer.
constexpr int kShortK = 256;
// 2026-11-25. For longer k, the 16-bit kernel takes as long as its longest tile. Let `work` be the sum of the lengths
// of all tiles, in elements of k, divided by the number of SMs. The mma kernel is faster if `work` is at most 1100 and
// k > 4 / 3 work + 300. If an operand is triangular, but not all three matrices are, 640 takes the place of 300.
constexpr int64_t kMaxMmaWork = 1100;
constexpr int64_t kMmaExtraK = 300, kMmaExtraKOneTriangle = 640;

// Whether the mma kernel is faster than the 16-bit kernel.
static bool is_mma_faster(const Product& p, const Gpu& gpu) {
  const TileOrder order = TileOrder::make(p, kBlock);
  // One tile of 64 x 64 is a quarter of the smallest tile of the 16-bit kernel
  if (p.m <= kBlock && p.n <= kBlock) return true;
  if (p.k <= kShortK) {
    const bool is_lu = p.x_range && p.y_range && !p.c_lower && p.x != p.y;
    const bool is_slow = is_stored_twice(p) || is_lu;
    return all_triangular(p) || (order.count() * p.batches <= 2 * gpu.sms && !is_slow);
  }
  const int64_t work = order.work() * p.batches / gpu.sms;   // elements of k per SM
  return work <= kMaxMmaWork &&
         p.k > work * 4 / 3 + (all_triangular(p) || !is_masked(p) ? kMmaExtraK : kMmaExtraKOneTriangle);
}

// 2026-11-21. The split-tf32 kernel is faster than the mma kernel for few tiles, for many tiles and for large products.
// In all other cases the mma kernel is faster. "Many" means more than four tiles per SM. "Large" means at least 3.2e7
// multiply-adds in the whole batch. Each product counts m n k, even if an operand is triangular.
// 2026-11-27. "Few" means less than half a tile per SM. If operands are not aligned, the mma kernel is slower, and
// "few" means less than two tiles per SM.
constexpr int64_t kManyTilesPerSm = 4;
constexpr double kLargeProductTerms = 3.2e7;
// 2026-11-23. Beyond this k the mma kernel takes the place of the split-tf32 kernel. It is more accurate, since it adds
// its sums to a float32 total more often.
constexpr int kMaxSplitTf32K = 128000;
// The kernels for Hopper need this many SMs. The two gradients take two clusters of two CTAs, with one CTA per SM. A
// MIG slice may have fewer SMs.
constexpr int kMinHopperSms = 4;

// Returns the kernel that computes a product, on a GPU of compute capability 8.0 or later. docs/kernel.md has a table.
// docs/limits.md has the measurements for each bound.
Kernel kernel_for(const Product& p, const Gpu& gpu, Path path) {
  if (path == kExactPath) return kExactKernel;
  if (path == kMmaPath || gpu.major != 9 || gpu.sms < kMinHopperSms) return kMmaKernel;
  if (p.type == kFloat64) return kMmaKernel;
  if (p.type != kFloat32) return path != kHopperPath && is_mma_faster(p, gpu) ? kMmaKernel : kSixteenBitKernel;
  // Whether operands can be copied 16 bytes at a time. With kSixteenBitKernel, operands_to_copy tests this condition
  const bool chunks = !operands_to_copy(p, kSixteenBitKernel);
  if (path == kHopperPath || is_fp16x3_faster(p, gpu, chunks)) return kFp16x3Kernel;
  const int64_t tiles = TileOrder::make(p, kBlock).count() * p.batches;
  const int64_t few_tiles = gpu.sms / 2 * (chunks ? 1 : 4);
  const bool serves = tiles < few_tiles || tiles > kManyTilesPerSm * gpu.sms ||
                      double(p.m) * p.n * p.k * p.batches >= kLargeProductTerms;
  // The split-tf32 kernel needs a stride of 1 in each operand
  const bool computes = (p.x_row == 1 || p.x_col == 1) && (p.y_row == 1 || p.y_col == 1) && p.k <= kMaxSplitTf32K;
  return computes && serves ? kSplitTf32Kernel : kMmaKernel;
}
#endif
"""

# ---- PTX: small functions around single instructions. ----
#
# Most of the instructions need Hopper (sm_90a). Many functions have the names of CUTLASS or of the PTX manual. Most
# take addresses of shared memory as 32-bit integers; copies by TMA and barrier_arrive_expect_tx take pointers, as
# cuda::ptx does. Most functions call cuda::ptx if it has the instruction. All other functions contain asm, for one
# of four reasons. cuda::ptx lacks the instruction. The address lies in another CTA of the cluster. cuda::ptx would take
# a pointer in place of the 32-bit address, as in barrier_wait. Or the headers have the instruction only without the
# qualifier .aligned, as for the cluster's barrier.
_CUDA_PTX = r"""
#include <cuda.h>   // CUtensorMap and its enumerators; nothing of the driver is linked
#include <cuda/ptx>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace ptx = cuda::ptx;
#define WORDS_4(w) "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
#define SUMS_4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])

#if defined(__CUDA_ARCH__)
constexpr int kArch = __CUDA_ARCH__;
#else
constexpr int kArch = 900;   // device code needs some value in the host's compilation too; no host code depends on it
#endif

// ---- PTX: addresses, clusters.

DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Reads threadIdx.x again. Code that rarely runs calls this function, so that no register holds the index while other
// code runs.
DEVICE uint32_t fresh_thread_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// Returns 0 on GPUs before Hopper, because these GPUs have no clusters.
DEVICE uint32_t cta_rank_in_cluster() {
  NV_IF_ELSE_TARGET(NV_PROVIDES_SM_90, (return __clusterRelativeBlockRank();), (return 0;))
}

// Takes the address of a variable in this CTA's shared memory. Returns the shared::cluster address of the same variable
// in the CTA of rank `rank`.
DEVICE uint32_t address_in_peer(uint32_t address, uint32_t rank) {
  uint32_t peer_address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer_address) : "r"(address), "r"(rank));
  return peer_address;
}
// Loads 16 bytes from the shared memory of a CTA of the cluster, at an address that address_in_peer returned.
DEVICE float4 load_in_peer(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// These two functions are the halves of a barrier of all threads of the cluster. The arrival is relaxed: it makes no
// writes visible. Both instructions are aligned: all threads of a warp must execute the same one at the same time.
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// ---- PTX: hints to the compiler.

// Returns pointer + step. The asm keeps the compiler from computing all addresses of an unrolled loop in advance, in
// registers that the data need.
template <typename T>
DEVICE T* next_address(T* pointer, int64_t step) {
  pointer += step;
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// Makes the compiler keep a value in its register. Otherwise the compiler computes the value again in every k-block, or
// delays the computation to the first use.
DEVICE void make_opaque(float& value) { asm volatile("" : "+f"(value)); }
DEVICE void make_opaque(int64_t& value) { asm volatile("" : "+l"(value)); }
DEVICE void make_opaque(int& value) { asm volatile("" : "+r"(value)); }
DEVICE void make_opaque(uint32_t& value) { asm volatile("" : "+r"(value)); }

// ---- PTX: barriers in shared memory.

DEVICE void barrier_init_fence() { ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster); }
DEVICE void barrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
}

// Arrives on a barrier of any CTA of the cluster. The arrival has the default scope, which is this CTA only. That scope
// suffices, because the arrival only tells the other CTA that a stage has been read. The wider scope would need a
// fence, which would cost a tenth of the time.
DEVICE void barrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives on a barrier of any CTA of the cluster, with the scope of the cluster. The CTA that waits sees the writes of
// this thread, and all writes that this thread has observed.
DEVICE void barrier_arrive_release_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase of this parity.
DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n.reg .pred done;\n"
               "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
               ::"r"(barrier), "r"(parity) : "memory");
}
DEVICE void barrier_wait(uint64_t* barrier, uint32_t parity) { barrier_wait(shared_address(barrier), parity); }

// ---- PTX: loads and stores of shared memory.

// Stores four words to the shared memory of a CTA of the cluster, asynchronously. Their 16 bytes are counted on a
// barrier of that CTA.
DEVICE void store_async(uint32_t address, const int* words, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(address), WORDS_4(words), "r"(barrier) : "memory");
}

template <typename T>
DEVICE T load_shared(uint32_t address) { return *static_cast<const T*>(__cvta_shared_to_generic(address)); }
template <typename T>
DEVICE void store_shared(uint32_t address, const T& v) { *static_cast<T*>(__cvta_shared_to_generic(address)) = v; }

// These strings are parts of instruction names. An asm operand with the constraint "C" inserts such a string into the
// text of the instruction.
template <typename T>
struct InPtx { static constexpr char name[] = "f16"; };
template <>
struct InPtx<__nv_bfloat16> { static constexpr char name[] = "bf16"; };
template <>
struct InPtx<float> { static constexpr char name[] = "tf32"; };
template <bool kTransposed>
struct Trans { static constexpr char name[] = ".trans"; };
template <>
struct Trans<false> { static constexpr char name[] = ""; };

// Stores four 8 x 8 matrices of 16-bit elements to shared memory. Lane l gives the address to which row l % 8 of matrix
// l / 8 goes. If kTransposed, column l % 8 goes there.
template <bool kTransposed>
DEVICE void stmatrix_x4(uint32_t address, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4%5.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), WORDS_4(w), "C"(Trans<kTransposed>::name) : "memory");
}
// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Each lane l gives the address of a row, which is row
// l % 8 of matrix l / 8. Lane 4 g + t gets bytes 4 t to 4 t + 3 of row g of each matrix. If kTransposed, lane 4 g + t
// gets elements 2 t and 2 t + 1 of column g.
template <bool kTransposed>
DEVICE void ldmatrix_x4(uint32_t address, uint32_t (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4%5.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(address), "C"(Trans<kTransposed>::name)
               : "memory");
}

// ---- PTX: copies.

// Copies the first `existing` bytes from global to shared memory, asynchronously, and fills the 16 bytes up with zeros.
DEVICE void cp_async_16(uint32_t to, const void* from, int existing = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(existing) : "memory");
}
// Copies an element of 4 or 8 bytes, or stores a zero if it does not exist.
template <typename T>
DEVICE void cp_async_element(uint32_t to, const T* from, bool exists) {
  constexpr int kSize = sizeof(T);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               ::"r"(to), "l"(from), "n"(kSize), "r"(exists ? kSize : 0) : "memory");
}
DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
DEVICE void cp_async_wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory"); }

// The TMA unit copies from global to shared memory, and counts the bytes on the barrier. The multicast version
// writes to the same address in both CTAs of a cluster, and counts on the barrier of each. Its mask 3 has one bit per
// CTA.
DEVICE void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, bytes, barrier);
}
DEVICE void copy_bulk_multicast(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, bytes, barrier, 3);
}

DEVICE void prefetch_tma_descriptor(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Whether this thread is the elected one of its warp. The addresses of a copy instruction must be uniform in a warp. If
// any other condition selected the thread, the compiler would turn the copy into a loop over the threads of the warp.
DEVICE bool elect_one_sync() {
  uint32_t is;
  asm volatile("{\n.reg .pred is;\nelect.sync _|is, 0xFFFFFFFF;\nselp.b32 %0, 1, 0, is;\n}" : "=r"(is));
  return is != 0;
}

// ---- PTX: warps, memory order, registers.

// Waits until all kThreads threads of a team have called this function. A team is a group of warps of one CTA. Team t
// uses hardware barrier t + 1, because __syncthreads uses barrier 0.
template <int kThreads>
DEVICE void named_barrier_sync(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kThreads) : "memory");
}

// Waits like named_barrier_sync, and returns whether the condition is true for any thread of the team.
template <int kThreads>
DEVICE bool named_barrier_or(int team, bool condition) {
  int any;
  asm volatile("{\n.reg .pred mine, all;\nsetp.ne.b32 mine, %3, 0;\n"
               "bar.red.or.pred all, %1, %2, mine;\nselp.b32 %0, 1, 0, all;\n}"
               : "=r"(any) : "r"(team + 1), "n"(kThreads), "r"(int(condition)) : "memory");
  return any;
}

// Reads a word that other CTAs may write at the same time. In PTX a volatile load is a relaxed one.
template <typename T>
DEVICE T load_relaxed(const T* p) { return *static_cast<const volatile T*>(p); }

template <int kRegisters>
DEVICE void warpgroup_reg_alloc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)); }
template <int kRegisters>
DEVICE void warpgroup_reg_dealloc() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)); }

// ---- PTX: the tensor cores.

// Returns wgmma's descriptor of an operand tile in the 128-byte swizzle. docs/kernel.md explains the two strides. The
// shuffle tells the compiler that all lanes have one value. Without it the compiler moves the descriptor to uniform
// registers before every wgmma.
DEVICE uint64_t make_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  const uint32_t low = __shfl_sync(0xFFFFFFFFu, (address & 0x3FFFF) >> 4 | (leading_bytes >> 4) << 16, 0);
  return uint64_t(stride_bytes >> 4 | 1u << 30) << 32 | low;
}
// Returns the descriptor of an operand that begins `bytes` bytes after `operand`.
DEVICE uint64_t advance_descriptor(uint64_t operand, uint32_t bytes) {
  return (operand & 0xFFFFFFFF00000000ull) | (uint32_t(operand) + (bytes >> 4));
}

DEVICE void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
DEVICE void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory"); }

// Computes s += A B for a 16 x 8 tile and 32 bytes of k. Lane 4 g + t holds elements of rows g and g + 8 of A and of
// column g of B. It also holds columns 2 t and 2 t + 1 of s, in rows g and g + 8.
template <typename T>
DEVICE void mma(float* s, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k%10.row.col.f32.%11.%11.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : SUMS_4(s, 0)
               : WORDS_4(a), "r"(b0), "r"(b1), "n"(32 / sizeof(T)), "C"(InPtx<T>::name));
}
template <typename T>
DEVICE void mma(double* s, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const double upper = __hiloint2double(a[1], a[0]), lower = __hiloint2double(a[3], a[2]), b = __hiloint2double(b1, b0);
  if constexpr (kArch >= 900)
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(s[0]), "+d"(s[1]), "+d"(s[2]), "+d"(s[3]) : "d"(upper), "d"(lower), "d"(b));
  else
    UNROLL for (int u = 0; u < 4; u += 2)
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(s[u]), "+d"(s[u + 1]) : "d"(u ? lower : upper), "d"(b));
}

#define SUMS_16(s, i) SUMS_4(s, i), SUMS_4(s, i + 4), SUMS_4(s, i + 8), SUMS_4(s, i + 12)
#define SUMS_32(s, i) SUMS_16(s, i), SUMS_16(s, i + 16)

#define REGS_10(T) \
  "%" #T "0, %" #T "1, %" #T "2, %" #T "3, %" #T "4, %" #T "5, %" #T "6, %" #T "7, %" #T "8, %" #T "9, "
#define REGS_30 REGS_10() REGS_10(1) REGS_10(2)
#define REGS_60 REGS_30 REGS_10(3) REGS_10(4) REGS_10(5)
#define REGS_120 REGS_60 REGS_10(6) REGS_10(7) REGS_10(8) REGS_10(9) REGS_10(10) REGS_10(11)
// Expands to the asm of one wgmma. REGS are the registers of the sums. The last arguments are the sums themselves. kA
// to kType are the numbers of the asm operands that follow the sums.
#define WGMMA(kN, REGS, kA, kB, kAdd, kMA, kMB, kType, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #kAdd ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32.%" #kType ".%" #kType " {" REGS "}, %" #kA ", %" #kB \
               ", p, 1, 1, %" #kMA ", %" #kMB ";\n}" \
               : __VA_ARGS__ \
               : "l"(a), "l"(b), "r"(add), "n"(kMajorA), "n"(kMajorB), "C"(InPtx<T>::name))

// Computes s = A B, or s += A B if `add`, for a 64 x kN tile and 16 of k. T has 16 bits. kMajorA and kMajorB are 0 for
// a K-major operand and 1 for an MN-major one.
template <typename T, int kN, int kMajorA, int kMajorB>
DEVICE void wgmma(float* s, uint64_t a, uint64_t b, int add) {
  if constexpr (kN == 64) {
    WGMMA(64, REGS_30 "%30, %31", 32, 33, 34, 35, 36, 37, SUMS_32(s, 0));
  } else if constexpr (kN == 128) {
    WGMMA(128, REGS_60 "%60, %61, %62, %63", 64, 65, 66, 67, 68, 69, SUMS_32(s, 0), SUMS_32(s, 32));
  } else {
    static_assert(kN == 256, "this width has no wrapper");
    WGMMA(256, REGS_120 "%120, %121, %122, %123, %124, %125, %126, %127", 128, 129, 130, 131, 132, 133,
          SUMS_32(s, 0), SUMS_32(s, 32), SUMS_32(s, 64), SUMS_32(s, 96));
  }
}

// Computes s = A B, or s += A B if `add`, in tf32, for a 64 x 64 tile and 8 of k. A is in registers, and B is
// K-major.
DEVICE void wgmma_tf32(float (&s)[32], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" REGS_30
               "%30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
               : SUMS_32(s, 0) : WORDS_4(a), "l"(b), "r"(add));
}
"""

# ---- Launching: what the launchers of all kernels share. ----
#
# Takes a kernel and its arguments. Produces its launch, with clusters and an early start if the launcher wants them.
# The driver is asked about a kernel only once per device, because each question costs the host some time. Conditions
# that the host evaluates become template arguments of kernels here.
_CUDA_LAUNCH = r"""
// ---- Launching: one kernel.

#include <atomic>
#include <sys/random.h>   // for getentropy; <random> takes every part half a second longer to compile
#include <variant>

// The configuration of a launch. `cluster` is the number of CTAs per cluster. If `cluster` is 1, the launch asks for no
// clusters, because GPUs before Hopper have none. If `early`, the kernel may start before the kernel ahead of it has
// ended.
struct Launch {
  cudaLaunchAttribute attributes[2] = {{cudaLaunchAttributeClusterDimension},
                                       {cudaLaunchAttributeProgrammaticStreamSerialization}};
  cudaLaunchConfig_t config;   // the launch has both attributes, one attribute or none
  Launch(int64_t blocks, int threads, size_t shared_bytes, int cluster, bool early, cudaStream_t stream)
      : config{unsigned(blocks), unsigned(threads),           shared_bytes,
               stream,           attributes + (cluster == 1), unsigned(cluster > 1) + early} {
    if (blocks > 2147483647) check(cudaErrorInvalidConfiguration);
    attributes[0].val.clusterDim = {unsigned(cluster), 1, 1};
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
  }
  Launch(const Launch&) = delete;   // a copy's config would point to the attributes of the original
};

// Returns the number of the next launch. The first number is random. So memory holds the number of a launch only if a
// kernel of this launch has written it there. Words that count from this number need not be cleared before the launch.
// The number grows by 2^33 per launch, because TileQueue and NonFinite store it plus a count. Its last three bits are
// zero, because Progress stores flags there.
static uint64_t launch_number() {
  static std::atomic<uint64_t> number = [] {
    uint64_t bits;
    if (getentropy(&bits, sizeof bits) != 0) check(cudaErrorOperatingSystem);
    return bits & ~uint64_t(7);
  }();
  return number += 2ull << 32;
}

// Returns the answer of ask() about a kernel on the current device. An answer other than zero is kept, so ask() is not
// called again for this device. Two threads may call ask() at the same time, which is harmless. Host templates are
// static, because otherwise another build of this file in the same process would share their static variables.
template <auto kKernel, typename F>
static int ask_device_once(const F& ask) {
  static std::atomic<int> known[128] = {};   // torch's device index is a signed byte
  int device = 0;
  check(cudaGetDevice(&device));
  if (known[device] == 0) known[device] = ask();
  return known[device];
}

// Allows a kernel more dynamic shared memory than the 48 KB that every kernel may use.
template <auto kKernel>
static void allow_shared_memory(int bytes) {
  auto allow = [&] {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return 1;
  };
  if (bytes > 48 * 1024) ask_device_once<kKernel>(allow);
}

template <auto kKernel, typename... Arguments>
static void launch_kernel(const Launch& launch, const Arguments&... arguments) {
  allow_shared_memory<kKernel>(int(launch.config.dynamicSmemBytes));
  check(cudaLaunchKernelEx(&launch.config, kKernel, arguments...));
}

// ---- Launching: run-time conditions and element types as template arguments.

// Represents a condition of the host as a type. std::visit turns this type into a template argument.
using Condition = std::variant<std::false_type, std::true_type>;
static Condition constant(bool condition) { return condition ? Condition(std::true_type()) : std::false_type(); }
// Returns an element of this type, for std::visit.
static auto element_of(ElementType type) {
  // These are in the order of ElementType
  const std::variant<float, double, __half, __nv_bfloat16> elements[] = {0.0f, 0.0, __half(), __nv_bfloat16()};
  return elements[type];
}

"""

# ---- Tiles of 64 x 64, part 1: how k-blocks get into shared memory. ----
#
# Takes operands of any strides, types and sizes, each as an OperandView. Produces k-blocks in the stages of a kernel,
# with zeros for elements that do not exist. The exact path, the split-tf32 kernel and the mma kernel share this
# section, and differ in how they multiply. The 16-bit and the fp16x3 kernel use a few functions and constants of this
# section, such as write_zeros and kChain.
_CUDA_COPIER = r"""
// ---- Tiles of 64 x 64: element types.

// The type of the sums that a thread keeps for elements of type T. Some sums are made in double, and then rounded.
template <typename T>
using AccumulatorOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Elements that are neighbours in memory, and are read or written by one instruction.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) AlignedArray {
  T v[kCount];
};

// ---- Tiles of 64 x 64: zeros above the diagonal of C.

// Writes zeros to lines [from, to) of the kBlockMN x kBlockMN tile at (row, col), as far as C reaches. Lines are
// columns if C is column-major, and rows otherwise. So the elements of a line are neighbours in memory, and aligned
// lines are written 16 bytes at a time. The stores are streaming (__stcs), so that the zeros drive no operands out of
// the L2 cache.
template <int kBlockMN, typename T>
DEVICE void write_zeros(const Product& p, T* c, int row, int col, int from, int to, int thread, int threads) {
  const bool column_major = p.c_row == 1 && p.c_col != 1;
  const int lines = min(to, column_major ? p.n - col : p.m - row),
            length = min(kBlockMN, column_major ? p.m - row : p.n - col);
  const int64_t line_stride = column_major ? p.c_col : p.c_row, stride = column_major ? p.c_row : p.c_col;
  c += row * p.c_row + col * p.c_col;
  // `step` is the stride between the elements of a line
  auto fill = [&](auto zero, int64_t step) {
    constexpr int kCount = sizeof(zero) / sizeof(T), kInLine = kBlockMN / kCount;
    NO_UNROLL for (int offset = thread % kInLine * kCount; offset < length; offset += threads * kCount)
      NO_UNROLL for (int line = from + thread / kInLine; line < lines; line += max(1, threads / kInLine))
        __stcs(reinterpret_cast<decltype(zero)*>(c + line * line_stride + offset * step), zero);
  };
  const bool vectorized =
      stride == 1 && (line_stride | length) % int(16 / sizeof(T)) == 0 && reinterpret_cast<uintptr_t>(c) % 16 == 0;
  vectorized ? fill(uint4(), 1) : fill(T(), stride);
}

// ---- Tiles of 64 x 64: an operand, as a CTA sees it.

// Describes an operand by its lines (rows of X, columns of Y) and k. A tile needs kBlock lines, from first_line on.
template <typename T>
struct OperandView {
  // The address of the element of line 0 and k = 0. Triangular operands have this element, too, so it may always be
  // read.
  const T* data;
  int64_t line_stride, k_stride;
  KRange k_range;
  int first_line, lines, depth;   // `lines` and `depth` are the sizes of the whole operand
};

// Returns the view of X or Y that a CTA needs for its tile.
template <typename T>
DEVICE OperandView<T> make_view(Operand operand, const Product& p, const WorkTile<T>& work) {
  if (operand == kX) return {work.x, p.x_row, p.x_col, p.x_range, work.tile.i * kBlock, p.m, p.k};
  return {work.y, p.y_col, p.y_row, p.y_range, work.tile.j * kBlock, p.n, p.k};
}

// ---- Tiles of 64 x 64: the copier of k-blocks.

constexpr int kTileThreads = 128;
// A stage holds 64 lines of each operand. Of each line it holds as many successive k as fit in 128 bytes.
constexpr int kLineBytes = 128, kStageOperandBytes = kBlock * kLineBytes;

// Copies an operand's k-blocks to the stages, with zeros for elements that do not exist. It copies chunks of 16 bytes
// where strides and addresses allow that, and single elements otherwise.
//   kKMajor     a row of the stage is a line, and its elements are neighbours in k; otherwise a row is one k, and its
//               elements are neighbouring lines
//   kPermuted   the element at byte b of row r is stored at byte b ^ kPermuted(r), against bank conflicts
//   kUnit       the stride between the elements of a row is known to be 1
//   kThreads    how many threads copy
// "near" is the direction along a row, and "far" the direction from row to row.
template <typename T, bool kKMajor, int kPermuted(int), bool kUnit = false, int kThreads = kTileThreads>
struct BlockCopier {
  static constexpr int kCopiers = kThreads, kSize = sizeof(T);
  static constexpr int kBlockK = kLineBytes / kSize, kChunk = 16 / kSize,
                       kInRow = (kKMajor ? kBlockK : kBlock) / kChunk;
  // A thread copies kChunks chunks per k-block. Its chunks lie in one column, kFarStep rows apart
  static constexpr int kChunks = kStageOperandBytes / 16 / kThreads, kFarStep = kThreads / kInRow;
  const T* next;   // this thread's first chunk of the next k-block
  int64_t step;    // the distance in memory from one chunk of this thread to its next chunk
  uint32_t to;     // the shared-memory address of this thread's first chunk in the first stage
  // k-blocks that begin at k in [whole_from, whole_to] have all their elements, and are copied by chunks
  int whole_from, whole_to;
  static constexpr int kByElements = -1024;   // the value of whole_to if nothing can be copied by chunks

  // `k0` is where the first k-block begins. `stage` is the address of this operand in the first stage.
  DEVICE BlockCopier(const OperandView<T>& view, int k0, uint32_t stage) {
    const int64_t far_stride = kKMajor ? view.line_stride : view.k_stride;
    const bool by_chunks =
        near_stride(view) == 1 && far_stride % kChunk == 0 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
    whole_from = view.k_range == KRange::kFromDiagonal ? view.first_line + kBlock - 1 : 0;
    whole_to = view.first_line + kBlock <= view.lines
                   ? (view.k_range == KRange::kToDiagonal ? view.first_line + 1 : view.depth) - kBlockK
                   : -1;
    if (!by_chunks) whole_to = kByElements;
    const int far_from = kKMajor ? view.first_line : k0, near_from = kKMajor ? k0 : view.first_line;
    next = view.data + (far_from + chunk_row()) * far_stride + (near_from + chunk_col()) * near_stride(view);
    step = kFarStep * far_stride;
    to = stage + (kKMajor ? offset(chunk_row(), chunk_col()) : offset(chunk_col(), chunk_row()));
    make_opaque(step);
    make_opaque(to);
    make_opaque(whole_from);
    make_opaque(whole_to);
  }
  // A stage holds a k-block of both operands. Returns where an element lies in its operand's part of a stage, in bytes.
  static DEVICE constexpr int offset(int line, int k) {
    return kKMajor ? line * kLineBytes + (k * kSize ^ kPermuted(line))
                   : k * kBlock * kSize + (line * kSize ^ kPermuted(k));
  }
  // Returns the address of element (line + lines, k + ks), given the address of element (line, k). `lines` must have no
  // bit in common with `line`, and `ks` none with `k`. Then the permutation of the sum is the exclusive-or of both
  // permutations.
  static DEVICE uint32_t shift_address(uint32_t address, int lines, int ks) {
    const uint32_t delta = offset(lines, ks);
    return (address ^ delta % kLineBytes) + delta / kLineBytes * kLineBytes;
  }
  // Returns element (line + line_offset, k + k_offset). The function reads several neighbours in a row of the stage at
  // once: kDepth values of k if kKMajor, otherwise kLines lines. The compiler merges the reads of calls that differ
  // only in their offsets. Pairs of 16-bit elements are read as 32-bit words.
  template <int kLines, int kDepth>
  static DEVICE T element(const uint8_t* stage, int line, int line_offset, int k, int k_offset) {
    constexpr int kCount = kKMajor ? kDepth : kLines;
    const uint8_t* from = stage + (kKMajor ? offset(line + line_offset, k) : offset(line, k + k_offset));
    using Word = std::conditional_t<kSize == 2 && kCount % 2 == 0, uint32_t, T>;
    const auto words = *reinterpret_cast<const AlignedArray<Word, kCount * kSize / sizeof(Word)>*>(from);
    return reinterpret_cast<const T*>(words.v)[kCount == 1 ? 0 : kKMajor ? k_offset : line_offset];
  }
  // The row of the thread's first chunk, and the index in this row of the chunk's first element.
  static DEVICE int chunk_row() { return fresh_thread_index() / kInRow; }
  static DEVICE int chunk_col() { return fresh_thread_index() % kInRow * kChunk; }
  static DEVICE int64_t near_stride(const OperandView<T>& view) {
    return kUnit ? 1 : kKMajor ? view.k_stride : view.line_stride;
  }
  // Returns the address to which the thread's chunk i goes, given the address of its first chunk.
  static DEVICE uint32_t chunk_address(uint32_t first_address, int i) {
    return (first_address ^ kPermuted(i * kFarStep)) + i * kFarStep * kInRow * 16;
  }

  // Copies the next k-block, which begins at k0. `stage` is the offset of its stage from the first one, in bytes.
  DEVICE void copy(const OperandView<T>& view, int k0, int stage) {
    const T* from = next;
    const uint32_t first_address = to + stage;
    if (k0 >= whole_from && k0 <= whole_to) {
      UNROLL for (int i = 0; i < kChunks; ++i, from = next_address(from, step))
        cp_async_16(chunk_address(first_address, i), from);
      next += kKMajor ? kBlockK : kChunks * step;
      return;
    }
    // Only some elements of this k-block exist, or nothing can be copied by chunks. Little code is unrolled here,
    // because in small products fetching instructions takes as long as multiplying
    next += kKMajor ? kBlockK * near_stride(view) : kChunks * step;
    // Whether the stage's rows (see kKMajor) end on the operand's diagonal, and whether they begin there
    const bool ends = view.k_range == (kKMajor ? KRange::kToDiagonal : KRange::kFromDiagonal),
               begins = view.k_range == (kKMajor ? KRange::kFromDiagonal : KRange::kToDiagonal);
    const int row = (kKMajor ? view.first_line : k0) + chunk_row(),
              col = (kKMajor ? k0 : view.first_line) + chunk_col();
    const int rows = (kKMajor ? view.lines : view.depth) - row, cols = (kKMajor ? view.depth : view.lines) - col;
    // Returns the index at which the existing elements of chunk i end. If a row begins in the chunk, the code below
    // finds the index of the first existing element
    auto end = [&](int i) {
      return i * kFarStep < rows ? max(0, min(ends ? row + i * kFarStep + 1 - col : kChunk, min(cols, kChunk))) : 0;
    };
    const bool chunks = whole_to != kByElements;
    if (chunks && (!begins || k0 <= view.first_line - kBlockK || k0 >= view.first_line + kBlock)) {
      UNROLL for (int i = 0; i < kChunks; ++i, from = next_address(from, step))
        cp_async_16(chunk_address(first_address, i), from, end(i) * kSize);
      return;
    }
    // The edge chunk is the chunk in which a row begins. cp.async cannot mask the beginning of a chunk, since it puts
    // zeros only behind the bytes that it copies. In the edge chunk, elements of 4 or 8 bytes are copied one by one. If
    // elements have 16 bits, the edge chunk is loaded to registers before the other chunks are copied. It is stored
    // after the other chunks
    const int edge_chunk = col >= row ? (col - row) / kFarStep + 1 : 0, begin = row + edge_chunk * kFarStep - col;
    static_assert(kFarStep >= kChunk, "a thread has one at most");
    const bool has_edge_chunk =
        kSize < 4 && chunks && edge_chunk < kChunks && begin < kChunk && end(edge_chunk) == kChunk;
    uint4 chunk = {};
    if (has_edge_chunk) chunk = *reinterpret_cast<const uint4*>(from + edge_chunk * step);
    NO_UNROLL for (int i = 0; i < kChunks; ++i, from += step) {
      const int first = begins ? row + i * kFarStep - col : 0, stop = end(i);
      const uint32_t address = chunk_address(first_address, i);
      const int64_t step_near = near_stride(view);
      if (chunks && (first <= 0 || stop <= first)) {
        cp_async_16(address, from, stop <= first ? 0 : stop * kSize);
      } else if constexpr (kSize >= 4) {
        UNROLL for (int e = 0; e < kChunk; ++e)
          cp_async_element<T>(address + e * kSize, from + e * step_near, e >= first && e < stop);
      } else if (!has_edge_chunk || i != edge_chunk) {
        alignas(16) T v[kChunk];
        UNROLL for (int e = 0; e < kChunk; ++e) v[e] = e >= first && e < stop ? from[e * step_near] : T();
        store_shared(address, *reinterpret_cast<const uint4*>(v));
      }
    }
    // Returns the 16-bit elements e and e + 1, with zeros for elements before `begin`
    auto masked = [begin](uint32_t two, int e) { return e >= begin ? two : e + 1 == begin ? two & 0xFFFF0000u : 0u; };
    const uint4 exists = {masked(chunk.x, 0), masked(chunk.y, 2), masked(chunk.z, 4), masked(chunk.w, 6)};
    if (has_edge_chunk) store_shared(chunk_address(first_address, edge_chunk), exists);
  }
};

// ---- Tiles of 64 x 64: float32 as two tf32.
//
// An element is the sum of two tf32 numbers of 11 significant bits, large + small. The product small * small is left
// out. Elements are scaled by 2^24, so that neither part is denormal. Tensor cores would lose bits of denormal numbers.
// Elements beyond 2^103 and products beyond 2^79 then overflow, and the exact path computes their sums.
constexpr float kTf32Scale = 0x1p24f, kTf32Unscale = 1.0f / (kTf32Scale * kTf32Scale);

DEVICE void split_tf32(float v, uint32_t& large, uint32_t& small) {
  v *= kTf32Scale;
  large = (__float_as_uint(v) + 0x1000) & 0xFFFFE000;    // rounded to nearest
  // Tensor cores ignore the lower 13 bits of small. If v is a NaN or an Inf, small is a NaN, whatever large became
  small = __float_as_uint(v - __uint_as_float(large));
}

// ---- Tiles of 64 x 64: long sums.
//
// To promote is to add a sum of the tensor cores to a float32 total. If the same number is added again and again, the
// rounding errors do not cancel. So after kChain promotions the total is added to a second total and reset to 0.
constexpr int kChain = 32;   // the split-tf32 and the fp16x3 kernel promote once per k-block, so they count k-blocks

// Adds the sums of a chain of promotions to the total, and begins the next chain.
template <int kCount>
DEVICE void end_chain(float (&chain)[kCount], float (&total)[kCount]) {
  UNROLL for (int u = 0; u < kCount; ++u) {
    total[u] += chain[u];
    chain[u] = 0.0f;
  }
}
"""

# ---- The exact path: sums on the CUDA cores, of only the terms that exist. ----
#
# Takes a view of each operand for a 64 x 64 tile of C, and a range of k. The operands may have any strides and types.
# Produces the sums of the elements that `Lanes` assigns to a thread. Tensor cores multiply zeros where an operand has
# no element, and zero times Inf or NaN is NaN. Some finite products overflow if they are computed from two tf32
# numbers. So the split-tf32, the mma and the 16-bit kernel sum a tile again here if a sum is not finite. The fp16x3
# kernel does not check sums. If an operand has an Inf or a NaN, pack_blocks asks for the fallback instead: fixup_kernel
# computes the whole product with the mma kernel's code. With TRIL_MATMUL_PATH=exact this section computes all of C. The
# tests compare every faster kernel with the exact path.
_CUDA_EXACT = r"""
// ---- Exact path: sums.

// The alignment is 128 bytes, because copiers permute the lowest seven bits of addresses.
struct alignas(128) ExactMemory {
  uint8_t stage[2][2][kStageOperandBytes];   // two stages, with X and Y in each
};

// sum_barrier waits for all threads that sum. In the 16-bit kernel these are the consumers, and otherwise all threads
// of the CTA.
#if defined(TRIL_MATMUL_RACECHECK)   // racecheck does not follow the named barrier below: see tests/sanitize.py
__shared__ uint64_t sum_mbarrier;
template <int kThreads>
DEVICE void sum_barrier() {
  if (blockDim.x == kThreads) return __syncthreads();
  const uint64_t state = ptx::mbarrier_arrive(&sum_mbarrier);
  while (!ptx::mbarrier_try_wait(&sum_mbarrier, state)) {}
}
#else
template <int kThreads>
DEVICE void sum_barrier() { named_barrier_sync<kThreads>(0); }
#endif

// Sums x[m, k] * y[k, n] over k in [k_begin, k_end). Element e of a thread's `sum` is in row Lanes::row(warp, lane, e)
// and column Lanes::col(warp, lane, e), counted from x.first_line and y.first_line. Lanes::kNear successive elements
// are neighbours in a row. The threads form kGroups groups of warps. Each group sums only its share of the k, and the
// caller adds the sums of the groups.
template <typename XCopier, typename YCopier, typename Lanes, int kGroups = 1, typename T, typename Acc, int kCount>
DEVICE void sum_exactly(const OperandView<T>& x, const OperandView<T>& y, int k_begin, int k_end, ExactMemory& memory,
                        Acc (&sum)[kCount]) {
  constexpr int kBlockK = XCopier::kBlockK, kStage = sizeof(memory.stage[0]), kThreads = XCopier::kCopiers;
  XCopier x_copier(x, k_begin, shared_address(memory.stage[0][0]));
  YCopier y_copier(y, k_begin, shared_address(memory.stage[0][1]));
  // float32 is summed in double, because the errors of float32 sums grow with k
  using Sum = std::conditional_t<sizeof(T) == 2, float, double>;
  Sum part[kCount] = {};
  sum_barrier<kThreads>();   // all threads have finished their earlier accesses to `memory`
  int stage = 1;
  NO_UNROLL for (int k0 = k_begin - kBlockK; k0 < k_end; k0 += kBlockK) {
    // Start the copies of the next k-block, and wait for the copies of this one. The first iteration only copies
    stage ^= 1;
    const int next = k0 + kBlockK;
    if (next < k_end) {
      x_copier.copy(x, next, stage * kStage);
      y_copier.copy(y, next, stage * kStage);
    }
    cp_async_commit_group();
    if (k0 < k_begin) continue;
    cp_async_wait_group<1>();
    sum_barrier<kThreads>();
    // Multiply
    const uint8_t *x_stage = memory.stage[stage ^ 1][0], *y_stage = memory.stage[stage ^ 1][1];
    auto multiply = [&](auto masked) {
      constexpr bool kMasked = masked.value;
      // A read takes kDepth successive k of a K-major operand, or at most kDepth rows or columns of an MN-major one
      constexpr int kDepth = kMasked || kCount > 16 ? 1 : XCopier::kChunk;
      constexpr int kAllRows = kCount / Lanes::kNear, kRows = kAllRows < kDepth ? kAllRows : kDepth;
      constexpr int kNear = Lanes::kNear < kDepth ? Lanes::kNear : kDepth;
      const int first = kGroups == 1 ? 0 : fresh_thread_index() / (kThreads / kGroups) * kDepth;
      NO_UNROLL for (int k = first; k < kBlockK && (!kMasked || k0 + k < k_end); k += kGroups * kDepth) {
        const int thread = fresh_thread_index(), lane = thread & 31, warp = thread >> 5;
        UNROLL for (int k_offset = 0; k_offset < kDepth; ++k_offset)
          UNROLL for (int e = 0; e < kCount; ++e) {
            const int row_offset = e / Lanes::kNear % kRows, near = e % kNear;
            const int r = Lanes::row(warp, lane, e - row_offset * Lanes::kNear), c = Lanes::col(warp, lane, e - near);
            const Sum a = XCopier::template element<kRows, kDepth>(x_stage, r, row_offset, k, k_offset);
            const Sum b = YCopier::template element<kNear, kDepth>(y_stage, c, near, k, k_offset);
            // Positive if k is outside the triangle of the operand
            const int x_beyond = (k0 + k - x.first_line - r) * x.k_range,
                      y_beyond = (k0 + k - y.first_line - c) * y.k_range;
            const Sum updated = fma(a, b, part[e]);
            part[e] = !kMasked || max(x_beyond, y_beyond) <= 0 ? updated : part[e];   // a select, not a branch
          }
      }
    };
    // Whether an operand has all elements of this k-block, for the 64 lines from `line` on
    auto has_all = [&](KRange k_range, int line) {
      return is_in_range(k_range, line, next - 1) && is_in_range(k_range, line + kBlock - 1, k0);
    };
    // The choice between the loops with and without a mask is made for whole blocks of 64 lines. So elements (i, j) and
    // (j, i) of a symmetric C are summed in the same way
    const bool all =
        next <= k_end && has_all(x.k_range, x.first_line & -kBlock) && has_all(y.k_range, y.first_line & -kBlock);
    all ? multiply(std::false_type()) : multiply(std::true_type());
    sum_barrier<kThreads>();   // the stage has been read
  }
  UNROLL for (int u = 0; u < kCount; ++u) sum[u] = Acc(part[u]);
}

// ---- Exact path: a tile.

constexpr int kExactThreads = 256;
constexpr int kExactRows = 16;   // how many rows of a tile are summed at a time

// The permutation that the copiers apply, so that no read of ExactLanes has a bank conflict. From a K-major operand,
// the lanes read 16 bytes of every fourth line. From an MN-major operand, the lanes read neighbours in memory.
template <bool kKMajor>
DEVICE constexpr int exact_permuted(int row) { return kKMajor ? (row / 8 ^ row) % 8 * 16 : 0; }
// Each thread has the sums of four rows and four columns. Per k it reads eight elements for 16 multiply-adds. The four
// groups of warps sum the same elements of C, and each group sums a quarter of the k.
struct ExactLanes {
  static constexpr int kNear = 4, kRows = 4, kCount = kRows * kNear,
                       kGroups = kExactThreads * kCount / (kExactRows * kBlock);
  static constexpr int kGroupThreads = kExactThreads / kGroups;
  static DEVICE int row(int warp, int lane, int e) {
    return (warp % (kGroupThreads / 32) * 2 + lane / 16) * kRows + e / kNear;
  }
  static DEVICE int col(int, int lane, int e) { return lane % 16 * kNear + e % kNear; }
};
static_assert(ExactLanes::kGroups == ExactLanes::kRows, "each group writes one of a thread's rows");
template <typename T, bool kKMajor>
using ExactCopier = BlockCopier<T, kKMajor, exact_permuted<kKMajor>, false, kExactThreads>;

// Computes and writes kExactRows rows of a tile, from row `begin` of the tile on.
template <typename T, bool kXKMajor, bool kYKMajor>
DEVICE void exact_rows(const Product& p, const Tile& tile, int begin, int batch, ExactMemory& memory) {
  const WorkTile<T> work(p, batch, tile, 1, 0, kBlock);
  OperandView<T> x = make_view(kX, p, work), y = make_view(kY, p, work);
  x.first_line += begin;
  using Lanes = ExactLanes;
  using Acc = AccumulatorOf<T>;
  constexpr int kNear = Lanes::kNear, kCount = Lanes::kCount, kGroups = Lanes::kGroups, kThreads = Lanes::kGroupThreads;
  Acc sum[kCount];
  sum_exactly<ExactCopier<T, kXKMajor>, ExactCopier<T, kYKMajor>, Lanes, kGroups>(x, y, tile.k_begin, tile.k_end,
                                                                                  memory, sum);
  // The groups exchange their sums through the stages. A thread has the sums of four rows. For row g of these four
  // rows, group g adds up the sums of all groups, in the order of the groups
  auto& sums = *reinterpret_cast<AlignedArray<Acc, kNear>(*)[Lanes::kRows][kGroups][kThreads]>(memory.stage);
  static_assert(sizeof(sums) <= sizeof(memory.stage), "sums must fit the stages");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / kThreads,
            thread = threadIdx.x % kThreads;
  UNROLL for (int e = 0; e < kCount; ++e) sums[e / kNear][group][thread].v[e % kNear] = sum[e];
  sum_barrier<kExactThreads>();
  const int m = x.first_line + Lanes::row(warp, lane, group * kNear);
  UNROLL for (int c = 0; c < kNear; ++c) {
    const int n = y.first_line + Lanes::col(warp, lane, c);
    Acc total = sums[group][0][thread].v[c];
    UNROLL for (int from = 1; from < kGroups; ++from) total += sums[group][from][thread].v[c];
    if (m >= p.m || n >= (p.symmetric ? m + 1 : p.n)) continue;
    work.c[m * p.c_row + n * p.c_col] = p.c_lower && n > m ? 0 : total;
    if (p.symmetric) work.c[n * p.c_row + m * p.c_col] = total;
  }
}

// ---- Exact path: launching.

// One CTA computes tile (i, j). If C has zeros above its diagonal, the CTA also writes zeros to tile (j, i). All
// operands are copied as if they were K-major: MN-major operands are copied by elements. So one kernel per type serves
// all layouts, and compiles quickly.
template <typename T>
__global__ void __launch_bounds__(kExactThreads, 1) exact_product(const __grid_constant__ Product p) {
  __shared__ ExactMemory memory;
  const int number = blockIdx.x, batches = int(p.batches), batch = number % batches;
  const Tile tile = TileOrder::make(p, kBlock).find_tile(number / batches);
  NO_UNROLL for (int begin = 0; begin < kBlock; begin += kExactRows)
    exact_rows<T, true, true>(p, tile, begin, batch, memory);
  if (has_zeros(p) && tile.i != tile.j)
    write_zeros<kBlock>(p, c_matrix<T>(p, batch), tile.j * kBlock, tile.i * kBlock, 0, kBlock, threadIdx.x,
                        kExactThreads);
}

"""

# ---- Tiles of 64 x 64, part 2: reading k-blocks, and writing C. ----
#
# Takes k-blocks in the stages, and a thread's sums of a tile. Produces fragments in registers, and C, with zeros above
# its diagonal if C is lower. The split-tf32 and the mma kernel share this section, since they differ only in how they
# multiply. Each of the two kernels has a type Lanes, which says where in the tile a thread's sums belong. Sum e of a
# thread has row Lanes::row(warp, lane, e) and column Lanes::col(warp, lane, e). The sums of a thread come in groups of
# Lanes::kNear, and the sums of a group are neighbours in a row.
_CUDA_TILES = r"""
// ---- Tiles of 64 x 64: from shared memory to registers.

// Returns the number that the copier exclusive-ors with the byte offsets in this row of a stage, so that no read has a
// bank conflict. ldmatrix reads eight rows of 16 bytes at once. float64 and MN-major float32 are read without ldmatrix.
// Then the lanes of a warp read one element each, from eight lines at four values of k.
template <typename T, bool kKMajor>
DEVICE constexpr int mma_permuted(int row) {
  return sizeof(T) == 8 || (sizeof(T) == 4 && !kKMajor) ? row % 4 * 32 : row % 8 * 16;
}
template <typename T, bool kKMajor, bool kUnit = false>
using MmaCopier = BlockCopier<T, kKMajor, mma_permuted<T, kKMajor>, kUnit>;

// Reads an operand's fragments from a stage. A step is 32 bytes of k. For 16 lines and one step, a lane gets four
// registers. With kOfX these registers are operand A of mma or wgmma_tf32. Otherwise they are operand B of two tiles of
// mma.
template <typename T, bool kKMajor, bool kOfX>
struct MmaReader {
  using Copier = MmaCopier<T, kKMajor>;
  // Whether ldmatrix reads the fragments
  static constexpr bool kByMatrices = sizeof(T) == 2 || (sizeof(T) == 4 && kKMajor);
  uint32_t address;   // the address of the lane's first element in the first stage
  DEVICE MmaReader(uint32_t operand, int first_line) {
    const int lane = threadIdx.x % 32, line_half = kOfX ? lane / 8 % 2 : lane / 16,
              k_half = kOfX ? lane / 16 : lane / 8 % 2;
    const int line = kByMatrices ? line_half * 8 + (kKMajor ? lane % 8 : 0) : lane / 4;
    const int k = kByMatrices ? k_half * Copier::kChunk + (kKMajor ? 0 : lane % 8) : lane % 4;
    address = operand + Copier::offset(first_line + line, k);
    make_opaque(address);
  }
  // Reads lines 16 u to 16 u + 15, counted from the first_line of the constructor. `stage` is the offset of the stage
  // from the first stage, in bytes.
  DEVICE void read(int stage, int u, int step, uint32_t (&w)[4]) const {
    auto from = [&](int line, int k) {
      return Copier::shift_address(address + stage, u * 16 + line, step * (32 / sizeof(T)) + k);
    };
    if constexpr (kByMatrices) {
      ldmatrix_x4<!kKMajor>(from(0, 0), w);
    } else if constexpr (sizeof(T) == 8) {
      UNROLL for (int i = 0; i < 2; ++i) {
        const float2 two = load_shared<float2>(from(i * 8, 0));
        w[2 * i] = __float_as_uint(two.x);
        w[2 * i + 1] = __float_as_uint(two.y);
      }
    } else {
      UNROLL for (int i = 0; i < 4; ++i)
        w[i] = load_shared<int>(kOfX ? from(i % 2 * 8, i / 2 * 4) : from(i / 2 * 8, i % 2 * 4));
    }
  }
};

// ---- Tiles of 64 x 64: sums that are not finite.

// Sums a CTA's split again on the exact path, if any of its sums is not finite.
template <typename XCopier, typename YCopier, typename Lanes, typename T, typename Acc, int kCount, typename Stages>
DEVICE void sum_non_finite(const Product& p, const WorkTile<T>& work, Acc (&sum)[kCount], Stages& stages) {
  static_assert(sizeof(ExactMemory) <= sizeof(Stages), "the exact path needs room");
  Acc zero[4] = {};   // the sums times zero: NaN if any of them is not finite
  UNROLL for (int u = 0; u < kCount; ++u) zero[u % 4] = fma(sum[u], Acc(0), zero[u % 4]);
  if (__builtin_expect(!__syncthreads_or(zero[0] + zero[1] + (zero[2] + zero[3]) != Acc(0)), true)) return;
  const int k_end = min(work.tile.k_end, work.k_begin + work.k_blocks * XCopier::kBlockK);
  auto& memory = *reinterpret_cast<ExactMemory*>(stages);
  sum_exactly<XCopier, YCopier, Lanes>(make_view(kX, p, work), make_view(kY, p, work), work.k_begin, k_end, memory,
                                       sum);
}

// ---- Tiles of 64 x 64: the epilogue, which adds up the splits of a tile and writes it.

// A unit is 16 bytes of the sums of one thread.
template <typename Acc>
using SumUnit = AlignedArray<Acc, 16 / sizeof(Acc)>;

// Returns unit u of a thread's sums.
template <typename Acc, int kCount>
DEVICE SumUnit<Acc> unit_of(const Acc (&sum)[kCount], int u) {
  constexpr int kSums = 16 / sizeof(Acc);
  SumUnit<Acc> unit;
  UNROLL for (int e = 0; e < kSums; ++e) unit.v[e] = sum[u * kSums + e];
  return unit;
}

// A buffer in shared memory with the size of the sums of one tile. Unit u of all 32 lanes of a warp has 512 bytes, and
// counts as one unit of the warp. Each CTA that shares a tile finishes an equal part of these units. It gets this part
// from the CTAs of all splits, and adds the splits up. The layout is [unit][split][lane]: unit 0 of every split, then
// unit 1, and so on.
template <typename Acc>
using SplitSums = SumUnit<Acc>[kBlock * kBlock * sizeof(Acc) / (32 * 16)][32];

// Writes tile (i, j) of C, and also zeros to tile (j, i) if C has zeros above its diagonal. There are two ways:
//   1. Directly from registers. This way is for whole tiles of a C that is not symmetric, and only if `alone` is true.
//      The elements of C must be neighbours in a row and aligned, or C must be column-major and of 16 bits.
//   2. By way of shared memory. Each CTA of the tile gets its units of all splits in `sums`, adds them in the order of
//      the splits, and writes them. If a tile has one split, its CTA stores all units to its own `sums`.
// `alone` says that one CTA sums the tile, and that the first way saves time. In the mma kernel, clusters of several
// CTAs never take the first way, because fetching the instructions for it takes as long as the first way saves.
//
// With several splits, a thread must have arrived at the cluster's barrier before it calls this function, which waits
// for all threads of the cluster. If each thread arrives only after its last read of the stages, as in the mma kernel,
// `sums` may lie in the stages. `arrived` is an mbarrier of one arrival, which counts the bytes that this CTA gets.
template <typename Lanes, typename T, typename Acc, int kCount>
DEVICE void write_tile(const Product& p, const WorkTile<T>& work, const Acc (&sum)[kCount], SplitSums<Acc>& sums,
                       uint64_t& arrived, bool alone) {
  constexpr int kNear = Lanes::kNear, kSums = 16 / sizeof(Acc), kUnits = kCount / kSums;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = work.tile.i * kBlock, col = work.tile.j * kBlock;
  const bool vectorized =
      p.c_col == 1 && p.c_row % kNear == 0 && reinterpret_cast<uintptr_t>(work.c) % (kNear * sizeof(T)) == 0;
  // Writes the elements of unit u of warp w that exist in C. `whole` says that all of these elements exist, and that
  // vectors may be stored to C. With `twice`, elements below the diagonal are also written above it, transposed.
  auto write = [&](auto whole, auto twice, uint32_t w, uint32_t u, const SumUnit<Acc>& v) {
    UNROLL for (int first_sum = 0; first_sum < kSums; first_sum += kNear) {
      const int m = row + Lanes::row(w, lane, u * kSums + first_sum),
                n = col + Lanes::col(w, lane, u * kSums + first_sum);
      const int cols = twice.value ? m + 1 : p.n;
      if (!whole.value && m >= p.m) continue;
      AlignedArray<T, kNear> vector;
      UNROLL for (int e = 0; e < kNear; ++e) vector.v[e] = p.c_lower && n + e > m ? Acc(0) : v.v[first_sum + e];
      // With unsigned factors the addresses take half as many instructions
      T *c = work.c, *to = c + uint32_t(m) * p.c_row + uint32_t(n) * p.c_col;
      if (whole.value || (vectorized && n + kNear <= cols)) {
        *reinterpret_cast<AlignedArray<T, kNear>*>(to) = vector;
      } else {
        UNROLL for (int e = 0; e < kNear; ++e)
          if (n + e < cols) to[e * p.c_col] = vector.v[e];
      }
      if (twice.value)
        UNROLL for (int e = 0; e < kNear; ++e)
          if (n + e < m) c[uint32_t(n + e) * p.c_row + uint32_t(m) * p.c_col] = vector.v[e];
    }
  };
  // Writes zeros to lines [from, to) of tile (j, i) if C has zeros above its diagonal
  auto zeros_above = [&](int from, int to) {
    if (has_zeros(p) && work.tile.i != work.tile.j)
      write_zeros<kBlock>(p, work.c, col, row, from, to, threadIdx.x, kTileThreads);
  };
  const bool direct = alone && row + kBlock <= p.m && col + kBlock <= p.n && !p.symmetric;
  if (direct && vectorized) {
    UNROLL for (int u = 0; u < kUnits; ++u) write(std::true_type(), std::false_type(), warp, u, unit_of(sum, u));
    return zeros_above(0, kBlock);
  }
  // Neighbours in a column belong to different lanes, so a column-major C of 16 bits is written element by element
  if (sizeof(T) == 2 && direct && p.c_row == 1) {
    UNROLL for (int e = 0; e < kCount; ++e) {
      const int m = row + Lanes::row(warp, lane, e), n = col + Lanes::col(warp, lane, e);
      work.c[m + n * p.c_col] = p.c_lower && n > m ? Acc(0) : sum[e];
    }
    return zeros_above(0, kBlock);
  }
  constexpr int kInTile = sizeof(sums) / sizeof(sums[0]);   // how many units of a warp the sums of a whole tile have
  const uint32_t splits = work.splits, units = kInTile >> (__ffs(splits) - 1), first = units * work.split,
                 end = first + units;
  if (splits == 1) {
    __syncthreads();   // all threads have read the stages
    UNROLL for (int u = 0; u < kUnits; ++u) sums[warp * kUnits + u][lane] = unit_of(sum, u);
  } else if constexpr (kArch >= 900) {
    const uint32_t first_rank = cta_rank_in_cluster() - work.split;
    if (threadIdx.x == 0) barrier_arrive_expect_tx(&arrived, sizeof(sums));
    cluster_wait();
    // Each lane finds where one unit of its warp goes, and shuffles tell the other lanes. `units` is a power of two
    const uint32_t number = warp * kUnits + lane % kUnits, owner = first_rank + (number >> (__ffs(units) - 1));
    const uint32_t slot = (number & units - 1) * splits + work.split;
    const uint32_t to = address_in_peer(shared_address(sums[slot]), owner);
    const uint32_t barrier = address_in_peer(shared_address(&arrived), owner);
    UNROLL for (int u = 0; u < kUnits; ++u) {
      const uint32_t unit_address = __shfl_sync(0xFFFFFFFFu, to, u) + lane * 16,
                     unit_barrier = __shfl_sync(0xFFFFFFFFu, barrier, u);
      store_async(unit_address, reinterpret_cast<const int*>(unit_of(sum, u).v), unit_barrier);
    }
  }
  zeros_above(first * kBlock / kInTile, end * kBlock / kInTile);
  if (splits == 1) __syncthreads();
  NV_IF_TARGET(NV_PROVIDES_SM_90, (if (splits > 1) barrier_wait(&arrived, 0);))
  auto add_up = [&](auto twice) {
    NO_UNROLL for (uint32_t unit_index = first + warp; unit_index < end; unit_index += kTileThreads / 32) {
      SumUnit<Acc> total = sums[(unit_index - first) * splits][lane];
#pragma unroll 4
      for (uint32_t s = 1; s < splits; ++s) {
        const SumUnit<Acc> v = sums[(unit_index - first) * splits + s][lane];
        UNROLL for (int e = 0; e < kSums; ++e) total.v[e] += v.v[e];
      }
      write(std::false_type(), twice, unit_index / kUnits, unit_index % kUnits, total);
    }
  };
  p.symmetric ? add_up(std::true_type()) : add_up(std::false_type());
}

// ---- Tiles of 64 x 64: launching.

// Launches a kernel with the SplitPlan of its product. Only fixup_kernel takes further arguments, which are in `extra`.
// fixup_kernel may begin before the kernel ahead of it has ended. Without clusters, fixup_kernel has no more CTAs than
// the GPU holds at once, because these CTAs take tiles from a queue.
template <auto kKernel, typename Memory, typename... Extra>
static void launch_tiles(const Product& p, int block_k, int ctas_per_sm, const Gpu& gpu, const Extra&... extra) {
  // The stress build with delays takes more registers than the build without, and both have to split the same tiles. So
  // in stress builds, the number of clusters that the GPU holds at once is computed without regard to registers
#if defined(TRIL_MATMUL_STRESS)
  auto clusters_at_once = [&] { return gpu.sms * ctas_per_sm / int(SplitPlan::kMostSplits); };
#else
  auto clusters_at_once = [] {
    allow_shared_memory<kKernel>(sizeof(Memory));
    const Launch launch(SplitPlan::kMostSplits, kTileThreads, sizeof(Memory), SplitPlan::kMostSplits, false, nullptr);
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, kKernel, &launch.config));
    return clusters;
  };
#endif
  const int at_once = gpu.major >= 9 ? ask_device_once<kKernel>(clusters_at_once) : 0;
  const SplitPlan plan = choose_split_plan(p, block_k, at_once, at_once / ctas_per_sm);
  constexpr bool kIsFixup = sizeof...(extra) > 0;
  int64_t blocks = plan.clusters * p.batches * plan.cluster_size;
  if (kIsFixup && plan.cluster_size == 1) blocks = std::min<int64_t>(blocks, gpu.sms * ctas_per_sm);
  launch_kernel<kKernel>({blocks, kTileThreads, sizeof(Memory), int(plan.cluster_size), kIsFixup, gpu.stream}, p, plan,
                         extra...);
}
"""

# ---- The split-tf32 kernel: float32 products too small for the fp16x3 kernel, on tensor cores. ----
#
# Takes float32 operands that have a stride of 1 along k (K-major) or from line to line (MN-major). Produces all of C,
# in one launch and without a workspace. Nothing is packed: each CTA splits the elements of its k-blocks into two tf32
# numbers. It splits X in registers, and Y from a stage into a second buffer in shared memory. Small products are faster
# without packing. Large products are faster with packing, since the tensor cores take twice as long for tf32 as for
# float16.
_CUDA_SPLIT_TF32 = r"""
// ---- Split-tf32 kernel: sizes, and shared memory.

constexpr int kSplitTf32BlockK = kLineBytes / 4;
constexpr int kSplitTf32Stages = 2, kSplitTf32CtasPerSm = 3;

// Copiers and wgmma permute the lowest ten bits of addresses, so this struct begins at a multiple of 1024 bytes.
struct alignas(1024) SplitTf32Memory {
  uint8_t stage[kSplitTf32Stages][2][kStageOperandBytes];   // each stage holds X, then Y
  // The current k-block of Y after the split, in the layout of wgmma: all large parts, then all small parts
  float y[2][kBlock * kSplitTf32BlockK];
  SplitSums<float> sums;
  uint64_t sums_arrived;   // an mbarrier, which counts the bytes of `sums`
  // `work` lies in shared memory so that it takes no registers while k-blocks are multiplied
  WorkTile<float> work;
};

// ---- Split-tf32 kernel: splitting Y into a second buffer in shared memory.

// Says where in the tile the sums of a lane belong. wgmma gives a lane two neighbouring columns out of each eight, in
// two rows. The splitter moves the columns of Y for wgmma: column 16 i + 4 q + f becomes column 16 i + 8 (f / 2) + 2 q
// + f % 2. Therefore a lane has four neighbouring columns of C out of each 16, in two rows. In the 16 columns with
// index i, the lane's sum for row r (0 or 1) and column c (0 to 3) is part[part_index(8 i + 4 r + c)].
struct SplitTf32Lanes {
  static constexpr int kNear = 4;
  static DEVICE constexpr int part_index(int e) { return e / 8 * 8 + e % 4 / 2 * 4 + e / 4 % 2 * 2 + e % 2; }
  static DEVICE int row(uint32_t warp, uint32_t lane, uint32_t e) { return warp * 16 + e / 4 % 2 * 8 + lane / 4; }
  static DEVICE int col(uint32_t, uint32_t lane, uint32_t e) { return e / 8 * 16 + lane % 4 * 4 + e % 4; }
};

// Splits a k-block of Y into two K-major matrices for wgmma. Each thread splits 4 x 4 elements. Eight neighbouring
// threads cover all 32 k of the k-block. Each of these eight threads has four columns of its own, so that no access
// meets a bank conflict.
template <bool kKMajor>
struct SplitTf32YSplitter {
  using From = MmaCopier<float, kKMajor>;
  using To = MmaCopier<float, true>;
  // Both are addresses of the thread's first element: `from` in the first stage, `to` among the large parts
  uint32_t from, to;
  DEVICE SplitTf32YSplitter(const uint8_t* stage, const float* split) {
    const int k = threadIdx.x % 8 * 4, col = (threadIdx.x / 8 ^ threadIdx.x % 8) * 4;
    from = shared_address(stage) + From::offset(col, k);
    to = shared_address(split) + To::offset(col / 16 * 16 + col % 16 / 2, k);
    make_opaque(from);
    make_opaque(to);
  }
  DEVICE void split(int stage) const {
    AlignedArray<float, 4> four[4];
    UNROLL for (int w = 0; w < 4; ++w)
      four[w] =
          load_shared<AlignedArray<float, 4>>(From::shift_address(from + stage, kKMajor ? w : 0, kKMajor ? 0 : w));
    UNROLL for (int f = 0; f < 4; ++f) {
      AlignedArray<uint32_t, 4> large, small;
      UNROLL for (int w = 0; w < 4; ++w) split_tf32(kKMajor ? four[f].v[w] : four[w].v[f], large.v[w], small.v[w]);
      const uint32_t address = To::shift_address(to, f / 2 * 8 + f % 2, 0);
      store_shared(address, large);
      store_shared(address + kStageOperandBytes, small);
    }
  }
};

// ---- Split-tf32 kernel: the kernel.

// Each CTA sums one split of a tile of C, and writes its share of the tile. A CTA multiplies one k-block while later
// k-blocks are copied. With kChains, k may be so long that a sum takes more than one chain: see kChain.
template <bool kXKMajor, bool kYKMajor, bool kChains>
__global__ void __launch_bounds__(kTileThreads, kSplitTf32CtasPerSm)
    split_tf32_product(const __grid_constant__ Product p, const __grid_constant__ SplitPlan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& memory = *reinterpret_cast<SplitTf32Memory*>(raw);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&memory.sums_arrived, 1);
    barrier_init_fence();
  }
  cluster_arrive_relaxed();   // write_tile waits for the arrival of all threads before it sends sums to other CTAs
  const WorkTile<float> work =
      find_work<float>(p, plan, ptx::get_sreg_clusterid_x(), cta_rank_in_cluster(), kSplitTf32BlockK);
  if (work.tile.i < 0) return;
  if (threadIdx.x == 0) memory.work = work;
  const int k_begin = work.k_begin, k_blocks = work.k_blocks;
  const auto view_x = make_view(kX, p, work), view_y = make_view(kY, p, work);
  MmaCopier<float, kXKMajor, true> x(view_x, k_begin, shared_address(memory.stage[0][0]));
  MmaCopier<float, kYKMajor, true> y(view_y, k_begin, shared_address(memory.stage[0][1]));
  // `sum` belongs to the current chain. `total` is the sum of the chains that have ended. In the end `total` is added
  // to `sum`
  float sum[32] = {}, total[32] = {};
  const MmaReader<float, kXKMajor, true> x_reader(shared_address(memory.stage[0][0]), threadIdx.x / 32 * 16);
  const SplitTf32YSplitter<kYKMajor> splitter(memory.stage[0][1], memory.y[0]);
  const uint64_t y_large = make_descriptor(shared_address(memory.y[0]), 16, 8 * 128);
  const uint64_t y_small = advance_descriptor(y_large, sizeof(memory.y[0]));
  constexpr int kStageBytes = sizeof(memory.stage[0]);
  int stage = 0;   // the stage of k-block `number`, as an offset in bytes from the first stage
  // Iterations with a negative `number` only start copies
  NO_UNROLL for (int number = -kSplitTf32Stages; number < k_blocks; ++number) {
    uint32_t large[4][4], small[4][4];
    if (number >= 0) {
      // Wait for the stage, then split its X and Y
      cp_async_wait_group<kSplitTf32Stages - 1>();
      // After this barrier, all copies to this stage have landed. The previous k-block has been multiplied, so memory.y
      // may be overwritten
      __syncthreads();
      splitter.split(stage);
      UNROLL for (int step = 0; step < 4; ++step) {
        x_reader.read(stage, 0, step, large[step]);
        UNROLL for (int e = 0; e < 4; ++e) split_tf32(__uint_as_float(large[step][e]), large[step][e], small[step][e]);
      }
      ptx::fence_proxy_async(ptx::space_shared);
      // After this barrier, the whole stage has been read, so it may be filled again. All of Y is split, so wgmma may
      // read memory.y
      __syncthreads();
    }
    // Start the copies of the next k-block that uses this stage
    const int next = number + kSplitTf32Stages;
    if (next < k_blocks) {
      x.copy(view_x, k_begin + next * kSplitTf32BlockK, stage);
      y.copy(view_y, k_begin + next * kSplitTf32BlockK, stage);
    }
    cp_async_commit_group();
    stage = stage == (kSplitTf32Stages - 1) * kStageBytes ? 0 : stage + kStageBytes;
    if (number < 0) continue;
    // Multiply. Tensor cores truncate when they add. So small terms are added first, and `part` sums only one k-block
    float part[32];
    warpgroup_arrive();
    UNROLL for (int step = 0; step < 4; ++step) {
      wgmma_tf32(part, small[step], advance_descriptor(y_large, step * 32), step > 0);
      wgmma_tf32(part, large[step], advance_descriptor(y_small, step * 32), 1);
    }
    UNROLL for (int step = 0; step < 4; ++step)
      wgmma_tf32(part, large[step], advance_descriptor(y_large, step * 32), 1);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    // Promote the sums of this k-block
    UNROLL for (int e = 0; e < 32; ++e) sum[e] = fmaf(part[SplitTf32Lanes::part_index(e)], kTf32Unscale, sum[e]);
    if (kChains && number % kChain == kChain - 1) end_chain(sum, total);
  }
  if (kChains) end_chain(total, sum);
  // If a sum is not finite, sum_non_finite sums the split again on the exact path. It does so in the memory of the
  // stages, because other CTAs may already send sums to memory.sums
  sum_non_finite<decltype(x), decltype(y), SplitTf32Lanes>(p, memory.work, sum, memory.stage);
  write_tile<SplitTf32Lanes>(p, memory.work, sum, memory.sums, memory.sums_arrived, memory.work.splits == 1);
#endif
}
"""

# ---- The mma kernel: tensor cores of any GPU from Ampere on. ----
#
# Takes a Product in which each operand has a stride of 1, along its rows or its columns. If k is long, each operand's
# address and its other strides are multiples of 16 bytes. An operand that does not meet these conditions has been
# copied before the launch: see operands_to_copy. Produces all of C. The kernel runs on all GPUs from compute capability
# 8.0 on. Instructions that only newer GPUs have are used only there. cp.async copies k-blocks to a pipeline of stages,
# without a change of their layout. Fragments are loaded into registers, mostly by ldmatrix. There float32 is split into
# two tf32 numbers. mma.sync multiplies the fragments.
_CUDA_MMA = r"""
// ---- mma kernel: sizes, and what a CTA keeps in shared memory.

constexpr int kMmaStages = 3, kMmaStageBytes = 2 * kStageOperandBytes;
constexpr int kMmaSteps = 4;   // a k-block has four steps of 32 bytes of k
// The number of steps of eight k that are summed between two promotions of float32. It is smaller before Hopper: older
// tensor cores truncate a sum twice as often, and keep one bit less each time.
constexpr int kStepsToPromote = kArch < 900 ? 1 : 2;
// A warp computes kWarpMN x kWarpMN elements of C, as kTilesM x kTilesN tiles of mma, each 16 x 8.
constexpr int kWarpMN = kBlock / 2, kTilesM = kWarpMN / 16, kTilesN = kWarpMN / 8;
constexpr int kMmaSums = kTilesM * kTilesN * 4;   // sums of a thread
static_assert(kMmaSteps % 2 == 0, "each k-block begins with the same fragments, and ends with a promotion");
template <typename T>
constexpr bool kTwoTf32 = sizeof(T) == 4;   // float32 is split into two tf32
template <typename T>
constexpr int kMmaBlockK = kLineBytes / sizeof(T);
// Returns how many CTAs an SM holds. A CTA takes 49 KB of shared memory. Two CTAs fit on an SM that has 100 KB (compute
// capability 8.6, 8.9 and 12.x), and three fit on any other SM. With float32 only two CTAs fit on any SM, since two
// tf32 numbers per element take more registers.
template <typename T>
HOST_DEVICE constexpr int mma_ctas_per_sm(int arch) {
  return kTwoTf32<T> || arch == 860 || arch == 890 || arch >= 1200 ? 2 : 3;
}
template <typename T>
constexpr int kMmaCtasPerSm = mma_ctas_per_sm<T>(kArch);   // for device code: on the host kArch is 900
template <typename T>
using MmaSums = AccumulatorOf<T>[kMmaSums];

template <typename T>
struct alignas(256) MmaMemory {   // 128 would suffice: copiers permute the lowest seven bits of addresses
  uint8_t stage[kMmaStages][kMmaStageBytes];   // each stage holds X, then Y
  uint64_t sums_arrived;   // an mbarrier, which counts the bytes of `sums` from all CTAs of the cluster
  WorkTile<T> work;
};

// Says to which row and column of the tile a thread's sum e belongs. The sums have the order of mma's results.
struct MmaLanes {
  static constexpr int kNear = 2;
  static DEVICE int row(uint32_t warp, uint32_t lane, uint32_t e) {
    return warp % 2 * kWarpMN + e / 4 / kTilesN * 16 + e % 4 / 2 * 8 + lane / 4;
  }
  static DEVICE int col(uint32_t warp, uint32_t lane, uint32_t e) {
    return warp / 2 * kWarpMN + e / 4 % kTilesN * 8 + lane % 4 * 2 + e % 2;
  }
};

// ---- mma kernel: multiplying a step of k.

// The number of fragments that a lane reads for a step. The first kTilesM are of X. The other kTilesN / 2 are of Y, and
// each of them serves two tiles of mma.
constexpr int kMmaFragments = kTilesM + kTilesN / 2;
using MmaFragments = uint32_t[kMmaFragments][4];

// Computes sum += X Y for one step. float32 is first split into `large` and `small`. Tensor cores truncate when they
// add. So small terms are added first, and `part` sums at most kStepsToPromote steps before it is promoted to `sum`.
template <typename T>
DEVICE void mma_multiply_step(MmaFragments& large, int step, MmaSums<T>& part, MmaSums<T>& sum) {
  auto multiply = [](const MmaFragments& x, const MmaFragments& y, MmaSums<T>& sum) {
    UNROLL for (int m = 0; m < kTilesM; ++m)
      UNROLL for (int n = 0; n < kTilesN; ++n)
        mma<T>(sum + (m * kTilesN + n) * 4, x[m], y[kTilesM + n / 2][n % 2 * 2], y[kTilesM + n / 2][n % 2 * 2 + 1]);
  };
  if constexpr (kTwoTf32<T>) {
    MmaFragments small;
    UNROLL for (int i = 0; i < kMmaFragments; ++i)
      UNROLL for (int e = 0; e < 4; ++e) split_tf32(__uint_as_float(large[i][e]), large[i][e], small[i][e]);
    if (step % kStepsToPromote == 0)
      UNROLL for (int u = 0; u < kMmaSums; ++u) part[u] = 0.0f;
    multiply(small, large, part);
    multiply(large, small, part);
    multiply(large, large, part);
    if ((step + 1) % kStepsToPromote == 0)
      UNROLL for (int u = 0; u < kMmaSums; ++u) sum[u] = fmaf(part[u], kTf32Unscale, sum[u]);
  } else {
    multiply(large, large, sum);
  }
}

// ---- mma kernel: the kernel.

// Sums one split of a tile, and writes this CTA's share of the tile. If kUnit is kUnitStrides, elements that are
// neighbours in a row of a stage are known to be neighbours in memory. If it is kAnyStrides, their distance in memory
// is read from the operand.
[[maybe_unused]] constexpr bool kUnitStrides = true, kAnyStrides = false;
template <typename T, bool kXKMajor, bool kYKMajor, bool kUnit>
DEVICE void mma_compute(const Product& p, const SplitPlan& plan, uint32_t cluster, MmaMemory<T>& memory) {
  if (threadIdx.x == 0) {
    memory.work = find_work<T>(p, plan, cluster, cta_rank_in_cluster(), kMmaBlockK<T>);
    NV_IF_TARGET(NV_PROVIDES_SM_90, (if (plan.cluster_size > 1) {
                   ptx::mbarrier_init(&memory.sums_arrived, 1);
                   barrier_init_fence();
                 }))
  }
  __syncthreads();
  const WorkTile<T>& work = memory.work;
  if (work.tile.i < 0) return;

  const int warp = threadIdx.x / 32, warp_row = warp % 2 * kWarpMN, warp_col = warp / 2 * kWarpMN;
  const int k_begin = work.k_begin, k_end = k_begin + work.k_blocks * kMmaBlockK<T>;
  const uint32_t stages = shared_address(memory.stage);
  MmaCopier<T, kXKMajor, kUnit> x(make_view(kX, p, work), k_begin, stages);
  MmaCopier<T, kYKMajor, kUnit> y(make_view(kY, p, work), k_begin, stages + kStageOperandBytes);
  auto copy = [&](int k0, int stage) {
    if (k0 < k_end) {
      x.copy(make_view(kX, p, work), k0, stage);
      y.copy(make_view(kY, p, work), k0, stage);
    }
    cp_async_commit_group();
  };
  const MmaReader<T, kXKMajor, true> x_reader(stages, warp_row);
  const MmaReader<T, kYKMajor, false> y_reader(stages + kStageOperandBytes, warp_col);
  auto read = [&](int stage, int step, MmaFragments& to) {
    UNROLL for (int m = 0; m < kTilesM; ++m) x_reader.read(stage, m, step, to[m]);
    UNROLL for (int n = 0; n < kTilesN / 2; ++n) y_reader.read(stage, n, step, to[kTilesM + n]);
  };
  // Prologue: fill the pipeline
  NO_UNROLL for (int stage = 0, k0 = k_begin; stage < kMmaStages * kMmaStageBytes;
                 stage += kMmaStageBytes, k0 += kMmaBlockK<T>)
    copy(k0, stage);
  cp_async_wait_group<kMmaStages - 1>();
  __syncthreads();
  MmaFragments fragments[2];   // the fragments of this step, and of the next one
  read(0, 0, fragments[0]);
  // `total` is used for float32 only. It is the sum of the chains that have ended, and in the end it is added to `sum`
  MmaSums<T> sum = {}, total = {};
  constexpr int kChainBlocks = kChain * kStepsToPromote / kMmaSteps;
  NO_UNROLL for (int stage = 0, k0 = k_begin; k0 < k_end; k0 += kMmaBlockK<T>) {
    MmaSums<T> part;
    // Multiply each step while the next one is read
    UNROLL for (int step = 0; step < kMmaSteps - 1; ++step) {
      read(stage, step + 1, fragments[(step + 1) % 2]);
      mma_multiply_step<T>(fragments[step % 2], step, part, sum);
    }
    // Wait for the next stage
    cp_async_wait_group<kMmaStages - 2>();
    // After this barrier, the next stage is full. All threads have read this stage, so it may be filled again
    __syncthreads();
    const int next = stage == (kMmaStages - 1) * kMmaStageBytes ? 0 : stage + kMmaStageBytes;
    read(next, 0, fragments[0]);
    // Start the copies of the next k-block that uses this stage
    copy(k0 + kMmaStages * kMmaBlockK<T>, stage);
    // Multiply the last step
    mma_multiply_step<T>(fragments[1], kMmaSteps - 1, part, sum);
    stage = next;
    if constexpr (kTwoTf32<T>)
      if ((k0 - k_begin) / kMmaBlockK<T> % kChainBlocks == kChainBlocks - 1) end_chain(sum, total);
  }
  if constexpr (kTwoTf32<T>) end_chain(total, sum);
  auto& sums = *reinterpret_cast<SplitSums<AccumulatorOf<T>>*>(memory.stage);
  static_assert(sizeof(sums) <= sizeof(memory.stage), "the sums must fit the stages");
  // A sum that is not finite may be wrong, so it is summed again. In one case a zero of a mask met an Inf or a NaN. In
  // the other case float32 was split into two tf32 numbers, which turns Inf into NaN and may overflow
  if (kTwoTf32<T> || is_masked(p)) sum_non_finite<decltype(x), decltype(y), MmaLanes>(p, work, sum, memory.stage);
  // This thread has read the stages. Once all threads have arrived, other CTAs may send sums to the stages. The arrival
  // is relaxed, because those CTAs need nothing that this CTA wrote but the mbarrier, which barrier_init_fence has
  // made visible
  NV_IF_TARGET(NV_PROVIDES_SM_90, (if (plan.cluster_size > 1) cluster_arrive_relaxed();))
  write_tile<MmaLanes>(p, work, sum, sums, memory.sums_arrived, plan.cluster_size == 1);
}

// ---- mma kernel: launching.

// The mma kernel, for one product or a batch. Its operands have a stride of 1. For operands of any strides,
// fixup_kernel calls mma_compute.
template <typename T, bool kXKMajor, bool kYKMajor>
__global__ void __launch_bounds__(kTileThreads, kMmaCtasPerSm<T>)
    mma_product(const __grid_constant__ Product p, const __grid_constant__ SplitPlan plan) {
  extern __shared__ __align__(256) unsigned char mma_memory[];
  const uint32_t cluster = plan.cluster_size > 1 ? blockIdx.x / SplitPlan::kMostSplits : blockIdx.x;
  mma_compute<T, kXKMajor, kYKMajor, kUnitStrides>(p, plan, cluster, *reinterpret_cast<MmaMemory<T>*>(mma_memory));
}
"""

# ---- Launching: the exact path, the split-tf32 and the mma kernel. ----
#
# Takes a Product that the policy has given to one of these kernels. Launches that kernel. The kernels are templates, so
# std::visit turns the type of the elements, the strides and the length of k into template arguments.
_CUDA_TILE_LAUNCH = r"""
void launch_exact(const Product& p, const Gpu& gpu) {
  const Launch launch(TileOrder::make(p, kBlock).count() * p.batches, kExactThreads, 0, 1, false, gpu.stream);
  std::visit([&](auto element) { launch_kernel<exact_product<decltype(element)>>(launch, p); }, element_of(p.type));
}

void launch_split_tf32(const Product& p, const Gpu& gpu) {
  std::visit(
      [&](auto x_k_major, auto y_k_major, auto chains) {
        launch_tiles<split_tf32_product<x_k_major, y_k_major, chains>, SplitTf32Memory>(p, kSplitTf32BlockK,
                                                                                        kSplitTf32CtasPerSm, gpu);
      },
      constant(p.x_col == 1), constant(p.y_row == 1), constant(p.k > kChain * kSplitTf32BlockK));
}
"""

_CUDA_MMA_LAUNCH = r"""
template <typename T>
static void launch_mma(const Product& p, const Gpu& gpu) {
  std::visit([&](auto x_k_major, auto y_k_major) {
    // The minor number of the compute capability changes the result only before 9.0. On those GPUs launch_tiles does
    // not use the result, because they have no clusters
    const int ctas_per_sm = mma_ctas_per_sm<T>(100 * gpu.major);
    launch_tiles<mma_product<T, x_k_major, y_k_major>, MmaMemory<T>>(p, kMmaBlockK<T>, ctas_per_sm, gpu);
  }, constant(p.x_col == 1), constant(p.y_row == 1));
}
"""

# ---- The skeleton of Hopper's kernels: tiles, roles, barriers. ----
#
# Takes a policy, SixteenBitPolicy or Fp16x3Policy, and its Product. Produces the kernel tile_product, which computes
# all tiles of C. Persistent clusters take the tiles from a queue, the longest first. The skeleton has the parts that
# both kernels share: the roles of the warps, the queue, the barriers of the pipeline and the zeros. The policy says
# what a stage holds, how it is filled and multiplied, and how C is written. The pictures are in docs/kernel.md.
_CUDA_SKELETON = r"""
// ---- Skeleton: the warps of a CTA.

// The warps of a CTA are, in this order: two warpgroups of consumers, the producer's warp, a warp that writes zeros,
// and two warps of the policy.
[[maybe_unused]] constexpr int kConsumerWarps = 8, kProducerWarp = kConsumerWarps;
constexpr int kSkeletonThreads = 3 * 128;
// Registers per thread. All threads start with kEntryRegisters. Consumers have kConsumerRegisters once the other warps
// have given up most of their registers.
[[maybe_unused]] constexpr int kEntryRegisters = 65536 / kSkeletonThreads / 8 * 8, kConsumerRegisters = 216;
constexpr int kRingEntries = 8;   // how many tiles from the queue fit in the ring buffer SharedMemory::ring

// The position of a role in the pipeline: the stage that the role uses next, and the parity of the phase that it
// awaits.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// [begin tile queue]
// Hands out the numbers of tiles, one after the other. A word in device memory holds the launch's number plus the count
// of numbers handed out. So nothing has to clear the word before the launch. In the fp16x3 kernel pack_blocks clears
// the word, so `launch` is 0.
struct TileQueue {
  unsigned long long* word;
  uint64_t launch;   // the launch's own number: see launch_number

  // Sets the word to the launch's number, unless the word already counts for this launch. An idle warp calls this
  // during the first tiles. If all clusters called it from `take` instead, they would hinder each other for 5 us.
  DEVICE void begin(uint32_t count) const {
    uint64_t expected = 0, found;
    while ((found = atomicCAS(word, expected, launch)) != expected && found - launch > count) expected = found;
  }

  // Takes one of `count` numbers, and returns how many were taken before. The last call sets the word to zero, because
  // a graph that is launched again has the same launch number.
  DEVICE uint32_t take(uint32_t count) const {
    uint64_t taken;
    while ((taken = atomicAdd(word, 1ull) - launch) > count) begin(count);
    if (taken == count - 1) *word = 0;
    return taken;
  }
};
// [end tile queue]

// A policy has these members. The functions are static, and their first argument is of type Args.
//
//   Args                     the arguments of a launch: p (a Product), tiles, queue, and more that the policy needs
//   Memory                   the policy's part of shared memory: the stages, and more
//   kStages                  how many stages the pipeline has
//   kDepth                   the most k-blocks that the stages hold at once
//   kCtas                    how many CTAs together compute one split of a tile, and share its copies
//   kBlocksN                 the width of a tile, in blocks. The height of a tile is the same.
//   kRequestAhead            how many k-blocks before the end of a tile the next tile is requested. An earlier
//                            request might take the next tile from a cluster that is free sooner.
//   kQueuesFirstTile         true: a cluster's first tile comes from the queue; false: the first tile has the cluster's
//                            number
//   kProducerRequestsTiles   true: the producer requests the next tile; false: run_policy_warps does
//   find_tile                returns the ClusterTile that has a given number
//   is_skipped               whether a tile from the queue is left out
//   has_work                 whether the launch has anything to compute; may also record that packing is done
//   prepare                  initializes the policy's shared memory; one thread calls it
//   find_operands            finds the data of a tile that `load` needs; the producer calls it once per tile
//   load                     copies one k-block to the next stages; the producer calls it
//   compute                  multiplies and writes one tile; the consumers call it
//   finish                   does the work that is left after the last tile; the consumers call it
//   run_policy_warps         does the work of the policy's own two warps
//   result                   returns C of one product of the batch
//
// benchmarks/trace.cuh defines TRACE, which records when a role reaches an event. Without that file TRACE does nothing.
#if !defined(TRACE)
#define TRACE(role, event)
#endif

template <typename Policy>
struct SharedMemory {
  typename Policy::Memory policy;
  ClusterTile ring[kRingEntries];      // the ring of tiles from the queue
  uint64_t ring_full[kRingEntries];    // one mbarrier per entry of the ring; a phase ends when the tile has arrived
  // Two mbarriers per stage. A phase of `full` ends when the data of the stage have arrived and, where necessary, have
  // been masked. A phase of `empty` ends when all consumers have read the stage
  uint64_t full[Policy::kStages], empty[Policy::kStages];
};

// Describes a k-block to `load`.
struct KBlock {
  // `k` counts the k-blocks of the operands from 0. `k_index` is the position at which the tile sums this k-block
  int k, k_index;
  // `jumps` is true for the first k-block of the tile, and where k wraps around. `last` is true for the last k-block
  bool jumps, last;
  // The number of the next tile among the tiles that this cluster requests, which fetch_next_tile takes as tile_seq
  int next_tile_seq;
};

// ---- Skeleton: the tile scheduler.

// Whether clusters take tiles from the queue. Otherwise each cluster computes one tile, which has the cluster's number.
template <typename Policy>
DEVICE bool has_queue(const typename Policy::Args& args) {
  return Policy::kQueuesFirstTile || args.tiles.clusters < args.tiles.count;
}

// Waits until a tile has arrived in the ring, and returns the tile. tile_seq is its number among the tiles that this
// cluster requests. Consumers may give it modulo 2 * kRingEntries, which changes neither the entry nor the parity.
// Without a queue, the function returns a tile whose row is -1. Producers and consumers call it for every tile that
// comes from the queue. In SixteenBitPolicy two mask warps, which set elements beyond a diagonal to zero, call it as
// well. No entry of the ring is overwritten too early, for two reasons:
//   - The thread that requests tiles is at most kDepth k-blocks ahead of the slowest consumer. Every tile has at least
//     one k-block. So the thread is at most kDepth + 1 tiles ahead, and the ring has more entries than that.
//   - The mask warps cannot fall behind. If an operand is triangular, each tile has masked blocks, for which the
//     consumers wait. The only exception is a column half that itself lies beyond the last column of C. Only a
//     cluster's first tile may be such a half, since is_skipped leaves out all others.
template <typename Policy>
DEVICE ClusterTile fetch_next_tile(const typename Policy::Args& args, SharedMemory<Policy>& shared, int tile_seq) {
  static_assert(kRingEntries > Policy::kDepth + 1, "a tile may be one k-block long");
  if (!has_queue<Policy>(args)) return {-1};
  barrier_wait(&shared.ring_full[tile_seq % kRingEntries], tile_seq / kRingEntries % 2);
  // The stress build traps if a later tile has overwritten this one
  IF_DELAY(if ((shared.ring[tile_seq % kRingEntries].tile_seq - tile_seq) % (2 * kRingEntries) != 0) __trap();)
  return shared.ring[tile_seq % kRingEntries];
}

// Requests the next tile. One thread of each CTA calls this. Rank 0 takes the tile from the queue and sends it to the
// other CTAs of the cluster. Each of those CTAs expects the bytes of the tile on its own barrier.
template <typename Policy>
DEVICE void request_tile(const typename Policy::Args& args, SharedMemory<Policy>& shared, int tile_seq, int rank) {
  uint64_t* full = &shared.ring_full[tile_seq % kRingEntries];
  if (rank != 0) return barrier_arrive_expect_tx(full, sizeof(ClusterTile));
  // Numbers below first_queued are the first tiles of the clusters, which do not come from the queue
  const int first_queued = Policy::kQueuesFirstTile ? 0 : args.tiles.clusters;
  ClusterTile tile;
  do {
    const int number = first_queued + args.queue.take(args.tiles.count - first_queued + args.tiles.clusters);
    tile = number < args.tiles.count ? Policy::find_tile(args, number) : ClusterTile{-1};
  } while (tile.row >= 0 && Policy::is_skipped(args, tile));
  IF_DELAY(tile.tile_seq = tile_seq;)
  const uint32_t to = shared_address(&shared.ring[tile_seq % kRingEntries]), barrier = shared_address(full);
  // Rank 0 stores its own copy directly: st.async is illegal in a kernel without clusters
  for (int cta = 1; cta < Policy::kCtas; ++cta)
    UNROLL for (int u = 0; u < int(sizeof(ClusterTile)) / 4; u += 4)
      store_async(address_in_peer(to, cta) + 4 * u, reinterpret_cast<const int*>(&tile) + u,
                  address_in_peer(barrier, cta));
  shared.ring[tile_seq % kRingEntries] = tile;
  barrier_arrive_remote(barrier);
}

// ---- Skeleton: what all policies share: wgmma, arrivals, the producer and the zeros.

// Issues the four wgmma instructions of one k-block, for 64 rows and kN columns. They compute sums = X Y, or
// sums += X Y if `add` is true. x and y are the descriptors of the operands.
template <typename T, int kN, int kXMnMajor, int kYMnMajor>
DEVICE void issue_wgmma(uint64_t x, uint64_t y, float* sums, bool add) {
  // The distance in bytes from one step of k to the next. A step is 16 elements of k
  constexpr uint32_t kStepX = kXMnMajor ? 16 * 128 : 32, kStepY = kYMnMajor ? 16 * 128 : 32;
  UNROLL for (int k = 0; k < kBlock / 16; ++k)
    wgmma<T, kN, kXMnMajor, kYMnMajor>(sums, advance_descriptor(x, k * kStepX), advance_descriptor(y, k * kStepY),
                                   add || k > 0);
}

// Calls arrive(cta) for each of the first `ctas` CTAs of the cluster. Lane i of the warp makes the call for CTA i. In
// racecheck builds every lane makes all calls, so that all lanes take the same path. If a warp diverges here, racecheck
// ends the launch with an error.
template <typename Arrive>
DEVICE void arrive_on_ctas(int ctas, int lane, const Arrive& arrive) {
  if constexpr (kEveryThreadArrives) {
    for (int cta = 0; cta < ctas; ++cta) arrive(cta);
  } else {
    if (lane < ctas) arrive(lane);
  }
}

// Runs a producer. A producer is one thread that loads every k-block of every tile of the cluster. It calls find(args,
// shared, tile) once per tile. The result is an argument of `load`, which is called for each k-block. With
// kRequestsTiles the producer also requests the next tile.
template <typename Policy, bool kRequestsTiles, typename Find, typename Load>
DEVICE void produce(const typename Policy::Args& args, SharedMemory<Policy>& shared, ClusterTile tile,
                    const Find& find, const Load& load) {
  const int rank = cta_rank_in_cluster();
  PipelineState<Policy::kStages> pipeline = {0, 1};   // with parity 1 the first waits end at once: all stages are empty
  for (int tile_seq = Policy::kQueuesFirstTile; tile.row >= 0; tile = fetch_next_tile(args, shared, tile_seq++)) {
    const int count = tile.k_end - tile.k_begin;
    const auto operands = find(args, shared, tile);
    const int request_at = has_queue<Policy>(args) ? max(0, count - Policy::kRequestAhead) : -1;
    int k = args.tiles.k_block(tile, 0);
    NO_UNROLL for (int i = 0; i < count; ++i) {
      load(args, shared, pipeline, tile, rank, KBlock{k, i, i == 0 || k == tile.k_begin, i == count - 1, tile_seq},
           operands);
      if (kRequestsTiles && i == request_at) request_tile(args, shared, tile_seq, rank);
      if (++k == tile.k_end) k = tile.k_begin;
    }
  }
}

// One warp writes zeros to the CTA's share of the tiles above the diagonal, in strips of kLines lines. The zeros within
// tiles on the diagonal are written with the sums, by store_box or write_totals. The warp waits about 2 us first: its
// zeros and the operands compete for memory, and the first operands are needed sooner.
template <typename Policy>
DEVICE void write_zeros_above(const typename Policy::Args& args, int cluster, int rank) {
  if (!has_zeros(args.p)) return;
  // kBlockMN is the edge of a tile, in elements. A strip has kLines lines, and a tile has kStrips strips
  constexpr int kBlockMN = kBlock * Policy::kBlocksN, kLines = 16, kStrips = kBlockMN / kLines;
  // `tiles` is the number of tiles above the diagonal of one C. `ctas` is the number of CTAs of a cluster
  const int tiles = triangle(args.tiles.order.rows - 1), ctas = Policy::kCtas * args.tiles.splits;
  __nanosleep(2000);
  NO_UNROLL for (int64_t u = cluster * ctas + rank; u < int64_t(tiles) * args.tiles.batches * kStrips;
                 u += args.tiles.clusters * ctas) {
    const int number = u / kStrips, batch = number / tiles, tile_index = number % tiles,
              j = triangle_root(tile_index) + 1;
    const int i = tile_index - triangle(j - 1), from = u % kStrips * kLines;
    write_zeros<kBlockMN>(args.p, Policy::result(args, batch), i * kBlockMN, j * kBlockMN, from, from + kLines,
                          threadIdx.x % 32, 32);
  }
}

// ---- Skeleton: the kernel.

// Runs each warp of a CTA in its role. `number` is the cluster's number. `first` is the cluster's first tile. If that
// tile comes from the queue, `first` is ignored.
template <typename Policy>
DEVICE void run_warp_role(const typename Policy::Args& args, SharedMemory<Policy>& shared, ClusterTile first,
                          int number) {
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, rank = cta_rank_in_cluster();
  if (Policy::kQueuesFirstTile && warp == kProducerWarp && lane == 0) request_tile(args, shared, 0, rank);
  __syncwarp();
  cudaGridDependencySynchronize();   // the kernel ahead may still read the memory of C, or write an operand
  ptx::fence_proxy_async(ptx::space_global);
  if (warp == kProducerWarp) TRACE(kTraceProducer, kPreviousDone);
  // A CTA awaits its first tile even if there is no work, since a tile must not arrive at a CTA that has ended
  if (Policy::kQueuesFirstTile) first = fetch_next_tile(args, shared, 0);
  if (!Policy::has_work(args)) return;

  if (warp < kConsumerWarps) {
    warpgroup_reg_alloc<kConsumerRegisters>();
    PipelineState<Policy::kStages> pipeline;
    ClusterTile tile = first;
    for (int tile_seq = Policy::kQueuesFirstTile; tile.row >= 0; tile = fetch_next_tile(args, shared, tile_seq++))
      Policy::compute(args, shared, tile, tile_seq, pipeline);
    TRACE(warp / 4, kTilesDone);
    Policy::finish(args, shared);
  } else {
    warpgroup_reg_dealloc<3 * kEntryRegisters - 2 * kConsumerRegisters>();
    if (warp == kProducerWarp) {
      if (elect_one_sync())
        produce<Policy, Policy::kProducerRequestsTiles>(args, shared, first, Policy::find_operands, Policy::load);
    } else if (warp == kProducerWarp + 1) {
      if (!Policy::kQueuesFirstTile && has_queue<Policy>(args) && rank == 0 && lane == 0)
        args.queue.begin(args.tiles.count);
      __syncwarp();
      TRACE(kTraceZeros, kZerosBegun);
      write_zeros_above<Policy>(args, number, rank);
      TRACE(kTraceZeros, kZerosWritten);
      // The trigger comes this late because the instructions of the next kernel would evict those of this kernel from
      // the caches
      cudaTriggerProgrammaticLaunchCompletion();
    } else {
      Policy::run_policy_warps(args, shared, first);
    }
  }
}

// Stands for the second policy of a launch that has one product.
struct NoSecondProduct { struct Args {}; };

// The kernel. It computes one product, or two products of the same size. With two products, even clusters compute the
// first one and odd clusters compute the second one. One launch for both saves the start and the end of a second
// launch.
template <typename Policy, typename Second = NoSecondProduct>
__global__ void __launch_bounds__(kSkeletonThreads, 1)
    tile_product(const __grid_constant__ typename Policy::Args args,
                 const __grid_constant__ typename Second::Args second) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<SharedMemory<Policy>*>(raw);
  static_assert(sizeof(shared) <= 227 * 1024, "a CTA of Hopper has no more");
  constexpr int kCount = std::is_same_v<Second, NoSecondProduct> ? 1 : 2;
  const int number = ptx::get_sreg_clusterid_x() / kCount;   // the cluster's number in its product
  if (threadIdx.x / 32 == kProducerWarp) TRACE(kTraceProducer, kEntered);
  // One thread initializes the barriers: see elect_one_sync
  if (threadIdx.x < 32 && elect_one_sync()) {
    if (shared_address(raw) % 1024 != 0) __trap();   // the swizzle depends on the lowest ten bits of an address
    Policy::prepare(args, shared);
    // In racecheck builds all threads of SixteenBitPolicy's mask warps arrive. There is one such thread per row of a
    // block
    constexpr int kFullArrivals = kEveryThreadArrives && !Policy::kQueuesFirstTile ? kBlock : 1;
    UNROLL for (int u = 0; u < Policy::kStages; ++u) {
      ptx::mbarrier_init(&shared.full[u], kFullArrivals);
      ptx::mbarrier_init(&shared.empty[u], Policy::kCtas * kConsumerWarps * kWarpArrivals);
    }
    UNROLL for (int u = 0; u < kRingEntries; ++u) ptx::mbarrier_init(&shared.ring_full[u], 1);
    IF_RACECHECK(if (!Policy::kQueuesFirstTile) ptx::mbarrier_init(&sum_mbarrier, kExactThreads);)
    barrier_init_fence();
  }
  __syncwarp();
  cluster_arrive_relaxed();
  ClusterTile first = {};
  if (!Policy::kQueuesFirstTile) {
    first = Policy::find_tile(args, number);
    first.take_split(cta_rank_in_cluster(), args.tiles.splits);
  }
  cluster_wait();
  if (kCount == 1 || blockIdx.x / Policy::kCtas % 2 == 0)
    run_warp_role(args, shared, first, number);
  else if constexpr (kCount == 2)
    run_warp_role(second, *reinterpret_cast<SharedMemory<Second>*>(raw), first, number);
  // A CTA must not end while other CTAs of its cluster may still arrive at its barriers or access its shared memory. In
  // the 16-bit kernel, CTAs that share k read each other's sums there: see compute_rows
  __syncwarp();
  cluster_arrive_relaxed();
  cluster_wait();
  if (threadIdx.x / 32 == kProducerWarp) TRACE(kTraceProducer, kExited);
#endif
}
"""

# ---- 16-bit: float16 and bfloat16 on Hopper's tensor cores, straight from the user's matrices. ----
#
# Takes 16-bit operands with a stride of 1. Their addresses and other strides are multiples of 16 bytes. Produces all of
# C. The one exception is a symmetric C with a masked operand: there `mirror` adds the upper triangle. Nothing is
# packed: TMA copies boxes of 64 x 64 elements to shared memory in the 128-byte swizzle, and wgmma reads them K-major or
# MN-major. Two warps mask the blocks on a diagonal. The zeros of a mask may meet Inf or NaN in the tensor cores,
# which gives NaN. If a 64 x 64 box of C is not finite, CTAs that have no tile left sum it again on the exact path.
_CUDA_SIXTEEN_BIT = r"""
// ---- 16-bit: sizes, and teams of threads.

constexpr int kBlocksM = 2;   // the height of a CTA's tile, in blocks: one block per consumer warpgroup
// Each of these teams of threads has a named barrier: all consumers, each warpgroup of consumers (kGroupTeam and
// kGroupTeam + 1), and the mask warps.
[[maybe_unused]] constexpr int kConsumersTeam = 0, kGroupTeam = 1, kMaskTeam = 3;

// ---- 16-bit: sums that are not finite.

// [begin non-finite boxes]
// Lists the boxes of C that are not finite and have to be summed again. A box has 64 x 64 elements, and is summed in
// kParts parts. The word of a box is the launch's number plus the number of parts that no CTA has taken yet. Any other
// value means that no part can be taken, so nothing has to clear the words before a launch. When a launch ends, all
// parts have been taken. So a CUDA graph may be launched again, although its launch number stays the same.
struct NonFinite {
  static constexpr int kParts = kBlock / kExactRows;   // parts of a box
  unsigned long long* words;   // one word per box, and a last word, which says whether any box has been added
  uint64_t launch;   // the launch's own number, as in TileQueue
  uint32_t boxes;
  // Returns how many parts of a box can still be taken, given the box's word.
  DEVICE int parts(uint64_t word) const { return word - launch <= kParts ? word - launch : 0; }
  // Adds a box, with all of its parts.
  DEVICE void add(uint32_t box) const {
    atomicExch(words + box, launch + kParts);
    atomicExch(words + boxes, launch + kParts);
  }
  // Takes a part of a box. Returns the number of the part, or -1 if none is left.
  DEVICE int take(uint32_t box) const { return parts(atomicAdd(words + box, ~0ull)) - 1; }
};
// [end non-finite boxes]

// ---- 16-bit: what the kernel is given.

// The arguments of a launch.
struct SixteenBitProduct {
  // The dimensions of a tensor map are (k, line, batch) if the operand is K-major, and (line, k, batch) if it is
  // MN-major
  CUtensorMap x, y;
  // The strides of the batch in X and Y, each divided by batch_unit, which is the step of a map's third dimension
  int64_t x_batch[kMaxBatchDims], y_batch[kMaxBatchDims];
  Product p;
  ClusterTiles tiles;
  TileQueue queue;
  NonFinite non_finite;
};

// ---- 16-bit: the epilogue, storing C.

// Rounds a warpgroup's sums of block (row, col) of C, and writes them to C by way of `box` in shared memory. C is
// written in lines of 128 bytes. A line is part of a row, or part of a column if C is column-major. If C is lower, the
// sums above its diagonal become zero first. With kStoresTwice a block below the diagonal is also written above the
// diagonal, transposed. Returns whether any sum of the block is not finite. If no operand has a mask, it returns false.
//
// Successive calls use two boxes in turn. A thread leaves the barrier of call n + 1 only after all threads have read
// the box of call n. So call n + 2 may overwrite the box of call n.
template <typename T, bool kStoresTwice>
DEVICE bool store_box(const Product& p, uint8_t* box, int team, uint16_t* c, int row, int col, float* sum) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const bool c_by_rows = p.c_col == 1;
  if (!kStoresTwice && p.c_lower && col >= row) {
    const int below = (row - col) * kBlock + warp * 16 + lane / 4 - lane % 4 * 2;
    UNROLL for (int u = 0; u < 32; ++u)
      if (u / 4 * 8 + u % 2 > below + u / 2 % 2 * 8) sum[u] = 0.0f;
  }
  uint32_t w[4][4];
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Two zero[2] = {};   // the sums times zero; the result is NaN if any sum is not finite
  UNROLL for (int u = 0; u < 16; ++u) {
    const Two two{sum[2 * u], sum[2 * u + 1]};
    zero[u % 2] = __hfma2(two, Two(), zero[u % 2]);
    w[u / 4][u % 4] = reinterpret_cast<const uint32_t&>(two);
  }
  zero[0] = __hadd2(zero[0], zero[1]);
  // A finite sum beyond the range of float16 also counts as not finite. The exact path then gets the same Inf
  const bool finite = (reinterpret_cast<const uint32_t&>(zero[0]) & 0x7FFF7FFF) == 0;
  auto write = [&](int row, int col, bool by_rows) {
    // Write the block to shared memory, in the 128-byte swizzle
    const uint32_t base = shared_address(box);
    const uint32_t by_row = base + swizzled(warp * 16 + lane % 16, lane / 16 * 8);
    const uint32_t by_col = base + swizzled(lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8);
    if (by_rows) {
      UNROLL for (int q = 0; q < 4; ++q) stmatrix_x4<false>(by_row ^ 32 * q, w[q]);
    } else {
      UNROLL for (int q = 0; q < 4; ++q) stmatrix_x4<true>(by_col + 2048 * q, w[q]);
    }
    // With kStoresTwice no operand has a mask, so the threads need no vote. A vote would cost uniform registers in the
    // loops around the call, since the compiler does not know that all threads get the same result
    const bool any = kStoresTwice ? named_barrier_sync<128>(team),
               false              : named_barrier_or<128>(team, is_masked(p) && !finite);
    const int m = p.m - row * kBlock, n = p.n - col * kBlock;   // rows and columns of C from this block on
    const int lines = c_by_rows ? m : n, length = c_by_rows ? n : m;
    const int64_t stride = c_by_rows ? p.c_row : p.c_col;
    uint16_t* first = c + row * kBlock * p.c_row + col * kBlock * p.c_col;
    if ((int(stride) | length | int(reinterpret_cast<uintptr_t>(c)) / 2) % 8 == 0) {   // 16 bytes at a time
      const int thread_line = thread / 8, thread_col = thread % 8 * 8;
      uint16_t* to = first + thread_line * stride + thread_col;
      const uint8_t* from = box + swizzled(thread_line, thread_col);   // 16 lines of the box take 2048 bytes
      auto copy = [](uint16_t* to, const uint8_t* from) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      };
      if (lines >= kBlock && thread_col < length) {
        UNROLL for (int u = 0; u < kBlock / 16; ++u) copy(to + u * 16 * stride, from + u * 2048);
      } else if (thread_col < length) {
        NO_UNROLL for (int line = thread_line; line < lines; line += 16, to += 16 * stride, from += 2048)
          copy(to, from);
      }
    } else {
      NO_UNROLL for (int line = warp; line < min(lines, kBlock); line += 4)
        UNROLL for (int e = lane; e < kBlock; e += 32)
          if (e < length) first[line * stride + e] = *reinterpret_cast<const uint16_t*>(box + swizzled(line, e));
    }
    return any && m > 0 && n > 0;
  };
  if constexpr (kStoresTwice)
    if (col < row) {
      write(col, row, !c_by_rows);
      named_barrier_sync<128>(team);   // all threads have read the box, so it may be overwritten
    }
  return write(row, col, c_by_rows);
}

// ---- 16-bit: the policy: how the user's matrices are copied, masked and multiplied.

// Masks a row of a block on the diagonal: the elements beyond the diagonal become zero. With `lower` the lower triangle
// of the block is kept. Otherwise the upper triangle is kept.
DEVICE void mask_row(uint8_t* block, bool lower, int row) {
  auto chunk = [&](int c) { return reinterpret_cast<uint4*>(block + swizzled(row, 8 * c)); };
  // The diagonal crosses chunk diagonal_chunk. With `lower`, its first num_first elements are kept, and the others
  // become zero. Without `lower`, its first num_first elements become zero, and the others are kept
  const int diagonal_chunk = row / 8, num_first = row % 8 + lower;
  const uint4 v = *chunk(diagonal_chunk);
  auto part = [&](uint32_t two, int u) {
    const uint32_t first = num_first >= 2 * u + 2 ? ~0u : num_first == 2 * u + 1 ? 0xFFFFu : 0u;
    return two & (lower ? first : ~first);
  };
  *chunk(diagonal_chunk) = make_uint4(part(v.x, 0), part(v.y, 1), part(v.z, 2), part(v.w, 3));
  UNROLL for (int c = 0; c < 8; ++c)
    if (lower ? c > diagonal_chunk : c < diagonal_chunk) *chunk(c) = uint4();
}

// The policy for 16-bit types. The skeleton lists what the members of a policy do.
//   kXMnMajor, kYMnMajor   1 if the operand is MN-major, 0 if it is K-major
//   kLarge                 true: two CTAs compute a tile of 256 x 256, one above the other, and each copies half of Y
//                          for both; false: one CTA computes a tile of 128 x 128
//   kStoresTwice           C is symmetric and no operand has a mask: only the lower half of C is computed, and it is
//                          also written to the upper half
template <typename T, int kXMnMajor, int kYMnMajor, bool kLarge, bool kStoresTwice>
struct SixteenBitPolicy {
  using Args = SixteenBitProduct;
  using Shared = SharedMemory<SixteenBitPolicy>;
  static constexpr int kBlocksN = kLarge ? 4 : 2, kBlocks = kBlocksM + kBlocksN, kStages = kLarge ? 4 : 6,
                       kDepth = kStages;
  static constexpr int kCtas = kLarge ? 2 : 1, kRequestAhead = 3;
  static_assert(kBlocksN * kBlock == (kLarge ? kLargeTile : kSmallTile), "the host has other tiles");
  static_assert(kBlocksM * kCtas == kBlocksN, "tiles are square");
  static constexpr bool kProducerRequestsTiles = true, kQueuesFirstTile = false;

  struct Memory {
    uint8_t stage[kStages][kBlocks][kOperandBytes];   // each stage holds the block of X of each warpgroup, then Y
    uint8_t box[2][2][kOperandBytes];   // boxes of C on their way to memory: two per warpgroup
    // One mbarrier per stage. If a k-block has to be masked, its copies arrive here, and the mask warps wait for them
    uint64_t landed[kStages];
    // An mbarrier whose phase ends when all consumer warps of the CTAs that share k have written their sums
    uint64_t sums_written;
    // The box that the CTA sums again, exclusive-ored with `cta` of `finish`; ~0 if there is no box
    uint32_t found;
    int part;                   // the part of the box `found` that the CTA sums
    bool unfinished[2];         // per warpgroup: whether it knows of a box that is not finite
  };

  static DEVICE void prepare(const Args& args, Shared& shared) {
    prefetch_tma_descriptor(args.x);
    prefetch_tma_descriptor(args.y);
    UNROLL for (int u = 0; u < kStages; ++u) ptx::mbarrier_init(&shared.policy.landed[u], 1);
    ptx::mbarrier_init(&shared.policy.sums_written, kConsumerWarps * kWarpArrivals * args.tiles.splits);
    shared.policy.unfinished[0] = shared.policy.unfinished[1] = false;
  }
  static DEVICE ClusterTile find_tile(const Args& args, int number) {
    ClusterTiles tiles = args.tiles;
    // With these constants the compiler knows the order of the tiles, which saves a tenth of the code
    if (kStoresTwice) {
      tiles.order.x_range = tiles.order.y_range = KRange::kAll;
      tiles.order.c_lower = 1;
    }
    return tiles.find_tile(number);
  }
  static DEVICE bool has_work(const Args&) { return true; }
  static DEVICE bool is_skipped(const Args& args, const ClusterTile& tile) { return tile.col * kBlock >= args.p.n; }
  static DEVICE uint16_t* result(const Args& args, int batch) { return c_matrix<uint16_t>(args.p, batch); }

  // A block of 64 lines of an operand, and the range of k-blocks in which it has elements.
  struct LineBlock {
    int first;           // the first line, in elements
    int begin, length;   // the first k-block, and the number of k-blocks; the range may go beyond the end of k
  };
  static constexpr int kBlocksY = kBlocksN / kCtas;   // how many blocks of Y a CTA copies per k-block of a whole tile
  // The values that the producer finds once per tile for `load`. A single thread takes a hundred instructions for this.
  // In a small tile, the same work for each k-block would take longer than the tensor cores do.
  struct Operands {
    LineBlock x[kBlocksM], y[kBlocksY];
    // How many boxes of Y this CTA copies, and the index in a stage of the first of these boxes
    int y_boxes, first_y_box;
    int bytes;                    // bytes that land in this CTA's stage per k-block
    int x_batch, y_batch;         // third coordinates in the tensor maps
    int x_diagonal, y_diagonal;   // the first k-block in which blocks of X, or of Y, are masked
  };
  // Whether a small tile lies on the diagonal of a symmetric C. In such a tile the columns of Y equal the rows of X, so
  // only X is copied. The tile is computed only up to the blocks on the diagonal.
  static DEVICE bool on_diagonal_of_c(const Args& args, const ClusterTile& tile) {
    return kStoresTwice && !kLarge && args.tiles.splits == 1 && tile.row == tile.col && tile.cols == kBlocksN;
  }
  static DEVICE Operands find_operands(const Args& args, Shared&, const ClusterTile& tile) {
    const int rank = kLarge ? cta_rank_in_cluster() : 0, blocks = tile.cols / kCtas;
    auto line_block = [&](KRange of_operand, int block) {
      const KRange side = kStoresTwice ? KRange::kAll : of_operand;
      return LineBlock{block * kBlock, side == KRange::kFromDiagonal ? block : 0,
                       side == KRange::kToDiagonal ? block + 1 : args.tiles.order.depth};
    };
    Operands operands;
    const int first_row = tile.row + rank * kBlocksM;
    UNROLL for (int u = 0; u < kBlocksM; ++u) operands.x[u] = line_block(args.p.x_range, first_row + u);
    UNROLL for (int u = 0; u < kBlocksY; ++u) operands.y[u] = line_block(args.p.y_range, tile.col + rank * blocks + u);
    const bool diagonal = on_diagonal_of_c(args, tile);
    operands.y_boxes = diagonal ? 0 : blocks;
    operands.first_y_box = kBlocksM + rank * blocks;
    operands.bytes = (kBlocksM + (diagonal ? 0 : tile.cols)) * kOperandBytes;
    operands.x_batch = batch_offset(args.p, args.x_batch, tile.batch);
    operands.y_batch = batch_offset(args.p, args.y_batch, tile.batch);
    operands.x_diagonal = first_on_diagonal(args.p.x_range, tile.row);
    operands.y_diagonal = first_on_diagonal(args.p.y_range, tile.col);
    return operands;
  }

  // Copies the boxes of a k-block. For a block that does not exist, the copy names a k beyond the end of the operand.
  // There TMA delivers zeros.
  static DEVICE void load(const Args& args, Shared& shared, PipelineState<kStages>& pipeline,
                          const ClusterTile& tile, int /*rank*/, const KBlock& k_block, const Operands& operands) {
    const int k = k_block.k;
    const uint32_t x = k - operands.x_diagonal, y = k - operands.y_diagonal;
    const bool masked = !kStoresTwice && (x < kBlocksN || y < tile.cols);
    auto& stage = shared.policy.stage[pipeline.stage];
    uint64_t* barrier = &(masked ? shared.policy.landed : shared.full)[pipeline.stage];
    auto tma_load = [&](bool multicast, int box, const CUtensorMap& map, bool lines_first, const LineBlock& line,
                        int batch) {
      const int depth =
          (kStoresTwice || uint32_t(k - line.begin) < uint32_t(line.length) ? k : args.tiles.order.depth) * kBlock;
      const int from[] = {lines_first ? line.first : depth, lines_first ? depth : line.first, batch};
      auto copy = [&](auto... ctas) {
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stage[box], &map, from, barrier, ctas...);
      };
      multicast ? copy(3) : copy();   // the mask 3 has one bit per CTA, as in copy_bulk_multicast
    };
    barrier_wait(&shared.empty[pipeline.stage], pipeline.parity);
    barrier_arrive_expect_tx(barrier, operands.bytes);
    UNROLL for (int u = 0; u < kBlocksM; ++u)
      tma_load(false, u, args.x, kXMnMajor, operands.x[u], operands.x_batch);
    UNROLL for (int u = 0; u < kBlocksY; ++u)
      if (u < operands.y_boxes)
        tma_load(kLarge, operands.first_y_box + u, args.y, kYMnMajor, operands.y[u], operands.y_batch);
    // In racecheck builds, `full` counts one arrival per thread of the two mask warps, which skip a k-block without a
    // mask. So this thread makes all arrivals: one above, and the others here
    if (kEveryThreadArrives && !masked)
      for (int u = 1; u < kBlock; ++u) barrier_arrive_remote(shared_address(barrier));
    pipeline.advance();
  }

  // Two warps mask the blocks on a diagonal. If a zero of the mask meets NaN or Inf, the sum becomes NaN: see finish.
  static DEVICE void run_policy_warps(const Args& args, Shared& shared, ClusterTile tile) {
    if (kStoresTwice || !is_masked(args.p)) return;
    const int row = threadIdx.x % kBlock;   // the row of a block that this thread masks
    static_assert(kProducerWarp % 2 == 0, "the mask warps begin with row 0");
    uint32_t parities = 0;   // the parity of the next phase of `landed`: one bit per stage
    PipelineState<kStages> pipeline;
    for (int tile_seq = 0; tile.row >= 0; tile = fetch_next_tile(args, shared, tile_seq++))
      NO_UNROLL for (int i = 0; i < tile.k_end - tile.k_begin; ++i, pipeline.advance()) {
        const int k = args.tiles.k_block(tile, i);
        const uint32_t x = k - first_on_diagonal(args.p.x_range, tile.row),
                       y = k - first_on_diagonal(args.p.y_range, tile.col);
        if (x >= kBlocksN && y >= tile.cols) continue;
        barrier_wait(&shared.policy.landed[pipeline.stage], parities >> pipeline.stage & 1);
        parities ^= 1u << pipeline.stage;
        const uint32_t x_block = x - (kLarge ? cta_rank_in_cluster() * kBlocksM : 0);
        auto& stage = shared.policy.stage[pipeline.stage];
        if (x_block < kBlocksM) mask_row(stage[x_block], (args.p.x_range == KRange::kToDiagonal) != kXMnMajor, row);
        if (y < tile.cols) mask_row(stage[kBlocksM + y], (args.p.y_range == KRange::kToDiagonal) != kYMnMajor, row);
        ptx::fence_proxy_async(ptx::space_shared);   // the tensor cores will read the zeros that mask_row has written
        named_barrier_sync<kBlock>(kMaskTeam);
        if (kEveryThreadArrives || row == 0) barrier_arrive_remote(shared_address(&shared.full[pipeline.stage]));
      }
  }

  // ---- 16-bit: the policy: the main loop, and sums that are not finite.

  static DEVICE int canonical_warp_group_idx() { return __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0); }
  static constexpr bool kHasDiagonalPairs = kStoresTwice && !kLarge;
  // Computes a consumer warpgroup's share of a CTA's tile: 64 rows. A symmetric C has two exceptions. In half of a
  // diagonal pair (see ClusterTiles), warpgroup 1 computes the lower triangle of a tile on the diagonal instead. In a
  // tile for which on_diagonal_of_c is true, warpgroup 0 computes only the first half of the columns.
  static DEVICE void compute(const Args& args, Shared& shared, const ClusterTile& tile, int&,
                             PipelineState<kStages>& pipeline) {
    const bool half_of_columns =
        tile.cols < kBlocksN || (on_diagonal_of_c(args, tile) && canonical_warp_group_idx() == 0);
    if (kHasDiagonalPairs && tile.pair_half && canonical_warp_group_idx() == 1)
      return compute_rows<kBlocksN, kHasDiagonalPairs>(args, shared, tile, pipeline);
    half_of_columns ? compute_rows<kBlocksN / 2>(args, shared, tile, pipeline)
                    : compute_rows<kBlocksN>(args, shared, tile, pipeline);
  }

  // Computes 64 rows and kCols blocks of columns. With kOnDiagonal, it computes the lower half of a diagonal tile of a
  // diagonal pair instead. That half has three boxes: one in the upper block of rows, and two in the lower block of
  // rows. In a diagonal tile the columns of Y equal the rows of X, so both operands come from the same boxes.
  template <int kCols, bool kOnDiagonal = false>
  static DEVICE void compute_rows(const Args& args, Shared& shared, const ClusterTile& tile,
                                  PipelineState<kStages>& pipeline) {
    const int group = canonical_warp_group_idx(), lane = threadIdx.x % 32, rank = cta_rank_in_cluster();
    uint32_t base = shared_address(&shared);
    make_opaque(base);
    const int x_block = kOnDiagonal                           ? (tile.pair_half == 1 ? kBlocksM : 0)
                        : kHasDiagonalPairs && tile.pair_half ? tile.pair_half - 1
                                                              : group;
    const int y_block = kOnDiagonal ? x_block : on_diagonal_of_c(args, tile) ? 0 : kBlocksM;
    constexpr int kBoxes = kOnDiagonal ? 3 : kCols;
    float sum[32 * kBoxes] = {};
    // The sums are opaque, so that the compiler sets them to zero before the first k-block lands
    UNROLL for (int u = 0; u < 32 * kBoxes; ++u) make_opaque(sum[u]);
    auto block = [&](int u) {
      return make_descriptor(base + (pipeline.stage * kBlocks + u) * kOperandBytes, kOperandBytes, 1024);
    };
    auto release = [&](int stage) {   // each warp arrives for itself, on the barrier of each CTA that fills the stage
      const uint32_t barrier = base + offsetof(Shared, empty) + 8 * stage;
      arrive_on_ctas(kCtas, lane, [&](int cta) {
        barrier_arrive_remote(kLarge ? address_in_peer(barrier, cta) : barrier);
      });
    };
    int reading = -1;   // the stage that may still be multiplied while the next stage is issued; -1 at first
    NO_UNROLL for (int k_blocks_left = tile.k_end - tile.k_begin; k_blocks_left > 0;
                   --k_blocks_left, pipeline.advance()) {
      const uint64_t x_descriptor = block(x_block), y_descriptor = block(y_block);
      barrier_wait(base + offsetof(Shared, full) + 8 * pipeline.stage, pipeline.parity);
      warpgroup_arrive();
      issue_wgmma<T, 64 * (kOnDiagonal ? 1 : kCols), kXMnMajor, kYMnMajor>(x_descriptor, y_descriptor, sum, true);
      if constexpr (kOnDiagonal)   // issues the two boxes of the lower block of rows
        issue_wgmma<T, 64 * kCols, kXMnMajor, kYMnMajor>(advance_descriptor(x_descriptor, kOperandBytes), y_descriptor,
                                                     sum + 32, true);
      warpgroup_commit_batch();
      warpgroup_wait<1>();
      if (reading >= 0) release(reading);
      reading = pipeline.stage;
    }
    warpgroup_wait<0>();
    if (reading >= 0) release(reading);

    const int row =
        kOnDiagonal ? (tile.pair_half == 1 ? tile.col : tile.row) : tile.row + (kLarge ? rank * kBlocksM : 0) + x_block;
    const int col = kOnDiagonal ? row : tile.col;
    uint16_t* c = result(args, tile.batch);
    // `last_word` is loaded this early, so that it arrives while C is written
    const uint64_t last_word =
        !kStoresTwice && is_masked(args.p) ? load_relaxed(args.non_finite.words + args.non_finite.boxes) : 0;
    uint32_t non_finite = 0;   // the boxes that are not finite: one bit per column of boxes
    auto store = [&](int buffer, int i, int j, float* sum) {
      if (kStoresTwice && col + j > row + i) return;
      if (store_box<T, kStoresTwice>(args.p, shared.policy.box[group][buffer], kGroupTeam + group, c, row + i,
                                     col + j, sum))
        non_finite |= 1u << j;
    };
    if (kLarge || kCols < kBlocksN || args.tiles.splits == 1) {
      // The last store of the previous tile may have used the same buffer of `policy.box` as the first store of this
      // tile. All threads must have read that buffer before it is overwritten
      if (kCols == 1 || kStoresTwice) named_barrier_sync<128>(kGroupTeam + group);
      // A column half of a small tile (kCols == 1) has one box, which goes through buffer 1. A whole tile begins with
      // buffer 0. So a whole tile after a column half needs no barrier: see store_box
      constexpr int kFirst = kCols == 1;
      UNROLL for (int u = 0; u < kBoxes; ++u)
        store((kFirst + u) % 2, kOnDiagonal && u > 0, kOnDiagonal ? u / 2 : u, sum + 32 * u);
    } else {
      // Each CTA writes its sums to its own stages, which nothing fills again: a cluster that shares k has one tile.
      // Then the first four warpgroups of the cluster add up one box each, in the order of the splits, from the shared
      // memory of all CTAs. In a cluster of four CTAs the last two have no box. tile_product keeps every CTA until all
      // warpgroups have read the sums
      float4* sums = reinterpret_cast<float4*>(shared.policy.stage);
      static_assert(sizeof(shared.policy.stage) >= sizeof(sum) * 256, "the sums must fit the stages");
      named_barrier_sync<256>(kConsumersTeam);   // all consumers have read the stages
      UNROLL for (int u = 0; u < 32 * kCols; u += 4)
        sums[u * 64 + threadIdx.x] = make_float4(sum[u], sum[u + 1], sum[u + 2], sum[u + 3]);
      __syncwarp();
      const uint32_t written = shared_address(&shared.policy.sums_written);
      arrive_on_ctas(args.tiles.splits, lane, [&](int cta) {
        barrier_arrive_release_cluster(address_in_peer(written, cta));
      });
      while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &shared.policy.sums_written, 0)) {}
      NO_UNROLL for (int box = 2 * rank + group; box < kBlocksM * kCols; box += 2 * args.tiles.splits) {
        float total[32] = {};
        NO_UNROLL for (int cta = 0; cta < args.tiles.splits; ++cta) {
          const uint32_t peer_address =
              address_in_peer(shared_address(sums + box / 2 * 8 * 256 + box % 2 * 128 + threadIdx.x % 128), cta);
          float4 part[8];   // all loads are issued before the first sum is added
          UNROLL for (int e = 0; e < 8; ++e) part[e] = load_in_peer(peer_address + e * 256 * sizeof(float4));
          UNROLL for (int e = 0; e < 32; ++e) total[e] += reinterpret_cast<const float*>(part)[e];
        }
        store(0, 0, box / 2, total);
      }
    }
    if (__builtin_expect(non_finite, 0)) {
      named_barrier_sync<128>(kGroupTeam + group);
      __threadfence();   // this warpgroup's writes to C must come before those of the CTA that sums the box again
      const uint32_t first =
          (uint32_t(tile.batch) * ceil_div(args.p.m, kBlock) + row) * ceil_div(args.p.n, kBlock) + col;
      for (uint32_t bits = threadIdx.x % 128 == 0 ? non_finite : 0; bits; bits &= bits - 1)
        args.non_finite.add(first + __ffs(bits) - 1);
      __syncwarp();
    }
    if (!kStoresTwice && threadIdx.x % 128 == 0 && (non_finite || args.non_finite.parts(last_word)))
      shared.policy.unfinished[group] = true;
  }

  // Sums again the boxes that are not finite. CTAs that have no tile left do this, whichever CTA found a box. No box is
  // left over, since a CTA that adds a box always scans the words afterwards.
  static DEVICE void finish(const Args& args, Shared& shared) {
    auto& policy = shared.policy;
    if (kStoresTwice || !is_masked(args.p)) return;
    sum_barrier<kExactThreads>();
    if (!policy.unfinished[0] && !policy.unfinished[1]) return;
    // The first stages hold this CTA's sums, which another CTA of the cluster may still read
    auto& memory = *reinterpret_cast<ExactMemory*>(policy.stage[kStages - 1]);
    constexpr int kSumsBytes = kExactThreads * kBlocksN * 32 * sizeof(float);
    static_assert(sizeof(memory) <= sizeof(policy.stage[0]) && kSumsBytes <= (kStages - 1) * sizeof(policy.stage[0]),
                  "both have room");
    static_assert(kExactThreads == 32 * kConsumerWarps && kConsumersTeam == 0, "the exact path takes all consumers");
    const uint32_t boxes = args.non_finite.boxes, cta = blockIdx.x % kExactThreads;
    // A thread goes over every 256th word, eight words at a time. It stays at eight words until no work is left in them
    uint32_t first = threadIdx.x;
    while (true) {
      if (threadIdx.x == 0) policy.found = ~0u;
      sum_barrier<kExactThreads>();
      uint32_t candidate = ~0u;
      for (; candidate == ~0u && first < boxes; first += candidate == ~0u ? 8 * kExactThreads : 0)
        UNROLL for (int u = 0; u < 8 * kExactThreads; u += kExactThreads)
          if (const uint32_t box_index = min(first + u, boxes - 1);
              args.non_finite.parts(load_relaxed(args.non_finite.words + box_index)))
            candidate = box_index;
      // The exclusive-or with `cta` makes different CTAs prefer different boxes
      if (candidate != ~0u) atomicMin(&policy.found, candidate ^ cta);
      sum_barrier<kExactThreads>();
      if (policy.found == ~0u) return;
      const uint32_t box = policy.found ^ cta;
      if (threadIdx.x == 0) {
        policy.part = args.non_finite.take(box);
        __threadfence();
      }
      sum_barrier<kExactThreads>();
      if (policy.part < 0) continue;
      const uint32_t rows = ceil_div(args.p.m, kBlock), cols = ceil_div(args.p.n, kBlock);
      const int row = box / cols % rows, batch = box / cols / rows, begin = policy.part * kExactRows;
      exact_rows<T, !kXMnMajor, !kYMnMajor>(args.p, TileOrder::make(args.p, kBlock).make_tile(row, box % cols), begin,
                                        batch, memory);
    }
  }
};

// ---- 16-bit: launching.

// Launches the kernel: with large tiles if kLarge, and with small tiles otherwise.
template <typename T, bool kLarge>
static void launch_sixteen_bit_tiles(const SixteenBitProduct& args, const Gpu& gpu) {
  const Product& p = args.p;
  std::visit([&](auto x_mn_major, auto y_mn_major, auto stored_twice) {
    using Policy = SixteenBitPolicy<T, x_mn_major, stored_twice ? x_mn_major : y_mn_major, kLarge, stored_twice>;
    const int ctas = Policy::kCtas * args.tiles.splits;   // CTAs of a cluster
    constexpr auto kBytes = sizeof(SharedMemory<Policy>);
    launch_kernel<tile_product<Policy>>({args.tiles.clusters * ctas, kSkeletonThreads, kBytes, ctas, true, gpu.stream},
                                        args, NoSecondProduct::Args());
  }, constant(p.x_col != 1), constant(p.y_row != 1), constant(is_stored_twice(p)));
}
"""

_CUDA_SIXTEEN_BIT_LAUNCH = r"""
// Makes the tensor map of an operand. A box is 64 x 64 elements, in the 128-byte swizzle. The third
// dimension advances by batch_unit elements; `steps` gets the strides of the batch in that unit.
static CUtensorMap encode_map(const void* data, cuuint64_t line_stride, cuuint64_t k_stride, cuuint64_t lines,
                              const Product& p, const int64_t* batch_strides, int64_t* steps) {
  static const auto encode = [] {
    void* found = nullptr;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault));
    if (!found) check(cudaErrorNotSupported);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const cuuint64_t unit = batch_unit(p, batch_strides), depth = p.k;
  cuuint64_t batches = 1;
  for (int d = 0; d < p.batch_dims; ++d) {
    steps[d] = batch_strides[d] / unit;
    batches += (p.batch_size[d] - 1) * steps[d];
  }
  const cuuint64_t sizes[] = {k_stride == 1 ? depth : lines, k_stride == 1 ? lines : depth, batches};
  const cuuint64_t strides[] = {std::max(line_stride, k_stride) * 2, unit * 2};
  const cuuint32_t box[] = {kBlock, kBlock, 1}, every[] = {1, 1, 1};
  const auto element = p.type == kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMap map;
  check(cudaError_t(   // the driver's errors have the runtime's numbers
      encode(&map, element, 3, const_cast<void*>(data), sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)));
  return map;
}

// These functions are instances of launch_sixteen_bit_tiles. Other parts of the source define them: see _CUDA_PARTS.
using SixteenBitLauncher = void(const SixteenBitProduct& args, const Gpu& gpu);
SixteenBitLauncher launch_small_float16, launch_large_float16, launch_small_bfloat16, launch_large_bfloat16;

// Launches the 16-bit kernel. If there are tail tiles, they are launched first, as a batch of products of their own:
// see last_on_diagonal.
void launch_sixteen_bit(const Product& p, const Gpu& gpu) {
  SixteenBitProduct args = {};
  args.p = p;
  args.tiles = choose_sixteen_bit_tiles(p, gpu);
  if (args.tiles.count > kMaxSize) check(cudaErrorInvalidConfiguration);
  // CTAs that share k wait only for phase 0 of sums_written, so their cluster must not get a second tile
  if (args.tiles.splits > 1 && args.tiles.clusters != args.tiles.count) check(cudaErrorUnknown);
  if (args.tiles.tail_tiles) launch_sixteen_bit(last_on_diagonal(p, args.tiles.tail_tiles), gpu);
  // The workspace holds TileQueue's word, then the words of NonFinite. NonFinite has one word per box if an operand has
  // a mask, and one last word in any case
  const int64_t boxes = is_masked(p) ? p.batches * ceil_div(p.m, kBlock) * ceil_div(p.n, kBlock) : 0;
  auto* words = static_cast<unsigned long long*>(gpu.allocate(gpu, (2 + boxes) * 8));
  args.queue = {words, launch_number()};
  IF_INITCHECK(check(cudaMemsetAsync(words, 0, (2 + boxes) * 8, gpu.stream));)
  args.non_finite = {words + 1, args.queue.launch, uint32_t(boxes)};
  args.x = encode_map(p.x, p.x_row, p.x_col, p.m, p, p.x_batch, args.x_batch);
  args.y = encode_map(p.y, p.y_col, p.y_row, p.n, p, p.y_batch, args.y_batch);
  const bool is_large = args.tiles.order.edge * kBlock == kLargeTile;
  if (p.type == kFloat16)
    (is_large ? launch_large_float16 : launch_small_float16)(args, gpu);
  else
    (is_large ? launch_large_bfloat16 : launch_small_bfloat16)(args, gpu);
}
"""

# ---- Packing: float32 -> scaled pairs of fp16 in the tensor cores' own layout. ----
#
# Takes float32 matrices of any strides. Produces packed blocks of 64 x 64 elements, in the order in which wgmma reads
# shared memory. Each element is scaled and becomes two float16 numbers: hi, and the remainder lo. Each block also has
# metadata: the factor that undoes its scale, and its outliers. The scale is a power of two. It
# brings the largest magnitude of the block to at least 32760 and below 65520, which float16 rounds to Inf. Tiny blocks
# are an exception: see scale_exponent. One packed matrix serves all three contractions, since wgmma reads K-major and
# MN-major operands.
_CUDA_PACKED = r"""
// ---- Packing: a packed matrix, and where an element lies in a block.

// Returns the size of a packed block. The block is one operand tile of hi and then one of lo. With TF32 there is no lo.
HOST_DEVICE constexpr int64_t block_bytes(bool allow_tf32) { return (allow_tf32 ? 1 : 2) * kOperandBytes; }
constexpr int kMaxOutliers = 14;   // a block with more outliers than this makes its product fall back

// An element that is too small for the scale of its block. The operand tile holds a zero in its place.
struct Outlier {
  uint16_t row, col;
  float value;
};

// The part of the metadata that is copied to shared memory with the block. kTolerance explains which blocks are wide.
struct alignas(16) BlockHead {
  float unscale;    // an element is (hi + lo * residual) * unscale
  float residual;   // 2^-11 if the block is wide, otherwise 1
  int outliers;     // number of outliers, which may exceed kMaxOutliers
  int none;         // zero; fills the 16 bytes of a bulk copy
};
struct alignas(128) BlockMetadata {
  BlockHead head;
  Outlier outlier[kMaxOutliers];   // sorted by row, then by column
};
static_assert(sizeof(BlockHead) == 16 && sizeof(BlockMetadata) == 128, "bulk copies take multiples of 16 bytes");

// The packed matrices of an operand: one matrix per product of the batch, or one that all products share. The blocks of
// a matrix are stored row by row. A triangular matrix has only the blocks on and below its diagonal.
struct Packed {
  const float* source;              // the operand's first matrix before packing, as the user stores it
  int64_t row_stride, col_stride;   // in elements
  int rows, cols;                   // in elements
  int triangular;                   // 1: lower triangular
  int block_cols;                   // blocks in a row of blocks
  int matrices;
  int blocks_each;                  // blocks per matrix
  uint8_t* blocks;
  BlockMetadata* metadata;          // one per block
  // One bit mask per row of blocks, and one per column of blocks. A bit mask marks wide blocks: see mask_words
  uint32_t *wide_by_row, *wide_by_col;
};

// Returns the index of the packed matrix that a product of the batch reads.
DEVICE int find_matrix(const Packed& p, int batch) { return min(batch, p.matrices - 1); }

// Returns the index of block (r, c), counted from the first block of its matrix.
DEVICE int64_t block_index(const Packed& p, int r, int c) {
  return p.triangular ? triangle(r) + c : int64_t(r) * p.block_cols + c;
}

// Returns the number of 32-bit words in the mask of a line of blocks. A line is a row or a column of blocks. The first
// word is not zero if a block of the line has outliers. The other words have one bit per block, which is set if the
// block is wide.
HOST_DEVICE int mask_words(int blocks) { return ceil_div(blocks, 32) + 1; }

// Returns the address of the mask of row `line` of blocks, or of column `line` if is_col is true.
DEVICE uint32_t* wide_in_line(const Packed& p, int matrix, bool is_col, int line) {
  return is_col ? p.wide_by_col + (matrix * p.block_cols + line) * mask_words(ceil_div(p.rows, kBlock))
                : p.wide_by_row + (matrix * ceil_div(p.rows, kBlock) + line) * mask_words(p.block_cols);
}

// ---- Packing: the way back to float32.

// Undoes the scales of two blocks in the sums of their product, and adds the sums to the totals. If the block of Y does
// not exist, y_unscale is 0. Then the sums may hold anything, and nothing is added.
DEVICE void promote(const float* sums, float x_unscale, float y_unscale, float* total) {
  const float scale = x_unscale * y_unscale;
  if (scale >= 0x1p-126f && scale <= 0x1p127f) {
    UNROLL for (int u = 0; u < 32; ++u) total[u] = fmaf(sums[u], scale, total[u]);
  } else if (y_unscale != 0.0f) {
    // The product of the two factors is not a normal number, so they are applied one by one. Either both are below 1 or
    // both are above 1. The larger one comes first: its product with a small sum is rarely below 2^-126, where it would
    // be rounded. So as a rule only the multiply-add rounds
    UNROLL for (int u = 0; u < 32; ++u)
      total[u] = fmaf(sums[u] * fmaxf(x_unscale, y_unscale), fminf(x_unscale, y_unscale), total[u]);
  }
}
"""

_CUDA_PACKING = r"""
// [begin fp16x3 product]
// ---- Packing: the arguments of pack_blocks, tile_product and fixup_kernel.

struct Fp16x3Product {
  Product p;
  Packed x, y;                    // rows are lines and columns are k, or the reverse: see k_is_row
  int x_blocks, y_blocks;         // blocks that pack_blocks packs; 0 if the operand is packed already
  unsigned long long* progress;   // the launch's number and its Progress bits
  uint64_t launch;                // the launch's number
  Control* controls;              // one per product of the batch
  int words;                      // how many 32-bit words pack_blocks sets to zero, from `controls` on
  const Control* kept;            // the Controls of the forward product, if its packed operands are used, or null
  ClusterTiles tiles;
  TileQueue queue;
  int* finished_splits;           // one per 64 x 256 part of each C: how many splits have stored their sums
  int* next_fixup_tile;           // the counter of fixup_kernel's queue
  float* partial_sums;            // the sums of all splits but the last one of each tile
  // Where each warpgroup keeps the sums of its tile's earlier chains (see kChain). Null if C holds them, or if no sum
  // has a second chain
  float* chain_sums;
};

// ---- Packing: the blocks of an operand, found by line (row block of X, column block of Y) and k-block.

DEVICE int num_line_blocks(const Fp16x3Product& args, Operand operand) {
  return ceil_div(operand == kX ? args.p.m : args.p.n, kBlock);
}

// Whether an operand has a block at this line and k-block. k must be a k-block of the product.
DEVICE bool has_block(const Fp16x3Product& args, Operand operand, int line, int k) {
  return line < num_line_blocks(args, operand) && is_in_range(operand == kX ? args.p.x_range : args.p.y_range, line, k);
}

// Returns the index of an operand's block at this line and k-block, counted from the first block of its matrix.
DEVICE int find_block(const Fp16x3Product& args, Operand operand, bool k_is_row, int line, int k) {
  const Packed& packed = operand == kX ? args.x : args.y;
  return k_is_row ? block_index(packed, k, line) : block_index(packed, line, k);
}
// [end fp16x3 product]

// ---- Packing: float32 as pairs of float16.

constexpr int kPackers = 256;   // threads per CTA of pack_blocks

// A scaled element is split into hi + lo. hi is the nearest float16, and lo is the float16 nearest to the remainder. hi
// and lo together hold 22 bits. The smallest float16 is 2^-24, so scaled elements below 2^-3 may lose bits. A block is
// wide if loses_bits is true for one of its elements. A wide block stores 2^11 * lo in place of lo (Ootomo and Yokota,
// 2022). An element is an outlier if its hi would be denormal, since tensor cores keep fewer bits of denormals. The
// metadata holds the outlier, and the block holds a zero in its place (more: docs/kernel.md).
[[maybe_unused]] constexpr float kTolerance = 0x1p-22f, kMayLoseBits = 0x1p-3f, kWideResidual = 0x1p-11f;
// 2^-14 - 2^-25: the least value that is rounded to 2^-14, the smallest normal float16.
constexpr float kLeastNormal = 0x1.FFCp-15f;

DEVICE bool is_outlier(float x, float scale) { return x != 0.0f && fabsf(x * scale) < kLeastNormal; }

// Whether the relative error of hi + lo exceeds kTolerance. The function also returns true for an outlier.
DEVICE bool loses_bits(float x, float scale) {
  const float a = x * scale, residual = a - __half2float(__float2half_rn(a));
  return is_outlier(x, scale) || fabsf(residual - __half2float(__float2half_rn(residual))) > fabsf(a) * kTolerance;
}

// Splits two neighbouring elements, neither of which is an outlier. lo is multiplied by residual_scale.
DEVICE void split_two(float x, float y, float scale, float residual_scale, uint32_t& hi, uint32_t& lo) {
  const __half2 high = __floats2half2_rn(x * scale, y * scale);
  const float2 back = __half22float2(high);
  const __half2 low =
      __floats2half2_rn(fmaf(x, scale, -back.x) * residual_scale, fmaf(y, scale, -back.y) * residual_scale);
  hi = *reinterpret_cast<const uint32_t*>(&high);
  lo = *reinterpret_cast<const uint32_t*>(&low);
}

// ---- Packing: scaling.

// Returns the exponent of a block's scale. `largest` has the bits of the largest magnitude. The scale brings this
// magnitude into [32760, 65520), because float16 rounds 65520 to Inf. The exponent is at most 126, so that the inverse
// of the scale is a normal number. So a largest magnitude below about 2^-111 stays below 32760.
DEVICE int scale_exponent(uint32_t largest) {
  return largest == 0 ? 0 : min(126, ((largest & 0x7FFFFF) < 0x7FF000 ? 142 : 141) - int(largest >> 23));
}
DEVICE float power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }

// ---- Packing: the kernel.

// The flags for the state of a launch. They are the low bits of a word whose other bits are the launch's number. The
// word may hold anything at first. pack_blocks sets kOutliers if a product has outliers, and kFallback if a product
// falls back. tile_product sets kPackingDone.
enum Progress : unsigned { kOutliers = 1, kFallback = 2, kPackingDone = 4 };

// Returns the Progress bits of this launch. Only pack_blocks calls this. The result is below kPackingDone once CTA 0
// has reset the counters. Until then the word has the number of another launch, so the result is larger. A graph that
// is launched again has the same number as before. There the old word still has kPackingDone until the reset.
DEVICE uint64_t read_progress(const Fp16x3Product& args) { return load_relaxed(args.progress) - args.launch; }

// Records outliers of a product, and requests the fallback for it if `fallback` is true. The fallback is also requested
// if the product has, on average, more than eight outliers per line of blocks. Each outlier costs work in every tile of
// its row or column, so many outliers would be slower than recomputing the product.
DEVICE void report(const Fp16x3Product& args, int product, int outliers, bool fallback) {
  Control& control = args.controls[product];
  if (outliers &&
      atomicAdd(&control.outliers, outliers) + outliers > 8 * (num_line_blocks(args, kX) + num_line_blocks(args, kY)))
    fallback = true;
  if (fallback) atomicExch(&control.fallback, 1);
  atomicOr(args.progress, (outliers ? kOutliers : 0ull) | (fallback ? kFallback : 0ull));
}
"""

_CUDA_PACKING_KERNEL = r"""
// Packs the operands, with one CTA per block. Once a product falls back, CTAs that have not begun skip its blocks. A
// matrix that all products share is packed in any case. CTA 0 also resets the counters. A separate kernel for the reset
// took 1 us on the GPU and 4 us on the host.
__global__ void __launch_bounds__(kPackers, 4) pack_blocks(const __grid_constant__ Fp16x3Product args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ struct {
    uint32_t largest[kPackers / 32], least[kPackers / 32];   // one per warp
    int outliers;
    Outlier outlier[kMaxOutliers];   // not sorted yet
  } scratch;
  // The number of quads per thread. A quad is four neighbouring columns of one row.
  constexpr int kQuads = kBlock * kBlock / kPackers / 4;
  // About as many blocks as an H200 packs at once. The CTAs of the first kFirstBlocks blocks begin together with CTA 0,
  // before it has reset the counters. So they do not read the progress when they begin.
  constexpr int kFirstBlocks = 512;
  const int t = threadIdx.x;
  const bool is_x = blockIdx.x < args.x_blocks;
  const Packed& operand = is_x ? args.x : args.y;
  const int number = blockIdx.x - (is_x ? 0 : args.x_blocks);   // index of the block in its operand
  const int matrix = operand.matrices == 1 ? 0 : number / operand.blocks_each;   // one matrix needs no division
  // A matrix that all products share is packed even if one product falls back, since the other products need it.
  auto has_own_matrix = [&] { return operand.matrices == args.p.batches; };
  const uint64_t progress = blockIdx.x >= kFirstBlocks ? read_progress(args) : kPackingDone;
  // Whether this CTA has seen, at its beginning, that the counters were reset
  const bool is_reset = progress < kPackingDone;
  auto falls_back = [&] {
    if (!is_reset || !(progress & kFallback)) return false;
    // Without this fence, the load below could return a value from before CTA 0's reset. Then the block would be
    // skipped wrongly
    __threadfence();
    return load_relaxed(&args.controls[matrix].fallback) != 0;
  };
  if (blockIdx.x >= kFirstBlocks && has_own_matrix() && __syncthreads_or(falls_back())) return;
  const int in_matrix = number - matrix * operand.blocks_each;
  const int r = operand.triangular ? triangle_root(in_matrix) : in_matrix / operand.block_cols;
  const int c = in_matrix - int(block_index(operand, r, 0));
  const int64_t row_stride = operand.row_stride, col_stride = operand.col_stride;
  const float* source = operand.source + r * kBlock * row_stride + c * kBlock * col_stride;
  if (operand.matrices > 1) source += batch_offset(args.p, is_x ? args.p.x_batch : args.p.y_batch, matrix);
  const int rows = operand.rows - r * kBlock, cols = operand.cols - c * kBlock;
  const bool diagonal = operand.triangular && r == c;   // only elements with column <= row exist
  const bool along_rows = col_stride <= row_stride;
  const bool vectorized = min(row_stride, col_stride) == 1 && max(row_stride, col_stride) % 4 == 0 &&
                          (along_rows ? cols : rows) >= kBlock && reinterpret_cast<uintptr_t>(source) % 16 == 0;
  cudaGridDependencySynchronize();   // the kernel ahead may write the source, or use this workspace
  // If the elements of a row are closer in memory than those of a column, the CTA reads 16 rows of 16 quads at a time.
  // Otherwise each thread reads 4 x 4 neighbouring elements: column by column if `vectorized`, and else row by row.
  const int first_row = along_rows ? t / 16 : (t / 32 % 4 * 4 + t % 4) * 4, row_step = along_rows ? 16 : 1;
  const int col = along_rows ? t % 16 * 4 : (t / 128 * 8 + t % 32 / 4) * 4;
  auto quad_row = [&](int quad) { return first_row + quad * row_step; };
  // Start all loads before any of them is awaited. Where no element exists, the load reads the first element of the
  // block instead. That value is set to zero later.
  const float* next_quad = source + first_row * row_stride + col * col_stride;
  const int64_t step = row_step * row_stride;
  float block[kQuads][4];
  if (vectorized && !along_rows) {
    static_assert(kQuads == 4, "a thread's quads are a square");
    UNROLL for (int e = 0; e < 4; ++e) {
      const float4 q = __ldcs(reinterpret_cast<const float4*>(col + e < cols ? next_quad : source));
      block[0][e] = q.x;
      block[1][e] = q.y;
      block[2][e] = q.z;
      block[3][e] = q.w;
      next_quad = next_address(next_quad, col_stride);
    }
  } else if (vectorized) {
    UNROLL for (int i = 0; i < kQuads; ++i) {
      const float4 q = __ldcs(reinterpret_cast<const float4*>(quad_row(i) < rows ? next_quad : source));
      block[i][0] = q.x;
      block[i][1] = q.y;
      block[i][2] = q.z;
      block[i][3] = q.w;
      next_quad = next_address(next_quad, step);
    }
  } else {
    UNROLL for (int i = 0; i < kQuads; ++i) {
      const int existing = quad_row(i) < rows ? cols - col : 0;
      const float* from = next_quad;
      UNROLL for (int e = 0; e < 4; ++e) {
        block[i][e] = __ldcs(e < existing ? from : source);
        from = next_address(from, col_stride);
      }
      next_quad = next_address(next_quad, step);
    }
  }
  // CTA 0 resets the counters while its loads are on their way, and then publishes the launch's number.
  if (blockIdx.x == 0) {
    IF_DELAY(__nanosleep(100000);)
    for (int i = t; i < args.words; i += kPackers) reinterpret_cast<int*>(args.controls)[i] = 0;
    __threadfence();
    __syncthreads();
    if (t == 0) *args.progress = args.launch;
    __syncthreads();
  }
  // The trigger comes after the reset, since tile_product takes tiles from its queue as soon as it starts.
  cudaTriggerProgrammaticLaunchCompletion();
  // For operands that an earlier launch packed, outliers and fallbacks are reported again for this launch.
  if (blockIdx.x == 0 && args.kept)
    for (int u = t; u < args.p.batches; u += kPackers) report(args, u, args.kept[u].outliers, args.kept[u].fallback);
  // Wait for the loads, and set values to zero where no element exists
  if (rows < kBlock || cols < kBlock || diagonal) {
    UNROLL for (int i = 0; i < kQuads; ++i) {
      // existing: how many elements of the quad exist, from its first one on
      const int row_end = quad_row(i) >= rows ? 0
                          : diagonal          ? min(cols, quad_row(i) + 1)
                                              : cols,
                existing = row_end - col;
      UNROLL for (int e = 0; e < 4; ++e)
        if (e >= existing) block[i][e] = 0.0f;
    }
  }
  // Find the largest magnitude and the least magnitude that is not zero. Both are compared by their bits, which have
  // the order of the magnitudes, with Inf and NaN above all numbers. `least` holds the bits minus 1, so that a zero
  // wraps around to the greatest value.
  uint32_t largest = 0, least = 0xFFFFFFFFu;
  UNROLL for (int e = 0; e < 4 * kQuads; ++e) {
    const uint32_t magnitude = __float_as_uint(block[e / 4][e % 4]) & 0x7FFFFFFFu;
    largest = max(largest, magnitude);
    least = min(least, magnitude - 1);
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  least = __reduce_min_sync(0xFFFFFFFFu, least);
  if (t % 32 == 0) {
    scratch.largest[t / 32] = largest;
    scratch.least[t / 32] = least;
  }
  __syncthreads();
  UNROLL for (int w = 0; w < kPackers / 32; ++w) {
    largest = max(largest, scratch.largest[w]);
    least = min(least, scratch.least[w]);
  }
  const int exponent = scale_exponent(largest);
  const float scale = power_of_two(exponent);
  const bool non_finite = largest >= 0x7F800000u;
  const float least_scaled = __uint_as_float(least + 1) * scale;
  BlockMetadata& metadata = operand.metadata[number];
  bool wide = false;
  int outliers = 0;
  if (!non_finite && largest != 0 && least_scaled < kMayLoseBits) {
    bool loses = false;
    UNROLL for (int e = 0; e < 4 * kQuads; ++e) loses |= loses_bits(block[e / 4][e % 4], scale);
    if (t == 0) scratch.outliers = 0;
    // An outlier makes its block wide, too, since fixup_kernel looks for outliers in wide blocks only.
    wide = __syncthreads_or(loses);
    // Outliers become zero and go to the metadata. They are sorted, so that fixup_kernel always adds in the same order.
    if (least_scaled < kLeastNormal) {
      UNROLL for (int e = 0; e < 4 * kQuads; ++e)
        if (float& v = block[e / 4][e % 4]; is_outlier(v, scale)) {
          const Outlier outlier = {uint16_t(quad_row(e / 4)), uint16_t(col + e % 4), v};
          if (const int slot = atomicAdd(&scratch.outliers, 1); slot < kMaxOutliers) scratch.outlier[slot] = outlier;
          v = 0.0f;
        }
      __syncthreads();
      outliers = scratch.outliers;
      auto position = [&](int u) { return scratch.outlier[u].row * kBlock + scratch.outlier[u].col; };
      if (const int listed = min(outliers, kMaxOutliers); t < listed) {
        int before = 0;
        for (int u = 0; u < listed; ++u) before += position(u) < position(t);
        metadata.outlier[before] = scratch.outlier[t];
      }
    }
  }
  const float residual_scale = wide ? 1 / kWideResidual : 1;
  UNROLL for (int i = 0; i < kQuads; ++i) {
    uint2 hi, lo;
    split_two(block[i][0], block[i][1], scale, residual_scale, hi.x, lo.x);
    split_two(block[i][2], block[i][3], scale, residual_scale, hi.y, lo.y);
    uint8_t* to = operand.blocks + number * block_bytes(args.p.allow_tf32) + swizzled(quad_row(i), col);
    *reinterpret_cast<uint2*>(to) = hi;
    if (!args.p.allow_tf32) *reinterpret_cast<uint2*>(to + kOperandBytes) = lo;   // TF32 multiplies only hi
  }
  if (t == 0) {
    metadata.head = {power_of_two(-exponent), wide ? kWideResidual : 1, outliers, 0};
    // The code below writes words that CTA 0 resets. So a CTA waits for CTA 0 before it writes them. CUDA promises no
    // order of CTAs, but every GPU so far starts CTAs in the order of their numbers. CTA 0 waits for no other CTA, so
    // the wait ends. The stress build (tests/test_stress.py) delays CTA 0 to test this.
    if (wide || non_finite) {
      while (!is_reset && read_progress(args) >= kPackingDone) {}
      __threadfence();   // acquires the counters that CTA 0 reset before it published the progress
    }
    for (int u = 0; u < 2 * wide; ++u) {   // sets a bit in the mask of the block's row, then in that of its column
      uint32_t* words = wide_in_line(operand, matrix, u, u ? c : r);
      atomicOr(words + 1 + (u ? r : c) / 32, 1u << (u ? r : c) % 32);
      if (outliers) atomicOr(words, 1u);
    }
    // A block that all products share is reported once for each product. A report takes up to three atomics, but blocks
    // that have to be reported are rare.
    if (non_finite || outliers)
      for (int product = has_own_matrix() ? matrix : 0; product < (has_own_matrix() ? matrix + 1 : args.p.batches);
           ++product)
        report(args, product, outliers, non_finite || outliers > kMaxOutliers);
  }
#endif
}
"""

# ---- fp16x3: float32 accuracy from float16 tensor cores. ----
#
# Takes a Fp16x3Product with packed operands. Produces C, unless packing has requested the fallback. Tensor cores cannot
# multiply float32, so they sum lo * hi, hi * lo and hi * hi of each k-block. Tensor cores truncate when they add, so
# the CUDA cores add the sums of each k-block to float32 totals. A picture and the course of one k-block are in
# docs/kernel.md.
_CUDA_FP16X3 = r"""
// ---- fp16x3: the flags of a k-block.

// With these flags the producer describes a k-block to the consumers. A chain is up to kChain successive k-blocks of a
// tile. Their sums are added to the same totals. In the list, g is the warpgroup, c is the column block of the tile (0
// to 3), and h is the half of the tile's columns (0 or 1).
enum KBlockFlag : int {
  kEndsTile = 1,           // the k-block is the last one of its tile
  kEndsChain = 2,          // the k-block is the last one of its chain
  kHasPreviousChain = 4,   // the k-block is not in the first chain of its tile
  kHasX = 8,               // kHasX << g: the block of X of warpgroup g exists
  kHasY = 32,              // kHasY << c: block c of Y exists
  kWideX = 512,            // kWideX << g: the block of X of warpgroup g is wide
  kWideY = 2048,           // kWideY << h: at least one of the two blocks of Y of half h is wide
  kTileSeq = 8192          // kTileSeq * s: s is KBlock::next_tile_seq % (2 * kRingEntries), in bits 13 to 16
};

// ---- fp16x3: the rows of a warpgroup.

// Returns which row block of a tile a warpgroup computes: 0 and 3 in the first CTA, 1 and 2 in the second. At the end
// of k a lower triangular X has blocks only in the last rows of the tile. With this order both CTAs still have
// work there. If the first CTA had row blocks 0 and 1, it would wait for the second CTA. That wait took 1 % of the time
// at N = 4096 (H200, 2026-11-29).
DEVICE int row_block_in_tile(int rank, int group) { return group ? 3 - rank : rank; }

// ---- fp16x3: sums that wait in memory for the last split or the next chain.

// Stores the 128 sums of each thread, for the last split or the next chain of the tile. Each thread writes 32 float4,
// `step` float4 apart.
DEVICE void store_sums(const float* sum, float4* slot, int64_t step) {
  UNROLL for (int u = 0; u < 128; u += 4, slot = next_address(slot, step))
    *slot = make_float4(sum[u], sum[u + 1], sum[u + 2], sum[u + 3]);
}

// Adds the sums that `count` splits have stored, in the order of the splits. `count` is a reference, so that it takes
// no register.
DEVICE void add_sums(float* sum, const float4* slot, const int& count, int64_t step) {
  // Between the sums of two splits, `slot` skips the sums of the tile's other three warpgroups
  NO_UNROLL for (int number = 0; number < count; ++number, slot += (kTileEdge - kBlock) * kTileEdge / 4)
    UNROLL for (int part = 0; part < 4; ++part) {
      float4 other[8];   // all eight loads start before the first value is added
      UNROLL for (int u = 0; u < 8; ++u, slot = next_address(slot, step)) other[u] = __ldcg(slot);
      UNROLL for (int u = 0; u < 32; ++u) sum[part * 32 + u] += reinterpret_cast<const float*>(other)[u];
    }
}

// ---- fp16x3: the epilogue: writing a tile, or storing its sums for the last split or the next chain.

// Writes the totals of a warpgroup to 64 x 128 of C. The stores of a warp fill sectors of 32 bytes. In a row-major C a
// sector has eight columns, two from each thread. In a column-major C it has eight rows.
DEVICE void write_totals(const Product& p, int batch, int row, int col, const float (&total)[64]) {
  const int thread = fresh_thread_index(), lane = thread % 32;
  const int row0 = row + thread / 32 % 4 * 16 + lane / 4;
  int col0 = col + lane % 4 * 2;
  float* pointer = c_matrix<float>(p, batch) + row0 * p.c_row + col0 * p.c_col;
  const int below = p.c_lower ? row0 - col0 : 128;   // in row row0, C's diagonal is at column col0 + below
  const bool inside = row + 64 <= p.m && col + 128 <= p.n;
  // Returns the value of the element at row row0 + 8 h and column col0 + 8 g + e: its total, or zero above the diagonal
  auto sum = [&](int h, int g, int e) { return 8 * g + e <= below + 8 * h ? total[4 * g + 2 * h + e] : 0.0f; };
  if (inside && p.c_col == 1 && p.c_row % 2 == 0 && reinterpret_cast<uintptr_t>(pointer) % 8 == 0) {
    UNROLL for (int h = 0; h < 2; ++h)
      UNROLL for (int g = 0; g < 16; ++g)
        __stcs(reinterpret_cast<float2*>(pointer + 8 * h * p.c_row + 8 * g), make_float2(sum(h, g, 0), sum(h, g, 1)));
  } else {
    UNROLL for (int g = 0; g < 32; ++g) {   // one column at a time, with two of its rows
      // Without this, the compiler evaluates all conditions beforehand, in registers that the sums need
      if (g % 8 == 0) make_opaque(col0);
      const int n = col0 + g / 2 * 8 + g % 2;
      if (row0 < p.m && n < p.n) __stcs(pointer, sum(0, g / 2, g % 2));
      if (row0 + 8 < p.m && n < p.n) __stcs(pointer + 8 * p.c_row, sum(1, g / 2, g % 2));
      pointer = next_address(pointer, (g % 2 ? 7 : 1) * p.c_col);
    }
  }
}

// Ends a chain. `flags` are the flags of the chain's last k-block. The function first adds the sums of the tile's
// earlier chains. If the tile has another chain, the function stores the sums for it and returns. Otherwise, every
// split of the tile but the last one stores its sums. The last split waits for the stored sums, adds them in the order
// of the splits, and writes C. This fixed order makes results repeat. The wait ends, since the other splits have begun
// before the last one: see find_split.
template <bool kChains>
DEVICE void write_sums(const Fp16x3Product& args, const ClusterTile& tile, int group, int flags,
                       float (&total)[2][64]) {
  const Product& p = args.p;
  // kLines is the number of row blocks of a tile. kWarpgroupSums is the number of sums of a warpgroup
  constexpr int kLines = kTileEdge / kBlock, kWarpgroupSums = kBlock * kTileEdge;
  // line: the row block of C that the warpgroup computes
  const int thread = fresh_thread_index() % 128, line = tile.row + row_block_in_tile(cta_rank_in_cluster(), group);
  // Between two chains of a tile, a warpgroup keeps its sums in its own part of C. If one tile of the launch does not
  // allow that, all tiles use the workspace instead (see in_c in Workspace). Each thread stores 16 bytes at a time.
  if (kChains) {
    const bool in_c = !args.chain_sums, by_rows = !in_c || p.c_col == 1;
    const int chunks = (by_rows ? kTileEdge : kBlock) / 4;   // float4 per row, or per column of a column-major C
    const int64_t pitch = !in_c ? kTileEdge : by_rows ? p.c_row : p.c_col, step = 128 / chunks * pitch / 4;
    float* c = c_matrix<float>(p, tile.batch) + line * kBlock * p.c_row + tile.col * kBlock * p.c_col;
    float* begin = in_c ? c : args.chain_sums + (blockIdx.x * 2 + group) * kWarpgroupSums;
    float4* slot = reinterpret_cast<float4*>(begin + thread / chunks * pitch) + thread % chunks;
    add_sums(total[0], slot, flags & kHasPreviousChain ? 1 : 0, step);
    if (!(flags & kEndsTile)) return store_sums(total[0], slot, step);
    // This barrier lets every thread read its sums from C before other threads write results there
    if (flags & kHasPreviousChain) named_barrier_sync<128>(group);
  }
  if (tile.splits > 1) {
    const TileOrder& order = args.tiles.order;
    int* finished = args.finished_splits + (int64_t(tile.batch) * kLines * order.rows + line) * order.cols +
                    tile.col / kLines;
    float4* slot = reinterpret_cast<float4*>(args.partial_sums +
                                             (int64_t(tile.partial_slot) * kLines + line % kLines) * kWarpgroupSums) +
                   thread;
    if (tile.split < tile.splits - 1) {
      store_sums(total[0], slot + int64_t(tile.split) * (kLines * kWarpgroupSums / 4), 128);
      named_barrier_sync<128>(group);
      if (thread == 0) {
        __threadfence();
        atomicAdd(finished, 1);
      }
      return;
    }
    // Wait for the other splits. The wait also ends if the product falls back, since other splits may then be skipped.
    if (thread == 0) {
      while (load_relaxed(finished) != tile.splits - 1 && !load_relaxed(&args.controls[tile.batch].fallback))
        __nanosleep(32);
      __threadfence();
    }
    named_barrier_sync<128>(group);
    add_sums(total[0], slot, tile.splits - 1, 128);
  }
  const int row = line * kBlock, col = tile.col * kBlock;
  write_totals(p, tile.batch, row, col, total[0]);
  if (col + 128 < p.n) write_totals(p, tile.batch, row, col + 128, total[1]);
}

// ---- fp16x3: the policy.

// A k-block takes three stages of 32 KB (picture: docs/kernel.md): half of Y, X, and the other half of Y. A stage of X
// has hi and lo of one block per warpgroup. A stage of Y has hi of two blocks and then lo of both, so that wgmma sees
// 128 columns. Each of the two CTAs fetches one of these two blocks for both CTAs.
//
// With kLo three products are summed. Without kLo, for TF32, only hi * hi is computed, and a stage has 16 KB.
// kXMnMajor and kYMnMajor say whether X and Y are MN-major. An operand is MN-major if k is the row index of its packed
// blocks: see k_is_row.
template <bool kXMnMajor, bool kYMnMajor, bool kLo>
struct Fp16x3Policy {
  using Args = Fp16x3Product;
  using Shared = SharedMemory<Fp16x3Policy>;
  static constexpr int kBlocksN = 4, kCtas = 2;
  static constexpr int kStages = kLo ? 7 : 14, kPartBytes = block_bytes(!kLo), kStageBytes = 2 * kPartBytes;
  static constexpr int kDepth = (kStages + 2) / 3, kRequestAhead = 2;
  // All splits of a tile come from the queue in order. So the other splits have begun before the last one waits for
  // them.
  static constexpr bool kQueuesFirstTile = true;
  // A second producer thread, which copies X, requests the tiles: see run_policy_warps
  static constexpr bool kProducerRequestsTiles = false;

  struct Memory {
    uint8_t stage[kStages][kStageBytes];
    BlockHead head[kStages][2];
    int flags[kStages];     // KBlockFlag of a k-block, at the index of the stage that has the first half of its Y

    // The producer has few registers, so it keeps the following values in shared memory.
    // One bit for each of the 32 k-blocks around the current one, which is set if a block is wide (see kTolerance).
    // Words 0 and 1 are for the block of X of warpgroup 0 and 1. Words 2 and 3 are for either block of half 0 and 1 of
    // Y
    uint32_t wide[4];
    ClusterTile tile;
    int first_y;            // index of the first block of the tile's matrix of Y
  };

  // Whether there are tiles to compute. There are none if the only product of the batch falls back. One thread also
  // records that packing is done.
  static DEVICE bool has_work(const Args& args) {
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicOr(args.progress, kPackingDone);
    return args.tiles.batches > 1 || !(load_relaxed(args.progress) & kFallback);
  }
  // Whether a tile is skipped because its product falls back. fixup_kernel then computes all tiles of that product,
  // even those that this kernel has already computed.
  static DEVICE bool is_skipped(const Args& args, const ClusterTile& tile) {
    return load_relaxed(args.progress) & kFallback && load_relaxed(&args.controls[tile.batch].fallback);
  }
  // Puts the data of a tile that `load` needs into shared memory. The return value is not used.
  static DEVICE int find_operands(const Args& args, Shared& shared, const ClusterTile& tile) {
    Memory& memory = shared.policy;
    memory.tile = tile;
    memory.first_y = find_matrix(args.y, tile.batch) * args.y.blocks_each;
    return 0;
  }
  static DEVICE float* result(const Args& args, int batch) { return c_matrix<float>(args.p, batch); }
  static DEVICE ClusterTile find_tile(const Args& args, int number) { return args.tiles.find_split(number); }
  static DEVICE void prepare(const Args&, Shared&) {}
  static DEVICE void finish(const Args&, Shared&) {}

  // The X producer is a second producer thread. It copies the two blocks of X of each k-block and requests tiles. The
  // first producer copies Y and finds the flags. A single producer takes 0.5 to 2 % more time (H200, 2026-11-29).
  //
  // No producer can fall behind the consumers, since the consumers wait for the stages of both producers. No producer
  // can be more than kDepth k-blocks ahead, since each producer waits for empty stages. So no entry of the ring is
  // overwritten too early here either, by the first reason at fetch_next_tile. No wait takes one phase for another
  // phase of the same parity: docs/kernel.md, "The barriers", says why.
  static_assert(kStages >= 6, "a producer's waits for empty stages are too far apart");
  static DEVICE void run_policy_warps(const Args& args, Shared& shared, ClusterTile tile) {
    if (threadIdx.x / 32 != kProducerWarp + 2 || !elect_one_sync()) return;
    produce<Fp16x3Policy, true>(args, shared, tile, find_x, load_x);
  }
  static constexpr int kBytesAndHead = kPartBytes + sizeof(BlockHead);

  // Returns the index of the first block of the tile's matrix of X.
  static DEVICE int find_x(const Args& args, Shared&, const ClusterTile& tile) {
    return find_matrix(args.x, tile.batch) * args.x.blocks_each;
  }
  // This is the `load` of the X producer. It copies the two blocks of X of a k-block, one for each warpgroup of its
  // CTA.
  static DEVICE void load_x(const Args& args, Shared& shared, PipelineState<kStages>& pipeline,
                            const ClusterTile& tile, int rank, const KBlock& k_block, int first_x) {
    pipeline.advance();   // skips the stage with the first half of Y
    const int k = k_block.k;
    bool has_x[2];
    UNROLL for (int u = 0; u < 2; ++u) has_x[u] = has_block(args, kX, tile.row + row_block_in_tile(rank, u), k);
    uint64_t* full = &shared.full[pipeline.stage];
    barrier_wait(&shared.empty[pipeline.stage], pipeline.parity);
    barrier_arrive_expect_tx(full, (has_x[0] + has_x[1]) * kBytesAndHead);
    UNROLL for (int u = 0; u < 2; ++u) {
      if (!has_x[u]) continue;
      const int block = first_x + find_block(args, kX, kXMnMajor, tile.row + row_block_in_tile(rank, u), k);
      const uint8_t* from = args.x.blocks + int64_t(block) * kPartBytes;
      copy_bulk(shared.policy.stage[pipeline.stage] + u * kPartBytes, from, kPartBytes, full);
      copy_bulk(&shared.policy.head[pipeline.stage][u], args.x.metadata + block, sizeof(BlockHead), full);
    }
    pipeline.advance();
    pipeline.advance();   // skips the stage with the second half of Y
  }

  // This is the `load` of the first producer. It copies this CTA's share of Y for a k-block to both CTAs, and writes
  // the flags of the k-block.
  static DEVICE void load(const Args& args, Shared& shared, PipelineState<kStages>& pipeline, const ClusterTile&,
                          int rank, const KBlock& k_block, int) {
    Memory& memory = shared.policy;
    const int k = k_block.k, row = memory.tile.row, col = memory.tile.col;   // in blocks
    // Find which blocks exist, and whether the k-block ends a chain or the tile. Without lo a tile is one chain.
    int flags = k_block.last ? kEndsTile | kEndsChain : 0;
    if (kLo && k_block.k_index % kChain == kChain - 1) flags |= kEndsChain;
    if (kLo && k_block.k_index >= kChain) flags |= kHasPreviousChain;
    UNROLL for (int u = 0; u < 6; ++u)
      if (u < 2 ? has_block(args, kX, row + row_block_in_tile(rank, u), k) : has_block(args, kY, col + u - 2, k))
        flags |= kHasX << u;
    auto copy_y = [&](int half) {
      if (!(flags & kHasY << 2 * half << rank)) return;
      const int block = memory.first_y + find_block(args, kY, kYMnMajor, col + 2 * half + rank, k);
      const uint8_t* from = args.y.blocks + int64_t(block) * kPartBytes;
      uint8_t* to = memory.stage[pipeline.stage] + rank * kOperandBytes;
      copy_bulk_multicast(to, from, kOperandBytes, &shared.full[pipeline.stage]);
      if (kLo)
        copy_bulk_multicast(to + 2 * kOperandBytes, from + kOperandBytes, kOperandBytes, &shared.full[pipeline.stage]);
      copy_bulk_multicast(&memory.head[pipeline.stage][rank], args.y.metadata + block, sizeof(BlockHead),
                          &shared.full[pipeline.stage]);
    };

    // The first half of Y is copied as soon as a stage is empty. Everything else that takes time comes later.
    barrier_wait(&shared.empty[pipeline.stage], pipeline.parity);
    copy_y(0);
    const int stage_y = pipeline.stage;
    pipeline.advance();
    if (kLo && (k_block.jumps || k % 32 == 0)) {
      // Returns the mask word of 32 blocks of a line, of which block k is one. If the operand has no such line, it
      // returns zero.
      auto wide = [&](Operand operand, int line) {
        const Packed& packed = operand == kX ? args.x : args.y;
        const uint32_t* words =
            wide_in_line(packed, find_matrix(packed, memory.tile.batch), operand == kX ? kXMnMajor : kYMnMajor, line);
        return line < num_line_blocks(args, operand) ? words[1 + k / 32] : 0;
      };
      UNROLL for (int u = 0; u < 2; ++u) {
        memory.wide[u] = wide(kX, row + row_block_in_tile(rank, u));
        memory.wide[2 + u] = wide(kY, col + 2 * u) | wide(kY, col + 2 * u + 1);
      }
    }
    UNROLL for (int u = 0; kLo && u < 2; ++u)
      flags |= (memory.wide[u] >> k % 32 & 1) * (kWideX << u) | (memory.wide[2 + u] >> k % 32 & 1) * (kWideY << u);
    // The flags are written before the arrival, since consumers may read the flags after the arrival. The arrival
    // announces the bytes of both blocks of the first half of Y. One of these blocks is copied to this CTA by the other
    // CTA.
    memory.flags[stage_y] = flags | k_block.next_tile_seq % (2 * kRingEntries) * kTileSeq;
    barrier_arrive_expect_tx(&shared.full[stage_y], __popc(flags & kHasY * 3) * kBytesAndHead);
    pipeline.advance();   // skips the stage of X: see load_x

    // The second half of Y is copied once another stage is empty
    barrier_wait(&shared.empty[pipeline.stage], pipeline.parity);
    copy_y(1);
    barrier_arrive_expect_tx(&shared.full[pipeline.stage], __popc(flags & kHasY * 12) * kBytesAndHead);
    pipeline.advance();
  }

  // ---- fp16x3: the policy: the main loop of a consumer warpgroup.

  // The shared memory as a consumer sees it.
  struct View {
    uint32_t base;   // the 32-bit address; a pointer would be converted to this address again at each use
    int group;       // the warpgroup

    // Returns the BlockHead of one of the two blocks in a stage. In a stage of X, block g has the 64 rows of warpgroup
    // g. In a stage of Y, blocks 0 and 1 have the first and the last 64 columns of the half.
    DEVICE BlockHead head(int stage, int block) const {
      return load_shared<BlockHead>(base + offsetof(Shared, policy.head) + sizeof(BlockHead) * (2 * stage + block));
    }
    // Returns the descriptor of the operand that begins `offset` bytes into a stage.
    DEVICE uint64_t operand(int stage, int offset) const {
      return make_descriptor(base + offsetof(Shared, policy.stage) + stage * kStageBytes + offset, kOperandBytes, 1024);
    }

    // Waits until the next stage is full, and returns its index.
    DEVICE int next_stage(PipelineState<kStages>& pipeline) const {
      const int stage = pipeline.stage;
      barrier_wait(base + offsetof(Shared, full) + 8 * stage, pipeline.parity);
      pipeline.advance();
      return stage;
    }
    // Waits for the first half of Y and for X of the next k-block. Returns the flags of the k-block with the two
    // stages: the stage of Y in bits 17 to 20, the stage of X in bits 21 to 24. `compute` adds the stage of the second
    // half of Y in bits 25 to 28. The flags and the stages share one register, since the sums leave few registers.
    DEVICE int next_k_block(PipelineState<kStages>& pipeline) const {
      const int y_stage = next_stage(pipeline);
      const int flags = load_shared<int>(base + offsetof(Shared, policy.flags) + 4 * y_stage);
      return flags | y_stage << 17 | next_stage(pipeline) << 21;
    }

    // Tells both CTAs that this warp no longer reads the stage.
    DEVICE void release(int stage) const {
      const int lane = fresh_thread_index() % 32;
      __syncwarp();
      arrive_on_ctas(2, lane, [&](int cta) {
        barrier_arrive_remote(address_in_peer(base + offsetof(Shared, empty) + 8 * stage, cta));
      });
    }
  };

  // Adds X Y of one half of the columns to `total`, and releases the stage of Y. `k_block` is a result of next_k_block.
  // For the second half, `compute` has added the stage of Y to it.
  // The function calls `meanwhile` once, if possible while the tensor cores are at work.
  template <int kHalf, typename Meanwhile>
  static DEVICE void consume_columns(const View& view, int k_block, float (&total)[64], const Meanwhile& meanwhile) {
    const int x_stage = k_block >> 21 & 15, y_stage = k_block >> (17 + 8 * kHalf) & 15;
    if (!(k_block & kHasX << view.group && k_block & kHasY * 3 << 2 * kHalf)) {
      meanwhile();
      return view.release(y_stage);
    }
    const uint64_t x = view.operand(x_stage, view.group * kPartBytes), y = view.operand(y_stage, 0);
    float sums[64];
    auto issue = [&](uint64_t x, uint64_t y, bool add) {
      issue_wgmma<__half, 128, kXMnMajor, kYMnMajor>(x, y, sums, add);
    };
    auto y_unscale = [&](int block) {
      return k_block & kHasY << 2 * kHalf << block ? view.head(y_stage, block).unscale : 0.0f;
    };
    // In rare cases a block is wide: its lo have another scale than its hi, so the three products are awaited one by
    // one.
    if (kLo && k_block & (kWideX << view.group | kWideY << kHalf)) {
      meanwhile();
      const BlockHead x_head = view.head(x_stage, view.group),
                      y_head[] = {view.head(y_stage, 0), view.head(y_stage, 1)};
      UNROLL for (int u = 0; u < 64; ++u) sums[u] = 0;
      // The products are lo * hi, hi * lo and hi * hi. Before each product, the sums are brought to the scale of that
      // product.
      NO_UNROLL for (int product = 0; product < 3; ++product) {
        UNROLL for (int u = 0; u < 64; ++u)
          sums[u] *= product == 2 ? y_head[u / 32].residual : x_head.residual / y_head[u / 32].residual;
        warpgroup_arrive();
        issue(advance_descriptor(x, product ? 0 : kOperandBytes),
              advance_descriptor(y, product == 1 ? 2 * kOperandBytes : 0), true);
        warpgroup_commit_batch();
        warpgroup_wait<0>();
      }
      promote(sums, x_head.unscale, y_unscale(0), total);
      promote(sums + 32, x_head.unscale, y_unscale(1), total + 32);
      return view.release(y_stage);
    }
    // Issue lo * hi, hi * lo and then hi * hi, so that small terms are added while the sums are small
    warpgroup_arrive();
    if (kLo) issue(advance_descriptor(x, kOperandBytes), y, false);
    const float x_unscale = view.head(x_stage, view.group).unscale, first_unscale = y_unscale(0),
                second_unscale = y_unscale(1);
    if (kLo) issue(x, advance_descriptor(y, 2 * kOperandBytes), true);
    issue(x, y, kLo);
    warpgroup_commit_batch();
    // Wait for the next stages while the tensor cores are at work, and then for the sums
    meanwhile();
    warpgroup_wait<0>();
    view.release(y_stage);
    promote(sums, x_unscale, first_unscale, total);
    promote(sums + 32, x_unscale, second_unscale, total + 32);
  }

  // Computes one tile. A ClusterTile in registers would take registers that the sums need. So at the end of each chain
  // the ClusterTile is read from the ring in shared memory. The flags hold the tile_seq of the next tile, so this tile
  // is in the entry before it.
  static DEVICE void compute(const Args& args, Shared& shared, const ClusterTile&, int& tile_seq,
                             PipelineState<kStages>& pipeline) {
    View view = {shared_address(&shared), int(threadIdx.x / 128)};
    make_opaque(view.base);
    int k_block, next;
    do {
      next = view.next_k_block(pipeline);
      TRACE(view.group, kFirstStageFull);
      float total[2][64];
      UNROLL for (int u = 0; u < 128; ++u) total[u / 64][u % 64] = 0.0f;
      do {
        k_block = next;
        consume_columns<0>(view, k_block, total[0], [&] { k_block |= view.next_stage(pipeline) << 25; });
        consume_columns<1>(view, k_block, total[1], [&] {
          if (!(k_block & kEndsChain)) next = view.next_k_block(pipeline);
        });
        view.release(k_block >> 21 & 15);
      } while (!(k_block & kEndsChain));
      TRACE(view.group, k_block & kEndsTile ? kTileSummed : kChainSummed);
      const int entry = (k_block / kTileSeq % (2 * kRingEntries) + kRingEntries - 1) % kRingEntries;
      write_sums<kLo>(args, shared.ring[entry], view.group, k_block, total);
      TRACE(view.group, k_block & kEndsTile ? kTileWritten : kChainKept);
      make_opaque(k_block);   // without this, values that the compiler derives from k_block take more registers
    } while (kLo && !(k_block & kEndsTile));
    tile_seq = k_block / kTileSeq % (2 * kRingEntries);
  }
};
"""

_CUDA_FP16X3_TILES_LAUNCH = r"""
// Launches the fp16x3 kernel with one or two products. It uses all SMs, in clusters of two CTAs.
template <typename Policy, typename SecondPolicy = NoSecondProduct>
static void launch_fp16x3_tiles(const Fp16x3Product& first, const typename SecondPolicy::Args& second,
                                const Gpu& gpu) {
  const Launch launch(gpu.sms / 2 * 2, kSkeletonThreads, sizeof(SharedMemory<Policy>), 2, true, gpu.stream);
  launch_kernel<tile_product<Policy, SecondPolicy>>(launch, first, second);
}

template <bool kAllowTf32>
static void launch_fp16x3_product(const Fp16x3Product& args, const Gpu& gpu) {
  std::visit([&](auto x_mn_major, auto y_mn_major) {
    launch_fp16x3_tiles<Fp16x3Policy<x_mn_major, x_mn_major || y_mn_major, !kAllowTf32>>(args, {}, gpu);
  }, constant(k_is_row(kX, args.p)), constant(k_is_row(kY, args.p)));
}

// Launches both gradients: dX, which is an NT product, and dY, which is a TN product.
template <bool kAllowTf32>
static void launch_fp16x3_gradients(const Fp16x3Product& dx, const Fp16x3Product& dy, const Gpu& gpu) {
  using PolicyOfDx = Fp16x3Policy<false, false, !kAllowTf32>;
  using PolicyOfDy = Fp16x3Policy<true, true, !kAllowTf32>;
  launch_fp16x3_tiles<PolicyOfDx, PolicyOfDy>(dx, dy, gpu);
}
"""

# ---- Fix-up: outliers, and products that need the fallback. ----
#
# Takes a Fp16x3Product after the fp16x3 kernel has ended. Adds the terms of outliers to C. If a product falls back, the
# mma kernel's code computes all of that product here. The host does not wait to learn whether there are outliers or
# fallbacks. So fixup_kernel always runs, and it mostly has nothing to do.
_CUDA_FIXUP = r"""
// ---- Fix-up: outliers.

// [begin outlier corrections]
using Corrections = double[kBlock][kBlock + 1];   // one per element of a tile

// Adds to a tile of C the terms that the packed operands X' and Y' miss. R and S are the outliers of X and Y, so the
// product is (X' + R)(Y' + S) = X' Y' + R Y + X' S. A single term may be less than half a unit in the last place of C.
// So the terms of an element are summed in float64, and the sum is added once. The order of the terms is fixed, so that
// results repeat.
[[maybe_unused]] static __device__ __noinline__ void correct_tile(const Fp16x3Product& args, int batch,
                                                                  const Tile& tile, Corrections& sums) {
  const Product& p = args.p;
  const WorkTile<float> work(p, batch, tile, 1, 0, kBlock);
  const int first_x_block = find_matrix(args.x, batch) * args.x.blocks_each, row = tile.i * kBlock,
            col = tile.j * kBlock;
  // How many sets of 64 threads there are. Set s takes the outliers in lines s, s + kSets, ... of a block, so no two
  // threads add to the same element of `sums`
  constexpr int kSets = kTileThreads / kBlock;
  const int set = threadIdx.x / kBlock, thread = threadIdx.x % kBlock;
  NO_UNROLL for (int e = threadIdx.x; e < kBlock * kBlock; e += kTileThreads) sums[e / kBlock][e % kBlock] = 0.0;
  __syncthreads();
  // First the outliers of X meet Y, then the outliers of Y meet X'. Each thread has one line of the other operand.
  NO_UNROLL for (int is_x = 1; is_x >= 0; --is_x) {
    const Operand operand = is_x ? kX : kY;
    const Packed& packed = is_x ? args.x : args.y;
    const auto other = make_view(is_x ? kY : kX, p, work);
    const int line = other.first_line + thread, block_line = is_x ? tile.i : tile.j,
              matrix = find_matrix(packed, batch);
    const bool is_k_row = k_is_row(operand, p);
    const uint32_t* wide = wide_in_line(packed, matrix, is_k_row, block_line);
    const int words = wide[0] == 0 ? 0 : mask_words(ceil_div(p.k, kBlock));
    NO_UNROLL for (int word = 1; word < words; ++word)
      NO_UNROLL for (uint32_t bits = wide[word]; bits; bits &= bits - 1) {
        const int k_block = word * 32 + __ffs(bits) - 33,
                  block = find_block(args, operand, is_k_row, block_line, k_block);
        const BlockMetadata& metadata = packed.metadata[matrix * packed.blocks_each + block];
        NO_UNROLL for (int e = 0; e < metadata.head.outliers; ++e) {
          const Outlier outlier = metadata.outlier[e];
          const int line_in_block = is_k_row ? outlier.col : outlier.row,
                    k = k_block * kBlock + (is_k_row ? outlier.row : outlier.col);
          if (line_in_block % kSets != set || line >= other.lines || !is_in_range(other.k_range, line, k)) continue;
          const float other_value = other.data[line * other.line_stride + k * other.k_stride];
          const BlockHead& head =
              args.x.metadata[first_x_block + find_block(args, kX, k_is_row(kX, p), tile.i, k_block)].head;
          // If other_value is itself an outlier of X, its term is skipped: R Y has the product of the two outliers
          if (!is_x && is_outlier(other_value, 1.0f / head.unscale)) continue;
          const int m = is_x ? line_in_block : thread, n = is_x ? thread : line_in_block;   // within the tile
          if (!p.c_lower || col + n <= row + m)
            sums[m][n] = fma(double(outlier.value), double(other_value), sums[m][n]);
        }
      }
    __syncthreads();
  }
  NO_UNROLL for (int e = threadIdx.x; e < kBlock * kBlock; e += kTileThreads)
    if (const double sum = sums[e / kBlock][e % kBlock]; sum != 0.0) {
      float& element = work.c[(row + e / kBlock) * p.c_row + (col + e % kBlock) * p.c_col];
      element = float(element + sum);
    }
  __syncthreads();
}
// [end outlier corrections]

// ---- Fix-up: the kernel.

// Corrects the tiles that meet outliers, and computes the products that fall back. Mostly there is nothing to do. So a
// launch without clusters has no more CTAs than the GPU holds at once, and its CTAs take the fallback's tiles from a
// queue. In a launch with clusters, each cluster has its own tiles, and its CTAs share k.
template <bool kXKMajor, bool kYKMajor>
__global__ void __launch_bounds__(kTileThreads, kMmaCtasPerSm<float>)
    fixup_kernel(const __grid_constant__ Product p, const __grid_constant__ SplitPlan plan,
                 const __grid_constant__ Fp16x3Product args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // The next kernel may start now. It may be the fixup_kernel of a second gradient
  cudaTriggerProgrammaticLaunchCompletion();
  // If there is nothing to do, CTAs end early, to make room for the next kernel. The first cluster always waits, so
  // that this kernel ends after tile_product.
  if (blockIdx.x >= plan.cluster_size && load_relaxed(args.progress) == (args.launch | kPackingDone)) return;
  cudaGridDependencySynchronize();
  const uint64_t progress = *args.progress;
  extern __shared__ __align__(256) unsigned char fallback_memory[];
  static_assert(sizeof(Corrections) <= sizeof(MmaMemory<float>), "corrections are kept there");
  // Correct the tiles that meet outliers. Such tiles are mostly few, so each thread first examines one tile, and the
  // CTA then corrects the tiles that its threads have found. If the only product of the batch falls back, no tile is
  // corrected.
  if (progress & kOutliers && !(progress & kFallback && p.batches == 1)) {
    __shared__ int count, tiles_to_correct[kTileThreads];   // the numbers of the tiles that the threads have found
    const uint32_t batches = p.batches, numbers = plan.tile_order.count() * batches, step = gridDim.x;
    auto tile_of = [&](uint32_t number) { return plan.tile_order.find_tile(number / batches); };
    NO_UNROLL for (uint32_t first = blockIdx.x; first < numbers; first += step * kTileThreads) {
      if (threadIdx.x == 0) count = 0;
      __syncthreads();
      if (const uint32_t number = first + step * threadIdx.x; number < numbers) {
        const int batch = number % batches;
        const Tile tile = tile_of(number);
        // The first word of a line's mask says whether the line has outliers: see mask_words
        const uint32_t meets = *wide_in_line(args.x, find_matrix(args.x, batch), k_is_row(kX, p), tile.i) |
                               *wide_in_line(args.y, find_matrix(args.y, batch), k_is_row(kY, p), tile.j);
        if (meets && !args.controls[batch].fallback) tiles_to_correct[atomicAdd(&count, 1)] = number;
      }
      __syncthreads();
      NO_UNROLL for (int u = 0; u < count; ++u)
        correct_tile(args, tiles_to_correct[u] % batches, tile_of(tiles_to_correct[u]),
                     *reinterpret_cast<Corrections*>(fallback_memory));
      __syncthreads();
    }
  }
  if (!(progress & kFallback)) return;
  // The number of the cluster of the plan whose work this CTA does next. Successive numbers go to the products in turns
  __shared__ int number;
  const bool queued = plan.cluster_size == 1;
  do {
    if (threadIdx.x == 0) number = queued ? atomicAdd(args.next_fixup_tile, 1) : blockIdx.x / SplitPlan::kMostSplits;
    __syncthreads();
    if (number >= plan.clusters * p.batches) return;
    if (args.controls[number % int(p.batches)].fallback)
      mma_compute<float, kXKMajor, kYKMajor, kAnyStrides>(p, plan, number,
                                                          *reinterpret_cast<MmaMemory<float>*>(fallback_memory));
    __syncthreads();
  } while (queued);
#endif
}
"""

_CUDA_FIXUP_LAUNCH = r"""
// Launches fixup_kernel. The fallback reads operands of any strides. It copies single elements where 16 bytes cannot be
// copied at once.
void launch_fixup(const Fp16x3Product& args, const Gpu& gpu) {
  std::visit([&](auto x_k_major, auto y_k_major) {
    launch_tiles<fixup_kernel<x_k_major, y_k_major>, MmaMemory<float>>(args.p, kMmaBlockK<float>,
                                                                       mma_ctas_per_sm<float>(900), gpu, args);
  }, constant(args.p.x_col == 1), constant(args.p.y_row == 1));
}
"""

# ---- Symmetric results: the upper half of C, copied from the lower half. ----
#
# Takes a symmetric C of which only the lower half is computed. Produces the elements above the diagonal. This step
# follows fixup_kernel if the fp16x3 kernel has computed C, and the 16-bit kernel if an operand has a mask. In all other
# cases the kernel itself writes each sum both below and above the diagonal. A 16-bit C that is computed whole needs
# neither: see is_computed_whole.
_CUDA_MIRROR = r"""
constexpr int kMirrorThreads = 256;

// Copies the elements of a block that are below C's diagonal to the opposite side of it, kNear neighbours at once. If
// kNear exceeds 1, all elements of the block must be below the diagonal.
template <int kNear, typename Word, int kPitch>
DEVICE void mirror_block(const Product& p, Word* c, int row, int col, Word (&block)[kBlock][kPitch]) {
  using Vector = AlignedArray<Word, kNear>;
  // Vectors per row of the block, and vectors per thread
  constexpr int kInLine = kBlock / kNear, kCount = kBlock * kInLine / kMirrorThreads;
  auto line = [](int u) { return (u * kMirrorThreads + int(threadIdx.x)) / kInLine; };
  auto first_col = [](int u) { return (u * kMirrorThreads + int(threadIdx.x)) % kInLine * kNear; };
  auto is_below = [&](int m, int n) { return kNear > 1 || (row + m < p.m && col + n < row + m); };
  auto element = [&](int m, int n) -> Vector& { return *reinterpret_cast<Vector*>(c + m * p.c_row + n * p.c_col); };
  Vector loaded[kCount] = {};   // all loads start before the first value is stored
  UNROLL for (int u = 0; u < kCount; ++u)
    if (is_below(line(u), first_col(u))) loaded[u] = element(row + line(u), col + first_col(u));
  UNROLL for (int u = 0; u < kCount; ++u)
    UNROLL for (int e = 0; e < kNear; ++e) block[line(u)][first_col(u) + e] = loaded[u].v[e];
  __syncthreads();
  UNROLL for (int u = 0; u < kCount; ++u) {
    UNROLL for (int e = 0; e < kNear; ++e) loaded[u].v[e] = block[first_col(u) + e][line(u)];
    if (is_below(first_col(u), line(u))) element(col + line(u), row + first_col(u)) = loaded[u];
  }
}

// Mirrors C, with one CTA per block on or below the diagonal. Word is an integer type of the size of an element.
template <typename Word>
__global__ void __launch_bounds__(kMirrorThreads) mirror(const __grid_constant__ Product p) {
  constexpr int kNear = 16 / sizeof(Word);
  __shared__ Word block[kBlock][kBlock + (sizeof(Word) == 2 ? 2 : 1)];
  const int batches = p.batches, number = blockIdx.x / batches, i = triangle_root(number);
  const int row = i * kBlock, col = int(number - triangle(i)) * kBlock;
  Word* c = c_matrix<Word>(p, blockIdx.x % batches);
  NV_IF_TARGET(NV_PROVIDES_SM_90, (cudaGridDependencySynchronize();))
  if (col < row && row + kBlock <= p.m && p.c_col == 1 && p.c_row % kNear == 0 &&
      reinterpret_cast<uintptr_t>(c) % 16 == 0)
    mirror_block<kNear>(p, c, row, col, block);
  else
    mirror_block<1>(p, c, row, col, block);
}
"""

# ---- Inverse: 64 rows of the inverse of a triangular matrix at a time. ----
#
# Takes a lower triangular matrix X, float32 or float64, which the binding and docs/kernel.md call L. Also takes the
# product of 64 rows of X, left of the diagonal block, and the rows of the inverse that are known. Produces the next 64
# rows of the inverse. The binding calls launch_inverse once per 64 rows. docs/kernel.md says why the kernel solves for
# these rows and does not invert the diagonal block.
_CUDA_INVERSE = r"""
// ---- Inverse: rows of it, by substitution.

// Computes 64 rows of C = X^-1, from row 64 * `row` on. The contiguous matrix `before` is the product of two matrices:
// the same rows of X, left of the diagonal block, and the rows of C above. Each thread solves for one column of C by
// forward substitution, four rows at a time. C becomes zero to the right of the diagonal block. With `unit`, the
// diagonal of X counts as 1 and is not read.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    invert_rows(const __grid_constant__ Product p, int row, const T* before, int unit) {
  __shared__ alignas(32) T x[kBlock][kBlock];
  const int batch = blockIdx.x / (row + 1), first = row * kBlock, j = threadIdx.x,
            col = blockIdx.x % (row + 1) * kBlock + j;
  const int size = min(kBlock, p.n - first);
  const bool diagonal = col >= first;   // in the diagonal block a column of C begins with zeros
  const T* from = static_cast<const T*>(p.x) + batch_offset(p, p.x_batch, batch) + first * (p.x_row + p.x_col);
#pragma unroll 8
  for (int i = 0; i < kBlock; ++i) {
    const bool read = i < size && (j < i || (j == i && !unit));
    x[i][j] = read ? from[i * p.x_row + j * p.x_col] : T(i == j);
  }
  before += int64_t(batch) * size * first + col;
  __syncthreads();
  // `begin` is the first row of this column of C that may not be zero. The zeros above that row must not be multiplied,
  // since zero times Inf is NaN.
  const int begin = diagonal ? j : 0;
  NO_UNROLL for (int i = 0; i < size; i += 4) {
    T sum[4] = {}, right[4];
    UNROLL for (int r = 0; r < 4; ++r)
      right[r] = diagonal ? T(i + r == j) : i + r < size ? -before[(i + r) * first] : T(0);
    NO_UNROLL for (int k = 0; k < i; k += 4) {   // above row i, x holds rows of the inverse already
      T column[4];
      UNROLL for (int e = 0; e < 4; ++e) column[e] = x[k + e][j];
      UNROLL for (int r = 0; r < 4; ++r) {
        const auto row = *reinterpret_cast<const AlignedArray<T, 4>*>(&x[i + r][k]);
        UNROLL for (int e = 0; e < 4; ++e)
          if (k + e >= begin) sum[r] = fma(-row.v[e], column[e], sum[r]);
      }
    }
    UNROLL for (int r = 0; r < 4; ++r) {
      sum[r] += right[r];
      UNROLL for (int e = 0; e < r; ++e)
        if (i + e >= begin) sum[r] = fma(-x[i + r][i + e], sum[e], sum[r]);
      sum[r] /= x[i + r][i + r];
    }
    __syncthreads();   // all threads have read these rows of x, so they may be overwritten
    for (int r = 0; r < 4; ++r) x[i + r][j] = i + r < begin ? T(0) : sum[r];
    __syncthreads();
  }
  T* to = c_matrix<T>(p, batch) + first * p.c_row;
  for (int c_col = col; c_col < (diagonal ? p.n : first); c_col += diagonal ? kBlock : first)
    for (int i = 0; i < size; ++i) to[i * p.c_row + c_col] = c_col == col ? x[i][j] : T(0);
}
// ---- Inverse: launching.

void launch_inverse(const Product& p, int row, const void* before, bool unit, const Gpu& gpu) {
  const Launch launch((row + 1) * p.batches, kBlock, 0, 1, false, gpu.stream);
  p.type == kFloat64 ? launch_kernel<invert_rows<double>>(launch, p, row, static_cast<const double*>(before), unit)
                     : launch_kernel<invert_rows<float>>(launch, p, row, static_cast<const float*>(before), unit);
}
"""

# ---- Launching: the fp16x3 kernels with their workspace, and products by any kernel. ----
#
# Takes a Product and the kernel that was chosen for it. For gradients it takes the forward product, its workspace, and
# the Products of the two gradients. Produces the launches, all on one stream. The fp16x3 kernels share one allocation,
# the workspace. The host never waits for a kernel. So pack_blocks leaves its findings in the workspace, where the next
# kernels read them.
_CUDA_FP16X3_LAUNCH = r"""
// [begin fp16x3 launches]
// ---- fp16x3, launching: what is to be packed.

// [begin workspace]
// Describes the packed matrices of an operand. Their rows are the operand's lines and their columns are k, or the other
// way round if k_is_row is true. A matrix that the whole batch shares counts once.
static Packed describe_packed(const Product& p, Operand operand) {
  Packed to = operand == kX
                  ? Packed{static_cast<const float*>(p.x), p.x_row, p.x_col, p.m, p.k, p.x_range != KRange::kAll}
                  : Packed{static_cast<const float*>(p.y), p.y_col, p.y_row, p.n, p.k, p.y_range != KRange::kAll};
  if (k_is_row(operand, p)) {
    std::swap(to.row_stride, to.col_stride);
    std::swap(to.rows, to.cols);
  }
  const auto& strides = operand == kX ? p.x_batch : p.y_batch;
  const bool common = std::count(strides, strides + p.batch_dims, 0) == p.batch_dims;
  const int64_t rows = ceil_div(to.rows, kBlock), cols = ceil_div(to.cols, kBlock);   // in blocks
  to.block_cols = cols;
  to.matrices = common ? 1 : p.batches;
  to.blocks_each = std::min(to.triangular ? triangle(cols) : rows * cols, kMaxSize);
  return to;
}

// ---- fp16x3, launching: the workspace.

// The device memory that fp16x3 products need besides operands and C, in one allocation. It begins with the word of
// Progress. The words that pack_blocks resets follow, the Controls first. Everything else comes last.
struct Workspace {
  // The size of a workspace, modulo 128, is the version of this layout. A change of the layout needs another version.
  // launch_gradients compares sizes. So it refuses operands that a build with another layout has packed, and need not
  // read the device's memory for that.
  static constexpr int kLayoutVersion = 1;
  static_assert(kLayoutVersion > 0 && kLayoutVersion < 128, "sizes are multiples of 128 and this");
  Fp16x3Product product[2];   // one product, or both gradients
  int products;
  int64_t bytes = 0;          // how many bytes are in use so far; in the end, the size of the workspace

  // Lays out the workspace of product p. With dy, it is the workspace of two gradients, p = G Y^T and dy = X^T G. Then
  // only G is packed: X and Y are packed already, in the workspace of `kept`. base may be null if only the size
  // matters.
  Workspace(const Product& p, int clusters, void* base, const Product* dy = nullptr,
            const Fp16x3Product* kept = nullptr)
      : product{{p, describe_packed(p, kX), describe_packed(p, kY)}}, products(dy ? 2 : 1) {
    Fp16x3Product& first = product[0];
    Packed &x = first.x, &y = first.y;
    // If Y is the transpose of X, one packed matrix serves both
    const bool square = p.x == p.y && p.x_range == p.y_range && p.x_row == p.y_col && p.x_col == p.y_row &&
                        p.m == p.n && std::equal(p.x_batch, p.x_batch + p.batch_dims, p.y_batch);
    if (dy || square) y.matrices = 0;   // nothing of Y is packed
    auto take = [&](auto*& pointer, int64_t count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(static_cast<uint8_t*>(base) + bytes);
      bytes += (count * int64_t(sizeof(*pointer)) + 7) / 8 * 8;   // a TileQueue's word has to be aligned to 8 bytes
    };
    take(first.progress, 1);
    if (bytes != kControlsOffset) check(cudaErrorUnknown);   // the binding reads the Controls at this offset
    take(first.controls, p.batches);   // the first part of what pack_blocks resets
    for (Packed* to : {&x, &y}) {
      const int64_t matrices = to->matrices, rows = ceil_div(to->rows, kBlock), cols = to->block_cols;
      take(to->wide_by_row, matrices * rows * mask_words(cols));
      take(to->wide_by_col, matrices * cols * mask_words(rows));
    }
    for (int u = 0; u < products; ++u) {
      Fp16x3Product& args = product[u];
      args.tiles = choose_split_tiles(u ? *dy : p, clusters, products);
      take(args.queue.word, 1);
      take(args.next_fixup_tile, 1);
      const TileOrder& order = args.tiles.order;
      take(args.finished_splits, kTileEdge / kBlock * int64_t(order.rows) * order.cols * p.batches);
    }
    // The words that pack_blocks resets end here
    first.words = (bytes - sizeof(*first.progress)) / sizeof(int);
    bytes = (bytes + 127) / 128 * 128;
    auto take_blocks = [&](Packed& to, int& blocks) {
      blocks = std::min(int64_t(to.matrices) * to.blocks_each, kMaxSize);   // no GPU has memory for more
      take(to.metadata, blocks);
      take(to.blocks, blocks * block_bytes(p.allow_tf32));
    };
    take_blocks(x, first.x_blocks);
    take_blocks(y, first.y_blocks);
    if (y.matrices == 0) y = kept ? kept->y : x;
    if (kept) first.kept = kept->controls;
    const ClusterTiles& tiles = first.tiles;
    constexpr int64_t kTileSums = kTileEdge * kTileEdge;   // how many sums a cluster's tile has
    // C can hold the sums of all its tiles. If there are two products, both results are new matrices of one shape
    const bool in_c = (p.m | p.n) % kTileEdge == 0 && std::max(p.c_row, p.c_col) % 4 == 0 &&
                      reinterpret_cast<uintptr_t>(p.c) % 16 == 0;
    // Whether the sums of chains need the workspace, because C cannot hold them or because their tile has splits
    bool chains = false;
    for (int group = 0; group < tiles.groups() && !p.allow_tf32; ++group)
      chains |= ceil_div(tiles.order.length(group), tiles.splits_in_group(group)) > kChain &&
                !(in_c && tiles.splits_in_group(group) == 1);
    // The sums of one tile for each cluster of the launch. Two gradients share this memory, and `clusters` counts the
    // clusters of both
    if (chains) take(first.chain_sums, clusters * kTileSums);
    for (int u = 0; u < products; ++u) {
      Fp16x3Product& args = product[u];
      take(args.partial_sums, p.batches * tiles.partial_slots * kTileSums);
      if (u) {
        args.p = *dy;
        args.x = kept->x;
        args.y = x;
      }
      args.tiles.clusters = (clusters + products - 1 - u) / products;
      args.chain_sums = first.chain_sums;
      args.controls = first.controls;
      args.progress = first.progress;
    }
    bytes = (bytes + 127) / 128 * 128 + kLayoutVersion;
  }
};
// [end workspace]

// ---- fp16x3, launching: all kernels of a product, or of two.

// Other parts of the source define these functions: see _CUDA_PARTS. launch_fixup is a function of the section Fix-up.
// The other functions are instances of launch_fp16x3_product and launch_fp16x3_gradients.
using PackedLauncher = void(const Fp16x3Product& args, const Gpu& gpu);
PackedLauncher launch_product_tf32, launch_product_float32, launch_fixup;
using GradientsLauncher = void(const Fp16x3Product& dx, const Fp16x3Product& dy, const Gpu& gpu);
GradientsLauncher launch_gradients_tf32, launch_gradients_float32;

// Launches the kernels of the product p. If dy is given, launches the kernels of two gradients instead: p = G Y^T and
// dy = X^T G. The packed X and Y are then in the workspace of `kept`. In both cases there is one launch of
// pack_blocks, one of the fp16x3 kernel, and one of fixup_kernel per product.
static void launch_fp16x3(const Product& p, const Gpu& gpu, const Product* dy = nullptr,
                          const Fp16x3Product* kept = nullptr) {
  const int clusters = gpu.sms / 2;   // launch_fp16x3_tiles launches this many clusters of two CTAs
  Workspace workspace(p, clusters, gpu.allocate(gpu, Workspace(p, clusters, nullptr, dy, kept).bytes), dy, kept);
  Fp16x3Product &first = workspace.product[0], &second = workspace.product[1];
  first.launch = second.launch = launch_number();
  IF_INITCHECK(check(cudaMemsetAsync(first.progress, 0, 8, gpu.stream));)
  launch_kernel<pack_blocks>({first.x_blocks + first.y_blocks, kPackers, 0, 1, true, gpu.stream}, first);
  // Tiles have 32-bit numbers. A second gradient has as many tiles as the first one.
  if (first.tiles.count + int64_t(clusters) > kMaxSize) check(cudaErrorInvalidConfiguration);
  if (workspace.products == 2)
    (p.allow_tf32 ? launch_gradients_tf32 : launch_gradients_float32)(first, second, gpu);
  else
    (p.allow_tf32 ? launch_product_tf32 : launch_product_float32)(first, gpu);
  for (int u = 0; u < workspace.products; ++u) launch_fixup(workspace.product[u], gpu);
}
// [end fp16x3 launches]

// ---- Launching: what the binding calls.

// These functions are defined in other parts of the source: see _CUDA_PARTS.
using Launcher = void(const Product& p, const Gpu& gpu);
Launcher launch_exact, launch_split_tf32, launch_sixteen_bit;
Launcher launch_mma_float32, launch_mma_float64, launch_mma_float16, launch_mma_bfloat16;

// Launches a product, and `mirror` if the kernel stores only the lower half of a symmetric C.
void launch_product(const Product& p, Kernel kernel, const Gpu& gpu) {
  // The elements stand in the order of ElementType
  Launcher* const mma[] = {launch_mma_float32, launch_mma_float64, launch_mma_float16, launch_mma_bfloat16};
  // The elements stand in the order of Kernel
  Launcher* const launchers[] = {launch_exact, launch_split_tf32, launch_sixteen_bit, mma[p.type]};
  kernel == kFp16x3Kernel ? launch_fp16x3(p, gpu) : launchers[kernel](p, gpu);
  if (p.symmetric && (kernel == kFp16x3Kernel || (kernel == kSixteenBitKernel && !is_stored_twice(p)))) {
    const Launch launch(triangle(ceil_div(p.m, kBlock)) * p.batches, kMirrorThreads, 0, 1, true, gpu.stream);
    p.type == kFloat32 ? launch_kernel<mirror<uint32_t>>(launch, p) : launch_kernel<mirror<uint16_t>>(launch, p);
  }
}

// [begin launch of gradients]
bool launch_gradients(const Product& product, const Product& dx, const Product& dy, void* kept, int64_t bytes,
                      const Gpu& gpu) {
  const Workspace before(product, gpu.sms / 2, kept);
  // `kept` must have the layout and the TF32 setting of `dx`. torch's setting was read for `product` and again for
  // `dx`, and another thread may have changed it in between
  if (before.bytes != bytes || dx.allow_tf32 != product.allow_tf32) return false;
  launch_fp16x3(dx, gpu, &dy, before.product);
  return true;
}
// [end launch of gradients]
"""

# ==== 2. Binding and build ====

# ---- Binding: the only C++ that knows torch. ----
#
# The binding takes tensors, and checks that they fit each other. It describes each product as a Product, asks the
# policy for a kernel, and launches that kernel. Only the binding includes torch's headers. With them, nvcc would take
# three times as long to compile the CUDA source.
_CPP_BINDING = r"""
// ---- Binding: errors, and what a GPU is.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>
#include <vector>

// The code gives TORCH_CHECK a single string. TORCH_CHECK would write several strings to a C++ stream. Such a stream
// ends the process if the C++ library is linked statically.
void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();   // clears the error, which torch's next launch would raise again
  int device = 0;
  cudaGetDevice(&device);
  std::string advice;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorInvalidKernelImage)
    advice =
        ". The kernels are built for the GPUs that are visible at import; import the file again in a process that sees "
        "this one";
  if (error == cudaErrorInvalidConfiguration)
    advice = ". A launch has at most 2147483647 CTAs, and each product of a batch takes one or more; split the batch";
  TORCH_CHECK(false, "tril_matmul: the CUDA kernel could not be launched on cuda:" + std::to_string(device) + ": " +
                         cudaGetErrorName(error) + " (" + std::to_string(error) + "), " + cudaGetErrorString(error) +
                         advice + ".");
}

namespace {

using at::Tensor;

// [begin empty]
// Does what at::empty does. The binding does not include the header of at::empty, because that header would take a
// seventh of the binding's compile time.
Tensor make_empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const std::optional<at::ScalarType> dtype = c10::optTypeMetaToScalarType(options.dtype_opt());
  return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(sizes), dtype, options.layout_opt(),
                                             options.device_opt(), options.pinned_memory_opt(), {});
}
// [end empty]

// While an OnDevice exists, the device of tensor x is the current device. The members of Gpu describe this device to
// the launchers.
struct OnDevice : Gpu {
  c10::cuda::CUDAGuard guard;
  mutable Tensor workspace;   // keeps the memory that was allocated last until the call ends
  explicit OnDevice(const Tensor& x) : guard(x.device()) {
    // The driver's functions need a current context. If the device is already current, the guard makes no context. The
    // query of priorities makes a context if the thread has none. If the thread has one, such as a green context, the
    // query keeps it, but cudaSetDevice would replace it.
    int least, most;
    check(cudaDeviceGetStreamPriorityRange(&least, &most));
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, x.get_device()));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.get_device()));
    stream = c10::cuda::getCurrentCUDAStream();
    allocate = [](const Gpu& gpu, int64_t bytes) {
      const OnDevice& on = static_cast<const OnDevice&>(gpu);
      on.workspace = make_empty({bytes}, at::device(at::kCUDA).dtype(at::kByte));
      return on.workspace.mutable_data_ptr();
    };
  }
};

// [begin tensors]
// ---- Binding: tensors described as a Product.

// The ElementType of a tensor. The result is kBFloat16 + 1 for a dtype without a kernel.
ElementType element_type(const Tensor& t) {
  constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  return ElementType(std::find(std::begin(types), std::end(types), t.scalar_type()) - types);
}

// Whether torch's settings (set_float32_matmul_precision, allow_tf32, fp32_precision) allow TF32. `precision` points to
// the member function at::Context::float32Precision. It is a parameter so that its type is deduced: the arguments and
// the result are strings in torch 2.9, and enumerators from 2.10 on.
template <typename Precision, typename Backend, typename Operation>
bool is_tf32(Precision (at::Context::*precision)(Backend, Operation) const) {
  if constexpr (std::is_same_v<Precision, std::string>)
    return (at::globalContext().*precision)("cuda", "matmul") == "tf32";
  else
    return (at::globalContext().*precision)(Backend::CUDA, Operation::MATMUL) == Precision::TF32;
}

// [begin structure]
// The masks of X, Y and C. The number `structure` has two bits for each of the three masks. These masks are for the
// matrices as they are stored. The members x and y are for the operands as they are multiplied: if the contraction
// transposes an operand, its mask is flipped.
struct Structure {
  int x, y, c;
  Structure(int structure, int contraction) : x(structure & 3), y(structure >> 2 & 3), c(structure >> 4) {
    if (contraction == kTN) x = flipped(x);
    if (contraction == kNT) y = flipped(y);
    if (x == y && c == kFull) c = x;   // the product of two lower matrices is lower
  }
  static int flipped(int mask) { return mask == kLower ? kUpper : mask == kUpper ? kLower : mask; }
  bool valid() const {
    return x <= kUpper && y <= kUpper && c >= kFull && c <= kSymmetric && (x != y || x == kFull || x == c);
  }
};
// [end structure]

// Describes the contraction of x and y into c as a Product. x and y must fit each other. If they have more than
// kMaxBatchDims leading dimensions, x and y are replaced by tensors with a single leading dimension. An operand is
// copied if its leading dimensions do not merge.
Product describe(Tensor& x, Tensor& y, const Tensor& c, int contraction, int structure) {
  Product p = {};
  if (x.dim() - 2 > kMaxBatchDims) {
    x = x.flatten(0, -3);
    y = y.flatten(0, -3);
  }
  // [begin batch of a product]
  p.batches = 1;
  p.batch_dims = 0;
  // Neighbouring dimensions merge if the strides of both operands allow it. Dimensions of size 1 are left out.
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const int64_t size = x.size(d);
    if (size == 1) continue;
    int dim = p.batch_dims - 1;
    const bool merged = dim >= 0 && p.x_batch[dim] == x.stride(d) * size && p.y_batch[dim] == y.stride(d) * size;
    dim += !merged;
    p.batches *= size;
    p.batch_dims = dim + 1;
    p.batch_size[dim] = merged ? p.batch_size[dim] * size : size;
    p.x_batch[dim] = x.stride(d);
    p.y_batch[dim] = y.stride(d);
  }
  // [end batch of a product]
  const int64_t m = c.size(-2), n = c.size(-1), k = x.size(contraction == kTN ? -2 : -1);
  TORCH_CHECK(std::max({m, n, k}) <= kMaxSize, "tril_matmul: a matrix of " + std::to_string(m) + " x " +
                                                   std::to_string(k) + " times one of " + std::to_string(k) + " x " +
                                                   std::to_string(n) + " is too large; at most " +
                                                   std::to_string(kMaxSize) + " a side");
  p.m = m;
  p.n = n;
  p.k = k;
  p.type = element_type(x);
  p.allow_tf32 = p.type == kFloat32 && is_tf32(&at::Context::float32Precision);
  // A single row or column may have the strides (1, 1). operands_to_copy would take it for an unaligned matrix. The
  // stride of the dimension of length 1 is never used, so the length of the other dimension replaces it.
  auto stride = [](const Tensor& t, int d) {
    return t.size(d) == 1 && t.stride(-1) == t.stride(-2) ? t.size(-3 - d) : t.stride(d);
  };
  p.x = x.const_data_ptr();
  p.x_row = stride(x, -2);
  p.x_col = stride(x, -1);
  p.y = y.const_data_ptr();
  p.y_row = stride(y, -2);
  p.y_col = stride(y, -1);
  p.c = c.mutable_data_ptr();
  p.c_row = c.stride(-2);
  p.c_col = c.stride(-1);
  p.c_batch = m * n;
  if (contraction == kTN) std::swap(p.x_row, p.x_col);
  if (contraction == kNT) std::swap(p.y_row, p.y_col);
  // [begin masks of a product]
  const Structure masks(structure, contraction);
  // `sides` has the KRange of X for each mask. With the same mask, Y has the negated KRange: a line of X is a row, but
  // a line of Y is a column.
  const KRange sides[] = {KRange::kAll, KRange::kToDiagonal, KRange::kFromDiagonal};
  p.x_range = sides[masks.x];
  p.y_range = KRange(-sides[masks.y]);
  p.c_lower = masks.c != kFull;
  p.symmetric = masks.c == kSymmetric;
  // An upper C is computed as the lower C^T = Y^T X^T, in the same memory with its strides swapped
  if (masks.c == kUpper) {
    std::swap(p.x, p.y);
    std::swap(p.x_batch, p.y_batch);
    std::swap(p.x_range, p.y_range);
    std::swap(p.x_row, p.y_col);
    std::swap(p.x_col, p.y_row);
    std::swap(p.m, p.n);
    std::swap(p.c_row, p.c_col);
  }
  // [end masks of a product]
  return p;
}

// Returns a copy of t whose lines begin at multiples of 16 bytes. Lines are rows, or columns if t is column-major. A
// single column is one line. Broadcast dimensions stay broadcast. torch copies lines with gaps between them element by
// element. The function therefore copies words of 8 or 4 bytes, if sizes, strides and the address allow it.
Tensor padded_copy(const Tensor& t) {
  if (t.stride(-2) == 1 && (t.stride(-1) != 1 || t.size(-1) < t.size(-2))) return padded_copy(t.mT()).mT();
  Tensor from = t;
  for (int64_t d = 0; d < t.dim() - 2; ++d)
    if (t.stride(d) == 0) from = from.narrow(d, 0, 1);
  c10::SmallVector<int64_t, 8> shape(from.sizes());
  const int64_t size = from.element_size(), length = shape.back();
  shape.back() = (length + 7) / 8 * 8;
  Tensor to = make_empty(shape, from.options());
  IF_INITCHECK(to.zero_();)
  to = to.narrow(-1, 0, length);
  // `all` is the bitwise or of several numbers of bytes. Words of 8 bytes need all of these numbers to be multiples of
  // 8. Words of 4 bytes need multiples of 4
  int64_t all = length * size | from.storage_offset() * size | reinterpret_cast<intptr_t>(from.const_data_ptr());
  for (int64_t d = 0; d < from.dim() - 1; ++d) all |= from.stride(d) * size;
  const at::ScalarType word = from.stride(-1) != 1 || all % 4 ? from.scalar_type() : all % 8 ? at::kInt : at::kLong;
  to.view(word).copy_(from.view(word));
  return to.expand(t.sizes());
}

// ---- Binding: what the kernels can be given.

// Whether the kernels can read a tensor from its memory as it is. This excludes subclasses (DTensor), torch's wrappers
// (as under vmap) and negated views.
bool is_memory(const Tensor& t) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet keys(
      {DispatchKey::CUDA, DispatchKey::AutogradCUDA, DispatchKey::ADInplaceOrView, DispatchKey::AutocastCUDA});
  return keys.has_all(t.key_set());
}

// Whether the operands fit each other, the contraction and the structure.
bool fit(const Tensor& x, const Tensor& y, int contraction, int structure) {
  if (!is_memory(x) || !is_memory(y) || y.device() != x.device() || y.scalar_type() != x.scalar_type() || x.dim() < 2 ||
      y.dim() != x.dim() || element_type(x) > kBFloat16 || contraction < kNN || contraction > kTN ||
      x.sizes().slice(0, x.dim() - 2) != y.sizes().slice(0, y.dim() - 2))
    return false;
  const Structure masks(structure, contraction);
  // The dimension of k is x_k in X and y_k in Y. The other dimension of X is -3 - x_k.
  const int x_k = contraction == kTN ? -2 : -1, y_k = contraction == kNT ? -1 : -2;
  // For a symmetric product, the 16-bit kernel assumes that Y has the layout of X, and in some tiles it reads X in
  // place of Y. So both must have the same strides
  if (masks.c == kSymmetric && x.strides() != y.strides()) return false;
  return masks.valid() && x.size(x_k) == y.size(y_k) && (masks.x == kFull || x.size(-1) == x.size(-2)) &&
         (masks.y == kFull || y.size(-1) == y.size(-2)) && (masks.c == kFull || x.size(-3 - x_k) == y.size(-3 - y_k));
}

// Whether the operands fit, and none of torch's modes and transforms is active. Autograd, no_grad and inference mode
// may be active.
bool is_plain(const Tensor& x, const Tensor& y, int contraction, int structure) {
  return fit(x, y, contraction, structure) && !x._fw_grad(0).defined() && !y._fw_grad(0).defined() &&
         c10::default_included_set.has_all(c10::impl::tls_local_dispatch_key_set().included_) &&
         c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCUDA);
}

// ---- Binding: products, and gradients that reuse the operands packed by the forward product.

// Computes C. Returns C, the name of the kernel, and a workspace. If `keep` is true and the kernel is fp16x3, the
// workspace has the Controls and the packed operands. Otherwise it is an undefined tensor, which is None in Python.
std::tuple<Tensor, std::string, Tensor> product(Tensor x, Tensor y, int contraction, int structure, int path,
                                                bool keep) {
  TORCH_CHECK(
      is_memory(x) && is_memory(y),
      "tril_matmul: the kernels read plain CUDA tensors, but an operand is a subclass, a wrapper or a negated view");
  TORCH_CHECK(fit(x, y, contraction, structure),
              "tril_matmul: the operands do not fit each other, the contraction or the structure");
  const OnDevice on(x);
  c10::SmallVector<int64_t, 8> shape(x.sizes());
  shape[shape.size() - 2] = x.size(contraction == kTN ? -1 : -2);
  shape.back() = y.size(contraction == kNT ? -2 : -1);
  const Tensor c = make_empty(shape, x.options());
  // None of the kernels is launched if C has no elements, or if k is 0. With k = 0 no sum has any term, so C is zero.
  // explain() then names the exact path, although that has not run either
  if (c.numel() == 0 || x.numel() == 0) return {c.zero_(), kKernelNames[kExactKernel], {}};
  Product p = describe(x, y, c, contraction, structure);
  // If a symmetric C is computed whole, it is treated as a C without a mask
  if (p.symmetric && is_computed_whole(p, on)) {
    structure &= 15;
    p.c_lower = p.symmetric = 0;
  }
  const Kernel kernel = kernel_for(p, on, Path(path));
  // If C is upper, describe has swapped the operands: p.x is y, and p.y is x. Bit 0 of `copies` is for p.x, bit 1 for
  // p.y
  if (const int copies = operands_to_copy(p, kernel)) {
    const bool transposed = Structure(structure, contraction).c == kUpper;
    const bool of_x = copies & (transposed ? 2 : 1), same = of_x && y.is_same(x);
    if (of_x) x = padded_copy(x);
    if (copies & (transposed ? 1 : 2)) y = same ? x : padded_copy(y);
    p = describe(x, y, c, contraction, structure);
  }
  launch_product(p, kernel, on);
  return {c, kKernelNames[kernel], keep && kernel == kFp16x3Kernel ? on.workspace : Tensor()};
}

// Returns two ints for each product of a batch, its Control: whether the product fell back, and how many outliers it
// has. `workspace` is the tensor that `product` has returned. Only `explain` calls this function.
Tensor controls(const Tensor& workspace, int64_t batches) {
  static_assert(sizeof(Control) == 2 * sizeof(int), "fallback, outliers");
  return workspace.narrow(0, kControlsOffset, batches * int64_t(sizeof(Control))).view(at::kInt).view({-1, 2});
}

// Computes the gradients dX and dY of C = X Y from G = dC and the kept workspace. All of these matrices are triangular.
// The result is empty if a mode or a transform of torch is active, or if the workspace no longer suits the product.
std::vector<Tensor> gradients(Tensor g, Tensor x, Tensor y, Tensor kept, int structure) {
  if (!is_plain(g, y, kNT, structure) || !is_plain(x, g, kTN, structure) || kept.device() != x.device()) return {};
  if (!is_memory(kept) || !kept.is_contiguous() || reinterpret_cast<uintptr_t>(kept.const_data_ptr()) % 16 != 0)
    return {};
  const OnDevice on(x);
  const Tensor dx = make_empty(x.sizes(), x.options()), dy = make_empty(x.sizes(), x.options());
  const Product product = describe(x, y, dx, kNN, structure);
  Product to_x = describe(g, y, dx, kNT, structure), to_y = describe(x, g, dy, kTN, structure);
  // An upper C was computed as C^T = Y^T X^T. The first packed operand is then Y^T instead of X. The two gradients
  // therefore change places.
  if (Structure(structure, kNN).c == kUpper) std::swap(to_x, to_y);
  if (launch_gradients(product, to_x, to_y, kept.mutable_data_ptr(), kept.nbytes(), on)) return {dx, dy};
  // The workspace does not suit the product. Either torch's TF32 setting has changed since the forward, or a
  // saved-tensor hook has changed a tensor. For example, the hook has copied a matrix that the batch shared, so that
  // the batch now has several matrices. Or the hook has returned a workspace of another size.
  return {};
}

// Computes the inverses X of lower triangular matrices L (..., N, N) of float32 or float64. In the code, x is L and c
// is X. Each step finds the next 64 rows of X from the rows above. Let 1 stand for the rows above, and 2 for the 64
// rows. `product` computes L21 X11. Then launch_inverse solves L22 X21 = -(L21 X11) and L22 X22 = I. docs/kernel.md
// says why X21 is not computed as a product with X22.
Tensor inverse(Tensor x, bool unit, int path) {
  constexpr int kLowerAll = kLower | kLower << 2 | kLower << 4;
  TORCH_CHECK(fit(x, x, kNN, kLowerAll) && element_type(x) <= kFloat64, "tril_matmul: this tensor cannot be inverted");
  const OnDevice on(x);
  const Tensor c = make_empty(x.sizes(), x.options());
  if (c.numel() == 0) return c;
  Tensor as_x = x, as_y = x, before;
  const Product p = describe(as_x, as_y, c, kNN, kLowerAll);
  for (int64_t first = 0, n = x.size(-1); first < n; first += 64) {
    const Tensor rows_of_x = x.narrow(-2, first, std::min<int64_t>(64, n - first)).narrow(-1, 0, first);
    const Tensor known = c.narrow(-2, 0, first).narrow(-1, 0, first);
    if (first) before = std::get<0>(product(rows_of_x, known, kNN, kLower << 2, path, false));
    launch_inverse(p, int(first / 64), first ? before.const_data_ptr() : nullptr, unit, on);
  }
  return c;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  // A launch waits while the stream's queue is full. The GIL is released so that other Python threads do not wait, too.
  using NoGil = pybind11::call_guard<pybind11::gil_scoped_release>;
  m.def("product", &product, NoGil());
  m.def("gradients", &gradients, NoGil());
  m.def("inverse", &inverse, NoGil());
  m.def("controls", &controls);
  m.def("is_plain", &is_plain);
}
// [end tensors]
"""

# ---- Which kernel is asked for. ----

# The values of TRIL_MATMUL_PATH. With 'auto', the default, the policy takes the fastest kernel. With 'exact' or 'mma',
# the kernel of that name computes every product. With 'hopper', Hopper's two kernels (16-bit and fp16x3) compute all
# products that they support. The mma kernel computes the remaining products: float64, and any dtype on other GPUs.
_PATHS = {"auto": 0, "exact": 1, "mma": 2, "hopper": 3}  # as in the CUDA source
_wanted = os.environ.get("TRIL_MATMUL_PATH") or "auto"
if _wanted not in _PATHS:
    _accepted = "'auto', 'exact', 'mma' or 'hopper'"
    raise ValueError(f"the environment variable TRIL_MATMUL_PATH must be {_accepted}, but is {_wanted!r}")
_PATH = _PATHS[_wanted]

# ---- Build: at import, for the GPUs present. ----

# These are the sections in the order in which the compilers read them. Each entry of _CUDA_PARTS below names the
# sections of one part. A section that no entry names belongs to every part.
_CUDA_SECTIONS = [_CUDA_TYPES, _CUDA_LAUNCHERS, _CUDA_SCHEDULE, _CUDA_POLICY, _CUDA_PTX, _CUDA_LAUNCH, _CUDA_COPIER]
_CUDA_SECTIONS += [_CUDA_EXACT, _CUDA_TILES, _CUDA_SPLIT_TF32, _CUDA_MMA, _CUDA_TILE_LAUNCH, _CUDA_MMA_LAUNCH]
_CUDA_SECTIONS += [_CUDA_SKELETON, _CUDA_SIXTEEN_BIT, _CUDA_SIXTEEN_BIT_LAUNCH]
_CUDA_SECTIONS += [_CUDA_PACKED, _CUDA_PACKING, _CUDA_PACKING_KERNEL, _CUDA_FP16X3, _CUDA_FP16X3_TILES_LAUNCH]
_CUDA_SECTIONS += [_CUDA_FIXUP, _CUDA_FIXUP_LAUNCH, _CUDA_MIRROR, _CUDA_INVERSE, _CUDA_FP16X3_LAUNCH]
_FP16X3_SECTIONS = [_CUDA_PACKED, _CUDA_PACKING, _CUDA_FP16X3, _CUDA_FP16X3_TILES_LAUNCH]


def _instance(launcher, instance, parameters="const Product& p", arguments="p"):
    """Returns a C++ function that calls an instance of a launcher's template."""
    return f"void {launcher}({parameters}, const Gpu& gpu) {{ {instance}({arguments}, gpu); }}"


def _sixteen_bit_instance(launcher, arguments):
    return _instance(launcher, f"launch_sixteen_bit_tiles<{arguments}>", "const SixteenBitProduct& args", "args")


def _packed_instance(launcher, instance):
    return _instance(launcher, instance, "const Fp16x3Product& args", "args")


def _gradients_instance(launcher, argument):
    parameters = "const Fp16x3Product& dx, const Fp16x3Product& dy"
    return _instance(launcher, f"launch_fp16x3_gradients<{argument}>", parameters, "dx, dy")


# Each part has kernels that no other part launches, so several nvcc processes can compile the parts side by side. An
# #if in _CUDA_POLICY compiles the functions that the binding calls in part 0 only. The first item of an entry is the
# part's compile time on one core for sm_90a, in seconds (Intel Xeon, nvcc 13.0). It excludes 1.4 s for the sections
# that all parts share.
_CUDA_PARTS = [
    (1.0, [_CUDA_PACKED, _CUDA_PACKING, _CUDA_PACKING_KERNEL, _CUDA_FP16X3, _CUDA_MIRROR, _CUDA_FP16X3_LAUNCH]),
    (5.2, [*_FP16X3_SECTIONS, _packed_instance("launch_product_float32", "launch_fp16x3_product<false>")]),
    (3.7, [*_FP16X3_SECTIONS, _gradients_instance("launch_gradients_float32", "false")]),
    (3.6, [*_FP16X3_SECTIONS, _packed_instance("launch_product_tf32", "launch_fp16x3_product<true>")]),
    (3.1, [*_FP16X3_SECTIONS, _gradients_instance("launch_gradients_tf32", "true")]),
    (5.5, [_CUDA_PACKED, _CUDA_PACKING, _CUDA_FIXUP, _CUDA_FIXUP_LAUNCH]),
    (6.2, [_CUDA_TILE_LAUNCH, _CUDA_INVERSE]),
    (
        6.2,
        [
            _CUDA_MMA_LAUNCH,
            _instance("launch_mma_float32", "launch_mma<float>"),
            _instance("launch_mma_float64", "launch_mma<double>"),
        ],
    ),
    (4.3, [_CUDA_MMA_LAUNCH, _instance("launch_mma_float16", "launch_mma<__half>")]),
    (4.3, [_CUDA_MMA_LAUNCH, _instance("launch_mma_bfloat16", "launch_mma<__nv_bfloat16>")]),
    (7.4, [_CUDA_SIXTEEN_BIT_LAUNCH, _sixteen_bit_instance("launch_small_float16", "__half, false")]),
    (7.5, [_sixteen_bit_instance("launch_large_float16", "__half, true")]),
    (7.0, [_sixteen_bit_instance("launch_small_bfloat16", "__nv_bfloat16, false")]),
    (7.6, [_sixteen_bit_instance("launch_large_bfloat16", "__nv_bfloat16, true")]),
]


def _list_strings():
    """Returns a dict: for each string of the CUDA source, the parts that name it. The order is the compilers' order."""
    strings = {string: [] for string in _CUDA_SECTIONS}
    for part, (_, named) in enumerate(_CUDA_PARTS):
        for string in named:
            strings.setdefault(string, []).append(part)
    return strings


# The whole source, for tools. `nvcc -DPART=2` compiles part 2 of it.
_CUDA_SOURCES = []
for _string, _parts in _list_strings().items():
    _condition = " || ".join(f"PART == {part}" for part in _parts)
    _CUDA_SOURCES += [f"#if !defined(PART) || {_condition}", _string, "#endif"] if _parts else [_string]
# -O1 is for the host's code, and -split-compile=0 lets nvcc use all cores. With -lineinfo profilers name the lines of
# this file, as in ncu's source view. Machine code stays the same, and a build takes 2 % longer (2026-11-29, sm_90a).
_NVCC_FLAGS = ["-O1", "-split-compile=0", "-lineinfo"]
# The same source may compile differently under other values of these environment variables. The name of a build
# therefore depends on their values.
_COMPILER_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "PYTORCH_NVCC", "CC", "CXX")
_CXX_FLAGS = ["-O1"]  # the binding's flags; -O2 takes 1 s longer
# About how many seconds one CPU core of a machine with H200s takes to build everything for one target.
_SECONDS_OF_A_CORE = 130
_SECONDS_BETWEEN_REPORTS = 30
_OLDEST = (8, 0)  # the least compute capability that has kernels
_CAPABILITIES = []  # the compute capability of each GPU
if torch.cuda.is_available():
    _CAPABILITIES = [torch.cuda.get_device_capability(device) for device in range(torch.cuda.device_count())]
# pip's packages of the CUDA toolkit. _PIP_COMMAND asks for torch's version of CUDA in every package. If only nvcc had a
# version, pip would add the newest nvvm, and an older ptxas refuses the PTX of a newer nvvm. examples/compiler.py reads
# the value of _PIP_PACKAGES from this file.
_PIP_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
_PIP_COMMAND = " ".join(["pip install", *(f"{package}~={torch.version.cuda}.0" for package in _PIP_PACKAGES)])


def _say(what):
    print(f"tril_matmul: {what}", file=sys.stderr, flush=True)


def _pip_toolkit(cuda, path):
    """Finds the CUDA toolkit of version `cuda` that pip's packages have put into the folders of `path`.

    Returns (CUDA_HOME, folders of headers, libcudart), or None if a package is missing. From CUDA 13 on all packages
    share a folder such as nvidia/cu13. Two site-packages folders may each have a part of it. Before CUDA 13 the
    packages have no nvcc, so the result is None.
    """
    major = str(cuda).partition(".")[0]
    trees = [f"{os.path.abspath(folder)}/nvidia/cu{major}" for folder in path]
    # `files` has one file of each package, in the order of _PIP_PACKAGES. The last entry is a second file of the last
    # package: its library
    files = ["bin/nvcc", "include/crt/host_config.h", "nvvm/bin/cicc", "include/cccl/cuda/ptx"]
    files += ["include/cuda_runtime.h", f"lib/libcudart.so.{major}"]
    found = [next((tree for tree in trees if os.path.exists(f"{tree}/{file}")), None) for file in files]
    if None in found:
        return None
    headers = [f"{tree}/include" for tree in dict.fromkeys(found)] + [f"{found[3]}/include/cccl"]
    return found[0], headers, f"{found[-1]}/{files[-1]}"


_MODULE_CODE = sys._getframe().f_code  # the code of this file, however it is executed


def _add_lines(strings):
    """Returns the strings of C++ with a #line directive before each. So compilers and profilers name this file's lines.

    The code object knows the line at which a string begins, even if this file is executed from a string. In a notebook
    each statement of a cell has a code object of its own, and _MODULE_CODE is that of a single statement. There, the
    line is found in the text of the cell. A string that is made at run time has no line.
    """
    begins = {}
    for instruction in dis.get_instructions(_MODULE_CODE):
        if instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str):
            lines = (line for start, end, line in _MODULE_CODE.co_lines() if start <= instruction.offset < end)
            begins[instruction.argval] = next(lines)
    cell = "".join(linecache.getlines(_MODULE_CODE.co_filename))
    for string in strings:
        if string not in begins and string in cell:
            begins[string] = cell[: cell.index(string)].count("\n") + 1
    file = _MODULE_CODE.co_filename.replace("\\", "\\\\").replace('"', '\\"')
    texts = []
    for string in strings:
        texts.append(f'#line {begins[string]} "{file}"' if string in begins else '#line 1 "made at run time"')
        texts.append(string)
    return texts


def _runtime_of(home):
    """Returns the folder with libcudart.so within the toolkit `home`, or None.

    The linker needs the file under this name, which has no version.
    """
    folders = [f"{home}/lib64", f"{home}/lib", *glob.glob(f"{glob.escape(home)}/targets/*/lib")]
    return next((folder for folder in folders if os.path.exists(f"{folder}/libcudart.so")), None)


def _ask_nvcc(nvcc, options, pattern):
    """Runs nvcc with a string of options. Returns the first group of `pattern` in nvcc's output, or None."""
    command = f"{nvcc} {options}"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = re.search(pattern, done.stdout.decode(errors="replace"), re.MULTILINE)
    return found and found[1]


def _find_toolkit(home):
    """Finds the CUDA toolkit. `home` is the toolkit's folder that torch has found, or None.

    Returns None if there is no nvcc, and otherwise (nvcc, folders of headers, runtime). `nvcc` is a shell command.
    `runtime` is the path of the library libcudart, or the path of its folder, or None.
    """
    nvcc = os.environ.get("PYTORCH_NVCC")
    if not nvcc and home is not None and os.path.exists(f"{home}/bin/nvcc"):
        nvcc = shlex.quote(f"{home}/bin/nvcc")
    # torch does not find a toolkit that pip's packages have installed
    if not nvcc or home is None:
        found = _pip_toolkit(torch.version.cuda, sys.path)
        if found is not None:
            return nvcc or shlex.quote(f"{found[0]}/bin/nvcc"), *found[1:]
    if not nvcc and home is not None and (path := shutil.which("nvcc")):
        _say(f"CUDA_HOME is {home}, which has no bin/nvcc; {path} compiles instead")
        nvcc = shlex.quote(path)
    if not nvcc:
        return None
    # If nvcc is a wrapper in /usr/local/bin, torch takes /usr/local for the toolkit. nvcc --dryrun prints the toolkit's
    # true folder as TOP
    if home is None or _runtime_of(home) is None:
        home = _ask_nvcc(nvcc, "--dryrun x.cu", r"^#\$ TOP=(.+)$") or home
    if home is None:
        return nvcc, [], None
    headers = [f"{home}/include", *glob.glob(f"{glob.escape(home)}/targets/*/include")]
    return nvcc, [folder for folder in headers if os.path.exists(folder)], _runtime_of(home)


def _is_whole(library):
    """Returns whether the file of a library is complete.

    The section table is the last part of an ELF file, and the ELF header says where the table ends.
    """
    with open(library, "rb") as file:
        header = file.read(64)
    start, size, count = (int.from_bytes(header[first:end], "little") for first, end in ((40, 48), (58, 60), (60, 62)))
    return len(header) == 64 and os.path.getsize(library) >= start + size * count


def _load_build(folder, name):
    """Returns the extension module of a finished build. Returns None if the folder has no library, or a damaged one."""
    # If one process builds a module twice, torch adds a number to the second file's name
    library = next(glob.iglob(f"{glob.escape(folder)}/{name}*.so"), None)
    if library is None or not _is_whole(library):
        return None
    with contextlib.suppress(ImportError):
        spec = importlib.util.spec_from_file_location(os.path.basename(library).removesuffix(".so"), library)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return None


def _build():
    """Returns the extension module for the GPUs present, and builds it if no finished build is found.

    Returns None if none of the GPUs has kernels, or if there is no nvcc.
    """
    # From compute capability 10.0 on, code for minor number 0 runs on all GPUs with the same major number. The minor
    # number becomes 0, because an nvcc may not know each of these GPUs
    targets = sorted({(major, minor * (major < 10)) for major, minor in _CAPABILITIES if (major, minor) >= _OLDEST})
    if not targets:
        return None
    # The instruction wgmma exists only in sm_90a, not in sm_90
    names = [f"sm_{major}{minor}{'a' if major == 9 else ''}" for major, minor in targets]
    flags = _NVCC_FLAGS + [f"-gencode=arch={target.replace('sm', 'compute')},code={target}" for target in names]
    # The name of a build depends on everything that decides the binary. So an old build is never loaded for an edited
    # file, a new GPU or another Python. The name does not depend on the versions of the compilers, because a finished
    # build is also loaded on a machine without a compiler.
    decisive = [*_CUDA_SOURCES, _CPP_BINDING, *_CXX_FLAGS, *flags]
    decisive += [torch.__version__, importlib.machinery.EXTENSION_SUFFIXES[0]]
    decisive += [f"{name}={os.environ[name]}" for name in _COMPILER_VARIABLES if os.environ.get(name)]
    name = "tril_matmul_" + hashlib.sha256("\n".join(decisive).encode()).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # torch's own builds go to the same folder
    root = os.path.abspath(os.environ.get("TORCH_EXTENSIONS_DIR") or f"{caches}/torch_extensions")
    with _ExplainFolder(root):
        module = _load_build(f"{root}/{name}", name)
    return module or _compile(root, name, flags, names)


class _ExplainFolder:
    """A context manager. It raises an OSError again, with the advice to set TORCH_EXTENSIONS_DIR to another folder."""

    def __init__(self, root):
        self.root = root

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, OSError):
            reason = f"tril_matmul: the CUDA kernels cannot be built in {self.root} ({error.strerror})"
            advice = "set TORCH_EXTENSIONS_DIR to a folder in which this process may write files"
            raise OSError(error.errno, f"{reason}; {advice}", error.filename) from None


def _count_jobs():
    """Returns how many compilers may run at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("MAX_JOBS") or cores)


def _group_parts(jobs):
    """Divides the parts of the source into at most `jobs` groups, which take about equal times to compile.

    One nvcc compiles one group, and thus compiles the sections that all parts share once per group.
    """
    groups = [[] for _ in range(min(max(jobs, 1), len(_CUDA_PARTS)))]
    seconds = [0.0] * len(groups)
    for part in sorted(range(len(_CUDA_PARTS)), key=lambda part: -_CUDA_PARTS[part][0]):
        shortest = seconds.index(min(seconds))
        groups[shortest].append(part)
        seconds[shortest] += _CUDA_PARTS[part][0]
    return groups


def _start_nvcc(room, nvcc, flags, jobs):
    """Starts a shell that compiles the kernels in the folder `room`.

    Returns the process of the shell, and the names of the object files.

    The shell removes the file `running` when every nvcc has ended. Each nvcc writes its messages to a file
    kernels*.log.
    """
    script = [f"while sleep {_SECONDS_BETWEEN_REPORTS} && [ -e running ] && kill -0 {os.getpid()} 2>/dev/null; do"]
    script += [f"  seconds=$((${{seconds:-0}} + {_SECONDS_BETWEEN_REPORTS}))"]
    script += ['  echo "tril_matmul: still building the CUDA kernels, for $seconds s so far" >&2', "done &"]
    objects = []
    for number, group in enumerate(_group_parts(jobs)):
        strings = [string for string, parts in _list_strings().items() if not parts or not set(parts).isdisjoint(group)]
        with open(f"{room}/kernels{number}.cu", "w") as file:
            file.write("\n".join(_add_lines(strings)))
        objects.append(f"kernels{number}.o")
        file = f"kernels{number}"
        # Some functions are compiled only if PART is 0. Exactly one object file may define these functions, and the
        # smallest number of a group is 0 only in the group with part 0
        part = f"-DPART={min(group)}"
        command = f"{nvcc} {shlex.join(flags)} {part} -c {file}.cu -o {file}.o"
        script += [f"{command} >{file}.log 2>&1 &", 'compilers="$compilers $!"']
    script += ["wait $compilers", "rm running"]
    with open(f"{room}/nvcc.sh", "w") as file:
        file.write("\n".join([*script, ""]))
    open(f"{room}/running", "w").close()
    return subprocess.Popen(["sh", "nvcc.sh"], cwd=room, stdout=subprocess.DEVNULL, start_new_session=True), objects


def _end(process):
    """Ends a process that leads a session, and all processes that it has started.

    A sandbox may forbid new sessions, or refuse signals to a session. In both cases only the process itself is ended.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    process.terminate()
    process.wait()


def _compile(root, name, flags, targets):
    """Builds the extension module and returns it. Returns None if there is no nvcc.

    The folder of a build gets its final name last, so an unfinished build is never taken for a finished one. An
    unfinished build may have been killed, or it may still run although its Python process has ended.
    """
    import fcntl

    from torch.utils import cpp_extension

    toolkit = _find_toolkit(cpp_extension.CUDA_HOME)
    if toolkit is None:
        return None
    nvcc, headers, runtime = toolkit
    folder = f"{root}/{name}"
    with contextlib.ExitStack() as stack:
        with _ExplainFolder(root):
            os.makedirs(root, exist_ok=True)
            # The file is unbuffered. If a write to a buffered file failed on a full disk, close() would write again,
            # and fail again
            lock = stack.enter_context(open(f"{folder}.lock", "a+b", 0))
        # flock raises an OSError on a file system without locks. There each process builds for itself
        with contextlib.suppress(OSError):
            # The first attempt does not wait for the lock, and the second one does. The system releases a lock whenever
            # its process ends, even if the process is killed
            for no_wait in (fcntl.LOCK_NB, 0):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | no_wait)
                    break
                lock.seek(0)
                builder = lock.read().decode() or "another process"
                _say(f"waiting for {builder}, which is building the CUDA kernels ({lock.name})")
            if (module := _load_build(folder, name)) is not None:
                return module
            shutil.rmtree(folder, ignore_errors=True)  # if the folder exists, its build is damaged
            for remains in glob.glob(f"{glob.escape(folder)}.build.*"):  # builds that were killed leave such folders
                shutil.rmtree(remains, ignore_errors=True)
            lock.truncate(0)
            lock.write(b"process %d" % os.getpid())
        jobs = _count_jobs()
        seconds = max(15, _SECONDS_OF_A_CORE * len(targets) / min(jobs, 16))
        _say(f"building the CUDA kernels for {', '.join(targets)}, once, about {seconds:.0f} s on {jobs} cores")
        release = _ask_nvcc(nvcc, "--version", r"release (\d+\.\d+)")
        variable = "PYTORCH_NVCC" if os.environ.get("PYTORCH_NVCC") else "CUDA_HOME"  # the one that counts
        if release and torch.version.cuda and release.partition(".")[0] != torch.version.cuda.partition(".")[0]:
            versions = f"{nvcc} is of CUDA {release}, but torch is built for CUDA {torch.version.cuda}"
            _say(f"warning: {versions}; set {variable} to choose another toolkit")
        with _ExplainFolder(root):
            folders = tempfile.TemporaryDirectory(prefix=f"{name}.build.", dir=root, ignore_cleanup_errors=True)
            room = stack.enter_context(folders)
            os.chmod(room, 0o755)
            if runtime and os.path.isfile(runtime):
                # The linker gets -lcudart and looks for libcudart.so, but pip's library has a version in its name. A
                # link without the version lets the linker find the library
                os.symlink(runtime, f"{room}/libcudart.so")
                runtime = "."
            # Diagnostic 177 reports unused functions. Every part has functions that only other parts use, so the
            # diagnostic is suppressed
            flags = ["-std=c++17", "-Xcompiler=-fPIC", "-diag-suppress=177", *flags]
            flags += [f"-I{path}" for path in headers]
            flags += ["-ccbin", os.environ["CC"]] if os.environ.get("CC") else []  # as in torch's own builds
            start = time.perf_counter()
            process, objects = _start_nvcc(room, nvcc, flags, jobs)
            stack.callback(_end, process)
        failed = (
            "the build failed after {:.0f} s; the error below is the compiler's."
            f" nvcc is {nvcc} of CUDA {release or 'unknown'}; set {variable} to choose another toolkit."
            f" The build needs nvcc of CUDA {torch.version.cuda} (from CUDA 13 on: {_PIP_COMMAND}),"
            " a C++ compiler (the newest torch wants C++20) and ninja (pip install ninja);"
            " TORCH_EXTENSIONS_DIR names the build folder."
        )

        def report(kind, *_):
            seconds = time.perf_counter() - start
            if kind is None:
                _say(f"built in {seconds:.0f} s")
            elif issubclass(kind, RuntimeError):  # torch raises a RuntimeError if a compiler fails
                _say(failed.format(seconds))

        stack.push(report)  # `report` returns None, so the stack raises the error again
        # load_inline compiles the binding while nvcc runs. The command `wait` makes the linker wait until every nvcc
        # has ended. with_cuda is False, so torch needs neither PYTORCH_NVCC nor CUDA_HOME. This code must not change
        # these variables, because another thread of the process may be building an extension with them. The
        # folder in CUDA_HOME may have a space in its name, because torch does not use the variable here.
        wait = "$$(while [ -e running ]; do sleep 0.1; done; cat kernels*.log >&2)"
        folders = [f"-L{shlex.quote(runtime).replace('$', '$$')}"] if runtime else []
        module = cpp_extension.load_inline(
            name=name,
            cpp_sources=_add_lines([_CUDA_TYPES, _CUDA_LAUNCHERS, _CPP_BINDING]),
            extra_cflags=_CXX_FLAGS,
            no_implicit_headers=True,
            extra_include_paths=headers,
            extra_ldflags=[wait, *objects, "-lc10_cuda", *folders, "-lcudart"],
            build_directory=room,
            with_cuda=False,
        )
        # os.rename fails if another process, which did not wait for the lock, has made the folder in the meantime
        with contextlib.suppress(OSError):
            os.rename(room, folder)
            module.__file__ = f"{folder}/{os.path.basename(module.__file__)}"
        return module


_EXTENSION = _build()

# ==== 3. The operator ====

# ---- Private names of torch. ----
#
# This section looks up private names of torch. If a version of torch lacks one of these names, the file takes a slower
# way, or refuses forward mode (see _operator).


def _private(path):
    # Returns the object with this dotted path in torch, or None
    return functools.reduce(lambda found, name: getattr(found, name, None), path.split("."), torch)


_DispatchKey, _DispatchKeySet = _private("_C.DispatchKey"), _private("_C.DispatchKeySet")
_keys_of = _private("_C._dispatch_keys")
_keys_around = _private("_C._dispatch_tls_local_include_set")  # keys that modes, transforms and tracing add to a call
# torch.func nests derivatives in levels. Inside this context manager an autograd.Function may record a derivative, but
# only that of the innermost level
_allow_one_level = _private("_functorch.utils.enable_single_level_autograd_function")
_set_forward_mode = _private("autograd.forward_ad._set_fwd_grad_enabled")
_below_autograd = _private("_C._AutoDispatchBelowAutograd")
# Forward mode and torch.func need these three names; see _define.
_HAS_LEVELS = all((_allow_one_level, _set_forward_mode, _below_autograd))
_saved_tensors_hooks = _private("_C._autograd._top_saved_tensors_default_hooks")
# The names of DTensor's tables of sharding rules; each table is indexed by operator
_SHARDING_TABLES = ("op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_rules")
# For autograd the result of _unsafe_view is not a view, so a caller may change it in place.
_reshaped = _private("ops.aten._unsafe_view") or torch.reshape

# ---- Arguments: contractions, masks, and the checks of what a caller gives. ----

# [begin structures]
_NN, _NT, _TN = range(3)  # the contractions X Y, X Y^T and X^T Y, numbered as in the CUDA source
_FULL, _TRIL, _TRIU, _SYMMETRIC = range(4)  # masks: the part of a matrix that exists, numbered as in the CUDA source
_TRANSPOSED = (_FULL, _TRIU, _TRIL)  # the mask of the transpose, indexed by the mask of the matrix


def _masked(x, y, c):
    """Packs the masks of X, Y and C, as they are stored, into one number: a structure. Each mask takes two bits."""
    return x | y << 2 | c << 4


def _masks(structure, contraction=_NN):
    """Returns the masks (x, y, c) of a structure. If the contraction transposes X or Y, the mask of that operand is
    transposed, too."""
    x, y, c = structure & 3, structure >> 2 & 3, structure >> 4
    return _TRANSPOSED[x] if contraction == _TN else x, _TRANSPOSED[y] if contraction == _NT else y, c


_DENSE, _LOWER, _UPPER = (_masked(mask, mask, mask) for mask in (_FULL, _TRIL, _TRIU))
# [end structures]
_HALVES = (torch.float16, torch.bfloat16)
_DTYPES = (torch.float32, torch.float64, *_HALVES)


def _is_no_subclass(T):
    # A Parameter counts as a plain tensor
    return type(T) in (torch.Tensor, torch.nn.Parameter)


def _checked_flags(function, **flags):
    """Returns the flags as bools. A bool of numpy is accepted, and any other type raises TypeError."""
    for name, flag in flags.items():
        if isinstance(flag, bool):
            continue
        if str(getattr(flag, "dtype", None)) != "bool" or flag.shape != ():
            raise TypeError(f"{function}: {name} must be True or False, but is {flag!r}")
        flags[name] = bool(flag)
    return flags.values()


def _validate_and_broadcast(function, A, B, contraction, structure, names="AB", autocast=True):
    """Checks the operands of a product, and returns them with broadcast leading dimensions.

    If the argument `autocast` is True and torch's autocast is enabled, the operands get the dtype of autocast. If one
    is float64, both keep their dtypes. Error messages name the function by `function`, and the operands by the letters
    of `names`. A TypeError, ValueError or RuntimeError says which operand is not accepted, and what is accepted.
    """
    for name, T, mask in zip(names, (A, B), _masks(structure)[:2], strict=True):
        must = f"{function}: {name} must"
        if not isinstance(T, torch.Tensor):
            raise TypeError(f"{must} be a torch.Tensor, but is {type(T).__name__}")
        if T.layout != torch.strided or T.is_nested:
            what = f"has layout {T.layout}; use {name}.to_dense()"
            what = f"is a nested one; use torch.nested.to_padded_tensor({name}, 0.0)" if T.is_nested else what
            raise TypeError(f"{must} be a dense (strided) tensor, but {what}")
        if T.dtype not in _DTYPES:
            raise TypeError(f"{must} be float32, float64, float16 or bfloat16, but is {T.dtype}")
        if T.dim() < 2:
            shape = "(..., N, N)" if mask else "(..., rows, columns)"
            raise ValueError(f"{must} have at least 2 dimensions, {shape}, but has shape {tuple(T.shape)}")
        if mask and T.shape[-1] != T.shape[-2]:
            raise ValueError(f"{must} be square in its last two dimensions, but has shape {tuple(T.shape)}")
    a, b, device, (first, second) = A.shape, B.shape, A.device.type, names
    if a[-2 if contraction == _TN else -1] != b[-1 if contraction == _NT else -2]:
        of_first, of_second = "rows" if contraction == _TN else "columns", "columns" if contraction == _NT else "rows"
        what = f"as many {of_first} as {second} has {of_second}"
        raise ValueError(f"{function}: {first} must have {what}, but their shapes are {tuple(a)} and {tuple(b)}")
    for d in range(-min(len(a), len(b)), -2):  # torch.compile of torch 2.9 knows no zip of different lengths
        if a[d] != b[d] and 1 not in (a[d], b[d]):
            both, leading = f"{first} and {second}", f"{tuple(a[:-2])} and {tuple(b[:-2])}"
            raise ValueError(f"{function}: the leading dimensions of {both} must broadcast, but are {leading}")
    must = f"{function}: {first} and {second} must"
    if A.device != B.device:
        raise RuntimeError(f"{must} be on the same device, but are on {A.device} and {B.device}")
    cast = autocast and torch.float64 not in (A.dtype, B.dtype)
    cast = cast and device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    if A.dtype != B.dtype and not cast:
        raise RuntimeError(f"{must} have the same dtype, but are {A.dtype} and {B.dtype}")
    if device not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"{must} be on a CPU or a CUDA device, but are on {A.device}")
    if cast:
        # A matrix that is given twice stays one tensor
        one, A = A is B, A.to(torch.get_autocast_dtype(device))
        B = A if one else B.to(A.dtype)
    if a[:-2] != b[:-2]:
        batch = torch.broadcast_shapes(a[:-2], b[:-2])
        A, B = A.expand(*batch, *a[-2:]), B.expand(*batch, *b[-2:])
    return A, B


# ---- Our kernels: every GPU of compute capability 8.0 or more. ----

_GPUS_WITHOUT_KERNELS = {device for device, capability in enumerate(_CAPABILITIES) if capability < _OLDEST}


def _has_kernels(X):
    return X.is_cuda and not (_GPUS_WITHOUT_KERNELS and X.get_device() in _GPUS_WITHOUT_KERNELS)


def _describe_homes():
    """Returns a sentence for each variable that names a toolkit without nvcc."""
    named = [(name, os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return "".join(f" {name}={home} has no bin/nvcc." for name, home in named if not os.path.exists(f"{home}/bin/nvcc"))


def _built():
    if _EXTENSION is None:
        raise RuntimeError(
            "tril_matmul: the CUDA kernels were not built when this file was imported,"
            f" because no nvcc was found (or no GPU was visible then).{_describe_homes()}"
            f" Install the CUDA toolkit {torch.version.cuda} and ninja, or set CUDA_HOME to where the toolkit lies,"
            f" or (from CUDA 13 on) {_PIP_COMMAND}; then import again."
        )
    return _EXTENSION


# ---- torch's own products: tensors of a CPU, and of GPUs before compute capability 8.0. ----

# The number of rows in a block of a triangle. With 96 to 160 rows the times differ by less than 5 % for N = 256 to 1024
# on two CPU cores.
_BLOCK = 128
# The largest N for which a dense product is faster than a product in blocks. The first number is for one matrix, and
# the second one is for a batch.
_LARGEST_DENSE = 240, 320
_SUMMED = 16  # rows or columns in a block of _running_sums
# A batch of products of two triangles is multiplied in parts that stay in a CPU's caches. A part of dense products has
# at most this many elements, but at least one matrix. Products in blocks take one matrix at a time.
_CACHED = 2**18


def _mirrored(C, out):
    """Makes C symmetric in place: copies each element below the diagonal to its mirror image above the diagonal.

    The copies are made in blocks, because blocks suit a CPU's caches.
    """
    for first in range(0, C.shape[-1], _BLOCK):
        middle, before = slice(first, first + _BLOCK), slice(first)
        C[..., before, middle] = C[..., middle, before].mT
        block = C[..., middle, middle]
        block.copy_(block.tril() + block.tril(-1).mT)
    return C


# Functions (T, out) that apply a mask, indexed by mask. _mirrored always changes T; the others do so only if out is T
_APPLY_MASK = (lambda T, out=None: T, torch.tril, torch.triu, _mirrored)


def _distinct(T):
    """Returns T without repetitions: a leading dimension with a stride of 0 becomes 1 long."""
    if 0 not in T.stride()[:-2]:
        return T
    return T[tuple(slice(None if stride else 1) for stride in T.stride()[:-2])]


def _once(change, T):
    """Returns change(T). If T repeats a matrix over its batch, `change` is applied to that matrix only once."""
    return change(_distinct(T)).expand(T.shape)


def _may_have_specials(T):
    """Returns whether T may have NaN or Inf, which this file calls specials. False means that all elements are finite.

    The function tests the sum of the elements, which is faster than isfinite of each element. The sum may overflow, so
    True may be wrong.
    """
    return not math.isfinite(_distinct(T).sum().item())


def _product_in_blocks(X, Y, contraction, structure):
    """Returns the product of two lower or two upper triangles, or one of its gradients. Skips blocks of zeros.

    X and Y are already transposed for the contraction. The masks put the indices m, k and n of each term
    X[m, k] Y[k, n] into one order. For two lower triangles the order is m >= k >= n. Each step of the loop takes one
    block of the middle index, here k. The smaller index, here n, then ends with this block. The larger index, here m,
    begins with this block.
    """
    C = X.new_zeros(X.shape)
    x, y, c = (T.view(T.shape[-2:]) for T in (X, Y, C))
    for first in range(0, len(c), _BLOCK):
        middle = slice(first, first + _BLOCK)
        low, high = slice(first + _BLOCK), slice(first, None)
        if structure == _UPPER:
            low, high = high, low
        m, k, n = ((high, middle, low), (high, low, middle), (middle, high, low))[contraction]
        c[m, n].addmm_(x[m, k], y[k, n])
    return C


def _running_sums(T, mask, dim):
    """Returns sums along the dimension dim, which is -1 or -2.

    If the mask is lower, element m of the result is the sum of all elements of T up to m. If the mask is upper, it is
    the sum of all elements from m on. Without a mask the result has a single element, the sum of all elements.

    The sums are computed as products with small triangles of ones. That takes less time than torch.cumsum along
    columns.
    """
    if mask == _FULL:
        return T.sum(dim, keepdim=True)
    if T.stride(-1) > 1:  # T is stored by columns
        return _running_sums(T.mT, mask, -3 - dim).mT.contiguous()
    length, last = T.shape[dim], -1 if mask == _TRIL else 0
    if length % _SUMMED:
        more = (0, -length % _SUMMED)
        T = torch.constant_pad_nd(T, more if dim == -1 else (0, 0, *more))
    # The first product computes the running sums within each block of _SUMMED elements. The second product adds, to
    # each block, the totals of all blocks before it. For an upper mask it adds the totals of all blocks after it.
    blocks = T.unflatten(dim, (-1, _SUMMED))
    inside = _APPLY_MASK[mask](T.new_ones(_SUMMED, _SUMMED))
    before = T.new_ones(blocks.shape[dim - 1], blocks.shape[dim - 1])
    before = before.tril(-1) if mask == _TRIL else before.triu(1)
    if dim == -1:
        sums = blocks @ inside.mT
        sums += (sums[..., last] @ before.mT)[..., None]
    else:
        sums = inside @ blocks
        sums += (before @ sums[..., last, :])[..., None, :]
    return sums.flatten(dim - 1, dim).narrow(dim, 0, length)


def _without_specials(T):
    """Returns T with zeros in place of NaN and Inf."""
    return T.nan_to_num(0.0, 0.0, 0.0)


def _special_terms(X, Y, multiply, x, y):
    """Finds the elements of the product X Y that become Inf, -Inf or NaN because X or Y has NaN or Inf.

    Returns two matrices of Inf and 0. The first matrix has Inf where the element of the product becomes Inf or NaN. The
    second matrix has Inf where the element becomes -Inf or NaN.

    x and y are the masks of X and Y. An element that a mask has set to zero makes no term, not even with NaN or Inf as
    the other factor. multiply(X, Y) multiplies finite matrices with these masks.

    A term is special if one of its factors is NaN or Inf. The sign of a term is 0 if one of its factors is 0 or NaN.
    For each element of the product, let n be the number of its special terms, and s the sum of their signs. If n > 0,
    the element becomes Inf for s = n, -Inf for s = -n, and NaN otherwise. A term with two special factors counts twice
    in n and in s. Both numbers are exact, because float32 holds all integers up to 2^24.
    """
    X_signs, Y_signs = X.sign(), Y.sign()  # the sign of NaN is 0
    # The entries of `numbers` add up to 2 n, and the entries of `signs` to 2 s. Each list has at most one entry for the
    # special elements of X, and one for the special elements of Y
    numbers, signs = [], []
    for T, dim, mask in ((X, -1, _TRANSPOSED[y]), (Y, -2, x)):
        if not _may_have_specials(T):
            continue
        # NaN and Inf become 2, because the last line needs 2 n and 2 s. All other elements become 0
        special = T.mul(0.0).nan_to_num_(2.0)
        numbers.append(_running_sums(special, mask, dim))
        infinite = special.mul_(X_signs if dim == -1 else Y_signs)
        if infinite.norm() > 0:
            signs.append(multiply(infinite, Y_signs) if dim == -1 else multiply(X_signs, infinite))
    number = functools.reduce(torch.add, numbers or [X.new_zeros(())])
    signs = functools.reduce(torch.Tensor.add_, signs or [torch.zeros_like(number)])
    # For a single NaN, 2 n is 2 and 2 s is 0. Both results are then 2 * largest, which is Inf
    largest = torch.finfo(X.dtype).max
    return (number + signs).mul_(largest), (number - signs).mul_(largest)


def _product_of_specials(X, Y, multiply, x, y):
    """Returns the product of X and Y, which may have NaN or Inf. The arguments are explained at _special_terms.

    The finite terms are computed with zeros in place of NaN and Inf. The results of the special terms are then added.
    """
    C = multiply(*(_once(_without_specials, T) for T in (X, Y)))
    positive, negative = _special_terms(X, Y, multiply, x, y)
    return C.sub_(negative).add_(positive)


def _product_by_torch(X, Y, contraction, structure):
    """Returns X Y, X Y^T or X^T Y, as `contraction` says, for X and Y (..., rows, columns) of one dtype and with equal
    leading dimensions. `structure` has the masks of X and Y as they are stored, and of the result."""
    if torch.is_autocast_enabled(X.device.type):  # autocast would change the dtype of the products below
        with torch.autocast(X.device.type, enabled=False):
            return _product_by_torch(X, Y, contraction, structure)
    # A batch of products of two triangles is split into parts if its matrices are multiplied in blocks. On a CPU it is
    # also split if its matrices do not fit into the caches together.
    size, triangular = X.shape[-2:].numel(), structure in (_LOWER, _UPPER)
    in_blocks = triangular and X.shape[-1] > _LARGEST_DENSE[X.numel() > size] and X.numel() > 0
    together = size if in_blocks else max(size, _CACHED)  # products in blocks take one matrix at a time
    if triangular and X.numel() > together and (in_blocks or not X.is_cuda):
        parts = zip(*(T.flatten(0, -3).split(together // size) for T in (X, Y)), strict=True)
        return _reshaped(torch.cat([_product_by_torch(*part, contraction, structure) for part in parts]), X.shape)
    if X.dtype in _HALVES:
        # float16 has 11 significant bits. If torch may round the operands of float32 products to 8 bits, the product
        # is computed in float64, which keeps all 11
        rounded = X.dtype == torch.float16 and not X.is_cuda and torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        wide = torch.Tensor.double if rounded else torch.Tensor.float
        return _product_by_torch(_once(wide, X), _once(wide, Y), contraction, structure).to(X.dtype)
    # Masks apply to the matrices as they are stored, and transposition follows.
    x, y, _ = _masks(structure)
    X, Y = _once(_APPLY_MASK[x], X), _once(_APPLY_MASK[y], Y)
    X, Y = X.mT if contraction == _TN else X, Y.mT if contraction == _NT else Y
    x, y, c = _masks(structure, contraction)
    # `multiply` is a function that computes the product, dense or in blocks. If an operand of a masked product may have
    # NaN or Inf, `multiply` becomes _product_of_specials, which calls that function.
    multiply = torch.matmul
    if in_blocks:
        multiply = functools.partial(_product_in_blocks, contraction=contraction, structure=structure)
    if (x or y) and (_may_have_specials(X) or _may_have_specials(Y)):
        multiply = functools.partial(_product_of_specials, multiply=multiply, x=x, y=y)
    C = multiply(X, Y)
    return C if x == y == c else _APPLY_MASK[c](C, out=C)


def _inverse_by_torch(L, unit):
    """Returns the inverses X of lower triangular matrices L. NaN and Inf are where column-wise substitution has them.

    If `unit` is True, ones take the place of the elements on L's diagonal.
    """
    L, one = L.tril(), torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    # solve(L.mT, identity), which is defined in the next line, is the transpose of X. L is stored by rows, so the
    # substitution reads L.mT in the order of memory.
    solve = functools.partial(torch.linalg.solve_triangular, upper=True, left=False, unitriangular=unit)
    below, diagonal = L.tril(-1), L.new_ones(L.shape[:-1]) if unit else L.diagonal(dim1=-2, dim2=-1)
    # `special` has one flag per matrix. The flag is set for NaN, Inf and a zero on the diagonal. It may also be set for
    # a matrix of finite elements, because the sum of the elements may overflow
    special = ~(below.sum((-2, -1)) + diagonal.sum(-1)).isfinite() | (diagonal == 0).any(-1)
    if not special.any():
        return solve(L.mT, one.expand(L.shape)).mT.tril()
    # `part` is L without NaN and Inf. Below the diagonal, zeros replace NaN and Inf. On the diagonal, ones replace NaN,
    # Inf and zeros. If a row of L has Inf on the diagonal, this row of X is zero. `kept` has a 0 for such a row.
    kept = (~diagonal.isinf())[..., None].to(L.dtype)
    part = _without_specials(below).mul_(kept)
    part.diagonal(dim1=-2, dim2=-1).copy_(torch.where(diagonal.isfinite() & (diagonal != 0), diagonal, 1.0))
    X = solve(part.mT, one * kept).mT.tril()
    indices = special.flatten().nonzero().flatten()
    below, matrices = (T.reshape(-1, *T.shape[-2:]) for T in (below, X))
    diagonal = diagonal.reshape(matrices.shape[:-1])
    matrices[indices] = _inverses_of_specials(*(T.index_select(0, indices) for T in (below, matrices, diagonal)))
    return X


def _inverses_of_specials(L, X, diagonal):
    """Returns the inverses of matrices that have NaN or Inf anywhere, or a zero on the diagonal.

    L has the elements below the diagonals, and `diagonal` has the diagonals. X has the solutions for the matrices
    `part` of _inverse_by_torch, in which finite numbers replace NaN, Inf and the zeros on the diagonal. A row of X is
    zero if its diagonal element is infinite.

    An element of the inverse is special if it is NaN or Inf. In each column, X is correct above the first special
    element of the inverse. All elements below that one are special, too, because element i is computed from the term
    L[i, i-1] * (element i-1). As long as the elements are infinite and not NaN, the sign of element i is the sign of
    -L[i, i-1] / diagonal[i] times that of element i-1. A running product of these signs therefore gives a guess at all
    signs. Matrix products then count the special terms of each element and sum their signs, which shows the first wrong
    guess in each column. From there on all elements of the column are NaN.
    """
    N = L.shape[-1]
    index, batch = torch.arange(N, device=L.device), torch.arange(len(L), device=L.device)[:, None]

    def first_rows(special, top=0):
        """Returns the first row with a 1 for each column of `special`, or N if the column has no 1. Row 0 of `special`
        is row `top` of the matrix."""
        return N - (special * (N - index[top:, None])).amax(-2)

    special = L.mul(0.0).nan_to_num_(1.0)  # NaN and Inf become 1, and all else becomes 0
    special.diagonal(dim1=-2, dim2=-1).copy_(diagonal.isnan() | (diagonal == 0))
    # Column j of X is computed from the columns k >= j of L. So its first special row is the smallest of the first
    # special rows of these columns
    first = first_rows(special).flip(-1).cummin(-1).values.flip(-1)
    special.diagonal(dim1=-2, dim2=-1).zero_()
    if _may_have_specials(X):  # the substitution may have overflowed
        first = torch.minimum(first, first_rows(X.mul(0.0).nan_to_num_(1.0)))
    first = first.long()
    is_special = index[:, None] >= first[:, None]
    X = X.masked_fill_(is_special, 0.0)

    # The first special element of each column is computed as in substitution. The guessed signs of the column begin
    # with its sign. L[batch, row] gathers rows of L: its row j is the row from which this element of column j is
    # computed.
    row = first.clamp(max=N - 1)
    sums = (L[batch, row].triu_() * X.mT).sum(-1)
    values = ((row == index).to(L.dtype) - sums) / diagonal.gather(-1, row)
    turns = -torch.ones_like(diagonal).copysign_(diagonal)  # the signs of -1 / diagonal
    chain = turns.clone()
    chain[:, 1:] *= torch.where(L.diagonal(-1, -2, -1) < 0, -1.0, 1.0)
    chain = chain.cumprod(-1)
    begins = values.sign().masked_fill_(first == N, 0.0) * chain.gather(-1, row)  # the sign of NaN is 0
    guess = chain[..., None] * begins[:, None]
    X = torch.where(is_special, guess * math.inf, X)  # a guess of 0 makes NaN

    top = int(first[begins != 0].min()) + 1 if begins.any() else N
    if top < N:  # the rows from `top` on have guessed signs
        width = int(begins.any(0).nonzero().max()) + 1  # the columns from `width` on have no guessed sign
        first, guess, L, special = first[:, None, :width], guess[..., :width], L[:, top:], special[:, top:]
        # As in _special_terms, each element needs the number of its special terms, and the sum of their signs
        number = index[top:, None] - first + _running_sums(special, _TRIU, -1)[..., :width]
        signs = special.mul_(L.sign()) @ X[..., :width].sign() + L.sign() @ (guess * is_special[..., :width])
        is_wrong = (signs * guess[:, top:] * turns[:, top:, None] != number) | ~diagonal[:, top:, None].isfinite()
        wrong = first_rows(is_wrong & (index[top:, None] > first), top)
        X[..., :width].masked_fill_(index[:, None] >= wrong[:, None], math.nan)
    return X


# ---- Computation: products, inverses, their gradients, and their cost. ----


def _product(X, Y, *kind):
    """Returns the product of two tensors whose shapes fit each other. `kind` is the contraction and the structure."""
    if _has_kernels(X):
        return _built().product(X, Y, *kind, _PATH, False)[0]
    return _product_by_torch(X, Y, *kind)


def _inverse(L, unit):
    """Returns the inverses of lower triangular matrices. If `unit` is True, ones are in place of their diagonals."""
    if _has_kernels(L):
        return _built().inverse(L, unit, _PATH)
    return _inverse_by_torch(L, unit)


# For each contraction, a function returns the operands, the contraction and the structure of dX and of dY. G is dC. The
# gradients are contractions, too: see the trilinear form at the head of the CUDA source. Each matrix keeps its mask.
# One operator therefore serves gradients of every order.
_GRADIENTS = {
    _NN: lambda X, Y, G, x, y, c: ((G, Y, _NT, _masked(c, y, x)), (X, G, _TN, _masked(x, c, y))),  # C = X Y
    _NT: lambda X, Y, G, x, y, c: ((G, Y, _NN, _masked(c, y, x)), (G, X, _TN, _masked(c, x, y))),  # C = X Y^T
    _TN: lambda X, Y, G, x, y, c: ((Y, G, _NT, _masked(y, c, x)), (X, G, _NN, _masked(x, c, y))),  # C = X^T Y
}


def _count_flops(X, Y, contraction, structure, *, out_val, **_):
    """Returns the floating-point operations of a product, two per multiply-add, for torch's FlopCounterMode.

    Element (i, j) of C is a sum over k, and masked matrices are N x N. Each mask demands that one of i, j, k is at most
    another one. One mask leaves the share (N + 1) / (2 N) of the multiply-adds. Two masks leave
    N (N + 1) (2 N + 1) / 6 of them if they bound one index by both others, such as k <= i and k <= j in L U. If two
    masks put all three indices into one order, such as j <= k <= i in L L, they leave N (N + 1) (N + 2) / 6. Three
    masks leave as many.
    """
    *batch, m, n = out_val.shape
    k, (x, y, c) = X.shape[-2 if contraction == _TN else -1], _masks(structure, contraction)
    c = _TRIL if c == _SYMMETRIC else c or (x if x == y else _FULL)
    # `number` counts the masks. `terms` is the number of multiply-adds without masks. `side` is N of a masked matrix
    number, terms, side = 3 - (x, y, c).count(_FULL), m * n * k, m if x else n
    if number == 1:
        terms = terms * (side + 1) // max(2 * side, 1)
    elif number:
        terms = side * (side + 1) * (2 * side + 1 if number == 2 and (x == c or y == c or not c) else side + 2) // 6
    return 2 * math.prod(batch) * terms


def _count_inverse_flops(L, unit, *, out_val, **_):
    """Returns the floating-point operations of inverses for torch's FlopCounterMode. Element (i, j) of an inverse takes
    i - j + 1 multiply-adds or divisions, and each counts as two operations."""
    *batch, _, N = out_val.shape
    return 2 * math.prod(batch) * (N * (N + 1) * (N + 2) // 6)


# ---- Registration: the operators, as PyTorch knows them. ----
#
# torch.compile, torch.export and torch.func see the operators torch.ops.tril_matmul.product and .inverse. A notebook
# may execute this file again. The file then defines both operators anew, and torch removes the earlier operators. The
# code below therefore looks an operator up at each call.


class _Product(torch.autograd.Function):
    """The autograd rules of the product C of X and Y. The last input of `record` (see _define) is (C, workspace). Both
    are computed already, and the input has no gradient."""

    def setup_context(ctx, inputs, output):
        """Saves Y for dX, X for dY, and the workspace, which has both operands in packed form."""
        X, Y, ctx.contraction, ctx.structure, *computed = inputs
        workspace = computed[0][1] if computed else None
        ctx.save_for_backward(X if ctx.needs_input_grad[1] else None, Y if ctx.needs_input_grad[0] else None, workspace)
        ctx.save_for_forward(X, Y)

    def backward(ctx, G):
        """Returns dX and dY, and None for a gradient that is not needed.

        If C is symmetric, X and Y are one matrix. Then dX may be the sum of both gradients, and dY is None or zero.
        """
        (x, y, c), (X, Y, workspace), needed = _masks(ctx.structure), ctx.saved_tensors, list(ctx.needs_input_grad[:2])
        # Tracing and second derivatives need the operator: the binding's `gradients` supports neither
        packed = workspace is not None and not (torch.compiler.is_compiling() or torch.is_grad_enabled())
        if packed and (found := _EXTENSION.gradients(G, X, Y, workspace, ctx.structure)):
            return *found, None, None, None
        # If C is symmetric, our kernels compute dX as one product such as (G + G^T) X. torch's own products compute G X
        # and G^T X separately. In (G + G^T) X a large term of G^T X would make torch's sums lose many small terms of
        # G X.
        together = c == _SYMMETRIC and _has_kernels(G)
        if together:
            G, needed[1] = G + G.mT, False
        c = _FULL if c == _SYMMETRIC else c
        both = zip(_GRADIENTS[ctx.contraction](X, Y, G, x, y, c), needed, strict=True)
        dX, dY = (_multiply(*one) if wanted else None for one, wanted in both)
        if together and torch.compiler.is_dynamo_compiling():
            dY = torch.zeros_like(dX)  # compiled autograd adds both gradients of a matrix, and does not accept None
        return dX, dY, None, None, None

    def jvp(ctx, dX, dY, *_):
        x, y, c = _masks(ctx.structure)
        # torch disables forward mode while jvp runs. This context restores the mode of the caller; see _define
        with _set_forward_mode(True):
            X, Y = (torch.autograd.forward_ad.unpack_dual(T, level=0).primal for T in ctx.saved_tensors)
            if c == _SYMMETRIC:  # dC is the sum of dX X^T and of its transpose
                product = _multiply(dX, Y, ctx.contraction, _masked(x, y, _FULL))
                return product + product.mT
            pairs = [pair for pair in ((dX, Y), (X, dY)) if None not in pair]
            return functools.reduce(torch.add, [_multiply(*pair, ctx.contraction, ctx.structure) for pair in pairs])


class _Inverse(torch.autograd.Function):
    """The autograd rules of X = L^-1.

    In forward mode the tangent of X is -X dL X, where dL is the tangent of L. In reverse mode the gradient of L is
    -X^T G X^T, where G is the gradient of X. It is set to zero above the diagonal and, if `unit` is true, on the
    diagonal.
    """

    def setup_context(ctx, inputs, output):
        ctx.unit = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    def backward(ctx, G):
        (X,) = ctx.saved_tensors
        # `right` is X^T tril(G)
        right = _multiply(X, G, _TN, _masked(_TRIL, _TRIL, _FULL))
        G = -_multiply(right, X, _NT, _masked(_FULL, _TRIL, _TRIL))
        return G.tril(-1) if ctx.unit else G, None, None

    def jvp(ctx, dL, *_):
        with _set_forward_mode(True):
            X = torch.autograd.forward_ad.unpack_dual(*ctx.saved_tensors, level=0).primal
            dL = dL.tril(-1) if ctx.unit else dL
            return -_multiply(X, _multiply(dL, X, _NN, _LOWER), _NN, _LOWER)


def _empty_product(X, Y, contraction, structure):
    rows, cols = X.shape[-1 if contraction == _TN else -2], Y.shape[-2 if contraction == _NT else -1]
    return X.new_empty((*X.shape[:-2], rows, cols))


def _in_forward_mode():
    """Returns whether the call is inside a forward_ad.dual_level or torch.func.jvp."""
    return getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0


def _operator(name, *inputs):
    if not _HAS_LEVELS and _in_forward_mode():
        what = "forward mode needs private names of torch, of which this one does not have all"
        raise NotImplementedError(f"tril_matmul: {what}")
    if not torch.compiler.is_compiling():
        for T in inputs:
            if isinstance(T, torch.Tensor) and not _is_no_subclass(T):
                _check_sharding(name, T)
    return getattr(torch.ops.tril_matmul, name)(*inputs)


def _check_sharding(name, T):
    """Raises NotImplementedError, with the remedy, if T is a DTensor and the operator has no sharding rule."""
    propagator = getattr(getattr(T, "_op_dispatcher", None), "sharding_propagator", None)
    tables = [getattr(propagator, table) for table in _SHARDING_TABLES if hasattr(propagator, table)]
    known = getattr(torch.ops.tril_matmul, name).default
    if tables and not any(known in table for table in tables):
        raise NotImplementedError(
            f"tril_matmul: an operand is a {type(T).__name__},"
            f" and torch does not know how tril_matmul.{name} is divided among processes."
            " Call register() of examples/distributed.py first, and again after this file was executed again."
        )


def _define(rules, name, schema, compute, fake):
    """Defines the operator tril_matmul::name.

    `rules` is the autograd.Function with the derivatives, in both modes and of every order. `schema` lists the
    operator's arguments. `compute` computes the result, and `fake` returns an empty tensor of the result's shape. The
    definition is kept in `_definitions`.
    """
    op = torch.library.custom_op(f"tril_matmul::{name}", compute, mutates_args=(), schema=f"({schema}) -> Tensor")
    op.register_fake(fake)
    _definitions.append(op)

    @op.register_vmap
    def vmap(info, in_dims, *inputs):  # makes the mapped dimension one more leading dimension
        inputs = list(inputs)
        for number, (T, dim) in enumerate(zip(inputs, in_dims, strict=True)):
            if isinstance(T, torch.Tensor):
                inputs[number] = T.expand(info.batch_size, *T.shape) if dim is None else T.movedim(dim, 0)
        return _operator(name, *inputs), 0

    if not _HAS_LEVELS:
        op.register_autograd(lambda ctx, G: rules.backward(ctx, G)[:-1], setup_context=rules.setup_context)
        return

    # `derive` takes the place of rules that torch.library would register. torch.func refuses such rules, and forward
    # mode loses tangents in them. Like torch's own operators, `derive` records only the innermost level's derivative
    # (levels: see _allow_one_level). Its call of `overload` reaches the outer levels, which record their own.
    overload = getattr(torch.ops.tril_matmul, name).default
    rules.forward = lambda *inputs: inputs[-1][0]  # returns the output, which is the last input's first entry
    # `record` is the apply method of Function's base class. It skips Function.apply, which asks all levels for rules.
    rules.record = super(torch.autograd.Function, rules).apply

    def derive(*inputs):
        with _below_autograd():
            output = overload(*inputs)
        with _allow_one_level():
            # If an autograd.Function returns one of its arguments, torch makes a view of it, or raises an error if it
            # was saved. Here the output stands in a tuple among the arguments, where torch does not see it
            return rules.record(*inputs, (output, None))

    # Rules under these keys take precedence over torch.library's own rules, which are for all devices
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
        op._lib.impl(name, derive, key)


# If this file is executed again, its definitions replace the earlier ones. When torch destroys an earlier definition
# because nothing refers to it, torch also drops the operator's name. By then the name belongs to the new definition.
# So the list keeps the earlier definitions, too.
_definitions = globals().get("_definitions", [])
_define(_Product, "product", "Tensor X, Tensor Y, int contraction, int structure", _product, _empty_product)
_define(_Inverse, "inverse", "Tensor L, bool unitriangular", _inverse, lambda L, _: L.new_empty(L.shape))
# The formulas take tensors. register_flop_formula would give them shapes, so the registry is written directly
torch.utils.flop_counter.flop_registry[torch.ops.tril_matmul.product] = _count_flops
torch.utils.flop_counter.flop_registry[torch.ops.tril_matmul.inverse] = _count_inverse_flops

# ---- Dispatch: which way a call goes. ----
#
# A call takes the short way, past torch's dispatcher, if no mode, transform or subclass observes it. The dispatcher
# would take more time than all other work of the host.

# The dispatch keys of plain CPU tensors, and the keys that every call has. The value stays 0 if torch lacks a private
# name. Then products on a CPU never take the short way.
_PLAIN_KEYS = 0
_KEY_NAMES = ("CPU", "AutogradCPU", "AutocastCPU", "ADInplaceOrView", "BackendSelect")
_KEYS = [getattr(_DispatchKey, name, None) for name in _KEY_NAMES]
if None not in (_DispatchKeySet, _keys_of, _keys_around, *_KEYS):
    _PLAIN_KEYS = functools.reduce(_DispatchKeySet.__or__, map(_DispatchKeySet, _KEYS)).raw_repr()


def _plain_product(X, Y, *kind):
    """Returns the product, recorded by autograd, if nothing but autograd observes the call. Otherwise returns None.

    Also returns None if tensors on a GPU do not fit each other.
    """
    # A traced graph must hold the operator instead of Python functions, and a subclass must see the operator. In these
    # two cases, and in a torch without the private names of _HAS_LEVELS, the call takes the dispatcher
    if torch.compiler.is_compiling() or not (_HAS_LEVELS and _is_no_subclass(X) and _is_no_subclass(Y)):
        return None
    if _has_kernels(X):
        plain = _EXTENSION is not None and _EXTENSION.is_plain(X, Y, *kind)
    else:
        plain = _PLAIN_KEYS and not (torch.is_autocast_enabled("cpu") or _in_forward_mode())
        plain = plain and not (_keys_of(X) | _keys_of(Y) | _keys_around()).raw_repr() & ~_PLAIN_KEYS
    if not plain:
        return None
    if not (X.requires_grad or Y.requires_grad) or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return _product(X, Y, *kind)
    # If both operands of a product of triangles need gradients, the workspace is kept, since it has the packed
    # operands. It is not kept while a hook for saved tensors is active. Hooks such as save_on_cpu and checkpoint save
    # memory
    keep = X.requires_grad and Y.requires_grad and kind in ((_NN, _LOWER), (_NN, _UPPER)) and _has_kernels(X)
    keep = keep and _saved_tensors_hooks is not None and _saved_tensors_hooks(True) is None
    with _below_autograd():
        if keep:
            C, _, workspace = _built().product(X, Y, *kind, _PATH, True)
        else:
            C, workspace = _product(X, Y, *kind), None
    return _Product.record(X, Y, *kind, (C, workspace))


def _multiply(*product):
    C = _plain_product(*product)
    return _operator("product", *product) if C is None else C


def _call(function, A, B, *kind, names="AB"):
    """Computes a product for a public function.

    On a GPU the function tries the short way first. If that is not possible, and on a CPU, it checks the operands,
    applies autocast and broadcasts. Then it multiplies.
    """
    if getattr(A, "is_cuda", False) and (C := _plain_product(A, B, *kind)) is not None:  # is_plain checks A and B
        return C
    return _multiply(*_validate_and_broadcast(function, A, B, *kind, names), *kind)


# ---- Public functions. ----

# [begin problems]
_MASKS = ("dense", "lower", "upper", "symmetric")  # the names of the masks; gram accepts the first three
_PROBLEMS = {
    "lower": (_NN, _LOWER),
    "upper": (_NN, _UPPER),
    "transposed_a": (_TN, _DENSE),
    "lu": (_NN, _masked(_TRIL, _TRIU, _FULL)),
    "triangular": (_NN, _masked(_TRIL, _FULL, _FULL)),
    "gram": (_NT, _masked(_FULL, _FULL, _SYMMETRIC)),
}
# [end problems]


def tril_matmul(A, B):
    """Returns the product of two lower triangular matrices, C = tril(A) @ tril(B).

    Args:
        A, B: tensors (..., N, N) with N >= 0 and any strides, on one device. Their dtype is float32, float64, float16
            or bfloat16. Both have the same dtype, unless autocast converts them. The leading dimensions broadcast as in
            torch.matmul. Elements above the diagonals have no effect, even if they are NaN.

    Returns:
        A contiguous tensor C (..., N, N) of the same dtype, or of autocast's. C[i, j] is the sum over k = j..i of
        A[i, k] * B[k, j] where i >= j, and exactly zero where i < j.

    C is differentiable any number of times. For G = dC the gradients are dA = tril(tril(G) @ tril(B)^T) and
    dB = tril(tril(A)^T @ tril(G)). Elements above the diagonals are no inputs, and their gradients are zero.

    Raises:
        TypeError: An operand is not a torch.Tensor, is sparse or nested, or has a dtype other than these four.
        ValueError: An operand has fewer than two dimensions or is not square, the sizes differ, or the leading
            dimensions do not broadcast.
        RuntimeError: The dtypes or the devices differ, the kernels for a CUDA tensor were not built, or a launch has
            failed.
    """
    return _call("tril_matmul", A, B, _NN, _LOWER)


def triu_matmul(A, B):
    """Returns the product of two upper triangular matrices (..., N, N), C = triu(A) @ triu(B).

    Elements below the diagonals have no effect, and their gradients are zero. C is zero below its diagonal. Everything
    else is as in tril_matmul.
    """
    return _call("triu_matmul", A, B, _NN, _UPPER)


def _call_flattening_batch(function, A, B, contraction, structure, names="AB", left=True):
    """Does what _call does. A batch in which all products share one matrix becomes one larger product.

    The shared matrix is A if `left` is True, and B otherwise. A shared matrix on the right multiplies all rows of the
    batch at once. A shared matrix on the left multiplies all columns of the batch at once, but that needs copies. The
    copies are made only where they save time. That is the case for single columns. It is also the case for few columns
    if the shared matrix needs a gradient, which is then computed once, not once per product of the batch.
    """
    one, many = (A, B) if left else (B, A)
    # Operands of a subclass are not flattened, because a DTensor may be sharded along the dimensions that would be
    # joined. A compiled graph may run with other sizes later, so no decision for such a graph depends on sizes.
    plain = _is_no_subclass(A) and _is_no_subclass(B) and not (A.is_nested or B.is_nested)
    if plain and 2 <= one.dim() <= many.dim() > 2:
        dynamic = torch.compiler.is_compiling()
        rows, cols = many.shape[-2:]
        few_columns = not dynamic and (cols == 1 or (one.requires_grad and 4 * cols <= rows))
        single = one.dim() == 2 if dynamic else one.shape[:-2].numel() == 1
        if single and (few_columns or not left) and not torch.jit.is_tracing():
            # The shapes are checked before the flattening, so that errors show the caller's shapes
            A, B = _validate_and_broadcast(function, A, B, contraction, structure, names)
            X = B if left else A
            if left:  # C^T = B^T A^T
                X, contraction = X.mT, _NN if contraction == _TN else _NT
                structure = _masked(_FULL, _masks(structure)[0], _FULL)
            C = _call(function, X.flatten(0, -2), one.flatten(0, -2), contraction, structure)
            C = _reshaped(C, (*X.shape[:-1], C.shape[-1]))
            # clone() makes a copy in place of a view, because torch forbids changing some views in place
            return C.mT.clone(memory_format=torch.contiguous_format) if left else C
    return _call(function, A, B, contraction, structure, names=names)


def transposed_a_matmul(A, B):
    """Returns C = A^T @ B for dense matrices A (..., K, M) and B (..., K, N), with K, M and N >= 0.

    C is (..., M, N), and zero if K = 0. For G = dC the gradients are dA = B @ G^T and dB = A @ G. Everything else is as
    in tril_matmul.
    """
    return _call_flattening_batch("transposed_a_matmul", A, B, _TN, _DENSE)


def triangular_matmul(A, X, *, upper=False, left=True, unitriangular=False, diagonal=0):
    """Returns the product of a triangular matrix A and a dense matrix X. torch.linalg.solve_triangular undoes it.

    Args:
        A: a tensor (..., N, N), of which only one triangle is read.
        X: a tensor (..., N, K) if `left` is True, and (..., K, N) otherwise.
        upper: True for the upper triangle of A, False for the lower one.
        left: True for A @ X, False for X @ A.
        unitriangular: True for ones in place of A's diagonal, which is not read then. This costs a copy of A.
        diagonal: an int, the diagonal that bounds the triangle of A, as in torch.tril and torch.triu. A positive number
            stands for a diagonal above the main one. `diagonal` must be 0 if `unitriangular` is True. A number other
            than 0 costs copies of A, X and C.

    Returns:
        A contiguous tensor with the shape of X, apart from broadcast leading dimensions, and with its dtype.

    Raises:
        TypeError: A flag is no bool, `diagonal` is no int, or an operand is not accepted by tril_matmul.
        ValueError: `diagonal` is not 0 although `unitriangular` is True, or a shape does not fit.
        RuntimeError: as in tril_matmul.

    For G = dC and a lower triangle on the left, the gradients are dA = tril(G @ X^T) and dX = tril(A)^T @ G. Everything
    else is as in tril_matmul.
    """
    name = "triangular_matmul"
    upper, left, unitriangular = _checked_flags(name, upper=upper, left=left, unitriangular=unitriangular)
    if not isinstance(diagonal, (int, numbers.Integral)) or isinstance(diagonal, bool):
        raise TypeError(f"{name}: diagonal must be an int, but is {diagonal!r}")
    if not isinstance(diagonal, int):  # numpy.int64
        diagonal = operator.index(diagonal)
    if unitriangular and diagonal:
        raise ValueError(f"{name}: diagonal must be 0 if unitriangular, but is {diagonal}")
    mask = _TRIU if upper else _TRIL
    if unitriangular:
        A, _ = _validate_and_broadcast(name, A, A, _NN, _LOWER, "AA")
        # diagonal_scatter returns a changed copy, because torch.func.linearize would drop a change in place. The copy
        # keeps the strides of A. If elements of A overlapped in memory, ones would also appear beside the diagonal. So
        # A is made contiguous first.
        if _is_no_subclass(A):
            A = A.contiguous().diagonal_scatter(A.new_ones(A.shape[:-1]), dim1=-2, dim2=-1)
        else:  # diagonal_scatter of a DTensor has no gradient
            A = torch.where(A.new_ones(A.shape[-1:], dtype=torch.bool).diag(), A.new_ones(()), A)
    operands, names = ((A, X), "AX") if left else ((X, A), "XA")
    structure = _masked(mask, _FULL, _FULL) if left else _masked(_FULL, mask, _FULL)
    if diagonal:
        _validate_and_broadcast(name, *operands, _NN, structure, names)  # checks the shapes before the padding
        N, pad = A.shape[-1], torch.constant_pad_nd
        # Padding makes diagonal number `diagonal` the main one. A lower triangle gets `more` rows of zeros above it and
        # `more` columns of zeros on its right. An upper triangle gets the rows below it and the columns on its left. If
        # `more` is negative, rows and columns are removed instead.
        more = max(-N, min(N, -diagonal if upper else diagonal))
        rows, cols = ((0, more), (more, 0)) if upper else ((more, 0), (0, more))
        inner, outer = ((0, 0, *cols), (0, 0, *rows)) if left else (rows, cols)
        C = triangular_matmul(pad(A, (*cols, *rows)), pad(X, inner), upper=upper, left=left)
        return pad(C, [-lines for lines in outer])
    return _call_flattening_batch(name, *operands, _NN, structure, names, left)


def gram(X, *, transpose=False, structure="dense"):
    """Returns the symmetric product C = X @ X^T, or X^T @ X.

    Args:
        X: a tensor (..., M, K), which is square unless `structure` is 'dense'.
        transpose: True for X^T @ X, False for X @ X^T.
        structure: 'dense', 'lower' or 'upper'. Only the named triangle of X is read.

    Returns:
        A contiguous tensor (..., M, M), or (..., K, K) if `transpose` is True. C[i, j] and C[j, i] have the same bits.
        Only one half of C is computed, unless computing all of C takes no longer.

    Both triangles of G = dC count: dX = (G + G^T) @ X, or X @ (G + G^T) if `transpose` is True. On a GPU with kernels
    the sum G + G^T is rounded to the dtype, and it is Inf where it exceeds the dtype's range.

    Raises TypeError if `transpose` is no bool, ValueError for another `structure`, and what tril_matmul raises.
    Everything else is as in tril_matmul.
    """
    (transpose,) = _checked_flags("gram", transpose=transpose)
    if not isinstance(structure, str) or structure not in _MASKS[:3]:
        raise ValueError(f"gram: structure must be one of 'dense', 'lower', 'upper', but is {structure!r}")
    mask = _MASKS.index(structure)
    return _call("gram", X, X, _TN if transpose else _NT, _masked(mask, mask, _SYMMETRIC), names="XX")


def lu_matmul(L, U):
    """Returns the dense matrix C = tril(L) @ triu(U) for matrices (..., N, N). It undoes an LU factorisation.

    The other triangles have no effect. For G = dC the gradients are dL = tril(G @ triu(U)^T) and
    dU = triu(tril(L)^T @ G). Everything else is as in tril_matmul.
    """
    return _call("lu_matmul", L, U, *_PROBLEMS["lu"], names="LU")


def triangular_inverse(L, *, upper=False, unitriangular=False):
    """Returns the inverse X of a triangular matrix L, as torch.linalg.solve_triangular(L, I, upper=upper) does.

    Args:
        L: a tensor (..., N, N), of which only one triangle is read.
        upper: True for the upper triangle of L, which costs a copy of X. False for the lower one.
        unitriangular: True for ones in place of L's diagonal, which is not read then.

    Returns:
        A contiguous tensor X (..., N, N) of the same dtype, with exact zeros in the other triangle. A zero on the
        diagonal of L makes Inf or NaN in X.

    In float32 the error of an element is about 1e-6 of |X| |L| |X|, which is the error of substitution. 16-bit types
    and their gradients are computed in a wider type. Autocast changes nothing, as in torch. For G = dX and a lower
    triangle, the gradient is dL = -tril(X^T @ tril(G) @ X^T).

    Raises TypeError if a flag is no bool, and what tril_matmul raises. Everything else is as in tril_matmul.
    """
    upper, unitriangular = _checked_flags("triangular_inverse", upper=upper, unitriangular=unitriangular)
    L, _ = _validate_and_broadcast("triangular_inverse", L, L, _NN, _LOWER, "LL", autocast=False)
    wide = L
    # In 16 bits X^T G may overflow although dL does not, so `wide` is float32 on a GPU. On a CPU torch may round the
    # operands of float32 products to 8 significant bits, so `wide` is float64 there
    if L.dtype in _HALVES:
        wide = L.float() if L.is_cuda else L.double()
    if upper:
        X = _operator("inverse", wide.mT, unitriangular).to(L.dtype)
        return X.mT.clone(memory_format=torch.contiguous_format)
    return _operator("inverse", wide, unitriangular).to(L.dtype)


def explain(A, B, problem="lower"):
    """Computes one product and tells which kernel did. It is for debugging, and it waits for the GPU.

    Args:
        A, B: the operands of the function that `problem` names. For 'gram' A and B must be the same tensor.
        problem: 'lower' (tril_matmul), 'upper' (triu_matmul), 'transposed_a' (transposed_a_matmul), 'lu' (lu_matmul),
            'triangular' (triangular_matmul) or 'gram' (gram).

    Returns a dict:
        'path': the kernel whose result counts.
            'exact', 'tf32', 'mma': the exact path, the split-tf32 kernel and the mma kernel.
            'half', 'hopper': the 16-bit kernel and the fp16x3 kernel.
            'fallback', 'hopper, fallback': all of the batch, or a part of it, fell back from the fp16x3 kernel.
            'cpu', 'torch', 'meta': no kernel. 'torch' stands for a GPU before compute capability 8.0.
        'fallback': True if an operand has Inf, NaN or too many outliers, so that another kernel computed.
        'fallback_at': the indices of the products that fell back, with all leading dimensions flattened into one.
        'outliers': how many elements of the batch are too small, beside the largest of their block, to be packed as
            pairs of float16. Outliers are stored separately.
        'masks': the masks of A, B and the result, each 'dense', 'lower', 'upper' or 'symmetric'.

    Raises ValueError for another problem, TypeError for a subclass of torch.Tensor such as DTensor, and what the
    function itself raises. On a GPU it raises RuntimeError for a tensor without memory of its own (under vmap, or a
    negated view).
    """
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        raise ValueError(f"explain: problem must be one of {', '.join(_PROBLEMS)}, but is {problem!r}")
    kind = _PROBLEMS[problem]
    for name, T in (("A", A), ("B", B)):
        if isinstance(T, torch.Tensor) and not _is_no_subclass(T):
            raise TypeError(f"explain: {name} must be a torch.Tensor, and of no subclass, but is {type(T).__name__}")
    if problem == "gram" and A is not B:
        raise ValueError("explain: A and B must be one matrix where problem is 'gram', but are two")
    A, B = _validate_and_broadcast("explain", A, B, *kind)
    path, controls = "torch" if A.is_cuda else A.device.type, []
    if _has_kernels(A):
        C, path, workspace = _built().product(A, B, *kind, _PATH, True)
        if workspace is not None:
            controls = _built().controls(workspace, C.shape[:-2].numel()).tolist()  # waits for the GPU
    fallback_at = [number for number, (fallback, _) in enumerate(controls) if fallback]
    if fallback_at:
        path = "fallback" if len(fallback_at) == len(controls) else "hopper, fallback"
    outliers, masks = sum(count for _, count in controls), tuple(_MASKS[mask] for mask in _masks(kind[1]))
    return {
        "path": path,
        "fallback": bool(fallback_at),
        "fallback_at": fallback_at,
        "outliers": outliers,
        "masks": masks,
    }


# ==== 4. KernelBench ====


class ModelNew(torch.nn.Module):
    """Computes tril_matmul(A, B) for A and B (N, N): KernelBench level 1, problem 15. The module has no parameters."""

    def forward(self, A, B):
        return tril_matmul(A, B)


class UpperModelNew(torch.nn.Module):
    """Computes triu_matmul(A, B) for A and B (N, N): KernelBench level 1, problem 14."""

    def forward(self, A, B):
        return triu_matmul(A, B)


class TransposedAModelNew(torch.nn.Module):
    """Computes A.T @ B for A (K, M) and B (K, N): KernelBench level 1, problem 16."""

    def forward(self, A, B):
        return transposed_a_matmul(A, B)


class TriangularModelNew(torch.nn.Module):
    """Computes triangular_matmul as a module. The options of the function are arguments of the call."""

    def forward(self, A, X, **options):
        return triangular_matmul(A, X, **options)


class GramModelNew(torch.nn.Module):
    """Computes gram as a module. The options of the function are arguments of the call."""

    def forward(self, X, **options):
        return gram(X, **options)


class InverseModelNew(torch.nn.Module):
    """Computes triangular_inverse as a module. The options of the function are arguments of the call."""

    def forward(self, L, **options):
        return triangular_inverse(L, **options)


def get_inputs():
    """Returns two new lower triangular float32 matrices (4096, 4096), uniform in [0, 1), on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.rand(4096, 4096, dtype=torch.float32, device=device).tril() for _ in range(2)]


def get_init_inputs():
    """Returns the arguments of ModelNew's constructor, which takes none."""
    return []

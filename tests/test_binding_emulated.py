"""The binding and the launchers' workspaces without a GPU. The C++ code that knows torch is compiled for the host, as an extension module
for CPU tensors. Loops take the place of the kernels. They sum a Product by its strides, or packed blocks, which hold float32 here, by the
Workspace that says where they are. They also check the alignment and the strides that a kernel needs.
"""

import itertools
import os
import random
import re
import subprocess
import sysconfig

import pytest
import torch
from helpers import (
    COMPILER,
    DENSE,
    DTYPES,
    FUNCTIONS,
    HOST_PRELUDE,
    LOWER,
    NN,
    NT,
    SYMMETRIC,
    TN,
    assert_product,
    assert_within,
    bound_for,
    constant,
    every_mask,
    generator,
    marked,
    masks,
    normal,
    product,
    truth,
)

PYTHONS = sysconfig.get_path("include")  # the folder of Python's headers
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"),
    pytest.mark.skipif(not os.path.exists(os.path.join(PYTHONS, "Python.h")), reason="Python's headers are not installed"),
    pytest.mark.xdist_group("binding emulated"),
]

HEAD = r"""
constexpr cudaError_t cudaErrorInvalidConfiguration = 9, cudaErrorUnknown = 999;
#define CHECK(holds) TORCH_CHECK(holds, "does not hold: ", #holds)
void check(cudaError_t error) { CHECK(error == 0); }
unsigned long long atomicAdd(unsigned long long*, unsigned long long);   // which no loop calls
unsigned long long atomicCAS(unsigned long long*, unsigned long long, unsigned long long);
"""

# Every third product of a batch takes the fallback.
LAUNCHERS = r"""
template <typename T, typename X, typename Y>
void sum_up(const Product& p, T* c, X x, Y y) {
  for (int m = 0; m < p.m; ++m)
    for (int n = 0; n < p.n; ++n) {
      double sum = 0;
      for (int k = 0; k < p.k; ++k)
        if (is_in_range(p.x_range, m, k) && is_in_range(p.y_range, n, k)) sum += double(x(m, k)) * double(y(n, k));
      if (!p.c_lower || n <= m || !p.symmetric) c[m * p.c_row + n * p.c_col] = p.c_lower && n > m ? T(0) : T(sum);
      if (p.symmetric && n <= m) c[n * p.c_row + m * p.c_col] = T(sum);
    }
}
template <typename T>
void by_strides(const Product& p, int batch) {
  const T* const x = static_cast<const T*>(p.x) + batch_offset(p, p.x_batch, batch);
  const T* const y = static_cast<const T*>(p.y) + batch_offset(p, p.y_batch, batch);
  sum_up(p, c_matrix<T>(p, batch), [&](int m, int k) { return x[m * p.x_row + k * p.x_col]; },
         [&](int n, int k) { return y[k * p.y_row + n * p.y_col]; });
}
void pack(const Fp16x3Product& of, Operand operand) {
  const Packed& to = operand == kX ? of.x : of.y;
  for (int number = 0; number < (operand == kX ? of.x_blocks : of.y_blocks); ++number) {
    const int matrix = number / to.blocks_each, block = number % to.blocks_each;
    const int row = to.triangular ? triangle_root(block) : block / to.block_cols, col = block - int(block_index(to, row, 0));
    const float* from = to.source + row * kBlock * to.row_stride + col * kBlock * to.col_stride;
    if (to.matrices > 1) from += batch_offset(of.p, operand == kX ? of.p.x_batch : of.p.y_batch, matrix);
    for (int i = 0; i < kBlock; ++i)
      for (int j = 0; j < kBlock; ++j)
        reinterpret_cast<float*>(to.blocks)[(int64_t(number) * kBlock + i) * kBlock + j] =
            row * kBlock + i < to.rows && col * kBlock + j < to.cols ? from[i * to.row_stride + j * to.col_stride] : NAN;
  }
}
void launch_fp16x3(const Product& p, const Gpu& gpu, const Product* dy = nullptr, const Fp16x3Product* kept = nullptr) {
  const int64_t bytes = Workspace(p, gpu.sms / 2, nullptr, dy, kept).bytes;
  Workspace at(p, gpu.sms / 2, gpu.allocate(gpu, bytes), dy, kept);
  CHECK(at.bytes == bytes);
  Fp16x3Product& first = at.product[0];
  std::fill_n(reinterpret_cast<int*>(first.controls), first.words, 0);
  pack(first, kX), pack(first, kY);
  for (int batch = 0; batch < p.batches; ++batch)
    first.controls[batch].fallback = first.kept ? first.kept[batch].fallback : batch % 3 == 2;
  for (int u = 0; u < at.products; ++u)
    for (int batch = 0; batch < p.batches; ++batch) {
      const Fp16x3Product& h = at.product[u];
      auto element = [&](Operand operand, int line, int k) {
        const Packed& packed = operand == kX ? h.x : h.y;
        const bool rows = k_is_row(operand, h.p);
        const int block = find_matrix(packed, batch) * packed.blocks_each + find_block(h, operand, rows, line / kBlock, k / kBlock);
        const int row = (rows ? k : line) % kBlock, col = (rows ? line : k) % kBlock;
        return reinterpret_cast<const float*>(packed.blocks)[(int64_t(block) * kBlock + row) * kBlock + col];
      };
      if (h.controls[batch].fallback) by_strides<float>(h.p, batch);
      else sum_up(h.p, c_matrix<float>(h.p, batch), [&](int m, int k) { return element(kX, m, k); },
                  [&](int n, int k) { return element(kY, n, k); });
    }
}
void launch_product(const Product& p, Kernel kernel, const Gpu& gpu) {
  if (kernel == kFp16x3Kernel) return launch_fp16x3(p, gpu);
  if (kernel == kSixteenBitKernel) {   // what a tensor map wants: strides of 16 bytes, of less than 2^40
    CHECK(p.type >= kFloat16 && std::min(p.x_row, p.x_col) == 1 && std::min(p.y_row, p.y_col) == 1);
    for (int64_t stride : {std::max(p.x_row, p.x_col), std::max(p.y_row, p.y_col), batch_unit(p, p.x_batch), batch_unit(p, p.y_batch)})
      CHECK(stride % 8 == 0 && stride > 0 && stride < int64_t(1) << 39);
    CHECK(reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0);
    CHECK(!is_stored_twice(p) || (p.x_col == 1) == (p.y_row == 1));
  }
  CHECK(kernel != kSplitTf32Kernel || p.type == kFloat32);
  CHECK((kernel != kSplitTf32Kernel && kernel != kMmaKernel) || ((p.x_row == 1 || p.x_col == 1) && (p.y_row == 1 || p.y_col == 1)));
  for (int batch = 0; batch < p.batches; ++batch)
    p.type == kFloat32   ? by_strides<float>(p, batch)
    : p.type == kFloat64 ? by_strides<double>(p, batch)
    : p.type == kFloat16 ? by_strides<c10::Half>(p, batch)
                         : by_strides<c10::BFloat16>(p, batch);
}
template <typename T>
void invert(const Product& p, int row, const T* before, bool unit) {
  const int first = row * kBlock, size = std::min(kBlock, p.n - first);
  for (int batch = 0; batch < p.batches; ++batch) {
    const T* const x = static_cast<const T*>(p.x) + batch_offset(p, p.x_batch, batch) + first * (p.x_row + p.x_col);
    T* const c = c_matrix<T>(p, batch) + first * p.c_row;
    for (int i = 0; i < size; ++i)
      for (int j = 0; j < p.n; ++j) {
        double sum = j < first ? -before[(batch * size + i) * first + j] : first + i == j;
        for (int k = 0; k < i; ++k) sum -= double(x[i * p.x_row + k * p.x_col]) * c[k * p.c_row + j];
        c[i * p.c_row + j] = first + i < j ? 0 : T(unit ? sum : sum / x[i * (p.x_row + p.x_col)]);
      }
  }
}
void launch_inverse(const Product& p, int row, const void* before, bool unit, const Gpu&) {
  p.type == kFloat64 ? invert(p, row, static_cast<const double*>(before), unit) : invert(p, row, static_cast<const float*>(before), unit);
}
struct OnDevice : Gpu {
  mutable at::Tensor workspace;
  static void* take(const Gpu& gpu, int64_t bytes) {
    return (static_cast<const OnDevice&>(gpu).workspace = at::empty({bytes}, at::kByte)).mutable_data_ptr();
  }
  explicit OnDevice(const at::Tensor&) : Gpu{132, 9, nullptr, take} {}
};
"""


@pytest.fixture(scope="module")
def extension(model, tmp_path_factory):
    from torch.utils import cpp_extension

    room = tmp_path_factory.mktemp("binding")
    includes = re.findall(r"^#include <(?!c10/cuda).*", model._CPP_BINDING, re.MULTILINE)
    binding, keys = re.subn(r"\b(DispatchKey::\w*)CUDA\b", r"\1CPU", marked("tensors"))
    assert keys >= 3, "the binding looks for CUDA tensors in another way"
    parts = [
        *includes,
        "#include <ATen/ops/empty.h>",
        "#include <numeric>",
        HOST_PRELUDE,
        model._CUDA_TYPES,
        model._CUDA_LAUNCHERS.replace("#include <cuda_runtime_api.h>", "using cudaError_t = int;"),
        HEAD,
        model._CUDA_SCHEDULE,
        model._CUDA_POLICY,
        f"constexpr int kChain = {constant('_CUDA_COPIER', 'kChain')};",
        model._CUDA_PACKED,
        marked("tile queue"),
        marked("fp16x3 product"),
        marked("workspace"),
        LAUNCHERS,
        marked("launch of gradients"),
        "namespace {\nusing at::Tensor;\n",
        marked("empty"),
        binding,
    ]
    (room / "binding.cpp").write_text("\n".join(parts))
    headers = [f"-isystem{path}" for path in (*cpp_extension.include_paths(), PYTHONS)]
    flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=binding", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch_python", "-ltorch_cpu", "-lc10"]
    command = [COMPILER, *flags, *headers, "binding.cpp", "-o", "binding.so", *libraries]
    built = subprocess.run(command, cwd=room, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[:4000]
    return model._load_build(str(room), "binding")


@pytest.fixture
def bound(model, extension, monkeypatch):
    """The model, whose CPU tensors go to the extension, and there by Hopper's kernels."""
    monkeypatch.setattr(model, "_EXTENSION", extension)
    monkeypatch.setattr(model, "_has_kernels", lambda X: True)
    monkeypatch.setattr(model, "_PATH", model._PATHS["hopper"])
    return model


def laid_out(draw, batch, rows, cols, seed, dtype):
    """A matrix, or a batch, of which some dimensions are expanded, in one of several layouts."""
    own = [1 if draw.random() < 0.3 else size for size in batch]
    layout = draw.choice(["rows", "columns", "padded rows", "steps", "permuted", "not aligned", "strides of no use"])
    V = normal(*own, rows, cols, seed=seed, dtype=dtype)
    if layout == "columns":
        V = V.mT.contiguous().mT
    elif layout == "padded rows":
        V = V.new_empty(*own, rows, cols + 5)[..., :cols].copy_(V)
    elif layout == "steps":
        V = V.new_empty(*own, 2 * rows, 2 * cols)[..., ::2, ::2].copy_(V)
    elif layout == "permuted":
        order = draw.sample(range(V.dim()), V.dim())
        V = V.permute(order).contiguous().permute([order.index(d) for d in range(V.dim())])
    elif layout == "not aligned":
        V = V.new_empty(V.numel() + 1)[1:].view(V.shape).copy_(V)
    elif layout == "strides of no use":
        V = V.as_strided(
            V.shape, [step if size > 1 else draw.choice([0, 1, 8, 2**40]) for size, step in zip(V.shape, V.stride(), strict=True)]
        )
    return V.expand(*batch, rows, cols)


def sizes(draw, batch):
    return draw.choices([1, 8, 17, 65, 72] if len(batch) < 3 else [1, 8, 17], k=3)


BATCHES = [(), (3,), (2, 3), (2, 2, 2), (1, 2, 1, 2), (2, 1, 1, 2, 1, 1, 1, 1, 2), (2, 1, 2, 1, 2, 1, 1, 1, 1, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_products_and_gradients_in_any_layout(bound, function, dtype):
    """Also with more than eight leading dimensions, which merge in different ways in the operands and in the gradient."""
    contraction, structure = FUNCTIONS[function]
    draw = random.Random(function + str(dtype))
    for batch, round in itertools.product(BATCHES, range(12)):
        K, M, N = sizes(draw, batch)
        M, N = (M, N) if structure == DENSE else (K, K)
        A, B = (laid_out(draw, batch, K, cols, seed, dtype).requires_grad_() for seed, cols in enumerate((M, N)))
        C = getattr(bound, function)(A, B)
        what = f"{batch}, {A.stride()}, {B.stride()}, round {round}"
        assert_product(C, A, B, contraction, structure, what)
        G = laid_out(draw, batch, *C.shape[-2:], 2, dtype)
        for gradient, of in zip(
            torch.autograd.grad(C, (A, B), G), bound._GRADIENTS[contraction](A, B, G, *[structure & 3] * 3), strict=True
        ):
            exact, magnitude = truth(*of)
            assert_within(gradient, exact, bound_for(*of, exact, magnitude), f"of {what}, {G.stride()}")


def test_explain_tells_which_products_of_a_batch_fell_back(bound):
    """The launchers above let every third product of a batch fall back, and pack no outliers."""
    A, B = (normal(2, 4, 65, 65, seed=seed) for seed in range(2))
    told = bound.explain(A, B)
    assert (told["path"], told["fallback_at"], told["outliers"]) == ("hopper, fallback", [2, 5], 0), told


def test_packed_operands_that_a_hook_has_changed_are_not_used(bound):
    """A hook makes floats of the bytes. As many floats are not taken for packed blocks."""
    A, B, G = (torch.randint(-4, 5, (65, 65), generator=generator(seed)).float() for seed in range(3))
    C = bound.tril_matmul(A.requires_grad_(), B.requires_grad_())
    C.grad_fn._raw_saved_tensors[2].register_hooks(torch.Tensor.float, torch.zeros_like)
    for gradient, of in zip(torch.autograd.grad(C, (A, B), G), bound._GRADIENTS[NN](A, B, G, *[LOWER & 3] * 3), strict=True):
        assert torch.equal(gradient, truth(*of)[0].float())


@every_mask
def test_products_of_the_family_in_any_layout(bound, contraction, structure):
    (x, y, c), draw = masks(structure), random.Random(f"{contraction}, {structure}")
    for batch, dtype, round in itertools.product(BATCHES, DTYPES, range(3)):
        K, M, N = sizes(draw, batch)
        M, N = K if x else M, K if y else N
        if c:
            M, N = (N, N) if y else (M, M)
        X = laid_out(draw, batch, *((K, M) if contraction == TN else (M, K)), 1, dtype)
        Y = X if c == SYMMETRIC else laid_out(draw, batch, *((N, K) if contraction == NT else (K, N)), 2, dtype)
        assert_product(product(X, Y, contraction, structure), X, Y, contraction, structure, f"{batch}, {X.stride()}, {Y.stride()}, {round}")


def test_two_copies_of_a_column_are_right_if_one_is_aligned(bound):
    """The operands of a symmetric product may be two copies of one matrix. The kernel has one layout for both."""
    X = torch.randint(-4, 5, (1033, 1), generator=generator(0)).half()
    for at in (0, 1):
        operands = X[at : at + 1032], X[at : at + 1032].clone()
        for x, y in (operands, operands[::-1]):
            assert torch.equal(product(x, y, NT, 3 << 4), x @ x.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_inverses_in_any_layout(bound, dtype):
    draw = random.Random(str(dtype))
    for batch, unit in itertools.product(BATCHES, (False, True)):
        N = sizes(draw, batch[:2])[0]
        L = laid_out(draw, batch, N, N, 0, dtype)
        X, T, one = bound.triangular_inverse(L, unitriangular=unit).double(), L.double().tril(-unit), torch.eye(N).double()
        T = T + one * unit
        bound_of_all = 2 * N * torch.finfo(dtype).eps * (T.abs() @ X.abs())
        assert X.equal(X.tril()) and ((T @ X - one).abs() <= bound_of_all).all(), f"{batch}, {L.stride()}, {N}, {unit}"

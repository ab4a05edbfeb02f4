"""Every refusal says which argument, what it is and what is accepted. The words are held here."""

import ast
import re

import pytest
import torch
from helpers import DEVICES, FUNCTIONS, LOWER, NN, SOURCE, execute, needs_cuda, needs_two_gpus

SQUARE = ["tril_matmul", "triu_matmul"]


def refusal(error, call, *arguments):
    """The message with which the call is refused."""
    with pytest.raises(error) as caught:
        call(*arguments)
    assert type(caught.value) is error, f"{type(caught.value).__name__}, expected {error.__name__}"
    return str(caught.value)


@pytest.fixture(params=FUNCTIONS)
def function(request):
    return request.param


@pytest.fixture
def call(model, function):
    return getattr(model, function)


@pytest.mark.parametrize("value", [[[1.0]], None, 3.0])
def test_not_a_tensor(call, function, value):
    name = type(value).__name__
    good = torch.ones(2, 2)
    assert refusal(TypeError, call, value, good) == f"{function}: A must be a torch.Tensor, but is {name}"
    assert refusal(TypeError, call, good, value) == f"{function}: B must be a torch.Tensor, but is {name}"


def test_a_numpy_array(call, function):
    numpy = pytest.importorskip("numpy")
    assert refusal(TypeError, call, torch.ones(2, 2), numpy.ones((2, 2))) == f"{function}: B must be a torch.Tensor, but is ndarray"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse(call, function, device):
    good = torch.eye(2, device=device)
    assert refusal(TypeError, call, good.to_sparse(), good) == (
        f"{function}: A must be a dense (strided) tensor, but has layout torch.sparse_coo; use A.to_dense()"
    )
    assert refusal(TypeError, call, good, good.to_sparse_csr()) == (
        f"{function}: B must be a dense (strided) tensor, but has layout torch.sparse_csr; use B.to_dense()"
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested(call, function, layout, device):
    good = torch.eye(2, device=device)
    nested = torch.nested.nested_tensor([good, good], layout=layout)
    for name, operands in (("A", (nested, good)), ("B", (good, nested)), ("A", (nested, nested))):
        assert refusal(TypeError, call, *operands) == (
            f"{function}: {name} must be a dense (strided) tensor, but is a nested one; use torch.nested.to_padded_tensor({name}, 0.0)"
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool", "complex64", "complex128", "float8_e4m3fn"])
def test_dtypes_that_have_no_kernel(call, function, dtype, device):
    good, bad = torch.ones(2, 2, device=device), torch.zeros(2, 2, device=device).to(getattr(torch, dtype))
    accepted = "float32, float64, float16 or bfloat16"
    assert refusal(TypeError, call, bad, good) == f"{function}: A must be {accepted}, but is torch.{dtype}"
    assert refusal(TypeError, call, good, bad) == f"{function}: B must be {accepted}, but is torch.{dtype}"
    assert refusal(TypeError, call, bad, bad) == f"{function}: A must be {accepted}, but is torch.{dtype}"


@pytest.mark.parametrize("device", DEVICES)
def test_too_few_dimensions(call, function, device):
    good, vector, scalar = torch.ones(2, 2, device=device), torch.ones(2, device=device), torch.ones((), device=device)
    accepted = "(..., rows, columns)" if function == "transposed_a_matmul" else "(..., N, N)"
    assert refusal(ValueError, call, vector, good) == f"{function}: A must have at least 2 dimensions, {accepted}, but has shape (2,)"
    assert refusal(ValueError, call, good, scalar) == f"{function}: B must have at least 2 dimensions, {accepted}, but has shape ()"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", SQUARE)
def test_not_square(model, function, device):
    call, good, bad = getattr(model, function), torch.ones(3, 3, device=device), torch.ones(2, 3, 4, device=device)
    assert refusal(ValueError, call, bad, good) == f"{function}: A must be square in its last two dimensions, but has shape (2, 3, 4)"
    assert refusal(ValueError, call, good, bad) == f"{function}: B must be square in its last two dimensions, but has shape (2, 3, 4)"
    tall = torch.ones(3, 2, device=device)  # whose rows are as many as A's columns
    assert refusal(ValueError, call, good, tall) == f"{function}: B must be square in its last two dimensions, but has shape (3, 2)"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", SQUARE)
def test_sizes_that_differ(model, function, device):
    A, B = torch.ones(2, 3, 3, device=device), torch.ones(4, 4, device=device)
    assert refusal(ValueError, getattr(model, function), A, B) == (
        f"{function}: A must have as many columns as B has rows, but their shapes are (2, 3, 3) and (4, 4)"
    )


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_of_rows_that_differ(model, device):
    A, B = torch.ones(3, 5, device=device), torch.ones(5, 3, device=device)
    assert refusal(ValueError, model.transposed_a_matmul, A, B) == (
        "transposed_a_matmul: A must have as many rows as B has rows, but their shapes are (3, 5) and (5, 3)"
    )


@pytest.mark.parametrize("device", DEVICES)
def test_leading_dimensions_that_do_not_broadcast(call, function, device):
    A, B = torch.ones(5, 2, 3, 3, device=device), torch.ones(4, 3, 3, device=device)
    assert refusal(ValueError, call, A, B) == (f"{function}: the leading dimensions of A and B must broadcast, but are (5, 2) and (4,)")


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_that_differ(call, function, device):
    A, B = torch.ones(3, 3, device=device), torch.ones(3, 3, dtype=torch.float64, device=device)
    assert refusal(RuntimeError, call, A, B) == f"{function}: A and B must have the same dtype, but are torch.float32 and torch.float64"
    assert refusal(RuntimeError, call, B.half(), A.bfloat16()) == (
        f"{function}: A and B must have the same dtype, but are torch.float16 and torch.bfloat16"
    )


def test_devices_that_differ(call, function):
    A, B = torch.ones(3, 3), torch.ones(3, 3, device="meta")
    assert refusal(RuntimeError, call, A, B) == f"{function}: A and B must be on the same device, but are on cpu and meta"


@needs_cuda
def test_one_operand_on_the_gpu(call, function):
    A, B = torch.ones(3, 3, device="cuda:0"), torch.ones(3, 3)
    assert refusal(RuntimeError, call, A, B) == f"{function}: A and B must be on the same device, but are on cuda:0 and cpu"
    assert refusal(RuntimeError, call, B, A) == f"{function}: A and B must be on the same device, but are on cpu and cuda:0"


@needs_two_gpus
def test_two_gpus(call, function):
    A, B = torch.ones(3, 3, device="cuda:0"), torch.ones(3, 3, device="cuda:1")
    assert refusal(RuntimeError, call, A, B) == f"{function}: A and B must be on the same device, but are on cuda:0 and cuda:1"


def test_a_device_that_has_no_kernel(call, function):
    class Elsewhere(torch.Tensor):  # stands for a tensor on a device that torch knows and this machine need not have
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, operation, types, arguments=(), named=None):
            raise AssertionError(f"{operation} ran")

    A = torch.Tensor._make_wrapper_subclass(Elsewhere, (3, 3), dtype=torch.float32, device=torch.device("xpu", 0))
    assert refusal(RuntimeError, call, A, A) == f"{function}: A and B must be on a CPU or a CUDA device, but are on xpu:0"


@needs_cuda
def test_a_matrix_too_large_for_the_kernels(model):
    A = torch.ones(1, 1, device="cuda").expand(2**31, 1)  # one element in memory
    with pytest.raises((ValueError, RuntimeError), match="is too large; at most 2147482623 a side"):
        model.transposed_a_matmul(A, A)


def test_an_unknown_problem_to_explain(model):
    A = torch.ones(2, 2)
    assert refusal(ValueError, model.explain, A, A, "diagonal") == (
        "explain: problem must be one of lower, upper, transposed_a, lu, triangular, gram, but is 'diagonal'"
    )
    assert refusal(ValueError, model.explain, A, A, ["lower"]).endswith(", but is ['lower']")
    assert refusal(ValueError, model.explain, A, A.clone(), "gram") == (
        "explain: A and B must be one matrix where problem is 'gram', but are two"
    )
    assert refusal(TypeError, model.explain, A, A.int()) == "explain: B must be float32, float64, float16 or bfloat16, but is torch.int32"


@pytest.mark.parametrize("value", ["half", " ", "AUTO"])
def test_an_unknown_path(monkeypatch, value):
    monkeypatch.setenv("TRIL_MATMUL_PATH", value)
    accepted = "'auto', 'exact', 'mma' or 'hopper'"
    assert refusal(ValueError, execute) == f"the environment variable TRIL_MATMUL_PATH must be {accepted}, but is {value!r}"


def test_an_empty_path_is_none(monkeypatch):
    monkeypatch.setenv("TRIL_MATMUL_PATH", "")
    assert execute()["_PATH"] == 0
    execute()  # torch's operator is then the file's as it is


def test_a_cuda_tensor_without_kernels(model, monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(model, "_EXTENSION", None)
    assert refusal(RuntimeError, model._built) == (
        "tril_matmul: the CUDA kernels were not built when this file was imported, because no nvcc was found (or no GPU was visible then)."
        f" Install the CUDA toolkit {torch.version.cuda} and ninja, or set CUDA_HOME to where the toolkit lies, or (from CUDA 13 on)"
        f" pip install nvidia-cuda-nvcc~={torch.version.cuda}.0"
        f" nvidia-cuda-crt~={torch.version.cuda}.0 nvidia-nvvm~={torch.version.cuda}.0 nvidia-cuda-cccl~={torch.version.cuda}.0"
        f" nvidia-cuda-runtime~={torch.version.cuda}.0; then import again."
    )


@needs_cuda
def test_a_cuda_tensor_without_kernels_is_not_computed_some_other_way(function, monkeypatch):
    namespace = execute(SOURCE.read_text())  # a copy of its own: torch's operator calls the last one executed
    monkeypatch.setitem(namespace, "_EXTENSION", None)
    A = torch.ones(3, 3, device="cuda")
    with pytest.raises(RuntimeError, match=re.escape("because no nvcc was found (or no GPU was visible then). Install the CUDA toolkit")):
        namespace[function](A, A)


def test_a_subclass_to_explain(model):
    class Sharded(torch.Tensor):  # stands for DTensor: of a subclass nobody knows what memory it has
        @staticmethod
        def __torch_dispatch__(operation, types, arguments=(), named=None):
            raise AssertionError(f"{operation} ran")

    A = torch.Tensor._make_wrapper_subclass(Sharded, (3, 3), dtype=torch.float32, device=torch.device("cuda", 0))
    for operands, name in (((A, A), "A"), ((torch.ones(3, 3), A), "B")):
        assert refusal(TypeError, model.explain, *operands) == f"explain: {name} must be a torch.Tensor, and of no subclass, but is Sharded"
    parameter = torch.nn.Parameter(torch.ones(3, 3))
    assert model.explain(parameter, parameter)["path"] == "cpu"
    assert model.explain(*[torch.ones(3, 3, device="meta")] * 2)["path"] == "meta"


@needs_cuda
def test_what_is_no_plain_tensor_never_reaches_the_kernels(model):
    class Sharded(torch.Tensor):
        @staticmethod
        def __torch_dispatch__(operation, types, arguments=(), named=None):
            raise AssertionError(f"{operation} ran")

    plain = torch.ones(3, 3, device="cuda")
    for other in (
        torch.Tensor._make_wrapper_subclass(Sharded, (3, 3), dtype=torch.float32, device=plain.device),
        torch._neg_view(plain),
        torch.ones(3, 3),
    ):
        for X, Y in ((other, plain), (plain, other)):
            assert not model._EXTENSION.is_plain(X, Y, NN, LOWER)
            assert refusal(RuntimeError, model._EXTENSION.product, X, Y, NN, LOWER, 0, False).startswith(
                "tril_matmul: the kernels read plain CUDA tensors, but an operand is a subclass, a wrapper or a negated view"
            )
    assert torch.equal(model.tril_matmul(torch._neg_view(plain), plain), -model.tril_matmul(plain, plain))


@needs_cuda
def test_a_failed_launch_leaves_no_error_behind(model):
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("less than 20 GiB of GPU memory are free")
    A = torch.ones(1, 1, device="cuda").expand(2**31, 1, 1)  # more CTAs than a launch may have
    torch.empty(2**31, device="cuda")  # the allocator keeps it: it forgets errors when it asks CUDA for more
    assert int(torch.cuda.cudart().cudaHostUnregister(0)) != 0  # leaves an error behind, as a launch that CUDA refuses does
    said = refusal(RuntimeError, model.tril_matmul, A, A)
    assert said.startswith("tril_matmul: the CUDA kernel could not be launched on cuda:0: cudaErrorInvalidConfiguration (9), "), said
    assert "each product of a batch takes one or more; split the batch" in said and "built for the GPUs" not in said, said
    assert torch.arange(3, device="cuda").sum().item() == 3
    torch.cuda.empty_cache()


def test_a_failed_call_leaves_the_next_one_alone(call):
    A = torch.ones(3, 3)
    with pytest.raises(ValueError):
        call(A, torch.ones(4, 4))
    assert call(A, A).shape == (3, 3)


def test_no_message_is_missing_here():
    """As many refusals as the file raises are held above (one each in test_source.py, test_build.py and test_distributed.py, five in
    test_family.py); a new one needs a test."""
    raised = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.Raise)]
    assert len(raised) == 22, f"model_new.py raises {len(raised)} errors, and test_errors.py holds 22"

"""A process whose first product is made in one way, and checked; see test_first_calls.

python tests/first_call.py WAY DEVICE DTYPE N KERNEL
"""

import multiprocessing
import sys
import threading

import torch


def operands(device, dtype, N):
    from helpers import normal

    return [normal(N, N, seed=seed, dtype=dtype).to(device) for seed in range(3)]


def forward(model, A, B, G):
    return (model.tril_matmul(A, B),)


def backward(model, A, B, G):
    """The product, and the backward that autograd's own thread runs, with a G that was there before."""
    A, B = (T.clone().requires_grad_() for T in (A, B))
    C = model.tril_matmul(A, B)
    C.backward(G)
    return C.detach(), A.grad, B.grad


def backward_first(model, A, B, G):
    """No product before the backward: what it is of was made by torch."""
    A, B = (T.clone().requires_grad_() for T in (A, B))

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, A, B):
            ctx.save_for_backward(A, B)
            return A.detach().double().tril().matmul(B.detach().double().tril()).to(A.dtype)

        @staticmethod
        def backward(ctx, G):
            A, B = ctx.saved_tensors
            return tuple(torch.ops.tril_matmul.product(*of) for of in ((G, B, 1, 21), (A, G, 2, 21)))  # 21: three lower triangles

    C = Product.apply(A, B)
    C.backward(G)
    return C.detach(), A.grad, B.grad


def in_a_thread(call):
    def run(model, *of):
        results = []
        other = threading.Thread(target=lambda: results.append(call(model, *of)))
        other.start()
        other.join()
        return results[0]

    return run


def on_a_stream(model, A, B, G):
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(A.device)):
        C = model.tril_matmul(A, B)
    torch.cuda.synchronize()
    return (C,)


def captured(model, A, B, G):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(A.device), torch.cuda.graph(graph):
        C = model.tril_matmul(A, B)
    graph.replay()
    return (C,)


def compiled(model, A, B, G):
    return (torch.compile(model.tril_matmul, fullgraph=True, backend="aot_eager")(A, B),)


def autocast(model, A, B, G):
    with torch.autocast(A.device.type, A.dtype):
        return (model.tril_matmul(A.float(), B.float()),)


def in_worker(device, dtype, N):
    import model_new

    return [T.cpu() for T in forward(model_new, *operands(device, dtype, N))]


def spawned(model, A, B, G):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(in_worker, (str(A.device), A.dtype, A.shape[-1]))


WAYS = {
    "forward": forward,
    "backward": backward,
    "backward first": backward_first,
    "thread": in_a_thread(forward),
    "thread backward": in_a_thread(backward),
    "stream": on_a_stream,
    "thread stream": in_a_thread(on_a_stream),
    "graph": captured,
    "compile": compiled,
    "autocast": autocast,
    "worker": spawned,
}


def main(way, device, dtype, N, kernel):
    import model_new

    A, B, G = operands(device, getattr(torch, dtype), int(N))
    results = WAYS[way](model_new, A, B, G)
    from helpers import LOWER, NN, NT, TN, assert_product

    for C, of, what in zip(results, ((A, B, NN), (G, B, NT), (A, G, TN)), ("C", "dA", "dB"), strict=False):
        assert_product(C.to(device), *of, LOWER, f"{what}, first by {way}, {dtype}, N = {N}")
    path = model_new.explain(A, B)["path"]
    assert path == kernel or kernel == "any", f"{path} computed it, which is not the kernel that was to be first"
    print("right")


if __name__ == "__main__":
    main(*sys.argv[1:])

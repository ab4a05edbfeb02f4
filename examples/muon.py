"""The Newton-Schulz orthogonalisation of the Muon optimiser, computed with gram() in place of the dense X X^T.

The script times a few sizes, in bfloat16 on the GPU if there is one, and otherwise in float32.

    python examples/muon.py
    python examples/muon.py --sizes 4096x4096 1024x4096

Muon replaces the update X of a matrix by a polynomial of X. The polynomial has the same singular vectors as X. Its singular values are near
1, except where those of X are tiny. (Keller Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon.) Each iteration has three products. Two of them are symmetric: A = X X^T, and A A, which is A A^T
because A is symmetric. On a GPU gram() computes only one half of a symmetric product, unless the matrix is so small that the whole product
is faster.

The script times one orthogonalisation with five iterations, which is what one step of the optimiser needs for one matrix. It compares
gram() with dense products. On a GPU it also times flash-muon (https://github.com/nil0x9/flash-muon, X X^T by Triton), if that is installed.
"""

import argparse
import contextlib
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # model_new.py and timing.py lie there

from timing import add_device, milliseconds, name_of, note_of  # noqa: E402

from model_new import gram  # noqa: E402

A1, A3, A5 = 3.4445, -4.7750, 2.0315  # Muon's polynomial is A1 x + A3 x^3 + A5 x^5; the numbers are from the page above
ITERATIONS = 5
EPSILON = 1e-7  # avoids a division by zero if the update is zero


def by_gram(X):
    """Returns (A3 A + A5 A A) / A5 for A = X X^T. The caller's next product multiplies by A5, which costs nothing there."""
    A = gram(X)
    return torch.add(gram(A), A, alpha=A3 / A5)


def by_dense_products(X):
    """Returns the same as by_gram, computed by torch's own products."""
    A = X @ X.mT
    return torch.addmm(A, A, A, beta=A3 / A5)


def orthogonalised(G, polynomial=by_gram, iterations=ITERATIONS):
    """Orthogonalises an update G (M, N): if G = U S V^T, the result is nearly U V^T, in G's dtype. On a GPU the products are bfloat16."""
    X = G.to(torch.bfloat16 if G.is_cuda else G.dtype)
    tall = G.shape[0] > G.shape[1]
    X = X.mT if tall else X  # now X X^T has as few rows as possible
    X = X / (X.norm() + EPSILON)  # now no singular value is above 1
    for _ in range(iterations):
        X = torch.addmm(X, polynomial(X), X, beta=A1, alpha=A5)
    return (X.mT if tall else X).to(G.dtype)


def published(device):
    """Returns flash-muon's function of (G, iterations). Returns None if flash-muon is not installed or the device is a CPU."""
    if device == "cuda":
        with contextlib.suppress(ImportError):
            from flash_muon import fast_newtonschulz

            return fast_newtonschulz
    return None


def largest_difference(X, expected):
    """Returns the largest difference between corresponding elements, relative to the norm of the expected matrix."""
    return ((X - expected).abs().max() / expected.norm()).item()


def shape(text):
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"'{text}' is no shape such as 4096x1024")
    return tuple(map(int, sides))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=shape, nargs="+", metavar="MxN", help="sizes (default: 512x512 to 8192x8192, on a CPU 64x64 to 256x128)"
    )
    add_device(parser)
    options = parser.parse_args(arguments)
    gpu_sizes = [(512, 512), (1024, 1024), (2048, 2048), (4096, 1024), (1024, 4096), (4096, 4096), (8192, 8192)]
    sizes = options.sizes or (gpu_sizes if options.device == "cuda" else [(64, 64), (128, 128), (256, 128)])
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    where = f"{ITERATIONS} iterations in {dtype} on {name_of(options.device)}, torch {torch.__version__}"
    print(f"{where}; median of 20, in ms{note_of(options.device)}")
    theirs = published(options.device)
    print(f"{'':<14} {'gram':>10} {'dense':>10} {'ratio':>7}{' flash-muon' * bool(theirs)}  largest difference / norm")
    for size in sizes:
        G = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(options.device)
        ours, dense = (milliseconds(lambda: orthogonalised(G, poly), options.device) for poly in (by_gram, by_dense_products))  # noqa: B023
        difference = largest_difference(orthogonalised(G), orthogonalised(G, by_dense_products))
        published_cell = f" {milliseconds(lambda: theirs(G, ITERATIONS), options.device):>10.3f}" if theirs else ""  # noqa: B023
        print(f"{size[0]:>5} x {size[1]:<6} {ours:>10.3f} {dense:>10.3f} {dense / ours:>6.2f}x{published_cell}  {difference:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

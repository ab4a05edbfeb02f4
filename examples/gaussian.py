"""Uses products of triangles for normal distributions that are given by the Cholesky factors of their covariances.

The script runs on the GPU if there is one.

    python examples/gaussian.py
    python examples/gaussian.py --batch 64 --size 256 --samples 1000

torch.distributions.MultivariateNormal(mean, scale_tril=L) treats L as a dense matrix when it draws samples or computes the covariance. For
the precision it calls torch.cholesky_inverse. This script computes all three with triangular_matmul, gram and triangular_inverse. It
compares each result with one that torch has computed, and times both ways.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.distributions import MultivariateNormal

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # model_new.py and timing.py lie there

from timing import add_device, milliseconds, name_of, note_of, relative_error  # noqa: E402

from model_new import gram, triangular_inverse, triangular_matmul  # noqa: E402

LARGEST_COPY = 5 * 10**9  # bytes; rsample is not timed if it would copy more
LARGEST_DIFFERENCE = 1e-5  # the largest accepted difference between our float32 result and torch's, relative to the norm of torch's


def make_factors(batch, size, device="cpu", seed=0):
    """Draws well conditioned Cholesky factors (batch, size, size) in float32."""
    noise = torch.randn(batch, size, size, generator=torch.Generator().manual_seed(seed)) / (2 * size**0.5)
    return (torch.eye(size) + noise.tril(-1)).to(device)


def samples(mean, L, Z):
    """Returns samples mean + L z, one for each column z of the standard normal Z (..., size, number). The result is
    differentiable in mean, L and Z."""
    return mean[..., None] + triangular_matmul(L, Z)


def covariance(L):
    """Returns the covariance L L^T."""
    return gram(L, structure="lower")


def precision_factor(L):
    """Returns W = L^-1, which is lower triangular. W^T W is the precision, which is the inverse of the covariance. For a sample
    x, W (x - mean) is white noise."""
    return triangular_inverse(L)


def precision(L):
    return gram(precision_factor(L), transpose=True, structure="lower")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--batch", type=int, default=64 if cuda else 8, help="the number of distributions (default 64, without a GPU 8)")
    parser.add_argument(
        "--size", type=int, default=256 if cuda else 64, metavar="N", help="variables per distribution (default 256, without a GPU 64)"
    )
    parser.add_argument("--samples", type=int, default=256 if cuda else 64, help="samples per distribution (default 256, without a GPU 64)")
    add_device(parser)
    options = parser.parse_args(arguments)
    if min(options.batch, options.size, options.samples) < 1:
        parser.error("--batch, --size and --samples must be positive")
    L = make_factors(options.batch, options.size, options.device)
    mean, Z = L.new_zeros(options.batch, options.size), torch.randn(options.batch, options.size, options.samples, device=options.device)
    identity = torch.eye(options.size, device=options.device).expand(L.shape)

    def torch_distribution():
        """Returns a new distribution at each call, because a distribution caches the matrices that it has computed."""
        return MultivariateNormal(mean, scale_tril=L, validate_args=False)

    print(f"{options.batch} distributions of {options.size} variables, {options.samples} samples each, float32")
    print(f"on {name_of(options.device)}, torch {torch.__version__}; median of 20, in ms{note_of(options.device)}")
    print(f"{'':<18} {'ours':>10} {'torch':>10} {'ratio':>8} {'difference':>11}")
    largest_difference = 0.0
    for name, ours, theirs in (
        ("samples", lambda: samples(mean, L, Z), lambda: mean[..., None] + L @ Z),
        ("covariance", lambda: covariance(L), lambda: torch_distribution().covariance_matrix),
        ("precision's factor", lambda: precision_factor(L), lambda: torch.linalg.solve_triangular(L, identity, upper=False)),
        ("precision", lambda: precision(L), lambda: torch_distribution().precision_matrix),
    ):
        difference = relative_error(ours(), theirs())
        our_ms, their_ms = (milliseconds(call, options.device) for call in (ours, theirs))
        print(f"{name:<18} {our_ms:>10.3f} {their_ms:>10.3f} {their_ms / our_ms:>7.2f}x {difference:>11.1e}")
        largest_difference = max(largest_difference, difference)
    # rsample copies L for each sample, and multiplies each copy by one column. Because of these copies its time is not in the table. It is
    # printed below the table, if the copies are not too large.
    copies, shape = options.samples * L.nbytes, torch.Size([options.samples])
    if copies <= LARGEST_COPY:
        drawn, rsample = (
            milliseconds(call, options.device)
            for call in (lambda: samples(mean, L, torch.randn_like(Z)), lambda: torch_distribution().rsample(shape))
        )
        print(
            f"with the normal numbers drawn: {drawn:.3f}; MultivariateNormal.rsample, with {copies / 1e6:.0f} MB of copies: {rsample:.3f}"
        )
    return int(not largest_difference <= LARGEST_DIFFERENCE)


if __name__ == "__main__":
    sys.exit(main())

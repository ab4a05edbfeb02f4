"""A training loop through tril_matmul: find two lower triangular factors whose product is a given matrix.

The defaults are 512 x 512 matrices and 300 steps, on the GPU if there is one.

    python examples/train.py
    python examples/train.py --size 2048 --plot loss.png

The loop minimises |L1 L2 - T|^2 / N (Frobenius) over L1 and L2 with torch.optim.Adam. It runs once with tril_matmul and once with what
users of PyTorch write today, tril(matmul), from the same start. The two loss curves agree up to float32 rounding. Both products are warmed
up before either is measured, so that the first one does not pay for torch's start. At the end the script prints the losses, the time and,
on a GPU, the memory of each.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # model_new.py and reference_model.py lie there

# The learning rate and the standard deviations are these numbers divided by sqrt(N).
LEARNING_RATE = 0.005
START_SPREAD = 0.05  # the standard deviation by which the factors differ from the identity at the start
TARGET_SPREAD = 0.5  # the standard deviation by which the target's factors differ from the identity
WARM_STEPS = 5
EPSILON = 1e-6  # Adam's epsilon; the default, 1e-8, lets an entry take full steps even if its gradient is rounding noise


def factor(size, spread, generator):
    """Returns a well conditioned lower triangular float32 matrix on the CPU: the identity plus noise that shrinks with the size."""
    noise = torch.randn(size, size, generator=generator) * (spread / size**0.5)
    return (torch.eye(size) + noise).tril()


def make_target(size, device="cpu", seed=0):
    """Returns a float32 target: the product of two lower triangular factors (size, size), computed in float64. Because the target is such a
    product, a fit is possible."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (factor(size, TARGET_SPREAD, generator).double() for _ in range(2))
    return (first @ second).tril().float().to(device)


def reference_product(A, B):
    """Returns tril(matmul). The calls of A.tril() and B.tril() make it ignore the upper triangles, as tril_matmul does."""
    return torch.tril(torch.matmul(A.tril(), B.tril()))


def train(product, target, steps, learning_rate=LEARNING_RATE, seed=1, report=None):
    """Fits L1 and L2 to `target` by gradient descent through `product`.

    Args:
        product: a function of two (N, N) tensors, such as tril_matmul.
        target: a lower triangular matrix (N, N).
        steps: the number of steps of Adam, at least 1.
        learning_rate: Adam's learning rate is this number divided by sqrt(N).
        seed: the seed of the start.
        report: if given, it is called with (steps done, loss) at regular intervals and after the last step.

    Returns:
        The losses before each step and after the last step: a list of steps + 1 numbers.
    """
    if steps < 1:
        raise ValueError(f"train: steps must be at least 1, but is {steps}")
    generator = torch.Generator().manual_seed(seed)
    N = target.shape[-1]
    L1, L2 = (factor(N, START_SPREAD, generator).to(target.device).requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([L1, L2], lr=learning_rate / N**0.5, eps=EPSILON)
    losses = []
    for step in range(steps + 1):
        loss = (product(L1, L2) - target).square().sum() / N  # divided by N, the loss is about the same at every N
        losses.append(loss.detach())  # the loss stays on the device, because reading each loss would make the host wait
        if report is not None and (step % max(1, steps // 20) == 0 or step == steps):
            report(step, loss.item())
        if step < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.stack(losses).tolist()


def largest_difference(losses, reference_losses):
    """Returns the largest relative difference between two loss curves."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference_losses, strict=True))


def plot(curves, file):
    """Writes the loss curves {name: losses} to a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # this backend needs no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=False):
        axes.semilogy(losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss", title="Fitting a product of two lower triangular factors")
    axes.legend()
    figure.savefig(file, format="png", dpi=150, bbox_inches="tight")  # a PNG, whatever the file's name ends with
    pyplot.close(figure)


def measure(product, target, steps, report=None):
    """Trains. Returns the losses, the milliseconds per step, and the peak of memory in megabytes. The last forward pass, which only
    computes a loss, counts as a step. On a CPU the peak is None, because torch does not count memory there."""
    cuda = target.is_cuda
    if cuda:
        torch.cuda.synchronize(target.device)
        torch.cuda.reset_peak_memory_stats(target.device)
    start = time.perf_counter()
    losses = train(product, target, steps, report=report)  # train() reads the losses, so it has waited for the GPU
    milliseconds = (time.perf_counter() - start) * 1e3 / (steps + 1)
    return losses, milliseconds, torch.cuda.max_memory_allocated(target.device) / 1e6 if cuda else None


def positive(text):
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no positive whole number")
    return value


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", type=positive, default=512, metavar="N", help="the matrices are N x N (default 512)")
    parser.add_argument("--steps", type=positive, default=300, help="steps of Adam (default 300)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is a GPU)")
    parser.add_argument("--reference", action="store_true", help="run tril(matmul) alone")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the loss curves to a PNG (needs matplotlib)")
    options = parser.parse_args(arguments)
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(options.device).type
    except RuntimeError:
        kind = None
    if kind not in ("cpu", "cuda"):
        parser.error(f"argument --device: {options.device!r} is given; accepted: cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        parser.error(f"argument --device: {options.device!r} is given, but torch sees no GPU; accepted here: cpu")
    if options.plot is not None:
        if not options.plot.absolute().parent.is_dir():
            parser.error(f"argument --plot: there is no folder {options.plot.absolute().parent}")
        try:  # checked here, so that an error comes before the training
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("argument --plot: needs matplotlib, which is not installed (pip install matplotlib)")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    products = {"tril(matmul)": reference_product}
    if not options.reference:
        from model_new import tril_matmul

        products = {"tril_matmul": tril_matmul, **products}
    where = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else "the CPU"
    print(f"{options.size} x {options.size}, {options.steps} steps of Adam on {where}, torch {torch.__version__}")
    target = make_target(options.size, options.device)
    for product in products.values():
        train(product, target, WARM_STEPS)
    curves, rows = {}, []
    live = sys.stdout.isatty()
    for name, product in products.items():

        def report(step, loss, name=name):
            end = "" if live and step < options.steps else "\n"
            print(("\r" if live else "") + f"{name:<13} step {step:>5} of {options.steps}  loss {loss:.4e}", end=end, flush=True)

        curves[name], milliseconds, megabytes = measure(product, target, options.steps, report)
        memory = "not counted" if megabytes is None else f"{megabytes:.1f} MB"
        rows.append(f"{name:<13} {curves[name][0]:>12.4e} {curves[name][-1]:>12.4e} {milliseconds:>10.3f} {memory:>12}")
    print(f"\n{'':<13} {'first loss':>12} {'last loss':>12} {'ms a step':>10} {'peak memory':>12}", *rows, sep="\n")
    if not options.reference:
        difference = largest_difference(curves["tril_matmul"], curves["tril(matmul)"])
        print(f"largest relative difference of the two loss curves: {difference:.1e}")
    if options.plot is not None:
        plot(curves, options.plot)
        print(f"loss curves written to {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Holds what the examples share for measurements: the option --device, the time of a call, relative errors and the device's name.

distributed.py, gaussian.py and muon.py import this file. By itself it measures nothing.
"""

import argparse
import statistics
import time

import torch

CALLS = 20


def default_device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(name):
    if name == "cuda" and default_device() != name:
        raise argparse.ArgumentTypeError(f"{name!r} is given, but torch sees no GPU; accepted here: cpu")
    return name


def add_device(parser):
    parser.add_argument("--device", type=device_of, choices=["cpu", "cuda"], default=default_device())


def name_of(device):
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "the CPU"


def milliseconds(call, device, calls=CALLS, in_a_row=1):
    """Returns the time of a call in milliseconds. It times `calls` rows of `in_a_row` successive calls each, and divides the median of
    these times by `in_a_row`. One call before the first row is not counted.

    On a GPU the time of a row is the time between two events on the current stream. If a row has several calls, one more call comes before
    the row and is not counted. While the GPU computes this call, the host launches the calls of the row.
    """

    def row():
        for _ in range(in_a_row):
            call()

    call()
    times = []
    for _ in range(calls):
        if torch.device(device).type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if in_a_row > 1:
                call()
            first.record()
            row()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        else:
            start = time.perf_counter()
            row()
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times) / in_a_row


def relative_error(result, expected):
    """Returns |result - expected| / |expected| (Frobenius), computed in float64."""
    expected = expected.double()
    return ((result.double() - expected).norm() / expected.norm()).item()


def note_of(device):
    """Returns a text for the head of a table, to follow the unit of the times. It is empty on a GPU. On a CPU it warns that the times do
    not show how fast a GPU is."""
    return ". On a CPU this shows that the values agree, not how fast a GPU is" if torch.device(device).type == "cpu" else ""


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(__doc__)

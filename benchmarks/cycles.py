"""Shows where the cycles of the fp16x3 kernel go, from its start on the first SM to its end on the last SM.

    NVCC_APPEND_FLAGS="-include $PWD/benchmarks/trace.cuh" python benchmarks/cycles.py model_new.py 2048 4096 8192

For each size the script prints three JSON objects: forward with uniform inputs, forward with normal inputs, and both gradients with uniform
inputs. `benchmark.py --suite cycles` runs the script and keeps the record. The parts of a case (see PARTS) are means over all CTAs, in
cycles of the SMs' clocks. They add up to the kernel's cycles, except for rounding and for differences between these clocks.
"""

import argparse
import ctypes
import json
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

CTAS, ROLES, ENTRIES = 264, 4, 255  # the sizes of the arrays in trace.cuh
WORDS = CTAS * ROLES * (1 + ENTRIES) * 2
PRODUCER, ZEROS = 3, 2  # roles, as in trace.cuh; the roles 0 and 1 are the two consumer warpgroups
# The events of trace.cuh, in its order.
ENTERED, PREVIOUS_DONE, STAGE_FULL, SUMMED, WRITTEN, TILES_DONE, EXITED, CHAIN_SUMMED, CHAIN_KEPT, ZEROS_BEGUN, ZEROS_WRITTEN = range(11)
# Maps an event of a consumer warpgroup to what the warpgroup has done since its previous event.
ACTIVITY = {SUMMED: "main_loop", CHAIN_SUMMED: "main_loop", WRITTEN: "epilogue", CHAIN_KEPT: "chains"}
ACTIVITY |= {STAGE_FULL: "next_stage", TILES_DONE: "next_stage"}
PARTS = ("start", "previous_kernel", "first_stage", "main_loop", "chains", "epilogue", "next_stage", "exit", "idle_at_end")


def entries_of(words, cta, role):
    """Returns [(event, cycles, nanoseconds)]: the events that one role of one CTA has recorded, and when."""
    begin = (cta * ROLES + role) * (1 + ENTRIES) * 2
    count = words[begin]
    if count > ENTRIES:
        raise RuntimeError(f"CTA {cta}, role {role}: {count} events, of which trace.cuh keeps {ENTRIES}")
    entries = [words[begin + 2 * n : begin + 2 * n + 2] for n in range(1, count + 1)]
    return [(second & 15, cycles, second >> 4) for cycles, second in entries]


def summarize(words):
    """Returns the row of a case. It has the mean cycles of each of PARTS, the whole kernel's cycles and time, and the clock. It also has
    `tiles`, the mean number of tiles of a CTA, where each split of a tile counts as one. `zeros` is the mean number of cycles in which one
    warp per CTA writes zeros to the tiles above C's diagonal. It includes a wait of about 2 us, in which the first operands are loaded.
    `words` is a copy of `traces` in trace.cuh."""
    ctas = [cta for cta in range(CTAS) if words[(cta * ROLES + PRODUCER) * (1 + ENTRIES) * 2]]
    producers = {cta: {event: (c, ns) for event, c, ns in entries_of(words, cta, PRODUCER)} for cta in ctas}
    begin = min(p[ENTERED][1] for p in producers.values())
    end = max(p[EXITED][1] for p in producers.values())
    clock = statistics.median((p[EXITED][0] - p[ENTERED][0]) / (p[EXITED][1] - p[ENTERED][1]) for p in producers.values())
    spent = {part: [] for part in PARTS}
    tiles, zeros = [], []
    for cta, producer in producers.items():
        spent["start"].append((producer[ENTERED][1] - begin) * clock)
        spent["previous_kernel"].append(producer[PREVIOUS_DONE][0] - producer[ENTERED][0])
        spent["idle_at_end"].append((end - producer[EXITED][1]) * clock)
        for warpgroup in (0, 1):
            entries = entries_of(words, cta, warpgroup)
            sums = dict.fromkeys(set(ACTIVITY.values()), 0)
            for (_, earlier, _), (event, later, _) in zip(entries, entries[1:], strict=False):
                sums[ACTIVITY[event]] += later - earlier
            for part, cycles in sums.items():
                spent[part].append(cycles)
            spent["first_stage"].append(entries[0][1] - producer[PREVIOUS_DONE][0])
            spent["exit"].append(producer[EXITED][0] - entries[-1][1])
            tiles.append(sum(event == WRITTEN for event, _, _ in entries))
        begun_and_written = [cycles for _, cycles, _ in entries_of(words, cta, ZEROS)]
        if len(begun_and_written) == 2:
            zeros.append(begun_and_written[1] - begun_and_written[0])
    result = {part: round(statistics.mean(cycles)) for part, cycles in spent.items()}
    result |= {"kernel_cycles": round((end - begin) * clock), "kernel_us": (end - begin) / 1e3, "clock_ghz": round(clock, 3)}
    return result | {"tiles": statistics.mean(tiles), "zeros": round(statistics.mean(zeros)) if zeros else 0}


class Tracer:
    """Loads a solution that is built with trace.cuh, and reads the traces that its kernels record."""

    def __init__(self, path):
        from benchmark import load  # lies beside this file

        self.model = load(path)
        library = ctypes.CDLL(self.model._EXTENSION.__file__)
        self.takers = [taker for part in range(64) if (taker := getattr(library, f"take_traces_{part}", None))]
        if not self.takers:
            raise RuntimeError("this build has no traces: NVCC_APPEND_FLAGS names trace.cuh in benchmark.py's suite `cycles`")

    def take(self):
        """Returns the traces since the last call of this method, as 64-bit words, or None if no traced kernel has run. Each object file of
        the build has its own traces. This method returns the traces of the object file whose kernel has run, and clears all traces."""
        torch.cuda.synchronize()
        traces = None
        for taker in self.takers:
            words = (ctypes.c_uint64 * WORDS)()
            if status := taker(words):
                raise RuntimeError(f"the traces cannot be read: CUDA error {status}")
            if any(words[(cta * ROLES + PRODUCER) * (1 + ENTRIES) * 2] for cta in range(CTAS)):
                traces = list(words)
        return traces


def measure(tracer, N, inputs, gradients):
    """Measures one case and returns its row. It makes four calls and summarizes the last one. Before each call it writes 256 MB, so that
    the L2 cache holds none of the operands."""
    draw = torch.rand if inputs == "uniform" else torch.randn
    A, B, G = (torch.tril(draw(N, N, device="cuda")) for _ in range(3))
    A.requires_grad_(gradients)
    B.requires_grad_(gradients)
    flushed = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for _ in range(4):
        C = tracer.model.tril_matmul(A, B) if gradients else None
        tracer.take()
        flushed.zero_()
        if gradients:
            torch.autograd.grad(C, (A, B), G)
        else:
            tracer.model.tril_matmul(A, B)
        words = tracer.take()
    if words is None:
        raise RuntimeError(f"N = {N}: the fp16x3 kernel has not run")
    return {"N": N, "inputs": inputs, "what": "gradients" if gradients else "forward", **summarize(words)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the solution, such as model_new.py")
    parser.add_argument("sizes", type=int, nargs="+", metavar="N", help="sizes of the products")
    options = parser.parse_args()
    tracer = Tracer(options.file)
    for N in options.sizes:
        for inputs, gradients in (("uniform", False), ("normal", False), ("uniform", True)):
            print(json.dumps(measure(tracer, N, inputs, gradients)), flush=True)


if __name__ == "__main__":
    main()

"""Draws the times of reference and solution against the size of the matrices. Needs matplotlib.

python examples/plot.py time.svg
python examples/plot.py time.png --solution theirs.py

At each size the script runs check.py, which judges the solution and times it beside the reference. The default sizes are 256 to 4096, or 64
to 1024 without a GPU. Options that the script does not know are handed on to check.py. After each size the script prints its progress and
the time so far.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "check.py")


def run_check(options, record):
    """Runs check.py with these options, prints its output, and returns its exit status. check.py writes its record to the temporary file
    `record`. The line of the output that names this file is not printed."""
    command = [sys.executable, CHECK, *options, "--json", record]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as check:
        for line in check.stdout:
            if line != f"wrote {record}\n":
                print(line, end="", flush=True)
    return check.returncode


def judged(size, options):
    """Runs check.py at one size and returns its record. Raises SystemExit if check.py ends with a status other than 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "record.json")
        status = run_check(["--size", str(size), "--forward-only", *options], file)
        if status != 0:
            sys.exit(f"plot.py: check.py ends with status {status} at --size {size}, and nothing is drawn")
        with open(file, encoding="utf-8") as f:
            return json.load(f)


def draw(records, path):
    from matplotlib.figure import Figure

    sizes = [record["options"]["size"] for record in records]  # not from dims, which begin with the batch for an inverse
    times = [record["timings"]["forward"] for record in records]
    figure = Figure(figsize=(7, 4.2))
    axes = figure.subplots()
    axes.loglog(sizes, [timing["reference_us"] for timing in times], marker="o", label="reference")
    axes.loglog(sizes, [timing["solution"]["us"] for timing in times], marker="o", label="solution")
    for size, timing in zip(sizes, times, strict=True):
        places = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        # check.py gives no ratio with --seed, or if the times are too noisy or too short.
        ratio_text = "at least " * timing["lower_bound"] + f"{timing['ratio']:.2f}x" if timing["ratio"] else ""
        axes.annotate(ratio_text, (size, timing["solution"]["us"]), **places)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.margins(0.1, 0.15)
    side = "K" if records[0]["problem"] == "transposed_a" else "N"  # the dimension that --size sets
    axes.set(xlabel=side, ylabel="µs", title=f"{records[0]['problem']}, {records[0]['options']['dtype']}, on {records[0]['device']}")
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=150)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the .png, .svg or .pdf file to write")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help="sizes (default: five, each twice the one before)")
    # These two options are declared only to be refused below. So parse_known_args also finds abbreviations and forms such as --json=FILE.
    parser.add_argument("--no-timing", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help=argparse.SUPPRESS)
    options, handed_on = parser.parse_known_args(argv)
    if not options.file.endswith((".png", ".svg", ".pdf")):
        parser.error(f"{options.file}: the name of a .png, .svg or .pdf file is accepted")
    if not os.access(os.path.dirname(options.file) or ".", os.W_OK):  # checked here, so that an error comes before the judging
        parser.error(f"{options.file}: the name of a file in an existing folder that can be written to is accepted")
    if options.no_timing or options.json is not None:
        parser.error("--no-timing leaves nothing to draw, and --json is this script's own; any other option of check.py is accepted")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("drawing needs matplotlib, which is not installed (pip install matplotlib)")
    if options.sizes is None:
        import torch

        options.sizes = [(256 if torch.cuda.is_available() else 64) << n for n in range(5)]
    start, records = time.monotonic(), []
    for number, size in enumerate(options.sizes, 1):
        print(f"size {number} of {len(options.sizes)}: {size}", flush=True)
        records.append(judged(size, handed_on))
        seconds = time.monotonic() - start
        print(f"size {number} of {len(options.sizes)} is judged, after {seconds:.0f} s", flush=True)
    draw(records, options.file)
    print(f"wrote {options.file}, after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()

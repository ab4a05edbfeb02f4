"""Judges each KernelBench reference as its own solution. check.py must not convict any of them.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/references.py KernelBench/KernelBench                      all of levels 1 to 3
    python benchmarks/references.py KernelBench/KernelBench --every 4 --seconds 500 --out references.json
    python benchmarks/references.py KernelBench/KernelBench --only level1/19 -- --no-timing --device cpu

Several judges (processes of check.py) run side by side, but only one at a time uses the GPU. A judge gives up the GPU while it starts a
process and lets this process load a file, so only these steps overlap. On an H200 a problem takes some 19 s, or 30 to 45 s if it is large.
A problem with tensors of more than 1 GB has the GPU's memory for itself, and these problems come last. A judge that runs out of memory
beside other judges is started once more, alone.

Each result goes to the file of --out at once. The file is a record in the format of benchmark.py. A later run with the same version of
check.py and judge/, the same options for check.py and the same device keeps the verdicts in this file, and judges only the other
references. Other results are dropped. A reference "could not be judged" if its judge ends with a status other than 0 and 1. A later run
judges it again.

Exit status: 0 if no reference is convicted, 1 if one is, 2 for bad arguments.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEVELS = ("level1", "level2", "level3")
LARGE = 1e9  # bytes; a problem whose tensors have more is judged alone
SECONDS_PER_SIZE = 10  # the longest time for finding the size of one problem
WORDS = {0: "holds", 1: "convicted", 2: "could not be judged"}


# ---- In the process of a judge ---------------------------------------------------------------------------------------


def judge(folder, is_alone, arguments):
    """Runs check.py with these arguments, and returns its exit status.

    `folder` has two file locks. The lock `gpu` is exclusive, and the judge releases it while a child process starts and loads its file. The
    judge holds the lock `memory` until it ends. It is exclusive if `is_alone` is true, so that no other judge runs, and otherwise shared.
    """
    sys.path.insert(0, str(ROOT))
    import check

    with open(folder / "gpu", "a") as gpu, open(folder / "memory", "a") as memory:
        fcntl.flock(memory, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        begin = check.begin

        def begin_beside_others(*begin_arguments):
            fcntl.flock(gpu, fcntl.LOCK_UN)
            try:
                return begin(*begin_arguments)
            finally:
                fcntl.flock(gpu, fcntl.LOCK_EX)

        check.begin = begin_beside_others
        return check.main(arguments)


# ---- In the process that describes the machine and the problems ------------------------------------------------------


def describe(device, paths):
    """Prints what a record says of the machine, and then one line per reference. The line has the bytes of the reference's inputs,
    parameters, buffers and result. It is 0 if the reference does not run on the device "meta", which computes nothing, within
    SECONDS_PER_SIZE."""
    import benchmark
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    judge_file = types.SimpleNamespace(on_gpu=on_gpu, solution_file=ROOT / "check.py", trials=None, seed=None)
    print(json.dumps(benchmark.environment(judge_file)), flush=True)

    def size(value):
        if isinstance(value, torch.Tensor):
            return value.nbytes
        return sum(map(size, value)) if isinstance(value, (list, tuple)) else 0

    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    for path in paths:
        total_bytes, namespace = 0, {"__name__": "reference"}
        signal.alarm(SECONDS_PER_SIZE)
        with contextlib.suppress(Exception), contextlib.redirect_stdout(sys.stderr), torch.device("meta"), torch.no_grad():
            exec(compile(Path(path).read_text(encoding="utf-8-sig"), path, "exec"), namespace)
            inputs, module = namespace["get_inputs"](), namespace["Model"](*namespace["get_init_inputs"]())
            total_bytes = size(inputs) + size(list(module.state_dict().values())) + size(module(*inputs))
        signal.alarm(0)
        print(total_bytes, flush=True)


# ---- In the main process: a series of judges, one for each reference --------------------------------------------------


def problems(folder, every, only):
    """Returns {name: file} of the problems. A name is level1/19, for example. If `only` has a name without a file, the file is None.

    Without `only`, the order mixes levels and numbers. So a series that is cut short has judged some problems of each level.
    """
    candidates = []
    for level in LEVELS:
        for path in (folder / level).glob("*.py"):
            number = path.name.partition("_")[0]
            if number.isdigit():
                candidates.append((int(number) % 16, int(number), level, path))
    files = {f"{level}/{number}": path for _, number, level, path in sorted(candidates) if only or number % every == 0}
    return {name: files.get(name) for name in only} if only else files


def outcome(status, output, record):
    """Returns the row of a judge that has ended with `status`: its verdict, the last line that it printed, and the times of a call.
    `record` is the JSON record of check.py. If there is none, the row has no times, but the last 30 lines that the judge printed."""
    lines = [line for line in output.splitlines() if line.strip()] or [""]
    row = {"verdict": WORDS.get(status, WORDS[2]), "sentence": lines[-1][-1000:], "ratio": None, "seconds_of_the_judge": None}
    if record:
        row |= {"ratio": record.get("ratio"), "sentence": record.get("sentence"), "seconds_of_the_judge": record.get("seconds")}
        times = record.get("timings", {}).get("forward", {})
        row["us"] = {contender: timing["us"] for contender, timing in times.items() if isinstance(timing, dict)}
    else:
        row["printed"] = lines[-30:]
    return row


class Series:
    """Starts the judges and records their results."""

    def __init__(self, options):
        self.options, self.end = options, time.monotonic() + options.seconds
        text = b"".join(path.read_bytes() for path in (ROOT / "check.py", *sorted((ROOT / "judge").glob("*.py"))))
        self.digest = hashlib.sha256(text).hexdigest()[:16]
        self.rows, self.about, self.names = {}, {}, set()
        if options.out and options.out.is_file():
            rows, required = json.loads(options.out.read_text())["rows"], {"judge_sha256": self.digest, "options": options.given}
            matching_rows = [row for row in rows if all(row.get(key) == value for key, value in required.items())]
            self.rows = {row["name"]: row for row in matching_rows if row["verdict"] in (WORDS[0], WORDS[1])}

    def record(self, name, row):
        row |= {"judge_sha256": self.digest, "options": self.options.given, "device": self.about.get("device")}
        self.rows[name] = {"name": name, **row}
        ratio_text = f", {row['ratio']:.2f}x" if isinstance(row["ratio"], float) else ""
        sentence_text = "" if row["verdict"] == WORDS[0] else f": {row['sentence']}"
        print(f"{name:<12} {row['verdict']}{ratio_text}, {row['seconds']:.0f} s{sentence_text}", flush=True)
        if self.options.out:
            unfinished = self.options.out.with_suffix(".part")
            failures = [row["name"] for row in self.rows.values() if row["verdict"] == WORDS[1]]
            content = {"complete": self.names <= self.rows.keys(), "failures": failures, "rows": list(self.rows.values())}
            unfinished.write_text(json.dumps({"suite": "references", **self.about, **content}, indent=1) + "\n")
            unfinished.replace(self.options.out)

    def run(self, files):
        """Judges the problems that have no result yet, until the series has used up its time."""
        self.names = {*files}
        unjudged = [name for name in files if name not in self.rows]
        alone = self.large(unjudged, files)
        device = self.about.get("device")  # None if there was no time to find out
        if device and any(row["device"] != device for row in self.rows.values()):  # an earlier run was on another machine
            self.rows = {}
            return self.run(files)
        waiting, running = sorted(unjudged, key=alone.__contains__), {}
        with tempfile.TemporaryDirectory() as folder:
            try:
                while (waiting or running) and time.monotonic() < self.end:
                    while waiting and len(running) < self.options.side_by_side:
                        name = waiting.pop(0)
                        running[name] = self.start(Path(folder), name, files[name], name in alone)
                    time.sleep(0.05)
                    for name in [name for name, (process, _, _) in running.items() if process.poll() is not None]:
                        process, start, base = running.pop(name)
                        output, record = base.with_suffix(".txt").read_text(errors="replace"), None
                        with contextlib.suppress(OSError, ValueError):
                            record = json.loads(base.with_suffix(".json").read_text())
                        row = outcome(process.returncode, output, record)
                        if row["verdict"] == WORDS[2] and "memory" in row["sentence"] and name not in alone:
                            alone.add(name)
                            waiting.append(name)
                        else:
                            self.record(name, {**row, "seconds": round(time.monotonic() - start, 1)})
            finally:
                for process, _, _ in running.values():  # judges that still run at the end; a judge's child processes end with it
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def large(self, names, files):
        """Stores the description of the machine in self.about. Returns the problems whose tensors have more than LARGE bytes."""
        device = "cpu" if {"cpu", "--device=cpu"} & {*self.options.given} else "cuda"
        command = [sys.executable, __file__, "--describe", device, *(str(files[name]) for name in names)]
        remaining_seconds = max(0.0, self.end - time.monotonic())
        try:
            output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=remaining_seconds).stdout
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
        about, *sizes = output.splitlines() or [b"{}"]
        self.about = json.loads(about)
        return {name for name, size in zip(names, sizes, strict=False) if int(size) > LARGE}

    def start(self, folder, name, path, is_alone):
        """Starts a judge. Returns its process, the time of the start, and the path of its files without their suffixes."""
        base = folder / name.replace("/", "_")
        solution = base.with_suffix(".py")
        solution.write_text(path.read_text(encoding="utf-8-sig") + "\n\nclass ModelNew(Model):\n    pass\n")
        command = [sys.executable, __file__, "--judge", str(folder), str(int(is_alone))]
        command += ["--reference", str(path), "--solution", str(solution)]
        command += ["--json", str(base.with_suffix(".json")), *self.options.given]
        with open(base.with_suffix(".txt"), "w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        return process, time.monotonic(), base

    def table(self, files):
        words = [*WORDS.values(), "not reached"]
        print("\n" + "".join(f"{word:>21}" for word in ("level", *words)))
        for level in LEVELS:
            level_names = [name for name in files if name.startswith(level)]
            counts = Counter(self.rows[name]["verdict"] if name in self.rows else words[-1] for name in level_names)
            if level_names:
                print(f"{level:>21}" + "".join(f"{counts[word]:>21}" for word in words))


def parse(arguments):
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, epilog="What follows -- goes to check.py.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("folder", type=Path, help="KernelBench's folder of level1, level2 and level3")
    add("--every", type=int, default=1, metavar="N", help="judge only problems whose number is a multiple of N (default 1: all)")
    add("--only", nargs="+", metavar="NAME", help="judge only these problems, such as level1/19; --every is ignored")
    add("--seconds", type=float, default=1e6, help="seconds of the whole series; judges that still run then are ended")
    add("--side-by-side", type=int, default=4, metavar="N", help="how many judges run at a time (default 4)")
    add("--out", type=Path, metavar="FILE", help="the JSON file for the results; a later run keeps what it holds")
    options = parser.parse_args(arguments[:separator])
    options.given = arguments[separator + 1 :]
    if min(options.every, options.side_by_side) < 1:
        parser.error("arguments --every and --side-by-side: whole numbers from 1 on are accepted")
    files = problems(options.folder, options.every, options.only)
    missing = [name for name, path in files.items() if path is None]
    if missing or not files:
        what = ", ".join(missing) or "level1/*.py"
        parser.error(f"argument folder: {options.folder} has no {what}; KernelBench's folder KernelBench is accepted")
    return options, files


def main(arguments):
    options, files = parse(arguments)
    series = Series(options)
    series.run(files)
    series.table(files)
    return int(any(series.rows[name]["verdict"] == WORDS[1] for name in files if name in series.rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--judge"]:
        sys.exit(judge(Path(sys.argv[2]), sys.argv[3] == "1", sys.argv[4:]))
    sys.exit(describe(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--describe"] else main(sys.argv[1:]))

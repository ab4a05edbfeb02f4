"""Writes model_new.py's C++ as files, for clangd, for a debugger, and to compile by hand.

python tests/write_sources.py DIR

DIR/kernels.cu has all kernels and DIR/binding.cpp the binding. Their #line directives name model_new.py and its lines, so that a message of
a compiler, a profiler or a debugger does. DIR/compile_flags.txt is for clangd.
"""

import argparse
import shlex
from pathlib import Path

from helpers import load


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder, which is made if it is missing")
    parser.add_argument("--arch", default="sm_90a", help="the target of the commands that are printed (default: %(default)s)")
    arguments = parser.parse_args()

    from torch.utils import cpp_extension

    model, folder = load(), arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.cu").write_text("\n".join(model._add_lines(model._CUDA_SOURCES)))
    binding = [model._CUDA_TYPES, model._CUDA_LAUNCHERS, model._CPP_BINDING]
    (folder / "binding.cpp").write_text("\n".join(model._add_lines(binding)))
    toolkit = model._find_toolkit(cpp_extension.CUDA_HOME or "/usr/local/cuda")
    nvcc, headers = toolkit[:2] if toolkit else ("nvcc", [])
    flags = ["-xcuda", f"--cuda-gpu-arch={arguments.arch}", "-std=c++17"]
    flags += [f"-isystem{path}" for path in (*headers, *cpp_extension.include_paths())]
    (folder / "compile_flags.txt").write_text("\n".join([*flags, ""]))

    target = f"-gencode=arch={arguments.arch.replace('sm', 'compute')},code={arguments.arch}"
    command = f"{nvcc} -std=c++17 {shlex.join(model._NVCC_FLAGS)} {target}"
    print(f"Wrote kernels.cu, binding.cpp and compile_flags.txt to {folder}.")
    print("To compile all kernels, or part 2 alone, which takes a fraction of the time:")
    print(f"  {command} -cubin -o kernels.cubin {shlex.quote(str(folder / 'kernels.cu'))}")
    print(f"  {command} -DPART=2 -diag-suppress=177 -cubin -o part.cubin {shlex.quote(str(folder / 'kernels.cu'))}")


if __name__ == "__main__":
    main()

"""Compiles, for versions.sh, the C++ binding against torch's headers or the device code with NVRTC.

The headers and NVRTC are those of the Python environment that runs this file.

python tests/versions.py binding                    compiles the binding
python tests/versions.py syntax                     checks only the syntax of the binding, in half of the time
python tests/versions.py device [ARCHITECTURE ...]  compiles the device code
"""

import ast
import ctypes
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "model_new.py"


def strings():
    """Returns the constants that model_new.py assigns at its top level, by name. The file is only parsed, so torch is not needed."""
    tree = ast.parse(SOURCE.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    return {node.targets[0].id: node.value.value for node in assigned}


def packages(*patterns):
    return [path for pattern in patterns for path in glob.glob(os.path.join(sysconfig.get_path("purelib"), "nvidia", *pattern.split("/")))]


def cuda_headers():
    """Returns the include folders of pip's CUDA packages or, if these have no folder crt, of the toolkit.

    cuda_runtime_api.h includes headers of the folder crt, which is a part of nvcc. A CUDA build of torch brings cuda_runtime_api.h, but not
    this folder.
    """
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    for found in (packages("cu*/include", "cuda_runtime/include", "cuda_nvcc/include", "cuda_crt/include"), [toolkit]):
        if any(os.path.exists(os.path.join(folder, "crt", "host_defines.h")) for folder in found):
            return found
    return []


def binding(*options):
    """Compiles main.cpp as torch's load_inline makes it, with the C++ standard that this torch uses, and prints the outcome.

    The compiler makes an object file, or does what `options` say. Returns whether it succeeded without a message.
    """
    import inspect

    from torch.utils import cpp_extension

    (standard,) = set(re.findall(r"-std=c\+\+\d\d", inspect.getsource(cpp_extension._write_ninja_file_to_build_library)))
    parts = strings()
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    headers = [
        *cpp_extension.include_paths(),
        *cuda_headers(),
        sysconfig.get_path("include"),
    ]
    with tempfile.TemporaryDirectory() as room:
        Path(room, "main.cpp").write_text("\n".join(parts[name] for name in ("_CUDA_TYPES", "_CUDA_LAUNCHERS", "_CPP_BINDING")))
        # A torch for CPUs lacks this header, but has all other headers that are needed. An empty file replaces it.
        missing = Path(room, "c10", "cuda", "impl", "cuda_cmake_macros.h")
        missing.parent.mkdir(parents=True)
        missing.touch()
        headers.append(room)
        command = [compiler, standard, "-O2", "-fPIC", "-Wall", "-Wno-unused-function", "-DTORCH_EXTENSION_NAME=binding"]
        command += ["-DTORCH_API_INCLUDE_EXTENSION_H", *(f"-isystem{path}" for path in headers), "-c", "main.cpp", "-o", "main.o", *options]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=room, capture_output=True, text=True)
    said = done.stdout + done.stderr
    print(
        f"binding, {standard.removeprefix('-std=')}: status {done.returncode}, {time.perf_counter() - start:.0f} s\n{said[:4000]}",
        flush=True,
    )
    return done.returncode == 0 and not said


# ---- Device code. ----------------------------------------------------------------------------------------------------

# NVRTC has no C++ standard library, so headers of CCCL replace it. Code that launches kernels runs on the host and is left out, because
# NVRTC compiles device code only.
LIBRARY = {
    # CCCL lacks stable_sort. Only host code calls it, so this definition does nothing.
    "algorithm": "#include <cuda/std/__algorithm_>\nnamespace cuda::std { template <class I, class F> void stable_sort(I, I, F) {} }",
    "array": "#include <cuda/std/array>",
    "atomic": "",
    "cstddef": "#include <cuda/std/cstddef>",
    "cstdint": "#include <cuda/std/cstdint>",
    "numeric": "#include <cuda/std/numeric>",
    "initializer_list": "#include <cuda/std/initializer_list>",
    "random": "",
    "type_traits": "#include <cuda/std/type_traits>",
    "variant": "",
    "utility": "#include <cuda/std/utility>",
    "cuda_runtime_api.h": "",
    "stdint.h": "#include <cuda/std/cstdint>",
    "stdlib.h": "#include <cuda/std/cstddef>",
}
# The headers of the CUDA runtime, which are left out, declare the functions by which a kernel waits for the kernel before it and starts the
# kernel after it (programmatic dependent launch).
RUNTIME = "__device__ void cudaGridDependencySynchronize(); __device__ void cudaTriggerProgrammaticLaunchCompletion();\n"
LAUNCHES = r"\bcudaError_t\b|\bcudaLaunch\w+|\bstd::(atomic|random_device|vector|all_of|copy|variant)\b|\bLaunch\b|\blaunch_\w+[<(]"
LAUNCHES += r"|\boperands_to_copy\("


def device_part(source, launching):
    """Returns `source` without host code that launches kernels.

    Top-level paragraphs without device code are left out if they match LAUNCHES. If `launching` is true, `source` is a section that
    launches kernels, and all its top-level paragraphs without device code are left out.
    """
    kept, paragraph, depth = [], [], 0

    def end():
        text = "\n".join(paragraph)
        if re.search(r"__global__|__device__|DEVICE\b", text) or not (launching or re.search(LAUNCHES, re.sub("//.*", "", text))):
            kept.append(text)
        paragraph.clear()

    for line in source.splitlines():
        code = re.sub(r"//.*", "", line)
        if depth == 0 and (re.match(r"\s*(#|namespace .*\{\s*$|\}\s*$)", code) or not line.strip()):
            end()
            kept.append(line)
            continue
        paragraph.append(line)
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
    end()
    return re.sub(r"__host__ (?!__device__)", "", "\n".join(kept))


def instances(architecture):
    """Returns the kernels, with their template arguments, that ptxas saw when registers.json was made.

    The launches that would instantiate these templates are left out of the source, so device() asks NVRTC for each instance by name.
    """
    record = json.loads((SOURCE.parent / "benchmarks" / "results" / "registers.json").read_text())
    rows = [row["kernel"] for row in record["rows"] if row["architecture"] == architecture.replace("compute", "sm")]
    names = subprocess.run(["c++filt", *rows], capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", name).removeprefix("void ") for name in names]


def check(nvrtc, status):
    if status:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(nvrtc.nvrtcGetErrorString(status).decode())


def device(*architectures):
    """Compiles every kernel to PTX with the NVRTC that pip has installed. Returns whether all architectures succeed."""
    nvrtc = ctypes.CDLL(packages("cuda_nvrtc/lib/libnvrtc.so.12")[0])
    parts = strings()
    joined = SOURCE.read_text().partition("\n_CUDA_SECTIONS = [")[2].partition("\n_NVCC_FLAGS = [")[0]
    order = [name for name in dict.fromkeys(re.findall(r"_CUDA_\w+", joined)) if name in parts]
    order = [name for name in order if "LAUNCH" not in name or "__global__" in parts[name]]
    source = (RUNTIME + "\n".join(device_part(parts[name], "LAUNCH" in name) for name in order)).encode()
    include = [f"-I{path}".encode() for path in packages("cuda_runtime/include", "cuda_cccl/include")]
    texts = [f"#pragma once\n{text}\nnamespace cuda::std {{}} namespace std {{ using namespace cuda::std; }}" for text in LIBRARY.values()]
    names = (ctypes.c_char_p * len(LIBRARY))(*(name.encode() for name in LIBRARY))
    bodies = (ctypes.c_char_p * len(LIBRARY))(*(text.encode() for text in texts))
    right = True
    for architecture in architectures or ("compute_80", "compute_90a", "compute_100", "compute_120"):
        program, start = ctypes.c_void_p(), time.perf_counter()
        check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"device.cu", len(LIBRARY), bodies, names))
        kernels = instances(architecture)
        for name in kernels:
            check(nvrtc, nvrtc.nvrtcAddNameExpression(program, name.encode()))
        options = [f"-arch={architecture}".encode(), b"-std=c++17", b"-default-device", b"-diag-suppress=177", *include]
        status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        seconds = time.perf_counter() - start
        print(f"device code, {architecture}: {len(kernels)} kernels, status {status}, {seconds:.0f} s", flush=True)
        print(log.value.decode()[:6000], end="", flush=True)
        right = right and status == 0 and len(kernels) >= 10
    return right


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    sys.exit(0 if {"binding": binding, "syntax": functools.partial(binding, "-fsyntax-only"), "device": device}[what](*arguments) else 1)

"""The judge: is a solution right, is it honest, and how fast is it?

The judge runs the solution in a process of its own, with 35 to 470 calls on inputs of many magnitudes and structures.
Up to about 100 of the calls repeat earlier ones. A built-in problem is judged at many sizes and with gradients, and
`any`, the problem of a --reference file, at the file's sizes. Each element of each result is compared with a result in
float64 or better, if the reference runs in float64. Then the judge times the solution and the reference in turns, and
judges the timed results too. The last line is the verdict: `all holds: ...` with the times and their ratio, or `WRONG:
...`. docs/judge.md has the details. The solution has restricted rights, but runs as you: it can read your files.

    python check.py                                    judges model_new.py against reference_model.py, beside this file
    python check.py --solution theirs.py               anybody's KernelBench-style file
    python check.py --reference r.py --solution s.py   a solution of any KernelBench problem, whose reference is r.py
    python check.py --size 256 --no-timing             judges values alone; takes 10 to 40 s on two cores

Exit status: 0 all holds; 1 the solution is convicted; 2 there is no verdict (for example a bad option, no such file or
GPU, not enough memory, or a reference that does not compute the problem); 130 Ctrl-C; 141 a closed pipe.
"""

import argparse
import ast
import collections
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import itertools
import json
import math
import mmap
import os
import random
import re
import select
import signal
import socket
import sys
import tempfile
import time
import timeit
import traceback
import types
import warnings
from pathlib import Path


def end_with_status_2(kind, error, trace):
    """Prints an uncaught error, such as a missing torch, and ends with status 2. Status 1 would mean a conviction.

    After KeyboardInterrupt, Python ends the process as usual.
    """
    sys.__excepthook__(kind, error, trace)
    if kind is not KeyboardInterrupt:
        os._exit(2)


if __name__ == "__main__":
    sys.excepthook = end_with_status_2

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)  # Python omits this folder where PYTHONSAFEPATH is set
if __name__ == "__main__" and not os.path.isdir(os.path.join(FOLDER, "judge")):
    print(f"check.py: the folder judge/ is missing in {FOLDER}; copy it there too, check.py needs it", file=sys.stderr)
    sys.exit(2)

from judge.sandbox import EXHAUSTED, LEFT_OPEN, Sandbox  # noqa: E402

# With --child, this process is a child of the judge: it runs the reference or the solution (see section 2). Before it
# imports torch, while it has a single thread, it gives up the rights that no solution needs. The kernel restricts each
# thread separately, and later threads inherit the restrictions.
CHILD = json.loads(sys.argv[2]) if __name__ == "__main__" and sys.argv[1:2] == ["--child"] else None
GUARD = Sandbox.enter(CHILD["sandbox"]) if CHILD else {}

# This silences two warnings of torch. One says that NumPy is missing, but NumPy is not needed. The other one is about
# deterministic algorithms, which Child.prepare() turns on deliberately on a CPU.
warnings.filterwarnings("ignore", message=".*(NumPy|deterministic)")
import torch  # noqa: E402

from judge.measures import PRODUCTS, Moment, duration, fingerprint, first_difference, spread, undisturbed  # noqa: E402
from judge.modules import constants, draw, seed_all, with_constants  # noqa: E402
from judge.players import PLAYERS  # noqa: E402
from judge.problems import MODES, PROBLEMS, CannotRun, name_of, room, setting  # noqa: E402
from judge.settings import Generators, changes, settings  # noqa: E402
from judge.values import join, split  # noqa: E402

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}


class Wrong(Exception):
    """Reports that the solution fails and nothing more is judged. The arguments are the finding's name and text."""


# ==== 1. Memory that the judge shares with its children ====


def bytes_of(dtype, shape):
    """Returns the bytes of a tensor whose dtype has this name."""
    return math.prod(shape) * getattr(torch, dtype).itemsize


def is_scarce(device):
    """Returns whether less than a quarter of a GPU's memory is free.

    If it is, the judge and its children give back cached memory, because some KernelBench problems have inputs of 8 GB.
    """
    free, total = torch.cuda.mem_get_info(device)
    return free < total / 4


class GpuMemory:
    """Shares allocations of CUDA memory between processes by 64-byte IPC handles of the CUDA driver API."""

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    def __init__(self, device):
        self.device, self.driver, self.opened = device, ctypes.CDLL("libcuda.so.1"), {}

    def call(self, name, *arguments):
        if status := getattr(self.driver, name)(*arguments):
            if status == 2:  # the value of CUDA_ERROR_OUT_OF_MEMORY
                raise torch.OutOfMemoryError(f"not enough memory on {self.device}: {name} fails with CUDA error 2")
            raise OSError(f"{name} fails with CUDA error {status}: nothing can be shared between processes")

    def attribute(self, number):
        self.call("cuDeviceGetAttribute", ctypes.byref(value := ctypes.c_int()), number, self.device.index)
        return value.value

    def range(self, address):
        """Returns the base and the size in bytes of the allocation that contains an address."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def export(self, address):
        """Returns the IPC handle of the allocation that contains an address, and the address's offset in it."""
        base, handle = self.range(address)[0], self.Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle.bytes).hex(), address - base

    def open(self, handle):
        """Opens another process's allocation and returns all of it as a uint8 tensor."""
        if handle not in self.opened:
            address, received = ctypes.c_uint64(), self.Handle.from_buffer_copy(bytes.fromhex(handle))
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), received, 1)
            self.opened[handle] = address.value
        return self.tensor(*self.range(self.opened[handle]))

    def tensor(self, address, size):
        """Returns `size` bytes of GPU memory as a uint8 tensor whose storage has exactly that size."""
        interface = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
        return torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=interface), device=self.device)

    def close(self):
        while self.opened:
            self.call("cuIpcCloseMemHandle", ctypes.c_uint64(self.opened.popitem()[1]))

    def release(self):
        """Closes all opened allocations and empties torch's cache, if memory is scarce.

        An allocation that its owner frees stays allocated while another process has it open. open() opens a closed
        allocation again when it is needed.
        """
        if is_scarce(self.device):
            torch.cuda.synchronize(self.device)
            self.close()
            torch.cuda.empty_cache()


class Slab:
    """Holds memory into which the judge writes inputs, and from which a child reads them.

    `handle` tells a child where the memory is. It is a file descriptor on a CPU. On a GPU it is an IPC handle with an
    offset.
    """

    def __init__(self, device, size, handle=None):
        self.device, self.size, self.handle = device, size, handle
        self.gpu = GpuMemory(device) if device.type == "cuda" else None
        if not self.gpu:
            if handle is None:
                self.handle = os.memfd_create("inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                os.ftruncate(self.handle, size)
                # The seals fix the size of the file. Otherwise a child could shrink it and make the judge crash.
                fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.map = mmap.mmap(self.handle, size)
            self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        elif handle:
            self.bytes = self.gpu.open(handle[0])[handle[1] : handle[1] + size]
        else:
            self.bytes = torch.empty(size, dtype=torch.uint8, device=device)
            self.handle = self.gpu.export(self.bytes.data_ptr())

    def close(self):
        if self.gpu:
            self.gpu.close()
        else:
            os.close(self.handle)

    def view(self, dtype, shape, offset):
        return self.bytes[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def tensor(self, dtype, shape, offset):
        """Returns an input in the slab as a user would have it: not a view, with a storage of exactly its size."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype, device=self.device)
        if self.gpu:
            flat = self.gpu.tensor(self.bytes.data_ptr() + offset, size)
        else:
            flat = torch.frombuffer(self.map, dtype=torch.uint8, count=size, offset=offset)
        return flat.view(dtype).view(shape).data


# ==== 2. The child ====
#
# A child is a process in which the reference or the solution runs. The code of this section answers the judge's
# requests there. A solution can read and change everything in its process. So the judge reads the results out of the
# memory of this process by itself, and has a clock of its own. Some checks, such as the comparison of settings, can be
# made only in this process. A solution that changes the code of this section could evade these checks.


def describe(error):
    """Returns the text of an error and, if the traceback has a line outside check.py, the last such file and line.

    A PermissionError also tells where files can be written.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != os.path.abspath(__file__)]
    description = f"{type(error).__name__}: {error}"
    if isinstance(error, PermissionError):
        description += "; files can be written in HOME, TMPDIR, TORCH_EXTENSIONS_DIR and /dev/shm alone"
    return description + (f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else "")


def is_exhausted(error, cuda):
    """Returns whether an error means that memory, threads, descriptors or disk space ran out.

    Such an error says nothing about the file that is executed. `cuda` says whether the run uses a GPU, whose memory
    may run out too.
    """
    if isinstance(error, OSError):
        return error.errno in EXHAUSTED
    if isinstance(error, torch.OutOfMemoryError):
        return cuda
    words = ["can't start new thread", "DefaultCPUAllocator"]
    words += ["out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation"] if cuda else []
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


# Each key is a pattern for the text of an error. Its value names what the machine lacks if the pattern matches. In the
# value, \1 stands for the pattern's first group.
MISSING = {
    r"No module named '?([\w.]+)": r"the package \1",
    r"CUDA_HOME environment variable is not set|nvcc'?: (command )?(not found|No such file)|No such file.*nvcc'": (
        "the CUDA toolkit (nvcc)"
    ),
    r"Ninja is required|ninja: (command )?not found|No such file.*ninja'": "the package ninja",
    r"(c\+\+|g\+\+|gcc|clang): (command )?not found|No such file.*(c\+\+|gcc|clang)'": "a C++ compiler",
    r"Failed to find C compiler": "a C++ compiler",
    r"fatal error: (\S+): No such file": r"the header \1",
    r"cannot find -l(\S+)|lib(\S+)\.so\S*: cannot open shared object": r"the library \1\2",
    r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|0 active drivers": "a GPU that torch sees",
    r"CUDA driver version is insufficient": "a GPU that torch sees",
    r"no kernel image|kernel image is invalid": "a GPU of the kind that it is made for",
    r"Unsupported gpu architecture|compute capability": "a GPU of the kind that it is made for",
}
# The pattern matches errors in which a file says that it needs tensors on a GPU.
MISSING_ON_A_CPU = re.compile(
    r"\b(must|should|needs?|expect\w*|requires?|only)\b.*\b(cuda|gpu)\b"
    r"|\b(cuda|gpu)\b.*\b(required|expected|needed|only)\b"
    r"|is_cuda|cpu tensor|'CPU' backend",
    re.IGNORECASE,
)


def what_is_missing(error, device):
    """Returns what this machine lacks according to an error, or an empty string for any other error."""
    for _ in range(8):  # the loop visits the error, then the errors that caused it
        if error is None:
            break
        text = str(error)
        if isinstance(error, AssertionError):  # an assertion often has no text, so its source line is used too
            text += " ".join(frame.line or "" for frame in traceback.extract_tb(error.__traceback__)[-1:])
        for pattern, name in MISSING.items():
            if match := re.search(pattern, text):
                return match.expand(name)
        if isinstance(error, ImportError) and "undefined symbol" not in text:
            return "what it imports"
        if device.type == "cpu" and MISSING_ON_A_CPU.search(text):
            return "inputs on a GPU (--device cuda)"
        error = error.__cause__ or error.__context__
    return ""


def span(shape, strides):
    """Returns how many elements lie in memory from the first to the last element of a tensor that is not empty."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def end_of(X):
    """Returns the address behind the last element of a strided tensor. The elements of an expanded one share memory."""
    return X.data_ptr() + (span(X.shape, X.stride()) * X.element_size() if X.numel() else 0)


class Child:
    """Answers the judge's requests. A request names a method and its arguments, and the answer is a dict."""

    def start(self, device, size, handle, who, kind, **of_this_kind):
        """Sets up what all requests use: the slab, and the player for this kind of problem (see judge/players.py)."""
        self.device, self.cuda, self.is_reference = torch.device(device), device.startswith("cuda"), who == "reference"
        self.player = PLAYERS[kind](self.device, self.is_reference, **of_this_kind)
        self.module = sys.modules["judged"] = types.ModuleType("judged")  # all files of this child run in it
        # calls() computes with this tensor to wake the process after a stop. On a GPU, the tensor's allocation also
        # creates the CUDA context, without which the slab cannot be opened.
        self.wake_tensor = torch.ones(8, 8, device=self.device, requires_grad=True)
        torch.get_device_module(self.device).set_device(self.device)
        self.slab = Slab(self.device, size, handle)
        # `prepared_settings` has the settings at the end of the last prepare(). It is None until the first prepare()
        # after construct(). `grad_mode_changes` lists the changes of the gradient mode that the calls since the last
        # prepare() have left.
        self.prepared_settings, self.grad_mode_changes = None, []
        # `blocks` is memory from torch's allocator. `in_blocks` holds the inputs that lie in these blocks, and
        # `in_slab` holds the inputs that lie in the slab.
        self.blocks, self.in_blocks, self.in_slab = {}, {}, {}
        self.sent = []  # tensors that the judge copies out of this process's memory
        return {"guard": GUARD}

    def operand(self, leaf, shape, offset, slot, copy, dtype):
        """Returns the tensor of an input. It lies in the slab, or in memory from torch's allocator if `offset` is None.

        `leaf` is "Parameter" or "tensor" if the operand requires a gradient, and empty otherwise. Choices.places_of()
        explains the other arguments. If a tensor with this place, shape, dtype, `leaf` and `copy` was returned before,
        and forget() has not dropped it, the same tensor object is returned again. Its version counter is then higher,
        as that of a weight is after an optimizer's step.
        """
        key = leaf, dtype, *shape, copy, slot if offset is None else offset
        inputs = self.in_blocks if offset is None else self.in_slab
        if key in inputs:
            torch.autograd.graph.increment_version(inputs[key])
            return inputs[key]
        if offset is None:
            block_key = slot, dtype, *shape
            if block_key not in self.blocks:
                self.blocks[block_key] = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            X = self.blocks[block_key].data
        else:
            X = self.slab.tensor(getattr(torch, dtype), shape, offset)
        inputs[key] = torch.nn.Parameter(X) if leaf == "Parameter" else X.requires_grad_() if leaf else X
        return inputs[key]

    def forget(self, calls):
        """Drops memory blocks that the inputs of these calls do not use, and the tensors in these blocks.

        Also drops all tensor objects in the slab if there are more than 64.
        """
        places = [place for call in calls for place in call["inputs"]]
        used = {(slot, dtype, *shape) for shape, offset, slot, _, dtype in places if offset is None}
        self.blocks = {key: block for key, block in self.blocks.items() if key in used}
        self.in_blocks = {key: X for key, X in self.in_blocks.items() if (key[-1], name_of(X.dtype), *X.shape) in used}
        if len(self.in_slab) > 64:
            self.in_slab.clear()

    def release(self):
        """Gives back the free memory that torch's allocator keeps on a GPU, if memory is scarce.

        The judge or the other child can need it.
        """
        if self.cuda and is_scarce(self.device):
            torch.cuda.empty_cache()

    def locate(self, X):
        """Returns where the judge finds a tensor of this process: a base, an offset in bytes, and the strides.

        The base is "shared" for the slab. For other memory it is an IPC handle on a GPU, and an address on a CPU.
        """
        if not X.numel():
            return [0, 0, list(X.stride())]
        start = self.slab.bytes.data_ptr()
        if start <= X.data_ptr() < start + self.slab.size:
            return ["shared", X.data_ptr() - start, list(X.stride())]
        return [*(self.slab.gpu.export(X.data_ptr()) if self.cuda else (X.data_ptr(), 0)), list(X.stride())]

    def send(self, tensors):
        """Copies tensors for the judge, and returns the dtype, the shape and the location of each copy.

        The copies stay in memory until the next call of send() or prepare().
        """
        for X in tensors:
            if X.layout != torch.strided or X.is_quantized or X.is_floating_point() and X.dtype.itemsize == 1:
                raise TypeError(f"a tensor of {X.dtype} and {X.layout} is given, which cannot be compared")
        self.sent = [X.detach().to(self.device).clone(memory_format=torch.contiguous_format) for X in tensors]
        return [[name_of(X.dtype), list(X.shape), self.locate(X)] for X in self.sent]

    def execute(self, path, text):
        """Executes the text of a file by exec(), as KernelBench does.

        A temporary copy of the file has the text, because Triton and torch.jit.script read the source of functions.
        """
        copy = os.path.join(tempfile.mkdtemp(), os.path.basename(path))
        Path(copy).write_text(text, encoding="utf-8")
        self.module.__file__ = copy
        exec(compile(text, copy, "exec"), vars(self.module))

    def expose(self, path, text, found, classes):
        """Makes the reference's Model visible to the solution.

        KernelBench also executes both files in one namespace.
        """
        self.execute(path, text)
        names = vars(self.module)
        names["Model"] = names[found]  # `found` is the class that the reference's child has found
        for name in classes:  # the solution has to define one of these classes itself
            names.pop(name, None)
        return {}

    def load(self, path, text, classes, tf32):
        """Executes the file and looks for the first of these classes that it defines."""
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        settings_before = settings(self.cuda)
        self.execute(path, text)
        if self.is_reference:
            # The judge has already opened this process's memory. From now on, no process without capabilities can
            # open it.
            Sandbox.close_memory()
        class_name = next((name for name in classes if name in vars(self.module)), None)
        self.make = vars(self.module).get(class_name)
        return {"class": class_name, "changed": changes(settings_before, settings(self.cuda))}

    def construct(self, seed, skeleton=None, tensors=(), state=None):
        """Constructs the module of the file.

        The reference's child takes the arguments from the file's get_init_inputs(), if the file has this function. It
        answers with the arguments, split into tensors and a skeleton (see judge/values.py), and with the tensors of the
        module's state_dict. For the six built-in products it answers with the arguments alone. The solution's child
        gets what the reference's child has answered: the skeleton, and the places in the slab of the arguments' tensors
        (`tensors`) and of the tensors of the state_dict by name (`state`).
        """
        self.player.reset()
        settings_before = settings(self.cuda)
        if self.is_reference:
            seed_all(seed)
            argument_tensors, skeleton = split(list(getattr(self.module, "get_init_inputs", list)()))
            copies = [X.clone() for X in argument_tensors]
        else:
            argument_tensors = []
            for shape, offset, _, _, dtype in tensors:
                argument_tensors.append(self.slab.view(getattr(torch, dtype), shape, offset).clone())
        views = {name: self.slab.view(getattr(torch, place[-1]), *place[:2]) for name, place in (state or {}).items()}
        answer = self.player.construct(self.make, join(skeleton, argument_tensors), seed, state and views)
        self.player.reset()
        self.prepared_settings, answer["changed"] = None, changes(settings_before, settings(self.cuda))
        self.generators = Generators()
        if self.is_reference:
            module_state = self.player.state()
            tensor_descriptions = self.send([*copies, *module_state.values()])
            answer |= {
                "skeleton": skeleton,
                "tensors": tensor_descriptions[: len(copies)],
                "state": dict(zip(module_state, tensor_descriptions[len(copies) :], strict=True)),
            }
        return answer

    def draw(self, seed):
        """Calls the reference's get_inputs() and sends the inputs that it returns."""
        tensors, skeleton = split(draw(self.module.get_inputs, seed, self.device))
        return {"skeleton": skeleton, "tensors": self.send(tensors)}

    def study(self):
        answer = self.player.study()
        self.release()
        return answer

    def settings_left_changed(self):
        """Returns the settings that the calls since the last prepare() have left changed."""
        changed = self.grad_mode_changes + ([] if self.player.seeds_itself else self.generators.repeats())
        self.grad_mode_changes = []
        self.player.reset()
        if self.prepared_settings is not None:
            changed += changes(self.prepared_settings, settings(self.cuda))
        return {"changed": changed}

    def prepare(self, calls, timed, training, deterministic, inference):
        """Prepares the next calls.

        Returns the locations of those inputs that are not in the slab, and the settings that earlier calls have left
        changed. On a GPU, the method also fills free memory with NaN, so that elements which the solution never writes
        are detected.
        """
        changed = self.settings_left_changed()["changed"]
        self.requested, self.timed, self.answers, self.parts, self.sent, bases = calls, timed, [], [], [], {}
        self.forget(calls)
        self.release()
        self.player.prepare(calls, self.operand, timed, training, inference)
        self.operands = self.player.operands
        for call, operands in zip(calls, self.operands, strict=True):
            for X, (_, offset, slot, _, _) in zip(operands, call["inputs"], strict=True):
                if offset is None:
                    bases[slot] = self.slab.gpu.export(X.data_ptr()) if self.cuda and X.numel() else (X.data_ptr(), 0)
        self.traits = [[self.player.traits(X) for X in operands] for operands in self.operands]
        self.marks = [torch.cuda.Event(enable_timing=True) if self.cuda else Moment() for _ in range(len(calls) + 1)]
        if self.cuda:
            make_filled = functools.partial(torch.full, fill_value=255, dtype=torch.uint8, device=self.device)
            expected = [kind for call in calls for kind in call["expected"] or ()]
            sizes = [bytes_of(dtype, shape) for _, dtype, shape in expected]
            largest = max(sizes, default=0)
            # The solution may allocate workspaces and small tensors too. So blocks of other sizes are also filled: a
            # little more than the largest result, powers of two, and twice the largest result if memory allows it.
            sizes += [largest * 9 // 8, *[1 << p for p in range(9, 21)] * 2]
            sizes += [] if is_scarce(self.device) else [2 * largest]
            blocks = [make_filled((size,)) for size in sizes]
            for segment in torch.cuda.memory_snapshot():
                blocks += [make_filled((b["size"],)) for b in segment["blocks"] if b["state"] == "inactive"]
        else:
            # On a CPU, freed memory often comes back from the system as zeros, so filling it has no effect. Instead, a
            # random half of the untimed requests uses torch's deterministic mode, which fills new memory with NaN.
            torch._C._set_deterministic_algorithms(deterministic, warn_only=True)
        self.player.reset()
        self.prepared_settings = settings(self.cuda)
        return {"own": bases, "changed": changed}

    def calls(self, seeds=()):
        """Runs the calls and returns where their results lie. A GPU may still be computing them.

        `seeds` has two seeds for each call of problem `any`: for the generators and for the cotangents. A solution that
        knew them earlier could draw numbers before the clock starts.
        """
        for call, (seed, cotangent_seed) in zip(self.requested, seeds, strict=False):
            call |= {"seed": seed, "gradients": cotangent_seed if call["gradients"] else None}
        with torch.enable_grad():
            # The process was stopped before this request. The loop wakes the threads and the driver, and warms caches.
            for _ in range(2):
                torch.autograd.grad((self.wake_tensor * self.wake_tensor).sum(), self.wake_tensor)
            self.marks[0].record()
            for number, end in enumerate(self.marks[1:]):
                try:
                    self.answers.append(self.player.call(number))
                except BaseException as error:  # this includes SystemExit: the solution may not end the child
                    self.answers.append(error)
                end.record()
            if torch.is_grad_enabled() != (mode_before := self.player.has_gradients):
                self.grad_mode_changes.append(f"torch.set_grad_enabled (was {mode_before}, is {not mode_before})")
        self.parts = [self.part(number, answer) for number, answer in enumerate(self.answers)]
        return {"calls": [self.point(number, answer) for number, answer in enumerate(self.answers)]}

    def part(self, number, answer):
        """Returns the outline of an answer and its tensors by name, as the player's parts() does.

        Returns None if the call has raised an error. If parts() raises an error, this error is returned.
        """
        try:
            return None if isinstance(answer, BaseException) else self.player.parts(number, answer)
        except BaseException as error:
            return error

    def point(self, number, answer):
        """Returns where the results of one call lie.

        The judge's clock is still running. So this method checks nothing, and inspect() checks the results later.
        """
        kinds = self.requested[number]["expected"]
        try:
            results = self.parts[number][1]
            names = results if kinds is None else [name for name, _, _ in kinds]
            return {"results": [self.locate(results[name]) for name in names]}
        except BaseException:
            return {}

    def inspect(self):
        """Returns what is wrong with the results of each call, or describes the results.

        The judge has already read the solution's results, so nothing can change them now.
        """
        self.release()
        return {"calls": [self.inspect_call(number, answer) for number, answer in enumerate(self.answers)]}

    def times(self):
        return {"us": [start.elapsed_time(end) * 1e3 for start, end in itertools.pairwise(self.marks)]}

    def inspect_call(self, number, answer):
        """Returns what is wrong with the results of one call, or their names, dtypes and shapes if nothing is wrong."""
        call, operands = self.requested[number], self.operands[number]
        if is_exhausted(answer, self.cuda):
            return {"no_memory": str(answer)}
        if isinstance(answer, BaseException):
            who = "reference" if self.is_reference else "solution"
            return {"wrong": f"the {who} raises {describe(answer)}", "missing": what_is_missing(answer, self.device)}
        for X, traits_before in zip(operands, self.traits[number], strict=True):
            traits_now = self.player.traits(X)
            if changed := [trait for trait, value in traits_before.items() if traits_now[trait] != value]:
                return {"wrong": f"an input is not what it was, whatever its values are: its {', its '.join(changed)}"}
        if isinstance(self.parts[number], BaseException):
            return {"wrong": f"the result is of no kind that can be compared: {self.parts[number]}"}
        outline, results = self.parts[number]
        if results is None:
            return {"none": True}
        kinds = call["expected"]
        # `kinds` is None if the judge does not know the names, dtypes and shapes of the results yet. It learns them
        # from the reference's answer.
        if kinds is None:
            kinds = [[name, name_of(X.dtype), list(X.shape)] for name, X in results.items()]
        wrong, aliases = self.compare_kinds(call, kinds, results, operands)
        answer = {"kinds": kinds, "outline": outline, "aliases": aliases}
        return answer | ({"wrong": wrong} if wrong else {"returns_tensor": self.player.returns_tensor(number)})

    def compare_kinds(self, call, kinds, results, operands):
        """Compares the results of a call with `kinds`, the names, dtypes and shapes that they should have.

        Returns what is wrong, or an empty string, and a list of names. The listed results lie in the memory of an input
        or of a tensor that the module keeps.
        """
        # The reference may return an input, or a tensor that its module keeps. `aliases` lists such results, because
        # the judge must not overwrite their memory.
        owners, aliases = [*operands, *self.player.kept()], []
        for name, dtype, shape in kinds:
            X = results.get(name)
            if type(X) is not torch.Tensor:
                return f"{name} is a {type(X).__module__}.{type(X).__qualname__}, not a plain torch.Tensor", []
            if X.is_floating_point() and X.dtype.itemsize == 1:
                return f"{name}'s dtype is {X.dtype}, which the judge cannot compare", []
            found = {"shape": list(X.shape), "dtype": str(X.dtype), "device": X.device, "layout": X.layout}
            wanted = {"shape": shape, "dtype": f"torch.{dtype}", "device": self.device, "layout": torch.strided}
            for trait, value in found.items():
                if value != wanted[trait]:
                    return f"{name}'s {trait} is {value}, and should be {wanted[trait]}", []
            if any(Y.data_ptr() <= X.data_ptr() < end_of(Y) for Y in owners):
                aliases.append(name)
                if not self.is_reference and name not in call["aliases"]:
                    return f"{name} shares memory with an input or with a tensor that the module keeps", []
        return "", aliases


def serve(channel):
    """Answers each request with one line of JSON. An empty line follows when the request is done, also by the GPU."""
    # A shell starts background jobs with SIGINT ignored. Python's default handler is set here, so that the comparison
    # of settings detects a file that ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    child = Child()
    with open(channel) as todo, open(os.dup(channel), "w") as done:
        for line in todo:
            request = json.loads(line)
            try:
                print(json.dumps(getattr(child, request.pop("do"))(**request)), file=done, flush=True)
                torch.get_device_module(child.device).synchronize(child.device)
                # Flushing sends what the buffers of Python and C still hold, so that the judge sees it in this request.
                print(end="", flush=True)
                ctypes.CDLL(None).fflush(None)
            except BaseException as error:  # this includes SystemExit
                answer = {"raises": describe(error), "missing": what_is_missing(error, child.device)}
                answer["exhausted"] = is_exhausted(error, child.cuda)
                print(json.dumps(answer), file=done)
            print(file=done, flush=True)


# ==== 3. The contender ====
#
# A Contender is the judge's side of a child.

ANSWER_BYTES = 16 << 20  # the largest size of one answer, in bytes
RELAYED_LINES = 200  # the most lines of a child's output that the judge passes on
STARTING = 300.0  # the time limit in seconds for a child to start, mostly for `import torch`
# A request to the reference may take this many times --timeout, and so may loading or constructing a solution. The
# calls of a solution may take --timeout longer than the reference's, even if the first call compiles code. The
# reference makes no calls in inference_mode, so there the solution's calls may take this many times --timeout, plus
# --timeout.
LOADING = 10
QUIETING = 20.0  # the time limit in seconds for a GPU to become idle
CLEARING = 0.3  # the time limit in seconds for a GPU's memory to become as fast as it was at its best
DOING = {
    "start": "it starts",
    "expose": "it loads the reference",
    "load": "it is loaded",
    "construct": "it is loaded",
    "calls": "it answers a request",
    "inspect": "it answers a request",
}


def tell(line):
    """Prints a line on standard error. A failure to write, such as a full disk, does not affect the verdict."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)


def printable(text, max_length=400):
    """Shortens a text to `max_length` characters, and replaces characters that could control a terminal by spaces."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:max_length]


def cannot_be_judged(path, missing, error):
    """Returns the exception for a solution that needs something this machine lacks. Such a need is no wrong result."""
    name, missing, error = printable(path), printable(missing, 80), printable(error)
    message = f"it could not be judged, because this machine does not have {missing}: it raises {error}"
    return CannotRun(f"--solution {name}: {message}")


def has_run_out(error):
    """Returns whether an error of the judge means that the judge lacks memory or another resource.

    Such an error does not convict the solution.
    """
    return isinstance(error, torch.OutOfMemoryError) or isinstance(error, OSError) and error.errno in EXHAUSTED


def keep_within(ends_by):
    """Ends a run that takes too long. `ends_by` is a time of time.perf_counter()."""
    if time.perf_counter() > ends_by:
        raise CannotRun("the run takes longer than --within allows: the machine is busy, or --size is large")


class Contender(contextlib.ExitStack):
    """The solution or the reference: its file, and the child that runs the file.

    The child leads a process group, which contains its descendants. Once the child has started, the whole group is
    stopped except while the child answers a request.
    """

    def __init__(self, who, path, slab, sandbox, text="", ends_by=math.inf):
        """Starts the child. `ends_by` is the time of time.perf_counter() at which the whole run has to end."""
        super().__init__()
        self.who, self.path, self.slab, self.gpu, self.ends_by = who, path, slab, slab.gpu, ends_by
        self.relayed, self.printed = 0, b""
        pairs = [map(self.enter_context, socket.socketpair()) for _ in range(3)]
        (self.channel, *self.prints), (peer, out, err) = zip(*pairs, strict=True)
        streams = {"stdout": out, "stderr": err, "pass_fds": [peer.fileno()] + ([] if slab.gpu else [slab.handle])}
        self.process = sandbox.start(os.path.abspath(__file__), {"channel": peer.fileno()}, text, **streams)
        self.callback(self.process.end)
        peer.close()  # the judge's end of the channel then reports when the child has ended

    def stop(self):
        """Stops the child, waits until it stands still, and passes on what it has printed."""
        if not self.process.stop():
            raise self.fault("'s process does not stand still when it is stopped")
        self.relay()

    def examine_schedule(self):
        """Raises CannotRun if another process has changed how the child is scheduled.

        The measured times would prove nothing then.
        """
        if change := self.process.change_of_schedule():
            raise CannotRun(f"another process has changed how the {self.who}'s process is scheduled: {change}")

    def fault(self, predicate):
        """Returns the exception for a fault of this contender.

        The exception is Wrong, which convicts the solution, if the child has begun to load the solution's file. It is
        CannotRun for the reference, and for the solution's child before that.
        """
        message = f"the {self.who}{predicate}"
        return Wrong("running", message) if self.judged else CannotRun(f"--{self.who} {self.path}: {message}")

    def ask(self, do, limit, **arguments):
        """Sends a request and returns the child's answer, which has to come within `limit` seconds.

        The child runs until it has answered, and then gets the signal to stop. ask() also waits until the child stands
        still, except after "calls" on a GPU. The caller has to call stop() in that case.
        """
        data, answer, deadline, doing = b"", None, time.perf_counter() + limit, DOING.get(do, "it prepares")
        self.judged = self.who == "solution" and do not in ("start", "expose")
        if self.gpu and do != "calls":  # during "calls" a clock runs, and release() takes time
            self.gpu.release()
        self.process.resume()
        try:
            self.channel.settimeout(limit)
            # An error is ignored here. A child that does not read the request does not answer either, and the loop
            # below reports the missing answer.
            with contextlib.suppress(OSError):
                self.channel.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            # recv() must not block. select() also reports a channel that has only out-of-band bytes, which recv() does
            # not return.
            self.channel.settimeout(0)
            # A complete answer counts, even if the deadline passed while the judge itself was stopped.
            while not data.endswith(b"\n\n"):
                keep_within(self.ends_by)
                if time.perf_counter() > deadline:
                    raise self.fault(f" hangs: no answer within {limit:.3g} s (see --timeout) while {doing}")
                # The output sockets are read too, because a child that prints blocks when its socket is full.
                ready, piece = select.select([self.channel, *self.prints], [], [], 0.1)[0], b""
                with contextlib.suppress(OSError):  # a channel on which recv() fails counts as closed
                    piece = self.channel.recv(1 << 20) if self.channel in ready else b""
                data += piece
                if len(data) > ANSWER_BYTES:
                    raise self.fault(f"'s process answers with more than {ANSWER_BYTES >> 20} MB")
                # The child sends its answer before its GPU has finished, and an empty line once the GPU has finished.
                # So the answer is parsed while the GPU still works.
                if piece.endswith(b"\n") and (answer is None or piece.strip()):
                    answer = dict(json.loads(data.rstrip().split(b"\n")[-1]))
                if not piece and (self.channel in ready or self.process.has_ended()):
                    code = self.process.status(5)
                    self.relay()  # passes on what the child printed before it ended
                    if self.process.was_ended_for_memory():
                        message = f"ended the {self.who}'s process while {doing}"
                        raise CannotRun(f"the system had no memory left and {message}")
                    if code is None:
                        ending = "closes its channel"
                    elif code < 0:
                        ending = f"is killed by signal {-code}, {signal.strsignal(-code)}"
                    else:
                        ending = f"ends with status {code}"
                    raise self.fault(f"'s process {ending} while {doing}")
                if not piece:
                    self.relay()
        except (ValueError, TypeError, RecursionError):
            raise self.fault(f"'s process answers the judge with something of its own: {printable(data, 80)}") from None
        finally:
            self.process.pause()
        # On a CPU the judge's clock runs until the whole group stands still. The answer alone does not prove that: a
        # process made by vfork can send it while other threads of the child still work.
        if not self.gpu or do != "calls":
            self.stop()
        if "raises" in answer:
            if answer.get("exhausted"):
                message = printable(answer["raises"])
                raise CannotRun(f"the {self.who}'s process lacks memory or another resource: {message}")
            if self.judged and do == "load" and answer.get("missing"):
                raise cannot_be_judged(self.path, answer["missing"], answer["raises"])
            raise self.fault(f" raises {printable(answer['raises'])}")
        return answer

    def relay(self):
        """Passes the child's output on to standard error. `printed` keeps the start of its standard output."""
        for file in self.prints:
            text = b""
            with contextlib.suppress(OSError):  # the error means that there is no output
                text = file.recv(1 << 20, socket.MSG_DONTWAIT)
            if file is self.prints[0]:
                self.printed = self.printed or text
            for line in text.splitlines()[: RELAYED_LINES - self.relayed]:
                self.relayed += 1
                tell(f"{self.who}: {printable(line.decode(errors='replace'))}")

    def examine_settings(self, answer):
        """Convicts a solution that leaves settings changed."""
        changed = answer.get("changed")
        if self.who == "solution" and changed:
            description = "; ".join(map(str, changed[:3])) if isinstance(changed, list) else str(changed)
            hint = " (--tf32 allows TF32)" if "TF32" in description or "float32_matmul" in description else ""
            raise Wrong("settings", f"the solution changes them for its caller: {printable(description)}{hint}")

    def place_of(self, place, prepare_answer, dtype):
        """Returns where an input lies.

        This is a tensor if the judge can access the memory, in the slab or on a GPU. Otherwise it is an address in the
        child's memory. `place` is one of Choices.places_of(). `prepare_answer` is the child's answer to "prepare",
        which tells where the inputs outside the slab lie.
        """
        shape, offset, slot, _, _ = place
        if offset is not None:
            return self.slab.view(dtype, shape, offset)
        try:
            base, offset = prepare_answer["own"][str(slot)]
            if self.gpu:
                return self.gpu.open(base)[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            if type(base) is not int:
                raise TypeError(f"an address is {type(base).__name__}")
            return base
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
            if has_run_out(error):
                raise
            raise self.fault("'s process does not say where its inputs lie") from None

    def put(self, X, place, prepare_answer):
        """Writes an input into the child's memory or the slab."""
        tensor_or_address = self.place_of(place, prepare_answer, X.dtype)
        if isinstance(tensor_or_address, torch.Tensor):
            tensor_or_address.copy_(X)
            return
        if not X.numel():
            return
        data = bytearray(math.prod(place[0]) * X.dtype.itemsize)
        torch.frombuffer(data, dtype=X.dtype).view(place[0]).copy_(X)
        with self.in_the_childs_memory():
            self.process.write(tensor_or_address, data)

    def input_at(self, place, prepare_answer, dtype):
        """Returns an input as it is now, possibly changed by the child."""
        tensor_or_address = self.place_of(place, prepare_answer, dtype)
        if isinstance(tensor_or_address, torch.Tensor):
            return tensor_or_address
        if not math.prod(place[0]):
            return torch.empty(place[0], dtype=dtype)
        with self.in_the_childs_memory():
            data = self.process.read(tensor_or_address, math.prod(place[0]) * dtype.itemsize)
        return torch.frombuffer(data, dtype=dtype).view(place[0])

    @contextlib.contextmanager
    def in_the_childs_memory(self):
        try:
            yield
        except (OSError, OverflowError):
            raise self.fault("'s process has no memory where it says that an input lies") from None

    def region(self, location, shape, dtype):
        """Returns a uint8 tensor with a result's memory, and either a bytearray or None.

        `location` tells where the result lies, in the form in which Child.locate() returns it.

        On a CPU, memory outside the slab is copied into a bytearray, and the tensor is a view of this copy. A caller
        that changes the tensor has to write the bytearray back into the child. In all other cases the tensor is the
        result's memory itself, and the second item is None.
        """
        base, offset, strides = location
        if not all(type(number) is int for number in (offset, *strides)):
            raise TypeError("an offset or a stride is no whole number")
        elements = span(shape, strides)
        # A result may be a strided part of a larger buffer. The limit keeps the judge from reading too much.
        if min([offset, *strides]) < 0 or elements > (64 if self.gpu else 8) * math.prod(shape) + (1 << 22):
            raise ValueError(f"offset {offset}, strides {strides}")
        size = elements * dtype.itemsize
        if base == "shared":
            return self.slab.bytes[offset : offset + size], None
        if self.gpu:
            return self.gpu.open(base)[offset : offset + size], None
        copy = self.process.read(base, size)
        return torch.frombuffer(copy, dtype=torch.uint8), copy

    def fetch(self, location, shape, dtype):
        """Copies a result out of the child's memory."""
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype, device=self.slab.device)
        flat, _ = self.region(location, shape, dtype)
        return torch.as_strided(flat.view(dtype), shape, location[2]).clone(memory_format=torch.contiguous_format)

    def spoil(self, location, shape, dtype):
        """Overwrites a result with NaN, or with 1 if its dtype has no NaN, after the result has been fetched.

        Then the judge notices if a later call returns this memory without writing it.
        """
        # An expanded result is left as it is, because its elements share memory.
        if not math.prod(shape) or min(location[2], default=1) == 0:
            return
        flat, copy = self.region(location, shape, dtype)
        filler = math.nan if dtype.is_floating_point or dtype.is_complex else 1
        torch.as_strided(flat.view(dtype), shape, location[2]).fill_(filler)
        if copy is not None:
            self.process.write(location[0], copy)


# ==== 4. The judgement: values ====

EXAMPLES = 3  # the table prints at most this many of the failing calls of one kind of input
# The first results of a call that is made twice are kept for comparison. If a result has more bytes than this number,
# only its fingerprint is kept.
MOST_KEPT = 1 << 28
ALL_MISSING = 20  # judging stops after at least this many calls if all fail because the machine lacks something


class Report:
    """Collects what a run finds out, and keeps it for --json.

    check() prints at once, and table() prints the judged calls by kind of input. Progress goes to standard error.
    """

    def __init__(self, problem):
        self.problem, self.start_time = problem, time.perf_counter()
        # `rows` has one entry per call that Judgement.values() judges, and one for the failing call that
        # Judgement.find_the_simplest_failure() may add. `checks` has one entry per call of check(). `timings` has one
        # entry per timed mode.
        self.rows, self.checks, self.timings = [], [], {}
        self.findings = {}  # the first finding of each kind, by name

    def progress(self, activity):
        tell(f"check.py: {activity} ({time.perf_counter() - self.start_time:.0f} s)")

    def check(self, name, verdict, detail):
        self.checks.append({"name": name, "verdict": verdict, "detail": detail})
        if verdict == "WRONG":
            self.findings.setdefault(name, detail)
        print(f"{verdict:<6} {name}: {detail}")

    def row(self, call, wrong):
        """Stores one call's data for the table. `wrong` describes what is wrong with the call's results, or is None."""
        self.rows.append({"input": call.row_name, "size": call.label, "detail": wrong, **call.row})

    def table(self):
        if not self.rows:
            return
        format_line = "{:<36} {:>5}  {:>14}  {:>9}  {:>9}  {:>9}  {}".format
        print("\n" + format_line("input", "calls", "largest", "reference", "solution", "allowed", "verdict"))
        for name in (n + suffix for suffix in MODES.values() for n in self.problem.input_order):
            if rows := [row for row in self.rows if row["input"] == name]:
                largest = max((row["size"] for row in rows), key=lambda size: math.prod(map(int, size.split("x"))))
                worst = max(rows, key=lambda row: row.get("of_bound", -1.0))
                numbers = [f"{worst[k]:.1e}" if k in worst else "-" for k in ("reference_error", "error", "bound")]
                failures = [f"{row['size']}: {row['detail']}" for row in rows if row["detail"]]
                unjudged = sum(row.get("unjudged", 0) for row in rows)
                verdict = f"WRONG in {len(failures)}" if failures else "ok"
                verdict += f" ({unjudged} elements may overflow)" if unjudged else ""
                ties = sum(row.get("ties", 0) for row in rows)
                verdict += f" ({ties} elements at ties)" if ties else ""
                print(format_line(name, len(rows), largest, *numbers, verdict))
                for detail in failures[:EXAMPLES]:
                    print(f"    {detail}")
                if len(failures) > EXAMPLES:
                    print(f"    ... and {len(failures) - EXAMPLES} more")
        print(f"{self.problem.footnote}\n")


class Run:
    """One run of the judge: its options, its problem, its contenders and their memory.

    choices     Choices: chooses at random, by the seed.
    requests    Requests: sends calls to a contender and takes the results.
    judgement   Judgement: compares results with the truth.
    report      Report: prints findings and keeps them.
    """

    random = property(lambda self: self.choices.random)

    def __init__(self, options):
        self.options = options
        self.device, self.cuda, self.tf32 = options.device, options.device.type == "cuda", options.tf32
        self.reference = self.solution = None  # begin() sets these to the contenders
        self.seed = random.SystemRandom().getrandbits(63) if options.seed is None else options.seed
        self.numbers, self.gradients = itertools.count(1), False
        self.choices, self.requests, self.judgement = Choices(self), Requests(self), Judgement(self)
        self.seed_of_constructors, self.reference_limit = self.random.getrandbits(63), LOADING * options.timeout
        self.problem = PROBLEMS[options.problem](self)
        self.report = Report(self.problem)

    def share(self):
        """Allocates one slab per contender.

        The contenders share no slab. Otherwise a stopped contender could still change the inputs of the other one,
        because the kernel and a GPU can write to memory for a stopped thread.
        """
        self.references_slab, self.slab = self.new_slab(), self.new_slab()
        # On a CPU, this sum starts the threads of the judge's torch. Later a solution may have used up all threads that
        # the system allows.
        self.slab.bytes[: 1 << 20].float().sum()
        self.requests.quiet = self.requests.probe()
        if self.cuda:
            total = torch.cuda.mem_get_info(self.device)[1]
            self.requests.meter = torch.zeros(total // 512, device=self.device)

    def new_slab(self):
        """Allocates a slab for the calls of one request.

        It has room for MOST_CALLS timed calls, as far as 2 GiB on a CPU or a tenth of a GPU's free memory allow. The
        largest call of a product always fits, with its dC. For `any`, a call with inputs in float64 always fits, and so
        do the tensors that construct() reads.
        """
        call_bytes, least_bytes = self.problem.slab_bytes()
        most_bytes = int(0.1 * torch.cuda.mem_get_info(self.device)[0]) if self.cuda else 2 << 30
        size = max(call_bytes, least_bytes, min(MOST_CALLS[self.device.type] * call_bytes, most_bytes), 64 << 20)
        # The size is a multiple of 2 MiB. The judge's torch then places no other tensor in memory that a child opens.
        return Slab(self.device, -(-size >> 21) << 21)

    @property
    def ends_by(self):
        """The time of time.perf_counter() at which the run has to end."""
        return self.report.start_time + self.options.within


class Choices:
    """Chooses at random how calls are grouped and where their inputs lie. All choices follow from the run's seed."""

    def __init__(self, run):
        self.run, self.uses = run, itertools.count()

    @property
    def random(self):
        """Returns a new generator for each use, seeded by a hash. No generator reveals anything about another one."""
        return random.Random(hashlib.sha256(f"{self.run.seed}/{next(self.uses)}".encode()).digest())

    def places_of(self, tensors, slab_alone=False):
        """Chooses where the child finds each tensor: [shape, offset, slot, copy, dtype].

        `offset` is the place in the slab in bytes, or None for memory from the child's torch allocator. Each tensor
        lies in the slab with probability 1/2, or certainly with `slab_alone`. `slot` is the tensor's index in
        `tensors`, and identifies memory from the allocator. If lay_out() gives two operands the same memory, they are
        one tensor object if their `copy` is the same, and two objects otherwise.
        """
        order = list(range(len(tensors)))
        # A user's loop often has its inputs at the same addresses in each iteration. So about half of the requests lay
        # the inputs out in order, and the other requests lay them out in random order.
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        sizes = (room(tensors[n].dtype, tensors[n].shape) for n in order)
        offsets = dict(zip(order, itertools.accumulate(sizes, initial=0), strict=False))
        chosen = [offsets[n] if slab_alone else self.random.choice((offsets[n], None)) for n in range(len(tensors))]
        return [[list(X.shape), chosen[n], n, 0, name_of(X.dtype)] for n, X in enumerate(tensors)]

    def groups(self, calls):
        """Yields lists of calls, one list per request. A list has at most 1, 4 or 8 calls, at random.

        All calls of a list have the same key, which the problem's key() returns. If a list has more than one call,
        their inputs take at most half of the slab's size. This limits the memory for their results and truths, too. A
        larger call forms a list of its own.
        """
        key_of, most_bytes = self.run.problem.key, self.run.slab.size // 2
        for key in dict.fromkeys(map(key_of, calls)):
            waiting = [call for call in calls if key_of(call) == key]
            while waiting:
                group, most_calls = [waiting.pop()], self.random.choice((1, 1, 4, 8))
                while waiting and len(group) < most_calls:
                    if sum(call.nbytes for call in (*group, waiting[-1])) > most_bytes:
                        break
                    group.append(waiting.pop())
                yield group

    def in_pieces(self, calls):
        """Yields calls in groups of at most 8, whose inputs and results each fill at most a quarter of the slab's size.

        The inputs may have been converted to float64 (see Anything.perturbed()), which takes up to four times the
        bytes. So may the results, of which the judge has copies. A single large call forms a group of its own.
        """
        while calls:
            result_bytes = sum(bytes_of(dtype, shape) for _, dtype, shape in calls[0].expected or ())
            count = max(1, min(8, self.run.slab.size // 4 // max(1, calls[0].nbytes, result_bytes)))
            yield calls[:count]
            calls = calls[count:]


class Requests:
    """Sends calls to a contender, writes their inputs into its memory, and takes the results out of it."""

    # The time in seconds that probe() takes on an idle GPU. Run.share() measures it before any line of the solution has
    # run.
    quiet = 0.0
    # A float32 tensor with 1/128 of a GPU's memory, which wait_for_fast_memory() reads. Run.share() sets it.
    meter = None
    fastest = math.inf  # the shortest time of a read of `meter` so far, in milliseconds
    has_been_scarce = False  # whether is_scarce() was true before any request so far

    def __init__(self, run):
        self.run = run
        self.wait = torch.get_device_module(run.device).synchronize

    def probe(self):
        """Returns the median time in seconds of a one-byte copy, which shows whether the GPU is idle."""
        return sorted(timeit.repeat(lambda: (self.run.slab.bytes[:1].clone(), self.wait()), number=1, repeat=9))[4]

    def wait_for_a_quiet_gpu(self):
        """Waits until the GPU is idle.

        Otherwise work that the solution has left running could compute its results before the clock starts.
        """
        deadline = time.perf_counter() + QUIETING
        while all(self.probe() > 10 * self.quiet + 2e-4 for _ in range(3)):
            if time.perf_counter() > deadline:
                device = self.run.device
                raise CannotRun(f"{device} is at work while no call is answered: by the solution, or by others")

    def wait_for_fast_memory(self):
        """Waits until the GPU reads memory about as fast as at its best in this run, but at most CLEARING seconds.

        An H200 read memory 15 to 20 % more slowly at first after a process had given back 1 GB or more. The judge and
        its children give back memory when it is scarce. Without this wait, only the reference was slowed down by that:
        a copy of a reference with an input of 8.6 GB got a ratio of 1.14. With the wait, the ratio was 1.01. Where
        memory is not scarce, the judge does not wait, because the first calls after a long sleep of a process are slow.
        """
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        deadline, is_slow = time.perf_counter() + CLEARING, True
        while is_slow and time.perf_counter() < deadline:
            start.record()
            self.meter.sum()
            end.record()
            self.wait()
            milliseconds = start.elapsed_time(end)
            self.fastest = min(self.fastest, milliseconds)
            is_slow = milliseconds > 1.04 * self.fastest

    def reserve(self, kinds):
        """Allocates memory on the GPU for the results of one call, and leaves it in the cache of torch's allocator.

        take() gets its memory from this cache. Otherwise it would allocate memory while the judge's clock runs, which
        took 3 ms for a result of 6 GB (H200).
        """
        _ = [torch.empty(shape, dtype=getattr(torch, dtype), device=self.run.device) for _, dtype, shape in kinds or ()]

    def send(self, contender, calls, expected=0.0, timed=False, inference=False):
        """Requests calls with the same key. Returns a list with one entry per call, and the seconds that they took.

        An entry is a dict of results by name, a text that says what is wrong, or None if there is no result in float64.
        `expected` is added to the time limit. It is usually the time in seconds that the reference takes.
        """
        run = self.run
        keep_within(run.ends_by)
        is_reference = contender is run.reference
        limit = run.options.timeout * (LOADING if is_reference else 1) + expected
        operands = [call.given(is_reference) for call in calls]
        tensors = [X for call_operands in operands for X in call_operands]
        inputs = self.lay_out(calls, operands, is_reference)
        call_descriptions = []
        for call, places in zip(calls, inputs, strict=True):
            call_descriptions.append(call.describe(is_reference, timed) | {"inputs": places})
        modes = {"timed": timed, "training": run.random.random() < 0.5, "inference": inference}
        modes["deterministic"] = not timed and run.random.random() < 0.5
        prepare_answer = contender.ask("prepare", limit, calls=call_descriptions, **modes)
        contender.examine_settings(prepare_answer)
        # The inputs are written last. A child that saw them earlier could compute before the clock starts.
        self.write(contender, tensors, [place for places in inputs for place in places], prepare_answer)
        self.wait()
        if is_reference:
            contender.examine_schedule()
        self.has_been_scarce = self.has_been_scarce or run.cuda and is_scarce(run.device)
        waits_for_memory = self.has_been_scarce and timed
        if waits_for_memory:
            self.reserve(call_descriptions[0]["expected"])
            self.wait_for_fast_memory()
        if waits_for_memory or run.cuda and not is_reference:
            self.wait_for_a_quiet_gpu()
        timed_answer = self.time(contender, calls, call_descriptions, prepare_answer, limit)
        call_answers, results, inputs_after, seconds = timed_answer
        self.inspect(contender, calls, call_descriptions, call_answers, results, limit)
        most_opened = 2 * (len(tensors) + sum(len(found) for found in results.values() if isinstance(found, dict)))
        # A few opened allocations are kept, because later results may lie in them again.
        if run.cuda and len(contender.gpu.opened) > most_opened:
            contender.gpu.close()
        in_place = [] if is_reference else [call for call in calls if call.works_in_place and not call.after]
        for piece in run.choices.in_pieces(in_place):  # the reference says what becomes of the inputs
            self.send(run.reference, piece)
        for n, (call, call_operands, places) in enumerate(zip(calls, operands, inputs, strict=True)):
            wrong = self.changed_input(contender, call, call_operands, places, prepare_answer, inputs_after[n])
            results[n] = wrong or results[n]
            if is_reference and isinstance(results[n], str) and not call.is_optional:
                raise contender.fault(f" is wrong{' in a timed call (see --no-timing)' if timed else ''}: {results[n]}")
        return [results[n] for n in range(len(calls))], seconds

    def lay_out(self, calls, operands, is_reference):
        """Chooses the place of each input of each call. If alias_for() returns an alias, two operands share memory."""
        places = iter(self.run.choices.places_of([X for call_operands in operands for X in call_operands]))
        inputs = [list(itertools.islice(places, len(call_operands))) for call_operands in operands]
        for call, call_places in zip(calls, inputs, strict=True):
            if alias := call.alias_for(is_reference):
                call_places[1] = [*call_places[0][:3], int(alias == "memory"), call_places[0][-1]]
        return inputs

    def write(self, contender, tensors, places, prepare_answer):
        """Writes inputs to their places while the contender is stopped.

        The used part of the slab, and 512 bytes behind it, hold NaN wherever no input lies.
        """
        used_bytes = sum(room(X.dtype, X.shape) for X in tensors)
        contender.slab.bytes[: used_bytes + 512].fill_(255)
        for X, place in zip(tensors, places, strict=True):
            contender.put(X, place, prepare_answer)

    def time(self, contender, calls, call_descriptions, prepare_answer, limit):
        """Makes the child run the calls.

        Returns four things:

        - the child's answer for each call, which tells where the results lie
        - a dict of the results by call number
        - for each call, a dict of inputs after the call by input number
        - the time in seconds by the judge's clock

        The dict of inputs is empty, except for a call that returns no tensor. Then it has the inputs that the reference
        changes. They are read here because they are the call's only result.
        """
        seeds = {"seeds": [call.seeds for call in calls]} if calls[0].seeds else {}
        start_time = time.perf_counter()
        call_answers = contender.ask("calls", limit, **seeds).get("calls")
        if not isinstance(call_answers, list) or len(call_answers) != len(calls):
            raise contender.fault("'s process does not answer for each call")
        seconds, results, inputs_after = time.perf_counter() - start_time, {}, [{} for _ in calls]
        # The results are read in random order. All of them have to be complete, because any can be read first.
        for n in self.run.random.sample(range(len(calls)), len(calls)):
            kinds = call_descriptions[n]["expected"]
            results[n] = self.take(contender, calls[n], kinds, call_answers[n])
            for number in self.run.problem.changed_inputs if calls[n].works_in_place else ():
                place = call_descriptions[n]["inputs"][number]
                X = contender.input_at(place, prepare_answer, getattr(torch, place[-1]))
                inputs_after[n][number] = X.clone()
            self.wait()
            if self.run.cuda and len(results) == 1:  # on a GPU the clock runs until the first result has been read
                seconds = time.perf_counter() - start_time
                contender.stop()
        return call_answers, results, inputs_after, seconds

    def take(self, contender, call, kinds, call_answer, spoils=False):
        """Reads the results of one call from the child's memory. Returns a string if they cannot be read.

        With `spoils` it overwrites the results with NaN instead of reading them. It leaves the results in `aliases` as
        they are, because they may lie in an input or in the module.
        """
        try:
            results, kinds = {}, kinds or []
            places = call_answer["results"] if kinds else []
            if len(places) != len(kinds):
                return f"the {contender.who}'s process tells of {len(places)} results, where {len(kinds)} are asked for"
            for (name, dtype, shape), place in zip(kinds, places, strict=True):
                if not spoils:
                    results[name] = contender.fetch(place, shape, getattr(torch, dtype))
                elif name not in call.aliases:
                    contender.spoil(place, shape, getattr(torch, dtype))
            return results
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
            if has_run_out(error):
                raise
            return f"the result cannot be read in the memory of the {contender.who}'s process: {printable(error)}"

    def inspect(self, contender, calls, call_descriptions, call_answers, results, limit):
        """Asks the child what is wrong with its results, then overwrites the results with NaN.

        The child cannot change the results that count, because the judge has already read them. There is one exception:
        the judge may not know the names, dtypes and shapes of the reference's results yet. Then the reference reports
        these now, and the judge reads the results.
        """
        answers = contender.ask("inspect", limit).get("calls")
        answers = [entry if isinstance(entry, dict) else {} for entry in answers] if isinstance(answers, list) else []
        is_reference = contender is self.run.reference
        for n, (call, answer) in enumerate(itertools.zip_longest(calls, answers[: len(calls)], fillvalue={})):
            call.missing, kinds = "", call_descriptions[n]["expected"]
            if "no_memory" in answer:
                message = printable(answer["no_memory"])
                raise torch.OutOfMemoryError(f"the {contender.who} lacks memory or another resource: {message}")
            is_none, outline = is_reference and answer.get("none"), answer.get("outline")
            # The child is not told the outline, which may contain a part of the answer, such as a string.
            if kinds is not None and not is_none and outline != call.outline and (outline or "wrong" not in answer):
                results[n] = f"the result is {printable(outline)}, and should be {call.outline}"
            elif "wrong" in answer:
                results[n] = printable(answer["wrong"]) or "it says that its result is wrong"
                call.missing = printable(answer.get("missing", ""))
            elif is_none:
                results[n] = None
            elif is_reference and kinds is None:
                self.run.problem.learn(call, answer)
                kinds = answer["kinds"]
                results[n] = self.take(contender, call, kinds, call_answers[n])
            if isinstance(results[n], dict):
                spoiled = self.take(contender, call, kinds, call_answers[n], spoils=True)
                results[n] = spoiled if isinstance(spoiled, str) else results[n]

    def changed_input(self, contender, call, operands, places, prepare_answer, known):
        """Returns what is wrong with the inputs after a call, or an empty string.

        If several inputs are wrong, the last one is reported. `known` has the inputs that time() has read, by number.
        """
        wrong, is_reference = "", contender is self.run.reference
        for number, (X, place) in enumerate(zip(operands, places, strict=True)):
            before, after = X.expand(place[0]), known.get(number)
            if after is None:
                after = contender.input_at(place, prepare_answer, X.dtype)
            has_to_change = not is_reference and call.works_in_place and number in call.after
            if has_to_change or first_difference(before, after):
                wrong = self.run.problem.modified(call, number, before, after, is_reference) or wrong
        return wrong


class Judgement:
    """Compares the results of calls with the truth."""

    def __init__(self, run):
        self.run = run
        # `first_results` has the first results of the calls that are made twice. `second_call_count` is the number of
        # the second calls.
        self.first_results, self.second_call_count = {}, 0
        # `missing` has one entry per judged call, which says what the machine lacked. After the first call that did not
        # fail for such a reason, it gets no more entries.
        self.missing = []

    def examine(self, call, results, reference=None):
        """Returns what is wrong with a call's results or None, and records the errors in call.row.

        The error of the reference may raise the bound. If the reference's results are not given, they are requested:
        for `any` at once, and for a product only when an error exceeds the smallest bound.
        """
        run, problem = self.run, self.run.problem
        keep_within(run.ends_by)
        call.row = {"unjudged": 0, "ties": 0}
        if isinstance(results, str):
            return results
        reference = reference or problem.reference_of(call)
        for name, truth in problem.truths(call, reference):
            if name not in results:
                continue
            result = results[name]
            error, index = truth.worst(result)
            if reference is None and not error <= truth.bound(0.0):
                reference = run.requests.send(run.reference, [call])[0][0]
            reference_error = truth.worst(reference[name])[0] if reference else 0.0
            if doubt := problem.doubt(call, name, truth, reference_error):
                raise run.reference.fault(doubt)
            bound = truth.bound(reference_error)
            if not error <= bound:
                error, index = problem.reconsider(call, name, truth, result, bound, (error, index))
            of_bound = error / max(bound, 1e-300)
            if not of_bound <= call.row.get("of_bound", -1.0):
                call.row |= {"error": error, "reference_error": reference_error, "bound": bound, "of_bound": of_bound}
            call.row["unjudged"] += truth.unjudged
            if not error <= bound:
                return problem.explain(name, truth, result, reference[name], (error, index), bound)
        return problem.criterion(call, results, reference)

    def values(self):
        """Judges the calls of calls_to_judge(). Timed calls and calls in inference_mode come later."""
        run, problem, report = self.run, self.run.problem, self.run.report
        calls = problem.calls_to_judge()
        self.repeated = {call for call, count in collections.Counter(calls).items() if count > 1}
        report.progress(f"judging {len(calls)} calls on fresh inputs")
        try:
            for group in run.choices.groups(calls):
                self.judge_group(group)
                # The cache of the judge's allocator would grow from group to group, because sizes differ. The
                # contenders need this memory.
                torch.cuda.empty_cache()
                if len(self.missing) == len(report.rows) >= ALL_MISSING:
                    break
            if self.missing and len(self.missing) == len(report.rows):
                error = report.rows[0]["detail"].removeprefix("the solution raises ")
                report.rows.clear()
                report.findings.clear()
                raise cannot_be_judged(run.solution.path, self.missing[0], error)
        finally:
            report.table()
        if not report.findings:
            if not self.second_call_count:
                raise CannotRun("no call was made twice")
            problem.finish(self.second_call_count)

    def judge_group(self, group):
        """Makes the calls of one request, first by the reference and then by the solution, and judges them."""
        run, problem, report = self.run, self.run.problem, self.run.report
        problem.enter(group)
        references, seconds = run.requests.send(run.reference, group)
        group, references = problem.usable(group, references)
        if not group:
            return
        answers, _ = run.requests.send(run.solution, group, seconds)
        problem.find_truths(group, references)
        for call, results, reference in zip(group, answers, references, strict=True):
            wrong = self.examine(call, results, reference)
            vars(call).pop("inputs", None)  # frees memory; if this call is made again, so are its inputs
            if call in self.repeated and isinstance(results, dict):
                difference = self.other_bits(call, results)
                wrong = wrong or difference
            if call.missing and len(self.missing) == len(report.rows):
                self.missing.append(call.missing)
            report.row(call, wrong)
            if wrong:
                report.findings.setdefault(f"{call.row_name} inputs", f"{call.label}: {wrong}")

    def other_bits(self, call, results):
        """Compares the bits of a call's results with the results of an earlier call with the same inputs.

        Returns what is wrong, or None. The results of the first call are stored.
        """
        compact_results = {name: fingerprint(X) if X.nbytes > MOST_KEPT else X for name, X in results.items()}
        first = self.first_results.setdefault(call, compact_results)
        self.second_call_count += first is not compact_results
        wrong = None
        for name, X in compact_results.items():
            if position := first_difference(X, first[name]):
                message = f"two calls with the same inputs differ at {name}{position if X is results[name] else ''}"
                wrong = wrong or self.run.problem.other_bits(message)
        return wrong

    def find_the_simplest_failure(self):
        """If calls have failed, looks for a simpler call that fails too, and puts it first among the findings.

        If no simple call fails, the simplest failure found so far comes first.
        """
        run, report = self.run, self.run.report
        wrong_rows = [row for row in report.rows if row["detail"]]
        if not wrong_rows:
            return
        simplest = min(wrong_rows, key=run.problem.simplicity)
        name, detail = f"{simplest['input']} inputs", f"{simplest['size']}: {simplest['detail']}"
        report.progress("looking for the simplest case that is wrong")
        for call in run.problem.simple_calls(simplest):
            references, seconds = run.requests.send(run.reference, [call])
            answers, _ = run.requests.send(run.solution, [call], seconds)
            if wrong := self.examine(call, answers[0], references[0]):
                name, detail = f"{call.row_name} inputs", f"{call.label}: {wrong}"
                report.row(call, wrong)
                break
        other_findings = {key: text for key, text in report.findings.items() if key != name}
        report.findings = {name: detail} | other_findings

    def inference_mode(self):
        """Judges a product's calls in inference_mode, after all other calls.

        A module may keep tensors from such a call, and autograd refuses these tensors in a later call.
        """
        run = self.run
        calls = run.problem.inference_calls()
        for group in run.choices.groups(calls):
            answers, _ = run.requests.send(run.solution, group, LOADING * run.options.timeout, inference=True)
            for call, results in zip(group, answers, strict=True):
                if wrong := self.examine(call, results):
                    raise Wrong("calls in inference_mode", f"{call.label}: {wrong}")
                vars(call).pop("inputs", None)
        if calls:
            run.report.check("calls in inference_mode", "ok", f"{len(calls)} calls")


# ==== 5. The judgement: time ====

TIMED = {"forward": "forward", "gradients": "forward + backward"}
ROUNDS = 4  # the number of timed requests to each contender, in turns
REQUEST_SECONDS = {"cuda": 40e-3, "cpu": 0.2}  # the target for a timed request, long compared with its overhead
# A solution that is slower than the reference gets about as many calls per request as the reference. It gets fewer if
# the request would take more than this many seconds, but no fewer than --trials needs.
LONGEST = 2.0
# Comparing all timed results of a mode with the truth may take about this many seconds. The results of warm-up and
# decoy requests do not count here. Products.timed_calls() explains decoys.
CHECK_SECONDS = 12.0
MOST_CALLS = {"cuda": 256, "cpu": 512}  # the most calls in one request
# The relative difference that is allowed between the child's clock and the judge's. The first number is added to the
# difference that requests to the reference show. The second number limits the sum.
TOLERANCE = (0.02, 0.07)
TOO_NOISY = 1.5  # no ratio is certified if the reference takes more than this many times as long as at its best


def ratio(times):
    """Returns the ratio in words, or the reason why there is none.

    There is none if the reference's own times differ so much that even a copy of it would not get a ratio of 1.
    """
    if times["noisy"]:
        return "too noisy to time: other processes are using the processor"
    if times["too_short"]:
        return "too short to time: a request takes much longer than the calls in it"
    # A ratio below 0.1 gets two significant digits, because two decimals could show it as 0.00.
    number = f"{times['ratio']:.2f}" if times["ratio"] >= 0.1 else f"{times['ratio']:.2g}"
    if times["slower"]:
        return f"{number}x, slower"
    if not times["lower_bound"]:
        is_certain = times["faster"] or times["ratio"] <= 1 + TOLERANCE[0]
        return f"{number}x" + ("" if is_certain else ", which may be noise")
    return f"at least {number}x" + (", which leaves open whether it is faster" if times["ratio"] < 1 else "")


class Stopwatch:
    """Times contenders in one mode at the size that the verdict names.

    The inputs of each call are drawn anew. A product gets uniform inputs, and `any` gets what get_inputs() returns.
    """

    # On a CPU each call adds this many seconds of overhead to its request. In this time the child locates the result.
    call_overhead = 0.0

    def __init__(self, run, mode):
        """Times the reference before any line of the solution has run, so the solution cannot slow it down."""
        run.report.progress(f"timing the reference, {mode}")
        self.run, self.mode, self.overhead, self.target = run, mode, 0.0, REQUEST_SECONDS[run.device.type]
        # request() draws its number of calls between 3/4 of a maximum and this maximum. If the maximum is at least
        # self.least_calls, ROUNDS requests make at least --trials calls. They may make fewer if self.most_calls, which
        # is set below, is less than self.least_calls.
        self.least_calls = -(-run.options.trials * 4 // (3 * ROUNDS))
        sample = run.problem.sample(mode)
        # The time limits of later requests allow as many seconds per call as the first call takes. That is enough,
        # because the first call is usually the slowest one.
        (results,), self.reference_seconds = run.requests.send(run.reference, [sample], timed=True)

        def examine():
            run.judgement.examine(sample, results, results)
            run.requests.wait()

        examine_seconds = min(timeit.repeat(examine, number=1, repeat=2))
        result_bytes = sum(X.nbytes for X in results.values())
        self.bytes = run.problem.bytes_moved(sample, results)  # the bytes that one call moves at least
        most_calls = min(MOST_CALLS[run.device.type], int(CHECK_SECONDS / ROUNDS / examine_seconds))
        most_calls = min(most_calls, run.slab.size // max(1, sample.nbytes))
        # `peak` is the GPU's memory bandwidth in bytes per second, and `cache` is the size of its L2 cache in bytes.
        # On a CPU they stay Inf and 0, so that request() finds no time impossible.
        self.peak, self.cache = math.inf, 0
        # On a GPU, the inputs and results may take 0.6 of the free memory. The judge has a copy of both, and so has the
        # child.
        if run.cuda:
            kilohertz, width, self.cache = map(run.slab.gpu.attribute, (36, 37, 38))
            self.peak = 2e3 * kilohertz * width / 8 or math.inf  # memory transfers two words per clock cycle
            free = torch.cuda.mem_get_info(run.device)[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            most_calls = min(most_calls, int(0.6 * free / (2 * sample.nbytes + 2 * result_bytes)))
        # The next requests measure `overhead`, the overhead of a request in seconds. On a CPU they have at most two
        # calls, because each call adds overhead: the child locates its result before the clock stops.
        self.most_calls = max(1, most_calls) if run.cuda else 2
        (requests,) = self.measure(run.reference, rounds=5)
        self.overhead = max(0.0, min(seconds - sum(call_us) * 1e-6 for _, seconds, call_us in requests))
        self.most_calls = max(1, most_calls)
        alone = self.measure(run.reference, rounds=3)[0]
        if not run.cuda:
            overheads = [(seconds - sum(call_us) * 1e-6 - self.overhead) / count for count, seconds, call_us in alone]
            self.call_overhead = max(0.0, min(overheads))
        self.alone = self.summary(alone)

    def measure(self, *contenders, rounds=ROUNDS):
        """Sends requests to the contenders in turns, and returns the timings of each contender's requests.

        Three requests to each contender come first. They warm it up and determine how many calls fit in a request. The
        solution also gets two to four decoy requests, whose timings are not returned. They come at any time after the
        warm-up, also last, so that no request is known to be no decoy.
        """
        run, timings, self.best = self.run, {c: [] for c in contenders}, dict.fromkeys(contenders, math.inf)
        schedule = []
        for n in range(-3, rounds):
            schedule += [(contender, n < 0, None) for contender in run.random.sample(contenders, len(contenders))]
        kinds = ["open", "hidden"]
        kinds += run.random.choices(kinds, k=run.random.choice((0, 0, 1, 2)))
        for kind in kinds if run.solution in contenders else ():
            schedule.insert(run.random.randint(3 * len(contenders), len(schedule)), (run.solution, False, kind))
        for contender, warms_up, kind in schedule:
            timing = self.request(contender, warms_up, kind)
            if kind is None:
                timings[contender].append(timing)
        return [requests[3:] for requests in timings.values()]

    def request(self, contender, warms_up=False, decoy=None):
        """Sends one timed request, and examines the results if the solution computed them.

        Returns the number of calls, the seconds by the judge's clock, and a list with the microseconds of each call by
        the child's clock. The list is empty if the child's answer is invalid. A decoy request contains other inputs
        too, as Products.timed_calls() explains.
        """
        run, best = self.run, self.best[contender]  # `best` is the shortest time per call so far, in seconds
        pace = self.target / 2 if warms_up else min(best, max(self.best[run.reference], best * self.target / LONGEST))
        most_calls = max(1, min(self.most_calls, max(round(self.target / pace), self.least_calls)))
        count = run.random.randint(-(-most_calls * 3 // 4), most_calls)
        calls = run.problem.timed_calls(self.mode, count, decoy)
        answers, seconds = run.requests.send(contender, calls, count * self.reference_seconds, timed=True)
        call_us = contender.ask("times", run.options.timeout).get("us")
        if not isinstance(call_us, list) or len(call_us) != count:
            call_us = []
        if not all(type(t) is float and t >= 0 for t in call_us):
            call_us = []
        self.best[contender] = min(best, max((seconds - self.overhead) / count, self.target / self.most_calls / 4))
        if contender is run.solution:
            last = answers[-1] if isinstance(answers[-1], dict) else {}
            state = {name: last.pop(name) for name in [*last] if name.startswith("state ")}
            if state and (wrong := run.problem.wrong_state(calls, state)):
                raise Wrong("timed calls", wrong)
            remaining_answers = iter(answers)
            for piece in run.choices.in_pieces(calls):
                run.problem.find_truths(piece)
                for call in piece:
                    if wrong := run.judgement.examine(call, next(remaining_answers)):
                        raise Wrong("timed calls", wrong)
            shorter_seconds = min(seconds, sum(call_us) * 1e-6 if call_us else seconds)
            # Memory must move all bytes of the calls, except for the bytes that a cache can hold.
            if shorter_seconds < (least_seconds := (count * self.bytes - self.cache) / self.peak):
                reason = f"whose {count * self.bytes / 1e6:.0f} MB take {duration(least_seconds * 1e6)} to move"
                raise Wrong("timed calls", f"impossible: {count} calls in {duration(shorter_seconds * 1e6)}, {reason}")
        return count, seconds, call_us

    def summary(self, requests):
        """Summarizes requests by both clocks.

        All times are in microseconds per call. By the judge's clock, the time of a request minus the request's overhead
        is divided by the number of its calls. At most half of the time counts as overhead. `outside_us` is the median
        of these times. `inside` is the spread() of the calls' times by the child's clock, and `inside_us` is its
        median. `each` has the single times of every request, for readers of --json.
        """
        overheads = [min(self.overhead + self.call_overhead * count, seconds / 2) for count, seconds, _ in requests]
        pairs = zip(requests, overheads, strict=True)
        outsides = [(seconds - overhead) / count * 1e6 for (count, seconds, _), overhead in pairs]
        outside, inside = spread(outsides), spread([us for _, _, call_us in requests for us in call_us] or [0.0])
        summary = {"outside_us": outside["median_us"], "inside_us": inside["median_us"], "inside": inside}
        insides = [[round(us, 2) for us in call_us] for _, _, call_us in requests]
        summary["each"] = [{"outside_us": a, "inside_us": b} for a, b in zip(outsides, insides, strict=True)]
        return summary | {"calls": sum(count for count, *_ in requests), "requests": len(requests)}

    def compare(self, reference, solution):
        """Chooses the clock that counts, and computes the ratio of the times.

        The answer also tells whether the ratio is only a lower bound, and whether the times are too bad for a ratio.
        """
        times = {"alone": self.alone, "reference": self.summary(reference), "solution": self.summary(solution)}
        *references, judged = times.values()
        # `noise` is the difference between the clocks in requests to the reference, in microseconds per request.
        # Requests to the solution are not used, because the solution could forge its own clock.
        noise = max(abs(t["outside_us"] - t["inside_us"]) * t["calls"] / t["requests"] for t in references)
        tolerance = min(TOLERANCE[0] + noise * len(solution) / judged["calls"] / judged["outside_us"], TOLERANCE[1])
        clock = "inside" if abs(judged["inside_us"] / judged["outside_us"] - 1) <= tolerance else "outside"
        for t in times.values():
            t["us"] = t[f"{clock}_us"]
        best = min(t["us"] for t in references)
        # `quiet` is the reference's shortest time. The child's clock is considered for the reference even where the
        # judge's clock counts, because the reference can be trusted.
        quiet = min(best, *(undisturbed(t["inside"]) for t in references))
        # Two times of the solution decide whether it counts as slower: the 10th percentile by its child's clock, and
        # the median by the judge's clock. Both have to exceed `slowest` by more than 7 %. `slowest` is the largest of
        # three times by the clock of the reference's child: the 90th percentile and the median in turns with the
        # solution, and the median without the solution. To compare nothing but medians would not do: a copy of a
        # network of many short kernels can get a ratio of 0.5.
        slowest = max(times["reference"]["inside"]["p90_us"], *(t["inside_us"] for t in references))
        slower = min(judged["inside"]["p10_us"], judged["outside_us"]) > (1 + TOLERANCE[1]) * slowest
        # A solution is certainly faster if two of its times are below `shortest`: its 90th percentile by its child's
        # clock, and its time by the clock that counts. `shortest` is the smallest of three times of the reference. One
        # is its 10th percentile by its child's clock, in turns with the solution. The other two are by the clock that
        # counts: its time in turns with the solution, and its time without the solution.
        shortest = min(times["reference"]["inside"]["p10_us"], *(t["us"] for t in references))
        faster = max(judged["inside"]["p90_us"], judged["us"]) < shortest
        may_be_noise = quiet < judged["us"] / (1 + TOLERANCE[0]) and not slower
        lower_bound = clock == "outside" or quiet < best or may_be_noise
        times |= {"clock": clock, "lower_bound": lower_bound, "tolerance": tolerance}
        # If the reference's own times differ by more than the factor TOO_NOISY, no ratio is certified. Even a copy of
        # the reference would not get a ratio of 1 then. `noisy` means that other processes are the cause. Either of two
        # comparisons shows that. By the child's clock, the reference's time in turns is compared with its undisturbed
        # time. If the judge's clock counts, its times in turns and alone are compared, too. `too_short` means that the
        # overhead of requests is the cause, because only the judge's clock shows a long time in turns.
        outside = [t["outside_us"] for t in references]
        disturbed = times["reference"]["inside_us"] > TOO_NOISY * min(undisturbed(t["inside"]) for t in references)
        times["noisy"] = disturbed or clock == "outside" and max(outside) > TOO_NOISY * min(outside)
        times["too_short"] = not times["noisy"] and times["reference"]["us"] > TOO_NOISY * quiet
        return times | {"reference_us": quiet, "ratio": quiet / judged["us"], "slower": slower, "faster": faster}

    def judge(self):
        run, mode_name = self.run, TIMED[self.mode]
        run.report.progress(f"timing, {mode_name}")
        times = run.report.timings[self.mode] = self.compare(*self.measure(run.reference, run.solution))
        # There is no ratio if the times are too noisy or too short. With --seed there is none, because a solution that
        # knew the seed could have prepared its results.
        if run.options.seed is not None or times["noisy"] or times["too_short"]:
            times["ratio"] = None
        text = f"{times['solution']['calls']} calls, each with inputs of its own, right in every element"
        run.report.check(f"timed calls, {mode_name}", "ok", text)
        for who, name in (("alone", "reference, alone"), ("reference", "reference"), ("solution", "solution")):
            summary, inside = times[who], times[who]["inside"]
            span = f"{duration(inside['median_us'])} [{duration(inside['p10_us'])}, {duration(inside['p90_us'])}]"
            text = f"by its own clock {span}, from outside {duration(summary['outside_us'])}; {summary['calls']} calls"
            print(f"       {mode_name:<20} {name:<17} {duration(summary['us']):>8}; {text}")
        has_ratio_or_reason = times["ratio"] or times["noisy"] or times["too_short"]
        ratio_text = ratio(times) if has_ratio_or_reason else "no ratio, because --seed repeats a run"
        clock = "the child's clock" if times["clock"] == "inside" else "the judge's clock, since the two differ"
        print(f"       {mode_name:<20} {ratio_text}" + (f", by {clock}" if times["ratio"] else ""))


# ==== 6. Command line ====


def number(kind, lower, upper):
    def parse(text):
        with contextlib.suppress(ValueError):
            if lower <= (value := kind(text)) <= upper:
                return value
        description = "a whole number" if kind is int else "a number of seconds"
        raise argparse.ArgumentTypeError(f"{text!r} is given; {description} from {lower} to {upper} is accepted")

    return parse


def device_name(text):
    """Returns the value of --device. If it names a GPU but torch sees none, raises an error that tells why.

    The argument's `choices` reject all other bad values.
    """
    if text.startswith("cuda") and not torch.cuda.is_available():
        why = "" if torch.version.cuda else f", since torch {torch.__version__} is built without CUDA"
        raise argparse.ArgumentTypeError(f"{text!r} is given, but torch sees no GPU{why}; cpu is accepted")
    return text


def parse(argv):
    formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=120, max_help_position=30)
    parser = argparse.ArgumentParser(prog="check.py", description=__doc__, formatter_class=formatter)
    add, path_beside_this_file = parser.add_argument, functools.partial(os.path.join, FOLDER)
    text = "; ".join(f"{name}: {product.formula}" for name, product in PRODUCTS.items())
    text += "; any: what --reference computes (default: lower, or any if --reference is given)"
    add("--problem", choices=list(PROBLEMS), help=text)
    add("--solution", metavar="FILE", help="the file to judge (default: model_new.py)")
    text = "the file to compare with and to time against (default: reference_model.py)"
    add("--reference", metavar="FILE", help=text)
    text = "the size that is timed; sizes up to twice as large are judged; for transposed_a, K, the largest judged size"
    add("--size", metavar="N", type=number(int, 1, 1 << 20), help=text)
    add("--one-size", action="store_true", help="judge only the size that is timed, for a file that computes no other")
    text = "any: replaces the value of a constant in the reference's file"
    add("--set", metavar="NAME=VALUE", action="append", default=[], help=text)
    add("--dtype", choices=list(DTYPES), help="default: float32")
    text = "allow the reference and the solution to use TF32 in float32 (torch's setting 'high'); needs a GPU"
    add("--tf32", action="store_true", help=text)
    gpus = ["cuda", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))] if torch.cuda.is_available() else []
    device = "cuda" if gpus else "cpu"
    add("--device", type=device_name, choices=["cpu", *gpus], default=device, help="default: a GPU if any")
    text = "repeat a run; no ratio is certified, because a solution could know the seed"
    add("--seed", metavar="S", type=number(int, 0, 2**63 - 1), help=text)
    text = "seconds that a request may take longer than the reference (60); loading a file may take ten times that"
    add("--timeout", type=number(float, 0.1, 1e6), default=60.0, help=text)
    text = "least number of timed calls, as far as 4 requests can hold them (default: 30, on a CPU 8)"
    add("--trials", metavar="T", type=number(int, 1, 10**5), help=text)
    text = "seconds that a whole run may take (3600); a longer run ends with status 2"
    add("--within", metavar="T", type=number(float, 1, 1e7), default=3600.0, help=text)
    add("--no-timing", action="store_true", help="judge values only")
    add("--forward-only", action="store_true", help="leave gradients out; the last line says so")
    add("--gradients", action="store_true", help="any: judge gradients too, which KernelBench does not ask for")
    text = "judge batches too (default: only if no --solution is given)"
    add("--batches", action=argparse.BooleanOptionalAction, help=text)
    add("--json", metavar="FILE", help="write the record of the run to this file")
    options = parser.parse_args(argv)
    options.problem = options.problem or ("any" if options.reference else "lower")
    options.reference = options.reference or path_beside_this_file("reference_model.py")
    # The device of a tensor has an index, as in cuda:0, even if --device is cuda.
    options.device = torch.empty(0, device=options.device).device
    cuda = options.device.type == "cuda"
    for option, advice in PROBLEMS[options.problem].func.foreign_options.items():
        if getattr(options, option):
            parser.error(f"argument --{option.replace('_', '-')}: is not for --problem {options.problem}; {advice}")
    if options.tf32 and not (cuda and options.dtype in ("float32", None)):
        combination = f"--dtype {options.dtype} --device {options.device}"
        parser.error(f"argument --tf32: is for --dtype float32 on a GPU, but {combination} is given")
    options.batches = options.solution is None if options.batches is None else options.batches
    options.solution = options.solution or path_beside_this_file("model_new.py")
    options.trials = options.trials or (30 if cuda else 8)
    return options


def constants_of(texts):
    """Parses the values of --set NAME=VALUE."""
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            values[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            accepted = "NAME=VALUE with a number, a string or a tuple of these"
            raise CannotRun(f"--set {text}: {accepted} is accepted") from None
    return values


def begin(run, stack, who, texts, sandbox):
    """Starts a contender and makes it load its file."""
    run.report.progress(f"loading the {who}")
    slab = run.references_slab if who == "reference" else run.slab
    path = getattr(run.options, who)
    contender = stack.enter_context(Contender(who, path, slab, sandbox=sandbox, text=texts[who], ends_by=run.ends_by))
    setattr(run, who, contender)
    classes = run.problem.classes(who)
    memory = {"device": str(run.device), "size": slab.size, "handle": slab.handle}
    start_answer = contender.ask("start", STARTING, who=who, **memory, **run.problem.player)
    run.guard = start_answer["guard"]  # this answer can be trusted, because the child has not loaded any file yet
    if who == "solution":
        for guard in (name for name in LEFT_OPEN if not run.guard[name]):
            note = f"without {guard}, which this system has not, the solution's process could {LEFT_OPEN[guard]}"
            run.report.check("guard", "note", note)
        reference_file = {"path": run.reference.path, "text": texts["reference"], "found": run.reference_class}
        contender.ask("expose", LOADING * run.options.timeout, **reference_file, classes=classes)
        contender.printed = b""
    file = {"path": contender.path, "text": texts[who], "classes": classes, "tf32": run.tf32}
    load_answer = contender.ask("load", LOADING * run.options.timeout, **file)
    class_name = load_answer.get("class", "nothing")
    if class_name is None:
        raise CannotRun(f"--{who} {contender.path}: defines no class {' or '.join(dict.fromkeys(classes))}")
    if class_name not in classes:
        raise contender.fault(f"'s process says that it has loaded {printable(class_name)}")
    contender.examine_settings(load_answer)
    if who == "reference":
        run.reference_class = class_name
    print(f"{who:<10}{printable(contender.path)}: {class_name}")
    if contender.printed:
        note = f"the {who} prints while it is loaded; it stands on standard error here"
        run.report.check("standard output", "note", note)
        contender.printed = b""


def judge(run, texts):
    """Runs the whole judgement. All processes that it starts have ended when it returns."""
    with Sandbox() as sandbox, contextlib.ExitStack() as stack:
        if run.problem.measures_first:
            with contextlib.ExitStack() as measuring_stack:
                run.references_slab = Slab(run.device, 1 << 21)
                measuring_stack.callback(run.references_slab.close)
                begin(run, measuring_stack, "reference", texts, sandbox)
                run.problem.measure()
        run.share()
        begin(run, stack, "reference", texts, sandbox)
        run.problem.begin()
        try:
            if call := run.problem.ask_for_gradients():
                run.requests.send(run.reference, [call])
                run.gradients = True
        except CannotRun as reason:
            run.report.check("gradients", "note", f"they are not looked at, because the reference has none ({reason})")
        try:
            timed_modes = [] if run.options.no_timing else list(MODES) if run.gradients else ["forward"]
            stopwatches = [Stopwatch(run, mode) for mode in timed_modes]
            begin(run, stack, "solution", texts, sandbox)
            run.problem.construct_solution()
            run.judgement.values()
            run.judgement.find_the_simplest_failure()
            for stopwatch in stopwatches:
                stopwatch.judge()
            if not run.report.findings:
                run.judgement.inference_mode()
            run.solution.examine_settings(run.solution.ask("settings_left_changed", run.options.timeout))
        except Wrong as wrong:
            run.report.check(wrong.args[0], "WRONG", f"{wrong.args[1]}; nothing more is judged")
        except (OSError, RuntimeError, MemoryError) as reason:
            if not run.report.findings:
                raise
            run.report.check("running", "note", f"{reason}; nothing more is judged")
        if run.solution.printed:
            detail = f"it writes to standard output, which is the judge's: {run.solution.printed[:80]}"
            run.report.check("standard output", "WRONG", detail)


def read_texts(options):
    """Returns the texts of the solution and of the reference, and stores the reference's constants in the options.

    In the reference's text, the constants already have the values that --set gives them.
    """
    texts = {}
    for who, path in (("solution", options.solution), ("reference", options.reference)):
        try:
            texts[who] = Path(path).read_bytes().decode("utf-8-sig")  # Python, too, accepts a byte order mark
        except (OSError, UnicodeDecodeError) as error:
            raise CannotRun(f"--{who} {path}: cannot be read ({error}); a Python file is accepted") from None
    try:
        texts["reference"] = with_constants(texts["reference"], constants_of(options.set))
        options.constants = constants(texts["reference"])
    except ValueError as error:
        raise CannotRun(f"--set: {error}") from None
    return texts


def examine_the_path_of_the_record(name):
    """Refuses a bad path for --json before the long work.

    Otherwise the record could replace a device if root runs the judge, or a Python file if somebody writes
    `--json theirs.py` and means `--solution theirs.py`.
    """
    path = Path(name)
    if name.endswith(".py") or path.exists() and not path.is_file() or not os.access(path.parent, os.W_OK):
        reason = "is a folder, a device, Python or not writable; a file in an existing folder is accepted"
        raise CannotRun(f"--json {path}: {reason}")


def write_record(path, record):
    """Writes the record of --json. Returns whether that was possible."""
    record = json.loads(json.dumps(record, default=str), parse_constant=str)  # JSON has no NaN and no Inf
    temporary = f"{path}.{random.SystemRandom().getrandbits(64):x}"
    try:
        with open(temporary, "x", encoding="utf-8") as f:
            f.write(json.dumps(record, indent=1) + "\n")
        os.replace(temporary, path)  # no reader ever sees half a file
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        tell(f"check.py: --json {path}: cannot be written ({error})")
        return False
    print(f"wrote {path}")
    return True


def referee(options):
    """Makes one run, prints its report and returns the exit status."""
    if not os.path.exists("/proc/self/mem"):
        system = os.uname().sysname
        raise CannotRun(f"it reads other processes by /proc/PID/mem, which {system} does not have; Linux is accepted")
    if options.json:
        examine_the_path_of_the_record(options.json)
    torch.get_device_module(options.device).set_device(options.device)
    texts = read_texts(options)
    run = Run(options)
    if run.cuda:
        name = run.device_name = torch.cuda.get_device_name(options.device)
    else:
        name = f"{os.uname().machine}, {torch.get_num_threads()} threads"
        run.device_name = f"a CPU ({name})"
    print(run.problem.title)
    print(f"on {options.device} ({name}), torch {torch.__version__}, Python {sys.version.split()[0]}")
    judge(run, texts)
    report, seconds = run.report, time.perf_counter() - run.report.start_time
    call_count = len(report.rows) + sum(times["solution"]["calls"] for times in report.timings.values())
    verdict_line = sentence(run, call_count)
    print(f"\nseed {run.seed}, {seconds:.0f} s; --seed {run.seed} repeats this run")
    status = 1 if report.findings else 0
    if options.json:
        record = {
            "problem": options.problem,
            "dims": run.problem.label,
            "options": vars(options),
            "device": name,
            "torch": torch.__version__,
            "seed": run.seed,
            "sha256": {who: hashlib.sha256(text.encode()).hexdigest() for who, text in texts.items()},
            "guard": run.guard,
            "verdict": "wrong" if report.findings else "ok",
            "sentence": verdict_line,
            "calls": call_count,
            "seconds": seconds,
            "ratio": report.timings.get("forward", {}).get("ratio"),
            "rows": report.rows,
            "checks": report.checks,
            "timings": report.timings,
        }
        if not write_record(options.json, record):
            status = status or 2  # the verdict is printed all the same
    print(verdict_line)
    return status


def sentence(run, call_count):
    """Returns the verdict, which is the last line of the output, for readers who read no other line."""
    name, findings = printable(os.path.basename(run.options.solution)), run.report.findings
    for finding, detail in findings.items():
        verdict_line = f"WRONG: {name} is convicted in {setting(run)}. {finding}: {detail}"
        verdict_line += f" ({len(findings) - 1} more findings above)" if len(findings) > 1 else ""
        return verdict_line + (f" Hint: {hint}." if (hint := run.problem.hint()) else "")
    if not call_count:
        raise CannotRun("no call was judged")
    verdict_line = f"all holds: {name} {run.problem.claim} in all of {call_count} calls"
    verdict_line += ", all with the same inputs" if run.problem.never_varies else " with inputs of their own"
    verdict_line += ", gradients included" if run.gradients else "; gradients were not looked at"
    if not (times := run.report.timings.get("forward")):
        return f"{verdict_line}; its time was not measured"
    has_no_ratio = times["noisy"] or times["too_short"]
    if has_no_ratio:
        verdict_line += f"; at {run.problem.label} it is {ratio(times)}"
    else:
        verdict_line += f"; at {run.problem.label} it takes {duration(times['solution']['us'])}"
        verdict_line += f", the reference {duration(times['reference_us'])}"
    if run.options.seed is not None:
        return f"{verdict_line}; with --seed, which repeats a run, no ratio is certified"
    if has_no_ratio:
        return verdict_line
    verdict_line += f": {ratio(times)}"
    return verdict_line + (f" (forward and backward {ratio(run.report.timings['gradients'])})" if run.gradients else "")


def main(argv=None):
    """Runs the judge and returns the exit status. `argv` defaults to sys.argv[1:]."""
    # With some settings of torch's allocator, such as expandable segments, other processes cannot open its memory.
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.pop(name, None)
    try:
        return referee(parse(argv))
    except SystemExit as stop:  # argparse has already printed the help or an error
        return stop.code or 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prevents a second error when Python exits
        return 141
    except KeyboardInterrupt:
        status, why = 130, "interrupted"
    # These errors include CannotRun, too many open files, a missing driver, lack of memory and a failed factorization.
    except (OSError, RuntimeError, MemoryError) as reason:
        status, why = 2, str(reason)
        why += "; a smaller --size may fit" if "memory" in why else ""
    except Exception:  # status 1 means a conviction, and an error of the judge itself is none
        traceback.print_exc()
        status, why = 2, "the judge itself failed, and nothing is said about the solution"
    tell(f"check.py: {why}")
    return status


if __name__ == "__main__":
    # This opens descriptors 0 to 2 if they are closed. Otherwise the descriptor of a slab could get one of these
    # numbers, and would be lost in a child, where 0 to 2 are the standard streams.
    while os.open(os.devnull, os.O_RDWR) < 3:
        pass
    if sys.stdout:  # sys.stdout is None if it was closed
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=not CHILD)
    sys.exit(serve(CHILD["channel"]) if CHILD else main())

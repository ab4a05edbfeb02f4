"""The judge: is a solution right, is it honest, and how fast is it?

    python check.py                                     judges model_new.py against reference_model.py, both beside this file
    python check.py --problem upper                     the upper triangular product; transposed_a: A.T @ B
    python check.py --solution theirs.py                anybody's KernelBench-style file
    python check.py --size 256 --no-timing              a few seconds on a small machine
    python check.py --plot time.svg                     times smaller sizes as well, and draws time against N (needs matplotlib)
    python check.py --problem upper --export file.py    writes model_new.py as KernelBench wants problem 14; runs nothing

It runs the solution in a process of its own and calls it some hundred times: other inputs in every call, sizes to twice --size, ordinary
and hard numbers, gradients too. Each element of each result is compared with a float64 product. Then it times calls at --size in turns
with the reference's, by a clock of its own, and compares those results as well. The last line is the verdict:

    all holds: ...    every element of every call was within its bound, the inputs were left alone, the same input gave the same bits;
                      then the times, and the reference's divided by the solution's; 'at least', where the clock holds more than calls
    WRONG: ...        the first thing that was not so. What is printed above tells the rest

Exit status: 0 all holds; 1 the solution is convicted of something; 2 the run could not be made (bad option, missing file or name, no
such GPU, not enough memory, a reference that does not compute the problem); 130 Ctrl-C; 141 nobody reads the report any more.

An element may be off by so much of (|A||B|)'s, n being the number of terms: float32 1e-6, float64 1e-6 * 2^-29, or twice what the
reference's worst is off by on the same input; float16 and bfloat16 by their rounding and 2^-23 sqrt(n); with --tf32 by 2^-10 and that.
The kernel keeps the solution's process from reaching the judge's (seccomp, Landlock, no capabilities); what a system lacks of it the
report names. It is a judge and no sandbox: the process runs as you. docs/judge.md has the rest: bounds, clocks, attacks.
"""

import argparse
import contextlib
import ctypes
import fcntl
import functools
import glob
import hashlib
import itertools
import json
import math
import mmap
import os
import platform
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

LIBC = ctypes.CDLL(None, use_errno=True)

# ======================================================================================================================
# 1. What a child gives up, before it imports torch: while it has a single thread, because the kernel counts these by thread
# ======================================================================================================================

# System calls by number: (x86_64, aarch64). A filter sees numbers and arguments, not what pointers point to.
CALLS = {
    "signal": {
        "kill": (62, 129),
        "tkill": (200, 130),
        "rt_sigqueueinfo": (129, 138),
        "tgkill": (234, 131),
        "rt_tgsigqueueinfo": (297, 240),
    },
    "of a process": {
        **{"prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setscheduler": (144, 119)},
        **{"sched_setparam": (142, 118), "move_pages": (279, 239), "migrate_pages": (256, 238)},
    },
    "some": {"setpriority": (141, 140), "fcntl": (72, 25), "ioctl": (16, 29), "clone": (56, 220), "prctl": (157, 167)},
    # Descendants stay in one process group, which the judge stops and ends as a whole.
    "in vain": {"setsid": (112, 157), "setpgid": (109, 154)},
    "refused": {
        **{
            "ptrace": (101, 117),
            "process_vm_readv": (310, 270),
            "process_vm_writev": (311, 271),
            "kcmp": (312, 272),
            "pidfd_open": (434, 434),
        },
        **{"pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448)},
        **{
            "unshare": (272, 97),
            "setns": (308, 268),
            "mount": (165, 40),
            "umount2": (166, 39),
            "pivot_root": (155, 41),
            "chroot": (161, 51),
        },
        **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442)},
        **{"clock_settime": (227, 112), "clock_adjtime": (305, 266), "settimeofday": (164, 170), "adjtimex": (159, 171)},
        **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},  # works while a process is stopped
        **{"timer_create": (222, 107), "mq_notify": (244, 184)},  # may send SIGCONT
        **{
            "userfaultfd": (323, 282),
            "perf_event_open": (298, 241),
            "bpf": (321, 280),
            "ioprio_set": (251, 30),
            "open_by_handle_at": (304, 265),
        },
    },
}
CLONE3, SECCOMP, CAPSET = 435, {"x86_64": 317, "aarch64": 277}, {"x86_64": 126, "aarch64": 91}
NO_CLONE = 0x7E02A000  # CLONE_NEW*, CLONE_PARENT and CLONE_PTRACE: other namespaces, and children that would be the judge's


def syscall(*arguments):
    return LIBC.syscall(*arguments)


def filter_program(own, beyond):
    """The seccomp filter as (code, jump if so, jump if not, k): signals and the like reach process ids from `own`, the child's, to below
    `beyond`. Older processes have smaller ones: the judge's, the reference's."""
    load, mask, equal, least, bits, end = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    allow, in_vain, refuse, missing = ((end, 0, 0, k) for k in (0x7FFF0000, 0x50000, 0x50000 + 1, 0x50000 + 38))  # 0, EPERM, ENOSYS
    column = ("x86_64", "aarch64").index(platform.machine())
    descendant = [(least, 0, 1, beyond), refuse, (least, 0, 1, own), allow, refuse]
    zero = [(equal, 0, 1, 0), allow]  # oneself

    def argument(n):
        return (load, 0, 0, 16 + 8 * n)

    def refuse_if(*values):
        return [*((equal, len(values) - 1 - n, n == len(values) - 1, v) for n, v in enumerate(values)), refuse]

    bodies = {
        name: [argument(1 + (name in ("tgkill", "rt_tgsigqueueinfo"))), *refuse_if(18), argument(0), *descendant]
        for name in CALLS["signal"]
    }
    bodies |= {name: [argument(0), *zero, *descendant] for name in CALLS["of a process"]}
    bodies |= {name: [in_vain] for name in CALLS["in vain"]} | {name: [refuse] for name in CALLS["refused"]}
    bodies |= {
        "setpriority": [argument(0), (equal, 1, 0, 0), refuse, argument(1), *zero, *descendant],
        "fcntl": [argument(1), *refuse_if(8, 10, 15), allow],  # F_SETOWN, F_SETSIG, F_SETOWN_EX
        "ioctl": [argument(1), *refuse_if(0x8901, 0x8902, 0x5412), allow],  # FIOSETOWN, SIOCSPGRP, TIOCSTI
        "clone": [argument(0), (bits, 0, 1, NO_CLONE), refuse, (mask, 0, 0, 0xFF), (equal, 1, 0, 0), (equal, 0, 1, 17), allow, refuse],
        "prctl": [argument(0), (equal, 0, 1, 1), in_vain, allow],  # PR_SET_PDEATHSIG, which the judge has set
    }
    words = [(load, 0, 0, 4), (equal, 1, 0, (0xC000003E, 0xC00000B7)[column]), refuse, (load, 0, 0, 0), (least, 0, 1, 1 << 30), refuse]
    numbers = {name: both[column] for kind in CALLS.values() for name, both in kind.items()}
    for name, body in bodies.items():
        words += [(equal, 0, len(body), numbers[name]), *body]
    return [*words, (equal, 0, 1, CLONE3), missing, allow]  # without clone3 callers turn to clone, whose flags are no pointer


def restrict_calls(own, beyond):
    if platform.machine() not in SECCOMP:
        return False
    words = filter_program(own, beyond)
    code = ctypes.create_string_buffer(b"".join(c.to_bytes(2, "little") + bytes([t, f]) + k.to_bytes(4, "little") for c, t, f, k in words))
    program = (ctypes.c_uint64 * 2)(len(words), ctypes.addressof(code))
    return syscall(SECCOMP[platform.machine()], 1, 4, program) == 0  # 4: without slowing the processor's speculation down


def restrict_files():
    """Landlock: its version, or 0. Only build and temporary folders can be written; signals stay among descendants (version 6)."""
    version = syscall(444, 0, 0, 1)
    if version < 2:
        return 0
    rights = sum(1 << bit for bit in (1, *range(4, 14 + (version > 2))))  # to write, make, remove, rename, truncate
    scope = (ctypes.c_uint64 * 3)(rights, 0, 2)
    rules = syscall(444, scope, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    cache, folders = os.path.expanduser("~/.cache"), [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/proc/self"]
    for variable, usual in (
        *(("TORCH_EXTENSIONS_DIR", f"{cache}/torch_extensions"), ("TRITON_CACHE_DIR", os.path.expanduser("~/.triton"))),
        *(("CUDA_CACHE_PATH", os.path.expanduser("~/.nv")), ("TORCHINDUCTOR_CACHE_DIR", f"{cache}/torch")),
    ):
        folders.append(os.environ.get(variable, usual))
        with contextlib.suppress(OSError):
            os.makedirs(folders[-1], exist_ok=True)
    for path in filter(os.path.exists, [*folders, "/dev/null", "/dev/zero", "/dev/dri", *glob.glob("/dev/nvidia*")]):
        handle = os.open(path, os.O_PATH)
        allowed = rights if os.path.isdir(path) else rights & (1 << 1 | 1 << 14)
        syscall(445, rules, 1, ctypes.create_string_buffer(allowed.to_bytes(8, "little") + handle.to_bytes(4, "little")), 0)
        os.close(handle)
    restricted = syscall(446, rules, 0) == 0
    os.close(rules)
    return version if restricted else 0


def guard(judge, others):
    """Gives up what no solution needs. Says what the system has of it."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a stopped child would outlive a judge that is killed
    if os.getppid() != judge:  # it is gone already
        os._exit(0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # where memory runs out, it is not the judge that goes
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    for capability in range(64):
        LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    dropped = syscall(CAPSET.get(platform.machine(), -1), header, none) == 0
    later = min((pid for pid in (judge, *others) if pid > os.getpid()), default=1 << 31)  # process ids have begun anew in between
    return {"capabilities": dropped, "landlock": restrict_files(), "seccomp": restrict_calls(os.getpid(), later)}


CHILD = json.loads(sys.argv[2]) if __name__ == "__main__" and sys.argv[1:2] == ["--child"] else None
GUARD = guard(CHILD["judge"], CHILD["others"]) if CHILD else {}

import torch  # noqa: E402

warnings.filterwarnings("ignore", message=".*NumPy.*")  # torch's, where it is not installed; nothing here needs it
HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


class CannotRun(Exception):
    """The run could not be made, and nothing is said about the solution: exit 2."""


class Wrong(Exception):
    """The solution fails in one respect."""


class Ended(Wrong):
    """The child is gone, or its GPU context is: nothing more can be asked."""


# ======================================================================================================================
# 2. The problems
# ======================================================================================================================


def _everything(X):
    return X


@dataclass(frozen=True)
class Problem:
    name: str
    number: int  # in KernelBench's level 1
    formula: str
    prefix: str  # of the class names
    suffix: str  # of get_inputs
    keep: Callable  # the part of a matrix that exists; the rest is not read, or zero in a result

    @property
    def triangular(self):
        return self.keep is not _everything

    def headline(self, size):
        """The dimensions that --size stands for: (N,), or (K, M, N) in the proportions of KernelBench's problem 16."""
        return (size,) if self.triangular else (size, max(1, size // 4), max(1, size // 2))

    def most(self, size):
        """The largest number of rows or columns that is judged."""
        return 2 * size if self.triangular else size

    def shapes(self, dims):
        """Of A, B and C. One number more than the headline has stands first, and is that of the products in a batch."""
        if self.triangular:
            return ((*dims, dims[-1]),) * 3
        *batch, K, M, N = dims
        return (*batch, K, M), (*batch, K, N), (*batch, M, N)

    def products(self, A, B, G=None):
        """(name, X, Y) of each result, which is keep(X @ Y): C and, where G = dC is given, dA and dB. X and Y hold nothing that the
        problem does not read."""
        if not self.triangular:
            return [("C", A.mT, B), *([("dA", B, G.mT), ("dB", A, G)] if G is not None else [])]
        A, B = self.keep(A), self.keep(B)
        return [("C", A, B), *([("dA", self.keep(G), B.mT), ("dB", A.mT, self.keep(G))] if G is not None else [])]


PROBLEMS = {
    "lower": Problem("lower", 15, "C = tril(A) tril(B)", "", "", torch.tril),
    "upper": Problem("upper", 14, "C = triu(A) triu(B)", "Upper", "_upper", torch.triu),
    "transposed_a": Problem("transposed_a", 16, "C = A.T B", "TransposedA", "_transposed_a", _everything),
}


def label(dims):
    return "x".join(map(str, dims))


# ======================================================================================================================
# 3. Inputs
# ======================================================================================================================


class Draw:
    """Random float64 matrices on a device, from a stream of their own: a seed repeats them whatever else is drawn."""

    def __init__(self, seed, name, device, tf32=False):
        self.device, self.tf32 = device, tf32
        drawn = hashlib.sha256(f"{seed} {name}".encode()).digest()
        self.generator = torch.Generator(device).manual_seed(int.from_bytes(drawn[:8], "little") >> 1)

    def uniform(self, *shape):
        return torch.rand(*shape, dtype=torch.float64, device=self.device, generator=self.generator)

    def normal(self, *shape):
        return torch.randn(*shape, dtype=torch.float64, device=self.device, generator=self.generator)

    def decades(self, span, *shape):
        """10^U(-span, span)"""
        return 10.0 ** (span * (2 * self.uniform(*shape) - 1))


# Each makes A and B in float64 from a Draw, their shapes and the dtype; what the problem does not read is masked away afterwards.


def _each(make):
    """A and B alike: make(draw, shape)."""
    return lambda draw, a, b, dtype: (make(draw, a), make(draw, b))


def _integers(draw, a, b, dtype):
    # Terms up to limit^2, so that a sum of K of them needs no bit that the accumulator lacks. 4 keeps float16 from overflowing.
    bits = {torch.float64: 53, torch.float32: 24}.get(dtype)
    limit = 4 if bits is None else max(1, math.isqrt(2**bits // max(1, a[0])))
    limit = min(limit, 1024) if draw.tf32 else limit  # which holds 11 bits
    return tuple(torch.floor((2 * limit + 1) * draw.uniform(*shape)) - limit for shape in (a, b))


def _elimination(draw, a, b, dtype):
    """Products of these are what LU without pivoting multiplies: ones on the diagonal, one column (and row) of wild multipliers."""
    made, span = [], 2 if dtype in (torch.float16, torch.bfloat16) else 8
    for place, (rows, cols) in ((3, a), (2, b)):
        X = torch.eye(rows, cols, dtype=torch.float64, device=draw.device)
        at = min(rows, cols) // place
        X[at:, at] = draw.normal(rows - at) * draw.decades(span, rows - at)
        X[at, at:] = draw.normal(cols - at) * draw.decades(span, cols - at)
        X[at, at] = 1
        made.append(X)
    return made


def _unit(draw, shape):
    """Ones on the diagonal and multipliers of at most 1, as LU with pivoting leaves them."""
    X = 2 * draw.uniform(*shape) - 1
    X.diagonal().fill_(1)
    return X


def _cholesky(draw, shape):
    """The factor L of a Gaussian-kernel Gram matrix, whose pivots fall to the 1e-8 that keeps it positive definite."""
    x = draw.uniform(max(shape)).cpu().sort().values
    gram = torch.exp(-(((x[:, None] - x) / 0.1) ** 2) / 2)
    for ridge in (1e-8, 1e-6, 1e-4):  # more, where rounding errors leave a pivot below zero
        gram.diagonal().add_(ridge)
        L, failed = torch.linalg.cholesky_ex(gram)
        if not failed:
            break
    # Its transpose stands above the diagonal, so that an upper triangular problem finds a factor too.
    return (L + L.tril(-1).mT)[: shape[0], : shape[1]].to(draw.device)


def _scaled(which, along, span):
    def make(draw, a, b, dtype):
        made = [draw.normal(*a), draw.normal(*b)]
        rows, cols = made[which].shape
        made[which] *= draw.decades(span, rows, 1) if along == "rows" else draw.decades(span, 1, cols)
        return made

    return make


def _graded(draw, a, b, dtype):
    """The index that is summed over graded from 1e-15 to 1e15 in A, and inversely in B: every term is of ordinary size."""
    K = b[0]
    grade = 10.0 ** torch.linspace(-15, 15, K, dtype=torch.float64, device=draw.device)
    A, B = draw.normal(*a), draw.normal(*b)
    return (A * grade if a[0] == a[1] == K else A * grade[:, None]), B / grade[:, None]


def _about(*scales):
    return lambda draw, a, b, dtype: [s * (0.5 + draw.uniform(*x)) * draw.normal(*x).sign() for s, x in zip(scales, (a, b), strict=True)]


def _near_overflow(draw, a, b, dtype):
    scale = math.sqrt(torch.finfo(torch.float32).max / (16 * max(1, a[0])))  # of 1e17 and more; |A||B| stays just below the largest number
    return scale * draw.normal(*a), scale * draw.normal(*b)


def _single(value):
    def make(draw, a, b, dtype):
        A, B = draw.normal(*a), draw.normal(*b)
        for X, (p, q) in ((A, (3, 5)), (B, (2, 7))):
            rows, cols = X.shape
            X[rows - 1 - rows // p, cols // q] = value  # one of these two lies in the triangle, whichever it is
            X[rows // q, cols - 1 - cols // p] = value
        return A, B

    return make


@dataclass(frozen=True)
class Distribution:
    make: Callable
    wide: bool = False  # needs the exponent range of float32: not for the 16-bit types
    float32_only: bool = False  # about the ends of float32's range
    exact: bool = False  # every term and sum is representable: no error is allowed
    kernelbench: bool = False  # what KernelBench draws, so its criterion applies

    def suits(self, dtype):
        return dtype == torch.float32 if self.float32_only else not (self.wide and dtype in (torch.float16, torch.bfloat16))


ORDINARY = {
    "uniform": Distribution(_each(lambda draw, shape: draw.uniform(*shape)), kernelbench=True),
    "normal": Distribution(_each(lambda draw, shape: draw.normal(*shape))),
    "signed": Distribution(_each(lambda draw, shape: 2 * draw.uniform(*shape) - 1)),
}
HARD = {
    "integers": Distribution(_integers, exact=True),
    "sparse": Distribution(_each(lambda draw, shape: draw.normal(*shape) * (draw.uniform(*shape) < 0.02))),
    "identity A": Distribution(lambda draw, a, b, dtype: (torch.eye(*a, dtype=torch.float64, device=draw.device), draw.normal(*b))),
    "elimination": Distribution(_elimination),
    "unit diagonal": Distribution(_each(_unit)),
    "Cholesky, near singular": Distribution(_each(_cholesky)),
    "rows of A over 2 decades": Distribution(_scaled(0, "rows", 1)),
    "lognormal, sigma 3": Distribution(_each(lambda draw, shape: torch.exp(3 * draw.normal(*shape))), wide=True),
    "rows of A over 16 decades": Distribution(_scaled(0, "rows", 8), wide=True),
    "columns of A over 16": Distribution(_scaled(0, "columns", 8), wide=True),
    "rows of B over 16": Distribution(_scaled(1, "rows", 8), wide=True),
    "columns of B over 16": Distribution(_scaled(1, "columns", 8), wide=True),
    "graded inversely 1e+-15": Distribution(_graded, wide=True),
    "one tiny entry": Distribution(_single(1e-30), wide=True),
    "one huge entry": Distribution(_single(1e30), wide=True),
    "near overflow": Distribution(_near_overflow, float32_only=True),
    "about 1e18 and 1e-20": Distribution(_about(1e18, 1e-20), float32_only=True),
    "about 1e-20": Distribution(_about(1e-20, 1e-20), float32_only=True),
    "denormals and 1e10": Distribution(_about(1e-39, 1e10), float32_only=True),
}
DISTRIBUTIONS = ORDINARY | HARD

# ======================================================================================================================
# 4. Truth and errors
# ======================================================================================================================


def slices(X, along, bits):
    """X (float64) as a sum of parts with at most `bits` bits below the leading one of the largest element `along` a dimension."""
    parts, rest = [], X.clone()
    while bool(rest.any()):
        largest = rest.abs().amax(along, keepdim=True)
        mantissa, _ = torch.frexp(largest)
        unit = torch.where(largest > 0, largest / mantissa, 1.0) * 2.0**-bits  # largest / mantissa is a power of two, exactly
        unit.clamp_min_(5e-324)  # the smallest number there is: nothing lies below it
        parts.append(torch.round(rest / unit) * unit)
        rest -= parts[-1]
    return parts


def float64_product(X, Y, keep):
    """keep(X @ Y) in float64. A large product is made of blocks of rows, each without the columns of X that are zero there and without
    those of the result that are not kept: a third to a sixth of the work."""
    X, Y = X.double(), Y.double()
    rows, columns = X.shape[-2], Y.shape[-1]
    if rows < 512:
        return keep(X @ Y)
    kept = keep(torch.ones(rows, columns, dtype=torch.bool, device=X.device))
    C = X.new_zeros(*X.shape[:-1], columns)
    for part in (slice(first, first + rows // 8 + 1) for first in range(0, rows, rows // 8 + 1)):
        there = [Z.any(0).nonzero().flatten().tolist() for Z in (X[..., part, :].flatten(0, -2), kept[part])]
        if all(there):
            k, j = (slice(found[0], found[-1] + 1) for found in there)
            C[..., part, j] = X[..., part, k] @ Y[..., k, j]
    return keep(C)


def exact_product(X, Y, keep=_everything):
    """keep(X @ Y) as a pair of float64 (high, low); low is None where float64 products of narrower inputs leave nothing to correct."""
    if X.dtype != torch.float64:
        return float64_product(X, Y, keep), None
    # A sum of n products of two b-bit numbers is exact in float64 while 2 b + log2 n <= 53 (Ozaki et al., Numer. Algorithms 59, 2012).
    bits = (53 - max(1, X.shape[-1]).bit_length()) // 2
    high = X.new_zeros(*X.shape[:-1], Y.shape[-1])
    low = high.clone()
    y_parts = slices(Y, -2, bits)
    for x in slices(X, -1, bits):
        for y in y_parts:
            part = float64_product(x, y, keep)
            total = high + part  # Knuth's two-sum: the rounding error of high + part is kept in low
            back = total - high
            low += (high - (total - back)) + (part - back)
            high = total
    return high, low


def may_underflow(X, Y):
    """Where X @ Y has a product under float32's smallest normal number, within a factor of 4: 1.0 (float64), else 0.0."""
    hits = torch.zeros(*X.shape[:-1], Y.shape[-1], dtype=torch.float64, device=X.device)
    # |x| < 2^e_x and |x| >= 2^(e_x - 1), so a product is at least 2^(e_x + e_y - 2); the smallest normal number is 2^-126.
    (x_exponent, x_there), (y_exponent, y_there) = ((torch.frexp(Z.double())[1], Z != 0) for Z in (X, Y))
    if bool(x_there.any()) and bool(y_there.any()):
        lowest_y = int(y_exponent[y_there].min())
        for e in torch.unique(x_exponent[x_there]).tolist():
            if e + lowest_y - 2 < -126:
                rows, cols = (x_exponent == e) & x_there, (y_exponent < -124 - e) & y_there
                hits[rows.float() @ cols.float() > 0.5] = 1.0
    return hits


def one_sign(X):
    return bool((X >= 0).all()) or bool((X <= 0).all())


def narrow(dtype):
    return dtype in (torch.float16, torch.bfloat16)


def allowed(dtype, terms, tf32=False):
    """The componentwise errors that a solution may have in any case, and that no reference can excuse. The manual derives them."""
    root, u = math.sqrt(max(1, terms)), torch.finfo(dtype).eps / 2
    if tf32:
        return 2.0**-10 + 2.0**-22 + root * 2.0**-23, 2.0**-8
    return (root * 2.0**-23, 4 * u) if narrow(dtype) else (1e-6 * (u / 2.0**-24), 16 * root * u)


@dataclass
class Truth:
    """What a product should be, and by what an element may be off. All float64 (m, n)."""

    high: torch.Tensor
    low: torch.Tensor | None
    magnitude: torch.Tensor  # |A||B|
    forgiven: torch.Tensor | float  # absolute: the rounding of 16-bit results, and what underflow may take
    judged: torch.Tensor  # where no partial sum can overflow
    terms: int
    dtype: torch.dtype
    keep: Callable
    exact: bool = False
    tf32: bool = False

    @classmethod
    def of(cls, X, Y, keep, exact=False, tf32=False):
        dtype, terms, info = X.dtype, X.shape[-1], torch.finfo(X.dtype)
        high, low = exact_product(X, Y, keep)
        magnitude = high.abs() if one_sign(X) and one_sign(Y) else float64_product(X.abs(), Y.abs(), keep)
        forgiven = 0.0
        if exact:  # what is left is one rounding to the result's dtype
            high = high.to(dtype).double()
        elif dtype == torch.float32:
            tiny = (high != 0) & (high.abs() < info.smallest_normal)
            forgiven = (may_underflow(X, Y) * terms + tiny) * info.smallest_normal
        elif narrow(dtype):
            # Half a unit in the last place: info.eps / 2 of a normal number, half the spacing of the denormal ones.
            forgiven = (high.abs() * (info.eps / 2)).clamp_min_(info.smallest_normal * info.eps / 2)
        return cls(high, low, magnitude, forgiven, magnitude <= info.max, terms, dtype, keep, exact, tf32)

    def errors(self, C):
        """The componentwise error of each element of C; Inf where an element is NaN or Inf and should not be."""
        off = C.detach().double() - self.high
        if self.low is not None:
            off -= self.low
        off = off.abs_().sub_(self.forgiven).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)
        relative = torch.where(self.magnitude > 0, off / self.magnitude, torch.where(off > 0, math.inf, 0.0))
        return torch.where(self.judged, self.keep(relative), 0.0)

    def bound(self, reference_worst):
        """What the worst componentwise error may be."""
        floor, most = allowed(self.dtype, self.terms, self.tf32)
        return 0.0 if self.exact else max(floor, min(2 * reference_worst, most))


def worst_of(errors):
    """The largest error and its coordinates."""
    at = errors.argmax()
    return float(errors.flatten()[at]), tuple(int(i) for i in torch.unravel_index(at, errors.shape))


def located(X, at):
    """An element, as a reader looks for it."""
    return f"[{', '.join(map(str, at))}] = {float(X[at]):.9g}"


# ======================================================================================================================
# 5. Memory that processes share
# ======================================================================================================================


class GpuMemory:
    """Allocations of CUDA memory as other processes see them: by a handle of 64 bytes (CUDA driver API, IPC)."""

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    def __init__(self):
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CannotRun(f"CUDA memory cannot be shared between processes: {error}") from None
        self.driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, self.Handle, ctypes.c_uint]
        self.opened = {}

    def call(self, name, *arguments):
        if status := getattr(self.driver, name)(*arguments):
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{name} fails: {(text.value or b'CUDA error').decode()} ({status})")

    def attribute(self, number, device):
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, device.index)
        return value.value

    def range(self, address):
        """Base and bytes of the allocation that holds an address."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def export(self, address):
        """(handle, offset) of an address."""
        base, handle = self.range(address)[0], self.Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle.bytes).hex(), address - base

    def open(self, handle, device):
        """All of another process's allocation, as bytes (a tensor)."""
        if handle not in self.opened:
            address = ctypes.c_uint64()
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), self.Handle.from_buffer_copy(bytes.fromhex(handle)), 1)
            self.opened[handle] = address.value
        base, size = self.range(self.opened[handle])
        interface = {"shape": (size,), "typestr": "|u1", "data": (base, False), "version": 3}
        return torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=interface), device=device)

    def close(self):
        """Gives back what open() has mapped."""
        while self.opened:
            self.call("cuIpcCloseMemHandle", ctypes.c_uint64(self.opened.popitem()[1]))


class Slab:
    """Memory in which the judge puts inputs and where the children read them. `place`: how a child finds it, for JSON."""

    ALIGNMENT = 512  # bytes, as torch's own CUDA allocator has it

    def __init__(self, device, size, place=None):
        self.device, self.size, self.place = device, size, place
        if device.type == "cuda" and place is None:
            self.bytes = torch.empty(size, dtype=torch.uint8, device=device)
            self.place = GpuMemory().export(self.bytes.data_ptr())
        elif device.type == "cuda":
            self.bytes = GpuMemory().open(place[0], device)[place[1] : place[1] + size]
        else:
            if place is None:
                self.place = os.memfd_create("inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                os.ftruncate(self.place, size)
                fcntl.fcntl(self.place, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)  # a size for ever
            self.bytes = torch.frombuffer(mmap.mmap(self.place, size), dtype=torch.uint8)

    def view(self, dtype, shape, offset):
        return self.bytes[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


# ======================================================================================================================
# 6. The child: all of it runs beside the solution, which may read and change it. The judge counts on none of it
# ======================================================================================================================


def describe(error):
    """An error and the line of the file at fault that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != os.path.abspath(__file__)]
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class Moment:
    """On a CPU, what torch.cuda.Event is on a GPU."""

    def record(self):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3


class Child:
    """Answers the judge's requests: each is a method with its arguments, each answer a dict."""

    def __init__(self, device, size, place):
        self.device, self.cuda = torch.device(device), device.startswith("cuda")
        if self.cuda:
            torch.cuda.set_device(self.device)
            torch.empty(1, device=self.device)  # the context, without which nothing can be opened
            self.gpu = GpuMemory()
        else:
            torch.utils.deterministic.fill_uninitialized_memory = True
            warnings.filterwarnings("ignore", message=".*deterministic.*")
        self.slab = Slab(self.device, size, place)
        self.at = self.slab.bytes.data_ptr()
        self.asleep = torch.ones(8, 8, device=self.device, requires_grad=True)

    def start(self):
        return {"guard": GUARD}

    def load(self, path, text, classes, arguments, tf32):
        """The file as KernelBench has it: no __file__, no __name__. Its name is for tracebacks and inspect.getsource (Triton needs it)."""
        if arguments is None:  # the reference: the judge has opened its memory, nobody else shall
            LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        names = {}
        exec(compile(text, path, "exec"), names)
        found = next((name for name in classes if name in names), None)
        if found is None:
            return {"missing": f"defines no class {' or '.join(dict.fromkeys(classes))}"}
        if arguments is None:
            arguments = list(names["get_init_inputs"]()) if "get_init_inputs" in names else []
        self.model = names[found](*arguments).to(self.device)
        sys.stdout.flush(), LIBC.fflush(None)  # what is printed until here is no crime
        return {"class": found, "arguments": arguments}

    def prepare(self, mode, dtype, shapes, inputs, poisoned, timed):
        """Makes ready for calls whose inputs will stand at these places of the slab. `shapes`: of each call's results. Drops the last
        results, and poisons free memory, where blocks of these sizes will be wanted."""
        self.mode, self.dtype, self.shapes, self.answers = mode, DTYPES[dtype], shapes, []
        self.operands = [[self.slab.view(self.dtype, *place) for place in each] for each in inputs]
        if mode == "gradients":
            self.operands = [(A.requires_grad_(), B.requires_grad_(), G) for A, B, G in self.operands]
        self.marks = [torch.cuda.Event(enable_timing=True) if self.cuda else Moment() for _ in range(len(inputs) + 1)]
        if self.cuda:
            blocks = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in poisoned]
            free = [b["size"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "inactive"]
            for block in [*blocks, *(torch.empty(size, dtype=torch.uint8, device=self.device) for size in free)]:
                block.fill_(255)
            torch.cuda.synchronize(self.device)
        else:
            # Freed memory often goes back to the system and returns as zeros: torch's own debugging aid fills every new tensor, which takes
            # time. (The public function imports torch's compiler, which takes more.)
            torch._C._set_deterministic_algorithms(not timed, warn_only=True)
        return {}

    def calls(self):
        """The calls, one after the other; says where their results lie, or what is wrong with them, while the GPU is at work."""
        call = getattr(self, self.mode)
        start, *ends = self.marks
        for _ in range(2):  # wakes what has slept while the process was stopped: threads, caches, the driver
            torch.autograd.grad((self.asleep * self.asleep).sum(), self.asleep)
        with torch.set_grad_enabled(self.mode == "gradients"):
            start.record()
            for operands, end in zip(self.operands, ends, strict=True):
                try:
                    answer = call(*operands)
                except BaseException as error:  # SystemExit too: the solution may not end the child
                    answer = error
                end.record()
                self.answers.append(answer)
        yield {"calls": [self.locate(answer, shapes) for answer, shapes in zip(self.answers, self.shapes, strict=True)]}
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def times(self):
        """Microseconds from each mark to the next."""
        return {"us": [start.elapsed_time(end) * 1e3 for start, end in itertools.pairwise(self.marks)]}

    # ---- The modes: what a call is. ----------------------------------------------------------------------------------

    def forward(self, A, B):
        return (self.model(A, B),)

    def gradients(self, A, B, G):
        C = self.model(A, B)
        if not C.requires_grad:
            raise Wrong("the result does not require a gradient when the inputs do")
        return C, *torch.autograd.grad(C, (A, B), G, allow_unused=True)

    def locate(self, answer, shapes):
        """Where the results of one call lie, or what is wrong with them in the child's own eyes."""
        if isinstance(answer, torch.OutOfMemoryError):
            return {"no_memory": str(answer)}
        if isinstance(answer, BaseException):
            return {"wrong": str(answer) if isinstance(answer, Wrong) else f"the solution raises {describe(answer)}"}
        if self.slab.bytes.data_ptr() != self.at:
            return {"wrong": "an input is moved to other memory (share_memory_() does so), where later inputs do not arrive"}
        results = []
        for name, X, shape in zip(("the result" if len(shapes) == 1 else "C", "dA", "dB"), answer, shapes, strict=False):
            if type(X) is not torch.Tensor:
                return {"wrong": f"{name} is a {type(X).__module__}.{type(X).__qualname__}, not a plain torch.Tensor"}
            is_, should = (list(X.shape), X.dtype, X.device, X.layout), (shape, self.dtype, self.device, torch.strided)
            for what, x, y in zip(("shape", "dtype", "device", "layout"), is_, should, strict=True):
                if x != y:
                    return {"wrong": f"{name}'s {what} is {x}, and should be {y}"}
            if self.at <= X.data_ptr() < self.at + self.slab.size:
                return {"wrong": f"{name} shares memory with an input"}
            place = self.gpu.export(X.data_ptr()) if self.cuda else (X.data_ptr(), 0)
            results.append([*place, list(X.stride())])
        return {"results": results}


def serve(requests, answers, device, size, place, **_):
    """A child's main function: answers each request, a line of JSON, with other such lines, and an empty line when all is done."""
    child = None
    with os.fdopen(requests) as todo, os.fdopen(answers, "w") as done:
        for line in todo:
            request = json.loads(line)
            try:
                child = child or Child(device, size, place)
                said = getattr(child, request.pop("do"))(**request)
                for answer in [said] if isinstance(said, dict) else said:
                    print(json.dumps(answer), file=done, flush=True)
            except BaseException as error:  # SystemExit too
                print(json.dumps({"raises": describe(error)}), file=done)
            print(file=done, flush=True)


# ======================================================================================================================
# 7. The judge's side of a child
# ======================================================================================================================

ANSWER_BYTES = 16 << 20  # of one answer at most
RELAYED_LINES = 200  # of a child's output
LOADING = 10  # times --timeout: a file may compile when it is loaded
STOPPING = 2.0  # seconds that a signal may take
DOING = {"start": "it starts", "load": "it is loaded", "calls": "it answers a request"}
# A process that ends the groups which it is told of, as soon as nobody can tell it more: the judge is gone, or killed.
WARDEN = """
import os, signal
[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]
groups = b""
while piece := os.read(0, 4096):
    groups += piece
for group in groups.split():
    try:
        os.killpg(int(group), 9)
    except OSError:
        pass
"""


def send(number, group):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def printable(text, most=400):
    """Without what could draw on a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:most]


class Contender:
    """A file and the child process that runs it; its process group is stopped but for the time in which it answers. `who`: 'solution' or
    'reference'."""

    def __init__(self, who, path, slab, relay, others=(), warden=None):
        self.who, self.path, self.slab, self.relay, self.relayed = who, path, slab, relay, 0
        self.last_words, self.heard, self.memory = b"", 0, None
        self.gpu = GpuMemory() if slab.device.type == "cuda" else None
        self.stdout = tempfile.TemporaryFile()  # noqa: SIM115
        todo, self.todo = os.pipe()
        self.answers, done = os.pipe()
        spec = {"judge": os.getpid(), "others": others, "requests": todo, "answers": done}
        spec |= {"device": str(slab.device), "size": slab.size, "place": slab.place}
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=self.stdout,
            stderr=subprocess.PIPE,
            pass_fds=[todo, done] + ([slab.place] if slab.device.type == "cpu" else []),
            start_new_session=True,  # a group of its own, and no terminal
        )
        if warden:
            os.write(warden, b"%d\n" % self.process.pid)
        os.close(todo), os.close(done)
        for fd in (self.todo, self.process.stderr.fileno()):
            os.set_blocking(fd, False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(200):  # until nobody of the group is left
            send(signal.SIGKILL, self.process.pid)
            self.process.poll()
            try:
                os.killpg(self.process.pid, 0)
            except OSError:
                break
            time.sleep(0.005)
        self.process.wait()
        self.process.stderr.close(), self.stdout.close()
        for fd in filter(None, (self.todo, self.answers, self.memory)):
            os.close(fd)

    def stop(self):
        """Waits until the child stands still. Its descendants get the same signal, and none can send one that undoes it."""
        deadline = time.perf_counter() + STOPPING
        send(signal.SIGSTOP, self.process.pid)
        while self.process.poll() is None and not os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
            time.sleep(5e-5)
            if time.perf_counter() > deadline:
                raise Ended(f"the {self.who}'s process does not stand still when it is stopped")
        time.sleep(2e-4)  # in which the last of them, too, will have met the signal

    # ---- Requests and answers. ---------------------------------------------------------------------------------------

    def ask(self, do, limit, **arguments):
        """The child's answer; Ended if there is none within `limit` seconds. The child runs in between, and only then. (After "calls" the
        caller waits until it stands, because that takes time.)"""
        if select.select([self.answers], [], [], 0)[0] and self.process.poll() is None:
            raise Ended(f"the {self.who}'s process answers what it has not been asked")
        send(signal.SIGCONT, self.process.pid)
        try:
            answer = self.exchange(do, (json.dumps({"do": do, **arguments}) + "\n").encode(), time.perf_counter() + limit, limit)
        finally:
            send(signal.SIGSTOP, self.process.pid)
        if do != "calls":
            self.stop()
        if "raises" in answer:
            raise Ended(f"the {self.who} raises {printable(answer['raises'])}")
        if "missing" in answer:
            raise CannotRun(f"--{self.who} {self.path}: {printable(answer['missing'])}")
        return answer

    def exchange(self, do, request, deadline, limit):
        """Writes a request, and reads the object that answers it; what the child writes to standard error is relayed meanwhile."""
        data, answer = b"", None
        while not data.endswith(b"\n\n"):
            ready, room, _ = select.select([self.answers, self.process.stderr], [self.todo] if request else [], [], 0.1)
            if room:
                with contextlib.suppress(BrokenPipeError, BlockingIOError):
                    request = request[os.write(self.todo, request) :]
            if self.answers in ready:
                piece = os.read(self.answers, 1 << 20)
                data += piece
                if not piece:
                    self.raise_ended(do)
                if len(data) > ANSWER_BYTES:
                    raise Ended(f"the {self.who}'s process answers with more than {ANSWER_BYTES >> 20} MB")
                if b"\n" in piece and (answer is None or piece.strip()):  # now, while the child is at work, not when it is done
                    answer = self.parse(data)
            elif self.process.poll() is not None:
                self.raise_ended(do)
            self.listen()
            if time.perf_counter() > deadline:
                raise Ended(f"the {self.who} hangs: no answer within {limit:.0f} s while {DOING.get(do, 'it prepares')}")
        return answer

    def parse(self, data):
        """The last object of what the child has said so far."""
        try:
            return dict(json.loads([line for line in data[: data.rindex(b"\n")].split(b"\n") if line][-1]))
        except (ValueError, TypeError, IndexError, RecursionError):
            raise Ended(f"the {self.who}'s process answers the judge with something of its own: {printable(data, 80)}") from None

    def listen(self):
        if piece := self.process.stderr.read(1 << 16):
            *lines, self.last_words = (self.last_words + piece).split(b"\n")
            self.last_words = self.last_words[-4096:]
            self.pass_on(lines)

    def pass_on(self, lines):
        for line in lines[: max(0, RELAYED_LINES - self.relayed)]:
            self.relayed += 1
            self.relay(f"{self.who}: {printable(line.decode(errors='replace'))}")

    def raise_ended(self, do):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.listen()
        code = self.process.returncode
        names = {int(number): number.name for number in signal.Signals}
        how = f"ends with status {code}" if (code or 0) >= 0 else f"is killed by {names.get(-code, f'signal {-code}')}"
        how = "closes its channel" if code is None else how
        raise Ended(f"the {self.who}'s process {how} while {DOING.get(do, 'it prepares')}")

    def printed(self):
        """What the child has written to its standard output since this was asked last."""
        text = os.pread(self.stdout.fileno(), 1 << 16, self.heard)
        self.heard = os.fstat(self.stdout.fileno()).st_size
        return text

    # ---- Results, taken out of the child's memory. -------------------------------------------------------------------

    def fetch(self, result, shape, dtype):
        """A copy of one result (a tensor), where the child has said that it lies; that is checked as far as it has to be true."""
        try:
            place, offset, strides = result
            elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            if min(offset, *strides) < 0 or elements > 64 * math.prod(shape) + 4096:
                raise ValueError(f"offset {offset}, strides {strides}")
            size = elements * dtype.itemsize
            if self.gpu:
                flat = self.gpu.open(place, self.slab.device)[offset : offset + size]
            else:
                flat = torch.frombuffer(self.read(place, size), dtype=torch.uint8)
            return torch.as_strided(flat.view(dtype), shape, strides).clone(memory_format=torch.contiguous_format)
        except (OSError, RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise Wrong(f"the result cannot be read in the memory of the {self.who}'s process: {printable(error)}") from None

    def read(self, address, size):
        """Bytes of the child's memory."""
        buffer, done = bytearray(size), 0
        while done < size:
            got = os.preadv(self.memory, [memoryview(buffer)[done:]], address + done)
            if not got:
                raise OSError("its memory ends there")
            done += got
        return buffer


# ======================================================================================================================
# 8. The judgement: values
# ======================================================================================================================

MODES = {"forward": "", "gradients": ", gradients"}  # and how the table calls them


def bits(X):
    """The same memory as integers, so that equal means bitwise equal, NaN included."""
    return X.detach().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[X.element_size()])


def same_bits(X, Y):
    return torch.equal(bits(X), bits(Y))


def first_difference(X, Y):
    at = tuple((bits(X) != bits(Y)).nonzero()[0].tolist())
    return f"{located(X, at)} and {float(Y[at]):.9g}"


@dataclass
class Call:
    """One call. `results`: C (and dA, dB), or what is wrong with them."""

    name: str  # of the inputs' distribution
    dims: tuple
    nbytes: int  # that the inputs take in a slab
    make: Callable  # the inputs, the same each time
    mode: str = "forward"
    copy_of: "Call | None" = None  # whose inputs are the same
    results: "list | Wrong | None" = None
    row: dict = field(default_factory=dict)

    @functools.cached_property
    def inputs(self):
        """A, B and, for gradients, G. They are made when the call's turn comes: all calls' together are more than a GPU may hold."""
        return self.make()

    def forget(self):
        self.results = None
        vars(self).pop("inputs", None)


@dataclass
class Run:
    """One solution, one reference, and how they are to be compared."""

    problem: Problem
    size: int
    dtype: torch.dtype
    slab: Slab
    seed: int
    timeout: float
    report: "Report"
    tf32: bool = False  # torch's setting allows it
    batches: bool = False  # are judged, too
    reference: Contender | None = None
    solution: Contender | None = None
    timings: dict = field(default_factory=dict)
    drawn: int = 0
    memory: tuple = (math.inf, 0)  # bytes a second that it gives at most, and bytes that a cache may hold instead

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.cuda = self.slab.device.type == "cuda"
        self.dims, self.most = self.problem.headline(self.size), self.problem.most(self.size)
        self.dtype_name = str(self.dtype).removeprefix("torch.")
        self.quiet = self.probe()  # seconds, before any line of the solution has run
        if self.cuda:
            kilohertz, width, cache = (GpuMemory().attribute(n, self.slab.device) for n in (36, 37, 38))
            self.memory = (2e3 * kilohertz * width / 8 or math.inf, cache)  # two words a clock

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize(self.slab.device)

    def probe(self):
        """Seconds that next to nothing takes on the GPU."""
        took = []
        for _ in range(9 if self.cuda else 0):
            begun = time.perf_counter()
            self.slab.bytes[:1].clone()
            self.wait()
            took.append(time.perf_counter() - begun)
        return statistics.median(took or [0.0])

    def wait_for_a_quiet_gpu(self):
        """A solution that leaves work behind would slow the reference down, or compute before the clock runs."""
        deadline = time.perf_counter() + STOPPING
        while all(self.probe() > 10 * self.quiet + 2e-4 for _ in range(3)):
            if time.perf_counter() > deadline:
                raise CannotRun(
                    f"{self.slab.device} is at work while no call is answered: by the solution, or by others; nothing can be said"
                )

    # ---- Requests. ---------------------------------------------------------------------------------------------------

    def call(self, name, dims, mode="forward"):
        """A call with fresh inputs, of which each matrix has a random sign."""
        self.drawn += 1
        *operands, result = self.problem.shapes(dims)
        signs = self.random.choices((1, -1), k=2)

        def inputs(number=self.drawn):
            draw = Draw(self.seed, number, self.slab.device, self.tf32)
            made = zip(DISTRIBUTIONS[name].make(draw, *operands, self.dtype), signs, strict=True)
            made = [self.problem.keep(X * sign) for X, sign in made] + [draw.normal(*result) for _ in range(mode == "gradients")]
            return [X.to(self.dtype).contiguous() for X in made]

        read = [*operands, result] if mode == "gradients" else operands
        return Call(name, dims, sum(math.prod(shape) * self.dtype.itemsize + Slab.ALIGNMENT for shape in read), inputs, mode)

    def result_shapes(self, call):
        *operands, result = self.problem.shapes(call.dims)
        return [list(shape) for shape in ([result, *operands] if call.mode == "gradients" else [result])]

    def places(self, calls):
        """Shape and offset in the slab of each call's inputs, often in random order."""
        wanted = [(c, i) for c, call in enumerate(calls) for i in range(len(call.inputs))]
        if self.random.random() < 0.5:  # else the same place serves one input after the other, as in a user's loop
            self.random.shuffle(wanted)
        places, at = [[None] * len(call.inputs) for call in calls], 0
        for c, i in wanted:
            X = calls[c].inputs[i]
            places[c][i] = (list(X.shape), at)
            at += -(-X.nbytes // Slab.ALIGNMENT) * Slab.ALIGNMENT
        return places

    @contextlib.contextmanager
    def blame(self, contender):
        """What goes wrong with the reference says nothing about the solution."""
        try:
            yield
        except Wrong as wrong:
            if contender is self.solution:
                raise
            beside = ", with the solution loaded beside it" if self.solution else ""
            raise CannotRun(f"--reference {self.reference.path}: {wrong}{beside}") from None

    def request(self, contender, mode, calls, limit, timed=False):
        """Asks for these calls and takes their results. Returns the seconds from outside."""
        with self.blame(contender):
            took = self.exchange(contender, mode, calls, limit, timed)
            if contender is self.reference and (wrong := [call.results for call in calls if isinstance(call.results, Wrong)]):
                raise wrong[0]
        return took

    def exchange(self, contender, mode, calls, limit, timed):
        shapes, places = [self.result_shapes(call) for call in calls], self.places(calls)
        poisoned = [math.prod(shape) * self.dtype.itemsize for made in shapes for shape in made]
        poisoned += [max(poisoned) * 9 // 8, 2 * max(poisoned), *[1 << p for p in range(9, 21)] * 2]  # workspaces, and small things
        contender.ask("prepare", limit, mode=mode, dtype=self.dtype_name, shapes=shapes, inputs=places, poisoned=poisoned, timed=timed)
        shared = [[self.slab.view(self.dtype, *place) for place in each] for each in places]
        for call, views in zip(calls, shared, strict=True):  # while the child stands still
            for X, view in zip(call.inputs, views, strict=True):
                view.copy_(X)
        self.wait()
        if contender is self.solution and self.cuda:
            self.wait_for_a_quiet_gpu()
        begun = time.perf_counter()
        said = contender.ask("calls", limit).get("calls")
        if not isinstance(said, list) or len(said) != len(calls):
            raise Ended(f"the {contender.who}'s process does not answer for each call")
        # What is taken first cannot be known, so all has to be there when the child says that it is. A GPU may be at work even then: the
        # clock runs until the first result is here.
        order = self.random.sample(range(len(calls)), len(calls))
        if self.cuda:
            self.take(contender, calls[order[0]], said[order[0]], shapes[order[0]])
            self.wait()
        took = time.perf_counter() - begun
        contender.stop()
        for n in order[self.cuda :]:
            self.take(contender, calls[n], said[n], shapes[n])
        self.wait()
        if self.cuda and len(contender.gpu.opened) > 2 * len(calls) * len(shapes[0]):  # else the next results may lie there again
            contender.gpu.close()
        for call, views in zip(calls, shared, strict=True):
            for name, X, view in zip("ABG", call.inputs, views, strict=False):
                if not same_bits(X, view):
                    call.results = Wrong(f"the input {name} is modified, first at {first_difference(X, view)}")
        return took

    def take(self, contender, call, said, shapes):
        """The results of one call, out of the child's memory, as far as what was said of them is believable."""
        said = said if isinstance(said, dict) else {"wrong": said}
        if "no_memory" in said:
            short = f"not enough memory on {self.slab.device} for the {contender.who}"
            raise CannotRun(f"{short}: {printable(said['no_memory'])}; try a smaller --size")
        places = said.get("results")
        try:
            if not isinstance(places, list) or len(places) != len(shapes):
                raise Wrong(printable(said.get("wrong")))
            call.results = [contender.fetch(place, shape, self.dtype) for place, shape in zip(places, shapes, strict=True)]
        except Wrong as wrong:
            call.results = wrong

    def refer(self, calls, mode):
        """The reference's results for the same inputs (a list for each call), and how long it took."""
        asked = [Call(c.name, c.dims, c.nbytes, lambda c=c: c.inputs, c.mode) for c in calls]
        took = self.request(self.reference, mode, asked, LOADING * self.timeout)
        return [call.results for call in asked], took

    # ---- One call's results against the truth. -----------------------------------------------------------------------

    def examine(self, call, reference=None):
        """Raises Wrong if one of the call's results is; notes the errors in call.row. Without the reference's results it asks for them,
        but only where they could loosen the bound."""
        if isinstance(call.results, Wrong):
            raise call.results
        distribution = DISTRIBUTIONS[call.name]
        for i, (name, X, Y) in enumerate(self.problem.products(*call.inputs)):
            exact = distribution.exact and call.mode != "gradients"
            C, truth = call.results[i], Truth.of(X, Y, self.problem.keep, exact, self.tf32)
            errors = truth.errors(C)
            error, at = worst_of(errors)
            if reference is None and not error <= truth.bound(0.0):
                reference = self.refer([call], call.mode)[0][0]
            reference_error = None if reference is None else worst_of(truth.errors(reference[i]))[0]
            if reference and call.name in ORDINARY and reference_error > allowed(self.dtype, truth.terms, self.tf32)[1]:
                raise CannotRun(
                    f"--reference {self.reference.path}: its componentwise error of {name} on {call.name} inputs is {reference_error:.1e};"
                    f" it does not compute {self.problem.formula} in {self.dtype_name}, or it is made to use TF32; see --tf32"
                )
            bound = truth.bound(reference_error or 0.0)
            if not call.row or not error / max(bound, 1e-300) <= call.row["error"] / max(call.row["bound"], 1e-300):
                call.row |= {"error": error, "reference_error": reference_error, "bound": bound}
            call.row["unjudged"] = call.row.get("unjudged", 0) + int((~truth.judged).sum())
            if not error <= bound:
                raise Wrong(
                    f"worst element {name}{located(C, at)}, exact {float(truth.high[at]):.9g}, reference {float(reference[i][at]):.9g};"
                    f" its error is {error:.2e} of (|A||B|){located(truth.magnitude, at)}, allowed {bound:.2e};"
                    f" {int((errors > bound).sum())} of {errors.numel()} elements are above the bound"
                )
        C = call.results[0]
        beyond = torch.where(self.problem.keep(torch.ones_like(C)) != 0, 0.0, C) != 0
        if bool(beyond.any()):
            raise Wrong(f"C{located(C, tuple(beyond.nonzero()[0].tolist()))} beyond the diagonal, where exact zeros belong")
        tolerance = 1e-2 if narrow(self.dtype) or self.tf32 else 1e-4
        if distribution.kernelbench and reference and not torch.allclose(C, reference[0], atol=tolerance, rtol=tolerance):
            raise Wrong(f"KernelBench's criterion fails: not allclose to the reference at atol = rtol = {tolerance}")

    # ---- Which calls. ------------------------------------------------------------------------------------------------

    def some_sizes(self, most):
        """Sizes up to `most`, two an octave, half of them at or beside a multiple of a power of two; the rest fits no tile."""
        edges, found = [1, 2, *(round(2 ** (n / 2)) for n in range(3, 2 * most.bit_length()))], []
        for low, high in zip(edges, edges[1:], strict=False):
            size = self.random.randint(low, high - 1)
            if self.random.random() < 0.5:
                step = 1 << self.random.randint(0, max(0, low.bit_length() - 2))
                size = size // step * step + self.random.choice((-1, 0, 1))
            found.append(min(max(1, size), most))
        return found

    def sizes_of_remainder_one(self, most):
        """For each power of two an odd multiple of it, plus one: the last tile, block or cluster of any kernel has a single row there."""
        found = []
        for power in (1 << p for p in range(3, most.bit_length())):
            multiples = range(max(most // power // 4, 1) | 1, most // power + 1, 2)
            found.append(self.random.choice(multiples or [1]) * power + 1)
        return found

    def dims_of(self, sizes):
        """Of as many products, with sizes drawn by such a function."""
        if self.problem.triangular:
            return [(size,) for size in sizes(self.most)]
        columns = [sizes(self.most) for _ in range(3)]  # K, M and N, each in an order of its own
        for column in columns:
            self.random.shuffle(column)
        return list(zip(*columns, strict=True))

    def some_batches(self, number):
        """Dimensions of batches, the small matrices' of some hundreds."""
        for _ in range(number):
            dims = self.random.choice(
                [d for s in (self.some_sizes, self.sizes_of_remainder_one) for d in self.dims_of(s) if 16 * max(d) >= self.most]
            )
            dims = tuple(max(1, d >> self.random.randint(1, 4)) | 1 for d in dims)
            yield (self.random.randint(2, max(2, min(1000, (self.most // max(dims)) ** 2))), *dims)

    def near(self, size):
        """The headline's dimensions at --size or somewhat below `size`."""
        size = min(size, self.size)
        return self.problem.headline(self.random.randint(max(1, size * 7 // 8), size))

    def calls_to_judge(self, gradients):
        """In random order. Uniform inputs most often, so that KernelBench's own criterion meets all sizes."""
        ordinary = lambda: self.random.choice(("uniform", "normal", "signed", "uniform"))  # noqa: E731
        calls = [self.call(ordinary(), dims) for _ in range(2 if self.cuda else 1) for dims in self.dims_of(self.some_sizes)]
        calls += [self.call(name, self.dims) for name in ORDINARY]
        # Hard inputs: on a GPU at several sizes, since fast paths begin somewhere; small ones on a CPU, and some of the largest.
        hard = [name for name, distribution in HARD.items() if distribution.suits(self.dtype)]
        for size in (1100, 2048) if self.cuda else (300,):
            calls += [self.call(name, self.near(size)) for name in hard]
        calls += [self.call(name, self.dims) for name in (hard if self.cuda or self.size <= 600 else self.random.sample(hard, 6))]
        calls += [self.call("normal", dims) for dims in self.some_batches(4 if self.batches else 0)]
        again = [(self.call("normal", self.near(300)), 6), (next(c for c in calls if c.name == "normal" and c.dims == self.dims), 2)]
        if gradients:
            dims = [d for _ in range(3 if self.cuda else 2) for d in self.dims_of(self.sizes_of_remainder_one)]
            dims += self.dims_of(self.some_sizes)[:: 1 if self.cuda else 2]
            dims += self.some_batches((8 if self.cuda else 4) if self.batches else 0)
            calls += [self.call(self.random.choice(("uniform", "normal")), each, "gradients") for each in dims]
            again += [(call, 2) for call in calls[-len(dims) :] if self.size / 2 < max(call.dims) <= self.size][:2]
            calls += [self.call(name, self.near(1100), "gradients") for name in hard] if self.cuda else []
            calls += [self.call(name, self.near(150), "gradients") for name in self.random.sample(hard, 6)]
        calls.append(again[0][0])
        for call, copies in again:
            calls += [Call(call.name, call.dims, call.nbytes, call.make, call.mode, copy_of=call) for _ in range(copies)]
        self.random.shuffle(calls)
        return calls

    def groups(self, calls):
        """(mode, calls) of each request: a random number of one mode, as many as the slab holds."""
        for mode in MODES:
            waiting = [call for call in calls if call.mode == mode]
            while waiting:
                group, room = [], self.slab.size // 2  # what is made of the inputs needs room as well
                for _ in range(self.random.choice((1, 1, 4, 8))):
                    if waiting and (waiting[-1].nbytes <= room or not group):
                        room -= waiting[-1].nbytes
                        group.append(waiting.pop())
                yield mode, group


def verdict_of(function, *arguments):
    """('ok', None), or 'WRONG' and what is wrong."""
    try:
        function(*arguments)
        return "ok", None
    except Ended:
        raise
    except Wrong as wrong:
        return "WRONG", str(wrong)


def judge_values(run, gradients):
    report, calls, done = run.report, run.calls_to_judge(gradients), 0
    repeated = [call for call in calls if call.copy_of]
    try:
        for mode, group in run.groups(calls):
            report.progress(f"judging {len(calls)} calls on fresh inputs, {done} done")
            references, took = run.refer(group, mode)
            run.request(run.solution, mode, group, run.timeout + took)
            for call, reference in zip(group, references, strict=True):
                report.row(call, *verdict_of(run.examine, call, reference))
                if not call.copy_of and all(other.copy_of is not call for other in repeated):
                    call.forget()
            done += len(group)
            if run.cuda:
                torch.cuda.empty_cache()  # sizes differ: the contenders want what the judge's cache keeps of the last ones
    finally:
        report.table()
    pairs = [(call, call.copy_of) for call in repeated if isinstance(call.results, list) and isinstance(call.copy_of.results, list)]
    differ = [
        f"{label(one.dims)}: two calls with the same inputs differ at {name}{first_difference(*both)}"
        for one, other in pairs
        for name, *both in zip(("C", "dA", "dB"), one.results, other.results, strict=False)
        if not same_bits(*both)
    ]
    report.check(
        "the same bits for the same inputs", "WRONG" if differ else "ok", differ or f"{len(pairs)} calls were made twice, among the others"
    )


# ======================================================================================================================
# 9. The judgement: time
# ======================================================================================================================

ROUNDS = 4  # requests of either contender, in turns
REQUEST_SECONDS = {"cuda": 40e-3, "cpu": 0.3}  # that a timed request is to take: long beside what a request takes by itself
LONGEST = 2.0  # seconds of a request to a solution slower than the reference, before it gets fewer calls
CHECK_SECONDS = 12.0  # of comparing timed calls with the truth, for one row of the table
MOST_CALLS = {"cuda": 256, "cpu": 64}  # in one request
TOLERANCE = (0.02, 0.07)  # between the child's clock and the judge's: besides the reference's noise, and at most
FAR, VERY_FAR = 1.25, 8  # 90th percentile over median, or median over 10th percentile; median over the least


def percentile(samples, q):
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def spread(samples):
    """Median, 10th and 90th percentile of a list of microseconds, and the least."""
    return {name: percentile(samples, q) for name, q in (("median_us", 0.5), ("p10_us", 0.1), ("p90_us", 0.9), ("best_us", 0.0))}


def undisturbed(times):
    """What calls take that others leave alone: the median, unless the calls' times lie far apart."""
    far = [times[name] for name, factor in (("p10_us", FAR), ("best_us", VERY_FAR)) if times["median_us"] > factor * times[name]]
    return min(far, default=times["median_us"])


class Stopwatch:
    """Times contenders in one mode, 'forward' or 'gradients', at one size (the headline's), with fresh uniform inputs in every call."""

    def __init__(self, run, mode, trials, dims=None):
        """Times the reference. No line of the solution has run yet, so nothing that it does can slow this down."""
        self.run, self.mode, self.least, self.most, self.fixed = run, mode, -(-trials // ROUNDS), 2, 0.0
        self.target, self.dims, self.times = REQUEST_SECONDS[run.slab.device.type], dims or run.dims, None
        sample = run.call("uniform", self.dims, mode)
        self.reference_seconds = max(self.ask([sample], run.reference) for _ in range(2))
        for _ in range(2):
            begun = time.perf_counter()
            run.examine(sample)
            run.wait()
            examined = time.perf_counter() - begun
        results = sum(math.prod(shape) for shape in run.result_shapes(sample)) * run.dtype.itemsize
        self.bytes = sum(X.nbytes for X in sample.inputs) / (2 if run.problem.triangular else 1) + results  # that a call reads and writes
        most = min(MOST_CALLS[run.slab.device.type], run.slab.size // sample.nbytes, int(CHECK_SECONDS / ROUNDS / examined))
        if run.cuda:  # inputs here and results twice, here and in the child, in 0.6 of what is free
            free = torch.cuda.mem_get_info(run.slab.device)[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            most = min(most, int(0.6 * free / (sample.nbytes + 2 * results)))
        few = self.measure(run.reference, rounds=5)[0]
        # What a request takes besides its calls, at least. The reference's clock can be believed; few calls, so that nothing grows with
        # their number.
        self.fixed = max(0.0, min(took - sum(inside) * 1e-6 for _, took, inside in few))
        self.most = max(1, most)
        self.alone = self.summary(self.measure(run.reference, rounds=3)[0])

    def ask(self, calls, contender):
        """Seconds from outside, of a request whose results nobody has looked at yet."""
        run = self.run
        if contender is run.solution:
            return run.request(contender, self.mode, calls, run.timeout + len(calls) * self.reference_seconds, True)
        return run.request(contender, self.mode, calls, LOADING * run.timeout, True)

    def request(self, contender, estimate):
        """One timed request, of calls that take about so many seconds each: (number, seconds from outside, microseconds of each by the
        child's clock). Raises Wrong if one of its results is."""
        run = self.run
        calls = [run.call("uniform", self.dims, self.mode) for _ in range(self.number(estimate))]
        took = self.ask(calls, contender)
        with run.blame(contender):
            inside = contender.ask("times", run.timeout).get("us")
        inside = (
            inside if isinstance(inside, list) and len(inside) == len(calls) and all(type(t) is float and t >= 0 for t in inside) else []
        )
        if contender is run.solution:
            for call in calls:
                run.examine(call)
            self.compare_with_memory(len(calls), min([took, *([sum(inside) * 1e-6] if inside else [])]))
        return len(calls), took, inside

    def compare_with_memory(self, number, seconds):
        """Raises Wrong where memory cannot have moved in time what the calls must read and write, but for what a cache may keep."""
        peak, cache = self.run.memory
        if seconds < (least := (number * self.bytes - cache) / peak):
            moved = f"{number} calls must move {number * self.bytes / 1e6:.0f} MB, which takes this GPU's memory {duration(least * 1e6)}"
            raise Wrong(f"impossible: {moved}, and {duration(seconds * 1e6)} are said to have passed")

    def number(self, estimate):
        """Of calls in a request, if they take about so many seconds each: random."""
        most = max(1, min(self.most, max(round(self.target / estimate), self.least)))
        return self.run.random.randint(-(-most * 3 // 4), most)

    def decoy(self, estimate):
        """A request to the solution as the timed ones are, but of all kinds of inputs, and nobody looks at the clock."""
        run, number = self.run, self.number(estimate)
        kinds = [name for name, distribution in DISTRIBUTIONS.items() if distribution.suits(run.dtype)]
        names = [run.random.choice(kinds if n < 8 else list(ORDINARY)) for n in range(number)]
        calls = [run.call(name, self.dims, self.mode) for name in run.random.sample(names, number)]
        self.ask(calls, run.solution)
        for call in calls:
            run.examine(call)

    def measure(self, *contenders, rounds=ROUNDS):
        """The requests of each contender, in turns. The solution gets as many calls as the reference at least, whatever it takes for the
        first of them."""
        run, seen, estimates = self.run, {c: [] for c in contenders}, {}

        def ask(contender, estimate):
            number, took, _ = made = self.request(contender, estimate)
            each = max((took - self.fixed) / number, self.target / self.most / 4)
            estimates[contender] = min(each, estimates.get(contender, math.inf))
            return made

        for contender in contenders:  # warms them up, and tells how many calls a request can have
            for _ in range(3):
                ask(contender, self.target / 2)
        between = run.random.randrange(rounds)
        for n in range(rounds):
            run.report.progress(f"timing, round {n + 1} of {rounds}")
            if run.solution in contenders:
                slow = estimates[run.solution]
                estimates[run.solution] = min(slow, max(estimates[run.reference], slow * self.target / LONGEST))
                if n == between:
                    self.decoy(estimates[run.solution])
            for contender in run.random.sample(contenders, len(contenders)):
                seen[contender].append(ask(contender, estimates[contender]))
        return list(seen.values())

    def summary(self, requests):
        """`outside`: how the time of a request grows with the number of its calls, for each call."""
        outside = [(took - min(self.fixed, took / 2)) / number * 1e6 for number, took, _ in requests]
        return {
            "outside_us": statistics.median(outside),
            "outside_noise_us": (max(outside) - min(outside)) / 2,
            "inside": (inside := spread([us for _, _, each in requests for us in each] or [0.0])),
            "inside_us": inside["median_us"],
            "calls": sum(number for number, _, _ in requests),
            "requests": [(number, took * 1e6) for number, took, _ in requests],
        }

    def settle(self, reference, solution):
        """Which clock counts, and the ratio by it."""
        times = {"alone": self.alone, "reference": self.summary(reference), "solution": self.summary(solution)}
        # What the clocks disagree by in a request of the reference is the noise. The solution's own is no excuse: it could be made.
        noise = max(abs(t["outside_us"] - t["inside_us"]) * t["calls"] / len(t["requests"]) for t in (times["alone"], times["reference"]))
        told, seen = times["solution"]["inside_us"], times["solution"]["outside_us"]
        tolerance = min(TOLERANCE[0] + noise * len(solution) / times["solution"]["calls"] / seen, TOLERANCE[1])
        clock = "inside" if abs(told / seen - 1) <= tolerance else "outside"
        for t in times.values():
            t["us"] = t["inside"]["median_us"] if clock == "inside" else t["outside_us"]
        # Calls may be too short for the judge's clock. The reference's own can be believed: what counts is the worse for the solution.
        # Where others use the machine, the calls that they let alone say what the reference takes.
        references = times["alone"], times["reference"]
        best = min(t[who] for t in references for who in ("us", "inside_us"))
        quiet = min(best, *(undisturbed(t["inside"]) for t in references))
        return times | {
            "clock": clock,
            "lower_bound": clock == "outside" or quiet < best,
            "tolerance": tolerance,
            "fixed_us": self.fixed * 1e6,
            "reference_us": quiet,
            "ratio": quiet / times["solution"]["us"],
        }


def judge_time(run, stopwatch):
    what = {"forward": "forward", "gradients": "forward + backward"}[stopwatch.mode]
    what += f", {label(stopwatch.dims)}" * (stopwatch.dims != run.dims)

    def measure():
        stopwatch.times = stopwatch.settle(*stopwatch.measure(run.reference, run.solution))

    verdict, detail = verdict_of(measure)
    times = stopwatch.times
    if times and stopwatch.dims == run.dims:
        run.timings[stopwatch.mode] = times
    made = times and f"{times['solution']['calls']} calls, each with inputs of its own, right in every element"
    run.report.check(f"timed calls, {what}", verdict, detail or made)
    if times:
        run.report.times(what, times, "CUDA events" if run.cuda else "its own clock")


# ======================================================================================================================
# 10. Report
# ======================================================================================================================

EXAMPLES = 3  # of one finding


def duration(us):
    return f"{us:.1f} us" if us < 100 else f"{us:.0f} us" if us < 1000 else f"{us / 1e3:.2f} ms" if us < 1e5 else f"{us / 1e6:.2f} s"


def ratio(timing):
    slower = timing["ratio"] < 1
    return f"{'at least ' * (timing['lower_bound'] and not slower)}{timing['ratio']:.2f}x" + ", slower" * slower


class Report:
    """Prints what is found as it is found, on stdout; what is being done, on stderr; and keeps everything for --json."""

    def __init__(self, repeats):
        self.rows, self.checks, self.guards, self.said, self.repeats = [], [], {}, None, repeats
        self.findings = {}  # what is wrong: the first of each kind
        self.live = sys.stderr.isatty()
        self.begun = time.perf_counter()

    def progress(self, what):
        stage, seconds = what.split(",")[0], time.perf_counter() - self.begun
        if self.live:
            print(f"\r\x1b[K{what} ({seconds:.0f} s)"[:150], end="", file=sys.stderr, flush=True)
        elif stage != self.said:
            print(f"check.py: {stage} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        self.said = stage

    def relay(self, line):
        """What a child prints."""
        print(("\r\x1b[K" if self.live else "") + line, file=sys.stderr, flush=True)

    def line(self, text=""):
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        print(text, flush=True)

    def examples(self, details):
        for detail in details[:EXAMPLES]:
            self.line(f"    {detail}")
        if len(details) > EXAMPLES:
            self.line(f"    ... and {len(details) - EXAMPLES} more")

    def row(self, call, verdict, detail):
        """One call that was judged."""
        name, size = call.name + MODES[call.mode], label(call.dims)
        self.rows.append({"input": name, "size": size, "verdict": verdict, "detail": detail, **call.row})
        if verdict == "WRONG":
            self.findings.setdefault(f"{name} inputs", f"{size}: {detail}")

    def table(self):
        """The rows so far, a line for each kind of input."""
        self.line(f"\n{'input':<36} {'calls':>5}  {'sizes':>14}  {'reference':>9}  {'solution':>9}  {'allowed':>9}  verdict")
        for name in (n + suffix for suffix in MODES.values() for n in DISTRIBUTIONS):
            if not (rows := [row for row in self.rows if row["input"] == name]):
                continue
            sizes = sorted({row["size"] for row in rows}, key=lambda size: [int(n) for n in size.split("x")])
            span = sizes[0] if len(sizes) == 1 else f"{len(sizes)} shapes" if any("x" in s for s in sizes) else f"{sizes[0]} to {sizes[-1]}"
            worst = max(rows, key=lambda row: row["error"] / max(row["bound"], 1e-300) if "error" in row else -1.0)
            numbers = "  ".join(f"{worst[k]:9.1e}" if k in worst else f"{'-':>9}" for k in ("reference_error", "error", "bound"))
            wrong = [f"{row['size']}: {row['detail']}" for row in rows if row["verdict"] == "WRONG"]
            unjudged = sum(row.get("unjudged", 0) for row in rows)
            verdict = (f"WRONG in {len(wrong)}" if wrong else "ok") + (f" ({unjudged} elements may overflow)" if unjudged else "")
            self.line(f"{name:<36} {len(rows):>5}  {span:>14}  {numbers}  {verdict}")
            self.examples(wrong)
        self.line(
            "errors: the worst |C - truth| / (|A||B|) of the row that comes nearest to what is allowed; of 16-bit types, what is left\n"
            "of it beyond the result's rounding\n"
        )

    def check(self, name, verdict, detail):
        details = detail if isinstance(detail, list) else [detail]
        self.checks.append({"name": name, "verdict": verdict, "detail": details[0], "count": len(details)})
        if verdict == "WRONG":
            self.findings.setdefault(name, details[0])
        self.line(f"{verdict:<6} {name}: {details[0]}")
        self.examples(details[1:])

    def times(self, what, timing, clock):
        for who in ("reference", "solution"):
            times, inside = timing[who], timing[who]["inside"]
            low, high = duration(inside["p10_us"]), duration(inside["p90_us"])
            self.line(
                f"       {what:<20} {who:<10} {duration(times['us']):>8}; by {clock} {duration(inside['median_us'])} [{low}, {high}],"
                f" from outside {duration(times['outside_us'])}; {times['calls']} calls"
            )
        shown = "no ratio, because --seed repeats a run" if self.repeats else ratio(timing)
        self.line(f"       {what:<20} {shown}, by {clock if timing['clock'] == 'inside' else 'the time from outside'}")
        if timing["clock"] == "outside" and not any(check["name"] == "clocks" for check in self.checks):
            apart = (
                f"the solution's process and the judge measure times that differ by more than {timing['tolerance']:.0%}. Its own could be"
            )
            self.check("clocks", "note", f"{apart} false, so the judge's counts, which holds more than the calls where they are short")
        for who in ("reference", "solution"):
            far = timing[who]["inside"]["p90_us"] / max(timing[who]["inside"]["median_us"], 1e-3)
            if far > FAR:
                slow = f"one in ten of the {who}'s calls takes {far:.2f} times the median or more"
                self.check(f"spread, {what}", "note", f"{slow}: others use the machine, or the time depends on more than the size")
        alone, turns = timing["alone"]["us"], timing["reference"]["us"]
        if alone < turns * (1 - TOLERANCE[1]):
            took = f"took {duration(alone)} before the solution was loaded and {duration(turns)} beside it"
            self.check(f"the reference, {what}", "note", f"{took}; the former counts")


def plain(value):
    """For JSON, which has no NaN and no Inf."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# ======================================================================================================================
# 11. Command line
# ======================================================================================================================


def read_text(path, option):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"{option} {path}: cannot be read ({error}); a Python file is accepted") from None


def write_atomically(path, text, option):
    """Writes beside the file and renames, so that nobody ever reads half a file; with text = None only finds out whether that works."""
    if os.path.isdir(path):
        raise CannotRun(f"{option} {path}: is a folder; the name of a file is accepted")
    folder = os.path.dirname(os.path.abspath(path))
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}.")
    except OSError as error:
        raise CannotRun(f"{option} {path}: {folder} is not an existing folder that can be written ({error})") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text or "")
        os.chmod(temporary, 0o644)  # mkstemp makes files that nobody else may read
        if text is not None:
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def number(kind, least, most, what):
    """An argparse type."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is given; {what} from {least} to {most} is accepted")
        return value

    return parse


def device_of(text):
    """A torch.device that exists, with its index."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r} is given; cpu, cuda or cuda:1 (any index) is accepted")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError(f"{text!r} is given, but torch {torch.__version__} sees no CUDA GPU; cpu is accepted")
        device = torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())
        if device.index >= torch.cuda.device_count():
            raise argparse.ArgumentTypeError(f"{text!r} is given, but there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    return device


def parse(argv):
    parser = argparse.ArgumentParser(prog="check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, whole, home = parser.add_argument, "a whole number", functools.partial(os.path.join, HERE)
    add("--problem", choices=list(PROBLEMS), default="lower", help="which product (default: lower)")
    add("--solution", metavar="FILE", help="the file to judge (default: model_new.py)")
    add("--reference", metavar="FILE", default=home("reference_model.py"), help="default: reference_model.py")
    size = "the size that is timed (of transposed_a: K); values are judged to twice that"
    add("--size", metavar="N", type=number(int, 1, 1 << 20, whole), help=size)
    add("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    add("--tf32", action="store_true", help="allow both to compute float32 products in TF32 (torch's setting 'high'); needs a GPU")
    device = "cpu, cuda or cuda:1 (default: a GPU if any)"
    add("--device", type=device_of, default="cuda" if torch.cuda.is_available() else "cpu", help=device)
    seed = "repeat a run (default: a new one, told at the end). Who knows the seed beforehand could prepare, so no ratio is certified"
    add("--seed", metavar="S", type=number(int, 0, 2**63 - 1, whole), help=seed)
    seconds = "seconds a request may take beyond the reference's (default: 20); loading: ten times that"
    add("--timeout", metavar="T", type=number(float, 0.1, 1e6, "a number of seconds"), default=20.0, help=seconds)
    add("--trials", metavar="T", type=number(int, 1, 100_000, whole), help="calls to be timed at least (default: 30, on a CPU 8)")
    halvings = "time so many halvings of --size, too; benchmarks/figures.py --judged draws the record of --json"
    add("--halvings", metavar="H", type=number(int, 0, 20, whole), default=0, help=halvings)
    add("--no-timing", action="store_true", help="judge values only")
    add("--forward-only", action="store_true", help="leave gradients out; the last line says so")
    batches = (
        "judge batches, which KernelBench's problem does not have (default: if no --solution is given, because model_new.py promises them)"
    )
    add("--batches", action=argparse.BooleanOptionalAction, help=batches)
    add("--json", metavar="FILE", help="record everything there")
    options = parser.parse_args(argv)
    cuda = options.device.type == "cuda"
    if options.tf32 and not (cuda and options.dtype == "float32"):
        parser.error(f"argument --tf32: is for --dtype float32 on a GPU, but --dtype {options.dtype} --device {options.device} is given")
    options.expected = " (about 90 s on two cores)" * (not cuda and options.size is None and not options.no_timing)
    if options.size is None:  # a CPU takes seconds for a dense 16-bit product of 1024
        options.size = (8192 if options.problem == "transposed_a" else 4096) if cuda else 512 if narrow(DTYPES[options.dtype]) else 1024
    options.batches = options.solution is None if options.batches is None else options.batches
    options.solution = options.solution or home("model_new.py")
    options.trials = options.trials or (30 if cuda else 8)
    return options


def new_slab(options):
    """Room for as many calls as one request can have, as far as memory allows, and at least for one of the largest with its gradient."""
    problem, itemsize = PROBLEMS[options.problem], DTYPES[options.dtype].itemsize
    headline = problem.headline(options.size)
    one, largest = (
        sum(math.prod(shape) * itemsize + Slab.ALIGNMENT for shape in problem.shapes(dims))
        for dims in (headline, (problem.most(options.size) + 1,) * len(headline))
    )
    most = int(0.2 * torch.cuda.mem_get_info(options.device)[0]) if options.device.type == "cuda" else 2 << 30
    try:
        return Slab(options.device, max(largest, min(MOST_CALLS[options.device.type] * one, most), 64 << 20))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # on Windows' Linux, say
        raise CannotRun(f"--device {options.device}: memory cannot be shared between processes here ({error})") from None


def load(run, who, path, text, arguments=None):
    """The answer of a contender (run.reference or run.solution) that is to load this text."""
    contender, prefix = getattr(run, who), run.problem.prefix
    classes = (f"{prefix}Model", "Model") if who == "reference" else (f"{prefix}ModelNew", "ModelNew")
    run.report.guards[who] = contender.ask("start", LOADING * run.timeout).get("guard")
    if not run.cuda and contender.memory is None:
        contender.memory = os.open(f"/proc/{contender.process.pid}/mem", os.O_RDONLY)
    file = {"path": os.path.abspath(path), "text": text, "classes": classes, "arguments": arguments, "tf32": run.tf32}
    answer = contender.ask("load", LOADING * run.timeout, **file)
    if answer.get("class") not in classes:
        raise Ended(f"the {who}'s process says that it has loaded {printable(answer.get('class'))}")
    run.report.line(f"{who:<10}{path}: {answer['class']}")
    if printed := contender.printed():
        contender.pass_on(printed.splitlines())
        run.report.check("standard output", "note", f"the {who} prints while it is loaded; it stands on standard error here")
    return answer.get("arguments")


LEFT_OPEN = {
    "seccomp": "by signals and the like it could reach the judge's process and its clock",
    "landlock": "it could write to your files, and by /proc to memory of your processes",
    "capabilities": "it has yours",
}


def differentiable(run):
    """Whether the reference is."""
    try:
        run.refer([run.call("normal", run.problem.headline(min(16, run.size)), "gradients")], "gradients")
        return True
    except CannotRun as reason:
        run.report.check("gradients", "note", f"they are not looked at, because the reference has none ({reason})")
        return False


def referee(options):
    problem = PROBLEMS[options.problem]
    if not os.path.exists("/proc/self/mem"):
        raise CannotRun(f"it takes results out of processes' memory by /proc, which {platform.system()} does not have; Linux is accepted")
    if options.json:
        write_atomically(options.json, None, "--json")  # found out before the long work
    if options.device.type == "cuda":
        torch.cuda.set_device(options.device)
    texts = {who: read_text(getattr(options, who), f"--{who}") for who in ("solution", "reference")}
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(6), "little")
    report, slab, stopwatches = Report(options.seed is not None), new_slab(options), []
    run = Run(problem, options.size, DTYPES[options.dtype], slab, seed, options.timeout, report, options.tf32, options.batches)
    name = torch.cuda.get_device_name(options.device) if run.cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    precision = options.dtype + ", TF32 allowed" * options.tf32
    size = f"{'N' if problem.triangular else 'K x M x N'} = {label(run.dims)}{options.expected}"
    report.line(f"{problem.formula} (KernelBench level 1, problem {problem.number}), {precision}, {size}")
    report.line(f"on {options.device} ({name}), torch {torch.__version__}, Python {platform.python_version()}")
    with contextlib.ExitStack() as stack:
        stack.callback(LIBC.prctl, 4, LIBC.prctl(3, 0, 0, 0, 0), 0, 0, 0)
        LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: memory and descriptors are closed to whoever has no capabilities
        warden = subprocess.Popen([sys.executable, "-ISc", WARDEN], stdin=subprocess.PIPE, start_new_session=True)
        stack.enter_context(warden)
        report.progress("loading the reference")
        contender = functools.partial(Contender, slab=slab, relay=report.relay, warden=warden.stdin.fileno())
        run.reference = stack.enter_context(contender("reference", options.reference))
        with run.blame(run.reference):
            arguments = load(run, "reference", options.reference, texts["reference"])
        gradients = not options.forward_only and differentiable(run)
        try:
            # Before any line of the solution has run: nothing that it does can slow this down.
            modes = [] if options.no_timing else ["forward", "gradients"] if gradients else ["forward"]
            stopwatches = [Stopwatch(run, mode, options.trials) for mode in modes]
            halved = [options.size >> n for n in range(1, options.halvings + 1) if modes and options.size >> n]
            stopwatches += [Stopwatch(run, "forward", options.trials, problem.headline(size)) for size in halved]
            report.progress("loading the solution")
            others = [warden.pid, run.reference.process.pid]
            run.solution = stack.enter_context(contender("solution", options.solution, others=others))
            load(run, "solution", options.solution, texts["solution"], arguments)
            missing = [what for what in LEFT_OPEN if not (report.guards["solution"] or {}).get(what)]
            for what in missing:
                report.check("guard", "note", f"this system has no {what} to keep the solution's process apart: {LEFT_OPEN[what]}")
            judge_values(run, gradients)
            for stopwatch in stopwatches:
                judge_time(run, stopwatch)
        except Wrong as wrong:  # the child has ended
            report.check("running", "WRONG", f"{wrong}; nothing more can be judged")
        except CannotRun as reason:
            if not report.findings:
                raise
            report.check("running", "note", f"{reason}; nothing more is judged")
        if run.solution and (printed := run.solution.printed()):
            told = printable(repr(printed[:80].decode(errors="replace")))
            report.check("standard output", "WRONG", f"the solution writes to standard output, which is the judge's: {told}")
    seconds, told = time.perf_counter() - report.begun, sentence(run, options, gradients)
    report.line(f"\nseed {seed}, {seconds:.0f} s; --seed {seed} repeats this run")
    if options.json:
        record = {
            "problem": problem.name,
            "dims": run.dims,
            "options": {k: str(v) if isinstance(v, torch.device) else v for k, v in vars(options).items()},
            "device": name,
            "torch": torch.__version__,
            "seed": seed,
            "guard": report.guards.get("solution"),
            "sha256": {who: hashlib.sha256(text.encode()).hexdigest() for who, text in texts.items()},
            "verdict": "wrong" if report.findings else "ok",
            "sentence": told,
            "calls": calls_judged(run),
            "ratio": None if report.repeats else run.timings.get("forward", {}).get("ratio"),
            "rows": report.rows,
            "checks": report.checks,
            "timings": run.timings,
            "halved": {label(s.dims): s.times for s in stopwatches if s.dims != run.dims},
            "seconds": seconds,
        }
        write_atomically(options.json, json.dumps(plain(record), indent=1, allow_nan=False) + "\n", "--json")
        report.line(f"wrote {options.json}")
    report.line(told)
    return 1 if report.findings else 0


def calls_judged(run):
    return len(run.report.rows) + sum(times["solution"]["calls"] for times in run.timings.values())


def sentence(run, options, gradients):
    """What was found, for somebody who reads nothing else."""
    name, findings = os.path.basename(options.solution), run.report.findings
    for what, detail in findings.items():
        more = f" ({len(findings) - 1} more findings above)" if len(findings) > 1 else ""
        return f"WRONG: {name} is convicted. {what}: {detail}{more}"
    if not calls_judged(run):
        raise CannotRun("no call was judged")
    told = f"all holds: {name} computes {run.problem.formula} right in all of {calls_judged(run)} calls with inputs of their own"
    told += ", gradients included" if gradients else "; gradients were not looked at"
    if not run.timings:
        return f"{told}; its time was not measured"
    times = run.timings["forward"]
    told += f"; at {label(run.dims)} it takes {duration(times['solution']['us'])}, the reference {duration(times['reference_us'])}"
    if run.report.repeats:
        return f"{told}; with --seed, which repeats a run, no ratio is certified"
    return f"{told}: {ratio(times)}" + (f" (forward and backward {ratio(run.timings['gradients'])})" if gradients else "")


def main(argv=None):
    """Returns the exit status. `argv` is sys.argv[1:] where it is not given."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):  # some settings make memory that other processes cannot open
        os.environ.pop(name, None)
    try:
        return referee(options := parse(argv))
    except SystemExit as stop:  # argparse has said what is wrong
        return stop.code or 0
    except CannotRun as reason:
        print(f"check.py: {reason}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        print(f"check.py: not enough memory for --size {options.size} ({error}); a smaller size may fit", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("check.py: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more when it ends
        return 141


if __name__ == "__main__":
    if CHILD:
        serve(**CHILD)
    else:
        sys.exit(main())

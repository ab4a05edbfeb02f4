"""Reads global settings of torch, of Python and of the process, such as the default dtype or the umask.

A child process compares them before and after it runs code of its file. A solution that leaves them changed is wrong,
because they belong to its caller.
"""

import gc
import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path

import torch


def read(get, *arguments):
    """Returns a setting, or the name of the error if it cannot be read.

    For example, torch raises an error here if a file has set TF32 both by allow_tf32 and by fp32_precision.
    """
    try:
        return get(*arguments)
    except (AttributeError, RuntimeError, OSError, ValueError) as error:
        return type(error).__name__


def arithmetic():
    """Tells how this thread rounds, and whether it flushes denormal numbers. torch has no function that tells this."""
    # The numbers are made from strings. Sums of constants would be computed when Python compiles this function.
    one, small, tiny = map(float, ("1", "1e-17", "5e-324"))
    return {"rounds": (one + small, one - small), "keeps denormals": tiny * one != 0.0}


def precisions():
    """Returns settings by which float32 and 16-bit products and convolutions may lose digits."""
    cuda = torch.backends.cuda.matmul
    return {
        "precision": read(torch.get_float32_matmul_precision),
        "TF32": read(lambda: cuda.allow_tf32),
        "TF32 in cuDNN": read(lambda: torch.backends.cudnn.allow_tf32),
        "float16 sums": read(lambda: cuda.allow_fp16_reduced_precision_reduction),
        "float16 accumulators": read(lambda: cuda.allow_fp16_accumulation),
        "all backends": read(lambda: torch.backends.fp32_precision),
        "oneDNN's products": read(lambda: torch.backends.mkldnn.matmul.fp32_precision),
        "oneDNN's convolutions": read(lambda: torch.backends.mkldnn.conv.fp32_precision),
        "bfloat16 sums": read(lambda: cuda.allow_bf16_reduced_precision_reduction),
    }


def hooks():
    """Returns the numbers of global hooks and of active modes, and whether tensors saved for backward have hooks.

    torch calls global hooks for every module, and modes for every operation.
    """
    module = torch.nn.modules.module
    names = [name for name in vars(module) if name.startswith("_global_") and name.endswith("hooks")]
    values = {name: len(getattr(module, name)) for name in sorted(names)}
    values["function modes"] = read(torch._C._len_torch_function_stack)
    values["dispatch modes"] = read(torch._C._len_torch_dispatch_stack)
    saved = read(lambda: torch._C._autograd._top_saved_tensors_default_hooks(True))
    values["hooks of saved tensors"] = saved is not None
    return values


LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
# When a timer expires, its signal ends the process by default. ITIMER_REAL counts real time. The other two timers count
# CPU time of the process.
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def umask():
    return next((line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")), None)


def settings(cuda):
    """Returns the settings by name.

    Some settings are left out, because honest files change them: torch.backends.cudnn.benchmark, the filters of
    warnings, environment variables, sys.path and the recursion limit.
    """
    values = {
        "torch.set_grad_enabled": torch.is_grad_enabled(),
        "torch.inference_mode": torch.is_inference_mode_enabled(),
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.set_default_device": read(torch.get_default_device),
        "torch.use_deterministic_algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
        "torch.set_num_threads": torch.get_num_threads(),
        "torch.manual_seed": torch.initial_seed(),
        "torch.autocast": [
            (device, read(torch.is_autocast_enabled, device), read(torch.get_autocast_dtype, device))
            for device in ("cpu", "cuda")
        ],
        "torch.autograd.set_detect_anomaly": torch.is_anomaly_enabled(),
        "torch.autograd.set_multithreading_enabled": read(torch._C._is_multithreading_enabled),
        "torch.autograd.set_view_replay_enabled": read(torch._C._is_view_replay_enabled),
        "torch.backends.mkldnn": read(torch._C._get_mkldnn_enabled),
        "precision of products": precisions(),
        "hooks and modes": hooks(),
        "rounding and denormal numbers": arithmetic(),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "running timers": [timer for timer in TIMERS if signal.getitimer(timer)[0] > 0],
        "limits": {name: resource.getrlimit(number) for name, number in LIMITS.items()},
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "hooks of Python": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "sys.setswitchinterval": sys.getswitchinterval(),
        "working folder": read(os.getcwd),
        "umask": read(umask),
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)),
    }
    if cuda:
        values["torch.cuda.manual_seed"] = torch.cuda.initial_seed()
        values["torch.cuda.set_device"] = torch.cuda.current_device()
        values["torch.cuda.set_stream"] = torch.cuda.current_stream().cuda_stream
    return values


def changes(before, after):
    """Returns a list of texts, one for each setting that differs."""
    texts = []
    for name, old in before.items():
        new = after[name]
        if isinstance(old, dict):
            texts += changes(
                {f"{name}, {key}": value for key, value in old.items()}, {f"{name}, {key}": new.get(key) for key in old}
            )
        elif old != new:
            texts.append(f"{name} (was {old}, is {new})")
    return texts


def generator_states():
    """Returns the states of Python's generator and of torch's CPU generator, by the functions that seed them."""
    return {"random.seed": random.getstate(), "torch.manual_seed": bytes(torch.get_rng_state().tolist())}


class Generators:
    """Detects a random generator that is set to the same state again and again, as by random.seed(0) in each call."""

    def __init__(self):
        self.previous_states, self.seen = generator_states(), set()

    def repeats(self):
        """Describes the generators that have come back to a state seen at an earlier call of this method."""
        texts, states = [], generator_states()
        for name, state in states.items():
            if state == self.previous_states[name]:
                continue
            if (name, state) in self.seen:
                texts.append(f"{name} (the generator is in the state that an earlier call left)")
            self.seen.add((name, state))
        # The draws below move each generator on, so that `previous_states` differs from the states just added to
        # `seen`. Otherwise a later call that sets a generator to the same state again would look like one that leaves
        # it alone.
        random.random()
        torch.rand(1)
        self.previous_states = generator_states()
        return texts

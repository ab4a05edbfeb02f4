"""What a child does with the module of a file in KernelBench's form.

It constructs the module, calls it, brings back its state, and widens it to float64.
"""

import ast
import contextlib
import random
import sys

import torch

from judge.values import join, split

# ==== 1. The file ====

LITERAL = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.expr_context)


def assigned(text):
    """(name, expression) of each assignment of plain numbers or strings that stands in the first column of a file."""
    for statement in ast.parse(text).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        is_name = len(targets) == 1 and isinstance(targets[0], ast.Name)
        if is_name and all(isinstance(node, LITERAL) for node in ast.walk(statement.value)):
            yield targets[0].id, statement.value


def constants(text):
    """The module's constants by name, which --set can change."""
    return {name: eval(ast.unparse(value), {"__builtins__": {}}) for name, value in assigned(text)}


def with_constants(text, changes):
    """The text with other values for some of its constants."""
    if unknown := set(changes) - set(constants(text)):
        known = ", ".join(constants(text)) or "none"
        raise ValueError(f"{', '.join(sorted(unknown))} is no constant of the reference; these are: {known}")
    lines = text.encode().splitlines(keepends=True)  # ast counts bytes
    for name, value in reversed([each for each in assigned(text) if each[0] in changes]):
        first, last = lines[value.lineno - 1], lines[value.end_lineno - 1]
        changed = first[: value.col_offset] + repr(changes[name]).encode() + last[value.end_col_offset :]
        lines[value.lineno - 1 : value.end_lineno] = [changed]
    return b"".join(lines).decode()


# ==== 2. Seeds ====


def seed_all(seed):
    """Seeds torch's generators, Python's and, where a file has imported it, NumPy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def generator_state(device):
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def draw(get_inputs, seed, device):
    """What get_inputs() returns under a seed, made on the device where that is possible: numbers are drawn faster there."""
    seed_all(seed)
    try:
        with torch.device(device):
            return get_inputs()
    except RuntimeError:  # such as a generator of the CPU
        seed_all(seed)
        return get_inputs()


# ==== 3. A module and its state ====


def construct(make, arguments, seed, device):
    """The module, constructed as KernelBench does."""
    seed_all(seed)
    with torch.no_grad():
        return make(*arguments).to(device)


class Snapshot:
    """The tensors of a module (parameters, buffers, plain attributes) and its modes as they are now. restore() brings them back."""

    def __init__(self, model):
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        self.modes = [(module, module.training) for module in modules]
        self.kept = []
        for module in modules:
            for store in (module._parameters, module._buffers, vars(module)):
                for name, tensor in store.items():
                    if isinstance(tensor, torch.Tensor):
                        self.kept.append((store, name, tensor, tensor.detach().clone()))

    def restore(self, evaluates=False):
        """`evaluates`: all of the module as after eval(), otherwise as it was constructed."""
        for module, training in self.modes:
            module.training = training and not evaluates
        for store, name, tensor, copy in self.kept:
            store[name] = tensor
            if tensor.shape != copy.shape or tensor.dtype != copy.dtype or tensor.device != copy.device:
                tensor.data = copy.clone()
            elif not torch.equal(tensor, copy):
                with torch.no_grad():
                    tensor.copy_(copy)


def load_state(model, state):
    """Copies tensors into a module whose state_dict has the same keys and shapes. Says whether it has."""
    own = model.state_dict() if isinstance(model, torch.nn.Module) else {}
    if {name: X.shape for name, X in own.items()} != {name: X.shape for name, X in state.items()}:
        return False
    with torch.no_grad():
        for name, tensor in own.items():
            if not torch.equal(tensor, state[name]):
                tensor.copy_(state[name])
    return True


def widen(model):
    """Makes all floating-point tensors of a module float64."""
    model.double()
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                vars(module)[name] = value.double()
    return model


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def call(model, arguments, seed, wide=False):
    """The tensors of a result and its skeleton. `wide`: as a module of float64."""
    seed_all(seed)
    with default_dtype(torch.float64) if wide else contextlib.nullcontext():
        return split(model(*arguments), floats_are_tensors=True)


def widened(tensors):
    return [X.double() if X.is_floating_point() else X for X in tensors]


def gradients(results, cotangents, wanted):
    """The gradients of the sum of results times cotangents; zeros where a result does not depend on what is wanted."""
    recorded = [(result, cotangent) for result, cotangent in zip(results, cotangents, strict=True) if result.requires_grad]
    if not recorded or not wanted:
        return [torch.zeros_like(X) for X in wanted]
    outputs, given = zip(*recorded, strict=True)
    found = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
    return [torch.zeros_like(X) if gradient is None else gradient for X, gradient in zip(wanted, found, strict=True)]


def trainable(model, tensors):
    """What gradients are asked for: the floating-point inputs, which are made leaves, and the module's parameters by name."""
    leaves = [X.requires_grad_() for X in tensors if X.is_floating_point()]
    named = model.named_parameters() if isinstance(model, torch.nn.Module) else ()
    return leaves, {name: X for name, X in named if X.requires_grad}


class Reference:
    """The reference's module, and its twin in float64 if there is one.

    There is none where the twin raises, where a result is not float64, or where a call draws random numbers: a twin would draw others.
    """

    def __init__(self, make, arguments, seed, device):
        self.device = device
        self.model = construct(make, arguments, seed, device)
        self.before = Snapshot(self.model)
        self.twin = None
        with contextlib.suppress(Exception):
            twin = construct(make, arguments, seed, device)
            if load_state(twin, self.model.state_dict()):
                self.twin = widen(twin)
                self.twin_before = Snapshot(self.twin)

    def __call__(self, skeleton, tensors, seed, evaluates=False):
        """The result's tensors and skeleton."""
        self.before.restore(evaluates)
        seed_all(seed)
        seeded = generator_state(self.device)
        result = call(self.model, join(skeleton, tensors), seed)
        if not torch.equal(generator_state(self.device), seeded):
            self.twin = None
        return result

    def exact(self, skeleton, tensors, seed, evaluates=False):
        """The result's tensors in float64, or None."""
        if self.twin is None:
            return None
        self.twin_before.restore(evaluates)
        try:
            found, _ = call(self.twin, join(skeleton, widened(tensors)), seed, wide=True)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            found = None
        if found is None or any(X.is_floating_point() and X.dtype != torch.float64 for X in found):
            self.twin = found = None
        return found

    def influence(self, skeleton, tensors, seed):
        """Bytes of inputs and parameters that the results depend on, as far as gradients show: a call has to read these."""
        self.before.restore()
        leaves, parameters = trainable(self.model, tensors)
        try:
            with torch.enable_grad():
                results, _ = call(self.model, join(skeleton, tensors), seed)
                wanted = [*leaves, *parameters.values()]
                found = gradients(results, [torch.randn_like(X) if X.requires_grad else None for X in results], wanted)
        except RuntimeError:  # as where an input is changed in place
            return 0
        return sum(int(torch.count_nonzero(X)) * X.element_size() for X in found)

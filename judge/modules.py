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
    try:
        statements = ast.parse(text).body
    except SyntaxError:  # the process that executes the file says so
        statements = []
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        pairs = [(target, statement.value)] if isinstance(target, ast.Name) else []
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):  # as in: rows, columns = 3, 4
            pairs = zip(target.elts, statement.value.elts, strict=False)
        for name, value in pairs:
            if isinstance(name, ast.Name) and all(isinstance(node, LITERAL) for node in ast.walk(value)):
                yield name.id, value


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
        named = dict(model.named_modules()) if isinstance(model, torch.nn.Module) else {}
        self.modes = [(module, module.training) for module in named.values()]
        self.kept = []
        for path, module in named.items():
            for store in (module._parameters, module._buffers, vars(module)):
                for name, tensor in store.items():
                    if isinstance(tensor, torch.Tensor):
                        whole = f"{path}.{name}".lstrip(".")
                        self.kept.append((whole, store, name, tensor, tensor.detach().clone()))

    def restore(self, evaluates=False):
        """`evaluates`: all of the module as after eval(), otherwise as it was constructed."""
        for module, training in self.modes:
            module.training = training and not evaluates
        for _, store, name, tensor, copy in self.kept:
            store[name] = tensor
            if is_other(tensor, copy):
                tensor.data = copy.clone()
            elif not torch.equal(tensor, copy):
                with torch.no_grad():
                    tensor.copy_(copy)

    def changed(self):
        """The tensors that are not what they were, by name."""
        found = {}
        for whole, store, name, _, copy in self.kept:
            tensor = store.get(name)
            if tensor is None or is_other(tensor, copy) or not torch.equal(tensor, copy):
                found[whole] = tensor
        return found


def is_other(tensor, copy):
    return tensor.shape != copy.shape or tensor.dtype != copy.dtype or tensor.device != copy.device


def state_of(model):
    """The tensors of a module's state_dict."""
    state = model.state_dict() if isinstance(model, torch.nn.Module) else {}
    return {name: X for name, X in state.items() if isinstance(X, torch.Tensor)}


def load_state(model, state):
    """Copies tensors into a module whose state_dict has the same keys and shapes. Says whether it has."""
    own = state_of(model)
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


def cotangents_of(results, seed):
    """What the results are multiplied with before gradients are asked for: the same numbers for each dtype."""
    stream = torch.Generator(results[0].device).manual_seed(seed) if results else None
    drawn = [torch.randn(X.shape, generator=stream, device=X.device) for X in results]
    return [X.to(result.dtype) for X, result in zip(drawn, results, strict=True)]


class Runner:
    """A module, how it is called, and what it leaves."""

    def __init__(self, make, arguments, seed, device, state=None, wide=False):
        """`state`: tensors of the reference, which are taken where they fit. `wide`: all of it in float64."""
        self.device, self.wide = device, wide
        self.model = construct(make, arguments, seed, device)
        self.fits = state is not None and load_state(self.model, state)
        if wide:
            widen(self.model)
        self.before = Snapshot(self.model)

    def begin(self, seed, evaluates=False):
        """Brings back the module's state and seeds all generators."""
        self.before.restore(evaluates)
        seed_all(seed)

    def arguments(self, skeleton, tensors):
        return join(skeleton, widened(tensors) if self.wide else tensors)

    def forward(self, arguments):
        with default_dtype(torch.float64) if self.wide else contextlib.nullcontext():
            return self.model(*arguments)

    def gradients(self, skeleton, tensors, seed):
        """The result, and the gradients by name."""
        leaves = [X.detach().requires_grad_(X.is_floating_point()) for X in (widened(tensors) if self.wide else tensors)]
        named = dict(self.model.named_parameters()) if isinstance(self.model, torch.nn.Module) else {}
        wanted = {f"d input {n}": X for n, X in enumerate(leaves) if X.requires_grad}
        wanted |= {f"d {name}": X for name, X in named.items() if X.requires_grad}
        with torch.enable_grad():
            result = self.forward(join(skeleton, leaves))
            results, _ = split(result)
            found = gradients(results, cotangents_of(results, seed), list(wanted.values()))
        return result, dict(zip(wanted, found, strict=True))


class Reference(Runner):
    """The reference, and its twin in float64 if there is one.

    There is none where the twin raises, where a result is not float64, or where a call draws random numbers: a twin would draw others.
    """

    def __init__(self, make, arguments, seed, device):
        super().__init__(make, arguments, seed, device)
        self.twin = None
        with contextlib.suppress(Exception):
            self.twin = Runner(make, arguments, seed, device, state_of(self.model), wide=True)
        if self.twin and not self.twin.fits:
            self.twin = None

    def draws(self, skeleton, tensors, seed):
        """Whether a call draws random numbers."""
        self.begin(seed)
        seeded = generator_state(self.device)
        self.forward(join(skeleton, tensors))
        drawn = not torch.equal(generator_state(self.device), seeded)
        if drawn:
            self.twin = None
        return drawn

    def remembers(self, skeleton, tensors, seed):
        """Whether a call's result depends on calls before it."""
        self.begin(seed)
        results = []
        for _ in range(2):
            seed_all(seed)
            found, _ = split(self.forward(join(skeleton, [X.clone() for X in tensors])))
            results.append([X.clone() for X in found])
        return not all(torch.equal(X, Y) or X.isnan().any() for X, Y in zip(*results, strict=True))

    def exact(self, skeleton, tensors, seed, evaluates=False, gradients=None):
        """The result in float64 and, with a seed for these, gradients by name; None where there is no twin."""
        if self.twin is None:
            return None
        self.twin.begin(seed, evaluates)
        try:
            if gradients is None:
                answer = self.twin.forward(self.twin.arguments(skeleton, tensors)), {}
            else:
                answer = self.twin.gradients(skeleton, tensors, gradients)
            is_wide = all(X.dtype == torch.float64 for X in split(answer)[0] if X.is_floating_point())
        except torch.OutOfMemoryError:
            raise
        except Exception:
            is_wide = False
        if not is_wide:
            self.twin = None
        return answer if is_wide else None

    def influence(self, skeleton, tensors, seed):
        """Bytes of inputs and parameters that the results depend on, as far as gradients show: a call has to read these."""
        self.begin(seed)
        try:
            _, found = self.gradients(skeleton, tensors, seed)
        except RuntimeError:  # as where an input is changed in place
            return 0
        return sum(int(torch.count_nonzero(X)) * X.element_size() for X in found.values())

"""Handles a file in KernelBench's form, and the module that it defines.

The judge reads and replaces constants in the text of a reference. The child process that executes a file constructs the
module, calls it, and restores its state. The reference's child also makes a copy of its module in float64.
"""

import ast
import contextlib
import random
import sys

import torch

from judge.settings import generator_states
from judge.values import join, split

# ==== 1. The constants of a file ====

LITERAL = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.expr_context)


def assigned(text):
    """Yields the name, expression and statement of each top-level assignment of a constant.

    A constant's expression has only literals, operators, tuples and lists. An assignment may have several names, as in
    rows, columns = 3, 4 and in rows = columns = 3.
    """
    try:
        statements = ast.parse(text).body
    except SyntaxError:  # the process that executes the file reports the error
        statements = []
    for statement in statements:
        is_annotated = isinstance(statement, ast.AnnAssign) and statement.value  # N: int = 3
        targets = [statement.target] if is_annotated else []
        for target in statement.targets if isinstance(statement, ast.Assign) else targets:
            pairs = [(target, statement.value)]
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                has_star = any(isinstance(name, ast.Starred) for name in target.elts)  # as in *a, b = 1, 2, 3
                pairs = [] if has_star else zip(target.elts, statement.value.elts, strict=False)
            for name, value in pairs:
                if isinstance(name, ast.Name) and all(isinstance(node, LITERAL) for node in ast.walk(value)):
                    yield name.id, value, statement


def constants(text):
    """Returns the values of a file's constants by name. --set can change these constants."""
    return {name: eval(ast.unparse(value), {"__builtins__": {}}) for name, value, _ in assigned(text)}


def with_constants(text, changes):
    """Returns the text of a file with new values for the constants that `changes` names.

    The new value is assigned on the same line, after the old one, so that all lines keep their numbers.
    """
    if unknown := set(changes) - set(constants(text)):
        known = ", ".join(constants(text)) or "none"
        raise ValueError(f"{', '.join(sorted(unknown))} is no constant of the reference; these are: {known}")
    lines = text.encode().splitlines(keepends=True)  # as bytes, because ast gives column offsets in bytes
    for name, _, statement in reversed([assignment for assignment in assigned(text) if assignment[0] in changes]):
        last_line = lines[statement.end_lineno - 1]
        added = f"; {name} = {changes[name]!r}".encode()
        lines[statement.end_lineno - 1] = (
            last_line[: statement.end_col_offset] + added + last_line[statement.end_col_offset :]
        )
    return b"".join(lines).decode()


# ==== 2. Seeds ====


def seed_all(seed):
    """Seeds the generators of torch, of Python and, if NumPy has been imported, of NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def all_generator_states(device):
    """Returns the states of the generators that seed_all() seeds. Of the GPUs, only `device` is included."""
    states = generator_states()
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).tolist()
    if "numpy" in sys.modules:
        _, words, *other_fields = sys.modules["numpy"].random.get_state()
        states["numpy"] = words.tolist(), other_fields
    return states


def draw(get_inputs, seed, device):
    """Seeds the generators and calls get_inputs(). Its tensors are made on the device if possible: that is faster."""
    seed_all(seed)
    try:
        with torch.device(device):
            return get_inputs()
    except RuntimeError:  # for example, the file uses a generator of the CPU
        seed_all(seed)
        return get_inputs()


# ==== 3. A module and its state ====


def construct(make, arguments, seed, device):
    """Constructs the module as KernelBench does, and returns it."""
    seed_all(seed)
    with torch.no_grad():
        return make(*arguments).to(device)


# A subclass of Module may define __dict__, named_modules() or a dict of its own, and could compute the module's state
# when the judge asks for it. So the functions below execute no code of a subclass.
ATTRIBUTES = torch.nn.Module.__dict__["__dict__"]
# The classes that modules of torch.jit have in place of a dict.
_SCRIPT = getattr(torch.jit, "_script", None)
SCRIPTED = [getattr(_SCRIPT, name, None) for name in ("OrderedDictWrapper", "OrderedModuleDict")]


def attributes(module):
    return ATTRIBUTES.__get__(module)


def items_of(store):
    """Returns the names and values in a module's dict of parameters, buffers, submodules or attributes."""
    if issubclass(type(store), dict):
        return list(dict.items(store))
    return list(store.items()) if type(store) in SCRIPTED else []


def get_of(store, name):
    if issubclass(type(store), dict):
        return dict.get(store, name)
    with contextlib.suppress(KeyError):
        return store[name]


def modules_of(model, path=""):
    """Yields the path of each submodule, and the module. A submodule with two paths comes twice."""
    if issubclass(type(model), torch.nn.Module):
        yield path, model
        for name, module in items_of(get_of(attributes(model), "_modules")):
            yield from modules_of(module, f"{path}.{name}".lstrip("."))


def tensors_of(module):
    """Yields the store, the name and the tensor for each parameter and each buffer of a module."""
    for stores in ("_parameters", "_buffers"):
        store = get_of(attributes(module), stores)
        for name, X in items_of(store):
            if issubclass(type(X), torch.Tensor):
                yield store, name, X


class Snapshot:
    """Keeps copies of a module's tensors (parameters, buffers, plain attributes) and its training modes."""

    def __init__(self, model):
        named = {}  # has each module once, with its first path
        for path, module in modules_of(model):
            named.setdefault(id(module), (path, module))
        # A frozen module of torch.jit has no mode.
        self.modes = [(module, module.training) for _, module in named.values() if hasattr(module, "training")]
        self.entries, self.changing = [], set()  # `changing` has the names of tensors that were found changed
        for path, module in named.values():
            own = attributes(module)
            found = [(own, name, X) for name, X in items_of(own) if issubclass(type(X), torch.Tensor)]
            for store, name, tensor in [*tensors_of(module), *found]:
                if tensor.layout == torch.strided:
                    full_name = f"{path}.{name}".lstrip(".")
                    self.entries.append((full_name, store, name, tensor, tensor.detach().clone()))

    def restore(self, evaluates=False):
        """Restores tensors and modes. If `evaluates` is True, all modes are as after eval() instead."""
        for module, training in self.modes:
            module.training = training and not evaluates
        for full_name, store, name, tensor, copy in self.entries:
            if get_of(store, name) is not tensor or is_other(tensor, copy) or not torch.equal(tensor, copy):
                self.changing.add(full_name)
                self.restore_entry(store, name, tensor, copy)

    def restore_changing(self):
        """Restores those tensors that restore() has found changed before.

        Nothing is compared, because a clock runs. Comparing all tensors would slow down modules whose tensors the
        snapshot sees, and favour modules that hide them.
        """
        for full_name, store, name, tensor, copy in self.entries:
            if full_name in self.changing:
                self.restore_entry(store, name, tensor, copy)

    def restore_entry(self, store, name, tensor, copy):
        store[name] = tensor
        if is_other(tensor, copy):
            tensor.data = copy.clone()
        else:
            with torch.no_grad():
                tensor.copy_(copy)

    def changed(self):
        """Returns the tensors that have changed since the snapshot, by name. What is no tensor any more is None."""
        changed = {}
        for full_name, store, name, _, copy in self.entries:
            tensor = get_of(store, name)
            if not isinstance(tensor, torch.Tensor):  # the call has removed it, or put a number in its place
                changed[full_name] = None
            elif is_other(tensor, copy) or not torch.equal(tensor, copy):
                changed[full_name] = tensor
        return changed


def is_other(tensor, copy):
    return tensor.shape != copy.shape or tensor.dtype != copy.dtype or tensor.device != copy.device


def state_of(model):
    """Returns the tensors of a module's state_dict by name."""
    state = {}
    for path, module in modules_of(model):
        transient = get_of(attributes(module), "_non_persistent_buffers_set") or ()
        for _, name, X in tensors_of(module):
            if name not in transient:
                state[f"{path}.{name}".lstrip(".")] = X.detach()
    return state


def has_state(model, state):
    """Returns whether the names, shapes and values of a module's state_dict are those of `state`."""
    own_state = state_of(model)
    return own_state.keys() == state.keys() and all(
        torch.equal(X, state[name].to(X.dtype)) for name, X in own_state.items()
    )


def load_state(model, state):
    """Copies `state` into a module if its state_dict has the same keys and shapes, and returns whether it has."""
    own_state = state_of(model)
    if {name: X.shape for name, X in own_state.items()} != {name: X.shape for name, X in state.items()}:
        return False
    with torch.no_grad():
        for name, tensor in own_state.items():
            if not torch.equal(tensor, state[name]):
                tensor.copy_(state[name])
    return True


def widen(model):
    """Converts the floating-point parameters, buffers and tensor attributes of a module to float64, in place."""
    model.double()
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                vars(module)[name] = value.double()
    return model


@contextlib.contextmanager
def default_dtype(dtype):
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def widened(tensors):
    return [X.double() if X.is_floating_point() else X for X in tensors]


def gradients(results, cotangents, wanted):
    """Returns the gradient of sum(results * cotangents) for each tensor of `wanted`.

    The gradient is zero if no result depends on the tensor.
    """
    recorded = [
        (result, cotangent) for result, cotangent in zip(results, cotangents, strict=True) if result.requires_grad
    ]
    if not recorded or not wanted:
        return [torch.zeros_like(X) for X in wanted]
    outputs, output_cotangents = zip(*recorded, strict=True)
    grads = torch.autograd.grad(outputs, wanted, output_cotangents, allow_unused=True)
    return [torch.zeros_like(X) if gradient is None else gradient for X, gradient in zip(wanted, grads, strict=True)]


def cotangents_of(results, seed):
    """Returns one random cotangent per result.

    They are drawn in the default dtype and then converted, so that a module and its copy in float64 get the same ones.
    """
    stream = torch.Generator(results[0].device).manual_seed(seed) if results else None
    drawn = [torch.randn(X.shape, generator=stream, device=X.device) for X in results]
    return [X.to(result.dtype) for X, result in zip(drawn, results, strict=True)]


class Runner:
    """Holds a module and its initial state, and calls the module."""

    def __init__(self, make, arguments, seed, device, state=None, wide=False):
        """Constructs the module.

        `state` has tensors of the reference's module, which are copied if names and shapes fit. `self.shared` lists the
        names in `state` for which this module has a tensor of the same shape and dtype. If `wide` is True, the
        module and its calls use float64.
        """
        self.device, self.wide = device, wide
        self.model = construct(make, arguments, seed, device)
        self.is_same = state is not None and has_state(self.model, state)
        self.fits = state is not None and load_state(self.model, state)
        own = {name: (X.shape, X.dtype) for name, X in state_of(self.model).items()}
        self.shared = [name for name, X in (state or {}).items() if own.get(name) == (X.shape, X.dtype)]
        if wide:
            widen(self.model)
        self.before = Snapshot(self.model)

    def begin(self, seed, evaluates=False):
        """Restores the module's state and seeds all generators. With `evaluates`, all modes are as after eval()."""
        self.before.restore(evaluates)
        seed_all(seed)

    def begin_timed(self, seed):
        """Does what begin() does between two calls of one timed request, as fast as possible."""
        self.before.restore_changing()
        seed_all(seed)

    def arguments(self, skeleton, tensors):
        return join(skeleton, widened(tensors) if self.wide else tensors)

    def forward(self, arguments):
        with default_dtype(torch.float64) if self.wide else contextlib.nullcontext():
            return self.model(*arguments)

    def gradients(self, skeleton, tensors, seed):
        """Returns the result, and the gradients of inputs and parameters by name."""
        leaves = [
            X.detach().requires_grad_(X.is_floating_point()) for X in (widened(tensors) if self.wide else tensors)
        ]
        named = dict(self.model.named_parameters()) if isinstance(self.model, torch.nn.Module) else {}
        wanted = {f"d input {n}": X for n, X in enumerate(leaves) if X.requires_grad}
        wanted |= {f"d {name}": X for name, X in named.items() if X.requires_grad}
        with torch.enable_grad():
            result = self.forward(join(skeleton, leaves))
            results, _ = split(result, results_on=self.device)
            grads = gradients(results, cotangents_of(results, seed), list(wanted.values()))
        return result, dict(zip(wanted, grads, strict=True))


class Reference(Runner):
    """Holds the reference's module and, if possible, its twin: the same module in float64.

    The twin is dropped if a call of it raises an error other than OutOfMemoryError, or if one of its floating-point
    results is not float64. It is also dropped if a call of the module draws random numbers, because the twin would draw
    other numbers.
    """

    def __init__(self, make, arguments, seed, device):
        super().__init__(make, arguments, seed, device)
        self.twin = None
        with contextlib.suppress(Exception):
            self.twin = Runner(make, arguments, seed, device, state_of(self.model), wide=True)
        if self.twin and not self.twin.fits:
            self.twin = None

    def is_random(self, skeleton, tensors, seed):
        """Returns whether a call draws random numbers. If it does, the twin is dropped."""
        self.begin(seed)
        seeded_states = all_generator_states(self.device)
        self.forward(join(skeleton, tensors))
        draws_numbers = all_generator_states(self.device) != seeded_states
        if draws_numbers:
            self.twin = None
        return draws_numbers

    def remembers(self, skeleton, tensors, seed):
        """Returns whether a second call with the same inputs and the same seed has another result than the first one.

        The module's state is not restored between the calls. A result that has a NaN is not compared.
        """
        self.begin(seed)
        results = []
        for _ in range(2):
            seed_all(seed)
            outputs, _ = split(self.forward(join(skeleton, [X.clone() for X in tensors])), results_on=self.device)
            results.append([X.clone() for X in outputs])
        return not all(torch.equal(X, Y) or X.isnan().any() for X, Y in zip(*results, strict=True))

    def exact(self, skeleton, tensors, seed, evaluates=False, gradients=None):
        """Returns the twin's result and a dict of its gradients by name, or None if there is no twin or it is dropped.

        `gradients` is the seed of the cotangents. If it is None, the dict is empty.
        """
        if self.twin is None:
            return None
        self.twin.begin(seed, evaluates)
        try:
            if gradients is None:
                answer = self.twin.forward(self.twin.arguments(skeleton, tensors)), {}
            else:
                answer = self.twin.gradients(skeleton, tensors, gradients)
            is_float64 = all(X.dtype == torch.float64 for X in split(answer)[0] if X.is_floating_point())
        except torch.OutOfMemoryError:
            raise
        except Exception:
            is_float64 = False
        if not is_float64:
            self.twin = None
        return answer if is_float64 else None

    def influence(self, skeleton, tensors, seed):
        """Returns a lower bound of the bytes of inputs and parameters that a call has to read.

        The bound counts the elements whose gradient is not zero, so it leaves out inputs of integers. It is 0 if the
        gradients cannot be computed.
        """
        self.begin(seed)
        try:
            _, grads = self.gradients(skeleton, tensors, seed)
        except RuntimeError:  # for example, the module changes an input in place
            return 0
        return sum(int(torch.count_nonzero(X)) * X.element_size() for X in grads.values())

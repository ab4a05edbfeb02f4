"""Splits the arguments and results of a module into a list of tensors and a skeleton, which JSON can represent.

A skeleton is a pair of a kind and a content, as this table says.

    kind                content
    "tensor"            The index of the tensor in the list.
    "number"            The index of the tensor that a number or a bool of a result has become.
    "permuted"          The index of a contiguous tensor, and the dimensions for its permute(). Results do not use it.
    "value"             A number, a bool, a string or None.
    "dtype", "device"   The name of the dtype or of the device.
    "tuple", "list"     A list of skeletons.
    "dict"              A list of pairs, each of a key and a skeleton.
"""

import torch

DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}  # of the tensors that a result's numbers become
ACCEPTED = "tensors, numbers, strings, None, and tuples, lists and dicts of these are accepted"


def split(value, results_on=None):
    """Returns the tensors of a value, in order, and its skeleton. Raises TypeError for types that are not accepted.

    `results_on` is None for arguments. For results it is the device on which Python's numbers become tensors of bool,
    int64 or float64, because the judge compares them like tensors. In arguments, a tensor that occurs twice has one
    index. In results it has two, so that it makes no difference whether a file returns one tensor twice or two equal
    tensors.
    """
    tensors = []
    return tensors, _skeleton(value, tensors, results_on, {})


def plain(value):
    """Converts a number or a string of a subclass to the built-in type, and executes none of the subclass's code."""
    for kind, convert in ((int, int.__int__), (float, float.__float__), (str, str.__str__)):
        if issubclass(type(value), kind) and type(value) is not bool:
            return convert(value)
    return value


def _skeleton(value, tensors, results_on, known):
    """Appends the tensors of a value to `tensors`, and returns its skeleton.

    `known` has the skeletons of the arguments' tensors so far, by the tensor's id.
    """

    def inner(part):
        return _skeleton(part, tensors, results_on, known)

    # The class is type(value), because isinstance() would execute the code of an object that lies about its class.
    kind, value = type(value), plain(value)
    if results_on is not None and type(value) in DTYPES:
        tensors.append(torch.tensor(value, dtype=DTYPES[type(value)], device=results_on))
        return ["number", len(tensors) - 1]
    if issubclass(kind, torch.Tensor):
        is_argument = results_on is None
        if is_argument and id(value) in known:
            return known[id(value)]
        stored, skeleton = value, ["tensor", len(tensors)]
        if is_argument and value.layout == torch.strided and not value.is_contiguous():
            order = sorted(range(value.dim()), key=value.stride, reverse=True)
            if value.permute(order).is_contiguous():  # for example a transposed matrix
                stored = value.permute(order)
                skeleton = ["permuted", [len(tensors), [order.index(n) for n in range(value.dim())]]]
        tensors.append(stored)
        known[id(value)] = skeleton
        return skeleton
    # The methods of dict, list and tuple are called, and no method of a subclass. Otherwise a subclass could compute
    # its parts only here, after the call has been timed.
    if issubclass(kind, dict):
        if not all(issubclass(type(key), (str, int)) for key in dict.keys(value)):
            raise TypeError("a dict has other keys than strings and whole numbers")
        return ["dict", [[plain(key), inner(part)] for key, part in dict.items(value)]]
    if issubclass(kind, (tuple, list)):
        base = list if issubclass(kind, list) else tuple
        return [base.__name__, [inner(part) for part in base.__iter__(value)]]
    if kind is torch.dtype:
        return ["dtype", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    if value is None or type(value) in (*DTYPES, str):
        return ["value", value]
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is given; {ACCEPTED}")


def join(skeleton, tensors):
    """Returns the value that split() has split into `skeleton` and `tensors`."""
    kind, content = skeleton
    if kind == "tensor":
        return tensors[content]
    if kind == "permuted":
        return tensors[content[0]].permute(content[1])
    if kind == "dict":
        return {key: join(part, tensors) for key, part in content}
    if kind in ("tuple", "list"):
        parts = [join(part, tensors) for part in content]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "dtype":
        return getattr(torch, content)
    return torch.device(content) if kind == "device" else content


def outline(skeleton):
    """Returns the structure of a skeleton as a text. Structures are compared by this text, and messages show it.

    Lists look like tuples, and the order of a dict's keys does not matter: a solution may differ from the reference in
    these.
    """
    kind, content = skeleton
    if kind in ("tensor", "permuted", "number"):
        return "tensor"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {outline(part)}" for key, part in sorted(content, key=str)) + "}"
    if kind in ("tuple", "list"):
        return "(" + ", ".join(outline(part) for part in content) + ")"
    return str(content)


def has_tensor(skeleton):
    """Returns whether a value has a tensor, apart from its numbers."""
    kind, content = skeleton
    if kind == "dict":
        return any(has_tensor(part) for _, part in content)
    if kind in ("tuple", "list"):
        return any(map(has_tensor, content))
    return kind in ("tensor", "permuted")


def places(skeleton, name):
    """Returns the names of a result's tensors, in the order of their indices.

    A tensor's name is `name` itself, or a path such as name[0] or name['key'].
    """
    paths = {}

    def visit(part, path):
        kind, content = part
        if kind in ("tensor", "number"):
            paths.setdefault(content, path)
        elif kind == "dict":
            for key, inner in content:
                visit(inner, f"{path}[{key!r}]")
        elif kind in ("tuple", "list"):
            for index, inner in enumerate(content):
                visit(inner, f"{path}[{index}]")

    visit(skeleton, name)
    return [paths[index] for index in sorted(paths)]

"""Splits the arguments and results of a module into a list of tensors and a skeleton, which JSON can represent.

A skeleton is a pair of a kind and a content, as this table says.

    kind                content
    "tensor"            The index of the tensor in the list.
    "permuted"          The index of a contiguous tensor, and the dimensions for its permute(). Results do not use it.
    "value"             A number, a bool, a string or None.
    "dtype", "device"   The name of the dtype or of the device.
    "tuple", "list"     A list of skeletons.
    "dict"              A list of pairs, each of a key and a skeleton.
"""

import torch

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


def _skeleton(value, tensors, results_on, known):
    """Appends the tensors of a value to `tensors`, and returns its skeleton.

    `known` has the skeletons of the arguments' tensors so far, by the tensor's id.
    """

    def inner(part):
        return _skeleton(part, tensors, results_on, known)

    if results_on is not None and isinstance(value, (bool, int, float)):
        # The methods of int and float convert a number of a subclass, and execute none of the subclass's code.
        if not isinstance(value, bool):
            value = int.__int__(value) if isinstance(value, int) else float.__float__(value)
        dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(value)]
        value = torch.tensor(value, dtype=dtype, device=results_on)
    if issubclass(type(value), torch.Tensor):  # isinstance() would also accept an object that lies about its class
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
    if isinstance(value, dict):
        # The methods of dict, list and tuple are called, not those of a subclass. Otherwise a subclass could compute
        # its parts only here, after the call has been timed.
        if not all(isinstance(key, (str, int)) for key in dict.keys(value)):
            raise TypeError("a dict has other keys than strings and whole numbers")
        return ["dict", [[key, inner(part)] for key, part in dict.items(value)]]
    if isinstance(value, (tuple, list)):
        kind = list if isinstance(value, list) else tuple
        return [kind.__name__, [inner(part) for part in kind.__iter__(value)]]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
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
    if kind == "tensor":
        return "tensor"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {outline(part)}" for key, part in sorted(content, key=str)) + "}"
    if kind in ("tuple", "list"):
        return "(" + ", ".join(outline(part) for part in content) + ")"
    return str(content)


def places(skeleton, name):
    """Returns the names of a result's tensors, in the order of their indices.

    A tensor's name is `name` itself, or a path such as name[0] or name['key'].
    """
    paths = {}

    def visit(part, path):
        kind, content = part
        if kind == "tensor":
            paths.setdefault(content, path)
        elif kind == "dict":
            for key, inner in content:
                visit(inner, f"{path}[{key!r}]")
        elif kind in ("tuple", "list"):
            for index, inner in enumerate(content):
                visit(inner, f"{path}[{index}]")

    visit(skeleton, name)
    return [paths[index] for index in sorted(paths)]

"""Splits the arguments and results of a model into tensors and a skeleton, which JSON can carry.

A skeleton is a pair of a kind and a content, as this table says.

    kind                content
    "tensor"            The number of the tensor. A tensor that occurs twice has one number.
    "value"             A number, a string or None.
    "dtype", "device"   Its name.
    "tuple", "list"     A list of skeletons.
    "dict"              A list of pairs, each of a key and a skeleton.
"""

import torch

ACCEPTED = "tensors, numbers, strings, None, and tuples, lists and dicts of these are accepted"


def split(value, floats_are_tensors=False):
    """Returns the tensors of a value, in order, and its skeleton. Raises TypeError for types that are not accepted.

    If `floats_are_tensors` is True, Python's floats become float64 tensors. Results need this, so that the judge
    compares floats like tensors.
    """
    tensors = []
    return tensors, _skeleton(value, tensors, floats_are_tensors)


def _skeleton(value, tensors, floats_are_tensors):
    def inner(part):
        return _skeleton(part, tensors, floats_are_tensors)

    if floats_are_tensors and type(value) is float:
        value = torch.tensor(value, dtype=torch.float64)
    if isinstance(value, torch.Tensor):
        for number, tensor in enumerate(tensors):
            if tensor is value:
                return ["tensor", number]
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    if isinstance(value, dict):
        if not all(isinstance(key, (str, int)) for key in value):
            raise TypeError("a dict has other keys than strings and whole numbers")
        return ["dict", [[key, inner(part)] for key, part in value.items()]]
    if isinstance(value, (tuple, list)):
        return ["list" if isinstance(value, list) else "tuple", [inner(part) for part in value]]
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
    if kind == "dict":
        return {key: join(part, tensors) for key, part in content}
    if kind in ("tuple", "list"):
        parts = [join(part, tensors) for part in content]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "dtype":
        return getattr(torch, content)
    return torch.device(content) if kind == "device" else content


def outline(skeleton):
    """Returns the structure as text for a reader. A list is written as a tuple, because a result may be either."""
    kind, content = skeleton
    if kind == "tensor":
        return "tensor"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {outline(part)}" for key, part in sorted(content, key=str)) + "}"
    if kind in ("tuple", "list"):
        return "(" + ", ".join(outline(part) for part in content) + ")"
    return str(content)


def places(skeleton, name):
    """Returns the name of each tensor, in the order of their numbers.

    A tensor's name is `name` itself, or a path such as name[0] or name['key'].
    """
    found = {}

    def visit(part, path):
        kind, content = part
        if kind == "tensor":
            found.setdefault(content, path)
        elif kind == "dict":
            for key, inner in content:
                visit(inner, f"{path}[{key!r}]")
        elif kind in ("tuple", "list"):
            for number, inner in enumerate(content):
                visit(inner, f"{path}[{number}]")

    visit(skeleton, name)
    return [found[number] for number in sorted(found)]

"""Writes a copy of model_new.py that solves a level 1 problem of KernelBench, with the names that KernelBench looks for.

python examples/kernelbench.py upper file.py           problem 14
python examples/kernelbench.py lower file.py           problem 15
python examples/kernelbench.py transposed_a file.py    problem 16
"""

import argparse
import ast
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROBLEMS = {  # problem: (its number, the prefix of its class in model_new.py, the code that makes its inputs)
    "lower": (15, "", None),  # model_new.py already has the inputs of this problem
    "upper": (14, "Upper", "[torch.rand(4096, 4096).triu() for _ in range(2)]"),
    "transposed_a": (16, "TransposedA", "[torch.rand(8192, 2048), torch.rand(8192, 4096)]"),
}


def export(text, problem):
    """Returns the text of a solution for `problem`. For problems 14 and 16 it ends with new definitions of ModelNew and get_inputs, which
    are the names that KernelBench looks for. Raises ValueError if the text lacks a definition that the problem needs."""
    number, prefix, inputs = PROBLEMS[problem]
    body = ast.parse(text).body
    defined = {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    defined |= {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    needed = (f"{prefix}ModelNew", "get_inputs", "get_init_inputs")
    if missing := [name for name in needed if name not in defined]:
        raise ValueError(f"defines no {', '.join(missing)}, which problem {problem} needs")
    if not prefix:
        return text
    names = f"ModelNew = {needed[0]}  # noqa: F811\n\n\ndef get_inputs():  # noqa: F811\n    return {inputs}\n"
    return text.rstrip("\n") + f"\n\n\n# ---- KernelBench level 1, problem {number}: the names that it looks for. ----\n{names}"


def main(argv=None):
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="kernelbench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=list(PROBLEMS), help="the problem that the copy is to solve")
    parser.add_argument("file", help="the file to write; an existing file is not replaced")
    parser.add_argument(
        "--solution", metavar="FILE", default=os.path.join(HERE, "..", "model_new.py"), help="the file to copy (default: model_new.py)"
    )
    options = parser.parse_args(argv)
    try:
        with open(options.solution, encoding="utf-8") as source:
            text = export(source.read(), options.problem)
        with open(options.file, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"kernelbench.py: {options.file} exists, and is not replaced; remove it, or give another name", file=sys.stderr)
        return 2
    except (OSError, SyntaxError, ValueError) as error:
        print(f"kernelbench.py: {options.solution} to {options.file}: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.file}: KernelBench level 1, problem {PROBLEMS[options.problem][0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

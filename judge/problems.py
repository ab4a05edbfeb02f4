"""Defines the judge's problems. A problem chooses the calls and their inputs, and bounds the errors of the results.

PROBLEMS has the problems by name. Six problems are called products: five matrix products and a triangular inverse. They
are judged at many sizes with componentwise bounds. The seventh, "any", is defined by a reference file in KernelBench's
form. All mathematics of the judge is in this file and its imports.
"""

import collections
import copy
import functools
import itertools
import math
import re
import statistics

import torch

from judge import generic, measures
from judge.measures import DISTRIBUTIONS, GRADIENTS, HARD, ORDINARY, Draw, label

MODES = {"forward": "", "gradients": ", gradients"}  # the suffix of each mode in the table of results
INVERSES = {"cuda": 1 << 24, "cpu": 1 << 18}  # a timed batch of inverses has at most this many elements
# The largest --size, by device and mode, for which calls at --size use every kind of inputs in HARD. At larger sizes
# such calls are slow, and use only some kinds.
ALL_HARD = {"cpu": {"forward": 600, "gradients": 200}, "cuda": {"forward": 1 << 20, "gradients": 4096}}


class CannotRun(RuntimeError):
    """Reports that the run was not possible. It is no verdict on the solution. The exit status is 2."""


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def room(dtype, *shapes):
    """Returns the bytes that tensors of these shapes occupy in a slab, memory that the judge shares with a child.

    Each tensor occupies a multiple of 512 bytes, as in torch's CUDA allocator. At least one element fits behind the
    tensor. The judge fills this gap with NaN, so that a read beyond the tensor's end shows.
    """
    return sum((math.prod(shape) * dtype.itemsize // 512 + 1) * 512 for shape in shapes)


def setting(run):
    """Describes the dtype, the setting of TF32 and the device. Without these, a ratio of times says little."""
    dtype = run.options.dtype
    tf32 = {True: " (with TF32)", False: " (without TF32)"}[run.tf32] if dtype in ("float32", None) and run.cuda else ""
    return f"{dtype or 'its own dtypes'}{tf32} on {run.device_name}"


def are_of_tf32(errors):
    """Returns whether errors of float32 results have the size of TF32's errors."""
    return bool(errors) and max(errors) < 2.0**-8 and statistics.median(errors) > 2.0**-16


def unwritten(element):
    return ", never written? (the judge fills free memory with NaN)" if math.isnan(element) else ""


# ==== 1. Calls ====


def is_state(result):
    """Returns whether a description of a result is for an entry of the module's state_dict.

    The player adds these entries to the results of a call.
    """
    return result[0].startswith("state ")


def without_state(kinds):
    return [result for result in kinds if not is_state(result)]


class Call:
    """Describes one call. Its inputs are made on demand. If they are deleted, the same inputs are made again.

    expected    The name, dtype and shape of each result. For problem "any" it is None until the reference has answered.
    outline     The structure of the result as a text (see judge/values.py). A product has None.
    aliases     The names of the results that may lie in the memory of an input, or of a tensor that the module keeps.
    is_optional Tells whether the reference may fail to answer this call.
    """

    outline, aliases, is_optional = None, (), False
    seeds = None  # for problem "any", the seeds of the generators and of the cotangents
    # Whether the reference returns no tensor. Then the solution has to change the inputs that the reference changes.
    works_in_place = False
    # The operands are one tensor if `alias` is "tensor", and two tensors in the same memory if it is "memory". If it is
    # "values", they are two tensors with the same values in different memory.
    alias = None
    # `missing` names what this machine lacks, according to the error that the reference or the solution has raised.
    # Judgement.examine() stores the results' largest error, its bound and other numbers for the table in `row`.
    missing, row = "", {}

    @property
    def row_name(self):
        return self.name + MODES[self.mode]

    def given(self, is_reference):
        """Returns the tensors that the judge gives to the reference or to the solution as inputs."""
        return self.inputs

    def alias_for(self, is_reference):
        return self.alias


class ProductCall(Call):
    """Describes a call of a product.

    `name` is a key of DISTRIBUTIONS in judge/measures.py. Each operand is multiplied by a random sign. If `name` is
    "mixed", all operands get the same sign. If it is "normal", each operand is also multiplied by a random one of
    four powers of two: a small one, 1, a large one, or any between 2^-50 and 2^50 (for float16, 2^-2 and 2^3).
    """

    def __init__(self, run, name, dims, mode="forward", kind=0, alias=None):
        self.alias = alias
        dims = run.problem.dims if run.options.one_size else dims
        self.run, self.name, self.dims, self.mode, self.number = run, name, dims, mode, next(run.numbers)
        problem = run.problem.product
        self.dtype, self.label = run.problem.dtype, label(dims)
        self.factors = run.random.choices((1, -1), k=len(problem.names))
        if name == "normal":
            exponents = {torch.float64: (-400, 0, 300), torch.float16: (-2, 0, 3)}.get(self.dtype, (-12, 0, 8))
            any_exponent = (-2, 3) if self.dtype == torch.float16 else (-50, 50)
            self.factors = [
                factor * 2.0 ** run.random.choice((*exponents, run.random.randint(*any_exponent)))
                for factor in self.factors
            ]
        # In "mixed" inputs, one operand has elements of both signs, and all elements of the other one have one sign.
        # The lowest bit of the call's number chooses the operand (measures.Draw.odd), and the next bit the sign.
        if name == "mixed":
            self.factors = [1 - (self.number & 2)] * len(self.factors)
        *self.operands, self.result = problem.shapes(dims)
        # gradient_of() of judge/measures.py explains `kind`, and GRADIENTS there explains `way`.
        self.gradient, self.kind, self.way = [self.result] if mode == "gradients" else [], kind, 0
        # `other` has one bit per operand. In forward calls, a set bit makes the operand a leaf that requires gradients.
        # In calls with gradients, every operand is such a leaf, and a set bit passes a copy of it to the module.
        self.other = run.random.randrange(1 << len(self.operands))
        if alias:
            self.factors[1] = self.factors[0]
        distinct_operands = self.operands[:1] if alias == "tensor" else self.operands  # one tensor has one gradient
        shapes = [self.result, *distinct_operands] if mode == "gradients" else [self.result]
        self.expected = [
            [name, name_of(self.dtype), list(shape)] for name, shape in zip(problem.results, shapes, strict=False)
        ]
        self.input_names = problem.names + "G"
        self.nbytes = room(self.dtype, *self.operands, *self.gradient)  # the bytes that the inputs occupy in a slab

    @functools.cached_property
    def inputs(self):
        """Returns the operands and, for gradients, G = dC."""
        run, problem = self.run, self.run.problem.product
        draw = Draw(run.seed, self.number, run.device, run.tf32)
        matrices = zip(measures.inputs_of(self.name, draw, self.dtype, *self.operands), self.factors, strict=True)
        matrices = problem.given([X * factor for X, factor in matrices], self.dtype, (math.nan, 1.0)[draw.odd])
        inputs = [X.to(self.dtype).contiguous() for X in matrices]
        if self.alias:
            # B serves as both operands, because B has ordinary numbers wherever A or B is read. A may have NaN or 1
            # where only B is read.
            inputs = [inputs[1]] * 2
        return inputs + [
            measures.gradient_of(self.kind, self.way, draw, self.dtype, shape, problem.keep) for shape in self.gradient
        ]

    def given(self, is_reference):
        """Returns the tensors that the judge gives to the reference or to the solution as inputs.

        The reference may read whole matrices. So it gets zeros where an input is not to be read, such as above the
        diagonal of a lower triangular one. The solution gets zeros there only in KernelBench's own problems, which have
        a `number`. In the other problems it gets NaN or 1 there, so that a result shows if these elements are used.
        """
        gets_zeros = is_reference and not self.run.problem.product.number
        inputs = self.run.problem.product.read(self.inputs) if gets_zeros else self.inputs
        # Dimensions of stride 0, which an expanded G has, are cut to length 1. The child expands G again.
        return [X[tuple(slice(None if stride else 1) for stride in X.stride())] for X in inputs]

    def alias_for(self, is_reference):
        """Returns the alias if the operands share a tensor or memory, and otherwise None.

        They share nothing if the alias is "values". The reference's operands also share nothing if the problem is not
        KernelBench's: they differ, because the reference gets zeros where an input is not to be read.
        """
        if self.alias == "values" or is_reference and not self.run.problem.product.number:
            return None
        return self.alias

    def describe(self, is_reference, timed):
        """Returns the description of the call that the child gets."""
        may_be_weights = not timed and (self.run.gradients or self.way % 2 == 0)
        description = {"mode": self.mode, "way": self.way, "other": self.other if may_be_weights else 0}
        return description | {"expected": self.expected, "aliases": ()}


class AnyCall(Call):
    """Describes a call whose inputs are what the reference's get_inputs() returns after seeding, or a variant of it.

    `name` is "drawn" for the file's own inputs, or the name of a variant in generic.VARIANTS.
    """

    def __init__(self, run, name, mode="forward", evaluates=False):
        self.run, self.name, self.mode, self.evaluates = run, name, mode, evaluates
        # The solution gets only `seeds`, and not before its clock starts. With the first two seeds, it could make the
        # inputs itself.
        self.input_seed, self.change_seed, *self.seeds = (run.random.getrandbits(63) for _ in range(4))
        self.is_optional = name in generic.VARIANTS
        self.constructor, self.in_float64, self.expected = run.problem.constructor, False, None
        self.truth = None  # a pair: the reference's results in its own dtypes and in float64
        # `after` has the inputs that the reference changes, as they are after its call.
        self.changes_nothing, self.after = False, {}
        self.nbytes, self.label = run.problem.nbytes, run.problem.label

    @functools.cached_property
    def inputs(self):
        """Returns the tensors among the arguments, and stores the rest in `skeleton` (see judge/values.py)."""
        self.skeleton, tensors = self.run.problem.draw(self.input_seed)
        self.input_names = [f"input {n}" for n in range(len(tensors))]
        change = generic.VARIANTS.get(self.name)
        if self.run.problem.always_the_same and change is None:
            change = generic.Changes.scaled
        changed = tensors if change is None else generic.vary(change, tensors, self.change_seed, self.run.device)
        self.changes_nothing = changed is None
        return tensors if changed is None else changed

    def describe(self, is_reference, timed):
        problem = self.run.problem
        state = [result[0].removeprefix("state ") for result in self.expected or () if is_state(result)]
        description = {"skeleton": self.skeleton, "evaluates": self.evaluates, "in_float64": self.in_float64}
        description["restores"] = is_reference or problem.changes_state
        description |= {"gradients": self.mode == "gradients"}  # Child.calls() puts the seed of the cotangents here
        description |= {"resets": problem.remembers, "is_random": problem.is_random, "expected": None, "state": None}
        # A timed reference gets the description of the results too. Otherwise the two children could send different
        # numbers of results while a clock runs.
        if is_reference and timed and self.expected is not None:
            description |= {"expected": self.expected, "aliases": self.aliases, "state": state}
        if not is_reference:
            description |= {"expected": self.expected_of_solution, "aliases": self.aliases, "state": state}
        return description

    @property
    def row_name(self):
        return super().row_name + (", eval" if self.evaluates else "")

    @property
    def expected_of_solution(self):
        """Returns the entries of `expected` by which the solution is judged.

        The solution's module may keep parameters of its own, with other names, shapes or values. Then the entries for
        gradients of parameters are left out. So are entries of the state for which the module has no tensor of the same
        name, shape and dtype.
        """
        expected = self.expected
        if not self.run.problem.fits:
            unshared = {f"state {name}" for name in self.run.problem.state.keys() - self.run.problem.shared}
            expected = [
                result
                for result in expected
                if result[0] not in unshared and (not result[0].startswith("d ") or result[0].startswith("d input "))
            ]
        return expected


# ==== 2. The six products ====


class Products:
    """Defines a problem of judge/measures.py: a matrix product or the triangular inverse."""

    measures_first = never_varies = False
    changed_inputs = ()  # no reference of a product changes an input
    foreign_options = {
        "set": "--size is accepted",
        "gradients": "they are judged anyhow, unless --forward-only is given",
    }
    input_order = list(DISTRIBUTIONS)  # the order of rows in the table

    def __init__(self, run, product):
        options = run.options
        options.dtype = options.dtype or "float32"
        self.expected = "" if run.cuda or options.size or options.no_timing else " (about two minutes on two cores)"
        # On a CPU, dtypes other than float32 have a smaller default size. A dense 16-bit product of size 1024 would
        # take seconds, and so would the truth of a float64 product.
        if options.size is None:
            limit = 1 << 20 if run.cuda else 1024 if options.dtype == "float32" else 512
            options.size = min(limit, product.size)
        self.run, self.product, self.dtype = run, product, getattr(torch, options.dtype)
        self.dims = product.headline(options.size)  # the dimensions of timed calls
        if product.inverse:
            self.dims = (max(1, min(4096, INVERSES[run.device.type] // options.size**2)), *self.dims)
        self.label = label(self.dims)
        # Sizes up to `max_size` are judged. sizes_about_multiples() may exceed it by 1.
        self.max_size = options.size * (2 if product.square else 1)
        unfit = [*measures.WIDE, *measures.EXTREME] if self.dtype == torch.float16 else []
        if self.dtype not in (torch.float32, torch.float16) or product.inverse:
            unfit += measures.EXTREME
        self.hard = [name for name in HARD if name not in unfit]
        self.call = functools.partial(ProductCall, run)

    # ---- Names and descriptions. ----

    @property
    def title(self):
        number = f" (KernelBench level 1, problem {self.product.number})" if self.product.number else ""
        sides = "batch x N" if self.product.inverse else "N" if self.product.square else "K x M x N"
        allowed = ", TF32 allowed" if self.run.tf32 else ""
        formula, dtype = self.product.formula, self.run.options.dtype
        return f"{formula}{number}, {dtype}{allowed}, {sides} = {self.label}{self.expected}"

    def classes(self, who):
        name = {"reference": "Model", "solution": "ModelNew"}[who]
        return [self.product.prefix + name, name]

    @property
    def claim(self):
        where = f" at {self.label} alone" if self.run.options.one_size else ""
        return f"computes {self.product.formula} in {setting(self.run)}, right{where}"

    @property
    def footnote(self):
        note = f"errors: |C - truth| / {self.product.measure} of the call nearest to its bound"
        return f"{note}; of 16-bit types, beyond their rounding"

    @property
    def player(self):
        return {"kind": "product", "names": self.product.results}

    # ---- Bytes. ----

    def slab_bytes(self):
        """Returns the bytes of a timed call's matrices, and the least bytes of a slab.

        A slab has to hold one of the largest calls with its dC.
        """
        largest = [self.max_size + 1] * len(self.product.headline(1))
        return tuple(room(self.dtype, *self.product.shapes(dims)) for dims in (self.dims, largest))

    def bytes_moved(self, sample, results):
        """Returns the bytes that a timed call has to move. A triangular matrix that it reads counts half."""
        read = zip(sample.inputs, self.product.keeps, strict=False)
        written = sum(X.nbytes for X in results.values())
        return written + sum(X.nbytes / (1 if keep is torch.as_tensor else 2) for X, keep in read)

    # ---- Choice of calls. ----

    def ask_for_gradients(self):
        """Returns a call that shows whether the reference has gradients, or None with --forward-only."""
        if self.run.options.forward_only:
            return None
        return self.call("normal", self.product.headline(min(16, self.run.options.size)), "gradients")

    def key(self, call):
        """Returns the key of a call, which is what all calls of one request must have in common."""
        return call.mode

    def begin(self):
        self.construct()

    def construct(self):
        """Constructs the reference's module or, if the solution has been started, the solution's.

        Both get the same arguments, which the reference's file defines.
        """
        run = self.run
        if run.solution:
            answer = run.solution.ask(
                "construct", run.reference_limit, seed=run.seed_of_constructors, skeleton=self.arguments
            )
            run.solution.examine_settings(answer)
        else:
            answer = run.reference.ask("construct", run.reference_limit, seed=run.seed_of_constructors)
            if answer["tensors"]:
                raise run.reference.fault("'s get_init_inputs() returns a tensor, which --problem any alone accepts")
            self.arguments = answer["skeleton"]

    construct_solution = construct

    def enter(self, group):
        """Does nothing before a request, because all calls use one module."""

    def usable(self, group, references):
        return group, references

    def learn(self, call, answer):
        """Does nothing, because the names, dtypes and shapes of a product's results are known."""

    def modified(self, call, number, before, after, is_reference):
        return f"the input {call.input_names[number]} is modified, first at {measures.first_difference(before, after)}"

    def near(self, size):
        """Returns dimensions at a random size from 7/8 of `size` to `size`, which is limited to --size."""
        size = min(size, self.run.options.size)
        return self.product.headline(self.run.random.randint(max(1, size * 7 // 8), size))

    def between(self, min_size, max_size):
        """Returns dimensions at a random size from `min_size` to `max_size`, equally likely in each octave.

        --size limits both.
        """
        max_size = min(max_size, self.run.options.size)
        min_size = min(min_size, max_size)
        return self.product.headline(round(min_size * (max_size / min_size) ** self.run.random.random()))

    def permuted(self, dims):
        """Returns dimensions in another order in half of the calls, if the three sides of a product may differ."""
        if self.product.square or self.run.random.random() < 0.5:
            return dims
        return tuple(self.run.random.sample(dims, len(dims)))

    def some_hard(self, number):
        """Returns some kinds of hard inputs, for slow calls: all kinds of EXTREME, and `number` of the other kinds."""
        extreme = [name for name in self.hard if name in measures.EXTREME]
        other_names = [name for name in self.hard if name not in extreme]
        return extreme + self.run.random.sample(other_names, number)

    def is_telling(self, call):
        """Returns whether a wrong gradient would show in a call: its operands are ordinary, and it is not tiny."""
        sides = call.dims[-len(self.product.headline(1)) :]
        return call.name in ORDINARY and max(sides) >= min(16, self.run.options.size)

    def calls_to_judge(self):
        """Returns the calls to judge, in random order.

        About half of the forward calls at random sizes have uniform inputs, so that KernelBench's own criterion is
        applied at many sizes.
        """
        run, hard, options = self.run, self.hard, self.run.options
        size_arguments = run.random, self.product, self.max_size
        cuda, size, batches = run.cuda, options.size, options.batches
        kinds, has_batches = ("uniform", "normal", "mixed", "uniform"), batches or self.product.inverse
        all_hard = ALL_HARD[run.device.type]
        sizes = [
            dims for _ in range(2 if cuda else 1) for dims in measures.dims_of(measures.some_sizes, *size_arguments)
        ]
        calls = [self.call(run.random.choice(kinds), dims) for dims in sizes]
        calls += [self.call(name, self.dims) for name in (*ORDINARY, *["mixed"] * 3)]
        calls += [
            self.call(run.random.choice(("normal", *hard)), dims)
            for dims in measures.some_batches(4 * has_batches, *size_arguments)
        ]
        # Hard inputs have several sizes, because a fast path may begin at any size. Each kind occurs at sizes up to
        # --size, and some kinds occur at larger sizes.
        hard_calls = [
            self.call(name, self.permuted(self.near(max_size)))
            for max_size in ((1100, 2048) if cuda else ())
            for name in hard
        ]
        hard_calls += [self.call(name, self.permuted(self.between(100, size))) for name in hard]
        repeated = [call for call in calls if max(call.dims) <= size] + run.random.sample(
            hard_calls, min(7, len(hard_calls))
        )
        calls += [self.call(name, self.permuted(self.between(1, 100))) for name in hard]
        calls += hard_calls + [self.call(name, (2, *self.near(1100 if cuda else 150))) for name in hard if batches]
        hard_at_size = hard[::-1] if size <= all_hard["forward"] else self.some_hard(9)
        calls += [self.call(name, self.dims) for name in hard_at_size]
        larger_dims = [self.product.headline(run.random.randint(size, self.max_size)) for _ in range(4 if cuda else 2)]
        calls += [self.call(run.random.choice(hard), dims) for dims in larger_dims]
        if run.gradients:
            # A CPU gets fewer large sizes than a GPU, because it is slow at these.
            sizes = [self.max_size, self.max_size, self.max_size] if cuda else [self.max_size, -(-size // 2)]
            about_multiples = measures.sizes_about_multiples
            all_dims = [
                dims
                for max_size in sizes
                for dims in measures.dims_of(about_multiples, run.random, self.product, max_size)
            ]
            all_dims += measures.dims_of(measures.some_sizes, *size_arguments)[:: 1 if cuda else 2]
            all_dims += [self.dims] * (4 if cuda else 2)
            all_dims += measures.some_batches((8 if cuda else 4) * has_batches, *size_arguments)
            gradient_calls = [self.call(run.random.choice(list(ORDINARY)), dims, "gradients") for dims in all_dims]
            # Enough calls are added that each pair of GRADIENTS is used in a call that is_telling() accepts. The pairs
            # are assigned below, to such calls first.
            extra = max(7, len(GRADIENTS) - sum(map(self.is_telling, gradient_calls)))
            gradient_calls += [
                self.call(run.random.choice(("mixed", "normal")), self.between(24, 150), "gradients")
                for _ in range(extra)
            ]
            repeated += [call for call in gradient_calls if max(call.dims) <= size][::3]
            # The following calls are not in `calls`, so that the loop over pairs below leaves their kinds as they are.
            # In the first two, dC is as for C.sum() and for -C.sum(). In the calls after these, dC is the same for all
            # of a batch.
            repeated += [self.call("uniform", self.dims, "gradients", kind=2) for _ in "+-"]
            repeated += [
                self.call("normal", dims, "gradients", kind=8)
                for dims in measures.some_batches(3 * has_batches, *size_arguments)
            ]
            calls += gradient_calls + [self.call(name, self.near(1100), "gradients") for name in hard if cuda]
            calls += [self.call(name, self.permuted(self.between(20, size)), "gradients") for name in hard]
            hard_at_size = hard if size <= all_hard["gradients"] else self.some_hard(1)
            calls += [self.call(name, self.dims, "gradients") for name in hard_at_size]
        for mode in MODES:
            pairs = itertools.cycle(run.random.sample(GRADIENTS, len(GRADIENTS)))
            mode_calls = sorted((call for call in calls if call.mode == mode), key=self.is_telling, reverse=True)
            for call, pair in zip(mode_calls, pairs, strict=False):
                call.kind, call.way = pair
        if options.one_size and not cuda:  # every call takes as long as the largest one, so only some are kept
            calls = run.random.sample(calls, min(len(calls), 50))
            repeated = run.random.sample(calls, 8)
        aliased = self.aliased_calls()
        calls += aliased
        calls += repeated + aliased[-1:] + run.random.sample(aliased[:-1], len(aliased) // 4)
        run.random.shuffle(calls)
        return calls

    def aliased_calls(self):
        """Returns calls f(A, A), and calls f(A, B) where B lies in the memory of A or has the same values.

        There are none if the problem has one operand, or if the operands cannot have the same shape.
        """
        run, product = self.run, self.product
        # If `dims` is (K, M, N), A is K x M and B is K x N. The shapes of A and B differ unless M = N.
        shapes_differ = run.options.one_size and self.dims[-1] != self.dims[-2:][0]
        if len(product.names) < 2 or shapes_differ:
            return []
        aliases = ["tensor", "memory", "values"]
        sizes = [self.near(max_size) for max_size in (20, 150, run.options.size)]
        sizes = sizes if product.square else [(*dims[:-1], dims[-2]) for dims in sizes]
        calls = []
        for mode in MODES if run.gradients else ["forward"]:
            for dims in sizes:
                for alias in aliases:
                    # For C = tril(A) X, the reference gets two tensors, tril(A) and X, and has a gradient for each.
                    # A solution that got one tensor would have only their sum. So it gets two that share memory.
                    alias = "memory" if alias == "tensor" and mode == "gradients" and not product.number else alias
                    call = self.call(run.random.choice(list(ORDINARY)), dims, mode, alias=alias)
                    call.way = run.random.randrange(4)
                    if alias == "memory" and mode == "gradients" and dims != sizes[0]:
                        # The operands are two leaves in the same memory, and both gradients are asked for at once.
                        call.other, call.way = 0, 0
                    calls.append(call)
        return calls

    def inference_calls(self):
        all_dims = [self.near(max_size) for max_size in (20, 150, self.run.options.size)] + [self.dims]
        calls = [self.call(name, dims) for dims in all_dims for name in self.run.random.sample(list(ORDINARY), 2)]
        self.run.random.shuffle(calls)
        return calls

    def sample(self, mode):
        return self.call("uniform", self.dims, mode)

    def timed_calls(self, mode, number, decoy=None):
        """Returns `number` calls with uniform inputs. A decoy has other inputs among them.

        A decoy is a request whose results are judged like those of a timed request, but whose time does not count. An
        "open" decoy has all kinds of inputs, if it has enough calls. If it has fewer, the kinds that look uniform in a
        sample of elements are preferred. In a "hidden" decoy, only one or two calls have special operands, and one has
        a special dC. A file that looks at samples of all inputs of a request takes a hidden decoy for a timed request.
        """
        # `names` are kinds of operands. `kinds` are kinds of dC (see gradient_of() in judge/measures.py).
        random, names, kinds = self.run.random, ["uniform"] * number, [0]
        subtle = random.sample([*measures.SEEMINGLY_UNIFORM], len(measures.SEEMINGLY_UNIFORM))
        if decoy == "open":
            other_names = [name for name in self.hard if name not in subtle]
            names = [*subtle, *random.sample(other_names, len(other_names)), *random.choices([*ORDINARY], k=number)]
            # dC of these kinds has the same strides as in a timed call. Other strides would reveal the decoy.
            kinds = (1, 5, 6, 0)
        if decoy == "hidden":
            names = ["uniform, one large entry", random.choice(measures.HIDDEN), *names]
            kinds = random.sample([random.choice((1, 5)), *[0] * (number - 1)], number)
        names = random.sample(names[:number], number)
        return [self.call(name, self.dims, mode, kinds[n % len(kinds)]) for n, name in enumerate(names)]

    # ---- Truths and bounds. ----

    def truths(self, call, reference):
        exact = call.name in ("integers", "constant") and call.mode != "gradients" and not self.product.inverse
        return self.product.truths(call.inputs, exact, self.run.tf32, call.alias == "tensor")

    def find_truths(self, calls, references=None):
        """Does nothing, because truths() computes the truths of a product in this process."""

    def reference_of(self, call):
        """Returns None. Judgement.examine() then calls the reference only if an error exceeds the smallest bound."""

    def doubt(self, call, name, truth, reference_error):
        """Returns what is wrong with the reference, or an empty string."""
        if call.name in ORDINARY and reference_error > truth.largest_bound:
            message = f"'s error of {name} on {call.name} inputs is {reference_error:.1e}: it does not compute"
            return f"{message} {self.product.formula} in {self.run.options.dtype}, or is made to use TF32 (--tf32)"
        return ""

    def reconsider(self, call, name, truth, result, bound, worst):
        return worst

    def explain(self, name, truth, result, reference, worst, bound):
        error, indices = worst
        errors = truth.errors(result)
        return (
            f"worst element {name}{measures.located(result, indices)}{unwritten(result[indices])},"
            f" exact {float(truth.high[indices]):.9g}, reference {float(reference[indices]):.9g};"
            f" its error is {error:.2e} of {self.product.measure}{measures.located(truth.magnitude, indices)},"
            f" allowed {bound:.2e}; {int((errors > bound).sum())} of {errors.numel()} elements are above the bound"
        )

    def criterion(self, call, results, reference):
        """Applies KernelBench's own criterion to C, if the inputs are uniform and the reference's results are known.

        Returns what is wrong, or None.
        """
        tolerance = 1e-2 if self.dtype.itemsize == 2 or self.run.tf32 else 1e-4
        C, reference_C = (list(tensors.values())[0] if tensors else None for tensors in (results, reference))
        if call.name == "uniform" and reference and not torch.allclose(C, reference_C, atol=tolerance, rtol=tolerance):
            return f"KernelBench's criterion fails: not allclose to the reference at atol = rtol = {tolerance}"
        return None

    def other_bits(self, message):
        """Returns `message` as an error, because a product has to have the same bits for the same inputs."""
        return message

    # ---- Help for the author of a file that fails, and notes at the end. ----

    def simplicity(self, row):
        """Returns the sort key of a row. Rows that the author of the file understands more easily have smaller keys."""
        suffix = MODES["gradients"]
        size = math.prod(map(int, row["size"].split("x")))
        return row["input"].endswith(suffix), list(DISTRIBUTIONS).index(row["input"].removesuffix(suffix)), size

    def simple_calls(self, row):
        """Yields calls with uniform inputs in the mode of a wrong row.

        Their sizes increase, and are powers of two and 1 more than these, limited to --size.
        """
        mode, max_size = "gradients" if row["input"].endswith(MODES["gradients"]) else "forward", self.run.options.size
        sizes = sorted({size for power in range(max_size.bit_length()) for size in (1 << power, (1 << power) + 1)})
        for size in [max_size] if self.run.options.one_size else sizes:
            yield self.call("uniform", self.product.headline(min(size, max_size)), mode)

    def hint(self):
        """Returns possible causes of the errors and possible remedies, or an empty string."""
        options, rows, hints = self.run.options, self.run.report.rows, []
        wrong = [row for row in rows if row["detail"]]
        if not wrong:
            return ""
        if all(row["input"].endswith(MODES["gradients"]) for row in wrong):
            hints.append("each forward call is right, and --forward-only leaves gradients out")
        errors = [row.get("error", math.inf) for row in wrong if row["input"] in ORDINARY]  # of forward calls only
        if self.dtype == torch.float32 and not self.run.tf32 and are_of_tf32(errors):
            hints.append("the errors are of TF32's size, and --tf32 judges by its bound on a GPU")
        raises = all("the solution raises " in row["detail"] for row in wrong)
        pattern = r"AssertionError|\b(sizes?|shapes?|dimensions?|multiple|divisible)\b"
        concerns_sizes = any(re.search(pattern, row["detail"]) for row in wrong)
        at_headline = [row for row in rows if row["size"] == self.label]
        right_at_headline = bool(at_headline) and not any(row["detail"] for row in at_headline)
        if raises and (concerns_sizes or right_at_headline) and not options.one_size:
            hints.append(
                f"other sizes are asked for than --size, and --size {options.size} --one-size judges that one alone"
            )
        return "; ".join(hints)

    def finish(self, made_twice):
        """Reports that repeated calls gave the same bits. `made_twice` is the number of calls that were made twice."""
        detail = f"{made_twice} calls were made twice, among the others"
        self.run.report.check("the same bits for the same inputs", "ok", detail)


# ==== 3. Any problem ====


class Anything:
    """Defines a problem by a reference file in KernelBench's form."""

    measures_first = True
    foreign_options = {
        "size": "--set changes the constants of the reference's file",
        "dtype": "the reference's file has its own",
    }
    foreign_options["one_size"] = foreign_options["size"]
    foreign_options |= {
        "batches": "the reference's file has its own shapes",
        "forward_only": "gradients are judged with --gradients alone",
    }
    input_order = [f"{name}{mode}" for mode in ("", ", eval") for name in ("drawn", *generic.VARIANTS)]

    SEEDS = 3  # the number of seeds with which modules are constructed
    PERTURBATIONS = 8  # the number of times that perturbed() perturbs the inputs of a call

    def __init__(self, run):
        self.run, self.label, self.nbytes = run, "", 0
        self.constructor = None  # the seed with which the present modules were constructed
        self.has_solution = False  # whether the solution's module has been constructed
        self.fits = False  # whether the solution's module has the reference's parameters
        self.shared = set()  # the names of tensors that the solution's module has in the same shape and dtype
        self.changed_inputs = set()  # the numbers of the inputs that the reference has changed so far
        self.copies = True  # whether the solution's module gets the reference's parameters if names and shapes fit
        self.is_random = self.remembers = self.always_the_same = self.never_varies = self.has_other_bits = False
        self.loosened, self.ties, self.unused, self.without_truth = set(), 0, {}, set()
        # A look is the names, dtypes, shapes and structure of a call's results. The keys of `looks` are the mode, and
        # whether the inputs are the file's own. Each value lists the different looks that have been seen.
        self.looks = collections.defaultdict(list)
        self.known = {}  # for each mode, a call with the file's own inputs that the reference has answered
        self.state_kinds = collections.defaultdict(list)  # by mode, the entries of the state that calls change
        self.changes_state = False  # whether any call of the reference has changed state, also after eval()
        self.state_errors = collections.defaultdict(float)  # by name, the reference's largest error in untimed calls
        self.call = functools.partial(AnyCall, run)

    # ---- Names and descriptions. ----

    @property
    def title(self):
        constants = self.run.options.constants
        assignments = ", ".join(f"{name} = {value!r}" for name, value in constants.items())
        return f"what {self.run.options.reference} computes" + (f"; --set changes {assignments}" if assignments else "")

    def classes(self, who):
        return [{"reference": "Model", "solution": "ModelNew"}[who]]

    @property
    def claim(self):
        rule = "within KernelBench's tolerance"
        if self.loosened:
            rule += f" or {generic.MULTIPLE} times the reference's own error"
        return f"computes what the reference computes, in {setting(self.run)}, {rule},"

    @property
    def footnote(self):
        note = (
            "errors: |result - truth| / (s + |truth|) of the call nearest to what is allowed; truth is the reference in"
        )
        return f"{note} float64; s is 1, or for drawn inputs the largest |truth| within 0.01 (16 bits: 0.1) and 1"

    @property
    def player(self):
        return {"kind": "any"}

    # ---- Constructing the modules, and asking the reference. ----

    def draw(self, seed):
        """Returns the skeleton and the tensors that get_inputs() returns after seeding."""
        answer = self.run.reference.ask("draw", self.run.reference_limit, seed=seed)
        return answer["skeleton"], [self.fetch(description) for description in answer["tensors"]]

    def fetch(self, description):
        dtype, shape, place = description
        return self.run.reference.fetch(place, shape, getattr(torch, dtype))

    def construct(self, seed):
        """Makes the reference construct its module with a seed, and the solution too if it has been started."""
        answer = self.run.reference.ask("construct", self.run.reference_limit, seed=seed)
        self.constructor, self.arguments = seed, answer["skeleton"]
        self.argument_tensors = [self.fetch(description) for description in answer["tensors"]]
        self.state = {name: self.fetch(description) for name, description in answer["state"].items()}
        self.state_bytes = sum(room(X.dtype, X.shape) for X in (*self.argument_tensors, *self.state.values()))
        if self.run.solution:
            self.construct_solution()

    def construct_solution(self):
        """Constructs the solution's module.

        The first time, this method also decides whether the module gets the reference's parameters. It gets them if
        names and shapes fit, unless one call is right with its own parameters. KernelBench copies no parameters:
        both constructors make theirs from the same seed. A solution may be right only with its own parameters, for
        example if its constructor scales them.
        """
        answer = self.construct_with(self.state if self.copies else {})
        self.fits, is_same = answer.get("fits") is True, answer.get("is_same")
        is_first, self.has_solution = not self.has_solution, True
        if is_first:  # later the state may not be sent
            shared = answer.get("shared")
            self.shared = {*map(str, shared)} if isinstance(shared, list) else set()
        if not is_first or not self.state:
            return
        detail = ""
        if not self.fits:
            detail = "the solution's have other names or shapes: they are what its constructor makes of the same seed"
        elif is_same is not True:
            self.construct_with({})
            self.fits = False
            self.copies = not self.holds_once()
            detail = "the solution is right with its own, which its constructor makes of the same seed"
            if self.copies:
                self.construct_with(self.state)
                self.fits = True
                detail = "the solution has the reference's, because it is wrong with its own; KernelBench gives it none"
        if detail:
            self.run.report.check("parameters", "note", detail)
        changed = [name.removeprefix("state ") for name, _, _ in self.state_kinds["forward"]]
        if lacking := ", ".join(sorted({*changed} - self.shared)):
            detail = f"not compared, because the solution has no tensor of the same name, shape and dtype: {lacking}"
            self.run.report.check("state that calls change", "note", detail)

    def construct_with(self, state):
        """Makes the solution construct its module, and copy the tensors of `state` if they fit. Returns its answer."""
        tensors = [*self.argument_tensors, *state.values()]
        places = self.run.choices.places_of(tensors, slab_alone=True)
        self.run.requests.write(self.run.solution, tensors, places, {})
        count = len(self.argument_tensors)
        places, state = places[:count], dict(zip(state, places[count:], strict=True))
        limit, arguments = self.run.reference_limit, {"skeleton": self.arguments, "tensors": places, "state": state}
        answer = self.run.solution.ask("construct", limit, seed=self.constructor, **arguments)
        self.run.solution.examine_settings(answer)
        return answer

    def holds_once(self):
        """Returns whether the solution's result of one call with the file's own inputs is right."""
        call = self.call("drawn")
        (reference,), seconds = self.run.requests.send(self.run.reference, [call])
        (results,), _ = self.run.requests.send(self.run.solution, [call], seconds)
        return not self.run.judgement.examine(call, results, reference)

    def measure(self):
        """Finds the sizes of inputs and state, and whether get_inputs() always returns the same.

        This method uses no slab, because the sizes that it finds decide how large the slabs have to be.
        """
        self.construct(self.run.random.getrandbits(63))
        first, second = (self.draw(self.run.random.getrandbits(63))[1] for _ in range(2))
        self.always_the_same = all(torch.equal(X, Y) for X, Y in zip(first, second, strict=True))
        if self.always_the_same:
            self.never_varies = generic.vary(generic.Changes.scaled, first, 0, self.run.device) is None
        self.nbytes = sum(room(X.dtype, X.shape) for X in first)
        self.float64_bytes = sum(room(torch.float64 if X.is_floating_point() else X.dtype, X.shape) for X in first)
        largest = max(first, key=torch.Tensor.numel, default=torch.empty(0))
        self.label = label(largest.shape) or "1"

    def slab_bytes(self):
        return self.nbytes, max(self.float64_bytes, self.state_bytes) + (1 << 20)

    def begin(self):
        """Finds out whether calls draw random numbers or depend on earlier calls, and how many bytes they read.

        Unlike measure(), this method makes calls of the reference, whose inputs need a slab.
        """
        self.construct(self.constructor)
        call = self.call("drawn")
        (results,), _ = self.run.requests.send(self.run.reference, [call])
        if call.outline == "None" and not call.after:
            raise self.run.reference.fault(" returns None and changes no input")
        answer = self.run.reference.ask("study", self.run.reference_limit)
        self.is_random, self.remembers, self.bytes_read = answer["is_random"], answer["remembers"], answer["bytes"]
        finite = [bool(X.isfinite().any()) for X in results.values() if X.numel()]
        if finite and not any(finite):
            raise self.run.reference.fault(" returns no finite number on its own inputs")

    def bytes_moved(self, sample, results):
        return self.bytes_read + sum(X.nbytes for name, X in results.items() if name not in sample.aliases)

    # ---- Choice of calls. ----

    def ask_for_gradients(self):
        return self.call("drawn", "gradients") if self.run.options.gradients else None

    def key(self, call):
        """Returns the key of a call, which is what all calls of one request must have in common."""
        return call.mode, call.constructor, call.evaluates

    def enter(self, group):
        if group[0].constructor != self.constructor:
            self.construct(group[0].constructor)

    def calls_to_judge(self):
        """Returns the calls to judge, one seed of the constructor after the other.

        Each seed has calls with the file's own inputs, hard variants, calls after eval(), and gradients if they are
        judged. The first seed has all variants, and the other seeds have some. One or two calls of each seed are
        repeated.
        """
        random, calls = self.run.random, []
        for seed in [self.constructor, *(random.getrandbits(63) for _ in range(self.SEEDS - 1))]:
            is_first = not calls
            variants = list(generic.VARIANTS) if is_first else random.sample([*generic.VARIANTS], 3)
            seed_calls = [self.call(name) for name in ("drawn", "drawn", *variants)]
            seed_calls += [self.call(name, evaluates=True) for name in ("drawn", *random.sample(variants, 2))]
            if self.run.gradients:
                seed_calls += [self.call(name, "gradients") for name in ("drawn", *variants)]
            # A variant may be unusable, so at least one call that is made twice has the file's own inputs.
            drawn_calls = [call for call in seed_calls if call.name == "drawn"]
            seed_calls += [random.choice(drawn_calls), random.choice(seed_calls)]
            for call in seed_calls:
                call.constructor = seed
            random.shuffle(seed_calls)
            calls += seed_calls
        return calls

    def usable(self, group, references):
        """Returns the usable calls and the reference's answers. `unused` records why a variant is not usable."""
        usable = []
        for call, results in zip(group, references, strict=True):
            reason = "the reference fails" if isinstance(results, str) else ""
            if call.is_optional and not reason:
                finite = all(bool(X.isfinite().all()) for X in results.values())
                reason = "" if finite else "the reference returns NaN or Inf"
                reason = "nothing can be changed" if call.changes_nothing else reason
            if reason:
                self.unused[call.name] = reason
            else:
                usable.append((call, results))
        return [call for call, _ in usable], [results for _, results in usable]

    def inference_calls(self):
        """Returns no calls, because forward calls are made under no_grad, as KernelBench makes them."""
        return []

    def sample(self, mode):
        return self.call("drawn", mode)

    def timed_calls(self, mode, number, decoy=None):
        """Returns `number` calls with the file's own inputs. A decoy also has variants of these inputs.

        An "open" decoy has variants in many calls, and a "hidden" one in one call alone. Products.timed_calls() says
        what a decoy is.
        """
        random, names = self.run.random, ["drawn"] * number
        usual = self.looks[mode, True]
        if len(usual) > 1:
            raise self.run.reference.fault(" has results of other shapes or structure in each call (see --no-timing)")
        variants = [name for name in generic.VARIANTS if name not in self.unused]
        # If the shapes of results depend on the values of the inputs, variants would have unexpected results.
        if any(look not in usual for look in self.looks[mode, False]):
            variants = []
        if decoy == "open":
            names = random.choices(["drawn", *variants], k=number)
        if decoy == "hidden" and variants:
            names[random.randrange(number)] = "one large element" if "one large element" in variants else variants[0]
        calls = [self.call(name, mode) for name in names]
        for call in calls:
            known = self.known[mode]
            call.expected, call.outline, call.aliases = without_state(known.expected), known.outline, known.aliases
            call.works_in_place = known.works_in_place
        calls[-1].expected += self.state_kinds[mode]  # the last call reports the state that all calls leave
        return calls

    def wrong_state(self, calls, state):
        """Returns what is wrong with the state that timed calls have left, or an empty string.

        The state is that of the solution's module after the last call. The reference makes the same calls one after the
        other, because its state depends on all of them. There is no state in float64, so the bound follows from the
        reference's error in untimed calls.
        """
        calls = [copy.copy(call) for call in calls]
        for call in calls:
            call.expected, call.works_in_place = [], False  # their results are not needed
        calls[-1].expected = self.state_kinds[calls[-1].mode]
        *_, expected = self.run.requests.send(self.run.reference, calls, timed=True)[0]
        for name, X in state.items() if isinstance(expected, dict) else ():
            truth = generic.Truth(expected[name])
            worst, bound = truth.worst(X), truth.bound(self.state_errors[name])
            if not worst[0] <= bound:
                return self.explain(f"{name} after {len(calls)} calls", truth, X, expected[name], worst, bound)
        return ""

    # ---- Truths and bounds. ----

    def learn(self, call, answer):
        """Stores what the reference reports of its results."""
        if call.in_float64:
            return
        call.expected, call.outline, call.aliases = answer["kinds"], answer["outline"], answer["aliases"]
        call.works_in_place = not answer["returns_tensor"]
        state = [result for result in answer["kinds"] if is_state(result)]
        self.changes_state = self.changes_state or bool(state)
        if call.evaluates:  # what follows is for timed calls, which are not made after eval()
            return
        looks = self.looks[call.mode, call.name == "drawn"]
        if state:
            self.state_kinds[call.mode] = state
        look = without_state(answer["kinds"]), answer["outline"]
        if look not in looks:
            looks.append(look)
        if call.name == "drawn":
            self.known[call.mode] = call

    def modified(self, call, number, before, after, is_reference):
        """Returns what is wrong with an input after the solution's call, or an empty string if nothing is.

        The reference may change the input. The solution then has to change it to the same values, within the tolerance.
        A change by the reference itself is stored in call.after.
        """
        if is_reference:
            call.after[number] = after.clone()
            self.changed_inputs.add(number)
            return ""
        if number not in call.after:
            self.run.requests.send(self.run.reference, [call])
        if number in call.after:
            truth = generic.Truth(call.after[number])
            if truth.worst(after)[0] <= truth.bound(0.0):
                return ""
        first = measures.first_difference(before, after)
        description = f"modified, first at {first}" if first else "not modified, although the reference modifies it"
        return f"{call.input_names[number]} is {description}"

    def ask(self, calls, in_float64):
        """Returns the reference's results of calls, in float64 if `in_float64` is True.

        The twin computes the results in float64. It is the reference's module in float64 (see Reference in
        judge/modules.py). The float64 results of a call are None if there is no twin, or if a call of the twin fails.
        They are also None if the reference draws random numbers, because it would draw other numbers in float64. If a
        call in the reference's own dtypes fails, the error's text replaces the results.
        """
        if in_float64 and self.is_random:
            return [None] * len(calls)
        copies, all_results = [copy.copy(call) for call in calls], []
        for call in copies:
            call.in_float64, call.is_optional = in_float64, True
        for piece in self.run.choices.in_pieces(copies):
            all_results += self.run.requests.send(self.run.reference, piece)[0]
        return all_results

    def find_truths(self, calls, references=None):
        """Stores the reference's results of calls, in its own dtypes and in float64.

        `references` has the results in the reference's own dtypes, if they are known already.
        """
        references = references or self.ask(calls, in_float64=False)
        for reference in references:
            if isinstance(reference, str):  # on a GPU without free memory, for example
                raise self.run.reference.fault(f" is wrong: {reference}")
        for call, reference, exact in zip(calls, references, self.ask(calls, in_float64=True), strict=True):
            call.truth = reference, exact

    def reference_of(self, call):
        if not call.truth:
            self.find_truths([call])
        return call.truth[0]

    def perturbed(self, call, absolute):
        """Returns a list of the reference's results for PERTURBATIONS copies of a call.

        The inputs of each copy have other errors of the size of roundings. The errors are relative to each element or,
        if `absolute` is True, to the largest element. The results are float64. If the reference has no twin (see
        Reference in judge/modules.py), or if a call of the twin fails, they have the reference's own dtypes. Copies for
        which the reference fails are left out.
        """
        calls = [copy.copy(call) for _ in range(self.PERTURBATIONS)]
        for seed, perturbed_call in enumerate(calls):
            perturbed_call.inputs = generic.perturb(call.inputs, seed, self.run.device, absolute)
        all_results = self.ask(calls, in_float64=True)
        if not all(isinstance(results, dict) for results in all_results):
            for perturbed_call in calls:
                perturbed_call.inputs = [X.to(Y.dtype) for X, Y in zip(perturbed_call.inputs, call.inputs, strict=True)]
            all_results = self.ask(calls, in_float64=False)
        return [results for results in all_results if isinstance(results, dict)]

    def truths(self, call, reference):
        if not call.truth:
            self.find_truths([call], [reference])
        (_, exact), call.truth = call.truth, None
        if not isinstance(exact, dict):
            exact = None
            self.without_truth.add(call.name)
        for name, _, _ in call.expected:
            if name not in reference:  # a timed call is asked for state that this call may leave as it is
                continue
            is_ordinary = call.name == "drawn" and name.startswith("result")
            high = exact and exact.get(name)
            # The shapes differ, for example, if unique() merges numbers that only rounding has made equal.
            fits = high is not None and high.shape == reference[name].shape
            yield name, generic.Truth(reference[name], high if fits else None, is_ordinary)

    def doubt(self, call, name, truth, reference_error):
        if truth.bound(reference_error) > truth.smallest_bound:
            self.loosened.add(call.name)
        if name.startswith("state "):
            self.state_errors[name] = max(self.state_errors[name], reference_error)
        if call.name != "drawn" or truth.is_integral or reference_error <= generic.SUSPICIOUS:
            return ""
        # The reference's error is large. To find out whether roundings are the reason, the reference makes the same
        # call again, in its own dtypes and in float64. If each of the two results differs from the earlier one by more
        # than SUSPICIOUS, the results depend on something besides the inputs and the module's state.
        own_results, exact_results = (self.ask([call], in_float64)[0] for in_float64 in (False, True))
        for results, first_truth in ((own_results, generic.Truth(truth.reference)), (exact_results, truth)):
            if not isinstance(results, dict) or results[name].shape != truth.shape:
                return ""
            if first_truth.worst(results[name])[0] <= generic.SUSPICIOUS:
                return ""
        message = "it may keep something that is no tensor of its module, or draw from a generator of its own"
        return f" has another result for the same inputs, and an error of {reference_error:.1e} in {name}: {message}"

    def reconsider(self, call, name, truth, result, bound, worst):
        """Returns the worst error that roundings of the inputs do not explain, and its flat index."""
        perturbed = [results[name] for results in self.perturbed(call, truth.is_integral) if name in results]
        perturbed = [X for X in perturbed if X.shape == truth.shape]
        if not perturbed:
            return worst
        *worst, ties = truth.worst_beside_ties(result, perturbed, bound)
        call.row["ties"] += ties
        self.ties += ties
        return worst

    def explain(self, name, truth, result, reference, worst, bound):
        error, index = worst
        result, reference = (generic.real(X).flatten()[index] for X in (result, reference))
        rule = (
            f"{generic.MULTIPLE} times the reference's own error"
            if bound > truth.smallest_bound
            else "KernelBench's tolerance"
        )
        rule = "whole numbers and truth values have to agree" if truth.is_integral else f"allowed {bound:.1e}, {rule}"
        description = f"worst element {name}{truth.position(index)} = {float(result):.9g}{unwritten(result)}"
        description += f", exact {float(truth.high[index]):.9g}, reference {float(reference):.9g}"
        return f"{description}; its error is {error:.2e}, {rule}"

    def criterion(self, call, results, reference):
        return None

    def other_bits(self, message):
        """Records that two results for the same inputs differ. KernelBench allows this: sums may change their order."""
        self.has_other_bits = True

    # ---- Help for the author of a file that fails, and notes at the end. ----

    def simplicity(self, row):
        name = row["input"]
        is_special = ", eval" in name or ", gradients" in name
        return is_special, self.input_order.index(name.removesuffix(", gradients"))

    def simple_calls(self, row):
        """Returns no calls, because the simplest ones, with the file's own inputs, have been judged already."""
        return []

    def hint(self):
        """Returns a possible cause of the errors, or an empty string."""
        rows = [row for row in self.run.report.rows if row["detail"]]
        wrong = [row["input"] for row in rows]
        if self.run.cuda and not self.run.tf32 and are_of_tf32([row.get("error", math.inf) for row in rows]):
            return "the errors are of TF32's size, and --tf32 allows it to both"
        if wrong and all(name.endswith(", gradients") for name in wrong):
            return "each forward call is right, and gradients are judged with --gradients alone"
        if wrong and all(name.endswith(", eval") for name in wrong):
            return "each call of the module as it is constructed is right, and KernelBench makes no calls after eval()"
        if wrong and not any(name.startswith("drawn") for name in wrong):
            return "each call with what get_inputs() returns is right, and KernelBench makes no others"
        return ""

    def finish(self, made_twice):
        """Adds notes on further findings to the report."""
        run = self.run
        if self.has_other_bits:
            detail = "not always, but each result was within what is allowed"
            run.report.check("the same bits for the same inputs", "note", detail)
        if self.unused:
            reasons = {
                reason: [name for name, unused_reason in self.unused.items() if unused_reason == reason]
                for reason in self.unused.values()
            }
            detail = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
            run.report.check("hard variants", "note", f"not used, or not always: {detail}")
        if self.without_truth:
            reason = "draws random numbers" if self.is_random else "does not run in float64"
            run.report.check("truth", "note", f"the reference {reason}: its own results are the truth")
        if self.always_the_same:
            detail = "get_inputs() always returns the same: each call has them multiplied by random numbers about 1"
            if self.never_varies:
                detail = "each call has the same inputs, which cannot be changed: a solution may keep its results"
            run.report.check("inputs", "note", detail)
        float_tensors = {name: X.flatten() for name, X in self.state.items() if X.is_floating_point() and X.numel() > 1}
        if constant_names := [name for name, X in float_tensors.items() if X.min() == X.max()]:
            detail = ", ".join(constant_names[:3]) + (
                f" and {len(constant_names) - 3} more" if constant_names[3:] else ""
            )
            detail += " have one number everywhere, as in KernelBench: a solution could leave them out"
            run.report.check("parameters", "note", detail)
        if self.ties:
            detail = f"{self.ties} elements differ where roundings of the inputs would change the result as well"
            run.report.check("ties", "note", detail)
        detail = "other shapes than the file's, other values than those drawn, more digits than the tolerance"
        run.report.check("not promised", "note", detail)


PROBLEMS = {name: functools.partial(Products, product=product) for name, product in measures.PRODUCTS.items()}
PROBLEMS["any"] = functools.partial(Anything)

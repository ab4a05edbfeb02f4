"""Defines players. A player is the part of a child process that handles the module of the child's file.

There is one class of players for the six products and one for any other problem. A player constructs the module, calls
it, and splits its results into tensors. A player has these members.

    construct(make, arguments, seed, state)
                      Makes the module. `state` has the tensors of the reference's module, or is None.
    prepare(calls, operand, timed, training, inference)
                      Takes the descriptions of calls. operand(leaf, *place) returns an input, as Child.operand()
                      of check.py does.
    operands          Has the inputs of each call that prepare() has taken, as one list per call.
    call(number)      Makes one call and returns its answer. The judge may time it.
    traits(X)         Returns the properties of an input that a call may not change, besides its values.
    parts(number, answer)
                      Returns the outline of an answer (see judge/values.py) and its tensors by name. The outline is
                      None for a product. Both are None if there is no answer.
    returns_tensor(number)
                      Tells whether the result of a call, which parts() has split, has a tensor apart from its numbers.
    state()           Returns the tensors of the module's state_dict by name, or an empty dict.
    kept()            Returns the module's tensors that the player restores before later calls. A solution's result may
                      lie in their memory only if the reference's result does.
    reset()           Resets what the player itself has set, before settings are compared.
    has_gradients     Tells whether gradient mode has to be on after the last call.
    seeds_itself      Tells whether the player seeds the random generators.

Only AnyPlayer has study(). ProductCall.describe() and AnyCall.describe() of judge/problems.py make the descriptions.
"""

import contextlib

import torch

from judge.modules import Reference, Runner, seed_all, state_of
from judge.values import has_tensor, join, outline, places, split

LAYOUTS = (  # the memory layouts of dC, indexed by way // 2; GRADIENTS of judge/measures.py explains `way`
    lambda G: G,
    lambda G: G.mT.contiguous().mT,
    lambda G: torch.nn.functional.pad(G, (1, 0))[..., 1:],
    lambda G: torch.stack((G, G), -1)[..., 0],
)


def is_leaf_with_gradient(C):
    """Returns whether a result is a plain tensor and a leaf that requires a gradient.

    A result that is computed from the inputs is no such leaf.
    """
    return type(C) is torch.Tensor and C.is_leaf and C.requires_grad


def traits_of(X):
    """Returns the properties of an input that no call may change. The traits() of a player may add properties."""
    hooks = (X._backward_hooks, getattr(X, "_post_accumulate_grad_hooks", None))
    return {
        "memory (share_memory_() moves it)": X.data_ptr(),
        "shape": list(X.shape),
        "strides": X.is_contiguous(),
        "requires_grad": X.requires_grad,
        "grad": X.grad is not None,
        "hooks": sum(len(group or ()) for group in hooks),
    }


class ProductPlayer:
    """Handles a module whose result is a product or an inverse C.

    An answer is a tuple of C and, if they are asked for, of the gradients of the operands.
    """

    seeds_itself, has_gradients = False, True

    def __init__(self, device, is_reference, names):
        self.device, self.names = device, names

    def construct(self, make, arguments, seed, state):
        self.model = make(*arguments).to(self.device)
        return {}

    def traits(self, X):
        # The version is compared too, because a changed version harms the caller even if the values were restored.
        # Autograd refuses to use a saved tensor whose version has changed.
        return traits_of(X) | {"version, which counts changes in place": X._version}

    def reset(self):
        """Does nothing, because this player sets nothing."""

    def state(self):
        return {}

    def kept(self):
        return []

    def prepare(self, calls, operand, timed, training, inference):
        self.calls, self.timed, self.inference, self.operands = calls, timed, inference, []
        if isinstance(self.model, torch.nn.Module):
            self.model.train(training)
        for number, call in enumerate(calls):
            asks_for_all = call["mode"] == "gradients"
            operands = []
            for n, place in enumerate(call["inputs"]):
                is_operand = n < len(self.names) - 1  # an input beyond the operands is dC
                is_leaf = is_operand and bool(asks_for_all or call["other"] >> n & 1)
                leaf = "" if not is_leaf else "Parameter" if (number + training) % 2 else "tensor"
                operands.append(operand(leaf, *place))
            self.operands.append(operands)

    def call(self, number):
        call, operands = self.calls[number], self.operands[number]
        self.has_gradients = call["mode"] == "gradients" or call["way"] % 2 == 1
        torch.set_grad_enabled(self.has_gradients)
        if call["mode"] == "gradients":
            return self.gradients(call, *operands)
        with torch.inference_mode() if self.inference else contextlib.nullcontext():
            C = self.model(*operands)
            is_plain = type(C) is torch.Tensor and C.layout == torch.strided
            if is_plain and not is_leaf_with_gradient(C) and number % 2 == 0 and not self.timed:
                # From here on, only a view of the result is kept, as after C.view(...). A module that uses a result's
                # memory again, once the tensor that it returned is gone, then overwrites what the view shows.
                with torch.set_grad_enabled(C.requires_grad):
                    C = C[...]
        return (C,)

    def gradients(self, call, *operands):
        *operands, G = operands
        grads, other = [], call["other"]
        layout, alone = divmod(call["way"], 2)  # see GRADIENTS of judge/measures.py
        G = LAYOUTS[layout](G)
        extra_calls = 0 if self.timed else 1 if alone else 3  # the number of extra calls between forward and backward
        distinct = list({id(X): X for X in operands}.values())  # has one tensor, if both operands are the same
        for wanted in [[X] for X in distinct] if alone else [distinct]:  # one gradient at a time, or all at once
            arguments = {}
            for n, X in enumerate(distinct):
                is_wanted = any(X is Y for Y in wanted)
                arguments[id(X)] = (X.clone() if other >> n & 1 else X) if is_wanted else X.detach().clone()
            C = self.model(*(arguments[id(X)] for X in operands))
            del arguments, X  # only the graph keeps the copies that were made for this call
            # A network may call a module several times before backward(), and the extra calls imitate that. They must
            # not overwrite what the call above has saved for backward().
            for n in range(extra_calls):
                self.model(*(X / (n + 2) for X in operands))
            torch.autograd.backward(C, G.expand_as(C))
            for X in wanted:
                grads.append(X.grad)
                X.grad = None
        return C, *grads

    def returns_tensor(self, number):
        return True

    def parts(self, number, answer):
        if is_leaf_with_gradient(answer[0]):
            raise TypeError("it is a leaf that requires a gradient, as nothing computed from the inputs is")
        return None, dict(zip(self.names, answer, strict=False))


class AnyPlayer:
    """Handles any module in KernelBench's form.

    An answer is a tuple of the result, a dict of gradients, and a dict of entries of the module's state_dict. The last
    dict has the entries that a call of the reference changes, also if the module is the solution's. In timed requests
    parts() adds these entries to the last call alone. The answer is None if a result in float64 is asked for and cannot
    be computed.
    """

    seeds_itself, has_gradients = True, False

    def __init__(self, device, is_reference):
        self.device, self.is_reference = device, is_reference

    def traits(self, X):
        """Leaves out the version, because a reference may change its inputs."""
        return traits_of(X)

    def reset(self):
        seed_all(0)

    def construct(self, make, arguments, seed, state):
        self.runner = None  # frees the memory of the previous runner
        if self.is_reference:
            self.runner = Reference(make, arguments, seed, self.device)
        else:
            self.runner = Runner(make, arguments, seed, self.device, state)
        return {"fits": self.runner.fits, "is_same": self.runner.is_same, "shared": self.runner.shared}

    def state(self):
        return state_of(self.runner.model)

    def kept(self):
        return [tensor for _, _, _, tensor, _ in self.runner.before.entries]

    def prepare(self, calls, operand, timed, training, inference):
        self.calls, self.timed, self.skeletons = calls, timed, {}
        self.operands = [[operand("", *place) for place in call["inputs"]] for call in calls]
        self.arguments = [join(call["skeleton"], operands) for call, operands in zip(calls, self.operands, strict=True)]
        torch.set_grad_enabled(False)  # KernelBench calls modules under no_grad
        if timed:
            self.runner.begin(0, calls[0]["evaluates"])

    def call(self, number):
        call, tensors = self.calls[number], self.operands[number]
        torch.set_grad_enabled(False)
        if call["in_float64"]:
            answer = self.runner.exact(call["skeleton"], tensors, call["seed"], call["evaluates"], call["gradients"])
            return answer and (*answer, self.changed(self.runner.twin, call))
        # begin() restores the module's state and seeds the generators. If `resets` is true, results of the reference
        # depend on earlier calls, and the state is restored before each call. Otherwise a timed request restores
        # nothing here, because prepare() has done that. An untimed request restores the state before its first call. It
        # also does so before each other call if call["restores"] is true. It is false for the solution as long as no
        # call of the reference has changed state.
        if self.timed and call["resets"]:
            self.runner.begin_timed(call["seed"])
        elif call["resets"] or not self.timed and (number == 0 or call["restores"]):
            self.runner.begin(call["seed"], call["evaluates"])
        elif call["is_random"] or not self.timed:
            seed_all(call["seed"])
        if call["gradients"] is None:
            answer = self.runner.forward(self.arguments[number]), {}
        else:
            answer = self.runner.gradients(call["skeleton"], tensors, call["gradients"])
        if not (self.is_reference or self.timed or call["is_random"]) and torch.initial_seed() != call["seed"]:
            raise RuntimeError("the call seeds torch's generator, which is its caller's")
        return *answer, {} if self.timed else self.changed(self.runner, call)

    def changed(self, runner, call):
        """Returns a dict from names to copies of those entries of the state_dict that the reference's call changes.

        The reference's player finds these entries by comparison with the state before the call. The solution's player
        gets their names in call["state"]. If both modules have a state_dict with the same names and shapes, and the
        solution's call has changed another entry, this method raises an error. Copies are needed because the module's
        state is restored before the next call.
        """
        changed = runner.before.changed()
        wanted = changed if call["state"] is None else call["state"]
        if (
            call["state"] is not None
            and runner.fits
            and (unexpected := (changed.keys() & state_of(runner.model).keys()) - {*wanted})
        ):
            raise RuntimeError(f"the call changes {', '.join(sorted(unexpected))}, which the reference's does not")
        return self.copies_of_state(runner, wanted)

    def returns_tensor(self, number):
        return has_tensor(self.skeletons[number])

    def copies_of_state(self, runner, names):
        state = state_of(runner.model) if names else {}
        return {f"state {name}": state[name].clone() for name in names if name in state}

    def parts(self, number, answer):
        if answer is None:
            return None, None
        result, gradients, changed = answer
        if self.timed and number == len(self.calls) - 1:
            changed = self.copies_of_state(self.runner, self.calls[number]["state"] or ())
        tensors, skeleton = split(result, results_on=self.device)
        self.skeletons[number] = skeleton
        named = dict(zip(places(skeleton, "result"), tensors, strict=True)) | gradients | changed
        plain = {name: X.data if type(X) is torch.nn.Parameter else X for name, X in named.items()}
        description, (_, remaining) = outline(skeleton), split(self.arguments[number])
        if remaining != self.calls[number]["skeleton"]:  # for example, the call has emptied a list
            description += f", with {outline(remaining)} left of the arguments"
        # A tensor of a subclass is left as it is, and inspect_call() of check.py rejects it. Its methods are the
        # stranger's, and could compute the result only here.
        return description, {
            name: X.resolve_conj().resolve_neg() if type(X) is torch.Tensor else X for name, X in plain.items()
        }

    def study(self):
        """Returns what the judge has to know of the reference. The first call of the last request is made again for it.

        "is_random" tells whether the call draws random numbers, and "remembers" whether its result depends on earlier
        calls. "bytes" is a lower bound of the bytes that the call has to read.
        """
        call, tensors = self.calls[0], self.operands[0]
        arguments = call["skeleton"], tensors, call["seed"]
        return {
            "is_random": self.runner.is_random(*arguments),
            "remembers": self.runner.remembers(*arguments),
            "bytes": self.runner.influence(*arguments),
        }


PLAYERS = {"product": ProductPlayer, "any": AnyPlayer}

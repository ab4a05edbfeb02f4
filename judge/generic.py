"""Makes hard variants of the inputs of any problem in KernelBench's form, and bounds the errors of its results."""

import math

import torch

# ==== 1. Variants of inputs ====


class Domain:
    """Records which properties of a tensor a change has to preserve.

    The properties are whole numbers, few distinct values, many zeros, symmetry, and rows of elements that sum to 1.
    """

    FEW = 4  # a tensor of more than 4 * FEW elements with at most FEW distinct values holds labels, signs or a mask
    SAMPLE = 1 << 20  # at most this many elements of a tensor, and of each row for its sum, are examined

    def __init__(self, X):
        sample = X.flatten()[: self.SAMPLE].double()
        self.is_discrete = (
            bool((sample == sample.round()).all())
            or sample.numel() > 4 * self.FEW
            and sample.unique().numel() <= self.FEW
        )
        self.has_zeros = bool((sample == 0).double().mean() > 1 / 8)
        self.is_symmetric = X.dim() > 1 and X.shape[-1] == X.shape[-2] > 1 and torch.equal(X, X.mT)
        sums = X[..., : self.SAMPLE].double().sum(-1) if X.dim() else X.double()
        self.is_distribution = (
            X.dim() > 0 and X.shape[-1] > 1 and bool((sample >= 0).all()) and bool((sums - 1).abs().max() < 1e-2)
        )

    def multiplied(self, X, factors):
        if self.is_discrete or self.is_distribution:
            return X
        if self.is_symmetric:
            factors = factors.triu() + factors.triu(1).mT
        return (X * factors).to(X.dtype)


class Changes:
    """Changes floating-point tensors.

    scaled() and each method that VARIANTS lists take a tensor and its Domain, and return the changed tensor.
    """

    def __init__(self, seed, device):
        self.device = device
        self.stream = torch.Generator(device).manual_seed(seed)

    def uniform(self, *shape):
        return torch.rand(shape, generator=self.stream, device=self.device)

    def whole(self, X, lowest, highest):
        """Returns random whole numbers from `lowest` to `highest` in the shape of X, in 8 bits to save memory."""
        numbers = torch.empty(X.shape, dtype=torch.int8, device=self.device)
        return numbers.random_(lowest, highest + 1, generator=self.stream)

    def one_of(self, X):
        """Returns the flat index of a random element that is not zero, if X has one."""
        start = int(self.uniform(1) * X.numel())
        return (start + int((X.flatten().roll(-start) != 0).byte().argmax())) % X.numel()

    def signs(self, X, domain):
        return domain.multiplied(X, 1 - 2 * self.whole(X, 0, 1))

    def powers_of_two(self, X, domain):
        max_exponent = 3 if X.dtype == torch.float16 else 8
        return domain.multiplied(X, torch.exp2(self.whole(X, -max_exponent, max_exponent).float()))

    def small(self, X, domain):
        return domain.multiplied(X, torch.full_like(X, 2.0**-6))

    def large(self, X, domain):
        return domain.multiplied(X, torch.full_like(X, 2.0**4))

    def zeros(self, X, domain):
        """Sets about a third of the elements to zero.

        If X has several dimensions, about one in eight of its slices along the first dimension becomes zero as well.
        """
        kept = self.uniform(*X.shape) > 1 / 3
        if X.dim() > 1:
            kept &= (self.uniform(X.shape[0]) > 1 / 8).view(-1, *[1] * (X.dim() - 1))
        return domain.multiplied(X, kept)

    def one_large_element(self, X, domain):
        factors = torch.ones_like(X, memory_format=torch.contiguous_format)
        factors.view(-1)[self.one_of(X)] = 16 if X.dtype == torch.float16 else 1024
        if domain.is_symmetric:
            factors = torch.maximum(factors, factors.mT)
        return domain.multiplied(X, factors)

    def equal_elements(self, X, domain):
        value = X.flatten()[self.one_of(X)]
        if domain.is_distribution:
            return torch.full_like(X, 1 / X.shape[-1])
        return torch.where(X == 0, X, value) if domain.has_zeros else torch.full_like(X, value)

    def permuted_rows(self, X, domain):
        if X.dim() == 0 or domain.is_symmetric or domain.has_zeros:
            return X
        order = torch.randperm(len(X), generator=self.stream, device=self.device)
        return X[order.roll(1) if torch.equal(order, order.sort().values) else order]

    def scaled(self, X, domain):
        """Multiplies by random factors from 0.5 to 1.5. AnyCall needs this if get_inputs() always returns the same."""
        return domain.multiplied(X, 0.5 + self.uniform(*X.shape))


VARIANTS = {
    "signs": Changes.signs,
    "powers of two": Changes.powers_of_two,
    "small": Changes.small,
    "large": Changes.large,
    "zeros": Changes.zeros,
    "one large element": Changes.one_large_element,
    "equal elements": Changes.equal_elements,
    "permuted rows": Changes.permuted_rows,
}


def vary(change, tensors, seed, device):
    """Applies a change to the floating-point tensors. Returns all tensors, or None if no tensor has changed."""
    changes = Changes(seed, device)
    changed = [change(changes, X, Domain(X)) if X.is_floating_point() and X.numel() else X for X in tensors]
    return None if all(torch.equal(X, Y) for X, Y in zip(changed, tensors, strict=True)) else changed


def perturb(tensors, seed, device, absolute):
    """Returns all tensors. Floating-point ones become float64 and get random errors that are as large as roundings.

    An error is 8 to 16 eps of the dtype, as after a sum, or 0.5 to 1 eps for 16-bit dtypes. It is relative to the
    element itself or, if `absolute` is True, to the largest element. An odd seed gives the errors of the preceding even
    seed with opposite signs. So such a pair of seeds moves a linear result to both sides of the truth, and breaks near
    ties both ways.
    """
    changes, perturbed = Changes(seed // 2, device), []
    for X in tensors:
        if X.is_floating_point() and X.numel():
            max_error = torch.finfo(X.dtype).eps * (1 if X.dtype.itemsize == 2 else 16)
            # `errors` is positive everywhere for seed 0, and negative everywhere for seed 1. Errors of random signs
            # would cancel in a sum of many elements.
            signs = 1 - 2 * changes.whole(X, 0, 1) if seed > 1 else 1
            errors = signs * (0.5 + changes.uniform(*X.shape) / 2) * (-max_error if seed % 2 else max_error)
            X = X.double() + errors * (X.double().abs().max() if absolute else X.double())
        perturbed.append(X)
    return perturbed


# ==== 2. Truth and bounds ====

MULTIPLE = 4  # the error of a result may be this many times the reference's own error
# The reference may have a hidden state if its error exceeds this number, and if the results of two calls with the same
# inputs differ by more than this number.
SUSPICIOUS = 0.1
CHUNK = 1 << 24  # the number of elements that are compared at once, which limits memory


def tolerance_of(dtype):
    """Returns the number that KernelBench uses as both atol and rtol for results of this dtype."""
    return 1e-2 if dtype.itemsize == 2 else 1e-4


def real(X):
    return torch.view_as_real(X.resolve_conj()) if X.is_complex() else X


def magnitudes(X):
    """Returns |X|, with 0 in place of numbers that are not finite."""
    return torch.where(X.isfinite(), X, 0).abs()


def worst(errors):
    """Returns the largest error and its flat index."""
    index = int(errors.argmax())
    return float(errors[index]), index


class Truth:
    """Holds what one tensor of a result should be, and measures the errors of results against it.

    An element's error is |x - truth| / (scale + |truth|). KernelBench uses scale 1 and allows an error up to its
    tolerance. If `ordinary` is True, the scale is the largest |truth|, limited to the range from 0.01 (0.1 for 16-bit
    dtypes) to 1. With scale 1, zeros would pass for the softmax of a long row. The error of an integer or a bool is 0
    or 1.
    """

    unjudged = 0

    def __init__(self, reference, exact=None, ordinary=False):
        self.shape, self.dtype = reference.shape, reference.dtype
        self.reference = real(reference).flatten()
        self.is_integral = not self.reference.is_floating_point()
        self.high = self.reference if exact is None else real(exact).flatten()
        if self.is_integral:
            self.smallest_bound = 0.0
            return
        self.smallest_bound, self.scale = tolerance_of(reference.dtype), 1.0
        if ordinary and self.high.numel():
            largest = max(float(magnitudes(self.high[part]).max()) for part in self.chunks())
            self.scale = min(max(largest, 0.1 if reference.dtype.itemsize == 2 else 0.01), 1.0)
        # Where the truth is not finite, the reference's value replaces it. The check goes by chunks, so that it needs
        # little memory in the usual case, in which all elements are finite.
        if not all(bool(self.high[part].isfinite().all()) for part in self.chunks()):
            self.high = torch.where(self.high.isfinite(), self.high, self.reference.to(self.high.dtype))

    def errors(self, part, result, lower=None, upper=None):
        """Returns the errors of `result`, the slice `part` of the flat result.

        If `lower` and `upper` are given, any number between them has the error 0.
        """
        reference, high = self.reference[part], self.high[part]
        if self.is_integral:
            return ((result != high) & (result != reference)).double()
        result64, high = result.double(), high.double()
        lower, upper = (high, high) if lower is None else (lower, upper)
        errors = torch.maximum(lower - result64, result64 - upper).clamp_min_(0) / (self.scale + high.abs())
        errors.nan_to_num_(nan=math.inf, posinf=math.inf)
        same = (result == reference) | (result.isnan() & reference.isnan())
        return errors.masked_fill_(same & ~reference.isfinite(), 0.0)

    def chunks(self):
        return [slice(start, start + CHUNK) for start in range(0, self.high.numel(), CHUNK)]

    def worst(self, result):
        """Returns the largest error of a result and its flat index."""
        result = real(result).flatten()
        worst_of_chunks = [(worst(self.errors(part, result[part])), part.start) for part in self.chunks()]
        return max(((error, start + index) for (error, index), start in worst_of_chunks), default=(0.0, 0))

    def bound(self, reference_error):
        return max(self.smallest_bound, MULTIPLE * reference_error)

    def likely_integers(self, perturbed):
        """Returns the least and the greatest integer that worst_beside_ties() accepts at a tie.

        The range from the least to the greatest element of the truth and of `perturbed` is extended by its own width on
        both sides. If the range has no negative numbers, it is not extended below 0. The integers may be positions, as
        argmax returns them, which are never negative.
        """
        extremes = [int(edge) for X in (self.high, *perturbed) if X.numel() for edge in (X.min(), X.max())]
        if not extremes:
            return 0, 0
        width = max(extremes) - min(extremes)
        lowest = min(extremes) - width
        return max(lowest, 0) if min(extremes) >= 0 else lowest, max(extremes) + width

    def worst_beside_ties(self, result, perturbed, bound):
        """Returns the largest error that ties do not explain, its flat index, and the number of ties.

        A tie is an element whose error exceeds `bound` according to errors(), but not according to this method, which
        allows for rounding errors of the inputs. `perturbed` has several results that the reference computes from
        inputs with such errors. A floating-point element has the error 0 if it lies between the least and the greatest
        of these results and the truth. An integer has the error 0 if two conditions hold: one of these results differs
        there from the truth, and the integer lies in the range of likely_integers().
        """
        result, ties, largest = real(result).flatten(), 0, (0.0, 0)
        perturbed = [real(X).flatten() for X in perturbed]
        if self.is_integral:
            lowest, highest = self.likely_integers(perturbed)
        for part in self.chunks():
            errors, high = self.errors(part, result[part]), self.high[part]
            exceeded = errors > bound
            if self.is_integral:
                likely = (result[part] >= lowest) & (result[part] <= highest)
                for X in perturbed:
                    errors[likely & (X[part] != high)] = 0.0
            else:
                values = torch.stack([high.double(), *(X[part].double() for X in perturbed)])
                errors = self.errors(part, result[part], values.amin(0), values.amax(0))
            ties += int((exceeded & ~(errors > bound)).sum())
            error, index = worst(errors)
            largest = max(largest, (error, part.start + index))
        return *largest, ties

    def position(self, index):
        """Returns the indices of the element at a flat index.

        For complex tensors, the last index selects the real or the imaginary part.
        """
        shape = [*self.shape, 2] if self.dtype.is_complex else list(self.shape)
        return [index // math.prod(shape[n + 1 :]) % size for n, size in enumerate(shape)]

"""Wrong solutions for the references beside this file. Each kind is made from the reference's own Model, in whose namespace it runs."""

WITH_OTHERS = '''
def with_others(model, others, inputs):
    """The reference's result with these parameters and buffers."""
    names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    return torch.func.functional_call(model, dict(zip(names, others)), inputs)


def tensors_of(model):
    return [*model.parameters(), *model.buffers()]
'''

KINDS = {
    "caches": '''
class ModelNew(Model):
    """Returns its first result for ever."""

    def forward(self, *inputs):
        if not hasattr(self, "first"):
            self.first = super().forward(*inputs)
        return self.first
''',
    "half": WITH_OTHERS
    + '''
def halved(value):
    if isinstance(value, (tuple, list)):
        return type(value)(map(halved, value))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.to(torch.float8_e4m3fn if value.element_size() == 2 else torch.bfloat16).to(value.dtype)


class ModelNew(Model):
    """Computes with fewer digits."""

    def forward(self, *inputs):
        self.__class__ = Model
        result = with_others(self, halved(tensors_of(self)), halved(inputs))
        self.__class__ = ModelNew
        return result
''',
    "first seed": WITH_OTHERS
    + '''
class ModelNew(Model):
    """Keeps the parameters and buffers of the first module that was constructed."""

    first = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        ModelNew.first = ModelNew.first or [X.detach().clone() for X in tensors_of(self)]

    def forward(self, *inputs):
        self.__class__ = Model
        result = with_others(self, ModelNew.first, inputs)
        self.__class__ = ModelNew
        return result
''',
    "ignores the first input": '''
class ModelNew(Model):
    """Computes with another first input."""

    def forward(self, first, *others):
        return super().forward(torch.zeros_like(first), *others)
''',
    "ignores the last input": '''
class ModelNew(Model):
    """Computes with another last input."""

    def forward(self, *inputs):
        *others, last = inputs
        other = torch.zeros_like(last) if isinstance(last, torch.Tensor) else 0.5
        if isinstance(last, tuple):
            other = tuple(map(torch.zeros_like, last))
        return super().forward(*others, other)
''',
    "clips": '''
class ModelNew(Model):
    """Is right for inputs of ordinary size."""

    def forward(self, first, *others):
        return super().forward(first.clamp(-6, 6), *others)
''',
    "no signs": '''
class ModelNew(Model):
    """Is right for inputs of one sign."""

    def forward(self, first, *others):
        return super().forward(first.abs(), *others)
''',
    "one row": '''
class ModelNew(Model):
    """Takes the last row for a copy of the one before it."""

    def forward(self, first, *others):
        return super().forward(torch.cat([first[:-1], first[-2:-1]]), *others)
''',
    "always trains": '''
class ModelNew(Model):
    """Does in evaluation mode what it does in training mode."""

    def forward(self, *inputs):
        self.train()
        return super().forward(*inputs)
''',
    "never trains": '''
class ModelNew(Model):
    """Does in training mode what it does in evaluation mode."""

    def forward(self, *inputs):
        self.eval()
        return super().forward(*inputs)
''',
    "stale buffers": '''
class ModelNew(Model):
    """Leaves the buffers as they were."""

    def forward(self, *inputs):
        kept = [X.clone() for X in self.buffers()]
        result = super().forward(*inputs)
        for buffer, own in zip(self.buffers(), kept):
            buffer.copy_(own)
        return result
''',
    "changes a parameter": '''
class ModelNew(Model):
    """Leaves other parameters than it found."""

    def forward(self, *inputs):
        result = super().forward(*inputs)
        with torch.no_grad():
            next(self.parameters()).mul_(1.5)
        return result
''',
    "changes its input": '''
class ModelNew(Model):
    """Leaves another input than it found."""

    def forward(self, first, *others):
        result = super().forward(first, *others)
        first.mul_(3)
        return result
''',
    "another structure": '''
class ModelNew(Model):
    """Returns a result in a list."""

    def forward(self, *inputs):
        return [super().forward(*inputs)]
''',
    "another dtype": '''
class ModelNew(Model):
    """Returns float64."""

    def forward(self, *inputs):
        return super().forward(*inputs).double()
''',
    "first of all": '''
class ModelNew(Model):
    """Returns indices of zero."""

    def forward(self, *inputs):
        result = super().forward(*inputs)
        if isinstance(result, dict):
            return {**result, "indices": torch.zeros_like(result["indices"])}
        if isinstance(result, tuple):
            return result[0], torch.zeros_like(result[1])
        return torch.zeros_like(result)
''',
    "zeros": '''
class ModelNew(Model):
    """Returns zeros, which are within an absolute tolerance of small results."""

    def forward(self, *inputs):
        return super().forward(*inputs) * 0
''',
}

OF = {
    "matmul_bias": ["caches", "half", "first seed", "one row", "clips", "changes a parameter"],
    "conv2d": ["half", "first seed", "no signs", "clips"],
    "softmax": ["zeros", "caches", "clips", "half"],
    "layer_norm": ["half", "first seed", "caches"],
    "batch_norm": ["stale buffers", "always trains", "never trains", "one row", "half"],
    "batch_norm_eval": ["always trains", "first seed", "half"],
    "embedding_loss": ["first seed", "ignores the last input", "ignores the first input", "caches"],
    "lstm": ["first seed", "ignores the last input", "half", "one row"],
    "attention": ["ignores the last input", "half", "caches", "clips"],
    "max_pool_indices": ["first of all", "half", "clips", "caches"],
    "argmax": ["first of all", "no signs", "half", "another dtype"],
    "hinge_loss": ["ignores the last input", "no signs", "another structure", "ignores the first input"],
    "dropout": ["never trains", "always trains", "first seed", "half"],
    "scaled_sum": ["ignores the last input", "half", "clips", "changes its input"],
    "half_matmul": ["half", "ignores the last input", "one row"],
    "cumsum": ["half", "clips", "caches"],
    "sort": ["first of all", "half", "clips"],
    "in_place": ["caches", "half", "changes its input"],
}

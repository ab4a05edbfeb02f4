"""What the tests share: the module under test, imported once."""

import helpers
import pytest


@pytest.fixture(scope="session")
def model():
    """The module model_new (on a GPU machine its import builds the kernels)."""
    return helpers.load()


@pytest.fixture
def forget_compiled():
    """An empty torch.compile cache before and after."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()

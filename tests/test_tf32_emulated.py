"""The split-tf32 kernel without a GPU; see emulation.py."""

import emulation
import pytest
from helpers import COMPILER, DENSE, FAMILY, FAMILY_NAMES, LOWER, NN, NT, TN, UPPER, constant, every_mask, host_program, sizes_for

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found"), pytest.mark.xdist_group("tf32 emulated")]

MAIN = r"""
int main(int, char** arguments) {
  return run_product<float>(arguments, [&](const Product& p) {
    const int at_once = std::atoi(arguments[13]);
    const SplitPlan plan = choose_split_plan(p, kSplitTf32BlockK, at_once, at_once / kSplitTf32CtasPerSm);
    auto compute = [&](auto x_along_k, auto y_along_k) {
      p.k > kChain * kSplitTf32BlockK ? split_tf32_product<x_along_k, y_along_k, true>(p, plan)
                                       : split_tf32_product<x_along_k, y_along_k, false>(p, plan);
    };
    constexpr std::true_type kYes;
    constexpr std::false_type kNo;
    body = [&] {
      if (p.x_col == 1)
        p.y_row == 1 ? compute(kYes, kYes) : compute(kYes, kNo);
      else
        p.y_row == 1 ? compute(kNo, kYes) : compute(kNo, kNo);
    };
    for (int number = 0; number < plan.clusters * static_cast<int>(p.batches); ++number)
      run_cluster<SplitTf32Memory>(number, plan.cluster_size, kTileThreads, [](SplitTf32Memory& memory) {
        memory.sums_arrived = 0;   // there is no barrier yet
      });
    if (std::atoi(arguments[12]) == 4 && !votes) fail("an Inf, and no sum is made again");
  });
}
"""


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """run(contraction, structure, sizes, ...): fails with what the program found wrong."""
    source = [model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_COPIER]
    kernel = [emulation.on_host(model._CUDA_EXACT), model._CUDA_TILES, emulation.on_host(model._CUDA_SPLIT_TF32)]
    parts = [emulation.PRELUDE, *source, *kernel, emulation.PRODUCT, MAIN]
    program = host_program(tmp_path_factory.mktemp("tf32"), "tf32_kernel", parts)

    def run(contraction, structure, sizes, *, batches=1, at_once=92, late=0, x_by_rows=1, y_by_rows=1, pad=0, kind=0, c_pad=0):
        program(contraction, structure, *sizes, batches, late, x_by_rows, y_by_rows, pad, c_pad, kind, at_once)

    return run


@pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_products_of_any_size_and_layout_are_right(run, contraction, structure, late):
    for N, at_once, pad in ((70, 92, 2), (140, 2, 1), (132, 92, 0))[: 2 + (structure == LOWER)]:
        for x_by_rows, y_by_rows in ((1, 1), (0, 0)) if late else ((0, 1), (1, 0)):
            run(
                contraction,
                structure,
                (N, N, N),
                at_once=at_once,
                late=late,
                x_by_rows=x_by_rows,
                y_by_rows=y_by_rows,
                pad=pad,
                c_pad=pad % 3,
            )


@pytest.mark.parametrize("late", [0, 1], ids=["copies at once", "copies late"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_batches_are_right(run, contraction, structure, late):
    for N, batches, at_once in ((33, 3, 92), (68, 3, 1), (130, 2, 92)):
        run(contraction, structure, (N, N, N), batches=batches, at_once=at_once, late=late)


@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_small_products_are_right(run, contraction, structure):
    for number, N in enumerate((1, 2, 31, 63, 65)):
        run(contraction, structure, (N, N, N), late=number % 2, pad=number % 3, x_by_rows=number % 2, kind=4 * (number == 3))


@pytest.mark.parametrize(("contraction", "structure", "N"), [(NN, LOWER, 448), (NT, UPPER, 449), (TN, LOWER, 500), (TN, DENSE, 384)])
def test_sizes_that_this_kernel_serves_are_right(run, contraction, structure, N):
    run(contraction, structure, (N, N, N), late=1)


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_rectangular_products_are_right(run, contraction):
    for sizes in ((65, 130, 400), (200, 64, 7), (64, 70, 900)):
        for late in (0, 1):
            run(contraction, DENSE, sizes, late=late)


@pytest.mark.parametrize("contraction", [NN, NT, TN], ids=["NN", "NT", "TN"])
def test_long_sums_of_one_sign_stay_within_the_bound(run, contraction):
    """A single total would exceed the bound, since it is rounded at every 32 k."""
    run(contraction, DENSE, (64, 64, 8192), kind=5, at_once=1)
    run(contraction, DENSE, (64, 64, 8100), kind=5, late=1)


@pytest.mark.parametrize("kind", [1, 2, 3, 4], ids=["large", "large and small", "denormals", "infinity"])
@pytest.mark.parametrize(("contraction", "structure"), FAMILY, ids=FAMILY_NAMES)
def test_sums_beyond_tf32_are_summed_again(run, contraction, structure, kind):
    run(contraction, structure, (100, 100, 100), kind=kind, late=1)


@every_mask
def test_every_mask_is_applied(run, contraction, structure):
    """An edge that no block divides, tiles that CTAs share, tiles that they do not share, a batch, and an Inf. In the first product the
    elements outside the masks are finite: the exact path would repair the sums if they were NaN."""
    edge, k_block = constant("_CUDA_SCHEDULE", "kBlock"), constant("_CUDA_SPLIT_TF32", "kSplitTf32BlockK")
    run(contraction, structure, sizes_for(structure, 2 * edge + 4, edge), late=1, x_by_rows=0, pad=2, c_pad=1, kind=7)
    run(contraction, structure, sizes_for(structure, edge + 1, 3 * edge + k_block), batches=2, at_once=1, y_by_rows=0)
    run(contraction, structure, sizes_for(structure, edge + 2, k_block), kind=4, late=1)

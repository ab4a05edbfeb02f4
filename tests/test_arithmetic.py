"""Arithmetic of the fp16x3 kernel that is plain C++, compiled for the host: sums are added with the scales of their blocks undone."""

import pytest
from helpers import COMPILER, host_program

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found")

PRELUDE = r"""
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#define __ffs __builtin_ffs
#define __device__
#define __host__
#define __noinline__
using std::max;
using std::min;
"""

HARNESS = r"""
int main() {
  const float nan = std::numeric_limits<float>::quiet_NaN(), before = 3.0f;
  long tried = 0;
  // Scales are powers of two from 2^-126 to 2^113, or zero where there is no block; sums are those of 64 products of two float16.
  for (int x = -126; x <= 113; x += 7)
    for (int first = -127; first <= 113; first += 5)
      for (int second = -127; second <= 113; second += 11)
        for (float sum : {1.0f, -0x1.8p-30f, 0x1.fffffep37f}) {
          const float of_x = std::ldexp(1.0f, x);
          const float of_first = first == -127 ? 0.0f : std::ldexp(1.0f, first);
          const float of_second = second == -127 ? 0.0f : std::ldexp(1.0f, second);
          float sums[64], total[64];
          for (int u = 0; u < 64; ++u) {
            const float of_y = u < 32 ? of_first : of_second;
            sums[u] = of_y == 0.0f ? nan : sum;   // in place of a missing block there may be anything
            total[u] = before;
          }
          promote(sums, of_x, of_first, total), promote(sums + 32, of_x, of_second, total + 32);
          for (int u = 0; u < 64; ++u) {
            const double of_y = u < 32 ? of_first : of_second, term = of_y == 0.0 ? 0.0 : double(sum) * of_x * of_y;
            const float expected = static_cast<float>(before + term);
            const bool same = total[u] == expected || std::fabs(total[u] - expected) <= 0x1p-22f;   // near underflow
            if (!same && !(std::isinf(expected) && std::isinf(total[u]))) {
              std::printf("sum %g, scales 2^%d and %g: %g, expected %g\n", sum, x, of_y, total[u], expected);
              return 1;
            }
            ++tried;
          }
        }
  std::printf("%ld: all holds\n", tried);
}
"""


def test_promotion_undoes_any_two_scales(model, tmp_path):
    host_program(tmp_path, "promote", [PRELUDE, model._CUDA_TYPES, model._CUDA_SCHEDULE, model._CUDA_POLICY, model._CUDA_PACKED, HARNESS])()

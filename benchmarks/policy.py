#!/usr/bin/env python3
"""Prints a table of the kernels that compute products on an H200, with their tiles and the largest number of splits.

The policy section of model_new.py makes these decisions.

    python benchmarks/policy.py            Prints the table.
    python benchmarks/policy.py --write    Puts the table into docs/kernel.md, between the two markers there.
    python benchmarks/policy.py --check    Exits with 1 if docs/kernel.md has another table.

The script compiles three sections of model_new.py for the host, so it needs a C++ compiler (CXX, c++ or g++) but no GPU and no nvcc.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "kernel.md"
BEGIN, END = "<!-- begin policy: python benchmarks/policy.py --write -->", "<!-- end policy -->"
SECTIONS = ("_CUDA_TYPES", "_CUDA_SCHEDULE", "_CUDA_POLICY")
SIZES = (64, 256, 512, 768, 1024, 1280, 2048, 4096, 8192)

# The headers that the sections need, and stand-ins for CUDA's names, so that a C++ compiler without CUDA accepts the sections.
PRELUDE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
using std::max;
using std::min;
using std::sqrt;
#define __device__
#define __host__
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
"""

MAIN = r"""
struct Problem {
  const char* name;
  KRange x_range, y_range;
  int c_lower, symmetric, batches;
};
const Problem problems[] = {
    {"tril_matmul", KRange::kToDiagonal, KRange::kFromDiagonal, 1, 0, 1},
    {"16 x tril_matmul", KRange::kToDiagonal, KRange::kFromDiagonal, 1, 0, 16},
    {"triangular_matmul", KRange::kToDiagonal, KRange::kAll, 0, 0, 1},
    {"lu_matmul", KRange::kToDiagonal, KRange::kToDiagonal, 0, 0, 1},
    {"transposed_a_matmul", KRange::kAll, KRange::kAll, 0, 0, 1},
    {"gram", KRange::kAll, KRange::kAll, 1, 1, 1},
};
const Gpu h200 = {132, 9, nullptr, nullptr};

// Returns the product of a problem for n x n matrices, or the batch of products. All matrices are aligned and row-major, except for gram's
// Y, which is the transpose of X in the memory of X.
Product product_of(const Problem& problem, ElementType type, int n) {
  static float memory[2][4];
  Product p = {};
  p.type = type, p.m = p.n = p.k = n, p.batches = problem.batches;
  p.x_range = problem.x_range, p.y_range = problem.y_range, p.c_lower = problem.c_lower, p.symmetric = problem.symmetric;
  p.x = memory[0], p.y = problem.symmetric ? memory[0] : memory[1], p.c = memory[1];
  p.x_row = p.y_row = p.c_row = n, p.x_col = p.y_col = p.c_col = 1;
  if (problem.symmetric) std::swap(p.y_row, p.y_col);
  p.batch_dims = problem.batches > 1, p.batch_size[0] = p.batches, p.c_batch = int64_t(n) * n;
  p.x_batch[0] = p.y_batch[0] = p.c_batch;
  return p;
}

// Returns the largest number of splits that a tile has, for the split-tf32 and the mma kernel. An H200 has room for 90 clusters of four
// CTAs if each SM holds three CTAs, and for 60 clusters if each SM holds two CTAs.
int most_splits(const Product& p, int block_k, int clusters_at_once, int ctas_per_sm) {
  const SplitPlan plan = choose_split_plan(p, block_k, clusters_at_once, clusters_at_once / ctas_per_sm);
  int splits = 1;
  for (int cluster = 0; plan.cluster_size > 1 && cluster < plan.clusters; ++cluster)
    splits = max(splits, 1 << plan.order[cluster] % 4);
  return splits;
}

void print_cell(Product p) {
  const bool whole = p.symmetric && is_computed_whole(p, h200);
  if (whole) p.c_lower = p.symmetric = 0;
  const Kernel kernel = kernel_for(p, h200, kAutomaticPath);
  int edge = kBlock, splits = 1;
  if (kernel == kSplitTf32Kernel) splits = most_splits(p, 32, 90, 3);
  // A k-block has 128 bytes of k. An SM holds three CTAs of the mma kernel. For float32 it holds only two, because splitting float32 takes
  // more registers.
  if (kernel == kMmaKernel) {
    const int bytes = p.type == kFloat64 ? 8 : p.type == kFloat32 ? 4 : 2;
    splits = p.type == kFloat32 ? most_splits(p, 128 / bytes, 60, 2) : most_splits(p, 128 / bytes, 90, 3);
  }
  if (kernel == kSixteenBitKernel) {
    const ClusterTiles tiles = choose_sixteen_bit_tiles(p, h200);
    edge = tiles.order.edge * kBlock, splits = tiles.splits;
  }
  if (kernel == kFp16x3Kernel) {
    const ClusterTiles tiles = choose_split_tiles(p, h200.sms / 2, 1);
    edge = kTileEdge;
    for (int group = 0; group < tiles.groups(); ++group)
      if (tiles.tiles_in_group(group) > 0) splits = max(splits, tiles.splits_in_group(group));
  }
  std::printf(" %s %d", kKernelNames[kernel], edge);
  if (splits > 1) std::printf(" / %d", splits);
  std::printf("%s |", whole ? ", whole" : "");
}

int main() {
  const char* const types[] = {"float32", "float64", "float16, bfloat16"};
  for (int type = kFloat32; type <= kFloat16; ++type)
    for (const Problem& problem : problems) {
      std::printf("| %s | %s |", types[type], problem.name);
      for (int n : {SIZES}) print_cell(product_of(problem, ElementType(type), n));
      std::printf("\n");
    }
}
"""


def sections(path):
    """Returns the texts of SECTIONS. The text of a section is the longest string in the assignment to its name."""
    section_texts = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in SECTIONS:
            texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            section_texts[node.targets[0].id] = max(texts, key=len)
    missing = [name for name in SECTIONS if name not in section_texts]
    if missing:
        sys.exit(f"{path} has no section {', '.join(missing)}")
    return [section_texts[name] for name in SECTIONS]


def table(path=ROOT / "model_new.py"):
    """Returns the table in Markdown."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        sys.exit("no C++ compiler was found; set the environment variable CXX to one")
    sizes = ", ".join(map(str, SIZES))
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "policy.cpp"), Path(folder, "policy")
        source.write_text("\n".join([PRELUDE, *sections(path), MAIN.replace("{SIZES}", "{" + sizes + "}")]), encoding="utf-8")
        build = subprocess.run([compiler, "-std=c++17", "-O1", "-w", "-o", program, source], capture_output=True, text=True)
        if build.returncode != 0:
            sys.exit(f"the policy section does not compile for the host:\n{build.stderr[:4000]}")
        rows = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    head = f"| dtype | function | {' | '.join(map(str, SIZES))} |\n|---|---|{'---|' * len(SIZES)}\n"
    return head + rows


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/kernel.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if docs/kernel.md has another table")
    options = parser.parse_args(arguments)
    new_table = table()
    if not options.write and not options.check:
        print(new_table, end="")
        return 0
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", text, re.DOTALL)
    if found is None:
        sys.exit(f"{DOCUMENT} has no line {BEGIN}, or no {END} after it")
    if options.check and found[1] != new_table:
        print(f"{DOCUMENT}: not up to date; run: python benchmarks/policy.py --write", file=sys.stderr)
        return 1
    if options.write:
        DOCUMENT.write_text(text[: found.start(1)] + new_table + text[found.end(1) :], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

// TRACE(role, event) records when a role of a CTA of the fp16x3 kernel reaches an event. `benchmark.py --suite cycles` uses it. The 16-bit
// kernel shares some code with the fp16x3 kernel, and therefore records some of the events, too.
//
// NVCC_APPEND_FLAGS="-include $PWD/benchmarks/trace.cuh" puts this file in front of model_new.py's CUDA source. Without this file that
// source defines an empty TRACE. %clock64, the clock of an SM, measures durations within one SM. %globaltimer relates the times of
// different SMs.
#pragma once
#include <cuda_runtime.h>

enum TraceRole : int { kTraceZeros = 2, kTraceProducer = 3 };   // 0 and 1 are the two consumer warpgroups
enum TraceEvent : int {
  kEntered, kPreviousDone, kFirstStageFull, kTileSummed, kTileWritten, kTilesDone, kExited, kChainSummed, kChainKept, kZerosBegun, kZerosWritten
};

// The events that one role of one CTA has recorded. `count` also counts events for which no entry was left. cycles.py reads a Trace as an
// array of 64-bit words.
struct Trace {
  unsigned long long count, unused;
  struct {
    unsigned long long cycles, nanoseconds_and_event;   // the event is in the lowest four bits
  } entry[255];
};
static __device__ Trace traces[264][4];   // [CTA][role]

static __device__ inline void trace(int role, int event) {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const bool writes = role < kTraceZeros ? thread % 128 == 0 : role == kTraceProducer ? thread == 256 : thread % 32 == 0;
  if (writes) {
    Trace& mine = traces[blockIdx.x][role];
    const unsigned long long index = mine.count++;
    unsigned long long nanoseconds, cycles;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    if (index < 255) {
      mine.entry[index].cycles = cycles;
      mine.entry[index].nanoseconds_and_event = nanoseconds << 4 | event;
    }
  }
  __syncwarp();   // the code after TRACE may need all lanes of the warp
}
#define TRACE(role, event) trace(role, event)

// nvcc compiles the source in several object files, each with another value of PART and with its own `traces`. If PART is 0, the function
// take_traces_0 copies the traces of this object file to the host and clears them.
#define TRACE_NAME_2(part) take_traces_##part
#define TRACE_NAME(part) TRACE_NAME_2(part)
extern "C" __attribute__((visibility("default"))) int TRACE_NAME(PART)(void* to) {
  void* from;
  int error = cudaGetSymbolAddress(&from, traces);
  if (!error) error = cudaMemcpy(to, from, sizeof(traces), cudaMemcpyDeviceToHost);
  return error ? error : cudaMemset(from, 0, sizeof(traces));
}

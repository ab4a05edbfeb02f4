"""Runs kernels without a GPU: the C++ compiler compiles the CUDA source, and a scheduler of fibres runs it.

Each thread of a cluster is a fibre. PRELUDE implements what CUDA does for a warp, a CTA or a cluster: barriers, shuffles, mma and wgmma,
asynchronous copies, and messages between CTAs. Asynchronous copies are done, and wgmma products are computed, either at once or as late as
the kernel allows. If a barrier is missing, at least one of these two ways usually gives a wrong result. Before a kernel runs, C and shared
memory hold NaN. Elements outside an operand's mask are NaN, too, unless the test asks for finite numbers there.

A program consists of PRELUDE, sections of the CUDA source, PRODUCT, and a main, which calls run_product in most programs. A section that
declares shared memory goes through on_host first.
"""

import re

from helpers import marked

# ---- CUDA source as C++. ---------------------------------------------------------------------------------------------

DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) ([\w ]+?) (\w+)\[\];")
STATIC = re.compile(r"__shared__ (alignas\(\d+\) )?((?:struct \{.*?^ *\}|[\w:]+)) ([^;{}]+);", re.MULTILINE | re.DOTALL)


def on_host(section):
    """Returns a section of the CUDA source, changed so that its shared memory lies in the memory of the emulated CTA. There the dynamic
    shared memory comes first, and the __shared__ variables follow it."""

    def variables(declaration):
        alignment, kind, names = declaration.groups(default="")
        lines = []
        for declarator in re.split(r", (?![^\[]*\])", names):
            name = re.match(r"\w+", declarator)[0]
            stand_in = f"{name}_stand_in{declarator[len(name) :]}"  # the stand-in, a static variable of the same type and alignment
            lines.append(f"{alignment}static {kind} {stand_in}; auto& {name} = IN_SHARED_MEMORY({name}_stand_in);")
        return " ".join(lines)

    return STATIC.sub(variables, DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(current->block->memory);", section))


def as_variable(section, name):
    """Returns a section with the integer constant `name` turned into a variable, so that the program can set it."""
    section, count = re.subn(rf"\bconstexpr int {name} = [^;,]+;", f"int {name};", section)
    assert count == 1, f"the section has {count} lines 'constexpr int {name} = ...;', and should have one"
    return section


PRELUDE = r"""
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
using std::max;
using std::min;
#ifdef BEFORE_HOPPER
constexpr int kArch = 800;
#define NV_IF_TARGET(target, code)
#else
constexpr int kArch = 900;
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define NV_IF_TARGET(target, code) NV_CODE code   // in the source, each `target` is NV_PROVIDES_SM_90
#endif
#define NV_CODE(...) __VA_ARGS__
#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
  uint4& operator=(const uint4& v);   // notes writes to shared memory; a fence must follow before wgmma reads it
};
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
template <typename To, typename From>
To bits_as(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline uint32_t __float_as_uint(float v) { return bits_as<uint32_t>(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __uint_as_float(uint32_t v) { return bits_as<float>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }

// The 16-bit types. They convert to float, and from float with rounding to nearest.
struct __half {
  uint16_t bits;
  __half() = default;
  explicit __half(uint16_t bits) : bits(bits) {}
  __half(float v);
  operator float() const;
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(uint16_t bits) : bits(bits) {}
  __nv_bfloat16(float v);
  operator float() const;
};
inline __half::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * fraction;
  return bits_as<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}
inline __half::__half(float v) : bits(0x7FFF) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const uint32_t word = __float_as_uint(std::fabs(v));
  if (std::fabs(v) >= 65520.0f)
    bits = static_cast<uint16_t>(sign | 0x7C00);
  // Below 2^-14 the result is a denormal or zero. Adding 0.5 rounds it to a multiple of 2^-24. If it is rounded up to 2^-14, the carry into
  // the exponent gives the right bits.
  else if (word < 113u << 23)
    bits = static_cast<uint16_t>(sign | (__float_as_uint(std::fabs(v) + 0.5f) - __float_as_uint(0.5f)));
  else if (!std::isnan(v))
    bits = static_cast<uint16_t>(sign | ((word - (112u << 23) + 0xFFF + (word >> 13 & 1)) >> 13));
}
inline float __half2float(__half v) { return v; }
inline __half __float2half_rn(float v) { return v; }
struct __half2 {
  __half x, y;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
struct uint2 {
  uint32_t x, y;
};
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T, typename Bits>
T atomicOr(T* word, Bits bits) {
  return std::exchange(*word, *word | bits);
}
inline int atomicExch(int* word, int value) { return std::exchange(*word, value); }
inline __nv_bfloat16::operator float() const { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
inline __nv_bfloat16::__nv_bfloat16(float v) : bits(0x7FFF) {
  const uint32_t word = __float_as_uint(v);
  if (!std::isnan(v)) bits = static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}

[[noreturn]] void fail(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  std::_Exit(1);   // ends without calling destructors, since one of them would free the stack of this fibre
}

// ---- A cluster with its CTAs, warps and threads.

int block_threads;

// The state of a fibre that does not run at the moment. On x86-64 the function switch_stack switches between fibres. swapcontext would be
// slow, because it makes a system call for the signal mask each time. longjmp to another stack would abort under _FORTIFY_SOURCE. Other
// processors use swapcontext.
#if defined(__x86_64__)
struct Context {
  void* stack;
};
extern "C" void switch_stack(void** from, void* to);
asm(".text\n"
    "switch_stack:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
    "ret\n");
void make_context(Context& context, char* stack, size_t size, void (*begin)()) {
  void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + size) / 16 * 16);
  *--top = nullptr;   // the return address of `begin`, which never returns
  *--top = reinterpret_cast<void*>(begin);
  for (int u = 0; u < 6; ++u) *--top = nullptr;
  context.stack = top;
}
void switch_context(Context& from, Context& to) { switch_stack(&from.stack, to.stack); }
#else
using Context = ucontext_t;
void make_context(Context& context, char* stack, size_t size, void (*begin)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = size;
  makecontext(&context, begin, 0);
}
void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

// A barrier that threads use repeatedly. A turn ends when all threads have come. `turn` counts the turns that have ended, and `came` counts
// the threads that have come in this turn. Threads may vote when they come. `vote` says whether any thread has voted yes in this turn so
// far, and `any` says whether any thread voted yes in the last turn that has ended.
struct Rendezvous {
  int came = 0, turn = 0;
  bool vote = false, any = false;
};
struct Fragments {   // the operands of an mma instruction, converted to double: [row of A][k] and [column of B][k]
  double rows[16][16], cols[8][16];
};
struct Warp {
  Rendezvous meeting;
  uint32_t brought[2][32][6];   // [turn % 2][lane]: words that lanes exchange at a meeting, kept until the meeting after next
  Fragments fragments[2];
};
struct Block {
  int rank;
  unsigned char* memory;
  size_t bytes, taken;   // bytes: the size of the shared memory; taken: how much of it dynamic memory and variables take
  // For each __shared__ variable: the address of the static variable that stands for it, and the variable's own address in this CTA's
  // shared memory
  std::vector<std::pair<const void*, void*>> variables;   // see IN_SHARED_MEMORY
  Rendezvous meeting;
  std::vector<Warp> warps;
  std::vector<Rendezvous> teams;   // named barriers
  int unfinished_threads = 0;   // the number of threads that have not ended; once it is 0, other CTAs must not access this shared memory
  int written = 0;              // the number of threads that have written to shared memory and passed no fence since
};
// Holds a lambda that is called later. The captures of the lambda are copied into the array `takes`, so that no memory is allocated.
// std::function allocates memory for captures of more than 16 bytes.
template <typename Result, int kBytes>
struct Later {
  Result (*call)(const void*) = nullptr;
  alignas(8) unsigned char takes[kBytes];
  Later() = default;
  template <typename F>
  Later(const F& f) : call([](const void* takes) -> Result { return (*static_cast<const F*>(takes))(); }) {
    static_assert(sizeof(f) <= kBytes && std::is_trivially_copyable_v<F>);
    std::memcpy(takes, &f, sizeof(f));
  }
  Result operator()() const { return call(takes); }
};
struct Thread {
  Context context;
  Later<bool, 16> can_go_on;   // the condition that the thread waits for; empty before its first wait
  Thread* next;                // the threads of a cluster form a ring, in which they take turns; `late` (below) reverses it
  unsigned x;
  bool done = false;
  Block* block;
  std::vector<Later<void, 32>> copies;     // cp.async copies that have not arrived
  std::vector<size_t> groups;              // for each commit group, the index in `copies` after the group's last copy
  std::vector<Later<void, 88>> products;   // wgmma products that have not been computed
  std::vector<size_t> batches;             // for each commit group, the index in `products` after the group's last one
  int met = 0;                             // how often the thread has arrived at the cluster's barrier
  bool written = false;   // whether the thread has written to shared memory and passed no fence since; Block::written counts these threads
};
struct Cluster {
  int number, size, came = 0;
  std::vector<Block> blocks;
};
Cluster* cluster;
Thread* current;
Context all_are_done;
// late: copies are done as late as the kernel allows; products_late: wgmma products are computed as late as the kernel allows
bool late, products_late;
int behind = -1;   // the warp of each CTA that goes on only when no other thread can; -1: none
bool all_finite;   // the test expects that all elements inside the masks and all sums are finite
// The bulk copies and tensor-map copies that have not arrived. It is empty unless `late` is true. One copy arrives whenever no thread can
// go on.
std::vector<std::function<void()>> engine;

int64_t events = 0;   // the number of events so far that may have ended a thread's wait

// Switches to the next thread that can go on. Threads take turns, and no thread is interrupted: it runs until it has to wait, lets other
// threads go first, or ends.
void switch_to_next() {
  // The value of `events` when the scheduler last found no thread outside the warp `behind` that could go on.
  static int64_t looked = -1;
  Thread *const from = current, *next = from;
  bool all = behind < 0 || looked == events;   // whether all warps may go on, also the warp `behind`
  auto waits = [&] { return (!all && int(next->x / 32) == behind) || next->done || (next->can_go_on.call && !next->can_go_on()); };
  do {
    next = next->next;
    if (next == from && waits() && (looked = events, std::exchange(all, true)) && waits()) {
      if (engine.empty()) fail("they wait for each other forever");
      const std::function<void()> last = engine.back();
      engine.pop_back(), last();
    }
  } while (waits());
  if (next != from) current = next, switch_context(from->context, next->context);
}
template <typename Condition>
void wait_until(const Condition& holds) {
  if (holds()) return;
  current->can_go_on = holds;
  switch_to_next();
}
void meet(Rendezvous& meeting, int threads) {
  const int turn = meeting.turn;
  if (++meeting.came == threads)
    meeting.came = 0, ++meeting.turn, ++events, meeting.any = std::exchange(meeting.vote, false);
  else
    wait_until([&meeting, turn] { return meeting.turn != turn; });
}
Warp& warp() { return current->block->warps[current->x / 32]; }
#define threadIdx (*current)

void __syncthreads() { meet(current->block->meeting, block_threads); }
template <int kThreads>
void named_barrier_sync(int team) {
  meet(current->block->teams[team], kThreads);
}
inline int fresh_thread_index() { return current->x; }
bool meet_or(Rendezvous& meeting, int threads, bool vote) {
  meeting.vote |= vote;
  meet(meeting, threads);
  return meeting.any;
}
// In the split-tf32 and the mma kernel, a thread votes yes here if one of its sums is not finite. The CTA then makes its sums again on the
// exact path. If all_finite is set, a vote of yes fails the program, because the exact path could hide a wrong product. pack_blocks votes
// here on other questions. Programs that run pack_blocks leave all_finite false.
int votes = 0;
int __syncthreads_or(int vote) {
  const bool any = meet_or(current->block->meeting, block_threads, vote);
  if (any && all_finite) fail("a sum is not finite");
  return votes += any, any;
}
template <int kThreads>
bool named_barrier_or(int team, bool vote) {
  return meet_or(current->block->teams[team], kThreads, vote);
}
template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[current->x % 32][0] = bits_as<uint32_t>(value);
  meet(warp().meeting, 32);
  return bits_as<T>(brought[lane][0]);
}

// ---- Functions of the section "PTX": addresses, barriers, copies, mma, and wgmma in tf32.

constexpr int kRankShift = 24;
// The address at which a CTA's shared memory begins. It has the alignment that the type of the memory or the kernel asks for. It has no
// larger alignment, so that a kernel that relies on more fails.
uint32_t memory_begin;
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(current->block->rank) << kRankShift |
         static_cast<uint32_t>(static_cast<const unsigned char*>(p) - current->block->memory) + memory_begin;
}
inline unsigned char* at_address(uint32_t address) {
  return cluster->blocks[address >> kRankShift].memory + (address & ((1 << kRankShift) - 1)) - memory_begin;
}
inline uint32_t address_in_peer(uint32_t address, uint32_t rank) {
  if (rank >= static_cast<uint32_t>(cluster->size)) fail("a CTA that the cluster does not have");
  return (address & ((1 << kRankShift) - 1)) | rank << kRankShift;
}
inline uint32_t cta_rank_in_cluster() { return current->block->rank; }
inline void cluster_arrive_relaxed() { ++cluster->came, ++current->met, ++events; }
// No thread arrives at the next phase before all threads have arrived at this one. So `came` need not be reset: it counts the arrivals of
// all phases together.
inline void cluster_wait() {
  const int all = cluster->size * block_threads * current->met;
  wait_until([=] { return cluster->came >= all; });
}
inline void require_running_cta(uint32_t address) {
  if (!cluster->blocks[address >> kRankShift].unfinished_threads) fail("the shared memory of a CTA that has ended");
}
inline float4 load_in_peer(uint32_t address) {
  require_running_cta(address);
  if (address >> kRankShift >= static_cast<uint32_t>(cluster->size) || address % sizeof(float4))
    fail("a peer that is not there, or not aligned");
  return *reinterpret_cast<float4*>(at_address(address));
}
struct Barrier {
  int32_t bytes;
  uint8_t arrivals, count, phase, begun;   // arrivals: how many arrivals this phase still waits for; begun: whether it was initialised
  void change(int more_bytes, int came) {
    if (!begun || came > arrivals) fail("a barrier that is not there, or has been arrived at too often");
    bytes += more_bytes, arrivals -= came;
    if (!arrivals && !bytes) arrivals = count, ++phase, ++events;
  }
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));
inline void barrier_init_fence() {}
inline void arrive(void* barrier, int bytes) {
  Barrier& b = *static_cast<Barrier*>(barrier);
  const int phase = b.phase;
  b.change(bytes, 1);
  if (b.phase == phase) return;
  // The arrival has ended a phase. This thread now lets the waiting threads run first, because they must not rely on anything that this
  // thread does after its arrival.
  current->can_go_on = [] { return true; };
  switch_to_next();
}
inline void barrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) { arrive(barrier, bytes); }
inline void barrier_arrive_remote(uint32_t barrier) {
  require_running_cta(barrier);
  arrive(at_address(barrier), 0);
}
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {   // waits until the phase with this parity has ended
  const Barrier& b = *reinterpret_cast<Barrier*>(barrier);
  wait_until([&b, parity] { return b.phase % 2 != parity; });
}
inline void barrier_arrive_release_cluster(uint32_t barrier) { barrier_arrive_remote(barrier); }
inline void barrier_wait(uint32_t barrier, uint32_t parity) { barrier_wait(reinterpret_cast<uint64_t*>(at_address(barrier)), parity); }
inline void store_async(uint32_t to, const int* words, uint32_t barrier) {
  if (cluster->came < cluster->size * block_threads) fail("sent to a CTA that may not have begun");
  if (to >> kRankShift != barrier >> kRankShift || to % 16) fail("sent to a place that is not the barrier's, or not aligned");
  require_running_cta(to);
  std::memcpy(at_address(to), words, 16);
  reinterpret_cast<Barrier*>(at_address(barrier))->change(-16, 0);
}
inline void note_written() { current->block->written += !std::exchange(current->written, true); }
uint4& uint4::operator=(const uint4& v) {
  std::memcpy(this, &v, sizeof(v));
  const size_t offset = reinterpret_cast<unsigned char*>(this) - current->block->memory;
  if (offset < current->block->bytes) note_written();
  return *this;
}
// on_host turns each __shared__ variable into a static variable, its stand-in. IN_SHARED_MEMORY gives the variable itself, which lies in
// the CTA's shared memory. The variable's address has the alignment of the declaration, but not twice this alignment. So a kernel that
// relies on a larger alignment fails.
#define IN_SHARED_MEMORY(stand_in) in_shared_memory(stand_in, __alignof__(stand_in))
constexpr size_t kVariableBytes = 49 * 1024;
template <typename T>
T& in_shared_memory(const T& stand_in, size_t alignment) {
  Block& block = *current->block;
  for (const auto& [key, variable] : block.variables)
    if (key == &stand_in) return *static_cast<T*>(variable);
  if (memory_begin % alignment) fail("shared memory that begins at no multiple of a variable's alignment");
  size_t begin = (block.taken + alignment - 1) / alignment * alignment;
  if ((memory_begin + begin) / alignment % 2 == 0) begin += alignment;
  block.taken = begin + sizeof(T);
  if (block.taken > block.bytes) fail("variables that take more than their room");
  block.variables.emplace_back(&stand_in, block.memory + begin);
  return *reinterpret_cast<T*>(block.memory + begin);
}
template <typename T>
void store_shared(uint32_t address, const T& v) {
  if (address >> kRankShift != cta_rank_in_cluster() || address % sizeof(T)) fail("stored what is not aligned, or not here");
  std::memcpy(at_address(address), &v, sizeof(T));
  note_written();
}
namespace ptx {   // functions of cuda::ptx that the CUDA source calls directly
enum Space { space_global, space_shared, space_cluster };
inline uint32_t get_sreg_clusterid_x() { return cluster->number; }
inline void mbarrier_init(uint64_t* barrier, uint32_t count) {
  const uint8_t arrivals = count;
  *reinterpret_cast<Barrier*>(barrier) = {0, arrivals, arrivals, 0, 1};
}
enum { sem_acquire, scope_cluster };
inline void fence_proxy_async(Space space) {
  if (space == space_shared) current->block->written -= std::exchange(current->written, false);
}
inline bool mbarrier_try_wait_parity(int, int, uint64_t* barrier, uint32_t parity) { return barrier_wait(barrier, parity), true; }
}  // namespace ptx
inline bool elect_one_sync() { return threadIdx.x % 32 == 0; }
// Removes the first `count` copies or products from `all`, and removes all groups but the last `pending` ones.
template <typename All>
void drop(All& all, size_t count, std::vector<size_t>& ends, size_t pending) {
  all.erase(all.begin(), all.begin() + count);
  ends.erase(ends.begin(), ends.end() - pending);
  for (size_t& end : ends) end -= count;
}
inline void copy(uint32_t to, const void* from, int bytes, int all) {
  if (to >> kRankShift != cta_rank_in_cluster() || to % all || (bytes && reinterpret_cast<uintptr_t>(from) % all))
    fail("a copy that is not aligned");
  auto now = [=] {
    std::memset(at_address(to), 0, all);
    if (bytes) std::memcpy(at_address(to), from, bytes);
  };
  if (late)
    current->copies.push_back(now);
  else
    now();
}
void cp_async_16(uint32_t to, const void* from, int existing = 16) { copy(to, from, existing, 16); }
template <typename T>
void cp_async_element(uint32_t to, const T* from, bool exists) {
  copy(to, from, exists ? sizeof(T) : 0, sizeof(T));
}
inline void cp_async_commit_group() { current->groups.push_back(current->copies.size()); }
template <int kPending>
void cp_async_wait_group() {
  if (current->groups.size() <= kPending) return;
  const size_t end = current->groups[current->groups.size() - 1 - kPending];
  for (size_t index = 0; index < end; ++index) current->copies[index]();
  drop(current->copies, end, current->groups, kPending);
}
template <typename Word>
void make_opaque(Word&) {}
template <typename T>
T* next_address(T* address, int64_t step) {
  return address + step;
}

// Fails at a bank conflict. Lanes `first` to `first + count - 1` access memory together. Any two of their addresses must be the same, or
// differ modulo 128 bytes. Lane `first` checks the addresses of all these lanes.
inline void no_conflict(const uint32_t (&brought)[32][6], int first, int count, uint32_t bytes) {
  if (current->x % 32 != first) return;
  uint32_t seen[32] = {};   // [bank]: 1 plus the address that a lane accesses there, or 0 if no lane does
  for (int lane = first; lane < first + count; ++lane) {
    const uint32_t address = brought[lane][0], bank = address % 128 / bytes;
    if (address % bytes || address >> kRankShift != cta_rank_in_cluster()) fail("not aligned, or not here");
    if (seen[bank] && seen[bank] != address + 1) fail("a bank conflict");
    seen[bank] = address + 1;
  }
}
template <typename T>
T load_shared(uint32_t address) {
  constexpr int kSize = sizeof(T), kAtOnce = 128 / kSize;   // kAtOnce: the number of lanes that read together
  if (address >> kRankShift != cta_rank_in_cluster() || address % kSize) fail("not aligned, or not here");
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[current->x % 32][0] = address;
  meet(warp().meeting, 32);
  for (int first = 0; first < 32; first += kAtOnce) no_conflict(brought, first, kAtOnce, kSize);
  return *reinterpret_cast<T*>(at_address(address));
}
template <bool kTransposed>
void ldmatrix_x4(uint32_t address, uint32_t (&w)[4]) {
  const int lane = current->x % 32, g = lane / 4, t = lane % 4;
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[lane][0] = address;
  meet(warp().meeting, 32);
  for (int i = 0; i < 4; ++i) {
    no_conflict(brought, 8 * i, 8, 16);
    auto element = [&](int row, int col) {
      return *reinterpret_cast<uint16_t*>(at_address(brought[8 * i + row][0]) + 2 * col);
    };
    w[i] = kTransposed ? element(2 * t, g) | element(2 * t + 1, g) << 16 : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
}

// Adds eight tf32 products to a sum as tensor cores do, by the models of MMA-Sim (github.com/microsoft/MMA-Sim). The authors of MMA-Sim
// compared the models with GPUs. Bits that lie more than kBits below the largest exponent are cut off. Ampere and Ada add four products at
// a time. This function takes three times as long as a float64 sum, so it is used only in tests about the bits that are cut off.
bool cuts_off = false;
inline float tensor_core_sum(float sum, const double* a, const double* b) {
  constexpr int kBits = kArch >= 900 ? 25 : 24, kTerms = kArch >= 900 ? 8 : 4;
  double all = sum;
  for (int k = 0; k < 8; ++k) all += a[k] * b[k];
  if (!std::isfinite(all)) return static_cast<float>(all);
  for (int from = 0; from < 8; from += kTerms) {
    int most = sum == 0 ? -1000 : std::ilogb(sum);
    for (int k = from; k < from + kTerms; ++k)
      if (a[k] != 0 && b[k] != 0) most = max(most, std::ilogb(a[k]) + std::ilogb(b[k]));
    const double unit = std::ldexp(1.0, most - kBits);
    double cut = std::trunc(sum / unit);
    for (int k = from; k < from + kTerms; ++k) cut += std::trunc(a[k] * b[k] / unit);
    sum = static_cast<float>(cut * unit);
    if (std::isfinite(sum) && std::fabs(sum) > std::fabs(cut * unit)) sum = std::nextafter(sum, 0.0f);
  }
  return sum;
}

// Computes s += A B for 16 x 8 sums. An instruction has 16 k for 16-bit types, 8 k for float32 and 4 k for float64. Tensor cores ignore the
// last 13 bits of a float32 element.
template <typename T>
void mma(float* s, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int lane = current->x % 32, g = lane / 4, t = lane % 4;
  Fragments& fragments = warp().fragments[warp().meeting.turn % 2];
  constexpr int kPer = 4 / sizeof(T), kAll = 8 * kPer;   // kPer: elements per register; kAll: k per instruction
  auto bring = [&](double* row, uint32_t bits) {
    for (int k = 0; k < kPer; ++k)
      if constexpr (sizeof(T) == 4)
        row[t * kPer + k] = __uint_as_float(bits & 0xFFFFE000);
      else
        row[t * kPer + k] = T{static_cast<uint16_t>(bits >> k * 16)};
  };
  for (int word = 0; word < 4; ++word) bring(fragments.rows[word % 2 * 8 + g] + word / 2 * kAll / 2, a[word]);
  bring(fragments.cols[g], b0), bring(fragments.cols[g] + kAll / 2, b1);
  meet(warp().meeting, 32);
  for (int u = 0; u < 4; ++u) {
    const double *const row = fragments.rows[u / 2 * 8 + g], *const col = fragments.cols[2 * t + u % 2];
    double all = s[u];
    for (int k = 0; k < kAll; ++k) all += row[k] * col[k];
    if constexpr (kPer == 1)
      if (cuts_off) all = tensor_core_sum(s[u], row, col);
    s[u] = static_cast<float>(all);
  }
}
template <typename T>
void mma(double* s, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int lane = current->x % 32, g = lane / 4, t = lane % 4;
  Fragments& fragments = warp().fragments[warp().meeting.turn % 2];
  auto number = [](uint32_t low, uint32_t high) { return bits_as<double>(static_cast<uint64_t>(high) << 32 | low); };
  fragments.rows[g][t] = number(a[0], a[1]), fragments.rows[8 + g][t] = number(a[2], a[3]), fragments.cols[g][t] = number(b0, b1);
  meet(warp().meeting, 32);
  for (int u = 0; u < 4; ++u)
    for (int k = 0; k < 4; ++k) s[u] = std::fma(fragments.rows[u / 2 * 8 + g][k], fragments.cols[2 * t + u % 2][k], s[u]);
}

inline uint32_t swizzled_address(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }   // this function is its own inverse
inline uint64_t make_descriptor(uint32_t address, uint32_t, uint32_t stride) {
  if (address % 1024 || stride != 1024) fail("an operand that is not swizzled as the kernel says");
  return address;
}
inline uint64_t advance_descriptor(uint64_t operand, uint32_t bytes) { return operand + bytes; }
inline void warpgroup_arrive() {}
// Calls of multiply() that compute products are numbered from 1. This is the number of the call that computes products now, or 0 if none
// does: see numbers_of
int multiplying = 0;

// Computes the products of a warp, except for the last `pending` groups. The last lane that arrives computes the products of all lanes, one
// after the other. Shared memory does not change in this time, so numbers_of may reuse what it has converted.
void multiply(size_t pending) {
  static int times = 0;
  Rendezvous& meeting = warp().meeting;
  if (meeting.came == 31 && current->batches.size() > pending) {
    Thread *const last = current, *const first = last - last->x % 32;
    const size_t end = last->batches[last->batches.size() - 1 - pending];
    multiplying = ++times;
    for (size_t index = 0; index < end; ++index)
      for (current = first; current < first + 32; ++current) {
        if (index >= current->products.size()) fail("lanes that multiply apart");
        current->products[index]();
      }
    for (current = first; current < first + 32; ++current) drop(current->products, end, current->batches, pending);
    current = last, multiplying = 0;
  }
  meet(meeting, 32);   // no lane goes on, and lets a producer overwrite the operands, before the products are computed
}
inline void warpgroup_commit_batch() {
  current->batches.push_back(current->products.size());
  if (!products_late) multiply(0);
}
// Computes sum = A B, or sum += A B if `add`, for 64 x 64 sums and 8 k. A comes from registers, which are read
// now. Each column of B is a swizzled row of 128 bytes in shared memory. These rows are read when the product is computed. A and B are
// truncated to tf32.
void wgmma_tf32(float (&sum)[32], const uint32_t (&a)[4], uint64_t b, int add) {
  const int lane = current->x % 32, g = lane / 4;
  if (current->block->written) fail("multiplied what was written without a fence");
  auto& brought = warp().brought[warp().meeting.turn % 2];
  std::memcpy(brought[lane], a, sizeof(a));
  meet(warp().meeting, 32);
  struct {
    float k[2][8];
  } rows;
  auto number = [](uint32_t bits) { return __uint_as_float(bits & 0xFFFFE000); };
  for (int r = 0; r < 2; ++r)
    for (int k = 0; k < 8; ++k) rows.k[r][k] = number(brought[g * 4 + k % 4][r + k / 4 * 2]);
  current->products.push_back([=, &sum]() __attribute__((optimize("O3"))) {
    for (int u = 0; u < 32; u += u % 4 ? 3 : 1) {   // sum[u] is in row g, and sum[u + 2] in row g + 8
      const uint32_t address = static_cast<uint32_t>(b) + (u / 4 * 8 + 2 * (current->x % 4) + u % 2) * 128;   // the column's address
      double all[2] = {add ? sum[u] : 0.0, add ? sum[u + 2] : 0.0};
      for (int four = 0; four < 8; four += 4) {   // 16 bytes at a time
        uint32_t bits[4];
        std::memcpy(bits, at_address(swizzled_address(address + four * 4)), 16);
        for (int k = 0; k < 4; ++k) {
          const double of_b = number(bits[k]);
          all[0] += rows.k[0][four + k] * of_b, all[1] += rows.k[1][four + k] * of_b;
        }
      }
      sum[u] = static_cast<float>(all[0]), sum[u + 2] = static_cast<float>(all[1]);
    }
  });
}
template <int kPending>
void warpgroup_wait() {
  multiply(kPending);
}

// ---- Atomics, registers, tensor maps, wgmma, and bulk copies.

struct BlockIndex {
  unsigned x;
};
BlockIndex emulated_block_index() { return {static_cast<unsigned>(cluster->number * cluster->size + current->block->rank)}; }
#define blockIdx emulated_block_index()
struct {
  unsigned x;
} gridDim;
inline unsigned long long atomicAdd(unsigned long long* word, unsigned long long value) {
  if (reinterpret_cast<uintptr_t>(word) % 8) fail("a word that is not aligned");
  return std::exchange(*word, *word + value);
}
inline unsigned long long atomicExch(unsigned long long* word, unsigned long long value) { return std::exchange(*word, value); }
inline unsigned long long atomicCAS(unsigned long long* word, unsigned long long assumed, unsigned long long value) {
  return *word == assumed ? std::exchange(*word, value) : *word;
}
inline uint32_t atomicMin(uint32_t* word, uint32_t value) { return std::exchange(*word, std::min(*word, value)); }
inline void __threadfence() {}
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline void __nanosleep(int) {}
inline void __trap() { fail("a trap"); }
inline void __syncwarp() { meet(warp().meeting, 32); }
template <typename Two>
Two __hfma2(Two a, Two b, Two c) {
  return {a.x * b.x + c.x, a.y * b.y + c.y};
}
template <typename Two>
Two __hadd2(Two a, Two b) {
  return {a.x + b.x, a.y + b.y};
}
template <int kRegisters>
void warpgroup_reg_alloc() {}
template <int kRegisters>
void warpgroup_reg_dealloc() {}

// A tensor map with 16-bit elements and three dimensions. The first dimension is contiguous. A box has swizzled rows of 64 elements.
struct CUtensorMap {
  const uint16_t* data;
  int64_t size[3], stride[3];
  int rows;   // rows per box
};
inline void prefetch_tma_descriptor(const CUtensorMap&) {}
inline void load_box(uint32_t to, const CUtensorMap& map, int position0, int position1, int position2, uint32_t barrier) {
  if (to % 1024) fail("a box that is not aligned");
  require_running_cta(to);
  auto now = [=, &map] {
    for (int row = 0; row < map.rows; ++row)
      for (int col = 0; col < 64; col += 8) {   // 16 bytes at a time
        const int64_t position[3] = {position0 + col, position1 + row, position2};
        // Elements `begin` to `end` - 1 of these eight elements exist. All other elements become zeros.
        int64_t offset = 0, begin = max(-position[0], int64_t(0)), end = min(map.size[0] - position[0], int64_t(8));
        for (int d = 0; d < 3; ++d) offset += position[d] * map.stride[d];
        for (int d = 1; d < 3; ++d)
          if (position[d] < 0 || position[d] >= map.size[d]) end = 0;
        uint16_t elements[8] = {};
        if (begin < end) std::memcpy(elements + begin, map.data + offset + begin, 2 * (end - begin));
        std::memcpy(at_address(swizzled_address(to + 128 * row + 2 * col)), elements, 16);
      }
    reinterpret_cast<Barrier*>(at_address(barrier))->change(-128 * map.rows, 0);
  };
  if (late)
    engine.push_back(now);
  else
    now();
}
namespace ptx {
inline void cp_async_bulk_tensor(Space, Space, void* to, const CUtensorMap* map, const int (&position)[3], uint64_t* barrier) {
  load_box(shared_address(to), *map, position[0], position[1], position[2], shared_address(barrier));
}
inline void cp_async_bulk_tensor(Space, Space, void* to, const CUtensorMap* map, const int (&position)[3], uint64_t* barrier,
                                 uint16_t ctas) {
  if (cluster->came < cluster->size * block_threads) fail("sent to a CTA that may not have begun");
  for (int rank = 0; ctas >> rank; ++rank)
    if (ctas >> rank & 1)
      load_box(address_in_peer(shared_address(to), rank), *map, position[0], position[1], position[2],
               address_in_peer(shared_address(barrier), rank));
}
}  // namespace ptx

template <bool kTransposed>
void stmatrix_x4(uint32_t address, const uint32_t (&w)[4]) {
  const int lane = current->x % 32;
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[lane][0] = address;
  std::memcpy(brought[lane] + 1, w, sizeof(w));
  meet(warp().meeting, 32);
  no_conflict(brought, lane / 8 * 8, 8, 16);
  // This lane writes row lane % 8 of matrix lane / 8, or column lane % 8 if kTransposed. e is the index of an element in it
  for (int e = 0; e < 8; ++e) {
    const int row = kTransposed ? e : lane % 8, col = kTransposed ? lane % 8 : e;
    const uint16_t element = brought[4 * row + col / 2][1 + lane / 8] >> 16 * (col % 2);
    std::memcpy(at_address(address) + 2 * e, &element, 2);
  }
}

// Returns a table of all 16-bit numbers as floats. Converting each number by itself would take more time than multiplying.
template <typename T>
const float* wide_numbers() {
  static const std::vector<float> all = [] {
    std::vector<float> numbers(65536);
    for (int bits = 0; bits < 65536; ++bits) numbers[bits] = T{static_cast<uint16_t>(bits)};
    return numbers;
  }();
  return all.data();
}

// Converts operand B in shared memory to double, for 16 k and kLines columns, which are called lines here. The columns that a thread
// multiplies lie side by side in the result. Converting is most of the work. So all threads share the result for an operand, and use it as
// long as the operand has the same bytes. In each call of multiply() only the first thread that needs the operand compares the bytes.
using Two = double __attribute__((vector_size(16)));
using Four = double __attribute__((vector_size(32)));
template <typename T, int kLines, int kMnMajor>
__attribute__((optimize("O3"))) auto numbers_of(const unsigned char* memory, uint32_t operand) {
  // A span is contiguous bytes of the operand. If the operand is MN-major, a span holds 16 k of 64 lines. If it is K-major, a span holds
  // 16 k of one line.
  constexpr int kSpan = kMnMajor ? 2048 : 32, kSpans = kLines * 32 / kSpan;
  struct Found {
    const unsigned char* from = nullptr;
    int time = 0;
    uint64_t bytes[kSpans][kSpan / 8];
    Two numbers[16][4][kLines / 8];   // [k][thread % 4][line / 8]
  };
  static std::vector<Found> all(61);
  const unsigned char* const from = memory + operand;
  Found& found = all[reinterpret_cast<uintptr_t>(from) / 32 % all.size()];
  const bool known = std::exchange(found.from, from) == from;
  if (std::exchange(found.time, multiplying) == multiplying && known && multiplying) return found.numbers;
  for (int span = 0; span < kSpans; ++span) {
    const uint32_t begin = operand + (kMnMajor ? span * 8192 : span * 128), offset = swizzled_address(begin) & ~31u;
    const auto* const bytes = reinterpret_cast<const uint64_t*>(memory + offset);
    uint64_t other = !known;
    for (int u = 0; u < kSpan / 8; ++u) other |= bytes[u] ^ found.bytes[span][u];
    if (!other) continue;
    std::memcpy(found.bytes[span], bytes, kSpan);
    for (int u = 0; u < kSpan; u += 2) {
      const uint32_t place = swizzled_address(offset + u) - begin;   // the element's byte offset in its span, without the swizzle
      const int line = kMnMajor ? span * 64 + place % 128 / 2 : span, k = place / (kMnMajor ? 128 : 2);
      found.numbers[k][line % 8 / 2][line / 8][line % 2] = wide_numbers<T>()[*reinterpret_cast<const uint16_t*>(memory + offset + u)];
    }
  }
  return found.numbers;
}

// Computes sum = A B, or sum += A B if `add`, for 64 x kN sums and 16 k. Both operands are in shared memory.
template <typename T, int kN, int kAMnMajor, int kBMnMajor>
void wgmma(float* sum, uint64_t a, uint64_t b, int add) {
  if (current->block->written) fail("multiplied what was written without a fence");
  current->products.push_back([=]() __attribute__((optimize("O3"))) {
    constexpr uint32_t kPlace = (1 << kRankShift) - 1;
    const unsigned char* const memory = current->block->memory - memory_begin;
    const int warp = current->x / 32 % 4, g = current->x % 32 / 4, q = current->x % 4;
    const float* const wide = wide_numbers<T>();
    const auto* const columns = numbers_of<T, kN, kBMnMajor>(memory, b & kPlace);
    Four rows[16];   // [k]: the elements of rows g and g + 8 of the warp's 16 rows, each of them twice
    for (int r = 0; r < 2; ++r)
      for (int k = 0; k < 16; ++k) {
        const int line = warp * 16 + r * 8 + g;
        const uint32_t address = (a & kPlace) + (kAMnMajor ? k * 128 + line * 2 : line * 128 + k * 2);
        rows[k][2 * r] = rows[k][2 * r + 1] = wide[*reinterpret_cast<const uint16_t*>(memory + swizzled_address(address))];
      }
    Four all[kN / 8];   // the sums in rows g and g + 8 and in the thread's columns
    auto* const one_by_one = reinterpret_cast<double*>(all);
    for (int u = 0; u < kN / 2; ++u) one_by_one[u] = add ? sum[u] : 0.0;
    for (int k = 0; k < 16; ++k)
      for (int four = 0; four < kN / 8; ++four) {
        const Two cols = columns[k][q][four];
        all[four] += rows[k] * Four{cols[0], cols[1], cols[0], cols[1]};
      }
    for (int u = 0; u < kN / 2; ++u) sum[u] = static_cast<float>(one_by_one[u]);
  });
}

template <typename F>
uint32_t of_the_warp(uint32_t value, const F& f) {
  for (int distance = 1; distance < 32; distance *= 2) value = f(value, __shfl_sync(0xFFFFFFFFu, value, current->x % 32 ^ distance));
  return value;
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) { return of_the_warp(value, [](uint32_t a, uint32_t b) { return max(a, b); }); }
inline uint32_t __reduce_min_sync(uint32_t, uint32_t value) { return of_the_warp(value, [](uint32_t a, uint32_t b) { return min(a, b); }); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
// With these pointers a test imitates packing that reports a fallback while clusters take tiles. late_report points to the word of the
// report, and `taken` to the queue's word, which counts the taken tiles. load_relaxed returns 0 for the report, except while exactly two
// tiles have been taken. Tiles are numbered from 0. So clusters see the report after tile 1 is taken and before tile 2 is taken.
const unsigned long long *late_report = nullptr, *taken = nullptr;
template <typename T>
T load_relaxed(const T* word) {
  static int times = 0;   // the number of reads since the last event
  static int64_t at_event = 0;
  if (std::exchange(at_event, events) != events) times = 0;
  if (++times > 3000000) fail("a thread waits in a loop for a word that no other thread writes");
  return static_cast<const void*>(word) == late_report && *taken != 2 ? 0 : *word;
}
inline int atomicAdd(int* word, int value) { return std::exchange(*word, *word + value); }
inline float2 make_float2(float x, float y) { return {x, y}; }
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
inline uint32_t __ballot_sync(uint32_t, bool vote) {
  auto& brought = warp().brought[warp().meeting.turn % 2];
  brought[current->x % 32][0] = vote;
  meet(warp().meeting, 32);
  uint32_t all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= brought[lane][0] << lane;
  return all;
}
inline bool __all_sync(uint32_t, bool vote) { return __ballot_sync(0xFFFFFFFFu, vote) == 0xFFFFFFFFu; }
inline void bring(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) fail("a bulk copy that is not aligned");
  require_running_cta(to);
  auto now = [=] {
    std::memcpy(at_address(to), from, bytes);
    reinterpret_cast<Barrier*>(at_address(barrier))->change(-static_cast<int>(bytes), 0);
  };
  if (late)
    engine.push_back(now);
  else
    now();
}
inline void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  bring(shared_address(to), from, bytes, shared_address(barrier));
}
inline void copy_bulk_multicast(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  if (cluster->came < cluster->size * block_threads) fail("sent to a CTA that may not have begun");
  for (int rank = 0; rank < 2; ++rank)
    bring(address_in_peer(shared_address(to), rank), from, bytes, address_in_peer(shared_address(barrier), rank));
}
// ---- Running clusters, one after the other.

std::function<void()> body;
int cluster_unfinished_threads;   // the number of threads of the cluster that have not ended
void thread_main() {
  body();
  current->done = true, --current->block->unfinished_threads;
  --cluster_unfinished_threads ? switch_to_next() : switch_context(current->context, all_are_done);
}
struct Nothing {};   // stands for the dynamic shared memory of a kernel that has none
template <typename Memory>
void run_cluster(int number, int size, int threads_of_block, const std::function<void(Memory&)>& prepare = {},
                 uint32_t begin = std::is_empty_v<Memory> ? 1024 : alignof(Memory)) {
  block_threads = threads_of_block;
  static const size_t stack_size = 68 * 1024 + 320;   // this is no power of two, so that stacks do not compete for the same cache lines
  // All clusters reuse the same stacks. `stacks` is not a vector, because a vector would first write to all of this memory.
  static size_t stacks_size = 0;
  static std::unique_ptr<char[]> stacks;
  if (stacks_size < size * block_threads * stack_size) stacks.reset(new char[stacks_size = size * block_threads * stack_size]);
  Cluster new_cluster = {number, size};
  memory_begin = begin;
  constexpr size_t kBytes = (sizeof(Memory) + kVariableBytes + 1023) / 1024 * 1024;
  std::vector<unsigned char> memory(size * kBytes + 1024, 0xFF);   // bytes of 0xFF are NaN as floats
  new_cluster.blocks.resize(size);
  unsigned char* next = memory.data() + (1024 - reinterpret_cast<uintptr_t>(memory.data()) % 1024) % 1024;
  for (int rank = 0; rank < size; ++rank) {
    new_cluster.blocks[rank].rank = rank, new_cluster.blocks[rank].memory = next, next += kBytes;
    new_cluster.blocks[rank].bytes = kBytes, new_cluster.blocks[rank].taken = sizeof(Memory);
    new_cluster.blocks[rank].warps.resize(block_threads / 32), new_cluster.blocks[rank].teams.resize(16);
    if (prepare) prepare(*reinterpret_cast<Memory*>(new_cluster.blocks[rank].memory));
  }
  cluster = &new_cluster;
  std::vector<Thread> threads(size * block_threads);
  for (int t = 0; t < size * block_threads; ++t) {
    Thread& thread = threads[t];
    thread.block = &new_cluster.blocks[t / block_threads], thread.x = t % block_threads;
    ++thread.block->unfinished_threads;
    make_context(thread.context, &stacks[t * stack_size], stack_size, thread_main);
    thread.next = &threads[(late ? t + size * block_threads - 1 : t + 1) % (size * block_threads)];
  }
  cluster_unfinished_threads = size * block_threads, ++events;
  current = &threads[late ? cluster_unfinished_threads - 1 : 0];
  switch_context(all_are_done, current->context);
}


// ---- Launches: what the launchers' own code calls.
constexpr int cudaErrorInvalidConfiguration = 9, cudaErrorUnknown = 999;
void check(int error) {
  if (error) fail("a launch failed");
}
struct Launch {
  int64_t blocks;
  int threads, shared_bytes, cluster, config = 0;
  Launch(int64_t blocks, int threads, size_t shared_bytes, int cluster, bool, void*)
      : blocks(blocks), threads(threads), shared_bytes(int(shared_bytes)), cluster(cluster) {}
};
template <int kKilobytes>
struct alignas(1024) SharedRoom {
  uint8_t bytes[kKilobytes * 1024];
};
void run_clusters(const Launch& launch) {
  if (launch.blocks < 1 || launch.blocks % launch.cluster) fail("a grid of no clusters, or of broken ones");
  gridDim.x = launch.blocks;
  auto run = [&](auto* room) {
    using Memory = std::remove_pointer_t<decltype(room)>;
    for (int number = 0; number < launch.blocks / launch.cluster; ++number)
      run_cluster<Memory>(number, launch.cluster, launch.threads, {}, 1024);
  };
  SharedRoom<1>* const none = nullptr;
  SharedRoom<49>* const small = nullptr;
  SharedRoom<227>* const large = nullptr;
  launch.shared_bytes == 0 ? run(none) : launch.shared_bytes <= int(sizeof(*small)) ? run(small) : run(large);
}
uint64_t launch_number() {
  static uint64_t number = 0xFEDCBA9876543210ull;
  return number += 2ull << 32;
}
using Condition = std::variant<std::false_type, std::true_type>;
Condition constant(bool condition) { return condition ? Condition(std::true_type()) : std::false_type(); }
template <auto kKernel>
void allow_shared_memory(int) {}
// The answer of cudaOccupancyMaxActiveClusters, which programs may set. The emulation itself runs one cluster at a time
int clusters_there = 0;
template <typename... Arguments>
int cudaOccupancyMaxActiveClusters(int* clusters, const Arguments&...) {
  return *clusters = clusters_there, 0;
}
template <auto kKernel, typename Ask>
int ask_device_once(const Ask& ask) {
  return ask();
}
template <auto kKernel, typename... Arguments>
void launch_kernel(const Launch& launch, const Arguments&... arguments) {
  body = [&] { kKernel(arguments...); };
  run_clusters(launch);
}

// ---- Comparisons.

// Compares elements with the expected ones. An element is wrong if its error exceeds its bound. failed() prints the worst wrong element.
struct Comparison {
  int64_t elements = 0, wrong = 0;
  double worst = 0;   // the largest ratio of error to bound
  char text[200];
  void add(int batch, int row, int col, double got, double expected, double bound) {
    ++elements;
    const bool finite = std::isfinite(expected);
    const double error = finite ? std::fabs(got - expected) : std::isnan(expected) ? !std::isnan(got) : got != expected;
    if (finite ? error <= bound : error == 0) return;
    const double excess = finite && bound > 0 && !std::isnan(error) ? error / bound : INFINITY;
    if (wrong++ && excess <= worst) return;
    worst = excess;
    std::snprintf(text, sizeof(text), "[%d, %d, %d] (batch, row, column), is %.9g, not %.9g; error %.3g, bound %.3g", batch, row, col, got,
                  expected, std::fabs(got - expected), bound);
  }
  bool failed() const {
    if (wrong) std::printf("%lld of %lld elements are wrong. The worst, %s\n", (long long)wrong, (long long)elements, text);
    return wrong > 0;
  }
};
"""


PRODUCT = r"""
// ---- A product, compared with float64 sums.

// A batch of matrices, stored by rows or by columns. Neighbours in a stored row or column are `near` elements apart. Stored rows or columns
// are `pitch` elements apart. The memory in between holds NaN.
template <typename T>
struct Matrix {
  int rows, cols, near, pitch;
  bool by_rows;
  int64_t size;
  std::vector<T> memory;
  Matrix(int rows, int cols, bool by_rows, int pad, int batches, int near = 1)
      : rows(rows),
        cols(cols),
        near(near),
        pitch((by_rows ? cols : rows) * near + pad),
        by_rows(by_rows),
        size(static_cast<int64_t>(by_rows ? rows : cols) * pitch) {
    T nan;
    nan = NAN;
    memory.assign(size * batches + 16 / sizeof(T), nan);
    while (reinterpret_cast<uintptr_t>(begin()) % 16) ++skipped;
  }
  int skipped = 0;
  T* begin() { return memory.data() + skipped; }
  T& at(int batch, int row, int col) {
    const int64_t far = by_rows ? row : col, along = by_rows ? col : row;
    return begin()[batch * size + far * pitch + along * near];
  }
  int64_t row_stride() const { return by_rows ? pitch : near; }
  int64_t col_stride() const { return by_rows ? near : pitch; }
};

// g++ compiles this function to vector instructions, whatever the optimisation of the rest of the program.
__attribute__((optimize("O3"))) void add_terms(double x, const double* __restrict y, double* __restrict sum, double* __restrict magnitude,
                                               int from, int to) {
  for (int col = from; col < to; ++col) {
    const double term = x * y[col];
    sum[col] += term, magnitude[col] += std::fabs(term);
  }
}

// Calls compute(p), which runs the kernel, and compares C. The arguments are integers:
//   1 to 6   contraction, structure, m, n, k, batches
//   7        when copies and wgmma products are done. 0 or a positive even number: both at once. A positive odd number: both as late as
//            possible. A negative number: copies at once, and products as late as possible. If the absolute value is 2 w + 2 or 2 w + 3,
//            warp w of each CTA also goes on only when no other thread can
//   8, 9     how X and Y are stored: 0 by columns, 1 by rows; 2 and 3 likewise, with neighbours two elements apart
//   10, 11   padding of the rows or columns of X and Y; padding of the rows of C
//   12       the kind of elements, below; + 10: the kernel computes both triangles of a symmetric C; + 20: Y is X, with a mask of its own
// Further arguments belong to the program. Kinds of elements:
//   0  uniform between -1 and 1
//   1  as 0, but scaled so that sums overflow if a kernel splits float32 into two tf32, which scales elements by kTf32Scale
//   2  as 0, but scaled so that elements of X overflow in such a kernel
//   3  as 0, but scaled so that elements of X are denormal
//   4  as 0, but with an Inf in a corner of X or, if copies are late, of Y
//   5  from 1 to 2, with a period of 64 in k, so that the rounding errors of a long sum do not cancel
//   6  as 0, but with an Inf in each row of X
//   7  as 0, but the elements outside the masks are 1000, and not NaN
//   8  as 0, but with an Inf in X or, if copies are late, in Y, at [rows - 34, columns / 2 + 8], or mirrored if the mask is upper
//   9  elements with terms from which tensor cores cut bits off
// Kinds 4 and 8 put the Inf into the first product of a batch only.
template <typename T, typename Compute>
int run_product(char** arguments, const Compute& compute) {
  int a[12];
  for (int i = 0; i < 12; ++i) a[i] = std::atoi(arguments[1 + i]);
  const Contraction contraction = static_cast<Contraction>(a[0]);
  const int structure = a[1], m = a[2], n = a[3], k = a[4], batches = a[5], kind = a[11] % 10;
  late = a[6] > 0 && a[6] % 2, products_late = late || a[6] < 0, behind = std::abs(a[6]) / 2 - 1;
  cuts_off = kind == 9, all_finite = kind == 0 || kind == 5 || kind == 7 || kind == 9;
  const int x_mask = structure & 3, y_mask = structure >> 2 & 3, c_mask = structure >> 4;
  Matrix<T> x(contraction == kTN ? k : m, contraction == kTN ? m : k, a[7] % 2, a[9], batches, 1 + a[7] / 2);
  Matrix<T> another(contraction == kNT ? n : k, contraction == kNT ? k : n, a[8] % 2, a[9], batches, 1 + a[8] / 2);
  const bool one = a[11] / 10 == 2;
  Matrix<T>& y = c_mask == kSymmetric || one ? x : another;
  Matrix<T> c(m, n, true, a[10], batches);
  if (kind == 7)   // an element outside the mask must make a sum wrong; it must not make a NaN, which the exact path would repair
    for (Matrix<T>* operand : {&x, &another})
      for (T& element : operand->memory) element = 1000.0f;
  uint64_t state = 1;
  auto uniform = [&] { return static_cast<double>((state = state * 6364136223846793005ull + 1442695040888963407ull) >> 11) * 0x1p-53; };
  auto has = [](int mask, int row, int col) { return mask == kLower ? row >= col : mask != kUpper || row <= col; };
  for (Matrix<T>* operand : {&x, &another})
    for (int batch = 0; batch < batches; ++batch)
      for (int row = 0; row < operand->rows; ++row)
        for (int col = 0; col < operand->cols; ++col)
          if (has(operand == &x ? x_mask : y_mask, row, col) || (one && has(y_mask, row, col))) {
            double v = 2 * uniform() - 1;
            if (kind == 1) v *= operand == &x ? 1e30 : 1e4;
            if (kind == 2) v *= operand == &x ? 1e36 : 1e-36;
            if (kind == 3) v *= operand == &x ? 1e-42 : 1e30;
            if (kind == 5) {   // from 1 to 2, with a period of 64 in k
              const bool down = operand == &x ? contraction == kTN : contraction != kNT;   // whether k counts rows
              const int earlier_row = down ? row - 64 : row, earlier_col = down ? col : col - 64;
              v = min(earlier_row, earlier_col) < 0 ? 1.5 + v / 2 : double(operand->at(batch, earlier_row, earlier_col));
            }
            if (kind == 9) {   // one of 16 terms is large, and tensor cores cut bits off the other 15 terms
              const int term = ((operand == &x ? contraction == kTN : contraction != kNT) ? row : col) % 16;
              const double small = (2 - 0x1p-10) * (operand == &x ? 0x1p-12 : term >= 4 && term % 4 == 3 ? 0x1p-14 : 0x1p-13);
              v = term ? small : 1 + 0x1p-11 - 0x1p-23;
            }
            operand->at(batch, row, col) = static_cast<float>(v);
          }
  Matrix<T>& inf_matrix = late ? y : x;   // the matrix that gets the Inf of kind 4 or 8
  const bool upper = (late ? y_mask : x_mask) == kUpper;
  if (kind == 4) inf_matrix.at(0, inf_matrix.rows - 1, upper ? inf_matrix.cols - 1 : 0) = INFINITY;
  if (kind == 8)
    (upper ? inf_matrix.at(0, inf_matrix.rows / 2 + 8, inf_matrix.cols - 34)
           : inf_matrix.at(0, inf_matrix.rows - 34, inf_matrix.cols / 2 + 8)) = INFINITY;
  for (int batch = 0; kind == 6 && batch < batches; ++batch)
    for (int row = 0; row < x.rows; ++row) x.at(batch, row, min(row, x.cols - 1)) = INFINITY;

  Product p = {};
  p.m = m, p.n = n, p.k = k;
  p.batches = batches, p.batch_dims = batches > 1, p.batch_size[0] = batches;
  p.x_batch[0] = x.size, p.y_batch[0] = y.size, p.c_batch = c.size;
  p.x = x.begin(), p.x_row = x.row_stride(), p.x_col = x.col_stride();   // strides as the binding gives them
  p.y = y.begin(), p.y_row = y.row_stride(), p.y_col = y.col_stride();
  p.c = c.begin(), p.c_row = c.row_stride(), p.c_col = c.col_stride();
  if (contraction == kTN) std::swap(p.x_row, p.x_col);
  if (contraction == kNT) std::swap(p.y_row, p.y_col);
  describe_masks(p, structure, contraction);
  if (a[11] / 10 == 1) p.c_lower = p.symmetric = 0;
  compute(p);
  if (p.symmetric)   // in place of the kernel `mirror`, which the program does not launch
    for (int batch = 0; batch < batches; ++batch)
      for (int row = 0; row < m; ++row)
        for (int col = 0; col < row; ++col) c.at(batch, col, row) = c.at(batch, row, col);

  // A 16-bit result is rounded once, by up to half a unit in the last place.
  const double half_ulp = sizeof(T) >= 4 ? 0 : std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8;
  const double per_term = sizeof(T) == 8 ? (k + 1) * 0x1p-52 : kind == 9 ? 1.5e-6 : 1e-6;
  const double least = std::is_same_v<T, __half> ? 0x1p-25 : 1e-44;

  Comparison comparison;
  std::vector<double> y_wide(static_cast<size_t>(k) * n), exact(n), magnitude(n);   // y_wide: Y as [k][n]; the other two: a row of C
  for (int batch = 0; batch < batches; ++batch) {
    for (int i = 0; i < k; ++i)
      for (int col = 0; col < n; ++col)
        y_wide[static_cast<size_t>(i) * n + col] = contraction == kNT ? y.at(batch, col, i) : y.at(batch, i, col);
    for (int row = 0; row < m; ++row) {
      std::fill(exact.begin(), exact.end(), 0.0), std::fill(magnitude.begin(), magnitude.end(), 0.0);
      for (int i = 0; i < k; ++i) {
        const int x_row = contraction == kTN ? i : row, x_col = contraction == kTN ? row : i;
        if (!has(x_mask, x_row, x_col)) continue;
        const double x_wide = x.at(batch, x_row, x_col);
        int from = 0, to = n;   // the columns of C that have this term
        auto clip = [&](int mask, bool up_to, int index) {
          if (mask == kLower || mask == kUpper) up_to == (mask == kLower) ? to = min(to, index + 1) : from = max(from, index);
        };
        clip(y_mask, contraction != kNT, i), clip(c_mask, true, row);
        add_terms(x_wide, &y_wide[static_cast<size_t>(i) * n], exact.data(), magnitude.data(), from, to);
      }
      for (int col = 0; col < n; ++col) {
        const bool exists = has(c_mask, row, col);
        const double bound = exists ? per_term * magnitude[col] + half_ulp * std::fabs(exact[col]) + least : 0;
        comparison.add(batch, row, col, c.at(batch, row, col), exists ? exact[col] : 0, bound);
        if (c_mask == kSymmetric && std::memcmp(&c.at(batch, row, col), &c.at(batch, col, row), sizeof(T))) {
          std::printf("product %d, element %d, %d has other bits than its mirror image: %.9g and %.9g\n", batch, row, col,
                      double(c.at(batch, row, col)), double(c.at(batch, col, row)));
          return 1;
        }
      }
    }
  }
  if (comparison.failed()) return 1;
  std::printf("all holds\n");
  return 0;
}
"""
PRODUCT = f"""{marked("structure")}
void describe_masks(Product& p, int structure, int contraction) {{
{marked("masks of a product")}}}
{PRODUCT}"""


def hopper_skeleton(model):
    """Returns the section of the CUDA source with the skeleton of Hopper's kernels, changed by on_host."""
    return on_host(model._CUDA_SKELETON)


def instances(model, *names):
    """Returns the texts of those C++ functions in _CUDA_PARTS of model_new.py whose names begin with one of `names`. Such a function calls
    one instance of a function template, as launch_mma_float32 calls launch_mma<float>."""
    beginnings = tuple(f"void {name}" for name in names)
    strings = dict.fromkeys(string for _, part in model._CUDA_PARTS for string in part)
    functions = [string for string in strings if string.startswith(beginnings)]
    assert functions, f"no part has {names}"
    return functions

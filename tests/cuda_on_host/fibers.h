// Stacks that take turns on one thread of the system.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
// Sanitizers are told of every switch, which is Boost's then. So it is where nobody wrote ours.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define QUIRE_OWN_SWITCH 1
#else
#define QUIRE_OWN_SWITCH 0
#endif

namespace quire::cuda_on_host {

class Fibers {
 public:
  static constexpr int kHost = 0;  // the stack of who made them

  // body: what runs on every fiber from its first switch_to() on. It never returns: it ends by switching away for good.
  explicit Fibers(void (*body)()) : body_(body) { fibers_.push_back({}); }
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  int running() const { return running_; }
  int add();
  // Returns when somebody switches back.
  void switch_to(int target);

 private:
  static constexpr size_t kStackBytes = 64 << 10;

  struct Fiber {
#if QUIRE_OWN_SWITCH
    void* left_at = nullptr;  // the top of its stack
#else
    boost::context::fiber context;
    const void* stack_bottom = nullptr;
    size_t stack_bytes = 0;
    void* sanitizer = nullptr;
#endif
  };

  void arrived(int from);

  void (*const body_)();
  std::vector<Fiber> fibers_;
  int running_ = kHost;
  int previous_ = kHost;  // of Boost's
};

#if QUIRE_OWN_SWITCH

inline int Fibers::add() {
  boost::context::protected_fixedsize_stack stacks(kStackBytes);
  const int index = static_cast<int>(fibers_.size());
  // Tops of stacks a whole number of pages apart would fight for the same lines of the caches.
  const size_t shift = static_cast<size_t>(index) * 576 % 4096;
  // What switch_to() takes from there, then what a function finds where it would return to.
  auto** top = reinterpret_cast<void**>(static_cast<char*>(stacks.allocate().sp) - shift - 64);
  top[0] = reinterpret_cast<void*>(body_);
  top[1] = nullptr;
  fibers_.push_back({top});
  return index;
}

// Without a call, and to be without one where it is used: a processor guesses where a return leads by the calls that it
// has seen, and fibers that wait in turns at the same place return from there as if they were one. Five times as fast
// as Boost's.
[[gnu::always_inline]] inline void Fibers::switch_to(int target) {
  void** from = &fibers_[static_cast<size_t>(running_)].left_at;
  void* to = fibers_[static_cast<size_t>(target)].left_at;
  running_ = target;
  // Whatever the compiler may have in a register it takes back from the stack. Behind the stack's top it may have data,
  // too.
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %1, %%rsp\n\t"
      "popq %%rax\n\t"
      "jmpq *%%rax\n"
      "1:\n\t"
      "popq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
        "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
        "memory", "cc");
}

#else

inline int Fibers::add() {
  boost::context::protected_fixedsize_stack stacks(kStackBytes);
  const boost::context::stack_context stack = stacks.allocate();
  const int index = static_cast<int>(fibers_.size());
  Fiber fiber;
  fiber.stack_bytes = stack.size;
  fiber.stack_bottom = static_cast<const char*>(stack.sp) - stack.size;
#if defined(__SANITIZE_THREAD__)
  fiber.sanitizer = __tsan_create_fiber(0);
#endif
  const size_t shift = static_cast<size_t>(index) * 576 % 4096;
  const boost::context::preallocated place(static_cast<char*>(stack.sp) - shift, stack.size - shift, stack);
  fiber.context = boost::context::fiber(std::allocator_arg, place, stacks, [this](boost::context::fiber&& from) {
    fibers_[static_cast<size_t>(previous_)].context = std::move(from);
    arrived(previous_);
    body_();
    return boost::context::fiber{};
  });
  fibers_.push_back(std::move(fiber));
  return index;
}

inline void Fibers::switch_to(int target) {
  const int own = running_;
  previous_ = own;
  running_ = target;
  Fiber& to = fibers_[static_cast<size_t>(target)];
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fibers_[static_cast<size_t>(own)].sanitizer, to.stack_bottom, to.stack_bytes);
#elif defined(__SANITIZE_THREAD__)
  if (own == kHost) fibers_[kHost].sanitizer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer, 0);
#endif
  boost::context::fiber from = std::move(to.context).resume();
  fibers_[static_cast<size_t>(previous_)].context = std::move(from);
  arrived(previous_);
}

inline void Fibers::arrived([[maybe_unused]] int from) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fibers_[static_cast<size_t>(running_)].sanitizer, &bottom, &bytes);
  if (from == kHost) {
    fibers_[kHost].stack_bottom = bottom;
    fibers_[kHost].stack_bytes = bytes;
  }
#endif
}

#endif

}  // namespace quire::cuda_on_host

#include "sleeping.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#else
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#endif

namespace pagewire {

#if defined(__linux__)

static_assert(sizeof(std::atomic<uint32_t>) == 4, "the kernel reads the word itself");

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_sleepers(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_between_processes(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void wake_processes(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#else

// One mutex for all words: threads sleep and wake a few hundred times a second at most.
static std::mutex sleep_mutex;
static std::condition_variable sleep_condition;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  std::unique_lock<std::mutex> lock(sleep_mutex);
  sleep_condition.wait(lock, [&] { return word.load() != value; });
}

void wake_sleepers(std::atomic<uint32_t>&) {
  { std::lock_guard<std::mutex> lock(sleep_mutex); }
  sleep_condition.notify_all();
}

// No portable call wakes another process: who waits looks now and then.
void sleep_between_processes(std::atomic<uint32_t>& word, uint32_t value) {
  if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void wake_processes(std::atomic<uint32_t>&) {}

#endif

}  // namespace pagewire

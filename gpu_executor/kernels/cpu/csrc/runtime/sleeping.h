// Waiting for another thread: the processor's hint that a loop waits, and sleep until a word changes.
#pragma once

#include <atomic>
#include <cstdint>

namespace pagewire {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleep while word holds value; may return early.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value);
// Wake all that sleep on word. Its new value must have been stored.
void wake_sleepers(std::atomic<uint32_t>& word);

// The same, where the word lies in memory that several processes have mapped.
void sleep_between_processes(std::atomic<uint32_t>& word, uint32_t value);
void wake_processes(std::atomic<uint32_t>& word);

}  // namespace pagewire

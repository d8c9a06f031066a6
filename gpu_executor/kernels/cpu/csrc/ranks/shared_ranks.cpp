#include "shared_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "../runtime/sleeping.h"

namespace pagewire {
namespace {

// How long a rank looks before it sleeps. Ranks that compute equal shares come within a few microseconds of each other;
// to sleep and to be woken takes about 50. But where cores are fewer than who wants them, who looks keeps the one who is
// waited for from its core: with each wait in a row that ends in sleep, the next one looks half as long. Now and then
// one looks for all of the time: who was woken late is late at the next meeting, and so the others sleep there again.
constexpr std::chrono::nanoseconds kSpin{50'000};
constexpr uint32_t kMostHalvings = 5;
constexpr uint32_t kWaitsToLongLook = 32;

std::chrono::nanoseconds time_to_look(uint32_t sleeps_in_row) {
  return sleeps_in_row % kWaitsToLongLook == 0 ? kSpin : kSpin / (1 << std::min(sleeps_in_row, kMostHalvings));
}

constexpr int kPausesPerLook = 32;  // between two looks at the clock

}  // namespace

// Where ranks meet. Each word is on a cache line of its own: all ranks write them.
struct SharedRanks::Meeting {
  alignas(64) std::atomic<uint32_t> num_arrived;
  alignas(64) std::atomic<uint32_t> num_held;  // meetings that are over
  alignas(64) std::atomic<uint32_t> num_sleepers;
};

int64_t SharedRanks::num_bytes(int size, int64_t area_bytes) {
  return static_cast<int64_t>(sizeof(Meeting)) + 2 * size * area_bytes;
}

SharedRanks::SharedRanks(void* memory, int rank, int size, int64_t area_bytes)
    : meeting_(static_cast<Meeting*>(memory)),
      areas_(static_cast<uint8_t*>(memory) + sizeof(Meeting)),
      rank_(rank),
      size_(size),
      area_bytes_(area_bytes) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share the words, not a lock");
}

void SharedRanks::meet() {
  Meeting& meeting = *meeting_;
  const uint32_t before = meeting.num_held.load();
  if (meeting.num_arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
    meeting.num_arrived.store(0);
    meeting.num_held.store(before + 1);
    // Either this sees a sleeper's entry, or the sleeper sees the new number: all are sequentially consistent.
    if (meeting.num_sleepers.load() > 0) wake_processes(meeting.num_held);
  } else {
    await(before);
  }
  exchange_.store(exchange_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void SharedRanks::await(uint32_t before) {
  Meeting& meeting = *meeting_;
  const auto is_over = [&] { return meeting.num_held.load() != before; };
  const auto deadline = std::chrono::steady_clock::now() + time_to_look(sleeps_in_row_);
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (is_over()) {
        sleeps_in_row_ = 0;
        return;
      }
      pause_briefly();
    }
    std::this_thread::yield();  // perhaps it is this core that the others wait for
  } while (std::chrono::steady_clock::now() < deadline);
  ++sleeps_in_row_;
  meeting.num_sleepers.fetch_add(1);
  while (!is_over()) sleep_between_processes(meeting.num_held, before);
  meeting.num_sleepers.fetch_sub(1);
}

void SharedRanks::sum(const float* x, int64_t n, float* total) {
  const int64_t most = area_bytes_ / static_cast<int64_t>(sizeof(float));
  for (int64_t begin = 0; begin < n; begin += most) {
    const int64_t count = smaller(most, n - begin);
    const size_t num_bytes = static_cast<size_t>(count) * sizeof(float);
    std::memcpy(mine(), x + begin, num_bytes);
    meet();
    float* sum = total + begin;
    std::memcpy(sum, of(0), num_bytes);
    for (int rank = 1; rank < size_; ++rank) {
      const float* part = of(rank);
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
  }
}

void SharedRanks::gather(const uint8_t* x, int64_t num_bytes, uint8_t* out) {
  for (int64_t begin = 0; begin < num_bytes; begin += area_bytes_) {
    const auto count = static_cast<size_t>(smaller(area_bytes_, num_bytes - begin));
    std::memcpy(mine(), x + begin, count);
    meet();
    for (int rank = 0; rank < size_; ++rank) std::memcpy(out + rank * num_bytes + begin, of(rank), count);
  }
}

}  // namespace pagewire

#include "limits.h"

#include <atomic>
#include <cstring>

namespace pagewire {
namespace {

// Enough to start the prefetcher, little enough to end evenly.
constexpr int64_t kPieceBytes = 128 * 1024;
constexpr int64_t kTilesPerThread = 8;

// Four streams at a time: one alone leaves a third of the memory's rate to wait for (9 of 14.5 GB/s, Zen 3). The compiler
// makes vectors of each stream's four sums; additions are far faster than any memory.
uint64_t sum_of_piece(const char* data) {
  constexpr int64_t kStreams = 4, kStreamBytes = kPieceBytes / kStreams;
  uint64_t sums[kStreams][4] = {};
  for (int64_t i = 0; i < kStreamBytes; i += 32) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      uint64_t words[4];
      std::memcpy(words, data + stream * kStreamBytes + i, sizeof(words));
      for (int lane = 0; lane < 4; ++lane) sums[stream][lane] += words[lane];
    }
  }
  uint64_t total = 0;
  for (const auto& stream : sums) {
    for (const uint64_t sum : stream) total += sum;
  }
  return total;
}

int64_t on_all_threads(Runtime& runtime, int64_t (*work)(int64_t, float*), int64_t rounds) {
  std::atomic<int64_t> operations{0};
  runtime.pool.run([&](Team& team) {
    team.for_tiles(team.num_threads() * kTilesPerThread, [&](int64_t) {
      float numbers[2] = {0.5f, 1.0f};
      operations.fetch_add(work(rounds, numbers));
      volatile float kept = numbers[0];  // or nothing would have to be computed
      (void)kept;
    });
  });
  return operations.load();
}

}  // namespace

int64_t read_memory(Runtime& runtime, const void* data, int64_t num_bytes, int64_t passes) {
  std::atomic<uint64_t> total{0};
  const char* bytes = static_cast<const char*>(data);
  runtime.pool.run([&](Team& team) {
    uint64_t sum = 0;
    for (int64_t pass = 0; pass < passes; ++pass) {
      team.for_tiles(num_bytes / kPieceBytes, [&](int64_t piece) { sum += sum_of_piece(bytes + piece * kPieceBytes); });
    }
    total.fetch_add(sum);
  });
  volatile uint64_t kept = total.load();  // or nothing would have to be read
  (void)kept;
  return num_bytes / kPieceBytes * kPieceBytes * passes;
}

int64_t multiply_floats(Runtime& runtime, int64_t rounds) {
  return on_all_threads(runtime, runtime.kernels.multiply_floats, rounds);
}

int64_t multiply_integers(Runtime& runtime, int64_t rounds) {
  return on_all_threads(runtime, runtime.kernels.multiply_integers, rounds);
}

}  // namespace pagewire

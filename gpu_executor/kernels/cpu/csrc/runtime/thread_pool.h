// The one pool of threads that a step runs on.
//
// A step is one parallel region: every thread runs the same function over the whole model, and the threads meet at
// the end of each phase. Work inside a phase is cut into tiles, taken from a shared counter, so that a thread that the
// system took off its core holds nobody up for longer than its tile. Which thread computes a tile never changes a bit
// of the result.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace pagewire {

// One thread's view of a parallel region.
class Team {
 public:
  int thread() const;       // 0 is the caller's own
  int num_threads() const;
  // Wait until all threads are here. What each wrote before is seen by all after.
  void barrier();
  // Call tile(index) once for each index in [0, num_tiles), on whichever thread takes it; ends with a barrier.
  // All threads must call it with the same number.
  template <typename Tile>
  void for_tiles(int64_t num_tiles, Tile&& tile);
  // Run once(), on one thread; ends with a barrier.
  template <typename Once>
  void single(Once&& once);
};

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // num_threads - 1 are started; the caller is the other one
  ~ThreadPool();
  int num_threads() const;
  // Run body on all threads; returns when all are done. Waiting threads spin for a short while, then sleep.
  void run(const std::function<void(Team&)>& body);
};

}  // namespace pagewire

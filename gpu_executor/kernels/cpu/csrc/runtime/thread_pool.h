// The one pool of threads that a step runs on.
//
// A step is one parallel region: every thread runs the same function over the whole model. Its phases are cut into
// tiles. Each thread takes those of its own share first, in order, so that it reads memory in one direction and what
// was fetched ahead is its own; then what is left of the others' shares. A phase is over when its last tile is done,
// not when every thread is there. So a thread that the system took off its core holds the others up only by the tile
// that it is in: one that comes late finds the phases that it missed done, and joins at the present one. Which thread
// computes a tile never changes a bit of the result.
//
// Who waits spins for some microseconds, then sleeps: phases follow each other faster than a sleeper wakes, but the
// cores are shared with other processes. A pool without work takes no time at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace pagewire {

class ThreadPool;

// One thread's view of a parallel region.
class Team {
 public:
  int thread() const { return thread_; }  // 0 is the caller's own
  int num_threads() const { return num_threads_; }
  // Call tile(index) once for each index in [0, num_tiles), on whichever thread takes it; returns when all are done,
  // and what they wrote is seen. All threads of a region must make the same calls with the same numbers, in order.
  template <typename Tile>
  void for_tiles(int64_t num_tiles, Tile&& tile);
  // Run once(), on one thread; returns when it is done.
  template <typename Once>
  void single(Once&& once) {
    for_tiles(1, [&](int64_t) { once(); });
  }

 private:
  friend class ThreadPool;
  Team(ThreadPool& pool, int thread, uint32_t phase);

  ThreadPool& pool_;
  int thread_;
  int num_threads_;
  uint32_t phase_;  // the phase that this thread comes to next
};

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // num_threads - 1 are started; the caller is the other one
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int num_threads() const { return num_threads_; }
  // Run body(team) on all threads; returns when all are done with it. Threads that were not yet there when the caller
  // was through it are not waited for. Not to be called from within a body. One region at a time: callers take turns.
  template <typename Body>
  void run(const Body& body) {
    run_region({[](const void* object, Team& team) { (*static_cast<const Body*>(object))(team); }, &body});
  }

 private:
  friend class Team;

  // A reference to a body. Neither this nor what Threads hides takes a standard header that every file would wait for.
  struct Region {
    void (*call)(const void* object, Team& team);
    const void* object;
  };
  struct Threads;

  void run_region(Region region);
  void work(int thread);
  void stop();
  bool take_tile(uint32_t phase, int thread, int64_t num_tiles, int64_t* tile);
  void finish_tile(uint32_t phase, int64_t num_tiles);
  void wait_for_phase_end(uint32_t phase);
  template <typename Changed>
  void wait_until(std::atomic<uint32_t>& word, uint32_t value, Changed&& changed);
  void announce(std::atomic<uint32_t>& word);

  const int num_threads_;
  Region body_ = {};
  uint32_t first_phase_ = 0;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Threads> threads_;

  // Each on a cache line of its own: all threads write them all the time.
  // A thread's share of the tiles: the present phase in the high half, the number taken in the low one. A late thread
  // can't take another phase's tile.
  struct alignas(64) Share {
    std::atomic<uint64_t> tickets{0};
  };
  std::vector<Share> shares_;
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<uint32_t> region_{0};
  // Threads besides the caller that are in the body, and whether more may enter.
  alignas(64) std::atomic<uint32_t> entered_{0};
  alignas(64) std::atomic<uint32_t> num_sleepers_{0};
};

template <typename Tile>
void Team::for_tiles(int64_t num_tiles, Tile&& tile) {
  if (num_tiles == 0) return;
  const uint32_t phase = phase_++;
  int64_t index;
  while (pool_.take_tile(phase, thread_, num_tiles, &index)) {
    tile(index);
    pool_.finish_tile(phase, num_tiles);
  }
  pool_.wait_for_phase_end(phase);
}

}  // namespace pagewire

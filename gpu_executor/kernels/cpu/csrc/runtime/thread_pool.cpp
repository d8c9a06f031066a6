#include "thread_pool.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "sleeping.h"

namespace pagewire {
namespace {

// How long a thread looks before it sleeps. Phases of a small model take 5 to 50 microseconds; to sleep and to be
// woken takes about 50. Longer, and the thread would only keep the core from the other processes.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerLook = 32;  // between two looks at the clock
constexpr uint32_t kClosed = 1u << 31;

uint64_t ticket(uint32_t phase) { return static_cast<uint64_t>(phase) << 32; }
uint32_t phase_of(uint64_t tickets) { return static_cast<uint32_t>(tickets >> 32); }

}  // namespace

struct ThreadPool::Threads {
  std::mutex region;  // held by the caller that runs one
  std::vector<std::thread> started;
};

Team::Team(ThreadPool& pool, int thread, uint32_t phase)
    : pool_(pool), thread_(thread), num_threads_(pool.num_threads()), phase_(phase) {}

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads < 1 ? 1 : num_threads),
      threads_(std::make_unique<Threads>()),
      shares_(static_cast<size_t>(num_threads_)) {
  entered_.store(kClosed);
  try {
    for (int thread = 1; thread < num_threads_; ++thread) {
      threads_->started.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    stop();  // the system gives no more threads: those that were started must not outlive this
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  region_.fetch_add(1);
  wake_sleepers(region_);
  for (std::thread& thread : threads_->started) thread.join();
}

void ThreadPool::run_region(Region region) {
  std::lock_guard<std::mutex> lock(threads_->region);
  body_ = region;
  first_phase_ = phase_.load();
  if (num_threads_ > 1) {
    entered_.store(0);
    region_.fetch_add(1);
    announce(region_);
  }
  Team team(*this, 0, first_phase_);
  region.call(region.object, team);
  if (num_threads_ > 1) {
    entered_.fetch_or(kClosed);
    for (uint32_t now = entered_.load(); now != kClosed; now = entered_.load()) {
      wait_until(entered_, now, [&] { return entered_.load() != now; });
    }
  }
  body_ = {};
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    wait_until(region_, seen, [&] { return region_.load() != seen; });
    seen = region_.load();
    if (stopping_) return;
    uint32_t entered = entered_.load();
    while (!(entered & kClosed) && !entered_.compare_exchange_weak(entered, entered + 1)) {
    }
    if (entered & kClosed) continue;  // all was done before this thread woke
    // This may be a later region than the one it was woken for. To enter it a second time does no harm: by then all
    // phases that it took part in are over.
    Team team(*this, thread, first_phase_);
    body_.call(body_.object, team);
    if (entered_.fetch_sub(1) == (kClosed | 1)) announce(entered_);
  }
}

bool ThreadPool::take_tile(uint32_t phase, int thread, int64_t num_tiles, int64_t* tile) {
  for (int i = 0; i < num_threads_; ++i) {
    const int owner = (thread + i) % num_threads_;
    const int64_t begin = owner * num_tiles / num_threads_, end = (owner + 1) * num_tiles / num_threads_;
    std::atomic<uint64_t>& share = shares_[static_cast<size_t>(owner)].tickets;
    uint64_t tickets = share.load();
    while (phase_of(tickets) == phase && begin + static_cast<int64_t>(tickets & 0xffffffffu) < end) {
      if (share.compare_exchange_weak(tickets, tickets + 1)) {
        *tile = begin + static_cast<int64_t>(tickets & 0xffffffffu);
        return true;
      }
    }
  }
  return false;
}

void ThreadPool::finish_tile(uint32_t phase, int64_t num_tiles) {
  if (num_done_.fetch_add(1) + 1 != static_cast<uint32_t>(num_tiles)) return;
  num_done_.store(0);
  for (Share& share : shares_) share.tickets.store(ticket(phase + 1));
  // The phase last: nobody comes to the next one before, so all its shares are there to be taken.
  phase_.store(phase + 1);
  announce(phase_);
}

void ThreadPool::wait_for_phase_end(uint32_t phase) {
  wait_until(phase_, phase, [&] { return phase_.load() != phase; });
}

template <typename Changed>
void ThreadPool::wait_until(std::atomic<uint32_t>& word, uint32_t value, Changed&& changed) {
  if (changed()) return;
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (changed()) return;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  num_sleepers_.fetch_add(1);
  while (!changed()) sleep_while(word, value);
  num_sleepers_.fetch_sub(1);
}

void ThreadPool::announce(std::atomic<uint32_t>& word) {
  // Either this sees a sleeper's entry, or the sleeper sees the new value: all of them are sequentially consistent.
  if (num_sleepers_.load() > 0) wake_sleepers(word);
}

}  // namespace pagewire

// Ranks of one host that share layers: memory that all of them have mapped, by which they hand each other rows.
//
// In an exchange each rank writes into its own area, all meet, and each reads the areas of all. Every rank has two
// areas, which exchanges use in turn: who writes for the next exchange touches nothing that the last one is still read
// from, and the one before that was read by all before they met again. So an exchange is one meeting.
//
// A rank waits until the others come. It has no limit of its own: whoever started the ranks ends them all when one dies.
#pragma once

#include <atomic>
#include <cstdint>

#include "../weights/packed_matrix.h"

namespace pagewire {

class SharedRanks {
 public:
  // Of the memory that `size` ranks share; zeros before the first of them comes.
  static int64_t num_bytes(int size, int64_t area_bytes);

  // memory: begins on a cache line, and outlives this object. area_bytes: a multiple of 64.
  SharedRanks(void* memory, int rank, int size, int64_t area_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t area_bytes() const { return area_bytes_; }
  // Where this rank writes what the next meeting hands to the others. These two may be called by any thread of a team,
  // in a phase in which nobody meets.
  float* mine() const { return area(rank_, exchange_.load(std::memory_order_relaxed)); }
  // What a rank had written at the last meeting; until the next one.
  const float* of(int rank) const { return area(rank, exchange_.load(std::memory_order_relaxed) - 1); }
  // Wait until all ranks are here. One thread a rank.
  void meet();

  // The same as calls of one thread, for what has any size: total [n] = what the ranks' x add up to, rank 0 first, in
  // fp32; total may be x.
  void sum(const float* x, int64_t n, float* total);
  // out [size, num_bytes] = what each rank has.
  void gather(const uint8_t* x, int64_t num_bytes, uint8_t* out);

 private:
  struct Meeting;

  float* area(int rank, uint32_t exchange) const {
    return reinterpret_cast<float*>(areas_ + (rank * 2 + (exchange & 1)) * area_bytes_);
  }

  void await(uint32_t before);

  Meeting* meeting_;
  uint8_t* areas_;
  int rank_;
  int size_;
  int64_t area_bytes_;
  uint32_t sleeps_in_row_ = 0;  // the last so many waits ended in sleep
  std::atomic<uint32_t> exchange_{0};  // counted by this rank; all count alike
};

}  // namespace pagewire

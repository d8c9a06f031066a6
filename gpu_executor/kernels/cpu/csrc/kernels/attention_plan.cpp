#include "attention_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace pagewire {

namespace {

// A key of one KV head costs its bytes and its conversion once, and a product a row: about 5 rows' worth for the first
// (estimated from memory's rate and the peak of products, fp16 caches, 64 channels, Zen 3).
constexpr float kKeyCostInRows = 5.0f;
// A request whose KV heads together cost less than this many rows times keys is one task: taking a task off the shared
// counter costs about as much as 30 of them.
constexpr float kSmallestTask = 400.0f;

// A tile that would take more than 1/3 of a thread's share is cut, into pieces of about 1/8 of it. Uncut, a tile of
// many rows saves the writing and merging of partial results, so that the first number is larger than the second.
constexpr float kCutAtShare = 1.0f / 3;
constexpr float kPieceOfShare = 1.0f / 8;
// KV heads of a request stay together if that makes no more than this of a thread's share. With few rows they read a
// block's heads side by side, which memory rewards (6 KB at a time instead of 2: 5 to 10 % faster).
constexpr float kTogetherOfShare = 1.0f / 16;
constexpr float kFewRowsTogetherOfShare = 1.0f / 6;

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

}  // namespace

void AttentionPlan::build(const AttentionShape& shape, int64_t num_reqs, const int32_t* query_start,
                          const int32_t* seq_lens, int64_t num_threads) {
  tiles_.clear();
  tasks_.clear();
  unordered_tasks_.clear();
  costs_.clear();
  merges_.clear();
  partial_floats_ = 0;
  cut_tokens(shape, num_reqs, query_start, seq_lens);

  float total_cost = 0;
  for (const Tile& tile : tiles_) total_cost += tile.cost * static_cast<float>(shape.num_kv_heads);
  const float share = total_cost / static_cast<float>(num_threads);
  const int32_t heads = narrow(shape.num_kv_heads);
  for (const Tile& tile : tiles_) {
    if (num_threads > 1 && tile.cost > share * kCutAtShare && tile.split_end - tile.split_begin > 1) {
      add_split_tile(tile, shape, share);
      continue;
    }
    const float most = share * (tile.has_few_rows ? kFewRowsTogetherOfShare : kTogetherOfShare);
    const bool together = num_threads == 1 || tile.cost * static_cast<float>(heads) < std::max(most, kSmallestTask);
    add_tasks(tile, tile.split_begin, tile.split_end, heads, together ? heads : 1, -1);
  }
  order_tasks();
}

// Cut each request's query tokens into tiles.
void AttentionPlan::cut_tokens(const AttentionShape& shape, int64_t num_reqs, const int32_t* query_start,
                               const int32_t* seq_lens) {
  const int64_t tile_tokens = attention_tile_tokens(shape.num_heads, shape.num_kv_heads);
  const float heads = static_cast<float>(shape.num_heads / shape.num_kv_heads);
  for (int64_t request = 0; request < num_reqs; ++request) {
    const int64_t query_end = query_start[request + 1];
    const int64_t first_position = seq_lens[request] - (query_end - query_start[request]);
    for (int64_t begin = query_start[request]; begin < query_end; begin += tile_tokens) {
      const int64_t end = std::min(begin + tile_tokens, query_end);
      const int64_t position = first_position + (begin - query_start[request]);
      const int64_t key_end = position + (end - begin);
      const int64_t window = shape.sliding_window;
      const int64_t key_begin = window > 0 ? std::max<int64_t>(position + 1 - window, 0) : 0;
      const float rows = static_cast<float>(end - begin) * heads;
      tiles_.push_back({narrow(request), narrow(begin), narrow(end), narrow(key_begin / kKeySplit),
                        narrow(divide_up(key_end, kKeySplit)),
                        static_cast<float>(key_end - key_begin) * (rows + kKeyCostInRows),
                        rows <= static_cast<float>(kFewRows)});
    }
  }
}

void AttentionPlan::add_tasks(const Tile& tile, int32_t split_begin, int32_t split_end, int32_t num_kv_heads,
                              int32_t heads_at_once, int64_t partial) {
  const int32_t splits = split_end - split_begin, tile_splits = tile.split_end - tile.split_begin;
  const float part = static_cast<float>(splits) / static_cast<float>(tile_splits);
  for (int32_t head = 0; head < num_kv_heads; head += heads_at_once) {
    const int32_t head_end = head + heads_at_once;
    add_task({tile.request, tile.token_begin, tile.token_end, head, head_end, split_begin, split_end, partial},
             tile.cost * part * static_cast<float>(heads_at_once));
  }
}

void AttentionPlan::add_split_tile(const Tile& tile, const AttentionShape& shape, float share) {
  const int32_t num_splits = tile.split_end - tile.split_begin, heads = narrow(shape.num_kv_heads);
  const float split_cost = tile.cost / static_cast<float>(num_splits);
  const bool together = tile.has_few_rows && split_cost * static_cast<float>(heads) < share * kPieceOfShare;
  const int32_t heads_at_once = together ? heads : 1;
  const float splits_of_piece = share * kPieceOfShare / (split_cost * static_cast<float>(heads_at_once));
  const int32_t splits_per_task = std::max(1, static_cast<int32_t>(splits_of_piece));
  const int64_t rows = (tile.token_end - tile.token_begin) * shape.num_heads;
  const int64_t split_floats = rows * attention_partial_floats(shape.head_dim);
  for (int32_t head = 0; head < heads; ++head) {
    merges_.push_back({tile.token_begin, tile.token_end, head, num_splits, partial_floats_});
  }
  for (int32_t begin = tile.split_begin; begin < tile.split_end; begin += splits_per_task) {
    const int32_t end = std::min(begin + splits_per_task, tile.split_end);
    add_tasks(tile, begin, end, heads, heads_at_once, partial_floats_);
    partial_floats_ += (end - begin) * split_floats;
  }
}

void AttentionPlan::add_task(const AttentionTask& task, float cost) {
  unordered_tasks_.push_back(task);
  costs_.push_back(cost);
}

// Longest first, so that the last ones, which threads wait for, are short. A quarter of a power of two is order enough:
// a counting sort over a float's exponent and first two bits of mantissa.
void AttentionPlan::order_tasks() {
  const auto bucket_of = [](float cost) {
    uint32_t bits;
    std::memcpy(&bits, &cost, sizeof(bits));
    return 1023 - (bits >> 21);  // positive numbers only: the sign bit is 0
  };
  std::array<int32_t, 1025> starts{};
  for (const float cost : costs_) ++starts[bucket_of(cost) + 1];
  for (size_t bucket = 1; bucket < starts.size(); ++bucket) starts[bucket] += starts[bucket - 1];
  tasks_.resize(unordered_tasks_.size());
  for (size_t i = 0; i < costs_.size(); ++i) {
    tasks_[static_cast<size_t>(starts[bucket_of(costs_[i])]++)] = unordered_tasks_[i];
  }
}

}  // namespace pagewire

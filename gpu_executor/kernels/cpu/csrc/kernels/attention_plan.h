// How a step's attention is cut into tasks: made once per step, used by all layers of the same shape and window.
//
// A task is a tile of one request's query tokens against a range of key splits, for some of its KV heads. A tile whose
// keys all lie in one task is written to the output at once. A long one, which would hold the other threads up, is cut
// at split borders: each split then leaves a partial result, and a merge adds them up in order. Either way a row goes
// through the same operations, so that the cut never changes a bit.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace pagewire {

struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t sliding_window;  // as in AttentionStep
};

class AttentionPlan {
 public:
  // query_start and seq_lens are AttentionStep's. Buffers are kept from one step to the next.
  void build(const AttentionShape& shape, int64_t num_reqs, const int32_t* query_start, const int32_t* seq_lens,
             int64_t num_threads);

  // In any order on any threads; the long ones come first. Then, after a barrier, the merges.
  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  const std::vector<AttentionMerge>& merges() const { return merges_; }
  int64_t partial_floats() const { return partial_floats_; }  // room that AttentionStep's partials need

 private:
  struct Tile {
    int32_t request, token_begin, token_end, split_begin, split_end;
    float cost;     // of one KV head
    bool has_few_rows;
  };
  void cut_tokens(const AttentionShape& shape, int64_t num_reqs, const int32_t* query_start, const int32_t* seq_lens);
  void add_tasks(const Tile& tile, int32_t split_begin, int32_t split_end, int32_t num_kv_heads, int32_t heads_at_once,
                 int64_t partial);
  void add_split_tile(const Tile& tile, const AttentionShape& shape, float share);
  void add_task(const AttentionTask& task, float cost);
  void order_tasks();

  std::vector<Tile> tiles_;
  std::vector<AttentionTask> tasks_, unordered_tasks_;
  std::vector<float> costs_;  // of unordered_tasks_
  std::vector<AttentionMerge> merges_;
  int64_t partial_floats_ = 0;
};

}  // namespace pagewire

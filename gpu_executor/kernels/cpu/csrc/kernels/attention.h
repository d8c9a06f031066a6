// Paged attention: what a step attends to, and how it is cut into tasks. See attention_plan.cpp for the cut,
// attention.inl for the arithmetic.
//
// Layout of the cache, for each layer (KV dtype):
//   key    [num_blocks, num_kv_heads, head_dim, block_size]: a block's keys lie side by side, channel by channel, so that
//          a vector holds one channel of neighbouring keys, and a score is summed in one lane, in channel order,
//          for a decode row and in a tile of prefill rows alike.
//   value  [num_blocks, num_kv_heads, block_size, head_dim].
//
// A row (token, head) meets its keys in steps of kKeyStep, and the steps in splits of kKeySplit, both at absolute
// positions of its request: the borders are the same whatever the batch, the chunk and the number of threads. Each split
// gives (largest score, sum of weights, weighted values); splits are merged in order.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"

namespace pagewire {

constexpr int64_t kKeyStep = 64;
constexpr int64_t kKeySplit = 512;

struct AttentionStep {  // one layer of one step; all pointers are the caller's
  const float* query;   // [num_tokens, num_heads * head_dim] rows at query_stride, rotated
  int64_t query_stride;
  float* output;        // [num_tokens, num_heads * head_dim] rows at output_stride
  int64_t output_stride;
  const void* key_cache;
  const void* value_cache;
  ElementType kv_type;
  int64_t num_heads, num_kv_heads, head_dim, block_size;
  float scale;
  int64_t sliding_window;        // keys a token sees, its own included; 0: all before it
  const int32_t* block_tables;   // [num_reqs, max_blocks]
  int64_t max_blocks;
  const int32_t* query_start;    // [num_reqs + 1]
  const int32_t* seq_lens;       // [num_reqs], this step's tokens included
  float* partials;               // room for what splits give until they are merged, see AttentionPlan
};

struct AttentionTask;  // a range of one request's query tokens, one KV head, a range of splits (attention_plan.h)

}  // namespace pagewire

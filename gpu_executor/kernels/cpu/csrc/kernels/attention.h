// Paged attention: what a step attends to, and how it is cut into tasks. See attention_plan.cpp for the cut,
// attention.inl for the arithmetic, store_kv.inl for what writes the cache.
//
// Layout of the cache, for each layer (KV dtype):
//   key    [num_blocks, num_kv_heads, head_dim, block_size]: a block's keys lie side by side, channel by channel, so
//          that a vector holds one channel of neighbouring keys, and a score is summed in one lane, in channel order,
//          for a decode row and in a tile of prefill rows alike.
//   value  [num_blocks, num_kv_heads, block_size, head_dim].
//
// A row (token, head) meets its keys in steps of kKeyStep, and the steps in splits of kKeySplit, both at absolute
// positions of its request: the borders are the same whatever the batch, the chunk and the number of threads. Each
// split gives (largest score, sum of weights, weighted values); splits are merged in order.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace pagewire {

constexpr int64_t kKeyStep = 64;
constexpr int64_t kKeySplit = 256;

// Rows of a tile, about: what a step of keys, once converted to floats, is used for.
constexpr int64_t kTileRows = 96;
// A KV head with no more rows than this in a tile, as in decoding, may read keys where they lie, and a task may take
// several such heads through the cache side by side.
constexpr int64_t kFewRows = 8;

struct AttentionStep {  // one layer of one step; all pointers are the caller's
  const float* query;   // [num_tokens, num_heads * head_dim] rows at query_stride, rotated
  int64_t query_stride;
  float* output;        // [num_tokens, num_heads * head_dim] rows at output_stride
  int64_t output_stride;
  const void* key_cache;
  const void* value_cache;
  ElementType kv_type;
  // Stored keys are multiplied by it when they are read, and divided by it when they are stored; values by the other.
  // A key's goes into the query's scale, a value's is multiplied into the output: neither into what is loaded.
  float key_scale, value_scale;
  int64_t num_heads, num_kv_heads, head_dim, block_size;
  float scale;                   // of scores
  float soft_cap;                // scaled scores become soft_cap * tanh(score / soft_cap); 0: they stay
  int64_t sliding_window;        // keys a token sees, its own included; 0: all before it
  const int32_t* block_tables;   // [num_reqs, max_blocks]
  int64_t max_blocks;
  const int32_t* query_start;    // [num_reqs + 1]
  const int32_t* seq_lens;       // [num_reqs], this step's tokens included
  float* partials;               // room for what splits give until they are merged, see AttentionPlan
};

// A tile of one request's query tokens against a range of splits, for some of its KV heads. Cut by attention_plan.h.
struct AttentionTask {
  int32_t request;
  int32_t token_begin, token_end;      // query tokens, counted as in AttentionStep's query
  int32_t kv_head_begin, kv_head_end;
  int32_t split_begin, split_end;      // of kKeySplit keys each, from the request's first token
  int64_t partial;                     // where its first split's results go in AttentionStep's partials, those of all
                                       // KV heads; -1: nowhere, it writes the output
};

// What puts the results of a tile's splits together, for one KV head.
struct AttentionMerge {
  int32_t token_begin, token_end;
  int32_t kv_head;
  int32_t num_splits;
  int64_t partial;  // where the results of the tile's first split are, those of all KV heads
};

// Query tokens that a tile has room for.
inline int64_t attention_tile_tokens(int64_t num_heads, int64_t num_kv_heads) {
  const int64_t tokens = kTileRows * num_kv_heads / num_heads;
  return tokens > 0 ? tokens : 1;
}
// Floats of one row's partial result of one split: largest score, sum of weights, and from kPartialHead on the values.
constexpr int64_t kPartialHead = 16;
inline int64_t attention_partial_floats(int64_t head_dim) { return kPartialHead + round_up(head_dim, 16); }
// Work space of attention_task: the calling thread's own, 64-byte aligned. One step of keys and of values as floats; a
// row's query, two sets of weighted values, scores of a step and a few numbers of its own.
inline int64_t attention_work_bytes(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t channels = round_up(head_dim, 16);
  const int64_t tile_rows = attention_tile_tokens(num_heads, num_kv_heads) * (num_heads / num_kv_heads);
  const int64_t rows = tile_rows > kFewRows * num_kv_heads ? tile_rows : kFewRows * num_kv_heads;
  return 4 * (2 * kKeyStep * channels + rows * (3 * channels + kKeyStep) + round_up(rows, 16) * 8);
}

}  // namespace pagewire

// What a native call is given: views of the caller's memory. Python mirrors the structs of this file (see
// native_library.py), which is why they hold nothing but pointers and fixed-size numbers.
#pragma once

#include <cstdint>

#include "../kernels/kernel_table.h"

namespace pagewire {

// A weight: the rows of each part lie below those of the one before.
struct LinearView {
  const PackedMatrix* parts;
  int64_t num_parts;
  const int32_t* permutation;  // [in_features]: column j multiplies input channel permutation[j]; null: channel j
};

// What a feed-forward block puts its gate through.
enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// One expert of a mixture, as a feed-forward block.
struct ExpertView {
  LinearView gate_up;
  LinearView down;
};

// A mixture of experts: each token is computed by a few of them, whose outputs are weighed and added.
struct MixtureView {
  LinearView router;          // one row an expert, of all experts
  const ExpertView* experts;  // those that are here, in order
  int64_t num_experts;        // that are here
  int64_t first_expert;       // which of all experts the first of them is
  int64_t num_chosen;         // experts that compute a token
  int32_t is_renormalized;    // a token's weights are divided by their sum
  int32_t padding;
};

// One decoder layer. Norm weights and rotary tables are fp32.
struct LayerView {
  LinearView qkv;      // num_heads + 2 * num_kv_heads heads of head_dim rows: queries, keys, values
  LinearView output;
  LinearView gate_up;  // 2 * intermediate size rows, the gate first; of a mixture no parts, down alike
  LinearView down;
  const MixtureView* mixture;   // in place of the feed-forward block; null: none
  const float* attention_norm;  // [hidden size]
  const float* mlp_norm;        // [hidden size]
  const float* attention_post_norm;  // [hidden size], of the block's output; null: none. mlp_post_norm alike
  const float* mlp_post_norm;
  const float* query_norm;      // [head_dim], or null; key_norm alike
  const float* key_norm;
  const float* rotary_cos;      // [positions, rotary_dim / 2]; rotary_sin alike
  const float* rotary_sin;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  int64_t sliding_window;       // 0: none
  float attention_norm_eps;     // of the query and key norms and the block's post-norm too
  float mlp_norm_eps;
  float scale;                  // of attention scores
  float soft_cap;               // of the scaled scores; 0: none
  float attention_output_scale; // of the block's output, after its post-norm; mlp_output_scale alike
  float mlp_output_scale;
  Activation activation;
  int32_t padding;
};

// A decoder: what lies between a token's id and the row that the output layer reads; of several stages, one stage's
// part.
struct DecoderView {
  LinearView embedding;     // rows of hidden size channels, one a token id from first_token_id on; no parts: other
                            // ranks have them all, or a stage before this one has the embedding
  const LayerView* layers;
  int64_t num_layers;
  const float* norm;        // [hidden size], after the last layer; null: a stage after this one has it
  float norm_eps;
  float embedding_scale;    // of the embedding's rows
  int64_t first_token_id;
};

// The paged memory of one layer; see kernels/attention.h for the order.
struct CacheView {
  void* key;
  void* value;
  int32_t type;       // ElementType
  float key_scale;    // as AttentionStep's; value_scale alike
  float value_scale;
  int32_t padding;
  int64_t block_size;
};

// A product of a layer that adapters may change, in the order of `AdapterView::changes`.
enum class Product : int32_t { kQkv = 0, kOutput = 1, kGateUp = 2, kDown = 3 };
constexpr int64_t kNumProducts = 4;

// What an adapter adds to a product: (x A^T) B^T.
struct LowRankView {
  LinearView a;  // [ranks, input channels]; no parts: nothing is added
  LinearView b;  // [output channels, ranks]
};

// An adapter and the tokens of a step that it is for.
struct AdapterView {
  const LowRankView* changes;  // kNumProducts a layer
  const int64_t* tokens;       // [num_tokens], ascending; null: all of the step
  int64_t num_tokens;
};

// The scheduled tokens of a step.
struct StepView {
  int64_t num_tokens;
  int64_t num_reqs;
  int64_t max_blocks;
  const int64_t* positions;       // [num_tokens]
  const int64_t* slot_mapping;    // [num_tokens], -1: not stored
  const int32_t* block_tables;    // [num_reqs, max_blocks]
  const int32_t* query_start;     // [num_reqs + 1]
  const int32_t* seq_lens;        // [num_reqs]
  const AdapterView* adapters;    // [num_adapters]; no token is in two of them
  int64_t num_adapters;
};

}  // namespace pagewire

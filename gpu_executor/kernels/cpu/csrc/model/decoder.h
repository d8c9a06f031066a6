// A model from token ids to the rows that its output layer reads, run over a step's tokens in one parallel region.
//
// The phases of each layer, each of which ends when all its tiles are done:
//   norm the rows and bring them into the form that the product reads -> query, key, value product
//   head norms, rotation, KV store -> attention -> merge of long contexts -> output product, added to the residual
//   norm the rows -> gate and up product, gating in the same tile -> down product, added to the residual
// The first layer looks the rows up besides; after the last one they are normed once more. A block whose output is
// normed or scaled before it joins the residual leaves it in a buffer, and the phase that norms the rows next adds it.
// So does one whose last product is a part of the ranks' sum: the product goes into this rank's area of their common
// memory, all meet, and each adds up the areas, rank 0 first.
//
// The results have the bits that the small ops give one after the other: a phase only saves the way through memory.
#pragma once

#include <cstdint>
#include <vector>

#include "../ranks/shared_ranks.h"
#include "../runtime/runtime.h"
#include "attention_phase.h"
#include "changes.h"
#include "linear.h"
#include "step.h"

namespace pagewire {

class Decoder {
 public:
  // Keeps views of the weights, which must live as long as it does. ranks: those that have the other parts of the
  // layers, and run the same steps in the same order; null: the layers are whole.
  Decoder(Runtime& runtime, const DecoderView& view, SharedRanks* ranks);

  // ids [num_tokens], each below the vocabulary's size. stream [num_tokens, hidden size]: what the stage before this
  // one gave, or null: the stream begins with the embedding. hidden, of the same shape: the normed rows, or without a
  // norm the stream. caches: one a layer.
  void run(const StepView& step, const CacheView* caches, const int64_t* ids, const float* stream, float* hidden);

  // Bytes of the work space as it has grown to.
  int64_t work_bytes() const;

 private:
  struct FeedForward {
    LinearWeight gate_up, down;
    GateRow gate_row;
    bool gates_in_tile;  // gate and up channels begin at panels' borders: one tile computes both

    FeedForward(const LinearView& gate_up_view, const LinearView& down_view, GateRow row)
        : gate_up(gate_up_view),
          down(down_view),
          gate_row(row),
          gates_in_tile(gate_up.has_whole_panels() && down.in_features() % kPanel == 0) {}
    int64_t gated_stride() const { return gates_in_tile ? down.in_features() : gate_up.out_features(); }
  };
  struct Layer {
    LayerView view;
    LinearWeight qkv, output;
    std::vector<FeedForward> feed_forwards;  // the one, or those of the experts that are here
    LinearWeight router;                     // of a mixture
  };
  // How a block's output joins the residual stream.
  struct BlockEnd {
    const float* post_norm;  // null: none
    float eps;               // of it
    float scale;             // after it
    bool is_mixture;         // experts' outputs add up apart from the stream

    bool is_plain() const { return post_norm == nullptr && scale == 1.0f && !is_mixture; }
  };
  static BlockEnd attention_end(const LayerView& layer);
  static BlockEnd mlp_end(const LayerView& layer);
  // What a pass over one step needs besides; the same for all threads.
  struct Pass {
    const StepView& step;
    const CacheView* caches;
    const int64_t* ids;
    const float* stream;
    float* hidden;
    float* residual;  // [num_tokens, hidden size]: the stream that each block adds to
    std::vector<const AttentionPlan*> plans;  // one a layer
    float* partials;
    bool has_changes;  // by adapters: products' inputs are kept as floats, and blocks' outputs apart from the stream
  };

  Pass prepare(const StepView& step, const CacheView* caches, const int64_t* ids, const float* stream, float* hidden);
  void reserve(int64_t num_tokens);
  void attention_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const;
  // decoder_stream.cpp: how the stream begins, what each block adds to it, and how it ends.
  void sum_embeddings(Team& team, PhaseClock& clock, const Pass& pass) const;
  void begin_stream(const Pass& pass, int64_t row, float* scratch, float* stream) const;
  void multiply_last(Team& team, PhaseClock& clock, const Pass& pass, const LinearWeight& weight,
                     const InputView& input, const BlockEnd& end, PhaseKind kind, size_t index, Product product) const;
  void sum_block_output(Team& team, PhaseClock& clock, int64_t num_tokens) const;
  void join_stream(const Pass& pass, const BlockEnd& end, int64_t row, float* stream) const;
  void end_stream(Team& team, PhaseClock& clock, const Pass& pass) const;
  bool is_added_as_it_comes(const BlockEnd& end) const { return ranks_ == nullptr && end.is_plain(); }
  bool is_added_as_it_comes(const Pass& pass, const BlockEnd& end) const {
    return !pass.has_changes && is_added_as_it_comes(end);
  }
  void reserve_changes(int64_t num_tokens);
  template <typename Fill>
  void sum_over_ranks(Team& team, PhaseClock& clock, int64_t num_rows, float* sums, Fill&& fill) const;
  void rotate_and_store(const Layer& layer, const AttentionStep& attention, const StepView& step, int64_t token) const;
  // decoder_mlp.cpp: feed-forward blocks and mixtures of them.
  void reserve_feed_forward(const FeedForward& block, int64_t num_rows);
  void reserve_mixture(const Layer& layer, int64_t num_tokens);
  void mlp_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const;
  void gate_with_changes(Team& team, PhaseClock& clock, const FeedForward& block, int64_t num_rows,
                         int64_t index) const;
  void multiply_gate_up(Team& team, PhaseClock& clock, const FeedForward& block, int64_t num_rows) const;
  // Both leave the input of down, or, where that has another order of channels, rows of gate_up_ at gated_stride().
  void gate(Team& team, const FeedForward& block, int64_t num_rows) const;
  void gate_in_tile(Team& team, const FeedForward& block, int64_t num_rows) const;
  void mixture_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const;
  void choose(Team& team, const Layer& layer, int64_t num_tokens) const;
  void order_by_expert(const Layer& layer, int64_t num_tokens, int32_t* first_pairs) const;
  void run_expert(Team& team, PhaseClock& clock, const FeedForward& block, int64_t first, int64_t end) const;

  Runtime& runtime_;
  SharedRanks* ranks_;
  LinearWeight embedding_;
  std::vector<Layer> layers_;
  const float* norm_;
  float norm_eps_;
  float embedding_scale_;
  int64_t first_token_id_;
  int64_t hidden_size_ = 0;
  int64_t most_experts_ = 0;  // of a layer, that are here
  int64_t most_tokens_ = 0;   // that the buffers have room for
  AttentionPlans plans_;
  StepChanges changes_;
  // Input rows of each product; a buffer of each thread; rows of query, key and value; attention's rows; gate and up;
  // the output of a block that is not added as it comes.
  InputRows qkv_input_, output_input_, router_input_, gate_up_input_, down_input_;
  std::vector<AlignedBuffer> work_, tile_;
  AlignedBuffer residual_, qkv_, context_, gate_up_, block_output_;
  // Of mixtures: normed rows; logits of all experts; each token's experts and their weights; the same by expert, and
  // where each expert's begin, layer by layer; the rows of one expert's output.
  AlignedBuffer normed_, router_logits_, expert_ids_, expert_weights_, pair_tokens_, pair_weights_, first_pairs_,
      expert_output_;
};

}  // namespace pagewire

// All decoder layers of a model, run over a step's tokens in one parallel region.
//
// A layer's phases, each of which ends when all its tiles are done:
//   norm the rows and bring them into the form that the product reads -> query, key, value product
//   head norms, rotation, KV store -> attention -> merge of long contexts -> output product, added to the residual
//   norm the rows -> gate and up product, SiLU gating in the same tile -> down product, added to the residual
//
// The results have the bits that the small ops give one after the other: a phase only saves the way through memory.
#pragma once

#include <cstdint>
#include <vector>

#include "../runtime/runtime.h"
#include "attention_phase.h"
#include "linear.h"
#include "step.h"

namespace pagewire {

class DecoderStack {
 public:
  // Keeps views of the weights, which must live as long as it does.
  DecoderStack(Runtime& runtime, const LayerView* layers, int64_t num_layers);

  // input [num_tokens, hidden size]: what goes into the first layer. hidden, alike: what the last block gives, not yet
  // added to the stream; residual: the stream. caches: one a layer.
  void run(const StepView& step, const CacheView* caches, const float* input, float* hidden, float* residual);

  // Bytes of the work space as it has grown to.
  int64_t work_bytes() const;

 private:
  struct Layer {
    LayerView view;
    LinearWeight qkv, output, gate_up, down;
    bool gates_in_tile;  // gate and up channels begin at panels' borders: one tile computes both
  };
  // What a pass over one step needs besides; the same for all threads.
  struct Pass {
    const StepView& step;
    const CacheView* caches;
    const float* input;
    float* hidden;
    float* residual;
    std::vector<const AttentionPlan*> plans;  // one a layer
    float* partials;
  };

  Pass prepare(const StepView& step, const CacheView* caches, const float* input, float* hidden, float* residual);
  void attention_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const;
  void mlp_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const;
  void rotate_and_store(const Layer& layer, const AttentionStep& attention, const StepView& step, int64_t token) const;
  void gate(Team& team, const Layer& layer, int64_t num_tokens) const;
  void gate_in_tile(Team& team, const Layer& layer, int64_t num_tokens) const;

  Runtime& runtime_;
  std::vector<Layer> layers_;
  int64_t hidden_size_ = 0;
  AttentionPlans plans_;
  // Input rows of each product; a buffer of each thread; rows of query, key and value; attention's rows; gate and up.
  InputRows qkv_input_, output_input_, gate_up_input_, down_input_;
  std::vector<AlignedBuffer> work_, tile_;
  AlignedBuffer qkv_, context_, gate_up_;
};

}  // namespace pagewire

// What follows attention in a layer: one feed-forward block, or a mixture of experts.
#include <algorithm>
#include <cstring>

#include "decoder.h"
#include "expert_choice.h"

namespace pagewire {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
constexpr auto kIndex = static_cast<int64_t>(sizeof(int32_t));

// Channels of gate and up that one tile computes, for tiles of a quantization group each at least.
Tiling gate_tiling(const LinearWeight& gate_up, int64_t num_rows, int num_threads) {
  const int64_t num_panels = divide_up(gate_up.out_features() / 2, kPanel);
  Tiling tiling = choose_tiling(num_rows, num_panels, 2 * gate_up.parts().front().panel_bytes(), num_threads);
  tiling.panels = round_up(tiling.panels, kGroup / kPanel);
  return tiling;
}

}  // namespace

void Decoder::reserve_feed_forward(const FeedForward& block, int64_t num_rows) {
  gate_up_input_.reserve(block.gate_up, num_rows);
  down_input_.reserve(block.down, num_rows);
  if (block.gates_in_tile) {
    const Tiling tiling = gate_tiling(block.gate_up, num_rows, runtime_.pool.num_threads());
    for (AlignedBuffer& tile : tile_) tile.reserve(2 * tiling.rows * tiling.panels * kPanel * kFloat);
    if (block.down.is_permuted()) gate_up_.reserve(num_rows * block.down.in_features() * kFloat);
  } else {
    gate_up_.reserve(num_rows * block.gate_up.out_features() * kFloat);
    for (AlignedBuffer& tile : tile_) tile.reserve(block.down.in_features() * kFloat);
  }
}

void Decoder::mlp_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const {
  const Layer& layer = layers_[index];
  const LayerView& view = layer.view;
  const KernelTable& kernels = runtime_.kernels;
  const FeedForward& block = layer.feed_forwards.front();
  const int64_t num_tokens = pass.step.num_tokens;

  const InputView input = gate_up_input_.view(block.gate_up);
  for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* stream = pass.residual + row * hidden_size_;
      join_stream(pass, attention_end(view), row, stream);
      float* normed = pass.has_changes ? normed_.as<float>() + row * hidden_size_
                                       : input.place_for(row, tile_[team.thread()].as<float>());
      kernels.rms_norm_row(stream, view.mlp_norm, hidden_size_, view.mlp_norm_eps, normed);
      input.write(kernels, row, 0, hidden_size_, normed);
    }
  });
  clock.end_phase(PhaseKind::kNorm);

  if (pass.has_changes) {
    gate_with_changes(team, clock, block, num_tokens, static_cast<int64_t>(index));
  } else {
    multiply_gate_up(team, clock, block, num_tokens);
  }
  multiply_last(team, clock, pass, block.down, down_input_.view(block.down), mlp_end(view), PhaseKind::kDown, index,
                Product::kDown);
}

void Decoder::multiply_gate_up(Team& team, PhaseClock& clock, const FeedForward& block, int64_t num_rows) const {
  if (block.gates_in_tile) {
    gate_in_tile(team, block, num_rows);
  } else {
    gate(team, block, num_rows);
  }
  if (block.down.is_permuted()) {
    const int64_t size = block.down.in_features();
    write_rows(team, runtime_.kernels, down_input_.view(block.down), num_rows, size, gate_up_.as<float>(),
               block.gated_stride());
  }
  clock.end_phase(PhaseKind::kGateUp);
}

// The same of a step with adapters, which change the products before and after the gating.
void Decoder::gate_with_changes(Team& team, PhaseClock& clock, const FeedForward& block, int64_t num_rows,
                                int64_t index) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t size = block.down.in_features();
  float* gates = gate_up_.as<float>();
  multiply(team, kernels, block.gate_up, gate_up_input_.view(block.gate_up).rows(), num_rows, {gates, 2 * size, false},
           work_);
  changes_.compute(team, kernels, index, Product::kGateUp, normed_.as<float>(), hidden_size_, work_);
  changes_.add(team, kernels, index, Product::kGateUp, 0, num_rows, gates, 2 * size);
  for_row_pieces(team, num_rows, size, [&](int64_t row, int64_t begin, int64_t end) {
    float* gate = gates + row * 2 * size + begin;
    block.gate_row(gate, gate + size, end - begin, gate);
  });
  write_rows(team, kernels, down_input_.view(block.down), num_rows, size, gates, 2 * size);
  clock.end_phase(PhaseKind::kGateUp);
  changes_.compute(team, kernels, index, Product::kDown, gates, 2 * size, work_);
}

void Decoder::gate_in_tile(Team& team, const FeedForward& block, int64_t num_rows) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t size = block.down.in_features();
  const Tiling tiling = gate_tiling(block.gate_up, num_rows, team.num_threads());
  const int64_t row_tiles = divide_up(num_rows, tiling.rows), width = tiling.panels * kPanel;
  const ActivationRows input = gate_up_input_.view(block.gate_up).rows();
  const InputView output = down_input_.view(block.down);
  const bool is_permuted = block.down.is_permuted();
  float* gates = tile_[team.thread()].as<float>();
  float* ups = gates + tiling.rows * width;
  void* work = work_[team.thread()].as<void>();
  team.for_tiles(row_tiles * divide_up(size, width), [&](int64_t index) {
    const int64_t row = index % row_tiles * tiling.rows, channel = index / row_tiles * width;
    const int64_t row_end = std::min(row + tiling.rows, num_rows), end = std::min(channel + width, size);
    multiply_channels(kernels, block.gate_up, channel, end, input, row, row_end,
                      {gates - row * width - channel, width, false}, work);
    multiply_channels(kernels, block.gate_up, size + channel, size + end, input, row, row_end,
                      {ups - row * width - size - channel, width, false}, work);
    for (int64_t r = row; r < row_end; ++r) {
      float* gate = gates + (r - row) * width;
      float* out = is_permuted ? gate_up_.as<float>() + r * block.gated_stride() + channel : gate;
      block.gate_row(gate, ups + (r - row) * width, end - channel, out);
      if (!is_permuted) output.write_columns(kernels, r, channel, end - channel, out);
    }
  });
}

void Decoder::gate(Team& team, const FeedForward& block, int64_t num_rows) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t size = block.down.in_features();
  multiply(team, kernels, block.gate_up, gate_up_input_.view(block.gate_up).rows(), num_rows,
           {gate_up_.as<float>(), 2 * size, false}, work_);
  const InputView output = down_input_.view(block.down);
  const bool is_permuted = block.down.is_permuted();
  for_row_pieces(team, num_rows, size, [&](int64_t row, int64_t begin, int64_t end) {
    float* gate = gate_up_.as<float>() + row * block.gated_stride() + begin;
    float* out = is_permuted ? gate : output.place_for(row, tile_[team.thread()].as<float>()) + begin;
    block.gate_row(gate, gate + size, end - begin, out);
    if (!is_permuted) output.write_columns(kernels, row, begin, end - begin, out);
  });
}

void Decoder::reserve_mixture(const Layer& layer, int64_t num_tokens) {
  const int64_t num_pairs = num_tokens * layer.view.mixture->num_chosen;
  router_input_.reserve(layer.router, num_tokens);
  for (AlignedBuffer* rows : {&normed_, &expert_output_}) rows->reserve(num_tokens * hidden_size_ * kFloat);
  router_logits_.reserve(num_tokens * layer.router.out_features() * kFloat);
  for (AlignedBuffer* pairs : {&expert_ids_, &pair_tokens_}) pairs->reserve(num_pairs * kIndex);
  for (AlignedBuffer* pairs : {&expert_weights_, &pair_weights_}) pairs->reserve(num_pairs * kFloat);
  first_pairs_.reserve(static_cast<int64_t>(layers_.size()) * (most_experts_ + 1) * kIndex);
}

void Decoder::mixture_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const {
  const Layer& layer = layers_[index];
  const KernelTable& kernels = runtime_.kernels;
  const int64_t num_tokens = pass.step.num_tokens;
  const InputView input = router_input_.view(layer.router);
  for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* stream = pass.residual + row * hidden_size_;
      float* normed = normed_.as<float>() + row * hidden_size_;
      join_stream(pass, attention_end(layer.view), row, stream);
      kernels.rms_norm_row(stream, layer.view.mlp_norm, hidden_size_, layer.view.mlp_norm_eps, normed);
      input.write(kernels, row, 0, hidden_size_, normed);
    }
  });
  clock.end_phase(PhaseKind::kNorm);

  const int64_t num_experts = layer.router.out_features();
  multiply(team, kernels, layer.router, input.rows(), num_tokens, {router_logits_.as<float>(), num_experts, false},
           work_);
  choose(team, layer, num_tokens);
  // Each layer has numbers of its own: a thread that comes late still has to find those of the layer that it is in.
  int32_t* first_pairs = first_pairs_.as<int32_t>() + static_cast<int64_t>(index) * (most_experts_ + 1);
  team.single([&] { order_by_expert(layer, num_tokens, first_pairs); });
  clock.end_phase(PhaseKind::kRouter);

  for (size_t expert = 0; expert < layer.feed_forwards.size(); ++expert) {
    run_expert(team, clock, layer.feed_forwards[expert], first_pairs[expert], first_pairs[expert + 1]);
  }
  if (ranks_ != nullptr) sum_block_output(team, clock, num_tokens);
}

// A phase: each token's experts and their weights; what they give adds up in block_output_, from zero.
void Decoder::choose(Team& team, const Layer& layer, int64_t num_tokens) const {
  const MixtureView& mixture = *layer.view.mixture;
  const RouterShape shape{layer.router.out_features(), mixture.num_chosen, mixture.is_renormalized != 0};
  for_rows(team, num_tokens, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      float* logits = router_logits_.as<float>() + row * shape.num_experts;
      choose_experts(runtime_.kernels, shape, logits, logits, expert_ids_.as<int32_t>() + row * shape.num_chosen,
                     expert_weights_.as<float>() + row * shape.num_chosen);
      std::memset(block_output_.as<float>() + row * hidden_size_, 0, static_cast<size_t>(hidden_size_ * kFloat));
    }
  });
}

// Tokens and weights of the pairs of a token and an expert that is here, by expert, tokens in order; those of expert e
// are [first_pairs[e], first_pairs[e + 1]).
void Decoder::order_by_expert(const Layer& layer, int64_t num_tokens, int32_t* first_pairs) const {
  const MixtureView& mixture = *layer.view.mixture;
  const int64_t num_here = mixture.num_experts, num_pairs = num_tokens * mixture.num_chosen;
  const int32_t* ids = expert_ids_.as<int32_t>();
  const auto here = [&](int64_t pair) { return ids[pair] - mixture.first_expert; };
  std::fill(first_pairs, first_pairs + num_here + 1, 0);
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    if (here(pair) >= 0 && here(pair) < num_here) ++first_pairs[here(pair) + 1];
  }
  for (int64_t expert = 0; expert < num_here; ++expert) first_pairs[expert + 1] += first_pairs[expert];
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    if (here(pair) < 0 || here(pair) >= num_here) continue;
    const int32_t place = first_pairs[here(pair)]++;
    pair_tokens_.as<int32_t>()[place] = static_cast<int32_t>(pair / mixture.num_chosen);
    pair_weights_.as<float>()[place] = expert_weights_.as<float>()[pair];
  }
  // Each has moved to where the next one begins.
  std::copy_backward(first_pairs, first_pairs + num_here, first_pairs + num_here + 1);
  first_pairs[0] = 0;
}

// Phases: an expert computes its tokens, and what it gives them is weighed and added. A token has one pair an expert.
void Decoder::run_expert(Team& team, PhaseClock& clock, const FeedForward& block, int64_t first, int64_t end) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t num_rows = end - first;
  if (num_rows == 0) return;
  const int32_t* tokens = pair_tokens_.as<int32_t>() + first;
  const InputView input = gate_up_input_.view(block.gate_up);
  for_rows(team, num_rows, [&](int64_t row, int64_t row_end) {
    for (; row < row_end; ++row) {
      input.write(kernels, row, 0, hidden_size_, normed_.as<float>() + tokens[row] * hidden_size_);
    }
  });
  multiply_gate_up(team, clock, block, num_rows);
  float* outputs = expert_output_.as<float>();
  multiply(team, kernels, block.down, down_input_.view(block.down).rows(), num_rows, {outputs, hidden_size_, false},
           work_);
  for_rows(team, num_rows, [&](int64_t row, int64_t row_end) {
    for (; row < row_end; ++row) {
      float* output = outputs + row * hidden_size_;
      kernels.scale_row(output, hidden_size_, pair_weights_.as<float>()[first + row], output);
      kernels.add_row(output, hidden_size_, block_output_.as<float>() + tokens[row] * hidden_size_);
    }
  });
  clock.end_phase(PhaseKind::kDown);
}

}  // namespace pagewire

#include "decoder.h"

#include <algorithm>
#include <cstring>

namespace pagewire {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

AttentionShape attention_shape(const LayerView& layer) {
  return {layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.sliding_window};
}

int64_t qkv_size(const LayerView& layer) { return (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim; }

int64_t query_size(const LayerView& layer) { return layer.num_heads * layer.head_dim; }

GateRow choose_gate_row(const KernelTable& kernels, Activation activation) {
  return activation == Activation::kGeluTanh ? kernels.gelu_tanh_and_mul_row : kernels.silu_and_mul_row;
}

// Channels of gate and up that one tile computes, for tiles of a quantization group each at least.
Tiling gate_tiling(const LinearWeight& gate_up, int64_t num_rows, int num_threads) {
  const int64_t num_panels = divide_up(gate_up.out_features() / 2, kPanel);
  Tiling tiling = choose_tiling(num_rows, num_panels, 2 * gate_up.parts().front().panel_bytes(), num_threads);
  tiling.panels = round_up(tiling.panels, kGroup / kPanel);
  return tiling;
}

}  // namespace

Decoder::Decoder(Runtime& runtime, const DecoderView& decoder, SharedRanks* ranks)
    : runtime_(runtime),
      ranks_(ranks),
      embedding_(decoder.embedding),
      norm_(decoder.norm),
      norm_eps_(decoder.norm_eps),
      embedding_scale_(decoder.embedding_scale),
      first_token_id_(decoder.first_token_id),
      work_(static_cast<size_t>(runtime.pool.num_threads())),
      tile_(static_cast<size_t>(runtime.pool.num_threads())) {
  for (int64_t i = 0; i < decoder.num_layers; ++i) {
    const LayerView& view = decoder.layers[i];
    Layer layer{view,
                LinearWeight(view.qkv),
                LinearWeight(view.output),
                LinearWeight(view.gate_up),
                LinearWeight(view.down),
                choose_gate_row(runtime.kernels, view.activation),
                false};
    layer.gates_in_tile = layer.gate_up.has_whole_panels() && layer.down.in_features() % kPanel == 0;
    layers_.push_back(std::move(layer));
  }
  hidden_size_ = layers_.front().qkv.in_features();
  int64_t work_bytes = 0;
  for (const Layer& layer : layers_) {
    const LayerView& view = layer.view;
    work_bytes = std::max(work_bytes, attention_work_bytes(view.num_heads, view.num_kv_heads, view.head_dim));
    for (const LinearWeight* weight : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      work_bytes = std::max(work_bytes, weight->work_bytes(runtime.kernels));
    }
  }
  for (AlignedBuffer& work : work_) work.reserve(work_bytes);
}

Decoder::BlockEnd Decoder::attention_end(const LayerView& layer) {
  return {layer.attention_post_norm, layer.attention_norm_eps, layer.attention_output_scale};
}

Decoder::BlockEnd Decoder::mlp_end(const LayerView& layer) {
  return {layer.mlp_post_norm, layer.mlp_norm_eps, layer.mlp_output_scale};
}

void Decoder::run(const StepView& step, const CacheView* caches, const int64_t* ids, const float* stream,
                  float* hidden) {
  if (step.num_tokens == 0) return;
  const Pass pass = prepare(step, caches, ids, stream, hidden);
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    if (ranks_ != nullptr && stream == nullptr) sum_embeddings(team, clock, pass);
    for (size_t index = 0; index < layers_.size(); ++index) {
      attention_block(team, clock, pass, index);
      mlp_block(team, clock, pass, index);
    }
    end_stream(team, clock, pass);
  });
}

Decoder::Pass Decoder::prepare(const StepView& step, const CacheView* caches, const int64_t* ids, const float* stream,
                               float* hidden) {
  if (norm_ != nullptr) residual_.reserve(step.num_tokens * hidden_size_ * kFloat);
  // Without a norm the stream itself is what is given on.
  Pass pass{step, caches, ids, stream, hidden, norm_ != nullptr ? residual_.as<float>() : hidden, {}, nullptr};
  const int num_threads = runtime_.pool.num_threads();
  plans_.begin_step();
  for (const Layer& layer : layers_) {
    const LayerView& view = layer.view;
    qkv_input_.reserve(layer.qkv, step.num_tokens);
    output_input_.reserve(layer.output, step.num_tokens);
    gate_up_input_.reserve(layer.gate_up, step.num_tokens);
    down_input_.reserve(layer.down, step.num_tokens);
    qkv_.reserve(step.num_tokens * qkv_size(view) * kFloat);
    context_.reserve(step.num_tokens * query_size(view) * kFloat);
    if (!is_added_as_it_comes(attention_end(view)) || !is_added_as_it_comes(mlp_end(view))) {
      block_output_.reserve(step.num_tokens * hidden_size_ * kFloat);
    }
    if (layer.gates_in_tile) {
      const Tiling tiling = gate_tiling(layer.gate_up, step.num_tokens, num_threads);
      for (AlignedBuffer& tile : tile_) tile.reserve(2 * tiling.rows * tiling.panels * kPanel * kFloat);
      if (layer.down.is_permuted()) gate_up_.reserve(step.num_tokens * layer.down.in_features() * kFloat);
    } else {
      gate_up_.reserve(step.num_tokens * layer.gate_up.out_features() * kFloat);
      for (AlignedBuffer& tile : tile_) tile.reserve(layer.down.in_features() * kFloat);
    }
    for (AlignedBuffer& tile : tile_) tile.reserve(hidden_size_ * kFloat);
    pass.plans.push_back(&plans_.plan(attention_shape(view), step, num_threads));
  }
  pass.partials = plans_.reserve_partials();
  return pass;
}

void Decoder::attention_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const {
  const Layer& layer = layers_[index];
  const LayerView& view = layer.view;
  const KernelTable& kernels = runtime_.kernels;
  const int64_t num_tokens = pass.step.num_tokens;

  const InputView input = qkv_input_.view(layer.qkv);
  for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* stream = pass.residual + row * hidden_size_;
      float* scratch = tile_[team.thread()].as<float>();
      if (index == 0) {
        begin_stream(pass, row, scratch, stream);
      } else {
        join_stream(mlp_end(layers_[index - 1].view), row, stream);
      }
      float* normed = input.place_for(row, scratch);
      kernels.rms_norm_row(stream, view.attention_norm, hidden_size_, view.attention_norm_eps, normed);
      input.write(kernels, row, 0, hidden_size_, normed);
    }
  });
  clock.end_phase(PhaseKind::kNorm);

  multiply(team, kernels, layer.qkv, input.rows(), num_tokens, {qkv_.as<float>(), qkv_size(view), false}, work_);
  clock.end_phase(PhaseKind::kQkv);

  AttentionStep attention = attention_step(pass.step, attention_shape(view), pass.caches[index], view.scale, view.soft_cap);
  attention.query = qkv_.as<float>();
  attention.query_stride = qkv_size(view);
  attention.output = context_.as<float>();
  attention.output_stride = query_size(view);
  attention.partials = pass.partials;
  for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) rotate_and_store(layer, attention, pass.step, row);
  });
  clock.end_phase(PhaseKind::kRotary);

  run_attention(team, kernels, attention, *pass.plans[index], work_);
  clock.end_phase(PhaseKind::kAttention);

  const InputView context = output_input_.view(layer.output);
  write_rows(team, kernels, context, num_tokens, query_size(view), context_.as<float>(), query_size(view));
  clock.end_phase(PhaseKind::kContext);

  multiply_last(team, clock, pass, layer.output, context, attention_end(view), PhaseKind::kOutput);
}

void Decoder::rotate_and_store(const Layer& layer, const AttentionStep& attention, const StepView& step,
                                    int64_t token) const {
  const KernelTable& kernels = runtime_.kernels;
  const LayerView& view = layer.view;
  const int64_t head_dim = view.head_dim, half = view.rotary_dim / 2, position = step.positions[token];
  const float* cos = view.rotary_cos + position * half;
  const float* sin = view.rotary_sin + position * half;
  float* heads = qkv_.as<float>() + token * qkv_size(view);
  for (int64_t i = 0; i < view.num_heads + view.num_kv_heads; ++i) {
    float* head = heads + i * head_dim;
    const float* norm = i < view.num_heads ? view.query_norm : view.key_norm;
    if (norm != nullptr) kernels.rms_norm_row(head, norm, head_dim, view.attention_norm_eps, head);
    kernels.rotate_head(head, cos, sin, half);
  }
  const int64_t slot = step.slot_mapping[token];
  if (slot < 0) return;
  const float* key = heads + query_size(view);
  kernels.store_key(key, slot, attention);
  kernels.store_value(key + view.num_kv_heads * head_dim, slot, attention);
}

void Decoder::mlp_block(Team& team, PhaseClock& clock, const Pass& pass, size_t index) const {
  const Layer& layer = layers_[index];
  const LayerView& view = layer.view;
  const KernelTable& kernels = runtime_.kernels;
  const int64_t num_tokens = pass.step.num_tokens;

  const InputView input = gate_up_input_.view(layer.gate_up);
  for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* stream = pass.residual + row * hidden_size_;
      join_stream(attention_end(view), row, stream);
      float* normed = input.place_for(row, tile_[team.thread()].as<float>());
      kernels.rms_norm_row(stream, view.mlp_norm, hidden_size_, view.mlp_norm_eps, normed);
      input.write(kernels, row, 0, hidden_size_, normed);
    }
  });
  clock.end_phase(PhaseKind::kNorm);

  if (layer.gates_in_tile) {
    gate_in_tile(team, layer, num_tokens);
  } else {
    gate(team, layer, num_tokens);
  }
  const InputView gated = down_input_.view(layer.down);
  if (layer.down.is_permuted()) {
    const int64_t size = layer.down.in_features();
    write_rows(team, kernels, gated, num_tokens, size, gate_up_.as<float>(), gated_stride(layer));
  }
  clock.end_phase(PhaseKind::kGateUp);

  multiply_last(team, clock, pass, layer.down, gated, mlp_end(view), PhaseKind::kDown);
}

void Decoder::gate_in_tile(Team& team, const Layer& layer, int64_t num_tokens) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t size = layer.down.in_features();
  const Tiling tiling = gate_tiling(layer.gate_up, num_tokens, team.num_threads());
  const int64_t row_tiles = divide_up(num_tokens, tiling.rows), width = tiling.panels * kPanel;
  const ActivationRows input = gate_up_input_.view(layer.gate_up).rows();
  const InputView output = down_input_.view(layer.down);
  const bool is_permuted = layer.down.is_permuted();
  float* gates = tile_[team.thread()].as<float>();
  float* ups = gates + tiling.rows * width;
  void* work = work_[team.thread()].as<void>();
  team.for_tiles(row_tiles * divide_up(size, width), [&](int64_t index) {
    const int64_t row = index % row_tiles * tiling.rows, channel = index / row_tiles * width;
    const int64_t row_end = std::min(row + tiling.rows, num_tokens), end = std::min(channel + width, size);
    multiply_channels(kernels, layer.gate_up, channel, end, input, row, row_end,
                      {gates - row * width - channel, width, false}, work);
    multiply_channels(kernels, layer.gate_up, size + channel, size + end, input, row, row_end,
                      {ups - row * width - size - channel, width, false}, work);
    for (int64_t r = row; r < row_end; ++r) {
      float* gate = gates + (r - row) * width;
      float* out = is_permuted ? gate_up_.as<float>() + r * gated_stride(layer) + channel : gate;
      layer.gate_row(gate, ups + (r - row) * width, end - channel, out);
      if (!is_permuted) output.write_columns(kernels, r, channel, end - channel, out);
    }
  });
}

void Decoder::gate(Team& team, const Layer& layer, int64_t num_tokens) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t size = layer.down.in_features();
  multiply(team, kernels, layer.gate_up, gate_up_input_.view(layer.gate_up).rows(), num_tokens,
           {gate_up_.as<float>(), 2 * size, false}, work_);
  const InputView output = down_input_.view(layer.down);
  const bool is_permuted = layer.down.is_permuted();
  for_row_pieces(team, num_tokens, size, [&](int64_t row, int64_t begin, int64_t end) {
    float* gate = gate_up_.as<float>() + row * gated_stride(layer) + begin;
    float* out = is_permuted ? gate : output.place_for(row, tile_[team.thread()].as<float>()) + begin;
    layer.gate_row(gate, gate + size, end - begin, out);
    if (!is_permuted) output.write_columns(kernels, row, begin, end - begin, out);
  });
}

int64_t Decoder::work_bytes() const {
  int64_t total = plans_.num_bytes();
  for (const AlignedBuffer* rows : {&residual_, &qkv_, &context_, &gate_up_, &block_output_}) total += rows->num_bytes();
  for (const InputRows* rows : {&qkv_input_, &output_input_, &gate_up_input_, &down_input_}) total += rows->num_bytes();
  for (const AlignedBuffer& work : work_) total += work.num_bytes();
  for (const AlignedBuffer& tile : tile_) total += tile.num_bytes();
  return total;
}

}  // namespace pagewire

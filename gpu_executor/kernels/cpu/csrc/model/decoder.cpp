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
    const GateRow gate_row = choose_gate_row(runtime.kernels, view.activation);
    Layer layer{view, LinearWeight(view.qkv), LinearWeight(view.output), {}, {}};
    if (const MixtureView* mixture = view.mixture) {
      layer.router = LinearWeight(mixture->router);
      for (int64_t expert = 0; expert < mixture->num_experts; ++expert) {
        layer.feed_forwards.emplace_back(mixture->experts[expert].gate_up, mixture->experts[expert].down, gate_row);
      }
      most_experts_ = std::max(most_experts_, mixture->num_experts);
    } else {
      layer.feed_forwards.emplace_back(view.gate_up, view.down, gate_row);
    }
    layers_.push_back(std::move(layer));
  }
  hidden_size_ = layers_.front().qkv.in_features();
  int64_t work_bytes = 0;
  for (const Layer& layer : layers_) {
    const LayerView& view = layer.view;
    work_bytes = std::max(work_bytes, attention_work_bytes(view.num_heads, view.num_kv_heads, view.head_dim));
    for (const LinearWeight* weight : {&layer.qkv, &layer.output, &layer.router}) {
      work_bytes = std::max(work_bytes, weight->work_bytes(runtime.kernels));
    }
    for (const FeedForward& block : layer.feed_forwards) {
      work_bytes = std::max(work_bytes, block.gate_up.work_bytes(runtime.kernels));
      work_bytes = std::max(work_bytes, block.down.work_bytes(runtime.kernels));
    }
  }
  for (AlignedBuffer& work : work_) work.reserve(work_bytes);
}

Decoder::BlockEnd Decoder::attention_end(const LayerView& layer) {
  return {layer.attention_post_norm, layer.attention_norm_eps, layer.attention_output_scale, false};
}

Decoder::BlockEnd Decoder::mlp_end(const LayerView& layer) {
  return {layer.mlp_post_norm, layer.mlp_norm_eps, layer.mlp_output_scale, layer.mixture != nullptr};
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
      if (layers_[index].view.mixture != nullptr) {
        mixture_block(team, clock, pass, index);
      } else {
        mlp_block(team, clock, pass, index);
      }
    }
    end_stream(team, clock, pass);
  });
}

Decoder::Pass Decoder::prepare(const StepView& step, const CacheView* caches, const int64_t* ids, const float* stream,
                               float* hidden) {
  if (norm_ != nullptr) residual_.reserve(step.num_tokens * hidden_size_ * kFloat);
  // Without a norm the stream itself is what is given on.
  Pass pass{step, caches, ids, stream, hidden, norm_ != nullptr ? residual_.as<float>() : hidden, {}, nullptr, false};
  const int num_threads = runtime_.pool.num_threads();
  plans_.begin_step();
  if (step.num_tokens > most_tokens_) reserve(step.num_tokens);
  changes_.begin(runtime_.kernels, step, static_cast<int64_t>(layers_.size()), work_);
  pass.has_changes = changes_.any();
  if (pass.has_changes) reserve_changes(step.num_tokens);
  for (const Layer& layer : layers_) pass.plans.push_back(&plans_.plan(attention_shape(layer.view), step, num_threads));
  pass.partials = plans_.reserve_partials();
  return pass;
}

void Decoder::reserve(int64_t num_tokens) {
  most_tokens_ = 0;  // of a reservation that fails, nothing counts
  for (AlignedBuffer& tile : tile_) tile.reserve(hidden_size_ * kFloat);
  for (const Layer& layer : layers_) {
    const LayerView& view = layer.view;
    qkv_input_.reserve(layer.qkv, num_tokens);
    output_input_.reserve(layer.output, num_tokens);
    qkv_.reserve(num_tokens * qkv_size(view) * kFloat);
    context_.reserve(num_tokens * query_size(view) * kFloat);
    if (!is_added_as_it_comes(attention_end(view)) || !is_added_as_it_comes(mlp_end(view))) {
      block_output_.reserve(num_tokens * hidden_size_ * kFloat);
    }
    if (view.mixture != nullptr) reserve_mixture(layer, num_tokens);
    for (const FeedForward& block : layer.feed_forwards) reserve_feed_forward(block, num_tokens);
  }
  most_tokens_ = num_tokens;
}

// Room for what a step with adapters keeps besides.
void Decoder::reserve_changes(int64_t num_tokens) {
  for (AlignedBuffer* rows : {&normed_, &block_output_}) rows->reserve(num_tokens * hidden_size_ * kFloat);
  for (const Layer& layer : layers_) {
    if (layer.view.mixture == nullptr) {
      gate_up_.reserve(num_tokens * layer.feed_forwards.front().gate_up.out_features() * kFloat);
    }
  }
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
        join_stream(pass, mlp_end(layers_[index - 1].view), row, stream);
      }
      float* normed = pass.has_changes ? normed_.as<float>() + row * hidden_size_ : input.place_for(row, scratch);
      kernels.rms_norm_row(stream, view.attention_norm, hidden_size_, view.attention_norm_eps, normed);
      input.write(kernels, row, 0, hidden_size_, normed);
    }
  });
  clock.end_phase(PhaseKind::kNorm);

  multiply(team, kernels, layer.qkv, input.rows(), num_tokens, {qkv_.as<float>(), qkv_size(view), false}, work_);
  if (pass.has_changes) {
    const auto number = static_cast<int64_t>(index);
    changes_.compute(team, kernels, number, Product::kQkv, normed_.as<float>(), hidden_size_, work_);
    changes_.add(team, kernels, number, Product::kQkv, 0, num_tokens, qkv_.as<float>(), qkv_size(view));
  }
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

  if (pass.has_changes) {
    changes_.compute(team, kernels, static_cast<int64_t>(index), Product::kOutput, context_.as<float>(),
                     query_size(view), work_);
  }
  multiply_last(team, clock, pass, layer.output, context, attention_end(view), PhaseKind::kOutput, index,
                Product::kOutput);
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

int64_t Decoder::work_bytes() const {
  int64_t total = plans_.num_bytes() + changes_.num_bytes();
  for (const AlignedBuffer* rows :
       {&residual_, &qkv_, &context_, &gate_up_, &block_output_, &normed_, &router_logits_, &expert_ids_,
        &expert_weights_, &first_pairs_, &pair_tokens_, &pair_weights_, &expert_output_}) {
    total += rows->num_bytes();
  }
  for (const InputRows* rows : {&qkv_input_, &output_input_, &router_input_, &gate_up_input_, &down_input_}) {
    total += rows->num_bytes();
  }
  for (const AlignedBuffer& work : work_) total += work.num_bytes();
  for (const AlignedBuffer& tile : tile_) total += tile.num_bytes();
  return total;
}

}  // namespace pagewire

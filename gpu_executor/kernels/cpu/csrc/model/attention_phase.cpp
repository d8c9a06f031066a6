#include "attention_phase.h"

#include <algorithm>

namespace pagewire {
namespace {

bool is_same(const AttentionShape& a, const AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim &&
         a.sliding_window == b.sliding_window;
}

}  // namespace

AttentionStep attention_step(const StepView& step, const AttentionShape& shape, const CacheView& cache, float scale,
                             float soft_cap) {
  AttentionStep out{};
  out.key_cache = cache.key;
  out.value_cache = cache.value;
  out.kv_type = static_cast<ElementType>(cache.type);
  out.key_scale = cache.key_scale;
  out.value_scale = cache.value_scale;
  out.num_heads = shape.num_heads;
  out.num_kv_heads = shape.num_kv_heads;
  out.head_dim = shape.head_dim;
  out.block_size = cache.block_size;
  out.scale = scale;
  out.soft_cap = soft_cap;
  out.sliding_window = shape.sliding_window;
  out.block_tables = step.block_tables;
  out.max_blocks = step.max_blocks;
  out.query_start = step.query_start;
  out.seq_lens = step.seq_lens;
  return out;
}

void run_attention(Team& team, const KernelTable& kernels, const AttentionStep& step, const AttentionPlan& plan,
                   const std::vector<AlignedBuffer>& work) {
  const std::vector<AttentionTask>& tasks = plan.tasks();
  const std::vector<AttentionMerge>& merges = plan.merges();
  team.for_tiles(static_cast<int64_t>(tasks.size()), [&](int64_t index) {
    kernels.attention_task(step, tasks[static_cast<size_t>(index)], work[static_cast<size_t>(team.thread())].as<void>());
  });
  team.for_tiles(static_cast<int64_t>(merges.size()), [&](int64_t index) {
    kernels.attention_merge(step, merges[static_cast<size_t>(index)]);
  });
}

AttentionPlan& AttentionPlans::plan(const AttentionShape& shape, const StepView& step, int num_threads) {
  for (size_t i = 0; i < num_used_; ++i) {
    if (is_same(entries_[i].shape, shape)) return entries_[i].plan;
  }
  if (num_used_ == entries_.size()) entries_.emplace_back();
  Entry& entry = entries_[num_used_++];
  entry.shape = shape;
  entry.plan.build(shape, step.num_reqs, step.query_start, step.seq_lens, num_threads);
  return entry.plan;
}

float* AttentionPlans::reserve_partials() {
  int64_t most = 0;
  for (size_t i = 0; i < num_used_; ++i) most = std::max(most, entries_[i].plan.partial_floats());
  partials_.reserve(most * static_cast<int64_t>(sizeof(float)));
  return partials_.as<float>();
}

}  // namespace pagewire

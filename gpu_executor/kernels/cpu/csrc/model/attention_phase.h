// Attention of one layer of a step, on all threads, and what is kept for it from layer to layer and step to step.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "../kernels/attention.h"
#include "../kernels/attention_plan.h"
#include "../runtime/aligned_buffer.h"
#include "../runtime/thread_pool.h"
#include "step.h"

namespace pagewire {

// Fill what the views and a layer's numbers say; see AttentionStep for those.
AttentionStep attention_step(const StepView& step, const AttentionShape& shape, const CacheView& cache, float scale,
                             float soft_cap);

// The plan's tasks, then its merges. work: attention_work_bytes of each thread.
void run_attention(Team& team, const KernelTable& kernels, const AttentionStep& step, const AttentionPlan& plan,
                   const std::vector<AlignedBuffer>& work);

// The plans of a step: layers of equal shape and window share one. Used by one call at a time.
class AttentionPlans {
 public:
  // Forget the last step's. Buffers stay.
  void begin_step() { num_used_ = 0; }
  // The plan for a shape, made if it is the first of the step. Not within a parallel region.
  AttentionPlan& plan(const AttentionShape& shape, const StepView& step, int num_threads);
  // Room for the partial results of any of the step's plans.
  float* reserve_partials();
  int64_t num_bytes() const { return partials_.num_bytes(); }

 private:
  struct Entry {
    AttentionShape shape;
    AttentionPlan plan;
  };
  std::deque<Entry> entries_;  // plans stay where they are as more are made
  size_t num_used_ = 0;
  AlignedBuffer partials_;
};

}  // namespace pagewire

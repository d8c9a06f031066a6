#include "expert_choice.h"

#include <algorithm>

namespace pagewire {

void choose_experts(const KernelTable& kernels, const RouterShape& shape, const float* logits, float* scratch,
                    int32_t* ids, float* weights) {
  float largest;
  kernels.argmax_row(logits, shape.num_experts, &largest);
  kernels.exp_row(logits, shape.num_experts, largest, scratch);
  double sum = 0.0;
  for (int64_t i = 0; i < shape.num_experts; ++i) sum += scratch[i];
  for (int64_t i = 0; i < shape.num_chosen; ++i) {
    const int32_t* chosen_end = ids + i;
    int32_t best = -1;
    for (int32_t id = 0; id < shape.num_experts; ++id) {
      if (std::find(ids, ids + i, id) != chosen_end) continue;
      // The first one that is left is taken where all are NaN, and shows as such.
      if (best < 0 || scratch[id] > scratch[best]) best = id;
    }
    ids[i] = best;
  }
  std::sort(ids, ids + shape.num_chosen);
  double sum_of_chosen = 0.0;
  for (int64_t i = 0; i < shape.num_chosen; ++i) sum_of_chosen += scratch[ids[i]];
  const double whole = shape.is_renormalized ? sum_of_chosen : sum;
  for (int64_t i = 0; i < shape.num_chosen; ++i) weights[i] = static_cast<float>(scratch[ids[i]] / whole);
}

}  // namespace pagewire

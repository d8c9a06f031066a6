// Which experts of a mixture compute a token, and how much of it each.
#pragma once

#include <cstdint>

#include "../kernels/kernel_table.h"

namespace pagewire {

struct RouterShape {
  int64_t num_experts;
  int64_t num_chosen;
  bool is_renormalized;  // weights are divided by their sum
};

// The likeliest experts by one token's logits, the lower number first among equals. ids [num_chosen], ascending;
// weights [num_chosen]: what their outputs are multiplied by. scratch: num_experts floats; it may be the logits.
void choose_experts(const KernelTable& kernels, const RouterShape& shape, const float* logits, float* scratch,
                    int32_t* ids, float* weights);

}  // namespace pagewire

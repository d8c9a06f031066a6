// What adapters add to the products of a step: (x A^T) B^T, for the rows of each adapter's tokens alone.
#pragma once

#include <cstdint>
#include <vector>

#include "linear.h"
#include "step.h"

namespace pagewire {

class StepChanges {
 public:
  // Look at a step, outside of the parallel region, and make room for what is computed of it. work: as multiply's.
  void begin(const KernelTable& kernels, const StepView& step, int64_t num_layers, std::vector<AlignedBuffer>& work);
  bool any() const { return !adapters_.empty(); }
  // Phases: compute what the step's adapters add to one product of a layer. x: the product's input, a row a token, in
  // the order of input channels.
  void compute(Team& team, const KernelTable& kernels, int64_t layer, Product product, const float* x, int64_t stride,
               const std::vector<AlignedBuffer>& work) const;
  // A phase: add what was computed last to the rows of tokens [first, first + count), y being the first one's.
  void add(Team& team, const KernelTable& kernels, int64_t layer, Product product, int64_t first, int64_t count,
           float* y, int64_t stride) const;
  int64_t num_bytes() const;

 private:
  struct Change {
    LinearWeight a, b;  // without parts: the product stays as it is
    bool is_none() const { return a.parts().empty(); }
  };
  struct Adapter {
    const int64_t* tokens;  // null: all of the step
    int64_t num_tokens;
    int64_t first_row;  // of its rows in outputs_
    std::vector<Change> changes;  // by layer and product

    int64_t token(int64_t row) const { return tokens == nullptr ? row : tokens[row]; }
    const Change& change(int64_t layer, Product product) const {
      return changes[static_cast<size_t>(layer * kNumProducts + static_cast<int64_t>(product))];
    }
  };

  std::vector<Adapter> adapters_;
  int64_t most_channels_ = 0;  // that a change gives
  InputRows input_, hidden_input_;
  AlignedBuffer hidden_, outputs_;
};

}  // namespace pagewire

// The output layer: a row's product with one matrix row a token, and the largest of it, found tile by tile. A greedy
// token needs no logits in memory, which are 200 KB a row at a vocabulary of 50,000.
#pragma once

#include <cstdint>
#include <vector>

#include "../model/linear.h"
#include "../runtime/runtime.h"

namespace pagewire {

// A logit and its token.
struct BestToken {
  float value;
  int64_t id;
};

class OutputLayer {
 public:
  explicit OutputLayer(Runtime& runtime) : runtime_(runtime) {}

  // Args:
  //   hidden: [num_rows, in_features].
  //   num_drawable: tokens that count; at most the weight's rows.
  //   kept_rows: [num_kept] rows whose logits go to logits [num_kept, num_drawable], ascending.
  //   best: [num_rows], of equals the lowest id; a NaN if any of the row is.
  void run(const LinearWeight& weight, const float* hidden, int64_t num_rows, int64_t num_drawable,
           const int64_t* kept_rows, int64_t num_kept, float* logits, BestToken* best);

 private:
  Runtime& runtime_;
  InputRows input_;
  std::vector<AlignedBuffer> work_, products_;
  std::vector<BestToken> tile_best_;  // [tiles of channels, num_rows]
  std::vector<int64_t> kept_place_;   // [num_rows], -1 for a row that is not kept
};

}  // namespace pagewire

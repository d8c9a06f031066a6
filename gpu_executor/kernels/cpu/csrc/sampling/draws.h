// Draws and logprobs of rows of logits, a row a tile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../runtime/aligned_buffer.h"
#include "../runtime/runtime.h"
#include "candidates.h"

namespace pagewire {

// One row to draw from; Python mirrors it (kernels/cpu/native_sampling.py).
struct DrawRequest {
  const float* logits;  // finite or minus infinity, the largest finite
  int64_t seed;
  int64_t num_draws;    // for children child, child + 1, ...
  int64_t top_k;        // 0: off
  double top_p;         // 1: off
  double min_p;         // 0: off
  float temperature;
  uint32_t position;
  uint32_t child;
  uint32_t padding;
};

class Draws {
 public:
  explicit Draws(Runtime& runtime);

  // token_ids: one a draw, the rows' one after the other.
  void draw(const DrawRequest* requests, int64_t num_requests, int64_t num_drawable, int64_t* token_ids);

  // The logarithm of the sum of e^logit, the first num_top tokens in order, and the place in the order of some tokens.
  // In the calling thread.
  void describe(const float* logits, int64_t num_drawable, int64_t num_top, const int64_t* token_ids,
                int64_t num_tokens, double* normalizer, int64_t* top_ids, int64_t* ranks);

 private:
  struct Scratch {  // one a thread
    explicit Scratch(const KernelTable& kernels) : finder(kernels) {}
    AlignedBuffer scores, group_max;
    CandidateFinder finder;
  };

  ScoreRow make_row(Scratch& scratch, const float* logits, int64_t num_drawable, float temperature) const;
  void reserve(Scratch& scratch, int64_t num_drawable) const;

  Runtime& runtime_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
  std::vector<int64_t> first_draw_;
};

}  // namespace pagewire

// Draws: what the kernels of sampling.inl share with the code above them.
//
// A draw takes argmax(score + noise) over a row's candidates, score = logit / temperature. The noise of a token is a pure
// function of a key and the token's id: Philox4x32-10 (Salmon et al. 2011) with
//
//   key     = (seed's low word, its high word)
//   counter = (token id >> 2, position, child, 0)
//   word    = output[token id & 3],  u = (word + 0.5) / 2^32,  noise = -log(-log(u)) in double
//
// A row's scores lie in groups, and each group's largest is known: a group that can't hold what is looked for is skipped
// without a look at its scores.
#pragma once

#include <cstdint>
#include <limits>

namespace pagewire {

constexpr int64_t kScoreGroup = 32;  // eight counters' words
// Groups are rounded up to whole vectors of any instruction set.
constexpr int64_t kGroupPadding = 16;

// A row of scores: finite or minus infinity. What pads the last groups is minus infinity.
struct ScoreRow {
  const float* scores;     // [num_groups * kScoreGroup]
  const float* group_max;  // [num_groups], the largest of each group
  int64_t size;            // scores that are no padding
  int64_t num_groups;      // a multiple of kGroupPadding
  int64_t best_id;         // of the largest score, the lowest of equals
};

// A head of the order "larger score first, of equals the lower id": everything before and with this one.
struct Cutoff {
  float score = -std::numeric_limits<float>::infinity();
  int64_t last_id = std::numeric_limits<int64_t>::max();

  // Without a branch: in a row of random scores it would be mispredicted half of the time.
  bool keeps(float other, int64_t id) const { return (other > score) | ((other == score) & (id <= last_id)); }
};

struct NoiseKey {
  uint32_t seed_low;
  uint32_t seed_high;
  uint32_t position;
  uint32_t child;
};

}  // namespace pagewire

// Which tokens a draw chooses among: min_p, then top_k, then top_p, each on what the one before left. All of them keep a
// head of one order (larger score first, of equals the lower id), so that a row's candidates are told by the last one.
#pragma once

#include <cstdint>
#include <vector>

#include "../kernels/kernel_table.h"
#include "../kernels/sampling.h"

namespace pagewire {

struct Filters {  // top_k 0, top_p 1 and min_p 0 are off
  int64_t top_k;
  double top_p;
  double min_p;
};

struct Candidate {
  float score;
  int32_t id;

  bool operator<(const Candidate& other) const {  // comes before
    return score > other.score || (score == other.score && id < other.id);
  }
};

// Finds heads of a row's order without sorting the row. Keeps its work space; one a thread.
class CandidateFinder {
 public:
  explicit CandidateFinder(const KernelTable& kernels) : kernels_(kernels) {}

  // Make room for rows of so many tokens: what follows allocates nothing, so that it may run on any thread.
  void reserve(int64_t row_size);
  // The last token that the filters leave.
  Cutoff cutoff(const ScoreRow& row, const Filters& filters);
  // The first `count` tokens of a row, in order; all if there are fewer. Valid until the next call.
  const std::vector<Candidate>& best(const ScoreRow& row, int64_t count);

 private:
  // Let list_ be the tokens of at least this score, by id.
  void gather(const ScoreRow& row, float least_score);
  // A score that at least `count` tokens reach: the count-th largest of the groups' maxima.
  float reached_by(const ScoreRow& row, int64_t count);
  // Cut list_ to its first `count` tokens, in no order.
  void keep_best(int64_t count);
  // Let list_ be the tokens of the smallest head that holds `top_p` of the row's probability, or more of them.
  double gather_nucleus(const ScoreRow& row, double top_p);
  // Cut list_ to its smallest head whose weights reach `target`, in no order.
  void keep_nucleus(float largest, double target);
  double weigh(float largest);

  const KernelTable& kernels_;
  std::vector<Candidate> list_;
  std::vector<float> numbers_, weights_;
  std::vector<double> masses_;
};

}  // namespace pagewire

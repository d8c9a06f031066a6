// Which tokens a draw chooses among: min_p, then top_k, then top_p, each on what the one before left. All of them keep a
// head of one order (larger score first, of equals the lower id), so that a row's candidates are told by the last one.
#pragma once

#include <cstdint>
#include <vector>

#include "../kernels/kernel_table.h"
#include "../kernels/sampling.h"
#include "../runtime/aligned_buffer.h"

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
  // The last token of the smallest head of the row that holds `top_p` of its probability.
  Cutoff nucleus(const ScoreRow& row, double top_p);
  // The same of the head that `head` ends and list_ holds.
  Cutoff nucleus_of_list(const ScoreRow& row, const Cutoff& head, double top_p);
  // Let list_ be some tokens among which the weights of the head that `head` ends reach `target`; returns the weight of
  // those that come before them. weights_ are the row's.
  double narrow(const ScoreRow& row, const Cutoff& head, double target);
  // The token of list_ at which the weights reach `target`, `reached` being the weight of all that come before list_.
  Cutoff border(float largest, double reached, double target);
  // Let weights_ be those of list_: e^(score - largest). Their sum.
  double weigh(float largest);
  // Let weights_ be those of the row.
  void weigh_row(const ScoreRow& row);

  const KernelTable& kernels_;
  AlignedBuffer found_;
  std::vector<Candidate> list_;
  std::vector<float> numbers_, weights_;
  std::vector<double> masses_;
};

}  // namespace pagewire

#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace pagewire {
namespace {

// Tokens that are looked at first when top_p searches for its border: a language model's mass mostly lies in few.
constexpr int64_t kFirstNucleus = 256;
// Longer lists are narrowed down by a histogram before anything is sorted.
constexpr size_t kMostSorted = 1024;
constexpr int64_t kBins = 1024;
// Histograms side by side: neighbours often meet the same bin, and each addition there waits for the one before.
constexpr int64_t kHistograms = 4;
constexpr float kLowestFinite = std::numeric_limits<float>::lowest();

bool comes_before(const Candidate& a, const Candidate& b) { return a < b; }

// Bins of equal width over the scores from the largest down to the least, the best first. What is below is in the last.
class Bins {
 public:
  Bins(float largest, float least)
      : largest_(largest), per_unit_(largest > least ? static_cast<float>(kBins - 1) / (largest - least) : 0.0f) {}

  // The bins of a group's scores: in a loop of its own, which compilers vectorize.
  void of_group(const float* scores, int32_t* bins) const {
    for (int64_t i = 0; i < kScoreGroup; ++i) bins[i] = of(scores[i]);
  }
  int32_t of(float score) const {
    const float place = (largest_ - score) * per_unit_;  // infinite for a masked token, NaN if the width is 0 as well
    return static_cast<int32_t>(place < kLast ? place : kLast);
  }

 private:
  static constexpr float kLast = kBins - 1;
  float largest_, per_unit_;
};

}  // namespace

void CandidateFinder::reserve(int64_t row_size) {
  const int64_t padded_size = round_up(divide_up(row_size, kScoreGroup), kGroupPadding) * kScoreGroup;
  found_.reserve((row_size + 1) * static_cast<int64_t>(sizeof(Candidate)));
  list_.reserve(row_size);
  numbers_.reserve(row_size);
  weights_.reserve(padded_size);
  masses_.reserve(kHistograms * kBins);
}

Cutoff CandidateFinder::cutoff(const ScoreRow& row, const Filters& filters) {
  const float largest = row.scores[row.best_id];
  const bool has_top_k = filters.top_k > 0 && filters.top_k < row.size;
  const bool has_min_p = filters.min_p > 0;
  if (!has_top_k && !has_min_p) return filters.top_p < 1 ? nucleus(row, filters.top_p) : Cutoff{};
  // p >= min_p * largest p, without computing a probability. Masked tokens are no candidates: they can't be drawn.
  Cutoff head{has_min_p ? largest + static_cast<float>(std::log(filters.min_p)) : kLowestFinite};
  if (has_top_k) {
    gather(row, std::max(head.score, reached_by(row, filters.top_k)));
    keep_best(filters.top_k);
    const Candidate last = *std::max_element(list_.begin(), list_.end(), comes_before);
    head = {last.score, last.id};
  } else if (filters.top_p < 1) {
    gather(row, head.score);
  }
  return filters.top_p < 1 ? nucleus_of_list(row, head, filters.top_p) : head;
}

const std::vector<Candidate>& CandidateFinder::best(const ScoreRow& row, int64_t count) {
  gather(row, reached_by(row, count));
  keep_best(count);
  std::sort(list_.begin(), list_.end(), comes_before);
  return list_;
}

void CandidateFinder::gather(const ScoreRow& row, float least_score) {
  Candidate* next = found_.as<Candidate>();  // one more is written than is found
  for (int64_t group = 0; group < row.num_groups; ++group) {
    if (!(row.group_max[group] >= least_score)) continue;
    const int64_t end = std::min((group + 1) * kScoreGroup, row.size);
    for (int64_t id = group * kScoreGroup; id < end; ++id) {
      *next = {row.scores[id], static_cast<int32_t>(id)};
      next += row.scores[id] >= least_score;
    }
  }
  list_.assign(found_.as<Candidate>(), next);
}

float CandidateFinder::reached_by(const ScoreRow& row, int64_t count) {
  const int64_t num_groups = divide_up(row.size, kScoreGroup);
  if (count > num_groups) return -std::numeric_limits<float>::infinity();
  numbers_.assign(row.group_max, row.group_max + num_groups);
  std::nth_element(numbers_.begin(), numbers_.begin() + (count - 1), numbers_.end(), std::greater<float>());
  return numbers_[count - 1];
}

void CandidateFinder::keep_best(int64_t count) {
  if (static_cast<size_t>(count) >= list_.size()) return;
  std::nth_element(list_.begin(), list_.begin() + (count - 1), list_.end(), comes_before);
  list_.resize(count);
}

Cutoff CandidateFinder::nucleus(const ScoreRow& row, double top_p) {
  const float largest = row.scores[row.best_id];
  const double total = kernels_.sum_of_exp(row.scores, row.size, largest);
  const double target = total * top_p;
  gather(row, std::max(kLowestFinite, reached_by(row, std::min(kFirstNucleus, divide_up(row.size, kScoreGroup)))));
  if (weigh(largest) >= target) return border(largest, 0, target);
  // All tokens below this weight hold less than half of what the nucleus may leave out: they are none of it.
  const double least_weight = 0.5 * (1 - top_p) * total / static_cast<double>(row.size);
  weigh_row(row);
  const float least_score = largest + static_cast<float>(std::log(least_weight));
  return border(largest, narrow(row, Cutoff{least_score}, target), target);
}

Cutoff CandidateFinder::nucleus_of_list(const ScoreRow& row, const Cutoff& head, double top_p) {
  const float largest = row.scores[row.best_id];
  const double target = weigh(largest) * top_p;
  if (list_.size() <= kMostSorted) return border(largest, 0, target);
  weigh_row(row);
  return border(largest, narrow(row, head, target), target);
}

double CandidateFinder::narrow(const ScoreRow& row, const Cutoff& head, double target) {
  const Bins bins_of(row.scores[row.best_id], std::max(kLowestFinite, head.score));
  masses_.assign(kHistograms * kBins, 0.0);
  double* const masses = masses_.data();
  int32_t bins[kScoreGroup];
  float weights[kScoreGroup];
  for (int64_t group = 0; group < row.num_groups; ++group) {
    if (row.group_max[group] < head.score) continue;
    const float* const scores = row.scores + group * kScoreGroup;
    bins_of.of_group(scores, bins);
    std::copy_n(weights_.begin() + group * kScoreGroup, kScoreGroup, weights);
    for (int64_t i = 0; i < kScoreGroup; ++i) weights[i] = scores[i] >= head.score ? weights[i] : 0.0f;
    for (int64_t i = 0; i < kScoreGroup; ++i) masses[i % kHistograms * kBins + bins[i]] += weights[i];
  }
  const auto mass = [this](int64_t bin) {
    double total = 0;
    for (int64_t i = 0; i < kHistograms; ++i) total += masses_[i * kBins + bin];
    return total;
  };
  int64_t last_bin = kBins - 1;
  while (last_bin > 0 && mass(last_bin) == 0) --last_bin;  // the largest score has weight 1
  double reached = 0;
  int32_t bin = 0;
  while (bin < last_bin && reached + mass(bin) < target) reached += mass(bin++);

  list_.clear();
  for (int64_t group = 0; group < row.num_groups; ++group) {
    if (bins_of.of(row.group_max[group]) > bin) continue;
    const int64_t first = group * kScoreGroup;
    bins_of.of_group(row.scores + first, bins);
    for (int64_t i = 0; i < kScoreGroup; ++i) {
      if (bins[i] != bin || !head.keeps(row.scores[first + i], first + i)) continue;
      list_.push_back({row.scores[first + i], static_cast<int32_t>(first + i)});
    }
  }
  return reached;
}

Cutoff CandidateFinder::border(float largest, double reached, double target) {
  std::sort(list_.begin(), list_.end(), comes_before);
  weigh(largest);
  // Rounding alone can leave the whole sum below the target: then all of them stay.
  size_t last = 0;
  for (; last + 1 < list_.size(); ++last) {
    reached += weights_[last];
    if (reached >= target) break;
  }
  return {list_[last].score, list_[last].id};
}

void CandidateFinder::weigh_row(const ScoreRow& row) {
  const int64_t padded_size = row.num_groups * kScoreGroup;
  weights_.resize(padded_size);
  kernels_.exp_row(row.scores, padded_size, row.scores[row.best_id], weights_.data());
}

double CandidateFinder::weigh(float largest) {
  numbers_.resize(list_.size());
  weights_.resize(list_.size());
  std::transform(list_.begin(), list_.end(), numbers_.begin(), [](const Candidate& c) { return c.score; });
  kernels_.exp_row(numbers_.data(), static_cast<int64_t>(list_.size()), largest, weights_.data());
  double total = 0;
  for (float weight : weights_) total += weight;
  return total;
}

}  // namespace pagewire

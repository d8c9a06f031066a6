// The residual stream of a decoder: how it begins, what each block adds to it, and how it ends.
#include <cstring>

#include "decoder.h"

namespace pagewire {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

}  // namespace

// Phases: sums [num_rows, hidden size] = what the ranks add up to, rank 0 first. fill(first, count) has this rank's
// part of rows [first, first + count) written to the begin of its area: as many rows at a time as that holds.
template <typename Fill>
void Decoder::sum_over_ranks(Team& team, PhaseClock& clock, int64_t num_rows, float* sums, Fill&& fill) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t most = ranks_->area_bytes() / (hidden_size_ * kFloat);
  for (int64_t first = 0; first < num_rows; first += most) {
    const int64_t count = smaller(most, num_rows - first);
    fill(first, count);
    team.single([&] { ranks_->meet(); });
    for_rows(team, count, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * hidden_size_, n = (end - begin) * hidden_size_;
      float* sum = sums + first * hidden_size_ + at;
      std::memcpy(sum, ranks_->of(0) + at, static_cast<size_t>(n * kFloat));
      for (int rank = 1; rank < ranks_->size(); ++rank) kernels.add_row(ranks_->of(rank) + at, n, sum);
    });
    clock.end_phase(PhaseKind::kRanks);
  }
}

// Phases of several ranks: each looks up the token ids that it holds, the others add zeros.
void Decoder::sum_embeddings(Team& team, PhaseClock& clock, const Pass& pass) const {
  sum_over_ranks(team, clock, pass.step.num_tokens, pass.residual, [&](int64_t first, int64_t count) {
    for_rows(team, count, [&](int64_t row, int64_t row_end) {
      for (; row < row_end; ++row) {
        float* out = ranks_->mine() + row * hidden_size_;
        const int64_t id = pass.ids[first + row] - first_token_id_;
        if (id >= 0 && id < embedding_.out_features()) {
          embedding_.unpack_row(runtime_.kernels, id, tile_[team.thread()].as<float>(), out);
        } else {
          std::memset(out, 0, static_cast<size_t>(hidden_size_ * kFloat));
        }
      }
    });
    clock.end_phase(PhaseKind::kEmbedding);
  });
}

void Decoder::begin_stream(const Pass& pass, int64_t row, float* scratch, float* stream) const {
  const KernelTable& kernels = runtime_.kernels;
  if (pass.stream != nullptr) {
    std::memcpy(stream, pass.stream + row * hidden_size_, static_cast<size_t>(hidden_size_ * kFloat));
    return;
  }
  // Of several ranks the rows are there.
  if (ranks_ == nullptr) embedding_.unpack_row(kernels, pass.ids[row], scratch, stream);
  if (embedding_scale_ != 1.0f) kernels.scale_row(stream, hidden_size_, embedding_scale_, stream);
}

// Phases: a block's last product, added to the stream if it may be, else brought to where join_stream takes it from.
void Decoder::multiply_last(Team& team, PhaseClock& clock, const Pass& pass, const LinearWeight& weight,
                            const InputView& input, const BlockEnd& end, PhaseKind kind, size_t index,
                            Product product) const {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t num_tokens = pass.step.num_tokens;
  if (ranks_ != nullptr) {
    sum_over_ranks(team, clock, num_tokens, block_output_.as<float>(), [&](int64_t first, int64_t count) {
      multiply(team, kernels, weight, input.rows(first), count, {ranks_->mine(), hidden_size_, false}, work_);
      if (pass.has_changes) {
        changes_.add(team, kernels, static_cast<int64_t>(index), product, first, count, ranks_->mine(), hidden_size_);
      }
      clock.end_phase(kind);
    });
    return;
  }
  const bool is_added = is_added_as_it_comes(pass, end);
  const OutputRows rows{is_added ? pass.residual : block_output_.as<float>(), hidden_size_, is_added};
  multiply(team, kernels, weight, input.rows(), num_tokens, rows, work_);
  if (pass.has_changes) {
    changes_.add(team, kernels, static_cast<int64_t>(index), product, 0, num_tokens, rows.out, hidden_size_);
  }
  clock.end_phase(kind);
}

// Phases of several ranks: what each has in block_output_ becomes their sum.
void Decoder::sum_block_output(Team& team, PhaseClock& clock, int64_t num_tokens) const {
  float* outputs = block_output_.as<float>();
  sum_over_ranks(team, clock, num_tokens, outputs, [&](int64_t first, int64_t count) {
    for_rows(team, count, [&](int64_t begin, int64_t end) {
      std::memcpy(ranks_->mine() + begin * hidden_size_, outputs + (first + begin) * hidden_size_,
                  static_cast<size_t>((end - begin) * hidden_size_ * kFloat));
    });
  });
}

// The rest of a row's way from a block's end into the stream.
void Decoder::join_stream(const Pass& pass, const BlockEnd& end, int64_t row, float* stream) const {
  if (is_added_as_it_comes(pass, end)) return;
  const KernelTable& kernels = runtime_.kernels;
  float* output = block_output_.as<float>() + row * hidden_size_;
  if (end.post_norm != nullptr) kernels.rms_norm_row(output, end.post_norm, hidden_size_, end.eps, output);
  if (end.scale != 1.0f) kernels.scale_row(output, hidden_size_, end.scale, output);
  kernels.add_row(output, hidden_size_, stream);
}

// A phase: what the last block leaves joins the stream, which is normed or given on.
void Decoder::end_stream(Team& team, PhaseClock& clock, const Pass& pass) const {
  const BlockEnd end = mlp_end(layers_.back().view);
  for_rows(team, pass.step.num_tokens, [&](int64_t row, int64_t row_end) {
    for (; row < row_end; ++row) {
      const int64_t at = row * hidden_size_;
      join_stream(pass, end, row, pass.residual + at);
      if (norm_ == nullptr) continue;
      runtime_.kernels.rms_norm_row(pass.residual + at, norm_, hidden_size_, norm_eps_, pass.hidden + at);
    }
  });
  clock.end_phase(PhaseKind::kNorm);
}

}  // namespace pagewire

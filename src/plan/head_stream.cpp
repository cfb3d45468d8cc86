// The heads over final hidden states, chunk by chunk: src/model/head.cpp.
#include <algorithm>

#include "plan/network_stream.h"

namespace neap::plan {
namespace {

// src/model/transformer.h has the same number.
constexpr std::int64_t kLogitsChunkElements = std::int64_t{1} << 25;

}  // namespace

std::int64_t NetworkStream::chunk_rows(std::int64_t width) const {
  return std::max<std::int64_t>(1, kLogitsChunkElements / width);
}

Temporary NetworkStream::head_input(std::int64_t rows) {
  Temporary z;
  if (shape_.norm_first) z = norm(rows, c_).y;
  if (shape_.projects_embedding()) z = make(rows * shape_.embedding_dim());
  return z;
}

Temporary NetworkStream::logits(std::int64_t rows) {
  const Temporary z = head_input(rows);
  Temporary logits = make(rows * shape_.vocab_size);
  return e_.width == 4 ? logits : make_float(rows * shape_.vocab_size);
}

NetworkStream::LogProbs NetworkStream::log_probs(std::int64_t rows, bool entropy) {
  LogProbs out;
  out.log_probs = make_float(rows);
  if (entropy) out.entropy = make_float(rows);
  out.log_sum = make_float(rows);
  const std::int64_t v = shape_.vocab_size;
  const std::int64_t step = chunk_rows(v);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t n = std::min(step, rows - first);
    Temporary z;
    {
      const Temporary gathered = make(n * c_);
      z = head_input(n);
      if (!z) z = gathered;
    }
    Temporary f = make(n * v);
    if (e_.width != 4) f = make_float(n * v);
    const Temporary chosen = make_float(n);
    const Temporary top = make_float(n);
    if (entropy) {
      const Temporary e = make_float(n * v);
      const Temporary sum = make_float(n);
      const Temporary weighted = make_float(n);
    }
    const Temporary sum = make_float(n);
    const Temporary values = make_float(n);
  }
  return out;
}

Temporary NetworkStream::log_probs_backward(std::int64_t tokens, std::int64_t rows, bool entropy) {
  Temporary d_hidden = make(tokens * c_);
  const std::int64_t v = shape_.vocab_size;
  const std::int64_t step = chunk_rows(v);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t n = std::min(step, rows - first);
    const Temporary gathered = make(n * c_);
    const Normed z = shape_.norm_first ? norm(n, c_) : Normed{};
    Temporary g = make(n * v);
    if (e_.width != 4) g = make_float(n * v);
    if (entropy) s_.touch(n * v, 4);
    s_.touch(n, 4);
    if (e_.width != 4) g = make(n * v);
    if (widens() && trains_base()) s_.touch(v * shape_.embedding_dim(), e_.width);
    const Temporary dz = make(n * shape_.embedding_dim());
    const Temporary d = shape_.norm_first ? norm_backward(n, c_, trains_base()) : Temporary();
  }
  return d_hidden;
}

NetworkStream::CrossEntropy NetworkStream::cross_entropy(std::int64_t tokens, std::int64_t rows) {
  CrossEntropy out;
  out.values.log_probs = make_float(rows);
  out.values.log_sum = make_float(rows);
  out.d_hidden = make(tokens * c_);
  const std::int64_t v = shape_.vocab_size;
  const std::int64_t step = chunk_rows(v);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t n = std::min(step, rows - first);
    const Temporary gathered = make(n * c_);
    const Normed z = shape_.norm_first ? norm(n, c_) : Normed{};
    Temporary f = make(n * v);
    if (e_.width != 4) f = make_float(n * v);
    { const Temporary clone = make_float(n * v); }
    const Temporary d_log_prob = make_float(n);
    if (e_.width != 4) f = make(n * v);
    if (widens() && trains_base()) s_.touch(v * shape_.embedding_dim(), e_.width);
    const Temporary dz = make(n * shape_.embedding_dim());
    const Temporary d = shape_.norm_first ? norm_backward(n, c_, trains_base()) : Temporary();
  }
  return out;
}

Temporary NetworkStream::scores(std::int64_t rows) {
  Temporary out = make_float(rows);
  const std::int64_t step = chunk_rows(c_);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t n = std::min(step, rows - first);
    const Temporary gathered = make(n * c_);
    const Temporary z = head_input(n);
    s_.touch(n, e_.width);
  }
  return out;
}

Temporary NetworkStream::scores_backward(std::int64_t tokens, std::int64_t rows) {
  Temporary d_hidden = make(tokens * c_);
  const std::int64_t step = chunk_rows(c_);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t n = std::min(step, rows - first);
    const Temporary gathered = make(n * c_);
    const Normed z = shape_.norm_first ? norm(n, c_) : Normed{};
    const Temporary dz = make(n * shape_.embedding_dim());
    const Temporary d = shape_.norm_first ? norm_backward(n, c_, trains_base()) : Temporary();
  }
  return d_hidden;
}

}  // namespace neap::plan

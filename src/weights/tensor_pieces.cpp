#include "weights/tensor_pieces.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <type_traits>

#include "base/format.h"
#include "base/parallel_for.h"
#include "base/status.h"
#include "bridge/runtime.h"
#include "bridge/streams.h"

namespace neap::weights {
namespace {

using at::ScalarType;
using at::Tensor;

template <class To, class From>
void convert(const std::byte* from, std::byte* to, std::uint64_t count) {
  // float represents every value of the narrower types.
  constexpr bool kWide =
      std::is_same_v<From, double> && (std::is_same_v<To, double> || std::is_same_v<To, float>);
  using Middle = std::conditional_t<kWide, double, float>;
  const From* in = reinterpret_cast<const From*>(from);
  To* out = reinterpret_cast<To*>(to);
  for (std::uint64_t i = 0; i < count; ++i) out[i] = static_cast<To>(static_cast<Middle>(in[i]));
}

template <class From>
void convert_from(const std::byte* from, ScalarType type, std::byte* to, std::uint64_t count) {
  switch (type) {
    case at::kFloat:
      return convert<float, From>(from, to, count);
    case at::kBFloat16:
      return convert<at::BFloat16, From>(from, to, count);
    case at::kHalf:
      return convert<at::Half, From>(from, to, count);
    case at::kDouble:
      return convert<double, From>(from, to, count);
    default:
      throw Error(ErrorCode::kUnsupported,
                  format("Values cannot be converted to {}", c10::toString(type)));
  }
}

// Uses plain loops: libtorch's own copies would start threads in each of these threads.
void convert_values(const std::byte* from, ScalarType from_type, std::byte* to, ScalarType to_type,
                    std::uint64_t count) {
  switch (from_type) {
    case at::kFloat:
      return convert_from<float>(from, to_type, to, count);
    case at::kBFloat16:
      return convert_from<at::BFloat16>(from, to_type, to, count);
    case at::kHalf:
      return convert_from<at::Half>(from, to_type, to, count);
    case at::kDouble:
      return convert_from<double>(from, to_type, to, count);
    case at::kFloat8_e4m3fn:
      return convert_from<at::Float8_e4m3fn>(from, to_type, to, count);
    case at::kFloat8_e5m2:
      return convert_from<at::Float8_e5m2>(from, to_type, to, count);
    default:
      throw Error(ErrorCode::kUnsupported,
                  format("Values cannot be converted from {}", c10::toString(from_type)));
  }
}

// One of each per thread, reused for all pieces.
thread_local PieceBuffer first_buffer, second_buffer;

}  // namespace

Tensor host_view(std::byte* bytes, std::uint64_t count, ScalarType type) {
  return at::from_blob(bytes, {static_cast<std::int64_t>(count)}, at::dtype(type));
}

PieceValues::PieceValues(const Tensor& flat, std::uint64_t first, std::uint64_t count)
    : piece_(flat.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count))),
      count_(count) {}

std::byte* PieceValues::place(ScalarType type, PieceBuffer& buffer) const {
  if (direct(type)) return host();
  return buffer.of(count_ * width_of(type));
}

void PieceValues::store(const std::byte* from, ScalarType type, PieceBuffer& converted) const {
  if (direct(type)) return;
  const ScalarType own = piece_.scalar_type();
  if (type == own) {
    Tensor(piece_).copy_(host_view(const_cast<std::byte*>(from), count_, own));
    return;
  }
  std::byte* to = piece_.is_cpu() ? host() : converted.of(count_ * width_of(own));
  convert_values(from, type, to, own, count_);
  if (!piece_.is_cpu()) Tensor(piece_).copy_(host_view(to, count_, own));
}

const std::byte* PieceValues::load(ScalarType type, PieceBuffer& copied,
                                   PieceBuffer& converted) const {
  const std::byte* from = host();
  const ScalarType own = piece_.scalar_type();
  if (!piece_.is_cpu()) {
    std::byte* copy = copied.of(count_ * width_of(own));
    host_view(copy, count_, own).copy_(piece_);
    from = copy;
  }
  if (type == own) return from;
  std::byte* to = converted.of(count_ * width_of(type));
  convert_values(from, own, to, type, count_);
  return to;
}

std::size_t all_threads() {
  return static_cast<std::size_t>(at::get_num_threads());
}

void for_each_piece(
    const std::vector<Tensor>& tensors, const std::vector<TensorPiece>& pieces, std::size_t threads,
    const std::function<void(const TensorPiece&, PieceBuffer&, PieceBuffer&)>& visit) {
  const bridge::StreamsOf streams(tensors);
  parallel_for(pieces.size(), threads, [&](std::size_t i) {
    const at::NoGradGuard no_grad;
    const bridge::HostScope host;
    const bridge::StreamsOf::Current current(streams);
    visit(pieces[i], first_buffer, second_buffer);
  });
  first_buffer.release();  // belongs to the caller's thread; the other threads have ended
  second_buffer.release();
}

void cut_pieces(std::size_t tensor, std::uint64_t elements, std::uint64_t width,
                std::vector<TensorPiece>& pieces) {
  const std::uint64_t step = kPieceBytes / width;
  for (std::uint64_t first = 0; first < elements; first += step)
    pieces.push_back({tensor, first, std::min(step, elements - first)});
}

}  // namespace neap::weights

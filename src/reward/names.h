// Left sides of equations that only name what is on the right side.
//
// Threads   functions without state.
#pragma once

#include <string_view>

namespace neap::reward {

/// x, x_1, f(x), f'(x), \\theta, AB, \\angle ABC, P(A), \\frac{dy}{dx}, (x, y), \\sin A, "Area"; not xy,
/// 2x and "not x".
[[nodiscard]] bool is_name(std::string_view text);
/// x, x_1, x_{2}: `text` without what is behind the letter.
[[nodiscard]] std::string_view base_of_name(std::string_view text);

}  // namespace neap::reward

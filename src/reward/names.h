// Recognizes left sides of equations that only name the value on the right side.
//
// Threads   stateless functions.
#pragma once

#include <string_view>

namespace neap::reward {

/// True for x, x_1, f(x), f'(x), \\theta, AB, \\angle ABC, P(A), \\frac{dy}{dx}, (x, y), \\sin A
/// and "Area". False for xy, 2x and "not x".
[[nodiscard]] bool is_name(std::string_view text);
/// The letter of x, x_1 or x_{2}, without what follows it.
[[nodiscard]] std::string_view base_of_name(std::string_view text);

}  // namespace neap::reward

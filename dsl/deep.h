// Deep expressions: chains of thousands of operators, which functions that call themselves walk on a stack of their
// own.
#pragma once
#include <functional>
#include <optional>
#include <type_traits>

#include "dsl/expr.h"

namespace tw {

/// Nodes on the longest way from the expression down to a variable or a constant.
int depth_of(const Expr& expr);

/// What compute() takes; reading another tensor starts anew.
constexpr int deepest_expression = 50000;

namespace detail {
constexpr int shallow = 200;  // any thread has room for these
/// Calls `walk` on a stack with room for so many nodes below each other.
void with_room_for_levels(int levels, const std::function<void()>& walk);
}  // namespace detail

/// walk(), which calls itself once a level of an expression of that depth.
template <class Walk>
auto with_room_for(int depth, Walk&& walk) {
    using Result = std::invoke_result_t<Walk>;
    if (depth <= detail::shallow) return walk();
    if constexpr (std::is_void_v<Result>) {
        detail::with_room_for_levels(depth, walk);
    } else {
        std::optional<Result> result;
        detail::with_room_for_levels(depth, [&] { result.emplace(walk()); });
        return std::move(*result);
    }
}
template <class Walk>
auto with_room_for(const Expr& expr, Walk&& walk) {
    return with_room_for(depth_of(expr), std::forward<Walk>(walk));
}

}  // namespace tw

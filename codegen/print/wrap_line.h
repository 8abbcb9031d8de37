// Statements that are too long for a line, in several.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tw::codegen {

/// The statement in lines of at most `columns` characters, as far as it has places to break at: behind commas and
/// operators, between the indices of an element, as few parentheses deep as it can be, continued behind the open one
/// or, for the outermost if that takes fewer lines, four columns in. No blank inside of a literal or of a comment
/// behind it; a comment alone is text. Directives stay whole.
///
///     tw::f(a[i],
///           tw::g(b, c));
std::vector<std::string> wrap_line(std::string_view statement, size_t columns);

}  // namespace tw::codegen

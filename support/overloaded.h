// A visitor of a variant, made of functions: std::visit(Overloaded{[](const A&) {}, [](const B&) {}}, variant).
#pragma once

namespace tw {

template <class... Cases>
struct Overloaded : Cases... {
    using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace tw

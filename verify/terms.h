// Values as terms over the elements that a kernel is given: two equal terms are equal values, whatever the data.
#pragma once
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "dsl/expr.h"

namespace tw::fuzz {

/// A term's number. Equal terms have equal numbers.
using Term = int32_t;

/// Terms are made once. Operations on constants are carried out; a few laws are applied that hold for all finite values
/// and do not tell -0 from 0: operands of commutative operations change places, x + 0 and max(x, -infinity) are x,
/// x - x and x * 0 are 0, x * 1 and x / 1 are x, max(x, x) is x, nothing is less than -infinity, integers whose ranges
/// lie apart are not equal, -infinity + x is -infinity, |-infinity| is infinity, which is more than x, exp2(-infinity)
/// is 0 and exp2(0) is 1, either x < y or y <= x, what goes with the larger of two numbers goes with it in either order
/// if ties are broken in one way. No law holds for what nobody wrote.
class Terms {
public:
    Term integer(Type type, int64_t value);
    Term real(Type type, double value);
    /// What stands in element `offset` of memory `memory` at the start, or is given as a scalar.
    Term symbol(Type type, int memory, int64_t offset);
    /// An element of a memory that nobody writes, at an index that depends on data.
    Term element(Type type, int memory, Term index);
    /// What nobody wrote: equal to nothing else.
    Term undefined(Type type);

    Term unary(UnaryOp op, Type type, Term a);
    Term binary(BinaryOp op, Type type, Term a, Term b);
    Term fma(Type type, Term a, Term b, Term c);
    Term select(Type type, Term condition, Term yes, Term no);
    Term cast(Type type, Term a);

    /// The value of an integer or bool that does not depend on data.
    std::optional<int64_t> value(Term term) const;
    /// Something that nobody wrote is part of it.
    bool is_undefined(Term term) const { return facts_[static_cast<size_t>(term)].undefined; }

private:
    enum class Kind : int8_t { Integer, Real, Symbol, Element, Undefined, Unary, Binary, Fma, Select, Cast };
    struct Node {
        Kind kind;
        Type type;
        int op = 0;
        Term a = -1, b = -1, c = -1;
        int64_t number = 0;
        bool operator==(const Node&) const = default;
    };
    struct Facts {
        bool undefined = false, finite = true;
        bool below = true;  // finite, or -infinity
        int64_t lo, hi;     // of an integer
    };
    struct Hash {
        size_t operator()(const Node& node) const;
    };

    Term make(const Node& node);
    Facts facts_of(const Node& node) const;
    static bool makes_infinities(const Node& node);
    bool is_below(const Node& node) const;
    bool makes_finite(const Node& node) const;
    std::optional<double> real_value(Term term) const;
    bool is_finite(Term term) const { return facts_[static_cast<size_t>(term)].finite; }
    bool is_below(Term term) const { return facts_[static_cast<size_t>(term)].below; }
    bool is_infinite(Term term) const;
    bool is_real(Term term, double value) const { return real_value(term) == value; }
    bool is_not(Term one, Term other) const;
    bool is_binary(Term term, BinaryOp op) const;
    bool says_equal(Term condition, Term one, Term other) const;
    std::optional<Term> by_constants(BinaryOp op, Type type, Term a, Term b);
    std::optional<Term> by_law(BinaryOp op, Type type, Term a, Term b);
    std::optional<Term> of_infinity(BinaryOp op, Type type, Term a, Term b);
    std::optional<Term> square_of_difference(Type type, Term a, Term b);
    std::optional<Term> of_words(BinaryOp op, Type type, Term a, Term b);
    std::optional<Term> of_bools(BinaryOp op, Term a, Term b);
    struct Choice {
        Term condition, yes, no;
        bool operator==(const Choice&) const = default;
    };
    std::optional<Choice> ordered(const Choice& choice);
    std::optional<bool> by_ranges(BinaryOp op, Term a, Term b) const;

    std::vector<Node> nodes_;
    std::vector<Facts> facts_;
    std::unordered_map<Node, Term, Hash> known_;
    int64_t undefined_ = 0;
};

}  // namespace tw::fuzz

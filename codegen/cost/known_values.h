// Which values a thread has computed: a compiler does not compute equal ones again.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "dsl/tree.h"

namespace tw::codegen {

/// Numbers of values: equal expressions of equal variables and elements have equal ones, however often they were
/// written. Of integers they are sums as the values are: (i + 1) + k has that of i + (k + 1).
class KnownValues {
public:
    using Number = uint64_t;

    Number of(const Expr& expr) const;
    struct Operands {
        std::array<Number, 3> numbers = {};  ///< no expression that is computed has more
        size_t count = 0;
        void add(Number number) { numbers[count++] = number; }
    };
    /// Of an expression whose operands have these numbers.
    Number of(const Expr& expr, const Operands& operands) const;
    /// Of an element, or of so many side by side.
    Number of(const BufferNode* buffer, const std::vector<Expr>& indices, int64_t width = 1) const;
    static Number of(int64_t value);
    /// None that was there before.
    Number fresh();

    void define(const Expr& variable, Number value) { variables_[variable.id()] = value; }
    void begin(const BufferNode* registers) { contents_[registers] = 0; }
    /// Elements at `place` have changed; which ones have not, is not known.
    void write(const BufferNode* buffer, Number place, Number value);

    /// Whether it was not there, where it is now.
    bool add(Number value);
    /// What was added goes, what is stored stays.
    void clear() { added_.clear(), in_order_.clear(); }
    size_t count() const { return in_order_.size(); }
    void keep_first(size_t count);

private:
    Number content_of(const BufferNode* buffer) const;

    std::map<const ExprNode*, Number> variables_;
    std::map<const BufferNode*, Number> contents_;
    std::unordered_set<Number> added_;
    std::vector<Number> in_order_;
    Number last_ = 0;
};

}  // namespace tw::codegen

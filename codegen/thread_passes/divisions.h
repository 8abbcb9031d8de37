// The quotients and remainders in a kernel's indices: how often each is needed, and what it is.
#pragma once
#include <string>
#include <vector>

#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// x / y or x % y
bool is_division(const Expr& expr);
/// x / y % z
bool is_digit(const Expr& expr);

class Divisions {
public:
    explicit Divisions(const ThreadKernel& kernel);
    /// In how many places of the kernel it stands. The quotient of a digit is a part of that.
    int uses(const Expr& division) const;
    /// By what it is: a warp, a lane, the stage of a ring, a row or column of the array that it is an index of, which
    /// is named too if it is only one; else by the variable that is divided.
    ///
    ///     s[thread / 8][thread % 8 * 4]    s_row, s_vector
    ///     ring[ko % 4][...]                stage
    ///     x[thread / 16 % 2 * n]           thread_digit
    std::string name(const Expr& division) const;

private:
    /// An index that it is, but for a factor: "row" of these arrays.
    struct Part {
        std::string what;
        std::vector<std::string> buffers;
    };
    struct Division {
        Expr expr;
        int uses = 0;
        std::vector<Part> parts = {};
    };

    Division* find(const Expr& expr);
    const Division* find(const Expr& expr) const;
    void count(const Expr& root);
    void see_indices(const Access& access);
    void add_part(const Expr& division, const std::string& what, const std::string& buffer);
    bool of_the_block(const Expr& expr) const;

    const ThreadKernel& kernel_;
    std::vector<Division> all_;
};

}  // namespace tw::codegen

// Random chains of stages in shared memory, and kernels that have no room for all of them side by side.
#pragma once
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "dsl/schedule.h"
#include "ops/program.h"

namespace tw {

/// Rows of whole numbers: stages that are made of one or two of those before, each in a type of its own.
class RandomChain {
public:
    static constexpr int64_t rows = 12;

    explicit RandomChain(unsigned seed) : random_(seed) {
        const int64_t width = 8 * between(1, 6);
        const Tensor x = input("x", i32, {rows, width});
        stages_.push_back(compute("s0", {rows, width}, [&](Expr i, Expr j) { return x(i, width - 1 - j) + 1; }));
        for (int n = between(2, 6); n > 0; --n) stages_.push_back(next_stage());
        const Tensor last = stages_.back();
        y_ = compute("y", {rows, width},
                     [&](Expr i, Expr j) { return element(last, i, j * 3 + 1) - element(last, i, j); });
    }

    const Tensor& output() const { return y_; }

    /// All stages in shared memory, in each iteration of a loop over tiles of rows.
    Schedule schedule(const Target& target) const {
        std::mt19937 dice = random_;
        auto upto = [&](int most) { return std::uniform_int_distribution<int>(0, most)(dice); };
        Schedule s({y_}, target);
        auto [i, j] = s.loops<2>(y_);
        auto [block, in_block] = s.split(i, 3 << upto(1), {"block", "in_block"});
        auto [tile, row] = s.split(in_block, 3, {"tile", "row"});
        s.bind(block, grid.x);
        s.bind(upto(1) ? row : j, thread);
        for (size_t k = stages_.size(); k-- > 0;) {
            s.at(stages_[k], tile);
            s.set_memory(stages_[k], Memory::Shared);
        }
        for (const Tensor& stage : stages_) {
            const std::vector<Loop> loops = s.data_loops(stage);
            const size_t bound = static_cast<size_t>(upto(2));  // rows, columns or none of them
            if (bound < loops.size()) s.bind(loops[bound], thread);
        }
        return s;
    }

private:
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

    /// Of the stage, at a place that any integer names.
    static Expr element(const Tensor& stage, const Expr& i, const Expr& j) {
        return cast(i32, stage.rank() == 1 ? stage(i) : stage(i, j % require_constant(stage.shape()[1])));
    }

    Tensor next_stage() {
        const Tensor a = stages_.back(),
                     b = stages_[static_cast<size_t>(between(0, static_cast<int>(stages_.size()) - 1))];
        const std::string name = fmt::format("s{}", stages_.size());
        const Type type = std::vector{i8, i32, i64}[static_cast<size_t>(between(0, 2))];
        const int64_t width = 8 * between(1, 6);
        if (between(0, 4) == 0) {
            const Axis r = reduce_axis("r", width);
            return compute(name, {rows},
                           [&](Expr i) { return cast(type, sum(element(a, i, r) * element(b, i, r + 3), r)); });
        }
        const int64_t step = between(1, 7);
        return compute(name, {rows, width}, [&](Expr i, Expr j) {
            return cast(type, element(a, i, j * step + 1) * 3 - element(b, i, width - 1 - j));
        });
    }

    std::mt19937 random_;
    std::vector<Tensor> stages_;
    Tensor y_;
};

inline int64_t shared_bytes_of(const Schedule& schedule) { return build(schedule).kernels()[0].shared_bytes; }

/// The target, whose blocks have so much shared memory.
inline Target with_room(Target target, int64_t bytes) {
    target.shared_bytes = bytes;
    return target;
}

/// What `make` makes for a target, for one that lacks a byte to hold its arrays side by side, in whatever layouts.
/// Throws Error if they cannot take turns.
template <class Make>
Schedule without_room(const Make& make, const Target& target) {
    Schedule s = make(target);
    while (build(s).cuda().find("union {") == std::string::npos) s = make(with_room(target, shared_bytes_of(s) - 1));
    return s;
}

}  // namespace tw

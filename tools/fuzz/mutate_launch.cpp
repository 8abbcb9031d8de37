#include "tools/fuzz/mutate_launch.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "codegen/passes.h"
#include "codegen/thread_walk.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

bool is_call(const ThreadStmt& stmt, const char* primitive) {
    const ThreadCall* call = stmt.as<ThreadCall>();
    return call && call->primitive == primitive;
}

class HeadMutator {
public:
    explicit HeadMutator(const ThreadKernel& kernel) : kernel_(kernel) {}

    std::vector<Mutant> run() {
        waits();
        attributes();
        registers();
        return std::move(found_);
    }

private:
    void add(const std::string& text, const std::vector<ThreadStmt>& body) {
        ThreadKernel mutant = kernel_;
        mutant.body = make_thread(ThreadBlock{body}, kernel_.body.step());
        found_.push_back({MutationKind::Launch, text, std::move(mutant), true});
    }

    void waits() {
        const std::vector<ThreadStmt> all = statements(start_early(kernel_).body);
        auto wait = std::find_if(all.begin(), all.end(), [](auto& stmt) { return is_call(stmt, "wait_for_previous"); });
        if (wait == all.end()) return;
        const auto at = wait - all.begin();
        std::vector<ThreadStmt> without = all, last, next = all;
        without.erase(without.begin() + at);
        last = without;
        last.push_back(*wait);
        next[size_t(at)] = make_thread(ThreadCall{"start_next", {}, {}});
        add("wait_for_previous: left out", without);
        add("wait_for_previous: at the end", last);
        add("wait_for_previous: start_next", next);
    }

    void attribute(const std::string& from, const std::string& to) {
        found_.push_back({MutationKind::Launch, fmt::format("{}: {}", from, to), kernel_, false, from, to});
    }

    void attributes() {
        const int threads = kernel_.threads + kernel_.helpers;
        auto bounds = [](int count) { return fmt::format("__launch_bounds__({},", count); };
        if (threads > 1) attribute(bounds(threads), bounds(threads - 1));
        auto sides = [](int blocks) { return fmt::format("__cluster_dims__({},", blocks); };
        if (kernel_.cluster > 1) attribute(sides(kernel_.cluster), sides(kernel_.cluster / 2));
        if (!kernel_.maps.empty()) attribute("const __grid_constant__ tw::TensorMap", "const tw::TensorMap");
    }

    void registers() {
        std::optional<ThreadCall> shrink, grow;
        visit(kernel_.body, [&](const ThreadStmt& stmt) {
            if (is_call(stmt, "shrink_registers")) shrink = *stmt.as<ThreadCall>();
            if (is_call(stmt, "grow_registers")) grow = *stmt.as<ThreadCall>();
        });
        if (!shrink || !grow) return;
        ThreadKernel mutant = kernel_;
        mutant.body = transform(kernel_.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
            if (is_call(stmt, "shrink_registers")) return make_thread(*grow, stmt.step());
            if (is_call(stmt, "grow_registers")) return make_thread(*shrink, stmt.step());
            return stmt;
        });
        found_.push_back({MutationKind::Launch, "shrink_registers and grow_registers: exchanged", std::move(mutant)});
    }

    const ThreadKernel& kernel_;
    std::vector<Mutant> found_;
};

}  // namespace

std::vector<Mutant> altered_heads(const ThreadKernel& kernel) { return HeadMutator(kernel).run(); }

}  // namespace tw::fuzz

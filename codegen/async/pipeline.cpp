#include <algorithm>
#include <set>
#include <utility>

#include "codegen/async/async_copy.h"
#include "codegen/async/async_passes.h"
#include "codegen/async/run_segments.h"
#include "codegen/async/staged_buffers.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// All pipelined loops of a kernel.
class Pipeliner {
public:
    Pipeliner(TileKernel& kernel, StagedBuffers& staged, const CiteStep& cite)
        : kernel_(kernel), staged_(staged), cite_(cite) {}

    TileStmt run(const TileStmt& body) {
        TileBlock block;
        TileStmt rewritten = rewrite(body);
        for (const TileOp& start : left_.counters) block.stmts.push_back(make_tile(TileOp(start)));
        block.stmts.push_back(std::move(rewritten));
        TileStmt result = left_.counters.empty() ? block.stmts.back() : make_tile(std::move(block));
        for (const TileOp& start : left_.counters) result = make_tile(TileAllocate{start.stores[0].buffer, result});
        return result;
    }

private:
    TileStmt rewrite(const TileStmt& stmt) {
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            Inside inside = with_inner(*loop);
            const bool in_stages = loop->stages > 1 || (loop->is_block && filled_for_block(inside.loop.body));
            return in_stages ? pipelined({inside}) : make_tile(std::move(inside.loop));
        }
        const TileBlock* block = stmt.as<TileBlock>();
        if (!block) return map_children(stmt, [&](const TileStmt& kid) { return rewrite(kid); });
        TileBlock result;
        for (size_t first = 0; first < block->stmts.size();) {
            size_t behind = end_of_segments(block->stmts, first);
            if (behind == first + 1) {
                result.stmts.push_back(rewrite(block->stmts[first]));
            } else {
                std::vector<Inside> segments;
                for (size_t s = first; s < behind; ++s) segments.push_back(with_inner(*block->stmts[s].as<TileLoop>()));
                result.stmts.push_back(pipelined(segments));
            }
            first = behind;
        }
        return make_tile(std::move(result));
    }

    /// Behind the last segment of the loop that begins there, if other roles fill what it reads; else each is a loop of
    /// its own, whose fills end with it.
    static size_t end_of_segments(const std::vector<TileStmt>& stmts, size_t first) {
        const TileLoop* loop = stmts[first].as<TileLoop>();
        if (!loop || loop->stages == 1 || loop->loop < 0 || !filled_by_others(stmts[first])) return first + 1;
        size_t behind = first + 1;
        while (behind < stmts.size() && stmts[behind].as<TileLoop>() &&
               stmts[behind].as<TileLoop>()->loop == loop->loop)
            ++behind;
        return behind;
    }

    static bool filled_for_block(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return op->role > 0 && op->is<TmaCopyOp>();
        return !stmt.as<TileLoop>() && std::ranges::any_of(children(stmt), filled_for_block);
    }

    static bool filled_by_others(const TileStmt& loop) { return filled_for_block(loop.as<TileLoop>()->body); }

    /// A loop whose body is rewritten, and what loops in that have left to do behind it.
    struct Inside {
        TileLoop loop;
        std::vector<TileStmt> left;
    };
    Inside with_inner(const TileLoop& loop) {
        around_.push_back(loop);
        std::vector<TileStmt> outside = std::exchange(left_.behind, {});
        TileLoop result = loop;
        result.body = rewrite(loop.body);
        around_.pop_back();
        return {result, std::exchange(left_.behind, std::move(outside))};
    }

    /// Barriers begin anew with each run of segments, while boxes of the run before are in their stages.
    void check_runs(const TileLoop& loop) {
        if (loop.loop < 0 || loop.stages == 1 || !filled_for_block(loop.body) || runs_.insert(loop.loop).second) return;
        throw_error(Error,
                    "{}{}: pipeline({}, ...): it stands in a loop that is cut, or unrolled, and another role's copies "
                    "would run from one segment into the next; cut '{}' itself instead, or leave the loop around whole",
                    cite_(loop.pipeline_step), kernel_.name, loop.variable.as<Variable>()->name,
                    loop.variable.as<Variable>()->name);
    }

    TileStmt pipelined(const std::vector<Inside>& segments) {
        check_runs(segments[0].loop);
        std::vector<TileLoop> loops;
        std::vector<std::vector<TileStmt>> from_inside;
        for (const Inside& segment : segments) {
            loops.push_back(segment.loop);
            from_inside.push_back(segment.left);
        }
        return run_segments(kernel_, loops, from_inside, around_, staged_, left_, cite_);
    }

    TileKernel& kernel_;
    StagedBuffers& staged_;
    const CiteStep& cite_;
    std::vector<TileLoop> around_;
    std::set<int> runs_;  // loops whose boxes another role asks for
    Left left_;
};

}  // namespace

TileKernel pipeline(const TileKernel& kernel, const CiteStep& cite) {
    TileKernel result = kernel;
    StagedBuffers staged;
    result.body = Pipeliner(result, staged, cite).run(kernel.body);
    result.body = replace_ops(result.body, [&](const TileOp& op) { return awaited_at_once(result, op, cite); });
    // A segment that runs once is no loop any more: what it fills and reads is the first of the buffers.
    result.body = map_ops(result.body, [&](const TileOp& op) { return in_stage(op, staged, always(integer(0))); });
    if (turns_of(result) > 1) separate_turns(result);
    return result;
}

}  // namespace tw::codegen

#include "codegen/to_threads/store_lines.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "codegen/tile_passes/compare_masks.h"
#include "codegen/to_threads/fragment_tile.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t lanes_of_row = 4, widest_bytes = 16;

class LineTaker {
public:
    LineTaker(OpTile& tile, const TileOp& op, std::vector<std::string>& notes) : t_(tile), op_(op), notes_(notes) {}

    std::optional<LineStore> run() {
        if (!stores_pairs_of_lanes() || !find_pair()) return {};
        const int64_t most = widest_bytes / (2 * bytes_of(to().buffer->type));
        for (int64_t lanes = most; lanes > 1; lanes /= 2)
            if (take_loop(lanes)) return result_;
        if (!obstacle_.empty())
            notes_.push_back(fmt::format("{}: each lane stores its own elements: {}", op_.name, obstacle_));
        return {};
    }

private:
    const Access& to() const { return t_.stores[0].to; }

    bool stores_pairs_of_lanes() const {
        if (!t_.single() || t_.stores[0].atomic || !runs_in_whole_warps(op_)) return false;
        const int bytes = bytes_of(to().buffer->type);
        if (to().buffer->memory != Memory::Global || (bytes != 2 && bytes != 4)) return false;
        return !loads(t_.stores[0].value, to().buffer) && is_place_of_fragment(op_, to());
    }

    /// The loop along which a lane holds two neighbours of a row.
    bool find_pair() {
        for (auto loop = t_.tile.rbegin(); loop != t_.tile.rend(); ++loop) {
            if (!is_constant(loop->extent, 2)) continue;
            const Access row = replaced(to(), {{loop->variable, column_ - op_.lanes->column * 2}});
            if (mentions(row, op_.lanes->column) || !mentions(row, column_)) continue;
            result_.pair = *loop;
            return true;
        }
        return false;
    }

    /// One whose iterations so many lanes can share out, rather one of neighbours in memory; the tile's then.
    bool take_loop(int64_t lanes) {
        std::vector<size_t> loops;
        for (size_t l = t_.tile.size(); l-- > 0;)
            if (!t_.tile[l].variable.same(result_.pair.variable)) loops.push_back(l);
        auto is_near = [&](size_t l) {
            return coefficient(affine_of(to().indices.back()), t_.tile[l].variable) == matrix_side;
        };
        std::stable_partition(loops.begin(), loops.end(), is_near);
        return std::any_of(loops.begin(), loops.end(), [&](size_t l) { return take(l, lanes); });
    }

    bool take(size_t l, int64_t lanes) {
        const OpLoop loop = t_.tile[l];
        const auto extent = as_constant(loop.extent);
        if (!extent || *extent % lanes != 0 || !mentions(to(), loop.variable)) return false;
        const std::string name = name_of(loop.variable);
        const Expr digit = index_variable(name, 0, lanes - 1),
                   start = index_variable(name + "_" + std::to_string(lanes), 0, *extent / lanes - 1);
        const Substitution split{{loop.variable, *extent == lanes ? digit : simplify(start * lanes + digit)}};
        const Expr along = index_variable("along", 0, 2 * lanes - 1);
        const Access line = replaced(to(), split);
        const auto of_lane = of_line(line, digit, along, lanes);
        if (!of_lane || wide_elements(*of_lane, along, 2 * lanes) != 2 * lanes) return false;
        if (!share_conditions(split, digit, lanes)) return false;
        result_.lanes = lanes;
        result_.line = replaced(*of_lane, {{along, integer(0)}});
        result_.digit = {.variable = digit, .extent = integer(lanes), .execution = Execution::Unroll};
        t_.replace(split[0].first, split[0].second);
        t_.conditions = common_;
        guard_loads();
        if (*extent == lanes)
            t_.tile.erase(t_.tile.begin() + static_cast<ptrdiff_t>(l));
        else
            t_.tile[l].variable = start, t_.tile[l].extent = integer(*extent / lanes);
        std::erase_if(t_.tile, [&](const OpLoop& other) { return other.variable.same(result_.pair.variable); });
        t_.tile.push_back(result_.digit);
        t_.tile.push_back(result_.pair);
        return true;
    }

    /// What lanes say by their columns and pairs, of what a lane stores: of the matrix whose number it has among its
    /// neighbours, and `along` their columns; or along pairs, if it says nothing of their elements. Undefined if that
    /// cannot be told apart.
    Expr of_line(const Expr& e, const Expr& digit, const Expr& along, int64_t lanes) const {
        const Expr &column = op_.lanes->column, &pair = result_.pair.variable;
        const Expr number = lanes == lanes_of_row ? column : column % lanes,
                   first = lanes == lanes_of_row ? integer(0) : column / lanes * lanes,
                   held = index_variable("held", 0, lanes_of_row - 1);
        if (!contains(e, pair)) return replaced(e, {{digit, number}, {column, first + along}});
        const Expr line = replaced(e, {{digit, number}, {column, held}, {pair, (first - held) * 2 + along}});
        return contains(line, held) ? Expr() : line;
    }

    std::optional<Access> of_line(Access access, const Expr& digit, const Expr& along, int64_t lanes) const {
        for (Expr& index : access.indices) {
            index = of_line(index, digit, along, lanes);
            if (!index.defined()) return {};
        }
        return access;
    }

    /// Those that a warp decides as one stay around the exchange; of each other one, lanes ask for what they store.
    bool share_conditions(const Substitution& split, const Expr& digit, int64_t lanes) {
        common_.clear();
        of_elements_.clear();
        result_.conditions.clear();
        for (const Expr& condition : t_.conditions) {
            const Expr own = replaced(condition, split);
            const bool alike = !contains(own, op_.lanes->row) && !contains(own, op_.lanes->column) &&
                               !contains(own, digit) && !contains(own, result_.pair.variable);
            if (alike && same_in_warp(op_, own) && !loads(own, Memory::Registers)) {
                common_.push_back(condition);
                continue;
            }
            const int64_t width = contains(own, result_.pair.variable) ? 2 * lanes : lanes;
            const Expr along = index_variable("along", 0, width - 1), line = of_line(own, digit, along, lanes);
            const Expr of_lane = line.defined() ? uniform_over(line, along, width) : Expr();
            if (of_lane.defined() && !contains(own, op_.lanes->thread) && !loads(own, Memory::Registers)) {
                result_.conditions.push_back(of_lane);
                of_elements_.push_back(own);
                continue;
            }
            obstacle_ = fmt::format("{} may cut lines of {}", to_string(condition), 2 * lanes);
            return false;
        }
        return true;
    }

    /// All lanes compute, without branches; what lies in memory is read where it is there.
    void guard_loads() {
        if (of_elements_.empty()) return;
        const Expr there = all_of(of_elements_);
        if (divides_integers(t_.stores[0].value)) {
            t_.stores[0].value = guarded(there, t_.stores[0].value);
            return;
        }
        t_.stores[0].value = transform(t_.stores[0].value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            const bool in_memory = load && load->buffer->memory != Memory::Registers;
            if (!in_memory) return e;
            return guarded(there, e);
        });
    }
    static Expr guarded(const Expr& there, const Expr& e) { return select_unchecked(there, e, zero_of(e.type())); }
    /// Zeros in the place of what is not read would trap.
    static bool divides_integers(const Expr& value) {
        bool divides = false;
        visit(value, [&](const Expr& e) {
            const Binary* binary = e.as<Binary>();
            divides = divides || (binary && (binary->op == BinaryOp::Div || binary->op == BinaryOp::Mod) &&
                                  !is_float(e.type()) && !as_constant(binary->b));
        });
        return divides;
    }

    OpTile& t_;
    const TileOp& op_;
    std::vector<std::string>& notes_;
    Expr column_ = index_variable("column", 0, matrix_side - 1);
    std::vector<Expr> common_, of_elements_;
    std::string obstacle_;
    LineStore result_;
};

}  // namespace

std::optional<LineStore> take_lines(OpTile& tile, const TileOp& op, std::vector<std::string>& notes) {
    return LineTaker(tile, op, notes).run();
}

ThreadStmt store_lines(const OpTile& tile, int step) {
    const LineStore& lines = *tile.lines;
    const ThreadStore& store = tile.stores[0];
    const int elements = static_cast<int>(2 * lines.lanes);
    Buffer out = register_array(store.to.buffer->name + "_out", store.to.buffer->type, {elements});
    ThreadStmt exchange = make_thread(Instruction(TransposeLanes{lines.lanes, {{out, {integer(0)}}, elements}}), step);
    ThreadStmt wide = make_thread(ThreadWide{elements, lines.line, {out, {integer(0)}}}, step);
    if (!lines.conditions.empty()) wide = make_thread(ThreadIf{all_of(lines.conditions), wide}, step);
    return make_thread(ThreadBlock{{make_thread(ThreadDeclare{out}, step),
                                    computed({lines.digit, lines.pair}, out, store.value, step), exchange, wide}});
}

}  // namespace tw::codegen

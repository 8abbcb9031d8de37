#include "schedules/tile_ranges.h"

#include <algorithm>

#include "schedules/elementwise.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

bool depends_on(const Expr& expr, const Expr& variable) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.same(variable); });
    return found;
}

Expr is_left(const AttentionShape& shape, const ScoreRule& rule, const ScorePlace& at) {
    const Expr left = rule ? changed_by(rule, constant(f32, 0.0), at) > -infinity : Expr(true);
    return shape.causal ? at.key <= at.position && left : left;
}

bool is_by_heads(const AttentionShape& shape, const ScoreRule& rule) {
    const Expr b = index_variable("b", 0, shape.batch - 1), h = index_variable("h", 0, shape.heads - 1),
               i = index_variable("i", 0, shape.rows - 1), j = index_variable("j", 0, shape.keys - 1);
    return depends_on(is_left(shape, rule, {b, h, i, j, shape.position(i)}), h);
}

/// [batch, tiles, 2] of multiples of the first, and how many to the last; none from 0 on.
Tensor ranges_between(const std::string& name, const Tensor& first, const Tensor& behind, int64_t multiple) {
    return compute(name, {first.shape()[0], first.shape()[1], 2}, [&](Expr b, Expr tile, Expr what) {
        const auto in_multiples = constant(i32, multiple);
        const Expr begin = first(b, tile) / in_multiples * in_multiples, extent = max(behind(b, tile) - begin, 0);
        return select(what == 0, select(extent == 0, 0, begin), extent);
    });
}

}  // namespace

TileRanges declare_key_ranges(const AttentionShape& shape, const ScoreRule& rule, int64_t of_tile,
                              std::source_location where) {
    CalledFrom caller(where);
    check_attention(shape, where);
    require_sizes("key ranges", {{"of_tile", of_tile}}, where);
    const int64_t tiles = divided(shape.rows, of_tile);
    const bool by_heads = is_by_heads(shape, rule);
    struct Terms {
        Axis head, row, key;
    };
    auto terms = [&](const std::string& suffix) {
        return Terms{reduce_axis("h" + suffix, shape.heads), reduce_axis("r" + suffix, of_tile),
                     reduce_axis("j" + suffix, shape.keys)};
    };
    auto axes = [&](const Terms& of) {
        return by_heads ? std::vector<Axis>{of.head, of.row, of.key} : std::vector<Axis>{of.row, of.key};
    };
    auto sees = [&](const Expr& b, const Expr& tile, const Terms& of) {
        const Expr i = min(tile * of_tile + of.row, shape.rows - 1);
        return is_left(shape, rule, {b, by_heads ? Expr(of.head) : integer(0), i, of.key, shape.position(i)});
    };
    const Terms of_first = terms("1"), of_behind = terms("2");
    TileRanges r;
    r.first = compute("first_key", {shape.batch, tiles}, [&](Expr b, Expr tile) {
        const Expr key = cast(i32, of_first.key.variable), none = constant(i32, shape.keys);
        return reduce_min(select(sees(b, tile, of_first), key, none), axes(of_first));
    });
    r.behind = compute("behind_key", {shape.batch, tiles}, [&](Expr b, Expr tile) {
        const Expr key = cast(i32, of_behind.key.variable), none = constant(i32, int64_t{0});
        return reduce_max(select(sees(b, tile, of_behind), key + 1, none), axes(of_behind));
    });
    r.ranges = ranges_between("ranges", r.first, r.behind, keys_of_box);
    return r;
}

TileRanges declare_ranges_of_keys(const AttentionShape& shape, const Tensor& ranges, int64_t of_rows, int64_t of_keys,
                                  std::source_location where) {
    require_sizes("ranges of keys", {{"of_rows", of_rows}, {"of_keys", of_keys}}, where);
    const int64_t tiles = divided(shape.keys, of_keys), of_others = divided(shape.rows, of_rows);
    table_of_attention(ranges, "ranges", {shape.batch, of_others, 2},
                       fmt::format("declare_key_ranges, of tiles of {} rows,", of_rows), where);
    const Axis r1 = reduce_axis("r1", of_others), r2 = reduce_axis("r2", of_others);
    auto goes_through = [&](const Expr& b, const Expr& tile, const Axis& r) {
        const Expr begin = cast(i64, ranges(b, r, 0)), count = cast(i64, ranges(b, r, 1));
        return count > 0 && begin < tile * of_keys + of_keys && begin + count > tile * of_keys;
    };
    TileRanges r;
    r.first = compute("first_row", {shape.batch, tiles}, [&](Expr b, Expr tile) {
        const Expr row = cast(i32, r1.variable * of_rows);
        return reduce_min(select(goes_through(b, tile, r1), row, constant(i32, shape.rows)), r1);
    });
    r.behind = compute("behind_row", {shape.batch, tiles}, [&](Expr b, Expr tile) {
        const Expr behind = cast(i32, min(r2.variable * of_rows + of_rows, shape.rows));
        return reduce_max(select(goes_through(b, tile, r2), behind, constant(i32, int64_t{0})), r2);
    });
    r.ranges = ranges_between("ranges_of_keys", r.first, r.behind, 1);
    return r;
}

void schedule_ranges(Schedule& s, const TileRanges& ranges, std::source_location where) {
    constexpr int64_t threads = 256;
    for (const Tensor& each : {ranges.first, ranges.behind}) {
        auto [b, tile] = s.loops<2>(each, where);
        const Loop block = s.fuse({b, tile}, "tile", where);
        const std::vector<Loop> all = s.all_loops(each, where);
        auto [step, term] = s.split(all.back(), threads, Tail::Mask, {"step", "term"}, where);
        s.bind(block, grid.x, where);
        s.bind(term, thread, where);
    }
    schedule_each_element(s, ranges.ranges, 128, where);
}

Schedule key_ranges_schedule(const TileRanges& ranges, const Target& target, std::source_location where) {
    Schedule s({ranges.ranges}, target, where);
    schedule_ranges(s, ranges, where);
    return s;
}

Axis RangeWalk::axis(const std::string& name, const Expr& b, const Expr& element) const {
    const Expr steps = (cast(i64, ranges(b, tile(element), 1)) + (step - 1)) / step;
    return reduce_axis(name, min(steps * step, most()));
}

Tensor RangeWalk::view(const AttentionShape& shape, const std::string& name, const Tensor& tokens) const {
    const Expr heads = tokens.shape()[shape.heads_first ? 1 : 2], extent = tokens.shape()[3];
    return compute(
        name, {shape.batch, ranges.shape()[1], most(), heads, extent}, [&](Expr b, Expr t, Expr j, Expr h, Expr x) {
            const Expr token = first(b, t) + j;
            return shape.heads_first ? padded(tokens, 0.0)(b, h, token, x) : padded(tokens, 0.0)(b, token, h, x);
        });
}

Tensor RangeWalk::view_of_numbers(const std::string& name, const Tensor& numbers) const {
    return compute(name, {numbers.shape()[0], ranges.shape()[1], numbers.shape()[1], most()},
                   [&](Expr b, Expr t, Expr h, Expr x) { return padded(numbers, 0.0)(b, h, first(b, t) + x); });
}

namespace {

/// Those in front of an input's last index, if that is `other`, and they are of the batch and the head.
std::optional<std::vector<Expr>> indices_in_front(const Read& read, const ScorePlace& at, const Expr& other) {
    if (!read.operation->is_input() || read.guarded || read.indices.empty()) return {};
    if (!equal(read.indices.back(), other)) return {};
    std::vector<Expr> front(read.indices.begin(), read.indices.end() - 1);
    auto is_known = [&](const Expr& index) {
        return is_constant(index, 0) || index.same(at.batch) || index.same(at.head);
    };
    return std::ranges::all_of(front, is_known) ? std::optional(front) : std::nullopt;
}

/// Of all batches and tiles, and of the input's dimensions of heads: of those in front of its last the rest is the
/// tile's batch, or of extent 1.
Tensor view_of_input(const RangeWalk& walk, const Tensor& input, const std::vector<Expr>& front, const ScorePlace& at,
                     const std::string& name) {
    const Expr none = is_float(input.type()) ? constant(input.type(), 0.0) : constant(input.type(), int64_t{0});
    Shape extents{walk.ranges.shape()[0], walk.ranges.shape()[1]};
    for (size_t d = 0; d < front.size(); ++d)
        if (front[d].same(at.head)) extents.emplace_back(input.shape()[d]);
    extents.emplace_back(walk.most());
    return compute(name, extents, [&](const std::vector<Expr>& of_view) {
        std::vector<Operand> indices;
        auto head = of_view.begin() + 2;
        for (const Expr& index : front)
            indices.emplace_back(index.same(at.head) ? *head++ : index.same(at.batch) ? of_view[0] : integer(0));
        indices.emplace_back(walk.first(of_view[0], of_view[1]) + of_view.back());
        return padded(input, none).read(indices);
    });
}

}  // namespace

Expr with_range_views(const Expr& value, const RangeWalk& walk, const ScorePlace& at, const Expr& own,
                      const Expr& other, const Expr& x, const std::string& suffix, RangeViews& views) {
    return transform(value, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        const auto front = read ? indices_in_front(*read, at, other) : std::nullopt;
        if (!front) return {};
        const Tensor input(read->operation, read->output);
        auto found = std::ranges::find_if(views, [&](const auto& each) { return each.first.same(input); });
        if (found == views.end()) {
            views.emplace_back(input, view_of_input(walk, input, *front, at, input.name() + suffix));
            found = views.end() - 1;
        }
        std::vector<Operand> indices{at.batch, walk.tile(own)};
        for (const Expr& index : *front)
            if (index.same(at.head)) indices.emplace_back(index);
        indices.emplace_back(x);
        return found->second.read(indices);
    });
}

}  // namespace tw::schedules

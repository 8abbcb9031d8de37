// A schedule's tree, executed sequentially: leaves compiled once, memory checked at every access.
#include <algorithm>
#include <deque>

#include "dsl/check_bindings.h"
#include "dsl/interpret.h"
#include "support/error.h"

namespace tw {
namespace {

/// An integer expression; most are a variable or a constant.
class Index {
public:
    Index(const Expr& expr, SlotMap& slots, const Resolve& resolve) {
        if (auto known = as_constant(expr))
            constant_ = *known;
        else if (expr.as<Variable>())
            slot_ = slots.slot(expr);
        else
            code_.emplace_back(expr, slots, resolve);
    }
    int64_t value(const std::vector<Register>& slots) const {
        if (slot_ >= 0) return slots[slot_].integer;
        return code_.empty() ? constant_ : code_[0].run_integer(slots);
    }

private:
    int slot_ = -1;
    int64_t constant_ = 0;
    std::vector<CompiledExpr> code_;  // none or one
};

/// A buffer and, while the tree runs, its memory.
struct Place {
    BufferRef buffer;
    MemoryView view;
    std::vector<unsigned char> data;  // of local buffers and workspaces
    std::vector<uint8_t> initialised;
};

struct Store {
    Place* place;
    std::vector<Index> indices;
    CompiledExpr value;
};

struct LeafCode {
    const Leaf* leaf;
    std::vector<CompiledExpr> mask;  // none if always true
    std::vector<Store> stores;
    std::vector<std::pair<std::string, int>> loops;  // around it: names and slots
};

/// The accumulators of a reduction, a partial result for each value of a loop.
struct CombineCode {
    struct Component {
        CompiledExpr partial;
        Store total;
        int left, right;  // slots of the operands
    };
    struct Prefix {
        Store to;
        int left;  // slot of the operand
    };
    const Leaf* leaf;
    int across;  // the loop's slot
    std::vector<Component> components;
    std::vector<Prefix> prefixes;  // none, or one a component
    std::vector<std::pair<std::string, int>> loops;
};

struct Node;
struct LoopCode {
    int slot;
    Index extent;
    std::vector<Node> body;
};
struct AllocateCode {
    Place* place;
    std::vector<Node> body;
};
struct Node {
    std::variant<LoopCode, AllocateCode, LeafCode, CombineCode> kind;
};

std::string kind_text(Leaf::Kind kind) {
    switch (kind) {
        case Leaf::Kind::Init: return "init";
        case Leaf::Kind::Update: return "update";
        case Leaf::Kind::Combine: return "combine";
        case Leaf::Kind::Finish: return "finish";
        case Leaf::Kind::Copy: return "copy";
    }
    return "?";
}

}  // namespace

struct TreeInterpreter::Compiled {
    explicit Compiled(const Tree& t) : tree(t) {
        resolve = [this](const ExprNode& node) { return &place_of(std::get<Load>(node.kind).buffer).view; };
        for (const Expr& size : tree.sizes) slots.slot(size);
        for (const Expr& scalar : tree.scalars) slots.slot(scalar);
        for (auto* buffers : {&tree.inputs, &tree.outputs, &tree.workspaces})
            for (const BufferRef& buffer : *buffers) place_of(buffer);
        for (const Nest& nest : tree.nests) compile(nest.body, program);
    }

    // Compilation.

    Place& place_of(const BufferRef& buffer) {
        for (Place& place : places)
            if (place.buffer == buffer) return place;
        Place& place = places.emplace_back();
        place.buffer = buffer;
        place.view.type = buffer->type;
        place.view.name = buffer->name;
        place.view.shape.resize(buffer->shape.size());
        place.view.strides.resize(buffer->shape.size());
        return place;
    }

    void compile(const Stmt& stmt, std::vector<Node>& out) {
        std::visit([&](const auto& node) { compile(node, out); }, (*stmt).kind);
    }
    void compile(const For& loop, std::vector<Node>& out) {
        LoopCode code{slots.slot(loop.variable), Index(loop.extent, slots, resolve), {}};
        around.emplace_back(to_string(loop.variable), code.slot);
        compile(loop.body, code.body);
        around.pop_back();
        out.push_back({std::move(code)});
    }
    void compile(const Sequence& block, std::vector<Node>& out) {
        for (const Stmt& stmt : block.stmts) compile(stmt, out);
    }
    void compile(const Allocate& allocate, std::vector<Node>& out) {
        AllocateCode code{&place_of(allocate.buffer), {}};
        compile(allocate.body, code.body);
        out.push_back({std::move(code)});
    }
    void compile(const Leaf& leaf, std::vector<Node>& out) {
        if (leaf.kind == Leaf::Kind::Combine) return compile_combine(leaf, out);
        LeafCode code{&leaf, {}, {}, around};
        if (!is_constant(leaf.mask, 1)) code.mask.emplace_back(leaf.mask, slots, resolve);
        for (const StoreTo& store : leaf.stores) {
            internal_check(store.value.type() == store.buffer->type, "stage '{}' stores {} into '{}', which is {}",
                           leaf.name, name_of(store.value.type()), store.buffer->name, name_of(store.buffer->type));
            internal_check(store.indices.size() == store.buffer->shape.size(),
                           "stage '{}' stores to '{}' at {} indices", leaf.name, store.buffer->name,
                           store.indices.size());
            Expr value = store.value;
            if (store.atomic)
                value = binary(*store.atomic, make_expr(store.buffer->type, Load{store.buffer, store.indices}), value);
            Store made{&place_of(store.buffer), {}, CompiledExpr(value, slots, resolve)};
            for (const Expr& index : store.indices) made.indices.emplace_back(index, slots, resolve);
            code.stores.push_back(std::move(made));
        }
        out.push_back({std::move(code)});
    }

    void compile_combine(const Leaf& leaf, std::vector<Node>& out) {
        CombineCode code{&leaf, slots.slot(leaf.across.variable), {}, {}, around};
        for (size_t c = 0; c < leaf.stores.size(); ++c) {
            const StoreTo& store = leaf.stores[c];
            Expr partial = make_expr(store.buffer->type, Load{store.buffer, store.indices});
            Store total{&place_of(store.buffer), {}, CompiledExpr(store.value, slots, resolve)};
            for (const Expr& index : store.indices) total.indices.emplace_back(index, slots, resolve);
            if (c >= leaf.across.left.size()) {
                code.prefixes.push_back({std::move(total), slots.slot(leaf.across.left[c - leaf.across.left.size()])});
                continue;
            }
            code.components.push_back({CompiledExpr(partial, slots, resolve), std::move(total),
                                       slots.slot(leaf.across.left[c]), slots.slot(leaf.across.right[c])});
        }
        out.push_back({std::move(code)});
    }

    // Memory.

    /// Poisoned memory in which nothing is written.
    void reserve(Place& place, const Bindings& bindings) {
        place.view.shape = extents_of(place.buffer->shape, bindings);
        place.view.strides = place.buffer->strides.empty() ? dense_strides(place.view.shape)
                                                           : extents_of(place.buffer->strides, bindings);
        int64_t elements = span_elements(place.view.shape, place.view.strides);
        place.data.assign(elements * bytes_of(place.buffer->type), 0xff);
        place.initialised.assign(elements, 0);
        place.view.data = place.data.data();
        place.view.initialised = place.initialised.data();
    }

    void bind(const Bindings& bindings) {
        values.assign(slots.size(), {});
        for (const Expr& size : tree.sizes) values[slots.slot(size)].integer = bound_size(size, bindings);
        for (const Expr& scalar : tree.scalars)
            values[slots.slot(scalar)] = to_register(bound_scalar(scalar, bindings));
        for (Place& place : places)
            if (place.buffer->role == BufferNode::Role::Workspace || place.buffer->role == BufferNode::Role::Output)
                reserve(place, bindings);
        for (const BufferRef& input : tree.inputs) {
            const HostArray& array = bound_input(*input, bindings);
            MemoryView& view = place_of(input).view;
            view.shape = extents_of(input->shape, bindings);
            view.strides = input->joined_from.empty() ? array.strides : dense_strides(view.shape);
            view.data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(array.bytes.data()));  // only read
            view.initialised = nullptr;
        }
        for (const auto& [output, input] : tree.in_place) {
            Place& out = place_of(output);
            MemoryView& in = place_of(input).view;
            std::copy_n(in.data, out.data.size(), out.data.data());
            in.data = out.data.data();
        }
    }

    std::vector<HostArray> results(const Bindings& bindings) {
        std::vector<HostArray> arrays;
        for (const BufferRef& output : tree.outputs) {
            const Place& place = place_of(output);
            HostArray array = host_array(output->type, extents_of(declared_shape(*output), bindings));
            copy_result(place, array);
            arrays.push_back(std::move(array));
        }
        return arrays;
    }

    /// Rows of the array are dense, those of the place as the output's strides have them.
    static void copy_result(const Place& place, HostArray& array) {
        const std::vector<int64_t>&strides = place.view.strides, &shape = place.view.shape;
        const int64_t bytes = bytes_of(place.buffer->type);
        const int64_t elements = static_cast<int64_t>(array.bytes.size()) / bytes;
        for (int64_t element = 0; element < elements; ++element) {
            int64_t at = 0, rest = element;
            for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) at += rest % shape[d] * strides[d];
            if (!place.initialised[static_cast<size_t>(at)])
                throw_error(Error, "interpret: element {} of the output '{}' (shape {}) was never written", element,
                            place.buffer->name, indices_text(shape));
            std::copy_n(reinterpret_cast<const std::byte*>(place.data.data()) + at * bytes, bytes,
                        array.bytes.data() + element * bytes);
        }
    }

    // Execution.

    void run(const std::vector<Node>& nodes) {
        for (const Node& node : nodes) std::visit([&](const auto& code) { (*this)(code); }, node.kind);
    }
    void operator()(const LoopCode& loop) {
        int64_t extent = loop.extent.value(values);
        for (int64_t i = 0; i < extent; ++i) {
            values[loop.slot].integer = i;
            run(loop.body);
        }
    }
    void operator()(const AllocateCode& allocate) {
        if (!allocate.place->view.data) reserve(*allocate.place, {});
        auto& flags = allocate.place->initialised;
        std::fill(flags.begin(), flags.end(), 0);
        run(allocate.body);
    }
    void operator()(const LeafCode& code) {
        try {
            if (!code.mask.empty() && !code.mask[0].run_integer(values)) return;
            if (code.stores.size() == 1) return store(code.stores[0], code.stores[0].value.run(values));
            computed.clear();
            for (const Store& each : code.stores) computed.push_back(each.value.run(values));
            for (size_t k = 0; k < code.stores.size(); ++k) store(code.stores[k], computed[k]);
        } catch (const EvaluationError& error) {
            throw_error(Error, "interpret: {}: {}", place_text(code), error.what());
        }
    }

    void operator()(const CombineCode& code) {
        std::vector<std::vector<Value>> partials(code.leaf->across.extent);
        for (size_t p = 0; p < partials.size(); ++p) {
            values[code.across].integer = static_cast<int64_t>(p);
            for (const auto& component : code.components) partials[p].push_back(component.partial.run(values));
        }
        for (size_t distance = 1; distance < partials.size(); distance *= 2)
            for (size_t p = 0; p + distance < partials.size(); p += 2 * distance) {
                for (size_t later = p + distance; later < std::min(p + 2 * distance, partials.size()); ++later)
                    add_before(code, later, partials[p]);
                partials[p] = combined(code, partials[p], partials[p + distance]);
            }
        for (size_t p = 0; p < partials.size(); ++p) {
            values[code.across].integer = static_cast<int64_t>(p);
            for (size_t c = 0; c < code.components.size(); ++c) store(code.components[c].total, partials[0][c]);
        }
    }

    /// What stands before the iteration's own part, with a part further left.
    void add_before(const CombineCode& code, size_t iteration, const std::vector<Value>& left) {
        values[code.across].integer = static_cast<int64_t>(iteration);
        for (size_t c = 0; c < code.prefixes.size(); ++c) values[code.prefixes[c].left] = to_register(left[c]);
        std::vector<Value> made;
        for (const auto& prefix : code.prefixes) made.push_back(prefix.to.value.run(values));
        for (size_t c = 0; c < made.size(); ++c) store(code.prefixes[c].to, made[c]);
    }

    std::vector<Value> combined(const CombineCode& code, const std::vector<Value>& left,
                                const std::vector<Value>& right) {
        for (size_t c = 0; c < code.components.size(); ++c) {
            values[code.components[c].left] = to_register(left[c]);
            values[code.components[c].right] = to_register(right[c]);
        }
        std::vector<Value> result;
        for (const auto& component : code.components) result.push_back(component.total.value.run(values));
        return result;
    }

    void store(const Store& to, const Value& value) {
        int64_t indices[16];
        size_t rank = to.indices.size();
        internal_check(rank <= std::size(indices), "'{}' has {} dimensions", to.place->view.name, rank);
        for (size_t d = 0; d < rank; ++d) indices[d] = to.indices[d].value(values);
        MemoryView& view = to.place->view;
        int64_t offset = locate(view, {indices, rank});
        store_element(value, view.data + offset * bytes_of(view.type));
        view.initialised[offset] = 1;
    }

    /// "stage 'c' (update, i = 3, k = 0)"
    std::string place_text(const LeafCode& code) const {
        std::string loops;
        for (const auto& [name, slot] : code.loops) loops += fmt::format(", {} = {}", name, values[slot].integer);
        return fmt::format("stage '{}' ({}{})", code.leaf->name, kind_text(code.leaf->kind), loops);
    }

    Tree tree;  // keeps leaves and buffers alive
    SlotMap slots;
    Resolve resolve;
    std::deque<Place> places;
    std::vector<Node> program;
    std::vector<std::pair<std::string, int>> around;  // loops around the statement that is being compiled
    std::vector<Register> values;                     // by slot
    std::vector<Value> computed;
};

TreeInterpreter::TreeInterpreter(const Tree& tree) : compiled_(std::make_unique<Compiled>(tree)) {}
TreeInterpreter::TreeInterpreter(TreeInterpreter&&) noexcept = default;
TreeInterpreter::~TreeInterpreter() = default;

std::vector<HostArray> TreeInterpreter::run(const Bindings& bindings) const {
    compiled_->bind(bindings);
    compiled_->run(compiled_->program);
    return compiled_->results(bindings);
}

std::vector<HostArray> interpret_tree(const Tree& tree, const Bindings& bindings) {
    return TreeInterpreter(tree).run(bindings);
}

}  // namespace tw

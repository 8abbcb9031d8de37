#include "ops/executable.h"

#include <algorithm>

#include "codegen/passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

Substitution size_values(const Tree& tree, const std::map<std::string, int64_t>& sizes) {
    Substitution values;
    for (const Expr& size : tree.sizes) {
        const Variable& variable = *size.as<Variable>();
        auto found = sizes.find(variable.name);
        if (found == sizes.end()) throw_error(Error, "run: the size '{}' is not given", variable.name);
        int64_t value = found->second;
        bool fits = value >= variable.min.value_or(value) && value <= variable.max.value_or(value);
        if (!fits || value % variable.multiple_of != 0)
            throw_error(Error, "run: size '{}' is {}, but was declared from {} to {} in multiples of {}", variable.name, value,
                        variable.min.value_or(0), variable.max.value_or(0), variable.multiple_of);
        values.emplace_back(size, constant(Type::I64, value));
    }
    return values;
}

int64_t evaluated(const Expr& expr, const Substitution& sizes) { return require_constant(simplify(substitute(expr, sizes))); }

std::vector<int64_t> evaluated(const std::vector<Expr>& exprs, const Substitution& sizes) {
    std::vector<int64_t> values;
    for (const Expr& expr : exprs) values.push_back(evaluated(expr, sizes));
    return values;
}

int64_t bytes_needed(const BufferNode& buffer, const Substitution& sizes) {
    std::vector<int64_t> shape = evaluated(buffer.shape, sizes), strides = evaluated(buffer.strides, sizes);
    return span_elements(shape, strides.empty() ? dense_strides(shape) : strides) * bytes_of(buffer.type);
}

void check_overlap(const std::vector<std::pair<std::string, Buffer>>& used, const std::vector<bool>& written) {
    for (size_t a = 0; a < used.size(); ++a)
        for (size_t b = 0; b < used.size(); ++b) {
            if (a == b || !written[a] || !used[a].second || !used[b].second) continue;
            uint64_t first = used[a].second.pointer(), second = used[b].second.pointer();
            bool apart = first + used[a].second.bytes() <= second || second + used[b].second.bytes() <= first;
            if (!apart)
                throw_error(Error, "run: the buffer of '{}' overlaps that of '{}', which the kernel writes; give it memory of "
                            "its own, or declare in_place", used[b].first, used[a].first);
        }
}

template <class T>
Argument number(T value) { return Argument(value); }

Argument scalar_argument(const Expr& scalar, double value) {
    switch (scalar.type()) {
        case Type::F64: return number(value);
        case Type::I32: return number(static_cast<int32_t>(value));
        case Type::U32: return number(static_cast<uint32_t>(value));
        case Type::I64: return number(static_cast<int64_t>(value));
        default: return number(static_cast<float>(value));
    }
}

}  // namespace

Executable::Executable(const Program& program, std::shared_ptr<Device> device)
    : program_(program), device_(std::move(device)) {
    for (size_t k = 0; k < program_.kernels().size(); ++k) {
        const codegen::KernelText& kernel = program_.kernels()[k];
        KernelImage image;
        image.name = kernel.name + ".cu";
        image.source = kernel.cuda;
        image.entry = kernel.name;
        image.line_notes = program_.line_notes(k);
        if (device_->kind() != DeviceKind::Cuda) image.arch = program_.target().arch;
        loaded_.push_back(device_->load(image));
    }
}

void Executable::bind(const Arguments& arguments) {
    const Tree& tree = program_.tree();
    Substitution sizes = size_values(tree, arguments.sizes);
    std::map<const BufferNode*, Buffer> bound;
    auto take = [&](const std::shared_ptr<const BufferNode>& node, const std::string& name) {
        auto found = arguments.buffers.find(name);
        if (found == arguments.buffers.end()) throw_error(Error, "run: no buffer is given for '{}'", name);
        int64_t needed = bytes_needed(*node, sizes);
        if (found->second.bytes() < needed)
            throw_error(Error, "run: the buffer of '{}' has {} bytes, its shape needs {}", name, found->second.bytes(), needed);
        bound[node.get()] = found->second;
    };
    for (const auto& input : tree.inputs) take(input, input->name);
    for (const auto& output : tree.outputs) {
        auto overwrites = std::find_if(tree.in_place.begin(), tree.in_place.end(), [&](const auto& pair) { return pair.first == output; });
        take(output, overwrites == tree.in_place.end() ? output->name : overwrites->second->name);
    }
    workspaces_.clear();
    for (const auto& workspace : tree.workspaces) {
        workspaces_.push_back(device_->allocate(std::max<int64_t>(bytes_needed(*workspace, sizes), 1), workspace->name));
        bound[workspace.get()] = workspaces_.back();
    }
    launches_.clear();
    for (size_t k = 0; k < loaded_.size(); ++k) {
        const codegen::KernelText& kernel = program_.kernels()[k];
        std::vector<Argument> values;
        std::vector<std::pair<std::string, Buffer>> used;
        for (const auto& argument : kernel.arguments) {
            const Buffer& buffer = bound.at(argument.get());
            values.emplace_back(buffer);
            bool shared_memory = std::any_of(tree.in_place.begin(), tree.in_place.end(), [&](const auto& p) { return p.first == argument; });
            used.emplace_back(argument->name, shared_memory ? Buffer() : buffer);
        }
        check_overlap(used, kernel.written);
        for (const Expr& size : kernel.sizes) {
            int64_t value = evaluated(size, sizes);
            if (codegen::argument_type(size) == Type::I32) values.push_back(number(static_cast<int32_t>(value)));
            else values.push_back(number(value));
        }
        for (const Expr& scalar : kernel.scalars) {
            const std::string& name = scalar.as<Variable>()->name;
            auto found = arguments.scalars.find(name);
            if (found == arguments.scalars.end()) throw_error(Error, "run: the scalar '{}' is not given", name);
            values.push_back(scalar_argument(scalar, found->second));
        }
        LaunchShape shape{.grid = {evaluated(kernel.grid[0], sizes), evaluated(kernel.grid[1], sizes), evaluated(kernel.grid[2], sizes)},
                          .block = {kernel.threads, 1, 1},
                          .dynamic_shared_bytes = kernel.shared_bytes};
        launches_.push_back(device_->prepare(loaded_[k], shape, std::move(values)));
    }
    bound_ = true;
}

void Executable::run() const {
    if (!bound_) throw_error(Error, "run: call bind() with buffers first");
    for (const Launch& launch : launches_) launch.run();
}

std::vector<HostArray> run_on(Executable& executable, const Bindings& bindings) {
    const Tree& tree = executable.program().tree();
    Substitution sizes = size_values(tree, bindings.sizes);
    Device& device = *executable.device();
    Executable::Arguments arguments{.buffers = {}, .sizes = bindings.sizes, .scalars = {}};
    for (const auto& [name, value] : bindings.scalars)
        arguments.scalars[name] = is_float(value.type) ? value.real : static_cast<double>(value.integer);
    for (const auto& [name, array] : bindings.inputs) {
        Buffer buffer = device.allocate(std::max<int64_t>(array.bytes.size(), 1), name);
        if (!array.bytes.empty()) buffer.copy_from_host(array.bytes.data(), 0, array.bytes.size());
        arguments.buffers[name] = buffer;
    }
    for (const auto& output : tree.outputs) {
        Buffer buffer = device.allocate(std::max<int64_t>(bytes_needed(*output, sizes), 1), output->name);
        if (device.kind() == DeviceKind::Cuda) buffer.fill(0xff);  // the emulator knows what was never written
        arguments.buffers[output->name] = buffer;
    }
    executable.bind(arguments);
    executable.run();
    device.synchronize();
    std::vector<HostArray> results;
    for (const auto& output : tree.outputs) {
        HostArray result = host_array(output->type, evaluated(output->shape, sizes));
        auto overwrites = std::find_if(tree.in_place.begin(), tree.in_place.end(), [&](const auto& pair) { return pair.first == output; });
        const std::string& name = overwrites == tree.in_place.end() ? output->name : overwrites->second->name;
        if (!result.bytes.empty()) arguments.buffers.at(name).copy_to_host(result.bytes.data(), 0, result.bytes.size());
        results.push_back(std::move(result));
    }
    return results;
}

}  // namespace tw

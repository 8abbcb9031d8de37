#include "ops/runner.h"

#include <fmt/ranges.h>

#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"
#include "support/error.h"

namespace tw {
namespace {

std::string names_of(const std::vector<BufferRef>& buffers) {
    std::vector<std::string> names;
    for (const BufferRef& buffer : buffers) names.push_back(buffer->name);
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::string names_of(const std::vector<Expr>& variables) {
    std::vector<std::string> names;
    for (const Expr& variable : variables) names.push_back(variable.as<Variable>()->name);
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// Whether the type holds the value, floats but for rounding.
bool holds(Type type, const Value& value) {
    if (is_float(type)) return true;
    if (is_float(value.type)) return convert(Type::F64, convert(type, value)).real == value.real;
    return convert(type, value).integer == value.integer;
}

const BufferNode* buffer_named(const std::vector<BufferRef>& buffers, const std::string& name) {
    for (const BufferRef& buffer : buffers)
        if (buffer->name == name) return buffer.get();
    return nullptr;
}

const Expr* variable_named(const std::vector<Expr>& variables, const std::string& name) {
    for (const Expr& variable : variables)
        if (variable.as<Variable>()->name == name) return &variable;
    return nullptr;
}

}  // namespace

Runner::Runner(const Schedule& schedule, std::shared_ptr<Device> device)
    : outputs_(schedule.outputs()),
      roundings_(schedule.roundings()),
      rounded_(schedule.rounded()),
      executable_(build(schedule), std::move(device)) {}

Runner::Runner(const Schedule& schedule) : Runner(schedule, best_device().device) {}

const BufferNode& Runner::node(const std::string& name, std::source_location where) const {
    const Tree& tree = program().tree();
    const BufferNode* found = buffer_named(tree.inputs, name);
    if (!found) found = buffer_named(tree.outputs, name);
    user_check(found, where, "'{}' is no tensor that the kernels read or write; inputs: {}; outputs: {}", name,
               names_of(tree.inputs), names_of(tree.outputs));
    return *found;
}

const BufferNode& Runner::input_node(const std::string& name, std::source_location where) const {
    const Tree& tree = program().tree();
    const BufferNode* found = buffer_named(tree.inputs, name);
    const bool is_number = !found && (variable_named(tree.sizes, name) || variable_named(tree.scalars, name));
    user_check(!is_number, where, "set: '{0}' is a {1}; give it one number: set(\"{0}\", 2)", name,
               variable_named(tree.sizes, name) ? "size" : "scalar");
    user_check(found, where, "set: '{}' is no input that the kernels read; inputs: {}", name, names_of(tree.inputs));
    return *found;
}

const std::string& Runner::memory_of(const std::string& name, std::source_location where) const {
    const BufferNode& wanted = node(name, where);
    for (const BufferRef& output : program().tree().outputs)
        if (output.get() == &wanted) return name_of_memory(program().tree(), output);
    return wanted.name;
}

template <class T>
Runner& Runner::set_values(const std::string& name, std::span<const T> values, std::source_location where) {
    const BufferNode& input = input_node(name, where);
    constexpr bool floats = std::is_floating_point_v<T>;
    user_check(is_float(input.type) == floats, where, "set: '{}' is {}; give it {}, not {}", name, name_of(input.type),
               floats ? "integers" : "floats", floats ? "floats" : "integers");
    Given given{host_array(input.type, {int64_t(values.size())}), true, where};
    const size_t width = size_t(bytes_of(input.type));
    const bool same = type_of<T>() == input.type;
    if (same && !values.empty()) std::memcpy(given.array.bytes.data(), values.data(), given.array.bytes.size());
    for (size_t i = 0; i < values.size() && !same; ++i) {
        Value value = floats ? make_value(Type::F64, double(values[i])) : make_value(Type::I64, int64_t(values[i]));
        user_check(holds(input.type, value), where, "set: element {} of '{}' is {}, which {} does not hold", i, name,
                   to_string(value), name_of(input.type));
        store_element(convert(input.type, value), &given.array.bytes[i * width]);
    }
    given_[name] = std::move(given);
    arguments_.buffers.erase(name);
    is_prepared_ = false;
    return *this;
}

Runner& Runner::set(const std::string& name, std::span<const float> values, std::source_location where) {
    return set_values(name, values, where);
}
Runner& Runner::set(const std::string& name, std::span<const double> values, std::source_location where) {
    return set_values(name, values, where);
}
Runner& Runner::set(const std::string& name, std::span<const int8_t> values, std::source_location where) {
    return set_values(name, values, where);
}
Runner& Runner::set(const std::string& name, std::span<const uint8_t> values, std::source_location where) {
    return set_values(name, values, where);
}
Runner& Runner::set(const std::string& name, std::span<const int32_t> values, std::source_location where) {
    return set_values(name, values, where);
}
Runner& Runner::set(const std::string& name, std::span<const uint32_t> values, std::source_location where) {
    return set_values(name, values, where);
}
Runner& Runner::set(const std::string& name, std::span<const int64_t> values, std::source_location where) {
    return set_values(name, values, where);
}

Runner& Runner::set(const std::string& name, const HostArray& array, std::source_location where) {
    input_node(name, where);
    given_[name] = {array, false, where};
    arguments_.buffers.erase(name);
    is_prepared_ = false;
    return *this;
}

Runner& Runner::set(const std::string& name, const Buffer& buffer, std::source_location where) {
    const std::string& memory = memory_of(name, where);
    user_check(buffer, where, "set: the buffer of '{}' has no memory; allocate or wrap it", name);
    user_check(buffer.device() == device(), where, "set: the buffer '{}' of '{}' lies on {}, the kernels are on {}",
               buffer.name(), name, buffer.device()->name(), device()->name());
    given_.erase(memory);
    own_.erase(memory);
    arguments_.buffers[memory] = buffer;
    is_prepared_ = false;
    return *this;
}

Runner& Runner::set_number(const std::string& name, const Value& value, std::source_location where) {
    const Tree& tree = program().tree();
    const Expr* size = variable_named(tree.sizes, name);
    const Expr* scalar = variable_named(tree.scalars, name);
    user_check(size || scalar, where, "set: the kernels have no size and no scalar '{}'; sizes: {}; scalars: {}", name,
               names_of(tree.sizes), names_of(tree.scalars));
    const Type type = size ? Type::I64 : scalar->type();
    user_check(holds(type, value), where, "set: '{}' is {}, which {} does not hold", name, to_string(value),
               name_of(type));
    if (size) {
        const int64_t count = convert(type, value).integer;
        auto [known, is_new] = arguments_.sizes.try_emplace(name, count);
        if (!is_new && known->second != count) drop_own_buffers();
        known->second = count;
    } else {
        arguments_.scalars[name] = convert(type, value);
    }
    is_prepared_ = false;
    return *this;
}

void Runner::drop_own_buffers() {
    for (const std::string& name : own_) arguments_.buffers.erase(name);
    own_.clear();
}

Runner& Runner::set(const Bindings& bindings, std::source_location where) {
    for (const auto& [name, value] : bindings.sizes) set_number(name, make_value(Type::I64, value), where);
    for (const auto& [name, value] : bindings.scalars) set_number(name, value, where);
    for (const auto& [name, array] : bindings.inputs) set(name, array, where);
    return *this;
}

/// Zeros, or what was given, of the declared type, shape and strides.
HostArray Runner::shaped(const BufferNode& buffer) const {
    Bindings numbers{.inputs = {}, .sizes = arguments_.sizes, .scalars = {}};
    HostArray array = host_array(buffer.type, extents_of(buffer.shape, numbers), extents_of(buffer.strides, numbers));
    auto found = given_.find(buffer.name);
    if (found == given_.end()) return array;
    const Given& given = found->second;
    if (!given.flat) {
        numbers.inputs[buffer.name] = given.array;
        return bound_input(buffer, numbers);
    }
    const int64_t width = bytes_of(buffer.type), count = int64_t(given.array.bytes.size()) / width;
    user_check(given.array.bytes.size() == array.bytes.size(), given.where,
               "set: {} values for '{}', whose shape {} and strides {} span {}", count, buffer.name,
               indices_text(array.shape), indices_text(array.strides), int64_t(array.bytes.size()) / width);
    array.bytes = given.array.bytes;
    return array;
}

void Runner::upload(const BufferNode& input) {
    HostArray array = shaped(input);
    Buffer buffer = device()->allocate(int64_t(array.bytes.size()), input.name);
    buffer.copy_from_host(array.bytes.data());
    arguments_.buffers[input.name] = buffer;
    own_.insert(input.name);
}

void Runner::prepare() {
    if (is_prepared_) return;
    const Tree& tree = program().tree();
    for (const BufferRef& input : tree.inputs)
        if (given_.contains(input->name) && !arguments_.buffers.contains(input->name)) upload(*input);
    for (const BufferRef& output : tree.outputs) {
        if (name_of_memory(tree, output) != output->name) continue;
        Buffer& buffer = arguments_.buffers[output->name];
        if (buffer) continue;
        Bindings numbers{.inputs = {}, .sizes = arguments_.sizes, .scalars = {}};
        buffer = device()->allocate(bytes_spanned(*output, numbers), output->name);
        own_.insert(output->name);
        if (device()->kind() == DeviceKind::Cuda) buffer.fill(0xff);  // emulated memory is poisoned already
    }
    executable_.bind(arguments_);
    is_prepared_ = true;
}

void Runner::run() {
    prepare();
    executable_.run();
    device()->synchronize();
}

void Runner::run(const Stream& stream) {
    prepare();
    for (const Launch& launch : executable_.launches()) launch.run(stream);
}

const Buffer& Runner::buffer(const std::string& name, std::source_location where) const {
    auto found = arguments_.buffers.find(memory_of(name, where));
    user_check(found != arguments_.buffers.end() && found->second, where,
               "'{}' has no memory on the device yet; call run() first", name);
    return found->second;
}

void Runner::fail_read(const std::string& name, size_t element, const Value& value, std::source_location where) {
    user_check(false, where, "read: element {} of '{}' is {}, which the numbers asked for do not hold; read {} as {}",
               element, name, to_string(value), name_of(value.type),
               is_float(value.type) ? "float or double" : "int64_t");
}

HostArray Runner::read_array(const std::string& name, std::source_location where) const {
    const Buffer& memory = buffer(name, where);
    const BufferNode& wanted = node(name, where);
    Bindings numbers{.inputs = {}, .sizes = arguments_.sizes, .scalars = {}};
    HostArray array =
        host_array(wanted.type, extents_of(declared_shape(wanted), numbers), extents_of(wanted.strides, numbers));
    device()->synchronize();
    memory.copy_to_host(array.bytes.data(), 0, int64_t(array.bytes.size()));
    return array;
}

/// What the next run computes from.
Bindings Runner::bindings_on_host() const {
    Bindings bindings{.inputs = {}, .sizes = arguments_.sizes, .scalars = arguments_.scalars};
    for (const BufferRef& input : program().tree().inputs) bindings.inputs[input->name] = read_array(input->name);
    return bindings;
}

CheckResult Runner::check(CheckOptions options) {
    prepare();
    Bindings bindings = bindings_on_host();
    run();
    options.approximate |= program().approximate();
    options.roundings.insert(options.roundings.end(), roundings_.begin(), roundings_.end());
    options.rounded.insert(options.rounded.end(), rounded_.begin(), rounded_.end());
    CheckResult all;
    all.ok = true;
    for (const Tensor& output : outputs_) {
        const std::string& name = program().tree().outputs[size_t(&output - outputs_.data())]->name;
        CheckResult one = check_output(output, bindings, read_array(name), options);
        all.ok &= one.ok;
        all.error = std::max(all.error, one.error);
        all.plain_error = std::max(all.plain_error, one.plain_error);
        all.elements += one.elements;
        all.text += fmt::format("{}{}: {}", all.text.empty() ? "" : "\n", name, one.text);
    }
    return all;
}

}  // namespace tw

// The handles of driver.h: they own, they check, and pass on to the device's implementation.
#include "runtime/driver/driver.h"

#include "runtime/driver/check_launch.h"
#include "runtime/driver/kernel_parameters.h"
#include "runtime/driver/no_host_access.h"

namespace tw {

// Goes back with the last handle. A view keeps its parent; wrapped memory is only made known to the device.
struct Buffer::State {
    std::shared_ptr<Device> device;
    uint64_t pointer = 0;
    int64_t bytes = 0;
    std::string name;
    enum class Kind { Owned, Wrapped, View } kind = Kind::Owned;
    std::shared_ptr<const State> parent;

    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        if (kind == Kind::Owned && pointer) device->free_memory(pointer, bytes);
        if (kind == Kind::Wrapped) device->unregister_memory(pointer);
    }
};

struct Stream::State {
    std::shared_ptr<Device> device;
    void* handle = nullptr;
    bool owned = true;  // false for the device's default stream and for those of others

    State(std::shared_ptr<Device> d, void* h, bool o) : device(std::move(d)), handle(h), owned(o) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        if (owned) device->drop_stream(handle);
    }
};

struct Event::State {
    std::shared_ptr<Device> device;
    void* handle = nullptr;
    bool owned = true;  // false for those of others

    State(std::shared_ptr<Device> d, void* h, bool o) : device(std::move(d)), handle(h), owned(o) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        if (owned) device->drop_event(handle);
    }
};

std::string_view to_string(DeviceKind kind) {
    switch (kind) {
        case DeviceKind::Cuda: return "cuda";
        case DeviceKind::Emulated: return "emulated";
        case DeviceKind::Null: return "null";
    }
    return "?";
}

namespace {

/// What the handle is of. Throws Error if it is of nothing.
template <class State>
State& state_of(const std::shared_ptr<State>& state, const char* what) {
    if (!state)
        throw_error(LaunchError,
                    "{}: it is of nothing yet; assign it one that a device has made, and read what a captured or "
                    "recorded step makes by its results, behind run()",
                    what);
    return *state;
}

}  // namespace

uint64_t Buffer::pointer() const { return state_of(state_, "buffer").pointer; }
int64_t Buffer::bytes() const { return state_of(state_, "buffer").bytes; }
const std::string& Buffer::name() const { return state_of(state_, "buffer").name; }
bool Buffer::shared() const { return state_.use_count() > 1; }
bool Buffer::owning() const { return state_of(state_, "buffer").kind == State::Kind::Owned; }
const std::shared_ptr<Device>& Buffer::device() const { return state_of(state_, "buffer").device; }

void Buffer::check_range(const char* what, int64_t offset, int64_t bytes) const {
    // By subtraction: offset + bytes could wrap.
    if (offset < 0 || bytes < 0 || offset > this->bytes() || bytes > state_->bytes - offset)
        throw_error(LaunchError, "{}: bytes [{}, {} + {}) are not in buffer '{}' of {} bytes", what, offset, offset,
                    bytes, state_->name, state_->bytes);
}

void Buffer::copy_from_host(const void* from, std::source_location where) const {
    copy_from_host(from, 0, bytes(), where);
}
void Buffer::copy_to_host(void* to, std::source_location where) const { copy_to_host(to, 0, bytes(), where); }

void Buffer::copy_from_host(const void* from, int64_t offset, int64_t bytes, std::source_location where) const {
    check_range("copy_from_host", offset, bytes);
    if (!NoHostAccess::is_new(*state_->device, state_->pointer + uint64_t(offset), bytes))
        NoHostAccess::check(*state_->device, "written", state_->name, where);
    if (bytes > 0) state_->device->copy_in(state_->pointer + uint64_t(offset), from, bytes);
}

void Buffer::copy_to_host(void* to, int64_t offset, int64_t bytes, std::source_location where) const {
    check_range("copy_to_host", offset, bytes);
    NoHostAccess::check(*state_->device, "read", state_->name, where);
    if (bytes > 0) state_->device->copy_out(to, state_->pointer + uint64_t(offset), bytes);
}

void Buffer::write_span(const void* from, int64_t bytes, std::source_location where) const {
    if (bytes != this->bytes())
        throw_error(LaunchError, "write: {} bytes for buffer '{}' of {} bytes", bytes, state_->name, state_->bytes);
    copy_from_host(from, where);
}

void Buffer::fill(uint8_t value, std::source_location where) const {
    if (!NoHostAccess::is_new(*device(), pointer(), bytes()))
        NoHostAccess::check_work(*device(), "buffer", name(), "filled", where);
    if (bytes() > 0) state_->device->fill_memory(state_->pointer, value, state_->bytes);
}

Buffer Buffer::view(int64_t offset, int64_t bytes, std::string name) const {
    check_range("view", offset, bytes);
    auto state = std::make_shared<State>();
    state->device = state_->device;
    state->pointer = state_->pointer + uint64_t(offset);
    state->bytes = bytes;
    state->name = name.empty() ? state_->name : std::move(name);
    state->kind = State::Kind::View;
    state->parent = state_;
    return Buffer(std::move(state));
}

void Device::encode_tensor_map(const emulator::TensorMapBits&, void*) {
    throw_error(LaunchError, "{} has no tensor maps; open \"cuda\" or \"emulated\"", name());
}

void Stream::synchronize() const {
    const State& stream = state_of(state_, "stream");
    stream.device->wait_stream(stream.handle);
}
void Stream::wait(const Event& event, std::source_location where) const {
    const State& stream = state_of(state_, "stream");
    NoHostAccess::check_work(*stream.device, "a stream of", stream.device->name(), "made to wait for an event", where);
    stream.device->stream_wait_event(stream.handle, state_of(event.state_, "event").handle);
}
void* Stream::handle() const { return state_of(state_, "stream").handle; }
bool Stream::owning() const { return state_of(state_, "stream").owned; }

void Event::record(const Stream& stream, std::source_location where) const {
    const State& event = state_of(state_, "event");
    NoHostAccess::check_work(*event.device, "an event of", event.device->name(), "recorded", where);
    event.device->record_event(event.handle, state_of(stream.state_, "stream").handle);
}
void Event::synchronize() const {
    const State& event = state_of(state_, "event");
    event.device->wait_event(event.handle);
}
void* Event::handle() const { return state_of(state_, "event").handle; }
double Event::seconds_since(const Event& begin) const {
    const State& end = state_of(state_, "event");
    return end.device->event_seconds(state_of(begin.state_, "event").handle, end.handle);
}

const std::string& Kernel::name() const { return state_->image.name; }
const std::string& Kernel::entry() const { return state_->image.entry; }
const CompiledKernel* Kernel::compiled() const { return state_->compiled.get(); }

Argument::Argument(const Buffer& buffer) : kind_(Kind::Buffer), value_(sizeof(uint64_t)), buffer_(buffer) {
    uint64_t pointer = buffer ? buffer.pointer() : 0;
    std::memcpy(value_.data(), &pointer, sizeof pointer);
}

Argument Argument::read_only(const Buffer& buffer) {
    Argument argument(buffer);
    argument.writable_ = false;
    return argument;
}

Argument Argument::bytes(std::span<const std::byte> value, const Buffer& about) {
    Argument argument(Kind::Bytes, {value.begin(), value.end()});
    argument.about_ = about;
    return argument;
}

void Argument::set_buffer(const Buffer& buffer) {
    const uint64_t pointer = buffer ? buffer.pointer() : 0;
    std::memcpy(value_.data(), &pointer, sizeof pointer);
    buffer_ = buffer;
}

std::string Argument::type_text() const {
    switch (kind_) {
        case Kind::Buffer: return "buffer";
        case Kind::Integer: return fmt::format("{}-byte integer", value_.size());
        case Kind::Float: return fmt::format("{}-byte float", value_.size());
        case Kind::Bytes: return fmt::format("{} bytes by value", value_.size());
    }
    return "?";
}

ArgumentBlock::ArgumentBlock(std::vector<Argument> arguments) : arguments_(std::move(arguments)) {
    constexpr size_t Alignment = 64;  // a tensor map's; the vector's own start is aligned by hand
    auto round_up = [](size_t bytes) { return (bytes + Alignment - 1) / Alignment * Alignment; };
    size_t bytes = Alignment;
    for (const Argument& argument : arguments_) bytes += round_up(argument.value().size());
    storage_.resize(bytes);

    auto base = reinterpret_cast<uintptr_t>(storage_.data());
    std::byte* next = storage_.data() + (round_up(base) - base);
    for (const Argument& argument : arguments_) {
        std::memcpy(next, argument.value().data(), argument.value().size());
        addresses_.push_back(next);
        next += round_up(argument.value().size());
    }
}

ArgumentBlock& ArgumentBlock::operator=(ArgumentBlock other) {
    arguments_.swap(other.arguments_);
    storage_.swap(other.storage_);
    addresses_.swap(other.addresses_);
    return *this;
}

void ArgumentBlock::set(size_t index, const Argument& argument) {
    std::memcpy(addresses_[index], argument.value().data(), argument.value().size());
    arguments_[index] = argument;
}

void ArgumentBlock::set_buffer(size_t index, const Buffer& buffer) {
    arguments_[index].set_buffer(buffer);
    std::memcpy(addresses_[index], arguments_[index].value().data(), sizeof(uint64_t));
}

void Launch::run(std::source_location where) const {
    Device& device = *kernel_.state()->device;
    NoHostAccess::check_work(device, "kernel", kernel_.entry(), "launched", where);
    if (!empty()) device.submit(*this, device.default_stream_handle());
}

void Launch::run(const Stream& stream, std::source_location where) const {
    Device& device = *kernel_.state()->device;
    NoHostAccess::check_work(device, "kernel", kernel_.entry(), "launched", where);
    if (!empty()) device.submit(*this, stream.state_->handle);
}

void Launch::set(size_t index, const Argument& argument) {
    const std::string& entry = kernel_.entry();
    if (index >= arguments_.size())
        throw_error(LaunchError, "{}: set({}): it has {} arguments", entry, index, arguments_.size());
    const Argument& now = arguments_[index];
    if (now.kind() != argument.kind() || now.value().size() != argument.value().size())
        throw_error(LaunchError, "{}: set({}): argument {} is a {}, not a {}", entry, index, index, now.type_text(),
                    argument.type_text());
    check_argument(*kernel_.state(), index, argument);
    arguments_.set(index, now.writable() ? argument : Argument::read_only(argument.buffer()));
}

void Launch::set(size_t index, const Buffer& buffer) {
    const bool is_one = index < arguments_.size() && arguments_[index].kind() == Argument::Kind::Buffer;
    if (!is_one || !buffer || buffer.device() != kernel_.state()->device) return set(index, Argument(buffer));
    arguments_.set_buffer(index, buffer);
}

void Launch::forget_buffers() {
    for (size_t index = 0; index < arguments_.size(); ++index)
        if (arguments_[index].kind() == Argument::Kind::Buffer) arguments_.set_buffer(index, {});
}

void Graph::run(std::source_location where) const {
    State& graph = state_of(state_, "graph");
    NoHostAccess::check_work(*graph.device, "a graph of", graph.device->name(), "run", where);
    graph.device->run_graph(graph, graph.device->default_stream_handle());
}
void Graph::run(const Stream& stream, std::source_location where) const {
    State& graph = state_of(state_, "graph");
    NoHostAccess::check_work(*graph.device, "a graph of", graph.device->name(), "run", where);
    graph.device->run_graph(graph, state_of(stream.state_, "stream").handle);
}
size_t Graph::size() const { return state_of(state_, "graph").launches.size(); }

void Graph::update(size_t index, const Launch& launch) const {
    if (index >= size()) throw_error(LaunchError, "graph.update({}): it has {} launches", index, size());
    const Launch& now = state_->launches[index];
    if (now.kernel().state() != launch.kernel().state())
        throw_error(LaunchError, "graph.update({}): launch {} is of kernel '{}', not of '{}'", index, index,
                    now.kernel().entry(), launch.kernel().entry());
    if (now.kernel().state()->is_memory_work)
        throw_error(LaunchError,
                    "graph.update({}): launch {} is a {} of memory, which stays as it was recorded; make another graph",
                    index, index, now.kernel().entry());
    if (now.empty() != launch.empty())
        throw_error(LaunchError, "graph.update({}): a launch cannot become empty, or stop being so", index);
    if (!launch.empty()) state_->device->update_graph(*state_, index, launch);
    state_->launches[index] = launch;
}

Buffer Device::allocate(int64_t bytes, std::string name) {
    if (bytes < 0) throw_error(LaunchError, "allocate '{}': {} bytes", name, bytes);
    auto state = std::make_shared<Buffer::State>();
    state->device = shared_from_this();
    state->bytes = bytes;
    state->name = std::move(name);
    state->pointer = allocate_memory(bytes, state->name);
    NoHostAccess::note_allocated(*this, state->pointer, bytes);
    return Buffer(std::move(state));
}

Buffer Device::wrap(uint64_t pointer, int64_t bytes, std::string name) {
    if (bytes < 0) throw_error(LaunchError, "wrap '{}': {} bytes", name, bytes);
    if (bytes > 0 && pointer == 0) throw_error(LaunchError, "wrap '{}': {} bytes at a null pointer", name, bytes);
    if (pointer > UINT64_MAX - uint64_t(bytes))
        throw_error(LaunchError, "wrap '{}': {} bytes from {:#x} on leave the address space", name, bytes, pointer);
    register_memory(pointer, bytes, name);
    auto state = std::make_shared<Buffer::State>();
    state->device = shared_from_this();
    state->pointer = pointer;
    state->bytes = bytes;
    state->name = std::move(name);
    state->kind = Buffer::State::Kind::Wrapped;
    return Buffer(std::move(state));
}

void Device::copy(const Buffer& to, const Buffer& from, const Stream& stream, std::source_location where) {
    NoHostAccess::check_work(*this, "buffer", to.name(), "copied to", where);
    if (to.bytes() != from.bytes())
        throw_error(LaunchError, "copy: {} bytes of '{}' into the {} bytes of '{}'", from.bytes(), from.name(),
                    to.bytes(), to.name());
    if (to.bytes() == 0) return;
    copy_across(to.pointer(), from.pointer(), to.bytes(), stream ? stream.handle() : default_stream_handle());
}

Stream Device::create_stream() {
    return Stream(std::make_shared<Stream::State>(shared_from_this(), make_stream(), true));
}

Stream Device::default_stream() {
    return Stream(std::make_shared<Stream::State>(shared_from_this(), default_stream_handle(), false));
}

Event Device::create_event() { return Event(std::make_shared<Event::State>(shared_from_this(), make_event(), true)); }

Stream Device::wrap_stream(void* handle, std::string name) {
    register_stream(handle, name);
    return Stream(std::make_shared<Stream::State>(shared_from_this(), handle, false));
}

Event Device::wrap_event(void* handle, std::string name) {
    if (!handle) throw_error(LaunchError, "wrap_event '{}': a null event; create one, or give its handle", name);
    register_event(handle, name);
    return Event(std::make_shared<Event::State>(shared_from_this(), handle, false));
}

Kernel Device::load(const KernelImage& image) { return load_all({&image, 1}).front(); }

std::vector<Kernel> Device::load_all(std::span<const KernelImage> images) {
    std::vector<KernelImage> complete(images.begin(), images.end());
    for (KernelImage& image : complete)
        if (image.arch.empty()) image.arch = arch();
    std::vector<Kernel> kernels;
    auto states = load_kernels(complete);
    for (size_t i = 0; i < states.size(); ++i) {
        states[i]->device = shared_from_this();
        if (!states[i]->parameter_bytes)
            states[i]->parameter_bytes = kernel_parameters(complete[i].source, complete[i].entry);
        states[i]->image = std::move(complete[i]);
        kernels.push_back(Kernel(std::move(states[i])));
    }
    return kernels;
}

Launch Device::prepare(const Kernel& kernel, const LaunchShape& shape, std::vector<Argument> arguments) {
    Kernel::State& state = *kernel.state();
    if (state.device.get() != this)
        throw_error(LaunchError, "prepare: '{}' was loaded on another device ({})", kernel.entry(),
                    state.device->name());
    check_shape(properties_, state, shape);
    check_arguments(state, arguments);
    prepare_kernel(state, shape);
    Launch launch;
    launch.kernel_ = kernel;
    launch.shape_ = shape;
    launch.arguments_ = ArgumentBlock(std::move(arguments));
    return launch;
}

Graph Device::record(std::span<const Launch> launches) {
    std::vector<std::vector<size_t>> after(launches.size());
    for (size_t n = 1; n < after.size(); ++n) after[n] = {n - 1};
    return graph(launches, std::move(after));
}

Graph Device::graph(std::span<const Launch> launches, std::vector<std::vector<size_t>> after) {
    if (after.size() != launches.size())
        throw_error(LaunchError, "graph: {} lists of what to wait for, for {} launches; give one for each",
                    after.size(), launches.size());
    for (size_t n = 0; n < launches.size(); ++n) {
        const Kernel::State& kernel = *launches[n].kernel().state();
        if (kernel.device.get() != this)
            throw_error(LaunchError, "graph: '{}' was loaded on another device ({})", kernel.image.entry,
                        kernel.device->name());
        for (size_t before : after[n])
            if (before >= n)
                throw_error(LaunchError,
                            "graph: launch {} ('{}') waits for launch {}, which does not stand in front of it; list "
                            "launches in an order in which they can run",
                            n, kernel.image.entry, before);
    }
    return Graph(make_graph({launches.begin(), launches.end()}, std::move(after)));
}

}  // namespace tw

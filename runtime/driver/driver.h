// One interface to what runs kernels: a CUDA device, the emulator, or nothing at all (compile only).
//
//   auto device = open_device("cuda");
//   Buffer x = device->allocate(n * 4, "x"), y = device->allocate(n * 4, "y");
//   x.copy_from_host(host.data());
//   Kernel kernel = device->load({.name = "saxpy.cu", .source = text, .entry = "saxpy"});
//   Launch launch = device->prepare(kernel, {.grid = {blocks}, .block = {256}}, {2.0f, x, y, int64_t{n}});
//   launch.run();  // on the device's default stream; again and again at the cost of a launch
//   device->synchronize();
//
// Handles (Buffer, Stream, Event, Kernel, Graph) are cheap to copy and share what they name; a Launch keeps alive its
// kernel and buffers. Work on one stream runs in order. Host copies are synchronous, and ordered after all work that
// was submitted before on any stream of the device. All calls are safe from several threads, but one Launch or Graph is
// used by one thread at a time.
//
// Errors are those of runtime/compile/errors.h. A kernel's crash shows at a later call, usually synchronize(), as a
// StickyError. What would happen once while a step is recorded is a LaunchError, with the line: no_host_access.h.
#pragma once
#include <concepts>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/compile/compile.h"
#include "runtime/compile/errors.h"
#include "runtime/driver/device_properties.h"

namespace tw {

namespace emulator {
struct TensorMapBits;
}

class Device;
class PinnedBuffer;

enum class DeviceKind { Cuda, Emulated, Null };
std::string_view to_string(DeviceKind kind);

/// Bytes on a device. The memory goes back when the last handle to it (views included) is gone.
class Buffer {
public:
    Buffer() = default;
    explicit operator bool() const { return state_ != nullptr; }
    uint64_t pointer() const;  // as kernels see it; on the emulated device, an address of this process
    int64_t bytes() const;
    const std::string& name() const;
    bool owning() const;  // false for views and for memory of others (Device::wrap)
    bool shared() const;  // whether another handle has it, too: a copy of this one, a view, a launch
    const std::shared_ptr<Device>& device() const;

    void copy_from_host(const void* from, std::source_location where = std::source_location::current()) const;
    void copy_from_host(const void* from, int64_t offset, int64_t bytes,
                        std::source_location where = std::source_location::current()) const;
    void copy_to_host(void* to, std::source_location where = std::source_location::current()) const;
    void copy_to_host(void* to, int64_t offset, int64_t bytes,
                      std::source_location where = std::source_location::current()) const;

    template <class T>
    void write(const std::vector<T>& values, std::source_location where = std::source_location::current()) const {
        write_span(values.data(), int64_t(values.size() * sizeof(T)), where);
    }
    template <class T>
    std::vector<T> read(std::source_location where = std::source_location::current()) const {
        std::vector<T> values(size_t(bytes()) / sizeof(T));
        copy_to_host(values.data(), 0, int64_t(values.size() * sizeof(T)), where);
        return values;
    }

    /// Every byte set to `value`, in order after all work submitted before. 0xff makes a NaN of every float type.
    void fill(uint8_t value, std::source_location where = std::source_location::current()) const;

    /// A part of this buffer, which it keeps alive.
    Buffer view(int64_t offset, int64_t bytes, std::string name = "") const;

private:
    friend class Device;
    struct State;
    explicit Buffer(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    void write_span(const void* from, int64_t bytes, std::source_location where) const;
    void check_range(const char* what, int64_t offset, int64_t bytes) const;
    std::shared_ptr<const State> state_;
};

class Event;

/// Work in order.
class Stream {
public:
    Stream() = default;
    explicit operator bool() const { return state_ != nullptr; }
    void synchronize() const;
    void wait(const Event& event, std::source_location where =
                                      std::source_location::current()) const;  // later work here starts after the event
    void* handle() const;  // a CUstream, for other libraries; null elsewhere
    bool owning() const;   // false for the default stream and for those of others (wrap_stream)

private:
    friend class Device;
    friend class Event;
    friend class Launch;
    friend class Graph;
    struct State;
    explicit Stream(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

/// A point in a stream's work.
class Event {
public:
    Event() = default;
    void record(const Stream& stream, std::source_location where = std::source_location::current()) const;
    void synchronize() const;

    /// Between two events that have both been reached.
    double seconds_since(const Event& begin) const;
    void* handle() const;  // a CUevent, for other libraries

private:
    friend class Device;
    friend class Stream;
    struct State;
    explicit Event(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

/// What to load: text and the name of one extern "C" __global__ function in it.
struct KernelImage {
    std::string name = "kernel.cu";  // for messages
    std::string source = {};
    std::string entry = {};
    std::string arch = {};                     // empty: the device's
    std::vector<std::string> options = {};     // for NVRTC, after the default ones
    std::vector<std::string> line_notes = {};  // for the emulator's reports: where each line of the source comes from
    std::string cubin = {};                    // compiled already, for the cuda device: then the source is not compiled
};

class Kernel {
public:
    Kernel() = default;
    explicit operator bool() const { return state_ != nullptr; }
    const std::string& name() const;
    const std::string& entry() const;

    /// What ptxas said, and the cubin; nullptr on the emulated device, which compiles for the host.
    const CompiledKernel* compiled() const;

    /// What the implementations keep for a kernel; each derives its own.
    struct State {
        virtual ~State() = default;
        std::shared_ptr<Device> device;
        KernelImage image;
        std::shared_ptr<const CompiledKernel> compiled;
        int64_t static_shared_bytes = 0;
        std::optional<std::vector<size_t>> parameter_bytes;  // where known; a size of 0 is not
        bool is_memory_work = false;                         // no kernel: bytes are copied, or set (memory_work.h)
    };
    const std::shared_ptr<State>& state() const { return state_; }

private:
    friend class Device;
    explicit Kernel(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

/// One kernel parameter: a buffer, a number of 4 or 8 bytes, or a struct by value (a tensor map).
class Argument {
public:
    enum class Kind { Buffer, Integer, Float, Bytes };

    Argument(const Buffer& buffer);

    /// A buffer that the kernel must not write: that it does is a finding of the emulator. On cuda no different.
    static Argument read_only(const Buffer& buffer);

    template <class T>
    requires(std::integral<T> || std::floating_point<T>) && (sizeof(T) == 4 || sizeof(T) == 8) Argument(T value)
        : kind_(std::floating_point<T> ? Kind::Float : Kind::Integer),
    value_(sizeof(T)) {
        std::memcpy(value_.data(), &value, sizeof(T));
    }
    /// `about`: a buffer that the bytes describe, as a tensor map does: kept alive like one that is passed.
    static Argument bytes(std::span<const std::byte> value, const Buffer& about = {});

    /// Another buffer, or none, in the place of the one that it is; whether kernels may write it stays.
    void set_buffer(const Buffer& buffer);

    Kind kind() const { return kind_; }
    std::span<const std::byte> value() const { return value_; }
    const Buffer& buffer() const { return buffer_; }
    bool writable() const { return writable_; }
    std::string type_text() const;  // "buffer", "4-byte integer", ...

private:
    Argument(Kind kind, std::vector<std::byte> value) : kind_(kind), value_(std::move(value)) {}
    Kind kind_;
    std::vector<std::byte> value_;
    Buffer buffer_, about_;
    bool writable_ = true;
};

struct LaunchShape {
    Dim3 grid = {};
    Dim3 block = {};
    int64_t dynamic_shared_bytes = 0;
    int64_t cluster = 1;  // blocks, neighbours in x, that run together: what the kernel's __cluster_dims__ says
    /// The kernel itself waits for what was launched before it, by griddepcontrol.wait: its blocks may start while that
    /// ends (programmatic dependent launch). Devices without that ignore it.
    bool starts_early = false;
    /// The kernel waits so, whether or not this launch starts early. The emulator holds it to that.
    bool waits_itself = false;
};

/// The parameters' bytes at addresses that stay, and the table of those addresses that a driver wants.
class ArgumentBlock {
public:
    ArgumentBlock() = default;
    explicit ArgumentBlock(std::vector<Argument> arguments);
    ArgumentBlock(const ArgumentBlock& other) : ArgumentBlock(other.arguments_) {}
    ArgumentBlock(ArgumentBlock&&) = default;
    ArgumentBlock& operator=(ArgumentBlock other);

    void set(size_t index, const Argument& argument);
    void set_buffer(size_t index, const Buffer& buffer);
    size_t size() const { return arguments_.size(); }
    const Argument& operator[](size_t index) const { return arguments_[index]; }
    std::span<const Argument> arguments() const { return arguments_; }
    void** addresses() const { return const_cast<void**>(addresses_.data()); }

private:
    std::vector<Argument> arguments_;
    std::vector<std::byte> storage_;
    std::vector<void*> addresses_;
};

/// A kernel with shape and arguments, checked once: run() adds next to nothing to the driver's own launch. Copies are
/// independent of each other.
class Launch {
public:
    Launch() = default;
    explicit operator bool() const { return bool(kernel_); }

    void run(std::source_location where = std::source_location::current()) const;  // on the device's default stream
    void run(const Stream& stream, std::source_location where = std::source_location::current()) const;

    /// Another value for one parameter, of the same type. One that was read-only stays so.
    void set(size_t index, const Argument& argument);
    void set(size_t index, const Buffer& buffer);
    /// Lets go of all buffers. They have to be set again before it runs.
    void forget_buffers();

    const Kernel& kernel() const { return kernel_; }
    const LaunchShape& shape() const { return shape_; }
    const ArgumentBlock& arguments() const { return arguments_; }
    bool empty() const { return shape_.grid.x == 0 || shape_.grid.y == 0 || shape_.grid.z == 0; }

private:
    friend class Device;
    Kernel kernel_;
    LaunchShape shape_;
    ArgumentBlock arguments_;
};

/// Launches recorded once, in order or with branches, replayed as one (a CUDA graph). It keeps copies of the launches:
/// what is set in them later changes nothing here; update() does.
class Graph {
public:
    Graph() = default;
    explicit operator bool() const { return state_ != nullptr; }
    void run(std::source_location where = std::source_location::current()) const;
    void run(const Stream& stream, std::source_location where = std::source_location::current()) const;
    void update(size_t index, const Launch& launch) const;  // of the same kernel
    size_t size() const;

    struct State {
        virtual ~State() = default;
        std::shared_ptr<Device> device;
        std::vector<Launch> launches;
        std::vector<std::vector<size_t>> after;  // of each launch, those in front of it that have ended when it begins
    };

private:
    friend class Device;
    explicit Graph(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

class Device : public std::enable_shared_from_this<Device> {
public:
    virtual ~Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    virtual DeviceKind kind() const = 0;
    const DeviceProperties& properties() const { return properties_; }
    const std::string& name() const { return properties_.name; }
    const std::string& arch() const { return properties_.arch; }

    /// Memory with undefined content; on the emulated device reading it before writing is a fault. At least 256-byte
    /// aligned.
    Buffer allocate(int64_t bytes, std::string name = "");

    /// Memory of somebody else, who keeps it alive as long as handles to it: `bytes` from a device pointer on (the
    /// emulated device: of this process). `name` says whose it is, for messages: "x of PyTorch". Throws LaunchError if
    /// the pointer is null or bytes are negative; on cuda, also if the driver knows no memory there, knows it as
    /// another device's, or the bytes leave its allocation; on the emulated device, if they lie only partly in a
    /// buffer's.
    Buffer wrap(uint64_t pointer, int64_t bytes, std::string name = "");
    template <class T>
    Buffer wrap(T* pointer, int64_t bytes, std::string name = "") {
        return wrap(uint64_t(reinterpret_cast<uintptr_t>(pointer)), bytes, std::move(name));
    }
    /// Of equal sizes, in the stream's order.
    void copy(const Buffer& to, const Buffer& from, const Stream& stream = {},
              std::source_location where = std::source_location::current());

    /// Page-locked memory of the host with undefined content, and copies from and to it of equal sizes, in the stream's
    /// order (none: the default stream's), which the host does not wait for: pinned_buffer.h. Throw OutOfMemory, and
    /// LaunchError if sizes differ, one has no memory or is another device's.
    PinnedBuffer allocate_pinned(int64_t bytes, std::string name = "");
    void copy(const Buffer& to, const PinnedBuffer& from, const Stream& stream = {},
              std::source_location where = std::source_location::current());
    void copy(const PinnedBuffer& to, const Buffer& from, const Stream& stream = {},
              std::source_location where = std::source_location::current());

    Stream create_stream();
    Stream default_stream();  // the one that run() without a stream takes
    Event create_event();

    /// A stream or an event of somebody else, who destroys it after the last use here: a CUstream (cudaStream_t), a
    /// CUevent (cudaEvent_t) made with timing if it is to time. A null stream is the driver's default one. `name` says
    /// whose it is, for messages. Throws LaunchError if the stream belongs to another context than this device's, or
    /// the event is null. The emulated device, which works at once, takes any stream, and events of its own only.
    Stream wrap_stream(void* handle, std::string name = "");
    Event wrap_event(void* handle, std::string name = "");

    Kernel load(const KernelImage& image);

    /// The same for many in much less time: cuda compiles several at once, the emulated device all in one translation
    /// unit.
    std::vector<Kernel> load_all(std::span<const KernelImage> images);
    Launch prepare(const Kernel& kernel, const LaunchShape& shape, std::vector<Argument> arguments);
    /// Launches without a kernel, "copy" and "fill", which in a graph are nodes of their kinds: the bytes of `from`
    /// into `to`, of equal sizes; a pattern of 1, 2 or 4 bytes into all of `to`. Throw LaunchError if sizes do not fit,
    /// both overlap, or one has no memory or another device's.
    Launch prepare_copy(const Buffer& to, const Buffer& from);
    Launch prepare_fill(const Buffer& to, std::span<const std::byte> pattern);
    Graph record(std::span<const Launch> launches);
    /// With branches: a launch begins when those of its list in `after` have ended, at once if there are none. What one
    /// waits for only through others need not be listed. Throws LaunchError if there is not a list for each launch, or
    /// one names a launch that does not stand in front of its own.
    Graph graph(std::span<const Launch> launches, std::vector<std::vector<size_t>> after);

    /// Waits for all work; throws what a kernel did wrong.
    virtual void synchronize() = 0;

    /// Gives the pool of freed buffers back to the system.
    virtual void release_pool() {}

    /// Free and total bytes of device memory now, {0, 0} where that says nothing.
    struct MemoryState {
        int64_t free_bytes = 0, total_bytes = 0;
    };
    virtual MemoryState memory_state() { return {}; }

    // What an implementation does. Handles are its own.
    virtual uint64_t allocate_memory(int64_t bytes, const std::string& name) = 0;
    virtual void free_memory(uint64_t pointer, int64_t bytes) noexcept = 0;
    virtual void register_memory(uint64_t, int64_t, const std::string&) {}  // wrapped memory of others
    virtual void unregister_memory(uint64_t) noexcept {}
    virtual void copy_in(uint64_t to, const void* from, int64_t bytes) = 0;
    virtual void copy_out(void* to, uint64_t from, int64_t bytes) = 0;
    virtual void copy_across(uint64_t to, uint64_t from, int64_t bytes, void* stream) = 0;
    virtual void* allocate_host_memory(int64_t bytes, const std::string& name);  // page-locked, where that is
    virtual void free_host_memory(void* pointer) noexcept;
    virtual void copy_in_later(uint64_t to, const void* from, int64_t bytes, void* stream) = 0;
    virtual void copy_out_later(void* to, uint64_t from, int64_t bytes, void* stream) = 0;
    virtual void fill_memory(uint64_t pointer, uint8_t value, int64_t bytes) = 0;
    virtual void fill_later(uint64_t to, uint32_t pattern, int64_t element_bytes, int64_t bytes, void* stream) = 0;
    virtual void* default_stream_handle() = 0;
    virtual void* make_stream() = 0;
    virtual void drop_stream(void* stream) noexcept = 0;
    virtual void register_stream(void*, const std::string&) {}  // wrapped, of others
    virtual void wait_stream(void* stream) = 0;
    virtual void* make_event() = 0;
    virtual void drop_event(void* event) noexcept = 0;
    virtual void register_event(void*, const std::string&) {}  // wrapped, of others
    virtual void record_event(void* event, void* stream) = 0;
    virtual void wait_event(void* event) = 0;
    virtual void stream_wait_event(void* stream, void* event) = 0;
    virtual double event_seconds(void* begin, void* end) = 0;
    virtual std::vector<std::shared_ptr<Kernel::State>> load_kernels(std::span<const KernelImage> images) = 0;
    virtual void prepare_kernel(Kernel::State&, const LaunchShape&) {}               // once for each Launch
    virtual void encode_tensor_map(const emulator::TensorMapBits& map, void* bits);  // 128 bytes; see tensor_map.h
    virtual void launch(const Launch& launch, void* stream) = 0;
    virtual std::shared_ptr<Graph::State> make_graph(std::vector<Launch> launches,
                                                     std::vector<std::vector<size_t>> after) = 0;
    virtual void update_graph(Graph::State& graph, size_t index, const Launch& launch) = 0;
    virtual void run_graph(Graph::State& graph, void* stream) = 0;

protected:
    friend class Launch;
    Device() = default;
    /// launch(), or what it does to memory.
    void submit(const Launch& launch, void* stream);
    DeviceProperties properties_;

private:
    static Launch memory_launch(const std::shared_ptr<Kernel::State>& operation, std::vector<Argument> arguments,
                                bool is_empty);
};

/// "cuda", "cuda:1", "emulated", "emulated:sm_80", "null", "null:sm_80" (the arch of the last two: sm_90a unless said).
/// Never another than the one asked for: NoDriver, NoDevice, NvrtcMissing say what is missing. A CUDA device is opened
/// once in a process and shared.
std::shared_ptr<Device> open_device(std::string_view which);

struct ChosenDevice {
    std::shared_ptr<Device> device;
    std::string reason;  // "cuda: NVIDIA H200", "emulated: no CUDA driver (...)", "emulated: TW_DEVICE asks for it"
};

/// What $TW_DEVICE names; else the first CUDA device; else the emulator, and then the reason says why. One device for a
/// name in a process, as long as it is held, so that what is made by two calls goes together.
ChosenDevice best_device();

/// The arch of a compute capability: (9, 0) is "sm_90a", (8, 6) is "sm_86".
std::string arch_of(int compute_major, int compute_minor);

}  // namespace tw

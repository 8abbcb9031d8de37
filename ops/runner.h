// One's own kernel on one's own data: given, run, read, checked, timed.
//
//   Runner runner(schedule, best_device().device);
//   runner.set("x", xs).set("alpha", 0.5);          // std::vector<float> and a number
//   runner.run();
//   std::vector<float> ys = runner.read<float>("y");
//   fmt::print("{}\n{}\n", runner.check().text, runner.time().text);
//
// Executable (executable.h) is the same without the data: for callers that keep their own buffers.
#pragma once
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/check.h"
#include "ops/executable.h"

namespace tw {

/// The type whose elements lie in memory as T.
template <class T>
constexpr std::optional<Type> type_of() {
    if (std::is_same_v<T, float>) return Type::F32;
    if (std::is_same_v<T, double>) return Type::F64;
    if (std::is_same_v<T, int8_t>) return Type::I8;
    if (std::is_same_v<T, uint8_t>) return Type::U8;
    if (std::is_same_v<T, int32_t>) return Type::I32;
    if (std::is_same_v<T, uint32_t>) return Type::U32;
    if (std::is_same_v<T, int64_t>) return Type::I64;
    return std::nullopt;
}

/// How long a run of all kernels takes, beside a copy that moves as many bytes.
struct RunTime {
    bool measured = false;    ///< false but on a GPU: the emulator's clock says nothing of one
    double seconds = 0;       ///< one run takes: the median of the rounds
    double bytes = 0;         ///< in all inputs and outputs, each element once
    double copy_seconds = 0;  ///< a copy on the device takes that reads half of the bytes and writes the other half:
                              ///< the median, measured in turns with the kernels
    double gigabytes_per_second() const { return seconds > 0 ? bytes / seconds * 1e-9 : 0; }
    /// 1: as fast as the copy.
    double share_of_copy() const { return seconds > 0 ? copy_seconds / seconds : 0; }
    std::string text;  ///< "0.0123 ms, 3510.2 GB/s, 0.86 of a copy of 43.2 MB"
};

/// A schedule, built and loaded on a device, with the data that it works on. For one thread at a time.
class Runner {
public:
    /// Throws what build() and Executable throw.
    Runner(const Schedule& schedule, std::shared_ptr<Device> device);
    /// On best_device(): the first GPU, or else the emulator.
    explicit Runner(const Schedule& schedule);

    /// The elements of an input, as they lie in memory: dense rows, or with the declared strides and what lies between.
    /// They are converted to the declared type: floats to a float of any width, rounded to nearest; integers to an
    /// integer that holds each value. Copied here and now. Throws Error, citing the caller, if there is no such input,
    /// if values are of another kind, or if one does not fit; run() throws it if there are more or fewer than the
    /// shape spans.
    Runner& set(const std::string& name, std::span<const float> values, TW_HERE);
    Runner& set(const std::string& name, std::span<const double> values, TW_HERE);
    Runner& set(const std::string& name, std::span<const int8_t> values, TW_HERE);
    Runner& set(const std::string& name, std::span<const uint8_t> values, TW_HERE);
    Runner& set(const std::string& name, std::span<const int32_t> values, TW_HERE);
    Runner& set(const std::string& name, std::span<const uint32_t> values, TW_HERE);
    Runner& set(const std::string& name, std::span<const int64_t> values, TW_HERE);
    /// The same with type, shape and strides, which must be the declared ones; run() checks them.
    Runner& set(const std::string& name, const HostArray& array, TW_HERE);
    /// Memory of this device, used where it lies, of an input or an output: a buffer of one's own, or memory of others,
    /// set("x", device->wrap(pointer, bytes, "x of PyTorch")). Elements have the declared type.
    Runner& set(const std::string& name, const Buffer& buffer, TW_HERE);
    /// A named size, or a scalar, converted to its type. Another size than before has inputs that were given as vectors
    /// copied to the device anew, and outputs get new buffers. Throws Error if the number does not fit.
    template <class T>
    requires std::is_arithmetic_v<T> Runner& set(const std::string& name, T value, TW_HERE) {
        if constexpr (std::is_floating_point_v<T>)
            return set_number(name, make_value(Type::F64, double(value)), where);
        else
            return set_number(name, make_value(Type::I64, int64_t(value)), where);
    }
    /// All of them: inputs, sizes and scalars, as random_bindings() makes them.
    Runner& set(const Bindings& bindings, TW_HERE);

    /// Runs all kernels and waits. Outputs without a buffer of their own get one, which holds NaN before the first run.
    /// Data that in_place overwrites stay overwritten: another run() goes on from there. Throws Error as
    /// Executable::bind says, and what the device throws: the emulator an EmulatorReport with what it found.
    void run();
    /// The same in the stream's order, without waiting.
    void run(const Stream& stream);

    /// The elements of an output, or of an input as it is on the device, in the order of memory, converted to T. Waits
    /// for the device. Throws Error if there is no such tensor, before run(), or if T does not hold an element.
    template <class T>
    std::vector<T> read(const std::string& name, TW_HERE) const {
        HostArray array = read_array(name, where);
        const size_t width = size_t(bytes_of(array.type));
        std::vector<T> values(array.bytes.size() / width);
        if (type_of<T>() == array.type && !values.empty()) {
            std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
            return values;
        }
        for (size_t i = 0; i < values.size(); ++i) {
            Value value = load_element(array.type, &array.bytes[i * width]);
            if (!fits<T>(value)) fail_read(name, i, value, where);
            values[i] = is_float(value.type) ? T(value.real) : T(value.integer);
        }
        return values;
    }
    HostArray read_array(const std::string& name, TW_HERE) const;
    /// Where a tensor lies on the device. Throws Error before run(), but for one that was set as a buffer.
    const Buffer& buffer(const std::string& name, TW_HERE) const;

    /// Copies the inputs to the host, runs once, and compares each output with its declaration in float64, as
    /// check_output() does: at up to options.samples elements of each. ok: all of them are right. Named approximations
    /// and round_to are allowed for by themselves.
    CheckResult check(CheckOptions options = {});
    /// Runs in bursts, in turns with a copy; the data are copied several times where the device's cache would hold
    /// them. Work of a kernel that overwrites its inputs goes on. On the emulator nothing is run, and the text says so.
    /// Throws Error unless rounds are at least 1.
    RunTime time(int rounds = 9);

    const Program& program() const { return executable_.program(); }
    const Executable& executable() const { return executable_; }
    const std::shared_ptr<Device>& device() const { return executable_.device(); }

private:
    struct Given {
        HostArray array;  ///< bytes only, in the order of memory, if `flat`
        bool flat = true;
        std::source_location where;
    };
    const BufferNode& node(const std::string& name, std::source_location where) const;
    const BufferNode& input_node(const std::string& name, std::source_location where) const;
    template <class T>
    static bool fits(const Value& value) {
        if constexpr (std::is_integral_v<T>) {
            if (!is_float(value.type)) return std::in_range<T>(value.integer);
            constexpr double beyond = 2.0 * double(std::numeric_limits<T>::max() / 2 + 1);
            const bool in_range = value.real >= double(std::numeric_limits<T>::min()) && value.real < beyond;
            return in_range && value.real == std::trunc(value.real);
        }
        return true;
    }
    [[noreturn]] static void fail_read(const std::string& name, size_t element, const Value& value,
                                       std::source_location where);
    /// The name that a tensor's buffer goes by: that of the input which it overwrites, or its own.
    const std::string& memory_of(const std::string& name, std::source_location where) const;
    Runner& set_number(const std::string& name, const Value& value, std::source_location where);
    template <class T>
    Runner& set_values(const std::string& name, std::span<const T> values, std::source_location where);
    void prepare();
    void drop_own_buffers();
    void upload(const BufferNode& input);
    HostArray shaped(const BufferNode& node) const;
    Bindings bindings_on_host() const;
    double total_bytes() const;

    std::vector<Tensor> outputs_;
    std::vector<Type> roundings_;
    std::vector<std::pair<Tensor, Type>> rounded_;
    Executable executable_;
    std::map<std::string, Given> given_;
    std::set<std::string> own_;  ///< buffers made here, from what was given or for outputs
    Arguments arguments_;
    bool is_prepared_ = false;
};

}  // namespace tw

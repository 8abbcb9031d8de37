// What a training goes on from: tensors and numbers, saved in one file and loaded back, bit for bit.
//
//   int64_t step = 0, position = 0;
//   nn::Checkpoint checkpoint;
//   checkpoint.add("network", network).add("adam", adam.states()).add("ema", ema.averages());
//   checkpoint.add("step", step).add("position", position).add("order", order);
//   if (std::filesystem::exists(path)) checkpoint.load(path);
//   while (step < steps) {
//       ...
//       if (++step % 100 == 0) checkpoint.save(path);
//   }
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "dsl/host_array.h"
#include "ops/modules/module.h"
#include "ops/persistence/safetensors.h"
#include "ops/tensor.h"

namespace tw::nn {

/// Names what makes up a training, and keeps no copy of it: save() and load() read and write the tensors, numbers and
/// arrays themselves, which must be there as long as it is. The file is a safetensors file (safetensors.h), in which a
/// number is an I64 without dimensions; so load() also reads weights that others have written, if names, types and
/// shapes are the same.
class Checkpoint {
public:
    /// A parameter, a state, a scalar on the device. Handles share their memory: compiled and recorded steps see what
    /// load() puts there. Throws Error if the name has been given before, if the tensor is undefined, and for tf32.
    Checkpoint& add(const std::string& name, const Tensor& tensor, TW_HERE);
    /// All of them, as "name.0", "name.1", ...: their order is a part of their names.
    Checkpoint& add(const std::string& name, const std::vector<Tensor>& tensors, TW_HERE);
    /// Parameters and buffers of a module and of all inside, as "name.blocks.0.norm.weight"; without "name." if the
    /// name is empty. What is registered later is not among them.
    Checkpoint& add(const std::string& name, const Module& module, TW_HERE);
    /// A number on the host: the step, a position in the data, a seed.
    Checkpoint& add(const std::string& name, int64_t& number, TW_HERE);
    /// An array on the host, whose type and shape stay: the order of the data, say.
    Checkpoint& add(const std::string& name, HostArray& array, TW_HERE);

    /// What the training was made with, which is no part of its state: a seed of its data, a type. Stands among the
    /// file's texts; load() refuses files that have another one, or none. Throws Error if it has been given before.
    Checkpoint& add_setting(const std::string& name, const std::string& value, TW_HERE);

    /// Replaces the file as a whole: killed at any moment, or without power, there is the old one or the new one, and
    /// what a killed save() left aside goes with the next (write_aside.h). Waits for the device; of all tensors one at
    /// a time is in host memory. Throws Error, which leaves the file as it was, if a tensor has no data or a step is
    /// recorded or captured, of which it would be no part, if a name is no UTF-8, and if the system refuses.
    void save(const std::filesystem::path& path, TW_HERE) const;
    /// Throws Error, and changes nothing, while a step is recorded or captured, if the file cannot be read, is no
    /// safetensors file, or has other names, types, shapes or settings than what has been added: the message lists
    /// them. Waits for the device. An error of the device while tensors are copied to it leaves some of them old.
    void load(const std::filesystem::path& path, TW_HERE) const;

private:
    using Content = std::variant<Tensor, int64_t*, HostArray*>;
    struct Item {
        std::string name;
        Content content;
    };
    Checkpoint& add_item(const std::string& name, Content content, std::source_location where);
    void refuse_in_step(const char* what, const char* instead, std::source_location where) const;
    std::vector<std::string> differences_from(const Safetensors& file) const;

    std::vector<Item> items_;
    std::map<std::string, std::string> settings_;
};

}  // namespace tw::nn

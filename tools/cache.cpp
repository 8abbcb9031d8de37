// tw cache: the compiled kernels on disk.
#include <ctime>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/compile/cubin_cache.h"
#include "support/error.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace tw {
namespace {

/// The rest of the first line of the key that begins with `word`: its keys are text, see compile.cpp.
std::string field(const std::string& key, const std::string& word) {
    size_t begin = key.rfind(word + " ", 0) == 0 ? 0 : key.find("\n" + word + " ");
    if (begin == std::string::npos) return "";
    begin = key.find(' ', begin) + 1;
    return key.substr(begin, key.find('\n', begin) - begin);
}

/// "matmul.cu" of "9 matmul.cu": names stand behind their length.
std::string kernel_of(const CacheEntry& entry) {
    std::string name = field(entry.key, "name");
    return name.substr(std::min(name.find(' ') + 1, name.size()));
}

std::string age_text(int64_t seconds) {
    if (seconds < 120) return fmt::format("{} s", seconds);
    if (seconds < 7200) return fmt::format("{} min", seconds / 60);
    return seconds < 172800 ? fmt::format("{} h", seconds / 3600) : fmt::format("{} days", seconds / 86400);
}

nlohmann::json entry_json(const CacheEntry& entry) {
    return {{"file", entry.file_name},          {"bytes", entry.bytes},
            {"used_at", entry.used_at},         {"kernel", kernel_of(entry)},
            {"arch", field(entry.key, "arch")}, {"problem", entry.problem}};
}

std::vector<CacheEntry> all_entries() {
    CubinCache& cache = cubin_cache();
    if (std::string problem = cache.problem(); !problem.empty()) throw_error(Error, "{}", problem);
    return cache.list();
}

void print_json(const std::vector<CacheEntry>& entries) {
    nlohmann::json list = nlohmann::json::array();
    for (const CacheEntry& entry : entries) list.push_back(entry_json(entry));
    print("{}\n", json_text({{"folder", cubin_cache().directory().string()}, {"entries", list}}));
}

void print_table(const std::vector<CacheEntry>& entries) {
    uint64_t bytes = 0;
    for (const CacheEntry& entry : entries) {
        bytes += entry.bytes;
        std::string what = entry.problem.empty() ? fmt::format("{:<9} {}", field(entry.key, "arch"), kernel_of(entry))
                                                 : "damaged: " + entry.problem;
        print("{}  {:>8.1f} KiB  used {:>8} ago  {}\n", entry.file_name, double(entry.bytes) / 1024,
              age_text(std::max<int64_t>(std::time(nullptr) - entry.used_at, 0)), what);
    }
    print("{}: {} entries, {:.1f} MiB\n", cubin_cache().directory().string(), entries.size(),
          double(bytes) / (1 << 20));
}

void print_verdict(size_t num_entries, const std::vector<CacheEntry>& damaged, bool removed) {
    for (const CacheEntry& entry : damaged) print("{}: {}\n", entry.file_name, entry.problem);
    print("{}: {} entries, {} damaged{}\n", cubin_cache().directory().string(), num_entries, damaged.size(),
          removed && !damaged.empty() ? ", removed" : "");
}

int verify(bool as_json, bool remove) {
    std::vector<CacheEntry> entries = all_entries(), damaged;
    for (const CacheEntry& entry : entries)
        if (!entry.problem.empty()) damaged.push_back(entry);
    if (remove) cubin_cache().verify();
    if (as_json)
        print_json(damaged);
    else
        print_verdict(entries.size(), damaged, remove);
    return damaged.empty() ? StatusDone : StatusFailed;
}

}  // namespace

void add_cache_commands(CLI::App& app, int& status) {
    struct Options {
        bool json = false, remove = false;
    };
    auto o = std::make_shared<Options>();
    auto* cache = app.add_subcommand("cache", "the compiled kernels on disk");
    cache->require_subcommand(1);
    auto* ls = cache->add_subcommand("ls", "every entry with its size, age and kernel");
    ls->add_flag("--json", o->json, "as JSON");
    ls->callback([o] {
        if (o->json)
            print_json(all_entries());
        else
            print_table(all_entries());
    });
    auto* check =
        cache->add_subcommand("verify", "checks the checksum and the key of every entry; 1 if one is damaged");
    check->add_flag("--json", o->json, "the damaged entries as JSON");
    check->add_flag("--remove", o->remove, "removes the damaged entries");
    check->callback([o, &status] { status = verify(o->json, o->remove); });
}

}  // namespace tw

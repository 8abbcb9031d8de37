// Files of one array, as NumPy reads and writes them.
#include "ops/persistence/npy.h"

#include <gmock/gmock.h>

#include "tests/ops/persistence/files.h"
#include "tests/ops/persistence/largest_allocation.h"
#include "tests/ops/persistence/mutate.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// With a header of this text, and a length of two bytes, or four.
std::string npy_text(const std::string& header, const std::string& data, char version = 1) {
    const size_t length = header.size();
    std::string text = std::string("\x93NUMPY") + version + '\0';
    for (int k = 0; k < (version == 1 ? 2 : 4); ++k) text += static_cast<char>(length >> (8 * k) & 0xff);
    return text + header + data;
}
HostArray parse(const std::string& text) { return parse_npy(text_bytes(text), "array"); }
HostArray parse_header(const std::string& header, const std::string& data = "") {
    return parse(npy_text(header, data));
}

TEST(NpyFiles, AreReadAsTheyWereWritten) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const FileFolder folder;
    for (const Type type : {boolean, i8, u8, i32, u32, i64, f16, f32, f64})
        for (const std::vector<int64_t>& shape :
             {std::vector<int64_t>{}, {1}, {7}, {0}, {3, 0, 2}, {2, 3, 4}, std::vector<int64_t>(40, 1)}) {
            const HostArray array = random_bits(type, shape, random);
            write_npy(folder / "array.npy", array);
            EXPECT_TRUE(same_array(read_npy(folder / "array.npy"), array)) << name_of(type) << indices_text(shape);
        }
    HostArray columns = host_array(f32, {2, 3}, {1, 4});
    fill_uniform(columns, -1, 1, 3);
    write_npy(folder / "array.npy", columns);
    EXPECT_FALSE(difference("columns", read_npy(folder / "array.npy"), columns));
}

/// The bytes of numpy.save(), NumPy 2.4, of the same arrays.
TEST(NpyFiles, StandAsNumPyHasThem) {
    const FileFolder folder;
    HostArray rows = host_array(f32, {2, 1}), one = host_array(u8, {1}), scalar = host_array(i64, {});
    rows.set({0, 0}, make_value(f32, 1.5));
    rows.set({1, 0}, make_value(f32, -2.0));
    one.set({0}, make_value(u8, int64_t{255}));
    scalar.set({}, make_value(i64, int64_t{258}));
    const auto padded = [](const std::string& text) { return text + std::string(117 - text.size(), ' ') + "\n"; };
    write_npy(folder / "rows", rows);
    EXPECT_EQ(file_text(folder / "rows"),
              npy_text(padded("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }"),
                       std::string("\0\0\xc0\x3f\0\0\0\xc0", 8)));
    write_npy(folder / "one", one);
    EXPECT_EQ(file_text(folder / "one"),
              npy_text(padded("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }"), "\xff"));
    write_npy(folder / "scalar", scalar);
    EXPECT_EQ(file_text(folder / "scalar"), npy_text(padded("{'descr': '<i8', 'fortran_order': False, 'shape': (), }"),
                                                     std::string("\2\1\0\0\0\0\0\0", 8)));
}

TEST(NpyFiles, OfAllVersionsAndOrdersAreRead) {
    const std::string header = "{ \"shape\":(3 ,),'fortran_order':False , 'descr' : '|i1'}   \n";
    for (const char version : {1, 2, 3}) {
        const HostArray array = parse(npy_text(header, "\1\2\xff", version));
        EXPECT_EQ(array.type, i8);
        EXPECT_EQ(array.at({2}).integer, -1);
    }
    EXPECT_EQ(parse_header("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 3,)}\n").shape,
              (std::vector<int64_t>{0, 3}));
}

TEST(NpyRefusals, NameWhatIsNoFileOfNumPy) {
    const FileFolder folder;
    EXPECT_ERROR(read_npy(folder / "none"), "/none: cannot be read (open: No such file or directory)");
    EXPECT_ERROR(parse(""), "array: bytes 0 to 5 of 0 are not '\\x93NUMPY'; is this an .npy file?");
    EXPECT_ERROR(parse("PK\3\4 a zipped .npz"), "array: bytes 0 to 5 of 18 are not");
    EXPECT_ERROR(parse("\x93NUMPY"), "array: bytes 6 and 7 tell of version 0.0, and 1.0, 2.0 and 3.0 are read here");
    EXPECT_ERROR(parse(npy_text("{}\n", "", 4)),
                 "tell of version 4.0, and 1.0, 2.0 and 3.0 are read here; write the file again");
    EXPECT_ERROR(parse(std::string("\x93NUMPY\1\1\2\0{}", 12)), "tell of version 1.1");
    EXPECT_ERROR(parse(std::string("\x93NUMPY\1\0\2", 9)),
                 "array: has 9 bytes, and its header ends at 10: the file is cut off; copy or write it again");
    EXPECT_ERROR(parse(std::string("\x93NUMPY\1\0\20\0{}", 12)), "array: has 12 bytes, and its header ends at 26");
    EXPECT_ERROR(parse(std::string("\x93NUMPY\1\0\x11\x27{}", 12)),
                 "array: bytes 8 to 9 tell of a header of 10001 bytes, and 10000 is the limit; write the file again");
    EXPECT_ERROR(parse(std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14)),
                 "array: bytes 8 to 11 tell of a header of 4294967295 bytes, and 10000 is the limit");
}

TEST(NpyRefusals, NameTheByteOrTheKeyOfTheHeader) {
    const std::string rest = ", 'fortran_order': False, 'shape': (2,)}\n";
    EXPECT_ERROR(parse_header("[1]\n"), "array: byte 10: the header must have '{' there; write the file again");
    EXPECT_ERROR(parse_header("{descr}\n"), "array: byte 11: the header must have a text in quotes there");
    EXPECT_ERROR(parse_header("{'descr\n"), "byte 11: the header must have a text in quotes there");
    EXPECT_ERROR(parse_header("{'descr' '<f4'" + rest), "array: byte 19: the header must have ':' there");
    EXPECT_ERROR(parse_header("{'de\\x73cr': '<f4'" + rest),
                 "byte 11: the header must have a text without a backslash");
    EXPECT_ERROR(parse_header("{'descr': [('a', '<f4')]" + rest), "byte 20: the header must have a text in quotes");
    EXPECT_ERROR(parse_header("{'descr': '<f4' 'shape': (2,)}\n"), "byte 26: the header must have ',' there");
    EXPECT_ERROR(parse_header("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}\n"), "the header must have 'True'");
    EXPECT_ERROR(parse_header("{'shape': 2}\n"), "the header must have '(' there");
    EXPECT_ERROR(parse_header("{'shape': (2)}\n"), "byte 22: the header must have ',' there");
    EXPECT_ERROR(parse_header("{'shape': (-1,)}\n"),
                 "byte 21: the header must have an extent from 0 to 2^63 - 1 there");
    EXPECT_ERROR(parse_header("{'shape': (x,)}\n"), "byte 21: the header must have an extent");
    EXPECT_ERROR(parse_header("{'shape': (9223372036854775808,)}\n"), "byte 21: the header must have an extent");
    EXPECT_ERROR(parse_header("{'descr': '<f4'" + rest.substr(0, rest.size() - 1)),
                 "the header must have spaces, and a line's end as the last byte there");
    EXPECT_ERROR(parse_header("{'descr': '<f4'" + rest + "\n"), "the header must have spaces, and a line's end");
    EXPECT_ERROR(parse_header("{'descr': '<f4', 'shape': (2,)}\n", "12345678"),
                 "array: the header has no 'fortran_order'; write the file again");
    EXPECT_ERROR(parse_header("{}\n"), "array: the header has no 'descr'");
    EXPECT_ERROR(parse_header("{'shape': (2,), 'shape': (2,)}\n"),
                 "array: 'shape' stands twice in the header; keep one");
    EXPECT_ERROR(parse_header("{'order': 'C'}\n"),
                 "array: 'order' is no key of the header; keep descr, fortran_order and shape");
    EXPECT_ERROR(parse_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}\n", "12345678"),
                 "array: columns lie one behind the other (fortran_order), and rows are read here; save "
                 "numpy.ascontiguousarray() of it");
    EXPECT_ERROR(parse_header("{'descr': '>f4'" + rest, "12345678"),
                 "array: '>f4' is big-endian, and little-endian numbers are read here; save .astype('<f4') of it");
    for (const char* descr : {"<f16", "<c8", "|O", "<U5", "<i2", "f4", "=f4", "<i1"})
        EXPECT_ERROR(parse_header(fmt::format("{{'descr': '{}'", descr) + rest),
                     fmt::format("array: no array here is of '{}'; convert it to one of |b1, |i1, |u1, <i4, <u4, <i8, "
                                 "<f2, <f4, <f8",
                                 descr));
}

TEST(NpyRefusals, NameWhatDoesNotFit) {
    const auto of = [](const std::string& descr, const std::string& shape, const std::string& data) {
        parse_header(fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}}}\n", descr, shape), data);
    };
    of("<f4", "(2,)", "12345678");
    EXPECT_ERROR(of("<f4", "(2,)", "1234567"),
                 "array: its shape has 8 bytes of data from byte 66 on, and 7 are there: the file is cut off; copy or "
                 "write the file again");
    EXPECT_ERROR(of("<f4", "(2,)", "123456789"), "and 9 are there: something follows that nobody knows");
    EXPECT_ERROR(of("<f8", "()", ""), "its shape has 8 bytes of data");
    EXPECT_ERROR(of("|u1", "(4294967296, 4294967296)", ""),
                 "array: a shape of 2 dimensions exceeds 2^63 - 1 bytes; write the file again");
    EXPECT_ERROR(parse_header("{'shape': (1152921504606846976,), 'fortran_order': False, 'descr': '<f8'}\n"),
                 "a shape of 1 dimensions exceeds");  // of f8 it does, whichever key comes first
    EXPECT_ERROR(of("|u1", "(0, 4611686018427387904, 4611686018427387904)", ""), "a shape of 3 dimensions exceeds");
    EXPECT_ERROR(of("|b1", "(3,)", std::string("\1\0\7", 3)),
                 "array: byte 68 is 7, and a bool is 0 or 1; write the file again");
}

TEST(NpyRefusals, NameWhatNumPyHasNoPlaceFor) {
    const FileFolder folder;
    for (const Type type : {bf16, tf32, e4m3, e5m2})
        EXPECT_ERROR(write_npy(folder / "array.npy", host_array(type, {2})),
                     fmt::format("/array.npy: NumPy has no name for {}; cast it to f32, or write a safetensors file",
                                 name_of(type)));
    EXPECT_ERROR(
        write_npy(folder / "array.npy", host_array(f32, std::vector<int64_t>(5000, 1))),
        "/array.npy: a header of 15094 bytes, for 5000 dimensions, and 10000 is the limit of .npy files; join some");
    EXPECT_ERROR(write_npy(folder / "array.npy", HostArray{f32, {2}, {1}, {}}),
                 "'array.npy': 0 bytes are no array [2]");
    EXPECT_EQ(folder.count(""), 0u);
}

TEST(NpyFuzz, GivesAnArrayOrAnError) {
    const std::vector<std::string> files{
        npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n", "12345678"),
        npy_text("{'shape': (), 'descr': '|b1', 'fortran_order': False}\n", "\1"),
        npy_text("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 0, 2), }\n", "", 3)};
    const std::vector<std::string> tokens{"{",
                                          "}",
                                          "(",
                                          ")",
                                          ",",
                                          ":",
                                          "'",
                                          "\"",
                                          "\\",
                                          "0",
                                          "-1",
                                          "9",
                                          "4294967296",
                                          "9223372036854775807",
                                          "'shape'",
                                          "'descr'",
                                          "True",
                                          "False",
                                          "'<f8'",
                                          "'>f4'",
                                          "'|O'",
                                          "(2)",
                                          "\n",
                                          " ",
                                          std::string(1, '\0')};
    std::mt19937_64 random(20240608);
    int64_t read = 0, refused = 0;
    for (int k = 0; k < num_fuzzed_files; ++k) {
        std::string text = mutated(files[random() % files.size()], tokens, random);
        // Half of them with a length that is right again, so that what comes behind it is reached.
        if (text.size() >= 12 && random() % 2 == 0) {
            const size_t begin = text[6] == 1 ? 10 : 12, end = text.rfind('\n');
            if (end != std::string::npos && end >= begin) text[8] = static_cast<char>(end + 1 - begin);
        }
        const std::vector<std::byte> bytes = own_bytes(text);
        start_watching_allocations();
        try {
            ASSERT_LE(parse_npy(bytes, "fuzzed").bytes.size(), text.size());
            ++read;
        } catch (const Error& error) {
            ASSERT_TRUE(std::string_view(error.what()).starts_with("fuzzed: ")) << error.what();
            ++refused;
        }
        ASSERT_LE(largest_allocation(), 8 * text.size() + 4096) << "input " << k;
    }
    EXPECT_GT(read, num_fuzzed_files / 40);
    EXPECT_GT(refused, num_fuzzed_files / 4);
}

}  // namespace
}  // namespace tw

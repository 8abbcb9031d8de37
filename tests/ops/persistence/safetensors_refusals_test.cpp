// What no safetensors file is: each refusal says where, what stands there, and the limit.
#include <gmock/gmock.h>

#include "ops/persistence/safetensors.h"
#include "tests/ops/persistence/files.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

void read_safetensors(const std::string& text) { Safetensors(text_bytes(text), "model"); }
void read_header(const std::string& header, const std::string& data = "") {
    read_safetensors(safetensors_text(header, data));
}
std::string length_text(uint64_t length) {
    std::string text(sizeof length, '\0');
    std::memcpy(text.data(), &length, sizeof length);
    return text;
}

/// What is changed below: of these, each differs from a file that is read in one thing.
TEST(SafetensorsRefusals, AreOfFilesThatAreNearlyRight) {
    read_header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
    read_header(R"({"__metadata__":{"a":"b"}})");
    read_header("{}");
}

TEST(SafetensorsRefusals, NameFilesThatCannotBeRead) {
    const FileFolder folder;
    EXPECT_ERROR(Safetensors(folder / "none"),
                 "/none: cannot be read (open: No such file or directory); check the name and the permissions");
    EXPECT_ERROR(Safetensors(folder.path()), "is no plain file, but a folder, a pipe or a device; give a file's name");
    put_text(folder / "empty", "");
    EXPECT_ERROR(Safetensors(folder / "empty"),
                 "/empty: has 0 bytes, and a safetensors file begins with the 8 of its header's length");
}

TEST(SafetensorsRefusals, NameTheLengthOfTheHeader) {
    EXPECT_ERROR(
        read_safetensors("1234567"),
        "model: has 7 bytes, and a safetensors file begins with the 8 of its header's length; copy or write it "
        "again");
    EXPECT_ERROR(read_safetensors(length_text(100'000'001) + "{}"),
                 "model: bytes 0 to 7 tell of a header of 100000001 bytes, and 100000000 is the limit; is this a "
                 "safetensors file?");
    EXPECT_ERROR(read_safetensors(length_text(~uint64_t{0}) + "{}"), "a header of 18446744073709551615 bytes");
    EXPECT_ERROR(read_safetensors(length_text(100'000'000) + "{}"),
                 "model: bytes 0 to 7 tell of a header of 100000000 bytes, and 2 follow: the file is cut off; copy or "
                 "write it again");
    EXPECT_ERROR(read_safetensors(length_text(3) + "{}"), "tell of a header of 3 bytes, and 2 follow");
}

TEST(SafetensorsRefusals, NameTheByteWhereTextIsWrong) {
    EXPECT_ERROR(
        read_header(""),
        "model: byte 8: a header of 0 bytes does not begin with an opening brace; is this a safetensors file?");
    EXPECT_ERROR(read_header(" {}"), "byte 8: a header of 3 bytes does not begin with an opening brace");
    EXPECT_ERROR(read_header("\xef\xbb\xbf{}"), "does not begin with an opening brace");  // a byte order mark
    EXPECT_ERROR(read_header(std::string("{}\0garbage", 10)),
                 "model: byte 10 is 0x00, and no blank but 0x20 may stand in a header; write the file again");
    EXPECT_ERROR(read_header("{}\n"), "model: byte 10 is 0x0a");
    EXPECT_ERROR(read_header("{\t}"), "model: byte 9 is 0x09");
    EXPECT_ERROR(read_header("{\r}"), "model: byte 9 is 0x0d");
    EXPECT_ERROR(read_header("{}x"), "model: byte 10: the header is no JSON (parse error at line 1, column 3");
    EXPECT_ERROR(read_header("{} {}"), "model: byte 11: the header is no JSON");
    EXPECT_ERROR(read_header("{"), "copy or write the file again");
    EXPECT_ERROR(read_header(R"({"w":})"), "model: byte 13: the header is no JSON");
    EXPECT_ERROR(read_header("{\"\xff\":{}}"), "model: byte 10: the header is no JSON");  // no UTF-8
    EXPECT_ERROR(read_header(R"({"\ud800":{}})"), "the header is no JSON");               // half of a pair
    EXPECT_ERROR(read_header(R"({"w":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})", "1234"), "is no JSON");
    EXPECT_ERROR(read_header("{\"w\":" + std::string(100'000, '[')), "'w' is a list, and must be an object");
}

TEST(SafetensorsRefusals, NameWhatStandsInTheWrongPlace) {
    const auto with = [](const std::string& field) { read_header("{\"w\":{" + field + "}}"); };
    EXPECT_ERROR(read_header(R"({"w":null})"), "model: 'w' is null, and must be an object; write the file again");
    EXPECT_ERROR(read_header(R"({"w":true})"), "'w' is true, and must be an object");
    EXPECT_ERROR(read_header(R"({"w":3})"), "'w' is 3, and must be an object");
    EXPECT_ERROR(read_header(R"({"__metadata__":"a"})"), "'__metadata__' is a string, and must be an object");
    EXPECT_ERROR(read_header(R"({"__metadata__":{"a":1}})"), "'__metadata__': a is 1, and must be a string");
    EXPECT_ERROR(read_header(R"({"__metadata__":{"a":{}}})"), "'__metadata__': a is an object, and must be a string");
    EXPECT_ERROR(read_header(R"({"__metadata__":{"a":["b"]}})"), "a is a list, and must be a string");
    EXPECT_ERROR(with(R"("dtype":32)"), "'w': dtype is 32, and must be a string");
    EXPECT_ERROR(with(R"("dtype":["F32"])"), "'w': dtype is a list, and must be a string");
    EXPECT_ERROR(with(R"("shape":"[2]")"), "'w': shape is a string, and must be a list of integers");
    EXPECT_ERROR(with(R"("shape":{})"), "'w': shape is an object, and must be a list of integers");
    EXPECT_ERROR(with(R"("shape":[[2]])"), "'w': an extent is a list, and must be an integer from 0 to 2^63 - 1");
    EXPECT_ERROR(with(R"("shape":[-1])"), "'w': an extent is -1, and must be an integer from 0 to 2^63 - 1");
    EXPECT_ERROR(with(R"("shape":[2.0])"), "'w': an extent is 2.0, and must");
    EXPECT_ERROR(with(R"("shape":[1e3])"), "'w': an extent is 1e3, and must");
    EXPECT_ERROR(with(R"("shape":[9223372036854775808])"), "'w': an extent is 9223372036854775808, and must");
    EXPECT_ERROR(with(R"("shape":[99999999999999999999])"), "'w': an extent is 99999999999999999999, and must");
    EXPECT_ERROR(with(R"("data_offsets":[0,"8"])"), "'w': an offset is a string, and must be an integer from 0");
    EXPECT_ERROR(with(R"("data_offsets":[-8,8])"), "'w': an offset is -8, and must be an integer from 0");
    EXPECT_ERROR(with(R"("data_offsets":8)"), "'w': data_offsets is 8, and must be a list of integers");
}

TEST(SafetensorsRefusals, NameKeys) {
    EXPECT_ERROR(read_header(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{}})"),
                 "model: 'w' stands twice; keep one, under another name");
    EXPECT_ERROR(read_header(R"({"\u0077":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{}})"),
                 "'w' stands twice");
    EXPECT_ERROR(read_header(R"({"__metadata__":{},"__metadata__":{}})"), "'__metadata__' stands twice");
    EXPECT_ERROR(read_header(R"({"__metadata__":{"a":"1","a":"2"}})"), "'__metadata__': 'a' stands twice");
    EXPECT_ERROR(read_header(R"({"w":{"shape":[],"shape":[]}})"), "'w': 'shape' stands twice");
    EXPECT_ERROR(read_header(R"({"w":{"offsets":[0,8]}})"),
                 "model: 'w': 'offsets' is no key of the format; keep dtype, shape and data_offsets");
    EXPECT_ERROR(read_header(R"({"w":{"shape":[0],"data_offsets":[0,0]}})"),
                 "model: 'w': has no dtype; write the file again");
    EXPECT_ERROR(read_header(R"({"w":{"dtype":"U8","data_offsets":[0,0]}})"), "'w': has no shape");
    EXPECT_ERROR(read_header(R"({"w":{"dtype":"U8","shape":[0]}})"), "'w': has no data_offsets");
    EXPECT_ERROR(read_header(R"({"w":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}})"),
                 "model: 'w': no tensor here has dtype 'F4'; convert it to one of BOOL, I8, U8, I32, U32, I64, F16, "
                 "BF16, F8_E4M3, F32, F8_E5M2, F64");
    EXPECT_ERROR(read_header(R"({"w":{"dtype":"f32","shape":[0],"data_offsets":[0,0]}})"), "has dtype 'f32'");
}

/// A file with dtypes that no type here is opens, and says which tensor it is when that is asked for.
TEST(SafetensorsRefusals, NameTensorsOfOtherTypes) {
    for (const auto& [dtype, bytes] :
         std::map<std::string, int>{{"I16", 2}, {"U16", 2}, {"U64", 8}, {"C64", 8}, {"F8_E8M0", 1}}) {
        const std::string data = std::string(static_cast<size_t>(2 * bytes), '\5') + "\1\2";
        const auto header = [&](int64_t end) {
            return safetensors_text(fmt::format(R"({{"w":{{"dtype":"{}","shape":[2],"data_offsets":[0,{}]}},)"
                                                R"("x":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}}})",
                                                dtype, end, end, end + 2),
                                    data);
        };
        const std::string text = header(2 * bytes), other = header(2 * bytes + 1);
        const Safetensors file(text_bytes(text), "model");
        EXPECT_EQ(file.array("x").at({1}).integer, 2);
        EXPECT_EQ(file.bytes("w").size(), 2u * bytes);
        EXPECT_EQ(file.entry("w").type_text(), dtype);
        EXPECT_ERROR(file.array("w"), fmt::format("model: 'w' is {}, which no tensor here can be; convert it to one of "
                                                  "BOOL, I8, U8, I32, U32, I64, F16, BF16, F8_E4M3, F32, F8_E5M2, F64, "
                                                  "or take its bytes()",
                                                  dtype));
        EXPECT_ERROR(Safetensors(text_bytes(other), "model"),
                     fmt::format("'w': {} [2] has {} bytes, and data_offsets [0, {}] hold {}", dtype, 2 * bytes,
                                 2 * bytes + 1, 2 * bytes + 1));
    }
}

/// All types of others that are types here: of two elements each, the second one known.
TEST(SafetensorsRefusals, AreNoneOfTheTypesThatThereAre) {
    const auto element = [](const std::string& dtype, const std::string& bytes) {
        const std::string text = safetensors_text(
            fmt::format(R"({{"w":{{"dtype":"{}","shape":[2],"data_offsets":[0,{}]}}}})", dtype, bytes.size()), bytes);
        return Safetensors(text_bytes(text), "model").array("w").at({1});
    };
    EXPECT_EQ(element("BOOL", std::string("\0\1", 2)).integer, 1);
    EXPECT_EQ(element("I8", "\1\xfe").integer, -2);
    EXPECT_EQ(element("U8", "\1\xfe").integer, 254);
    EXPECT_EQ(element("I32", std::string("\0\0\0\0\xfe\xff\xff\xff", 8)).integer, -2);
    EXPECT_EQ(element("U32", std::string("\0\0\0\0\xfe\xff\xff\xff", 8)).integer, 4294967294);
    EXPECT_EQ(element("I64", std::string(8, '\0') + "\xfe" + std::string(7, '\xff')).integer, -2);
    EXPECT_EQ(element("F64", std::string(14, '\0') + "\xf8\x3f").real, 1.5);
}

/// Names are the file's: they come shortened, and without what a terminal would obey.
TEST(SafetensorsRefusals, PrintNamesThatAreHarmless) {
    EXPECT_ERROR(read_header("{\"" + std::string(1000, 'n') + "\":1}"), "'" + std::string(77, 'n') + "...' is 1");
    EXPECT_ERROR(read_header(R"({"\u001b[2J\u00e9":1})"), R"('\u001b[2J\u00e9' is 1)");
}

TEST(SafetensorsRefusals, NameWhatDoesNotFit) {
    const auto of = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                       const std::string& data) {
        read_header(fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets),
                    data);
    };
    EXPECT_ERROR(of("F32", "[2]", "[0]", "12345678"),
                 "model: 'w': data_offsets are [0], and must be where its bytes begin, and end");
    EXPECT_ERROR(of("F32", "[2]", "[]", "12345678"), "'w': data_offsets are [], and must be");
    EXPECT_ERROR(of("F32", "[2]", "[0,8,8]", "12345678"), "'w': data_offsets are 3 numbers, and must be");
    EXPECT_ERROR(of("F32", "[2]", "[8,0]", "12345678"), "'w': data_offsets are [8, 0], and must be");
    EXPECT_ERROR(of("F32", "[3]", "[0,8]", "12345678"),
                 "model: 'w': f32 [3] has 12 bytes, and data_offsets [0, 8] hold 8; write the file again");
    EXPECT_ERROR(of("F64", "[]", "[0,4]", "1234"), "'w': f64 [] has 8 bytes, and data_offsets [0, 4] hold 4");
    EXPECT_ERROR(of("U8", "[1]", "[0,2]", "12"), "'w': u8 [1] has 1 bytes, and data_offsets [0, 2] hold 2");
    EXPECT_ERROR(of("U8", "[4294967296,4294967296]", "[0,0]", ""),
                 "model: 'w': a shape [4294967296, 4294967296] of u8 exceeds 2^63 - 1 bytes; write the file again");
    EXPECT_ERROR(of("F64", "[2305843009213693952]", "[0,0]", ""), "of f64 exceeds 2^63 - 1 bytes");
    EXPECT_ERROR(of("U8", "[0,4611686018427387904,4611686018427387904]", "[0,0]", ""), "exceeds 2^63 - 1 bytes");
    std::string ones = "[2";
    for (int k = 0; k < 30; ++k) ones += ",1";
    EXPECT_ERROR(of("U8", ones + "]", "[0,1]", "1"), "'w': u8 of 31 dimensions has 2 bytes");
    EXPECT_ERROR(of("BOOL", "[4]", "[0,4]", std::string("\1\0\2\1", 4)),
                 "model: 'w': byte 65 is 2, and a BOOL is 0 or 1; write the file again");
}

TEST(SafetensorsRefusals, NameHolesOverlapsAndEnds) {
    const auto two = [](const std::string& a, const std::string& b, size_t bytes) {
        read_header(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                                R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                a, b),
                    std::string(bytes, 'x'));
    };
    two("[4,8]", "[0,4]", 8);
    EXPECT_ERROR(
        two("[0,4]", "[5,9]", 9),
        "model: 'b': its data_offsets begin at 5, and the bytes before it end at 4: there is a hole; write the "
        "file again");
    EXPECT_ERROR(two("[0,4]", "[3,7]", 7),
                 "'b': its data_offsets begin at 3, and the bytes before it end at 4: there is an overlap");
    EXPECT_ERROR(two("[0,4]", "[0,4]", 4),
                 "'b': its data_offsets begin at 0, and the bytes before it end at 4: there is an overlap");
    EXPECT_ERROR(two("[1,5]", "[5,9]", 9),
                 "'a': its data_offsets begin at 1, and the bytes before it end at 0: there is a hole");
    EXPECT_ERROR(two("[0,4]", "[4,8]", 7),
                 "model: the header tells of 8 bytes of data from byte 113 on, and 7 are there: the file is cut off; "
                 "copy or write the file again");
    EXPECT_ERROR(two("[0,4]", "[4,8]", 9), "and 9 are there: something follows that nobody knows");
    EXPECT_ERROR(two("[0,4]", "[9223372036854775803,9223372036854775807]", 8), "there is a hole");
}

TEST(SafetensorsRefusals, NameTheTensorsThatThereAre) {
    const std::string none = safetensors_text("{}");
    EXPECT_ERROR(Safetensors(text_bytes(none), "model").array("w"), "model: has no tensor 'w'; of 0 it has none");
    std::string header;
    for (int k = 0; k < 9; ++k)
        header +=
            fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", k ? "," : "{", k, k, k + 1);
    const std::string nine = safetensors_text(header + "}", "123456789");
    EXPECT_ERROR(Safetensors(text_bytes(nine), "model").entry("w"),
                 "has no tensor 'w'; of 9 it has 't0', 't1', 't2', 't3', 't4', 't5', 't6', 't7', ...");
}

}  // namespace
}  // namespace tw

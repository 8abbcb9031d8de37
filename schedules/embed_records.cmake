# cmake -DOUTPUT=embedded.cpp -DRECORDS=h200.jsonl -P embed_records.cmake
# Writes the tuner's records as a string constant, a literal for each line: compilers need only accept 64 KiB in one.
file(READ "${RECORDS}" records)
string(REPLACE "\n" "\n)tw\"\nR\"tw(" records "${records}")
file(WRITE "${OUTPUT}" "namespace tw::schedules {
extern const char* const kTunedRecords;
const char* const kTunedRecords = R\"tw(${records})tw\";
}  // namespace tw::schedules
")

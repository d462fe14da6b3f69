// How the C API's descriptions of copies are read. Inside client/abi.
#pragma once

#include "client/abi/objects.h"
#include "iris/types.h"

namespace iris::abi {

// Leaves *out as it is if `given` is null.
inline absl::Status ReadSignal(const iris_signal* given, SignalTo* out) {
  if (given == nullptr) return absl::OkStatus();
  IRIS_ASSIGN_OR_RETURN(const auto signal, ReadStruct(given, kSignalBytes, "iris_signal"));
  if (signal.op != IRIS_SIGNAL_SET && signal.op != IRIS_SIGNAL_ADD) {
    return Invalid(signal.op, " is no iris_signal_op");
  }
  out->word = signal.word;
  out->value = signal.value;
  out->op = signal.op == IRIS_SIGNAL_SET ? SignalOp::kSet : SignalOp::kAdd;
  return absl::OkStatus();
}

inline absl::Status ReadRows(const iris_rows* given, RowsToCopy* out) {
  IRIS_ASSIGN_OR_RETURN(const auto rows, ReadStruct(given, kRowsBytes, "iris_rows"));
  *out = {rows.rows, rows.row_bytes, rows.dst_pitch_bytes, rows.src_pitch_bytes};
  return absl::OkStatus();
}

}  // namespace iris::abi

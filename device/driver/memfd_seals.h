// The seals of memfds, which headers of older C libraries lack.
#pragma once

#include <fcntl.h>

#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#define F_SEAL_WRITE 0x0008
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace iris::driver {

// Nobody can truncate what has these: a truncation would kill those who map it with SIGBUS.
inline constexpr int kResizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
inline constexpr int kWriteSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

}  // namespace iris::driver

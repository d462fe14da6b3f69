// Log lines of the client library, and of programs that want theirs to look the same.
#pragma once

#include "client/base/log.h"

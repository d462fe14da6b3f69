// Rank, size and job name from the environment that a launcher made.
#pragma once

#include "client/base/launcher.h"

/* The two forms of this library: preloaded (preloaded.c), and in libibverbs' place (in_place.c). */
#pragma once

/* By this a library in libibverbs' place sees that another one is preloaded. */
#define PRELOADED c4bench_preloaded
extern const char PRELOADED[];

#pragma GCC visibility push(hidden)

/* Why another library watches what programs do with devices; NULL where none does. */
const char *watched_by_another(void);

#pragma GCC visibility pop

/* What a preloaded library has in place of libibverbs' functions, for programs that look these up by name. */
#ifndef C4BENCH_LOOKUP_H
#define C4BENCH_LOOKUP_H

#pragma GCC visibility push(hidden)

/* A table that ends with a name of NULL; each library has its own. */
extern const struct replaced {
	const char *name;
	void *function;
} REPLACED[];

#pragma GCC visibility pop

#endif

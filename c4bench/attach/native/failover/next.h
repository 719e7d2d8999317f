/* The functions that this library's stand before: those of the library that watches programs, where that has one of its own,
   else libibverbs'. */
#pragma once

#pragma GCC visibility push(hidden)

/* The next definition of a function of libibverbs; NULL where there is none. */
void *next_verbs(const char *name);

/* A function of libibverbs itself, for what nobody watches. */
void *bare_verbs(const char *name);

/* Look the next function up at the first call; `missing` is returned where there is none. */
#define NEXT(name, missing) \
	static __typeof__(&name) next; \
	if (!next) \
		next = (__typeof__(&name))next_verbs(#name); \
	if (!next) \
		return missing

#pragma GCC visibility pop

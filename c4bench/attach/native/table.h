/* A table from numbers to pointers that is read without a lock. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { TABLE_BITS = 14, TABLE_PLACES = 1 << TABLE_BITS };

struct place {
	_Atomic uint64_t key; /* 0: never used, 1: left */
	void *_Atomic value;
};

struct table {
	struct place places[TABLE_PLACES];
	size_t used;
};

static inline struct place *table_place(struct table *table, uint64_t number)
{
	return &table->places[number % TABLE_PLACES];
}

/* Where the search for a key begins. */
static inline uint64_t table_home(uint64_t key)
{
	return (key * 0x9E3779B97F4A7C15ull) >> (64 - TABLE_BITS);
}

/* The value of a key, NULL where it has none. */
static inline void *table_get(struct table *table, uint64_t key)
{
	for (uint64_t number = table_home(key);; number++) {
		struct place *place = table_place(table, number);
		uint64_t found = place->key;
		if (found == key)
			return place->value;
		if (!found)
			return NULL;
	}
}

/* Set the value of a key, which is neither 0 nor 1. The caller holds a lock. Returns 0 where there is no room. */
int table_set(struct table *table, uint64_t key, void *value);

/* Take a key out, and return its value, NULL where it had none. The caller holds a lock. */
void *table_take(struct table *table, uint64_t key);

#pragma GCC visibility pop

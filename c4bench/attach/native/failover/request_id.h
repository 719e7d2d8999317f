/* What a device gets as the `wr_id` of a request of a pair: whether it is a receive, the epoch of its side, its number. */
#pragma once

#include <stdint.h>

enum { ID_NUMBER_BITS = 48, ID_EPOCH_BITS = 15 };

/* The number of what is no request of the program. */
static const uint64_t ID_PROBE = (1ull << ID_NUMBER_BITS) - 1;

static inline uint64_t id_of(int received, uint32_t epoch, uint64_t number)
{
	uint64_t of_epoch = epoch & ((1u << ID_EPOCH_BITS) - 1);

	return (uint64_t)received << 63 | of_epoch << ID_NUMBER_BITS | (number & ((1ull << ID_NUMBER_BITS) - 1));
}

static inline int id_received(uint64_t id)
{
	return (int)(id >> 63);
}

static inline uint32_t id_epoch(uint64_t id)
{
	return (uint32_t)(id >> ID_NUMBER_BITS) & ((1u << ID_EPOCH_BITS) - 1);
}

/* Whether the epoch of an id is this one of a pair or pool, which counts on. */
static inline int is_epoch(uint32_t of_id, uint32_t epoch)
{
	return of_id == (epoch & ((1u << ID_EPOCH_BITS) - 1));
}

static inline uint64_t id_number(uint64_t id)
{
	return id & ((1ull << ID_NUMBER_BITS) - 1);
}

#include "slot.h"

#include <stdatomic.h>
#include <string.h>

/* Before a copy's payload: generation, length, checksum. */
struct head {
	uint64_t generation;
	uint32_t length;
	uint32_t checksum;
};

/* CRC-32 as zlib computes it (polynomial 0xEDB88320), eight bytes at a time by eight tables (Kounavis and Berry, "A
   systematic approach to building high performance software-based CRC generators", 2005). */
static uint32_t tables[8][256];

__attribute__((constructor)) static void fill_tables(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0xEDB88320u & -(crc & 1));
		tables[0][byte] = crc;
	}
	for (int table = 1; table < 8; table++)
		for (int byte = 0; byte < 256; byte++)
			tables[table][byte] = tables[table - 1][byte] >> 8 ^ tables[0][tables[table - 1][byte] & 255];
}

static uint32_t crc32(uint32_t start, const unsigned char *data, size_t length)
{
	uint32_t crc = ~start;

	for (; length >= 8; data += 8, length -= 8) {
		uint64_t word;
		memcpy(&word, data, sizeof word);
		word ^= crc;
		crc = 0;
		for (int byte = 0; byte < 8; byte++)
			crc ^= tables[7 - byte][word >> 8 * byte & 255];
	}
	for (; length; data++, length--)
		crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
	return ~crc;
}

struct slot slot_at(unsigned char *copies, size_t size)
{
	struct head first, second;

	memcpy(&first, copies, sizeof first);
	memcpy(&second, copies + size, sizeof second);
	return (struct slot){copies, size, first.generation > second.generation ? first.generation : second.generation};
}

void slot_write(struct slot *slot, const void *payload, size_t length)
{
	if (sizeof(struct head) + length > slot->size)
		return;
	uint64_t generation = ++slot->generation;
	unsigned char *copy = slot->copies + (generation & 1) * slot->size;
	struct head head = {generation, (uint32_t)length, crc32((uint32_t)generation, payload, length)};

	memcpy(copy + sizeof head, payload, length);
	/* The head last: a writer that stops here leaves a copy whose checksum does not fit. */
	atomic_signal_fence(memory_order_seq_cst);
	memcpy(copy, &head, sizeof head);
}

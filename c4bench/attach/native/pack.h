/* MessagePack, as far as the records of a telemetry file need it. */
#pragma once

#include <stdint.h>
#include <string.h>

enum { PACKED_BYTES = 512 };

struct packed {
	unsigned char bytes[PACKED_BYTES];
	size_t length;
};

static inline void pack_byte(struct packed *into, unsigned int byte)
{
	if (into->length < PACKED_BYTES)
		into->bytes[into->length++] = (unsigned char)byte;
}

/* A map of so many (at most 15) names and values, which follow. */
static inline void pack_map(struct packed *into, unsigned int pairs)
{
	pack_byte(into, 0x80 | pairs);
}

static inline void pack_empty_array(struct packed *into)
{
	pack_byte(into, 0x90);
}

/* Text of at most 255 bytes; the rest of it is left out. */
static inline void pack_text(struct packed *into, const char *text)
{
	size_t length = strnlen(text, 255);

	pack_byte(into, 0xd9);
	pack_byte(into, (unsigned int)length);
	for (size_t i = 0; i < length; i++)
		pack_byte(into, (unsigned char)text[i]);
}

static inline void pack_number(struct packed *into, int64_t number)
{
	pack_byte(into, 0xd3);
	for (int shift = 56; shift >= 0; shift -= 8)
		pack_byte(into, (unsigned int)((uint64_t)number >> shift & 255));
}
